/*
 * Every rank sends what its strategy's formula says, sums in another order train alike, and (full)
 * every strategy on every rank count gives the bits of one rank: the same hash of all parameters
 * and the same loss after a few steps, in f32 and bf16, with several optimizers, clipping and
 * accumulation.
 *
 *   test_equivalence [threads] [processes] [guard|guard_queue|cpu|cuda] [full]
 *
 * threads is the default; processes: ranks are forked; guard: memory that only kernels and the
 * communicator may touch; guard_queue: that only kernels may; cuda: a device, which all ranks
 * share; full: the complete product of layouts, rank counts, precisions and optimizers, of which
 * test_pairs takes every pair.
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

static enum tess_rank_mode equal_mode = TESS_RANKS_THREADS;
static const char *equal_kernel = "ref";
static bool equal_full;

#define EQUAL_MLP                                                                                  \
    "--model mlp --mlp.hidden 40,24,33 --mlp.dropout 0.1 --batch-size 48 --learning-rate 0.05 "    \
    "--evaluate=off --bind=off --data.workers 0 "

static struct run equal_run(const char *strategy, const char *options, int32_t rank_count)
{
    return (struct run){.strategy = strategy,
                        .kernel = equal_kernel,
                        .options = options,
                        .rank_count = rank_count,
                        .steps = 3,
                        .mode = strcmp(strategy, "dp") == 0 ? TESS_RANKS_THREADS : equal_mode};
}

/* Every layout on every rank count against `single`, with the same further options. */
static void equal_all_layouts(const char *options, const int32_t *ranks, int rank_cases,
                              bool evaluate)
{
    struct run_outcome expected;
    char words[512];
    struct run run = equal_run("single", options, 1);
    run.evaluate = evaluate;
    run_train(&run, &expected);
    for (int l = 0; l < run_layout_count; l++) {
        for (int i = 0; i < rank_cases; i++) {
            snprintf(words, sizeof(words), "%s %s", options, run_layouts[l].options);
            run = equal_run(run_layouts[l].strategy, words, ranks[i]);
            run.evaluate = evaluate;
            run_compare(&run, &expected);
        }
    }
}

static const int32_t equal_ranks[] = {1, 2, 4, 8};
static const char *const equal_optimizers[] = {
    "--optimizer momentum --clip 0.5",
    "--optimizer adamw --weight-decay 0.01 --clip 0.3",
    "--optimizer novograd --weight-decay 0.001",
};

static void equal_precision(const char *precision)
{
    char options[512];
    for (int o = 0; o < 3; o++) {
        for (int accumulate = 1; accumulate <= 2; accumulate++) {
            /* Grid 16 leaves 8 ranks two micro-batches; one rank folds 8 leaves at a time then. */
            snprintf(options, sizeof(options),
                     EQUAL_MLP "--grid %d --accumulate %d --precision %s %s", 8 * accumulate,
                     accumulate, precision, equal_optimizers[o]);
            equal_all_layouts(options, equal_ranks, 4, false);
        }
    }
}

static void test_f32(void **state)
{
    (void)state;
    equal_precision("f32");
}

static void test_bf16(void **state)
{
    (void)state;
    equal_precision("bf16");
}

/* Rank counts that are no power of two, and validation between the steps. */
static void test_three_and_six_ranks(void **state)
{
    static const int32_t ranks[] = {1, 3, 6};
    (void)state;
    equal_all_layouts(EQUAL_MLP "--evaluate=on --grid 12 --optimizer adamw --clip 1", ranks, 3,
                      true);
}

/* Running averages of batch norm go through the same sums. */
static void test_batch_norm(void **state)
{
    (void)state;
    equal_all_layouts("--model wrn --wrn.depth 10 --wrn.width 1 --batch-size 16 "
                      "--grid 8 --bind=off --data.workers 0 --optimizer momentum",
                      equal_ranks, 4, true);
}

/* The hash distinguishes runs: another seed, another order of the leaves. */
static void test_hash_tells_apart(void **state)
{
    struct run_outcome one, other;
    struct run run = equal_run("ddp", EQUAL_MLP "--grid 8 --optimizer momentum", 2);
    (void)state;
    run_train(&run, &one);
    run.options = EQUAL_MLP "--grid 8 --optimizer momentum --seed 2";
    run_train(&run, &other);
    assert_int_not_equal(one.hash, other.hash);
    run.options = EQUAL_MLP "--grid 2 --optimizer momentum";
    run_train(&run, &other);
    assert_int_not_equal(one.hash, other.hash);
}

/* The optimizer's own sums (clipping, NovoGrad) are not the strategy's traffic: none of them here.
 */
static void test_sent_bytes(void **state)
{
    static const int32_t ranks[] = {1, 2, 3, 4, 8};
    static const char *const rest[] = {"--precision f32 --accumulate 1",
                                       "--precision bf16 --accumulate 2"};
    (void)state;
    for (int o = equal_full ? 0 : 1; o < 2; o++) {
        for (int l = 0; l < run_layout_count; l++) {
            for (int i = 0; i < 5; i++) {
                struct run_outcome outcome;
                char words[512];
                /* Over micro-batches first, three ranks have no tree of two. */
                if (o == 1 && ranks[i] % 3 == 0)
                    continue;
                snprintf(words, sizeof(words), EQUAL_MLP "--optimizer momentum %s %s", rest[o],
                         run_layouts[l].options);
                struct run run = equal_run(run_layouts[l].strategy, words, ranks[i]);
                run_train(&run, &outcome);
                run_check_sent(&run, &outcome);
            }
        }
    }
}

#define EQUAL_TWO_UNITS EQUAL_MLP "--evaluate=on --optimizer momentum --mlp.hidden 40 "

/* Evaluation gathers units, but none for the step that follows: with two units, forward would find
 * them in their buffers. */
static void test_sent_after_evaluation(void **state)
{
    static const char *const options[] = {EQUAL_TWO_UNITS, EQUAL_TWO_UNITS "--fsdp.keep-last 2"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct run_outcome outcome;
        struct run run = equal_run("fsdp", options[i], 4);
        run.evaluate = true;
        run_train(&run, &outcome);
        assert_true(outcome.sent[0] > 0);
        run_check_sent(&run, &outcome);
    }
}

/* Backward of the first layer reads no values, unless it runs forward again. */
static void test_sent_forward_only(void **state)
{
    static const char *const options[] = {EQUAL_MLP "--optimizer momentum --mlp.hidden 40,24",
                                          EQUAL_MLP "--optimizer momentum --mlp.hidden 40,24 "
                                                    "--recompute full"};
    struct run_outcome outcome[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct run run = equal_run("fsdp", options[i], 4);
        run_train(&run, &outcome[i]);
        run_check_sent(&run, &outcome[i]);
    }
    assert_int_equal(outcome[0].hash, outcome[1].hash);
    assert_true(outcome[0].sent[0] > 0 && outcome[0].sent[0] < outcome[1].sent[0]);
}

#define EQUAL_FAST_STEPS 3
#define EQUAL_FAST_RANKS 4
#define EQUAL_FAST_ROWS  48
#define EQUAL_FAST_RATE  0.5
/* Assumed, and checked where it can be: the norm of a step's gradient, and of all parameters (four
 * layers whose weights have variance 2 / inputs: 2 (40 + 24 + 33 + 5) = 204 < 15^2). */
#define EQUAL_FAST_GRADIENT   1.0
#define EQUAL_FAST_PARAMETERS 16.0

/*
 * How far losses of `fast` and `canonical` sums may be apart, in f32, u = 2^-24. Two orders of a
 * sum of N numbers differ by at most 2 (N-1) u times the sum of their magnitudes; ranks' gradients
 * are at most N times the norm of their mean, where noise is all there is sqrt(N). A plain update
 * then differs by rate * 2 (N-1) N u * gradient, and by its own rounding in each of two runs, 2 u *
 * parameters. The loss follows by the gradient to first order; computing it from parameters that
 * differ rounds anew: sums of at most 41 products in each of four layers in each run, whose
 * magnitudes we take to be at most 16 by the time they reach the loss.
 */
static double equal_fast_bound(double n)
{
    const double u = 0x1p-24;
    const double update =
        EQUAL_FAST_RATE * 2 * (n - 1) * n * EQUAL_FAST_GRADIENT + 2 * EQUAL_FAST_PARAMETERS;
    return u * ((EQUAL_FAST_STEPS - 1) * EQUAL_FAST_GRADIENT * update + 2 * 4 * 41 * 16);
}

/* No promise of bits, but the same training, for every layout. Gradients a quarter short, as if one
 * rank of four were left out, lie outside the bound. */
static void test_fast(void **state)
{
    static const char options[] =
        EQUAL_MLP "--grid 8 --optimizer sgd --clip 1000 --learning-rate 0.5";
    struct run_outcome canonical, outcome;
    struct run run = equal_run("single", options, 1);
    char words[512];
    (void)state;
    run_train(&run, &canonical);
    assert_true(canonical.grad_norm > 0 && canonical.grad_norm < EQUAL_FAST_GRADIENT);
    for (int l = 0; l < run_layout_count; l++) {
        snprintf(words, sizeof(words), "%s --reduce fast %s", options, run_layouts[l].options);
        run = equal_run(run_layouts[l].strategy, words, EQUAL_FAST_RANKS);
        run_train(&run, &outcome);
        assert_true(fabs(outcome.loss - canonical.loss) <= equal_fast_bound(EQUAL_FAST_RANKS));
    }
    snprintf(words, sizeof(words), "%s --learning-rate 0.375", options);
    run = equal_run("single", words, 1);
    run_train(&run, &outcome);
    assert_true(fabs(outcome.loss - canonical.loss) > equal_fast_bound(EQUAL_FAST_RANKS));
}

/* Another backend adds up the rows of a batch in another order, as `fast` does the ranks: the same
 * training, for the bound is that of as many numbers as there are rows, outside which a rate that
 * is a half lies. */
static void test_like_ref(void **state)
{
    static const char options[] =
        EQUAL_MLP "--grid 8 --optimizer sgd --clip 1000 --learning-rate 0.5";
    struct run_outcome expected, outcome;
    struct run run = equal_run("single", options, 1);
    (void)state;
    run_train(&run, &outcome);
    run.kernel = "ref";
    run_train(&run, &expected);
    assert_true(fabs(outcome.loss - expected.loss) <= equal_fast_bound(EQUAL_FAST_ROWS));
    run.options = EQUAL_MLP "--grid 8 --optimizer sgd --clip 1000 --learning-rate 0.25";
    run_train(&run, &outcome);
    assert_true(fabs(outcome.loss - expected.loss) > equal_fast_bound(EQUAL_FAST_ROWS));
}

/* What does not fit is refused with the way out, before anything runs. */
static void test_refused(void **state)
{
    struct run run = equal_run("single", EQUAL_MLP, 2);
    (void)state;
    assert_int_equal(run_plan(&run), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "--ranks 1"));
    run = equal_run("hsdp", EQUAL_MLP "--grid 12 --hsdp.shard-ranks 3", 6);
    assert_int_equal(run_plan(&run), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "1, 2 or 6"));
    run = equal_run("fsdp", EQUAL_MLP "--grid 12 --accumulate 2", 3);
    assert_int_equal(run_plan(&run), TESS_ERR_USAGE);
    run = equal_run("ddp", EQUAL_MLP "--grid 12 --accumulate 2", 3);
    assert_int_equal(run_plan(&run), TESS_OK);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),           cmocka_unit_test(test_hash_tells_apart),
        cmocka_unit_test(test_sent_bytes),        cmocka_unit_test(test_sent_after_evaluation),
        cmocka_unit_test(test_sent_forward_only), cmocka_unit_test(test_fast),
    };
    const struct CMUnitTest other_kernel[] = {cmocka_unit_test(test_like_ref)};
    const struct CMUnitTest full[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_three_and_six_ranks),
        cmocka_unit_test(test_batch_norm),
    };
    for (int i = 1; i < argc; i++) {
        equal_mode = strcmp(argv[i], "processes") == 0 ? TESS_RANKS_PROCESSES : equal_mode;
        equal_full = equal_full || strcmp(argv[i], "full") == 0;
        if (run_is_kernel(argv[i]))
            equal_kernel = argv[i];
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (strcmp(equal_kernel, "ref") != 0)
        failed += cmocka_run_group_tests(other_kernel, NULL, NULL);
    if (equal_full)
        failed += cmocka_run_group_tests(full, NULL, NULL);
    return failed;
}
