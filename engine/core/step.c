/* One optimizer step: micro-batches, reduction, update; and the loss of the step on request. */
#include "core/state.h"

#include "base/clock.h"
#include "base/sum.h"
#include "tessera/check.h"

#include <math.h>
#include <string.h>

/* Numbers of found.sums that a step fills. */
static int64_t step_sums(const struct tess_engine *engine)
{
    return 2 * engine->plan.grid + 2;
}

/* The gradients' zeros travel with the losses, as whole numbers, which f64 adds exactly. */
static void step_take_loss(const struct tess_engine *engine, struct tess_step_result *result)
{
    const double *zeros = tess__engine_sums(engine) + 2 * engine->plan.grid;
    const int64_t rows = engine->progress.step_labels; /* of one label each, where it is used */
    tess__engine_means(engine, engine->plan.grid, engine->progress.step_labels, &result->loss,
                       &result->accuracy);
    result->zero_share = zeros[0] / (double)engine->grad_total;
    if (engine->model.labels > 0)
        return; /* the model computes the logits' gradient */
    /* Rows that fill up a short batch, or whose label is ignored, have no gradient at all. */
    const double classes = (double)engine->sizes.class_count;
    const double filling = (double)(engine->sizes.batch_size - rows) * classes;
    result->loss_zero_share = (zeros[1] - filling) / ((double)rows * classes);
}

/*
 * Add the losses of the step that are known here. Where they have been summed over the ranks, one
 * of these adds them for all; else each rank has the leaves that it computed, and 0 for others.
 */
static void step_add_loss(struct tess_engine *engine, bool summed)
{
    const double *sum = tess__engine_sums(engine);
    if (summed && engine->plan.mesh.rank > 0)
        return;
    for (int64_t leaf = 0; leaf < engine->plan.grid; leaf++)
        if (sum[2 * leaf] != 0)
            tess_sum_add(&engine->progress.epoch_loss[sum[2 * leaf] < 0], fabs(sum[2 * leaf]));
}

enum tess_status tess_engine_epoch_loss(struct tess_engine *engine, double *loss_out)
{
    const struct tess_sizes *sizes = &engine->sizes;
    struct tess_sum total[2];
    memcpy(total, engine->progress.epoch_loss, sizeof(total));
    TESS_TRY(tess_comm_all_reduce(engine->comm, total, total, 2 * TESS_SUM_LIMBS, TESS_I64,
                                  TESS_REDUCE_SUM, NULL));
    const int64_t last = engine->progress.step - 1;
    int64_t labels = 0;
    for (int64_t step = last - last % sizes->steps_per_epoch; step <= last; step++)
        labels += tess__batches_step_labels(engine, step);
    *loss_out =
        (tess_sum_value(&total[0]) - tess_sum_value(&total[1])) / (double)(labels > 0 ? labels : 1);
    return TESS_OK;
}

/* A gradient that is not finite lowers the scale, until that is at its minimum. */
static enum tess_status step_end_scale(struct tess_engine *engine,
                                       const struct tess_verdict *verdict,
                                       struct tess_step_result *result)
{
    struct tess_scale *scale = &engine->scale;
    if (scale->mode == TESS_SCALE_OFF)
        return TESS_OK;
    result->loss_scale = scale->value;
    result->skipped = verdict->grad_bad > 0;
    if (tess_scale_next(scale, !result->skipped) == TESS_OK)
        return TESS_OK;
    const struct tess_declare_param *param =
        &engine->model.param[engine->model.param_count - verdict->grad_bad];
    TESS_FAIL(
        TESS_ERR_NUMERIC,
        "gradients are not finite even at a loss scale of %g: step %lld, unit '%s', parameter '%s' "
        "held the first NaN or infinity; try a lower learning rate, warm-up or --clip%s",
        scale->value, (long long)engine->progress.step + 1, engine->model.unit[param->unit].name,
        param->name, engine->plan.dtype == TESS_F16 ? ", or --precision bf16" : "");
}

/* Read what the step has found out, and draw the conclusions. Waits for the device. */
static enum tess_status step_conclude(struct tess_engine *engine, bool want_loss,
                                      struct tess_step_result *result)
{
    TESS_TRY(tess__engine_find(engine, step_sums(engine)));
    TESS_TRY(engine->kernel->ops->failed(engine->kernel));
    const struct tess_verdict verdict = *(const struct tess_verdict *)engine->found.host;
    if (verdict.loss_bad > 0) {
        const int32_t last = engine->schedule.chunk_count - 1;
        return tess__engine_diagnose(
            engine, last, (engine->plan.accumulate - 1) % engine->schedule.chunk[last].slot_count,
            verdict.loss_bad - 1);
    }
    TESS_TRY(step_end_scale(engine, &verdict, result));
    if (verdict.norm_bad > 0 && !result->skipped) {
        const struct tess_declare_param *param =
            &engine->model.param[engine->model.param_count - verdict.norm_bad];
        TESS_FAIL(TESS_ERR_NUMERIC,
                  "the gradient is not finite at step %lld: unit '%s', tensor '%s' held the first "
                  "NaN or infinity; try a lower learning rate or warm-up",
                  (long long)engine->progress.step + 1, engine->model.unit[param->unit].name,
                  param->name);
    }
    tess_optim_end(&engine->optim, &verdict);
    result->grad_norm = verdict.skip != 0 ? -1 : verdict.grad_norm;
    result->skipped_count = engine->scale.skipped;
    step_add_loss(engine, want_loss);
    if (want_loss)
        step_take_loss(engine, result);
    return TESS_OK;
}

static enum tess_status step_update(struct tess_engine *engine, bool want_loss)
{
    struct tess_strategy *strategy = &engine->strategy;
    tess__engine_doing(engine, TESS_DOING_REDUCING, -1);
    TESS_TRY(strategy->ops->grads_finish(strategy));
    TESS_TRY(tess__tied_finish(engine));
    TESS_TRY(tess__crossing_finish(engine));
    TESS_TRY(tess__unused_finish(engine));
    tess__engine_doing(engine, TESS_DOING_OPTIMIZER, -1);
    const bool updated = tess__shared_took(engine);
    if (want_loss && tess__engine_counts(engine) && !updated)
        tess_optim_count_zeros(&engine->optim, &engine->found.sums[2 * engine->plan.grid]);
    if (engine->scale.mode != TESS_SCALE_OFF) { /* one decision of all ranks before any updates */
        int32_t *bad = &engine->found.verdict->grad_bad;
        tess_optim_find_bad(&engine->optim);
        TESS_TRY(tess_comm_all_reduce(engine->comm, bad, bad, 1, TESS_I32, TESS_REDUCE_MAX, NULL));
    }
    if (engine->unused.skip != NULL) /* known only now */
        tess_optim_prepare(&engine->optim, engine->progress.rate);
    if (engine->saved != NULL) /* the update overwrites what is being copied for a checkpoint */
        TESS_TRY(engine->kernel->queue->ops->follow(engine->kernel->queue, engine->saved));
    if (!updated && !tess__early_finish(engine))
        TESS_TRY(tess_optim_step(&engine->optim));
    engine->progress.weight_token++;
    /* Due after a skipped step too: strategies release what they hold for one step. */
    return strategy->ops->params_refresh(strategy);
}

/* All that the device does in a step, queued. */
static enum tess_status step_queue(struct tess_engine *engine, bool want_loss)
{
    tess_fill(engine->kernel,
              TESS_FOUND_SUMS + step_sums(engine) * (int64_t)sizeof(*engine->found.sums), 0,
              engine->found.verdict);
    engine->progress.count_zeros = want_loss;
    TESS_TRY(tess__shared_begin(engine));
    TESS_TRY(tess__early_begin(engine));
    TESS_TRY(tess__engine_pipe_step(engine));
    TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_OTHER));
    TESS_TRY(tess__audit_step(engine));
    TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_UPDATE));
    TESS_TRY(step_update(engine, want_loss));
    TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_OTHER));
    if (!want_loss)
        return TESS_OK;
    tess__engine_doing(engine, TESS_DOING_LOSS, -1);
    return tess_comm_all_reduce(engine->comm, engine->found.sums, engine->found.sums,
                                (size_t)step_sums(engine), TESS_F64, TESS_REDUCE_SUM, NULL);
}

/* The host's values for the coming step. */
static void step_prepare_optim(struct tess_engine *engine)
{
    struct tess_optim *optim = &engine->optim;
    engine->progress.rate =
        tess_schedule_rate(&engine->config->optim, engine->progress.step, engine->sizes.step_count,
                           (double)engine->sizes.steps_per_epoch);
    optim->loss_scale = engine->scale.value;
    optim->round_key[1] = (uint64_t)engine->progress.step;
    tess_optim_prepare(optim, engine->progress.rate);
}

/* Flight that was not waited for. Waiting begins when a call is made, flight when it is queued, a
 * moment later: their difference may be a little below 0. */
static double step_hidden_s(const struct tess_engine *engine, double flight_before_s,
                            const struct tess_times *times)
{
    double hidden_s = tess_comm_family_flight_s(engine->comm) - flight_before_s - times->comm_s;
    return fmax(0, fmin(hidden_s, times->total_s - times->comm_s));
}

/* The status board is read by other processes and written by this rank alone. */
static void step_post(struct tess_engine *engine, const struct tess_times *times)
{
    struct tess_board *board = engine->board;
    const int64_t passed = (int64_t)(1e6 * times->total_s);
    const int64_t busy = (int64_t)(1e6 * (times->total_s - times->comm_s));
    atomic_store_explicit(&board->passed_us, board->passed_us + passed, memory_order_relaxed);
    atomic_store_explicit(&board->busy_us, board->busy_us + busy, memory_order_relaxed);
}

/* ---- recorded steps --------------------------------------------------------------------------
 * Steps that are recorded on the device once and played again: the host then issues one call a
 * step in place of hundreds. A step is the same as the one before but for its batches, which are
 * there before it begins, and for the host's values for the optimizer, which the record copies from
 * a fixed place; so two steps that report the same things have one record. What is recorded as
 * numbers (the loss scale, the labels that count) makes a new one when it changes.
 *
 *     step        1        2        3             4      5
 *     reports     loss     -        -             -      loss
 *     device      run      run      record, play  play   record, play
 *
 * Each kind of step is run once before it is recorded, since libraries initialise at first use.
 */

enum tess_status tess__record_plan(struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    if (!engine->config->cuda.graph)
        return TESS_OK;
    if (engine->kernel->ops->graph_begin == NULL)
        TESS_FAIL(TESS_ERR_USAGE, "--cuda.graph: kernel '%s' records nothing: leave it out",
                  engine->kernel->ops->name);
    if (plan->mesh.rank_count > 1)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--cuda.graph: messages between %d ranks are not recorded: give --ranks 1, or "
                  "leave it out",
                  plan->mesh.rank_count);
    if (engine->model.conditional)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--cuda.graph: model '%s' chooses in each step which parameters it uses, and a "
                  "record is the same in all of them: leave it out",
                  engine->config->model->name);
    if (engine->dataset->packs)
        TESS_FAIL(
            TESS_ERR_USAGE,
            "--cuda.graph: with --data.packing each step has other documents, and a record is "
            "the same in all of them: leave one out");
    engine->record.on = true;
    return TESS_OK;
}

/* The work is recorded, and has not run. */
static enum tess_status record_make(struct tess_engine *engine, bool want_loss)
{
    struct tess_kernel *kernel = engine->kernel;
    struct tess_recorded *recorded = &engine->record.of[want_loss];
    /* What is kept of the weights in other layouts is made anew in every play. */
    engine->progress.weight_token++;
    kernel->drawn = false;
    TESS_TRY(kernel->ops->graph_begin(kernel));
    tess_comm_untimed(engine->comm, true);
    engine->laps.paused = true; /* recorded for later: has no times */
    enum tess_status status = step_queue(engine, want_loss);
    engine->laps.paused = false;
    tess_comm_untimed(engine->comm, false);
    TESS_KEEP(status, kernel->ops->graph_end(kernel, want_loss));
    TESS_TRY(status);
    *recorded = (struct tess_recorded){.warm = true,
                                       .made = true,
                                       .loss_scale = engine->scale.value,
                                       .labels = engine->progress.step_labels};
    if (!kernel->drawn)
        return TESS_OK;
    tess_log(TESS_LOG_WARN, "--cuda.graph: steps draw random numbers (dropout, stochastic "
                            "rounding), others in each step, and are not recorded");
    engine->record.on = false;
    return TESS_OK;
}

/* Queue a step's work on the device, or play what was queued before. */
static enum tess_status record_run(struct tess_engine *engine, bool want_loss)
{
    struct tess_recorded *recorded = &engine->record.of[want_loss];
    if (engine->config->cuda.graph) {
        TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_DATA));
        TESS_TRY(tess__batches_load_step(engine));
        TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_OTHER));
    }
    /* The age of moments is recorded too, where rules depend on it. */
    if (!engine->record.on || !recorded->warm || engine->optim.step == 0) {
        recorded->warm = true;
        return step_queue(engine, want_loss);
    }
    if (!recorded->made || recorded->loss_scale != engine->scale.value ||
        recorded->labels != engine->progress.step_labels)
        TESS_TRY(record_make(engine, want_loss));
    engine->progress.weight_token++;
    return engine->kernel->ops->graph_play(engine->kernel, want_loss);
}

/* ---- the step -------------------------------------------------------------------------------- */

enum tess_status tess_engine_step(struct tess_engine *engine, bool want_loss,
                                  struct tess_step_result *result_out)
{
    struct tess_step_result result = {.loss = NAN,
                                      .accuracy = NAN,
                                      .grad_norm = -1,
                                      .loss_scale = 1,
                                      .zero_share = NAN,
                                      .loss_zero_share = NAN};
    double start = tess_clock_s();
    double flight = tess_comm_family_flight_s(engine->comm);
    atomic_store_explicit(&engine->board->step, engine->progress.step + 1, memory_order_relaxed);
    TESS_TRY(tess__laps_begin(&engine->laps));
    engine->strategy.training = true;
    tess__unused_begin(engine);
    tess__audit_begin(engine);
    engine->progress.step_rows = tess__sizes_step_rows(&engine->sizes, engine->progress.step);
    engine->progress.step_labels = tess__batches_step_labels(engine, engine->progress.step);
    if (engine->progress.step % engine->sizes.steps_per_epoch == 0)
        memset(engine->progress.epoch_loss, 0, sizeof(engine->progress.epoch_loss));
    tess__engine_range(engine, "step");
    step_prepare_optim(engine);
    result.rate = engine->progress.rate;
    TESS_TRY(record_run(engine, want_loss));
    TESS_TRY(tess__laps_stop(&engine->laps));
    TESS_TRY(step_conclude(engine, want_loss, &result));
    tess__engine_range(engine, NULL);
    tess__engine_doing(engine, TESS_DOING_BETWEEN, -1);
    result.epoch = engine->progress.step / engine->sizes.steps_per_epoch;
    result.rows = engine->progress.step_rows;
    result.step = ++engine->progress.step;
    TESS_TRY(tess__laps_end(&engine->laps, &result.times));
    result.times.total_s = tess_clock_s() - start;
    result.times.hidden_s = step_hidden_s(engine, flight, &result.times);
    step_post(engine, &result.times);
    *result_out = result;
    return TESS_OK;
}
