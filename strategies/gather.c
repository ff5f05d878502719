/* Gathered parameters of the unit that runs and of the next one; see gather.h. */
#include "gather.h"

#include "shard.h"

#include "tessera/check.h"

#include <stdlib.h>

enum tess_status tess__gather_reserve(struct tess_gather *gather, struct tess_strategy *strategy,
                                      bool keep)
{
    const struct tess_plan *plan = strategy->plan;
    const uint64_t dtype_bytes = tess_dtype_bytes(plan->dtype);
    int64_t largest = 0;
    for (int32_t s = 0; s < plan->segment_count; s++)
        if (plan->segment[s].count > largest)
            largest = plan->segment[s].count;
    gather->keep = keep;
    gather->slot_count = keep || plan->segment_count < 2 ? plan->segment_count : 2;
    gather->stride = (uint64_t)largest * dtype_bytes;
    uint64_t bytes = keep ? (uint64_t)plan->flat_count * dtype_bytes
                          : (uint64_t)gather->slot_count * gather->stride;
    return tess_memory_reserve(strategy->memory, TESS_MEMORY_GATHERED, bytes, "gathered units",
                               &gather->block);
}

enum tess_status tess__gather_open(struct tess_gather *gather, struct tess_strategy *strategy,
                                   struct tess_comm *shard)
{
    const struct tess_plan *plan = strategy->plan;
    char *memory = tess_memory_get(strategy->memory, gather->block);
    gather->shard = shard;
    gather->slot = calloc((size_t)gather->slot_count + 1, sizeof(*gather->slot));
    gather->segment_of = calloc((size_t)plan->unit_count + 1, sizeof(*gather->segment_of));
    if (gather->slot == NULL || gather->segment_of == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d gathered units", (int)gather->slot_count);
    for (int32_t i = 0; i < gather->slot_count; i++) {
        gather->slot[i].segment = -1;
        gather->slot[i].buffer =
            gather->keep ? memory + (uint64_t)plan->segment[i].begin * tess_dtype_bytes(plan->dtype)
                         : memory + (uint64_t)i * gather->stride;
    }
    for (int32_t u = 0; u < plan->unit_count; u++)
        gather->segment_of[u] = -1;
    for (int32_t s = 0; s < plan->segment_count; s++)
        gather->segment_of[plan->segment[s].unit_first] = s;
    return TESS_OK;
}

void tess__gather_close(struct tess_gather *gather)
{
    free(gather->segment_of);
    free(gather->slot);
    gather->segment_of = NULL;
    gather->slot = NULL;
}

/* The slot that holds segment `s`, or else the one to gather it into: not that of the current unit.
 */
static int32_t gather_slot_for(const struct tess_gather *gather, int32_t s)
{
    if (gather->keep)
        return s;
    for (int32_t i = 0; i < gather->slot_count; i++)
        if (gather->slot[i].segment == s)
            return i;
    return gather->slot_count == 2 ? 1 - gather->current : 0;
}

/* Have segment `s` in a slot, or on its way into one. */
static enum tess_status gather_launch(struct tess_gather *gather, struct tess_plan *plan, int32_t s,
                                      int32_t *slot_out)
{
    int32_t i = gather_slot_for(gather, s);
    struct tess_gather_slot *slot = &gather->slot[i];
    *slot_out = i;
    if (slot->segment == s)
        return TESS_OK;
    if (slot->segment >= 0)
        plan->segment[slot->segment].param = NULL;
    slot->segment = s;
    return tess_comm_all_gather(gather->shard, plan->segment[s].param_own, slot->buffer,
                                (size_t)tess_plan_own_count(plan, s, TESS_EXTENT_SHARD),
                                plan->dtype, &slot->event);
}

enum tess_status tess__gather_enter(struct tess_gather *gather, struct tess_strategy *strategy,
                                    int32_t unit, enum tess_phase phase)
{
    struct tess_plan *plan = strategy->plan;
    const int32_t s = gather->segment_of[unit];
    if (s < 0)
        return TESS_OK;
    int32_t i;
    TESS_TRY(gather_launch(gather, plan, s, &i));
    gather->current = i;
    /* Queue the next unit before waiting for this one: both are then on their way together. */
    const int32_t next = phase == TESS_PHASE_FORWARD ? s + 1 : s - 1;
    int32_t ahead;
    if (next >= 0 && next < plan->segment_count)
        TESS_TRY(gather_launch(gather, plan, next, &ahead));
    TESS_TRY(tess_event_wait(&gather->slot[i].event));
    plan->segment[s].param = gather->slot[i].buffer;
    return TESS_OK;
}

void tess__gather_forget(struct tess_gather *gather, struct tess_plan *plan)
{
    for (int32_t i = 0; i < gather->slot_count; i++) {
        if (gather->slot[i].segment >= 0)
            plan->segment[gather->slot[i].segment].param = NULL;
        gather->slot[i].segment = -1;
    }
}

uint64_t tess__gather_sent_bytes(const struct tess_plan *plan, bool keep)
{
    const int32_t count = plan->segment_count;
    uint64_t all = 0, first = 0, last = 0;
    for (int32_t s = 0; s < count; s++) {
        uint64_t bytes = tess__shard_gather_bytes(
            (uint64_t)plan->segment[s].count * tess_dtype_bytes(plan->dtype), plan->shard_count);
        all += bytes;
        first += s < 2 ? bytes : 0;
        last += s >= count - 2 ? bytes : 0;
    }
    if (keep || count <= 2)
        return all;
    const uint64_t micros = plan->accumulate > 1 ? (uint64_t)plan->accumulate : 1;
    return all + (micros - 1) * (all - first) + micros * (all - last);
}
