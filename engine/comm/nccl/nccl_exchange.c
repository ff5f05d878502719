/*
 * Calls of NCCL: one in an order of its own, and sends and receives as one exchange. Nothing here
 * waits for the device, allocates, or asks anything of it.
 */
#include "comm/nccl/nccl_group.h"

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
