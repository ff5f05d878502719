/* How the public wrappers, prepared.c and plain.c, begin and end an operation. */
#ifndef KERNELS_WRAP_H
#define KERNELS_WRAP_H

#include "tessera/check.h"
#include "tessera/kernel.h"

/* The backend has no slot `name`, and ref cannot stand in for it (kernel.c): false. The error is
 * kept for tess_kernel_ops.failed. */
bool tess__kernel_lacks(struct tess_kernel *kernel, const char *name);

static inline bool tess__kernel_begin(struct tess_kernel *kernel, bool filled, const char *name)
{
    if (!filled)
        return tess__kernel_lacks(kernel, name);
    kernel->ops->bracket(kernel, true);
    return true;
}

static inline void tess__kernel_end(struct tess_kernel *kernel)
{
    kernel->ops->bracket(kernel, false);
}

/* An operation used as what it is not would read past its arrays. */
static inline enum tess_status tess__op_expect(const struct tess_op *op, enum tess_op_kind kind)
{
    if (op->desc.kind != kind)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "kernel %s: an operation of kind %d was called as kind %d: the model mixed up "
                  "its operations",
                  op->kernel->ops->name, (int)op->desc.kind, (int)kind);
    return TESS_OK;
}

/* False where the operation does not run: its rows are none, or *status_out has the error. */
static inline bool tess__op_begin(struct tess_op *op, enum tess_op_kind kind, bool filled,
                                  const char *name, enum tess_status *status_out)
{
    *status_out = tess__op_expect(op, kind);
    if (*status_out != TESS_OK || op->desc.rows == 0)
        return false;
    if (!tess__kernel_begin(op->kernel, filled, name))
        *status_out = TESS_ERR_UNSUPPORTED;
    return *status_out == TESS_OK;
}

static inline enum tess_status tess__op_end(struct tess_op *op, enum tess_status status)
{
    tess__kernel_end(op->kernel);
    return status;
}

#define KERNEL_BEGIN(kernel, slot) tess__kernel_begin(kernel, (kernel)->ops->slot != NULL, #slot)
#define OP_BEGIN(op, kind, slot, status_out)                                                       \
    tess__op_begin(op, kind, (op)->kernel->ops->slot != NULL, #slot, status_out)

#endif
