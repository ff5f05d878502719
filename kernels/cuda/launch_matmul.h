/* Launcher of matmul.cu. */
#ifndef KERNELS_CUDA_LAUNCH_MATMUL_H
#define KERNELS_CUDA_LAUNCH_MATMUL_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* *differ |= 1 where a and b [bytes], 16-byte aligned, are not the same bits. */
cudaError_t tess__cuda_matmul_differ(cudaStream_t stream, size_t bytes, const void *a,
                                     const void *b, uint32_t *differ);

#ifdef __cplusplus
}
#endif

#endif
