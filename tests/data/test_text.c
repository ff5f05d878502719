/*
 * The text that every Debian machine has: against what the shell's own tools make of the same
 * description, and in a made-up machine with things that cannot be read.
 */
#include "data/data_tokens.h"
#include "data/token_files.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void case_this_machine(void **state)
{
    (void)state;
    enum { BYTES = 12000000 };
    struct tess_dataset *set = NULL;
    uint8_t *text = malloc(BYTES + 1);
    if (access("/usr/share/common-licenses/GPL-3", R_OK) != 0) {
        free(text);
        print_message("skipped: no Debian machine, /usr/share/common-licenses is not there\n");
        skip();
    }
    FILE *shell = popen("export LC_ALL=C; { cat /usr/share/common-licenses/*; "
                        "find /usr/share/perl /usr/share/doc -type f \\( -name '*.pod' -o "
                        "-name '*.pm' -o -name '*.txt' -o -name copyright \\) -print0 | sort -z | "
                        "xargs -0 cat; } 2>/dev/null | head -c 12000000",
                        "r");
    assert_non_null(shell);
    const size_t count = fread(text, 1, BYTES + 1, shell);
    pclose(shell);
    assert_int_equal(tess_dataset_open_tokens("text", NULL, 0.02, 256, &set), TESS_OK);
    const struct tess_token_stream *stream = set->train.stream;
    assert_int_equal(stream->count, count);
    assert_int_equal(stream->piece_count, 1);
    assert_memory_equal(stream->piece[0].token, text, count);
    assert_int_equal(set->class_count, 256);
    /* Whole pages, none of them empty. */
    assert_true(set->mapped_bytes >= count && set->mapped_bytes < count + 65536);
    print_message("%zu bytes of text\n", count);
    tess_dataset_close(set);
    free(text);
}

/* The sizes alone are those of the set that was read. */
static void case_sizes(void **state)
{
    (void)state;
    struct tess_dataset *set = NULL, *sizes = NULL;
    if (access("/usr/share/common-licenses/GPL-3", R_OK) != 0) {
        print_message("skipped: no Debian machine, /usr/share/common-licenses is not there\n");
        skip();
    }
    assert_int_equal(tess_dataset_open_tokens("text", NULL, 0.02, 256, &set), TESS_OK);
    assert_int_equal(tess_dataset_size_text(0.02, 256, &sizes), TESS_OK);
    assert_int_equal(sizes->train.count, set->train.count);
    assert_int_equal(sizes->test.count, set->test.count);
    assert_int_equal(sizes->class_count, set->class_count);
    assert_int_equal(sizes->labels, set->labels);
    assert_int_equal(sizes->mapped_bytes, 0);
    tess_dataset_close(sizes);
    tess_dataset_close(set);
}

static void put(const struct token_folder *folder, const char *name, char letter, size_t count)
{
    char *text = malloc(count);
    memset(text, letter, count);
    token_write_bytes(folder, name, text, count);
    free(text);
}

/* /usr/share with licences, documents and perl, and with what is no text or cannot be read. */
static void make_machine(struct token_folder *folder)
{
    static const char *const tree[] = {
        "usr",
        "usr/share",
        "usr/share/common-licenses",
        "usr/share/doc",
        "usr/share/doc/a",
        "usr/share/doc/a.b",
        "usr/share/perl",
        "usr/share/doc/copyright",
        "usr/share/common-licenses/older",
    };
    token_folder_open(folder);
    for (size_t i = 0; i < sizeof(tree) / sizeof(*tree); i++)
        assert_int_equal(mkdir(token_path(folder, tree[i]), 0700), 0);
    put(folder, "usr/share/common-licenses/Z", 'z', 30000);
    put(folder, "usr/share/common-licenses/M", 'm', 10000);
    assert_int_equal(symlink("M", token_path(folder, "usr/share/common-licenses/L")), 0);
    assert_int_equal(symlink("lost", token_path(folder, "usr/share/common-licenses/Y")), 0);
    put(folder, "usr/share/common-licenses/older/A", '!', 100);
    put(folder, "usr/share/doc/a/copyright", 'c', 5000);
    put(folder, "usr/share/doc/a/changelog", '!', 100);
    put(folder, "usr/share/doc/a.b/x.txt", 'x', 6000);
    put(folder, "usr/share/doc/a.b/x.txt.gz", '!', 100);
    put(folder, "usr/share/perl/p.pm", 'p', 7000);
    put(folder, "usr/share/perl/p.pod", 'q', 8000);
    assert_int_equal(symlink("..", token_path(folder, "usr/share/doc/a/up.txt")), 0);
    assert_int_equal(symlink("x.txt", token_path(folder, "usr/share/doc/a.b/y.txt")), 0);
    assert_int_equal(mkfifo(token_path(folder, "usr/share/doc/a/fifo.txt"), 0600), 0);
}

static void case_made_up_machine(void **state)
{
    (void)state;
    /* Whole paths in order of their bytes: "a.b/" before "a/". */
    static const struct {
        char letter;
        size_t count;
    } want[] = {{'m', 10000}, {'m', 10000}, {'z', 30000}, {'x', 6000},
                {'c', 5000},  {'p', 7000},  {'q', 8000}};
    enum { ALL = 76000 };
    static uint8_t text[ALL];
    struct token_folder folder;
    size_t at = 0;
    make_machine(&folder);
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        memset(text + at, want[i].letter, want[i].count);
        at += want[i].count;
    }
    assert_int_equal(at, ALL);
    const int files = token_open_files();
    for (size_t limit = 70000; limit <= 80000; limit += 1000) {
        struct tess_token_stream *stream = calloc(1, sizeof(*stream));
        const size_t expected = limit < ALL ? limit : ALL;
        assert_int_equal(tess__text_gather(folder.path, limit, stream), TESS_OK);
        assert_int_equal(stream->count, expected);
        assert_memory_equal(stream->piece[0].token, text, expected);
        tess__stream_close(stream);
        stream = calloc(1, sizeof(*stream));
        assert_int_equal(tess__text_size(folder.path, limit, stream), TESS_OK);
        assert_int_equal(stream->count, expected);
        tess__stream_close(stream);
    }
    assert_int_equal(token_open_files(), files);
    token_folder_close(&folder);
}

static void case_too_little(void **state)
{
    (void)state;
    struct tess_token_stream stream = {0};
    struct token_folder folder;
    make_machine(&folder);
    assert_int_equal(truncate(token_path(&folder, "usr/share/common-licenses/Z"), 10), 0);
    assert_int_equal(tess__text_gather(folder.path, 1000000, &stream), TESS_ERR_NOT_FOUND);
    assert_non_null(strstr(tess_log_last_error(), "only 46010 bytes"));
    assert_non_null(strstr(tess_log_last_error(), "--data FILE"));
    assert_int_equal(tess__text_size(folder.path, 1000000, &stream), TESS_ERR_NOT_FOUND);
    assert_non_null(strstr(tess_log_last_error(), "only 46010 bytes"));
    token_folder_close(&folder);
    assert_int_equal(tess__text_gather("/nonexistent", 1000000, &stream), TESS_ERR_NOT_FOUND);
    assert_non_null(strstr(tess_log_last_error(), "only 0 bytes"));
    assert_int_equal(stream.piece_count, 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_this_machine),
        cmocka_unit_test(case_sizes),
        cmocka_unit_test(case_made_up_machine),
        cmocka_unit_test(case_too_little),
    };
    return cmocka_run_group_tests_name("text", cases, NULL, NULL);
}
