/* Scratch, types and operands of linear layers, for linear.c and linear_weight.c. */
#include "cuda/products/linear_data.h"

#include "cuda/products/matmul_tree.h"
#include "cuda/rows/columns.h"

struct linear_room tess__cuda_linear_room(const struct tess_op_desc *d, void *scratch)
{
    struct cuda_room room = {.base = scratch};
    struct linear_room r = {0};
    const int64_t leaves = d->rows / d->leaf_rows;
    const size_t weights = (size_t)(d->out * d->in) * sizeof(float);
    const size_t bias = (size_t)d->out * sizeof(float);
    if (linear_is_wide(d)) {
        r.x = tess__cuda_take(&room, (size_t)(d->leaf_rows * d->in) * sizeof(float));
        r.w = tess__cuda_take(&room, weights);
        r.y = tess__cuda_take(&room, (size_t)(d->leaf_rows * d->out) * sizeof(float));
        r.bias = tess__cuda_take(&room, bias);
    }
    if (linear_is_narrow(d)) {
        r.narrow_x = tess__cuda_take(&room, (size_t)(d->leaf_rows * d->in));
        r.narrow_dy = tess__cuda_take(&room, (size_t)(d->leaf_rows * d->out));
        r.narrow_dy_turned = tess__cuda_take(&room, (size_t)(d->leaf_rows * d->out));
    }
    r.tree = tess__cuda_take(&room, tess__cuda_tree_bytes(d->out * d->in, leaves, true));
    r.bias_tree = tess__cuda_take(&room, tess__cuda_tree_bytes(d->out, leaves, false));
    r.columns =
        tess__cuda_take(&room, tess__cuda_column_sum_bytes(d->dtype, leaves, d->leaf_rows, d->out));
    r.sum = tess__cuda_take(&room, d->add_grad && leaves > 1 ? weights : 0);
    r.bias_sum = tess__cuda_take(&room, d->add_grad ? bias : 0);
    r.bytes = room.used;
    return r;
}

cudaDataType_t tess__cuda_linear_type_x(const struct tess_op_desc *d)
{
    return linear_is_narrow(d) ? CUDA_R_8F_E4M3
           : linear_is_wide(d) ? CUDA_R_32F
                               : tess__cuda_data_type(d->dtype);
}

cudaDataType_t tess__cuda_linear_type_dy(const struct tess_op_desc *d)
{
    return linear_is_narrow(d) ? CUDA_R_8F_E5M2 : tess__cuda_linear_type_x(d);
}

cublasComputeType_t tess__cuda_linear_compute(const struct tess_op *op)
{
    return tess__cuda_matmul_compute(op->kernel, tess__cuda_linear_type_x(&op->desc),
                                     op->desc.f32_math);
}

const float *tess__cuda_linear_scale(const struct tess_op *op, enum cuda_fp8_operand operand)
{
    const struct linear_data *data = op->data;
    return linear_is_narrow(&op->desc) ? &data->fp8.tensor[operand].inverse : NULL;
}

enum tess_status tess__cuda_linear_operand(struct tess_op *op, enum cuda_fp8_operand operand,
                                           const void *leaf, const void **ready_out)
{
    const struct tess_op_desc *d = &op->desc;
    struct linear_data *data = op->data;
    const struct linear_room room = tess__cuda_linear_room(d, op->scratch);
    const bool of_x = operand == CUDA_FP8_X || operand == CUDA_FP8_X_TURNED;
    if (linear_is_wide(d)) {
        float *wide = of_x ? room.x : room.y;
        tess__cuda_widen(op, d->leaf_rows * (of_x ? d->in : d->out), leaf, wide);
        *ready_out = wide;
        return TESS_OK;
    }
    *ready_out = leaf;
    if (!linear_is_narrow(d))
        return TESS_OK;
    const bool turned = operand == CUDA_FP8_X_TURNED || operand == CUDA_FP8_DY_TURNED;
    uint8_t *narrow = of_x ? room.narrow_x : turned ? room.narrow_dy_turned : room.narrow_dy;
    *ready_out = narrow;
    return tess__cuda_fp8_narrow_leaf(op, &data->fp8, operand, leaf, turned ? NULL : narrow,
                                      turned ? narrow : NULL);
}
