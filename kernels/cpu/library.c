/*
 * Products by oneDNN's primitives, over all rows where that gives a leaf's bits, else leaf by leaf;
 * weight gradients leaf by leaf, folded by the tree over leaves.
 *
 * Weights of linear layers are used where they lie: they change every step and are used once in
 * each direction, packing 1024 x 1024 costs a third of a product over 64 rows, and packed copies
 * would double the memory of every parameter, which strategies that shard parameters are there to
 * save. Those of convolutions, whose images are channels last, are reordered into oneDNN's
 * preferred layout at every call. That costs one pass over the weights, which are small beside the
 * images (microseconds against milliseconds), and keeps no second copy of them between calls; their
 * gradients are folded in that layout and reordered once.
 */
#include "cpu/prim.h"

#include "ref/fold.h"
#include "tessera/check.h"

#include <stdlib.h>

struct cpu_sizes tess__cpu_sizes(const struct tess_op_desc *d)
{
    struct cpu_sizes n = {.x = d->in, .y = d->out, .w = d->in * d->out};
    if (d->kind == TESS_OP_CONV2D) {
        n.x *= d->height * d->width;
        n.y *= tess_op_output_size(d->height, d->window, d->stride, d->padding) *
               tess_op_output_size(d->width, d->window, d->stride, d->padding);
        n.w *= (int64_t)d->window * d->window;
    }
    return n;
}

/* One direction: the primitive over all rows, or one leaf's. */
struct library_pass {
    struct cpu_prim prim;
    struct cpu_prim reorder; /* convolution: weights between our layout and the primitive's */
    size_t weight_bytes;     /* of the weights in the primitive's layout; 0 where it is ours */
    bool by_leaf;
};

struct library {
    struct library_pass pass[3]; /* by enum cpu_what; the weight gradient's is by leaf */
    void *zero;                  /* [out] of desc.dtype: the bias when there is none */
};

static enum tess_status library_desc(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                     enum cpu_what what, int64_t rows,
                                     dnnl_primitive_desc_t *desc_out)
{
    return desc->kind == TESS_OP_LINEAR
               ? tess__cpu_matmul_desc(engine, desc, what, rows, false, desc_out)
               : tess__cpu_conv_desc(engine, desc, what, rows, desc_out);
}

/* Which argument of a convolution is the weights. */
static int library_weight_arg(enum cpu_what what)
{
    return what == CPU_BACKWARD_WEIGHT ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS;
}

static size_t library_weight_bytes(const struct tess_op_desc *desc, enum cpu_what what,
                                   const_dnnl_primitive_desc_t prim)
{
    return desc->kind == TESS_OP_LINEAR
               ? 0
               : tess__cpu_round_up(tess__cpu_desc_bytes(prim, library_weight_arg(what)));
}

/* Elements of the weight gradient in the primitive's layout. */
static int64_t library_weights(const struct tess_op_desc *desc, size_t weight_bytes)
{
    return weight_bytes > 0 ? (int64_t)(weight_bytes / sizeof(float)) : desc->in * desc->out;
}

/* Scratch of a primitive over `rows`: its weights in its layout, its scratchpad, the tree. */
static enum tess_status library_ask(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                    enum cpu_what what, int64_t rows, size_t *bytes)
{
    dnnl_primitive_desc_t prim;
    TESS_TRY(library_desc(engine, desc, what, rows, &prim));
    size_t weight = library_weight_bytes(desc, what, prim);
    size_t all = weight + tess__cpu_round_up(tess__cpu_desc_scratch(prim));
    dnnl_primitive_desc_destroy(prim);
    int64_t weights = library_weights(desc, weight);
    if (what == CPU_BACKWARD_WEIGHT)
        all += tess__fold_bytes(weights, desc->rows / desc->leaf_rows) +
               (desc->add_grad ? (size_t)weights * sizeof(float) : 0);
    *bytes = tess__cpu_max(*bytes, all);
    return TESS_OK;
}

enum tess_status tess__cpu_library_needs(const struct tess_op_desc *desc, const bool used[3],
                                         size_t *bytes)
{
    dnnl_engine_t engine;
    TESS_TRY(tess__cpu_check(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine create"));
    enum tess_status status = TESS_OK;
    for (int what = 0; what < 3 && status == TESS_OK; what++) {
        if (used[what])
            status = library_ask(engine, desc, (enum cpu_what)what, desc->leaf_rows, bytes);
        if (used[what] && what != CPU_BACKWARD_WEIGHT && status == TESS_OK)
            status = library_ask(engine, desc, (enum cpu_what)what, desc->rows, bytes);
    }
    dnnl_engine_destroy(engine);
    return status;
}

/* Open the primitive and the reorder of its weights. */
static enum tess_status library_pass_open(struct tess_op *op, enum cpu_what what, int64_t rows,
                                          struct library_pass *pass)
{
    struct cpu_state *state = tess__cpu_state(op);
    bool linear = op->desc.kind == TESS_OP_LINEAR;
    dnnl_primitive_desc_t prim;
    TESS_TRY(library_desc(state->engine, &op->desc, what, rows, &prim));
    pass->weight_bytes = library_weight_bytes(&op->desc, what, prim);
    enum tess_status status =
        linear ? TESS_OK
               : tess__cpu_reorder_open(&pass->reorder, state, &op->desc, prim,
                                        library_weight_arg(what), what == CPU_BACKWARD_WEIGHT);
    if (status != TESS_OK) {
        dnnl_primitive_desc_destroy(prim);
        return status;
    }
    return tess__cpu_prim_open(&pass->prim, state, prim,
                               linear ? tess__cpu_matmul_arg[what] : tess__cpu_conv_arg[what],
                               tess__cpu_arg_count[what]);
}

static void library_pass_close(struct library_pass *pass)
{
    tess__cpu_prim_close(&pass->prim);
    tess__cpu_prim_close(&pass->reorder);
}

/* Do the rows of `full` depend on their number? Compared with `leaf`; weights of one size only. */
static enum tess_status library_alike(struct tess_op *op, enum cpu_what what,
                                      struct library_pass *full, struct library_pass *leaf,
                                      bool *alike_out)
{
    const struct tess_op_desc *desc = &op->desc;
    struct cpu_sizes n = tess__cpu_sizes(desc);
    size_t element = tess_dtype_bytes(desc->dtype);
    size_t x = (size_t)n.x * element, y = (size_t)n.y * element;
    *alike_out = false;
    if (full->weight_bytes != leaf->weight_bytes)
        return TESS_OK;
    struct cpu_rows_test test = {.full = &full->prim,
                                 .leaf = &leaf->prim,
                                 .op = op,
                                 .what = what,
                                 .in_bytes = what == CPU_FORWARD ? x : y,
                                 .out_bytes = what == CPU_FORWARD ? y : x,
                                 .weight_bytes = full->weight_bytes > 0 ? full->weight_bytes
                                                                        : (size_t)n.w * element,
                                 .bias_bytes = (size_t)desc->out * element,
                                 .scratch = op->scratch};
    return tess__cpu_rows_alike(&test, alike_out);
}

/*
 * From this many multiplications on (about 0.1 ms) a leaf of a convolution is run by itself,
 * untested: a call costs a microsecond, while testing would cost a whole pass of a large network at
 * start-up.
 */
#define LIBRARY_LEAF_WORK 1.6e7

static bool library_is_work(const struct tess_op_desc *desc)
{
    double outputs = (double)tess__cpu_sizes(desc).y;
    double window = (double)desc->in * desc->window * desc->window;
    return desc->kind == TESS_OP_CONV2D &&
           (double)desc->leaf_rows * outputs * window >= LIBRARY_LEAF_WORK;
}

/* Forward or backward_data: over all rows if that gives a leaf's bits, else by leaf. */
static enum tess_status library_rows_open(struct tess_op *op, enum cpu_what what,
                                          struct library_pass *pass)
{
    const struct tess_op_desc *desc = &op->desc;
    if (what == CPU_BACKWARD_WEIGHT || library_is_work(desc)) {
        pass->by_leaf = true;
        return library_pass_open(op, what, desc->leaf_rows, pass);
    }
    TESS_TRY(library_pass_open(op, what, desc->rows, pass));
    if (desc->rows == desc->leaf_rows)
        return TESS_OK;
    struct library_pass leaf = {.by_leaf = true};
    bool alike = false;
    enum tess_status status;
    TESS_TRY_GOTO(status, leaf_close, library_pass_open(op, what, desc->leaf_rows, &leaf));
    TESS_TRY_GOTO(status, leaf_close, library_alike(op, what, pass, &leaf, &alike));
    if (!alike) {
        struct library_pass full = *pass;
        *pass = leaf;
        leaf = full;
    }
leaf_close:
    library_pass_close(&leaf);
    return status;
}

enum tess_status tess__cpu_library_open(struct tess_op *op, const bool used[3])
{
    const struct tess_op_desc *desc = &op->desc;
    struct library *library = calloc(1, sizeof(*library));
    op->data = library;
    if (library == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the products of a layer");
    library->zero = calloc((size_t)desc->out, tess_dtype_bytes(desc->dtype));
    if (library->zero == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a bias of %lld elements", (long long)desc->out);
    for (int what = 0; what < 3; what++)
        if (used[what])
            TESS_TRY(library_rows_open(op, (enum cpu_what)what, &library->pass[what]));
    return TESS_OK;
}

void tess__cpu_library_close(struct tess_op *op)
{
    struct library *library = op->data;
    if (library == NULL)
        return;
    for (int what = 0; what < 3; what++)
        library_pass_close(&library->pass[what]);
    free(library->zero);
    free(library);
    op->data = NULL;
}

enum tess_status tess__cpu_library_run(struct tess_op *op, enum cpu_what what, const void *w,
                                       const void *in, void *out, const void *bias)
{
    const struct tess_op_desc *desc = &op->desc;
    struct library *library = op->data;
    struct library_pass *pass = &library->pass[what];
    struct cpu_sizes n = tess__cpu_sizes(desc);
    size_t element = tess_dtype_bytes(desc->dtype);
    size_t in_row = (size_t)(what == CPU_FORWARD ? n.x : n.y) * element;
    size_t out_row = (size_t)(what == CPU_FORWARD ? n.y : n.x) * element;
    char *scratch = (char *)op->scratch + pass->weight_bytes;
    const void *reorder[2] = {w, op->scratch};
    const bool ours = pass->weight_bytes == 0;
    if (!ours)
        TESS_TRY(tess__cpu_prim_run(&pass->reorder, op, scratch, reorder));
    int64_t rows = pass->by_leaf ? desc->leaf_rows : desc->rows;
    for (int64_t row = 0; row < desc->rows; row += rows) {
        const void *data[4] = {(const char *)in + (size_t)row * in_row, ours ? w : op->scratch,
                               (char *)out + (size_t)row * out_row,
                               bias != NULL ? bias : library->zero};
        TESS_TRY(tess__cpu_prim_run(&pass->prim, op, scratch, data));
    }
    return TESS_OK;
}

enum tess_status tess__cpu_library_weight(struct tess_op *op, const void *x, const void *dy,
                                          float *dw)
{
    const struct tess_op_desc *desc = &op->desc;
    struct library *library = op->data;
    struct library_pass *pass = &library->pass[CPU_BACKWARD_WEIGHT];
    struct cpu_sizes n = tess__cpu_sizes(desc);
    size_t leaf_bytes = (size_t)desc->leaf_rows * tess_dtype_bytes(desc->dtype);
    int64_t leaves = desc->rows / desc->leaf_rows;
    int64_t count = library_weights(desc, pass->weight_bytes);
    char *scratch = (char *)op->scratch + pass->weight_bytes;
    char *levels = scratch + tess__cpu_round_up(pass->prim.scratch_bytes);
    float *sum = pass->weight_bytes > 0 ? op->scratch : dw;
    if (desc->add_grad)
        sum = (float *)(void *)(levels + tess__fold_bytes(count, leaves));
    struct tess_fold fold;
    tess__fold_init(&fold, count, sum, levels);
    for (int64_t g = 0; g < leaves; g++) {
        const void *data[3] = {(const char *)x + (size_t)(g * n.x) * leaf_bytes,
                               (const char *)dy + (size_t)(g * n.y) * leaf_bytes,
                               tess__fold_leaf(&fold)};
        TESS_TRY(tess__cpu_prim_run(&pass->prim, op, scratch, data));
        tess__fold_push(&fold);
    }
    tess__fold_finish(&fold);
    if (desc->add_grad)
        tess__cpu_loops(op->kernel)->plain_add(count, sum, dw);
    const void *reorder[2] = {sum, dw};
    return pass->weight_bytes > 0 ? tess__cpu_prim_run(&pass->reorder, op, scratch, reorder)
                                  : TESS_OK;
}
