/*
 * Text and token files that are not as they should be: every field of a header, every length, and
 * names that lead nowhere, and files of other formats. Messages name the file and what is wrong
 * with it. Then tokens outside the vocabulary, which show when their sample is loaded.
 */
#include "data/data.h"
#include "data/token_files.h"
#include "tessera/log.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { COUNT = 40 };

/* Opening `source` fails, the message has all words, and nothing stays behind. */
static void check_refused(const struct token_folder *folder, const char *source,
                          const char *validation_source, enum tess_status expected,
                          const char *word, const char *other_word)
{
    struct tess_dataset *set = NULL;
    const int files = token_open_files(), mappings = token_mappings(folder);
    const enum tess_status status =
        tess_dataset_open_tokens(source, validation_source, 0.1, 4, &set);
    const char *text = tess_log_last_error();
    if (status != expected || strstr(text, word) == NULL || strstr(text, other_word) == NULL)
        fail_msg("%s: status %d, expected %d; message \"%s\" without \"%s\" or \"%s\"", source,
                 status, expected, text, word, other_word);
    assert_null(set);
    assert_int_equal(token_open_files(), files);
    assert_int_equal(token_mappings(folder), mappings);
}

static uint8_t *make_shard(enum token_layout layout, size_t *bytes_out)
{
    uint32_t token[COUNT];
    token_draw(layout, 0, COUNT, token);
    return token_make(layout, token, COUNT, bytes_out);
}

static void case_headers(void **state)
{
    (void)state;
    static const struct {
        int field;
        int32_t value;
        const char *word;
    } wrong[] = {
        {0, 0, "wrong magic number 0: expected 20240520 (GPT-2) or 20240801 (Llama 3)"},
        {0, 20240326, "wrong magic number 20240326"}, /* llm.c's model files */
        {0, -1, "wrong magic number -1"},
        {1, 0, "wrong version 0"},
        {1, 3, "wrong version 3"},
        {1, -7, "wrong version -7"},
        {2, 0, "wrong count: the header promises 0 tokens"},
        {2, -1, "wrong count: the header promises -1 tokens"},
        {2, INT32_MIN, "wrong count"},
        {2, COUNT - 1, "trailing bytes"},
        {2, COUNT + 1, "truncated"},
        {2, 1, "trailing bytes"},
        {2, INT32_MAX, "truncated"},
        {2, 0x40000000 + COUNT, "truncated"}, /* in 32 bits four times as many are 4 * COUNT */
    };
    struct token_folder folder;
    token_folder_open(&folder);
    for (enum token_layout layout = TOKEN_GPT2; layout <= TOKEN_LLAMA3; layout++) {
        for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
            size_t bytes;
            uint8_t *shard = make_shard(layout, &bytes);
            memcpy(shard + 4 * wrong[i].field, &wrong[i].value, 4);
            token_write_bytes(&folder, "x.bin", shard, bytes);
            check_refused(&folder, token_path(&folder, "x.bin"), NULL, TESS_ERR_DATA, "x.bin",
                          wrong[i].word);
            free(shard);
        }
    }
    token_folder_close(&folder);
}

/* Every length but the right one is refused, also that of a header alone and of nothing. */
static void case_lengths(void **state)
{
    (void)state;
    struct token_folder folder;
    token_folder_open(&folder);
    for (enum token_layout layout = TOKEN_GPT2; layout <= TOKEN_LLAMA3; layout++) {
        size_t bytes;
        uint8_t *shard = make_shard(layout, &bytes);
        shard = realloc(shard, bytes + 8);
        memset(shard + bytes, 0, 8);
        for (size_t now = 0; now <= bytes + 8; now++) {
            if (now == bytes)
                continue;
            token_write_bytes(&folder, "x.bin", shard, now);
            check_refused(&folder, token_path(&folder, "x.bin"), NULL, TESS_ERR_DATA, "x.bin",
                          now == 0      ? "empty"
                          : now < 4     ? "where the header alone has 1024"
                          : now < 1024  ? "where the header alone has 1024"
                          : now < bytes ? "truncated"
                                        : "trailing bytes");
        }
        free(shard);
    }
    token_folder_close(&folder);
}

/* Any byte of the three fields matters; the rest of the header is free. */
static void case_damage(void **state)
{
    (void)state;
    struct token_folder folder;
    token_folder_open(&folder);
    for (size_t at = 0; at < 1024; at += at < 16 ? 1 : 63) {
        for (int bit = 0; bit < 8; bit++) {
            struct tess_dataset *set = NULL;
            size_t bytes;
            uint8_t *shard = make_shard(TOKEN_GPT2, &bytes);
            shard[at] ^= (uint8_t)(1 << bit);
            token_write_bytes(&folder, "x.bin", shard, bytes);
            if (at < 12)
                check_refused(&folder, token_path(&folder, "x.bin"), NULL, TESS_ERR_DATA, "x.bin",
                              "");
            else
                assert_int_equal(
                    tess_dataset_open_tokens(token_path(&folder, "x.bin"), NULL, 0.1, 4, &set),
                    TESS_OK);
            tess_dataset_close(set);
            free(shard);
        }
    }
    token_folder_close(&folder);
}

static void case_names(void **state)
{
    (void)state;
    struct token_folder folder;
    struct tess_dataset *set = NULL;
    char here[512];
    uint32_t token[COUNT];
    const enum tess_status data = TESS_ERR_DATA, missing = TESS_ERR_NOT_FOUND;
    token_folder_open(&folder);
    assert_non_null(getcwd(here, sizeof(here)));
    assert_int_equal(chdir(folder.path), 0);
    token_draw(TOKEN_GPT2, 0, COUNT, token);
    token_write(&folder, "gpt.bin", TOKEN_GPT2, token, COUNT);
    token_write(&folder, "llama.bin", TOKEN_LLAMA3, token, COUNT);
    token_draw(TOKEN_TEXT, 0, COUNT, token);
    token_write(&folder, "a.txt", TOKEN_TEXT, token, COUNT);
    token_write(&folder, "short.txt", TOKEN_TEXT, token, 8);
    token_write(&folder, "tiny.txt", TOKEN_TEXT, token, 4);
    token_write(&folder, "words.bin", TOKEN_TEXT, token, COUNT);
    token_write_bytes(&folder, "empty.txt", "", 0);
    assert_int_equal(mkdir("folder", 0700), 0);
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(symlink("nowhere", "link"), 0);

    check_refused(&folder, "no.txt", NULL, missing, "no.txt", "No such file");
    check_refused(&folder, "a.txt/b", NULL, missing, "a.txt/b", "cannot open");
    check_refused(&folder, "link", NULL, missing, "link", "No such file");
    check_refused(&folder, "a.txt,no.txt", NULL, missing, "no.txt", "No such file");
    check_refused(&folder, "no*.txt", NULL, missing, "no*.txt", "no file matches");
    check_refused(&folder, "a.txt,no[0-9]", NULL, missing, "no[0-9]", "no file matches");
    check_refused(&folder, "", NULL, TESS_ERR_USAGE, "empty name", "commas");
    check_refused(&folder, "a.txt,,a.txt", NULL, TESS_ERR_USAGE, "empty name", "a.txt,,a.txt");
    check_refused(&folder, "a.txt,", NULL, TESS_ERR_USAGE, "empty name", "a.txt,");
    check_refused(&folder, "empty.txt", NULL, data, "empty.txt", "is empty");
    check_refused(&folder, "a.txt,empty.txt", NULL, data, "empty.txt", "is empty");
    check_refused(&folder, "folder", NULL, data, "folder", "not a regular file");
    check_refused(&folder, "fifo", NULL, data, "fifo", "not a regular file");
    check_refused(&folder, "/dev/zero", NULL, data, "/dev/zero", "not a regular file");
    check_refused(&folder, "words.bin", NULL, data, "words.bin", "must not end in .bin");
    check_refused(&folder, "gpt.bin,a.txt", NULL, data, "gpt.bin", "a.txt");
    check_refused(&folder, "a.txt,llama.bin", NULL, data, "a.txt", "llama.bin");
    check_refused(&folder, "gpt.bin,llama.bin", NULL, data, "GPT-2", "Llama 3");
    check_refused(&folder, "a.txt", "gpt.bin", data, "gpt.bin for validation", "text");
    check_refused(&folder, "a.txt", "no.txt", missing, "no.txt", "No such file");
    check_refused(&folder, "short.txt", NULL, data, "short.txt: 8 tokens", "at least 9");
    check_refused(&folder, "tiny.txt", "a.txt", data, "tiny.txt: 4 tokens", "at least 5");
    check_refused(&folder, "a.txt", "tiny.txt", data, "tiny.txt: 4 tokens", "at least 5");
    check_refused(&folder, "tiny.txt,tiny.txt", NULL, data, "and the files after it: 8 tokens",
                  "--data.length");

    assert_int_equal(tess_dataset_open_tokens("a.txt", NULL, 0.1, INT64_MAX, &set), data);
    assert_null(set);
    assert_int_equal(chdir(here), 0);
    token_folder_close(&folder);
}

/* ---- other formats --------------------------------------------------------------------------- */

/* By their first bytes, behind which 300 bytes of plausible text follow; whatever the name. */
static void case_formats(void **state)
{
    (void)state;
    static const struct {
        const char *magic;
        size_t bytes;
        const char *name, *way;
    } format[] = {
        {"PAR1", 4, "a Parquet file", "read_parquet"},
        {"ARROW1", 6, "an Arrow file", "to_json"},
        {"PK\003\004", 4, "a zip archive", "unzip"},
        {"\223NUMPY", 6, "a NumPy array (.npy)", "np.load"},
        {"\037\213", 2, "compressed with gzip", "gunzip"},
        {"\050\265\057\375", 4, "compressed with zstd", "zstd -d"},
        {"\377\376a", 3, "UTF-16", "iconv"},
        {"\177ELF", 4, "a program", "write its text"},
    };
    struct token_folder folder;
    struct tess_dataset *set = NULL;
    char text[400];
    token_folder_open(&folder);
    for (size_t i = 0; i < sizeof(format) / sizeof(*format); i++) {
        static const char *const name[] = {"x", "x.txt", "x.bin"};
        memset(text, 'a', sizeof(text));
        memcpy(text, format[i].magic, format[i].bytes);
        for (size_t n = 0; n < sizeof(name) / sizeof(*name); n++) {
            token_write_bytes(&folder, name[n], text, sizeof(text));
            check_refused(&folder, token_path(&folder, name[n]), NULL, TESS_ERR_DATA,
                          format[i].name, format[i].way);
        }
    }
    memset(text, 'a', sizeof(text)); /* such bytes in the middle of a text are text */
    memcpy(text + 50, "PAR1", 4);
    token_write_bytes(&folder, "x.txt", text, sizeof(text));
    assert_int_equal(tess_dataset_open_tokens(token_path(&folder, "x.txt"), NULL, 0.1, 4, &set),
                     TESS_OK);
    tess_dataset_close(set);
    token_folder_close(&folder);
}

/* A NUL byte: any in the first 64 KiB, and zeros of some length wherever they are. */
static void case_nul(void **state)
{
    enum { BYTES = 1 << 20 };
    (void)state;
    static const struct {
        size_t at, count;
    } zeros[] = {{0, 1}, {1, 1}, {65535, 1}, {300000, BYTES / 8}, {BYTES - 1, 1}};
    struct token_folder folder;
    char *text = malloc(BYTES), expected[64];
    assert_non_null(text);
    token_folder_open(&folder);
    for (size_t i = 0; i < sizeof(zeros) / sizeof(*zeros); i++) {
        memset(text, 'a', BYTES);
        memset(text + zeros[i].at, 0, zeros[i].count);
        token_write_bytes(&folder, "tokens", text, BYTES);
        snprintf(expected, sizeof(expected), zeros[i].count > 1 ? "is NUL" : "byte %zu ",
                 zeros[i].at);
        check_refused(&folder, token_path(&folder, "tokens"), NULL, TESS_ERR_DATA, expected,
                      "np.fromfile");
    }
    free(text);
    token_folder_close(&folder);
}

/* ---- tokens outside the vocabulary ----------------------------------------------------------- */

/* Two files of 30 and 23 tokens, samples of 10: 0, 1, 2 begin in the first, 3 and 4 in the second;
 * token `bad` of all is `value`. Tokens 51 and 52 are in no sample. */
static void check_value(enum token_layout layout, int64_t bad, uint32_t value)
{
    enum { LENGTH = 10, FIRST = 30, ALL = 53, SAMPLES = 5 };
    const struct tess_loader_options plain = {0};
    struct token_folder folder;
    struct tess_dataset *set = NULL;
    uint32_t token[ALL];
    char expected[64];
    token_folder_open(&folder);
    token_draw(layout, 3, ALL, token);
    token[bad] = value;
    token_write(&folder, "one.bin", layout, token, FIRST);
    token_write(&folder, "two.bin", layout, token + FIRST, ALL - FIRST);
    assert_int_equal(
        tess_dataset_open_tokens(token_path(&folder, "*.bin"), NULL, 0.2, LENGTH, &set), TESS_OK);
    snprintf(expected, sizeof(expected), "%s.bin: token out of range: token %d ",
             bad < FIRST ? "one" : "two", (int)(bad < FIRST ? bad : bad - FIRST));
    for (int64_t i = 0; i < SAMPLES; i++) {
        const struct tess_split *split = i < set->train.count ? &set->train : &set->test;
        const int64_t here = i < set->train.count ? i : i - set->train.count;
        const bool has = bad >= i * LENGTH && bad <= (i + 1) * LENGTH;
        for (int ignored = 0; ignored < 2; ignored++) {
            const int64_t sample[3] = {-1, here | (ignored ? TESS_SAMPLE_IGNORED : 0), -1};
            int32_t input[3 * LENGTH], label[3 * LENGTH];
            assert_int_equal(
                tess_load_rows(set, split, &plain, 1, 0, true, sample, 3, TESS_I32, input, label),
                has ? 1 : 3);
            if (!has)
                continue;
            char number[32];
            assert_int_equal(tess_load_report(set, split, sample[1]), TESS_ERR_DATA);
            assert_non_null(strstr(tess_log_last_error(), expected));
            snprintf(number, sizeof(number), " is %u,", value);
            assert_non_null(strstr(tess_log_last_error(), number));
        }
    }
    tess_dataset_close(set);
    token_folder_close(&folder);
}

static void case_values(void **state)
{
    (void)state;
    for (int64_t bad = 0; bad < 53; bad++) {
        check_value(TOKEN_GPT2, bad, 50257);
        check_value(TOKEN_LLAMA3, bad, 128256);
    }
    check_value(TOKEN_GPT2, 17, 65535);
    check_value(TOKEN_LLAMA3, 17, 0x7fffffff);
    check_value(TOKEN_LLAMA3, 30, 0x80000000);
    check_value(TOKEN_LLAMA3, 50, 0xffffffff);
}

/* A sample of a file that was cut short after it was opened is an error, not a SIGBUS. */
static void case_cut_in_use(void **state)
{
    enum { LENGTH = 64, ALL = 1 << 16 };
    static uint32_t token[ALL];
    static const enum token_layout layouts[] = {TOKEN_TEXT, TOKEN_GPT2, TOKEN_LLAMA3};
    const struct tess_loader_options plain = {0};
    struct token_folder folder;

    (void)state;
    token_folder_open(&folder);
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        const char *name = layouts[i] == TOKEN_TEXT ? "cut.txt" : "cut.bin";
        struct tess_dataset *set = NULL;
        int32_t input[2 * LENGTH], label[2 * LENGTH];
        token_draw(layouts[i], 4, ALL, token);
        token_write(&folder, name, layouts[i], token, ALL);
        assert_int_equal(
            tess_dataset_open_tokens(token_path(&folder, name), NULL, 0.1, LENGTH, &set), TESS_OK);
        const int64_t sample[2] = {0, set->train.count - 1};
        assert_int_equal(truncate(token_path(&folder, name), 1 << 13), 0);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(tess_load_rows(set, &set->train, &plain, 1, 0, true, sample, 2,
                                            TESS_I32, input, label),
                             1);
            assert_int_equal(tess_load_report(set, &set->train, sample[1]), TESS_ERR_IO);
            assert_non_null(strstr(tess_log_last_error(), name));
            assert_non_null(strstr(tess_log_last_error(), "cut short while it was in use"));
        }
        tess_dataset_close(set);
    }
    token_folder_close(&folder);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_cut_in_use), /* first: cmocka takes SIGBUS again for each case */
        cmocka_unit_test(case_headers),    cmocka_unit_test(case_lengths),
        cmocka_unit_test(case_damage),     cmocka_unit_test(case_names),
        cmocka_unit_test(case_formats),    cmocka_unit_test(case_nul),
        cmocka_unit_test(case_values),
    };
    return cmocka_run_group_tests_name("tokens_bad", cases, NULL, NULL);
}
