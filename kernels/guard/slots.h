/* What the files of guard/ offer to its table, guard.c. Contracts: tessera/kernel.h. */
#ifndef KERNELS_GUARD_SLOTS_H
#define KERNELS_GUARD_SLOTS_H

#include "tessera/kernel.h"

enum tess_status tess__guard_norm_forward(struct tess_op *op, const void *x, const void *add,
                                          void *sum, const void *gamma, const void *beta, void *y,
                                          float *mean, float *rstd);
enum tess_status tess__guard_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                           const void *gamma, const float *mean, const float *rstd,
                                           const void *add, void *dx, float *dgamma, float *dbeta);
enum tess_status tess__guard_attention_forward(struct tess_op *op, const void *q, const void *k,
                                               const void *v, void *y, float *lse);
enum tess_status tess__guard_attention_backward(struct tess_op *op, const void *q, const void *k,
                                                const void *v, const void *y, const void *dy,
                                                const float *lse, void *dq, void *dk, void *dv);
enum tess_status tess__guard_embedding_forward(struct tess_op *op, const int32_t *token,
                                               int64_t first, const void *table, const void *add,
                                               void *y);
enum tess_status tess__guard_embedding_backward(struct tess_op *op, const int32_t *token,
                                                int64_t first, const void *dy, float *dtable);
void tess__guard_attention_decode(struct tess_kernel *kernel, const struct tess_op_desc *desc,
                                  int64_t position, const void *q, const void *k, const void *v,
                                  void *y);
void tess__guard_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                      int64_t length, int64_t first, int32_t heads, int64_t head_size,
                      int64_t stride, float base, bool inverse, void *x);
void tess__guard_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *x, void *y);
void tess__guard_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                               const void *x, const void *dy, void *dx);
void tess__guard_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                const void *gate, const void *up, void *y);
void tess__guard_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                 const void *gate, const void *up, const void *dy, void *dgate,
                                 void *dup);
void tess__guard_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                          int64_t classes, int64_t stride, const void *logits, float *max);
void tess__guard_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                          int64_t classes, int64_t stride, int64_t first, const void *logits,
                          const int32_t *label, const float *max, float *sum, float *target,
                          float *best);
void tess__guard_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                           int64_t classes, int64_t stride, int64_t first, float scale,
                           const void *logits, const int32_t *label, const float *max,
                           const float *sum, void *dlogits);
void tess__guard_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length,
                           const int32_t *label, const float *max, const float *sum,
                           const float *target, const float *best, float *loss, int32_t *correct);

#endif
