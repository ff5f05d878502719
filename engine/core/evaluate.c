/*
 * Mean loss and accuracy over the test split. The split is cut into leaves like a batch; every leaf
 * is computed by one rank and its sum goes to its own place, so that the result has the same bits
 * on every layout.
 */
#include "core/state.h"

#include "tessera/check.h"

/* First leaf of this rank's loss rows in pass `pass`. */
static int64_t evaluate_first_leaf(const struct tess_engine *engine, int64_t pass)
{
    int64_t first = pass * engine->sizes.test_width;
    return engine->plan.holds_loss ? first : first + engine->plan.rank * engine->sizes.leaf_count;
}

static void evaluate_sum(struct tess_engine *engine, int64_t pass)
{
    int64_t leaves = engine->sizes.loss_ranks * engine->sizes.leaf_count;
    int64_t first = evaluate_first_leaf(engine, pass);
    if (leaves > engine->sizes.test_leaves - first)
        leaves = engine->sizes.test_leaves - first;
    /* Rows of padding add 0. */
    tess_leaf_sum(engine->kernel, leaves, engine->sizes.leaf_rows, engine->found.loss,
                  engine->found.correct, engine->found.sums + 2 * first, engine->found.verdict);
}

/* Of the ranks that have the same losses, the first on the tensor axis counts them. */
static bool evaluate_counts(const struct tess_engine *engine)
{
    return !engine->plan.skips_loss && tess__schedule_has_loss(&engine->schedule) &&
           engine->plan.mesh.at[TESS_AXIS_TENSOR] == 0;
}

enum tess_status tess_engine_evaluate(struct tess_engine *engine, double *loss_out,
                                      double *accuracy_out)
{
    int64_t count = engine->dataset->test.count, leaves = engine->sizes.test_leaves;
    int64_t passes = engine->sizes.test_passes;
    if (leaves == 0)
        TESS_FAIL(TESS_ERR_USAGE, "the data set has no test split to evaluate, or evaluate is off");
    tess_fill(engine->kernel, TESS_FOUND_SUMS + 2 * leaves * (int64_t)sizeof(*engine->found.sums),
              0, engine->found.verdict);
    engine->strategy.training = false;
    engine->strategy.micro = 0;
    engine->progress.step_rows =
        engine->sizes.batch_size; /* scales a gradient that is not computed */
    for (int64_t pass = 0; pass < passes; pass++) {
        TESS_TRY(tess__engine_pipe_evaluate(engine));
        if (evaluate_counts(engine))
            evaluate_sum(engine, pass);
    }
    tess__engine_doing(engine, TESS_DOING_EVALUATING, -1);
    TESS_TRY(tess_comm_all_reduce(engine->comm, engine->found.sums, engine->found.sums,
                                  (size_t)(2 * leaves), TESS_F64, TESS_REDUCE_SUM, NULL));
    TESS_TRY(tess__engine_find(engine, 2 * leaves));
    const double *sum = tess__engine_sums(engine);
    double loss = 0, correct = 0;
    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        loss += sum[2 * leaf];
        correct += sum[2 * leaf + 1];
    }
    *loss_out = loss / (double)(count * engine->sizes.labels);
    *accuracy_out = correct / (double)(count * engine->sizes.labels);
    tess__engine_doing(engine, TESS_DOING_BETWEEN, -1);
    return TESS_OK;
}
