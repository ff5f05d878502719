/*
 * Launchers of plain operations, by the file that has them. The contract of
 * tess__cuda_launch_<name> is that of tess_<name> in tessera/kernel.h or tessera/update.h. Each
 * returns the launch's error.
 */
#ifndef KERNELS_CUDA_PLAIN_LAUNCH_PLAIN_H
#define KERNELS_CUDA_PLAIN_LAUNCH_PLAIN_H

#include "tessera/queue.h"
#include "tessera/update.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- pointwise.cu ------------------------------------------------------------------------- */

cudaError_t tess__cuda_launch_relu_forward(cudaStream_t stream, enum tess_dtype dtype,
                                           int64_t count, const void *x, void *y);
cudaError_t tess__cuda_launch_relu_backward(cudaStream_t stream, enum tess_dtype dtype,
                                            int64_t count, const void *y, const void *dy, void *dx);
cudaError_t tess__cuda_launch_add(cudaStream_t stream, enum tess_dtype dtype, int64_t count,
                                  const void *a, const void *b, void *y);
cudaError_t tess__cuda_launch_accumulate(cudaStream_t stream, int64_t count, float scale,
                                         const float *x, float *y);
cudaError_t tess__cuda_launch_maximum(cudaStream_t stream, int64_t count, const float *x, float *y);

/* ---- activation.cu ------------------------------------------------------------------------ */

cudaError_t tess__cuda_launch_gelu_forward(cudaStream_t stream, enum tess_dtype dtype,
                                           int64_t count, const void *x, void *y);
cudaError_t tess__cuda_launch_gelu_backward(cudaStream_t stream, enum tess_dtype dtype,
                                            int64_t count, const void *x, const void *dy, void *dx);
cudaError_t tess__cuda_launch_swiglu_forward(cudaStream_t stream, enum tess_dtype dtype,
                                             int64_t count, const void *gate, const void *up,
                                             void *y);
cudaError_t tess__cuda_launch_swiglu_backward(cudaStream_t stream, enum tess_dtype dtype,
                                              int64_t count, const void *gate, const void *up,
                                              const void *dy, void *dgate, void *dup);
cudaError_t tess__cuda_launch_rope(cudaStream_t stream, enum tess_dtype dtype, int64_t rows,
                                   int64_t length, int64_t first, int32_t heads, int64_t head_size,
                                   int64_t row_stride, float base, bool inverse, void *x);

/* ---- cast.cu, random.cu: keys are those of Philox ----------------------------------------- */

/* from and to differ. */
cudaError_t tess__cuda_launch_cast(cudaStream_t stream, int64_t count, enum tess_dtype from,
                                   const void *x, enum tess_dtype to, void *y);
cudaError_t tess__cuda_launch_cast_stochastic(cudaStream_t stream, int64_t count, const float *x,
                                              enum tess_dtype to, const uint32_t key[2],
                                              uint64_t first, void *y);
/* Words whose top 24 bits are below `limit` are dropped, the others' elements divided. */
cudaError_t tess__cuda_launch_dropout(cudaStream_t stream, enum tess_dtype dtype, int64_t count,
                                      uint32_t limit, float divisor, const uint32_t key[2],
                                      uint64_t first, const void *x, void *y);
cudaError_t tess__cuda_launch_normal(cudaStream_t stream, const uint32_t key[2], uint64_t first,
                                     int64_t count, float mean, float deviation, float *y);

/* ---- sums.cu: integers, or sums in a fixed order ------------------------------------------ */

cudaError_t tess__cuda_launch_square_sum(cudaStream_t stream, int64_t count, float scale,
                                         const float *x, struct tess_sum *sum);
/* found: device memory; becomes the index of the first NaN or infinity, -1 when there is none. */
cudaError_t tess__cuda_launch_find_nonfinite(cudaStream_t stream, enum tess_dtype dtype,
                                             int64_t count, const void *x, int64_t *found);
cudaError_t tess__cuda_launch_find_flag(cudaStream_t stream, int64_t count, const float *x,
                                        int32_t flag, struct tess_verdict *verdict);
/* scratch: 8 bytes of device memory. */
cudaError_t tess__cuda_launch_count_zeros(cudaStream_t stream, enum tess_dtype dtype, int64_t count,
                                          const void *x, double *sum, int64_t *scratch);
cudaError_t tess__cuda_launch_leaf_sum(cudaStream_t stream, int64_t leaves, int64_t leaf_rows,
                                       const float *loss, const int32_t *correct, double *sum,
                                       struct tess_verdict *verdict);

/* ---- update.cu, judge.cu ------------------------------------------------------------------ */

/* tess_update_all; `update` is read before the call returns. */
cudaError_t tess__cuda_launch_update(cudaStream_t stream, const struct tess_update *update,
                                     int32_t count);
/* tess_lamb_direction of several pieces. */
cudaError_t tess__cuda_launch_lamb_direction(cudaStream_t stream, const struct tess_update *update,
                                             int32_t count);
cudaError_t tess__cuda_launch_update_judge(cudaStream_t stream, const struct tess_judge *judge);

/* ---- reduce.cu ---------------------------------------------------------------------------- */

/*
 * tess_queue_ops.reduce on a stream: target[k][i] = tree over source[0 .. n-1][i] for every k < m.
 * source and target are host arrays of device pointers, read before the call returns; the memory
 * may be of other devices that this one reaches. Any dtype; bits as those of communicators on host
 * memory, but for the payload of NaN sums.
 */
cudaError_t tess__cuda_reduce(cudaStream_t stream, enum tess_dtype dtype, enum tess_reduce reduce,
                              int32_t n, const void *const *source, int32_t m, void *const *target,
                              size_t count);

/* ---- matmul.cu ---------------------------------------------------------------------------- */

/* *differ |= 1 where a and b [bytes], 16-byte aligned, are not the same bits. */
cudaError_t tess__cuda_matmul_differ(cudaStream_t stream, size_t bytes, const void *a,
                                     const void *b, uint32_t *differ);

#ifdef __cplusplus
}
#endif

#endif
