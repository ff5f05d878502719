/*
 * Stochastic rounding of one element: the bits that are cut off, plus as many low bits of a random
 * word; the carry out of them is the rounding up. Integers only and without branches, so that it
 * vectorises and gives the same bits everywhere. Where the words come from is the caller's.
 */
#ifndef KERNELS_REF_STOCHASTIC_H
#define KERNELS_REF_STOCHASTIC_H

#include "base/half.h"
#include "base/rng.h"

/* The Philox key of a public key of tess_cast_stochastic(). */
static inline struct tess_rng_key tess__stochastic_key(const uint64_t key[2])
{
    return tess_rng_key(key[0], TESS_RNG_ROUND, key[1]);
}

static inline uint16_t tess__stochastic_bf16(float x, uint32_t word)
{
    uint32_t bits = tess__bits_of_f32(x), magnitude = bits & 0x7fffffffu;
    /* Without a finite neighbour above: what rounds to nearest even. Then NaN, as in half.h. */
    uint32_t even = 0x7fffu + ((bits >> 16) & 1u);
    uint32_t carried = (bits + (magnitude > 0x7f7f0000u ? even : word & 0xffffu)) >> 16;
    uint32_t quiet = bits >> 16 | 0x40u;
    return (uint16_t)(magnitude > 0x7f800000u ? quiet : carried);
}

static inline uint16_t tess__stochastic_f16(float x, uint32_t word)
{
    uint32_t bits = tess__bits_of_f32(x), magnitude = bits & 0x7fffffffu;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u), nearest = tess__f16_of_f32(x);
    uint32_t normal = (magnitude - (112u << 23) + (word & 0x1fffu)) >> 13;
    /*
     * Subnormal: a multiple of 2^-24; the smaller the number, the more of its 24 bits are cut off,
     * 14 in [2^-15, 2^-14). No more than 31 are compared: below 2^-32 the probability, which is
     * less than 2^-8 there, is rounded down to a multiple of 2^-31.
     */
    uint32_t exponent = magnitude >> 23;
    uint32_t cut = exponent < 113 ? 126 - exponent : 14; /* the clamp is for the unused branch */
    uint32_t lost = cut > 31 ? cut - 31 : 0, kept = cut - lost;
    uint32_t fraction = ((magnitude & 0x7fffffu) | 0x800000u) >> (lost < 31 ? lost : 31);
    uint32_t small = (fraction + (word & ((1u << kept) - 1))) >> kept;
    uint16_t carried = sign | (uint16_t)(magnitude >= 0x38800000u ? normal : small);
    return magnitude > 0x477fe000u ? nearest : carried; /* above 65504 */
}

#endif
