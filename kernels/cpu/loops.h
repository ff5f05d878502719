/*
 * Names of the own loops of one instruction set: CPU_LOOP(relu_forward) is
 * tess__cpu_v4_relu_forward where CPU_LEVEL is v4. For the files that are built once per
 * instruction set only.
 */
#ifndef KERNELS_CPU_LOOPS_H
#define KERNELS_CPU_LOOPS_H

#include "cpu/cpu.h"

#define CPU_JOIN_(level, name) tess__cpu_##level##_##name
#define CPU_JOIN(level, name)  CPU_JOIN_(level, name)
#define CPU_LOOP(name)         CPU_JOIN(CPU_LEVEL, name)

void CPU_LOOP(relu_forward)(struct tess_kernel *, enum tess_dtype, int64_t count, const void *x,
                            void *y);
void CPU_LOOP(relu_backward)(struct tess_kernel *, enum tess_dtype, int64_t count, const void *y,
                             const void *dy, void *dx);
void CPU_LOOP(add)(struct tess_kernel *, enum tess_dtype, int64_t count, const void *a,
                   const void *b, void *y);
void CPU_LOOP(cast)(struct tess_kernel *, int64_t count, enum tess_dtype from, const void *x,
                    enum tess_dtype to, void *y);
void CPU_LOOP(accumulate)(struct tess_kernel *, int64_t count, float scale, const float *x,
                          float *y);
void CPU_LOOP(square_sum)(struct tess_kernel *, int64_t count, float scale, const float *x,
                          struct tess_sum *sum);
int64_t CPU_LOOP(find_nonfinite)(struct tess_kernel *, enum tess_dtype, int64_t count,
                                 const void *x);
void CPU_LOOP(count_zeros)(struct tess_kernel *, enum tess_dtype, int64_t count, const void *x,
                           double *sum);
void CPU_LOOP(cast_stochastic)(struct tess_kernel *, int64_t count, const float *x,
                               enum tess_dtype to, const uint64_t key[2], uint64_t first, void *y);
void CPU_LOOP(update)(struct tess_kernel *, const struct tess_update *update);
void CPU_LOOP(lamb_direction)(struct tess_kernel *, const struct tess_update *update);

enum tess_status CPU_LOOP(max_pool_forward)(struct tess_op *op, const void *x, void *y,
                                            uint8_t *which);
enum tess_status CPU_LOOP(max_pool_backward)(struct tess_op *op, const void *dy,
                                             const uint8_t *which, void *dx);
enum tess_status CPU_LOOP(batch_norm_forward)(struct tess_op *op, const void *x, const void *gamma,
                                              const void *beta, void *y, float *save_mean,
                                              float *save_rstd, float *mean_sum, float *var_sum);
enum tess_status CPU_LOOP(batch_norm_infer)(struct tess_op *op, const void *x, const void *gamma,
                                            const void *beta, const void *mean, const void *var,
                                            void *y);
enum tess_status CPU_LOOP(batch_norm_backward)(struct tess_op *op, const void *x, const void *y,
                                               const void *dy, const void *gamma,
                                               const float *save_mean, const float *save_rstd,
                                               void *dx, float *dgamma, float *dbeta);

void CPU_LOOP(gelu_forward)(struct tess_kernel *, enum tess_dtype, int64_t count, const void *x,
                            void *y);
void CPU_LOOP(gelu_backward)(struct tess_kernel *, enum tess_dtype, int64_t count, const void *x,
                             const void *dy, void *dx);
void CPU_LOOP(swiglu_forward)(struct tess_kernel *, enum tess_dtype, int64_t count,
                              const void *gate, const void *up, void *y);
void CPU_LOOP(swiglu_backward)(struct tess_kernel *, enum tess_dtype, int64_t count,
                               const void *gate, const void *up, const void *dy, void *dgate,
                               void *dup);
void CPU_LOOP(dropout)(struct tess_kernel *, enum tess_dtype, int64_t count, float rate,
                       const uint64_t key[2], uint64_t first, const void *x, void *y);
void CPU_LOOP(xent_max)(struct tess_kernel *, enum tess_dtype, int64_t rows, int64_t classes,
                        int64_t stride, const void *logits, float *max);
void CPU_LOOP(xent_sum)(struct tess_kernel *, enum tess_dtype, int64_t rows, int64_t classes,
                        int64_t stride, int64_t first, const void *logits, const int32_t *label,
                        const float *max, float *sum, float *target, float *best);
void CPU_LOOP(xent_grad)(struct tess_kernel *, enum tess_dtype, int64_t rows, int64_t classes,
                         int64_t stride, int64_t first, float scale, const void *logits,
                         const int32_t *label, const float *max, const float *sum, void *dlogits);
void CPU_LOOP(softmax_xent)(struct tess_kernel *, enum tess_dtype, int64_t rows, int64_t classes,
                            float scale, const void *logits, const int32_t *label, void *dlogits,
                            float *loss, int32_t *correct);
void CPU_LOOP(attention_decode)(struct tess_kernel *, const struct tess_op_desc *desc,
                                int64_t position, const void *q, const void *k, const void *v,
                                void *y);

void CPU_LOOP(row_norm_forward)(const struct cpu_norm *norm, int64_t first, int64_t rows);
void CPU_LOOP(row_norm_backward)(const struct cpu_norm *norm, int64_t first, int64_t rows,
                                 float *dgamma, float *dbeta);
void CPU_LOOP(embedding_rows)(const struct cpu_embedding *embedding, int64_t first, int64_t rows);
void CPU_LOOP(rope_positions)(const struct cpu_rope *rope, int64_t begin, int64_t end);
void CPU_LOOP(column_sum)(enum tess_dtype dtype, int64_t rows, int64_t cols, const void *x,
                          float *sum);
void CPU_LOOP(plain_add)(int64_t count, const float *x, float *y);
void CPU_LOOP(square_softmax)(enum tess_dtype dtype, int64_t length, float scale, void *s);
void CPU_LOOP(square_softmax_grad)(enum tess_dtype dtype, int64_t length, float scale,
                                   const void *p, void *dp);
void CPU_LOOP(small_forward)(const struct tess_op_desc *desc, const void *x, const void *w,
                             const void *bias, void *y, float *wide);
void CPU_LOOP(small_backward_data)(const struct tess_op_desc *desc, const void *dy, const void *w,
                                   void *dx, float *wide);

#endif
