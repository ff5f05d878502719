/*
 * Own loops over images: max pooling, channels last. Per output pixel the places of its window are
 * found once; then CPU_LANES channels at a time go through the window in registers. Maxima and the
 * gradients that are handed back are copies of elements, so bf16 is handled as the upper half of
 * f32 and never rounded. f16 is widened, to be compared, and comes back as it was.
 */
#include "cpu/loops/loops.h"

#include "cpu/loops/lanes.h"

#define IMAGE_PLACES (TESS_POOL_WINDOW_MAX * TESS_POOL_WINDOW_MAX)

struct image_pool {
    struct tess_op_desc desc; /* a copy, so that writes to results cannot change it */
    int64_t height, width;    /* of the output */
    int64_t
        source[IMAGE_PLACES]; /* element where the pixel under a window position begins; -1: none */
};

static void image_pool_init(struct image_pool *p, const struct tess_op_desc *d)
{
    p->desc = *d;
    p->height = tess_op_output_size(d->height, d->window, d->stride, d->padding);
    p->width = tess_op_output_size(d->width, d->window, d->stride, d->padding);
}

/* Fill `source` for output pixel (oy, ox) of image b. */
static void image_find(struct image_pool *p, int64_t b, int64_t oy, int64_t ox)
{
    const struct tess_op_desc *d = &p->desc;
    int64_t *source = p->source;
    for (int64_t iy = oy * d->stride - d->padding, ky = 0; ky < d->window; ky++, iy++)
        for (int64_t ix = ox * d->stride - d->padding, kx = 0; kx < d->window; kx++, ix++) {
            bool inside = iy >= 0 && iy < d->height && ix >= 0 && ix < d->width;
            *source++ = inside ? ((b * d->height + iy) * d->width + ix) * d->in : -1;
        }
}

/*
 * Positions come in order and only a greater one replaces: a tie leaves the first. With a folded
 * ReLU, lanes without a positive element get all bits, which as a byte is TESS_POOL_NONE.
 */
CPU_INLINE void image_max(const struct image_pool *p, enum tess_dtype dtype, int32_t window,
                          bool padded, int64_t channel, int64_t lanes, const void *x,
                          int64_t target, void *y, uint8_t *which)
{
    int32_t places = window * window, k = 0;
    while (padded && p->source[k] < 0) /* a window covers at least one pixel: padding < window */
        k++;
    lanes_bits best, value;
    lanes_load(dtype, x, p->source[k] + channel, lanes, &best);
    lanes_int place = (lanes_int){0} + k;
    for (k++; k < places; k++) {
        if (padded && p->source[k] < 0)
            continue;
        lanes_load(dtype, x, p->source[k] + channel, lanes, &value);
        lanes_int greater = (lanes_float)value > (lanes_float)best;
        best = (value & (lanes_bits)greater) | (best & ~(lanes_bits)greater);
        place = (greater & k) | (place & ~greater);
    }
    lanes_store(dtype, y, target + channel, lanes, &best);
    lanes_int positive = (lanes_float)best > (lanes_float){0};
    place |= ~positive & -(int32_t)p->desc.relu;
    lanes_byte bytes = lanes_low_bytes(place);
    memcpy(which + target + channel, &bytes, (size_t)lanes);
}

CPU_INLINE void image_max_forward(const struct tess_op_desc *desc, enum tess_dtype dtype,
                                  int32_t window, bool padded, const void *x, void *y,
                                  uint8_t *which)
{
    struct image_pool p;
    image_pool_init(&p, desc);
    const struct tess_op_desc *d = &p.desc;
    int64_t target = 0, line = d->width * d->in;
    for (int64_t b = 0; b < d->rows; b++)
        for (int64_t oy = 0; oy < p.height; oy++)
            for (int64_t ox = 0; ox < p.width; ox++, target += d->in) {
                if (padded)
                    image_find(&p, b, oy, ox);
                int64_t row = b * d->height + oy * d->stride;
                int64_t first = (row * d->width + ox * d->stride) * d->in;
                for (int32_t k = 0; !padded && k < window * window; k++)
                    p.source[k] = first + k / window * line + k % window * d->in;
                int64_t c = 0;
                for (; c + CPU_LANES <= d->in; c += CPU_LANES)
                    image_max(&p, dtype, window, padded, c, CPU_LANES, x, target, y, which);
                if (c < d->in)
                    image_max(&p, dtype, window, padded, c, d->in - c, x, target, y, which);
            }
}

/* The usual window, without padding, is known to the compiler. */
CPU_INLINE void image_max_forward_window(enum tess_dtype dtype, const struct tess_op_desc *d,
                                         const void *x, void *y, uint8_t *which)
{
    if (d->window == 2 && d->padding == 0)
        image_max_forward(d, dtype, 2, false, x, y, which);
    else
        image_max_forward(d, dtype, d->window, true, x, y, which);
}

enum tess_status CPU_LOOP(max_pool_forward)(struct tess_op *op, const void *x, void *y,
                                            uint8_t *which)
{
    CPU_BY_DTYPE(op->desc.dtype, image_max_forward_window, &op->desc, x, y, which);
    return TESS_OK;
}

/* `lanes` channels of one output pixel, whose window begins at element `first` of dx. */
CPU_INLINE void image_spread(const struct tess_op_desc *d, enum tess_dtype dtype, int32_t window,
                             int64_t first, int64_t lanes, int64_t from, const void *dy,
                             const uint8_t *which, void *dx)
{
    lanes_bits grad;
    lanes_byte bytes = {0};
    memcpy(&bytes, which + from, (size_t)lanes);
    lanes_int place = lanes_of_bytes(bytes);
    lanes_load(dtype, dy, from, lanes, &grad);
    for (int32_t ky = 0; ky < window; ky++)
        for (int32_t kx = 0; kx < window; kx++) {
            lanes_bits part = grad & (lanes_bits)(place == ky * window + kx);
            lanes_store(dtype, dx, first + (ky * d->width + kx) * d->in, lanes, &part);
        }
}

/*
 * Windows that do not overlap: each input pixel belongs to one window and is written once. No place
 * equals TESS_POOL_NONE, so such windows get zeros.
 */
CPU_INLINE void image_max_backward(const struct tess_op_desc *desc, enum tess_dtype dtype,
                                   int32_t window, const void *dy, const uint8_t *which, void *dx)
{
    struct tess_op_desc d = *desc; /* a copy, so that writes to dx cannot change it */
    int64_t height = d.height / window, width = d.width / window, from = 0;
    for (int64_t line = 0; line < d.rows * height; line++)
        for (int64_t ox = 0; ox < width; ox++, from += d.in) {
            int64_t first = (line * window * d.width + ox * window) * d.in, c = 0;
            for (; c + CPU_LANES <= d.in; c += CPU_LANES)
                image_spread(&d, dtype, window, first + c, CPU_LANES, from + c, dy, which, dx);
            if (c < d.in)
                image_spread(&d, dtype, window, first + c, d.in - c, from + c, dy, which, dx);
        }
}

/* The usual window is known to the compiler. */
CPU_INLINE void image_max_backward_window(const struct tess_op_desc *d, enum tess_dtype dtype,
                                          const void *dy, const uint8_t *which, void *dx)
{
    if (d->window == 2)
        image_max_backward(d, dtype, 2, dy, which, dx);
    else
        image_max_backward(d, dtype, d->window, dy, which, dx);
}

enum tess_status CPU_LOOP(max_pool_backward)(struct tess_op *op, const void *dy,
                                             const uint8_t *which, void *dx)
{
    const struct tess_op_desc *d = &op->desc;
    if (d->dtype == TESS_F32)
        image_max_backward_window(d, TESS_F32, dy, which, dx);
    else /* f16 too: elements are copied, not looked at */
        image_max_backward_window(d, TESS_BF16, dy, which, dx);
    return TESS_OK;
}

/* ---- average of whole images ----------------------------------------------------------------- */

CPU_INLINE void image_average(const struct tess_op_desc *d, enum tess_dtype dtype, int64_t first,
                              int64_t lanes, const void *x, int64_t target, void *y)
{
    const int64_t pixels = d->height * d->width;
    lanes_float sum = {0}, value;
    for (int64_t p = 0; p < pixels; p++, first += d->in) {
        lanes_read(dtype, x, first, lanes, &value);
        sum += value;
    }
    sum /= (float)pixels;
    lanes_write(dtype, y, target, lanes, &sum);
}

CPU_INLINE void image_average_forward(enum tess_dtype dtype, const struct tess_op_desc *d,
                                      const void *x, void *y)
{
    for (int64_t b = 0; b < d->rows; b++) {
        const int64_t first = b * d->height * d->width * d->in, target = b * d->in;
        int64_t c = 0;
        for (; c + CPU_LANES <= d->in; c += CPU_LANES)
            image_average(d, dtype, first + c, CPU_LANES, x, target + c, y);
        if (c < d->in)
            image_average(d, dtype, first + c, d->in - c, x, target + c, y);
    }
}

enum tess_status CPU_LOOP(avg_pool_forward)(struct tess_op *op, const void *x, void *y)
{
    CPU_BY_DTYPE(op->desc.dtype, image_average_forward, &op->desc, x, y);
    return TESS_OK;
}

CPU_INLINE void image_share(const struct tess_op_desc *d, enum tess_dtype dtype, int64_t first,
                            int64_t lanes, int64_t from, const void *dy, void *dx)
{
    const int64_t pixels = d->height * d->width;
    lanes_float grad;
    lanes_read(dtype, dy, from, lanes, &grad);
    grad /= (float)pixels;
    for (int64_t p = 0; p < pixels; p++, first += d->in)
        lanes_write(dtype, dx, first, lanes, &grad);
}

CPU_INLINE void image_average_backward(enum tess_dtype dtype, const struct tess_op_desc *d,
                                       const void *dy, void *dx)
{
    for (int64_t b = 0; b < d->rows; b++) {
        const int64_t first = b * d->height * d->width * d->in, from = b * d->in;
        int64_t c = 0;
        for (; c + CPU_LANES <= d->in; c += CPU_LANES)
            image_share(d, dtype, first + c, CPU_LANES, from + c, dy, dx);
        if (c < d->in)
            image_share(d, dtype, first + c, d->in - c, from + c, dy, dx);
    }
}

enum tess_status CPU_LOOP(avg_pool_backward)(struct tess_op *op, const void *dy, void *dx)
{
    CPU_BY_DTYPE(op->desc.dtype, image_average_backward, &op->desc, dy, dx);
    return TESS_OK;
}
