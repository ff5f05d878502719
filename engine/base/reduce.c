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
#define REDUCE_LEVELS 17   /* of the tree over TESS_REDUCE_SOURCES_MAX = 65,536 arrays */
#define REDUCE_INLINE static inline __attribute__((always_inline))

_Static_assert(TESS_REDUCE_SOURCES_MAX <= 1 << (REDUCE_LEVELS - 1),
               "the tree is deeper than its stack");

struct reduce_job {
    enum tess_dtype dtype, to; /* of sources, of targets */
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

REDUCE_INLINE bool reduce_is_integer(enum tess_dtype dtype)
{
    return dtype == TESS_I32 || dtype == TESS_I64 || dtype == TESS_U8;
}

/* A block in the type that it is computed in: bf16 and f16 in f32, all integers in i64, where sums
 * wrap and the low bits are those of the narrow sum. */
union reduce_level {
    float f32[REDUCE_BLOCK];
    double f64[REDUCE_BLOCK];
    int64_t i64[REDUCE_BLOCK];
};

/* left[i] = `value` for every i, in terms of x = left[i] and y = right[i]. */
#define REDUCE_EACH(type, member, value)                                                           \
    REDUCE_LOOP                                                                                    \
    for (size_t i = 0; i < count; i++) {                                                           \
        const type x = left->member[i], y = right->member[i];                                      \
        left->member[i] = (value);                                                                 \
    }

/* left = left op right. NaN in either stays NaN in maxima and minima. */
REDUCE_INLINE void reduce_merge(const struct reduce_job *job, union reduce_level *left,
                                const union reduce_level *right, size_t count)
{
    const bool sum = job->reduce == TESS_REDUCE_SUM, max = job->reduce == TESS_REDUCE_MAX;
    if (job->dtype == TESS_F64 && sum) {
        REDUCE_EACH(double, f64, x + y)
    } else if (job->dtype == TESS_F64 && max) {
        REDUCE_EACH(double, f64, x > y || x != x ? x : y)
    } else if (job->dtype == TESS_F64) {
        REDUCE_EACH(double, f64, x < y || x != x ? x : y)
    } else if (!reduce_is_integer(job->dtype) && sum) {
        REDUCE_EACH(float, f32, x + y)
    } else if (!reduce_is_integer(job->dtype) && max) {
        REDUCE_EACH(float, f32, x > y || x != x ? x : y)
    } else if (!reduce_is_integer(job->dtype)) {
        REDUCE_EACH(float, f32, x < y || x != x ? x : y)
    } else if (sum) {
        REDUCE_EACH(int64_t, i64, (int64_t)((uint64_t)x + (uint64_t)y))
    } else if (max) {
        REDUCE_EACH(int64_t, i64, x > y ? x : y)
    } else {
        REDUCE_EACH(int64_t, i64, x < y ? x : y)
    }
}

REDUCE_INLINE void reduce_load(enum tess_dtype dtype, const void *source, size_t at,
                               union reduce_level *out, size_t count)
{
    const size_t bytes = tess_dtype_bytes(dtype);
    switch (dtype) {
    case TESS_BF16:
        for (size_t i = 0; i < count; i++)
            out->f32[i] = tess__f32_of_bf16(((const uint16_t *)source)[at + i]);
        break;
    case TESS_F16:
        for (size_t i = 0; i < count; i++)
            out->f32[i] = tess__f32_of_f16(((const uint16_t *)source)[at + i]);
        break;
    case TESS_I32:
        for (size_t i = 0; i < count; i++)
            out->i64[i] = ((const int32_t *)source)[at + i];
        break;
    case TESS_U8:
        for (size_t i = 0; i < count; i++)
            out->i64[i] = ((const uint8_t *)source)[at + i];
        break;
    default:
        memcpy(out, (const char *)source + at * bytes, count * bytes);
    }
}

REDUCE_INLINE void reduce_store(enum tess_dtype dtype, const union reduce_level *in, void *target,
                                size_t at, size_t count)
{
    const size_t bytes = tess_dtype_bytes(dtype);
    switch (dtype) {
    case TESS_BF16:
        for (size_t i = 0; i < count; i++)
            ((uint16_t *)target)[at + i] = tess__bf16_of_f32(in->f32[i]);
        break;
    case TESS_F16:
        for (size_t i = 0; i < count; i++)
            ((uint16_t *)target)[at + i] = tess__f16_of_f32(in->f32[i]);
        break;
    case TESS_I32:
        for (size_t i = 0; i < count; i++)
            ((int32_t *)target)[at + i] = (int32_t)(uint32_t)(uint64_t)in->i64[i];
        break;
    case TESS_U8:
        for (size_t i = 0; i < count; i++)
            ((uint8_t *)target)[at + i] = (uint8_t)(uint64_t)in->i64[i];
        break;
    default:
        memcpy((char *)target + at * bytes, in, count * bytes);
    }
}

/*
 * The tree by a binary counter: source i is pushed, then the stack's two topmost blocks are merged
 * once for every trailing one of i; what is left is merged from the top. For 6 sources:
 *
 *     0 | 0+1 | 0+1 2 | (0+1)+(2+3) | .. 4 | .. 4+5, then ((0+1)+(2+3)) + (4+5)
 */
REDUCE_INLINE void reduce_block(const struct reduce_job *job, size_t at, size_t count)
{
    _Alignas(64) union reduce_level level[REDUCE_LEVELS];
    int32_t depth = 0;
    for (int32_t k = 0; k < job->source_count; k++) {
        reduce_load(job->dtype, job->source[k], at, &level[depth++], count);
        for (int32_t ones = k; (ones & 1) != 0; ones >>= 1, depth--)
            reduce_merge(job, &level[depth - 2], &level[depth - 1], count);
    }
    for (; depth > 1; depth--)
        reduce_merge(job, &level[depth - 2], &level[depth - 1], count);
    reduce_store(job->to, level, job->target[0], at, count);
}

REDUCE_INLINE bool reduce_is_plain(const struct reduce_job *job)
{
    return job->dtype == TESS_F32 && job->to == TESS_F32 && job->reduce == TESS_REDUCE_SUM;
}

/* One loop that reads all sources and writes all targets needs no blocks; see reduce_sum_f32(). */
REDUCE_INLINE bool reduce_needs_blocks(const struct reduce_job *job)
{
    int32_t n = job->source_count, m = job->target_count;
    bool one_loop = ((n >= 2 && n <= 4) && (m == 1 || m == n)) || (n == 8 && m == 1);
    return !reduce_is_plain(job) || !one_loop;
}

REDUCE_INLINE void reduce_all(const struct reduce_job *job, size_t count)
{
    size_t size = tess_dtype_bytes(job->to);
    size_t block = reduce_needs_blocks(job) ? REDUCE_BLOCK : count;
    for (size_t at = 0; at < count; at += block) {
        size_t n = count - at < block ? count - at : block;
        int32_t written = 1;
        if (!reduce_is_plain(job) || !reduce_sum_f32(job, at, n, &written))
            reduce_block(job, at, n);
        for (int32_t k = written; k < job->target_count; k++)
            memcpy((char *)job->target[k] + at * size, (char *)job->target[0] + at * size,
                   n * size);
    }
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

#endif

void tess__reduce_to(enum tess_dtype dtype, enum tess_dtype to, enum tess_reduce reduce, int32_t n,
                     const void *const *source, int32_t m, void *const *target, size_t count)
{
    struct reduce_job job = {dtype, to, reduce, n, m, source, target};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
        reduce_all_avx512(&job, count);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        reduce_all_avx2(&job, count);
        return;
    }
#endif
    reduce_all(&job, count);
}

void tess__reduce(enum tess_dtype dtype, enum tess_reduce reduce, int32_t n,
                  const void *const *source, int32_t m, void *const *target, size_t count)
{
    tess__reduce_to(dtype, dtype, reduce, n, source, m, target, count);
}
