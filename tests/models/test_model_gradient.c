/*
 * Gradients of whole models against central differences, parameter by parameter.
 *
 * For each parameter tensor w with gradient g, along directions d of random signs:
 *
 *     slope = (loss(w + h d) - loss(w - h d)) / 2h     against     g . d
 *
 * Random signs make g . d about |g| in size, whatever the tensor's shape, and let an error in any
 * element show. With h = e/|g| the loss moves by about e, and the slope is off by
 *
 *   - rounding: a loss of about 2 in f32, a mean over the rows, is right to some 1e-7, so the slope
 * to 1e-7/e |g|;
 *   - kinks: a ReLU's or max-pool's input within the step of its border changes the slope in
 * between, by a few hundredths of |g| in models as small as these; the share of such inputs grows
 * with e.
 *
 * Which is the greater depends on the tensor, so three steps are tried, several directions each,
 * and the best step's median counts. A gradient wrong by a factor of 1 + f has a median near 0.67 f
 * |g|, that of a standard normal, at every step; so has one that lacks a row, a leaf or a path with
 * f the share of |g| that is wrong. TOLERANCE finds f = 0.15; one missing row of 12 is about
 * 1/sqrt(12) = 0.3. Transformers have no kinks, so rounding alone is left: SMOOTH_TOLERANCE, five
 * times 1e-7/1e-4, finds f = 0.01.
 */
#include "model_driver.h"

#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOLERANCE        0.08
#define SMOOTH_TOLERANCE 0.005
#define DIRECTIONS       5

static const double gradient_step[] = {1e-4, 3e-5, 1e-5};
static const char *gradient_kernel = "ref";

static double gradient_sign(int32_t direction, int64_t i)
{
    const struct tess_rng_key key = tess_rng_key(1, TESS_RNG_TEST, (uint64_t)direction);

    return tess_rng_word(key, (uint64_t)i, 0) & 1 ? 1 : -1;
}

static double gradient_move(struct model_driver *driver, int32_t param, const float *start,
                            int32_t direction, double h)
{
    for (int64_t i = 0; i < model_param_count(driver, param); i++)
        driver->master[param][i] = (float)(start[i] + h * gradient_sign(direction, i));
    model_refresh(driver);
    return model_forward(driver);
}

static int gradient_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median of |slope - scale g . d| / |g| over the directions, for one step. */
static double gradient_median(struct model_driver *driver, int32_t param, const float *start,
                              const float *grad, double norm, double step, double scale)
{
    const double h = step / norm;
    double error[DIRECTIONS];

    for (int32_t d = 0; d < DIRECTIONS; d++) {
        double dot = 0;

        for (int64_t i = 0; i < model_param_count(driver, param); i++)
            dot += grad[i] * gradient_sign(d, i);
        const double up = gradient_move(driver, param, start, d, h);
        const double down = gradient_move(driver, param, start, d, -h);
        error[d] = fabs((up - down) / (2 * h) - scale * dot) / norm;
    }
    qsort(error, DIRECTIONS, sizeof(error[0]), gradient_compare);
    return error[DIRECTIONS / 2];
}

/* The best median of the steps; scale is 1 but where the check itself is tested. */
static double gradient_error(struct model_driver *driver, int32_t param, double scale)
{
    const int64_t count = model_param_count(driver, param);
    const size_t bytes = (size_t)count * sizeof(float);
    float *start = malloc(bytes), *grad = malloc(bytes);
    double square = 0, best = INFINITY;

    assert_non_null(start);
    assert_non_null(grad);
    model_forward(driver);
    model_backward(driver);
    memcpy(start, driver->master[param], bytes);
    memcpy(grad, driver->grad[param], bytes);
    for (int64_t i = 0; i < count; i++)
        square += (double)grad[i] * grad[i];
    assert_true(square > 0);
    for (size_t i = 0; i < sizeof(gradient_step) / sizeof(gradient_step[0]) && best > TOLERANCE / 4;
         i++)
        best = fmin(best, gradient_median(driver, param, start, grad, sqrt(square),
                                          gradient_step[i], scale));
    memcpy(driver->master[param], start, bytes);
    model_refresh(driver);
    free(start);
    free(grad);
    return best;
}

/* A parameter that was not used: the loss does not depend on it. */
static void gradient_check_flat(struct model_driver *driver, int32_t param)
{
    float *w = driver->master[param];
    const double before = model_forward(driver);

    for (int64_t i = 0; i < model_param_count(driver, param); i++)
        w[i] += 1;
    model_refresh(driver);
    assert_true(model_forward(driver) == before);
    for (int64_t i = 0; i < model_param_count(driver, param); i++)
        w[i] -= 1;
    model_refresh(driver);
}

/* The step is what draws are keyed by: all passes of a check have the same. Returns how many
 * parameters the model used. */
static int32_t gradient_check_input(const char *model, const struct tess_model_input *input,
                                    const char *const *argument, int argument_count, uint64_t step)
{
    const double tolerance = input->tokens ? SMOOTH_TOLERANCE : TOLERANCE;
    struct model_driver driver;
    int32_t used = 0;

    model_open_input(&driver, model, gradient_kernel, input, argument, argument_count);
    driver.step = step;
    if (input->tokens)
        model_disturb(&driver, 0.3f);
    model_forward(&driver);
    model_backward(&driver);
    for (int32_t i = 0; i < driver.declare.param_count; i++) {
        if (driver.declare.param[i].flags & (TESS_PARAM_BUFFER | TESS_PARAM_TIED))
            continue;
        used += driver.used[i];
        if (!driver.used[i]) {
            gradient_check_flat(&driver, i);
            continue;
        }
        const double error = gradient_error(&driver, i, 1);
        print_message("%s %-28s error %.5f\n", model, driver.declare.param[i].name, error);
        if (error > tolerance)
            fail_msg("%s: gradient of %s is off by %.4f of its norm, allowed is %.4f", model,
                     driver.declare.param[i].name, error, tolerance);
    }
    model_close(&driver);
    return used;
}

static int32_t gradient_check_step(const char *model, struct tess_shape row,
                                   const char *const *argument, int argument_count, uint64_t step)
{
    const struct tess_model_input input = {.row = row,
                                           .class_count = 5,
                                           .dtype = TESS_F32,
                                           .rows = 12,
                                           .leaf_rows = 4,
                                           .axis = {.parts = 1, .count = 1, .rank_count = 1}};

    return gradient_check_input(model, &input, argument, argument_count, step);
}

static void gradient_check(const char *model, struct tess_shape row, const char *const *argument,
                           int argument_count)
{
    gradient_check_step(model, row, argument, argument_count, 0);
}

/* In two parts along the tensor axis. */
static void gradient_check_parts(const char *model, struct tess_shape row,
                                 const char *const *argument, int argument_count)
{
    const struct tess_model_input input = {.row = row,
                                           .class_count = 5,
                                           .dtype = TESS_F32,
                                           .rows = 12,
                                           .leaf_rows = 4,
                                           .axis = {.parts = 2, .count = 2, .rank_count = 1}};

    gradient_check_input(model, &input, argument, argument_count, 0);
}

static void case_mlp(void **unused)
{
    const char *const argument[] = {"--hidden=20,15"};

    (void)unused;
    gradient_check("mlp", tess_shape3(5, 4, 1), argument, 1);
}

static void case_mlp_dropout(void **unused)
{
    /* The step number stands still, so that every pass has the same mask. */
    const char *const argument[] = {"--hidden=24,16", "--dropout=0.4"};

    (void)unused;
    gradient_check("mlp", tess_shape3(5, 4, 1), argument, 2);
}

/*
 * Three leaves, three layers that may be left out, of which the first reads the input. Over five
 * steps a layer runs for all leaves, for some and for none, also by leaves: then it has no
 * gradient, and the loss does not depend on it.
 */
static void case_mlp_layer_drop(void **unused)
{
    static const char *const scope[] = {"--layer-drop-scope=step", "--layer-drop-scope=leaf"};

    (void)unused;
    for (int s = 0; s < 2; s++) {
        const char *const argument[] = {"--hidden=16,16,12,12", "--layer-drop=0.5", scope[s],
                                        "--dropout=0.2"};
        int32_t used = 0;

        for (uint64_t step = 0; step < 5; step++)
            used += gradient_check_step("mlp", tess_shape3(4, 4, 1), argument, 4, step);
        assert_in_range(used, 2 * 10, 5 * 10 - 2);
    }
}

static void case_cnn(void **unused)
{
    const char *const argument[] = {"--channels=4,6", "--fc=16"};

    (void)unused;
    gradient_check("cnn", tess_shape3(10, 9, 2), argument, 2);
}

static void case_cnn_batch_norm(void **unused)
{
    const char *const argument[] = {"--channels=4,6,5", "--fc=16", "--batch-norm=on",
                                    "--dropout=0.3"};

    (void)unused;
    gradient_check("cnn", tess_shape3(10, 10, 1), argument, 4);
}

static void case_wrn(void **unused)
{
    /* With width 1 the first group's shortcut is x itself, those of the others are projections. */
    const char *const argument[] = {"--depth=10", "--width=1", "--dropout=0.2"};

    (void)unused;
    gradient_check("wrn", tess_shape3(6, 6, 1), argument, 3);
}

/* Cut by columns and rows, whole at the end; convolutions likewise, and a pool of either. */
static void case_parts(void **unused)
{
    const char *const mlp[] = {"--hidden=20,15", "--dropout=0.3"};
    const char *const cnn[] = {"--channels=4,6", "--fc=16", "--dropout=0.3"};
    const char *const norm[] = {"--channels=4,5,6", "--fc=16", "--batch-norm=on"};
    const char *const wrn[] = {"--depth=10", "--width=1", "--dropout=0.2"};

    (void)unused;
    gradient_check_parts("mlp", tess_shape3(5, 4, 1), mlp, 2);
    gradient_check_parts("cnn", tess_shape3(10, 9, 2), cnn, 3);
    gradient_check_parts("cnn", tess_shape3(10, 10, 1), norm, 3);
    gradient_check_parts("wrn", tess_shape3(6, 6, 1), wrn, 3);
}

/*
 * Three leaves of two rows of six positions, each in several chunks; 11 words, so that most of the
 * vocabulary is padding. The weights are larger than usual, so that each matters to the loss.
 */
static void gradient_check_gpt(const char *const *argument, int argument_count, int32_t parts)
{
    const struct tess_model_input input = {
        .row = tess_shape1(6),
        .class_count = 11,
        .dtype = TESS_F32,
        .tokens = true,
        .rows = 6,
        .leaf_rows = 2,
        .axis = {.parts = parts, .count = parts, .rank_count = 1}};

    gradient_check_input("gpt", &input, argument, argument_count, 0);
}

static void case_gpt2(void **unused)
{
    const char *const argument[] = {"--layers=2",           "--heads=4",   "--width=16",
                                    "--init-deviation=0.2", "--context=9", "--tied=auto",
                                    "--dropout=0"};

    (void)unused;
    gradient_check_gpt(argument, 7, 1);
    gradient_check_gpt(argument, 7, 4);
}

static void case_gpt2_untied_dropout(void **unused)
{
    const char *const argument[] = {
        "--layers=2", "--heads=2",     "--width=12", "--init-deviation=0.2",
        "--tied=off", "--dropout=0.2", "--ffn=20"};

    (void)unused;
    gradient_check_gpt(argument, 7, 1);
    gradient_check_gpt(argument, 7, 2);
}

static void case_llama(void **unused)
{
    const char *const argument[] = {"--style=llama", "--layers=2", "--heads=4",
                                    "--kv-heads=2",  "--width=16", "--init-deviation=0.2"};

    (void)unused;
    gradient_check_gpt(argument, 6, 1);
    gradient_check_gpt(argument, 6, 2);
}

static void case_llama_tied_dropout(void **unused)
{
    const char *const argument[] = {"--style=llama",        "--layers=1", "--heads=3",
                                    "--kv-heads=1",         "--width=12", "--ffn=10",
                                    "--init-deviation=0.2", "--tied=on",  "--dropout=0.2"};

    (void)unused;
    gradient_check_gpt(argument, 9, 1);
}

/* Queries and keys with biases and norms, heads wider than width / heads. */
static void case_qwen(void **unused)
{
    const char *const argument[] = {"--style=llama", "--layers=2",    "--heads=4",
                                    "--kv-heads=2",  "--width=12",    "--init-deviation=0.2",
                                    "--head-size=6", "--qkv-bias=on", "--qk-norm=on"};

    (void)unused;
    gradient_check_gpt(argument, 9, 1);
    gradient_check_gpt(argument, 9, 2);
}

static void case_detects_a_wrong_gradient(void **unused)
{
    const char *const argument[] = {"--channels=4,6", "--fc=16"};
    struct model_driver driver;
    int32_t caught = 0;

    (void)unused;
    model_open(&driver, "cnn", gradient_kernel, TESS_F32, tess_shape3(10, 9, 2), 5, 12, 4, argument,
               2);
    for (int32_t i = 0; i < driver.declare.param_count; i++)
        caught += gradient_error(&driver, i, 1.25) > TOLERANCE;
    assert_true(caught > driver.declare.param_count / 2);
    model_close(&driver);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_mlp),
        cmocka_unit_test(case_mlp_dropout),
        cmocka_unit_test(case_mlp_layer_drop),
        cmocka_unit_test(case_cnn),
        cmocka_unit_test(case_cnn_batch_norm),
        cmocka_unit_test(case_wrn),
        cmocka_unit_test(case_parts),
        cmocka_unit_test(case_gpt2),
        cmocka_unit_test(case_gpt2_untied_dropout),
        cmocka_unit_test(case_llama),
        cmocka_unit_test(case_llama_tied_dropout),
        cmocka_unit_test(case_qwen),
        cmocka_unit_test(case_detects_a_wrong_gradient),
    };

    if (argc > 1)
        gradient_kernel = argv[1];
    return cmocka_run_group_tests(cases, NULL, NULL);
}
