/*
 * Routes between all pairs of devices: for each kind of path, cheapest first, the links that such a
 * path may use are searched from every device, for the widest way and the shortest of those.
 */
#include "topology/machine/route.h"

#include "tessera/check.h"
#include "topology/machine/pool.h"
#include "topology/machine/rates.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUTE_DEVICES_MAX 128
#define ROUTE_LINKS_MAX   64 /* of one path; real ones have a dozen at most */

const char *tess_path_word(enum tess_path_kind kind)
{
    static const char *const word[TESS_PATH_KIND_COUNT] = {"LOC", "NVL", "NVB", "C2C", "PIX",
                                                           "PXB", "PHB", "SYS", "NET", "NONE"};
    return (unsigned)kind < TESS_PATH_KIND_COUNT ? word[kind] : "NONE";
}

struct route_entry {
    double width;
    int32_t node;
};

struct tess_route_search {
    struct tess__pool pool;
    const struct tess_topology *topology;
    struct tess_routes *routes; /* that are being filled */
    struct tess_route *row;     /* in them, of the source at hand */
    int32_t *first, *out; /* links that leave node n: out[first[n] .. first[n + 1]), by target */
    int32_t *target;      /* of links, in the order of `out` */
    int32_t *host;        /* of a node */
    double *width;        /* of the widest way to a node; 0: none */
    int32_t *met;         /* nodes whose width is set: the next search resets them alone */
    int32_t *came;        /* link by which the search came to a node; -1 */
    int32_t *queue;       /* nodes, first in first out: those whose `came` may be set */
    struct route_entry *heap;
    int32_t *depth;             /* links from the source */
    int32_t *turn;              /* of a device's node, at NICs side by side; -1: none is near */
    int32_t *place, *beside;    /* of a NIC: number and count of those side by side; 0: no NIC */
    int32_t *shut;              /* 1: this search leaves the NIC out */
    int32_t met_count, reached; /* of met, of queue */
    int32_t queued, room;       /* of heap, of routes->link */
    int32_t used;
    int32_t source_host, target_host; /* the latter unless all_hosts */
    bool all_hosts;
    enum tess_path_kind level; /* of the links that the search uses */
};

/* ---- which links a path of a kind may use ---------------------------------------------------- */

static bool route_inside(enum tess_node_kind kind)
{
    return kind == TESS_NODE_DEVICE || kind == TESS_NODE_PCI || kind == TESS_NODE_CPU;
}

/* Between devices, and switches of theirs. */
static bool route_is_nvlink(const struct tess_topo_link *link, enum tess_node_kind from,
                            enum tess_node_kind to)
{
    return link->kind == TESS_LINK_NVLINK && from != TESS_NODE_CPU && to != TESS_NODE_CPU;
}

static bool route_allows(const struct tess_route_search *search, const struct tess_topo_link *link)
{
    const struct tess_node *from = &search->topology->node[link->from];
    const struct tess_node *to = &search->topology->node[link->to];
    switch (search->level) {
    case TESS_PATH_NVL:
        return route_is_nvlink(link, from->kind, to->kind);
    case TESS_PATH_C2C:
        return link->kind == TESS_LINK_C2C;
    case TESS_PATH_PXB: /* and PIX: a tree has one way */
        return link->kind == TESS_LINK_PCI && route_inside(from->kind) && route_inside(to->kind) &&
               from->kind != TESS_NODE_CPU && to->kind != TESS_NODE_CPU;
    case TESS_PATH_PHB:
    case TESS_PATH_SYS:
        return route_inside(from->kind) && route_inside(to->kind) &&
               !route_is_nvlink(link, from->kind, to->kind) && link->kind != TESS_LINK_NET &&
               (link->kind != TESS_LINK_SYS || search->level == TESS_PATH_SYS);
    case TESS_PATH_NET:
        if (search->shut[link->to])
            return false;
        /* From the source's host into the network and from there into the target's, once. */
        if (to->kind == TESS_NODE_NET)
            return from->kind == TESS_NODE_NET || from->host == search->source_host;
        if (from->kind == TESS_NODE_NET)
            return to->kind == TESS_NODE_DEVICE ||
                   (to->host != search->source_host &&
                    (search->all_hosts || to->host == search->target_host));
        return !route_is_nvlink(link, from->kind, to->kind);
    default:
        return false;
    }
}

/* Between two devices other hosts lead nowhere. A network has links to thousands of them, so
 * `host` and `target` lie close together in memory. */
static bool route_is_elsewhere(const struct tess_route_search *search, int32_t node)
{
    const int32_t host = search->host[node];
    return host >= 0 && host != search->source_host && host != search->target_host &&
           !search->all_hosts && search->level == TESS_PATH_NET;
}

/* May the search go on from this node? Devices do not forward. */
static bool route_passes(const struct tess_route_search *search, int32_t node, int32_t source)
{
    return node == source || search->topology->node[node].kind != TESS_NODE_DEVICE;
}

/* ---- the widest way to each node: Dijkstra's search with min for + -------------------------- */

/* Wider first, then the lower number: one fixed order. */
static bool route_before(const struct route_entry *a, const struct route_entry *b)
{
    return a->width != b->width ? a->width > b->width : a->node < b->node;
}

static struct route_entry route_pop(struct tess_route_search *search)
{
    struct route_entry *heap = search->heap, top = heap[0], last = heap[--search->queued];
    int32_t i = 0;
    for (int32_t child; (child = 2 * i + 1) < search->queued; i = child) {
        if (child + 1 < search->queued && route_before(&heap[child + 1], &heap[child]))
            child++;
        if (!route_before(&heap[child], &last))
            break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

/* A node is pushed once for each link that widens its way: as often as there are links at most. */
static void route_push(struct tess_route_search *search, struct route_entry entry)
{
    int32_t i = search->queued++;
    for (int32_t parent; i > 0; i = parent) {
        parent = (i - 1) / 2;
        if (!route_before(&entry, &search->heap[parent]))
            break;
        search->heap[i] = search->heap[parent];
    }
    search->heap[i] = entry;
}

static void route_widest(struct tess_route_search *search, int32_t source)
{
    while (search->met_count > 0)
        search->width[search->met[--search->met_count]] = 0;
    search->width[source] = INFINITY;
    search->met[search->met_count++] = source;
    search->queued = 0;
    route_push(search, (struct route_entry){INFINITY, source});
    while (search->queued > 0) {
        struct route_entry at = route_pop(search);
        if (at.width < search->width[at.node] || !route_passes(search, at.node, source))
            continue;
        for (int32_t k = search->first[at.node]; k < search->first[at.node + 1]; k++) {
            if (route_is_elsewhere(search, search->target[k]))
                continue;
            const struct tess_topo_link *link = &search->topology->link[search->out[k]];
            double width = fmin(at.width, link->gbs);
            if (width <= search->width[link->to] || !route_allows(search, link))
                continue;
            if (search->width[link->to] == 0)
                search->met[search->met_count++] = link->to;
            search->width[link->to] = width;
            route_push(search, (struct route_entry){width, link->to});
        }
    }
}

/* No node but the source has been reached. */
static void route_start(struct tess_route_search *search, int32_t source)
{
    while (search->reached > 0)
        search->came[search->queue[--search->reached]] = -1;
    search->depth[source] = 0;
    search->queue[search->reached++] = source;
}

/* Shortest ways over links of at least `width`; nodes are met in order of their numbers. */
static void route_shortest(struct tess_route_search *search, int32_t source, double width)
{
    route_start(search, source);
    for (int32_t head = 0; head < search->reached; head++) {
        int32_t node = search->queue[head];
        if (!route_passes(search, node, source) || search->depth[node] >= ROUTE_LINKS_MAX)
            continue;
        for (int32_t k = search->first[node]; k < search->first[node + 1]; k++) {
            if (route_is_elsewhere(search, search->target[k]))
                continue;
            const struct tess_topo_link *link = &search->topology->link[search->out[k]];
            if (link->to == source || search->came[link->to] >= 0 || link->gbs < width ||
                !route_allows(search, link))
                continue;
            search->came[link->to] = search->out[k];
            search->depth[link->to] = search->depth[node] + 1;
            search->queue[search->reached++] = link->to;
        }
    }
}

/* ---- keeping -------------------------------------------------------------------------------- */

/* For so many links more in routes->link. */
static enum tess_status route_room(struct tess_route_search *search, int32_t links)
{
    if (search->used + links <= search->room)
        return TESS_OK;
    int32_t room = 2 * search->room + ROUTE_LINKS_MAX;
    int32_t *link = realloc(search->routes->link, (size_t)room * sizeof(*link));
    if (!link)
        return tess__no_memory("the routes");
    search->routes->link = link;
    search->room = room;
    return TESS_OK;
}

/* The way that route_shortest found to the node. */
static enum tess_status route_keep(struct tess_route_search *search, struct tess_route *route,
                                   int32_t source, int32_t target)
{
    if (search->came[target] < 0)
        TESS_FAIL(TESS_ERR_DATA, "the path from '%s' to '%s' has more than %d links",
                  search->topology->node[source].name, search->topology->node[target].name,
                  ROUTE_LINKS_MAX);
    int32_t links = search->depth[target];
    TESS_TRY(route_room(search, links));
    /* Two links have one switch between them. */
    bool pix = search->level == TESS_PATH_PXB && links <= 2;
    *route = (struct tess_route){.kind = pix ? TESS_PATH_PIX : search->level,
                                 .gbs = search->width[target],
                                 .first = search->used,
                                 .link_count = links};
    for (int32_t i = links, node = target; i > 0; i--) {
        search->routes->link[search->used + i - 1] = search->came[node];
        node = search->topology->link[search->came[node]].from;
    }
    search->used += links;
    return TESS_OK;
}

/* ---- by way of memory ----------------------------------------------------------------------- */

/* The links up from a device to its processor; returns how many, 0: it has no such way. */
static int32_t route_climb(struct tess_route_search *search, int32_t device,
                           int32_t link[ROUTE_LINKS_MAX], int32_t *cpu_out)
{
    const struct tess_topology *topology = search->topology;
    route_start(search, device);
    for (int32_t head = 0; head < search->reached; head++) {
        int32_t node = search->queue[head];
        if (topology->node[node].kind == TESS_NODE_CPU) {
            *cpu_out = node;
            for (int32_t i = search->depth[node]; i > 0; i--) {
                link[i - 1] = search->came[node];
                node = topology->link[search->came[node]].from;
            }
            return search->depth[*cpu_out];
        }
        for (int32_t k = search->first[node]; k < search->first[node + 1]; k++) {
            const struct tess_topo_link *up = &topology->link[search->out[k]];
            enum tess_node_kind kind = topology->node[up->to].kind;
            if (up->kind != TESS_LINK_PCI || search->came[up->to] >= 0 || up->to == device ||
                (kind != TESS_NODE_PCI && kind != TESS_NODE_CPU) ||
                search->depth[node] + 1 >= ROUTE_LINKS_MAX / 3)
                continue;
            search->came[up->to] = search->out[k];
            search->depth[up->to] = search->depth[node] + 1;
            search->queue[search->reached++] = up->to;
        }
    }
    return 0;
}

/* The link from one processor to the other; -1. */
static int32_t route_between(const struct tess_route_search *search, int32_t from, int32_t to)
{
    for (int32_t k = search->first[from]; k < search->first[from + 1]; k++) {
        const struct tess_topo_link *link = &search->topology->link[search->out[k]];
        if (link->to == to && (link->kind == TESS_LINK_SYS || link->kind == TESS_LINK_LOCAL))
            return search->out[k];
    }
    return -1;
}

/* Does one of them send to others by way of memory alone? */
static bool route_staged(const struct tess_route_search *search, int32_t a, int32_t b)
{
    const struct tess_node *node = search->topology->node;
    return node[a].host == node[b].host && (node[a].staged || node[b].staged);
}

/* Up to the source's processor, to the target's, and down, also where both are on one switch; the
 * route stays NONE where there is no such way. */
static enum tess_status route_by_memory(struct tess_route_search *search, struct tess_route *route,
                                        int32_t source, int32_t target)
{
    const struct tess_topology *topology = search->topology;
    int32_t up[ROUTE_LINKS_MAX], down[ROUTE_LINKS_MAX], from, to, middle = -1;
    int32_t ups = route_climb(search, source, up, &from);
    int32_t downs = ups > 0 ? route_climb(search, target, down, &to) : 0;
    if (downs == 0)
        return TESS_OK;
    if (from != to && (middle = route_between(search, from, to)) < 0)
        return TESS_OK;
    if (middle >= 0)
        up[ups++] = middle;
    while (downs > 0) {
        const struct tess_topo_link *link = &topology->link[down[--downs]];
        for (int32_t k = search->first[link->to]; k < search->first[link->to + 1]; k++)
            if (topology->link[search->out[k]].to == link->from &&
                topology->link[search->out[k]].kind == TESS_LINK_PCI)
                up[ups] = search->out[k];
        ups++;
    }
    TESS_TRY(route_room(search, ups));
    bool far = middle >= 0 && topology->link[middle].kind == TESS_LINK_SYS;
    *route = (struct tess_route){.kind = far ? TESS_PATH_SYS : TESS_PATH_PHB,
                                 .gbs = INFINITY,
                                 .first = search->used,
                                 .link_count = ups};
    for (int32_t i = 0; i < ups; i++) {
        search->routes->link[search->used++] = up[i];
        route->gbs = fmin(route->gbs, topology->link[up[i]].gbs);
    }
    return TESS_OK;
}

/* Whatever device is not reached yet, by the level's links; false in *all_out where one is left. */
static enum tess_status route_level(struct tess_route_search *search, int32_t from, bool *all_out)
{
    const struct tess_topology *topology = search->topology;
    int32_t count = topology->device_count, source = topology->device[from];
    struct tess_route *route = search->row;
    const bool pci = search->level == TESS_PATH_PXB;
    for (int32_t to = 0; to < count && search->level == TESS_PATH_PHB; to++)
        if (route[to].kind == TESS_PATH_NONE && route_staged(search, source, topology->device[to]))
            TESS_TRY(route_by_memory(search, &route[to], source, topology->device[to]));
    route_widest(search, source);
    *all_out = true;
    for (int32_t to = 0; to < count; to++) {
        double width = search->width[topology->device[to]];
        if (route[to].kind != TESS_PATH_NONE)
            continue;
        if (width == 0 || (pci && route_staged(search, source, topology->device[to]))) {
            *all_out = false;
            continue;
        }
        route_shortest(search, source, width);
        for (int32_t same = to; same < count; same++) {
            int32_t target = topology->device[same];
            if (route[same].kind == TESS_PATH_NONE && search->width[target] == width &&
                !(pci && route_staged(search, source, target)))
                TESS_TRY(route_keep(search, &route[same], source, target));
        }
    }
    return TESS_OK;
}

/* ---- NICs side by side ---------------------------------------------------------------------- */

#define ROUTE_NICS_MAX 16 /* side by side */

/* The link from one node to another of that kind and width; -1. */
static int32_t route_link(const struct tess_route_search *search, int32_t from, int32_t to,
                          const struct tess_topo_link *like)
{
    for (int32_t k = search->first[from]; k < search->first[from + 1]; k++) {
        const struct tess_topo_link *link = &search->topology->link[search->out[k]];
        if (link->to == to && link->kind == like->kind && link->gbs == like->gbs)
            return search->out[k];
    }
    return -1;
}

/* GB/s of the NIC's widest link into the network; 0: the node is no NIC, or has none. */
static double route_nic_gbs(const struct tess_route_search *search, int32_t node)
{
    const struct tess_topology *topology = search->topology;
    double gbs = 0;
    if (topology->node[node].kind != TESS_NODE_NIC)
        return 0;
    for (int32_t k = search->first[node]; k < search->first[node + 1]; k++)
        if (topology->link[search->out[k]].kind == TESS_LINK_NET)
            gbs = fmax(gbs, topology->link[search->out[k]].gbs);
    return gbs;
}

/* The NIC of the node's host that is the fewest links away; -1. depth: last visitor, 1 + node. */
static int32_t route_nearest_nic(struct tess_route_search *search, int32_t source)
{
    const struct tess_topology *topology = search->topology;
    int32_t queued = 0;
    search->depth[source] = source + 1;
    search->queue[queued++] = source;
    for (int32_t head = 0; head < queued; head++) {
        int32_t node = search->queue[head];
        if (route_nic_gbs(search, node) > 0)
            return node;
        for (int32_t k = search->first[node]; k < search->first[node + 1]; k++) {
            const struct tess_topo_link *link = &topology->link[search->out[k]];
            const struct tess_node *to = &topology->node[link->to];
            if (link->kind == TESS_LINK_NVLINK || to->host != topology->node[source].host ||
                to->kind == TESS_NODE_DEVICE || search->depth[link->to] == source + 1)
                continue;
            search->depth[link->to] = source + 1;
            search->queue[queued++] = link->to;
        }
    }
    return -1;
}

/* Of each device: which one it is, by node, of those with its nearest NIC. */
static void route_take_turns(struct tess_route_search *search)
{
    const struct tess_topology *topology = search->topology;
    int32_t *met = search->came; /* devices at a NIC so far */
    memset(met, 0, (size_t)topology->node_count * sizeof(*met));
    memset(search->depth, 0, (size_t)topology->node_count * sizeof(*search->depth));
    for (int32_t i = 0; i < topology->node_count; i++) {
        const struct tess_node *node = &topology->node[i];
        bool inside = node->kind == TESS_NODE_DEVICE && node->host >= 0;
        int32_t nic = inside ? route_nearest_nic(search, i) : -1;
        search->turn[i] = nic >= 0 ? met[nic]++ : -1;
    }
}

/* The NIC by which a route leaves its host, or comes into one: place of the first of its two links
 * in the route, -1: none. */
static int32_t route_nic(const struct tess_route_search *search, const struct tess_route *route,
                         bool leaves)
{
    const struct tess_topology *topology = search->topology;
    for (int32_t i = 0; i + 1 < route->link_count; i++) {
        int32_t k = leaves ? i : route->link_count - 2 - i;
        int32_t at = topology->link[search->routes->link[route->first + k]].to;
        if (topology->node[at].kind == TESS_NODE_NIC)
            return k;
    }
    return -1;
}

/* Puts NIC number `turn`, of those between the same two nodes with the same links, in its place. */
static void route_turn_nic(struct tess_route_search *search, const struct tess_route *route,
                           int32_t place, int32_t turn)
{
    const struct tess_topology *topology = search->topology;
    int32_t *link = search->routes->link + route->first + place;
    const struct tess_topo_link *in = &topology->link[link[0]], *out = &topology->link[link[1]];
    int32_t pair[ROUTE_NICS_MAX][2], found = 0;
    for (int32_t k = search->first[in->from]; k < search->first[in->from + 1]; k++) {
        const struct tess_topo_link *other = &topology->link[search->out[k]];
        if (other->kind != in->kind || other->gbs != in->gbs || found == ROUTE_NICS_MAX ||
            topology->node[other->to].kind != TESS_NODE_NIC ||
            topology->node[other->to].host != topology->node[in->to].host)
            continue;
        pair[found][0] = search->out[k];
        pair[found][1] = route_link(search, other->to, out->to, out);
        found += pair[found][1] >= 0;
    }
    if (found > 1 && turn >= 0)
        memcpy(link, pair[turn % found], sizeof(pair[0]));
}

/* place[], beside[] of NICs: which one it is of how many that the same node reaches by equal links,
 * and that are as fast. */
static void route_number_nics(struct tess_route_search *search)
{
    const struct tess_topology *topology = search->topology;
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *in = &topology->link[i];
        double gbs = in->kind == TESS_LINK_NET ? 0 : route_nic_gbs(search, in->to);
        int32_t found = 0;
        if (gbs == 0 || search->beside[in->to] > 0)
            continue;
        for (int32_t k = search->first[in->from]; k < search->first[in->from + 1]; k++) {
            const struct tess_topo_link *other = &topology->link[search->out[k]];
            if (other->kind != in->kind || other->gbs != in->gbs ||
                topology->node[other->to].host != topology->node[in->to].host ||
                route_nic_gbs(search, other->to) != gbs)
                continue;
            if (other->to == in->to)
                search->place[in->to] = found;
            found++;
        }
        search->beside[in->to] = found;
    }
}

/* Leaves the first ways to those that lead over NIC number `turn` of those side by side, on the
 * source's host or on `all` of them; where there is one as wide and as short. */
static void route_lead_over(struct tess_route_search *search, int32_t from, int32_t turn, bool all)
{
    const struct tess_topology *topology = search->topology;
    int32_t source = topology->device[from], *links = search->routes->link;
    double last = 0; /* width of the ways that were searched */
    for (int32_t i = 0; i < topology->node_count; i++)
        search->shut[i] = search->beside[i] > 1 && search->place[i] != turn % search->beside[i] &&
                          (all || topology->node[i].host == search->source_host);
    route_widest(search, source);
    for (int32_t to = 0; to < topology->device_count; to++) {
        const struct tess_route *route = &search->row[to];
        int32_t target = topology->device[to];
        if (route->kind != TESS_PATH_NET || search->width[target] != route->gbs)
            continue;
        if (route->gbs != last)
            route_shortest(search, source, route->gbs);
        last = route->gbs;
        if (search->came[target] < 0 || search->depth[target] != route->link_count)
            continue;
        for (int32_t i = route->link_count, node = target; i > 0; i--) {
            links[route->first + i - 1] = search->came[node];
            node = topology->link[search->came[node]].from;
        }
    }
    memset(search->shut, 0, (size_t)topology->node_count * sizeof(*search->shut));
}

/*
 * Devices that would all use the first of several NICs side by side take turns, in order of their
 * numbers: among equal ways the sender chooses.
 */
static void route_spread_nics(struct tess_route_search *search, int32_t from)
{
    const struct tess_topology *topology = search->topology;
    int32_t own = search->turn[topology->device[from]];
    bool network = false;
    for (int32_t to = 0; to < topology->device_count; to++)
        network = network || search->row[to].kind == TESS_PATH_NET;
    if (network && own >= 0) {
        /* NICs may lead to switches of their own, as rails do: in by the rail that it is out by. */
        route_lead_over(search, from, own, false);
        route_lead_over(search, from, own, true);
    }
    for (int32_t to = 0; to < topology->device_count; to++) {
        const struct tess_route *route = &search->row[to];
        int32_t leave = route->kind == TESS_PATH_NET ? route_nic(search, route, true) : -1;
        int32_t enter = leave < 0 ? -1 : route_nic(search, route, false);
        /* One NIC alone is that of the end which is on a host. */
        if (enter >= 0 && (leave != enter || own < 0))
            route_turn_nic(search, route, enter, search->turn[topology->device[to]]);
    }
}

/* ---- opening -------------------------------------------------------------------------------- */

/* By node that they leave, then by the one they lead to, then by number; key: scratch. */
static void route_sort_links(struct tess_route_search *search, int32_t *key)
{
    const struct tess_topology *topology = search->topology;
    int32_t nodes = topology->node_count, links = topology->link_count;
    int32_t *by_target = search->queue;
    for (int32_t i = 0; i < links; i++)
        key[i] = topology->link[i].to;
    tess__sort_by_key(links, nodes, key, search->first, by_target);
    for (int32_t i = 0; i < links; i++)
        key[i] = topology->link[by_target[i]].from;
    tess__sort_by_key(links, nodes, key, search->first,
                      search->out); /* keeps equal ones in order */
    for (int32_t i = 0; i < links; i++) {
        search->out[i] = by_target[search->out[i]];
        search->target[i] = topology->link[search->out[i]].to;
    }
    for (int32_t i = 0; i < nodes; i++)
        search->host[i] = topology->node[i].host;
}

void tess_route_search_close(struct tess_route_search *search)
{
    if (search == NULL)
        return;
    tess__pool_release(&search->pool);
    free(search);
}

enum tess_status tess_route_search_open(const struct tess_topology *topology,
                                        struct tess_route_search **search_out)
{
    size_t nodes = (size_t)topology->node_count, links = (size_t)topology->link_count;
    struct tess_route_search *search = calloc(1, sizeof(*search));
    if (search == NULL)
        return tess__no_memory("the routes");
    search->topology = topology;
    int32_t *key, **list[] = {&search->target,
                              &search->host,
                              &search->first,
                              &search->met,
                              &search->came,
                              &search->depth,
                              &search->turn,
                              &search->place,
                              &search->beside,
                              &search->shut,
                              &search->out,
                              &search->queue,
                              &key};
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
        *list[i] = tess__pool_array(&search->pool, nodes + links + 1, sizeof(int32_t));
    search->width = tess__pool_array(&search->pool, nodes, sizeof(*search->width));
    search->heap = tess__pool_array(&search->pool, links, sizeof(*search->heap));
    if (search->pool.failed) {
        tess_route_search_close(search);
        return tess__no_memory("the routes");
    }
    route_sort_links(search, key);
    route_take_turns(search);
    route_number_nics(search);
    memset(search->came, -1, nodes * sizeof(*search->came));
    *search_out = search;
    return TESS_OK;
}

/* Of the source, into search->row and behind the links that search->routes has. */
static enum tess_status route_row(struct tess_route_search *search, int32_t from)
{
    static const enum tess_path_kind level[] = {TESS_PATH_NVL, TESS_PATH_C2C, TESS_PATH_PXB,
                                                TESS_PATH_PHB, TESS_PATH_SYS, TESS_PATH_NET};
    const struct tess_topology *topology = search->topology;
    for (int32_t to = 0; to < topology->device_count; to++)
        search->row[to] = (struct tess_route){.kind = TESS_PATH_NONE};
    search->row[from] = (struct tess_route){.kind = TESS_PATH_LOC, .gbs = TESS_GBS_LOCAL};
    search->source_host = topology->node[topology->device[from]].host;
    /* To one device: other hosts lead nowhere. */
    search->all_hosts = topology->device_count > 2;
    search->target_host = topology->node[topology->device[topology->device_count - 1 - from]].host;
    bool all = false;
    for (size_t k = 0; k < sizeof(level) / sizeof(level[0]) && !all; k++) {
        search->level = level[k];
        TESS_TRY(route_level(search, from, &all));
    }
    route_spread_nics(search, from);
    return TESS_OK;
}

enum tess_status tess_route_from(struct tess_route_search *search, int32_t from,
                                 struct tess_routes *row_out)
{
    size_t count = (size_t)search->topology->device_count;
    *row_out = (struct tess_routes){.topology = search->topology, .device_count = (int32_t)count};
    search->routes = row_out;
    search->row = row_out->route = malloc(count * sizeof(*row_out->route));
    search->room = search->used = 0;
    enum tess_status status = search->row ? route_row(search, from) : tess__no_memory("the routes");
    if (status != TESS_OK)
        tess_routes_free(row_out);
    return status;
}

enum tess_status tess_routes_open(const struct tess_topology *topology,
                                  struct tess_routes *routes_out)
{
    int32_t count = topology->device_count;
    *routes_out = (struct tess_routes){.topology = topology, .device_count = count};
    if (count < 1 || count > ROUTE_DEVICES_MAX)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "routes between %d devices are requested; expected 1 to %d, choose some",
                  (int)count, ROUTE_DEVICES_MAX);
    struct tess_route_search *search;
    TESS_TRY(tess_route_search_open(topology, &search));
    enum tess_status status = TESS_OK;
    search->routes = routes_out;
    routes_out->route = malloc((size_t)count * (size_t)count * sizeof(*routes_out->route));
    if (!routes_out->route)
        status = tess__no_memory("the routes");
    for (int32_t from = 0; from < count && status == TESS_OK; from++) {
        search->row = routes_out->route + (size_t)from * (size_t)count;
        status = route_row(search, from);
    }
    tess_route_search_close(search);
    if (status != TESS_OK)
        tess_routes_free(routes_out);
    return status;
}

void tess_routes_free(struct tess_routes *routes)
{
    free(routes->route);
    free(routes->link);
    *routes = (struct tess_routes){0};
}
