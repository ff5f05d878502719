/* Pooling of `cpu`: the own loops, by images, which the threads share. */
#include "cpu/prim.h"

#include "ref/ref.h"

#define IMAGE_ELEMENTS 16384 /* of a part at least: tens of microseconds */

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
    if (op.desc.kind == TESS_OP_AVG_POOL && p->back)
        (void)loops->avg_pool_backward(&op, p->from + y, p->to + x);
    else if (op.desc.kind == TESS_OP_AVG_POOL)
        (void)loops->avg_pool_forward(&op, p->from + x, p->to + y);
    else if (p->back)
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

/* Whether one window is the whole image; averages of others are rare and left to ref. */
static bool image_is_whole(const struct tess_op_desc *d)
{
    return d->window == d->height && d->window == d->width && d->padding == 0;
}

enum tess_status tess__cpu_avg_pool_forward(struct tess_op *op, const void *x, void *y)
{
    if (!image_is_whole(&op->desc))
        return tess_kernel_ref.avg_pool_forward(op, x, y);
    struct image_pool p = image_pool(op, x, y, NULL, false);
    image_pool_share(&p);
    return TESS_OK;
}

enum tess_status tess__cpu_avg_pool_backward(struct tess_op *op, const void *dy, void *dx)
{
    if (!image_is_whole(&op->desc))
        return tess_kernel_ref.avg_pool_backward(op, dy, dx);
    struct image_pool p = image_pool(op, dy, dx, NULL, true);
    image_pool_share(&p);
    return TESS_OK;
}
