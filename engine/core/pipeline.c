/*
 * A step of the schedule: for every action load, forward, loss or backward, and the messages to and
 * from other stages; one micro-batch through all stages by itself, for audits; and evaluation, mean
 * loss and accuracy over the test split.
 */
#include "core/state.h"

#include "base/clock.h"
#include "tessera/check.h"

/* The rows and labels of the next batch, where this chunk needs them. */
static enum tess_status pipe_load(struct tess_engine *engine, enum tess_batch kind,
                                  const struct tess_chunk *chunk, int32_t slot,
                                  struct tess_flight *flight)
{
    const void *input;
    const int32_t *label;
    TESS_TRY(tess__engine_batch(engine, kind, &input, &label));
    tess__batches_keep(engine, chunk, slot, &input, &label);
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
    struct tess_flight *flight = tess__stages_flight(engine, action.chunk, slot);
    TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_DATA));
    TESS_TRY(tess_event_wait(&flight->sent)); /* of the micro-batch that had the slot before */
    if (chunk->first || chunk->last)
        TESS_TRY(pipe_load(engine, TESS_BATCH_TRAIN, chunk, slot, flight));
    TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_FORWARD));
    if (!chunk->first) {
        TESS_TRY(tess__stages_post_inputs(engine, i));
        flight->input = tess__stages_input(engine, action.chunk, action.micro);
        tess__engine_doing(engine, TESS_DOING_INPUT, chunk->unit_first);
        TESS_TRY(tess__stages_wait_input(engine, action.chunk, action.micro));
    }
    TESS_TRY(tess__stages_post_inputs(engine, i));
    const double begin_s = pipe_spent_s(schedule);
    TESS_TRY(tess__engine_forward(engine, action.chunk, slot, pipe_row_first(engine)));
    chunk->cost.forward_s += pipe_spent_s(schedule) - begin_s;
    chunk->cost.forwards += schedule->timed;
    chunk->forward_done++;
    if (!chunk->last) {
        TESS_TRY(tess__engine_check_output(engine, action.chunk, slot));
        TESS_TRY(tess__stages_send_output(engine, action.chunk, slot));
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
    grad += tess_fold_level(plan, engine->strategy.micro) * plan->grad_count;
    for (int32_t s = 0; s < plan->grad_segment_count; s++)
        if (plan->segment[s].unit_first >= chunk->unit_first &&
            plan->segment[s].unit_first < chunk->unit_end)
            plan->segment[s].grad = grad + plan->segment[s].begin;
}

/* Sums of loss and correct answers of each leaf computed here, rows in order, in double. */
static enum tess_status pipe_sum_leaves(struct tess_engine *engine, int32_t slot)
{
    const struct tess_plan *plan = &engine->plan;
    const struct tess_sizes *sizes = &engine->sizes;
    if (plan->skips_loss)
        return TESS_OK;
    if (engine->model.labels == 0)
        TESS_TRY(tess__engine_check_loss(engine, slot));
    if (plan->mesh.at[TESS_AXIS_TENSOR] > 0)
        return TESS_OK; /* the first rank of the axis has the same */
    for (int32_t r = 0; r < sizes->loss_ranks; r++) {
        const int64_t first =
            tess_layout_first_leaf(plan, plan->holds_loss ? r : plan->rank, engine->strategy.micro);
        tess_leaf_sum(engine->kernel, sizes->leaf_count, sizes->leaf_rows,
                      engine->found.loss + r * sizes->rows, engine->found.correct + r * sizes->rows,
                      engine->found.sums + 2 * first, engine->found.verdict);
    }
    return TESS_OK;
}

static enum tess_status pipe_backward(struct tess_engine *engine, int32_t i)
{
    struct tess_schedule *schedule = &engine->schedule;
    const struct tess_action action = schedule->action[i];
    struct tess_chunk *chunk = &schedule->chunk[action.chunk];
    const int32_t slot = action.micro % chunk->slot_count;
    void *grad_in = NULL, *grad_out = NULL;
    double begin_s = pipe_spent_s(schedule);
    if (chunk->last) {
        TESS_TRY(tess__engine_loss(engine, slot, true));
        if (engine->model.labels == 0)
            TESS_TRY(pipe_sum_leaves(engine, slot));
        TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_BACKWARD));
    } else {
        TESS_TRY(tess__laps_enter(&engine->laps, TESS_LAP_BACKWARD));
        TESS_TRY(tess__stages_post_grads(engine, i));
        tess__engine_doing(engine, TESS_DOING_GRADIENT, chunk->unit_end - 1);
        TESS_TRY(tess__stages_wait_grad(engine, &grad_in));
    }
    TESS_TRY(tess__stages_post_grads(engine, i));
    if (!chunk->first)
        TESS_TRY(tess__stages_take_grad(engine, &grad_out));
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
        TESS_TRY(tess__stages_send_grad(engine, action.chunk, grad_out));
    return TESS_OK;
}

enum tess_status tess__engine_pipe_step(struct tess_engine *engine)
{
    struct tess_schedule *schedule = &engine->schedule;
    for (int32_t c = 0; c < schedule->chunk_count; c++)
        schedule->chunk[c].forward_done = schedule->chunk[c].backward_done = 0;
    tess__stages_begin(engine);
    for (int32_t i = 0; i < schedule->action_count; i++) {
        engine->strategy.micro = schedule->action[i].micro;
        if (schedule->action[i].phase == TESS_PHASE_FORWARD)
            TESS_TRY(pipe_forward(engine, i));
        else
            TESS_TRY(pipe_backward(engine, i));
    }
    return tess__stages_end(engine);
}

/* ---- one micro-batch by itself ---------------------------------------------------------------
 * In slot 0, with no other one under way.
 */

/* Forward through all stages, and the loss. */
static enum tess_status pipe_forward_alone(struct tess_engine *engine, enum tess_batch kind,
                                           uint64_t row_first)
{
    struct tess_schedule *schedule = &engine->schedule;
    for (int32_t c = 0; c < schedule->chunk_count; c++) {
        struct tess_chunk *chunk = &schedule->chunk[c];
        struct tess_flight *flight = tess__stages_flight(engine, c, 0);
        TESS_TRY(tess_event_wait(&flight->sent));
        if (chunk->first || chunk->last)
            TESS_TRY(pipe_load(engine, kind, chunk, 0, flight));
        if (!chunk->first) {
            tess__engine_doing(engine, TESS_DOING_INPUT, chunk->unit_first);
            TESS_TRY(tess__stages_receive_input(engine, c, &flight->input));
        }
        TESS_TRY(tess__engine_forward(engine, c, 0, row_first));
        if (chunk->last)
            TESS_TRY(tess__engine_loss(engine, 0, kind != TESS_BATCH_TEST));
        else
            TESS_TRY(tess__stages_send_output(engine, c, 0));
    }
    return TESS_OK;
}

enum tess_status tess__engine_pipe_again(struct tess_engine *engine, uint64_t row_first)
{
    const struct tess_schedule *schedule = &engine->schedule;
    TESS_TRY(pipe_forward_alone(engine, TESS_BATCH_AUDIT, row_first));
    for (int32_t c = schedule->chunk_count - 1; c >= 0; c--) {
        const struct tess_chunk *chunk = &schedule->chunk[c];
        void *grad_in = NULL, *grad_out = NULL;
        if (!chunk->last) {
            tess__engine_doing(engine, TESS_DOING_GRADIENT, chunk->unit_end - 1);
            TESS_TRY(tess__stages_receive_grad(engine, c, &grad_in));
        }
        if (!chunk->first)
            TESS_TRY(tess__stages_take_grad(engine, &grad_out));
        TESS_TRY(tess__engine_backward(engine, c, 0, row_first, grad_in, grad_out));
        if (!chunk->first)
            TESS_TRY(tess__stages_send_grad(engine, c, grad_out));
    }
    return tess__stages_end(engine);
}

/* ---- evaluation ------------------------------------------------------------------------------
 * The test split is cut into leaves like a batch; every leaf is computed by one rank and its sum
 * goes to its own place, so that the result has the same bits on every layout.
 */

/* Of the ranks that have the same losses, the first on the tensor axis counts them. */
static void pipe_sum_test(struct tess_engine *engine, int64_t pass)
{
    const struct tess_plan *plan = &engine->plan;
    const struct tess_sizes *sizes = &engine->sizes;
    int64_t first = pass * sizes->test_width, leaves = sizes->loss_ranks * sizes->leaf_count;
    if (!plan->holds_loss)
        first += plan->rank * sizes->leaf_count;
    if (leaves > sizes->test_leaves - first)
        leaves = sizes->test_leaves - first;
    /* Rows of padding add 0. */
    if (!plan->skips_loss && tess__schedule_has_loss(&engine->schedule) &&
        plan->mesh.at[TESS_AXIS_TENSOR] == 0)
        tess_leaf_sum(engine->kernel, leaves, sizes->leaf_rows, engine->found.loss,
                      engine->found.correct, engine->found.sums + 2 * first, engine->found.verdict);
}

enum tess_status tess_engine_evaluate(struct tess_engine *engine, double *loss_out,
                                      double *accuracy_out)
{
    const int64_t leaves = engine->sizes.test_leaves;
    if (leaves == 0)
        TESS_FAIL(TESS_ERR_USAGE, "the data set has no test split to evaluate, or evaluate is off");
    tess_fill(engine->kernel, TESS_FOUND_SUMS + 2 * leaves * (int64_t)sizeof(*engine->found.sums),
              0, engine->found.verdict);
    engine->strategy.training = false;
    engine->strategy.micro = 0;
    engine->progress.step_labels = 1; /* scales a gradient that is not computed */
    for (int64_t pass = 0; pass < engine->sizes.test_passes; pass++) {
        engine->progress.test_pass = pass;
        TESS_TRY(pipe_forward_alone(engine, TESS_BATCH_TEST, 0));
        pipe_sum_test(engine, pass);
    }
    tess__engine_doing(engine, TESS_DOING_EVALUATING, -1);
    TESS_TRY(tess_comm_all_reduce(engine->comm, engine->found.sums, engine->found.sums,
                                  (size_t)(2 * leaves), TESS_F64, TESS_REDUCE_SUM, NULL));
    TESS_TRY(tess__engine_find(engine, 2 * leaves));
    tess__engine_means(engine, leaves, tess__batches_test_labels(engine), loss_out, accuracy_out);
    tess__engine_doing(engine, TESS_DOING_BETWEEN, -1);
    return TESS_OK;
}
