/*
 * Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011). A number depends on its key and counter alone.
 */
#ifndef TESSERA_BASE_RNG_H
#define TESSERA_BASE_RNG_H

#include <stdint.h>

/* What a stream of numbers is for: the key is (seed, purpose, index). */
enum tess_rng_purpose {
    TESS_RNG_INIT,
    TESS_RNG_SHUFFLE,
    TESS_RNG_DROPOUT,
    TESS_RNG_AUGMENT,
    TESS_RNG_ROUND,
    TESS_RNG_LAYER_DROP,
    TESS_RNG_SKETCH,
    TESS_RNG_TEST,
    TESS_RNG_SAMPLE,
    TESS_RNG_AUDIT
};

struct tess_rng_key {
    uint32_t word[2];
};

struct tess_rng_key tess_rng_key(uint64_t seed, enum tess_rng_purpose purpose, uint64_t index);

/* Four random words for one 128-bit counter (low, high). */
void tess_rng_block(struct tess_rng_key key, uint64_t low, uint64_t high, uint32_t word_out[4]);

/* One word: element i is word i % 4 of block i / 4 with high counter `high`. */
uint32_t tess_rng_word(struct tess_rng_key key, uint64_t i, uint64_t high);

/* Uniform in [0, 1): the word's top 24 bits times 2^-24, exact in f32. */
float tess_rng_uniform(struct tess_rng_key key, uint64_t i, uint64_t high);

/* The uniforms first, first + 1, ... with high counter 0. */
void tess_rng_uniforms(struct tess_rng_key key, uint64_t first, uint64_t count, float *out);

/* Standard normals first, first + 1, ...: number i by Box-Muller of words 2i and 2i + 1 with high
 * counter 0, in double, rounded once. */
void tess_rng_normals(struct tess_rng_key key, uint64_t first, uint64_t count, float *out);

/*
 * Position -> element of a pseudo-random permutation of 0 .. n-1: a balanced Feistel network of 6
 * rounds over the smallest even number of bits that holds n, with cycle walking (Black and Rogaway
 * 2002). No memory, the same on every layout.
 */
uint64_t tess_rng_permute(struct tess_rng_key key, uint64_t n, uint64_t position);

#endif
