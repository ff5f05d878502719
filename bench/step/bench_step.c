/*
 * tessera bench step: speed of training steps, per strategy, rank count and grid. One JSON line
 * per case on stdout; medians over repeats, each a run of its own. Evaluation, start-up and the
 * first steps are left out.
 */
#include "base/cgroup.h"
#include "bench/bench.h"
#include "bench/step/bench_ceiling.h"
#include "bench/step/bench_roof.h"
#include "run/record.h"
#include "study/product.h"
#include "study/trial.h"
#include "tessera/check.h"
#include "tessera/version.h"
#include "text/command.h"
#include "text/json.h"
#include "text/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPEATS_MAX 99

struct bench_options {
    const char *strategies;
    struct tess_ints ranks, grids;
    int64_t steps, repeats;
    bool ceiling;
};

#define BENCH_FIELD(member) offsetof(struct bench_options, member)

static const struct tess_option bench_option_table[] = {
    TESS_ROW_STRING("strategies", BENCH_FIELD(strategies), "single,dp,ddp,zero1,zero2,fsdp",
                    "strategies, or products such as fsdp+tp, to measure"),
    TESS_ROW_INTS("ranks", BENCH_FIELD(ranks), "1,2,4", 1, TESS_RANKS_MAX,
                  "numbers of ranks to measure; single runs on one rank"),
    TESS_ROW_INTS(
        "grids", BENCH_FIELD(grids), "1", 1, 1 << 20,
        "grids to measure; one that is less than ranks of the data axis x accumulate is taken as "
        "that"),
    TESS_ROW_INT("steps", BENCH_FIELD(steps), "30", 1, 1e9,
                 "optimizer steps of a run; the first quarter is not measured"),
    TESS_ROW_INT("repeats", BENCH_FIELD(repeats), "5", 1, REPEATS_MAX,
                 "runs per case; the median is reported"),
    TESS_ROW_BOOL(
        "ceiling", BENCH_FIELD(ceiling), "on",
        "also measure the model's products alone, and all that a step of the layout cannot do "
        "without, on all cores, and print the shares of these speeds which the steps "
        "reach"),
    TESS_ROW_END,
};

struct bench {
    const struct tess__args *args;
    const struct bench_options *options;
    char strategies[256];
    const char *strategy[TESS__LIST_MAX]; /* [strategy_count] in `strategies` */
    int strategy_count;
    struct tess_dataset *dataset;
    int cores;
    /* What the products alone allow, and batch and rows that it was measured for; 0: not yet. */
    struct tess__bench_ceiling ceiling;
    int64_t ceiling_batch, ceiling_rows;
    double roof_samples_per_s; /* of the latest case */
};

static const char bench_usage[] =
    "usage: tessera bench step [CONFIG] [--strategies a,b] [--ranks 1,2,4] [--grids 1,8]\n"
    "                          [--steps K] [--repeats R] [--option value ...]\n"
    "\n"
    "Measure training steps: one JSON line per strategy, rank count and grid, with the median\n"
    "images/s or tokens/s over the repeats, its range, and the share of time that ranks wait\n"
    "for other ranks. ceiling_share is the speed by that of the products alone, measured here\n"
    "on all cores at once with the faster of these kernels and oneDNN's. Where oneDNN has no\n"
    "product of the run's type, ceiling_precision is f32, and the f32 products of both count\n"
    "beside the run's. roof_share is the same by products, attention, norms, sums and updates\n"
    "in the step's order, on arrays as large as the step's, without waits and all else.\n"
    "\n"
    "examples\n"
    "  tessera bench step configs/labs/fashion_mlp.yaml --strategies ddp,fsdp --ranks 2\n"
    "  tessera bench step configs/labs/fashion_cnn.yaml --strategies single,ddp --grids 1,8\n";

static enum tess_status bench_print(const struct bench *bench, const struct tess__run *run,
                                    double *speed, double *share)
{
    const struct tess_run_options *options = &run->config->run;
    size_t count = (size_t)bench->options->repeats;
    char machine[128];
    tess__bench_sort(speed, count);
    tess__bench_sort(share, count);
    double median = (speed[(count - 1) / 2] + speed[count / 2]) / 2;
    double median_share = (share[(count - 1) / 2] + share[count / 2]) / 2;
    tess__text_machine(machine);
    json_t *line = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:I, s:s, s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:s, "
        "s:s, "
        "s:i}",
        "bench", "step", "model", run->config->model->name, "strategy", run->config->run.strategy,
        "ranks", run->rank_count, "grid", tess_engine_plan_of(run->planned)->grid, "threads",
        (json_int_t)run->config->threads, "precision", tess_dtype_name(tess_run_dtype(options)),
        "kernel", run->config->kernel->name, "batch_size", (json_int_t)options->batch_size,
        "samples_per_s", tess__json_number(median), "samples_per_s_min",
        tess__json_number(speed[0]), "samples_per_s_max", tess__json_number(speed[count - 1]),
        "step_us", tess__json_number(median > 0 ? 1e6 * (double)options->batch_size / median : 0),
        "comm_share", tess__json_number(median_share), "steps", (json_int_t)bench->options->steps,
        "repeats", (json_int_t)bench->options->repeats, "version", TESS_VERSION, "machine", machine,
        "cores", bench->cores);
    json_object_set_new(line, "mesh", tess__record_mesh(run));
    json_object_set_new(line, "parameters", json_integer((json_int_t)run->flops.parameters));
    json_object_set_new(line, "flops_per_sample",
                        tess__json_number(tess_flops_causal(&run->flops)));
    tess__record_rate(line, run->dataset, median);
    if (bench->ceiling.samples_per_s > 0)
        json_object_update_new(line,
                               json_pack("{s:f, s:f, s:s, s:f, s:f, s:f}", "ceiling_samples_per_s",
                                         bench->ceiling.samples_per_s, "ceiling_flops_per_s",
                                         bench->ceiling.flops_per_s, "ceiling_precision",
                                         tess_dtype_name(bench->ceiling.dtype), "ceiling_share",
                                         median / bench->ceiling.samples_per_s,
                                         "roof_samples_per_s", bench->roof_samples_per_s,
                                         "roof_share", median / bench->roof_samples_per_s));
    if (!line || json_dumpf(line, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF ||
        fflush(stdout) != 0) {
        json_decref(line);
        TESS_FAIL(TESS_ERR_IO, "cannot write the results to stdout");
    }
    json_decref(line);
    return TESS_OK;
}

/* The ceiling once for all in turn that multiply as many rows at once, the roof after each run of a
 * case, of which the best counts: the machine's speed changes. */
static enum tess_status bench_ceiling(struct bench *bench, const struct tess__trial *trial)
{
    const struct tess_config *config = trial->config;
    const int64_t batch = config->run.batch_size;
    const int64_t rows = tess__bench_ceiling_rows(config, bench->cores);
    const bool gathers = tess_engine_plan_of(trial->run.planned)->param_extent == TESS_EXTENT_SHARD;
    double roof = 0;
    if (!bench->options->ceiling)
        return TESS_OK;
    if (batch != bench->ceiling_batch || rows != bench->ceiling_rows) {
        free(bench->ceiling.choice);
        bench->ceiling_batch = batch;
        bench->ceiling_rows = rows;
        TESS_TRY(tess__bench_ceiling(config, bench->dataset, bench->cores, &bench->ceiling));
    }
    TESS_TRY(
        tess__bench_roof(config, bench->dataset, bench->cores, gathers, &bench->ceiling, &roof));
    bench->roof_samples_per_s = fmax(bench->roof_samples_per_s, roof);
    return TESS_OK;
}

static enum tess_status bench_case(struct bench *bench, const struct tess__args *words,
                                   const struct tess__trial_choice *choice)
{
    struct tess__trial trial = {0};
    double speed[REPEATS_MAX], share[REPEATS_MAX];
    enum tess_status status;
    TESS_TRY_GOTO(status, close_trial, tess__trial_open(&trial, words, choice, &bench->dataset));
    trial.run.warm_steps = bench->options->steps / 4;
    bench->roof_samples_per_s = 0;
    for (int64_t i = 0; i < bench->options->repeats; i++) {
        TESS_TRY_GOTO(status, close_trial, tess__trial_run(&trial, NULL));
        speed[i] = trial.run.final.samples_per_s;
        share[i] = trial.run.final.comm_share;
        TESS_TRY_GOTO(status, close_trial, bench_ceiling(bench, &trial));
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
        .strategy = strategy, .ranks = ranks, .steps = bench->options->steps};
    struct tess__args words;
    struct tess__variant_shape shape;
    int64_t previous = 0;
    TESS_TRY(
        tess__product_words(bench->args, strategy, bench->strategy, bench->strategy_count, &words));
    TESS_TRY(tess__trial_shape(&words, &choice, &shape));
    for (int g = 0; g < bench->options->grids.count; g++) {
        const int64_t least = shape.ranks * shape.accumulate;
        choice.grid = bench->options->grids.value[g];
        if (choice.grid < least)
            choice.grid = least;
        if (choice.grid == previous) /* two grids below the least are one case */
            continue;
        previous = choice.grid;
        TESS_TRY(bench_case(bench, &words, &choice));
    }
    return TESS_OK;
}

static enum tess_status bench_run(struct bench *bench)
{
    const struct bench_options *options = bench->options;
    if (strlen(options->strategies) >= sizeof(bench->strategies))
        TESS_FAIL(TESS_ERR_USAGE, "--strategies is longer than %zu characters",
                  sizeof(bench->strategies) - 1);
    snprintf(bench->strategies, sizeof(bench->strategies), "%s", options->strategies);
    TESS_TRY(
        tess__list_split("strategies", bench->strategies, bench->strategy, &bench->strategy_count));
    for (int s = 0; s < bench->strategy_count; s++) {
        bool single = strcmp(bench->strategy[s], "single") == 0;
        for (int r = 0; r < (single ? 1 : options->ranks.count); r++)
            TESS_TRY(bench_grids(bench, bench->strategy[s], single ? 1 : options->ranks.value[r]));
    }
    return TESS_OK;
}

static int bench_command(struct tess__call *call)
{
    struct bench bench = {.args = &call->args, .options = call->values};
    bench.cores = tess_cores();
    enum tess_status status = bench_run(&bench);
    free(bench.ceiling.choice);
    tess_dataset_close(bench.dataset);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_bench_step = {
    .name = "bench step",
    .summary = "speed per strategy, ranks and grid",
    .usage = bench_usage,
    .table = bench_option_table,
    .options_size = sizeof(struct bench_options),
    .reads = TESS__READS_SERIES,
    .run = bench_command,
};
