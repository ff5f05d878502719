/* The binary counter of matmul_tree.h. Adding is the backend's accumulate. */
#include "cuda/products/matmul_tree.h"

struct cuda_tree tess__cuda_tree(struct tess_kernel *kernel, int64_t count, bool onto,
                                 float *target, void *scratch)
{
    return (struct cuda_tree){
        .kernel = kernel,
        .target = target,
        .scratch = scratch,
        .count = count,
        .stride = tess__cuda_tree_stride(count),
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
