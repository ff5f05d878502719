/*
 * Mappings of a mesh on machines and clusters for which the best one can be worked out by hand, and
 * against all permutations where it cannot. Costs are counted here anew, from all pairs' routes.
 */
#include "base/hash.h"
#include "machines.h"
#include "mapping.h"
#include "tessera/log.h"
#include "topology/map/map.h"
#include "topology/rings/ring.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS_MAX 128

/* ---- the cost, counted anew ----------------------------------------------------------------- */

struct judge {
    const struct tess_topology *topology;
    const struct tess_map_ask *ask;
    struct tess_routes routes;
    double *bytes; /* [link_count] */
    int32_t count;
};

static void judge_open(struct judge *judge, const struct tess_topology *topology,
                       const struct tess_map_ask *ask)
{
    *judge = (struct judge){.topology = topology, .ask = ask, .count = 1};
    for (int32_t a = 0; a < ask->axis_count; a++)
        judge->count *= ask->axis[a].count;
    assert_int_equal(tess_routes_open(topology, &judge->routes), TESS_OK);
    judge->bytes = calloc((size_t)topology->link_count, sizeof(*judge->bytes));
}

static void judge_close(struct judge *judge)
{
    tess_routes_free(&judge->routes);
    free(judge->bytes);
}

static bool judge_hop(struct judge *judge, int32_t from, int32_t to, double bytes)
{
    const struct tess_route *route =
        &judge->routes
             .route[judge->ask->place[from] * judge->routes.device_count + judge->ask->place[to]];
    for (int32_t k = 0; k < route->link_count; k++)
        judge->bytes[judge->routes.link[route->first + k]] += bytes;
    return route->kind != TESS_PATH_NONE;
}

/* Seconds of the most loaded link; INFINITY where a way is missing. */
static double judge_cost(struct judge *judge, const int32_t *place)
{
    const struct tess_map_ask *ask = judge->ask;
    bool all = true;
    memset(judge->bytes, 0, (size_t)judge->topology->link_count * sizeof(*judge->bytes));
    for (int32_t rank = 0; rank < judge->count; rank++) {
        for (int32_t a = 0, stride = 1; a < ask->axis_count; stride *= ask->axis[a++].count) {
            const struct tess_map_axis *axis = &ask->axis[a];
            int32_t at = rank / stride % axis->count;
            int32_t on = rank + ((at + 1) % axis->count - at) * stride;
            if (axis->count == 1 || axis->bytes == 0 || (axis->chain && at + 1 == axis->count))
                continue;
            all = judge_hop(judge, place[rank], place[on], axis->bytes) && all;
            if (axis->chain)
                all = judge_hop(judge, place[on], place[rank], axis->bytes) && all;
        }
    }
    double cost = 0;
    for (int32_t i = 0; i < judge->topology->link_count; i++)
        cost = fmax(cost, judge->bytes[i] / (judge->topology->link[i].gbs * 1e9));
    return all ? cost : INFINITY;
}

/* The least over all permutations of what is not taken. */
static double judge_all(struct judge *judge, int32_t *place, int32_t rank, uint32_t taken)
{
    if (rank == judge->count)
        return judge_cost(judge, place);
    double least = INFINITY;
    for (int32_t p = 0; p < judge->count; p++) {
        if (taken & 1u << p)
            continue;
        place[rank] = p;
        least = fmin(least, judge_all(judge, place, rank + 1, taken | 1u << p));
    }
    return least;
}

/* ---- what holds for all --------------------------------------------------------------------- */

static struct tess_map find(const struct tess_topology *topology, const struct tess_map_ask *ask)
{
    struct tess_map map, again;
    struct judge judge;
    int32_t natural[RANKS_MAX];
    bool seen[RANKS_MAX] = {false};
    judge_open(&judge, topology, ask);
    assert_int_equal(tess_map_find(topology, ask, &map), TESS_OK);
    assert_int_equal(map.rank_count, judge.count);
    for (int32_t i = 0; i < judge.count; i++) {
        natural[i] = i;
        assert_in_range(map.place[i], 0, judge.count - 1);
        assert_false(seen[map.place[i]]);
        seen[map.place[i]] = true;
    }
    near(map.natural_s, judge_cost(&judge, natural));
    near(map.cost_s, judge_cost(&judge, map.place));
    assert_true(map.cost_s <= map.natural_s);
    assert_true(map.bound_s <= map.cost_s);
    assert_true(map.optimal == (map.cost_s <= map.bound_s * (1 + 1e-9)));
    if (map.cost_s == map.natural_s)
        assert_memory_equal(map.place, natural, (size_t)judge.count * sizeof(*natural));
    if (ask->keep_first)
        assert_int_equal(map.place[0], 0);
    assert_int_equal(tess_map_find(topology, ask, &again), TESS_OK);
    assert_memory_equal(map.place, again.place, (size_t)judge.count * sizeof(*again.place));
    tess_map_free(&again);
    judge_close(&judge);
    return map;
}

static void is_natural(const struct tess_map *map)
{
    for (int32_t i = 0; i < map->rank_count; i++)
        assert_int_equal(map->place[i], i);
}

/* Host of a rank. */
static int32_t host_of(const struct tess_topology *topology, const struct tess_map_ask *ask,
                       const struct tess_map *map, int32_t rank)
{
    return topology->node[topology->device[ask->place[map->place[rank]]]].host;
}

/* ---- machines ------------------------------------------------------------------------------- */

/* Two hosts of four, places dealt out in turn: tensor groups would cross with all they send. */
static void case_tensor_inside_hosts(void **state)
{
    (void)state;
    struct tess_topology *topology = describe("node:2 gpu:4 nvlink:switch nic:1 sm:90 edge:50");
    const struct tess_map_axis axis[] = {{.name = "tensor", .count = 4, .bytes = 4e9},
                                         {.name = "data", .count = 2, .bytes = 1e9}};
    const int32_t place[] = {0, 4, 1, 5, 2, 6, 3, 7};
    struct tess_map_ask ask = {axis, 2, place, false};
    struct tess_map map = find(topology, &ask);
    /* The NIC's PCIe link, 48 GB/s, carries four hops of tensor rings, or four of data rings. */
    near(map.natural_s, 4 * 4e9 / 48e9);
    near(map.cost_s, 4 * 1e9 / 48e9);
    assert_true(map.optimal);
    for (int32_t rank = 0; rank < 8; rank++)
        assert_int_equal(host_of(topology, &ask, &map, rank),
                         host_of(topology, &ask, &map, rank / 4 * 4));
    tess_map_free(&map);
    /* In turn by hosts, the natural order is as good as any. */
    const int32_t in_order[] = {0, 1, 2, 3, 4, 5, 6, 7};
    ask.place = in_order;
    map = find(topology, &ask);
    is_natural(&map);
    assert_true(map.optimal);
    near(map.bound_s, 4 * 1e9 / 48e9);
    tess_map_free(&map);
    tess_topology_free(topology);
}

static void case_stages_outermost(void **state)
{
    (void)state;
    struct tess_topology *topology = describe("node:2 gpu:4 nvlink:switch nic:1 sm:90 edge:25");
    /* Stages are the fastest by number, so that the natural order cuts through the data rings. */
    const struct tess_map_axis axis[] = {{.name = "stage", .count = 2, .bytes = 1e8, .chain = true},
                                         {.name = "tensor", .count = 2, .bytes = 8e9},
                                         {.name = "data", .count = 2, .bytes = 4e9}};
    const int32_t place[] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct tess_map_ask ask = {axis, 3, place, true};
    struct tess_map map = find(topology, &ask);
    near(map.natural_s, 4 * 4e9 / 25e9);
    /* Inside a host each device sends both its tensor and its data hop into the NVSwitch. */
    near(map.cost_s, fmax(4 * 1e8 / 25e9, (8e9 + 4e9) / (18 * 20.6e9)));
    for (int32_t rank = 0; rank < 8; rank++)
        assert_int_equal(host_of(topology, &ask, &map, rank), rank % 2);
    assert_true(map.optimal);
    tess_map_free(&map);
    tess_topology_free(topology);
}

/* One axis is a ring: what ring.h finds, 40 GB/s against 6. */
static void case_ring_of_a_dgx1(void **state)
{
    (void)state;
    struct tess_topology *topology = machine_dgx1v();
    const struct tess_map_axis axis = {.name = "data", .count = 8, .bytes = 1e9};
    const int32_t place[] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct tess_map_ask ask = {&axis, 1, place, true};
    struct tess_map map = find(topology, &ask);
    near(map.cost_s, 1 / 40.);
    near(map.natural_s, 1 / 6.);
    assert_true(map.optimal);
    tess_map_free(&map);
    tess_topology_free(topology);
}

/* Two racks of two hosts of two; dealt out to racks in turn, all eight hops cross. */
static void case_racks(void **state)
{
    (void)state;
    struct tess_topology *topology = describe("rack:2 node:2 rank:2 edge:0.125 uplink:0.0125");
    const struct tess_map_axis axis = {.name = "data", .count = 8, .bytes = 8};
    const int32_t in_turn[] = {0, 4, 1, 5, 2, 6, 3, 7};
    const int32_t in_order[] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct tess_map_ask ask = {&axis, 1, in_turn, true};
    struct tess_map map = find(topology, &ask);
    near(map.natural_s, 4 * 8 / 0.0125e9);
    near(map.cost_s, 8 / 0.0125e9);
    assert_true(map.optimal);
    tess_map_free(&map);
    ask.place = in_order;
    map = find(topology, &ask);
    is_natural(&map);
    assert_true(map.optimal);
    tess_map_free(&map);
    /* Uplinks wide enough: hosts are what is left to keep together. */
    tess_topology_free(topology);
    topology = describe("rack:2 node:2 rank:2 edge:0.125 uplink:2");
    ask.place = in_turn;
    map = find(topology, &ask);
    near(map.natural_s, 2 * 8 / 0.125e9);
    near(map.cost_s, 8 / 0.125e9);
    assert_true(map.optimal);
    tess_map_free(&map);
    tess_topology_free(topology);
}

/* Each GPU leaves by the NIC at its own switch, so that all rails carry the same. */
static void case_nics_near_their_devices(void **state)
{
    (void)state;
    struct tess_topology *topology =
        describe("node:2 numa:2 switch:2 gpu:2 nic:1 nvlink:switch sm:90 edge:25");
    const struct tess_map_axis axis[] = {{.name = "tensor", .count = 8, .bytes = 4e9},
                                         {.name = "data", .count = 2, .bytes = 1e9}};
    int32_t place[16];
    for (int32_t i = 0; i < 16; i++)
        place[i] = i % 2 * 8 + i / 2;
    struct tess_map_ask ask = {axis, 2, place, false};
    struct tess_map map = find(topology, &ask);
    /* Two GPUs a NIC. */
    near(map.cost_s, 2 * 1e9 / 25e9);
    assert_true(map.optimal);
    struct judge judge;
    judge_open(&judge, topology, &ask);
    judge_cost(&judge, map.place);
    int nics = 0;
    for (int32_t i = 0; i < topology->link_count; i++) {
        if (topology->link[i].kind == TESS_LINK_NET) {
            near(judge.bytes[i], 2e9);
            nics++;
        }
    }
    assert_int_equal(nics, 2 * 2 * 4);
    for (int32_t from = 0; from < 8; from++) {
        const struct tess_route *route = &judge.routes.route[from * 16 + 8];
        int32_t second = judge.routes.link[route->first + 1];
        const struct tess_node *nic = &topology->node[topology->link[second].to];
        assert_int_equal(nic->kind, TESS_NODE_NIC);
        assert_int_equal(nic->index, from / 2);
    }
    judge_close(&judge);
    tess_map_free(&map);
    tess_topology_free(topology);
}

/* Four NICs beside each other for eight GPUs: none carries more than two of them. */
static void case_nics_side_by_side(void **state)
{
    (void)state;
    struct tess_topology *topology = describe("node:2 gpu:8 nic:4 nvlink:switch sm:90 edge:25");
    const struct tess_map_axis axis[] = {{.name = "tensor", .count = 8, .bytes = 4e9},
                                         {.name = "data", .count = 2, .bytes = 1e9}};
    static int32_t place[16];
    shuffle(place, 16, 11);
    struct tess_map_ask ask = {axis, 2, place, false};
    struct tess_map map = find(topology, &ask);
    near(map.cost_s, 2 * 1e9 / 25e9);
    assert_true(map.optimal);
    tess_map_free(&map);
    tess_topology_free(topology);
}

/* Hosts of six and tensor groups of four: as many inside as there can be, the others over both. */
static void case_groups_that_do_not_fit(void **state)
{
    (void)state;
    struct tess_topology *topology = describe("node:2 gpu:6 nvlink:switch nic:1 sm:90 edge:10");
    const struct tess_map_axis axis[] = {{.name = "tensor", .count = 4, .bytes = 8e9},
                                         {.name = "data", .count = 3, .bytes = 1e9}};
    const int32_t place[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    struct tess_map_ask ask = {axis, 2, place, false};
    struct tess_map map = find(topology, &ask);
    /*
     * A group of four in each host and two of the third in each: one tensor hop crosses from either
     * host. Columns of data have one rank in host 0 and two in host 1 or the other way around: one
     * hop each way for all four. So 8 + 4, and nothing that splits rings less is there: f(6) is the
     * bound's least.
     */
    near(map.cost_s, (8e9 + 4 * 1e9) / 10e9);
    assert_true(map.optimal);
    tess_map_free(&map);
    tess_topology_free(topology);
}

/* Whole rows of four stages on a host send to both neighbours, tiles of two by two less. */
static void case_tiles(void **state)
{
    (void)state;
    struct tess_topology *topology = describe("node:4 rank:4 edge:10");
    const struct tess_map_axis axis[] = {{.name = "stage", .count = 4, .bytes = 1e9, .chain = true},
                                         {.name = "data", .count = 4, .bytes = 2e9}};
    static int32_t place[16];
    shuffle(place, 16, 5);
    struct tess_map_ask ask = {axis, 2, place, true};
    struct tess_map map = find(topology, &ask);
    /*
     * A host that has a whole stage in the middle sends 2 x 4 GB; one with two ranks of two stages
     * sends 2 x 2 GB of data and, to the two stages next to it on one side alone, 2 x 1 GB.
     */
    near(map.cost_s, (2 * 2e9 + 2 * 1e9) / 10e9);
    tess_map_free(&map);
    tess_topology_free(topology);
}

/* A NIC at each NUMA node: the ring goes through all hosts twice rather than over their sockets. */
static void case_around_the_sockets(void **state)
{
    (void)state;
    struct tess_topology *topology =
        describe("node:3 numa:2 gpu:4 nvlink:pairs nic:1 sm:80 edge:12.5");
    const struct tess_map_axis axis = {.name = "data", .count = 24, .bytes = 1e9};
    static int32_t place[24];
    shuffle(place, 24, 2);
    struct tess_map_ask ask = {&axis, 1, place, true};
    struct tess_map map = find(topology, &ask);
    near(map.cost_s, 1e9 / 12.5e9); /* sockets are joined by 10 GB/s */
    assert_true(map.optimal);
    tess_map_free(&map);
    tess_topology_free(topology);
}

/* Some of the devices, in an order of their own. */
static void case_a_part(void **state)
{
    (void)state;
    struct tess_topology *topology = machine_dgx1v();
    const struct tess_map_axis axis = {.name = "data", .count = 4, .bytes = 1e9};
    /* 0-4 and 3-7 are double, 0-3 and 4-7 too: a ring 0-3-7-4 of double and single links. */
    const int32_t place[] = {0, 7, 4, 3};
    struct tess_map_ask ask = {&axis, 1, place, true};
    struct tess_map map = find(topology, &ask);
    near(map.cost_s, 1 / 20.); /* 3-7 is single */
    assert_true(map.optimal);
    tess_map_free(&map);
    tess_topology_free(topology);
}

/* ---- large ---------------------------------------------------------------------------------- */

/* 8 racks of 16 hosts of 8, shuffled: tensor in hosts, rings of data through racks once. */
static void case_a_thousand(void **state)
{
    (void)state;
    struct tess_topology *topology =
        describe("rack:8 node:16 gpu:8 nvlink:switch nic:1 sm:90 edge:25 uplink:100");
    const struct tess_map_axis axis[] = {{.name = "tensor", .count = 8, .bytes = 64e9},
                                         {.name = "data", .count = 128, .bytes = 1e9}};
    static int32_t place[1024];
    shuffle(place, 1024, 7);
    struct tess_map_ask ask = {axis, 2, place, true};
    struct tess_map map;
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_OK);
    assert_int_equal(map.rank_count, 1024);
    near(map.cost_s, 8 * 1e9 / 25e9);
    assert_true(map.optimal);
    assert_int_equal(map.place[0], 0);
    for (int32_t rank = 0; rank < 1024; rank++)
        assert_int_equal(host_of(topology, &ask, &map, rank),
                         host_of(topology, &ask, &map, rank / 8 * 8));
    tess_map_free(&map);
    tess_topology_free(topology);
}

/* ---- against all permutations --------------------------------------------------------------- */

static void against_all(const struct tess_topology *topology, uint64_t *state, int *optimal)
{
    static const int32_t shape[][3] = {{5, 1, 1}, {6, 1, 1}, {7, 1, 1}, {2, 3, 1},
                                       {3, 2, 1}, {2, 2, 1}, {4, 1, 1}, {1, 6, 1}};
    struct tess_map_axis axis[3];
    int32_t place[16], found[16], count = 1;
    int s = draw(state, (int32_t)(sizeof(shape) / sizeof(shape[0])));
    for (int a = 0; a < 3; a++) {
        axis[a] = (struct tess_map_axis){.name = "axis",
                                         .count = shape[s][a],
                                         .bytes = 1e9 * draw(state, 8),
                                         .chain = draw(state, 4) == 0};
        count *= shape[s][a];
    }
    if (topology->device_count < count)
        return;
    shuffle(place, topology->device_count, *state);
    struct tess_map_ask ask = {axis, 3, place, draw(state, 3) == 0};
    struct judge judge;
    judge_open(&judge, topology, &ask);
    struct tess_map map = find(topology, &ask);
    found[0] = 0;
    double least = judge_all(&judge, found, ask.keep_first, ask.keep_first);
    assert_true(map.cost_s >= least * (1 - 1e-9));
    assert_true(map.bound_s <= least * (1 + 1e-9));
    /* Within what is not worth a change, and proved where it is the best. */
    assert_true(map.cost_s <= least * 1.0011);
    assert_true(map.optimal == (map.cost_s <= least * (1 + 1e-9)));
    *optimal += map.optimal;
    tess_map_free(&map);
    judge_close(&judge);
}

static void case_all_permutations(void **state)
{
    (void)state;
    uint64_t lot = 1;
    int optimal = 0;
    for (unsigned seed = 0; seed < 60; seed++) {
        struct tess_topology *topology = machine_random(seed, 7);
        against_all(topology, &lot, &optimal);
        tess_topology_free(topology);
    }
    static const char *const cluster[] = {
        "rack:2 node:2 rank:2 edge:2 uplink:1", "rack:3 node:2 rank:1 edge:2 uplink:1",
        "node:3 gpu:2 nvlink:pairs nic:1 edge:10", "node:2 numa:2 gpu:2 edge:10 cpu:amd",
        "rack:2 node:1 numa:2 gpu:2 nvlink:mesh:1 edge:10 uplink:5"};
    for (int round = 0; round < 8; round++) {
        for (size_t c = 0; c < sizeof(cluster) / sizeof(cluster[0]); c++) {
            struct tess_topology *topology = describe(cluster[c]);
            against_all(topology, &lot, &optimal);
            tess_topology_free(topology);
        }
    }
    assert_true(optimal > 80);
}

/* ---- what is refused ------------------------------------------------------------------------ */

static void case_hostile_asks(void **state)
{
    (void)state;
    struct tess_topology *topology = machine_nvswitch(8);
    struct tess_map_axis axis[5] = {{.name = "tensor", .count = 4, .bytes = 1},
                                    {.name = "data", .count = 2, .bytes = 1}};
    int32_t place[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct tess_map_ask ask = {axis, 2, place, false};
    struct tess_map map;
    axis[1].count = 3; /* 12 ranks on 8 devices */
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_ERR_USAGE);
    axis[1].count = 0;
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_ERR_USAGE);
    axis[0].count = axis[1].count = 65536; /* the product is 0 in 32 bits */
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_ERR_UNSUPPORTED);
    axis[0].count = 4;
    axis[1].count = 2;
    axis[1].bytes = -1;
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_ERR_USAGE);
    axis[1].bytes = NAN;
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_ERR_USAGE);
    axis[1].bytes = INFINITY;
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_ERR_USAGE);
    axis[1].bytes = 1;
    place[7] = 0;
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "device 0"));
    place[7] = 8;
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_ERR_USAGE);
    place[7] = -1;
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_ERR_USAGE);
    place[7] = 7;
    ask.axis_count = 0;
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_ERR_USAGE);
    ask.axis_count = 5;
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_ERR_USAGE);
    assert_null(map.place);
    tess_map_free(&map);
    tess_topology_free(topology);
}

/* Two hosts without a network: a mesh that need not cross is mapped, another one refused. */
static void case_no_way(void **state)
{
    (void)state;
    struct tess_topology *topology = tess_topology_new();
    for (int32_t i = 0; i < 6; i++) {
        struct tess_node node = {.kind = i % 3 ? TESS_NODE_DEVICE : TESS_NODE_PCI, .host = i / 3};
        int32_t at;
        snprintf(node.name, sizeof(node.name), "node%d", (int)i);
        assert_int_equal(tess_topology_add_node(topology, &node, &at), TESS_OK);
        if (i % 3)
            assert_int_equal(tess_topology_join(topology, TESS_LINK_PCI, at, i / 3 * 3, 10, 1),
                             TESS_OK);
    }
    assert_int_equal(tess_topology_finish(topology), TESS_OK);
    struct tess_map_axis axis[] = {{.name = "tensor", .count = 2, .bytes = 1e9},
                                   {.name = "data", .count = 2, .bytes = 0}};
    const int32_t place[] = {0, 2, 1, 3};
    struct tess_map_ask ask = {axis, 2, place, false};
    struct tess_map map;
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_OK);
    near(map.cost_s, 0.1);
    assert_true(map.optimal);
    tess_map_free(&map);
    axis[1].bytes = 1;
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_ERR_DATA);
    assert_non_null(strstr(tess_log_last_error(), "do not"));
    tess_topology_free(topology);
}

static void case_next_to_nothing(void **state)
{
    (void)state;
    struct tess_topology *topology = machine_nvswitch(4);
    struct tess_map_axis axis[] = {{.name = "tensor", .count = 1, .bytes = 1},
                                   {.name = "data", .count = 1, .bytes = 1}};
    const int32_t place[] = {2, 0, 1, 3};
    struct tess_map_ask ask = {axis, 2, place, true};
    struct tess_map map = find(topology, &ask);
    assert_true(map.cost_s == 0 && map.optimal);
    tess_map_free(&map);
    /* Nothing is sent: nothing is moved. */
    axis[1].count = 4;
    axis[1].bytes = 0;
    map = find(topology, &ask);
    is_natural(&map);
    tess_map_free(&map);
    tess_topology_free(topology);
}

/* Graphs that no machine is: what comes of them is a mapping or an error, and both are sound. */
static void case_anything(void **state)
{
    (void)state;
    uint64_t lot = 3;
    int mapped = 0;
    for (unsigned seed = 0; seed < 100 / TESTS_DIVISOR; seed++) {
        struct tess_topology *topology =
            machine_anything(seed, 4 + draw(&lot, 30), draw(&lot, 120));
        if (tess_topology_finish(topology) == TESS_OK) {
            int32_t devices = topology->device_count, place[64];
            struct tess_map_axis axis[3] = {{.name = "a", .count = 1 + draw(&lot, 4), .bytes = 1e9},
                                            {.name = "b", .bytes = 2e9, .chain = seed % 2}};
            axis[1].count = devices / axis[0].count > 0 ? devices / axis[0].count : 1;
            shuffle(place, devices, seed);
            struct tess_map_ask ask = {axis, 2, place, seed % 3 == 0};
            struct tess_map map;
            char *text;
            if (tess_map_find(topology, &ask, &map) == TESS_OK) {
                assert_true(map.cost_s <= map.natural_s && map.bound_s <= map.cost_s);
                assert_int_equal(tess_map_explain(topology, &ask, &map, &text), TESS_OK);
                free(text);
                tess_map_free(&map);
                mapped++;
            }
        }
        tess_topology_free(topology);
    }
    assert_true(mapped > 5 / TESTS_DIVISOR);
}

/* ---- routes one device at a time ------------------------------------------------------------ */

static void case_rows_are_routes(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 8; seed++) {
        struct tess_topology *topology = seed ? machine_random(seed, 8) : machine_racks(2, 4, 3);
        struct tess_routes all, row;
        struct tess_route_search *search;
        assert_int_equal(tess_routes_open(topology, &all), TESS_OK);
        assert_int_equal(tess_route_search_open(topology, &search), TESS_OK);
        for (int32_t i = topology->device_count - 1; i >= 0; i--) {
            assert_int_equal(tess_route_from(search, i, &row), TESS_OK);
            for (int32_t k = 0; k < topology->device_count; k++) {
                const struct tess_route *one = &row.route[k];
                const struct tess_route *other = &all.route[i * topology->device_count + k];
                assert_int_equal(one->kind, other->kind);
                assert_int_equal(one->link_count, other->link_count);
                near(one->gbs, other->gbs);
                for (int32_t l = 0; l < one->link_count; l++)
                    assert_int_equal(row.link[one->first + l], all.link[other->first + l]);
            }
            tess_routes_free(&row);
        }
        tess_route_search_close(search);
        tess_routes_free(&all);
        tess_topology_free(topology);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_tensor_inside_hosts),
        cmocka_unit_test(case_stages_outermost),
        cmocka_unit_test(case_ring_of_a_dgx1),
        cmocka_unit_test(case_racks),
        cmocka_unit_test(case_nics_near_their_devices),
        cmocka_unit_test(case_nics_side_by_side),
        cmocka_unit_test(case_groups_that_do_not_fit),
        cmocka_unit_test(case_around_the_sockets),
        cmocka_unit_test(case_a_part),
        cmocka_unit_test(case_a_thousand),
        cmocka_unit_test(case_all_permutations),
        cmocka_unit_test(case_tiles),
        cmocka_unit_test(case_hostile_asks),
        cmocka_unit_test(case_no_way),
        cmocka_unit_test(case_next_to_nothing),
        cmocka_unit_test(case_anything),
        cmocka_unit_test(case_rows_are_routes),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
