/*
 * Seconds of calls by hand: rings and two levels, cards that are shared, racks, and which ranks of
 * a mesh share a host. Clusters as they are sold and as files describe them.
 */
#include "predict/network.h"
#include "predict/profile.h"
#include "topology/machine/topology.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void assert_near(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-12 * fabs(expected)))
        fail_msg("%.17g, expected %.17g", value, expected);
}

/* Round figures: 100 bytes/s within a host, 10 for all of a host between hosts, at most 5 of them
 * for one rank; no latency. */
static struct tess_cluster round_cluster(int32_t ranks, int32_t host_ranks)
{
    return (struct tess_cluster){.ranks = ranks,
                                 .host_ranks = host_ranks,
                                 .host_bytes_per_s = 100,
                                 .host_net_bytes_per_s = 10,
                                 .rank_net_bytes_per_s = 5,
                                 .rack_share = 1};
}

static struct tess_network network_of(const struct tess_cluster *cluster, int32_t data,
                                      int32_t tensor, int32_t stage)
{
    const struct tess_mesh mesh = {
        .rank_count = data * tensor * stage,
        .count = {[TESS_AXIS_DATA] = data, [TESS_AXIS_TENSOR] = tensor, [TESS_AXIS_STAGE] = stage}};
    struct tess_network network;
    tess_network_make(cluster, &mesh, &network);
    return network;
}

static double seconds(const struct tess_network *network, int32_t group,
                      enum tess_collective collective, enum tess_order order, double bytes)
{
    return tess_network_s(network, group, collective, order, network->group[group].ranks, bytes);
}

/* 4 ranks on one host, 400 bytes: each sends 3/4 of them, 300 at 100 bytes/s. */
static void case_one_host(void **state)
{
    (void)state;
    const struct tess_cluster cluster = round_cluster(4, 4);
    const struct tess_network network = network_of(&cluster, 4, 1, 1);
    for (int order = TESS_ORDER_CANONICAL; order <= TESS_ORDER_FAST; order++) {
        assert_near(seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_GATHER,
                            (enum tess_order)order, 400),
                    3);
        assert_near(seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_REDUCE_SCATTER,
                            (enum tess_order)order, 400),
                    3);
        assert_near(seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_REDUCE,
                            (enum tess_order)order, 400),
                    6);
    }
    assert_near(seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_TO_ALL, TESS_ORDER_FAST, 400),
                3);
    assert_near(seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_BROADCAST, TESS_ORDER_FAST, 400),
                4);
    assert_near(seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_SEND, TESS_ORDER_FAST, 400), 4);
    assert_true(seconds(&network, TESS_AXIS_TENSOR, TESS_COLLECTIVE_SEND, TESS_ORDER_FAST, 400) ==
                0); /* one rank */
}

/* 4 hosts of 4: 10 bytes/s of a host are 2.5 for each rank. 1600 bytes: within a host 3/4, 12 s;
 * between hosts 3/4 of the quarter that a rank has, 300 bytes, 120 s. */
static void case_two_levels(void **state)
{
    (void)state;
    const struct tess_cluster cluster = round_cluster(16, 4);
    const struct tess_network network = network_of(&cluster, 16, 1, 1);
    assert_int_equal(network.group[TESS_AXIS_DATA].host_ranks, 4);
    assert_int_equal(network.group[TESS_AXIS_DATA].hosts, 4);
    assert_near(network.group[TESS_AXIS_DATA].net_bytes_per_s, 2.5);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_GATHER, TESS_ORDER_CANONICAL, 1600),
        12 + 120);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_GATHER, TESS_ORDER_FAST, 1600), 120);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_REDUCE, TESS_ORDER_CANONICAL, 1600),
        264);
    /* Each sends 100 bytes to each: 3 of them at 100 bytes/s, 12 at 2.5. */
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_TO_ALL, TESS_ORDER_CANONICAL, 1600),
        3 + 480);
}

/* 2 hosts of 3: canonical sums have one level, 3/6 of 600 bytes between hosts at 10/3. */
static void case_three_neighbours(void **state)
{
    (void)state;
    const struct tess_cluster cluster = round_cluster(6, 3);
    const struct tess_network network = network_of(&cluster, 6, 1, 1);
    assert_near(seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_REDUCE_SCATTER,
                        TESS_ORDER_CANONICAL, 600),
                2 + 90);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_REDUCE_SCATTER, TESS_ORDER_FAST, 600),
        600.0 / 2 / 3 / (10.0 / 3));
}

/* Which ranks of data 4, tensor 2, stage 2 share hosts of 4. */
static void case_mesh(void **state)
{
    (void)state;
    const struct tess_cluster cluster = round_cluster(16, 4);
    const struct tess_network network = network_of(&cluster, 4, 2, 2);
    const struct tess_network_group *group = network.group;
    assert_int_equal(group[TESS_AXIS_TENSOR].host_ranks, 2);
    assert_int_equal(group[TESS_AXIS_TENSOR].hosts, 1);
    assert_int_equal(group[TESS_AXIS_DATA].host_ranks, 2);
    assert_int_equal(group[TESS_AXIS_DATA].hosts, 2);
    assert_int_equal(group[TESS_AXIS_STAGE].host_ranks, 1);
    assert_int_equal(group[TESS_AXIS_STAGE].hosts, 2);
    assert_int_equal(group[TESS_AXIS_COUNT].ranks, 16);
    assert_int_equal(group[TESS_AXIS_COUNT].hosts, 4);
    /* A message between stages goes to another host, at a rank's share. */
    assert_near(seconds(&network, TESS_AXIS_STAGE, TESS_COLLECTIVE_SEND, TESS_ORDER_FAST, 50), 20);
    /* Two neighbours of the data axis are on one host. */
    assert_near(tess_network_s(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_GATHER,
                               TESS_ORDER_FAST, 2, 200),
                1);
}

/* One rank on each host has one card alone, 5 of the host's 10; beyond a rack half of it is left.
 */
static void case_cards_and_racks(void **state)
{
    (void)state;
    struct tess_cluster cluster = round_cluster(8, 1);
    struct tess_network network = network_of(&cluster, 8, 1, 1);
    assert_near(network.group[TESS_AXIS_DATA].net_bytes_per_s, 5);
    cluster.rack_hosts = 4;
    cluster.rack_share = 0.5;
    network = network_of(&cluster, 4, 1, 2);
    assert_int_equal(network.group[TESS_AXIS_DATA].racks, 1);
    assert_int_equal(network.group[TESS_AXIS_STAGE].racks, 2);
    assert_near(network.group[TESS_AXIS_STAGE].net_bytes_per_s, 5);
    assert_near(network.group[TESS_AXIS_STAGE].rack_bytes_per_s, 2.5);
    /* Ranks 0 and 4: the way up is a rank's, as all send at once. */
    assert_near(seconds(&network, TESS_AXIS_STAGE, TESS_COLLECTIVE_SEND, TESS_ORDER_FAST, 50), 20);
}

/* 2 racks of 2 hosts of 2 ranks, 5 bytes/s each, and of the 20 of a rack's ranks 4 beyond it. Of
 * 800 bytes a rank sends 3/4 of its half to other hosts, 300 in 60 s; half of all leave a rack, 400
 * in 100 s; in a ring over hosts 3/4 of all. */
static void case_rack_bytes(void **state)
{
    (void)state;
    struct tess_cluster cluster = round_cluster(8, 2);
    cluster.rack_hosts = 2;
    cluster.rack_share = 0.2;
    const struct tess_network network = network_of(&cluster, 8, 1, 1);
    assert_int_equal(network.group[TESS_AXIS_DATA].racks, 2);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_GATHER, TESS_ORDER_CANONICAL, 800),
        4 + 100);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_REDUCE, TESS_ORDER_CANONICAL, 800),
        2 * (4 + 100));
    assert_near(seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_GATHER, TESS_ORDER_FAST, 800),
                150);
    /* Each rank sends 100 bytes to each: 6 of them at 5 bytes/s; 4 ranks' to 4 others at 4. */
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_TO_ALL, TESS_ORDER_CANONICAL, 800),
        1 + 400);
    /* Within a host, within a rack, and beyond it. */
    assert_near(tess_network_message_s(&network, TESS_AXIS_DATA, 2, 3, 800), 8);
    assert_near(tess_network_message_s(&network, TESS_AXIS_DATA, 1, 2, 800), 160);
    assert_near(tess_network_message_s(&network, TESS_AXIS_DATA, 3, 4, 800), 200);
    /* A link of the ring, or of a tree, alone. */
    assert_near(seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_SEND, TESS_ORDER_FAST, 800), 200);
    assert_near(seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_BROADCAST, TESS_ORDER_FAST, 800),
                200);
}

/* Steps: 3 of a ring of 4; a tree of 16 and back takes 8 where the ring has 15. */
static void case_latency(void **state)
{
    (void)state;
    struct tess_cluster cluster = round_cluster(16, 16);
    cluster.call_s = 1000;
    cluster.host_hop_s = 1;
    struct tess_network network = network_of(&cluster, 4, 4, 1);
    assert_near(seconds(&network, TESS_AXIS_TENSOR, TESS_COLLECTIVE_ALL_GATHER, TESS_ORDER_FAST, 0),
                1003);
    network = network_of(&cluster, 16, 1, 1);
    assert_near(seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_GATHER, TESS_ORDER_FAST, 0),
                1008);
}

/* Ranks on a processor: a sum over sockets has a rate of its own, one in shared memory that ends in
 * a share for each too; ranks that take turns have less of all, and other rates. */
static void case_processor(void **state)
{
    const struct tess_profile profile = {.bytes_per_s = 100,
                                         .cores = 2,
                                         .copy_bytes_per_s = 50,
                                         .sum_bytes_per_s = 20,
                                         .scatter_bytes_per_s = 10,
                                         .turn_copy_bytes_per_s = 40,
                                         .turn_sum_bytes_per_s = 10,
                                         .call_s = 1e-300,
                                         .net_call_s = 1e-300,
                                         .net_bytes_per_s = 5,
                                         .net_sum_bytes_per_s = 4};
    struct tess_cluster cluster;
    (void)state;
    tess_cluster_of_processor(&profile, 2, true, &cluster);
    struct tess_network network = network_of(&cluster, 2, 1, 1);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_REDUCE, TESS_ORDER_CANONICAL, 40),
        10);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_REDUCE_SCATTER, TESS_ORDER_CANONICAL, 40),
        5);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_GATHER, TESS_ORDER_CANONICAL, 40), 4);
    tess_cluster_of_processor(&profile, 4, false, &cluster);
    network = network_of(&cluster, 4, 1, 1);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_REDUCE, TESS_ORDER_CANONICAL, 40), 2);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_REDUCE_SCATTER, TESS_ORDER_CANONICAL, 40),
        2.5);
    tess_network_crowd(&network, &profile, 2, 2);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_REDUCE, TESS_ORDER_CANONICAL, 40), 8);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_REDUCE_SCATTER, TESS_ORDER_CANONICAL, 40),
        10);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_GATHER, TESS_ORDER_CANONICAL, 40),
        30.0 / 20);
}

/* The line of words of a DGX H100 in configs/clusters, and the built-in one, agree. */
static void case_described(void **state)
{
    (void)state;
    const struct tess_topology_options options = {0};
    struct tess_topology *topology = NULL;
    struct tess_cluster sold, described;
    assert_int_equal(
        tess_topology_synthetic("node:4 socket:2 switch:4 gpu:1 nic:1 nvlink:switch:18 sm:90 pci:5 "
                                "cpu:intel rail:8 edge:50 uplink:200",
                                &options, &topology),
        TESS_OK);
    assert_int_equal(tess_cluster_of_topology(topology, "dgx", &described), TESS_OK);
    tess_topology_free(topology);
    assert_int_equal(tess_cluster_of_device("h100-80", 32, &sold), TESS_OK);
    assert_int_equal(described.ranks, sold.ranks);
    assert_int_equal(described.host_ranks, sold.host_ranks);
    assert_near(described.host_bytes_per_s, sold.host_bytes_per_s);
    assert_near(described.rank_net_bytes_per_s, sold.rank_net_bytes_per_s);
    assert_near(described.host_net_bytes_per_s, 8 * 50e9); /* of which PCIe lets 48 through */
    assert_int_equal(described.rack_hosts, 0);
}

/* Two racks of two hosts with two ranks each, a tenth of their network between them. */
static void case_described_racks(void **state)
{
    (void)state;
    const struct tess_topology_options options = {0};
    struct tess_topology *topology = NULL;
    struct tess_cluster cluster;
    assert_int_equal(tess_topology_synthetic("rack:2 node:2 rank:2 edge:0.125 uplink:0.0125",
                                             &options, &topology),
                     TESS_OK);
    assert_int_equal(tess_cluster_of_topology(topology, "racks", &cluster), TESS_OK);
    tess_topology_free(topology);
    assert_int_equal(cluster.host_ranks, 2);
    assert_int_equal(cluster.rack_hosts, 2);
    assert_near(cluster.host_net_bytes_per_s, 0.125e9);
    assert_near(cluster.rack_share, 0.05);
}

/* Processors of several hosts: a sum of 400 MB within two hosts of two ranks at 4 GB/s, then
 * between them, where both ranks share 125 MB/s; and a step between hosts of 30 us. */
static void case_hosts(void **state)
{
    const struct tess_profile profile = {.bytes_per_s = 1e10,
                                         .cores = 2,
                                         .call_s = 1e-300,
                                         .net_call_s = 1e-300,
                                         .net_bytes_per_s = 5e9,
                                         .net_sum_bytes_per_s = 4e9};
    const struct tess_topology_options options = {0};
    struct tess_topology *topology = NULL;
    struct tess_cluster cluster;
    (void)state;
    assert_int_equal(tess_topology_synthetic("node:2 rank:2 edge:0.125", &options, &topology),
                     TESS_OK);
    assert_int_equal(tess_cluster_of_hosts(&profile, topology, &cluster), TESS_OK);
    tess_topology_free(topology);
    assert_true(cluster.ranks == 4 && cluster.host_ranks == 2 && cluster.busy);
    const struct tess_network network = network_of(&cluster, 4, 1, 1);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_REDUCE, TESS_ORDER_CANONICAL, 4e8),
        0.1 + 3.2 + 3e-5);
    assert_near(
        seconds(&network, TESS_AXIS_DATA, TESS_COLLECTIVE_ALL_GATHER, TESS_ORDER_CANONICAL, 4e8),
        0.04 + 1.6 + 3e-5);
}

static struct tess_topology *synthetic(const char *words)
{
    const struct tess_topology_options options = {0};
    struct tess_topology *topology = NULL;
    assert_int_equal(tess_topology_synthetic(words, &options, &topology), TESS_OK);
    return topology;
}

/*
 * DGX-1, a hybrid cube mesh: two NVLinks of 20 GB/s each join 0-3, 1-2, 4-7 and 5-6, and one 0-1
 * and 2-3, which are pairs along the tensor axis in the natural order. Along the data axis 2-4 and
 * 3-5 are then not joined at all: PCIe carries both ways. The order that is found has pairs of two
 * links, and rings of one.
 */
static void case_order(void **state)
{
    (void)state;
    struct tess_topology *topology =
        synthetic("socket:2 switch:2 gpu:2 nic:1 nvlink:cube sm:70 pci:3 cpu:intel edge:12.5");
    const struct tess_mesh mesh = {
        .rank_count = 8,
        .count = {[TESS_AXIS_DATA] = 4, [TESS_AXIS_TENSOR] = 2, [TESS_AXIS_STAGE] = 1}};
    const double bytes[TESS_AXIS_COUNT] = {[TESS_AXIS_DATA] = 1e9, [TESS_AXIS_TENSOR] = 1e9};
    struct tess_network network, natural;
    struct tess_cluster cluster;
    int32_t *device = NULL;
    bool seen[8] = {false};
    assert_int_equal(tess_cluster_of_topology(topology, "dgx-1v", &cluster), TESS_OK);
    assert_int_equal(
        tess_network_order(&cluster, topology, &mesh, bytes, true, &network, &natural, &device),
        TESS_OK);
    assert_non_null(device);
    assert_int_equal(device[0], 0);
    for (int r = 0; r < 8; r++)
        seen[device[r]] = true;
    for (int d = 0; d < 8; d++)
        assert_true(seen[d]);
    const struct tess_network_group *group = network.group, *before = natural.group;
    assert_near(group[TESS_AXIS_TENSOR].host_bytes_per_s, 40e9);
    assert_near(before[TESS_AXIS_TENSOR].host_bytes_per_s, 20e9);
    assert_near(group[TESS_AXIS_DATA].host_bytes_per_s, 20e9);
    assert_true(before[TESS_AXIS_DATA].host_bytes_per_s < 10e9);
    assert_int_equal(group[TESS_AXIS_DATA].hosts, 1);
    assert_int_equal(group[TESS_AXIS_DATA].host_ranks, 4);
    free(device);
    tess_topology_free(topology);
}

static void same_groups(const struct tess_network *one, const struct tess_network *other)
{
    for (int g = 0; g <= TESS_AXIS_COUNT; g++) {
        const struct tess_network_group *a = &one->group[g], *b = &other->group[g];
        assert_int_equal(a->ranks, b->ranks);
        assert_int_equal(a->host_ranks, b->host_ranks);
        assert_int_equal(a->hosts, b->hosts);
        assert_true(a->host_bytes_per_s == b->host_bytes_per_s);
        assert_true(a->net_bytes_per_s == b->net_bytes_per_s);
    }
}

/* The order on `hosts` DGX-1, two ranks along the tensor axis and the others along the data axis;
 * NULL: the natural one. */
static int32_t *dgx_order(int32_t hosts, struct tess_network *network, struct tess_network *natural)
{
    char words[160];
    snprintf(words, sizeof(words),
             "node:%d socket:2 switch:2 gpu:2 nic:1 nvlink:cube sm:70 pci:3 cpu:intel edge:12.5",
             (int)hosts);
    struct tess_topology *topology = synthetic(words);
    const struct tess_mesh mesh = {
        .rank_count = 8 * hosts,
        .count = {[TESS_AXIS_DATA] = 4 * hosts, [TESS_AXIS_TENSOR] = 2, [TESS_AXIS_STAGE] = 1}};
    const double bytes[TESS_AXIS_COUNT] = {[TESS_AXIS_DATA] = 1e9, [TESS_AXIS_TENSOR] = 1e9};
    struct tess_cluster cluster;
    int32_t *device = NULL;
    assert_int_equal(tess_cluster_of_topology(topology, "dgx-1v", &cluster), TESS_OK);
    assert_int_equal(
        tess_network_order(&cluster, topology, &mesh, bytes, true, network, natural, &device),
        TESS_OK);
    tess_topology_free(topology);
    return device;
}

/* Of many hosts each has the order of one. */
static void case_many_hosts(void **state)
{
    enum { HOSTS = 64 };
    struct tess_network network, natural, one_network, one_natural;
    (void)state;
    int32_t *one = dgx_order(1, &one_network, &one_natural);
    int32_t *many = dgx_order(HOSTS, &network, &natural);
    assert_non_null(one);
    assert_non_null(many);
    for (int32_t r = 0; r < 8 * HOSTS; r++)
        assert_int_equal(many[r], r / 8 * 8 + one[r % 8]);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        assert_near(network.group[axis].host_bytes_per_s, one_network.group[axis].host_bytes_per_s);
        assert_near(natural.group[axis].host_bytes_per_s, one_natural.group[axis].host_bytes_per_s);
    }
    assert_int_equal(network.group[TESS_AXIS_DATA].hosts, HOSTS);
    assert_int_equal(network.group[TESS_AXIS_DATA].host_ranks, 4);
    free(one);
    free(many);
}

/* Ranks of a host that are no part of the mesh: the natural order is kept. */
static void case_many_hosts_across(void **state)
{
    (void)state;
    struct tess_topology *topology = synthetic("node:100 gpu:4 nvlink:mesh:1 nic:4 sm:70");
    const struct tess_mesh mesh = {
        .rank_count = 300,
        .count = {[TESS_AXIS_DATA] = 100, [TESS_AXIS_TENSOR] = 3, [TESS_AXIS_STAGE] = 1}};
    const double bytes[TESS_AXIS_COUNT] = {[TESS_AXIS_DATA] = 1e9, [TESS_AXIS_TENSOR] = 1e9};
    struct tess_network network, natural;
    struct tess_cluster cluster;
    int32_t *device = NULL;
    assert_int_equal(tess_cluster_of_topology(topology, "hosts", &cluster), TESS_OK);
    assert_int_equal(
        tess_network_order(&cluster, topology, &mesh, bytes, true, &network, &natural, &device),
        TESS_OK);
    assert_null(device);
    same_groups(&network, &natural);
    tess_topology_free(topology);
}

/* Switches reach all alike: nothing is better than the natural order, and nothing changes. */
static void case_natural(void **state)
{
    (void)state;
    struct tess_topology *topology = synthetic("node:2 gpu:4 nvlink:switch nic:4 rail:4 sm:90");
    const struct tess_mesh mesh = {
        .rank_count = 8,
        .count = {[TESS_AXIS_DATA] = 2, [TESS_AXIS_TENSOR] = 4, [TESS_AXIS_STAGE] = 1}};
    const double bytes[TESS_AXIS_COUNT] = {[TESS_AXIS_DATA] = 1e9, [TESS_AXIS_TENSOR] = 1e9};
    struct tess_network network, natural, made;
    struct tess_cluster cluster;
    int32_t *device = NULL;
    assert_int_equal(tess_cluster_of_topology(topology, "two", &cluster), TESS_OK);
    assert_int_equal(
        tess_network_order(&cluster, topology, &mesh, bytes, true, &network, &natural, &device),
        TESS_OK);
    assert_null(device);
    tess_network_make(&cluster, &mesh, &made);
    same_groups(&network, &made);
    same_groups(&natural, &made);
    tess_topology_free(topology);
}

/* Two racks of two hosts of one rank. The ranks of a group along the data axis, 0 and 2, are in
 * both racks in the natural order, and in one when all that matters is sent along that axis. */
static void case_racks_in_turn(void **state)
{
    (void)state;
    struct tess_topology *topology = synthetic("rack:2 node:2 rank:1 edge:0.125 uplink:0.0125");
    const struct tess_mesh mesh = {
        .rank_count = 4,
        .count = {[TESS_AXIS_DATA] = 2, [TESS_AXIS_TENSOR] = 2, [TESS_AXIS_STAGE] = 1}};
    /* Nearly all is sent along the data axis, whose ranks are two places apart. */
    const double bytes[TESS_AXIS_COUNT] = {[TESS_AXIS_DATA] = 1e9, [TESS_AXIS_TENSOR] = 1};
    struct tess_network network, natural;
    struct tess_cluster cluster;
    int32_t *device = NULL;
    assert_int_equal(tess_cluster_of_topology(topology, "racks", &cluster), TESS_OK);
    assert_int_equal(
        tess_network_order(&cluster, topology, &mesh, bytes, true, &network, &natural, &device),
        TESS_OK);
    assert_non_null(device);
    assert_int_equal(device[0] / 2, device[2] / 2); /* data: ranks 0 and 2 */
    assert_int_equal(natural.group[TESS_AXIS_DATA].racks, 2);
    assert_int_equal(network.group[TESS_AXIS_DATA].racks, 1);
    assert_int_equal(natural.group[TESS_AXIS_TENSOR].racks, 1);
    assert_int_equal(network.group[TESS_AXIS_TENSOR].racks, 2);
    assert_near(network.group[TESS_AXIS_TENSOR].rack_bytes_per_s, 0.125e9 * cluster.rack_share);
    assert_int_equal(network.group[TESS_AXIS_DATA].hosts, 2);
    free(device);
    tess_topology_free(topology);
}

static void case_refused(void **state)
{
    (void)state;
    struct tess_cluster cluster;
    assert_int_equal(tess_cluster_of_device("h99", 8, &cluster), TESS_ERR_USAGE);
    assert_int_equal(tess_cluster_of_device("", 8, &cluster), TESS_ERR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_one_host),
        cmocka_unit_test(case_two_levels),
        cmocka_unit_test(case_three_neighbours),
        cmocka_unit_test(case_mesh),
        cmocka_unit_test(case_cards_and_racks),
        cmocka_unit_test(case_rack_bytes),
        cmocka_unit_test(case_latency),
        cmocka_unit_test(case_processor),
        cmocka_unit_test(case_hosts),
        cmocka_unit_test(case_described),
        cmocka_unit_test(case_described_racks),
        cmocka_unit_test(case_order),
        cmocka_unit_test(case_natural),
        cmocka_unit_test(case_racks_in_turn),
        cmocka_unit_test(case_many_hosts),
        cmocka_unit_test(case_many_hosts_across),
        cmocka_unit_test(case_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
