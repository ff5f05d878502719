/*
 * What grad.c and grad_long.c share: one call, and how dy is packed.
 */
#ifndef KERNELS_CPU_OWN_GRAD_ROOM_H
#define KERNELS_CPU_OWN_GRAD_ROOM_H

#include "cpu/cpu.h"
#include "cpu/own/pack.h"
#include "cpu/own/tile.h"

#define GRAD_PANEL 64 /* columns */
#define GRAD_ONE   6  /* rows of a tile with one leaf, and with long leaves */
#if CPU_WORDS == 16
#define GRAD_TREE 3 /* and with more */
#else
#define GRAD_TREE 6
#endif
#define GRAD_ROWS 384 /* of a block at most: packing x again for each costs a few hundredths */

struct grad_call {
    const struct tess_op_desc *desc;
    const void *x, *dy;
    float *dw;
    const struct cpu_update *update; /* NULL: dw is written */
    uint32_t *x_packed;              /* by groups: all panels of x; else NULL */
    int64_t block;                   /* rows of dw in a part */
};

/* grad_long.c: one part of a call, and the work memory it takes for blocks of `rows` at most. */
void CPU_OWN(grad_long)(void *call, int64_t part, void *work);
size_t CPU_OWN(grad_long_scratch)(const struct tess_op_desc *desc, int64_t rows, bool grouped);

static inline int64_t grad_steps(const struct tess_op_desc *desc)
{
    return cpu_steps(desc->dtype, desc->leaf_rows);
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

/* The first row of a step. */
static inline int64_t grad_row(const struct tess_op_desc *desc, int64_t leaf, int64_t step)
{
    return leaf * desc->leaf_rows + (CPU_PAIRS && desc->dtype == TESS_BF16 ? 2 * step : step);
}

/* Step `step` of leaf `leaf` of x [rows, width] from column `first` on, to pieces that are `piece`
 * words apart. */
CPU_INLINE void grad_pack(const struct tess_op_desc *desc, const void *x, int64_t width,
                          int64_t leaf, int64_t step, int64_t first, int64_t columns, int64_t piece,
                          uint32_t *packed)
{
    cpu_pack_pieces(desc->dtype == TESS_BF16, x, width, grad_row(desc, leaf, step),
                    2 * step + 1 < desc->leaf_rows, first, columns, piece, packed);
}

/* Prefetch what grad_pack() reads of a later step. */
CPU_INLINE void grad_pack_ask(const struct tess_op_desc *desc, const void *x, int64_t width,
                              int64_t leaf, int64_t step, int64_t first, int64_t columns)
{
    cpu_pack_ask(desc->dtype == TESS_BF16, x, width, grad_row(desc, leaf, step), first, columns);
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

#define GRAD_DEAL 8 /* tiles of GRAD_ONE rows in 48 words */

#if CPU_WORDS == 16
/* CPU_WORDS columns of a step from column `first` on, the first `columns` of them, as grad_pack().
 */
CPU_INLINE cpu_words grad_words(const struct tess_op_desc *desc, const void *x, int64_t width,
                                int64_t row, bool pair, int64_t first, int64_t columns)
{
    const cpu_mask mask = cpu_lanes(columns);
    if (desc->dtype != TESS_BF16)
        return cpu_load_words_lanes(mask, (const float *)x + row * width + first);
    const uint16_t *even = (const uint16_t *)x + row * width + first;
    return cpu_pair(cpu_load_halves(mask, even),
                    pair ? cpu_load_halves(mask, even + width) : cpu_zero_halves());
}

/* The same for tiles of GRAD_ONE rows, GRAD_DEAL at a time, through registers. */
CPU_INLINE void grad_deal_one(const struct tess_op_desc *desc, const void *dy, int64_t row,
                              bool pair, int64_t first, int64_t columns, int64_t tile_words,
                              uint32_t *packed)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const int64_t tiles = (columns + GRAD_ONE - 1) / GRAD_ONE;
    cpu_words word[3];
    CPU_UNROLL
    for (int v = 0; v < 3; v++)
        word[v] = grad_words(desc, dy, desc->out, row, pair, first + v * CPU_WORDS,
                             columns - v * CPU_WORDS);
    CPU_UNROLL
    for (int tile = 0; tile < GRAD_DEAL; tile++, packed += tile_words) {
        const int at = tile * GRAD_ONE / CPU_WORDS, from = tile * GRAD_ONE % CPU_WORDS;
        const __m512i index = _mm512_add_epi32(lane, _mm512_set1_epi32(from));
        if (tile < tiles)
            _mm256_storeu_si256((void *)packed, _mm512_castsi512_si256(_mm512_permutex2var_epi32(
                                                    word[at], index, word[at < 2 ? at + 1 : 2])));
    }
}
#else
/* The same for tiles of GRAD_ONE rows, GRAD_DEAL at a time. */
CPU_INLINE void grad_deal_one(const struct tess_op_desc *desc, const void *dy, int64_t row,
                              bool pair, int64_t first, int64_t columns, int64_t tile_words,
                              uint32_t *packed)
{
    _Alignas(64) uint32_t line[GRAD_DEAL * GRAD_ONE + CPU_WORDS] = {0};
    const int64_t most = tess__cpu_min(columns, GRAD_DEAL * GRAD_ONE);
    cpu_pack_step(desc->dtype == TESS_BF16, dy, desc->out, row, pair, first, most, line);
    for (int tile = 0; tile * GRAD_ONE < most; tile++, packed += tile_words)
        _mm256_storeu_si256((void *)packed,
                            _mm256_loadu_si256((const void *)(line + tile * GRAD_ONE)));
}
#endif

/* Columns first .. first + count - 1 of one step of dy to tiles of GRAD_ONE rows. */
CPU_INLINE void grad_pack_one(const struct tess_op_desc *desc, const void *dy, int64_t row,
                              bool pair, int64_t first, int64_t count, int64_t tile_words,
                              uint32_t *packed)
{
    for (int64_t tile = 0; tile * GRAD_ONE < count; tile += GRAD_DEAL) {
        const int64_t column = tile * GRAD_ONE;
        grad_deal_one(desc, dy, row, pair, first + column, count - column, tile_words,
                      packed + tile * tile_words);
    }
}

/* Columns first .. first + count - 1 of dy; rows of the last tile that dy lacks are zeros. */
CPU_INLINE void grad_pack_dy(const struct tess_op_desc *desc, const void *dy, int64_t first,
                             int64_t count, int tall, uint32_t *packed)
{
    _Alignas(64) uint32_t line[GRAD_ROWS + 32] = {0};
    const int64_t tile_words = grad_tile_words(grad_all_steps(desc), tall);
    for (int64_t leaf = 0; leaf < desc->rows / desc->leaf_rows; leaf++)
        for (int64_t step = 0; step < grad_steps(desc); step++, packed += tall) {
            grad_pack_ask(desc, dy, desc->out, leaf, step, first, count);
            if (tall == GRAD_ONE) {
                grad_pack_one(desc, dy, grad_row(desc, leaf, step), 2 * step + 1 < desc->leaf_rows,
                              first, count, tile_words, packed);
            } else {
                grad_pack(desc, dy, desc->out, leaf, step, first, count, CPU_PIECE, line);
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

CPU_INLINE void grad_store_vector(float *dw, cpu_mask mask, bool add, cpu_vector sum)
{
    if (add)
        sum = cpu_add(cpu_load_lanes(mask, dw), sum);
    cpu_store_lanes(dw, mask, sum);
}

#endif
