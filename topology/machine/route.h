/* Ways between devices: which links a transfer uses. */
#ifndef TOPOLOGY_ROUTE_H
#define TOPOLOGY_ROUTE_H

#include "topology/machine/topology.h"

/* In increasing cost, NCCL's words (topo.h of NCCL 2.28). */
enum tess_path_kind {
    TESS_PATH_LOC, /* the same device */
    TESS_PATH_NVL, /* NVLink, also through NVSwitches */
    TESS_PATH_NVB, /* NVLink through another device */
    TESS_PATH_C2C,
    TESS_PATH_PIX, /* one PCIe switch */
    TESS_PATH_PXB, /* several */
    TESS_PATH_PHB, /* through a processor */
    TESS_PATH_SYS, /* between NUMA nodes */
    TESS_PATH_NET,
    TESS_PATH_NONE,
    TESS_PATH_KIND_COUNT
};

const char *tess_path_word(enum tess_path_kind kind); /* "PIX" */

struct tess_route {
    enum tess_path_kind kind;
    double gbs;                /* of its narrowest link, alone on it */
    int32_t first, link_count; /* in tess_routes.link */
};

/* Between all pairs of devices. [from * device_count + to] */
struct tess_routes {
    const struct tess_topology *topology; /* borrowed */
    int32_t device_count;
    struct tess_route *route;
    int32_t *link; /* numbers of links, route after route */
};

/*
 * The cheapest kind of path, then the widest, then the fewest links, then the lowest numbers; but
 * devices that would use the first of several NICs side by side take turns at them. A
 * path never goes through a third device, as a ring's data is not forwarded there: NVB is a word of
 * files, not of a route. Nor does it use a device's NVLink to another device to reach a processor
 * (NCCL 2.28 does, and takes a bridge between sockets for a way around them), nor pass a host that
 * is neither's. LOCAL links between NUMA nodes of one socket make a path PHB, not SYS.
 * Two devices that do not reach each other get NONE. tess_routes_free takes a zeroed one. Up to 128
 * devices and 64 links a path; for larger clusters routes are searched host by host.
 */
enum tess_status tess_routes_open(const struct tess_topology *topology,
                                  struct tess_routes *routes_out);
void tess_routes_free(struct tess_routes *routes);

/* The route of hop i of a ring: from order[i] to the next of order [count]. */
static inline const struct tess_route *tess__route_hop(const struct tess_routes *routes,
                                                       const int32_t *order, int32_t count,
                                                       int32_t i)
{
    return &routes->route[order[i] * routes->device_count + order[(i + 1) % count]];
}

/*
 * The same from one device at a time, for any number of them: row_out->route [device_count], by
 * target; tess_routes_free frees it. The search borrows the topology, and of that only nodes, links
 * and the list of devices are read.
 */
struct tess_route_search;
enum tess_status tess_route_search_open(const struct tess_topology *topology,
                                        struct tess_route_search **search_out);
enum tess_status tess_route_from(struct tess_route_search *search, int32_t from,
                                 struct tess_routes *row_out);
void tess_route_search_close(struct tess_route_search *search); /* NULL is allowed */

#endif
