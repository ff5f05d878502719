/* Ranks as threads or as processes around the engine; what they find out lies in shared memory. */
#include "runs.h"

#include "core/config.h"
#include "core/engine.h"
#include "harness/world.h"
#include "tessera/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define RUN_WORDS_MAX 64

/* Buckets of a few KiB, so that there are several and units share them. */
#define RUN_BUCKETS(name) "--" name ".first-bucket-mib 0.002 --" name ".bucket-mib 0.006"

const struct run_layout run_layouts[] = {
    {"dp", ""},
    {"ddp", RUN_BUCKETS("ddp")},
    {"ddp", "--ddp.overlap=off"},
    {"ddp", "--ddp.sync-every-micro-batch=on " RUN_BUCKETS("ddp")},
    {"zero1", RUN_BUCKETS("zero1")},
    {"zero2", RUN_BUCKETS("zero2")},
    {"zero2", "--zero2.first-bucket-mib 0 --zero2.bucket-mib 0"},
    {"fsdp", ""},
    {"fsdp", "--fsdp.keep-last 2"},
    {"fsdp", "--fsdp.reshard-after-forward=off"},
    {"hsdp", ""},
};
const int run_layout_count = sizeof run_layouts / sizeof run_layouts[0];

/* What one rank is given, and its answers. */
struct run_rank {
    const struct run *run;
    const struct tess_config *config;
    const struct tess_dataset *dataset;
    int32_t rank;
    uint64_t hash;
    double loss, grad_norm, test_loss, test_accuracy;
    struct run_outcome outcome; /* of this rank: its own entries */
};

static enum tess_status run_open_config(const struct run *run, struct tess_config **config_out)
{
    char words[1024];
    char *argv[RUN_WORDS_MAX];
    int argc = 0;
    snprintf(words, sizeof words,
             "--strategy %s --ranks %d --kernel %s --data synthetic --steps %d %s", run->strategy,
             (int)run->rank_count, run->kernel, (int)run->steps, run->options);
    for (char *rest = words, *word; (word = strsep(&rest, " ")) != NULL;) {
        assert_true(argc < RUN_WORDS_MAX);
        if (*word != '\0')
            argv[argc++] = word;
    }
    return tess_config_open(argc, argv, NULL, 0, config_out);
}

/* Rows of 6 x 6, five classes: nothing divides anything. */
static enum tess_status run_open_data(struct tess_dataset **dataset_out)
{
    return tess_dataset_open_synthetic(tess_shape3(6, 6, 1), 5, 192, 50, 3, dataset_out);
}

static void run_read_memory(const struct tess_engine *engine,
                            uint64_t bytes[TESS_MEMORY_KIND_COUNT])
{
    for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
        bytes[k] = tess_memory_bytes(tess_engine_memory(engine), (enum tess_memory_kind)k);
}

static enum tess_status run_steps(struct run_rank *mine, struct tess_engine *engine)
{
    struct run_outcome *outcome = &mine->outcome;
    struct tess_step_result result;
    uint64_t before = 0, after = 0;
    double wait_s;
    for (int32_t i = 0; i < mine->run->steps; i++) {
        /* Traffic is of a step without the loss, which is the engine's own and not the strategy's.
         */
        const bool last = i + 1 == mine->run->steps;
        const struct tess_comm_stats stats = tess_engine_comm(engine)->stats;
        tess_engine_traffic(engine, &before, &wait_s);
        TESS_TRY(tess_engine_step(engine, last, &result));
        if (!last) {
            tess_engine_traffic(engine, &after, &wait_s);
            outcome->sent[mine->rank] = after - before;
            for (int c = 0; c < TESS_COLLECTIVE_COUNT; c++)
                outcome->calls[c] = tess_engine_comm(engine)->stats.calls[c] - stats.calls[c];
        }
        if (mine->run->evaluate && i == 0)
            TESS_TRY(tess_engine_evaluate(engine, &mine->test_loss, &mine->test_accuracy));
    }
    outcome->formula[mine->rank] = tess_engine_sent_formula(engine);
    const struct tess_plan *plan = tess_engine_plan_of(engine);
    outcome->flat_count = plan->flat_count;
    outcome->segment_count = plan->segment_count;
    outcome->reduce_dtype = plan->reduce_dtype;
    outcome->reductions = plan->leaf_order == TESS_LEAVES_MICRO_FIRST ? plan->accumulate : 1;
    outcome->rows = result.rows;
    mine->loss = result.loss;
    mine->grad_norm = result.grad_norm;
    return tess_engine_hash(engine, &mine->hash);
}

/* A rank's life; `arg` is the array of all ranks' answers. */
static int run_rank_body(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct run_rank *mine = (struct run_rank *)arg + comm->rank;
    struct tess_engine *engine = NULL;
    WORLD_OK(tess_engine_open(mine->config, mine->dataset, comm, world, &engine));
    run_read_memory(engine, mine->outcome.allocated[mine->rank]);
    enum tess_status status = run_steps(mine, engine);
    /* Others may still be in a step: they are told before what they read is gone. */
    if (status != TESS_OK)
        tess_comm_abort(comm, tess_log_last_error());
    tess_engine_close(engine);
    WORLD_OK(status);
    return 0;
}

static void run_predict(const struct run_rank *rank, int32_t rank_count,
                        struct run_outcome *outcome)
{
    for (int32_t r = 0; r < rank_count; r++) {
        struct tess_engine *planned;
        assert_int_equal(tess_engine_plan(rank->config, rank->dataset, r, &planned), TESS_OK);
        run_read_memory(planned, outcome->predicted[r]);
        tess_engine_close(planned);
    }
}

/* What the ranks found, in one; what they all found must be the same. */
static void run_join(const struct run_rank *rank, int32_t rank_count, struct run_outcome *outcome)
{
    *outcome = rank[0].outcome;
    outcome->hash = rank[0].hash;
    outcome->loss = rank[0].loss;
    outcome->grad_norm = rank[0].grad_norm;
    outcome->test_loss = rank[0].test_loss;
    outcome->test_accuracy = rank[0].test_accuracy;
    for (int32_t r = 0; r < rank_count; r++) {
        assert_int_equal(rank[r].hash, outcome->hash);
        assert_memory_equal(&rank[r].loss, &outcome->loss, sizeof(double));
        assert_memory_equal(&rank[r].test_loss, &outcome->test_loss, sizeof(double));
        assert_memory_equal(&rank[r].test_accuracy, &outcome->test_accuracy, sizeof(double));
        outcome->sent[r] = rank[r].outcome.sent[r];
        outcome->formula[r] = rank[r].outcome.formula[r];
        memcpy(outcome->allocated[r], rank[r].outcome.allocated[r], sizeof outcome->allocated[r]);
    }
}

void run_train(const struct run *run, struct run_outcome *outcome_out)
{
    struct tess_config *config;
    struct tess_dataset *dataset;
    const size_t bytes = sizeof(struct run_rank) * RUN_RANKS_MAX;
    struct run_rank *rank =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct world_report *report = calloc(1, sizeof *report);
    assert_true(rank != MAP_FAILED && report != NULL);
    memset(outcome_out, 0, sizeof *outcome_out);
    assert_int_equal(run_open_config(run, &config), TESS_OK);
    assert_int_equal(run_open_data(&dataset), TESS_OK);
    for (int32_t r = 0; r < run->rank_count; r++)
        rank[r] = (struct run_rank){.run = run, .config = config, .dataset = dataset, .rank = r};
    const struct world_setup setup = {.ranks = run->rank_count,
                                      .mode = run->mode,
                                      .order = config->run.reduce == 0 ? TESS_ORDER_CANONICAL
                                                                       : TESS_ORDER_FAST,
                                      .self = strcmp(run->strategy, "single") == 0};
    int failed = world_run_setup(&setup, run_rank_body, rank, report);
    world_print(report);
    free(report);
    assert_int_equal(failed, 0);
    run_join(rank, run->rank_count, outcome_out);
    run_predict(rank, run->rank_count, outcome_out);
    tess_dataset_close(dataset);
    tess_config_close(config);
    munmap(rank, bytes);
}

void run_check_memory(const struct run *run, const struct run_outcome *outcome)
{
    for (int32_t r = 0; r < run->rank_count; r++)
        assert_memory_equal(outcome->predicted[r], outcome->allocated[r],
                            sizeof outcome->predicted[r]);
}

void run_compare(const struct run *run, const struct run_outcome *expected)
{
    struct run_outcome outcome;
    run_train(run, &outcome);
    if (outcome.hash != expected->hash)
        print_error("%s on %d ranks with %s: hash %016llx, expected %016llx\n", run->strategy,
                    (int)run->rank_count, run->options, (unsigned long long)outcome.hash,
                    (unsigned long long)expected->hash);
    assert_int_equal(outcome.hash, expected->hash);
    assert_memory_equal(&outcome.loss, &expected->loss, sizeof(double));
    assert_memory_equal(&outcome.test_loss, &expected->test_loss, sizeof(double));
    assert_memory_equal(&outcome.test_accuracy, &expected->test_accuracy, sizeof(double));
    run_check_memory(run, &outcome);
}

/*
 * A sum that goes to more ranks than its owner is cut into N slices at cache lines, so a slice is
 * off c/N by fewer than 64 + N elements. ddp sends c + (N-2) slices for each bucket, dp's rank 0 c
 * less one slice for its only one. All other calls are exact, also hsdp's between two replicas.
 */
static uint64_t run_sent_slack(const struct run *run, const struct run_outcome *outcome)
{
    const uint64_t n = (uint64_t)run->rank_count;
    const uint64_t slice = (64 + n) * tess_dtype_bytes(outcome->reduce_dtype);
    if (strcmp(run->strategy, "dp") == 0)
        return n > 1 ? slice : 0;
    if (strcmp(run->strategy, "ddp") == 0)
        return n > 2 ? (uint64_t)(outcome->reductions * outcome->segment_count) * (n - 2) * slice
                     : 0;
    return 0;
}

void run_check_sent(const struct run *run, const struct run_outcome *outcome)
{
    uint64_t slack = run_sent_slack(run, outcome);
    for (int32_t r = 0; r < run->rank_count; r++) {
        uint64_t sent = outcome->sent[r], formula = outcome->formula[r];
        uint64_t apart = sent > formula ? sent - formula : formula - sent;
        if (apart > slack)
            print_error("%s on %d ranks with %s: rank %d sent %llu bytes, formula %llu\n",
                        run->strategy, (int)run->rank_count, run->options, (int)r,
                        (unsigned long long)sent, (unsigned long long)formula);
        assert_true(apart <= slack);
    }
}

enum tess_status run_plan(const struct run *run)
{
    struct tess_config *config;
    struct tess_dataset *dataset;
    struct tess_engine *planned;
    TESS_TRY(run_open_config(run, &config));
    assert_int_equal(run_open_data(&dataset), TESS_OK);
    enum tess_status status = tess_engine_plan(config, dataset, 0, &planned);
    if (status == TESS_OK)
        tess_engine_close(planned);
    tess_dataset_close(dataset);
    tess_config_close(config);
    return status;
}
