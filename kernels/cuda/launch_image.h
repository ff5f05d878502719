/*
 * Launchers of batch_norm.cu and pool.cu; contracts: tessera/kernel.h, tess_batch_norm_forward and
 * what is beside it, tess_max_pool_forward and what follows.
 */
#ifndef KERNELS_CUDA_LAUNCH_IMAGE_H
#define KERNELS_CUDA_LAUNCH_IMAGE_H

#include "tessera/tensor.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tess__cuda_batch_norm {
    enum tess_dtype dtype;
    int64_t leaves, pixels, channels; /* pixels of a leaf: its rows times height times width */
    bool relu;
    float epsilon;
};

/* Scratch of each of the three, 16-byte aligned. */
size_t tess__cuda_batch_norm_bytes(const struct tess__cuda_batch_norm *norm);
cudaError_t tess__cuda_launch_batch_norm_forward(cudaStream_t stream,
                                                 const struct tess__cuda_batch_norm *norm,
                                                 const void *x, const void *gamma, const void *beta,
                                                 void *y, float *save_mean, float *save_rstd,
                                                 float *mean_sum, float *var_sum, void *scratch);
cudaError_t tess__cuda_launch_batch_norm_infer(cudaStream_t stream,
                                               const struct tess__cuda_batch_norm *norm,
                                               const void *x, const void *gamma, const void *beta,
                                               const void *mean, const void *var, void *y,
                                               void *scratch);
cudaError_t tess__cuda_launch_batch_norm_backward(cudaStream_t stream,
                                                  const struct tess__cuda_batch_norm *norm,
                                                  const void *x, const void *y, const void *dy,
                                                  const void *gamma, const float *save_mean,
                                                  const float *save_rstd, void *dx, float *dgamma,
                                                  float *dbeta, void *scratch);

struct tess__cuda_pool {
    enum tess_dtype dtype;
    int64_t images;
    int32_t height, width, channels, out_height, out_width;
    int32_t window, stride, padding;
    bool relu;
};

cudaError_t tess__cuda_launch_max_pool_forward(cudaStream_t stream,
                                               const struct tess__cuda_pool *pool, const void *x,
                                               void *y, uint8_t *which);
cudaError_t tess__cuda_launch_max_pool_backward(cudaStream_t stream,
                                                const struct tess__cuda_pool *pool, const void *dy,
                                                const uint8_t *which, void *dx);
cudaError_t tess__cuda_launch_avg_pool_forward(cudaStream_t stream,
                                               const struct tess__cuda_pool *pool, const void *x,
                                               void *y);
cudaError_t tess__cuda_launch_avg_pool_backward(cudaStream_t stream,
                                                const struct tess__cuda_pool *pool, const void *dy,
                                                void *dx);

#ifdef __cplusplus
}
#endif

#endif
