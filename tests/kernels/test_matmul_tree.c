/*
 * The tree over leaves that CUDA's products go into: against the recursive definition, for every
 * number of leaves up to 40, with leaves that add themselves to what is there and without. What
 * adds two arrays is the accumulate of ref.
 */
#include "device.h"

#include "cuda/products/matmul_tree.h"

#include <stdlib.h>
#include <string.h>

#define LEAVES_MAX 40

static struct device device;

static void run(int64_t leaves, int64_t count, bool onto)
{
    struct draw draw = {(uint64_t)(leaves * 1000 + count)};
    float *leaf = floats(leaves * count), *expected = floats(count), *sum = floats(count);
    for (int64_t i = 0; i < leaves * count; i++)
        leaf[i] = (float)draw_real(&draw, TESS_F32);
    memset(sum, 0xff, (size_t)count * sizeof(float));
    /* The scratch is exactly what was asked for: the sanitizers see a byte too much. */
    const size_t bytes = tess__cuda_tree_bytes(count, leaves, onto);
    char *scratch = malloc(bytes + 1);
    assert_non_null(scratch);
    memset(scratch, 0xff, bytes + 1);
    struct cuda_tree tree = tess__cuda_tree(device.kernel, count, onto, sum, scratch);
    for (int64_t l = 0; l < leaves; l++) {
        float beta;
        float *to = tess__cuda_tree_leaf(&tree, &beta);
        assert_true(beta == (onto && l % 2 ? 1.0f : 0.0f));
        for (int64_t i = 0; i < count; i++)
            to[i] = beta > 0 ? leaf[l * count + i] + to[i] : leaf[l * count + i];
        tess__cuda_tree_push(&tree);
    }
    tess__cuda_tree_finish(&tree);
    tree_sum(leaf, leaves, count, expected);
    check_bytes("tree", sum, expected, (size_t)count * sizeof(float));
    free(leaf);
    free(expected);
    free(sum);
    free(scratch);
}

static void case_every_count(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 3, 64, 65, 100};
    for (int64_t leaves = 1; leaves <= LEAVES_MAX; leaves++)
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
            for (int onto = 0; onto < 2; onto++)
                run(leaves, counts[c], onto);
}

/* One leaf, or a pair that adds itself, costs no scratch. */
static void case_bytes(void **state)
{
    (void)state;
    assert_int_equal(tess__cuda_tree_bytes(100, 1, true), 0);
    assert_int_equal(tess__cuda_tree_bytes(100, 2, true), 0);
    assert_int_equal(tess__cuda_tree_bytes(100, 1, false), 0);
    assert_int_equal(tess__cuda_tree_bytes(100, 2, false), 128 * sizeof(float));
    assert_int_equal(tess__cuda_tree_bytes(100, 8, true), 2 * 128 * sizeof(float));
}

int main(void)
{
    device_open(&device, "ref", 4096);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_every_count),
        cmocka_unit_test(case_bytes),
    };
    const int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
