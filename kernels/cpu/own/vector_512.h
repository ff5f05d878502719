/*
 * Vectors of AVX-512 with bf16 dot products, for vector.h.
 */
#ifndef KERNELS_CPU_OWN_VECTOR_512_H
#define KERNELS_CPU_OWN_VECTOR_512_H

#include "cpu/own/unroll.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define CPU_WORDS 16 /* in a vector */
#define CPU_SUMS  24 /* vectors of sums that a tile keeps in registers: up to CPU_WIDE in a row */
#define CPU_WIDE  4
/* Linear layers multiply bf16 in pairs of neighbours; else as f32, widened where it is packed. */
#define CPU_PAIRS true

typedef __m512 cpu_vector;  /* CPU_WORDS elements of f32 */
typedef __m512i cpu_words;  /* CPU_WORDS words of 32 bits */
typedef __m256i cpu_halves; /* CPU_WORDS elements of 16 bits */
typedef __mmask16 cpu_mask; /* of lanes */

/* The first `left` lanes, all of them from CPU_WORDS on, none below 1. */
CPU_INLINE cpu_mask cpu_lanes(int64_t left)
{
    if (left >= CPU_WORDS)
        return (cpu_mask)0xffff;
    return left > 0 ? (cpu_mask)((1u << left) - 1) : (cpu_mask)0;
}

/* Those of `mask` that are not in `without`. */
CPU_INLINE cpu_mask cpu_lanes_without(cpu_mask mask, cpu_mask without)
{
    return (cpu_mask)(mask & ~without);
}

CPU_INLINE cpu_vector cpu_zero(void)
{
    return _mm512_setzero_ps();
}

CPU_INLINE cpu_vector cpu_set(float value)
{
    return _mm512_set1_ps(value);
}

/* At addresses that are multiples of a vector's bytes. */
CPU_INLINE cpu_vector cpu_load(const float *from)
{
    return _mm512_load_ps(from);
}

CPU_INLINE void cpu_store(float *to, cpu_vector value)
{
    _mm512_store_ps(to, value);
}

/* At any address. */
CPU_INLINE cpu_vector cpu_load_any(const float *from)
{
    return _mm512_loadu_ps(from);
}

CPU_INLINE void cpu_store_any(float *to, cpu_vector value)
{
    _mm512_storeu_ps(to, value);
}

/* Other lanes are 0, and their memory is not touched. */
CPU_INLINE cpu_vector cpu_load_lanes(cpu_mask mask, const float *from)
{
    return _mm512_maskz_loadu_ps(mask, from);
}

CPU_INLINE void cpu_store_lanes(float *to, cpu_mask mask, cpu_vector value)
{
    _mm512_mask_storeu_ps(to, mask, value);
}

/* Elements that are `step` apart. */
CPU_INLINE cpu_vector cpu_gather(const float *from, int64_t step)
{
    const cpu_words lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_i32gather_ps(_mm512_mullo_epi32(lane, _mm512_set1_epi32((int)step)), from, 4);
}

CPU_INLINE cpu_halves cpu_load_halves(cpu_mask mask, const uint16_t *from)
{
    return _mm256_maskz_loadu_epi16(mask, from);
}

CPU_INLINE void cpu_store_halves(uint16_t *to, cpu_mask mask, cpu_halves value)
{
    _mm256_mask_storeu_epi16(to, mask, value);
}

CPU_INLINE cpu_halves cpu_load_halves_any(const uint16_t *from)
{
    return _mm256_loadu_si256((const void *)from);
}

CPU_INLINE void cpu_store_halves_any(uint16_t *to, cpu_halves value)
{
    _mm256_storeu_si256((void *)to, value);
}

CPU_INLINE cpu_halves cpu_zero_halves(void)
{
    return _mm256_setzero_si256();
}

/* `value` in the lanes of `mask`, 0 in others. */
CPU_INLINE cpu_vector cpu_keep(cpu_mask mask, cpu_vector value)
{
    return _mm512_maskz_mov_ps(mask, value);
}

CPU_INLINE cpu_vector cpu_add(cpu_vector a, cpu_vector b)
{
    return _mm512_add_ps(a, b);
}

CPU_INLINE cpu_vector cpu_sub(cpu_vector a, cpu_vector b)
{
    return _mm512_sub_ps(a, b);
}

CPU_INLINE cpu_vector cpu_mul(cpu_vector a, cpu_vector b)
{
    return _mm512_mul_ps(a, b);
}

/* a b + c, a b - c, c - a b, fused. */
CPU_INLINE cpu_vector cpu_fma(cpu_vector a, cpu_vector b, cpu_vector c)
{
    return _mm512_fmadd_ps(a, b, c);
}

CPU_INLINE cpu_vector cpu_fms(cpu_vector a, cpu_vector b, cpu_vector c)
{
    return _mm512_fmsub_ps(a, b, c);
}

CPU_INLINE cpu_vector cpu_fnma(cpu_vector a, cpu_vector b, cpu_vector c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* The greater; b where one is a NaN. */
CPU_INLINE cpu_vector cpu_max(cpu_vector a, cpu_vector b)
{
    return _mm512_max_ps(a, b);
}

/* The same in the lanes of `mask`, `a` in others. */
CPU_INLINE cpu_vector cpu_max_lanes(cpu_mask mask, cpu_vector a, cpu_vector b)
{
    return _mm512_mask_max_ps(a, mask, a, b);
}

/* To the nearest whole number. */
CPU_INLINE cpu_vector cpu_round(cpu_vector value)
{
    return _mm512_roundscale_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* `value`, about 1, times 2^power, of whole powers from -200 to 0. AVX2 has 0 below 2^-126. */
CPU_INLINE cpu_vector cpu_scale(cpu_vector value, cpu_vector power)
{
    return _mm512_scalef_ps(value, power);
}

/* Of CPU_SUM_LANES lanes: halves on halves. */
CPU_INLINE float cpu_sum_of(const cpu_vector sum[CPU_SUM_VECTORS])
{
    return _mm512_reduce_add_ps(sum[0]);
}

CPU_INLINE float cpu_max_of(const cpu_vector value[CPU_SUM_VECTORS])
{
    return _mm512_reduce_max_ps(value[0]);
}

CPU_INLINE cpu_vector cpu_as_vector(cpu_words words)
{
    return _mm512_castsi512_ps(words);
}

CPU_INLINE cpu_words cpu_zero_words(void)
{
    return _mm512_setzero_si512();
}

CPU_INLINE cpu_words cpu_set_words(uint32_t word)
{
    return _mm512_set1_epi32((int)word);
}

CPU_INLINE cpu_words cpu_load_words(const void *from)
{
    return _mm512_load_si512(from);
}

CPU_INLINE cpu_words cpu_load_words_any(const void *from)
{
    return _mm512_loadu_si512(from);
}

CPU_INLINE cpu_words cpu_load_words_lanes(cpu_mask mask, const void *from)
{
    return _mm512_maskz_loadu_epi32(mask, from);
}

CPU_INLINE void cpu_store_words(void *to, cpu_words words)
{
    _mm512_store_si512(to, words);
}

/* `words` with `word` in lane `lane`. */
CPU_INLINE cpu_words cpu_set_lane(cpu_words words, int64_t lane, uint32_t word)
{
    return _mm512_mask_set1_epi32(words, (cpu_mask)(1u << lane), (int)word);
}

/* first, first + 1, ... */
CPU_INLINE cpu_words cpu_count_words(uint32_t first)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_add_epi32(lane, _mm512_set1_epi32((int)first));
}

CPU_INLINE cpu_words cpu_xor(cpu_words a, cpu_words b)
{
    return _mm512_xor_si512(a, b);
}

/* Both halves of the products of words and one. */
CPU_INLINE void cpu_multiply_words(cpu_words a, uint32_t b, cpu_words *high, cpu_words *low)
{
    const __m512i factor = _mm512_set1_epi64((int64_t)b);
    const __m512i even = _mm512_mul_epu32(a, factor);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), factor);
    *high = _mm512_mask_blend_epi32((__mmask16)0xaaaa, _mm512_srli_epi64(even, 32), odd);
    *low = _mm512_mask_blend_epi32((__mmask16)0xaaaa, even, _mm512_slli_epi64(odd, 32));
}

/* Where the upper 24 bits of a word are at least `limit`. */
CPU_INLINE cpu_mask cpu_at_least(cpu_words words, uint32_t limit)
{
    return _mm512_cmpge_epu32_mask(_mm512_srli_epi32(words, 8), _mm512_set1_epi32((int)limit));
}

/* Elements of bf16 as f32. */
CPU_INLINE cpu_vector cpu_widen(cpu_halves half)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Rounded to bf16, to nearest even. */
CPU_INLINE cpu_halves cpu_narrow(cpu_vector value)
{
    return (cpu_halves)_mm512_cvtneps_pbh(value);
}

/* The same of f16. */
CPU_INLINE cpu_vector cpu_widen_f16(cpu_halves half)
{
    return _mm512_cvtph_ps(half);
}

CPU_INLINE cpu_halves cpu_narrow_f16(cpu_vector value)
{
    return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
}

/* Elements of two rows of bf16 interleaved. */
CPU_INLINE cpu_words cpu_pair(cpu_halves even, cpu_halves odd)
{
    return _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

/* The even and the odd elements of pairs of bf16, as f32. */
CPU_INLINE cpu_words cpu_even(cpu_words pairs)
{
    return _mm512_slli_epi32(pairs, 16);
}

CPU_INLINE cpu_words cpu_odd(cpu_words pairs)
{
    return _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u));
}

/* sum + the product of words: in f32 of elements, with `pairs` of bf16 by the rules of the
 * instruction. */
CPU_INLINE cpu_vector cpu_product(bool pairs, cpu_vector sum, cpu_words a, cpu_words b)
{
    return pairs ? _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b)
                 : _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
}

#endif
