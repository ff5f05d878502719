/*
 * Products of 16-bit elements in f32: f16, for which there are no instructions here, and bf16 where
 * the processor has none or an operation is to keep f32's accuracy. The operands are widened into
 * scratch, the backend's own f32 operation multiplies them, and the result is rounded once; so the
 * bits, and what is promised of rows and leaves, are those of the f32 operation. Weights are
 * widened at every call: they change every step, and a copy that is kept would be twice the size of
 * what 16 bits save.
 */
#include "cpu/prim.h"

#include "tessera/check.h"

#include <stdlib.h>

/* The arrays of one operation in f32, and the f32 operation's scratch behind them. */
struct wide_layout {
    int64_t x_count, y_count, w_count; /* elements of all rows, of all rows, of the weights */
    float *x, *y, *w, *bias;           /* gradients lie where their arrays do */
    char *rest;
    size_t bytes; /* of the copies: a multiple of 64 */
};

static struct tess_op_desc wide_desc(const struct tess_op_desc *desc)
{
    struct tess_op_desc wide = *desc;
    wide.dtype = TESS_F32;
    wide.f32_math = false;
    return wide;
}

/* The next `count` floats of the scratch; with base NULL it only measures. */
static float *wide_take(struct wide_layout *layout, char *base, int64_t count)
{
    char *piece = base != NULL ? base + layout->bytes : NULL;
    layout->bytes += tess__cpu_round_up((size_t)count * sizeof(float));
    return (float *)(void *)piece;
}

static struct wide_layout wide_layout(const struct tess_op_desc *d, void *base)
{
    struct cpu_sizes n = tess__cpu_sizes(d);
    struct wide_layout l = {.x_count = d->rows * n.x, .y_count = d->rows * n.y, .w_count = n.w};
    l.x = wide_take(&l, base, l.x_count);
    l.y = wide_take(&l, base, l.y_count);
    l.w = wide_take(&l, base, l.w_count);
    l.bias = wide_take(&l, base, d->out);
    l.rest = base != NULL ? (char *)base + l.bytes : NULL;
    return l;
}

static enum tess_status wide_needs(const struct tess_op_desc *desc, struct tess_op_needs *needs_out)
{
    struct tess_op_desc wide = wide_desc(desc);
    TESS_TRY(tess__cpu_product.needs(&wide, needs_out));
    needs_out->scratch_bytes += wide_layout(desc, NULL).bytes;
    return TESS_OK;
}

static enum tess_status wide_open(struct tess_op *op)
{
    struct tess_op *wide = malloc(sizeof(*wide));
    if (wide == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for an operation in f32");
    *wide = (struct tess_op){.desc = wide_desc(&op->desc),
                             .kernel = op->kernel,
                             .scratch = wide_layout(&op->desc, op->scratch).rest,
                             .thread_scratch = op->thread_scratch,
                             .thread_bytes = op->thread_bytes};
    op->data = wide;
    return tess__cpu_product.open(wide);
}

static void wide_close(struct tess_op *op)
{
    if (op->data == NULL)
        return;
    tess__cpu_product.close(op->data);
    free(op->data);
    op->data = NULL;
}

static void wide_read(const struct tess_op *op, const void *from, int64_t count, float *copy)
{
    tess__cpu_cast(op->kernel, count, op->desc.dtype, from, TESS_F32, copy);
}

static void wide_write(const struct tess_op *op, const float *copy, int64_t count, void *to)
{
    tess__cpu_cast(op->kernel, count, TESS_F32, copy, op->desc.dtype, to);
}

static enum tess_status wide_forward(struct tess_op *op, const void *x, const void *w,
                                     const void *bias, void *y)
{
    struct wide_layout l = wide_layout(&op->desc, op->scratch);
    struct tess_op *wide = op->data;
    wide_read(op, x, l.x_count, l.x);
    wide_read(op, w, l.w_count, l.w);
    if (bias != NULL)
        wide_read(op, bias, op->desc.out, l.bias);
    const float *bias_wide = bias != NULL ? l.bias : NULL;
    TESS_TRY(tess__cpu_product.forward(wide, l.x, l.w, bias_wide, l.y));
    wide_write(op, l.y, l.y_count, y);
    return TESS_OK;
}

static enum tess_status wide_backward_data(struct tess_op *op, const void *dy, const void *w,
                                           void *dx)
{
    struct wide_layout l = wide_layout(&op->desc, op->scratch);
    struct tess_op *wide = op->data;
    wide_read(op, dy, l.y_count, l.y);
    wide_read(op, w, l.w_count, l.w);
    TESS_TRY(tess__cpu_product.backward_data(wide, l.y, l.w, l.x));
    wide_write(op, l.x, l.x_count, dx);
    return TESS_OK;
}

static enum tess_status wide_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                             float *dw, float *dbias)
{
    struct wide_layout l = wide_layout(&op->desc, op->scratch);
    struct tess_op *wide = op->data;
    wide_read(op, x, l.x_count, l.x);
    wide_read(op, dy, l.y_count, l.y);
    return tess__cpu_product.backward_weight(wide, l.x, l.y, dw, dbias);
}

const struct cpu_product tess__cpu_wide = {
    .needs = wide_needs,
    .open = wide_open,
    .close = wide_close,
    .forward = wide_forward,
    .backward_data = wide_backward_data,
    .backward_weight = wide_backward_weight,
};
