/* The table of the backend `ref`, and what its prepared operations need. The work is in the files
 * beside. */
#include "ref/ref.h"

#include "kernel_open.h"
#include "ref/fp8.h"
#include "ref/slots.h"
#include "tessera/check.h"
#include "tessera/version.h"

static size_t (*const ref_scratch[TESS_OP_KIND_COUNT])(const struct tess_op_desc *desc) = {
    [TESS_OP_LINEAR] = tess__ref_linear_scratch,
    [TESS_OP_CONV2D] = tess__ref_conv2d_scratch,
    [TESS_OP_MAX_POOL] = tess__ref_pool_scratch,
    [TESS_OP_AVG_POOL] = tess__ref_pool_scratch,
    [TESS_OP_BATCH_NORM] = tess__ref_batch_norm_scratch,
    [TESS_OP_NORM] = tess__ref_norm_scratch,
    [TESS_OP_ATTENTION] = tess__ref_attention_scratch,
    [TESS_OP_EMBEDDING] = tess__ref_embedding_scratch,
};

static enum tess_status ref_op_needs(const struct tess_op_desc *desc,
                                     struct tess_op_needs *needs_out)
{
    char why[160];
    if (!tess_op_check(desc, why, sizeof(why)))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "kernel ref: %s", why);
    *needs_out = (struct tess_op_needs){.scratch_bytes = ref_scratch[desc->kind](desc)};
    return TESS_OK;
}

static enum tess_status ref_op_open(struct tess_op *op)
{
    struct tess_op_needs needs;
    TESS_TRY(ref_op_needs(&op->desc, &needs));
    if (needs.scratch_bytes > 0 && op->scratch == NULL)
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

const struct tess_kernel_ops tess_kernel_ref = {
    .abi = TESS_ABI,
    .name = "ref",
    .summary = "plain C on one thread, the reference for the others",
    .host_memory = true,
    .supports = tess_op_check,
    .op_needs = ref_op_needs,
    .op_open = ref_op_open,
    .op_close = ref_op_close,
#define REF_SLOT(name) .name = tess__ref_##name,
    TESS_OPERATION_LIST(REF_SLOT)
#undef REF_SLOT
};
