/* Ranks as threads or as processes around the engine; what they find out lies in shared memory. */
#include "runs.h"

#include "config/config.h"
#include "config/config_device.h"
#include "core/state.h"
#include "harness/need_device.h"
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
    {"fsdp", "--fsdp.keep-last 1"},
    {"fsdp", "--fsdp.reshard-after-forward=off"},
    {"hsdp", ""},
};
const int run_layout_count = sizeof(run_layouts) / sizeof(run_layouts[0]);

/* What one rank is given, and its answers. */
struct run_rank {
    const struct run *run;
    const struct tess_config *config;
    const struct tess_dataset *dataset;
    int32_t rank;
    struct run_outcome outcome; /* of this rank: its own entries */
};

static enum tess_status run_open_config(const struct run *run, struct tess_config **config_out)
{
    char words[1024];
    char *argv[RUN_WORDS_MAX];
    int argc = 0;
    snprintf(words, sizeof(words),
             "--strategy %s --ranks %d --kernel %s --data synthetic --steps %d %s", run->strategy,
             (int)run->rank_count, run->kernel, (int)run->steps, run->options);
    for (char *rest = words, *word; (word = strsep(&rest, " ")) != NULL;) {
        assert_true(argc < RUN_WORDS_MAX);
        if (*word != '\0')
            argv[argc++] = word;
    }
    return tess_config_open(argc, argv, NULL, 0, config_out);
}

/* Rows of 6 x 6, five classes: nothing divides anything. Of text a few samples. */
static enum tess_status run_open_data(const struct tess_config *config,
                                      struct tess_dataset **dataset_out)
{
    if (config->model->tokens)
        return tess_dataset_open_synthetic_tokens(config->loader.length, 96, 20, 3, dataset_out);
    return tess_dataset_open_synthetic(tess_shape3(6, 6, 1), 5, 192, 50, 3, dataset_out);
}

static void run_read_memory(const struct tess_engine *engine,
                            uint64_t bytes[TESS_MEMORY_KIND_COUNT])
{
    for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
        bytes[k] = tess_memory_bytes(tess_engine_memory(engine), (enum tess_memory_kind)k);
}

/* Bytes sent so far, in all and along each axis. */
struct run_traffic {
    uint64_t all, axis[TESS_AXIS_COUNT];
};

static struct run_traffic run_read_traffic(const struct tess_engine *engine)
{
    struct run_traffic traffic;
    double wait_s;
    tess_engine_traffic(engine, &traffic.all, &wait_s);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        tess_engine_axis_traffic(engine, (enum tess_axis)axis, &traffic.axis[axis], &wait_s);
    return traffic;
}

/* Traffic is of a step without the loss, which is the engine's own and not the strategy's. */
static enum tess_status run_quiet_step(struct run_rank *mine, struct tess_engine *engine,
                                       struct tess_step_result *result)
{
    struct run_outcome *outcome = &mine->outcome;
    const struct tess_comm_stats stats = engine->comm->stats;
    const struct run_traffic before = run_read_traffic(engine);
    TESS_TRY(tess_engine_step(engine, false, result));
    const struct run_traffic after = run_read_traffic(engine);
    outcome->sent[mine->rank] = after.all - before.all;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        outcome->axis_sent[mine->rank][axis] = after.axis[axis] - before.axis[axis];
    for (int c = 0; c < TESS_COLLECTIVE_COUNT; c++)
        outcome->calls[c] = engine->comm->stats.calls[c] - stats.calls[c];
    return TESS_OK;
}

static void run_read_plan(struct run_rank *mine, const struct tess_engine *engine)
{
    struct run_outcome *outcome = &mine->outcome;
    const struct tess_plan *plan = tess_engine_plan_of(engine);
    outcome->formula[mine->rank] = tess_engine_sent_formula(engine);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        outcome->axis_formula[mine->rank][axis] =
            tess_engine_axis_formula(engine, (enum tess_axis)axis);
    outcome->updates = plan->optim_extent != TESS_EXTENT_NONE;
    outcome->flat_count = plan->flat_count;
    outcome->segment_count = plan->segment_count;
    outcome->reduce_dtype = plan->reduce_dtype;
    outcome->reductions = plan->leaf_order == TESS_LEAVES_MICRO_FIRST ? plan->accumulate : 1;
}

static enum tess_status run_digest(struct run_rank *mine, struct tess_engine *engine)
{
    static _Thread_local struct tess_digest digest[RUN_PARAMS_MAX];
    struct run_outcome *outcome = &mine->outcome;
    outcome->param_count = tess_engine_param_count(engine);
    if (outcome->param_count > RUN_PARAMS_MAX)
        TESS_FAIL(TESS_ERR_INTERNAL, "no room for %d digests", (int)outcome->param_count);
    TESS_TRY(tess_engine_digest(engine, digest));
    for (int32_t p = 0; p < outcome->param_count; p++)
        outcome->digest[p] = digest[p].hash;
    return tess_engine_hash(engine, &outcome->hash);
}

static enum tess_status run_steps(struct run_rank *mine, struct tess_engine *engine)
{
    struct run_outcome *outcome = &mine->outcome;
    const struct run *run = mine->run;
    struct tess_step_result result;
    for (int32_t i = 0; i < run->steps; i++) {
        if (i + 1 < run->steps)
            TESS_TRY(run_quiet_step(mine, engine, &result));
        else
            TESS_TRY(tess_engine_step(engine, true, &result));
        if (run->evaluate && i == 0)
            TESS_TRY(tess_engine_evaluate(engine, &outcome->test_loss, &outcome->test_accuracy));
    }
    run_read_plan(mine, engine);
    outcome->rows = result.rows;
    outcome->loss = result.loss;
    outcome->accuracy = result.accuracy;
    outcome->grad_norm = result.grad_norm;
    outcome->zero_share = result.zero_share;
    if (run->save != NULL)
        TESS_TRY(tess_engine_save(engine, run->save));
    return run_digest(mine, engine);
}

/* A rank's life; `arg` is the array of all ranks' answers. */
static int run_rank_body(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct run_rank *mine = (struct run_rank *)arg + comm->rank;
    struct tess_engine *engine = NULL;
    WORLD_OK(tess_config_select_device(mine->config, mine->rank));
    WORLD_OK(tess_engine_open(mine->config, mine->dataset, comm, world, &engine));
    run_read_memory(engine, mine->outcome.allocated[mine->rank]);
    enum tess_status status = run_steps(mine, engine);
    /* Others may still be in a step: they are stopped before what they read is freed. */
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

static bool run_same(double one, double other)
{
    return memcmp(&one, &other, sizeof(one)) == 0;
}

/* What two runs, or two ranks of one, must have found alike. A rank that updates nothing has no
 * norm. */
static bool run_alike(const struct run_outcome *one, const struct run_outcome *other)
{
    return (!one->updates || run_same(one->grad_norm, other->grad_norm)) &&
           one->hash == other->hash && one->param_count == other->param_count &&
           memcmp(one->digest, other->digest, sizeof(one->digest)) == 0 &&
           run_same(one->loss, other->loss) && run_same(one->accuracy, other->accuracy) &&
           run_same(one->zero_share, other->zero_share) &&
           run_same(one->test_loss, other->test_loss) &&
           run_same(one->test_accuracy, other->test_accuracy);
}

static void run_print(const char *what, const struct run_outcome *outcome)
{
    print_error("  %s: hash %016llx, loss %.17g, accuracy %.17g, norm %.17g, zeros %.17g, test "
                "loss %.17g, accuracy %.17g\n",
                what, (unsigned long long)outcome->hash, outcome->loss, outcome->accuracy,
                outcome->grad_norm, outcome->zero_share, outcome->test_loss,
                outcome->test_accuracy);
}

static void run_assert_alike(const struct run *run, const char *what,
                             const struct run_outcome *outcome, const struct run_outcome *expected)
{
    if (run_alike(outcome, expected))
        return;
    print_error("%s on %d ranks, kernel %s, with %s: %s\n", run->strategy, (int)run->rank_count,
                run->kernel, run->options, what);
    run_print("found", outcome);
    run_print("expected", expected);
    for (int32_t p = 0; p < outcome->param_count; p++)
        if (outcome->digest[p] != expected->digest[p]) {
            print_error("  parameter %d is the first that differs\n", (int)p);
            break;
        }
    fail();
}

/* What the ranks found, in one; what they all found must be the same. */
static void run_join(const struct run *run, const struct run_rank *rank,
                     struct run_outcome *outcome)
{
    *outcome = rank[0].outcome;
    for (int32_t r = 0; r < run->rank_count; r++) {
        const struct run_outcome *other = &rank[r].outcome;
        run_assert_alike(run, "ranks differ", other, outcome);
        outcome->sent[r] = other->sent[r];
        outcome->formula[r] = other->formula[r];
        memcpy(outcome->axis_sent[r], other->axis_sent[r], sizeof(outcome->axis_sent[r]));
        memcpy(outcome->axis_formula[r], other->axis_formula[r], sizeof(outcome->axis_formula[r]));
        memcpy(outcome->allocated[r], other->allocated[r], sizeof(outcome->allocated[r]));
    }
}

void run_train(const struct run *run, struct run_outcome *outcome_out)
{
    struct tess_config *config;
    struct tess_dataset *dataset;
    const size_t bytes = sizeof(struct run_rank) * RUN_RANKS_MAX;
    struct run_rank *rank =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct world_report *report = calloc(1, sizeof(*report));
    assert_true(rank != MAP_FAILED && report != NULL);
    memset(outcome_out, 0, sizeof(*outcome_out));
    assert_int_equal(run_open_config(run, &config), TESS_OK);
    if (run->alter != NULL)
        run->alter(config);
    assert_int_equal(run_open_data(config, &dataset), TESS_OK);
    for (int32_t r = 0; r < run->rank_count; r++)
        rank[r] = (struct run_rank){.run = run, .config = config, .dataset = dataset, .rank = r};
    const struct world_setup setup = {.ranks = run->rank_count,
                                      .mode = run->mode,
                                      .tcp = run->tcp,
                                      .order = config->run.reduce == 0 ? TESS_ORDER_CANONICAL
                                                                       : TESS_ORDER_FAST,
                                      .self = strcmp(run->strategy, "single") == 0};
    int failed = world_run_setup(&setup, run_rank_body, rank, report);
    world_print(report);
    free(report);
    assert_int_equal(failed, 0);
    run_join(run, rank, outcome_out);
    run_predict(rank, run->rank_count, outcome_out);
    tess_dataset_close(dataset);
    tess_config_close(config);
    munmap(rank, bytes);
}

void run_check_memory(const struct run *run, const struct run_outcome *outcome)
{
    for (int32_t r = 0; r < run->rank_count; r++)
        assert_memory_equal(outcome->predicted[r], outcome->allocated[r],
                            sizeof(outcome->predicted[r]));
}

void run_compare(const struct run *run, const struct run_outcome *expected)
{
    struct run_outcome outcome;
    run_train(run, &outcome);
    assert_true(outcome.updates);
    run_assert_alike(run, "runs differ", &outcome, expected);
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

bool run_is_kernel(const char *word)
{
    static const char *const host[] = {"cpu", "guard", "guard_queue"};
    for (size_t i = 0; i < sizeof(host) / sizeof(*host); i++)
        if (strcmp(word, host[i]) == 0)
            return true;
    return strcmp(word, "cuda") == 0 && need_device(word) != NULL;
}

enum tess_status run_plan(const struct run *run)
{
    struct tess_config *config;
    struct tess_dataset *dataset;
    struct tess_engine *planned;
    TESS_TRY(run_open_config(run, &config));
    assert_int_equal(run_open_data(config, &dataset), TESS_OK);
    enum tess_status status = tess_engine_plan(config, dataset, 0, &planned);
    if (status == TESS_OK)
        tess_engine_close(planned);
    tess_dataset_close(dataset);
    tess_config_close(config);
    return status;
}
