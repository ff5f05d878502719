/*
 * Mappings of many ranks, and what they are found by: ways between hosts that are alike, against
 * the table of all pairs.
 */
#include "base/hash.h"
#include "machines.h"
#include "mapping.h"
#include "topology/map/map_room.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Host of a rank. */
static int32_t host_of(const struct tess_topology *topology, const struct tess_map_ask *ask,
                       const struct tess_map *map, int32_t rank)
{
    return topology->node[topology->device[ask->place[map->place[rank]]]].host;
}

/* Thousands of them: rings of data pass each rack once, whatever order the places are in. */
static void case_eight_thousand(void **state)
{
    (void)state;
    enum { RANKS = 8192 / TESTS_DIVISOR };
    char text[128];
    snprintf(text, sizeof(text),
             "rack:%d node:16 gpu:8 nvlink:switch nic:1 sm:90 edge:25 uplink:100", RANKS / 128);
    struct tess_topology *topology = describe(text);
    const struct tess_map_axis axis[] = {{.name = "tensor", .count = 8, .bytes = 64e9},
                                         {.name = "data", .count = RANKS / 8, .bytes = 1e9}};
    static int32_t place[RANKS];
    static bool seen[RANKS];
    shuffle(place, RANKS, 7);
    struct tess_map_ask ask = {axis, 2, place, true};
    struct tess_map map;
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_OK);
    near(map.cost_s, 8 * 1e9 / 25e9);
    assert_true(map.optimal);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        assert_in_range(map.place[rank], 0, RANKS - 1);
        assert_false(seen[map.place[rank]]);
        seen[map.place[rank]] = true;
        assert_int_equal(host_of(topology, &ask, &map, rank),
                         host_of(topology, &ask, &map, rank / 8 * 8));
    }
    tess_map_free(&map);
    tess_topology_free(topology);
}

/* ---- ways by what hosts have in common ------------------------------------------------------ */

/* The ways of map_ways.c between all places, and the links that they use, are those of the table.
 */
static void same_ways(const struct tess_topology *topology, const struct tess_map_ask *ask,
                      const char *what)
{
    struct tess__map_model model;
    struct tess__map_ways *ways;
    int32_t links = topology->link_count;
    int32_t *number = calloc(2 * ((size_t)links + 1), sizeof(*number)), *used = number + links + 1;
    assert_non_null(number);
    assert_int_equal(tess__map_model_open(&model, topology, ask), TESS_OK);
    assert_non_null(model.row); /* it has the table */
    assert_int_equal(tess__map_ways_open(&model, &ways), TESS_OK);
    assert_non_null(ways);
    memset(number, -1, (size_t)links * sizeof(*number));
    for (int32_t lane = 0; lane + 1 < model.lane_count; lane++)
        number[model.link[lane]] = lane;
    tess__map_ways_mark(ways, used);
    for (int32_t l = 0; l < links; l++)
        if ((used[l] != 0) != (number[l] >= 0))
            fail_msg("%s: link %d is used by one alone", what, (int)l);
    tess__map_ways_number(ways, number);
    for (int32_t from = 0; from < model.count; from++)
        for (int32_t to = 0; to < model.count; to++) {
            int32_t count, expected;
            const int32_t *lane = tess__map_ways_lanes(ways, from, to, &count);
            const int32_t *known = tess__map_lanes(&model, from, to, &expected);
            assert_int_equal(tess__map_ways_kind(ways, from, to), tess__map_kind(&model, from, to));
            if (count != expected || memcmp(lane, known, (size_t)count * sizeof(*lane)) != 0)
                fail_msg("%s: another way from place %d to %d", what, (int)from, (int)to);
        }
    tess__map_ways_close(ways);
    tess__map_model_close(&model);
    free(number);
}

static void case_ways(void **state)
{
    (void)state;
    static const char *const cluster[] = {
        "node:4 gpu:8 nvlink:switch nic:1 sm:90 edge:25",
        "rack:4 node:3 gpu:8 nvlink:switch nic:8 rail:8 sm:90",
        "rack:3 node:4 gpu:8 nvlink:switch nic:2 sm:90 edge:25 uplink:100",
        "node:4 numa:2 gpu:4 nic:4",
        "node:4 switch:4 gpu:2 nic:2",
        "rack:2 node:4 rank:2 edge:2 uplink:1",
        "node:3 gpu:2 nvlink:pairs nic:1 edge:10",
        "rack:2 node:2 numa:2 gpu:2 nvlink:mesh:1 edge:10 uplink:5",
        "node:1 numa:2 gpu:4 nvlink:cube sm:70",
    };
    static int32_t place[256];
    for (size_t c = 0; c < sizeof(cluster) / sizeof(cluster[0]); c++) {
        struct tess_topology *topology = describe(cluster[c]);
        /* All of them, and most of them in another order. */
        for (int32_t left = 0; left < 2; left++) {
            const struct tess_map_axis axis = {
                .name = "data", .count = topology->device_count - left, .bytes = 1};
            shuffle(place, topology->device_count, c);
            struct tess_map_ask ask = {&axis, 1, place, false};
            same_ways(topology, &ask, cluster[c]);
        }
        tess_topology_free(topology);
    }
}

/* Networks and machines that are less regular. */
static void case_ways_of_machines(void **state)
{
    (void)state;
    struct tess_topology *machine[] = {machine_cluster(4, 4), machine_racks(3, 3, 2),
                                       machine_nvl(2, 3, 4),  machine_spines(4, 2, 3),
                                       machine_dgx1v(),       machine_mi250()};
    static int32_t place[256];
    for (size_t m = 0; m < sizeof(machine) / sizeof(machine[0]); m++) {
        char what[32];
        const struct tess_map_axis axis = {
            .name = "data", .count = machine[m]->device_count, .bytes = 1};
        snprintf(what, sizeof(what), "machine %zu", m);
        shuffle(place, machine[m]->device_count, m);
        struct tess_map_ask ask = {&axis, 1, place, false};
        same_ways(machine[m], &ask, what);
        tess_topology_free(machine[m]);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_eight_thousand),
        cmocka_unit_test(case_ways),
        cmocka_unit_test(case_ways_of_machines),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
