/* What the files of the public wrappers, kernel.c and sequence.c, share. */
#ifndef KERNELS_WRAP_H
#define KERNELS_WRAP_H

#include "tessera/check.h"
#include "tessera/kernel.h"

/* An operation used as what it is not would read past its arrays. */
static inline enum tess_status tess__kernel_expect(const struct tess_op *op, enum tess_op_kind kind)
{
    if (op->desc.kind != kind)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "kernel %s: an operation of kind %d was called as kind %d: the model mixed up "
                  "its operations",
                  op->kernel->ops->name, (int)op->desc.kind, (int)kind);
    return TESS_OK;
}

/* A sum over no rows; `sum` may be NULL. */
static inline void tess__kernel_zero(const struct tess_op *op, int64_t count, float *sum)
{
    if (sum)
        tess_fill(op->kernel, count * (int64_t)sizeof(*sum), 0, sum);
}

static inline bool tess__is_sequence(enum tess_op_kind kind)
{
    return kind == TESS_OP_NORM || kind == TESS_OP_ATTENTION || kind == TESS_OP_EMBEDDING;
}

/*
 * Pure. For tess_op_check(), of a description of a kind above whose kind, dtype, rows and `in` are
 * in order: what is wrong with the rest, or NULL; and that with the description's numbers.
 */
const char *tess__sequence_fault(const struct tess_op_desc *desc);
void tess__sequence_why(const struct tess_op_desc *desc, const char *fault, char *why,
                        size_t why_bytes);

#endif
