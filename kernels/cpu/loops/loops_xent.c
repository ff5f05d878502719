/*
 * Own loops of softmax and cross-entropy over rows of logits, whole or a part of the classes. Sums
 * of exp are f32 in CPU_BLOCK lanes over XENT_SPAN classes, then f64.
 */
#include "cpu/loops/loops.h"

#include "cpu/loops/loops_math.h"

#define XENT_SPAN 4096

CPU_INLINE void xent_max_block(enum tess_dtype dtype, int64_t c, int64_t count, const void *logits,
                               int64_t first, float *lane)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, logits, first + c, count, value);
    for (int64_t i = 0; i < count; i++)
        lane[i] = value[i] > lane[i] ? value[i] : lane[i];
}

/* The greatest of `classes` logits from element `first` on; NaN are passed over. */
CPU_INLINE float xent_max_row(enum tess_dtype dtype, const void *logits, int64_t first,
                              int64_t classes)
{
    float lane[CPU_BLOCK], max = -INFINITY;
    for (int i = 0; i < CPU_BLOCK; i++)
        lane[i] = -INFINITY;
    CPU_BLOCKS(dtype, classes, xent_max_block, logits, first, lane);
    for (int i = 0; i < CPU_BLOCK; i++)
        max = lane[i] > max ? lane[i] : max;
    return max;
}

/* lane += exp(x - max); the first class whose logit is max goes to *place, where that is -1. */
CPU_INLINE void xent_sum_block(enum tess_dtype dtype, int64_t c, int64_t count, const void *logits,
                               int64_t first, int64_t begin, float max, float *lane, int64_t *place)
{
    float value[CPU_BLOCK];
    int32_t found = 0;
    cpu_read(dtype, logits, first + begin + c, count, value);
    for (int64_t i = 0; i < count; i++) {
        lane[i] += cpu_exp(value[i] - max);
        found += value[i] == max;
    }
    if (found == 0 || *place >= 0)
        return;
    int64_t i = 0;
    while (i + 1 < count && value[i] != max)
        i++;
    *place = begin + c + i;
}

/* The sum of exp(x - max) over a row; *place_out: the first class whose logit is max, or -1. */
CPU_INLINE double xent_sum_row(enum tess_dtype dtype, const void *logits, int64_t first,
                               int64_t classes, float max, int64_t *place_out)
{
    double total = 0;
    int64_t place = -1;
    for (int64_t begin = 0; begin < classes; begin += XENT_SPAN) {
        int64_t span = begin + XENT_SPAN < classes ? XENT_SPAN : classes - begin;
        float lane[CPU_BLOCK] = {0};
        CPU_BLOCKS(dtype, span, xent_sum_block, logits, first, begin, max, lane, &place);
        total += (double)cpu_lane_sum(lane);
    }
    *place_out = place;
    return total;
}

/* scale (exp(x - max) / sum - onehot); `target` is the label's class, or out of the row. */
CPU_INLINE void xent_grad_block(enum tess_dtype dtype, int64_t c, int64_t count,
                                const struct cpu_xent *x, int64_t first, float max, float weight,
                                int64_t target)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, x->logits, first + c, count, value);
    for (int64_t i = 0; i < count; i++)
        value[i] = cpu_exp(value[i] - max) * weight;
    if (target >= c && target < c + count)
        value[target - c] -= 1.0f;
    for (int64_t i = 0; i < count; i++)
        value[i] *= x->scale;
    cpu_write(dtype, x->dlogits, first + c, count, value);
}

CPU_INLINE void xent_zero(enum tess_dtype dtype, int64_t c, int64_t count, void *dlogits,
                          int64_t first)
{
    static const float zero[CPU_BLOCK];
    cpu_write(dtype, dlogits, first + c, count, zero);
}

CPU_INLINE void xent_max_rows(enum tess_dtype dtype, const struct cpu_xent *x, int64_t first,
                              int64_t rows)
{
    for (int64_t b = first; b < first + rows; b++)
        x->max_out[b] = xent_max_row(dtype, x->logits, b * x->stride, x->classes);
}

void CPU_LOOP(xent_max)(const void *arguments, int64_t first, int64_t rows)
{
    const struct cpu_xent *x = arguments;
    CPU_BY_DTYPE(x->dtype, xent_max_rows, x, first, rows);
}

CPU_INLINE float xent_logit(enum tess_dtype dtype, const void *logits, int64_t i)
{
    float value;
    cpu_read(dtype, logits, i, 1, &value);
    return value;
}

CPU_INLINE void xent_sum_rows(enum tess_dtype dtype, const struct cpu_xent *x, int64_t first,
                              int64_t rows)
{
    for (int64_t b = first; b < first + rows; b++) {
        int64_t place, at = b * x->stride, here = x->label[b] < 0 ? -1 : x->label[b] - x->first;
        x->sum_out[b] = (float)xent_sum_row(dtype, x->logits, at, x->classes, x->max[b], &place);
        bool mine = here >= 0 && here < x->classes;
        x->target[b] = mine ? xent_logit(dtype, x->logits, at + here) : 0.0f;
        x->best[b] = place < 0 ? -INFINITY : -(float)(x->first + place);
    }
}

void CPU_LOOP(xent_sum)(const void *arguments, int64_t first, int64_t rows)
{
    const struct cpu_xent *x = arguments;
    CPU_BY_DTYPE(x->dtype, xent_sum_rows, x, first, rows);
}

CPU_INLINE void xent_grad_rows(enum tess_dtype dtype, const struct cpu_xent *x, int64_t first,
                               int64_t rows)
{
    for (int64_t b = first; b < first + rows; b++) {
        int64_t valid = x->label[b] < 0 ? 0 : x->classes, at = b * x->stride;
        int64_t target = x->label[b] - x->first;
        float max = x->max[b], weight = 1.0f / x->sum[b];
        CPU_BLOCKS(dtype, valid, xent_grad_block, x, at, max, weight, target);
        CPU_BLOCKS(dtype, x->stride - valid, xent_zero, x->dlogits, at + valid);
    }
}

void CPU_LOOP(xent_grad)(const void *arguments, int64_t first, int64_t rows)
{
    const struct cpu_xent *x = arguments;
    CPU_BY_DTYPE(x->dtype, xent_grad_rows, x, first, rows);
}

CPU_INLINE void xent_whole_rows(enum tess_dtype dtype, const struct cpu_xent *x, int64_t first,
                                int64_t rows)
{
    for (int64_t b = first; b < first + rows; b++) {
        int64_t place, at = b * x->classes, label = x->label[b];
        if (label < 0) {
            x->loss[b] = 0;
            x->correct[b] = 0;
            if (x->dlogits != NULL)
                CPU_BLOCKS(dtype, x->classes, xent_zero, x->dlogits, at);
            continue;
        }
        float max = xent_max_row(dtype, x->logits, at, x->classes);
        double sum = xent_sum_row(dtype, x->logits, at, x->classes, max, &place);
        double target = (double)xent_logit(dtype, x->logits, at + label);
        x->loss[b] = (float)(log(sum) - (target - (double)max));
        x->correct[b] = place == label;
        float weight = 1.0f / (float)sum;
        if (x->dlogits != NULL)
            CPU_BLOCKS(dtype, x->classes, xent_grad_block, x, at, max, weight, label);
    }
}

void CPU_LOOP(softmax_xent)(const void *arguments, int64_t first, int64_t rows)
{
    const struct cpu_xent *x = arguments;
    CPU_BY_DTYPE(x->dtype, xent_whole_rows, x, first, rows);
}
