/*
 * mlp, cnn and wrn along the tensor axis, in parts on one rank: what is cut and what is not, the
 * same training as uncut but for rounding, the same dropped elements, and what is refused. Several
 * ranks are tests/strategies' business.
 */
#include "model_driver.h"

#include "tessera/log.h"
#include "tessera/registry.h"
#include "tessera/version.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *tensor_kernel = "ref";

enum { SIDE = 10, ROWS = 36, LEAF = 12, CLASSES = 5 };

/* A model in words, how many of its parameters are cut, and in how many places a ReLU, with or
 * without a pool, decides what passes. */
struct tensor_model {
    const char *model;
    int32_t cut, kinks;
    const char *word[6];
};

static const struct tensor_model tensor_models[] = {
    /* Columns and rows twice; a last layer that is whole. */
    {"mlp", 6, 3, {"--hidden=24,19,16", "--dropout=0.3"}},
    {"mlp", 3, 2, {"--hidden=24,20"}},
    /* fc1 by columns; by rows, of an image whose channels are cut. */
    {"cnn", 6, 3, {"--channels=8,6", "--fc=16", "--dropout=0.3"}},
    {"cnn", 3, 2, {"--channels=8", "--fc=10", "--dropout=0.3"}},
    /* Batch norm of whole and of cut channels, and the pool's. A norm has four of them. */
    {"cnn", 9, 3, {"--channels=8,6", "--fc=16", "--batch-norm=on"}},
    {"cnn", 12, 4, {"--channels=8,6,12", "--fc=10", "--batch-norm=on"}},
    {"wrn", 18, 7, {"--depth=10", "--width=1", "--dropout=0.2"}},
};

#define TENSOR_MODELS (sizeof(tensor_models) / sizeof(tensor_models[0]))

static int tensor_words(const struct tensor_model *model)
{
    int count = 0;

    while (model->word[count] != NULL)
        count++;
    return count;
}

static struct tess_model_input tensor_input(enum tess_dtype dtype, int32_t parts)
{
    return (struct tess_model_input){
        .row = tess_shape3(SIDE, SIDE, 2),
        .class_count = CLASSES,
        .dtype = dtype,
        .rows = ROWS,
        .leaf_rows = LEAF,
        .axis = {.parts = parts, .count = parts, .rank_count = 1},
    };
}

static void tensor_open(struct model_driver *driver, const struct tensor_model *model,
                        enum tess_dtype dtype, int32_t parts)
{
    const struct tess_model_input input = tensor_input(dtype, parts);

    model_open_input(driver, model->model, tensor_kernel, &input, model->word, tensor_words(model));
}

/* Distance of two arrays as a share of the first one's size. */
static double tensor_distance(const float *a, const float *b, int64_t count)
{
    double square = 0, error = 0;

    for (int64_t i = 0; i < count; i++) {
        square += (double)a[i] * a[i];
        error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    }
    return square > 0 ? sqrt(error / square) : sqrt(error);
}

/*
 * In parts a sum over the inputs of a layer is grouped otherwise, and its terms are rounded to the
 * run's type before they are added. With u the half of its last digit (f32 2^-24, bf16 2^-9) that
 * is an error of about sqrt(parts) u of the sum's size, in one sum for each layer and direction; L
 * layers add up to sqrt(2 L parts) u, and norms and the softmax may make it several times greater:
 * 10 sqrt(2 L parts) u.
 *
 * A ReLU or pool whose inputs differ by e of their deviation decides otherwise on a share of 0.4 e
 * of them, 0.4 being the density of the normal distribution at 0. Half of them pass a gradient, so
 * the gradient below is off by sqrt(0.8 e) of its size, over K of them sqrt(0.8 e K). e is several
 * times the sqrt(parts) u of one sum: 4. In f32 that is less than one element of these models, and
 * the seed is such that there is none.
 *
 * A part forgotten or taken twice is off by 1/sqrt(parts), 0.5 at least, in either type.
 */
static double tensor_bound(enum tess_dtype dtype, int32_t parts, int32_t kinks)
{
    const double u = dtype == TESS_F32 ? 0x1p-24 : 0x1p-9;
    const double rounding = 10 * sqrt(2.0 * (kinks + 1) * parts) * u;
    const double decided = sqrt(0.8 * 4 * sqrt(parts) * u * kinks);

    return dtype == TESS_F32 ? rounding : rounding + decided;
}

/* The parts of all parameters' gradients and statistics against those of the whole; the greatest
 * distance. */
static double tensor_worst(const struct model_driver *one, const struct model_driver *many)
{
    double worst = 0;

    for (int32_t p = 0; p < one->declare.param_count; p++) {
        const int64_t count = model_param_count(one, p);
        float *whole = calloc((size_t)count, sizeof(*whole));

        assert_non_null(whole);
        assert_int_equal(model_param_count(many, p), count);
        model_gather(many, p, many->grad[p], whole);
        worst = fmax(worst, tensor_distance(one->grad[p], whole, count));
        free(whole);
    }
    return worst;
}

static void tensor_compare(struct model_driver *one, const struct tensor_model *model,
                           enum tess_dtype dtype, int32_t parts)
{
    const double bound = tensor_bound(dtype, parts, model->kinks);
    struct model_driver many;

    tensor_open(&many, model, dtype, parts);
    model_forward(&many);
    model_backward(&many);
    const double loss = tensor_distance(one->loss, many.loss, ROWS);
    const double worst = tensor_worst(one, &many);
    print_message("%s %s in %d parts: loss off by %g, gradients by %g, allowed %g\n", model->model,
                  model->word[0], parts, loss, worst, bound);
    assert_true(loss < bound && worst < bound);
    model_close(&many);
}

static void case_parts(void **unused)
{
    (void)unused;
    for (size_t m = 0; m < 2 * TENSOR_MODELS; m++) {
        const enum tess_dtype dtype = m < TENSOR_MODELS ? TESS_F32 : TESS_BF16;
        const struct tensor_model *model = &tensor_models[m % TENSOR_MODELS];
        struct model_driver one;

        tensor_open(&one, model, dtype, 1);
        model_forward(&one);
        model_backward(&one);
        for (int32_t parts = 2; parts <= 4; parts *= 2)
            tensor_compare(&one, model, dtype, parts);
        model_close(&one);
    }
}

/* Batch norm by running statistics, no dropout; the same bound. */
static void case_evaluation(void **unused)
{
    (void)unused;
    for (size_t m = 0; m < TENSOR_MODELS; m++) {
        const struct tensor_model *model = &tensor_models[m];
        struct model_driver one, many;

        tensor_open(&one, model, TESS_F32, 1);
        tensor_open(&many, model, TESS_F32, 4);
        one.training = many.training = false;
        model_forward(&one);
        model_forward(&many);
        assert_true(tensor_distance(one.loss, many.loss, ROWS) <
                    tensor_bound(TESS_F32, 4, model->kinks));
        model_close(&one);
        model_close(&many);
    }
}

/* Rank 1 of 4: a quarter of what is cut, all of what is not. */
static void case_held(void **unused)
{
    (void)unused;
    for (size_t m = 0; m < TENSOR_MODELS; m++) {
        struct tess_model_input input = tensor_input(TESS_F32, 4);
        const struct tensor_model *model = &tensor_models[m];
        struct model_driver rank;
        int32_t cut = 0;

        input.axis.count = input.axis.first = input.axis.rank = 1;
        input.axis.rank_count = 4;
        model_open_input(&rank, model->model, tensor_kernel, &input, model->word,
                         tensor_words(model));
        for (int32_t p = 0; p < rank.declare.param_count; p++) {
            const struct tess_declare_param *param = &rank.declare.param[p];
            const int64_t parts = param->slice.axis < 0 ? 1 : 4;

            cut += param->slice.axis >= 0;
            assert_int_equal(model_param_count(&rank, p) * parts, tess_shape_count(&param->whole));
        }
        assert_int_equal(cut, model->cut);
        model_close(&rank);
    }
}

/* fc1 reads [4 x 4 pixels, 8 channels] as one vector; part 1 of four has channels 2 and 3. */
static void case_weights_of_an_image(void **unused)
{
    enum { PIXELS = 16, CHANNELS = 8, PART = 2, OUT = 10 };
    struct model_driver one, many;

    (void)unused;
    tensor_open(&one, &tensor_models[3], TESS_F32, 1);
    tensor_open(&many, &tensor_models[3], TESS_F32, 4);
    const int32_t fc1 = model_find(&one, "fc1.weight");
    const float *whole = one.master[fc1], *part = many.master[fc1] + OUT * PIXELS * PART;
    for (int32_t i = 0; i < OUT * PIXELS; i++)
        assert_memory_equal(part + i * PART, whole + i * CHANNELS + PART, PART * sizeof(*part));
    model_close(&one);
    model_close(&many);
}

/* The mask is that of the whole, in four parts as in one. An output that is 0 in one of them alone
 * was dropped there alone: rounding does not bring a sum of 200 products to 0. */
static void case_dropout(void **unused)
{
    enum { WIDTH = 24, PARTS = 4, PART = WIDTH / PARTS };
    struct model_driver one, many;
    int32_t zeros = 0;

    (void)unused;
    tensor_open(&one, &tensor_models[0], TESS_F32, 1);
    tensor_open(&many, &tensor_models[0], TESS_F32, PARTS);
    one.row_first = many.row_first = 5;
    model_forward(&one);
    model_forward(&many);
    for (int32_t row = 0; row < ROWS; row++)
        for (int32_t i = 0; i < WIDTH; i++) {
            const float whole = ((float *)one.output[0])[row * WIDTH + i];
            const float part = ((float *)many.output[0])[(i / PART * ROWS + row) * PART + i % PART];

            assert_int_equal(whole == 0, part == 0);
            zeros += whole == 0;
        }
    assert_in_range(zeros, ROWS * WIDTH / 2, ROWS * WIDTH * 4 / 5);
    model_close(&one);
    model_close(&many);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void check_refused(const struct tess_model_ops *ops, const char *const *argument,
                          int argument_count, struct tess_tensor_axis axis, const char *part)
{
    struct tess_model_input input = tensor_input(TESS_F32, 1);
    struct tess_declare declare = {.rows = ROWS, .leaf_rows = LEAF, .dtype = TESS_F32};
    void *options = model_read_options(ops, argument, argument_count);
    void *state = calloc(1, ops->state_size + 1);

    assert_non_null(state);
    input.axis = axis;
    assert_int_equal(tess_declare_model(&declare, ops, state, options, &input), TESS_ERR_USAGE);
    if (strstr(tess_log_last_error(), part) == NULL)
        fail_msg("'%s' is not in: %s", part, tess_log_last_error());
    tess_declare_fini(&declare);
    free(options);
    free(state);
}

static void case_widths_that_do_not_divide(void **unused)
{
    static const struct {
        const char *model, *argument[2];
        int32_t parts;
        const char *part;
    } refused[] = {
        {"mlp", {"--hidden=24,19,18", "--dropout=0"}, 4, "layers 1, 3, 5, ...; 1, 2, 3, 6 would"},
        {"mlp", {"--hidden=24,19,17", "--dropout=0"}, 2, "; 1 would"},
        {"cnn", {"--channels=8,6", "--fc=20"}, 8, "and the width cnn.fc; 1, 2, 4 would"},
        {"cnn", {"--channels=8", "--fc=5"}, 3, "convolutions 1, 3, ...; 1, 2, 4, 8 would"},
        {"wrn", {"--depth=10", "--width=1"}, 3, "16 wrn.width"},
        {"mlp", {"--hidden=20,20", "--layer-drop=0.1"}, 2, "layer-drop does not go with a tensor"},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        const struct tess_model_ops *ops;
        const int32_t parts = refused[i].parts;

        assert_int_equal(tess_registry_get_model(refused[i].model, &ops), TESS_OK);
        check_refused(ops, refused[i].argument, 2,
                      (struct tess_tensor_axis){.parts = parts, .count = parts, .rank_count = 1},
                      refused[i].part);
    }
}

static void case_no_sequences(void **unused)
{
    static const char *const model[] = {"mlp", "cnn", "wrn"};

    (void)unused;
    for (int i = 0; i < 3; i++) {
        const struct tess_model_ops *ops;

        assert_int_equal(tess_registry_get_model(model[i], &ops), TESS_OK);
        check_refused(
            ops, NULL, 0,
            (struct tess_tensor_axis){.parts = 2, .count = 1, .rank_count = 2, .sequence = true},
            "leave out --tensor.sequence-parallel");
    }
}

static enum tess_status heedless_declare(void *state, const void *options,
                                         const struct tess_model_input *input,
                                         struct tess_declare *declare)
{
    (void)state, (void)options;
    tess_declare_unit(declare, "all", tess_shape1(input->class_count));
    return TESS_OK;
}

/* A model that ignores the axis would train, every rank all of it, and pass for cut. */
static void case_heedless_model(void **unused)
{
    static const struct tess_option none[] = {{.name = NULL}};
    const struct tess_model_ops ops = {
        .abi = TESS_ABI, .name = "heedless", .options = none, .declare = heedless_declare};
    const struct tess_model_input input = tensor_input(TESS_F32, 1);
    struct tess_declare declare = {.rows = ROWS, .leaf_rows = LEAF, .dtype = TESS_F32};

    (void)unused;
    assert_int_equal(tess_declare_model(&declare, &ops, NULL, NULL, &input), TESS_OK);
    tess_declare_fini(&declare);
    check_refused(&ops, NULL, 0, (struct tess_tensor_axis){.parts = 2, .count = 2, .rank_count = 1},
                  "'heedless' cannot be cut along the tensor axis");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_parts),        cmocka_unit_test(case_evaluation),
        cmocka_unit_test(case_held),         cmocka_unit_test(case_weights_of_an_image),
        cmocka_unit_test(case_dropout),      cmocka_unit_test(case_widths_that_do_not_divide),
        cmocka_unit_test(case_no_sequences), cmocka_unit_test(case_heedless_model),
    };

    if (argc > 1)
        tensor_kernel = argv[1];
    return cmocka_run_group_tests(cases, NULL, NULL);
}
