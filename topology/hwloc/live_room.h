/*
 * The machine as detected by live_hwloc.c or live_none.c, completed by live.c with what the driver
 * reports, and by live_sysfs.c with /sys. Inside the room only.
 */
#ifndef TOPOLOGY_LIVE_ROOM_H
#define TOPOLOGY_LIVE_ROOM_H

#include "topology/hwloc/live.h"

#define TESS__SYS "/sys"

struct tess__live {
    /* Finished: NUMA nodes; with hwloc also switches, NICs, and what it takes for GPUs, or a place
     * on each NUMA node. */
    struct tess_topology *topology;
    bool here; /* it is this machine, so that /sys has more about it */
    /* Of each core that the process may use, NUMA node by NUMA node: the NUMA node, as the system
     * numbers them. */
    int32_t *core_numa; /* [core_count] */
    int32_t core_count;
};

/* live_hwloc.c; live_none.c without libhwloc. `sys`: TESS__SYS, or a test's. The caller frees the
 * topology and core_numa, also after a failure. */
enum tess_status tess__live_machine(const char *sys, struct tess__live *live_out);

/* tess_topology_live after looking. */
enum tess_status tess__live_compose(const struct tess__live *live, const char *sys,
                                    const struct tess_live_device *device, int32_t device_count,
                                    int32_t ranks, struct tess_topology **topology_out);

/* The cores, a part of a list of `count`, that place `at` of `places` has: NUMA nodes as a whole
 * while there are no more places than nodes, else a part of one node's; never none. numa [count]:
 * of each core, in runs. Pure. (share.c) */
void tess__share(const int32_t *numa, int32_t count, int32_t at, int32_t places, int32_t *first_out,
                 int32_t *cores_out);

/* ---- /sys (live_sysfs.c); bus: as in tess_node ---- */

/* The capacity of the link of a PCI device or port, in NCCL's model; 0: unknown. */
double tess__sysfs_pci_gbs(const char *sys, const char *bus);
int32_t tess__sysfs_numa(const char *sys, const char *bus); /* -1: unknown */
/* Of a network device of any kind by its name, mlx5_0 or eth0; 0: it is down. 1.25
 * (10 Gb/s), as in NCCL, where a device that is up has no speed. */
double tess__sysfs_nic_gbs(const char *sys, const char *name);
/* The PCI device whose virtual function this one is; false: it is none. */
bool tess__sysfs_physical(const char *sys, const char *bus, char physical[20]);
#define TESS__SYSFS_LINE 512
/* The first line of a file below `sys` without its end; false: it is not there. */
TESS_PRINTF(3, 4)
bool tess__sysfs_line(const char *sys, char line[TESS__SYSFS_LINE], const char *format, ...);
/* The same, a number from 0 to max. */
TESS_PRINTF(4, 5)
bool tess__sysfs_number(const char *sys, int32_t max, int32_t *number_out, const char *format, ...);

#endif
