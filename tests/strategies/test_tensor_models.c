/*
 * Models of images along the tensor axis: the same bits for the same parts on 1, 2 and 4 ranks,
 * with other axes beside them; as many parts as ranks within a bound of one rank; and bytes sent as
 * the models' declarations say.
 *
 *   test_tensor_models [threads] [processes] [guard] [cpu] [full]
 *
 * As in test_equivalence; full: all models, else the first three.
 */
#include "runs.h"

#include "tessera/log.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static enum tess_rank_mode axis_mode = TESS_RANKS_THREADS;
static const char *axis_kernel = "ref";
static bool axis_full;

struct axis_model {
    const char *options;
    int32_t layers; /* with parameters, one after the other */
    int32_t sums;   /* over the axis, in a pass forward and backward */
    bool narrow;    /* one of the sums is over the classes alone: 5 elements in a row */
};

static const struct axis_model axis_models[] = {
    {"--model mlp --mlp.hidden 24,19,16 --mlp.dropout 0.2", 4, 3, true},
    {"--model cnn --cnn.channels 8 --cnn.fc 12 --cnn.batch-norm on", 3, 1, false},
    {"--model cnn --cnn.channels 32,32 --cnn.fc 16 --f32-conv winograd", 4, 3, true},
    {"--model mlp --mlp.hidden 24,20 --mlp.dropout 0.2", 3, 1, false},
    {"--model cnn --cnn.channels 8,6 --cnn.fc 16 --cnn.dropout 0.2", 4, 3, true},
    {"--model wrn --wrn.depth 10 --wrn.width 1 --wrn.dropout 0.2", 8, 6, false},
};

enum { AXIS_MODELS = sizeof(axis_models) / sizeof(axis_models[0]) };

static const char *const axis_precision[] = {"f32", "bf16"};

static bool axis_skips(int32_t model)
{
    return !axis_full && model >= 3;
}

static struct run axis_run(const char *strategy, const char *options, int32_t rank_count)
{
    return (struct run){.strategy = strategy,
                        .kernel = axis_kernel,
                        .options = options,
                        .rank_count = rank_count,
                        .steps = 3,
                        .mode = axis_mode};
}

/* ---- the same bits --------------------------------------------------------------------------- */

#define AXIS_SAME                                                                                  \
    "--batch-size 48 --grid 8 --optimizer momentum --clip 0.5 --learning-rate 0.05 --bind=off "    \
    "--data.workers 0 --tensor.canonical 4 "

static const struct {
    const char *strategy, *options;
    int32_t ranks;
} axis_layouts[] = {
    {"tp", "", 1},
    {"tp", "", 2},
    {"tp", "", 4},
    {"ddp+tp", "--mesh data=2,tensor=4", 8},
    {"fsdp+tp+pp", "--mesh data=2,tensor=2,stage=2 --accumulate 2", 8},
};

/* Four parts, with evaluation in between, against as many on one rank. */
static void axis_same_bits(const struct axis_model *model, const char *precision)
{
    struct run_outcome expected;
    char words[512], more[640];
    snprintf(words, sizeof(words), AXIS_SAME "--precision %s %s", precision, model->options);
    struct run run = axis_run("single", words, 1);
    run.evaluate = true;
    run_train(&run, &expected);
    for (size_t l = 0; l < sizeof(axis_layouts) / sizeof(axis_layouts[0]); l++) {
        snprintf(more, sizeof(more), "%s %s", words, axis_layouts[l].options);
        run = axis_run(axis_layouts[l].strategy, more, axis_layouts[l].ranks);
        run.evaluate = true;
        run_compare(&run, &expected);
    }
}

static void test_same_bits(void **state)
{
    (void)state;
    for (int32_t m = 0; m < 2 * AXIS_MODELS; m++)
        if (!axis_skips(m % AXIS_MODELS))
            axis_same_bits(&axis_models[m % AXIS_MODELS], axis_precision[m / AXIS_MODELS]);
}

/* ---- as many parts as ranks ------------------------------------------------------------------ */

#define AXIS_ONE "--batch-size 48 --grid 8 --optimizer momentum --clip 100 --bind=off "

/*
 * Loss and norm of the gradient in the first step, from the same parameters, in f32: the bound of
 * tests/models/test_model_tensor.c without its share for a ReLU that decides otherwise, 10 sqrt(2 L
 * parts) u. A forgotten part would be far outside.
 */
static void axis_close(const struct axis_model *model, int32_t ranks)
{
    const double bound = 10 * sqrt(2.0 * model->layers * ranks) * 0x1p-24;
    struct run_outcome one, many;
    char words[512];
    snprintf(words, sizeof(words), AXIS_ONE "%s", model->options);
    struct run run = axis_run("single", words, 1);
    run.steps = 1;
    run_train(&run, &one);
    run = axis_run("tp", words, ranks);
    run.steps = 1;
    run_train(&run, &many);
    assert_true(one.loss > 0 && one.grad_norm > 0);
    assert_true(fabs(many.loss - one.loss) < bound * one.loss);
    assert_true(fabs(many.grad_norm - one.grad_norm) < bound * one.grad_norm);
    run_check_memory(&run, &many);
}

static void test_parts_of_ranks(void **state)
{
    (void)state;
    for (int32_t m = 0; m < AXIS_MODELS; m++)
        for (int32_t ranks = 2; ranks <= 4 && !axis_skips(m); ranks *= 2)
            axis_close(&axis_models[m], ranks);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

#define AXIS_SENT "--batch-size 192 --optimizer momentum --evaluate=off --bind=off "

struct axis_words {
    const char *options;
    uint64_t passes; /* forward and backward of a micro-batch, at most so many times in a step */
};

/*
 * An all-reduce of c elements over N ranks is cut into N slices at cache lines, of which a rank
 * sends c + (N-2) of its own slice; a slice is off c/N by fewer than 64 + N elements. Sums of 4 KiB
 * or less go another way where there are more than two ranks, which the formula leaves out.
 */
static void axis_sent(const struct axis_model *model, struct axis_words how, int32_t ranks)
{
    struct run_outcome outcome;
    char words[512];
    snprintf(words, sizeof(words), AXIS_SENT "%s %s", how.options, model->options);
    struct run run = axis_run("tp", words, ranks);
    run_train(&run, &outcome);
    const uint64_t slack =
        (uint64_t)model->sums * how.passes * (uint64_t)((ranks - 2) * (64 + ranks)) * sizeof(float);
    for (int32_t r = 0; r < ranks; r++) {
        const uint64_t sent = outcome.sent[r], formula = outcome.formula[r];
        if (sent == 0 || (sent > formula ? sent - formula : formula - sent) > slack)
            fail_msg("%s on %d ranks: rank %d sent %llu bytes, formula %llu", words, (int)ranks,
                     (int)r, (unsigned long long)sent, (unsigned long long)formula);
    }
}

static void test_sent_bytes(void **state)
{
    static const struct axis_words how[] = {{"--precision f32", 1},
                                            {"--precision f32 --accumulate 2", 2},
                                            {"--precision f32 --recompute full", 2},
                                            {"--precision f32 --tensor.canonical 8", 1},
                                            {"--precision bf16 --tensor.canonical 4", 1}};
    (void)state;
    for (int32_t m = 0; m < AXIS_MODELS; m++)
        for (int o = 0; o < 5 && !axis_skips(m); o++)
            for (int32_t ranks = 2; ranks <= (axis_models[m].narrow ? 2 : 4); ranks *= 2)
                axis_sent(&axis_models[m], how[o], ranks);
}

/* In bf16 without canonical sums half as many bytes cross. */
static void test_sent_bytes_bf16(void **state)
{
    static const struct axis_words how = {"--precision bf16", 1};
    (void)state;
    axis_sent(&axis_models[AXIS_MODELS - 1], how, 4);
    axis_sent(&axis_models[0], how, 2);
}

static void test_refused(void **state)
{
    struct run run = axis_run("tp", AXIS_ONE "--model mlp --mlp.hidden 24,20", 5);
    (void)state;
    assert_int_equal(run_plan(&run), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "1, 2, 3, 4, 6, 8, 12, 24 would"));
    run = axis_run("tp", AXIS_ONE "--model wrn --tensor.sequence-parallel=on", 2);
    assert_int_equal(run_plan(&run), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "wrn has no sequences"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),  cmocka_unit_test(test_parts_of_ranks),
        cmocka_unit_test(test_sent_bytes), cmocka_unit_test(test_sent_bytes_bf16),
        cmocka_unit_test(test_refused),
    };
    for (int i = 1; i < argc; i++) {
        axis_mode = strcmp(argv[i], "processes") == 0 ? TESS_RANKS_PROCESSES : axis_mode;
        axis_full = axis_full || strcmp(argv[i], "full") == 0;
        if (run_is_kernel(argv[i]))
            axis_kernel = argv[i];
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
