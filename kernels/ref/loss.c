/* Softmax and cross-entropy of ref: in f64, rounded once. */
#include "ref/slots.h"
#include "ref/stage.h"

#include <math.h>

static double loss_logit(enum tess_dtype dtype, const void *logits, int64_t i)
{
    float copy;
    return (double)*ref_read(dtype, logits, i, 1, &copy);
}

static void loss_store(enum tess_dtype dtype, void *target, int64_t i, double value)
{
    float copy, *to = ref_target(dtype, target, i, &copy);
    *to = (float)value;
    ref_write(dtype, target, i, 1, to);
}

/* A padding row: all its results are 0. */
static void loss_padding(enum tess_dtype dtype, int64_t first, int64_t classes, void *dlogits,
                         float *loss, int32_t *correct)
{
    *loss = 0;
    *correct = 0;
    for (int64_t c = 0; dlogits != NULL && c < classes; c++)
        loss_store(dtype, dlogits, first + c, 0);
}

void tess__ref_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                            int64_t classes, float scale, const void *logits, const int32_t *label,
                            void *dlogits, float *loss, int32_t *correct)
{
    (void)kernel;
    for (int64_t b = 0; b < rows; b++) {
        int64_t first = b * classes;
        if (label[b] < 0) {
            loss_padding(dtype, first, classes, dlogits, loss + b, correct + b);
            continue;
        }
        int64_t best = 0;
        for (int64_t c = 1; c < classes; c++)
            if (loss_logit(dtype, logits, first + c) > loss_logit(dtype, logits, first + best))
                best = c;
        double max = loss_logit(dtype, logits, first + best), sum = 0;
        for (int64_t c = 0; c < classes; c++)
            sum += exp(loss_logit(dtype, logits, first + c) - max);
        loss[b] = (float)(log(sum) - (loss_logit(dtype, logits, first + label[b]) - max));
        correct[b] = best == label[b];
        for (int64_t c = 0; dlogits != NULL && c < classes; c++) {
            double softmax = exp(loss_logit(dtype, logits, first + c) - max) / sum;
            loss_store(dtype, dlogits, first + c, (double)scale * (softmax - (c == label[b])));
        }
    }
}
