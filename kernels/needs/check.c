/* Which linear layers and convolutions are supported. Pure: no device is needed. */
#include "needs/needs.h"

#include "kernel_open.h"

#include <stdio.h>

/* Hopper's and Ada's 8-bit products take shapes of multiples of 16 only (NVIDIA's cuBLAS
 * documentation, "cublasLtMatmul", requirements of FP8 kernels). */
#define CHECK_FP8_STEP 16

static const char *check_fp8_fault(const struct tess_op_desc *d)
{
    if (d->in % CHECK_FP8_STEP || d->out % CHECK_FP8_STEP || d->leaf_rows % CHECK_FP8_STEP)
        return "fp8 needs input features, output features and rows of a leaf in multiples of 16";
    return NULL;
}

/* Kernels count the places of windows in an image, and cuBLASLt those of a chunk, in 32 bits. */
static const char *check_conv_fault(const struct tess_op_desc *d)
{
    const int64_t most = INT32_MAX, inner = (int64_t)d->window * d->window;
    const int64_t height = tess_op_output_size(d->height, d->window, d->stride, d->padding);
    const int64_t width = tess_op_output_size(d->width, d->window, d->stride, d->padding);
    if (d->height > most || d->width > most || d->window > 1 << 15 || height > most / width ||
        height * width > most / inner / d->in || d->height > most / d->width / d->in)
        return "the windows of an image may have at most 2^31 - 1 elements together";
    if (d->window == 1 && d->stride == 1 && d->padding == 0 &&
        d->leaf_rows > most / (height * width))
        return "the images of a leaf may have at most 2^31 - 1 pixels together";
    return NULL;
}

bool tess__cuda_matmul_supports(const struct tess_op_desc *desc, char *why, size_t why_bytes)
{
    if (!tess_op_check(desc, why, why_bytes))
        return false;
    const char *fault = desc->fp8 != TESS_FP8_OFF ? check_fp8_fault(desc) : NULL;
    /* The library's dimensions are 32 bits in part of its kernels. */
    if (fault == NULL && (desc->rows > INT32_MAX || desc->in > INT32_MAX || desc->out > INT32_MAX))
        fault = "rows, inputs and outputs may be at most 2^31 - 1";
    if (fault == NULL && desc->kind == TESS_OP_CONV2D)
        fault = check_conv_fault(desc);
    if (fault == NULL)
        return true;
    snprintf(why, why_bytes, "%s (rows %lld by %lld, in %lld, out %lld)", fault,
             (long long)desc->rows, (long long)desc->leaf_rows, (long long)desc->in,
             (long long)desc->out);
    return false;
}
