/*
 * Both gradients of a linear layer with 8-bit operands in one operation, of one backend (argv[1]):
 * the bits of the two operations that compute one each.
 */
#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;

static const struct tess_op_desc layers[] = {
    {.kind = TESS_OP_LINEAR,
     .dtype = TESS_BF16,
     .rows = 48,
     .leaf_rows = 16,
     .in = 32,
     .out = 16,
     .input_grad = true,
     .fp8 = TESS_FP8_NOW},
    {.kind = TESS_OP_LINEAR,
     .dtype = TESS_F16,
     .rows = 80,
     .leaf_rows = 16,
     .in = 16,
     .out = 48,
     .input_grad = true,
     .fp8 = TESS_FP8_HISTORY},
    {.kind = TESS_OP_LINEAR,
     .dtype = TESS_BF16,
     .rows = 32,
     .leaf_rows = 32,
     .in = 160,
     .out = 32,
     .input_grad = true,
     .add_grad = true,
     .fp8 = TESS_FP8_HISTORY},
};

/* Random numbers times 2^size, more from one leaf to the next. */
static void *draw_sized(struct draw *draw, const struct tess_op_desc *d, int64_t columns, int size)
{
    const int64_t count = d->rows * columns;
    double *values = draw_reals(draw, d->dtype, count);
    for (int64_t i = 0; i < count; i++)
        values[i] = ldexp(values[i], size + (int)(i / (d->leaf_rows * columns)) % 5);
    void *dev = device_put_real(&device, d->dtype, values, count);
    free(values);
    return dev;
}

static void check_alike(const char *what, const void *a_dev, const void *b_dev, size_t bytes)
{
    void *a = device_fetch(&device, a_dev, bytes), *b = device_fetch(&device, b_dev, bytes);
    check_bytes(what, a, b, bytes);
    free(a);
    free(b);
}

/* Results of the two ways: dx, and beside it dw and dbias. */
struct gradients {
    void *dx;
    float *dw, *dbias;
};

static struct gradients gradients_make(const struct tess_op_desc *d)
{
    struct gradients g = {
        .dx = device_array(&device, (size_t)(d->rows * d->in) * 2),
        .dw = device_array(&device, (size_t)(d->out * d->in) * sizeof(float)),
        .dbias = device_array(&device, (size_t)d->out * sizeof(float)),
    };
    tess_fill(device.kernel, d->out * d->in * (int64_t)sizeof(float), 0, g.dw);
    tess_fill(device.kernel, d->out * (int64_t)sizeof(float), 0, g.dbias);
    return g;
}

/* Four calls of changing sizes: dx in the place of x, apart, onto what is there, and once more. */
static void check_layer(const struct tess_op_desc *d)
{
    struct draw draw = {(uint64_t)d->in};
    const int64_t in = d->rows * d->in;
    struct tess_op two, one;
    device_op_open(&device, d, &two);
    device_op_open(&device, d, &one);
    struct gradients a = gradients_make(d), b = gradients_make(d);
    double *weights = draw_reals(&draw, d->dtype, d->out * d->in);
    const void *w = device_put_real(&device, d->dtype, weights, d->out * d->in);
    void *term = device_array(&device, (size_t)in * 2), *dx = a.dx;
    for (int call = 0; call < 4; call++) {
        void *x = draw_sized(&draw, d, d->in, 2 - call),
             *dy = draw_sized(&draw, d, d->out, call - 9);
        assert_int_equal(tess_linear_backward_weight(&two, x, dy, a.dw, a.dbias), TESS_OK);
        assert_int_equal(tess_linear_backward_data(&two, dy, w, call == 2 ? term : dx), TESS_OK);
        if (call == 2)
            tess_add(device.kernel, d->dtype, in, dx, term, dx);
        void *to = call == 0 ? x : b.dx;
        assert_int_equal(
            tess_linear_backward(&one, x, dy, w, b.dw, b.dbias, call == 2 ? term : NULL, to),
            TESS_OK);
        check_alike("fp8 dx", to, dx, (size_t)in * 2);
        check_alike("fp8 dw", b.dw, a.dw, (size_t)(d->out * d->in) * sizeof(float));
        check_alike("fp8 dbias", b.dbias, a.dbias, (size_t)d->out * sizeof(float));
    }
    device_op_close(&two);
    device_op_close(&one);
    free(weights);
    device_reset(&device);
}

static void case_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(layers) / sizeof(layers[0]); i++)
        check_layer(&layers[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_layers)};
    device_open(&device, device_backend(argc, argv), (size_t)1 << 20);
    char why[200] = "";
    int status = 77; /* test_fp8 asks for the reason */
    if (device.kernel->ops->supports(&layers[0], why, sizeof(why)))
        status = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return status;
}
