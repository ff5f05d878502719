/*
 * One optimizer step: micro-batches, reduction, update; and the loss of the step where asked for.
 */
#include "core/state.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <math.h>
#include <string.h>

/* Exposed communication so far, over all groups. */
static double step_wait_s(const struct tess_engine *engine)
{
    uint64_t sent;
    double wait_s;
    tess_engine_traffic(engine, &sent, &wait_s);
    return wait_s;
}

/*
 * Mean loss and accuracy over the batch: every leaf's sum comes from one rank, the others add zero.
 * The gradients' zeros travel with them, as whole numbers, which f64 adds exactly.
 */
static enum tess_status step_reduce_loss(struct tess_engine *engine,
                                         struct tess_step_result *result)
{
    int64_t grid = engine->plan.grid;
    const double labels = (double)(engine->step_rows * engine->labels);
    double loss = 0, correct = 0;
    tess__engine_doing(engine, TESS_DOING_LOSS, -1);
    TESS_TRY(tess_comm_all_reduce(engine->comm, engine->leaf_sum, engine->leaf_sum,
                                  (size_t)(2 * grid + 2), TESS_F64, TESS_REDUCE_SUM, NULL));
    for (int64_t leaf = 0; leaf < grid; leaf++) {
        loss += engine->leaf_sum[2 * leaf];
        correct += engine->leaf_sum[2 * leaf + 1];
    }
    result->loss = loss / labels;
    result->accuracy = correct / labels;
    result->zero_share = engine->leaf_sum[2 * grid] / (double)engine->grad_total;
    if (engine->model.labels > 0)
        return TESS_OK; /* the logits' gradient is the model's affair */
    /* Rows that fill up a short batch have no gradient at all. */
    double filling = (double)(engine->batch_size - engine->step_rows) * (double)engine->class_count;
    result->loss_zero_share = (engine->leaf_sum[2 * grid + 1] - filling) /
                              ((double)engine->step_rows * (double)engine->class_count);
    return TESS_OK;
}

/*
 * Under loss scaling: one decision of all ranks, before any of them updates anything. A gradient
 * that is not finite is blamed on the scale, until that cannot be lowered further.
 */
static enum tess_status step_judge(struct tess_engine *engine, struct tess_step_result *result)
{
    struct tess_scale *scale = &engine->scale;
    if (scale->mode == TESS_SCALE_OFF)
        return TESS_OK;
    const int32_t first = tess_optim_find_nonfinite(&engine->optim);
    /* Counted from the end of the model, so that the greatest is its first parameter. */
    int64_t found = first < 0 ? 0 : engine->model.param_count - first;
    TESS_TRY(
        tess_comm_all_reduce(engine->comm, &found, &found, 1, TESS_I64, TESS_REDUCE_MAX, NULL));
    result->loss_scale = scale->value;
    result->skipped = found > 0;
    if (tess_scale_next(scale, found == 0) == TESS_OK)
        return TESS_OK;
    const struct tess_declare_param *param =
        &engine->model.param[engine->model.param_count - found];
    TESS_FAIL(TESS_ERR_NUMERIC,
              "gradients are not finite even at a loss scale of %g: step %lld, unit '%s', "
              "parameter '%s' held the first NaN or infinity; try a lower learning rate, warm-up "
              "or --clip%s",
              scale->value, (long long)engine->step + 1, engine->model.unit[param->unit].name,
              param->name, engine->plan.dtype == TESS_F16 ? ", or --precision bf16" : "");
}

static enum tess_status step_optimize(struct tess_engine *engine, struct tess_step_result *result)
{
    engine->optim.loss_scale = result->loss_scale;
    engine->optim.round_key[1] = (uint64_t)engine->step;
    enum tess_status status = tess_optim_step(&engine->optim, result->rate);
    if (status == TESS_ERR_NUMERIC && engine->optim.nonfinite_param >= 0) {
        const struct tess_declare_param *param =
            &engine->model.param[engine->optim.nonfinite_param];
        TESS_FAIL(TESS_ERR_NUMERIC,
                  "the gradient is not finite at step %lld: unit '%s', tensor '%s' "
                  "held the first NaN or infinity; try a lower learning rate or warm-up",
                  (long long)engine->step + 1, engine->model.unit[param->unit].name, param->name);
    }
    TESS_TRY(status);
    engine->weight_token++;
    result->grad_norm = engine->optim.grad_norm;
    return TESS_OK;
}

static enum tess_status step_update(struct tess_engine *engine, bool want_loss,
                                    struct tess_step_result *result)
{
    struct tess_strategy *strategy = &engine->strategy;
    tess__engine_doing(engine, TESS_DOING_REDUCING, -1);
    TESS_TRY(strategy->ops->grads_finish(strategy));
    TESS_TRY(tess__tied_finish(engine));
    TESS_TRY(tess__crossing_finish(engine));
    TESS_TRY(tess__unused_finish(engine));
    tess__engine_doing(engine, TESS_DOING_OPTIMIZER, -1);
    result->rate = tess_schedule_rate(&engine->config->optim, engine->step, engine->step_count,
                                      (double)engine->steps_per_epoch);
    if (want_loss)
        engine->leaf_sum[2 * engine->plan.grid] =
            tess__engine_counts(engine) ? (double)tess_optim_count_zeros(&engine->optim) : 0;
    TESS_TRY(step_judge(engine, result));
    if (!result->skipped)
        TESS_TRY(step_optimize(engine, result));
    result->skipped_count = engine->scale.skipped;
    /* Due after a skipped step too: strategies let go of what they hold for one step. */
    return strategy->ops->params_refresh(strategy);
}

/* Flight that was not waited for. Waiting begins when a call is made, flight when it is queued, a
 * moment later: their difference may be a little below 0. */
static double step_hidden_s(const struct tess_engine *engine, double flight_before_s,
                            const struct tess_times *times)
{
    double hidden_s = tess_engine_flight_s(engine) - flight_before_s - times->comm_s;
    return fmax(0, fmin(hidden_s, times->total_s - times->comm_s));
}

/* For whoever watches from outside. Written by this rank alone. */
static void step_tell(struct tess_engine *engine, const struct tess_times *times)
{
    struct tess_board *board = engine->board;
    const int64_t passed = (int64_t)(1e6 * times->total_s);
    const int64_t busy = (int64_t)(1e6 * (times->total_s - times->comm_s));
    atomic_store_explicit(&board->passed_us, board->passed_us + passed, memory_order_relaxed);
    atomic_store_explicit(&board->busy_us, board->busy_us + busy, memory_order_relaxed);
}

enum tess_status tess_engine_step(struct tess_engine *engine, bool want_loss,
                                  struct tess_step_result *result_out)
{
    struct tess_step_result result = {.loss = NAN,
                                      .accuracy = NAN,
                                      .grad_norm = -1,
                                      .loss_scale = 1,
                                      .zero_share = NAN,
                                      .loss_zero_share = NAN};
    double start = tess_clock_s(), wait = step_wait_s(engine);
    double flight = tess_engine_flight_s(engine);
    atomic_store_explicit(&engine->board->step, engine->step + 1, memory_order_relaxed);
    memset(engine->leaf_sum, 0, (size_t)(2 * engine->plan.grid + 2) * sizeof *engine->leaf_sum);
    engine->count_zeros = want_loss;
    engine->strategy.training = true;
    tess__unused_begin(engine);
    engine->step_rows = tess__engine_step_rows(engine, engine->step);
    TESS_TRY(tess__engine_pipe_step(engine, &result.times));
    double passed = tess_clock_s(), passed_wait = step_wait_s(engine);
    TESS_TRY(step_update(engine, want_loss, &result));
    result.times.optim_s = tess_clock_s() - passed - (step_wait_s(engine) - passed_wait);
    if (want_loss)
        TESS_TRY(step_reduce_loss(engine, &result));
    tess__engine_doing(engine, TESS_DOING_BETWEEN, -1);
    result.epoch = engine->step / engine->steps_per_epoch;
    result.rows = engine->step_rows;
    result.step = ++engine->step;
    result.times.comm_s = step_wait_s(engine) - wait;
    result.times.total_s = tess_clock_s() - start;
    result.times.hidden_s = step_hidden_s(engine, flight, &result.times);
    step_tell(engine, &result.times);
    *result_out = result;
    return TESS_OK;
}
