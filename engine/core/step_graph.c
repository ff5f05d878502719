/*
 * Steps that are recorded on the device once and played again: the host then issues one call a
 * step in place of hundreds. A step is the same as the one before but for its batches, which are
 * there before it begins, and for the host's values for the optimizer, which the record copies from
 * a fixed place; so two steps that report the same things have one record. What is recorded as
 * numbers (the loss scale, the rows that count) makes a new one when it changes.
 *
 *     step        1        2        3             4      5
 *     reports     loss     -        -             -      loss
 *     device      run      run      record, play  play   record, play
 *
 * Each kind of step is run once before it is recorded, since libraries initialise at first use.
 */
#include "core/state.h"

#include "tessera/check.h"

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
    engine->record.on = true;
    return TESS_OK;
}

/* The work is recorded, and has not run. */
static enum tess_status record_make(struct tess_engine *engine, bool want_loss,
                                    enum tess_status (*queue)(struct tess_engine *, bool))
{
    struct tess_kernel *kernel = engine->kernel;
    struct tess_recorded *recorded = &engine->record.of[want_loss];
    /* What is kept of the weights in other layouts is made anew in every play. */
    engine->progress.weight_token++;
    kernel->drawn = false;
    TESS_TRY(kernel->ops->graph_begin(kernel));
    tess_comm_untimed(engine->comm, true);
    engine->laps.paused = true; /* recorded for later: has no times */
    enum tess_status status = queue(engine, want_loss);
    engine->laps.paused = false;
    tess_comm_untimed(engine->comm, false);
    TESS_KEEP(status, kernel->ops->graph_end(kernel, want_loss));
    TESS_TRY(status);
    *recorded = (struct tess_recorded){.warm = true,
                                       .made = true,
                                       .loss_scale = engine->scale.value,
                                       .rows = engine->progress.step_rows};
    if (!kernel->drawn)
        return TESS_OK;
    tess_log(TESS_LOG_WARN, "--cuda.graph: steps draw random numbers (dropout, stochastic "
                            "rounding), others in each step, and are not recorded");
    engine->record.on = false;
    return TESS_OK;
}

enum tess_status tess__record_run(struct tess_engine *engine, bool want_loss,
                                  enum tess_status (*queue)(struct tess_engine *, bool want_loss))
{
    struct tess_recorded *recorded = &engine->record.of[want_loss];
    if (tess__batches_ahead(&engine->batches)) {
        TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_DATA));
        TESS_TRY(tess__batches_load_step(&engine->batches));
        TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_OTHER));
    }
    /* The age of moments is recorded too, where rules depend on it. */
    if (!engine->record.on || !recorded->warm || engine->optim.step == 0) {
        recorded->warm = true;
        return queue(engine, want_loss);
    }
    if (!recorded->made || recorded->loss_scale != engine->scale.value ||
        recorded->rows != engine->progress.step_rows)
        TESS_TRY(record_make(engine, want_loss, queue));
    engine->progress.weight_token++;
    return engine->kernel->ops->graph_play(engine->kernel, want_loss);
}
