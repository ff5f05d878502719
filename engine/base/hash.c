/* Hashes for comparing, not for security: collisions are easy to make. */
#include "base/hash.h"

#include <string.h>

/* 2^64 over the golden ratio, SplitMix64's increment: moves 0, a fixed point of the mix, away. */
#define HASH_GAMMA 0x9e3779b97f4a7c15u

/* SplitMix64's. Inline here: of a tensor it is computed twice for every element. */
static inline uint64_t hash_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    x ^= x >> 31;
    return x;
}

uint64_t tess_hash_mix(uint64_t x)
{
    return hash_mix(x);
}

uint64_t tess_hash_bytes(const void *bytes, size_t count)
{
    const unsigned char *byte = bytes;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < count; i++) {
        hash ^= byte[i];
        hash *= 0x100000001b3u;
    }
    return hash_mix(hash);
}

static inline __attribute__((always_inline)) uint64_t hash_f32(const float *x, size_t count,
                                                               uint64_t first)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        /* The place is mixed before the bits are joined to it; two values that change places would
         * otherwise cancel in the sum. */
        sum += hash_mix(hash_mix(first + i + HASH_GAMMA) + bits);
    }
    return sum;
}

#ifdef __x86_64__
/* Four at a time: all of a training's state goes through here when it is saved and restored. */
__attribute__((target("avx2"))) static uint64_t hash_f32_avx2(const float *x, size_t count,
                                                              uint64_t first)
{
    return hash_f32(x, count, first);
}
#endif

uint64_t tess_hash_f32(const float *x, size_t count, uint64_t first)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return hash_f32_avx2(x, count, first);
#endif
    return hash_f32(x, count, first);
}

/* Reversible in the lane and in the word. */
static inline uint64_t hash_step(uint64_t lane, uint64_t word)
{
    lane = (lane ^ word) * HASH_GAMMA;
    return lane ^ lane >> 32;
}

uint64_t tess_hash_run(const void *bytes, size_t count, uint64_t before)
{
    const unsigned char *byte = bytes;
    uint64_t lane[4] = {before, 1, 2, 3}, sum = count;
    for (; count >= sizeof(lane); count -= sizeof(lane), byte += sizeof(lane)) {
        uint64_t word[4];
        memcpy(word, byte, sizeof(word));
        for (int l = 0; l < 4; l++)
            lane[l] = hash_step(lane[l], word[l]);
    }
    for (size_t now; count > 0; count -= now, byte += now) {
        uint64_t word = 0;
        now = count < sizeof(word) ? count : sizeof(word);
        memcpy(&word, byte, now);
        lane[0] = hash_step(lane[0], word);
    }
    for (int l = 0; l < 4; l++)
        sum = hash_mix(sum + HASH_GAMMA) + hash_mix(lane[l]);
    return sum;
}
