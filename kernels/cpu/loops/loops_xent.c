/*
 * Own loops of softmax and cross-entropy over rows of logits, whole or a part of the classes. Sums
 * of exp are f32 in CPU_BLOCK lanes over XENT_SPAN classes, then f64.
 */
#include "cpu/loops/loops.h"

#include "cpu/loops/loops_math.h"

#define XENT_SPAN 4096

CPU_INLINE void xent_max_block(enum tess_dtype dtype, const void *logits, int64_t first,
                               int64_t count, float *lane)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, logits, first, count, value);
    for (int64_t i = 0; i < count; i++)
        lane[i] = value[i] > lane[i] ? value[i] : lane[i];
}

/* The greatest of `classes` logits from element `first` on; NaN are passed over. */
CPU_INLINE float xent_max_row(enum tess_dtype dtype, const void *logits, int64_t first,
                              int64_t classes)
{
    float lane[CPU_BLOCK], max = -INFINITY;
    int64_t c = 0;
    for (int i = 0; i < CPU_BLOCK; i++)
        lane[i] = -INFINITY;
    for (; c + CPU_BLOCK <= classes; c += CPU_BLOCK)
        xent_max_block(dtype, logits, first + c, CPU_BLOCK, lane);
    xent_max_block(dtype, logits, first + c, classes - c, lane);
    for (int i = 0; i < CPU_BLOCK; i++)
        max = lane[i] > max ? lane[i] : max;
    return max;
}

/* lane += exp(x - max); the number of logits that are max. */
CPU_INLINE int32_t xent_sum_block(enum tess_dtype dtype, const void *logits, int64_t first,
                                  int64_t count, float max, float *lane)
{
    float value[CPU_BLOCK];
    int32_t found = 0;
    cpu_read(dtype, logits, first, count, value);
    for (int64_t i = 0; i < count; i++) {
        lane[i] += cpu_exp(value[i] - max);
        found += value[i] == max;
    }
    return found;
}

/* The first of a block's logits that is max. */
CPU_INLINE int64_t xent_place(enum tess_dtype dtype, const void *logits, int64_t first,
                              int64_t count, float max)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, logits, first, count, value);
    int64_t i = 0;
    while (i + 1 < count && value[i] != max)
        i++;
    return i;
}

/* The sum of exp(x - max) over a row; *place_out: the first class whose logit is max, or -1. */
CPU_INLINE double xent_sum_row(enum tess_dtype dtype, const void *logits, int64_t first,
                               int64_t classes, float max, int64_t *place_out)
{
    double total = 0;
    *place_out = -1;
    for (int64_t begin = 0; begin < classes; begin += XENT_SPAN) {
        int64_t end = begin + XENT_SPAN < classes ? begin + XENT_SPAN : classes;
        float lane[CPU_BLOCK] = {0};
        for (int64_t c = begin; c < end; c += CPU_BLOCK) {
            int64_t count = cpu_block(c, end);
            int32_t found = count == CPU_BLOCK
                                ? xent_sum_block(dtype, logits, first + c, CPU_BLOCK, max, lane)
                                : xent_sum_block(dtype, logits, first + c, count, max, lane);
            if (found && *place_out < 0)
                *place_out = c + xent_place(dtype, logits, first + c, count, max);
        }
        total += (double)cpu_lane_sum(lane);
    }
    return total;
}

/* scale (exp(x - max) / sum - onehot); `target` is the label's place in the block, or out of it. */
CPU_INLINE void xent_grad_block(enum tess_dtype dtype, const void *logits, int64_t first,
                                int64_t count, float max, float weight, float scale, int64_t target,
                                void *dlogits)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, logits, first, count, value);
    for (int64_t i = 0; i < count; i++)
        value[i] = cpu_exp(value[i] - max) * weight;
    if (target >= 0 && target < count)
        value[target] -= 1.0f;
    for (int64_t i = 0; i < count; i++)
        value[i] *= scale;
    cpu_write(dtype, dlogits, first, count, value);
}

CPU_INLINE void xent_zero(enum tess_dtype dtype, int64_t first, int64_t count, void *dlogits)
{
    static const float zero[CPU_BLOCK];
    for (int64_t c = 0; c < count; c += CPU_BLOCK)
        cpu_write(dtype, dlogits, first + c, cpu_block(c, count), zero);
}

CPU_INLINE void xent_grad_row(enum tess_dtype dtype, const void *logits, int64_t first,
                              int64_t classes, float max, float sum, float scale, int64_t target,
                              void *dlogits)
{
    float weight = 1.0f / sum;
    int64_t c = 0;
    for (; c + CPU_BLOCK <= classes; c += CPU_BLOCK)
        xent_grad_block(dtype, logits, first + c, CPU_BLOCK, max, weight, scale, target - c,
                        dlogits);
    xent_grad_block(dtype, logits, first + c, classes - c, max, weight, scale, target - c, dlogits);
}

CPU_INLINE void xent_max_rows(enum tess_dtype dtype, int64_t rows, int64_t classes, int64_t stride,
                              const void *logits, float *max)
{
    for (int64_t b = 0; b < rows; b++)
        max[b] = xent_max_row(dtype, logits, b * stride, classes);
}

void CPU_LOOP(xent_max)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t classes, int64_t stride, const void *logits, float *max)
{
    (void)kernel;
    CPU_BY_DTYPE(dtype, xent_max_rows, rows, classes, stride, logits, max);
}

CPU_INLINE float xent_logit(enum tess_dtype dtype, const void *logits, int64_t i)
{
    float value;
    cpu_read(dtype, logits, i, 1, &value);
    return value;
}

CPU_INLINE void xent_sum_rows(enum tess_dtype dtype, int64_t rows, int64_t classes, int64_t stride,
                              int64_t first, const void *logits, const int32_t *label,
                              const float *max, float *sum, float *target, float *best)
{
    for (int64_t b = 0; b < rows; b++) {
        int64_t place, here = label[b] < 0 ? -1 : label[b] - first;
        sum[b] = (float)xent_sum_row(dtype, logits, b * stride, classes, max[b], &place);
        bool mine = here >= 0 && here < classes;
        target[b] = mine ? xent_logit(dtype, logits, b * stride + here) : 0.0f;
        best[b] = place < 0 ? -INFINITY : -(float)(first + place);
    }
}

void CPU_LOOP(xent_sum)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t classes, int64_t stride, int64_t first, const void *logits,
                        const int32_t *label, const float *max, float *sum, float *target,
                        float *best)
{
    (void)kernel;
    CPU_BY_DTYPE(dtype, xent_sum_rows, rows, classes, stride, first, logits, label, max, sum,
                 target, best);
}

CPU_INLINE void xent_grad_rows(enum tess_dtype dtype, int64_t rows, int64_t classes, int64_t stride,
                               int64_t first, float scale, const void *logits, const int32_t *label,
                               const float *max, const float *sum, void *dlogits)
{
    for (int64_t b = 0; b < rows; b++) {
        int64_t valid = label[b] < 0 ? 0 : classes, at = b * stride;
        if (valid > 0)
            xent_grad_row(dtype, logits, at, valid, max[b], sum[b], scale, label[b] - first,
                          dlogits);
        xent_zero(dtype, at + valid, stride - valid, dlogits);
    }
}

void CPU_LOOP(xent_grad)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t classes, int64_t stride, int64_t first, float scale,
                         const void *logits, const int32_t *label, const float *max,
                         const float *sum, void *dlogits)
{
    (void)kernel;
    CPU_BY_DTYPE(dtype, xent_grad_rows, rows, classes, stride, first, scale, logits, label, max,
                 sum, dlogits);
}

/* What softmax_xent works on. */
struct xent_whole {
    float scale;
    const void *logits;
    const int32_t *label;
    void *dlogits;
    float *loss;
    int32_t *correct;
};

CPU_INLINE void xent_whole_rows(enum tess_dtype dtype, int64_t rows, int64_t classes,
                                const struct xent_whole *w)
{
    for (int64_t b = 0; b < rows; b++) {
        int64_t place, at = b * classes, label = w->label[b];
        if (label < 0) {
            w->loss[b] = 0;
            w->correct[b] = 0;
            if (w->dlogits != NULL)
                xent_zero(dtype, at, classes, w->dlogits);
            continue;
        }
        float max = xent_max_row(dtype, w->logits, at, classes);
        double sum = xent_sum_row(dtype, w->logits, at, classes, max, &place);
        double target = (double)xent_logit(dtype, w->logits, at + label);
        w->loss[b] = (float)(log(sum) - (target - (double)max));
        w->correct[b] = place == label;
        if (w->dlogits != NULL)
            xent_grad_row(dtype, w->logits, at, classes, max, (float)sum, w->scale, label,
                          w->dlogits);
    }
}

void CPU_LOOP(softmax_xent)(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                            int64_t classes, float scale, const void *logits, const int32_t *label,
                            void *dlogits, float *loss, int32_t *correct)
{
    (void)kernel;
    struct xent_whole w = {.scale = scale,
                           .logits = logits,
                           .label = label,
                           .dlogits = dlogits,
                           .loss = loss,
                           .correct = correct};
    CPU_BY_DTYPE(dtype, xent_whole_rows, rows, classes, &w);
}
