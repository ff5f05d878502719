/*
 * 8-bit products of one backend (argv[1]; with argv[2] "fast" by --cuda.fp8-fast), and the
 * conversions they rest on.
 *
 * Conversions against a table of all codes made from the definition of the formats, searched for
 * the nearest; scales against the property that defines them; layers against sums in double of
 * operands narrowed by that table, and against sums of the operands as they were, within what
 * narrowing may change.
 */
#include "device.h"

#include "kernel_open.h"
#include "ref/fp8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;
static bool on_gpu; /* the backend computes on one */

/* ---- the formats, by definition -------------------------------------------------------------- */

struct format {
    enum tess_fp8_format format;
    int exponent_bits, fraction_bits, finite; /* the last code that is a number */
    double greatest;
};

static const struct format formats[2] = {
    {TESS_FP8_E4M3, 4, 3, 0x7e, 448},
    {TESS_FP8_E5M2, 5, 2, 0x7b, 57344},
};

/* The value of a magnitude's code. */
static double value_of(const struct format *f, int code)
{
    const int bias = (1 << (f->exponent_bits - 1)) - 1;
    const int exponent = code >> f->fraction_bits, fraction = code % (1 << f->fraction_bits);
    const double part = fraction / (double)(1 << f->fraction_bits);
    return exponent > 0 ? ldexp(1 + part, exponent - bias) : ldexp(part, 1 - bias);
}

/* The code of the nearest number, the even one of two that are as near; beyond the last, it. */
static int nearest(const struct format *f, double x)
{
    const double magnitude = fabs(x);
    int best = 0;
    if (magnitude >= f->greatest) /* far beyond it, differences are no longer exact */
        return f->finite | (signbit(x) ? 0x80 : 0);
    for (int code = 1; code <= f->finite; code++) {
        const double here = fabs(value_of(f, code) - magnitude);
        const double before = fabs(value_of(f, best) - magnitude);
        if (here < before || (here == before && code % 2 == 0))
            best = code;
    }
    return best | (signbit(x) ? 0x80 : 0);
}

static double signed_value(const struct format *f, int code)
{
    return (code & 0x80 ? -1 : 1) * value_of(f, code & 0x7f);
}

static void expect_code(const struct format *f, float x)
{
    const int got = tess__fp8_of_f32(f->format, x), expected = nearest(f, (double)x);
    if (got != expected)
        fail_msg("%a in format %d is 0x%02x, not 0x%02x", (double)x, (int)f->format, got, expected);
}

static void case_every_code(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct format *f = &formats[i];
        assert_true(value_of(f, f->finite) == f->greatest);
        for (int code = 0; code < 256; code++) {
            const float x = tess__f32_of_fp8(f->format, (uint8_t)code);
            if ((code & 0x7f) > f->finite) {
                assert_false(isfinite(x));
                continue;
            }
            assert_true((double)x == signed_value(f, code));
            assert_true(!signbit(x) == !(code & 0x80));
            assert_int_equal(tess__fp8_of_f32(f->format, x), code);
        }
    }
    /* Only e5m2 has an infinity. */
    assert_true(isinf(tess__f32_of_fp8(TESS_FP8_E5M2, 0x7c)));
    assert_true(isinf(tess__f32_of_fp8(TESS_FP8_E5M2, 0xfc)));
    assert_true(isnan(tess__f32_of_fp8(TESS_FP8_E5M2, 0x7d)));
    assert_true(isnan(tess__f32_of_fp8(TESS_FP8_E4M3, 0x7f)));
}

/* Midpoints of neighbours and the floats beside them; those of the greatest number and beyond. */
static void case_rounding(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct format *f = &formats[i];
        for (int code = 0; code <= f->finite; code++) {
            const float low = (float)value_of(f, code);
            const float high = code < f->finite ? (float)value_of(f, code + 1) : 2 * low;
            const float middle = (low + high) / 2; /* exact: a bit more than the format has */
            const float at[] = {low,
                                middle,
                                nextafterf(middle, 0),
                                nextafterf(middle, high),
                                nextafterf(low, high),
                                nextafterf(high, 0)};
            for (size_t k = 0; k < sizeof(at) / sizeof(at[0]); k++) {
                expect_code(f, at[k]);
                expect_code(f, -at[k]);
            }
        }
        expect_code(f, 1e30f);
        expect_code(f, -3e38f);
        expect_code(f, 1e-30f);
        expect_code(f, -1e-45f);
        const float odd[] = {INFINITY, -INFINITY, NAN, -NAN};
        for (int k = 0; k < 4; k++)
            assert_int_equal(tess__fp8_of_f32(f->format, odd[k]), 0x7f);
    }
}

static void case_random_bits(void **state)
{
    (void)state;
    struct draw draw = {7};
    for (int i = 0; i < 20000; i++) {
        uint32_t bits = (uint32_t)draw_word(&draw);
        /* Half of them where the formats have numbers: exponents from 2^-20 to 2^18. */
        if (i % 2)
            bits = (bits & 0x807fffffu) | (uint32_t)draw_between(&draw, 107, 145) << 23;
        float x;
        memcpy(&x, &bits, sizeof(x));
        for (int k = 0; k < 2 && isfinite(x); k++)
            expect_code(&formats[k], x);
    }
}

/* By definition, in double: the greatest power of two that keeps it within the format. */
static int exponent_of(const struct format *f, double greatest)
{
    if (greatest == 0)
        return 0;
    int p = 126;
    while (p > -126 && ldexp(greatest, p) > f->greatest)
        p--;
    return p;
}

static void case_scales(void **state)
{
    (void)state;
    struct draw draw = {8};
    for (int i = 0; i < 2; i++) {
        const struct format *f = &formats[i];
        for (int e = -149; e <= 127; e++) {
            const double fraction[] = {1,           1.5,
                                       1.75,        1.75 + 0x1p-23,
                                       2 - 0x1p-23, 1 + fabs(draw_real(&draw, TESS_F32)) / 2};
            for (int k = 0; k < 6; k++) {
                const float greatest = (float)ldexp(fraction[k], e);
                assert_int_equal(tess__fp8_exponent(f->format, greatest),
                                 exponent_of(f, (double)greatest));
            }
        }
        assert_int_equal(tess__fp8_exponent(f->format, 0), 0);
    }
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* x [count] narrowed with the scale that `greatest` asks for, by the table. */
static void narrow(const struct format *f, const double *x, int64_t count, double greatest,
                   double *y)
{
    const int p = exponent_of(f, greatest);
    for (int64_t i = 0; i < count; i++)
        y[i] = ldexp(signed_value(f, nearest(f, ldexp(x[i], p))), -p);
}

static double greatest_of(const double *x, int64_t count)
{
    double greatest = 0;
    for (int64_t i = 0; i < count; i++)
        greatest = fmax(greatest, fabs(x[i]));
    return greatest;
}

/* leaf by leaf, each by its own greatest element */
static double *narrow_leaves(const struct format *f, const double *x, int64_t leaves, int64_t count)
{
    double *y = reals(leaves * count);
    for (int64_t l = 0; l < leaves; l++)
        narrow(f, x + l * count, count, greatest_of(x + l * count, count), y + l * count);
    return y;
}

struct layer {
    struct tess_op_desc d;
    struct tess_op op;
    double *x, *w, *b, *dy; /* as they were */
    double *x8, *w8, *dy8;
    void *x_dev, *w_dev, *b_dev, *dy_dev;
};

static void layer_open(struct layer *l, uint64_t seed)
{
    const struct tess_op_desc *d = &l->d;
    struct draw draw = {seed};
    const int64_t leaves = d->rows / d->leaf_rows;
    l->x = draw_reals(&draw, d->dtype, d->rows * d->in);
    l->w = draw_reals(&draw, d->dtype, d->out * d->in);
    l->b = draw_reals(&draw, d->dtype, d->out);
    l->dy = draw_reals(&draw, d->dtype, d->rows * d->out);
    /* Leaves of different sizes, so that each needs a scale of its own. */
    for (int64_t i = 0; i < d->rows * d->in; i++)
        l->x[i] = ldexp(l->x[i], (int)(i / (d->leaf_rows * d->in)) % 5 - 2);
    for (int64_t i = 0; i < d->rows * d->out; i++)
        l->dy[i] = ldexp(l->dy[i], -(int)(i / (d->leaf_rows * d->out)) % 4 - 3);
    l->x8 = narrow_leaves(&formats[0], l->x, leaves, d->leaf_rows * d->in);
    l->w8 = narrow_leaves(&formats[0], l->w, 1, d->out * d->in);
    l->dy8 = narrow_leaves(&formats[1], l->dy, leaves, d->leaf_rows * d->out);
    l->x_dev = device_put_real(&device, d->dtype, l->x, d->rows * d->in);
    l->w_dev = device_put_real(&device, d->dtype, l->w, d->out * d->in);
    l->b_dev = device_put_real(&device, d->dtype, l->b, d->out);
    l->dy_dev = device_put_real(&device, d->dtype, l->dy, d->rows * d->out);
    device_op_open(&device, d, &l->op);
}

static void layer_close(struct layer *l)
{
    device_op_close(&l->op);
    double *const all[] = {l->x, l->w, l->b, l->dy, l->x8, l->w8, l->dy8};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
    device_reset(&device);
}

/*
 * One sum of products: a and b as they were, a8 and b8 narrowed. `exact` is within `bound` of a sum
 * of the narrowed ones in f32; and the sum of those as they were within `loss` of it: each operand
 * is off by at most its unit, relatively, or by half the smallest subnormal of its scale,
 * absolutely.
 */
struct dot {
    int64_t n, step_a, step_b;
    const double *a, *b, *a8, *b8;
    double unit_a, unit_b, tiny_a, tiny_b;
};

static double dot_exact(const struct dot *s, double start, double *magnitude, double *loss,
                        double *whole)
{
    double sum = start;
    *whole = start;
    *magnitude = fabs(start);
    *loss = 0;
    for (int64_t k = 0; k < s->n; k++) {
        const double a = s->a[k * s->step_a], b = s->b[k * s->step_b];
        const double a8 = s->a8[k * s->step_a], b8 = s->b8[k * s->step_b];
        const double off_a = fabs(a) * s->unit_a + s->tiny_a;
        const double off_b = fabs(b) * s->unit_b + s->tiny_b;
        sum += a8 * b8;
        *whole += a * b;
        *magnitude += fabs(a8 * b8);
        *loss += fabs(a) * off_b + fabs(b) * off_a + off_a * off_b;
    }
    return sum;
}

/* Half the smallest subnormal under the scale of the greatest of x. */
static double tiny_of_scale(const struct format *f, const double *x, int64_t count)
{
    return value_of(f, 1) / 2 * ldexp(1, -exponent_of(f, greatest_of(x, count)));
}

/*
 * What adding 8-bit products on a GPU may lose of their sum. Hopper keeps 14 bits of what it adds
 * (DeepSeek-AI 2024, "DeepSeek-V3 technical report", sections 3.3.2 and 3.5.2): one instruction
 * shifts 32 products and the sum before them to the exponent of the greatest of the 33, cuts off
 * what is below the 14th bit, and adds exactly. With g the greatest magnitude, in [2^e, 2^(e+1)),
 * that bit is worth 2^(e-13) <= 2^-13 g, and each of the 33 loses less than it. Cutting only makes
 * magnitudes smaller, so g is at most the sum of all products' magnitudes. n products are n
 * addends, and the sum before is one more for each of the ceil(n / 32) instructions:
 *
 *     lost <= (n + ceil(n / 32)) 2^-13 magnitude
 *
 * n is the length of one product of the library; sums over those, over leaves or over pieces of a
 * product, are in f32, which bound_of has.
 */
#define KEPT_BITS 14
#define KEPT_STEP 32

static double bound_lost(int64_t n, double magnitude)
{
    return (double)(n + (n + KEPT_STEP - 1) / KEPT_STEP) * ldexp(1, 1 - KEPT_BITS) * magnitude;
}

/* As bound_of, of sums of `count` products that this backend computes `n` at a time. */
static double bound_narrow(enum tess_dtype dtype, int64_t count, int64_t n, double magnitude,
                           double value)
{
    const double lost = on_gpu ? bound_lost(n, magnitude) : 0;
    return bound_of(dtype, (double)count, magnitude, value) + lost * (1 + unit_of(dtype));
}

/* The sum of n products as an instruction after the other adds them that keeps so many bits. */
static double sum_kept(int bits, int64_t n, const double *a, const double *b)
{
    double sum = 0;
    for (int64_t k = 0; k < n; k += KEPT_STEP) {
        const int64_t end = k + KEPT_STEP < n ? k + KEPT_STEP : n;
        double greatest = fabs(sum);
        for (int64_t i = k; i < end; i++)
            greatest = fmax(greatest, fabs(a[i] * b[i]));
        int exponent; /* greatest is in [2^(exponent - 1), 2^exponent) */
        (void)frexp(greatest, &exponent);
        const double unit = ldexp(1, exponent - bits);
        double total = trunc(sum / unit);
        for (int64_t i = k; i < end; i++)
            total += trunc(a[i] * b[i] / unit);
        sum = total * unit;
    }
    return sum;
}

/* Of [-1, 1), or of [0, 1): sums of those do not cancel out, and what is cut off adds up. */
static double draw_narrow(struct draw *draw, enum tess_fp8_format format, bool positive)
{
    const float x = (float)draw_real(draw, TESS_F32);
    return (double)tess__f32_of_fp8(format, tess__fp8_of_f32(format, positive ? fabsf(x) : x));
}

#define KEPT_TURNS 200

/* Sums that are out of bounds where so many bits are kept: of those of f32, and of what is lost. */
static void count_beyond(int bits, int64_t n, int *beyond_f32, int *beyond_lost)
{
    struct draw draw = {(uint64_t)n};
    double *a = reals(n), *b = reals(n);
    for (int turn = 0; turn < KEPT_TURNS; turn++) {
        double sum = 0, magnitude = 0;
        for (int64_t i = 0; i < n; i++) {
            a[i] = draw_narrow(&draw, TESS_FP8_E4M3, turn % 2);
            b[i] = draw_narrow(&draw, TESS_FP8_E5M2, turn % 2);
            sum += a[i] * b[i];
            magnitude += fabs(a[i] * b[i]);
        }
        const double off = fabs(sum_kept(bits, n, a, b) - sum);
        const double f32 = bound_of(TESS_F32, (double)n, magnitude, sum);
        *beyond_f32 += off > f32;
        *beyond_lost += off > f32 + bound_lost(n, magnitude);
    }
    free(a);
    free(b);
}

/* The bound holds of sums that keep the bits that it is made for, where that of f32 does not; half
 * of those bits are noticed. */
static void case_kept_bits(void **state)
{
    (void)state;
    static const int64_t lengths[] = {16, 32, 48, 160, 1024};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        int beyond_f32 = 0, beyond_lost = 0, worse = 0;
        count_beyond(KEPT_BITS, lengths[i], &beyond_f32, &beyond_lost);
        assert_int_equal(beyond_lost, 0);
        assert_true(beyond_f32 >= KEPT_TURNS / 20);
        beyond_f32 = 0;
        count_beyond(KEPT_BITS / 2, lengths[i], &beyond_f32, &worse);
        assert_true(worse >= KEPT_TURNS / 4);
    }
}

#define UNIT_E4M3 0x1p-4 /* half of the last of 3 + 1 bits */
#define UNIT_E5M2 0x1p-3

static void check_forward(struct layer *l)
{
    const struct tess_op_desc *d = &l->d;
    const int64_t count = d->rows * d->out;
    void *y = device_array(&device, (size_t)count * tess_dtype_bytes(d->dtype));
    assert_int_equal(tess_linear_forward(&l->op, l->x_dev, l->w_dev, l->b_dev, y), TESS_OK);
    double *got = reals(count), *expected = reals(count), *bound = reals(count);
    double *before = reals(count), *loss = reals(count);
    device_get_real(&device, d->dtype, y, got, count);
    for (int64_t i = 0; i < count; i++) {
        const int64_t b = i / d->out, o = i % d->out, leaf = b / d->leaf_rows * d->leaf_rows;
        const struct dot s = {
            .n = d->in,
            .step_a = 1,
            .step_b = 1,
            .a = l->x + b * d->in,
            .a8 = l->x8 + b * d->in,
            .b = l->w + o * d->in,
            .b8 = l->w8 + o * d->in,
            .unit_a = UNIT_E4M3,
            .unit_b = UNIT_E4M3,
            .tiny_a = tiny_of_scale(&formats[0], l->x + leaf * d->in, d->leaf_rows * d->in),
            .tiny_b = tiny_of_scale(&formats[0], l->w, d->out * d->in),
        };
        double magnitude;
        const double sum = dot_exact(&s, l->b[o], &magnitude, &loss[i], &before[i]);
        expected[i] = d->relu && sum < 0 ? 0 : sum;
        before[i] = d->relu && before[i] < 0 ? 0 : before[i];
        bound[i] = bound_narrow(d->dtype, d->in, d->in, magnitude, expected[i]);
        loss[i] += bound[i];
    }
    check_close("fp8 y", got, expected, bound, count);
    check_close("fp8 y against the layer as it is", got, before, loss, count);
    free(got);
    free(expected);
    free(bound);
    free(before);
    free(loss);
}

static void check_backward_data(struct layer *l)
{
    const struct tess_op_desc *d = &l->d;
    const int64_t count = d->rows * d->in;
    void *dx = device_array(&device, (size_t)count * tess_dtype_bytes(d->dtype));
    assert_int_equal(tess_linear_backward_data(&l->op, l->dy_dev, l->w_dev, dx), TESS_OK);
    double *got = reals(count), *expected = reals(count), *bound = reals(count);
    device_get_real(&device, d->dtype, dx, got, count);
    for (int64_t i = 0; i < count; i++) {
        const int64_t b = i / d->in, k = i % d->in;
        const struct dot s = {.n = d->out,
                              .step_a = 1,
                              .step_b = d->in,
                              .a = l->dy + b * d->out,
                              .a8 = l->dy8 + b * d->out,
                              .b = l->w + k,
                              .b8 = l->w8 + k};
        double magnitude, loss, whole;
        expected[i] = dot_exact(&s, 0, &magnitude, &loss, &whole);
        bound[i] = bound_narrow(d->dtype, d->out, d->out, magnitude, expected[i]);
    }
    check_close("fp8 dx", got, expected, bound, count);
    free(got);
    free(expected);
    free(bound);
}

static void check_backward_weight(struct layer *l)
{
    const struct tess_op_desc *d = &l->d;
    const int64_t count = d->out * d->in;
    float *dw = device_array(&device, (size_t)count * sizeof(float));
    float *db = device_array(&device, (size_t)d->out * sizeof(float));
    assert_int_equal(tess_linear_backward_weight(&l->op, l->x_dev, l->dy_dev, dw, db), TESS_OK);
    double *got = reals(count), *expected = reals(count), *bound = reals(count);
    device_get_real(&device, TESS_F32, dw, got, count);
    for (int64_t i = 0; i < count; i++) {
        const int64_t o = i / d->in, k = i % d->in;
        const struct dot s = {.n = d->rows,
                              .step_a = d->out,
                              .step_b = d->in,
                              .a = l->dy + o,
                              .a8 = l->dy8 + o,
                              .b = l->x + k,
                              .b8 = l->x8 + k};
        double magnitude, loss, whole;
        expected[i] = dot_exact(&s, 0, &magnitude, &loss, &whole);
        bound[i] = bound_narrow(TESS_F32, d->rows, d->leaf_rows, magnitude, expected[i]);
    }
    check_close("fp8 dw", got, expected, bound, count);
    /* The bias's gradient is of dy as it is. */
    device_get_real(&device, TESS_F32, db, got, d->out);
    for (int64_t o = 0; o < d->out; o++) {
        double magnitude = 0;
        expected[o] = 0;
        for (int64_t b = 0; b < d->rows; b++) {
            expected[o] += l->dy[b * d->out + o];
            magnitude += fabs(l->dy[b * d->out + o]);
        }
        bound[o] = bound_of(TESS_F32, (double)d->rows, magnitude, expected[o]);
    }
    check_close("fp8 dbias", got, expected, bound, d->out);
    free(got);
    free(expected);
    free(bound);
}

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
     .relu = true,
     .fp8 = TESS_FP8_NOW},
    {.kind = TESS_OP_LINEAR,
     .dtype = TESS_BF16,
     .rows = 32,
     .leaf_rows = 32,
     .in = 160,
     .out = 32,
     .input_grad = true,
     .fp8 = TESS_FP8_NOW},
};

static void case_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(layers) / sizeof(layers[0]); i++) {
        struct layer l = {.d = layers[i]};
        layer_open(&l, 100 + i);
        check_forward(&l);
        check_backward_data(&l);
        check_backward_weight(&l);
        layer_close(&l);
    }
}

/* Over all leaves at once and leaf by leaf: the same bits. */
static void case_leaves(void **state)
{
    (void)state;
    struct layer l = {.d = layers[0]};
    layer_open(&l, 5);
    struct tess_op_desc one = l.d;
    one.rows = one.leaf_rows;
    struct tess_op leaf;
    device_op_open(&device, &one, &leaf);
    const size_t x_bytes = (size_t)(one.rows * one.in) * 2,
                 y_bytes = (size_t)(one.rows * one.out) * 2;
    char *y = device_array(&device, 3 * y_bytes), *y1 = device_array(&device, y_bytes);
    char *dx = device_array(&device, 3 * x_bytes), *dx1 = device_array(&device, x_bytes);
    assert_int_equal(tess_linear_forward(&l.op, l.x_dev, l.w_dev, l.b_dev, y), TESS_OK);
    assert_int_equal(tess_linear_backward_data(&l.op, l.dy_dev, l.w_dev, dx), TESS_OK);
    for (size_t i = 0; i < 3; i++) {
        const char *x_leaf = (const char *)l.x_dev + i * x_bytes;
        const char *dy_leaf = (const char *)l.dy_dev + i * y_bytes;
        assert_int_equal(tess_linear_forward(&leaf, x_leaf, l.w_dev, l.b_dev, y1), TESS_OK);
        assert_int_equal(tess_linear_backward_data(&leaf, dy_leaf, l.w_dev, dx1), TESS_OK);
        char *a = device_fetch(&device, y + i * y_bytes, y_bytes);
        char *b = device_fetch(&device, y1, y_bytes);
        check_bytes("fp8 y of a leaf", a, b, y_bytes);
        free(a);
        free(b);
        a = device_fetch(&device, dx + i * x_bytes, x_bytes);
        b = device_fetch(&device, dx1, x_bytes);
        check_bytes("fp8 dx of a leaf", a, b, x_bytes);
        free(a);
        free(b);
    }
    device_op_close(&leaf);
    layer_close(&l);
}

/*
 * Twenty calls with x of changing size: each is narrowed by the greatest of the 16 calls before it,
 * the first by its own, and what is beyond saturates.
 */
static void case_history(void **state)
{
    (void)state;
    enum { CALLS = 20, N = 16, PAST = 16 };
    struct layer l = {.d = layers[0]};
    l.d.fp8 = TESS_FP8_HISTORY;
    l.d.rows = l.d.leaf_rows = N;
    l.d.in = l.d.out = N;
    layer_open(&l, 6);
    struct draw draw = {9};
    double seen[CALLS];
    for (int call = 0; call < CALLS; call++) {
        /* One great call, then small ones: it is forgotten after sixteen. */
        const int size = call == 1 ? 6 : call % 3 - 4;
        double *x = draw_reals(&draw, TESS_BF16, N * N), *x8 = reals(N * N);
        for (int i = 0; i < N * N; i++)
            x[i] = ldexp(x[i], size);
        double greatest = 0;
        for (int past = call > PAST ? call - PAST : 0; past < call; past++)
            greatest = fmax(greatest, seen[past]);
        seen[call] = greatest_of(x, N * N);
        narrow(&formats[0], x, N * N, call == 0 ? seen[0] : greatest, x8);
        void *x_dev = device_put_real(&device, TESS_BF16, x, N * N);
        void *y = device_array(&device, N * N * 2);
        assert_int_equal(tess_linear_forward(&l.op, x_dev, l.w_dev, NULL, y), TESS_OK);
        double *got = reals(N * N), *expected = reals(N * N), *bound = reals(N * N);
        device_get_real(&device, TESS_BF16, y, got, N * N);
        for (int i = 0; i < N * N; i++) {
            const struct dot s = {.n = N,
                                  .step_a = 1,
                                  .step_b = 1,
                                  .a = x + i / N * N,
                                  .a8 = x8 + i / N * N,
                                  .b = l.w + i % N * N,
                                  .b8 = l.w8 + i % N * N};
            double magnitude, loss, whole;
            expected[i] = dot_exact(&s, 0, &magnitude, &loss, &whole);
            bound[i] = bound_narrow(TESS_BF16, N, N, magnitude, expected[i]);
        }
        check_close("fp8 y by history", got, expected, bound, N * N);
        free(got);
        free(expected);
        free(bound);
        free(x);
        free(x8);
    }
    layer_close(&l);
}

/* An operand that is not finite makes NaN of the results it is in, and of no others. */
static void case_not_finite(void **state)
{
    (void)state;
    struct layer l = {.d = layers[0]};
    layer_open(&l, 11);
    const int64_t bad = 5, in = l.d.in, out = l.d.out;
    l.x[bad * in + 3] = INFINITY;
    void *x = device_put_real(&device, TESS_BF16, l.x, l.d.rows * in);
    void *y = device_array(&device, (size_t)(l.d.rows * out) * 2);
    assert_int_equal(tess_linear_forward(&l.op, x, l.w_dev, NULL, y), TESS_OK);
    double *got = reals(l.d.rows * out);
    device_get_real(&device, TESS_BF16, y, got, l.d.rows * out);
    for (int64_t i = 0; i < l.d.rows * out; i++)
        assert_true(isnan(got[i]) == (i / out == bad));
    free(got);
    layer_close(&l);
}

static void case_refused(void **state)
{
    (void)state;
    char why[200];
    struct tess_op_desc d = layers[0];
    assert_true(tess_op_check(&d, why, sizeof(why)));
    d.dtype = TESS_F32;
    assert_false(tess_op_check(&d, why, sizeof(why)));
    assert_non_null(strstr(why, "fp8"));
    d = layers[0];
    d.f32_math = true;
    assert_false(tess_op_check(&d, why, sizeof(why)));
    d = layers[0];
    d.kind = TESS_OP_NORM;
    assert_false(tess_op_check(&d, why, sizeof(why)));
}

/* Of a backend that refuses 8 bits: the reason names them. A device may be too old for them. */
static int refused(const char *backend, const char *why)
{
    print_message("%s refuses fp8: %s\n", backend, why);
    if (strstr(why, "fp8") == NULL)
        return 1;
    return strcmp(backend, "cuda") == 0 ? 77 : 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_every_code),  cmocka_unit_test(case_rounding),
        cmocka_unit_test(case_random_bits), cmocka_unit_test(case_scales),
        cmocka_unit_test(case_layers),      cmocka_unit_test(case_leaves),
        cmocka_unit_test(case_history),     cmocka_unit_test(case_not_finite),
        cmocka_unit_test(case_refused),     cmocka_unit_test(case_kept_bits),
    };
    const char *backend = device_backend(argc, argv);
    on_gpu = strcmp(backend, "cuda") == 0;
    device_open(&device, backend, (size_t)1 << 20);
    const struct tess_kernel_choices fast = {.fp8_fast = true};
    if (argc > 2 && device.kernel->ops->choose(device.kernel, &fast) != TESS_OK)
        return 1;
    char why[200] = "";
    int status = device.kernel->ops->supports(&layers[0], why, sizeof(why))
                     ? cmocka_run_group_tests_name(backend, cases, NULL, NULL)
                     : refused(backend, why);
    device_close(&device);
    return status;
}
