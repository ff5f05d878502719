/*
 * Conversions between f16 and f32, and of f32 to bf16, CPU_F16_LANES and CPU_BF16_LANES elements at
 * a time, by instructions where the loops' instruction set has them: compilers do not always
 * vectorise half.h's, and what they make of rounding to bf16 costs twice as much. The bits are the
 * same: to nearest even, subnormals kept, NaN quiet with its upper payload.
 */
#ifndef KERNELS_CPU_HALF_H
#define KERNELS_CPU_HALF_H

#include "base/half.h"
#include "cpu/own/unroll.h"

#if defined(__AVX512F__)

#include <immintrin.h>

#define CPU_F16_LANES  16
#define CPU_BF16_LANES 16

CPU_INLINE void cpu_f16_widen(const uint16_t *half, float *wide)
{
    _mm512_storeu_ps(wide, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)half)));
}

CPU_INLINE void cpu_f16_narrow(const float *wide, uint16_t *half)
{
    _mm256_storeu_si256((void *)half,
                        _mm512_cvtps_ph(_mm512_loadu_ps(wide), _MM_FROUND_TO_NEAREST_INT));
}

CPU_INLINE __m256i cpu_bf16_of(__m512 value)
{
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i round = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    __m512i sum = _mm512_add_epi32(bits, round);
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    sum = _mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
}

CPU_INLINE void cpu_bf16_narrow(const float *wide, uint16_t *half)
{
    _mm256_storeu_si256((void *)half, cpu_bf16_of(_mm512_loadu_ps(wide)));
}

#elif defined(__F16C__)

#include <immintrin.h>

#define CPU_F16_LANES 8

CPU_INLINE void cpu_f16_widen(const uint16_t *half, float *wide)
{
    _mm256_storeu_ps(wide, _mm256_cvtph_ps(_mm_loadu_si128((const void *)half)));
}

CPU_INLINE void cpu_f16_narrow(const float *wide, uint16_t *half)
{
    _mm_storeu_si128((void *)half,
                     _mm256_cvtps_ph(_mm256_loadu_ps(wide), _MM_FROUND_TO_NEAREST_INT));
}

#if defined(__AVX2__)

#define CPU_BF16_LANES 8

/* The lower halves of 8 words. */
CPU_INLINE __m128i cpu_low_halves(__m256i word)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(word), _mm256_extracti128_si256(word, 1));
}

CPU_INLINE __m128i cpu_bf16_of(__m256 value)
{
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i round = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i sum = _mm256_blendv_epi8(_mm256_add_epi32(bits, round), quiet, nan);
    return cpu_low_halves(_mm256_srli_epi32(sum, 16));
}

CPU_INLINE void cpu_bf16_narrow(const float *wide, uint16_t *half)
{
    _mm_storeu_si128((void *)half, cpu_bf16_of(_mm256_loadu_ps(wide)));
}

#endif

#else

#define CPU_F16_LANES 1

CPU_INLINE void cpu_f16_widen(const uint16_t *half, float *wide)
{
    *wide = tess__f32_of_f16(*half);
}

CPU_INLINE void cpu_f16_narrow(const float *wide, uint16_t *half)
{
    *half = tess__f16_of_f32(*wide);
}

#endif

#ifndef CPU_BF16_LANES
#define CPU_BF16_LANES 1

CPU_INLINE void cpu_bf16_narrow(const float *wide, uint16_t *half)
{
    *half = tess__bf16_of_f32(*wide);
}
#endif
#endif
