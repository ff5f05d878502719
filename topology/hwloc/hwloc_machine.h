/* libhwloc: this machine, files that it loads, and the nodes and links made of either. For files
 * that are built with libhwloc only. */
#ifndef TOPOLOGY_HWLOC_MACHINE_H
#define TOPOLOGY_HWLOC_MACHINE_H

#include "topology/hwloc/live.h"

#include <hwloc.h>

/* What hwloc's variables name instead, where they do (HWLOC_XMLFILE). Without `io` PCI devices are
 * left out: reading the configuration of each takes a virtual machine milliseconds.
 * hwloc_topology_destroy is the caller's. */
enum tess_status tess__hwloc_machine(bool io, hwloc_topology_t *hwloc_out);

/*
 * The CPUs that this process was started on, into `cpus`: the affinity at the first call in the
 * process, before anything here binds a thread. All of a machine that is another one.
 */
void tess__hwloc_own(hwloc_topology_t hwloc, hwloc_bitmap_t cpus);

/* The cores that have a CPU in `cpus`, NUMA node by NUMA node. */
struct tess__hwloc_cores {
    hwloc_obj_t *core; /* [count]; CPUs where the machine lists no cores */
    int32_t *numa;     /* [count] NUMA nodes as the system numbers them, rising by hwloc's order */
    int32_t count;
};

enum tess_status tess__hwloc_cores(hwloc_topology_t hwloc, hwloc_const_bitmap_t cpus,
                                   struct tess__hwloc_cores *cores_out);
void tess__hwloc_cores_free(struct tess__hwloc_cores *cores); /* a zeroed one is allowed */

struct tess__bind_request { /* tess_bind_place's */
    int32_t at, count;
    const char *const *bus;
};

/* The cores of a place, on any machine, for a process that may use `own`; nothing is bound. False:
 * there is nothing to bind to, and text gives the reason. (bind_hwloc.c) */
bool tess__bind_choose(hwloc_topology_t hwloc, hwloc_const_bitmap_t own,
                       const struct tess__bind_request *request, hwloc_bitmap_t cpus,
                       hwloc_bitmap_t nodes, char text[TESS_BIND_TEXT]);

/* ---- files (hwloc_load.c) ---- */

/* The text is one that tess__hwloc_text_check has passed. hwloc_topology_destroy is the caller's.
 * TESS_ERR_DATA, "NAME: ...", where hwloc cannot load it. */
enum tess_status tess__hwloc_load(const char *name, const char *text, size_t bytes,
                                  hwloc_topology_t *hwloc_out);

/* ---- nodes and links (read_hwloc.c) ---- */

/* hwloc's figure for 16 lanes of PCIe 3, 10^9 bytes/s; NCCL's model has 12. */
#define TESS__HWLOC_PCI_3 15.753846

/*
 * Into an empty topology, which is finished. speeds: those of PCIe links are what the links can,
 * and not what they do just now. Uses the objects' userdata, once for each loading.
 */
enum tess_status tess__hwloc_tree(const char *name, hwloc_topology_t hwloc, bool speeds,
                                  const struct tess_topology_options *options,
                                  struct tess_topology *topology);

#endif
