/*
 * Tied parameters: one tensor that two units use, an embedding and the head. Each unit's gradient
 * is reduced by itself, over micro-batches and ranks; then both are added, so that the sum does not
 * depend on whether they lie on one rank or on two stages. On one rank the values are shared; on
 * two, both stages make the same update of their copy.
 */
#include "core/state.h"

#include "tessera/check.h"

/* Elements that two stages exchange at a time: 1 MiB. */
#define TIED_CHUNK (INT64_C(1) << 18)

/* The segment that a segment is tied to: on this rank, or -1 and the stage that has it. */
struct tied_end {
    int32_t segment, stage;
};

/* The stage that keeps a unit of the model. */
static int32_t tied_stage(const struct tess_engine *engine, int32_t unit)
{
    const int32_t stages = engine->plan.mesh.count[TESS_AXIS_STAGE];
    return engine->schedule.stage_of[unit] % stages;
}

/* Is segment `s` tied to another one? Then *end is that one. */
static bool tied_find(const struct tess_engine *engine, int32_t s, struct tied_end *end)
{
    const struct tess_plan *plan = &engine->plan;
    const struct tess_declare *model = &engine->model;
    const int32_t index = plan->param[plan->segment[s].param_first].index;
    int32_t other = tess_declare_source(&model->param[index]);
    for (int32_t p = 0; p < model->param_count && other < 0; p++)
        if (tess_declare_source(&model->param[p]) == index)
            other = p;
    if (other < 0)
        return false;
    end->stage = tied_stage(engine, model->param[other].unit);
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
    for (int32_t s = 0; s < engine->plan.segment_count; s++) {
        if (!tied_find(engine, s, &end) || end.segment >= 0)
            continue;
        const int64_t own = tess_plan_own_count(&engine->plan, s, engine->plan.optim_extent);
        most = own > most ? own : most;
    }
    most = most < TIED_CHUNK ? most : TIED_CHUNK;
    return tess_memory_reserve(engine->memory, TESS_MEMORY_WORKSPACE, (uint64_t)most * 4,
                               "gradient of a tied parameter", &engine->block.tied);
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
    for (int32_t s = 0; s < plan->segment_count; s++) {
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
    for (int32_t s = 0; s < plan->segment_count; s++)
        if (tied_find(engine, s, &end) && end.segment < 0)
            bytes += 4 * (uint64_t)tess_plan_own_count(plan, s, plan->optim_extent);
    return bytes;
}
