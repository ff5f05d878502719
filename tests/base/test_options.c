/* The option set: defaults, values, sources and their force, peeks, tables and help. */
#include "options_fixture.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct expectation {
    const char *input, *message;
};

/* ---- defaults and values -------------------------------------------------------------------- */

static void case_defaults(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f);
    assert_true(f.run.evaluate);
    assert_int_equal(f.run.ranks, 1);
    assert_true(f.run.rate == 0.1);
    assert_string_equal(f.run.data, "synthetic");
    assert_int_equal(f.run.precision, 0);
    assert_int_equal(f.run.layers.count, 2);
    assert_int_equal(f.run.layers.value[1], 1024);
    assert_int_equal(f.part.bucket_mib, 25);
    assert_false(f.part.overlap);
    assert_false(tess_options_is_set(f.options, "ranks"));
    assert_false(tess_options_is_set(f.options, "nothing"));
    fixture_close(&f);
    tess_options_close(NULL);
}

static void case_yaml_values(void **state)
{
    (void)state;
    struct fixture f;
    assert_int_equal(fixture_load_yaml(&f, "# a comment\n"
                                           "ranks: 4\n"
                                           "evaluate: No\n"
                                           "learning_rate: 1e-3   # '_' for '-'\n"
                                           "data: \"/data/fashion mnist\"\n"
                                           "precision: bf16\n"
                                           "layers: [1, 2Ki,\n  3]\n"
                                           "other: {anything: [at, {all: 1}]}\n"
                                           "part:\n"
                                           "  bucket-mib: 8\n"
                                           "part.overlap: on\n"),
                     TESS_ERR_USAGE); /* a map in a sequence is nothing an option can be */
    fixture_close(&f);
    assert_int_equal(fixture_load_yaml(&f, "# a comment\n"
                                           "ranks: 4\n"
                                           "evaluate: No\n"
                                           "learning_rate: 1e-3   # '_' for '-'\n"
                                           "data: \"/data/fashion mnist\"\n"
                                           "precision: bf16\n"
                                           "layers: [1, 2Ki,\n  3]\n"
                                           "other: {anything: [at, all], deep: {er: 1}}\n"
                                           "part:\n"
                                           "  bucket-mib: 8\n"
                                           "part.overlap: on\n"),
                     TESS_OK);
    assert_int_equal(f.run.ranks, 4);
    assert_false(f.run.evaluate);
    assert_true(f.run.rate == 1e-3);
    assert_string_equal(f.run.data, "/data/fashion mnist");
    assert_int_equal(f.run.precision, 1);
    assert_int_equal(f.run.layers.count, 3);
    assert_int_equal(f.run.layers.value[1], 2048);
    assert_int_equal(f.part.bucket_mib, 8);
    assert_true(f.part.overlap);
    assert_true(tess_options_is_set(f.options, "learning_rate"));
    assert_false(tess_options_is_set(f.options, "any"));
    fixture_close(&f);
}

static void case_yaml_harmless_forms(void **state)
{
    (void)state;
    static const char *const text[] = {
        "---\n",
        "---\n...\n",
        "~\n",
        "{}",
        "%YAML 1.1\n---\nranks: 1\n",
        "\xef\xbb\xbfranks: 1\n",
        "ranks: 1\r\nprecision: f32\r\n",
        "part:\n",
        "part: {}\n",
        "other:\n",
        "other: 5\n",
        "other: [1, 2]\n",
        "layers: []\n",
        "layers: 7\n",
        "layers: \"7, 8\"\n",
        "data: \"\"\n",
        "data: \xc3\xa9\n",
        "data: |\n  two\n  lines\n",
        "? ranks\n: 3\n",
        "'ranks': '3'\n",
    };
    for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++) {
        struct fixture f;
        if (fixture_load_yaml(&f, text[i]) != TESS_OK)
            fail_msg("'%s': %s", text[i], tess_log_last_error());
        fixture_close(&f);
    }
}

static void case_arguments(void **state)
{
    (void)state;
    struct fixture f;
    char *argv[] = {"a.yaml",
                    "--ranks",
                    "8",
                    "--precision=f16",
                    "--set",
                    "any=-3k",
                    "--no-evaluate",
                    "--part.overlap",
                    "b",
                    "--set=learning-rate=+.5",
                    "--data",
                    "-",
                    "--layers",
                    "",
                    "--part.bucket_mib=1"};
    const char *positional[2] = {NULL, NULL};
    int count = -1;
    fixture_open(&f);
    assert_int_equal(tess_options_load_arguments(f.options, sizeof(argv) / sizeof(argv[0]), argv,
                                                 positional, 2, &count),
                     TESS_OK);
    assert_int_equal(count, 2);
    assert_string_equal(positional[0], "a.yaml");
    assert_string_equal(positional[1], "b"); /* not swallowed by the switch before it */
    assert_int_equal(f.run.ranks, 8);
    assert_int_equal(f.run.precision, 2);
    assert_int_equal(f.run.any, -3000);
    assert_false(f.run.evaluate);
    assert_true(f.run.rate == 0.5);
    assert_string_equal(f.run.data, "-");
    assert_int_equal(f.run.layers.count, 0);
    assert_true(f.part.overlap);
    assert_int_equal(f.part.bucket_mib, 1);
    fixture_close(&f);

    char *ended[] = {"--any", "-5", "--any", "6", "--evaluate=off", "--", "--ranks", "--"};
    fixture_open(&f);
    assert_int_equal(tess_options_load_arguments(f.options, 8, ended, positional, 2, &count),
                     TESS_OK);
    assert_int_equal(f.run.any, 6); /* the later one */
    assert_int_equal(f.run.ranks, 1);
    assert_int_equal(count, 2);
    assert_string_equal(positional[0], "--ranks");
    assert_string_equal(positional[1], "--");
    fixture_close(&f);
}

static void case_whole_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {
        {"0", 0},
        {"-0", 0},
        {"+7", 7},
        {"007", 7},
        {"3k", 3000},
        {"3M", 3000000},
        {"3G", 3000000000},
        {"3Ki", 3072},
        {"3Mi", 3145728},
        {"-3Gi", -3221225472},
        {"9223372036854775807", INT64_MAX},
        {"-9223372036854775808", INT64_MIN},
        {"8589934591Gi", INT64_C(8589934591) << 30},
    };
    static const char *const bad[] = {
        "",
        "-",
        "+",
        "1.5",
        "1e3",
        "0x10",
        " 1",
        "1 ",
        "1K",
        "1ki",
        "1kk",
        "1i",
        "k",
        "--1",
        "1_0",
        "nan",
        "inf",
        "١",
        "1k ",
        "10Mb",
        "9223372036854775808",
        "-9223372036854775809",
        "8589934592Gi",
        "99999999999999999999999",
        "9223372036854775807k",
    };
    struct fixture f;
    char word[64];
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        snprintf(word, sizeof(word), "--any=%s", good[i].text);
        assert_int_equal(fixture_load_words(&f, word), TESS_OK);
        assert_true(f.run.any == good[i].value);
        fixture_close(&f);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char *argv[] = {"--any", (char *)(uintptr_t)bad[i]};
        const char *positional[1];
        int count;
        fixture_open(&f);
        assert_int_equal(tess_options_load_arguments(f.options, 2, argv, positional, 0, &count),
                         TESS_ERR_USAGE);
        assert_int_equal(f.run.any, 0); /* untouched */
        fixture_close(&f);
    }
}

static void case_real_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } good[] = {{"1", 1},        {".5", .5},    {"5.", 5},        {"1e-3", 1e-3},
                {"2.5E+0", 2.5}, {"+0.1", 0.1}, {"1e0", 1},       {"0", 0},
                {"-0.0", 0},     {"10", 10},    {"00.10e1", 1.0}, {"1e-300", 1e-300}};
    static const char *const bad[] = {"",    ".",    "e3",     "1e",   "1e+",  "nan",      "inf",
                                      "NaN", "-inf", "0x1p3",  "1,5",  "1..2", "infinity", "1e999",
                                      "1f",  "- 1",  "1e-999", "-0.1", "10.01"};
    struct fixture f;
    char word[64];
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        snprintf(word, sizeof(word), "--learning-rate=%s", good[i].text);
        assert_int_equal(fixture_load_words(&f, word), TESS_OK);
        assert_true(f.run.rate == good[i].value);
        fixture_close(&f);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(word, sizeof(word), "--learning-rate=%s", bad[i]);
        assert_int_equal(fixture_load_words(&f, word), TESS_ERR_USAGE);
        assert_true(f.run.rate == 0.1);
        fixture_close(&f);
    }
}

/* ---- sources -------------------------------------------------------------------------------- */

static void clear_environment(void)
{
    static const char *const name[] = {"TESSERA_RANKS",           "TESSERA_PART_BUCKET_MIB",
                                       "TESSERA_OTHER_SIZE",      "TESSERA_RNAKS",
                                       "TESSERA_LEARNING_RATE",   "TESSERA_OTHERWISE",
                                       "TESSERA_PART_BUCKET_MID", "TESSERA_"};
    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++)
        unsetenv(name[i]);
}

static void case_environment(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value, *message;
    } bad[] = {
        {"TESSERA_RANKS", "0",
         "environment TESSERA_RANKS: ranks: '0' is out of range; expected a whole "
         "number from 1 to 64"},
        {"TESSERA_RNAKS", "1",
         "environment: unknown option 'TESSERA_RNAKS'; did you mean "
         "'TESSERA_RANKS'?"},
        {"TESSERA_PART_BUCKET_MID", "1",
         "environment: unknown option 'TESSERA_PART_BUCKET_MID'; did "
         "you mean 'TESSERA_PART_BUCKET_MIB'?"},
        {"TESSERA_OTHERWISE", "1",
         "environment: unknown option 'TESSERA_OTHERWISE'; --help lists the known ones"},
        {"TESSERA_", "1", "environment: unknown option 'TESSERA_'; --help lists the known ones"},
    };
    struct fixture f;
    clear_environment();
    setenv("TESSERA_RANKS", "3", 1);
    setenv("TESSERA_PART_BUCKET_MIB", "9", 1);
    setenv("TESSERA_OTHER_SIZE", "not read", 1);
    fixture_open(&f);
    assert_int_equal(tess_options_load_environment(f.options), TESS_OK);
    assert_int_equal(f.run.ranks, 3);
    assert_int_equal(f.part.bucket_mib, 9);
    fixture_close(&f);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        clear_environment();
        setenv(bad[i].name, bad[i].value, 1);
        fixture_open(&f);
        assert_int_equal(tess_options_load_environment(f.options), TESS_ERR_USAGE);
        assert_string_equal(tess_log_last_error(), bad[i].message);
        fixture_close(&f);
    }
    clear_environment();
}

/* Load the sources in `order`, e.g. "eya"; the last of them in force decides. */
static int64_t ranks_after(const char *order)
{
    struct fixture f;
    char *argv[] = {"--ranks", "4"};
    const char *positional[1];
    int count;
    fixture_write_text("t.yaml", "ranks: 3\n");
    setenv("TESSERA_RANKS", "2", 1);
    fixture_open(&f);
    for (; *order; order++) {
        if (*order == 'e')
            assert_int_equal(tess_options_load_environment(f.options), TESS_OK);
        else if (*order == 'y')
            assert_int_equal(tess_options_load_yaml(f.options, "t.yaml"), TESS_OK);
        else
            assert_int_equal(tess_options_load_arguments(f.options, 2, argv, positional, 0, &count),
                             TESS_OK);
    }
    clear_environment();
    int64_t ranks = f.run.ranks;
    fixture_close(&f);
    return ranks;
}

static void case_force_of_sources(void **state)
{
    (void)state;
    static const char *const order[] = {"eya", "eay", "yea", "yae", "aey", "aye"};
    assert_int_equal(ranks_after(""), 1);
    assert_int_equal(ranks_after("e"), 2);
    assert_int_equal(ranks_after("ey"), 3);
    assert_int_equal(ranks_after("ye"), 3);
    for (int i = 0; i < 6; i++)
        assert_int_equal(ranks_after(order[i]), 4);
}

struct visited {
    char text[2048];
    size_t used;
};

static void visit(void *context, const char *name, const char *value, const char *origin,
                  const struct tess_option *option)
{
    struct visited *visited = context;
    assert_non_null(option->help);
    visited->used +=
        (size_t)snprintf(visited->text + visited->used, sizeof(visited->text) - visited->used,
                         "%s=%s (%s)\n", name, value, origin);
}

static void case_origins(void **state)
{
    (void)state;
    struct fixture f;
    struct visited visited = {"", 0};
    char *argv[] = {"--any=5Ki", "--set", "evaluate=0"};
    const char *positional[1];
    int count;
    setenv("TESSERA_RANKS", "+03", 1);
    assert_int_equal(fixture_load_yaml(&f, "layers: [1, 2Ki]\npart:\n  bucket-mib: 7\n"), TESS_OK);
    assert_int_equal(tess_options_load_environment(f.options), TESS_OK);
    assert_int_equal(tess_options_load_arguments(f.options, 3, argv, positional, 0, &count),
                     TESS_OK);
    clear_environment();
    tess_options_visit(f.options, visit, &visited);
    assert_string_equal(visited.text, "evaluate=off (command line)\n"
                                      "ranks=3 (environment TESSERA_RANKS)\n"
                                      "learning-rate=0.1 (default)\n"
                                      "data=synthetic (default)\n"
                                      "precision=f32 (default)\n"
                                      "layers=1,2048 (t.yaml:1:9)\n"
                                      "any=5120 (command line)\n"
                                      "part.bucket-mib=7 (t.yaml:3:15)\n"
                                      "part.overlap=off (default)\n");
    fixture_close(&f);
}

static void case_hash(void **state)
{
    (void)state;
    struct fixture a, b;
    assert_int_equal(fixture_load_words(&a, "--any 1k --evaluate=yes --layers 7,8"), TESS_OK);
    assert_int_equal(fixture_load_yaml(&b, "any: 1000\nevaluate: on\nlayers: [7, 8]"), TESS_OK);
    assert_int_equal(tess_options_hash(a.options), tess_options_hash(b.options));
    fixture_close(&b);
    static const char *const words[] = {"--any 1001 --layers 7,8", "--any 1k --layers 78",
                                        "--any 1k --layers 7,8 --no-evaluate",
                                        "--any 1k --layers 7,8 --data x"};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(fixture_load_words(&b, words[i]), TESS_OK);
        assert_int_not_equal(tess_options_hash(a.options), tess_options_hash(b.options));
        fixture_close(&b);
    }
    fixture_close(&a);
}

static void case_strings_outlive_later_sources(void **state)
{
    (void)state;
    struct fixture f;
    char word[] = "--data=second";
    char *argv[] = {word};
    const char *positional[1];
    int count;
    assert_int_equal(fixture_load_yaml(&f, "data: first\n"), TESS_OK);
    const char *first = f.run.data;
    assert_int_equal(tess_options_load_arguments(f.options, 1, argv, positional, 0, &count),
                     TESS_OK);
    memset(word, 'x', sizeof(word) - 1); /* the set has its own copy */
    assert_string_equal(f.run.data, "second");
    assert_string_equal(first, "first");
    fixture_close(&f);
}

static void check_peek(const char *name, int argc, char **argv, const char *path,
                       const char *expected)
{
    struct tess_options *options = NULL;
    assert_int_equal(tess_options_open(&options), TESS_OK);
    const char *value = tess_options_peek(options, name, argc, argv, path);
    if (expected && value)
        assert_string_equal(value, expected);
    else
        assert_ptr_equal(value, expected);
    tess_options_close(options);
}

static void case_peek(void **state)
{
    (void)state;
    char *none[] = {"t.yaml", "--data", "--", "--strategy", "b"};
    char *some[] = {"--strategy",   "a",      "--set", "model=m",
                    "--strategy=c", "--flag", "x",     "--no-bind"};
    char *cut[] = {"--strategy", "--ranks", "2", "--set"};
    clear_environment();
    fixture_write_text("t.yaml", "strategy: y\npart: {bucket_mib: 3}\nlayers: [1, 2]\nmodel:\n");
    check_peek("strategy", 5, none, NULL, NULL);
    check_peek("strategy", 5, none, "t.yaml", "y");
    check_peek("strategy", 8, some, "t.yaml", "c");
    check_peek("model", 8, some, "t.yaml", "m");
    check_peek("model", 5, none, "t.yaml", NULL);
    check_peek("bind", 8, some, "t.yaml", "off");
    check_peek("part.bucket-mib", 0, NULL, "t.yaml", "3");
    check_peek("part.bucket_mib", 0, NULL, "t.yaml", "3");
    check_peek("layers", 0, NULL, "t.yaml", "1,2");
    check_peek("strategy", 4, cut, NULL, NULL);
    check_peek("ranks", 4, cut, NULL, "2");
    setenv("TESSERA_RANKS", "5", 1);
    check_peek("ranks", 4, cut, NULL, "2");
    check_peek("ranks", 0, NULL, "t.yaml", "5");
    clear_environment();
    /* A broken file is silent in a peek, and an error when loaded. */
    struct tess_options *options = NULL;
    fixture_write_text("t.yaml", "a: [");
    assert_int_equal(tess_options_open(&options), TESS_OK);
    assert_int_equal(tess_options_load_yaml(options, "missing.yaml"), TESS_ERR_USAGE);
    assert_null(tess_options_peek(options, "a", 0, NULL, "t.yaml"));
    assert_string_equal(tess_log_last_error(),
                        "missing.yaml: cannot be opened: No such file or directory");
    assert_int_equal(tess_options_load_yaml(options, "t.yaml"), TESS_ERR_USAGE);
    assert_string_equal(tess_log_last_error(), "t.yaml:2:1: not YAML: did not find expected node "
                                               "content while parsing a flow node");
    tess_options_close(options);
}

/* Also by several sets, of which the first has read it. */
static void case_pipe_is_read_once(void **state)
{
    (void)state;
    int end[2];
    char path[32];
    struct fixture f, next;
    assert_int_equal(pipe(end), 0);
    assert_int_equal(write(end[1], "ranks: 6\n", 9), 9);
    close(end[1]);
    snprintf(path, sizeof(path), "/dev/fd/%d", end[0]);
    fixture_open(&f);
    assert_string_equal(tess_options_peek(f.options, "ranks", 0, NULL, path), "6");
    assert_int_equal(tess_options_load_yaml(f.options, path), TESS_OK);
    assert_int_equal(f.run.ranks, 6);
    fixture_open(&next);
    tess_options_read_before(next.options, f.options);
    assert_string_equal(tess_options_peek(next.options, "ranks", 0, NULL, path), "6");
    assert_int_equal(tess_options_load_yaml(next.options, path), TESS_OK);
    assert_int_equal(next.run.ranks, 6);
    fixture_close(&next);
    close(end[0]);
    fixture_close(&f);
}

/* ---- tables and help ------------------------------------------------------------------------ */

static void case_bad_tables(void **state)
{
    (void)state;
    static const struct tess_option wrong_default[] = {
        {"n", TESS_OPTION_INT, 0, "x", 0, 0, NULL, ""},
        {NULL, TESS_OPTION_INT, 0, NULL, 0, 0, NULL, NULL}};
    static const struct tess_option no_choices[] = {
        {"c", TESS_OPTION_CHOICE, 0, "x", 0, 0, NULL, ""},
        {NULL, TESS_OPTION_INT, 0, NULL, 0, 0, NULL, NULL}};
    static const struct tess_option wrong_type[] = {
        {"t", (enum tess_option_type)99, 0, "x", 0, 0, NULL, ""},
        {NULL, TESS_OPTION_INT, 0, NULL, 0, 0, NULL, NULL}};
    struct fixture f;
    struct tess_ints target;
    fixture_open(&f);
    assert_int_equal(tess_options_add(f.options, "p", wrong_default, &target), TESS_ERR_INTERNAL);
    assert_int_equal(tess_options_add(f.options, "p", no_choices, &target), TESS_ERR_INTERNAL);
    assert_int_equal(tess_options_add(f.options, "p", wrong_type, &target), TESS_ERR_INTERNAL);
    assert_int_equal(tess_options_add(f.options, "part", fixture_part_table, &target),
                     TESS_ERR_INTERNAL);
    assert_non_null(strstr(tess_log_last_error(), "part.bucket-mib"));
    assert_int_equal(tess_options_add(f.options, "none", NULL, NULL), TESS_OK);
    char prefix[300];
    memset(prefix, 'p', 299);
    prefix[299] = '\0';
    assert_int_equal(tess_options_add(f.options, prefix, fixture_part_table, &target),
                     TESS_ERR_INTERNAL);
    assert_int_equal(tess_options_allow(f.options, prefix, "because"), TESS_ERR_INTERNAL);
    fixture_close(&f);
}

/* A part that is allowed among all and then selected answers for its names itself. */
static void case_selected_after_allowed(void **state)
{
    (void)state;
    struct fixture f;
    struct fixture_part other;
    fixture_open(&f);
    assert_int_equal(tess_options_allow(f.options, "deep.er", "applies elsewhere"), TESS_OK);
    assert_int_equal(tess_options_add(f.options, "other", fixture_part_table, &other), TESS_OK);
    fixture_write_text("t.yaml", "deep: {er: {x: 1}}\nother: {bucket-mib: 3, overlapp: on}\n");
    assert_int_equal(tess_options_load_yaml(f.options, "t.yaml"), TESS_ERR_USAGE);
    assert_string_equal(tess_log_last_error(),
                        "t.yaml:2:24: unknown option 'other.overlapp'; did you "
                        "mean 'other.overlap'?");
    assert_int_equal(other.bucket_mib, 3);
    fixture_close(&f);
}

static void case_nearest_word(void **state)
{
    (void)state;
    static const char *const known[] = {"ranks", "run", "strategy", "model", "data"};
    static const struct expectation expected[] = {
        {"rank", "ranks"}, {"rnaks", "ranks"},        {"Ranks", "ranks"}, {"stratgey", "strategy"},
        {"strat", NULL},   {"modle", "model"},        {"x", NULL},        {"", NULL},
        {"dta", "data"},   {"trategyyy", "strategy"}, {"runs", "run"},    {"da", NULL},
    };
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        const char *nearest = tess_nearest_word(expected[i].input, known, 5);
        if (expected[i].message && nearest)
            assert_string_equal(nearest, expected[i].message);
        else
            assert_ptr_equal(nearest, expected[i].message);
    }
    assert_null(tess_nearest_word("ranks", known, 0));
    char longest[200];
    memset(longest, 'r', 199);
    longest[199] = '\0';
    assert_null(tess_nearest_word(longest, known, 5));
}

static void case_help(void **state)
{
    (void)state;
    struct fixture f;
    char text[4096];
    fixture_open(&f);
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_true(dup2(fileno(file), STDOUT_FILENO) >= 0);
    assert_true(tess_options_print_help(f.options, NULL, NULL));
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    fixture_close(&f);
    assert_string_equal(text,
                        "Options:\n"
                        "  --[no-]evaluate      Validate after every epoch. [default on]\n"
                        "  --ranks N            How many ranks. [from 1 to 64; default 1]\n"
                        "  --learning-rate X    Step size of the optimizer, before the schedule "
                        "has its say in what becomes\n"
                        "                       of it. [from 0 to 10; default 0.1]\n"
                        "  --data TEXT          Folder of the data set. [default synthetic]\n"
                        "  --precision WORD     Type of parameters and activations. [f32, bf16 or "
                        "f16; default f32]\n"
                        "  --layers N,N,...     Widths. [up to 32 whole numbers from 1 to 65536, "
                        "separated by commas; default\n"
                        "                       1024, 1024]\n"
                        "  --any N              A number without limits. [default 0]\n"
                        "\n"
                        "Options of part:\n"
                        "  --part.bucket-mib N  Size of a bucket. [from 1 to 1024; default 25]\n"
                        "  --[no-]part.overlap  Overlap with backward. [default off]\n");
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_defaults),
        cmocka_unit_test(case_yaml_values),
        cmocka_unit_test(case_yaml_harmless_forms),
        cmocka_unit_test(case_arguments),
        cmocka_unit_test(case_whole_numbers),
        cmocka_unit_test(case_real_numbers),
        cmocka_unit_test(case_environment),
        cmocka_unit_test(case_force_of_sources),
        cmocka_unit_test(case_origins),
        cmocka_unit_test(case_hash),
        cmocka_unit_test(case_strings_outlive_later_sources),
        cmocka_unit_test(case_peek),
        cmocka_unit_test(case_pipe_is_read_once),
        cmocka_unit_test(case_bad_tables),
        cmocka_unit_test(case_selected_after_allowed),
        cmocka_unit_test(case_nearest_word),
        cmocka_unit_test(case_help),
    };
    return cmocka_run_group_tests(cases, fixture_folder_open, fixture_folder_close);
}
