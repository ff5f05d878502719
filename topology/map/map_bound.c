/*
 * A lower bound for all mappings. Any set of nodes of the topology is a cut: with m of the places
 * in it, the mesh sends at least f(m) bytes out of whichever m ranks are there, over the links that
 * lead out of it. So f(m) / (sum of their capacities) is a bound, and the greatest over devices,
 * switches, NUMA nodes, sockets, hosts, NVLink domains, racks and the branches of each switch of
 * the network is the answer.
 *
 * f(m), by induction over axes. A set X of ranks is cut into the k slices of the last axis, of
 * m_1 .. m_k ranks. Inside each slice at least f'(m_i) bytes leave it, f' that of the mesh without
 * the axis. Along the axis a line of k ranks that is neither all in X nor all outside has a hop
 * that leaves X, of w bytes; the ranks of the fullest slice that the emptiest one lacks lie on such
 * lines, at least max m_i - min m_i of them. Together, with [p, q] the two sizes on whose chord the
 * convex hull of f' at the mean m / k lies (Jensen's inequality),
 *
 *     f(m) >= min over p <= m / k <= q <= m of  w (q - p) + k * chord of f' from p to q at m / k
 *
 * What enters X leaves the other ranks, so f(m) = f(count - m) holds for the truth, and the greater
 * of the two is taken.
 *
 * A hop is not split over links. Where m is no multiple of an axis' count, some line of that axis
 * is neither all inside nor all outside, so that a hop of its w bytes leaves; where anything leaves
 * at all, a hop of the axis with the fewest does. So w / (widest link that leads out) is a bound.
 */
#include "tessera/check.h"
#include "topology/map/map_room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BOUND_BOTH_ORDERS 256 /* ranks up to which the axes are taken in both orders */
#define BOUND_NETS_MAX    256 /* switches of the network whose branches are tried */
#define BOUND_DEPTH       3   /* PCIe switches one below the other */

/* Links from a set to the rest, or the other way. */
struct bound_side {
    double gbs, widest; /* all together; the widest of them */
};

struct bound {
    struct tess__pool pool;
    const struct tess__map_model *model;
    double *crossing; /* [count + 1] f; -1: not worked out yet */
    double *level[2]; /* [count + 1] f' of all but the last axis: by rising and falling counts */
    int32_t sorted[2][TESS_MAP_AXES], ways;
    int32_t *label;              /* [node_count] set that a node is in; -1: none */
    int32_t *inside;             /* [node_count] places in the set */
    struct bound_side *out, *in; /* [node_count] of the set */
    int32_t *parent;             /* [node_count] towards the NUMA node; -1 */
    int32_t *depth;              /* [node_count] steps from the NUMA node */
    int32_t *queue;              /* [node_count] */
    int32_t *first, *next;       /* links that leave a node: first[node], next[link]; -1 */
    double best_s;
};

/* ---- bytes that must leave ------------------------------------------------------------------ */

/* The formula above: `below` [most + 1] is f' of the mesh without this axis. */
static double bound_step(const struct tess_map_axis *axis, const double *below, int32_t most,
                         int32_t inside)
{
    double w = axis->count > 1 ? axis->bytes : 0, mean = (double)inside / axis->count;
    double least = INFINITY;
    int32_t floor_mean = inside / axis->count, ceil_mean = floor_mean + (inside % axis->count > 0);
    if (floor_mean == ceil_mean)
        least = axis->count * below[floor_mean];
    most = most < inside ? most : inside;
    for (int32_t p = 0; p <= floor_mean; p++) {
        for (int32_t q = ceil_mean; q <= most && w * (q - p) < least; q++) {
            if (p == q)
                continue;
            double chord = ((q - mean) * below[p] + (mean - p) * below[q]) / (q - p);
            least = fmin(least, w * (q - p) + axis->count * chord);
        }
    }
    return least;
}

/* f' of all axes but the last in this order. */
static enum tess_status bound_level(struct bound *bound, int way)
{
    const struct tess__map_model *model = bound->model;
    double *level = bound->level[way];
    double *above = tess__pool_array(&bound->pool, (size_t)model->count, sizeof(*above));
    int32_t most = 1;
    if (!above)
        return tess__no_memory("the mapping of ranks");
    level[0] = level[1] = 0;
    for (int32_t k = 0; k + 1 < model->axis_count; k++) {
        const struct tess_map_axis *axis = &model->axis[bound->sorted[way][k]];
        int32_t all = most * axis->count;
        for (int32_t inside = 0; inside <= all; inside++)
            above[inside] = bound_step(axis, level, most, inside);
        for (int32_t inside = 0; inside <= all; inside++)
            level[inside] = fmax(above[inside], above[all - inside]);
        most = all;
    }
    return TESS_OK;
}

static double bound_crossing(struct bound *bound, int32_t inside)
{
    const struct tess__map_model *model = bound->model;
    double *f = &bound->crossing[inside];
    if (*f >= 0)
        return *f;
    *f = 0;
    for (int way = 0; way < bound->ways; way++) {
        const struct tess_map_axis *axis = &model->axis[bound->sorted[way][model->axis_count - 1]];
        const double *level = bound->level[way];
        int32_t most = model->count / axis->count;
        *f = fmax(*f, bound_step(axis, level, most, inside));
        *f = fmax(*f, bound_step(axis, level, most, model->count - inside));
    }
    return *f;
}

/* Bytes of the largest hop that must leave. */
static double bound_hop(const struct bound *bound, int32_t inside)
{
    const struct tess__map_model *model = bound->model;
    double most = 0, least = INFINITY;
    for (int32_t a = 0; a < model->axis_count; a++) {
        const struct tess_map_axis *axis = &model->axis[a];
        if (axis->count == 1 || !(axis->bytes > 0))
            continue;
        least = fmin(least, axis->bytes);
        if (inside % axis->count)
            most = fmax(most, axis->bytes);
    }
    return most > 0 ? most : least;
}

/* Axes by rising counts, which keeps the levels small; where these are small anyway, by falling
 * ones as well. */
static enum tess_status bound_levels(struct bound *bound)
{
    const struct tess__map_model *model = bound->model;
    bound->ways = model->count <= BOUND_BOTH_ORDERS ? 2 : 1;
    for (int32_t i = 0; i <= model->count; i++)
        bound->crossing[i] = -1;
    for (int way = 0; way < bound->ways; way++) {
        int32_t *sorted = bound->sorted[way];
        for (int32_t a = 0; a < model->axis_count; a++) {
            int32_t k = a;
            for (; k > 0; k--) {
                int32_t other = model->axis[sorted[k - 1]].count, own = model->axis[a].count;
                if (way == 0 ? other <= own : other >= own)
                    break;
                sorted[k] = sorted[k - 1];
            }
            sorted[k] = a;
        }
        TESS_TRY(bound_level(bound, way));
    }
    return TESS_OK;
}

/* ---- cuts ----------------------------------------------------------------------------------- */

static void bound_add(struct bound_side *side, double gbs)
{
    side->gbs += gbs;
    side->widest = fmax(side->widest, gbs);
}

/* Raises the bound by each set of nodes that bear the same label. */
static void bound_by_labels(struct bound *bound)
{
    const struct tess__map_model *model = bound->model;
    const struct tess_topology *topology = model->topology;
    size_t nodes = (size_t)topology->node_count;
    memset(bound->inside, 0, nodes * sizeof(*bound->inside));
    memset(bound->out, 0, nodes * sizeof(*bound->out));
    memset(bound->in, 0, nodes * sizeof(*bound->in));
    for (int32_t i = 0; i < model->count; i++) {
        int32_t label = bound->label[model->part.device[i]];
        if (label >= 0)
            bound->inside[label]++;
    }
    for (int32_t lane = 0; lane + 1 < model->lane_count; lane++) {
        const struct tess_topo_link *link = &topology->link[model->link[lane]];
        int32_t from = bound->label[link->from], to = bound->label[link->to];
        if (from != to && from >= 0)
            bound_add(&bound->out[from], link->gbs);
        if (from != to && to >= 0)
            bound_add(&bound->in[to], link->gbs);
    }
    for (int32_t set = 0; set < topology->node_count; set++) {
        int32_t inside = bound->inside[set];
        double gbs = fmin(bound->out[set].gbs, bound->in[set].gbs);
        double widest = fmin(bound->out[set].widest, bound->in[set].widest);
        double bytes = inside > 0 && inside < model->count ? bound_crossing(bound, inside) : 0;
        if (bytes > 0 && gbs > 0)
            bound->best_s = fmax(bound->best_s, fmax(bytes / (gbs * 1e9),
                                                     bound_hop(bound, inside) / (widest * 1e9)));
    }
}

static bool bound_is(const struct bound *bound, int32_t node, enum tess_node_kind kind)
{
    return bound->model->topology->node[node].kind == kind;
}

/* A node and what is attached to it, breadth first over PCIe and the other links inside a host. */
static int32_t bound_attached(struct bound *bound, int32_t root, bool sockets, int32_t queued)
{
    const struct tess_topology *topology = bound->model->topology;
    int32_t head = queued;
    bound->label[root] = root;
    bound->depth[root] = 0;
    bound->queue[queued++] = root;
    for (; head < queued; head++) {
        int32_t node = bound->queue[head];
        for (int32_t l = bound->first[node]; l >= 0; l = bound->next[l]) {
            const struct tess_topo_link *link = &topology->link[l];
            bool inside = link->kind == TESS_LINK_PCI || link->kind == TESS_LINK_LOCAL ||
                          link->kind == TESS_LINK_C2C;
            bool other = bound_is(bound, link->to, TESS_NODE_CPU) && !sockets;
            if (!inside || other || bound->label[link->to] >= 0 ||
                bound_is(bound, link->to, TESS_NODE_NET))
                continue;
            bound->label[link->to] = root;
            bound->parent[link->to] = node;
            bound->depth[link->to] = bound->depth[node] + 1;
            bound->queue[queued++] = link->to;
        }
    }
    return queued;
}

/* NUMA nodes with what is attached to them, or all of a socket's, which LOCAL links join. */
static int32_t bound_processors(struct bound *bound, bool sockets)
{
    const struct tess_topology *topology = bound->model->topology;
    int32_t queued = 0;
    memset(bound->label, -1, (size_t)topology->node_count * sizeof(*bound->label));
    for (int32_t i = 0; i < topology->node_count; i++) {
        if (bound_is(bound, i, TESS_NODE_CPU) && bound->label[i] < 0)
            queued = bound_attached(bound, i, sockets, queued);
    }
    bound_by_labels(bound);
    return queued;
}

static void bound_inside_hosts(struct bound *bound)
{
    (void)bound_processors(bound, true);
    int32_t queued = bound_processors(bound, false);
    /* PCIe switches so many steps below their processor. */
    for (int32_t depth = 1; depth <= BOUND_DEPTH; depth++) {
        memset(bound->label, -1, (size_t)bound->model->topology->node_count * sizeof(int32_t));
        for (int32_t i = 0; i < queued; i++) {
            int32_t node = bound->queue[i];
            if (bound->depth[node] > depth)
                bound->label[node] = bound->label[bound->parent[node]];
            else if (bound->depth[node] == depth && bound_is(bound, node, TESS_NODE_PCI))
                bound->label[node] = node;
        }
        bound_by_labels(bound);
    }
}

/* Devices one by one, hosts with and without their NICs, and NVLink domains. */
static enum tess_status bound_plain(struct bound *bound)
{
    const struct tess__map_model *model = bound->model;
    const struct tess_topology *topology = model->topology;
    for (int32_t i = 0; i < topology->node_count; i++)
        bound->label[i] = bound_is(bound, i, TESS_NODE_DEVICE) ? i : -1;
    bound_by_labels(bound);
    for (int32_t i = 0; i < topology->node_count; i++) {
        int32_t host = topology->node[i].host;
        bool of_host = !bound_is(bound, i, TESS_NODE_NET) && host < topology->node_count;
        bound->label[i] = of_host ? host : -1;
    }
    bound_by_labels(bound);
    for (int32_t i = 0; i < topology->node_count; i++) {
        if (bound_is(bound, i, TESS_NODE_NIC))
            bound->label[i] = -1;
    }
    bound_by_labels(bound);
    TESS_TRY(tess__map_domains(model, bound->queue));
    memset(bound->label, -1, (size_t)topology->node_count * sizeof(*bound->label));
    for (int32_t i = 0; i < model->count; i++)
        bound->label[model->part.device[i]] = bound->queue[i];
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        if (link->kind == TESS_LINK_NVLINK && bound_is(bound, link->to, TESS_NODE_NVSWITCH) &&
            bound_is(bound, link->from, TESS_NODE_DEVICE) && bound->label[link->from] >= 0)
            bound->label[link->to] = bound->label[link->from];
    }
    bound_by_labels(bound);
    return TESS_OK;
}

/* ---- the network ---------------------------------------------------------------------------- */

/* Each switch with the hosts at it; a host at several counts for the first. */
static enum tess_status bound_racks(struct bound *bound)
{
    const struct tess_topology *topology = bound->model->topology;
    int32_t *net = tess__pool_array(&bound->pool, (size_t)topology->host_count, sizeof(*net));
    if (!net)
        return tess__no_memory("the mapping of ranks");
    for (int32_t h = 0; h < topology->host_count; h++)
        net[h] = -1;
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        int32_t host = topology->node[link->from].host;
        if (bound_is(bound, link->to, TESS_NODE_NET) &&
            !bound_is(bound, link->from, TESS_NODE_NET) && host >= 0 && net[host] < 0)
            net[host] = link->to;
    }
    for (int32_t i = 0; i < topology->node_count; i++) {
        int32_t host = topology->node[i].host;
        bound->label[i] = bound_is(bound, i, TESS_NODE_NET) ? i : host >= 0 ? net[host] : -1;
    }
    bound_by_labels(bound);
    return TESS_OK;
}

/* What falls apart where a switch of the network is taken away: its branches. */
static void bound_without(struct bound *bound, int32_t net)
{
    const struct tess_topology *topology = bound->model->topology;
    memset(bound->label, -1, (size_t)topology->node_count * sizeof(*bound->label));
    for (int32_t root = 0; root < topology->node_count; root++) {
        int32_t queued = 0;
        if (root == net || bound->label[root] >= 0)
            continue;
        bound->label[root] = root;
        bound->queue[queued++] = root;
        for (int32_t head = 0; head < queued; head++) {
            for (int32_t l = bound->first[bound->queue[head]]; l >= 0; l = bound->next[l]) {
                int32_t to = topology->link[l].to;
                if (to == net || bound->label[to] >= 0)
                    continue;
                bound->label[to] = root;
                bound->queue[queued++] = to;
            }
        }
    }
    bound_by_labels(bound);
}

static void bound_branches(struct bound *bound)
{
    const struct tess_topology *topology = bound->model->topology;
    int32_t looked = 0;
    for (int32_t net = 0; net < topology->node_count && looked < BOUND_NETS_MAX; net++) {
        int32_t others = 0;
        if (!bound_is(bound, net, TESS_NODE_NET))
            continue;
        for (int32_t l = bound->first[net]; l >= 0; l = bound->next[l])
            others += bound_is(bound, topology->link[l].to, TESS_NODE_NET);
        /* A switch at the edge has hosts for branches, which are tried as hosts. */
        if (others > 1) {
            bound_without(bound, net);
            looked++;
        }
    }
}

/* ---- the whole ------------------------------------------------------------------------------ */

static enum tess_status bound_open(struct bound *bound, const struct tess__map_model *model)
{
    const struct tess_topology *topology = model->topology;
    size_t count = (size_t)model->count + 1, nodes = (size_t)topology->node_count + 1;
    *bound = (struct bound){.model = model};
    bound->crossing = tess__pool_array(&bound->pool, count, sizeof(*bound->crossing));
    bound->level[0] = tess__pool_array(&bound->pool, count, sizeof(*bound->level[0]));
    bound->level[1] = tess__pool_array(&bound->pool, count, sizeof(*bound->level[1]));
    bound->out = tess__pool_array(&bound->pool, nodes, sizeof(*bound->out));
    bound->in = tess__pool_array(&bound->pool, nodes, sizeof(*bound->in));
    int32_t **list[] = {&bound->label, &bound->inside, &bound->parent,
                        &bound->depth, &bound->queue,  &bound->first};
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
        *list[i] = tess__pool_array(&bound->pool, nodes, sizeof(int32_t));
    bound->next = tess__pool_array(&bound->pool, (size_t)topology->link_count, sizeof(int32_t));
    if (bound->pool.failed)
        return tess__no_memory("the mapping of ranks");
    for (size_t i = 0; i < nodes; i++)
        bound->first[i] = bound->parent[i] = -1;
    for (int32_t l = topology->link_count - 1; l >= 0; l--) {
        bound->next[l] = bound->first[topology->link[l].from];
        bound->first[topology->link[l].from] = l;
    }
    return TESS_OK;
}

enum tess_status tess__map_bound(const struct tess__map_model *model, double *bound_s_out)
{
    struct bound bound;
    enum tess_status status;
    TESS_TRY_GOTO(status, done, bound_open(&bound, model));
    TESS_TRY_GOTO(status, done, bound_levels(&bound));
    TESS_TRY_GOTO(status, done, bound_plain(&bound));
    TESS_TRY_GOTO(status, done, bound_racks(&bound));
    bound_inside_hosts(&bound);
    bound_branches(&bound);
    *bound_s_out = bound.best_s;
done:
    tess__pool_release(&bound.pool);
    return status;
}
