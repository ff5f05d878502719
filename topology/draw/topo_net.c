/*
 * The network of a cluster as a tree of switches, for showing it: the one furthest from all hosts
 * is the root. A network that is no tree is shown by one that spans it.
 */
#include "topology/draw/topo_svg.h"

#include <string.h>

#define NET_ROOTS_MAX 64

struct net_build {
    const struct tess_topology *topology;
    struct tess__topo_net *net;
    int32_t *distance, *degree, *queue; /* [node_count] */
};

static bool net_is(const struct tess_topology *topology, int32_t node)
{
    return topology->node[node].kind == TESS_NODE_NET;
}

/* The switch of each host: that of its widest link. */
static void net_leaves(struct net_build *build)
{
    const struct tess_topology *topology = build->topology;
    struct tess__topo_net *net = build->net;
    double *widest = tess__pool_array(&net->pool, (size_t)topology->host_count, sizeof(*widest));
    for (int32_t i = 0; i < topology->link_count && widest; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        int32_t host = topology->node[link->from].host;
        if (net_is(topology, link->to))
            build->degree[link->to]++;
        if (host < 0 || !net_is(topology, link->to) || link->gbs <= widest[host])
            continue;
        widest[host] = link->gbs;
        net->leaf[host] = link->to;
    }
    for (int32_t host = 0; host < topology->host_count; host++)
        if (net->leaf[host] >= 0)
            net->hosts[net->leaf[host]]++;
}

/* Switches of the same hosts as one that is their leaf are shown with it. */
static void net_rails(struct net_build *build)
{
    const struct tess_topology *topology = build->topology;
    struct tess__topo_net *net = build->net;
    const size_t nodes = (size_t)topology->node_count;
    int32_t *leaf = tess__pool_array(&net->pool, nodes, sizeof(*leaf));
    int32_t *hosts = tess__pool_array(&net->pool, nodes, sizeof(*hosts));
    int32_t *last = tess__pool_array(&net->pool, nodes, sizeof(*last));
    if (net->pool.failed)
        return;
    /* Hosts by a switch's links, as they follow each other; leaf: 1 + the only one, -1: several. */
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        const int32_t host = topology->node[link->from].host, to = link->to;
        if (host < 0 || !net_is(topology, to) || net->leaf[host] < 0)
            continue;
        if (last[to] != host + 1)
            hosts[to]++;
        last[to] = host + 1;
        leaf[to] = leaf[to] == 0 || leaf[to] == net->leaf[host] + 1 ? net->leaf[host] + 1 : -1;
    }
    for (int32_t i = 0; i < topology->node_count; i++) {
        if (net->hosts[i] > 0 || leaf[i] < 1 || hosts[i] != net->hosts[leaf[i] - 1])
            continue;
        net->beside[leaf[i] - 1]++;
        net->beside[i] = -1;
    }
}

/* Breadth first over the switches from those in queue[0 .. queued), whose number it returns;
 * parents where not NULL. */
static int32_t net_spread(struct net_build *build, const int32_t *first, const int32_t *link,
                          int32_t queued, int32_t *parent)
{
    for (int32_t head = 0; head < queued; head++) {
        int32_t at = build->queue[head];
        for (int32_t k = first[at]; k < first[at + 1]; k++) {
            int32_t to = build->topology->link[link[k]].to;
            if (!net_is(build->topology, to) || build->distance[to] >= 0 ||
                build->net->beside[to] < 0)
                continue;
            build->distance[to] = build->distance[at] + 1;
            if (parent)
                parent[to] = at;
            build->queue[queued++] = to;
        }
    }
    return queued;
}

/* Of the switches without a place: the furthest from hosts, then the one with most links. */
static int32_t net_root(const struct net_build *build, const int32_t *far, const bool *placed)
{
    int32_t root = -1;
    for (int32_t i = 0; i < build->topology->node_count; i++) {
        if (!net_is(build->topology, i) || placed[i] || build->net->beside[i] < 0)
            continue;
        if (root < 0 || far[i] > far[root] ||
            (far[i] == far[root] && build->degree[i] > build->degree[root]))
            root = i;
    }
    return root;
}

static void net_attach(struct tess__topo_net *net, const int32_t *queue, int32_t queued)
{
    /* The last are the deepest: levels grow towards the root; children come out in order. */
    for (int32_t k = queued - 1; k >= 0; k--) {
        int32_t node = queue[k], up = net->parent[node];
        if (up < 0)
            continue;
        net->next[node] = net->first[up];
        net->first[up] = node;
        if (net->level[up] < net->level[node] + 1)
            net->level[up] = net->level[node] + 1;
    }
}

static void net_trees(struct net_build *build)
{
    const struct tess_topology *topology = build->topology;
    struct tess__topo_net *net = build->net;
    const size_t nodes = (size_t)topology->node_count, links = (size_t)topology->link_count;
    int32_t *far = tess__pool_array(&net->pool, nodes, sizeof(*far)), queued = 0, root;
    bool *placed = tess__pool_array(&net->pool, nodes, sizeof(*placed));
    /* Links between switches by the one they leave: link[first[n] .. first[n + 1]). */
    int32_t *key = tess__pool_array(&net->pool, links, sizeof(*key));
    int32_t *first = tess__pool_array(&net->pool, nodes + 1, sizeof(*first));
    int32_t *link = tess__pool_array(&net->pool, links, sizeof(*link));
    if (net->pool.failed)
        return;
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *at = &topology->link[i];
        key[i] = net_is(topology, at->from) && net_is(topology, at->to) ? at->from : -1;
    }
    tess__sort_by_key(topology->link_count, topology->node_count, key, first, link);
    memset(build->distance, -1, nodes * sizeof(*build->distance));
    for (int32_t i = 0; i < topology->node_count; i++) {
        if (net->hosts[i] == 0)
            continue;
        build->distance[i] = 0;
        build->queue[queued++] = i;
    }
    net_spread(build, first, link, queued, NULL);
    memcpy(far, build->distance, nodes * sizeof(*far));
    memset(build->distance, -1, nodes * sizeof(*build->distance));
    while (net->root_count < NET_ROOTS_MAX && (root = net_root(build, far, placed)) >= 0) {
        build->queue[0] = root;
        build->distance[root] = 0;
        queued = net_spread(build, first, link, 1, net->parent);
        for (int32_t k = 0; k < queued; k++)
            placed[build->queue[k]] = true;
        net_attach(net, build->queue, queued);
        net->roots[net->root_count++] = root;
        if (net->level_count < net->level[root] + 1)
            net->level_count = net->level[root] + 1;
    }
}

enum tess_status tess__topo_net_open(const struct tess_topology *topology,
                                     struct tess__topo_net *net)
{
    size_t nodes = (size_t)topology->node_count;
    struct net_build build = {.topology = topology, .net = net};
    int32_t **list[] = {&net->parent,    &net->first,   &net->next, /* -1 at first, the others 0 */
                        &net->level,     &net->hosts,   &net->beside,
                        &build.distance, &build.degree, &build.queue};
    *net = (struct tess__topo_net){0};
    net->roots = tess__pool_array(&net->pool, NET_ROOTS_MAX, sizeof(*net->roots));
    net->leaf = tess__pool_array(&net->pool, (size_t)topology->host_count, sizeof(*net->leaf));
    for (int i = 0; i < 9; i++)
        *list[i] = tess__pool_array(&net->pool, nodes, sizeof(int32_t));
    if (!net->pool.failed) {
        for (int i = 0; i < 3; i++)
            memset(*list[i], -1, nodes * sizeof(int32_t));
        memset(net->leaf, -1, (size_t)topology->host_count * sizeof(*net->leaf));
        net_leaves(&build);
        net_rails(&build);
        net_trees(&build);
    }
    return net->pool.failed ? tess__no_memory("the network's switches") : TESS_OK;
}
