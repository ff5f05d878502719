/*
 * The numbers of a rank's run (rows, leaves, steps), and the order of its work within a step: which
 * micro-batch goes through which of its units when.
 * Without a stage axis there is one chunk of all units, and every micro-batch goes forward and
 * straight back. With one, the stage strategy cuts the model and gives the order.
 */
#ifndef TESSERA_CORE_SCHEDULE_H
#define TESSERA_CORE_SCHEDULE_H

#include "config/config.h"
#include "core/engine.h"
#include "data/data.h"
#include "state/declare.h"
#include "tessera/strategy.h"

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

/* The numbers of a run, which follow from configuration and data. */
struct tess_sizes {
    int64_t batch_size; /* global */
    int64_t leaf_rows;
    int64_t rows;        /* of one rank's micro-batch */
    int64_t leaf_count;  /* of one rank's micro-batch */
    int64_t loss_ranks;  /* ranks whose loss is computed here: 1, N or 0 */
    int64_t train_count; /* samples of the training split */
    int64_t steps_per_epoch, step_count;
    int64_t test_count;                         /* samples of an evaluation; 0: there is none */
    int64_t test_leaves;                        /* of these */
    int64_t test_width, test_passes;            /* test leaves that all ranks compute in a pass */
    size_t dtype_bytes, input_bytes, row_bytes; /* of an element, of an input's; of an input row */
    int64_t class_count;
    int64_t labels;     /* of a row */
    int32_t slot_count; /* batches that loaders fill in turn */
};

/* Rows of a batch as a rank loads it. */
static inline int64_t tess__sizes_loaded_rows(const struct tess_sizes *sizes,
                                              const struct tess_plan *plan)
{
    return sizes->rows * (plan->holds_input ? plan->rank_count : 1);
}

/* Rows that count in a step (from 0): fewer in a short last batch. */
static inline int64_t tess__sizes_step_rows(const struct tess_sizes *sizes, int64_t step)
{
    const int64_t left = sizes->train_count - step % sizes->steps_per_epoch * sizes->batch_size;
    return left < sizes->batch_size ? left : sizes->batch_size;
}

#endif
