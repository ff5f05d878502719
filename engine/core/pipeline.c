/*
 * A step of the schedule: for every action load, forward, loss or backward, and the messages to and
 * from other stages; and the passes of an evaluation.
 */
#include "core/state.h"

#include "base/clock.h"
#include "tessera/check.h"

/* The rows and labels of the next batch, where this chunk needs them. */
static enum tess_status pipe_load(struct tess_engine *engine, bool test,
                                  const struct tess_chunk *chunk, int32_t slot,
                                  struct tess_flight *flight)
{
    const void *input;
    const int32_t *label;
    TESS_TRY(tess__engine_batch(engine, test, &input, &label));
    tess__batches_keep(&engine->batches, chunk, slot, &input, &label);
    if (chunk->first)
        flight->input = input;
    if (chunk->last)
        flight->label = label;
    return TESS_OK;
}

/* Processor time of this rank, where chunks are timed. */
static double pipe_spent_s(const struct tess_schedule *schedule)
{
    return schedule->timed ? tess_clock_thread_s() : 0;
}

static uint64_t pipe_row_first(const struct tess_engine *engine)
{
    return (
        uint64_t)(tess_layout_first_leaf(&engine->plan, engine->plan.rank, engine->strategy.micro) *
                  engine->sizes.leaf_rows);
}

static enum tess_status pipe_forward(struct tess_engine *engine, int32_t i)
{
    struct tess_schedule *schedule = &engine->schedule;
    const struct tess_action action = schedule->action[i];
    struct tess_chunk *chunk = &schedule->chunk[action.chunk];
    const int32_t slot = action.micro % chunk->slot_count;
    struct tess_stages *stages = &engine->stages;
    struct tess_flight *flight = tess__stages_flight(stages, action.chunk, slot);
    TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_DATA));
    TESS_TRY(tess_event_wait(&flight->sent)); /* of the micro-batch that had the slot before */
    if (chunk->first || chunk->last)
        TESS_TRY(pipe_load(engine, false, chunk, slot, flight));
    TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_FORWARD));
    if (!chunk->first) {
        TESS_TRY(tess__stages_post_inputs(stages, i));
        flight->input = tess__stages_input(stages, action.chunk, action.micro);
        tess__engine_doing(engine, TESS_DOING_INPUT, chunk->unit_first);
        TESS_TRY(tess__stages_wait_input(stages, action.chunk, action.micro));
    }
    TESS_TRY(tess__stages_post_inputs(stages, i));
    const double begin_s = pipe_spent_s(schedule);
    TESS_TRY(tess__engine_forward(engine, action.chunk, slot, pipe_row_first(engine)));
    chunk->cost.forward_s += pipe_spent_s(schedule) - begin_s;
    chunk->cost.forwards += schedule->timed;
    chunk->forward_done++;
    if (!chunk->last) {
        TESS_TRY(tess__engine_check_output(engine, action.chunk, slot));
        TESS_TRY(tess__stages_send_output(
            stages, action.chunk,
            engine->tables.unit_output[slot * engine->plan.unit_count + chunk->unit_end - 1],
            flight));
    }
    return TESS_OK;
}

/* Where the chunk's segments take the gradient of this micro-batch. */
static void pipe_bind_grads(struct tess_engine *engine, const struct tess_chunk *chunk)
{
    struct tess_plan *plan = &engine->plan;
    if (plan->grad_extent != TESS_EXTENT_FULL)
        return;
    float *grad = tess_memory_get(engine->memory, engine->block.grad);
    grad += tess_fold_level(plan, engine->strategy.micro) * plan->flat_count;
    for (int32_t s = 0; s < plan->segment_count; s++)
        if (plan->segment[s].unit_first >= chunk->unit_first &&
            plan->segment[s].unit_first < chunk->unit_end)
            plan->segment[s].grad = grad + plan->segment[s].begin;
}

/* Sums of loss and correct answers of each leaf computed here, rows in order, in double. */
static enum tess_status pipe_sum_leaves(struct tess_engine *engine, int32_t slot)
{
    const struct tess_plan *plan = &engine->plan;
    if (plan->skips_loss)
        return TESS_OK;
    int64_t rows = engine->sizes.loss_ranks * engine->sizes.rows;
    /* With a queue the verdict has it when the step is over. */
    int64_t bad = engine->kernel->queue == NULL
                      ? tess_find_nonfinite(engine->kernel, TESS_F32, rows, engine->found.loss)
                      : -1;
    if (bad >= 0)
        return tess__engine_diagnose(engine, engine->schedule.chunk_count - 1, slot, bad);
    if (engine->plan.mesh.at[TESS_AXIS_TENSOR] > 0)
        return TESS_OK; /* the first rank of the axis has the same */
    for (int64_t leaf = 0; leaf < engine->sizes.loss_ranks * engine->sizes.leaf_count;
         leaf += engine->sizes.leaf_count)
        tess_leaf_sum(engine->kernel, engine->sizes.leaf_count, engine->sizes.leaf_rows,
                      engine->found.loss + leaf * engine->sizes.leaf_rows,
                      engine->found.correct + leaf * engine->sizes.leaf_rows,
                      engine->found.sums + 2 * tess__engine_leaf_index(engine, leaf),
                      engine->found.verdict);
    return TESS_OK;
}

static enum tess_status pipe_backward(struct tess_engine *engine, int32_t i)
{
    struct tess_schedule *schedule = &engine->schedule;
    const struct tess_action action = schedule->action[i];
    struct tess_chunk *chunk = &schedule->chunk[action.chunk];
    const int32_t slot = action.micro % chunk->slot_count;
    struct tess_stages *stages = &engine->stages;
    void *grad_in = NULL, *grad_out = NULL;
    double begin_s = pipe_spent_s(schedule);
    if (chunk->last) {
        TESS_TRY(tess__engine_loss(engine, slot, true));
        if (engine->model.labels == 0)
            TESS_TRY(pipe_sum_leaves(engine, slot));
        TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_BACKWARD));
    } else {
        TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_BACKWARD));
        TESS_TRY(tess__stages_post_grads(stages, i));
        tess__engine_doing(engine, TESS_DOING_GRADIENT, chunk->unit_end - 1);
        TESS_TRY(tess__stages_wait_grad(stages, &grad_in));
    }
    TESS_TRY(tess__stages_post_grads(stages, i));
    if (!chunk->first)
        TESS_TRY(tess__stages_take_grad(stages, &grad_out));
    pipe_bind_grads(engine, chunk);
    if (!chunk->last)
        begin_s = pipe_spent_s(schedule); /* waiting may spin a while */
    TESS_TRY(tess__engine_backward(engine, action.chunk, slot, pipe_row_first(engine), grad_in,
                                   grad_out));
    if (chunk->last && engine->model.labels > 0)
        TESS_TRY(pipe_sum_leaves(engine, slot));
    chunk->cost.backward_s += pipe_spent_s(schedule) - begin_s;
    chunk->cost.backwards += schedule->timed;
    chunk->backward_done++;
    if (!chunk->first)
        TESS_TRY(tess__stages_send_grad(stages, action.chunk, grad_out));
    return TESS_OK;
}

enum tess_status tess__engine_pipe_step(struct tess_engine *engine)
{
    struct tess_schedule *schedule = &engine->schedule;
    for (int32_t c = 0; c < schedule->chunk_count; c++)
        schedule->chunk[c].forward_done = schedule->chunk[c].backward_done = 0;
    tess__stages_begin(&engine->stages);
    for (int32_t i = 0; i < schedule->action_count; i++) {
        engine->strategy.micro = schedule->action[i].micro;
        if (schedule->action[i].phase == TESS_PHASE_FORWARD)
            TESS_TRY(pipe_forward(engine, i));
        else
            TESS_TRY(pipe_backward(engine, i));
    }
    return tess__stages_end(&engine->stages);
}

/* ---- evaluation ------------------------------------------------------------------------------ */

enum tess_status tess__engine_pipe_evaluate(struct tess_engine *engine)
{
    struct tess_schedule *schedule = &engine->schedule;
    for (int32_t c = 0; c < schedule->chunk_count; c++) {
        struct tess_chunk *chunk = &schedule->chunk[c];
        struct tess_stages *stages = &engine->stages;
        struct tess_flight *flight = tess__stages_flight(stages, c, 0);
        TESS_TRY(tess_event_wait(&flight->sent));
        if (chunk->first || chunk->last)
            TESS_TRY(pipe_load(engine, true, chunk, 0, flight));
        if (!chunk->first) {
            flight->input = tess__stages_input(stages, c, 0);
            tess__engine_doing(engine, TESS_DOING_INPUT, chunk->unit_first);
            TESS_TRY(tess_comm_recv(stages->forward, tess__stages_input(stages, c, 0),
                                    (size_t)tess__stages_input_count(stages, c), stages->dtype,
                                    chunk->before, NULL));
        }
        TESS_TRY(tess__engine_forward(engine, c, 0, 0));
        if (chunk->last)
            TESS_TRY(tess__engine_loss(engine, 0, false));
        else
            TESS_TRY(tess__stages_send_output(
                stages, c, engine->tables.unit_output[chunk->unit_end - 1], flight));
    }
    return TESS_OK;
}
