/*
 * The 8-bit operands of a linear layer (enum tess_fp8 of tessera/kernel.h): what is kept between
 * calls, and narrowing. linear.c multiplies them. cuBLASLt takes 8-bit operands with the inner
 * index running fastest only, so weights are kept in both orders and the operands of the weight
 * gradient are turned.
 */
#ifndef KERNELS_CUDA_PRODUCTS_FP8_H
#define KERNELS_CUDA_PRODUCTS_FP8_H

#include "cuda/products/launch_fp8.h"
#include "cuda/products/matmul.h"
#include "needs/products.h"

/* Operands, each with a history of its own: x and dy come to two slots, once in either order; but
 * dy in both orders to tess_linear_backward, as CUDA_FP8_DY. */
enum cuda_fp8_operand {
    CUDA_FP8_W,
    CUDA_FP8_X,         /* forward */
    CUDA_FP8_DY,        /* backward_data */
    CUDA_FP8_X_TURNED,  /* backward_weight */
    CUDA_FP8_DY_TURNED, /* backward_weight */
    CUDA_FP8_OPERAND_COUNT
};

struct cuda_fp8 {
    struct cuda_fp8_tensor *tensor; /* device [CUDA_FP8_OPERAND_COUNT] */
    bool met[CUDA_FP8_OPERAND_COUNT];
};

enum tess_status tess__cuda_fp8_open(struct tess_op *op, struct cuda_fp8 *fp8_out);
void tess__cuda_fp8_close(struct cuda_fp8 *fp8);

/* Narrow the weights, unless packed has those of op->weight_token. */
enum tess_status tess__cuda_fp8_pack(struct tess_op *op, struct cuda_fp8 *fp8, const void *w);
/* A call begins: with a history, make the scale of the call from it. x is the whole batch. */
enum tess_status tess__cuda_fp8_begin(struct tess_op *op, struct cuda_fp8 *fp8,
                                      enum cuda_fp8_operand operand, const void *x);
/* Narrow one leaf [leaf_rows, columns] to y and to y_turned [columns, leaf_rows]; either may be
 * NULL. Without a history its scale is made first. */
enum tess_status tess__cuda_fp8_narrow_leaf(struct tess_op *op, struct cuda_fp8 *fp8,
                                            enum cuda_fp8_operand operand, const void *x,
                                            uint8_t *y, uint8_t *y_turned);

#endif
