/* Transient gradient buffers and their reduction; see scatter.h. Not which segments there are. */
#include "scatter.h"

#include "shard.h"

#include "tessera/check.h"

#include <stdlib.h>

static bool scatter_overlaps(const struct tess_segment *segment, int32_t unit)
{
    return segment->param_count > 0 && segment->unit_first <= unit && unit <= segment->unit_last;
}

enum tess_status tess__scatter_reserve(struct tess_strategy *strategy)
{
    struct tess_scatter *scatter = strategy->state;
    const struct tess_plan *plan = strategy->plan;
    int32_t together = 0;
    for (int32_t u = 0; u < plan->unit_count; u++) {
        int32_t count = 0;
        for (int32_t s = 0; s < plan->grad_segment_count; s++)
            count += scatter_overlaps(&plan->segment[s], u);
        together = count > together ? count : together;
    }
    scatter->slot_count = together < plan->grad_segment_count ? together + 1 : together;
    int64_t elements = 0;
    for (int32_t i = 0; i < scatter->slot_count; i++)
        elements +=
            tess__shard_buffer_count(plan, 0, plan->grad_segment_count, i, scatter->slot_count);
    TESS_TRY(tess_memory_reserve(strategy->memory, TESS_MEMORY_BUCKET,
                                 (uint64_t)elements * sizeof(float), "gradients being reduced",
                                 &scatter->block));
    return tess__wire_reserve(strategy, elements);
}

enum tess_status tess__scatter_open(struct tess_strategy *strategy, struct tess_comm *shard,
                                    struct tess_comm *replica)
{
    struct tess_scatter *scatter = strategy->state;
    scatter->shard = shard;
    scatter->replica = replica;
    scatter->slot = calloc((size_t)scatter->slot_count + 1, sizeof(*scatter->slot));
    if (scatter->slot == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d gradient buffers", (int)scatter->slot_count);
    TESS_TRY(tess__wire_open(strategy));
    float *memory = tess_memory_get(strategy->memory, scatter->block);
    int64_t place = 0;
    for (int32_t i = 0; i < scatter->slot_count; i++) {
        scatter->slot[i].buffer = memory + place;
        scatter->slot[i].place = place;
        scatter->slot[i].segment = -1;
        place += tess__shard_buffer_count(strategy->plan, 0, strategy->plan->grad_segment_count, i,
                                          scatter->slot_count);
    }
    return TESS_OK;
}

void tess__scatter_close(struct tess_strategy *strategy)
{
    free(((struct tess_scatter *)strategy->state)->slot);
    tess__wire_close(strategy);
}

static int64_t scatter_count(const struct tess_plan *plan, const struct tess_scatter_slot *slot)
{
    return tess_plan_own_count(plan, slot->segment, TESS_EXTENT_SHARD);
}

/* Where the sum of this rank's part belongs: at its level of the fold, or, if it is added to one at
 * once, where this rank's part was written. */
static float *scatter_target(const struct tess_plan *plan, const struct tess_scatter_slot *slot)
{
    if (tess_fold_adds(plan, slot->micro))
        return slot->buffer + plan->shard_index * scatter_count(plan, slot);
    return plan->segment[slot->segment].grad_own +
           tess_fold_level(plan, slot->micro) * plan->own_stride;
}

/* Place of this rank's part on the wire. */
static int64_t scatter_place(const struct tess_plan *plan, const struct tess_scatter_slot *slot)
{
    return slot->place + plan->shard_index * scatter_count(plan, slot);
}

/* Where the sum of this rank's part arrives: where it belongs, or on the wire. */
static void *scatter_arrival(const struct tess_strategy *strategy,
                             const struct tess_scatter_slot *slot)
{
    const struct tess_plan *plan = strategy->plan;
    return tess__wire_place(strategy, scatter_place(plan, slot), scatter_target(plan, slot));
}

/* The shard group's sum is there: join it with the other replicas'. */
static enum tess_status scatter_join(const struct tess_strategy *strategy,
                                     struct tess_scatter_slot *slot)
{
    const struct tess_scatter *scatter = strategy->state;
    TESS_TRY(tess_event_wait(&slot->event));
    slot->stage = SCATTER_JOINING;
    if (scatter->replica == NULL)
        return TESS_OK;
    void *sum = scatter_arrival(strategy, slot);
    return tess_comm_all_reduce(scatter->replica, sum, sum,
                                (size_t)scatter_count(strategy->plan, slot), scatter->wire.dtype,
                                TESS_REDUCE_SUM, &slot->event);
}

/* Wait for a slot on its way, fold its part and free it. */
static enum tess_status scatter_retire(struct tess_strategy *strategy,
                                       struct tess_scatter_slot *slot)
{
    const struct tess_plan *plan = strategy->plan;
    if (slot->stage == SCATTER_REDUCING)
        TESS_TRY(scatter_join(strategy, slot));
    TESS_TRY(tess_event_wait(&slot->event));
    if (slot->stage == SCATTER_UPDATING) {
        slot->segment = -1;
        return TESS_OK;
    }
    tess__wire_unpack(strategy, scatter_place(plan, slot), scatter_count(plan, slot),
                      scatter_target(plan, slot));
    if (tess_fold_adds(plan, slot->micro))
        tess_fold_add(strategy->kernel, plan, plan->segment[slot->segment].grad_own,
                      plan->own_stride, scatter_count(plan, slot), slot->micro,
                      scatter_target(plan, slot));
    slot->segment = -1;
    return TESS_OK;
}

static struct tess_scatter_slot *scatter_oldest(struct tess_scatter *scatter)
{
    struct tess_scatter_slot *oldest = NULL;
    for (int32_t i = 0; i < scatter->slot_count; i++) {
        struct tess_scatter_slot *slot = &scatter->slot[i];
        if (slot->segment < 0 || slot->stage == SCATTER_FILLING)
            continue;
        if (oldest == NULL || slot->number < oldest->number)
            oldest = slot;
    }
    return oldest;
}

enum tess_status tess__scatter_enter(struct tess_strategy *strategy, int32_t unit,
                                     enum tess_phase phase)
{
    struct tess_scatter *scatter = strategy->state;
    struct tess_plan *plan = strategy->plan;
    for (int32_t s = plan->grad_segment_count - 1; s >= 0 && phase == TESS_PHASE_BACKWARD; s--) {
        struct tess_scatter_slot *slot = &scatter->slot[s % scatter->slot_count];
        if (!scatter_overlaps(&plan->segment[s], unit) ||
            (slot->segment == s && slot->stage == SCATTER_FILLING))
            continue;
        /* An earlier segment in this buffer has been sent: segments that are written together,
         * being neighbours, never share a buffer. */
        if (slot->segment >= 0)
            TESS_TRY(scatter_retire(strategy, slot));
        slot->segment = s;
        slot->micro = strategy->micro;
        slot->stage = SCATTER_FILLING;
        plan->segment[s].grad = slot->buffer;
    }
    return TESS_OK;
}

/* Sum and update are one pass where this is the step's only sum and the ranks share memory. */
static bool scatter_updates(const struct tess_strategy *strategy, int32_t s)
{
    const struct tess_scatter *scatter = strategy->state;
    return tess_segment_updates(strategy, s) && strategy->plan->accumulate == 1 &&
           scatter->replica == NULL;
}

/* The sums of the gradients that are tied to segment `s` are there on return. */
static enum tess_status scatter_retire_tied(struct tess_strategy *strategy, int32_t s)
{
    struct tess_scatter *scatter = strategy->state;
    for (int32_t i = 0; i < scatter->slot_count; i++) {
        struct tess_scatter_slot *slot = &scatter->slot[i];
        if (slot->segment >= 0 && slot->stage == SCATTER_REDUCING &&
            strategy->plan->segment[slot->segment].values_of == s)
            TESS_TRY(scatter_retire(strategy, slot));
    }
    return TESS_OK;
}

enum tess_status tess__scatter_send(struct tess_strategy *strategy, int32_t s)
{
    struct tess_scatter *scatter = strategy->state;
    struct tess_plan *plan = strategy->plan;
    struct tess_scatter_slot *slot = &scatter->slot[s % scatter->slot_count];
    plan->segment[s].grad = NULL;
    slot->number = scatter->sent++;
    if (scatter_updates(strategy, s)) {
        TESS_TRY(scatter_retire_tied(strategy, s));
        slot->stage = SCATTER_UPDATING;
        return tess_segment_update(
            strategy, s, slot->buffer,
            scatter->gather != NULL ? tess__gather_take(scatter->gather, plan, s) : NULL,
            &slot->event);
    }
    void *grads = tess__wire_pack(strategy, slot->place, plan->segment[s].count, slot->buffer);
    TESS_TRY(tess_comm_reduce_scatter(scatter->shard, grads, scatter_arrival(strategy, slot),
                                      (size_t)scatter_count(plan, slot), scatter->wire.dtype,
                                      TESS_REDUCE_SUM, &slot->event));
    slot->stage = SCATTER_REDUCING;
    /* Replicas join one segment behind, so that the sum they wait for had a unit's time to arrive.
     */
    struct tess_scatter_slot *behind = scatter_oldest(scatter);
    if (scatter->replica != NULL && behind != slot && behind->stage == SCATTER_REDUCING)
        TESS_TRY(scatter_join(strategy, behind));
    return TESS_OK;
}

enum tess_status tess__scatter_finish(struct tess_strategy *strategy)
{
    for (struct tess_scatter_slot *slot; (slot = scatter_oldest(strategy->state)) != NULL;)
        TESS_TRY(scatter_retire(strategy, slot));
    return TESS_OK;
}

uint64_t tess__scatter_sent_bytes(const struct tess_plan *plan)
{
    uint64_t bytes = 0;
    const int32_t width = plan->shard_count;
    for (int32_t s = 0; s < plan->grad_segment_count; s++) {
        uint64_t whole = tess__wire_segment_bytes(plan, s);
        bytes += tess__shard_scatter_bytes(whole, width);
        bytes += tess__shard_all_reduce_bytes(whole / (uint64_t)width, plan->rank_count / width);
    }
    return bytes;
}
