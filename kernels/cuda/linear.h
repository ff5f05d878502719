/* Linear layers over cuBLASLt: slots of tessera/kernel.h, and opening. */
#ifndef KERNELS_CUDA_LINEAR_H
#define KERNELS_CUDA_LINEAR_H

#include "cuda/cuda.h"

/* Pure: no device is needed, and the answer does not depend on one. */
enum tess_status tess__cuda_linear_needs(const struct tess_op_desc *desc,
                                         struct tess_op_needs *needs_out);
enum tess_status tess__cuda_linear_open(struct tess_op *op);
void tess__cuda_linear_close(struct tess_op *op); /* a half-opened operation is allowed */

/* f32 products in TF32 (10 bits of fraction, f32's exponent) from here on: of operations that are
 * opened later. Off by default. f32_math stays f32. */
enum tess_status tess__cuda_linear_tf32(struct tess_kernel *kernel, bool on);

enum tess_status tess__cuda_linear_forward(struct tess_op *op, const void *x, const void *w,
                                           const void *bias, void *y);
enum tess_status tess__cuda_linear_backward_data(struct tess_op *op, const void *dy, const void *w,
                                                 void *dx);
enum tess_status tess__cuda_linear_backward_weight(struct tess_op *op, const void *x,
                                                   const void *dy, float *dw, float *dbias);
enum tess_status tess__cuda_linear_forward_gelu(struct tess_op *op, const void *x, const void *w,
                                                const void *bias, void *before, void *y);
enum tess_status tess__cuda_linear_backward_data_gelu(struct tess_op *op, const void *dy,
                                                      const void *w, const void *before, void *dx);

#endif
