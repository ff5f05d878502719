/*
 * Softmax and cross-entropy of ref: in f64, rounded once; over parts of the classes rounded to f32
 * where one slot hands over to the next. A NaN among the logits shows in the sum, hence in the
 * loss.
 */
#include "ref/slots.h"
#include "ref/stage.h"

#include <math.h>

/* The label's own weight. */
static double xent_keep(struct tess_xent how)
{
    return 1 - (double)how.smoothing;
}

/* Of softmax in the gradient; lse may be infinite. */
static double xent_factor(struct tess_xent how, double lse)
{
    return how.z > 0 ? 1 + 2 * (double)how.z * lse : 1;
}

static double xent_square(struct tess_xent how, double lse)
{
    return how.z > 0 ? (double)how.z * lse * lse : 0;
}

void tess__ref_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t classes, int64_t stride, const void *logits, float *max, float *sum,
                        float *target, float *best)
{
    (void)kernel;
    (void)sum; /* xent_sum reads the logits again */
    (void)target;
    (void)best;
    for (int64_t b = 0; b < rows; b++) {
        double greatest = -INFINITY;
        for (int64_t c = 0; c < classes; c++) {
            double logit = ref_load(dtype, logits, b * stride + c);
            greatest = logit > greatest ? logit : greatest;
        }
        max[b] = (float)greatest;
    }
}

void tess__ref_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t classes, int64_t stride, int64_t first, struct tess_xent how,
                        const void *logits, const int32_t *label, const float *max, float *sum,
                        float *target, float *best)
{
    (void)kernel;
    for (int64_t b = 0; b < rows; b++) {
        double total = 0, all = 0, greatest = (double)max[b];
        int64_t here = label[b] - first, found = -1; /* negative for padding too */
        for (int64_t c = 0; c < classes; c++) {
            double logit = ref_load(dtype, logits, b * stride + c);
            total += exp(logit - greatest);
            all += how.spread > 0 ? logit : 0;
            found = found < 0 && logit == greatest ? c : found;
        }
        bool mine = here >= 0 && here < classes;
        sum[b] = (float)total;
        double own = mine ? ref_load(dtype, logits, b * stride + here) : 0;
        target[b] = (float)(xent_keep(how) * own + (double)how.spread * all);
        best[b] = found < 0 ? -INFINITY : -(float)(first + found);
    }
}

void tess__ref_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t classes, int64_t stride, int64_t first, struct tess_xent how,
                         float scale, const void *logits, const int32_t *label, const float *max,
                         const float *sum, void *dlogits)
{
    (void)kernel;
    for (int64_t b = 0; b < rows; b++) {
        double factor = xent_factor(how, log((double)sum[b]) + (double)max[b]);
        for (int64_t c = 0; c < stride; c++) {
            double grad = 0;
            if (label[b] >= 0 && c < classes) {
                double logit = ref_load(dtype, logits, b * stride + c);
                double softmax = exp(logit - (double)max[b]) / (double)sum[b];
                grad = (double)scale *
                       (factor * softmax - (first + c == label[b] ? xent_keep(how) : 0) -
                        (double)how.spread);
            }
            ref_store(dtype, dlogits, b * stride + c, grad);
        }
    }
}

void tess__ref_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length,
                         struct tess_xent how, const int32_t *label, const float *max,
                         const float *sum, const float *target, const float *best, float *loss,
                         int32_t *correct)
{
    (void)kernel;
    for (int64_t s = 0; s < rows / length; s++) {
        double total = 0;
        correct[s] = 0;
        for (int64_t b = s * length; b < (s + 1) * length; b++) {
            if (label[b] < 0)
                continue;
            total += log((double)sum[b]) - ((double)target[b] - (double)max[b]);
            total += xent_square(how, log((double)sum[b]) + (double)max[b]);
            correct[s] += -best[b] == (float)label[b];
        }
        loss[s] = (float)total;
    }
}

/* A padding row: all its results are 0. */
static void xent_padding(enum tess_dtype dtype, int64_t first, int64_t classes, void *dlogits,
                         float *loss, int32_t *correct)
{
    *loss = 0;
    *correct = 0;
    for (int64_t c = 0; dlogits != NULL && c < classes; c++)
        ref_store(dtype, dlogits, first + c, 0);
}

void tess__ref_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                            int64_t classes, struct tess_xent how, float scale, const void *logits,
                            const int32_t *label, void *dlogits, float *loss, int32_t *correct)
{
    (void)kernel;
    for (int64_t b = 0; b < rows; b++) {
        int64_t first = b * classes;
        if (label[b] < 0) {
            xent_padding(dtype, first, classes, dlogits, loss + b, correct + b);
            continue;
        }
        int64_t best = 0;
        for (int64_t c = 1; c < classes; c++)
            if (ref_load(dtype, logits, first + c) > ref_load(dtype, logits, first + best))
                best = c;
        double max = ref_load(dtype, logits, first + best), sum = 0, all = 0;
        for (int64_t c = 0; c < classes; c++) {
            sum += exp(ref_load(dtype, logits, first + c) - max);
            all += how.spread > 0 ? ref_load(dtype, logits, first + c) : 0;
        }
        double target = xent_keep(how) * ref_load(dtype, logits, first + label[b]);
        double lse = log(sum) + max, factor = xent_factor(how, lse);
        target += (double)how.spread * all;
        loss[b] = (float)(log(sum) - (target - max) + xent_square(how, lse));
        correct[b] = best == label[b];
        for (int64_t c = 0; dlogits != NULL && c < classes; c++) {
            double softmax = exp(ref_load(dtype, logits, first + c) - max) / sum;
            double grad = factor * softmax - (c == label[b] ? xent_keep(how) : 0);
            ref_store(dtype, dlogits, first + c, (double)scale * (grad - (double)how.spread));
        }
    }
}
