/*
 * Sums over rows, by leaves, without atomics: launchers of columns.cu, and the sizes of the arrays
 * between its stages. Rows of a leaf are cut into slabs; every slab gives a row of partial sums;
 * the slabs of a leaf are added in one fixed order, then the leaves as the tree of tessera/comm.h.
 * The order depends on the rows of a leaf and on the number of columns alone.
 */
#ifndef KERNELS_CUDA_LAUNCH_COLUMNS_H
#define KERNELS_CUDA_LAUNCH_COLUMNS_H

#include "tessera/tensor.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Rows of a slab, a multiple of `step` (rows that are under way at once): 8 steps or more, and few
 * enough slabs that writing and reading their sums costs little: at least 64 rows of 2 bytes for
 * one sum of 4 bytes, written and read. 512 slabs are some waves of blocks on any device.
 */
static inline int64_t tess__cuda_column_slab_rows(int64_t leaf_rows, int64_t step)
{
    const int64_t slabs_max = 512, steps_min = 8;
    int64_t steps = (leaf_rows + step * slabs_max - 1) / (step * slabs_max);
    return (steps > steps_min ? steps : steps_min) * step;
}

/* Bytes of scratch for the sum below. */
size_t tess__cuda_column_sum_bytes(enum tess_dtype dtype, int64_t leaves, int64_t leaf_rows,
                                   int64_t n);
/*
 * out[n] = (add ? out : 0) + the sum over the rows of x [leaves * leaf_rows, n], f32, bf16 or f16,
 * by leaves. n >= 1. scratch: as many bytes as the function above says, 16-byte aligned.
 */
cudaError_t tess__cuda_column_sum(cudaStream_t stream, enum tess_dtype dtype, int64_t leaves,
                                  int64_t leaf_rows, int64_t n, const void *x, bool add, float *out,
                                  void *scratch);

/* leaf[leaves, n] = for each leaf the sum of its rows of partial [leaves, slabs, n]. */
cudaError_t tess__cuda_column_leaves(cudaStream_t stream, int64_t leaves, int64_t slabs, int64_t n,
                                     const float *partial, float *leaf);
/* out[n] = (add ? out : 0) + the tree over leaf [leaves, n]; no leaves: 0. */
cudaError_t tess__cuda_column_tree(cudaStream_t stream, int64_t leaves, int64_t n,
                                   const float *leaf, bool add, float *out);
/* Both of them. leaf [leaves, n] may be used on the way. */
cudaError_t tess__cuda_column_finish(cudaStream_t stream, int64_t leaves, int64_t slabs, int64_t n,
                                     const float *partial, float *leaf, bool add, float *out);

#ifdef __cplusplus
}
#endif

#endif
