/*
 * Model gpt along the tensor axis: in parts on one rank, in parts on as many ranks or fewer, and
 * with sequence parallel. Ranks are threads, each with its own driver; what crosses the axis is
 * added here, in the tree of tessera/comm.h.
 */
#include "gpt_fixture.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS_MAX 4

static const char *parts_kernel = "ref";

/* ---- ranks ----------------------------------------------------------------------------------- */

struct parts_world {
    pthread_barrier_t barrier;
    int32_t ranks;
    const struct tess_crossing *call[RANKS_MAX]; /* what each rank is about to do */
};

struct parts_rank {
    struct model_driver driver;
    struct parts_world *world;
    struct tess_strategy strategy;
    int32_t rank;
    pthread_t thread;
};

static float parts_combine(enum tess_crossing_kind kind, const float *value, int32_t count)
{
    int32_t left = 1;

    if (count == 1)
        return value[0];
    while (2 * left < count)
        left *= 2;
    const float a = parts_combine(kind, value, left);
    const float b = parts_combine(kind, value + left, count - left);
    return kind == TESS_CROSSING_MAX ? fmaxf(a, b) : a + b;
}

/* Element `at` of every rank's data, combined. */
static float parts_element(const struct parts_world *world, struct tess_kernel *kernel, size_t at)
{
    const struct tess_crossing *call = world->call[0];
    float value[RANKS_MAX];

    for (int32_t r = 0; r < world->ranks; r++)
        tess_cast(kernel, 1, call->dtype,
                  (const char *)world->call[r]->data + at * tess_dtype_bytes(call->dtype), TESS_F32,
                  &value[r]);
    return parts_combine(call->kind, value, world->ranks);
}

static enum tess_status parts_cross(struct tess_strategy *strategy,
                                    const struct tess_crossing *crossing)
{
    struct parts_rank *rank = strategy->state;
    struct parts_world *world = rank->world;
    struct tess_kernel *kernel = rank->driver.kernel;
    const size_t word = tess_dtype_bytes(crossing->dtype), count = crossing->count;
    const bool scatter = crossing->kind == TESS_CROSSING_SUM_SCATTER;
    float *result = malloc((count + 1) * sizeof(*result));

    if (result == NULL)
        return TESS_ERR_MEMORY;
    world->call[rank->rank] = crossing;
    pthread_barrier_wait(&world->barrier);
    if (crossing->kind == TESS_CROSSING_GATHER)
        for (int32_t r = 0; r < world->ranks; r++)
            memcpy((char *)crossing->data + (size_t)r * count * word, world->call[r]->part,
                   count * word);
    else
        for (size_t i = 0; i < count; i++)
            result[i] =
                parts_element(world, kernel, i + (scatter ? (size_t)rank->rank * count : 0));
    pthread_barrier_wait(&world->barrier);
    if (crossing->kind != TESS_CROSSING_GATHER)
        tess_cast(kernel, (int64_t)count, TESS_F32, result, crossing->dtype,
                  scatter ? crossing->part : crossing->data);
    free(result);
    return TESS_OK;
}

static const struct tess_strategy_ops parts_strategy = {.name = "threads", .cross = parts_cross};

static void *parts_run(void *argument)
{
    struct parts_rank *rank = argument;

    model_forward(&rank->driver);
    model_backward(&rank->driver);
    return NULL;
}

/* ---- models ---------------------------------------------------------------------------------- */

enum { T = 8, ROWS = 6, LEAF = 2, CLASSES = 70 };

static void parts_open(struct model_driver *driver, const struct gpt_words *words,
                       enum tess_dtype dtype, int64_t rows, struct tess_tensor_axis axis)
{
    struct tess_model_input input = gpt_input(T, CLASSES, rows, LEAF);

    input.dtype = dtype;
    input.axis = axis;
    gpt_open(driver, parts_kernel, &input, words);
}

static void parts_open_alone(struct model_driver *driver, const struct gpt_words *words,
                             enum tess_dtype dtype, int32_t parts)
{
    parts_open(driver, words, dtype, ROWS,
               (struct tess_tensor_axis){.parts = parts, .count = parts, .rank_count = 1});
}

/* Open the ranks of an axis; each sees the same rows, `rows` of them from `first` on. */
static void parts_open_ranks(struct parts_world *world, struct parts_rank *rank, int32_t ranks,
                             int32_t parts, bool sequence, const struct gpt_words *words,
                             enum tess_dtype dtype, int64_t first, int64_t rows)
{
    const int32_t count = parts / ranks;

    world->ranks = ranks;
    assert_int_equal(pthread_barrier_init(&world->barrier, NULL, (unsigned)ranks), 0);
    for (int32_t r = 0; r < ranks; r++) {
        struct model_driver *driver = &rank[r].driver;

        parts_open(driver, words, dtype, rows,
                   (struct tess_tensor_axis){.parts = parts,
                                             .first = r * count,
                                             .count = count,
                                             .rank = r,
                                             .rank_count = ranks,
                                             .sequence = sequence});
        rank[r].rank = r;
        rank[r].world = world;
        rank[r].strategy = (struct tess_strategy){.ops = &parts_strategy, .state = &rank[r]};
        driver->crossing.strategy = &rank[r].strategy;
        driver->crossing.canonical = !sequence;
        driver->on_thread = true;
        driver->row_first = first;
        driver->loss_count = ROWS * T;
    }
}

static void parts_train(struct parts_world *world, struct parts_rank *rank)
{
    for (int32_t r = 0; r < world->ranks; r++)
        assert_int_equal(pthread_create(&rank[r].thread, NULL, parts_run, &rank[r]), 0);
    for (int32_t r = 0; r < world->ranks; r++) {
        assert_int_equal(pthread_join(rank[r].thread, NULL), 0);
        assert_int_equal(rank[r].driver.status, TESS_OK);
    }
}

static void parts_close_ranks(struct parts_world *world, struct parts_rank *rank)
{
    for (int32_t r = 0; r < world->ranks; r++)
        model_close(&rank[r].driver);
    pthread_barrier_destroy(&world->barrier);
}

/* The whole gradient of a parameter, to be freed: from the parts of all ranks, or where it is whole
 * on every rank from rank 0; with sequence parallel the sum of those by positions. */
static float *parts_gather(struct parts_rank *rank, int32_t ranks, int32_t param)
{
    const struct tess_declare_param *declared = &rank[0].driver.declare.param[param];
    const bool cut = declared->slice.axis >= 0;
    const bool add = declared->flags & TESS_PARAM_TOKENS && rank[0].driver.input.axis.sequence;
    const int64_t count = tess_shape_count(&declared->whole);
    float *whole = calloc((size_t)count, sizeof(*whole));

    assert_non_null(whole);
    for (int32_t r = 0; r < ranks; r++) {
        if (cut || (r == 0 && !add))
            model_gather(&rank[r].driver, param, rank[r].driver.grad[param], whole);
        else if (add)
            for (int64_t i = 0; i < count; i++)
                whole[i] += rank[r].driver.grad[param][i];
        else
            assert_memory_equal(rank[0].driver.grad[param], rank[r].driver.grad[param],
                                (size_t)count * sizeof(*whole));
    }
    return whole;
}

/* Distance of two arrays as a share of the first one's size. */
static double parts_distance(const float *a, const float *b, int64_t count)
{
    double square = 0, error = 0;

    for (int64_t i = 0; i < count; i++) {
        square += (double)a[i] * a[i];
        error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    }
    return square > 0 ? sqrt(error / square) : sqrt(error);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/*
 * In parts a sum over the width of a layer is grouped otherwise, and the terms are rounded to the
 * run's type before they are added. With u the half of its last digit (f32 2^-24, bf16 2^-9), each
 * of the four sums of a block brings errors of about u of its size, sqrt(parts) of them; those of
 * some 10 sums in a row, both directions of two blocks and the head, add up to sqrt(10 parts) u
 * where each goes on as it is, and the norms and the softmax between them may make it a few times
 * greater. 20 u sqrt(parts) allows for that; a part forgotten or taken twice is off by 1/parts.
 */
static double parts_bound(enum tess_dtype dtype, int32_t parts)
{
    return 20 * (dtype == TESS_F32 ? 0x1p-24 : 0x1p-9) * sqrt(parts);
}

static void parts_compare(const struct model_driver *one, struct parts_rank *rank, int32_t ranks,
                          double bound)
{
    double worst = 0;

    for (int32_t r = 0; r < ranks; r++)
        worst = fmax(worst, parts_distance(one->loss, rank[r].driver.loss, ROWS));
    for (int32_t p = 0; p < one->declare.param_count; p++) {
        float *whole = parts_gather(rank, ranks, p);
        const double distance = parts_distance(one->grad[p], whole, model_param_count(one, p));

        if (distance > bound)
            print_message("%s is off by %g\n", one->declare.param[p].name, distance);
        worst = fmax(worst, distance);
        free(whole);
    }
    print_message("off by %g, allowed are %g\n", worst, bound);
    assert_true(worst < bound);
}

static void case_parts_on_one_rank(void **unused)
{
    (void)unused;
    for (size_t m = 0; m < 2 * GPT_SMALL_COUNT; m++) {
        const enum tess_dtype dtype = m < GPT_SMALL_COUNT ? TESS_F32 : TESS_BF16;
        const struct gpt_words *words = &gpt_small[m % GPT_SMALL_COUNT];
        struct model_driver one;

        if (!gpt_matters(words))
            continue;
        parts_open_alone(&one, words, dtype, 1);
        model_forward(&one);
        model_backward(&one);
        for (int32_t parts = 2; parts <= 4; parts *= 2) {
            struct parts_rank many;

            parts_open_alone(&many.driver, words, dtype, parts);
            model_forward(&many.driver);
            model_backward(&many.driver);
            parts_compare(&one, &many, 1, parts_bound(dtype, parts));
            model_close(&many.driver);
        }
        model_close(&one);
    }
}

/* As many parts on one rank, two ranks or four: the same bits. */
static void case_ranks(void **unused)
{
    (void)unused;
    for (size_t m = 0; m < 2 * GPT_SMALL_COUNT; m++) {
        const enum tess_dtype dtype = m < GPT_SMALL_COUNT ? TESS_F32 : TESS_BF16;
        const struct gpt_words *words = &gpt_small[m % GPT_SMALL_COUNT];
        struct parts_rank alone;

        if (!gpt_matters(words))
            continue;
        parts_open_alone(&alone.driver, words, dtype, 4);
        model_forward(&alone.driver);
        model_backward(&alone.driver);
        for (int32_t ranks = 2; ranks <= 4; ranks *= 2) {
            struct parts_rank rank[RANKS_MAX];
            struct parts_world world;

            parts_open_ranks(&world, rank, ranks, 4, false, words, dtype, 0, ROWS);
            parts_train(&world, rank);
            for (int32_t r = 0; r < ranks; r++) {
                assert_memory_equal(alone.driver.loss, rank[r].driver.loss, ROWS * sizeof(float));
                assert_memory_equal(alone.driver.correct, rank[r].driver.correct,
                                    ROWS * sizeof(int32_t));
            }
            for (int32_t p = 0; p < alone.driver.declare.param_count; p++) {
                const int64_t count = model_param_count(&alone.driver, p);
                float *whole = parts_gather(rank, ranks, p), *expected = parts_gather(&alone, 1, p);

                assert_memory_equal(expected, whole, (size_t)count * sizeof(*whole));
                free(whole);
                free(expected);
            }
            parts_close_ranks(&world, rank);
        }
        model_close(&alone.driver);
    }
}

/* With sequence parallel terms are added in the run's type and rounded once: as parts. */
static void case_sequence(void **unused)
{
    (void)unused;
    for (size_t m = 0; m < 2 * GPT_SMALL_COUNT; m++) {
        const enum tess_dtype dtype = m < GPT_SMALL_COUNT ? TESS_F32 : TESS_BF16;
        const struct gpt_words *words = &gpt_small[m % GPT_SMALL_COUNT];
        struct model_driver one;

        if (!gpt_matters(words))
            continue;
        parts_open_alone(&one, words, dtype, 1);
        model_forward(&one);
        model_backward(&one);
        for (int32_t ranks = 2; ranks <= 4; ranks *= 2) {
            struct parts_rank rank[RANKS_MAX];
            struct parts_world world;

            parts_open_ranks(&world, rank, ranks, ranks, true, words, dtype, 0, ROWS);
            for (int32_t r = 0; r < ranks; r++)
                rank[r].driver.remake = ranks == 4;
            parts_train(&world, rank);
            parts_compare(&one, rank, ranks, parts_bound(dtype, ranks));
            parts_close_ranks(&world, rank);
        }
        model_close(&one);
    }
}

/* Sequence parallel cuts each leaf by itself: three leaves at once are three passes, ((0 1) 2). */
static void case_sequence_leaves(void **unused)
{
    enum { LEAVES = ROWS / LEAF, RANKS = 2 };

    (void)unused;
    for (size_t m = 0; m < GPT_SMALL_COUNT; m++) {
        struct parts_rank all[RANKS], leaf[LEAVES][RANKS];
        struct parts_world world, leaf_world[LEAVES];

        parts_open_ranks(&world, all, RANKS, RANKS, true, &gpt_small[m], TESS_F32, 0, ROWS);
        parts_train(&world, all);
        for (int l = 0; l < LEAVES; l++) {
            parts_open_ranks(&leaf_world[l], leaf[l], RANKS, RANKS, true, &gpt_small[m], TESS_F32,
                             l * LEAF, LEAF);
            for (int r = 0; r < RANKS; r++) {
                struct model_driver *driver = &leaf[l][r].driver;

                memcpy(driver->x_low, (int32_t *)all[r].driver.x_low + l * LEAF * T,
                       LEAF * T * sizeof(int32_t));
                memcpy(driver->label, all[r].driver.label + l * LEAF * T,
                       LEAF * T * sizeof(int32_t));
            }
            parts_train(&leaf_world[l], leaf[l]);
        }
        for (int r = 0; r < RANKS; r++)
            for (int32_t p = 1; p < all[r].driver.declare.param_count; p++)
                for (int64_t i = 0; i < model_param_count(&all[r].driver, p); i++) {
                    const float sum = leaf[0][r].driver.grad[p][i] + leaf[1][r].driver.grad[p][i];

                    assert_true(all[r].driver.grad[p][i] == sum + leaf[2][r].driver.grad[p][i]);
                }
        for (int l = 0; l < LEAVES; l++)
            parts_close_ranks(&leaf_world[l], leaf[l]);
        parts_close_ranks(&world, all);
    }
}

/*
 * Stacked weights change the order of one sum: dx, which without them is the sum of three, or two,
 * terms that are rounded to the run's type. As in parts, then. In ref, where an element of a result
 * does not depend on how many there are, the loss has the same bits, and so have the gradients of
 * the last block's feed-forward, which the sums come behind.
 */
static void parts_check_stacked(const struct gpt_words *words, enum tess_dtype dtype)
{
    struct model_driver apart;
    struct parts_rank stacked;
    char name[64];

    gpt_stacked = false;
    parts_open_alone(&apart, words, dtype, 1);
    gpt_stacked = true;
    parts_open_alone(&stacked.driver, words, dtype, 1);
    const int32_t blocks = apart.declare.unit_count - 3;
    assert_int_equal(apart.declare.op_count - stacked.driver.declare.op_count,
                     (words == &gpt_small[4] ? 1 : 3) * blocks); /* q, k, v with biases are apart */
    assert_int_equal(apart.declare.param_count, stacked.driver.declare.param_count);
    model_forward(&apart);
    model_backward(&apart);
    model_forward(&stacked.driver);
    model_backward(&stacked.driver);
    parts_compare(&apart, &stacked, 1, parts_bound(dtype, 3));
    for (int i = 0; i < 2 && strcmp(parts_kernel, "ref") == 0; i++) {
        snprintf(name, sizeof(name), "model.layers.%d.mlp.%s_proj.weight", blocks - 1,
                 i == 0 ? "gate" : "up");
        const int32_t p = model_find(&apart, name);
        assert_memory_equal(apart.grad[p], stacked.driver.grad[p], gpt_bytes(&apart, p));
        assert_memory_equal(apart.loss, stacked.driver.loss, ROWS * sizeof(float));
    }
    model_close(&apart);
    model_close(&stacked.driver);
}

static void case_stacked(void **unused)
{
    (void)unused;
    for (size_t m = 2; m < GPT_SMALL_COUNT; m++) {
        parts_check_stacked(&gpt_small[m], TESS_F32);
        parts_check_stacked(&gpt_small[m], TESS_BF16);
    }
}

/* kernel [stacked] */
int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_parts_on_one_rank),
        cmocka_unit_test(case_ranks),
        cmocka_unit_test(case_sequence),
        cmocka_unit_test(case_sequence_leaves),
    };

    const struct CMUnitTest stacked[] = {
        cmocka_unit_test(case_parts_on_one_rank),
        cmocka_unit_test(case_ranks),
        cmocka_unit_test(case_sequence),
        cmocka_unit_test(case_stacked),
    };

    if (argc > 1)
        parts_kernel = argv[1];
    gpt_stacked = argc > 2;
    return gpt_stacked ? cmocka_run_group_tests(stacked, NULL, NULL)
                       : cmocka_run_group_tests(cases, NULL, NULL);
}
