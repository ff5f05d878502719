/*
 * Dropout's mask. Element i of the stream of `key` is kept when its uniform number in [0, 1), made
 * of the top 24 bits of Philox word i (base/rng.h, high counter 0), is not below the rate. Kept
 * elements are divided by 1 - rate, computed in f32.
 */
#ifndef KERNELS_REF_MASK_H
#define KERNELS_REF_MASK_H

#include "base/rng.h"

#include <stdbool.h>

/* The Philox key of a public dropout key. */
static inline struct tess_rng_key tess__mask_key(const uint64_t key[2])
{
    return tess_rng_key(key[0], TESS_RNG_DROPOUT, key[1]);
}

/* Words whose top 24 bits are below this are dropped: the same as uniform < rate. */
static inline uint32_t tess__mask_limit(float rate)
{
    double limit = (double)rate * 0x1p24;
    uint32_t whole = (uint32_t)limit;
    return (double)whole < limit ? whole + 1 : whole;
}

static inline bool tess__mask_keeps(uint32_t word, uint32_t limit)
{
    return word >> 8 >= limit;
}

#endif
