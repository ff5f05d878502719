/* The slots of causal attention. Contracts: tessera/kernel.h. */
#ifndef KERNELS_CUDA_ATTENTION_H
#define KERNELS_CUDA_ATTENTION_H

#include "tessera/kernel.h"

/* TESS_ERR_UNSUPPORTED where a grid of blocks or 32-bit strides would not do. */
enum tess_status tess__cuda_attention_needs(const struct tess_op_desc *desc,
                                            struct tess_op_needs *needs_out);
enum tess_status tess__cuda_attention_open(struct tess_op *op);

/* In words, which kernels an operation runs; a literal. Arrays that are not 16-byte aligned make a
 * call take the plain ones. Pure. */
const char *tess__cuda_attention_choice(const struct tess_op *op);

enum tess_status tess__cuda_attention_forward(struct tess_op *op, const void *q, const void *k,
                                              const void *v, void *y, float *lse);
enum tess_status tess__cuda_attention_backward(struct tess_op *op, const void *q, const void *k,
                                               const void *v, const void *y, const void *dy,
                                               const float *lse, void *dq, void *dk, void *dv);
void tess__cuda_attention_decode(struct tess_kernel *kernel, const struct tess_op_desc *desc,
                                 int64_t position, const void *q, const void *k, const void *v,
                                 void *y);

#endif
