/*
 * Graphs of convolutions (kernels/cuda/products/conv_graph_cudnn.c) without a device: cuDNN itself
 * reads every descriptor, advises engines for a GPU that is described to it in words, here an H200,
 * and makes their plans. What cannot be seen so is whether they run, and what they compute. Skipped
 * where the library does not make plans for a description, which is of 9.8 and later.
 *
 * With a word, the library that TESSERA_CUDNN names is none, and must be refused for that reason:
 *
 *   test_cudnn [missing|old|lacking]
 */
#include "cuda/products/conv_graph.h"
#include "described.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct cudnn_library *library;
static struct cudnn_place place;

/* ---- plans ----------------------------------------------------------------------------------- */

/* Images, height, width, in, out, window, stride, padding: layers of models, and corners. */
static const int64_t shape_table[][8] = {
    {8, 28, 28, 1, 32, 3, 1, 1},     {8, 14, 14, 32, 64, 3, 1, 1}, {4, 56, 56, 64, 64, 1, 1, 0},
    {2, 224, 224, 3, 64, 7, 2, 3},   {1, 9, 7, 5, 3, 3, 2, 1},     {3, 8, 8, 6, 10, 5, 1, 2},
    {16, 14, 14, 256, 512, 3, 2, 1}, {1, 1, 1, 1, 1, 1, 1, 0},
};

#define SHAPE_COUNT (sizeof(shape_table) / sizeof(shape_table[0]))

static struct cudnn_conv conv(size_t shape, enum tess_dtype dtype, enum conv_way way)
{
    const int64_t *s = shape_table[shape];
    return (struct cudnn_conv){
        .way = way,
        .d = {.kind = TESS_OP_CONV2D,
              .dtype = dtype,
              .rows = s[0],
              .leaf_rows = s[0],
              .height = s[1],
              .width = s[2],
              .in = s[3],
              .out = s[4],
              .window = (int32_t)s[5],
              .stride = (int32_t)s[6],
              .padding = (int32_t)s[7]},
    };
}

static bool noted(const struct cudnn_choice *choice, cudnnBackendNumericalNote_t note)
{
    return (choice->notes >> note & 1) != 0;
}

/* Finds a plan or not, and what is found may be used. */
static bool finds(const struct cudnn_conv *c)
{
    struct cudnn_choice choice;
    assert_int_equal(tess__cudnn_conv_choose(c, &place, &choice), TESS_OK);
    const bool found = choice.plan != NULL;
    if (found) {
        assert_false(noted(&choice, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
        assert_false(noted(&choice, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION));
        assert_false(noted(&choice, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
        assert_false(noted(&choice, CUDNN_NUMERICAL_NOTE_WINOGRAD));
        assert_false(noted(&choice, CUDNN_NUMERICAL_NOTE_FFT));
        assert_false(c->d.dtype == TESS_F32 && !c->tf32 &&
                     noted(&choice, CUDNN_NUMERICAL_NOTE_TENSOR_CORE));
        assert_in_range(choice.workspace_bytes, 0, 64 << 20);
    }
    tess__cudnn_choice_drop(&choice);
    assert_null(choice.plan);
    return found;
}

/* In f32 cuDNN does everything. */
static void case_f32(void **state)
{
    (void)state;
    for (size_t s = 0; s < SHAPE_COUNT; s++)
        for (int way = 0; way < CONV_WAY_COUNT; way++) {
            const struct cudnn_conv c = conv(s, TESS_F32, (enum conv_way)way);
            if (!finds(&c))
                fail_msg("no engine for shape %zu, way %d in f32", s, way);
        }
}

/* Of 16 bits, what is stored in 16 bits; weight gradients, which are f32, by products. */
static void half(enum tess_dtype dtype)
{
    for (size_t s = 0; s < SHAPE_COUNT; s++)
        for (int way = 0; way < CONV_WAY_COUNT; way++) {
            const struct cudnn_conv c = conv(s, dtype, (enum conv_way)way);
            const bool found = finds(&c);
            if (way == CONV_WEIGHT && found)
                print_message("%s: cuDNN has a weight gradient in f32\n", tess_dtype_name(dtype));
            else if (way != CONV_WEIGHT && !found)
                fail_msg("no engine for shape %zu, way %d in %s", s, way, tess_dtype_name(dtype));
        }
}

static void case_bf16(void **state)
{
    (void)state;
    half(TESS_BF16);
}

static void case_f16(void **state)
{
    (void)state;
    half(TESS_F16);
}

/* The engine that would be first with tensor cores is one of them, and is not taken without. */
static void case_tf32(void **state)
{
    (void)state;
    struct cudnn_conv c = conv(1, TESS_F32, CONV_FORWARD);
    struct cudnn_choice with, without;
    assert_int_equal(tess__cudnn_conv_choose(&c, &place, &without), TESS_OK);
    c.tf32 = true;
    assert_int_equal(tess__cudnn_conv_choose(&c, &place, &with), TESS_OK);
    assert_true(with.plan != NULL && without.plan != NULL);
    assert_true(noted(&with, CUDNN_NUMERICAL_NOTE_TENSOR_CORE));
    assert_int_not_equal(with.engine, without.engine);
    tess__cudnn_choice_drop(&with);
    tess__cudnn_choice_drop(&without);
}

/* Ranks ask apart, and must get the same plan. */
static void case_again(void **state)
{
    (void)state;
    for (size_t s = 0; s < SHAPE_COUNT; s++) {
        const struct cudnn_conv c = conv(s, TESS_BF16, CONV_DATA);
        struct cudnn_choice first, second;
        assert_int_equal(tess__cudnn_conv_choose(&c, &place, &first), TESS_OK);
        assert_int_equal(tess__cudnn_conv_choose(&c, &place, &second), TESS_OK);
        assert_int_equal(first.engine, second.engine);
        assert_int_equal(first.workspace_bytes, second.workspace_bytes);
        tess__cudnn_choice_drop(&first);
        tess__cudnn_choice_drop(&second);
    }
}

/* A convolution of no channels: cuDNN's own words come back, and nothing stays. */
static void case_refused(void **state)
{
    (void)state;
    struct cudnn_conv c = conv(1, TESS_F32, CONV_FORWARD);
    struct cudnn_choice choice;
    c.d.in = 0;
    assert_int_not_equal(tess__cudnn_conv_choose(&c, &place, &choice), TESS_OK);
    assert_non_null(strstr(tess_log_last_error(), "cuDNN: "));
    assert_non_null(strstr(tess_log_last_error(), "CUDNN_STATUS_"));
    assert_null(choice.plan);
}

static void case_alignment(void **state)
{
    (void)state;
    const struct cudnn_conv odd = conv(4, TESS_BF16, CONV_WEIGHT);
    assert_int_equal(tess__cudnn_conv_alignment(&odd, CUDNN_X), 2);    /* 9 7 5 elements */
    assert_int_equal(tess__cudnn_conv_alignment(&odd, CUDNN_W), 4);    /* 3 3 5, f32 */
    assert_int_equal(tess__cudnn_conv_alignment(&odd, CUDNN_Y), 8);    /* 5 4 3 */
    assert_int_equal(tess__cudnn_conv_alignment(&odd, CUDNN_BIAS), 2); /* 3 */
    const struct cudnn_conv even = conv(1, TESS_F32, CONV_FORWARD);
    assert_int_equal(tess__cudnn_conv_alignment(&even, CUDNN_X), 64);
    assert_int_equal(tess__cudnn_conv_alignment(&even, CUDNN_W), 64);
}

/* ---- libraries that are none ----------------------------------------------------------------- */

static const char *const *reason;

static void case_reason(void **state)
{
    (void)state;
    const char *why = NULL;
    char text[512] = "";
    assert_null(tess__cudnn_library(&why));
    assert_false(tess__cudnn_present(text, sizeof(text)));
    assert_string_equal(text, why);
    for (int i = 1; i < 4 && reason[i] != NULL; i++)
        if (strstr(text, reason[i]) == NULL)
            fail_msg("'%s' does not contain '%s'", text, reason[i]);
    assert_null(strchr(text, '\n'));
}

int main(int argc, char **argv)
{
    static const char *const reason_table[][4] = {
        {"missing", "cannot be opened", "/nowhere/libcudnn.so.9", "TESSERA_CUDNN"},
        {"old", "is version 8907", "version 9 of"},
        {"lacking", "has no function cudnnGetErrorString", "version 9 of"},
    };
    static const struct CMUnitTest plans[] = {
        cmocka_unit_test(case_f32),       cmocka_unit_test(case_bf16),
        cmocka_unit_test(case_f16),       cmocka_unit_test(case_tf32),
        cmocka_unit_test(case_again),     cmocka_unit_test(case_refused),
        cmocka_unit_test(case_alignment),
    };
    static const struct CMUnitTest reasons[] = {cmocka_unit_test(case_reason)};
    for (size_t r = 0; argc > 1 && r < sizeof(reason_table) / sizeof(reason_table[0]); r++)
        if (strcmp(reason_table[r][0], argv[1]) == 0)
            reason = reason_table[r];
    if (reason != NULL)
        return cmocka_run_group_tests(reasons, NULL, NULL);
    const char *why;
    library = tess__cudnn_library(&why);
    if (library == NULL || !describe_device(library, &place)) {
        printf("%s\n", library == NULL ? why : "this cuDNN makes no plans for such a description");
        return 77;
    }
    const int failed = cmocka_run_group_tests(plans, NULL, NULL);
    return library->cudnnBackendDestroyDescriptor(place.properties) == CUDNN_STATUS_SUCCESS ? failed
                                                                                            : 1;
}
