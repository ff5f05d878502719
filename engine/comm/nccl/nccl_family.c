/*
 * A rank's NCCL communicators as a family: what happens when something fails, and waiting that
 * ends. NCCL itself has no time limits: communicators are non-blocking, so that the host never
 * disappears in a call of NCCL, and a thread watches them beside (nccl_watch.c).
 */
#include "comm/nccl/nccl_group.h"
#include "cuda/host.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define FAMILY_SPIN_S   50e-6 /* as tess_event_wait promises */
#define FAMILY_LOOK_S   0.1
#define FAMILY_ABORT_S  20  /* NCCL waits for its own threads and for ranks of this host */
#define NCCL_DOOMED_MAX 512 /* communicators that are aborted; 2 per group, 1 per channel */

/* ---- words ----------------------------------------------------------------------------------- */

void tess__nccl_describe(const struct nccl_family *family, const struct nccl_lane *lane, char *text,
                         size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    if (lane != NULL && lane->number > 0)
        used = (size_t)snprintf(text, text_bytes, "%s %llu%s%s", tess_collective_name(lane->doing),
                                (unsigned long long)lane->number,
                                lane->site[0] != '\0' ? " at " : "", lane->site);
    if (family->world == NULL)
        return;
    for (int32_t r = 0; r < tess_world_rank_count(family->world) && used < text_bytes; r++) {
        char doing[160];
        if (r == family->place)
            continue;
        tess_board_describe(tess_world_board(family->world, r), NULL, 0, doing, sizeof(doing));
        used += (size_t)snprintf(text + used, text_bytes - used, "%srank %d is %s",
                                 used > 0 ? "; " : "", (int)r, doing);
    }
}

/* ---- failure --------------------------------------------------------------------------------- */

void tess__nccl_say(ncclResult_t result, const char *what)
{
    if (result != ncclSuccess && result != ncclInProgress)
        tess_log(TESS_LOG_DEBUG, "%s: %s", what, ncclGetErrorString(result));
}

/* Lock held. The lane's communicator, which it has no more. */
static void family_doom_lane(struct nccl_lane *lane, ncclComm_t *doomed, int *count)
{
    if (lane->comm != NULL && *count < NCCL_DOOMED_MAX)
        doomed[(*count)++] = lane->comm;
    lane->comm = NULL;
}

/* Lock held. All of them, most used first; those for which there is no room are given up. */
static int family_doom(struct nccl_family *family, ncclComm_t *doomed)
{
    int count = 0;
    for (struct nccl_group *group = LIST_FIRST(&family->groups); group != NULL;
         group = LIST_NEXT(group, link))
        for (int way = 0; way < NCCL_LANES; way++)
            family_doom_lane(&group->lane[way], doomed, &count);
    for (struct nccl_channel *at = family->channels; at != NULL; at = at->next)
        family_doom_lane(&at->lane, doomed, &count);
    return count;
}

/*
 * All at once, as a group: NCCL then stops all of them before it frees the first. One after
 * the other, the first would wait for the device, where a call of the second waits for a rank that
 * is gone. Lock not held: this ends only when graphs that NCCL is part of are gone, which the
 * rank's own thread sees to when it lets go of its communicator.
 */
void tess__nccl_abort_all(struct nccl_family *family)
{
    ncclComm_t doomed[NCCL_DOOMED_MAX];
    pthread_mutex_lock(&family->lock);
    const int count = family_doom(family, doomed);
    pthread_mutex_unlock(&family->lock);
    tess__nccl_say(ncclGroupStart(), "ncclGroupStart");
    for (int i = 0; i < count; i++)
        tess__nccl_say(ncclCommAbort(doomed[i]), "ncclCommAbort");
    tess__nccl_say(ncclGroupEnd(), "ending a group of ncclCommAbort");
    pthread_mutex_lock(&family->lock);
    /* A communicator that was being made is put where it belongs when it has been aborted. */
    (void)family_doom(family, doomed);
    family->aborted = true;
    pthread_cond_broadcast(&family->changed);
    pthread_mutex_unlock(&family->lock);
}

void tess__nccl_break(struct nccl_family *family, enum tess_status status, const char *reason)
{
    bool first;
    pthread_mutex_lock(&family->lock);
    first = !atomic_load(&family->failed);
    if (first) {
        family->status = status;
        snprintf(family->reason, sizeof(family->reason), "%s", reason);
        atomic_store(&family->failed, true);
        pthread_cond_broadcast(&family->changed);
    }
    pthread_mutex_unlock(&family->lock);
    if (!first)
        return;
    /* Before the abort: on one host NCCL frees its memory when all ranks do. */
    if (status != TESS_ERR_ABORTED)
        tess__nccl_notify(family, reason);
    if (family->threaded)
        tess__nccl_post_wake(family);
    else
        tess__nccl_abort_all(family);
}

void tess__nccl_wait_changed(struct nccl_family *family)
{
    const struct timespec limit = tess_clock_soon(FAMILY_LOOK_S);
    (void)pthread_cond_timedwait(&family->changed, &family->lock, &limit);
}

bool tess__nccl_wait_aborted(struct nccl_family *family)
{
    struct tess_awake awake = {0};
    pthread_mutex_lock(&family->lock);
    const double limit_s = family->stuck ? 0 : FAMILY_ABORT_S; /* once is enough */
    while (atomic_load(&family->failed) && !family->aborted && tess_awake_s(&awake) < limit_s)
        tess__nccl_wait_changed(family);
    bool done = family->aborted || !atomic_load(&family->failed);
    family->stuck = !done;
    pthread_mutex_unlock(&family->lock);
    return done;
}

void tess__nccl_notify(struct nccl_family *family, const char *reason)
{
    struct nccl_letter letter = {.kind = NCCL_FAILED, .sender = family->rank};
    int32_t here = family->world != NULL ? tess_world_rank_count(family->world) : 0;
    if (here > 0)
        tess_world_abort(family->world, family->place, reason);
    if (here == family->rank_count)
        return;
    snprintf(letter.with.reason, sizeof(letter.with.reason), "%s", reason);
    for (int32_t r = 0; r < family->rank_count; r++)
        if (r != family->rank)
            (void)tess__nccl_post_send(family, r, &letter);
}

void tess__nccl_check_world(struct nccl_family *family)
{
    int32_t who;
    char reason[600], text[700];
    if (family->world == NULL || atomic_load(&family->failed) ||
        !tess_world_aborted(family->world, &who, reason, sizeof(reason)))
        return;
    if (who < 0)
        snprintf(text, sizeof(text), "stopped by the launcher: %s", reason);
    else
        snprintf(text, sizeof(text), "stopped because rank %d failed: %s", (int)who, reason);
    tess__nccl_break(family, TESS_ERR_ABORTED, text);
}

enum tess_status tess__nccl_check(struct nccl_family *family)
{
    tess__nccl_check_world(family);
    if (!atomic_load(&family->failed))
        return TESS_OK;
    pthread_mutex_lock(&family->lock);
    enum tess_status status = family->status;
    bool logged = family->logged;
    family->logged = true;
    pthread_mutex_unlock(&family->lock);
    if (!logged)
        (void)tess_fail(status, "%s", family->reason);
    return status;
}

void tess__nccl_explain(const struct nccl_family *family, ncclResult_t result, const char *what,
                        const struct nccl_lane *lane, char *text, size_t text_bytes)
{
    char doing[400];
    /* The last words of this process's NCCL are more than the code's. They are of no communicator
     * in particular, and this one may be gone. */
    const char *words = ncclGetLastError(NULL);
    tess__nccl_describe(family, lane, doing, sizeof(doing));
    snprintf(text, text_bytes,
             "rank %d on device %d: NCCL %s%s: %s%s%.200s%s%s; run again with NCCL_DEBUG=WARN to "
             "learn more",
             (int)family->rank, family->device, what != NULL ? "failed in " : "met an error",
             what != NULL ? what : "", ncclGetErrorString(result),
             words != NULL && words[0] != '\0' ? ": " : "", words != NULL ? words : "",
             doing[0] != '\0' ? "; latest call: " : "", doing);
}

static enum tess_status family_fail(struct nccl_family *family, ncclResult_t result,
                                    const char *what, const struct nccl_lane *lane)
{
    char text[800];
    tess__nccl_explain(family, result, what, lane, text, sizeof(text));
    tess__nccl_break(family, TESS_ERR_COMM, text);
    return tess__nccl_check(family);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void family_pause(double waited_s)
{
    if (waited_s > FAMILY_SPIN_S)
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static enum tess_status family_time_out(struct nccl_family *family, const char *what,
                                        const struct nccl_lane *lane)
{
    char doing[500], text[800];
    tess__nccl_describe(family, lane, doing, sizeof(doing));
    snprintf(text, sizeof(text), "rank %d: %s did not end within %g s%s%s", (int)family->rank, what,
             family->timeout_s, doing[0] != '\0' ? ": " : "", doing);
    tess__nccl_break(family, TESS_ERR_TIMEOUT, text);
    return tess__nccl_check(family);
}

enum tess_status tess__nccl_taken(struct nccl_family *family, ncclComm_t *comm, ncclResult_t result,
                                  const char *what, const struct nccl_lane *lane)
{
    struct tess_awake awake = {0};
    /* Not all functions report that they continue beside the caller (ncclCommSplit,
     * registration): the state of the communicator counts. */
    if (result == ncclSuccess)
        result = ncclInProgress;
    while (result == ncclInProgress && *comm != NULL) {
        ncclResult_t asked = ncclCommGetAsyncError(*comm, &result);
        if (asked != ncclSuccess)
            result = asked;
        if (result != ncclInProgress)
            break;
        pthread_mutex_unlock(&family->lock);
        enum tess_status status = tess__nccl_check(family);
        const double waited_s = tess_awake_s(&awake);
        if (status == TESS_OK && waited_s > family->timeout_s)
            status = family_time_out(family, what, lane);
        family_pause(waited_s);
        pthread_mutex_lock(&family->lock);
        if (status != TESS_OK)
            return status;
    }
    if (result == ncclSuccess)
        return TESS_OK;
    pthread_mutex_unlock(&family->lock);
    enum tess_status status = result == ncclInProgress /* aborted meanwhile */
                                  ? tess__nccl_check(family)
                                  : family_fail(family, result, what, lane);
    pthread_mutex_lock(&family->lock);
    return status;
}

enum tess_status tess__nccl_await(struct nccl_family *family, cudaEvent_t event,
                                  const struct nccl_lane *lane)
{
    struct tess_board *board =
        family->world != NULL ? tess_world_board(family->world, family->place) : NULL;
    enum tess_status status = TESS_OK;
    struct tess_awake awake = {0};
    if (board != NULL) {
        atomic_store_explicit(&board->call_number, lane->number, memory_order_relaxed);
        atomic_store_explicit(&board->collective, (int32_t)lane->doing, memory_order_relaxed);
    }
    for (;;) {
        cudaError_t error = cudaEventQuery(event);
        if (error == cudaSuccess)
            break;
        if (error != cudaErrorNotReady) {
            status = tess__cuda_fail(error, "waiting for a communicator");
            break;
        }
        /* Not an error, but the next launch would take it for its own. */
        error = cudaGetLastError();
        tess__cuda_log_error(error == cudaErrorNotReady ? cudaSuccess : error, "cudaEventQuery");
        status = tess__nccl_check(family);
        const double waited_s = tess_awake_s(&awake);
        if (status == TESS_OK && waited_s > family->timeout_s)
            status = family_time_out(family, "a call", lane);
        if (status != TESS_OK)
            break;
        family_pause(waited_s);
    }
    if (board != NULL)
        atomic_store_explicit(&board->collective, -1, memory_order_relaxed);
    /* Aborted work ends too: what it left is of no use. */
    return status == TESS_OK ? tess__nccl_check(family) : status;
}

/* ---- set-up ---------------------------------------------------------------------------------- */

void tess__nccl_config(const struct nccl_family *family, ncclConfig_t *config_out)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (family->choices.max_ctas > 0)
        config.maxCTAs = (int)family->choices.max_ctas;
    if (family->choices.cta_policy > 0)
        config.CTAPolicy = family->choices.cta_policy;
    /* A library older than the header would copy more than it has room for: give it the fields of
     * 2.18, which the oldest that we take has. */
    if (family->version < NCCL_VERSION_CODE) {
        config.size = offsetof(ncclConfig_t, trafficClass);
        config.version = (unsigned)family->version;
    }
    *config_out = config;
}

struct nccl_channel *tess__nccl_channel_next(const struct nccl_group *group,
                                             const struct nccl_channel *after)
{
    struct nccl_family *family = group->family;
    pthread_mutex_lock(&family->lock);
    struct nccl_channel *at = after != NULL ? after->next : family->channels;
    while (at != NULL && at->group != group->id)
        at = at->next;
    pthread_mutex_unlock(&family->lock);
    return at;
}
