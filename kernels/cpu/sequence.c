/* The operations on sequences of `cpu`. */
#include "cpu/sequence.h"

#include "cpu/cpu.h"
#include "ref/ref.h"
#include "tessera/check.h"

enum tess_status tess__cpu_sequence_needs(const struct tess_op_desc *desc,
                                          struct tess_op_needs *needs_out)
{
    if (desc->kind != TESS_OP_ATTENTION || !tess__cpu_flash_takes(desc))
        return tess_kernel_ref.op_needs(desc, needs_out);
    *needs_out = (struct tess_op_needs){.scratch_bytes = tess__cpu_flash_scratch(desc)};
    return TESS_OK;
}

enum tess_status tess__cpu_sequence_open(struct tess_op *op)
{
    if (op->desc.kind != TESS_OP_ATTENTION)
        return TESS_OK;
    return tess__cpu_share_reserve(op->kernel, tess__cpu_flash_scratch(&op->desc));
}

enum tess_status tess__cpu_norm_forward(struct tess_op *op, const void *x, const void *add,
                                        void *sum, const void *gamma, const void *beta, void *y,
                                        float *mean, float *rstd)
{
    return tess_kernel_ref.norm_forward(op, x, add, sum, gamma, beta, y, mean, rstd);
}

enum tess_status tess__cpu_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                         const void *gamma, const float *mean, const float *rstd,
                                         const void *add, void *dx, float *dgamma, float *dbeta)
{
    return tess_kernel_ref.norm_backward(op, x, dy, gamma, mean, rstd, add, dx, dgamma, dbeta);
}

enum tess_status tess__cpu_attention_forward(struct tess_op *op, const void *q, const void *k,
                                             const void *v, void *y, float *lse)
{
    if (!tess__cpu_flash_takes(&op->desc))
        return tess_kernel_ref.attention_forward(op, q, k, v, y, lse);
    tess__cpu_flash(op->kernel, &op->desc, q, k, v, y, lse, op->scratch);
    return TESS_OK;
}

enum tess_status tess__cpu_attention_backward(struct tess_op *op, const void *q, const void *k,
                                              const void *v, const void *y, const void *dy,
                                              const float *lse, void *dq, void *dk, void *dv)
{
    if (!tess__cpu_flash_takes(&op->desc))
        return tess_kernel_ref.attention_backward(op, q, k, v, y, dy, lse, dq, dk, dv);
    struct cpu_flash_grad arrays = {
        .q = q, .k = k, .v = v, .y = y, .dy = dy, .lse = lse, .dq = dq, .dk = dk, .dv = dv};
    tess__cpu_flash_grad(op->kernel, &op->desc, &arrays, op->scratch);
    return TESS_OK;
}

enum tess_status tess__cpu_embedding_forward(struct tess_op *op, const int32_t *token,
                                             int64_t first, const void *table, const void *add,
                                             void *y)
{
    return tess_kernel_ref.embedding_forward(op, token, first, table, add, y);
}

enum tess_status tess__cpu_embedding_backward(struct tess_op *op, const int32_t *token,
                                              int64_t first, const void *dy, float *dtable)
{
    return tess_kernel_ref.embedding_backward(op, token, first, dy, dtable);
}

void tess__cpu_attention_decode(struct tess_kernel *kernel, const struct tess_op_desc *desc,
                                int64_t position, const void *q, const void *k, const void *v,
                                void *y)
{
    tess_kernel_ref.attention_decode(kernel, desc, position, q, k, v, y);
}

void tess__cpu_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t length,
                    int64_t first, int32_t heads, int64_t head_size, int64_t stride, float base,
                    bool inverse, void *x)
{
    tess_kernel_ref.rope(kernel, dtype, rows, length, first, heads, head_size, stride, base,
                         inverse, x);
}

void tess__cpu_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, void *y)
{
    tess_kernel_ref.gelu_forward(kernel, dtype, count, x, y);
}

void tess__cpu_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *x, const void *dy, void *dx)
{
    tess_kernel_ref.gelu_backward(kernel, dtype, count, x, dy, dx);
}

void tess__cpu_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *gate, const void *up, void *y)
{
    tess_kernel_ref.swiglu_forward(kernel, dtype, count, gate, up, y);
}

void tess__cpu_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                               const void *gate, const void *up, const void *dy, void *dgate,
                               void *dup)
{
    tess_kernel_ref.swiglu_backward(kernel, dtype, count, gate, up, dy, dgate, dup);
}

void tess__cpu_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t classes, int64_t stride, const void *logits, float *max)
{
    tess_kernel_ref.xent_max(kernel, dtype, rows, classes, stride, logits, max);
}

void tess__cpu_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t classes, int64_t stride, int64_t first, const void *logits,
                        const int32_t *label, const float *max, float *sum, float *target,
                        float *best)
{
    tess_kernel_ref.xent_sum(kernel, dtype, rows, classes, stride, first, logits, label, max, sum,
                             target, best);
}

void tess__cpu_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t classes, int64_t stride, int64_t first, float scale,
                         const void *logits, const int32_t *label, const float *max,
                         const float *sum, void *dlogits)
{
    tess_kernel_ref.xent_grad(kernel, dtype, rows, classes, stride, first, scale, logits, label,
                              max, sum, dlogits);
}

void tess__cpu_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length,
                         const int32_t *label, const float *max, const float *sum,
                         const float *target, const float *best, float *loss, int32_t *correct)
{
    tess_kernel_ref.xent_loss(kernel, rows, length, label, max, sum, target, best, loss, correct);
}
