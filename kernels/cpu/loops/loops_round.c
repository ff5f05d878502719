/*
 * Own loop of stochastic rounding: Philox for CPU_BLOCK elements at once (philox.h). The bits are
 * ref's (ref/stochastic.h); what does not fill a block of Philox, and of lanes, is left to ref.
 */
#include "cpu/loops/loops.h"

#include "cpu/own/stage.h"
#include "cpu/philox.h"
#include "ref/ref.h"
#include "ref/stochastic.h"

/* Whole blocks from element `first`, a multiple of 4, on; returns the elements done. */
CPU_INLINE int64_t round_blocks(enum tess_dtype to, struct tess_rng_key key, uint64_t first,
                                int64_t count, const float *x, uint16_t *y)
{
    const float *restrict from = x;
    uint16_t *restrict half = y;
    int64_t done = 0;
    for (; done + CPU_BLOCK <= count; done += CPU_BLOCK) {
        uint32_t word[CPU_BLOCK];
        cpu_philox(key, (first + (uint64_t)done) / 4, word);
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
