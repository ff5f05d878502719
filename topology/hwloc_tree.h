/* What libhwloc has loaded, as nodes and links. For files that are built with libhwloc only. */
#ifndef TOPOLOGY_HWLOC_TREE_H
#define TOPOLOGY_HWLOC_TREE_H

#include "topology/topology.h"

#include <hwloc.h>

/* What hwloc says of 16 lanes of PCIe 3, 10^9 bytes/s; NCCL's model has 12. */
#define TESS__HWLOC_PCI_3 15.753846

/*
 * Into an empty topology, which is finished. speeds: those of PCIe links are what the links can,
 * and not what they do just now. Uses the objects' userdata, once for each loading.
 */
enum tess_status tess__hwloc_tree(const char *name, hwloc_topology_t hwloc, bool speeds,
                                  const struct tess_topology_options *options,
                                  struct tess_topology *topology);

#endif
