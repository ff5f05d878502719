/* The launcher of reduce.cu. */
#ifndef KERNELS_CUDA_LAUNCH_REDUCE_H
#define KERNELS_CUDA_LAUNCH_REDUCE_H

#include "tessera/queue.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * tess_queue_ops.reduce on a stream: target[k][i] = tree over source[0 .. n-1][i] for every k < m.
 * source and target are host arrays of device pointers, read before the call returns; the memory
 * may be of other devices that this one reaches. Any dtype; bits as those of communicators on host
 * memory, but for the payload of NaN sums.
 */
cudaError_t tess__cuda_reduce(cudaStream_t stream, enum tess_dtype dtype, enum tess_reduce reduce,
                              int32_t n, const void *const *source, int32_t m, void *const *target,
                              size_t count);

#ifdef __cplusplus
}
#endif
#endif
