/*
 * Products through f32 of one backend (argv[1]): f16 always, bf16 when desc.f32_math asks for it.
 * The result is the f32 operation's on the widened operands, rounded once, to the bit; parameter
 * gradients are the f32 operation's. And what f16's range does to results.
 */
#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;

/* One of the two runs that are compared: in 16 bits, and in f32 on the same values. */
struct wide_run {
    struct tess_op op;
    void *x, *w, *bias, *dy;
};

struct wide_case {
    struct tess_op_desc d;
    bool bias;
    int64_t x_count, y_count, w_count;
};

static void *wide_put(struct draw draw, enum tess_dtype dtype, enum tess_dtype as, int64_t count)
{
    double *x = draw_reals(&draw, dtype, count);
    void *array = device_put_real(&device, as, x, count);
    free(x);
    return array;
}

/* The same numbers in `as`: drawn again from the same seeds. */
static struct wide_run wide_open(const struct wide_case *c, enum tess_dtype as, uint64_t seed)
{
    struct tess_op_desc d = c->d;
    struct wide_run run = {.bias = NULL};
    d.dtype = as;
    d.f32_math = as != TESS_F32 && c->d.f32_math;
    run.x = wide_put((struct draw){seed}, c->d.dtype, as, c->x_count);
    run.w = wide_put((struct draw){seed + 1}, c->d.dtype, as, c->w_count);
    run.dy = wide_put((struct draw){seed + 2}, c->d.dtype, as, c->y_count);
    if (c->bias)
        run.bias = wide_put((struct draw){seed + 3}, c->d.dtype, as, d.out);
    device_op_open(&device, &d, &run.op);
    return run;
}

static void wide_forward(struct wide_run *run, void *y)
{
    bool linear = run->op.desc.kind == TESS_OP_LINEAR;
    assert_int_equal(linear ? tess_linear_forward(&run->op, run->x, run->w, run->bias, y)
                            : tess_conv2d_forward(&run->op, run->x, run->w, run->bias, y),
                     TESS_OK);
}

static void wide_backward_data(struct wide_run *run, void *dx)
{
    bool linear = run->op.desc.kind == TESS_OP_LINEAR;
    assert_int_equal(linear ? tess_linear_backward_data(&run->op, run->dy, run->w, dx)
                            : tess_conv2d_backward_data(&run->op, run->dy, run->w, dx),
                     TESS_OK);
}

static void wide_backward_weight(struct wide_run *run, float *dw, float *dbias)
{
    bool linear = run->op.desc.kind == TESS_OP_LINEAR;
    assert_int_equal(linear ? tess_linear_backward_weight(&run->op, run->x, run->dy, dw, dbias)
                            : tess_conv2d_backward_weight(&run->op, run->x, run->dy, dw, dbias),
                     TESS_OK);
}

static void check_same(const char *what, const void *got, const void *expected, size_t bytes)
{
    char *a = malloc(bytes), *b = malloc(bytes);
    device_get(&device, a, got, bytes);
    device_get(&device, b, expected, bytes);
    check_bytes(what, a, b, bytes);
    free(a);
    free(b);
}

/* Compare `low`, of `dtype`, with `whole` in f32, rounded by the backend's own cast. */
static void check_rounded(const char *what, const void *low, const float *whole,
                          enum tess_dtype dtype, int64_t count)
{
    void *rounded = device_array(&device, (size_t)count * tess_dtype_bytes(dtype));
    tess_cast(device.kernel, count, TESS_F32, whole, dtype, rounded);
    check_same(what, low, rounded, (size_t)count * tess_dtype_bytes(dtype));
}

static void wide_check(const struct wide_case *c, uint64_t seed)
{
    enum tess_dtype dtype = c->d.dtype;
    size_t word = tess_dtype_bytes(dtype);
    device_reset(&device);
    struct wide_run low = wide_open(c, dtype, seed), whole = wide_open(c, TESS_F32, seed);
    void *y = device_array(&device, (size_t)c->y_count * word);
    void *dx = device_array(&device, (size_t)c->x_count * word);
    float *y32 = device_array(&device, (size_t)c->y_count * sizeof(float));
    float *dx32 = device_array(&device, (size_t)c->x_count * sizeof(float));
    wide_forward(&low, y);
    wide_forward(&whole, y32);
    check_rounded("y", y, y32, dtype, c->y_count);
    wide_backward_data(&low, dx);
    wide_backward_data(&whole, dx32);
    check_rounded("dx", dx, dx32, dtype, c->x_count);

    float *dw[2], *dbias[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        dw[i] = device_array(&device, (size_t)c->w_count * sizeof(float));
        if (c->bias)
            dbias[i] = device_array(&device, (size_t)c->d.out * sizeof(float));
        wide_backward_weight(i ? &whole : &low, dw[i], dbias[i]);
    }
    check_same("dw", dw[0], dw[1], (size_t)c->w_count * sizeof(float));
    if (c->bias)
        check_same("dbias", dbias[0], dbias[1], (size_t)c->d.out * sizeof(float));
    device_op_close(&low.op);
    device_op_close(&whole.op);
}

/* Leaves, leaf rows, in, out: on both sides of where the cpu backend calls a layer small. */
static const int linear_shape[][4] = {
    {1, 1, 1, 1}, {3, 4, 17, 29}, {2, 8, 64, 48}, {4, 2, 200, 130}, {5, 3, 65, 33}};
/* Leaves, leaf rows, in, out, height, width, window, stride, padding. */
static const int conv_shape[][9] = {{2, 2, 16, 24, 9, 7, 3, 1, 1},
                                    {3, 1, 3, 8, 8, 8, 5, 2, 2},
                                    {1, 4, 1, 32, 12, 12, 3, 1, 0},
                                    {4, 1, 32, 16, 6, 6, 1, 2, 0}};

static void wide_linear(enum tess_dtype dtype, bool f32_math)
{
    for (uint64_t i = 0; i < sizeof(linear_shape) / sizeof(linear_shape[0]); i++) {
        const int *s = linear_shape[i];
        struct wide_case c = {.d = {.kind = TESS_OP_LINEAR,
                                    .dtype = dtype,
                                    .rows = s[0] * s[1],
                                    .leaf_rows = s[1],
                                    .in = s[2],
                                    .out = s[3],
                                    .relu = i % 2 == 0,
                                    .input_grad = true,
                                    .f32_math = f32_math},
                              .bias = i % 3 != 0};
        c.x_count = c.d.rows * c.d.in;
        c.y_count = c.d.rows * c.d.out;
        c.w_count = c.d.in * c.d.out;
        wide_check(&c, 700 + 10 * i);
    }
}

static void wide_conv(enum tess_dtype dtype, bool f32_math)
{
    for (uint64_t i = 0; i < sizeof(conv_shape) / sizeof(conv_shape[0]); i++) {
        const int *s = conv_shape[i];
        struct wide_case c = {.d = {.kind = TESS_OP_CONV2D,
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
                                    .relu = i % 2 == 0,
                                    .input_grad = true,
                                    .f32_math = f32_math},
                              .bias = i % 3 != 0};
        const struct tess_op_desc *d = &c.d;
        c.x_count = d->rows * d->height * d->width * d->in;
        c.y_count = d->rows * d->out *
                    tess_op_output_size(d->height, d->window, d->stride, d->padding) *
                    tess_op_output_size(d->width, d->window, d->stride, d->padding);
        c.w_count = d->out * d->window * d->window * d->in;
        wide_check(&c, 800 + 10 * i);
    }
}

static void case_bf16(void **state)
{
    (void)state;
    wide_linear(TESS_BF16, true);
    wide_conv(TESS_BF16, true);
}

/* In f16 backends without products of their own multiply in f32 whether asked to or not. */
static void case_f16(void **state)
{
    (void)state;
    wide_linear(TESS_F16, true);
    if (strcmp(device.kernel->ops->name, "cuda") == 0)
        return;
    wide_linear(TESS_F16, false);
    wide_conv(TESS_F16, false);
}

/*
 * One row of three inputs, six outputs; a convolution of one pixel is the same product. Beyond
 * 65504 is infinity, subnormals stay, a tie goes to even, and sums may leave the range on the way.
 */
static void range_run(enum tess_op_kind kind)
{
    static const double x[3] = {300, 300, 0x1p-12};
    static const double w[6][3] = {{300, 0, 0},     {-300, 0, 0},      {0, 0, 0x1p-12},
                                   {0, 0, 0x1p-13}, {0, 0, 0x1.8p-13}, {300, -300, 4096}};
    static const double expected[6] = {(double)INFINITY, -(double)INFINITY, 0x1p-24, 0, 0x1p-24, 1};
    static const double dy[6] = {300, 0x1p-24, 0, 0, 0, 0};
    struct tess_op_desc d = {.kind = kind,
                             .dtype = TESS_F16,
                             .rows = 1,
                             .leaf_rows = 1,
                             .in = 3,
                             .out = 6,
                             .input_grad = true};
    if (kind == TESS_OP_CONV2D) {
        d.height = d.width = 1;
        d.window = d.stride = 1;
    }
    device_reset(&device);
    struct wide_run run = {.x = device_put_real(&device, TESS_F16, x, 3),
                           .w = device_put_real(&device, TESS_F16, w[0], 18),
                           .dy = device_put_real(&device, TESS_F16, dy, 6)};
    device_op_open(&device, &d, &run.op);
    uint16_t *y = device_array(&device, 6 * sizeof(*y)), *dx = device_array(&device, 3 * 2);
    float *dw = device_array(&device, 18 * sizeof(float)), dw_host[18];
    double got[6];
    wide_forward(&run, y);
    device_get_real(&device, TESS_F16, y, got, 6);
    for (int i = 0; i < 6; i++)
        assert_true(got[i] == expected[i]);
    wide_backward_data(&run, dx);
    device_get_real(&device, TESS_F16, dx, got, 3);
    assert_true(isinf(got[0]) && got[1] == 0 && got[2] == 0);
    wide_backward_weight(&run, dw, NULL);
    device_get(&device, dw_host, dw, sizeof(dw_host));
    assert_true(dw_host[0] == 90000.0f); /* not a number of f16: gradients are f32 */
    assert_true(dw_host[5] == 0x1p-36f);
    device_op_close(&run.op);
}

static void case_range(void **state)
{
    (void)state;
    range_run(TESS_OP_LINEAR);
    range_run(TESS_OP_CONV2D);
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 4u << 20);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_bf16),
        cmocka_unit_test(case_f16),
        cmocka_unit_test(case_range),
    };
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
