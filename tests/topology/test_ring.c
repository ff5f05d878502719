/*
 * Rings of machines that are known: what the natural order carries, the best ring, rings at once.
 * The figures are those of NCCL 2.28's model of the same machines, worked out over all orders.
 */
#include "machines.h"
#include "mapping.h"
#include "rings.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static enum tess_path_kind kind(const struct rings *rings, int from, int to)
{
    return rings->routes.route[from * rings->found.count + to].kind;
}

static void case_dgx1v(void **state)
{
    (void)state;
    struct rings rings = rings_find(machine_dgx1v(), 8);
    assert_int_equal(kind(&rings, 0, 3), TESS_PATH_NVL);
    assert_int_equal(kind(&rings, 3, 4), TESS_PATH_SYS);
    assert_int_equal(kind(&rings, 0, 0), TESS_PATH_LOC);
    rings_near(rings.routes.route[3 * 8 + 4].gbs, 6);
    rings_near(rings.found.natural.gbs, 6);
    rings_near(rings.found.best_single.gbs, 40);
    rings_is_order(&rings.found.best_single, "0-3-2-1-5-6-7-4");
    assert_true(rings.found.optimal);
    rings_near(rings.found.single_bound_gbs, 40);
    rings_near(rings.found.bound_gbs, 121.5);
    assert_true(rings.found.total_gbs >= 0.98 * 121.5);
    rings_drop(&rings);
}

static void case_a_bridge_across_sockets(void **state)
{
    (void)state;
    struct rings rings = rings_find(machine_h100_bridges(), 8);
    rings_near(rings.found.natural.gbs, 22);
    rings_near(rings.found.best_single.gbs, 22);
    assert_true(rings.found.optimal);
    /* The bridge is no way from a device to the other socket's processor. */
    assert_int_equal(kind(&rings, 0, 5), TESS_PATH_NVL);
    assert_int_equal(kind(&rings, 0, 3), TESS_PATH_SYS);
    rings_near(rings.routes.route[0 * 8 + 3].gbs, 22);
    rings_near(rings.found.total_gbs, 44);
    rings_near(rings.found.bound_gbs, 44);
    assert_int_equal(rings.found.ring_count, 2);
    rings_drop(&rings);
    rings = rings_find(machine_h100_bridges(), 1);
    rings_near(rings.found.total_gbs, 22);
    rings_near(rings.found.bound_gbs, 44);
    rings_drop(&rings);
}

static void case_hives(void **state)
{
    (void)state;
    struct rings rings = rings_find(machine_epyc_hives(), 8);
    rings_near(rings.found.natural.gbs, 16);
    rings_near(rings.found.best_single.gbs, 16);
    assert_true(rings.found.optimal);
    assert_true(rings.found.total_gbs >= 48 * (1 - 1e-9));
    assert_true(rings.found.bound_gbs <= 64 * (1 + 1e-9));
    assert_true(rings.found.total_gbs >= 0.95 * rings.found.bound_gbs);
    rings_drop(&rings);
}

static void case_any_order_through_nvswitch(void **state)
{
    (void)state;
    for (int count = 2; count <= 16; count += 7) {
        struct rings rings = rings_find(machine_nvswitch(count), 8);
        rings_near(rings.found.natural.gbs, 370.8);
        rings_near(rings.found.best_single.gbs, 370.8);
        rings_near(rings.found.total_gbs, 370.8);
        rings_near(rings.found.bound_gbs, 370.8);
        assert_int_equal(rings.found.ring_count, 1);
        assert_int_equal(kind(&rings, 0, 1), TESS_PATH_NVL);
        assert_true(rings.found.optimal);
        for (int i = 0; i < count; i++)
            assert_int_equal(rings.found.best_single.order[i], i);
        rings_drop(&rings);
    }
}

static void case_two_sockets(void **state)
{
    (void)state;
    static const int32_t crossing[] = {0, 4, 1, 5, 2, 6, 3, 7};
    struct rings rings = rings_find(machine_two_sockets(4, 4), 8);
    rings_near(rings.found.natural.gbs, 10);
    rings_near(rings.found.best_single.gbs, 10);
    rings_is_order(&rings.found.best_single, "0-1-2-3-4-5-6-7");
    rings_near(rings.found.bound_gbs, 10);
    rings_near(rings_order_gbs(&rings, crossing), 2.5);
    assert_int_equal(kind(&rings, 0, 1), TESS_PATH_PIX);
    assert_int_equal(kind(&rings, 0, 4), TESS_PATH_SYS);
    rings_drop(&rings);
    static const int32_t crossing3[] = {0, 5, 1, 6, 2, 7, 3, 4};
    rings = rings_find(machine_two_sockets(5, 3), 8);
    rings_near(rings.found.natural.gbs, 10);
    rings_near(rings.found.total_gbs, 10);
    rings_near(rings_order_gbs(&rings, crossing3), 10 / 3.0);
    rings_drop(&rings);
    rings = rings_find(machine_pairs(), 8);
    rings_near(rings.found.natural.gbs, 10);
    rings_near(rings.found.total_gbs, 10);
    rings_near(rings.found.bound_gbs, 10);
    rings_drop(&rings);
}

/* K4 has no three arc-disjoint directed rings; all six at half a link fill it. */
static void case_all_to_all(void **state)
{
    (void)state;
    struct rings rings = rings_find(machine_all_to_all(4), 8);
    rings_near(rings.found.natural.gbs, 80);
    rings_near(rings.found.best_single.gbs, 80);
    rings_near(rings.found.total_gbs, 240);
    rings_near(rings.found.bound_gbs, 240);
    rings_drop(&rings);
    /* Nor K6 into five; many rings together come near. */
    rings = rings_find(machine_all_to_all(6), TESS_RINGS_MAX);
    rings_near(rings.found.bound_gbs, 400);
    assert_true(rings.found.total_gbs >= 0.979 * 400);
    rings_drop(&rings);
    /* K8 splits into seven directed rings (Tillson 1980). */
    rings = rings_find(machine_all_to_all(8), 16);
    rings_near(rings.found.best_single.gbs, 80);
    rings_near(rings.found.bound_gbs, 560);
    rings_near(rings.found.total_gbs, 560);
    assert_int_equal(rings.found.ring_count, 7);
    rings_drop(&rings);
}

static void case_square(void **state)
{
    (void)state;
    struct rings rings = rings_find(machine_square(), 8);
    rings_is_order(&rings.found.best_single, "0-1-3-2");
    rings_near(rings.found.best_single.gbs, 20);
    rings_near(rings.found.natural.gbs, 10);
    assert_true(rings.found.total_gbs >= 40);
    rings_drop(&rings);
}

/* 1, 2, 4 and 5 of a DGX-1V: 1-2, 1-5 and 4-5 have links, 2-4 has none. */
static void case_subsets(void **state)
{
    (void)state;
    static const int32_t four[] = {1, 2, 4, 5};
    struct tess_topology *topology = machine_dgx1v();
    assert_int_equal(tess_topology_select(topology, four, 4), TESS_OK);
    struct rings rings = rings_find(topology, 8);
    assert_int_equal(kind(&rings, 0, 1), TESS_PATH_NVL);
    assert_int_equal(kind(&rings, 1, 2), TESS_PATH_SYS);
    rings_near(rings.found.best_single.gbs, 6);
    assert_true(rings.found.total_gbs >= 0.98 * rings.found.bound_gbs);
    rings_drop(&rings);
    /* All of 3 to 7 devices: rings_find looks at each. */
    for (uint32_t set = 1; set < 256; set++) {
        int32_t keep[8], count = 0;
        for (int32_t i = 0; i < 8; i++) {
            if (set >> i & 1)
                keep[count++] = i;
        }
        topology = machine_dgx1v();
        assert_int_equal(tess_topology_select(topology, keep, count), TESS_OK);
        rings = rings_find(topology, 8);
        assert_true(rings.found.optimal);
        assert_true(rings.found.total_gbs >= 0.9 * rings.found.bound_gbs);
        rings_drop(&rings);
    }
}

static void case_sixteen(void **state)
{
    (void)state;
    struct rings rings = rings_find(machine_mi250(), 8);
    assert_true(rings.found.optimal);
    rings_near(rings.found.best_single.gbs, 20);
    rings_drop(&rings);
    rings = rings_find(machine_two_sockets(8, 8), 8);
    assert_true(rings.found.optimal);
    rings_near(rings.found.total_gbs, 10);
    rings_drop(&rings);
    rings = rings_find(machine_cluster(2, 8), 4);
    assert_true(rings.found.optimal);
    rings_near(rings.found.best_single.gbs, 12);
    rings_drop(&rings);
    rings = rings_find(machine_all_to_all(16), 8);
    assert_true(rings.found.optimal);
    rings_near(rings.found.best_single.gbs, 80);
    rings_drop(&rings);
}

/* Nothing is regular here, and the proof is still found. */
static void case_sixteen_by_lot(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 12 / TESTS_DIVISOR; seed++) {
        struct rings rings = rings_find(machine_random(seed, 16), 4);
        assert_true(rings.found.optimal);
        rings_drop(&rings);
    }
}

static void case_more_than_sixteen(void **state)
{
    (void)state;
    struct rings rings = rings_find(machine_nvswitch(72), 4);
    rings_near(rings.found.total_gbs, 370.8);
    rings_near(rings.found.bound_gbs, 370.8);
    assert_true(rings.found.optimal);
    rings_drop(&rings);
    rings = rings_find(machine_cluster(16, 8), 1);
    rings_near(rings.found.best_single.gbs, 12);
    assert_true(rings.found.optimal);
    rings_drop(&rings);
}

/* Is it a permutation in which all devices of a host follow each other? Returns how often hosts
 * change. */
static int32_t host_changes(const struct tess_topology *topology, const struct tess_ring *ring)
{
    int32_t count = topology->device_count, changes = 0;
    bool *seen = calloc((size_t)count, sizeof(*seen));
    for (int32_t i = 0; i < count; i++) {
        assert_in_range(ring->order[i], 0, count - 1);
        assert_false(seen[ring->order[i]]);
        seen[ring->order[i]] = true;
        int32_t next = ring->order[(i + 1) % count];
        changes += topology->node[topology->device[ring->order[i]]].host !=
                   topology->node[topology->device[next]].host;
    }
    free(seen);
    return changes;
}

/* Hosts of two racks by turns: the natural order crosses the uplinks four times, and the slow link
 * between the sockets of every host beside. */
static void case_hosts(void **state)
{
    (void)state;
    struct tess_topology *topology = machine_racks(2, 8, 8);
    struct tess_rings rings;
    assert_int_equal(tess_rings_find_hosts(topology, 0, &rings), TESS_OK);
    rings_near(rings.natural.gbs, 12.5 / 4);
    rings_near(rings.best_single.gbs, 12);
    rings_near(rings.single_bound_gbs, 12);
    assert_true(rings.optimal);
    assert_int_equal(host_changes(topology, &rings.best_single), 8);
    assert_int_equal(host_changes(topology, &rings.natural), 8);
    /* The same as the search over all pairs finds for this order. */
    struct tess_routes routes;
    assert_int_equal(tess_routes_open(topology, &routes), TESS_OK);
    int32_t *uses = calloc((size_t)topology->link_count, sizeof(*uses));
    rings_near(tess_ring_gbs(&routes, rings.best_single.order, 64, uses), 12);
    rings_near(tess_ring_gbs(&routes, rings.natural.order, 64, uses), 12.5 / 4);
    free(uses);
    tess_routes_free(&routes);
    tess_rings_free(&rings);
    tess_topology_free(topology);
}

static void case_a_thousand_hosts(void **state)
{
    (void)state;
    struct tess_topology *topology = machine_racks(32, 1024, 8);
    struct tess_rings rings;
    assert_int_equal(tess_rings_find_hosts(topology, 0, &rings), TESS_OK);
    assert_int_equal(rings.count, 8192);
    rings_near(rings.natural.gbs, 12.5 / 32);
    rings_near(rings.best_single.gbs, 12);
    assert_true(rings.optimal);
    assert_int_equal(host_changes(topology, &rings.best_single), 1024);
    tess_rings_free(&rings);
    tess_topology_free(topology);
    /* One host needs no network, */
    topology = machine_dgx1v();
    assert_int_equal(tess_rings_find_hosts(topology, 0, &rings), TESS_OK);
    rings_near(rings.best_single.gbs, 40);
    tess_rings_free(&rings);
    /* several do: here the second one's NIC has no link. */
    tess_topology_free(topology);
    topology = machine_cluster(2, 8);
    for (int32_t i = 0; i < topology->link_count; i++) {
        struct tess_topo_link *link = &topology->link[i];
        if (link->kind == TESS_LINK_NET &&
            (topology->node[link->from].host == 1 || topology->node[link->to].host == 1))
            *link = topology->link[--topology->link_count];
    }
    assert_int_equal(tess_rings_find_hosts(topology, 0, &rings), TESS_ERR_DATA);
    tess_topology_free(topology);
}

/* NVLink over hosts: a rack of 18 hosts is one domain, which a ring enters and leaves once, over
 * NICs of 50 GB/s. A device sends 721.8 GB/s by NVLink, and 50 more by its NIC. */
static void case_nvlink_over_hosts(void **state)
{
    (void)state;
    struct rings one = rings_find(machine_nvl(1, 18, 4), 8);
    rings_near(one.found.total_gbs, 721.8);
    rings_near(one.found.bound_gbs, 721.8);
    assert_true(one.found.optimal);
    rings_drop(&one);
    struct tess_topology *topology = machine_nvl(15, 18, 4);
    struct tess_rings rings;
    double from_s = tess_clock_thread_s();
    assert_int_equal(tess_rings_find_hosts(topology, 0, &rings), TESS_OK);
    assert_true(tess_clock_thread_s() - from_s < 10);
    assert_int_equal(rings.count, 15 * 72);
    rings_near(rings.best_single.gbs, 50);
    assert_true(rings.optimal);
    rings_near(rings.bound_gbs, 771.8);
    rings_near(rings.total_gbs, 721.8);
    tess_rings_free(&rings);
    tess_topology_free(topology);
}

/* A set of rings over hosts: each a permutation that passes every host once. */
static void check_rails(const struct tess_topology *topology, const struct tess_rings *rings,
                        int32_t hosts)
{
    double total = 0;
    for (int32_t r = 0; r < rings->ring_count; r++) {
        assert_int_equal(rings->ring[r].order[0], 0);
        assert_int_equal(host_changes(topology, &rings->ring[r]), hosts);
        total += rings->ring[r].gbs;
    }
    rings_near(rings->total_gbs, total);
    assert_true(rings->total_gbs <= rings->bound_gbs * (1 + 1e-9));
}

/*
 * Hosts of eight devices on NVSwitches with a NIC each: a ring for each NIC, which leaves a host by
 * the device beside it; fewer where a rack's uplink, which each crosses once in each direction,
 * carries less. PCIe 4 carries 24 GB/s of a NIC's 50.
 */
static void case_rails(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int32_t hosts, rings;
        double total, bound;
    } row[] = {
        {"node:2 switch:4 gpu:2 nic:2 nvlink:switch sm:80 edge:50", 2, 8, 8 * 24.0, 8 * 24.0},
        {"node:9 numa:2 switch:4 gpu:1 nic:1 nvlink:switch sm:90 edge:50", 9, 8, 8 * 48, 8 * 48},
        {"node:5 numa:2 switch:4 gpu:1 nic:1 nvlink:switch sm:90 edge:25", 5, 8, 8 * 25, 8 * 25},
        {"rack:4 node:4 numa:2 switch:4 gpu:1 nic:1 nvlink:switch sm:90 edge:50 uplink:100", 16, 3,
         100, 100},
        {"rack:32 node:32 numa:2 switch:4 gpu:1 nic:1 nvlink:switch sm:90 edge:50 uplink:400", 1024,
         8, 8 * 48, 8 * 48},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct tess_topology *topology = describe(row[i].text);
        struct tess_rings rings;
        double from_s = tess_clock_thread_s();
        assert_int_equal(tess_rings_find_hosts(topology, 0, &rings), TESS_OK);
        /* A second is the aim; a tenth of it is what an optimised build takes. */
        assert_true(tess_clock_thread_s() - from_s < 5);
        check_rails(topology, &rings, row[i].hosts);
        assert_int_equal(rings.ring_count, row[i].rings);
        rings_near(rings.total_gbs, row[i].total);
        rings_near(rings.bound_gbs, row[i].bound);
        assert_true(rings.natural.gbs > 0);
        assert_true(rings.optimal);
        tess_rings_free(&rings);
        /* The search over all pairs comes to the same. */
        if (topology->device_count <= 128) {
            struct rings pairs = rings_find(topology, TESS_RINGS_MAX);
            rings_near(pairs.found.total_gbs, row[i].total);
            rings_near(pairs.found.bound_gbs, row[i].bound);
            rings_drop(&pairs);
        } else {
            tess_topology_free(topology);
        }
    }
}

/* Two spines: by the first one alone four rings of 25 GB/s would carry 50. */
static void case_spines(void **state)
{
    (void)state;
    struct tess_topology *topology = machine_spines(4, 2, 2);
    struct tess_rings rings;
    assert_int_equal(tess_rings_find_hosts(topology, 0, &rings), TESS_OK);
    check_rails(topology, &rings, 8);
    assert_int_equal(rings.ring_count, 4);
    rings_near(rings.total_gbs, 100);
    rings_near(rings.bound_gbs, 100);
    rings_near(rings.best_single.gbs, 25);
    assert_true(rings.optimal);
    tess_rings_free(&rings);
    tess_topology_free(topology);
}

/* Pairs without a way, links in one direction, hosts that are none: what finish lets pass is found
 * rings for, and rings_find holds. */
static void case_anything(void **state)
{
    (void)state;
    int32_t sound = 0, with_ring = 0;
    for (unsigned seed = 0; seed < 600 / TESTS_DIVISOR; seed++) {
        int nodes = 3 + (int)(seed % 17);
        struct tess_topology *topology = machine_anything(seed, nodes, nodes * (2 + (int)seed % 7));
        if (tess_topology_finish(topology) != TESS_OK) {
            tess_topology_free(topology);
            continue;
        }
        struct tess_rings hosts;
        if (tess_rings_find_hosts(topology, 0, &hosts) == TESS_OK) {
            (void)host_changes(topology, &hosts.best_single);
            tess_rings_free(&hosts);
        }
        struct rings rings = rings_find(topology, 5);
        sound++;
        with_ring += rings.found.best_single.gbs > 0;
        rings_drop(&rings);
    }
    assert_true(sound > 100 / TESTS_DIVISOR);
    assert_true(with_ring > 50 / TESTS_DIVISOR);
    assert_true(with_ring < sound);
}

static void case_one_device(void **state)
{
    (void)state;
    static const int32_t one[] = {3};
    struct tess_topology *topology = machine_dgx1v();
    assert_int_equal(tess_topology_select(topology, one, 1), TESS_OK);
    struct rings rings = rings_find(topology, 4);
    assert_int_equal(rings.found.ring_count, 1);
    assert_true(rings.found.optimal);
    rings_drop(&rings);
}

static void case_same_answer_every_time(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 20; seed++) {
        struct rings a = rings_find(machine_random(seed, 7), 6),
                     b = rings_find(machine_random(seed, 7), 6);
        assert_int_equal(a.found.ring_count, b.found.ring_count);
        for (int32_t r = 0; r < a.found.ring_count; r++) {
            assert_true(a.found.ring[r].gbs == b.found.ring[r].gbs);
            assert_memory_equal(a.found.ring[r].order, b.found.ring[r].order, 7 * sizeof(int32_t));
        }
        assert_true(a.found.bound_gbs == b.found.bound_gbs);
        rings_drop(&a);
        rings_drop(&b);
    }
}

static void case_bad_requests(void **state)
{
    (void)state;
    struct tess_topology *topology = machine_square();
    struct tess_routes routes;
    struct tess_rings rings;
    assert_int_equal(tess_routes_open(topology, &routes), TESS_OK);
    static const int bad[] = {0, -1, TESS_RINGS_MAX + 1};
    for (int i = 0; i < 3; i++) {
        struct tess_ring_search search = {.rings = bad[i]};
        assert_int_equal(tess_rings_find(&routes, &search, &rings), TESS_ERR_USAGE);
    }
    tess_routes_free(&routes);
    tess_topology_free(topology);
    topology = machine_nvswitch(129);
    assert_int_equal(tess_routes_open(topology, &routes), TESS_ERR_UNSUPPORTED);
    tess_topology_free(topology);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_dgx1v),
        cmocka_unit_test(case_a_bridge_across_sockets),
        cmocka_unit_test(case_hives),
        cmocka_unit_test(case_any_order_through_nvswitch),
        cmocka_unit_test(case_two_sockets),
        cmocka_unit_test(case_all_to_all),
        cmocka_unit_test(case_square),
        cmocka_unit_test(case_subsets),
        cmocka_unit_test(case_sixteen),
        cmocka_unit_test(case_sixteen_by_lot),
        cmocka_unit_test(case_more_than_sixteen),
        cmocka_unit_test(case_hosts),
        cmocka_unit_test(case_a_thousand_hosts),
        cmocka_unit_test(case_rails),
        cmocka_unit_test(case_spines),
        cmocka_unit_test(case_nvlink_over_hosts),
        cmocka_unit_test(case_anything),
        cmocka_unit_test(case_one_device),
        cmocka_unit_test(case_same_answer_every_time),
        cmocka_unit_test(case_bad_requests),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
