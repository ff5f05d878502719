/* Upper bounds of rings without a search: one ring by its widest hops, a set of rings by cuts. */
#include "tessera/check.h"
#include "topology/rings/ring_room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one ring ------------------------------------------------------------------------------- */

/*
 * Prim's search from device 0 for the hops that lead everywhere (or, reversed, back from
 * everywhere) and whose narrowest is widest.
 */
static double bound_reach(const struct tess__ring_table *table, const double *gbs, double *width,
                          bool reversed)
{
    int32_t count = table->count;
    double least = INFINITY;
    for (int32_t i = 0; i < count; i++)
        width[i] = i == 0 ? INFINITY : 0; /* below 0: reached */
    for (int32_t reached = 0; reached < count; reached++) {
        int32_t at = -1;
        for (int32_t i = 0; i < count; i++) {
            if (width[i] >= 0 && (at < 0 || width[i] > width[at]))
                at = i;
        }
        least = fmin(least, width[at]);
        width[at] = -1;
        for (int32_t to = 0; to < count; to++) {
            int32_t h = reversed ? to * count + at : at * count + to;
            if (width[to] < 0 || table->cost[h] < 0)
                continue;
            double narrowest = INFINITY;
            for (int32_t k = table->first[h]; k < table->first[h + 1]; k++)
                narrowest = fmin(narrowest, gbs[table->row[k]]);
            width[to] = fmax(width[to], narrowest);
        }
    }
    return least;
}

double tess__ring_single_bound(const struct tess__ring_table *table, const double *gbs)
{
    double width[128];
    if (table->count < 2 || table->count > 128)
        return 0;
    return fmin(bound_reach(table, gbs, width, false), bound_reach(table, gbs, width, true));
}

/* ---- cuts ----------------------------------------------------------------------------------- */

/* The links of all routes as a network of flow; two arcs a link, forth and back. */
struct bound_net {
    struct tess__pool pool;
    const struct tess_routes *routes;
    int32_t nodes, arcs;
    int32_t *head, *next; /* lists of arcs by node: head[node], next[arc]; -1 ends */
    int32_t *to;
    double *capacity, *left;
    int32_t *came, *queue;
    bool *inside;  /* by node: a device of the group */
    int32_t *part; /* by device: number of its group */
};

static void bound_add_arc(struct bound_net *net, int32_t from, int32_t to, double gbs)
{
    net->to[net->arcs] = to;
    net->capacity[net->arcs] = gbs;
    net->next[net->arcs] = net->head[from];
    net->head[from] = net->arcs++;
}

static enum tess_status bound_net_open(struct bound_net *net, const struct tess_routes *routes)
{
    const struct tess_topology *topology = routes->topology;
    size_t nodes = (size_t)topology->node_count, links = (size_t)topology->link_count;
    *net = (struct bound_net){.routes = routes, .nodes = topology->node_count};
    bool *used = tess__pool_array(&net->pool, links, sizeof(*used));
    net->head = tess__pool_array(&net->pool, nodes, sizeof(*net->head));
    net->next = tess__pool_array(&net->pool, 2 * links, sizeof(*net->next));
    net->to = tess__pool_array(&net->pool, 2 * links, sizeof(*net->to));
    net->capacity = tess__pool_array(&net->pool, 2 * links, sizeof(*net->capacity));
    net->left = tess__pool_array(&net->pool, 2 * links, sizeof(*net->left));
    net->came = tess__pool_array(&net->pool, nodes, sizeof(*net->came));
    net->queue = tess__pool_array(&net->pool, nodes, sizeof(*net->queue));
    net->inside = tess__pool_array(&net->pool, nodes, sizeof(*net->inside));
    net->part = tess__pool_array(&net->pool, (size_t)routes->device_count, sizeof(*net->part));
    if (net->pool.failed) {
        tess__pool_release(&net->pool);
        return tess__no_memory("the bound of rings");
    }
    memset(net->head, -1, nodes * sizeof(*net->head));
    for (int32_t h = 0; h < routes->device_count * routes->device_count; h++) {
        for (int32_t k = 0; k < routes->route[h].link_count; k++)
            used[routes->link[routes->route[h].first + k]] = true;
    }
    for (int32_t i = 0; i < topology->link_count; i++) {
        if (!used[i])
            continue;
        bound_add_arc(net, topology->link[i].from, topology->link[i].to, topology->link[i].gbs);
        bound_add_arc(net, topology->link[i].to, topology->link[i].from, 0);
    }
    return TESS_OK;
}

/* Shortest way with room from the group's devices to one outside, which is returned; -1: none.
 * Devices do not forward: of the group's they only send, the others only receive. */
static int32_t bound_augment(struct bound_net *net, double room)
{
    const struct tess_topology *topology = net->routes->topology;
    int32_t queued = 0;
    memset(net->came, -1, (size_t)net->nodes * sizeof(*net->came));
    for (int32_t i = 0; i < topology->device_count; i++) {
        if (net->inside[topology->device[i]])
            net->queue[queued++] = topology->device[i];
    }
    for (int32_t head = 0; head < queued; head++) {
        for (int32_t arc = net->head[net->queue[head]]; arc >= 0; arc = net->next[arc]) {
            int32_t to = net->to[arc];
            if (net->left[arc] <= room || net->came[to] >= 0 || net->inside[to])
                continue;
            net->came[to] = arc;
            if (topology->node[to].kind == TESS_NODE_DEVICE)
                return to;
            net->queue[queued++] = to;
        }
    }
    return -1;
}

/* The greatest flow out of the group, or `enough` where it is more (Edmonds and Karp 1972). */
static double bound_flow(struct bound_net *net, double enough)
{
    double flow = 0;
    memcpy(net->left, net->capacity, (size_t)net->arcs * sizeof(*net->left));
    while (flow < enough) {
        int32_t target = bound_augment(net, enough * 1e-12);
        if (target < 0)
            return flow;
        double most = INFINITY;
        for (int32_t node = target; !net->inside[node]; node = net->to[net->came[node] ^ 1])
            most = fmin(most, net->left[net->came[node]]);
        for (int32_t node = target; !net->inside[node]; node = net->to[net->came[node] ^ 1]) {
            net->left[net->came[node]] -= most;
            net->left[net->came[node] ^ 1] += most;
        }
        flow += most;
    }
    return enough;
}

static void bound_part_each(struct bound_net *net)
{
    for (int32_t i = 0; i < net->routes->device_count; i++)
        net->part[i] = i;
}

/* The parts of both devices become one, named by its least device. */
static void bound_join(struct bound_net *net, int32_t a, int32_t b)
{
    a = tess__root(net->part, a);
    b = tess__root(net->part, b);
    net->part[a > b ? a : b] = a < b ? a : b;
}

/* Devices that paths of the kind or cheaper connect are of one part. */
static void bound_make_parts(struct bound_net *net, enum tess_path_kind kind)
{
    int32_t count = net->routes->device_count;
    bound_part_each(net);
    for (int32_t h = 0; h < count * count; h++) {
        if (net->routes->route[h].kind <= kind)
            bound_join(net, h / count, h % count);
    }
}

/* Devices that enter the network at one switch are of one part: a rack. */
static void bound_make_racks(struct bound_net *net)
{
    const struct tess_routes *routes = net->routes;
    const struct tess_topology *topology = routes->topology;
    int32_t count = routes->device_count, *first = net->came; /* device met at a switch */
    bound_part_each(net);
    memset(first, -1, (size_t)net->nodes * sizeof(*first));
    for (int32_t h = 0; h < count * count; h++) {
        const struct tess_route *route = &routes->route[h];
        for (int32_t k = 0; k < route->link_count; k++) {
            int32_t to = topology->link[routes->link[route->first + k]].to;
            if (topology->node[to].kind != TESS_NODE_NET)
                continue;
            first[to] = first[to] < 0 ? h / count : first[to];
            bound_join(net, h / count, first[to]);
            break;
        }
    }
}

/* The least flow out of each part, and into it: out of all the others. */
static double bound_parts(struct bound_net *net, double least)
{
    const struct tess_topology *topology = net->routes->topology;
    int32_t count = net->routes->device_count;
    for (int32_t part = 0; part < count; part++) {
        int32_t members = 0;
        for (int32_t i = 0; i < count; i++)
            members += tess__root(net->part, i) == part;
        if (members == 0 || members == count)
            continue;
        for (int32_t direction = 0; direction < 2; direction++) {
            for (int32_t i = 0; i < count; i++)
                net->inside[topology->device[i]] =
                    (tess__root(net->part, i) == part) == (direction == 0);
            least = bound_flow(net, least);
        }
    }
    return least;
}

enum tess_status tess__ring_cut_bound(const struct tess_routes *routes, double *bound_out)
{
    static const enum tess_path_kind kind[] = {TESS_PATH_LOC, TESS_PATH_NVL, TESS_PATH_C2C,
                                               TESS_PATH_PIX, TESS_PATH_PXB, TESS_PATH_PHB,
                                               TESS_PATH_SYS};
    struct bound_net net;
    TESS_TRY(bound_net_open(&net, routes));
    double least = 1; /* more than all links together */
    for (int32_t arc = 0; arc < net.arcs; arc++)
        least += net.capacity[arc];
    for (size_t k = 0; k < sizeof(kind) / sizeof(kind[0]); k++) {
        bound_make_parts(&net, kind[k]);
        least = bound_parts(&net, least);
    }
    bound_make_racks(&net);
    *bound_out = bound_parts(&net, least);
    tess__pool_release(&net.pool);
    return TESS_OK;
}
