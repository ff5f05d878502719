/*
 * Rounding of f32 to bf16, CPU_BF16_LANES elements at a time: what compilers make of half.h costs
 * twice as much. The bits are the same: to nearest even, NaN quiet with its upper payload.
 */
#ifndef KERNELS_CPU_BF16_H
#define KERNELS_CPU_BF16_H

#include "base/half.h"
#include "cpu/own/unroll.h"

#if defined(__AVX512F__)

#include <immintrin.h>

#define CPU_BF16_LANES 16

CPU_INLINE void cpu_bf16_narrow(const float *wide, uint16_t *half)
{
    __m512 value = _mm512_loadu_ps(wide);
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i round = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    __m512i sum = _mm512_add_epi32(bits, round);
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    sum = _mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((void *)half, _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)));
}

#else

#define CPU_BF16_LANES 1

CPU_INLINE void cpu_bf16_narrow(const float *wide, uint16_t *half)
{
    *half = tess__bf16_of_f32(*wide);
}

#endif
#endif
