/* Conversions of whole arrays: tess_cast among f32, bf16, f16 and f64, and stochastic rounding.
 * Both have the bits of ref; what becomes of one element is in bits.cuh. */
#include "cuda/bits.cuh"
#include "cuda/plain/launch_plain.h"

#define CAST_THREADS 256
#define CAST_WIDTH   8 /* elements per thread: one to four accesses of 16 bytes on either side */

/* CAST_WIDTH elements, 16 bytes at a time. */
template <typename T>
static __device__ __forceinline__ void cast_load(const T *x, T (&value)[CAST_WIDTH])
{
    constexpr int width = cuda_vec<T>::count;
#pragma unroll
    for (int k = 0; k < CAST_WIDTH / width; k++) {
        cuda_vec<T> v = cuda_load(x + k * width);
#pragma unroll
        for (int e = 0; e < width; e++)
            value[k * width + e] = v.at[e];
    }
}

template <typename T>
static __device__ __forceinline__ void cast_store(T *y, const T (&value)[CAST_WIDTH])
{
    constexpr int width = cuda_vec<T>::count;
#pragma unroll
    for (int k = 0; k < CAST_WIDTH / width; k++) {
        cuda_vec<T> v;
#pragma unroll
        for (int e = 0; e < width; e++)
            v.at[e] = value[k * width + e];
        cuda_store(y + k * width, v);
    }
}

template <typename From, typename To> static __device__ __forceinline__ To cast_element(From x)
{
    return cuda_narrow<To>(cuda_widen(x));
}

template <> __device__ __forceinline__ __nv_bfloat16 cast_element<double, __nv_bfloat16>(double x)
{
    return cuda_narrow<__nv_bfloat16>(cuda_widen_odd(x));
}

template <> __device__ __forceinline__ __half cast_element<double, __half>(double x)
{
    return cuda_narrow<__half>(cuda_widen_odd(x));
}

/* A thread's eight elements, all or, at the end and where arrays are not aligned, one by one. */
template <typename From, typename To>
__global__ void __launch_bounds__(CAST_THREADS)
    cast_kernel(int64_t count, const From *x, To *y, bool aligned)
{
    int64_t first = ((int64_t)blockIdx.x * CAST_THREADS + threadIdx.x) * CAST_WIDTH;
    if (aligned && first + CAST_WIDTH <= count) {
        From from[CAST_WIDTH];
        To to[CAST_WIDTH];
        cast_load(x + first, from);
#pragma unroll
        for (int e = 0; e < CAST_WIDTH; e++)
            to[e] = cast_element<From, To>(from[e]);
        cast_store(y + first, to);
        return;
    }
    for (int64_t i = first; i < first + CAST_WIDTH && i < count; i++)
        y[i] = cast_element<From, To>(x[i]);
}

template <typename To>
__global__ void __launch_bounds__(CAST_THREADS)
    cast_stochastic_kernel(int64_t count, const float *x, uint2 key, uint64_t start, To *y,
                           bool aligned)
{
    int64_t first = ((int64_t)blockIdx.x * CAST_THREADS + threadIdx.x) * CAST_WIDTH;
    if (first >= count)
        return;
    uint32_t word[CAST_WIDTH];
    cuda_words8(key, start + (uint64_t)first, word);
    if (aligned && first + CAST_WIDTH <= count) {
        float from[CAST_WIDTH];
        To to[CAST_WIDTH];
        cast_load(x + first, from);
#pragma unroll
        for (int e = 0; e < CAST_WIDTH; e++)
            to[e] = cuda_stochastic<To>(from[e], word[e]);
        cast_store(y + first, to);
        return;
    }
#pragma unroll
    for (int e = 0; e < CAST_WIDTH; e++)
        if (first + e < count)
            y[first + e] = cuda_stochastic<To>(x[first + e], word[e]);
}

static unsigned cast_blocks(int64_t count)
{
    return (unsigned)((count + CAST_THREADS * CAST_WIDTH - 1) / (CAST_THREADS * CAST_WIDTH));
}

template <typename From, typename To>
static cudaError_t cast_launch(cudaStream_t stream, int64_t count, const void *x, void *y)
{
    return CUDA_LAUNCH(cast_kernel<From, To>, cast_blocks(count), CAST_THREADS, 0, stream, count,
                       (const From *)x, (To *)y, cuda_aligned16(x) && cuda_aligned16(y));
}

template <typename From>
static cudaError_t cast_from(cudaStream_t stream, int64_t count, const void *x, enum tess_dtype to,
                             void *y)
{
    switch (to) {
    case TESS_F32:
        return cast_launch<From, float>(stream, count, x, y);
    case TESS_BF16:
        return cast_launch<From, __nv_bfloat16>(stream, count, x, y);
    case TESS_F16:
        return cast_launch<From, __half>(stream, count, x, y);
    case TESS_F64:
        return cast_launch<From, double>(stream, count, x, y);
    default:
        return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t tess__cuda_launch_cast(cudaStream_t stream, int64_t count,
                                              enum tess_dtype from, const void *x,
                                              enum tess_dtype to, void *y)
{
    switch (from) {
    case TESS_F32:
        return cast_from<float>(stream, count, x, to, y);
    case TESS_BF16:
        return cast_from<__nv_bfloat16>(stream, count, x, to, y);
    case TESS_F16:
        return cast_from<__half>(stream, count, x, to, y);
    case TESS_F64:
        return cast_from<double>(stream, count, x, to, y);
    default:
        return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t tess__cuda_launch_cast_stochastic(cudaStream_t stream, int64_t count,
                                                         const float *x, enum tess_dtype to,
                                                         const uint32_t key[2], uint64_t first,
                                                         void *y)
{
    bool aligned = cuda_aligned16(x) && cuda_aligned16(y);
    uint2 words = make_uint2(key[0], key[1]);
    if (to == TESS_BF16)
        return CUDA_LAUNCH(cast_stochastic_kernel<__nv_bfloat16>, cast_blocks(count), CAST_THREADS,
                           0, stream, count, x, words, first, (__nv_bfloat16 *)y, aligned);
    if (to == TESS_F16)
        return CUDA_LAUNCH(cast_stochastic_kernel<__half>, cast_blocks(count), CAST_THREADS, 0,
                           stream, count, x, words, first, (__half *)y, aligned);
    return cudaErrorInvalidValue;
}
