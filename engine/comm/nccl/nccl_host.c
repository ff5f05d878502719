/*
 * Calls on host memory: losses, digests, what ranks agree on. NCCL reaches the device's memory
 * alone, so they go through staging, in pieces where they are large:
 *
 *     source -> pinned -> device -> NCCL -> device -> pinned -> target, or the tree over the parts
 *
 * Sums are gathers whose parts the host adds up in the canonical order: what goes this way is
 * small. A collective with several pieces waits for all but the last when it is made. A message may
 * wait for ever, for what its peer does only after this rank's next call; so it waits in a slot of
 * its own, as large as it is.
 */
#include "comm/nccl/nccl_group.h"
#include "cuda/host.h"

#include "base/reduce.h"

#include <stdlib.h>
#include <string.h>

/* The least room of a message, and what meeting makes ahead: tess_comm_meet promises it. */
#define HOST_MESSAGE_BYTES TESS_COMM_MEET_BYTES

/* How a call is staged: `sources` arrays of the piece go to the device, `targets` come back. */
struct host_way {
    enum tess_collective run; /* what NCCL does with them */
    int32_t sources, targets;
    bool sums;
};

static struct host_way host_way(const struct nccl_group *group, enum tess_collective collective,
                                bool root)
{
    const int32_t n = group->comm.rank_count;
    switch (collective) {
    case TESS_COLLECTIVE_ALL_REDUCE:
    case TESS_COLLECTIVE_REDUCE:
        return (struct host_way){TESS_COLLECTIVE_ALL_GATHER, 1, n, true};
    case TESS_COLLECTIVE_REDUCE_SCATTER:
        return (struct host_way){TESS_COLLECTIVE_ALL_TO_ALL, n, n, true};
    case TESS_COLLECTIVE_ALL_TO_ALL:
        return (struct host_way){TESS_COLLECTIVE_ALL_TO_ALL, n, n, false};
    case TESS_COLLECTIVE_BROADCAST:
        return (struct host_way){collective, root, 1, false};
    case TESS_COLLECTIVE_SEND:
        return (struct host_way){collective, 1, 0, false};
    case TESS_COLLECTIVE_RECV:
        return (struct host_way){collective, 0, 1, false};
    default: /* a barrier is a gather of one byte */
        return (struct host_way){TESS_COLLECTIVE_ALL_GATHER, 1, n, false};
    }
}

/* Bytes of the slot before its targets. */
static size_t host_target_at(const struct host_way *way, size_t bytes)
{
    return ((size_t)way->sources * bytes + NCCL_ALIGN - 1) / NCCL_ALIGN * NCCL_ALIGN;
}

static enum tess_status host_slot_open(struct nccl_slot *slot, size_t bytes)
{
    void *host = NULL, *device = NULL;
    CUDA_TRY(cudaHostAlloc(&host, bytes, cudaHostAllocDefault));
    slot->host = host;
    CUDA_TRY(cudaMalloc(&device, bytes));
    slot->device = device;
    slot->bytes = bytes;
    CUDA_TRY(cudaEventCreateWithFlags(&slot->event, cudaEventDisableTiming));
    return TESS_OK;
}

static void host_slot_close(struct nccl_slot *slot)
{
    if (slot->event != NULL)
        tess__cuda_log_error(cudaEventDestroy(slot->event), "cudaEventDestroy");
    if (slot->device != NULL)
        tess__cuda_log_error(cudaFree(slot->device), "cudaFree");
    if (slot->host != NULL)
        tess__cuda_log_error(cudaFreeHost(slot->host), "cudaFreeHost");
}

enum tess_status tess__nccl_host_open(struct nccl_group *group)
{
    /* Sources and targets of all ranks, at most. */
    const size_t least = NCCL_ALIGN + 2 * (size_t)group->comm.rank_count * NCCL_SLOT_LEAST;
    group->slot_bytes = least > NCCL_SLOT_BYTES ? least : NCCL_SLOT_BYTES;
    for (int i = 0; i < NCCL_SLOTS; i++)
        TESS_TRY(host_slot_open(&group->slot[i], group->slot_bytes));
    return TESS_OK;
}

void tess__nccl_host_close(struct nccl_group *group)
{
    for (int i = 0; i < NCCL_SLOTS; i++)
        host_slot_close(&group->slot[i]);
    for (struct nccl_slot *slot = group->message_slot, *next; slot != NULL; slot = next) {
        next = slot->next;
        host_slot_close(slot);
        free(slot);
    }
    group->message_slot = NULL;
}

/* What has come of a piece goes to the caller's target. */
static void host_deliver(struct nccl_group *group, const struct nccl_slot *slot)
{
    const struct tess_comm_call *call = &slot->call;
    const bool root = group->comm.rank == call->peer;
    const struct host_way way = host_way(group, call->collective, root);
    const size_t size = tess_dtype_bytes(call->dtype), bytes = slot->count * size;
    const unsigned char *from = slot->host + host_target_at(&way, bytes);
    bool here = call->collective != TESS_COLLECTIVE_REDUCE || root;
    if (call->collective == TESS_COLLECTIVE_BARRIER || way.targets == 0 || !here)
        return;
    char *target = (char *)call->target + slot->first * size;
    if (way.sums) {
        void *one = target;
        for (int32_t r = 0; r < way.targets; r++)
            group->source[r] = from + (size_t)r * bytes;
        tess__reduce(call->dtype, call->reduce, way.targets, group->source, 1, &one, slot->count);
        return;
    }
    for (int32_t r = 0; r < way.targets; r++)
        memcpy(target + (size_t)r * call->count * size, from + (size_t)r * bytes, bytes);
}

enum tess_status tess__nccl_host_reached(const struct nccl_slot *slot, bool *reached_out)
{
    cudaError_t error = cudaEventQuery(slot->event);
    if (error == cudaErrorNotReady)
        error =
            cudaGetLastError(); /* not an error, but the next launch would take it for its own */
    *reached_out = error == cudaSuccess;
    return error == cudaSuccess || error == cudaErrorNotReady
               ? TESS_OK
               : tess__cuda_fail(error, "looking for the end of a call");
}

enum tess_status tess__nccl_host_finish(struct nccl_group *group, struct nccl_slot *slot)
{
    struct nccl_record *record = slot->record;
    TESS_TRY(tess__nccl_await(group->family, slot->event, slot->lane));
    host_deliver(group, slot);
    slot->record = NULL;
    if (record->slot != slot) /* a piece before the last */
        return TESS_OK;
    record->state = NCCL_DONE;
    record->slot = NULL;
    if (record->ticket > 0)
        tess_comm_completed(&group->comm, record->ticket);
    return TESS_OK;
}

/* A free slot, that of the oldest call where there is none. */
static enum tess_status host_take_slot(struct nccl_group *group, struct nccl_slot **slot_out)
{
    struct nccl_slot *oldest = &group->slot[0];
    for (int i = 0; i < NCCL_SLOTS; i++) {
        struct nccl_slot *slot = &group->slot[i];
        if (slot->record == NULL) {
            *slot_out = slot;
            return TESS_OK;
        }
        if (slot->record->ticket < oldest->record->ticket)
            oldest = slot;
    }
    *slot_out = oldest;
    return tess__nccl_host_finish(group, oldest);
}

static enum tess_status host_add_message_slot(struct nccl_group *group, size_t bytes,
                                              struct nccl_slot **slot_out)
{
    struct nccl_slot *slot = calloc(1, sizeof(*slot));
    if (slot == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to stage a message");
    slot->next = group->message_slot;
    group->message_slot = slot;
    *slot_out = slot;
    return host_slot_open(slot, bytes);
}

/* A free slot of messages that is large enough; where there is none, one more. */
static enum tess_status host_take_message_slot(struct nccl_group *group, size_t bytes,
                                               struct nccl_slot **slot_out)
{
    size_t room = HOST_MESSAGE_BYTES;
    for (struct nccl_slot *slot = group->message_slot; slot != NULL; slot = slot->next)
        if (slot->record == NULL && slot->bytes >= bytes) {
            *slot_out = slot;
            return TESS_OK;
        }
    while (room < bytes)
        room *= 2;
    return host_add_message_slot(group, room, slot_out);
}

enum tess_status tess__nccl_host_meet(struct nccl_group *group)
{
    struct nccl_slot *slot;
    return host_add_message_slot(group, HOST_MESSAGE_BYTES, &slot);
}

/* Queue one piece in its slot. */
static enum tess_status host_give(struct nccl_group *group, struct nccl_slot *slot)
{
    const struct tess_comm_call *call = &slot->call;
    const bool root = group->comm.rank == call->peer;
    const struct host_way way = host_way(group, call->collective, root);
    const size_t size = tess_dtype_bytes(call->dtype), bytes = slot->count * size;
    const size_t target_at = host_target_at(&way, bytes),
                 target_bytes = bytes * (size_t)way.targets;
    struct tess_comm_call run = *call;
    cudaStream_t stream = slot->lane->stream;
    if (call->collective == TESS_COLLECTIVE_BARRIER)
        slot->host[0] = 0;
    else
        for (int32_t r = 0; r < way.sources; r++)
            memcpy(slot->host + (size_t)r * bytes,
                   (const char *)call->source + ((size_t)r * call->count + slot->first) * size,
                   bytes);
    if (way.sources > 0)
        CUDA_TRY(cudaMemcpyAsync(slot->device, slot->host, bytes * (size_t)way.sources,
                                 cudaMemcpyHostToDevice, stream));
    run.collective = way.run;
    run.count = slot->count;
    run.target = slot->device + target_at;
    run.source = way.sources > 0 ? slot->device : run.target; /* in place where it is only taken */
    TESS_TRY(tess__nccl_run(group, slot->lane, &run));
    if (target_bytes > 0)
        CUDA_TRY(cudaMemcpyAsync(slot->host + target_at, slot->device + target_at, target_bytes,
                                 cudaMemcpyDeviceToHost, stream));
    CUDA_TRY(cudaEventRecord(slot->event, stream));
    return TESS_OK;
}

enum tess_status tess__nccl_host_start(struct nccl_group *group, struct nccl_lane *lane,
                                       const struct tess_comm_call *call,
                                       struct nccl_record *record)
{
    /* The same piece on all ranks: as if all had sources, though the root alone broadcasts. */
    const struct host_way way = host_way(group, call->collective, true);
    const size_t size = tess_dtype_bytes(call->dtype);
    const size_t total = call->collective == TESS_COLLECTIVE_BARRIER ? 1 : call->count;
    const bool message =
        call->collective == TESS_COLLECTIVE_SEND || call->collective == TESS_COLLECTIVE_RECV;
    const size_t room = group->slot_bytes - NCCL_ALIGN;
    const size_t piece = message ? total : room / (size_t)(way.sources + way.targets) / size;
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    CUDA_TRY(cudaStreamIsCapturing(lane->stream, &capture));
    if (capture != cudaStreamCaptureStatusNone)
        TESS_FAIL(TESS_ERR_INTERNAL, "%s on host memory cannot be part of a recorded step",
                  tess_collective_name(call->collective));
    record->state = NCCL_ON_HOST;
    record->lane = lane;
    record->slot = NULL;
    for (size_t first = 0; first < total; first += piece) {
        struct nccl_slot *slot;
        if (message)
            TESS_TRY(host_take_message_slot(group, total * size, &slot));
        else
            TESS_TRY(host_take_slot(group, &slot));
        slot->lane = lane;
        slot->call = *call;
        slot->first = first;
        slot->count = total - first < piece ? total - first : piece;
        TESS_TRY(host_give(group, slot));
        slot->record = record;
        if (slot->first + slot->count == total)
            record->slot = slot;
    }
    /* Pieces before the last that are still under way come to their end before it does. */
    for (int i = 0; i < NCCL_SLOTS; i++)
        if (group->slot[i].record == record && &group->slot[i] != record->slot)
            TESS_TRY(tess__nccl_host_finish(group, &group->slot[i]));
    return TESS_OK;
}

enum tess_status tess__nccl_host_gather(struct nccl_group *group, const void *mine, size_t bytes,
                                        void *all)
{
    const struct tess_comm_call call = {.collective = TESS_COLLECTIVE_ALL_GATHER,
                                        .dtype = TESS_U8,
                                        .source = mine,
                                        .target = all,
                                        .count = bytes,
                                        .peer = -1,
                                        .site = ""};
    struct nccl_record record = {.ticket = 0};
    struct nccl_lane *lane = &group->lane[NCCL_SUMS];
    enum tess_status status = tess__nccl_host_start(group, lane, &call, &record);
    if (status == TESS_OK)
        status = tess__nccl_lane_note(group->family, lane, &call, group->calls);
    if (status == TESS_OK)
        status = tess__nccl_host_finish(group, record.slot);
    for (int i = 0; i < NCCL_SLOTS; i++) /* the record does not outlive this */
        if (group->slot[i].record == &record)
            group->slot[i].record = NULL;
    return status;
}
