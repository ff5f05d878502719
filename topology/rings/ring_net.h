/*
 * The network between units (hosts, or hosts that share NVSwitches), as far as rings over them need
 * it: in which order to meet units, which links a hop uses, and what no ring exceeds.
 */
#ifndef TOPOLOGY_RING_NET_H
#define TOPOLOGY_RING_NET_H

#include "topology/machine/pool.h"
#include "topology/machine/topology.h"

struct tess__ring_net {
    struct tess__pool pool;
    const struct tess_topology *topology; /* borrowed */
    const int32_t *unit;                  /* [node_count] of a node; -1: of none; borrowed */
    const bool *has_devices;              /* [units] borrowed */
    int32_t units;
    /* Links that leave a switch of the network, by number; `inner` to another one only. */
    int32_t *first, *out, *inner_first, *inner;
    /* The walk: units as it meets them; of a switch (its node) and a unit (node_count + unit) the
     * one it came from, -1: none; all of them in the order they were met. */
    int32_t *order, *parent, *met;
    int32_t ordered, met_count;
    double *load;   /* [link_count] of the rings added */
    int32_t *depth; /* switches above, in the walk */
    int32_t *came, *queue, *mark, *steps;
    double *tight; /* [node_count] of the way to a switch: the greatest load / capacity */
    int32_t epoch;
    int64_t visits;
};

enum tess_status tess__ring_net_open(struct tess__ring_net *net,
                                     const struct tess_topology *topology, const int32_t *unit,
                                     const bool *has_devices, int32_t units);
void tess__ring_net_close(struct tess__ring_net *net);

/*
 * Units with devices in the order that a walk through the switches meets them, depth first: on a
 * tree every link is crossed once in each direction, which is optimal. TESS_ERR_DATA where
 * one has no link to the network.
 */
enum tess_status tess__ring_net_walk(struct tess__ring_net *net);

/*
 * Adds gbs to the links of a shortest way between two switches: the first one by numbers, as routes
 * have it, or with `spread`, of all shortest ones one that is least loaded. False where there is
 * none, or the search has taken too long.
 */
bool tess__ring_net_add(struct tess__ring_net *net, int32_t from, int32_t to, double gbs,
                        bool spread);
/* Of what was added: least capacity / load; INFINITY where nothing was. Forgets it. */
double tess__ring_net_share(struct tess__ring_net *net);

/*
 * After the walk. Lowers *single to what no ring over these units carries (its narrowest link where
 * all are joined by the widest), and *wide to what no set of rings does: cuts around each unit,
 * each switch with the units that are attached to it alone, and each branch of the walk.
 */
enum tess_status tess__ring_net_bound(const struct tess__ring_net *net, double *single,
                                      double *wide);

#endif
