/*
 * The program as a user meets it: what it prints and writes, bad input with its exit status and
 * message, Ctrl-C, and that nothing is left behind. Runs the built program on made-up images.
 */
#include "harness/awake.h"
#include "harness/spawn.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define SMALL                                                                                      \
    "--data", "synthetic", "--synthetic-rows", "256", "--mlp.hidden", "8", "--kernel", "ref"
#define WORDS_MAX 32

static char folder[] = "/tmp/tessera_program_XXXXXX";

static int shm_count(void)
{
    DIR *shm = opendir("/dev/shm");
    int count = 0;

    for (struct dirent *entry; shm != NULL && (entry = readdir(shm)) != NULL;)
        count += strstr(entry->d_name, "tess") != NULL;
    if (shm != NULL)
        closedir(shm);
    return count;
}

/* ---- what it prints -------------------------------------------------------------------------- */

static void case_help_and_version(void **state)
{
    static struct spawn spawn;
    static const char *const words[][3] = {
        {"--help", NULL, NULL},      {"help", "train", NULL},   {"train", "--help", NULL},
        {"compare", "--help", NULL}, {"help", "bench", "step"}, {"bench", "step", "-h"},
        {"help", "train", "all"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        char *argv[5] = {(char *)"tessera", (char *)words[i][0], (char *)words[i][1],
                         (char *)words[i][2], NULL};
        assert_int_equal(spawn_run(&spawn, argv, NULL), 0);
        assert_string_equal(spawn.err, "");
        assert_non_null(strstr(spawn.out, "usage: tessera"));
        assert_non_null(strstr(spawn.out, "configs/labs/fashion"));
    }
    {
        char *argv[] = {"tessera", "--version", NULL};
        assert_int_equal(spawn_run(&spawn, argv, NULL), 0);
        assert_int_equal(strncmp(spawn.out, "tessera ", 8), 0);
    }
    {
        /* The options of the parts that are chosen are shown, not those of others. */
        char *argv[] = {"tessera", "train", "--strategy", "fsdp", "--help", "all", NULL};
        assert_int_equal(spawn_run(&spawn, argv, NULL), 0);
        assert_non_null(strstr(spawn.out, "fsdp.reshard-after-forward"));
        assert_null(strstr(spawn.out, "ddp.bucket"));
    }
}

/* The short page, one topic, and what stands where a word is missing. */
static void case_help_by_topic(void **state)
{
    static struct spawn spawn;
    (void)state;
    assert_int_equal(spawn_words(&spawn, "help train"), 0);
    assert_non_null(strstr(spawn.out, "  --strategy TEXT"));
    assert_null(strstr(spawn.out, "  --save-memory TEXT"));
    assert_non_null(strstr(spawn.out, " saving"));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(
            spawn_words(&spawn, i == 0 ? "train --help saving" : "train --help=saving"), 0);
        assert_non_null(strstr(spawn.out, "  --save-memory TEXT"));
        assert_null(strstr(spawn.out, "  --strategy TEXT"));
    }
    assert_int_equal(spawn_words(&spawn, "help train ddp"), 0);
    assert_non_null(strstr(spawn.out, "Options of ddp"));
    assert_int_equal(spawn_words(&spawn, "help train savings"), 2);
    assert_non_null(strstr(spawn.err, "did you mean 'saving'?"));
    assert_int_equal(spawn_words(&spawn, "help bench"), 0);
    assert_non_null(strstr(spawn.out, "bench kernels"));
    assert_null(strstr(spawn.out, "compare"));
    assert_int_equal(spawn_words(&spawn, "bench"), 2);
    assert_non_null(strstr(spawn.out, "bench kernels"));
    assert_int_equal(spawn_words(&spawn, "data --help"), 0);
    assert_non_null(strstr(spawn.out, "data prepare"));
    char *alone[] = {"tessera", NULL};
    assert_int_equal(spawn_run(&spawn, alone, NULL), 2);
    assert_non_null(strstr(spawn.out, "usage: tessera COMMAND"));
    assert_int_equal(spawn_words(&spawn, "train --version"), 0);
    assert_int_equal(strncmp(spawn.out, "tessera ", 8), 0);
}

/* What other programs call an option. */
static void case_other_names(void **state)
{
    static const char *const line[][2] = {
        {"train --lr 0.1", "did you mean 'learning-rate'?"},
        {"train --batch 8", "did you mean 'batch-size'?"},
        {"train --device gpu", "did you mean 'cuda'?"},
        {"train --world-size=4", "did you mean 'ranks'?"},
    };
    static struct spawn spawn;
    (void)state;
    for (size_t i = 0; i < sizeof(line) / sizeof(line[0]); i++) {
        assert_int_equal(spawn_words(&spawn, line[i][0]), 2);
        assert_non_null(strstr(spawn.err, line[i][1]));
    }
}

static void case_explain(void **state)
{
    static struct spawn spawn;
    char *argv[] = {"tessera", "train",     SMALL,   "--strategy", "fsdp", "--ranks",
                    "4",       "--explain", "--run", folder,       NULL};
    char path[64];

    (void)state;
    assert_int_equal(spawn_run(&spawn, argv, NULL), 0);
    assert_non_null(strstr(spawn.out, "command line"));
    assert_non_null(strstr(spawn.out, "fsdp.reshard-after-forward"));
    assert_non_null(strstr(spawn.out, "default"));
    assert_non_null(strstr(spawn.out, "memory per rank"));
    assert_null(strstr(spawn.out, "pid")); /* nothing was run */
    snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* ---- what it writes -------------------------------------------------------------------------- */

static const char *const kind_name[] = {"parameter",  "master",   "gradient",  "optimizer",
                                        "activation", "gathered", "bucket",    "workspace",
                                        "input",      "staging",  "redundancy"};

/* "memory" of train and compare: every kind of every rank, allocated as predicted. */
static void check_memory(const json_t *memory, size_t ranks)
{
    assert_int_equal(json_array_size(memory), ranks);
    for (size_t r = 0; r < ranks; r++) {
        const json_t *entry = json_array_get(memory, r);
        json_int_t total = 0;

        assert_int_equal(json_integer_value(json_object_get(entry, "rank")), (json_int_t)r);
        for (size_t k = 0; k < sizeof(kind_name) / sizeof(kind_name[0]); k++) {
            const json_t *predicted =
                json_object_get(json_object_get(entry, "predicted"), kind_name[k]);
            const json_t *allocated =
                json_object_get(json_object_get(entry, "allocated"), kind_name[k]);

            assert_true(json_is_integer(predicted) && json_is_integer(allocated));
            assert_int_equal(json_integer_value(predicted), json_integer_value(allocated));
            total += json_integer_value(allocated);
        }
        assert_true(total > 0);
        assert_true(json_integer_value(json_object_get(entry, "peak_rss")) > total);
    }
}

static void check_hash(const json_t *hash)
{
    const char *text = json_string_value(hash);

    assert_non_null(text);
    assert_int_equal(strlen(text), 16);
    assert_int_equal(strspn(text, "0123456789abcdef"), 16);
}

/* Train, and hand out the lines of metrics.jsonl. */
static int train_lines(char *const argv[], json_t *line[WORDS_MAX])
{
    static struct spawn spawn;
    char path[96], text[16384];
    FILE *file;
    int count = 0;

    assert_int_equal(spawn_run(&spawn, argv, NULL), 0);
    assert_string_equal(spawn.err, "");
    assert_int_equal(spawn_count(spawn.out, "pid "), 2);
    assert_non_null(strstr(spawn.out, "predicted by the memory plan = allocated"));
    snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    file = fopen(path, "r");
    assert_non_null(file);
    while (count < WORDS_MAX && fgets(text, sizeof(text), file) != NULL) {
        line[count] = json_loads(text, 0, NULL);
        assert_non_null(line[count]);
        count++;
    }
    fclose(file);
    return count;
}

static void case_metrics(void **state)
{
    /* 256 images in batches of 32: 8 steps an epoch, so 20 steps are 2.5 epochs. */
    char *argv[] = {"tessera", "train",        SMALL,  "--strategy",  "ddp", "--ranks",
                    "2",       "--batch-size", "32",   "--steps",     "20",  "--log-every",
                    "4",       "--run",        folder, "--overwrite", NULL};
    json_t *line[WORDS_MAX], *final;
    int steps = 0, epochs = 0, count = train_lines(argv, line);

    (void)state;
    assert_non_null(json_object_get(json_object_get(line[0], "run"), "options"));
    for (int i = 1; i + 1 < count; i++) {
        if (json_object_get(line[i], "times") != NULL || json_object_get(line[i], "saved") != NULL)
            continue;
        assert_true(json_is_number(json_object_get(line[i], "samples_per_s")));
        if (json_object_get(line[i], "val_loss") != NULL) {
            assert_int_equal(json_integer_value(json_object_get(line[i], "epoch")), epochs);
            assert_true(json_is_real(json_object_get(line[i], "val_accuracy")));
            assert_true(json_is_real(json_object_get(line[i], "time_s")));
            epochs++;
        } else {
            assert_true(json_is_real(json_object_get(line[i], "loss")));
            assert_true(json_is_real(json_object_get(line[i], "rate")));
            assert_non_null(json_object_get(line[i], "grad_norm"));
            assert_int_equal(json_integer_value(json_object_get(line[i], "epoch")),
                             (json_integer_value(json_object_get(line[i], "step")) - 1) / 8);
            steps++;
        }
    }
    assert_int_equal(epochs, 3);
    assert_int_equal(steps, 6); /* 1, 4, 8, 12, 16, 20 */
    final = json_object_get(line[count - 1], "final");
    check_hash(json_object_get(final, "hash"));
    check_memory(json_object_get(final, "memory"), 2);
    assert_int_equal(json_integer_value(json_object_get(final, "steps")), 20);
    assert_int_equal(json_integer_value(json_object_get(final, "ranks")), 2);
    assert_string_equal(json_string_value(json_object_get(final, "strategy")), "ddp");
    assert_string_equal(json_string_value(json_object_get(final, "precision")), "f32");
    assert_true(json_real_value(json_object_get(final, "samples_per_s")) > 0);
    assert_true(json_is_real(json_object_get(final, "val_loss")));
    assert_true(json_is_real(json_object_get(final, "val_accuracy")));
    for (int i = 0; i < count; i++)
        json_decref(line[i]);
}

/* compare's runs agree with one another and, for the same options, with train's. */
static void case_compare(void **state)
{
    static struct spawn spawn;
    static const char *const strategy[] = {"single", "dp", "ddp", "fsdp"};
    char path[96];
    char *argv[] = {"tessera",
                    "compare",
                    SMALL,
                    "--strategies",
                    "single,dp,ddp,fsdp",
                    "--ranks",
                    "2",
                    "--steps",
                    "6",
                    "--batch-size",
                    "32",
                    "--json",
                    path,
                    NULL};
    char *train[] = {"tessera", "train", SMALL,     "--strategy",  "zero1",
                     "--ranks", "2",     "--steps", "6",           "--batch-size",
                     "32",      "--run", folder,    "--overwrite", NULL};
    json_t *root, *runs, *line[WORDS_MAX];
    const char *hash;
    int count;

    (void)state;
    snprintf(path, sizeof(path), "%s/compare.json", folder);
    assert_int_equal(spawn_run(&spawn, argv, NULL), 0);
    assert_string_equal(spawn.err, "");
    assert_non_null(strstr(spawn.out, "hashes: all 4 equal"));
    assert_non_null(strstr(spawn.out, "memory: predicted = allocated"));
    root = json_load_file(path, 0, NULL);
    runs = json_object_get(root, "runs");
    assert_int_equal(json_array_size(runs), 4);
    hash = json_string_value(json_object_get(json_array_get(runs, 0), "hash"));
    for (size_t i = 0; i < 4; i++) {
        json_t *run = json_array_get(runs, i);
        size_t ranks = i == 0 ? 1 : 2;

        assert_string_equal(json_string_value(json_object_get(run, "strategy")), strategy[i]);
        assert_int_equal(json_integer_value(json_object_get(run, "ranks")), (json_int_t)ranks);
        assert_int_equal(json_integer_value(json_object_get(run, "steps")), 6);
        assert_true(json_is_real(json_object_get(run, "loss")));
        assert_int_equal(json_array_size(json_object_get(run, "sent_bytes_per_step")), ranks);
        check_hash(json_object_get(run, "hash"));
        assert_string_equal(json_string_value(json_object_get(run, "hash")), hash);
        check_memory(json_object_get(run, "memory"), ranks);
    }
    count = train_lines(train, line);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(line[count - 1], "final"), "hash")),
        hash);
    for (int i = 0; i < count; i++)
        json_decref(line[i]);
    json_decref(root);
}

/*
 * Products of the small MLP for an image of 28 x 28: forward and the weights' gradient of 784-8,
 * these and the input's gradient of 8-10. The ceiling is of just these, and of no other time; the
 * roof has the update's too.
 */
#define SMALL_FLOPS (2.0 * 2 * 784 * 8 + 3.0 * 2 * 8 * 10)

/* Is the roof below the ceiling? They are measured one after the other, and a core may be twice as
 * fast in between: then they are measured again, so many times at most. */
#define CEILING_TRIES 5

static bool check_ceiling(const json_t *line, const char *precision, double median)
{
    const char *measured = json_string_value(json_object_get(line, "ceiling_precision"));
    const double samples = json_real_value(json_object_get(line, "ceiling_samples_per_s"));
    const double flops = json_real_value(json_object_get(line, "ceiling_flops_per_s"));
    const double share = json_real_value(json_object_get(line, "ceiling_share"));

    if (!TESTS_ONEDNN) {
        assert_null(json_object_get(line, "ceiling_samples_per_s"));
        return true;
    }
    assert_true(samples > 0);
    /* oneDNN has f32 everywhere, bf16 on some processors and f16 on none. */
    assert_non_null(measured);
    if (strcmp(precision, "bf16") != 0 || strcmp(measured, "bf16") != 0)
        assert_string_equal(measured, "f32");
    assert_true(fabs(flops / samples / SMALL_FLOPS - 1) < 1e-9);
    assert_true(fabs(share / (median / samples) - 1) < 1e-9);
    /* The update takes some time, and this model has no attention. */
    const double roof = json_real_value(json_object_get(line, "roof_samples_per_s"));
    assert_true(roof > 0);
    assert_true(fabs(json_real_value(json_object_get(line, "roof_share")) / (median / roof) - 1) <
                1e-9);
    return roof < samples;
}

/* Every line that it prints; is each roof below its ceiling? */
static bool check_bench_step(void)
{
    static struct spawn spawn;
    char *argv[] = {"tessera",    "bench",   "step",      SMALL,     "--strategies",
                    "single,ddp", "--ranks", "2",         "--grids", "1,4",
                    "--steps",    "4",       "--repeats", "2",       NULL};
    char *next;
    bool below = true;

    assert_int_equal(spawn_run(&spawn, argv, NULL), 0);
    assert_int_equal(spawn_count(spawn.out, "\n"), 4); /* two strategies, two grids each */
    for (char *text = strtok_r(spawn.out, "\n", &next); text != NULL;
         text = strtok_r(NULL, "\n", &next)) {
        json_t *line = json_loads(text, 0, NULL);
        double median = json_real_value(json_object_get(line, "samples_per_s"));

        assert_true(median > 0);
        assert_true(json_real_value(json_object_get(line, "samples_per_s_min")) <= median);
        assert_true(json_real_value(json_object_get(line, "samples_per_s_max")) >= median);
        assert_true(json_real_value(json_object_get(line, "flops_per_sample")) == SMALL_FLOPS);
        below = check_ceiling(line, "f32", median) && below;
        json_decref(line);
    }
    return below;
}

static void case_bench_step(void **state)
{
    int tries = 1;

    (void)state;
    while (!check_bench_step())
        assert_true(tries++ < CEILING_TRIES);
}

static bool check_bench_step_16_bits(char *precision)
{
    static struct spawn spawn;
    char *argv[] = {"tessera",   "bench",       "step",    SMALL,     "--strategies",
                    "single",    "--precision", precision, "--steps", "4",
                    "--repeats", "1",           NULL};

    assert_int_equal(spawn_run(&spawn, argv, NULL), 0);
    assert_string_equal(spawn.err, "");
    json_t *line = json_loads(spawn.out, 0, NULL);
    assert_non_null(line);
    assert_string_equal(json_string_value(json_object_get(line, "precision")), precision);
    const bool below =
        check_ceiling(line, precision, json_real_value(json_object_get(line, "samples_per_s")));
    json_decref(line);
    return below;
}

/* The ceiling of types in which not every processor multiplies. */
static void case_bench_step_16_bits(void **state)
{
    static char *precision[] = {"bf16", "f16"};

    (void)state;
    for (int i = 0; i < (TESTS_DIVISOR > 1 ? 1 : 2); i++) { /* sanitizers: the same accesses */
        int tries = 1;
        while (!check_bench_step_16_bits(precision[i]))
            assert_true(tries++ < CEILING_TRIES);
    }
}

/* ---- bad input ------------------------------------------------------------------------------- */

static void case_bad_input(void **state)
{
    static struct spawn spawn;
    static const struct {
        int code;
        const char *phrase;
        const char *words[10];
    } table[] = {
        {2, "did you mean 'train'", {"trian"}},
        {2, "unknown command 'frobnicate'", {"frobnicate"}},
        {2, "unknown command 'export'; did you mean 'checkpoint export'?", {"export", "out"}},
        {2, "did you mean 'bench step'", {"bench", "stpe"}},
        {2, "unknown strategy 'dpp'", {"train", "--strategy", "dpp"}},
        {2, "unknown model 'mpl'", {"train", "--model", "mpl"}},
        {2, "did you mean 'learning-rate'", {"train", "--lerning-rate", "1"}},
        {2, "'f64' is not known", {"train", "--precision", "f64"}},
        {2,
         "from 1 to 65536",
         {"train", "--data", "synthetic", "--strategy", "ddp", "--ranks", "65537"}},
        {2, "from 1 to 65536", {"train", "--strategy", "ddp", "--ranks", "0"}},
        {2, "from 1 to 65536", {"train", "--strategy", "ddp", "--ranks", "-4"}},
        {2, "from 1 to 65536", {"train", "--strategy", "ddp", "--ranks", "1000000"}},
        {2, "from 1 to 65536", {"train", "--strategy", "ddp", "--ranks", "two"}},
        {2,
         "ranks that fit: 1, 2, 4, 8, 16, 32, 64",
         {"train", "--strategy", "ddp", "--ranks", "3"}},
        {2, "--ranks 1", {"train", "--strategy", "single", "--ranks", "2"}},
        {2,
         "applies to strategy fsdp only",
         {"train", "--strategy", "ddp", "--set", "fsdp.reshard-after-forward=off"}},
        {2, "no_such_file.yaml", {"train", "no_such_file.yaml"}},
        {2, "needs a value", {"train", "--batch-size"}},
        {2, "one word too many", {"train", "--data", "synthetic", "--", CONFIG, CONFIG}},
        {2, "--strategies needs a value", {"compare", "--strategies"}},
        {2, "an item of the list is empty", {"compare", "--strategies", "ddp,,fsdp"}},
        {2,
         "unknown strategy 'xyz'",
         {"compare", "--data", "synthetic", "--strategies", "single,xyz"}},
        {2, "'0', is out of range", {"bench", "step", "--ranks", "0"}},
        {1,
         "/no/such/folder: there is no such folder; give",
         {"train", "--data", "/no/such/folder"}},
        {2, "checkpoint lst: expected list,", {"checkpoint", "lst", "/no/such/folder"}},
        {1, "there is no folder /no/such", {"checkpoint", "list", "/no/such"}},
        {1, "there is no /no/such: give a run's folder", {"generate", "/no/such", "--prompt", "a"}},
        {1,
         "cannot create the run folder",
         {"train", "--data", "synthetic", "--run", "/dev/null/run"}},
        {1,
         "--json /no/such/folder/x.json: cannot create a file there",
         {"compare", "--data", "synthetic", "--json=/no/such/folder/x.json"}},
        {2, "only train and sweep write run folders", {"compare", "--run", "out"}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char *argv[12] = {(char *)"tessera"};
        int code;

        for (int w = 0; w < 10 && table[i].words[w] != NULL; w++)
            argv[w + 1] = (char *)table[i].words[w];
        code = spawn_run(&spawn, argv, NULL);
        if (code != table[i].code || strstr(spawn.err, table[i].phrase) == NULL ||
            spawn_count(spawn.err, "error: ") != 1)
            fail_msg("case %zu: exit %d, expected %d with '%s' once in:\n%s", i, code,
                     table[i].code, table[i].phrase, spawn.err);
    }
}

/* Divergence is one error with step, unit and tensor, however many ranks see it. */
static void case_not_a_number(void **state)
{
    static struct spawn spawn;
    static const char *const strategy[] = {"ddp", "dp", "single"};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char *argv[] = {"tessera",
                        "train",
                        SMALL,
                        "--strategy",
                        (char *)strategy[i],
                        "--ranks",
                        i < 2 ? "2" : "1",
                        "--learning-rate",
                        "1000",
                        "--epochs",
                        "50",
                        NULL};

        assert_int_equal(spawn_run(&spawn, argv, NULL), 1);
        assert_int_equal(spawn_count(spawn.err, "error: "), 1);
        assert_non_null(strstr(spawn.err, "step "));
        assert_non_null(strstr(spawn.err, "unit "));
        assert_non_null(strstr(spawn.err, "tensor "));
    }
}

/* A file size limit, set while it runs, stands in for a disk that fills up: the same path. */
static void case_disk_full(void **state)
{
    static struct spawn spawn;
    char *argv[] = {"tessera", "train", SMALL,     "--strategy",  "ddp",
                    "--ranks", "2",     "--steps", "150",         "--log-every",
                    "1",       "--run", folder,    "--overwrite", NULL};
    const struct rlimit limit = {6000, 6000};
    char path[96], text[8192];
    FILE *file;
    int lines = 0;

    (void)state;
    spawn_start(&spawn, argv, NULL);
    assert_true(spawn_until(&spawn, "step 1/", 30));
    assert_int_equal(prlimit(spawn.pid, RLIMIT_FSIZE, &limit, NULL), 0);
    assert_int_equal(spawn_end(&spawn, 20), 1);
    assert_true(spawn_gone(&spawn, 1));
    /* The result is there; once it says when lines are lost, and once why the status is not 0. */
    assert_non_null(strstr(spawn.out, "hash of all parameters"));
    assert_int_equal(spawn_count(spawn.err, "error: "), 1);
    assert_int_equal(spawn_count(spawn.err, "warning: cannot write"), 1);
    assert_int_equal(spawn_count(spawn.err, "metrics.jsonl"), 2);
    snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    file = fopen(path, "r");
    assert_non_null(file);
    for (; fgets(text, sizeof(text), file) != NULL; lines++) {
        json_t *line = json_loads(text, 0, NULL);
        assert_non_null(line); /* what was written before is whole */
        json_decref(line);
    }
    fclose(file);
    assert_true(lines > 3);
}

/* ---- Ctrl-C ---------------------------------------------------------------------------------- */

static void interrupt(const char *strategy, const char *ranks, int signal_number, bool group)
{
    static struct spawn spawn;
    char *argv[] = {"tessera", "train",       SMALL,     "--strategy", (char *)strategy,
                    "--ranks", (char *)ranks, "--steps", "100000000",  NULL};
    int shm_before = shm_count();

    spawn_start(&spawn, argv, NULL);
    assert_true(spawn_until(&spawn, "step 1/", 30));
    /* A terminal signals the whole group, kill(1) the launcher alone. */
    kill(group ? -spawn.pid : spawn.pid, signal_number);
    assert_int_equal(spawn_end(&spawn, 5), 130);
    assert_true(spawn_gone(&spawn, 1));
    assert_int_equal(shm_count(), shm_before);
    assert_int_equal(spawn_count(spawn.err, "error: "), 0);
    assert_int_equal(spawn_count(spawn.err, "interrupted"), 1);
}

static void case_interrupt(void **state)
{
    (void)state;
    interrupt("ddp", "2", SIGINT, false);
    interrupt("fsdp", "4", SIGINT, true);
    interrupt("dp", "2", SIGTERM, false);
    interrupt("single", "1", SIGINT, true);
    interrupt("ddp", "4", SIGTERM, true);
}

/* A rank that cannot end (stopped) holds the first Ctrl-C up; the second kills it at once. */
static void case_second_interrupt_kills(void **state)
{
    static struct spawn spawn;
    char *argv[] = {"tessera", "train", SMALL,     "--strategy", "ddp",
                    "--ranks", "2",     "--steps", "100000000",  NULL};
    pid_t child[2];
    double begin_s;

    (void)state;
    spawn_start(&spawn, argv, NULL);
    assert_true(spawn_until(&spawn, "step 1/", 30));
    assert_int_equal(spawn_children(&spawn, child, 2), 2);
    kill(child[1], SIGSTOP);
    kill(spawn.pid, SIGINT);
    usleep(700000);
    assert_int_equal(kill(spawn.pid, SIGINT), 0); /* still waiting for the stopped rank */
    begin_s = awake_s();
    assert_int_equal(spawn_end(&spawn, 5), 130);
    assert_true(awake_s() - begin_s < 3); /* the limit for an orderly end is 4 s */
    assert_true(spawn_gone(&spawn, 1));
}

/* A launcher that is killed outright takes its ranks along. */
static void case_launcher_killed(void **state)
{
    static struct spawn spawn;
    char *argv[] = {"tessera", "train", SMALL,     "--strategy", "ddp",
                    "--ranks", "4",     "--steps", "100000000",  NULL};
    int shm_before = shm_count();

    (void)state;
    spawn_start(&spawn, argv, NULL);
    assert_true(spawn_until(&spawn, "step 1/", 30));
    kill(spawn.pid, SIGKILL);
    assert_int_equal(spawn_end(&spawn, 5), 128 + SIGKILL);
    assert_true(spawn_gone(&spawn, 2));
    assert_int_equal(shm_count(), shm_before);
}

static int remove_folder(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_help_and_version),
        cmocka_unit_test(case_help_by_topic),
        cmocka_unit_test(case_other_names),
        cmocka_unit_test(case_explain),
        cmocka_unit_test(case_metrics),
        cmocka_unit_test(case_compare),
        cmocka_unit_test(case_bench_step),
        cmocka_unit_test(case_bench_step_16_bits),
        cmocka_unit_test(case_bad_input),
        cmocka_unit_test(case_not_a_number),
        cmocka_unit_test(case_disk_full),
        cmocka_unit_test(case_interrupt),
        cmocka_unit_test(case_second_interrupt_kills),
        cmocka_unit_test(case_launcher_killed),
    };

    if (mkdtemp(folder) == NULL)
        return 1;
    return cmocka_run_group_tests_name("program", tests, NULL, remove_folder);
}
