/*
 * GELU, SwiGLU and rotary positions of one backend (argv[1]) against the formulas in double, in
 * place and apart, in many lengths.
 *
 * Bounds. u = 2^-24. exp and tanh of a backend are good to 16 u; the rest is a few roundings. The
 * result is rounded to the dtype once. Below 2^-126 an f32 may become 0.
 */
#include "device.h"
#include "rope_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;

#define UNIT  0x1p-24
#define SMALL 0x1p-126

struct pair {
    double value, bound;
};

static struct pair rounded(enum tess_dtype dtype, double value, double error)
{
    return (struct pair){value, error + unit_of(dtype) * (fabs(value) + error) + tiny_of(dtype)};
}

/*
 * What t = tanh may be off by. Beyond |x| = 6 it is 1 or -1 to less than a bit of f32, and has to
 * be that: x and x^3 are multiplied with what is left.
 */
static double tanh_error(double x)
{
    return fabs(x) <= 6 ? 16 * UNIT : 0.5 * UNIT;
}

/* x / 2 (1 + t): an error in t counts as |x| / 2 times that, however small 1 + t is. */
static struct pair gelu(enum tess_dtype dtype, double x)
{
    double t = tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)), value = x / 2 * (1 + t);
    return rounded(dtype, value,
                   fabs(x) / 2 * tanh_error(x) + 8 * UNIT * fabs(value) +
                       4 * UNIT * fmin(fabs(x), 6));
}

/* The slope is (1 + t)/2 + x/2 (1 - t^2) s, s the slope of what t is the tanh of. */
static struct pair gelu_grad(enum tess_dtype dtype, double x, double dy)
{
    double k = sqrt(2 / acos(-1)), t = tanh(k * (x + 0.044715 * x * x * x));
    double s = k * (1 + 3 * 0.044715 * x * x), bend = fabs(x) / 2 * s;
    double slope = (1 + t) / 2 + x / 2 * (1 - t * t) * s;
    double error = tanh_error(x) + (fabs(x) <= 6 ? bend * 2.5 * tanh_error(x) : 0) + 8 * UNIT;
    return rounded(dtype, dy * slope, fabs(dy) * error + SMALL);
}

/* x/2 erfc(z) of z = -x / sqrt(2): a rounding of z is one of erfc by less than (1 + 2 z^2) of it,
 * and so is one of the density's exponent. */
static double erf_error(double x)
{
    return (12 + 4 * x * x) * UNIT;
}

static struct pair gelu_erf(enum tess_dtype dtype, double x)
{
    double value = x / 2 * erfc(-x / sqrt(2));
    return rounded(dtype, value, erf_error(x) * fabs(value) + SMALL * (1 + fabs(x)));
}

static struct pair gelu_erf_grad(enum tess_dtype dtype, double x, double dy)
{
    double share = erfc(-x / sqrt(2)) / 2, bend = x * exp(-x * x / 2) / sqrt(2 * acos(-1));
    return rounded(dtype, dy * (share + bend),
                   fabs(dy) * (erf_error(x) * (share + fabs(bend)) + SMALL * (1 + fabs(x))) +
                       SMALL);
}

/* g / (1 + e): e = exp(-g) is off by 16 u e, which is at most 16 u (1 + e). */
static struct pair swiglu(enum tess_dtype dtype, double gate, double up)
{
    double value = gate / (1 + exp(-gate)) * up;
    return rounded(dtype, value, 24 * UNIT * fabs(value) + SMALL * (fabs(gate * up) + 1));
}

/* With s = 1 / (1 + e), the slope in the gate is s (1 + g (1 - s)); 1 - s is off by 20 u. */
static struct pair swiglu_grad_gate(enum tess_dtype dtype, double gate, double up, double dy)
{
    double s = 1 / (1 + exp(-gate)), value = dy * up * s * (1 + gate * (1 - s));
    double error = 28 * UNIT * s * (1 + fabs(gate)) + SMALL * (1 + fabs(gate));
    return rounded(dtype, value, fabs(dy * up) * error + SMALL);
}

/* GELU or its slope in f32, times numbers that multiply it. */
static struct pair times(enum tess_dtype dtype, struct pair of, double factor)
{
    const double value = of.value * factor;
    return rounded(dtype, value, of.bound * fabs(factor) + 4 * UNIT * fabs(value) + SMALL);
}

static struct pair geglu(enum tess_dtype dtype, bool erf, double gate, double up)
{
    return times(dtype, erf ? gelu_erf(TESS_F32, gate) : gelu(TESS_F32, gate), up);
}

static struct pair geglu_grad_gate(enum tess_dtype dtype, bool erf, double gate, double up,
                                   double dy)
{
    return times(dtype, erf ? gelu_erf_grad(TESS_F32, gate, 1) : gelu_grad(TESS_F32, gate, 1),
                 dy * up);
}

struct activation_case {
    enum tess_dtype dtype;
    int64_t count;
    double *x[3]; /* x or gate; up; dy */
    void *dev[3];
};

static void activation_draw(struct activation_case *c, double spread, uint64_t seed)
{
    struct draw draw = {seed};
    device_reset(&device);
    for (int i = 0; i < 3; i++) {
        c->x[i] = draw_reals(&draw, c->dtype, c->count);
        for (int64_t k = 0; k < c->count && i < 2; k++)
            c->x[i][k] = round_to(c->dtype, c->x[i][k] * (i == 0 ? spread : 3));
        if (i == 0 && c->count > 2)
            c->x[0][2] = 0;
        c->dev[i] = device_put_real(&device, c->dtype, c->x[i], c->count);
    }
}

static void *activation_array(const struct activation_case *c)
{
    return device_array(&device, (size_t)c->count * tess_dtype_bytes(c->dtype));
}

static void *activation_copy(const struct activation_case *c, int which)
{
    return device_put_real(&device, c->dtype, c->x[which], c->count);
}

/* Element i; `way`: 0 gelu, 1 its gradient, 2 swiglu, 3 its gradient in the gate, 4 in the other,
 * 5 gelu by erf, 6 its gradient; 7 geglu and 8, 9 as 3, 4; 10 to 12 the same by erf. */
static struct pair activation_want(const struct activation_case *c, int way, int64_t i)
{
    double x = c->x[0][i], up = c->x[1][i], dy = c->x[2][i];
    return way == 0       ? gelu(c->dtype, x)
           : way == 1     ? gelu_grad(c->dtype, x, dy)
           : way == 2     ? swiglu(c->dtype, x, up)
           : way == 3     ? swiglu_grad_gate(c->dtype, x, up, dy)
           : way == 4     ? swiglu(c->dtype, x, dy)
           : way == 5     ? gelu_erf(c->dtype, x)
           : way == 6     ? gelu_erf_grad(c->dtype, x, dy)
           : way % 3 == 1 ? geglu(c->dtype, way > 9, x, up)
           : way % 3 == 2 ? geglu_grad_gate(c->dtype, way > 9, x, up, dy)
                          : geglu(c->dtype, way > 9, x, dy);
}

static void activation_check(const struct activation_case *c, const char *what, int way,
                             const void *got)
{
    double *want = reals(c->count), *bound = reals(c->count);
    for (int64_t i = 0; i < c->count; i++) {
        struct pair p = activation_want(c, way, i);
        want[i] = p.value;
        bound[i] = p.bound;
    }
    device_check(&device, what, c->dtype, got, want, bound, c->count);
    free(want);
    free(bound);
}

static void check_gelu(const struct activation_case *c)
{
    void *y = activation_array(c), *over_dy = activation_copy(c, 2);
    void *over_x = activation_copy(c, 0);
    tess_gelu_forward(device.kernel, c->dtype, c->count, c->dev[0], y);
    activation_check(c, "gelu", 0, y);
    tess_gelu_backward(device.kernel, c->dtype, c->count, c->dev[0], c->dev[2], y);
    activation_check(c, "gelu gradient", 1, y);
    tess_gelu_backward(device.kernel, c->dtype, c->count, c->dev[0], over_dy, over_dy);
    activation_check(c, "gelu gradient over dy", 1, over_dy);
    tess_gelu_backward(device.kernel, c->dtype, c->count, over_x, c->dev[2], over_x);
    activation_check(c, "gelu gradient over x", 1, over_x);

    void *erf_dy = activation_copy(c, 2), *erf_x = activation_copy(c, 0);
    tess_gelu_erf_forward(device.kernel, c->dtype, c->count, c->dev[0], y);
    activation_check(c, "gelu by erf", 5, y);
    tess_gelu_erf_backward(device.kernel, c->dtype, c->count, c->dev[0], erf_dy, erf_dy);
    activation_check(c, "gelu by erf, gradient over dy", 6, erf_dy);
    tess_gelu_erf_backward(device.kernel, c->dtype, c->count, erf_x, c->dev[2], erf_x);
    activation_check(c, "gelu by erf, gradient over x", 6, erf_x);
}

/* Linear units with a gate, by the first of their ways. */
enum gated { GATED_SWIGLU = 2, GATED_GEGLU = 7, GATED_GEGLU_ERF = 10 };

static void gated_forward(enum gated kind, enum tess_dtype dtype, int64_t rows, int64_t width,
                          int64_t stride, const void *gate, const void *up, void *y)
{
    if (kind == GATED_SWIGLU)
        tess_swiglu_forward(device.kernel, dtype, rows, width, stride, gate, up, y);
    else
        tess_geglu_forward(device.kernel, dtype, rows, width, stride, kind == GATED_GEGLU_ERF, gate,
                           up, y);
}

static void gated_backward(enum gated kind, enum tess_dtype dtype, int64_t rows, int64_t width,
                           int64_t stride, const void *gate, const void *up, const void *dy,
                           void *dgate, void *dup)
{
    if (kind == GATED_SWIGLU)
        tess_swiglu_backward(device.kernel, dtype, rows, width, stride, gate, up, dy, dgate, dup);
    else
        tess_geglu_backward(device.kernel, dtype, rows, width, stride, kind == GATED_GEGLU_ERF,
                            gate, up, dy, dgate, dup);
}

static void check_gated(const struct activation_case *c, enum gated kind)
{
    void *y = activation_array(c), *dup = activation_array(c);
    void *over_gate = activation_copy(c, 0), *over_up = activation_copy(c, 1);
    gated_forward(kind, c->dtype, 1, c->count, c->count, c->dev[0], c->dev[1], y);
    activation_check(c, "gated", kind, y);
    gated_backward(kind, c->dtype, 1, c->count, c->count, c->dev[0], c->dev[1], c->dev[2], y, dup);
    activation_check(c, "gated, gradient of the gate", kind + 1, y);
    activation_check(c, "gated, gradient of the other", kind + 2, dup);
    gated_backward(kind, c->dtype, 1, c->count, c->count, over_gate, over_up, c->dev[2], over_gate,
                   over_up);
    activation_check(c, "gated, gradient over the gate", kind + 1, over_gate);
    activation_check(c, "gated, gradient over the other", kind + 2, over_up);
}

/* gate and up side by side in rows of one array, with a gap, which stays. */
static void check_gated_rows(const struct activation_case *c, enum gated kind, int64_t gap)
{
    int64_t rows = 2;
    while (rows < c->count && c->count % rows != 0)
        rows++;
    if (c->count < 2)
        return;
    const int64_t width = c->count / rows, stride = 2 * width + gap, whole = rows * stride;
    const size_t word = tess_dtype_bytes(c->dtype);
    double *x = reals(whole), *want = reals(whole), *bound = reals(whole);
    for (int64_t i = 0; i < whole; i++) {
        const int64_t side = i % stride / width, at = i / stride * width + i % stride % width;
        x[i] = want[i] = side < 2 ? c->x[side][at] : 7;
        if (side < 2) {
            const struct pair p = activation_want(c, (int)kind + 1 + (int)side, at);
            want[i] = p.value;
            bound[i] = p.bound;
        }
    }
    void *both = device_put_real(&device, c->dtype, x, whole), *y = activation_array(c);
    void *up = (char *)both + (size_t)width * word;
    gated_forward(kind, c->dtype, rows, width, stride, both, up, y);
    activation_check(c, "gated, of rows", kind, y);
    gated_backward(kind, c->dtype, rows, width, stride, both, up, c->dev[2], both, up);
    device_check(&device, "gated, gradient of rows", c->dtype, both, want, bound, whole);
    free(x);
    free(want);
    free(bound);
}

/* All of them, and one by turns in rows. */
static void check_all_gated(const struct activation_case *c, uint64_t turn, int64_t gap)
{
    static const enum gated kind[] = {GATED_SWIGLU, GATED_GEGLU, GATED_GEGLU_ERF};
    for (int k = 0; k < 3; k++)
        check_gated(c, kind[k]);
    check_gated_rows(c, kind[turn % 3], gap);
}

static void activation_all(enum tess_dtype dtype)
{
    static const int64_t count[] = {0, 1, 2, 7, 16, 31, 64, 100, 515, 2000};
    static const double spread[] = {0.01, 1, 4, 10, 100};
    for (size_t i = 0; i < 10 * 5; i++) {
        struct activation_case c = {.dtype = dtype, .count = count[i % 10]};
        activation_draw(&c, spread[i / 10], 1400 + i);
        check_gelu(&c);
        check_all_gated(&c, i, (int64_t)(i / 10 % 3) * 8);
        for (int k = 0; k < 3; k++)
            free(c.x[k]);
    }
}

static void case_units_f32(void **state)
{
    (void)state;
    activation_all(TESS_F32);
}

static void case_units_bf16(void **state)
{
    (void)state;
    activation_all(TESS_BF16);
}

static void case_units_f16(void **state)
{
    (void)state;
    activation_all(TESS_F16);
}

/* A fault must show. */
static void case_nan(void **state)
{
    (void)state;
    double x[3] = {1, (double)NAN, -2};
    double y[3];
    device_reset(&device);
    float *x_dev = device_put_real(&device, TESS_F32, x, 3);
    float *y_dev = device_array(&device, 3 * sizeof(float));
    tess_gelu_forward(device.kernel, TESS_F32, 3, x_dev, y_dev);
    device_get_real(&device, TESS_F32, y_dev, y, 3);
    assert_true(isfinite(y[0]) && isnan(y[1]) && isfinite(y[2]));
    tess_swiglu_forward(device.kernel, TESS_F32, 1, 3, 3, x_dev, x_dev, y_dev);
    device_get_real(&device, TESS_F32, y_dev, y, 3);
    assert_true(isfinite(y[0]) && isnan(y[1]) && isfinite(y[2]));
}

/* ---- rotary positions ----------------------------------------------------------------------- */

/* The angle must be that of the formula, so sine and cosine are off by a rounding to f32 or two: 4
 * u of both numbers, one more where there is an amplitude, and the rounding to the dtype. */
static void rope_bound(const struct rope_case *c, enum tess_dtype dtype, bool inverse,
                       const double *x, double *y, double *bound)
{
    const double units = c->rotary.amplitude > 0 ? 5 : 4;
    rope_naive(c, inverse, x, y, bound);
    for (int64_t i = 0; i < c->rows * rope_stride(c); i++)
        bound[i] = bound[i] > 0 ? rounded(dtype, y[i], units * UNIT * bound[i]).bound : 0;
}

static void rope_run(const struct rope_case *c, enum tess_dtype dtype, uint64_t seed)
{
    struct draw draw = {seed};
    device_reset(&device);
    int64_t stride = rope_stride(c), count = c->rows * stride;
    double *x = draw_reals(&draw, dtype, count), *want = reals(count), *bound = reals(count);
    for (int way = 0; way < 2; way++) {
        void *dev = device_put_real(&device, dtype, x, count);
        rope_bound(c, dtype, way == 1, x, want, bound);
        tess_rope(device.kernel, dtype, c->rows, c->length, c->first, (int32_t)c->heads,
                  c->head_size, stride, &c->rotary, way == 1, dev);
        device_check(&device, way ? "rope inverse" : "rope", dtype, dev, want, bound, count);
        if (c->rotary.amplitude > 0)
            continue; /* no rotation */
        /* and back: off by what both ways may be off, as a rotation grows nothing */
        tess_rope(device.kernel, dtype, c->rows, c->length, c->first, (int32_t)c->heads,
                  c->head_size, stride, &c->rotary, way == 0, dev);
        for (int64_t i = 0; i < count; i++)
            bound[i] = bound[i] > 0 ? 6 * unit_of(dtype) + 16 * UNIT + 4 * tiny_of(dtype) : 0;
        device_check(&device, "rope and back", dtype, dev, x, bound, count);
    }
    free(x);
    free(want);
    free(bound);
}

static void case_rope(void **state)
{
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    (void)state;
    for (size_t i = 0; i < 3 * ROPE_CASES; i++)
        rope_run(&rope_cases[i / 3], dtypes[i % 3], 1600 + i);
}

static void case_random(void **state)
{
    (void)state;
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    struct draw draw = draw_shapes(37);
    for (int i = 0; i < 30; i++) {
        struct activation_case c = {.dtype = dtypes[i % 3], .count = draw_between(&draw, 1, 6000)};
        activation_draw(&c, (double)draw_between(&draw, 1, 40), draw_word(&draw));
        check_gelu(&c);
        check_all_gated(&c, (uint64_t)i, draw_between(&draw, 0, 9));
        for (int k = 0; k < 3; k++)
            free(c.x[k]);
        struct rope_case rope = {.rows = draw_between(&draw, 1, 40),
                                 .length = draw_between(&draw, 1, 40),
                                 .first = draw_between(&draw, 0, 3000),
                                 .heads = draw_between(&draw, 1, 5),
                                 .head_size = 2 * draw_between(&draw, 1, 70),
                                 .gap = draw_between(&draw, 0, 9),
                                 .rotary = {.base = 10000}};
        rope_run(&rope, dtypes[i % 3], draw_word(&draw));
    }
}

/* ---- every number of bf16 -------------------------------------------------------------------- */

#define CODES 4096 /* at once */

/* x, another factor u and a gradient dy in one type; and y, dx and du. */
struct codes {
    enum tess_dtype dtype;
    void *x, *u, *dy, *y, *dx, *du;
};

static struct codes codes_of(enum tess_dtype dtype)
{
    const size_t bytes = CODES * tess_dtype_bytes(dtype);
    return (struct codes){.dtype = dtype,
                          .x = device_array(&device, bytes),
                          .u = device_array(&device, bytes),
                          .dy = device_array(&device, bytes),
                          .y = device_array(&device, bytes),
                          .dx = device_array(&device, bytes),
                          .du = device_array(&device, bytes)};
}

/* One of the activations, and its gradient; without another factor du is dx. */
static void codes_run(int which, const struct codes *c)
{
    struct tess_kernel *k = device.kernel;
    const enum tess_dtype t = c->dtype;
    if (which == 0) {
        tess_gelu_forward(k, t, CODES, c->x, c->y);
        tess_gelu_backward(k, t, CODES, c->x, c->dy, c->dx);
    } else if (which == 1) {
        tess_gelu_erf_forward(k, t, CODES, c->x, c->y);
        tess_gelu_erf_backward(k, t, CODES, c->x, c->dy, c->dx);
    } else if (which == 2) {
        tess_swiglu_forward(k, t, 1, CODES, CODES, c->x, c->u, c->y);
        tess_swiglu_backward(k, t, 1, CODES, CODES, c->x, c->u, c->dy, c->dx, c->du);
    } else {
        tess_geglu_forward(k, t, 1, CODES, CODES, which == 3, c->x, c->u, c->y);
        tess_geglu_backward(k, t, 1, CODES, CODES, which == 3, c->x, c->u, c->dy, c->dx, c->du);
    }
    if (which < 2)
        tess_copy(k, CODES * (int64_t)tess_dtype_bytes(t), c->dx, c->du);
}

/* What bf16 gives is what f32 gives, rounded. A NaN is a NaN. */
static void codes_check(const void *whole, const void *half)
{
    void *want = device_array(&device, CODES * sizeof(uint16_t));
    tess_cast(device.kernel, CODES, TESS_F32, whole, TESS_BF16, want);
    uint16_t *a = device_fetch(&device, half, CODES * sizeof(*a));
    uint16_t *b = device_fetch(&device, want, CODES * sizeof(*b));
    for (int i = 0; i < CODES; i++)
        if ((a[i] & 0x7fff) > 0x7f80 && (b[i] & 0x7fff) > 0x7f80)
            a[i] = b[i];
    check_bytes("each number of bf16", a, b, CODES * sizeof(*a));
    free(a);
    free(b);
}

/* Where numbers of bf16 are looked up, all of them are those that would have been computed. */
static void case_codes(void **state)
{
    (void)state;
    static uint16_t code[3][CODES];
    if (strcmp(device.kernel->ops->name, "cpu") != 0)
        skip();
    for (int i = 0; i < 65536 / CODES * 5; i++) {
        device_reset(&device);
        struct codes half = codes_of(TESS_BF16), whole = codes_of(TESS_F32);
        void *const to[] = {half.x, half.u, half.dy}, *const wide[] = {whole.x, whole.u, whole.dy};
        struct draw draw = {(uint64_t)i};
        for (int j = 0; j < CODES; j++) {
            code[0][j] = (uint16_t)(i / 5 * CODES + j);
            code[1][j] = (uint16_t)(0x3f00 + draw_word(&draw) % 0x100);
            code[2][j] = (uint16_t)(0xbf00 + draw_word(&draw) % 0x100);
        }
        for (int a = 0; a < 3; a++) {
            device_put(&device, to[a], code[a], sizeof(code[a]));
            tess_cast(device.kernel, CODES, TESS_BF16, to[a], TESS_F32, wide[a]);
        }
        codes_run(i % 5, &half);
        codes_run(i % 5, &whole);
        codes_check(whole.y, half.y);
        codes_check(whole.dx, half.dx);
        codes_check(whole.du, half.du);
    }
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 512u << 10);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_units_f32), cmocka_unit_test(case_units_bf16),
        cmocka_unit_test(case_units_f16), cmocka_unit_test(case_nan),
        cmocka_unit_test(case_rope),      cmocka_unit_test(case_random),
        cmocka_unit_test(case_codes)};
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
