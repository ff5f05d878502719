/*
 * Runs with one and with several threads for each rank's kernels (backend `cpu`): the same hash of
 * all parameters, loss and norm to the bit, for every model, in f32 and bf16, alone and on ranks;
 * and every rank allocates what its plan predicts, the scratch of threads included.
 */
#include "runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define SAME                                                                                       \
    "--grid 2 --optimizer adamw --clip 0.5 --learning-rate 0.01 --bind=off --data.workers 0 "

#define TOKENS SAME "--model gpt --data.length 24 --batch-size 4 --gpt.layers 2 --gpt.width 64 "

/* Large enough that operations have parts to share. */
static const char *const models[] = {
    SAME "--model mlp --mlp.hidden 300,160 --mlp.dropout 0.1 --batch-size 256",
    SAME "--model cnn --cnn.channels 8,32 --cnn.fc 40 --cnn.batch-norm on --batch-size 24",
    SAME "--model cnn --cnn.channels 16,24 --cnn.fc 40 --batch-size 12",
    SAME "--model cnn --cnn.channels 32,48 --cnn.fc 40 --batch-size 12 --f32-conv winograd",
    SAME "--model wrn --wrn.depth 10 --wrn.width 2 --batch-size 8",
    TOKENS "--gpt.heads 4 --gpt.vocab 400",
    TOKENS "--gpt.style llama --gpt.heads 4 --gpt.kv-heads 2 --gpt.ffn 96 --gpt.vocab 384",
};

static void same_bits(const char *precision)
{
    static const struct {
        const char *strategy;
        int32_t ranks;
        int threads;
    } layouts[] = {{"single", 1, 2}, {"single", 1, 3}, {"single", 1, 4}, {"ddp", 2, 1},
                   {"ddp", 2, 2},    {"fsdp", 2, 3},   {"dp", 2, 2}};
    char options[512];
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        struct run_outcome expected;
        snprintf(options, sizeof(options), "%s --precision %s --threads 1", models[m], precision);
        struct run run = {.options = options,
                          .strategy = "single",
                          .kernel = "cpu",
                          .rank_count = 1,
                          .steps = 3,
                          .evaluate = true,
                          .mode = TESS_RANKS_THREADS};
        run_train(&run, &expected);
        for (size_t l = 0; l < sizeof(layouts) / sizeof(layouts[0]); l++) {
            snprintf(options, sizeof(options), "%s --precision %s --threads %d", models[m],
                     precision, layouts[l].threads);
            run.strategy = layouts[l].strategy;
            run.rank_count = layouts[l].ranks;
            run_compare(&run, &expected);
        }
    }
}

static void test_f32(void **state)
{
    (void)state;
    same_bits("f32");
}

static void test_bf16(void **state)
{
    (void)state;
    same_bits("bf16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_f32), cmocka_unit_test(test_bf16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
