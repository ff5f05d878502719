/*
 * tessera scaling and tessera tune batch, through the program: the figures in their JSON follow
 * from one another as in the formulas, and bad input. Times themselves are not judged: the machine
 * may be busy.
 */
#include "harness/spawn.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SMALL                                                                                      \
    "--data", "synthetic", "--synthetic-rows", "256", "--mlp.hidden", "8", "--kernel", "ref"

static char folder[] = "/tmp/tessera_scaling_XXXXXX";

/* Decimal digits of JSON and a dozen double operations on them. */
static void assert_near(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-12 * fabs(expected)))
        fail_msg("%.17g, expected %.17g", value, expected);
}

static double number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_number(value))
        fail_msg("%s is no number", key);
    return json_number_value(value);
}

/* Run, and hand out the object `name` of the file that --json wrote. */
static json_t *run_json(struct spawn *spawn, char *const argv[], const char *path, const char *name)
{
    json_t *root, *object;

    assert_int_equal(spawn_run(spawn, argv, NULL), 0);
    assert_string_equal(spawn->err, "");
    root = json_load_file(path, 0, NULL);
    object = json_object_get(root, name);
    assert_non_null(object);
    json_incref(object);
    json_decref(root);
    return object;
}

/* The parts of a step are parts of it, and the factors are those of one rank's. */
static void check_measured(const json_t *measured, size_t count)
{
    double one_s = number_of(json_array_get(measured, 0), "step_s");

    assert_int_equal(json_array_size(measured), count);
    for (size_t i = 0; i < count; i++) {
        const json_t *point = json_array_get(measured, i);
        double step_s = number_of(point, "step_s"), ranks = number_of(point, "ranks");
        double parts_s = number_of(point, "compute_s") + number_of(point, "data_s") +
                         number_of(point, "exposed_s");

        assert_int_equal((int)ranks, 1 << i);
        assert_true(step_s > 0 && parts_s > 0 && parts_s <= step_s);
        assert_near(number_of(point, "compute_s"), number_of(point, "forward_s") +
                                                       number_of(point, "backward_s") +
                                                       number_of(point, "optim_s"));
        assert_near(number_of(point, "speedup"), one_s / step_s);
        assert_near(number_of(point, "efficiency"), one_s / step_s / ranks);
        assert_string_equal(
            json_string_value(json_object_get(point, "hash")),
            json_string_value(json_object_get(json_array_get(measured, 0), "hash")));
    }
}

static void case_scaling(void **state)
{
    static struct spawn spawn;
    char path[96];
    char *argv[] = {"tessera",
                    "scaling",
                    SMALL,
                    "--max-ranks",
                    "2",
                    "--steps",
                    "5",
                    "--repeats",
                    "2",
                    "--batch-size",
                    "64",
                    "--ddp.first-bucket-mib=0",
                    "--ddp.bucket-mib",
                    "0",
                    "--links",
                    "slow:1s:1GB/s,nvlink",
                    "--to",
                    "100",
                    "--json",
                    path,
                    NULL};
    json_t *scaling, *curve, *points, *ring;

    (void)state;
    snprintf(path, sizeof(path), "%s/scaling.json", folder);
    scaling = run_json(&spawn, argv, path, "scaling");
    assert_non_null(strstr(spawn.out, "p = 0.99"));
    assert_non_null(strstr(spawn.out, "up to 64 ranks: beyond, a rank has less than one image"));
    check_measured(json_object_get(scaling, "measured"), 2);
    assert_string_equal(json_string_value(json_object_get(scaling, "strategy")), "ddp");

    /* ddp and fsdp over two links, up to a rank for every image: 1, 2, 4, ... 64. */
    assert_int_equal(json_array_size(json_object_get(scaling, "predicted")), 4);
    curve = json_array_get(json_object_get(scaling, "predicted"), 0);
    assert_string_equal(json_string_value(json_object_get(curve, "strategy")), "ddp");
    assert_string_equal(json_string_value(json_object_get(curve, "link")), "slow");
    points = json_object_get(curve, "points");
    assert_int_equal(json_array_size(points), 7);
    assert_near(number_of(json_array_get(points, 0), "speedup"), 1);
    /* One bucket for each of the 4 parameters: two passes of a second each, of which a window of
     * well below a second hides next to nothing. */
    assert_in_range((int)number_of(json_array_get(points, 1), "exposed_s"), 7, 8);
    assert_true(number_of(json_array_get(points, 1), "step_s") >
                number_of(json_array_get(points, 1), "exposed_s"));

    /* 14 steps of a second, 2 * 7/8 of a megabyte at 1 GB/s. */
    ring = json_array_get(json_object_get(scaling, "ring"), 0);
    assert_int_equal((int)number_of(ring, "ranks"), 8);
    assert_near(number_of(json_array_get(json_object_get(ring, "points"), 0), "time_s"),
                14 + 1.75e-3);
    json_decref(scaling);
}

/* Links from a file; more ranks than the machine can have cores are marked and not fitted. */
static void case_weak_and_shared(void **state)
{
    static struct spawn spawn;
    char path[96], links[96];
    char *weak[] = {"tessera", "scaling", SMALL,       "--max-ranks", "2",
                    "--steps", "2",       "--repeats", "1",           "--weak",
                    "--links", links,     "--json",    path,          NULL};
    char *shared[] = {"tessera", "scaling", SMALL, "--max-ranks", "2", "--threads",
                      "1024",    "--steps", "2",   "--repeats",   "1", "--to",
                      "2",       "--json",  path,  NULL};
    json_t *scaling, *curve;
    FILE *file;

    (void)state;
    snprintf(path, sizeof(path), "%s/weak.json", folder);
    snprintf(links, sizeof(links), "%s/links.txt", folder);
    file = fopen(links, "w");
    assert_non_null(file);
    fputs("# ours\nours:0s:1TB/s\n", file);
    assert_int_equal(fclose(file), 0);
    scaling = run_json(&spawn, weak, path, "scaling");
    assert_true(json_is_null(json_object_get(scaling, "amdahl_p")));
    assert_int_equal(
        (int)number_of(json_array_get(json_object_get(scaling, "measured"), 1), "batch_size"), 256);
    curve = json_array_get(json_object_get(scaling, "predicted"), 0);
    assert_string_equal(json_string_value(json_object_get(curve, "link")), "ours");
    assert_int_equal(json_array_size(json_object_get(curve, "points")), 11); /* 1 .. 1024 */
    /* 25 kB over a terabyte a second cost next to nothing beside a step. */
    assert_true(number_of(json_array_get(json_object_get(curve, "points"), 10), "efficiency") >
                0.9);
    json_decref(scaling);

    scaling = run_json(&spawn, shared, path, "scaling");
    assert_non_null(strstr(spawn.out, "more ranks than cores"));
    assert_non_null(strstr(spawn.out, "not fitted"));
    assert_true(json_is_null(json_object_get(scaling, "amdahl_p")));
    json_decref(scaling);
}

/* The plan decides what runs: what does not fit has no speed. */
static void case_tune(void **state)
{
    static struct spawn spawn;
    char path[96], limit[32];
    char *argv[] = {"tessera", "tune", "batch",   SMALL, "--strategy",     "ddp",
                    "--ranks", "2",    "--steps", "3",   "--from",         "15",
                    "--to",    "1024", "--json",  path,  "--memory-limit", limit,
                    NULL};
    json_t *tune, *cases;
    double second, best, top = 0;

    (void)state;
    snprintf(path, sizeof(path), "%s/tune.json", folder);
    snprintf(limit, sizeof(limit), "1GB");
    tune = run_json(&spawn, argv, path, "tune");
    assert_non_null(strstr(spawn.out, "every run allocated exactly that"));
    assert_non_null(strstr(spawn.out, "larger batches than 256 are more than the 256 training"));
    cases = json_object_get(tune, "cases");
    assert_int_equal(json_array_size(cases), 5); /* 16, as a multiple of 2 ranks, ... 256 */
    best = number_of(tune, "best_batch_size");
    for (size_t i = 0; i < 5; i++)
        top = fmax(top, number_of(json_array_get(cases, i), "samples_per_s"));
    for (size_t i = 0; i < 5; i++) {
        const json_t *item = json_array_get(cases, i);
        bool nearly = number_of(item, "samples_per_s") >= 0.97 * top;

        assert_int_equal((int)number_of(item, "batch_size"), 16 << i);
        assert_true(json_is_true(json_object_get(item, "fits")));
        assert_true(number_of(item, "batch_size") < best    ? !nearly
                    : number_of(item, "batch_size") == best ? nearly
                                                            : true);
    }
    second = number_of(json_array_get(cases, 1), "memory_bytes");
    json_decref(tune);

    /* Exactly what the second needs, and no byte more. */
    snprintf(limit, sizeof(limit), "%.0fB", second);
    tune = run_json(&spawn, argv, path, "tune");
    cases = json_object_get(tune, "cases");
    for (size_t i = 0; i < 5; i++) {
        const json_t *item = json_array_get(cases, i);

        assert_int_equal(json_is_true(json_object_get(item, "fits")), i < 2);
        assert_int_equal(json_is_null(json_object_get(item, "samples_per_s")), i >= 2);
    }
    assert_int_equal(spawn_count(spawn.out, "does not fit: not run"), 3);
    assert_true(number_of(tune, "best_batch_size") <= 32);
    json_decref(tune);
}

static void case_bad(void **state)
{
    static struct spawn spawn;
    static const struct {
        int code;
        const char *phrase;
        const char *words[8];
    } table[] = {
        {2, "did you mean 'tune batch'", {"tune", "bacth"}},
        {2, "max-ranks: '65537' is out of range", {"scaling", "--max-ranks", "65537"}},
        {2, "--max-ranks limits them", {"scaling", "--ranks", "2"}},
        {2, "strategy single has one rank", {"scaling", "--strategy", "single"}},
        {2, "unknown link 'nvlnk'", {"scaling", "--links", "nvlnk"}},
        {2, "bandwidth '0GB/s' of link 'a'", {"scaling", "--links", "a:1us:0GB/s"}},
        {2, "to: '65537' is out of range", {"scaling", "--to", "65537"}},
        {2, "weak: 'maybe' is neither on nor off", {"scaling", "--weak=maybe"}},
        {2, "--batch-per-rank lets the batch grow", {"scaling", "--batch-per-rank", "8"}},
        {2, "ranks that fit: 1, 2, 4", {"scaling", "--data", "synthetic", "--max-ranks", "3"}},
        {2, "unknown option 'max-rank'", {"scaling", "--max-rank", "2"}},
        {1, "--json /no/such/x.json: cannot", {"scaling", "--json=/no/such/x.json"}},
        {1, "--json /: cannot write there", {"tune", "batch", "--json", "/"}},
        {2, "only train and sweep write run folders", {"scaling", "--run=out"}},
        {2, "--variants is an option of tessera compare", {"tune", "batch", "--variants", "a:"}},
        {2, "'64' is not a size", {"tune", "batch", "--memory-limit", "64"}},
        {2, "'-1MiB' is not a size", {"tune", "batch", "--memory-limit", "-1MiB"}},
        {2, "'infMiB' is not a size", {"tune", "batch", "--memory-limit", "infMiB"}},
        {2, "'1e3GiB' is not a size", {"tune", "batch", "--memory-limit", "1e3GiB"}},
        {2, "there is no batch from 64", {"tune", "batch", "--from", "64", "--to", "32"}},
        {2, "'0' is out of range", {"tune", "batch", "--from", "0"}},
        {1, "batch 16 needs least", {"tune", "batch", "--memory-limit", "1KiB", "--to=64"}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char *argv[24] = {(char *)"tessera"};
        static const char *const small[] = {SMALL, "--steps", "1"};
        int count = 1, code;

        for (int w = 0; w < 8 && table[i].words[w] != NULL; w++)
            argv[count++] = (char *)table[i].words[w];
        for (size_t w = 0; w < sizeof(small) / sizeof(small[0]) && table[i].words[1] != NULL; w++)
            argv[count++] = (char *)small[w];
        code = spawn_run(&spawn, argv, NULL);
        if (code != table[i].code || strstr(spawn.err, table[i].phrase) == NULL ||
            spawn_count(spawn.err, "error: ") != 1)
            fail_msg("case %zu: exit %d, expected %d with '%s' once in:\n%s", i, code,
                     table[i].code, table[i].phrase, spawn.err);
    }
}

static void case_help(void **state)
{
    static struct spawn spawn;
    char *scaling[] = {"tessera", "help", "scaling", NULL};
    char *tune[] = {"tessera", "tune", "batch", "--help", NULL};

    (void)state;
    assert_int_equal(spawn_run(&spawn, scaling, NULL), 0);
    assert_non_null(strstr(spawn.out, "(1-p) + p/N"));
    assert_non_null(strstr(spawn.out, "infiniband-hdr"));
    assert_non_null(strstr(spawn.out, "--max-ranks"));
    assert_int_equal(spawn_run(&spawn, tune, NULL), 0);
    assert_non_null(strstr(spawn.out, "--memory-limit"));
}

/* A command's options come from the environment and the configuration file, too. */
static void case_sources(void **state)
{
    static const char *const other[] = {"bench step --steps 1", "scaling", "tune batch"};
    static struct spawn spawn;
    char words[160], where[96];
    FILE *file;

    (void)state;
    snprintf(words, sizeof(words), "scaling %s/own.yaml", folder);
    snprintf(where, sizeof(where), "%s/own.yaml:1:12: max-ranks: '99999' is out of range", folder);
    file = fopen(words + strlen("scaling "), "w");
    assert_non_null(file);
    fputs("max-ranks: 99999\n", file);
    fclose(file);
    assert_int_equal(spawn_words(&spawn, words), 2);
    assert_non_null(strstr(spawn.err, where));
    setenv("TESSERA_REPEATS", "0", 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(spawn_words(&spawn, other[i]), 2);
        assert_non_null(strstr(spawn.err, "environment TESSERA_REPEATS: repeats: '0' is out of"));
    }
    assert_int_equal(spawn_words(&spawn, other[2]), 2);
    assert_non_null(strstr(spawn.err, "environment: unknown option 'TESSERA_REPEATS'"));
    unsetenv("TESSERA_REPEATS");
}

static int remove_folder(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_scaling), cmocka_unit_test(case_weak_and_shared),
        cmocka_unit_test(case_tune),    cmocka_unit_test(case_bad),
        cmocka_unit_test(case_help),    cmocka_unit_test(case_sources),
    };

    if (mkdtemp(folder) == NULL)
        return 1;
    return cmocka_run_group_tests_name("scaling", tests, NULL, remove_folder);
}
