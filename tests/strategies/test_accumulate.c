/*
 * Gradient accumulation: ranks times micro-batches constant gives the same bits under every
 * strategy, also where the last batch of an epoch is short; what is divided by is the number of
 * images in the step; and when the gradients are sent.
 *
 *   test_accumulate [processes] [cpu]
 */
#include "note.h"
#include "plan_fixture.h"
#include "runs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static enum tess_rank_mode accumulate_mode = TESS_RANKS_THREADS;
static const char *accumulate_kernel = "ref";

/* The made-up data are 192 images (runs.c). */
enum { DATA_ROWS = 192 };

#define ACCUMULATE_MLP                                                                             \
    "--model mlp --mlp.hidden 40,24,33 --evaluate=off --bind=off --data.workers 0 "

/* All ways to deal a grid of 8 leaves out, one leaf at a time, and one with two at a time. */
static const struct {
    int32_t ranks, micros;
} accumulate_split[] = {{1, 1}, {1, 8}, {2, 4}, {4, 2}, {8, 1}, {2, 2}};

static struct run accumulate_run(const char *strategy, const char *options, int32_t ranks,
                                 int32_t steps)
{
    return (struct run){.strategy = strategy,
                        .kernel = accumulate_kernel,
                        .options = options,
                        .rank_count = ranks,
                        .steps = steps,
                        .mode = strcmp(strategy, "dp") == 0 ? TESS_RANKS_THREADS : accumulate_mode};
}

/* Every layout and every split of the grid, `single` on one rank too, against `expected`. */
static void accumulate_all(const char *options, int32_t steps, const struct run_outcome *expected)
{
    char words[512];
    for (size_t i = 0; i < sizeof(accumulate_split) / sizeof(accumulate_split[0]); i++) {
        const int32_t ranks = accumulate_split[i].ranks, micros = accumulate_split[i].micros;
        for (int l = ranks == 1 ? -1 : 0; l < run_layout_count; l++) {
            const struct run_layout *layout = l < 0 ? NULL : &run_layouts[l];
            snprintf(words, sizeof(words), "%s --grid 8 --accumulate %d %s", options, (int)micros,
                     layout != NULL ? layout->options : "");
            struct run run =
                accumulate_run(layout != NULL ? layout->strategy : "single", words, ranks, steps);
            run_compare(&run, expected);
        }
    }
}

/*
 * Batches of 40: the fifth and last of an epoch has 32 images, so of its eight leaves of 5 one is
 * of two images and one has none; the sixth step begins the next epoch with what the short one left
 * in parameters and optimizer.
 */
static void accumulate_precision(const char *precision)
{
    struct run_outcome expected;
    char options[512];
    snprintf(options, sizeof(options),
             ACCUMULATE_MLP "--mlp.dropout 0.1 --batch-size 40 --learning-rate 0.01 --optimizer "
                            "adamw --clip 0.3 --precision %s",
             precision);
    char words[640];
    snprintf(words, sizeof(words), "%s --grid 8", options);
    struct run run = accumulate_run("single", words, 1, 6);
    run_train(&run, &expected);
    accumulate_all(options, 6, &expected);
}

static void test_f32(void **state)
{
    (void)state;
    accumulate_precision("f32");
}

static void test_bf16(void **state)
{
    (void)state;
    accumulate_precision("bf16");
}

/*
 * A batch of 256 of which there are only 192 images is the batch of 192: with leaves of 32 rows in
 * both, the grid of 8 is the grid of 6 and two leaves of zeros, which the tree adds to leaf sums
 * without a trace:
 *
 *     ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)) = ((0 + 1) + (2 + 3)) + (4 + 5)
 *
 * Same hash after three steps: gradient and loss are divided by 192, however the leaves are dealt
 * out.
 */
static void test_short_batch_is_a_batch(void **state)
{
    struct run_outcome expected;
    const char *whole = ACCUMULATE_MLP "--mlp.dropout 0.1 --batch-size 192 --grid 6 "
                                       "--optimizer momentum --learning-rate 0.2";
    struct run run = accumulate_run("single", whole, 1, 3);
    (void)state;
    run_train(&run, &expected);
    assert_int_equal(expected.rows, DATA_ROWS);
    accumulate_all(ACCUMULATE_MLP "--mlp.dropout 0.1 --batch-size 256 --optimizer momentum "
                                  "--learning-rate 0.2",
                   3, &expected);
}

/*
 * Micro-batches added one after the other (--reduce fast): two of them are the tree of two, more
 * are not, and only who reduces at the same time agrees; four of them keep two gradients, not
 * three.
 */
static void test_in_turn(void **state)
{
#define IN_TURN ACCUMULATE_MLP "--batch-size 64 --optimizer momentum --learning-rate 0.1 --grid 8 "
    struct run_outcome tree, turn, other;
    (void)state;
    struct run run = accumulate_run("ddp", IN_TURN "--accumulate 4", 2, 4);
    run_train(&run, &tree);
    struct run two = accumulate_run("ddp", IN_TURN "--accumulate 2 --reduce fast", 4, 4);
    run_compare(&two, &tree);

    run.options = IN_TURN "--accumulate 4 --reduce fast";
    run_train(&run, &turn);
    assert_int_not_equal(turn.hash, tree.hash);
    assert_true(fabs(turn.loss - tree.loss) < 1e-3); /* another order of additions, no more */
    for (int gradients = 2; gradients <= 3; gradients++) {
        const struct run_outcome *of = gradients == 2 ? &turn : &tree;
        const uint64_t bytes = (uint64_t)(gradients * of->flat_count) * sizeof(float);
        assert_int_equal(of->allocated[0][TESS_MEMORY_GRADIENT],
                         (bytes + TESS_MEMORY_ALIGN - 1) / TESS_MEMORY_ALIGN * TESS_MEMORY_ALIGN);
    }
    static const char *const once[] = {"zero1", "dp"}, *const each[] = {"fsdp", "hsdp"};
    for (size_t i = 0; i < 2; i++) {
        run.strategy = once[i];
        run.mode = i == 1 ? TESS_RANKS_THREADS : accumulate_mode;
        run_compare(&run, &turn);
    }
    run.mode = accumulate_mode;
    run.strategy = "zero2";
    run_train(&run, &other);
    assert_int_not_equal(other.hash, turn.hash);
    for (size_t i = 0; i < 2; i++) {
        run.strategy = each[i];
        run_compare(&run, &other);
    }
#undef IN_TURN
}

/*
 * With parameters that stay as they are (learning rate 0), the mean loss of each of an epoch's
 * batches, times its images, sums up to what one batch of the whole epoch reports times 192. Both
 * are sums in double of the same 192 numbers of f32, each sum and product off by 2^-53 at most of
 * what is all positive: 200 roundings are more than there are.
 */
static void test_loss_of_a_short_batch(void **state)
{
    struct run_outcome whole, part;
    const char *rest = ACCUMULATE_MLP "--mlp.dropout 0 --optimizer sgd --learning-rate 0";
    char words[512];
    double sum = 0;
    (void)state;
    snprintf(words, sizeof(words), "%s --batch-size 192 --grid 8", rest);
    struct run run = accumulate_run("single", words, 1, 1);
    run_train(&run, &whole);
    for (int32_t step = 1; step <= 5; step++) {
        snprintf(words, sizeof(words), "%s --batch-size 40 --grid 8 --accumulate 2", rest);
        run = accumulate_run("ddp", words, 2, step);
        run_train(&run, &part);
        assert_int_equal(part.rows, step == 5 ? 32 : 40);
        sum += part.loss * (double)part.rows;
    }
    assert_true(fabs(sum - whole.loss * DATA_ROWS) <= 200 * 0x1p-53 * sum);
}

/* ---- when gradients are sent ----------------------------------------------------------------- */

/* One backward of ddp through its hooks; `ready_out` gets the calls after each grads_ready. */
static void accumulate_backward(struct fixture *fixture, const struct note_comm *note,
                                int32_t *ready_out)
{
    struct tess_strategy *strategy = &fixture->strategy;
    const struct tess_plan *plan = &fixture->plan;
    int32_t ready = plan->segment_count - 1;
    for (int32_t u = plan->unit_count - 1; u >= 0; u--)
        for (; ready >= 0 && plan->segment[ready].unit_first >= u; ready--) {
            assert_int_equal(strategy->ops->grads_ready(strategy, ready), TESS_OK);
            ready_out[ready] = note->count;
        }
}

/* All calls so far are all-reduces, of all segments in turn, and complete. */
static void accumulate_check_calls(const struct fixture *fixture, const struct note_comm *note,
                                   int32_t expected)
{
    const struct tess_plan *plan = &fixture->plan;
    assert_int_equal(note->count, expected);
    for (int32_t c = 0; c < note->count; c++) {
        const int32_t s = plan->segment_count - 1 - c % plan->segment_count;
        assert_int_equal(note->call[c].collective, TESS_COLLECTIVE_ALL_REDUCE);
        assert_int_equal(note->call[c].count, plan->segment[s].count);
        assert_true(note->done[c]);
    }
}

/* Three micro-batches of ddp: nothing is sent before the last one, or with `every` each sends all,
 * bucket by bucket as they are filled unless overlap is off. */
static void accumulate_ddp(bool every, bool overlap, enum tess_dtype reduce_dtype)
{
    static const struct fixture_params params = {
        .unit_count = 4, .count = 4, .elements = {300, 700, 500, 600}, .unit = {0, 1, 2, 3}};
    struct fixture fixture;
    struct note_comm note;
    char option[160];
    snprintf(option, sizeof(option),
             "--ddp.first-bucket-mib=0 --ddp.bucket-mib=0 --ddp.overlap=%s "
             "--ddp.sync-every-micro-batch=%s",
             overlap ? "on" : "off", every ? "on" : "off");
    fixture_open(&fixture, &params,
                 &(struct fixture_run){.strategy = "ddp",
                                       .option = option,
                                       .rank = 1,
                                       .rank_count = 4,
                                       .accumulate = 3,
                                       .reduce_dtype = reduce_dtype});
    fixture_commit(&fixture);
    note_open(&note, 1, 4);
    struct tess_strategy *strategy = &fixture.strategy;
    strategy->comm = &note.comm;
    assert_int_equal(strategy->ops->open(strategy), TESS_OK);
    for (int32_t m = 0; m < 3; m++) {
        const int32_t before = note.count;
        int32_t ready[4];
        fixture_enter_micro(&fixture, m);
        accumulate_backward(&fixture, &note, ready);
        for (int32_t s = 3; s >= 0 && (every || m == 2); s--)
            assert_int_equal(ready[s] - before, overlap ? 4 - s : every && s == 0 ? 4 : 0);
        if (every)
            accumulate_check_calls(&fixture, &note, 4 * (m + 1));
        else
            assert_int_equal(note.count, overlap && m == 2 ? 4 : 0);
    }
    assert_int_equal(strategy->ops->grads_finish(strategy), TESS_OK);
    accumulate_check_calls(&fixture, &note, every ? 12 : 4);
    for (int32_t c = 0; c < note.count; c++)
        assert_int_equal(note.call[c].dtype, reduce_dtype);
    strategy->ops->close(strategy);
    fixture_close(&fixture);
}

static void test_when_ddp_sends(void **state)
{
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_BF16, TESS_F16};
    (void)state;
    for (int i = 0; i < 3 * 4; i++)
        accumulate_ddp(i / 3 % 2 != 0, i / 3 / 2 != 0, dtype[i % 3]);
}

/* In a run: calls and bytes of a step, without and with sync-every-micro-batch. */
static void test_calls_in_a_run(void **state)
{
    struct run_outcome once, every;
    const char *rest = ACCUMULATE_MLP "--batch-size 48 --grid 8 --accumulate 4 "
                                      "--ddp.first-bucket-mib 0.002 --ddp.bucket-mib 0.006";
    char words[512];
    struct run run = accumulate_run("ddp", rest, 2, 3);
    (void)state;
    run_train(&run, &once);
    assert_true(once.segment_count > 1);
    assert_int_equal(once.calls[TESS_COLLECTIVE_ALL_REDUCE], once.segment_count);
    snprintf(words, sizeof(words), "%s --ddp.sync-every-micro-batch", rest);
    run = accumulate_run("ddp", words, 2, 3);
    run_train(&run, &every);
    assert_int_equal(every.calls[TESS_COLLECTIVE_ALL_REDUCE], 4 * once.segment_count);
    assert_int_equal(every.hash, once.hash);
    for (int32_t r = 0; r < 2; r++) {
        assert_int_equal(every.sent[r], 4 * once.sent[r]);
        assert_int_equal(every.formula[r], 4 * once.formula[r]);
    }
    run_check_sent(&run, &every);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_when_ddp_sends),
        cmocka_unit_test(test_calls_in_a_run),
        cmocka_unit_test(test_loss_of_a_short_batch),
        cmocka_unit_test(test_short_batch_is_a_batch),
        cmocka_unit_test(test_in_turn),
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_bf16),
    };
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "processes") == 0)
            accumulate_mode = TESS_RANKS_PROCESSES;
        else
            accumulate_kernel = argv[i];
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
