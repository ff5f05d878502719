/*
 * The backend `cpu`: oneDNN for products and convolutions (linear.c, conv.c; wide.c where 16 bits
 * are multiplied in f32), own kernels for attention (flash.c), own loops for the rest (sequence.c,
 * plain.c), ref for what is too rare or too small to matter. This file opens it, sends each slot to
 * where the work is done, and does none itself.
 */
#include "cpu/plain.h"
#include "cpu/prim.h"
#include "cpu/sequence.h"

#include "kernel_open.h"
#include "ref/fold.h"
#include "ref/ref.h"
#include "tessera/check.h"
#include "tessera/version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct cpu_loops *cpu_loops(const struct tess_kernel *kernel)
{
    const struct cpu_state *state = kernel->state;
    return state->loops;
}

static bool cpu_supports(const struct tess_op_desc *desc, char *why, size_t why_bytes)
{
    if (!tess_op_check(desc, why, why_bytes))
        return false;
    bool product = desc->kind == TESS_OP_LINEAR || desc->kind == TESS_OP_CONV2D;
    bool in_bf16 = desc->dtype == TESS_BF16 && !desc->f32_math;
    if (product && in_bf16 && !tess__cpu_bf16_available()) {
        snprintf(why, why_bytes,
                 "products in bf16 need a processor with AVX-512: use f32, multiply in f32 "
                 "(--f32-ops) or take --kernel ref");
        return false;
    }
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
    if (state->stream)
        dnnl_stream_destroy(state->stream);
    if (state->engine)
        dnnl_engine_destroy(state->engine);
    free(state->verdict);
    tess__cpu_share_close(state);
    memset(state, 0, sizeof(*state));
}

static enum tess_status cpu_open(struct tess_kernel *kernel)
{
    struct cpu_state *state = kernel->state;
    state->loops = tess__cpu_loops_best();
    tess__cpu_share_open(state);
    tess__cpu_threads(kernel);
    dnnl_status_t status = dnnl_engine_create(&state->engine, dnnl_cpu, 0);
    if (status == dnnl_success)
        status = dnnl_stream_create(&state->stream, state->engine, dnnl_stream_default_flags);
    if (status != dnnl_success)
        cpu_close(kernel);
    return tess__cpu_check(status, "open");
}

size_t tess__cpu_bias_scratch(int64_t cols, int64_t leaves)
{
    return tess__fold_bytes(cols, leaves) + tess__cpu_round_up((size_t)cols * sizeof(float));
}

void tess__cpu_bias_grad(const struct cpu_loops *loops, enum tess_dtype dtype, int64_t leaves,
                         int64_t rows_per_leaf, int64_t cols, bool add, const void *dy,
                         float *dbias, void *scratch)
{
    size_t leaf_bytes = (size_t)(rows_per_leaf * cols) * tess_dtype_bytes(dtype);
    struct tess_fold fold;
    float *sum = add ? (float *)(void *)((char *)scratch + tess__fold_bytes(cols, leaves)) : dbias;
    tess__fold_init(&fold, cols, sum, scratch);
    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        loops->column_sum(dtype, rows_per_leaf, cols, (const char *)dy + (size_t)leaf * leaf_bytes,
                          tess__fold_leaf(&fold));
        tess__fold_push(&fold);
    }
    tess__fold_finish(&fold);
    if (add)
        loops->plain_add(cols, sum, dbias);
}

size_t tess__cpu_small_scratch(const struct tess_op_desc *desc)
{
    /* Weights, one row in, one row out, a bias. */
    return (size_t)(desc->in * desc->out + desc->in + 2 * desc->out) * sizeof(float);
}

size_t tess__cpu_norm_scratch(const struct tess_op_desc *desc)
{
    return 2 * tess__fold_bytes(desc->in, desc->rows / desc->leaf_rows);
}

static enum tess_status cpu_op_needs(const struct tess_op_desc *desc,
                                     struct tess_op_needs *needs_out)
{
    char why[160];
    if (!cpu_supports(desc, why, sizeof(why)))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "kernel cpu: %s", why);
    if (tess__cpu_is_wide(desc))
        return tess__cpu_wide_needs(desc, needs_out);
    struct tess_op_needs needs = {0};
    switch (desc->kind) {
    case TESS_OP_LINEAR:
        TESS_TRY(tess__cpu_linear_needs(desc, &needs.scratch_bytes));
        break;
    case TESS_OP_CONV2D:
        TESS_TRY(tess__cpu_conv_needs(desc, &needs.scratch_bytes));
        break;
    case TESS_OP_BATCH_NORM:
        needs.scratch_bytes = tess__cpu_norm_scratch(desc);
        break;
    case TESS_OP_NORM:
    case TESS_OP_ATTENTION:
    case TESS_OP_EMBEDDING:
        TESS_TRY(tess__cpu_sequence_needs(desc, &needs));
        break;
    default: /* pools may be handed to ref */
        TESS_TRY(tess_kernel_ref.op_needs(desc, &needs));
    }
    *needs_out = needs;
    return TESS_OK;
}

static void cpu_op_close(struct tess_op *op)
{
    if (tess__cpu_is_wide(&op->desc))
        tess__cpu_wide_close(op);
    else if (op->desc.kind == TESS_OP_LINEAR)
        tess__cpu_linear_close(op);
    else if (op->desc.kind == TESS_OP_CONV2D)
        tess__cpu_conv_close(op);
}

static enum tess_status cpu_op_open(struct tess_op *op)
{
    char why[160];
    if (!cpu_supports(&op->desc, why, sizeof(why)))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "kernel cpu: %s", why);
    tess__cpu_threads(op->kernel);
    enum tess_status status = TESS_OK;
    if (tess__cpu_is_wide(&op->desc))
        status = tess__cpu_wide_open(op);
    else if (op->desc.kind == TESS_OP_LINEAR)
        status = tess__cpu_linear_open(op);
    else if (op->desc.kind == TESS_OP_CONV2D)
        status = tess__cpu_conv_open(op);
    else
        status = tess__cpu_sequence_open(op);
    if (status != TESS_OK)
        cpu_op_close(op);
    return status;
}

/* ---- products: as they are, or through f32 ----------------------------------------------------
 */

static enum tess_status cpu_linear_forward(struct tess_op *op, const void *x, const void *w,
                                           const void *bias, void *y)
{
    return tess__cpu_is_wide(&op->desc) ? tess__cpu_wide_forward(op, x, w, bias, y)
                                        : tess__cpu_linear_forward(op, x, w, bias, y);
}

static enum tess_status cpu_linear_backward_data(struct tess_op *op, const void *dy, const void *w,
                                                 void *dx)
{
    return tess__cpu_is_wide(&op->desc) ? tess__cpu_wide_backward_data(op, dy, w, dx)
                                        : tess__cpu_linear_backward_data(op, dy, w, dx);
}

static enum tess_status cpu_linear_backward_weight(struct tess_op *op, const void *x,
                                                   const void *dy, float *dw, float *dbias)
{
    return tess__cpu_is_wide(&op->desc) ? tess__cpu_wide_backward_weight(op, x, dy, dw, dbias)
                                        : tess__cpu_linear_backward_weight(op, x, dy, dw, dbias);
}

static enum tess_status cpu_conv2d_forward(struct tess_op *op, const void *x, const void *w,
                                           const void *bias, void *y)
{
    return tess__cpu_is_wide(&op->desc) ? tess__cpu_wide_forward(op, x, w, bias, y)
                                        : tess__cpu_conv_forward(op, x, w, bias, y);
}

static enum tess_status cpu_conv2d_backward_data(struct tess_op *op, const void *dy, const void *w,
                                                 void *dx)
{
    return tess__cpu_is_wide(&op->desc) ? tess__cpu_wide_backward_data(op, dy, w, dx)
                                        : tess__cpu_conv_backward_data(op, dy, w, dx);
}

static enum tess_status cpu_conv2d_backward_weight(struct tess_op *op, const void *x,
                                                   const void *dy, float *dw, float *dbias)
{
    return tess__cpu_is_wide(&op->desc) ? tess__cpu_wide_backward_weight(op, x, dy, dw, dbias)
                                        : tess__cpu_conv_backward_weight(op, x, dy, dw, dbias);
}

/* ---- slots that go to the table of own loops ---------------------------------------------------
 */

static enum tess_status cpu_max_pool_forward(struct tess_op *op, const void *x, void *y,
                                             uint8_t *which)
{
    return cpu_loops(op->kernel)->ops.max_pool_forward(op, x, y, which);
}

static enum tess_status cpu_max_pool_backward(struct tess_op *op, const void *dy,
                                              const uint8_t *which, void *dx)
{
    return cpu_loops(op->kernel)->ops.max_pool_backward(op, dy, which, dx);
}

static enum tess_status cpu_batch_norm_forward(struct tess_op *op, const void *x, const void *gamma,
                                               const void *beta, void *y, float *save_mean,
                                               float *save_rstd, float *mean_sum, float *var_sum)
{
    return cpu_loops(op->kernel)
        ->ops.batch_norm_forward(op, x, gamma, beta, y, save_mean, save_rstd, mean_sum, var_sum);
}

static enum tess_status cpu_batch_norm_infer(struct tess_op *op, const void *x, const void *gamma,
                                             const void *beta, const void *mean, const void *var,
                                             void *y)
{
    return cpu_loops(op->kernel)->ops.batch_norm_infer(op, x, gamma, beta, mean, var, y);
}

static enum tess_status cpu_batch_norm_backward(struct tess_op *op, const void *x, const void *y,
                                                const void *dy, const void *gamma,
                                                const float *save_mean, const float *save_rstd,
                                                void *dx, float *dgamma, float *dbeta)
{
    return cpu_loops(op->kernel)
        ->ops.batch_norm_backward(op, x, y, dy, gamma, save_mean, save_rstd, dx, dgamma, dbeta);
}

static int64_t cpu_find_nonfinite(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                  const void *x)
{
    return cpu_loops(kernel)->ops.find_nonfinite(kernel, dtype, count, x);
}

static void cpu_count_zeros(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, double *sum)
{
    cpu_loops(kernel)->ops.count_zeros(kernel, dtype, count, x, sum);
}

/* With the search of this instruction set. */
static void cpu_find_flag(struct tess_kernel *kernel, int64_t count, const float *x, int32_t flag,
                          struct tess_verdict *verdict)
{
    if (verdict->grad_bad < flag && cpu_find_nonfinite(kernel, TESS_F32, count, x) >= 0)
        verdict->grad_bad = flag;
}

/* ---- slots of ref: its functions are not named outside its folder, its table is ----------------
 */

static enum tess_status cpu_avg_pool_forward(struct tess_op *op, const void *x, void *y)
{
    return tess_kernel_ref.avg_pool_forward(op, x, y);
}

static enum tess_status cpu_avg_pool_backward(struct tess_op *op, const void *dy, void *dx)
{
    return tess_kernel_ref.avg_pool_backward(op, dy, dx);
}

static void cpu_leaf_sum(struct tess_kernel *kernel, int64_t leaves, int64_t leaf_rows,
                         const float *loss, const int32_t *correct, double *sum,
                         struct tess_verdict *verdict)
{
    tess_kernel_ref.leaf_sum(kernel, leaves, leaf_rows, loss, correct, sum, verdict);
}

static void cpu_maximum(struct tess_kernel *kernel, int64_t count, const float *x, float *y)
{
    tess_kernel_ref.maximum(kernel, count, x, y);
}

static void cpu_normal(struct tess_kernel *kernel, const uint32_t key[2], uint64_t first,
                       int64_t count, float mean, float deviation, float *y)
{
    tess_kernel_ref.normal(kernel, key, first, count, mean, deviation, y);
}

static void cpu_update_judge(struct tess_kernel *kernel, const struct tess_judge *judge)
{
    tess_kernel_ref.update_judge(kernel, judge);
}

const struct tess_kernel_ops tess_kernel_cpu = {
    .abi = TESS_ABI,
    .name = "cpu",
    .summary = "oneDNN and own vector kernels; ref for average pooling and embedding gradients",
    .host_memory = true,
    .state_size = sizeof(struct cpu_state),
    .supports = cpu_supports,
    .open = cpu_open,
    .close = cpu_close,
    .op_needs = cpu_op_needs,
    .op_open = cpu_op_open,
    .op_close = cpu_op_close,
    .linear_forward = cpu_linear_forward,
    .linear_backward_data = cpu_linear_backward_data,
    .linear_backward_weight = cpu_linear_backward_weight,
    .conv2d_forward = cpu_conv2d_forward,
    .conv2d_backward_data = cpu_conv2d_backward_data,
    .conv2d_backward_weight = cpu_conv2d_backward_weight,
    .max_pool_forward = cpu_max_pool_forward,
    .max_pool_backward = cpu_max_pool_backward,
    .avg_pool_forward = cpu_avg_pool_forward,
    .avg_pool_backward = cpu_avg_pool_backward,
    .batch_norm_forward = cpu_batch_norm_forward,
    .batch_norm_infer = cpu_batch_norm_infer,
    .batch_norm_backward = cpu_batch_norm_backward,
    .norm_forward = tess__cpu_norm_forward,
    .norm_backward = tess__cpu_norm_backward,
    .attention_forward = tess__cpu_attention_forward,
    .attention_backward = tess__cpu_attention_backward,
    .embedding_forward = tess__cpu_embedding_forward,
    .embedding_backward = tess__cpu_embedding_backward,
    .attention_decode = tess__cpu_attention_decode,
    .rope = tess__cpu_rope,
    .gelu_forward = tess__cpu_gelu_forward,
    .gelu_backward = tess__cpu_gelu_backward,
    .swiglu_forward = tess__cpu_swiglu_forward,
    .swiglu_backward = tess__cpu_swiglu_backward,
    .xent_max = tess__cpu_xent_max,
    .xent_sum = tess__cpu_xent_sum,
    .xent_grad = tess__cpu_xent_grad,
    .xent_loss = tess__cpu_xent_loss,
    .relu_forward = tess__cpu_relu_forward,
    .relu_backward = tess__cpu_relu_backward,
    .add = tess__cpu_add,
    .dropout = tess__cpu_dropout,
    .softmax_xent = tess__cpu_softmax_xent,
    .cast = tess__cpu_cast,
    .accumulate = tess__cpu_accumulate,
    .fill = tess__cpu_fill,
    .copy = tess__cpu_copy,
    .square_sum = tess__cpu_square_sum,
    .find_nonfinite = cpu_find_nonfinite,
    .count_zeros = cpu_count_zeros,
    .find_flag = cpu_find_flag,
    .leaf_sum = cpu_leaf_sum,
    .maximum = cpu_maximum,
    .normal = cpu_normal,
    .cast_stochastic = tess__cpu_cast_stochastic,
    .update_judge = cpu_update_judge,
    .update = tess__cpu_update,
    .lamb_direction = tess__cpu_lamb_direction,
};
