/*
 * Where a step's time goes. The host's clock says it where kernels compute within the call. Where
 * they have a queue the host is ahead of the device, and fences on that queue say it, asked when
 * the step is over:
 *
 *     queue     |data .. |forward .... |backward ....... |update .. |other .|      |: a fence
 *
 * Exposed communication is counted by the communicators, by phase, and is taken out of each.
 */
#include "core/state.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <stdlib.h>

_Static_assert((int)TESS_LAP_COUNT <= TESS_COMM_PHASES, "communicators count by lap");

enum tess_status tess__laps_open(struct tess_engine *engine)
{
    struct tess_laps *laps = &engine->laps;
    const struct tess_queue *queue = engine->kernel->queue;
    if (queue == NULL)
        return TESS_OK;
    /* Two for each action, and those around them all. */
    const int32_t count = 2 * engine->pipe.action_count + 8;
    laps->fence = calloc((size_t)count, sizeof *laps->fence);
    laps->of_fence = calloc((size_t)count, sizeof *laps->of_fence);
    if (laps->fence == NULL || laps->of_fence == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the times of a step's %d actions",
                  engine->pipe.action_count);
    laps->fence_count = count;
    for (int32_t i = 0; i < count; i++)
        TESS_TRY(queue->ops->fence_open(engine->kernel, &laps->fence[i]));
    return TESS_OK;
}

void tess__laps_close(struct tess_engine *engine)
{
    struct tess_laps *laps = &engine->laps;
    for (int32_t i = 0; laps->fence != NULL && i < laps->fence_count; i++)
        if (laps->fence[i] != NULL)
            laps->fence[i]->ops->fence_close(laps->fence[i]);
    free(laps->fence);
    free(laps->of_fence);
}

static enum tess_status laps_mark(struct tess_engine *engine, enum tess_lap lap)
{
    struct tess_laps *laps = &engine->laps;
    struct tess_queue *queue = engine->kernel->queue;
    const double now_s = tess_clock_s();
    laps->spent_s[laps->lap] += now_s - laps->since_s;
    laps->since_s = now_s;
    laps->lap = lap;
    tess_comm_phase(engine->comm, (int32_t)lap);
    if (queue == NULL || laps->paused || laps->fence_used == laps->fence_count)
        return TESS_OK;
    laps->of_fence[laps->fence_used] = lap;
    return queue->ops->record(queue, laps->fence[laps->fence_used++]);
}

enum tess_status tess__laps_begin(struct tess_engine *engine)
{
    struct tess_laps *laps = &engine->laps;
    laps->fence_used = 0;
    laps->lap = TESS_LAP_OTHER;
    laps->since_s = tess_clock_s();
    for (int32_t i = 0; i < TESS_LAP_COUNT; i++) {
        laps->spent_s[i] = 0;
        laps->wait_s[i] = tess_comm_phase_wait_s(engine->comm, i);
    }
    return laps_mark(engine, TESS_LAP_OTHER);
}

enum tess_status tess__laps_enter(struct tess_engine *engine, enum tess_lap lap)
{
    return engine->laps.lap == lap ? TESS_OK : laps_mark(engine, lap);
}

void tess__laps_pause(struct tess_engine *engine, bool on)
{
    engine->laps.paused = on;
}

enum tess_status tess__laps_stop(struct tess_engine *engine)
{
    return laps_mark(engine, TESS_LAP_OTHER);
}

/* The device's times take the place of the host's. */
static enum tess_status laps_ask(struct tess_engine *engine)
{
    struct tess_laps *laps = &engine->laps;
    const struct tess_queue *queue = engine->kernel->queue;
    if (queue == NULL)
        return TESS_OK;
    for (int32_t i = 0; i < TESS_LAP_COUNT; i++)
        laps->spent_s[i] = 0;
    for (int32_t i = 0; i + 1 < laps->fence_used; i++) {
        double passed_s;
        TESS_TRY(queue->ops->elapsed(laps->fence[i], laps->fence[i + 1], &passed_s));
        laps->spent_s[laps->of_fence[i]] += passed_s;
    }
    return tess_comm_settle(engine->comm);
}

enum tess_status tess__laps_end(struct tess_engine *engine, struct tess_times *times)
{
    struct tess_laps *laps = &engine->laps;
    TESS_TRY(laps_ask(engine));
    double wait_s[TESS_LAP_COUNT];
    times->comm_s = 0;
    for (int32_t i = 0; i < TESS_LAP_COUNT; i++) {
        wait_s[i] = tess_comm_phase_wait_s(engine->comm, i) - laps->wait_s[i];
        times->comm_s += wait_s[i];
        laps->spent_s[i] = laps->spent_s[i] > wait_s[i] ? laps->spent_s[i] - wait_s[i] : 0;
    }
    times->comm_forward_s = wait_s[TESS_LAP_FORWARD];
    times->comm_backward_s = wait_s[TESS_LAP_BACKWARD];
    times->comm_optim_s = wait_s[TESS_LAP_UPDATE];
    times->data_s = laps->spent_s[TESS_LAP_DATA];
    times->forward_s = laps->spent_s[TESS_LAP_FORWARD];
    times->backward_s = laps->spent_s[TESS_LAP_BACKWARD];
    times->optim_s = laps->spent_s[TESS_LAP_UPDATE];
    return TESS_OK;
}
