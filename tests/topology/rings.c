#include "rings.h"
#include "topology/rings/ring_room.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void rings_near(double is, double expected)
{
    if (is < expected * (1 - 1e-6) || is > expected * (1 + 1e-6))
        fail_msg("%.9g is not %.9g", is, expected);
}

void rings_is_order(const struct tess_ring *ring, const char *order)
{
    char text[512];
    int length = 0;
    for (int i = 0; *order; i++) {
        length += snprintf(text + length, sizeof(text) - (size_t)length, i ? "-%d" : "%d",
                           (int)ring->order[i]);
        if (length >= (int)strlen(order))
            break;
    }
    assert_string_equal(text, order);
}

/* See rings_find. */
static void rings_check(const struct rings *rings)
{
    const struct tess_rings *found = &rings->found;
    const struct tess_topology *topology = rings->topology;
    int32_t count = found->count;
    double *load = calloc((size_t)topology->link_count, sizeof(*load)), total = 0;
    int32_t *uses = calloc((size_t)topology->link_count, sizeof(*uses));
    for (int32_t r = 0; r < found->ring_count; r++) {
        uint32_t seen = 0;
        const int32_t *order = found->ring[r].order;
        assert_int_equal(order[0], 0);
        for (int32_t i = 0; i < count && count <= 32; i++)
            seen |= 1u << order[i];
        if (count <= 32)
            assert_int_equal(seen, (uint32_t)(((uint64_t)1 << count) - 1));
        for (int32_t i = 0; i < count; i++) {
            const struct tess_route *route =
                &rings->routes.route[order[i] * count + order[(i + 1) % count]];
            for (int32_t k = 0; k < route->link_count; k++)
                load[rings->routes.link[route->first + k]] += found->ring[r].gbs;
        }
        total += found->ring[r].gbs;
    }
    for (int32_t i = 0; i < topology->link_count; i++)
        assert_true(load[i] <= topology->link[i].gbs * (1 + 1e-9));
    rings_near(found->total_gbs, total);
    double slack = 1 + 1e-9;
    assert_true(found->bound_gbs * slack >= found->total_gbs);
    assert_true(found->total_gbs * slack >= found->best_single.gbs);
    assert_true(found->best_single.gbs * slack >= found->natural.gbs);
    assert_true(found->single_bound_gbs * slack >= found->best_single.gbs);
    assert_true(found->bound_gbs * slack >= found->single_bound_gbs || !found->optimal);
    double cut = found->total_gbs;
    if (count > 1)
        assert_int_equal(tess__ring_cut_bound(&rings->routes, &cut), TESS_OK);
    assert_true(cut * slack >= found->bound_gbs);
    rings_near(tess_ring_gbs(&rings->routes, found->best_single.order, count, uses),
               found->best_single.gbs);
    rings_near(tess_ring_gbs(&rings->routes, found->natural.order, count, uses),
               found->natural.gbs);
    for (int32_t i = 0; i < topology->link_count; i++)
        assert_int_equal(uses[i], 0);
    free(load);
    free(uses);
}

struct rings rings_find(struct tess_topology *topology, int most)
{
    struct rings rings = {.topology = topology};
    struct tess_ring_search search = {.rings = most};
    assert_non_null(topology);
    assert_int_equal(tess_routes_open(topology, &rings.routes), TESS_OK);
    assert_int_equal(tess_rings_find(&rings.routes, &search, &rings.found), TESS_OK);
    rings_check(&rings);
    return rings;
}

void rings_drop(struct rings *rings)
{
    tess_rings_free(&rings->found);
    tess_routes_free(&rings->routes);
    tess_topology_free(rings->topology);
}

double rings_order_gbs(const struct rings *rings, const int32_t *order)
{
    int32_t *uses = calloc((size_t)rings->topology->link_count, sizeof(*uses));
    double gbs = tess_ring_gbs(&rings->routes, order, rings->found.count, uses);
    free(uses);
    return gbs;
}
