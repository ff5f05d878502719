/*
 * Turning of matrices of 32-bit words (an element in f32, a pair of neighbours in bf16), so that
 * vectors run along what were rows. AVX-512 only.
 */
#ifndef KERNELS_CPU_OWN_TURN_H
#define KERNELS_CPU_OWN_TURN_H

#include "cpu/own/pack.h"

#include <stdbool.h>
#include <string.h>

/* Transpose 16 x 16 words: four rounds of exchanging words, pairs, quarters and halves. */
CPU_INLINE void cpu_turn16(__m512i *row)
{
    __m512i a[16], b[16];
    CPU_UNROLL
    for (int i = 0; i < 8; i++) {
        a[2 * i] = _mm512_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
    }
    CPU_UNROLL
    for (int i = 0; i < 4; i++) {
        b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    CPU_UNROLL
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88);
        a[4 + i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xdd);
        a[8 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88);
        a[12 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xdd);
    }
    CPU_UNROLL
    for (int i = 0; i < 8; i++) {
        row[i] = _mm512_shuffle_i32x4(a[i], a[8 + i], 0x88);
        row[8 + i] = _mm512_shuffle_i32x4(a[i], a[8 + i], 0xdd);
    }
}

/* 16 rows and 16 steps of cpu_turn(). */
CPU_INLINE void cpu_turn_block(const char *from, size_t row_bytes, int64_t wide, uint32_t *turned)
{
    __m512i word[CPU_WORDS];
    CPU_UNROLL
    for (int r = 0; r < CPU_WORDS; r++)
        word[r] = _mm512_loadu_si512(from + (size_t)r * row_bytes);
    cpu_turn16(word);
    CPU_UNROLL
    for (int s = 0; s < CPU_WORDS; s++)
        _mm512_store_si512(turned + s * wide * CPU_WORDS, word[s]);
}

/* The same at the edges: up to 16 rows and 16 steps, the last of them perhaps odd. */
static inline void cpu_turn_edge(const char *from, size_t row_bytes, int64_t rows, int64_t wide,
                                 int64_t steps, bool odd_step, uint32_t *turned)
{
    __m512i word[CPU_WORDS];
    int64_t whole = steps - odd_step;
    for (int r = 0; r < CPU_WORDS; r++) {
        const char *row = from + (size_t)r * row_bytes;
        word[r] =
            r < rows ? _mm512_maskz_loadu_epi32(cpu_lanes(whole), row) : _mm512_setzero_si512();
        if (odd_step && r < rows) {
            uint16_t last;
            memcpy(&last, row + whole * 4, 2);
            word[r] = _mm512_mask_set1_epi32(word[r], (__mmask16)(1u << whole), last);
        }
    }
    cpu_turn16(word);
    for (int s = 0; s < CPU_WORDS && s < steps; s++)
        _mm512_store_si512(turned + s * wide * CPU_WORDS, word[s]);
}

/*
 * Turn `rows` rows of `steps` words each, `row_bytes` apart, into [steps, wide * 16]. Rows past the
 * last one are zeros; so is the upper half of an odd last step.
 */
static inline void cpu_turn(const char *from, size_t row_bytes, int64_t rows, int64_t wide,
                            int64_t steps, bool odd_step, uint32_t *turned)
{
    int64_t whole = steps - odd_step;
    for (int64_t first = 0; first < wide * CPU_WORDS; first += CPU_WORDS) {
        const char *row = from + (size_t)first * row_bytes;
        uint32_t *target = turned + first;
        int64_t step = 0;
        for (; first + CPU_WORDS <= rows && step + CPU_WORDS <= whole; step += CPU_WORDS)
            cpu_turn_block(row + step * 4, row_bytes, wide, target + step * wide * CPU_WORDS);
        for (; step < steps; step += CPU_WORDS) {
            int64_t left = steps - step < CPU_WORDS ? steps - step : CPU_WORDS;
            cpu_turn_edge(row + step * 4, row_bytes, rows - first, wide, left,
                          odd_step && step + left == steps, target + step * wide * CPU_WORDS);
        }
    }
}

#endif
