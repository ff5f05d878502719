/*
 * The file of measured matmul algorithms: what is written is found, by key; a file that is cut at
 * any byte, or changed, is not believed and not harmful; who holds the lock is alone.
 */
#include "device.h"

#include "cuda/products/matmul_store.h"
#include "tessera/log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/test_matmul_store.XXXXXX";
static char path[64];

static struct matmul_choice choice_of(int64_t first)
{
    struct matmul_choice choice = {.nanoseconds = first};
    for (int i = 0; i < 8; i++)
        choice.algorithm[i] = (uint64_t)(first + i) * 0x9e3779b97f4a7c15u;
    return choice;
}

static void put(const char *key, int64_t first)
{
    const struct matmul_choice choice = choice_of(first);
    assert_int_equal(tess__matmul_store_put(path, key, &choice), TESS_OK);
}

static void expect(const char *key, int64_t first)
{
    struct matmul_choice got;
    memset(&got, 0, sizeof(got));
    if (!tess__matmul_store_find(path, key, &got))
        fail_msg("%s is not found", key);
    const struct matmul_choice want = choice_of(first);
    assert_memory_equal(&got, &want, sizeof(want));
}

static void expect_none(const char *key)
{
    struct matmul_choice got;
    if (tess__matmul_store_find(path, key, &got))
        fail_msg("%s is found", key);
}

static void write_text(const char *text, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static size_t read_text(char *text, size_t room)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t bytes = fread(text, 1, room, file);
    assert_int_equal(fclose(file), 0);
    return bytes;
}

static void case_put_and_find(void **state)
{
    (void)state;
    unlink(path);
    expect_none("a");
    put("device|1|8 x 8 x 8", 10);
    put("device|1|8 x 8 x 16", 30);
    put("device|2|8 x 8 x 8", INT32_MAX);
    expect("device|1|8 x 8 x 8", 10);
    expect("device|1|8 x 8 x 16", 30);
    expect("device|2|8 x 8 x 8", INT32_MAX);
    expect_none("device|1|8 x 8"); /* the beginning of a key is another key */
    expect_none("device|1|8 x 8 x 160");
    put("device|1|8 x 8 x 8", 0);
    expect("device|1|8 x 8 x 8", 0);
    expect("device|1|8 x 8 x 16", 30);
    char text[4096];
    text[read_text(text, sizeof(text) - 1)] = '\0';
    assert_non_null(strstr(text, "end 3\n"));
}

static void case_cut(void **state)
{
    (void)state;
    unlink(path);
    put("first", 1);
    put("second", 2);
    char text[4096];
    const size_t bytes = read_text(text, sizeof(text));
    for (size_t cut = 0; cut < bytes; cut++) {
        write_text(text, cut);
        expect_none("first");
        expect_none("second");
    }
    /* What follows is not of the file either. */
    text[bytes] = 'x';
    write_text(text, bytes + 1);
    expect_none("first");
    /* A new choice begins a new file. */
    put("third", 3);
    expect("third", 3);
    expect_none("first");
}

/* The file `sound` with the first `from` in it replaced. */
static void write_changed(const char *sound, const char *from, const char *to)
{
    char text[4096];
    const char *at = strstr(sound, from);
    assert_non_null(at);
    snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - sound), sound, to, at + strlen(from));
    write_text(text, strlen(text));
}

static void case_hostile(void **state)
{
    (void)state;
    static const char *const changes[][2] = {
        {"matmul 2", "matmul 1"},
        {"a\t", "a "},
        {"a\t", "\t"},
        {"a\t", "b\t"},
        {"a\t", "a\001\t"},
        {"end 1", "end 2"},
        {"\nend", "end"},
        {" ", "  "},
        {"end 1", "end 1\nend 1"},
        {"e", "E"},
        {" ", "\t"},
        {"end", "0000000000000000"},
    };
    static const char *const texts[] = {
        "tessera-matmul 1\na\t1 2 3 4 5 6 7 8 9 10\nend 1\n",
        "tessera-matmul 2\na\t\nend 1\n",
        "tessera-matmul 2\nend 0\nend 0\n",
        "",
    };
    char sound[4096];
    unlink(path);
    put("a", 10);
    const size_t bytes = read_text(sound, sizeof(sound) - 1);
    sound[bytes] = '\0';
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        write_text(texts[i], strlen(texts[i]));
        expect_none("a");
    }
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        write_changed(sound, changes[i][0], changes[i][1]);
        expect_none("a");
    }
    write_text(sound, bytes);
    expect("a", 10);
    write_text(sound, bytes + 1); /* with the NUL */
    expect_none("a");

    /* Any byte changed: found as it was, or not at all. */
    struct draw draw = {4};
    const struct matmul_choice choice = choice_of(10);
    for (int i = 0; i < 2000; i++) {
        char text[sizeof(sound)];
        memcpy(text, sound, bytes);
        text[draw_between(&draw, 0, (int64_t)bytes - 1)] = (char)draw_word(&draw);
        write_text(text, bytes);
        struct matmul_choice got = {.nanoseconds = 0};
        if (tess__matmul_store_find(path, "a", &got))
            assert_memory_equal(&got, &choice, sizeof(choice));
    }
}

static void case_long(void **state)
{
    (void)state;
    char *text = malloc(MATMUL_FILE_MAX + 2);
    assert_non_null(text);
    memset(text, 'a', MATMUL_FILE_MAX + 1);
    write_text(text, MATMUL_FILE_MAX + 1);
    expect_none("a");
    free(text);
    char key[MATMUL_KEY_MAX + 1];
    memset(key, 'k', sizeof(key));
    key[MATMUL_KEY_MAX] = '\0';
    const struct matmul_choice choice = choice_of(1);
    assert_int_not_equal(tess__matmul_store_put(path, key, &choice), TESS_OK);
    key[MATMUL_KEY_MAX - 1] = '\0';
    put(key, INT32_MAX); /* the longest line */
    expect(key, INT32_MAX);
    assert_int_not_equal(tess__matmul_store_put(path, "end 1", &choice), TESS_OK);
    assert_int_not_equal(tess__matmul_store_put(path, "a\tb", &choice), TESS_OK);
    assert_int_not_equal(tess__matmul_store_put(path, "", &choice), TESS_OK);
}

static void case_no_file(void **state)
{
    (void)state;
    unlink(path);
    assert_int_equal(mkdir(path, 0777), 0);
    expect_none("a"); /* a folder of that name */
    const struct matmul_choice choice = choice_of(1);
    assert_int_not_equal(tess__matmul_store_put(path, "a", &choice), TESS_OK);
    assert_int_equal(rmdir(path), 0);
}

static void case_clean_key(void **state)
{
    (void)state;
    char key[] = "a\tb\nc \x80~";
    tess__matmul_key_clean(key);
    assert_string_equal(key, "a_b_c _~");
}

/* Each adds its own line; without the lock some would be lost. */
static void *add_lines(void *argument)
{
    for (int i = 0; i < 10; i++) {
        char key[32];
        snprintf(key, sizeof(key), "thread %d line %d", *(const int *)argument, i);
        const struct matmul_choice choice = choice_of(i);
        const int lock = tess__matmul_store_lock(path);
        if (lock < 0 || tess__matmul_store_put(path, key, &choice) != TESS_OK)
            return "failed";
        tess__matmul_store_unlock(lock);
    }
    return NULL;
}

static void case_lock(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    unlink(path);
    pthread_t thread[THREADS];
    int number[THREADS];
    for (int t = 0; t < THREADS; t++) {
        number[t] = t;
        assert_int_equal(pthread_create(&thread[t], NULL, add_lines, &number[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        void *failed = NULL;
        assert_int_equal(pthread_join(thread[t], &failed), 0);
        assert_null(failed);
    }
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < 10; i++) {
            char key[32];
            snprintf(key, sizeof(key), "thread %d line %d", t, i);
            expect(key, i);
        }
}

static void remove_all(void)
{
    char lock[80];
    snprintf(lock, sizeof(lock), "%s.lock", path);
    unlink(lock);
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_put_and_find), cmocka_unit_test(case_cut),
        cmocka_unit_test(case_hostile),      cmocka_unit_test(case_long),
        cmocka_unit_test(case_no_file),      cmocka_unit_test(case_clean_key),
        cmocka_unit_test(case_lock),
    };
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(path, sizeof(path), "%s/choices", folder);
    tess_log_set_level(TESS_LOG_ERROR); /* a warning for each damaged file is right, and long */
    const int failed = cmocka_run_group_tests(cases, NULL, NULL);
    remove_all();
    return failed;
}
