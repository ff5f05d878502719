/*
 * Sums, maxima and minima over several arrays, element by element, in the tree of tessera/comm.h,
 * split at the largest power of two below their number:
 *
 *     n = 11:  (((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))) + ((8 + 9) + 10)
 *
 * A thread takes 16 bytes of each array. Sources are taken in groups of 8, all loads of a group
 * before its first sum: arrays may be behind NVLink. A group is a whole subtree, or the last one.
 * Sums of sums: targets are f32 where sources have 16 bits, then the other way round.
 */
#include "cuda/bits.cuh"
#include "cuda/slots.h"

#include <type_traits>

#define REDUCE_THREADS 256
#define REDUCE_GROUP   8
#define REDUCE_LEVELS  3 /* subtrees that wait at most, of 64 / 8 groups */

/* By value, as the kernel's parameter. vectors: as many as are read and written whole. */
struct reduce_job {
    int64_t vectors, count;
    int32_t n, m;
    const void *source[TESS_QUEUE_PEERS_MAX];
    void *target[TESS_QUEUE_PEERS_MAX];
};

/* What elements of a type are added in: floats of 16 bits in f32. */
template <typename T> struct reduce_wide {
    static constexpr bool half = std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>;
    typedef std::conditional_t<half, float, T> type;

    static __device__ __forceinline__ type widen(T x)
    {
        if constexpr (half)
            return cuda_widen(x);
        else
            return x;
    }

    static __device__ __forceinline__ T narrow(type x)
    {
        if constexpr (half)
            return cuda_narrow<T>(x);
        else
            return x;
    }
};

/* NaN in either stays NaN in maxima and minima. */
template <int REDUCE, typename W> static __device__ __forceinline__ W reduce_pair(W a, W b)
{
    if (REDUCE == TESS_REDUCE_SUM)
        return (W)(a + b);
    if (REDUCE == TESS_REDUCE_MAX)
        return a > b || a != a ? a : b;
    return a < b || a != a ? a : b;
}

/* Signed sums wrap. */
template <> __device__ __forceinline__ int32_t reduce_pair<TESS_REDUCE_SUM>(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a + (uint32_t)b);
}

template <>
__device__ __forceinline__ long long reduce_pair<TESS_REDUCE_SUM>(long long a, long long b)
{
    return (long long)((unsigned long long)a + (unsigned long long)b);
}

/* The tree over value[0 .. n-1], n <= REDUCE_GROUP: neighbours at distance 1, 2, 4; what has no
 * right one waits for the next turn. */
template <int REDUCE, typename W>
static __device__ __forceinline__ W reduce_tree(W (&value)[REDUCE_GROUP], int n)
{
#pragma unroll
    for (int step = 1; step < REDUCE_GROUP; step *= 2)
#pragma unroll
        for (int k = 0; k < REDUCE_GROUP; k += 2 * step)
            if (k + step < n)
                value[k] = reduce_pair<REDUCE>(value[k], value[k + step]);
    return value[0];
}

/* Elements at .. at + V - 1 of sources first .. first + n - 1; V is a vector, or 1. */
template <int REDUCE, typename T, int V, typename W>
static __device__ __forceinline__ void reduce_group(const reduce_job &job, int first, int n,
                                                    int64_t at, W (&sum)[V])
{
    cuda_vec<T> v[REDUCE_GROUP];
#pragma unroll
    for (int k = 0; k < REDUCE_GROUP; k++) {
        if (k < n) {
            const T *source = static_cast<const T *>(job.source[first + k]) + at;
            if (V > 1)
                v[k] = cuda_load(source);
            else
                v[k].at[0] = *source;
        }
    }
#pragma unroll
    for (int e = 0; e < V; e++) {
        W value[REDUCE_GROUP];
#pragma unroll
        for (int k = 0; k < REDUCE_GROUP; k++)
            value[k] = k < n ? reduce_wide<T>::widen(v[k].at[e]) : W(0);
        sum[e] = reduce_tree<REDUCE>(value, n);
    }
}

/* V elements, 16 bytes at a time; 8 where there are no more. */
template <typename T, int V>
static __device__ __forceinline__ void reduce_store(T *target, const T (&value)[V])
{
    if constexpr (V == 1) {
        *target = value[0];
    } else if constexpr (V < cuda_vec<T>::count) {
        *reinterpret_cast<uint2 *>(target) = *reinterpret_cast<const uint2 *>(value);
    } else {
#pragma unroll
        for (int e = 0; e < V; e += cuda_vec<T>::count)
            *reinterpret_cast<uint4 *>(target + e) = *reinterpret_cast<const uint4 *>(value + e);
    }
}

/*
 * The groups as a binary counter: group g, complete, meets as many subtrees that wait as there are
 * ones at the end of g. With one group nothing waits, and nothing leaves the registers.
 */
template <int REDUCE, typename T, typename TO, int V>
static __device__ __forceinline__ void reduce_at(const reduce_job &job, int64_t at)
{
    typedef typename reduce_wide<T>::type W;
    W sum[V], waiting[REDUCE_LEVELS][V];
    int depth = 0;
    reduce_group<REDUCE, T>(job, 0, job.n < REDUCE_GROUP ? job.n : REDUCE_GROUP, at, sum);
    for (int g = 1; g * REDUCE_GROUP < job.n; g++) {
        for (int e = 0; e < V; e++)
            waiting[depth][e] = sum[e];
        depth++;
        const int rest = job.n - g * REDUCE_GROUP;
        reduce_group<REDUCE, T>(job, g * REDUCE_GROUP, rest < REDUCE_GROUP ? rest : REDUCE_GROUP,
                                at, sum);
        for (int ones = g; ones & 1; ones >>= 1) {
            depth--;
            for (int e = 0; e < V; e++)
                sum[e] = reduce_pair<REDUCE>(waiting[depth][e], sum[e]);
        }
    }
    while (depth > 0) {
        depth--;
        for (int e = 0; e < V; e++)
            sum[e] = reduce_pair<REDUCE>(waiting[depth][e], sum[e]);
    }
    alignas(16) TO result[V];
#pragma unroll
    for (int e = 0; e < V; e++)
        result[e] = reduce_wide<TO>::narrow(sum[e]);
    for (int k = 0; k < job.m; k++)
        reduce_store(static_cast<TO *>(job.target[k]) + at, result);
}

/* A thread per vector, then one per element that is left. */
template <int REDUCE, typename T, typename TO>
__global__ void __launch_bounds__(REDUCE_THREADS)
    reduce_kernel(const __grid_constant__ reduce_job job)
{
    constexpr int width = cuda_vec<T>::count;
    int64_t i = (int64_t)blockIdx.x * REDUCE_THREADS + threadIdx.x;
    if (i < job.vectors)
        reduce_at<REDUCE, T, TO, width>(job, i * width);
    else if (job.vectors * width + (i - job.vectors) < job.count)
        reduce_at<REDUCE, T, TO, 1>(job, job.vectors * width + (i - job.vectors));
}

template <int REDUCE, typename T, typename TO = T>
static cudaError_t reduce_launch(cudaStream_t stream, reduce_job *job)
{
    constexpr int width = cuda_vec<T>::count;
    bool aligned = true;
    for (int k = 0; k < job->n; k++)
        aligned = aligned && cuda_aligned16(job->source[k]);
    for (int k = 0; k < job->m; k++)
        aligned = aligned && cuda_aligned16(job->target[k]);
    job->vectors = aligned ? job->count / width : 0;
    int64_t threads = job->vectors + (job->count - job->vectors * width);
    return CUDA_LAUNCH(reduce_kernel<REDUCE, T, TO>, cuda_blocks(threads, REDUCE_THREADS),
                       REDUCE_THREADS, 0, stream, *job);
}

template <int REDUCE>
static cudaError_t reduce_any(cudaStream_t stream, enum tess_dtype dtype, reduce_job *job)
{
    switch (dtype) {
    case TESS_F64:
        return reduce_launch<REDUCE, double>(stream, job);
    case TESS_I32:
        return reduce_launch<REDUCE, int32_t>(stream, job);
    case TESS_I64:
        return reduce_launch<REDUCE, long long>(stream, job);
    case TESS_U8:
        return reduce_launch<REDUCE, uint8_t>(stream, job);
    default:
        return cuda_by_dtype(
            dtype, [&](auto type) { return reduce_launch<REDUCE, decltype(type)>(stream, job); });
    }
}

/* Between f32 and 16 bits. */
static cudaError_t reduce_between(cudaStream_t stream, enum tess_dtype dtype, enum tess_dtype to,
                                  reduce_job *job)
{
    if (dtype == TESS_BF16 && to == TESS_F32)
        return reduce_launch<TESS_REDUCE_SUM, __nv_bfloat16, float>(stream, job);
    if (dtype == TESS_F16 && to == TESS_F32)
        return reduce_launch<TESS_REDUCE_SUM, __half, float>(stream, job);
    if (dtype == TESS_F32 && to == TESS_BF16)
        return reduce_launch<TESS_REDUCE_SUM, float, __nv_bfloat16>(stream, job);
    if (dtype == TESS_F32 && to == TESS_F16)
        return reduce_launch<TESS_REDUCE_SUM, float, __half>(stream, job);
    return cudaErrorInvalidValue;
}

cudaError_t tess__cuda_reduce(cudaStream_t stream, enum tess_dtype dtype, enum tess_dtype to,
                              enum tess_reduce reduce, int32_t n, const void *const *source,
                              int32_t m, void *const *target, size_t count)
{
    if (n < 1 || n > TESS_QUEUE_PEERS_MAX || m < 0 || m > TESS_QUEUE_PEERS_MAX)
        return cudaErrorInvalidValue;
    reduce_job job = {};
    job.count = (int64_t)count;
    job.n = n;
    job.m = m;
    for (int32_t k = 0; k < n; k++)
        job.source[k] = source[k];
    for (int32_t k = 0; k < m; k++)
        job.target[k] = target[k];
    if (to != dtype)
        return reduce == TESS_REDUCE_SUM ? reduce_between(stream, dtype, to, &job)
                                         : cudaErrorInvalidValue;
    return reduce == TESS_REDUCE_SUM   ? reduce_any<TESS_REDUCE_SUM>(stream, dtype, &job)
           : reduce == TESS_REDUCE_MAX ? reduce_any<TESS_REDUCE_MAX>(stream, dtype, &job)
                                       : reduce_any<TESS_REDUCE_MIN>(stream, dtype, &job);
}
