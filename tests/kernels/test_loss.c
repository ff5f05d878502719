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
    struct tess_xent how;
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
    const double smoothing = (double)c->how.smoothing, z = (double)c->how.z;
    double lse = log(sum) + x[best], all = 0, sizes = 0;
    for (int64_t k = 0; k < c->classes && smoothing > 0; k++) {
        all += (double)c->how.spread * x[k];
        sizes += (double)c->how.spread * fabs(x[k]);
    }
    double expected = log(sum) - ((1 - smoothing) * x[label] + all - x[best]) + z * lse * lse;
    /* Errors of lse, which its square has 2 z lse times, and of what is taken off it. */
    double bound =
        unit * (1 + fabs(expected) + fabs(x[label] - x[best]) + sizes) * (1 + 2 * z * fabs(lse));
    bound += smoothing > 0 || z > 0 ? unit * (fabs(x[label]) + fabs(x[best]) + z * lse * lse) : 0;
    check_close("loss", &loss, &expected, &bound, 1);
    assert_int_equal(correct, best == label);
    for (int64_t k = 0; c->grad && k < c->classes; k++) {
        double softmax = exp(x[k] - x[best]) / sum;
        softmax *= 1 + 2 * z * lse;
        expected =
            (double)c->scale * (softmax - (k == label ? 1 - smoothing : 0) - (double)c->how.spread);
        /* x - max is rounded in f32, which exp turns into a relative error */
        bound = (double)c->scale * (unit * (1 + fabs(x[k] - x[best])) * fabs(softmax) + 0x1p-23) +
                (double)c->scale * unit * 2 * z * fabs(lse) * exp(x[k] - lse) +
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
    tess_softmax_xent(device.kernel, c->dtype, c->rows, c->classes, c->how, c->scale, x_dev,
                      label_dev, c->grad ? d_dev : NULL, loss_dev, correct_dev);
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

/* Plain, with labels smoothed, with the square of lse, with both, in turn. */
static struct tess_xent how_of(int i, int64_t classes)
{
    const float smoothing = i % 4 % 2 ? 0.1f : 0;
    return (struct tess_xent){smoothing, smoothing / (float)classes, i % 4 / 2 ? 1e-3f : 0};
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
                              .how = how_of((int)(i + i / 4), classes[i / 4 % 8]),
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
                              .how = how_of((int)(i % 3), classes[i % 4]),
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
            tess_softmax_xent(device.kernel, TESS_F32, way ? 1 : ROWS, CLASSES,
                              (struct tess_xent){0}, 0.5f, x_dev + b * CLASSES, label_dev + b,
                              d[way] + b * CLASSES, loss[way] + b, correct + b);
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
        tess_softmax_xent(device.kernel, TESS_F32, 1, 10, (struct tess_xent){0}, 1, x_dev,
                          label_dev, NULL, loss_dev, correct_dev);
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

/*
 * PyTorch 1.13 in f64: CrossEntropyLoss(ignore_index=-100, label_smoothing), plus z times the mean
 * of logsumexp squared of the rows that count. Its mean is over 3 rows of 4.
 */
static void case_torch(void **state)
{
    (void)state;
    static const double x[20] = {1.5,  -2.0, 0.25, 3.0, -1.0, 0.5, 0.5,  -4.0, 2.0, 1.0,
                                 -1.0, 2.5,  2.25, 0.0, -3.5, 6.0, -6.0, 1.0,  4.5, 0.125};
    static const int32_t label[4] = {2, -100, 1, 4};
    static const struct {
        struct tess_xent how;
        double loss, grad[20];
    } want[] = {
        {{0, 0, 0}, 3.248096851, {0.056684751, 0.001711731, -0.317092880,
                                  0.254043430, 0.004652968, 0,
                                  0,           0,           0,
                                  0,           0.005315799, -0.157298248,
                                  0.137096262, 0.014449840, 0.000436347,
                                  0.270412848, 0.000001661, 0.001822027,
                                  0.060337262, -0.332573799}},
        {{0.1f, 0.02f, 0},
         3.293096851,
         {0.050018085,
          -0.004954935,
          -0.290426214,
          0.247376763,
          -0.002013699,
          0,
          0,
          0,
          0,
          0,
          -0.001350868,
          -0.130631582,
          0.130429595,
          0.007783173,
          -0.006230319,
          0.263746182,
          -0.006665005,
          -0.004844639,
          0.053670595,
          -0.305907133}},
        {{0, 0, 0.01f}, 3.445122258, {0.060393791, 0.001823734, -0.316030223,
                                      0.270666192, 0.004957424, 0,
                                      0,           0,           0,
                                      0,           0.005649467, -0.146248668,
                                      0.145701684, 0.015356845, 0.000463737,
                                      0.303993760, 0.000001868, 0.002048294,
                                      0.067830176, -0.332479477}},
        {{0.1f, 0.02f, 0.01f},
         3.490122258,
         {0.053727124,
          -0.004842932,
          -0.289363556,
          0.263999525,
          -0.001709242,
          0,
          0,
          0,
          0,
          0,
          -0.001017199,
          -0.119582001,
          0.139035017,
          0.008690178,
          -0.006202930,
          0.297327094,
          -0.006664799,
          -0.004618373,
          0.061163510,
          -0.305812811}},
    };
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        device_reset(&device);
        double loss[4], total = 0, bound[20];
        float *x_dev = device_put_real(&device, TESS_F32, x, 20);
        float *loss_dev = device_array(&device, sizeof(float) * 4);
        float *grad_dev = device_array(&device, sizeof(float) * 20);
        int32_t *label_dev = device_array(&device, sizeof(label));
        int32_t *correct_dev = device_array(&device, sizeof(label));
        device_put(&device, label_dev, label, sizeof(label));
        tess_softmax_xent(device.kernel, TESS_F32, 4, 5, want[i].how, 1.0f / 3, x_dev, label_dev,
                          grad_dev, loss_dev, correct_dev);
        device_get_real(&device, TESS_F32, loss_dev, loss, 4);
        for (int b = 0; b < 4; b++)
            total += loss[b] / 3;
        /* Figures have 9 decimals; values of f32 up to 6 have 16 of its roundings, as above. */
        for (int k = 0; k < 20; k++)
            bound[k] = 1e-9 + 16 * 0x1p-24;
        device_check(&device, "gradient of PyTorch", TESS_F32, grad_dev, want[i].grad, bound, 20);
        bound[0] = 1e-9 + 6 * 16 * 0x1p-24;
        check_close("loss of PyTorch", &total, &want[i].loss, bound, 1);
    }
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 2u << 20);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_f32),        cmocka_unit_test(case_bf16), cmocka_unit_test(case_f16),
        cmocka_unit_test(case_rows_alone), cmocka_unit_test(case_nan),  cmocka_unit_test(case_wide),
        cmocka_unit_test(case_random),     cmocka_unit_test(case_torch)};
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
