/*
 * A collective, or the messages of a group: one kernel. It holds its stream until its peers' have
 * come and all data are across: a message of any size waits for its receiver.
 *
 * Sums are added along a ring: slice s begins at rank s + 1 and ends at rank s, so that no slice is
 * added in the order of the ranks, nor in that of a tree.
 */
#include "device/madeup/nccl_madeup.h"

#include <stdlib.h>
#include <string.h>

#define KERNEL_PARTS (2 * MADEUP_RANKS)

/* Bytes on their way to or from a peer. */
struct kernel_move {
    bool sends;
    int peer;
    char *at;
    size_t bytes, done;
    bool begun; /* its first chunk: there is one where there are no bytes, too */
    struct madeup_sign sign;
};

struct kernel_run {
    const struct madeup_kernel *kernel;
    struct ncclComm *comm;
    struct kernel_move *move;
    int moves;
};

static bool kernel_ends(const struct ncclComm *comm)
{
    return atomic_load(&comm->aborted) || madeup_cancelled();
}

static const char *kernel_name(int32_t kind)
{
    static const char *const name[] = {"ncclAllReduce", "ncclReduceScatter", "ncclReduce",
                                       "ncclAllGather", "ncclBroadcast",     "ncclSend"};
    return kind >= 0 && kind <= MADEUP_MESSAGES ? name[kind] : "?";
}

/* ---- comparison ------------------------------------------------------------------------------ */

static _Noreturn void kernel_differ(const struct madeup_sign *a, int rank_a,
                                    const struct madeup_sign *b, int rank_b)
{
    madeup_fail("calls of NCCL differ: rank %d made %s (call %llu: count %llu, type %d, operator "
                "%d, root %d, window %d at %llu, %llu), rank %d %s (call %llu: count %llu, type "
                "%d, operator %d, root %d, window %d at %llu, %llu)",
                rank_a, kernel_name(a->kind), (unsigned long long)a->number,
                (unsigned long long)a->count, (int)a->dtype, (int)a->op, (int)a->root,
                (int)a->window, (unsigned long long)a->offset[0], (unsigned long long)a->offset[1],
                rank_b, kernel_name(b->kind), (unsigned long long)b->number,
                (unsigned long long)b->count, (int)b->dtype, (int)b->op, (int)b->root,
                (int)b->window, (unsigned long long)b->offset[0], (unsigned long long)b->offset[1]);
}

/* All ranks have come to the collective with this number, with the same call. False: given up. */
static bool kernel_meet(struct kernel_run *run)
{
    struct ncclComm *comm = run->comm;
    struct madeup_segment *segment = &comm->segment;
    struct madeup_sign sign = run->kernel->sign;
    const uint64_t number = ++comm->collectives;
    sign.number = number;
    segment->seat[comm->rank].sign[number % 2] = sign;
    atomic_store(&segment->seat[comm->rank].posted, number);
    madeup_segment_ring(segment);
    for (int r = 0; r < comm->count; r++) {
        struct madeup_seat *seat = &segment->seat[r];
        for (;;) {
            const uint32_t bell = madeup_segment_bell(segment);
            if (atomic_load(&seat->posted) >= number)
                break;
            if (kernel_ends(comm))
                return false;
            madeup_segment_wait(segment, bell);
        }
        if (memcmp(&seat->sign[number % 2], &sign, sizeof(sign)) != 0)
            kernel_differ(&sign, comm->rank, &seat->sign[number % 2], r);
    }
    return true;
}

/* ---- moving ---------------------------------------------------------------------------------- */

static bool move_send(struct kernel_move *move, struct madeup_box *box)
{
    const uint64_t head = atomic_load(&box->head);
    const size_t left = move->bytes - move->done;
    if ((move->begun && left == 0) || head - atomic_load(&box->tail) >= MADEUP_CHUNKS)
        return false;
    const size_t bytes = left < MADEUP_CHUNK ? left : MADEUP_CHUNK;
    if (bytes > 0)
        memcpy(box->data[head % MADEUP_CHUNKS], move->at + move->done, bytes);
    box->bytes[head % MADEUP_CHUNKS] = bytes;
    box->sign[head % MADEUP_CHUNKS] = move->sign;
    move->done += bytes;
    move->begun = true;
    atomic_store(&box->head, head + 1);
    return true;
}

static bool move_receive(const struct kernel_run *run, struct kernel_move *move,
                         struct madeup_box *box)
{
    const uint64_t tail = atomic_load(&box->tail);
    const uint64_t slot = tail % MADEUP_CHUNKS;
    if ((move->begun && move->done == move->bytes) || atomic_load(&box->head) == tail)
        return false;
    if (memcmp(&box->sign[slot], &move->sign, sizeof(move->sign)) != 0)
        kernel_differ(&move->sign, run->comm->rank, &box->sign[slot], move->peer);
    if (box->bytes[slot] > move->bytes - move->done)
        madeup_fail("%s: more bytes came than were asked for", run->kernel->name);
    if (box->bytes[slot] > 0)
        memcpy(move->at + move->done, box->data[slot], box->bytes[slot]);
    move->done += box->bytes[slot];
    move->begun = true;
    atomic_store(&box->tail, tail + 1);
    return true;
}

static bool move_is_over(const struct kernel_move *move, const struct madeup_box *box)
{
    return move->begun && move->done == move->bytes &&
           (!move->sends || atomic_load(&box->head) == atomic_load(&box->tail));
}

/* One look at all: of those with one peer in one direction, the first that is not over. */
static bool kernel_sweep(struct kernel_run *run, int *over_out)
{
    bool moved = false, held[2][MADEUP_RANKS] = {{false}};
    *over_out = 0;
    for (int i = 0; i < run->moves; i++) {
        struct kernel_move *move = &run->move[i];
        const int rank = run->comm->rank, n = run->comm->count;
        struct madeup_box *box = move->sends ? &run->comm->segment.box[rank * n + move->peer]
                                             : &run->comm->segment.box[move->peer * n + rank];
        if (held[move->sends][move->peer])
            continue;
        bool over = move->bytes == (size_t)-1 || move_is_over(move, box);
        if (!over && (move->sends ? move_send(move, box) : move_receive(run, move, box)))
            moved = true;
        over = over || move_is_over(move, box);
        if (over) {
            move->bytes = move->done = (size_t)-1; /* over, whatever comes after it in the box */
            (*over_out)++;
        }
        held[move->sends][move->peer] = !over;
    }
    return moved;
}

/* Until all are over; false: given up. */
static bool kernel_progress(struct kernel_run *run)
{
    struct madeup_segment *segment = &run->comm->segment;
    for (;;) {
        int over;
        const uint32_t bell = madeup_segment_bell(segment);
        const bool moved = kernel_sweep(run, &over);
        if (moved)
            madeup_segment_ring(segment);
        if (over == run->moves)
            return true;
        if (kernel_ends(run->comm))
            return false;
        if (!moved)
            madeup_segment_wait(segment, bell);
    }
}

static void kernel_add(struct kernel_run *run, bool sends, int peer, const void *at, size_t bytes)
{
    run->move[run->moves++] = (struct kernel_move){.sends = sends,
                                                   .peer = peer,
                                                   .at = (char *)(uintptr_t)at,
                                                   .bytes = bytes,
                                                   .sign = run->kernel->sign};
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* Elements of a slice that begins at r * slice, of `total`. */
static size_t kernel_share(size_t slice, size_t total, int r)
{
    const size_t begin = slice * (size_t)r;
    return begin >= total ? 0 : total - begin < slice ? total - begin : slice;
}

/*
 * Every rank's part of slice `mine` comes here, is added along the ring and written to `target`.
 * This rank's parts of the others' slices go to them.
 */
static bool kernel_reduce(struct kernel_run *run, size_t slice, size_t total, int owner,
                          char *target)
{
    const struct madeup_kernel *kernel = run->kernel;
    const struct madeup_sign *sign = &kernel->sign;
    const int n = run->comm->count, rank = run->comm->rank;
    const size_t size = madeup_dtype_bytes((ncclDataType_t)sign->dtype);
    const size_t own = owner < 0 ? kernel_share(slice, total, rank) : rank == owner ? total : 0;
    const char *mine = kernel->source + (owner < 0 ? slice * (size_t)rank * size : 0);
    char *parts = malloc(own * size * (size_t)n + 1);
    if (parts == NULL)
        madeup_fail("%s: no memory", kernel->name);
    run->moves = 0;
    for (int r = 0; r < n; r++) {
        const size_t theirs = owner < 0 ? kernel_share(slice, total, r) : r == owner ? total : 0;
        if (r == rank)
            continue;
        if (theirs > 0)
            kernel_add(run, true, r, kernel->source + (owner < 0 ? slice * (size_t)r * size : 0),
                       theirs * size);
        if (own > 0)
            kernel_add(run, false, r, parts + own * size * (size_t)r, own * size);
    }
    const bool done = kernel_progress(run);
    if (done && own > 0) {
        memcpy(parts + own * size * (size_t)rank, mine, own * size);
        char *sum = parts + own * size * (size_t)((rank + 1) % n);
        for (int i = 2; i <= n; i++)
            madeup_sum((ncclDataType_t)sign->dtype, (ncclRedOp_t)sign->op, own,
                       parts + own * size * (size_t)((rank + i) % n), sum);
        memcpy(target, sum, own * size);
    }
    free(parts);
    return done;
}

/* Slice r of every rank's target is rank r's. */
static bool kernel_gather(struct kernel_run *run, const char *mine, size_t slice, size_t total)
{
    const struct madeup_kernel *kernel = run->kernel;
    const int n = run->comm->count, rank = run->comm->rank;
    const size_t size = madeup_dtype_bytes((ncclDataType_t)kernel->sign.dtype);
    const size_t own = kernel_share(slice, total, rank) * size;
    char *at = kernel->target + slice * (size_t)rank * size;
    run->moves = 0;
    if (at != mine && own > 0)
        memmove(at, mine, own);
    for (int r = 0; r < n; r++) {
        const size_t theirs = kernel_share(slice, total, r) * size;
        if (r == rank)
            continue;
        if (own > 0)
            kernel_add(run, true, r, at, own);
        if (theirs > 0)
            kernel_add(run, false, r, kernel->target + slice * (size_t)r * size, theirs);
    }
    return kernel_progress(run);
}

static bool kernel_broadcast(struct kernel_run *run)
{
    const struct madeup_kernel *kernel = run->kernel;
    const int n = run->comm->count, rank = run->comm->rank, root = kernel->sign.root;
    const size_t bytes =
        kernel->sign.count * madeup_dtype_bytes((ncclDataType_t)kernel->sign.dtype);
    run->moves = 0;
    if (rank == root && kernel->target != kernel->source)
        memmove(kernel->target, kernel->source, bytes);
    if (rank != root)
        kernel_add(run, false, root, kernel->target, bytes);
    for (int r = 0; rank == root && r < n; r++)
        if (r != root)
            kernel_add(run, true, r, kernel->source, bytes);
    return kernel_progress(run);
}

static bool kernel_messages(struct kernel_run *run)
{
    const struct madeup_kernel *kernel = run->kernel;
    run->moves = 0;
    for (int i = 0; i < kernel->parts; i++) {
        const struct madeup_part *part = &kernel->part[i];
        kernel_add(run, part->sends, part->peer, part->at,
                   part->count * madeup_dtype_bytes(part->dtype));
        if (part->sends && run->comm->hosts[part->peer] != run->comm->host)
            atomic_fetch_add(&madeup_facts.crossed[run->comm->device],
                             part->count * madeup_dtype_bytes(part->dtype));
        struct madeup_sign *sign = &run->move[run->moves - 1].sign;
        sign->count = part->count;
        sign->dtype = (int32_t)part->dtype;
        sign->window = part->registered;
    }
    return kernel_progress(run);
}

static void kernel_do(struct kernel_run *run)
{
    const struct madeup_kernel *kernel = run->kernel;
    const size_t count = kernel->sign.count, n = (size_t)run->comm->count;
    const size_t slice = (count + n - 1) / n;
    if (kernel->sign.kind == MADEUP_MESSAGES) {
        (void)kernel_messages(run);
        return;
    }
    if (!kernel_meet(run))
        return;
    const size_t size = madeup_dtype_bytes((ncclDataType_t)kernel->sign.dtype);
    switch (kernel->sign.kind) {
    case MADEUP_ALL_REDUCE: {
        char *at = kernel->target + slice * (size_t)run->comm->rank * size;
        if (kernel_reduce(run, slice, count, -1, at))
            (void)kernel_gather(run, at, slice, count);
        return;
    }
    case MADEUP_REDUCE_SCATTER:
        (void)kernel_reduce(run, count, count * n, -1, kernel->target);
        return;
    case MADEUP_REDUCE:
        (void)kernel_reduce(run, 0, count, kernel->sign.root, kernel->target);
        return;
    case MADEUP_ALL_GATHER:
        (void)kernel_gather(run, kernel->source, count, count * n);
        return;
    default:
        (void)kernel_broadcast(run);
    }
}

/* ---- on a stream ----------------------------------------------------------------------------- */

static void kernel_check_ranges(const struct madeup_kernel *kernel)
{
    const struct madeup_sign *sign = &kernel->sign;
    const int device = kernel->comm->device;
    const size_t n = (size_t)kernel->comm->count;
    const bool root = kernel->comm->rank == sign->root;
    for (int i = 0; i < kernel->parts; i++)
        madeup_check_range(kernel->name, device, kernel->part[i].at,
                           kernel->part[i].count * madeup_dtype_bytes(kernel->part[i].dtype));
    if (sign->kind == MADEUP_MESSAGES)
        return;
    const size_t bytes = sign->count * madeup_dtype_bytes((ncclDataType_t)sign->dtype);
    if (sign->kind != MADEUP_BROADCAST || root)
        madeup_check_range(kernel->name, device, kernel->source,
                           sign->kind == MADEUP_REDUCE_SCATTER ? bytes * n : bytes);
    if (sign->kind != MADEUP_REDUCE || root)
        madeup_check_range(kernel->name, device, kernel->target,
                           sign->kind == MADEUP_ALL_GATHER ? bytes * n : bytes);
}

static cudaError_t kernel_run(const void *context)
{
    const struct madeup_kernel *kernel = context;
    struct ncclComm *comm = kernel->comm;
    struct kernel_run run = {.kernel = kernel, .comm = comm};
    const int moves = kernel->parts > KERNEL_PARTS ? kernel->parts : KERNEL_PARTS;
    if (atomic_load(&comm->aborted))
        return cudaSuccess;
    kernel_check_ranges(kernel);
    pthread_mutex_lock(&comm->lock);
    if (comm->busy)
        madeup_fail("%s: two streams work on one communicator at a time; this is not modelled",
                    kernel->name);
    comm->busy = true;
    pthread_mutex_unlock(&comm->lock);
    run.move = calloc((size_t)moves, sizeof(*run.move));
    if (run.move == NULL)
        madeup_fail("%s: no memory", kernel->name);
    kernel_do(&run);
    free(run.move);
    pthread_mutex_lock(&comm->lock);
    comm->busy = false;
    pthread_mutex_unlock(&comm->lock);
    return cudaSuccess;
}

static void kernel_drop(void *context)
{
    struct madeup_kernel *kernel = context;
    struct ncclComm *comm = kernel->comm;
    pthread_mutex_lock(&comm->lock);
    comm->work--;
    pthread_cond_broadcast(&comm->idle);
    pthread_mutex_unlock(&comm->lock);
    free(kernel);
}

cudaError_t madeup_kernel_submit(struct madeup_kernel *kernel)
{
    struct ncclComm *comm = kernel->comm;
    const struct madeup_work work = {kernel->name, kernel_run, kernel_drop, kernel};
    if (madeup_stream_device(kernel->stream) != comm->device)
        madeup_fail("%s: the stream is of device %d, the communicator of device %d", kernel->name,
                    madeup_stream_device(kernel->stream), comm->device);
    pthread_mutex_lock(&comm->lock);
    comm->work++;
    pthread_mutex_unlock(&comm->lock);
    return madeup_submit(kernel->stream, &work);
}
