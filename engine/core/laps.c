/*
 * Where a step's time goes. The host's clock measures it where kernels compute within the call.
 * Where they have a queue, the host runs ahead of the device; then fences on that queue measure it,
 * and are read when the step is over:
 *
 *     queue     |data .. |forward .... |backward ....... |update .. |other .|      |: a fence
 *
 * Communicators count exposed communication by phase; it is subtracted from each.
 */
#include "core/state.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)TESS_LAP_COUNT <= TESS_COMM_PHASES, "communicators count by lap");

enum tess_status tess__laps_open(struct tess_laps *laps, struct tess_kernel *kernel,
                                 struct tess_comm *comm, int32_t action_count)
{
    laps->comm = comm;
    laps->queue = kernel->queue;
    if (laps->queue == NULL)
        return TESS_OK;
    /* Two for each action, and those around them all. */
    const int32_t count = 2 * action_count + 8;
    laps->fence = calloc((size_t)count, sizeof(*laps->fence));
    laps->of_fence = calloc((size_t)count, sizeof(*laps->of_fence));
    if (laps->fence == NULL || laps->of_fence == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the times of a step's %d actions", action_count);
    laps->fence_count = count;
    for (int32_t i = 0; i < count; i++)
        TESS_TRY(laps->queue->ops->fence_open(kernel, &laps->fence[i]));
    return TESS_OK;
}

void tess__laps_close(struct tess_laps *laps)
{
    for (int32_t i = 0; laps->fence != NULL && i < laps->fence_count; i++)
        if (laps->fence[i] != NULL)
            laps->fence[i]->ops->fence_close(laps->fence[i]);
    free(laps->fence);
    free(laps->of_fence);
}

static enum tess_status laps_mark(struct tess_laps *laps, enum tess_lap lap)
{
    const double now_s = tess_clock_s();
    laps->spent_s[laps->lap] += now_s - laps->since_s;
    laps->since_s = now_s;
    laps->lap = lap;
    tess_comm_phase(laps->comm, (int32_t)lap);
    if (laps->queue == NULL || laps->paused || laps->fence_used == laps->fence_count)
        return TESS_OK;
    laps->of_fence[laps->fence_used] = lap;
    return laps->queue->ops->record(laps->queue, laps->fence[laps->fence_used++]);
}

enum tess_status tess__laps_begin(struct tess_laps *laps)
{
    laps->fence_used = 0;
    laps->lap = TESS_LAP_OTHER;
    laps->since_s = tess_clock_s();
    memset(laps->spent_s, 0, sizeof(laps->spent_s));
    for (int32_t i = 0; i < TESS_LAP_COUNT; i++)
        laps->wait_s[i] = tess_comm_phase_wait_s(laps->comm, i);
    return laps_mark(laps, TESS_LAP_OTHER);
}

enum tess_status tess__laps_enter(struct tess_laps *laps, enum tess_lap lap)
{
    return laps->lap == lap ? TESS_OK : laps_mark(laps, lap);
}

enum tess_status tess__laps_stop(struct tess_laps *laps)
{
    return laps_mark(laps, TESS_LAP_OTHER);
}

enum tess_status tess__laps_end(struct tess_laps *laps, struct tess_times *times)
{
    double wait_s[TESS_LAP_COUNT], passed_s;
    if (laps->queue != NULL) { /* the device's times take the place of the host's */
        memset(laps->spent_s, 0, sizeof(laps->spent_s));
        for (int32_t i = 0; i + 1 < laps->fence_used; i++) {
            TESS_TRY(laps->queue->ops->elapsed(laps->fence[i], laps->fence[i + 1], &passed_s));
            laps->spent_s[laps->of_fence[i]] += passed_s;
        }
        TESS_TRY(tess_comm_settle(laps->comm));
    }
    times->comm_s = 0;
    for (int32_t i = 0; i < TESS_LAP_COUNT; i++) {
        wait_s[i] = tess_comm_phase_wait_s(laps->comm, i) - laps->wait_s[i];
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
