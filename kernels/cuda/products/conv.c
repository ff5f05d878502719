/*
 * Convolutions as products. The windows of a chunk of images are laid out as rows of a matrix, so
 * that with P places of the window in the chunk and K = window^2 in
 *
 *     forward          y[P, out] = windows[P, K] w[out, K]^T
 *     backward_data    windows'[P, K] = dy[P, out] w, in f32, then gathered into dx
 *     backward_weight  dw[out, K] = dy^T windows
 *
 * A chunk is as many images as fit a bound, and a divisor of the leaf: it depends on nothing else,
 * so every product has the same shape and the bits do not depend on how many leaves there are. A
 * window of one pixel needs no laying out: then a chunk is a leaf.
 *
 * Where the run has chosen cuDNN, that computes y, dx or a leaf's dw, leaf by leaf, in each of the
 * ways that it has a plan for; the rest, and sums over leaves and bias gradients always, are as
 * above. Widened operands are never its.
 */
#include "cuda/slots.h"

#include "cuda/products/conv.h"
#include "cuda/products/conv_cudnn.h"
#include "cuda/products/matmul.h"
#include "cuda/products/matmul_tree.h"
#include "cuda/rows/columns.h"

#include <stdio.h>
#include <stdlib.h>

/* Behind op->data. */
struct conv_data {
    struct cudnn_plan *cudnn[CONV_WAY_COUNT]; /* NULL: by products */
    struct cuda_rows rows[CONV_WEIGHT];       /* of the ways before it */
    struct cuda_plan *weight;
};

static struct cuda_windows conv_windows(const struct tess_op_desc *d, const struct conv_size *n)
{
    return (struct cuda_windows){
        .images = n->chunk,
        .height = (int32_t)d->height,
        .width = (int32_t)d->width,
        .channels = (int32_t)d->in,
        .out_height = (int32_t)n->out_height,
        .out_width = (int32_t)n->out_width,
        .window = d->window,
        .stride = d->stride,
        .padding = d->padding,
    };
}

/* ---- the choice ------------------------------------------------------------------------------ */

enum tess_status tess__cuda_conv_choose(struct tess_kernel *kernel, enum tess_conv conv)
{
    char text[512];
    if (conv == TESS_CONV_CUDNN && !tess__cudnn_present(text, sizeof(text)))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "--cuda.conv cudnn: %s; or leave it at im2col", text);
    tess__cuda_state(kernel)->conv = conv == TESS_CONV_CUDNN ? conv : TESS_CONV_IM2COL;
    return TESS_OK;
}

void tess__cuda_conv_describe(const struct tess_kernel *kernel,
                              void (*line)(void *context, const char *text), void *context)
{
    char library[512], text[700];
    if (tess__cuda_state(kernel)->conv != TESS_CONV_CUDNN) {
        line(context, "convolutions: im2col and cuBLASLt");
        return;
    }
    (void)tess__cudnn_present(library, sizeof(library));
    snprintf(text, sizeof(text),
             "convolutions: %s, leaf by leaf; im2col and cuBLASLt where it has no engine for one",
             library);
    line(context, text);
}

/* ---- opening --------------------------------------------------------------------------------- */

static cudaDataType_t conv_type(const struct tess_op_desc *d)
{
    return d->f32_math ? CUDA_R_32F : tess__cuda_data_type(d->dtype);
}

static struct cuda_product conv_product(const struct tess_op *op, enum conv_way which)
{
    const struct tess_op_desc *d = &op->desc;
    const struct conv_size n = tess__cuda_conv_size(d);
    const cudaDataType_t type = conv_type(d);
    const int64_t places = n.chunk * n.places;
    struct cuda_product p;
    if (which == CONV_DATA) {
        p = tess__cuda_product(n.inner, places, d->out, type);
        if (!n.plain)
            p.d = CUDA_R_32F; /* terms of a sum are not rounded before it */
    } else {
        p = tess__cuda_product(d->out, places, n.inner, type);
        p.transpose_a = true;
    }
    if (which == CONV_FORWARD && d->relu)
        p.epilogue = CUBLASLT_EPILOGUE_RELU;
    if (which == CONV_FORWARD_BIAS)
        p.epilogue = d->relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
    p.compute = tess__cuda_matmul_compute(op->kernel, type, d->f32_math);
    return p;
}

static enum tess_status conv_no_algorithm(const struct tess_op_desc *d)
{
    TESS_FAIL(TESS_ERR_UNSUPPORTED,
              "cuBLASLt has no algorithm for a convolution of %lld channels to %lld, window %d, in "
              "%s",
              (long long)d->in, (long long)d->out, (int)d->window, tess_dtype_name(d->dtype));
}

/* Products that go by chunks are opened for one; where a chunk is a leaf and lies as it is, over
 * all leaves. */
static enum tess_status conv_open_product(struct tess_op *op, enum conv_way which)
{
    struct cuda_rows *rows = &((struct conv_data *)op->data)->rows[which];
    const struct cuda_product product = conv_product(op, which);
    const struct conv_size n = tess__cuda_conv_size(&op->desc);
    const int64_t leaves = n.plain && !n.wide ? op->desc.rows / op->desc.leaf_rows : 1;
    return tess__cuda_rows_open(op->kernel, &product, leaves, rows);
}

static enum tess_status conv_open_weight(struct tess_op *op)
{
    const struct tess_op_desc *d = &op->desc;
    const struct conv_size n = tess__cuda_conv_size(d);
    struct conv_data *data = op->data;
    struct cuda_product p = tess__cuda_product(n.inner, d->out, n.chunk * n.places, conv_type(d));
    p.d = CUDA_R_32F;
    p.transpose_b = true;
    p.split = true;
    p.compute = tess__cuda_matmul_compute(op->kernel, p.a, d->f32_math);
    TESS_TRY(tess__cuda_plan_get(op->kernel, &p, &data->weight));
    return data->weight != NULL ? TESS_OK : conv_no_algorithm(d);
}

static enum tess_status conv_open_way(struct tess_op *op, enum conv_way way)
{
    struct conv_data *data = op->data;
    const bool chosen = tess__cuda_state(op->kernel)->conv == TESS_CONV_CUDNN;
    if (chosen && !tess__cuda_conv_size(&op->desc).wide)
        TESS_TRY(tess__cudnn_plan_open(op->kernel, &op->desc, way, &data->cudnn[way]));
    if (data->cudnn[way] != NULL)
        return TESS_OK;
    return way == CONV_WEIGHT ? conv_open_weight(op) : conv_open_product(op, way);
}

static bool conv_has(const struct tess_op *op, enum conv_way way)
{
    const struct conv_data *data = op->data;
    return data->cudnn[way] != NULL || data->rows[way].leaf != NULL;
}

static enum tess_status conv_open_plans(struct tess_op *op)
{
    TESS_TRY(conv_open_way(op, CONV_FORWARD));
    TESS_TRY(conv_open_way(op, CONV_FORWARD_BIAS));
    if (op->desc.input_grad)
        TESS_TRY(conv_open_way(op, CONV_DATA));
    /* Whether there is a bias is known when it runs. */
    if (!conv_has(op, CONV_FORWARD) || !conv_has(op, CONV_FORWARD_BIAS) ||
        (op->desc.input_grad && !conv_has(op, CONV_DATA)))
        return conv_no_algorithm(&op->desc);
    return conv_open_way(op, CONV_WEIGHT);
}

enum tess_status tess__cuda_conv_open(struct tess_op *op)
{
    op->data = calloc(1, sizeof(struct conv_data));
    if (op->data == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a convolution's plans");
    enum tess_status status = conv_open_plans(op);
    if (status != TESS_OK)
        tess__cuda_conv_close(op);
    return status;
}

void tess__cuda_conv_close(struct tess_op *op)
{
    struct conv_data *data = op->data;
    for (int way = 0; data != NULL && way < CONV_WAY_COUNT; way++)
        tess__cudnn_plan_close(data->cudnn[way]);
    free(data); /* plans of products are the kernel's */
    op->data = NULL;
}

/* ---- leaves by cuDNN ------------------------------------------------------------------------- */

/* The array from this element on. */
static void *conv_at(const void *array, int64_t element, size_t word)
{
    return (char *)(uintptr_t)array + (size_t)element * word;
}

static enum tess_status conv_run_leaves(struct tess_op *op, const struct cudnn_plan *plan,
                                        const struct cudnn_operands *whole)
{
    const struct conv_size n = tess__cuda_conv_size(&op->desc);
    const size_t word = tess_dtype_bytes(op->desc.dtype);
    for (int64_t row = 0; row < op->desc.rows; row += op->desc.leaf_rows) {
        struct cudnn_operands leaf = *whole;
        leaf.x = conv_at(whole->x, row * n.x, word);
        leaf.y = conv_at(whole->y, row * n.y, word);
        TESS_TRY(tess__cudnn_plan_run(op->kernel, plan, &leaf));
    }
    return TESS_OK;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* `count` elements as products take them: `wide`, in f32, where there is one. */
static const void *conv_operand(const struct tess_op *op, int64_t count, const void *array,
                                float *wide)
{
    if (wide == NULL)
        return array;
    tess__cuda_widen(op, count, array, wide);
    return wide;
}

/* The windows of a chunk of images, as products take them. */
static enum tess_status conv_lay_out(const struct tess_op *op, const struct conv_room *r,
                                     const void *x, const void **windows_out)
{
    const struct tess_op_desc *d = &op->desc;
    const struct cuda_windows windows = conv_windows(d, &r->n);
    x = conv_operand(op, r->n.chunk * r->n.x, x, r->x);
    *windows_out = r->n.plain ? x : r->windows;
    if (!r->n.plain)
        CUDA_TRY(tess__cuda_conv_windows(tess__cuda_stream(op->kernel),
                                         r->n.wide ? TESS_F32 : d->dtype, &windows, x, r->windows));
    return TESS_OK;
}

static enum tess_status conv_forward_chunks(struct tess_op *op, const struct cuda_rows *rows,
                                            const void *x, struct cuda_operands o, void *y)
{
    const struct tess_op_desc *d = &op->desc;
    const struct conv_room r = tess__cuda_conv_room(d, op->scratch);
    for (int64_t row = 0; row < d->rows; row += r.n.chunk) {
        void *to = conv_at(y, row * r.n.y, r.word);
        TESS_TRY(conv_lay_out(op, &r, conv_at(x, row * r.n.x, r.word), &o.b));
        o.d = r.n.wide ? r.y : to;
        TESS_TRY(tess__cuda_leaf_run(op->kernel, rows, &o));
        if (r.n.wide)
            op->kernel->ops->cast(op->kernel, r.n.chunk * r.n.y, TESS_F32, r.y, d->dtype, to);
    }
    return TESS_OK;
}

enum tess_status tess__cuda_conv2d_forward(struct tess_op *op, const void *x, const void *w,
                                           const void *bias, void *y)
{
    const struct tess_op_desc *d = &op->desc;
    const struct conv_data *data = op->data;
    const struct conv_room r = tess__cuda_conv_room(d, op->scratch);
    const enum conv_way which = bias != NULL ? CONV_FORWARD_BIAS : CONV_FORWARD;
    const struct cudnn_plan *plan = data->cudnn[which];
    const struct cuda_rows *rows = &data->rows[which];
    /* cuBLASLt takes a bias as void *, though it only reads it. */
    struct cuda_operands o = {.b = x, .d = y, .bias = (void *)(uintptr_t)bias};
    if (plan != NULL) {
        TESS_TRY(conv_run_leaves(op, plan,
                                 &(struct cudnn_operands){.x = x, .w = w, .bias = bias, .y = y}));
    } else {
        o.a = conv_operand(op, r.n.weights, w, r.w);
        if (bias != NULL)
            o.bias = (void *)(uintptr_t)conv_operand(op, d->out, bias, r.bias);
        if (r.n.plain && !r.n.wide)
            TESS_TRY(tess__cuda_rows_run(op->kernel, rows, &o));
        else
            TESS_TRY(conv_forward_chunks(op, rows, x, o, y));
    }
    /* cuDNN's is a pass of its own too: rounding leaves signs as they are. */
    if (plan != NULL ? d->relu : rows->relu_after)
        op->kernel->ops->relu_forward(op->kernel, d->dtype, d->rows * r.n.y, y, y);
    return TESS_OK;
}

/* The last step of backward_data: from a product's result in room to dx of the chunk. */
static enum tess_status conv_bring_back(const struct tess_op *op, const struct conv_size *n,
                                        const float *from, void *dx)
{
    const struct tess_op_desc *d = &op->desc;
    const struct cuda_windows windows = conv_windows(d, n);
    if (n->plain)
        op->kernel->ops->cast(op->kernel, n->chunk * n->x, TESS_F32, from, d->dtype, dx);
    else
        CUDA_TRY(
            tess__cuda_conv_gather(tess__cuda_stream(op->kernel), d->dtype, &windows, from, dx));
    return TESS_OK;
}

enum tess_status tess__cuda_conv2d_backward_data(struct tess_op *op, const void *dy, const void *w,
                                                 void *dx)
{
    const struct tess_op_desc *d = &op->desc;
    const struct conv_data *data = op->data;
    const struct cuda_rows *rows = &data->rows[CONV_DATA];
    const struct conv_room r = tess__cuda_conv_room(d, op->scratch);
    if (data->cudnn[CONV_DATA] != NULL)
        return conv_run_leaves(op, data->cudnn[CONV_DATA],
                               &(struct cudnn_operands){.x = dx, .w = w, .y = dy});
    if (rows->leaf == NULL)
        TESS_FAIL(TESS_ERR_INTERNAL, "a convolution was opened without input_grad");
    struct cuda_operands o = {.a = conv_operand(op, r.n.weights, w, r.w), .b = dy, .d = dx};
    if (r.n.plain && !r.n.wide)
        return tess__cuda_rows_run(op->kernel, rows, &o);
    o.d = r.n.plain ? r.x : r.windows;
    for (int64_t row = 0; row < d->rows; row += r.n.chunk) {
        o.b = conv_operand(op, r.n.chunk * r.n.y, conv_at(dy, row * r.n.y, r.word), r.y);
        TESS_TRY(tess__cuda_plan_run(op->kernel, rows->leaf, &o));
        TESS_TRY(conv_bring_back(op, &r.n, o.d, conv_at(dx, row * r.n.x, r.word)));
    }
    return TESS_OK;
}

/* dw = or += one leaf: its chunks in order, each added to those before. */
static enum tess_status conv_weight_leaf(struct tess_op *op, const struct conv_room *r,
                                         const void *x, const void *dy, float beta, float *dw)
{
    const struct conv_data *data = op->data;
    struct cuda_operands o = {.d = dw, .beta = beta};
    for (int64_t row = 0; row < op->desc.leaf_rows; row += r->n.chunk) {
        TESS_TRY(conv_lay_out(op, r, conv_at(x, row * r->n.x, r->word), &o.a));
        o.b = conv_operand(op, r->n.chunk * r->n.y, conv_at(dy, row * r->n.y, r->word), r->y);
        TESS_TRY(tess__cuda_plan_run(op->kernel, data->weight, &o));
        o.beta = 1;
    }
    return TESS_OK;
}

enum tess_status tess__cuda_conv2d_backward_weight(struct tess_op *op, const void *x,
                                                   const void *dy, float *dw, float *dbias)
{
    const struct tess_op_desc *d = &op->desc;
    const struct cudnn_plan *plan = ((const struct conv_data *)op->data)->cudnn[CONV_WEIGHT];
    const struct conv_room r = tess__cuda_conv_room(d, op->scratch);
    /* A leaf of several chunks is a sum of its own: it may not go onto its sibling. */
    struct cuda_tree tree = tess__cuda_tree(op->kernel, r.n.weights,
                                            plan == NULL && r.n.chunk == d->leaf_rows, dw, r.tree);
    for (int64_t row = 0; row < d->rows; row += d->leaf_rows) {
        float beta;
        float *sum = tess__cuda_tree_leaf(&tree, &beta);
        const struct cudnn_operands leaf = {
            .x = conv_at(x, row * r.n.x, r.word), .w = sum, .y = conv_at(dy, row * r.n.y, r.word)};
        if (plan != NULL)
            TESS_TRY(tess__cudnn_plan_run(op->kernel, plan, &leaf));
        else
            TESS_TRY(conv_weight_leaf(op, &r, leaf.x, leaf.y, beta, sum));
        tess__cuda_tree_push(&tree);
    }
    tess__cuda_tree_finish(&tree);
    if (dbias != NULL)
        CUDA_TRY(tess__cuda_column_sum(tess__cuda_stream(op->kernel), d->dtype,
                                       d->rows / d->leaf_rows, d->leaf_rows * r.n.places, d->out,
                                       dy, false, dbias, r.columns));
    return TESS_OK;
}
