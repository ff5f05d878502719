/*
 * What must have the bits of ref on every device: conversions that keep a NaN, stochastic rounding
 * and Philox. The rules are those of base/half.h, ref/stochastic.h and base/rng.h, whose functions
 * a device cannot call; the tests hold the two against each other.
 */
#ifndef KERNELS_CUDA_BITS_CUH
#define KERNELS_CUDA_BITS_CUH

#include "cuda/launch.cuh"

/* ---- conversions: a NaN stays one, made quiet, with its sign and its upper payload bits ---- */

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

template <> __device__ __forceinline__ double cuda_narrow<double>(float x)
{
    uint64_t bits = __float_as_uint(x);
    uint64_t quiet = (bits >> 31) << 63 | 0x7ff8000000000000u | (bits & 0x7fffffu) << 29;
    return x != x ? __longlong_as_double((long long)quiet) : (double)x;
}

static __device__ __forceinline__ float cuda_widen(float x)
{
    return x;
}

static __device__ __forceinline__ float cuda_widen(__nv_bfloat16 x)
{
    return __uint_as_float((uint32_t)__bfloat16_as_ushort(x) << 16);
}

static __device__ __forceinline__ float cuda_widen(__half x)
{
    uint32_t bits = __half_as_ushort(x);
    uint32_t quiet = (bits & 0x8000u) << 16 | 0x7fc00000u | (bits & 0x3ffu) << 13;
    return (bits & 0x7fffu) > 0x7c00u ? __uint_as_float(quiet) : __half2float(x);
}

static __device__ __forceinline__ float cuda_widen(double x)
{
    uint64_t bits = (uint64_t)__double_as_longlong(x);
    uint32_t quiet =
        (uint32_t)(bits >> 63) << 31 | 0x7fc00000u | ((uint32_t)(bits >> 29) & 0x3fffffu);
    return x != x ? __uint_as_float(quiet) : __double2float_rn(x);
}

/* f64 to f32 rounded to odd: on the way to a narrower type, so that the result is rounded once
 * (Boldo and Melquiond 2008). */
static __device__ __forceinline__ float cuda_widen_odd(double x)
{
    float nearest = cuda_widen(x);
    double back = (double)nearest;
    double over = x < 0 ? x - back : back - x; /* > 0: rounded away from zero; NaN: neither */
    uint32_t bits = __float_as_uint(nearest);
    return __uint_as_float((bits - (over > 0 ? 1u : 0u)) | (over > 0 || over < 0 ? 1u : 0u));
}

/* ---- stochastic rounding: what is cut off, plus as many bits of a random word ------------- */

template <typename T> static __device__ __forceinline__ T cuda_stochastic(float x, uint32_t word);

template <>
__device__ __forceinline__ __nv_bfloat16 cuda_stochastic<__nv_bfloat16>(float x, uint32_t word)
{
    uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    uint32_t even = 0x7fffu + (bits >> 16 & 1u); /* without a finite neighbour above */
    uint32_t carried = (bits + (magnitude > 0x7f7f0000u ? even : word & 0xffffu)) >> 16;
    uint32_t quiet = bits >> 16 | 0x40u;
    return __ushort_as_bfloat16((unsigned short)(magnitude > 0x7f800000u ? quiet : carried));
}

template <> __device__ __forceinline__ __half cuda_stochastic<__half>(float x, uint32_t word)
{
    uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x477fe000u) /* above 65504 */
        return cuda_narrow<__half>(x);
    uint32_t rounded;
    if (magnitude >= 0x38800000u) {
        rounded = (magnitude - (112u << 23) + (word & 0x1fffu)) >> 13;
    } else { /* subnormal: a multiple of 2^-24; at most 31 bits are compared */
        uint32_t cut = 126u - (magnitude >> 23), lost = cut > 31 ? cut - 31 : 0, kept = cut - lost;
        uint32_t fraction = ((magnitude & 0x7fffffu) | 0x800000u) >> (lost < 31 ? lost : 31);
        rounded = (fraction + (word & ((1u << kept) - 1))) >> kept;
    }
    return __ushort_as_half((unsigned short)((bits >> 16 & 0x8000u) | rounded));
}

/* ---- random words --------------------------------------------------------------------------- */

/* One block of Philox4x32-10 (Salmon et al. 2011, table 2 and section 3.3). */
static __device__ __forceinline__ uint4 cuda_philox(uint2 key, uint64_t low, uint64_t high = 0)
{
    uint32_t c0 = (uint32_t)low, c1 = (uint32_t)(low >> 32);
    uint32_t c2 = (uint32_t)high, c3 = (uint32_t)(high >> 32);
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

/* Words `first` .. first + 7 of a stream: word i is word i % 4 of block i / 4. */
static __device__ __forceinline__ void cuda_words8(uint2 key, uint64_t first, uint32_t (&word)[8])
{
    uint32_t phase = (uint32_t)first & 3u; /* the same for all threads of a launch */
    uint4 a = cuda_philox(key, first / 4), b = cuda_philox(key, first / 4 + 1);
    uint32_t all[12] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    if (phase != 0) {
        uint4 c = cuda_philox(key, first / 4 + 2);
        all[8] = c.x;
        all[9] = c.y;
        all[10] = c.z;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        word[j] = phase == 0   ? all[j]
                  : phase == 1 ? all[j + 1]
                  : phase == 2 ? all[j + 2]
                               : all[j + 3];
}

#endif
