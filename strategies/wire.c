/* The type in which gradients travel; see wire.h. Not what is sent, nor when. */
#include "wire.h"

#include "tessera/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum tess_dtype tess__wire_dtype(const struct tess_plan *plan)
{
    return plan->rank_count > 1 ? plan->reduce_dtype : TESS_F32;
}

uint64_t tess__wire_segment_bytes(const struct tess_plan *plan, int32_t s)
{
    return (uint64_t)plan->segment[s].count * tess_dtype_bytes(tess__wire_dtype(plan));
}

enum tess_status tess__wire_reserve(struct tess_strategy *strategy, int64_t count)
{
    struct tess_wire *wire = strategy->state;
    wire->dtype = tess__wire_dtype(strategy->plan);
    if (wire->dtype == TESS_F32)
        return TESS_OK;
    char owner[64];
    snprintf(owner, sizeof(owner), "gradients in %s", tess_dtype_name(wire->dtype));
    return tess_memory_reserve(strategy->memory, TESS_MEMORY_BUCKET,
                               (uint64_t)count * tess_dtype_bytes(wire->dtype), owner,
                               &wire->block);
}

enum tess_status tess__wire_reserve_flat(struct tess_strategy *strategy)
{
    return tess__wire_reserve(strategy, strategy->plan->grad_count);
}

enum tess_status tess__wire_open(struct tess_strategy *strategy)
{
    struct tess_wire *wire = strategy->state;
    const int32_t segments = strategy->plan->segment_count;
    wire->event = calloc((size_t)segments + 1, sizeof(*wire->event));
    if (wire->event == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the calls of %d segments", (int)segments);
    wire->memory = tess_memory_get(strategy->memory, wire->block);
    return TESS_OK;
}

void tess__wire_close(struct tess_strategy *strategy)
{
    free(((struct tess_wire *)strategy->state)->event);
}

enum tess_status tess__wire_unit_leave(struct tess_strategy *strategy, int32_t unit,
                                       enum tess_phase phase)
{
    (void)unit;
    return phase == TESS_PHASE_BACKWARD ? tess_comm_poll(strategy->comm) : TESS_OK;
}

void *tess__wire_place(const struct tess_strategy *strategy, int64_t at, float *grad)
{
    const struct tess_wire *wire = strategy->state;
    if (wire->dtype == TESS_F32)
        return grad;
    return wire->memory + (size_t)at * tess_dtype_bytes(wire->dtype);
}

void *tess__wire_pack(const struct tess_strategy *strategy, int64_t at, int64_t count, float *grad)
{
    const struct tess_wire *wire = strategy->state;
    void *place = tess__wire_place(strategy, at, grad);
    if (wire->dtype != TESS_F32)
        tess_cast(strategy->kernel, count, TESS_F32, grad, wire->dtype, place);
    return place;
}

void tess__wire_unpack(const struct tess_strategy *strategy, int64_t at, int64_t count, float *grad)
{
    const struct tess_wire *wire = strategy->state;
    if (wire->dtype != TESS_F32)
        tess_cast(strategy->kernel, count, wire->dtype, tess__wire_place(strategy, at, grad),
                  TESS_F32, grad);
}

enum tess_status tess__wire_wait_tied(const struct tess_strategy *strategy, int32_t s)
{
    const struct tess_wire *wire = strategy->state;
    for (int32_t t = 0; t < strategy->plan->grad_segment_count; t++)
        if (strategy->plan->segment[t].values_of == s)
            TESS_TRY(tess_event_wait(&wire->event[t]));
    return TESS_OK;
}

void tess__wire_describe(const struct tess_strategy *strategy, const char *sent,
                         void (*line)(void *context, const char *text), void *context)
{
    const enum tess_dtype dtype = tess__wire_dtype(strategy->plan);
    char text[160];
    if (dtype != TESS_F32) {
        snprintf(text, sizeof(text),
                 "gradients travel as copies in %s: added in f32, rounded once in each reduction",
                 tess_dtype_name(dtype));
        line(context, text);
    }
    snprintf(text, sizeof(text), "sent by %s %" PRIu64 " bytes", sent,
             strategy->ops->sent_bytes(strategy));
    line(context, text);
}
