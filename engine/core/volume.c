/*
 * Bytes that a rank sends in a step, by formula, along each axis of the mesh. The data axis'
 * formula is its strategy's. The tensor axis' follows from what the units declare (N ranks, n
 * bytes): an all-reduce sends 2 (N-1)/N n, a reduce-scatter or all-gather (N-1)/N n. A stage sends
 * its last unit's output once forward, and its input's gradient once backward, for each
 * micro-batch. And what was sent, as the groups have counted it.
 */
#include "core/state.h"

/* Elements that a unit's calls of one kind bring across in a micro-batch. */
static uint64_t volume_calls(const struct tess_engine *engine, int32_t unit,
                             enum tess_crossing_call call)
{
    const struct tess_declare_unit *declared = &engine->declare.unit[unit];
    const bool again = tess__engine_recompute(engine, unit) == TESS_RECOMPUTE_FULL;
    return (uint64_t)(declared->crossing[TESS_CALL_FORWARD][call] * (again ? 2 : 1) +
                      declared->crossing[TESS_CALL_BACKWARD][call]);
}

static uint64_t volume_tensor(const struct tess_engine *engine)
{
    const struct tess_tensor_axis *axis = &engine->model.axis;
    const struct tess_plan *plan = &engine->plan;
    const uint64_t ranks = (uint64_t)axis->rank_count;
    const uint64_t low = engine->crossing.canonical ? sizeof(float) : engine->sizes.dtype_bytes;
    uint64_t parts = 0; /* in (N-1)/N bytes */
    for (int32_t u = 0; u < engine->declare.unit_count; u++) {
        parts += (axis->sequence ? 1 : 2) * low * volume_calls(engine, u, TESS_CALL_SUM);
        parts += 2 * sizeof(float) * volume_calls(engine, u, TESS_CALL_F32);
        parts += axis->sequence ? low * volume_calls(engine, u, TESS_CALL_WIDEN) : 0;
    }
    parts *= (uint64_t)plan->accumulate;
    for (int32_t p = 0; axis->sequence && p < plan->param_count; p++)
        if (plan->param[p].flags & TESS_PARAM_TOKENS)
            parts += 2 * sizeof(float) * (uint64_t)tess_layout_own_of(plan, p);
    return parts * (ranks - 1) / ranks;
}

static uint64_t volume_stage(const struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    uint64_t bytes = 0;
    for (int32_t c = 0; c < engine->schedule.chunk_count; c++) {
        const struct tess_chunk *chunk = &engine->schedule.chunk[c];
        const int64_t output =
            chunk->last ? 0 : engine->declare.unit[chunk->unit_end - 1].output_count;
        bytes += (uint64_t)((output + chunk->input_count) * engine->sizes.rows) *
                 engine->sizes.dtype_bytes * (uint64_t)plan->accumulate;
    }
    return bytes + tess__tied_sent_bytes(engine);
}

uint64_t tess_engine_axis_formula(const struct tess_engine *engine, enum tess_axis axis)
{
    if (engine->plan.mesh.count[axis] == 1 && axis != TESS_AXIS_DATA)
        return 0;
    switch (axis) {
    case TESS_AXIS_TENSOR:
        return volume_tensor(engine);
    case TESS_AXIS_STAGE:
        return volume_stage(engine);
    default:
        return engine->strategy.ops->sent_bytes(&engine->strategy);
    }
}

uint64_t tess_engine_sent_formula(const struct tess_engine *engine)
{
    uint64_t bytes = 0;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        bytes += tess_engine_axis_formula(engine, (enum tess_axis)axis);
    return bytes;
}

/* ---- as counted ------------------------------------------------------------------------------ */

static void volume_add(const struct tess_comm *comm, uint64_t *sent_bytes, double *wait_s)
{
    if (comm != NULL) {
        *sent_bytes += comm->stats.sent_bytes;
        *wait_s += comm->stats.wait_s;
    }
}

void tess_engine_axis_traffic(const struct tess_engine *engine, enum tess_axis axis,
                              uint64_t *sent_bytes_out, double *wait_s_out)
{
    const struct tess_strategy *strategy =
        axis == TESS_AXIS_DATA ? &engine->strategy : &engine->tensor_strategy;
    *sent_bytes_out = 0;
    *wait_s_out = 0;
    if (axis == TESS_AXIS_STAGE) { /* its own group carries nothing but the split into these */
        volume_add(engine->stages.forward, sent_bytes_out, wait_s_out);
        volume_add(engine->stages.backward, sent_bytes_out, wait_s_out);
        return;
    }
    if (axis == TESS_AXIS_DATA || engine->axis_comm[axis] != engine->comm)
        volume_add(engine->axis_comm[axis], sent_bytes_out, wait_s_out);
    for (int32_t g = 0; g < strategy->group_count; g++)
        volume_add(strategy->group[g], sent_bytes_out, wait_s_out);
}

void tess_engine_traffic(const struct tess_engine *engine, uint64_t *sent_bytes_out,
                         double *wait_s_out)
{
    const struct tess_strategy *both[] = {&engine->strategy, &engine->tensor_strategy};
    *sent_bytes_out = 0;
    *wait_s_out = 0;
    volume_add(engine->comm, sent_bytes_out, wait_s_out);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        if (engine->axis_comm[axis] != engine->comm)
            volume_add(engine->axis_comm[axis], sent_bytes_out, wait_s_out);
    volume_add(engine->stages.forward, sent_bytes_out, wait_s_out);
    volume_add(engine->stages.backward, sent_bytes_out, wait_s_out);
    for (int i = 0; i < 2; i++)
        for (int32_t g = 0; g < both[i]->group_count; g++)
            volume_add(both[i]->group[g], sent_bytes_out, wait_s_out);
}
