/*
 * The sum over leaves: one binary tree split at the largest power of two below their number, in
 * f32,
 *
 *     5 leaves:  ((0 + 1) + (2 + 3)) + 4
 *
 * folded while the leaves come, in order. It works as a binary counter: a finished subtree of 2^k
 * leaves meets its left sibling when bit k of the number of leaves carries. The subtrees waiting
 * for a sibling are a stack whose bottom is the target:
 *
 *     after leaf    0    1      2        3          4
 *     target        0    0..1   0..1     0..3       0..3
 *     stack 1                   2                   4
 *
 * Use: init; then for every leaf write its value to fold_leaf() and call fold_push(); then finish.
 */
#ifndef KERNELS_REF_FOLD_H
#define KERNELS_REF_FOLD_H

#include <stddef.h>
#include <stdint.h>

struct tess_fold {
    float *target;  /* [count] */
    float *scratch; /* stack positions from 1 on, `stride` elements each */
    int64_t count, stride;
    int64_t pushed; /* leaves so far */
    int32_t depth;  /* subtrees on the stack */
};

/* Bytes of scratch for arrays of `count` elements; a multiple of 64. */
size_t tess__fold_bytes(int64_t count, int64_t leaves);

/* `scratch` holds tess__fold_bytes() bytes; may be NULL when that is 0. */
void tess__fold_init(struct tess_fold *fold, int64_t count, float *target, void *scratch);

/* Where the next leaf's value [count] is to be written: whatever is there is garbage. */
float *tess__fold_leaf(const struct tess_fold *fold);
void tess__fold_push(struct tess_fold *fold);

/* The sum of all leaves is in the target: zeros when there was none. */
void tess__fold_finish(struct tess_fold *fold);

/*
 * The same fold for elements first .. first + count - 1 alone, so that threads can share it: each
 * does what it would do with the whole. Where the whole goes on after pieces were pushed, it is
 * brought up to date with fold_pushed().
 */
struct tess_fold tess__fold_piece(const struct tess_fold *fold, int64_t first, int64_t count);
void tess__fold_pushed(struct tess_fold *fold);

#endif
