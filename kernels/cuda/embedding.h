/* Slots of embedding.c. Contracts: tessera/kernel.h. */
#ifndef KERNELS_CUDA_EMBEDDING_H
#define KERNELS_CUDA_EMBEDDING_H

#include "tessera/kernel.h"

enum tess_status tess__cuda_embedding_needs(const struct tess_op_desc *desc,
                                            struct tess_op_needs *needs_out);
enum tess_status tess__cuda_embedding_forward(struct tess_op *op, const int32_t *token,
                                              int64_t first, const void *table, const void *add,
                                              void *y);
enum tess_status tess__cuda_embedding_backward(struct tess_op *op, const int32_t *token,
                                               int64_t first, const void *dy, float *dtable);

#endif
