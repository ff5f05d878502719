#include "device/madeup/launch.h"

#include "cuda/launch.cuh"

__global__ void nothing_kernel(int)
{
}

cudaError_t launch_nothing(cudaStream_t stream, unsigned blocks_x, unsigned blocks_y,
                           unsigned threads_x, unsigned threads_z, size_t shared_bytes)
{
    return CUDA_LAUNCH(nothing_kernel, dim3(blocks_x, blocks_y, 1), dim3(threads_x, 1, threads_z),
                       shared_bytes, stream, 0);
}

static __global__ void static_kernel(int)
{
    __shared__ volatile float at[LAUNCH_STATIC / sizeof(float)];
    at[cuda_thread()] = at[LAUNCH_STATIC / sizeof(float) - 1] = 0;
}

cudaError_t launch_static(cudaStream_t stream, size_t shared_bytes)
{
    return CUDA_LAUNCH(static_kernel, 1, 32, shared_bytes, stream, 0);
}

const void *launch_static_kernel(void)
{
    return reinterpret_cast<const void *>(static_kernel);
}

const void *launch_kernel(void)
{
    return reinterpret_cast<const void *>(nothing_kernel);
}
