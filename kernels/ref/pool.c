/* Max and average pooling of ref, one image at a time. */
#include "ref/slots.h"
#include "ref/stage.h"

#include <string.h>

struct pool_scratch {
    float *x, *y, *dx; /* of one image: [H, W, C] [OH, OW, C] [H, W, C] */
    size_t bytes;
};

struct pool_size {
    int64_t out_height, out_width;
    int64_t x_count, y_count; /* elements of an input and of an output image */
};

static struct pool_size pool_size(const struct tess_op_desc *d)
{
    struct pool_size n = {
        .out_height = tess_op_output_size(d->height, d->window, d->stride, d->padding),
        .out_width = tess_op_output_size(d->width, d->window, d->stride, d->padding),
        .x_count = d->height * d->width * d->in,
    };
    n.y_count = n.out_height * n.out_width * d->in;
    return n;
}

static struct pool_scratch pool_layout(const struct tess_op_desc *d, void *base)
{
    struct ref_scratch scratch = {.base = base};
    struct pool_size n = pool_size(d);
    struct pool_scratch s = {
        .x = ref_take_copy(&scratch, d->dtype, n.x_count),
        .y = ref_take_copy(&scratch, d->dtype, n.y_count),
        .dx = ref_take_copy(&scratch, d->dtype, n.x_count),
    };
    s.bytes = scratch.used;
    return s;
}

size_t tess__ref_pool_scratch(const struct tess_op_desc *desc)
{
    return pool_layout(desc, NULL).bytes;
}

/* First element of the input pixel that window position k of output pixel p covers; -1: padding. */
static int64_t pool_source(const struct tess_op_desc *d, int64_t out_width, int64_t p, int64_t k)
{
    int64_t iy = p / out_width * d->stride - d->padding + k / d->window;
    int64_t ix = p % out_width * d->stride - d->padding + k % d->window;
    bool inside = iy >= 0 && iy < d->height && ix >= 0 && ix < d->width;
    return inside ? (iy * d->width + ix) * d->in : -1;
}

/* One output pixel, all channels. Positions come in order, so a tie leaves the first one. A
 * greatest element that a folded ReLU has cut off gets no gradient, nor does any other of its
 * window. */
static void pool_max_pixel(const struct tess_op_desc *d, int64_t out_width, int64_t p,
                           const float *x, float *y, uint8_t *which)
{
    bool first = true;
    for (int64_t k = 0; k < (int64_t)d->window * d->window; k++) {
        int64_t source = pool_source(d, out_width, p, k);
        if (source < 0)
            continue;
        for (int64_t c = 0; c < d->in; c++) {
            if (first || x[source + c] > y[c]) {
                y[c] = x[source + c];
                which[c] = (uint8_t)k;
            }
        }
        first = false;
    }
    for (int64_t c = 0; d->relu && c < d->in; c++)
        which[c] = y[c] > 0 ? which[c] : TESS_POOL_NONE;
}

enum tess_status tess__ref_max_pool_forward(struct tess_op *op, const void *x, void *y,
                                            uint8_t *which)
{
    const struct tess_op_desc *d = &op->desc;
    struct pool_scratch s = pool_layout(d, op->scratch);
    struct pool_size n = pool_size(d);
    for (int64_t b = 0; b < d->rows; b++) {
        const float *x32 = ref_read(d->dtype, x, b * n.x_count, n.x_count, s.x);
        float *y32 = ref_target(d->dtype, y, b * n.y_count, s.y);
        uint8_t *which_image = which + b * n.y_count;
        for (int64_t p = 0; p < n.out_height * n.out_width; p++)
            pool_max_pixel(d, n.out_width, p, x32, y32 + p * d->in, which_image + p * d->in);
        ref_write(d->dtype, y, b * n.y_count, n.y_count, y32);
    }
    return TESS_OK;
}

enum tess_status tess__ref_max_pool_backward(struct tess_op *op, const void *dy,
                                             const uint8_t *which, void *dx)
{
    const struct tess_op_desc *d = &op->desc;
    struct pool_scratch s = pool_layout(d, op->scratch);
    struct pool_size n = pool_size(d);
    for (int64_t b = 0; b < d->rows; b++) {
        const float *dy32 = ref_read(d->dtype, dy, b * n.y_count, n.y_count, s.y);
        float *dx32 = ref_target(d->dtype, dx, b * n.x_count, s.dx);
        const uint8_t *which_image = which + b * n.y_count;
        memset(dx32, 0, (size_t)n.x_count * sizeof(float));
        for (int64_t i = 0; i < n.y_count; i++) {
            if (which_image[i] == TESS_POOL_NONE)
                continue;
            dx32[pool_source(d, n.out_width, i / d->in, which_image[i]) + i % d->in] += dy32[i];
        }
        ref_write(d->dtype, dx, b * n.x_count, n.x_count, dx32);
    }
    return TESS_OK;
}

/* Each element of `to` is the sum of the elements of `from` that share a window with it, divided by
 * the window's area: outputs of inputs, or, `back`, inputs of outputs. */
static enum tess_status pool_average(struct tess_op *op, const void *from, bool back, void *to)
{
    const struct tess_op_desc *d = &op->desc;
    struct pool_scratch s = pool_layout(d, op->scratch);
    struct pool_size n = pool_size(d);
    int64_t from_count = back ? n.y_count : n.x_count, to_count = back ? n.x_count : n.y_count;
    float area = (float)(d->window * d->window);
    for (int64_t b = 0; b < d->rows; b++) {
        const float *from32 =
            ref_read(d->dtype, from, b * from_count, from_count, back ? s.y : s.x);
        float *to32 = ref_target(d->dtype, to, b * to_count, back ? s.dx : s.y);
        memset(to32, 0, (size_t)to_count * sizeof(float));
        for (int64_t p = 0; p < n.out_height * n.out_width; p++) {
            for (int64_t k = 0; k < (int64_t)d->window * d->window; k++) {
                int64_t source = pool_source(d, n.out_width, p, k), pixel = p * d->in;
                if (source >= 0)
                    ref_axpy(to32 + (back ? source : pixel), 1.0f, from32 + (back ? pixel : source),
                             d->in);
            }
        }
        for (int64_t i = 0; i < to_count; i++)
            to32[i] /= area;
        ref_write(d->dtype, to, b * to_count, to_count, to32);
    }
    return TESS_OK;
}

enum tess_status tess__ref_avg_pool_forward(struct tess_op *op, const void *x, void *y)
{
    return pool_average(op, x, false, y);
}

enum tess_status tess__ref_avg_pool_backward(struct tess_op *op, const void *dy, void *dx)
{
    return pool_average(op, dy, true, dx);
}
