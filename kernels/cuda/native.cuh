/*
 * What launch.cuh stands on when nvcc compiles: launching, dynamic shared memory and asynchronous
 * copies of the device itself. The emulator of tests/kernels/emulate gives the same names to a host
 * compiler.
 */
#ifndef KERNELS_CUDA_NATIVE_CUH
#define KERNELS_CUDA_NATIVE_CUH

#include "cuda/shared.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

/* A grid without blocks is nothing to do, not an error. */
template <typename... Parameters, typename... Arguments>
static inline cudaError_t cuda_launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                      size_t shared_bytes, cudaStream_t stream,
                                      Arguments... arguments)
{
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return cudaSuccess;
    cudaError_t error = cuda_need_shared(reinterpret_cast<const void *>(kernel), shared_bytes);
    if (error != cudaSuccess)
        return error;
    kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
    return cudaGetLastError();
}

#define CUDA_LAUNCH(...) cuda_launch(__VA_ARGS__)

/* One symbol for all kernels of a file: C++ requires one type of it. */
extern __shared__ __align__(128) unsigned char cuda_shared_bytes[];
#define CUDA_SHARED(type, name) type *const name = reinterpret_cast<type *>(cuda_shared_bytes)

/* 2^x to 2^-22, relatively; 0 below 2^-126 (PTX ISA, "ex2"). The functions of the library handle
 * subnormal results with two instructions more, which would be a tenth of attention's forward. */
static __device__ __forceinline__ float cuda_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

/* Addresses that PTX names shared memory by. */
static __device__ __forceinline__ uint32_t cuda_shared_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

static __device__ __forceinline__ void cuda_copy_async16(void *shared, const void *global,
                                                         bool valid = true)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(cuda_shared_address(shared)),
        "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
        : "memory");
}

static __device__ __forceinline__ void cuda_copy_commit()
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

template <int N> static __device__ __forceinline__ void cuda_copy_wait()
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

#endif
