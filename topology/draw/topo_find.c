/*
 * The rings of a machine, which link limits each, and how all other orders compare. The searches
 * are in topology/rings.
 */
#include "topology/draw/topo.h"

#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIND_NEAR 1e-9 /* relative: the same but for rounding */
/* Hosts times links of the network up to which a cluster's ring is followed link by link: a hop
 * between hosts looks at all of them, in three turns where NICs are side by side. About a second.
 */
#define FIND_FAR_MAX 70000000
/* Devices up to which all orders are compared: 8! = 40320 rings, some 20 ms. */
#define FIND_ORDERS_MAX 9

/* ---- one order ------------------------------------------------------------------------------ */

void tess__topo_uses(const struct tess__topo *topo, const int32_t *order, int32_t *uses)
{
    const struct tess_routes *routes = &topo->routes;
    int32_t count = topo->rings.count;
    for (int32_t i = 0; i < count; i++) {
        const struct tess_route *route = tess__route_hop(routes, order, count, i);
        for (int32_t k = 0; k < route->link_count; k++)
            uses[routes->link[route->first + k]]++;
    }
}

/* What the most loaded link leaves of a load of 1, where wires carry what their standards say. */
static double find_wire(const struct tess_topology *topology, const double *load)
{
    double least = INFINITY;
    for (int32_t i = 0; i < topology->link_count; i++)
        if (load[i] > 0)
            least = fmin(least, tess__topo_wire(&topology->link[i]) / load[i]);
    return least < INFINITY ? least : 0;
}

/* load [link_count]: scratch; rings [count], each with its share of the load. */
static double find_wire_rings(const struct tess__topo *topo, const struct tess_ring *rings,
                              int32_t count, int32_t *uses, double *load)
{
    const int32_t links = topo->topology->link_count;
    double total = 0;
    memset(load, 0, (size_t)links * sizeof(*load));
    for (int32_t r = 0; r < count; r++)
        total += rings[r].gbs;
    for (int32_t r = 0; r < count && total > 0; r++) {
        memset(uses, 0, (size_t)links * sizeof(*uses));
        tess__topo_uses(topo, rings[r].order, uses);
        for (int32_t i = 0; i < links; i++)
            load[i] += uses[i] * rings[r].gbs / total;
    }
    memset(uses, 0, (size_t)links * sizeof(*uses));
    const double wire = total > 0 ? find_wire(topo->topology, load) : 0;
    return wire > 0 ? wire : total; /* no link at all */
}

static enum tess_status find_wires(struct tess__topo *topo, int32_t *uses)
{
    const struct tess_rings *rings = &topo->rings;
    double *load = calloc((size_t)topo->topology->link_count + 1, sizeof(*load));
    if (load == NULL)
        return tess__no_memory("the rings");
    topo->wire_best = find_wire_rings(topo, &rings->best_single, 1, uses, load);
    topo->wire_natural = find_wire_rings(topo, &rings->natural, 1, uses, load);
    topo->wire_total = find_wire_rings(topo, rings->ring, rings->ring_count, uses, load);
    free(load);
    return TESS_OK;
}

static void find_note(struct tess__topo_narrow *narrow, int32_t link, int32_t uses)
{
    if (narrow->alike++ == 0)
        *narrow = (struct tess__topo_narrow){.link = link, .uses = uses, .alike = 1};
}

/* The first of the most loaded links in the order of the ring; none where a hop has no way. uses is
 * zero before and after. */
static struct tess__topo_narrow find_narrow(const struct tess__topo *topo, const int32_t *order,
                                            int32_t *uses)
{
    const struct tess_topology *topology = topo->topology;
    const struct tess_routes *routes = &topo->routes;
    struct tess__topo_narrow narrow = {.link = -1};
    int32_t count = topo->rings.count;
    double least = INFINITY;
    for (int32_t i = 0; i < count; i++)
        if (tess__route_hop(routes, order, count, i)->kind == TESS_PATH_NONE)
            return narrow;
    tess__topo_uses(topo, order, uses);
    for (int32_t i = 0; i < topology->link_count; i++)
        if (uses[i] > 0)
            least = fmin(least, topology->link[i].gbs / uses[i]);
    for (int32_t i = 0; i < count; i++) {
        const struct tess_route *route = tess__route_hop(routes, order, count, i);
        for (int32_t k = 0; k < route->link_count; k++) {
            int32_t link = routes->link[route->first + k];
            if (uses[link] == 0 || topology->link[link].gbs / uses[link] > least * (1 + FIND_NEAR))
                continue;
            find_note(&narrow, link, uses[link]);
            uses[link] = 0; /* counted */
        }
    }
    memset(uses, 0, (size_t)topology->link_count * sizeof(*uses));
    return narrow;
}

/* ---- all orders ----------------------------------------------------------------------------- */

/* The next order of order[1 .. count), as a dictionary has them; false after the last. */
static bool find_next(int32_t *order, int32_t count)
{
    int32_t i = count - 2, j = count - 1;
    while (i > 0 && order[i] > order[i + 1])
        i--;
    if (i <= 0)
        return false;
    while (order[j] < order[i])
        j--;
    int32_t swap = order[i];
    order[i] = order[j];
    order[j] = swap;
    for (int32_t a = i + 1, b = count - 1; a < b; a++, b--) {
        swap = order[a];
        order[a] = order[b];
        order[b] = swap;
    }
    return true;
}

static void find_orders(struct tess__topo *topo, int32_t *uses)
{
    struct tess__topo_orders *orders = &topo->orders;
    int32_t order[FIND_ORDERS_MAX], count = topo->rings.count;
    if (count < 3 || count > FIND_ORDERS_MAX)
        return;
    for (int32_t i = 0; i < count; i++)
        order[i] = i;
    orders->worst_gbs = INFINITY;
    do {
        double gbs = tess_ring_gbs(&topo->routes, order, count, uses);
        orders->count++;
        orders->best += gbs >= topo->rings.best_single.gbs * (1 - FIND_NEAR);
        if (gbs < orders->worst_gbs * (1 - FIND_NEAR)) {
            orders->worst_gbs = gbs;
            memcpy(orders->worst, order, (size_t)count * sizeof(*order));
        }
    } while (find_next(order, count));
}

/* ---- clusters ------------------------------------------------------------------------------- */

/* Of a ring whose routes are not in memory: searched hop by hop. */
static enum tess_status find_far_uses(const struct tess__topo *topo, const int32_t *order,
                                      int32_t *uses)
{
    int32_t pair[2], count = topo->rings.count;
    struct tess_topology few = *topo->topology; /* the same machine with two devices at a time */
    struct tess_route_search *search;
    enum tess_status status = TESS_OK;
    few.device = pair;
    few.device_count = 2;
    TESS_TRY(tess_route_search_open(&few, &search));
    for (int32_t i = 0; i < count && status == TESS_OK; i++) {
        struct tess_routes row = {0};
        pair[0] = topo->topology->device[order[i]];
        pair[1] = topo->topology->device[order[(i + 1) % count]];
        status = tess_route_from(search, 0, &row);
        for (int32_t k = 0; status == TESS_OK && k < row.route[1].link_count; k++)
            uses[row.link[row.route[1].first + k]]++;
        tess_routes_free(&row);
    }
    tess_route_search_close(search);
    return status;
}

/* The narrowest link where these routes carry what the search of hosts has found, else none is
 * named: it may send another way. */
static enum tess_status find_far(const struct tess__topo *topo, const struct tess_ring *ring,
                                 int32_t *uses, struct tess__topo_narrow *narrow, double *wire_out)
{
    const struct tess_topology *topology = topo->topology;
    double least = INFINITY;
    memset(uses, 0, (size_t)topology->link_count * sizeof(*uses));
    TESS_TRY(find_far_uses(topo, ring->order, uses));
    for (int32_t i = 0; i < topology->link_count; i++)
        if (uses[i] > 0)
            least = fmin(least, topology->link[i].gbs / uses[i]);
    if (fabs(least - ring->gbs) > 1e-6 * ring->gbs)
        return TESS_OK;
    for (int32_t i = 0; i < topology->link_count; i++) {
        if (uses[i] == 0 || topology->link[i].gbs / uses[i] > least * (1 + FIND_NEAR))
            continue;
        find_note(narrow, i, uses[i]);
    }
    *wire_out = INFINITY;
    for (int32_t i = 0; i < topology->link_count; i++)
        if (uses[i] > 0)
            *wire_out = fmin(*wire_out, tess__topo_wire(&topology->link[i]) / uses[i]);
    return TESS_OK;
}

static int64_t find_far_work(const struct tess_topology *topology)
{
    int64_t links = 0;
    bool nics = false;
    for (int32_t i = 0; i < topology->link_count; i++) {
        const enum tess_node_kind from = topology->node[topology->link[i].from].kind;
        links += from == TESS_NODE_NET;
        nics = nics || from == TESS_NODE_NIC;
    }
    return (nics ? 3 : 1) * links * topology->host_count;
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* uses [link_count] is scratch. */
static enum tess_status find_rings(struct tess__topo *topo, int32_t *uses)
{
    const struct tess_ring_search search = {.rings = (int32_t)topo->options->rings,
                                            .time_limit_s = topo->options->time_limit_s};
    if (topo->topology->device_count > TESS__TOPO_ROUTED_MAX) {
        TESS_TRY(tess_rings_find_hosts(topo->topology, search.time_limit_s, &topo->rings));
        if (find_far_work(topo->topology) > FIND_FAR_MAX)
            return TESS_OK;
        TESS_TRY(
            find_far(topo, &topo->rings.best_single, uses, &topo->best_narrow, &topo->wire_best));
        topo->wire_total = topo->wire_best;
        if (topo->rings.natural.gbs <= 0)
            return TESS_OK;
        return find_far(topo, &topo->rings.natural, uses, &topo->natural_narrow,
                        &topo->wire_natural);
    }
    TESS_TRY(tess_routes_open(topo->topology, &topo->routes));
    topo->routed = true;
    TESS_TRY(tess_rings_find(&topo->routes, &search, &topo->rings));
    topo->best_narrow = find_narrow(topo, topo->rings.best_single.order, uses);
    topo->natural_narrow = find_narrow(topo, topo->rings.natural.order, uses);
    find_orders(topo, uses);
    return find_wires(topo, uses);
}

enum tess_status tess__topo_find(struct tess__topo *topo)
{
    const struct tess_topology *topology = topo->topology;
    topo->best_narrow.link = topo->natural_narrow.link = -1;
    if (topology->device_count > TESS__TOPO_ROUTED_MAX && topology->host_count == 1)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "%d devices on one host: rings are searched over %d at most, choose some with "
                  "--devices 0-%d",
                  (int)topology->device_count, TESS__TOPO_ROUTED_MAX, TESS__TOPO_ROUTED_MAX - 1);
    int32_t *uses = calloc((size_t)topology->link_count + 1, sizeof(*uses));
    topo->nvlinks = tess__nvlinks_open(topology, topo->subset);
    if (uses == NULL || topo->nvlinks == NULL) {
        free(uses);
        return tess__no_memory("the rings");
    }
    enum tess_status status = find_rings(topo, uses);
    free(uses);
    return status;
}

void tess__topo_close(struct tess__topo *topo)
{
    tess_rings_free(&topo->rings);
    tess_routes_free(&topo->routes);
    tess_topology_free(topo->topology);
    free(topo->number);
    free(topo->model);
    free(topo->nvlinks);
    *topo = (struct tess__topo){0};
}
