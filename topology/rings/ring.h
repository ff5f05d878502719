/*
 * Rings: orders in which devices send to the next, and how fast that is when links are shared.
 *
 * The time of a large collective on a ring is set by the most loaded link: with u the number of
 * hops of the ring that use a directed link of capacity c, bandwidth = min over links of c / u.
 * Pairs alone are not enough: on two sockets all orders have the same widest pairs, and differ by a
 * factor of four in how often they cross.
 */
#ifndef TOPOLOGY_RING_H
#define TOPOLOGY_RING_H

#include "topology/machine/route.h"

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
 * numbers come first. The answer does not depend on timing unless a limit of time cuts it off.
 *
 * Up to 16 devices: the best ring exactly, by branch and bound over the bandwidths that a ring can
 * have, with the proof in `optimal` (the walk is cut off after millions of steps, which no machine
 * known does). Several rings: one by one in what is left, and where that falls short of the cuts,
 * linear programming over all rings, with its bound; fewer rings are taken for at most 2 % less.
 * Real machines reach 0.95 of bound_gbs and more.
 *
 * Up to 128: hosts, sockets and switches are kept together, each block's ring is searched exactly,
 * opened where that is best, and refined device by device; clusters also host by host, as below.
 * single_bound_gbs and bound_gbs (cuts around devices, switches, sockets, hosts and racks) hold,
 * and the gap to them is what is not known.
 */
enum tess_status tess_rings_find(const struct tess_routes *routes,
                                 const struct tess_ring_search *search,
                                 struct tess_rings *rings_out);
/*
 * Of a cluster of any size, up to TESS_RINGS_MAX rings: hosts follow each other as the network's
 * switches join them, each host's devices together; on a tree of switches a ring crosses each
 * uplink once in each direction, which is optimal. Ways through a host are searched as above
 * with the network as one device more, once for each make of host: exactly up to 15 devices. Hosts
 * that share NVSwitches are taken together up to 127 devices. Several rings have a way in and out
 * of a host each (rails: a ring enters at the device next to its NIC), backwards through every
 * second host where that keeps them on their rail; of equally short ways through the network each
 * takes one that is least loaded.
 *
 * single_bound_gbs and bound_gbs hold for any rings whose devices use the NICs that their routes
 * use: cuts around and inside hosts, around racks, and around the branches of the walk.
 * natural.gbs is 0 where devices of a host do not follow each other by number, or where the network
 * is so large that the search of its ways stopped. Where there are several hosts, all have a link
 * to a node of kind NET; TESS_ERR_DATA else. Of the topology, nodes, links and the list of devices
 * are read; device nodes outside the list take no part.
 */
enum tess_status tess_rings_find_hosts(const struct tess_topology *topology, double time_limit_s,
                                       struct tess_rings *rings_out);
void tess_rings_free(struct tess_rings *rings);

/*
 * NCCL's graph file (NCCL_GRAPH_FILE) for the devices of one host in these rings, malloc'd: id 0,
 * pattern 4, one channel per ring and multiple of its rate. TESS_ERR_UNSUPPORTED where NCCL could
 * not take it.
 */
enum tess_status tess_rings_write_nccl_graph(const struct tess_topology *topology,
                                             const struct tess_routes *routes,
                                             const struct tess_rings *rings, char **text_out);

#endif
