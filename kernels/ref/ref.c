/* The table of the backend `ref`, and what its prepared operations need. The work is in the files
 * beside. */
#include "ref/ref.h"

#include "kernel_open.h"
#include "ref/fp8.h"
#include "ref/slots.h"
#include "tessera/check.h"
#include "tessera/version.h"

static size_t ref_scratch_bytes(const struct tess_op_desc *desc)
{
    switch (desc->kind) {
    case TESS_OP_LINEAR:
        return tess__ref_linear_scratch(desc);
    case TESS_OP_CONV2D:
        return tess__ref_conv2d_scratch(desc);
    case TESS_OP_MAX_POOL:
    case TESS_OP_AVG_POOL:
        return tess__ref_pool_scratch(desc);
    case TESS_OP_BATCH_NORM:
        return tess__ref_batch_norm_scratch(desc);
    case TESS_OP_NORM:
        return tess__ref_norm_scratch(desc);
    case TESS_OP_ATTENTION:
        return tess__ref_attention_scratch(desc);
    case TESS_OP_EMBEDDING:
        return tess__ref_embedding_scratch(desc);
    case TESS_OP_KIND_COUNT:
        break;
    }
    return 0;
}

static enum tess_status ref_op_needs(const struct tess_op_desc *desc,
                                     struct tess_op_needs *needs_out)
{
    char why[160];
    if (!tess_op_check(desc, why, sizeof(why)))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "kernel ref: %s", why);
    *needs_out = (struct tess_op_needs){.scratch_bytes = ref_scratch_bytes(desc)};
    return TESS_OK;
}

static enum tess_status ref_op_open(struct tess_op *op)
{
    struct tess_op_needs needs;
    TESS_TRY(ref_op_needs(&op->desc, &needs));
    if (needs.scratch_bytes > 0 && !op->scratch)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "kernel ref: an operation needs %zu bytes of scratch, got none",
                  needs.scratch_bytes);
    return op->desc.fp8 != TESS_FP8_OFF ? tess__ref_fp8_open(op) : TESS_OK;
}

static void ref_op_close(struct tess_op *op)
{
    if (op->desc.fp8 != TESS_FP8_OFF)
        tess__ref_fp8_close(op);
}

static enum tess_status ref_open(struct tess_kernel *kernel)
{
    (void)kernel;
    return TESS_OK;
}

static void ref_close(struct tess_kernel *kernel)
{
    (void)kernel;
}

const struct tess_kernel_ops tess_kernel_ref = {
    .abi = TESS_ABI,
    .name = "ref",
    .summary = "plain C on one thread, the yardstick of the others",
    .host_memory = true,
    .supports = tess_op_check,
    .open = ref_open,
    .close = ref_close,
    .op_needs = ref_op_needs,
    .op_open = ref_op_open,
    .op_close = ref_op_close,
    .linear_forward = tess__ref_linear_forward,
    .linear_backward_data = tess__ref_linear_backward_data,
    .linear_backward_weight = tess__ref_linear_backward_weight,
    .conv2d_forward = tess__ref_conv2d_forward,
    .conv2d_backward_data = tess__ref_conv2d_backward_data,
    .conv2d_backward_weight = tess__ref_conv2d_backward_weight,
    .max_pool_forward = tess__ref_max_pool_forward,
    .max_pool_backward = tess__ref_max_pool_backward,
    .avg_pool_forward = tess__ref_avg_pool_forward,
    .avg_pool_backward = tess__ref_avg_pool_backward,
    .batch_norm_forward = tess__ref_batch_norm_forward,
    .batch_norm_infer = tess__ref_batch_norm_infer,
    .batch_norm_backward = tess__ref_batch_norm_backward,
    .norm_forward = tess__ref_norm_forward,
    .norm_backward = tess__ref_norm_backward,
    .attention_forward = tess__ref_attention_forward,
    .attention_backward = tess__ref_attention_backward,
    .embedding_forward = tess__ref_embedding_forward,
    .embedding_backward = tess__ref_embedding_backward,
    .attention_decode = tess__ref_attention_decode,
    .rope = tess__ref_rope,
    .gelu_forward = tess__ref_gelu_forward,
    .gelu_backward = tess__ref_gelu_backward,
    .swiglu_forward = tess__ref_swiglu_forward,
    .swiglu_backward = tess__ref_swiglu_backward,
    .xent_max = tess__ref_xent_max,
    .xent_sum = tess__ref_xent_sum,
    .xent_grad = tess__ref_xent_grad,
    .xent_loss = tess__ref_xent_loss,
    .relu_forward = tess__ref_relu_forward,
    .relu_backward = tess__ref_relu_backward,
    .add = tess__ref_add,
    .dropout = tess__ref_dropout,
    .softmax_xent = tess__ref_softmax_xent,
    .cast = tess__ref_cast,
    .accumulate = tess__ref_accumulate,
    .fill = tess__ref_fill,
    .copy = tess__ref_copy,
    .square_sum = tess__ref_square_sum,
    .find_nonfinite = tess__ref_find_nonfinite,
    .count_zeros = tess__ref_count_zeros,
    .find_flag = tess__ref_find_flag,
    .leaf_sum = tess__ref_leaf_sum,
    .maximum = tess__ref_maximum,
    .normal = tess__ref_normal,
    .cast_stochastic = tess__ref_cast_stochastic,
    .update_judge = tess__ref_update_judge,
    .update = tess__ref_update,
    .lamb_direction = tess__ref_lamb_direction,
};
