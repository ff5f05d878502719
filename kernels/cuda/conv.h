/* Convolutions over cuBLASLt: slots of tessera/kernel.h, and opening. */
#ifndef KERNELS_CUDA_CONV_H
#define KERNELS_CUDA_CONV_H

#include "cuda/cuda.h"

/* Pure: no device is needed, and the answer does not depend on one. */
enum tess_status tess__cuda_conv_needs(const struct tess_op_desc *desc,
                                       struct tess_op_needs *needs_out);
enum tess_status tess__cuda_conv_open(struct tess_op *op);
void tess__cuda_conv_close(struct tess_op *op); /* a half-opened operation is allowed */

enum tess_status tess__cuda_conv2d_forward(struct tess_op *op, const void *x, const void *w,
                                           const void *bias, void *y);
enum tess_status tess__cuda_conv2d_backward_data(struct tess_op *op, const void *dy, const void *w,
                                                 void *dx);
enum tess_status tess__cuda_conv2d_backward_weight(struct tess_op *op, const void *x,
                                                   const void *dy, float *dw, float *dbias);

#endif
