/* The slots of pooling; the kernels are in pool.cu. */
#include "cuda/cuda.h"
#include "cuda/rows/launch_rows.h"
#include "cuda/slots.h"

static struct tess__cuda_pool pool_of(const struct tess_op_desc *d)
{
    return (struct tess__cuda_pool){
        .dtype = d->dtype,
        .images = d->rows,
        .height = (int32_t)d->height,
        .width = (int32_t)d->width,
        .channels = (int32_t)d->in,
        .out_height = (int32_t)tess_op_output_size(d->height, d->window, d->stride, d->padding),
        .out_width = (int32_t)tess_op_output_size(d->width, d->window, d->stride, d->padding),
        .window = d->window,
        .stride = d->stride,
        .padding = d->padding,
        .relu = d->relu,
    };
}

/* Lines of all images are blocks in x, of which a grid has 2^31 - 1; pieces of a line are threads
 * of blocks in y, of which it has 65535. */
enum tess_status tess__cuda_pool_needs(const struct tess_op_desc *desc,
                                       struct tess_op_needs *needs_out)
{
    const int64_t lines = INT32_MAX, line = 65535 * 256;
    if (desc->width > line / desc->in || (desc->rows > 0 && desc->height > lines / desc->rows))
        TESS_FAIL(
            TESS_ERR_UNSUPPORTED,
            "cuda: pooling of %lld images of %lld x %lld with %lld channels, but there may be "
            "2^31 lines, each of 2^24 elements: use smaller micro-batches",
            (long long)desc->rows, (long long)desc->height, (long long)desc->width,
            (long long)desc->in);
    *needs_out = (struct tess_op_needs){0};
    return TESS_OK;
}

enum tess_status tess__cuda_max_pool_forward(struct tess_op *op, const void *x, void *y,
                                             uint8_t *which)
{
    struct tess__cuda_pool pool = pool_of(&op->desc);
    CUDA_TRY(tess__cuda_launch_max_pool_forward(tess__cuda_stream(op->kernel), &pool, x, y, which));
    return TESS_OK;
}

enum tess_status tess__cuda_max_pool_backward(struct tess_op *op, const void *dy,
                                              const uint8_t *which, void *dx)
{
    struct tess__cuda_pool pool = pool_of(&op->desc);
    CUDA_TRY(
        tess__cuda_launch_max_pool_backward(tess__cuda_stream(op->kernel), &pool, dy, which, dx));
    return TESS_OK;
}

enum tess_status tess__cuda_avg_pool_forward(struct tess_op *op, const void *x, void *y)
{
    struct tess__cuda_pool pool = pool_of(&op->desc);
    CUDA_TRY(tess__cuda_launch_avg_pool_forward(tess__cuda_stream(op->kernel), &pool, x, y));
    return TESS_OK;
}

enum tess_status tess__cuda_avg_pool_backward(struct tess_op *op, const void *dy, void *dx)
{
    struct tess__cuda_pool pool = pool_of(&op->desc);
    CUDA_TRY(tess__cuda_launch_avg_pool_backward(tess__cuda_stream(op->kernel), &pool, dy, dx));
    return TESS_OK;
}
