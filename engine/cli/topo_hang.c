/*
 * What hangs on what in a machine: devices and NICs on PCIe switches, these on NUMA nodes; and
 * which hosts are alike. For the text and the picture of `tessera topo`.
 */
#include "cli/topo.h"

#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

/* What makes hosts look alike. */
struct hang_make {
    int32_t nodes[TESS_NODE_KIND_COUNT], links[TESS_LINK_KIND_COUNT], sm;
    double gbs[TESS_LINK_KIND_COUNT];
};

static void hang_below(struct tess__topo_tree *tree, int32_t above, int32_t node)
{
    if (tree->first[above] < 0)
        tree->first[above] = node;
    else
        tree->next[tree->last[above]] = node;
    tree->last[above] = node;
}

/* May the link carry the tree from above to what hangs below? */
static bool hang_holds(const struct tess_topology *topology, const struct tess_topo_link *link)
{
    const struct tess_node *from = &topology->node[link->from], *to = &topology->node[link->to];
    bool above = from->kind == TESS_NODE_CPU || from->kind == TESS_NODE_PCI;
    bool below =
        to->kind == TESS_NODE_PCI || to->kind == TESS_NODE_DEVICE || to->kind == TESS_NODE_NIC;
    return above && below && from->host == to->host &&
           (link->kind == TESS_LINK_PCI || link->kind == TESS_LINK_LOCAL ||
            link->kind == TESS_LINK_C2C);
}

/* Level by level from the NUMA nodes down; each pass hangs what the one before has reached. */
static bool hang_build(const struct tess_topology *topology, struct tess__topo_tree *tree)
{
    bool *there = calloc((size_t)topology->node_count, sizeof *there), more = true;
    if (!there)
        return false;
    for (int32_t i = 0; i < topology->node_count; i++)
        there[i] = topology->node[i].kind == TESS_NODE_CPU;
    for (int depth = 0; more && depth < TESS__TOPO_DEPTH_MAX; depth++) {
        more = false;
        for (int32_t i = 0; i < topology->link_count; i++) {
            const struct tess_topo_link *link = &topology->link[i];
            if (there[link->from] && !there[link->to] && tree->up[link->to] < 0 &&
                hang_holds(topology, link))
                tree->up[link->to] = i;
        }
        for (int32_t i = 0; i < topology->node_count; i++) {
            if (there[i] || tree->up[i] < 0)
                continue;
            there[i] = more = true;
        }
    }
    free(there);
    for (int32_t i = 0; i < topology->node_count; i++)
        if (tree->up[i] >= 0)
            hang_below(tree, topology->link[tree->up[i]].from, i);
    return true;
}

static bool hang_classify(const struct tess_topology *topology, int32_t *class)
{
    int32_t hosts = topology->host_count, firsts[TESS__TOPO_CLASSES] = {0}, classes = 0;
    struct hang_make *make = calloc((size_t)hosts + 1, sizeof *make);
    if (!make)
        return false;
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
    /* Bytes between members are zero, from calloc on. */
    for (int32_t host = 0; host < hosts; host++) {
        int32_t c = 0;
        while (c < classes && memcmp(&make[firsts[c]], &make[host], sizeof *make) != 0)
            c++;
        if (c == classes && classes < TESS__TOPO_CLASSES)
            firsts[classes++] = host;
        class[host] = c < classes ? firsts[c] : -1;
    }
    free(make);
    return true;
}

enum tess_status tess__topo_tree_open(const struct tess_topology *topology,
                                      struct tess__topo_tree *tree)
{
    size_t nodes = (size_t)topology->node_count;
    int32_t *memory = malloc((5 * nodes + (size_t)topology->host_count + 1) * sizeof *memory);
    *tree = (struct tess__topo_tree){.first = memory};
    if (memory) {
        memset(memory, -1, 5 * nodes * sizeof *memory);
        tree->next = memory + nodes;
        tree->last = memory + 2 * nodes;
        tree->up = memory + 3 * nodes;
        tree->number = memory + 4 * nodes;
        tree->class = memory + 5 * nodes;
        for (int32_t i = 0; i < topology->device_count; i++)
            tree->number[topology->device[i]] = i;
        if (hang_classify(topology, tree->class) && hang_build(topology, tree))
            return TESS_OK;
    }
    tess__topo_tree_close(tree);
    TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the tree of the machine");
}

void tess__topo_tree_close(struct tess__topo_tree *tree)
{
    free(tree->first);
    *tree = (struct tess__topo_tree){0};
}

static bool hang_bears(const struct tess_topology *topology, const struct tess__topo_tree *tree,
                       int32_t node, int depth)
{
    enum tess_node_kind kind = topology->node[node].kind;
    if (kind != TESS_NODE_CPU && kind != TESS_NODE_PCI)
        return true;
    for (int32_t child = tree->first[node]; child >= 0 && depth < TESS__TOPO_DEPTH_MAX;
         child = tree->next[child])
        if (hang_bears(topology, tree, child, depth + 1))
            return true;
    return false;
}

bool tess__topo_bears(const struct tess_topology *topology, const struct tess__topo_tree *tree,
                      int32_t node)
{
    return hang_bears(topology, tree, node, 0);
}
