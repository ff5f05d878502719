/*
 * Layer norm and RMS norm of one backend (argv[1]) against the definition in double, leaf by leaf,
 * and with results written where inputs were.
 *
 * Bounds. Sums of n = C terms as in bound_of(). Forward is first-order error propagation as in
 * test_batch_norm.c; backward is given exact statistics, so that x_hat loses two roundings only.
 */
#include "device.h"

#include <math.h>
#include <stdlib.h>

static struct device device;

#define UNIT 0x1p-24

struct row_case {
    struct tess_op_desc d;
    bool add;
    int64_t count;                            /* rows * in */
    double *x, *more, *s, *dy, *gamma, *beta; /* s = x + more, as rounded, or x */
    void *x_dev, *more_dev, *s_dev, *dy_dev, *gamma_dev, *beta_dev, *y_dev, *dx_dev;
    float *mean_dev, *rstd_dev, *dgamma_dev, *dbeta_dev;
};

/* Rows differ in scale and lie off centre. */
static void row_draw(struct row_case *c, struct draw *draw)
{
    struct tess_op_desc *d = &c->d;
    c->count = d->rows * d->in;
    c->x = draw_reals(draw, d->dtype, c->count);
    c->more = draw_reals(draw, d->dtype, c->count);
    c->s = reals(c->count);
    for (int64_t i = 0; i < c->count; i++) {
        int64_t row = i / d->in;
        c->x[i] =
            round_to(d->dtype, c->x[i] * ldexp(1, (int)(row % 7) - 3) + 0.5 * (double)(row % 3));
        float sum = (float)c->x[i] + (float)c->more[i]; /* in f32, then rounded to the dtype */
        c->s[i] = c->add ? round_to(d->dtype, (double)sum) : c->x[i];
    }
    c->dy = draw_reals(draw, d->dtype, c->count);
    c->gamma = draw_reals(draw, d->dtype, d->in);
    c->beta = draw_reals(draw, d->dtype, d->in);
    size_t bytes = (size_t)c->count * tess_dtype_bytes(d->dtype);
    c->x_dev = device_put_real(&device, d->dtype, c->x, c->count);
    c->more_dev = c->add ? device_put_real(&device, d->dtype, c->more, c->count) : NULL;
    c->s_dev = c->add ? device_array(&device, bytes) : NULL;
    c->dy_dev = device_put_real(&device, d->dtype, c->dy, c->count);
    c->gamma_dev = device_put_real(&device, d->dtype, c->gamma, d->in);
    c->beta_dev = d->rms ? NULL : device_put_real(&device, d->dtype, c->beta, d->in);
    c->y_dev = device_array(&device, bytes);
    c->dx_dev = device_array(&device, bytes);
    c->mean_dev = d->rms ? NULL : device_array(&device, (size_t)d->rows * sizeof(float));
    c->rstd_dev = device_array(&device, (size_t)d->rows * sizeof(float));
    c->dgamma_dev = device_array(&device, (size_t)d->in * sizeof(float));
    c->dbeta_dev = d->rms ? NULL : device_array(&device, (size_t)d->in * sizeof(float));
}

static void row_free(struct row_case *c)
{
    double *const arrays[] = {c->x, c->more, c->s, c->dy, c->gamma, c->beta};
    for (int i = 0; i < 6; i++)
        free(arrays[i]);
}

/* One row in double; the errors are bounds. */
struct row_facts {
    double mean, rstd, mean_error, rstd_error, hat_error;
};

static struct row_facts row_naive(const struct row_case *c, int64_t row)
{
    struct row_facts f = {0};
    const double *s = c->s + row * c->d.in;
    double n = (double)c->d.in, size = 0, far = 0, var = 0;
    for (int64_t i = 0; i < c->d.in && !c->d.rms; i++) {
        f.mean += s[i] / n;
        size += fabs(s[i]) / n;
    }
    for (int64_t i = 0; i < c->d.in; i++) {
        var += (s[i] - f.mean) * (s[i] - f.mean) / n;
        far = fmax(far, fabs(s[i] - f.mean));
    }
    f.rstd = 1 / sqrt(var + (double)c->d.epsilon);
    f.mean_error = c->d.rms ? 0 : 2 * (n + 2) * UNIT * size;
    /* The variance is a sum of n squares, each off by what the mean is off; rstd feels half of the
       variance's error times rstd^2, relatively. */
    double var_error = 2 * (n + 4) * UNIT * var + 2 * far * f.mean_error;
    f.rstd_error = f.rstd * (0.5 * var_error * f.rstd * f.rstd + 4 * UNIT);
    f.hat_error = f.rstd * (f.mean_error + 4 * UNIT * far) + far * f.rstd_error;
    return f;
}

static void check_forward(struct row_case *c, struct tess_op *op)
{
    const struct tess_op_desc *d = &c->d;
    assert_int_equal(tess_norm_forward(op, c->x_dev, c->more_dev, c->s_dev, c->gamma_dev,
                                       c->beta_dev, c->y_dev, c->mean_dev, c->rstd_dev),
                     TESS_OK);
    double *y = reals(c->count), *y_bound = reals(c->count), *none = reals(c->count);
    double *mean = reals(d->rows), *mean_bound = reals(d->rows);
    double *rstd = reals(d->rows), *rstd_bound = reals(d->rows);
    for (int64_t row = 0; row < d->rows; row++) {
        struct row_facts f = row_naive(c, row);
        mean[row] = f.mean;
        mean_bound[row] = f.mean_error + UNIT * fabs(f.mean);
        rstd[row] = f.rstd;
        rstd_bound[row] = f.rstd_error;
        for (int64_t i = 0; i < d->in; i++) {
            int64_t at = row * d->in + i;
            double slope = c->gamma[i] * (c->s[at] - f.mean) * f.rstd;
            double shift = d->rms ? 0 : c->beta[i];
            y[at] = slope + shift;
            y_bound[at] = fabs(c->gamma[i]) * f.hat_error +
                          (unit_of(d->dtype) + 4 * UNIT) * (fabs(slope) + fabs(shift)) +
                          tiny_of(d->dtype);
        }
    }
    if (c->add) /* the only rounding of the sum: nothing is allowed */
        device_check(&device, "norm sum", d->dtype, c->s_dev, c->s, none, c->count);
    if (!d->rms)
        device_check(&device, "norm mean", TESS_F32, c->mean_dev, mean, mean_bound, d->rows);
    device_check(&device, "norm rstd", TESS_F32, c->rstd_dev, rstd, rstd_bound, d->rows);
    device_check(&device, "norm y", d->dtype, c->y_dev, y, y_bound, c->count);
    double *const arrays[] = {y, y_bound, none, mean, mean_bound, rstd, rstd_bound};
    for (int i = 0; i < 7; i++)
        free(arrays[i]);
}

/* What backward is given: the statistics in double, rounded to f32, in place of forward's. */
static void row_give(struct row_case *c, double *mean, double *rstd)
{
    for (int64_t row = 0; row < c->d.rows; row++) {
        struct row_facts f = row_naive(c, row);
        mean[row] = round_to(TESS_F32, f.mean);
        rstd[row] = round_to(TESS_F32, f.rstd);
    }
    c->mean_dev = c->d.rms ? NULL : device_put_real(&device, TESS_F32, mean, c->d.rows);
    c->rstd_dev = device_put_real(&device, TESS_F32, rstd, c->d.rows);
}

/* dx of one row, and what it adds to the sums: [0] dgamma, [1] dbeta, then their magnitudes. */
static void row_backward(const struct row_case *c, int64_t row, double mean, double rstd,
                         double *dx, double *bound, double *sums[4])
{
    const struct tess_op_desc *d = &c->d;
    double n = (double)d->in, sum = 0, sum_size = 0, product = 0, product_size = 0;
    for (int64_t i = 0; i < d->in; i++) {
        int64_t at = row * d->in + i;
        double x_hat = (c->s[at] - mean) * rstd, g = c->gamma[i] * c->dy[at];
        sum += d->rms ? 0 : g / n;
        sum_size += d->rms ? 0 : fabs(g) / n;
        product += g * x_hat / n;
        product_size += fabs(g * x_hat) / n;
        sums[0][i] += c->dy[at] * x_hat;
        sums[1][i] += c->dy[at];
        sums[2][i] += fabs(c->dy[at] * x_hat);
        sums[3][i] += fabs(c->dy[at]);
    }
    for (int64_t i = 0; i < d->in; i++) {
        int64_t at = row * d->in + i;
        double x_hat = (c->s[at] - mean) * rstd, g = c->gamma[i] * c->dy[at];
        double more = c->add ? c->more[at] : 0;
        double size = rstd * (fabs(g) + sum_size + fabs(x_hat) * product_size);
        dx[at] = rstd * (g - sum - x_hat * product) + more;
        /* 8 roundings on the way to a term and from it, beside the n of a sum */
        bound[at] = bound_of(d->dtype, n + 8, size, dx[at]) + 2 * UNIT * fabs(more);
    }
}

static void check_backward(struct row_case *c, struct tess_op *op)
{
    const struct tess_op_desc *d = &c->d;
    double *mean = reals(d->rows), *rstd = reals(d->rows), *dx = reals(c->count);
    double *bound = reals(c->count), *sums[4];
    row_give(c, mean, rstd);
    const void *x = c->add ? c->s_dev : c->x_dev;
    assert_int_equal(tess_norm_backward(op, x, c->dy_dev, c->gamma_dev, c->mean_dev, c->rstd_dev,
                                        c->more_dev, c->dx_dev, c->dgamma_dev, c->dbeta_dev),
                     TESS_OK);
    for (int s = 0; s < 4; s++)
        sums[s] = reals(d->in);
    for (int64_t row = 0; row < d->rows; row++)
        row_backward(c, row, d->rms ? 0 : mean[row], rstd[row], dx, bound, sums);
    device_check(&device, "norm dx", d->dtype, c->dx_dev, dx, bound, c->count);
    for (int64_t i = 0; i < d->in; i++) {
        sums[2][i] = bound_of(TESS_F32, (double)d->rows + 4, sums[2][i], sums[0][i]);
        sums[3][i] = bound_of(TESS_F32, (double)d->rows, sums[3][i], sums[1][i]);
    }
    device_check(&device, "norm dgamma", TESS_F32, c->dgamma_dev, sums[0], sums[2], d->in);
    if (!d->rms)
        device_check(&device, "norm dbeta", TESS_F32, c->dbeta_dev, sums[1], sums[3], d->in);
    for (int s = 0; s < 4; s++)
        free(sums[s]);
    free(mean);
    free(rstd);
    free(dx);
    free(bound);
}

/* What one way of running gave, in host memory. */
struct row_results {
    char *array[7]; /* s, y, mean, rstd, dx, dgamma, dbeta */
    size_t bytes[7];
};

static struct row_results row_fetch(const struct row_case *c, const void *s, const void *dx)
{
    size_t all = (size_t)c->count * tess_dtype_bytes(c->d.dtype);
    size_t rows = (size_t)c->d.rows * sizeof(float), row = (size_t)c->d.in * sizeof(float);
    const void *const source[] = {s,  c->y_dev,      c->mean_dev, c->rstd_dev,
                                  dx, c->dgamma_dev, c->dbeta_dev};
    struct row_results r = {.bytes = {all, all, rows, rows, all, row, row}};
    for (int i = 0; i < 7; i++)
        r.array[i] = source[i] != NULL ? device_fetch(&device, source[i], r.bytes[i]) : NULL;
    return r;
}

static void row_compare(const char *how, struct row_results *got, const struct row_results *want)
{
    for (int i = 0; i < 7; i++) {
        if (got->array[i] != NULL)
            check_bytes(how, got->array[i], want->array[i], got->bytes[i]);
        free(got->array[i]);
    }
}

/* Rows [first, first + op's rows), forward and backward, with sum and dx where they are given. */
static void row_both(struct row_case *c, struct tess_op *op, int64_t first, void *s, void *dx)
{
    size_t at = (size_t)(first * c->d.in) * tess_dtype_bytes(c->d.dtype);
    const char *x = (char *)c->x_dev + at, *more = c->add ? (char *)c->more_dev + at : NULL;
    char *sum = s != NULL ? (char *)s + at : NULL;
    float *mean = c->mean_dev != NULL ? c->mean_dev + first : NULL;
    assert_int_equal(tess_norm_forward(op, x, more, sum, c->gamma_dev, c->beta_dev,
                                       (char *)c->y_dev + at, mean, c->rstd_dev + first),
                     TESS_OK);
    assert_int_equal(tess_norm_backward(op, sum != NULL ? sum : x, (char *)c->dy_dev + at,
                                        c->gamma_dev, mean, c->rstd_dev + first, more,
                                        (char *)dx + at, c->dgamma_dev, c->dbeta_dev),
                     TESS_OK);
}

/* All leaves at once; leaf by leaf with the tree of the sums; sum over x and dx over dy. */
static void check_leaves(struct row_case *c, struct tess_op *whole)
{
    const struct tess_op_desc *d = &c->d;
    int64_t leaves = d->rows / d->leaf_rows;
    row_both(c, whole, 0, c->s_dev, c->dx_dev);
    struct row_results want = row_fetch(c, c->s_dev, c->dx_dev);
    struct tess_op_desc one = *d;
    one.rows = d->leaf_rows;
    struct tess_op op;
    device_op_open(&device, &one, &op);
    float *sums[2] = {floats(leaves * d->in), floats(leaves * d->in)}, *tree = floats(d->in);
    float *const from[2] = {c->dgamma_dev, c->dbeta_dev};
    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        row_both(c, &op, leaf * d->leaf_rows, c->s_dev, c->dx_dev);
        for (int s = 0; s < 2 && from[s] != NULL; s++)
            device_get(&device, sums[s] + leaf * d->in, from[s], want.bytes[5]);
    }
    for (int s = 0; s < 2 && from[s] != NULL; s++) {
        tree_sum(sums[s], leaves, d->in, tree);
        device_put(&device, from[s], tree, want.bytes[5]);
    }
    struct row_results got = row_fetch(c, c->s_dev, c->dx_dev);
    row_compare("norm by leaves", &got, &want);
    void *s = c->add ? c->x_dev : NULL;
    row_both(c, whole, 0, s, c->dy_dev);
    got = row_fetch(c, s, c->dy_dev);
    row_compare("norm with sum over x, dx over dy", &got, &want);
    for (int i = 0; i < 7; i++)
        free(want.array[i]);
    free(sums[0]);
    free(sums[1]);
    free(tree);
    device_op_close(&op);
}

/* sum over what was added, dx over what is added. */
static void check_over_add(struct row_case *c, struct tess_op *op)
{
    if (!c->add)
        return;
    row_both(c, op, 0, c->s_dev, c->dx_dev);
    struct row_results want = row_fetch(c, c->s_dev, c->dx_dev);
    void *copy = device_put_real(&device, c->d.dtype, c->more, c->count);
    assert_int_equal(tess_norm_backward(op, c->s_dev, c->dy_dev, c->gamma_dev, c->mean_dev,
                                        c->rstd_dev, copy, copy, c->dgamma_dev, c->dbeta_dev),
                     TESS_OK);
    assert_int_equal(tess_norm_forward(op, c->x_dev, c->more_dev, c->more_dev, c->gamma_dev,
                                       c->beta_dev, c->y_dev, c->mean_dev, c->rstd_dev),
                     TESS_OK);
    struct row_results got = row_fetch(c, c->more_dev, copy);
    row_compare("norm with sum and dx over add", &got, &want);
    for (int i = 0; i < 7; i++)
        free(want.array[i]);
}

static void row_run(struct row_case *c, uint64_t seed)
{
    struct draw draw = {seed};
    device_reset(&device);
    row_draw(c, &draw);
    struct tess_op op;
    device_op_open(&device, &c->d, &op);
    check_forward(c, &op);
    check_backward(c, &op);
    check_over_add(c, &op);
    check_leaves(c, &op); /* last: it writes over x and dy */
    device_op_close(&op);
    row_free(c);
}

/* leaves, leaf rows, channels */
static const int shape[][3] = {{0, 2, 3},    {1, 1, 1},    {2, 1, 2},    {3, 2, 7},
                               {5, 3, 16},   {2, 4, 17},   {1, 8, 33},   {4, 2, 64},
                               {7, 1, 100},  {3, 5, 257},  {2, 70, 24},  {2, 3, 768},
                               {1, 5, 1100}, {2, 1, 3000}, {1, 2, 9000}, {1, 1, 16384}};

static void row_all(enum tess_dtype dtype)
{
    for (size_t i = 0; i < 4 * sizeof(shape) / sizeof(shape[0]); i++) {
        const int *s = shape[i / 4];
        struct row_case c = {.d = {.kind = TESS_OP_NORM,
                                   .dtype = dtype,
                                   .rows = s[0] * s[1],
                                   .leaf_rows = s[1],
                                   .in = s[2],
                                   .out = s[2],
                                   .rms = i % 2 == 1,
                                   .epsilon = i % 3 ? 1e-5f : 1e-2f},
                             .add = i % 4 >= 2};
        row_run(&c, 900 + i);
    }
}

static void case_f32(void **state)
{
    (void)state;
    row_all(TESS_F32);
}

static void case_bf16(void **state)
{
    (void)state;
    row_all(TESS_BF16);
}

static void case_f16(void **state)
{
    (void)state;
    row_all(TESS_F16);
}

/* Rows of any length, every fourth one of thousands, as far as all backends go. */
static void case_random(void **state)
{
    (void)state;
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    struct draw draw = draw_shapes(29);
    for (int i = 0; i < 48; i++) {
        const bool large = i % 4 == 3;
        const int64_t in = large ? draw_between(&draw, 1000, 16384) : draw_between(&draw, 1, 900);
        const int64_t leaf_rows = draw_between(&draw, 1, large ? 2 : 6);
        struct row_case c = {.d = {.kind = TESS_OP_NORM,
                                   .dtype = dtypes[i % 3],
                                   .rows = leaf_rows * draw_between(&draw, 1, large ? 2 : 5),
                                   .leaf_rows = leaf_rows,
                                   .in = in,
                                   .out = in,
                                   .rms = draw_between(&draw, 0, 1),
                                   .epsilon = 1e-5f},
                             .add = draw_between(&draw, 0, 1)};
        row_run(&c, draw_word(&draw));
    }
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 4u << 20);
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_f32), cmocka_unit_test(case_bf16),
                                       cmocka_unit_test(case_f16), cmocka_unit_test(case_random)};
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
