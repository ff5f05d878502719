/*
 * Rings: orders in which devices send to the next, and how fast that is when links are shared.
 *
 * The time of a large collective on a ring is set by the most loaded link: with u the number of
 * hops of the ring that use a directed link of capacity c, bandwidth = min over links of c / u.
 * Pairs alone do not tell: on two sockets all orders look alike by their widest pairs, and differ
 * four times by how often they cross.
 */
#ifndef TOPOLOGY_RING_H
#define TOPOLOGY_RING_H

#include "topology/route.h"

#define TESS_RINGS_MAX 32

struct tess_ring {
    int32_t *order; /* [count] devices; begins with the lowest number */
    double gbs;     /* what it carries beside the other rings of its set */
};

struct tess_ring_search {
    int32_t rings;       /* at most, 1 .. TESS_RINGS_MAX */
    double time_limit_s; /* 0: none; what is best then is taken, not proved */
};

struct tess_rings {
    int32_t count; /* devices of a ring */
    int32_t ring_count;
    struct tess_ring ring[TESS_RINGS_MAX];
    double total_gbs;                      /* sum of gbs */
    struct tess_ring best_single, natural; /* alone; natural: 0 .. n-1 */
    double single_bound_gbs;               /* no single ring carries more */
    double bound_gbs; /* no set of rings carries more; by LP, or the least cut */
    bool optimal;     /* no ring alone carries more than best_single, and that is proved */
};

/*
 * Of one ring: bandwidth with shared links counted. Pure. uses [link_count of the topology] is
 * scratch, zero before and after.
 */
double tess_ring_gbs(const struct tess_routes *routes, const int32_t *order, int32_t count,
                     int32_t *uses);

/*
 * Objective, in order: greatest bandwidth; fewest SYS, then PHB, then PXB hops; the order whose
 * numbers come first. Exact up to 16 devices (branch and bound), with the proof in `optimal`;
 * larger sets by hosts and switches, with the gap to the bound. The answer does not depend on
 * timing unless a limit of time cuts it off.
 */
enum tess_status tess_rings_find(const struct tess_routes *routes,
                                 const struct tess_ring_search *search,
                                 struct tess_rings *rings_out);
/*
 * The same for a cluster of any size, one ring: hosts as the network's switches join them, each
 * host's devices together. single_bound_gbs and bound_gbs are the hosts' own; that of the network
 * is not in them. natural.gbs is 0 where a network is so large that its ways were not all looked
 * for. Hosts have at most 127 devices and all have a link to a node of kind NET.
 */
enum tess_status tess_rings_find_hosts(const struct tess_topology *topology, double time_limit_s,
                                       struct tess_rings *rings_out);
void tess_rings_free(struct tess_rings *rings);

#endif
