/*
 * Vectors of AVX2, for vector.h: what vector_512.h declares and describes.
 */
#ifndef KERNELS_CPU_OWN_VECTOR_256_H
#define KERNELS_CPU_OWN_VECTOR_256_H

#include "cpu/half.h"
#include "cpu/own/unroll.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define CPU_WORDS 8
#define CPU_SUMS  12
#define CPU_WIDE  2
#define CPU_PAIRS false

typedef __m256 cpu_vector;
typedef __m256i cpu_words;
typedef __m128i cpu_halves;
typedef __m256i cpu_mask; /* the uppermost bit of each word */

CPU_INLINE cpu_mask cpu_lanes(int64_t left)
{
    const int32_t count = left < CPU_WORDS ? (int32_t)left : CPU_WORDS;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

CPU_INLINE cpu_mask cpu_lanes_without(cpu_mask mask, cpu_mask without)
{
    return _mm256_andnot_si256(without, mask);
}

CPU_INLINE cpu_vector cpu_zero(void)
{
    return _mm256_setzero_ps();
}

CPU_INLINE cpu_vector cpu_set(float value)
{
    return _mm256_set1_ps(value);
}

CPU_INLINE cpu_vector cpu_load(const float *from)
{
    return _mm256_load_ps(from);
}

CPU_INLINE void cpu_store(float *to, cpu_vector value)
{
    _mm256_store_ps(to, value);
}

CPU_INLINE cpu_vector cpu_load_any(const float *from)
{
    return _mm256_loadu_ps(from);
}

CPU_INLINE void cpu_store_any(float *to, cpu_vector value)
{
    _mm256_storeu_ps(to, value);
}

CPU_INLINE cpu_vector cpu_load_lanes(cpu_mask mask, const float *from)
{
    return _mm256_maskload_ps(from, mask);
}

/* A masked store takes AMD's processors some 20 cycles. */
CPU_INLINE void cpu_store_lanes(float *to, cpu_mask mask, cpu_vector value)
{
    if (_mm256_movemask_ps(_mm256_castsi256_ps(mask)) == 0xff)
        _mm256_storeu_ps(to, value);
    else
        _mm256_maskstore_ps(to, mask, value);
}

CPU_INLINE cpu_vector cpu_gather(const float *from, int64_t step)
{
    const cpu_words lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_i32gather_ps(from, _mm256_mullo_epi32(lane, _mm256_set1_epi32((int)step)), 4);
}

/* AVX2 masks no elements of 16 bits: those of whole vectors at once, others one by one. */
CPU_INLINE cpu_halves cpu_load_halves(cpu_mask mask, const uint16_t *from)
{
    const int lanes = _mm256_movemask_ps(_mm256_castsi256_ps(mask));
    if (lanes == 0xff)
        return _mm_loadu_si128((const void *)from);
    if (lanes == 0)
        return _mm_setzero_si128();
    uint16_t half[CPU_WORDS] = {0};
    for (int i = 0; i < CPU_WORDS; i++)
        if (lanes >> i & 1)
            half[i] = from[i];
    return _mm_loadu_si128((const void *)half);
}

CPU_INLINE void cpu_store_halves(uint16_t *to, cpu_mask mask, cpu_halves value)
{
    const int lanes = _mm256_movemask_ps(_mm256_castsi256_ps(mask));
    if (lanes == 0xff) {
        _mm_storeu_si128((void *)to, value);
        return;
    }
    uint16_t half[CPU_WORDS];
    _mm_storeu_si128((void *)half, value);
    for (int i = 0; i < CPU_WORDS; i++)
        if (lanes >> i & 1)
            to[i] = half[i];
}

CPU_INLINE cpu_halves cpu_load_halves_any(const uint16_t *from)
{
    return _mm_loadu_si128((const void *)from);
}

CPU_INLINE void cpu_store_halves_any(uint16_t *to, cpu_halves value)
{
    _mm_storeu_si128((void *)to, value);
}

CPU_INLINE cpu_halves cpu_zero_halves(void)
{
    return _mm_setzero_si128();
}

CPU_INLINE cpu_vector cpu_keep(cpu_mask mask, cpu_vector value)
{
    return _mm256_and_ps(_mm256_castsi256_ps(mask), value);
}

CPU_INLINE cpu_vector cpu_add(cpu_vector a, cpu_vector b)
{
    return _mm256_add_ps(a, b);
}

CPU_INLINE cpu_vector cpu_sub(cpu_vector a, cpu_vector b)
{
    return _mm256_sub_ps(a, b);
}

CPU_INLINE cpu_vector cpu_mul(cpu_vector a, cpu_vector b)
{
    return _mm256_mul_ps(a, b);
}

CPU_INLINE cpu_vector cpu_fma(cpu_vector a, cpu_vector b, cpu_vector c)
{
    return _mm256_fmadd_ps(a, b, c);
}

CPU_INLINE cpu_vector cpu_fms(cpu_vector a, cpu_vector b, cpu_vector c)
{
    return _mm256_fmsub_ps(a, b, c);
}

CPU_INLINE cpu_vector cpu_fnma(cpu_vector a, cpu_vector b, cpu_vector c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

CPU_INLINE cpu_vector cpu_max(cpu_vector a, cpu_vector b)
{
    return _mm256_max_ps(a, b);
}

CPU_INLINE cpu_vector cpu_max_lanes(cpu_mask mask, cpu_vector a, cpu_vector b)
{
    return _mm256_blendv_ps(a, _mm256_max_ps(a, b), _mm256_castsi256_ps(mask));
}

CPU_INLINE cpu_vector cpu_round(cpu_vector value)
{
    return _mm256_round_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Adding 3 2^22 + 127 leaves power + 127, an exponent, in the lowest bits. */
CPU_INLINE cpu_vector cpu_scale(cpu_vector value, cpu_vector power)
{
    const __m256 low = _mm256_add_ps(power, _mm256_set1_ps(0x1.8p23f + 127));
    const __m256i factor = _mm256_slli_epi32(_mm256_castps_si256(low), 23);
    const __m256 normal = _mm256_cmp_ps(power, _mm256_set1_ps(-126), _CMP_NLT_UQ);
    return _mm256_and_ps(_mm256_mul_ps(value, _mm256_castsi256_ps(factor)), normal);
}

CPU_INLINE float cpu_sum_of(const cpu_vector sum[CPU_SUM_VECTORS])
{
    const __m256 all = _mm256_add_ps(sum[1], sum[0]);
    const __m128 four = _mm_add_ps(_mm256_extractf128_ps(all, 1), _mm256_castps256_ps128(all));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

CPU_INLINE float cpu_max_of(const cpu_vector value[CPU_SUM_VECTORS])
{
    const __m256 all = _mm256_max_ps(value[1], value[0]);
    const __m128 four = _mm_max_ps(_mm256_extractf128_ps(all, 1), _mm256_castps256_ps128(all));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

CPU_INLINE cpu_vector cpu_as_vector(cpu_words words)
{
    return _mm256_castsi256_ps(words);
}

CPU_INLINE cpu_words cpu_zero_words(void)
{
    return _mm256_setzero_si256();
}

CPU_INLINE cpu_words cpu_set_words(uint32_t word)
{
    return _mm256_set1_epi32((int)word);
}

CPU_INLINE cpu_words cpu_load_words(const void *from)
{
    return _mm256_load_si256(from);
}

CPU_INLINE cpu_words cpu_load_words_any(const void *from)
{
    return _mm256_loadu_si256(from);
}

CPU_INLINE cpu_words cpu_load_words_lanes(cpu_mask mask, const void *from)
{
    return _mm256_maskload_epi32(from, mask);
}

CPU_INLINE void cpu_store_words(void *to, cpu_words words)
{
    _mm256_store_si256(to, words);
}

CPU_INLINE cpu_words cpu_set_lane(cpu_words words, int64_t lane, uint32_t word)
{
    const cpu_mask own =
        _mm256_cmpeq_epi32(_mm256_set1_epi32((int)lane), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_blendv_epi8(words, _mm256_set1_epi32((int)word), own);
}

CPU_INLINE cpu_words cpu_count_words(uint32_t first)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_add_epi32(lane, _mm256_set1_epi32((int)first));
}

CPU_INLINE cpu_words cpu_xor(cpu_words a, cpu_words b)
{
    return _mm256_xor_si256(a, b);
}

CPU_INLINE void cpu_multiply_words(cpu_words a, uint32_t b, cpu_words *high, cpu_words *low)
{
    const __m256i factor = _mm256_set1_epi64x((int64_t)b);
    const __m256i even = _mm256_mul_epu32(a, factor);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}

CPU_INLINE cpu_mask cpu_at_least(cpu_words words, uint32_t limit)
{
    return _mm256_cmpgt_epi32(_mm256_srli_epi32(words, 8), _mm256_set1_epi32((int)limit - 1));
}

CPU_INLINE cpu_vector cpu_widen(cpu_halves half)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

CPU_INLINE cpu_halves cpu_narrow(cpu_vector value)
{
    return cpu_bf16_of(value);
}

CPU_INLINE cpu_vector cpu_widen_f16(cpu_halves half)
{
    return _mm256_cvtph_ps(half);
}

CPU_INLINE cpu_halves cpu_narrow_f16(cpu_vector value)
{
    return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
}

CPU_INLINE cpu_words cpu_pair(cpu_halves even, cpu_halves odd)
{
    return _mm256_or_si256(_mm256_cvtepu16_epi32(even),
                           _mm256_slli_epi32(_mm256_cvtepu16_epi32(odd), 16));
}

CPU_INLINE cpu_words cpu_even(cpu_words pairs)
{
    return _mm256_slli_epi32(pairs, 16);
}

CPU_INLINE cpu_words cpu_odd(cpu_words pairs)
{
    return _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u));
}

/* In place: of the sums of several steps compilers move some to other registers and, with all 16 in
 * use, to memory. */
CPU_INLINE cpu_vector cpu_product(bool pairs, cpu_vector sum, cpu_words a, cpu_words b)
{
    (void)pairs; /* there are none */
    __asm__("vfmadd231ps %2, %1, %0"
            : "+x"(sum)
            : "x"(_mm256_castsi256_ps(a)), "x"(_mm256_castsi256_ps(b)));
    return sum;
}

#endif
