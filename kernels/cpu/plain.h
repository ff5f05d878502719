/* The plain operations that plain.c offers to the table of the backend, cpu.c. Contracts:
 * tessera/kernel.h. */
#ifndef KERNELS_CPU_PLAIN_H
#define KERNELS_CPU_PLAIN_H

#include "tessera/kernel.h"

void tess__cpu_relu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, void *y);
void tess__cpu_relu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *y, const void *dy, void *dx);
void tess__cpu_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, void *y);
void tess__cpu_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *x, const void *dy, void *dx);
void tess__cpu_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *gate, const void *up, void *y);
void tess__cpu_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                               const void *gate, const void *up, const void *dy, void *dgate,
                               void *dup);
void tess__cpu_add(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, const void *a,
                   const void *b, void *y);
void tess__cpu_dropout(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, float rate,
                       const uint64_t key[2], uint64_t first, const void *x, void *y);
void tess__cpu_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from, const void *x,
                    enum tess_dtype to, void *y);
void tess__cpu_cast_stochastic(struct tess_kernel *kernel, int64_t count, const float *x,
                               enum tess_dtype to, const uint64_t key[2], uint64_t first, void *y);
void tess__cpu_accumulate(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                          float *y);
void tess__cpu_fill(struct tess_kernel *kernel, int64_t bytes, int value, void *memory);
void tess__cpu_copy(struct tess_kernel *kernel, int64_t bytes, const void *source, void *target);
void tess__cpu_square_sum(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                          struct tess_sum *sum);
void tess__cpu_update(struct tess_kernel *kernel, const struct tess_update *update);
void tess__cpu_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update);

#endif
