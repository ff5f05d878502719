/*
 * NCCL's topology file between its text and the graph: one item for each element, parents before
 * their children. read_nccl.c fills them, nccl_graph.c makes nodes and links of them.
 */
#ifndef TOPOLOGY_NCCL_H
#define TOPOLOGY_NCCL_H

#include "topology/formats/xml.h"
#include "topology/machine/topology.h"

enum tess_nccl_kind {
    TESS_NCCL_SYSTEM,
    TESS_NCCL_CPU,
    TESS_NCCL_PCI,
    TESS_NCCL_GPU,
    TESS_NCCL_NIC,
    TESS_NCCL_NET,
    TESS_NCCL_NVLINK, /* also <xgmi> */
    TESS_NCCL_C2C,
    TESS_NCCL_PCILINK,
    TESS_NCCL_KIND_COUNT
};

/* By the prefix of a PCI class. */
enum tess_nccl_class {
    TESS_NCCL_CLASS_NONE, /* no class given */
    TESS_NCCL_CLASS_SWITCH,
    TESS_NCCL_CLASS_GPU,
    TESS_NCCL_CLASS_NIC,
    TESS_NCCL_CLASS_NVSWITCH,
    TESS_NCCL_CLASS_CPU,
    TESS_NCCL_CLASS_OTHER
};

#define TESS_NCCL_UNKNOWN  (-2) /* of dev, whose -1 means that the device is left out */
#define TESS_NCCL_CPUS_MAX 4096

struct tess_nccl_item {
    enum tess_nccl_kind kind;
    enum tess_nccl_class class; /* PCI: its own; NVLINK: of the target */
    int32_t line, parent;       /* parent: item; -1: none */
    int32_t host;               /* from the CPU on down */
    int32_t index;              /* CPU: numaid; GPU, NET: dev, or UNKNOWN */
    int32_t count;              /* NVLINK, C2C: links; PCI: <pci> and <pcilink> below it */
    int32_t sm;                 /* GPU, and PCI without one; 0: unknown */
    enum tess_cpu_maker maker;  /* CPU */
    int32_t model;              /* CPU */
    uint64_t bus;               /* PCI: its own; NVLINK, PCILINK: the target's */
    uint64_t device;            /* PCI: vendor, device, and both of the subsystem, 16 bits each */
    int32_t gfx;                /* GPU of AMD's; 0: unknown */
    double gbs;                 /* PCI: to its parent; NET; C2C; NVLINK: of one, 0: by sm */
    double latency_us;          /* NET */
    struct tess__word name;     /* NET; borrowed from the file's text */
    bool hidden;                /* NVLINK: a VM hides the target */
    int32_t gpu, nic;           /* PCI: its item of that kind; -1 */
    int32_t node;               /* graph: what it became; -1 */
    bool merged;                /* graph: PCI: a part of the switch above it */
};

struct tess_nccl_file {
    const char *name; /* for messages */
    struct tess_nccl_item *item;
    int32_t count;
    int32_t cpu_count, gpu_count, host_count;
    int32_t nvlink_count; /* elements, C2C too */
    uint32_t remarks;     /* enum tess_remark */
    uint64_t *host_hash;  /* [host_count], of room TESS_NCCL_CPUS_MAX */
};

/* Add the items to the topology. TESS_ERR_DATA where there is no device among them. */
enum tess_status tess__nccl_graph(struct tess_nccl_file *file, struct tess_topology *topology);

#endif
