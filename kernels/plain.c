/* The public wrappers of plain operations, which deal with empty arrays: no backend meets one. */
#include "wrap.h"

void tess_relu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                       const void *x, void *y)
{
    if (count > 0)
        KERNEL_RUN(kernel, relu_forward, dtype, count, x, y);
}

void tess_relu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                        const void *y, const void *dy, void *dx)
{
    if (count > 0)
        KERNEL_RUN(kernel, relu_backward, dtype, count, y, dy, dx);
}

void tess_add(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, const void *a,
              const void *b, void *y)
{
    if (count > 0)
        KERNEL_RUN(kernel, add, dtype, count, a, b, y);
}

/* Backends meet rows only where there are gaps between them in the whole. */
void tess_dropout(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t width,
                  int64_t stride, float rate, const uint64_t key[2], uint64_t first, const void *x,
                  void *y)
{
    kernel->drawn = true;
    if (rows <= 0 || width <= 0)
        return;
    if (stride == width) {
        width *= rows;
        rows = 1;
    }
    KERNEL_RUN(kernel, dropout, dtype, rows, width, stride, rate, key, first, x, y);
}

void tess_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                       int64_t classes, struct tess_xent how, float scale, const void *logits,
                       const int32_t *label, void *dlogits, float *loss, int32_t *correct)
{
    if (rows > 0)
        KERNEL_RUN(kernel, softmax_xent, dtype, rows, classes, how, scale, logits, label, dlogits,
                   loss, correct);
}

void tess_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from, const void *x,
               enum tess_dtype to, void *y)
{
    if (count > 0)
        KERNEL_RUN(kernel, cast, count, from, x, to, y);
}

void tess_accumulate(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                     float *y)
{
    if (count > 0)
        KERNEL_RUN(kernel, accumulate, count, scale, x, y);
}

void tess_fill(struct tess_kernel *kernel, int64_t bytes, int value, void *memory)
{
    if (bytes > 0)
        KERNEL_RUN(kernel, fill, bytes, value, memory);
}

void tess_copy(struct tess_kernel *kernel, int64_t bytes, const void *source, void *target)
{
    if (bytes > 0)
        KERNEL_RUN(kernel, copy, bytes, source, target);
}

void tess_square_sum(struct tess_kernel *kernel, int64_t count, int32_t block, float scale,
                     const float *x, struct tess_sum *sum)
{
    if (count > 0)
        KERNEL_RUN(kernel, square_sum, count, block, scale, x, sum);
}

void tess_square_sum_all(struct tess_kernel *kernel, const struct tess_square *square,
                         int32_t count)
{
    if (count > 0)
        KERNEL_RUN(kernel, square_sum_all, square, count);
}

void tess_count_zeros(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                      const void *x, double *sum)
{
    if (count > 0)
        KERNEL_RUN(kernel, count_zeros, dtype, count, x, sum);
}

void tess_find_flag(struct tess_kernel *kernel, int64_t count, const float *x, int32_t flag,
                    struct tess_verdict *verdict)
{
    if (count > 0)
        KERNEL_RUN(kernel, find_flag, count, x, flag, verdict);
}

void tess_leaf_sum(struct tess_kernel *kernel, int64_t leaves, int64_t leaf_rows, const float *loss,
                   const int32_t *correct, double *sum, struct tess_verdict *verdict)
{
    if (leaves > 0)
        KERNEL_RUN(kernel, leaf_sum, leaves, leaf_rows, loss, correct, sum, verdict);
}

void tess_maximum(struct tess_kernel *kernel, int64_t count, const float *x, float *y)
{
    if (count > 0)
        KERNEL_RUN(kernel, maximum, count, x, y);
}

void tess_normal(struct tess_kernel *kernel, const uint32_t key[2], uint64_t first, int64_t count,
                 float mean, float deviation, float *y)
{
    if (count > 0)
        KERNEL_RUN(kernel, normal, key, first, count, mean, deviation, y);
}

void tess_cast_stochastic(struct tess_kernel *kernel, int64_t count, const float *x,
                          enum tess_dtype to, const uint64_t key[2], uint64_t first, void *y)
{
    kernel->drawn = true;
    if (count > 0)
        KERNEL_RUN(kernel, cast_stochastic, count, x, to, key, first, y);
}

int64_t tess_find_nonfinite(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x)
{
    if (count <= 0 ||
        !tess__kernel_begin(kernel, kernel->ops->find_nonfinite != NULL, "find_nonfinite"))
        return -1;
    int64_t found = kernel->ops->find_nonfinite(kernel, dtype, count, x);
    kernel->ops->bracket(kernel, false);
    return found;
}

void tess_update(struct tess_kernel *kernel, const struct tess_update *update)
{
    if (update->count > 0)
        KERNEL_RUN(kernel, update, update);
}

void tess_update_judge(struct tess_kernel *kernel, const struct tess_judge *judge)
{
    KERNEL_RUN(kernel, update_judge, judge);
}

void tess_update_all(struct tess_kernel *kernel, const struct tess_update *update, int32_t count)
{
    if (count > 0)
        KERNEL_RUN(kernel, update_all, update, count);
}

void tess_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update)
{
    if (update->count > 0)
        KERNEL_RUN(kernel, lamb_direction, update);
}

void tess_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t length,
               int64_t first, int32_t heads, int64_t head_size, int64_t stride,
               const struct tess_rotary *rotary, bool inverse, void *x)
{
    if (rows > 0)
        KERNEL_RUN(kernel, rope, dtype, rows, length, first, heads, head_size, stride, rotary,
                   inverse, x);
}

void tess_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                       const void *x, void *y)
{
    if (count > 0)
        KERNEL_RUN(kernel, gelu_forward, dtype, count, x, y);
}

void tess_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                        const void *x, const void *dy, void *dx)
{
    if (count > 0)
        KERNEL_RUN(kernel, gelu_backward, dtype, count, x, dy, dx);
}

void tess_gelu_erf_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                           const void *x, void *y)
{
    if (count > 0)
        KERNEL_RUN(kernel, gelu_erf_forward, dtype, count, x, y);
}

void tess_gelu_erf_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, const void *dy, void *dx)
{
    if (count > 0)
        KERNEL_RUN(kernel, gelu_erf_backward, dtype, count, x, dy, dx);
}

void tess_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t width, int64_t stride, const void *gate, const void *up, void *y)
{
    if (rows > 0 && width > 0)
        KERNEL_RUN(kernel, swiglu_forward, dtype, rows, width, stride, gate, up, y);
}

void tess_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                          int64_t width, int64_t stride, const void *gate, const void *up,
                          const void *dy, void *dgate, void *dup)
{
    if (rows > 0 && width > 0)
        KERNEL_RUN(kernel, swiglu_backward, dtype, rows, width, stride, gate, up, dy, dgate, dup);
}

void tess_geglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t width, int64_t stride, bool erf, const void *gate, const void *up,
                        void *y)
{
    if (rows > 0 && width > 0)
        KERNEL_RUN(kernel, geglu_forward, dtype, rows, width, stride, erf, gate, up, y);
}

void tess_geglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t width, int64_t stride, bool erf, const void *gate, const void *up,
                         const void *dy, void *dgate, void *dup)
{
    if (rows > 0 && width > 0)
        KERNEL_RUN(kernel, geglu_backward, dtype, rows, width, stride, erf, gate, up, dy, dgate,
                   dup);
}

void tess_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t classes,
                   int64_t stride, const void *logits, float *max, float *sum, float *target,
                   float *best)
{
    if (rows > 0)
        KERNEL_RUN(kernel, xent_max, dtype, rows, classes, stride, logits, max, sum, target, best);
}

void tess_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t classes,
                   int64_t stride, int64_t first, struct tess_xent how, const void *logits,
                   const int32_t *label, const float *max, float *sum, float *target, float *best)
{
    if (rows > 0)
        KERNEL_RUN(kernel, xent_sum, dtype, rows, classes, stride, first, how, logits, label, max,
                   sum, target, best);
}

void tess_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                    int64_t classes, int64_t stride, int64_t first, struct tess_xent how,
                    float scale, const void *logits, const int32_t *label, const float *max,
                    const float *sum, void *dlogits)
{
    if (rows > 0)
        KERNEL_RUN(kernel, xent_grad, dtype, rows, classes, stride, first, how, scale, logits,
                   label, max, sum, dlogits);
}

void tess_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length, struct tess_xent how,
                    const int32_t *label, const float *max, const float *sum, const float *target,
                    const float *best, float *loss, int32_t *correct)
{
    if (rows > 0)
        KERNEL_RUN(kernel, xent_loss, rows, length, how, label, max, sum, target, best, loss,
                   correct);
}
