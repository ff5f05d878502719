/* The tree over leaves: against the recursive definition, for every number of leaves up to 40. */
#include "device.h"

#include "ref/fold.h"

#include <stdlib.h>
#include <string.h>

#define FOLD_LEAVES_MAX 40

static void fold_leaves(int64_t leaves, int64_t count)
{
    struct draw draw = {(uint64_t)(leaves * 1000 + count)};
    float *leaf = floats(leaves * count), *expected = floats(count), *sum = floats(count);
    for (int64_t i = 0; i < leaves * count; i++)
        leaf[i] = (float)draw_real(&draw, TESS_F32);
    memset(sum, 0xff, (size_t)count * sizeof(float));
    /* The scratch is exactly what was asked for: the sanitizers see a byte too much. */
    char *scratch = malloc(tess__fold_bytes(count, leaves) + 1);
    struct tess_fold fold;
    tess__fold_init(&fold, count, sum, scratch);
    for (int64_t l = 0; l < leaves; l++) {
        memcpy(tess__fold_leaf(&fold), leaf + l * count, (size_t)count * sizeof(float));
        tess__fold_push(&fold);
    }
    tess__fold_finish(&fold);
    tree_sum(leaf, leaves, count, expected);
    check_bytes("fold", sum, expected, (size_t)count * sizeof(float));
    free(leaf);
    free(expected);
    free(sum);
    free(scratch);
}

static void case_every_count(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 3, 16, 17, 100};
    for (int64_t leaves = 0; leaves <= FOLD_LEAVES_MAX; leaves++)
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
            fold_leaves(leaves, counts[c]);
}

/* The order matters in f32: were it not the tree's, this sum would be another number. */
static void case_order(void **state)
{
    (void)state;
    float leaf[3] = {1.0f, 0x1p-24f, 0x1p-24f}, sum, scratch[32];
    struct tess_fold fold;
    tess__fold_init(&fold, 1, &sum, scratch);
    for (int l = 0; l < 3; l++) {
        *tess__fold_leaf(&fold) = leaf[l];
        tess__fold_push(&fold);
    }
    tess__fold_finish(&fold);
    /* (1 + 2^-24) + 2^-24 = 1, whereas 1 + (2^-24 + 2^-24) = 1 + 2^-23 */
    assert_true(sum == 1.0f);
}

/* The picture in ref/fold.h: what waits on the stack after each of 5 leaves. */
static void case_picture(void **state)
{
    (void)state;
    static const float target[] = {1, 3, 3, 10, 10}, above[] = {0, 0, 3, 0, 5};
    static const int depth[] = {1, 1, 2, 1, 2};
    float sum, scratch[64];
    struct tess_fold fold;
    assert_int_equal(tess__fold_bytes(1, 5), 3 * 64);
    tess__fold_init(&fold, 1, &sum, scratch);
    for (int l = 0; l < 5; l++) {
        *tess__fold_leaf(&fold) = (float)(l + 1);
        tess__fold_push(&fold);
        assert_int_equal(fold.depth, depth[l]);
        assert_true(sum == target[l]);
        if (depth[l] > 1)
            assert_true(scratch[0] == above[l]);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_every_count),
        cmocka_unit_test(case_order),
        cmocka_unit_test(case_picture),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
