/*
 * Sum and update in one pass over memory that ranks share: the bits are those of the optimizer's
 * update after the reduction, in every strategy that does it; and it is left out wherever something
 * has to be known of all gradients before, or of all ranks.
 *
 *   test_shared [cpu]
 */
#include "runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *shared_kernel = "ref";

/* Widths that slices do not divide, and more than a block of the pass (2048 elements). */
#define MLP                                                                                        \
    "--model mlp --mlp.hidden 133,70 --batch-size 24 --evaluate=off --bind=off "                   \
    "--data.workers 0 --learning-rate 0.05 "
#define CNN                                                                                        \
    "--model cnn --cnn.channels 8 --cnn.fc 12 --cnn.batch-norm on --batch-size 24 "                \
    "--evaluate=off --bind=off --data.workers 0 --learning-rate 0.05 "

/* Computes its loss itself, and its head is its embedding; */
#define GPT                                                                                        \
    "--model gpt --data.length 8 --gpt.layers 2 --gpt.width 36 --gpt.heads 2 --gpt.vocab 300 "     \
    "--batch-size 24 --evaluate=off --bind=off --data.workers 0 --learning-rate 0.05 "             \
    "--optimizer adamw "

static struct run shared_run(const char *strategy, const char *options, int32_t ranks,
                             enum tess_rank_mode mode)
{
    return (struct run){.strategy = strategy,
                        .kernel = shared_kernel,
                        .options = options,
                        .rank_count = ranks,
                        .steps = 3,
                        .mode = mode};
}

/* Under zero1 a segment is reduce-scattered, or else added and updated in one call: the segments
 * of a step that are reduce-scattered. */
static uint64_t shared_left(const char *options, bool tcp)
{
    struct run_outcome outcome;
    struct run run = shared_run("zero1", options, 2, TESS_RANKS_THREADS);
    run.tcp = tcp;
    run.mode = tcp ? TESS_RANKS_PROCESSES : TESS_RANKS_THREADS;
    run_train(&run, &outcome);
    return outcome.calls[TESS_COLLECTIVE_REDUCE_SCATTER];
}

static bool shared_is_on(const char *options, bool tcp)
{
    return shared_left(options, tcp) == 0;
}

static void test_bits(void **state)
{
    static const char *const options[] = {
        MLP "--optimizer momentum ",
        MLP "--optimizer adamw --weight-decay 0.1 --precision bf16 ",
        CNN "--optimizer momentum --nesterov ",
        GPT,
        GPT "--precision bf16 ",
        GPT "--gpt.tied off ",
    };
    static const struct {
        const char *strategy, *options;
        int32_t ranks, grid;
        enum tess_rank_mode mode;
    } runs[] = {
        {"single", "", 1, 8, TESS_RANKS_THREADS},
        {"ddp", "", 2, 8, TESS_RANKS_PROCESSES},
        {"ddp", "--accumulate 2", 4, 8, TESS_RANKS_THREADS},
        {"ddp", "--ddp.sync-every-micro-batch --accumulate 2", 2, 8, TESS_RANKS_THREADS},
        {"zero2", "", 4, 8, TESS_RANKS_PROCESSES},
        {"fsdp", "--accumulate 2", 2, 8, TESS_RANKS_THREADS},
        {"hsdp", "", 4, 8, TESS_RANKS_THREADS},
        {"single", "", 1, 12, TESS_RANKS_THREADS},
        {"ddp", "--ddp.overlap off --ddp.bucket-mib 0", 3, 12, TESS_RANKS_THREADS},
        {"zero1", "--accumulate 2", 3, 12, TESS_RANKS_THREADS},
        {"fsdp", "", 3, 12, TESS_RANKS_THREADS},
    };
    /* Sanitizers: one of each model, in f32 and in bf16. */
    const size_t first = TESTS_DIVISOR > 1 ? 1 : 0, last = TESTS_DIVISOR > 1 ? 3 : 5;
    (void)state;
    for (size_t o = first; o <= last; o++) {
        struct run_outcome expected;
        for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
            char words[512];
            snprintf(words, sizeof(words), "%s%s --grid %d", options[o], runs[i].options,
                     (int)runs[i].grid);
            struct run run = shared_run(runs[i].strategy, words, runs[i].ranks, runs[i].mode);
            if (runs[i].ranks == 1)
                run_train(&run, &expected);
            else
                run_compare(&run, &expected);
        }
    }
}

static void test_where(void **state)
{
    static const char *const off[] = {
        "--clip 0.1 ",
        "--optimizer lamb ",
        "--optimizer novograd ",
        "--audit 1 ",
        "--reduce-dtype bf16 ",
        "--threads 2 ",
        "--precision bf16 --master-weights off ",
        "--precision f16 --loss-scale static:8 ",
        "--mlp.layer-drop 0.5 --mlp.hidden 70,70 --find-unused ",
    };
    (void)state;
    assert_true(shared_is_on(MLP, false));
    assert_true(shared_is_on(MLP "--precision bf16 --optimizer adamw ", false));
    assert_true(shared_is_on(GPT "--gpt.tied off ", false));
    assert_int_equal(shared_left(GPT, false), 1); /* the head's gradient, which the update reads */
    assert_false(shared_is_on(MLP, true));        /* ranks that talk by sockets */
    for (size_t i = 0; i < sizeof(off) / sizeof(off[0]); i++) {
        char words[512];
        snprintf(words, sizeof(words), MLP "%s", off[i]);
        if (shared_is_on(words, false))
            fail_msg("'%s' updates what it cannot judge", off[i]);
    }
}

/* In bf16 ranks of ddp give each other values of 2 bytes in place of sums of 4. Slices of a segment
 * are not even, so what two ranks sent is as much as the formula says together. */
static void test_sent(void **state)
{
    struct run_outcome shared, clipped;
    struct run run = shared_run("ddp", MLP "--precision bf16 ", 2, TESS_RANKS_THREADS);
    (void)state;
    run_train(&run, &shared);
    run.options = MLP "--precision bf16 --clip 1e9 ";
    run_train(&run, &clipped);
    run_check_sent(&run, &clipped);
    assert_true(shared.hash == clipped.hash);
    assert_int_equal(shared.sent[0] + shared.sent[1], shared.formula[0] + shared.formula[1]);
    assert_int_equal(4 * (shared.sent[0] + shared.sent[1]),
                     3 * (clipped.sent[0] + clipped.sent[1]));
}

/* fsdp: what fills its buffers first in forward has come there with the update. Evaluation takes
 * these buffers in between. */
static void test_gathers(void **state)
{
    static const struct {
        const char *options;
        uint64_t shared, clipped; /* gathers of a step */
    } runs[] = {
        {"", 1, 3},
        {"--precision bf16 --fsdp.keep-last 1 ", 2, 4},
        {"--fsdp.reshard-after-forward off ", 0, 3},
        {"--mlp.hidden 40,24,33,20 ", 5, 7},
    };
    (void)state;
    for (size_t i = 0; i < 2 * sizeof(runs) / sizeof(runs[0]); i++) {
        char words[512], clip[540];
        struct run_outcome shared, clipped;
        const bool evaluate = i % 2 != 0;
        snprintf(words, sizeof(words), MLP "--evaluate=%s %s", evaluate ? "on" : "off",
                 runs[i / 2].options);
        snprintf(clip, sizeof(clip), "%s--clip 1e9 ", words);
        struct run run = shared_run("fsdp", words, 2, TESS_RANKS_PROCESSES);
        run.evaluate = evaluate;
        run_train(&run, &shared);
        run.options = clip;
        run_train(&run, &clipped);
        assert_true(shared.hash == clipped.hash);
        assert_true(shared.test_loss == clipped.test_loss);
        if (evaluate)
            continue; /* the step that is counted follows it */
        run_check_sent(&run, &shared);
        assert_int_equal(shared.calls[TESS_COLLECTIVE_ALL_GATHER], runs[i / 2].shared);
        assert_int_equal(clipped.calls[TESS_COLLECTIVE_ALL_GATHER], runs[i / 2].clipped);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_where),
        cmocka_unit_test(test_sent),
        cmocka_unit_test(test_gathers),
    };
    for (int i = 1; i < argc; i++)
        shared_kernel = argv[i];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
