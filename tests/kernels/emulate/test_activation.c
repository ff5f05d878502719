/*
 * GELU, SwiGLU and rotary positions on the emulator against the formulas in double.
 *
 * Bounds. u = 2^-24. s = sigmoid(a) by an exp good to 2 u and a division good to 2 u: relatively
 * off by 6 u, and, where a itself is off by e, by (1 - s) e more; below 2^-126 it may become 0.
 * Sums and products add 1 u each. The result is rounded to the dtype once.
 */
#include "device.h"
#include "emulate/emulate.h"
#include "emulate/slots.h"
#include "rope_case.h"

#include "base/half.h"
#include "cuda/slots.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define UNIT  0x1p-24
#define SMALL 0x1p-126

static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double stored(enum tess_dtype dtype, double value, double error)
{
    return error + unit_of(dtype) * (fabs(value) + error) + tiny_of(dtype) + SMALL;
}

struct activation_case {
    enum tess_dtype dtype;
    int64_t count;
    size_t bytes;
    double *x[3];   /* x or gate; up; dy */
    void *array[3]; /* the same as arrays of the kernels */
};

static void *array_of(enum tess_dtype dtype, const double *x, int64_t count, size_t offset)
{
    size_t bytes = tess_dtype_bytes(dtype);
    char *array = emulate_array((size_t)count * bytes, offset);
    for (int64_t i = 0; i < count; i++) {
        float whole = (float)x[i];
        uint16_t half = dtype == TESS_BF16 ? tess__bf16_of_f32(whole) : tess__f16_of_f32(whole);
        memcpy(array + (size_t)i * bytes, dtype == TESS_F32 ? (void *)&whole : (void *)&half,
               bytes);
    }
    return array;
}

static double *reals_of(enum tess_dtype dtype, const void *array, int64_t count)
{
    double *x = reals(count);
    const uint16_t *half = array;
    const float *whole = array;
    for (int64_t i = 0; i < count; i++)
        x[i] = (double)(dtype == TESS_F32    ? whole[i]
                        : dtype == TESS_BF16 ? tess__f32_of_bf16(half[i])
                                             : tess__f32_of_f16(half[i]));
    return x;
}

static void check_array(const char *what, enum tess_dtype dtype, const void *array,
                        const double *want, const double *bound, int64_t count)
{
    double *got = reals_of(dtype, array, count);
    check_close(what, got, want, bound, count);
    free(got);
}

/* x/2 erfc(z) of z = -x / sqrt(2): a rounding of z is one of erfc by less than (1 + 2 z^2) of it,
 * and so is one of the density's exponent. */
static void check_gelu_erf(const struct activation_case *c)
{
    double *want = reals(c->count), *slope = reals(c->count);
    double *bound = reals(c->count), *slope_bound = reals(c->count);
    for (int64_t i = 0; i < c->count; i++) {
        double x = c->x[0][i], dy = c->x[2][i], error = (12 + 4 * x * x) * UNIT;
        double share = erfc(-x / sqrt(2)) / 2, bend = x * exp(-x * x / 2) / sqrt(2 * acos(-1));
        double small = SMALL * (1 + fabs(x));
        want[i] = x * share;
        bound[i] = stored(c->dtype, want[i], error * fabs(want[i]) + small);
        slope[i] = dy * (share + bend);
        slope_bound[i] =
            stored(c->dtype, slope[i], fabs(dy) * (error * (share + fabs(bend)) + small) + SMALL);
    }
    void *y = emulate_array(c->bytes, 0);
    tess__cuda_gelu_erf_forward(&emulate_kernel, c->dtype, c->count, c->array[0], y);
    check_array("gelu by erf", c->dtype, y, want, bound, c->count);
    tess__cuda_gelu_erf_backward(&emulate_kernel, c->dtype, c->count, c->array[0], c->array[2], y);
    check_array("gelu by erf, gradient", c->dtype, y, slope, slope_bound, c->count);
    free(want);
    free(slope);
    free(bound);
    free(slope_bound);
}

static void check_gelu(const struct activation_case *c)
{
    double *want = reals(c->count), *slope = reals(c->count);
    double *bound = reals(c->count), *slope_bound = reals(c->count);
    const double k = sqrt(2 / acos(-1));
    for (int64_t i = 0; i < c->count; i++) {
        double x = c->x[0][i], dy = c->x[2][i];
        double a = 2 * k * (x + 0.044715 * x * x * x), s = sigmoid(a), rest = sigmoid(-a);
        double a_slope = 2 * k * (1 + 3 * 0.044715 * x * x);
        /* a: five roundings of terms of its own sign */
        double s_error = s * (6 + 6 * rest * fabs(a)) * UNIT + SMALL;
        want[i] = x * s;
        bound[i] = stored(c->dtype, want[i], fabs(x) * s_error + UNIT * fabs(want[i]));
        double bend = x * s * rest * a_slope;
        /* 1 - s in f32 is off by what s is and a rounding; then six roundings more */
        double bend_error =
            fabs(x) * a_slope * (rest * s_error + s * (s_error + UNIT)) + 6 * UNIT * fabs(bend);
        if (fabs(x) > 10)
            bend_error = 0x1p-100;
        slope[i] = dy * (s + bend);
        slope_bound[i] = stored(c->dtype, slope[i],
                                fabs(dy) * (s_error + bend_error + 3 * UNIT * (s + fabs(bend))));
    }
    void *y = emulate_array(c->bytes, 0);
    tess__cuda_gelu_forward(&emulate_kernel, c->dtype, c->count, c->array[0], y);
    check_array("gelu", c->dtype, y, want, bound, c->count);
    tess__cuda_gelu_backward(&emulate_kernel, c->dtype, c->count, c->array[0], c->array[2], y);
    check_array("gelu gradient", c->dtype, y, slope, slope_bound, c->count);
    void *over = emulate_copy_of(c->array[0], c->bytes);
    tess__cuda_gelu_backward(&emulate_kernel, c->dtype, c->count, over, c->array[2], over);
    check_bytes("gelu gradient over x", over, y, c->bytes);
    free(want);
    free(slope);
    free(bound);
    free(slope_bound);
}

static void check_swiglu(const struct activation_case *c)
{
    double *want[3], *bound[3];
    for (int k = 0; k < 3; k++) {
        want[k] = reals(c->count);
        bound[k] = reals(c->count);
    }
    for (int64_t i = 0; i < c->count; i++) {
        double g = c->x[0][i], up = c->x[1][i], dy = c->x[2][i], s = sigmoid(g);
        double slope = s * (1 + g * (1 - s)), term = s * (1 + fabs(g));
        want[0][i] = g * s * up;
        want[1][i] = dy * up * slope;
        want[2][i] = dy * g * s;
        for (int k = 0; k < 3; k += 2)
            bound[k][i] = stored(c->dtype, want[k][i], 10 * UNIT * fabs(want[k][i]) + SMALL * 1000);
        /* s is off by 6 u; 1 - s by that and a rounding of a number up to 1; the rest by 5 u */
        bound[1][i] =
            stored(c->dtype, want[1][i], fabs(dy * up) * (6 + 7 + 5) * UNIT * term + SMALL * 1000);
    }
    void *y = emulate_array(c->bytes, 0), *dgate = emulate_copy_of(c->array[0], c->bytes);
    void *dup = emulate_copy_of(c->array[1], c->bytes);
    tess__cuda_swiglu_forward(&emulate_kernel, c->dtype, 1, c->count, c->count, c->array[0],
                              c->array[1], y);
    check_array("swiglu", c->dtype, y, want[0], bound[0], c->count);
    tess__cuda_swiglu_backward(&emulate_kernel, c->dtype, 1, c->count, c->count, dgate, dup,
                               c->array[2], dgate, dup);
    check_array("swiglu gradient of the gate", c->dtype, dgate, want[1], bound[1], c->count);
    check_array("swiglu gradient of the other", c->dtype, dup, want[2], bound[2], c->count);
    for (int k = 0; k < 3; k++) {
        free(want[k]);
        free(bound[k]);
    }
}

static void case_units(void **state)
{
    (void)state;
    static const int64_t count[] = {0, 1, 7, 8, 100, 2049, 5000};
    static const double spread[] = {0.01, 1, 4, 10, 100};
    for (size_t i = 0; i < 7 * 5 * 3; i++) {
        struct activation_case c = {.dtype = dtypes[i % 3], .count = count[i / 15]};
        c.bytes = (size_t)c.count * tess_dtype_bytes(c.dtype);
        struct draw draw = {i};
        for (int k = 0; k < 3; k++) {
            c.x[k] = draw_reals(&draw, c.dtype, c.count);
            for (int64_t e = 0; e < c.count && k < 2; e++)
                c.x[k][e] = round_to(c.dtype, c.x[k][e] * (k == 0 ? spread[i / 3 % 5] : 3));
            if (k == 0 && c.count > 2)
                c.x[0][2] = 0;
            c.array[k] = array_of(c.dtype, c.x[k], c.count,
                                  i % 4 == 3 && k == 2 ? tess_dtype_bytes(c.dtype) : 0);
        }
        check_gelu(&c);
        check_gelu_erf(&c);
        check_swiglu(&c);
        for (int k = 0; k < 3; k++)
            free(c.x[k]);
        emulate_free_all();
    }
}

/* A fault shows, and numbers beyond what a square holds do not make one. */
static void case_extremes(void **state)
{
    (void)state;
    float *x = emulate_array(16, 0), *y = emulate_array(16, 0), *one = emulate_array(16, 0);
    memcpy(x, (float[4]){NAN, INFINITY, 3e38f, -3e38f}, 16);
    memcpy(one, (float[4]){1, 1, 1, 1}, 16);
    tess__cuda_gelu_forward(&emulate_kernel, TESS_F32, 4, x, y);
    assert_true(isnan(y[0]) && y[1] == INFINITY && y[2] == 3e38f && y[3] == 0);
    tess__cuda_gelu_backward(&emulate_kernel, TESS_F32, 4, x, one, y);
    assert_true(isnan(y[0]) && isnan(y[1]) && y[2] == 1 && fabsf(y[3]) < 1e-30f);
    tess__cuda_swiglu_forward(&emulate_kernel, TESS_F32, 1, 4, 4, x, one, y);
    assert_true(isnan(y[0]) && y[1] == INFINITY && y[2] == 3e38f && y[3] == 0);
    emulate_free_all();
}

/* ---- rotary positions ----------------------------------------------------------------------- */

/* Sine and cosine are off by 1.5 u; two products and a sum add 1 u each. */
static void rope_run(const struct rope_case *c, enum tess_dtype dtype, bool inverse, uint64_t seed)
{
    struct draw draw = {seed};
    int64_t stride = rope_stride(c), count = c->rows * stride;
    double *x = draw_reals(&draw, dtype, count), *want = reals(count), *bound = reals(count);
    /* The amplitude is one more rounding of both. */
    const double units = c->rotary.amplitude > 0 ? 4.5 : 3.5;
    rope_naive(c, inverse, x, want, bound);
    for (int64_t i = 0; i < count; i++)
        bound[i] = bound[i] > 0 ? stored(dtype, want[i], units * UNIT * bound[i]) : 0;
    void *array = array_of(dtype, x, count, seed % 2 ? 0 : tess_dtype_bytes(dtype));
    tess__cuda_rope(&emulate_kernel, dtype, c->rows, c->length, c->first, (int32_t)c->heads,
                    c->head_size, stride, &c->rotary, inverse, array);
    check_array("rope", dtype, array, want, bound, count);
    free(x);
    free(want);
    free(bound);
    emulate_free_all();
}

static void case_rope(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROPE_CASES * 3 * 4; i++)
        rope_run(&rope_cases[i / 12], dtypes[i / 4 % 3], i / 2 % 2 == 1, i);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_units),
        cmocka_unit_test(case_extremes),
        cmocka_unit_test(case_rope),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
