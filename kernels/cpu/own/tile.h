/*
 * The product that attention and data gradients are made of: tiles of 6 rows by up to 64 columns,
 * whose sums stay in registers, CPU_WIDE vectors of them at a time (tile.c).
 */
#ifndef KERNELS_CPU_OWN_TILE_H
#define KERNELS_CPU_OWN_TILE_H

#include "cpu/own/vector.h"

#include <stddef.h>

#define CPU_TILE_TALL 6
#define CPU_TILE_WIDE (64 / CPU_WORDS) /* vectors */

/*
 * sum[r, c] = the sum over the steps, in order, of scalar[r, step] column[step, c], fused. A step
 * is one 32-bit word: an element in f32, a pair of elements in bf16. `sum` begins with zero, or
 * goes on with what is there; with `scale`, row r of that is first multiplied by scale[r].
 */
struct cpu_tile {
    const uint32_t *column; /* aligned to 64 bytes */
    int64_t column_step;    /* words from step to step */
    const void *scalar;
    size_t scalar_row, scalar_step; /* bytes from row to row, from step to step */
    int64_t rows, steps;
    float *sum; /* its rows aligned to vectors */
    int64_t sum_row;
    bool begin;
    const float *scale; /* or NULL */
    /* Scalars of a later tile, in rows like these, to prefetch on the way into the second-level
     * cache; where scalar_step is a word and column_step a piece; or NULL. */
    const char *ask;
};

/* tile->rows rows, wide * CPU_WORDS columns. */
void CPU_OWN(tile)(bool half, int wide, const struct cpu_tile *tile);

#endif
