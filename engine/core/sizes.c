/* The numbers of a run, see sizes.h. */
#include "core/sizes.h"

#include "core/batches.h"
#include "tessera/check.h"

#include <math.h>

/* What follows from the data. */
static enum tess_status sizes_of_data(const struct tess_config *config,
                                      const struct tess_dataset *dataset, struct tess_sizes *sizes)
{
    const struct tess_run_options *run = &config->run;
    sizes->input_bytes = dataset->tokens ? sizeof(int32_t) : sizes->dtype_bytes;
    sizes->row_bytes = (size_t)tess_shape_count(&dataset->row) * sizes->input_bytes;
    sizes->class_count = dataset->class_count;
    sizes->labels = dataset->labels;
    sizes->train_count = dataset->train.count;
    sizes->steps_per_epoch = dataset->train.count / run->batch_size;
    if (sizes->steps_per_epoch == 0 && config->loader.drop_last)
        TESS_FAIL(TESS_ERR_USAGE,
                  "a batch of %lld rows is larger than the training split of %lld, and "
                  "--data.drop-last leaves short batches out",
                  (long long)run->batch_size, (long long)dataset->train.count);
    if (dataset->train.count % run->batch_size != 0 && !config->loader.drop_last)
        sizes->steps_per_epoch++;
    sizes->step_count =
        run->steps > 0 ? run->steps : (int64_t)ceil(run->epochs * (double)sizes->steps_per_epoch);
    if (run->evaluate)
        sizes->test_leaves = (dataset->test.count + sizes->leaf_rows - 1) / sizes->leaf_rows;
    sizes->test_passes = (sizes->test_leaves + sizes->test_width - 1) / sizes->test_width;
    return TESS_OK;
}

enum tess_status tess__sizes_plan(const struct tess_config *config,
                                  const struct tess_dataset *dataset, int32_t rank,
                                  struct tess_plan *plan, struct tess_sizes *sizes)
{
    const struct tess_run_options *run = &config->run;
    plan->mesh = tess_mesh_at(&config->mesh, rank);
    plan->rank = plan->mesh.at[TESS_AXIS_DATA];
    plan->rank_count = plan->mesh.count[TESS_AXIS_DATA];
    plan->accumulate = (int32_t)run->accumulate;
    plan->grid = (int32_t)(run->grid > 0 ? run->grid : plan->rank_count * run->accumulate);
    plan->dtype = tess_run_dtype(run);
    plan->reduce_dtype = tess_run_reduce_dtype(run);
    plan->fold_in_turn = run->reduce == TESS_ORDER_FAST;
    if (run->batch_size % plan->grid != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "a batch of %lld rows cannot be cut into a grid of %d equal leaves: make "
                  "--batch-size a multiple of %d",
                  (long long)run->batch_size, plan->grid, plan->grid);
    sizes->batch_size = run->batch_size;
    sizes->leaf_rows = plan->leaf_rows = run->batch_size / plan->grid;
    sizes->leaf_count = plan->grid / plan->rank_count / plan->accumulate;
    sizes->rows = sizes->leaf_count * sizes->leaf_rows;
    sizes->test_width = sizes->leaf_count * plan->rank_count;
    sizes->dtype_bytes = tess_dtype_bytes(plan->dtype);
    TESS_TRY(sizes_of_data(config, dataset, sizes));
    return tess_optim_check(&config->optim,
                            (double)sizes->step_count / (double)sizes->steps_per_epoch);
}

/* One slot where nothing is loaded ahead: in the rank's own thread, or by another rank. Else one
 * for the batch in use, or on its way to the device, and one for each worker to fill. */
static int32_t sizes_slots(const struct tess_config *config, const struct tess_plan *plan)
{
    const int64_t workers = config->loader.workers;
    const bool far = config->kernel->far_memory;
    if ((workers == 0 && !far) || plan->skips_input || !(config->kernel->host_memory || far))
        return 1;
    if (workers < 2) /* -1 chooses at most one */
        return 2;
    return workers < TESS_SLOTS_MAX ? (int32_t)workers + 1 : TESS_SLOTS_MAX;
}

void tess__sizes_finish(const struct tess_config *config, const struct tess_plan *plan,
                        struct tess_sizes *sizes)
{
    sizes->loss_ranks = plan->holds_loss ? plan->rank_count : plan->skips_loss ? 0 : 1;
    sizes->slot_count = sizes_slots(config, plan);
}
