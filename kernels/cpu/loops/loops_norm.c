/*
 * Own loops of batch normalisation, one leaf and one block of channels at a time. Sums over a leaf
 * are f32 over NORM_ROWS pixels, then f64: an order that depends on the leaf only.
 */
#include "cpu/loops/loops.h"

#include "cpu/own/stage.h"
#include "ref/fold.h"

#include <math.h>

#define NORM_ROWS 256

/* One leaf's block of channels: `pixels` rows of `channels` elements from element `first` on. */
struct norm_part {
    int64_t first, pixels, channels;
};

/* That of the leaf whose pixels begin with `first_pixel`, from channel `channel` on. */
CPU_INLINE struct norm_part norm_part(const struct tess_op_desc *d, int64_t first_pixel,
                                      int64_t channel)
{
    return (struct norm_part){.first = first_pixel * d->in + channel,
                              .pixels = d->leaf_rows * d->height * d->width,
                              .channels = d->in};
}

/* mean and square[count]: the mean of each channel and the sum of squares about it. */
CPU_INLINE void norm_statistics(enum tess_dtype dtype, const struct norm_part *p, int64_t count,
                                const void *x, double *mean, double *square)
{
    float value[CPU_BLOCK], middle[CPU_BLOCK];
    for (int pass = 0; pass < 2; pass++) {
        double total[CPU_BLOCK] = {0};
        for (int64_t begin = 0; begin < p->pixels; begin += NORM_ROWS) {
            int64_t end = p->pixels - begin < NORM_ROWS ? p->pixels : begin + NORM_ROWS;
            float part[CPU_BLOCK] = {0};
            for (int64_t row = begin; row < end; row++) {
                cpu_read(dtype, x, p->first + row * p->channels, count, value);
                if (pass == 0) {
                    for (int64_t c = 0; c < count; c++)
                        part[c] += value[c];
                } else {
                    for (int64_t c = 0; c < count; c++)
                        part[c] += (value[c] - middle[c]) * (value[c] - middle[c]);
                }
            }
            for (int64_t c = 0; c < count; c++)
                total[c] += (double)part[c];
        }
        for (int64_t c = 0; c < count; c++) {
            if (pass == 0) {
                mean[c] = total[c] / (double)p->pixels;
                middle[c] = (float)mean[c];
            } else {
                square[c] = total[c];
            }
        }
    }
}

/* y = (x - mean) scale + shift, then the ReLU. */
CPU_INLINE void norm_apply(enum tess_dtype dtype, const struct norm_part *p, int64_t count,
                           bool relu, const float *mean, const float *scale, const float *shift,
                           const void *x, void *y)
{
    float value[CPU_BLOCK];
    for (int64_t row = 0; row < p->pixels; row++) {
        int64_t at = p->first + row * p->channels;
        cpu_read(dtype, x, at, count, value);
        for (int64_t c = 0; c < count; c++)
            value[c] = (value[c] - mean[c]) * scale[c] + shift[c];
        if (relu)
            for (int64_t c = 0; c < count; c++)
                value[c] = value[c] < 0 ? 0.0f : value[c];
        cpu_write(dtype, y, at, count, value);
    }
}

/* What one call of forward works on: pointers at the block's first channel. */
struct norm_forward {
    const void *x, *gamma, *beta;
    void *y;
    float *mean, *rstd, *leaf_mean, *leaf_var;
};

CPU_INLINE void norm_forward_block(enum tess_dtype dtype, int64_t channel, int64_t count,
                                   const struct tess_op_desc *d, int64_t first_pixel,
                                   const struct norm_forward *f)
{
    struct norm_part p = norm_part(d, first_pixel, channel);
    double mean[CPU_BLOCK], square[CPU_BLOCK];
    float scale[CPU_BLOCK], shift[CPU_BLOCK];
    norm_statistics(dtype, &p, count, f->x, mean, square);
    cpu_read(dtype, f->gamma, channel, count, scale);
    cpu_read(dtype, f->beta, channel, count, shift);
    double rest = p.pixels > 1 ? (double)(p.pixels - 1) : 1.0;
    for (int64_t c = 0; c < count; c++) {
        double var = square[c] / (double)p.pixels;
        f->mean[channel + c] = f->leaf_mean[channel + c] = (float)mean[c];
        f->leaf_var[channel + c] = (float)(square[c] / rest);
        f->rstd[channel + c] = (float)(1.0 / sqrt(var + (double)d->epsilon));
        scale[c] *= f->rstd[channel + c];
    }
    norm_apply(dtype, &p, count, d->relu, f->mean + channel, scale, shift, f->x, f->y);
}

enum tess_status CPU_LOOP(batch_norm_forward)(struct tess_op *op, const void *x, const void *gamma,
                                              const void *beta, void *y, float *save_mean,
                                              float *save_rstd, float *mean_sum, float *var_sum)
{
    const struct tess_op_desc *d = &op->desc;
    int64_t leaves = d->rows / d->leaf_rows, pixels = d->leaf_rows * d->height * d->width;
    struct tess_fold fold_mean, fold_var;
    tess__fold_init(&fold_mean, d->in, mean_sum, op->scratch);
    tess__fold_init(&fold_var, d->in, var_sum,
                    (char *)op->scratch + tess__fold_bytes(d->in, leaves));
    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        struct norm_forward f = {.x = x,
                                 .gamma = gamma,
                                 .beta = beta,
                                 .y = y,
                                 .mean = save_mean + leaf * d->in,
                                 .rstd = save_rstd + leaf * d->in,
                                 .leaf_mean = tess__fold_leaf(&fold_mean),
                                 .leaf_var = tess__fold_leaf(&fold_var)};
        CPU_BLOCKS_BY_DTYPE(d->dtype, d->in, norm_forward_block, d, leaf * pixels, &f);
        tess__fold_push(&fold_mean);
        tess__fold_push(&fold_var);
    }
    tess__fold_finish(&fold_mean);
    tess__fold_finish(&fold_var);
    return TESS_OK;
}

CPU_INLINE void norm_infer_block(enum tess_dtype dtype, int64_t channel, int64_t count,
                                 const struct tess_op_desc *d, const void *x, const void *gamma,
                                 const void *beta, const void *mean, const void *var, void *y)
{
    float scale[CPU_BLOCK], shift[CPU_BLOCK], middle[CPU_BLOCK], spread[CPU_BLOCK];
    cpu_read(dtype, gamma, channel, count, scale);
    cpu_read(dtype, beta, channel, count, shift);
    cpu_read(dtype, mean, channel, count, middle);
    cpu_read(dtype, var, channel, count, spread);
    for (int64_t c = 0; c < count; c++)
        scale[c] *= (float)(1.0 / sqrt((double)spread[c] + (double)d->epsilon));
    struct norm_part p = {
        .first = channel, .pixels = d->rows * d->height * d->width, .channels = d->in};
    norm_apply(dtype, &p, count, d->relu, middle, scale, shift, x, y);
}

enum tess_status CPU_LOOP(batch_norm_infer)(struct tess_op *op, const void *x, const void *gamma,
                                            const void *beta, const void *mean, const void *var,
                                            void *y)
{
    const struct tess_op_desc *d = &op->desc;
    CPU_BLOCKS_BY_DTYPE(d->dtype, d->in, norm_infer_block, d, x, gamma, beta, mean, var, y);
    return TESS_OK;
}

struct norm_backward {
    const void *x, *y, *dy, *gamma;
    const float *mean, *rstd;
    void *dx;
    float *dgamma, *dbeta; /* of this leaf */
};

/* The gradient of one pixel's normalised output, after the ReLU, and the normalised input. */
CPU_INLINE void norm_pixel(enum tess_dtype dtype, bool relu, int64_t at, int64_t count,
                           const struct norm_backward *b, const float *mean, const float *rstd,
                           float *grad, float *hat)
{
    float output[CPU_BLOCK];
    cpu_read(dtype, b->dy, at, count, grad);
    cpu_read(dtype, b->x, at, count, hat);
    if (relu) {
        cpu_read(dtype, b->y, at, count, output);
        for (int64_t c = 0; c < count; c++)
            grad[c] = output[c] > 0 ? grad[c] : 0.0f;
    }
    for (int64_t c = 0; c < count; c++)
        hat[c] = (hat[c] - mean[c]) * rstd[c];
}

/*
 * With n elements per channel, x_hat = (x - mean) rstd and g = dy after the ReLU:
 *   dbeta = sum g, dgamma = sum g x_hat, dx = gamma rstd (g - dbeta / n - x_hat dgamma / n)
 * All sums are done before dx is written: dx may be dy.
 */
CPU_INLINE void norm_backward_block(enum tess_dtype dtype, int64_t channel, int64_t count,
                                    const struct tess_op_desc *d, int64_t first_pixel,
                                    const struct norm_backward *b)
{
    struct norm_part p = norm_part(d, first_pixel, channel);
    bool relu = d->relu;
    double sum_beta[CPU_BLOCK] = {0}, sum_gamma[CPU_BLOCK] = {0};
    float grad[CPU_BLOCK], hat[CPU_BLOCK], scale[CPU_BLOCK];
    const float *mean = b->mean + channel, *rstd = b->rstd + channel;
    for (int64_t begin = 0; begin < p.pixels; begin += NORM_ROWS) {
        int64_t end = p.pixels - begin < NORM_ROWS ? p.pixels : begin + NORM_ROWS;
        float beta[CPU_BLOCK] = {0}, gamma[CPU_BLOCK] = {0};
        for (int64_t row = begin; row < end; row++) {
            norm_pixel(dtype, relu, p.first + row * p.channels, count, b, mean, rstd, grad, hat);
            for (int64_t c = 0; c < count; c++) {
                beta[c] += grad[c];
                gamma[c] += grad[c] * hat[c];
            }
        }
        for (int64_t c = 0; c < count; c++) {
            sum_beta[c] += (double)beta[c];
            sum_gamma[c] += (double)gamma[c];
        }
    }
    float mean_beta[CPU_BLOCK], mean_gamma[CPU_BLOCK];
    cpu_read(dtype, b->gamma, channel, count, scale);
    for (int64_t c = 0; c < count; c++) {
        b->dbeta[channel + c] = (float)sum_beta[c];
        b->dgamma[channel + c] = (float)sum_gamma[c];
        mean_beta[c] = (float)(sum_beta[c] / (double)p.pixels);
        mean_gamma[c] = (float)(sum_gamma[c] / (double)p.pixels);
        scale[c] *= rstd[c];
    }
    for (int64_t row = 0; row < p.pixels; row++) {
        int64_t at = p.first + row * p.channels;
        norm_pixel(dtype, relu, at, count, b, mean, rstd, grad, hat);
        for (int64_t c = 0; c < count; c++)
            grad[c] = scale[c] * ((grad[c] - mean_beta[c]) - hat[c] * mean_gamma[c]);
        cpu_write(dtype, b->dx, at, count, grad);
    }
}

enum tess_status CPU_LOOP(batch_norm_backward)(struct tess_op *op, const void *x, const void *y,
                                               const void *dy, const void *gamma,
                                               const float *save_mean, const float *save_rstd,
                                               void *dx, float *dgamma, float *dbeta)
{
    const struct tess_op_desc *d = &op->desc;
    int64_t leaves = d->rows / d->leaf_rows, pixels = d->leaf_rows * d->height * d->width;
    struct tess_fold fold_gamma, fold_beta;
    tess__fold_init(&fold_gamma, d->in, dgamma, op->scratch);
    tess__fold_init(&fold_beta, d->in, dbeta,
                    (char *)op->scratch + tess__fold_bytes(d->in, leaves));
    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        struct norm_backward b = {.x = x,
                                  .y = y,
                                  .dy = dy,
                                  .gamma = gamma,
                                  .mean = save_mean + leaf * d->in,
                                  .rstd = save_rstd + leaf * d->in,
                                  .dx = dx,
                                  .dgamma = tess__fold_leaf(&fold_gamma),
                                  .dbeta = tess__fold_leaf(&fold_beta)};
        CPU_BLOCKS_BY_DTYPE(d->dtype, d->in, norm_backward_block, d, leaf * pixels, &b);
        tess__fold_push(&fold_gamma);
        tess__fold_push(&fold_beta);
    }
    tess__fold_finish(&fold_gamma);
    tess__fold_finish(&fold_beta);
    return TESS_OK;
}
