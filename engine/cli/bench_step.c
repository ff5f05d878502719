/*
 * tessera bench step: speed of training steps, per strategy, rank count and grid. One JSON line
 * per case on stdout; medians over repeats, each a run of its own. Evaluation, start-up and the
 * first steps are left out.
 */
#include "cli/command.h"
#include "cli/product.h"
#include "cli/record.h"
#include "cli/text.h"
#include "cli/trial.h"
#include "tessera/check.h"
#include "tessera/version.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STRATEGIES_DEFAULT "single,dp,ddp,zero1,zero2,fsdp"
#define RANKS_DEFAULT      "1,2,4"
#define GRIDS_DEFAULT      "1"
#define STEPS_DEFAULT      "30"
#define REPEATS_DEFAULT    "5"
#define REPEATS_MAX        99
#define STEPS_MAX          INT64_C(1000000000)
#define GRID_MAX           (INT64_C(1) << 20)

/* Shown by --help; their values are taken out of the words before the configuration sees them. */
struct bench_options {
    const char *strategies, *grids;
    int64_t repeats;
};

static const struct tess_option bench_option_table[] = {
    {"strategies", TESS_OPTION_STRING, offsetof(struct bench_options, strategies),
     STRATEGIES_DEFAULT, 0, 0, NULL, "strategies, or products such as fsdp+tp, to measure"},
    {"grids", TESS_OPTION_STRING, offsetof(struct bench_options, grids), GRIDS_DEFAULT, 0, 0, NULL,
     "grids to measure; one that is less than ranks of the data axis x accumulate is taken as "
     "that"},
    {"repeats", TESS_OPTION_INT, offsetof(struct bench_options, repeats), REPEATS_DEFAULT, 1,
     REPEATS_MAX, NULL, "runs per case; the median is reported"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

/* What the command line asks for; lists point into `text`. */
struct bench {
    struct tess__args args;
    char text[3][256];
    const char *strategy[TESS__LIST_MAX];
    int strategy_count;
    int64_t ranks[TESS__LIST_MAX], grid[TESS__LIST_MAX];
    int rank_count, grid_count;
    int64_t steps, repeats;
    struct tess_dataset *dataset;
};

static enum tess_status bench_help(int argc, char **argv)
{
    struct bench_options target;
    struct tess_config_table table = {"", bench_option_table, &target};

    printf(
        "usage: tessera bench step [CONFIG] [--strategies a,b] [--ranks 1,2,4] [--grids 1,8]\n"
        "                          [--steps K] [--repeats R] [--option value ...]\n\n"
        "Measure training steps: one JSON line per strategy, rank count and grid, with the median\n"
        "images/s or tokens/s over the repeats, the spread, and the share of time spent waiting "
        "for other\n"
        "ranks. A run is " STEPS_DEFAULT
        " steps unless --steps says otherwise; its first steps do not count.\n\n"
        "examples\n"
        "  tessera bench step configs/labs/fashion_mlp.yaml --strategies ddp,fsdp --ranks 2\n"
        "  tessera bench step configs/labs/fashion_cnn.yaml --strategies single,ddp --grids "
        "1,8\n\n");
    return tess_config_print_help(argc, argv, &table, 1);
}

/* Take a list option out of the words; its items point into `text`. */
static enum tess_status bench_take_list(struct bench *bench, const char *name, const char *fallback,
                                        char text[256], const char *item[TESS__LIST_MAX],
                                        int *count_out)
{
    const char *list = fallback;

    TESS_TRY(tess__args_take(&bench->args, name, &list));
    if (strlen(list) >= 256)
        TESS_FAIL(TESS_ERR_USAGE, "--%s is longer than 255 characters", name);
    snprintf(text, 256, "%s", list);
    return tess__list_split(name, text, item, count_out);
}

static enum tess_status bench_take_numbers(struct bench *bench, const char *name,
                                           const char *fallback, int64_t max, char text[256],
                                           int64_t value[TESS__LIST_MAX], int *count_out)
{
    const char *item[TESS__LIST_MAX];

    TESS_TRY(bench_take_list(bench, name, fallback, text, item, count_out));
    for (int i = 0; i < *count_out; i++)
        TESS_TRY(tess__list_number(name, item[i], 1, max, &value[i]));
    return TESS_OK;
}

static enum tess_status bench_read_args(struct bench *bench)
{
    const char *number;

    TESS_TRY(bench_take_list(bench, "strategies", STRATEGIES_DEFAULT, bench->text[0],
                             bench->strategy, &bench->strategy_count));
    TESS_TRY(bench_take_numbers(bench, "ranks", RANKS_DEFAULT, TESS_WORLD_RANKS_MAX, bench->text[1],
                                bench->ranks, &bench->rank_count));
    TESS_TRY(bench_take_numbers(bench, "grids", GRIDS_DEFAULT, GRID_MAX, bench->text[2],
                                bench->grid, &bench->grid_count));
    number = STEPS_DEFAULT;
    TESS_TRY(tess__args_take(&bench->args, "steps", &number));
    TESS_TRY(tess__list_number("steps", number, 1, STEPS_MAX, &bench->steps));
    number = REPEATS_DEFAULT;
    TESS_TRY(tess__args_take(&bench->args, "repeats", &number));
    return tess__list_number("repeats", number, 1, REPEATS_MAX, &bench->repeats);
}

static int bench_compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static enum tess_status bench_print(const struct bench *bench, const struct tess__run *run,
                                    double *speed, double *share)
{
    const struct tess_run_options *options = &run->config->run;
    size_t count = (size_t)bench->repeats;
    double median, median_share;
    char machine[128];
    cpu_set_t cores;
    json_t *line;

    qsort(speed, count, sizeof *speed, bench_compare_doubles);
    qsort(share, count, sizeof *share, bench_compare_doubles);
    median = (speed[(count - 1) / 2] + speed[count / 2]) / 2;
    median_share = (share[(count - 1) / 2] + share[count / 2]) / 2;
    tess__text_machine(machine);
    CPU_ZERO(&cores);
    (void)sched_getaffinity(0, sizeof cores, &cores);
    line = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:I, s:s, s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:s, "
        "s:s, "
        "s:i}",
        "bench", "step", "model", run->config->model->name, "strategy", run->config->run.strategy,
        "ranks", run->rank_count, "grid", tess_engine_plan_of(run->planned)->grid, "threads",
        (json_int_t)options->threads, "precision", tess_dtype_name(tess_run_dtype(options)),
        "kernel", run->config->kernel->name, "batch_size", (json_int_t)options->batch_size,
        "samples_per_s", tess__record_number(median), "samples_per_s_min",
        tess__record_number(speed[0]), "samples_per_s_max", tess__record_number(speed[count - 1]),
        "step_us", tess__record_number(median > 0 ? 1e6 * (double)options->batch_size / median : 0),
        "comm_share", tess__record_number(median_share), "steps", (json_int_t)bench->steps,
        "repeats", (json_int_t)bench->repeats, "version", TESS_VERSION, "machine", machine, "cores",
        CPU_COUNT(&cores));
    json_object_set_new(line, "mesh", tess__record_mesh(run));
    tess__record_rate(line, run->dataset, median);
    if (line == NULL || json_dumpf(line, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF ||
        fflush(stdout) != 0) {
        json_decref(line);
        TESS_FAIL(TESS_ERR_IO, "cannot write the results to stdout");
    }
    json_decref(line);
    return TESS_OK;
}

static enum tess_status bench_case(struct bench *bench, const struct tess__args *words,
                                   const struct tess__trial_choice *choice)
{
    struct tess__trial trial = {0};
    double speed[REPEATS_MAX], share[REPEATS_MAX];
    enum tess_status status;

    TESS_TRY_GOTO(status, close_trial, tess__trial_open(&trial, words, choice, &bench->dataset));
    trial.run.warm_steps = bench->steps / 4;
    for (int64_t i = 0; i < bench->repeats; i++) {
        TESS_TRY_GOTO(status, close_trial, tess__trial_run(&trial, NULL));
        speed[i] = trial.run.final.samples_per_s;
        share[i] = trial.run.final.comm_share;
    }
    status = bench_print(bench, &trial.run, speed, share);

close_trial:
    tess__trial_close(&trial);
    return status;
}

/* All grids of one strategy on so many ranks. */
static enum tess_status bench_grids(struct bench *bench, const char *strategy, int64_t ranks)
{
    struct tess__trial_choice choice = {
        .strategy = strategy, .ranks = ranks, .steps = bench->steps};
    struct tess__args words;
    struct tess__variant_shape shape;
    int64_t previous = 0;

    TESS_TRY(tess__product_words(&bench->args, strategy, bench->strategy, bench->strategy_count,
                                 &words));
    TESS_TRY(tess__trial_shape(&words, &choice, &shape));
    for (int g = 0; g < bench->grid_count; g++) {
        const int64_t least = shape.ranks * shape.accumulate;

        choice.grid = bench->grid[g] > least ? bench->grid[g] : least;
        if (choice.grid == previous) /* two grids below the least are one case */
            continue;
        previous = choice.grid;
        TESS_TRY(bench_case(bench, &words, &choice));
    }
    return TESS_OK;
}

static enum tess_status bench_run(struct bench *bench)
{
    for (int s = 0; s < bench->strategy_count; s++) {
        bool single = strcmp(bench->strategy[s], "single") == 0;

        for (int r = 0; r < (single ? 1 : bench->rank_count); r++)
            TESS_TRY(bench_grids(bench, bench->strategy[s], single ? 1 : bench->ranks[r]));
    }
    return TESS_OK;
}

int tess__command_bench_step(int argc, char **argv)
{
    struct bench bench = {0};
    enum tess_status status = tess__args_init(&bench.args, argc, argv);

    if (status == TESS_OK && tess__args_has(&bench.args, "help"))
        return tess_status_exit_code(bench_help(argc, argv));
    if (status == TESS_OK)
        status = bench_read_args(&bench);
    if (status == TESS_OK)
        status = bench_run(&bench);
    tess_dataset_close(bench.dataset);
    return tess_status_exit_code(status);
}
