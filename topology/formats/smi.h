/* The matrix of `nvidia-smi topo -m`, between its reader, read_smi.c, and its graph, smi_graph.c;
 * read_rocm.c makes one of what rocm-smi prints. */
#ifndef TOPOLOGY_SMI_H
#define TOPOLOGY_SMI_H

#include "topology/formats/lines.h"

/* Most columns are ports of NICs. */
#define TESS__SMI_MAX 256

enum tess__smi_kind {
    TESS__SMI_UNKNOWN, /* a row that is not there */
    TESS__SMI_SELF,
    TESS__SMI_NVLINK,
    TESS__SMI_PIX, /* from here on wider circles, each contains the ones before */
    TESS__SMI_PXB,
    TESS__SMI_PHB,
    TESS__SMI_NODE,
    TESS__SMI_SYS
};

struct tess__smi_cell {
    uint8_t kind;
    uint8_t links; /* NVLINK */
};

struct tess__smi_entry {
    char name[TESS_TOPO_NAME_MAX]; /* as in the header: "GPU0", "NIC0", "mlx5_0" */
    bool gpu;
    int32_t number;             /* of a GPU: its index; of a NIC: which one, from 0 */
    int32_t line;               /* of its row; 0: none */
    int32_t numa;               /* -1: unknown */
    char bus[20];               /* of a GPU; "": unknown */
    int32_t pci_gen, pci_lanes; /* of its link; 0: unknown */
    bool staged;                /* a GPU without peer-to-peer over PCIe */
    struct tess__word cpus;     /* the column "CPU Affinity"; length 0: unknown */
};

struct tess__smi {
    const char *name; /* for messages */
    int32_t count;
    struct tess__smi_entry *entry; /* [count] */
    struct tess__smi_cell *cell;   /* [count * count] */
    int32_t gfx;                   /* of all GPUs, which are AMD's then; 0: NVIDIA's */
    int32_t sm;                    /* of all GPUs; 0: AMD's */
    bool sm_known;                 /* by options, text or name: not only assumed */
    int32_t pci_gen;
};

/* smi_query.c: what the text of nvidia-smi -q, if there is one in `text`, has of the GPUs. */
enum tess_status tess__smi_query(struct tess__smi *smi, struct tess__word text);
/* All nodes and links; finished. */
enum tess_status tess__smi_build(const struct tess__smi *smi, struct tess_topology *topology);

#endif
