/*
 * The order of a rank's work within a step: which micro-batch goes through which of its units when.
 * Without a stage axis there is one chunk of all units, and every micro-batch goes forward and
 * straight back. With one, the stage strategy cuts the model and gives the order.
 */
#ifndef TESSERA_CORE_SCHEDULE_H
#define TESSERA_CORE_SCHEDULE_H

#include "config/config.h"
#include "core/engine.h"
#include "state/declare.h"

/*
 * A run of units that a rank computes at a stretch: all of them, or a virtual stage of a pipeline.
 * Up to slot_count micro-batches are under way in it, forward done and backward not; micro-batch m
 * has slot m % slot_count.
 */
struct tess_chunk {
    int32_t unit_first, unit_end;
    int32_t slot_count;
    bool first, last;                    /* of the model: takes the input, ends in the loss */
    int32_t before, after;               /* ranks of the stage axis with the units around it */
    int64_t input_count;                 /* elements per row that come from the chunk before */
    int32_t forward_done, backward_done; /* micro-batches of the current step */
    struct tess_chunk_cost cost;         /* so far */
};

struct tess_schedule {
    bool timed; /* see tess_engine_time_chunks */
    int32_t chunk_count;
    int32_t *stage_of;        /* [units of the model] virtual stage that runs it */
    struct tess_chunk *chunk; /* [chunk_count] */
    int32_t slot_max;
    struct tess_action *action; /* [action_count] of one step */
    int32_t action_count;
};

/* `own` becomes the part of the model that this rank keeps; sets plan->pipelined and the units'
 * chunks. Pure but for memory. close accepts a zeroed one. */
enum tess_status tess__schedule_plan(const struct tess_config *config, struct tess_declare *model,
                                     struct tess_plan *plan, struct tess_declare *own,
                                     struct tess_schedule *schedule);
void tess__schedule_close(struct tess_schedule *schedule);

/* Does this rank need batches: inputs, or the labels of the loss? */
static inline bool tess__schedule_loads(const struct tess_schedule *schedule)
{
    return schedule->chunk[0].first || schedule->chunk[schedule->chunk_count - 1].last;
}

/* Does this rank compute losses? The last stage does. */
static inline bool tess__schedule_has_loss(const struct tess_schedule *schedule)
{
    return schedule->chunk[schedule->chunk_count - 1].last;
}

#endif
