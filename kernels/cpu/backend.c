/*
 * The backend `cpu`: oneDNN and own kernels for products and convolutions (product.c; wide.c where
 * 16 bits are multiplied in f32), own kernels for attention (flash.c), own loops for the rest
 * (sequence.c, image.c, plain.c, loops/), ref for what is too rare or too small to matter. This
 * file opens it, sends each slot to where the work is done, and does none itself.
 */
#include "cpu/prim.h"

#include "kernel_open.h"
#include "tessera/check.h"
#include "tessera/version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool cpu_supports(const struct tess_op_desc *desc, char *why, size_t why_bytes)
{
    if (!tess_op_check(desc, why, why_bytes))
        return false;
    if (desc->fp8 != TESS_FP8_OFF) {
        snprintf(
            why, why_bytes,
            "products in fp8 need a GPU, or --kernel ref to see what they would give: use bf16");
        return false;
    }
    return true;
}

static void cpu_close(struct tess_kernel *kernel)
{
    struct cpu_state *state = kernel->state;
    if (state->stream != NULL)
        dnnl_stream_destroy(state->stream);
    if (state->engine != NULL)
        dnnl_engine_destroy(state->engine);
    free(state->verdict);
    tess__cpu_share_close(state);
    memset(state, 0, sizeof(*state));
}

static enum tess_status cpu_open(struct tess_kernel *kernel)
{
    struct cpu_state *state = kernel->state;
    state->loops = tess__cpu_loops_best();
    struct tess_kernel_ops *slots = tess__kernel_slots(kernel);
#define CPU_TAKE(name) slots->name = state->loops->name;
    CPU_SLOT_LIST(CPU_TAKE)
#undef CPU_TAKE
    tess__cpu_share_open(state);
    tess__cpu_threads(state, 1);
    dnnl_status_t status = dnnl_engine_create(&state->engine, dnnl_cpu, 0);
    if (status == dnnl_success)
        status = dnnl_stream_create(&state->stream, state->engine, dnnl_stream_default_flags);
    if (status != dnnl_success)
        cpu_close(kernel);
    return tess__cpu_check(status, "open");
}

/* What computes a product; NULL: the operation is none. */
static const struct cpu_product *cpu_product(const struct tess_op_desc *desc)
{
    if (desc->kind != TESS_OP_LINEAR && desc->kind != TESS_OP_CONV2D)
        return NULL;
    const bool bf16 = desc->dtype == TESS_BF16 && !desc->f32_math &&
                      (tess__cpu_bf16_available() || tess__cpu_product_own(desc));
    return desc->dtype == TESS_F32 || bf16 ? &tess__cpu_product : &tess__cpu_wide;
}

static enum tess_status cpu_op_needs(const struct tess_op_desc *desc,
                                     struct tess_op_needs *needs_out)
{
    char why[160];
    if (!cpu_supports(desc, why, sizeof(why)))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "kernel cpu: %s", why);
    const struct cpu_product *product = cpu_product(desc);
    if (product == NULL)
        return tess__cpu_sequence_needs(desc, needs_out);
    *needs_out = (struct tess_op_needs){0};
    return product->needs(desc, needs_out);
}

static void cpu_op_close(struct tess_op *op)
{
    const struct cpu_product *product = cpu_product(&op->desc);
    if (product != NULL)
        product->close(op);
}

static enum tess_status cpu_op_open(struct tess_op *op)
{
    char why[160];
    if (!cpu_supports(&op->desc, why, sizeof(why)))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "kernel cpu: %s", why);
    TESS_TRY(tess__cpu_share_start(op->kernel));
    tess__cpu_threads(tess__cpu_state(op), 1);
    const struct cpu_product *product = cpu_product(&op->desc);
    if (product == NULL)
        return TESS_OK;
    enum tess_status status = product->open(op);
    if (status != TESS_OK)
        product->close(op);
    return status;
}

/* ---- products ----------------------------------------------------------------------------- */

static enum tess_status cpu_forward(struct tess_op *op, const void *x, const void *w,
                                    const void *bias, void *y)
{
    tess__cpu_share_use(op);
    return cpu_product(&op->desc)->forward(op, x, w, bias, y);
}

static enum tess_status cpu_backward_data(struct tess_op *op, const void *dy, const void *w,
                                          void *dx)
{
    tess__cpu_share_use(op);
    return cpu_product(&op->desc)->backward_data(op, dy, w, dx);
}

static enum tess_status cpu_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                            float *dw, float *dbias)
{
    tess__cpu_share_use(op);
    return cpu_product(&op->desc)->backward_weight(op, x, dy, dw, dbias);
}

/* open() adds those of CPU_SLOT_LIST. */
const struct tess_kernel_ops tess_kernel_cpu = {
    .abi = TESS_ABI,
    .name = "cpu",
    .summary = "oneDNN and own vector kernels",
    .host_memory = true,
    .threaded = true,
    .state_size = sizeof(struct cpu_state),
    .supports = cpu_supports,
    .open = cpu_open,
    .close = cpu_close,
    .adopt = tess__cpu_adopt,
    .op_needs = cpu_op_needs,
    .op_open = cpu_op_open,
    .op_close = cpu_op_close,
    .linear_forward = cpu_forward,
    .linear_backward_data = cpu_backward_data,
    .linear_backward_weight = cpu_backward_weight,
    .conv2d_forward = cpu_forward,
    .conv2d_backward_data = cpu_backward_data,
    .conv2d_backward_weight = cpu_backward_weight,
    .max_pool_forward = tess__cpu_max_pool_forward,
    .max_pool_backward = tess__cpu_max_pool_backward,
    .avg_pool_forward = tess__cpu_avg_pool_forward,
    .avg_pool_backward = tess__cpu_avg_pool_backward,
    .batch_norm_forward = tess__cpu_batch_norm_forward,
    .batch_norm_infer = tess__cpu_batch_norm_infer,
    .batch_norm_backward = tess__cpu_batch_norm_backward,
    .norm_forward = tess__cpu_norm_forward,
    .norm_backward = tess__cpu_norm_backward,
    .attention_forward = tess__cpu_attention_forward,
    .attention_backward = tess__cpu_attention_backward,
    .attention_decode = tess__cpu_attention_decode,
    .embedding_forward = tess__cpu_embedding_forward,
    .embedding_backward = tess__cpu_embedding_backward,
    .rope = tess__cpu_rope,
    .gelu_forward = tess__cpu_gelu_forward,
    .gelu_backward = tess__cpu_gelu_backward,
    .swiglu_forward = tess__cpu_swiglu_forward,
    .swiglu_backward = tess__cpu_swiglu_backward,
    .gelu_erf_forward = tess__cpu_gelu_erf_forward,
    .gelu_erf_backward = tess__cpu_gelu_erf_backward,
    .geglu_forward = tess__cpu_geglu_forward,
    .geglu_backward = tess__cpu_geglu_backward,
    .xent_max = tess__cpu_xent_max,
    .xent_sum = tess__cpu_xent_sum,
    .xent_grad = tess__cpu_xent_grad,
    .relu_forward = tess__cpu_relu_forward,
    .relu_backward = tess__cpu_relu_backward,
    .add = tess__cpu_add,
    .dropout = tess__cpu_dropout,
    .softmax_xent = tess__cpu_softmax_xent,
    .cast = tess__cpu_cast,
    .accumulate = tess__cpu_accumulate,
    .normal = tess__cpu_normal,
    .fill = tess__cpu_fill,
    .copy = tess__cpu_copy,
    .square_sum = tess__cpu_square_sum,
    .count_zeros = tess__cpu_count_zeros,
    .cast_stochastic = tess__cpu_cast_stochastic,
    .update = tess__cpu_update,
    .lamb_direction = tess__cpu_lamb_direction,
};
