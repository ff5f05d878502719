/* What contains what in a machine, from NUMA nodes down to devices and NICs. */
#ifndef TESSERA_TOPOLOGY_MACHINE_TREE_H
#define TESSERA_TOPOLOGY_MACHINE_TREE_H

#include "topology/machine/pool.h"
#include "topology/machine/topology.h"

#define TESS__TOPO_DEPTH_MAX 24
#define TESS__TOPO_CLASSES   4 /* different makes of hosts */

struct tess__topo_tree {
    struct tess__pool pool;
    int32_t *first, *next; /* [node_count] children and siblings; -1 */
    int32_t *up;           /* [node_count] link from what a node is attached to; -1 */
    int32_t *number;       /* [node_count] of a device among devices; -1 */
    int32_t *class;        /* [host_count] the first host that is equal; -1: too many */
};

enum tess_status tess__topo_tree_open(const struct tess_topology *topology,
                                      struct tess__topo_tree *tree);
void tess__topo_tree_close(struct tess__topo_tree *tree);
/* Is there a device or a NIC at the node or below? Switches and NUMA nodes alone are not drawn. */
bool tess__topo_holds_device(const struct tess_topology *topology,
                             const struct tess__topo_tree *tree, int32_t node);

#endif
