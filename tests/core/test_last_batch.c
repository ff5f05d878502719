/*
 * The short last batch of an epoch: every image is seen once an epoch, loss and gradient are means
 * over the images that there are, evaluation does not notice, every layout gives the same bits; and
 * drop-last. A batch larger than the data set is a short one alone.
 */
#include "config/config.h"
#include "core/state.h"
#include "harness/world.h"
#include "strategies/runs.h"
#include "tessera/tessera.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MLP                                                                                        \
    "--kernel ref --data synthetic --model mlp --mlp.hidden 20 --bind=off --data.workers 0 "       \
    "--optimizer sgd "

/* ---- images ---------------------------------------------------------------------------------- */

enum { IMAGES = 100, CLASSES = 100, ROW = 6 * 6, RANKS = 4, EPOCHS = 2 };

/* Images of noise; the label of a training image is its number, so that labels identify images.
 */
struct images {
    struct tess_dataset set;
    uint8_t image[IMAGES * ROW];
    uint16_t label[IMAGES];
};

static void make_images(struct images *images, int64_t count)
{
    uint32_t noise = 1;
    for (int i = 0; i < IMAGES * ROW; i++) {
        noise = noise * 1664525 + 1013904223;
        images->image[i] = (uint8_t)(noise >> 24);
    }
    for (int i = 0; i < IMAGES; i++)
        images->label[i] = (uint16_t)i;
    images->set = (struct tess_dataset){
        .row = tess_shape3(6, 6, 1),
        .class_count = CLASSES,
        .labels = 1,
        .train = {.count = count, .image = images->image, .label = images->label},
        .test = {.count = count, .image = images->image, .label = images->label},
        .mean = 0.5f,
        .deviation = 0.3f,
    };
}

static void open_config(const char *words, struct tess_config **config_out)
{
    char copy[512];
    char *argv[64];
    int argc = 0;
    snprintf(copy, sizeof(copy), MLP "%s", words);
    for (char *rest = copy, *word; (word = strsep(&rest, " ")) != NULL;)
        if (*word != '\0')
            argv[argc++] = word;
    assert_int_equal(tess_config_open(argc, argv, NULL, 0, config_out), TESS_OK);
}

/* ---- every image once ------------------------------------------------------------------------ */

struct once {
    struct tess_config *config;
    struct images images;
    int64_t rows[8];                 /* of each step, as the result says */
    atomic_int seen[EPOCHS][IMAGES]; /* times that a label was handed out */
    atomic_int ignored[EPOCHS];      /* places without one */
};

static int once_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct once *once = arg;
    struct tess_engine *engine = NULL;
    WORLD_OK(tess_engine_open(once->config, &once->images.set, comm, world, &engine));
    const int64_t per_epoch = tess_engine_steps_per_epoch(engine);
    const int64_t rows = engine->sizes.rows * (engine->plan.holds_input ? comm->rank_count : 1);
    for (int64_t step = 0; step < EPOCHS * per_epoch; step++) {
        struct tess_step_result result;
        WORLD_OK(tess_engine_step(engine, false, &result));
        if (comm->rank == 0)
            once->rows[step] = result.rows;
        const int32_t *label = tess_memory_get(engine->memory, engine->batches.label[0]);
        for (int64_t i = 0; !engine->plan.skips_input && i < rows; i++)
            if (label[i] >= 0)
                once->seen[step / per_epoch][label[i]]++;
            else
                once->ignored[step / per_epoch]++;
    }
    tess_engine_close(engine);
    return 0;
}

/* `rows` of each step of an epoch; every image is seen once, or without `all` at most once. */
static void check_once(const char *options, const int64_t *rows, int steps, bool all)
{
    static struct once once;
    char words[256];
    int64_t total = 0;
    memset(&once, 0, sizeof(once));
    make_images(&once.images, IMAGES);
    snprintf(words, sizeof(words), "--ranks 4 --epochs 2 --evaluate=off %s", options);
    open_config(words, &once.config);
    assert_int_equal(world_run(RANKS, TESS_RANKS_THREADS, TESS_ORDER_CANONICAL, once_rank, &once),
                     0);
    for (int s = 0; s < steps; s++)
        total += rows[s];
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        int64_t seen = 0;
        for (int s = 0; s < steps; s++)
            assert_int_equal(once.rows[epoch * steps + s], rows[s]);
        for (int i = 0; i < IMAGES; i++) {
            assert_in_range(once.seen[epoch][i], all ? 1 : 0, 1);
            seen += once.seen[epoch][i];
        }
        assert_int_equal(seen, total);
        assert_int_equal(seen + once.ignored[epoch], steps * once.config->run.batch_size);
    }
    tess_config_close(once.config);
}

static void case_every_image_once(void **state)
{
    static const int64_t rows[] = {32, 32, 32, 4}, one[] = {100};
    static const char *const strategy[] = {"dp", "ddp", "fsdp"};
    char options[128];
    (void)state;
    for (int s = 0; s < 3; s++) {
        snprintf(options, sizeof(options), "--strategy %s --batch-size 32 --grid 8", strategy[s]);
        check_once(options, rows, 4, true);
        snprintf(options, sizeof(options), "--strategy %s --batch-size 256", strategy[s]);
        check_once(options, one, 1, true);
        snprintf(options, sizeof(options), "--strategy %s --batch-size 32 --data.drop-last",
                 strategy[s]);
        check_once(options, rows, 3, false);
    }
}

/* ---- means ----------------------------------------------------------------------------------- */

struct one {
    struct tess_config *config;
    struct images images;
    struct tess_comm *comm;
    struct tess_engine *engine;
};

/* Train on the first `count` images, test on the last `test_count` of them. */
static void one_open(struct one *one, int64_t count, int64_t test_count, const char *options)
{
    char words[256];
    memset(one, 0, sizeof(*one));
    make_images(&one->images, count);
    struct tess_split *test = &one->images.set.test;
    test->image += (count - test_count) * ROW;
    test->label += count - test_count;
    test->count = test_count;
    snprintf(words, sizeof(words), "--strategy single --epochs 2 %s", options);
    open_config(words, &one->config);
    assert_int_equal(tess_comm_self_open(TESS_ORDER_CANONICAL, &one->comm), TESS_OK);
    assert_int_equal(tess_engine_open(one->config, &one->images.set, one->comm, NULL, &one->engine),
                     TESS_OK);
}

static void one_close(struct one *one)
{
    tess_engine_close(one->engine);
    tess_comm_close(one->comm);
    tess_config_close(one->config);
}

/*
 * Nothing is learnt (rate 0) and nothing shuffled, so the images of the last step are the data
 * set's last 4. Their mean loss is what evaluation finds of them, to the bit: the sums have the
 * same terms in the same order. Evaluation gives the same before and after.
 */
static void case_mean_loss(void **state)
{
    struct one one;
    struct tess_step_result result = {0};
    double before, after, accuracy;
    (void)state;
    one_open(&one, IMAGES, 4, "--batch-size 32 --learning-rate 0 --data.shuffle=off");
    assert_int_equal(tess_engine_evaluate(one.engine, &before, &accuracy), TESS_OK);
    for (int s = 0; s < 4; s++)
        assert_int_equal(tess_engine_step(one.engine, true, &result), TESS_OK);
    assert_int_equal(result.rows, 4);
    assert_memory_equal(&result.loss, &before, sizeof(before));
    assert_memory_equal(&result.accuracy, &accuracy, sizeof(accuracy));
    assert_int_equal(tess_engine_evaluate(one.engine, &after, &accuracy), TESS_OK);
    assert_memory_equal(&after, &before, sizeof(before));
    assert_int_equal(tess_engine_step(one.engine, true, &result), TESS_OK);
    assert_int_equal(result.rows, 32);
    one_close(&one);
}

/*
 * Seven images in a batch of 32 move the weights as in a batch of 7. Both gradients are sums of the
 * same 7 numbers below 1, scaled by 1/7, in f32: their orders differ by at most 2 * 6 * 2^-24, and
 * so do the weights, below 1 too, by another rounding each. Divided by 32 instead, the largest
 * gradient would be off by a hundredth at least.
 */
static void case_mean_gradient(void **state)
{
    static struct one many, seven;
    struct tess_step_result result;
    double apart = 0, moved = 0;
    float *start;
    (void)state;
    one_open(&many, 7, 7, "--batch-size 32 --learning-rate 1 --data.shuffle=off");
    one_open(&seven, 7, 7, "--batch-size 7 --learning-rate 1 --data.shuffle=off");
    assert_int_equal(tess_engine_steps_per_epoch(many.engine), 1);
    const size_t count = (size_t)many.engine->plan.flat_count;
    const float *w = many.engine->piece[0].w, *w7 = seven.engine->piece[0].w;
    start = malloc(count * sizeof(*start));
    assert_non_null(start);
    memcpy(start, w, count * sizeof(*start));
    assert_int_equal(tess_engine_step(many.engine, true, &result), TESS_OK);
    assert_int_equal(result.rows, 7);
    assert_int_equal(tess_engine_step(seven.engine, true, &result), TESS_OK);
    for (size_t i = 0; i < count; i++) {
        apart = fmax(apart, fabs((double)w[i] - (double)w7[i]));
        moved = fmax(moved, fabs((double)w[i] - (double)start[i]));
    }
    assert_true(moved > 0.013 && moved < 1);
    assert_true(apart <= 14 * 0x1p-24);
    free(start);
    one_close(&many);
    one_close(&seven);
}

static void case_nothing_left(void **state)
{
    struct tess_config *config;
    struct tess_engine *engine;
    struct images images;
    (void)state;
    make_images(&images, IMAGES);
    open_config("--strategy single --batch-size 128 --data.drop-last", &config);
    assert_int_equal(tess_engine_plan(config, &images.set, 0, &engine), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "--data.drop-last"));
    tess_config_close(config);
}

/* ---- the same bits --------------------------------------------------------------------------- */

/* Of 192 images: batches of 80 end with 32 and a place in the middle of a leaf, one of 400 goes
 * round twice to fill itself. */
static void case_same_bits(void **state)
{
    static const char *const strategy[] = {"dp", "ddp", "zero1", "zero2", "fsdp", "hsdp"};
    static const char *const options[] = {
        "--model mlp --mlp.hidden 40,24 --batch-size 80 --grid 8 --optimizer adamw --clip 0.5",
        "--model mlp --mlp.hidden 40,24 --batch-size 80 --grid 8 --accumulate 2 --precision bf16",
        "--model mlp --mlp.hidden 40,24 --batch-size 400 --grid 4",
        "--model cnn --cnn.channels 4,4 --cnn.fc 8 --cnn.batch-norm=on --batch-size 80 --grid 4",
    };
    char words[256];
    (void)state;
    for (int o = 0; o < 4; o++) {
        struct run_outcome expected, outcome;
        snprintf(words, sizeof(words), "%s --evaluate=on --bind=off --data.workers 0", options[o]);
        struct run run = {.strategy = "single",
                          .kernel = "ref",
                          .options = words,
                          .rank_count = 1,
                          .steps = 3,
                          .evaluate = true,
                          .mode = TESS_RANKS_THREADS};
        run_train(&run, &expected);
        for (int s = 0; s < 6; s++) {
            run.strategy = strategy[s];
            run.rank_count = o == 3 || s % 2 == 0 ? 4 : 2;
            run_train(&run, &outcome);
            assert_int_equal(outcome.hash, expected.hash);
            assert_memory_equal(&outcome.loss, &expected.loss, sizeof(double));
            assert_memory_equal(&outcome.test_loss, &expected.test_loss, sizeof(double));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_every_image_once), cmocka_unit_test(case_mean_loss),
        cmocka_unit_test(case_mean_gradient),    cmocka_unit_test(case_nothing_left),
        cmocka_unit_test(case_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
