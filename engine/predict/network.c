/* Seconds of calls, from links; see network.h. */
#include "predict/network.h"

#include "predict/network_part.h"
#include "predict/profile.h"
#include "tessera/check.h"

#include <math.h>
#include <stdio.h>

/* ---- groups ---------------------------------------------------------------------------------- */

static int32_t network_least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Members are `stride` places apart: how many of them a host has. */
static int32_t network_on_host(const struct tess_cluster *cluster, int32_t ranks, int32_t stride)
{
    const int32_t fit = cluster->host_ranks / stride;
    return network_least(ranks, fit > 1 ? fit : 1);
}

double tess__network_share(const struct tess_cluster *cluster)
{
    const double share = cluster->host_net_bytes_per_s / cluster->host_ranks;
    return share < cluster->rank_net_bytes_per_s ? share : cluster->rank_net_bytes_per_s;
}

static struct tess_network_group network_group(const struct tess_cluster *cluster, int32_t ranks,
                                               int32_t stride)
{
    struct tess_network_group group = {
        .ranks = ranks,
        .host_ranks = network_on_host(cluster, ranks, stride),
        .host_bytes_per_s = cluster->host_bytes_per_s,
        .net_bytes_per_s = tess__network_share(cluster),
        .racks = 1,
    };
    const int64_t below = (int64_t)cluster->rack_hosts * cluster->host_ranks;
    group.hosts = (ranks + group.host_ranks - 1) / group.host_ranks;
    if (below > 0)
        group.racks =
            network_least(group.hosts, (int32_t)(((int64_t)ranks * stride + below - 1) / below));
    group.rack_bytes_per_s = group.net_bytes_per_s * cluster->rack_share;
    return group;
}

void tess_network_make(const struct tess_cluster *cluster, const struct tess_mesh *mesh,
                       struct tess_network *network_out)
{
    const int32_t *count = mesh->count;
    *network_out = (struct tess_network){.cluster = *cluster};
    struct tess_network_group *group = network_out->group;
    group[TESS_AXIS_TENSOR] = network_group(cluster, count[TESS_AXIS_TENSOR], 1);
    group[TESS_AXIS_DATA] = network_group(cluster, count[TESS_AXIS_DATA], count[TESS_AXIS_TENSOR]);
    group[TESS_AXIS_STAGE] = network_group(cluster, count[TESS_AXIS_STAGE],
                                           count[TESS_AXIS_TENSOR] * count[TESS_AXIS_DATA]);
    group[TESS_AXIS_COUNT] = network_group(cluster, mesh->rank_count, 1);
}

void tess_network_crowd(struct tess_network *network, const struct tess_profile *profile,
                        double turns, double all)
{
    struct tess_cluster *cluster = &network->cluster;
    if (!cluster->busy)
        return;
    const bool shared = cluster->sum_bytes_per_s > 0 && turns > 1;
    if (shared && profile->turn_sum_bytes_per_s > 0) {
        cluster->scatter_bytes_per_s *= profile->turn_sum_bytes_per_s / cluster->sum_bytes_per_s;
        cluster->sum_bytes_per_s = profile->turn_sum_bytes_per_s;
    }
    if (shared && profile->turn_share_bytes_per_s > 0)
        cluster->share_bytes_per_s = profile->turn_share_bytes_per_s;
    if (shared && profile->turn_copy_bytes_per_s > 0)
        cluster->host_bytes_per_s = profile->turn_copy_bytes_per_s;
    cluster->sum_bytes_per_s /= turns;
    cluster->scatter_bytes_per_s /= turns;
    cluster->share_bytes_per_s /= turns;
    cluster->sent_sum_bytes_per_s /= turns;
    cluster->host_bytes_per_s /= turns;
    for (int group = 0; group <= TESS_AXIS_COUNT; group++)
        network->group[group].host_bytes_per_s = cluster->host_bytes_per_s;
    if (all <= 1)
        return;
    const double call_s = cluster->call_s + cluster->host_hop_s;
    cluster->call_s = all * fmax(profile->turn_s, call_s);
    cluster->host_hop_s = 0;
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct network_call {
    const struct tess_cluster *cluster;
    struct tess_network_group group; /* of the ranks that call */
    bool ring;                       /* both levels at once */
    bool levels;                     /* else each rank sends to each other one itself */
    double bytes;
};

static bool network_is_power(int32_t n)
{
    return (n & (n - 1)) == 0;
}

/* Steps one after the other: of a ring, or of a tree and back where that is fewer. */
static double network_steps(int32_t ranks)
{
    const double tree = 2 * ceil(log2((double)ranks));
    return ranks - 1 < tree ? ranks - 1 : tree;
}

static double network_divide(double bytes, double bytes_per_s)
{
    return bytes > 0 ? bytes / bytes_per_s : 0;
}

/* Ranks send `each` to other hosts, and a rack's ranks `up` in all to other racks, meanwhile. */
static double network_between_s(const struct network_call *call, double each, double up)
{
    const struct tess_network_group *group = &call->group;
    const double members = (double)group->ranks / group->racks;
    if (group->hosts == 1)
        return 0;
    return fmax(network_divide(each, group->net_bytes_per_s),
                group->racks > 1 ? network_divide(up, members * group->rack_bytes_per_s) : 0);
}

/* What leaves a rack of an array that all ranks get, or that is added up. */
static double network_rack_bytes(const struct network_call *call)
{
    const struct tess_network_group *group = &call->group;
    const double r = call->ring || !network_is_power(group->racks) ? group->hosts : group->racks;
    return (r - 1) / r * call->bytes;
}

/* Every rank's part comes to all ranks, or all ranks' parts of it to each. */
static double network_spread(const struct network_call *call)
{
    const struct tess_network_group *group = &call->group;
    const double h = group->host_ranks, m = group->hosts, k = group->ranks, r = group->racks;
    const double within = call->levels ? (h - 1) / h : (h - 1) / k;
    const double between = call->levels ? (m - 1) / m / h : (k - h) / k;
    const double up = call->levels ? network_rack_bytes(call) : (r - 1) / r * call->bytes * k / r;
    const double within_s = network_divide(within * call->bytes, group->host_bytes_per_s);
    const double between_s = network_between_s(call, between * call->bytes, up);
    return (call->ring ? fmax(within_s, between_s) : within_s + between_s) +
           network_steps(group->host_ranks) * call->cluster->host_hop_s +
           network_steps(group->hosts) * call->cluster->net_hop_s;
}

/* So many bytes from one rank to another, the slowest that there are. */
static double network_far_s(const struct network_call *call, double bytes)
{
    const struct tess_network_group *group = &call->group;
    return group->hosts > 1 ? network_between_s(call, bytes, bytes)
                            : network_divide(bytes, group->host_bytes_per_s);
}

/* One rank sends to all others, or receives from them, so many bytes. */
static double network_root(const struct network_call *call, double bytes)
{
    const bool far = call->group.hosts > 1;
    return network_far_s(call, bytes) +
           ceil(log2((double)call->group.ranks)) *
               (far ? call->cluster->net_hop_s : call->cluster->host_hop_s);
}

static double network_message(const struct network_call *call)
{
    const bool far = call->group.hosts > 1;
    return network_far_s(call, call->bytes) +
           (far ? call->cluster->net_hop_s : call->cluster->host_hop_s);
}

/* Of ranks that read each other's memory. A small call is latency alone. */
static double network_shared_s(const struct network_call *call, enum tess_collective collective)
{
    const double k = call->group.ranks, n = call->bytes;
    const double sum = call->cluster->sum_bytes_per_s;
    switch (collective) {
    case TESS_COLLECTIVE_ALL_REDUCE:
        return n / sum;
    case TESS_COLLECTIVE_REDUCE_SCATTER:
    case TESS_COLLECTIVE_REDUCE:
        return (1 + 1 / k) / 2 * n / call->cluster->scatter_bytes_per_s;
    case TESS_COLLECTIVE_ALL_GATHER:
    case TESS_COLLECTIVE_ALL_TO_ALL:
        return network_divide((k - 1) / k * n, call->group.host_bytes_per_s);
    default: /* what is sent is read once by each that gets it */
        return network_divide(n, call->group.host_bytes_per_s);
    }
}

/* Busy ranks send pieces of a sum and add them up: half of it where each gets its share. Within
 * hosts first; between them goes what a ring over hosts would send. */
static double network_added_s(const struct network_call *call, enum tess_collective collective)
{
    const struct tess_network_group *group = &call->group;
    const double h = group->host_ranks, m = group->hosts, n = call->bytes;
    const double all = collective == TESS_COLLECTIVE_ALL_REDUCE ? 2 : 1;
    const double within_s = all * (h - 1) / h * n / call->cluster->sent_sum_bytes_per_s;
    const double between_s =
        all * network_between_s(call, (m - 1) / m * n / h, network_rack_bytes(call));
    return within_s + between_s + network_steps(group->host_ranks) * call->cluster->host_hop_s +
           network_steps(group->hosts) * call->cluster->net_hop_s;
}

static double network_moved_s(const struct network_call *call, enum tess_collective collective)
{
    const bool adds = collective == TESS_COLLECTIVE_ALL_REDUCE ||
                      collective == TESS_COLLECTIVE_REDUCE_SCATTER ||
                      collective == TESS_COLLECTIVE_REDUCE;
    if (adds && call->cluster->sent_sum_bytes_per_s > 0)
        return network_added_s(call, collective);
    switch (collective) {
    case TESS_COLLECTIVE_ALL_REDUCE:
        return 2 * network_spread(call);
    case TESS_COLLECTIVE_REDUCE_SCATTER:
    case TESS_COLLECTIVE_ALL_GATHER:
    case TESS_COLLECTIVE_ALL_TO_ALL:
        return network_spread(call);
    case TESS_COLLECTIVE_SEND:
    case TESS_COLLECTIVE_RECV:
        return network_message(call);
    case TESS_COLLECTIVE_BROADCAST:
    case TESS_COLLECTIVE_REDUCE:
        return network_root(call, call->bytes);
    default: /* a barrier */
        return network_root(call, 0);
    }
}

double tess_network_s(const struct tess_network *network, int32_t group,
                      enum tess_collective collective, enum tess_order order, int32_t ranks,
                      double bytes)
{
    struct network_call call = {.cluster = &network->cluster,
                                .group = network->group[group],
                                .ring = order == TESS_ORDER_FAST,
                                .bytes = bytes};
    if (ranks < 2)
        return 0;
    call.group.ranks = ranks;
    call.group.host_ranks = network_least(call.group.host_ranks, ranks);
    call.group.hosts = (ranks + call.group.host_ranks - 1) / call.group.host_ranks;
    call.group.racks = network_least(call.group.racks, call.group.hosts);
    call.levels = collective != TESS_COLLECTIVE_ALL_TO_ALL &&
                  (call.ring || network_is_power(call.group.host_ranks));
    if (network->cluster.busy && network->cluster.sum_bytes_per_s > 0)
        return network->cluster.call_s + network->cluster.host_hop_s +
               network_shared_s(&call, collective);
    return network->cluster.call_s + network_moved_s(&call, collective);
}

double tess_network_share_s(const struct tess_network *network, int32_t ranks, double bytes,
                            double given)
{
    const struct tess_cluster *cluster = &network->cluster;
    return cluster->call_s + cluster->host_hop_s +
           (bytes + (ranks - 1.0) / ranks * given) / cluster->share_bytes_per_s;
}

double tess_network_message_s(const struct tess_network *network, int32_t group, int32_t from,
                              int32_t to, double bytes)
{
    struct tess_network near = *network;
    struct tess_network_group *of = &near.group[group];
    const int32_t rack_ranks = of->racks > 1 ? of->ranks / of->racks : of->ranks;
    if (from / of->host_ranks == to / of->host_ranks)
        of->host_ranks = of->ranks;
    if (from / rack_ranks == to / rack_ranks)
        of->racks = 1;
    return tess_network_s(&near, group, TESS_COLLECTIVE_SEND, TESS_ORDER_CANONICAL, of->ranks,
                          bytes);
}
