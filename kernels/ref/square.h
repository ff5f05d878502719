/*
 * The sum of squares of one block of up to TESS_SUM_BLOCK elements, in one fixed order.
 *
 * Element i is multiplied by the scale in f32, then squared in f64, which is exact (24 bits times
 * 24 bits fit 53; so a fused multiply-add changes nothing). Lane l of 8 adds the squares of the
 * elements l, l + 8, ..., l + 56 in that order, and the lanes are added by halves:
 *
 *     ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7))
 *
 * Elements past the end of a short block count as zero.
 */
#ifndef KERNELS_REF_SQUARE_H
#define KERNELS_REF_SQUARE_H

#include "base/sum.h"
#include "tessera/kernel.h"

#include <string.h>

static inline double tess__square_lanes(const double lane[8])
{
    double half[4];
    for (int l = 0; l < 4; l++)
        half[l] = lane[l] + lane[l + 4];
    return (half[0] + half[2]) + (half[1] + half[3]);
}

/* x has TESS_SUM_BLOCK elements. */
static inline double tess__square_block(const float *x, float scale)
{
    double lane[8] = {0};
    for (int i = 0; i < TESS_SUM_BLOCK; i += 8) {
        for (int l = 0; l < 8; l++) {
            double value = (double)(scale * x[i + l]);
            lane[l] += value * value;
        }
    }
    return tess__square_lanes(lane);
}

/* tess_square_sum(). */
static inline void tess__square_sum(int64_t count, int32_t block, float scale, const float *x,
                                    struct tess_sum *sum)
{
    int64_t i = 0;
    for (; block == TESS_SUM_BLOCK && i + block <= count; i += block)
        tess_sum_add(sum, tess__square_block(x + i, scale));
    for (; i < count; i += block) {
        float part[TESS_SUM_BLOCK] = {0};
        memcpy(part, x + i, (size_t)(count - i < block ? count - i : block) * sizeof(float));
        tess_sum_add(sum, tess__square_block(part, scale));
    }
}

#endif
