/*
 * Models apart from their gradients: sizes, statistics of batch norm, evaluation, dropout, bf16,
 * that they learn, and what they refuse.
 */
#include "model_driver.h"

#include "tessera/log.h"
#include "tessera/registry.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *model_kernel = "ref";

static void check_total(const char *model, const char *const *argument, int argument_count,
                        int64_t expected, int32_t units)
{
    struct model_driver driver;

    model_open(&driver, model, model_kernel, TESS_F32, tess_shape3(28, 28, 1), 10, 2, 1, argument,
               argument_count);
    assert_int_equal(model_parameter_total(&driver), expected);
    assert_int_equal(driver.declare.unit_count, units);
    model_close(&driver);
}

static void case_parameter_counts(void **unused)
{
    const char *const hidden[] = {"--hidden=100"};
    const char *const norm[] = {"--batch-norm=on"};

    (void)unused;
    check_total("mlp", NULL, 0, (784 * 1024 + 1024) + (1024 * 1024 + 1024) + (1024 * 10 + 10), 3);
    check_total("mlp", hidden, 1, (784 * 100 + 100) + (100 * 10 + 10), 2);
    check_total("cnn", NULL, 0,
                (9 * 32 + 32) + (9 * 32 * 64 + 64) + (64 * 12 * 12 * 128 + 128) + (128 * 10 + 10),
                4);
    /* Batch norm: gamma and beta instead of the convolution's bias. */
    check_total("cnn", norm, 1,
                (9 * 32 + 64) + (9 * 32 * 64 + 128) + (64 * 12 * 12 * 128 + 128) + (128 * 10 + 10),
                4);
    /* wrn-10-2: block in -> out has 2 in + 9 in out + 2 out + 9 out out + in out parameters. */
    const int64_t blocks = (2 * 16 + 9 * 16 * 32 + 2 * 32 + 9 * 32 * 32 + 16 * 32) +
                           (2 * 32 + 9 * 32 * 64 + 2 * 64 + 9 * 64 * 64 + 32 * 64) +
                           (2 * 64 + 9 * 64 * 128 + 2 * 128 + 9 * 128 * 128 + 64 * 128);
    check_total("wrn", NULL, 0, 9 * 16 + blocks + 2 * 128 + (128 * 10 + 10), 5);
}

/*
 * Sums over the leaves of the mean and the unbiased variance of conv1's output, computed here in
 * double by the definition, against what backward leaves in the buffers' "gradients". The kernel
 * computes in f32: a convolution of 18 products has an error of some 18 * 2^-24 = 1e-6 of values
 * below 1, the variance of 40 such values not much more; 1e-4 is far above both and far below the
 * values.
 */
static void case_batch_norm_statistics(void **unused)
{
    enum { H = 7, W = 6, C = 2, OUT = 3, ROWS = 6, LEAF = 2 };
    const char *const argument[] = {"--channels=3", "--fc=4", "--batch-norm=on"};
    struct model_driver driver;

    (void)unused;
    model_open(&driver, "cnn", model_kernel, TESS_F32, tess_shape3(H, W, C), 4, ROWS, LEAF,
               argument, 3);
    model_forward(&driver);
    model_backward(&driver);

    const float *w = driver.master[model_find(&driver, "conv1.weight")];
    const float *mean_sum = driver.grad[model_find(&driver, "bn1.running_mean")];
    const float *var_sum = driver.grad[model_find(&driver, "bn1.running_var")];
    const int32_t count = LEAF * (H - 2) * (W - 2);
    for (int32_t out = 0; out < OUT; out++) {
        double means = 0, vars = 0;

        for (int32_t leaf = 0; leaf < ROWS / LEAF; leaf++) {
            double sum = 0, squares = 0;

            for (int32_t i = 0; i < count; i++) {
                const int32_t row = leaf * LEAF + i / ((H - 2) * (W - 2));
                const int32_t y = i / (W - 2) % (H - 2), x = i % (W - 2);
                double value = 0;

                for (int32_t k = 0; k < 9 * C; k++) {
                    const int32_t dy = k / (3 * C), dx = k / C % 3, c = k % C;
                    value += (double)w[out * 9 * C + k] *
                             driver.x[((row * H + y + dy) * W + x + dx) * C + c];
                }
                sum += value;
                squares += value * value;
            }
            means += sum / count;
            vars += (squares - sum * sum / count) / (count - 1);
        }
        assert_true(fabs(mean_sum[out] - means) < 1e-4);
        assert_true(fabs(var_sum[out] - vars) < 1e-4 && vars > 1e-2);
    }
    model_close(&driver);
}

/*
 * With the statistics of the one leaf as running averages, evaluation must give what training
 * gives. It then normalises with the unbiased variance, n/(n-1) of the other; undoing that factor
 * here leaves rounding alone, below 1e-4 for a loss of about 2.
 */
static void case_evaluation_uses_running_statistics(void **unused)
{
    const char *const argument[] = {"--channels=4", "--fc=8", "--batch-norm=on"};
    const float n = 8 * 6 * 6; /* rows and positions of one channel */
    struct model_driver driver;

    (void)unused;
    model_open(&driver, "cnn", model_kernel, TESS_F32, tess_shape3(8, 8, 1), 4, 8, 8, argument, 3);
    const double trained = model_forward(&driver);
    model_backward(&driver);
    driver.training = false;
    const double untouched = model_forward(&driver);

    const int32_t mean = model_find(&driver, "bn1.running_mean");
    const int32_t var = model_find(&driver, "bn1.running_var");
    for (int32_t c = 0; c < 4; c++) {
        driver.master[mean][c] = driver.grad[mean][c];
        driver.master[var][c] = driver.grad[var][c] * (n - 1) / n;
    }
    model_refresh(&driver);
    assert_true(fabs(model_forward(&driver) - trained) < 1e-4);
    assert_true(fabs(untouched - trained) > 1e-3);
    model_close(&driver);
}

/* The share of dropped outputs: 4 standard deviations of 64 * 200 draws at 0.25 are 0.015. */
static void case_dropout(void **unused)
{
    const char *const argument[] = {"--hidden=200", "--dropout=0.25"};
    const char *const none[] = {"--hidden=200"};
    struct model_driver with, without;
    int64_t active = 0, dropped = 0;

    (void)unused;
    model_open(&with, "mlp", model_kernel, TESS_F32, tess_shape1(30), 3, 64, 16, argument, 2);
    model_open(&without, "mlp", model_kernel, TESS_F32, tess_shape1(30), 3, 64, 16, none, 1);
    model_forward(&with);
    model_forward(&without);
    for (int64_t i = 0; i < 64 * 200; i++) {
        const float y = ((float *)with.output[0])[i], y0 = ((float *)without.output[0])[i];

        if (y0 == 0)
            continue;
        active++;
        dropped += y == 0;
        /* Two roundings, of 1/(1 - rate) and of the product. */
        assert_true(y == 0 || fabsf(y - y0 / 0.75f) <= 3e-7f * y0);
    }
    assert_true(fabs((double)dropped / (double)active - 0.25) < 0.03);

    const float *before = with.output[0];
    float *first = malloc(64 * 200 * sizeof(*first));
    assert_non_null(first);
    memcpy(first, before, 64 * 200 * sizeof(*first));
    with.step = 1;
    model_forward(&with);
    assert_memory_not_equal(first, with.output[0], 64 * 200 * sizeof(*first));
    free(first);

    with.training = without.training = false;
    assert_true(model_forward(&with) == model_forward(&without));
    model_close(&with);
    model_close(&without);
}

/*
 * Leaves that a layer is left out of have its input as output, the others what the layer without
 * layer drop gives; evaluation runs all. Draws depend on the leaf alone: in one pass of four leaves
 * or four of one.
 */
static void case_layer_drop(void **unused)
{
    enum { ROWS = 8, LEAF = 2, WIDTH = 30 };
    const char *const argument[] = {"--hidden=30", "--layer-drop=0.5", "--layer-drop-scope=leaf"};
    struct model_driver with, without;
    int dropped = 0;

    (void)unused;
    model_open(&with, "mlp", model_kernel, TESS_F32, tess_shape1(WIDTH), 3, ROWS, LEAF, argument,
               3);
    model_open(&without, "mlp", model_kernel, TESS_F32, tess_shape1(WIDTH), 3, ROWS, LEAF, argument,
               1);
    assert_true(with.declare.conditional && !without.declare.conditional);
    model_forward(&without);
    for (with.step = 0; with.step < 16; with.step++) {
        model_forward(&with);
        for (int leaf = 0; leaf < ROWS / LEAF; leaf++) {
            const struct tess_pass pass = {.seed = 7, .step = with.step};
            const bool drop = tess_pass_uniform(&pass, (uint64_t)leaf) < 0.5f;
            const float *expected = drop ? with.x : without.output[0];
            assert_memory_equal((float *)with.output[0] + leaf * LEAF * WIDTH,
                                expected + leaf * LEAF * WIDTH, LEAF * WIDTH * sizeof(float));
            dropped += drop;
        }
    }
    assert_in_range(dropped, 20, 44); /* 64 draws: 32 +- 3 standard deviations of 4 */
    with.training = without.training = false;
    assert_true(model_forward(&with) == model_forward(&without));
    model_close(&with);
    model_close(&without);
}

/* Plain gradient descent on one batch: the loss must fall to a tenth (it starts at about log 4). */
static void check_learns(const char *model, enum tess_dtype dtype, const char *const *argument,
                         int argument_count, float rate)
{
    struct model_driver driver;

    model_open(&driver, model, model_kernel, dtype, tess_shape3(8, 8, 1), 4, 8, 4, argument,
               argument_count);
    const double first = model_forward(&driver);
    double loss = first;
    for (int32_t step = 0; step < 200 && loss > first / 10; step++) {
        model_backward(&driver);
        for (int32_t i = 0; i < driver.declare.param_count; i++)
            if (!(driver.declare.param[i].flags & TESS_PARAM_BUFFER))
                tess_accumulate(driver.kernel, model_param_count(&driver, i), -rate, driver.grad[i],
                                driver.master[i]);
        model_refresh(&driver);
        loss = model_forward(&driver);
    }
    assert_true(first > 0.7 && first < 5);
    assert_true(loss <= first / 10);
    model_close(&driver);
}

static void case_learns(void **unused)
{
    const char *const mlp[] = {"--hidden=32,32"};
    const char *const cnn[] = {"--channels=8,8", "--fc=16"};
    const char *const norm[] = {"--channels=8,8", "--fc=16", "--batch-norm=on"};
    const char *const wrn[] = {"--depth=10", "--width=1"};

    (void)unused;
    for (int i = 0; i < 2; i++) {
        const enum tess_dtype dtype = i == 0 ? TESS_F32 : TESS_BF16;

        check_learns("mlp", dtype, mlp, 1, 0.3f);
        check_learns("cnn", dtype, cnn, 2, 0.3f);
        check_learns("cnn", dtype, norm, 3, 0.1f);
        check_learns("wrn", dtype, wrn, 2, 0.1f);
    }
}

static void check_refused(const char *model, struct tess_shape row, const char *const *argument,
                          int argument_count, const char *part)
{
    const struct tess_model_input input = {
        .row = row, .class_count = 10, .dtype = TESS_F32, .rows = 2, .leaf_rows = 1};
    struct tess_declare declare = {.rows = 2, .leaf_rows = 1, .dtype = TESS_F32};
    const struct tess_model_ops *ops;

    assert_int_equal(tess_registry_get_model(model, &ops), TESS_OK);
    void *options = model_read_options(ops, argument, argument_count);
    void *state = calloc(1, ops->state_size);
    assert_non_null(state);
    assert_int_equal(tess_declare_model(&declare, ops, state, options, &input), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), part));
    tess_declare_fini(&declare);
    free(options);
    free(state);
}

static void case_refusals(void **unused)
{
    const char *const depth[] = {"--depth=12"};
    const char *const drop[] = {"--hidden=20,10", "--layer-drop=0.1"};

    (void)unused;
    check_refused("cnn", tess_shape3(5, 28, 1), NULL, 0, "6 x 6 pixels at least");
    check_refused("cnn", tess_shape1(784), NULL, 0, "rows of rank 1");
    check_refused("wrn", tess_shape3(8, 12, 1), NULL, 0, "square images");
    check_refused("wrn", tess_shape3(8, 8, 1), depth, 1, "6 n + 4");
    check_refused("mlp", tess_shape1(30), drop, 2, "equal widths in a row");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_parameter_counts),
        cmocka_unit_test(case_batch_norm_statistics),
        cmocka_unit_test(case_evaluation_uses_running_statistics),
        cmocka_unit_test(case_dropout),
        cmocka_unit_test(case_layer_drop),
        cmocka_unit_test(case_learns),
        cmocka_unit_test(case_refusals),
    };

    if (argc > 1)
        model_kernel = argv[1];
    return cmocka_run_group_tests(cases, NULL, NULL);
}
