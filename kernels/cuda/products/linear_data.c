/* Scratch, types and operands of linear layers, for linear.c and linear_weight.c. */
#include "cuda/products/linear_data.h"

#include "cuda/products/matmul_tree.h"
#include "cuda/rows/columns.h"

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
