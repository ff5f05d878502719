/* Philox4x32-10 and what is made of it. */
#include "base/rng.h"

#include "base/hash.h"
#include "base/normal.h"

/* Multipliers and key increments of Salmon et al. 2011, table 2 and section 3.3. */
#define RNG_M0     0xd2511f53u
#define RNG_M1     0xcd9e8d57u
#define RNG_W0     0x9e3779b9u
#define RNG_W1     0xbb67ae85u
#define RNG_ROUNDS 10

#define RNG_FEISTEL_ROUNDS 6

struct tess_rng_key tess_rng_key(uint64_t seed, enum tess_rng_purpose purpose, uint64_t index)
{
    /* One mix for each part: neighbouring seeds and indices are the rule and must share nothing. */
    uint64_t key = tess_hash_mix(seed + 0x9e3779b97f4a7c15u);
    key = tess_hash_mix(key + (uint64_t)purpose + 1);
    key = tess_hash_mix(key + index);
    return (struct tess_rng_key){{(uint32_t)key, (uint32_t)(key >> 32)}};
}

void tess_rng_block(struct tess_rng_key key, uint64_t low, uint64_t high, uint32_t word_out[4])
{
    uint32_t c0 = (uint32_t)low, c1 = (uint32_t)(low >> 32);
    uint32_t c2 = (uint32_t)high, c3 = (uint32_t)(high >> 32);
    uint32_t k0 = key.word[0], k1 = key.word[1];
    for (int round = 0; round < RNG_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)RNG_M0 * c0, p1 = (uint64_t)RNG_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += RNG_W0;
        k1 += RNG_W1;
    }
    word_out[0] = c0;
    word_out[1] = c1;
    word_out[2] = c2;
    word_out[3] = c3;
}

uint32_t tess_rng_word(struct tess_rng_key key, uint64_t i, uint64_t high)
{
    uint32_t word[4];
    tess_rng_block(key, i / 4, high, word);
    return word[i % 4];
}

float tess_rng_uniform(struct tess_rng_key key, uint64_t i, uint64_t high)
{
    return (float)(tess_rng_word(key, i, high) >> 8) * 0x1p-24f;
}

void tess_rng_uniforms(struct tess_rng_key key, uint64_t first, uint64_t count, float *out)
{
    uint32_t word[4];
    for (uint64_t i = 0; i < count; i++) {
        if (i == 0 || (first + i) % 4 == 0)
            tess_rng_block(key, (first + i) / 4, 0, word);
        out[i] = (float)(word[(first + i) % 4] >> 8) * 0x1p-24f;
    }
}

void tess_rng_normals(struct tess_rng_key key, uint64_t first, uint64_t count, float *out)
{
    uint32_t word[4];
    for (uint64_t i = 0; i < count; i++) {
        if (i == 0 || (first + i) % 2 == 0)
            tess_rng_block(key, (first + i) / 2, 0, word);
        const uint32_t *pair = word + 2 * ((first + i) % 2);
        tess__normals_of(1, pair, pair + 1, &out[i]);
    }
}

uint64_t tess_rng_permute(struct tess_rng_key key, uint64_t n, uint64_t position)
{
    if (n < 2)
        return 0;
    int bits = 64 - __builtin_clzll(n - 1);
    int half = (bits + 1) / 2;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t word = (uint64_t)key.word[1] << 32 | key.word[0];
    uint64_t x = position;
    /* The network permutes 0 .. 4^half - 1, less than 4 n numbers. Walking on from a number that is
     * not below n stays on the cycle of `position`, so it ends, after 4 turns at most on average.
     */
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < RNG_FEISTEL_ROUNDS; round++) {
            uint64_t random = tess_hash_mix(tess_hash_mix(word + round) + right + 1);
            uint64_t next = left ^ (random >> (64 - half));
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= n);
    return x;
}
