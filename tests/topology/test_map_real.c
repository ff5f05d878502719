/*
 * Mappings on the machines of machines/: proved optimal for up to eight devices, never worse than
 * the natural order, and explained.
 */
#include "look.h"

#include "base/hash.h"
#include "topology/map/map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS_MAX 64

static const struct tess_map_axis shape[][3] = {
    {{.name = "tensor", .count = 2, .bytes = 4e9}, {.name = "data", .count = 4, .bytes = 1e9}},
    {{.name = "tensor", .count = 4, .bytes = 4e9}, {.name = "data", .count = 2, .bytes = 1e9}},
    {{.name = "data", .count = 4, .bytes = 4e9}, {.name = "tensor", .count = 2, .bytes = 3e9}},
    {{.name = "tensor", .count = 2, .bytes = 4e9},
     {.name = "data", .count = 2, .bytes = 1e9},
     {.name = "stage", .count = 2, .bytes = 1e8, .chain = true}},
    {{.name = "tensor", .count = 4, .bytes = 4e9}, {.name = "data", .count = 4, .bytes = 1e9}},
};

/* The mesh on the first devices of the machine, in a random order; false: it has too few. */
static bool map_on(const struct tess_topology *topology, const struct tess_map_axis *axis,
                   uint64_t lot)
{
    int32_t place[RANKS_MAX], count = 1, axes = 0;
    for (; axes < 3 && axis[axes].count > 0; axes++)
        count *= axis[axes].count;
    if (count > topology->device_count)
        return false;
    for (int32_t i = 0; i < count; i++) {
        int32_t to = (int32_t)(tess_hash_mix(lot << 8 | (uint64_t)i) % (uint64_t)(i + 1));
        place[i] = place[to];
        place[to] = i;
    }
    struct tess_map_ask ask = {axis, axes, place, true};
    struct tess_map map;
    char *text, host[32];
    assert_int_equal(tess_map_find(topology, &ask, &map), TESS_OK);
    assert_true(map.cost_s > 0 && map.cost_s <= map.natural_s);
    assert_true(map.optimal || count > 8);
    assert_int_equal(tess_map_explain(topology, &ask, &map, &text), TESS_OK);
    snprintf(host, sizeof(host), "%d ranks on ", (int)count);
    assert_ptr_equal(strstr(text, host), text);
    for (int32_t i = 0; i < count; i++)
        assert_non_null(strstr(text, topology->node[topology->device[place[i]]].name));
    free(text);
    tess_map_free(&map);
    return true;
}

static void map_machine(const char *name, struct tess_topology *topology)
{
    int mapped = 0;
    for (size_t s = 0; s < sizeof(shape) / sizeof(shape[0]); s++)
        mapped += map_on(topology, shape[s], s);
    if (mapped == 0 && topology->device_count >= 8)
        fail_msg("no mesh fits on %s", name);
    tess_topology_free(topology);
}

static void case_real(void **state)
{
    (void)state;
    look_each_machine(map_machine);
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_real)};
    return cmocka_run_group_tests(cases, NULL, NULL);
}
