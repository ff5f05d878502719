/*
 * Which rank sits where: a mesh of axes laid over a topology.
 *
 * Ranks are numbered as the mesh numbers them, the first axis fastest. A group of an axis is the
 * ranks that differ in that place alone; it sends around the ring of its ranks in their order. The
 * cost of a mapping is the time of the most loaded directed link in one step,
 *
 *     max over links  (sum over groups of bytes sent over it) / capacity
 *
 * where each hop of a ring of k carries the bytes that a rank sends along that axis in a step; a
 * chain has such hops in both directions (activations on, gradients back). All groups of all axes
 * are counted at once.
 */
#ifndef TOPOLOGY_MAP_H
#define TOPOLOGY_MAP_H

#include "topology/machine/route.h"

#define TESS_MAP_AXES 4

struct tess_map_axis {
    const char *name; /* "tensor", for the explanation; a literal */
    int32_t count;    /* ranks along it, >= 1 */
    double bytes;     /* that a rank sends to the next along it in a step, and of a chain to the one
                         before as well; where not known, 1 per rank */
    bool chain;       /* its ends do not talk (stages of a pipeline): no hop from last to first */
};

struct tess_map_ask {
    const struct tess_map_axis *axis; /* [axis_count], the fastest first: tensor, data, stage */
    int32_t axis_count;               /* the product of the counts is the number of ranks */
    /* Devices that the ranks may have, [ranks] numbers of devices of the topology: rank r has
     * place[r] in the natural order. */
    const int32_t *place;
    bool keep_first; /* rank 0 stays at place[0] */
};

struct tess_map {
    int32_t rank_count;
    int32_t *place;   /* [rank_count] the number, 0 .. rank_count - 1, of the entry of
                         ask.place that each rank has: identity is the natural order */
    double cost_s;    /* of this mapping */
    double natural_s; /* of the natural order */
    double bound_s;   /* no mapping costs less; 0: not known */
    bool optimal;     /* proved: cost_s equals the bound, or all orders were compared */
};

/*
 * Axis orders are tried exhaustively, each laid along the ring order that ring.h finds, then
 * refined by exchanging ranks. Never costs more than the natural order, which is kept where nothing
 * is better by a thousandth. The same on every rank: no clocks, no random numbers. Up to 65536
 * ranks, above 2048 on hosts that are made and joined in few different ways (TESS_ERR_UNSUPPORTED);
 * TESS_ERR_DATA where ranks that talk would not reach each other in any mapping.
 */
enum tess_status tess_map_find(const struct tess_topology *topology, const struct tess_map_ask *ask,
                               struct tess_map *map_out);
void tess_map_free(struct tess_map *map); /* a zeroed one is allowed */

/*
 * Text, malloc'd, the caller's: for every rank its device, host and why it is there (which group
 * it shares NVLink, a switch, a socket, a host or a rack with), the loads of the links that matter,
 * and what the natural order would cost.
 */
enum tess_status tess_map_explain(const struct tess_topology *topology,
                                  const struct tess_map_ask *ask, const struct tess_map *map,
                                  char **text_out);

#endif
