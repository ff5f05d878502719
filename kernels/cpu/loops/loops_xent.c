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

CPU_INLINE void xent_total_block(enum tess_dtype dtype, int64_t c, int64_t count,
                                 const void *logits, int64_t first, float *lane)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, logits, first + c, count, value);
    for (int64_t i = 0; i < count; i++)
        lane[i] += value[i];
}

/* What the label's class and all others take off the loss; `target` is the label's logit, or 0. */
CPU_INLINE double xent_taken(enum tess_dtype dtype, const struct cpu_xent *x, int64_t first,
                             double target)
{
    double total = 0;
    if (x->how.smoothing == 0)
        return target;
    for (int64_t begin = 0; begin < x->classes; begin += XENT_SPAN) {
        int64_t span = begin + XENT_SPAN < x->classes ? XENT_SPAN : x->classes - begin;
        float lane[CPU_BLOCK] = {0};
        CPU_BLOCKS(dtype, span, xent_total_block, x->logits, first + begin, lane);
        total += (double)cpu_lane_sum(lane);
    }
    return (1 - (double)x->how.smoothing) * target + (double)x->how.spread * total;
}

/* The factor on exp(x - max) in the gradient, but for scale. */
CPU_INLINE float xent_weight(struct tess_xent how, float max, float sum)
{
    double lse = how.z > 0 ? log((double)sum) + (double)max : 0;
    return (float)(1 + 2 * (double)how.z * lse) / sum;
}

/* scale (weight exp(x - max) - label's - spread); `target` is the label's class, or out of the row.
 */
CPU_INLINE void xent_grad_block(enum tess_dtype dtype, int64_t c, int64_t count,
                                const struct cpu_xent *x, int64_t first, float max, float weight,
                                int64_t target)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, x->logits, first + c, count, value);
    for (int64_t i = 0; i < count; i++)
        value[i] = cpu_exp(value[i] - max) * weight;
    if (target >= c && target < c + count)
        value[target - c] -= 1.0f - x->how.smoothing;
    for (int64_t i = 0; i < count; i++)
        value[i] = (value[i] - x->how.spread) * x->scale;
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
        float target = mine ? xent_logit(dtype, x->logits, at + here) : 0.0f;
        x->target[b] = (float)xent_taken(dtype, x, at, (double)target);
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
        float max = x->max[b], weight = xent_weight(x->how, max, x->sum[b]);
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
        double target = xent_taken(dtype, x, at, (double)xent_logit(dtype, x->logits, at + label));
        double lse = x->how.z > 0 ? log(sum) + (double)max : 0;
        x->loss[b] = (float)(log(sum) - (target - (double)max) + (double)x->how.z * lse * lse);
        x->correct[b] = place == label;
        float weight = xent_weight(x->how, max, (float)sum);
        if (x->dlogits != NULL)
            CPU_BLOCKS(dtype, x->classes, xent_grad_block, x, at, max, weight, label);
    }
}

void CPU_LOOP(softmax_xent)(const void *arguments, int64_t first, int64_t rows)
{
    const struct cpu_xent *x = arguments;
    CPU_BY_DTYPE(x->dtype, xent_whole_rows, x, first, rows);
}
