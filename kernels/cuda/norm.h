/* Slots of norm.c. Contracts: tessera/kernel.h. */
#ifndef KERNELS_CUDA_NORM_H
#define KERNELS_CUDA_NORM_H

#include "tessera/kernel.h"

enum tess_status tess__cuda_norm_needs(const struct tess_op_desc *desc,
                                       struct tess_op_needs *needs_out);
enum tess_status tess__cuda_norm_forward(struct tess_op *op, const void *x, const void *add,
                                         void *sum, const void *gamma, const void *beta, void *y,
                                         float *mean, float *rstd);
enum tess_status tess__cuda_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                          const void *gamma, const float *mean, const float *rstd,
                                          const void *add, void *dx, float *dgamma, float *dbeta);

#endif
