/*
 * The tree over leaves as a stack of waiting subtrees; the picture is in fold.h. The caller defines
 * the leaves.
 */
#include "ref/fold.h"

#include <string.h>

#define FOLD_ALIGN_FLOATS 16 /* positions start at multiples of 64 bytes */

static int64_t fold_stride(int64_t count)
{
    return (count + FOLD_ALIGN_FLOATS - 1) / FOLD_ALIGN_FLOATS * FOLD_ALIGN_FLOATS;
}

size_t tess__fold_bytes(int64_t count, int64_t leaves)
{
    /* While leaf i is written, the subtrees on the stack are the one bits of i: the bit width of
       the last i bounds them, and the leaf itself takes one position more. The target is the first.
     */
    size_t positions = 0;
    for (int64_t last = leaves - 1; last > 0; last >>= 1)
        positions++;
    return positions * (size_t)fold_stride(count) * sizeof(float);
}

void tess__fold_init(struct tess_fold *fold, int64_t count, float *target, void *scratch)
{
    *fold = (struct tess_fold){
        .target = target, .scratch = scratch, .count = count, .stride = fold_stride(count)};
}

static float *fold_position(const struct tess_fold *fold, int32_t position)
{
    return position == 0 ? fold->target : fold->scratch + (position - 1) * fold->stride;
}

float *tess__fold_leaf(const struct tess_fold *fold)
{
    return fold_position(fold, fold->depth);
}

/* Add the topmost subtree to the one below it, its left sibling. */
static void fold_merge(struct tess_fold *fold)
{
    const float *restrict right = fold_position(fold, fold->depth - 1);
    float *restrict left = fold_position(fold, fold->depth - 2);
    for (int64_t i = 0; i < fold->count; i++)
        left[i] += right[i];
    fold->depth--;
}

void tess__fold_push(struct tess_fold *fold)
{
    fold->depth++;
    for (int64_t carry = fold->pushed; carry & 1; carry >>= 1)
        fold_merge(fold);
    fold->pushed++;
}

void tess__fold_finish(struct tess_fold *fold)
{
    if (fold->pushed == 0)
        memset(fold->target, 0, (size_t)fold->count * sizeof(float));
    while (fold->depth > 1)
        fold_merge(fold);
}

struct tess_fold tess__fold_piece(const struct tess_fold *fold, int64_t first, int64_t count)
{
    struct tess_fold piece = *fold;
    piece.target += first;
    piece.scratch = fold->scratch != NULL ? fold->scratch + first : NULL;
    piece.count = count;
    return piece;
}

void tess__fold_pushed(struct tess_fold *fold)
{
    const int64_t count = fold->count;
    fold->count = 0;
    tess__fold_push(fold);
    fold->count = count;
}
