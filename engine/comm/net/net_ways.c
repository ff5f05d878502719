/* The search of net_ways.h: prices, the cheapest tree for a lane, the cheapest chain behind it. */
#include "comm/net/net_ways.h"

#include "comm/net/net_path.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define WAYS_PASSES 400     /* of up to 15 hosts; of more as many as take the same time, */
#define WAYS_TIME   1600000 /* which grows with the third power of the hosts */
#define WAYS_AFRESH 64      /* passes after which links that were full are so no more */
#define WAYS_ROOTS  4       /* the cheapest trees, whose chains are looked at */
#define WAYS_PARTS  4       /* a left block comes as a whole, in 2 or in 4 parts */
#define WAYS_RUN    12      /* hosts that change their place in a chain together */
#define WAYS_CUTS   12      /* sizes of equal racks: divisors of up to 48 */

/* Of the links of hosts, or of racks: the lanes that they carry, and how often that was most. */
struct ways_load {
    uint64_t lanes[2][NET_WAYS_HOSTS], full[2][NET_WAYS_HOSTS]; /* [0]: out, [1]: in */
};

struct ways_search {
    struct net_ways ways; /* so far */
    int32_t hosts, cuts;
    uint64_t ring, most, fullest;  /* lanes on a link: in a ring; wanted; now on that with most */
    int32_t judged, priced;        /* the first cuts, as racks may be; as prices take them */
    int32_t rack_hosts[WAYS_CUTS]; /* of a rack; [0]: 1, a host by itself */
    struct ways_load load[WAYS_CUTS]; /* by rack of the cut */
    /* From one host to another: all that it costs; of it what is not the two hosts' own. */
    uint64_t cost[NET_WAYS_HOSTS][NET_WAYS_HOSTS], far[NET_WAYS_HOSTS][NET_WAYS_HOSTS];
    /* [block][host]: to add it up there; in how many parts the left one comes. */
    uint64_t up[NET_WAYS_HOSTS][NET_WAYS_HOSTS];
    int8_t parts[NET_WAYS_HOSTS][NET_WAYS_HOSTS];
};

int32_t tess__net_split(int32_t count)
{
    int32_t power = 1;

    while (power * 2 < count)
        power *= 2;
    return power;
}

static uint64_t ways_link(const struct ways_load *load, int way, int32_t which)
{
    const uint64_t lanes = load->lanes[way][which] + load->full[way][which] + 1;

    return lanes * lanes * lanes * lanes * lanes * lanes;
}

static void ways_price(struct ways_search *search)
{
    const int32_t n = search->hosts;
    uint64_t out[NET_WAYS_HOSTS], in[NET_WAYS_HOSTS];

    memset(search->far, 0, sizeof(search->far));
    for (int32_t cut = search->priced; cut-- > 0;) {
        const int32_t size = search->rack_hosts[cut];
        for (int32_t rack = 0; rack < n / size; rack++) {
            out[rack] = ways_link(&search->load[cut], 0, rack);
            in[rack] = ways_link(&search->load[cut], 1, rack);
        }
        for (int32_t a = 0; a < n; a++)
            for (int32_t b = 0; b < n; b++) {
                const int32_t from = a / size, to = b / size;
                if (cut == 0)
                    search->cost[a][b] = search->far[a][b] + out[a] + in[b];
                else if (from != to)
                    search->far[a][b] += out[from] + in[to];
            }
    }
}

/* ---- up -------------------------------------------------------------------------------------- */

static uint64_t ways_up(const struct ways_search *search, int32_t first, int32_t count, int32_t at)
{
    return count == 1 ? 0 : search->up[first + tess__net_split(count)][at];
}

/* To add up a block anywhere and bring it to `host`; *from_out: where. */
static uint64_t ways_bring(const struct ways_search *search, int32_t first, int32_t count,
                           int32_t host, int32_t *from_out)
{
    uint64_t least = UINT64_MAX;

    for (int32_t from = first; from < first + count; from++) {
        const uint64_t cost = ways_up(search, first, count, from) + search->cost[from][host];
        if (cost < least) {
            least = cost;
            *from_out = from;
        }
    }
    return least;
}

static void ways_tree(struct ways_search *search, int32_t first, int32_t count)
{
    if (count == 1)
        return;
    const int32_t left = tess__net_split(count), right = count - left, block = first + left;
    int32_t from;
    ways_tree(search, first, left);
    ways_tree(search, block, right);
    for (int32_t at = first; at < block; at++) {
        search->up[block][at] =
            ways_up(search, first, left, at) + ways_bring(search, block, right, at, &from);
        search->parts[block][at] = 1;
    }
    for (int32_t at = block; at < block + right; at++) {
        search->up[block][at] = UINT64_MAX;
        for (int32_t parts = 1;
             parts <= WAYS_PARTS && parts <= left && (parts == 1 || right < left); parts *= 2) {
            uint64_t cost = ways_up(search, block, right, at);
            for (int32_t i = 0; i < parts; i++)
                cost += ways_bring(search, first + i * (left / parts), left / parts, at, &from);
            if (cost < search->up[block][at]) {
                search->up[block][at] = cost;
                search->parts[block][at] = (int8_t)parts;
            }
        }
    }
}

/* ---- down ------------------------------------------------------------------------------------ */

/* From `root` through all hosts, each time to the cheapest, and of these the nearest. */
static uint64_t ways_chain(const struct ways_search *search, int32_t root, int8_t *next)
{
    bool had[NET_WAYS_HOSTS] = {false};
    uint64_t cost = 0;
    int32_t at = root;

    memset(next, -1, NET_WAYS_HOSTS);
    for (int32_t left = search->hosts - 1; left > 0; left--) {
        const uint64_t *far = search->far[at];
        int32_t to = -1;
        had[at] = true;
        for (int32_t host = 0; host < search->hosts; host++)
            if (!had[host] && (to < 0 || far[host] < far[to] ||
                               (far[host] == far[to] && abs(host - at) < abs(to - at))))
                to = host;
        cost += search->cost[at][to];
        next[at] = (int8_t)to;
        at = to;
    }
    return cost;
}

/* Hosts `first` to `last` of a chain, behind `before`, come to where they cost least. False: that
 * is where they are. */
static bool ways_move(const struct ways_search *search, int32_t root, int32_t before, int32_t last,
                      int8_t *next)
{
    const int32_t first = next[before], after = next[last];
    const uint64_t *out = search->cost[last];
    const uint64_t closed = after >= 0 ? search->cost[before][after] : 0;
    const uint64_t now = search->cost[before][first] + (after >= 0 ? out[after] : 0);
    uint64_t most = 0;
    int32_t best = -1;

    for (int32_t at = root; at >= 0; at = at == before ? after : next[at]) {
        const int32_t to = next[at];
        if (at == before)
            continue;
        const uint64_t then = closed + search->cost[at][first] + (to >= 0 ? out[to] : 0);
        const uint64_t old = now + (to >= 0 ? search->cost[at][to] : 0);
        if (old > then && old - then > most) {
            most = old - then;
            best = at;
        }
    }
    if (best < 0)
        return false;
    next[before] = (int8_t)after;
    next[last] = next[best];
    next[best] = (int8_t)first;
    return true;
}

/* Move runs of hosts to other places of the chain as long as that makes it cheaper. */
static void ways_improve(const struct ways_search *search, int32_t root, int8_t *next)
{
    int32_t before = root;

    for (int32_t still = 0; still < search->hosts; still++) {
        int32_t last = next[before];
        for (int32_t length = 0; length < WAYS_RUN && last >= 0; length++) {
            if (ways_move(search, root, before, last, next)) {
                still = -1;
                break;
            }
            last = next[last];
        }
        before = next[before] >= 0 ? next[before] : root;
    }
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static void ways_carry(struct ways_search *search, int32_t from, int32_t to, uint64_t lanes)
{
    for (int32_t cut = 0; cut < search->cuts; cut++) {
        const int32_t size = search->rack_hosts[cut];
        if (from / size == to / size)
            continue;
        search->load[cut].lanes[0][from / size] += lanes;
        search->load[cut].lanes[1][to / size] += lanes;
    }
}

static int32_t ways_holder(const struct net_ways *ways, int32_t lane, int32_t first, int32_t count)
{
    return count == 1 ? first : ways->holder[lane][first + tess__net_split(count)];
}

/* What the lane's tree puts on links, or takes off them. */
static void ways_carry_tree(struct ways_search *search, int32_t lane, int32_t first, int32_t count,
                            uint64_t lanes)
{
    if (count == 1)
        return;
    const struct net_ways *ways = &search->ways;
    const int32_t left = tess__net_split(count), block = first + left,
                  to = ways->holder[lane][block];
    const int32_t parts = ways->parts[lane][block], part = left / parts;
    ways_carry_tree(search, lane, block, count - left, lanes);
    if (to < block)
        ways_carry(search, ways_holder(ways, lane, block, count - left), to, lanes);
    for (int32_t at = first; at < block; at += part) {
        ways_carry_tree(search, lane, at, part, lanes);
        if (to >= block)
            ways_carry(search, ways_holder(ways, lane, at, part), to, lanes);
    }
}

static void ways_carry_lane(struct ways_search *search, int32_t lane, uint64_t lanes)
{
    const struct net_ways *ways = &search->ways;

    ways_carry_tree(search, lane, 0, search->hosts, lanes);
    for (int32_t host = 0; host < search->hosts; host++)
        if (ways->next[lane][host] >= 0)
            ways_carry(search, host, ways->next[lane][host], lanes);
}

/* Of the trees that were searched, that in which the block comes to `holder`. */
static void ways_take_tree(struct ways_search *search, int32_t lane, int32_t first, int32_t count,
                           int32_t holder)
{
    if (count == 1)
        return;
    const int32_t left = tess__net_split(count), block = first + left;
    const int32_t parts = search->parts[block][holder], part = left / parts;
    int32_t from = holder;
    search->ways.holder[lane][block] = (int8_t)holder;
    search->ways.parts[lane][block] = (int8_t)parts;
    if (holder < block)
        (void)ways_bring(search, block, count - left, holder, &from);
    ways_take_tree(search, lane, block, count - left, from);
    for (int32_t at = first; at < block; at += part) {
        from = holder;
        if (holder >= block)
            (void)ways_bring(search, at, part, holder, &from);
        ways_take_tree(search, lane, at, part, from);
    }
}

static void ways_take(struct ways_search *search, int32_t lane)
{
    const int32_t n = search->hosts;
    const uint64_t *up = search->up[tess__net_split(n)];
    uint64_t least = UINT64_MAX;
    bool tried[NET_WAYS_HOSTS] = {false};

    ways_price(search);
    ways_tree(search, 0, n);
    for (int32_t k = 0; k < WAYS_ROOTS && k < n; k++) {
        int8_t next[NET_WAYS_HOSTS];
        int32_t root = -1;
        for (int32_t host = 0; host < n; host++)
            if (!tried[host] && (root < 0 || up[host] < up[root]))
                root = host;
        tried[root] = true;
        const uint64_t cost = up[root] + ways_chain(search, root, next);
        if (cost >= least)
            continue;
        least = cost;
        search->ways.root[lane] = (int8_t)root;
        memcpy(search->ways.next[lane], next, sizeof(next));
    }
    ways_improve(search, search->ways.root[lane], search->ways.next[lane]);
    ways_take_tree(search, lane, 0, n, search->ways.root[lane]);
}

/*
 * How far the fullest link of each cut is from what is wanted: the farther, the more another lane
 * counts, but a cut of which no way takes as little must not spoil the others either; hosts'
 * own links count more. Those links get dearer for the passes to come. Of ways that are equal in
 * this, those whose fullest links carry less are better, of large racks above all.
 */
static uint64_t ways_excess(struct ways_search *search)
{
    uint64_t excess = 0;

    search->fullest = 0;
    for (int32_t cut = 0; cut < search->judged; cut++) {
        struct ways_load *load = &search->load[cut];
        const int32_t racks = search->hosts / search->rack_hosts[cut];
        uint64_t fullest = 0;
        for (int32_t rack = 0; rack < racks; rack++)
            for (int way = 0; way < 2; way++)
                fullest = load->lanes[way][rack] > fullest ? load->lanes[way][rack] : fullest;
        const uint64_t over = fullest > search->most ? fullest - search->most : 0;
        search->fullest = fullest > search->fullest ? fullest : search->fullest;
        excess += over * (over + 12) * (cut == 0 ? 4096 : 1024);
        excess += fullest * (uint64_t)search->rack_hosts[cut];
        for (int32_t rack = 0; rack < racks; rack++)
            for (int way = 0; way < 2; way++)
                if (over > 0 && load->lanes[way][rack] == fullest &&
                    load->full[way][rack] < search->ring)
                    load->full[way][rack]++;
    }
    return excess;
}

/* The best of some passes. False: a link carries more than 1.1 times what it does in a ring. */
static bool ways_find(struct net_ways *ways, int32_t hosts, int32_t rack_hosts, int32_t lanes)
{
    static struct ways_search search; /* tess__net_ways lets one in */
    const int32_t limit = WAYS_TIME / (hosts * hosts * lanes);
    const int32_t passes = limit < WAYS_PASSES ? limit : WAYS_PASSES;
    const uint64_t ring = 2 * (uint64_t)(hosts - 1) * (uint64_t)(lanes / hosts);
    uint64_t least = UINT64_MAX, fullest = 0;

    search = (struct ways_search){.ways.lanes = lanes, .hosts = hosts, .ring = ring};
    search.most = ring * (lanes > hosts ? 22 : 21) / 20;
    search.rack_hosts[search.cuts++] = 1;
    if (rack_hosts > 1 && rack_hosts < hosts)
        search.rack_hosts[search.cuts++] = rack_hosts;
    const int32_t known = search.cuts;
    for (int32_t size = 2; size < hosts; size++)
        if (hosts % size == 0 && size != rack_hosts)
            search.rack_hosts[search.cuts++] = size;
    search.judged = rack_hosts > 0 ? known : search.cuts;
    for (int pass = 0; pass < passes; pass++) {
        /* Racks that are not there lead out of ways that get no better. */
        search.priced = pass / WAYS_AFRESH % 2 == 0 ? search.judged : search.cuts;
        for (int32_t lane = 0; lane < lanes; lane++) {
            if (pass > 0)
                ways_carry_lane(&search, lane, UINT64_MAX); /* less one */
            ways_take(&search, lane);
            ways_carry_lane(&search, lane, 1);
        }
        const uint64_t excess = ways_excess(&search);
        if (excess < least) {
            least = excess;
            fullest = search.fullest;
            *ways = search.ways;
        }
        for (int32_t cut = 0; cut < search.cuts && pass % WAYS_AFRESH == WAYS_AFRESH - 1; cut++)
            memset(search.load[cut].full, 0, sizeof(search.load[cut].full));
    }
    memset(ways->before, -1, sizeof(ways->before));
    for (int32_t lane = 0; lane < lanes; lane++)
        for (int8_t host = ways->root[lane], next; host >= 0; host = next) {
            next = ways->next[lane][host];
            if (next >= 0)
                ways->before[lane][next] = host;
        }
    return fullest * 10 <= ring * 11;
}

const struct net_ways *tess__net_ways(int32_t hosts, int32_t places, int32_t rack_hosts)
{
    /* [hosts][divisors of it up to a rack's hosts]; pages never asked for are no memory. */
    static struct net_ways found[NET_WAYS_HOSTS + 1][WAYS_CUTS];
    static atomic_bool is_found[NET_WAYS_HOSTS + 1][WAYS_CUTS];
    static struct net_ways halves;
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

    if (hosts > NET_WAYS_HOSTS || (places & (places - 1)) != 0)
        return NULL;
    int32_t cut = 0;
    for (int32_t size = 1; size <= rack_hosts; size++)
        cut += hosts % size == 0;
    if (!atomic_load_explicit(&is_found[hosts][cut], memory_order_acquire)) {
        pthread_mutex_lock(&mutex);
        if (!atomic_load_explicit(&is_found[hosts][cut], memory_order_relaxed) &&
            !ways_find(&found[hosts][cut], hosts, rack_hosts, hosts) && rack_hosts > 0 &&
            2 * hosts <= NET_WAYS_HOSTS && ways_find(&halves, hosts, rack_hosts, 2 * hosts))
            found[hosts][cut] = halves;
        atomic_store_explicit(&is_found[hosts][cut], true, memory_order_release);
        pthread_mutex_unlock(&mutex);
    }
    return &found[hosts][cut];
}
