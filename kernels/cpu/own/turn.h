/*
 * Turning of matrices of 32-bit words (an element in f32, a pair of neighbours in bf16), so that
 * vectors run along what were rows.
 */
#ifndef KERNELS_CPU_OWN_TURN_H
#define KERNELS_CPU_OWN_TURN_H

#include "cpu/own/pack.h"

#include <stdbool.h>
#include <string.h>

#if CPU_WORDS == 16
/* Transpose CPU_WORDS rows of as many words: four rounds of exchanging words, pairs, quarters and
 * halves. */
CPU_INLINE void cpu_turn_square(cpu_words *row)
{
    cpu_words a[16], b[16];
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
#else
/* The same of 8 x 8: words, pairs and halves. */
CPU_INLINE void cpu_turn_square(cpu_words *row)
{
    cpu_words a[8], b[8];
    CPU_UNROLL
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
    }
    CPU_UNROLL
    for (int i = 0; i < 2; i++) {
        b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    CPU_UNROLL
    for (int i = 0; i < 4; i++) {
        row[i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x20);
        row[4 + i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x31);
    }
}
#endif

/* Step s: a word of each row, or where `split` both elements of a pair, as f32 in two steps. */
CPU_INLINE void cpu_turn_store(bool split, cpu_words word, int64_t wide, int64_t s,
                               uint32_t *turned)
{
    if (!split) {
        cpu_store_words(turned + s * wide * CPU_WORDS, word);
        return;
    }
    cpu_store_words(turned + 2 * s * wide * CPU_WORDS, cpu_even(word));
    cpu_store_words(turned + (2 * s + 1) * wide * CPU_WORDS, cpu_odd(word));
}

/* CPU_WORDS rows and steps of cpu_turn(). */
CPU_INLINE void cpu_turn_block(bool split, const char *from, size_t row_bytes, int64_t wide,
                               uint32_t *turned)
{
    cpu_words word[CPU_WORDS];
    CPU_UNROLL
    for (int r = 0; r < CPU_WORDS; r++)
        word[r] = cpu_load_words_any(from + (size_t)r * row_bytes);
    cpu_turn_square(word);
    CPU_UNROLL
    for (int s = 0; s < CPU_WORDS; s++)
        cpu_turn_store(split, word[s], wide, s, turned);
}

/* The same at the edges: up to CPU_WORDS rows and steps, the last of them perhaps odd. */
static inline void cpu_turn_edge(bool split, const char *from, size_t row_bytes, int64_t rows,
                                 int64_t wide, int64_t steps, bool odd_step, uint32_t *turned)
{
    cpu_words word[CPU_WORDS];
    int64_t whole = steps - odd_step;
    for (int r = 0; r < CPU_WORDS; r++) {
        const char *row = from + (size_t)r * row_bytes;
        word[r] = r < rows ? cpu_load_words_lanes(cpu_lanes(whole), row) : cpu_zero_words();
        if (odd_step && r < rows) {
            uint16_t last;
            memcpy(&last, row + whole * 4, 2);
            word[r] = cpu_set_lane(word[r], whole, last);
        }
    }
    cpu_turn_square(word);
    for (int s = 0; s < CPU_WORDS && s < steps; s++)
        cpu_turn_store(split, word[s], wide, s, turned);
}

/* cpu_turn(); where `split` pairs become two steps of f32. */
CPU_INLINE void cpu_turn_split(bool split, const char *from, size_t row_bytes, int64_t rows,
                               int64_t wide, int64_t steps, bool odd_step, uint32_t *turned)
{
    const int64_t step_words = (split ? 2 : 1) * wide * CPU_WORDS;
    int64_t whole = steps - odd_step;
    for (int64_t first = 0; first < wide * CPU_WORDS; first += CPU_WORDS) {
        const char *row = from + (size_t)first * row_bytes;
        uint32_t *target = turned + first;
        int64_t step = 0;
        for (; first + CPU_WORDS <= rows && step + CPU_WORDS <= whole; step += CPU_WORDS)
            cpu_turn_block(split, row + step * 4, row_bytes, wide, target + step * step_words);
        for (; step < steps; step += CPU_WORDS) {
            int64_t left = steps - step < CPU_WORDS ? steps - step : CPU_WORDS;
            cpu_turn_edge(split, row + step * 4, row_bytes, rows - first, wide, left,
                          odd_step && step + left == steps, target + step * step_words);
        }
    }
}

/*
 * Turn `rows` rows of `steps` words each, `row_bytes` apart, into [steps, wide * CPU_WORDS]. Rows
 * past the last one are zeros; so is the upper half of an odd last step.
 */
static inline void cpu_turn(const char *from, size_t row_bytes, int64_t rows, int64_t wide,
                            int64_t steps, bool odd_step, uint32_t *turned)
{
    cpu_turn_split(false, from, row_bytes, rows, wide, steps, odd_step, turned);
}

#endif
