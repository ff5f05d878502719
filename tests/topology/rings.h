/* A topology, its routes and its rings, looked at together in tests. */
#ifndef TESTS_TOPOLOGY_RINGS_H
#define TESTS_TOPOLOGY_RINGS_H

#include "topology/rings/ring.h"

struct rings {
    struct tess_topology *topology;
    struct tess_routes routes;
    struct tess_rings found;
};

/*
 * Finds at most `most` rings and checks what holds for all: permutations from 0 on, no link beyond
 * its capacity, and bound >= total >= best single >= natural. rings_drop frees the topology too.
 */
struct rings rings_find(struct tess_topology *topology, int most);
void rings_drop(struct rings *rings);

/* Bandwidth of another order of these devices. */
double rings_order_gbs(const struct rings *rings, const int32_t *order);

void rings_near(double is, double expected); /* within 1e-6 */
/* The ring begins with these devices, "0-3-2". */
void rings_is_order(const struct tess_ring *ring, const char *order);

#endif
