/* An open linear layer, its scratch and operands: linear_data.c. */
#ifndef KERNELS_CUDA_PRODUCTS_LINEAR_DATA_H
#define KERNELS_CUDA_PRODUCTS_LINEAR_DATA_H

#include "cuda/products/fp8.h"
#include "cuda/slots.h"

/* Products over rows, by what their epilogue does. */
enum linear_product {
    LINEAR_FORWARD,
    LINEAR_FORWARD_BIAS,
    LINEAR_FORWARD_GELU,
    LINEAR_FORWARD_BIAS_GELU,
    LINEAR_DATA,
    LINEAR_DATA_GELU,
    LINEAR_PRODUCT_COUNT
};

/* Behind op->data. */
struct linear_data {
    struct cuda_rows rows[LINEAR_PRODUCT_COUNT];
    struct cuda_plan *weight, *weight_and_bias; /* the second NULL: bias gradients are summed */
    struct cuda_fp8 fp8;
};

/* One leaf's operand as the products of this layer take it: where it lies, widened or narrowed. */
enum tess_status tess__cuda_linear_operand(struct tess_op *op, enum cuda_fp8_operand operand,
                                           const void *leaf, const void **ready_out);
/* The scale of an operand; NULL but for fp8. */
const float *tess__cuda_linear_scale(const struct tess_op *op, enum cuda_fp8_operand operand);

/* linear_weight.c: plans of the weight gradient; and tess_linear_backward of fp8, without term. */
enum tess_status tess__cuda_linear_weight_open(struct tess_op *op);
enum tess_status tess__cuda_linear_narrow_backward(struct tess_op *op, const void *x,
                                                   const void *dy, const void *w, float *dw,
                                                   float *dbias, void *dx);

/* Types of x and w, and of dy, in products; of their results. */
cudaDataType_t tess__cuda_linear_type_x(const struct tess_op_desc *desc);
cudaDataType_t tess__cuda_linear_type_dy(const struct tess_op_desc *desc);
cublasComputeType_t tess__cuda_linear_compute(const struct tess_op *op);

#endif
