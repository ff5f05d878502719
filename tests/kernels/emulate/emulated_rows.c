/*
 * As emulated.c: ref with the slots of rows and images, and of the softmax, in place of its own.
 * What its prepared operations need is asked of the slots' files too.
 */
#include "cuda/slots.h"
#include "emulate/slots.h"
#include "ref/ref.h"
#include "tessera/registry.h"

static enum tess_status rows_open(struct tess_kernel *kernel)
{
    kernel->queue = emulate_kernel.queue;
    return TESS_OK;
}

static enum tess_status rows_op_needs(const struct tess_op_desc *desc,
                                      struct tess_op_needs *needs_out)
{
    char why[160];
    if (!tess_kernel_ref.supports(desc, why, sizeof(why)))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "%s", why);
    *needs_out = (struct tess_op_needs){0};
    switch (desc->kind) {
    case TESS_OP_MAX_POOL:
    case TESS_OP_AVG_POOL:
        return tess__cuda_pool_needs(desc, needs_out);
    case TESS_OP_BATCH_NORM:
        return tess__cuda_batch_norm_needs(desc, needs_out);
    case TESS_OP_NORM:
        return tess__cuda_norm_needs(desc, needs_out);
    case TESS_OP_EMBEDDING:
        return tess__cuda_embedding_needs(desc, needs_out);
    default:
        return tess_kernel_ref.op_needs(desc, needs_out);
    }
}

static enum tess_status rows_op_open(struct tess_op *op)
{
    (void)op;
    return TESS_OK;
}

/* In place of the library's own. */
enum tess_status tess_registry_get_kernel(const char *name, const struct tess_kernel_ops **ops_out)
{
    static struct tess_kernel_ops ops;
    (void)name;
    ops = tess_kernel_ref;
    ops.name = "emulated";
    ops.open = rows_open;
    ops.op_needs = rows_op_needs;
    ops.op_open = rows_op_open;
    ops.max_pool_forward = tess__cuda_max_pool_forward;
    ops.max_pool_backward = tess__cuda_max_pool_backward;
    ops.avg_pool_forward = tess__cuda_avg_pool_forward;
    ops.avg_pool_backward = tess__cuda_avg_pool_backward;
    ops.batch_norm_forward = tess__cuda_batch_norm_forward;
    ops.batch_norm_infer = tess__cuda_batch_norm_infer;
    ops.batch_norm_backward = tess__cuda_batch_norm_backward;
    ops.norm_forward = tess__cuda_norm_forward;
    ops.norm_backward = tess__cuda_norm_backward;
    ops.embedding_forward = tess__cuda_embedding_forward;
    ops.embedding_backward = tess__cuda_embedding_backward;
    ops.xent_max = tess__cuda_xent_max;
    ops.xent_sum = tess__cuda_xent_sum;
    ops.xent_grad = tess__cuda_xent_grad;
    ops.xent_loss = tess__cuda_xent_loss;
    ops.softmax_xent = tess__cuda_softmax_xent;
    *ops_out = &ops;
    return TESS_OK;
}
