/* The schedules of net_path.h. */
#include "comm/net/net_path.h"

/* From here on a broadcast goes along the ranks in chunks; below, the tree has it there sooner. */
#define PATH_CHAIN_BYTES (64u << 10)

/* ---- the tree -------------------------------------------------------------------------------- */

/* The largest power of two below count > 1: where the tree of tessera/comm.h splits. */
static int32_t path_split(int32_t count)
{
    int32_t power = 1;

    while (power * 2 < count)
        power *= 2;
    return power;
}

/*
 * A holder of a block is one of the holders of its two parts, and the lane's own rank wherever it
 * is in the block. Full blocks begin at a multiple of their size, so that the last bits of the lane
 * say both. A block that is not full ends with the last rank; there lanes of ranks outside are
 * dealt out to both parts by their sizes.
 */
int32_t tess__net_holder(int32_t first, int32_t count, int32_t lane)
{
    for (;;) {
        if ((count & (count - 1)) == 0)
            return first + (lane & (count - 1));
        if (lane >= first && lane < first + count)
            return lane;
        const int32_t left = path_split(count), deal = lane / left;
        if ((deal + 1) * left / count != deal * left / count)
            return first + (lane & (left - 1));
        first += left;
        count -= left;
    }
}

static void path_come(struct net_lane *lane, int32_t rank, bool left, bool leaf)
{
    lane->come[lane->come_count] = (int16_t)rank;
    lane->come_left[lane->come_count] = left;
    lane->come_leaf[lane->come_count++] = leaf;
}

/* From this rank alone up through the blocks it is in. */
static void path_tree_up(int32_t rank, int32_t rank_count, int32_t owner, struct net_lane *lane)
{
    struct {
        int32_t first, count;
    } block[NET_COME_MAX + 1] = {{0, rank_count}};
    int32_t depth = 0;

    while (block[depth].count > 1) {
        const int32_t first = block[depth].first, left = path_split(block[depth].count);
        const bool right = rank >= first + left;
        block[depth + 1].first = right ? first + left : first;
        block[depth + 1].count = right ? block[depth].count - left : left;
        depth++;
    }
    lane->to = -1;
    for (; depth > 0 && lane->to < 0; depth--) {
        const int32_t first = block[depth - 1].first, count = block[depth - 1].count;
        const bool right = block[depth].first != first;
        const int32_t other_first = right ? first : first + block[depth].count;
        const int32_t other_count = count - block[depth].count;
        const int32_t other = tess__net_holder(other_first, other_count, owner);
        if (tess__net_holder(first, count, owner) == rank)
            path_come(lane, other, right, other_count == 1);
        else
            lane->to = (int16_t)other;
    }
}

/* Down is up the other way round, the far ones first. */
static void path_tree_down(const struct net_lane *up, struct net_lane *lane)
{
    lane->from = up->to;
    lane->down_count = up->come_count;
    for (int32_t k = 0; k < up->come_count; k++)
        lane->down[k] = up->come[up->come_count - 1 - k];
}

/* ---- the rings ------------------------------------------------------------------------------- */

/* Number of the rank at `place` of `host`, both taken round. */
static int16_t path_rank(const struct net_shape *shape, int32_t host, int32_t place)
{
    const int32_t h = (host + shape->hosts) % shape->hosts;

    return (int16_t)(h * shape->places + (place + shape->places) % shape->places);
}

/* Within the host from the place behind the owner's on to its own; there over the hosts, from the
 * one behind the owner's. Any order of operands will do. */
static void path_ring_up(const struct net_shape *shape, int32_t owner, struct net_lane *lane)
{
    const int32_t hosts = shape->hosts, places = shape->places;
    const int32_t h = shape->rank / places, p = shape->rank % places;
    const int32_t to_h = owner / places, to_p = owner % places;
    const int32_t first_p = (to_p + 1) % places, first_h = (to_h + 1) % hosts;

    lane->to = -1;
    if (p != first_p) /* with one place never */
        path_come(lane, path_rank(shape, h, p - 1), true, (p - 1 + places) % places == first_p);
    if (p != to_p) {
        lane->to = path_rank(shape, h, p + 1);
        return;
    }
    if (h != first_h)
        path_come(lane, path_rank(shape, h - 1, p), true,
                  places == 1 && (h - 1 + hosts) % hosts == first_h);
    if (h != to_h)
        lane->to = path_rank(shape, h + 1, p);
}

static void path_ring_down(const struct net_shape *shape, int32_t owner, struct net_lane *lane)
{
    const int32_t hosts = shape->hosts, places = shape->places;
    const int32_t h = shape->rank / places, p = shape->rank % places;
    const int32_t to_h = owner / places, to_p = owner % places;

    lane->from = -1;
    if (p == to_p) {
        if (h != to_h)
            lane->from = path_rank(shape, h - 1, p);
        if ((h + 1) % hosts != to_h)
            lane->down[lane->down_count++] = path_rank(shape, h + 1, p);
    } else {
        lane->from = path_rank(shape, h, p - 1);
    }
    if ((p + 1) % places != to_p)
        lane->down[lane->down_count++] = path_rank(shape, h, p + 1);
}

/* A rank gives first what it has first, and the next one expects it in that order: up the lane
 * before its own, which begins here, and so on backwards; down its own first. */
static void path_ring_orders(const struct net_shape *shape, struct net_plan *plan)
{
    const int32_t h = shape->rank / shape->places, p = shape->rank % shape->places;
    int32_t at = 0;

    for (int32_t i = 0; i < shape->hosts; i++)
        for (int32_t k = 0; k < shape->places; k++, at++) {
            plan->up_order[at] = path_rank(shape, h - 1 - i, p - 1 - k);
            plan->down_order[at] = path_rank(shape, h - i, p - k);
        }
}

struct net_shape tess__net_shape(int32_t rank, int32_t rank_count, const int32_t *host)
{
    struct net_shape shape = {rank, rank_count, 1, rank_count};
    int32_t places = 1;

    while (places < rank_count && host[places] == host[0])
        places++;
    if (rank_count % places != 0)
        return shape;
    for (int32_t r = 0; r < rank_count; r++) {
        if (host[r] != host[r / places * places])
            return shape;
        for (int32_t q = 0; q < r / places * places; q++)
            if (host[q] == host[r])
                return shape;
    }
    shape.hosts = rank_count / places;
    shape.places = places;
    return shape;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void path_plain_orders(struct net_plan *plan)
{
    for (int32_t l = 0; l < plan->lane_count; l++)
        plan->up_order[l] = plan->down_order[l] = (int16_t)l;
}

/* Where lane `l` lies in source and target. */
static void path_place(const struct tess_comm_call *call, int32_t rank, int32_t rank_count,
                       int32_t l, struct net_lane *lane)
{
    const size_t n = (size_t)rank_count, i = (size_t)l;
    const size_t begin = call->count / n * i + call->count % n * i / n;
    const size_t end = call->count / n * (i + 1) + call->count % n * (i + 1) / n;
    const bool own = l == rank;

    switch (call->collective) {
    case TESS_COLLECTIVE_REDUCE_SCATTER:
        lane->length = call->count;
        lane->source_at = i * call->count;
        lane->target_at = own ? 0 : SIZE_MAX;
        return;
    case TESS_COLLECTIVE_ALL_GATHER:
        lane->length = call->count;
        lane->source_at = own ? 0 : SIZE_MAX;
        lane->target_at = i * call->count;
        lane->has_source = own;
        return;
    case TESS_COLLECTIVE_REDUCE:
        lane->length = end - begin;
        lane->source_at = begin;
        lane->target_at = rank == call->peer ? begin : SIZE_MAX;
        return;
    default:
        lane->length = end - begin;
        lane->source_at = lane->target_at = begin;
    }
}

/* The sums of a reduce lie at the owners: from there straight to the root. */
static void path_to_root(int32_t rank, int32_t root, int32_t owner, struct net_lane *lane)
{
    lane->from = -1;
    if (rank == owner && owner != root)
        lane->down[lane->down_count++] = (int16_t)root;
    else if (rank == root && owner != root)
        lane->from = (int16_t)owner;
}

static void path_broadcast(const struct net_shape *shape, const struct tess_comm_call *call,
                           struct net_plan *plan)
{
    struct net_lane *lane = &plan->lane[0], up = {.come_count = 0};

    plan->lane_count = 1;
    *lane = (struct net_lane){.length = call->count, .to = -1, .from = -1};
    lane->has_source = shape->rank == call->peer;
    if (call->count * tess_dtype_bytes(call->dtype) >= PATH_CHAIN_BYTES) {
        path_ring_down(shape, call->peer, lane);
    } else {
        path_tree_up(shape->rank, shape->rank_count, call->peer, &up);
        path_tree_down(&up, lane);
    }
    path_plain_orders(plan);
}

/* To each rank and from each rank by a lane of its own, those at the same distance together. */
static void path_all_to_all(const struct net_shape *shape, const struct tess_comm_call *call,
                            struct net_plan *plan)
{
    const int32_t n = shape->rank_count;
    const size_t count = call->count;

    plan->lane_count = 0;
    for (int32_t d = 0; d < n; d++) {
        const int32_t to = (shape->rank + d) % n, from = (shape->rank + n - d) % n;
        struct net_lane *give = &plan->lane[plan->lane_count++];
        *give = (struct net_lane){.length = count,
                                  .source_at = (size_t)to * count,
                                  .target_at = d == 0 ? (size_t)to * count : SIZE_MAX,
                                  .to = -1,
                                  .from = -1,
                                  .has_source = true};
        if (d == 0)
            continue;
        give->down[give->down_count++] = (int16_t)to;
        plan->lane[plan->lane_count++] = (struct net_lane){.length = count,
                                                           .source_at = SIZE_MAX,
                                                           .target_at = (size_t)from * count,
                                                           .to = -1,
                                                           .from = (int16_t)from};
    }
    path_plain_orders(plan);
}

void tess__net_plan(const struct net_shape *shape, const struct tess_comm_call *call,
                    struct net_plan *plan)
{
    const int32_t n = shape->rank_count, rank = shape->rank;
    const bool tree = call->order == TESS_ORDER_CANONICAL;
    const enum tess_collective kind = call->collective;

    if (kind == TESS_COLLECTIVE_BROADCAST) {
        path_broadcast(shape, call, plan);
        return;
    }
    if (kind == TESS_COLLECTIVE_ALL_TO_ALL) {
        path_all_to_all(shape, call, plan);
        return;
    }
    plan->lane_count = n;
    for (int32_t l = 0; l < n; l++) {
        struct net_lane up = {.to = -1, .from = -1}, *lane = &plan->lane[l];
        if (tree)
            path_tree_up(rank, n, l, &up);
        else if (kind != TESS_COLLECTIVE_ALL_GATHER)
            path_ring_up(shape, l, &up);
        *lane = up;
        if (kind == TESS_COLLECTIVE_ALL_GATHER) {
            *lane = (struct net_lane){.to = -1, .from = -1};
        }
        if (kind == TESS_COLLECTIVE_REDUCE)
            path_to_root(rank, call->peer, l, lane);
        else if (kind != TESS_COLLECTIVE_REDUCE_SCATTER && tree)
            path_tree_down(&up, lane);
        else if (kind != TESS_COLLECTIVE_REDUCE_SCATTER)
            path_ring_down(shape, l, lane);
        path_place(call, rank, n, l, lane);
    }
    if (tree)
        path_plain_orders(plan);
    else
        path_ring_orders(shape, plan);
}
