/* Launchers of pointwise.cu; what they compute is said at the slots of the same names in
 * tessera/kernel.h. Each returns the launch's error. */
#ifndef KERNELS_CUDA_LAUNCH_POINTWISE_H
#define KERNELS_CUDA_LAUNCH_POINTWISE_H

#include "tessera/tensor.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t tess__cuda_launch_relu_forward(cudaStream_t stream, enum tess_dtype dtype,
                                           int64_t count, const void *x, void *y);
cudaError_t tess__cuda_launch_relu_backward(cudaStream_t stream, enum tess_dtype dtype,
                                            int64_t count, const void *y, const void *dy, void *dx);
cudaError_t tess__cuda_launch_add(cudaStream_t stream, enum tess_dtype dtype, int64_t count,
                                  const void *a, const void *b, void *y);
cudaError_t tess__cuda_launch_accumulate(cudaStream_t stream, int64_t count, float scale,
                                         const float *x, float *y);
cudaError_t tess__cuda_launch_maximum(cudaStream_t stream, int64_t count, const float *x, float *y);

#ifdef __cplusplus
}
#endif
#endif
