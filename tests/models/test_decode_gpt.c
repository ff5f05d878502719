/*
 * Generation against training: a decoder's logits of each token of a sequence, one position after
 * the other from weights in a file, adds up to the loss of the whole sequence at once.
 */
#include "core/decode.h"
#include "harness/scratch_file.h"
#include "models/model_driver.h"
#include "state/weights.h"

#include "tessera/registry.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH     21
#define VOCABULARY 77

static const char *kernel_name;

/* The driver's parameters, in the file's names and layouts. */
static void write_weights(const struct model_driver *driver)
{
    const struct tess_declare *declare = &driver->declare;
    size_t bytes;
    char *header = tess_weights_header(declare, &bytes);
    FILE *file = fopen(scratch_file, "wb");
    assert_non_null(header);
    assert_non_null(file);
    assert_int_equal(fwrite(header, 1, bytes, file), bytes);
    free(header);
    for (int32_t p = 0; p < declare->param_count; p++) {
        const struct tess_shape shape = tess_declare_file_shape(&declare->param[p]);
        const int64_t count = tess_shape_count(&shape);
        if (declare->param[p].flags & TESS_PARAM_TIED)
            continue;
        for (int64_t at = 0; at < count; at++) {
            const int64_t whole = tess_declare_turned(&declare->param[p])
                                      ? at % shape.dim[1] * shape.dim[0] + at / shape.dim[1]
                                      : at;
            assert_int_equal(fwrite(&driver->master[p][whole], sizeof(float), 1, file), 1);
        }
    }
    fclose(file);
}

/* Loss of a label by logits, in double. */
static double loss_of(const float *logits, int32_t label)
{
    double sum = 0;
    for (int v = 0; v < VOCABULARY; v++)
        sum += exp((double)logits[v] - logits[label]);
    return log(sum);
}

/* Logits after each of the driver's first `positions` tokens, [positions, vocabulary]; to be freed.
 */
static float *decode(const struct model_driver *driver, const char *kernel, int64_t positions)
{
    const int32_t vocabulary = driver->input.class_count;
    struct tess_decoder_config config = {.model = driver->model,
                                         .options = driver->options,
                                         .threads = 1,
                                         .dtype = driver->input.dtype,
                                         .context = LENGTH};
    struct tess_decoder *decoder = NULL;
    struct tess_weights *weights = NULL;
    float *logits = calloc((size_t)(positions * vocabulary), sizeof(*logits));
    assert_non_null(logits);
    assert_int_equal(tess_registry_get_kernel(kernel, &config.kernel), TESS_OK);
    assert_int_equal(tess_weights_open(scratch_file, &weights), TESS_OK);
    assert_int_equal(tess_decoder_open(&config, weights, &decoder), TESS_OK);
    tess_weights_close(weights);
    assert_int_equal(tess_decoder_vocabulary(decoder), vocabulary);
    for (int64_t p = 0; p < positions; p++)
        assert_int_equal(tess_decoder_step(decoder, ((const int32_t *)driver->x_low)[p], p,
                                           logits + p * vocabulary),
                         TESS_OK);
    tess_decoder_close(decoder);
    return logits;
}

/* Nothing but kernels touches what is the device's, and host and device agree where its memory is
 * far: the same bits of every logit. */
static void check_device(const struct model_driver *driver, const float *logits, int64_t positions)
{
    static const char *const kernel[] = {"guard", "guard_queue"};
    const size_t bytes = (size_t)(positions * driver->input.class_count) * sizeof(*logits);
    for (size_t k = 0; k < sizeof(kernel) / sizeof(kernel[0]); k++) {
        float *other = decode(driver, kernel[k], positions);
        assert_memory_equal(other, logits, bytes);
        free(other);
    }
}

/*
 * Both paths round at the same places and add in different orders: a row of a product, a softmax's
 * denominator. Initial weights are ten times as wide as by default, so logits are of size 1 and
 * more. In f32 the mean loss, near 5, then differs by a few 2^-24 of it (measured: at most 6e-8);
 * 1e-6 is for other machines. In bf16 and f16 an activation near the middle between two values may
 * go either way: 2^-9 or 2^-12 of itself each time, and on the mean of 21 positions less than that
 * (measured: 6e-4 and 5e-7).
 */
static void check(const char *const *argument, int argument_count, enum tess_dtype dtype)
{
    const double bound = dtype == TESS_F32 ? 1e-6 : dtype == TESS_BF16 ? 0x1p-9 : 0x1p-12;
    const struct tess_model_input input = {.row = tess_shape1(LENGTH),
                                           .class_count = VOCABULARY,
                                           .dtype = dtype,
                                           .tokens = true,
                                           .rows = 1,
                                           .leaf_rows = 1,
                                           .axis = {.parts = 1, .count = 1, .rank_count = 1}};
    struct model_driver driver;
    model_open_input(&driver, "gpt", kernel_name, &input, argument, argument_count);
    driver.training = false;
    const double whole = model_forward(&driver);
    write_weights(&driver);
    float *logits = decode(&driver, kernel_name, LENGTH);
    double mean = 0;
    for (int64_t p = 0; p < LENGTH; p++)
        mean += loss_of(logits + p * VOCABULARY, driver.label[p]) / LENGTH;
    if (!(fabs(mean - whole) <= bound * whole))
        fail_msg("%s: mean loss %.8g one by one, %.8g at once", tess_dtype_name(dtype), mean,
                 whole);
    if (strcmp(kernel_name, "ref") == 0)
        check_device(&driver, logits, LENGTH);
    free(logits);
    model_close(&driver);
}

#define COMMON "--layers=3", "--heads=4", "--width=32", "--init-deviation=0.2"

static void case_gpt2(void **unused)
{
    static const char *const argument[] = {COMMON};
    static const char *const untied[] = {COMMON, "--tied=off"};
    (void)unused;
    check(argument, 4, TESS_F32);
    check(argument, 4, TESS_BF16);
    check(argument, 4, TESS_F16);
    check(untied, 5, TESS_F32);
}

static void case_llama(void **unused)
{
    static const char *const argument[] = {COMMON, "--style=llama", "--kv-heads=2"};
    static const char *const tied[] = {COMMON, "--style=llama", "--kv-heads=1", "--tied=on"};
    (void)unused;
    check(argument, 6, TESS_F32);
    check(argument, 6, TESS_BF16);
    check(argument, 6, TESS_F16);
    check(tied, 7, TESS_F32);
}

/* An embedding of more than the 2^20 elements that go to far memory at a time. */
static void case_large(void **unused)
{
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_BF16};
    static const char *const argument[] = {"--layers=1", "--heads=2", "--width=128"};
    (void)unused;
    for (size_t i = 0; strcmp(kernel_name, "ref") == 0 && i < 2; i++) {
        const struct tess_model_input input = {.row = tess_shape1(LENGTH),
                                               .class_count = 8300,
                                               .dtype = dtype[i],
                                               .tokens = true,
                                               .rows = 1,
                                               .leaf_rows = 1,
                                               .axis = {.parts = 1, .count = 1, .rank_count = 1}};
        struct model_driver driver;
        model_open_input(&driver, "gpt", "ref", &input, argument, 3);
        assert_true(tess_shape_count(&driver.declare.param[0].shape) > INT64_C(1) << 20);
        write_weights(&driver);
        float *logits = decode(&driver, "ref", 2);
        assert_true(logits[0] != logits[1] && logits[8299] != 0);
        check_device(&driver, logits, 2);
        free(logits);
        model_close(&driver);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_gpt2),
        cmocka_unit_test(case_llama),
        cmocka_unit_test(case_large),
    };
    kernel_name = argc > 1 ? argv[1] : "ref";
    return cmocka_run_group_tests(cases, scratch_file_make, scratch_file_remove);
}
