/* Convolutions over cuBLASLt or cuDNN: slots of tessera/kernel.h, and opening. */
#ifndef KERNELS_CUDA_CONV_H
#define KERNELS_CUDA_CONV_H

#include "cuda/cuda.h"

/* Who computes those that are opened from here on; TESS_ERR_UNSUPPORTED where it is not there. */
enum tess_status tess__cuda_conv_choose(struct tess_kernel *kernel, enum tess_conv conv);
/* One line: who does. */
void tess__cuda_conv_describe(const struct tess_kernel *kernel,
                              void (*line)(void *context, const char *text), void *context);

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
