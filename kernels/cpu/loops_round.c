/*
 * Own loop of stochastic rounding: Philox of base/rng.h for CPU_BLOCK elements at once, one counter
 * per lane. The bits are ref's (ref/stochastic.h); what does not fill a block of Philox, and of
 * lanes, is left to ref.
 */
#include "cpu/loops.h"

#include "cpu/stage.h"
#include "cpu/unroll.h"
#include "ref/ref.h"
#include "ref/stochastic.h"

#define ROUND_LANES (CPU_BLOCK / 4) /* a counter gives four words */

/*
 * The words of counters block .. block + ROUND_LANES - 1: those of tess_rng_block(). Multipliers
 * and key increments of Salmon et al. 2011, table 2 and section 3.3. The rounds are unrolled, so
 * that the loop over lanes is the one that is left to vectorise.
 */
CPU_INLINE void round_words(struct tess_rng_key key, uint64_t block, uint32_t *restrict word)
{
    for (int l = 0; l < ROUND_LANES; l++) {
        uint64_t counter = block + (uint64_t)l;
        uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
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

/* Whole blocks from element `first`, a multiple of 4, on; returns the elements done. */
CPU_INLINE int64_t round_blocks(enum tess_dtype to, struct tess_rng_key key, uint64_t first,
                                int64_t count, const float *x, uint16_t *y)
{
    const float *restrict from = x;
    uint16_t *restrict half = y;
    int64_t done = 0;
    for (; done + CPU_BLOCK <= count; done += CPU_BLOCK) {
        uint32_t word[CPU_BLOCK];
        round_words(key, (first + (uint64_t)done) / 4, word);
        for (int64_t i = 0; i < CPU_BLOCK; i++)
            half[done + i] = to == TESS_BF16 ? tess__stochastic_bf16(from[done + i], word[i])
                                             : tess__stochastic_f16(from[done + i], word[i]);
    }
    return done;
}

void CPU_LOOP(cast_stochastic)(struct tess_kernel *kernel, int64_t count, const float *x,
                               enum tess_dtype to, const uint64_t key[2], uint64_t first, void *y)
{
    struct tess_rng_key stream = tess__stochastic_key(key);
    uint16_t *half = y;
    int64_t head = (int64_t)(-first % 4);
    head = head < count ? head : count;
    tess_kernel_ref.cast_stochastic(kernel, head, x, to, key, first, half);
    int64_t done = head;
    if (to == TESS_BF16)
        done += round_blocks(TESS_BF16, stream, first + (uint64_t)done, count - done, x + done,
                             half + done);
    else
        done += round_blocks(TESS_F16, stream, first + (uint64_t)done, count - done, x + done,
                             half + done);
    tess_kernel_ref.cast_stochastic(kernel, count - done, x + done, to, key, first + (uint64_t)done,
                                    half + done);
}
