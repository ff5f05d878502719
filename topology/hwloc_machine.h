/* The machine that the program runs on, by libhwloc. For files that are built with it only. */
#ifndef TOPOLOGY_HWLOC_MACHINE_H
#define TOPOLOGY_HWLOC_MACHINE_H

#include "tessera/status.h"

#include <hwloc.h>
#include <stdint.h>

/* With its I/O; what hwloc's variables name instead, where they do (HWLOC_XMLFILE).
 * hwloc_topology_destroy is the caller's. */
enum tess_status tess__hwloc_machine(hwloc_topology_t *hwloc_out);

/*
 * The CPUs that this process was started on, into `cpus`: the affinity at the first call in the
 * process, before anything here binds a thread. All of a machine that is another one.
 */
void tess__hwloc_own(hwloc_topology_t hwloc, hwloc_bitmap_t cpus);

/* The cores that have a CPU in `cpus`, NUMA node by NUMA node. */
struct tess__hwloc_cores {
    hwloc_obj_t *core; /* [count]; CPUs where the machine tells of no cores */
    int32_t *numa;     /* [count] NUMA nodes as the system numbers them, rising by hwloc's order */
    int32_t count;
};

enum tess_status tess__hwloc_cores(hwloc_topology_t hwloc, hwloc_const_bitmap_t cpus,
                                   struct tess__hwloc_cores *cores_out);
void tess__hwloc_cores_free(struct tess__hwloc_cores *cores); /* a zeroed one is allowed */

#endif
