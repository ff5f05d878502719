/*
 * Units of a cluster, and what they have in common: see map_ways.c. Units of a make are made alike;
 * those of a class have links to the same switches, too.
 */
#include "base/hash.h"
#include "tessera/check.h"
#include "topology/map/map_ways.h"

#include <string.h>

/* unit[]: what links join without the network, and what is on one host. */
static void ways_find_units(struct tess__map_ways *ways)
{
    const struct tess_topology *topology = ways->topology;
    int32_t *parent = ways->scratch, *of_host = ways->local_link;
    for (int32_t n = 0; n < topology->node_count; n++)
        parent[n] = n;
    for (int32_t h = 0; h < topology->host_count; h++)
        of_host[h] = -1;
    for (int32_t n = 0; n < topology->node_count; n++) {
        const int32_t host = topology->node[n].host;
        if (ways_is_net(ways, n) || host < 0)
            continue;
        if (of_host[host] < 0)
            of_host[host] = n;
        parent[tess__root(parent, n)] = tess__root(parent, of_host[host]);
    }
    for (int32_t l = 0; l < topology->link_count; l++) {
        const int32_t from = topology->link[l].from, to = topology->link[l].to;
        if (!ways_is_net(ways, from) && !ways_is_net(ways, to))
            parent[tess__root(parent, to)] = tess__root(parent, from);
    }
    int32_t *number = ways->local_node;
    for (int32_t n = 0; n < topology->node_count; n++)
        number[n] = -1;
    for (int32_t n = 0; n < topology->node_count; n++) {
        const int32_t root = tess__root(parent, n);
        if (ways_is_net(ways, n)) {
            ways->unit[n] = -1;
            continue;
        }
        if (number[root] < 0)
            number[root] = ways->units++;
        ways->unit[n] = number[root];
    }
}

/* The lists by unit. */
static void ways_sort(struct tess__map_ways *ways)
{
    const struct tess_topology *topology = ways->topology;
    for (int32_t l = 0; l < topology->link_count; l++) {
        const int32_t from = ways->unit[topology->link[l].from];
        const int32_t to = ways->unit[topology->link[l].to];
        ways->link_unit[l] = from >= 0 ? from : to >= 0 ? to : ways->units;
    }
    tess__sort_by_key(topology->node_count, ways->units, ways->unit, ways->node_first, ways->node);
    tess__sort_by_key(topology->link_count, ways->units + 1, ways->link_unit, ways->link_first,
                      ways->link);
    for (int32_t u = 0; u < ways->units; u++)
        for (int32_t k = ways->node_first[u]; k < ways->node_first[u + 1]; k++)
            ways->local_node[ways->node[k]] = k - ways->node_first[u];
    for (int32_t u = 0; u <= ways->units; u++)
        for (int32_t k = ways->link_first[u]; k < ways->link_first[u + 1]; k++)
            ways->local_link[ways->link[k]] = k - ways->link_first[u];
}

/* place_first, place_node, local: the places of each unit in the order of its nodes. */
static void ways_find_places(struct tess__map_ways *ways)
{
    const struct tess_topology *topology = ways->topology;
    int32_t *place = ways->scratch, placed = 0; /* of a node; -1 */
    memset(place, -1, (size_t)topology->node_count * sizeof(*place));
    for (int32_t i = 0; i < topology->device_count; i++)
        place[topology->device[i]] = i;
    for (int32_t u = 0; u < ways->units; u++) {
        ways->place_first[u] = placed;
        for (int32_t k = ways->node_first[u]; k < ways->node_first[u + 1]; k++) {
            const int32_t node = ways->node[k];
            if (place[node] < 0)
                continue;
            ways->local[place[node]] = placed - ways->place_first[u];
            ways->place_node[placed++] = node;
        }
    }
    ways->place_first[ways->units] = placed;
}

int32_t tess__ways_gate(struct tess__map_ways *ways, int32_t unit, int32_t net)
{
    int32_t k = ways->gate_first[unit];
    for (; k < ways->gate_first[unit + 1]; k++)
        if (ways->gate[k] == net)
            return k - ways->gate_first[unit];
    ways->gate[ways->gate_first[unit + 1]++] = net;
    return k - ways->gate_first[unit];
}

/* How a unit is made, as numbers: all that routes in it depend on. Gates by their numbers. */
static size_t ways_print(struct tess__map_ways *ways, int32_t unit, double *print)
{
    const struct tess_topology *topology = ways->topology;
    const int32_t first = topology->node[ways->node[ways->node_first[unit]]].host;
    int32_t next = ways->place_first[unit];
    double *at = print;
    for (int32_t k = ways->node_first[unit]; k < ways->node_first[unit + 1]; k++) {
        const struct tess_node *node = &topology->node[ways->node[k]];
        const bool place =
            next < ways->place_first[unit + 1] && ways->place_node[next] == ways->node[k];
        next += place;
        *at++ = node->kind;
        *at++ = node->host < 0 ? -1 : node->host - first;
        *at++ = 2 * node->staged + place;
    }
    for (int32_t k = ways->link_first[unit]; k < ways->link_first[unit + 1]; k++) {
        const struct tess_topo_link *link = &topology->link[ways->link[k]];
        const int32_t from = ways->unit[link->from], to = ways->unit[link->to];
        *at++ = link->kind;
        *at++ =
            from < 0 ? -1 - tess__ways_gate(ways, unit, link->from) : ways->local_node[link->from];
        *at++ = to < 0 ? -1 - tess__ways_gate(ways, unit, link->to) : ways->local_node[link->to];
        *at++ = link->gbs;
    }
    return (size_t)(at - print);
}

/* Open addressing by a hash, for units; a slot holds a unit + 1. */
struct ways_table {
    int32_t *slot;
    uint32_t mask;
};

static bool ways_open_table(struct tess__map_ways *ways, struct ways_table *table)
{
    uint32_t room = 64;
    while (room < 2 * (uint32_t)ways->units)
        room *= 2;
    table->mask = room - 1;
    table->slot = tess__pool_array(&ways->pool, room, sizeof(*table->slot));
    return table->slot != NULL;
}

/* make[]; gates too. Units without places count as well, and are never asked for. */
static enum tess_status ways_find_makes(struct tess__map_ways *ways)
{
    struct ways_table table;
    uint64_t *hash = tess__pool_array(&ways->pool, (size_t)ways->units, sizeof(*hash));
    if (!hash || !ways_open_table(ways, &table))
        return tess__no_memory("the mapping of ranks");
    for (int32_t u = 0; u < ways->units; u++) {
        ways->gate_first[u + 1] = ways->gate_first[u];
        const size_t bytes = ways_print(ways, u, ways->print[0]) * sizeof(double);
        hash[u] = tess_hash_bytes(ways->print[0], bytes);
        uint32_t at = (uint32_t)hash[u] & table.mask;
        for (; table.slot[at]; at = (at + 1) & table.mask) {
            const int32_t other = table.slot[at] - 1;
            if (hash[other] == hash[u] &&
                ways_print(ways, other, ways->print[1]) * sizeof(double) == bytes &&
                memcmp(ways->print[0], ways->print[1], bytes) == 0)
                break;
        }
        ways->make[u] = table.slot[at] ? table.slot[at] - 1 : u;
        table.slot[at] = ways->make[u] + 1;
    }
    return TESS_OK;
}

/* Do two units of a make have links to the same switches? */
static bool ways_same_gates(const struct tess__map_ways *ways, int32_t a, int32_t b)
{
    const int32_t count = ways->gate_first[a + 1] - ways->gate_first[a];
    return ways->make[a] == ways->make[b] &&
           memcmp(ways->gate + ways->gate_first[a], ways->gate + ways->gate_first[b],
                  (size_t)count * sizeof(*ways->gate)) == 0;
}

/* class_of[], class_unit[], of units with places; -1: without. */
static enum tess_status ways_find_classes(struct tess__map_ways *ways)
{
    struct ways_table table;
    if (!ways_open_table(ways, &table))
        return tess__no_memory("the mapping of ranks");
    for (int32_t u = 0; u < ways->units; u++) {
        const int32_t *gate = ways->gate + ways->gate_first[u];
        const size_t count = (size_t)(ways->gate_first[u + 1] - ways->gate_first[u]);
        ways->class_of[u] = -1;
        if (ways_places(ways, u) == 0)
            continue;
        const uint64_t hash =
            tess_hash_mix(tess_hash_bytes(gate, count * sizeof(*gate)) + (uint64_t)ways->make[u]);
        uint32_t at = (uint32_t)hash & table.mask;
        while (table.slot[at] && !ways_same_gates(ways, table.slot[at] - 1, u))
            at = (at + 1) & table.mask;
        if (table.slot[at]) {
            const int32_t c = ways->class_of[u] = ways->class_of[table.slot[at] - 1];
            if (ways->class_unit[2 * c + 1] < 0)
                ways->class_unit[2 * c + 1] = u;
            continue;
        }
        table.slot[at] = u + 1;
        ways->class_of[u] = ways->classes;
        ways->class_unit[2 * ways->classes] = u;
        ways->class_unit[2 * ways->classes++ + 1] = -1;
    }
    return TESS_OK;
}

enum tess_status tess__ways_units(struct tess__map_ways *ways, bool *fits_out)
{
    ways_find_units(ways);
    ways_sort(ways);
    ways_find_places(ways);
    for (int32_t u = 0; u < ways->units; u++)
        *fits_out = *fits_out && ways_places(ways, u) <= WAYS_PLACES_MAX;
    if (!*fits_out)
        return TESS_OK;
    TESS_TRY(ways_find_makes(ways));
    return ways_find_classes(ways);
}
