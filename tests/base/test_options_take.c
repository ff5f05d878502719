/* Options of several owners in one command line: taken out, skipped, and kept elsewhere. */
#include "options_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* A command's own options are taken out of the words, whatever way they are written; the rest stays
 * in order. */
static void case_take(void **state)
{
    char *words[] = {"a.yaml",           "--ranks",   "3",     "--other", "--no-evaluate", "--set",
                     "learning-rate=.5", "--steps=4", "--set", "x=1",     "--data=d",      "--",
                     "--ranks",          "9"};
    static const char *const left[] = {"a.yaml", "--other", "--steps=4", "--set",
                                       "x=1",    "--",      "--ranks",   "9"};
    char *wrong[] = {"--ranks", "0"};
    struct fixture f;
    int count = (int)(sizeof(words) / sizeof(words[0]));
    (void)state;
    fixture_open(&f);
    assert_int_equal(tess_options_take_arguments(f.options, &count, words), TESS_OK);
    assert_int_equal(count, sizeof(left) / sizeof(left[0]));
    for (int i = 0; i < count; i++)
        assert_string_equal(words[i], left[i]);
    assert_int_equal(f.run.ranks, 3);
    assert_false(f.run.evaluate);
    assert_true(f.run.rate == 0.5);
    assert_string_equal(f.run.data, "d");
    count = 2;
    assert_int_equal(tess_options_take_arguments(f.options, &count, wrong), TESS_ERR_USAGE);
    fixture_close(&f);
}

/* With skipped names: those of other sets, one that a file does not set, and another run's part. */
static void case_skip(void **state)
{
    struct fixture f;
    char *words[] = {"--twin.x", "1", "--no-twin.y", "--ranks", "5", "--twin.z", "t.yaml"};
    const char *word[1];
    int count = 0;
    (void)state;
    fixture_write_text("t.yaml", "ranks: 2\ndata: d\nunknown: 1\n");
    setenv("TESSERA_UNKNOWN", "1", 1);
    fixture_open(&f);
    assert_int_equal(tess_options_load_environment(f.options), TESS_ERR_USAGE);
    assert_int_equal(tess_options_load_yaml(f.options, "t.yaml"), TESS_ERR_USAGE);
    fixture_close(&f);
    fixture_open(&f);
    tess_options_skip_others(f.options);
    tess_options_skip_file(f.options, "ranks");
    assert_int_equal(tess_options_load_environment(f.options), TESS_OK);
    assert_int_equal(tess_options_load_yaml(f.options, "t.yaml"), TESS_OK);
    assert_false(tess_options_is_set(f.options, "ranks"));
    assert_string_equal(f.run.data, "d");
    assert_int_equal(tess_options_allow(f.options, "twin", NULL), TESS_OK);
    assert_int_equal(tess_options_load_arguments(f.options, 7, words, word, 1, &count), TESS_OK);
    assert_int_equal(count, 1);
    assert_string_equal(word[0], "t.yaml");
    assert_int_equal(f.run.ranks, 5);
    unsetenv("TESSERA_UNKNOWN");
    fixture_close(&f);
}

/* A table without a target: its names are known and checked; one that another table has stays that
 * table's, and a file's value for it, of another type, is left out. */
static void case_kept_elsewhere(void **state)
{
    static const struct tess_option table[] = {
        {"ranks", TESS_OPTION_INTS, 0, "1,2", 1, 64, NULL, "a list of ranks"},
        {"only", TESS_OPTION_INT, 0, "1", 1, 9, NULL, "of the command"},
        {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
    };
    char *words[] = {"--ranks=3", "--only=4"}, *wrong[] = {"--only=10"};
    struct fixture f;
    int count = 0;
    (void)state;
    fixture_write_text("t.yaml", "ranks: [1, 2, 4]\n");
    fixture_open(&f);
    assert_int_equal(tess_options_add(f.options, "", table, NULL), TESS_OK);
    assert_int_equal(tess_options_load_yaml(f.options, "t.yaml"), TESS_OK);
    assert_false(tess_options_is_set(f.options, "ranks"));
    assert_int_equal(tess_options_load_arguments(f.options, 2, words, NULL, 0, &count), TESS_OK);
    assert_int_equal(f.run.ranks, 3);
    assert_int_equal(tess_options_load_arguments(f.options, 1, wrong, NULL, 0, &count),
                     TESS_ERR_USAGE);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_take),
        cmocka_unit_test(case_skip),
        cmocka_unit_test(case_kept_elsewhere),
    };
    return cmocka_run_group_tests_name("options_take", tests, fixture_folder_open,
                                       fixture_folder_close);
}
