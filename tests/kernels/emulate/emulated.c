/*
 * The conformance programs of tests/kernels on the emulator: the backend that they open, by
 * whatever name, is ref with the slots of kernels/cuda that are compiled into the program in place
 * of its own. So the slots are checked too, by the same cases as on a device.
 */
#include "cuda/slots.h"
#include "emulate/slots.h"
#include "ref/ref.h"
#include "tessera/registry.h"

static enum tess_status emulated_open(struct tess_kernel *kernel)
{
    kernel->queue = emulate_kernel.queue;
    return TESS_OK;
}

/* In place of the library's own. */
enum tess_status tess_registry_get_kernel(const char *name, const struct tess_kernel_ops **ops_out)
{
    static struct tess_kernel_ops ops;
    (void)name;
    ops = tess_kernel_ref;
    ops.name = "emulated";
    ops.open = emulated_open;
    ops.rope = tess__cuda_rope;
    ops.gelu_erf_forward = tess__cuda_gelu_erf_forward;
    ops.gelu_erf_backward = tess__cuda_gelu_erf_backward;
    ops.gelu_forward = tess__cuda_gelu_forward;
    ops.gelu_backward = tess__cuda_gelu_backward;
    ops.swiglu_forward = tess__cuda_swiglu_forward;
    ops.swiglu_backward = tess__cuda_swiglu_backward;
    ops.geglu_forward = tess__cuda_geglu_forward;
    ops.geglu_backward = tess__cuda_geglu_backward;
    ops.relu_forward = tess__cuda_relu_forward;
    ops.relu_backward = tess__cuda_relu_backward;
    ops.add = tess__cuda_add;
    ops.dropout = tess__cuda_dropout;
    ops.cast = tess__cuda_cast;
    ops.accumulate = tess__cuda_accumulate;
    ops.fill = tess__cuda_fill;
    ops.copy = tess__cuda_copy;
    ops.square_sum = tess__cuda_square_sum;
    ops.square_sum_all = tess__cuda_square_sum_all;
    ops.find_nonfinite = tess__cuda_find_nonfinite;
    ops.count_zeros = tess__cuda_count_zeros;
    ops.find_flag = tess__cuda_find_flag;
    ops.leaf_sum = tess__cuda_leaf_sum;
    ops.maximum = tess__cuda_maximum;
    ops.normal = tess__cuda_normal;
    ops.cast_stochastic = tess__cuda_cast_stochastic;
    ops.update_judge = tess__cuda_update_judge;
    ops.update = tess__cuda_update;
    ops.update_all = tess__cuda_update_all;
    ops.lamb_direction = tess__cuda_lamb_direction;
    *ops_out = &ops;
    return TESS_OK;
}
