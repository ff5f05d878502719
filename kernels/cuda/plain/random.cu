/*
 * What is made of random numbers by counter (base/rng.h): dropout and normals. The bits are those
 * of ref on every layout. Keys are made by the host.
 */
#include "cuda/bits.cuh"
#include "cuda/plain/launch_plain.h"

#define RANDOM_THREADS 256
#define RANDOM_WIDTH   8 /* words of two blocks of Philox */

/* ---- dropout -------------------------------------------------------------------------------- */

/* The rule of ref/mask.h. Division, not a product with the reciprocal: ref divides. */
template <typename T>
static __device__ __forceinline__ T random_drop(T x, uint32_t word, uint32_t limit, float divisor)
{
    return cuda_narrow<T>(word >> 8 >= limit ? __fdiv_rn(cuda_widen(x), divisor) : 0.0f);
}

template <typename T>
__global__ void __launch_bounds__(RANDOM_THREADS)
    random_dropout(int64_t count, uint32_t limit, float divisor, uint2 key, uint64_t start,
                   const T *x, T *y, bool aligned)
{
    constexpr int width = cuda_vec<T>::count;
    int64_t first = ((int64_t)blockIdx.x * RANDOM_THREADS + threadIdx.x) * RANDOM_WIDTH;
    if (first >= count)
        return;
    uint32_t word[RANDOM_WIDTH];
    cuda_words8(key, start + (uint64_t)first, word);
    if (aligned && first + RANDOM_WIDTH <= count) {
        cuda_vec<T> v[RANDOM_WIDTH / width];
#pragma unroll
        for (int k = 0; k < RANDOM_WIDTH / width; k++)
            v[k] = cuda_load(x + first + k * width);
#pragma unroll
        for (int k = 0; k < RANDOM_WIDTH / width; k++) {
#pragma unroll
            for (int e = 0; e < width; e++)
                v[k].at[e] = random_drop(v[k].at[e], word[k * width + e], limit, divisor);
            cuda_store(y + first + k * width, v[k]);
        }
        return;
    }
#pragma unroll
    for (int e = 0; e < RANDOM_WIDTH; e++)
        if (first + e < count)
            y[first + e] = random_drop(x[first + e], word[e], limit, divisor);
}

static unsigned random_blocks(int64_t count)
{
    return (unsigned)((count + RANDOM_THREADS * RANDOM_WIDTH - 1) /
                      (RANDOM_THREADS * RANDOM_WIDTH));
}

extern "C" cudaError_t tess__cuda_launch_dropout(cudaStream_t stream, enum tess_dtype dtype,
                                                 int64_t count, uint32_t limit, float divisor,
                                                 const uint32_t key[2], uint64_t first,
                                                 const void *x, void *y)
{
    return cuda_by_dtype(dtype, [&](auto type) {
        typedef typename decltype(type)::type T;
        return CUDA_LAUNCH(random_dropout<T>, random_blocks(count), RANDOM_THREADS, 0, stream,
                           count, limit, divisor, make_uint2(key[0], key[1]), first, (const T *)x,
                           (T *)y, cuda_aligned16(x) && cuda_aligned16(y));
    });
}

/* ---- normals -------------------------------------------------------------------------------- */

/* ln((word + 1) / 2^32), operation by operation as base/rng.c has it, each rounded. */
static __device__ __forceinline__ double random_log(uint32_t word)
{
    const uint64_t n = (uint64_t)word + 1;
    int e = 64 - __clzll((long long)n);
    double m = __ddiv_rn((double)n, (double)(1ull << e));
    const bool low = m < 0.70710678118654752;
    m = low ? __dmul_rn(m, 2.0) : m;
    e -= low ? 33 : 32;
    double s = __ddiv_rn(__dsub_rn(m, 1.0), __dadd_rn(m, 1.0)), square = __dmul_rn(s, s), sum = 0;
#pragma unroll
    for (int k = 19; k >= 1; k -= 2)
        sum = __dadd_rn(__dmul_rn(sum, square), 1.0 / k);
    return __dadd_rn(__dmul_rn((double)e, 0.69314718055994531), __dmul_rn(__dmul_rn(2.0, s), sum));
}

#define RANDOM_TERMS 9
static __constant__ double random_series[2][RANDOM_TERMS] = {
    {1.0 / 20922789888000, -1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320,
     -1.0 / 720, 1.0 / 24, -1.0 / 2, 1},
    {1.0 / 355687428096000, -1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880,
     -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1},
};

/* cos(2 pi word / 2^32), likewise. */
static __device__ __forceinline__ double random_cos(uint32_t word)
{
    uint32_t part = word & 0x3fffffffu, quarter = word >> 30;
    uint32_t fold = quarter & 1u ? 0x40000000u - part : part;
    bool use_sin = fold > 0x20000000u;
    double a =
        __dmul_rn((double)(use_sin ? 0x40000000u - fold : fold), 1.5707963267948966 * 0x1p-30);
    double square = __dmul_rn(a, a), sum = 0;
#pragma unroll
    for (int k = 0; k < RANDOM_TERMS; k++)
        sum = __dadd_rn(__dmul_rn(sum, square), random_series[use_sin][k]);
    sum = use_sin ? __dmul_rn(sum, a) : sum;
    return quarter == 1 || quarter == 2 ? -sum : sum;
}

static __device__ __forceinline__ float random_normal(uint32_t a, uint32_t b)
{
    double radius = __dsqrt_rn(__dmul_rn(-2.0, random_log(a)));
    return __double2float_rn(__dmul_rn(radius, random_cos(b)));
}

/* One block of Philox gives the normals 2 k and 2 k + 1 of the stream. A thread makes both, and
 * writes those inside the range. */
__global__ void __launch_bounds__(RANDOM_THREADS)
    random_normals(uint2 key, uint64_t start, int64_t count, float mean, float deviation, float *y)
{
    uint64_t pair = start / 2 + (uint64_t)blockIdx.x * RANDOM_THREADS + threadIdx.x;
    if (2 * pair >= start + (uint64_t)count)
        return;
    uint4 word = cuda_philox(key, pair);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint64_t element = 2 * pair + (uint64_t)k;
        if (element < start || element - start >= (uint64_t)count)
            continue;
        float z = k == 0 ? random_normal(word.x, word.y) : random_normal(word.z, word.w);
        y[element - start] = __fadd_rn(mean, __fmul_rn(deviation, z));
    }
}

extern "C" cudaError_t tess__cuda_launch_normal(cudaStream_t stream, const uint32_t key[2],
                                                uint64_t first, int64_t count, float mean,
                                                float deviation, float *y)
{
    int64_t pairs = (int64_t)((first + (uint64_t)count + 1) / 2 - first / 2);
    return CUDA_LAUNCH(random_normals, (unsigned)((pairs + RANDOM_THREADS - 1) / RANDOM_THREADS),
                       RANDOM_THREADS, 0, stream, make_uint2(key[0], key[1]), first, count, mean,
                       deviation, y);
}
