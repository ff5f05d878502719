/* The operations on sequences that sequence.c offers to the table of the backend, cpu.c. Contracts:
 * tessera/kernel.h. */
#ifndef KERNELS_CPU_SEQUENCE_H
#define KERNELS_CPU_SEQUENCE_H

#include "tessera/kernel.h"

/* Of any kind but LINEAR and CONV2D; open has nothing to do for pools and BATCH_NORM. */
enum tess_status tess__cpu_sequence_needs(const struct tess_op_desc *desc,
                                          struct tess_op_needs *needs_out);
enum tess_status tess__cpu_sequence_open(struct tess_op *op);

enum tess_status tess__cpu_norm_forward(struct tess_op *op, const void *x, const void *add,
                                        void *sum, const void *gamma, const void *beta, void *y,
                                        float *mean, float *rstd);
enum tess_status tess__cpu_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                         const void *gamma, const float *mean, const float *rstd,
                                         const void *add, void *dx, float *dgamma, float *dbeta);
enum tess_status tess__cpu_attention_forward(struct tess_op *op, const void *q, const void *k,
                                             const void *v, void *y, float *lse);
enum tess_status tess__cpu_attention_backward(struct tess_op *op, const void *q, const void *k,
                                              const void *v, const void *y, const void *dy,
                                              const float *lse, void *dq, void *dk, void *dv);
enum tess_status tess__cpu_embedding_forward(struct tess_op *op, const int32_t *token,
                                             int64_t first, const void *table, const void *add,
                                             void *y);
enum tess_status tess__cpu_embedding_backward(struct tess_op *op, const int32_t *token,
                                              int64_t first, const void *dy, float *dtable);
void tess__cpu_attention_decode(struct tess_kernel *kernel, const struct tess_op_desc *desc,
                                int64_t position, const void *q, const void *k, const void *v,
                                void *y);
void tess__cpu_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t length,
                    int64_t first, int32_t heads, int64_t head_size, int64_t stride, float base,
                    bool inverse, void *x);
void tess__cpu_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t classes, int64_t stride, const void *logits, float *max);
void tess__cpu_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t classes, int64_t stride, int64_t first, const void *logits,
                        const int32_t *label, const float *max, float *sum, float *target,
                        float *best);
void tess__cpu_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t classes, int64_t stride, int64_t first, float scale,
                         const void *logits, const int32_t *label, const float *max,
                         const float *sum, void *dlogits);
void tess__cpu_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length,
                         const int32_t *label, const float *max, const float *sum,
                         const float *target, const float *best, float *loss, int32_t *correct);
void tess__cpu_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                            int64_t classes, float scale, const void *logits, const int32_t *label,
                            void *dlogits, float *loss, int32_t *correct);

#endif
