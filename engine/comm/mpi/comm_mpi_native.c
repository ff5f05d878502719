/*
 * MPI's own collectives, non-blocking ones of MPI 3, for --comm.mpi.native (transport_native.h).
 * Every group of ranks is a communicator of MPI.
 */
#include "comm/mpi/comm_mpi_room.h"
#include "comm/net/transport_native.h"
#include "tessera/check.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define NATIVE_TAG 1 /* of making groups; no message has it: the standard keeps them apart */

/* MPI_DATATYPE_NULL: MPI has no such type. */
static MPI_Datatype native_type(enum tess_dtype dtype)
{
    switch (dtype) {
    case TESS_F32:
        return MPI_FLOAT;
    case TESS_F64:
        return MPI_DOUBLE;
    case TESS_I32:
        return MPI_INT32_T;
    case TESS_I64:
        return MPI_INT64_T;
    default:
        return MPI_DATATYPE_NULL;
    }
}

static MPI_Op native_op(enum tess_reduce reduce)
{
    return reduce == TESS_REDUCE_SUM ? MPI_SUM : reduce == TESS_REDUCE_MAX ? MPI_MAX : MPI_MIN;
}

static bool native_sums(enum tess_collective collective)
{
    return collective == TESS_COLLECTIVE_ALL_REDUCE ||
           collective == TESS_COLLECTIVE_REDUCE_SCATTER || collective == TESS_COLLECTIVE_REDUCE;
}

/* Not bytes: sums of ours wrap, those of Open MPI 4.1 end at 255. Not the greatest of reals: what
 * becomes of NaN is left open. */
static bool native_adds(const struct tess_comm_call *call)
{
    const bool real = call->dtype == TESS_F32 || call->dtype == TESS_F64;
    return native_type(call->dtype) != MPI_DATATYPE_NULL &&
           (call->reduce == TESS_REDUCE_SUM || !real);
}

static bool native_can(const struct tess_transport *transport, const struct tess_comm_call *call)
{
    (void)transport;
    if (call->device || call->collective == TESS_COLLECTIVE_SEND ||
        call->collective == TESS_COLLECTIVE_RECV)
        return false;
    if (native_sums(call->collective))
        return native_adds(call) && call->count <= INT_MAX;
    return call->count <= INT_MAX / tess_dtype_bytes(call->dtype);
}

static enum tess_status native_group_open(struct tess_transport *transport, const int32_t *rank,
                                          int32_t count, int32_t *group_out)
{
    struct mpi_room *room = (struct mpi_room *)transport;
    MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    int32_t number = 0;
    TESS_TRY(tess__mpi_check(room));
    while (number < room->group_count && room->group[number] != MPI_COMM_NULL)
        number++;
    if (number == room->group_count) {
        MPI_Comm *more = realloc(room->group, ((size_t)number + 1) * sizeof(*more));
        if (more == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for a group of %d ranks", (int)count);
        room->group = more;
        room->group[room->group_count++] = MPI_COMM_NULL;
    }
    /* Not of a copy (MPI_Comm_dup): there MPICH 4.0.2 crashes. */
    int error = MPI_Comm_group(room->comm, &all);
    if (error == MPI_SUCCESS)
        error = MPI_Group_incl(all, count, rank, &some);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_create_group(room->comm, some, NATIVE_TAG, &comm);
    if (some != MPI_GROUP_NULL)
        MPI_Group_free(&some);
    if (all != MPI_GROUP_NULL)
        MPI_Group_free(&all);
    if (error != MPI_SUCCESS)
        return tess__mpi_fail(room, error, "cannot make a group of ranks", -1);
    room->group[number] = comm;
    *group_out = number;
    return TESS_OK;
}

static void native_group_close(struct tess_transport *transport, int32_t group)
{
    struct mpi_room *room = (struct mpi_room *)transport;
    /* MPI_Comm_free is collective by the book, and may wait for ranks that have failed. */
    if (!room->broken && atomic_load(&room->aborted) == MPI_ROOM_GOES_ON)
        MPI_Comm_free(&room->group[group]);
    room->group[group] = MPI_COMM_NULL;
}

/* MPI can sum in place only whole arrays, so the share goes by way of a copy;
 * the memory for it stays with the slot. */
static enum tess_status native_stage(struct mpi_room_slot *slot, void *target, size_t bytes)
{
    if (bytes > slot->staged_room) {
        free(slot->staged);
        slot->staged = malloc(bytes);
        slot->staged_room = slot->staged != NULL ? bytes : 0;
        if (slot->staged == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for a sum of %zu bytes", bytes);
    }
    slot->target = target;
    slot->staged_bytes = bytes;
    return TESS_OK;
}

/*
 * MPI needs MPI_IN_PLACE from all ranks or none, and here each rank decides for itself: so all give
 * it, and a rank that is not in place copies first.
 */
static int native_start(MPI_Comm comm, int rank, const struct tess_comm_call *call, void *target,
                        MPI_Request *request)
{
    const size_t bytes = call->count * tess_dtype_bytes(call->dtype);
    const int count = (int)call->count, byte_count = (int)bytes;
    const MPI_Datatype type = native_type(call->dtype);
    switch (call->collective) {
    case TESS_COLLECTIVE_ALL_REDUCE:
        if (call->source != call->target && bytes > 0)
            memcpy(call->target, call->source, bytes);
        return MPI_Iallreduce(MPI_IN_PLACE, call->target, count, type, native_op(call->reduce),
                              comm, request);
    case TESS_COLLECTIVE_REDUCE_SCATTER:
        return MPI_Ireduce_scatter_block(call->source, target, count, type, native_op(call->reduce),
                                         comm, request);
    case TESS_COLLECTIVE_ALL_GATHER: {
        char *own = (char *)call->target + (size_t)rank * bytes;
        if (call->source != own && bytes > 0)
            memcpy(own, call->source, bytes);
        return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, call->target, byte_count, MPI_BYTE, comm,
                              request);
    }
    case TESS_COLLECTIVE_BROADCAST:
        return MPI_Ibcast(call->target, byte_count, MPI_BYTE, call->peer, comm, request);
    case TESS_COLLECTIVE_REDUCE: {
        const bool in_place = rank == call->peer && call->source == call->target;
        return MPI_Ireduce(in_place ? MPI_IN_PLACE : call->source, call->target, count, type,
                           native_op(call->reduce), call->peer, comm, request);
    }
    case TESS_COLLECTIVE_ALL_TO_ALL:
        return MPI_Ialltoall(call->source, byte_count, MPI_BYTE, call->target, byte_count, MPI_BYTE,
                             comm, request);
    default:
        return MPI_Ibarrier(comm, request);
    }
}

static enum tess_status native_begin(struct tess_transport *transport, int32_t group,
                                     const struct tess_comm_call *call, uint32_t *request_out)
{
    struct mpi_room *room = (struct mpi_room *)transport;
    const MPI_Comm comm = room->group[group];
    uint32_t slot;
    MPI_Request request = MPI_REQUEST_NULL;
    int rank = 0;
    TESS_TRY(tess__mpi_check(room));
    TESS_TRY(tess__mpi_slot(room, 1, &slot));
    MPI_Comm_rank(comm, &rank);
    const size_t bytes = call->count * tess_dtype_bytes(call->dtype);
    void *target = call->target;
    if (call->collective == TESS_COLLECTIVE_REDUCE_SCATTER &&
        target == (const char *)call->source + (size_t)rank * bytes) {
        TESS_TRY(native_stage(&room->slot[slot], target, bytes));
        target = room->slot[slot].staged;
    }
    int error = native_start(comm, rank, call, target, &request);
    if (error != MPI_SUCCESS)
        return tess__mpi_fail(room, error, tess_collective_name(call->collective), -1);
    tess__mpi_slot_add(room, slot, request);
    *request_out = slot;
    return TESS_OK;
}

const struct tess_transport_native tess__mpi_native = {
    .can = native_can,
    .group_open = native_group_open,
    .group_close = native_group_close,
    .begin = native_begin,
};
