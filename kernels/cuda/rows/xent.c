/* The slots of softmax and cross-entropy; the kernels are in xent.cu. */
#include "cuda/slots.h"

#include "cuda/cuda.h"
#include "cuda/rows/launch_rows.h"

void tess__cuda_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t classes, int64_t stride, const void *logits, float *max)
{
    struct tess__cuda_xent xent = {dtype, rows, classes, stride, 0};
    tess__cuda_note(kernel,
                    tess__cuda_launch_xent_max(tess__cuda_stream(kernel), &xent, logits, max),
                    "xent_max");
}

void tess__cuda_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t classes, int64_t stride, int64_t first, const void *logits,
                         const int32_t *label, const float *max, float *sum, float *target,
                         float *best)
{
    struct tess__cuda_xent xent = {dtype, rows, classes, stride, first};
    tess__cuda_note(kernel,
                    tess__cuda_launch_xent_sum(tess__cuda_stream(kernel), &xent, logits, label, max,
                                               sum, target, best),
                    "xent_sum");
}

void tess__cuda_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                          int64_t classes, int64_t stride, int64_t first, float scale,
                          const void *logits, const int32_t *label, const float *max,
                          const float *sum, void *dlogits)
{
    struct tess__cuda_xent xent = {dtype, rows, classes, stride, first};
    tess__cuda_note(kernel,
                    tess__cuda_launch_xent_grad(tess__cuda_stream(kernel), &xent, scale, logits,
                                                label, max, sum, dlogits),
                    "xent_grad");
}

void tess__cuda_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length,
                          const int32_t *label, const float *max, const float *sum,
                          const float *target, const float *best, float *loss, int32_t *correct)
{
    tess__cuda_note(kernel,
                    tess__cuda_launch_xent_loss(tess__cuda_stream(kernel), rows, length, label, max,
                                                sum, target, best, loss, correct),
                    "xent_loss");
}

void tess__cuda_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                             int64_t classes, float scale, const void *logits, const int32_t *label,
                             void *dlogits, float *loss, int32_t *correct)
{
    struct tess__cuda_xent xent = {dtype, rows, classes, classes, 0};
    tess__cuda_note(kernel,
                    tess__cuda_launch_softmax_xent(tess__cuda_stream(kernel), &xent, scale, logits,
                                                   label, dlogits, loss, correct),
                    "softmax_xent");
}
