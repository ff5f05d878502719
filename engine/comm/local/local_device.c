/*
 * Device memory in a group of threads: peers' pointers are good for every rank, so calls on it are
 * run as those on memory that can be reached (local_run.c, local_message.c), but by a queue of the
 * device, in an order that fences make:
 *
 *     call    each rank records its `ready` fence on its kernels' queue, then posts
 *     run     when all have posted, the rank's queue in the group follows the ready fences, is
 *             given the rank's share, and records `done`; then the rank publishes, as always
 *     wait    when all have published, the kernels' queue follows the done fences
 *
 * The host waits for posts and never for the device. Fences have places as descriptors have, fewer
 * of them. A place is recorded anew while a peer may still be about to follow it for an earlier
 * call: what it then follows is later work of the same queue, which is in order; it does no harm,
 * since that work waits for nothing that the follower has not recorded yet.
 *
 * Ranks close in any order, and a peer may follow a fence of a rank that has gone: fences live
 * until all members of the group have let go of them.
 */
#include "comm/local/shared.h"
#include "tessera/check.h"

#include <stdlib.h>

/* Fences of the messages with one peer. */
enum {
    DEVICE_SENT,   /* source is ready; followed by the peer */
    DEVICE_WANTED, /* target is ready */
    DEVICE_PULLED, /* done; followed by the peer too */
    DEVICE_PAIR_FENCES
};
struct local_device_pair {
    struct tess_fence *fence[LOCAL_PAIR_RING][DEVICE_PAIR_FENCES];
};

struct local_device {
    _Atomic int32_t users;        /* members that have not let go of it */
    int32_t rank_count;           /* of the group */
    struct tess__call_queue sums; /* on the rank's own queue in this group */
    struct {
        struct tess_fence *ready, *done;
    } fence[LOCAL_FENCES];
    /* By peer; made at the first message, NULL before. */
    _Atomic(struct local_device_pair *) pair[];
};

static void device_fence_close(struct tess_fence *fence)
{
    if (fence != NULL)
        fence->ops->fence_close(fence);
}

static void device_pair_free(struct local_device_pair *pair)
{
    for (int i = 0; i < LOCAL_PAIR_RING && pair != NULL; i++)
        for (int k = 0; k < DEVICE_PAIR_FENCES; k++)
            device_fence_close(pair->fence[i][k]);
    free(pair);
}

static void device_let_go(struct local_device *device)
{
    if (atomic_fetch_sub(&device->users, 1) > 1)
        return;
    for (int i = 0; i < LOCAL_FENCES; i++) {
        device_fence_close(device->fence[i].ready);
        device_fence_close(device->fence[i].done);
    }
    for (int32_t r = 0; r < device->rank_count; r++)
        device_pair_free(atomic_load(&device->pair[r]));
    free(device);
}

/* What only the rank itself uses. */
static void device_close_sums(struct local_device *device)
{
    struct tess_queue *queue = device->sums.queue;

    if (queue == NULL)
        return;
    struct tess_kernel *kernel = queue->kernel;
    queue->ops->close(queue);
    if (device->sums.partials.memory != NULL)
        kernel->ops->free(kernel, device->sums.partials.memory);
    free(device->sums.partials.source);
    device->sums = (struct tess__call_queue){.queue = NULL};
}

static enum tess_status device_open_sums(const struct tess_queue *kernels,
                                         struct local_device *device)
{
    const size_t partials = (size_t)tess__call_partials(device->rank_count);
    struct tess__partials *room = &device->sums.partials;
    void *memory;

    TESS_TRY(kernels->ops->open(kernels->kernel, &device->sums.queue));
    if (partials == 0)
        return TESS_OK;
    room->stride = LOCAL_PARTIAL_BYTES;
    room->source = calloc((size_t)device->rank_count, sizeof(*room->source));
    if (room->source == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the sums of a communicator");
    TESS_TRY(kernels->kernel->ops->alloc(kernels->kernel, partials * room->stride, &memory));
    room->memory = memory;
    return TESS_OK;
}

static enum tess_status device_new(const struct tess_queue *kernels, int32_t rank_count,
                                   struct local_device **device_out)
{
    struct local_device *device =
        calloc(1, sizeof(*device) + (size_t)rank_count * sizeof(device->pair[0]));
    if (device == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the fences of a communicator");
    atomic_store(&device->users, 1);
    device->rank_count = rank_count;
    enum tess_status status = device_open_sums(kernels, device);
    for (int i = 0; i < LOCAL_FENCES && status == TESS_OK; i++) {
        status = kernels->ops->fence_open(kernels->kernel, &device->fence[i].ready);
        if (status == TESS_OK)
            status = kernels->ops->fence_open(kernels->kernel, &device->fence[i].done);
    }
    if (status != TESS_OK) {
        device_close_sums(device);
        device_let_go(device);
        return status;
    }
    *device_out = device;
    return TESS_OK;
}

static void device_detach(struct local_group *group)
{
    struct local_device *own = group->device;
    if (own == NULL)
        return;
    group->device = NULL;
    device_close_sums(own);
    for (int32_t r = 0; r < group->comm.rank_count; r++)
        if (group->device_of[r] != NULL)
            device_let_go(group->device_of[r]);
    free(group->device_of);
    group->device_of = NULL;
}

enum tess_status tess__local_attach(struct tess_comm *comm, struct tess_queue *queue)
{
    struct local_group *group = (struct local_group *)comm;
    if (queue == NULL) {
        device_detach(group);
        return TESS_OK;
    }
    /* Processes do not reach each other's device memory: calls on it are refused. */
    bool reachable = group->rank->world->mode == TESS_RANKS_THREADS || comm->rank_count == 1;
    if (group->device != NULL || !reachable)
        return TESS_OK;
    struct local_device *own = NULL, **all = calloc((size_t)comm->rank_count, sizeof(*all));
    if (all == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the fences of a communicator");
    enum tess_status status = device_new(queue, comm->rank_count, &own);
    if (status != TESS_OK) {
        free(all);
        return status;
    }
    atomic_store(&own->users, comm->rank_count);
    status = tess__call_exchange(comm, &own, sizeof(own), all);
    group->device = own;
    group->device_of = all;
    if (status == TESS_OK)
        return TESS_OK;
    /* Others may have the addresses of these fences: only they may release them. */
    for (int32_t r = 0; r < comm->rank_count; r++)
        all[r] = r == comm->rank ? own : NULL;
    device_detach(group);
    return status;
}

enum tess_status tess__local_device_check(const struct local_group *group,
                                          const struct tess_comm_call *call)
{
    char name[160];
    if (group->device != NULL)
        return TESS_OK;
    tess__call_name(call, name, sizeof(name));
    TESS_FAIL(TESS_ERR_UNSUPPORTED,
              "%s: ranks that are processes cannot reach each other's device memory here; run them "
              "as threads, or with NCCL on one device each",
              name);
}

/* ---- collectives ----------------------------------------------------------------------------- */

enum tess_status tess__local_device_post(struct local_group *group, uint64_t t)
{
    struct tess_queue *kernels = group->comm.queue;
    return kernels->ops->record(kernels, group->device->fence[t % LOCAL_FENCES].ready);
}

/* A rank that only takes from the root of a broadcast needs no other rank. */
static bool device_needs(const struct local_group *group, const struct tess_comm_call *call,
                         int32_t peer)
{
    return call->collective != TESS_COLLECTIVE_BROADCAST || peer == call->peer ||
           peer == group->comm.rank;
}

enum tess_status tess__local_device_begin(struct local_group *group, uint64_t t)
{
    struct tess_queue *queue = group->device->sums.queue;
    const struct tess_comm_call *call = &group->call[t % LOCAL_RING];
    for (int32_t r = 0; r < group->comm.rank_count; r++)
        if (device_needs(group, call, r))
            TESS_TRY(queue->ops->follow(queue, group->device_of[r]->fence[t % LOCAL_FENCES].ready));
    return TESS_OK;
}

enum tess_status tess__local_device_end(struct local_group *group, uint64_t t)
{
    struct tess_queue *queue = group->device->sums.queue;
    tess_comm_given(&group->comm, tess__ticket(TESS__COLLECTIVE, 0, t), queue);
    return queue->ops->record(queue, group->device->fence[t % LOCAL_FENCES].done);
}

enum tess_status tess__local_device_join(struct local_group *group, uint64_t t, bool all)
{
    struct tess_queue *kernels = group->comm.queue;
    for (int32_t r = 0; r < group->comm.rank_count; r++)
        if (all || r == group->comm.rank)
            TESS_TRY(
                kernels->ops->follow(kernels, group->device_of[r]->fence[t % LOCAL_FENCES].done));
    return TESS_OK;
}

const struct tess__call_queue *tess__local_device_queue(const struct local_group *group)
{
    return &group->device->sums;
}

/* ---- messages -------------------------------------------------------------------------------- */

static enum tess_status device_pair(struct local_group *group, int32_t peer,
                                    struct local_device_pair **pair_out)
{
    struct local_device *own = group->device;
    *pair_out = atomic_load(&own->pair[peer]);
    if (*pair_out != NULL)
        return TESS_OK;
    struct local_device_pair *pair = calloc(1, sizeof(*pair));
    if (pair == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the fences of messages");
    enum tess_status status = TESS_OK;
    for (int i = 0; i < LOCAL_PAIR_RING; i++)
        for (int k = 0; k < DEVICE_PAIR_FENCES && status == TESS_OK; k++)
            status = own->sums.queue->ops->fence_open(own->sums.queue->kernel, &pair->fence[i][k]);
    if (status != TESS_OK) {
        device_pair_free(pair);
        return status;
    }
    atomic_store(&own->pair[peer], pair);
    *pair_out = pair;
    return TESS_OK;
}

enum tess_status tess__local_device_meet(struct local_group *group, int32_t peer)
{
    struct local_device_pair *pair;
    return device_pair(group, peer, &pair);
}

enum tess_status tess__local_device_post_message(struct local_group *group, bool send, int32_t peer,
                                                 uint64_t seq)
{
    struct tess_queue *kernels = group->comm.queue;
    struct local_device_pair *pair;
    TESS_TRY(device_pair(group, peer, &pair));
    return kernels->ops->record(
        kernels, pair->fence[seq % LOCAL_PAIR_RING][send ? DEVICE_SENT : DEVICE_WANTED]);
}

enum tess_status tess__local_device_pull(struct local_group *group, int32_t peer, uint64_t seq,
                                         void *target, const void *source, size_t bytes)
{
    const size_t at = seq % LOCAL_PAIR_RING;
    struct tess_queue *queue = group->device->sums.queue;
    struct local_device_pair *own = atomic_load(&group->device->pair[peer]);
    struct local_device_pair *theirs = atomic_load(&group->device_of[peer]->pair[group->comm.rank]);
    TESS_TRY(queue->ops->follow(queue, theirs->fence[at][DEVICE_SENT]));
    TESS_TRY(queue->ops->follow(queue, own->fence[at][DEVICE_WANTED]));
    TESS_TRY(queue->ops->copy(queue, bytes, source, target));
    tess_comm_given(&group->comm, tess__ticket(TESS__RECEIVE, peer, seq), queue);
    return queue->ops->record(queue, own->fence[at][DEVICE_PULLED]);
}

enum tess_status tess__local_device_join_message(struct local_group *group, bool send, int32_t peer,
                                                 uint64_t seq)
{
    struct tess_queue *kernels = group->comm.queue;
    struct local_device *receiver = send ? group->device_of[peer] : group->device;
    struct local_device_pair *pair = atomic_load(&receiver->pair[send ? group->comm.rank : peer]);
    if (pair == NULL) /* none of their messages were of the device */
        return TESS_OK;
    return kernels->ops->follow(kernels, pair->fence[seq % LOCAL_PAIR_RING][DEVICE_PULLED]);
}
