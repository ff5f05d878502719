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
        tess_engine_traffic(engine, &before, &wait_s);
        TESS_TRY(tess_engine_step(engine, last, &result));
        if (!last) {
            tess_engine_traffic(engine, &after, &wait_s);
            outcome->sent[mine->rank] = after - before;
        }
        if (mine->run->evaluate && i == 0)
            TESS_TRY(tess_engine_evaluate(engine, &mine->test_loss, &mine->test_accuracy));
    }
    outcome->formula[mine->rank] = tess_engine_sent_formula(engine);
    outcome->flat_count = tess_engine_plan_of(engine)->flat_count;
    outcome->segment_count = tess_engine_plan_of(engine)->segment_count;
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
    outcome->hash = rank[0].hash;
    outcome->loss = rank[0].loss;
    outcome->grad_norm = rank[0].grad_norm;
    outcome->test_loss = rank[0].test_loss;
    outcome->test_accuracy = rank[0].test_accuracy;
    outcome->flat_count = rank[0].outcome.flat_count;
    outcome->segment_count = rank[0].outcome.segment_count;
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
