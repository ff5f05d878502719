/* Philox of base/rng.h for CPU_BLOCK elements at once, one counter per lane. */
#ifndef KERNELS_CPU_PHILOX_H
#define KERNELS_CPU_PHILOX_H

#include "base/rng.h"
#include "cpu/own/stage.h"
#include "cpu/own/unroll.h"

#define CPU_PHILOX_LANES (CPU_BLOCK / 4) /* a counter gives four words */

/*
 * The words of these counters: those of tess_rng_block(). Multipliers and key increments of Salmon
 * et al. 2011, table 2 and section 3.3. The rounds are unrolled, so that the loop over lanes is the
 * one that is left to vectorise.
 */
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

/* The same of counters block, block + 1, ... */
CPU_INLINE void cpu_philox(struct tess_rng_key key, uint64_t block, uint32_t *restrict word)
{
    uint64_t counter[CPU_PHILOX_LANES];
    for (int l = 0; l < CPU_PHILOX_LANES; l++)
        counter[l] = block + (uint64_t)l;
    cpu_philox_of(key, counter, word);
}

#endif
