/*
 * Sums across the tensor and the stage axis.
 *
 * What models call where activations cross the tensor axis (tess_pass_sum and others in
 * tessera/model.h): sums over the parts that this rank computes, then over the ranks. How data
 * moves between ranks is the tensor strategy's; which calls a layer needs, the model's. In
 * canonical order a sum is one balanced tree over the parts, in f32 until its end: a rank's parts
 * are a subtree of it, which the rank folds as a binary counter does.
 *
 * Tied parameters: one tensor that two units use, an embedding and the head. Each unit's gradient
 * is reduced by itself, over micro-batches and ranks; then both are added, so that the sum does not
 * depend on whether they lie on one rank or on two stages. On one rank the values are shared; on
 * two, both stages make the same update of their copy.
 */
#include "core/state.h"

#include "tessera/check.h"

/* Levels of the tree over a rank's parts that are being folded at once. */
static int32_t crossing_levels(const struct tess_tensor_axis *axis)
{
    return 32 - __builtin_clz((unsigned)axis->count);
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
        crossing->canonical ? crossing_levels(axis) * crossing->room_count * 4 : 0;
    return tess_memory_reserve(engine->memory, TESS_MEMORY_WORKSPACE, (uint64_t)bytes,
                               "sums over parts, f32", &engine->block.crossing);
}

void tess__crossing_open(struct tess_engine *engine)
{
    struct tess_tensor_pass *crossing = &engine->crossing;
    crossing->strategy = engine->model.axis.rank_count > 1 ? &engine->tensor_strategy : NULL;
    crossing->room = tess_memory_get(engine->memory, engine->block.crossing);
}

/* Without a tensor axis there is nothing to move. */
static enum tess_status crossing_begin(struct tess_strategy *strategy, enum tess_crossing_kind kind,
                                       enum tess_dtype dtype, int64_t count, void *data, void *part,
                                       struct tess_event *event)
{
    const struct tess_crossing crossing = {.kind = kind,
                                           .dtype = dtype,
                                           .count = (size_t)count,
                                           .data = data,
                                           .part = part,
                                           .event = event};
    return strategy == NULL ? TESS_OK : strategy->ops->cross(strategy, &crossing);
}

static enum tess_status crossing_move(struct tess_strategy *strategy, enum tess_crossing_kind kind,
                                      enum tess_dtype dtype, int64_t count, void *data, void *part)
{
    return crossing_begin(strategy, kind, dtype, count, data, part, NULL);
}

static void crossing_copy(const struct tess_pass *pass, int64_t count, const void *from, void *to)
{
    if (from != to)
        tess_copy(pass->kernel, count * (int64_t)tess_dtype_bytes(pass->dtype), from, to);
}

/* The tree over this rank's parts, in level 0 of the room. */
static void crossing_fold(const struct tess_pass *pass, int64_t count, const void *partial,
                          float *room)
{
    const size_t bytes = tess_dtype_bytes(pass->dtype);
    for (int32_t part = 0; part < pass->axis->count; part++) {
        int32_t level = __builtin_popcount((unsigned)part);
        tess_cast(pass->kernel, count, pass->dtype,
                  (const char *)partial + (size_t)(part * count) * bytes, TESS_F32,
                  room + level * count);
        for (int32_t done = part + 1; done % 2 == 0; done /= 2, level--)
            tess_accumulate(pass->kernel, count, 1.0f, room + level * count,
                            room + (level - 1) * count);
    }
}

/* A place among those begun; where there is none, or no room, those before are ended. */
static enum tess_status crossing_place(const struct tess_pass *pass, int64_t count,
                                       struct tess_begun **begun_out)
{
    struct tess_tensor_pass *crossing = pass->crossing;
    const int64_t needed = crossing->canonical ? count : 0;
    if (crossing->begun_count == TESS_BEGUN_MAX ||
        crossing->begun_room + needed > crossing->room_count)
        TESS_TRY(tess_pass_sum_end(pass));
    if (needed > crossing->room_count)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "unit %d sums %lld elements over the tensor axis, more than it declared and than "
                  "any unit's output",
                  pass->unit, (long long)count);
    *begun_out = &crossing->begun[crossing->begun_count++];
    **begun_out = (struct tess_begun){.count = count};
    return TESS_OK;
}

/* `waits`: the ranks' sum is there on return. */
static enum tess_status crossing_sum(const struct tess_pass *pass, int64_t count, void *partial,
                                     void *y, bool waits)
{
    const struct tess_tensor_axis *axis = pass->axis;
    struct tess_tensor_pass *crossing = pass->crossing;
    struct tess_begun *begun;
    if (axis->parts <= 1) {
        crossing_copy(pass, count, partial, y);
        return TESS_OK;
    }
    TESS_TRY(crossing_place(pass, count, &begun));
    struct tess_event *event = waits ? NULL : &begun->event;
    if (axis->sequence && !crossing->canonical)
        return crossing_begin(crossing->strategy, TESS_CROSSING_SUM_SCATTER, pass->dtype,
                              count / axis->rank_count, partial, y, event);
    begun->y = y;
    begun->from = partial;
    if (!crossing->canonical)
        return crossing_begin(crossing->strategy, TESS_CROSSING_SUM, pass->dtype, count, partial,
                              NULL, event);
    float *room = crossing->room + crossing_levels(axis) * crossing->begun_room;
    crossing->begun_room += count;
    begun->from = room;
    crossing_fold(pass, count, partial, room);
    return crossing_begin(crossing->strategy, TESS_CROSSING_SUM, TESS_F32, count, room, NULL,
                          event);
}

enum tess_status tess_pass_sum_begin(const struct tess_pass *pass, int64_t count, void *partial,
                                     void *y)
{
    return crossing_sum(pass, count, partial, y, false);
}

enum tess_status tess_pass_sum_end(const struct tess_pass *pass)
{
    struct tess_tensor_pass *crossing = pass->crossing;
    for (struct tess_begun *b = crossing->begun; b < crossing->begun + crossing->begun_count; b++) {
        TESS_TRY(tess_event_wait(&b->event));
        if (b->from != NULL && crossing->canonical)
            tess_cast(pass->kernel, b->count, TESS_F32, b->from, pass->dtype, b->y);
        else if (b->from != NULL)
            crossing_copy(pass, b->count, b->from, b->y);
    }
    crossing->begun_count = 0;
    crossing->begun_room = 0;
    return TESS_OK;
}

enum tess_status tess_pass_sum(const struct tess_pass *pass, int64_t count, void *partial, void *y)
{
    TESS_TRY(crossing_sum(pass, count, partial, y, true));
    return tess_pass_sum_end(pass);
}

enum tess_status tess_pass_widen(const struct tess_pass *pass, int64_t count, const void *part,
                                 void *whole)
{
    const struct tess_tensor_axis *axis = pass->axis;
    if (!axis->sequence || axis->rank_count == 1) {
        crossing_copy(pass, count, part, whole);
        return TESS_OK;
    }
    return crossing_move(pass->crossing->strategy, TESS_CROSSING_GATHER, pass->dtype,
                         count / axis->rank_count, whole, (void *)(uintptr_t)part);
}

enum tess_status tess_pass_sum_f32(const struct tess_pass *pass, int64_t count, float *x)
{
    for (int32_t step = 1; step < pass->axis->count; step *= 2)
        for (int32_t part = 0; part + step < pass->axis->count; part += 2 * step)
            tess_accumulate(pass->kernel, count, 1.0f, x + (part + step) * count, x + part * count);
    return crossing_move(pass->crossing->strategy, TESS_CROSSING_SUM, TESS_F32, count, x, NULL);
}

enum tess_status tess_pass_max_f32(const struct tess_pass *pass, int64_t count, float *x)
{
    for (int32_t part = 1; part < pass->axis->count; part++)
        tess_maximum(pass->kernel, count, x + part * count, x);
    return crossing_move(pass->crossing->strategy, TESS_CROSSING_MAX, TESS_F32, count, x, NULL);
}

enum tess_status tess__crossing_finish(struct tess_engine *engine)
{
    for (int32_t i = 0; engine->model.axis.sequence && i < engine->optim.piece_count; i++) {
        const struct tess_piece *piece = &engine->piece[i];
        if (piece->flags & TESS_PARAM_TOKENS)
            TESS_TRY(crossing_move(engine->crossing.strategy, TESS_CROSSING_SUM, TESS_F32,
                                   piece->count, (void *)(uintptr_t)piece->g, NULL));
    }
    return TESS_OK;
}

/* ---- tied parameters ------------------------------------------------------------------------- */

/* Elements that two stages exchange at a time: 1 MiB. */
#define TIED_CHUNK (INT64_C(1) << 18)

/* The segment that a segment is tied to: on this rank, or -1 and the stage that has it. */
struct tied_end {
    int32_t segment, stage;
};

/* Is segment `s` tied to another one? Then *end is that one. */
static bool tied_find(const struct tess_engine *engine, int32_t s, struct tied_end *end)
{
    const struct tess_plan *plan = &engine->plan;
    const struct tess_declare *model = &engine->model;
    const struct tess_plan_param *param = &plan->param[plan->segment[s].param_first];
    const int32_t index = param->index;
    if (!param->alone)
        return false;
    int32_t other = tess_declare_source(&model->param[index]);
    for (int32_t p = 0; p < model->param_count && other < 0; p++)
        if (tess_declare_source(&model->param[p]) == index)
            other = p;
    if (other < 0)
        return false;
    end->stage =
        engine->schedule.stage_of[model->param[other].unit] % plan->mesh.count[TESS_AXIS_STAGE];
    end->segment = -1;
    for (int32_t p = 0; p < plan->param_count; p++)
        if (plan->param[p].index == other)
            end->segment = plan->param[p].segment;
    return true;
}

enum tess_status tess__tied_reserve(struct tess_engine *engine)
{
    struct tied_end end;
    int64_t most = 0;
    for (int32_t s = 0; s < engine->plan.grad_segment_count; s++) {
        const int64_t own = tess_plan_own_count(&engine->plan, s, engine->plan.optim_extent);
        if (own > most && tied_find(engine, s, &end) && end.segment < 0)
            most = own;
    }
    most = most < TIED_CHUNK ? most : TIED_CHUNK;
    return tess_memory_reserve(engine->memory, TESS_MEMORY_WORKSPACE, (uint64_t)most * 4,
                               "gradient of a tied parameter", &engine->block.tied);
}

enum tess_status tess__tied_meet(struct tess_engine *engine)
{
    struct tess_comm *comm = engine->stages.backward;
    struct tied_end end;
    for (int32_t s = 0; s < engine->plan.grad_segment_count; s++) {
        if (!tied_find(engine, s, &end) || end.segment >= 0)
            continue;
        TESS_TRY(tess_comm_meet(comm, comm->rank, end.stage));
        TESS_TRY(tess_comm_meet(comm, end.stage, comm->rank));
    }
    return TESS_OK;
}

/* Add the other stage's gradient to this one's, and the other way round: both get the same sum. */
static enum tess_status tied_exchange(struct tess_engine *engine, float *grad, int64_t count,
                                      int32_t stage)
{
    float *room = tess_memory_get(engine->memory, engine->block.tied);
    for (int64_t at = 0; at < count; at += TIED_CHUNK) {
        const int64_t now = count - at < TIED_CHUNK ? count - at : TIED_CHUNK;
        struct tess_event sent, received;
        TESS_TRY(
            tess_comm_recv(engine->stages.backward, room, (size_t)now, TESS_F32, stage, &received));
        TESS_TRY(tess_comm_send(engine->stages.backward, grad + at, (size_t)now, TESS_F32, stage,
                                &sent));
        TESS_TRY(tess_event_wait(&received));
        TESS_TRY(tess_event_wait(&sent));
        tess_accumulate(engine->kernel, now, 1.0f, room, grad + at);
    }
    return TESS_OK;
}

enum tess_status tess__tied_finish(struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    struct tied_end end;
    if (tess__shared_took(engine)) /* where the sum was used */
        return TESS_OK;
    for (int32_t s = 0; s < plan->grad_segment_count; s++) {
        const int64_t own = tess_plan_own_count(plan, s, plan->optim_extent);
        if (!tied_find(engine, s, &end))
            continue;
        if (end.segment < 0)
            TESS_TRY(tied_exchange(engine, plan->segment[s].grad_own, own, end.stage));
        else if (plan->segment[s].values_of >= 0)
            tess_accumulate(engine->kernel, own, 1.0f, plan->segment[s].grad_own,
                            plan->segment[end.segment].grad_own);
    }
    return TESS_OK;
}

uint64_t tess__tied_sent_bytes(const struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    struct tied_end end;
    uint64_t bytes = 0;
    for (int32_t s = 0; s < plan->grad_segment_count; s++)
        if (tied_find(engine, s, &end) && end.segment < 0)
            bytes += 4 * (uint64_t)tess_plan_own_count(plan, s, plan->optim_extent);
    return bytes;
}
