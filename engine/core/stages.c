/*
 * Activations and gradients between the stages of a pipeline: their memory, and what is sent and
 * received when.
 *
 *     input     | chunk 0: slots + 1 buffers | chunk 1 ...   requested one ahead
 *     grad      | in 0 | in 1 | out 0 | out 1 |              in turn
 *
 * Activations go over one group and gradients over another, so that in each the messages between
 * two ranks come in the order of the forward, or backward, actions of both.
 */
#include "core/state.h"

#include "tessera/check.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/* Elements of a chunk's output in a micro-batch. */
static int64_t stages_output_count(const struct tess_engine *engine, int32_t chunk)
{
    const int32_t last = engine->schedule.chunk[chunk].unit_end - 1;
    return engine->declare.unit[last].output_count * engine->sizes.rows;
}

int64_t tess__stages_input_count(const struct tess_engine *engine, int32_t chunk)
{
    return engine->schedule.chunk[chunk].input_count * engine->sizes.rows;
}

static int64_t stages_input_bytes(const struct tess_engine *engine, int32_t chunk)
{
    const int64_t count = tess__stages_input_count(engine, chunk);
    return (int64_t)tess_round_up((uint64_t)count * engine->sizes.dtype_bytes, 64);
}

enum tess_status tess__stages_reserve(struct tess_engine *engine)
{
    const struct tess_schedule *schedule = &engine->schedule;
    struct tess_stages *stages = &engine->stages;
    const int64_t chunks = schedule->chunk_count, slots = schedule->slot_max;
    int64_t bytes = 0, in = 0, out = 0;
    stages->flight = tess__engine_room(engine, chunks * slots, sizeof(*stages->flight));
    stages->input_event =
        tess__engine_room(engine, chunks * (slots + 1), sizeof(*stages->input_event));
    stages->input_begin = tess__engine_room(engine, chunks, sizeof(*stages->input_begin));
    TESS_TRY(tess__engine_has_room(engine));
    for (int32_t c = 0; c < schedule->chunk_count; c++) {
        const int64_t input = stages_input_bytes(engine, c);
        const int64_t output = stages_output_count(engine, c) * (int64_t)engine->sizes.dtype_bytes;
        stages->input_begin[c] = bytes;
        bytes += input * (schedule->chunk[c].slot_count + 1);
        out = input > out ? input : out;
        in = !schedule->chunk[c].last && output > in ? output : in;
    }
    TESS_TRY(tess_memory_reserve(engine->memory, TESS_MEMORY_ACTIVATION, (uint64_t)bytes,
                                 "activations from the stage before", &stages->input));
    for (int i = 0; i < 4; i++)
        TESS_TRY(tess_memory_reserve(
            engine->memory, TESS_MEMORY_ACTIVATION, (uint64_t)(i < 2 ? in : out),
            i < 2 ? "gradients from the stage after" : "gradients to the stage before",
            &stages->grad[i]));
    return TESS_OK;
}

/* All channels now: made at the first message, they would wait for calls that are under way. */
static enum tess_status stages_meet(struct tess_engine *engine)
{
    struct tess_comm *forward = engine->stages.forward, *backward = engine->stages.backward;
    const int32_t rank = forward->rank;
    for (int32_t c = 0; c < engine->schedule.chunk_count; c++) {
        const struct tess_chunk *chunk = &engine->schedule.chunk[c];
        if (!chunk->first) {
            TESS_TRY(tess_comm_meet(forward, chunk->before, rank));
            TESS_TRY(tess_comm_meet(backward, rank, chunk->before));
        }
        if (!chunk->last) {
            TESS_TRY(tess_comm_meet(forward, rank, chunk->after));
            TESS_TRY(tess_comm_meet(backward, chunk->after, rank));
        }
    }
    return tess__tied_meet(engine);
}

enum tess_status tess__stages_open(struct tess_engine *engine)
{
    struct tess_comm *axis = engine->axis_comm[TESS_AXIS_STAGE];
    if (axis->rank_count == 1)
        return TESS_OK;
    TESS_TRY(tess_comm_split(axis, 0, axis->rank, &engine->stages.forward));
    TESS_TRY(tess_comm_split(axis, 0, axis->rank, &engine->stages.backward));
    return stages_meet(engine);
}

/* ---- messages -------------------------------------------------------------------------------- */

void tess__stages_begin(struct tess_engine *engine)
{
    engine->stages.input_posted = engine->stages.grad_cursor = 0;
    engine->stages.grad_posted = engine->stages.grad_received = engine->stages.grad_sent = 0;
}

enum tess_status tess__stages_end(struct tess_engine *engine)
{
    const struct tess_schedule *schedule = &engine->schedule;
    for (int32_t i = 0; i < schedule->chunk_count * schedule->slot_max; i++)
        TESS_TRY(tess_event_wait(&engine->stages.flight[i].sent));
    for (int i = 2; i < 4; i++)
        TESS_TRY(tess_event_wait(&engine->stages.grad_event[i]));
    return TESS_OK;
}

void *tess__stages_input(const struct tess_engine *engine, int32_t chunk, int32_t micro)
{
    char *memory = tess_memory_get(engine->memory, engine->stages.input);
    return memory + engine->stages.input_begin[chunk] +
           micro % (engine->schedule.chunk[chunk].slot_count + 1) *
               stages_input_bytes(engine, chunk);
}

static struct tess_event *stages_input_event(struct tess_engine *engine, int32_t chunk,
                                             int32_t micro)
{
    const struct tess_schedule *schedule = &engine->schedule;
    return &engine->stages.input_event[chunk * (schedule->slot_max + 1) +
                                       micro % (schedule->chunk[chunk].slot_count + 1)];
}

enum tess_status tess__stages_wait_input(struct tess_engine *engine, int32_t chunk, int32_t micro)
{
    return tess_event_wait(stages_input_event(engine, chunk, micro));
}

/* The first action from `from` on, in this direction, with a message from another stage. */
static int32_t stages_next_receive(const struct tess_schedule *schedule, int32_t from,
                                   enum tess_phase phase)
{
    for (; from < schedule->action_count; from++) {
        const struct tess_chunk *chunk = &schedule->chunk[schedule->action[from].chunk];
        const bool end = phase == TESS_PHASE_FORWARD ? chunk->first : chunk->last;
        if (schedule->action[from].phase == phase && !end)
            break;
    }
    return from;
}

enum tess_status tess__stages_post_inputs(struct tess_engine *engine, int32_t upto)
{
    const struct tess_schedule *schedule = &engine->schedule;
    for (int32_t i = -1; i <= upto && engine->stages.forward != NULL;) {
        i = stages_next_receive(schedule, engine->stages.input_posted, TESS_PHASE_FORWARD);
        if (i == schedule->action_count)
            return TESS_OK;
        const struct tess_action *action = &schedule->action[i];
        const struct tess_chunk *chunk = &schedule->chunk[action->chunk];
        if (i > upto && action->micro > chunk->backward_done + chunk->slot_count)
            return TESS_OK;
        TESS_TRY(tess_comm_recv(
            engine->stages.forward, tess__stages_input(engine, action->chunk, action->micro),
            (size_t)tess__stages_input_count(engine, action->chunk), engine->plan.dtype,
            chunk->before, stages_input_event(engine, action->chunk, action->micro)));
        engine->stages.input_posted = i + 1;
    }
    return TESS_OK;
}

/* Of two buffers, one is in use. */
enum tess_status tess__stages_post_grads(struct tess_engine *engine, int32_t upto)
{
    const struct tess_schedule *schedule = &engine->schedule;
    for (int32_t i = -1; i <= upto && engine->stages.backward != NULL;) {
        i = stages_next_receive(schedule, engine->stages.grad_cursor, TESS_PHASE_BACKWARD);
        if (i == schedule->action_count ||
            (i > upto && engine->stages.grad_posted > engine->stages.grad_received))
            return TESS_OK;
        const int32_t chunk = schedule->action[i].chunk, turn = engine->stages.grad_posted++ % 2;
        TESS_TRY(tess_comm_recv(engine->stages.backward,
                                tess_memory_get(engine->memory, engine->stages.grad[turn]),
                                (size_t)stages_output_count(engine, chunk), engine->plan.dtype,
                                schedule->chunk[chunk].after, &engine->stages.grad_event[turn]));
        engine->stages.grad_cursor = i + 1;
    }
    return TESS_OK;
}

enum tess_status tess__stages_receive_input(struct tess_engine *engine, int32_t chunk,
                                            const void **input_out)
{
    void *input = tess__stages_input(engine, chunk, 0);
    *input_out = input;
    return tess_comm_recv(engine->stages.forward, input,
                          (size_t)tess__stages_input_count(engine, chunk), engine->plan.dtype,
                          engine->schedule.chunk[chunk].before, NULL);
}

enum tess_status tess__stages_receive_grad(struct tess_engine *engine, int32_t chunk,
                                           void **grad_out)
{
    *grad_out = tess_memory_get(engine->memory, engine->stages.grad[0]);
    return tess_comm_recv(engine->stages.backward, *grad_out,
                          (size_t)stages_output_count(engine, chunk), engine->plan.dtype,
                          engine->schedule.chunk[chunk].after, NULL);
}

enum tess_status tess__stages_send_output(struct tess_engine *engine, int32_t chunk, int32_t slot)
{
    const struct tess_chunk *from = &engine->schedule.chunk[chunk];
    const int32_t unit = from->unit_end - 1;
    const int64_t count = stages_output_count(engine, chunk);
    const void *output = tess__engine_output(engine, slot, unit);
    TESS_TRY(tess__audit_take_message(engine, TESS_AUDIT_OUTPUT, unit, output, count));
    return tess_comm_send(engine->stages.forward, output, (size_t)count, engine->plan.dtype,
                          from->after, &tess__stages_flight(engine, chunk, slot)->sent);
}

enum tess_status tess__stages_wait_grad(struct tess_engine *engine, void **grad_out)
{
    const int32_t turn = engine->stages.grad_received++ % 2;
    *grad_out = tess_memory_get(engine->memory, engine->stages.grad[turn]);
    return tess_event_wait(&engine->stages.grad_event[turn]);
}

enum tess_status tess__stages_take_grad(struct tess_engine *engine, void **grad_out)
{
    const int32_t turn = 2 + engine->stages.grad_sent % 2;
    *grad_out = tess_memory_get(engine->memory, engine->stages.grad[turn]);
    return tess_event_wait(&engine->stages.grad_event[turn]);
}

enum tess_status tess__stages_send_grad(struct tess_engine *engine, int32_t chunk, const void *grad)
{
    const struct tess_chunk *from = &engine->schedule.chunk[chunk];
    const int64_t count = tess__stages_input_count(engine, chunk);
    TESS_TRY(
        tess__audit_take_message(engine, TESS_AUDIT_INPUT_GRAD, from->unit_first, grad, count));
    return tess_comm_send(engine->stages.backward, grad, (size_t)count, engine->plan.dtype,
                          from->before,
                          &engine->stages.grad_event[2 + engine->stages.grad_sent++ % 2]);
}
