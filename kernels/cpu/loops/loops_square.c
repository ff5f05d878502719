/*
 * Own loops of what the bench compares attention with: a causal softmax over the rows of a T x T
 * matrix, and its gradient. Not part of the backend.
 */
#include "cpu/loops/loops.h"

#include "cpu/loops/loops_math.h"

#include <string.h>

/* Up to CPU_BLOCK scores: the greatest in lanes; then exp in place, its sum in lanes. */
CPU_INLINE void square_max(enum tess_dtype dtype, int64_t c, int64_t count, const void *s,
                           int64_t first, float *lane)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, s, first + c, count, value);
    for (int64_t i = 0; i < count; i++)
        lane[i] = value[i] > lane[i] ? value[i] : lane[i];
}

CPU_INLINE void square_exp(enum tess_dtype dtype, int64_t c, int64_t count, void *s, int64_t first,
                           float scale, float max, float *lane)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, s, first + c, count, value);
    for (int64_t i = 0; i < count; i++) {
        value[i] = cpu_exp(scale * (value[i] - max));
        lane[i] += value[i];
    }
    cpu_write(dtype, s, first + c, count, value);
}

CPU_INLINE void square_scale(enum tess_dtype dtype, int64_t c, int64_t count, void *s,
                             int64_t first, float weight)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, s, first + c, count, value);
    for (int64_t i = 0; i < count; i++)
        value[i] *= weight;
    cpu_write(dtype, s, first + c, count, value);
}

CPU_INLINE void square_softmax(enum tess_dtype dtype, int64_t length, float scale, void *s)
{
    size_t element = tess_dtype_bytes(dtype);
    for (int64_t row = 0; row < length; row++) {
        int64_t first = row * length, seen = row + 1;
        float lane[CPU_BLOCK], sum[CPU_BLOCK] = {0}, max = -INFINITY;
        for (int i = 0; i < CPU_BLOCK; i++)
            lane[i] = -INFINITY;
        CPU_BLOCKS(dtype, seen, square_max, s, first, lane);
        for (int i = 0; i < CPU_BLOCK; i++)
            max = lane[i] > max ? lane[i] : max;
        CPU_BLOCKS(dtype, seen, square_exp, s, first, scale, max, sum);
        float weight = 1.0f / cpu_lane_sum(sum);
        CPU_BLOCKS(dtype, seen, square_scale, s, first, weight);
        memset((char *)s + (size_t)(first + seen) * element, 0, (size_t)(length - seen) * element);
    }
}

void CPU_LOOP(square_softmax)(enum tess_dtype dtype, int64_t length, float scale, void *s)
{
    CPU_BY_DTYPE(dtype, square_softmax, length, scale, s);
}

CPU_INLINE void square_dot(enum tess_dtype dtype, int64_t c, int64_t count, const void *p,
                           const void *dp, int64_t first, float *lane)
{
    float a[CPU_BLOCK], b[CPU_BLOCK];
    cpu_read(dtype, p, first + c, count, a);
    cpu_read(dtype, dp, first + c, count, b);
    for (int64_t i = 0; i < count; i++)
        lane[i] = fmaf(a[i], b[i], lane[i]);
}

CPU_INLINE void square_grad(enum tess_dtype dtype, int64_t c, int64_t count, const void *p,
                            void *dp, int64_t first, float scale, float delta)
{
    float a[CPU_BLOCK], b[CPU_BLOCK];
    cpu_read(dtype, p, first + c, count, a);
    cpu_read(dtype, dp, first + c, count, b);
    for (int64_t i = 0; i < count; i++)
        b[i] = scale * a[i] * (b[i] - delta);
    cpu_write(dtype, dp, first + c, count, b);
}

CPU_INLINE void square_softmax_grad(enum tess_dtype dtype, int64_t length, float scale,
                                    const void *p, void *dp)
{
    for (int64_t row = 0; row < length; row++) {
        int64_t first = row * length;
        float lane[CPU_BLOCK] = {0};
        CPU_BLOCKS(dtype, length, square_dot, p, dp, first, lane);
        float delta = cpu_lane_sum(lane);
        CPU_BLOCKS(dtype, length, square_grad, p, dp, first, scale, delta);
    }
}

void CPU_LOOP(square_softmax_grad)(enum tess_dtype dtype, int64_t length, float scale,
                                   const void *p, void *dp)
{
    CPU_BY_DTYPE(dtype, square_softmax_grad, length, scale, p, dp);
}
