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

CPU_INLINE void grad_store_vector(float *dw, __mmask16 mask, bool add, __m512 sum)
{
    if (add)
        sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, dw), sum);
    _mm512_mask_storeu_ps(dw, mask, sum);
}

#endif
