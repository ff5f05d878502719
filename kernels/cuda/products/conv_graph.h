/* A convolution as a graph of cuDNN: conv_graph_cudnn.c, for conv_cudnn.c and tests. */
#ifndef KERNELS_CUDA_PRODUCTS_CONV_GRAPH_H
#define KERNELS_CUDA_PRODUCTS_CONV_GRAPH_H

#include "cuda/cudnn/cudnn.h"
#include "cuda/products/conv_cudnn.h"

/* One leaf of a convolution. Images are [d.leaf_rows, d.height, d.width, d.in], weights [d.out,
 * d.window, d.window, d.in]. */
struct cudnn_conv {
    enum conv_way way;
    bool tf32; /* factors of f32 may be cut to 10 bits */
    struct tess_op_desc d;
};

/* What a plan calls its operands. */
enum cudnn_conv_tensor { CUDNN_X = 1, CUDNN_W, CUDNN_BIAS, CUDNN_Y, CUDNN_SUM };

/* Bytes that a pointer to this operand is a multiple of. */
int64_t tess__cudnn_conv_alignment(const struct cudnn_conv *conv, enum cudnn_conv_tensor tensor);

/* The first of the engines that cuDNN advises for it which may be used. */
enum tess_status tess__cudnn_conv_choose(const struct cudnn_conv *conv,
                                         const struct cudnn_place *place,
                                         struct cudnn_choice *choice_out);

#endif
