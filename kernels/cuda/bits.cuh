/*
 * What must have the bits of ref on every device: rounding that keeps a NaN, and Philox. The rules
 * are those of base/half.h and base/rng.h, whose functions a device cannot call; the tests hold the
 * two against each other.
 */
#ifndef KERNELS_CUDA_BITS_CUH
#define KERNELS_CUDA_BITS_CUH

#include "cuda/launch.cuh"

/* To nearest even; a NaN stays one, made quiet, with its sign and its upper payload bits. */
template <typename T> static __device__ __forceinline__ T cuda_narrow(float x);

template <> __device__ __forceinline__ float cuda_narrow<float>(float x)
{
    return x;
}

template <> __device__ __forceinline__ __nv_bfloat16 cuda_narrow<__nv_bfloat16>(float x)
{
    uint32_t quiet = __float_as_uint(x) >> 16 | 0x40u;
    return x != x ? __ushort_as_bfloat16((unsigned short)quiet) : __float2bfloat16_rn(x);
}

template <> __device__ __forceinline__ __half cuda_narrow<__half>(float x)
{
    uint32_t bits = __float_as_uint(x);
    uint32_t quiet = (bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu);
    return x != x ? __ushort_as_half((unsigned short)quiet) : __float2half_rn(x);
}

/* One block of Philox4x32-10 (Salmon et al. 2011, table 2 and section 3.3) with high counter 0. */
static __device__ __forceinline__ uint4 cuda_philox(uint2 key, uint64_t low)
{
    uint32_t c0 = (uint32_t)low, c1 = (uint32_t)(low >> 32), c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ key.x;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ key.y;
        c3 = (uint32_t)p0;
        key.x += 0x9e3779b9u;
        key.y += 0xbb67ae85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

#endif
