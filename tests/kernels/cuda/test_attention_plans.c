/*
 * Graphs of attention (kernels/cuda/attention/attention_graph_cudnn.c) without a device: cuDNN
 * itself recognises them, compiles its kernels for an H200 that is described to it, and makes their
 * plans, over a driver on which code can be loaded and nothing run (fake_loader.c). What cannot be
 * seen so is whether they run, and what they compute. Skipped where the library makes no plans for
 * a description, which is of 9.8 and later.
 */
#include "cuda/attention/attention_graph.h"
#include "described.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define WORKSPACE ((int64_t)1 << 30)

static const struct cudnn_library *library;
static struct cudnn_place place;

static struct tess_op_desc attention(enum tess_dtype dtype, int32_t heads, int32_t kv_heads,
                                     int64_t head_size)
{
    const int64_t stride = (heads + 2 * kv_heads) * head_size; /* q, k, v in one array */
    return (struct tess_op_desc){.kind = TESS_OP_ATTENTION,
                                 .dtype = dtype,
                                 .rows = 2,
                                 .leaf_rows = 2,
                                 .length = 512,
                                 .heads = heads,
                                 .kv_heads = kv_heads,
                                 .in = head_size,
                                 .out = head_size,
                                 .q_stride = stride,
                                 .kv_stride = stride};
}

static struct cudnn_choice choose(const struct tess_op_desc *d, enum attention_way way,
                                  int64_t workspace_bytes)
{
    struct cudnn_choice choice;
    assert_int_equal(
        tess__cudnn_attention_choose(d, d->rows, way, workspace_bytes, &place, &choice), TESS_OK);
    return choice;
}

/* A plan that always gives the same bits. */
static void finds(const struct tess_op_desc *d, enum attention_way way)
{
    struct cudnn_choice choice = choose(d, way, WORKSPACE);
    assert_non_null(choice.plan);
    assert_int_equal(choice.notes & 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, 0);
    assert_int_equal(choice.notes & 1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, 0);
    tess__cudnn_choice_drop(&choice);
    assert_null(choice.plan);
}

static void case_ways(void **state)
{
    (void)state;
    const struct tess_op_desc shared = attention(TESS_BF16, 8, 2, 64);
    finds(&shared, ATTENTION_FORWARD);
    finds(&shared, ATTENTION_BACKWARD);
}

/* Backward keeps the scores, of 2 bytes, and little else. */
static void case_workspace(void **state)
{
    (void)state;
    const struct tess_op_desc d = attention(TESS_F16, 4, 4, 128);
    const int64_t scores = 2 * 4 * 512 * 512 * 2;
    struct cudnn_choice backward = choose(&d, ATTENTION_BACKWARD, WORKSPACE);
    assert_non_null(backward.plan);
    assert_in_range(backward.workspace_bytes, scores, scores + scores / 8);
    tess__cudnn_choice_drop(&backward);
}

/* What is left to our own kernels. */
static void case_none(void **state)
{
    (void)state;
    struct tess_op_desc none[] = {attention(TESS_F32, 4, 4, 64), attention(TESS_BF16, 4, 4, 12),
                                  attention(TESS_BF16, 4, 4, 64)};
    none[2].length = 1;
    for (int i = 0; i < 3; i++)
        assert_null(choose(&none[i], ATTENTION_BACKWARD, WORKSPACE).plan);
}

int main(void)
{
    static const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_ways),
        cmocka_unit_test(case_workspace),
        cmocka_unit_test(case_none),
    };
    const char *why;
    library = tess__cudnn_library(&why);
    if (library == NULL || !describe_device(library, &place)) {
        printf("%s\n", library == NULL ? why : "this cuDNN makes no plans for such a description");
        return 77;
    }
    const int failed = cmocka_run_group_tests(cases, NULL, NULL);
    return library->cudnnBackendDestroyDescriptor(place.properties) == CUDNN_STATUS_SUCCESS ? failed
                                                                                            : 1;
}
