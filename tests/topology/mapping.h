/* What tests of mappings share: topologies of a line, numbers that are near, places in any order.
 */
#ifndef TESTS_TOPOLOGY_MAPPING_H
#define TESTS_TOPOLOGY_MAPPING_H

#include "base/hash.h"
#include "topology/machine/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static inline void near(double is, double expected)
{
    if (!(is >= expected * (1 - 1e-9) && is <= expected * (1 + 1e-9)))
        fail_msg("%.12g is not %.12g", is, expected);
}

static inline struct tess_topology *describe(const char *text)
{
    struct tess_topology *topology = NULL;
    assert_int_equal(tess_topology_synthetic(text, NULL, &topology), TESS_OK);
    return topology;
}

/* 0 .. below - 1, from a state that goes on. */
static inline int32_t draw(uint64_t *state, int32_t below)
{
    *state = tess_hash_mix(*state + 0x9e3779b97f4a7c15u);
    return (int32_t)(*state % (uint64_t)below);
}

/* 0 .. count - 1 in the seed's order. */
static inline void shuffle(int32_t *place, int32_t count, uint64_t seed)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t to = draw(&seed, i + 1);
        place[i] = place[to];
        place[to] = i;
    }
}

#endif
