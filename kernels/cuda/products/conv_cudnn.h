/*
 * Convolutions over cuDNN: plans of one leaf each for the four
 * ways in which a convolution is run. Nothing of cuDNN's own headers, so that conv.c is the same
 * where this was built without it (conv_cudnn_none.c). conv.c loops over the leaves.
 */
#ifndef KERNELS_CUDA_PRODUCTS_CONV_CUDNN_H
#define KERNELS_CUDA_PRODUCTS_CONV_CUDNN_H

#include "cuda/cudnn/present.h"

enum conv_way { CONV_FORWARD, CONV_FORWARD_BIAS, CONV_DATA, CONV_WEIGHT, CONV_WAY_COUNT };

struct cudnn_plan;

/* Arrays of one leaf, by their role in the forward pass: CONV_DATA writes x from y and w,
 * CONV_WEIGHT writes w, in f32, from x and y. */
struct cudnn_operands {
    const void *x, *w, *bias, *y;
};

/*
 * The plan of one leaf of a convolution, new. *plan_out is NULL where cuDNN has no engine for it
 * that adds in f32 and always gives the same bits. Not in a step: makes room for what plans need
 * beside their operands, one piece for all of a kernel's.
 */
enum tess_status tess__cudnn_plan_open(struct tess_kernel *kernel, const struct tess_op_desc *desc,
                                       enum conv_way way, struct cudnn_plan **plan_out);
void tess__cudnn_plan_close(struct cudnn_plan *plan); /* NULL is allowed */

/* Queue it. Pointers must be as aligned as the leaf's bytes, weights as a row of them, up to 64. */
enum tess_status tess__cudnn_plan_run(struct tess_kernel *kernel, const struct cudnn_plan *plan,
                                      const struct cudnn_operands *operands);

#endif
