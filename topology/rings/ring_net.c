/* See ring_net.h. */
#include "topology/rings/ring_net.h"

#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NET_VISITS_MAX 200000000 /* links visited on ways; about a second */
#define NET_CLIMB_MAX  256       /* branches between a link's end and where both meet */

static bool net_is_switch(const struct tess__ring_net *net, int32_t node)
{
    return net->topology->node[node].kind == TESS_NODE_NET;
}

enum tess_status tess__ring_net_open(struct tess__ring_net *net,
                                     const struct tess_topology *topology, const int32_t *unit,
                                     const bool *has_devices, int32_t units)
{
    size_t nodes = (size_t)topology->node_count, links = (size_t)topology->link_count;
    size_t all = nodes + (size_t)units;
    *net = (struct tess__ring_net){
        .topology = topology, .unit = unit, .has_devices = has_devices, .units = units};
    const struct {
        int32_t **list;
        size_t room;
    } wanted[] = {{&net->first, nodes + 2},
                  {&net->out, links},
                  {&net->inner, links},
                  {&net->order, all},
                  {&net->inner_first, nodes + 2},
                  {&net->parent, all},
                  {&net->met, all},
                  {&net->came, nodes},
                  {&net->queue, nodes},
                  {&net->mark, nodes},
                  {&net->depth, all},
                  {&net->steps, nodes}};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        *wanted[i].list = tess__pool_array(&net->pool, wanted[i].room, sizeof(int32_t));
    net->load = tess__pool_array(&net->pool, links, sizeof(*net->load));
    net->tight = tess__pool_array(&net->pool, nodes, sizeof(*net->tight));
    int32_t *key = tess__pool_array(&net->pool, links, sizeof(*key));
    if (net->pool.failed) {
        tess__ring_net_close(net);
        return tess__no_memory("the network between hosts");
    }
    for (int32_t i = 0; i < topology->link_count; i++) {
        int32_t from = topology->link[i].from;
        key[i] = net_is_switch(net, from) ? from : -1;
    }
    tess__sort_by_key(topology->link_count, topology->node_count, key, net->first, net->out);
    for (int32_t i = 0; i < topology->link_count; i++)
        key[i] = net_is_switch(net, topology->link[i].to) ? key[i] : -1;
    tess__sort_by_key(topology->link_count, topology->node_count, key, net->inner_first,
                      net->inner);
    return TESS_OK;
}

void tess__ring_net_close(struct tess__ring_net *net)
{
    tess__pool_release(&net->pool);
    *net = (struct tess__ring_net){0};
}

/* ---- the walk ------------------------------------------------------------------------------- */

static void net_meet(struct tess__ring_net *net, int32_t what, int32_t parent, bool *seen)
{
    seen[what] = true;
    net->parent[what] = parent;
    net->depth[what] = parent < 0 ? 0 : net->depth[parent] + 1;
    net->met[net->met_count++] = what;
}

/* From one switch, as its links come. */
static void net_walk_from(struct tess__ring_net *net, int32_t root, bool *seen)
{
    int32_t *at = net->came, *stack = net->queue; /* at: the next link of a switch on the stack */
    int32_t nodes = net->topology->node_count, depth = 0;
    net_meet(net, root, -1, seen);
    at[root] = net->first[root];
    stack[depth++] = root;
    while (depth > 0) {
        int32_t here = stack[depth - 1];
        if (at[here] == net->first[here + 1]) {
            depth--;
            continue;
        }
        int32_t to = net->topology->link[net->out[at[here]++]].to, unit = net->unit[to];
        if (net_is_switch(net, to) && !seen[to]) {
            net_meet(net, to, here, seen);
            at[to] = net->first[to];
            stack[depth++] = to;
        } else if (unit >= 0 && !seen[nodes + unit]) {
            net_meet(net, nodes + unit, here, seen);
            if (net->has_devices[unit])
                net->order[net->ordered++] = unit;
        }
    }
}

enum tess_status tess__ring_net_walk(struct tess__ring_net *net)
{
    int32_t nodes = net->topology->node_count, alone = -1;
    bool *seen = tess__pool_array(&net->pool, (size_t)nodes + (size_t)net->units, sizeof(*seen));
    if (!seen)
        return tess__no_memory("the order of hosts");
    for (int32_t root = 0; root < nodes; root++) {
        if (net_is_switch(net, root) && !seen[root])
            net_walk_from(net, root, seen);
    }
    for (int32_t unit = 0; unit < net->units && alone < 0; unit++)
        alone = net->has_devices[unit] && !seen[nodes + unit] ? unit : -1;
    for (int32_t i = 0; i < net->topology->device_count && alone >= 0; i++) {
        const struct tess_node *device = &net->topology->node[net->topology->device[i]];
        if (net->unit[net->topology->device[i]] == alone)
            TESS_FAIL(TESS_ERR_DATA,
                      "host %d of '%s' has no link to the network; expected all hosts to have one",
                      (int)device->host, device->name);
    }
    return TESS_OK;
}

/* ---- ways ----------------------------------------------------------------------------------- */

/* Visits the links of a switch on the shortest ways; false after too many visits. */
static bool net_reach(struct tess__ring_net *net, int32_t here, int32_t *queued, bool spread)
{
    const struct tess_topology *topology = net->topology;
    net->visits += net->inner_first[here + 1] - net->inner_first[here];
    for (int32_t k = net->inner_first[here]; k < net->inner_first[here + 1]; k++) {
        int32_t link = net->inner[k], next = topology->link[link].to;
        bool met = net->mark[next] == net->epoch;
        double tight = fmax(net->tight[here], net->load[link] / topology->link[link].gbs);
        if (met &&
            !(spread && net->steps[next] == net->steps[here] + 1 && tight < net->tight[next]))
            continue;
        net->came[next] = link;
        net->tight[next] = tight;
        if (met)
            continue;
        net->mark[next] = net->epoch;
        net->steps[next] = net->steps[here] + 1;
        net->queue[(*queued)++] = next;
    }
    return net->visits <= NET_VISITS_MAX;
}

bool tess__ring_net_add(struct tess__ring_net *net, int32_t from, int32_t to, double gbs,
                        bool spread)
{
    int32_t queued = 0;
    if (from < 0 || to < 0)
        return false;
    net->epoch++;
    net->mark[from] = net->epoch;
    net->steps[from] = 0;
    net->tight[from] = 0;
    net->queue[queued++] = from;
    for (int32_t head = 0; head < queued; head++) {
        int32_t here = net->queue[head];
        /* All that lead to the target come before those that are as far as it. */
        if (net->mark[to] == net->epoch && net->steps[here] >= net->steps[to])
            break;
        if (!net_reach(net, here, &queued, spread))
            return false;
    }
    if (net->mark[to] != net->epoch)
        return false;
    for (int32_t at = to; at != from; at = net->topology->link[net->came[at]].from)
        net->load[net->came[at]] += gbs;
    return true;
}

double tess__ring_net_share(struct tess__ring_net *net)
{
    double share = INFINITY;
    for (int32_t i = 0; i < net->topology->link_count; i++) {
        if (net->load[i] > 0)
            share = fmin(share, net->topology->link[i].gbs / net->load[i]);
        net->load[i] = 0;
    }
    return share;
}

/* ---- bounds --------------------------------------------------------------------------------- */

/* What a link's end is to the walk: a switch, or node_count + its unit; -1: neither. */
static int32_t net_place(const struct tess__ring_net *net, int32_t node)
{
    if (net_is_switch(net, node))
        return node;
    return net->unit[node] >= 0 ? net->topology->node_count + net->unit[node] : -1;
}

static bool net_is_between(const struct tess__ring_net *net, int32_t link)
{
    const struct tess_topo_link *of = &net->topology->link[link];
    return (net_is_switch(net, of->from) || net_is_switch(net, of->to)) &&
           net_place(net, of->from) >= 0 && net_place(net, of->to) >= 0;
}

struct net_sums {
    double *out, *in; /* [all] of the links that leave a set, and enter it */
    double *inside;   /* [all] of those whose ends meet here in the walk */
    int32_t *devices; /* [all] units with devices */
    int32_t *only; /* [all] a unit's only switch, or the switch itself; -1: a unit with several */
};

/* Where the branches of both meet; -1: nowhere, or too far. */
static int32_t net_meeting(const struct tess__ring_net *net, int32_t a, int32_t b)
{
    for (int32_t climbed = 0; a != b && climbed < NET_CLIMB_MAX; climbed++) {
        if (net->depth[a] >= net->depth[b])
            a = net->parent[a];
        else
            b = net->parent[b];
        if (a < 0 || b < 0)
            return -1;
    }
    return a == b ? a : -1;
}

/* The set's cuts, where there are units with devices on both sides. */
static double net_cut(const struct tess__ring_net *net, const struct net_sums *sums, int32_t set)
{
    if (sums->devices[set] < 1 || sums->devices[set] >= net->ordered)
        return INFINITY;
    return fmin(sums->out[set], sums->in[set]) - sums->inside[set];
}

/* Branches of the walk, among them the units. What does not meet is taken for leaving: a bound
 * that is too high is one still. */
static double net_branches(const struct tess__ring_net *net, const struct net_sums *sums)
{
    const struct tess_topology *topology = net->topology;
    double least = INFINITY;
    for (int32_t i = 0; i < topology->link_count; i++) {
        if (!net_is_between(net, i))
            continue;
        int32_t a = net_place(net, topology->link[i].from);
        int32_t b = net_place(net, topology->link[i].to), meet = net_meeting(net, a, b);
        sums->out[a] += topology->link[i].gbs;
        sums->in[b] += topology->link[i].gbs;
        if (meet >= 0)
            sums->inside[meet] += topology->link[i].gbs;
    }
    for (int32_t k = net->met_count - 1; k >= 0; k--) {
        int32_t set = net->met[k], parent = net->parent[set];
        least = fmin(least, net_cut(net, sums, set));
        if (parent < 0)
            continue;
        sums->out[parent] += sums->out[set];
        sums->in[parent] += sums->in[set];
        sums->inside[parent] += sums->inside[set];
        sums->devices[parent] += sums->devices[set];
    }
    return least;
}

/* Each switch with the units that have no other. */
static double net_leaves(const struct tess__ring_net *net, const struct net_sums *sums, size_t all)
{
    const struct tess_topology *topology = net->topology;
    int32_t nodes = topology->node_count;
    double least = INFINITY;
    memset(sums->out, 0, all * sizeof(*sums->out));
    memset(sums->in, 0, all * sizeof(*sums->in));
    memset(sums->inside, 0, all * sizeof(*sums->inside));
    memset(sums->devices, 0, all * sizeof(*sums->devices));
    for (int32_t k = 0; k < net->met_count; k++)
        sums->only[net->met[k]] = net->met[k] < nodes ? net->met[k] : net->parent[net->met[k]];
    for (int32_t i = 0; i < topology->link_count; i++) {
        if (!net_is_between(net, i))
            continue;
        int32_t a = net_place(net, topology->link[i].from);
        int32_t b = net_place(net, topology->link[i].to);
        if (a >= nodes && sums->only[a] != b)
            sums->only[a] = -1;
        if (b >= nodes && sums->only[b] != a)
            sums->only[b] = -1;
    }
    for (int32_t i = 0; i < topology->link_count; i++) {
        if (!net_is_between(net, i))
            continue;
        int32_t a = sums->only[net_place(net, topology->link[i].from)];
        int32_t b = sums->only[net_place(net, topology->link[i].to)];
        if (a != b && a >= 0)
            sums->out[a] += topology->link[i].gbs;
        if (a != b && b >= 0)
            sums->in[b] += topology->link[i].gbs;
    }
    for (int32_t unit = 0; unit < net->units; unit++) {
        int32_t leaf = sums->only[nodes + unit];
        if (net->has_devices[unit] && leaf >= 0)
            sums->devices[leaf]++;
    }
    for (int32_t node = 0; node < nodes; node++)
        least = fmin(least, net_cut(net, sums, node));
    return least;
}

struct net_wide {
    double gbs;
    int32_t link;
};

static int net_compare(const void *a, const void *b)
{
    const struct net_wide *x = a, *y = b;
    if (x->gbs != y->gbs)
        return x->gbs > y->gbs ? -1 : 1;
    return (x->link > y->link) - (x->link < y->link);
}

/* The widest links first, whichever way they lead, until all units with devices are connected. */
static enum tess_status net_narrowest(const struct tess__ring_net *net, int32_t *root,
                                      int32_t *devices, double *single)
{
    const struct tess_topology *topology = net->topology;
    int32_t all = topology->node_count + net->units, links = 0;
    struct net_wide *wide = malloc(((size_t)topology->link_count + 1) * sizeof(*wide));
    if (!wide)
        return tess__no_memory("the bound of rings");
    for (int32_t i = 0; i < all; i++) {
        root[i] = i;
        devices[i] = i >= topology->node_count && net->has_devices[i - topology->node_count];
    }
    for (int32_t i = 0; i < topology->link_count; i++) {
        if (net_is_between(net, i))
            wide[links++] = (struct net_wide){topology->link[i].gbs, i};
    }
    qsort(wide, (size_t)links, sizeof(*wide), net_compare);
    for (int32_t k = 0; k < links; k++) {
        const struct tess_topo_link *link = &topology->link[wide[k].link];
        int32_t a = tess__root(root, net_place(net, link->from));
        int32_t b = tess__root(root, net_place(net, link->to));
        if (a == b)
            continue;
        root[b] = a;
        devices[a] += devices[b];
        if (devices[a] == net->ordered) {
            *single = fmin(*single, link->gbs);
            break;
        }
    }
    free(wide);
    return TESS_OK;
}

enum tess_status tess__ring_net_bound(const struct tess__ring_net *net, double *single,
                                      double *wide)
{
    size_t all = (size_t)net->topology->node_count + (size_t)net->units + 1;
    struct tess__pool pool = {0};
    struct net_sums sums = {.out = tess__pool_array(&pool, all, sizeof(*sums.out)),
                            .in = tess__pool_array(&pool, all, sizeof(*sums.in)),
                            .inside = tess__pool_array(&pool, all, sizeof(*sums.inside)),
                            .devices = tess__pool_array(&pool, all, sizeof(*sums.devices)),
                            .only = tess__pool_array(&pool, all, sizeof(*sums.only))};
    enum tess_status status = pool.failed ? tess__no_memory("the bound of rings") : TESS_OK;
    if (status != TESS_OK || net->ordered < 2)
        goto done;
    memset(sums.only, -1, all * sizeof(*sums.only));
    for (int32_t unit = 0; unit < net->units; unit++)
        sums.devices[net->topology->node_count + unit] = net->has_devices[unit];
    *wide = fmin(*wide, net_branches(net, &sums));
    *wide = fmin(*wide, net_leaves(net, &sums, all));
    status = net_narrowest(net, sums.only, sums.devices, single);
done:
    tess__pool_release(&pool);
    return status;
}
