/* Softmax and cross-entropy of one backend (argv[1]) against the definition in double. */
#include "device.h"

#include <math.h>
#include <stdlib.h>

static struct device device;

/*
 * exp and log are good to a few units of f32; a sum of C terms loses C + 1 more. The loss is a
 * difference of numbers of the size of the logits. 16 units cover an exp that a backend makes by
 * itself.
 */
static double loss_unit(int64_t classes)
{
    return ((double)classes + 16) * 0x1p-24;
}

struct loss_case {
    enum tess_dtype dtype;
    int64_t rows, classes;
    float scale;
    double spread; /* logits in [-spread, spread) */
    bool grad;
};

static void check_row(const struct loss_case *c, const double *x, int32_t label, double loss,
                      int32_t correct, const double *dlogits)
{
    if (label < 0) {
        assert_true(loss == 0 && correct == 0);
        for (int64_t k = 0; c->grad && k < c->classes; k++)
            assert_true(dlogits[k] == 0);
        return;
    }
    int64_t best = 0;
    for (int64_t k = 1; k < c->classes; k++)
        if (x[k] > x[best])
            best = k;
    double sum = 0, unit = loss_unit(c->classes);
    for (int64_t k = 0; k < c->classes; k++)
        sum += exp(x[k] - x[best]);
    double expected = log(sum) - (x[label] - x[best]);
    double bound = unit * (1 + fabs(expected) + fabs(x[label] - x[best]));
    check_close("loss", &loss, &expected, &bound, 1);
    assert_int_equal(correct, best == label);
    for (int64_t k = 0; c->grad && k < c->classes; k++) {
        double softmax = exp(x[k] - x[best]) / sum;
        expected = (double)c->scale * (softmax - (k == label));
        /* x - max is rounded in f32, which exp turns into a relative error */
        bound = (double)c->scale * (unit * (1 + fabs(x[k] - x[best])) * softmax + 0x1p-23) +
                unit_of(c->dtype) * fabs(expected) + tiny_of(c->dtype);
        check_close("dlogits", dlogits + k, &expected, &bound, 1);
    }
}

static void loss_run(const struct loss_case *c, uint64_t seed)
{
    struct draw draw = {seed};
    int64_t count = c->rows * c->classes;
    device_reset(&device);
    double *x = draw_reals(&draw, c->dtype, count), *dlogits = reals(count), *loss = reals(c->rows);
    for (int64_t i = 0; i < count; i++)
        x[i] = round_to(c->dtype, x[i] * c->spread);
    int32_t *label = malloc((size_t)c->rows * sizeof(int32_t));
    int32_t *correct = malloc((size_t)c->rows * sizeof(int32_t));
    for (int64_t b = 0; b < c->rows; b++) {
        label[b] = (int32_t)draw_between(&draw, -1, c->classes - 1);
        if (b % 4 == 1 && c->classes > 2) /* a tie for the first place: only the first one counts */
            x[b * c->classes + 2] = x[b * c->classes + 1] = c->spread;
        if (b % 4 == 1 && c->classes > 2)
            label[b] = 1 + (int32_t)(b / 4 % 2);
    }
    void *x_dev = device_put_real(&device, c->dtype, x, count);
    void *d_dev = device_array(&device, (size_t)count * tess_dtype_bytes(c->dtype));
    int32_t *label_dev = device_array(&device, (size_t)c->rows * sizeof(int32_t));
    int32_t *correct_dev = device_array(&device, (size_t)c->rows * sizeof(int32_t));
    float *loss_dev = device_array(&device, (size_t)c->rows * sizeof(float));
    device_put(&device, label_dev, label, (size_t)c->rows * sizeof(int32_t));
    tess_softmax_xent(device.kernel, c->dtype, c->rows, c->classes, c->scale, x_dev, label_dev,
                      c->grad ? d_dev : NULL, loss_dev, correct_dev);
    device_get_real(&device, c->dtype, d_dev, dlogits, count);
    device_get_real(&device, TESS_F32, loss_dev, loss, c->rows);
    device_get(&device, correct, correct_dev, (size_t)c->rows * sizeof(int32_t));
    for (int64_t b = 0; b < c->rows; b++)
        check_row(c, x + b * c->classes, label[b], loss[b], correct[b], dlogits + b * c->classes);
    free(x);
    free(dlogits);
    free(loss);
    free(label);
    free(correct);
}

/* Spreads up to where exp overflows without the maximum taken off. */
static void loss_all(enum tess_dtype dtype)
{
    static const int64_t rows[] = {1, 3, 16, 33}, classes[] = {1, 2, 7, 10, 16, 17, 100, 1000};
    static const double spread[] = {0, 1, 8, 120};
    for (size_t i = 0; i < 4 * 8 * 4; i++) {
        struct loss_case c = {.dtype = dtype,
                              .rows = rows[i % 4],
                              .classes = classes[i / 4 % 8],
                              .scale = i % 3 ? 1.0f / 128 : 1.0f,
                              .spread = spread[i / 32],
                              .grad = i % 5 != 0};
        loss_run(&c, 600 + i);
    }
}

static void case_f32(void **state)
{
    (void)state;
    loss_all(TESS_F32);
}

static void case_bf16(void **state)
{
    (void)state;
    loss_all(TESS_BF16);
}

static void case_f16(void **state)
{
    (void)state;
    loss_all(TESS_F16);
}

/* Rows that several warps share, aligned and not. */
static void case_wide(void **state)
{
    (void)state;
    static const int64_t classes[] = {1024, 1025, 2560, 5003};
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    for (size_t i = 0; i < 2 * 4 * 3; i++) {
        struct loss_case c = {.dtype = dtypes[i / 8],
                              .rows = 3,
                              .classes = classes[i % 4],
                              .scale = 0.25f,
                              .spread = i / 4 % 2 ? 60 : 4,
                              .grad = true};
        loss_run(&c, 800 + i);
    }
}

/* What a row gets does not depend on the rows around it. */
static void case_rows_alone(void **state)
{
    (void)state;
    enum { ROWS = 19, CLASSES = 10 };
    struct draw draw = {21};
    device_reset(&device);
    double *x = draw_reals(&draw, TESS_F32, ROWS * CLASSES);
    int32_t label[ROWS];
    for (int b = 0; b < ROWS; b++)
        label[b] = b % CLASSES;
    float *x_dev = device_put_real(&device, TESS_F32, x, ROWS * CLASSES);
    int32_t *label_dev = device_array(&device, sizeof(label));
    device_put(&device, label_dev, label, sizeof(label));
    float *d[2], *loss[2], d_host[2][ROWS * CLASSES], loss_host[2][ROWS];
    int32_t *correct = device_array(&device, sizeof(label));
    for (int way = 0; way < 2; way++) {
        d[way] = device_array(&device, sizeof(d_host[0]));
        loss[way] = device_array(&device, sizeof(loss_host[0]));
        for (int b = 0; b < ROWS; b += way ? 1 : ROWS)
            tess_softmax_xent(device.kernel, TESS_F32, way ? 1 : ROWS, CLASSES, 0.5f,
                              x_dev + b * CLASSES, label_dev + b, d[way] + b * CLASSES,
                              loss[way] + b, correct + b);
        device_get(&device, d_host[way], d[way], sizeof(d_host[0]));
        device_get(&device, loss_host[way], loss[way], sizeof(loss_host[0]));
    }
    check_bytes("dlogits row by row", d_host[1], d_host[0], sizeof(d_host[0]));
    check_bytes("loss row by row", loss_host[1], loss_host[0], sizeof(loss_host[0]));
    free(x);
}

/* A NaN logit must show in the loss. */
static void case_nan(void **state)
{
    (void)state;
    for (int at = 0; at < 10; at++) {
        device_reset(&device);
        double x[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
        int32_t label = 4;
        x[at] = (double)NAN;
        float *x_dev = device_put_real(&device, TESS_F32, x, 10);
        int32_t *label_dev = device_array(&device, sizeof(label));
        float *loss_dev = device_array(&device, sizeof(float)), loss;
        int32_t *correct_dev = device_array(&device, sizeof(int32_t));
        device_put(&device, label_dev, &label, sizeof(label));
        tess_softmax_xent(device.kernel, TESS_F32, 1, 10, 1, x_dev, label_dev, NULL, loss_dev,
                          correct_dev);
        device_get(&device, &loss, loss_dev, sizeof(loss));
        assert_true(isnan(loss));
    }
}

/* Of any number of classes, every fourth time as many as a vocabulary has. */
static void case_random(void **state)
{
    (void)state;
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};
    struct draw draw = draw_shapes(41);
    for (int i = 0; i < 24; i++) {
        const bool large = i % 4 == 3;
        struct loss_case c = {.dtype = dtypes[i % 3],
                              .rows = draw_between(&draw, 1, large ? 3 : 20),
                              .classes = draw_between(&draw, 1, large ? 60000 : 1500),
                              .scale = 1.0f / 64,
                              .spread = (double)draw_between(&draw, 1, 30),
                              .grad = i % 5 != 0};
        loss_run(&c, draw_word(&draw));
    }
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 2u << 20);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_f32),        cmocka_unit_test(case_bf16), cmocka_unit_test(case_f16),
        cmocka_unit_test(case_rows_alone), cmocka_unit_test(case_nan),  cmocka_unit_test(case_wide),
        cmocka_unit_test(case_random)};
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
