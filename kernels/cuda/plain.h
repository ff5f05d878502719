/* Slots of the plain operations but attention and losses; the kernels are in pointwise.cu,
 * activation.cu, cast.cu, random.cu, sums.cu, update.cu and judge.cu. Contracts: tessera/kernel.h,
 * tessera/update.h. */
#ifndef KERNELS_CUDA_PLAIN_H
#define KERNELS_CUDA_PLAIN_H

#include "tessera/kernel.h"

/* ---- plain.c --------------------------------------------------------------------------------- */

void tess__cuda_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                     int64_t length, int64_t first, int32_t heads, int64_t head_size,
                     int64_t stride, float base, bool inverse, void *x);
void tess__cuda_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *x, void *y);
void tess__cuda_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *x, const void *dy, void *dx);
void tess__cuda_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                               const void *gate, const void *up, void *y);
void tess__cuda_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                const void *gate, const void *up, const void *dy, void *dgate,
                                void *dup);
void tess__cuda_relu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *x, void *y);
void tess__cuda_relu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *y, const void *dy, void *dx);
void tess__cuda_add(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, const void *a,
                    const void *b, void *y);
void tess__cuda_dropout(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                        float rate, const uint64_t key[2], uint64_t first, const void *x, void *y);
void tess__cuda_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from, const void *x,
                     enum tess_dtype to, void *y);
void tess__cuda_cast_stochastic(struct tess_kernel *kernel, int64_t count, const float *x,
                                enum tess_dtype to, const uint64_t key[2], uint64_t first, void *y);
void tess__cuda_accumulate(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                           float *y);
void tess__cuda_maximum(struct tess_kernel *kernel, int64_t count, const float *x, float *y);
void tess__cuda_normal(struct tess_kernel *kernel, const uint32_t key[2], uint64_t first,
                       int64_t count, float mean, float deviation, float *y);
void tess__cuda_fill(struct tess_kernel *kernel, int64_t bytes, int value, void *memory);
void tess__cuda_copy(struct tess_kernel *kernel, int64_t bytes, const void *source, void *target);

/* ---- update.c -------------------------------------------------------------------------------- */

void tess__cuda_square_sum(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                           struct tess_sum *sum);
int64_t tess__cuda_find_nonfinite(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                  const void *x);
void tess__cuda_count_zeros(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, double *sum);
void tess__cuda_find_flag(struct tess_kernel *kernel, int64_t count, const float *x, int32_t flag,
                          struct tess_verdict *verdict);
void tess__cuda_leaf_sum(struct tess_kernel *kernel, int64_t leaves, int64_t leaf_rows,
                         const float *loss, const int32_t *correct, double *sum,
                         struct tess_verdict *verdict);
void tess__cuda_update_judge(struct tess_kernel *kernel, const struct tess_judge *judge);
void tess__cuda_update(struct tess_kernel *kernel, const struct tess_update *update);
void tess__cuda_update_all(struct tess_kernel *kernel, const struct tess_update *update,
                           int32_t count);
void tess__cuda_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update);

#endif
