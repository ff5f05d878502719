/* Slots of batch_norm.c and pool.c. Contracts: tessera/kernel.h. */
#ifndef KERNELS_CUDA_IMAGE_H
#define KERNELS_CUDA_IMAGE_H

#include "tessera/kernel.h"

enum tess_status tess__cuda_batch_norm_needs(const struct tess_op_desc *desc,
                                             struct tess_op_needs *needs_out);
enum tess_status tess__cuda_batch_norm_forward(struct tess_op *op, const void *x, const void *gamma,
                                               const void *beta, void *y, float *save_mean,
                                               float *save_rstd, float *mean_sum, float *var_sum);
enum tess_status tess__cuda_batch_norm_infer(struct tess_op *op, const void *x, const void *gamma,
                                             const void *beta, const void *mean, const void *var,
                                             void *y);
enum tess_status tess__cuda_batch_norm_backward(struct tess_op *op, const void *x, const void *y,
                                                const void *dy, const void *gamma,
                                                const float *save_mean, const float *save_rstd,
                                                void *dx, float *dgamma, float *dbeta);

/* Of both kinds of pool. */
enum tess_status tess__cuda_pool_needs(const struct tess_op_desc *desc,
                                       struct tess_op_needs *needs_out);
enum tess_status tess__cuda_max_pool_forward(struct tess_op *op, const void *x, void *y,
                                             uint8_t *which);
enum tess_status tess__cuda_max_pool_backward(struct tess_op *op, const void *dy,
                                              const uint8_t *which, void *dx);
enum tess_status tess__cuda_avg_pool_forward(struct tess_op *op, const void *x, void *y);
enum tess_status tess__cuda_avg_pool_backward(struct tess_op *op, const void *dy, void *dx);

#endif
