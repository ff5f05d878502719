/*
 * tessera compare with variants, through the program: the summary with its factors, hashes grouped
 * by what decides about them, variants from a configuration file, and bad ones. What compare writes
 * for strategies is test_program's.
 */
#include "harness/spawn.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SMALL                                                                                      \
    "--data", "synthetic", "--synthetic-rows", "256", "--mlp.hidden", "8", "--kernel", "ref",      \
        "--steps", "5", "--batch-size", "32", "--ranks", "2"

static char folder[] = "/tmp/tessera_compare_XXXXXX";

static void check_columns(const char *text)
{
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1)
        if (strcspn(line, "\n") > 120)
            fail_msg("more than 120 columns: %.*s", (int)strcspn(line, "\n"), line);
}

static json_t *json_runs(const char *path, size_t count)
{
    json_t *root = json_load_file(path, 0, NULL);
    json_t *runs = json_object_get(root, "runs");

    assert_int_equal(json_array_size(runs), count);
    json_incref(runs);
    json_decref(root);
    return runs;
}

static const char *run_text(const json_t *runs, size_t i, const char *key)
{
    return json_string_value(json_object_get(json_array_get(runs, i), key));
}

/* Accumulation, low precision and both: the same bits within a precision, by one grid. */
static void case_variants(void **state)
{
    static struct spawn spawn;
    static const char variants[] =
        "baseline:; accumulate [the same batch in less memory, at the price of smaller products]: "
        "accumulate=4; mixed: precision=bf16; both: accumulate=4 precision=bf16; "
        "rate: learning-rate=0.1";
    char path[96];
    char *argv[] = {"tessera",    "compare",        SMALL,    "--strategy", "ddp",
                    "--variants", (char *)variants, "--json", path,         NULL};
    json_t *runs;

    (void)state;
    snprintf(path, sizeof(path), "%s/variants.json", folder);
    assert_int_equal(spawn_run(&spawn, argv, NULL), 0);
    assert_string_equal(spawn.err, "");
    check_columns(spawn.out);
    assert_non_null(strstr(spawn.out, "2 x 4 x 4, each"));
    assert_non_null(strstr(spawn.out, "\n  the same batch in less memory, at the"));
    assert_non_null(strstr(spawn.out, "f32, grid 8: all 2 equal: baseline, accumulate\n"));
    assert_non_null(strstr(spawn.out, "bf16, grid 8: all 2 equal: mixed, both\n"));
    assert_non_null(strstr(spawn.out, "f32, grid 8: rate is alone with its options\n"));
    assert_null(strstr(spawn.out, "NOT"));
    runs = json_runs(path, 5);
    assert_string_equal(run_text(runs, 0, "name"), "baseline");
    assert_null(run_text(runs, 0, "goal"));
    assert_string_equal(run_text(runs, 1, "goal"),
                        "the same batch in less memory, at the price of smaller products");
    assert_string_equal(run_text(runs, 0, "hash"), run_text(runs, 1, "hash"));
    assert_string_equal(run_text(runs, 2, "hash"), run_text(runs, 3, "hash"));
    assert_string_not_equal(run_text(runs, 0, "hash"), run_text(runs, 2, "hash"));
    assert_string_not_equal(run_text(runs, 0, "hash"), run_text(runs, 4, "hash"));
    json_decref(runs);
}

/* Processes, split and balance, from a configuration file, at several rank counts; with
 * --strategies besides. */
static void case_file(void **state)
{
    static struct spawn spawn;
    char path[96], json[96];
    char *argv[] = {"tessera", "compare", path, SMALL, "--strategies",
                    "single",  "--json",  json, NULL};
    json_t *runs;
    FILE *file;

    (void)state;
    snprintf(path, sizeof(path), "%s/variants.yaml", folder);
    snprintf(json, sizeof(json), "%s/file.json", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("variants: |\n    DP [one process]: strategy=dp\n    DDP: strategy=ddp\n"
          "    DDP 4: strategy=ddp ranks=4\n",
          file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(spawn_run(&spawn, argv, NULL), 0);
    assert_string_equal(spawn.err, "");
    check_columns(spawn.out);
    assert_non_null(strstr(spawn.out, "\nDP     1, 2 threads  2 x 1 x 16, rank 0 "));
    assert_non_null(strstr(spawn.out, "\n  one process\n"));
    assert_non_null(strstr(spawn.out, "\nDDP    2             2 x 1 x 16, each "));
    assert_non_null(strstr(spawn.out, "\nDDP 4  4             4 x 1 x 8, each "));
    assert_non_null(strstr(spawn.out, "\nsingle 1             1 x 1 x 32 "));
    assert_non_null(strstr(spawn.out, "hashes: all 4 equal"));
    runs = json_runs(json, 4);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(runs, 2), "ranks")), 4);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(runs, 2), "grid")), 4);
    json_decref(runs);
}

/* Where no grid fits all, each has its own, and their hashes are not held against each other. */
static void case_no_common_grid(void **state)
{
    static struct spawn spawn;
    char *argv[] = {
        "tessera", "compare",         SMALL,        "--strategy",
        "ddp",     "--batch-size=30", "--variants", "two:; again: threads=1; three: ranks=3",
        NULL};

    (void)state;
    assert_int_equal(spawn_run(&spawn, argv, NULL), 0);
    assert_non_null(strstr(spawn.out, "f32, grid 2: all 2 equal: two, again\n"));
    assert_non_null(strstr(spawn.out, "f32, grid 3: three is alone with its options\n"));
}

/* What changes no bits does not part runs that have the same ones: who carries the sums, and
 * whether calls are compared. Where sums have no fixed order, who carries them does. */
static void case_same_bits(void **state)
{
    static struct spawn spawn;
    char *same[] = {"tessera",
                    "compare",
                    SMALL,
                    "--strategy",
                    "ddp",
                    "--variants",
                    "a:; b: comm=tcp; c: comm=tcp debug=on; d: peak-tflops=3",
                    NULL};
    char *fast[] = {"tessera",    "compare",          SMALL, "--strategy", "ddp", "--reduce=fast",
                    "--variants", "a:; b: comm=tcp;", NULL};

    (void)state;
    assert_int_equal(spawn_run(&spawn, same, NULL), 0);
    assert_non_null(strstr(spawn.out, "hashes: all 4 equal"));
    assert_int_equal(spawn_run(&spawn, fast, NULL), 0);
    assert_non_null(strstr(spawn.out, "a is alone with its options\n"));
}

static void case_bad(void **state)
{
    static struct spawn spawn;
    static const struct {
        const char *variants, *phrase, *run;
    } table[] = {
        {"a: ranks", "variant 1, character 4: 'ranks' is not of the form", NULL},
        {"a:; b: rnks=2", "did you mean 'ranks'", "that was run 2 of 2, 'b'"},
        {"a: strategy=ddp; b: strategy=dpd", "unknown strategy 'dpd'", "that was run 2 of 2, 'b'"},
        {"a: strategy=ddp; b: strategy=ddp ranks=5", "ranks that fit: 1, 2, 4",
         "that was run 2 of 2, 'b'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char *argv[] = {"tessera", "compare", SMALL, "--variants", (char *)table[i].variants, NULL};

        assert_int_equal(spawn_run(&spawn, argv, NULL), 2);
        assert_string_equal(spawn.out, "");
        assert_int_equal(spawn_count(spawn.err, "error: "), 1);
        if (strstr(spawn.err, table[i].phrase) == NULL ||
            (table[i].run != NULL && strstr(spawn.err, table[i].run) == NULL))
            fail_msg("case %zu: %s", i, spawn.err);
    }
}

/* A run that fails: what was measured before it is printed, and that it is not all. */
static void case_failed_run(void **state)
{
    static struct spawn spawn;
    char *argv[] = {"tessera", "compare",    SMALL,        "--strategy",
                    "ddp",     "--steps=50", "--variants", "a:; b: learning-rate=1000; c:",
                    NULL};

    (void)state;
    assert_int_equal(spawn_run(&spawn, argv, NULL), 1);
    assert_non_null(strstr(spawn.err, "that was run 2 of 3, 'b'"));
    assert_non_null(strstr(spawn.out, "1 of 3 runs are shown: 'b' did not end\n"));
}

static int remove_folder(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_variants),
        cmocka_unit_test(case_file),
        cmocka_unit_test(case_no_common_grid),
        cmocka_unit_test(case_same_bits),
        cmocka_unit_test(case_bad),
        cmocka_unit_test(case_failed_run),
    };

    if (mkdtemp(folder) == NULL)
        return 1;
    return cmocka_run_group_tests_name("compare", tests, NULL, remove_folder);
}
