/*
 * Channels: the messages from one rank to another in a group. NCCL's send and receive meet on the
 * device, each holding its stream until the other comes, so that two ranks that both send first
 * would wait for each other for ever on one stream. A channel is an NCCL communicator of the two
 * ranks and a stream, for one direction alone; then messages wait for their own kind only.
 *
 * It is made when one of the two first needs it, and both threads see to it (nccl_watch.c), so
 * that no rank waits for what the other's program does next:
 *
 *     lower rank                      higher rank
 *     wanted, or requested   <------  wanted: request
 *     an id: invitation      ------>  starts
 *     starts                          greets
 *     greets                 <----->  ready
 *     ready
 *
 * NCCL connects two ranks at the first message of each, and the call's state is ncclInProgress
 * until both have made it. So the threads exchange a byte, the greeting: after it a message is
 * queued and its rank goes on. All of this takes memory of the device, for which CUDA may wait
 * until the device has nothing to do: ranks that have other calls under way when they send for the
 * first time meet before (tess_comm_meet).
 */
#include "comm/nccl/nccl_group.h"
#include "cuda/host.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>

/* Lock held. NULL: no memory. */
static struct nccl_channel *channel_want(struct nccl_family *family, uint64_t group, int32_t from,
                                         int32_t to)
{
    struct nccl_channel *channel = family->channels;
    while (channel != NULL &&
           (channel->group != group || channel->from != from || channel->to != to))
        channel = channel->next;
    if (channel != NULL)
        return channel;
    channel = calloc(1, sizeof(*channel));
    if (channel == NULL)
        return NULL;
    channel->group = group;
    channel->from = from;
    channel->to = to;
    channel->next = family->channels;
    family->channels = channel;
    return channel;
}

void tess__nccl_channel_take(struct nccl_family *family, const struct nccl_letter *letter)
{
    bool mine = letter->from == family->rank || letter->to == family->rank;
    if (!mine || letter->from == letter->to)
        return;
    pthread_mutex_lock(&family->lock);
    struct nccl_channel *channel = channel_want(family, letter->group, letter->from, letter->to);
    if (channel != NULL && letter->kind == NCCL_INVITE && !channel->has_id) {
        channel->id = letter->with.id;
        channel->has_id = true;
    }
    pthread_mutex_unlock(&family->lock);
}

/* ---- the thread's part ----------------------------------------------------------------------- */

/* Lock held. */
static ncclResult_t channel_start(struct nccl_family *family, struct nccl_channel *channel)
{
    ncclConfig_t config;
    tess__nccl_config(family, &config);
    if (tess__nccl_lane_open(&channel->lane) != TESS_OK)
        return ncclUnhandledCudaError;
    channel->state = NCCL_STARTING;
    channel->free_before = tess__cuda_free_bytes();
    return ncclCommInitRankConfig(&channel->lane.comm, 2, channel->id,
                                  channel->from == family->rank ? 0 : 1, &config);
}

/* Lock held. */
static ncclResult_t channel_greet(struct nccl_family *family, struct nccl_channel *channel)
{
    const struct nccl_lane *lane = &channel->lane;
    channel->state = NCCL_GREETING;
    return channel->from == family->rank
               ? ncclSend(family->greeting, 1, ncclUint8, 1, lane->comm, lane->own)
               : ncclRecv(family->greeting + 1, 1, ncclUint8, 0, lane->comm, lane->own);
}

/* Lock held. The greeting has been sent or has come: what follows waits for nothing but data. */
static ncclResult_t channel_finish(struct nccl_family *family, struct nccl_channel *channel)
{
    const cudaError_t error = tess__cuda_polled(cudaStreamQuery(channel->lane.own));
    if (error == cudaErrorNotReady)
        return ncclInProgress;
    if (error != cudaSuccess)
        return ncclUnhandledCudaError;
    tess__cuda_usage_took(family->device, CUDA_USAGE_COMM, channel->free_before);
    channel->state = NCCL_READY;
    pthread_cond_broadcast(&family->changed);
    return ncclSuccess;
}

/* Lock held. */
static ncclResult_t channel_poll(struct nccl_family *family, struct nccl_channel *channel)
{
    ncclResult_t result = ncclSuccess, asked = ncclSuccess;
    if (channel->lane.comm != NULL)
        asked = ncclCommGetAsyncError(channel->lane.comm, &result);
    if (asked != ncclSuccess || result != ncclSuccess)
        return asked != ncclSuccess ? asked : result;
    return channel->state == NCCL_STARTING ? channel_greet(family, channel)
                                           : channel_finish(family, channel);
}

/*
 * One step, lock held. True: `letter` is to be sent, lock not held, to the channel's other rank.
 */
static bool channel_step(struct nccl_family *family, struct nccl_channel *channel,
                         struct nccl_letter *letter, ncclResult_t *result)
{
    int32_t peer = channel->from == family->rank ? channel->to : channel->from;
    bool lower = family->rank < peer;
    *letter = (struct nccl_letter){
        .group = channel->group, .from = channel->from, .to = channel->to, .sender = family->rank};
    if (channel->state == NCCL_STARTING || channel->state == NCCL_GREETING) {
        *result = channel_poll(family, channel);
        return false;
    }
    if (lower) {
        *result = ncclGetUniqueId(&channel->id);
        if (*result != ncclSuccess)
            return false;
        letter->kind = NCCL_INVITE;
        letter->with.id = channel->id;
        *result = channel_start(family, channel);
        return true;
    }
    if (channel->has_id) {
        *result = channel_start(family, channel);
        return false;
    }
    letter->kind = NCCL_REQUEST;
    bool asks = channel->state == NCCL_WANTED;
    channel->state = NCCL_ASKED;
    return asks;
}

bool tess__nccl_channels_advance(struct nccl_family *family)
{
    bool starting = false, sent = true;
    ncclResult_t result = ncclSuccess;
    char text[160];
    pthread_mutex_lock(&family->lock);
    for (struct nccl_channel *at = family->channels;
         at != NULL && (result == ncclSuccess || result == ncclInProgress); at = at->next) {
        struct nccl_letter letter;
        if (at->state == NCCL_READY)
            continue;
        int32_t peer = at->from == family->rank ? at->to : at->from;
        starting = true;
        if (!channel_step(family, at, &letter, &result))
            continue;
        pthread_mutex_unlock(&family->lock);
        sent = tess__nccl_post_send(family, peer, &letter);
        if (!sent)
            snprintf(text, sizeof(text), "rank %d cannot open a channel of messages with rank %d",
                     (int)family->rank, (int)peer);
        pthread_mutex_lock(&family->lock);
        break; /* the list may be another one: the next look begins anew */
    }
    pthread_mutex_unlock(&family->lock);
    if (result != ncclSuccess && result != ncclInProgress) {
        snprintf(text, sizeof(text), "rank %d cannot open a channel of messages: %s",
                 (int)family->rank, ncclGetErrorString(result));
        sent = false;
    }
    if (!sent)
        tess__nccl_break(family, TESS_ERR_COMM, text);
    return starting;
}

/* ---- the rank's part ------------------------------------------------------------------------- */

/* A rank that does not come to be a peer for that long is not there. */
static enum tess_status channel_await(struct nccl_family *family, struct nccl_channel *channel)
{
    char text[160];
    struct tess_awake awake = {0};
    pthread_mutex_lock(&family->lock);
    while (channel->state != NCCL_READY && !atomic_load(&family->failed) &&
           tess_awake_s(&awake) < family->timeout_s + 1)
        tess__nccl_wait_changed(family);
    bool ready = channel->state == NCCL_READY;
    pthread_mutex_unlock(&family->lock);
    if (!ready && !atomic_load(&family->failed)) {
        snprintf(text, sizeof(text),
                 "rank %d: the channel of messages from rank %d to rank %d was not open after %g s",
                 (int)family->rank, (int)channel->from, (int)channel->to, family->timeout_s);
        tess__nccl_break(family, TESS_ERR_TIMEOUT, text);
    }
    return tess__nccl_check(family);
}

static enum tess_status channel_check_capture(const struct nccl_group *group)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (group->comm.queue != NULL)
        CUDA_TRY(cudaStreamIsCapturing(group->comm.queue->native, &capture));
    if (capture != cudaStreamCaptureStatusNone)
        TESS_FAIL(TESS_ERR_INTERNAL, "two ranks' first message cannot be part of a recorded step");
    return TESS_OK;
}

enum tess_status tess__nccl_channel_get(struct nccl_group *group, int32_t from, int32_t to,
                                        bool device, struct nccl_channel **channel_out)
{
    struct nccl_family *family = group->family;
    pthread_mutex_lock(&family->lock);
    struct nccl_channel *channel =
        channel_want(family, group->id, group->member[from], group->member[to]);
    bool ready = channel != NULL && channel->state == NCCL_READY;
    pthread_mutex_unlock(&family->lock);
    if (channel == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a channel of messages");
    if (!ready) {
        TESS_TRY(channel_check_capture(group));
        tess__nccl_post_wake(family);
        TESS_TRY(channel_await(family, channel));
    }
    /* Its queue is the rank's to make. */
    if (device && channel->lane.queue == NULL)
        TESS_TRY(tess__nccl_lane_attach(&channel->lane, group->comm.queue));
    *channel_out = channel;
    return TESS_OK;
}

enum tess_status tess__nccl_meet(struct tess_comm *comm, int32_t from, int32_t to)
{
    struct nccl_group *group = (struct nccl_group *)comm;
    struct nccl_channel *channel;
    TESS_TRY(tess__nccl_channel_get(group, from, to, comm->queue != NULL, &channel));
    if (!channel->met)
        TESS_TRY(tess__nccl_register_channel(group->family, channel));
    channel->met = true;
    return tess__nccl_host_meet(group);
}

void tess__nccl_channels_close(struct nccl_family *family, const struct nccl_group *group)
{
    for (;;) {
        pthread_mutex_lock(&family->lock);
        struct nccl_channel **link = &family->channels;
        while (*link != NULL && group != NULL && (*link)->group != group->id)
            link = &(*link)->next;
        struct nccl_channel *channel = *link;
        if (channel != NULL)
            *link = channel->next;
        pthread_mutex_unlock(&family->lock);
        if (channel == NULL)
            return;
        tess__nccl_unregister(family, &channel->lane);
        tess__nccl_lane_close(family, &channel->lane);
        free(channel);
    }
}
