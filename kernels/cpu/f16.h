/*
 * Conversions between f16 and f32, CPU_F16_LANES elements at a time, by instructions where the
 * loops' instruction set has them: compilers do not always vectorise half.h's. The instructions
 * give the same bits: to nearest even, subnormals kept, NaN quiet with its upper payload.
 */
#ifndef KERNELS_CPU_F16_H
#define KERNELS_CPU_F16_H

#include "base/half.h"
#include "cpu/own/unroll.h"

#if defined(__AVX512F__)

#include <immintrin.h>

#define CPU_F16_LANES 16

CPU_INLINE void cpu_f16_widen(const uint16_t *half, float *wide)
{
    _mm512_storeu_ps(wide, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)half)));
}

CPU_INLINE void cpu_f16_narrow(const float *wide, uint16_t *half)
{
    _mm256_storeu_si256((void *)half,
                        _mm512_cvtps_ph(_mm512_loadu_ps(wide), _MM_FROUND_TO_NEAREST_INT));
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
#endif
