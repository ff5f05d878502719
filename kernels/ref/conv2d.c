/*
 * Convolutions of ref: direct, one image at a time, sums in f32.
 *
 * A window's row of pixels is contiguous both in the image and in the weights, channels included,
 * so every loop below works on runs:
 *
 *     image row   [ . . | x0 x1 x2 | . . ]      run = (pixels of the window row inside) * in
 *     weight row        [ w0 w1 w2 ]            clipped on the same sides
 */
#include "ref/fold.h"
#include "ref/slots.h"
#include "ref/stage.h"

#include <string.h>

struct conv_scratch {
    float *x, *w, *y, *bias; /* [H, W, in] [out, window, window, in] [OH, OW, out] [out] */
    void *fold_w, *fold_bias;
    size_t bytes;
};

/* Counts that every function needs. */
struct conv_size {
    int64_t out_height, out_width;
    int64_t x_count, y_count,
        w_count; /* elements of an input image, an output image, the weights */
};

static struct conv_size conv_size(const struct tess_op_desc *d)
{
    struct conv_size n = {
        .out_height = tess_op_output_size(d->height, d->window, d->stride, d->padding),
        .out_width = tess_op_output_size(d->width, d->window, d->stride, d->padding),
        .x_count = d->height * d->width * d->in,
        .w_count = d->out * d->window * d->window * d->in,
    };
    n.y_count = n.out_height * n.out_width * d->out;
    return n;
}

static struct conv_scratch conv_layout(const struct tess_op_desc *d, void *base)
{
    struct ref_scratch scratch = {.base = base};
    struct conv_size n = conv_size(d);
    int64_t leaves = d->rows / d->leaf_rows;
    struct conv_scratch s = {
        .x = ref_take_copy(&scratch, d->dtype, n.x_count),
        .w = ref_take_copy(&scratch, d->dtype, n.w_count),
        .y = ref_take_copy(&scratch, d->dtype, n.y_count),
        .bias = ref_take_copy(&scratch, d->dtype, d->out),
        .fold_w = ref_take(&scratch, tess__fold_bytes(n.w_count, leaves)),
        .fold_bias = ref_take(&scratch, tess__fold_bytes(d->out, leaves)),
    };
    s.bytes = scratch.used;
    return s;
}

size_t tess__ref_conv2d_scratch(const struct tess_op_desc *desc)
{
    return conv_layout(desc, NULL).bytes;
}

/* One window row: offsets in the image and in one output channel's weights, and its length. */
struct conv_run {
    int64_t x, w, count;
};

static struct conv_run conv_run(const struct tess_op_desc *d, int64_t oy, int64_t ox, int64_t ky)
{
    int64_t iy = oy * d->stride - d->padding + ky;
    int64_t ix = ox * d->stride - d->padding;
    int64_t begin = ix < 0 ? -ix : 0;
    int64_t end = d->width - ix < d->window ? d->width - ix : d->window;
    if (iy < 0 || iy >= d->height || end <= begin)
        return (struct conv_run){0};
    return (struct conv_run){
        .x = (iy * d->width + ix + begin) * d->in,
        .w = (ky * d->window + begin) * d->in,
        .count = (end - begin) * d->in,
    };
}

static void conv_forward_image(const struct tess_op_desc *d, const float *x, const float *w,
                               const float *bias, float *y)
{
    struct conv_size n = conv_size(d);
    int64_t w_channel = d->window * d->window * d->in;
    for (int64_t p = 0; p < n.out_height * n.out_width; p++) {
        for (int64_t o = 0; o < d->out; o++) {
            float lane[REF_LANES] = {0};
            for (int64_t ky = 0; ky < d->window; ky++) {
                struct conv_run run = conv_run(d, p / n.out_width, p % n.out_width, ky);
                ref_dot(lane, x + run.x, w + o * w_channel + run.w, run.count);
            }
            float sum = ref_lane_sum(lane) + (bias != NULL ? bias[o] : 0.0f);
            y[p * d->out + o] = d->relu && sum < 0 ? 0.0f : sum;
        }
    }
}

enum tess_status tess__ref_conv2d_forward(struct tess_op *op, const void *x, const void *w,
                                          const void *bias, void *y)
{
    const struct tess_op_desc *d = &op->desc;
    struct conv_scratch s = conv_layout(d, op->scratch);
    struct conv_size n = conv_size(d);
    const float *w32 = ref_read(d->dtype, w, 0, n.w_count, s.w);
    const float *bias32 = bias != NULL ? ref_read(d->dtype, bias, 0, d->out, s.bias) : NULL;
    for (int64_t b = 0; b < d->rows; b++) {
        const float *x32 = ref_read(d->dtype, x, b * n.x_count, n.x_count, s.x);
        float *y32 = ref_target(d->dtype, y, b * n.y_count, s.y);
        conv_forward_image(d, x32, w32, bias32, y32);
        ref_write(d->dtype, y, b * n.y_count, n.y_count, y32);
    }
    return TESS_OK;
}

enum tess_status tess__ref_conv2d_backward_data(struct tess_op *op, const void *dy, const void *w,
                                                void *dx)
{
    const struct tess_op_desc *d = &op->desc;
    struct conv_scratch s = conv_layout(d, op->scratch);
    struct conv_size n = conv_size(d);
    int64_t w_channel = d->window * d->window * d->in;
    const float *w32 = ref_read(d->dtype, w, 0, n.w_count, s.w);
    for (int64_t b = 0; b < d->rows; b++) {
        const float *dy32 = ref_read(d->dtype, dy, b * n.y_count, n.y_count, s.y);
        float *dx32 = ref_target(d->dtype, dx, b * n.x_count, s.x);
        memset(dx32, 0, (size_t)n.x_count * sizeof(float));
        for (int64_t p = 0; p < n.out_height * n.out_width; p++) {
            for (int64_t ky = 0; ky < d->window; ky++) {
                struct conv_run run = conv_run(d, p / n.out_width, p % n.out_width, ky);
                for (int64_t o = 0; o < d->out; o++)
                    ref_axpy(dx32 + run.x, dy32[p * d->out + o], w32 + o * w_channel + run.w,
                             run.count);
            }
        }
        ref_write(d->dtype, dx, b * n.x_count, n.x_count, dx32);
    }
    return TESS_OK;
}

/* dw [out, window, window, in] += of one image; dbias [out] too unless NULL */
static void conv_weight_image(const struct tess_op_desc *d, const float *x, const float *dy,
                              float *dw, float *dbias)
{
    struct conv_size n = conv_size(d);
    int64_t w_channel = d->window * d->window * d->in;
    for (int64_t p = 0; p < n.out_height * n.out_width; p++) {
        for (int64_t ky = 0; ky < d->window; ky++) {
            struct conv_run run = conv_run(d, p / n.out_width, p % n.out_width, ky);
            for (int64_t o = 0; o < d->out; o++)
                ref_axpy(dw + o * w_channel + run.w, dy[p * d->out + o], x + run.x, run.count);
        }
        if (dbias != NULL)
            ref_axpy(dbias, 1.0f, dy + p * d->out, d->out);
    }
}

enum tess_status tess__ref_conv2d_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                                  float *dw, float *dbias)
{
    const struct tess_op_desc *d = &op->desc;
    struct conv_scratch s = conv_layout(d, op->scratch);
    struct conv_size n = conv_size(d);
    struct tess_fold fold_w, fold_bias;
    tess__fold_init(&fold_w, n.w_count, dw, s.fold_w);
    tess__fold_init(&fold_bias, dbias != NULL ? d->out : 0, dbias, s.fold_bias);
    for (int64_t leaf = 0; leaf < d->rows / d->leaf_rows; leaf++) {
        float *dw_leaf = tess__fold_leaf(&fold_w);
        float *dbias_leaf = dbias != NULL ? tess__fold_leaf(&fold_bias) : NULL;
        memset(dw_leaf, 0, (size_t)n.w_count * sizeof(float));
        if (dbias_leaf != NULL)
            memset(dbias_leaf, 0, (size_t)d->out * sizeof(float));
        for (int64_t b = leaf * d->leaf_rows; b < (leaf + 1) * d->leaf_rows; b++) {
            const float *x32 = ref_read(d->dtype, x, b * n.x_count, n.x_count, s.x);
            const float *dy32 = ref_read(d->dtype, dy, b * n.y_count, n.y_count, s.y);
            conv_weight_image(d, x32, dy32, dw_leaf, dbias_leaf);
        }
        tess__fold_push(&fold_w);
        tess__fold_push(&fold_bias);
    }
    tess__fold_finish(&fold_w);
    tess__fold_finish(&fold_bias);
    return TESS_OK;
}
