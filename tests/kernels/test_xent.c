/*
 * Cross-entropy over parts of the classes, of one backend (argv[1]), against the definition in
 * double: the classes in one piece and cut into several, with padding columns, ties, padding rows;
 * and against tess_softmax_xent.
 */
#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;

#define UNIT     0x1p-24
#define PART_MAX 4

/* Part p holds classes [cut[p], cut[p + 1]), in rows of `stride` with padding behind. */
struct xent_case {
    enum tess_dtype dtype;
    int64_t rows, classes, cut[PART_MAX + 1], stride;
    int parts;
    float scale;
    struct tess_xent how;
    double spread, *x; /* logits [rows, classes] in [-spread, spread) */
    int32_t *label;
};

/* What the parts gave, reduced, and what came of it. */
struct xent_result {
    float *max, *sum, *target, *best, *loss; /* [rows] each, in host memory */
    int32_t *correct;
    double *dlogits; /* [rows, classes] */
};

static void xent_draw(struct xent_case *c, uint64_t seed)
{
    struct draw draw = {seed};
    c->x = draw_reals(&draw, c->dtype, c->rows * c->classes);
    c->label = malloc((size_t)c->rows * sizeof(int32_t) + 1);
    for (int64_t i = 0; i < c->rows * c->classes; i++)
        c->x[i] = round_to(c->dtype, c->x[i] * c->spread);
    for (int64_t b = 0; b < c->rows; b++) {
        c->label[b] = (int32_t)draw_between(&draw, -1, c->classes - 1);
        if (b % 4 != 1 || c->classes < 3)
            continue;
        /* A tie for the first place, often in two parts: only the first one counts. */
        int64_t first = draw_between(&draw, 0, c->classes - 2);
        int64_t second = draw_between(&draw, first + 1, c->classes - 1);
        c->x[b * c->classes + first] = c->x[b * c->classes + second] = c->spread;
        c->label[b] = (int32_t)(b % 8 == 1 ? first : second);
    }
}

/* Equal pieces of ceil(classes / parts), as a table is cut; the last ones may be empty. */
static void xent_cut(struct xent_case *c, int parts, int64_t padding)
{
    int64_t width = (c->classes + parts - 1) / parts;
    c->parts = parts;
    c->stride = width + padding;
    for (int p = 0; p <= parts; p++)
        c->cut[p] = width * p < c->classes ? width * p : c->classes;
}

/* Logits of part p on the device; padding is NaN. */
static void *xent_put(const struct xent_case *c, int p)
{
    int64_t width = c->cut[p + 1] - c->cut[p];
    double *rows = reals(c->rows * c->stride);
    for (int64_t i = 0; i < c->rows * c->stride; i++)
        rows[i] = i % c->stride < width
                      ? c->x[i / c->stride * c->classes + c->cut[p] + i % c->stride]
                      : (double)NAN;
    void *dev = device_put_real(&device, c->dtype, rows, c->rows * c->stride);
    free(rows);
    return dev;
}

static float *xent_rows(const struct xent_case *c)
{
    return device_array(&device, (size_t)c->rows * sizeof(float));
}

/* to = to with from, as a communicator reduces. */
static void xent_reduce(const struct xent_case *c, bool max, const float *from_dev, float *to)
{
    float *from = device_fetch(&device, from_dev, (size_t)c->rows * sizeof(float));
    for (int64_t b = 0; b < c->rows; b++)
        to[b] = max ? fmaxf(to[b], from[b]) : to[b] + from[b];
    free(from);
}

static void xent_start(const struct xent_case *c, struct xent_result *r)
{
    float **const rows[] = {&r->max, &r->sum, &r->target, &r->best, &r->loss};
    for (int i = 0; i < 5; i++)
        *rows[i] = floats(c->rows);
    r->correct = malloc((size_t)c->rows * sizeof(int32_t) + 1);
    r->dlogits = reals(c->rows * c->classes);
    for (int64_t b = 0; b < c->rows; b++)
        r->max[b] = r->best[b] = -INFINITY;
}

static void xent_end(struct xent_result *r)
{
    void *const arrays[] = {r->max, r->sum, r->target, r->best, r->loss, r->correct, r->dlogits};
    for (int i = 0; i < 7; i++)
        free(arrays[i]);
}

/* The gradient of part p into result->dlogits, apart or over the logits; padding must be +0. */
static void xent_gradient(const struct xent_case *c, struct xent_result *r, int p, void *logits,
                          const int32_t *label, const float *max, const float *sum, bool over)
{
    int64_t count = c->rows * c->stride, width = c->cut[p + 1] - c->cut[p];
    size_t word = tess_dtype_bytes(c->dtype);
    void *out = over ? logits : device_array(&device, (size_t)count * word);
    double *d = reals(count);
    tess_xent_grad(device.kernel, c->dtype, c->rows, width, c->stride, c->cut[p], c->how, c->scale,
                   logits, label, max, sum, out);
    device_get_real(&device, c->dtype, out, d, count);
    char *bytes = device_fetch(&device, out, (size_t)count * word), zero[4] = {0};
    for (int64_t i = 0; i < count; i++) {
        if (i % c->stride < width)
            r->dlogits[i / c->stride * c->classes + c->cut[p] + i % c->stride] = d[i];
        else
            check_bytes("dlogits of padding", bytes + (size_t)i * word, zero, word);
    }
    free(d);
    free(bytes);
}

/* All rows as one sequence: the sums of what each gave, which were rounded one by one. */
static void xent_check_sequence(const struct xent_case *c, const struct xent_result *r,
                                const int32_t *label, float *const all[4])
{
    float *loss = xent_rows(c), sum;
    int32_t *correct = device_array(&device, sizeof(int32_t)), count, counted = 0;
    double total = 0, size = 0;
    tess_xent_loss(device.kernel, c->rows, c->rows, c->how, label, all[0], all[1], all[2], all[3],
                   loss, correct);
    device_get(&device, &sum, loss, sizeof(sum));
    device_get(&device, &count, correct, sizeof(count));
    for (int64_t b = 0; b < c->rows; b++) {
        total += (double)r->loss[b];
        size += fabs((double)r->loss[b]);
        counted += r->correct[b];
    }
    assert_int_equal(count, counted);
    assert_true(isnan(total) ? isnan(sum) : fabs((double)sum - total) <= 2 * UNIT * size);
}

static void xent_pass(const struct xent_case *c, struct xent_result *r, bool over)
{
    void *logits[PART_MAX];
    float *one[PART_MAX][4], *all[4], *loss = xent_rows(c);
    size_t bytes = (size_t)c->rows * sizeof(float);
    int32_t *label = device_array(&device, bytes), *correct = device_array(&device, bytes);
    device_put(&device, label, c->label, bytes);
    xent_start(c, r);
    for (int p = 0; p < c->parts; p++) {
        logits[p] = xent_put(c, p);
        for (int i = 0; i < 4; i++)
            one[p][i] = xent_rows(c);
        tess_xent_max(device.kernel, c->dtype, c->rows, c->cut[p + 1] - c->cut[p], c->stride,
                      logits[p], one[p][0], one[p][1], one[p][2], one[p][3]);
        xent_reduce(c, true, one[p][0], r->max);
    }
    all[0] = xent_rows(c);
    device_put(&device, all[0], r->max, bytes);
    for (int p = 0; p < c->parts; p++) {
        tess_xent_sum(device.kernel, c->dtype, c->rows, c->cut[p + 1] - c->cut[p], c->stride,
                      c->cut[p], c->how, logits[p], label, all[0], one[p][1], one[p][2], one[p][3]);
        xent_reduce(c, false, one[p][1], r->sum);
        xent_reduce(c, false, one[p][2], r->target);
        xent_reduce(c, true, one[p][3], r->best);
    }
    const float *const from[] = {r->max, r->sum, r->target, r->best};
    for (int i = 1; i < 4; i++) {
        all[i] = xent_rows(c);
        device_put(&device, all[i], from[i], bytes);
    }
    tess_xent_loss(device.kernel, c->rows, 1, c->how, label, all[0], all[1], all[2], all[3], loss,
                   correct);
    device_get(&device, r->loss, loss, bytes);
    device_get(&device, r->correct, correct, bytes);
    if (c->rows > 0)
        xent_check_sequence(c, r, label, all);
    for (int p = 0; p < c->parts; p++)
        xent_gradient(c, r, p, logits[p], label, all[0], all[1], over);
}

/* ---- bounds --------------------------------------------------------------------------------- */

/* One row in double. */
struct xent_facts {
    double max, sum, lse, target, loss;
    double sum_error, target_error, loss_error; /* bounds */
    int64_t best;
};

/*
 * u = 2^-24. exp is good to 16 u and feels the rounding of x - max; a sum of C terms, however cut,
 * loses C + parts more. The loss feels the sum's relative error, and roundings of max and target
 * themselves where the three are added in that order. Where labels are smoothed, target is a sum of
 * C + 1 terms; the square of lse has 2 z lse of the error of lse, and roundings of its own.
 */
static struct xent_facts xent_naive(const struct xent_case *c, int64_t b)
{
    const double *x = c->x + b * c->classes;
    struct xent_facts f = {.max = -INFINITY};
    for (int64_t k = 0; k < c->classes; k++) {
        if (x[k] > f.max) {
            f.max = x[k];
            f.best = k;
        }
    }
    double unit = ((double)(c->classes + c->parts) + 16) * UNIT;
    for (int64_t k = 0; k < c->classes; k++) {
        double term = exp(x[k] - f.max);
        f.sum += term;
        f.sum_error += term * (unit + UNIT * fabs(x[k] - f.max)) + 0x1p-126;
    }
    const double z = (double)c->how.z, keep = 1 - (double)c->how.smoothing;
    double target = c->label[b] < 0 ? 0 : x[c->label[b]], sizes = 0;
    f.target = keep * target;
    for (int64_t k = 0; k < c->classes && c->how.smoothing > 0; k++) {
        f.target += (double)c->how.spread * x[k];
        sizes += (double)c->how.spread * fabs(x[k]);
    }
    f.target_error = c->how.smoothing > 0 ? unit * sizes + 4 * UNIT * fabs(target) : 0;
    f.lse = log(f.sum) + f.max;
    f.loss = f.lse - f.target + z * f.lse * f.lse;
    f.loss_error = f.sum_error / f.sum + 16 * UNIT * fabs(log(f.sum)) +
                   4 * UNIT * (fabs(f.loss) + fabs(f.max) + fabs(target));
    f.loss_error += f.target_error + z * fabs(f.lse) * (2 * f.loss_error + 8 * UNIT * fabs(f.lse));
    return f;
}

static void check_gradient(const struct xent_case *c, const struct xent_result *r, int64_t b,
                           const struct xent_facts *f)
{
    for (int64_t k = 0; k < c->classes; k++) {
        double x = c->x[b * c->classes + k], softmax = exp(x - f->max) / f->sum;
        const double z = (double)c->how.z, factor = 1 + 2 * z * f->lse;
        const double own = k == c->label[b] ? 1 - (double)c->how.smoothing : 0;
        double want = c->label[b] < 0
                          ? 0
                          : (double)c->scale * (factor * softmax - own - (double)c->how.spread);
        double error =
            fabs(factor) * softmax * (f->sum_error / f->sum + UNIT * fabs(x - f->max) + 20 * UNIT) +
            2 * z * softmax * f->loss_error + 2 * UNIT + 0x1p-126;
        double bound = (double)c->scale * error * (1 + unit_of(c->dtype)) +
                       unit_of(c->dtype) * fabs(want) + tiny_of(c->dtype);
        bound = c->label[b] < 0 ? 0 : bound;
        check_close("dlogits", r->dlogits + b * c->classes + k, &want, &bound, 1);
    }
}

static void check_row(const struct xent_case *c, const struct xent_result *r, int64_t b)
{
    struct xent_facts f = xent_naive(c, b);
    double got[] = {(double)r->max[b], (double)r->sum[b], (double)r->target[b], (double)r->best[b],
                    (double)r->loss[b]};
    double want[] = {f.max, f.sum, f.target, -(double)f.best, c->label[b] < 0 ? 0 : f.loss};
    double bound[] = {0, f.sum_error, f.target_error, 0, c->label[b] < 0 ? 0 : f.loss_error};
    check_close("xent max, sum, target, best, loss", got, want, bound, 5);
    assert_int_equal(r->correct[b], c->label[b] >= 0 && f.best == c->label[b]);
    check_gradient(c, r, b, &f);
}

/* ---- cases ---------------------------------------------------------------------------------- */

/* In 1, 2 and 4 parts, gradients apart and over the logits, which must not matter. */
static void xent_run(struct xent_case *c, uint64_t seed)
{
    static const int parts[] = {1, 2, 4};
    xent_draw(c, seed);
    for (int i = 0; i < 3; i++) {
        struct xent_result apart, over;
        device_reset(&device);
        xent_cut(c, parts[i], (int64_t)seed % 3 * 5);
        xent_pass(c, &apart, false);
        xent_pass(c, &over, true);
        for (int64_t b = 0; b < c->rows; b++)
            check_row(c, &apart, b);
        check_bytes("dlogits over the logits", over.dlogits, apart.dlogits,
                    (size_t)(c->rows * c->classes) * sizeof(double));
        xent_end(&apart);
        xent_end(&over);
    }
    free(c->x);
    free(c->label);
}

/* Plain, with labels smoothed, with the square of lse, with both, in turn. */
static struct tess_xent how_of(int i, int64_t classes)
{
    const float smoothing = i % 4 % 2 ? 0.1f : 0;
    return (struct tess_xent){smoothing, smoothing / (float)classes, i % 4 / 2 ? 1e-3f : 0};
}

static void xent_all(enum tess_dtype dtype)
{
    static const int64_t rows[] = {1, 3, 16, 33}, classes[] = {1, 2, 3, 7, 16, 17, 100, 1000};
    static const double spread[] = {0, 1, 8, 120};
    for (size_t i = 0; i < 4 * 8 * 4; i++) {
        struct xent_case c = {.dtype = dtype,
                              .rows = rows[i % 4],
                              .classes = classes[i / 4 % 8],
                              .scale = i % 3 ? 1.0f / 128 : 1.0f,
                              .how = how_of((int)(i + i / 4), classes[i / 4 % 8]),
                              .spread = spread[i / 32]};
        xent_run(&c, 1800 + i);
    }
}

/* Rows that several warps share, with and without padding behind them, aligned and not. */
static void case_wide(void **state)
{
    (void)state;
    static const int64_t classes[] = {1025, 2555, 2560, 5003};
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    for (size_t i = 0; i < 4 * 3 * 3; i++) {
        struct xent_case c = {.dtype = dtypes[i / 12],
                              .rows = 2,
                              .classes = classes[i / 3 % 4],
                              .scale = 0.25f,
                              .how = how_of((int)(i % 4), classes[i / 3 % 4]),
                              .spread = i % 2 ? 60 : 4};
        xent_run(&c, 2400 + i); /* the seed's remainder by 3 sets the padding */
    }
}

static void case_f32(void **state)
{
    (void)state;
    xent_all(TESS_F32);
}

static void case_bf16(void **state)
{
    (void)state;
    xent_all(TESS_BF16);
}

static void case_f16(void **state)
{
    (void)state;
    xent_all(TESS_F16);
}

/* In one part: what tess_softmax_xent gives, up to the bounds of both; `correct` the same. */
static void case_whole(void **state)
{
    (void)state;
    struct xent_case c = {.rows = 40, .classes = 50, .scale = 0.25f, .spread = 6};
    struct xent_result r;
    device_reset(&device);
    xent_draw(&c, 77);
    xent_cut(&c, 1, 0);
    xent_pass(&c, &r, false);
    size_t bytes = (size_t)c.rows * sizeof(float);
    void *logits = xent_put(&c, 0), *dlogits = device_array(&device, 40 * 50 * sizeof(float));
    float *loss = xent_rows(&c);
    int32_t *label = device_array(&device, bytes), *correct = device_array(&device, bytes);
    device_put(&device, label, c.label, bytes);
    tess_softmax_xent(device.kernel, TESS_F32, c.rows, c.classes, c.how, c.scale, logits, label,
                      dlogits, loss, correct);
    int32_t *correct_host = device_fetch(&device, correct, bytes);
    double *loss_got = reals(c.rows), *loss_bound = reals(c.rows), *bound = reals(40 * 50);
    for (int64_t b = 0; b < c.rows; b++) {
        struct xent_facts f = xent_naive(&c, b);
        loss_got[b] = (double)r.loss[b];
        loss_bound[b] = c.label[b] < 0 ? 0 : 2 * f.loss_error;
        assert_int_equal(correct_host[b], r.correct[b]);
        for (int64_t k = 0; k < c.classes; k++)
            bound[b * c.classes + k] = 2 * (double)c.scale * (f.sum_error / f.sum + 30 * UNIT);
    }
    device_check(&device, "loss in one piece", TESS_F32, loss, loss_got, loss_bound, c.rows);
    device_check(&device, "dlogits in one piece", TESS_F32, dlogits, r.dlogits, bound, 40 * 50);
    xent_end(&r);
    free(correct_host);
    free(loss_got);
    free(loss_bound);
    free(bound);
    free(c.x);
    free(c.label);
}

/* A NaN logit must show in the loss, in whichever part it is. */
static void case_nan(void **state)
{
    (void)state;
    for (int at = 0; at < 10; at++) {
        for (int parts = 1; parts <= 4; parts++) {
            struct xent_case c = {.rows = 2, .classes = 10, .scale = 1, .spread = 3};
            struct xent_result r;
            device_reset(&device);
            xent_draw(&c, 5);
            c.x[at] = (double)NAN;
            c.label[0] = c.label[1] = 4;
            xent_cut(&c, parts, 1);
            xent_pass(&c, &r, false);
            assert_true(isnan(r.loss[0]));
            assert_true(isfinite(r.loss[1]));
            xent_end(&r);
            free(c.x);
            free(c.label);
        }
    }
}

static void case_random(void **state)
{
    (void)state;
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    struct draw draw = draw_shapes(43);
    for (int i = 0; i < 24; i++) {
        struct xent_case c = {.dtype = dtypes[i % 3],
                              .rows = draw_between(&draw, 1, 9),
                              .classes = draw_between(&draw, 1, 2500),
                              .scale = 1.0f / 64,
                              .spread = (double)draw_between(&draw, 1, 30)};
        xent_run(&c, draw_word(&draw) >> 1); /* its remainder by 3 sets the padding */
    }
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 768u << 10);
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_f32),   cmocka_unit_test(case_bf16),
                                       cmocka_unit_test(case_f16),   cmocka_unit_test(case_whole),
                                       cmocka_unit_test(case_nan),   cmocka_unit_test(case_wide),
                                       cmocka_unit_test(case_random)};
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
