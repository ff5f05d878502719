/* The CUDA module of a machine that has none: it plans, and computes nothing. */
#ifndef KERNELS_NEEDS_PLANNED_H
#define KERNELS_NEEDS_PLANNED_H

#include "tessera/device.h"

/* Its kernel has the plan-time slots of the backend `cuda`; every other slot of it and of the
 * module fails with a sentence, since there is nothing behind them. */
extern const struct tess_module tess__cuda_planned;

#endif
