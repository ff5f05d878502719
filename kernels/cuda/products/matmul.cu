/* Comparing two results bit for bit where they lie: they may be hundreds of MiB, and are compared
 * for every shape while a run starts. */
#include "cuda/launch.cuh"
#include "cuda/slots.h"

#define MATMUL_THREADS 256
#define MATMUL_BLOCKS  4096 /* then threads take several pieces */

static __global__ void __launch_bounds__(MATMUL_THREADS)
    matmul_differ(int64_t bytes, const uint8_t *a, const uint8_t *b, uint32_t *differ)
{
    const int64_t first = blockIdx.x * (int64_t)MATMUL_THREADS + cuda_thread();
    const int64_t step = gridDim.x * (int64_t)MATMUL_THREADS, pieces = bytes / 16;
    uint32_t other = 0;
    for (int64_t i = first; i < pieces; i += step) {
        const cuda_vec<uint32_t> p = cuda_load(reinterpret_cast<const uint32_t *>(a) + i * 4);
        const cuda_vec<uint32_t> q = cuda_load(reinterpret_cast<const uint32_t *>(b) + i * 4);
#pragma unroll
        for (int j = 0; j < 4; j++)
            other |= p.at[j] ^ q.at[j];
    }
    for (int64_t i = pieces * 16 + first; i < bytes; i += step)
        other |= (uint32_t)(a[i] ^ b[i]);
    if (__any_sync(CUDA_FULL, other != 0) && cuda_lane() == 0)
        atomicOr(differ, 1u);
}

cudaError_t tess__cuda_matmul_differ(cudaStream_t stream, size_t bytes, const void *a,
                                     const void *b, uint32_t *differ)
{
    if (!cuda_aligned16(a) || !cuda_aligned16(b))
        return cudaErrorInvalidValue;
    const size_t blocks = (bytes / 16 + MATMUL_THREADS) / MATMUL_THREADS;
    return CUDA_LAUNCH(matmul_differ, (unsigned)(blocks < MATMUL_BLOCKS ? blocks : MATMUL_BLOCKS),
                       MATMUL_THREADS, 0, stream, bytes, a, b, differ);
}
