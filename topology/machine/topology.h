/*
 * What a machine or a cluster is made of, as far as it matters to ranks that send to each other:
 * devices, the switches and processors between them, and directed links with a capacity. Read from
 * files of several formats, detected, or described in a line; its users never change it.
 *
 * Link speeds are those of NCCL's model (topology/machine/rates.h), so that figures compare with
 * NCCL's logs.
 */
#ifndef TOPOLOGY_TOPOLOGY_H
#define TOPOLOGY_TOPOLOGY_H

#include "tessera/log.h"
#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tess_node_kind {
    TESS_NODE_DEVICE,   /* a GPU, or a rank's place where there is none */
    TESS_NODE_PCI,      /* PCIe switch */
    TESS_NODE_NVSWITCH, /* all NVSwitches of a host or NVLink domain are one */
    TESS_NODE_CPU,      /* a NUMA node */
    TESS_NODE_NIC,
    TESS_NODE_NET, /* switch of a network, or the network where nothing else is known */
    TESS_NODE_KIND_COUNT
};

enum tess_cpu_maker {
    TESS_CPU_UNKNOWN,
    TESS_CPU_INTEL,
    TESS_CPU_AMD,
    TESS_CPU_ARM,
    TESS_CPU_POWER,
    TESS_CPU_ZHAOXIN
};

#define TESS_TOPO_NAME_MAX 48

struct tess_node {
    enum tess_node_kind kind;
    char name[TESS_TOPO_NAME_MAX]; /* unique in its topology: "gpu0", "n1.numa0", "mlx5_0", "leaf2"
                                    */
    char bus[20];                  /* PCI bus id "0000:17:00.0"; "" */
    int32_t host;                  /* 0 ..; -1: of no host (network) */
    int32_t index;                 /* DEVICE: NVML index on its host; CPU: NUMA id; NIC: net dev */
    int32_t socket;                /* CPU; -1: unknown */
    int32_t sm;                    /* DEVICE: compute capability * 10, 90; 0: unknown */
    enum tess_cpu_maker maker;     /* CPU */
    int32_t model;                 /* CPU */
    int32_t staged; /* DEVICE: 1: no peer-to-peer over PCIe, what it sends goes by way of memory */
};

enum tess_link_kind {
    TESS_LINK_NVLINK, /* also xGMI */
    TESS_LINK_C2C,
    TESS_LINK_PCI,
    TESS_LINK_SYS,   /* between NUMA nodes */
    TESS_LINK_LOCAL, /* inside a package: so wide that it never binds */
    TESS_LINK_NET,
    TESS_LINK_KIND_COUNT
};

/* One direction. */
struct tess_topo_link {
    enum tess_link_kind kind;
    int32_t from, to;  /* nodes */
    double gbs;        /* capacity, 10^9 bytes/s */
    double latency_us; /* 0: unknown */
    int32_t count;     /* NVLINK: links side by side */
};

struct tess_topology {
    struct tess_node *node;
    struct tess_topo_link *link;
    int32_t node_count, link_count;
    int32_t host_count;
    /* The DEVICE nodes, [device_count], host by host and by index: what ranks and rings are numbers
     * of. Filled by tess_topology_finish. */
    int32_t *device;
    int32_t device_count;
    uint32_t remarks; /* enum tess_remark, a bit each */
};

/* What a source leaves open and its reader assumed, and what it lacks. */
enum tess_remark {
    TESS_REMARK_SM = 1,       /* compute capability */
    TESS_REMARK_GFX = 2,      /* generation of AMD's GPUs, which is that of xGMI */
    TESS_REMARK_PCI = 4,      /* generation of PCIe */
    TESS_REMARK_CPU = 8,      /* maker or model of the processors */
    TESS_REMARK_BETWEEN = 16, /* speed between NUMA nodes, by the processors */
    TESS_REMARK_NET = 32,     /* speed of the network */
    TESS_REMARK_DOMAIN = 64,  /* that blocks of hosts are NVLink domains */
    TESS_REMARK_P2P = 128,    /* that GeForces have no peer-to-peer over PCIe */
    /* What is wrong with it: */
    TESS_REMARK_NO_NVLINK = 256, /* no NVLinks in the source, though such GPUs have some */
    TESS_REMARK_UNEVEN = 512     /* fewer NVLinks one way than the other */
};

#define TESS_TOPO_NODES_MAX 262144
#define TESS_TOPO_LINKS_MAX 2097152

/* ---- building (build.c) ---- */

struct tess_topology *tess_topology_new(void);           /* NULL: no memory */
void tess_topology_free(struct tess_topology *topology); /* NULL is allowed */
/* Returns `status`: with TESS_OK the topology in *topology_out, else frees it. */
enum tess_status tess_topology_give(struct tess_topology *topology, enum tess_status status,
                                    struct tess_topology **topology_out);
/* A node without a name, a socket, or what only some kinds have. */
struct tess_node tess_topology_node(enum tess_node_kind kind, int32_t host, int32_t index);
/* TESS_ERR_DATA where a name is defined twice or a limit is passed. *node_out is its number. */
enum tess_status tess_topology_add_node(struct tess_topology *topology,
                                        const struct tess_node *node, int32_t *node_out);
/* The same; its name is printed, cut to the room that a name has. */
TESS_PRINTF(4, 5)
enum tess_status tess_topology_add(struct tess_topology *topology, struct tess_node node,
                                   int32_t *node_out, const char *format, ...);
/* Both directions; an existing link of the same kind grows by this capacity. */
enum tess_status tess_topology_join(struct tess_topology *topology, enum tess_link_kind kind,
                                    int32_t a, int32_t b, double gbs, int32_t count);
enum tess_status tess_topology_join_link(struct tess_topology *topology,
                                         struct tess_topo_link link);
/* One direction. */
enum tess_status tess_topology_add_link(struct tess_topology *topology,
                                        const struct tess_topo_link *link);
/*
 * Everything is there: number the devices, join the NUMA nodes of a host to each other where
 * nothing did (TESS_LINK_SYS by maker and model, LOCAL between NUMA nodes of one socket).
 * TESS_ERR_DATA where there is no device, or one that reaches no other.
 */
enum tess_status tess_topology_finish(struct tess_topology *topology);
/* Keep these devices alone, `keep` [count] numbers into `device`, in that order; what is between
 * them stays. */
enum tess_status tess_topology_select(struct tess_topology *topology, const int32_t *keep,
                                      int32_t count);
/* The node of that name, or with that bus id on a host; -1: none. */
int32_t tess_topology_find_name(const struct tess_topology *topology, const char *name);
int32_t tess_topology_find_bus(const struct tess_topology *topology, int32_t host, const char *bus);
/* Of an xGMI link the architecture of its GPUs whose rate it has, 0x90a; 0: it is none. */
int32_t tess_topology_gfx(const struct tess_topology *topology, const struct tess_topo_link *link);

/* ---- reading (read_*.c) ---- */

enum tess_topology_format {
    TESS_TOPOLOGY_AUTO, /* by what the file looks like */
    TESS_TOPOLOGY_NCCL, /* NCCL's topology XML, rccl's too */
    TESS_TOPOLOGY_HWLOC,
    TESS_TOPOLOGY_SMI,    /* nvidia-smi topo -m, also with topo -p2p */
    TESS_TOPOLOGY_SLURM,  /* topology.conf or .yaml, or scontrol show topology: hosts, switches */
    TESS_TOPOLOGY_YAML,   /* our own */
    TESS_TOPOLOGY_ROCM,   /* rocm-smi --showtopo */
    TESS_TOPOLOGY_LABELS, /* kubectl get nodes -o json or yaml: hosts by labels of their network */
    TESS_TOPOLOGY_FORMAT_COUNT
};

/* Values that files may lack. */
struct tess_topology_options {
    int32_t sm;       /* of devices without one; 0: 80 */
    int32_t pci_gen;  /* of PCIe links without one; 0: 4 */
    int32_t per_host; /* SLURM, LABELS: devices (ranks) of a host; 0: 1, or its label */
    double edge_gbs,
        uplink_gbs; /* SLURM, LABELS: from a host to its switch, between switches; 0: 12.5 */
};

/*
 * A file, finished. Errors are TESS_ERR_DATA, "FILE:LINE: what is wrong, what is expected"; time
 * and memory are bounded by the file's size, which is at most 64 MiB.
 */
enum tess_status tess_topology_read(const char *path, enum tess_topology_format format,
                                    const struct tess_topology_options *options,
                                    struct tess_topology **topology_out);
/* Which format a text is in, by what it looks like: never AUTO. */
enum tess_topology_format tess_topology_guess(const char *text, size_t bytes);
/* The same from memory; `name` is for messages, text [bytes] has no 0 at its end. */
typedef enum tess_status tess_topology_reader(const char *name, const char *text, size_t bytes,
                                              const struct tess_topology_options *options,
                                              struct tess_topology *topology);
tess_topology_reader tess_topology_read_nccl, tess_topology_read_hwloc, tess_topology_read_smi,
    tess_topology_read_slurm, tess_topology_read_yaml, tess_topology_read_rocm,
    tess_topology_read_labels;
/* A line: "node:2 numa:2 switch:2 gpu:4 nvlink:...", outermost first; see synthetic.c. */
enum tess_status tess_topology_synthetic(const char *text,
                                         const struct tess_topology_options *options,
                                         struct tess_topology **topology_out);

/* ---- writing (write_*.c): malloc'd text, the caller's ---- */

enum tess_status tess_topology_write_nccl(const struct tess_topology *topology, int32_t host,
                                          char **text_out);
enum tess_status tess_topology_write_yaml(const struct tess_topology *topology, char **text_out);

#endif
