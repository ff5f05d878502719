/*
 * Planning an engine: the model declares its units, the strategy its plan, and the memory plan
 * follows. Also read access to an engine. Opening one is in open.c, steps are in step.c.
 */
#include "core/engine.h"

#include "base/arena.h"
#include "core/declared.h"
#include "core/state.h"
#include "kernel_open.h"
#include "state/adapter_folder.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- planning -------------------------------------------------------------------------------- */

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
                                     .runs = (int32_t)options->runs,
                                     .sequence = options->sequence && ranks > 1};
}

static enum tess_status engine_declare(struct tess_engine *engine)
{
    const struct tess_config *config = engine->config;
    const struct tess_model_input input = {.row = engine->dataset->row,
                                           .class_count = engine->dataset->class_count,
                                           .dtype = engine->plan.dtype,
                                           .tokens = engine->dataset->tokens,
                                           .rows = engine->sizes.rows,
                                           .leaf_rows = engine->sizes.leaf_rows,
                                           .device = config->kernel->far_memory,
                                           .axis = engine_tensor_axis(engine),
                                           .stacks = config->kernel->stacks,
                                           .averages =
                                               config->bn.accumulate == 1 ? engine->plan.grid : 1,
                                           .lora = tess_config_lora(config)};
    TESS_TRY(tess__declare(config, &input, &engine->model, &engine->model_state));
    engine->unit_name =
        tess__engine_room(engine, engine->model.unit_count, sizeof(*engine->unit_name));
    TESS_TRY(tess__engine_has_room(engine));
    for (int32_t u = 0; u < engine->model.unit_count; u++)
        engine->unit_name[u] = engine->model.unit[u].name;
    return tess__schedule_plan(engine);
}

static enum tess_status engine_make_strategy(struct tess_engine *engine, enum tess_axis axis,
                                             struct tess_strategy *strategy)
{
    const struct tess_config *config = engine->config;
    strategy->ops = config->axis[axis];
    strategy->options = config->axis_options[axis];
    strategy->plan = &engine->plan;
    strategy->memory = engine->memory;
    strategy->state = tess__engine_room(engine, (int64_t)strategy->ops->state_size, 1);
    return tess__engine_has_room(engine);
}

/* Is a parameter with `count` elements the weight or the bias of a product of the unit? */
static bool engine_is_of_product(const struct tess_declare *declare, int32_t unit, int64_t count)
{
    for (int32_t o = 0; o < declare->op_count; o++) {
        const struct tess_op_desc *d = &declare->op[o].desc;
        const int64_t window = d->kind == TESS_OP_CONV2D ? d->window * d->window : 1;
        if (declare->op[o].unit == unit && (count == d->out || count == d->out * window * d->in))
            return true;
    }
    return false;
}

/* Without a gradient of its input, backward of a product reads neither weight nor bias. What has no
 * descriptor may read other parameters. */
static bool engine_is_forward_only(const struct tess_engine *engine, int32_t unit)
{
    const struct tess_declare *declare = &engine->declare;
    if (tess__engine_recompute(engine, unit) != TESS_RECOMPUTE_NONE)
        return false;
    for (int32_t o = 0; o < declare->op_count; o++) {
        const struct tess_op_desc *desc = &declare->op[o].desc;
        const bool product = desc->kind == TESS_OP_LINEAR || desc->kind == TESS_OP_CONV2D;
        if (declare->op[o].unit == unit && desc->kind != TESS_OP_MAX_POOL &&
            desc->kind != TESS_OP_AVG_POOL && (!product || desc->input_grad))
            return false;
    }
    for (int32_t p = 0; p < declare->param_count; p++)
        if (declare->param[p].unit == unit &&
            !engine_is_of_product(declare, unit, tess_shape_count(&declare->param[p].shape)))
            return false;
    return true;
}

static void engine_mark_forward_only(struct tess_engine *engine)
{
    for (int32_t s = 0; s < engine->plan.segment_count; s++) {
        struct tess_segment *segment = &engine->plan.segment[s];
        segment->forward_only = segment->param_count > 0 &&
                                segment->unit_first == segment->unit_last &&
                                engine_is_forward_only(engine, segment->unit_first);
    }
}

static enum tess_status engine_plan_strategy(struct tess_engine *engine)
{
    struct tess_strategy *strategy = &engine->strategy;
    TESS_TRY(engine_make_strategy(engine, TESS_AXIS_DATA, strategy));
    if (engine->config->axis[TESS_AXIS_TENSOR] != NULL)
        TESS_TRY(engine_make_strategy(engine, TESS_AXIS_TENSOR, &engine->tensor_strategy));
    engine->plan.own_loss = engine->model.labels > 0;
    TESS_TRY(tess_layout_begin(&engine->plan, &engine->model, &engine->declare));
    TESS_TRY(strategy->ops->plan(strategy));
    TESS_TRY(tess_layout_finish(&engine->plan, &engine->declare));
    engine_mark_forward_only(engine);
    const struct tess_plan *plan = &engine->plan;
    const bool gathers =
        plan->holds_loss || plan->skips_loss || plan->holds_input || plan->skips_input;
    if (gathers && plan->rank_count < plan->mesh.rank_count)
        TESS_FAIL(TESS_ERR_USAGE,
                  "strategy %s keeps rows and loss on one rank and cannot be joined with a tensor "
                  "or stage axis: use another one for the data axis",
                  strategy->ops->name);
    return tess_config_check_grid(engine->config, engine->sizes.batch_size,
                                  engine->plan.leaf_order);
}

static enum tess_status engine_choose(struct tess_engine *engine)
{
    const struct tess_kernel_choices choices = tess_config_choices(engine->config);
    return engine->kernel->ops->choose(engine->kernel, &choices);
}

/* What the run continues from; its parameters are read when there is memory for them. */
static enum tess_status engine_open_checkpoint(struct tess_engine *engine)
{
    const struct tess_config *config = engine->config;
    TESS_TRY(tess_checkpoint_open(config->checkpoint, &engine->model,
                                  config->optimizer->state_arrays, &engine->checkpoint));
    const struct tess_checkpoint_state *state = tess_checkpoint_state_of(engine->checkpoint);
    if (state->data_id != tess_dataset_id(engine->dataset, &engine->dataset->train))
        TESS_FAIL(TESS_ERR_USAGE,
                  "--data %s is not what %s was trained on: sizes or samples differ; give the same "
                  "data, or begin another run with --init",
                  config->run.data, config->checkpoint);
    engine->progress.step = state->step;
    return TESS_OK;
}

static enum tess_status engine_open_memory(struct tess_engine *engine)
{
    TESS_TRY(tess_memory_open(&engine->memory));
    if (engine->config->declared != NULL || engine->sizes_alone) /* one of many */
        tess_memory_unlisted(engine->memory);
    return TESS_OK;
}

enum tess_status tess__engine_plan(struct tess_engine *engine, int32_t rank)
{
    const struct tess_config *config = engine->config;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        if (config->axis[axis] != NULL)
            TESS_TRY(config->axis[axis]->check(config->axis_options[axis], config->mesh.count[axis],
                                               (int32_t)config->run.accumulate));
    TESS_TRY(tess__sizes_plan(engine, rank));
    TESS_TRY(engine_declare(engine));
    if (config->checkpoint[0] != '\0') {
        TESS_TRY(engine_open_checkpoint(engine));
    } else if (config->run.init[0] != '\0') {
        TESS_TRY(tess_weights_open(config->run.init, &engine->weights));
        TESS_TRY(tess_weights_match(engine->weights, &engine->model));
    }
    if (config->lora.init[0] != '\0' && config->checkpoint[0] == '\0') {
        char path[TESS_CHECKPOINT_PATH];
        if (snprintf(path, sizeof(path), "%s/" TESS_ADAPTER_WEIGHTS, config->lora.init) >=
            (int)sizeof(path))
            TESS_FAIL(TESS_ERR_USAGE, "the name of the folder %.80s is too long",
                      config->lora.init);
        TESS_TRY(tess_weights_open(path, &engine->adapters));
        TESS_TRY(tess_weights_match_adapters(engine->adapters, &engine->model));
    }
    TESS_TRY(tess_scale_parse(config->run.loss_scale, engine->plan.dtype,
                              config->run.loss_scale_interval, &engine->scale));
    /* Open for planning too: what an operation needs may depend on the kernel's threads. */
    TESS_TRY(tess_kernel_open(config->kernel, config->threads, &engine->kernel));
    TESS_TRY(engine_choose(engine));
    TESS_TRY(engine_open_memory(engine));
    TESS_TRY(engine_plan_strategy(engine));
    TESS_TRY(tess__record_plan(engine));
    TESS_TRY(tess__audit_plan(engine));
    tess__sizes_finish(engine);
    return tess__engine_reserve(engine);
}

/* ---- read access ----------------------------------------------------------------------------- */

int64_t tess_engine_step_done(const struct tess_engine *engine)
{
    return engine->progress.step;
}

uint64_t tess_engine_model_id(const struct tess_engine *engine)
{
    return tess_checkpoint_model_id(&engine->model);
}

enum tess_status tess_engine_greatest(struct tess_engine *engine, int32_t *x, size_t count)
{
    return tess_comm_all_reduce(engine->comm, x, x, count, TESS_I32, TESS_REDUCE_MAX, NULL);
}

int64_t tess_engine_steps_per_epoch(const struct tess_engine *engine)
{
    return engine->sizes.steps_per_epoch;
}

int64_t tess_engine_step_count(const struct tess_engine *engine)
{
    return engine->sizes.step_count;
}

int64_t tess_engine_test_count(const struct tess_engine *engine)
{
    return engine->sizes.test_count;
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

bool tess_engine_is_conditional(const struct tess_engine *engine)
{
    return engine->model.conditional;
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

struct tess_shape tess_engine_param_shape(const struct tess_engine *engine, int32_t index)
{
    return tess_declare_file_shape(&engine->model.param[index]);
}

int64_t tess_engine_model_size(const struct tess_engine *engine)
{
    return tess_declare_size(&engine->model);
}

const struct tess_board *tess_engine_board(const struct tess_engine *engine)
{
    return engine->board;
}

void tess_engine_trace(struct tess_engine *engine, struct tess_trace_lane *lane)
{
    engine->trace = lane;
}

void tess_engine_time_chunks(struct tess_engine *engine, bool on)
{
    engine->schedule.timed = on;
}

int32_t tess_engine_chunk_count(const struct tess_engine *engine)
{
    return engine->schedule.chunk_count;
}

struct tess_chunk_cost tess_engine_chunk_cost(const struct tess_engine *engine, int32_t chunk)
{
    return engine->schedule.chunk[chunk].cost;
}
