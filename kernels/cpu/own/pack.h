/*
 * What the own kernels share. They work in 32-bit words: one element in f32, a pair of elements
 * from neighbouring rows in bf16. Packing of rows, and one step of a tile of sums. AVX-512 only.
 */
#ifndef KERNELS_CPU_OWN_PACK_H
#define KERNELS_CPU_OWN_PACK_H

#include "cpu/own/unroll.h"

#include "tessera/tensor.h"

#include <immintrin.h>
#include <stdbool.h>
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

/* 16 elements of bf16 as f32. */
CPU_INLINE __m512 cpu_widen(__m256i half)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* 16 elements of two rows of bf16 interleaved. */
CPU_INLINE __m512i cpu_pair(__m256i even, __m256i odd)
{
    return _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

/* Two rows of bf16 interleaved; `odd` NULL: zeros. */
CPU_INLINE void cpu_pack_bf16(const uint16_t *even, const uint16_t *odd, int64_t columns,
                              uint32_t *packed)
{
    CPU_UNROLL
    for (int64_t c = 0; c < columns; c += CPU_WORDS) {
        __mmask16 mask = cpu_lanes(columns - c);
        __m256i low = _mm256_maskz_loadu_epi16(mask, even + c), high = _mm256_setzero_si256();
        if (odd)
            high = _mm256_maskz_loadu_epi16(mask, odd + c);
        _mm512_store_si512(packed + c, cpu_pair(low, high));
    }
}

/* A step of x [.., width] from column `first` on: row `row`, in bf16 with the next one where
 * `pair`. */
CPU_INLINE void cpu_pack_step(bool half, const void *x, int64_t width, int64_t row, bool pair,
                              int64_t first, int64_t columns, uint32_t *packed)
{
    int64_t at = row * width + first;
    if (!half) {
        cpu_pack_f32((const float *)x + at, columns, packed);
        return;
    }
    const uint16_t *even = (const uint16_t *)x + at;
    cpu_pack_bf16(even, pair ? even + width : NULL, columns, packed);
}

#define CPU_PACK_AHEAD 16 /* steps */

/* Prefetch what packing a step CPU_PACK_AHEAD later reads; `row` is the first one of this step. It
 * is a few cache lines of rows that lie far apart, which the hardware does not foresee. */
CPU_INLINE void cpu_pack_ask(bool half, const void *x, int64_t width, int64_t row, int64_t first,
                             int64_t columns)
{
    const int64_t per_step = half ? 2 : 1, element = half ? 2 : 4;
    const int64_t at = (row + CPU_PACK_AHEAD * per_step) * width + first;
    for (int64_t r = 0; r < per_step; r++)
        for (int64_t byte = 0; byte < columns * element; byte += 64)
            _mm_prefetch((const char *)x + (at + r * width) * element + byte, _MM_HINT_T0);
}

/* Prefetch 64 columns from `first` on of rows begin .. end - 1, where x [rows, width] has them. */
CPU_INLINE void cpu_ask_rows(bool half, const void *x, int64_t rows, int64_t width, int64_t begin,
                             int64_t end, int64_t first)
{
    size_t element = half ? 2 : 4;
    for (int64_t row = begin; row < end && row < rows; row++) {
        const char *at = (const char *)x + (size_t)(row * width + first) * element;
        for (size_t byte = 0; byte < 64 * element; byte += 64)
            _mm_prefetch(at + byte, _MM_HINT_T1);
    }
}

/* One step of a tile of `tall` rows and `wide` vectors: sum[r * wide + c] += scalar[r] column[c],
 * fused. */
CPU_INLINE void cpu_step(__m512 *sum, bool half, int tall, int wide, const uint32_t *column,
                         const uint32_t *scalar)
{
    __m512i vector[4];
    CPU_UNROLL
    for (int c = 0; c < wide; c++) {
        vector[c] = _mm512_loadu_si512(column + c * CPU_WORDS);
        CPU_IN_REGISTER(vector[c]);
    }
    CPU_UNROLL
    for (int r = 0; r < tall; r++) {
        __m512i one = _mm512_set1_epi32((int)scalar[r]);
        CPU_UNROLL
        for (int c = 0; c < wide; c++)
            sum[r * wide + c] =
                half ? _mm512_dpbf16_ps(sum[r * wide + c], (__m512bh)vector[c], (__m512bh)one)
                     : _mm512_fmadd_ps(_mm512_castsi512_ps(vector[c]), _mm512_castsi512_ps(one),
                                       sum[r * wide + c]);
    }
}

#endif
