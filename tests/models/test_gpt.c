/*
 * Model gpt apart from its gradients (test_model_gradient), what it computes (test_gpt_reference),
 * its sums and memory (test_gpt_sums) and the tensor axis (test_gpt_parts): initial values, that it
 * learns, the padded vocabulary, order, dropout, decoding, and what it refuses.
 */
#include "gpt_fixture.h"

#include "models/layer.h"
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

static const char *gpt_kernel = "ref";

/* ---- initial values -------------------------------------------------------------------------- */

static double gpt_deviation(const struct model_driver *driver, const char *name)
{
    const int32_t param = model_find(driver, name);
    const int64_t count = model_param_count(driver, param);
    double square = 0;

    for (int64_t i = 0; i < count; i++)
        square += (double)driver->master[param][i] * driver->master[param][i];
    return sqrt(square / (double)count);
}

/* Four standard deviations of an estimate from n values are 4/sqrt(2 n) of it: 4.4 % for the 4096
 * of attention's output. The loss of so small weights is that of a guess. */
static void case_initial_values(void **unused)
{
    const struct gpt_words words = {{"--layers=8", "--width=64", NULL}};
    const struct tess_model_input input = gpt_input(8, 256, 2, 1);
    struct model_driver driver;

    (void)unused;
    model_open_input(&driver, "gpt", gpt_kernel, &input, words.word, gpt_count(&words));
    assert_true(fabs(gpt_deviation(&driver, "wte.weight") / 0.02 - 1) < 0.05);
    assert_true(fabs(gpt_deviation(&driver, "h.3.attn.c_attn.weight") / 0.02 - 1) < 0.05);
    assert_true(fabs(gpt_deviation(&driver, "h.3.attn.c_proj.weight") / 0.005 - 1) < 0.05);
    assert_true(fabs(gpt_deviation(&driver, "h.7.mlp.c_proj.weight") / 0.005 - 1) < 0.05);
    assert_true(gpt_deviation(&driver, "h.7.mlp.c_fc.bias") == 0);
    assert_true(fabs(model_forward(&driver) - log(256)) < 0.1);
    model_close(&driver);
}

/* Plain gradient descent on one batch, whose next tokens are to be learnt by heart. */
static void case_learns(void **unused)
{
    const struct gpt_words words[] = {
        {{"--layers=2", "--width=32", "--init-deviation=0.1", NULL}},
        {{"--style=llama", "--layers=2", "--width=32", "--init-deviation=0.1", NULL}}};

    (void)unused;
    for (int i = 0; i < 4; i++) {
        struct tess_model_input input = gpt_input(8, 20, 4, 2);
        struct model_driver driver;

        input.dtype = i < 2 ? TESS_F32 : TESS_BF16;
        gpt_open(&driver, gpt_kernel, &input, &words[i % 2]);
        const double first = model_forward(&driver);
        double loss = first;
        for (int step = 0; step < 400 && loss > first / 10; step++) {
            model_backward(&driver);
            for (int32_t p = 0; p < driver.declare.param_count; p++)
                if (!(driver.declare.param[p].flags & TESS_PARAM_TIED))
                    tess_accumulate(driver.kernel, model_param_count(&driver, p), -0.3f,
                                    driver.grad[p], driver.master[p]);
            model_refresh(&driver);
            loss = model_forward(&driver);
        }
        assert_true(first > 2.5 && first < 4);
        assert_true(loss <= first / 10);
        model_close(&driver);
    }
}

/* ---- vocabulary, order, dropout -------------------------------------------------------------- */

/*
 * Words beyond the vocabulary never win and never learn, whatever their weights are: 11 words of
 * 128, and 300 of 384 where the option asks for more than the data have.
 */
static void case_padded_vocabulary(void **unused)
{
    const struct gpt_words words[] = {
        {{"--layers=1", "--heads=2", "--width=8", NULL}},
        {{"--layers=1", "--heads=2", "--width=8", "--tied=off", "--vocab=300", NULL}}};
    const int64_t used[] = {11, 300}, padded[] = {128, 384};

    (void)unused;
    for (int i = 0; i < 2; i++) {
        const struct tess_model_input input = gpt_input(5, 11, 4, 2);
        struct model_driver driver;

        gpt_open(&driver, gpt_kernel, &input, &words[i]);
        const int32_t table = model_find(&driver, "wte.weight");
        const int32_t head = model_find(&driver, "lm_head.weight");
        assert_int_equal(driver.declare.param[table].whole.dim[0], padded[i]);
        assert_int_equal(tess_declare_file_shape(&driver.declare.param[table]).dim[0], used[i]);
        const double before = model_forward(&driver);
        for (int64_t k = used[i] * 8; k < padded[i] * 8; k++)
            driver.master[table][k] = driver.master[head][k] = 1e3f;
        model_refresh(&driver);
        assert_true(model_forward(&driver) == before);
        for (int r = 0; r < 4; r++)
            assert_in_range(driver.correct[r], 0, 5);
        model_backward(&driver);
        for (int64_t k = used[i] * 8; k < padded[i] * 8; k++)
            assert_true(driver.grad[table][k] == 0 && driver.grad[head][k] == 0);
        driver.training = false;
        assert_true(model_forward(&driver) == before);
        model_close(&driver);
    }
}

/* Labels that do not count, as in the last batch of an epoch: no loss, no gradient. */
static void case_padding_rows(void **unused)
{
    const struct tess_model_input input = gpt_input(6, 11, 4, 2);
    struct model_driver driver;

    (void)unused;
    gpt_open(&driver, gpt_kernel, &input, &gpt_small[0]);
    for (int i = 0; i < 4 * 6; i++)
        driver.label[i] = -1;
    assert_true(model_forward(&driver) == 0);
    model_backward(&driver);
    for (int32_t p = 0; p < driver.declare.param_count; p++)
        for (int64_t i = 0; i < model_param_count(&driver, p); i++)
            assert_true(driver.grad[p][i] == 0);
    model_close(&driver);
}

/* A position depends on what came before it in its own row, and on nothing else. */
static void case_causal(void **unused)
{
    enum { T = 8 };

    (void)unused;
    for (size_t i = 0; i < GPT_SMALL_COUNT; i++) {
        const struct tess_model_input input = gpt_input(T, 11, 2, 1);
        struct model_driver driver;

        gpt_open(&driver, gpt_kernel, &input, &gpt_small[i]);
        driver.training = false;
        for (int r = 0; r < 2; r++)
            for (int t = T / 2; t < T; t++)
                driver.label[r * T + t] = -1;
        model_forward(&driver);
        const float first = driver.loss[0], second = driver.loss[1];
        int32_t *token = driver.x_low;
        token[T / 2] = (token[T / 2] + 1) % 11;
        model_forward(&driver);
        assert_true(driver.loss[0] == first && driver.loss[1] == second);
        token[T / 2 - 1] = (token[T / 2 - 1] + 1) % 11;
        model_forward(&driver);
        assert_true(driver.loss[0] != first && driver.loss[1] == second);
        model_close(&driver);
    }
}

/* Masks differ from place to place, and are the same however an array is cut. */
static void case_dropout_places(void **unused)
{
    enum { COUNT = 4096 };
    struct model_driver driver;
    const struct tess_model_input input = gpt_input(6, 11, 2, 1);
    static float one[COUNT], whole[COUNT], part[COUNT];
    int64_t dropped = 0, both = 0;

    (void)unused;
    gpt_open(&driver, gpt_kernel, &input, &gpt_small[0]);
    struct tess_pass pass = {.kernel = driver.kernel, .training = true, .dtype = TESS_F32};
    for (int i = 0; i < COUNT; i++)
        one[i] = 1;
    tess__dropout_at(&pass, 0.5, 0, 1000, COUNT, one, whole);
    tess__dropout_at(&pass, 0.5, 0, 1000, 1001, one, part);
    tess__dropout_at(&pass, 0.5, 0, 2001, COUNT - 1001, one, part + 1001);
    assert_memory_equal(whole, part, sizeof(whole));
    tess__dropout_at(&pass, 0.5, 1, 1000, COUNT, one, part);
    for (int i = 0; i < COUNT; i++) {
        dropped += whole[i] == 0;
        both += whole[i] == 0 && part[i] == 0;
    }
    /* Halves and quarters, within five standard deviations of 32 and 28. */
    assert_in_range(dropped, COUNT / 2 - 160, COUNT / 2 + 160);
    assert_in_range(both, COUNT / 4 - 140, COUNT / 4 + 140);
    pass.training = false;
    tess__dropout_at(&pass, 0.5, 0, 0, COUNT, one, part);
    assert_memory_equal(one, part, sizeof(one));
    model_close(&driver);
}

/* ---- decoding -------------------------------------------------------------------------------- */

/*
 * Position by position against all at once: the loss of each position alone. A logit is the end of
 * a chain of a few hundred f32 operations on values of about 1 whose order differs in attention
 * alone: some sqrt(300) 2^-24 = 1e-6; 1e-5 leaves room for a loss of several.
 */
static void case_decode(void **unused)
{
    enum { T = 12, CLASSES = 11 };

    (void)unused;
    for (size_t i = 0; i < GPT_SMALL_COUNT; i++) {
        struct tess_model_input input = gpt_input(T, CLASSES, 1, 1);
        struct model_driver trained, decoder;
        int32_t label[T];

        gpt_open(&trained, gpt_kernel, &input, &gpt_small[i]);
        trained.training = false;
        memcpy(label, trained.label, sizeof(label));
        input.row = tess_shape1(1);
        input.decode = true;
        input.context = input.learnt = T;
        input.sequences = 1;
        gpt_open(&decoder, gpt_kernel, &input, &gpt_small[i]);
        assert_int_equal(decoder.declare.param_count, trained.declare.param_count);
        for (int t = 0; t < T; t++) {
            const float *logits = decoder.output[decoder.declare.unit_count - 1];
            double sum = 0;

            *(int32_t *)decoder.x_low = ((int32_t *)trained.x_low)[t];
            decoder.run = (struct tess_pass_run){.count = 1, .position = t};
            decoder.decode_place = t;
            model_forward(&decoder);
            for (int c = 0; c < CLASSES; c++)
                sum += exp((double)logits[c]);
            for (int k = 0; k < T; k++)
                trained.label[k] = k == t ? label[t] : -1;
            model_forward(&trained);
            assert_true(fabs(log(sum) - (double)logits[label[t]] - (double)trained.loss[0]) < 1e-5);
        }
        model_close(&trained);
        model_close(&decoder);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void gpt_check_refused(const struct gpt_words *words, const struct tess_model_input *input,
                              const char *part)
{
    struct tess_declare declare = {
        .rows = input->rows, .leaf_rows = input->leaf_rows, .dtype = TESS_F32};
    const struct tess_model_ops *ops;

    assert_int_equal(tess_registry_get_model("gpt", &ops), TESS_OK);
    void *options = model_read_options(ops, words->word, gpt_count(words));
    void *state = calloc(1, ops->state_size);
    assert_non_null(state);
    assert_int_equal(tess_declare_model(&declare, ops, state, options, input), TESS_ERR_USAGE);
    if (strstr(tess_log_last_error(), part) == NULL)
        fail_msg("'%s' does not contain '%s'", tess_log_last_error(), part);
    tess_declare_fini(&declare);
    free(options);
    free(state);
}

static void case_refusals(void **unused)
{
    const struct gpt_words heads = {{"--heads=5", "--width=16", NULL}};
    const struct gpt_words shared = {{"--heads=4", "--kv-heads=2", "--width=16", NULL}};
    const struct gpt_words groups = {
        {"--style=llama", "--heads=4", "--kv-heads=3", "--width=16", NULL}};
    const struct gpt_words odd = {{"--style=llama", "--heads=4", "--width=12", NULL}};
    const struct gpt_words gpt2 = {{"--qk-norm=on", NULL}};
    const struct gpt_words small = {{"--vocab=200", NULL}};
    const struct gpt_words brief = {{"--context=8", NULL}};
    const struct gpt_words cut = {
        {"--style=llama", "--heads=12", "--kv-heads=6", "--width=48", "--vocab=384", NULL}};
    const struct gpt_words none = {{NULL}};
    struct tess_model_input input = gpt_input(9, 256, 2, 1);

    (void)unused;
    gpt_check_refused(&heads, &input, "gpt.width 16 is not a multiple of gpt.heads 5");
    gpt_check_refused(&shared, &input, "only in --gpt.style llama");
    gpt_check_refused(&groups, &input, "gpt.kv-heads 3 does not divide gpt.heads 4");
    gpt_check_refused(&odd, &input, "heads of 3 channels");
    gpt_check_refused(&gpt2, &input, "gpt.qk-norm are of --gpt.style llama");
    gpt_check_refused(&small, &input, "smaller than the vocabulary of the data, 256");
    gpt_check_refused(&brief, &input, "9 positions do not fit into gpt.context 8");
    input.axis = (struct tess_tensor_axis){.parts = 4, .count = 1, .rank_count = 4};
    gpt_check_refused(&cut, &input, "1, 2 would");
    input.axis.parts = 2;
    input.axis.rank_count = 2;
    input.axis.sequence = true;
    gpt_check_refused(&none, &input, "cannot cut 9 positions into 2 equal runs");
    input = gpt_input(9, 256, 2, 1);
    input.tokens = false;
    gpt_check_refused(&none, &input, "needs samples of tokens");
    input.row = tess_shape3(28, 28, 1);
    gpt_check_refused(&none, &input, "needs samples of tokens");
    input = gpt_input(9, 256, 2, 1);
    input.decode = true;
    gpt_check_refused(&none, &input, "rows of one position");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_initial_values),
        cmocka_unit_test(case_learns),
        cmocka_unit_test(case_padded_vocabulary),
        cmocka_unit_test(case_padding_rows),
        cmocka_unit_test(case_causal),
        cmocka_unit_test(case_dropout_places),
        cmocka_unit_test(case_decode),
        cmocka_unit_test(case_refusals),
    };

    if (argc > 1)
        gpt_kernel = argv[1];
    return cmocka_run_group_tests(cases, NULL, NULL);
}
