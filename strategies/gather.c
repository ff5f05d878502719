/* Gathered parameters of the unit that runs and of the next one; see gather.h. */
#include "gather.h"

#include "shard.h"

#include "tessera/check.h"

#include <stdlib.h>

/* Elements of buffer `i`. */
static int64_t gather_buffer_count(const struct tess_gather *gather, const struct tess_plan *plan,
                                   int32_t i)
{
    if (gather->keep_last == TESS_GATHER_ALL && plan->segment[i].values_of >= 0)
        return 0;
    return tess__shard_buffer_count(plan, i, gather->slot_count);
}

enum tess_status tess__gather_reserve(struct tess_gather *gather, struct tess_strategy *strategy,
                                      int32_t keep_last)
{
    const struct tess_plan *plan = strategy->plan;
    const bool all = keep_last == TESS_GATHER_ALL;
    uint64_t bytes = 0;
    gather->keep_last = keep_last;
    gather->slot_count = all || plan->segment_count < 2 ? plan->segment_count : 2;
    for (int32_t i = 0; i < gather->slot_count; i++)
        bytes += (uint64_t)gather_buffer_count(gather, plan, i) * tess_dtype_bytes(plan->dtype);
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
        gather->slot[i].buffer = memory;
        memory += (uint64_t)gather_buffer_count(gather, plan, i) * tess_dtype_bytes(plan->dtype);
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
}

static void gather_drop(struct tess_gather_slot *slot, struct tess_plan *plan)
{
    for (int32_t s = 0; s < plan->segment_count && slot->segment >= 0; s++)
        if (plan->segment[s].param == slot->buffer)
            plan->segment[s].param = NULL;
    slot->segment = -1;
}

/* The segment whose values stand for those of `s`. */
static int32_t gather_source(const struct tess_gather *gather, const struct tess_plan *plan,
                             int32_t s)
{
    const bool shared = gather->keep_last == TESS_GATHER_ALL && plan->segment[s].values_of >= 0;
    return shared ? plan->segment[s].values_of : s;
}

/* Have the values of segment `s` in their buffer, or on their way there. */
static enum tess_status gather_launch(struct tess_gather *gather, struct tess_plan *plan, int32_t s,
                                      struct tess_gather_slot **slot_out)
{
    const int32_t source = gather_source(gather, plan, s);
    struct tess_gather_slot *slot = &gather->slot[source % gather->slot_count];
    *slot_out = slot;
    if (slot->segment == source)
        return TESS_OK;
    /* Whatever is here was gathered ahead or kept for a unit that has not come: it may still be on
     * its way. */
    TESS_TRY(tess_event_wait(&slot->event));
    gather_drop(slot, plan);
    slot->segment = source;
    return tess_comm_all_gather(gather->shard, plan->segment[source].param_own, slot->buffer,
                                (size_t)tess_plan_own_count(plan, source, TESS_EXTENT_SHARD),
                                plan->dtype, &slot->event);
}

enum tess_status tess__gather_enter(struct tess_gather *gather, struct tess_strategy *strategy,
                                    int32_t unit, enum tess_phase phase)
{
    struct tess_plan *plan = strategy->plan;
    const int32_t s = gather->segment_of[unit];
    struct tess_gather_slot *slot, *ahead;
    if (s < 0)
        return TESS_OK;
    TESS_TRY(gather_launch(gather, plan, s, &slot));
    /* Queue the next unit before waiting for this one: both are then on their way together. Its
     * buffer is the one of the unit before this, which was dropped when it was left. */
    const int32_t next = phase == TESS_PHASE_FORWARD ? s + 1 : s - 1;
    if (next >= 0 && next < plan->segment_count &&
        tess__shard_chunk(plan, next) == tess__shard_chunk(plan, s))
        TESS_TRY(gather_launch(gather, plan, next, &ahead));
    TESS_TRY(tess_event_wait(&slot->event));
    plan->segment[s].param = slot->buffer;
    return TESS_OK;
}

void tess__gather_leave(struct tess_gather *gather, struct tess_strategy *strategy, int32_t unit,
                        enum tess_phase phase)
{
    struct tess_plan *plan = strategy->plan;
    const int32_t s = gather->segment_of[unit];
    if (s < 0 || gather->keep_last == TESS_GATHER_ALL)
        return;
    /* An evaluation has no backward to keep anything for; a step after it must find nothing. */
    if (phase == TESS_PHASE_FORWARD && strategy->training &&
        s >= plan->segment_count - gather->keep_last)
        return;
    gather_drop(&gather->slot[s % gather->slot_count], plan);
}

void tess__gather_forget(struct tess_gather *gather, struct tess_plan *plan)
{
    for (int32_t i = 0; i < gather->slot_count; i++)
        gather_drop(&gather->slot[i], plan);
}

uint64_t tess__gather_sent_bytes(const struct tess_plan *plan, int32_t keep_last)
{
    const int32_t count = plan->segment_count;
    uint64_t all = 0, last = 0;
    for (int32_t s = 0; s < count; s++) {
        uint64_t bytes = tess__shard_scatter_bytes(
            (uint64_t)plan->segment[s].count * tess_dtype_bytes(plan->dtype), plan->shard_count);
        if (keep_last == TESS_GATHER_ALL && plan->segment[s].values_of >= 0)
            continue;
        all += bytes;
        last += s >= count - keep_last ? bytes : 0;
    }
    return keep_last == TESS_GATHER_ALL ? all : (uint64_t)plan->accumulate * (2 * all - last);
}
