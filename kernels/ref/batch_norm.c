/*
 * Batch normalisation of ref, one leaf at a time. Sums over a leaf are taken in f64, element by
 * element in order; results are f32. A leaf with a single element per channel has the unbiased
 * variance 0.
 */
#include "ref/fold.h"
#include "ref/slots.h"
#include "ref/stage.h"

#include <math.h>
#include <string.h>

struct norm_scratch {
    double *sum_a, *sum_b;          /* [C] */
    float *scale, *shift;           /* [C] */
    float *x, *y, *dy, *param, *dx; /* f32 copies of one pixel's channels [C] */
    void *fold_a, *fold_b;
    size_t bytes;
};

static struct norm_scratch norm_layout(const struct tess_op_desc *d, void *base)
{
    struct ref_scratch scratch = {.base = base};
    int64_t leaves = d->rows / d->leaf_rows;
    struct norm_scratch s = {
        .sum_a = ref_take(&scratch, (size_t)d->in * sizeof(double)),
        .sum_b = ref_take(&scratch, (size_t)d->in * sizeof(double)),
        .scale = ref_take(&scratch, (size_t)d->in * sizeof(float)),
        .shift = ref_take(&scratch, (size_t)d->in * sizeof(float)),
        .x = ref_take_copy(&scratch, d->dtype, d->in),
        .y = ref_take_copy(&scratch, d->dtype, d->in),
        .dy = ref_take_copy(&scratch, d->dtype, d->in),
        .param = ref_take_copy(&scratch, d->dtype, d->in),
        .dx = ref_take_copy(&scratch, d->dtype, d->in),
        .fold_a = ref_take(&scratch, tess__fold_bytes(d->in, leaves)),
        .fold_b = ref_take(&scratch, tess__fold_bytes(d->in, leaves)),
    };
    s.bytes = scratch.used;
    return s;
}

size_t tess__ref_batch_norm_scratch(const struct tess_op_desc *desc)
{
    return norm_layout(desc, NULL).bytes;
}

/* Pixels [first, first + count), each of C channels: sum_a = mean, sum_b = squares about it. */
static void norm_statistics(const struct tess_op_desc *d, const void *x, int64_t first,
                            int64_t count, struct norm_scratch *s)
{
    int64_t channels = d->in;
    memset(s->sum_a, 0, (size_t)channels * sizeof(double));
    memset(s->sum_b, 0, (size_t)channels * sizeof(double));
    for (int64_t p = first; p < first + count; p++) {
        const float *x32 = ref_read(d->dtype, x, p * channels, channels, s->x);
        for (int64_t c = 0; c < channels; c++)
            s->sum_a[c] += (double)x32[c];
    }
    for (int64_t c = 0; c < channels; c++)
        s->sum_a[c] /= (double)count;
    for (int64_t p = first; p < first + count; p++) {
        const float *x32 = ref_read(d->dtype, x, p * channels, channels, s->x);
        for (int64_t c = 0; c < channels; c++) {
            double away = (double)x32[c] - s->sum_a[c];
            s->sum_b[c] += away * away;
        }
    }
}

/* y = (x - mean) scale + shift, then the ReLU, over pixels [first, first + count). */
static void norm_apply(const struct tess_op_desc *d, const void *x, const float *mean,
                       int64_t first, int64_t count, void *y, const struct norm_scratch *s)
{
    int64_t channels = d->in;
    for (int64_t p = first; p < first + count; p++) {
        const float *x32 = ref_read(d->dtype, x, p * channels, channels, s->x);
        float *y32 = ref_target(d->dtype, y, p * channels, s->y);
        for (int64_t c = 0; c < channels; c++) {
            float value = (x32[c] - mean[c]) * s->scale[c] + s->shift[c];
            y32[c] = d->relu && value < 0 ? 0.0f : value;
        }
        ref_write(d->dtype, y, p * channels, channels, y32);
    }
}

enum tess_status tess__ref_batch_norm_forward(struct tess_op *op, const void *x, const void *gamma,
                                              const void *beta, void *y, float *save_mean,
                                              float *save_rstd, float *mean_sum, float *var_sum)
{
    const struct tess_op_desc *d = &op->desc;
    struct norm_scratch s = norm_layout(d, op->scratch);
    int64_t channels = d->in, pixels = d->leaf_rows * d->height * d->width;
    memcpy(s.shift, ref_read(d->dtype, beta, 0, channels, s.param),
           (size_t)channels * sizeof(float));
    const float *gamma32 = ref_read(d->dtype, gamma, 0, channels, s.param);
    struct tess_fold fold_mean, fold_var;
    tess__fold_init(&fold_mean, channels, mean_sum, s.fold_a);
    tess__fold_init(&fold_var, channels, var_sum, s.fold_b);
    for (int64_t leaf = 0; leaf < d->rows / d->leaf_rows; leaf++) {
        float *mean = save_mean + leaf * channels, *rstd = save_rstd + leaf * channels;
        float *leaf_mean = tess__fold_leaf(&fold_mean), *leaf_var = tess__fold_leaf(&fold_var);
        norm_statistics(d, x, leaf * pixels, pixels, &s);
        for (int64_t c = 0; c < channels; c++) {
            double rest = pixels > 1 ? (double)(pixels - 1) : 1.0;
            mean[c] = leaf_mean[c] = (float)s.sum_a[c];
            leaf_var[c] = (float)(s.sum_b[c] / rest);
            rstd[c] = (float)(1.0 / sqrt(s.sum_b[c] / (double)pixels + (double)d->epsilon));
            s.scale[c] = gamma32[c] * rstd[c];
        }
        norm_apply(d, x, mean, leaf * pixels, pixels, y, &s);
        tess__fold_push(&fold_mean);
        tess__fold_push(&fold_var);
    }
    tess__fold_finish(&fold_mean);
    tess__fold_finish(&fold_var);
    return TESS_OK;
}

enum tess_status tess__ref_batch_norm_infer(struct tess_op *op, const void *x, const void *gamma,
                                            const void *beta, const void *mean, const void *var,
                                            void *y)
{
    const struct tess_op_desc *d = &op->desc;
    struct norm_scratch s = norm_layout(d, op->scratch);
    int64_t channels = d->in;
    const float *var32 = ref_read(d->dtype, var, 0, channels, s.param);
    for (int64_t c = 0; c < channels; c++)
        s.scale[c] = (float)(1.0 / sqrt((double)var32[c] + (double)d->epsilon));
    const float *gamma32 = ref_read(d->dtype, gamma, 0, channels, s.param);
    for (int64_t c = 0; c < channels; c++)
        s.scale[c] *= gamma32[c];
    memcpy(s.shift, ref_read(d->dtype, beta, 0, channels, s.param),
           (size_t)channels * sizeof(float));
    const float *mean32 = ref_read(d->dtype, mean, 0, channels, s.param);
    norm_apply(d, x, mean32, 0, d->rows * d->height * d->width, y, &s);
    return TESS_OK;
}

/* The gradient of one pixel's normalised output: dy, or 0 where the ReLU cut it off. */
static const float *norm_output_grad(const struct tess_op_desc *d, const void *y, const void *dy,
                                     int64_t pixel, const struct norm_scratch *s, float *cut)
{
    const float *dy32 = ref_read(d->dtype, dy, pixel * d->in, d->in, s->dy);
    if (!d->relu)
        return dy32;
    const float *y32 = ref_read(d->dtype, y, pixel * d->in, d->in, s->y);
    for (int64_t c = 0; c < d->in; c++)
        cut[c] = y32[c] > 0 ? dy32[c] : 0.0f;
    return cut;
}

/*
 * With n elements per channel, x_hat = (x - mean) rstd and g = dy after the ReLU:
 *   dbeta = sum g, dgamma = sum g x_hat, dx = gamma rstd (g - dbeta / n - x_hat dgamma / n)
 * All of a leaf's sums are done before its dx is written, and a pixel is read before it is written:
 * dx may be dy.
 */
static void norm_backward_leaf(const struct tess_op_desc *d, const void *x, const void *y,
                               const void *dy, const float *gamma, const float *mean,
                               const float *rstd, int64_t first, int64_t pixels, void *dx,
                               float *dgamma, float *dbeta, const struct norm_scratch *s)
{
    int64_t channels = d->in;
    memset(s->sum_a, 0, (size_t)channels * sizeof(double));
    memset(s->sum_b, 0, (size_t)channels * sizeof(double));
    for (int64_t p = first; p < first + pixels; p++) {
        const float *x32 = ref_read(d->dtype, x, p * channels, channels, s->x);
        const float *g = norm_output_grad(d, y, dy, p, s, s->shift);
        for (int64_t c = 0; c < channels; c++) {
            s->sum_a[c] += (double)g[c];
            s->sum_b[c] += (double)g[c] * (double)((x32[c] - mean[c]) * rstd[c]);
        }
    }
    for (int64_t c = 0; c < channels; c++) {
        dbeta[c] = (float)s->sum_a[c];
        dgamma[c] = (float)s->sum_b[c];
        s->sum_a[c] /= (double)pixels;
        s->sum_b[c] /= (double)pixels;
    }
    for (int64_t p = first; p < first + pixels; p++) {
        const float *x32 = ref_read(d->dtype, x, p * channels, channels, s->x);
        const float *g = norm_output_grad(d, y, dy, p, s, s->shift);
        float *dx32 = ref_target(d->dtype, dx, p * channels, s->dx);
        for (int64_t c = 0; c < channels; c++) {
            double x_hat = (double)((x32[c] - mean[c]) * rstd[c]);
            double inner = (double)g[c] - s->sum_a[c] - x_hat * s->sum_b[c];
            dx32[c] = (float)((double)(gamma[c] * rstd[c]) * inner);
        }
        ref_write(d->dtype, dx, p * channels, channels, dx32);
    }
}

enum tess_status tess__ref_batch_norm_backward(struct tess_op *op, const void *x, const void *y,
                                               const void *dy, const void *gamma, const void *beta,
                                               const float *save_mean, const float *save_rstd,
                                               void *dx, float *dgamma, float *dbeta)
{
    (void)beta;
    const struct tess_op_desc *d = &op->desc;
    struct norm_scratch s = norm_layout(d, op->scratch);
    int64_t channels = d->in, pixels = d->leaf_rows * d->height * d->width;
    const float *gamma32 = ref_read(d->dtype, gamma, 0, channels, s.param);
    struct tess_fold fold_gamma, fold_beta;
    tess__fold_init(&fold_gamma, channels, dgamma, s.fold_a);
    tess__fold_init(&fold_beta, channels, dbeta, s.fold_b);
    for (int64_t leaf = 0; leaf < d->rows / d->leaf_rows; leaf++) {
        norm_backward_leaf(d, x, y, dy, gamma32, save_mean + leaf * channels,
                           save_rstd + leaf * channels, leaf * pixels, pixels, dx,
                           tess__fold_leaf(&fold_gamma), tess__fold_leaf(&fold_beta), &s);
        tess__fold_push(&fold_gamma);
        tess__fold_push(&fold_beta);
    }
    tess__fold_finish(&fold_gamma);
    tess__fold_finish(&fold_beta);
    return TESS_OK;
}
