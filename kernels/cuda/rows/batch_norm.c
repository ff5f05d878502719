/* The slots of batch normalisation; the kernels are in batch_norm.cu. */
#include "cuda/cuda.h"
#include "cuda/rows/launch_rows.h"
#include "cuda/slots.h"

static struct tess__cuda_batch_norm batch_norm_of(const struct tess_op_desc *d)
{
    return (struct tess__cuda_batch_norm){.dtype = d->dtype,
                                          .leaves = d->rows / d->leaf_rows,
                                          .pixels = d->leaf_rows * d->height * d->width,
                                          .channels = d->in,
                                          .relu = d->relu,
                                          .epsilon = d->epsilon};
}

enum tess_status tess__cuda_batch_norm_needs(const struct tess_op_desc *desc,
                                             struct tess_op_needs *needs_out)
{
    struct tess__cuda_batch_norm norm = batch_norm_of(desc);
    norm.leaves = norm.leaves > 0 ? norm.leaves : 1; /* infer keeps its statistics as a leaf's */
    *needs_out = (struct tess_op_needs){.scratch_bytes = tess__cuda_batch_norm_bytes(&norm)};
    return TESS_OK;
}

enum tess_status tess__cuda_batch_norm_forward(struct tess_op *op, const void *x, const void *gamma,
                                               const void *beta, void *y, float *save_mean,
                                               float *save_rstd, float *mean_sum, float *var_sum)
{
    struct tess__cuda_batch_norm norm = batch_norm_of(&op->desc);
    CUDA_TRY(tess__cuda_launch_batch_norm_forward(tess__cuda_stream(op->kernel), &norm, x, gamma,
                                                  beta, y, save_mean, save_rstd, mean_sum, var_sum,
                                                  op->scratch));
    return TESS_OK;
}

enum tess_status tess__cuda_batch_norm_infer(struct tess_op *op, const void *x, const void *gamma,
                                             const void *beta, const void *mean, const void *var,
                                             void *y)
{
    struct tess__cuda_batch_norm norm = batch_norm_of(&op->desc);
    CUDA_TRY(tess__cuda_launch_batch_norm_infer(tess__cuda_stream(op->kernel), &norm, x, gamma,
                                                beta, mean, var, y, op->scratch));
    return TESS_OK;
}

enum tess_status tess__cuda_batch_norm_backward(struct tess_op *op, const void *x, const void *y,
                                                const void *dy, const void *gamma,
                                                const float *save_mean, const float *save_rstd,
                                                void *dx, float *dgamma, float *dbeta)
{
    struct tess__cuda_batch_norm norm = batch_norm_of(&op->desc);
    CUDA_TRY(tess__cuda_launch_batch_norm_backward(tess__cuda_stream(op->kernel), &norm, x, y, dy,
                                                   gamma, save_mean, save_rstd, dx, dgamma, dbeta,
                                                   op->scratch));
    return TESS_OK;
}
