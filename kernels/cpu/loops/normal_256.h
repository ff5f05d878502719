/* The normals of normal_wide.h by AVX2. */
#ifndef KERNELS_CPU_LOOPS_NORMAL_256_H
#define KERNELS_CPU_LOOPS_NORMAL_256_H

#include "cpu/loops/normal_wide.h"
#include "cpu/philox.h"

#include <immintrin.h>

/* The relative error is below 2^-42: 2^-43 of the sine, 2^-46 of the logarithm's root. */
#define CPU_NORMALS   32
#define NORMAL_GROUPS (CPU_NORMALS / 8) /* four counters, two elements each */

/* a + b x + ..., c the coefficients from the last one on. */
#define NORMAL_POLYNOMIAL(c, x)                                                                    \
    __extension__({                                                                                \
        __m256d sum_ = _mm256_set1_pd((c)[0]);                                                     \
        CPU_UNROLL                                                                                 \
        for (size_t i_ = 1; i_ < sizeof(c) / sizeof(*(c)); i_++)                                   \
            sum_ = _mm256_fmadd_pd(sum_, x, _mm256_set1_pd((c)[i_]));                              \
        sum_;                                                                                      \
    })

/* 2^k + u 2^(k - 52) of the lower halves u of lanes; `high` is the upper half of the double 2^k. */
CPU_INLINE __m256d normal_double(__m256i word, int64_t high)
{
    return _mm256_castsi256_pd(_mm256_blend_epi32(word, _mm256_set1_epi64x(high << 32), 0xaa));
}

/* -2 ln(n / 2^32) of n = a + 1 = m 2^e, m in [sqrt(1/2), sqrt(2)): near n = 2^32 nothing cancels.
 */
CPU_INLINE __m256d normal_square(__m256i a)
{
    /* -4 artanh(s) / s in s^2, s^2 < 0.0295, at Chebyshev's points. */
    static const double c[] = {-0x1.9192e4ac30e1ap-2, -0x1.c620ee6ac3f82p-2, -0x1.2494381eef7dcp-1,
                               -0x1.9999962c05ebbp-1, -0x1.555555567148cp+0, -0x1.fffffffffff12p+1};
    const __m256d n = _mm256_sub_pd(normal_double(a, 0x43300000), _mm256_set1_pd(0x1p52 - 1));
    const __m256i root_half = _mm256_castpd_si256(_mm256_set1_pd(0.70710678118654752));
    const __m256i from = _mm256_sub_epi64(_mm256_castpd_si256(n), root_half);
    const __m256d e = _mm256_sub_pd(normal_double(_mm256_srli_epi64(from, 52), 0x43300000),
                                    _mm256_set1_pd(0x1p52 + 32));
    const __m256i part = _mm256_and_si256(from, _mm256_set1_epi64x((INT64_C(1) << 52) - 1));
    const __m256d m = _mm256_castsi256_pd(_mm256_add_epi64(part, root_half));
    const __m256d s =
        _mm256_div_pd(_mm256_sub_pd(m, _mm256_set1_pd(1)), _mm256_add_pd(m, _mm256_set1_pd(1)));
    return _mm256_fmadd_pd(NORMAL_POLYNOMIAL(c, _mm256_mul_pd(s, s)), s,
                           _mm256_mul_pd(e, _mm256_set1_pd(-2 * 0.69314718055994531)));
}

/* cos(2 pi b / 2^32), b as a signed number, as sin(pi/2 x), x = 1 - |b / 2^30|. */
CPU_INLINE __m256d normal_cos(__m256i b)
{
#define NORMAL_PLAIN(power, c) (c),
    static const double c[] = {NORMAL_SIN(NORMAL_PLAIN)};
#undef NORMAL_PLAIN
    const __m256d x =
        _mm256_sub_pd(_mm256_set1_pd(0x1p22 + 1), normal_double(_mm256_abs_epi32(b), 0x41500000));
    return _mm256_mul_pd(NORMAL_POLYNOMIAL(c, _mm256_mul_pd(x, x)), x);
}

/* The elements of four counters. */
CPU_INLINE __m256 normal_group(struct tess_rng_key key, uint64_t counter, const __m256i word[4],
                               const __m256d square[2])
{
    const __m256d even = _mm256_mul_pd(_mm256_sqrt_pd(square[0]), normal_cos(word[1]));
    const __m256d odd = _mm256_mul_pd(_mm256_sqrt_pd(square[1]), normal_cos(word[3]));
    const __m128 first = _mm256_cvtpd_ps(even), second = _mm256_cvtpd_ps(odd);
    /* How far behind the lower end of what is near the middle, but for the lower bits; or all lower
     * bits of a zero, whose sign may be wrong. */
    const __m256i low =
        _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castpd_ps(even), _mm256_castpd_ps(odd), 0x88));
    const __m256i from = _mm256_add_epi32(low, _mm256_set1_epi32((1 << 28) + NORMAL_NEAR));
    const __m256i behind = _mm256_and_si256(from, _mm256_set1_epi32((1 << 29) - 2 * NORMAL_NEAR));
    const __m256i again = _mm256_cmpeq_epi32(_mm256_min_epu32(behind, low), _mm256_setzero_si256());
    __m256 z = _mm256_setr_m128(_mm_unpacklo_ps(first, second), _mm_unpackhi_ps(first, second));
    if (__builtin_expect(!_mm256_testz_si256(again, again), 0)) {
        float each[8];
        tess_rng_normals(key, 2 * counter, 8, each);
        z = _mm256_loadu_ps(each);
    }
    return z;
}

CPU_INLINE void cpu_normals(struct tess_rng_key key, uint64_t counter, float mean, float deviation,
                            float *y)
{
    __m256i word[NORMAL_GROUPS][4];
    __m256d square[NORMAL_GROUPS][2];
    for (int g = 0; g < NORMAL_GROUPS; g++)
        word[g][0] = _mm256_add_epi64(_mm256_set1_epi64x((int64_t)counter + 4 * g),
                                      _mm256_setr_epi64x(0, 1, 2, 3));
    for (int g = 0; g < NORMAL_GROUPS; g += 2)
        philox_rounds(key, &word[g]);
    for (int g = 0; g < NORMAL_GROUPS; g++)
        for (int i = 0; i < 2; i++)
            square[g][i] = normal_square(word[g][2 * i]);
    for (int g = 0; g < NORMAL_GROUPS; g++) {
        const __m256 z = normal_group(key, counter + 4 * (uint64_t)g, word[g], square[g]);
        _mm256_storeu_ps(y + 8 * g, _mm256_add_ps(_mm256_set1_ps(mean),
                                                  _mm256_mul_ps(_mm256_set1_ps(deviation), z)));
    }
}

#endif
