/* Gathered parameters of the unit that runs and of the next one; see gather.h. */
#include "gather.h"

#include "shard.h"

#include "tessera/check.h"

#include <stdlib.h>

/* Trained parameters, and frozen ones: units that have both have a segment in each lane. */
static struct tess_gather_lane gather_lane(const struct tess_plan *plan, int32_t lane, bool all)
{
    struct tess_gather_lane made = {.first = lane == 0 ? 0 : plan->grad_segment_count,
                                    .end =
                                        lane == 0 ? plan->grad_segment_count : plan->segment_count};
    const int32_t count = made.end - made.first;
    made.slot_count = all || count < 2 ? count : 2;
    return made;
}

/* Elements of buffer `i`. */
static int64_t gather_buffer_count(const struct tess_gather *gather, const struct tess_plan *plan,
                                   const struct tess_gather_lane *lane, int32_t i)
{
    if (gather->keep_last == TESS_GATHER_ALL && plan->segment[lane->first + i].values_of >= 0)
        return 0;
    return tess__shard_buffer_count(plan, lane->first, lane->end, i, lane->slot_count);
}

enum tess_status tess__gather_reserve(struct tess_gather *gather, struct tess_strategy *strategy,
                                      int32_t keep_last)
{
    const struct tess_plan *plan = strategy->plan;
    uint64_t bytes = 0;
    gather->keep_last = keep_last;
    for (int32_t l = 0; l < TESS_GATHER_LANES; l++) {
        struct tess_gather_lane *lane = &gather->lane[l];
        *lane = gather_lane(plan, l, keep_last == TESS_GATHER_ALL);
        for (int32_t i = 0; i < lane->slot_count; i++)
            bytes += (uint64_t)gather_buffer_count(gather, plan, lane, i) *
                     tess_dtype_bytes(plan->dtype);
    }
    return tess_memory_reserve(strategy->memory, TESS_MEMORY_GATHERED, bytes, "gathered units",
                               &gather->block);
}

enum tess_status tess__gather_open(struct tess_gather *gather, struct tess_strategy *strategy,
                                   struct tess_comm *shard)
{
    const struct tess_plan *plan = strategy->plan;
    char *memory = tess_memory_get(strategy->memory, gather->block);
    gather->shard = shard;
    for (int32_t l = 0; l < TESS_GATHER_LANES; l++) {
        struct tess_gather_lane *lane = &gather->lane[l];
        lane->slot = calloc((size_t)lane->slot_count + 1, sizeof(*lane->slot));
        lane->segment_of = calloc((size_t)plan->unit_count + 1, sizeof(*lane->segment_of));
        if (lane->slot == NULL || lane->segment_of == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d gathered units", (int)lane->slot_count);
        for (int32_t i = 0; i < lane->slot_count; i++) {
            lane->slot[i].segment = -1;
            lane->slot[i].buffer = memory;
            memory += (uint64_t)gather_buffer_count(gather, plan, lane, i) *
                      tess_dtype_bytes(plan->dtype);
        }
        for (int32_t u = 0; u < plan->unit_count; u++)
            lane->segment_of[u] = -1;
        for (int32_t s = lane->first; s < lane->end; s++)
            lane->segment_of[plan->segment[s].unit_first] = s;
    }
    return TESS_OK;
}

void tess__gather_close(struct tess_gather *gather)
{
    for (int32_t l = 0; l < TESS_GATHER_LANES; l++) {
        free(gather->lane[l].segment_of);
        free(gather->lane[l].slot);
    }
}

static void gather_drop(struct tess_gather_slot *slot, struct tess_plan *plan)
{
    for (int32_t s = 0; s < plan->segment_count && slot->segment >= 0; s++)
        if (plan->segment[s].param == slot->buffer)
            plan->segment[s].param = NULL;
    slot->segment = -1;
    slot->how = GATHER_GATHERED;
}

/* The segment whose values stand for those of `s`. */
static int32_t gather_source(const struct tess_gather *gather, const struct tess_plan *plan,
                             int32_t s)
{
    const bool shared = gather->keep_last == TESS_GATHER_ALL && plan->segment[s].values_of >= 0;
    return shared ? plan->segment[s].values_of : s;
}

static struct tess_gather_slot *gather_slot(const struct tess_gather_lane *lane, int32_t s)
{
    return &lane->slot[(s - lane->first) % lane->slot_count];
}

/* Does a pass do without the values of segment `s`? One that is still there is as any other. */
static bool gather_skips(const struct tess_gather *gather, const struct tess_gather_lane *lane,
                         const struct tess_plan *plan, int32_t s, enum tess_phase phase)
{
    return phase != TESS_PHASE_FORWARD && plan->segment[s].forward_only &&
           gather_slot(lane, s)->segment != gather_source(gather, plan, s);
}

/* Have the values of segment `s` in their buffer, or on their way there. */
static enum tess_status gather_launch(struct tess_gather *gather, struct tess_gather_lane *lane,
                                      struct tess_plan *plan, int32_t s,
                                      struct tess_gather_slot **slot_out)
{
    const int32_t source = gather_source(gather, plan, s);
    struct tess_gather_slot *slot = gather_slot(lane, source);
    *slot_out = slot;
    const size_t count = (size_t)tess_plan_own_count(plan, source, TESS_EXTENT_SHARD);
    if (slot->segment == source) {
        /* What was given counts when it is used, as the gather in whose place it is. */
        const uint64_t given =
            (uint64_t)(plan->shard_count - 1) * count * tess_dtype_bytes(plan->dtype);
        if (slot->how == GATHER_GIVEN) {
            gather->shard->stats.sent_bytes += given;
            gather->shard->stats.received_bytes += given;
        }
        slot->how = GATHER_GATHERED;
        return TESS_OK;
    }
    /* Whatever is here was gathered ahead or kept for a unit that has not come: it may still be on
     * its way. */
    TESS_TRY(tess_event_wait(&slot->event));
    gather_drop(slot, plan);
    slot->segment = source;
    return tess_comm_all_gather(gather->shard, plan->segment[source].param_own, slot->buffer, count,
                                plan->dtype, &slot->event);
}

enum tess_status tess__gather_enter(struct tess_gather *gather, struct tess_strategy *strategy,
                                    int32_t unit, enum tess_phase phase)
{
    struct tess_plan *plan = strategy->plan;
    struct tess_gather_slot *slot[TESS_GATHER_LANES], *ahead;
    for (int32_t l = 0; l < TESS_GATHER_LANES; l++) {
        struct tess_gather_lane *lane = &gather->lane[l];
        const int32_t s = lane->segment_of[unit];
        slot[l] = NULL;
        if (s < 0)
            continue;
        if (!gather_skips(gather, lane, plan, s, phase))
            TESS_TRY(gather_launch(gather, lane, plan, s, &slot[l]));
        /* Queue the next unit before waiting for this one: both are then on their way together. Its
         * buffer is the one of the unit before this, which was dropped when it was left. */
        const int32_t next = phase == TESS_PHASE_FORWARD ? s + 1 : s - 1;
        if (next >= lane->first && next < lane->end &&
            tess__shard_chunk(plan, next) == tess__shard_chunk(plan, s) &&
            !gather_skips(gather, lane, plan, next, phase))
            TESS_TRY(gather_launch(gather, lane, plan, next, &ahead));
    }
    for (int32_t l = 0; l < TESS_GATHER_LANES; l++) {
        const int32_t s = gather->lane[l].segment_of[unit];
        if (slot[l] == NULL)
            continue;
        TESS_TRY(tess_event_wait(&slot[l]->event));
        plan->segment[s].param = slot[l]->buffer;
    }
    return TESS_OK;
}

void tess__gather_leave(struct tess_gather *gather, struct tess_strategy *strategy, int32_t unit,
                        enum tess_phase phase)
{
    for (int32_t l = 0; l < TESS_GATHER_LANES; l++) {
        const struct tess_gather_lane *lane = &gather->lane[l];
        const int32_t s = lane->segment_of[unit];
        if (s < 0 || gather->keep_last == TESS_GATHER_ALL ||
            gather_skips(gather, lane, strategy->plan, s, phase))
            continue;
        /* An evaluation has no backward to keep anything for; a step after it must find nothing. */
        if (phase == TESS_PHASE_FORWARD && strategy->training && s >= lane->end - gather->keep_last)
            continue;
        gather_drop(gather_slot(lane, s), strategy->plan);
    }
}

/* Forward fills the buffers with the first segments, in order: these are the next to be there. */
void *tess__gather_take(struct tess_gather *gather, struct tess_plan *plan, int32_t s)
{
    const struct tess_gather_lane *lane = &gather->lane[0];
    struct tess_gather_slot *slot = gather_slot(lane, s);
    if (s - lane->first >= lane->slot_count || (slot->segment >= 0 && slot->segment != s))
        return NULL;
    gather_drop(slot, plan);
    slot->segment = s;
    slot->event = (struct tess_event){0};
    slot->how = GATHER_UPDATED;
    return slot->buffer;
}

void tess__gather_forget(struct tess_gather *gather, struct tess_plan *plan, bool frozen)
{
    for (int32_t l = 0; l < TESS_GATHER_LANES; l++)
        for (int32_t i = 0; i < gather->lane[l].slot_count && (l == 0 || frozen); i++) {
            struct tess_gather_slot *slot = &gather->lane[l].slot[i];
            if (slot->how == GATHER_UPDATED)
                slot->how = GATHER_GIVEN;
            else
                gather_drop(slot, plan);
        }
}

uint64_t tess__gather_sent_bytes(const struct tess_plan *plan, int32_t keep_last)
{
    const bool all = keep_last == TESS_GATHER_ALL;
    uint64_t sent = 0;
    for (int32_t l = 0; l < TESS_GATHER_LANES; l++) {
        const struct tess_gather_lane lane = gather_lane(plan, l, all);
        for (int32_t s = lane.first; s < lane.end; s++) {
            const uint64_t bytes = tess__shard_scatter_bytes((uint64_t)plan->segment[s].count *
                                                                 tess_dtype_bytes(plan->dtype),
                                                             plan->shard_count);
            const bool twice = s < lane.end - keep_last && !plan->segment[s].forward_only;
            if (all)
                sent += l == 0 && plan->segment[s].values_of < 0 ? bytes : 0;
            else
                sent += (uint64_t)plan->accumulate * (twice ? 2 : 1) * bytes;
        }
    }
    return sent;
}
