/*
 * The public wrappers of prepared operations: an operation that is used as what it is not is
 * refused, and an empty batch is dealt with, so no backend meets one.
 */
#include "wrap.h"

/* The sums of an empty batch; an array may be NULL. */
static enum tess_status prepared_zero(struct tess_op *op, enum tess_op_kind kind, int64_t count,
                                      float *sum, int64_t count2, float *sum2)
{
    TESS_TRY(tess__op_expect(op, kind));
    if (sum != NULL)
        tess_fill(op->kernel, count * (int64_t)sizeof(*sum), 0, sum);
    if (sum2 != NULL)
        tess_fill(op->kernel, count2 * (int64_t)sizeof(*sum2), 0, sum2);
    return TESS_OK;
}

enum tess_status tess_linear_forward(struct tess_op *op, const void *x, const void *w,
                                     const void *bias, void *y)
{
    return OP_RUN(op, TESS_OP_LINEAR, linear_forward, x, w, bias, y);
}

enum tess_status tess_linear_backward_data(struct tess_op *op, const void *dy, const void *w,
                                           void *dx)
{
    return OP_RUN(op, TESS_OP_LINEAR, linear_backward_data, dy, w, dx);
}

enum tess_status tess_linear_forward_add(struct tess_op *op, const void *x, const void *w,
                                         const void *bias, const void *add, void *y)
{
    return OP_RUN(op, TESS_OP_LINEAR, linear_forward_add, x, w, bias, add, y);
}

enum tess_status tess_linear_forward_gelu(struct tess_op *op, const void *x, const void *w,
                                          const void *bias, void *before, void *y)
{
    return OP_RUN(op, TESS_OP_LINEAR, linear_forward_gelu, x, w, bias, before, y);
}

enum tess_status tess_linear_backward_data_gelu(struct tess_op *op, const void *dy, const void *w,
                                                const void *before, void *dx)
{
    return OP_RUN(op, TESS_OP_LINEAR, linear_backward_data_gelu, dy, w, before, dx);
}

/* What a backend has left of the update. */
static enum tess_status prepared_update(struct tess_op *op, const struct tess_update *update)
{
    op->update = NULL;
    if (update != NULL)
        tess_update(op->kernel, update);
    return TESS_OK;
}

enum tess_status tess_linear_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                             float *dw, float *dbias)
{
    if (op->desc.rows == 0 && !op->desc.add_grad)
        TESS_TRY(
            prepared_zero(op, TESS_OP_LINEAR, op->desc.out * op->desc.in, dw, op->desc.out, dbias));
    else
        TESS_TRY(OP_RUN(op, TESS_OP_LINEAR, linear_backward_weight, x, dy, dw, dbias));
    return prepared_update(op, op->update);
}

/* The gradient of x needs w as it was. */
static enum tess_status prepared_backward_update(struct tess_op *op, const void *x, const void *dy,
                                                 const void *w, float *dw, float *dbias, void *term,
                                                 void *dx)
{
    const struct tess_update *update = op->update;
    if (dx != x) {
        TESS_TRY(tess_linear_backward(op, x, dy, w, NULL, NULL, term, dx));
        return tess_linear_backward_weight(op, x, dy, dw, dbias);
    }
    op->update = NULL;
    TESS_TRY(OP_RUN(op, TESS_OP_LINEAR, linear_backward, x, dy, w, dw, dbias, term, dx));
    return prepared_update(op, update);
}

enum tess_status tess_linear_backward(struct tess_op *op, const void *x, const void *dy,
                                      const void *w, float *dw, float *dbias, void *term, void *dx)
{
    if (op->desc.rows == 0)
        return dw != NULL ? tess_linear_backward_weight(op, x, dy, dw, dbias) : TESS_OK;
    if (dw == NULL) {
        TESS_TRY(tess_linear_backward_data(op, dy, w, term != NULL ? term : dx));
        if (term != NULL)
            tess_add(op->kernel, op->desc.dtype, op->desc.rows * op->desc.in, dx, term, dx);
        return TESS_OK;
    }
    if (op->update != NULL)
        return prepared_backward_update(op, x, dy, w, dw, dbias, term, dx);
    return OP_RUN(op, TESS_OP_LINEAR, linear_backward, x, dy, w, dw, dbias, term, dx);
}

enum tess_status tess_conv2d_forward(struct tess_op *op, const void *x, const void *w,
                                     const void *bias, void *y)
{
    return OP_RUN(op, TESS_OP_CONV2D, conv2d_forward, x, w, bias, y);
}

enum tess_status tess_conv2d_backward_data(struct tess_op *op, const void *dy, const void *w,
                                           void *dx)
{
    return OP_RUN(op, TESS_OP_CONV2D, conv2d_backward_data, dy, w, dx);
}

enum tess_status tess_conv2d_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                             float *dw, float *dbias)
{
    if (op->desc.rows == 0)
        return prepared_zero(op, TESS_OP_CONV2D,
                             op->desc.out * op->desc.window * op->desc.window * op->desc.in, dw,
                             op->desc.out, dbias);
    return OP_RUN(op, TESS_OP_CONV2D, conv2d_backward_weight, x, dy, dw, dbias);
}

enum tess_status tess_max_pool_forward(struct tess_op *op, const void *x, void *y, uint8_t *which)
{
    return OP_RUN(op, TESS_OP_MAX_POOL, max_pool_forward, x, y, which);
}

enum tess_status tess_max_pool_backward(struct tess_op *op, const void *dy, const uint8_t *which,
                                        void *dx)
{
    return OP_RUN(op, TESS_OP_MAX_POOL, max_pool_backward, dy, which, dx);
}

enum tess_status tess_avg_pool_forward(struct tess_op *op, const void *x, void *y)
{
    return OP_RUN(op, TESS_OP_AVG_POOL, avg_pool_forward, x, y);
}

enum tess_status tess_avg_pool_backward(struct tess_op *op, const void *dy, void *dx)
{
    return OP_RUN(op, TESS_OP_AVG_POOL, avg_pool_backward, dy, dx);
}

enum tess_status tess_batch_norm_forward(struct tess_op *op, const void *x, const void *gamma,
                                         const void *beta, void *y, float *save_mean,
                                         float *save_rstd, float *mean_sum, float *var_sum)
{
    if (op->desc.rows == 0)
        return prepared_zero(op, TESS_OP_BATCH_NORM, op->desc.in, mean_sum, op->desc.in, var_sum);
    return OP_RUN(op, TESS_OP_BATCH_NORM, batch_norm_forward, x, gamma, beta, y, save_mean,
                  save_rstd, mean_sum, var_sum);
}

enum tess_status tess_batch_norm_infer(struct tess_op *op, const void *x, const void *gamma,
                                       const void *beta, const void *mean, const void *var, void *y)
{
    return OP_RUN(op, TESS_OP_BATCH_NORM, batch_norm_infer, x, gamma, beta, mean, var, y);
}

enum tess_status tess_batch_norm_backward(struct tess_op *op, const void *x, const void *y,
                                          const void *dy, const void *gamma, const void *beta,
                                          const float *save_mean, const float *save_rstd, void *dx,
                                          float *dgamma, float *dbeta)
{
    if (op->desc.rows == 0)
        return prepared_zero(op, TESS_OP_BATCH_NORM, op->desc.in, dgamma, op->desc.in, dbeta);
    return OP_RUN(op, TESS_OP_BATCH_NORM, batch_norm_backward, x, y, dy, gamma, beta, save_mean,
                  save_rstd, dx, dgamma, dbeta);
}

enum tess_status tess_norm_forward(struct tess_op *op, const void *x, const void *add, void *sum,
                                   const void *gamma, const void *beta, void *y, float *mean,
                                   float *rstd)
{
    return OP_RUN(op, TESS_OP_NORM, norm_forward, x, add, sum, gamma, beta, y, mean, rstd);
}

enum tess_status tess_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                    const void *gamma, const float *mean, const float *rstd,
                                    const void *add, void *dx, float *dgamma, float *dbeta)
{
    if (op->desc.rows == 0)
        return prepared_zero(op, TESS_OP_NORM, op->desc.in, dgamma, op->desc.in, dbeta);
    return OP_RUN(op, TESS_OP_NORM, norm_backward, x, dy, gamma, mean, rstd, add, dx, dgamma,
                  dbeta);
}

/* Random numbers of a step: what was recorded is no other step's. */
static void prepared_drawn(const struct tess_op *op)
{
    op->kernel->drawn = op->kernel->drawn || op->drop.on;
}

enum tess_status tess_attention_forward(struct tess_op *op, const void *q, const void *k,
                                        const void *v, void *y, float *lse)
{
    prepared_drawn(op);
    return OP_RUN(op, TESS_OP_ATTENTION, attention_forward, q, k, v, y, lse);
}

enum tess_status tess_attention_backward(struct tess_op *op, const void *q, const void *k,
                                         const void *v, const void *y, const void *dy,
                                         const float *lse, void *dq, void *dk, void *dv)
{
    prepared_drawn(op);
    return OP_RUN(op, TESS_OP_ATTENTION, attention_backward, q, k, v, y, dy, lse, dq, dk, dv);
}

enum tess_status tess_attention_forward_documents(struct tess_op *op, const int32_t *begin,
                                                  int32_t count, const void *q, const void *k,
                                                  const void *v, void *y, float *lse)
{
    prepared_drawn(op);
    return OP_RUN(op, TESS_OP_ATTENTION, attention_forward_documents, begin, count, q, k, v, y,
                  lse);
}

enum tess_status tess_attention_backward_documents(struct tess_op *op, const int32_t *begin,
                                                   int32_t count, const void *q, const void *k,
                                                   const void *v, const void *y, const void *dy,
                                                   const float *lse, void *dq, void *dk, void *dv)
{
    prepared_drawn(op);
    return OP_RUN(op, TESS_OP_ATTENTION, attention_backward_documents, begin, count, q, k, v, y, dy,
                  lse, dq, dk, dv);
}

enum tess_status tess_attention_decode(struct tess_op *op, int64_t first, int64_t count,
                                       const void *q, const void *k, const void *v, void *y)
{
    const struct tess_op_desc *d = &op->desc;
    if (!d->decode || first < 0 || count < 0 || count > d->rows || first > d->length - count)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "kernel %s: %lld positions from %lld on are not what attention was described for",
                  op->kernel->ops->name, (long long)count, (long long)first);
    return count == 0 ? TESS_OK
                      : OP_RUN(op, TESS_OP_ATTENTION, attention_decode, first, count, q, k, v, y);
}

/* Positions as tokens are counted modulo the length. */
static enum tess_status prepared_tokens(const struct tess_op *op, const int32_t *token)
{
    if (token == NULL && op->desc.length < 1)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "kernel %s: an embedding of positions was described without a length",
                  op->kernel->ops->name);
    return TESS_OK;
}

enum tess_status tess_embedding_forward(struct tess_op *op, const int32_t *token, int64_t first,
                                        const void *table, const void *add, void *y)
{
    TESS_TRY(prepared_tokens(op, token));
    return OP_RUN(op, TESS_OP_EMBEDDING, embedding_forward, token, first, table, add, y);
}

enum tess_status tess_embedding_backward(struct tess_op *op, const int32_t *token, int64_t first,
                                         const void *dy, float *dtable)
{
    TESS_TRY(prepared_tokens(op, token));
    if (op->desc.rows == 0)
        return prepared_zero(op, TESS_OP_EMBEDDING, op->desc.in * op->desc.out, dtable, 0, NULL);
    return OP_RUN(op, TESS_OP_EMBEDDING, embedding_backward, token, first, dy, dtable);
}
