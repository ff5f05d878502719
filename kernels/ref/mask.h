/*
 * Dropout's mask. Element i of the stream of `key` is kept when its uniform number in [0, 1), made
 * of the top 24 bits of Philox word i (base/rng.h, high counter 0), is not below the rate. Kept
 * elements are divided by 1 - rate, computed in f32. And the mask of attention's probabilities.
 */
#ifndef KERNELS_REF_MASK_H
#define KERNELS_REF_MASK_H

#include "base/rng.h"
#include "tessera/kernel.h"

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

/* Attention's mask: the number of a row of probabilities, by position and head; and word of element
 * j of it, in an order in which 16 counters give the words of 64 elements, 16 neighbours at a time.
 * The high counter is never tess_dropout's 0. */
static inline uint64_t tess__mask_row(const struct tess_attention_drop *drop, uint64_t position,
                                      int32_t head)
{
    return 1 + (drop->position + position) * (uint64_t)drop->heads + (uint64_t)(drop->head + head);
}

static inline uint32_t tess__mask_word(struct tess_rng_key key, uint64_t row, int64_t j)
{
    uint32_t word[4];
    tess_rng_block(key, (uint64_t)(j / 64 * 16 + j % 16), row, word);
    return word[j / 16 % 4];
}

static inline bool tess__mask_keeps(uint32_t word, uint32_t limit)
{
    return word >> 8 >= limit;
}

#endif
