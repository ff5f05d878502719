/*
 * Dropout of attention's probabilities: the mask of ref/mask.h, in the places in which the kernels
 * hold a tile. A block of Philox has the words of four keys of a row, 16 apart: the row's number is
 * its high counter.
 */
#ifndef KERNELS_CUDA_ATTENTION_ATTENTION_DROP_CUH
#define KERNELS_CUDA_ATTENTION_ATTENTION_DROP_CUH

#include "cuda/attention/launch_attention.h"
#include "cuda/bits.cuh"
#include "cuda/launch.cuh"

/* The number of the row of a position of the call and a head. */
static __device__ __forceinline__ uint64_t
attention_drop_row(const struct cuda_attention_drop &drop, int64_t position, int head)
{
    return drop.row + (uint64_t)position * (uint64_t)drop.heads + (uint64_t)head;
}

/* Words of keys `key`, 16, 32 and 48 further on, of a key below 16 of a panel of 64. */
static __device__ __forceinline__ uint4 attention_drop_words(const struct cuda_attention_drop &drop,
                                                             uint64_t row, int key)
{
    return cuda_philox(make_uint2(drop.key[0], drop.key[1]), (uint64_t)(key / 64 * 16 + key % 16),
                       row);
}

static __device__ __forceinline__ uint32_t
attention_drop_keeps(const struct cuda_attention_drop &drop, uint32_t word)
{
    return word >> 8 >= drop.limit ? 1u : 0u;
}

/* One element. */
static __device__ __forceinline__ bool attention_keeps_one(const struct cuda_attention_drop &drop,
                                                           uint64_t row, int key)
{
    const uint4 w = attention_drop_words(drop, row, key);
    const int which = key / 16 % 4;
    const uint32_t word = which == 0 ? w.x : which == 1 ? w.y : which == 2 ? w.z : w.w;
    return attention_drop_keeps(drop, word) != 0;
}

/* ---- rows are queries: the fragments [16 M, 32] of attention_dots ---------------------------- */

/*
 * What a lane keeps of a panel of 64 keys, a bit an element: half[h] is of keys 32 h .. 32 h + 31.
 * From the highest of 8 M bits on: rows 16 m + 8 half, columns pair, pair + 1, pair + 8, pair + 9,
 * and of each its two keys 16 apart.
 */
struct attention_keeps {
    uint32_t half[2];
    int panel; /* -1: none yet */
};

static __device__ __forceinline__ struct attention_keeps attention_keeps_none(void)
{
    struct attention_keeps keeps = {{0, 0}, -1};
    return keeps;
}

/* Of the warp's rows, from `position` of the call on, and the panel that `key` is in, if that is
 * another than before. A loop, because it runs once for two tiles, and its words would take
 * registers that the sums have. */
template <int M>
static __device__ __forceinline__ void attention_keep_rows(const struct cuda_attention_drop &drop,
                                                           int64_t position, int head, int key,
                                                           struct attention_keeps &keeps)
{
    if (keeps.panel == key / 64)
        return;
    const int lane = cuda_lane(), column = key / 64 * 64 + lane % 4 * 2;
    const uint64_t first = attention_drop_row(drop, position + lane / 4, head);
    keeps.panel = key / 64;
    keeps.half[0] = keeps.half[1] = 0;
#pragma unroll 1
    for (int i = 0; i < 8 * M; i++) {
        const uint64_t row = first + (uint64_t)(i / 4 * 8) * (uint64_t)drop.heads;
        const uint4 w = attention_drop_words(drop, row, column + i % 2 + i / 2 % 2 * 8);
        keeps.half[0] = keeps.half[0] << 2 | attention_drop_keeps(drop, w.x) << 1 |
                        attention_drop_keeps(drop, w.y);
        keeps.half[1] = keeps.half[1] << 2 | attention_drop_keeps(drop, w.z) << 1 |
                        attention_drop_keeps(drop, w.w);
    }
}

/* Is element e of fragment m, n kept, of `half` the tile's bits? */
template <int M>
static __device__ __forceinline__ bool attention_kept(uint32_t half, int m, int n, int e)
{
    const int at = ((2 * m + e / 2) * 4 + n % 2 * 2 + e % 2) * 2 + n / 2;
    return (half >> (16 * M - 1 - at) & 1) != 0;
}

static __device__ __forceinline__ uint32_t attention_keeps_of(const struct attention_keeps &keeps,
                                                              int key)
{
    return key % 64 < 32 ? keeps.half[0] : keeps.half[1];
}

/* Weights of the tile that begins at `key` are dropped. */
template <int M>
static __device__ __forceinline__ void attention_drop_rows(float (&weight)[M][4][4],
                                                           const struct attention_keeps &keeps,
                                                           int key)
{
    const uint32_t half = attention_keeps_of(keeps, key);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!attention_kept<M>(half, m, n, e))
                    weight[m][n][e] = 0;
}

/* ---- rows are keys: the fragments [16 M, 32] of keys_kernel ---------------------------------- */

/* What a lane keeps of the warp's keys, from `key` on, a multiple of 16 M, and 32 queries from
 * `position` of the call on: 8 queries, of each keys group and group + 8, of each M. */
template <int M>
static __device__ __forceinline__ uint32_t
attention_keep_columns(const struct cuda_attention_drop &drop, int64_t position, int head, int key)
{
    const int lane = cuda_lane(), which = key / 16 % 4;
    const uint64_t first = attention_drop_row(drop, position + lane % 4 * 2, head);
    uint32_t bits = 0;
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        const uint64_t row = first + (uint64_t)(i / 4 * 8 + i / 2 % 2) * (uint64_t)drop.heads;
        const uint4 w = attention_drop_words(drop, row, key / 64 * 64 + lane / 4 + i % 2 * 8);
        if (M == 1) {
            const uint32_t word = which == 0 ? w.x : which == 1 ? w.y : which == 2 ? w.z : w.w;
            bits = bits << 1 | attention_drop_keeps(drop, word);
        } else {
            bits = bits << 2 | attention_drop_keeps(drop, which == 0 ? w.x : w.z) << 1 |
                   attention_drop_keeps(drop, which == 0 ? w.y : w.w);
        }
    }
    return bits;
}

template <int M>
static __device__ __forceinline__ bool attention_kept_column(uint32_t bits, int m, int n, int e)
{
    const int at = ((n * 2 + e % 2) * 2 + e / 2) * M + m;
    return (bits >> (16 * M - 1 - at) & 1) != 0;
}

#endif
