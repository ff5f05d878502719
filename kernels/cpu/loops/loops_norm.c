/*
 * Own loops of batch normalisation, one leaf and one block of channels at a time. Sums over a leaf
 * are f32 over NORM_ROWS pixels, then f64: an order that depends on the leaf only.
 */
#include "cpu/loops/loops.h"

#include "cpu/own/stage.h"
#include "ref/fold.h"

#include <math.h>

#define NORM_ROWS 256

/* As CPU_BLOCKS, with a constant count also for 32 and 16 channels, which narrow networks have.
 * What a channel gives does not depend on its block. */
#define NORM_BLOCKS(dtype, size, run, ...)                                                         \
    do {                                                                                           \
        int64_t norm_at = 0;                                                                       \
        for (; norm_at + CPU_BLOCK <= (size); norm_at += CPU_BLOCK)                                \
            run(dtype, norm_at, CPU_BLOCK, __VA_ARGS__);                                           \
        for (; norm_at + 32 <= (size); norm_at += 32)                                              \
            run(dtype, norm_at, 32, __VA_ARGS__);                                                  \
        for (; norm_at + 16 <= (size); norm_at += 16)                                              \
            run(dtype, norm_at, 16, __VA_ARGS__);                                                  \
        if (norm_at < (size))                                                                      \
            run(dtype, norm_at, (size)-norm_at, __VA_ARGS__);                                      \
    } while (0)

#define NORM_BLOCKS_BY_DTYPE(dtype, size, run, ...)                                                \
    do {                                                                                           \
        if ((dtype) == TESS_F32)                                                                   \
            NORM_BLOCKS(TESS_F32, size, run, __VA_ARGS__);                                         \
        else if ((dtype) == TESS_BF16)                                                             \
            NORM_BLOCKS(TESS_BF16, size, run, __VA_ARGS__);                                        \
        else                                                                                       \
            CPU_BLOCKS(TESS_F16, size, run, __VA_ARGS__);                                          \
    } while (0)

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

CPU_INLINE void norm_forward_block(enum tess_dtype dtype, int64_t at, int64_t count, int64_t first,
                                   const struct tess_op_desc *d, int64_t first_pixel,
                                   const struct norm_forward *f)
{
    const int64_t channel = first + at;
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

/* The two folds over the leaves, for some channels. */
static void norm_folds(const struct cpu_batch_norm *n, int64_t first, int64_t count,
                       struct tess_fold fold[2])
{
    const struct tess_op_desc *d = n->desc;
    char *scratch = n->scratch;
    for (int i = 0; i < 2; i++, scratch += tess__fold_bytes(d->in, d->rows / d->leaf_rows)) {
        struct tess_fold whole;
        tess__fold_init(&whole, d->in, n->sum[i], scratch);
        fold[i] = tess__fold_piece(&whole, first, count);
    }
}

void CPU_LOOP(batch_norm_forward)(const void *arguments, int64_t first, int64_t count)
{
    const struct cpu_batch_norm *n = arguments;
    const struct tess_op_desc *d = n->desc;
    int64_t leaves = d->rows / d->leaf_rows, pixels = d->leaf_rows * d->height * d->width;
    struct tess_fold fold[2];
    norm_folds(n, first, count, fold);
    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        struct norm_forward f = {.x = n->x,
                                 .gamma = n->gamma,
                                 .beta = n->beta,
                                 .y = n->y,
                                 .mean = n->mean + leaf * d->in,
                                 .rstd = n->rstd + leaf * d->in,
                                 .leaf_mean = tess__fold_leaf(&fold[0]) - first,
                                 .leaf_var = tess__fold_leaf(&fold[1]) - first};
        NORM_BLOCKS_BY_DTYPE(d->dtype, count, norm_forward_block, first, d, leaf * pixels, &f);
        tess__fold_push(&fold[0]);
        tess__fold_push(&fold[1]);
    }
    tess__fold_finish(&fold[0]);
    tess__fold_finish(&fold[1]);
}

CPU_INLINE void norm_infer_block(enum tess_dtype dtype, int64_t at, int64_t count, int64_t first,
                                 const struct tess_op_desc *d, const struct cpu_batch_norm *n)
{
    float scale[CPU_BLOCK], shift[CPU_BLOCK], middle[CPU_BLOCK], spread[CPU_BLOCK];
    const int64_t channel = first + at;
    cpu_read(dtype, n->gamma, channel, count, scale);
    cpu_read(dtype, n->beta, channel, count, shift);
    cpu_read(dtype, n->middle, channel, count, middle);
    cpu_read(dtype, n->spread, channel, count, spread);
    for (int64_t c = 0; c < count; c++)
        scale[c] *= (float)(1.0 / sqrt((double)spread[c] + (double)d->epsilon));
    struct norm_part p = {
        .first = channel, .pixels = d->rows * d->height * d->width, .channels = d->in};
    norm_apply(dtype, &p, count, d->relu, middle, scale, shift, n->x, n->y);
}

void CPU_LOOP(batch_norm_infer)(const void *arguments, int64_t first, int64_t count)
{
    const struct cpu_batch_norm *n = arguments;
    NORM_BLOCKS_BY_DTYPE(n->desc->dtype, count, norm_infer_block, first, n->desc, n);
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
CPU_INLINE void norm_backward_block(enum tess_dtype dtype, int64_t at, int64_t count, int64_t first,
                                    const struct tess_op_desc *d, int64_t first_pixel,
                                    const struct norm_backward *b)
{
    const int64_t channel = first + at;
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
        int64_t pixel = p.first + row * p.channels;
        norm_pixel(dtype, relu, pixel, count, b, mean, rstd, grad, hat);
        for (int64_t c = 0; c < count; c++)
            grad[c] = scale[c] * ((grad[c] - mean_beta[c]) - hat[c] * mean_gamma[c]);
        cpu_write(dtype, b->dx, pixel, count, grad);
    }
}

void CPU_LOOP(batch_norm_backward)(const void *arguments, int64_t first, int64_t count)
{
    const struct cpu_batch_norm *n = arguments;
    const struct tess_op_desc *d = n->desc;
    int64_t leaves = d->rows / d->leaf_rows, pixels = d->leaf_rows * d->height * d->width;
    struct tess_fold fold[2];
    norm_folds(n, first, count, fold);
    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        struct norm_backward b = {.x = n->x,
                                  .y = n->y,
                                  .dy = n->dy,
                                  .gamma = n->gamma,
                                  .mean = n->mean + leaf * d->in,
                                  .rstd = n->rstd + leaf * d->in,
                                  .dx = n->dx,
                                  .dgamma = tess__fold_leaf(&fold[0]) - first,
                                  .dbeta = tess__fold_leaf(&fold[1]) - first};
        NORM_BLOCKS_BY_DTYPE(d->dtype, count, norm_backward_block, first, d, leaf * pixels, &b);
        tess__fold_push(&fold[0]);
        tess__fold_push(&fold[1]);
    }
    tess__fold_finish(&fold[0]);
    tess__fold_finish(&fold[1]);
}
