/*
 * Layer norm and RMS norm of loops_row.c by vectors, for rows of whole blocks in f32 and bf16: the
 * same operations in the same order, so the same bits, without a copy of each block in memory.
 */
#ifndef KERNELS_CPU_LOOPS_ROW_WIDE_H
#define KERNELS_CPU_LOOPS_ROW_WIDE_H

#include "cpu/loops/loops.h"
#include "cpu/own/stage.h"

#include <math.h>

#if defined(__AVX2__) && defined(__FMA__)

#include "cpu/own/vector.h"

#define ROW_SUMS (CPU_BLOCK / CPU_WORDS) /* vectors of sums */

CPU_INLINE cpu_vector row_load(enum tess_dtype dtype, const void *from, int64_t at)
{
    return cpu_load_of(dtype == TESS_BF16, from, at);
}

/* The value as it is stored. */
CPU_INLINE cpu_vector row_store(enum tess_dtype dtype, void *to, int64_t at, cpu_vector value)
{
    if (dtype == TESS_F32) {
        cpu_store_any((float *)to + at, value);
        return value;
    }
    const cpu_halves half = cpu_bf16_of(value);
    cpu_store_halves_any((uint16_t *)to + at, half);
    return cpu_widen(half);
}

/* cpu_lane_sum of vectors. */
CPU_INLINE float row_lane_sum(const cpu_vector *lane)
{
    const int n = CPU_SUM_VECTORS;
    cpu_vector sum[CPU_SUM_VECTORS];
    CPU_UNROLL
    for (int v = 0; v < n; v++)
        sum[v] = cpu_add(cpu_add(lane[v], lane[v + 2 * n]), cpu_add(lane[v + n], lane[v + 3 * n]));
    return cpu_sum_of(sum);
}

CPU_INLINE void row_zero(cpu_vector *lane)
{
    CPU_UNROLL
    for (int v = 0; v < ROW_SUMS; v++)
        lane[v] = cpu_zero();
}

/* Sum of the row; with add, of what is stored as the sum of both. */
CPU_INLINE float row_wide_sum(enum tess_dtype dtype, const struct cpu_norm *n, int64_t first)
{
    cpu_vector lane[ROW_SUMS];
    row_zero(lane);
    for (int64_t c = first; c < first + n->desc->in; c += CPU_BLOCK) {
        CPU_UNROLL
        for (int v = 0; v < ROW_SUMS; v++) {
            const int64_t at = c + v * CPU_WORDS;
            cpu_vector value = row_load(dtype, n->x, at);
            if (n->add != NULL)
                value = row_store(dtype, n->sum, at, cpu_add(value, row_load(dtype, n->add, at)));
            lane[v] = cpu_add(lane[v], value);
        }
    }
    return row_lane_sum(lane);
}

/* Sum of the squares about `middle`. */
CPU_INLINE float row_wide_square(enum tess_dtype dtype, const void *x, int64_t first, int64_t size,
                                 float middle)
{
    cpu_vector lane[ROW_SUMS];
    row_zero(lane);
    for (int64_t c = first; c < first + size; c += CPU_BLOCK) {
        CPU_UNROLL
        for (int v = 0; v < ROW_SUMS; v++) {
            const cpu_vector off = cpu_sub(row_load(dtype, x, c + v * CPU_WORDS), cpu_set(middle));
            lane[v] = cpu_fma(off, off, lane[v]);
        }
    }
    return row_lane_sum(lane);
}

CPU_INLINE void row_wide_apply(enum tess_dtype dtype, const struct cpu_norm *n, const void *x,
                               int64_t first, float middle, float rstd)
{
    for (int64_t c = 0; c < n->desc->in; c += CPU_WORDS) {
        const cpu_vector off = cpu_sub(row_load(dtype, x, first + c), cpu_set(middle));
        const cpu_vector hat = cpu_mul(off, cpu_set(rstd));
        const cpu_vector scale = row_load(dtype, n->gamma, c);
        row_store(dtype, n->y, first + c,
                  n->beta != NULL ? cpu_fma(hat, scale, row_load(dtype, n->beta, c))
                                  : cpu_mul(hat, scale));
    }
}

/* grad = gamma dy, hat = (x - mean) rstd; dy is returned. */
CPU_INLINE cpu_vector row_wide_read(enum tess_dtype dtype, const struct cpu_norm *n, int64_t first,
                                    int64_t c, float middle, float rstd, cpu_vector *grad,
                                    cpu_vector *hat)
{
    const cpu_vector dy = row_load(dtype, n->dy, first + c);
    const cpu_vector off = cpu_sub(row_load(dtype, n->x, first + c), cpu_set(middle));
    *hat = cpu_mul(off, cpu_set(rstd));
    *grad = cpu_mul(row_load(dtype, n->gamma, c), dy);
    return dy;
}

/* The sums of grad and of grad hat over the row, which also goes into dgamma and dbeta. */
CPU_INLINE void row_wide_grad_sum(enum tess_dtype dtype, const struct cpu_norm *n, int64_t first,
                                  float middle, float rstd, float *dgamma, float *dbeta,
                                  float *grad_out, float *hat_out)
{
    cpu_vector lane_grad[ROW_SUMS], lane_hat[ROW_SUMS];
    row_zero(lane_grad);
    row_zero(lane_hat);
    for (int64_t c = 0; c < n->desc->in; c += CPU_BLOCK) {
        CPU_UNROLL
        for (int v = 0; v < ROW_SUMS; v++) {
            const int64_t at = c + v * CPU_WORDS;
            cpu_vector grad, hat;
            const cpu_vector dy = row_wide_read(dtype, n, first, at, middle, rstd, &grad, &hat);
            lane_grad[v] = cpu_add(lane_grad[v], grad);
            lane_hat[v] = cpu_fma(grad, hat, lane_hat[v]);
            cpu_store_any(dgamma + at, cpu_fma(dy, hat, cpu_load_any(dgamma + at)));
            cpu_store_any(dbeta + at, cpu_add(cpu_load_any(dbeta + at), dy));
        }
    }
    *grad_out = row_lane_sum(lane_grad);
    *hat_out = row_lane_sum(lane_hat);
}

CPU_INLINE void row_wide_grad(enum tess_dtype dtype, const struct cpu_norm *n, int64_t first,
                              float middle, float rstd, float mean_grad, float mean_hat)
{
    for (int64_t c = 0; c < n->desc->in; c += CPU_WORDS) {
        cpu_vector grad, hat;
        row_wide_read(dtype, n, first, c, middle, rstd, &grad, &hat);
        const cpu_vector means = cpu_fma(hat, cpu_set(mean_hat), cpu_set(mean_grad));
        grad = cpu_mul(cpu_set(rstd), cpu_sub(grad, means));
        if (n->add != NULL)
            grad = cpu_add(grad, row_load(dtype, n->add, first + c));
        row_store(dtype, n->dx, first + c, grad);
    }
}

CPU_INLINE bool row_is_wide(enum tess_dtype dtype, int64_t size)
{
    return dtype != TESS_F16 && size % CPU_BLOCK == 0;
}

CPU_INLINE void row_wide_forward(enum tess_dtype dtype, const struct cpu_norm *n, int64_t row)
{
    const struct tess_op_desc *d = n->desc;
    const int64_t first = row * d->in;
    const void *x = n->add != NULL ? n->sum : n->x;
    float middle = 0;
    if (n->add != NULL || !d->rms)
        middle = row_wide_sum(dtype, n, first) / (float)d->in;
    if (d->rms)
        middle = 0;
    else
        n->mean[row] = middle;
    const double var = (double)row_wide_square(dtype, x, first, d->in, middle) / (double)d->in;
    n->rstd[row] = (float)(1.0 / sqrt(var + (double)d->epsilon));
    row_wide_apply(dtype, n, x, first, middle, n->rstd[row]);
}

CPU_INLINE void row_wide_backward(enum tess_dtype dtype, const struct cpu_norm *n, int64_t row,
                                  float *dgamma, float *dbeta)
{
    const struct tess_op_desc *d = n->desc;
    const int64_t first = row * d->in;
    const float middle = d->rms ? 0.0f : n->mean[row], rstd = n->rstd[row];
    float grad, hat;
    row_wide_grad_sum(dtype, n, first, middle, rstd, dgamma, dbeta, &grad, &hat);
    row_wide_grad(dtype, n, first, middle, rstd, d->rms ? 0.0f : grad / (float)d->in,
                  hat / (float)d->in);
}

#else

CPU_INLINE bool row_is_wide(enum tess_dtype dtype, int64_t size)
{
    (void)dtype;
    (void)size;
    return false;
}

CPU_INLINE void row_wide_forward(enum tess_dtype dtype, const struct cpu_norm *n, int64_t row)
{
    (void)dtype;
    (void)n;
    (void)row;
}

CPU_INLINE void row_wide_backward(enum tess_dtype dtype, const struct cpu_norm *n, int64_t row,
                                  float *dgamma, float *dbeta)
{
    (void)dgamma;
    (void)dbeta;
    row_wide_forward(dtype, n, row);
}

#endif
#endif
