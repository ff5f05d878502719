/* Ways between the switches of a network: see map_ways.c. */
#include "tessera/check.h"
#include "topology/map/map_ways.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int ways_falling(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Links between switches by the one that they leave and then by target, and their widths: more than
 * the widest link of a unit carries counts as that. */
static enum tess_status ways_open_nets(struct tess__map_ways *ways)
{
    const struct tess_topology *topology = ways->topology;
    const int32_t first = ways->link_first[ways->units], links = topology->link_count - first;
    int32_t *key = tess__pool_array(&ways->pool, (size_t)links + 1, sizeof(*key));
    int32_t *by_target = tess__pool_array(&ways->pool, (size_t)links + 1, sizeof(*by_target));
    double *width = tess__pool_array(&ways->pool, (size_t)links + 1, sizeof(*width));
    double widest = 0;
    for (int32_t n = 0; n < topology->node_count; n++) {
        ways->net[n] = ways_is_net(ways, n) ? ways->nets++ : -1;
        ways->gate_of[n] = -1;
    }
    for (int32_t u = 0; u < ways->units; u++)
        for (int32_t k = ways->gate_first[u]; k < ways->gate_first[u + 1]; k++)
            if (ways->class_of[u] >= 0 && ways->gate_of[ways->gate[k]] < 0)
                ways->gate_of[ways->gate[k]] = ways->gates++;
    ways->out_first = tess__pool_array(&ways->pool, (size_t)ways->nets + 2, sizeof(int32_t));
    ways->out = tess__pool_array(&ways->pool, (size_t)links + 1, sizeof(int32_t));
    ways->width = width;
    if (ways->pool.failed)
        return tess__no_memory("the mapping of ranks");
    for (int32_t l = 0; l < topology->link_count; l++) {
        const struct tess_topo_link *link = &topology->link[l];
        if (ways_is_net(ways, link->from) != ways_is_net(ways, link->to))
            widest = fmax(widest, link->gbs);
    }
    for (int32_t i = 0; i < links; i++) {
        key[i] = ways->net[topology->link[ways->link[first + i]].to];
        width[i] = fmin(widest, topology->link[ways->link[first + i]].gbs);
    }
    tess__sort_by_key(links, ways->nets, key, ways->out_first, by_target);
    for (int32_t i = 0; i < links; i++)
        key[i] = ways->net[topology->link[ways->link[first + by_target[i]]].from];
    tess__sort_by_key(links, ways->nets, key, ways->out_first, ways->out);
    for (int32_t i = 0; i < links; i++)
        ways->out[i] = ways->link[first + by_target[ways->out[i]]];
    qsort(width, (size_t)links, sizeof(*width), ways_falling);
    for (int32_t i = 0; i < links && ways->widths < WAYS_WIDTHS_MAX; i++)
        if (ways->widths == 0 || width[i] < width[ways->widths - 1])
            width[ways->widths++] = width[i];
    if (links > 0)
        width[ways->widths - 1] = fmin(width[ways->widths - 1], width[links - 1]);
    return TESS_OK;
}

/* From one gate to all switches that are not reached yet, over links of that width. */
static void ways_spread(struct tess__map_ways *ways, int32_t gate, int32_t from, int32_t width)
{
    const struct tess_topology *topology = ways->topology;
    const size_t row = (size_t)gate * (size_t)ways->nets;
    int32_t *queue = ways->scratch, *depth = queue + ways->nets, *came = depth + ways->nets;
    int32_t queued = 0;
    for (int32_t n = 0; n < ways->nets; n++)
        depth[n] = -1;
    depth[from] = 0;
    queue[queued++] = from;
    for (int32_t head = 0; head < queued; head++) {
        const int32_t at = queue[head];
        for (int32_t k = ways->out_first[at]; k < ways->out_first[at + 1]; k++) {
            const struct tess_topo_link *link = &topology->link[ways->out[k]];
            const int32_t to = ways->net[link->to];
            if (depth[to] >= 0 || link->gbs < ways->width[width])
                continue;
            depth[to] = depth[at] + 1;
            came[to] = ways->out[k];
            queue[queued++] = to;
        }
    }
    /* Nearer ones first, so that what leads to a switch is known before it. */
    for (int32_t i = 1; i < queued; i++) {
        const int32_t to = queue[i];
        if (ways->far[row + (size_t)to] != UINT16_MAX)
            continue;
        const size_t before = row + (size_t)ways->net[topology->link[came[to]].from];
        if (ways->far[before] >= TESS__MAP_WAY_MAX / 3)
            continue; /* not reached either */
        ways->came[row + (size_t)to] = came[to];
        ways->far[row + (size_t)to] = (uint16_t)(ways->far[before] + 1);
        ways->wide[row + (size_t)to] = (uint8_t)width;
    }
}

static enum tess_status ways_join_nets(struct tess__map_ways *ways, bool *fits_out)
{
    const size_t table = (size_t)ways->gates * (size_t)ways->nets;
    *fits_out = table <= WAYS_TABLE_MAX;
    if (!*fits_out)
        return TESS_OK;
    ways->came = tess__pool_array(&ways->pool, table, sizeof(*ways->came));
    ways->far = tess__pool_array(&ways->pool, table, sizeof(*ways->far));
    ways->wide = tess__pool_array(&ways->pool, table, sizeof(*ways->wide));
    if (ways->pool.failed)
        return tess__no_memory("the mapping of ranks");
    memset(ways->came, -1, table * sizeof(*ways->came));
    memset(ways->far, -1, table * sizeof(*ways->far));
    for (int32_t n = 0; n < ways->topology->node_count; n++) {
        const int32_t gate = ways->gate_of[n], from = ways->net[n];
        if (gate < 0)
            continue;
        ways->far[(size_t)gate * (size_t)ways->nets + (size_t)from] = 0;
        for (int32_t w = 0; w < ways->widths; w++)
            ways_spread(ways, gate, from, w);
    }
    return TESS_OK;
}

enum tess_status tess__ways_nets(struct tess__map_ways *ways, bool *fits_out)
{
    TESS_TRY(ways_open_nets(ways));
    return ways_join_nets(ways, fits_out);
}
