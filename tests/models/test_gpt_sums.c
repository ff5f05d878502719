/*
 * Sums and memory of model gpt: that chunks and leaves add up to the same, what is kept from
 * forward to backward, and what is made again. Scratch is NaN before every call (model_driver.h),
 * so that nothing can be read that was not written.
 */
#include "gpt_fixture.h"

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

/* ---- sums ------------------------------------------------------------------------------------ */

/*
 * 4096 positions and 1024 words: 16 MiB of logits in f32, at once or in 16 chunks. What a position
 * computes does not depend on the chunk, so that only the head's own gradient may differ, a sum of
 * 4096 terms in other groups: by some sqrt(4096) 2^-24 = 4e-6 of its size.
 */
static void case_chunks(void **unused)
{
    const struct tess_model_input input = gpt_input(16, 1024, 256, 256);
    const struct gpt_words words[] = {
        {{"--layers=1", "--heads=2", "--width=8", "--tied=off", "--head-mib=64", NULL}},
        {{"--layers=1", "--heads=2", "--width=8", "--tied=off", "--head-mib=1", NULL}}};
    const int64_t chunk[] = {4096, 256};
    struct model_driver driver[2];
    double square = 0, error = 0;

    (void)unused;
    for (int i = 0; i < 2; i++) {
        int32_t found = 0;

        gpt_open(&driver[i], gpt_kernel, &input, &words[i]);
        for (int32_t t = 0; t < driver[i].declare.tensor_count; t++)
            if (strcmp(driver[i].declare.tensor[t].name, "logits") == 0) {
                assert_int_equal(driver[i].declare.tensor[t].life, TESS_LIFE_CALL);
                assert_int_equal(driver[i].declare.tensor[t].count, chunk[i] * 1024);
                found++;
            }
        assert_int_equal(found, 1);
        model_forward(&driver[i]);
        model_backward(&driver[i]);
    }
    assert_memory_equal(driver[0].loss, driver[1].loss, 256 * sizeof(float));
    assert_memory_equal(driver[0].correct, driver[1].correct, 256 * sizeof(int32_t));
    const int32_t head = model_find(&driver[0], "lm_head.weight");
    for (int32_t p = 0; p < driver[0].declare.param_count; p++)
        if (p != head)
            assert_memory_equal(driver[0].grad[p], driver[1].grad[p], gpt_bytes(&driver[0], p));
    for (int64_t i = 0; i < model_param_count(&driver[0], head); i++) {
        const double a = driver[0].grad[head][i], b = driver[1].grad[head][i];

        square += a * a;
        error += (a - b) * (a - b);
    }
    assert_true(error > 0 && sqrt(error / square) < 1e-5);
    model_close(&driver[0]);
    model_close(&driver[1]);
}

/* Positions of a chunk where nothing is computed: 16384 in a leaf, 303872 bytes of logits each. */
static int64_t gpt_chunk(const char *head_mib, bool device)
{
    const struct gpt_words words = {{"--layers=1", "--heads=2", "--width=8", head_mib, NULL}};
    struct tess_model_input input = gpt_input(4096, 151936, 4, 4);
    struct tess_declare declare = {.rows = 4, .leaf_rows = 4, .dtype = TESS_BF16};
    const struct tess_model_ops *ops;
    int64_t count = 0;

    input.dtype = TESS_BF16;
    input.device = device;
    assert_int_equal(tess_registry_get_model("gpt", &ops), TESS_OK);
    void *options = model_read_options(ops, words.word, gpt_count(&words));
    void *state = calloc(1, ops->state_size);
    assert_non_null(state);
    assert_int_equal(tess_declare_model(&declare, ops, state, options, &input), TESS_OK);
    for (int32_t t = 0; t < declare.tensor_count; t++)
        if (strcmp(declare.tensor[t].name, "logits") == 0)
            count += declare.tensor[t].count;
    tess_declare_fini(&declare);
    free(options);
    free(state);
    return count / 151936;
}

static void case_chunk_sizes(void **unused)
{
    (void)unused;
    assert_int_equal(gpt_chunk(NULL, false), 128);
    assert_int_equal(gpt_chunk(NULL, true), 2048);
    assert_int_equal(gpt_chunk("--head-mib=64", true), 128);
    assert_int_equal(gpt_chunk("--head-mib=1024", false), 2048);
}

/* Sum of grad[0 .. count), count arrays, in the tree of tessera/comm.h; left in grad[0]. */
static void gpt_tree(float **grad, int64_t count, int64_t elements)
{
    int64_t left = 1;

    if (count == 1)
        return;
    while (2 * left < count)
        left *= 2;
    gpt_tree(grad, left, elements);
    gpt_tree(grad + left, count - left, elements);
    for (int64_t i = 0; i < elements; i++)
        grad[0][i] += grad[left][i];
}

enum { LEAVES_MAX = 7, LEAF_ROWS = 2, LEAF_T = 6 };

/* Several leaves at once are as many passes of one leaf, added in the tree: all bits; with logits
 * of `group` leaves at a time. */
static void gpt_check_leaves(const struct gpt_words *words, enum tess_dtype dtype, int leaves,
                             int group)
{
    enum { ROWS = LEAF_ROWS, T = LEAF_T };
    struct tess_model_input input = gpt_input(T, 11, leaves * ROWS, ROWS);
    struct model_driver all, one[LEAVES_MAX];
    int64_t logits[2] = {0};

    input.dtype = dtype;
    gpt_open(&all, gpt_kernel, &input, words);
    input.rows = ROWS;
    for (int leaf = 0; leaf < leaves; leaf++) {
        gpt_open(&one[leaf], gpt_kernel, &input, words);
        one[leaf].row_first = leaf * ROWS;
        one[leaf].loss_count = all.loss_count;
        memcpy(one[leaf].x_low, (int32_t *)all.x_low + leaf * ROWS * T, ROWS * T * sizeof(int32_t));
        memcpy(one[leaf].label, all.label + leaf * ROWS * T, ROWS * T * sizeof(int32_t));
        model_forward(&one[leaf]);
        model_backward(&one[leaf]);
    }
    model_forward(&all);
    model_backward(&all);
    for (int32_t t = 0; t < all.declare.tensor_count; t++)
        if (strcmp(all.declare.tensor[t].name, "logits") == 0) {
            logits[0] += all.declare.tensor[t].count;
            logits[1] += one[0].declare.tensor[t].count;
        }
    assert_int_equal(logits[0], group * logits[1]);
    for (int leaf = 0; leaf < leaves; leaf++) {
        assert_memory_equal(one[leaf].loss, all.loss + leaf * ROWS, ROWS * sizeof(float));
        assert_memory_equal(one[leaf].correct, all.correct + leaf * ROWS, ROWS * sizeof(int32_t));
    }
    for (int32_t p = 0; p < all.declare.param_count; p++) {
        float *grad[LEAVES_MAX];

        /* The driver has added tied gradients to their sources, leaf by leaf: another sum. */
        if (all.declare.param[0].unit == all.declare.param[p].unit &&
            all.declare.param[all.declare.param_count - 1].flags & TESS_PARAM_TIED)
            continue;
        for (int leaf = 0; leaf < leaves; leaf++)
            grad[leaf] = one[leaf].grad[p];
        gpt_tree(grad, leaves, model_param_count(&all, p));
        assert_memory_equal(grad[0], all.grad[p], gpt_bytes(&all, p));
    }
    for (int leaf = 0; leaf < leaves; leaf++)
        model_close(&one[leaf]);
    model_close(&all);
}

static void case_leaves(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < GPT_SMALL_COUNT; i++) {
        if (!gpt_matters(&gpt_small[i]))
            continue;
        gpt_check_leaves(&gpt_small[i], TESS_F32, 7, 7);
        gpt_check_leaves(&gpt_small[i], TESS_BF16, 7, 7);
    }
    /* 384 KiB of logits a leaf. */
    const struct gpt_words large = {{"--layers=1", "--heads=2", "--width=8", "--tied=off",
                                     "--vocab=8192", "--head-mib=1", NULL}};
    gpt_check_leaves(&large, TESS_F32, 6, 2);
    gpt_check_leaves(&large, TESS_F32, 7, 1);
}

/* ---- what is kept ---------------------------------------------------------------------------- */

/* Bytes per position of the tensors of unit h0 with that life; `saved`: with its output. */
static double gpt_kept(const struct tess_declare *declare, enum tess_life life, int64_t rows)
{
    const int64_t word = (int64_t)tess_dtype_bytes(declare->dtype);
    int64_t bytes = 0;
    int32_t unit = 0;

    while (strcmp(declare->unit[unit].name, "h0") != 0)
        unit++;
    if (life == TESS_LIFE_SAVED)
        bytes += declare->unit[unit].output_count * word;
    for (int32_t t = 0; t < declare->tensor_count; t++)
        if (declare->tensor[t].unit == unit && declare->tensor[t].life == life)
            bytes += declare->tensor[t].count * (int64_t)tess_dtype_bytes(declare->tensor[t].dtype);
    assert_int_equal(rows, declare->rows);
    return (double)bytes;
}

/* The formula of the comment at the top of gpt_block.c. */
static void gpt_check_kept(const struct gpt_words *words, bool llama, double kv, double ffn,
                           enum tess_dtype dtype, struct tess_tensor_axis axis)
{
    enum { T = 16, C = 64, H = 8 };
    const double e = (double)tess_dtype_bytes(dtype), share = axis.sequence ? 1.0 / axis.parts : 1;
    const double mine = (double)axis.count / axis.parts, d = (double)C / H;
    const double fixed = 2 * C * e + (llama ? 8 : 16);
    const double cut = (2 * C + 2 * kv * d + (llama ? 2 : 1) * ffn) * e + 4 * H;
    struct tess_model_input input = gpt_input(T, 256, 4, 2);
    struct tess_declare declare = {.rows = 4, .leaf_rows = 2, .dtype = dtype};
    const struct tess_model_ops *ops;

    input.dtype = dtype;
    input.axis = axis;
    input.stacks = gpt_stacked;
    assert_int_equal(tess_registry_get_model("gpt", &ops), TESS_OK);
    void *options = model_read_options(ops, words->word, gpt_count(words));
    void *state = calloc(1, ops->state_size);
    assert_non_null(state);
    assert_int_equal(tess_declare_model(&declare, ops, state, options, &input), TESS_OK);
    assert_true(gpt_kept(&declare, TESS_LIFE_SAVED, 4) == T * (share * fixed + mine * cut));
    assert_true(gpt_kept(&declare, TESS_LIFE_REMADE, 4) == T * e * (share * 2 * C + mine * ffn));
    assert_true(gpt_kept(&declare, TESS_LIFE_LEAVES, 4) == 0);
    assert_true(gpt_kept(&declare, TESS_LIFE_BATCH, 4) == 0);
    if (!llama && dtype == TESS_BF16 && axis.parts == 1)
        assert_true(gpt_kept(&declare, TESS_LIFE_SAVED, 4) == T * (20 * C + 16 + 4 * H) &&
                    gpt_kept(&declare, TESS_LIFE_REMADE, 4) == T * 12 * C);
    tess_declare_fini(&declare);
    free(options);
    free(state);
}

static void case_kept_bytes(void **unused)
{
    const struct gpt_words gpt2 = {{"--layers=1", "--heads=8", "--width=64", NULL}};
    const struct gpt_words llama = {
        {"--style=llama", "--layers=1", "--heads=8", "--kv-heads=4", "--width=64", NULL}};
    const struct tess_tensor_axis axis[] = {
        {.parts = 1, .count = 1, .rank_count = 1},
        {.parts = 4, .count = 2, .rank_count = 2, .first = 2, .rank = 1},
        {.parts = 4, .count = 1, .rank_count = 4, .sequence = true}};

    (void)unused;
    for (int a = 0; a < 3; a++)
        for (int i = 0; i < 2; i++) {
            const enum tess_dtype dtype = i == 0 ? TESS_F32 : TESS_BF16;

            gpt_check_kept(&gpt2, false, 8, 256, dtype, axis[a]);
            gpt_check_kept(&llama, true, 4, 192, dtype, axis[a]);
        }
}

/* Selective recompute gives the same bits. */
static void case_remake(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < 2 * GPT_SMALL_COUNT; i++) {
        struct tess_model_input input = gpt_input(7, 11, 4, 2);
        struct model_driver kept, made;

        if (!gpt_matters(&gpt_small[i % GPT_SMALL_COUNT]))
            continue;
        input.dtype = i < GPT_SMALL_COUNT ? TESS_F32 : TESS_BF16;
        gpt_open(&kept, gpt_kernel, &input, &gpt_small[i % GPT_SMALL_COUNT]);
        gpt_open(&made, gpt_kernel, &input, &gpt_small[i % GPT_SMALL_COUNT]);
        made.remake = true;
        model_forward(&kept);
        model_forward(&made);
        model_backward(&kept);
        model_backward(&made);
        for (int32_t p = 0; p < kept.declare.param_count; p++)
            assert_memory_equal(kept.grad[p], made.grad[p], gpt_bytes(&kept, p));
        model_close(&kept);
        model_close(&made);
    }
}

/* kernel [stacked] */
int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_leaves),
        cmocka_unit_test(case_kept_bytes),
        cmocka_unit_test(case_remake),
    };
    const struct CMUnitTest head[] = {cmocka_unit_test(case_chunks),
                                      cmocka_unit_test(case_chunk_sizes)};

    if (argc > 1)
        gpt_kernel = argv[1];
    gpt_stacked = argc > 2;
    if (!gpt_stacked && cmocka_run_group_tests(head, NULL, NULL) != 0)
        return 1;
    return cmocka_run_group_tests(cases, NULL, NULL);
}
