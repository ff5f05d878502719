/* The operations on sequences of `guard`: open the memory, compute with ref, close it. */
#include "guard/slots.h"

#include "guard/memory.h"
#include "ref/ref.h"

enum tess_status tess__guard_norm_forward(struct tess_op *op, const void *x, const void *add,
                                          void *sum, const void *gamma, const void *beta, void *y,
                                          float *mean, float *rstd)
{
    tess__guard_touch(op->kernel, true);
    enum tess_status status =
        tess_kernel_ref.norm_forward(op, x, add, sum, gamma, beta, y, mean, rstd);
    tess__guard_touch(op->kernel, false);
    return status;
}

enum tess_status tess__guard_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                           const void *gamma, const float *mean, const float *rstd,
                                           const void *add, void *dx, float *dgamma, float *dbeta)
{
    tess__guard_touch(op->kernel, true);
    enum tess_status status =
        tess_kernel_ref.norm_backward(op, x, dy, gamma, mean, rstd, add, dx, dgamma, dbeta);
    tess__guard_touch(op->kernel, false);
    return status;
}

enum tess_status tess__guard_attention_forward(struct tess_op *op, const void *q, const void *k,
                                               const void *v, void *y, float *lse)
{
    tess__guard_touch(op->kernel, true);
    enum tess_status status = tess_kernel_ref.attention_forward(op, q, k, v, y, lse);
    tess__guard_touch(op->kernel, false);
    return status;
}

enum tess_status tess__guard_attention_backward(struct tess_op *op, const void *q, const void *k,
                                                const void *v, const void *y, const void *dy,
                                                const float *lse, void *dq, void *dk, void *dv)
{
    tess__guard_touch(op->kernel, true);
    enum tess_status status =
        tess_kernel_ref.attention_backward(op, q, k, v, y, dy, lse, dq, dk, dv);
    tess__guard_touch(op->kernel, false);
    return status;
}

enum tess_status tess__guard_embedding_forward(struct tess_op *op, const int32_t *token,
                                               int64_t first, const void *table, const void *add,
                                               void *y)
{
    tess__guard_touch(op->kernel, true);
    enum tess_status status = tess_kernel_ref.embedding_forward(op, token, first, table, add, y);
    tess__guard_touch(op->kernel, false);
    return status;
}

enum tess_status tess__guard_embedding_backward(struct tess_op *op, const int32_t *token,
                                                int64_t first, const void *dy, float *dtable)
{
    tess__guard_touch(op->kernel, true);
    enum tess_status status = tess_kernel_ref.embedding_backward(op, token, first, dy, dtable);
    tess__guard_touch(op->kernel, false);
    return status;
}

void tess__guard_attention_decode(struct tess_kernel *kernel, const struct tess_op_desc *desc,
                                  int64_t position, const void *q, const void *k, const void *v,
                                  void *y)
{
    tess__guard_touch(kernel, true);
    tess_kernel_ref.attention_decode(kernel, desc, position, q, k, v, y);
    tess__guard_touch(kernel, false);
}

void tess__guard_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                      int64_t length, int64_t first, int32_t heads, int64_t head_size,
                      int64_t stride, float base, bool inverse, void *x)
{
    tess__guard_touch(kernel, true);
    tess_kernel_ref.rope(kernel, dtype, rows, length, first, heads, head_size, stride, base,
                         inverse, x);
    tess__guard_touch(kernel, false);
}

void tess__guard_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *x, void *y)
{
    tess__guard_touch(kernel, true);
    tess_kernel_ref.gelu_forward(kernel, dtype, count, x, y);
    tess__guard_touch(kernel, false);
}

void tess__guard_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                               const void *x, const void *dy, void *dx)
{
    tess__guard_touch(kernel, true);
    tess_kernel_ref.gelu_backward(kernel, dtype, count, x, dy, dx);
    tess__guard_touch(kernel, false);
}

void tess__guard_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                const void *gate, const void *up, void *y)
{
    tess__guard_touch(kernel, true);
    tess_kernel_ref.swiglu_forward(kernel, dtype, count, gate, up, y);
    tess__guard_touch(kernel, false);
}

void tess__guard_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                 const void *gate, const void *up, const void *dy, void *dgate,
                                 void *dup)
{
    tess__guard_touch(kernel, true);
    tess_kernel_ref.swiglu_backward(kernel, dtype, count, gate, up, dy, dgate, dup);
    tess__guard_touch(kernel, false);
}

void tess__guard_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                          int64_t classes, int64_t stride, const void *logits, float *max)
{
    tess__guard_touch(kernel, true);
    tess_kernel_ref.xent_max(kernel, dtype, rows, classes, stride, logits, max);
    tess__guard_touch(kernel, false);
}

void tess__guard_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                          int64_t classes, int64_t stride, int64_t first, const void *logits,
                          const int32_t *label, const float *max, float *sum, float *target,
                          float *best)
{
    tess__guard_touch(kernel, true);
    tess_kernel_ref.xent_sum(kernel, dtype, rows, classes, stride, first, logits, label, max, sum,
                             target, best);
    tess__guard_touch(kernel, false);
}

void tess__guard_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                           int64_t classes, int64_t stride, int64_t first, float scale,
                           const void *logits, const int32_t *label, const float *max,
                           const float *sum, void *dlogits)
{
    tess__guard_touch(kernel, true);
    tess_kernel_ref.xent_grad(kernel, dtype, rows, classes, stride, first, scale, logits, label,
                              max, sum, dlogits);
    tess__guard_touch(kernel, false);
}

void tess__guard_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length,
                           const int32_t *label, const float *max, const float *sum,
                           const float *target, const float *best, float *loss, int32_t *correct)
{
    tess__guard_touch(kernel, true);
    tess_kernel_ref.xent_loss(kernel, rows, length, label, max, sum, target, best, loss, correct);
    tess__guard_touch(kernel, false);
}
