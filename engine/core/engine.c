/*
 * Planning an engine: model and strategy are asked what they want, the plan and the memory plan
 * follow. And the questions that an engine answers. Opening one is in open.c, steps are in step.c.
 */
#include "core/engine.h"

#include "base/arena.h"
#include "core/precision.h"
#include "core/state.h"
#include "kernel_open.h"
#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- planning -------------------------------------------------------------------------------- */

static enum tess_status engine_geometry(struct tess_engine *engine, int32_t rank)
{
    const struct tess_run_options *run = &engine->config->run;
    const struct tess_dataset *dataset = engine->dataset;
    struct tess_plan *plan = &engine->plan;
    plan->mesh = tess_mesh_at(&engine->config->mesh, rank);
    plan->rank = plan->mesh.at[TESS_AXIS_DATA];
    plan->rank_count = plan->mesh.count[TESS_AXIS_DATA];
    plan->accumulate = (int32_t)run->accumulate;
    plan->grid = (int32_t)(run->grid > 0 ? run->grid : plan->rank_count * run->accumulate);
    plan->dtype = tess_run_dtype(run);
    plan->reduce_dtype = tess_run_reduce_dtype(run);
    plan->fold_in_turn = run->reduce == TESS_ORDER_FAST;
    engine->batch_size = run->batch_size;
    if (run->batch_size % plan->grid != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "a batch of %lld rows cannot be cut into a grid of %d equal leaves: "
                  "make --batch-size a multiple of %d",
                  (long long)run->batch_size, plan->grid, plan->grid);
    engine->leaf_rows = run->batch_size / plan->grid;
    plan->leaf_rows = engine->leaf_rows;
    engine->leaf_count = plan->grid / plan->rank_count / plan->accumulate;
    engine->rows = engine->leaf_count * engine->leaf_rows;
    engine->dtype_bytes = tess_dtype_bytes(plan->dtype);
    engine->input_bytes = dataset->tokens ? sizeof(int32_t) : engine->dtype_bytes;
    engine->class_count = dataset->class_count;
    engine->labels = dataset->labels;
    engine->steps_per_epoch = dataset->train.count / run->batch_size;
    if (engine->steps_per_epoch == 0 && engine->config->loader.drop_last)
        TESS_FAIL(TESS_ERR_USAGE,
                  "a batch of %lld rows is larger than the training split of %lld, and "
                  "--data.drop-last leaves short batches out",
                  (long long)run->batch_size, (long long)dataset->train.count);
    if (dataset->train.count % run->batch_size != 0 && !engine->config->loader.drop_last)
        engine->steps_per_epoch++;
    engine->step_count =
        run->steps > 0 ? run->steps : (int64_t)ceil(run->epochs * (double)engine->steps_per_epoch);
    TESS_TRY(tess_optim_check(&engine->config->optim,
                              (double)engine->step_count / (double)engine->steps_per_epoch));
    if (run->evaluate)
        engine->test_leaves = (dataset->test.count + engine->leaf_rows - 1) / engine->leaf_rows;
    return TESS_OK;
}

/* The tensor axis as the model sees it. */
static struct tess_tensor_axis engine_tensor_axis(const struct tess_engine *engine)
{
    const struct tess_mesh *mesh = &engine->plan.mesh;
    const struct tess_tensor_options *options = &engine->config->tensor;
    const int32_t ranks = mesh->count[TESS_AXIS_TENSOR];
    const int32_t parts = options->canonical > 0 ? (int32_t)options->canonical : ranks;
    return (struct tess_tensor_axis){.parts = parts,
                                     .first = mesh->at[TESS_AXIS_TENSOR] * (parts / ranks),
                                     .count = parts / ranks,
                                     .rank = mesh->at[TESS_AXIS_TENSOR],
                                     .rank_count = ranks,
                                     .sequence = options->sequence && ranks > 1};
}

static enum tess_status engine_name_units(struct tess_engine *engine)
{
    const int32_t units = engine->model.unit_count;
    engine->unit_name = calloc((size_t)units, sizeof *engine->unit_name);
    if (!engine->unit_name)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the names of %d units", units);
    for (int32_t u = 0; u < units; u++)
        engine->unit_name[u] = engine->model.unit[u].name;
    return TESS_OK;
}

static enum tess_status engine_declare(struct tess_engine *engine)
{
    const struct tess_config *config = engine->config;
    struct tess_model_input input = {.row = engine->dataset->row,
                                     .class_count = engine->dataset->class_count,
                                     .dtype = engine->plan.dtype,
                                     .tokens = engine->dataset->tokens,
                                     .rows = engine->rows,
                                     .leaf_rows = engine->leaf_rows,
                                     .axis = engine_tensor_axis(engine)};
    engine->model.rows = engine->rows;
    engine->model.leaf_rows = engine->leaf_rows;
    engine->model.dtype = engine->plan.dtype;
    engine->model_state = calloc(1, config->model->state_size + 1);
    if (!engine->model_state)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the model's state");
    TESS_TRY(tess_declare_model(&engine->model, config->model, engine->model_state,
                                config->model_options, &input));
    TESS_TRY(engine_name_units(engine));
    uint32_t wide = 0;
    TESS_TRY(tess_precision_f32_ops(config->run.f32_ops, &wide));
    for (int32_t o = 0; o < engine->model.op_count; o++) {
        struct tess_op_desc *desc = &engine->model.op[o].desc;
        desc->f32_math = desc->dtype != TESS_F32 && (wide >> desc->kind & 1) != 0;
        if (desc->kind == TESS_OP_LINEAR && desc->dtype != TESS_F32)
            desc->fp8 = (enum tess_fp8)config->run.fp8;
    }
    return tess__engine_pipe_plan(engine);
}

static enum tess_status engine_make_strategy(struct tess_engine *engine, enum tess_axis axis,
                                             struct tess_strategy *strategy)
{
    const struct tess_config *config = engine->config;
    strategy->ops = config->axis[axis];
    strategy->options = config->axis_options[axis];
    strategy->plan = &engine->plan;
    strategy->memory = engine->memory;
    strategy->state = calloc(1, strategy->ops->state_size + 1);
    if (!strategy->state)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the strategy's state");
    return TESS_OK;
}

/* Strategies that bring all rows, or all outputs, to one rank want what others may not give. */
static enum tess_status engine_check_strategy(const struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    const char *name = engine->strategy.ops->name;
    const bool gathers =
        plan->holds_loss || plan->skips_loss || plan->holds_input || plan->skips_input;
    if (gathers && plan->rank_count < plan->mesh.rank_count)
        TESS_FAIL(TESS_ERR_USAGE,
                  "strategy %s keeps rows and loss on one rank and cannot be joined with a tensor "
                  "or stage axis: use another one for the data axis",
                  name);
    return TESS_OK;
}

static enum tess_status engine_plan_strategy(struct tess_engine *engine)
{
    struct tess_strategy *strategy = &engine->strategy;
    TESS_TRY(engine_make_strategy(engine, TESS_AXIS_DATA, strategy));
    if (engine->config->axis[TESS_AXIS_TENSOR])
        TESS_TRY(engine_make_strategy(engine, TESS_AXIS_TENSOR, &engine->tensor_strategy));
    engine->plan.own_loss = engine->model.labels > 0;
    TESS_TRY(tess_layout_begin(&engine->plan, &engine->model, &engine->declare));
    TESS_TRY(strategy->ops->plan(strategy));
    TESS_TRY(tess_layout_finish(&engine->plan, &engine->declare));
    TESS_TRY(engine_check_strategy(engine));
    return tess_config_check_grid(engine->config, engine->batch_size, engine->plan.leaf_order);
}

/* One slot where nothing is loaded ahead: in the rank's own thread, or by another rank. Else one
 * for the batch in use, or on its way to the device, and one for each worker to fill. */
static int32_t engine_slot_count(const struct tess_engine *engine)
{
    const int64_t workers = engine->config->loader.workers;
    const bool far = engine->config->kernel->far_memory;
    if ((workers == 0 && !far) || engine->plan.skips_input ||
        !(engine->config->kernel->host_memory || far))
        return 1;
    if (workers < 2) /* -1 chooses at most one */
        return 2;
    return workers < TESS_SLOTS_MAX ? (int32_t)workers + 1 : TESS_SLOTS_MAX;
}

/* How products are computed, where there is a choice. */
static enum tess_status engine_choose(struct tess_engine *engine)
{
    const struct tess_cuda_options *options = &engine->config->cuda;
    const struct tess_kernel_choices choices = {
        .tf32 = options->tf32,
        .autotune = options->autotune,
        .conv = (enum tess_conv)options->conv,
        .store = engine->config->cuda_store[0] != '\0' ? engine->config->cuda_store : NULL};
    return engine->kernel->ops->choose(engine->kernel, &choices);
}

enum tess_status tess__engine_plan(struct tess_engine *engine, int32_t rank)
{
    const struct tess_config *config = engine->config;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        if (config->axis[axis])
            TESS_TRY(config->axis[axis]->check(config->axis_options[axis], config->mesh.count[axis],
                                               (int32_t)config->run.accumulate));
    TESS_TRY(engine_geometry(engine, rank));
    TESS_TRY(engine_declare(engine));
    if (config->run.init[0] != '\0') {
        TESS_TRY(tess_weights_open(config->run.init, &engine->weights));
        TESS_TRY(tess_weights_match(engine->weights, &engine->model));
    }
    TESS_TRY(tess_scale_parse(config->run.loss_scale, engine->plan.dtype,
                              config->run.loss_scale_interval, &engine->scale));
    /* Open for planning too: what an operation needs may depend on the kernel's threads. */
    TESS_TRY(tess_kernel_open(config->kernel, (int)config->run.threads, &engine->kernel));
    TESS_TRY(engine_choose(engine));
    TESS_TRY(tess_memory_open(&engine->memory));
    TESS_TRY(engine_plan_strategy(engine));
    TESS_TRY(tess__record_plan(engine));
    engine->loss_ranks = engine->plan.holds_loss   ? engine->plan.rank_count
                         : engine->plan.skips_loss ? 0
                                                   : 1;
    engine->slot_count = engine_slot_count(engine);
    return tess__engine_reserve(engine);
}

enum tess_status tess__engine_new(const struct tess_config *config,
                                  const struct tess_dataset *dataset,
                                  struct tess_engine **engine_out)
{
    struct tess_engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the engine");
    engine->config = config;
    engine->dataset = dataset;
    engine->board = &engine->own_board;
    *engine_out = engine;
    return TESS_OK;
}

enum tess_status tess_engine_plan(const struct tess_config *config,
                                  const struct tess_dataset *dataset, int32_t rank,
                                  struct tess_engine **engine_out)
{
    struct tess_engine *engine;
    TESS_TRY(tess__engine_new(config, dataset, &engine));
    enum tess_status status = tess__engine_plan(engine, rank);
    if (status != TESS_OK)
        tess_engine_close(engine);
    else
        *engine_out = engine;
    return status;
}

/* ---- questions ------------------------------------------------------------------------------- */

int64_t tess_engine_steps_per_epoch(const struct tess_engine *engine)
{
    return engine->steps_per_epoch;
}

int64_t tess_engine_step_count(const struct tess_engine *engine)
{
    return engine->step_count;
}

const struct tess_memory *tess_engine_memory(const struct tess_engine *engine)
{
    return engine->memory;
}

const struct tess_plan *tess_engine_plan_of(const struct tess_engine *engine)
{
    return &engine->plan;
}

const char *const *tess_engine_unit_names(const struct tess_engine *engine, int32_t *count_out)
{
    *count_out = engine->model.unit_count;
    return engine->unit_name;
}

int32_t tess_engine_param_count(const struct tess_engine *engine)
{
    return engine->model.param_count;
}

const char *tess_engine_param_name(const struct tess_engine *engine, int32_t index)
{
    return engine->model.param[index].name;
}

const char *tess_engine_param_unit(const struct tess_engine *engine, int32_t index)
{
    return engine->model.unit[engine->model.param[index].unit].name;
}

int64_t tess_engine_model_size(const struct tess_engine *engine)
{
    return tess_declare_size(&engine->model);
}

const struct tess_comm *tess_engine_comm(const struct tess_engine *engine)
{
    return engine->comm;
}

double tess_engine_flight_s(const struct tess_engine *engine)
{
    return engine->comm ? tess_comm_family_flight_s(engine->comm) : 0;
}

void tess_engine_trace(struct tess_engine *engine, struct tess_trace_lane *lane)
{
    engine->trace = lane;
}
