/* The backend `guard`: ref, with device memory that host code cannot touch unnoticed. */
#ifndef KERNELS_GUARD_GUARD_H
#define KERNELS_GUARD_GUARD_H

#include "tessera/kernel.h"

extern const struct tess_kernel_ops tess_kernel_guard;
extern const struct tess_kernel_ops tess_kernel_guard_queue; /* far memory, lazy queues */

#endif
