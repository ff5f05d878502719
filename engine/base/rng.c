/*
 * Philox4x32-10 and what is made of it. Uses no function of the C library whose last bit depends on
 * the machine: initial weights have the same bits on every x86 (the build forbids contraction).
 */
#include "base/rng.h"

#include "base/hash.h"

#include <math.h>
#include <stdbool.h>

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

/* ln((word + 1) / 2^32), in (-22.2, 0]. */
static double rng_log(uint32_t word)
{
    /* (word + 1) / 2^32 = m 2^e with m in (0.7, 1.42): near 1 the logarithm keeps its digits. */
    const uint64_t n = (uint64_t)word + 1;
    int e = 64 - __builtin_clzll(n);
    double m = (double)n / (double)(UINT64_C(1) << e);
    /* Without jumps, here and below: branches on random numbers cannot be predicted. */
    const bool low = m < 0.70710678118654752;
    m *= low ? 2 : 1;
    e -= low ? 33 : 32;
    /* ln m = 2 artanh s; |s| < 0.1716, so that the first term left out is below 2^-53. */
    double s = (m - 1) / (m + 1), square = s * s, sum = 0;
    for (int k = 19; k >= 1; k -= 2)
        sum = sum * square + 1.0 / k;
    return e * 0.69314718055994531 + 2 * s * sum;
}

/* Taylor's series of cos(a) and sin(a)/a in a^2, from the last term on. Beyond a = pi/4 they are
 * not evaluated; the first term left out is below 2^-53. */
#define RNG_TERMS 9
static const double rng_series[2][RNG_TERMS] = {
    {1.0 / 20922789888000, -1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320,
     -1.0 / 720, 1.0 / 24, -1.0 / 2, 1},
    {1.0 / 355687428096000, -1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880,
     -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1},
};

/* cos(2 pi word / 2^32) by folding into one eighth of the circle and the series of sin or cos. */
static double rng_cos(uint32_t word)
{
    uint32_t part = word & 0x3fffffffu; /* in quarter `word >> 30` */
    uint32_t quarter = word >> 30;
    bool mirror = quarter & 1; /* cos(pi/2 + a) = -sin(a) = -cos(pi/2 - a) */
    uint32_t fold = mirror ? 0x40000000u - part : part;
    bool use_sin = fold > 0x20000000u; /* cos(a) = sin(pi/2 - a) */
    double a = (double)(use_sin ? 0x40000000u - fold : fold) * (1.5707963267948966 * 0x1p-30);
    double square = a * a, sum = 0;
    for (int k = 0; k < RNG_TERMS; k++)
        sum = sum * square + rng_series[use_sin][k];
    sum *= use_sin ? a : 1;
    return quarter == 1 || quarter == 2 ? -sum : sum;
}

void tess_rng_normals(struct tess_rng_key key, uint64_t first, uint64_t count, float *out)
{
    uint32_t word[4];
    for (uint64_t i = 0; i < count; i++) {
        if (i == 0 || (first + i) % 2 == 0)
            tess_rng_block(key, (first + i) / 2, 0, word);
        const uint32_t *pair = word + 2 * ((first + i) % 2);
        out[i] = (float)(sqrt(-2 * rng_log(pair[0])) * rng_cos(pair[1]));
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
