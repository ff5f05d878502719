/*
 * What models call where activations cross the tensor axis (tess_pass_sum and others in
 * tessera/model.h): sums over the parts that this rank computes, then over the ranks. How data
 * moves between ranks is the tensor strategy's; which calls a layer needs, the model's.
 *
 * In canonical order a sum is one balanced tree over the parts, in f32 until its end: a rank's
 * parts are a subtree of it, which the rank folds as a binary counter does.
 */
#include "core/state.h"

#include "tessera/check.h"

/* Sums over parts that are being folded at once: one for each level of the tree. */
static int32_t crossing_levels(int32_t parts)
{
    int32_t levels = 1;
    for (; parts > 1; parts /= 2)
        levels++;
    return levels;
}

enum tess_status tess__crossing_reserve(struct tess_engine *engine)
{
    const struct tess_tensor_axis *axis = &engine->model.axis;
    struct tess_tensor_pass *crossing = &engine->crossing;
    crossing->canonical = engine->config->tensor.canonical > 1;
    crossing->room_count = engine->model.sum_most;
    for (int32_t u = 0; u < engine->model.unit_count; u++)
        if (engine->model.unit[u].output_count * engine->sizes.rows > crossing->room_count)
            crossing->room_count = engine->model.unit[u].output_count * engine->sizes.rows;
    const int64_t bytes =
        crossing->canonical ? crossing_levels(axis->count) * crossing->room_count * 4 : 0;
    return tess_memory_reserve(engine->memory, TESS_MEMORY_WORKSPACE, (uint64_t)bytes,
                               "sums over parts, f32", &engine->block.crossing);
}

void tess__crossing_open(struct tess_engine *engine)
{
    struct tess_tensor_pass *crossing = &engine->crossing;
    crossing->kernel = engine->kernel;
    crossing->strategy = engine->model.axis.rank_count > 1 ? &engine->tensor_strategy : NULL;
    crossing->room = tess_memory_get(engine->memory, engine->block.crossing);
}

static enum tess_status crossing_move(const struct tess_pass *pass,
                                      const struct tess_crossing *crossing)
{
    struct tess_strategy *strategy = pass->crossing->strategy;
    return strategy == NULL ? TESS_OK : strategy->ops->cross(strategy, crossing);
}

static void crossing_copy(const struct tess_pass *pass, int64_t count, const void *from, void *to)
{
    if (from != to)
        tess_copy(pass->kernel, count * (int64_t)tess_dtype_bytes(pass->dtype), from, to);
}

/* The tree over this rank's parts, in level 0 of the room. */
static enum tess_status crossing_fold(const struct tess_pass *pass, int64_t count,
                                      const void *partial)
{
    const struct tess_tensor_pass *crossing = pass->crossing;
    const size_t bytes = tess_dtype_bytes(pass->dtype);
    if (count > crossing->room_count)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "unit %d sums %lld elements over the tensor axis, more than it declared and than "
                  "any unit's output",
                  pass->unit, (long long)count);
    for (int32_t part = 0; part < pass->axis->count; part++) {
        int32_t level = __builtin_popcount((unsigned)part);
        tess_cast(pass->kernel, count, pass->dtype,
                  (const char *)partial + (size_t)(part * count) * bytes, TESS_F32,
                  crossing->room + level * count);
        for (int32_t done = part + 1; done % 2 == 0; done /= 2, level--)
            tess_accumulate(pass->kernel, count, 1.0f, crossing->room + level * count,
                            crossing->room + (level - 1) * count);
    }
    return TESS_OK;
}

enum tess_status tess_pass_sum(const struct tess_pass *pass, int64_t count, void *partial, void *y)
{
    const struct tess_tensor_axis *axis = pass->axis;
    const struct tess_tensor_pass *crossing = pass->crossing;
    if (axis->parts <= 1) {
        crossing_copy(pass, count, partial, y);
        return TESS_OK;
    }
    if (crossing->canonical) {
        TESS_TRY(crossing_fold(pass, count, partial));
        TESS_TRY(crossing_move(pass, &(struct tess_crossing){.kind = TESS_CROSSING_SUM,
                                                             .dtype = TESS_F32,
                                                             .count = (size_t)count,
                                                             .data = crossing->room}));
        tess_cast(pass->kernel, count, TESS_F32, crossing->room, pass->dtype, y);
        return TESS_OK;
    }
    if (axis->sequence)
        return crossing_move(pass,
                             &(struct tess_crossing){.kind = TESS_CROSSING_SUM_SCATTER,
                                                     .dtype = pass->dtype,
                                                     .count = (size_t)(count / axis->rank_count),
                                                     .data = partial,
                                                     .part = y});
    TESS_TRY(crossing_move(pass, &(struct tess_crossing){.kind = TESS_CROSSING_SUM,
                                                         .dtype = pass->dtype,
                                                         .count = (size_t)count,
                                                         .data = partial}));
    crossing_copy(pass, count, partial, y);
    return TESS_OK;
}

enum tess_status tess_pass_widen(const struct tess_pass *pass, int64_t count, const void *part,
                                 void *whole)
{
    const struct tess_tensor_axis *axis = pass->axis;
    if (!axis->sequence || axis->rank_count == 1) {
        crossing_copy(pass, count, part, whole);
        return TESS_OK;
    }
    return crossing_move(pass, &(struct tess_crossing){.kind = TESS_CROSSING_GATHER,
                                                       .dtype = pass->dtype,
                                                       .count = (size_t)(count / axis->rank_count),
                                                       .data = whole,
                                                       .part = (void *)(uintptr_t)part});
}

enum tess_status tess_pass_sum_f32(const struct tess_pass *pass, int64_t count, float *x)
{
    for (int32_t step = 1; step < pass->axis->count; step *= 2)
        for (int32_t part = 0; part + step < pass->axis->count; part += 2 * step)
            tess_accumulate(pass->kernel, count, 1.0f, x + (part + step) * count, x + part * count);
    return crossing_move(
        pass, &(struct tess_crossing){
                  .kind = TESS_CROSSING_SUM, .dtype = TESS_F32, .count = (size_t)count, .data = x});
}

enum tess_status tess_pass_max_f32(const struct tess_pass *pass, int64_t count, float *x)
{
    for (int32_t part = 1; part < pass->axis->count; part++)
        tess_maximum(pass->kernel, count, x + part * count, x);
    return crossing_move(
        pass, &(struct tess_crossing){
                  .kind = TESS_CROSSING_MAX, .dtype = TESS_F32, .count = (size_t)count, .data = x});
}

enum tess_status tess__crossing_finish(struct tess_engine *engine)
{
    struct tess_strategy *strategy = engine->crossing.strategy;
    if (!engine->model.axis.sequence || strategy == NULL)
        return TESS_OK;
    for (int32_t i = 0; i < engine->optim.piece_count; i++) {
        const struct tess_piece *piece = &engine->piece[i];
        if (piece->flags & TESS_PARAM_TOKENS)
            TESS_TRY(strategy->ops->cross(
                strategy, &(struct tess_crossing){.kind = TESS_CROSSING_SUM,
                                                  .dtype = TESS_F32,
                                                  .count = (size_t)piece->count,
                                                  .data = (void *)(uintptr_t)piece->g}));
    }
    return TESS_OK;
}
