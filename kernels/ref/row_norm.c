/*
 * Layer norm and RMS norm of ref, row by row. Sums over channels and over the rows of a leaf are
 * taken in f64, in order; results are f32.
 */
#include "ref/fold.h"
#include "ref/slots.h"
#include "ref/stage.h"

#include <math.h>
#include <string.h>

struct row_scratch {
    double *sum_gamma, *sum_beta;       /* [C] over one leaf */
    float *x, *add, *dy, *gamma, *beta; /* f32 copies of one row, and of the parameters [C] */
    float *y;                           /* of the row that is written */
    void *fold_gamma, *fold_beta;
    size_t bytes;
};

static struct row_scratch row_layout(const struct tess_op_desc *d, void *base)
{
    struct ref_scratch scratch = {.base = base};
    int64_t leaves = d->rows / d->leaf_rows;
    struct row_scratch s = {
        .sum_gamma = ref_take(&scratch, (size_t)d->in * sizeof(double)),
        .sum_beta = ref_take(&scratch, (size_t)d->in * sizeof(double)),
        .x = ref_take_copy(&scratch, d->dtype, d->in),
        .add = ref_take_copy(&scratch, d->dtype, d->in),
        .dy = ref_take_copy(&scratch, d->dtype, d->in),
        .gamma = ref_take_copy(&scratch, d->dtype, d->in),
        .beta = ref_take_copy(&scratch, d->dtype, d->in),
        .y = ref_take_copy(&scratch, d->dtype, d->in),
        .fold_gamma = ref_take(&scratch, tess__fold_bytes(d->in, leaves)),
        .fold_beta = ref_take(&scratch, tess__fold_bytes(d->in, leaves)),
    };
    s.bytes = scratch.used;
    return s;
}

size_t tess__ref_norm_scratch(const struct tess_op_desc *desc)
{
    return row_layout(desc, NULL).bytes;
}

/* Row `row` of sum = x + add, as it was rounded; or of x, where add is NULL. */
static const float *row_summed(const struct tess_op_desc *d, const void *x, const void *add,
                               void *sum, int64_t row, const struct row_scratch *s)
{
    int64_t first = row * d->in;
    const float *x32 = ref_read(d->dtype, x, first, d->in, s->x);
    if (add == NULL)
        return x32;
    const float *add32 = ref_read(d->dtype, add, first, d->in, s->add);
    float *sum32 = ref_target(d->dtype, sum, first, s->y);
    for (int64_t c = 0; c < d->in; c++)
        sum32[c] = x32[c] + add32[c];
    ref_write(d->dtype, sum, first, d->in, sum32);
    return ref_read(d->dtype, sum, first, d->in, s->x);
}

static void row_statistics(const struct tess_op_desc *d, const float *x, float *mean, float *rstd)
{
    double centre = 0, square = 0;
    for (int64_t c = 0; c < d->in && !d->rms; c++)
        centre += (double)x[c];
    centre /= (double)d->in;
    for (int64_t c = 0; c < d->in; c++)
        square += ((double)x[c] - centre) * ((double)x[c] - centre);
    *mean = (float)centre;
    *rstd = (float)(1.0 / sqrt(square / (double)d->in + (double)d->epsilon));
}

enum tess_status tess__ref_norm_forward(struct tess_op *op, const void *x, const void *add,
                                        void *sum, const void *gamma, const void *beta, void *y,
                                        float *mean, float *rstd)
{
    const struct tess_op_desc *d = &op->desc;
    struct row_scratch s = row_layout(d, op->scratch);
    const float *gamma32 = ref_read(d->dtype, gamma, 0, d->in, s.gamma);
    const float *beta32 = d->rms ? NULL : ref_read(d->dtype, beta, 0, d->in, s.beta);
    for (int64_t row = 0; row < d->rows; row++) {
        const float *x32 = row_summed(d, x, add, sum, row, &s);
        float *y32 = ref_target(d->dtype, y, row * d->in, s.y), centre;
        row_statistics(d, x32, &centre, rstd + row);
        if (!d->rms)
            mean[row] = centre;
        for (int64_t c = 0; c < d->in; c++)
            y32[c] =
                (x32[c] - centre) * rstd[row] * gamma32[c] + (beta32 != NULL ? beta32[c] : 0.0f);
        ref_write(d->dtype, y, row * d->in, d->in, y32);
    }
    return TESS_OK;
}

/*
 * With n = C, x_hat = (x - mean) rstd and g = gamma dy:
 *   dx = rstd (g - sum g / n - x_hat sum (g x_hat) / n) + add      RMS: without the sum of g
 *   dgamma += dy x_hat, dbeta += dy
 * A row's sums are done before its dx is written, and an element is read before it is written: dx
 * may be dy or add.
 */
static void row_backward(const struct tess_op_desc *d, const float *x, const float *dy,
                         const float *gamma, float mean, float rstd, const float *add, float *dx,
                         const struct row_scratch *s)
{
    double sum = 0, product = 0;
    for (int64_t c = 0; c < d->in; c++) {
        double x_hat = (double)((x[c] - mean) * rstd), g = (double)gamma[c] * (double)dy[c];
        sum += g;
        product += g * x_hat;
        s->sum_gamma[c] += (double)dy[c] * x_hat;
        s->sum_beta[c] += (double)dy[c];
    }
    sum = d->rms ? 0 : sum / (double)d->in;
    product /= (double)d->in;
    for (int64_t c = 0; c < d->in; c++) {
        double x_hat = (double)((x[c] - mean) * rstd), g = (double)gamma[c] * (double)dy[c];
        double more = add != NULL ? (double)add[c] : 0.0;
        dx[c] = (float)((double)rstd * (g - sum - x_hat * product) + more);
    }
}

enum tess_status tess__ref_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                         const void *gamma, const float *mean, const float *rstd,
                                         const void *add, void *dx, float *dgamma, float *dbeta)
{
    const struct tess_op_desc *d = &op->desc;
    struct row_scratch s = row_layout(d, op->scratch);
    int64_t n = d->in;
    const float *gamma32 = ref_read(d->dtype, gamma, 0, n, s.gamma);
    struct tess_fold fold_gamma, fold_beta;
    tess__fold_init(&fold_gamma, n, dgamma, s.fold_gamma);
    tess__fold_init(&fold_beta, d->rms ? 0 : n, dbeta, s.fold_beta);
    for (int64_t first = 0; first < d->rows; first += d->leaf_rows) {
        memset(s.sum_gamma, 0, (size_t)n * sizeof(double));
        memset(s.sum_beta, 0, (size_t)n * sizeof(double));
        for (int64_t row = first; row < first + d->leaf_rows; row++) {
            const float *x32 = ref_read(d->dtype, x, row * n, n, s.x);
            const float *dy32 = ref_read(d->dtype, dy, row * n, n, s.dy);
            const float *add32 = add != NULL ? ref_read(d->dtype, add, row * n, n, s.add) : NULL;
            float *dx32 = ref_target(d->dtype, dx, row * n, s.y);
            row_backward(d, x32, dy32, gamma32, d->rms ? 0.0f : mean[row], rstd[row], add32, dx32,
                         &s);
            ref_write(d->dtype, dx, row * n, n, dx32);
        }
        float *leaf_gamma = tess__fold_leaf(&fold_gamma);
        for (int64_t c = 0; c < n; c++)
            leaf_gamma[c] = (float)s.sum_gamma[c];
        float *leaf_beta = d->rms ? NULL : tess__fold_leaf(&fold_beta);
        for (int64_t c = 0; leaf_beta != NULL && c < n; c++)
            leaf_beta[c] = (float)s.sum_beta[c];
        tess__fold_push(&fold_gamma);
        tess__fold_push(&fold_beta);
    }
    tess__fold_finish(&fold_gamma);
    tess__fold_finish(&fold_beta);
    return TESS_OK;
}
