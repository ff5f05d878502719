/*
 * Sums in canonical order on device memory. They are not NCCL's: every rank owns a slice of the
 * array, gets parts of it from others, in pieces, and adds them up by the kernels' tree
 * (tess_queue_ops.reduce), while the next piece is under way.
 *
 * One level, for the ranks of a node: rank p of G gets the others' parts of its slice.
 *
 *     lane   | exchange 0 -> half 0 | exchange 1 -> half 1 | exchange 2 -> half 0 | gather slices
 *     sums                          | half 0 -> target     | half 1 -> target     |
 *
 * Where one piece does and slices are equal, the exchange is one call, ncclAlltoAll, which also
 * copies a rank's own part; else it is 2 (G - 1) sends and receives in a group.
 *
 * Two levels, where the ranks are H nodes of G = 1, 2, 4, 8, ... neighbours: then the tree over
 * H G ranks is a tree over H of trees over G, and has the same bits. Rank (h, p) = h G + p
 *
 *     gets, of the others of its node, their parts of the slices (., p): H slices, one per node
 *     adds up each of the H: its node's part of it
 *     gives the other nodes' to their rank (., p), and gets their parts of its own slice
 *     adds up those, one per node
 *
 *     lane   | local 0 | cross 0, local 1 | cross 1, local 2 | cross 2 | gather slices
 *     sums             | nodes' parts 0   | whole 0, parts 1 | whole 1, parts 2 | whole 2
 *
 * What is local and what crosses goes on together. A half of the scratch has cells of a piece each,
 * G rows of H: cell (q, h) holds what the rank at place q of this node has of slice (h, p). Row p
 * would be this rank's own, which it has in the source: there are the sums of its node. The next
 * row is free after them: there come those of the other nodes.
 *
 * Of more ranks or nodes than a queue adds up at once, it adds up subtrees first: partial sums come
 * behind the halves.
 *
 * A rank sends what it does in a ring, (N - 1) / N of the source, and once more for the gather. Of
 * that (H - 1) / H of the source leave a node, as in a ring over nodes; on one level (N - G) / N of
 * all G sources do. Sums of 16 bits are f32 between the two turns, so that they are rounded once.
 */
#include "comm/nccl/nccl_group.h"

#include "comm/call.h"

/* A sum of `slice` elements on every rank: rank r's are those from r * slice on, as far as there
 * are `total`. */
struct nccl_sum {
    const struct tess_comm_call *call;
    size_t size; /* of an element */
    size_t slice, total;
    enum tess_dtype between;        /* the type of sums over the ranks of a node */
    int32_t hosts, places;          /* H, G */
    int32_t host, place;            /* h, p */
    size_t piece;                   /* elements of a slice in an exchange */
    size_t cell;                    /* bytes of a piece in the scratch */
    size_t half;                    /* bytes of its halves */
    bool at_once;                   /* a piece is the slice, and all of them are equal */
    struct nccl_room room;          /* the scratch */
    struct tess__partials partials; /* behind its halves */
    char *target; /* where this rank's slice goes; NULL: it stays in the scratch */
};

/* Elements of rank r's slice from `first` on, at most a piece. */
static size_t sum_count(const struct nccl_sum *sum, int32_t r, size_t first)
{
    size_t begin = (size_t)r * sum->slice + first;
    size_t count = sum->slice - first < sum->piece ? sum->slice - first : sum->piece;
    if (begin >= sum->total)
        return 0;
    return count < sum->total - begin ? count : sum->total - begin;
}

/* Where the piece of rank r's slice begins, in bytes. */
static size_t sum_at(const struct nccl_sum *sum, int32_t r, size_t first)
{
    return ((size_t)r * sum->slice + first) * sum->size;
}

static int32_t sum_rank(const struct nccl_sum *sum, int32_t host, int32_t place)
{
    return (host + sum->hosts) % sum->hosts * sum->places + (place + sum->places) % sum->places;
}

static unsigned char *sum_cell(const struct nccl_sum *sum, size_t piece, int32_t place,
                               int32_t host)
{
    const size_t at = (size_t)(place % sum->places * sum->hosts + host);
    return sum->room.memory + piece % 2 * sum->half + at * sum->cell;
}

/* Where this rank's slice is whole: its first element of a piece. */
static void *sum_whole(const struct nccl_sum *sum, size_t piece)
{
    if (sum->target != NULL)
        return sum->target + piece * sum->piece * sum->size;
    /* Of the row of what other nodes sent: it has nothing in this node's place. */
    return sum_cell(sum, piece, sum->place + (sum->hosts > 1 ? 1 : 0), sum->host);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Parts of slices, between the ranks of a node. Each rank begins with another one. */
static void sum_local(struct nccl_group *group, const struct nccl_sum *sum, size_t piece)
{
    const size_t first = piece * sum->piece;
    for (int32_t i = 1; i < sum->places; i++) {
        const int32_t to = sum_rank(sum, sum->host, sum->place + i);
        const int32_t from = sum_rank(sum, sum->host, sum->place - i);
        for (int32_t h = 0; h < sum->hosts; h++) {
            const int32_t theirs = sum_rank(sum, h, to), own = sum_rank(sum, h, sum->place);
            tess__nccl_part(
                group, &(struct nccl_part){
                           .to = to,
                           .from = from,
                           .source = (const char *)sum->call->source + sum_at(sum, theirs, first),
                           .target = sum_cell(sum, piece, from, h),
                           .send_bytes = sum_count(sum, theirs, first) * sum->size,
                           .receive_bytes = sum_count(sum, own, first) * sum->size});
        }
    }
}

/* Sums of nodes, between the ranks at one place of all of them. */
static void sum_cross(struct nccl_group *group, const struct nccl_sum *sum, size_t piece)
{
    const size_t first = piece * sum->piece, size = tess_dtype_bytes(sum->between);
    for (int32_t i = 1; i < sum->hosts; i++) {
        const int32_t to = sum_rank(sum, sum->host + i, sum->place);
        const int32_t from = sum_rank(sum, sum->host - i, sum->place);
        const int32_t to_host = to / sum->places, from_host = from / sum->places;
        tess__nccl_part(
            group,
            &(struct nccl_part){.to = to,
                                .from = from,
                                .source = sum_cell(sum, piece, sum->place, to_host),
                                .target = sum_cell(sum, piece, sum->place + 1, from_host),
                                .send_bytes = sum_count(sum, to, first) * size,
                                .receive_bytes = sum_count(sum, group->comm.rank, first) * size});
    }
}

/* At the root of a reduce. The others send from the scratch; so where NCCL knows that and not the
 * target, or the other way round, the pieces come to the scratch, too: to cells that have been
 * added up. */
static enum tess_status sum_collect_here(struct nccl_group *group, struct nccl_lane *lane,
                                         const struct nccl_sum *sum, size_t piece)
{
    const int32_t n = group->comm.rank_count, root = group->comm.rank;
    const size_t first = piece * sum->piece;
    char *const target = sum->call->target;
    const bool direct =
        sum->room.registered ==
        tess__nccl_is_registered(group->family, lane, target, sum->total * sum->size);
    for (int32_t r = 0; r < n; r++)
        if (r != root)
            tess__nccl_part(group, &(struct nccl_part){
                                       .from = r,
                                       .target = direct ? (void *)(target + sum_at(sum, r, first))
                                                        : sum_cell(sum, piece, r % sum->places,
                                                                   r / sum->places),
                                       .receive_bytes = sum_count(sum, r, first) * sum->size});
    TESS_TRY(tess__nccl_run_parts(group, lane));
    for (int32_t r = 0; r < n && !direct; r++)
        if (r != root)
            TESS_TRY(lane->queue->ops->copy(lane->queue, sum_count(sum, r, first) * sum->size,
                                            sum_cell(sum, piece, r % sum->places, r / sum->places),
                                            target + sum_at(sum, r, first)));
    return TESS_OK;
}

/* Reduce: the pieces of all slices come together at the root. */
static enum tess_status sum_collect(struct nccl_group *group, struct nccl_lane *lane,
                                    const struct nccl_sum *sum, size_t piece)
{
    const int32_t rank = group->comm.rank, root = sum->call->peer;
    if (rank == root)
        return sum_collect_here(group, lane, sum, piece);
    const size_t count = sum_count(sum, rank, piece * sum->piece);
    tess__nccl_part(group, &(struct nccl_part){.to = root,
                                               .source = sum_whole(sum, piece),
                                               .send_bytes = count * sum->size});
    return tess__nccl_run_parts(group, lane);
}

/* This rank's slice `mine` to `to`, which is to have it; slice `theirs` comes from `from`. */
static void sum_pass(struct nccl_group *group, const struct nccl_sum *sum, int32_t to, int32_t mine,
                     int32_t from, int32_t theirs)
{
    char *target = sum->call->target;
    tess__nccl_part(group,
                    &(struct nccl_part){.to = to,
                                        .from = from,
                                        .source = target + sum_at(sum, mine, 0),
                                        .target = target + sum_at(sum, theirs, 0),
                                        .send_bytes = sum_count(sum, mine, 0) * sum->size,
                                        .receive_bytes = sum_count(sum, theirs, 0) * sum->size});
}

/* All-reduce: every rank's slice to all, over the nodes first. */
static enum tess_status sum_gather(struct nccl_group *group, struct nccl_lane *lane,
                                   const struct nccl_sum *sum)
{
    struct tess_comm_call gather = *sum->call;
    struct nccl_sum all = *sum;
    const int32_t rank = group->comm.rank;
    if (sum->total == sum->slice * (size_t)group->comm.rank_count) {
        gather.collective = TESS_COLLECTIVE_ALL_GATHER;
        gather.source = (char *)gather.target + sum_at(sum, rank, 0);
        gather.count = sum->slice;
        return tess__nccl_run_direct(group, lane, &gather);
    }
    all.piece = sum->slice;
    for (int32_t i = 1; i < sum->hosts; i++) {
        const int32_t to = sum_rank(sum, sum->host + i, sum->place);
        const int32_t from = sum_rank(sum, sum->host - i, sum->place);
        sum_pass(group, &all, to, rank, from, from);
    }
    TESS_TRY(tess__nccl_run_parts(group, lane));
    for (int32_t i = 1; i < sum->places; i++) {
        const int32_t to = sum_rank(sum, sum->host, sum->place + i);
        const int32_t from = sum_rank(sum, sum->host, sum->place - i);
        for (int32_t h = 0; h < sum->hosts; h++)
            sum_pass(group, &all, to, sum_rank(sum, h, sum->place), from, sum_rank(sum, h, from));
    }
    return tess__nccl_run_parts(group, lane);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Over the ranks of this node, of each slice of its place. */
static enum tess_status sum_add_local(struct nccl_group *group, const struct nccl_sum *sum,
                                      size_t piece)
{
    const size_t first = piece * sum->piece;
    for (int32_t h = 0; h < sum->hosts; h++) {
        const void **source = group->source;
        const int32_t own = sum_rank(sum, h, sum->place);
        const size_t count = sum_count(sum, own, first);
        void *target = sum->hosts > 1 ? sum_cell(sum, piece, sum->place, h) : sum_whole(sum, piece);
        for (int32_t q = 0; q < sum->places; q++)
            source[q] = sum_cell(sum, piece, q, h);
        source[sum->place] = (const char *)sum->call->source + sum_at(sum, own, first);
        if (count > 0)
            TESS_TRY(tess__call_reduce_many(group->sums, sum->call->dtype, sum->between,
                                            sum->call->reduce, sum->places, source, 1, &target,
                                            count, &sum->partials));
    }
    return TESS_OK;
}

/* Over the nodes, of this rank's slice. */
static enum tess_status sum_add_hosts(struct nccl_group *group, const struct nccl_sum *sum,
                                      size_t piece)
{
    const void **source = group->source;
    const size_t count = sum_count(sum, group->comm.rank, piece * sum->piece);
    void *target = sum_whole(sum, piece);
    for (int32_t h = 0; h < sum->hosts; h++)
        source[h] = sum_cell(sum, piece, sum->place + (h == sum->host ? 0 : 1), h);
    if (count == 0)
        return TESS_OK;
    return tess__call_reduce_many(group->sums, sum->between, sum->call->dtype, sum->call->reduce,
                                  sum->hosts, source, 1, &target, count, &sum->partials);
}

/* Of `pieces`: what is local of piece `step`, beside what crosses of the one before. */
static enum tess_status sum_step(struct nccl_group *group, struct nccl_lane *lane,
                                 const struct nccl_sum *sum, size_t step, size_t pieces)
{
    struct tess_fence *full = group->full[step % 2], *taken = group->taken[step % 2];
    const bool crosses = sum->hosts > 1 && step > 0;
    if (sum->at_once)
        TESS_TRY(tess__nccl_all_to_all(group, lane, sum->call->source, sum_cell(sum, step, 0, 0),
                                       sum->cell));
    else if (step < pieces)
        sum_local(group, sum, step);
    if (crosses)
        sum_cross(group, sum, step - 1);
    TESS_TRY(tess__nccl_run_parts(group, lane));
    TESS_TRY(lane->queue->ops->record(lane->queue, full));
    TESS_TRY(lane->queue->ops->follow(group->sums, full));
    if (crosses)
        TESS_TRY(sum_add_hosts(group, sum, step - 1));
    if (step < pieces)
        TESS_TRY(sum_add_local(group, sum, step));
    return lane->queue->ops->record(group->sums, taken);
}

static enum tess_status sum_run(struct nccl_group *group, struct nccl_lane *lane,
                                const struct nccl_sum *sum)
{
    const struct tess_queue_ops *ops = lane->queue->ops;
    const bool collects = sum->call->collective == TESS_COLLECTIVE_REDUCE;
    const size_t pieces = (sum->slice + sum->piece - 1) / sum->piece;
    /* A piece is whole so many steps after it has come; a half is free after the sums of the step
     * before the one that fills it, and of the one before that where nothing else is needed. */
    const size_t late = sum->hosts > 1 ? 1 : 0, behind = sum->hosts > 1 ? 1 : 2;
    for (size_t step = 0; step < pieces + late; step++) {
        if (step >= behind)
            TESS_TRY(ops->follow(lane->queue, group->taken[(step - behind) % 2]));
        TESS_TRY(sum_step(group, lane, sum, step, pieces));
        if (!collects || step < late)
            continue;
        TESS_TRY(ops->follow(lane->queue, group->taken[step % 2]));
        TESS_TRY(sum_collect(group, lane, sum, step - late));
    }
    /* `sums` works in order: its last piece comes after all others. */
    if (pieces > 0)
        TESS_TRY(ops->follow(lane->queue, group->taken[(pieces + late - 1) % 2]));
    return sum->call->collective == TESS_COLLECTIVE_ALL_REDUCE ? sum_gather(group, lane, sum)
                                                               : TESS_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

bool tess__nccl_is_narrow(const struct tess_comm_call *call)
{
    return (call->dtype == TESS_F16 || call->dtype == TESS_BF16) && call->reduce == TESS_REDUCE_SUM;
}

/* Cells of the scratch: two halves, and two for each partial sum, which may be as much wider. */
static size_t sum_cells(const struct nccl_group *group)
{
    const struct net_shape *shape = &group->shape;
    const int32_t most = shape->hosts > shape->places ? shape->hosts : shape->places;
    return 2 * (size_t)(group->comm.rank_count + tess__call_partials(most));
}

size_t tess__nccl_sum_least(const struct nccl_group *group)
{
    return sum_cells(group) * NCCL_ALIGN;
}

enum tess_status tess__nccl_sum(struct nccl_group *group, struct nccl_lane *lane,
                                const struct tess_comm_call *call)
{
    const int32_t n = group->comm.rank_count, rank = group->comm.rank;
    const bool scatters = call->collective == TESS_COLLECTIVE_REDUCE_SCATTER;
    const bool here = call->collective != TESS_COLLECTIVE_REDUCE || rank == call->peer;
    const bool wide = group->shape.hosts > 1 && tess__nccl_is_narrow(call);
    struct nccl_sum sum = {.call = call,
                           .size = tess_dtype_bytes(call->dtype),
                           .between = wide ? TESS_F32 : call->dtype,
                           .hosts = group->shape.hosts,
                           .places = group->shape.places,
                           .host = rank / group->shape.places,
                           .place = rank % group->shape.places};
    sum.slice = scatters ? call->count : tess__nccl_slice(call->count, n);
    sum.total = scatters ? call->count * (size_t)n : call->count;
    sum.room = tess__nccl_room(group, lane, call->source, sum.total * sum.size);
    /* Whole vectors, so that every source of the sum is as aligned as the next. */
    sum.cell = sum.room.bytes / sum_cells(group) / NCCL_ALIGN * NCCL_ALIGN;
    sum.half = (size_t)n * sum.cell;
    sum.partials =
        (struct tess__partials){.memory = sum.room.memory + 2 * sum.half, .stride = 2 * sum.cell};
    sum.piece = sum.cell / tess_dtype_bytes(sum.between);
    sum.at_once = sum.hosts == 1 && sum.slice <= sum.piece && sum.total == sum.slice * (size_t)n &&
                  tess__nccl_has_all_to_all(group);
    if (sum.at_once) {
        sum.piece = sum.slice;
        sum.cell = sum.slice * sum.size;
    }
    sum.target = scatters ? call->target
                 : here   ? (char *)call->target + sum_at(&sum, rank, 0)
                          : NULL;
    return sum_run(group, lane, &sum);
}
