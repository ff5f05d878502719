/* An outsider's kernel operation: a ReLU backward of its own, in f32. The library's reference
 * computes the others. Nothing but public headers. */
#include "outsider.h"

#include <stdio.h>

static bool slope_supports(const struct tess_op_desc *desc, char *why, size_t why_bytes)
{
    if (desc->dtype != TESS_F32)
        snprintf(why, why_bytes, "the kernel slope computes in f32 only");
    return desc->dtype == TESS_F32;
}

static void slope_relu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                const void *y, const void *dy, void *dx)
{
    const float *value = y, *grad = dy;
    float *target = dx;
    (void)kernel, (void)dtype;
    for (int64_t i = 0; i < count; i++)
        target[i] = value[i] > 0 ? grad[i] : 0.0f;
}

const struct tess_kernel_ops outsider_slope = {
    .abi = TESS_ABI,
    .name = "slope",
    .summary = "the reference with its own ReLU backward, f32",
    .host_memory = true,
    .supports = slope_supports,
    .relu_backward = slope_relu_backward,
};
