/*
 * The configuration: order of sources, choice of parts, defaults that depend on one another, and
 * the grid check, which is compared with the sums it is about.
 */
#include "config/config.h"

#include "base/cgroup.h"
#include "base/options.h"
#include "tessera/log.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static struct tess_config *config_of(int argc, char **argv)
{
    struct tess_config *config = NULL;

    assert_int_equal(tess_config_open(argc, argv, NULL, 0, &config), TESS_OK);
    return config;
}

static void config_refused(int argc, char **argv, const char *phrase)
{
    struct tess_config *config = NULL;

    assert_int_equal(tess_config_open(argc, argv, NULL, 0, &config), TESS_ERR_USAGE);
    assert_null(config);
    if (strstr(tess_log_last_error(), phrase) == NULL)
        fail_msg("'%s' does not contain '%s'", tess_log_last_error(), phrase);
}

/* A YAML file with this text; the caller unlinks it. */
static void write_yaml(char path[64], const char *text)
{
    int fd;

    snprintf(path, 64, "/tmp/tessera_config_XXXXXX.yaml");
    fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void case_defaults(void **state)
{
    struct tess_config *config = config_of(0, NULL);
    char *spread[] = {"--strategy", "ddp"};

    (void)state;
    assert_string_equal(config->model->name, "mlp");
    assert_string_equal(config->strategy->name, "single");
    assert_int_equal(config->run.ranks, 1);
    assert_int_equal(tess_run_dtype(&config->run), TESS_F32);
    assert_true(config->run.evaluate);
    assert_non_null(config->kernel);
    assert_true(config->run.kernel[0] != '\0');
    tess_config_close(config);

    config = config_of(COUNT(spread), spread);
    assert_int_equal(config->run.ranks, 2);
    assert_string_equal(config->strategy->name, "ddp");
    tess_config_close(config);
}

static void case_sources_in_order_of_force(void **state)
{
    char path[64];
    char *words[] = {"--batch-size", "64", path, "--set", "epochs=2.5"};
    struct tess_config *config;

    (void)state;
    write_yaml(path, "model: cnn\nbatch-size: 32\nseed: 7\nstrategy: fsdp\n"
                     "fsdp:\n  reshard-after-forward: off\nddp:\n  bucket-mib: 3\nmlp:\n"
                     "  hidden: [8]\n");
    setenv("TESSERA_SEED", "9", 1);
    setenv("TESSERA_ACCUMULATE", "2", 1);
    config = config_of(COUNT(words), words);
    unsetenv("TESSERA_SEED");
    unsetenv("TESSERA_ACCUMULATE");
    unlink(path);
    assert_string_equal(config->model->name, "cnn");
    assert_string_equal(config->strategy->name, "fsdp");
    assert_int_equal(config->run.batch_size, 64);
    assert_int_equal(config->run.seed, 7);
    assert_int_equal(config->run.accumulate, 2);
    assert_true(config->run.epochs == 2.5);
    assert_true(tess_options_is_set(config->options, "fsdp.reshard-after-forward"));
    assert_false(tess_options_is_set(config->options, "grid"));
    tess_config_close(config);
}

/* Of two options for one thing that of the stronger source counts; of the same one neither does. */
static void case_two_options_for_one_thing(void **state)
{
    char path[64];
    char *by_rank[] = {path, "--batch-per-rank", "8", "--base-lr", "0.2", "--lr-scale", "linear"};
    char *by_total[] = {path, "--batch-size", "64", "--learning-rate", "0.3"};
    char *both[] = {"--batch-per-rank", "8", "--batch-size", "64"};
    char *both_rates[] = {"--base-lr", "0.2", "--learning-rate", "0.3"};
    char *too_large[] = {"--strategy", "ddp", "--ranks", "2", "--batch-per-rank", "16777216"};
    struct tess_config *config;

    (void)state;
    write_yaml(path, "strategy: ddp\nranks: 4\nbatch-size: 16\nlearning-rate: 0.1\n");
    config = config_of(COUNT(by_rank), by_rank);
    assert_int_equal(config->run.batch_size, 32);
    assert_true(config->optim.learning_rate == 4 * 0.2); /* base-batch: that of one rank */
    tess_config_close(config);
    unlink(path);

    write_yaml(path, "strategy: ddp\nranks: 4\nbatch-per-rank: 8\nbase-lr: 0.2\n"
                     "lr-scale: linear\n");
    config = config_of(COUNT(by_total), by_total);
    assert_int_equal(config->run.batch_size, 64);
    assert_true(config->optim.learning_rate == 0.3);
    tess_config_close(config);
    unlink(path);

    config_refused(COUNT(both), both, "give one");
    config_refused(COUNT(both_rates), both_rates, "give one");
    config_refused(COUNT(too_large), too_large, "more than 16777216 images");
}

/* The file is found wherever it stands among options with and without values. */
static void case_file_anywhere(void **state)
{
    char path[64];
    char *first[] = {path, "--strategy", "fsdp", "--bind"};
    char *after_switch[] = {"--bind", path, "--strategy", "fsdp"};
    char *after_part[] = {"--strategy", "fsdp", "--data.flip", path};
    char *last[] = {"--batch_size=32", "--strategy", "fsdp", "--data.shuffle", path};
    char **words[] = {first, after_switch, after_part, last};
    const int count[] = {COUNT(first), COUNT(after_switch), COUNT(after_part), COUNT(last)};

    (void)state;
    write_yaml(path, "seed: 11\n");
    for (int i = 0; i < COUNT(count); i++) {
        struct tess_config *config = config_of(count[i], words[i]);
        char text[16];

        assert_int_equal(config->run.seed, 11);
        assert_string_equal(config->strategy->name, "fsdp");
        tess_config_close(config);
        assert_true(tess_config_peek(count[i], words[i], "seed", text, sizeof(text)));
        assert_string_equal(text, "11");
        assert_false(tess_config_peek(count[i], words[i], "steps", text, sizeof(text)));
    }
    unlink(path);
}

static void case_refusals(void **state)
{
    char *unknown_model[] = {"--model", "mpl"};
    char *unknown_strategy[] = {"--strategy", "dpp"};
    char *unknown_kernel[] = {"--kernel", "fpga"};
    char *unknown_key[] = {"--lerning-rate", "1"};
    char *other_part[] = {"--strategy", "ddp", "--fsdp.reshard-after-forward", "off"};
    char *single[] = {"--strategy", "single", "--ranks", "2"};
    char *nothing[] = {"--epochs", "0"};
    char *zero[] = {"--strategy", "ddp", "--ranks", "0"};
    char *absurd[] = {"--strategy", "ddp", "--ranks", "99999999999999999999"};
    char *uneven[] = {"--strategy", "ddp", "--ranks", "3", "--batch-size", "128"};
    char *grid[] = {"--strategy", "ddp", "--ranks", "3", "--batch-size", "96", "--grid", "8"};
    char *two_files[] = {"a.yaml", "b.yaml"};

    (void)state;
    config_refused(COUNT(unknown_model), unknown_model, "known are mlp");
    config_refused(COUNT(unknown_strategy), unknown_strategy, "known are single");
    config_refused(COUNT(unknown_kernel), unknown_kernel, "fpga");
    config_refused(COUNT(unknown_key), unknown_key, "did you mean 'learning-rate'");
    config_refused(COUNT(other_part), other_part, "applies to strategy fsdp only");
    config_refused(COUNT(single), single, "--ranks 1");
    config_refused(COUNT(nothing), nothing, "nothing to do");
    config_refused(COUNT(zero), zero, "from 1 to 65536");
    config_refused(COUNT(absurd), absurd, "from 1 to 65536");
    config_refused(COUNT(uneven), uneven, "ranks that fit: 1, 2, 4, 8, 16, 32, 64");
    config_refused(COUNT(grid), grid, "ranks that fit: 1, 2, 4, 8");
    config_refused(1, two_files, "a.yaml");
}

/* ---- the grid -------------------------------------------------------------------------------- */

#define TERM_BYTES 512

/* The sum of `count` terms as one binary tree split at the largest power of two below count. */
static void tree(const char (*term)[TERM_BYTES], int count, char text[TERM_BYTES])
{
    char left[TERM_BYTES], right[TERM_BYTES];
    int split = 1;

    if (count == 1) {
        memcpy(text, term[0], TERM_BYTES);
        return;
    }
    while (2 * split < count)
        split *= 2;
    tree(term, split, left);
    tree(term + split, count - split, right);
    assert_true(snprintf(text, TERM_BYTES, "(%.250s+%.250s)", left, right) < 502);
}

/* Leaves `first` to first + count - 1, written as letters, as one tree. */
static void tree_of_leaves(int first, int count, char text[TERM_BYTES])
{
    char leaf[26][TERM_BYTES];

    for (int i = 0; i < count; i++)
        snprintf(leaf[i], TERM_BYTES, "%c", 'a' + first + i);
    tree((const char(*)[TERM_BYTES])leaf, count, text);
}

/* The gradient as a layout adds it: first inside a micro-batch, then outer over inner groups. */
static void tree_of_layout(enum tess_leaf_order order, int ranks, int micro, int grid,
                           char text[TERM_BYTES])
{
    int outer = order == TESS_LEAVES_RANK_FIRST ? ranks : micro;
    int inner = order == TESS_LEAVES_RANK_FIRST ? micro : ranks;
    int leaves = grid / (ranks * micro);
    char outer_term[26][TERM_BYTES], inner_term[26][TERM_BYTES];

    for (int o = 0; o < outer; o++) {
        for (int i = 0; i < inner; i++)
            tree_of_leaves((o * inner + i) * leaves, leaves, inner_term[i]);
        tree((const char(*)[TERM_BYTES])inner_term, inner, outer_term[o]);
    }
    tree((const char(*)[TERM_BYTES])outer_term, outer, text);
}

/*
 * A layout is accepted exactly when what it adds up is, as an expression, the tree over all leaves:
 * the claim behind "the same bits".
 */
static void case_grid_is_the_tree(void **state)
{
    struct tess_config config = {.run = {.batch_size = 24}};
    int accepted = 0, saved = dup(STDERR_FILENO);

    (void)state;
    assert_non_null(freopen("/dev/null", "w", stderr)); /* the refusals */
    for (int order = 0; order < 2; order++)
        for (int grid = 1; grid <= 24; grid++)
            for (int ranks = 1; ranks <= grid; ranks++)
                for (int micro = 1; ranks * micro <= grid; micro++) {
                    char canonical[TERM_BYTES], layout[TERM_BYTES];
                    enum tess_status status;
                    bool same = grid % (ranks * micro) == 0;

                    config.run.grid = grid;
                    config.mesh.count[TESS_AXIS_DATA] = ranks;
                    config.run.accumulate = micro;
                    status = tess_config_check_grid(&config, grid, (enum tess_leaf_order)order);
                    if (same) {
                        tree_of_leaves(0, grid, canonical);
                        tree_of_layout((enum tess_leaf_order)order, ranks, micro, grid, layout);
                        same = strcmp(canonical, layout) == 0;
                    }
                    accepted += same;
                    if (same != (status == TESS_OK))
                        fail_msg("order %d, grid %d, ranks %d, micro %d: %s, the check: %s", order,
                                 grid, ranks, micro, same ? "the tree" : "another tree",
                                 status == TESS_OK ? "fits" : "does not fit");
                }
    dup2(saved, STDERR_FILENO);
    close(saved);
    assert_true(accepted > 100);
}

/* Options that change are those of a configuration that is opened with them, errors as well. */
static void case_with(void **state)
{
    static const char *const change[][3] = {
        {"--accumulate=2", "--batch-size=64", "--mesh=data=2,stage=2"},
        {"--accumulate=3", "--batch-size=96", "--mesh=data=4"}, /* no stages for pp: one is fine */
        {"--accumulate=2", "--batch-size=63", "--mesh=data=2,stage=2"}, /* refused */
        {"--accumulate=4", "--batch-size=32", "--mesh=data=1,stage=4"},
        {"--accumulate=x", "--batch-size=32", "--mesh=data=1,stage=4"}, /* not read */
        {"--accumulate=8", "--batch-size=64", "--mesh=data=2,stage=2"},
    };
    char *argv[8] = {"--strategy", "ddp+pp", "--ranks=4", "--base-lr", "0.1"};
    struct tess_config *loaded, *fresh;
    static struct tess_config config;
    char why[512];
    (void)state;
    assert_int_equal(tess_config_load(5, argv, NULL, 0, NULL, &loaded), TESS_OK);
    for (int i = 0; i < COUNT(change); i++) {
        for (int w = 0; w < 3; w++)
            argv[5 + w] = (char *)(uintptr_t)change[i][w];
        const enum tess_status status = tess_config_open(8, argv, NULL, 0, &fresh);
        snprintf(why, sizeof(why), "%s", tess_log_last_error());
        assert_int_equal(tess_config_with(loaded, 3, argv + 5, &config), status);
        if (status != TESS_OK) {
            assert_string_equal(tess_log_last_error(), why);
            continue;
        }
        assert_true(tess_options_hash(config.options) == tess_options_hash(fresh->options));
        assert_memory_equal(&config.mesh, &fresh->mesh, sizeof(config.mesh));
        assert_int_equal(config.run.accumulate, fresh->run.accumulate);
        assert_int_equal(config.run.batch_size, fresh->run.batch_size);
        assert_true(config.optim.learning_rate == fresh->optim.learning_rate);
        assert_true(config.optim.warmup_start == fresh->optim.warmup_start);
        tess_config_close(fresh);
    }
    tess_config_close(loaded);
}

static void threads_are(const char *ranks, const char *asked, const char *kernel, int expected)
{
    char *words[] = {"--strategy", "ddp",
                     "--ranks",    (char *)(uintptr_t)ranks,
                     "--threads",  (char *)(uintptr_t)asked,
                     "--kernel",   (char *)(uintptr_t)kernel};
    struct tess_config *config = config_of(COUNT(words) - (kernel == NULL ? 2 : 0), words);

    if (!config->kernel->threaded && strcmp(asked, "0") == 0)
        expected = 1;
    assert_int_equal(config->threads, expected);
    tess_config_close(config);
}

static void ranks_are_started(void *context, const char *name, const char *value,
                              const char *origin, const struct tess_option *option)
{
    (void)context, (void)option;
    if (strcmp(name, "ranks") != 0)
        return;
    assert_string_equal(value, "2");
    assert_string_equal(origin, "Slurm");
}

/* Ranks of a job of two: as many as the program that started it says, or one. */
static void started_threads_are(int32_t cores, const char *asked, int expected)
{
    const struct tess_started place = {
        .starter = "Slurm", .rank_count = 2, .local_rank = 0, .rank_cores = cores};
    char *words[] = {"--strategy", "ddp", "--threads", (char *)(uintptr_t)asked};
    struct tess_config *config;
    assert_int_equal(tess_config_open_placed(COUNT(words), words, NULL, 0, &place, &config),
                     TESS_OK);
    assert_int_equal(config->threads, config->kernel->threaded || *asked != '0' ? expected : 1);
    tess_options_visit(config->options, ranks_are_started, NULL);
    tess_config_close(config);
}

/* As many as cores for each rank, which are those that this process may use. */
static void case_threads(void **state)
{
    cpu_set_t all, one;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    const int cores = tess_cores();
    threads_are("1", "0", NULL, cores);
    threads_are("2", "0", NULL, cores / 2 > 1 ? cores / 2 : 1);
    threads_are("128", "0", NULL, cores / 128 > 1 ? cores / 128 : 1);
    threads_are("2", "5", NULL, 5);
    threads_are("1", "0", "ref", 1);
    CPU_ZERO(&one);
    for (int core = 0; CPU_COUNT(&one) == 0; core++)
        if (CPU_ISSET(core, &all))
            CPU_SET(core, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    threads_are("1", "0", NULL, 1);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
    started_threads_are(0, "0", 1);
    started_threads_are(3, "0", 3);
    started_threads_are(1 << 20, "0", TESS_THREADS_MAX);
    started_threads_are(3, "2", 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_defaults),
        cmocka_unit_test(case_sources_in_order_of_force),
        cmocka_unit_test(case_file_anywhere),
        cmocka_unit_test(case_refusals),
        cmocka_unit_test(case_grid_is_the_tree),
        cmocka_unit_test(case_two_options_for_one_thing),
        cmocka_unit_test(case_with),
        cmocka_unit_test(case_threads),
    };

    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
