/*
 * Linear layers: which kernel runs each of the three products, and the loop over leaves where rows
 * must be run leaf by leaf. What changes bits depends on dtype, in, out and leaf_rows only, never
 * on the number of rows.
 *
 *   forward           own kernel (forward.c); without AVX-512 oneDNN's matmul, own loops when small
 *   backward_data     own loops when small, own kernel (data.c); without AVX-512 oneDNN's matmul
 *   backward_weight   own kernel (grad.c); without AVX-512 one matmul per leaf, folded
 *
 * Weights are not packed for oneDNN: they change every step and are used once in each direction,
 * packing 1024 x 1024 costs a third of a product over 64 rows, and packed copies would double the
 * memory of every parameter, which strategies that shard parameters are there to save.
 */
#include "cpu/prim.h"

#include "ref/fold.h"
#include "tessera/check.h"

#include <stdlib.h>

/*
 * Up to this many weights own loops beat oneDNN's cost per call, about a microsecond with the
 * choice of its inner kernels; an 8 x 8 layer takes a tenth of that.
 */
#define LINEAR_SMALL 1024

struct cpu_linear {
    struct cpu_prim forward, forward_leaf; /* the leaf's is open where rows are not alike */
    struct cpu_prim backward, backward_leaf;
    struct cpu_prim weight; /* without grad.c: one leaf */
    void *zero;             /* [out] of desc.dtype: the bias when there is none */
};

static bool linear_is_small(const struct tess_op_desc *desc)
{
    return desc->in * desc->out <= LINEAR_SMALL;
}

static size_t linear_small_scratch(const struct tess_op_desc *desc)
{
    /* Weights, one row in, one row out, a bias. */
    return (size_t)(desc->in * desc->out + desc->in + 2 * desc->out) * sizeof(float);
}

/* Scratch of the own kernels, for each thread. */
static size_t linear_own_scratch(const struct tess_op_desc *desc)
{
    size_t bytes = tess__cpu_max(tess__cpu_grad_scratch(desc), tess__cpu_forward_scratch(desc));
    return tess__cpu_max(bytes, tess__cpu_data_scratch(desc));
}

/* Scratch of one matmul. */
static enum tess_status linear_matmul_scratch(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                              enum cpu_what what, int64_t rows, size_t *bytes)
{
    dnnl_primitive_desc_t matmul;
    TESS_TRY(tess__cpu_matmul_desc(engine, desc, what, rows, false, &matmul));
    *bytes = tess__cpu_max(*bytes, tess__cpu_round_up(tess__cpu_desc_scratch(matmul)));
    dnnl_primitive_desc_destroy(matmul);
    return TESS_OK;
}

static enum tess_status linear_needs_of(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                        size_t *bytes)
{
    int64_t leaves = desc->rows / desc->leaf_rows;
    bool own = tess__cpu_own_available(desc->dtype);
    if (!linear_is_small(desc) && !own) {
        TESS_TRY(linear_matmul_scratch(engine, desc, CPU_FORWARD, desc->rows, bytes));
        TESS_TRY(linear_matmul_scratch(engine, desc, CPU_FORWARD, desc->leaf_rows, bytes));
    }
    if (!linear_is_small(desc) && !own && desc->input_grad) {
        TESS_TRY(linear_matmul_scratch(engine, desc, CPU_BACKWARD_DATA, desc->rows, bytes));
        TESS_TRY(linear_matmul_scratch(engine, desc, CPU_BACKWARD_DATA, desc->leaf_rows, bytes));
    }
    if (!own) {
        size_t weight = 0;
        TESS_TRY(
            linear_matmul_scratch(engine, desc, CPU_BACKWARD_WEIGHT, desc->leaf_rows, &weight));
        weight += tess__fold_bytes(desc->in * desc->out, leaves);
        if (desc->add_grad)
            weight += (size_t)(desc->in * desc->out) * sizeof(float);
        *bytes = tess__cpu_max(*bytes, weight);
    }
    return TESS_OK;
}

static enum tess_status linear_needs(const struct tess_op_desc *desc, size_t *bytes_out)
{
    int64_t leaves = desc->rows / desc->leaf_rows;
    size_t bytes = tess__cpu_bias_scratch(desc->out, leaves);
    if (linear_is_small(desc))
        bytes = tess__cpu_max(bytes, linear_small_scratch(desc));
    if (tess__cpu_own_available(desc->dtype))
        bytes = tess__cpu_max(bytes, linear_own_scratch(desc));
    dnnl_engine_t engine;
    TESS_TRY(tess__cpu_check(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine create"));
    enum tess_status status = linear_needs_of(engine, desc, &bytes);
    dnnl_engine_destroy(engine);
    TESS_TRY(status);
    *bytes_out = bytes;
    return TESS_OK;
}

static enum tess_status linear_prim_open(struct tess_op *op, enum cpu_what what, int64_t rows,
                                         struct cpu_prim *prim)
{
    struct cpu_state *state = tess__cpu_state(op);
    dnnl_primitive_desc_t matmul;
    TESS_TRY(tess__cpu_matmul_desc(state->engine, &op->desc, what, rows, false, &matmul));
    return tess__cpu_prim_open(prim, state, matmul, tess__cpu_matmul_arg[what],
                               tess__cpu_arg_count[what]);
}

/* Open the primitive over all rows, and keep the leaf's beside it only where the rows are not
 * alike. */
static enum tess_status linear_pair_open(struct tess_op *op, enum cpu_what what,
                                         struct cpu_prim *full, struct cpu_prim *leaf)
{
    const struct tess_op_desc *desc = &op->desc;
    TESS_TRY(linear_prim_open(op, what, desc->rows, full));
    if (desc->rows == desc->leaf_rows)
        return TESS_OK;
    TESS_TRY(linear_prim_open(op, what, desc->leaf_rows, leaf));
    size_t element = tess_dtype_bytes(desc->dtype);
    size_t in = (size_t)desc->in * element, out = (size_t)desc->out * element;
    struct cpu_rows_test test = {.full = full,
                                 .leaf = leaf,
                                 .op = op,
                                 .what = what,
                                 .in_bytes = what == CPU_FORWARD ? in : out,
                                 .out_bytes = what == CPU_FORWARD ? out : in,
                                 .weight_bytes = in * (size_t)desc->out,
                                 .bias_bytes = out,
                                 .scratch = op->scratch};
    bool alike;
    TESS_TRY(tess__cpu_rows_alike(&test, &alike));
    if (alike)
        tess__cpu_prim_close(leaf);
    return TESS_OK;
}

static enum tess_status linear_open(struct tess_op *op)
{
    const struct tess_op_desc *desc = &op->desc;
    struct cpu_linear *linear = calloc(1, sizeof(*linear));
    op->data = linear;
    if (linear == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a linear operation");
    linear->zero = calloc((size_t)desc->out, tess_dtype_bytes(desc->dtype));
    if (linear->zero == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a bias of %lld elements", (long long)desc->out);
    bool own = tess__cpu_own_available(desc->dtype), small = linear_is_small(desc);
    if (!small && !own)
        TESS_TRY(linear_pair_open(op, CPU_FORWARD, &linear->forward, &linear->forward_leaf));
    if (!small && !own && desc->input_grad)
        TESS_TRY(
            linear_pair_open(op, CPU_BACKWARD_DATA, &linear->backward, &linear->backward_leaf));
    if (!own)
        TESS_TRY(linear_prim_open(op, CPU_BACKWARD_WEIGHT, desc->leaf_rows, &linear->weight));
    return tess__cpu_share_reserve(op->kernel, own ? linear_own_scratch(desc) : 0);
}

static void linear_close(struct tess_op *op)
{
    struct cpu_linear *linear = op->data;
    if (linear == NULL)
        return;
    tess__cpu_prim_close(&linear->forward);
    tess__cpu_prim_close(&linear->forward_leaf);
    tess__cpu_prim_close(&linear->backward);
    tess__cpu_prim_close(&linear->backward_leaf);
    tess__cpu_prim_close(&linear->weight);
    free(linear->zero);
    free(linear);
    op->data = NULL;
}

/* Run `full`, or `leaf` over every leaf where it is open. data: in, weights, out, bias. */
static enum tess_status linear_run(struct tess_op *op, struct cpu_prim *full, struct cpu_prim *leaf,
                                   int64_t in_row, int64_t out_row, const void *data[4])
{
    if (leaf->primitive == NULL)
        return tess__cpu_prim_run(full, op, op->scratch, data);
    const struct tess_op_desc *desc = &op->desc;
    size_t bytes = tess_dtype_bytes(desc->dtype) * (size_t)desc->leaf_rows;
    const char *in = data[0], *out = data[2];
    for (int64_t g = 0; g < desc->rows / desc->leaf_rows; g++) {
        data[0] = in + (size_t)(g * in_row) * bytes;
        data[2] = out + (size_t)(g * out_row) * bytes;
        TESS_TRY(tess__cpu_prim_run(leaf, op, op->scratch, data));
    }
    return TESS_OK;
}

static enum tess_status linear_forward(struct tess_op *op, const void *x, const void *w,
                                       const void *bias, void *y)
{
    struct cpu_linear *linear = op->data;
    const struct tess_op_desc *desc = &op->desc;
    if (tess__cpu_own_available(desc->dtype)) {
        tess__cpu_forward(op->kernel, desc, x, w, bias, y, op->scratch);
        return TESS_OK;
    }
    if (linear_is_small(desc)) {
        tess__cpu_loops(op->kernel)->small_forward(desc, x, w, bias, y, op->scratch);
        return TESS_OK;
    }
    const void *data[4] = {x, w, y, bias != NULL ? bias : linear->zero};
    return linear_run(op, &linear->forward, &linear->forward_leaf, desc->in, desc->out, data);
}

static enum tess_status linear_backward_data(struct tess_op *op, const void *dy, const void *w,
                                             void *dx)
{
    struct cpu_linear *linear = op->data;
    const struct tess_op_desc *desc = &op->desc;
    if (linear_is_small(desc)) {
        tess__cpu_loops(op->kernel)->small_backward_data(desc, dy, w, dx, op->scratch);
        return TESS_OK;
    }
    if (tess__cpu_own_available(desc->dtype)) {
        tess__cpu_data(op->kernel, desc, dy, w, dx, op->scratch);
        return TESS_OK;
    }
    const void *data[4] = {dy, w, dx};
    return linear_run(op, &linear->backward, &linear->backward_leaf, desc->out, desc->in, data);
}

/* One product per leaf, folded by the tree: for processors without grad.c's instructions. */
static enum tess_status linear_weight_by_leaf(struct tess_op *op, const void *x, const void *dy,
                                              float *dw)
{
    struct cpu_linear *linear = op->data;
    const struct tess_op_desc *desc = &op->desc;
    size_t bytes = tess_dtype_bytes(desc->dtype) * (size_t)desc->leaf_rows;
    int64_t count = desc->in * desc->out;
    struct tess_fold fold;
    char *scratch = op->scratch;
    scratch += tess__cpu_round_up(linear->weight.scratch_bytes);
    float *sum = dw;
    if (desc->add_grad)
        sum = (float *)(void *)(scratch + tess__fold_bytes(count, desc->rows / desc->leaf_rows));
    tess__fold_init(&fold, count, sum, scratch);
    for (int64_t g = 0; g < desc->rows / desc->leaf_rows; g++) {
        const void *data[3] = {(const char *)dy + (size_t)(g * desc->out) * bytes,
                               (const char *)x + (size_t)(g * desc->in) * bytes,
                               tess__fold_leaf(&fold)};
        TESS_TRY(tess__cpu_prim_run(&linear->weight, op, op->scratch, data));
        tess__fold_push(&fold);
    }
    tess__fold_finish(&fold);
    if (desc->add_grad)
        tess__cpu_loops(op->kernel)->plain_add(count, sum, dw);
    return TESS_OK;
}

static enum tess_status linear_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                               float *dw, float *dbias)
{
    const struct tess_op_desc *desc = &op->desc;
    if (tess__cpu_own_available(desc->dtype))
        tess__cpu_grad(op->kernel, desc, x, dy, dw, op->scratch);
    else
        TESS_TRY(linear_weight_by_leaf(op, x, dy, dw));
    if (dbias != NULL)
        tess__cpu_bias_grad(tess__cpu_loops(op->kernel), desc->dtype, desc->rows / desc->leaf_rows,
                            desc->leaf_rows, desc->out, desc->add_grad, dy, dbias, op->scratch);
    return TESS_OK;
}

const struct cpu_product tess__cpu_linear = {
    .needs = linear_needs,
    .open = linear_open,
    .close = linear_close,
    .forward = linear_forward,
    .backward_data = linear_backward_data,
    .backward_weight = linear_backward_weight,
};
