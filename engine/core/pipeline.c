/*
 * The order of a rank's work within a step: which micro-batch goes through which of its units when,
 * and what is sent to, and awaited from, the ranks that run the units before and after. Without a
 * stage axis there is one chunk of all units, and every micro-batch goes forward and straight back.
 * The order itself is the stage strategy's.
 *
 *     stage_input      | chunk 0: slots + 1 buffers | chunk 1 ...   asked for one ahead
 *     stage_grad       | in 0 | in 1 | out 0 | out 1 |              in turn
 *
 * Activations go over one group and gradients over another, so that in each the messages between
 * two ranks come in the order of the forward, or backward, actions of both.
 */
#include "core/state.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- planning -------------------------------------------------------------------------------- */

/* Modelled work of a unit: its products, by row; a little for the rest. */
static double pipe_unit_work(const struct tess_declare *model, int32_t unit)
{
    double work = (double)model->unit[unit].output_count;
    for (int32_t o = 0; o < model->op_count; o++) {
        const struct tess_op_desc *desc = &model->op[o].desc;
        const double rows =
            (double)desc->rows * (desc->calls > 0 ? desc->calls : 1) / (double)model->rows;
        /* What adds to another operation's gradient is a part of that one's work. */
        if (model->op[o].unit != unit || desc->add_grad)
            continue;
        if (desc->kind == TESS_OP_LINEAR)
            work += 6 * rows * (double)desc->in * (double)desc->out;
        else if (desc->kind == TESS_OP_ATTENTION)
            work += 7 * rows * (double)desc->length * (double)desc->length *
                    (double)(desc->in * desc->heads);
        else if (desc->kind == TESS_OP_CONV2D)
            work += 6 * rows * (double)desc->in * (double)desc->out * desc->window * desc->window *
                    (double)(desc->height * desc->width) / (double)(desc->stride * desc->stride);
    }
    return work;
}

static struct tess_unit_cost pipe_unit_cost(const struct tess_declare *model, int32_t unit)
{
    struct tess_unit_cost cost = {.work = pipe_unit_work(model, unit)};
    for (int32_t p = 0; p < model->param_count; p++)
        if (model->param[p].unit == unit)
            cost.param_bytes += 16 * (uint64_t)tess_shape_count(&model->param[p].shape);
    for (int32_t t = 0; t < model->tensor_count; t++)
        if (model->tensor[t].unit == unit && model->tensor[t].life != TESS_LIFE_UNIT)
            cost.saved_bytes += (uint64_t)model->tensor[t].count * (uint64_t)model->rows *
                                tess_dtype_bytes(model->tensor[t].dtype);
    return cost;
}

/* first_out [virtual_count + 1]: how the stage strategy cuts the model. */
static enum tess_status pipe_cut(const struct tess_engine *engine, int32_t virtual_count,
                                 int32_t *first_out)
{
    const struct tess_config *config = engine->config;
    const int32_t units = engine->model.unit_count;
    struct tess_unit_cost *cost = calloc((size_t)units, sizeof *cost);
    if (cost == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to cut %d units into stages", units);
    for (int32_t u = 0; u < units; u++)
        cost[u] = pipe_unit_cost(&engine->model, u);
    enum tess_status status = config->axis[TESS_AXIS_STAGE]->cut(
        config->axis_options[TESS_AXIS_STAGE], cost, units, virtual_count, first_out);
    free(cost);
    return status;
}

/* The actions of this rank in one step. */
static enum tess_status pipe_order(struct tess_engine *engine, int32_t stages)
{
    const struct tess_config *config = engine->config;
    struct tess_engine_pipe *pipe = &engine->pipe;
    const int32_t micros = engine->plan.accumulate;
    pipe->action_count = 2 * pipe->chunk_count * micros;
    pipe->action = calloc((size_t)pipe->action_count, sizeof *pipe->action);
    if (pipe->action == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a step's %d actions", pipe->action_count);
    if (stages > 1)
        return config->axis[TESS_AXIS_STAGE]->order(config->axis_options[TESS_AXIS_STAGE],
                                                    engine->plan.mesh.at[TESS_AXIS_STAGE], stages,
                                                    micros, pipe->action);
    for (int32_t m = 0; m < micros; m++) {
        pipe->action[2 * m] = (struct tess_action){TESS_PHASE_FORWARD, 0, m};
        pipe->action[2 * m + 1] = (struct tess_action){TESS_PHASE_BACKWARD, 0, m};
    }
    return TESS_OK;
}

/* Micro-batches under way at once in each chunk. */
static void pipe_count_slots(struct tess_engine_pipe *pipe)
{
    for (int32_t c = 0; c < pipe->chunk_count; c++) {
        struct tess_chunk *chunk = &pipe->chunk[c];
        int32_t under_way = 0;
        chunk->slot_count = 1;
        for (int32_t i = 0; i < pipe->action_count; i++) {
            if (pipe->action[i].chunk != c)
                continue;
            under_way += pipe->action[i].phase == TESS_PHASE_FORWARD ? 1 : -1;
            if (under_way > chunk->slot_count)
                chunk->slot_count = under_way;
        }
        if (chunk->slot_count > pipe->slot_max)
            pipe->slot_max = chunk->slot_count;
    }
}

/* What this rank keeps of the model: the units of its virtual stages. */
static enum tess_status pipe_select(struct tess_engine *engine, const int32_t *first,
                                    int32_t stages)
{
    struct tess_engine_pipe *pipe = &engine->pipe;
    const int32_t stage = engine->plan.mesh.at[TESS_AXIS_STAGE];
    bool *keep = calloc((size_t)engine->model.unit_count, sizeof *keep);
    if (keep == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the stages' units");
    int32_t place = 0;
    for (int32_t v = 0; v < pipe->chunk_count * stages; v++)
        for (int32_t u = first[v]; u < first[v + 1]; u++)
            pipe->stage_of[u] = v;
    for (int32_t c = 0; c < pipe->chunk_count; c++) {
        const int32_t v = c * stages + stage;
        struct tess_chunk *chunk = &pipe->chunk[c];
        chunk->unit_first = place;
        for (int32_t u = first[v]; u < first[v + 1]; u++, place++) {
            keep[u] = true;
            engine->model.unit[u].chunk = c;
        }
        chunk->unit_end = place;
        chunk->first = v == 0;
        chunk->last = v == pipe->chunk_count * stages - 1;
        chunk->before = (stage + stages - 1) % stages;
        chunk->after = (stage + 1) % stages;
        chunk->input_count = chunk->first ? 0 : engine->model.unit[first[v] - 1].output_count;
    }
    enum tess_status status = tess_declare_select(&engine->model, keep, &engine->declare);
    free(keep);
    return status;
}

enum tess_status tess__engine_pipe_plan(struct tess_engine *engine)
{
    const struct tess_config *config = engine->config;
    struct tess_engine_pipe *pipe = &engine->pipe;
    const int32_t stages = engine->plan.mesh.count[TESS_AXIS_STAGE];
    pipe->chunk_count =
        stages > 1
            ? config->axis[TESS_AXIS_STAGE]->chunk_count(config->axis_options[TESS_AXIS_STAGE])
            : 1;
    const int32_t virtual_count = pipe->chunk_count * stages;
    int32_t *first = calloc((size_t)virtual_count + 1, sizeof *first);
    pipe->chunk = calloc((size_t)pipe->chunk_count, sizeof *pipe->chunk);
    pipe->stage_of = calloc((size_t)engine->model.unit_count, sizeof *pipe->stage_of);
    enum tess_status status = TESS_OK;
    if (first == NULL || pipe->chunk == NULL || pipe->stage_of == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory for %d stages", virtual_count);
    else if (stages > 1)
        status = pipe_cut(engine, virtual_count, first);
    else
        first[1] = engine->model.unit_count;
    if (status == TESS_OK)
        status = pipe_select(engine, first, stages);
    free(first);
    TESS_TRY(status);
    TESS_TRY(pipe_order(engine, stages));
    pipe_count_slots(pipe);
    engine->plan.pipelined = stages > 1;
    pipe->flight = calloc((size_t)(pipe->chunk_count * pipe->slot_max), sizeof *pipe->flight);
    pipe->input_event =
        calloc((size_t)(pipe->chunk_count * (pipe->slot_max + 1)), sizeof *pipe->input_event);
    if (pipe->flight == NULL || pipe->input_event == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d micro-batches under way", pipe->slot_max);
    return TESS_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int64_t pipe_input_bytes(const struct tess_engine *engine, const struct tess_chunk *chunk)
{
    return (chunk->input_count * engine->rows * (int64_t)engine->dtype_bytes + 63) / 64 * 64;
}

/* Rows of the input and labels stay for backward where others are loaded in between. */
static enum tess_status pipe_reserve_kept(struct tess_engine *engine)
{
    const struct tess_engine_pipe *pipe = &engine->pipe;
    const int64_t row = tess__engine_row_bytes(engine);
    const int32_t first = pipe->chunk[0].first ? pipe->chunk[0].slot_count : 0;
    const struct tess_chunk *end = &pipe->chunk[pipe->chunk_count - 1];
    const int32_t last = end->last ? end->slot_count : 0;
    TESS_TRY(tess_memory_reserve(engine->memory, TESS_MEMORY_INPUT,
                                 first > 1 ? (uint64_t)(first * engine->rows * row) : 0,
                                 "rows under way", &engine->block.kept_input));
    return tess_memory_reserve(engine->memory, TESS_MEMORY_INPUT,
                               last > 1 ? (uint64_t)(last * engine->rows * engine->labels * 4) : 0,
                               "labels under way", &engine->block.kept_label);
}

enum tess_status tess__engine_pipe_reserve(struct tess_engine *engine)
{
    struct tess_engine_pipe *pipe = &engine->pipe;
    int64_t bytes = 0, in = 0, out = 0;
    for (int32_t c = 0; c < pipe->chunk_count; c++) {
        struct tess_chunk *chunk = &pipe->chunk[c];
        const int64_t input = pipe_input_bytes(engine, chunk);
        const int64_t output = engine->declare.unit[chunk->unit_end - 1].output_count *
                               engine->rows * (int64_t)engine->dtype_bytes;
        chunk->input_begin = bytes;
        bytes += input * (chunk->slot_count + 1);
        out = input > out ? input : out;
        in = !chunk->last && output > in ? output : in;
    }
    TESS_TRY(tess_memory_reserve(engine->memory, TESS_MEMORY_ACTIVATION, (uint64_t)bytes,
                                 "activations from the stage before", &engine->block.stage_input));
    for (int i = 0; i < 4; i++)
        TESS_TRY(tess_memory_reserve(
            engine->memory, TESS_MEMORY_ACTIVATION, (uint64_t)(i < 2 ? in : out),
            i < 2 ? "gradients from the stage after" : "gradients to the stage before",
            &engine->block.stage_grad[i]));
    return pipe_reserve_kept(engine);
}

enum tess_status tess__engine_pipe_open(struct tess_engine *engine)
{
    struct tess_engine_pipe *pipe = &engine->pipe;
    struct tess_comm *stages = engine->axis_comm[TESS_AXIS_STAGE];
    if (stages->rank_count == 1)
        return TESS_OK;
    TESS_TRY(tess_comm_split(stages, 0, stages->rank, &pipe->forward));
    return tess_comm_split(stages, 0, stages->rank, &pipe->backward);
}

void tess__engine_pipe_close(struct tess_engine *engine)
{
    struct tess_engine_pipe *pipe = &engine->pipe;
    tess_comm_close(pipe->backward);
    tess_comm_close(pipe->forward);
    free(pipe->stage_of);
    free(pipe->chunk);
    free(pipe->flight);
    free(pipe->action);
    free(pipe->input_event);
}

/* ---- what comes and goes --------------------------------------------------------------------- */

static char *pipe_input(const struct tess_engine *engine, int32_t c, int32_t micro)
{
    const struct tess_chunk *chunk = &engine->pipe.chunk[c];
    char *memory = tess_memory_get(engine->memory, engine->block.stage_input);
    return memory + chunk->input_begin +
           micro % (chunk->slot_count + 1) * pipe_input_bytes(engine, chunk);
}

static struct tess_event *pipe_input_event(struct tess_engine_pipe *pipe, int32_t c, int32_t micro)
{
    return &pipe->input_event[c * (pipe->slot_max + 1) + micro % (pipe->chunk[c].slot_count + 1)];
}

static int64_t pipe_output_count(const struct tess_engine *engine, const struct tess_chunk *chunk)
{
    return engine->declare.unit[chunk->unit_end - 1].output_count * engine->rows;
}

/* The first action from `from` on, of this direction, for which something comes from elsewhere. */
static int32_t pipe_next_receive(const struct tess_engine_pipe *pipe, int32_t from,
                                 enum tess_phase phase)
{
    for (; from < pipe->action_count; from++) {
        const struct tess_chunk *chunk = &pipe->chunk[pipe->action[from].chunk];
        const bool end = phase == TESS_PHASE_FORWARD ? chunk->first : chunk->last;
        if (pipe->action[from].phase == phase && !end)
            break;
    }
    return from;
}

/* Ask for the activations of all actions up to number `upto`, and of the next one if its buffer is
 * free. */
static enum tess_status pipe_post_inputs(struct tess_engine *engine, int32_t upto)
{
    struct tess_engine_pipe *pipe = &engine->pipe;
    for (int32_t i = -1; i <= upto;) {
        i = pipe_next_receive(pipe, pipe->input_posted, TESS_PHASE_FORWARD);
        if (i == pipe->action_count)
            return TESS_OK;
        const struct tess_action *action = &pipe->action[i];
        const struct tess_chunk *chunk = &pipe->chunk[action->chunk];
        if (i > upto && action->micro > chunk->backward_done + chunk->slot_count)
            return TESS_OK;
        TESS_TRY(tess_comm_recv(pipe->forward, pipe_input(engine, action->chunk, action->micro),
                                (size_t)(chunk->input_count * engine->rows), engine->plan.dtype,
                                chunk->before,
                                pipe_input_event(pipe, action->chunk, action->micro)));
        pipe->input_posted = i + 1;
    }
    return TESS_OK;
}

/* The same for gradients: of two buffers, one is in use. */
static enum tess_status pipe_post_grads(struct tess_engine *engine, int32_t upto)
{
    struct tess_engine_pipe *pipe = &engine->pipe;
    for (int32_t i = -1; i <= upto;) {
        i = pipe_next_receive(pipe, pipe->grad_cursor, TESS_PHASE_BACKWARD);
        if (i == pipe->action_count || (i > upto && pipe->grad_posted > pipe->grad_received))
            return TESS_OK;
        const struct tess_chunk *chunk = &pipe->chunk[pipe->action[i].chunk];
        const int32_t turn = pipe->grad_posted++ % 2;
        TESS_TRY(tess_comm_recv(pipe->backward,
                                tess_memory_get(engine->memory, engine->block.stage_grad[turn]),
                                (size_t)pipe_output_count(engine, chunk), engine->plan.dtype,
                                chunk->after, &pipe->grad_event[turn]));
        pipe->grad_cursor = i + 1;
    }
    return TESS_OK;
}

/* The rows and labels of the next batch, where this chunk needs them, kept if others follow. */
static enum tess_status pipe_load(struct tess_engine *engine, struct tess_loader *loader,
                                  const struct tess_chunk *chunk, int32_t slot,
                                  struct tess_flight *flight)
{
    const void *input;
    const int32_t *label;
    TESS_TRY(tess__engine_batch(engine, loader, &input, &label));
    if (chunk->first)
        flight->input = input;
    if (chunk->last)
        flight->label = label;
    if (chunk->slot_count == 1)
        return TESS_OK;
    const int64_t rows = engine->rows * tess__engine_row_bytes(engine);
    const int64_t labels = engine->rows * engine->labels * (int64_t)sizeof *label;
    char *kept_input = tess_memory_get(engine->memory, engine->block.kept_input);
    char *kept_label = tess_memory_get(engine->memory, engine->block.kept_label);
    if (chunk->first) {
        flight->input = kept_input + slot * rows;
        tess_copy(engine->kernel, rows, input, kept_input + slot * rows);
    }
    if (chunk->last) {
        flight->label = (const int32_t *)(const void *)(kept_label + slot * labels);
        tess_copy(engine->kernel, labels, label, kept_label + slot * labels);
    }
    return TESS_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* What the processor has done for this rank, where that is to be known. */
static double pipe_spent_s(const struct tess_engine_pipe *pipe)
{
    return pipe->timed ? tess_clock_thread_s() : 0;
}

static uint64_t pipe_row_first(const struct tess_engine *engine)
{
    return (
        uint64_t)(tess_layout_first_leaf(&engine->plan, engine->plan.rank, engine->strategy.micro) *
                  engine->leaf_rows);
}

static enum tess_status pipe_forward(struct tess_engine *engine, int32_t i)
{
    struct tess_engine_pipe *pipe = &engine->pipe;
    const struct tess_action action = pipe->action[i];
    struct tess_chunk *chunk = &pipe->chunk[action.chunk];
    const int32_t slot = action.micro % chunk->slot_count;
    struct tess_flight *flight = &pipe->flight[action.chunk * pipe->slot_max + slot];
    TESS_TRY(tess__laps_enter(engine, TESS_LAP_DATA));
    TESS_TRY(tess_event_wait(&flight->sent)); /* of the micro-batch that had the slot before */
    if (chunk->first || chunk->last)
        TESS_TRY(pipe_load(engine, engine->loader, chunk, slot, flight));
    TESS_TRY(tess__laps_enter(engine, TESS_LAP_FORWARD));
    if (!chunk->first) {
        TESS_TRY(pipe_post_inputs(engine, i));
        flight->input = pipe_input(engine, action.chunk, action.micro);
        tess__engine_doing(engine, TESS_DOING_INPUT, chunk->unit_first);
        TESS_TRY(tess_event_wait(pipe_input_event(pipe, action.chunk, action.micro)));
    }
    if (pipe->forward != NULL)
        TESS_TRY(pipe_post_inputs(engine, i));
    const double begin_s = pipe_spent_s(pipe);
    TESS_TRY(tess__engine_forward(engine, action.chunk, slot, pipe_row_first(engine)));
    chunk->cost.forward_s += pipe_spent_s(pipe) - begin_s;
    chunk->cost.forwards += pipe->timed;
    chunk->forward_done++;
    if (!chunk->last) {
        TESS_TRY(tess__engine_check_output(engine, action.chunk, slot));
        TESS_TRY(tess_comm_send(
            pipe->forward,
            engine->unit_output[slot * engine->plan.unit_count + chunk->unit_end - 1],
            (size_t)pipe_output_count(engine, chunk), engine->plan.dtype, chunk->after,
            &flight->sent));
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
    int64_t rows = engine->loss_ranks * engine->rows;
    /* Whoever computes later than the call tells by the verdict, when the step is over. */
    int64_t bad = engine->kernel->queue == NULL
                      ? tess_find_nonfinite(engine->kernel, TESS_F32, rows, engine->loss)
                      : -1;
    if (bad >= 0)
        return tess__engine_diagnose(engine, engine->pipe.chunk_count - 1, slot, bad);
    if (engine->plan.mesh.at[TESS_AXIS_TENSOR] > 0)
        return TESS_OK; /* the first rank of the axis has the same */
    for (int64_t leaf = 0; leaf < engine->loss_ranks * engine->leaf_count;
         leaf += engine->leaf_count)
        tess_leaf_sum(
            engine->kernel, engine->leaf_count, engine->leaf_rows,
            engine->loss + leaf * engine->leaf_rows, engine->correct + leaf * engine->leaf_rows,
            engine->leaf_sum + 2 * tess__engine_leaf_index(engine, leaf), engine->verdict);
    return TESS_OK;
}

/* The buffer for the gradient of a chunk's input, when what it held before has been sent. */
static enum tess_status pipe_take_grad_out(struct tess_engine *engine, void **grad_out)
{
    const int32_t turn = 2 + engine->pipe.grad_sent % 2;
    *grad_out = tess_memory_get(engine->memory, engine->block.stage_grad[turn]);
    return tess_event_wait(&engine->pipe.grad_event[turn]);
}

static enum tess_status pipe_backward(struct tess_engine *engine, int32_t i)
{
    struct tess_engine_pipe *pipe = &engine->pipe;
    const struct tess_action action = pipe->action[i];
    struct tess_chunk *chunk = &pipe->chunk[action.chunk];
    const int32_t slot = action.micro % chunk->slot_count;
    void *grad_in = NULL, *grad_out = NULL;
    double begin_s = pipe_spent_s(pipe);
    if (chunk->last) {
        TESS_TRY(tess__engine_loss(engine, slot, true));
        if (engine->model.labels == 0)
            TESS_TRY(pipe_sum_leaves(engine, slot));
        TESS_TRY(tess__laps_enter(engine, TESS_LAP_BACKWARD));
    } else {
        TESS_TRY(tess__laps_enter(engine, TESS_LAP_BACKWARD));
        TESS_TRY(pipe_post_grads(engine, i));
        const int32_t turn = pipe->grad_received++ % 2;
        grad_in = tess_memory_get(engine->memory, engine->block.stage_grad[turn]);
        tess__engine_doing(engine, TESS_DOING_GRADIENT, chunk->unit_end - 1);
        TESS_TRY(tess_event_wait(&pipe->grad_event[turn]));
    }
    if (pipe->backward != NULL)
        TESS_TRY(pipe_post_grads(engine, i));
    if (!chunk->first)
        TESS_TRY(pipe_take_grad_out(engine, &grad_out));
    pipe_bind_grads(engine, chunk);
    if (!chunk->last)
        begin_s = pipe_spent_s(pipe); /* waiting may spin a while */
    TESS_TRY(tess__engine_backward(engine, action.chunk, slot, pipe_row_first(engine), grad_in,
                                   grad_out));
    if (chunk->last && engine->model.labels > 0)
        TESS_TRY(pipe_sum_leaves(engine, slot));
    chunk->cost.backward_s += pipe_spent_s(pipe) - begin_s;
    chunk->cost.backwards += pipe->timed;
    chunk->backward_done++;
    if (!chunk->first)
        TESS_TRY(tess_comm_send(pipe->backward, grad_out,
                                (size_t)(chunk->input_count * engine->rows), engine->plan.dtype,
                                chunk->before, &pipe->grad_event[2 + pipe->grad_sent++ % 2]));
    return TESS_OK;
}

/* Buffers that were sent must have arrived before the next step, or an evaluation, fills them. */
static enum tess_status pipe_drain(struct tess_engine_pipe *pipe)
{
    for (int32_t i = 0; i < pipe->chunk_count * pipe->slot_max; i++)
        TESS_TRY(tess_event_wait(&pipe->flight[i].sent));
    for (int i = 2; i < 4; i++)
        TESS_TRY(tess_event_wait(&pipe->grad_event[i]));
    return TESS_OK;
}

enum tess_status tess__engine_pipe_step(struct tess_engine *engine)
{
    struct tess_engine_pipe *pipe = &engine->pipe;
    for (int32_t c = 0; c < pipe->chunk_count; c++)
        pipe->chunk[c].forward_done = pipe->chunk[c].backward_done = 0;
    pipe->input_posted = pipe->grad_cursor = 0;
    pipe->grad_posted = pipe->grad_received = pipe->grad_sent = 0;
    for (int32_t i = 0; i < pipe->action_count; i++) {
        engine->strategy.micro = pipe->action[i].micro;
        if (pipe->action[i].phase == TESS_PHASE_FORWARD)
            TESS_TRY(pipe_forward(engine, i));
        else
            TESS_TRY(pipe_backward(engine, i));
    }
    return pipe_drain(pipe);
}

/* ---- what chunks cost ------------------------------------------------------------------------ */

void tess_engine_time_chunks(struct tess_engine *engine, bool on)
{
    engine->pipe.timed = on;
}

int32_t tess_engine_chunk_count(const struct tess_engine *engine)
{
    return engine->pipe.chunk_count;
}

struct tess_chunk_cost tess_engine_chunk_cost(const struct tess_engine *engine, int32_t chunk)
{
    return engine->pipe.chunk[chunk].cost;
}

/* ---- evaluation ------------------------------------------------------------------------------ */

enum tess_status tess__engine_pipe_evaluate(struct tess_engine *engine)
{
    struct tess_engine_pipe *pipe = &engine->pipe;
    for (int32_t c = 0; c < pipe->chunk_count; c++) {
        struct tess_chunk *chunk = &pipe->chunk[c];
        struct tess_flight *flight = &pipe->flight[c * pipe->slot_max];
        TESS_TRY(tess_event_wait(&flight->sent));
        if (chunk->first || chunk->last)
            TESS_TRY(pipe_load(engine, engine->test_loader, chunk, 0, flight));
        if (!chunk->first) {
            flight->input = pipe_input(engine, c, 0);
            tess__engine_doing(engine, TESS_DOING_INPUT, chunk->unit_first);
            TESS_TRY(tess_comm_recv(pipe->forward, pipe_input(engine, c, 0),
                                    (size_t)(chunk->input_count * engine->rows), engine->plan.dtype,
                                    chunk->before, NULL));
        }
        TESS_TRY(tess__engine_forward(engine, c, 0, 0));
        if (chunk->last)
            TESS_TRY(tess__engine_loss(engine, 0, false));
        else
            TESS_TRY(tess_comm_send(pipe->forward, engine->unit_output[chunk->unit_end - 1],
                                    (size_t)pipe_output_count(engine, chunk), engine->plan.dtype,
                                    chunk->after, &flight->sent));
    }
    return TESS_OK;
}
