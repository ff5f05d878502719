/* Scratch and packed weights of linear layers and convolutions, as planning and calls lay them
 * out. */
#ifndef KERNELS_NEEDS_PRODUCTS_H
#define KERNELS_NEEDS_PRODUCTS_H

#include "needs/needs.h"
#include "needs/room.h"

/* ---- sums over leaves: cuda/products/matmul_tree.h ------------------------------------------- */

#define CUDA_TREE_ALIGN 64 /* floats: what waits begins at multiples of 256 bytes */

static inline int64_t tess__cuda_tree_stride(int64_t count)
{
    return (int64_t)tess_round_up((uint64_t)count, CUDA_TREE_ALIGN);
}

/* Scratch for arrays of `count` elements: 0 for one leaf. */
size_t tess__cuda_tree_bytes(int64_t count, int64_t leaves, bool onto);

/* ---- linear layers --------------------------------------------------------------------------- */

/* f32_math: operands are widened, leaf by leaf. */
static inline bool linear_is_wide(const struct tess_op_desc *desc)
{
    return desc->f32_math && desc->dtype != TESS_F32;
}

/* fp8: operands are narrowed to 8 bits, leaf by leaf. */
static inline bool linear_is_narrow(const struct tess_op_desc *d)
{
    return d->fp8 != TESS_FP8_OFF;
}

/* Pieces of op->scratch; the first four with f32_math only, x and y of one leaf. */
struct linear_room {
    float *x, *w, *y, *bias;
    uint8_t *narrow_x, *narrow_dy, *narrow_dy_turned; /* with fp8 only, of one leaf */
    void *tree, *bias_tree, *columns;
    float *sum, *bias_sum; /* with add_grad: the sum over the leaves, before it is added */
    size_t bytes;
};
struct linear_room tess__cuda_linear_room(const struct tess_op_desc *desc, void *scratch);

/* 8-bit weights, in op->packed. */
struct cuda_fp8_weights {
    uint8_t *plain;  /* [out, in] */
    uint8_t *turned; /* [in, out] */
    size_t bytes;
};
struct cuda_fp8_weights tess__cuda_fp8_weights(const struct tess_op_desc *desc, void *packed);

/* ---- convolutions ---------------------------------------------------------------------------- */

/* Counts of one image, and images of a chunk (cuda/products/conv.c). */
struct conv_size {
    int64_t out_height, out_width;
    int64_t places, x, y; /* of the window; elements of the image and of its result */
    int64_t inner, weights;
    int64_t chunk;
    bool plain; /* the image's pixels are the windows */
    bool wide;  /* f32_math: operands are widened */
};
struct conv_size tess__cuda_conv_size(const struct tess_op_desc *desc);

/* Sizes, and pieces of op->scratch. x, y, w and bias with f32_math only; x and y of a chunk. */
struct conv_room {
    struct conv_size n;
    size_t word; /* bytes of an element of the operands */
    float *x, *y, *w, *bias;
    void *windows; /* [chunk places, inner], in f32 where they are gradients */
    void *tree, *columns;
    size_t bytes;
};
struct conv_room tess__cuda_conv_room(const struct tess_op_desc *desc, void *scratch);

#endif
