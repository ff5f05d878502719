/* tessera tune batch: the fastest batch of those that fit a memory limit by the memory plan. */
#include "base/cgroup.h"
#include "base/size.h"
#include "run/record.h"
#include "study/trial.h"
#include "tessera/check.h"
#include "text/command.h"
#include "text/json.h"
#include "text/screen.h"
#include "text/text.h"
#include "text/words.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_MAX (INT64_C(1) << 24)
#define CASES_MAX 25 /* powers of two up to BATCH_MAX */
/* A smaller batch that is nearly as fast is better: it learns more from the same data. */
#define NEARLY 0.97

struct tune_options {
    const char *memory_limit, *json;
    int64_t from, to, steps;
};

static const struct tess_option tune_option_table[] = {
    {"memory-limit", TESS_OPTION_STRING, offsetof(struct tune_options, memory_limit), "", 0, 0,
     NULL, "memory that one rank may plan, such as 512MiB or 2GB; empty: free memory / ranks"},
    {"from", TESS_OPTION_INT, offsetof(struct tune_options, from), "16", 1, BATCH_MAX, NULL,
     "smallest batch, over all ranks; made a multiple of ranks x accumulate"},
    {"to", TESS_OPTION_INT, offsetof(struct tune_options, to), "4096", 1, BATCH_MAX, NULL,
     "largest batch; from the smallest on each is twice the one before"},
    {"steps", TESS_OPTION_INT, offsetof(struct tune_options, steps), "20", 1, 1e9, NULL,
     "optimizer steps of every run"},
    {"json", TESS_OPTION_STRING, offsetof(struct tune_options, json), "", 0, 0, NULL,
     "file for the results: {\"tune\": {...}}; empty writes none"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

struct tune_case {
    int64_t batch_size;
    uint64_t memory; /* of the fullest rank, as planned */
    bool fits, as_planned;
    double samples_per_s, step_s;
    double learning_rate;
};

struct tune {
    struct tess__args args;
    struct tune_options *given; /* `from` is made a multiple of the grid */
    uint64_t limit;             /* bytes per rank */
    int64_t configured;         /* batch size of the configuration */
    struct tess_dataset *dataset;
    struct tune_case item[CASES_MAX];
    int count, best;   /* best: -1 while none is measured */
    const char *model; /* static */
    char strategy[64];
    int32_t ranks;
    int64_t data_ranks; /* of those, along the data axis */
    bool rate_follows;  /* the learning rate is scaled with the batch */
};

static const char tune_usage[] =
    "usage: tessera tune batch [CONFIG] [--memory-limit 512MiB] [--from 16] [--to 4096]\n"
    "                          [--steps K] [--json FILE] [--option value ...]\n\n"
    "Find the batch size that trains fastest within a memory limit. Batch sizes double from\n"
    "--from to --to. The memory plan, which is exact, gives for every rank how much each needs:\n"
    "what does not fit is never started. What fits is measured for --steps.\n\n"
    "The best is the smallest batch within 3 % of the highest speed: beyond it a larger batch\n"
    "costs memory and updates per epoch and gains nothing. The learning rate should follow the\n"
    "batch: --lr-scale with --base-lr and --base-batch lets it.\n\n"
    "examples\n"
    "  tessera tune batch configs/labs/fashion_cnn.yaml --strategy ddp --ranks 2\n"
    "  tessera tune batch configs/labs/fashion_mlp.yaml --memory-limit 64MiB --json tune.json\n"
    "  tessera tune batch configs/labs/fashion_cnn.yaml --precision bf16 --to 1024\n";

/* ---- the command line ------------------------------------------------------------------------ */

static enum tess_status tune_read_limit(struct tune *tune, const char *text)
{
    double bytes;
    TESS_TRY(tess_size_parse("memory-limit", text, &bytes));
    tune->limit = (uint64_t)bytes;
    return TESS_OK;
}

/* Batches must be multiples of the grid. */
static enum tess_status tune_align(struct tune *tune)
{
    const int count = tune->args.count;
    char **word = tune->args.word;
    int64_t accumulate, grid = 0, per_rank = 0;
    struct tess_mesh mesh;
    TESS_TRY(tess__trial_mesh(&tune->args, &mesh, &accumulate));
    tune->data_ranks = mesh.count[TESS_AXIS_DATA];
    tune->configured = 128;
    tess_config_peek_number(count, word, "grid", &grid);
    tess_config_peek_number(count, word, "batch-size", &tune->configured);
    tess_config_peek_number(count, word, "batch-per-rank", &per_rank);
    if (per_rank > 0)
        tune->configured = per_rank * tune->data_ranks;
    int64_t granule = grid > 0 ? grid : tune->data_ranks * accumulate;
    if (granule > 0 && tune->given->from % granule != 0)
        tune->given->from += granule - tune->given->from % granule;
    if (tune->given->from > tune->given->to)
        TESS_FAIL(TESS_ERR_USAGE,
                  "there is no batch from %" PRId64 " (a multiple of the grid, %" PRId64
                  ") to %" PRId64 ": use a larger --to",
                  tune->given->from, granule, tune->given->to);
    return TESS_OK;
}

static enum tess_status tune_read_args(struct tune *tune, const struct tess__call *call)
{
    tune->args = call->args;
    tune->given = call->values;
    tune->best = -1;
    TESS_TRY(tess__trial_check(&tune->args, tune->given->json));
    if (tune->given->memory_limit[0])
        TESS_TRY(tune_read_limit(tune, tune->given->memory_limit));
    return tune_align(tune);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static enum tess_status tune_open(struct tune *tune, int64_t batch_size, struct tess__trial *trial)
{
    struct tess__trial_choice choice = {.steps = tune->given->steps, .batch_size = batch_size};
    TESS_TRY(tess__trial_open(trial, &tune->args, &choice, &tune->dataset));
    trial->run.warm_steps = tune->given->steps / 4;
    return TESS_OK;
}

static enum tess_status tune_plan_one(struct tune *tune, int64_t batch_size)
{
    struct tess__trial trial = {0};
    struct tune_case *item = &tune->item[tune->count];
    const struct tess_optim_options *optim;
    enum tess_status status;
    TESS_TRY_GOTO(status, close_trial, tune_open(tune, batch_size, &trial));
    optim = &trial.config->optim;
    *item = (struct tune_case){.batch_size = batch_size, .learning_rate = optim->learning_rate};
    for (int32_t r = 0; r < trial.run.rank_count; r++)
        if (tess__run_predicted(&trial.run, r)->total > item->memory)
            item->memory = tess__run_predicted(&trial.run, r)->total;
    tune->model = trial.config->model->name;
    snprintf(tune->strategy, sizeof(tune->strategy), "%s", trial.config->run.strategy);
    tune->ranks = trial.run.rank_count;
    tune->rate_follows = optim->base_rate > 0 && optim->rate_scale != 0 && optim->base_batch > 0;
    tune->count++;

close_trial:
    tess__trial_close(&trial);
    return status;
}

/* Every batch, planned on every rank; a batch larger than the data set is not tried. */
static enum tess_status tune_plan(struct tune *tune)
{
    for (int64_t batch = tune->given->from; batch <= tune->given->to && tune->count < CASES_MAX;
         batch *= 2) {
        if (tune->dataset && batch > tune->dataset->train.count)
            break;
        TESS_TRY(tune_plan_one(tune, batch));
    }
    if (!tune->given->memory_limit[0]) {
        const double free_bytes =
            tess_memory_free("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup");
        if (free_bytes == HUGE_VAL)
            TESS_FAIL(TESS_ERR_UNSUPPORTED,
                      "the kernel does not report the free memory: give --memory-limit");
        tune->limit = (uint64_t)(free_bytes / tune->ranks);
    }
    for (int i = 0; i < tune->count; i++)
        tune->item[i].fits = tune->item[i].memory <= tune->limit;
    return TESS_OK;
}

static enum tess_status tune_measure_one(struct tune *tune, struct tune_case *item)
{
    struct tess__trial trial = {0};
    enum tess_status status;
    char sign[64];
    snprintf(sign, sizeof(sign), "batch %" PRId64 " of at most %" PRId64, item->batch_size,
             tune->given->to);
    TESS_TRY_GOTO(status, close_trial, tune_open(tune, item->batch_size, &trial));
    TESS_TRY_GOTO(status, close_trial, tess__trial_run(&trial, sign));
    item->samples_per_s = trial.run.final.samples_per_s;
    item->step_s = trial.run.rank[0].step.total_s;
    item->as_planned = tess__run_as_predicted(&trial.run);

close_trial:
    tess__trial_close(&trial);
    return status;
}

static enum tess_status tune_measure(struct tune *tune)
{
    const struct tune_case *smallest = &tune->item[0];
    double most = 0;
    char need[TESS__TEXT_BYTES], limit[TESS__TEXT_BYTES];
    for (int i = 0; i < tune->count; i++) {
        if (tune->item[i].memory < smallest->memory)
            smallest = &tune->item[i];
        if (!tune->item[i].fits)
            continue;
        TESS_TRY(tune_measure_one(tune, &tune->item[i]));
        most = fmax(most, tune->item[i].samples_per_s);
    }
    for (int i = tune->count - 1; i >= 0; i--)
        if (tune->item[i].fits && tune->item[i].samples_per_s >= NEARLY * most)
            tune->best = i;
    if (tune->best < 0)
        TESS_FAIL(TESS_ERR_MEMORY,
                  "no batch from %" PRId64 " to %" PRId64 " fits %s per rank: batch %" PRId64
                  " needs least, %s; give a larger --memory-limit, a strategy that shards, or a "
                  "smaller --from",
                  tune->given->from, tune->given->to, tess__text_bytes((double)tune->limit, limit),
                  smallest->batch_size, tess__text_bytes((double)smallest->memory, need));
    return TESS_OK;
}

/* ---- results --------------------------------------------------------------------------------- */

static void tune_print_rate(const struct tune *tune)
{
    const struct tune_case *best = &tune->item[tune->best];
    if (tune->rate_follows)
        printf("learning rate: %g at this batch, scaled by --lr-scale\n", best->learning_rate);
    else if (best->batch_size != tune->configured)
        printf("learning rate: %g is for batch %" PRId64 "; scaled linearly to this one it is %g: "
               "--base-lr %g --base-batch %" PRId64
               " --lr-scale linear in place of --learning-rate, with --warmup 5 where the batch is "
               "many times larger\n",
               best->learning_rate, tune->configured,
               best->learning_rate * (double)best->batch_size / (double)tune->configured,
               best->learning_rate, tune->configured);
}

static void tune_print(const struct tune *tune)
{
    const struct tune_case *last = &tune->item[tune->count - 1], *best = &tune->item[tune->best];
    const struct tess__words words = tess__words_of(tune->dataset);
    char text[TESS__TEXT_BYTES];
    bool as_planned = true;
    FILE *former = tess__screen_begin();
    printf("\n%s under %s on %d rank%s; at most %s per rank (%s); %" PRId64 " steps each\n",
           tune->model, tune->strategy, tune->ranks, tune->ranks > 1 ? "s" : "",
           tess__text_bytes((double)tune->limit, text),
           tune->given->memory_limit[0] ? "--memory-limit" : "free memory / ranks",
           tune->given->steps);
    printf("%9s %9s %12s %10s %10s %8s\n", "batch", "per rank", "memory", words.rate, "step",
           "of best");
    for (int i = 0; i < tune->count; i++) {
        const struct tune_case *item = &tune->item[i];
        printf("%9" PRId64 " %9" PRId64 " %12s", item->batch_size,
               item->batch_size / tune->data_ranks, tess__text_bytes((double)item->memory, text));
        if (!item->fits) {
            printf("   does not fit: not run\n");
            continue;
        }
        as_planned = as_planned && item->as_planned;
        printf(" %10s", tess__words_rate(&words, item->samples_per_s, text));
        printf(" %7.2f ms %6.0f %%%s\n", 1e3 * item->step_s,
               100 * item->samples_per_s / best->samples_per_s, i == tune->best ? "  <- best" : "");
    }
    printf("memory: of the fullest rank as planned; %s\n",
           as_planned ? "every run allocated exactly that" : "runs allocated something ELSE");
    if (last->batch_size <= tune->given->to / 2)
        printf("larger batches than %" PRId64 " are more than the %" PRId64 " training %s\n",
               last->batch_size, tune->dataset->train.count, words.rows);
    printf("best: batch %" PRId64 ", the smallest within 3 %% of the highest %s\n",
           best->batch_size, words.rate);
    tune_print_rate(tune);
    tess__screen_end(former);
}

static enum tess_status tune_write(const struct tune *tune)
{
    json_t *root;
    if (!tune->given->json[0])
        return TESS_OK;
    json_t *cases = json_array();
    for (int i = 0; i < tune->count; i++) {
        const struct tune_case *item = &tune->item[i];
        json_array_append_new(
            cases,
            json_pack("{s:I, s:I, s:b, s:o, s:o}", "batch_size", (json_int_t)item->batch_size,
                      "memory_bytes", (json_int_t)item->memory, "fits", item->fits, "samples_per_s",
                      tess__json_number(item->fits ? item->samples_per_s : NAN), "step_s",
                      tess__json_number(item->fits ? item->step_s : NAN)));
    }
    root =
        json_pack("{s:{s:s, s:s, s:i, s:I, s:I, s:o, s:I}}", "tune", "model", tune->model,
                  "strategy", tune->strategy, "ranks", tune->ranks, "sample_tokens",
                  tess__record_sample_tokens(tune->dataset), "limit_bytes", (json_int_t)tune->limit,
                  "cases", cases, "best_batch_size", (json_int_t)tune->item[tune->best].batch_size);
    return tess__record_write(tune->given->json, root);
}

static int tune_command(struct tess__call *call)
{
    struct tune tune = {0};
    enum tess_status status = tune_read_args(&tune, call);
    if (status == TESS_OK)
        status = tune_plan(&tune);
    if (status == TESS_OK)
        status = tune_measure(&tune);
    if (status == TESS_OK) {
        tune_print(&tune);
        status = tune_write(&tune);
    }
    tess_dataset_close(tune.dataset);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_tune_batch = {
    .name = "tune batch",
    .summary = "the fastest batch that fits a memory limit",
    .usage = tune_usage,
    .table = tune_option_table,
    .options_size = sizeof(struct tune_options),
    .reads = TESS__READS_SERIES,
    .run = tune_command,
};
