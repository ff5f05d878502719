/*
 * Own loops of layer norm and RMS norm, row by row. Sums over channels are f32 in CPU_BLOCK lanes;
 * those over rows are in order, over the rows of one call (sequence.c).
 */
#include "cpu/loops/loops.h"

#include "cpu/loops/loops_math.h"
#include "cpu/loops/row_wide.h"

#include <string.h>

/* lane += the rows's block; with add, what was summed is written and read again as rounded. */
CPU_INLINE void row_sum_block(enum tess_dtype dtype, int64_t c, int64_t count,
                              const struct cpu_norm *n, int64_t row, float *lane)
{
    float value[CPU_BLOCK], other[CPU_BLOCK];
    int64_t first = row * n->desc->in + c;
    cpu_read(dtype, n->x, first, count, value);
    if (n->add != NULL) {
        cpu_read(dtype, n->add, first, count, other);
        for (int64_t i = 0; i < count; i++)
            value[i] += other[i];
        cpu_write(dtype, n->sum, first, count, value);
        cpu_read(dtype, n->sum, first, count, value);
    }
    for (int64_t i = 0; i < count; i++)
        lane[i] += value[i];
}

CPU_INLINE void row_square_block(enum tess_dtype dtype, int64_t c, int64_t count, const void *x,
                                 int64_t first, float middle, float *lane)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, x, first + c, count, value);
    for (int64_t i = 0; i < count; i++) {
        float off = value[i] - middle;
        lane[i] = fmaf(off, off, lane[i]);
    }
}

CPU_INLINE void row_apply_block(enum tess_dtype dtype, int64_t c, int64_t count,
                                const struct cpu_norm *n, const void *x, int64_t first,
                                float middle, float rstd)
{
    float value[CPU_BLOCK], scale[CPU_BLOCK], shift[CPU_BLOCK];
    cpu_read(dtype, x, first + c, count, value);
    cpu_read(dtype, n->gamma, c, count, scale);
    if (n->beta != NULL) {
        cpu_read(dtype, n->beta, c, count, shift);
        for (int64_t i = 0; i < count; i++)
            value[i] = fmaf((value[i] - middle) * rstd, scale[i], shift[i]);
    } else {
        for (int64_t i = 0; i < count; i++)
            value[i] = (value[i] - middle) * rstd * scale[i];
    }
    cpu_write(dtype, n->y, first + c, count, value);
}

CPU_INLINE void row_forward(enum tess_dtype dtype, const struct cpu_norm *n, int64_t row)
{
    const struct tess_op_desc *d = n->desc;
    int64_t size = d->in, first = row * size;
    if (row_is_wide(dtype, size)) {
        row_wide_forward(dtype, n, row);
        return;
    }
    const void *x = n->add != NULL ? n->sum : n->x;
    float lane[CPU_BLOCK] = {0}, square[CPU_BLOCK] = {0}, middle = 0;
    if (n->add != NULL || !d->rms)
        CPU_BLOCKS(dtype, size, row_sum_block, n, row, lane);
    if (!d->rms)
        n->mean[row] = middle = cpu_lane_sum(lane) / (float)size;
    CPU_BLOCKS(dtype, size, row_square_block, x, first, middle, square);
    double var = (double)cpu_lane_sum(square) / (double)size;
    float rstd = (float)(1.0 / sqrt(var + (double)d->epsilon));
    n->rstd[row] = rstd;
    CPU_BLOCKS(dtype, size, row_apply_block, n, x, first, middle, rstd);
}

void CPU_LOOP(norm_forward)(const void *arguments, int64_t first, int64_t rows)
{
    const struct cpu_norm *norm = arguments;
    for (int64_t row = first; row < first + rows; row++)
        CPU_BY_DTYPE(norm->desc->dtype, row_forward, norm, row);
}

/* One row of the backward pass: where it begins and its statistics. */
struct row_place {
    int64_t first;
    float middle, rstd;
};

/* grad = gamma dy, hat = (x - mean) rstd of a block; dy as well. */
CPU_INLINE void row_grad_read(enum tess_dtype dtype, const struct cpu_norm *n,
                              const struct row_place *p, int64_t c, int64_t count, float *dy,
                              float *grad, float *hat)
{
    cpu_read(dtype, n->dy, p->first + c, count, dy);
    cpu_read(dtype, n->x, p->first + c, count, hat);
    cpu_read(dtype, n->gamma, c, count, grad);
    for (int64_t i = 0; i < count; i++) {
        hat[i] = (hat[i] - p->middle) * p->rstd;
        grad[i] *= dy[i];
    }
}

/* Also the row's share of the parameters' gradients, before dx is written: it may be dy. */
CPU_INLINE void row_grad_sum_block(enum tess_dtype dtype, int64_t c, int64_t count,
                                   const struct cpu_norm *n, const struct row_place *p,
                                   float *lane_grad, float *lane_hat, float *dgamma, float *dbeta)
{
    float dy[CPU_BLOCK], grad[CPU_BLOCK], hat[CPU_BLOCK];
    row_grad_read(dtype, n, p, c, count, dy, grad, hat);
    for (int64_t i = 0; i < count; i++) {
        lane_grad[i] += grad[i];
        lane_hat[i] = fmaf(grad[i], hat[i], lane_hat[i]);
    }
    for (int64_t i = 0; i < count; i++) {
        dgamma[c + i] = fmaf(dy[i], hat[i], dgamma[c + i]);
        dbeta[c + i] += dy[i];
    }
}

CPU_INLINE void row_grad_block(enum tess_dtype dtype, int64_t c, int64_t count,
                               const struct cpu_norm *n, const struct row_place *p, float mean_grad,
                               float mean_hat)
{
    float dy[CPU_BLOCK], grad[CPU_BLOCK], hat[CPU_BLOCK];
    row_grad_read(dtype, n, p, c, count, dy, grad, hat);
    for (int64_t i = 0; i < count; i++)
        grad[i] = p->rstd * (grad[i] - fmaf(hat[i], mean_hat, mean_grad));
    if (n->add != NULL) {
        cpu_read(dtype, n->add, p->first + c, count, dy);
        for (int64_t i = 0; i < count; i++)
            grad[i] += dy[i];
    }
    cpu_write(dtype, n->dx, p->first + c, count, grad);
}

/*
 * With g = gamma dy and C channels:
 *   dx = rstd (g - mean(g) - x_hat mean(g x_hat)) + add; RMS norm has no mean(g)
 */
CPU_INLINE void row_backward(enum tess_dtype dtype, const struct cpu_norm *n, int64_t row,
                             float *dgamma, float *dbeta)
{
    const struct tess_op_desc *d = n->desc;
    int64_t size = d->in;
    if (row_is_wide(dtype, size)) {
        row_wide_backward(dtype, n, row, dgamma, dbeta);
        return;
    }
    struct row_place p = {
        .first = row * size, .middle = d->rms ? 0.0f : n->mean[row], .rstd = n->rstd[row]};
    float lane_grad[CPU_BLOCK] = {0}, lane_hat[CPU_BLOCK] = {0};
    CPU_BLOCKS(dtype, size, row_grad_sum_block, n, &p, lane_grad, lane_hat, dgamma, dbeta);
    float mean_grad = d->rms ? 0.0f : cpu_lane_sum(lane_grad) / (float)size;
    float mean_hat = cpu_lane_sum(lane_hat) / (float)size;
    CPU_BLOCKS(dtype, size, row_grad_block, n, &p, mean_grad, mean_hat);
}

void CPU_LOOP(norm_backward)(const struct cpu_norm *norm, int64_t first, int64_t rows,
                             float *dgamma, float *dbeta)
{
    memset(dgamma, 0, (size_t)norm->desc->in * sizeof(float));
    memset(dbeta, 0, (size_t)norm->desc->in * sizeof(float));
    for (int64_t row = first; row < first + rows; row++)
        CPU_BY_DTYPE(norm->desc->dtype, row_backward, norm, row, dgamma, dbeta);
}
