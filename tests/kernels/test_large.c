/*
 * Plain operations of one backend (argv[1]) on arrays of millions of elements, of odd lengths: more
 * than what a device works on at once, so that its threads go round. The bits of ref, which
 * computes beside it on the host. And products of a real layer's size, in elements that are drawn.
 */
#include "device.h"

#include "base/sum.h"
#include "ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;

/* More than 132 multiprocessors of 2048 threads with 8 elements each: 2,162,688. */
#define COUNT ((int64_t)(1 << 22) + 12345)

/* Random bits that are finite numbers of moderate size in f32 and, cut in two, in the halves. */
static void large_draw(struct draw *draw, float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)ldexp(draw_real(draw, TESS_F32), (int)(draw_word(draw) % 8) - 4);
}

static void *large_put(const void *host, size_t bytes)
{
    void *array = device_array(&device, bytes);
    device_put(&device, array, host, bytes);
    return array;
}

/* `count` elements of the type, as ref casts them. */
static void *large_cast(enum tess_dtype dtype, const float *x, int64_t count)
{
    void *y = malloc((size_t)count * tess_dtype_bytes(dtype) + 1);
    assert_non_null(y);
    tess_kernel_ref.cast(NULL, count, TESS_F32, x, dtype, y);
    return y;
}

static void large_same(const char *what, const void *got_dev, const void *expected, size_t bytes)
{
    void *got = device_fetch(&device, got_dev, bytes);
    check_bytes(what, got, expected, bytes);
    free(got);
}

static void large_element_wise(enum tess_dtype dtype, int64_t n)
{
    static const uint64_t key[2] = {77, 5};
    struct draw draw = {(uint64_t)n};
    const size_t bytes = (size_t)n * tess_dtype_bytes(dtype);
    float *whole = floats(n);
    device_reset(&device);
    large_draw(&draw, whole, n);
    void *a = large_cast(dtype, whole, n), *y = malloc(bytes + 1);
    large_draw(&draw, whole, n);
    void *b = large_cast(dtype, whole, n);
    assert_non_null(y);
    void *a_dev = large_put(a, bytes), *b_dev = large_put(b, bytes);
    void *y_dev = device_array(&device, bytes);
    tess_add(device.kernel, dtype, n, a_dev, b_dev, y_dev);
    tess_kernel_ref.add(NULL, dtype, n, a, b, y);
    large_same("add", y_dev, y, bytes);
    tess_relu_forward(device.kernel, dtype, n, a_dev, y_dev);
    tess_kernel_ref.relu_forward(NULL, dtype, n, a, y);
    large_same("relu", y_dev, y, bytes);
    tess_relu_backward(device.kernel, dtype, n, y_dev, b_dev, b_dev);
    tess_kernel_ref.relu_backward(NULL, dtype, n, y, b, b);
    large_same("relu gradient", b_dev, b, bytes);
    tess_dropout(device.kernel, dtype, 1, n, n, 0.3f, key, 0xfffffff0u, a_dev, y_dev);
    tess_kernel_ref.dropout(NULL, dtype, 1, n, n, 0.3f, key, 0xfffffff0u, a, y);
    large_same("dropout", y_dev, y, bytes);
    tess_copy(device.kernel, (int64_t)bytes - 1, a_dev, (char *)b_dev + 1);
    memmove((char *)b + 1, a, bytes - 1);
    large_same("copy to an odd address", b_dev, b, bytes);
    free(whole);
    free(a);
    free(b);
    free(y);
}

static void case_element_wise(void **state)
{
    (void)state;
    large_element_wise(TESS_F32, COUNT);
    large_element_wise(TESS_BF16, 2 * COUNT + 1);
    large_element_wise(TESS_F16, COUNT - 1);
}

static void case_casts(void **state)
{
    (void)state;
    static const uint64_t key[2] = {9, 8};
    static const enum tess_dtype to[] = {TESS_BF16, TESS_F16};
    struct draw draw = {3};
    float *x = floats(COUNT), *y = floats(COUNT);
    device_reset(&device);
    large_draw(&draw, x, COUNT);
    void *x_dev = large_put(x, (size_t)COUNT * sizeof(*x)), *half = malloc((size_t)COUNT * 2);
    void *half_dev = device_array(&device, (size_t)COUNT * 2);
    float *y_dev = device_array(&device, (size_t)COUNT * sizeof(*y));
    assert_non_null(half);
    for (int i = 0; i < 2; i++) {
        tess_cast_stochastic(device.kernel, COUNT, x_dev, to[i], key, 3, half_dev);
        tess_kernel_ref.cast_stochastic(NULL, COUNT, x, to[i], key, 3, half);
        large_same("stochastic rounding", half_dev, half, (size_t)COUNT * 2);
        tess_cast(device.kernel, COUNT, to[i], half_dev, TESS_F32, y_dev);
        tess_kernel_ref.cast(NULL, COUNT, to[i], half, TESS_F32, y);
        large_same("widening", y_dev, y, (size_t)COUNT * sizeof(*y));
    }
    tess_accumulate(device.kernel, COUNT, 0.37f, x_dev, y_dev);
    tess_kernel_ref.accumulate(NULL, COUNT, 0.37f, x, y);
    large_same("accumulate", y_dev, y, (size_t)COUNT * sizeof(*y));
    free(x);
    free(y);
    free(half);
}

/* Sums have one result whatever the length; what is not finite is found at the first place. */
static void case_sums(void **state)
{
    (void)state;
    struct draw draw = {4};
    float *x = floats(COUNT);
    const size_t bytes = (size_t)COUNT * sizeof(*x);
    struct tess_sum expected;
    double zeros = 0;
    device_reset(&device);
    large_draw(&draw, x, COUNT);
    for (int64_t i = 0; i < COUNT; i += 1001)
        x[i] = i % 2 ? 0.0f : -0.0f;
    float *x_dev = large_put(x, bytes);
    double *zeros_dev = large_put(&zeros, sizeof(zeros));
    tess_sum_clear(&expected);
    struct tess_sum *sum_dev = large_put(&expected, sizeof(expected));
    tess_square_sum(device.kernel, COUNT, TESS_SUM_BLOCK, 0.7f, x_dev, sum_dev);
    tess_kernel_ref.square_sum(NULL, COUNT, TESS_SUM_BLOCK, 0.7f, x, &expected);
    large_same("sum of squares", sum_dev, &expected, sizeof(expected));
    tess_count_zeros(device.kernel, TESS_F32, COUNT, x_dev, zeros_dev);
    tess_kernel_ref.count_zeros(NULL, TESS_F32, COUNT, x, &zeros);
    large_same("zeros", zeros_dev, &zeros, sizeof(zeros));
    assert_true(zeros >= (double)(COUNT / 1001));
    assert_int_equal(tess_find_nonfinite(device.kernel, TESS_F32, COUNT, x_dev), -1);
    x[COUNT - 1] = x[COUNT - 2] = INFINITY;
    device_put(&device, x_dev, x, bytes);
    assert_int_equal(tess_find_nonfinite(device.kernel, TESS_F32, COUNT, x_dev), COUNT - 2);
    free(x);
}

static void case_update(void **state)
{
    (void)state;
    struct draw draw = {5};
    const size_t bytes = (size_t)COUNT * sizeof(float);
    float *host[4] = {floats(COUNT), floats(COUNT), floats(COUNT), floats(COUNT)}; /* w g m v */
    void *at[4], *low = malloc((size_t)COUNT * 2);
    assert_non_null(low);
    device_reset(&device);
    for (int i = 0; i < 4; i++) {
        large_draw(&draw, host[i], COUNT);
        for (int64_t k = 0; k < COUNT && i == 3; k++)
            host[3][k] = fabsf(host[3][k]);
        at[i] = large_put(host[i], bytes);
    }
    struct tess_update u = {.kind = TESS_UPDATE_ADAMW,
                            .low = TESS_BF16,
                            .count = COUNT,
                            .lr = 0.01f,
                            .beta1 = 0.9f,
                            .beta2 = 0.95f,
                            .epsilon = 1e-8f,
                            .weight_decay = 0.1f,
                            .correction1 = 10,
                            .correction2 = 20,
                            .grad_scale = 0.5f,
                            .tensor_scale = 1};
    struct tess_update ours = u, refs = u;
    void *low_dev = device_array(&device, (size_t)COUNT * 2);
    ours.w = at[0], ours.g = at[1], ours.m = at[2], ours.v = at[3], ours.param_low = low_dev;
    refs.w = host[0], refs.g = host[1], refs.m = host[2], refs.v = host[3], refs.param_low = low;
    tess_update(device.kernel, &ours);
    tess_kernel_ref.update(NULL, &refs);
    static const char *const name[] = {"adamw w", "adamw g", "adamw m", "adamw v"};
    for (int i = 0; i < 4; i++) {
        large_same(name[i], at[i], host[i], bytes);
        free(host[i]);
    }
    large_same("adamw copy", low_dev, low, (size_t)COUNT * 2);
    free(low);
}

/*
 * y and dw of a layer as GPT-2 has them, and of one whose sizes divide nothing: 400 elements of
 * each, anywhere and at the corners, against sums in double. Bounds as in test_linear.c.
 */
static void large_layer(int64_t rows, int64_t in, int64_t out)
{
    struct draw draw = {(uint64_t)(rows + in)};
    const struct tess_op_desc d = {.kind = TESS_OP_LINEAR,
                                   .dtype = TESS_BF16,
                                   .rows = rows,
                                   .leaf_rows = rows,
                                   .in = in,
                                   .out = out,
                                   .input_grad = true};
    struct tess_op op;
    device_reset(&device);
    double *x = draw_reals(&draw, d.dtype, rows * in), *w = draw_reals(&draw, d.dtype, out * in);
    double *dy = draw_reals(&draw, d.dtype, rows * out);
    double *y = reals(rows * out), *dw = reals(out * in);
    void *x_dev = device_put_real(&device, d.dtype, x, rows * in);
    void *w_dev = device_put_real(&device, d.dtype, w, out * in);
    void *dy_dev = device_put_real(&device, d.dtype, dy, rows * out);
    void *y_dev = device_array(&device, (size_t)(rows * out) * 2);
    float *dw_dev = device_array(&device, (size_t)(out * in) * sizeof(float));
    device_op_open(&device, &d, &op);
    assert_int_equal(tess_linear_forward(&op, x_dev, w_dev, NULL, y_dev), TESS_OK);
    assert_int_equal(tess_linear_backward_weight(&op, x_dev, dy_dev, dw_dev, NULL), TESS_OK);
    device_get_real(&device, d.dtype, y_dev, y, rows * out);
    device_get_real(&device, TESS_F32, dw_dev, dw, out * in);
    for (int i = 0; i < 400; i++) {
        const int64_t b = i == 0 ? rows - 1 : draw_between(&draw, 0, rows - 1);
        const int64_t o = i == 0 ? out - 1 : draw_between(&draw, 0, out - 1);
        const int64_t k = i == 0 ? in - 1 : draw_between(&draw, 0, in - 1);
        double sum = 0, size = 0, grad = 0, grad_size = 0;
        for (int64_t j = 0; j < in; j++) {
            sum += x[b * in + j] * w[o * in + j];
            size += fabs(x[b * in + j] * w[o * in + j]);
        }
        for (int64_t j = 0; j < rows; j++) {
            grad += dy[j * out + o] * x[j * in + k];
            grad_size += fabs(dy[j * out + o] * x[j * in + k]);
        }
        const double bound = bound_of(d.dtype, (double)in, size, sum);
        const double grad_bound = bound_of(TESS_F32, (double)rows, grad_size, grad);
        check_close("y of a large layer", &y[b * out + o], &sum, &bound, 1);
        check_close("dw of a large layer", &dw[o * in + k], &grad, &grad_bound, 1);
    }
    device_op_close(&op);
    double *const all[] = {x, w, dy, y, dw};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        free(all[i]);
}

static void case_layers(void **state)
{
    (void)state;
    large_layer(4096, 768, 3072);
    large_layer(1021, 1601, 773);
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), (size_t)256 << 20);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_element_wise), cmocka_unit_test(case_casts),
        cmocka_unit_test(case_sums),         cmocka_unit_test(case_update),
        cmocka_unit_test(case_layers),
    };
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
