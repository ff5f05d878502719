/*
 * What grad.c and grad_long.c share: one call, and how dy is packed. AVX-512 only.
 */
#ifndef KERNELS_CPU_OWN_GRAD_ROOM_H
#define KERNELS_CPU_OWN_GRAD_ROOM_H

#include "cpu/cpu.h"
#include "cpu/own/pack.h"
#include "cpu/own/tile.h"

#define GRAD_LANES 16
#define GRAD_WIDE  4 /* vectors in a panel */
#define GRAD_PANEL (GRAD_WIDE * GRAD_LANES)
#define GRAD_ONE   6   /* rows of a tile with one leaf, and with long leaves */
#define GRAD_TREE  3   /* and with more */
#define GRAD_ROWS  384 /* of a block at most: packing x again for each costs a few hundredths */

struct grad_call {
    const struct tess_op_desc *desc;
    const void *x, *dy;
    float *dw;
    const struct cpu_update *update; /* NULL: dw is written */
    uint32_t *x_packed;              /* by groups: all panels of x; else NULL */
    int64_t block;                   /* rows of dw in a part */
};

/* grad_long.c: one part of a call, and the work memory it takes for blocks of `rows` at most. */
void tess__cpu_grad_long(void *call, int64_t part, void *work);
size_t tess__cpu_grad_long_scratch(const struct tess_op_desc *desc, int64_t rows, bool grouped);

static inline int64_t grad_steps(const struct tess_op_desc *desc)
{
    return desc->dtype == TESS_BF16 ? (desc->leaf_rows + 1) / 2 : desc->leaf_rows;
}

/* Words of a panel of all leaves. */
static inline int64_t grad_panel_words(const struct tess_op_desc *desc)
{
    return desc->rows / desc->leaf_rows * grad_steps(desc) * GRAD_PANEL;
}

static inline int64_t grad_all_steps(const struct tess_op_desc *desc)
{
    return desc->rows / desc->leaf_rows * grad_steps(desc);
}

/* Step `step` of leaf `leaf` of x [rows, width] from column `first` on. */
CPU_INLINE void grad_pack(const struct tess_op_desc *desc, const void *x, int64_t width,
                          int64_t leaf, int64_t step, int64_t first, int64_t columns,
                          uint32_t *packed)
{
    bool half = desc->dtype == TESS_BF16;
    int64_t row = half ? 2 * step : step;
    cpu_pack_step(half, x, width, leaf * desc->leaf_rows + row, row + 1 < desc->leaf_rows, first,
                  columns, packed);
}

/* Prefetch what grad_pack() reads of a later step. */
CPU_INLINE void grad_pack_ask(const struct tess_op_desc *desc, const void *x, int64_t width,
                              int64_t leaf, int64_t step, int64_t first, int64_t columns)
{
    bool half = desc->dtype == TESS_BF16;
    cpu_pack_ask(half, x, width, leaf * desc->leaf_rows + (half ? 2 * step : step), first, columns);
}

/* Words of a packed tile: what is copied over its end, and an odd number of cache lines, so that
 * the same step of many tiles is not in one set. */
static inline int64_t grad_tile_words(int64_t steps, int tall)
{
    return ((steps * tall + 8 + 15) / 16 | 1) * 16;
}

/* Deal one step's words out to tiles of GRAD_TREE rows, one too many each: the next step overwrites
 * it. */
CPU_INLINE void grad_deal(const uint32_t *line, int64_t tiles, int64_t tile_words, uint32_t *packed)
{
    for (int64_t tile = 0; tile < tiles; tile++, line += GRAD_TREE, packed += tile_words)
        _mm_storeu_si128((void *)packed, _mm_loadu_si128((const void *)line));
}

/* 16 columns of a step from column `first` on, the first `columns` of them, as grad_pack(). */
CPU_INLINE __m512i grad_words(const struct tess_op_desc *desc, const void *x, int64_t width,
                              int64_t row, bool pair, int64_t first, int64_t columns)
{
    const __mmask16 mask = cpu_lanes(columns);
    if (desc->dtype != TESS_BF16)
        return _mm512_maskz_loadu_epi32(mask, (const float *)x + row * width + first);
    const uint16_t *even = (const uint16_t *)x + row * width + first;
    const __m256i odd =
        pair ? _mm256_maskz_loadu_epi16(mask, even + width) : _mm256_setzero_si256();
    return cpu_pair(_mm256_maskz_loadu_epi16(mask, even), odd);
}

#define GRAD_DEAL 8 /* tiles of GRAD_ONE rows in three vectors */

/* The same for tiles of GRAD_ONE rows, GRAD_DEAL at a time, through registers. */
CPU_INLINE void grad_deal_one(const __m512i *word, int64_t tiles, int64_t tile_words,
                              uint32_t *packed)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    CPU_UNROLL
    for (int tile = 0; tile < GRAD_DEAL; tile++, packed += tile_words) {
        const int at = tile * GRAD_ONE / GRAD_LANES, from = tile * GRAD_ONE % GRAD_LANES;
        const __m512i index = _mm512_add_epi32(lane, _mm512_set1_epi32(from));
        if (tile < tiles)
            _mm256_storeu_si256((void *)packed, _mm512_castsi512_si256(_mm512_permutex2var_epi32(
                                                    word[at], index, word[at < 2 ? at + 1 : 2])));
    }
}

/* Columns first .. first + count - 1 of one step of dy to tiles of GRAD_ONE rows. */
CPU_INLINE void grad_pack_one(const struct tess_op_desc *desc, const void *dy, int64_t row,
                              bool pair, int64_t first, int64_t count, int64_t tile_words,
                              uint32_t *packed)
{
    for (int64_t tile = 0; tile * GRAD_ONE < count; tile += GRAD_DEAL) {
        const int64_t column = tile * GRAD_ONE;
        __m512i word[3];
        CPU_UNROLL
        for (int v = 0; v < 3; v++)
            word[v] = grad_words(desc, dy, desc->out, row, pair, first + column + v * GRAD_LANES,
                                 count - column - v * GRAD_LANES);
        grad_deal_one(word, (count - column + GRAD_ONE - 1) / GRAD_ONE, tile_words,
                      packed + tile * tile_words);
    }
}

/* Columns first .. first + count - 1 of dy; rows of the last tile that dy lacks are zeros. */
CPU_INLINE void grad_pack_dy(const struct tess_op_desc *desc, const void *dy, int64_t first,
                             int64_t count, int tall, uint32_t *packed)
{
    _Alignas(64) uint32_t line[GRAD_ROWS + 32] = {0};
    const int64_t tile_words = grad_tile_words(grad_all_steps(desc), tall);
    const int64_t per_step = desc->dtype == TESS_BF16 ? 2 : 1;
    for (int64_t leaf = 0; leaf < desc->rows / desc->leaf_rows; leaf++)
        for (int64_t step = 0; step < grad_steps(desc); step++, packed += tall) {
            const int64_t row = step * per_step;
            grad_pack_ask(desc, dy, desc->out, leaf, step, first, count);
            if (tall == GRAD_ONE) {
                grad_pack_one(desc, dy, leaf * desc->leaf_rows + row, row + 1 < desc->leaf_rows,
                              first, count, tile_words, packed);
            } else {
                grad_pack(desc, dy, desc->out, leaf, step, first, count, line);
                grad_deal(line, (count + tall - 1) / tall, tile_words, packed);
            }
        }
}

/* Bytes of dy packed for a block of `rows`. */
static inline size_t grad_packed_bytes(const struct tess_op_desc *desc, int64_t rows, int tall)
{
    int64_t words = grad_tile_words(grad_all_steps(desc), tall);
    return (size_t)((rows + tall - 1) / tall * words) * sizeof(uint32_t);
}

CPU_INLINE void grad_store_vector(float *dw, __mmask16 mask, bool add, __m512 sum)
{
    if (add)
        sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, dw), sum);
    _mm512_mask_storeu_ps(dw, mask, sum);
}

#endif
