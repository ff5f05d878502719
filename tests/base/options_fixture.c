/* See options_fixture.h. */
#include "options_fixture.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define RUN(field)  offsetof(struct fixture_run, field)
#define PART(field) offsetof(struct fixture_part, field)

const struct tess_option fixture_run_table[] = {
    {"evaluate", TESS_OPTION_BOOL, RUN(evaluate), "on", 0, 0, NULL, "Validate after every epoch."},
    {"ranks", TESS_OPTION_INT, RUN(ranks), "1", 1, 64, NULL, "How many ranks."},
    {"learning-rate", TESS_OPTION_REAL, RUN(rate), "0.1", 0, 10, NULL,
     "Step size of the optimizer, before the schedule has its say in what becomes of it."},
    {"data", TESS_OPTION_STRING, RUN(data), "synthetic", 0, 0, NULL, "Folder of the data set."},
    {"precision", TESS_OPTION_CHOICE, RUN(precision), "f32", 0, 0, "f32|bf16|f16",
     "Type of parameters and activations."},
    {"layers", TESS_OPTION_INTS, RUN(layers), "1024, 1024", 1, 65536, NULL, "Widths."},
    {"any", TESS_OPTION_INT, RUN(any), "0", 0, 0, NULL, "A number without limits."},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

const struct tess_option fixture_part_table[] = {
    {"bucket-mib", TESS_OPTION_INT, PART(bucket_mib), "25", 1, 1024, NULL, "Size of a bucket."},
    {"overlap", TESS_OPTION_BOOL, PART(overlap), "off", 0, 0, NULL, "Overlap with backward."},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

int fixture_folder_open(void **state)
{
    char folder[] = "/tmp/tessera-test-XXXXXX";
    if (!mkdtemp(folder) || chdir(folder) != 0)
        return -1;
    *state = strdup(folder);
    return *state ? 0 : -1;
}

int fixture_folder_close(void **state)
{
    static const char *const made[] = {"t.yaml", "big.yaml", "closed.yaml"};
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++)
        unlink(made[i]);
    int left = chdir("/") != 0 || rmdir(*state) != 0; /* fails if a test left a file behind */
    free(*state);
    return left ? -1 : 0;
}

void fixture_open(struct fixture *fixture)
{
    memset(fixture, 0xa5, sizeof(*fixture)); /* every field must be written by its default */
    assert_int_equal(tess_options_open(&fixture->options), TESS_OK);
    assert_int_equal(tess_options_add(fixture->options, "", fixture_run_table, &fixture->run),
                     TESS_OK);
    assert_int_equal(tess_options_add(fixture->options, "part", fixture_part_table, &fixture->part),
                     TESS_OK);
    assert_int_equal(
        tess_options_allow(fixture->options, "other", "applies to strategy other only"), TESS_OK);
}

void fixture_close(struct fixture *fixture)
{
    tess_options_close(fixture->options);
}

void fixture_write(const char *path, const void *bytes, size_t count)
{
    unlink(path); /* truncating it instead makes some file systems wait for the disk */
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, count), count);
    assert_int_equal(close(fd), 0);
}

void fixture_write_text(const char *path, const char *text)
{
    fixture_write(path, text, strlen(text));
}

enum tess_status fixture_load_yaml(struct fixture *fixture, const char *text)
{
    fixture_open(fixture);
    fixture_write_text("t.yaml", text);
    return tess_options_load_yaml(fixture->options, "t.yaml");
}

enum tess_status fixture_load_words(struct fixture *fixture, const char *words)
{
    char copy[1024], *argv[64], *rest = copy;
    int argc = 0, count = 0;
    const char *positional[2];
    assert_true(strlen(words) < sizeof(copy));
    snprintf(copy, sizeof(copy), "%s", words);
    for (char *word; (word = strsep(&rest, " ")) && argc < 64; argc++) {
        for (char *c = word; *c; c++)
            if (*c == '~')
                *c = ' ';
        argv[argc] = word;
    }
    fixture_open(fixture);
    return tess_options_load_arguments(fixture->options, argc, argv, positional, 2, &count);
}
