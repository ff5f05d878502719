/*
 * What grad.c and grad_long.c share: one call, and how dy is packed. AVX-512 only.
 */
#ifndef KERNELS_CPU_GRAD_H
#define KERNELS_CPU_GRAD_H

#include "cpu/cpu.h"
#include "cpu/pack.h"
#include "cpu/tile.h"

#define GRAD_LANES 16
#define GRAD_WIDE  4 /* vectors in a panel */
#define GRAD_PANEL (GRAD_WIDE * GRAD_LANES)
#define GRAD_ROWS  384

struct grad_call {
    const struct tess_op_desc *desc;
    const void *x, *dy;
    float *dw;
    int64_t block; /* rows of dw in a part */
};

/* grad_long.c: one part of a call, and the work memory it takes. */
void tess__cpu_grad_long(void *call, int64_t part, void *work);
size_t tess__cpu_grad_long_scratch(const struct tess_op_desc *desc);

static inline int64_t grad_steps(const struct tess_op_desc *desc)
{
    return desc->dtype == TESS_BF16 ? (desc->leaf_rows + 1) / 2 : desc->leaf_rows;
}

static inline int64_t grad_all_steps(const struct tess_op_desc *desc)
{
    return desc->rows / desc->leaf_rows * grad_steps(desc);
}

CPU_INLINE void grad_store_vector(float *dw, __mmask16 mask, bool add, __m512 sum)
{
    if (add)
        sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, dw), sum);
    _mm512_mask_storeu_ps(dw, mask, sum);
}

/* Words of a packed tile: what is copied over its end, and an odd number of cache lines, so that
 * the same step of many tiles is not in one set. */
static inline int64_t grad_tile_words(int64_t steps, int tall)
{
    return ((steps * tall + 8 + 15) / 16 | 1) * 16;
}

/* Deal one step's words out to the tiles, a few too many each: the next step overwrites them. */
CPU_INLINE void grad_deal(const uint32_t *line, int64_t tiles, int tall, int64_t tile_words,
                          uint32_t *packed)
{
    for (int64_t tile = 0; tile < tiles; tile++, line += tall, packed += tile_words) {
        if (tall > 4)
            _mm256_storeu_si256((void *)packed, _mm256_loadu_si256((const void *)line));
        else
            _mm_storeu_si128((void *)packed, _mm_loadu_si128((const void *)line));
    }
}

/* Columns first .. first + count - 1 of dy; rows of the last tile that dy lacks are zeros. */
CPU_INLINE void grad_pack_dy(const struct tess_op_desc *desc, const void *dy, int64_t first,
                             int64_t count, int tall, uint32_t *packed)
{
    _Alignas(64) uint32_t line[GRAD_ROWS + 32] = {0};
    int64_t tiles = (count + tall - 1) / tall, out = desc->out;
    int64_t tile_words = grad_tile_words(grad_all_steps(desc), tall);
    if (desc->dtype == TESS_F32) {
        for (int64_t row = 0; row < desc->rows; row++, packed += tall) {
            cpu_pack_f32((const float *)dy + row * out + first, count, line);
            grad_deal(line, tiles, tall, tile_words, packed);
        }
        return;
    }
    for (int64_t leaf = 0; leaf < desc->rows; leaf += desc->leaf_rows) {
        for (int64_t row = 0; row < desc->leaf_rows; row += 2, packed += tall) {
            const uint16_t *even = (const uint16_t *)dy + (leaf + row) * out + first;
            cpu_pack_bf16(even, row + 1 < desc->leaf_rows ? even + out : NULL, count, line);
            grad_deal(line, tiles, tall, tile_words, packed);
        }
    }
}

/* Bytes of dy packed for a block of `rows`. */
static inline size_t grad_packed_bytes(const struct tess_op_desc *desc, int64_t rows, int tall)
{
    int64_t words = grad_tile_words(grad_all_steps(desc), tall);
    return (size_t)((rows + tall - 1) / tall * words) * sizeof(uint32_t);
}

#endif
