/*
 * Loads this machine by libhwloc: the tree is read_hwloc.c's, as for a file, but with the
 * speeds that PCIe links are capable of, which hwloc lacks and an idle GPU does not show. live.c
 * adds what the driver reports.
 */
#include "tessera/check.h"
#include "topology/hwloc/hwloc_machine.h"
#include "topology/hwloc/live_room.h"
#include "topology/machine/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void live_speed(const char *sys, struct hwloc_pcidev_attr_s *pci)
{
    char bus[20];
    snprintf(bus, sizeof(bus), "%04x:%02x:%02x.%01x", pci->domain, pci->bus, pci->dev, pci->func);
    pci->linkspeed = (float)(tess__sysfs_pci_gbs(sys, bus) * TESS__HWLOC_PCI_3 / 12);
}

/* In hwloc's own unit. */
static void live_speeds(const char *sys, hwloc_topology_t hwloc)
{
    for (hwloc_obj_t pci = NULL; (pci = hwloc_get_next_pcidev(hwloc, pci));)
        live_speed(sys, &pci->attr->pcidev);
    for (hwloc_obj_t bridge = NULL; (bridge = hwloc_get_next_bridge(hwloc, bridge));)
        if (bridge->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI)
            live_speed(sys, &bridge->attr->bridge.upstream.pci);
}

/* Where each core is, of those that the process may use. */
static enum tess_status live_cores(hwloc_topology_t hwloc, struct tess__live *live)
{
    struct tess__hwloc_cores cores = {.count = 0};
    hwloc_bitmap_t own = hwloc_bitmap_alloc();
    if (!own)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the machine's cores");
    tess__hwloc_own(hwloc, own);
    enum tess_status status = tess__hwloc_cores(hwloc, own, &cores);
    hwloc_bitmap_free(own);
    TESS_TRY(status);
    live->core_numa = cores.numa;
    live->core_count = cores.count;
    free(cores.core);
    return TESS_OK;
}

enum tess_status tess__live_machine(const char *sys, struct tess__live *live_out)
{
    hwloc_topology_t hwloc;
    *live_out = (struct tess__live){.topology = tess_topology_new()};
    TESS_TRY(tess__hwloc_machine(true, &hwloc));
    live_out->here = hwloc_topology_is_thissystem(hwloc) != 0;
    enum tess_status status = live_out->topology ? live_cores(hwloc, live_out)
                                                 : tess__no_memory("the topology of this machine");
    if (status == TESS_OK && live_out->here)
        live_speeds(sys, hwloc);
    if (status == TESS_OK)
        status = tess__hwloc_tree("this machine", hwloc, live_out->here, NULL, live_out->topology);
    hwloc_topology_destroy(hwloc);
    return status;
}
