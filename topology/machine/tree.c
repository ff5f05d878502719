/*
 * The tree of a machine: devices and NICs on PCIe switches, these on NUMA nodes; and which hosts
 * are equal. For the text and the picture of `tessera topo`.
 */
#include "topology/machine/tree.h"

#include <string.h>

/* Hosts with the same values are equal. */
struct tree_make {
    int32_t nodes[TESS_NODE_KIND_COUNT], links[TESS_LINK_KIND_COUNT], sm;
    double gbs[TESS_LINK_KIND_COUNT];
};

/* May the link carry the tree from above to below? */
static bool tree_carries(const struct tess_topology *topology, const struct tess_topo_link *link)
{
    const struct tess_node *from = &topology->node[link->from], *to = &topology->node[link->to];
    bool above = from->kind == TESS_NODE_CPU || from->kind == TESS_NODE_PCI;
    bool below =
        to->kind == TESS_NODE_PCI || to->kind == TESS_NODE_DEVICE || to->kind == TESS_NODE_NIC;
    return above && below && from->host == to->host &&
           (link->kind == TESS_LINK_PCI || link->kind == TESS_LINK_LOCAL ||
            link->kind == TESS_LINK_C2C);
}

/* Level by level from the NUMA nodes down; each pass attaches what the one before has reached. */
static void tree_build(const struct tess_topology *topology, struct tess__topo_tree *tree)
{
    bool *there = tess__pool_array(&tree->pool, (size_t)topology->node_count, sizeof(*there));
    bool more = true;
    if (there == NULL)
        return;
    for (int32_t i = 0; i < topology->node_count; i++)
        there[i] = topology->node[i].kind == TESS_NODE_CPU;
    for (int depth = 0; more && depth < TESS__TOPO_DEPTH_MAX; depth++) {
        more = false;
        for (int32_t i = 0; i < topology->link_count; i++) {
            const struct tess_topo_link *link = &topology->link[i];
            if (there[link->from] && !there[link->to] && tree->up[link->to] < 0 &&
                tree_carries(topology, link))
                tree->up[link->to] = i;
        }
        for (int32_t i = 0; i < topology->node_count; i++) {
            if (!there[i] && tree->up[i] >= 0)
                there[i] = more = true;
        }
    }
    for (int32_t i = topology->node_count - 1; i >= 0; i--) {
        if (tree->up[i] < 0)
            continue;
        int32_t *first = &tree->first[topology->link[tree->up[i]].from];
        tree->next[i] = *first;
        *first = i;
    }
}

static void tree_classify(const struct tess_topology *topology, struct tess__topo_tree *tree)
{
    int32_t hosts = topology->host_count, firsts[TESS__TOPO_CLASSES] = {0}, classes = 0;
    struct tree_make *make = tess__pool_array(&tree->pool, (size_t)hosts, sizeof(*make));
    if (!make)
        return;
    for (int32_t i = 0; i < topology->node_count; i++) {
        const struct tess_node *node = &topology->node[i];
        if (node->host < 0)
            continue;
        make[node->host].nodes[node->kind]++;
        if (node->kind == TESS_NODE_DEVICE)
            make[node->host].sm = node->sm;
    }
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        int32_t host = topology->node[link->from].host;
        if (host < 0)
            continue;
        make[host].links[link->kind]++;
        make[host].gbs[link->kind] += link->gbs;
    }
    /* Bytes between members are zero from the start. */
    for (int32_t host = 0; host < hosts; host++) {
        int32_t c = 0;
        while (c < classes && memcmp(&make[firsts[c]], &make[host], sizeof(*make)) != 0)
            c++;
        if (c == classes && classes < TESS__TOPO_CLASSES)
            firsts[classes++] = host;
        tree->class[host] = c < classes ? firsts[c] : -1;
    }
}

enum tess_status tess__topo_tree_open(const struct tess_topology *topology,
                                      struct tess__topo_tree *tree)
{
    size_t nodes = (size_t)topology->node_count;
    *tree = (struct tess__topo_tree){0};
    int32_t **list[] = {&tree->first, &tree->next, &tree->up, &tree->number};
    for (int i = 0; i < 4; i++) {
        *list[i] = tess__pool_array(&tree->pool, nodes, sizeof(int32_t));
        if (*list[i] != NULL)
            memset(*list[i], -1, nodes * sizeof(int32_t));
    }
    tree->class = tess__pool_array(&tree->pool, (size_t)topology->host_count, sizeof(int32_t));
    if (!tree->pool.failed) {
        for (int32_t i = 0; i < topology->device_count; i++)
            tree->number[topology->device[i]] = i;
        tree_classify(topology, tree);
        tree_build(topology, tree);
    }
    if (!tree->pool.failed)
        return TESS_OK;
    tess__topo_tree_close(tree);
    return tess__no_memory("the tree of the machine");
}

void tess__topo_tree_close(struct tess__topo_tree *tree)
{
    tess__pool_release(&tree->pool);
    *tree = (struct tess__topo_tree){0};
}

bool tess__topo_holds_device(const struct tess_topology *topology,
                             const struct tess__topo_tree *tree, int32_t node)
{
    enum tess_node_kind kind = topology->node[node].kind;
    if (kind != TESS_NODE_CPU && kind != TESS_NODE_PCI)
        return true;
    for (int32_t child = tree->first[node]; child >= 0; child = tree->next[child])
        if (tess__topo_holds_device(topology, tree, child))
            return true;
    return false;
}
