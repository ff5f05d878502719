/*
 * One ring over a cluster of any size, host by host.
 *
 * Hosts follow each other as a walk through the network's switches meets them, depth first: on a
 * tree every link is crossed once in each direction, which no ring on a tree can better. Inside a
 * host the way is a ring through its devices and one place more, the network: which devices stand
 * next to the network is found with the rest, exactly up to 15 devices. Hosts of one make are
 * searched once.
 */
#include "tessera/check.h"
#include "topology/ring_room.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HOSTS_STEPS       200000    /* of the search of one host */
#define HOSTS_VISITS_MAX  400000000 /* links looked at on ways through the network */
#define HOSTS_DEVICES_MAX 127

/* A host's way: devices, and the nodes that send to and receive from the network; all as numbers
 * among the host's nodes. */
struct hosts_way {
    int32_t device[HOSTS_DEVICES_MAX];
    int32_t exit, entry;
    double gbs;
};

struct hosts_solved {
    int32_t count; /* devices */
    struct hosts_way best, natural;
    double bound_gbs; /* no ring that passes here carries more */
    double wide_gbs;  /* nor all rings together */
};

struct hosts {
    const struct tess_topology *topology;
    int32_t *node_first, *node; /* nodes of host h: node[node_first[h] .. node_first[h + 1]) */
    int32_t *link_first, *link; /* links of host h, those to and from the network with them */
    int32_t *place;             /* [node_count] number of a node among its host's */
    int32_t *device;            /* [node_count] number of a device; -1 */
    int32_t *order;             /* [host_count] hosts as the walk meets them */
    int32_t ordered;
    /* The network: links that leave node n, by number. */
    int32_t *out_first, *out;
    int32_t *came, *queue, *uses, *mark; /* [node_count], uses [link_count] */
    int32_t epoch;
    int64_t visits;
    /* Host after host. */
    int32_t *exit, *entry; /* [host_count] network nodes */
    double *print, *other; /* of the host at hand and of the one solved before: what makes it up */
    size_t printed, other_printed;
    struct hosts_solved solved;
};

/* ---- lists ---------------------------------------------------------------------------------- */

static bool hosts_is_net(const struct hosts *hosts, int32_t node)
{
    return hosts->topology->node[node].kind == TESS_NODE_NET;
}

/* Of which host a link is: its own ends', or that of the end which is not the network. -1: none. */
static int32_t hosts_of_link(const struct hosts *hosts, int32_t link)
{
    const struct tess_topo_link *of = &hosts->topology->link[link];
    int32_t from = hosts_is_net(hosts, of->from) ? -1 : hosts->topology->node[of->from].host;
    int32_t to = hosts_is_net(hosts, of->to) ? -1 : hosts->topology->node[of->to].host;
    if (from == to)
        return from;
    bool to_net = hosts_is_net(hosts, of->to), from_net = hosts_is_net(hosts, of->from);
    return to_net && from >= 0 ? from : from_net && to >= 0 ? to : -1;
}

static int32_t hosts_of_node(const struct hosts *hosts, int32_t node)
{
    return hosts_is_net(hosts, node) ? -1 : hosts->topology->node[node].host;
}

static int32_t hosts_from_node(const struct hosts *hosts, int32_t link)
{
    return hosts->topology->link[link].from;
}

/* Items by key, in their order: list[first[key] .. first[key + 1]). Key -1: left out. */
static void hosts_sort(const struct hosts *hosts, int32_t items, int32_t keys,
                       int32_t (*key_of)(const struct hosts *hosts, int32_t item), int32_t *first,
                       int32_t *list)
{
    memset(first, 0, ((size_t)keys + 2) * sizeof *first);
    for (int32_t i = 0; i < items; i++)
        first[key_of(hosts, i) + 2] += key_of(hosts, i) >= 0;
    for (int32_t k = 0; k < keys; k++)
        first[k + 2] += first[k + 1];
    for (int32_t i = 0; i < items; i++) {
        if (key_of(hosts, i) >= 0)
            list[first[key_of(hosts, i) + 1]++] = i;
    }
}

static void hosts_close(struct hosts *hosts)
{
    int32_t *list[] = {hosts->node_first, hosts->node,   hosts->link_first, hosts->link,
                       hosts->place,      hosts->device, hosts->order,      hosts->out_first,
                       hosts->out,        hosts->came,   hosts->queue,      hosts->uses,
                       hosts->mark,       hosts->exit,   hosts->entry};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        free(list[i]);
    free(hosts->print);
    free(hosts->other);
    free(hosts);
}

static struct hosts *hosts_open(const struct tess_topology *topology)
{
    size_t nodes = (size_t)topology->node_count, links = (size_t)topology->link_count;
    size_t count = (size_t)topology->host_count;
    struct hosts *hosts = calloc(1, sizeof *hosts);
    if (!hosts)
        return NULL;
    hosts->topology = topology;
    const struct {
        int32_t **list;
        size_t room;
    } wanted[] = {{&hosts->node_first, count + 2},
                  {&hosts->node, nodes},
                  {&hosts->link_first, count + 2},
                  {&hosts->link, links},
                  {&hosts->place, nodes},
                  {&hosts->device, nodes},
                  {&hosts->order, count},
                  {&hosts->out_first, nodes + 2},
                  {&hosts->out, links},
                  {&hosts->came, nodes},
                  {&hosts->queue, nodes},
                  {&hosts->uses, links},
                  {&hosts->mark, nodes},
                  {&hosts->exit, count},
                  {&hosts->entry, count}};
    bool whole = true;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        *wanted[i].list = calloc(wanted[i].room + 1, sizeof(int32_t));
        whole = whole && *wanted[i].list;
    }
    hosts->print = malloc((6 * nodes + 5 * links + 1) * sizeof *hosts->print);
    hosts->other = malloc((6 * nodes + 5 * links + 1) * sizeof *hosts->other);
    if (!whole || !hosts->print || !hosts->other) {
        hosts_close(hosts);
        return NULL;
    }
    hosts_sort(hosts, topology->node_count, topology->host_count, hosts_of_node, hosts->node_first,
               hosts->node);
    hosts_sort(hosts, topology->link_count, topology->host_count, hosts_of_link, hosts->link_first,
               hosts->link);
    hosts_sort(hosts, topology->link_count, topology->node_count, hosts_from_node, hosts->out_first,
               hosts->out);
    memset(hosts->device, -1, nodes * sizeof *hosts->device);
    for (int32_t i = 0; i < topology->device_count; i++)
        hosts->device[topology->device[i]] = i;
    for (int32_t h = 0; h < topology->host_count; h++) {
        for (int32_t k = hosts->node_first[h]; k < hosts->node_first[h + 1]; k++)
            hosts->place[hosts->node[k]] = k - hosts->node_first[h];
    }
    return hosts;
}

/* ---- the order of hosts ---------------------------------------------------------------------- */

static bool hosts_has_devices(const struct hosts *hosts, int32_t host)
{
    for (int32_t k = hosts->node_first[host]; k < hosts->node_first[host + 1]; k++) {
        if (hosts->device[hosts->node[k]] >= 0)
            return true;
    }
    return false;
}

/* Hosts and switches at a switch as its links come, depth first. */
static enum tess_status hosts_walk(struct hosts *hosts)
{
    const struct tess_topology *topology = hosts->topology;
    bool *met = calloc((size_t)topology->host_count + 1, sizeof *met);
    int32_t *at = hosts->came; /* the next link of a switch on the stack */
    if (!met)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the order of hosts");
    for (int32_t root = 0; root < topology->node_count; root++) {
        int32_t depth = 0;
        if (!hosts_is_net(hosts, root) || hosts->mark[root])
            continue;
        hosts->mark[root] = 1;
        at[root] = hosts->out_first[root];
        hosts->queue[depth++] = root;
        while (depth > 0) {
            int32_t net = hosts->queue[depth - 1];
            if (at[net] == hosts->out_first[net + 1]) {
                depth--;
                continue;
            }
            int32_t to = topology->link[hosts->out[at[net]++]].to;
            int32_t host = hosts_of_node(hosts, to);
            if (hosts_is_net(hosts, to) && !hosts->mark[to]) {
                hosts->mark[to] = 1;
                at[to] = hosts->out_first[to];
                hosts->queue[depth++] = to;
            } else if (host >= 0 && !met[host]) {
                met[host] = true;
                if (hosts_has_devices(hosts, host))
                    hosts->order[hosts->ordered++] = host;
            }
        }
    }
    int32_t alone = -1;
    for (int32_t h = 0; h < topology->host_count && alone < 0; h++)
        alone = !met[h] && hosts_has_devices(hosts, h) ? h : -1;
    free(met);
    memset(hosts->mark, 0, (size_t)topology->node_count * sizeof *hosts->mark);
    if (alone >= 0)
        TESS_FAIL(TESS_ERR_DATA, "host %d has devices and no link to the network", (int)alone);
    return TESS_OK;
}

/* ---- one host ------------------------------------------------------------------------------- */

/* All that the way through a host depends on, as numbers. */
static void hosts_print(struct hosts *hosts, int32_t host)
{
    const struct tess_topology *topology = hosts->topology;
    double *print = hosts->print;
    *print++ = hosts->node_first[host + 1] - hosts->node_first[host];
    for (int32_t k = hosts->node_first[host]; k < hosts->node_first[host + 1]; k++) {
        const struct tess_node *node = &topology->node[hosts->node[k]];
        *print++ = node->kind;
        *print++ = node->index;
        *print++ = hosts->device[hosts->node[k]] >= 0;
    }
    for (int32_t k = hosts->link_first[host]; k < hosts->link_first[host + 1]; k++) {
        const struct tess_topo_link *link = &topology->link[hosts->link[k]];
        *print++ = link->kind;
        *print++ = hosts_is_net(hosts, link->from) ? -1 : hosts->place[link->from];
        *print++ = hosts_is_net(hosts, link->to) ? -1 : hosts->place[link->to];
        *print++ = link->gbs;
    }
    hosts->printed = (size_t)(print - hosts->print);
}

/* The host alone; the network is one more device of it, the first. */
static enum tess_status hosts_part(const struct hosts *hosts, int32_t host,
                                   struct tess_topology *part)
{
    const struct tess_topology *topology = hosts->topology;
    int32_t outside = -1;
    for (int32_t k = hosts->node_first[host]; k < hosts->node_first[host + 1]; k++) {
        struct tess_node node = topology->node[hosts->node[k]];
        node.host = 0;
        TESS_TRY(tess_topology_add_node(part, &node, NULL));
    }
    struct tess_node network = {
        .kind = TESS_NODE_DEVICE, .name = "\tnetwork", .host = -1, .index = -1, .socket = -1};
    TESS_TRY(tess_topology_add_node(part, &network, &outside));
    for (int32_t k = hosts->link_first[host]; k < hosts->link_first[host + 1]; k++) {
        struct tess_topo_link link = topology->link[hosts->link[k]];
        link.from = hosts_is_net(hosts, link.from) ? outside : hosts->place[link.from];
        link.to = hosts_is_net(hosts, link.to) ? outside : hosts->place[link.to];
        TESS_TRY(tess_topology_add_link(part, &link));
    }
    return tess_topology_finish(part);
}

/* A ring that begins with the network, as a way through the host. */
static void hosts_take_way(const struct tess_routes *routes, const int32_t *order, double gbs,
                           struct hosts_way *way)
{
    const struct tess_topology *part = routes->topology;
    int32_t count = routes->device_count;
    const struct tess_route *in = &routes->route[order[1]];
    const struct tess_route *out = &routes->route[order[count - 1] * count];
    for (int32_t i = 1; i < count; i++)
        way->device[i - 1] = part->device[order[i]];
    way->gbs = gbs;
    way->entry = in->link_count ? part->link[routes->link[in->first]].to : -1;
    way->exit =
        out->link_count ? part->link[routes->link[out->first + out->link_count - 1]].from : -1;
}

static enum tess_status hosts_search(struct hosts *hosts, const struct tess_routes *routes,
                                     double deadline_s)
{
    struct hosts_solved *solved = &hosts->solved;
    struct tess__ring_table table;
    struct tess__ring_found found;
    struct tess__ring_effort effort = {HOSTS_STEPS, deadline_s};
    int32_t order[HOSTS_DEVICES_MAX + 1], count = routes->device_count;
    TESS_TRY(tess__ring_table_open(&table, routes));
    int32_t *uses = calloc((size_t)table.rows + 1, sizeof *uses);
    enum tess_status status = TESS_OK;
    if (!uses) {
        status = tess_fail(TESS_ERR_MEMORY, "no memory left for the search of rings");
        goto done;
    }
    for (int32_t i = 0; i < count; i++)
        order[i] = i;
    solved->count = count - 1;
    hosts_take_way(routes, order, tess__ring_table_gbs(&table, table.gbs, order, uses, NULL),
                   &solved->natural);
    status = count <= TESS__RING_EXACT_MAX
                 ? tess__ring_search(&table, table.gbs, &effort, order, &found)
                 : tess__ring_improve(&table, table.gbs, &effort, order, &found);
    TESS_TRY_GOTO(status, done, status);
    hosts_take_way(routes, order, found.gbs, &solved->best);
    /* A ring may pass a host several times, so that the best way through it once is no bound. */
    solved->bound_gbs = tess__ring_single_bound(&table, table.gbs);
    status = tess__ring_cut_bound(routes, &solved->wide_gbs);
done:
    free(uses);
    tess__ring_table_free(&table);
    return status;
}

static enum tess_status hosts_solve(struct hosts *hosts, int32_t host, double deadline_s)
{
    hosts_print(hosts, host);
    if (hosts->printed == hosts->other_printed &&
        memcmp(hosts->print, hosts->other, hosts->printed * sizeof *hosts->print) == 0)
        return TESS_OK;
    struct tess_topology *part = tess_topology_new();
    struct tess_routes routes = {0};
    if (!part)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the search of rings");
    enum tess_status status = hosts_part(hosts, host, part);
    if (status == TESS_OK)
        status = tess_routes_open(part, &routes);
    if (status == TESS_OK)
        status = hosts_search(hosts, &routes, deadline_s);
    tess_routes_free(&routes);
    tess_topology_free(part);
    double *swap = hosts->other;
    hosts->other = hosts->print;
    hosts->print = swap;
    hosts->other_printed = hosts->printed;
    return status;
}

/* ---- the network ---------------------------------------------------------------------------- */

/* The switch at which a node of the host sends, or receives: over its widest link. -1: none. */
static int32_t hosts_switch(const struct hosts *hosts, int32_t host, int32_t place, bool sends)
{
    int32_t at = -1;
    double widest = 0;
    for (int32_t k = hosts->link_first[host]; k < hosts->link_first[host + 1]; k++) {
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

/* Adds the shortest way between two switches to uses; false where there is none, or the search has
 * taken too long. */
static bool hosts_cross(struct hosts *hosts, int32_t from, int32_t to)
{
    const struct tess_topology *topology = hosts->topology;
    int32_t queued = 0;
    hosts->epoch++;
    if (from < 0 || to < 0)
        return false;
    hosts->mark[from] = hosts->epoch;
    hosts->queue[queued++] = from;
    for (int32_t head = 0; head < queued && hosts->mark[to] != hosts->epoch; head++) {
        int32_t net = hosts->queue[head];
        hosts->visits += hosts->out_first[net + 1] - hosts->out_first[net];
        if (hosts->visits > HOSTS_VISITS_MAX)
            return false;
        for (int32_t k = hosts->out_first[net]; k < hosts->out_first[net + 1]; k++) {
            int32_t next = topology->link[hosts->out[k]].to;
            if (!hosts_is_net(hosts, next) || hosts->mark[next] == hosts->epoch)
                continue;
            hosts->mark[next] = hosts->epoch;
            hosts->came[next] = hosts->out[k];
            hosts->queue[queued++] = next;
        }
    }
    if (hosts->mark[to] != hosts->epoch)
        return false;
    for (int32_t net = to; net != from; net = topology->link[hosts->came[net]].from)
        hosts->uses[hosts->came[net]]++;
    return true;
}

/* What the network leaves of `gbs` with hosts in this order; 0 where it is not known. */
static double hosts_network(struct hosts *hosts, const int32_t *order, double gbs)
{
    const struct tess_topology *topology = hosts->topology;
    memset(hosts->uses, 0, (size_t)topology->link_count * sizeof *hosts->uses);
    for (int32_t i = 0; i < hosts->ordered; i++) {
        int32_t from = order[i], to = order[(i + 1) % hosts->ordered];
        if (!hosts_cross(hosts, hosts->exit[from], hosts->entry[to]))
            return 0;
    }
    for (int32_t i = 0; i < topology->link_count; i++) {
        if (hosts->uses[i] > 0)
            gbs = fmin(gbs, topology->link[i].gbs / hosts->uses[i]);
    }
    return gbs;
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* The devices of the hosts in this order into the ring, and its bandwidth. */
static enum tess_status hosts_ring(struct hosts *hosts, const int32_t *order, bool natural,
                                   double deadline_s, struct tess_ring *ring,
                                   struct tess_rings *rings)
{
    int32_t filled = 0;
    double gbs = INFINITY;
    hosts->other_printed = 0;
    for (int32_t i = 0; i < hosts->ordered; i++) {
        int32_t host = order[i];
        TESS_TRY(hosts_solve(hosts, host, deadline_s));
        const struct hosts_solved *solved = &hosts->solved;
        const struct hosts_way *way = natural ? &solved->natural : &solved->best;
        for (int32_t k = 0; k < solved->count; k++)
            ring->order[filled++] =
                hosts->device[hosts->node[hosts->node_first[host] + way->device[k]]];
        hosts->exit[host] = hosts_switch(hosts, host, way->exit, true);
        hosts->entry[host] = hosts_switch(hosts, host, way->entry, false);
        gbs = fmin(gbs, way->gbs);
        rings->single_bound_gbs = fmin(rings->single_bound_gbs, solved->bound_gbs);
        rings->bound_gbs = fmin(rings->bound_gbs, solved->wide_gbs);
    }
    ring->gbs = hosts_network(hosts, order, gbs);
    return TESS_OK;
}

/* Begins with device 0. */
static void hosts_turn(struct tess_ring *ring, int32_t *scratch, int32_t count)
{
    int32_t zero = 0;
    while (ring->order[zero] != 0)
        zero++;
    memcpy(scratch, ring->order, (size_t)count * sizeof *scratch);
    for (int32_t i = 0; i < count; i++)
        ring->order[i] = scratch[(zero + i) % count];
}

static int hosts_compare(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static enum tess_status hosts_find(struct hosts *hosts, double deadline_s, int32_t *by_number,
                                   struct tess_rings *rings)
{
    int32_t count = rings->count;
    for (int32_t i = 0; i < count; i++) {
        const struct tess_node *device = &hosts->topology->node[hosts->topology->device[i]];
        if (device->host < 0)
            TESS_FAIL(TESS_ERR_DATA, "device '%s' is on no host; expected all to be on one",
                      device->name);
    }
    TESS_TRY(hosts_walk(hosts));
    memcpy(by_number, hosts->order, (size_t)hosts->ordered * sizeof *by_number);
    qsort(by_number, (size_t)hosts->ordered, sizeof *by_number, hosts_compare);
    TESS_TRY(hosts_ring(hosts, hosts->order, false, deadline_s, &rings->best_single, rings));
    TESS_TRY(hosts_ring(hosts, by_number, true, deadline_s, &rings->natural, rings));
    /* As many as there are devices, so that it may hold an order while it is turned. */
    hosts_turn(&rings->best_single, rings->ring[0].order, count);
    hosts_turn(&rings->natural, rings->ring[0].order, count);
    if (rings->natural.gbs >= rings->best_single.gbs) {
        memcpy(rings->best_single.order, rings->natural.order,
               (size_t)count * sizeof *rings->natural.order);
        rings->best_single.gbs = rings->natural.gbs;
    }
    memcpy(rings->ring[0].order, rings->best_single.order,
           (size_t)count * sizeof *rings->natural.order);
    rings->ring[0].gbs = rings->total_gbs = rings->best_single.gbs;
    rings->ring_count = 1;
    rings->optimal = rings->best_single.gbs >= rings->single_bound_gbs * (1 - TESS__RING_NEAR);
    return TESS_OK;
}

enum tess_status tess_rings_find_hosts(const struct tess_topology *topology, double time_limit_s,
                                       struct tess_rings *rings_out)
{
    size_t bytes = (size_t)topology->device_count * sizeof(int32_t);
    double deadline_s = time_limit_s > 0 ? tess_clock_s() + time_limit_s : 0;
    *rings_out = (struct tess_rings){
        .count = topology->device_count, .single_bound_gbs = INFINITY, .bound_gbs = INFINITY};
    struct hosts *hosts = hosts_open(topology);
    int32_t *by_number = malloc(((size_t)topology->host_count + 1) * sizeof *by_number);
    rings_out->ring[0].order = malloc(bytes);
    rings_out->best_single.order = malloc(bytes);
    rings_out->natural.order = malloc(bytes);
    enum tess_status status = TESS_OK;
    if (!hosts || !by_number || !rings_out->ring[0].order || !rings_out->best_single.order ||
        !rings_out->natural.order)
        status = tess_fail(TESS_ERR_MEMORY, "no memory left for the search of rings");
    if (status == TESS_OK)
        status = hosts_find(hosts, deadline_s, by_number, rings_out);
    if (hosts)
        hosts_close(hosts);
    free(by_number);
    if (status != TESS_OK)
        tess_rings_free(rings_out);
    return status;
}
