/*
 * Batch normalisation of one backend (argv[1]) against the definition in double, and leaf by leaf.
 *
 * Bounds. Statistics: sums of n terms, as in bound_of(). What follows is first-order error
 * propagation: x_hat = (x - mean) rstd loses what the mean, the variance and three roundings lose,
 * amplified by rstd.
 */
#include "device.h"

#include <math.h>
#include <stdlib.h>

static struct device device;

#define UNIT 0x1p-24

struct norm_case {
    struct tess_op_desc d;
    int64_t pixels, leaves, count; /* elements per channel and leaf; leaves; elements in all */
    double *x, *dy, *gamma, *beta;
    void *x_dev, *dy_dev, *gamma_dev, *beta_dev, *y_dev, *dx_dev;
    float *mean_dev, *rstd_dev, *mean_sum_dev, *var_sum_dev, *dgamma_dev, *dbeta_dev;
};

static void norm_draw(struct norm_case *c, struct draw *draw)
{
    const struct tess_op_desc *d = &c->d;
    enum tess_dtype dtype = d->dtype;
    c->leaves = d->rows / d->leaf_rows;
    c->pixels = d->leaf_rows * d->height * d->width;
    c->count = c->leaves * c->pixels * d->in;
    c->x = draw_reals(draw, dtype, c->count);
    for (int64_t i = 0; i < c->count; i++) /* channels off centre, as real ones are */
        c->x[i] = round_to(dtype, c->x[i] + 0.25 * (double)(i % d->in % 5));
    c->dy = draw_reals(draw, dtype, c->count);
    c->gamma = draw_reals(draw, dtype, d->in);
    c->beta = draw_reals(draw, dtype, d->in);
    c->x_dev = device_put_real(&device, dtype, c->x, c->count);
    c->dy_dev = device_put_real(&device, dtype, c->dy, c->count);
    c->gamma_dev = device_put_real(&device, dtype, c->gamma, d->in);
    c->beta_dev = device_put_real(&device, dtype, c->beta, d->in);
    size_t bytes = (size_t)c->count * tess_dtype_bytes(dtype);
    size_t channel_bytes = (size_t)d->in * sizeof(float);
    c->y_dev = device_array(&device, bytes);
    c->dx_dev = device_array(&device, bytes);
    c->mean_dev = device_array(&device, channel_bytes * (size_t)c->leaves);
    c->rstd_dev = device_array(&device, channel_bytes * (size_t)c->leaves);
    c->mean_sum_dev = device_array(&device, channel_bytes);
    c->var_sum_dev = device_array(&device, channel_bytes);
    c->dgamma_dev = device_array(&device, channel_bytes);
    c->dbeta_dev = device_array(&device, channel_bytes);
}

/* One leaf and channel in double. */
struct norm_leaf {
    double mean, var, rstd, dgamma, dbeta, dgamma_size, dbeta_size, hat_max;
    double mean_error, var_error, hat_error; /* bounds; hat: on x_hat's error */
};

static int64_t norm_index(const struct norm_case *c, int64_t leaf, int64_t p, int64_t channel)
{
    return (leaf * c->pixels + p) * c->d.in + channel;
}

static struct norm_leaf norm_naive(const struct norm_case *c, int64_t leaf, int64_t channel,
                                   const double *y)
{
    struct norm_leaf n = {0};
    double size = 0, count = (double)c->pixels, far = 0;
    for (int64_t p = 0; p < c->pixels; p++) {
        n.mean += c->x[norm_index(c, leaf, p, channel)] / count;
        size = fmax(size, fabs(c->x[norm_index(c, leaf, p, channel)]));
    }
    for (int64_t p = 0; p < c->pixels; p++) {
        double away = c->x[norm_index(c, leaf, p, channel)] - n.mean;
        n.var += away * away / count;
        far = fmax(far, fabs(away));
    }
    n.rstd = 1 / sqrt(n.var + (double)c->d.epsilon);
    /* mean off by (count + 2) u size; the variance, whose terms are at most far^2, by as much of
       them, which rstd feels by half of var_error rstd^2, relatively */
    n.mean_error = 2 * (count + 2) * UNIT * size;
    n.var_error = 2 * (count + 2) * UNIT * far * far + 2 * far * n.mean_error;
    n.hat_error = n.rstd * (n.mean_error + far * (0.5 * n.var_error * n.rstd * n.rstd + 6 * UNIT));
    n.hat_max = far * n.rstd;
    for (int64_t p = 0; p < c->pixels; p++) {
        int64_t i = norm_index(c, leaf, p, channel);
        double g = c->d.relu && !(y[i] > 0) ? 0 : c->dy[i];
        double x_hat = (c->x[i] - n.mean) * n.rstd;
        n.dbeta += g;
        n.dbeta_size += fabs(g);
        n.dgamma += g * x_hat;
        n.dgamma_size += fabs(g * x_hat);
    }
    return n;
}

/* y and dx of one leaf and channel. */
static void check_pixels(const struct norm_case *c, const struct norm_leaf *leaf, int64_t l,
                         int64_t channel, const double *y, const double *dx)
{
    double unit = unit_of(c->d.dtype), tiny = tiny_of(c->d.dtype), n = (double)c->pixels;
    double gamma = c->gamma[channel], beta = c->beta[channel];
    for (int64_t p = 0; p < c->pixels; p++) {
        int64_t i = norm_index(c, l, p, channel);
        double x_hat = (c->x[i] - leaf->mean) * leaf->rstd, want = gamma * x_hat + beta;
        double allowed = fabs(gamma) * leaf->hat_error +
                         (unit + 4 * UNIT) * (fabs(gamma * x_hat) + fabs(beta)) + tiny;
        want = c->d.relu && want < 0 ? 0 : want;
        check_close("batch norm y", y + i, &want, &allowed, 1);
        double g = c->d.relu && !(y[i] > 0) ? 0 : c->dy[i];
        double size = fabs(g) + leaf->dbeta_size / n + fabs(x_hat) * leaf->dgamma_size / n;
        want = gamma * leaf->rstd * (g - leaf->dbeta / n - x_hat * leaf->dgamma / n);
        /* x_hat enters by itself and through dgamma; rstd in front, relatively below hat_error */
        allowed = fabs(gamma) * leaf->rstd *
                      (size * (2 * (n + 8) * UNIT + unit) +
                       leaf->hat_error *
                           (leaf->dgamma_size / n + leaf->hat_max * leaf->dbeta_size / n + size)) +
                  tiny;
        check_close("batch norm dx", dx + i, &want, &allowed, 1);
    }
}

/* Sums over the leaves of the four statistics, and what they may be off by. */
static void add_statistics(const struct norm_case *c, const struct norm_leaf *leaf, int64_t channel,
                           double *expected, double *bound)
{
    double n = (double)c->pixels, rest = c->pixels > 1 ? n / (n - 1) : 1;
    double value[] = {leaf->mean, leaf->var * rest, leaf->dgamma, leaf->dbeta};
    double off[] = {leaf->mean_error, rest * leaf->var_error + 4 * UNIT * leaf->var,
                    leaf->hat_error * leaf->dbeta_size + 2 * (n + 2) * UNIT * leaf->dgamma_size,
                    2 * (n + 2) * UNIT * leaf->dbeta_size};
    for (int s = 0; s < 4; s++) {
        expected[s * c->d.in + channel] += value[s];
        bound[s * c->d.in + channel] += off[s] + (double)c->leaves * UNIT * fabs(value[s]);
    }
}

/*
 * Forward, then backward with the device's own y (which decides what the ReLU cuts off), each
 * element against the definition.
 */
static void check_values(struct norm_case *c, struct tess_op *op)
{
    const struct tess_op_desc *d = &c->d;
    static const char *const name[] = {"batch norm mean_sum", "batch norm var_sum",
                                       "batch norm dgamma", "batch norm dbeta"};
    const float *const sums[] = {c->mean_sum_dev, c->var_sum_dev, c->dgamma_dev, c->dbeta_dev};
    double *y = reals(c->count), *dx = reals(c->count), *got = reals(d->in);
    double *expected = reals(d->in * 4), *bound = reals(d->in * 4);
    assert_int_equal(tess_batch_norm_forward(op, c->x_dev, c->gamma_dev, c->beta_dev, c->y_dev,
                                             c->mean_dev, c->rstd_dev, c->mean_sum_dev,
                                             c->var_sum_dev),
                     TESS_OK);
    assert_int_equal(tess_batch_norm_backward(op, c->x_dev, c->y_dev, c->dy_dev, c->gamma_dev,
                                              c->beta_dev, c->mean_dev, c->rstd_dev, c->dx_dev,
                                              c->dgamma_dev, c->dbeta_dev),
                     TESS_OK);
    device_get_real(&device, d->dtype, c->y_dev, y, c->count);
    device_get_real(&device, d->dtype, c->dx_dev, dx, c->count);
    for (int64_t channel = 0; channel < d->in; channel++) {
        for (int64_t l = 0; l < c->leaves; l++) {
            struct norm_leaf leaf = norm_naive(c, l, channel, y);
            check_pixels(c, &leaf, l, channel, y, dx);
            add_statistics(c, &leaf, channel, expected, bound);
        }
    }
    for (int s = 0; s < 4; s++) {
        device_get_real(&device, TESS_F32, sums[s], got, d->in);
        check_close(name[s], got, expected + s * d->in, bound + s * d->in, d->in);
    }
    free(y);
    free(dx);
    free(got);
    free(expected);
    free(bound);
}

/* Everything again, leaf by leaf; sums as the explicit tree. dx is written over dy this time. */
static void check_leaves(struct norm_case *c)
{
    const struct tess_op_desc *d = &c->d;
    size_t leaf_bytes = (size_t)(c->pixels * d->in) * tess_dtype_bytes(d->dtype);
    size_t bytes = leaf_bytes * (size_t)c->leaves, row = (size_t)d->in * sizeof(float);
    float *const sums[] = {c->mean_sum_dev, c->var_sum_dev, c->dgamma_dev, c->dbeta_dev};
    char *y = device_fetch(&device, c->y_dev, bytes), *dx = device_fetch(&device, c->dx_dev, bytes),
         *whole[4];
    char *mean = device_fetch(&device, c->mean_dev, row * (size_t)c->leaves);
    char *rstd = device_fetch(&device, c->rstd_dev, row * (size_t)c->leaves);
    float *leaf_sum[4], *tree = floats(d->in);
    for (int s = 0; s < 4; s++) {
        whole[s] = device_fetch(&device, sums[s], row);
        leaf_sum[s] = floats(d->in * c->leaves);
    }
    struct tess_op_desc one = *d;
    one.rows = d->leaf_rows;
    struct tess_op op;
    device_op_open(&device, &one, &op);
    for (int64_t l = 0; l < c->leaves; l++) {
        size_t at = (size_t)l * leaf_bytes;
        const char *x = (const char *)c->x_dev + at;
        char *dy = (char *)c->dy_dev + at, *y1 = (char *)c->y_dev + at;
        assert_int_equal(tess_batch_norm_forward(&op, x, c->gamma_dev, c->beta_dev, y1,
                                                 c->mean_dev + l * d->in, c->rstd_dev + l * d->in,
                                                 sums[0], sums[1]),
                         TESS_OK);
        assert_int_equal(tess_batch_norm_backward(&op, x, y1, dy, c->gamma_dev, c->beta_dev,
                                                  c->mean_dev + l * d->in, c->rstd_dev + l * d->in,
                                                  dy, sums[2], sums[3]),
                         TESS_OK);
        for (int s = 0; s < 4; s++)
            device_get(&device, leaf_sum[s] + l * d->in, sums[s], row);
    }
    char *again[] = {device_fetch(&device, c->y_dev, bytes),
                     device_fetch(&device, c->dy_dev, bytes),
                     device_fetch(&device, c->mean_dev, row * (size_t)c->leaves),
                     device_fetch(&device, c->rstd_dev, row * (size_t)c->leaves)};
    check_bytes("batch norm y by leaves", again[0], y, bytes);
    check_bytes("batch norm dx by leaves, in place", again[1], dx, bytes);
    check_bytes("batch norm mean by leaves", again[2], mean, row * (size_t)c->leaves);
    check_bytes("batch norm rstd by leaves", again[3], rstd, row * (size_t)c->leaves);
    for (int s = 0; s < 4; s++) {
        tree_sum(leaf_sum[s], c->leaves, d->in, tree);
        check_bytes("batch norm sum as the tree of leaves", whole[s], tree, row);
        free(whole[s]);
        free(leaf_sum[s]);
        free(again[s]);
    }
    device_op_close(&op);
    free(y);
    free(dx);
    free(mean);
    free(rstd);
    free(tree);
}

static void check_infer(struct norm_case *c, struct tess_op *op, struct draw *draw)
{
    const struct tess_op_desc *d = &c->d;
    double *mean = draw_reals(draw, d->dtype, d->in), *var = draw_reals(draw, d->dtype, d->in);
    for (int64_t ch = 0; ch < d->in; ch++)
        var[ch] = fabs(var[ch]) + 0.125;
    for (int64_t ch = 0; ch < d->in; ch++)
        var[ch] = round_to(d->dtype, var[ch]);
    void *mean_dev = device_put_real(&device, d->dtype, mean, d->in);
    void *var_dev = device_put_real(&device, d->dtype, var, d->in);
    assert_int_equal(
        tess_batch_norm_infer(op, c->x_dev, c->gamma_dev, c->beta_dev, mean_dev, var_dev, c->y_dev),
        TESS_OK);
    double *got = reals(c->count), *expected = reals(c->count), *bound = reals(c->count);
    device_get_real(&device, d->dtype, c->y_dev, got, c->count);
    for (int64_t i = 0; i < c->count; i++) {
        int64_t ch = i % d->in;
        double slope = c->gamma[ch] / sqrt(var[ch] + (double)d->epsilon);
        double value = (c->x[i] - mean[ch]) * slope + c->beta[ch];
        expected[i] = d->relu && value < 0 ? 0 : value;
        /* Backends may fold mean into beta: x slope + (beta - mean slope) */
        double size = (fabs(c->x[i]) + fabs(mean[ch])) * fabs(slope) + fabs(c->beta[ch]);
        bound[i] = bound_of(d->dtype, 6, size, expected[i]);
    }
    check_close("batch norm inference", got, expected, bound, c->count);
    free(mean);
    free(var);
    free(got);
    free(expected);
    free(bound);
}

/* leaves, leaf rows, channels, height, width */
static const int shape[][5] = {
    {0, 2, 3, 2, 2},    {1, 1, 1, 1, 1},   {3, 1, 2, 1, 1},   {2, 2, 3, 1, 1},  {5, 4, 17, 1, 1},
    {1, 3, 16, 5, 4},   {4, 2, 1, 6, 6},   {7, 1, 33, 3, 3},  {6, 2, 64, 4, 4}, {2, 8, 5, 7, 3},
    {2, 3, 64, 12, 12}, {1, 2, 300, 9, 8}, {3, 1, 8, 40, 40},
};

static void norm_run(struct norm_case *c, uint64_t seed)
{
    struct draw draw = {seed};
    device_reset(&device);
    norm_draw(c, &draw);
    struct tess_op op;
    device_op_open(&device, &c->d, &op);
    check_values(c, &op);
    check_leaves(c);
    check_infer(c, &op, &draw);
    device_op_close(&op);
    free(c->x);
    free(c->dy);
    free(c->gamma);
    free(c->beta);
}

static void norm_all(enum tess_dtype dtype)
{
    for (size_t i = 0; i < 2 * sizeof(shape) / sizeof(shape[0]); i++) {
        const int *s = shape[i / 2];
        struct norm_case c = {.d = {.kind = TESS_OP_BATCH_NORM,
                                    .dtype = dtype,
                                    .rows = s[0] * s[1],
                                    .leaf_rows = s[1],
                                    .in = s[2],
                                    .out = s[2],
                                    .height = s[3],
                                    .width = s[4],
                                    .relu = i % 2 == 1,
                                    .epsilon = 1e-3f}};
        norm_run(&c, 500 + i);
    }
}

static void case_f32(void **state)
{
    (void)state;
    norm_all(TESS_F32);
}

static void case_bf16(void **state)
{
    (void)state;
    norm_all(TESS_BF16);
}

static void case_f16(void **state)
{
    (void)state;
    norm_all(TESS_F16);
}

static void case_random(void **state)
{
    (void)state;
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    struct draw draw = draw_shapes(23);
    for (int i = 0; i < 30; i++) {
        const int64_t channels = draw_between(&draw, 1, 90), leaf_rows = draw_between(&draw, 1, 5);
        struct norm_case c = {.d = {.kind = TESS_OP_BATCH_NORM,
                                    .dtype = dtypes[i % 3],
                                    .rows = leaf_rows * draw_between(&draw, 1, 5),
                                    .leaf_rows = leaf_rows,
                                    .in = channels,
                                    .out = channels,
                                    .height = draw_between(&draw, 1, 9),
                                    .width = draw_between(&draw, 1, 9),
                                    .relu = i % 2 == 1,
                                    .epsilon = 1e-3f}};
        norm_run(&c, draw_word(&draw));
    }
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 8u << 20);
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_f32), cmocka_unit_test(case_bf16),
                                       cmocka_unit_test(case_f16), cmocka_unit_test(case_random)};
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
