/*
 * Convolutions of one backend (argv[1]): against sums in double over the definition, leaf by leaf
 * against all leaves at once, weight gradients against the explicit tree. argv[2] "cudnn": by that
 * library, or not at all.
 */
#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;

struct conv_case {
    struct tess_op_desc d;
    int64_t oh, ow;
    int64_t x_count, y_count, w_count; /* of an image, of an image, of the weights */
    double *x, *w, *b, *dy;
    void *x_dev, *w_dev, *b_dev, *dy_dev;
};

/* Sums of one result array and of its terms' absolute values. */
struct sums {
    double *value, *magnitude;
    int64_t count;
};

static struct sums sums_open(int64_t count)
{
    return (struct sums){reals(count), reals(count), count};
}

static void sums_add(struct sums *sums, int64_t i, double term)
{
    sums->value[i] += term;
    sums->magnitude[i] += fabs(term);
}

/* Compare a device array with the sums, `n` terms at most in each, and free them. */
static void sums_check(const char *what, struct sums *sums, enum tess_dtype dtype, double n,
                       bool relu, const void *array)
{
    double *got = reals(sums->count), *bound = reals(sums->count);
    device_get_real(&device, dtype, array, got, sums->count);
    for (int64_t i = 0; i < sums->count; i++) {
        if (relu && sums->value[i] < 0)
            sums->value[i] = 0;
        bound[i] = bound_of(dtype, n, sums->magnitude[i], sums->value[i]);
    }
    check_close(what, got, sums->value, bound, sums->count);
    free(got);
    free(bound);
    free(sums->value);
    free(sums->magnitude);
}

static void conv_draw(struct conv_case *c, struct draw *draw, bool bias)
{
    const struct tess_op_desc *d = &c->d;
    c->oh = tess_op_output_size(d->height, d->window, d->stride, d->padding);
    c->ow = tess_op_output_size(d->width, d->window, d->stride, d->padding);
    c->x_count = d->height * d->width * d->in;
    c->y_count = c->oh * c->ow * d->out;
    c->w_count = d->out * d->window * d->window * d->in;
    c->x = draw_reals(draw, d->dtype, d->rows * c->x_count);
    c->w = draw_reals(draw, d->dtype, c->w_count);
    c->b = draw_reals(draw, d->dtype, d->out);
    c->dy = draw_reals(draw, d->dtype, d->rows * c->y_count);
    c->x_dev = device_put_real(&device, d->dtype, c->x, d->rows * c->x_count);
    c->w_dev = device_put_real(&device, d->dtype, c->w, c->w_count);
    c->b_dev = bias ? device_put_real(&device, d->dtype, c->b, d->out) : NULL;
    c->dy_dev = device_put_real(&device, d->dtype, c->dy, d->rows * c->y_count);
}

/* The products of one pixel's channels, from x on, and their weights, from w on, for one element of
 * y. */
static void conv_pixel(const struct conv_case *c, int64_t at, int64_t x, int64_t w, struct sums *y,
                       struct sums *dx, struct sums *dw)
{
    const double *xs = c->x + x, *ws = c->w + w, dy = c->dy[at];
    double *dx_value = dx->value + x, *dx_magnitude = dx->magnitude + x;
    double *dw_value = dw->value + w, *dw_magnitude = dw->magnitude + w;
    const double dy_magnitude = fabs(dy);
    double value = 0, magnitude = 0;
    for (int64_t i = 0; i < c->d.in; i++) {
        const double term = xs[i] * ws[i];
        value += term;
        magnitude += fabs(term);
        dx_value[i] += dy * ws[i];
        dx_magnitude[i] += dy_magnitude * fabs(ws[i]);
        dw_value[i] += dy * xs[i];
        dw_magnitude[i] += dy_magnitude * fabs(xs[i]);
    }
    y->value[at] += value;
    y->magnitude[at] += magnitude;
}

/*
 * The definition, term by term: every product of an input element and a weight, with the three sums
 * it belongs to.
 */
static void conv_naive(const struct conv_case *c, struct sums *y, struct sums *dx, struct sums *dw)
{
    const struct tess_op_desc *d = &c->d;
    for (int64_t p = 0; p < d->rows * c->oh * c->ow; p++) {
        int64_t b = p / (c->oh * c->ow), oy = p / c->ow % c->oh, ox = p % c->ow;
        for (int64_t k = 0; k < (int64_t)d->window * d->window; k++) {
            int64_t iy = oy * d->stride + k / d->window - d->padding;
            int64_t ix = ox * d->stride + k % d->window - d->padding;
            if (iy < 0 || iy >= d->height || ix < 0 || ix >= d->width)
                continue;
            for (int64_t o = 0; o < d->out; o++) {
                const int64_t x = ((b * d->height + iy) * d->width + ix) * d->in;
                const int64_t w = (o * d->window * d->window + k) * d->in;
                conv_pixel(c, p * d->out + o, x, w, y, dx, dw);
            }
        }
    }
}

static void check_values(struct conv_case *c, struct tess_op *op)
{
    const struct tess_op_desc *d = &c->d;
    size_t word = tess_dtype_bytes(d->dtype);
    struct sums y = sums_open(d->rows * c->y_count), dx = sums_open(d->rows * c->x_count);
    struct sums dw = sums_open(c->w_count), db = sums_open(d->out);
    conv_naive(c, &y, &dx, &dw);
    for (int64_t i = 0; i < d->rows * c->y_count; i++) {
        if (c->b_dev != NULL)
            sums_add(&y, i, c->b[i % d->out]);
        sums_add(&db, i % d->out, c->dy[i]);
    }
    void *y_dev = device_array(&device, (size_t)y.count * word);
    void *dx_dev = device_array(&device, (size_t)dx.count * word);
    float *dw_dev = device_array(&device, (size_t)dw.count * sizeof(float));
    float *db_dev = device_array(&device, (size_t)d->out * sizeof(float));
    assert_int_equal(tess_conv2d_forward(op, c->x_dev, c->w_dev, c->b_dev, y_dev), TESS_OK);
    assert_int_equal(tess_conv2d_backward_data(op, c->dy_dev, c->w_dev, dx_dev), TESS_OK);
    assert_int_equal(tess_conv2d_backward_weight(op, c->x_dev, c->dy_dev, dw_dev, db_dev), TESS_OK);
    double taps = (double)d->window * d->window, pixels = (double)(d->rows * c->oh * c->ow);
    sums_check("conv y", &y, d->dtype, taps * (double)d->in, d->relu, y_dev);
    sums_check("conv dx", &dx, d->dtype, taps * (double)d->out, false, dx_dev);
    sums_check("conv dw", &dw, TESS_F32, pixels, false, dw_dev);
    sums_check("conv dbias", &db, TESS_F32, pixels, false, db_dev);
}

static void check_leaves(struct conv_case *c, struct tess_op *whole)
{
    const struct tess_op_desc *d = &c->d;
    size_t word = tess_dtype_bytes(d->dtype);
    int64_t leaves = d->rows / d->leaf_rows;
    size_t x_bytes = (size_t)(d->leaf_rows * c->x_count) * word;
    size_t y_bytes = (size_t)(d->leaf_rows * c->y_count) * word;
    size_t w_bytes = (size_t)c->w_count * sizeof(float), b_bytes = (size_t)d->out * sizeof(float);
    struct tess_op_desc one = *d;
    one.rows = d->leaf_rows;
    struct tess_op leaf;
    device_op_open(&device, &one, &leaf);
    char *y = device_array(&device, y_bytes * (size_t)leaves), *y1 = device_array(&device, y_bytes);
    char *dx = device_array(&device, x_bytes * (size_t)leaves);
    char *dx1 = device_array(&device, x_bytes);
    float *dw = device_array(&device, w_bytes), *dw1 = device_array(&device, w_bytes);
    float *db = device_array(&device, b_bytes), *db1 = device_array(&device, b_bytes);
    assert_int_equal(tess_conv2d_forward(whole, c->x_dev, c->w_dev, c->b_dev, y), TESS_OK);
    assert_int_equal(tess_conv2d_backward_data(whole, c->dy_dev, c->w_dev, dx), TESS_OK);
    assert_int_equal(tess_conv2d_backward_weight(whole, c->x_dev, c->dy_dev, dw, db), TESS_OK);
    float *dw_leaf = floats(leaves * c->w_count), *db_leaf = floats(leaves * d->out);
    char *a = malloc(x_bytes + y_bytes), *b = malloc(x_bytes + y_bytes);
    for (int64_t l = 0; l < leaves; l++) {
        const char *x_l = (const char *)c->x_dev + (size_t)l * x_bytes;
        const char *dy_l = (const char *)c->dy_dev + (size_t)l * y_bytes;
        assert_int_equal(tess_conv2d_forward(&leaf, x_l, c->w_dev, c->b_dev, y1), TESS_OK);
        device_get(&device, a, y1, y_bytes);
        device_get(&device, b, y + (size_t)l * y_bytes, y_bytes);
        check_bytes("conv y of a leaf", a, b, y_bytes);
        assert_int_equal(tess_conv2d_backward_data(&leaf, dy_l, c->w_dev, dx1), TESS_OK);
        device_get(&device, a, dx1, x_bytes);
        device_get(&device, b, dx + (size_t)l * x_bytes, x_bytes);
        check_bytes("conv dx of a leaf", a, b, x_bytes);
        assert_int_equal(tess_conv2d_backward_weight(&leaf, x_l, dy_l, dw1, db1), TESS_OK);
        device_get(&device, dw_leaf + l * c->w_count, dw1, w_bytes);
        device_get(&device, db_leaf + l * d->out, db1, b_bytes);
    }
    float *sum = floats(c->w_count), *got = floats(c->w_count);
    tree_sum(dw_leaf, leaves, c->w_count, sum);
    device_get(&device, got, dw, w_bytes);
    check_bytes("conv dw as the tree of leaves", got, sum, w_bytes);
    tree_sum(db_leaf, leaves, d->out, sum);
    device_get(&device, got, db, b_bytes);
    check_bytes("conv dbias as the tree of leaves", got, sum, b_bytes);
    device_op_close(&leaf);
    free(dw_leaf);
    free(db_leaf);
    free(a);
    free(b);
    free(sum);
    free(got);
}

static void conv_run(struct tess_op_desc desc, bool bias, uint64_t seed)
{
    struct draw draw = {seed};
    struct conv_case c = {.d = desc};
    device_reset(&device);
    conv_draw(&c, &draw, bias);
    struct tess_op op;
    device_op_open(&device, &c.d, &op);
    check_values(&c, &op);
    check_leaves(&c, &op);
    device_op_close(&op);
    free(c.x);
    free(c.w);
    free(c.b);
    free(c.dy);
}

/*
 * Leaves, leaf rows, in, out, height, width, window, stride, padding. The last three are for the
 * cpu backend's forward and data gradient on tiles: a panel of 16 outputs beside one of 32, planes
 * of a stride, blocks of rows. The three before are for its weight gradient on tiles: narrow strips
 * and panels, blocks of rows, then of images, at odd widths. The two before those are for 1 x 1
 * with a stride, which oneDNN 2.6 computes wrongly on AVX2; the six before those for the weight
 * gradient without tiles: blocks of rows (of dy, then of x) and of images, odd widths, panels of
 * every width, strides that leave a rest.
 */
static const int shape[][9] = {
    {0, 2, 3, 4, 5, 5, 3, 1, 1},      {1, 1, 1, 1, 1, 1, 1, 1, 0},
    {1, 1, 1, 1, 3, 3, 3, 1, 0},      {3, 1, 1, 8, 7, 6, 3, 1, 0},
    {2, 2, 3, 5, 9, 7, 3, 2, 1},      {5, 1, 2, 3, 8, 8, 5, 2, 2},
    {1, 3, 16, 16, 6, 6, 3, 1, 1},    {2, 1, 17, 33, 5, 4, 1, 1, 0},
    {4, 1, 16, 32, 8, 8, 1, 2, 0},    {3, 2, 1, 32, 12, 12, 3, 1, 0},
    {2, 2, 32, 64, 6, 6, 3, 1, 0},    {7, 1, 4, 4, 6, 5, 2, 2, 0},
    {2, 2, 16, 8, 45, 41, 3, 1, 0},   {1, 1, 320, 8, 9, 50, 3, 2, 1},
    {1, 7, 16, 8, 15, 15, 2, 1, 0},   {2, 3, 16, 8, 17, 15, 4, 1, 1},
    {3, 1, 16, 24, 12, 9, 5, 2, 2},   {1, 2, 16, 8, 12, 331, 3, 2, 0},
    {1, 3, 2, 9, 8, 8, 1, 2, 0},      {1, 3, 6, 10, 8, 8, 1, 2, 0},
    {2, 2, 17, 48, 9, 7, 3, 1, 1},    {1, 1, 1024, 16, 4, 24, 2, 1, 1},
    {1, 3, 270, 16, 16, 13, 2, 1, 0}, {2, 2, 48, 48, 9, 7, 3, 1, 1},
    {1, 3, 32, 48, 13, 10, 3, 2, 1},  {1, 1, 1024, 16, 12, 24, 2, 1, 0},
    {2, 2, 32, 16, 12, 11, 3, 2, 0},  {1, 2, 16, 32, 11, 10, 2, 3, 1},
    {2, 1, 16, 48, 9, 11, 5, 2, 3},   {1, 1, 512, 16, 13, 24, 3, 2, 1},
    {1, 3, 48, 16, 9, 7, 1, 1, 0},
};

static void conv_edges(enum tess_dtype dtype)
{
    for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
        const int *s = shape[i];
        struct tess_op_desc d = {.kind = TESS_OP_CONV2D,
                                 .dtype = dtype,
                                 .rows = s[0] * s[1],
                                 .leaf_rows = s[1],
                                 .in = s[2],
                                 .out = s[3],
                                 .height = s[4],
                                 .width = s[5],
                                 .window = s[6],
                                 .stride = s[7],
                                 .padding = s[8],
                                 .relu = i % 2 == 1,
                                 .input_grad = true};
        conv_run(d, i % 3 != 0, 200 + i);
    }
}

static void conv_random(enum tess_dtype dtype)
{
    struct draw draw = draw_shapes(13);
    for (int i = 0; i < 20; i++) {
        struct tess_op_desc d = {.kind = TESS_OP_CONV2D, .dtype = dtype, .input_grad = true};
        d.leaf_rows = draw_between(&draw, 1, 3);
        d.rows = d.leaf_rows * draw_between(&draw, 1, 6);
        d.in = draw_between(&draw, 1, 12);
        d.out = draw_between(&draw, 1, 12);
        d.window = (int32_t)draw_between(&draw, 1, 4);
        d.stride = (int32_t)draw_between(&draw, 1, 3);
        d.padding = (int32_t)draw_between(&draw, 0, d.window - 1);
        d.height = draw_between(&draw, d.window, 9);
        d.width = draw_between(&draw, d.window, 9);
        d.relu = draw_between(&draw, 0, 1);
        conv_run(d, draw_between(&draw, 0, 1), draw_word(&draw));
    }
}

static void case_edges_f32(void **state)
{
    (void)state;
    conv_edges(TESS_F32);
}

static void case_edges_bf16(void **state)
{
    (void)state;
    conv_edges(TESS_BF16);
}

static void case_edges_f16(void **state)
{
    (void)state;
    conv_edges(TESS_F16);
}

static void case_random_f32(void **state)
{
    (void)state;
    conv_random(TESS_F32);
}

static void case_random_bf16(void **state)
{
    (void)state;
    conv_random(TESS_BF16);
}

static void case_random_f16(void **state)
{
    (void)state;
    conv_random(TESS_F16);
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 16u << 20);
    const bool cudnn = argc > 2 && strcmp(argv[2], "cudnn") == 0;
    const struct tess_kernel_choices choices = {.conv = cudnn ? TESS_CONV_CUDNN : TESS_CONV_AUTO};
    if (device.kernel->ops->choose(device.kernel, &choices) != TESS_OK)
        return 77;
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_edges_f32),   cmocka_unit_test(case_edges_bf16),
        cmocka_unit_test(case_edges_f16),   cmocka_unit_test(case_random_f32),
        cmocka_unit_test(case_random_bf16), cmocka_unit_test(case_random_f16),
    };
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
