/*
 * Softmax and cross-entropy of ref over parts of the classes: in f64, rounded to f32 where one slot
 * hands over to the next. A NaN among the logits shows in the sum, hence in the loss.
 */
#include "ref/slots.h"
#include "ref/stage.h"

#include <math.h>

static double xent_logit(enum tess_dtype dtype, const void *logits, int64_t i)
{
    float copy;
    return (double)*ref_read(dtype, logits, i, 1, &copy);
}

static void xent_store(enum tess_dtype dtype, void *target, int64_t i, double value)
{
    float copy, *to = ref_target(dtype, target, i, &copy);
    *to = (float)value;
    ref_write(dtype, target, i, 1, to);
}

void tess__ref_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t classes, int64_t stride, const void *logits, float *max)
{
    (void)kernel;
    for (int64_t b = 0; b < rows; b++) {
        double greatest = -INFINITY;
        for (int64_t c = 0; c < classes; c++) {
            double logit = xent_logit(dtype, logits, b * stride + c);
            greatest = logit > greatest ? logit : greatest;
        }
        max[b] = (float)greatest;
    }
}

void tess__ref_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t classes, int64_t stride, int64_t first, const void *logits,
                        const int32_t *label, const float *max, float *sum, float *target,
                        float *best)
{
    (void)kernel;
    for (int64_t b = 0; b < rows; b++) {
        double total = 0, greatest = (double)max[b];
        int64_t here = label[b] - first, found = -1; /* negative for padding too */
        for (int64_t c = 0; c < classes; c++) {
            double logit = xent_logit(dtype, logits, b * stride + c);
            total += exp(logit - greatest);
            found = found < 0 && logit == greatest ? c : found;
        }
        bool mine = here >= 0 && here < classes;
        sum[b] = (float)total;
        target[b] = mine ? (float)xent_logit(dtype, logits, b * stride + here) : 0.0f;
        best[b] = found < 0 ? -INFINITY : -(float)(first + found);
    }
}

void tess__ref_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t classes, int64_t stride, int64_t first, float scale,
                         const void *logits, const int32_t *label, const float *max,
                         const float *sum, void *dlogits)
{
    (void)kernel;
    for (int64_t b = 0; b < rows; b++) {
        for (int64_t c = 0; c < stride; c++) {
            double grad = 0;
            if (label[b] >= 0 && c < classes) {
                double logit = xent_logit(dtype, logits, b * stride + c);
                double softmax = exp(logit - (double)max[b]) / (double)sum[b];
                grad = (double)scale * (softmax - (first + c == label[b]));
            }
            xent_store(dtype, dlogits, b * stride + c, grad);
        }
    }
}

void tess__ref_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length,
                         const int32_t *label, const float *max, const float *sum,
                         const float *target, const float *best, float *loss, int32_t *correct)
{
    (void)kernel;
    for (int64_t s = 0; s < rows / length; s++) {
        double total = 0;
        correct[s] = 0;
        for (int64_t b = s * length; b < (s + 1) * length; b++) {
            if (label[b] < 0)
                continue;
            total += log((double)sum[b]) - ((double)target[b] - (double)max[b]);
            correct[s] += -best[b] == (float)label[b];
        }
        loss[s] = (float)total;
    }
}
