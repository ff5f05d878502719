/*
 * Which data set --data means: images or text as the model needs them, the text of the machine when
 * a model of text gets none, and errors that name the way out.
 */
#include "job/run.h"
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

enum { WORDS_MAX = 12 };

/* Open what these words ask for, with a model that takes tokens or one that takes images. */
static enum tess_status open_data(bool tokens, const char *const *word, struct tess_dataset **set)
{
    struct tess_config *config = NULL;
    struct tess_model_ops model;
    char *argument[WORDS_MAX];
    int count = 0;

    while (word[count] != NULL) {
        argument[count] = strdup(word[count]);
        count++;
    }
    assert_int_equal(tess_config_open(count, argument, NULL, 0, &config), TESS_OK);
    model = *config->model;
    model.name = tokens ? "reader" : "viewer";
    model.tokens = tokens;
    config->model = &model;
    enum tess_status status = tess__run_open_data(config, set);
    tess_config_close(config);
    while (count > 0)
        free(argument[--count]);
    return status;
}

#define WORDS(...)                                                                                 \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static void check_refused(bool tokens, const char *const *word, enum tess_status expected,
                          const char *part, const char *other_part)
{
    struct tess_dataset *set = NULL;

    assert_int_equal(open_data(tokens, word, &set), expected);
    if (strstr(tess_log_last_error(), part) == NULL ||
        strstr(tess_log_last_error(), other_part) == NULL)
        fail_msg("\"%s\" without \"%s\" or \"%s\"", tess_log_last_error(), part, other_part);
    assert_null(set);
}

static void case_text(void **state)
{
    static char text[5000];
    char path[] = "/tmp/tessera-test-run-XXXXXX";
    int fd = mkstemp(path);
    struct tess_dataset *set = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)('a' + i % 23);
    assert_int_equal(write(fd, text, sizeof(text)), sizeof(text));
    close(fd);
    assert_int_equal(open_data(true, WORDS("--data", path), &set), TESS_OK);
    assert_int_equal(set->row.dim[0], 256);
    assert_int_equal(set->train.count, 18); /* 4999 / 256 = 19 samples, one for validation */
    assert_int_equal(set->test.count, 1);
    tess_dataset_close(set);
    assert_int_equal(
        open_data(true, WORDS("--data", path, "--data.length", "10", "--data.validation", "0.25"),
                  &set),
        TESS_OK);
    assert_int_equal(set->row.dim[0], 10);
    assert_int_equal(set->train.count, 375); /* of 499 a quarter, rounded down, is 124 */
    assert_int_equal(set->test.count, 124);
    tess_dataset_close(set);
    assert_int_equal(open_data(true, WORDS("--data", path, "--data.validation-files", path), &set),
                     TESS_OK);
    assert_int_equal(set->train.count, 19);
    assert_int_equal(set->test.count, 19);
    tess_dataset_close(set);

    set = NULL;
    check_refused(false, WORDS("--data", path), TESS_ERR_USAGE, "viewer learns from images", path);
    check_refused(true, WORDS("--data", path, "--data.flip"), TESS_ERR_USAGE,
                  "--data.flip applies to images only", "reader");
    check_refused(true, WORDS("--data", path, "--data.shift", "2"), TESS_ERR_USAGE, "--data.shift",
                  "reader");
    unlink(path);
    check_refused(true, WORDS("--data", path), TESS_ERR_NOT_FOUND, path, "No such file");
}

static void case_folders_and_words(void **state)
{
    char folder[] = "/tmp/tessera-test-run-XXXXXX";
    struct tess_dataset *set = NULL;

    (void)state;
    assert_non_null(mkdtemp(folder));
    check_refused(true, WORDS("--data", folder), TESS_ERR_USAGE, "is a folder", "*.txt");
    check_refused(false, WORDS("--data", folder), TESS_ERR_NOT_FOUND, folder, "no data set");
    check_refused(false, WORDS("--data", "text"), TESS_ERR_USAGE, "learns from images", "folder");
    check_refused(false, WORDS("--data", "synthetic", "--data.length", "8"), TESS_ERR_USAGE,
                  "--data.length applies to text and tokens only", "viewer");
    check_refused(false, WORDS("--data", "synthetic", "--data.validation", "0.5"), TESS_ERR_USAGE,
                  "--data.validation", "viewer");
    assert_int_equal(rmdir(folder), 0);

    assert_int_equal(
        open_data(false, WORDS("--data", "synthetic", "--synthetic-rows", "40", "--data.flip"),
                  &set),
        TESS_OK);
    assert_false(set->tokens);
    assert_int_equal(set->labels, 1);
    assert_int_equal(set->train.count, 40);
    tess_dataset_close(set);
    assert_int_equal(
        open_data(true,
                  WORDS("--data", "synthetic", "--synthetic-rows", "40", "--data.length", "12"),
                  &set),
        TESS_OK);
    assert_true(set->tokens);
    assert_int_equal(set->row.dim[0], 12);
    assert_int_equal(set->train.count, 40);
    assert_int_equal(set->test.count, 10);
    tess_dataset_close(set);
}

/* A configuration file or the environment may carry options of the other kind. */
static void case_carried_options(void **state)
{
    struct tess_dataset *set = NULL;

    (void)state;
    assert_int_equal(setenv("TESSERA_DATA_FLIP", "on", 1), 0);
    assert_int_equal(setenv("TESSERA_DATA_LENGTH", "17", 1), 0);
    assert_int_equal(open_data(true, WORDS("--data", "synthetic"), &set), TESS_OK);
    assert_int_equal(set->row.dim[0], 17);
    tess_dataset_close(set);
    assert_int_equal(open_data(false, WORDS("--data", "synthetic"), &set), TESS_OK);
    assert_int_equal(set->row.rank, 3);
    tess_dataset_close(set);
    assert_int_equal(unsetenv("TESSERA_DATA_FLIP"), 0);
    assert_int_equal(unsetenv("TESSERA_DATA_LENGTH"), 0);
}

static void case_no_data_given(void **state)
{
    struct tess_dataset *set = NULL;

    (void)state;
    if (access("/usr/share/common-licenses/GPL-3", R_OK) != 0) {
        print_message("skipped: no Debian machine, /usr/share/common-licenses is not there\n");
        skip();
    }
    assert_int_equal(open_data(true, WORDS("--ranks", "1"), &set), TESS_OK);
    assert_true(set->tokens);
    assert_int_equal(set->class_count, 256);
    assert_true(set->mapped_bytes >= 65536);
    tess_dataset_close(set);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_text),
        cmocka_unit_test(case_folders_and_words),
        cmocka_unit_test(case_carried_options),
        cmocka_unit_test(case_no_data_given),
    };
    return cmocka_run_group_tests_name("run_data", cases, NULL, NULL);
}
