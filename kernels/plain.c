/*
 * The public wrappers of plain operations: nothing to do is dealt with here, so that no backend
 * needs to think of it.
 */
#include "wrap.h"

void tess_relu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                       const void *x, void *y)
{
    if (count > 0)
        kernel->ops->relu_forward(kernel, dtype, count, x, y);
}

void tess_relu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                        const void *y, const void *dy, void *dx)
{
    if (count > 0)
        kernel->ops->relu_backward(kernel, dtype, count, y, dy, dx);
}

void tess_add(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, const void *a,
              const void *b, void *y)
{
    if (count > 0)
        kernel->ops->add(kernel, dtype, count, a, b, y);
}

void tess_dropout(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, float rate,
                  const uint64_t key[2], uint64_t first, const void *x, void *y)
{
    kernel->drawn = true;
    if (count > 0)
        kernel->ops->dropout(kernel, dtype, count, rate, key, first, x, y);
}

void tess_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                       int64_t classes, float scale, const void *logits, const int32_t *label,
                       void *dlogits, float *loss, int32_t *correct)
{
    if (rows > 0)
        kernel->ops->softmax_xent(kernel, dtype, rows, classes, scale, logits, label, dlogits, loss,
                                  correct);
}

void tess_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from, const void *x,
               enum tess_dtype to, void *y)
{
    if (count > 0)
        kernel->ops->cast(kernel, count, from, x, to, y);
}

void tess_accumulate(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                     float *y)
{
    if (count > 0)
        kernel->ops->accumulate(kernel, count, scale, x, y);
}

void tess_fill(struct tess_kernel *kernel, int64_t bytes, int value, void *memory)
{
    if (bytes > 0)
        kernel->ops->fill(kernel, bytes, value, memory);
}

void tess_copy(struct tess_kernel *kernel, int64_t bytes, const void *source, void *target)
{
    if (bytes > 0)
        kernel->ops->copy(kernel, bytes, source, target);
}

void tess_square_sum(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                     struct tess_sum *sum)
{
    if (count > 0)
        kernel->ops->square_sum(kernel, count, scale, x, sum);
}

void tess_count_zeros(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                      const void *x, double *sum)
{
    if (count > 0)
        kernel->ops->count_zeros(kernel, dtype, count, x, sum);
}

void tess_find_flag(struct tess_kernel *kernel, int64_t count, const float *x, int32_t flag,
                    struct tess_verdict *verdict)
{
    if (count > 0)
        kernel->ops->find_flag(kernel, count, x, flag, verdict);
}

void tess_leaf_sum(struct tess_kernel *kernel, int64_t leaves, int64_t leaf_rows, const float *loss,
                   const int32_t *correct, double *sum, struct tess_verdict *verdict)
{
    if (leaves > 0)
        kernel->ops->leaf_sum(kernel, leaves, leaf_rows, loss, correct, sum, verdict);
}

void tess_maximum(struct tess_kernel *kernel, int64_t count, const float *x, float *y)
{
    if (count > 0)
        kernel->ops->maximum(kernel, count, x, y);
}

void tess_normal(struct tess_kernel *kernel, const uint32_t key[2], uint64_t first, int64_t count,
                 float mean, float deviation, float *y)
{
    if (count > 0)
        kernel->ops->normal(kernel, key, first, count, mean, deviation, y);
}

void tess_cast_stochastic(struct tess_kernel *kernel, int64_t count, const float *x,
                          enum tess_dtype to, const uint64_t key[2], uint64_t first, void *y)
{
    kernel->drawn = true;
    if (count > 0)
        kernel->ops->cast_stochastic(kernel, count, x, to, key, first, y);
}

int64_t tess_find_nonfinite(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x)
{
    return count > 0 ? kernel->ops->find_nonfinite(kernel, dtype, count, x) : -1;
}

void tess_update(struct tess_kernel *kernel, const struct tess_update *update)
{
    if (update->count > 0)
        kernel->ops->update(kernel, update);
}

void tess_update_judge(struct tess_kernel *kernel, const struct tess_judge *judge)
{
    kernel->ops->update_judge(kernel, judge);
}

void tess_update_all(struct tess_kernel *kernel, const struct tess_update *update, int32_t count)
{
    if (count > 0)
        kernel->ops->update_all(kernel, update, count);
}

void tess_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update)
{
    if (update->count > 0)
        kernel->ops->lamb_direction(kernel, update);
}
