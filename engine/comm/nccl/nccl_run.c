/*
 * What NCCL does for a call on device memory. Nothing here waits for the device, allocates, or asks
 * anything of it, so that a call can be recorded in a graph.
 *
 * Sums in canonical order are not NCCL's: every rank gets the others' parts of its slice, in
 * pieces, and adds them up by the kernels' tree (tess_queue_ops.reduce), while the next piece is
 * under way:
 *
 *     lane   | exchange 0 -> half 0 | exchange 1 -> half 1 | exchange 2 -> half 0 | gather slices
 *     sums                          | half 0 -> target     | half 1 -> target     |
 *
 * The same bytes cross as in a ring: (N - 1) / N of the source, and once more for the gather.
 */
#include "comm/nccl/nccl_group.h"

#include "comm/call.h"

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

static ncclRedOp_t run_operator(enum tess_reduce reduce)
{
    return reduce == TESS_REDUCE_SUM ? ncclSum : reduce == TESS_REDUCE_MAX ? ncclMax : ncclMin;
}

/*
 * By our tree, or by NCCL in an order of its own? NCCL adds 16 bits in 16 bits at every hop, which
 * tessera/comm.h rules out for any order.
 */
static bool run_is_canonical(const struct tess_comm_call *call)
{
    bool narrow = call->dtype == TESS_F16 || call->dtype == TESS_BF16;
    return call->order == TESS_ORDER_CANONICAL || (narrow && call->reduce == TESS_REDUCE_SUM);
}

size_t tess__nccl_slice(size_t count, int32_t rank_count)
{
    size_t n = (size_t)rank_count;
    return (count + n - 1) / n;
}

/* ---- one call of NCCL, or one group of them -------------------------------------------------- */

/* Lock taken, unless the communicators are gone. */
static enum tess_status run_begin(struct nccl_group *group, const struct nccl_lane *lane)
{
    pthread_mutex_lock(&group->family->lock);
    if (lane->comm != NULL)
        return TESS_OK;
    pthread_mutex_unlock(&group->family->lock);
    TESS_TRY(tess__nccl_check(group->family));
    TESS_FAIL(TESS_ERR_INTERNAL, "a call on a communicator that was closed");
}

static enum tess_status run_end(struct nccl_group *group, struct nccl_lane *lane,
                                ncclResult_t result, const char *what)
{
    enum tess_status status = tess__nccl_taken(group->family, &lane->comm, result, what, lane);
    pthread_mutex_unlock(&group->family->lock);
    return status;
}

/* Of several results the first error; within a group nothing is in progress before its end. */
static void run_note(ncclResult_t *first, ncclResult_t result)
{
    if (*first == ncclSuccess && result != ncclInProgress)
        *first = result;
}

/* All of group->part at once: inside an NCCL group sends and receives go on together, whatever
 * their order. */
static enum tess_status run_parts(struct nccl_group *group, struct nccl_lane *lane,
                                  const void *source, void *target)
{
    const struct tess_comm *comm = &group->comm;
    const struct nccl_part *part = group->part;
    TESS_TRY(run_begin(group, lane));
    ncclResult_t result = ncclGroupStart();
    /* From 0: a rank's message to itself is a copy. Each rank begins with another peer. */
    for (int32_t i = 0; i < comm->rank_count && result == ncclSuccess; i++) {
        int32_t to = (comm->rank + i) % comm->rank_count;
        int32_t from = (comm->rank + comm->rank_count - i) % comm->rank_count;
        if (part[to].send_bytes > 0)
            run_note(&result, ncclSend((const char *)source + part[to].send_at, part[to].send_bytes,
                                       ncclUint8, to, lane->comm, lane->stream));
        if (part[from].receive_bytes > 0)
            run_note(&result,
                     ncclRecv((char *)target + part[from].receive_at, part[from].receive_bytes,
                              ncclUint8, from, lane->comm, lane->stream));
    }
    ncclResult_t ended = ncclGroupEnd();
    return run_end(group, lane, result != ncclSuccess ? result : ended,
                   "ncclSend and ncclRecv in a group");
}

static enum tess_status run_all_to_all(struct nccl_group *group, struct nccl_lane *lane,
                                       const struct tess_comm_call *call)
{
    size_t bytes = call->count * tess_dtype_bytes(call->dtype);
    for (int32_t r = 0; r < group->comm.rank_count; r++)
        group->part[r] = (struct nccl_part){(size_t)r * bytes, bytes, (size_t)r * bytes, bytes};
    return run_parts(group, lane, call->source, call->target);
}

static enum tess_status run_direct(struct nccl_group *group, struct nccl_lane *lane,
                                   const struct tess_comm_call *call)
{
    ncclDataType_t dtype = tess__nccl_dtype(call->dtype);
    ncclRedOp_t operator= run_operator(call->reduce);
    ncclResult_t result = ncclSuccess;
    const void *source = call->source;
    void *target = call->target;
    TESS_TRY(run_begin(group, lane));
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
    return run_end(group, lane, result, tess_collective_name(call->collective));
}

/* ---- sums in canonical order ----------------------------------------------------------------- */

/* A sum of `slice` elements on every rank: rank r's are those from r * slice on, as far as there
 * are `total`. */
struct run_sum {
    const struct tess_comm_call *call;
    size_t size; /* of an element */
    size_t slice, total;
    size_t piece; /* elements of a slice in an exchange */
    char *target; /* where this rank's slice goes; NULL: it stays in the scratch */
};

/* Elements of rank r's slice from `first` on, at most a piece. */
static size_t sum_count(const struct run_sum *sum, int32_t r, size_t first)
{
    size_t begin = (size_t)r * sum->slice + first;
    size_t count = sum->slice - first < sum->piece ? sum->slice - first : sum->piece;
    if (begin >= sum->total)
        return 0;
    return count < sum->total - begin ? count : sum->total - begin;
}

static unsigned char *sum_half(const struct nccl_group *group, uint64_t number)
{
    return group->scratch + number % 2 * NCCL_SCRATCH_BYTES;
}

/* The others' parts of this rank's slice come to one half of the scratch. */
static enum tess_status sum_exchange(struct nccl_group *group, struct nccl_lane *lane,
                                     const struct run_sum *sum, uint64_t number, size_t first)
{
    int32_t rank = group->comm.rank;
    size_t own_bytes = sum_count(sum, rank, first) * sum->size;
    for (int32_t r = 0; r < group->comm.rank_count; r++)
        group->part[r] = (struct nccl_part){
            .send_at = ((size_t)r * sum->slice + first) * sum->size,
            .send_bytes = r == rank ? 0 : sum_count(sum, r, first) * sum->size,
            .receive_at = (size_t)r * sum->piece * sum->size,
            .receive_bytes = r == rank ? 0 : own_bytes,
        };
    return run_parts(group, lane, sum->call->source, sum_half(group, number));
}

static enum tess_status sum_add(struct nccl_group *group, const struct run_sum *sum,
                                uint64_t number, size_t first)
{
    const void *source[TESS_QUEUE_PEERS_MAX];
    int32_t rank = group->comm.rank, n = group->comm.rank_count;
    size_t count = sum_count(sum, rank, first);
    size_t piece_bytes = sum->piece * sum->size;
    unsigned char *half = sum_half(group, number);
    void *target = sum->target != NULL ? (void *)(sum->target + first * sum->size)
                                       : (void *)(half + (size_t)rank * piece_bytes);
    for (int32_t r = 0; r < n; r++)
        source[r] = half + (size_t)r * piece_bytes;
    source[rank] =
        (const char *)sum->call->source + ((size_t)rank * sum->slice + first) * sum->size;
    if (count == 0)
        return TESS_OK;
    return group->sums->ops->reduce(group->sums, sum->call->dtype, sum->call->reduce, n, source, 1,
                                    &target, count);
}

/* Reduce: the pieces of all slices come together at the root. */
static enum tess_status sum_collect(struct nccl_group *group, struct nccl_lane *lane,
                                    const struct run_sum *sum, uint64_t number, size_t first)
{
    int32_t rank = group->comm.rank, root = sum->call->peer;
    size_t own_bytes = sum_count(sum, rank, first) * sum->size;
    for (int32_t r = 0; r < group->comm.rank_count; r++)
        group->part[r] = (struct nccl_part){
            .send_at = (size_t)rank * sum->piece * sum->size,
            .send_bytes = r == root && rank != root ? own_bytes : 0,
            .receive_at = ((size_t)r * sum->slice + first) * sum->size,
            .receive_bytes = rank == root && r != root ? sum_count(sum, r, first) * sum->size : 0,
        };
    return run_parts(group, lane, sum_half(group, number), sum->call->target);
}

/* All-reduce: every rank's slice to all. */
static enum tess_status sum_gather(struct nccl_group *group, struct nccl_lane *lane,
                                   const struct run_sum *sum)
{
    struct tess_comm_call gather = *sum->call;
    int32_t rank = group->comm.rank, n = group->comm.rank_count;
    size_t own_at = (size_t)rank * sum->slice * sum->size;
    if (sum->total == sum->slice * (size_t)n) {
        gather.collective = TESS_COLLECTIVE_ALL_GATHER;
        gather.source = (char *)gather.target + own_at;
        gather.count = sum->slice;
        return run_direct(group, lane, &gather);
    }
    struct run_sum whole = *sum;
    whole.piece = sum->slice;
    size_t own_bytes = sum_count(&whole, rank, 0) * sum->size;
    for (int32_t r = 0; r < n; r++)
        group->part[r] = (struct nccl_part){
            .send_at = own_at,
            .send_bytes = r == rank ? 0 : own_bytes,
            .receive_at = (size_t)r * sum->slice * sum->size,
            .receive_bytes = r == rank ? 0 : sum_count(&whole, r, 0) * sum->size,
        };
    return run_parts(group, lane, gather.target, gather.target);
}

static enum tess_status run_sum(struct nccl_group *group, struct nccl_lane *lane,
                                const struct run_sum *sum)
{
    const struct tess_queue_ops *ops = lane->queue->ops;
    bool collects = sum->call->collective == TESS_COLLECTIVE_REDUCE;
    uint64_t number = 0;
    for (size_t first = 0; first < sum->slice; first += sum->piece, number++) {
        struct tess_fence *full = group->full[number % 2], *taken = group->taken[number % 2];
        if (number >= 2) /* this half is free once it has been added up */
            TESS_TRY(ops->follow(lane->queue, taken));
        TESS_TRY(sum_exchange(group, lane, sum, number, first));
        TESS_TRY(ops->record(lane->queue, full));
        TESS_TRY(ops->follow(group->sums, full));
        TESS_TRY(sum_add(group, sum, number, first));
        TESS_TRY(ops->record(group->sums, taken));
        if (!collects)
            continue;
        TESS_TRY(ops->follow(lane->queue, taken));
        TESS_TRY(sum_collect(group, lane, sum, number, first));
    }
    /* `sums` works in order: its last piece comes after all others. */
    if (number > 0)
        TESS_TRY(ops->follow(lane->queue, group->taken[(number - 1) % 2]));
    return sum->call->collective == TESS_COLLECTIVE_ALL_REDUCE ? sum_gather(group, lane, sum)
                                                               : TESS_OK;
}

static enum tess_status run_canonical(struct nccl_group *group, struct nccl_lane *lane,
                                      const struct tess_comm_call *call)
{
    int32_t n = group->comm.rank_count, rank = group->comm.rank;
    bool scatters = call->collective == TESS_COLLECTIVE_REDUCE_SCATTER;
    bool here = call->collective != TESS_COLLECTIVE_REDUCE || rank == call->peer;
    struct run_sum sum = {.call = call, .size = tess_dtype_bytes(call->dtype)};
    sum.slice = scatters ? call->count : tess__nccl_slice(call->count, n);
    sum.total = scatters ? call->count * (size_t)n : call->count;
    /* Whole vectors, so that every source of the sum is as aligned as the next. */
    sum.piece = NCCL_SCRATCH_BYTES / (size_t)n / NCCL_ALIGN * NCCL_ALIGN / sum.size;
    sum.target = scatters ? call->target
                 : here   ? (char *)call->target + (size_t)rank * sum.slice * sum.size
                          : NULL;
    return run_sum(group, lane, &sum);
}

enum tess_status tess__nccl_run(struct nccl_group *group, struct nccl_lane *lane,
                                const struct tess_comm_call *call)
{
    switch (call->collective) {
    case TESS_COLLECTIVE_ALL_TO_ALL:
        return run_all_to_all(group, lane, call);
    case TESS_COLLECTIVE_ALL_REDUCE:
    case TESS_COLLECTIVE_REDUCE_SCATTER:
    case TESS_COLLECTIVE_REDUCE:
        if (run_is_canonical(call))
            return run_canonical(group, lane, call);
        return run_direct(group, lane, call);
    default:
        return run_direct(group, lane, call);
    }
}

/*
 * NCCL connects ranks at the first call of a kind, which is in progress until all have made it, and
 * takes memory for it: one call of each kind, before any other is under way. In the scratch.
 */
enum tess_status tess__nccl_run_first(struct nccl_group *group)
{
    static const enum tess_collective kinds[] = {
        TESS_COLLECTIVE_ALL_GATHER, TESS_COLLECTIVE_BROADCAST,      TESS_COLLECTIVE_ALL_TO_ALL,
        TESS_COLLECTIVE_ALL_REDUCE, TESS_COLLECTIVE_REDUCE_SCATTER, TESS_COLLECTIVE_REDUCE};
    const bool fast = group->comm.order == TESS_ORDER_FAST;
    struct tess_comm_call call = {.reduce = TESS_REDUCE_MAX,
                                  .order = TESS_ORDER_FAST,
                                  .dtype = TESS_I32,
                                  .source = group->scratch,
                                  .target = group->scratch + NCCL_SCRATCH_BYTES,
                                  .count = 1,
                                  .site = ""};
    for (int i = 0; i < 2; i++) {
        call.collective = kinds[i];
        TESS_TRY(tess__nccl_run(group, &group->lane[NCCL_GATHERS], &call));
    }
    for (int i = 0; i < (fast ? 6 : 3); i++) {
        call.collective = kinds[i];
        TESS_TRY(tess__nccl_run(group, &group->lane[NCCL_SUMS], &call));
    }
    for (int way = 0; way < NCCL_LANES; way++) {
        const struct nccl_lane *lane = &group->lane[way];
        CUDA_TRY(cudaEventRecord(lane->beat, lane->stream));
        TESS_TRY(tess__nccl_await(group->family, lane->beat, lane));
    }
    return TESS_OK;
}

/* ---- traffic --------------------------------------------------------------------------------- */

/*
 * Payload by the formulas of exchange and ring, which are the same: an all-reduce of B bytes sends
 * 2 (N - 1) / N B, a reduce-scatter and a gather (N - 1) B / N each. In fast order NCCL may move
 * more or less (trees, switches that add): it does not report what it moved. A broadcast is counted
 * at its root, sums of host memory as the gathers that they are.
 */
void tess__nccl_count(struct nccl_group *group, const struct tess_comm_call *call)
{
    const size_t size = tess_dtype_bytes(call->dtype);
    const size_t slice = tess__nccl_slice(call->count, group->comm.rank_count);
    const size_t begin = (size_t)group->comm.rank * slice;
    size_t own = begin >= call->count ? 0 : call->count - begin;
    own = own < slice ? own : slice;
    const bool slices = call->collective == TESS_COLLECTIVE_ALL_REDUCE ||
                        call->collective == TESS_COLLECTIVE_REDUCE;
    if (slices && call->device)
        tess__call_count_slice(&group->comm, call, own * size);
    else
        tess__call_count(&group->comm, call, call->count * size);
}
