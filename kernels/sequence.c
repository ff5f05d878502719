/*
 * The public wrappers of the operations on sequences: norm over channels, causal attention,
 * embeddings, rotary positions, gated and smooth units, cross-entropy over parts of the classes.
 */
#include "wrap.h"

#include <math.h>
#include <stdio.h>

/* ---- what an operation may be --------------------------------------------------------------- */

static const char *sequence_attention_fault(const struct tess_op_desc *d)
{
    if (d->length < 1)
        return "attention needs sequences of at least 1 position";
    if (d->heads < 1 || d->kv_heads < 1)
        return "attention needs at least 1 head of each kind";
    if (d->heads % d->kv_heads != 0)
        return "the number of key and value heads must divide that of the heads";
    /* Divided, because the products may not fit. */
    if (d->q_stride / d->heads < d->in || d->kv_stride / d->kv_heads < d->in)
        return "a position's heads do not fit into its stride";
    return NULL;
}

const char *tess__sequence_fault(const struct tess_op_desc *d)
{
    if (d->kind == TESS_OP_ATTENTION)
        return sequence_attention_fault(d);
    if (d->kind == TESS_OP_NORM)
        return isfinite(d->epsilon) && d->epsilon >= 0
                   ? NULL
                   : "the epsilon of a norm must be finite and at least 0";
    if (d->out < 1)
        return "the table of an embedding must be at least 1 wide";
    return d->length < 0 ? "the length of a sequence must not be negative" : NULL;
}

void tess__sequence_why(const struct tess_op_desc *d, const char *fault, char *why,
                        size_t why_bytes)
{
    if (d->kind == TESS_OP_ATTENTION)
        snprintf(why, why_bytes,
                 "%s (rows %lld by %lld, length %lld, heads %d and %d of %lld, strides %lld and "
                 "%lld)",
                 fault, (long long)d->rows, (long long)d->leaf_rows, (long long)d->length,
                 (int)d->heads, (int)d->kv_heads, (long long)d->in, (long long)d->q_stride,
                 (long long)d->kv_stride);
    else
        snprintf(why, why_bytes,
                 "%s (rows %lld by %lld, in %lld, out %lld, length %lld, epsilon %g)", fault,
                 (long long)d->rows, (long long)d->leaf_rows, (long long)d->in, (long long)d->out,
                 (long long)d->length, (double)d->epsilon);
}

/* ---- prepared operations: an empty batch is dealt with here -------------------------------------
 */

enum tess_status tess_norm_forward(struct tess_op *op, const void *x, const void *add, void *sum,
                                   const void *gamma, const void *beta, void *y, float *mean,
                                   float *rstd)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_NORM));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->norm_forward(op, x, add, sum, gamma, beta, y, mean, rstd);
}

enum tess_status tess_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                    const void *gamma, const float *mean, const float *rstd,
                                    const void *add, void *dx, float *dgamma, float *dbeta)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_NORM));
    if (op->desc.rows == 0) {
        tess__kernel_zero(op, op->desc.in, dgamma);
        tess__kernel_zero(op, op->desc.in, dbeta);
        return TESS_OK;
    }
    return op->kernel->ops->norm_backward(op, x, dy, gamma, mean, rstd, add, dx, dgamma, dbeta);
}

enum tess_status tess_attention_forward(struct tess_op *op, const void *q, const void *k,
                                        const void *v, void *y, float *lse)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_ATTENTION));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->attention_forward(op, q, k, v, y, lse);
}

enum tess_status tess_attention_backward(struct tess_op *op, const void *q, const void *k,
                                         const void *v, const void *y, const void *dy,
                                         const float *lse, void *dq, void *dk, void *dv)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_ATTENTION));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->attention_backward(op, q, k, v, y, dy, lse, dq, dk, dv);
}

/* Positions as tokens are counted modulo the length. */
static enum tess_status sequence_tokens(const struct tess_op *op, const int32_t *token)
{
    if (!token && op->desc.length < 1)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "kernel %s: an embedding of positions was described without a length",
                  op->kernel->ops->name);
    return TESS_OK;
}

enum tess_status tess_embedding_forward(struct tess_op *op, const int32_t *token, int64_t first,
                                        const void *table, const void *add, void *y)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_EMBEDDING));
    TESS_TRY(sequence_tokens(op, token));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->embedding_forward(op, token, first, table, add, y);
}

enum tess_status tess_embedding_backward(struct tess_op *op, const int32_t *token, int64_t first,
                                         const void *dy, float *dtable)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_EMBEDDING));
    TESS_TRY(sequence_tokens(op, token));
    if (op->desc.rows == 0) {
        tess__kernel_zero(op, op->desc.in * op->desc.out, dtable);
        return TESS_OK;
    }
    return op->kernel->ops->embedding_backward(op, token, first, dy, dtable);
}

/* ---- plain operations ----------------------------------------------------------------------- */

void tess_attention_decode(struct tess_kernel *kernel, const struct tess_op_desc *desc,
                           int64_t position, const void *q, const void *k, const void *v, void *y)
{
    kernel->ops->attention_decode(kernel, desc, position, q, k, v, y);
}

void tess_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t length,
               int64_t first, int32_t heads, int64_t head_size, int64_t stride, float base,
               bool inverse, void *x)
{
    if (rows > 0)
        kernel->ops->rope(kernel, dtype, rows, length, first, heads, head_size, stride, base,
                          inverse, x);
}

void tess_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                       const void *x, void *y)
{
    if (count > 0)
        kernel->ops->gelu_forward(kernel, dtype, count, x, y);
}

void tess_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                        const void *x, const void *dy, void *dx)
{
    if (count > 0)
        kernel->ops->gelu_backward(kernel, dtype, count, x, dy, dx);
}

void tess_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                         const void *gate, const void *up, void *y)
{
    if (count > 0)
        kernel->ops->swiglu_forward(kernel, dtype, count, gate, up, y);
}

void tess_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                          const void *gate, const void *up, const void *dy, void *dgate, void *dup)
{
    if (count > 0)
        kernel->ops->swiglu_backward(kernel, dtype, count, gate, up, dy, dgate, dup);
}

void tess_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t classes,
                   int64_t stride, const void *logits, float *max)
{
    if (rows > 0)
        kernel->ops->xent_max(kernel, dtype, rows, classes, stride, logits, max);
}

void tess_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t classes,
                   int64_t stride, int64_t first, const void *logits, const int32_t *label,
                   const float *max, float *sum, float *target, float *best)
{
    if (rows > 0)
        kernel->ops->xent_sum(kernel, dtype, rows, classes, stride, first, logits, label, max, sum,
                              target, best);
}

void tess_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                    int64_t classes, int64_t stride, int64_t first, float scale, const void *logits,
                    const int32_t *label, const float *max, const float *sum, void *dlogits)
{
    if (rows > 0)
        kernel->ops->xent_grad(kernel, dtype, rows, classes, stride, first, scale, logits, label,
                               max, sum, dlogits);
}

void tess_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length, const int32_t *label,
                    const float *max, const float *sum, const float *target, const float *best,
                    float *loss, int32_t *correct)
{
    if (rows > 0)
        kernel->ops->xent_loss(kernel, rows, length, label, max, sum, target, best, loss, correct);
}
