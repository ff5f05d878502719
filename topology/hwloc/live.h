/*
 * This machine: processors, memory and PCI by hwloc, GPUs and their NVLinks as the caller got them
 * from the driver (this room uses no driver). And binding ranks to it.
 */
#ifndef TOPOLOGY_LIVE_H
#define TOPOLOGY_LIVE_H

#include "topology/machine/topology.h"

#define TESS_LIVE_PEERS_MAX 64

/* A GPU, by its PCI bus id. */
struct tess_live_device {
    char name[96];
    char bus[32];         /* any width of the domain, any case */
    int32_t index;        /* NVML's */
    int32_t sm;           /* compute capability * 10; 0: unknown */
    int32_t switch_links; /* NVLinks to NVSwitches, or to what a VM hides */
    int32_t peer_count;
    struct tess_live_peer {
        char bus[32];
        int32_t links;
    } peer[TESS_LIVE_PEERS_MAX];
    int32_t c2c_links;
    double c2c_gbs; /* of all of them */
    /* NVLink domain over hosts (MNNVL); all zero: none. Its NVSwitch is a node of no host, with a
     * name that the domain's hosts share. */
    unsigned char fabric_uuid[16];
    int32_t fabric_clique;
};

/*
 * The machine that the program runs on, or the one that hwloc's HWLOC_XMLFILE names.
 *
 *   device_count > 0   its DEVICE nodes are these, "gpu<index>", and `ranks` is ignored
 *   else, ranks > 0    that many places on processors, "rank<i>", on the NUMA nodes to which
 *                      tess_bind_place binds them; GPUs that no driver serves are left out
 *   both 0             PCI devices of NVIDIA and AMD, without their links; else a place
 *                      on each NUMA node
 *
 * NICs that are up are joined to one node `net`. Without libhwloc there are the NUMA nodes that
 * /sys lists, and no switches or NICs. TESS_ERR_UNSUPPORTED where hwloc fails.
 */
enum tess_status tess_topology_live(const struct tess_live_device *device, int32_t device_count,
                                    int32_t ranks, struct tess_topology **topology_out);

/* ---- binding (bind_hwloc.c; bind_none.c) ---- */

#define TESS_BIND_TEXT 96

/*
 * Bind the calling thread, and what it starts later, to the cores of place `at` of `count` on this
 * host: with a GPU's bus id the cores next to it, shared out among the ranks whose GPUs are there;
 * without, NUMA node by NUMA node. Memory is bound to the NUMA nodes of these cores. Only cores
 * that the process may use are chosen; a process that was started on cores of its own keeps them.
 * text: "cores 0-7, NUMA 0" (the cores' first CPUs), or why nothing was bound. Returns false where
 * nothing was bound. bus [count]: of all places; NULL, or NULL in it: no GPU. Threads of one
 * process may each have a place.
 */
bool tess_bind_place(int32_t at, int32_t count, const char *const *bus, char text[TESS_BIND_TEXT]);
/* Is the calling thread still bound as tess_bind_place did? (libraries change it: NCCL's init
 * does). Binds it again where not; false: it was not. A thread that was not bound is as it was. */
bool tess_bind_check(void);

#endif
