/*
 * What library.c and library_open.c share: products by oneDNN's primitives, cut into parts that the
 * threads share, each part by a primitive of one thread.
 */
#ifndef KERNELS_CPU_LIBRARY_H
#define KERNELS_CPU_LIBRARY_H

#include "cpu/prim.h"

/*
 * How a result of `rows` by `columns` is cut; of a weight gradient, the columns are those of dy. A
 * convolution's result is cut into images, with which part_rows is a divisor of rows; its weight
 * gradient into sums over `part_rows` images.
 */
struct library_cut {
    int64_t rows, columns, part_rows, part_columns;
};

/* One direction over all rows or a leaf's, by primitives of one size of part each, for each hand:
 * a thread has memory objects of its own. */
#define LIBRARY_SIZES 4
struct library_pass {
    struct library_cut cut;
    struct cpu_prim *prim; /* [hands, LIBRARY_SIZES] */
    int hands;
    struct cpu_prim reorder; /* convolution: weights between our layout and the primitive's */
    size_t weight_bytes;     /* of the weights in the primitive's layout; 0 where it is ours */
    size_t scratch_bytes;    /* of the largest primitive */
};

struct library {
    struct library_pass pass[3]; /* by enum cpu_what; the weight gradient's is by leaf */
    void *zero;                  /* [out] of desc.dtype: the bias when there is none */
};

static inline int64_t library_row_parts(const struct library_cut *cut)
{
    return (cut->rows + cut->part_rows - 1) / cut->part_rows;
}

static inline int64_t library_parts(const struct library_cut *cut)
{
    return library_row_parts(cut) * ((cut->columns + cut->part_columns - 1) / cut->part_columns);
}

/* Elements of the weight gradient in the primitive's layout. */
static inline int64_t library_weights(const struct tess_op_desc *desc, size_t weight_bytes)
{
    return weight_bytes > 0 ? (int64_t)(weight_bytes / sizeof(float)) : tess__cpu_sizes(desc).w;
}

/* Parts of a convolution's weight gradient that are summed at a time (wave.h). */
#define LIBRARY_SUM_PARTS 16
static inline int64_t library_together(const struct tess_op_desc *desc,
                                       const struct library_cut *cut)
{
    return tess__cpu_min(desc->rows / cut->part_rows, LIBRARY_SUM_PARTS);
}

/* Bytes of the sum over one part of a convolution's weight gradient, beside a primitive's scratch;
 * 0 for a linear layer. */
static inline size_t library_sum_bytes(const struct tess_op_desc *desc, size_t weight_bytes)
{
    return desc->kind == TESS_OP_CONV2D
               ? tess__cpu_round_up((size_t)library_weights(desc, weight_bytes) * sizeof(float))
               : 0;
}

/* library.c: run a pass `times` times over its rows, one after the other in `data`, which is in the
 * order in, weights, out, bias; of a linear layer's weight gradient, once, x, dy, dw. */
enum tess_status tess__cpu_library_call(struct tess_op *op, enum cpu_what what,
                                        const struct library_pass *pass, int64_t times,
                                        void *scratch, const void *const *data);

#endif
