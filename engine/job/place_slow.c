/* Links of a topology that became slow (place_slow.h). */
#include "job/place_slow.h"

#include "topology/machine/topology.h"

#include <stdio.h>

_Static_assert(TESS__SLOWED_END == TESS_TOPO_NAME_MAX, "a node's name fits");

void tess__slowed_add(struct tess__slowed *part, const struct tess_topology *topology,
                      const struct tess_topo_link *link)
{
    if (part->link_count == TESS__SLOWED_LINKS)
        return;
    char(*end)[TESS__SLOWED_END] = part->link[part->link_count++];
    snprintf(end[0], sizeof(end[0]), "%s", topology->node[link->from].name);
    snprintf(end[1], sizeof(end[1]), "%s", topology->node[link->to].name);
}

void tess__slowed_add_host(struct tess__slowed *part, const struct tess_topology *topology,
                           int32_t device)
{
    const struct tess_node *node = topology->node;
    const int32_t host = node[topology->device[device]].host;

    for (int32_t l = 0; l < topology->link_count; l++) {
        const struct tess_topo_link *link = &topology->link[l];

        if (host >= 0 && node[link->from].host == host && node[link->to].kind == TESS_NODE_NET)
            tess__slowed_add(part, topology, link);
    }
}

static void slow_link(struct tess_topology *topology, int32_t a, int32_t b, double share)
{
    for (int32_t l = 0; l < topology->link_count && a >= 0 && b >= 0; l++) {
        struct tess_topo_link *link = &topology->link[l];

        if ((link->from == a && link->to == b) || (link->from == b && link->to == a))
            link->gbs *= share;
    }
}

void tess__place_slow(struct tess_topology *topology, const struct tess__slowed_parts *parts)
{
    for (int32_t p = 0; parts != NULL && p < parts->count; p++) {
        const struct tess__slowed *part = &parts->part[p];

        for (int32_t i = 0; i < part->link_count; i++)
            slow_link(topology, tess_topology_find_name(topology, part->link[i][0]),
                      tess_topology_find_name(topology, part->link[i][1]), part->share);
    }
}
