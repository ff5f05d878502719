/* The schedules of net_path.h. */
#include "comm/net/net_path.h"

#include "comm/net/net_ways.h"
#include "tessera/check.h"

#include <stdlib.h>

/* From here on a broadcast goes along the ranks in chunks; below, the tree has it there sooner. */
#define PATH_CHAIN_BYTES (64u << 10)

/* Up to so many hosts exchange small sums. On 4 that is 8 messages in the place of 6, which where
 * hosts share cores, as in tests/cluster, takes longer than half of the ways saves. */
#define PATH_EXCHANGE_HOSTS 3

/* From so many hosts on, where they are no power of two, a chain down costs a link between two
 * neighbours less than the tree does, and no host more than a ring. */
#define PATH_CHAIN_HOSTS 6

/* Parts in which the left block of a tree may come to the right one, and moves up a lane: one for
 * each level of the tree, more for parts, the last gives. */
#define PATH_PARTS  4
#define PATH_UP_MAX (17 + PATH_PARTS)

_Static_assert(TESS_RANKS_MAX <= 1 << (PATH_UP_MAX - PATH_PARTS - 1), "a level has a move");
_Static_assert(PATH_PARTS <= 1 << NET_KEPT, "a level of parts keeps a sum");

/* ---- the tree -------------------------------------------------------------------------------- */

/*
 * By which number a lane is dealt out to the full blocks that rank `first` is in: its own. To the
 * right of the largest of them there are fewer lanes than ranks in it, whose own numbers would all
 * lie in its first hosts. Bit i of theirs is the parity of their place there with row i of Pascal's
 * triangle modulo 2. Of that matrix the corners of m rows at the top and at the bottom, m columns
 * wide, have the determinant 1: so of the first 2^m lanes each has other last m bits, a rank of
 * its own in a block of 2^m, and other first m bits, a host of its own.
 */
static int32_t path_deal(int32_t rank_count, int32_t first, int32_t lane)
{
    int32_t begin = 0, count = rank_count, dealt = 0;

    while ((count & (count - 1)) != 0) {
        const int32_t left = tess__net_split(count);
        count = first < begin + left ? left : count - left;
        begin += first < begin + left ? 0 : left;
    }
    if (lane < begin + count)
        return lane;
    const uint32_t place = (uint32_t)(lane - begin - count);
    for (uint32_t row = 1, bit = 1; bit < (uint32_t)count; bit *= 2, row ^= row << 1)
        dealt += __builtin_parity(place & row) ? (int32_t)bit : 0;
    return dealt;
}

/*
 * Of the tree over rank_count ranks: which rank of the block [first, first + count) holds lane
 * `lane`? A holder of a block is one of the holders of its two parts, and the lane's own rank
 * wherever it is in the block. Full blocks begin at a multiple of their size, so that the last bits
 * of the lane say both. A block that is not full ends with the last rank; there lanes of ranks
 * outside are dealt out to both parts by their sizes.
 */
static int32_t path_tree_holder(int32_t rank_count, int32_t first, int32_t count, int32_t lane)
{
    for (;;) {
        if ((count & (count - 1)) == 0)
            return first + (path_deal(rank_count, first, lane) & (count - 1));
        if (lane >= first && lane < first + count)
            return lane;
        const int32_t left = tess__net_split(count), deal = lane / left;
        if ((deal + 1) * left / count != deal * left / count)
            return first + (lane & (left - 1));
        first += left;
        count -= left;
    }
}

static void path_move(struct net_lane *lane, enum net_kind kind, bool sends, int32_t peer)
{
    lane->move[lane->move_count++] = (struct net_move){
        .peer = peer, .kind = (uint8_t)kind, .sends = sends, .leaf = true, .count = SIZE_MAX};
}

static void path_add(struct net_lane *lane, int32_t peer, bool left, bool leaf)
{
    lane->move[lane->move_count++] = (struct net_move){
        .peer = peer, .kind = NET_UP, .adds = true, .left = left, .leaf = leaf, .count = SIZE_MAX};
    lane->adds++;
}

/* Lanes of an array that none share. */
static int32_t path_count(const struct net_shape *shape)
{
    return shape->ways != NULL && shape->ways->lanes > shape->rank_count ? shape->ways->lanes
                                                                         : shape->rank_count;
}

/* Which of the plan's ways is the lane's: those of a host share one, or each half of them. */
static int32_t path_which(const struct net_shape *shape, int32_t lane)
{
    return lane / (path_count(shape) / shape->ways->lanes);
}

/* In a plan: by the ways of its hosts, where it has them. */
static int32_t path_holder(const struct net_shape *shape, int32_t first, int32_t count,
                           int32_t lane)
{
    const int32_t places = shape->places;

    if (shape->ways == NULL)
        return path_tree_holder(shape->rank_count, first, count, lane);
    if (count <= places)
        return first + (lane & (count - 1));
    const int32_t block = (first + tess__net_split(count)) / places;
    return shape->ways->holder[path_which(shape, lane)][block] * places + lane % places;
}

/*
 * The size of the parts in which the left block of [first, first + count) comes to the lane's owner
 * to the right of it; the block's own: as one. Parts are whole hosts, as many as even out what
 * hosts get: about as large as the right block.
 */
static int32_t path_part(const struct net_shape *shape, int32_t first, int32_t count, int32_t owner)
{
    const int32_t left = tess__net_split(count), right = count - left, places = shape->places;
    int32_t part = places > left / PATH_PARTS ? places : left / PATH_PARTS;

    if (shape->ways != NULL)
        return count <= places
                   ? left
                   : left / shape->ways->parts[path_which(shape, owner)][(first + left) / places];
    if ((count & (count - 1)) == 0 || shape->hosts == 1 || (places & (places - 1)) != 0 ||
        owner < first + left || owner >= first + count || (right > left / 2 && right != places))
        return left;
    while (part < right)
        part *= 2;
    return part < left ? part : left;
}

static int32_t path_crossings(const struct net_shape *shape, const int32_t *host, int32_t first,
                              int32_t count, int32_t lane)
{
    if (count == 1)
        return 0;
    const int32_t n = shape->rank_count, left = tess__net_split(count), right = first + left;
    const int32_t part = path_part(shape, first, count, lane);
    const int32_t to = host[path_tree_holder(n, right, count - left, lane)];
    int32_t crossings = path_crossings(shape, host, right, count - left, lane);

    for (int32_t at = first; at < right; at += part)
        crossings += path_crossings(shape, host, at, part, lane) +
                     (host[path_tree_holder(n, at, part, lane)] != to ? 1 : 0);
    return crossings;
}

/* Are the ranks of this host all of a block, and no others? */
static bool path_is_block(int32_t rank_count, const int32_t *host, int32_t which)
{
    int32_t first = 0, count = rank_count, least = rank_count, most = 0, ranks = 0;

    for (int32_t r = 0; r < rank_count; r++) {
        if (host[r] != which)
            continue;
        least = ranks == 0 ? r : least;
        most = r;
        ranks++;
    }
    while (count > ranks) {
        const int32_t left = tess__net_split(count);
        if (least < first + left && most >= first + left)
            return false;
        count = least < first + left ? left : count - left;
        first += least < first + left ? 0 : left;
    }
    return true;
}

struct net_spread tess__net_spread(int32_t rank_count, const int32_t *host)
{
    const struct net_shape shape = tess__net_shape(0, rank_count, host, 0);
    struct net_spread spread = {.astray = -1};

    for (int32_t r = rank_count; r-- > 0;) {
        int32_t before = 0;
        while (host[before] != host[r])
            before++;
        spread.hosts += before == r ? 1 : 0;
        if (before == r && !path_is_block(rank_count, host, host[r]))
            spread.astray = r;
        spread.crossings += path_crossings(&shape, host, 0, rank_count, r);
    }
    return spread;
}

/* At the owner, which has the sum of the right block: add up the parts of the left one, two by two,
 * and then both. */
static void path_take_parts(const struct net_shape *shape, int32_t first, int32_t left,
                            int32_t part, int32_t owner, struct net_lane *lane)
{
    const int32_t parts = left / part;

    for (int32_t i = 0; i < parts; i++) {
        path_add(lane, path_holder(shape, first + i * part, part, owner), false, part == 1);
        struct net_move *move = &lane->move[lane->move_count - 1];
        move->starts = i % 2 == 0;
        move->keeps_left = i > 0;
        move->joins = (uint8_t)(i + 1 == parts ? parts / 2 : 0);
    }
}

/* From this rank alone up through the blocks it is in; false: it has given its sum to another. */
static bool path_tree_up(const struct net_shape *shape, int32_t first, int32_t count, int32_t owner,
                         struct net_lane *lane)
{
    const int32_t rank = shape->rank;
    if (count == 1)
        return true;
    const int32_t left = tess__net_split(count);
    const bool right = rank >= first + left;
    const int32_t part = path_part(shape, first, count, owner);
    const int32_t near = right ? first + left : first + (rank - first) / part * part;
    const int32_t near_count = right ? count - left : part;
    const int32_t far = right ? first : first + left, far_count = right ? left : count - left;
    if (!path_tree_up(shape, near, near_count, owner, lane))
        return false;
    if (right && part < left) {
        path_take_parts(shape, first, left, part, owner, lane);
        return true;
    }
    const int32_t other = path_holder(shape, far, far_count, owner);
    const bool holds = path_holder(shape, first, count, owner) == rank;
    if (holds)
        path_add(lane, other, right, far_count == 1);
    else
        path_move(lane, NET_UP, true, other);
    return holds;
}

/* Down is up the other way round, the far ones first. */
static void path_tree(const struct net_shape *shape, int32_t owner, bool up, bool down,
                      struct net_lane *lane)
{
    struct net_move moves[PATH_UP_MAX];
    struct net_lane tree = {.move = moves};

    (void)path_tree_up(shape, 0, shape->rank_count, owner, &tree);
    for (int32_t k = 0; up && k < tree.move_count; k++)
        lane->move[lane->move_count++] = moves[k];
    lane->adds = up ? tree.adds : 0;
    for (int32_t k = down ? tree.move_count : 0; k-- > 0;)
        path_move(lane, NET_DOWN, !moves[k].sends, moves[k].peer);
}

/* ---- the exchange ---------------------------------------------------------------------------- */

/* Between the first ranks of hosts [first, first + count); this one is among them. */
static void path_exchange_hosts(const struct net_shape *shape, int32_t first, int32_t count,
                                struct net_lane *lane)
{
    const int32_t places = shape->places, host = shape->rank / places;
    if (count == 1)
        return;
    const int32_t left = tess__net_split(count), right = count - left;
    const bool is_left = host < first + left;
    const int32_t i = is_left ? host - first : host - first - left;
    path_exchange_hosts(shape, is_left ? first : first + left, is_left ? left : right, lane);
    if (is_left && i < right)
        path_move(lane, NET_UP, true, (first + left + i) * places);
    for (int32_t to = i; !is_left && to < left; to += right)
        path_move(lane, NET_UP, true, (first + to) * places);
    const int32_t from = is_left ? first + left + i % right : first + i;
    path_add(lane, from * places, !is_left, places == 1 && (is_left ? right : left) == 1);
}

/* There is one lane; the tree over the ranks of a host is that of its first rank's lane. */
static void path_exchange(const struct net_shape *shape, struct net_lane *lane)
{
    const int32_t places = shape->places;
    const struct net_shape within = {shape->rank % places, places, 1, places, 0, NULL};
    const int32_t first = shape->rank - within.rank;

    (void)path_tree_up(&within, 0, places, 0, lane);
    const int32_t inner = lane->move_count;
    for (int32_t k = 0; k < inner; k++)
        lane->move[k].peer += first;
    if (within.rank == 0)
        path_exchange_hosts(shape, 0, shape->hosts, lane);
    lane->exchanged = true;
    lane->adds = lane->move_count;
    for (int32_t k = inner; k-- > 0;)
        path_move(lane, NET_DOWN, !lane->move[k].sends, lane->move[k].peer);
}

/* ---- shared lanes ---------------------------------------------------------------------------- */

/* Ranks [first, first + count) share a lane, `unit` elements each. */
struct path_share {
    int32_t first, count, owner;
    size_t unit;
};

/* The parts of a block's ranks come together at the block's holder: up, as sums would. */
static bool path_gather_up(const struct net_shape *shape, const struct path_share *share,
                           int32_t first, int32_t count, struct net_lane *lane)
{
    const int32_t rank = shape->rank, n = shape->rank_count;
    if (count == 1)
        return true;
    const int32_t left = tess__net_split(count);
    const bool right = rank >= first + left;
    const int32_t near = right ? first + left : first, near_count = right ? count - left : left;
    const int32_t far = right ? first : first + left, far_count = count - near_count;
    if (!path_gather_up(shape, share, near, near_count, lane))
        return false;
    const bool holds = path_tree_holder(n, first, count, share->owner) == rank;
    path_move(lane, NET_UP, !holds, path_tree_holder(n, far, far_count, share->owner));
    struct net_move *move = &lane->move[lane->move_count - 1];
    move->at = (size_t)((holds ? far : near) - share->first) * share->unit;
    move->count = (size_t)(holds ? far_count : near_count) * share->unit;
    return holds;
}

/* This rank's part in a shared lane; dealing out is gathering the other way round. */
static void path_share(const struct net_shape *shape, const struct path_share *share, bool deal,
                       struct net_lane *lane)
{
    struct net_move moves[PATH_UP_MAX];
    struct net_lane tree = {.move = moves};

    if (shape->rank < share->first || shape->rank >= share->first + share->count)
        return;
    (void)path_gather_up(shape, share, share->first, share->count, &tree);
    for (int32_t i = 0; i < tree.move_count; i++) {
        struct net_move move = moves[deal ? tree.move_count - 1 - i : i];
        move.kind = deal ? NET_DOWN : NET_UP;
        move.sends = move.sends != deal;
        lane->move[lane->move_count++] = move;
    }
    lane->own_at = (size_t)(shape->rank - share->first) * share->unit;
    lane->own_count = share->unit;
}

/* ---- the rings ------------------------------------------------------------------------------- */

/* Number of the rank at `place` of `host`, both taken round. */
static int32_t path_rank(const struct net_shape *shape, int32_t host, int32_t place)
{
    const int32_t h = (host + shape->hosts) % shape->hosts;

    return h * shape->places + (place + shape->places) % shape->places;
}

/* Within the host from the place behind the owner's on to its own; there over the hosts, from the
 * one behind the owner's. Any order of operands will do. */
static void path_ring_up(const struct net_shape *shape, int32_t owner, struct net_lane *lane)
{
    const int32_t hosts = shape->hosts, places = shape->places;
    const int32_t h = shape->rank / places, p = shape->rank % places;
    const int32_t to_h = owner / places, to_p = owner % places;
    const int32_t first_p = (to_p + 1) % places, first_h = (to_h + 1) % hosts;

    if (p != first_p) /* with one place never */
        path_add(lane, path_rank(shape, h, p - 1), true, (p - 1 + places) % places == first_p);
    if (p != to_p) {
        path_move(lane, NET_UP, true, path_rank(shape, h, p + 1));
        return;
    }
    if (h != first_h)
        path_add(lane, path_rank(shape, h - 1, p), true,
                 places == 1 && (h - 1 + hosts) % hosts == first_h);
    if (h != to_h)
        path_move(lane, NET_UP, true, path_rank(shape, h + 1, p));
}

/* The host after `host`, or before it (by -1), on the way from `owner`: round the ring, or along a
 * chain, first to the nearer end of all, then towards the other, and from that end back to `last`;
 * -1: none. Each host is the last of one lane, so that all send as many. */
static int32_t path_way(int32_t hosts, int32_t owner, bool chain, int32_t host, int32_t by)
{
    if (!chain) {
        const int32_t at = (host - owner + hosts) % hosts + by;
        return at < 0 || at >= hosts ? -1 : (owner + at) % hosts;
    }
    const bool turned = owner * 2 > hosts - 1;
    const int32_t end = hosts - 1, across = (owner + hosts / 2) % hosts;
    const int32_t o = turned ? end - owner : owner, h = turned ? end - host : host;
    const int32_t last = turned ? end - across : across;
    const int32_t at = (h <= o ? o - h : h < last ? h : last + end - h) + by;
    if (at < 0 || at > end)
        return -1;
    const int32_t next = at <= o ? o - at : at < last ? at : last + end - at;
    return turned ? end - next : next;
}

static void path_ring_down(const struct net_shape *shape, int32_t owner, bool chain,
                           struct net_lane *lane)
{
    const int32_t hosts = shape->hosts, places = shape->places;
    const int32_t h = shape->rank / places, p = shape->rank % places;
    const int32_t to_h = owner / places, to_p = owner % places;
    const struct net_ways *ways = shape->ways;
    const int32_t which = ways != NULL ? path_which(shape, owner) : 0;
    const int32_t before =
        ways != NULL ? ways->before[which][h] : path_way(hosts, to_h, chain, h, -1);
    const int32_t after = ways != NULL ? ways->next[which][h] : path_way(hosts, to_h, chain, h, 1);

    if (p != to_p)
        path_move(lane, NET_DOWN, false, path_rank(shape, h, p - 1));
    else if (before >= 0)
        path_move(lane, NET_DOWN, false, path_rank(shape, before, p));
    if (p == to_p && after >= 0)
        path_move(lane, NET_DOWN, true, path_rank(shape, after, p));
    if ((p + 1) % places != to_p)
        path_move(lane, NET_DOWN, true, path_rank(shape, h, p + 1));
}

static void path_ring(const struct net_shape *shape, int32_t owner, bool up, bool down,
                      struct net_lane *lane)
{
    if (up)
        path_ring_up(shape, owner, lane);
    if (down)
        path_ring_down(shape, owner, false, lane);
}

/* ---- plans ----------------------------------------------------------------------------------- */

enum tess_status tess__net_plan_open(int32_t rank_count, struct net_plan *plan_out)
{
    const int32_t shared = rank_count < NET_LANES_MAX ? rank_count : NET_LANES_MAX;
    const int32_t dealt = rank_count < NET_ROUND ? rank_count : NET_ROUND;
    const int32_t lanes = shared > 2 * dealt ? shared : 2 * dealt;
    int32_t levels = 0;

    while (1 << levels < rank_count)
        levels++;
    /* Of a lane: up, down, and together; and that to the root. On rings 6 at most. */
    const int32_t moves = shared * (3 * levels + 2 * PATH_PARTS + 1) + 2 * lanes;

    *plan_out = (struct net_plan){.lane_room = lanes,
                                  .move_room = moves,
                                  .lane = calloc((size_t)lanes, sizeof(*plan_out->lane)),
                                  .move = calloc((size_t)moves, sizeof(*plan_out->move))};
    if (plan_out->lane == NULL || plan_out->move == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the schedules of %d ranks", (int)rank_count);
    return TESS_OK;
}

void tess__net_plan_close(struct net_plan *plan)
{
    free(plan->lane);
    free(plan->move);
    *plan = (struct net_plan){0};
}

/* Where the moves of the next lane go. */
static struct net_lane *path_lane(struct net_plan *plan)
{
    const struct net_lane *last = plan->lane_count > 0 ? &plan->lane[plan->lane_count - 1] : NULL;
    struct net_lane *lane = &plan->lane[plan->lane_count++];

    *lane = (struct net_lane){.name = plan->lane_count - 1,
                              .move = last != NULL ? last->move + last->move_count : plan->move};
    return lane;
}

/* Where lane i of an array begins. */
static size_t path_begin(const struct tess_comm_call *call, const struct net_shape *shape,
                         int32_t i)
{
    const size_t n = (size_t)path_count(shape), at = (size_t)i;

    return call->count / n * at + call->count % n * at / n;
}

/* Where the lane of ranks [first, last) lies in source and target. */
static void path_place(const struct tess_comm_call *call, const struct net_shape *shape,
                       int32_t first, int32_t last, struct net_lane *lane)
{
    const size_t begin = path_begin(call, shape, first);
    const size_t end = path_begin(call, shape, last);
    const bool own = first == shape->rank && last - first == 1;

    switch (call->collective) {
    case TESS_COLLECTIVE_REDUCE_SCATTER:
        lane->length = (size_t)(last - first) * call->count;
        lane->source_at = (size_t)first * call->count;
        lane->target_at = own ? 0 : SIZE_MAX;
        return;
    case TESS_COLLECTIVE_ALL_GATHER:
        lane->length = (size_t)(last - first) * call->count;
        lane->source_at = own ? 0 : SIZE_MAX;
        lane->target_at = (size_t)first * call->count;
        return;
    case TESS_COLLECTIVE_REDUCE:
        lane->length = end - begin;
        lane->source_at = begin;
        lane->target_at = shape->rank == call->peer ? begin : SIZE_MAX;
        return;
    default:
        lane->length = end - begin;
        lane->source_at = lane->target_at = begin;
    }
}

/* To each rank and from each rank by a lane of its own, those at the same distance together. Rounds
 * of ranks may differ: of those that are furthest behind both ends of all messages have begun. */
static void path_all_to_all(const struct net_shape *shape, const struct tess_comm_call *call,
                            int32_t round, struct net_plan *plan)
{
    const int32_t n = shape->rank_count, begin = round * NET_ROUND;
    const size_t count = call->count;

    plan->round_count = (n + NET_ROUND - 1) / NET_ROUND;
    for (int32_t d = begin; d < n && d < begin + NET_ROUND; d++) {
        const int32_t to = (shape->rank + d) % n, from = (shape->rank + n - d) % n;
        struct net_lane *give = path_lane(plan);
        give->name = d;
        give->length = count;
        give->source_at = (size_t)to * count;
        give->target_at = d == 0 ? (size_t)to * count : SIZE_MAX;
        if (d == 0)
            continue;
        path_move(give, NET_DOWN, true, to);
        struct net_lane *take = path_lane(plan);
        take->name = d;
        take->length = count;
        take->source_at = SIZE_MAX;
        take->target_at = (size_t)from * count;
        path_move(take, NET_DOWN, false, from);
    }
}

/* Of a rank's own lane, the longest. */
static size_t path_bytes(int32_t rank_count, const struct tess_comm_call *call)
{
    const bool each = call->collective == TESS_COLLECTIVE_REDUCE_SCATTER ||
                      call->collective == TESS_COLLECTIVE_ALL_GATHER;
    const size_t n = (size_t)rank_count, count = each ? call->count : (call->count + n - 1) / n;

    return count * tess_dtype_bytes(call->dtype);
}

/* How many ranks share a lane: 1, 2, 4, ... */
static int32_t path_width(int32_t rank_count, const struct tess_comm_call *call)
{
    const size_t bytes = path_bytes(rank_count, call);
    const size_t least = rank_count <= NET_FEW ? NET_LANE_FEW : NET_LANE_BYTES;
    int32_t width = 1;

    while (width < rank_count &&
           ((size_t)width * bytes < least || (rank_count + width - 1) / width > NET_LANES_MAX))
        width *= 2;
    return width;
}

static bool path_is_long(int32_t rank_count, const struct tess_comm_call *call)
{
    return path_bytes(rank_count, call) >= NET_LANE_BYTES && path_width(rank_count, call) == 1;
}

/* Long lanes in the fast order go along rings. */
static bool path_is_ring(int32_t rank_count, const struct tess_comm_call *call)
{
    return call->order != TESS_ORDER_CANONICAL && path_is_long(rank_count, call);
}

/* Does the whole of a long lane that was added up along the tree go down a chain of hosts? */
static bool path_is_chain(const struct net_shape *shape, const struct tess_comm_call *call)
{
    return shape->hosts >= PATH_CHAIN_HOSTS && (shape->hosts & (shape->hosts - 1)) != 0 &&
           path_is_long(shape->rank_count, call);
}

/* The lane of ranks [first, last). Owners of neighbouring lanes differ in their last bits, by which
 * lanes are dealt out to ranks. */
static void path_lane_of(const struct net_shape *shape, const struct tess_comm_call *call,
                         int32_t number, int32_t width, struct net_lane *lane)
{
    const int32_t rank = shape->rank, root = call->peer, first = number * width;
    const int32_t count = path_count(shape), last = first + width < count ? first + width : count;
    const enum tess_collective kind = call->collective;
    const bool up = kind != TESS_COLLECTIVE_ALL_GATHER;
    const bool down = kind != TESS_COLLECTIVE_REDUCE && kind != TESS_COLLECTIVE_REDUCE_SCATTER;
    const bool tree = !path_is_ring(shape->rank_count, call), shared = last - first > 1;
    const bool alone = kind == TESS_COLLECTIVE_REDUCE && width >= shape->rank_count;
    const int32_t owner = alone ? root : first + number % width % (last - first);
    const struct path_share share = {first, last - first, owner, call->count};

    if (kind == TESS_COLLECTIVE_ALL_REDUCE && width >= shape->rank_count && shape->hosts > 1 &&
        shape->hosts <= PATH_EXCHANGE_HOSTS && (shape->places & (shape->places - 1)) == 0) {
        path_exchange(shape, lane);
        path_place(call, shape, first, last, lane);
        return;
    }
    if (shared && kind == TESS_COLLECTIVE_ALL_GATHER)
        path_share(shape, &share, false, lane);
    const bool chain = tree && down && path_is_chain(shape, call);
    (tree ? path_tree : path_ring)(shape, owner, up, down && !chain, lane);
    if (chain)
        path_ring_down(shape, owner, true, lane);
    if (shared && kind == TESS_COLLECTIVE_REDUCE_SCATTER)
        path_share(shape, &share, true, lane);
    if (kind == TESS_COLLECTIVE_REDUCE && owner != root && (rank == owner || rank == root))
        path_move(lane, NET_DOWN, rank == owner, rank == owner ? root : owner);
    path_place(call, shape, first, last, lane);
}

/* One lane for each rank, or for some neighbours; the sums of a reduce lie at their owners, from
 * there straight to the root. */
static void path_lanes(const struct net_shape *shape, const struct tess_comm_call *call,
                       struct net_plan *plan)
{
    const int32_t n = shape->rank_count;

    plan->width = path_width(n, call);
    struct net_shape by = *shape;
    by.ways = call->collective == TESS_COLLECTIVE_ALL_REDUCE && path_is_chain(shape, call) &&
                      !path_is_ring(n, call)
                  ? tess__net_ways(shape->hosts, shape->places, shape->rack_hosts)
                  : NULL;
    plan->by_ways = by.ways != NULL;
    for (int32_t l = 0; l * plan->width < path_count(&by); l++)
        path_lane_of(&by, call, l, plan->width, path_lane(plan));
}

static bool path_takes(const struct net_lane *lane)
{
    for (int32_t k = 0; k < lane->move_count; k++)
        if (!lane->move[k].sends)
            return true;
    return false;
}

void tess__net_plan(const struct net_shape *shape, const struct tess_comm_call *call, int32_t round,
                    struct net_plan *plan)
{
    const enum tess_collective kind = call->collective;
    const bool each = kind != TESS_COLLECTIVE_BROADCAST && kind != TESS_COLLECTIVE_ALL_TO_ALL;

    plan->round_count = plan->width = 1;
    plan->lane_count = 0;
    plan->by_ways = false;
    if (kind == TESS_COLLECTIVE_ALL_TO_ALL) {
        path_all_to_all(shape, call, round, plan);
    } else if (each) {
        path_lanes(shape, call, plan);
    } else {
        const bool far = call->count * tess_dtype_bytes(call->dtype) >= PATH_CHAIN_BYTES;
        struct net_lane *lane = path_lane(plan);
        lane->length = call->count;
        (far ? path_ring : path_tree)(shape, call->peer, false, true, lane);
    }
    for (int32_t l = 0; l < plan->lane_count; l++)
        plan->lane[l].copied = plan->lane[l].target_at != SIZE_MAX && !path_takes(&plan->lane[l]);
    const struct net_lane *last = &plan->lane[plan->lane_count - 1];
    plan->move_count = (int32_t)(last->move - plan->move) + last->move_count;
}
