/* The numbers of a rank's run: rows, leaves, steps. They follow from configuration and data. */
#ifndef TESSERA_CORE_SIZES_H
#define TESSERA_CORE_SIZES_H

#include "config/config.h"
#include "data/data.h"
#include "tessera/strategy.h"

struct tess_sizes {
    int64_t batch_size; /* global */
    int64_t leaf_rows;
    int64_t rows;        /* of one rank's micro-batch */
    int64_t leaf_count;  /* of one rank's micro-batch */
    int64_t loss_ranks;  /* ranks whose loss is computed here: 1, N or 0 */
    int64_t train_count; /* samples of the training split */
    int64_t steps_per_epoch, step_count;
    int64_t test_leaves;                        /* leaves of the test split; 0: no evaluation */
    int64_t test_width, test_passes;            /* test leaves that all ranks compute in a pass */
    size_t dtype_bytes, input_bytes, row_bytes; /* of an element, of an input's; of an input row */
    int64_t class_count;
    int64_t labels;     /* of a row */
    int32_t slot_count; /* batches that loaders fill in turn */
};

/* All sizes but loss_ranks and slot_count, and the fields of the plan that they depend on (mesh,
 * ranks, grid, types). Pure. TESS_ERR_USAGE. */
enum tess_status tess__sizes_plan(const struct tess_config *config,
                                  const struct tess_dataset *dataset, int32_t rank,
                                  struct tess_plan *plan, struct tess_sizes *sizes);

/* Those two, which follow from the strategy's plan. Pure. */
void tess__sizes_finish(const struct tess_config *config, const struct tess_plan *plan,
                        struct tess_sizes *sizes);

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
