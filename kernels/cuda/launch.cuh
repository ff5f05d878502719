/*
 * The primitives of kernels: launches, 16-byte access, conversions, sums over warps and blocks. The
 * same source is compiled by nvcc for the device and, for tests, by a host compiler against the
 * emulator in tests/kernels/emulate; so kernels use these instead of <<<>>>, extern __shared__ and
 * inline assembly. Matrix instructions are in mma.cuh.
 *
 *   CUDA_LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...)
 *       a cudaError_t; raises the limit of dynamic shared memory where the launch needs more
 *   CUDA_SHARED(type, name)
 *       in a kernel: `type *name` is the block's dynamic shared memory, 128-byte aligned
 *   cuda_copy_async16(shared, global[, valid]), cuda_copy_commit(), cuda_copy_wait<N>()
 *       16 bytes from global to shared memory beside the computation (zeros where not valid, and
 *       then global is not read); after wait<N> all groups but the latest N have arrived, for the
 *       thread that copied; others need __syncthreads() after it. Both ends 16-byte aligned
 */
#ifndef KERNELS_CUDA_LAUNCH_CUH
#define KERNELS_CUDA_LAUNCH_CUH

#include "needs/rows.h"
#include "tessera/tensor.h"

#include <math.h>

#ifdef __CUDACC__
#include "cuda/native.cuh"
#else
#include "emulate/native.h"
#endif

#define CUDA_FULL 0xffffffffu /* all lanes of a warp */

/* ---- conversions ---------------------------------------------------------------------------- */

static __device__ __forceinline__ float cuda_to_f32(float x)
{
    return x;
}

static __device__ __forceinline__ float cuda_to_f32(__half x)
{
    return __half2float(x);
}

static __device__ __forceinline__ float cuda_to_f32(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

/* To nearest even. A NaN becomes the device's one NaN: see cuda_narrow() for those that keep it. */
template <typename T> static __device__ __forceinline__ T cuda_from_f32(float x);

template <> __device__ __forceinline__ float cuda_from_f32<float>(float x)
{
    return x;
}

template <> __device__ __forceinline__ __half cuda_from_f32<__half>(float x)
{
    return __float2half_rn(x);
}

template <> __device__ __forceinline__ __nv_bfloat16 cuda_from_f32<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* ---- 16 bytes at a time --------------------------------------------------------------------- */

/* 16 bytes of T: 4 x f32, 8 x f16 or bf16, 16 x byte. Memory it is loaded from and stored to is
 * 16-byte aligned. */
template <typename T> struct alignas(16) cuda_vec {
    static constexpr int count = 16 / (int)sizeof(T);
    T at[count];
};

template <typename T> static __device__ __forceinline__ cuda_vec<T> cuda_load(const T *memory)
{
    cuda_vec<T> v;
    *reinterpret_cast<uint4 *>(v.at) = *reinterpret_cast<const uint4 *>(memory);
    return v;
}

template <typename T>
static __device__ __forceinline__ void cuda_store(T *memory, const cuda_vec<T> &v)
{
    *reinterpret_cast<uint4 *>(memory) = *reinterpret_cast<const uint4 *>(v.at);
}

/* For what is touched once: it is the first to leave the caches. */
template <typename T>
static __device__ __forceinline__ cuda_vec<T> cuda_load_streaming(const T *memory)
{
    cuda_vec<T> v;
    *reinterpret_cast<uint4 *>(v.at) = __ldcs(reinterpret_cast<const uint4 *>(memory));
    return v;
}

/* 8 elements, 16 bytes at a time. */
template <typename T>
static __device__ __forceinline__ void cuda_load8(const T *memory, T (&value)[8])
{
    constexpr int width = cuda_vec<T>::count;
#pragma unroll
    for (int k = 0; k < 8 / width; k++) {
        cuda_vec<T> v = cuda_load(memory + k * width);
#pragma unroll
        for (int e = 0; e < width; e++)
            value[k * width + e] = v.at[e];
    }
}

template <typename T>
static __device__ __forceinline__ void cuda_store8(T *memory, const T (&value)[8])
{
    constexpr int width = cuda_vec<T>::count;
#pragma unroll
    for (int k = 0; k < 8 / width; k++) {
        cuda_vec<T> v;
#pragma unroll
        for (int e = 0; e < width; e++)
            v.at[e] = value[k * width + e];
        cuda_store(memory + k * width, v);
    }
}

/* May `memory` be read and written 16 bytes at a time? Host and device. */
static __host__ __device__ __forceinline__ bool cuda_aligned16(const void *memory)
{
    return (reinterpret_cast<uintptr_t>(memory) & 15u) == 0;
}

/* ---- element types -------------------------------------------------------------------------- */

/* f(T()) with the type T of the dtype: f32, bf16 or f16. */
template <typename F> static inline cudaError_t cuda_by_dtype(enum tess_dtype dtype, F f)
{
    return dtype == TESS_F32    ? f(float())
           : dtype == TESS_BF16 ? f(__nv_bfloat16())
           : dtype == TESS_F16  ? f(__half())
                                : cudaErrorInvalidValue;
}

/* Blocks for `count` things, `each` in a block. */
static inline unsigned cuda_blocks(int64_t count, int64_t each)
{
    return (unsigned)((count + each - 1) / each);
}

/* ---- sums over lanes ------------------------------------------------------------------------ */

/*
 * A butterfly: every lane gets the same bits, in an order that depends on nothing (addition
 * commutes, and each step adds the halves of an aligned group). All 32 lanes take part.
 */
template <typename T> static __device__ __forceinline__ T cuda_warp_sum(T x)
{
#pragma unroll
    for (int step = CUDA_WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(CUDA_FULL, x, step);
    return x;
}

/* Greatest, NaN not propagated: as fmaxf. */
static __device__ __forceinline__ float cuda_warp_max(float x)
{
#pragma unroll
    for (int step = CUDA_WARP / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(CUDA_FULL, x, step));
    return x;
}

static __device__ __forceinline__ int cuda_thread()
{
    return (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

static __device__ __forceinline__ int cuda_lane()
{
    return cuda_thread() % CUDA_WARP;
}

static __device__ __forceinline__ int cuda_warp()
{
    return cuda_thread() / CUDA_WARP;
}

static __device__ __forceinline__ int cuda_warps()
{
    return (int)(blockDim.x * blockDim.y * blockDim.z) / CUDA_WARP;
}

/*
 * Over the block: by warps, whose results are x, then over the warps: fold() is over the lanes of
 * one. All threads call it, whole warps; all get the result.
 * shared: [32] of the block's shared memory, free again on return.
 */
template <typename T, typename Fold>
static __device__ __forceinline__ T cuda_block_fold(T x, T none, T *shared, const Fold &fold)
{
    if (cuda_lane() == 0)
        shared[cuda_warp()] = x;
    __syncthreads();
    x = fold(cuda_lane() < cuda_warps() ? shared[cuda_lane()] : none);
    __syncthreads();
    return x;
}

template <typename T> static __device__ __forceinline__ T cuda_block_sum(T x, T *shared)
{
    return cuda_block_fold(cuda_warp_sum(x), T(0), shared, [](T y) { return cuda_warp_sum(y); });
}

static __device__ __forceinline__ float cuda_block_max(float x, float *shared)
{
    return cuda_block_fold(cuda_warp_max(x), -INFINITY, shared,
                           [](float y) { return cuda_warp_max(y); });
}

#endif
