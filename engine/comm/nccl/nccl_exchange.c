/*
 * Calls of NCCL: one in an order of its own, and sends and receives as one exchange; and what
 * memory they may join. Nothing here waits for the device, allocates, or asks anything of it.
 */
#include "comm/nccl/nccl_group.h"

#define EXCHANGE_ALL_TO_ALL 22800 /* 2.28: ncclAlltoAll */

/* Not in every library that this may be run with, nor in every header. */
#if NCCL_VERSION_CODE < EXCHANGE_ALL_TO_ALL
ncclResult_t ncclAlltoAll(const void *source, void *target, size_t count, ncclDataType_t dtype,
                          ncclComm_t comm, cudaStream_t stream);
#endif
#pragma weak ncclAlltoAll

ncclDataType_t tess__nccl_dtype(enum tess_dtype dtype)
{
    switch (dtype) {
    case TESS_F32:
        return ncclFloat32;
    case TESS_BF16:
        return ncclBfloat16;
    case TESS_F16:
        return ncclFloat16;
    case TESS_F64:
        return ncclFloat64;
    case TESS_I32:
        return ncclInt32;
    case TESS_I64:
        return ncclInt64;
    default:
        return ncclUint8;
    }
}

size_t tess__nccl_slice(size_t count, int32_t rank_count)
{
    size_t n = (size_t)rank_count;
    return (count + n - 1) / n;
}

static ncclRedOp_t exchange_operator(enum tess_reduce reduce)
{
    return reduce == TESS_REDUCE_SUM ? ncclSum : reduce == TESS_REDUCE_MAX ? ncclMax : ncclMin;
}

/* Lock taken, unless the communicators are gone. */
static enum tess_status exchange_begin(struct nccl_group *group, const struct nccl_lane *lane)
{
    pthread_mutex_lock(&group->family->lock);
    if (lane->comm != NULL)
        return TESS_OK;
    pthread_mutex_unlock(&group->family->lock);
    TESS_TRY(tess__nccl_check(group->family));
    TESS_FAIL(TESS_ERR_INTERNAL, "a call on a communicator that was closed");
}

static enum tess_status exchange_end(struct nccl_group *group, struct nccl_lane *lane,
                                     ncclResult_t result, const char *what)
{
    enum tess_status status = tess__nccl_taken(group->family, &lane->comm, result, what, lane);
    pthread_mutex_unlock(&group->family->lock);
    return status;
}

/* Of several results the first error; within a group nothing is in progress before its end. */
static void exchange_note(ncclResult_t *first, ncclResult_t result)
{
    if (*first == ncclSuccess && result != ncclInProgress)
        *first = result;
}

void tess__nccl_part(struct nccl_group *group, const struct nccl_part *part)
{
    if (part->send_bytes > 0 || part->receive_bytes > 0)
        group->part[group->parts++] = *part;
}

enum tess_status tess__nccl_run_parts(struct nccl_group *group, struct nccl_lane *lane)
{
    const int32_t parts = group->parts;
    group->parts = 0;
    if (parts == 0)
        return TESS_OK;
    TESS_TRY(exchange_begin(group, lane));
    ncclResult_t result = ncclGroupStart();
    for (int32_t i = 0; i < parts && result == ncclSuccess; i++) {
        const struct nccl_part *part = &group->part[i];
        if (part->send_bytes > 0)
            exchange_note(&result, ncclSend(part->source, part->send_bytes, ncclUint8, part->to,
                                            lane->comm, lane->stream));
        if (part->receive_bytes > 0)
            exchange_note(&result, ncclRecv(part->target, part->receive_bytes, ncclUint8,
                                            part->from, lane->comm, lane->stream));
    }
    ncclResult_t ended = ncclGroupEnd();
    return exchange_end(group, lane, result != ncclSuccess ? result : ended,
                        "ncclSend and ncclRecv in a group");
}

bool tess__nccl_has_all_to_all(const struct nccl_group *group)
{
    return ncclAlltoAll != NULL && group->family->version >= EXCHANGE_ALL_TO_ALL;
}

enum tess_status tess__nccl_all_to_all(struct nccl_group *group, struct nccl_lane *lane,
                                       const void *source, void *target, size_t bytes)
{
    const int32_t rank = group->comm.rank, n = group->comm.rank_count;
    if (tess__nccl_has_all_to_all(group)) {
        TESS_TRY(exchange_begin(group, lane));
        const ncclResult_t result =
            ncclAlltoAll(source, target, bytes, ncclUint8, lane->comm, lane->stream);
        return exchange_end(group, lane, result, "ncclAlltoAll");
    }
    /* From 0: a rank's message to itself is a copy. Each rank begins with another peer. */
    for (int32_t i = 0; i < n; i++) {
        const int32_t to = (rank + i) % n, from = (rank + n - i) % n;
        tess__nccl_part(group, &(struct nccl_part){.to = to,
                                                   .from = from,
                                                   .source = (const char *)source + to * bytes,
                                                   .target = (char *)target + from * bytes,
                                                   .send_bytes = bytes,
                                                   .receive_bytes = bytes});
    }
    return tess__nccl_run_parts(group, lane);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool exchange_registered(const struct nccl_block *block, const struct nccl_lane *lane)
{
    const struct nccl_registration *made = LIST_FIRST(&block->registered);
    while (made != NULL && made->lane != lane)
        made = LIST_NEXT(made, link);
    return made != NULL && (made->window != NULL || made->handle != NULL);
}

bool tess__nccl_is_registered(const struct nccl_family *family, const struct nccl_lane *lane,
                              const void *memory, size_t bytes)
{
    const char *begin = memory, *end = begin + bytes;
    const struct nccl_block *block = LIST_FIRST(&family->blocks);
    while (block != NULL && (begin < (const char *)block->memory ||
                             end > (const char *)block->memory + block->bytes))
        block = LIST_NEXT(block, link);
    return block != NULL && exchange_registered(block, lane);
}

struct nccl_room tess__nccl_room(const struct nccl_group *group, const struct nccl_lane *lane,
                                 const void *source, size_t bytes)
{
    const struct nccl_block *shared = group->shared;
    if (shared == NULL)
        return group->plain;
    const struct nccl_room room = {shared->memory, shared->bytes,
                                   exchange_registered(shared, lane)};
    /* What NCCL has no use for registered is the larger room. */
    return !room.registered || tess__nccl_is_registered(group->family, lane, source, bytes)
               ? room
               : group->plain;
}

/* ---- one call -------------------------------------------------------------------------------- */

enum tess_status tess__nccl_run_direct(struct nccl_group *group, struct nccl_lane *lane,
                                       const struct tess_comm_call *call)
{
    ncclDataType_t dtype = tess__nccl_dtype(call->dtype);
    ncclRedOp_t operator= exchange_operator(call->reduce);
    ncclResult_t result = ncclSuccess;
    const void *source = call->source;
    void *target = call->target;
    TESS_TRY(exchange_begin(group, lane));
    switch (call->collective) {
    case TESS_COLLECTIVE_ALL_GATHER:
        result = ncclAllGather(source, target, call->count, dtype, lane->comm, lane->stream);
        break;
    case TESS_COLLECTIVE_BROADCAST:
        result =
            ncclBroadcast(source, target, call->count, dtype, call->peer, lane->comm, lane->stream);
        break;
    case TESS_COLLECTIVE_ALL_REDUCE:
        result =
            ncclAllReduce(source, target, call->count, dtype, operator, lane->comm, lane->stream);
        break;
    case TESS_COLLECTIVE_REDUCE_SCATTER:
        result = ncclReduceScatter(source, target, call->count, dtype, operator, lane->comm,
                                   lane->stream);
        break;
    case TESS_COLLECTIVE_REDUCE:
        result = ncclReduce(source, target, call->count, dtype, operator, call->peer, lane->comm,
                            lane->stream);
        break;
    case TESS_COLLECTIVE_SEND: /* on a channel's lane: its sender is rank 0, its receiver rank 1 */
        result = ncclSend(source, call->count, dtype, 1, lane->comm, lane->stream);
        break;
    case TESS_COLLECTIVE_RECV:
        result = ncclRecv(target, call->count, dtype, 0, lane->comm, lane->stream);
        break;
    default:
        break;
    }
    return exchange_end(group, lane, result, tess_collective_name(call->collective));
}
