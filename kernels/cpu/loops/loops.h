/*
 * Names of the own loops of one instruction set: CPU_LOOP(relu_forward) is
 * tess__cpu_v4_relu_forward where CPU_LEVEL is v4. For the files that are built once per
 * instruction set only.
 */
#ifndef KERNELS_CPU_LOOPS_LOOPS_H
#define KERNELS_CPU_LOOPS_LOOPS_H

#include "cpu/cpu.h"

#define CPU_JOIN_(level, name) tess__cpu_##level##_##name
#define CPU_JOIN(level, name)  CPU_JOIN_(level, name)
#define CPU_LOOP(name)         CPU_JOIN(CPU_LEVEL, name)

#define CPU_LOOP_FUNCTION(name) __typeof__(tess_##name) CPU_LOOP(name);
TESS_OPERATION_LIST(CPU_LOOP_FUNCTION)
#undef CPU_LOOP_FUNCTION

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
