/*
 * What a model may have besides: attention with a window and with dropout, a gate of GELU, packed
 * samples; and running averages of batch norm that each leaf updates. The same bits under every
 * strategy, on any number of ranks, of parts of the tensor axis and of stages; and each option
 * counts.
 *
 *   test_variants [cpu]
 */
#include "runs.h"

#include "harness/scratch_file.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *variants_kernel = "ref";

static struct run variants_run(const char *strategy, const char *options, int32_t ranks)
{
    return (struct run){.strategy = strategy,
                        .kernel = variants_kernel,
                        .options = options,
                        .rank_count = ranks,
                        .steps = 3,
                        .evaluate = true,
                        .mode = TESS_RANKS_THREADS};
}

#define GPT                                                                                        \
    "--model gpt --data.length 40 --gpt.layers 3 --gpt.heads 4 --gpt.width 16 --gpt.vocab 300 "    \
    "--batch-size 16 --grid 8 --tensor.canonical 4 --optimizer momentum --learning-rate 0.05 "     \
    "--bind=off --data.workers 0 "
#define WINDOW  "--gpt.window 7 --gpt.window-from 1 "
#define DROPOUT "--gpt.attention-dropout 0.3 "
#define GATE    "--gpt.gate gelu --gpt.gelu erf "
#define LLAMA   "--gpt.style llama "

#define CNN                                                                                        \
    "--model cnn --cnn.channels 8 --cnn.fc 12 --cnn.batch-norm on --batch-size 48 --grid 8 "       \
    "--tensor.canonical 4 --optimizer momentum --learning-rate 0.05 --bind=off --data.workers 0 "
#define MICRO "--bn.accumulate micro "

static const struct {
    const char *strategy, *options;
    int32_t ranks;
} axes[] = {
    {"tp", "", 2},
    {"tp", "", 4},
    {"pp", "--accumulate 4", 2},
    {"fsdp+tp+pp", "--mesh data=2,tensor=2,stage=2 --accumulate 2", 8},
    {"single", "--accumulate 8 --recompute full", 1},
};

static void check_layouts(const char *options, const struct run_outcome *expected)
{
    char words[640];
    const int turn = TESTS_DIVISOR > 1 ? 4 : 1; /* sanitizers: minutes */
    for (int l = 0; l < run_layout_count; l += turn) {
        snprintf(words, sizeof(words), "%s%s", options, run_layouts[l].options);
        const struct run run = variants_run(run_layouts[l].strategy, words, 2 + 2 * (l % 2));
        run_compare(&run, expected);
    }
    for (size_t l = 0; l < sizeof(axes) / sizeof(axes[0]); l++) {
        snprintf(words, sizeof(words), "%s%s", options, axes[l].options);
        const struct run run = variants_run(axes[l].strategy, words, axes[l].ranks);
        run_compare(&run, expected);
    }
}

/* Each of the last options alone makes another hash than without. Its accesses are those of all
 * options together, which sanitizers have seen. */
static void check_each(const char *const *options, int count)
{
    uint64_t hash[8];
    if (TESTS_DIVISOR > 1)
        return;
    for (int i = 0; i < count; i++) {
        struct run_outcome outcome;
        const struct run run = variants_run("single", options[i], 1);
        run_train(&run, &outcome);
        hash[i] = outcome.hash;
        for (int k = 0; k < i; k++)
            if (hash[k] == hash[i])
                fail_msg("'%s' and '%s' have the same hash", options[k], options[i]);
    }
}

static void test_attention(void **state)
{
    static const char *const all = GPT LLAMA WINDOW DROPOUT GATE;
    static const char *const each[] = {GPT,
                                       GPT WINDOW,
                                       GPT DROPOUT,
                                       GPT LLAMA,
                                       GPT LLAMA GATE,
                                       GPT LLAMA "--gpt.gate gelu ",
                                       GPT "--gpt.window 7 "};
    struct run_outcome expected;
    (void)state;
    const struct run run = variants_run("single", all, 1);
    run_train(&run, &expected);
    check_layouts(all, &expected);
    check_each(each, sizeof(each) / sizeof(each[0]));
}

static void test_micro(void **state)
{
    static const char *const each[] = {CNN, CNN MICRO};
    struct run_outcome expected;
    (void)state;
    const struct run run = variants_run("single", CNN MICRO, 1);
    run_train(&run, &expected);
    check_layouts(CNN MICRO, &expected);
    check_each(each, 2);
}

/* ---- what micro-batches do to running averages ------------------------------------------------
 */

enum { CHANNELS = 8 };

/* A tensor of the weights that the run wrote. */
static void read_tensor(const char *name, float x[CHANNELS])
{
    uint64_t bytes;
    FILE *file = fopen(scratch_file, "rb");
    assert_non_null(file);
    assert_int_equal(fread(&bytes, sizeof(bytes), 1, file), 1);
    char *text = calloc(1, bytes + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, bytes, file), bytes);
    json_t *header = json_loads(text, 0, NULL);
    const json_t *at = json_object_get(json_object_get(header, name), "data_offsets");
    assert_int_equal(json_array_size(at), 2);
    const long begin = (long)json_integer_value(json_array_get(at, 0));
    assert_int_equal(json_integer_value(json_array_get(at, 1)) - begin, CHANNELS * sizeof(float));
    assert_int_equal(fseek(file, (long)(8 + bytes) + begin, SEEK_SET), 0);
    assert_int_equal(fread(x, sizeof(float), CHANNELS, file), CHANNELS);
    json_decref(header);
    free(text);
    fclose(file);
}

/*
 * A step of four micro-batches leaves the averages that four steps of one each leave, of a rate of
 * learning of 0, as in PyTorch; and another one where the step updates them once.
 */
static void test_averages(void **state)
{
#define STILL                                                                                      \
    "--model cnn --cnn.channels 8 --cnn.fc 12 --cnn.batch-norm on --optimizer sgd "                \
    "--learning-rate 0 --bind=off --data.workers 0 "
    static const char *const name[] = {"bn1.running_mean", "bn1.running_var"};
    static const struct {
        const char *options;
        int32_t steps;
    } way[] = {{STILL "--batch-size 12 --grid 1", 4},
               {STILL "--batch-size 48 --grid 4 " MICRO, 1},
               {STILL "--batch-size 48 --grid 4 --accumulate 4 " MICRO, 1},
               {STILL "--batch-size 48 --grid 4", 1}};
    float x[4][2][CHANNELS];
    (void)state;
    for (int w = 0; w < 4; w++) {
        struct run_outcome outcome;
        struct run run = variants_run("single", way[w].options, 1);
        run.steps = way[w].steps;
        run.evaluate = false;
        run.save = scratch_file;
        run_train(&run, &outcome);
        for (int t = 0; t < 2; t++)
            read_tensor(name[t], x[w][t]);
    }
    for (int t = 0; t < 2; t++)
        for (int c = 0; c < CHANNELS; c++) {
            /* Some twenty roundings of sums of numbers of one size. */
            const float bound = 0x1p-19f * (fabsf(x[0][t][c]) + 1e-3f);
            assert_true(fabsf(x[1][t][c] - x[0][t][c]) < bound);
            assert_true(x[2][t][c] == x[1][t][c]);
            assert_true(fabsf(x[3][t][c] - x[0][t][c]) > 100 * bound);
        }
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (run_is_kernel(argv[i]))
            variants_kernel = argv[i];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_micro),
        cmocka_unit_test(test_averages),
    };
    return cmocka_run_group_tests(tests, scratch_file_make, scratch_file_remove);
}
