/* The normals of normal_wide.h by AVX-512. */
#ifndef KERNELS_CPU_LOOPS_NORMAL_512_H
#define KERNELS_CPU_LOOPS_NORMAL_512_H

#include "cpu/loops/normal_wide.h"

#include <immintrin.h>

/*
 * The relative error is below 2^-39: 2^-40.6 of the square root, 2^-43 of the sine, 2^-44 of the
 * logarithm.
 */
#define CPU_NORMALS 16 /* of 8 counters, two each */

/* Philox of 8 counters, a word in the lower half of each lane; upper halves are not defined. */
CPU_INLINE void normal_words(struct tess_rng_key key, uint64_t counter, __m512i word[4])
{
    const __m512i first = _mm512_set1_epi64(0xd2511f53), second = _mm512_set1_epi64(0xcd9e8d57);
    uint32_t k0 = key.word[0], k1 = key.word[1];
    word[0] = _mm512_add_epi64(_mm512_set1_epi64((int64_t)counter),
                               _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
    word[1] = _mm512_srli_epi64(word[0], 32);
    word[2] = word[3] = _mm512_setzero_si512();
    CPU_UNROLL
    for (int round = 0; round < 10; round++) {
        const __m512i p0 = _mm512_mul_epu32(first, word[0]);
        const __m512i p1 = _mm512_mul_epu32(second, word[2]);
        word[0] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), word[1],
                                            _mm512_set1_epi64(k0), 0x96); /* a ^ b ^ c */
        word[1] = p1;
        word[2] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), word[3],
                                            _mm512_set1_epi64(k1), 0x96);
        word[3] = p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

/* a + b x + ..., c the coefficients from the last one on. */
#define NORMAL_POLYNOMIAL(c, x)                                                                    \
    __extension__({                                                                                \
        __m512d sum_ = _mm512_set1_pd((c)[0]);                                                     \
        CPU_UNROLL                                                                                 \
        for (size_t i_ = 1; i_ < sizeof(c) / sizeof(*(c)); i_++)                                   \
            sum_ = _mm512_fmadd_pd(sum_, x, _mm512_set1_pd((c)[i_]));                              \
        sum_;                                                                                      \
    })

/*
 * -2 ln(n / 2^32) of n = m 2^e. In the k-th sixteenth of [1, 2) m is t + 1 by r[k], the inverse of
 * its middle, so that |t| <= 1/32; l[k] = 2 ln r[k] + 2 ln 2. In the last one r is 1/2 and l is 0:
 * near n = 2^32 nothing cancels.
 */
CPU_INLINE __m512d normal_log(__m512d n)
{
    /* (-2 ln(1 + t)) / t, for t in [-1/32, 1/33], at Chebyshev's points. */
    static const double c[] = {-0x1.25cce408f5982p-2, 0x1.55c1d9a1a8a36p-2,  -0x1.99994bdb54fe5p-2,
                               0x1.fffff2da7db6dp-2,  -0x1.55555557e95c2p-1, 0x1.0000000019808p+0,
                               -0x1.fffffffffffcep+0};
    static const double r[16] = {
        0x1.f07c1f07c1f08p-1, 0x1.d41d41d41d41dp-1, 0x1.bacf914c1bad0p-1, 0x1.a41a41a41a41ap-1,
        0x1.8f9c18f9c18fap-1, 0x1.7d05f417d05f4p-1, 0x1.6c16c16c16c17p-1, 0x1.5c9882b931057p-1,
        0x1.4e5e0a72f0539p-1, 0x1.4141414141414p-1, 0x1.3521cfb2b78c1p-1, 0x1.29e4129e4129ep-1,
        0x1.1f7047dc11f70p-1, 0x1.15b1e5f75270dp-1, 0x1.0c9714fbcda3bp-1, 0x1.0000000000000p-1};
    static const double l[16] = {
        0x1.5322e26867857p+0, 0x1.35028ad9d8c85p+0, 0x1.188ee40f23ca7p+0, 0x1.fb358af7a4884p-1,
        0x1.c7ff9c74554cap-1, 0x1.973a3431356aep-1, 0x1.68ac83e9c6a15p-1, 0x1.3c25277333183p-1,
        0x1.1178e8227e47ap-1, 0x1.d1037f2655e7bp-2, 0x1.823c16551a3c0p-2, 0x1.365fcb0159014p-2,
        0x1.da7276384469ep-3, 0x1.4d3115d207eacp-3, 0x1.894aa149fb34bp-4, 0x0.0p+0};
    const __m512i k = _mm512_srli_epi64(_mm512_castpd_si512(n), 48);
    const __m512d m = _mm512_getmant_pd(n, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
    const __m512d e = _mm512_sub_pd(_mm512_getexp_pd(n), _mm512_set1_pd(31));
    const __m512d rk = _mm512_permutex2var_pd(_mm512_loadu_pd(r), k, _mm512_loadu_pd(r + 8));
    const __m512d lk = _mm512_permutex2var_pd(_mm512_loadu_pd(l), k, _mm512_loadu_pd(l + 8));
    const __m512d t = _mm512_fmsub_pd(m, rk, _mm512_set1_pd(1));
    return _mm512_fmadd_pd(NORMAL_POLYNOMIAL(c, t), t,
                           _mm512_fmadd_pd(e, _mm512_set1_pd(-2 * 0.69314718055994531), lk));
}

/* sin(pi/2 g / 2^62), |g| <= 2^62. */
CPU_INLINE __m512d normal_sin(__m512d g)
{
#define NORMAL_SCALED(power, c) (c) * 0x1p-##power, /* g / 2^62 is x */
    static const double c[] = {NORMAL_SIN(NORMAL_SCALED)};
#undef NORMAL_SCALED
    return _mm512_mul_pd(NORMAL_POLYNOMIAL(c, _mm512_mul_pd(g, g)), g);
}

/* The definition for the lanes of `mask`. */
static __attribute__((noinline, cold)) __m256 normal_again(__mmask8 mask, __m512i a, __m512i b,
                                                           __m256 z)
{
    uint64_t first[8], second[8];
    float each[8];
    _mm512_storeu_si512(first, a);
    _mm512_storeu_si512(second, b);
    _mm256_storeu_ps(each, z);
    for (int i = 0; i < 8; i++) {
        const uint32_t pair[2] = {(uint32_t)first[i], (uint32_t)second[i]};
        if (mask >> i & 1)
            tess__normals_of(1, pair, pair + 1, &each[i]);
    }
    return _mm256_loadu_ps(each);
}

/* Rounded; the lanes of *again are wrong or may be. */
CPU_INLINE __m256 normal_of(__m512i a, __m512i b, __mmask8 *again)
{
    const __m512i low = _mm512_set1_epi64(0xffffffff);
    const __m512i n = _mm512_add_epi64(_mm512_and_si512(a, low), _mm512_set1_epi64(1));
    const __m512d square = normal_log(_mm512_cvtepi64_pd(n));
    /* The root is w (1 - h)^-1/2 of w = square y, h = 1 - w y; |h| < 2^-13. */
    const __m512d y = _mm512_rsqrt14_pd(square), w = _mm512_mul_pd(square, y);
    const __m512d h = _mm512_fnmadd_pd(w, y, _mm512_set1_pd(1));
    const __m512d series = _mm512_fmadd_pd(h, _mm512_set1_pd(0.375), _mm512_set1_pd(0.5));
    const __m512d root = _mm512_fmadd_pd(_mm512_mul_pd(w, h), series, w);
    /* cos(2 pi b / 2^32) = sin(pi/2 - |2 pi b / 2^32|), b as a signed number. */
    const __m512i angle = _mm512_abs_epi64(_mm512_slli_epi64(b, 32));
    const __m512i g = _mm512_sub_epi64(_mm512_set1_epi64(INT64_C(1) << 62), angle);
    const __m512d z = _mm512_mul_pd(root, normal_sin(_mm512_cvtepi64_pd(g)));
    /* How far behind the lower end of what is near the middle, in units in the last place. */
    const __m512i from = _mm512_add_epi64(_mm512_castpd_si512(z),
                                          _mm512_set1_epi64((1 << 28) + (int64_t)NORMAL_NEAR));
    const __m512i behind = _mm512_and_si512(from, _mm512_set1_epi64((1 << 29) - 1));
    *again = _mm512_cmplt_epu64_mask(behind, _mm512_set1_epi64(2 * (int64_t)NORMAL_NEAR)) |
             _mm512_testn_epi64_mask(g, g) | /* zeros have a sign */
             _mm512_cmpeq_epi64_mask(n, _mm512_set1_epi64(INT64_C(1) << 32)); /* ln 1 */
    return _mm512_cvtpd_ps(z);
}

CPU_INLINE void cpu_normals(struct tess_rng_key key, uint64_t counter, float mean, float deviation,
                            float *y)
{
    __m512i word[4];
    __m256 z[2];
    __mmask8 again[2];
    normal_words(key, counter, word);
    for (int i = 0; i < 2; i++)
        z[i] = normal_of(word[2 * i], word[2 * i + 1], &again[i]);
    if (__builtin_expect((again[0] | again[1]) != 0, 0))
        for (int i = 0; i < 2; i++)
            z[i] = normal_again(again[i], word[2 * i], word[2 * i + 1], z[i]);
    const __m512 all = _mm512_permutex2var_ps(
        _mm512_castps256_ps512(z[0]),
        _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
        _mm512_castps256_ps512(z[1]));
    _mm512_storeu_ps(
        y, _mm512_add_ps(_mm512_set1_ps(mean), _mm512_mul_ps(_mm512_set1_ps(deviation), all)));
}

#endif
