/*
 * This machine as a topology: what was found of it (live_hwloc.c, live_none.c), with the devices
 * that the driver names and no others, their NVLinks, and the networks that are up; or, without
 * devices, with places for ranks where they will be bound (bind_hwloc.c).
 *
 *   device   in the driver's order, found by its PCI bus id; one that /sys does not show (a
 *            container's may be empty) is attached to its NUMA node by x16 of its generation
 *   NVLink   as the driver lists them; hwloc's plugins would list the same links again
 *   fabric   devices of a domain over hosts have an NVSwitch of no host, whose name is the
 *            domain's: "nvlink-<uuid>.<clique>", so that hosts can be put together by it
 *   NIC      with a link to `net` of what its ports carry; without one where it is another
 *            machine's. One that is down is left out, and so is a virtual function beside the
 *            device it belongs to
 */
#include "topology/hwloc/live.h"
#include "tessera/check.h"
#include "topology/hwloc/live_room.h"
#include "topology/machine/assume.h"
#include "topology/machine/bus.h"
#include "topology/machine/pool.h"
#include "topology/machine/rates.h"
#include "topology/machine/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct composer {
    struct tess__pool pool;
    const struct tess__live *live;
    const char *sys;
    const struct tess_live_device *device; /* [device_count] */
    int32_t device_count;
    int32_t ranks;
    struct tess_topology *topology; /* the result */
    int32_t *place;                 /* [nodes found] the node it became; -1: none */
    int32_t *node;                  /* [device_count] its node; -1: none so far */
    int32_t net;                    /* -1: none so far */
};

/* The device with this bus id, of any width of the domain and any case; -1: none. */
static int32_t live_find(const struct composer *self, const char *bus)
{
    uint64_t number, own;
    bool known = tess__bus_parse(bus, strnlen(bus, 32), &number);
    for (int32_t i = 0; i < self->device_count && known; i++) {
        const char *text = self->device[i].bus;
        if (tess__bus_parse(text, strnlen(text, 32), &own) && own == number)
            return i;
    }
    return -1;
}

/* ---- what was found -------------------------------------------------------------------------- */

static bool live_keeps_device(const struct composer *self, struct tess_node *node)
{
    if (self->device_count == 0)
        return self->ranks == 0;
    int32_t at = live_find(self, node->bus);
    if (at < 0)
        return false;
    node->index = self->device[at].index;
    if (self->device[at].sm > 0)
        node->sm = self->device[at].sm;
    snprintf(node->name, sizeof(node->name), "gpu%d", (int)node->index);
    return true;
}

static bool live_keeps_nic(const struct composer *self, const struct tess_node *node)
{
    char physical[20];
    if (!self->live->here)
        return true;
    if (tess__sysfs_physical(self->sys, node->bus, physical) &&
        tess_topology_find_bus(self->live->topology, node->host, physical) >= 0)
        return false;
    return tess__sysfs_nic_gbs(self->sys, node->name) > 0;
}

static bool live_keeps(const struct composer *self, struct tess_node *node)
{
    if (node->kind == TESS_NODE_DEVICE)
        return live_keeps_device(self, node);
    if (node->kind == TESS_NODE_NIC)
        return live_keeps_nic(self, node);
    return node->kind != TESS_NODE_NVSWITCH || (self->device_count == 0 && self->ranks == 0);
}

static enum tess_status live_copy(struct composer *self)
{
    const struct tess_topology *found = self->live->topology;
    for (int32_t i = 0; i < found->node_count; i++) {
        struct tess_node node = found->node[i];
        self->place[i] = -1;
        if (!live_keeps(self, &node))
            continue;
        TESS_TRY(tess_topology_add_node(self->topology, &node, &self->place[i]));
        if (node.kind == TESS_NODE_DEVICE && self->device_count > 0)
            self->node[live_find(self, node.bus)] = self->place[i];
    }
    for (int32_t i = 0; i < found->link_count; i++) {
        struct tess_topo_link link = found->link[i];
        link.from = self->place[link.from];
        link.to = self->place[link.to];
        bool twice =
            self->device_count > 0 && (link.kind == TESS_LINK_NVLINK || link.kind == TESS_LINK_C2C);
        if (link.from >= 0 && link.to >= 0 && !twice)
            TESS_TRY(tess_topology_add_link(self->topology, &link));
    }
    return TESS_OK;
}

/* ---- networks -------------------------------------------------------------------------------- */

static enum tess_status live_networks(struct composer *self)
{
    int32_t count = self->live->here ? self->topology->node_count : 0;
    for (int32_t i = 0; i < count; i++) {
        const struct tess_node *nic = &self->topology->node[i];
        if (nic->kind != TESS_NODE_NIC)
            continue;
        double gbs = tess__sysfs_nic_gbs(self->sys, nic->name);
        if (gbs <= 0)
            continue; /* it went down just now */
        if (self->net < 0)
            TESS_TRY(tess_topology_add(self->topology, tess_topology_node(TESS_NODE_NET, -1, -1),
                                       &self->net, "net"));
        TESS_TRY(tess_topology_join(self->topology, TESS_LINK_NET, i, self->net, gbs, 1));
    }
    return TESS_OK;
}

/* ---- the driver's devices -------------------------------------------------------------------- */

/* The NUMA node of that number; the first where there is none. */
static int32_t live_cpu(const struct composer *self, int32_t numa)
{
    int32_t first = -1;
    for (int32_t i = self->topology->node_count - 1; i >= 0; i--) {
        const struct tess_node *node = &self->topology->node[i];
        if (node->kind == TESS_NODE_CPU && node->index == numa)
            return i;
        if (node->kind == TESS_NODE_CPU)
            first = i;
    }
    return first;
}

static enum tess_status live_add_missing(struct composer *self, int32_t at)
{
    const struct tess_live_device *device = &self->device[at];
    struct tess_node node = {
        .kind = TESS_NODE_DEVICE, .index = device->index, .socket = -1, .sm = device->sm};
    int32_t sm = device->sm > 0 ? device->sm : 80, numa = -1;
    double gbs = 0;
    uint64_t bus;
    if (tess__bus_parse(device->bus, strnlen(device->bus, 32), &bus)) {
        tess__bus_text(bus, node.bus, sizeof(node.bus));
        gbs = self->live->here ? tess__sysfs_pci_gbs(self->sys, node.bus) : 0;
        numa = self->live->here ? tess__sysfs_numa(self->sys, node.bus) : -1;
    }
    TESS_TRY(tess_topology_add(self->topology, node, &self->node[at], "gpu%d", (int)device->index));
    self->topology->remarks |= gbs > 0 ? 0 : TESS_REMARK_PCI;
    return tess_topology_join(self->topology, TESS_LINK_PCI, self->node[at], live_cpu(self, numa),
                              gbs > 0 ? gbs : tess__rate_pci_x16(tess__pci_gen(sm)), 1);
}

/* The processor at the root of a device's PCI tree; -1: there is none. */
static enum tess_status live_cpu_of(const struct composer *self, int32_t device, int32_t *cpu_out)
{
    const struct tess_topology *topology = self->topology;
    struct tess__topo_tree tree;
    TESS_TRY(tess__topo_tree_open(topology, &tree));
    while (tree.up[device] >= 0)
        device = topology->link[tree.up[device]].from;
    tess__topo_tree_close(&tree);
    *cpu_out = topology->node[device].kind == TESS_NODE_CPU ? device : -1;
    return TESS_OK;
}

/* The NVSwitches of this host, or of the NVLink domain that the device is in. */
static enum tess_status live_nvswitch(struct composer *self, const struct tess_live_device *device,
                                      int32_t *node_out)
{
    static const unsigned char none[sizeof(device->fabric_uuid)];
    bool fabric = memcmp(device->fabric_uuid, none, sizeof(none)) != 0;
    struct tess_node node = {
        .kind = TESS_NODE_NVSWITCH, .name = "nvswitch", .index = -1, .socket = -1};
    if (fabric) {
        size_t used = (size_t)snprintf(node.name, sizeof(node.name), "nvlink-");
        for (size_t i = 0; i < sizeof(none); i++)
            used += (size_t)snprintf(node.name + used, sizeof(node.name) - used, "%02x",
                                     device->fabric_uuid[i]);
        snprintf(node.name + used, sizeof(node.name) - used, ".%u",
                 (unsigned)device->fabric_clique % 10000000);
        node.host = -1;
    }
    *node_out = tess_topology_find_name(self->topology, node.name);
    return *node_out >= 0 ? TESS_OK : tess_topology_add_node(self->topology, &node, node_out);
}

static enum tess_status live_nvlinks(struct composer *self, int32_t at)
{
    const struct tess_live_device *device = &self->device[at];
    int32_t from = self->node[at], nvswitch, cpu;
    double each = tess__rate_nvlink(self->topology->node[from].sm);
    for (int32_t p = 0; p < device->peer_count && p < TESS_LIVE_PEERS_MAX; p++) {
        const struct tess_live_peer *peer = &device->peer[p];
        int32_t to = live_find(self, peer->bus);
        if (to < 0 || to == at || peer->links < 1)
            continue; /* a device that this process may not see */
        struct tess_topo_link link = {.kind = TESS_LINK_NVLINK,
                                      .from = from,
                                      .to = self->node[to],
                                      .gbs = peer->links * each,
                                      .count = peer->links};
        TESS_TRY(tess_topology_add_link(self->topology, &link));
    }
    if (device->switch_links > 0) {
        TESS_TRY(live_nvswitch(self, device, &nvswitch));
        TESS_TRY(tess_topology_join(self->topology, TESS_LINK_NVLINK, from, nvswitch,
                                    device->switch_links * each, device->switch_links));
    }
    if (device->c2c_links < 1 || device->c2c_gbs <= 0)
        return TESS_OK;
    TESS_TRY(live_cpu_of(self, from, &cpu));
    if (cpu < 0)
        return TESS_OK;
    return tess_topology_join(self->topology, TESS_LINK_C2C, from, cpu, device->c2c_gbs,
                              device->c2c_links);
}

/* ---- places of ranks ------------------------------------------------------------------------- */

static enum tess_status live_ranks(struct composer *self)
{
    for (int32_t i = 0; i < self->ranks; i++) {
        int32_t first, cores, at;
        tess__share(self->live->core_numa, self->live->core_count, i, self->ranks, &first, &cores);
        TESS_TRY(tess_topology_add(self->topology, tess_topology_node(TESS_NODE_DEVICE, 0, i), &at,
                                   "rank%d", (int)i));
        TESS_TRY(tess_topology_join(self->topology, TESS_LINK_LOCAL, at,
                                    live_cpu(self, cores > 0 ? self->live->core_numa[first] : 0),
                                    TESS_GBS_LOCAL, 1));
    }
    return TESS_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static enum tess_status live_build(struct composer *self)
{
    TESS_TRY(live_copy(self));
    TESS_TRY(live_networks(self));
    for (int32_t i = 0; i < self->device_count; i++)
        if (self->node[i] < 0)
            TESS_TRY(live_add_missing(self, i));
    for (int32_t i = 0; i < self->device_count; i++)
        TESS_TRY(live_nvlinks(self, i));
    TESS_TRY(live_ranks(self));
    return tess_topology_finish(self->topology);
}

enum tess_status tess__live_compose(const struct tess__live *live, const char *sys,
                                    const struct tess_live_device *device, int32_t device_count,
                                    int32_t ranks, struct tess_topology **topology_out)
{
    struct composer self = {.live = live,
                            .sys = sys,
                            .device = device,
                            .device_count = device_count,
                            .ranks = device_count > 0 ? 0 : ranks,
                            .net = -1};
    size_t nodes = (size_t)live->topology->node_count, devices = (size_t)device_count;
    self.topology = tess_topology_new();
    self.place = tess__pool_array(&self.pool, nodes, sizeof(*self.place));
    self.node = tess__pool_array(&self.pool, devices, sizeof(*self.node));
    enum tess_status status = TESS_OK;
    if (!self.topology || self.pool.failed) {
        status = tess__no_memory("the topology of this machine");
    } else {
        memset(self.node, -1, devices * sizeof(*self.node));
        status = live_build(&self);
    }
    tess__pool_release(&self.pool);
    return tess_topology_give(self.topology, status, topology_out);
}

enum tess_status tess_topology_live(const struct tess_live_device *device, int32_t device_count,
                                    int32_t ranks, struct tess_topology **topology_out)
{
    struct tess__live live;
    if (device_count < 0 || ranks < 0 || ranks > TESS_TOPO_NODES_MAX / 2)
        TESS_FAIL(TESS_ERR_USAGE, "%d devices and %d ranks on this machine; 0 to %d were expected",
                  (int)device_count, (int)ranks, TESS_TOPO_NODES_MAX / 2);
    enum tess_status status = tess__live_machine(TESS__SYS, &live);
    if (status == TESS_OK)
        status = tess__live_compose(&live, TESS__SYS, device, device_count, ranks, topology_out);
    tess_topology_free(live.topology);
    free(live.core_numa);
    return status;
}
