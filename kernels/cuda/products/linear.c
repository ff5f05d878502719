/*
 * Linear layers: opening, and the products over rows (forward, backward_data). Operands go to the
 * product as they are; or, leaf by leaf, through f32 (f32_math) or 8 bits (fp8). Weight gradients
 * are linear_weight.c's.
 */
#include "cuda/products/linear_data.h"

#include "cuda/products/matmul_tree.h"

#include <stdlib.h>

static bool linear_goes_by_leaf(const struct tess_op_desc *d)
{
    return linear_is_wide(d) || linear_is_narrow(d);
}

/* ---- opening --------------------------------------------------------------------------------- */

static cudaDataType_t linear_type_result(const struct tess_op_desc *d)
{
    return linear_is_wide(d) ? CUDA_R_32F : tess__cuda_data_type(d->dtype);
}

static struct cuda_product linear_product(const struct tess_op *op, enum linear_product which)
{
    const struct tess_op_desc *d = &op->desc;
    const bool data = which == LINEAR_DATA || which == LINEAR_DATA_GELU;
    struct cuda_product p = tess__cuda_product(data ? d->in : d->out, d->leaf_rows,
                                               data ? d->out : d->in, linear_type_result(d));
    p.a = tess__cuda_linear_type_x(d);
    p.b = data ? tess__cuda_linear_type_dy(d) : p.a;
    /* backward_data has w with its inner index slow, but in 8 bits: there it is kept turned. */
    p.transpose_a = !data || linear_is_narrow(d);
    p.compute = tess__cuda_linear_compute(op);
    p.fast = tess__cuda_matmul_is_fast(op->kernel, p.a);
    const cublasLtEpilogue_t epilogue[LINEAR_PRODUCT_COUNT] = {
        [LINEAR_FORWARD] = d->relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT,
        [LINEAR_FORWARD_BIAS] = d->relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS,
        [LINEAR_FORWARD_GELU] = CUBLASLT_EPILOGUE_GELU_AUX,
        [LINEAR_FORWARD_BIAS_GELU] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        [LINEAR_DATA] = CUBLASLT_EPILOGUE_DEFAULT,
        [LINEAR_DATA_GELU] = CUBLASLT_EPILOGUE_DGELU,
    };
    p.epilogue = epilogue[which];
    p.same_rows = !data && tess__cuda_matmul_has_same_rows(op->kernel);
    return p;
}

static enum tess_status linear_open_rows(struct tess_op *op, enum linear_product which,
                                         const struct cuda_product *product)
{
    struct linear_data *data = op->data;
    const int64_t leaves = linear_goes_by_leaf(&op->desc) ? 1 : op->desc.rows / op->desc.leaf_rows;
    return tess__cuda_rows_open(op->kernel, product, leaves, &data->rows[which]);
}

static enum tess_status linear_no_algorithm(const struct tess_op *op)
{
    TESS_FAIL(TESS_ERR_UNSUPPORTED,
              "cuBLASLt has no algorithm for a linear layer of %lld inputs, %lld outputs and "
              "%lld rows in %s%s",
              (long long)op->desc.in, (long long)op->desc.out, (long long)op->desc.leaf_rows,
              tess_dtype_name(op->desc.dtype), linear_is_narrow(&op->desc) ? " as fp8" : "");
}

static enum tess_status linear_open_plain(struct tess_op *op, enum linear_product which)
{
    const struct cuda_product product = linear_product(op, which);
    return linear_open_rows(op, which, &product);
}

/* A fused GELU, where there is one: its saved input has the rows of D, and cuBLASLt requires them
 * in multiples of 8 elements (cublasLt.h, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD). */
static enum tess_status linear_open_gelu(struct tess_op *op, enum linear_product which)
{
    const struct cuda_product product = linear_product(op, which);
    if (linear_goes_by_leaf(&op->desc) || product.m % 8 != 0 || op->desc.relu)
        return TESS_OK;
    return linear_open_rows(op, which, &product);
}

static enum tess_status linear_open_plans(struct tess_op *op)
{
    const struct tess_op_desc *d = &op->desc;
    const struct linear_data *data = op->data;
    TESS_TRY(linear_open_plain(op, LINEAR_FORWARD));
    TESS_TRY(linear_open_plain(op, LINEAR_FORWARD_BIAS));
    if (d->input_grad)
        TESS_TRY(linear_open_plain(op, LINEAR_DATA));
    /* Whether there is a bias is known when it runs. */
    if (data->rows[LINEAR_FORWARD].leaf == NULL || data->rows[LINEAR_FORWARD_BIAS].leaf == NULL ||
        (d->input_grad && data->rows[LINEAR_DATA].leaf == NULL))
        return linear_no_algorithm(op);
    if (d->gelu) {
        TESS_TRY(linear_open_gelu(op, LINEAR_FORWARD_GELU));
        TESS_TRY(linear_open_gelu(op, LINEAR_FORWARD_BIAS_GELU));
        TESS_TRY(linear_open_gelu(op, LINEAR_DATA_GELU));
    }
    return tess__cuda_linear_weight_open(op);
}

enum tess_status tess__cuda_linear_open(struct tess_op *op)
{
    struct linear_data *data = calloc(1, sizeof(*data));
    if (data == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a linear layer's plans");
    op->data = data;
    enum tess_status status =
        linear_is_narrow(&op->desc) ? tess__cuda_fp8_open(op, &data->fp8) : TESS_OK;
    if (status == TESS_OK)
        status = linear_open_plans(op);
    if (status != TESS_OK)
        tess__cuda_linear_close(op);
    return status;
}

void tess__cuda_linear_close(struct tess_op *op)
{
    struct linear_data *data = op->data;
    if (data != NULL)
        tess__cuda_fp8_close(&data->fp8);
    free(data);
    op->data = NULL;
}

/* ---- operands -------------------------------------------------------------------------------- */

static enum tess_status linear_weights(struct tess_op *op, enum cuda_fp8_operand other,
                                       const void *w, const void **ready_out)
{
    const struct tess_op_desc *d = &op->desc;
    struct linear_data *data = op->data;
    *ready_out = w;
    if (linear_is_wide(d)) {
        float *wide = tess__cuda_linear_room(d, op->scratch).w;
        tess__cuda_widen(op, d->out * d->in, w, wide);
        *ready_out = wide;
    }
    if (!linear_is_narrow(d))
        return TESS_OK;
    const struct cuda_fp8_weights weights = tess__cuda_fp8_weights(d, op->packed);
    *ready_out = other == CUDA_FP8_DY ? weights.turned : weights.plain;
    return tess__cuda_fp8_pack(op, &data->fp8, w);
}

/* ---- products over rows ---------------------------------------------------------------------- */

/* target[rows, to] = source[rows, from] times the weights, leaf by leaf through other types. */
static enum tess_status linear_by_leaf(struct tess_op *op, const struct cuda_rows *rows,
                                       enum cuda_fp8_operand operand, struct cuda_operands o)
{
    const struct tess_op_desc *d = &op->desc;
    struct linear_data *data = op->data;
    const struct linear_room room = tess__cuda_linear_room(d, op->scratch);
    const bool forward = operand == CUDA_FP8_X;
    const int64_t from = forward ? d->in : d->out, to = forward ? d->out : d->in;
    const size_t word = tess_dtype_bytes(d->dtype);
    const char *source = o.b;
    char *target = o.d;
    float *wide = forward ? room.y : room.x;
    if (linear_is_wide(d) && o.bias != NULL) {
        tess__cuda_widen(op, d->out, o.bias, room.bias);
        o.bias = room.bias;
    }
    if (linear_is_narrow(d))
        TESS_TRY(tess__cuda_fp8_begin(op, &data->fp8, operand, source));
    o.scale_a = tess__cuda_linear_scale(op, CUDA_FP8_W);
    o.scale_b = tess__cuda_linear_scale(op, operand);
    for (int64_t row = 0; row < d->rows; row += d->leaf_rows) {
        TESS_TRY(
            tess__cuda_linear_operand(op, operand, source + (size_t)(row * from) * word, &o.b));
        void *leaf = target + (size_t)(row * to) * word;
        o.d = linear_is_wide(d) ? wide : leaf;
        TESS_TRY(tess__cuda_leaf_run(op->kernel, rows, &o));
        if (linear_is_wide(d))
            op->kernel->ops->cast(op->kernel, d->leaf_rows * to, TESS_F32, wide, d->dtype, leaf);
    }
    return TESS_OK;
}

static enum tess_status linear_run(struct tess_op *op, enum linear_product which, const void *w,
                                   struct cuda_operands o)
{
    struct linear_data *data = op->data;
    const struct cuda_rows *rows = &data->rows[which];
    const bool is_data = which == LINEAR_DATA || which == LINEAR_DATA_GELU;
    const enum cuda_fp8_operand operand = is_data ? CUDA_FP8_DY : CUDA_FP8_X;
    if (rows->leaf == NULL)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "a linear layer was opened without this product: set input_grad in its "
                  "description where backward_data is called");
    TESS_TRY(linear_weights(op, operand, w, &o.a));
    return linear_goes_by_leaf(&op->desc) ? linear_by_leaf(op, rows, operand, o)
                                          : tess__cuda_rows_run(op->kernel, rows, &o);
}

/* cuBLASLt takes a bias as void *, though it only reads it. */
static void *linear_bias(const void *bias)
{
    return (void *)(uintptr_t)bias;
}

enum tess_status tess__cuda_linear_forward(struct tess_op *op, const void *x, const void *w,
                                           const void *bias, void *y)
{
    const struct linear_data *data = op->data;
    const enum linear_product which = bias != NULL ? LINEAR_FORWARD_BIAS : LINEAR_FORWARD;
    TESS_TRY(linear_run(op, which, w,
                        (struct cuda_operands){.b = x, .d = y, .bias = linear_bias(bias)}));
    if (data->rows[which].relu_after)
        op->kernel->ops->relu_forward(op->kernel, op->desc.dtype, op->desc.rows * op->desc.out, y,
                                      y);
    return TESS_OK;
}

enum tess_status tess__cuda_linear_backward_data(struct tess_op *op, const void *dy, const void *w,
                                                 void *dx)
{
    return linear_run(op, LINEAR_DATA, w, (struct cuda_operands){.b = dy, .d = dx});
}

enum tess_status tess__cuda_linear_forward_gelu(struct tess_op *op, const void *x, const void *w,
                                                const void *bias, void *before, void *y)
{
    const struct linear_data *data = op->data;
    const enum linear_product which = bias != NULL ? LINEAR_FORWARD_BIAS_GELU : LINEAR_FORWARD_GELU;
    if (data->rows[which].leaf != NULL)
        return linear_run(
            op, which, w,
            (struct cuda_operands){.b = x, .d = y, .bias = linear_bias(bias), .aux = before});
    TESS_TRY(tess__cuda_linear_forward(op, x, w, bias, before));
    op->kernel->ops->gelu_forward(op->kernel, op->desc.dtype, op->desc.rows * op->desc.out, before,
                                  y);
    return TESS_OK;
}

enum tess_status tess__cuda_linear_backward_data_gelu(struct tess_op *op, const void *dy,
                                                      const void *w, const void *before, void *dx)
{
    const struct linear_data *data = op->data;
    if (data->rows[LINEAR_DATA_GELU].leaf != NULL)
        return linear_run(op, LINEAR_DATA_GELU, w,
                          (struct cuda_operands){.b = dy, .d = dx, .aux = linear_bias(before)});
    TESS_TRY(tess__cuda_linear_backward_data(op, dy, w, dx));
    op->kernel->ops->gelu_backward(op->kernel, op->desc.dtype, op->desc.rows * op->desc.in, before,
                                   dx, dx);
    return TESS_OK;
}
