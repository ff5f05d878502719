/* Launchers of activation.cu; what they compute is said at the slots of the same names in
 * tessera/kernel.h. Each returns the launch's error. */
#ifndef KERNELS_CUDA_LAUNCH_ACTIVATION_H
#define KERNELS_CUDA_LAUNCH_ACTIVATION_H

#include "tessera/tensor.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t tess__cuda_launch_gelu_forward(cudaStream_t stream, enum tess_dtype dtype,
                                           int64_t count, const void *x, void *y);
cudaError_t tess__cuda_launch_gelu_backward(cudaStream_t stream, enum tess_dtype dtype,
                                            int64_t count, const void *x, const void *dy, void *dx);
cudaError_t tess__cuda_launch_swiglu_forward(cudaStream_t stream, enum tess_dtype dtype,
                                             int64_t count, const void *gate, const void *up,
                                             void *y);
cudaError_t tess__cuda_launch_swiglu_backward(cudaStream_t stream, enum tess_dtype dtype,
                                              int64_t count, const void *gate, const void *up,
                                              const void *dy, void *dgate, void *dup);
cudaError_t tess__cuda_launch_rope(cudaStream_t stream, enum tess_dtype dtype, int64_t rows,
                                   int64_t length, int64_t first, int32_t heads, int64_t head_size,
                                   int64_t row_stride, float base, bool inverse, void *x);

#ifdef __cplusplus
}
#endif
#endif
