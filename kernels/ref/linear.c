/* Linear layers of ref. One leaf at a time; sums in f32. */
#include "ref/fold.h"
#include "ref/fp8.h"
#include "ref/slots.h"
#include "ref/stage.h"
#include "tessera/check.h"

#include <string.h>

/* The scratch of one linear operation: f32 copies where the dtype is another, and the folds'
 * levels. */
struct linear_scratch {
    float *x, *w, *y, *bias; /* of one leaf: [leaf, in] [out, in] [leaf, out] [out] */
    void *fold_w, *fold_bias;
    float *sum_w, *sum_bias; /* the sums over the leaves, where they are added to others */
    size_t bytes;
};

static struct linear_scratch linear_layout(const struct tess_op_desc *d, void *base)
{
    struct ref_scratch scratch = {.base = base};
    int64_t leaves = d->rows / d->leaf_rows;
    struct linear_scratch s = {
        .x = ref_take_copy(&scratch, d->dtype, d->leaf_rows * d->in),
        .w = ref_take_copy(&scratch, d->dtype, d->out * d->in),
        .y = ref_take_copy(&scratch, d->dtype, d->leaf_rows * d->out),
        .bias = ref_take_copy(&scratch, d->dtype, d->out),
        .fold_w = ref_take(&scratch, tess__fold_bytes(d->out * d->in, leaves)),
        .fold_bias = ref_take(&scratch, tess__fold_bytes(d->out, leaves)),
        .sum_w = ref_take(&scratch, d->add_grad ? (size_t)(d->out * d->in) * sizeof(float) : 0),
        .sum_bias = ref_take(&scratch, d->add_grad ? (size_t)d->out * sizeof(float) : 0),
    };
    s.bytes = scratch.used;
    return s;
}

size_t tess__ref_linear_scratch(const struct tess_op_desc *desc)
{
    return linear_layout(desc, NULL).bytes;
}

/*
 * Elements first ... first + count of an operand in f32, through 8 bits where desc.fp8 is set; then
 * `copy` is not NULL, since there is no such operation in f32.
 */
static const float *linear_read(struct tess_op *op, enum ref_fp8_operand operand,
                                const void *source, int64_t first, int64_t count, float *copy)
{
    const float *x = ref_read(op->desc.dtype, source, first, count, copy);
    if (op->desc.fp8 != TESS_FP8_OFF)
        tess__ref_fp8_narrow(op, operand, copy, count);
    return x;
}

static void linear_begin(struct tess_op *op, enum ref_fp8_operand operand, const void *x,
                         int64_t columns)
{
    if (op->desc.fp8 != TESS_FP8_OFF)
        tess__ref_fp8_begin(op, operand, x, op->desc.rows * columns);
}

/* x [leaf, in], w [out, in], bias [out] or NULL -> y [leaf, out] */
static void linear_forward_leaf(const struct tess_op_desc *d, const float *x, const float *w,
                                const float *bias, float *y)
{
    for (int64_t o = 0; o < d->out; o++) {
        for (int64_t b = 0; b < d->leaf_rows; b++) {
            float lane[REF_LANES] = {0};
            ref_dot(lane, x + b * d->in, w + o * d->in, d->in);
            float sum = ref_lane_sum(lane) + (bias != NULL ? bias[o] : 0.0f);
            y[b * d->out + o] = d->relu && sum < 0 ? 0.0f : sum;
        }
    }
}

enum tess_status tess__ref_linear_forward(struct tess_op *op, const void *x, const void *w,
                                          const void *bias, void *y)
{
    const struct tess_op_desc *d = &op->desc;
    struct linear_scratch s = linear_layout(d, op->scratch);
    const float *w32 = linear_read(op, REF_FP8_W, w, 0, d->out * d->in, s.w);
    const float *bias32 = bias != NULL ? ref_read(d->dtype, bias, 0, d->out, s.bias) : NULL;
    int64_t x_count = d->leaf_rows * d->in, y_count = d->leaf_rows * d->out;
    linear_begin(op, REF_FP8_X, x, d->in);
    for (int64_t leaf = 0; leaf < d->rows / d->leaf_rows; leaf++) {
        const float *x32 = linear_read(op, REF_FP8_X, x, leaf * x_count, x_count, s.x);
        float *y32 = ref_target(d->dtype, y, leaf * y_count, s.y);
        linear_forward_leaf(d, x32, w32, bias32, y32);
        ref_write(d->dtype, y, leaf * y_count, y_count, y32);
    }
    return TESS_OK;
}

enum tess_status tess__ref_linear_backward_data(struct tess_op *op, const void *dy, const void *w,
                                                void *dx)
{
    const struct tess_op_desc *d = &op->desc;
    struct linear_scratch s = linear_layout(d, op->scratch);
    const float *w32 = linear_read(op, REF_FP8_W, w, 0, d->out * d->in, s.w);
    int64_t x_count = d->leaf_rows * d->in, y_count = d->leaf_rows * d->out;
    linear_begin(op, REF_FP8_DY, dy, d->out);
    for (int64_t leaf = 0; leaf < d->rows / d->leaf_rows; leaf++) {
        const float *dy32 = linear_read(op, REF_FP8_DY, dy, leaf * y_count, y_count, s.y);
        float *dx32 = ref_target(d->dtype, dx, leaf * x_count, s.x);
        memset(dx32, 0, (size_t)x_count * sizeof(float));
        for (int64_t b = 0; b < d->leaf_rows; b++)
            for (int64_t o = 0; o < d->out; o++)
                ref_axpy(dx32 + b * d->in, dy32[b * d->out + o], w32 + o * d->in, d->in);
        ref_write(d->dtype, dx, leaf * x_count, x_count, dx32);
    }
    return TESS_OK;
}

/* x [leaf, in], dy [leaf, out] -> dw [out, in] */
static void linear_weight_leaf(const struct tess_op_desc *d, const float *x, const float *dy,
                               float *dw)
{
    memset(dw, 0, (size_t)(d->out * d->in) * sizeof(float));
    for (int64_t o = 0; o < d->out; o++)
        for (int64_t b = 0; b < d->leaf_rows; b++)
            ref_axpy(dw + o * d->in, dy[b * d->out + o], x + b * d->in, d->in);
}

/* dy [leaf, out] -> dbias [out] */
static void linear_bias_leaf(const struct tess_op_desc *d, const float *dy, float *dbias)
{
    memset(dbias, 0, (size_t)d->out * sizeof(float));
    for (int64_t b = 0; b < d->leaf_rows; b++)
        ref_axpy(dbias, 1.0f, dy + b * d->out, d->out);
}

enum tess_status tess__ref_linear_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                                  float *dw, float *dbias)
{
    const struct tess_op_desc *d = &op->desc;
    struct linear_scratch s = linear_layout(d, op->scratch);
    int64_t x_count = d->leaf_rows * d->in, y_count = d->leaf_rows * d->out;
    struct tess_fold fold_w, fold_bias;
    tess__fold_init(&fold_w, d->out * d->in, d->add_grad ? s.sum_w : dw, s.fold_w);
    tess__fold_init(&fold_bias, dbias != NULL ? d->out : 0, d->add_grad ? s.sum_bias : dbias,
                    s.fold_bias);
    linear_begin(op, REF_FP8_X_WEIGHT, x, d->in);
    linear_begin(op, REF_FP8_DY_WEIGHT, dy, d->out);
    for (int64_t leaf = 0; leaf < d->rows / d->leaf_rows; leaf++) {
        const float *x32 = linear_read(op, REF_FP8_X_WEIGHT, x, leaf * x_count, x_count, s.x);
        const float *dy32 = ref_read(d->dtype, dy, leaf * y_count, y_count, s.y);
        if (dbias != NULL)
            linear_bias_leaf(d, dy32, tess__fold_leaf(&fold_bias));
        if (d->fp8 != TESS_FP8_OFF) /* the bias's gradient is of dy as it is */
            tess__ref_fp8_narrow(op, REF_FP8_DY_WEIGHT, s.y, y_count);
        linear_weight_leaf(d, x32, dy32, tess__fold_leaf(&fold_w));
        tess__fold_push(&fold_w);
        tess__fold_push(&fold_bias);
    }
    tess__fold_finish(&fold_w);
    tess__fold_finish(&fold_bias);
    if (d->add_grad)
        ref_axpy(dw, 1.0f, s.sum_w, d->out * d->in);
    if (d->add_grad && dbias != NULL)
        ref_axpy(dbias, 1.0f, s.sum_bias, d->out);
    return TESS_OK;
}

/* The two steps, each by the kernel's own slot: another backend's, where the operation is its. */
enum tess_status tess__ref_linear_forward_add(struct tess_op *op, const void *x, const void *w,
                                              const void *bias, const void *add, void *y)
{
    TESS_TRY(tess_linear_forward(op, x, w, bias, y));
    tess_add(op->kernel, op->desc.dtype, op->desc.rows * op->desc.out, add, y, y);
    return TESS_OK;
}

enum tess_status tess__ref_linear_backward(struct tess_op *op, const void *x, const void *dy,
                                           const void *w, float *dw, float *dbias, void *term,
                                           void *dx)
{
    TESS_TRY(tess_linear_backward_weight(op, x, dy, dw, dbias));
    TESS_TRY(tess_linear_backward_data(op, dy, w, term != NULL ? term : dx));
    if (term != NULL)
        tess_add(op->kernel, op->desc.dtype, op->desc.rows * op->desc.in, dx, term, dx);
    return TESS_OK;
}

enum tess_status tess__ref_linear_forward_gelu(struct tess_op *op, const void *x, const void *w,
                                               const void *bias, void *before, void *y)
{
    TESS_TRY(op->kernel->ops->linear_forward(op, x, w, bias, before));
    tess_gelu_forward(op->kernel, op->desc.dtype, op->desc.rows * op->desc.out, before, y);
    return TESS_OK;
}

enum tess_status tess__ref_linear_backward_data_gelu(struct tess_op *op, const void *dy,
                                                     const void *w, const void *before, void *dx)
{
    TESS_TRY(op->kernel->ops->linear_backward_data(op, dy, w, dx));
    tess_gelu_backward(op->kernel, op->desc.dtype, op->desc.rows * op->desc.in, before, dx, dx);
    return TESS_OK;
}
