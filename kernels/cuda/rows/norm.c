/* The slots of layer norm and RMS norm; the kernels are in norm.cu. */
#include "cuda/slots.h"

#include "cuda/cuda.h"
#include "cuda/rows/launch_rows.h"

static struct tess__cuda_norm norm_of(const struct tess_op_desc *d)
{
    return (struct tess__cuda_norm){.dtype = d->dtype,
                                    .rows = d->rows,
                                    .leaf_rows = d->leaf_rows,
                                    .channels = d->in,
                                    .rms = d->rms,
                                    .epsilon = d->epsilon};
}

enum tess_status tess__cuda_norm_needs(const struct tess_op_desc *desc,
                                       struct tess_op_needs *needs_out)
{
    if (desc->in < 1 || desc->in > TESS__CUDA_NORM_MAX)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "cuda: a norm over %lld channels, but a row stays in registers: 1 to %d",
                  (long long)desc->in, TESS__CUDA_NORM_MAX);
    struct tess__cuda_norm norm = norm_of(desc);
    *needs_out = (struct tess_op_needs){.scratch_bytes = tess__cuda_norm_bytes(&norm)};
    return TESS_OK;
}

enum tess_status tess__cuda_norm_forward(struct tess_op *op, const void *x, const void *add,
                                         void *sum, const void *gamma, const void *beta, void *y,
                                         float *mean, float *rstd)
{
    struct tess__cuda_norm norm = norm_of(&op->desc);
    CUDA_TRY(tess__cuda_launch_norm_forward(tess__cuda_stream(op->kernel), &norm, x, add, sum,
                                            gamma, beta, y, mean, rstd));
    return TESS_OK;
}

enum tess_status tess__cuda_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                          const void *gamma, const float *mean, const float *rstd,
                                          const void *add, void *dx, float *dgamma, float *dbeta)
{
    struct tess__cuda_norm norm = norm_of(&op->desc);
    CUDA_TRY(tess__cuda_launch_norm_backward(tess__cuda_stream(op->kernel), &norm, x, dy, gamma,
                                             mean, rstd, add, dx, dgamma, dbeta, op->scratch));
    return TESS_OK;
}
