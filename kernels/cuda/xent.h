/* Slots of xent.c. Contracts: tessera/kernel.h. */
#ifndef KERNELS_CUDA_XENT_H
#define KERNELS_CUDA_XENT_H

#include "tessera/kernel.h"

void tess__cuda_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t classes, int64_t stride, const void *logits, float *max);
void tess__cuda_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t classes, int64_t stride, int64_t first, const void *logits,
                         const int32_t *label, const float *max, float *sum, float *target,
                         float *best);
void tess__cuda_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                          int64_t classes, int64_t stride, int64_t first, float scale,
                          const void *logits, const int32_t *label, const float *max,
                          const float *sum, void *dlogits);
void tess__cuda_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length,
                          const int32_t *label, const float *max, const float *sum,
                          const float *target, const float *best, float *loss, int32_t *correct);
void tess__cuda_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                             int64_t classes, float scale, const void *logits, const int32_t *label,
                             void *dlogits, float *loss, int32_t *correct);

#endif
