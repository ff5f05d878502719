/*
 * Pooling and batch normalisation of `cpu`: the own loops, by images or by channels, which the
 * threads share. No image and no channel is computed from another.
 */
#include "cpu/prim.h"

#include "ref/ref.h"

#define IMAGE_CHANNELS 16    /* of a part at least: a cache line of each pixel in f32 */
#define IMAGE_ELEMENTS 16384 /* of a part at least: tens of microseconds */

/* ---- pooling -------------------------------------------------------------------------------- */

/* One call; `from` is x or dy, `to` is y or dx. */
struct image_pool {
    const struct tess_op *op;
    const char *from;
    char *to;
    uint8_t *which;
    bool back;
    int64_t x_count, y_count; /* elements of an image */
    int64_t images;           /* of a part */
};

static struct image_pool image_pool(const struct tess_op *op, const void *from, void *to,
                                    uint8_t *which, bool back)
{
    const struct tess_op_desc *d = &op->desc;
    struct image_pool p = {.op = op, .from = from, .to = to, .which = which, .back = back};
    p.x_count = d->height * d->width * d->in;
    p.y_count = tess_op_output_size(d->height, d->window, d->stride, d->padding) *
                tess_op_output_size(d->width, d->window, d->stride, d->padding) * d->in;
    p.images = IMAGE_ELEMENTS / p.x_count + 1;
    return p;
}

static void image_pool_part(void *context, int64_t part, void *work)
{
    (void)work;
    const struct image_pool *p = context;
    const struct cpu_loops *loops = tess__cpu_loops(p->op->kernel);
    struct tess_op op = *p->op;
    const size_t element = tess_dtype_bytes(op.desc.dtype);
    const int64_t first = part * p->images;
    const size_t x = (size_t)(first * p->x_count) * element;
    const size_t y = (size_t)(first * p->y_count) * element;
    op.desc.rows = tess__cpu_min(op.desc.rows - first, p->images);
    if (p->back)
        (void)loops->max_pool_backward(&op, p->from + y, p->which + first * p->y_count, p->to + x);
    else
        (void)loops->max_pool_forward(&op, p->from + x, p->to + y, p->which + first * p->y_count);
}

static void image_pool_share(struct image_pool *p)
{
    const struct tess_op *op = p->op;
    tess__cpu_share(op->kernel, (op->desc.rows + p->images - 1) / p->images, image_pool_part, p,
                    NULL);
}

enum tess_status tess__cpu_max_pool_forward(struct tess_op *op, const void *x, void *y,
                                            uint8_t *which)
{
    struct image_pool p = image_pool(op, x, y, which, false);
    image_pool_share(&p);
    return TESS_OK;
}

enum tess_status tess__cpu_max_pool_backward(struct tess_op *op, const void *dy,
                                             const uint8_t *which, void *dx)
{
    const struct tess_op_desc *d = &op->desc;
    bool tiled = d->stride == d->window && d->padding == 0 && d->height % d->window == 0 &&
                 d->width % d->window == 0;
    if (!tiled) /* it needs scratch */
        return tess_kernel_ref.max_pool_backward(op, dy, which, dx);
    /* which is only read */
    struct image_pool p = image_pool(op, dy, dx, (uint8_t *)(uintptr_t)which, true);
    image_pool_share(&p);
    return TESS_OK;
}

/* ---- batch normalisation -------------------------------------------------------------------- */

struct image_channels {
    cpu_rows_loop *run;
    const struct cpu_batch_norm *arguments;
    int64_t channels; /* of a part */
};

static void image_channels_part(void *context, int64_t part, void *work)
{
    (void)work;
    const struct image_channels *c = context;
    const int64_t first = part * c->channels, left = c->arguments->desc->in - first;
    c->run(c->arguments, first, tess__cpu_min(left, c->channels));
}

static void image_channels_share(const struct tess_kernel *kernel, cpu_rows_loop *run,
                                 const struct cpu_batch_norm *arguments)
{
    const struct tess_op_desc *d = arguments->desc;
    const int64_t elements = d->rows * d->height * d->width * d->in;
    struct image_channels c = {.run = run, .arguments = arguments, .channels = d->in};
    if (kernel->threads > 1 && elements > 2 * IMAGE_ELEMENTS) {
        c.channels = (d->in + kernel->threads - 1) / kernel->threads;
        c.channels = (c.channels + IMAGE_CHANNELS - 1) / IMAGE_CHANNELS * IMAGE_CHANNELS;
    }
    tess__cpu_share(kernel, (d->in + c.channels - 1) / c.channels, image_channels_part, &c, NULL);
}

enum tess_status tess__cpu_batch_norm_forward(struct tess_op *op, const void *x, const void *gamma,
                                              const void *beta, void *y, float *save_mean,
                                              float *save_rstd, float *mean_sum, float *var_sum)
{
    struct cpu_batch_norm n = {.desc = &op->desc,
                               .x = x,
                               .gamma = gamma,
                               .beta = beta,
                               .y = y,
                               .mean = save_mean,
                               .rstd = save_rstd,
                               .sum = {mean_sum, var_sum},
                               .scratch = op->scratch};
    image_channels_share(op->kernel, tess__cpu_loops(op->kernel)->batch_norm_forward, &n);
    return TESS_OK;
}

enum tess_status tess__cpu_batch_norm_infer(struct tess_op *op, const void *x, const void *gamma,
                                            const void *beta, const void *mean, const void *var,
                                            void *y)
{
    struct cpu_batch_norm n = {.desc = &op->desc,
                               .x = x,
                               .gamma = gamma,
                               .beta = beta,
                               .y = y,
                               .middle = mean,
                               .spread = var};
    image_channels_share(op->kernel, tess__cpu_loops(op->kernel)->batch_norm_infer, &n);
    return TESS_OK;
}

enum tess_status tess__cpu_batch_norm_backward(struct tess_op *op, const void *x, const void *y,
                                               const void *dy, const void *gamma,
                                               const float *save_mean, const float *save_rstd,
                                               void *dx, float *dgamma, float *dbeta)
{
    struct cpu_batch_norm n = {.desc = &op->desc,
                               .x = x,
                               .gamma = gamma,
                               .y = (void *)(uintptr_t)y, /* read only, as the next two */
                               .dy = dy,
                               .dx = dx,
                               .mean = (float *)(uintptr_t)save_mean,
                               .rstd = (float *)(uintptr_t)save_rstd,
                               .sum = {dgamma, dbeta},
                               .scratch = op->scratch};
    image_channels_share(op->kernel, tess__cpu_loops(op->kernel)->batch_norm_backward, &n);
    return TESS_OK;
}
