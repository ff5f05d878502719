/*
 * A family's thread. It looks at all communicators ten times a second, because while the device
 * waits for a peer that has died, the rank's own thread may be waiting for the device; it answers
 * the post; and it makes channels.
 */
#include "comm/nccl/nccl_group.h"
#include "cuda/host.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

#define WATCH_TICK_S     0.1
#define WATCH_STARTING_S 1e-3 /* between two looks at channels that are being made */

/* Lock held. True with `text` where the lane is broken or has stood still for too long. */
static bool watch_lane(struct nccl_family *family, struct nccl_lane *lane, double now_s, char *text,
                       size_t text_bytes, enum tess_status *status)
{
    char doing[400];
    ncclResult_t result = ncclSuccess;
    if (lane->comm == NULL)
        return false;
    ncclResult_t asked = ncclCommGetAsyncError(lane->comm, &result);
    result = asked != ncclSuccess ? asked : result;
    if (result != ncclSuccess && result != ncclInProgress) {
        tess__nccl_explain(family, result, NULL, lane, text, text_bytes);
        *status = TESS_ERR_COMM;
        return true;
    }
    /* Errors of the device itself are reported by the thread that works on it. */
    bool stands = lane->beats > 0 && cudaEventQuery(lane->beat) == cudaErrorNotReady;
    if (stands && cudaGetLastError() != cudaErrorNotReady)
        stands = false;
    if (!stands || lane->beats != lane->beats_seen) {
        lane->beats_seen = lane->beats;
        lane->seen_s = now_s;
        return false;
    }
    if (now_s - lane->seen_s <= family->timeout_s)
        return false;
    tess__nccl_describe(family, lane, doing, sizeof(doing));
    snprintf(text, text_bytes, "rank %d: a call did not end within %g s: %s", (int)family->rank,
             family->timeout_s, doing);
    *status = TESS_ERR_TIMEOUT;
    return true;
}

static void watch_look(struct nccl_family *family, double now_s)
{
    char text[800] = "";
    enum tess_status status = TESS_OK;
    bool broken = false;
    tess__nccl_check_world(family);
    pthread_mutex_lock(&family->lock);
    for (struct nccl_channel *at = family->channels; at != NULL && !broken; at = at->next)
        if (at->state == NCCL_READY)
            broken = watch_lane(family, &at->lane, now_s, text, sizeof(text), &status);
    for (struct nccl_group *group = LIST_FIRST(&family->groups); group != NULL;
         group = LIST_NEXT(group, link))
        for (int way = 0; way < NCCL_LANES && !broken; way++)
            broken = watch_lane(family, &group->lane[way], now_s, text, sizeof(text), &status);
    pthread_mutex_unlock(&family->lock);
    if (broken)
        tess__nccl_break(family, status, text);
}

static void watch_take_letter(struct nccl_family *family, const struct nccl_letter *letter)
{
    char text[300];
    if (letter->kind != NCCL_FAILED) {
        tess__nccl_channel_take(family, letter);
        return;
    }
    snprintf(text, sizeof(text), "stopped because rank %d failed: %.*s", (int)letter->sender,
             (int)sizeof(letter->with.reason) - 1, letter->with.reason);
    tess__nccl_break(family, TESS_ERR_ABORTED, text);
}

static void *watch_thread(void *context)
{
    struct nccl_family *family = context;
    struct tess_awake awake = {0};
    double looked_s = 0;
    bool starting = false;
    tess_log_set_rank((int)family->rank);
    tess__cuda_log_error(cudaSetDevice(family->device), "cudaSetDevice");
    while (!atomic_load(&family->ends)) {
        struct nccl_letter letter;
        if (tess__nccl_post_take(family, starting ? WATCH_STARTING_S : WATCH_TICK_S, &letter))
            watch_take_letter(family, &letter);
        starting = starting && !atomic_load(&family->failed);
        if (atomic_load(&family->failed)) {
            if (!family->aborted)
                tess__nccl_abort_all(family);
            continue;
        }
        starting = tess__nccl_channels_advance(family);
        const double now_s = tess_awake_s(&awake);
        if (now_s - looked_s < WATCH_TICK_S)
            continue;
        watch_look(family, now_s);
        looked_s = now_s;
    }
    /* A failure that was met just before the end. */
    if (atomic_load(&family->failed) && !family->aborted)
        tess__nccl_abort_all(family);
    return NULL;
}

enum tess_status tess__nccl_watch(struct nccl_family *family)
{
    int error = pthread_create(&family->thread, NULL, watch_thread, family);
    if (error != 0)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot start the thread that watches NCCL: %s",
                  strerror(error));
    family->threaded = true;
    return TESS_OK;
}

void tess__nccl_unwatch(struct nccl_family *family)
{
    if (!family->threaded)
        return;
    atomic_store(&family->ends, true);
    tess__nccl_post_wake(family);
    pthread_join(family->thread, NULL);
    family->threaded = false;
}
