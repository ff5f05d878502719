/* Which rings NCCL would choose by itself on one host: a model of its search. */
#ifndef TESSERA_TOPOLOGY_RINGS_NCCL_CHOICE_H
#define TESSERA_TOPOLOGY_RINGS_NCCL_CHOICE_H

#include "topology/machine/route.h"

#define TESS__NCCL_DEVICES  16
#define TESS__NCCL_CHANNELS 32

struct tess__nccl_choice {
    int32_t channels; /* 0: not known */
    double speed;     /* GB/s of each */
    int32_t order[TESS__NCCL_CHANNELS][TESS__NCCL_DEVICES];
};

/*
 * The choice for all devices of the topology that `routes` are of. Filled where the model is sure
 * enough: one host, 2 to TESS__NCCL_DEVICES NVIDIA GPUs, and no NVLinks between NUMA nodes beside
 * PCIe; else, and for zeroed routes, of no channels. TESS_ERR_MEMORY.
 */
enum tess_status tess__nccl_choose(const struct tess_routes *routes,
                                   struct tess__nccl_choice *choice_out);

#endif
