/* Ranks in another order than that of the devices, and what their groups then have of the links. */
#include "predict/network.h"
#include "predict/network_part.h"

#include "config/config.h"
#include "tessera/check.h"
#include "topology/machine/pool.h"
#include "topology/machine/route.h"
#include "topology/map/map.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GB 1e9
/* Ranks up to which the whole cluster is searched; of more, one host. */
#define ORDER_WHOLE 256

/* An order of ranks while its links are counted. */
struct order {
    const struct tess_cluster *cluster;
    const struct tess_topology *topology;
    const struct tess_mesh *mesh;
    const int32_t *device; /* [ranks] */
    struct tess__pool pool;
    struct tess_topology part; /* the first host, for which all stand */
    struct tess_routes routes; /* between its devices */
    int32_t hosts;
    int32_t *uses; /* [hosts, links of the part] neighbours that send over a link */
    int32_t *leaf; /* [hosts] the first switch of the network that it has a link to; -1 */
    int32_t *host; /* [members of a group] scratch: the host of each */
};

static int32_t order_host(const struct order *order, int32_t rank)
{
    return order->device[rank] / order->cluster->host_ranks;
}

static enum tess_status order_open(struct order *order)
{
    const struct tess_topology *topology = order->topology;
    const int32_t host_ranks = order->cluster->host_ranks;
    order->hosts = topology->device_count / host_ranks;
    TESS_TRY(tess__cluster_part(topology, host_ranks, &order->part));
    TESS_TRY(tess_routes_open(&order->part, &order->routes));
    order->uses =
        tess__pool_array(&order->pool, (size_t)order->hosts * (size_t)order->part.link_count + 1,
                         sizeof(*order->uses));
    order->leaf = tess__pool_array(&order->pool, (size_t)order->hosts, sizeof(*order->leaf));
    order->host =
        tess__pool_array(&order->pool, (size_t)order->mesh->rank_count, sizeof(*order->host));
    if (order->pool.failed)
        return tess__no_memory("the order of ranks");
    memset(order->leaf, -1, (size_t)order->hosts * sizeof(*order->leaf));
    for (int32_t l = 0; l < topology->link_count; l++) {
        const struct tess_topo_link *link = &topology->link[l];
        const int32_t from = topology->node[link->from].host;
        if (topology->node[link->to].kind != TESS_NODE_NET || from < 0)
            continue;
        const int32_t first = topology->node[topology->device[0]].host;
        const int32_t host = from - first; /* devices are host by host */
        if (host >= 0 && host < order->hosts && order->leaf[host] < 0)
            order->leaf[host] = link->to;
    }
    return TESS_OK;
}

static void order_close(struct order *order)
{
    tess_routes_free(&order->routes);
    tess__cluster_part_free(&order->part);
    tess__pool_release(&order->pool);
}

/* The way between two ranks of one host; NULL: they are on several. */
static const struct tess_route *order_route(const struct order *order, int32_t from, int32_t to)
{
    const int32_t host_ranks = order->cluster->host_ranks;
    if (from == to || order_host(order, from) != order_host(order, to))
        return NULL;
    return &order->routes.route[order->device[from] % host_ranks * order->routes.device_count +
                                order->device[to] % host_ranks];
}

/* A hop of the axis: counted first, then asked for what is left of its links. */
static void order_hop(const struct order *order, bool count, int32_t from, int32_t to,
                      double *least_gbs)
{
    const struct tess_route *route = order_route(order, from, to);
    int32_t *uses = order->uses + (size_t)order_host(order, from) * (size_t)order->part.link_count;
    for (int32_t i = 0; route != NULL && i < route->link_count; i++) {
        const int32_t link = order->routes.link[route->first + i];
        if (count)
            uses[link]++;
        else
            *least_gbs = fmin(*least_gbs, order->part.link[link].gbs / uses[link]);
    }
}

/* A group's members on each host are a ring of their own, joined to those of other hosts; a chain's
 * send to both sides. */
static void order_group(const struct order *order, const int32_t *rank, int32_t ranks, bool chain,
                        bool count, double *least_gbs)
{
    for (int32_t i = 0; i < ranks; i++) {
        const int32_t host = order_host(order, rank[i]);
        int32_t next = i + 1, first = 0;
        while (next < ranks && order_host(order, rank[next]) != host)
            next++;
        while (order_host(order, rank[first]) != host)
            first++;
        if (chain && i + 1 < ranks) {
            order_hop(order, count, rank[i], rank[i + 1], least_gbs);
            order_hop(order, count, rank[i + 1], rank[i], least_gbs);
        } else if (!chain) {
            order_hop(order, count, rank[i], rank[next < ranks ? next : first], least_gbs);
        }
    }
}

static int order_number(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* How many hosts a group is on, or how many switches these have. */
static int32_t order_places(const struct order *order, const int32_t *rank, int32_t ranks,
                            bool switches)
{
    int32_t places = 1;
    for (int32_t i = 0; i < ranks; i++) {
        const int32_t host = order_host(order, rank[i]);
        order->host[i] = switches ? order->leaf[host] : host;
    }
    qsort(order->host, (size_t)ranks, sizeof(*order->host), order_number);
    for (int32_t i = 1; i < ranks; i++)
        places += order->host[i] != order->host[i - 1];
    return places;
}

/* Ranks along the axis that are in a group with rank `first`, its first one. */
static void order_members(const struct order *order, enum tess_axis axis, int32_t first,
                          int32_t *rank)
{
    struct tess_mesh mesh = tess_mesh_at(order->mesh, first);
    for (int32_t i = 0; i < mesh.count[axis]; i++) {
        mesh.at[axis] = i;
        rank[i] = tess_mesh_rank(&mesh, mesh.at);
    }
}

/* The groups of an axis, all at once. */
static enum tess_status order_axis(struct order *order, enum tess_axis axis, bool chain,
                                   struct tess_network_group *group)
{
    const struct tess_cluster *cluster = order->cluster;
    const int32_t ranks = order->mesh->count[axis];
    int32_t *rank = malloc((size_t)ranks * sizeof(*rank));
    double least_gbs = INFINITY;
    if (rank == NULL)
        return tess__no_memory("the order of ranks");
    memset(order->uses, 0,
           (size_t)order->hosts * (size_t)order->part.link_count * sizeof(*order->uses));
    group->hosts = group->racks = 1;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t r = 0; r < order->mesh->rank_count; r++) {
            if (tess_mesh_at(order->mesh, r).at[axis] != 0)
                continue;
            order_members(order, axis, r, rank);
            order_group(order, rank, ranks, chain, pass == 0, &least_gbs);
            const int32_t hosts = order_places(order, rank, ranks, false);
            const int32_t racks = order_places(order, rank, ranks, true);
            group->hosts = hosts > group->hosts ? hosts : group->hosts;
            group->racks = racks > group->racks && cluster->rack_hosts > 0 ? racks : group->racks;
        }
    free(rank);
    group->host_ranks = (ranks + group->hosts - 1) / group->hosts;
    if (least_gbs < INFINITY)
        group->host_bytes_per_s = least_gbs * GB;
    group->net_bytes_per_s = tess__network_share(cluster);
    group->rack_bytes_per_s = group->net_bytes_per_s * cluster->rack_share;
    return TESS_OK;
}

static enum tess_status order_network(struct order *order, const int32_t *device, bool chain,
                                      struct tess_network *network)
{
    order->device = device;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        if (order->mesh->count[axis] > 1)
            TESS_TRY(order_axis(order, (enum tess_axis)axis, chain && axis == TESS_AXIS_STAGE,
                                &network->group[axis]));
    return TESS_OK;
}

/* The devices in order, [ranks], malloc'd. */
static int32_t *order_natural(int32_t ranks)
{
    int32_t *device = malloc((size_t)ranks * sizeof(*device));
    for (int32_t r = 0; device != NULL && r < ranks; r++)
        device[r] = r;
    return device;
}

/* Axes in the order of the ranks' numbers, the fastest first. */
static enum tess_status order_find(const struct tess_topology *topology,
                                   const struct tess_mesh *mesh,
                                   const double bytes[TESS_AXIS_COUNT], bool chain,
                                   const int32_t *natural, struct tess_map *map)
{
    static const struct {
        enum tess_axis axis;
        const char *name;
    } known[] = {
        {TESS_AXIS_TENSOR, "tensor"}, {TESS_AXIS_DATA, "data"}, {TESS_AXIS_STAGE, "stage"}};
    struct tess_map_axis axis[TESS_MAP_AXES];
    struct tess_map_ask ask = {.axis = axis, .place = natural, .keep_first = true};
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        const enum tess_axis which = known[i].axis;
        if (mesh->count[which] > 1)
            axis[ask.axis_count++] =
                (struct tess_map_axis){.name = known[i].name,
                                       .count = mesh->count[which],
                                       .bytes = bytes[which] > 0 ? bytes[which] : 1,
                                       .chain = chain && which == TESS_AXIS_STAGE};
    }
    return tess_map_find(topology, &ask, map);
}

/* The part of the mesh that the first `ranks` ranks are, all of them neighbours; false: they are
 * none. */
static bool order_inner(const struct tess_mesh *mesh, int32_t ranks, struct tess_mesh *inner_out)
{
    static const enum tess_axis fastest[] = {TESS_AXIS_TENSOR, TESS_AXIS_DATA, TESS_AXIS_STAGE};
    struct tess_mesh inner = {.rank_count = ranks};
    for (size_t i = 0; i < sizeof(fastest) / sizeof(*fastest); i++) {
        const int32_t count = mesh->count[fastest[i]];
        const int32_t taken = count < ranks ? count : ranks;
        if (ranks % taken != 0 || count % taken != 0)
            return false;
        inner.count[fastest[i]] = taken;
        ranks /= taken;
    }
    *inner_out = inner;
    return ranks == 1 && mesh->rank_count % inner.rank_count == 0;
}

/* As order_find, but for the ranks of one host, and the same on all of them; hosts stay in the
 * natural order, switch by switch. Without a place where ranks of a host are no part of the mesh.
 */
static enum tess_status order_fold(const struct tess_cluster *cluster,
                                   const struct tess_topology *topology,
                                   const struct tess_mesh *mesh,
                                   const double bytes[TESS_AXIS_COUNT], bool chain,
                                   const int32_t *natural, struct tess_map *map)
{
    const int32_t ranks = cluster->host_ranks;
    struct tess_mesh inner;
    struct tess_topology part;
    struct tess_map host = {0};
    if (ranks == 1 || !order_inner(mesh, ranks, &inner))
        return TESS_OK;
    enum tess_status status = tess__cluster_part(topology, ranks, &part);
    if (status == TESS_OK)
        status = order_find(&part, &inner, bytes, chain, natural, &host);
    tess__cluster_part_free(&part);
    if (status == TESS_OK) {
        map->place = malloc((size_t)mesh->rank_count * sizeof(*map->place));
        status = map->place != NULL ? TESS_OK : tess__no_memory("the order of ranks");
    }
    for (int32_t r = 0; r < mesh->rank_count && status == TESS_OK; r++)
        map->place[r] = r / ranks * ranks + host.place[r % ranks];
    tess_map_free(&host);
    return status;
}

/* Both orders, which differ. */
static enum tess_status order_count(const struct tess_cluster *cluster,
                                    const struct tess_topology *topology,
                                    const struct tess_mesh *mesh, bool chain,
                                    const int32_t *natural, const int32_t *device,
                                    struct tess_network *network, struct tess_network *before)
{
    struct order order = {.cluster = cluster, .topology = topology, .mesh = mesh};
    enum tess_status status = order_open(&order);
    if (status == TESS_OK)
        status = order_network(&order, natural, chain, before);
    if (status == TESS_OK)
        status = order_network(&order, device, chain, network);
    order_close(&order);
    return status;
}

enum tess_status tess_network_order(const struct tess_cluster *cluster,
                                    const struct tess_topology *topology,
                                    const struct tess_mesh *mesh,
                                    const double bytes[TESS_AXIS_COUNT], bool chain,
                                    struct tess_network *network_out,
                                    struct tess_network *natural_out, int32_t **device_out)
{
    const size_t size = (size_t)mesh->rank_count * sizeof(int32_t);
    int32_t *natural = order_natural(mesh->rank_count);
    struct tess_map map = {0};
    enum tess_status status = TESS_OK;
    tess_network_make(cluster, mesh, network_out);
    *natural_out = *network_out;
    *device_out = NULL;
    if (natural == NULL)
        return tess__no_memory("the order of ranks");
    if (mesh->rank_count > ORDER_WHOLE)
        status = order_fold(cluster, topology, mesh, bytes, chain, natural, &map);
    else if (mesh->rank_count > 1)
        status = order_find(topology, mesh, bytes, chain, natural, &map);
    if (status == TESS_OK && map.place != NULL && memcmp(map.place, natural, size) != 0) {
        status = order_count(cluster, topology, mesh, chain, natural, map.place, network_out,
                             natural_out);
        if (status == TESS_OK) {
            *device_out = map.place;
            map.place = NULL;
        }
    }
    tess_map_free(&map);
    free(natural);
    return status;
}
