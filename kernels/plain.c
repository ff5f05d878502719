/* The public wrappers of plain operations, which deal with empty arrays: no backend meets one. */
#include "wrap.h"

void tess_relu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                       const void *x, void *y)
{
    if (count > 0 && KERNEL_BEGIN(kernel, relu_forward)) {
        kernel->ops->relu_forward(kernel, dtype, count, x, y);
        tess__kernel_end(kernel);
    }
}

void tess_relu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                        const void *y, const void *dy, void *dx)
{
    if (count > 0 && KERNEL_BEGIN(kernel, relu_backward)) {
        kernel->ops->relu_backward(kernel, dtype, count, y, dy, dx);
        tess__kernel_end(kernel);
    }
}

void tess_add(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, const void *a,
              const void *b, void *y)
{
    if (count > 0 && KERNEL_BEGIN(kernel, add)) {
        kernel->ops->add(kernel, dtype, count, a, b, y);
        tess__kernel_end(kernel);
    }
}

void tess_dropout(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, float rate,
                  const uint64_t key[2], uint64_t first, const void *x, void *y)
{
    kernel->drawn = true;
    if (count > 0 && KERNEL_BEGIN(kernel, dropout)) {
        kernel->ops->dropout(kernel, dtype, count, rate, key, first, x, y);
        tess__kernel_end(kernel);
    }
}

void tess_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                       int64_t classes, float scale, const void *logits, const int32_t *label,
                       void *dlogits, float *loss, int32_t *correct)
{
    if (rows > 0 && KERNEL_BEGIN(kernel, softmax_xent)) {
        kernel->ops->softmax_xent(kernel, dtype, rows, classes, scale, logits, label, dlogits, loss,
                                  correct);
        tess__kernel_end(kernel);
    }
}

void tess_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from, const void *x,
               enum tess_dtype to, void *y)
{
    if (count > 0 && KERNEL_BEGIN(kernel, cast)) {
        kernel->ops->cast(kernel, count, from, x, to, y);
        tess__kernel_end(kernel);
    }
}

void tess_accumulate(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                     float *y)
{
    if (count > 0 && KERNEL_BEGIN(kernel, accumulate)) {
        kernel->ops->accumulate(kernel, count, scale, x, y);
        tess__kernel_end(kernel);
    }
}

void tess_fill(struct tess_kernel *kernel, int64_t bytes, int value, void *memory)
{
    if (bytes > 0 && KERNEL_BEGIN(kernel, fill)) {
        kernel->ops->fill(kernel, bytes, value, memory);
        tess__kernel_end(kernel);
    }
}

void tess_copy(struct tess_kernel *kernel, int64_t bytes, const void *source, void *target)
{
    if (bytes > 0 && KERNEL_BEGIN(kernel, copy)) {
        kernel->ops->copy(kernel, bytes, source, target);
        tess__kernel_end(kernel);
    }
}

void tess_square_sum(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                     struct tess_sum *sum)
{
    if (count > 0 && KERNEL_BEGIN(kernel, square_sum)) {
        kernel->ops->square_sum(kernel, count, scale, x, sum);
        tess__kernel_end(kernel);
    }
}

void tess_count_zeros(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                      const void *x, double *sum)
{
    if (count > 0 && KERNEL_BEGIN(kernel, count_zeros)) {
        kernel->ops->count_zeros(kernel, dtype, count, x, sum);
        tess__kernel_end(kernel);
    }
}

void tess_find_flag(struct tess_kernel *kernel, int64_t count, const float *x, int32_t flag,
                    struct tess_verdict *verdict)
{
    if (count > 0 && KERNEL_BEGIN(kernel, find_flag)) {
        kernel->ops->find_flag(kernel, count, x, flag, verdict);
        tess__kernel_end(kernel);
    }
}

void tess_leaf_sum(struct tess_kernel *kernel, int64_t leaves, int64_t leaf_rows, const float *loss,
                   const int32_t *correct, double *sum, struct tess_verdict *verdict)
{
    if (leaves > 0 && KERNEL_BEGIN(kernel, leaf_sum)) {
        kernel->ops->leaf_sum(kernel, leaves, leaf_rows, loss, correct, sum, verdict);
        tess__kernel_end(kernel);
    }
}

void tess_maximum(struct tess_kernel *kernel, int64_t count, const float *x, float *y)
{
    if (count > 0 && KERNEL_BEGIN(kernel, maximum)) {
        kernel->ops->maximum(kernel, count, x, y);
        tess__kernel_end(kernel);
    }
}

void tess_normal(struct tess_kernel *kernel, const uint32_t key[2], uint64_t first, int64_t count,
                 float mean, float deviation, float *y)
{
    if (count > 0 && KERNEL_BEGIN(kernel, normal)) {
        kernel->ops->normal(kernel, key, first, count, mean, deviation, y);
        tess__kernel_end(kernel);
    }
}

void tess_cast_stochastic(struct tess_kernel *kernel, int64_t count, const float *x,
                          enum tess_dtype to, const uint64_t key[2], uint64_t first, void *y)
{
    kernel->drawn = true;
    if (count > 0 && KERNEL_BEGIN(kernel, cast_stochastic)) {
        kernel->ops->cast_stochastic(kernel, count, x, to, key, first, y);
        tess__kernel_end(kernel);
    }
}

int64_t tess_find_nonfinite(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x)
{
    int64_t found = -1;
    if (count > 0 && KERNEL_BEGIN(kernel, find_nonfinite)) {
        found = kernel->ops->find_nonfinite(kernel, dtype, count, x);
        tess__kernel_end(kernel);
    }
    return found;
}

void tess_update(struct tess_kernel *kernel, const struct tess_update *update)
{
    if (update->count > 0 && KERNEL_BEGIN(kernel, update)) {
        kernel->ops->update(kernel, update);
        tess__kernel_end(kernel);
    }
}

void tess_update_judge(struct tess_kernel *kernel, const struct tess_judge *judge)
{
    if (KERNEL_BEGIN(kernel, update_judge)) {
        kernel->ops->update_judge(kernel, judge);
        tess__kernel_end(kernel);
    }
}

void tess_update_all(struct tess_kernel *kernel, const struct tess_update *update, int32_t count)
{
    if (count > 0 && KERNEL_BEGIN(kernel, update_all)) {
        kernel->ops->update_all(kernel, update, count);
        tess__kernel_end(kernel);
    }
}

void tess_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update)
{
    if (update->count > 0 && KERNEL_BEGIN(kernel, lamb_direction)) {
        kernel->ops->lamb_direction(kernel, update);
        tess__kernel_end(kernel);
    }
}

void tess_attention_decode(struct tess_kernel *kernel, const struct tess_op_desc *desc,
                           int64_t position, const void *q, const void *k, const void *v, void *y)
{
    if (KERNEL_BEGIN(kernel, attention_decode)) {
        kernel->ops->attention_decode(kernel, desc, position, q, k, v, y);
        tess__kernel_end(kernel);
    }
}

void tess_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t length,
               int64_t first, int32_t heads, int64_t head_size, int64_t stride, float base,
               bool inverse, void *x)
{
    if (rows > 0 && KERNEL_BEGIN(kernel, rope)) {
        kernel->ops->rope(kernel, dtype, rows, length, first, heads, head_size, stride, base,
                          inverse, x);
        tess__kernel_end(kernel);
    }
}

void tess_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                       const void *x, void *y)
{
    if (count > 0 && KERNEL_BEGIN(kernel, gelu_forward)) {
        kernel->ops->gelu_forward(kernel, dtype, count, x, y);
        tess__kernel_end(kernel);
    }
}

void tess_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                        const void *x, const void *dy, void *dx)
{
    if (count > 0 && KERNEL_BEGIN(kernel, gelu_backward)) {
        kernel->ops->gelu_backward(kernel, dtype, count, x, dy, dx);
        tess__kernel_end(kernel);
    }
}

void tess_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                         const void *gate, const void *up, void *y)
{
    if (count > 0 && KERNEL_BEGIN(kernel, swiglu_forward)) {
        kernel->ops->swiglu_forward(kernel, dtype, count, gate, up, y);
        tess__kernel_end(kernel);
    }
}

void tess_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                          const void *gate, const void *up, const void *dy, void *dgate, void *dup)
{
    if (count > 0 && KERNEL_BEGIN(kernel, swiglu_backward)) {
        kernel->ops->swiglu_backward(kernel, dtype, count, gate, up, dy, dgate, dup);
        tess__kernel_end(kernel);
    }
}

void tess_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t classes,
                   int64_t stride, const void *logits, float *max)
{
    if (rows > 0 && KERNEL_BEGIN(kernel, xent_max)) {
        kernel->ops->xent_max(kernel, dtype, rows, classes, stride, logits, max);
        tess__kernel_end(kernel);
    }
}

void tess_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t classes,
                   int64_t stride, int64_t first, const void *logits, const int32_t *label,
                   const float *max, float *sum, float *target, float *best)
{
    if (rows > 0 && KERNEL_BEGIN(kernel, xent_sum)) {
        kernel->ops->xent_sum(kernel, dtype, rows, classes, stride, first, logits, label, max, sum,
                              target, best);
        tess__kernel_end(kernel);
    }
}

void tess_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                    int64_t classes, int64_t stride, int64_t first, float scale, const void *logits,
                    const int32_t *label, const float *max, const float *sum, void *dlogits)
{
    if (rows > 0 && KERNEL_BEGIN(kernel, xent_grad)) {
        kernel->ops->xent_grad(kernel, dtype, rows, classes, stride, first, scale, logits, label,
                               max, sum, dlogits);
        tess__kernel_end(kernel);
    }
}

void tess_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length, const int32_t *label,
                    const float *max, const float *sum, const float *target, const float *best,
                    float *loss, int32_t *correct)
{
    if (rows > 0 && KERNEL_BEGIN(kernel, xent_loss)) {
        kernel->ops->xent_loss(kernel, rows, length, label, max, sum, target, best, loss, correct);
        tess__kernel_end(kernel);
    }
}
