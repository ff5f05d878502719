/* The type in which gradients travel; see wire.h. Not what is sent, nor when. */
#include "wire.h"

#include <stdio.h>

enum tess_dtype tess__wire_dtype(const struct tess_plan *plan)
{
    return plan->rank_count > 1 ? plan->reduce_dtype : TESS_F32;
}

uint64_t tess__wire_segment_bytes(const struct tess_plan *plan, int32_t s)
{
    return (uint64_t)plan->segment[s].count * tess_dtype_bytes(tess__wire_dtype(plan));
}

enum tess_status tess__wire_reserve(struct tess_wire *wire, struct tess_strategy *strategy,
                                    int64_t count)
{
    wire->dtype = tess__wire_dtype(strategy->plan);
    if (wire->dtype == TESS_F32)
        return TESS_OK;
    char owner[64];
    snprintf(owner, sizeof(owner), "gradients in %s", tess_dtype_name(wire->dtype));
    return tess_memory_reserve(strategy->memory, TESS_MEMORY_BUCKET,
                               (uint64_t)count * tess_dtype_bytes(wire->dtype), owner,
                               &wire->block);
}

void tess__wire_open(struct tess_wire *wire, const struct tess_strategy *strategy)
{
    wire->memory = tess_memory_get(strategy->memory, wire->block);
}

void *tess__wire_place(const struct tess_wire *wire, int64_t at, float *grad)
{
    if (wire->dtype == TESS_F32)
        return grad;
    return wire->memory + (size_t)at * tess_dtype_bytes(wire->dtype);
}

void *tess__wire_pack(const struct tess_wire *wire, struct tess_kernel *kernel, int64_t at,
                      int64_t count, float *grad)
{
    void *place = tess__wire_place(wire, at, grad);
    if (wire->dtype != TESS_F32)
        tess_cast(kernel, count, TESS_F32, grad, wire->dtype, place);
    return place;
}

void tess__wire_unpack(const struct tess_wire *wire, struct tess_kernel *kernel, int64_t at,
                       int64_t count, float *grad)
{
    if (wire->dtype != TESS_F32)
        tess_cast(kernel, count, wire->dtype, tess__wire_place(wire, at, grad), TESS_F32, grad);
}

void tess__wire_describe(const struct tess_plan *plan,
                         void (*line)(void *context, const char *text), void *context)
{
    const enum tess_dtype dtype = tess__wire_dtype(plan);
    char text[160];
    if (dtype == TESS_F32)
        return;
    snprintf(text, sizeof(text),
             "gradients travel as copies in %s: added in f32, rounded once in each reduction",
             tess_dtype_name(dtype));
    line(context, text);
}
