/*
 * Weight and bias gradients of linear layers: one product per leaf, dw[out, in] = dy^T x, added
 * over the leaves by the tree of matmul_tree.h. Where cuBLASLt can with the same algorithm, the
 * product sums dy's rows on the way.
 */
#include "cuda/products/linear_data.h"

#include "cuda/products/matmul_tree.h"
#include "cuda/rows/columns.h"

enum tess_status tess__cuda_linear_weight_open(struct tess_op *op)
{
    const struct tess_op_desc *d = &op->desc;
    struct linear_data *data = op->data;
    const bool narrow = d->fp8 != TESS_FP8_OFF;
    struct cuda_product p = tess__cuda_product(d->in, d->out, d->leaf_rows, CUDA_R_32F);
    p.a = tess__cuda_linear_type_x(d);
    p.b = tess__cuda_linear_type_dy(d);
    p.compute = tess__cuda_linear_compute(op);
    p.fast = tess__cuda_matmul_is_fast(op->kernel, p.a);
    p.split = true; /* neither m nor n is a number of rows, and k is that of a leaf */
    /* 8-bit operands have been turned. */
    p.transpose_a = narrow;
    p.transpose_b = !narrow;
    TESS_TRY(tess__cuda_plan_get(op->kernel, &p, &data->weight));
    if (data->weight == NULL)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "cuBLASLt has no algorithm for the weight gradient of a linear layer of %lld "
                  "inputs, %lld outputs and %lld rows in %s%s",
                  (long long)d->in, (long long)d->out, (long long)d->leaf_rows,
                  tess_dtype_name(d->dtype), narrow ? " as fp8" : "");
    /* Of a layer that is cut into parts only one has the bias, and which depends on the ranks: dw
     * must not. */
    p.epilogue = CUBLASLT_EPILOGUE_BGRADB;
    p.like_plain = true;
    /* The bias's gradient is of dy as it is, not of what 8 bits leave of it. */
    return narrow ? TESS_OK : tess__cuda_plan_get(op->kernel, &p, &data->weight_and_bias);
}

/* A leaf's dx beside its dw: dy is narrowed for both at once. */
static enum tess_status weight_and_data(struct tess_op *op, const void *dy, void *dx,
                                        struct cuda_operands *weight)
{
    struct linear_data *data = op->data;
    const struct linear_room room = tess__cuda_linear_room(&op->desc, op->scratch);
    const struct cuda_operands o = {
        .a = tess__cuda_fp8_weights(&op->desc, op->packed).turned,
        .b = room.narrow_dy,
        .d = dx,
        .scale_a = tess__cuda_linear_scale(op, CUDA_FP8_W),
        .scale_b = tess__cuda_linear_scale(op, CUDA_FP8_DY),
    };
    weight->b = room.narrow_dy_turned;
    weight->scale_b = o.scale_b;
    TESS_TRY(tess__cuda_fp8_narrow_leaf(op, &data->fp8, CUDA_FP8_DY, dy, room.narrow_dy,
                                        room.narrow_dy_turned));
    return tess__cuda_plan_run(op->kernel, data->rows[LINEAR_DATA].leaf, &o);
}

static enum tess_status weight_leaf(struct tess_op *op, const void *x, const void *dy,
                                    struct cuda_operands o, void *dx)
{
    const struct linear_data *data = op->data;
    TESS_TRY(tess__cuda_linear_operand(op, CUDA_FP8_X_TURNED, x, &o.a));
    o.scale_a = tess__cuda_linear_scale(op, CUDA_FP8_X_TURNED);
    if (dx != NULL) {
        TESS_TRY(weight_and_data(op, dy, dx, &o));
    } else {
        TESS_TRY(tess__cuda_linear_operand(op, CUDA_FP8_DY_TURNED, dy, &o.b));
        o.scale_b = tess__cuda_linear_scale(op, CUDA_FP8_DY_TURNED);
    }
    return tess__cuda_plan_run(op->kernel, o.bias != NULL ? data->weight_and_bias : data->weight,
                               &o);
}

/* Where the sum over the leaves is made: in place, or beside what it will be added to. */
struct weight_target {
    float *dw, *dbias; /* dbias NULL: not by the products */
    float beta;        /* of the first product */
    char *dx;          /* fp8: made too; NULL: not */
};

static enum tess_status weight_leaves(struct tess_op *op, const void *x, const void *dy,
                                      const struct weight_target *target)
{
    const struct tess_op_desc *d = &op->desc;
    const struct linear_room room = tess__cuda_linear_room(d, op->scratch);
    const size_t word = tess_dtype_bytes(d->dtype);
    struct cuda_tree tree =
        tess__cuda_tree(op->kernel, d->out * d->in, true, target->dw, room.tree);
    struct cuda_tree bias_tree =
        tess__cuda_tree(op->kernel, d->out, false, target->dbias, room.bias_tree);
    for (int64_t row = 0; row < d->rows; row += d->leaf_rows) {
        float beta, bias_beta, *dbias = NULL;
        float *dw = tess__cuda_tree_leaf(&tree, &beta);
        if (target->dbias != NULL)
            dbias = tess__cuda_tree_leaf(&bias_tree, &bias_beta);
        if (row == 0)
            beta = target->beta;
        const struct cuda_operands o = {.d = dw, .bias = dbias, .beta = beta};
        const size_t at = (size_t)(row * d->in) * word;
        TESS_TRY(weight_leaf(op, (const char *)x + at,
                             (const char *)dy + (size_t)(row * d->out) * word, o,
                             target->dx != NULL ? target->dx + at : NULL));
        tess__cuda_tree_push(&tree);
        if (target->dbias != NULL)
            tess__cuda_tree_push(&bias_tree);
    }
    tess__cuda_tree_finish(&tree);
    if (target->dbias != NULL)
        tess__cuda_tree_finish(&bias_tree);
    return TESS_OK;
}

static enum tess_status weight_run(struct tess_op *op, const void *x, const void *dy, float *dw,
                                   float *dbias, void *dx)
{
    const struct tess_op_desc *d = &op->desc;
    struct linear_data *data = op->data;
    struct tess_kernel *kernel = op->kernel;
    const struct linear_room room = tess__cuda_linear_room(d, op->scratch);
    const int64_t leaves = d->rows / d->leaf_rows;
    const bool fused = dbias != NULL && data->weight_and_bias != NULL;
    /* One leaf's product adds to what is there by itself; a tree must be whole before. */
    const bool beside = d->add_grad && leaves > 1;
    const struct weight_target target = {
        .dw = beside ? room.sum : dw,
        .dbias = !fused        ? NULL
                 : d->add_grad ? room.bias_sum
                               : dbias,
        .beta = d->add_grad && !beside ? 1.0f : 0.0f,
        .dx = dx,
    };
    if (d->fp8 != TESS_FP8_OFF) {
        TESS_TRY(tess__cuda_fp8_begin(op, &data->fp8, CUDA_FP8_X_TURNED, x));
        TESS_TRY(tess__cuda_fp8_begin(op, &data->fp8, dx != NULL ? CUDA_FP8_DY : CUDA_FP8_DY_TURNED,
                                      dy));
    }
    TESS_TRY(weight_leaves(op, x, dy, &target));
    if (beside)
        kernel->ops->accumulate(kernel, d->out * d->in, 1.0f, room.sum, dw);
    if (fused && d->add_grad)
        kernel->ops->accumulate(kernel, d->out, 1.0f, room.bias_sum, dbias);
    if (dbias != NULL && !fused)
        CUDA_TRY(tess__cuda_column_sum(tess__cuda_stream(kernel), d->dtype, leaves, d->leaf_rows,
                                       d->out, dy, d->add_grad, dbias, room.columns));
    return TESS_OK;
}

enum tess_status tess__cuda_linear_backward_weight(struct tess_op *op, const void *x,
                                                   const void *dy, float *dw, float *dbias)
{
    return weight_run(op, x, dy, dw, dbias, NULL);
}

enum tess_status tess__cuda_linear_narrow_backward(struct tess_op *op, const void *x,
                                                   const void *dy, const void *w, float *dw,
                                                   float *dbias, void *dx)
{
    struct linear_data *data = op->data;
    TESS_TRY(tess__cuda_fp8_pack(op, &data->fp8, w));
    return weight_run(op, x, dy, dw, dbias, dx);
}
