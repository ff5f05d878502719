/*
 * exp for the own loops: no branches and no calls, so that loops over it vectorise. Fused
 * multiply-adds are written out, for the same bits on every processor (the build contracts none by
 * itself). And sums in lanes, whose order does not depend on the width of vectors.
 */
#ifndef KERNELS_CPU_LOOPS_LOOPS_MATH_H
#define KERNELS_CPU_LOOPS_LOOPS_MATH_H

#include "base/half.h"
#include "cpu/own/stage.h"

#include <math.h>

/*
 * e^x, off by at most 2^-23 relatively: e^x = 2^n e^r with |r| <= ln(2)/2, ln 2 in two parts (Cody
 * and Waite 1980), e^r a polynomial of degree 6 (Remez' algorithm, coefficients rounded to f32).
 * Below -87.3 it is 0, above 88 it stays at e^88; a NaN passes.
 */
CPU_INLINE float cpu_exp(float x)
{
    const float shift = 0x1.8p23f; /* its sum with n has n in the low bits */
    float top = x > 88.0f ? 88.0f : x;
    float moved = fmaf(top, 0x1.715476p+0f, shift), n = moved - shift;
    float r = fmaf(n, -0x1.62e400p-1f, top);
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    float y = fmaf(0x1.6ab980p-10f, r, 0x1.126d0cp-7f);
    y = fmaf(y, r, 0x1.55589ap-5f);
    y = fmaf(y, r, 0x1.55540ap-3f);
    y = fmaf(y, r, 0x1.fffffap-2f);
    y = fmaf(y, r, 1.0f);
    y = fmaf(y, r, 1.0f);
    y = tess__f32_of_bits(tess__bits_of_f32(y) + (tess__bits_of_f32(moved) << 23));
    return x < -87.3f ? 0.0f : y;
}

/* The sum of CPU_BLOCK lanes, folded in halves. The lanes are spoilt. */
CPU_INLINE float cpu_lane_sum(float *lane)
{
    for (int width = CPU_BLOCK / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
}

#endif
