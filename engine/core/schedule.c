/* Plans the order of a rank's work: how the model is cut, which micro-batches are under way. */
#include "core/declared.h"
#include "core/state.h"

#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>

/* The actions of this rank in one step. */
static enum tess_status schedule_order(struct tess_engine *engine, int32_t stages)
{
    const struct tess_config *config = engine->config;
    const int32_t micros = engine->plan.accumulate;
    struct tess_schedule *schedule = &engine->schedule;
    schedule->action_count = 2 * schedule->chunk_count * micros;
    schedule->action = tess__engine_room(engine, schedule->action_count, sizeof(*schedule->action));
    TESS_TRY(tess__engine_has_room(engine));
    if (stages > 1)
        return config->axis[TESS_AXIS_STAGE]->order(config->axis_options[TESS_AXIS_STAGE],
                                                    engine->plan.mesh.at[TESS_AXIS_STAGE], stages,
                                                    micros, schedule->action);
    for (int32_t i = 0; i < 2 * micros; i++)
        schedule->action[i] = (struct tess_action){
            .phase = i % 2 == 0 ? TESS_PHASE_FORWARD : TESS_PHASE_BACKWARD, .micro = i / 2};
    return TESS_OK;
}

/* Micro-batches under way at once in each chunk. */
static void schedule_count_slots(struct tess_schedule *schedule)
{
    for (int32_t c = 0; c < schedule->chunk_count; c++) {
        struct tess_chunk *chunk = &schedule->chunk[c];
        int32_t under_way = 0;
        chunk->slot_count = 1;
        for (int32_t i = 0; i < schedule->action_count; i++) {
            if (schedule->action[i].chunk != c)
                continue;
            under_way += schedule->action[i].phase == TESS_PHASE_FORWARD ? 1 : -1;
            if (under_way > chunk->slot_count)
                chunk->slot_count = under_way;
        }
        if (chunk->slot_count > schedule->slot_max)
            schedule->slot_max = chunk->slot_count;
    }
}

/* What this rank keeps of the model: the units of its virtual stages. */
static enum tess_status schedule_select(struct tess_engine *engine, const int32_t *first,
                                        int32_t stages)
{
    const struct tess_declare *model = &engine->model;
    struct tess_schedule *schedule = &engine->schedule;
    const int32_t stage = engine->plan.mesh.at[TESS_AXIS_STAGE];
    bool *keep = calloc((size_t)model->unit_count, sizeof(*keep));
    if (keep == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the stages' units");
    int32_t place = 0;
    for (int32_t v = 0; v < schedule->chunk_count * stages; v++)
        for (int32_t u = first[v]; u < first[v + 1]; u++)
            schedule->stage_of[u] = v;
    for (int32_t c = 0; c < schedule->chunk_count; c++) {
        const int32_t v = c * stages + stage;
        struct tess_chunk *chunk = &schedule->chunk[c];
        chunk->unit_first = place;
        for (int32_t u = first[v]; u < first[v + 1]; u++, place++)
            keep[u] = true;
        chunk->unit_end = place;
        chunk->first = v == 0;
        chunk->last = v == schedule->chunk_count * stages - 1;
        chunk->before = (stage + stages - 1) % stages;
        chunk->after = (stage + 1) % stages;
        chunk->input_count = chunk->first ? 0 : model->unit[first[v] - 1].output_count;
    }
    enum tess_status status = TESS_OK;
    if (stages == 1)
        engine->declare = tess_declare_borrow(model);
    else
        status = tess_declare_select(model, keep, &engine->declare);
    free(keep);
    for (int32_t c = 0; c < schedule->chunk_count && stages > 1 && status == TESS_OK; c++)
        for (int32_t u = schedule->chunk[c].unit_first; u < schedule->chunk[c].unit_end; u++)
            engine->declare.unit[u].chunk = c;
    return status;
}

enum tess_status tess__schedule_plan(struct tess_engine *engine)
{
    const struct tess_config *config = engine->config;
    const struct tess_declare *model = &engine->model;
    struct tess_schedule *schedule = &engine->schedule;
    const int32_t stages = engine->plan.mesh.count[TESS_AXIS_STAGE];
    schedule->chunk_count =
        stages > 1
            ? config->axis[TESS_AXIS_STAGE]->chunk_count(config->axis_options[TESS_AXIS_STAGE])
            : 1;
    const int32_t virtual_count = schedule->chunk_count * stages;
    int32_t *first = tess__engine_room(engine, virtual_count, sizeof(*first));
    schedule->chunk = tess__engine_room(engine, schedule->chunk_count, sizeof(*schedule->chunk));
    schedule->stage_of = tess__engine_room(engine, model->unit_count, sizeof(*schedule->stage_of));
    TESS_TRY(tess__engine_has_room(engine));
    if (stages > 1)
        TESS_TRY(tess__declared_cut(config, model, virtual_count, first));
    else
        first[1] = model->unit_count;
    TESS_TRY(schedule_select(engine, first, stages));
    TESS_TRY(schedule_order(engine, stages));
    schedule_count_slots(schedule);
    engine->plan.pipelined = stages > 1;
    return TESS_OK;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

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
    sizes->test_count = run->evaluate ? dataset->test.count : 0;
    /* A try of a few steps does not validate longer than it trains: each time as many samples as it
     * trains on from one time to the next, which are whole leaves. */
    const int64_t every = run->evaluate_every > 0 && run->evaluate_every < sizes->step_count
                              ? run->evaluate_every
                              : sizes->step_count;
    if (sizes->step_count < sizes->steps_per_epoch && every * run->batch_size < sizes->test_count)
        sizes->test_count = every * run->batch_size;
    sizes->test_leaves = (sizes->test_count + sizes->leaf_rows - 1) / sizes->leaf_rows;
    sizes->test_passes = (sizes->test_leaves + sizes->test_width - 1) / sizes->test_width;
    return TESS_OK;
}

enum tess_status tess__sizes_plan(struct tess_engine *engine, int32_t rank)
{
    const struct tess_config *config = engine->config;
    const struct tess_run_options *run = &config->run;
    struct tess_plan *plan = &engine->plan;
    struct tess_sizes *sizes = &engine->sizes;
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
    return sizes_of_data(config, engine->dataset, sizes);
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

void tess__sizes_finish(struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    engine->sizes.loss_ranks = plan->holds_loss ? plan->rank_count : plan->skips_loss ? 0 : 1;
    engine->sizes.slot_count = sizes_slots(engine->config, plan);
}
