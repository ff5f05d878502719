/* Launchers of xent.cu; contracts: tessera/kernel.h, tess_xent_max and what follows, and
 * tess_softmax_xent. rows >= 1. */
#ifndef KERNELS_CUDA_LAUNCH_XENT_H
#define KERNELS_CUDA_LAUNCH_XENT_H

#include "tessera/tensor.h"

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Classes [first, first + classes) of rows of `stride`. */
struct tess__cuda_xent {
    enum tess_dtype dtype;
    int64_t rows, classes, stride, first;
};

cudaError_t tess__cuda_launch_xent_max(cudaStream_t stream, const struct tess__cuda_xent *xent,
                                       const void *logits, float *max);
cudaError_t tess__cuda_launch_xent_sum(cudaStream_t stream, const struct tess__cuda_xent *xent,
                                       const void *logits, const int32_t *label, const float *max,
                                       float *sum, float *target, float *best);
cudaError_t tess__cuda_launch_xent_grad(cudaStream_t stream, const struct tess__cuda_xent *xent,
                                        float scale, const void *logits, const int32_t *label,
                                        const float *max, const float *sum, void *dlogits);
cudaError_t tess__cuda_launch_xent_loss(cudaStream_t stream, int64_t rows, int64_t length,
                                        const int32_t *label, const float *max, const float *sum,
                                        const float *target, const float *best, float *loss,
                                        int32_t *correct);
/* first 0, stride = classes; dlogits may be NULL or the logits. */
cudaError_t tess__cuda_launch_softmax_xent(cudaStream_t stream, const struct tess__cuda_xent *xent,
                                           float scale, const void *logits, const int32_t *label,
                                           void *dlogits, float *loss, int32_t *correct);

#ifdef __cplusplus
}
#endif

#endif
