/*
 * Opening and closing an engine that was planned: groups, arena, operations, optimizer, strategies,
 * first parameters, loaders.
 */
#include "core/state.h"

#include "base/arena.h"
#include "comm/flight.h"
#include "config/precision.h"
#include "core/declared.h"
#include "core/save.h"
#include "kernel_open.h"
#include "tessera/check.h"

#include <stdlib.h>

static enum tess_status open_optim(struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    struct tess_optim *optim = &engine->optim;
    const int32_t model_params = engine->model.param_count;
    optim->options = engine->config->optim;
    optim->ops = engine->config->optimizer;
    optim->own_options = engine->config->optimizer_options;
    optim->kernel = engine->kernel;
    if ((plan->optim_extent == TESS_EXTENT_SHARD && plan->shard_count > 1) ||
        plan->rank_count < plan->mesh.rank_count)
        optim->sum_comm = engine->comm;
    optim->counts = tess__engine_counts(engine);
    optim->param_count = model_params;
    optim->axis = &engine->declare.axis;
    optim->piece = engine->piece;
    optim->piece_count = engine->trained_piece_count;
    optim->state_count = tess_layout_own_total(plan, plan->optim_extent, TESS_LAYOUT_STATE);
    optim->state = tess_memory_get(engine->memory, engine->block.optim);
    optim->scratch = tess_memory_get(engine->memory, engine->block.direction);
    optim->chunk_count = tess_optim_chunk(engine->kernel->ops->far_memory);
    optim->chunk = tess_memory_get(engine->memory, engine->block.update_chunk);
    optim->low = plan->dtype;
    optim->stochastic = tess_precision_is_stochastic(&engine->config->run);
    optim->round_key[0] = (uint64_t)engine->config->run.seed;
    optim->leaf_count = plan->grid;
    for (int32_t p = 0; p < model_params; p++)
        if (!(engine->model.param[p].flags &
              (TESS_PARAM_BUFFER | TESS_PARAM_TIED | TESS_PARAM_FROZEN)))
            engine->grad_total += tess_shape_count(&engine->model.param[p].whole);
    optim->verdict = engine->found.verdict;
    return tess_optim_open(optim, tess_memory_get(engine->memory, engine->block.norms),
                           engine->upload);
}

/* Host memory that the device copies from and to. */
static enum tess_status open_pin(struct tess_engine *engine)
{
    const struct tess_kernel_ops *ops = engine->kernel->ops;
    size_t upload_bytes;
    (void)tess_optim_room(engine->config->optimizer, engine->model.param_count, &upload_bytes);
    TESS_TRY(ops->pin(engine->kernel, engine->block.found.bytes, &engine->found.host));
    TESS_TRY(ops->pin(engine->kernel, upload_bytes, &engine->upload));
    if (!engine->config->saves || engine->hollow)
        return TESS_OK;
    return ops->pin(engine->kernel, engine->block.staging.bytes, &engine->staging);
}

static void open_access(void *context, bool on)
{
    struct tess_kernel *kernel = context;
    kernel->ops->access(kernel, on);
}

/* Padding and state start at zero. New memory is zero; its pages are made when they are first
 * touched, by the threads that compute with them, instead of by one thread here. */
static void open_clear(struct tess_engine *engine)
{
    if (!engine->kernel->ops->fills_memory)
        return;
    const struct tess_block zero[] = {engine->block.param, engine->block.master, engine->block.grad,
                                      engine->block.optim, engine->block.norms};
    for (size_t i = 0; i < sizeof(zero) / sizeof(*zero); i++)
        tess_fill(engine->kernel, (int64_t)zero[i].bytes, 0,
                  tess_memory_get(engine->memory, zero[i]));
}

/* This rank's group along each axis: those that share its places on the other two. */
static enum tess_status open_groups(struct tess_engine *engine)
{
    const struct tess_mesh *mesh = &engine->plan.mesh;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        struct tess_mesh first = *mesh;
        first.at[axis] = 0;
        if (tess_mesh_is_whole(mesh, (enum tess_axis)axis))
            engine->axis_comm[axis] = engine->comm;
        else
            TESS_TRY(tess_comm_split(engine->comm, tess_mesh_rank(&first, first.at), mesh->at[axis],
                                     &engine->axis_comm[axis]));
        if (mesh->count[axis] > 1)
            tess_flight_axis(engine->axis_comm[axis], (enum tess_axis)axis);
    }
    engine->strategy.kernel = engine->tensor_strategy.kernel = engine->kernel;
    engine->strategy.comm = engine->axis_comm[TESS_AXIS_DATA];
    engine->tensor_strategy.comm = engine->axis_comm[TESS_AXIS_TENSOR];
    return tess__stages_open(engine);
}

/* Ranks that measured may have found different things: what one took is what all take. */
static enum tess_status open_settle(struct tess_engine *engine)
{
    const struct tess_kernel_ops *ops = engine->kernel->ops;
    const int32_t ranks = engine->comm->rank_count;
    uint8_t all = 0;
    if (engine->config->cuda.attention != TESS_ATTENTION_AUTO)
        return TESS_OK;
    uint8_t *found = tess__engine_room(engine, ranks, 1);
    TESS_TRY(tess__engine_has_room(engine));
    found[engine->comm->rank] = ops->settle(engine->kernel, 0);
    TESS_TRY(
        tess_comm_all_gather(engine->comm, &found[engine->comm->rank], found, 1, TESS_U8, NULL));
    for (int32_t r = 0; r < ranks; r++)
        all = found[r] > all ? found[r] : all;
    (void)ops->settle(engine->kernel, all);
    return TESS_OK;
}

/* Far memory is the kernel's own where there is no communicator that has memory of the device. */
static bool arena_is_kernels(const struct tess_kernel *kernel, const struct tess_comm *comm)
{
    return kernel->ops->far_memory && (comm == NULL || !comm->device_memory);
}

enum tess_status tess__arena_open(struct tess_kernel *kernel, struct tess_memory *memory,
                                  struct tess_comm *comm, struct tess_arena *arena)
{
    const uint64_t bytes = tess_memory_total(memory);
    if (arena_is_kernels(kernel, comm))
        TESS_TRY(kernel->ops->alloc(kernel, bytes, &arena->start));
    else if (comm != NULL)
        TESS_TRY(tess_comm_alloc(comm, bytes, &arena->start));
    else
        arena->start = aligned_alloc(TESS_MEMORY_ALIGN, bytes);
    if (arena->start == NULL)
        TESS_FAIL(TESS_ERR_MEMORY,
                  "cannot allocate %llu MiB for the model: bf16 takes half of f32, and a smaller "
                  "context less",
                  (unsigned long long)(bytes >> 20));
    TESS_TRY(tess_memory_commit(memory, arena->start));
    if (arena_is_kernels(kernel, comm))
        return TESS_OK;
    TESS_TRY(kernel->ops->adopt(kernel, arena->start, bytes));
    arena->adopted = true;
    return TESS_OK;
}

void tess__arena_close(struct tess_kernel *kernel, struct tess_memory *memory,
                       struct tess_comm *comm, struct tess_arena *arena)
{
    if (arena->start == NULL)
        return;
    if (arena->adopted)
        kernel->ops->disown(kernel, arena->start, tess_memory_total(memory));
    if (arena_is_kernels(kernel, comm))
        kernel->ops->free(kernel, arena->start);
    else if (comm != NULL)
        tess_comm_release(comm, arena->start);
    else
        free(arena->start);
}

static enum tess_status open_values(struct tess_engine *engine)
{
    if (engine->hollow)
        return engine->strategy.ops->params_refresh(&engine->strategy);
    return engine->checkpoint != NULL ? tess__engine_restore(engine)
                                      : tess__engine_init_params(engine);
}

static enum tess_status open_all(struct tess_engine *engine)
{
    struct tess_strategy *strategy = &engine->strategy;
    engine->comm->access = open_access;
    engine->comm->access_context = engine->kernel;
    if (engine->kernel->queue != NULL)
        TESS_TRY(tess_comm_attach(engine->comm, engine->kernel->queue));
    tess_comm_untimed(engine->comm, engine->hollow); /* whoever predicts counts by himself */
    TESS_TRY(open_groups(engine));
    TESS_TRY(tess__arena_open(engine->kernel, engine->memory, engine->comm, &engine->arena));
    open_clear(engine);
    TESS_TRY(tess__engine_bind(engine));
    TESS_TRY(open_settle(engine));
    TESS_TRY(open_pin(engine));
    TESS_TRY(tess__laps_open(&engine->laps, engine->kernel, engine->comm,
                             engine->schedule.action_count));
    TESS_TRY(open_optim(engine));
    TESS_TRY(tess__unused_open(engine));
    TESS_TRY(tess__audit_open(engine));
    TESS_TRY(tess__shared_open(engine));
    TESS_TRY(tess__early_open(engine));
    engine->opened_strategy = true;
    TESS_TRY(strategy->ops->open(strategy));
    if (engine->tensor_strategy.ops != NULL)
        TESS_TRY(engine->tensor_strategy.ops->open(&engine->tensor_strategy));
    tess__crossing_open(engine);
    engine->progress.weight_token = 1;
    TESS_TRY(open_values(engine));
    TESS_TRY(tess__batches_open(engine));
    return tess_comm_barrier(engine->comm);
}

static enum tess_status open_check(const struct tess_config *config, const struct tess_comm *comm)
{
    if (comm->rank_count != config->run.ranks)
        TESS_FAIL(TESS_ERR_INTERNAL, "%d ranks run a configuration of %lld", comm->rank_count,
                  (long long)config->run.ranks);
    return TESS_OK;
}

/* comm NULL: plan only. */
static enum tess_status open_engine(const struct tess_config *config,
                                    const struct tess_dataset *dataset, int32_t rank,
                                    struct tess_comm *comm, struct tess_world *world,
                                    bool sizes_alone, struct tess_engine **engine_out)
{
    struct tess_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the engine");
    engine->config = config;
    engine->dataset = dataset;
    engine->comm = comm;
    engine->sizes_alone = sizes_alone;
    engine->board = world != NULL ? tess_world_board(world, rank) : &engine->own_board;
    tess__engine_doing(engine, TESS_DOING_STARTING, -1);
    enum tess_status status = tess__engine_plan(engine, rank);
    if (status == TESS_OK && comm != NULL)
        status = open_all(engine);
    if (status != TESS_OK)
        tess_engine_close(engine);
    else
        *engine_out = engine;
    return status;
}

enum tess_status tess_engine_plan(const struct tess_config *config,
                                  const struct tess_dataset *dataset, int32_t rank,
                                  struct tess_engine **engine_out)
{
    return open_engine(config, dataset, rank, NULL, NULL, false, engine_out);
}

enum tess_status tess_engine_plan_sizes(const struct tess_config *config,
                                        const struct tess_dataset *dataset, int32_t rank,
                                        struct tess_engine **engine_out)
{
    return open_engine(config, dataset, rank, NULL, NULL, true, engine_out);
}

enum tess_status tess_engine_open(const struct tess_config *config,
                                  const struct tess_dataset *dataset, struct tess_comm *comm,
                                  struct tess_world *world, struct tess_engine **engine_out)
{
    TESS_TRY(open_check(config, comm));
    return open_engine(config, dataset, comm->rank, comm, world, false, engine_out);
}

enum tess_status tess_engine_open_hollow(struct tess_engine *engine, struct tess_comm *comm)
{
    TESS_TRY(open_check(engine->config, comm));
    engine->comm = comm;
    engine->hollow = true;
    return open_all(engine);
}

void tess_engine_close(struct tess_engine *engine)
{
    if (engine == NULL)
        return;
    tess__batches_close(engine);
    tess_weights_close(engine->weights);
    tess_weights_close(engine->adapters);
    tess_checkpoint_close(engine->checkpoint);
    if (engine->opened_strategy) {
        engine->strategy.ops->close(&engine->strategy);
        if (engine->tensor_strategy.ops != NULL)
            engine->tensor_strategy.ops->close(&engine->tensor_strategy);
    }
    for (int32_t o = 0; engine->tables.op != NULL && o < engine->declare.op_count; o++)
        if (engine->tables.op[o].kernel != NULL)
            engine->kernel->ops->op_close(&engine->tables.op[o]);
    tess_optim_close(&engine->optim);
    tess__laps_close(&engine->laps);
    if (engine->kernel != NULL) {
        engine->kernel->ops->unpin(engine->kernel, engine->found.host);
        engine->kernel->ops->unpin(engine->kernel, engine->upload);
        engine->kernel->ops->unpin(engine->kernel, engine->staging);
    }
    tess_comm_close(engine->stages.backward);
    tess_comm_close(engine->stages.forward);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        if (engine->axis_comm[axis] != engine->comm)
            tess_comm_close(engine->axis_comm[axis]);
    tess__arena_close(engine->kernel, engine->memory, engine->comm, &engine->arena);
    if (engine->comm != NULL) {
        if (engine->kernel != NULL && engine->kernel->queue != NULL)
            (void)tess_comm_attach(engine->comm, NULL);
        engine->comm->access = NULL;
        engine->comm->access_context = NULL;
    }
    tess_kernel_close(engine->kernel);
    tess_memory_close(engine->memory);
    tess_layout_fini(&engine->plan);
    tess_declare_fini(&engine->declare);
    tess__declare_free(&engine->model, engine->model_state);
    for (int32_t i = 0; i < engine->owned_count; i++)
        free(engine->owned[i]);
    free(engine);
}
