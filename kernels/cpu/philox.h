/* Philox of base/rng.h for CPU_BLOCK elements at once, one counter per lane. */
#ifndef KERNELS_CPU_PHILOX_H
#define KERNELS_CPU_PHILOX_H

#include "base/rng.h"
#include "cpu/own/stage.h"
#include "cpu/own/unroll.h"

#define CPU_PHILOX_LANES (CPU_BLOCK / 4) /* a counter gives four words */

/*
 * The words of these counters: those of tess_rng_block(). Multipliers and key increments of Salmon
 * et al. 2011, table 2 and section 3.3.
 */
#if defined(__AVX2__) && !defined(__AVX512F__)

#include <immintrin.h>

/* A word in the lower half of each lane, where products are taken from; upper halves are not
 * defined. Compilers move the halves about instead. */
CPU_INLINE void philox_round(__m256i c[4], __m256i k0, __m256i k1)
{
    const __m256i p0 = _mm256_mul_epu32(_mm256_set1_epi64x(0xd2511f53), c[0]);
    const __m256i p1 = _mm256_mul_epu32(_mm256_set1_epi64x(0xcd9e8d57), c[2]);
    c[0] = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(c[1], k0));
    c[1] = p1;
    c[2] = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_xor_si256(c[3], k1));
    c[3] = p0;
}

/* The 16 words of four counters, from the four vectors of them. */
CPU_INLINE void philox_store(const __m256i c[4], uint32_t *word)
{
    const __m256i low = _mm256_blend_epi32(c[0], _mm256_slli_epi64(c[1], 32), 0xaa);
    const __m256i high = _mm256_blend_epi32(c[2], _mm256_slli_epi64(c[3], 32), 0xaa);
    const __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
    _mm256_storeu_si256((void *)word, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256((void *)(word + 8), _mm256_permute2x128_si256(even, odd, 0x31));
}

/* Of four counters in c[0][0] and four in c[1][0]: one waits for its products. */
CPU_INLINE void philox_rounds(struct tess_rng_key key, __m256i c[2][4])
{
    __m256i k0 = _mm256_set1_epi32((int32_t)key.word[0]);
    __m256i k1 = _mm256_set1_epi32((int32_t)key.word[1]);
    for (int i = 0; i < 2; i++) {
        c[i][1] = _mm256_srli_epi64(c[i][0], 32);
        c[i][2] = c[i][3] = _mm256_setzero_si256();
    }
    CPU_UNROLL
    for (int round = 0; round < 10; round++) {
        philox_round(c[0], k0, k1);
        philox_round(c[1], k0, k1);
        k0 = _mm256_add_epi32(k0, _mm256_set1_epi32((int32_t)0x9e3779b9));
        k1 = _mm256_add_epi32(k1, _mm256_set1_epi32((int32_t)0xbb67ae85));
    }
}

CPU_INLINE void cpu_philox_of(struct tess_rng_key key, const uint64_t counter[CPU_PHILOX_LANES],
                              uint32_t *restrict word)
{
    __m256i c[2][4];
    for (int l = 0; l < CPU_PHILOX_LANES; l += 8) {
        for (int i = 0; i < 2; i++)
            c[i][0] = _mm256_loadu_si256((const void *)(counter + l + 4 * i));
        philox_rounds(key, c);
        philox_store(c[0], word + 4 * l);
        philox_store(c[1], word + 4 * l + 16);
    }
}

#else

/* The rounds are unrolled, so that the loop over lanes is the one that is left to vectorise. */
CPU_INLINE void cpu_philox_of(struct tess_rng_key key, const uint64_t counter[CPU_PHILOX_LANES],
                              uint32_t *restrict word)
{
    for (int l = 0; l < CPU_PHILOX_LANES; l++) {
        uint32_t c0 = (uint32_t)counter[l], c1 = (uint32_t)(counter[l] >> 32), c2 = 0, c3 = 0;
        uint32_t k0 = key.word[0], k1 = key.word[1];
        CPU_UNROLL
        for (int round = 0; round < 10; round++) {
            uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            c1 = (uint32_t)p1;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            c3 = (uint32_t)p0;
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        word[4 * l] = c0;
        word[4 * l + 1] = c1;
        word[4 * l + 2] = c2;
        word[4 * l + 3] = c3;
    }
}

#endif

/* The same of counters block, block + 1, ... */
CPU_INLINE void cpu_philox(struct tess_rng_key key, uint64_t block, uint32_t *restrict word)
{
    uint64_t counter[CPU_PHILOX_LANES];
    for (int l = 0; l < CPU_PHILOX_LANES; l++)
        counter[l] = block + (uint64_t)l;
    cpu_philox_of(key, counter, word);
}

#endif
