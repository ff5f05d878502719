/* The gradient of a bias: sums over the rows of each leaf, then over the leaves. */
#include "cpu/cpu.h"
#include "ref/fold.h"

size_t tess__cpu_bias_scratch(int64_t cols, int64_t leaves)
{
    return tess__fold_bytes(cols, leaves) + tess__cpu_round_up((size_t)cols * sizeof(float));
}

void tess__cpu_bias_grad(const struct cpu_loops *loops, enum tess_dtype dtype, int64_t leaves,
                         int64_t rows_per_leaf, int64_t cols, bool add, const void *dy,
                         float *dbias, void *scratch)
{
    size_t leaf_bytes = (size_t)(rows_per_leaf * cols) * tess_dtype_bytes(dtype);
    struct tess_fold fold;
    float *sum = add ? (float *)(void *)((char *)scratch + tess__fold_bytes(cols, leaves)) : dbias;
    tess__fold_init(&fold, cols, sum, scratch);
    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        loops->column_sum(dtype, rows_per_leaf, cols, (const char *)dy + (size_t)leaf * leaf_bytes,
                          tess__fold_leaf(&fold));
        tess__fold_push(&fold);
    }
    tess__fold_finish(&fold);
    if (add)
        loops->plain_add(cols, sum, dbias);
}
