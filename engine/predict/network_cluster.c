/* Clusters: as they are sold, as they are described in a file, and the ranks of one host. */
#include "predict/network.h"

#include "predict/network_part.h"

#include "predict/profile.h"

#include "tessera/check.h"
#include "topology/machine/rates.h"
#include "topology/machine/remark.h"
#include "topology/machine/route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GB 1e9

/*
 * NCCL 2.28's own model of latencies (graph/tuning.cc: baseLat and hwLat of rings in its protocol
 * for middle sizes, LL128): a call, a step over NVLink, a step over a network. PCIe: the same
 * table.
 */
#define CLUSTER_CALL_S   14e-6
#define CLUSTER_NVLINK_S 1.9e-6
#define CLUSTER_PCI_S    2.5e-6
#define CLUSTER_NET_S    4e-6

/* ---- as they are sold ------------------------------------------------------------------------ */

/*
 * Hosts of eight, GB/s of a GPU to the others of its host, of all its host's cards, and of one card
 * as one GPU reaches it. NVLink by rates.h, links x one link; PCIe x16 in front of a card of
 * 400 Gb/s gives 48 in NCCL's model.
 *
 *   H100, H200   DGX H100 and H200 user guide: 18 NVLinks, eight cards of 400 Gb/s
 *   A100         DGX A100 user guide: 12 NVLinks, eight cards of 200 Gb/s, which PCIe 4 x16 makes
 * 24 B200         DGX B200 user guide: 18 NVLinks of the fifth generation, eight cards of 400 Gb/s
 *   L40S         no such machine is the standard one: PCIe 4, four cards of 200 Gb/s are assumed
 */
static const struct {
    const char *word, *text; /* what a device's name begins with */
    double host_gbs, cards_gbs, card_gbs, hop_s;
} cluster_known[] = {
    {"h100", "H100", 18 * TESS_GBS_NVLINK_SM90, 8 * 48.0, 48, CLUSTER_NVLINK_S},
    {"h200", "H200", 18 * TESS_GBS_NVLINK_SM90, 8 * 48.0, 48, CLUSTER_NVLINK_S},
    {"a100", "A100", 12 * TESS_GBS_NVLINK_SM70, 8 * 24.0, 24, CLUSTER_NVLINK_S},
    {"b200", "B200", 18 * TESS_GBS_NVLINK_SM100, 8 * 48.0, 48, CLUSTER_NVLINK_S},
    {"l40s", "L40S", 24, 4 * 24.0, 24, CLUSTER_PCI_S},
};

#define CLUSTER_KNOWN (sizeof(cluster_known) / sizeof(*cluster_known))
#define CLUSTER_HOST  8

enum tess_status tess_cluster_of_device(const char *device, int32_t ranks,
                                        struct tess_cluster *cluster_out)
{
    size_t i = 0;
    while (i < CLUSTER_KNOWN &&
           strncmp(device, cluster_known[i].word, strlen(cluster_known[i].word)) != 0)
        i++;
    if (i == CLUSTER_KNOWN)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--device %.60s: hosts are known with h100, h200, a100, b200 and l40s; describe "
                  "others with --cluster FILE",
                  device);
    const int32_t host_ranks = ranks < CLUSTER_HOST ? ranks : CLUSTER_HOST;
    const int32_t hosts = (ranks + host_ranks - 1) / host_ranks;
    *cluster_out = (struct tess_cluster){
        .ranks = ranks,
        .host_ranks = host_ranks,
        .host_bytes_per_s = cluster_known[i].host_gbs * GB,
        .host_net_bytes_per_s = hosts > 1 ? cluster_known[i].cards_gbs * GB : 0,
        .rank_net_bytes_per_s = cluster_known[i].card_gbs * GB,
        .rack_share = 1,
        .call_s = CLUSTER_CALL_S,
        .host_hop_s = cluster_known[i].hop_s,
        .net_hop_s = CLUSTER_NET_S,
    };
    const int used =
        snprintf(cluster_out->source, sizeof(cluster_out->source),
                 "%d host%s of %d %s, %.0f GB/s between GPUs", (int)hosts, hosts > 1 ? "s" : "",
                 (int)host_ranks, cluster_known[i].text, cluster_known[i].host_gbs);
    if (hosts > 1)
        snprintf(cluster_out->source + used, sizeof(cluster_out->source) - (size_t)used,
                 ", %.0f GB/s of network a host", cluster_known[i].cards_gbs);
    return TESS_OK;
}

/* Where nothing was measured: a byte that is sent on a host is read, written and read again, and a
 * call takes about as long as waking a thread. */
#define CLUSTER_COPY_PASSES 3
#define CLUSTER_WAKE_S      1e-6
#define CLUSTER_SOCKET_S    3e-5

static double cluster_measured(double measured, double otherwise)
{
    return measured > 0 ? measured : otherwise;
}

void tess_cluster_of_processor(const struct tess_profile *profile, int32_t ranks, bool sockets,
                               struct tess_cluster *cluster_out)
{
    const double copy =
        cluster_measured(profile->copy_bytes_per_s, profile->bytes_per_s / CLUSTER_COPY_PASSES);
    const double call_s = sockets ? cluster_measured(profile->net_call_s, 2 * CLUSTER_SOCKET_S)
                                  : cluster_measured(profile->call_s, 2 * CLUSTER_WAKE_S);
    struct tess_cluster cluster = {
        .ranks = ranks,
        .host_ranks = ranks,
        .host_bytes_per_s =
            sockets ? cluster_measured(profile->net_bytes_per_s, copy / CLUSTER_COPY_PASSES) : copy,
        .rack_share = 1,
        .call_s = call_s / 2, /* measured between two: the call and one hop */
        .host_hop_s = call_s / 2,
        .busy = true,
        .sum_bytes_per_s = sockets ? 0 : cluster_measured(profile->sum_bytes_per_s, copy),
        .scatter_bytes_per_s = cluster_measured(profile->scatter_bytes_per_s,
                                                cluster_measured(profile->sum_bytes_per_s, copy)),
        .share_bytes_per_s = cluster_measured(profile->share_bytes_per_s, copy),
        .sent_sum_bytes_per_s = sockets ? profile->net_sum_bytes_per_s : 0};
    snprintf(cluster.source, sizeof(cluster.source), "%d rank%s on this host%s", (int)ranks,
             ranks > 1 ? "s" : "", sockets ? ", over sockets" : "");
    *cluster_out = cluster;
}

/* ---- as they are described ------------------------------------------------------------------- */

static int32_t cluster_host(const struct tess_topology *topology, int32_t device)
{
    return topology->node[topology->device[device]].host;
}

/* Devices are host by host: how many each host has, the same of all. */
static enum tess_status cluster_count(const struct tess_topology *topology, const char *name,
                                      int32_t *host_ranks_out)
{
    const int32_t count = topology->device_count;
    int32_t of_first = 1;
    while (of_first < count && cluster_host(topology, of_first) == cluster_host(topology, 0))
        of_first++;
    for (int32_t d = 0; d < count; d++)
        if (count % of_first != 0 ||
            cluster_host(topology, d) != cluster_host(topology, d / of_first * of_first) ||
            (d > 0 && d % of_first == 0 &&
             cluster_host(topology, d) == cluster_host(topology, d - 1)))
            TESS_FAIL(TESS_ERR_DATA,
                      "%s: hosts have different numbers of devices, which a plan of equal ranks "
                      "does not model: describe those alone that have the same number",
                      name);
    *host_ranks_out = of_first;
    return TESS_OK;
}

/* GB/s into the network by all links that leave a host. */
static double cluster_edge(const struct tess_topology *topology, int32_t host)
{
    double gbs = 0;
    for (int32_t l = 0; l < topology->link_count; l++) {
        const struct tess_topo_link *link = &topology->link[l];
        const bool leaves = topology->node[link->from].host == host &&
                            topology->node[link->to].kind == TESS_NODE_NET &&
                            topology->node[link->to].host != host;
        gbs += leaves ? link->gbs : 0;
    }
    return gbs;
}

/* Switch of the first host: how many hosts are below it, and which share of what these send it can
 * pass on to other switches. */
static void cluster_rack(const struct tess_topology *topology, int32_t hosts,
                         struct tess_cluster *cluster)
{
    int32_t leaf = -1, below = 0;
    double up = 0, down = 0;
    for (int32_t l = 0; l < topology->link_count && leaf < 0; l++)
        if (topology->node[topology->link[l].from].host == cluster_host(topology, 0) &&
            topology->node[topology->link[l].to].kind == TESS_NODE_NET)
            leaf = topology->link[l].to;
    int32_t last = -1;
    for (int32_t l = 0; l < topology->link_count && leaf >= 0; l++) {
        const struct tess_topo_link *link = &topology->link[l];
        const int32_t from = topology->node[link->from].host;
        if (link->to == leaf && from >= 0) {
            below += from != last;
            last = from;
            down += link->gbs;
        } else if (link->from == leaf && topology->node[link->to].kind == TESS_NODE_NET) {
            up += link->gbs;
        }
    }
    cluster->rack_share = 1;
    if (below == 0 || below >= hosts || up <= 0)
        return;
    cluster->rack_hosts = below;
    cluster->rack_share = up < down ? up / down : 1;
}

void tess__cluster_part_free(struct tess_topology *part)
{
    free(part->node);
    free(part->link);
    free(part->device);
}

/* Numbers keep their order, by which one of equal ways is chosen. */
enum tess_status tess__cluster_part(const struct tess_topology *topology, int32_t devices,
                                    struct tess_topology *part_out)
{
    const int32_t first = cluster_host(topology, 0), last = cluster_host(topology, devices - 1);
    const size_t nodes = (size_t)topology->node_count, links = (size_t)topology->link_count;
    int32_t *place = malloc(nodes * sizeof(*place)); /* of a node in the part; -1: it has none */
    struct tess_topology part = {.node = malloc(nodes * sizeof(*part.node)),
                                 .link = malloc((links + 1) * sizeof(*part.link)),
                                 .host_count = topology->host_count,
                                 .device = malloc((size_t)devices * sizeof(*part.device)),
                                 .device_count = devices};
    *part_out = part;
    if (place == NULL || part.node == NULL || part.link == NULL || part.device == NULL) {
        free(place);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the links of two hosts");
    }
    for (size_t n = 0; n < nodes; n++) {
        const struct tess_node *node = &topology->node[n];
        const bool kept = node->host < 0 || node->host == first || node->host == last ||
                          node->kind == TESS_NODE_NVSWITCH || node->kind == TESS_NODE_NET;
        place[n] = kept ? part.node_count : -1;
        if (kept)
            part.node[part.node_count++] = *node;
    }
    for (size_t l = 0; l < links; l++) {
        struct tess_topo_link link = topology->link[l];
        link.from = place[link.from];
        link.to = place[link.to];
        if (link.from >= 0 && link.to >= 0)
            part.link[part.link_count++] = link;
    }
    for (int32_t d = 0; d < devices; d++)
        part.device[d] = place[topology->device[d]];
    free(place);
    *part_out = part;
    return TESS_OK;
}

/* What a rank reaches of its host and of the next one, by the narrowest ways of its devices. */
static enum tess_status cluster_row(const struct tess_routes *row, int32_t device,
                                    int32_t host_ranks, struct tess_cluster *cluster, bool *nvlink)
{
    const struct tess_route *next = &row->route[(device + 1) % host_ranks];
    const struct tess_route *like =
        &row->route[row->device_count > host_ranks ? host_ranks + device : device];
    if (host_ranks > 1 && (device == 0 || next->gbs * GB < cluster->host_bytes_per_s))
        cluster->host_bytes_per_s = next->gbs * GB;
    if (device == 0 || like->gbs * GB < cluster->rank_net_bytes_per_s)
        cluster->rank_net_bytes_per_s = like->gbs * GB;
    *nvlink = *nvlink && next->kind <= TESS_PATH_NVB;
    if (next->kind == TESS_PATH_NONE || like->kind == TESS_PATH_NONE)
        TESS_FAIL(TESS_ERR_DATA, "device %d does not reach the others", (int)device);
    return TESS_OK;
}

/* The narrowest way from a device to the next one and, between hosts, to its like. */
static enum tess_status cluster_ways(const struct tess_topology *topology, int32_t host_ranks,
                                     struct tess_cluster *cluster, bool *nvlink_out)
{
    struct tess_route_search *search = NULL;
    struct tess_topology part;
    const bool alone = topology->device_count == host_ranks;
    enum tess_status status =
        tess__cluster_part(topology, alone ? host_ranks : 2 * host_ranks, &part);
    cluster->host_bytes_per_s = 0;
    *nvlink_out = true;
    if (status == TESS_OK)
        status = tess_route_search_open(&part, &search);
    for (int32_t d = 0; status == TESS_OK && d < host_ranks; d++) {
        struct tess_routes row;
        status = tess_route_from(search, d, &row);
        if (status != TESS_OK)
            break;
        status = cluster_row(&row, d, host_ranks, cluster, nvlink_out);
        tess_routes_free(&row);
    }
    tess_route_search_close(search);
    tess__cluster_part_free(&part);
    return status;
}

enum tess_status tess_cluster_of_topology(const struct tess_topology *topology, const char *name,
                                          struct tess_cluster *cluster_out)
{
    struct tess_cluster cluster = {.ranks = topology->device_count,
                                   .sm = topology->node[topology->device[0]].sm};
    bool nvlink = false;
    TESS_TRY(cluster_count(topology, name, &cluster.host_ranks));
    const int32_t hosts = cluster.ranks / cluster.host_ranks;
    TESS_TRY(cluster_ways(topology, cluster.host_ranks, &cluster, &nvlink));
    if (hosts > 1) {
        cluster.host_net_bytes_per_s = cluster_edge(topology, cluster_host(topology, 0)) * GB;
        cluster_rack(topology, hosts, &cluster);
    } else {
        cluster.rank_net_bytes_per_s = 0;
        cluster.rack_share = 1;
    }
    if ((cluster.host_ranks > 1 && cluster.host_bytes_per_s <= 0) ||
        (hosts > 1 && (cluster.host_net_bytes_per_s <= 0 || cluster.rank_net_bytes_per_s <= 0)))
        TESS_FAIL(TESS_ERR_DATA, "%s: it has no links between %s", name,
                  hosts > 1 && cluster.host_net_bytes_per_s <= 0 ? "hosts" : "devices");
    cluster.call_s = CLUSTER_CALL_S;
    cluster.host_hop_s = nvlink ? CLUSTER_NVLINK_S : CLUSTER_PCI_S;
    cluster.net_hop_s = CLUSTER_NET_S;
    int used = snprintf(cluster.source, sizeof(cluster.source), "%.60s: %d host%s of %d", name,
                        (int)hosts, hosts > 1 ? "s" : "", (int)cluster.host_ranks);
    if (cluster.host_ranks > 1)
        used += snprintf(cluster.source + used, sizeof(cluster.source) - (size_t)used,
                         ", %.4g GB/s between neighbours", cluster.host_bytes_per_s / GB);
    if (hosts > 1)
        snprintf(cluster.source + used, sizeof(cluster.source) - (size_t)used,
                 ", %.4g GB/s of network a host", cluster.host_net_bytes_per_s / GB);
    *cluster_out = cluster;
    return TESS_OK;
}

/* Seconds from a host to the network and to another one, by the first link that has a latency. */
static double cluster_latency_s(const struct tess_topology *topology)
{
    for (int32_t l = 0; l < topology->link_count; l++)
        if (topology->link[l].latency_us > 0 &&
            topology->node[topology->link[l].to].kind == TESS_NODE_NET)
            return topology->link[l].latency_us * 1e-6;
    return CLUSTER_SOCKET_S;
}

enum tess_status tess_cluster_of_hosts(const struct tess_profile *profile,
                                       const struct tess_topology *topology,
                                       struct tess_cluster *cluster_out)
{
    struct tess_cluster described, cluster;
    TESS_TRY(tess_cluster_of_topology(topology, "network", &described));
    tess_cluster_of_processor(profile, described.ranks, true, &cluster);
    cluster.host_ranks = described.host_ranks;
    cluster.rack_hosts = described.rack_hosts;
    cluster.rack_share = described.rack_share;
    cluster.host_net_bytes_per_s = described.host_net_bytes_per_s;
    cluster.rank_net_bytes_per_s = described.rank_net_bytes_per_s;
    cluster.net_hop_s = cluster_latency_s(topology);
    snprintf(cluster.source, sizeof(cluster.source),
             "%d ranks on %d hosts like this one, %.4g GB/s of network a host", (int)cluster.ranks,
             (int)(cluster.ranks / cluster.host_ranks), cluster.host_net_bytes_per_s / GB);
    *cluster_out = cluster;
    return TESS_OK;
}

enum tess_status tess_cluster_read(const char *path, struct tess_cluster *cluster_out,
                                   struct tess_topology **topology_out)
{
    const struct tess_topology_options options = {0};
    const char *base = strrchr(path, '/');
    struct tess_topology *topology = NULL;
    TESS_TRY(tess_topology_read(path, TESS_TOPOLOGY_AUTO, &options, &topology));
    const enum tess_status status =
        tess_cluster_of_topology(topology, base != NULL ? base + 1 : path, cluster_out);
    return tess_topology_give(topology, status, topology_out);
}

void tess_cluster_close(struct tess_topology *topology)
{
    tess_topology_free(topology);
}

bool tess_cluster_guess(const struct tess_topology *topology, bool one_host, int32_t at,
                        char text[TESS_CLUSTER_GUESS])
{
    struct tess_topology some = *topology;
    _Static_assert(TESS_CLUSTER_GUESS == TESS__REMARK_TEXT, "texts are of one length");
    if (one_host)
        some.remarks &= ~(uint32_t)(TESS_REMARK_NET | TESS_REMARK_DOMAIN);
    return tess__remark_guess(&some, at, text);
}

bool tess_cluster_guessed_sm(const struct tess_topology *topology)
{
    return (topology->remarks & TESS_REMARK_SM) != 0;
}
