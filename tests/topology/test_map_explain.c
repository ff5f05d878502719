/* The explanation of a mapping: figures, ways by name, and few lines for many ranks. */
#include "mapping.h"
#include "topology/map/map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void contains(const char *text, const char *what)
{
    if (!text || !strstr(text, what))
        fail_msg("'%s' is not in\n%s", what, text ? text : "nothing");
}

static char *explain(const struct tess_topology *topology, const struct tess_map_ask *ask)
{
    struct tess_map map;
    char *text;
    assert_int_equal(tess_map_find(topology, ask, &map), TESS_OK);
    assert_int_equal(tess_map_explain(topology, ask, &map, &text), TESS_OK);
    tess_map_free(&map);
    return text;
}

static int lines(const char *text)
{
    int count = 0;
    for (; *text; text++)
        count += *text == '\n';
    return count;
}

static void case_explained(void **state)
{
    (void)state;
    struct tess_topology *topology = describe("node:2 gpu:4 nvlink:switch nic:1 sm:90 edge:50");
    const struct tess_map_axis axis[] = {{.name = "tensor", .count = 4, .bytes = 4e9},
                                         {.name = "data", .count = 2, .bytes = 1e9}};
    const int32_t place[] = {0, 4, 1, 5, 2, 6, 3, 7};
    struct tess_map_ask ask = {axis, 2, place, true};
    char *text = explain(topology, &ask);
    contains(text, "8 ranks on 2 hosts: tensor 4, data 2\n");
    contains(text, "83.3 ms a step, 333 ms in the natural order (4.00 times as long)");
    contains(text, "no order is better");
    contains(text, "NVL 8\n");
    contains(text, "NET 8\n");
    contains(text, ": 4 GB at 48 GB/s, 83.3 ms; 3 more like it\n");
    contains(text,
             "     0     0  n0.gpu0  -       0  to 1 over NVSwitch (tensor 0-3); to 4 through "
             "network (data 0,4)\n");
    /* Two for the whole, one for what is best, three for axes, five for links, two for a head. */
    assert_int_equal(lines(text), 3 + 1 + 3 + 1 + 4 + 1 + 1 + 8);
    free(text);
    const int32_t in_order[] = {0, 1, 2, 3, 4, 5, 6, 7};
    ask.place = in_order;
    text = explain(topology, &ask);
    contains(text, "; the natural order is kept\n");
    free(text);
    tess_topology_free(topology);
}

/* Buses, switches, sockets and the ends of a chain. */
static void case_ways_explained(void **state)
{
    (void)state;
    struct tess_topology *topology = describe("numa:2 switch:2 gpu:2 sm:80");
    strcpy(topology->node[topology->device[3]].bus, "0000:17:00.0");
    const struct tess_map_axis axis[] = {
        {.name = "tensor", .count = 2, .bytes = 4e9},
        {.name = "data", .count = 2, .bytes = 1e9},
        {.name = "stage", .count = 2, .bytes = 1e6, .chain = true}};
    const int32_t place[] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct tess_map_ask ask = {axis, 3, place, true};
    char *text = explain(topology, &ask);
    contains(text,
             "to 1 at PCIe switch switch0 (tensor 0-1); to 2 through numa0 (data 0,2); to 4 from "
             "NUMA 0 to 1 (stage 0,4)\n");
    contains(text, "0000:17:00.0     0  to 2 at PCIe switch switch1 (tensor 2-3)");
    contains(text, "(stage 3,7)");
    contains(text, "(a chain, both ways)");
    free(text);
    tess_topology_free(topology);
}

static void case_many_explained(void **state)
{
    (void)state;
    struct tess_topology *topology =
        describe("rack:4 node:4 gpu:8 nvlink:switch nic:1 sm:90 edge:25 uplink:100");
    const struct tess_map_axis axis[] = {{.name = "tensor", .count = 8, .bytes = 64e9},
                                         {.name = "data", .count = 16, .bytes = 1e9}};
    static int32_t place[128];
    for (int32_t i = 0; i < 128; i++)
        place[i] = i * 37 % 128; /* through all hosts, each device once */
    struct tess_map_ask ask = {axis, 2, place, true};
    struct tess_map map;
    char *text;
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_OK);
    assert_int_equal(tess_map_explain(topology, &ask, &map, &text), TESS_OK);
    contains(text, "128 ranks on 16 hosts");
    contains(text, "    120-127");
    contains(text, "tensor over NVSwitch; data across spine\n");
    contains(text, "tensor over NVSwitch; data through rack");
    assert_true(lines(text) < 40);
    free(text);
    map.place[5] = 128;
    assert_int_equal(tess_map_explain(topology, &ask, &map, &text), TESS_ERR_USAGE);
    assert_null(text);
    map.rank_count = 64;
    assert_int_equal(tess_map_explain(topology, &ask, &map, &text), TESS_ERR_USAGE);
    tess_map_free(&map);
    tess_topology_free(topology);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_explained),
        cmocka_unit_test(case_ways_explained),
        cmocka_unit_test(case_many_explained),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
