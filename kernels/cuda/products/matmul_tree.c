/* The binary counter of matmul_tree.h. Adding is the backend's accumulate. */
#include "cuda/products/matmul_tree.h"

#define TREE_ALIGN 64 /* floats: what stands on the stack begins at multiples of 256 bytes */

static int64_t tree_stride(int64_t count)
{
    return (int64_t)tess_round_up((uint64_t)count, TREE_ALIGN);
}

size_t tess__cuda_tree_bytes(int64_t count, int64_t leaves, bool onto)
{
    /* While subtree i is made, those waiting are the one bits of i, and it stands above them; the
       lowest of all is the target. */
    size_t positions = 0;
    for (int64_t last = (onto ? (leaves + 1) / 2 : leaves) - 1; last > 0; last >>= 1)
        positions++;
    return positions * (size_t)tree_stride(count) * sizeof(float);
}

struct cuda_tree tess__cuda_tree(struct tess_kernel *kernel, int64_t count, bool onto,
                                 float *target, void *scratch)
{
    return (struct cuda_tree){
        .kernel = kernel,
        .target = target,
        .scratch = scratch,
        .count = count,
        .stride = tree_stride(count),
        .onto = onto,
    };
}

static float *tree_position(const struct cuda_tree *tree, int32_t position)
{
    return position == 0 ? tree->target : tree->scratch + (position - 1) * tree->stride;
}

static bool tree_goes_onto(const struct cuda_tree *tree)
{
    return tree->onto && (tree->pushed & 1);
}

float *tess__cuda_tree_leaf(const struct cuda_tree *tree, float *beta_out)
{
    const bool onto = tree_goes_onto(tree);
    *beta_out = onto ? 1.0f : 0.0f;
    return tree_position(tree, onto ? tree->depth - 1 : tree->depth);
}

/* Add the topmost subtree to the one below it, its left sibling. */
static void tree_merge(struct cuda_tree *tree)
{
    tree->kernel->ops->accumulate(tree->kernel, tree->count, 1.0f,
                                  tree_position(tree, tree->depth - 1),
                                  tree_position(tree, tree->depth - 2));
    tree->depth--;
}

void tess__cuda_tree_push(struct cuda_tree *tree)
{
    int64_t carry = tree->pushed;
    if (tree_goes_onto(tree))
        carry >>= 1; /* the lowest bit's merge is done: the leaf was added to its sibling */
    else
        tree->depth++;
    if (tree->onto && !(tree->pushed & 1))
        carry = 0;
    for (; carry & 1; carry >>= 1)
        tree_merge(tree);
    tree->pushed++;
}

void tess__cuda_tree_finish(struct cuda_tree *tree)
{
    while (tree->depth > 1)
        tree_merge(tree);
}
