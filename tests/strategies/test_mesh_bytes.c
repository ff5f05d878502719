/*
 * What ranks of a mesh send along each axis is what the formulas say, byte for byte; and what a
 * mesh does to the memory of a rank.
 */
#include "runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BYTES_COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

#define BYTES_GPT                                                                                  \
    "--model gpt --data.length 8 --batch-size 16 --gpt.layers 4 --gpt.width 16 --gpt.vocab 300 "   \
    "--bind=off --data.workers 0 --grid 8 --optimizer adamw "
#define BYTES_LLAMA                                                                                \
    BYTES_GPT "--gpt.style llama --gpt.layers 5 --gpt.kv-heads 2 --gpt.ffn 16 --precision bf16 "   \
              "--gpt.head-size 6 --gpt.qkv-bias on --gpt.qk-norm on "

struct bytes_layout {
    int32_t ranks;
    const char *strategy, *options;
};

static void bytes_train(const struct bytes_layout *layout, const char *options,
                        struct run_outcome *outcome_out)
{
    char words[512];
    snprintf(words, sizeof(words), "%s %s", options, layout->options);
    const struct run run = {.strategy = layout->strategy,
                            .kernel = "ref",
                            .options = words,
                            .rank_count = layout->ranks,
                            .steps = 3,
                            .mode = TESS_RANKS_THREADS};
    run_train(&run, outcome_out);
    run_check_memory(&run, outcome_out);
}

static const char *const bytes_axis[TESS_AXIS_COUNT] = {"data", "tensor", "stage"};

static void bytes_check(const struct bytes_layout *layout, const struct run_outcome *outcome,
                        uint64_t slack)
{
    for (int32_t r = 0; r < layout->ranks; r++)
        for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
            const uint64_t sent = outcome->axis_sent[r][axis];
            const uint64_t formula = outcome->axis_formula[r][axis];
            if (sent - formula + slack <= 2 * slack)
                continue;
            print_error("%s with %s: rank %d sent %llu bytes along the %s axis, formula %llu\n",
                        layout->strategy, layout->options, (int)r, (unsigned long long)sent,
                        bytes_axis[axis], (unsigned long long)formula);
            fail();
        }
}

/*
 * Exact. Sums to more than one rank are cut at cache lines, which moves bytes from one rank to
 * another where there are more than two; so here they are among two, or scattered.
 */
static const struct bytes_layout bytes_exact[] = {
    {2, "tp", ""},
    {2, "tp", "--accumulate 4 --recompute full"},
    {2, "tp", "--recompute selective --tensor.sequence-parallel"},
    {2, "tp", "--recompute full --tensor.sequence-parallel --accumulate 2"},
    {2, "tp", "--recompute every:3 --tensor.canonical 2"},
    {2, "pp", "--accumulate 4"},
    {4, "pp", "--accumulate 4 --pp.schedule gpipe"},
    {2, "pp", "--accumulate 4 --pp.schedule interleaved"},
    {4, "pp", "--accumulate 8 --pp.schedule interleaved"},
    {4, "ddp+tp", "--mesh data=2,tensor=2"},
    {4, "tp+pp", "--mesh tensor=2,stage=2 --tensor.sequence-parallel"},
    {4, "ddp+pp", "--mesh data=2,stage=2"},
    {8, "fsdp+pp", "--mesh data=4,stage=2"},
    {8, "fsdp+pp", "--mesh data=4,stage=2 --fsdp.reshard-after-forward=on --accumulate 2"},
    {8, "zero2+pp", "--mesh data=4,stage=2"},
    {8, "zero1+tp+pp", "--mesh data=2,tensor=2,stage=2"},
    {8, "fsdp+tp+pp", "--mesh data=2,tensor=2,stage=2"},
    {8, "hsdp+tp", "--mesh data=4,tensor=2 --hsdp.shard-ranks 2"},
};

static void test_exact(void **state)
{
    static const char *const model[] = {BYTES_GPT, BYTES_LLAMA, BYTES_LLAMA "--gpt.tied on"};
    (void)state;
    for (int l = 0; l < BYTES_COUNT(bytes_exact); l++) {
        struct run_outcome outcome;
        bytes_train(&bytes_exact[l], model[l % BYTES_COUNT(model)], &outcome);
        bytes_check(&bytes_exact[l], &outcome, 0);
    }
}

/* Of images too: sums of mlp and cnn, which go over whole layers. */
static void test_images(void **state)
{
    static const struct bytes_layout layout[] = {
        {4, "fsdp+tp", "--model mlp --mlp.hidden 40,24,32 --mesh data=2,tensor=2"},
        {4, "tp+pp", "--model cnn --cnn.channels 4,8 --mesh tensor=2,stage=2 --recompute full"},
    };
    (void)state;
    for (int l = 0; l < BYTES_COUNT(layout); l++) {
        struct run_outcome outcome;
        bytes_train(&layout[l],
                    "--batch-size 16 --grid 8 --bind=off --data.workers 0 --optimizer momentum",
                    &outcome);
        bytes_check(&layout[l], &outcome, 0);
    }
}

/*
 * Sums over four tensor ranks. Each slice is off a fourth of the sum by fewer than 64 + 4 elements,
 * and a rank sends the sum and 2 slices: see run_check_sent. Of a sum of 4 KiB or less it sends 3
 * wholes, where the formula has 3/2; here those of the head are longer, 2112 positions: a leaf of
 * 32 rows of 66. Counted by hand, two layers have sums of their input and output, twice each, the
 * table one, the head's input one and its logits three.
 */
static void test_four(void **state)
{
    static const struct bytes_layout layout = {
        4, "tp", "--data.length 66 --batch-size 32 --grid 1 --gpt.layers 2"};
    const uint64_t sums = 2 * 4 + 1 + 1 + 3, slack = sums * 2 * (64 + 4) * 4;
    struct run_outcome outcome;
    (void)state;
    bytes_train(&layout, BYTES_GPT, &outcome);
    const uint64_t positions = 32 * 66, formula = outcome.axis_formula[0][TESS_AXIS_TENSOR];
    assert_int_equal(formula, (10 * positions * 16 + 4 * positions) * 4 * 3 / 2);
    assert_true(slack < formula / 50);
    bytes_check(&layout, &outcome, slack);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_images),
        cmocka_unit_test(test_four),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
