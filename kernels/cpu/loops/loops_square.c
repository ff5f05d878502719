/*
 * Own loops of what the bench compares attention with: a causal softmax over the rows of a T x T
 * matrix, and its gradient. Not part of the backend.
 */
#include "cpu/loops/loops.h"

#include "cpu/loops/loops_math.h"

#include <string.h>

/* Up to CPU_BLOCK scores: the greatest in lanes; then exp in place, its sum in lanes. */
CPU_INLINE void square_max(enum tess_dtype dtype, const void *s, int64_t at, int64_t count,
                           float *lane)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, s, at, count, value);
    for (int64_t i = 0; i < count; i++)
        lane[i] = value[i] > lane[i] ? value[i] : lane[i];
}

CPU_INLINE void square_exp(enum tess_dtype dtype, void *s, int64_t at, int64_t count, float scale,
                           float max, float *lane)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, s, at, count, value);
    for (int64_t i = 0; i < count; i++) {
        value[i] = cpu_exp(scale * (value[i] - max));
        lane[i] += value[i];
    }
    cpu_write(dtype, s, at, count, value);
}

CPU_INLINE void square_scale(enum tess_dtype dtype, void *s, int64_t at, int64_t count,
                             float weight)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, s, at, count, value);
    for (int64_t i = 0; i < count; i++)
        value[i] *= weight;
    cpu_write(dtype, s, at, count, value);
}

CPU_INLINE void square_softmax(enum tess_dtype dtype, int64_t length, float scale, void *s)
{
    size_t element = tess_dtype_bytes(dtype);
    for (int64_t row = 0; row < length; row++) {
        int64_t first = row * length, whole = (row + 1) / CPU_BLOCK * CPU_BLOCK;
        int64_t rest = row + 1 - whole;
        float lane[CPU_BLOCK], sum[CPU_BLOCK] = {0}, max = -INFINITY;
        for (int i = 0; i < CPU_BLOCK; i++)
            lane[i] = -INFINITY;
        for (int64_t c = 0; c < whole; c += CPU_BLOCK)
            square_max(dtype, s, first + c, CPU_BLOCK, lane);
        square_max(dtype, s, first + whole, rest, lane);
        for (int i = 0; i < CPU_BLOCK; i++)
            max = lane[i] > max ? lane[i] : max;
        for (int64_t c = 0; c < whole; c += CPU_BLOCK)
            square_exp(dtype, s, first + c, CPU_BLOCK, scale, max, sum);
        square_exp(dtype, s, first + whole, rest, scale, max, sum);
        float weight = 1.0f / cpu_lane_sum(sum);
        for (int64_t c = 0; c < whole; c += CPU_BLOCK)
            square_scale(dtype, s, first + c, CPU_BLOCK, weight);
        square_scale(dtype, s, first + whole, rest, weight);
        memset((char *)s + (size_t)(first + row + 1) * element, 0,
               (size_t)(length - row - 1) * element);
    }
}

void CPU_LOOP(square_softmax)(enum tess_dtype dtype, int64_t length, float scale, void *s)
{
    CPU_BY_DTYPE(dtype, square_softmax, length, scale, s);
}

CPU_INLINE void square_dot(enum tess_dtype dtype, const void *p, const void *dp, int64_t at,
                           int64_t count, float *lane)
{
    float a[CPU_BLOCK], b[CPU_BLOCK];
    cpu_read(dtype, p, at, count, a);
    cpu_read(dtype, dp, at, count, b);
    for (int64_t i = 0; i < count; i++)
        lane[i] = fmaf(a[i], b[i], lane[i]);
}

CPU_INLINE void square_grad(enum tess_dtype dtype, const void *p, void *dp, int64_t at,
                            int64_t count, float scale, float delta)
{
    float a[CPU_BLOCK], b[CPU_BLOCK];
    cpu_read(dtype, p, at, count, a);
    cpu_read(dtype, dp, at, count, b);
    for (int64_t i = 0; i < count; i++)
        b[i] = scale * a[i] * (b[i] - delta);
    cpu_write(dtype, dp, at, count, b);
}

CPU_INLINE void square_softmax_grad(enum tess_dtype dtype, int64_t length, float scale,
                                    const void *p, void *dp)
{
    for (int64_t row = 0; row < length; row++) {
        int64_t first = row * length, whole = length / CPU_BLOCK * CPU_BLOCK, rest = length - whole;
        float lane[CPU_BLOCK] = {0};
        for (int64_t c = 0; c < whole; c += CPU_BLOCK)
            square_dot(dtype, p, dp, first + c, CPU_BLOCK, lane);
        square_dot(dtype, p, dp, first + whole, rest, lane);
        float delta = cpu_lane_sum(lane);
        for (int64_t c = 0; c < whole; c += CPU_BLOCK)
            square_grad(dtype, p, dp, first + c, CPU_BLOCK, scale, delta);
        square_grad(dtype, p, dp, first + whole, rest, scale, delta);
    }
}

void CPU_LOOP(square_softmax_grad)(enum tess_dtype dtype, int64_t length, float scale,
                                   const void *p, void *dp)
{
    CPU_BY_DTYPE(dtype, square_softmax_grad, length, scale, p, dp);
}
