/*
 * What the operations of the backend `cuda` need, and which it can run: pure arithmetic on an
 * operation's description, without CUDA. It is part of the library, so that runs on GPUs are
 * planned to the byte where neither a device nor libtessera_cuda.so is there; the module, which
 * computes, takes the same functions from the library. C and C++.
 */
#ifndef KERNELS_NEEDS_NEEDS_H
#define KERNELS_NEEDS_NEEDS_H

#include "tessera/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* tess_kernel_ops.supports and op_needs. */
bool tess__cuda_supports(const struct tess_op_desc *desc, char *why, size_t why_bytes);
enum tess_status tess__cuda_op_needs(const struct tess_op_desc *desc,
                                     struct tess_op_needs *needs_out);

/* supports of linear layers and convolutions. */
bool tess__cuda_matmul_supports(const struct tess_op_desc *desc, char *why, size_t why_bytes);

/* op_needs by kind; *needs_out is all zero. */
typedef enum tess_status cuda_needs(const struct tess_op_desc *desc,
                                    struct tess_op_needs *needs_out);
cuda_needs tess__cuda_linear_needs, tess__cuda_conv_needs, tess__cuda_pool_needs,
    tess__cuda_batch_norm_needs, tess__cuda_norm_needs, tess__cuda_attention_needs,
    tess__cuda_embedding_needs;

/* Bytes of scratch of tess__cuda_column_sum (cuda/rows/columns.h). */
size_t tess__cuda_column_sum_bytes(enum tess_dtype dtype, int64_t leaves, int64_t leaf_rows,
                                   int64_t n);

/* Positions of attention: a tile beyond the end still has 32-bit ones. */
#define CUDA_ATTENTION_LENGTH_MAX (INT32_MAX - 1024)

#ifdef __cplusplus
}
#endif

#endif
