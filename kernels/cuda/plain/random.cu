/*
 * What is made of random numbers by counter (base/rng.h): dropout, stochastic rounding and normals.
 * The bits are those of ref on every layout. Keys are made by the host.
 */
#include "cuda/bits.cuh"
#include "cuda/slots.h"

extern "C" {
#include "ref/mask.h"
#include "ref/stochastic.h"
}

#define RANDOM_THREADS 256
#define RANDOM_WIDTH   8 /* words of two blocks of Philox */

/* ---- a word for each element ---------------------------------------------------------------- */

/* The rule of ref/mask.h. Division, not a product with the reciprocal: ref divides. */
template <typename T> struct random_drop {
    uint32_t limit;
    float divisor;

    __device__ __forceinline__ T operator()(T x, uint32_t word) const
    {
        return cuda_narrow<T>(word >> 8 >= limit ? __fdiv_rn(cuda_widen(x), divisor) : 0.0f);
    }
};

template <typename T> struct random_round {
    __device__ __forceinline__ T operator()(float x, uint32_t word) const
    {
        return cuda_stochastic<T>(x, word);
    }
};

/* Rows of the elements in the stream of words: row r begins r `stride` words after the first. */
struct random_rows {
    int64_t width, stride;
};

/* The words of elements `first` .. first + 7. */
static __device__ __forceinline__ void random_row_words(uint2 key, uint64_t start,
                                                        struct random_rows rows, int64_t first,
                                                        uint32_t (&word)[RANDOM_WIDTH])
{
    const int64_t row = first / rows.width, column = first - row * rows.width;
    int64_t left = rows.width - column; /* of the row */
    start += (uint64_t)(row * rows.stride + column);
    if (left >= RANDOM_WIDTH) {
        cuda_words8(key, start, word);
        return;
    }
    uint64_t block = ~(uint64_t)0;
    uint4 four = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int e = 0; e < RANDOM_WIDTH; e++, start++, left--) {
        if (left == 0) {
            start += (uint64_t)(rows.stride - rows.width);
            left = rows.width;
        }
        if (start / 4 != block) {
            block = start / 4;
            four = cuda_philox(key, block);
        }
        const uint32_t place = (uint32_t)start & 3u;
        word[e] = place == 0 ? four.x : place == 1 ? four.y : place == 2 ? four.z : four.w;
    }
}

/* y = rule(x, word of the element). A thread's eight elements, all or, at the end and where arrays
 * are not aligned, one by one. `cut`: of rows. */
template <typename From, typename To, bool cut, typename Rule>
__global__ void __launch_bounds__(RANDOM_THREADS)
    random_words(int64_t count, Rule rule, uint2 key, uint64_t start, struct random_rows rows,
                 const From *x, To *y, bool aligned)
{
    int64_t first = ((int64_t)blockIdx.x * RANDOM_THREADS + threadIdx.x) * RANDOM_WIDTH;
    if (first >= count)
        return;
    uint32_t word[RANDOM_WIDTH];
    if (cut)
        random_row_words(key, start, rows, first, word);
    else
        cuda_words8(key, start + (uint64_t)first, word);
    if (aligned && first + RANDOM_WIDTH <= count) {
        From from[RANDOM_WIDTH];
        To to[RANDOM_WIDTH];
        cuda_load8(x + first, from);
#pragma unroll
        for (int e = 0; e < RANDOM_WIDTH; e++)
            to[e] = rule(from[e], word[e]);
        cuda_store8(y + first, to);
        return;
    }
#pragma unroll
    for (int e = 0; e < RANDOM_WIDTH; e++)
        if (first + e < count)
            y[first + e] = rule(x[first + e], word[e]);
}

template <typename From, typename To, bool cut, typename Rule>
static cudaError_t random_launch(cudaStream_t stream, int64_t count, struct random_rows rows,
                                 Rule rule, struct tess_rng_key key, uint64_t first, const void *x,
                                 void *y)
{
    return CUDA_LAUNCH((random_words<From, To, cut, Rule>),
                       cuda_blocks(count, RANDOM_THREADS * RANDOM_WIDTH), RANDOM_THREADS, 0, stream,
                       count, rule, make_uint2(key.word[0], key.word[1]), first, rows, x, y,
                       cuda_aligned16(x) && cuda_aligned16(y));
}

void tess__cuda_dropout(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t width, int64_t stride, float rate, const uint64_t key[2],
                        uint64_t first, const void *x, void *y)
{
    const struct tess_rng_key words = tess__mask_key(key);
    const struct random_rows cut = {width, stride};
    cudaStream_t stream = tess__cuda_stream(kernel);
    cudaError_t error = cuda_by_dtype(dtype, [&](auto type) {
        typedef decltype(type) T;
        const random_drop<T> rule = {tess__mask_limit(rate), 1.0f - rate};
        return rows > 1
                   ? random_launch<T, T, true>(stream, rows * width, cut, rule, words, first, x, y)
                   : random_launch<T, T, false>(stream, width, cut, rule, words, first, x, y);
    });
    tess__cuda_note(kernel, error, "dropout");
}

void tess__cuda_cast_stochastic(struct tess_kernel *kernel, int64_t count, const float *x,
                                enum tess_dtype to, const uint64_t key[2], uint64_t first, void *y)
{
    const struct tess_rng_key words = tess__stochastic_key(key);
    cudaStream_t stream = tess__cuda_stream(kernel);
    cudaError_t error = cudaErrorInvalidValue;
    if (to == TESS_BF16)
        error = random_launch<float, __nv_bfloat16, false>(
            stream, count, {count, count}, random_round<__nv_bfloat16>{}, words, first, x, y);
    else if (to == TESS_F16)
        error = random_launch<float, __half, false>(stream, count, {count, count},
                                                    random_round<__half>{}, words, first, x, y);
    tess__cuda_note(kernel, error, "cast_stochastic");
}

/* ---- normals -------------------------------------------------------------------------------- */

/* ln((word + 1) / 2^32), operation by operation as base/normal.h has it, each rounded. */
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

void tess__cuda_normal(struct tess_kernel *kernel, const uint32_t key[2], uint64_t first,
                       int64_t count, float mean, float deviation, float *y)
{
    int64_t pairs = (int64_t)((first + (uint64_t)count + 1) / 2 - first / 2);
    tess__cuda_note(kernel,
                    CUDA_LAUNCH(random_normals, cuda_blocks(pairs, RANDOM_THREADS), RANDOM_THREADS,
                                0, tess__cuda_stream(kernel), make_uint2(key[0], key[1]), first,
                                count, mean, deviation, y),
                    "normal");
}
