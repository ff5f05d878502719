/*
 * Packing of rows for the own kernels (conv_grad.c, forward.c, grad.c), which work in 32-bit words:
 * one element in f32, a pair of elements from neighbouring rows in bf16. AVX-512 only.
 */
#ifndef KERNELS_CPU_OWN_PACK_H
#define KERNELS_CPU_OWN_PACK_H

#include "cpu/own/unroll.h"

#include <immintrin.h>
#include <stdint.h>

#define CPU_WORDS 16 /* in a vector */

/* The first `left` lanes, all of them from 16 on, none below 1. */
CPU_INLINE __mmask16 cpu_lanes(int64_t left)
{
    if (left >= CPU_WORDS)
        return (__mmask16)0xffff;
    return left > 0 ? (__mmask16)((1u << left) - 1) : (__mmask16)0;
}

/* `columns` elements of a row, with zeros up to whole vectors. `packed` is aligned to 64 bytes. */
CPU_INLINE void cpu_pack_f32(const float *row, int64_t columns, uint32_t *packed)
{
    CPU_UNROLL
    for (int64_t c = 0; c < columns; c += CPU_WORDS)
        _mm512_store_ps((float *)packed + c,
                        _mm512_maskz_loadu_ps(cpu_lanes(columns - c), row + c));
}

/* Two rows of bf16 interleaved; `odd` NULL: zeros. */
CPU_INLINE void cpu_pack_bf16(const uint16_t *even, const uint16_t *odd, int64_t columns,
                              uint32_t *packed)
{
    CPU_UNROLL
    for (int64_t c = 0; c < columns; c += CPU_WORDS) {
        __mmask16 mask = cpu_lanes(columns - c);
        __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, even + c));
        if (odd) {
            __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, odd + c));
            low = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
        }
        _mm512_store_si512(packed + c, low);
    }
}

#endif
