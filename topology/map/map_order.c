/*
 * Orders in which the places of a mapping are near each other: the ring that ring.h finds, and the
 * NVLink domains and NUMA nodes that groups are kept in.
 */
#include "tessera/check.h"
#include "topology/map/map_room.h"
#include "topology/rings/ring_room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ORDER_RING_STEPS 400000 /* of the walk for a ring of one host */
#define ORDER_RING_MAX   128    /* places of one host */
#define ORDER_DEPTH      8      /* links from a device to its processor */

/* ---- NVLink domains ------------------------------------------------------------------------- */

enum tess_status tess__map_domains(const struct tess__map_model *model, int32_t *domain)
{
    const struct tess_topology *topology = model->topology;
    int32_t *parent = malloc((size_t)topology->node_count * sizeof(*parent));
    if (!parent)
        return tess__no_memory("the mapping of ranks");
    for (int32_t i = 0; i < topology->node_count; i++)
        parent[i] = i;
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        enum tess_node_kind from = topology->node[link->from].kind;
        enum tess_node_kind to = topology->node[link->to].kind;
        bool ends = (from == TESS_NODE_DEVICE || from == TESS_NODE_NVSWITCH) &&
                    (to == TESS_NODE_DEVICE || to == TESS_NODE_NVSWITCH);
        if (link->kind == TESS_LINK_NVLINK && ends)
            parent[tess__root(parent, link->from)] = tess__root(parent, link->to);
    }
    for (int32_t i = 0; i < model->count; i++)
        domain[i] = tess__root(parent, model->part.device[i]);
    free(parent);
    return TESS_OK;
}

enum tess_status tess__map_numa(const struct tess__map_model *model, int32_t *numa)
{
    const struct tess_topology *topology = model->topology;
    int32_t *of = malloc((size_t)topology->node_count * sizeof(*of));
    bool more = true;
    if (!of)
        return tess__no_memory("the mapping of ranks");
    for (int32_t i = 0; i < topology->node_count; i++)
        of[i] = topology->node[i].kind == TESS_NODE_CPU ? i : -1;
    /* A step further from the processors in each round. */
    for (int round = 0; round < ORDER_DEPTH && more; round++) {
        more = false;
        for (int32_t i = 0; i < topology->link_count; i++) {
            const struct tess_topo_link *link = &topology->link[i];
            bool inside = link->kind == TESS_LINK_PCI || link->kind == TESS_LINK_LOCAL ||
                          link->kind == TESS_LINK_C2C;
            if (inside && of[link->from] >= 0 && of[link->to] < 0) {
                of[link->to] = of[link->from];
                more = true;
            }
        }
    }
    for (int32_t i = 0; i < model->count; i++)
        numa[i] = of[model->part.device[i]];
    free(of);
    return TESS_OK;
}

/* ---- the ring ------------------------------------------------------------------------------- */

/* Over hosts: what ring.h finds for a cluster. */
static enum tess_status order_ring_hosts(const struct tess__map_model *model, int32_t *ring)
{
    struct tess_rings rings = {0};
    TESS_TRY(tess__rings_find_hosts(&model->part, 1, 0, &rings));
    memcpy(ring, rings.best_single.order, (size_t)model->count * sizeof(*ring));
    tess_rings_free(&rings);
    return TESS_OK;
}

/* In a host, or where there is no network: the best ring of all places. *gbs_out: no ring carries
 * more. */
static enum tess_status order_ring_whole(const struct tess__map_model *model, int32_t *ring,
                                         double *gbs_out)
{
    const struct tess__ring_effort effort = {.steps = ORDER_RING_STEPS};
    struct tess__ring_found found;
    struct tess__ring_table table = {0};
    struct tess_routes routes;
    TESS_TRY(tess_routes_open(&model->part, &routes));
    enum tess_status status = tess__ring_table_open(&table, &routes);
    if (status == TESS_OK)
        status = model->count <= TESS__RING_EXACT_MAX
                     ? tess__ring_search(&table, table.gbs, &effort, ring, &found)
                     : tess__ring_improve(&table, table.gbs, &effort, ring, &found);
    if (status == TESS_OK)
        *gbs_out = found.bound_gbs;
    tess__ring_table_free(&table);
    tess_routes_free(&routes);
    return status;
}

/* One axis alone is a ring, and the search for rings may have proved a bound. */
static void order_ring_bound(const struct tess__map_model *model, double gbs, double *bound_s)
{
    for (int32_t a = 0; a < model->axis_count; a++) {
        const struct tess_map_axis *axis = &model->axis[a];
        if (axis->count == model->count && !axis->chain && gbs > 0)
            *bound_s = fmax(*bound_s, axis->bytes / (gbs * 1e9));
    }
}

enum tess_status tess__map_ring(const struct tess__map_model *model, int32_t *ring, double *bound_s)
{
    double gbs = 0;
    for (int32_t i = 0; i < model->count; i++)
        ring[i] = i;
    if (model->count < 3)
        return TESS_OK;
    if (tess__rings_are_hosts(&model->part))
        return order_ring_hosts(model, ring);
    if (model->count > ORDER_RING_MAX)
        return TESS_OK;
    TESS_TRY(order_ring_whole(model, ring, &gbs));
    order_ring_bound(model, gbs, bound_s);
    return TESS_OK;
}
