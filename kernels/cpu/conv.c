/*
 * Convolutions: oneDNN's, with images channels last and weights reordered into its preferred layout
 * at every call. That costs one pass over the weights, which are small beside the images
 * (microseconds against milliseconds), and keeps no second copy of them between calls.
 *
 * Weight gradients are folded by the tree over leaves. A leaf's comes from the own kernel
 * (conv_grad.c) where that supports the geometry, else from oneDNN, in whose layout the tree is
 * then folded and reordered once.
 */
#include "cpu/prim.h"

#include "ref/fold.h"
#include "tessera/check.h"

#include <stdlib.h>

/* One direction: the primitive over all rows, or one leaf's where rows are not alike. */
struct conv_pass {
    struct cpu_prim prim;
    struct cpu_prim reorder; /* weights between our layout and the primitive's */
    size_t weight_bytes;     /* of the weights in the primitive's layout */
    bool by_leaf;
};

struct cpu_conv {
    struct conv_pass pass[3]; /* by enum cpu_what; the weight gradient's is by leaf or not open */
    void *zero;               /* [out] of desc.dtype: the bias when there is none */
};

/* Which argument of a primitive is the weights. */
static int conv_weight_arg(enum cpu_what what)
{
    return what == CPU_BACKWARD_WEIGHT ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS;
}

/* Scratch of a primitive over `rows`: its weights in its layout, then its own scratchpad. */
static enum tess_status conv_ask(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                 enum cpu_what what, int64_t rows, size_t *bytes)
{
    dnnl_primitive_desc_t conv;
    TESS_TRY(tess__cpu_conv_desc(engine, desc, what, rows, &conv));
    size_t weight = tess__cpu_round_up(tess__cpu_desc_bytes(conv, conv_weight_arg(what)));
    size_t all = weight + tess__cpu_round_up(tess__cpu_desc_scratch(conv));
    if (what == CPU_BACKWARD_WEIGHT)
        all += tess__fold_bytes((int64_t)(weight / sizeof(float)), desc->rows / desc->leaf_rows);
    dnnl_primitive_desc_destroy(conv);
    *bytes = tess__cpu_max(*bytes, all);
    return TESS_OK;
}

/* Elements of the weights in our layout. */
static int64_t conv_weights(const struct tess_op_desc *desc)
{
    return desc->out * desc->window * desc->window * desc->in;
}

static enum tess_status conv_needs_of(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                      size_t *bytes)
{
    TESS_TRY(conv_ask(engine, desc, CPU_FORWARD, desc->rows, bytes));
    TESS_TRY(conv_ask(engine, desc, CPU_FORWARD, desc->leaf_rows, bytes));
    if (desc->input_grad) {
        TESS_TRY(conv_ask(engine, desc, CPU_BACKWARD_DATA, desc->rows, bytes));
        TESS_TRY(conv_ask(engine, desc, CPU_BACKWARD_DATA, desc->leaf_rows, bytes));
    }
    if (!tess__cpu_conv_grad_takes(desc))
        return conv_ask(engine, desc, CPU_BACKWARD_WEIGHT, desc->leaf_rows, bytes);
    *bytes = tess__cpu_max(*bytes,
                           tess__cpu_conv_grad_scratch(desc) +
                               tess__fold_bytes(conv_weights(desc), desc->rows / desc->leaf_rows));
    return TESS_OK;
}

static enum tess_status conv_needs(const struct tess_op_desc *desc, size_t *bytes_out)
{
    size_t bytes = tess__cpu_bias_scratch(desc->out, desc->rows / desc->leaf_rows);
    dnnl_engine_t engine;
    TESS_TRY(tess__cpu_check(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine create"));
    enum tess_status status = conv_needs_of(engine, desc, &bytes);
    dnnl_engine_destroy(engine);
    TESS_TRY(status);
    *bytes_out = bytes;
    return TESS_OK;
}

/* Open the primitive and the reorder of its weights. */
static enum tess_status conv_pass_open(struct tess_op *op, enum cpu_what what, int64_t rows,
                                       struct conv_pass *pass)
{
    struct cpu_state *state = tess__cpu_state(op);
    int weight_arg = conv_weight_arg(what);
    dnnl_primitive_desc_t conv;
    TESS_TRY(tess__cpu_conv_desc(state->engine, &op->desc, what, rows, &conv));
    pass->weight_bytes = tess__cpu_round_up(tess__cpu_desc_bytes(conv, weight_arg));
    enum tess_status status = tess__cpu_reorder_open(&pass->reorder, state, &op->desc, conv,
                                                     weight_arg, what == CPU_BACKWARD_WEIGHT);
    if (status != TESS_OK) {
        dnnl_primitive_desc_destroy(conv);
        return status;
    }
    return tess__cpu_prim_open(&pass->prim, state, conv, tess__cpu_conv_arg[what],
                               tess__cpu_arg_count[what]);
}

static void conv_pass_close(struct conv_pass *pass)
{
    tess__cpu_prim_close(&pass->prim);
    tess__cpu_prim_close(&pass->reorder);
}

static size_t conv_output_row(const struct tess_op_desc *desc)
{
    return (size_t)tess_op_output_size(desc->height, desc->window, desc->stride, desc->padding) *
           (size_t)tess_op_output_size(desc->width, desc->window, desc->stride, desc->padding) *
           (size_t)desc->out * tess_dtype_bytes(desc->dtype);
}

static size_t conv_input_row(const struct tess_op_desc *desc)
{
    return (size_t)(desc->height * desc->width * desc->in) * tess_dtype_bytes(desc->dtype);
}

/* Do the rows of `full` depend on their number? Compared with `leaf`; weights of one size only. */
static enum tess_status conv_alike(struct tess_op *op, enum cpu_what what, struct conv_pass *full,
                                   struct conv_pass *leaf, bool *alike_out)
{
    const struct tess_op_desc *desc = &op->desc;
    bool forward = what == CPU_FORWARD;
    *alike_out = false;
    if (full->weight_bytes != leaf->weight_bytes)
        return TESS_OK;
    size_t x = conv_input_row(desc), y = conv_output_row(desc);
    struct cpu_rows_test test = {.full = &full->prim,
                                 .leaf = &leaf->prim,
                                 .op = op,
                                 .what = what,
                                 .in_bytes = forward ? x : y,
                                 .out_bytes = forward ? y : x,
                                 .weight_bytes = full->weight_bytes,
                                 .bias_bytes = (size_t)desc->out * tess_dtype_bytes(desc->dtype),
                                 .scratch = op->scratch};
    return tess__cpu_rows_alike(&test, alike_out);
}

/*
 * From this many multiplications on (about 0.1 ms) a leaf is run by itself, untested: a call costs
 * a microsecond, while testing would cost a whole pass of a large network at start-up.
 */
#define CONV_LEAF_WORK 1.6e7

static double conv_leaf_work(const struct tess_op_desc *desc)
{
    double outputs = (double)(conv_output_row(desc) / tess_dtype_bytes(desc->dtype));
    double window = (double)desc->in * desc->window * desc->window;
    return (double)desc->leaf_rows * outputs * window;
}

/* Forward or backward_data: over all rows if that gives a leaf's bits, else by leaf. */
static enum tess_status conv_rows_open(struct tess_op *op, enum cpu_what what,
                                       struct conv_pass *pass)
{
    const struct tess_op_desc *desc = &op->desc;
    if (conv_leaf_work(desc) >= CONV_LEAF_WORK) {
        pass->by_leaf = true;
        return conv_pass_open(op, what, desc->leaf_rows, pass);
    }
    TESS_TRY(conv_pass_open(op, what, desc->rows, pass));
    if (desc->rows == desc->leaf_rows)
        return TESS_OK;
    struct conv_pass leaf = {.by_leaf = true};
    bool alike = false;
    enum tess_status status;
    TESS_TRY_GOTO(status, leaf_close, conv_pass_open(op, what, desc->leaf_rows, &leaf));
    TESS_TRY_GOTO(status, leaf_close, conv_alike(op, what, pass, &leaf, &alike));
    if (!alike) {
        struct conv_pass full = *pass;
        *pass = leaf;
        leaf = full;
    }
leaf_close:
    conv_pass_close(&leaf);
    return status;
}

static enum tess_status conv_open(struct tess_op *op)
{
    const struct tess_op_desc *desc = &op->desc;
    struct cpu_conv *conv = calloc(1, sizeof(*conv));
    op->data = conv;
    if (conv == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a convolution");
    conv->zero = calloc((size_t)desc->out, tess_dtype_bytes(desc->dtype));
    if (conv->zero == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a bias of %lld elements", (long long)desc->out);
    TESS_TRY(conv_rows_open(op, CPU_FORWARD, &conv->pass[CPU_FORWARD]));
    if (desc->input_grad)
        TESS_TRY(conv_rows_open(op, CPU_BACKWARD_DATA, &conv->pass[CPU_BACKWARD_DATA]));
    if (tess__cpu_conv_grad_takes(desc))
        return TESS_OK;
    struct conv_pass *weight = &conv->pass[CPU_BACKWARD_WEIGHT];
    weight->by_leaf = true;
    return conv_pass_open(op, CPU_BACKWARD_WEIGHT, desc->leaf_rows, weight);
}

static void conv_close(struct tess_op *op)
{
    struct cpu_conv *conv = op->data;
    if (conv == NULL)
        return;
    for (int what = 0; what < 3; what++)
        conv_pass_close(&conv->pass[what]);
    free(conv->zero);
    free(conv);
    op->data = NULL;
}

/* in and out have in_row and out_row bytes per row. */
static enum tess_status conv_run(struct tess_op *op, struct conv_pass *pass, const void *w,
                                 const char *in, size_t in_row, char *out, size_t out_row,
                                 const void *bias)
{
    const struct tess_op_desc *desc = &op->desc;
    char *weights = op->scratch, *scratch = weights + pass->weight_bytes;
    const void *reorder[2] = {w, weights};
    TESS_TRY(tess__cpu_prim_run(&pass->reorder, op, scratch, reorder));
    int64_t rows = pass->by_leaf ? desc->leaf_rows : desc->rows;
    for (int64_t row = 0; row < desc->rows; row += rows) {
        const void *data[4] = {in + (size_t)row * in_row, weights, out + (size_t)row * out_row,
                               bias};
        TESS_TRY(tess__cpu_prim_run(&pass->prim, op, scratch, data));
    }
    return TESS_OK;
}

static enum tess_status conv_forward(struct tess_op *op, const void *x, const void *w,
                                     const void *bias, void *y)
{
    struct cpu_conv *conv = op->data;
    return conv_run(op, &conv->pass[CPU_FORWARD], w, x, conv_input_row(&op->desc), y,
                    conv_output_row(&op->desc), bias != NULL ? bias : conv->zero);
}

static enum tess_status conv_backward_data(struct tess_op *op, const void *dy, const void *w,
                                           void *dx)
{
    struct cpu_conv *conv = op->data;
    return conv_run(op, &conv->pass[CPU_BACKWARD_DATA], w, dy, conv_output_row(&op->desc), dx,
                    conv_input_row(&op->desc), NULL);
}

static void conv_weight_own(struct tess_op *op, const void *x, const void *dy, float *dw)
{
    const struct tess_op_desc *desc = &op->desc;
    size_t x_leaf = (size_t)desc->leaf_rows * conv_input_row(desc);
    size_t dy_leaf = (size_t)desc->leaf_rows * conv_output_row(desc);
    struct tess_fold fold;
    tess__fold_init(&fold, conv_weights(desc), dw,
                    (char *)op->scratch + tess__cpu_conv_grad_scratch(desc));
    for (int64_t g = 0; g < desc->rows / desc->leaf_rows; g++) {
        tess__cpu_conv_grad(desc, (const char *)x + (size_t)g * x_leaf,
                            (const char *)dy + (size_t)g * dy_leaf, tess__fold_leaf(&fold),
                            op->scratch);
        tess__fold_push(&fold);
    }
    tess__fold_finish(&fold);
}

static enum tess_status conv_weight_theirs(struct tess_op *op, const void *x, const void *dy,
                                           float *dw)
{
    struct cpu_conv *conv = op->data;
    struct conv_pass *pass = &conv->pass[CPU_BACKWARD_WEIGHT];
    const struct tess_op_desc *desc = &op->desc;
    int64_t leaves = desc->rows / desc->leaf_rows;
    size_t x_leaf = (size_t)desc->leaf_rows * conv_input_row(desc);
    size_t dy_leaf = (size_t)desc->leaf_rows * conv_output_row(desc);
    char *theirs = op->scratch, *scratch = theirs + pass->weight_bytes;
    int64_t count = (int64_t)(pass->weight_bytes / sizeof(float));
    struct tess_fold fold;
    tess__fold_init(&fold, count, op->scratch,
                    scratch + tess__cpu_round_up(pass->prim.scratch_bytes));
    for (int64_t g = 0; g < leaves; g++) {
        const void *data[3] = {(const char *)x + (size_t)g * x_leaf,
                               (const char *)dy + (size_t)g * dy_leaf, tess__fold_leaf(&fold)};
        TESS_TRY(tess__cpu_prim_run(&pass->prim, op, scratch, data));
        tess__fold_push(&fold);
    }
    tess__fold_finish(&fold);
    const void *reorder[2] = {theirs, dw};
    return tess__cpu_prim_run(&pass->reorder, op, scratch, reorder);
}

static enum tess_status conv_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                             float *dw, float *dbias)
{
    const struct tess_op_desc *desc = &op->desc;
    int64_t leaves = desc->rows / desc->leaf_rows;
    if (tess__cpu_conv_grad_takes(desc))
        conv_weight_own(op, x, dy, dw);
    else
        TESS_TRY(conv_weight_theirs(op, x, dy, dw));
    if (dbias != NULL) {
        int64_t pixels =
            (int64_t)(conv_output_row(desc) / tess_dtype_bytes(desc->dtype)) / desc->out;
        tess__cpu_bias_grad(tess__cpu_loops(op->kernel), desc->dtype, leaves,
                            desc->leaf_rows * pixels, desc->out, false, dy, dbias, op->scratch);
    }
    return TESS_OK;
}

const struct cpu_product tess__cpu_conv = {
    .needs = conv_needs,
    .open = conv_open,
    .close = conv_close,
    .forward = conv_forward,
    .backward_data = conv_backward_data,
    .backward_weight = conv_backward_weight,
};
