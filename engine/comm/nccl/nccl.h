/* Communicators between devices, by NCCL; see nccl.c. */
#ifndef KERNELS_CUDA_NCCL_H
#define KERNELS_CUDA_NCCL_H

#include "comm/world.h"
#include "tessera/device.h"

/*
 * One rank on each device, which the calling thread has selected (cudaSetDevice). Collective over
 * boot, which may be closed afterwards. world: of all these ranks where they are on one host, or of
 * this process alone, for messages and to learn of failures; may be NULL. timeout_s: how long ranks
 * wait for each other, at set-up and later. TESS_ERR_UNSUPPORTED for a library older than 2.22, or
 * than what is chosen.
 */
enum tess_status tess__nccl_open(const struct tess_boot *boot, struct tess_world *world,
                                 enum tess_order order, double timeout_s,
                                 const struct tess_comm_choices *choices,
                                 struct tess_comm **comm_out);

#endif
