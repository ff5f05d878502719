/*
 * The search against all (n-1)! orders: on random machines with shared links, on parts of real
 * ones, in bandwidth, crossings and order; and the bound of sets of rings against each order.
 */
#include "machines.h"
#include "rings.h"

#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct brute {
    const struct tess_routes *routes;
    int32_t *uses;
    int32_t count;
    int32_t order[8], best[8];
    double gbs;
    int32_t crossing[4]; /* of the best: NET, SYS, PHB, PXB */
};

static void count_crossings(const struct brute *brute, int32_t crossing[4])
{
    static const enum tess_path_kind kind[4] = {TESS_PATH_NET, TESS_PATH_SYS, TESS_PATH_PHB,
                                                TESS_PATH_PXB};
    memset(crossing, 0, 4 * sizeof(*crossing));
    for (int32_t i = 0; i < brute->count; i++) {
        int32_t to = brute->order[(i + 1) % brute->count];
        const struct tess_route *route = &brute->routes->route[brute->order[i] * brute->count + to];
        for (int k = 0; k < 4; k++)
            crossing[k] += route->kind == kind[k];
    }
}

/* Orders are met by their numbers, so that of equal ones the first stays. */
static void judge(struct brute *brute)
{
    int32_t crossing[4];
    double gbs = tess_ring_gbs(brute->routes, brute->order, brute->count, brute->uses);
    count_crossings(brute, crossing);
    bool better = gbs > brute->gbs * (1 + 1e-9);
    if (!better && gbs >= brute->gbs * (1 - 1e-9)) {
        for (int k = 0; k < 4; k++) {
            if (crossing[k] != brute->crossing[k]) {
                better = crossing[k] < brute->crossing[k];
                break;
            }
        }
    }
    if (!better)
        return;
    brute->gbs = gbs;
    memcpy(brute->crossing, crossing, sizeof(crossing));
    memcpy(brute->best, brute->order, sizeof(brute->best));
}

static void walk(struct brute *brute, int32_t depth, uint32_t left)
{
    if (!left)
        judge(brute);
    for (int32_t i = 0; i < brute->count; i++) {
        if (left >> i & 1) {
            brute->order[depth] = i;
            walk(brute, depth + 1, left & ~(1u << i));
        }
    }
}

static void compare(struct tess_topology *topology)
{
    struct tess_routes routes;
    struct tess_rings rings;
    struct tess_ring_search search = {.rings = TESS_RINGS_MAX};
    assert_int_equal(tess_routes_open(topology, &routes), TESS_OK);
    struct brute brute = {.routes = &routes, .count = topology->device_count, .gbs = -1};
    brute.uses = calloc((size_t)topology->link_count, sizeof(*brute.uses));
    walk(&brute, 1, ((1u << brute.count) - 1) & ~1u);
    assert_int_equal(tess_rings_find(&routes, &search, &rings), TESS_OK);
    assert_true(rings.optimal);
    if (rings.best_single.gbs < brute.gbs * (1 - 1e-9) ||
        rings.best_single.gbs > brute.gbs * (1 + 1e-9))
        fail_msg("%.9g, of all orders %.9g", rings.best_single.gbs, brute.gbs);
    assert_memory_equal(rings.best_single.order, brute.best, (size_t)brute.count * sizeof(int32_t));
    assert_true(rings.bound_gbs >= brute.gbs * (1 - 1e-9));
    assert_true(rings.total_gbs <= rings.bound_gbs * (1 + 1e-9));
    /* 0.02 for fewer rings; the rest is the limit of their number. */
    assert_true(rings.total_gbs >= 0.95 * rings.bound_gbs);
    tess_rings_free(&rings);
    tess_routes_free(&routes);
    free(brute.uses);
    tess_topology_free(topology);
}

static void case_random_machines(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 400 / TESTS_DIVISOR; seed++)
        compare(machine_random(seed, 3 + (int)(seed % 4)));
    for (unsigned seed = 400; seed < 400 + 30 / TESTS_DIVISOR; seed++)
        compare(machine_random(seed, 8));
}

static void case_known_machines(void **state)
{
    (void)state;
    compare(machine_dgx1v());
    compare(machine_p100());
    compare(machine_h100_bridges());
    compare(machine_epyc_hives());
    compare(machine_nvswitch(8));
    compare(machine_two_sockets(5, 3));
    compare(machine_two_sockets(1, 7));
    compare(machine_all_to_all(4));
    compare(machine_all_to_all(7));
    compare(machine_square());
    compare(machine_pairs());
    compare(machine_cluster(4, 2));
    compare(machine_three_numa());
}

/*
 * All parts of 3 to 8 devices: the sets hold what they must, and a quarter of them (fewer under a
 * sanitizer), by lot, are compared with all orders.
 */
static void case_parts_of_machines(void **state)
{
    (void)state;
    struct tess_topology *(*const machine[])(void) = {machine_dgx1v, machine_p100,
                                                      machine_h100_bridges, machine_epyc_hives};
    for (int m = 0; m < 4; m++) {
        for (uint32_t set = 0; set < 256; set++) {
            int32_t keep[8], count = 0;
            for (int32_t i = 0; i < 8; i++) {
                if (set >> i & 1)
                    keep[count++] = i;
            }
            if (count < 3)
                continue;
            struct tess_topology *topology = machine[m]();
            assert_int_equal(tess_topology_select(topology, keep, count), TESS_OK);
            if (tess_hash_mix((uint64_t)m << 8 | set) % (4 * TESTS_DIVISOR) == 0) {
                compare(topology);
                continue;
            }
            struct rings rings = rings_find(topology, TESS_RINGS_MAX);
            assert_true(rings.found.optimal);
            assert_true(rings.found.total_gbs >= 0.95 * rings.found.bound_gbs);
            rings_drop(&rings);
        }
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_random_machines),
        cmocka_unit_test(case_known_machines),
        cmocka_unit_test(case_parts_of_machines),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
