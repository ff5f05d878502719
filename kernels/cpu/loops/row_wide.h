/*
 * Layer norm and RMS norm of loops_row.c by vectors, for rows of whole blocks in f32 and bf16: the
 * same operations in the same order, so the same bits, without a copy of each block in memory.
 */
#ifndef KERNELS_CPU_LOOPS_ROW_WIDE_H
#define KERNELS_CPU_LOOPS_ROW_WIDE_H

#include "cpu/loops/loops.h"
#include "cpu/own/stage.h"

#include <math.h>

#if defined(__AVX512F__)

#include "cpu/own/pack.h"

#define ROW_LANES 16
#define ROW_SUMS  (CPU_BLOCK / ROW_LANES) /* vectors of sums */

CPU_INLINE __m512 row_load(enum tess_dtype dtype, const void *from, int64_t at)
{
    if (dtype == TESS_F32)
        return _mm512_loadu_ps((const float *)from + at);
    return cpu_widen(_mm256_loadu_si256((const void *)((const uint16_t *)from + at)));
}

/* The value as it is stored. */
CPU_INLINE __m512 row_store(enum tess_dtype dtype, void *to, int64_t at, __m512 value)
{
    if (dtype == TESS_F32) {
        _mm512_storeu_ps((float *)to + at, value);
        return value;
    }
    const __m256i half = cpu_bf16_of(value);
    _mm256_storeu_si256((void *)((uint16_t *)to + at), half);
    return cpu_widen(half);
}

/* cpu_lane_sum of vectors. */
CPU_INLINE float row_lane_sum(const __m512 *lane)
{
    const __m512 all =
        _mm512_add_ps(_mm512_add_ps(lane[0], lane[2]), _mm512_add_ps(lane[1], lane[3]));
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

CPU_INLINE void row_zero(__m512 *lane)
{
    CPU_UNROLL
    for (int v = 0; v < ROW_SUMS; v++)
        lane[v] = _mm512_setzero_ps();
}

/* Sum of the row; with add, of what is stored as the sum of both. */
CPU_INLINE float row_wide_sum(enum tess_dtype dtype, const struct cpu_norm *n, int64_t first)
{
    __m512 lane[ROW_SUMS];
    row_zero(lane);
    for (int64_t c = first; c < first + n->desc->in; c += CPU_BLOCK) {
        CPU_UNROLL
        for (int v = 0; v < ROW_SUMS; v++) {
            const int64_t at = c + v * ROW_LANES;
            __m512 value = row_load(dtype, n->x, at);
            if (n->add != NULL)
                value =
                    row_store(dtype, n->sum, at, _mm512_add_ps(value, row_load(dtype, n->add, at)));
            lane[v] = _mm512_add_ps(lane[v], value);
        }
    }
    return row_lane_sum(lane);
}

/* Sum of the squares about `middle`. */
CPU_INLINE float row_wide_square(enum tess_dtype dtype, const void *x, int64_t first, int64_t size,
                                 float middle)
{
    __m512 lane[ROW_SUMS];
    row_zero(lane);
    for (int64_t c = first; c < first + size; c += CPU_BLOCK) {
        CPU_UNROLL
        for (int v = 0; v < ROW_SUMS; v++) {
            const __m512 off =
                _mm512_sub_ps(row_load(dtype, x, c + v * ROW_LANES), _mm512_set1_ps(middle));
            lane[v] = _mm512_fmadd_ps(off, off, lane[v]);
        }
    }
    return row_lane_sum(lane);
}

CPU_INLINE void row_wide_apply(enum tess_dtype dtype, const struct cpu_norm *n, const void *x,
                               int64_t first, float middle, float rstd)
{
    for (int64_t c = 0; c < n->desc->in; c += ROW_LANES) {
        const __m512 off = _mm512_sub_ps(row_load(dtype, x, first + c), _mm512_set1_ps(middle));
        const __m512 hat = _mm512_mul_ps(off, _mm512_set1_ps(rstd));
        const __m512 scale = row_load(dtype, n->gamma, c);
        row_store(dtype, n->y, first + c,
                  n->beta != NULL ? _mm512_fmadd_ps(hat, scale, row_load(dtype, n->beta, c))
                                  : _mm512_mul_ps(hat, scale));
    }
}

/* grad = gamma dy, hat = (x - mean) rstd; dy is returned. */
CPU_INLINE __m512 row_wide_read(enum tess_dtype dtype, const struct cpu_norm *n, int64_t first,
                                int64_t c, float middle, float rstd, __m512 *grad, __m512 *hat)
{
    const __m512 dy = row_load(dtype, n->dy, first + c);
    const __m512 off = _mm512_sub_ps(row_load(dtype, n->x, first + c), _mm512_set1_ps(middle));
    *hat = _mm512_mul_ps(off, _mm512_set1_ps(rstd));
    *grad = _mm512_mul_ps(row_load(dtype, n->gamma, c), dy);
    return dy;
}

/* The sums of grad and of grad hat over the row, which also goes into dgamma and dbeta. */
CPU_INLINE void row_wide_grad_sum(enum tess_dtype dtype, const struct cpu_norm *n, int64_t first,
                                  float middle, float rstd, float *dgamma, float *dbeta,
                                  float *grad_out, float *hat_out)
{
    __m512 lane_grad[ROW_SUMS], lane_hat[ROW_SUMS];
    row_zero(lane_grad);
    row_zero(lane_hat);
    for (int64_t c = 0; c < n->desc->in; c += CPU_BLOCK) {
        CPU_UNROLL
        for (int v = 0; v < ROW_SUMS; v++) {
            const int64_t at = c + v * ROW_LANES;
            __m512 grad, hat;
            const __m512 dy = row_wide_read(dtype, n, first, at, middle, rstd, &grad, &hat);
            lane_grad[v] = _mm512_add_ps(lane_grad[v], grad);
            lane_hat[v] = _mm512_fmadd_ps(grad, hat, lane_hat[v]);
            _mm512_storeu_ps(dgamma + at, _mm512_fmadd_ps(dy, hat, _mm512_loadu_ps(dgamma + at)));
            _mm512_storeu_ps(dbeta + at, _mm512_add_ps(_mm512_loadu_ps(dbeta + at), dy));
        }
    }
    *grad_out = row_lane_sum(lane_grad);
    *hat_out = row_lane_sum(lane_hat);
}

CPU_INLINE void row_wide_grad(enum tess_dtype dtype, const struct cpu_norm *n, int64_t first,
                              float middle, float rstd, float mean_grad, float mean_hat)
{
    for (int64_t c = 0; c < n->desc->in; c += ROW_LANES) {
        __m512 grad, hat;
        row_wide_read(dtype, n, first, c, middle, rstd, &grad, &hat);
        const __m512 means =
            _mm512_fmadd_ps(hat, _mm512_set1_ps(mean_hat), _mm512_set1_ps(mean_grad));
        grad = _mm512_mul_ps(_mm512_set1_ps(rstd), _mm512_sub_ps(grad, means));
        if (n->add != NULL)
            grad = _mm512_add_ps(grad, row_load(dtype, n->add, first + c));
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
