/*
 * Text and token files: what is read from them against arrays kept beside them, by indexing them
 * plainly. Bad files are test_tokens_bad.c's, the text of the machine test_text.c's.
 */
#include "data/data.h"
#include "data/token_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const struct tess_loader_options plain = {.shuffle = true};

/* Sample `i` of a split whose stream is `token`, in any of its three forms. */
static void assert_sample(const struct tess_dataset *set, const struct tess_split *split,
                          const uint32_t *token, int64_t i, int64_t form)
{
    const int64_t length = set->row.dim[0], at = split->first + i * length;
    int32_t *input = malloc((size_t)length * 4), *label = malloc((size_t)length * 4);
    const int64_t sample = form < 0 ? -1 : i | form;
    memset(input, 0x5a, (size_t)length * 4);
    memset(label, 0x5a, (size_t)length * 4);
    assert_int_equal(
        tess_load_rows(set, split, &plain, 1, 0, true, &sample, 1, TESS_I32, input, label), 1);
    for (int64_t t = 0; t < length; t++) {
        assert_int_equal(input[t], form < 0 ? 0 : (int32_t)token[at + t]);
        assert_int_equal(label[t], form != 0 ? -1 : (int32_t)token[at + t + 1]);
    }
    free(input);
    free(label);
}

/* Every sample of both splits, which are one after the other in one stream. */
static void assert_set(const struct tess_dataset *set, const uint32_t *token, int64_t count,
                       int64_t length)
{
    assert_true(set->tokens);
    assert_int_equal(set->row.rank, 1);
    assert_int_equal(set->row.dim[0], length);
    assert_int_equal(set->labels, length);
    assert_int_equal(set->train.first, 0);
    assert_int_equal(set->test.first, set->train.count * length);
    assert_int_equal(set->train.count + set->test.count, (count - 1) / length);
    assert_true(set->train.count >= 1 && set->test.count >= 1);
    for (int64_t i = 0; i < set->train.count; i++)
        assert_sample(set, &set->train, token, i, 0);
    for (int64_t i = 0; i < set->test.count; i++)
        assert_sample(set, &set->test, token, i, 0);
    assert_sample(set, &set->test, token, set->test.count - 1, TESS_SAMPLE_IGNORED);
    assert_sample(set, &set->train, token, 0, -1);
}

static void check_source(const char *source, const uint32_t *token, int64_t count, int64_t length)
{
    struct tess_dataset *set = NULL;
    assert_int_equal(tess_dataset_open_tokens(source, "", 0.1, length, &set), TESS_OK);
    assert_set(set, token, count, length);
    tess_dataset_close(set);
}

static void case_one_file(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    static const char *const name[] = {"a.txt", "a.bin", "b.bin"};
    struct token_folder folder;
    uint32_t token[COUNT];
    token_folder_open(&folder);
    const int files = token_open_files();
    for (enum token_layout layout = TOKEN_TEXT; layout <= TOKEN_LLAMA3; layout++) {
        static const int64_t length[] = {1, 2, 16, 31, 333, 499};
        struct tess_dataset *set = NULL;
        token_draw(layout, 0, COUNT, token);
        token_write(&folder, name[layout], layout, token, COUNT);
        for (size_t i = 0; i < sizeof(length) / sizeof(*length); i++)
            check_source(token_path(&folder, name[layout]), token, COUNT, length[i]);
        assert_int_equal(
            tess_dataset_open_tokens(token_path(&folder, name[layout]), NULL, 0.5, 16, &set),
            TESS_OK);
        assert_int_equal(set->class_count, token_vocabulary(layout));
        assert_int_equal(set->mapped_bytes, layout == TOKEN_TEXT   ? COUNT
                                            : layout == TOKEN_GPT2 ? 1024 + 2 * COUNT
                                                                   : 1024 + 4 * COUNT);
        assert_int_equal(token_mappings(&folder), 1);
        assert_int_equal(token_open_files(), files); /* the mapping needs no descriptor */
        tess_dataset_close(set);
        assert_int_equal(token_mappings(&folder), 0);
    }
    token_folder_close(&folder);
}

/* Pieces of one token and more: samples begin and end in any of them, and span several. */
static void case_across_files(void **state)
{
    (void)state;
    static const size_t size[] = {5, 1, 1, 1, 64, 2, 3, 300, 1, 7, 90};
    enum { FILES = sizeof(size) / sizeof(*size), ROOM = 512 };
    for (enum token_layout layout = TOKEN_TEXT; layout <= TOKEN_LLAMA3; layout++) {
        struct token_folder folder;
        uint32_t token[ROOM];
        char source[FILES * 64] = "", name[16];
        size_t count = 0;
        token_folder_open(&folder);
        for (size_t f = 0; f < FILES; f++) {
            snprintf(name, sizeof(name), "%02zu%s", f, layout == TOKEN_TEXT ? "" : ".bin");
            token_draw(layout, f, size[f], token + count);
            token_write(&folder, name, layout, token + count, size[f]);
            count += size[f];
            snprintf(source + strlen(source), sizeof(source) - strlen(source), "%s%s",
                     f > 0 ? "," : "", token_path(&folder, name));
        }
        for (int64_t length = 1; length <= ((int64_t)count - 1) / 2; length++) {
            check_source(source, token, (int64_t)count, length);
            check_source(token_path(&folder, "*"), token, (int64_t)count, length);
        }
        token_folder_close(&folder);
    }
}

/* Which files, in which order. Each holds 10 times the one letter it stands for. */
static void case_names(void **state)
{
    (void)state;
    static const char *const file[] = {"a2", "a10", "B", "c", "c,a2", "[ab]2", "dir/e"};
    static const char letter[] = "abcdefg";
    static const struct {
        const char *source, *order;
    } want[] = {
        {"a2", "a"},          {"a2,B,a10", "acb"},
        {"a*", "ba"},         /* "a10" before "a2": bytes, not numbers */
        {"?", "cd"},          /* "B" before "c": bytes, not a dictionary */
        {"[a]*,c,B", "badc"}, /* a pattern within a list */
        {"c,a2", "e"},        /* a file of that name */
        {"[ab]2", "f"},       /* likewise */
        {"[a]2", "a"},        {"dir/*", "g"},
        {"a2,a2", "aa"},
    };
    struct token_folder folder;
    char here[512], text[16];
    token_folder_open(&folder);
    assert_non_null(getcwd(here, sizeof(here)));
    assert_int_equal(chdir(folder.path), 0);
    assert_int_equal(mkdir("dir", 0700), 0);
    for (size_t f = 0; f < sizeof(file) / sizeof(*file); f++) {
        memset(text, letter[f], 10);
        token_write_bytes(&folder, file[f], text, 10);
    }
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        uint32_t token[64];
        const size_t files = strlen(want[i].order);
        for (size_t t = 0; t < 10 * files; t++)
            token[t] = (uint8_t)want[i].order[t / 10];
        check_source(want[i].source, token, 10 * (int64_t)files, 3);
    }
    assert_int_equal(chdir(here), 0);
    token_folder_close(&folder);
}

/* How many samples there are and which of them are for validation. */
static void case_splits(void **state)
{
    (void)state;
    static const struct {
        int64_t count, length;
        double validation;
        int64_t train, test;
    } want[] = {
        {3, 1, 0.1, 1, 1},       {1001, 10, 0.1, 90, 10},  {1000, 10, 0.1, 90, 9},
        {1010, 10, 0.1, 90, 10}, {1001, 10, 0, 99, 1},     {1001, 10, 0.999, 1, 99},
        {1001, 10, 0.5, 50, 50}, {1001, 10, 0.005, 99, 1}, {1001, 500, 0.02, 1, 1},
    };
    struct token_folder folder;
    uint32_t token[1010];
    token_folder_open(&folder);
    token_draw(TOKEN_TEXT, 0, 1010, token);
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        struct tess_dataset *set = NULL;
        token_write(&folder, "text", TOKEN_TEXT, token, (size_t)want[i].count);
        assert_int_equal(tess_dataset_open_tokens(token_path(&folder, "text"), NULL,
                                                  want[i].validation, want[i].length, &set),
                         TESS_OK);
        assert_int_equal(set->train.count, want[i].train);
        assert_int_equal(set->test.count, want[i].test);
        assert_set(set, token, want[i].count, want[i].length);
        tess_dataset_close(set);
    }
    token_folder_close(&folder);
}

static void case_validation_files(void **state)
{
    (void)state;
    struct token_folder folder;
    struct tess_dataset *set = NULL;
    uint32_t train[100], test[60];
    token_folder_open(&folder);
    token_draw(TOKEN_GPT2, 0, 100, train);
    token_draw(TOKEN_GPT2, 1, 60, test);
    token_write(&folder, "train.bin", TOKEN_GPT2, train, 100);
    token_write(&folder, "val_0.bin", TOKEN_GPT2, test, 20);
    token_write(&folder, "val_1.bin", TOKEN_GPT2, test + 20, 40);
    /* The share is not asked for: any value is as good. */
    assert_int_equal(tess_dataset_open_tokens(token_path(&folder, "train.bin"),
                                              token_path(&folder, "val_*.bin"), 2, 33, &set),
                     TESS_OK);
    assert_int_equal(set->train.count, 3);
    assert_int_equal(set->test.count, 1);
    assert_int_equal(set->train.first, 0);
    assert_int_equal(set->test.first, 0);
    assert_int_equal(set->mapped_bytes, 3 * 1024 + 2 * 160);
    for (int64_t i = 0; i < 3; i++)
        assert_sample(set, &set->train, train, i, 0);
    assert_sample(set, &set->test, test, 0, 0);
    tess_dataset_close(set);
    assert_int_equal(token_mappings(&folder), 0);
    token_folder_close(&folder);
}

/*
 * A global batch of 24 shuffled rows on 1 to 8 ranks and in 1 to 3 micro-batches: which rank and
 * which call loads a row changes nothing about it, and an epoch has every sample once.
 */
static void case_layouts(void **state)
{
    (void)state;
    enum { COUNT = 2000, LENGTH = 8, BATCH = 24 };
    struct token_folder folder;
    struct tess_dataset *set = NULL;
    uint32_t token[COUNT];
    static int32_t whole[BATCH * LENGTH], whole_label[BATCH * LENGTH];
    static int32_t part[BATCH * LENGTH], part_label[BATCH * LENGTH];
    uint8_t seen[COUNT / LENGTH] = {0};
    token_folder_open(&folder);
    token_draw(TOKEN_GPT2, 0, COUNT, token);
    token_write(&folder, "one.bin", TOKEN_GPT2, token, 700);
    token_write(&folder, "two.bin", TOKEN_GPT2, token + 700, COUNT - 700);
    assert_int_equal(
        tess_dataset_open_tokens(token_path(&folder, "*.bin"), NULL, 0.05, LENGTH, &set), TESS_OK);
    for (int64_t first = 0; first < set->train.count; first += BATCH) {
        int64_t sample[BATCH];
        for (int64_t i = 0; i < BATCH; i++) {
            sample[i] = tess_sample_at(5, 2, set->train.count, first + i, true);
            if (sample[i] >= 0)
                seen[sample[i]]++;
        }
        assert_int_equal(tess_load_rows(set, &set->train, &plain, 5, 2, true, sample, BATCH,
                                        TESS_I32, whole, whole_label),
                         BATCH);
        for (int64_t i = 0; i < BATCH && sample[i] >= 0; i++)
            for (int64_t t = 0; t < LENGTH; t++)
                assert_int_equal(whole[i * LENGTH + t], token[sample[i] * LENGTH + t]);
        for (int64_t parts = 1; parts <= BATCH; parts++) {
            const int64_t rows = BATCH / parts;
            if (BATCH % parts != 0)
                continue;
            for (int64_t p = parts - 1; p >= 0; p--)
                assert_int_equal(tess_load_rows(set, &set->train, &plain, 5, 2, true,
                                                sample + p * rows, rows, TESS_I32,
                                                part + p * rows * LENGTH,
                                                part_label + p * rows * LENGTH),
                                 rows);
            assert_memory_equal(part, whole, sizeof(whole));
            assert_memory_equal(part_label, whole_label, sizeof(whole_label));
        }
    }
    for (int64_t i = 0; i < set->train.count; i++)
        assert_int_equal(seen[i], 1);
    tess_dataset_close(set);
    token_folder_close(&folder);
}

/* Ranks are forked after the set was opened, and files may be replaced meanwhile. */
static void case_forked(void **state)
{
    (void)state;
    struct token_folder folder;
    struct tess_dataset *set = NULL;
    uint32_t token[500];
    int status = -1;
    token_folder_open(&folder);
    token_draw(TOKEN_LLAMA3, 0, 500, token);
    token_write(&folder, "x.bin", TOKEN_LLAMA3, token, 500);
    assert_int_equal(tess_dataset_open_tokens(token_path(&folder, "x.bin"), NULL, 0.1, 9, &set),
                     TESS_OK);
    token_write_bytes(&folder, "y", "other", 5);
    assert_int_equal(rename(token_path(&folder, "y"), token_path(&folder, "x.bin")), 0);
    const pid_t child = fork();
    if (child == 0) {
        int64_t sample = 3;
        int32_t input[9], label[9];
        bool right = tess_load_rows(set, &set->train, &plain, 1, 0, true, &sample, 1, TESS_I32,
                                    input, label) == 1;
        for (int t = 0; t < 9; t++)
            right =
                right && input[t] == (int32_t)token[27 + t] && label[t] == (int32_t)token[28 + t];
        _exit(right ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_set(set, token, 500, 9);
    tess_dataset_close(set);
    token_folder_close(&folder);
}

/* Made-up text: the same for the same seed; each token has at most four followers in both splits.
 */
static void case_made_up(void **state)
{
    (void)state;
    enum { LENGTH = 64, TRAIN = 400, TEST = 100 };
    static int32_t input[(TRAIN + TEST) * LENGTH], label[(TRAIN + TEST) * LENGTH];
    static int32_t other[TRAIN * LENGTH], other_label[TRAIN * LENGTH];
    static bool follows[256][256];
    int64_t sample[TRAIN], used = 0;
    struct tess_dataset *set = NULL, *again = NULL;
    for (int64_t i = 0; i < TRAIN; i++)
        sample[i] = i;
    assert_int_equal(tess_dataset_open_synthetic_tokens(LENGTH, TRAIN, TEST, 7, &set), TESS_OK);
    assert_int_equal(set->class_count, 256);
    assert_int_equal(set->train.count, TRAIN);
    assert_int_equal(set->test.count, TEST);
    assert_int_equal(
        tess_load_rows(set, &set->train, &plain, 1, 0, true, sample, TRAIN, TESS_I32, input, label),
        TRAIN);
    assert_int_equal(tess_load_rows(set, &set->test, &plain, 1, 0, true, sample, TEST, TESS_I32,
                                    input + TRAIN * LENGTH, label + TRAIN * LENGTH),
                     TEST);
    for (int i = 0; i < (TRAIN + TEST) * LENGTH; i++) {
        assert_in_range(input[i], 0, 255);
        follows[input[i]][label[i]] = true;
    }
    for (int t = 0; t < 256; t++) {
        int followers = 0;
        for (int f = 0; f < 256; f++)
            followers += follows[t][f];
        assert_true(followers <= 4);
        used += followers > 0;
    }
    /* Of a random mapping with four arrows from each of 256, nearly all are met. */
    assert_true(used > 200);
    for (uint64_t seed = 7; seed <= 8; seed++) {
        assert_int_equal(tess_dataset_open_synthetic_tokens(LENGTH, TRAIN, TEST, seed, &again),
                         TESS_OK);
        assert_int_equal(tess_load_rows(again, &again->train, &plain, 1, 0, true, sample, TRAIN,
                                        TESS_I32, other, other_label),
                         TRAIN);
        assert_int_equal(memcmp(other, input, sizeof(other)) == 0, seed == 7);
        tess_dataset_close(again);
    }
    tess_dataset_close(set);
    set = NULL;
    const enum tess_status usage = TESS_ERR_USAGE;
    assert_int_equal(tess_dataset_open_synthetic_tokens(8, INT64_MAX, INT64_MAX, 1, &set), usage);
    assert_null(set);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_one_file),
        cmocka_unit_test(case_across_files),
        cmocka_unit_test(case_names),
        cmocka_unit_test(case_splits),
        cmocka_unit_test(case_validation_files),
        cmocka_unit_test(case_layouts),
        cmocka_unit_test(case_forked),
        cmocka_unit_test(case_made_up),
    };
    return cmocka_run_group_tests_name("tokens", cases, NULL, NULL);
}
