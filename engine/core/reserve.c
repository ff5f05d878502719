/*
 * The engine's memory: which blocks a rank needs under its plan, and the pointers into them. Both
 * the planner and a training rank run tess__engine_reserve(); only the latter goes on to bind.
 */
#include "core/state.h"

#include "base/arena.h"
#include "config/precision.h"
#include "core/declared.h"
#include "core/save.h"
#include "tessera/check.h"

#include <string.h>

struct reserve_row {
    enum tess_memory_kind kind;
    int64_t bytes;
    const char *owner;
    struct tess_block *block;
};

static enum tess_status reserve_rows(const struct tess_engine *engine, int32_t count,
                                     const struct reserve_row *row)
{
    for (; count > 0; count--, row++)
        TESS_TRY(tess_memory_reserve(engine->memory, row->kind, (uint64_t)row->bytes, row->owner,
                                     row->block));
    return TESS_OK;
}

static enum tess_status reserve_parameters(struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    const struct tess_optimizer_ops *ops = engine->config->optimizer;
    struct tess_blocks *block = &engine->block;
    const int64_t param = tess_layout_own_total(plan, plan->param_extent, TESS_LAYOUT_VALUES);
    const int64_t grad = tess_layout_own_total(plan, plan->grad_extent, TESS_LAYOUT_GRADS);
    const int64_t optim = tess_layout_own_total(plan, plan->optim_extent, TESS_LAYOUT_STATE);
    const int64_t owned = tess_layout_own_total(plan, plan->optim_extent, TESS_LAYOUT_VALUES);
    const bool masters = tess_precision_has_masters(&engine->config->run);
    const bool chunk = plan->dtype != TESS_F32 && owned > (masters ? optim : 0);
    size_t upload_bytes; /* a part of the room: no block of its own */
    const int64_t norms = (int64_t)tess_optim_room(ops, engine->model.param_count, &upload_bytes);
    const struct reserve_row row[] = {
        {TESS_MEMORY_PARAMETER, param * (int64_t)engine->sizes.dtype_bytes, "parameters",
         &block->param},
        {TESS_MEMORY_MASTER, masters ? optim * 4 : 0, "f32 masters", &block->master},
        {TESS_MEMORY_GRADIENT, grad * plan->level_count * 4, "gradients", &block->grad},
        {TESS_MEMORY_OPTIMIZER, optim * ops->state_arrays * 4, "optimizer state", &block->optim},
        {TESS_MEMORY_WORKSPACE, ops->trust_ratio ? optim * 4 : 0, "update direction",
         &block->direction},
        {TESS_MEMORY_WORKSPACE, norms, "norms and factors", &block->norms},
        {TESS_MEMORY_WORKSPACE, chunk ? tess_optim_chunk(engine->kernel->ops->far_memory) * 4 : 0,
         "update in f32", &block->update_chunk},
    };
    return reserve_rows(engine, sizeof(row) / sizeof(*row), row);
}

static int64_t reserve_tensor_bytes(const struct tess_engine *engine,
                                    const struct tess_declare_tensor *tensor)
{
    const enum tess_life life = tensor->life;
    const bool once = life == TESS_LIFE_BATCH || life == TESS_LIFE_CALL || life == TESS_LIFE_KEPT;
    const int64_t bytes = tensor->count * (int64_t)tess_dtype_bytes(tensor->dtype);
    if (life == TESS_LIFE_LEAVES)
        return bytes * engine->sizes.leaf_count;
    return once ? bytes : bytes * engine->sizes.rows;
}

/* From a slot's blocks of `count` to the next one's: 0 where none of them will be looked up. */
static int32_t reserve_stride(const struct tess_engine *engine, int32_t count)
{
    return engine->sizes_alone ? 0 : count;
}

/* A tensor with a room of its own for each micro-batch under way; or its place in the room that
 * units share. */
static enum tess_status reserve_tensor(struct tess_engine *engine, int32_t t, int32_t slots,
                                       int64_t *here)
{
    const struct tess_declare_tensor *tensor = &engine->declare.tensor[t];
    struct tess_block *block = &engine->block.tensor[engine->sizes_alone ? 0 : t];
    const int64_t bytes = reserve_tensor_bytes(engine, tensor);
    const int32_t stride = reserve_stride(engine, engine->declare.tensor_count);
    if (!tess__tensor_is_brief(engine, tensor))
        return tess_memory_reserve_each(engine->memory, TESS_MEMORY_ACTIVATION, (uint64_t)bytes,
                                        tensor->name, slots, stride, block);
    /* Offset in the shared block for now; made an address by bind. */
    for (int32_t i = 0; i < slots; i++)
        block[i * stride] = (struct tess_block){(uint64_t)*here, (uint64_t)bytes};
    *here += (int64_t)tess_round_up((uint64_t)bytes, 64);
    return TESS_OK;
}

static enum tess_status reserve_outputs(struct tess_engine *engine, const struct tess_chunk *chunk,
                                        int64_t flow[2], int64_t *remade)
{
    const struct tess_declare *declare = &engine->declare;
    /* The gradient by a chunk's last output comes from the next stage, or from the loss; a model
     * with its own loss makes none. */
    const bool outside = !chunk->last || engine->model.labels > 0;
    char owner[2 * TESS_NAME_MAX];
    for (int32_t u = chunk->unit_first; u < chunk->unit_end; u++) {
        const int64_t bytes =
            declare->unit[u].output_count * engine->sizes.rows * (int64_t)engine->sizes.dtype_bytes;
        const int64_t back = u == chunk->unit_end - 1 && outside ? 0 : bytes;
        strcpy(owner, declare->unit[u].name);
        strcat(owner, " output");
        TESS_TRY(tess_memory_reserve_each(
            engine->memory, TESS_MEMORY_ACTIVATION, (uint64_t)bytes, owner, chunk->slot_count,
            reserve_stride(engine, declare->unit_count), &engine->block.unit_output[u]));
        flow[u % 2] = back > flow[u % 2] ? back : flow[u % 2];
        if (tess__engine_recompute(engine, u) == TESS_RECOMPUTE_FULL && bytes > *remade)
            *remade = bytes;
    }
    return TESS_OK;
}

/* Does the unit need what the one before did, which lies before it here too? */
static bool reserve_repeats(const struct tess_engine *engine, int32_t u)
{
    const struct tess_declare_unit *unit = &engine->declare.unit[u];
    return engine->sizes_alone && u > 0 && unit->repeats && unit->chunk == unit[-1].chunk &&
           unit->index == unit[-1].index + 1 &&
           tess__engine_recompute(engine, u) == tess__engine_recompute(engine, u - 1);
}

/* Of all units, one after the other; *most: the most that one has in the room that they share. */
static enum tess_status reserve_tensors(struct tess_engine *engine, int64_t *most)
{
    const struct tess_declare *declare = &engine->declare;
    uint64_t all = 0; /* of the unit before */
    for (int32_t u = 0, t = 0; u < declare->unit_count; u++) {
        const int32_t slots = engine->schedule.chunk[declare->unit[u].chunk].slot_count;
        const int32_t end = t + declare->unit[u].tensor_count;
        int64_t here = 0;
        if (reserve_repeats(engine, u) &&
            tess_memory_repeat(engine->memory, TESS_MEMORY_ACTIVATION, all)) {
            t = end;
            continue;
        }
        const uint64_t before = tess_memory_bytes(engine->memory, TESS_MEMORY_ACTIVATION);
        for (; t < end; t++)
            TESS_TRY(reserve_tensor(engine, t, slots, &here));
        all = tess_memory_bytes(engine->memory, TESS_MEMORY_ACTIVATION) - before;
        *most = here > *most ? here : *most;
    }
    return TESS_OK;
}

static enum tess_status reserve_units(struct tess_engine *engine)
{
    struct tess_blocks *block = &engine->block;
    int64_t flow[2] = {0, 0}, most = 0, remade = 0;
    for (int32_t c = 0; c < engine->schedule.chunk_count; c++)
        TESS_TRY(reserve_outputs(engine, &engine->schedule.chunk[c], flow, &remade));
    const struct reserve_row between[] = {
        {TESS_MEMORY_ACTIVATION, flow[0], "gradient flow 0", &block->flow[0]},
        {TESS_MEMORY_ACTIVATION, flow[1], "gradient flow 1", &block->flow[1]},
    };
    TESS_TRY(reserve_rows(engine, 2, between));
    TESS_TRY(reserve_tensors(engine, &most));
    const struct reserve_row shared[] = {
        {TESS_MEMORY_ACTIVATION, most, "unit scratch", &block->unit_scratch},
        /* Peers may still read the output that forward made. */
        {TESS_MEMORY_ACTIVATION, remade, "output made again", &block->remade_output},
    };
    return reserve_rows(engine, 2, shared);
}

static enum tess_status reserve_activations(struct tess_engine *engine)
{
    const uint64_t before = tess_memory_bytes(engine->memory, TESS_MEMORY_ACTIVATION);
    TESS_TRY(reserve_units(engine));
    engine->block.activation_bytes =
        tess_memory_bytes(engine->memory, TESS_MEMORY_ACTIVATION) - before;
    return TESS_OK;
}

enum tess_status tess_engine_replan(struct tess_engine *engine)
{
    tess_memory_unreserve(engine->memory, TESS_MEMORY_ACTIVATION, engine->block.activation_bytes);
    return reserve_activations(engine);
}

static enum tess_status reserve_loss(struct tess_engine *engine)
{
    struct tess_blocks *block = &engine->block;
    int64_t rows = tess__schedule_has_loss(&engine->schedule)
                       ? engine->sizes.loss_ranks * engine->sizes.rows
                       : 0;
    int64_t all = engine->plan.holds_loss
                      ? rows * engine->sizes.class_count * (int64_t)engine->sizes.dtype_bytes
                      : 0;
    const int64_t leaves = engine->plan.grid > engine->sizes.test_leaves
                               ? engine->plan.grid
                               : engine->sizes.test_leaves;
    const struct reserve_row row[] = {
        {TESS_MEMORY_ACTIVATION, all, "gathered outputs", &block->all_output},
        {TESS_MEMORY_ACTIVATION, all, "gradient of gathered outputs", &block->all_output_grad},
        {TESS_MEMORY_ACTIVATION, rows * 4, "loss", &block->loss},
        {TESS_MEMORY_ACTIVATION, rows * 4, "correct answers", &block->correct},
        {TESS_MEMORY_WORKSPACE, TESS_FOUND_SUMS + (2 * leaves + 2) * (int64_t)sizeof(double),
         "results of a step", &block->found},
    };
    return reserve_rows(engine, sizeof(row) / sizeof(*row), row);
}

/* The most that operations need; packed: those of a unit. */
struct reserve_needs {
    size_t scratch, each; /* each: of a further thread */
    int64_t packed;
};

/* Packed weights are kept per operation where the parameters are full; otherwise only a unit at a
 * time is packed, as only a unit at a time is there to be packed. */
static enum tess_status reserve_unit_operations(struct tess_engine *engine, int32_t first,
                                                int32_t end, struct reserve_needs *most)
{
    struct tess_declared_need *kept = tess__declared_needs(&engine->model);
    int64_t here = 0;
    for (int32_t o = first; o < end; o++) {
        struct tess_op_needs needs = {0};
        TESS_TRY(kept != NULL ? tess__declared_find_needs(engine->config, engine->kernel,
                                                          &engine->declare, o, kept, &needs)
                              : tess__op_needs(engine->kernel, &engine->declare, o, &needs));
        most->scratch = needs.scratch_bytes > most->scratch ? needs.scratch_bytes : most->scratch;
        most->each = needs.thread_bytes > most->each ? needs.thread_bytes : most->each;
        if (engine->tables.packed_kept) {
            TESS_TRY(tess_memory_reserve(engine->memory, TESS_MEMORY_WORKSPACE, needs.packed_bytes,
                                         "packed weights", &engine->block.packed[o]));
            continue;
        }
        engine->block.packed[o] = (struct tess_block){(uint64_t)here, needs.packed_bytes};
        here += (int64_t)tess_round_up(needs.packed_bytes, 64);
    }
    most->packed = here > most->packed ? here : most->packed;
    return TESS_OK;
}

/* Scratch is shared by all operations. */
static enum tess_status reserve_operations(struct tess_engine *engine)
{
    const struct tess_declare *declare = &engine->declare;
    struct reserve_needs most = {0};
    uint64_t all = 0; /* of the unit before */
    engine->tables.packed_kept = engine->plan.param_extent == TESS_EXTENT_FULL;
    for (int32_t u = 0, o = 0; u < declare->unit_count; u++) {
        const int32_t first = o;
        o += declare->unit[u].op_count;
        if (reserve_repeats(engine, u) &&
            tess_memory_repeat(engine->memory, TESS_MEMORY_WORKSPACE, all))
            continue;
        const uint64_t before = tess_memory_bytes(engine->memory, TESS_MEMORY_WORKSPACE);
        TESS_TRY(reserve_unit_operations(engine, first, o, &most));
        all = tess_memory_bytes(engine->memory, TESS_MEMORY_WORKSPACE) - before;
    }
    engine->block.thread_bytes = tess_round_up(most.each, 64);
    const int64_t threads = (int64_t)engine->block.thread_bytes * (engine->kernel->threads - 1);
    const struct reserve_row row[] = {
        {TESS_MEMORY_WORKSPACE, most.packed, "packed weights of a unit",
         &engine->block.packed_shared},
        {TESS_MEMORY_WORKSPACE, (int64_t)most.scratch, "kernel scratch", &engine->block.op_scratch},
        {TESS_MEMORY_WORKSPACE, threads, "scratch of threads", &engine->block.thread_scratch},
    };
    return reserve_rows(engine, 3, row);
}

enum tess_status tess__engine_reserve(struct tess_engine *engine)
{
    const struct tess_declare *declare = &engine->declare;
    struct tess_blocks *block = &engine->block;
    const int64_t slots = engine->sizes_alone ? 1 : engine->schedule.slot_max;
    const size_t size = sizeof(struct tess_block);
    block->unit_output = tess__engine_room(engine, slots * declare->unit_count, size);
    block->tensor =
        tess__engine_room(engine, engine->sizes_alone ? 1 : slots * declare->tensor_count, size);
    block->packed = tess__engine_room(engine, declare->op_count, size);
    TESS_TRY(tess__engine_has_room(engine));
    TESS_TRY(reserve_parameters(engine));
    TESS_TRY(engine->config->strategy->reserve(&engine->strategy));
    if (engine->tensor_strategy.ops != NULL)
        TESS_TRY(engine->tensor_strategy.ops->reserve(&engine->tensor_strategy));
    TESS_TRY(tess__tied_reserve(engine));
    TESS_TRY(reserve_activations(engine));
    TESS_TRY(tess__stages_reserve(engine));
    TESS_TRY(tess__crossing_reserve(engine));
    TESS_TRY(reserve_loss(engine));
    TESS_TRY(reserve_operations(engine));
    TESS_TRY(tess__batches_reserve(engine));
    TESS_TRY(tess__audit_reserve(engine));
    TESS_TRY(tess_memory_reserve_beside(engine->memory, TESS_MEMORY_STAGING,
                                        engine->config->saves ? tess_saver_bytes(engine) : 0,
                                        "checkpoint", &block->staging));
    /* Files in memory, which the kernel allocates as they are written. */
    struct tess_block copies;
    return tess_memory_reserve_beside(engine->memory, TESS_MEMORY_REDUNDANCY,
                                      engine->config->saves ? tess_saver_copies(engine) : 0,
                                      "copies", &copies);
}

/* ---- binding --------------------------------------------------------------------------------- */

static void *bind_at(void *base, int64_t elements, size_t bytes)
{
    return base != NULL ? (char *)base + (size_t)elements * bytes : NULL;
}

/* Storage of every segment, from the extents of the plan. */
static void bind_segments(struct tess_engine *engine)
{
    struct tess_plan *plan = &engine->plan;
    void *param = tess_memory_get(engine->memory, engine->block.param);
    float *master = tess_memory_get(engine->memory, engine->block.master);
    float *grad = tess_memory_get(engine->memory, engine->block.grad);
    int64_t packed_param = 0, packed_grad = 0, packed_master = 0;
    for (int32_t s = 0; s < plan->segment_count; s++) {
        struct tess_segment *segment = &plan->segment[s];
        int64_t own = tess_plan_own_begin(plan, s, plan->optim_extent);
        if (s >= plan->grad_segment_count) {
            segment->grad_own = NULL;
        } else if (plan->grad_extent == TESS_EXTENT_FULL) {
            segment->grad_own = bind_at(grad, own, sizeof(*grad));
        } else {
            segment->grad_own = bind_at(grad, packed_grad, sizeof(*grad));
            packed_grad += tess_plan_own_count(plan, s, plan->grad_extent);
        }
        if (segment->values_of >= 0) { /* of a tied parameter: those of an earlier segment */
            const struct tess_segment *source = &plan->segment[segment->values_of];
            segment->param = source->param;
            segment->param_own = source->param_own;
            segment->master_own = source->master_own;
            continue;
        }
        if (plan->param_extent == TESS_EXTENT_FULL) {
            segment->param = bind_at(param, segment->begin, engine->sizes.dtype_bytes);
            segment->param_own = bind_at(param, own, engine->sizes.dtype_bytes);
        } else {
            segment->param_own = bind_at(param, packed_param, engine->sizes.dtype_bytes);
            packed_param += tess_plan_own_count(plan, s, plan->param_extent);
        }
        segment->master_own = plan->dtype == TESS_F32        ? segment->param_own
                              : s < plan->grad_segment_count ? bind_at(master, packed_master, 4)
                                                             : NULL;
        packed_master += tess_plan_own_count(plan, s, plan->optim_extent);
    }
}

static enum tess_status bind_host_tables(struct tess_engine *engine)
{
    const struct tess_declare *declare = &engine->declare, *model = &engine->model;
    struct tess_tables *tables = &engine->tables;
    const int32_t units = declare->unit_count, slots = engine->schedule.slot_max;
    engine->piece_count =
        tess_layout_piece_count(&engine->plan, declare, &engine->trained_piece_count);
    const size_t pointer = sizeof(void *), number = sizeof(int32_t);
    tables->tensor = tess__engine_room(engine, (int64_t)slots * model->tensor_count, pointer);
    tables->op = tess__engine_room(engine, declare->op_count, sizeof(*tables->op));
    tables->op_of = tess__engine_room(engine, model->op_count, pointer);
    tables->param_of = tess__engine_room(engine, model->param_count, pointer);
    tables->grad_of = tess__engine_room(engine, model->param_count, pointer);
    tables->unit_param_first = tess__engine_room(engine, units, number);
    tables->unit_op_first = tess__engine_room(engine, units, number);
    engine->piece = tess__engine_room(engine, engine->piece_count, sizeof(*engine->piece));
    TESS_TRY(tess__engine_has_room(engine));
    for (int32_t u = 0, p = 0, o = 0; u < units; u++) {
        while (p < declare->param_count && declare->param[p].unit == u)
            p++;
        while (o < declare->op_count && declare->op[o].unit == u)
            o++;
        tables->unit_param_first[u + 1] = p;
        tables->unit_op_first[u + 1] = o;
    }
    return TESS_OK;
}

static enum tess_status bind_operations(struct tess_engine *engine)
{
    const struct tess_declare *declare = &engine->declare;
    char *shared = tess_memory_get(engine->memory, engine->block.packed_shared);
    for (int32_t o = 0; o < declare->op_count; o++) {
        struct tess_op *op = &engine->tables.op[o];
        engine->tables.op_of[declare->op[o].index] = op;
        op->desc = declare->op[o].desc;
        op->kernel = engine->kernel;
        op->scratch = tess_memory_get(engine->memory, engine->block.op_scratch);
        op->thread_scratch = tess_memory_get(engine->memory, engine->block.thread_scratch);
        op->thread_bytes = engine->block.thread_bytes;
        if (engine->block.packed[o].bytes > 0)
            op->packed = engine->tables.packed_kept
                             ? tess_memory_get(engine->memory, engine->block.packed[o])
                             : shared + engine->block.packed[o].offset;
        TESS_TRY(engine->kernel->ops->op_open(op));
    }
    return TESS_OK;
}

static void bind_tensors(struct tess_engine *engine)
{
    const struct tess_declare *declare = &engine->declare;
    char *scratch = tess_memory_get(engine->memory, engine->block.unit_scratch);
    for (int32_t i = 0; i < engine->schedule.slot_max; i++) {
        for (int32_t t = 0; t < declare->tensor_count; t++) {
            const struct tess_block block = engine->block.tensor[i * declare->tensor_count + t];
            engine->tables.tensor[i * engine->model.tensor_count + declare->tensor[t].index] =
                tess__tensor_is_brief(engine, &declare->tensor[t])
                    ? scratch + block.offset
                    : tess_memory_get(engine->memory, block);
        }
    }
}

enum tess_status tess__engine_bind(struct tess_engine *engine)
{
    const struct tess_declare *declare = &engine->declare;
    struct tess_blocks *block = &engine->block;
    TESS_TRY(bind_host_tables(engine));
    bind_segments(engine);
    bind_tensors(engine);
    engine->found.loss = tess_memory_get(engine->memory, block->loss);
    engine->found.correct = tess_memory_get(engine->memory, block->correct);
    engine->found.verdict = tess_memory_get(engine->memory, block->found);
    engine->found.sums =
        (double *)(void *)((char *)(void *)engine->found.verdict + TESS_FOUND_SUMS);
    tess_layout_pieces(&engine->plan, declare, engine->piece);
    return bind_operations(engine);
}
