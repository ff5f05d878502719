/* What the files of ref/ offer to its table, ref.c. Contracts: tessera/kernel.h. */
#ifndef KERNELS_REF_SLOTS_H
#define KERNELS_REF_SLOTS_H

#include "tessera/kernel.h"

/* Scratch bytes of one operation, by kind. */
size_t tess__ref_linear_scratch(const struct tess_op_desc *desc);
size_t tess__ref_conv2d_scratch(const struct tess_op_desc *desc);
size_t tess__ref_pool_scratch(const struct tess_op_desc *desc);
size_t tess__ref_batch_norm_scratch(const struct tess_op_desc *desc);
size_t tess__ref_norm_scratch(const struct tess_op_desc *desc);
size_t tess__ref_attention_scratch(const struct tess_op_desc *desc);
size_t tess__ref_embedding_scratch(const struct tess_op_desc *desc);

enum tess_status tess__ref_linear_forward(struct tess_op *op, const void *x, const void *w,
                                          const void *bias, void *y);
enum tess_status tess__ref_linear_backward_data(struct tess_op *op, const void *dy, const void *w,
                                                void *dx);
enum tess_status tess__ref_linear_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                                  float *dw, float *dbias);

enum tess_status tess__ref_conv2d_forward(struct tess_op *op, const void *x, const void *w,
                                          const void *bias, void *y);
enum tess_status tess__ref_conv2d_backward_data(struct tess_op *op, const void *dy, const void *w,
                                                void *dx);
enum tess_status tess__ref_conv2d_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                                  float *dw, float *dbias);

enum tess_status tess__ref_max_pool_forward(struct tess_op *op, const void *x, void *y,
                                            uint8_t *which);
enum tess_status tess__ref_max_pool_backward(struct tess_op *op, const void *dy,
                                             const uint8_t *which, void *dx);
enum tess_status tess__ref_avg_pool_forward(struct tess_op *op, const void *x, void *y);
enum tess_status tess__ref_avg_pool_backward(struct tess_op *op, const void *dy, void *dx);

enum tess_status tess__ref_batch_norm_forward(struct tess_op *op, const void *x, const void *gamma,
                                              const void *beta, void *y, float *save_mean,
                                              float *save_rstd, float *mean_sum, float *var_sum);
enum tess_status tess__ref_batch_norm_infer(struct tess_op *op, const void *x, const void *gamma,
                                            const void *beta, const void *mean, const void *var,
                                            void *y);
enum tess_status tess__ref_batch_norm_backward(struct tess_op *op, const void *x, const void *y,
                                               const void *dy, const void *gamma,
                                               const float *save_mean, const float *save_rstd,
                                               void *dx, float *dgamma, float *dbeta);

void tess__ref_relu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, void *y);
void tess__ref_relu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *y, const void *dy, void *dx);
void tess__ref_add(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, const void *a,
                   const void *b, void *y);
void tess__ref_dropout(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, float rate,
                       const uint64_t key[2], uint64_t first, const void *x, void *y);
void tess__ref_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                            int64_t classes, float scale, const void *logits, const int32_t *label,
                            void *dlogits, float *loss, int32_t *correct);
void tess__ref_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from, const void *x,
                    enum tess_dtype to, void *y);
void tess__ref_accumulate(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                          float *y);
void tess__ref_fill(struct tess_kernel *kernel, int64_t bytes, int value, void *memory);
void tess__ref_copy(struct tess_kernel *kernel, int64_t bytes, const void *source, void *target);
void tess__ref_square_sum(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                          struct tess_sum *sum);
void tess__ref_count_zeros(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                           const void *x, double *sum);
void tess__ref_find_flag(struct tess_kernel *kernel, int64_t count, const float *x, int32_t flag,
                         struct tess_verdict *verdict);
void tess__ref_leaf_sum(struct tess_kernel *kernel, int64_t leaves, int64_t leaf_rows,
                        const float *loss, const int32_t *correct, double *sum,
                        struct tess_verdict *verdict);
void tess__ref_maximum(struct tess_kernel *kernel, int64_t count, const float *x, float *y);
void tess__ref_normal(struct tess_kernel *kernel, const uint32_t key[2], uint64_t first,
                      int64_t count, float mean, float deviation, float *y);
void tess__ref_cast_stochastic(struct tess_kernel *kernel, int64_t count, const float *x,
                               enum tess_dtype to, const uint64_t key[2], uint64_t first, void *y);
int64_t tess__ref_find_nonfinite(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                 const void *x);
void tess__ref_update_judge(struct tess_kernel *kernel, const struct tess_judge *judge);
void tess__ref_update(struct tess_kernel *kernel, const struct tess_update *update);
void tess__ref_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update);

/* Operations on sequences. */
enum tess_status tess__ref_norm_forward(struct tess_op *op, const void *x, const void *add,
                                        void *sum, const void *gamma, const void *beta, void *y,
                                        float *mean, float *rstd);
enum tess_status tess__ref_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                         const void *gamma, const float *mean, const float *rstd,
                                         const void *add, void *dx, float *dgamma, float *dbeta);
enum tess_status tess__ref_attention_forward(struct tess_op *op, const void *q, const void *k,
                                             const void *v, void *y, float *lse);
enum tess_status tess__ref_attention_backward(struct tess_op *op, const void *q, const void *k,
                                              const void *v, const void *y, const void *dy,
                                              const float *lse, void *dq, void *dk, void *dv);
enum tess_status tess__ref_embedding_forward(struct tess_op *op, const int32_t *token,
                                             int64_t first, const void *table, const void *add,
                                             void *y);
enum tess_status tess__ref_embedding_backward(struct tess_op *op, const int32_t *token,
                                              int64_t first, const void *dy, float *dtable);
void tess__ref_attention_decode(struct tess_kernel *kernel, const struct tess_op_desc *desc,
                                int64_t position, const void *q, const void *k, const void *v,
                                void *y);
void tess__ref_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t length,
                    int64_t first, int32_t heads, int64_t head_size, int64_t stride, float base,
                    bool inverse, void *x);
void tess__ref_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, void *y);
void tess__ref_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *x, const void *dy, void *dx);
void tess__ref_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *gate, const void *up, void *y);
void tess__ref_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                               const void *gate, const void *up, const void *dy, void *dgate,
                               void *dup);
void tess__ref_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t classes, int64_t stride, const void *logits, float *max);
void tess__ref_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t classes, int64_t stride, int64_t first, const void *logits,
                        const int32_t *label, const float *max, float *sum, float *target,
                        float *best);
void tess__ref_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t classes, int64_t stride, int64_t first, float scale,
                         const void *logits, const int32_t *label, const float *max,
                         const float *sum, void *dlogits);
void tess__ref_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length,
                         const int32_t *label, const float *max, const float *sum,
                         const float *target, const float *best, float *loss, int32_t *correct);

#endif
