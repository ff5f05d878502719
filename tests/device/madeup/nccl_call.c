/*
 * Calls, and groups of them. What a communicator needs for a call, connections, is made at the
 * first one that needs it, by a job on both sides (ncclTransportP2pSetup; for collectives
 * NCCL_RUNTIME_CONNECT): until the peer has made its call as well, this one is in progress, and its
 * kernel is not on the stream. Buffers are allocated for it.
 */
#include "device/madeup/nccl_madeup.h"

#include <stdlib.h>
#include <string.h>

#define CALL_DOOMED 512

/* What connect_ranks connects, beside the kinds of calls: copy engines, whose counters are memory
 * of NCCL's own (ncclCeInit). */
#define CONNECT_COPIES 30

/* The calling thread's group. */
static __thread struct {
    int depth;
    ncclResult_t result;          /* of the calls in it: the first error */
    struct madeup_kernel *kernel; /* its messages; NULL: none yet */
    struct ncclComm *doomed[CALL_DOOMED];
    int dooms;
} group;

bool madeup_group_is_open(void)
{
    return group.depth > 0;
}

bool madeup_group_ends(struct ncclComm *comm)
{
    if (group.depth == 0)
        return false;
    if (group.dooms == CALL_DOOMED)
        madeup_fail("ncclCommAbort: more than %d in a group", CALL_DOOMED);
    group.doomed[group.dooms++] = comm;
    return true;
}

/* ---- connections ----------------------------------------------------------------------------- */

/* Wait in a job until *word has all of `bits`. */
static bool connect_await(struct ncclComm *comm, _Atomic uint32_t *word, uint32_t bits)
{
    for (;;) {
        const uint32_t bell = madeup_segment_bell(&comm->segment);
        if ((atomic_load(word) & bits) == bits)
            return true;
        if (atomic_load(&comm->aborted))
            return false;
        madeup_segment_wait(&comm->segment, bell);
    }
}

static bool connect_ranks(struct ncclComm *comm, int kind)
{
    const uint32_t bit = (uint32_t)1 << kind;
    struct madeup_segment *segment = &comm->segment;
    if ((atomic_load(&segment->seat[comm->rank].connected) & bit) != 0)
        return true;
    (void)madeup_injected(MADEUP_CONNECT, 0);
    madeup_wait_idle(comm->device);
    atomic_fetch_or(&segment->seat[comm->rank].connected, bit);
    madeup_segment_ring(segment);
    for (int r = 0; r < comm->count; r++)
        if (!connect_await(comm, &segment->seat[r].connected, bit))
            return false;
    return true;
}

static struct madeup_box *connect_box(struct ncclComm *comm, const struct madeup_part *part)
{
    const int from = part->sends ? comm->rank : part->peer;
    const int to = part->sends ? part->peer : comm->rank;
    return &comm->segment.box[from * comm->count + to];
}

/* All of a group's messages connect together. */
static bool connect_peers(struct ncclComm *comm, const struct madeup_kernel *kernel)
{
    bool fresh = false;
    for (int i = 0; i < kernel->parts; i++) {
        struct madeup_box *box = connect_box(comm, &kernel->part[i]);
        fresh = fresh || atomic_load(kernel->part[i].sends ? &box->sends : &box->receives) == 0;
    }
    if (!fresh)
        return true;
    (void)madeup_injected(MADEUP_CONNECT, 0);
    madeup_wait_idle(comm->device);
    for (int i = 0; i < kernel->parts; i++) {
        struct madeup_box *box = connect_box(comm, &kernel->part[i]);
        atomic_store(kernel->part[i].sends ? &box->sends : &box->receives, 1);
    }
    madeup_segment_ring(&comm->segment);
    for (int i = 0; i < kernel->parts; i++) {
        struct madeup_box *box = connect_box(comm, &kernel->part[i]);
        if (!connect_await(comm, kernel->part[i].sends ? &box->receives : &box->sends, 1))
            return false;
    }
    return true;
}

static ncclResult_t call_job(struct ncclComm *comm, struct madeup_job *job)
{
    struct madeup_kernel *kernel = job->argument;
    const bool connected = kernel->copied ? connect_ranks(comm, CONNECT_COPIES)
                           : kernel->sign.kind == MADEUP_MESSAGES
                               ? connect_peers(comm, kernel)
                               : connect_ranks(comm, kernel->sign.kind);
    if (!connected) {
        free(kernel);
        return ncclInternalError;
    }
    return madeup_kernel_submit(kernel) == cudaSuccess
               ? ncclSuccess
               : madeup_nccl_say(ncclUnhandledCudaError, "the kernel could not be launched");
}

static ncclResult_t call_launch(struct madeup_kernel *kernel)
{
    return madeup_job_start(kernel->comm,
                            &(struct madeup_job){.run = call_job, .argument = kernel});
}

/* ---- messages and groups --------------------------------------------------------------------- */

static void group_note(ncclResult_t result)
{
    if (group.depth > 0 && group.result == ncclSuccess)
        group.result = result;
}

static struct madeup_kernel *kernel_new(ncclComm_t comm, cudaStream_t stream, const char *name,
                                        int kind, int parts)
{
    struct madeup_kernel *kernel = calloc(1, sizeof(*kernel) + sizeof(kernel->part[0]) * parts);
    if (kernel == NULL)
        madeup_fail("NCCL: no memory");
    kernel->comm = comm;
    kernel->stream = stream;
    kernel->name = name;
    kernel->sign.kind = kind;
    return kernel;
}

/* What is recorded NCCL registers by itself. */
static void part_register(struct ncclComm *comm, cudaStream_t stream, struct madeup_part *part)
{
    part->registered =
        madeup_is_recorded(stream) ||
        madeup_is_registered(comm, part->at, part->count * madeup_dtype_bytes(part->dtype));
}

/* A message joins the group's kernel, or is one by itself. */
static ncclResult_t call_message(const struct madeup_part *part, ncclComm_t comm,
                                 cudaStream_t stream, const char *name)
{
    ncclResult_t result = madeup_comm_check(comm, name);
    if (result == ncclSuccess && (part->peer < 0 || part->peer >= comm->count))
        result = madeup_nccl_say(ncclInvalidArgument, "%s: peer %d of %d ranks", name, part->peer,
                                 comm->count);
    group_note(result);
    if (result != ncclSuccess)
        return result;
    (void)madeup_dtype_bytes(part->dtype);
    if (group.depth == 0 && part->peer == comm->rank)
        madeup_fail("%s: a message to this rank itself, and no other half of it", name);
    madeup_registered_check(comm, name, group.depth == 0, part->at,
                            part->count * madeup_dtype_bytes(part->dtype));
    struct madeup_kernel *kernel = group.kernel;
    const int parts = kernel != NULL ? kernel->parts : 0;
    if (kernel == NULL)
        kernel = kernel_new(comm, stream, name, MADEUP_MESSAGES, 1);
    else
        kernel = realloc(kernel, sizeof(*kernel) + sizeof(*part) * (size_t)(parts + 1));
    if (kernel == NULL)
        madeup_fail("NCCL: no memory");
    if (kernel->comm != comm || kernel->stream != stream)
        madeup_fail("%s: a group of several communicators or streams is not modelled", name);
    kernel->part[parts] = *part;
    part_register(comm, stream, &kernel->part[parts]);
    kernel->parts = parts + 1;
    atomic_fetch_add(&madeup_facts.calls[comm->device], 1);
    if (group.depth == 0)
        return call_launch(kernel);
    group.kernel = kernel;
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *source, size_t count, ncclDataType_t dtype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    const struct madeup_part part = {true, peer, (char *)(uintptr_t)source, count, dtype, false};
    return call_message(&part, comm, stream, "ncclSend");
}

ncclResult_t ncclRecv(void *target, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    const struct madeup_part part = {false, peer, target, count, dtype, false};
    return call_message(&part, comm, stream, "ncclRecv");
}

ncclResult_t ncclGroupStart(void); /* nccl.h has no prototypes of these two */
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    const int injected = madeup_injected("ncclGroupStart", ncclSystemError);
    if (injected != 0)
        return (ncclResult_t)injected;
    group.depth++;
    return ncclSuccess;
}

static void group_check_self(const struct madeup_kernel *kernel)
{
    int balance = 0;
    for (int i = 0; i < kernel->parts; i++)
        if (kernel->part[i].peer == kernel->comm->rank)
            balance += kernel->part[i].sends ? 1 : -1;
    if (balance != 0)
        madeup_fail("ncclGroupEnd: a message to this rank itself, and no other half of it");
}

ncclResult_t ncclGroupEnd(void)
{
    const int injected = madeup_injected("ncclGroupEnd", ncclSystemError);
    if (group.depth == 0)
        return madeup_nccl_say(ncclInvalidUsage, "ncclGroupEnd: not in a group");
    if (--group.depth > 0)
        return ncclSuccess;
    ncclResult_t result = injected != 0 ? (ncclResult_t)injected : group.result;
    struct madeup_kernel *kernel = group.kernel;
    group.kernel = NULL;
    group.result = ncclSuccess;
    for (int i = 0; i < group.dooms; i++)
        madeup_comm_free(group.doomed[i]);
    group.dooms = 0;
    if (kernel == NULL)
        return result;
    if (result != ncclSuccess) {
        free(kernel);
        return result;
    }
    group_check_self(kernel);
    return call_launch(kernel);
}

/* ---- collectives ----------------------------------------------------------------------------- */

struct call {
    const char *name;
    int kind;
    const void *source;
    void *target;
    size_t count;
    ncclDataType_t dtype;
    ncclRedOp_t op;
    int root;
};

/* Where in a window the arrays lie, as far as every rank has to have them at the same place. */
static void call_find(struct ncclComm *comm, const struct call *call, struct madeup_sign *sign)
{
    const size_t bytes = call->count * madeup_dtype_bytes(call->dtype);
    const bool sums = call->kind == MADEUP_ALL_REDUCE || call->kind == MADEUP_REDUCE_SCATTER;
    uint64_t at[2] = {0, 0};
    if (call->kind == MADEUP_REDUCE)
        return;
    const int source = madeup_window_find(comm, call->source, bytes, &at[0]);
    const int target = madeup_window_find(comm, call->target, bytes, &at[1]);
    sign->window = call->kind == MADEUP_REDUCE_SCATTER ? source : target;
    if (call->kind == MADEUP_ALL_REDUCE && source == 0)
        sign->window = 0;
    if (sign->window == 0)
        return;
    sign->offset[0] = sums ? at[0] : 0;
    sign->offset[1] = call->kind != MADEUP_REDUCE_SCATTER ? at[1] : 0;
}

/* By copy engines: within one host, symmetric memory to symmetric memory (2.28, taskAppend and
 * ncclCeImplemented). */
static bool call_is_copied(struct ncclComm *comm, const struct call *call, size_t bytes)
{
    uint64_t offset;
    for (int r = 0; r < comm->count; r++)
        if (comm->hosts[r] != comm->host)
            return false;
    return comm->copies && madeup_window_find(comm, call->source, bytes, &offset) > 0 &&
           madeup_window_find(comm, call->target, bytes, &offset) > 0;
}

static ncclResult_t call_check(const struct call *call, ncclComm_t comm)
{
    ncclResult_t result = madeup_comm_check(comm, call->name);
    if (result == ncclSuccess && (call->root < 0 || call->root >= comm->count))
        result = madeup_nccl_say(ncclInvalidArgument, "%s: root %d of %d ranks", call->name,
                                 call->root, comm->count);
    if (result != ncclSuccess)
        return result;
    if (group.depth > 0)
        madeup_fail("%s in a group is not modelled", call->name);
    (void)madeup_dtype_bytes(call->dtype);
    if (call->count > 0)
        atomic_fetch_add(&madeup_facts.calls[comm->device], 1);
    return ncclSuccess;
}

static ncclResult_t call_collective(const struct call *call, ncclComm_t comm, cudaStream_t stream)
{
    const ncclResult_t result = call_check(call, comm);
    if (result != ncclSuccess || call->count == 0)
        return result;
    const size_t bytes = call->count * madeup_dtype_bytes(call->dtype);
    madeup_registered_check(comm, call->name, false, call->source, bytes);
    if (call->target != NULL)
        madeup_registered_check(comm, call->name, false, call->target, bytes);
    struct madeup_kernel *kernel = kernel_new(comm, stream, call->name, call->kind, 0);
    kernel->source = call->source;
    kernel->target = call->target;
    kernel->sign.count = call->count;
    kernel->sign.dtype = (int32_t)call->dtype;
    kernel->sign.op = (int32_t)call->op;
    kernel->sign.root = call->root;
    call_find(comm, call, &kernel->sign);
    kernel->copied = call->kind == MADEUP_ALL_GATHER && call_is_copied(comm, call, bytes);
    return call_launch(kernel);
}

ncclResult_t ncclAllReduce(const void *source, void *target, size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    const struct call call = {
        "ncclAllReduce", MADEUP_ALL_REDUCE, source, target, count, dtype, op, 0};
    return call_collective(&call, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *source, void *target, size_t count, ncclDataType_t dtype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    const struct call call = {
        "ncclReduceScatter", MADEUP_REDUCE_SCATTER, source, target, count, dtype, op, 0};
    return call_collective(&call, comm, stream);
}

ncclResult_t ncclReduce(const void *source, void *target, size_t count, ncclDataType_t dtype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    const struct call call = {"ncclReduce", MADEUP_REDUCE, source, target, count, dtype, op, root};
    return call_collective(&call, comm, stream);
}

ncclResult_t ncclAllGather(const void *source, void *target, size_t count, ncclDataType_t dtype,
                           ncclComm_t comm, cudaStream_t stream)
{
    const struct call call = {"ncclAllGather", MADEUP_ALL_GATHER, source, target, count,
                              dtype,           ncclSum,           0};
    return call_collective(&call, comm, stream);
}

/* "In-place operations are not supported" of all-to-all; NCCL itself does not look. */
static void all_to_all_check(const char *source, const char *target, size_t bytes)
{
    if (source < target + bytes && target < source + bytes)
        madeup_fail("ncclAlltoAll: source and target overlap");
}

/* Sends and receives between all ranks, this one's to itself included (2.28, taskAppend). */
ncclResult_t ncclAlltoAll(const void *source, void *target, size_t count, ncclDataType_t dtype,
                          ncclComm_t comm, cudaStream_t stream)
{
    static const char name[] = "ncclAlltoAll";
    const struct call call = {name, MADEUP_MESSAGES, source, target, count, dtype, ncclSum, 0};
    const ncclResult_t result = call_check(&call, comm);
    if (result != ncclSuccess || count == 0)
        return result;
    const int n = comm->count;
    const size_t bytes = count * madeup_dtype_bytes(dtype);
    if (madeup_nccl_version() < 22800)
        madeup_fail("%s: NCCL %d has no such function", name, madeup_nccl_version());
    all_to_all_check(source, target, bytes * (size_t)n);
    madeup_registered_check(comm, name, false, source, bytes * (size_t)n);
    madeup_registered_check(comm, name, false, target, bytes * (size_t)n);
    struct madeup_kernel *kernel = kernel_new(comm, stream, name, MADEUP_MESSAGES, 2 * n);
    kernel->sign.op = 1;
    for (int r = 0; r < n; r++) {
        char *from = (char *)(uintptr_t)source + bytes * (size_t)r;
        char *to = (char *)target + bytes * (size_t)r;
        kernel->part[2 * r] = (struct madeup_part){true, r, from, count, dtype, false};
        kernel->part[2 * r + 1] = (struct madeup_part){false, r, to, count, dtype, false};
    }
    kernel->parts = 2 * n;
    for (int i = 0; i < kernel->parts; i++)
        part_register(comm, stream, &kernel->part[i]);
    kernel->copied = call_is_copied(comm, &call, bytes * (size_t)n);
    if (kernel->copied) /* each rank writes to where its own target is */
        (void)madeup_window_find(comm, target, bytes * (size_t)n, &kernel->sign.offset[1]);
    return call_launch(kernel);
}

ncclResult_t ncclBroadcast(const void *source, void *target, size_t count, ncclDataType_t dtype,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    const struct call call = {"ncclBroadcast", MADEUP_BROADCAST, source, target, count,
                              dtype,           ncclSum,          root};
    return call_collective(&call, comm, stream);
}
