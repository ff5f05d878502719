/* Launchers of norm.cu; contracts: tessera/kernel.h, tess_norm_forward and tess_norm_backward. */
#ifndef KERNELS_CUDA_LAUNCH_NORM_H
#define KERNELS_CUDA_LAUNCH_NORM_H

#include "tessera/tensor.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Widest row: 32 elements for each of 512 threads stay in registers. */
#define TESS__CUDA_NORM_MAX 16384

struct tess__cuda_norm {
    enum tess_dtype dtype;
    int64_t rows, leaf_rows, channels; /* channels 1 .. TESS__CUDA_NORM_MAX */
    bool rms;
    float epsilon;
};

cudaError_t tess__cuda_launch_norm_forward(cudaStream_t stream, const struct tess__cuda_norm *norm,
                                           const void *x, const void *add, void *sum,
                                           const void *gamma, const void *beta, void *y,
                                           float *mean, float *rstd);

/* Scratch of the backward, 16-byte aligned. */
size_t tess__cuda_norm_bytes(const struct tess__cuda_norm *norm);
cudaError_t tess__cuda_launch_norm_backward(cudaStream_t stream, const struct tess__cuda_norm *norm,
                                            const void *x, const void *dy, const void *gamma,
                                            const float *mean, const float *rstd, const void *add,
                                            void *dx, float *dgamma, float *dbeta, void *scratch);

#ifdef __cplusplus
}
#endif

#endif
