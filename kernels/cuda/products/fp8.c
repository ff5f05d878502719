/* Scales and narrowed operands of linear layers, over the launchers of fp8.cu. */
#include "cuda/products/fp8.h"

#include <string.h>

/* x has `in` columns, dy has `out`. */
static const struct fp8_operand {
    enum cuda_fp8_format format;
    bool of_x;
} fp8_operands[CUDA_FP8_OPERAND_COUNT] = {
    [CUDA_FP8_W] = {CUDA_FP8_E4M3, false},         [CUDA_FP8_X] = {CUDA_FP8_E4M3, true},
    [CUDA_FP8_DY] = {CUDA_FP8_E5M2, false},        [CUDA_FP8_X_TURNED] = {CUDA_FP8_E4M3, true},
    [CUDA_FP8_DY_TURNED] = {CUDA_FP8_E5M2, false},
};

/* Ada (8.9) is the first with 8-bit products. */
static enum tess_status fp8_check_device(const struct tess_op *op)
{
    const int device = tess__cuda_state(op->kernel)->device;
    int major = 0, minor = 0;
    CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    if (10 * major + minor < 89)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "fp8 needs a device of compute capability 8.9 or more, device %d has %d.%d: use "
                  "bf16",
                  device, major, minor);
    return TESS_OK;
}

enum tess_status tess__cuda_fp8_open(struct tess_op *op, struct cuda_fp8 *fp8_out)
{
    TESS_TRY(fp8_check_device(op));
    const size_t bytes = CUDA_FP8_OPERAND_COUNT * sizeof(struct cuda_fp8_tensor);
    struct cuda_fp8 fp8;
    memset(&fp8, 0, sizeof(fp8));
    void *memory;
    CUDA_TRY(cudaMalloc(&memory, bytes));
    fp8.tensor = memory;
    cudaError_t error = cudaMemsetAsync(memory, 0, bytes, tess__cuda_stream(op->kernel));
    if (error != cudaSuccess) {
        tess__cuda_fp8_close(&fp8);
        return tess__cuda_fail(error, "clearing the scales of fp8 operands");
    }
    *fp8_out = fp8;
    return TESS_OK;
}

void tess__cuda_fp8_close(struct cuda_fp8 *fp8)
{
    cudaError_t error =
        fp8->tensor != NULL && !tess__cuda_hangs() ? cudaFree(fp8->tensor) : cudaSuccess;
    if (error != cudaSuccess) /* a close does not fail; the message is there */
        (void)tess__cuda_fail(error, "cudaFree of the scales of fp8 operands");
    fp8->tensor = NULL;
}

enum tess_status tess__cuda_fp8_pack(struct tess_op *op, struct cuda_fp8 *fp8, const void *w)
{
    const struct tess_op_desc *d = &op->desc;
    if (op->packed_token != 0 && op->packed_token == op->weight_token)
        return TESS_OK;
    cudaStream_t stream = tess__cuda_stream(op->kernel);
    struct cuda_fp8_tensor *tensor = &fp8->tensor[CUDA_FP8_W];
    const struct cuda_fp8_weights weights = tess__cuda_fp8_weights(d, op->packed);
    uint8_t *turned = d->input_grad ? weights.turned : NULL;
    op->packed_token = 0;
    CUDA_TRY(tess__cuda_fp8_greatest(stream, d->dtype, d->out * d->in, w, tensor));
    CUDA_TRY(tess__cuda_fp8_scale(stream, CUDA_FP8_E4M3, false, tensor));
    CUDA_TRY(tess__cuda_fp8_narrow(stream, d->dtype, CUDA_FP8_E4M3, d->out, d->in, w, tensor, false,
                                   weights.plain, turned));
    op->packed_token = op->weight_token;
    return TESS_OK;
}

static int64_t fp8_columns(const struct tess_op_desc *desc, enum cuda_fp8_operand operand)
{
    return fp8_operands[operand].of_x ? desc->in : desc->out;
}

enum tess_status tess__cuda_fp8_begin(struct tess_op *op, struct cuda_fp8 *fp8,
                                      enum cuda_fp8_operand operand, const void *x)
{
    const struct tess_op_desc *d = &op->desc;
    if (d->fp8 != TESS_FP8_HISTORY)
        return TESS_OK;
    cudaStream_t stream = tess__cuda_stream(op->kernel);
    struct cuda_fp8_tensor *tensor = &fp8->tensor[operand];
    if (!fp8->met[operand])
        CUDA_TRY(tess__cuda_fp8_greatest(stream, d->dtype, d->rows * fp8_columns(d, operand), x,
                                         tensor));
    fp8->met[operand] = true;
    CUDA_TRY(tess__cuda_fp8_scale(stream, fp8_operands[operand].format, true, tensor));
    return TESS_OK;
}

enum tess_status tess__cuda_fp8_narrow_leaf(struct tess_op *op, struct cuda_fp8 *fp8,
                                            enum cuda_fp8_operand operand, const void *x,
                                            uint8_t *y, uint8_t *y_turned)
{
    const struct tess_op_desc *d = &op->desc;
    const struct fp8_operand *about = &fp8_operands[operand];
    const int64_t columns = fp8_columns(d, operand);
    const bool history = d->fp8 == TESS_FP8_HISTORY;
    cudaStream_t stream = tess__cuda_stream(op->kernel);
    struct cuda_fp8_tensor *tensor = &fp8->tensor[operand];
    if (!history) {
        CUDA_TRY(tess__cuda_fp8_greatest(stream, d->dtype, d->leaf_rows * columns, x, tensor));
        CUDA_TRY(tess__cuda_fp8_scale(stream, about->format, false, tensor));
    }
    CUDA_TRY(tess__cuda_fp8_narrow(stream, d->dtype, about->format, d->leaf_rows, columns, x,
                                   tensor, history, y, y_turned));
    return TESS_OK;
}
