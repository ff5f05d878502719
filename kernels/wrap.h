/* How the public wrappers, prepared.c and plain.c, begin and end an operation. */
#ifndef KERNELS_WRAP_H
#define KERNELS_WRAP_H

#include "tessera/check.h"
#include "tessera/kernel.h"

/* An open kernel in one allocation: the public struct, the ops with their defaults filled in, the
 * private state. */
struct tess__kernel_block {
    struct tess_kernel kernel;
    struct tess_kernel_ops ops;
    const char *lacking; /* an operation that was called without a slot; NULL: none */
    enum tess_status (*failed)(struct tess_kernel *kernel); /* the backend's own */
    _Alignas(64) unsigned char state[];
};

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

static inline bool tess__op_begin(struct tess_op *op, enum tess_op_kind kind, bool filled,
                                  const char *name)
{
    return tess__op_expect(op, kind) == TESS_OK && op->desc.rows > 0 &&
           tess__kernel_begin(op->kernel, filled, name);
}

/* The status of an operation that did not begin: it has no rows, or the error is logged. */
static inline enum tess_status tess__op_skipped(const struct tess_op *op, enum tess_op_kind kind)
{
    if (op->desc.kind != kind)
        return TESS_ERR_INTERNAL;
    return op->desc.rows == 0 ? TESS_OK : TESS_ERR_UNSUPPORTED;
}

static inline enum tess_status tess__op_end(struct tess_op *op, enum tess_status status)
{
    op->kernel->ops->bracket(op->kernel, false);
    return status;
}

/* Call a slot that returns nothing. */
#define KERNEL_RUN(kernel, slot, ...)                                                              \
    do {                                                                                           \
        if (tess__kernel_begin(kernel, (kernel)->ops->slot != NULL, #slot)) {                      \
            (kernel)->ops->slot(kernel, __VA_ARGS__);                                              \
            (kernel)->ops->bracket(kernel, false);                                                 \
        }                                                                                          \
    } while (0)

/* Call a slot of a prepared operation: its status. */
#define OP_RUN(op, kind, slot, ...)                                                                \
    (tess__op_begin(op, kind, (op)->kernel->ops->slot != NULL, #slot)                              \
         ? tess__op_end(op, (op)->kernel->ops->slot(op, __VA_ARGS__))                              \
         : tess__op_skipped(op, kind))

#endif
