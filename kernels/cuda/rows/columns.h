/*
 * Sums over rows, by leaves, without atomics. Rows of a leaf are cut into slabs; every slab gives a
 * row of partial sums; the slabs of a leaf are added in one fixed order, then the leaves as the
 * tree of tessera/comm.h. The order depends on the rows of a leaf and on the number of columns
 * alone.
 */
#ifndef KERNELS_CUDA_ROWS_COLUMNS_H
#define KERNELS_CUDA_ROWS_COLUMNS_H

#include "needs/needs.h"
#include "tessera/tensor.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * out[n] = (add ? out : 0) + the sum over the rows of x [leaves * leaf_rows, n], f32, bf16 or f16,
 * by leaves. n >= 1. scratch: of tess__cuda_column_sum_bytes, 16-byte aligned.
 */
cudaError_t tess__cuda_column_sum(cudaStream_t stream, enum tess_dtype dtype, int64_t leaves,
                                  int64_t leaf_rows, int64_t n, const void *x, bool add, float *out,
                                  void *scratch);

#ifdef __cplusplus
}
#endif

#endif
