/*
 * Launchers of sums.cu: what is found out about whole arrays; what they compute is said at the
 * slots of the same names in tessera/kernel.h. All results are integers or in a fixed order, so
 * that their bits do not depend on the launch. Each returns the launch's error.
 */
#ifndef KERNELS_CUDA_LAUNCH_SUMS_H
#define KERNELS_CUDA_LAUNCH_SUMS_H

#include "tessera/update.h"

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t tess__cuda_launch_square_sum(cudaStream_t stream, int64_t count, float scale,
                                         const float *x, struct tess_sum *sum);
/* found: device memory; becomes the index of the first NaN or infinity, -1 when there is none. */
cudaError_t tess__cuda_launch_find_nonfinite(cudaStream_t stream, enum tess_dtype dtype,
                                             int64_t count, const void *x, int64_t *found);
cudaError_t tess__cuda_launch_find_flag(cudaStream_t stream, int64_t count, const float *x,
                                        int32_t flag, struct tess_verdict *verdict);
/* scratch: 8 bytes of device memory. */
cudaError_t tess__cuda_launch_count_zeros(cudaStream_t stream, enum tess_dtype dtype, int64_t count,
                                          const void *x, double *sum, int64_t *scratch);
cudaError_t tess__cuda_launch_leaf_sum(cudaStream_t stream, int64_t leaves, int64_t leaf_rows,
                                       const float *loss, const int32_t *correct, double *sum,
                                       struct tess_verdict *verdict);

#ifdef __cplusplus
}
#endif
#endif
