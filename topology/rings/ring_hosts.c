/*
 * Rings over a cluster of any size, unit by unit: a unit is a host, or the hosts that share
 * NVSwitches (a rack of them may be one domain of NVLink).
 *
 * Units follow each other as a walk through the network's switches meets them, depth first: on a
 * tree every link is crossed once in each direction, which is optimal. Inside a unit the
 * way is a ring through its devices and one place more, the network: which devices stand next to
 * the network is found with the rest, exactly up to 15 devices. Several rings are those that the
 * same search finds in a unit at once, each with a way in and out of its own: on hosts with a NIC
 * beside each device these are rails. Every second unit may be passed backwards, so that a ring
 * enters where the one before left it and stays on its rail. Units of one make are searched once.
 */
#include "base/clock.h"
#include "base/hash.h"
#include "tessera/check.h"
#include "topology/rings/ring_net.h"
#include "topology/rings/ring_room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HOSTS_STEPS       200000 /* of the searches of all makes of units together */
#define HOSTS_STEPS_LEAST 500    /* of one */
#define HOSTS_MAKES_MAX   8      /* of units, for several rings */
#define HOSTS_DEVICES_MAX 127    /* of a unit */
#define HOSTS_WORTH       0.02   /* of the total: what may be lost for fewer rings */

/* A way through a unit: devices, and the nodes that receive from and send to the network; all as
 * numbers among the unit's nodes. */
struct hosts_way {
    int32_t *device;
    int32_t entry, exit;
    double gbs;
};

/* Units of one make. */
struct hosts_make {
    int32_t unit, count; /* the first one; its devices */
    uint64_t hash;
    int32_t ways;
    struct hosts_way *way; /* [ways + 2]: rings at once, then the best alone, then by number */
    bool turns;            /* the rings at once may all be passed backwards */
    bool turns_alone;      /* so may the best alone */
    double bound_gbs;      /* no ring that passes here carries more */
    double wide_gbs;       /* nor all rings together */
};

struct hosts {
    struct tess__pool pool;
    const struct tess_topology *topology;
    double deadline_s;
    int32_t units;
    int32_t *unit;              /* [node_count] -1: none */
    int32_t *node_first, *node; /* nodes of unit u: node[node_first[u] .. node_first[u + 1]) */
    int32_t *link_first, *link; /* its links, those to and from the network with them */
    int32_t *place;             /* [node_count] number of a node among its unit's */
    int32_t *device;            /* [node_count] number of a device; -1 */
    bool *has_devices;          /* [units] */
    struct tess__ring_net net;
    double *print, *other; /* what makes a unit up, as numbers */
    struct hosts_make *make;
    int32_t makes;
    int32_t *make_of; /* [units] */
    int32_t *entry, *exit;
    int32_t *by_number; /* [numbered] units with devices, by their first device */
    int32_t numbered;
};

/* ---- units ---------------------------------------------------------------------------------- */

static bool hosts_is_net(const struct hosts *hosts, int32_t node)
{
    return hosts->topology->node[node].kind == TESS_NODE_NET;
}

/* A switch between hosts that are not too many for one unit. */
static bool hosts_is_shared(const struct hosts *hosts, int32_t node)
{
    return hosts->topology->node[node].kind == TESS_NODE_NVSWITCH &&
           hosts->topology->node[node].host < 0;
}

/* What a node is in the forest of units: its host, or for a shared switch host_count + itself. */
static int32_t hosts_tree(const struct hosts *hosts, int32_t node)
{
    if (hosts_is_shared(hosts, node))
        return hosts->topology->host_count + node;
    return hosts_is_net(hosts, node) ? -1 : hosts->topology->node[node].host;
}

/* unit[node]; scratch: [host_count + node_count] each. */
static void hosts_make_units(struct hosts *hosts, int32_t *root, int32_t *devices, int32_t *number)
{
    const struct tess_topology *topology = hosts->topology;
    int32_t all = topology->host_count + topology->node_count;
    for (int32_t i = 0; i < all; i++) {
        root[i] = i;
        devices[i] = 0;
        number[i] = -1;
    }
    for (int32_t i = 0; i < topology->link_count; i++) {
        int32_t from = topology->link[i].from, to = topology->link[i].to;
        int32_t a = hosts_tree(hosts, from), b = hosts_tree(hosts, to);
        if (a < 0 || b < 0 || (!hosts_is_shared(hosts, from) && !hosts_is_shared(hosts, to)))
            continue;
        root[tess__root(root, b)] = tess__root(root, a);
    }
    for (int32_t i = 0; i < topology->device_count; i++)
        devices[tess__root(root, topology->node[topology->device[i]].host)]++;
    /* Too many together: each host alone, and the switch in no unit. */
    for (int32_t n = 0; n < topology->node_count; n++) {
        int32_t tree = hosts_tree(hosts, n);
        bool whole = tree >= 0 && devices[tess__root(root, tree)] <= HOSTS_DEVICES_MAX;
        int32_t self = whole ? tess__root(root, tree) : hosts_is_shared(hosts, n) ? -1 : tree;
        hosts->unit[n] = -1;
        if (self < 0)
            continue;
        if (number[self] < 0)
            number[self] = hosts->units++;
        hosts->unit[n] = number[self];
    }
}

/* Of which unit a link is: its own ends', or that of the end which is not the network. -1: none. */
static int32_t hosts_of_link(const struct hosts *hosts, int32_t link)
{
    const struct tess_topo_link *of = &hosts->topology->link[link];
    int32_t from = hosts->unit[of->from], to = hosts->unit[of->to];
    if (from == to)
        return from;
    return hosts_is_net(hosts, of->to) ? from : hosts_is_net(hosts, of->from) ? to : -1;
}

/* ---- opening -------------------------------------------------------------------------------- */

/* The lists by unit. */
static enum tess_status hosts_sort(struct hosts *hosts)
{
    const struct tess_topology *topology = hosts->topology;
    int32_t *key = tess__pool_array(&hosts->pool, (size_t)topology->link_count, sizeof(*key));
    if (!key)
        return tess__no_memory("the search of rings");
    memset(hosts->device, -1, (size_t)topology->node_count * sizeof(*hosts->device));
    for (int32_t i = 0; i < topology->device_count; i++) {
        hosts->device[topology->device[i]] = i;
        hosts->has_devices[hosts->unit[topology->device[i]]] = true;
    }
    /* Devices outside the list are in no unit. */
    for (int32_t n = 0; n < topology->node_count; n++) {
        if (topology->node[n].kind == TESS_NODE_DEVICE && hosts->device[n] < 0)
            hosts->unit[n] = -1;
    }
    for (int32_t i = 0; i < topology->link_count; i++)
        key[i] = hosts_of_link(hosts, i);
    tess__sort_by_key(topology->link_count, hosts->units, key, hosts->link_first, hosts->link);
    tess__sort_by_key(topology->node_count, hosts->units, hosts->unit, hosts->node_first,
                      hosts->node);
    for (int32_t u = 0; u < hosts->units; u++) {
        for (int32_t k = hosts->node_first[u]; k < hosts->node_first[u + 1]; k++)
            hosts->place[hosts->node[k]] = k - hosts->node_first[u];
    }
    return TESS_OK;
}

/* by_number: units by their first device. */
static void hosts_sort_units(struct hosts *hosts)
{
    for (int32_t u = 0; u < hosts->units; u++)
        hosts->make_of[u] = -1;
    for (int32_t i = 0; i < hosts->topology->device_count; i++) {
        int32_t unit = hosts->unit[hosts->topology->device[i]];
        if (hosts->make_of[unit] < 0)
            hosts->by_number[hosts->numbered++] = unit;
        hosts->make_of[unit] = 0;
    }
}

static enum tess_status hosts_fill(struct hosts *hosts)
{
    const struct tess_topology *topology = hosts->topology;
    size_t nodes = (size_t)topology->node_count, links = (size_t)topology->link_count;
    size_t all = nodes + (size_t)topology->host_count;
    const struct {
        int32_t **list;
        size_t room;
    } wanted[] = {
        {&hosts->unit, nodes},         {&hosts->node_first, all + 2}, {&hosts->node, nodes},
        {&hosts->link_first, all + 2}, {&hosts->link, links},         {&hosts->place, all},
        {&hosts->device, all},         {&hosts->make_of, all},        {&hosts->entry, all},
        {&hosts->exit, all},           {&hosts->by_number, all}};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        *wanted[i].list = tess__pool_array(&hosts->pool, wanted[i].room, sizeof(int32_t));
    hosts->print = tess__pool_array(&hosts->pool, 4 * (nodes + links), sizeof(*hosts->print));
    hosts->other = tess__pool_array(&hosts->pool, 4 * (nodes + links), sizeof(*hosts->other));
    hosts->has_devices = tess__pool_array(&hosts->pool, all, sizeof(*hosts->has_devices));
    if (hosts->pool.failed)
        return tess__no_memory("the search of rings");
    for (int32_t i = 0; i < topology->device_count; i++) {
        const struct tess_node *device = &topology->node[topology->device[i]];
        if (device->host < 0)
            TESS_FAIL(TESS_ERR_DATA, "device '%s' is on no host; expected all to be on one",
                      device->name);
    }
    /* Lists that are filled later serve as scratch. */
    hosts_make_units(hosts, hosts->place, hosts->device, hosts->make_of);
    TESS_TRY(hosts_sort(hosts));
    hosts_sort_units(hosts);
    return tess__ring_net_open(&hosts->net, topology, hosts->unit, hosts->has_devices,
                               hosts->units);
}

/* ---- makes ---------------------------------------------------------------------------------- */

/* All that the way through a unit depends on, as numbers. Returns how many. */
static size_t hosts_print(const struct hosts *hosts, int32_t unit, double *print)
{
    const struct tess_topology *topology = hosts->topology;
    double *at = print;
    int32_t first = -1; /* host */
    for (int32_t k = hosts->node_first[unit]; k < hosts->node_first[unit + 1] && first < 0; k++)
        first = topology->node[hosts->node[k]].host;
    for (int32_t k = hosts->node_first[unit]; k < hosts->node_first[unit + 1]; k++) {
        const struct tess_node *node = &topology->node[hosts->node[k]];
        *at++ = node->kind;
        *at++ = node->kind == TESS_NODE_DEVICE ? node->index : 0; /* by which they are numbered */
        *at++ = node->host < 0 ? -1 : node->host - first;
    }
    for (int32_t k = hosts->link_first[unit]; k < hosts->link_first[unit + 1]; k++) {
        const struct tess_topo_link *link = &topology->link[hosts->link[k]];
        *at++ = link->kind;
        *at++ = hosts_is_net(hosts, link->from) ? -1 : hosts->place[link->from];
        *at++ = hosts_is_net(hosts, link->to) ? -1 : hosts->place[link->to];
        *at++ = link->gbs;
    }
    return (size_t)(at - print);
}

/* make_of[], and the makes without their ways. */
static enum tess_status hosts_find_makes(struct hosts *hosts)
{
    hosts->make = tess__pool_array(&hosts->pool, (size_t)hosts->units, sizeof(*hosts->make));
    if (!hosts->make)
        return tess__no_memory("the search of rings");
    for (int32_t i = 0; i < hosts->net.ordered; i++) {
        int32_t unit = hosts->net.order[i];
        size_t bytes = hosts_print(hosts, unit, hosts->print) * sizeof(*hosts->print);
        uint64_t hash = tess_hash_bytes(hosts->print, bytes);
        int32_t m = 0;
        for (; m < hosts->makes; m++) {
            const struct hosts_make *make = &hosts->make[m];
            if (make->hash == hash &&
                hosts_print(hosts, make->unit, hosts->other) * sizeof(*hosts->other) == bytes &&
                memcmp(hosts->print, hosts->other, bytes) == 0)
                break;
        }
        if (m == hosts->makes)
            hosts->make[hosts->makes++] = (struct hosts_make){.unit = unit, .hash = hash};
        hosts->make_of[unit] = m;
    }
    return TESS_OK;
}

/* The unit alone; the network is one more device of it, the first. */
static enum tess_status hosts_part(const struct hosts *hosts, int32_t unit,
                                   struct tess_topology *part)
{
    const struct tess_topology *topology = hosts->topology;
    int32_t outside = -1;
    for (int32_t k = hosts->node_first[unit]; k < hosts->node_first[unit + 1]; k++)
        TESS_TRY(tess_topology_add_node(part, &topology->node[hosts->node[k]], NULL));
    struct tess_node network = {
        .kind = TESS_NODE_DEVICE, .name = "\tnetwork", .host = -1, .index = -1, .socket = -1};
    TESS_TRY(tess_topology_add_node(part, &network, &outside));
    for (int32_t k = hosts->link_first[unit]; k < hosts->link_first[unit + 1]; k++) {
        struct tess_topo_link link = topology->link[hosts->link[k]];
        link.from = hosts_is_net(hosts, link.from) ? outside : hosts->place[link.from];
        link.to = hosts_is_net(hosts, link.to) ? outside : hosts->place[link.to];
        TESS_TRY(tess_topology_add_link(part, &link));
    }
    return tess_topology_finish(part);
}

/* A ring that begins with the network, as a way through the unit. */
static enum tess_status hosts_take_way(struct hosts *hosts, const struct tess_routes *routes,
                                       const struct tess_ring *ring, struct hosts_way *way)
{
    const struct tess_topology *part = routes->topology;
    const int32_t *order = ring->order;
    int32_t count = routes->device_count;
    const struct tess_route *in = &routes->route[order[1]];
    const struct tess_route *out = &routes->route[order[count - 1] * count];
    way->device = tess__pool_array(&hosts->pool, (size_t)count, sizeof(*way->device));
    if (!way->device)
        return tess__no_memory("the search of rings");
    for (int32_t i = 1; i < count; i++)
        way->device[i - 1] = part->device[order[i]];
    way->gbs = ring->gbs;
    way->entry = in->link_count ? part->link[routes->link[in->first]].to : -1;
    way->exit =
        out->link_count ? part->link[routes->link[out->first + out->link_count - 1]].from : -1;
    return TESS_OK;
}

/* May all [count] rings together be passed in the other direction? */
static bool hosts_may_turn(const struct tess__ring_table *table, const struct tess_ring *ring,
                           int32_t count, double *left)
{
    bool turns = true;
    memcpy(left, table->gbs, (size_t)table->rows * sizeof(*left));
    for (int32_t r = 0; r < count; r++) {
        const int32_t *order = ring[r].order;
        for (int32_t i = 0; i < table->count; i++) {
            int32_t h = order[(i + 1) % table->count] * table->count + order[i];
            turns = turns && table->cost[h] >= 0;
            for (int32_t k = table->first[h]; k < table->first[h + 1]; k++)
                left[table->row[k]] -= ring[r].gbs;
        }
    }
    for (int32_t r = 0; r < table->rows; r++)
        turns = turns && left[r] >= -table->gbs[r] * TESS__RING_NEAR;
    return turns;
}

static enum tess_status hosts_search(struct hosts *hosts, const struct tess_routes *routes,
                                     struct hosts_make *make)
{
    struct tess__ring_effort effort = {.steps = HOSTS_STEPS / hosts->makes,
                                       .deadline_s = hosts->deadline_s};
    struct tess__ring_table table = {0};
    struct tess_rings rings = {0};
    double *left = NULL;
    enum tess_status status = TESS_OK;
    if (effort.steps < HOSTS_STEPS_LEAST)
        effort.steps = HOSTS_STEPS_LEAST;
    int32_t most = hosts->makes <= HOSTS_MAKES_MAX ? TESS_RINGS_MAX : 1;
    TESS_TRY_GOTO(status, done, tess__rings_find(routes, most, &effort, &rings));
    make->way = tess__pool_array(&hosts->pool, (size_t)rings.ring_count + 2, sizeof(*make->way));
    make->ways = make->way ? rings.ring_count : 0;
    make->count = routes->device_count - 1;
    TESS_TRY_GOTO(status, done, make->way ? TESS_OK : tess__no_memory("the search of rings"));
    for (int32_t r = 0; r < rings.ring_count; r++)
        TESS_TRY_GOTO(status, done, hosts_take_way(hosts, routes, &rings.ring[r], &make->way[r]));
    struct hosts_way *alone = &make->way[make->ways];
    TESS_TRY_GOTO(status, done, hosts_take_way(hosts, routes, &rings.best_single, &alone[0]));
    TESS_TRY_GOTO(status, done, hosts_take_way(hosts, routes, &rings.natural, &alone[1]));
    TESS_TRY_GOTO(status, done, tess__ring_table_open(&table, routes));
    left = malloc(((size_t)table.rows + 1) * sizeof(*left));
    TESS_TRY_GOTO(status, done, left ? TESS_OK : tess__no_memory("the search of rings"));
    make->turns = hosts_may_turn(&table, rings.ring, rings.ring_count, left);
    make->turns_alone = hosts_may_turn(&table, &rings.best_single, 1, left);
    /* A ring may pass a unit several times, so that the best way through it once is no bound. */
    make->bound_gbs = tess__ring_single_bound(&table, table.gbs);
    status = tess__ring_cut_bound(routes, &make->wide_gbs);
done:
    free(left);
    tess__ring_table_free(&table);
    tess_rings_free(&rings);
    return status;
}

static enum tess_status hosts_solve(struct hosts *hosts, struct hosts_make *make)
{
    struct tess_topology *part = tess_topology_new();
    struct tess_routes routes = {0};
    if (!part)
        return tess__no_memory("the search of rings");
    enum tess_status status = hosts_part(hosts, make->unit, part);
    if (status == TESS_OK)
        status = tess_routes_open(part, &routes);
    if (status == TESS_OK)
        status = hosts_search(hosts, &routes, make);
    tess_routes_free(&routes);
    tess_topology_free(part);
    return status;
}

/* ---- ways from unit to unit ------------------------------------------------------------------ */

/* The switch at which a node of the unit sends, or receives: over its widest link. -1: none. */
static int32_t hosts_switch(const struct hosts *hosts, int32_t unit, int32_t place, bool sends)
{
    int32_t at = -1;
    double widest = 0;
    for (int32_t k = hosts->link_first[unit]; k < hosts->link_first[unit + 1]; k++) {
        const struct tess_topo_link *link = &hosts->topology->link[hosts->link[k]];
        int32_t inside = sends ? link->from : link->to, net = sends ? link->to : link->from;
        if (hosts_is_net(hosts, net) && !hosts_is_net(hosts, inside) &&
            hosts->place[inside] == place && link->gbs > widest) {
            widest = link->gbs;
            at = net;
        }
    }
    return at;
}

static const struct hosts_way *hosts_way(const struct hosts *hosts, int32_t unit, int32_t number)
{
    const struct hosts_make *make = &hosts->make[hosts->make_of[unit]];
    /* -1: the best alone, -2: by number. */
    return &make->way[number >= 0 ? number : make->ways - 1 - number];
}

/* Is the unit at this place of the order passed backwards? */
static bool hosts_turned(bool turns, int32_t place)
{
    return turns && place % 2 == 1;
}

/* The narrowest of a ring's ways through units, and where it enters and leaves each. */
static double hosts_through(struct hosts *hosts, const int32_t *order, int32_t number, bool turns)
{
    double gbs = INFINITY;
    for (int32_t i = 0; i < hosts->net.ordered; i++) {
        int32_t unit = order[i];
        const struct hosts_way *way = hosts_way(hosts, unit, number);
        bool turned = hosts_turned(turns, i);
        hosts->entry[unit] = hosts_switch(hosts, unit, turned ? way->exit : way->entry, false);
        hosts->exit[unit] = hosts_switch(hosts, unit, turned ? way->entry : way->exit, true);
        gbs = fmin(gbs, way->gbs);
    }
    return gbs;
}

/* Adds the ring's hops between units, from what hosts_through has found; false where one is not
 * known. */
static bool hosts_cross(struct hosts *hosts, const int32_t *order, double gbs, bool spread)
{
    for (int32_t i = 0; i < hosts->net.ordered; i++) {
        int32_t from = order[i], to = order[(i + 1) % hosts->net.ordered];
        if (!tess__ring_net_add(&hosts->net, hosts->exit[from], hosts->entry[to], gbs, spread))
            return false;
    }
    return true;
}

/* The devices of the units in this order. Begins with device 0. */
static void hosts_lay(const struct hosts *hosts, const int32_t *order, int32_t number, bool turns,
                      int32_t *scratch, struct tess_ring *ring)
{
    int32_t count = hosts->topology->device_count, filled = 0, zero = 0;
    for (int32_t i = 0; i < hosts->net.ordered; i++) {
        const struct hosts_way *way = hosts_way(hosts, order[i], number);
        int32_t devices = hosts->make[hosts->make_of[order[i]]].count;
        const int32_t *node = hosts->node + hosts->node_first[order[i]];
        for (int32_t k = 0; k < devices; k++) {
            int32_t at = hosts_turned(turns, i) ? devices - 1 - k : k;
            scratch[filled++] = hosts->device[node[way->device[at]]];
        }
    }
    while (scratch[zero] != 0)
        zero++;
    for (int32_t i = 0; i < count; i++)
        ring->order[i] = scratch[(zero + i) % count];
}

/* One ring of the units in this order, the best alone (-1) or by number (-2), in `ring` unless what
 * is there is as fast. */
static void hosts_single(struct hosts *hosts, const int32_t *order, int32_t number, bool turns,
                         int32_t *scratch, struct tess_ring *ring)
{
    double through = hosts_through(hosts, order, number, turns);
    bool known = hosts_cross(hosts, order, 1, false);
    double share = tess__ring_net_share(&hosts->net), gbs = known ? fmin(through, share) : 0;
    if (ring->gbs > 0 && gbs <= ring->gbs * (1 + TESS__RING_NEAR))
        return;
    ring->gbs = gbs;
    hosts_lay(hosts, order, number, turns, scratch, ring);
}

/* What rings at once carry; gbs[] of each. 0 where a hop is not known. */
static double hosts_together(struct hosts *hosts, int32_t rings, bool turns, double *gbs)
{
    double total = 0;
    bool known = true;
    for (int32_t r = 0; r < rings && known; r++) {
        gbs[r] = hosts_through(hosts, hosts->net.order, r, turns);
        known = hosts_cross(hosts, hosts->net.order, gbs[r], true);
    }
    double share = fmin(tess__ring_net_share(&hosts->net), 1);
    for (int32_t r = 0; r < rings && known; r++) {
        gbs[r] *= share;
        total += gbs[r];
    }
    return total;
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* By number, where the devices of a unit follow each other so. */
static void hosts_natural(struct hosts *hosts, int32_t *scratch, struct tess_ring *ring)
{
    hosts_single(hosts, hosts->by_number, -2, false, scratch, ring);
    for (int32_t i = 0; i < hosts->topology->device_count; i++) {
        if (ring->order[i] != i)
            ring->gbs = 0;
        ring->order[i] = i;
    }
}

/* Where the network carries less than the hosts, fewer rings fill it as well: the fewest that carry
 * nearly `total`, with their gbs[]. */
static int32_t hosts_fewest(struct hosts *hosts, int32_t count, bool turns, double total,
                            double *gbs)
{
    double fewer[TESS_RINGS_MAX];
    int32_t low = 1, high = count;
    while (low < high) {
        int32_t rings = (low + high) / 2;
        if (hosts_together(hosts, rings, turns, fewer) < total * (1 - HOSTS_WORTH)) {
            low = rings + 1;
            continue;
        }
        memcpy(gbs, fewer, (size_t)rings * sizeof(*gbs));
        high = rings;
    }
    return high;
}

/* Several rings, where they carry more than the best one. */
static enum tess_status hosts_find_rings(struct hosts *hosts, int32_t most, int32_t *scratch,
                                         struct tess_rings *rings)
{
    double gbs[2][TESS_RINGS_MAX];
    double total[2] = {0};
    int32_t count = most;
    bool may_turn = true;
    for (int32_t m = 0; m < hosts->makes; m++) {
        count = hosts->make[m].ways < count ? hosts->make[m].ways : count;
        may_turn = may_turn && hosts->make[m].turns;
    }
    total[0] = hosts_together(hosts, count, false, gbs[0]);
    if (may_turn)
        total[1] = hosts_together(hosts, count, true, gbs[1]);
    bool turns = total[1] > total[0] * (1 + TESS__RING_NEAR);
    if (total[turns] <= rings->best_single.gbs * (1 + TESS__RING_NEAR))
        count = 0;
    else
        count = hosts_fewest(hosts, count, turns, total[turns], gbs[turns]);
    for (int32_t r = 0; r < (count > 0 ? count : 1); r++) {
        struct tess_ring *ring = &rings->ring[r];
        ring->order = malloc((size_t)rings->count * sizeof(*ring->order));
        if (!ring->order)
            return tess__no_memory("the search of rings");
        rings->ring_count++;
        ring->gbs = count > 0 ? gbs[turns][r] : rings->best_single.gbs;
        if (count > 0)
            hosts_lay(hosts, hosts->net.order, r, turns, scratch, ring);
        else
            memcpy(ring->order, rings->best_single.order,
                   (size_t)rings->count * sizeof(*ring->order));
        rings->total_gbs += ring->gbs;
    }
    return TESS_OK;
}

static enum tess_status hosts_find(struct hosts *hosts, int32_t most, int32_t *scratch,
                                   struct tess_rings *rings)
{
    size_t bytes = (size_t)rings->count * sizeof(int32_t);
    TESS_TRY(tess__ring_net_walk(&hosts->net));
    TESS_TRY(hosts_find_makes(hosts));
    for (int32_t m = 0; m < hosts->makes; m++) {
        TESS_TRY(hosts_solve(hosts, &hosts->make[m]));
        rings->single_bound_gbs = fmin(rings->single_bound_gbs, hosts->make[m].bound_gbs);
        rings->bound_gbs = fmin(rings->bound_gbs, hosts->make[m].wide_gbs);
    }
    TESS_TRY(tess__ring_net_bound(&hosts->net, &rings->single_bound_gbs, &rings->bound_gbs));
    bool may_turn = true;
    for (int32_t m = 0; m < hosts->makes; m++)
        may_turn = may_turn && hosts->make[m].turns_alone;
    hosts_single(hosts, hosts->net.order, -1, false, scratch, &rings->best_single);
    if (may_turn)
        hosts_single(hosts, hosts->net.order, -1, true, scratch, &rings->best_single);
    hosts_natural(hosts, scratch, &rings->natural);
    if (rings->natural.gbs >= rings->best_single.gbs) {
        memcpy(rings->best_single.order, rings->natural.order, bytes);
        rings->best_single.gbs = rings->natural.gbs;
    }
    TESS_TRY(hosts_find_rings(hosts, most, scratch, rings));
    rings->single_bound_gbs = fmin(rings->single_bound_gbs, rings->bound_gbs);
    rings->optimal = rings->best_single.gbs >= rings->single_bound_gbs * (1 - TESS__RING_NEAR);
    return TESS_OK;
}

/* All devices in one unit: there is no network to pass. */
static enum tess_status hosts_find_one(const struct hosts *hosts, int32_t most,
                                       struct tess_rings *rings)
{
    struct tess__ring_effort effort = {.steps = HOSTS_STEPS, .deadline_s = hosts->deadline_s};
    struct tess_routes routes;
    tess_rings_free(rings);
    TESS_TRY(tess_routes_open(hosts->topology, &routes));
    enum tess_status status = tess__rings_find(&routes, most, &effort, rings);
    tess_routes_free(&routes);
    return status;
}

bool tess__rings_are_hosts(const struct tess_topology *topology)
{
    int32_t hosts = topology->host_count, first = -1;
    bool several = false, linked = true;
    uint8_t *on =
        calloc((size_t)hosts + 1, sizeof(*on)); /* 1: sends into the network, 2: receives */
    for (int32_t i = 0; i < topology->link_count && on; i++) {
        const struct tess_node *from = &topology->node[topology->link[i].from];
        const struct tess_node *to = &topology->node[topology->link[i].to];
        if (from->kind == TESS_NODE_NET && to->kind != TESS_NODE_NET && to->host >= 0)
            on[to->host] |= 2;
        if (to->kind == TESS_NODE_NET && from->kind != TESS_NODE_NET && from->host >= 0)
            on[from->host] |= 1;
    }
    for (int32_t i = 0; i < topology->device_count && on; i++) {
        int32_t host = topology->node[topology->device[i]].host;
        linked = linked && host >= 0 && on[host] == 3;
        first = i == 0 ? host : first;
        several = several || host != first;
    }
    several = several && linked && on;
    free(on);
    return several;
}

enum tess_status tess__rings_find_hosts(const struct tess_topology *topology, int32_t most,
                                        double deadline_s, struct tess_rings *rings_out)
{
    size_t bytes = (size_t)topology->device_count * sizeof(int32_t);
    *rings_out = (struct tess_rings){
        .count = topology->device_count, .single_bound_gbs = INFINITY, .bound_gbs = INFINITY};
    struct hosts hosts = {.topology = topology, .deadline_s = deadline_s};
    int32_t *scratch = tess__pool_array(&hosts.pool, (size_t)rings_out->count, sizeof(*scratch));
    rings_out->best_single.order = malloc(bytes);
    rings_out->natural.order = malloc(bytes);
    enum tess_status status = TESS_OK;
    if (!scratch || !rings_out->best_single.order || !rings_out->natural.order)
        status = tess__no_memory("the search of rings");
    if (status == TESS_OK)
        status = hosts_fill(&hosts);
    if (status == TESS_OK)
        status = hosts.numbered == 1 ? hosts_find_one(&hosts, most, rings_out)
                                     : hosts_find(&hosts, most, scratch, rings_out);
    tess__ring_net_close(&hosts.net);
    tess__pool_release(&hosts.pool);
    if (status != TESS_OK)
        tess_rings_free(rings_out);
    return status;
}

enum tess_status tess_rings_find_hosts(const struct tess_topology *topology, double time_limit_s,
                                       struct tess_rings *rings_out)
{
    double deadline_s = time_limit_s > 0 ? tess_clock_s() + time_limit_s : 0;
    return tess__rings_find_hosts(topology, TESS_RINGS_MAX, deadline_s, rings_out);
}
