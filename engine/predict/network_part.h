/* A part of a cluster, shared by the files of this room that look at its links. */
#ifndef TESSERA_PREDICT_NETWORK_PART_H
#define TESSERA_PREDICT_NETWORK_PART_H

#include "predict/network.h"
#include "topology/machine/topology.h"

/* The first `devices` devices, of one host or two, with their hosts and the network: ways between
 * them use nothing else. tess__cluster_part_free frees it, also after a failure. */
enum tess_status tess__cluster_part(const struct tess_topology *topology, int32_t devices,
                                    struct tess_topology *part_out);
void tess__cluster_part_free(struct tess_topology *part);

/* What one rank sends to other hosts in a second, while all of its host send. */
double tess__network_share(const struct tess_cluster *cluster);

#endif
