/*
 * Sums, maxima and minima over the ranks' arrays, element by element, in the canonical tree order
 * of tessera/comm.h. One pass over memory: block by block, small enough that a block written to the
 * first target is still in the first-level cache when it is copied to the others.
 *
 * The loops are plain C; the compiler vectorises them, once for every instruction set below, and
 * the widest that the machine has is chosen at run time. Without contraction or reassociation all
 * of them give the same bits.
 */
#include "base/reduce.h"

#include "base/half.h"

#include <string.h>

#define REDUCE_BLOCK  1024 /* elements: 4 KiB of f32 */
#define REDUCE_LEVELS 7    /* of the tree over TESS_REDUCE_SOURCES_MAX = 64 arrays */
#define REDUCE_INLINE static inline __attribute__((always_inline))

_Static_assert(TESS_REDUCE_SOURCES_MAX <= 1 << (REDUCE_LEVELS - 1),
               "the tree is deeper than its stack");

struct reduce_job {
    enum tess_dtype dtype;
    enum tess_reduce reduce;
    int32_t source_count, target_count;
    const void *const *source;
    void *const *target;
};

/* The loops read and write the same index only, so a target that is a source does no harm. */
#if defined(__clang__)
#define REDUCE_LOOP   _Pragma("clang loop vectorize(assume_safety)")
#define REDUCE_AVX512 "avx512f,avx512bw,avx512dq,avx512vl"
#else
#define REDUCE_LOOP   _Pragma("GCC ivdep")
/* Without the last word gcc 12 stays with 256 bits: 20 % slower at 4 MiB (Zen 5, November 2026). */
#define REDUCE_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif

/*
 * f32 sums of the usual rank counts, each in one expression; to all targets at once where that is
 * what all-reduce needs. False when there is no such loop; `*written_out`: targets written.
 */
REDUCE_INLINE bool reduce_sum_f32(const struct reduce_job *job, size_t at, size_t count,
                                  int32_t *written_out)
{
    int32_t n = job->source_count, m = job->target_count;
    const float *a = (const float *)job->source[0] + at;
    const float *b = (const float *)job->source[1 % n] + at;
    const float *c = (const float *)job->source[2 % n] + at;
    const float *d = (const float *)job->source[3 % n] + at;
    float *p = (float *)job->target[0] + at;
    float *q = (float *)job->target[1 % m] + at;
    float *r = (float *)job->target[2 % m] + at;
    float *s = (float *)job->target[3 % m] + at;
    *written_out = m == n && n <= 4 ? m : 1;
    if (n == 2 && m == 2) {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            p[i] = q[i] = a[i] + b[i];
        return true;
    }
    if (n == 2) {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            p[i] = a[i] + b[i];
        return true;
    }
    if (n == 3 && m == 3) {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            p[i] = q[i] = r[i] = (a[i] + b[i]) + c[i];
        return true;
    }
    if (n == 3) {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            p[i] = (a[i] + b[i]) + c[i];
        return true;
    }
    if (n == 4 && m == 4) {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            p[i] = q[i] = r[i] = s[i] = (a[i] + b[i]) + (c[i] + d[i]);
        return true;
    }
    if (n == 4) {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            p[i] = (a[i] + b[i]) + (c[i] + d[i]);
        return true;
    }
    if (n == 8) {
        const float *e = (const float *)job->source[4] + at;
        const float *f = (const float *)job->source[5] + at;
        const float *g = (const float *)job->source[6] + at;
        const float *h = (const float *)job->source[7] + at;
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            p[i] = ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + (g[i] + h[i]));
        return true;
    }
    return false;
}

/* left = left op right. NaN in either stays NaN in maxima and minima. */
REDUCE_INLINE void reduce_merge_f32(enum tess_reduce reduce, float *left, const float *right,
                                    size_t count)
{
    if (reduce == TESS_REDUCE_SUM) {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            left[i] = left[i] + right[i];
    } else if (reduce == TESS_REDUCE_MAX) {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            left[i] = left[i] > right[i] || left[i] != left[i] ? left[i] : right[i];
    } else {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            left[i] = left[i] < right[i] || left[i] != left[i] ? left[i] : right[i];
    }
}

REDUCE_INLINE void reduce_merge_f64(enum tess_reduce reduce, double *left, const double *right,
                                    size_t count)
{
    if (reduce == TESS_REDUCE_SUM) {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            left[i] = left[i] + right[i];
    } else if (reduce == TESS_REDUCE_MAX) {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            left[i] = left[i] > right[i] || left[i] != left[i] ? left[i] : right[i];
    } else {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            left[i] = left[i] < right[i] || left[i] != left[i] ? left[i] : right[i];
    }
}

/* All integers are computed in 64 bits; sums wrap, and the low bits are those of the narrow sum. */
REDUCE_INLINE void reduce_merge_i64(enum tess_reduce reduce, int64_t *left, const int64_t *right,
                                    size_t count)
{
    if (reduce == TESS_REDUCE_SUM) {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            left[i] = (int64_t)((uint64_t)left[i] + (uint64_t)right[i]);
    } else if (reduce == TESS_REDUCE_MAX) {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            left[i] = left[i] > right[i] ? left[i] : right[i];
    } else {
        REDUCE_LOOP
        for (size_t i = 0; i < count; i++)
            left[i] = left[i] < right[i] ? left[i] : right[i];
    }
}

REDUCE_INLINE void reduce_load_f32(enum tess_dtype dtype, const void *source, size_t at, float *out,
                                   size_t count)
{
    if (dtype == TESS_F32) {
        memcpy(out, (const float *)source + at, count * sizeof(*out));
    } else if (dtype == TESS_BF16) {
        const uint16_t *x = (const uint16_t *)source + at;
        for (size_t i = 0; i < count; i++)
            out[i] = tess__f32_of_bf16(x[i]);
    } else {
        const uint16_t *x = (const uint16_t *)source + at;
        for (size_t i = 0; i < count; i++)
            out[i] = tess__f32_of_f16(x[i]);
    }
}

REDUCE_INLINE void reduce_store_f32(enum tess_dtype dtype, const float *in, void *target, size_t at,
                                    size_t count)
{
    if (dtype == TESS_F32) {
        memcpy((float *)target + at, in, count * sizeof(*in));
    } else if (dtype == TESS_BF16) {
        uint16_t *x = (uint16_t *)target + at;
        for (size_t i = 0; i < count; i++)
            x[i] = tess__bf16_of_f32(in[i]);
    } else {
        uint16_t *x = (uint16_t *)target + at;
        for (size_t i = 0; i < count; i++)
            x[i] = tess__f16_of_f32(in[i]);
    }
}

REDUCE_INLINE void reduce_load_i64(enum tess_dtype dtype, const void *source, size_t at,
                                   int64_t *out, size_t count)
{
    if (dtype == TESS_I64) {
        memcpy(out, (const int64_t *)source + at, count * sizeof(*out));
    } else if (dtype == TESS_I32) {
        for (size_t i = 0; i < count; i++)
            out[i] = ((const int32_t *)source)[at + i];
    } else {
        for (size_t i = 0; i < count; i++)
            out[i] = ((const uint8_t *)source)[at + i];
    }
}

REDUCE_INLINE void reduce_store_i64(enum tess_dtype dtype, const int64_t *in, void *target,
                                    size_t at, size_t count)
{
    if (dtype == TESS_I64) {
        memcpy((int64_t *)target + at, in, count * sizeof(*in));
    } else if (dtype == TESS_I32) {
        for (size_t i = 0; i < count; i++)
            ((int32_t *)target)[at + i] = (int32_t)(uint32_t)(uint64_t)in[i];
    } else {
        for (size_t i = 0; i < count; i++)
            ((uint8_t *)target)[at + i] = (uint8_t)(uint64_t)in[i];
    }
}

/*
 * The tree by a binary counter: source i is pushed, then the stack's two topmost blocks are merged
 * once for every trailing one of i; what is left is merged from the top. For 6 sources:
 *
 *     0 | 0+1 | 0+1 2 | (0+1)+(2+3) | .. 4 | .. 4+5, then ((0+1)+(2+3)) + (4+5)
 */
REDUCE_INLINE void reduce_block_f32(const struct reduce_job *job, size_t at, size_t count)
{
    _Alignas(64) float level[REDUCE_LEVELS][REDUCE_BLOCK];
    int32_t depth = 0;
    for (int32_t k = 0; k < job->source_count; k++) {
        reduce_load_f32(job->dtype, job->source[k], at, level[depth++], count);
        for (int32_t ones = k; (ones & 1) != 0; ones >>= 1, depth--)
            reduce_merge_f32(job->reduce, level[depth - 2], level[depth - 1], count);
    }
    for (; depth > 1; depth--)
        reduce_merge_f32(job->reduce, level[depth - 2], level[depth - 1], count);
    reduce_store_f32(job->dtype, level[0], job->target[0], at, count);
}

REDUCE_INLINE void reduce_block_f64(const struct reduce_job *job, size_t at, size_t count)
{
    _Alignas(64) double level[REDUCE_LEVELS][REDUCE_BLOCK];
    int32_t depth = 0;
    for (int32_t k = 0; k < job->source_count; k++) {
        memcpy(level[depth++], (const double *)job->source[k] + at, count * sizeof(double));
        for (int32_t ones = k; (ones & 1) != 0; ones >>= 1, depth--)
            reduce_merge_f64(job->reduce, level[depth - 2], level[depth - 1], count);
    }
    for (; depth > 1; depth--)
        reduce_merge_f64(job->reduce, level[depth - 2], level[depth - 1], count);
    memcpy((double *)job->target[0] + at, level[0], count * sizeof(double));
}

REDUCE_INLINE void reduce_block_i64(const struct reduce_job *job, size_t at, size_t count)
{
    _Alignas(64) int64_t level[REDUCE_LEVELS][REDUCE_BLOCK];
    int32_t depth = 0;
    for (int32_t k = 0; k < job->source_count; k++) {
        reduce_load_i64(job->dtype, job->source[k], at, level[depth++], count);
        for (int32_t ones = k; (ones & 1) != 0; ones >>= 1, depth--)
            reduce_merge_i64(job->reduce, level[depth - 2], level[depth - 1], count);
    }
    for (; depth > 1; depth--)
        reduce_merge_i64(job->reduce, level[depth - 2], level[depth - 1], count);
    reduce_store_i64(job->dtype, level[0], job->target[0], at, count);
}

/* One loop that reads all sources and writes all targets needs no blocks; see reduce_sum_f32(). */
REDUCE_INLINE bool reduce_needs_blocks(const struct reduce_job *job)
{
    int32_t n = job->source_count, m = job->target_count;
    bool one_loop = ((n >= 2 && n <= 4) && (m == 1 || m == n)) || (n == 8 && m == 1);
    return job->dtype != TESS_F32 || job->reduce != TESS_REDUCE_SUM || !one_loop;
}

REDUCE_INLINE void reduce_all(const struct reduce_job *job, size_t count)
{
    size_t size = tess_dtype_bytes(job->dtype);
    size_t block = reduce_needs_blocks(job) ? REDUCE_BLOCK : count;
    for (size_t at = 0; at < count; at += block) {
        size_t n = count - at < block ? count - at : block;
        int32_t written = 1;
        if (job->dtype == TESS_F64)
            reduce_block_f64(job, at, n);
        else if (job->dtype == TESS_I32 || job->dtype == TESS_I64 || job->dtype == TESS_U8)
            reduce_block_i64(job, at, n);
        else if (job->dtype != TESS_F32 || job->reduce != TESS_REDUCE_SUM ||
                 !reduce_sum_f32(job, at, n, &written))
            reduce_block_f32(job, at, n);
        for (int32_t k = written; k < job->target_count; k++)
            memcpy((char *)job->target[k] + at * size, (char *)job->target[0] + at * size,
                   n * size);
    }
}

static void reduce_all_plain(const struct reduce_job *job, size_t count)
{
    reduce_all(job, count);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void reduce_all_avx2(const struct reduce_job *job,
                                                            size_t count)
{
    reduce_all(job, count);
}

__attribute__((target(REDUCE_AVX512))) static void reduce_all_avx512(const struct reduce_job *job,
                                                                     size_t count)
{
    reduce_all(job, count);
}

static void reduce_choose(const struct reduce_job *job, size_t count)
{
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        reduce_all_avx512(job, count);
    else if (__builtin_cpu_supports("avx2"))
        reduce_all_avx2(job, count);
    else
        reduce_all_plain(job, count);
}
#else
static void reduce_choose(const struct reduce_job *job, size_t count)
{
    reduce_all_plain(job, count);
}
#endif

void tess__reduce(enum tess_dtype dtype, enum tess_reduce reduce, int32_t n,
                  const void *const *source, int32_t m, void *const *target, size_t count)
{
    struct reduce_job job = {dtype, reduce, n, m, source, target};
    reduce_choose(&job, count);
}
