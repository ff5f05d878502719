/* The machine that the program runs on, by libhwloc. For files that are built with it only. */
#ifndef TOPOLOGY_HWLOC_MACHINE_H
#define TOPOLOGY_HWLOC_MACHINE_H

#include "topology/live.h"

#include <hwloc.h>

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

struct tess__bind_ask { /* tess_bind_place's */
    int32_t at, count;
    const char *const *bus;
};

/* What a place is to be bound to, of any machine and for a process that may use `own`; nothing is
 * bound. False: nothing is to be, and text says why. (bind_hwloc.c) */
bool tess__bind_choose(hwloc_topology_t hwloc, hwloc_const_bitmap_t own,
                       const struct tess__bind_ask *ask, hwloc_bitmap_t cpus, hwloc_bitmap_t nodes,
                       char text[TESS_BIND_TEXT]);

#endif
