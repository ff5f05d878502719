/* Messages between the stages of a pipeline, see stages.h. */
#include "core/stages.h"

#include "tessera/check.h"

#include <stdlib.h>

/* ---- memory ---------------------------------------------------------------------------------- */

/* Elements of a chunk's output in a micro-batch. */
static int64_t stages_output_count(const struct tess_stages *stages, int32_t chunk)
{
    const int32_t last = stages->schedule->chunk[chunk].unit_end - 1;
    return stages->declare->unit[last].output_count * stages->sizes->rows;
}

int64_t tess__stages_input_count(const struct tess_stages *stages, int32_t chunk)
{
    return stages->schedule->chunk[chunk].input_count * stages->sizes->rows;
}

static int64_t stages_input_bytes(const struct tess_stages *stages, int32_t chunk)
{
    const int64_t count = tess__stages_input_count(stages, chunk);
    return (int64_t)tess_round_up((uint64_t)count * stages->sizes->dtype_bytes, 64);
}

enum tess_status tess__stages_reserve(struct tess_stages *stages)
{
    const struct tess_schedule *schedule = stages->schedule;
    const size_t chunks = (size_t)schedule->chunk_count, slots = (size_t)schedule->slot_max;
    int64_t bytes = 0, in = 0, out = 0;
    stages->flight = calloc(chunks * slots, sizeof(*stages->flight));
    stages->input_event = calloc(chunks * (slots + 1), sizeof(*stages->input_event));
    stages->input_begin = calloc(chunks, sizeof(*stages->input_begin));
    if (stages->flight == NULL || stages->input_event == NULL || stages->input_begin == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d micro-batches under way", schedule->slot_max);
    for (int32_t c = 0; c < schedule->chunk_count; c++) {
        const int64_t input = stages_input_bytes(stages, c);
        const int64_t output = stages_output_count(stages, c) * (int64_t)stages->sizes->dtype_bytes;
        stages->input_begin[c] = bytes;
        bytes += input * (schedule->chunk[c].slot_count + 1);
        out = input > out ? input : out;
        in = !schedule->chunk[c].last && output > in ? output : in;
    }
    TESS_TRY(tess_memory_reserve(stages->memory, TESS_MEMORY_ACTIVATION, (uint64_t)bytes,
                                 "activations from the stage before", &stages->input));
    for (int i = 0; i < 4; i++)
        TESS_TRY(tess_memory_reserve(
            stages->memory, TESS_MEMORY_ACTIVATION, (uint64_t)(i < 2 ? in : out),
            i < 2 ? "gradients from the stage after" : "gradients to the stage before",
            &stages->grad[i]));
    return TESS_OK;
}

enum tess_status tess__stages_open(struct tess_stages *stages, struct tess_comm *axis)
{
    if (axis->rank_count == 1)
        return TESS_OK;
    TESS_TRY(tess_comm_split(axis, 0, axis->rank, &stages->forward));
    return tess_comm_split(axis, 0, axis->rank, &stages->backward);
}

void tess__stages_close(struct tess_stages *stages)
{
    tess_comm_close(stages->backward);
    tess_comm_close(stages->forward);
    free(stages->flight);
    free(stages->input_event);
    free(stages->input_begin);
}

/* ---- messages -------------------------------------------------------------------------------- */

void tess__stages_begin(struct tess_stages *stages)
{
    stages->input_posted = stages->grad_cursor = 0;
    stages->grad_posted = stages->grad_received = stages->grad_sent = 0;
}

enum tess_status tess__stages_end(struct tess_stages *stages)
{
    const struct tess_schedule *schedule = stages->schedule;
    for (int32_t i = 0; i < schedule->chunk_count * schedule->slot_max; i++)
        TESS_TRY(tess_event_wait(&stages->flight[i].sent));
    for (int i = 2; i < 4; i++)
        TESS_TRY(tess_event_wait(&stages->grad_event[i]));
    return TESS_OK;
}

void *tess__stages_input(const struct tess_stages *stages, int32_t chunk, int32_t micro)
{
    char *memory = tess_memory_get(stages->memory, stages->input);
    return memory + stages->input_begin[chunk] +
           micro % (stages->schedule->chunk[chunk].slot_count + 1) *
               stages_input_bytes(stages, chunk);
}

static struct tess_event *stages_input_event(struct tess_stages *stages, int32_t chunk,
                                             int32_t micro)
{
    const struct tess_schedule *schedule = stages->schedule;
    return &stages->input_event[chunk * (schedule->slot_max + 1) +
                                micro % (schedule->chunk[chunk].slot_count + 1)];
}

enum tess_status tess__stages_wait_input(struct tess_stages *stages, int32_t chunk, int32_t micro)
{
    return tess_event_wait(stages_input_event(stages, chunk, micro));
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

enum tess_status tess__stages_post_inputs(struct tess_stages *stages, int32_t upto)
{
    const struct tess_schedule *schedule = stages->schedule;
    for (int32_t i = -1; i <= upto && stages->forward != NULL;) {
        i = stages_next_receive(schedule, stages->input_posted, TESS_PHASE_FORWARD);
        if (i == schedule->action_count)
            return TESS_OK;
        const struct tess_action *action = &schedule->action[i];
        const struct tess_chunk *chunk = &schedule->chunk[action->chunk];
        if (i > upto && action->micro > chunk->backward_done + chunk->slot_count)
            return TESS_OK;
        TESS_TRY(tess_comm_recv(
            stages->forward, tess__stages_input(stages, action->chunk, action->micro),
            (size_t)tess__stages_input_count(stages, action->chunk), stages->dtype, chunk->before,
            stages_input_event(stages, action->chunk, action->micro)));
        stages->input_posted = i + 1;
    }
    return TESS_OK;
}

/* Of two buffers, one is in use. */
enum tess_status tess__stages_post_grads(struct tess_stages *stages, int32_t upto)
{
    const struct tess_schedule *schedule = stages->schedule;
    for (int32_t i = -1; i <= upto && stages->backward != NULL;) {
        i = stages_next_receive(schedule, stages->grad_cursor, TESS_PHASE_BACKWARD);
        if (i == schedule->action_count ||
            (i > upto && stages->grad_posted > stages->grad_received))
            return TESS_OK;
        const int32_t chunk = schedule->action[i].chunk, turn = stages->grad_posted++ % 2;
        TESS_TRY(tess_comm_recv(stages->backward,
                                tess_memory_get(stages->memory, stages->grad[turn]),
                                (size_t)stages_output_count(stages, chunk), stages->dtype,
                                schedule->chunk[chunk].after, &stages->grad_event[turn]));
        stages->grad_cursor = i + 1;
    }
    return TESS_OK;
}

enum tess_status tess__stages_send_output(struct tess_stages *stages, int32_t chunk,
                                          const void *output, struct tess_flight *flight)
{
    return tess_comm_send(stages->forward, output, (size_t)stages_output_count(stages, chunk),
                          stages->dtype, stages->schedule->chunk[chunk].after, &flight->sent);
}

enum tess_status tess__stages_wait_grad(struct tess_stages *stages, void **grad_out)
{
    const int32_t turn = stages->grad_received++ % 2;
    *grad_out = tess_memory_get(stages->memory, stages->grad[turn]);
    return tess_event_wait(&stages->grad_event[turn]);
}

enum tess_status tess__stages_take_grad(struct tess_stages *stages, void **grad_out)
{
    const int32_t turn = 2 + stages->grad_sent % 2;
    *grad_out = tess_memory_get(stages->memory, stages->grad[turn]);
    return tess_event_wait(&stages->grad_event[turn]);
}

enum tess_status tess__stages_send_grad(struct tess_stages *stages, int32_t chunk, const void *grad)
{
    return tess_comm_send(stages->backward, grad, (size_t)tess__stages_input_count(stages, chunk),
                          stages->dtype, stages->schedule->chunk[chunk].before,
                          &stages->grad_event[2 + stages->grad_sent++ % 2]);
}
