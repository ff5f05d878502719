/*
 * The sum over leaves of what products give: the tree of tessera/kernel.h, "Rows and leaves", in
 * device memory, folded while the leaves come. As kernels/ref/fold.h, but that a product may add to
 * what is there: then every second leaf goes onto the one before it, which is its left sibling, and
 * only pairs wait on the stack:
 *
 *     after leaf    0    1      2           3          4
 *     target        0    0..1   0..1        0..3       0..3
 *     stack 1                   2           (2..3)     4
 */
#ifndef KERNELS_CUDA_PRODUCTS_MATMUL_TREE_H
#define KERNELS_CUDA_PRODUCTS_MATMUL_TREE_H

#include "needs/products.h"
#include "tessera/kernel.h"

struct cuda_tree {
    struct tess_kernel *kernel;
    float *target, *scratch;
    int64_t count, stride, pushed;
    int32_t depth;
    bool onto; /* the product that makes a leaf adds it to its left sibling, where there is one */
};

/* scratch: of tess__cuda_tree_bytes. */
struct cuda_tree tess__cuda_tree(struct tess_kernel *kernel, int64_t count, bool onto,
                                 float *target, void *scratch);
/* Where the next leaf goes; *beta_out is 1 where it must be added to what is there, else 0. */
float *tess__cuda_tree_leaf(const struct cuda_tree *tree, float *beta_out);
void tess__cuda_tree_push(struct cuda_tree *tree);
/* The sum of all leaves is in the target. At least one was pushed. */
void tess__cuda_tree_finish(struct cuda_tree *tree);

#endif
