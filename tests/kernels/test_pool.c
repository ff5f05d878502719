/*
 * Pooling of one backend (argv[1]): maxima and positions exactly, averages and gradients against
 * sums in double. Rows do not meet, so results of leaves and of the whole are compared too.
 */
#include "device.h"

#include "ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;

struct pool_case {
    struct tess_op_desc d;
    int64_t oh, ow, x_count, y_count; /* of the whole batch */
    double *x, *dy;
    void *x_dev, *dy_dev;
};

/* Element of x under position k of output element i, or -1 in the padding. */
static int64_t pool_source(const struct pool_case *c, int64_t i, int64_t k)
{
    const struct tess_op_desc *d = &c->d;
    int64_t channel = i % d->in, p = i / d->in;
    int64_t b = p / (c->oh * c->ow), oy = p / c->ow % c->oh, ox = p % c->ow;
    int64_t iy = oy * d->stride - d->padding + k / d->window;
    int64_t ix = ox * d->stride - d->padding + k % d->window;
    if (iy < 0 || iy >= d->height || ix < 0 || ix >= d->width)
        return -1;
    return ((b * d->height + iy) * d->width + ix) * d->in + channel;
}

/*
 * Inputs from few values, so that ties happen. Those of a folded ReLU are not negative and half of
 * them are 0, so that windows of nothing else happen too.
 */
static void pool_draw(struct pool_case *c, struct draw *draw)
{
    const struct tess_op_desc *d = &c->d;
    c->oh = tess_op_output_size(d->height, d->window, d->stride, d->padding);
    c->ow = tess_op_output_size(d->width, d->window, d->stride, d->padding);
    c->x_count = d->rows * d->height * d->width * d->in;
    c->y_count = d->rows * c->oh * c->ow * d->in;
    c->x = reals(c->x_count);
    for (int64_t i = 0; i < c->x_count; i++)
        c->x[i] = (double)draw_between(draw, -8, 8) / 8;
    for (int64_t i = 0; d->relu && i < c->x_count; i++)
        c->x[i] = c->x[i] > 0 ? c->x[i] : 0;
    c->dy = draw_reals(draw, d->dtype, c->y_count);
    c->x_dev = device_put_real(&device, d->dtype, c->x, c->x_count);
    c->dy_dev = device_put_real(&device, d->dtype, c->dy, c->y_count);
}

static void pool_free(struct pool_case *c)
{
    free(c->x);
    free(c->dy);
}

static void check_grad(const char *what, const struct pool_case *c, const double *expected,
                       const double *magnitude, const void *dx)
{
    double *got = reals(c->x_count), *bound = reals(c->x_count);
    double taps = (double)c->d.window * c->d.window;
    device_get_real(&device, c->d.dtype, dx, got, c->x_count);
    for (int64_t i = 0; i < c->x_count; i++)
        bound[i] = bound_of(c->d.dtype, taps, magnitude[i], expected[i]);
    check_close(what, got, expected, bound, c->x_count);
    free(got);
    free(bound);
}

/* With a folded ReLU the gradient takes the place of the input, as in a model that keeps neither.
 */
static void max_run(struct tess_op_desc desc, uint64_t seed)
{
    struct pool_case c = {.d = desc};
    struct draw draw = {seed};
    device_reset(&device);
    pool_draw(&c, &draw);
    struct tess_op op;
    device_op_open(&device, &c.d, &op);
    size_t word = tess_dtype_bytes(desc.dtype);
    void *y = device_array(&device, (size_t)c.y_count * word);
    void *dx = desc.relu ? c.x_dev : device_array(&device, (size_t)c.x_count * word);
    uint8_t *which = device_array(&device, (size_t)c.y_count);
    assert_int_equal(tess_max_pool_forward(&op, c.x_dev, y, which), TESS_OK);
    assert_int_equal(tess_max_pool_backward(&op, c.dy_dev, which, dx), TESS_OK);
    double *got = reals(c.y_count), *grad = reals(c.x_count), *magnitude = reals(c.x_count);
    uint8_t *position = malloc((size_t)c.y_count + 1);
    device_get_real(&device, desc.dtype, y, got, c.y_count);
    device_get(&device, position, which, (size_t)c.y_count);
    for (int64_t i = 0; i < c.y_count; i++) {
        int64_t best = -1, best_k = 0;
        for (int64_t k = 0; k < (int64_t)desc.window * desc.window; k++) {
            int64_t source = pool_source(&c, i, k);
            if (source >= 0 && (best < 0 || c.x[source] > c.x[best])) {
                best = source;
                best_k = k;
            }
        }
        assert_true(got[i] == c.x[best]);
        bool none = desc.relu && !(c.x[best] > 0);
        assert_int_equal(position[i], none ? TESS_POOL_NONE : best_k);
        if (!none) {
            grad[best] += c.dy[i];
            magnitude[best] += fabs(c.dy[i]);
        }
    }
    check_grad("max pool dx", &c, grad, magnitude, dx);
    device_op_close(&op);
    free(got);
    free(grad);
    free(magnitude);
    free(position);
    pool_free(&c);
}

static void avg_run(struct tess_op_desc desc, uint64_t seed)
{
    struct pool_case c = {.d = desc};
    struct draw draw = {seed};
    device_reset(&device);
    pool_draw(&c, &draw);
    struct tess_op op;
    device_op_open(&device, &c.d, &op);
    size_t word = tess_dtype_bytes(desc.dtype);
    void *y = device_array(&device, (size_t)c.y_count * word);
    void *dx = device_array(&device, (size_t)c.x_count * word);
    assert_int_equal(tess_avg_pool_forward(&op, c.x_dev, y), TESS_OK);
    assert_int_equal(tess_avg_pool_backward(&op, c.dy_dev, dx), TESS_OK);
    double *got = reals(c.y_count), *expected = reals(c.y_count), *bound = reals(c.y_count);
    double *grad = reals(c.x_count), *magnitude = reals(c.x_count);
    double taps = (double)desc.window * desc.window;
    device_get_real(&device, desc.dtype, y, got, c.y_count);
    for (int64_t i = 0; i < c.y_count; i++) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < (int64_t)desc.window * desc.window; k++) {
            int64_t source = pool_source(&c, i, k);
            if (source < 0)
                continue;
            sum += c.x[source];
            size += fabs(c.x[source]);
            grad[source] += c.dy[i] / taps;
            magnitude[source] += fabs(c.dy[i] / taps);
        }
        expected[i] = sum / taps;
        bound[i] = bound_of(desc.dtype, taps, size / taps, expected[i]);
    }
    check_close("average pool y", got, expected, bound, c.y_count);
    check_grad("average pool dx", &c, grad, magnitude, dx);
    device_op_close(&op);
    free(got);
    free(expected);
    free(bound);
    free(grad);
    free(magnitude);
    pool_free(&c);
}

/* What is written for row r must not depend on how many rows there are. */
static void leaves_run(struct tess_op_desc desc, uint64_t seed)
{
    struct pool_case c = {.d = desc};
    struct draw draw = {seed};
    device_reset(&device);
    pool_draw(&c, &draw);
    struct tess_op_desc one = desc;
    one.rows = desc.leaf_rows;
    struct tess_op op[2];
    device_op_open(&device, &desc, &op[0]);
    device_op_open(&device, &one, &op[1]);
    size_t bytes = (size_t)c.x_count * tess_dtype_bytes(desc.dtype);
    size_t y_bytes = (size_t)c.y_count * tess_dtype_bytes(desc.dtype);
    int64_t leaves = desc.rows / desc.leaf_rows;
    char *y[2], *dx[2], *host[2];
    for (int64_t way = 0; way < 2; way++) {
        y[way] = device_array(&device, y_bytes);
        dx[way] = device_array(&device, bytes);
        uint8_t *which = device_array(&device, (size_t)c.y_count);
        for (int64_t l = 0; l < (way ? leaves : 1); l++) {
            int64_t step = way ? l : 0;
            size_t at_x = (size_t)step * bytes / (size_t)leaves;
            size_t at_y = (size_t)(step * c.y_count / leaves);
            char *out = y[way] + at_y * tess_dtype_bytes(desc.dtype);
            const char *x = (char *)c.x_dev + at_x;
            const char *dy = (char *)c.dy_dev + at_y * tess_dtype_bytes(desc.dtype);
            if (desc.kind == TESS_OP_MAX_POOL) {
                assert_int_equal(tess_max_pool_forward(&op[way], x, out, which + at_y), TESS_OK);
                assert_int_equal(tess_max_pool_backward(&op[way], dy, which + at_y, dx[way] + at_x),
                                 TESS_OK);
            } else {
                assert_int_equal(tess_avg_pool_forward(&op[way], x, out), TESS_OK);
                assert_int_equal(tess_avg_pool_backward(&op[way], dy, dx[way] + at_x), TESS_OK);
            }
        }
        host[way] = malloc(bytes > y_bytes ? bytes : y_bytes);
        device_get(&device, host[way], dx[way], bytes);
    }
    check_bytes("pool dx by leaves", host[1], host[0], bytes);
    for (int way = 0; way < 2; way++)
        device_get(&device, host[way], y[way], y_bytes);
    check_bytes("pool y by leaves", host[1], host[0], y_bytes);
    for (int way = 0; way < 2; way++) {
        device_op_close(&op[way]);
        free(host[way]);
    }
    pool_free(&c);
}

/* leaves, leaf rows, channels, height, width, window, stride, padding */
static const int shape[][8] = {
    {0, 1, 3, 4, 4, 2, 2, 0},      {1, 1, 1, 1, 1, 1, 1, 0},   {1, 1, 1, 2, 2, 2, 2, 0},
    {3, 2, 64, 6, 6, 2, 2, 0},     {2, 3, 5, 7, 5, 2, 2, 0},   {5, 1, 16, 9, 8, 3, 2, 1},
    {2, 2, 33, 5, 5, 3, 1, 1},     {1, 4, 17, 8, 8, 8, 1, 0},  {4, 1, 32, 7, 7, 7, 7, 0},
    {2, 1, 17, 15, 30, 15, 15, 0}, {1, 1, 600, 4, 9, 3, 1, 1},
};

static void pool_edges(enum tess_op_kind kind, enum tess_dtype dtype)
{
    for (size_t i = 0; i < 2 * sizeof(shape) / sizeof(shape[0]); i++) {
        const int *s = shape[i / 2];
        struct tess_op_desc d = {.kind = kind,
                                 .dtype = dtype,
                                 .rows = s[0] * s[1],
                                 .leaf_rows = s[1],
                                 .in = s[2],
                                 .out = s[2],
                                 .height = s[3],
                                 .width = s[4],
                                 .window = s[5],
                                 .stride = s[6],
                                 .padding = s[7],
                                 .relu = i % 2 == 1 && kind == TESS_OP_MAX_POOL};
        if (kind == TESS_OP_MAX_POOL)
            max_run(d, 300 + i);
        else
            avg_run(d, 300 + i);
        if (d.rows > 0)
            leaves_run(d, 400 + i);
    }
}

static void case_max(void **state)
{
    (void)state;
    pool_edges(TESS_OP_MAX_POOL, TESS_F32);
    pool_edges(TESS_OP_MAX_POOL, TESS_BF16);
    pool_edges(TESS_OP_MAX_POOL, TESS_F16);
}

static void case_avg(void **state)
{
    (void)state;
    pool_edges(TESS_OP_AVG_POOL, TESS_F32);
    pool_edges(TESS_OP_AVG_POOL, TESS_BF16);
    pool_edges(TESS_OP_AVG_POOL, TESS_F16);
    /* one window over all of an image, as before a last layer */
    for (int dtype = 0; dtype < 3; dtype++) {
        const struct tess_op_desc d = {
            .kind = TESS_OP_AVG_POOL,
            .dtype = (enum tess_dtype[]){TESS_F32, TESS_BF16, TESS_F16}[dtype],
            .rows = 6,
            .leaf_rows = 3,
            .in = 37,
            .out = 37,
            .height = 7,
            .width = 7,
            .window = 7,
            .stride = 1};
        avg_run(d, (uint64_t)dtype);
        leaves_run(d, (uint64_t)dtype);
    }
}

/*
 * What ref makes of NaN, infinities and zeros of both signs, to the bit: a NaN is not greater than
 * anything, and nothing is greater than one.
 */
static void case_max_special(void **state)
{
    (void)state;
    static const double value[] = {0, -0.0, 1, -1, 0x1p-24, INFINITY, -INFINITY, NAN, NAN, -2};
    enum { COUNT = 2 * 4 * 4 * 21, OUT = COUNT / 4 };
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    for (int d = 0; d < 3; d++) {
        struct tess_op_desc desc = {.kind = TESS_OP_MAX_POOL,
                                    .dtype = dtypes[d],
                                    .rows = 2,
                                    .leaf_rows = 1,
                                    .in = 21,
                                    .out = 21,
                                    .height = 4,
                                    .width = 4,
                                    .window = 2,
                                    .stride = 2};
        struct draw draw = {(uint64_t)d};
        double x[COUNT];
        char host[COUNT * 4], got[OUT * 4], expected[OUT * 4];
        uint8_t which[OUT], which_expected[OUT];
        for (int i = 0; i < COUNT; i++)
            x[i] = value[draw_between(&draw, 0, 9)];
        device_reset(&device);
        size_t word = tess_dtype_bytes(dtypes[d]);
        void *x_dev = device_put_real(&device, dtypes[d], x, COUNT);
        void *y_dev = device_array(&device, OUT * word), *which_dev = device_array(&device, OUT);
        struct tess_op op, ref = {.desc = desc};
        struct tess_op_needs needs;
        device_op_open(&device, &desc, &op);
        assert_int_equal(tess_max_pool_forward(&op, x_dev, y_dev, which_dev), TESS_OK);
        device_get(&device, host, x_dev, COUNT * word);
        device_get(&device, got, y_dev, OUT * word);
        device_get(&device, which, which_dev, OUT);
        assert_int_equal(tess_kernel_ref.op_needs(&desc, &needs), TESS_OK);
        ref.scratch = malloc(needs.scratch_bytes + 1);
        tess_kernel_ref.max_pool_forward(&ref, host, expected, which_expected);
        check_bytes("max pool of special values", got, expected, OUT * word);
        check_bytes("max pool's places", which, which_expected, OUT);
        device_op_close(&op);
        free(ref.scratch);
    }
}

/* Overlapping windows and gaps between them, windows that reach into the padding, odd channels. */
static void case_random(void **state)
{
    (void)state;
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    struct draw draw = draw_shapes(19);
    for (int i = 0; i < 60; i++) {
        const int64_t channels = draw_between(&draw, 1, 70);
        struct tess_op_desc d = {.kind = i % 2 ? TESS_OP_MAX_POOL : TESS_OP_AVG_POOL,
                                 .dtype = dtypes[i / 2 % 3],
                                 .leaf_rows = draw_between(&draw, 1, 3),
                                 .in = channels,
                                 .out = channels,
                                 .window = (int32_t)draw_between(&draw, 1, 5),
                                 .stride = (int32_t)draw_between(&draw, 1, 4),
                                 .relu = i % 4 == 1};
        d.padding = (int32_t)draw_between(&draw, 0, d.window / 2);
        d.rows = d.leaf_rows * draw_between(&draw, 1, 4);
        d.height = draw_between(&draw, d.window, 11);
        d.width = draw_between(&draw, d.window, 11);
        if (d.kind == TESS_OP_MAX_POOL)
            max_run(d, draw_word(&draw));
        else
            avg_run(d, draw_word(&draw));
        leaves_run(d, draw_word(&draw));
    }
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 4u << 20);
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_max), cmocka_unit_test(case_avg),
                                       cmocka_unit_test(case_max_special),
                                       cmocka_unit_test(case_random)};
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
