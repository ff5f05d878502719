/* Launchers of cast.cu and random.cu; what they compute is said at the slots of the same names in
 * tessera/kernel.h. `stream` keys are those of Philox. Each returns the launch's error. */
#ifndef KERNELS_CUDA_LAUNCH_CAST_H
#define KERNELS_CUDA_LAUNCH_CAST_H

#include "tessera/tensor.h"

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* from and to differ. */
cudaError_t tess__cuda_launch_cast(cudaStream_t stream, int64_t count, enum tess_dtype from,
                                   const void *x, enum tess_dtype to, void *y);
cudaError_t tess__cuda_launch_cast_stochastic(cudaStream_t stream, int64_t count, const float *x,
                                              enum tess_dtype to, const uint32_t key[2],
                                              uint64_t first, void *y);
/* Words whose top 24 bits are below `limit` are dropped, the others' elements divided. */
cudaError_t tess__cuda_launch_dropout(cudaStream_t stream, enum tess_dtype dtype, int64_t count,
                                      uint32_t limit, float divisor, const uint32_t key[2],
                                      uint64_t first, const void *x, void *y);
cudaError_t tess__cuda_launch_normal(cudaStream_t stream, const uint32_t key[2], uint64_t first,
                                     int64_t count, float mean, float deviation, float *y);

#ifdef __cplusplus
}
#endif
#endif
