/*
 * The public wrappers of tessera/kernel.h, and opening a backend. They check what costs nothing and
 * hand over to the backend's slot; what an operation computes is the backend's. Plain operations
 * are in plain.c, those on sequences in sequence.c.
 */
#include "kernel_open.h"

#include "wrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening -------------------------------------------------------------------------------- */

static bool kernel_supports_default(const struct tess_op_desc *desc, char *why, size_t why_bytes)
{
    return tess_op_check(desc, why, why_bytes);
}

static enum tess_status kernel_adopt_default(struct tess_kernel *kernel, void *memory, size_t bytes)
{
    (void)kernel;
    (void)memory;
    (void)bytes;
    return TESS_OK;
}

static void kernel_disown_default(struct tess_kernel *kernel, void *memory, size_t bytes)
{
    (void)kernel;
    (void)memory;
    (void)bytes;
}

static void kernel_access_default(struct tess_kernel *kernel, bool on)
{
    (void)kernel;
    (void)on;
}

static enum tess_status kernel_copy_default(struct tess_kernel *kernel, size_t bytes,
                                            const void *source, void *target)
{
    kernel->ops->access(kernel, true);
    memcpy(target, source, bytes);
    kernel->ops->access(kernel, false);
    return TESS_OK;
}

static enum tess_status kernel_pin_default(struct tess_kernel *kernel, size_t bytes,
                                           void **memory_out)
{
    const size_t whole = (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, whole > 0 ? whole : 64);
    if (memory == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "kernel %s: cannot allocate %zu bytes of host memory",
                  kernel->ops->name, bytes);
    memset(memory, 0, whole);
    *memory_out = memory;
    return TESS_OK;
}

static void kernel_unpin_default(struct tess_kernel *kernel, void *memory)
{
    (void)kernel;
    free(memory);
}

static enum tess_status kernel_choose_default(struct tess_kernel *kernel,
                                              const struct tess_kernel_choices *choices)
{
    (void)kernel;
    (void)choices;
    return TESS_OK;
}

static void kernel_describe_default(const struct tess_kernel *kernel,
                                    void (*line)(void *context, const char *text), void *context)
{
    (void)kernel;
    (void)line;
    (void)context;
}

static enum tess_status kernel_failed_default(struct tess_kernel *kernel)
{
    (void)kernel;
    return TESS_OK;
}

static enum tess_status kernel_forward_gelu_default(struct tess_op *op, const void *x,
                                                    const void *w, const void *bias, void *before,
                                                    void *y)
{
    TESS_TRY(op->kernel->ops->linear_forward(op, x, w, bias, before));
    tess_gelu_forward(op->kernel, op->desc.dtype, op->desc.rows * op->desc.out, before, y);
    return TESS_OK;
}

static enum tess_status kernel_backward_data_gelu_default(struct tess_op *op, const void *dy,
                                                          const void *w, const void *before,
                                                          void *dx)
{
    TESS_TRY(op->kernel->ops->linear_backward_data(op, dy, w, dx));
    tess_gelu_backward(op->kernel, op->desc.dtype, op->desc.rows * op->desc.in, before, dx, dx);
    return TESS_OK;
}

static void kernel_update_all_default(struct tess_kernel *kernel, const struct tess_update *update,
                                      int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        tess_update(kernel, &update[i]);
}

#define KERNEL_DEFAULT(slot, value)                                                                \
    if (!(slot))                                                                                   \
    (slot) = (value)

static void kernel_fill_slots(struct tess_kernel_ops *ops)
{
    KERNEL_DEFAULT(ops->supports, kernel_supports_default);
    KERNEL_DEFAULT(ops->choose, kernel_choose_default);
    KERNEL_DEFAULT(ops->describe, kernel_describe_default);
    KERNEL_DEFAULT(ops->adopt, kernel_adopt_default);
    KERNEL_DEFAULT(ops->disown, kernel_disown_default);
    KERNEL_DEFAULT(ops->access, kernel_access_default);
    KERNEL_DEFAULT(ops->read, kernel_copy_default);
    KERNEL_DEFAULT(ops->write, kernel_copy_default);
    KERNEL_DEFAULT(ops->pin, kernel_pin_default);
    KERNEL_DEFAULT(ops->unpin, kernel_unpin_default);
    KERNEL_DEFAULT(ops->failed, kernel_failed_default);
    KERNEL_DEFAULT(ops->linear_forward_gelu, kernel_forward_gelu_default);
    KERNEL_DEFAULT(ops->linear_backward_data_gelu, kernel_backward_data_gelu_default);
    KERNEL_DEFAULT(ops->update_all, kernel_update_all_default);
}

/* One allocation: the public struct, the ops with their defaults filled in, the private state. */
struct kernel_block {
    struct tess_kernel kernel;
    struct tess_kernel_ops ops;
    _Alignas(64) unsigned char state[];
};

enum tess_status tess_kernel_open(const struct tess_kernel_ops *ops, int threads,
                                  struct tess_kernel **kernel_out)
{
    size_t bytes = sizeof(struct kernel_block) + (ops->state_size + 63) / 64 * 64;
    struct kernel_block *block = aligned_alloc(64, bytes);
    if (!block)
        TESS_FAIL(TESS_ERR_MEMORY, "kernel %s: cannot allocate %zu bytes of state", ops->name,
                  bytes);
    for (size_t i = 0; i < ops->state_size; i++)
        block->state[i] = 0;
    block->ops = *ops;
    kernel_fill_slots(&block->ops);
    block->kernel = (struct tess_kernel){
        .ops = &block->ops,
        .threads = threads > 1 ? threads : 1,
        .state = block->state,
    };
    enum tess_status status = block->ops.open(&block->kernel);
    if (status != TESS_OK) {
        free(block);
        return status;
    }
    *kernel_out = &block->kernel;
    return TESS_OK;
}

void tess_kernel_close(struct tess_kernel *kernel)
{
    if (!kernel)
        return;
    kernel->ops->close(kernel);
    free(kernel); /* the first member of its block */
}

enum tess_status tess_read(struct tess_kernel *kernel, size_t bytes, const void *device, void *host)
{
    return bytes > 0 ? kernel->ops->read(kernel, bytes, device, host) : TESS_OK;
}

enum tess_status tess_write(struct tess_kernel *kernel, size_t bytes, const void *host,
                            void *device)
{
    return bytes > 0 ? kernel->ops->write(kernel, bytes, host, device) : TESS_OK;
}

enum tess_status tess_upload(struct tess_kernel *kernel, size_t bytes, const void *pinned,
                             void *device)
{
    if (kernel->queue == NULL)
        return tess_write(kernel, bytes, pinned, device);
    return bytes > 0 ? kernel->queue->ops->copy(kernel->queue, bytes, pinned, device) : TESS_OK;
}

/* ---- what an operation may be --------------------------------------------------------------- */

int64_t tess_op_output_size(int64_t size, int32_t window, int32_t stride, int32_t padding)
{
    int64_t room = size + 2 * (int64_t)padding - window;
    return room < 0 ? 0 : room / stride + 1;
}

static const char *kernel_windowed_fault(const struct tess_op_desc *d)
{
    if (d->window < 1 || d->stride < 1)
        return "window and stride must be at least 1";
    if (d->padding < 0 || d->padding >= d->window)
        return "padding must be at least 0 and smaller than the window";
    if (tess_op_output_size(d->height, d->window, d->stride, d->padding) < 1 ||
        tess_op_output_size(d->width, d->window, d->stride, d->padding) < 1)
        return "the window does not fit into the padded image";
    if (d->kind == TESS_OP_MAX_POOL && d->window > TESS_POOL_WINDOW_MAX)
        return "a max-pool window may be at most 15 wide (its positions are kept in a byte)";
    return NULL;
}

static const char *kernel_op_fault(const struct tess_op_desc *d)
{
    if ((int)d->kind < 0 || d->kind >= TESS_OP_KIND_COUNT)
        return "there is no operation of that kind";
    if (d->dtype != TESS_F32 && d->dtype != TESS_BF16 && d->dtype != TESS_F16)
        return "operations take f32, bf16 or f16 only";
    if (d->fp8 != TESS_FP8_OFF &&
        (d->kind != TESS_OP_LINEAR || d->dtype == TESS_F32 || d->f32_math))
        return "fp8 is for linear layers in bf16 or f16, and not together with products in f32";
    if (d->leaf_rows < 1 || d->rows < 0 || d->rows % d->leaf_rows != 0)
        return "rows must be a multiple of leaf_rows, which must be at least 1";
    if (d->in < 1)
        return "there must be at least 1 input feature or channel";
    if ((d->kind == TESS_OP_LINEAR || d->kind == TESS_OP_CONV2D) && d->out < 1)
        return "there must be at least 1 output feature or channel";
    if (d->kind == TESS_OP_LINEAR)
        return NULL;
    if (tess__is_sequence(d->kind))
        return tess__sequence_fault(d);
    if (d->height < 1 || d->width < 1)
        return "height and width must be at least 1";
    return d->kind == TESS_OP_BATCH_NORM ? NULL : kernel_windowed_fault(d);
}

bool tess_op_check(const struct tess_op_desc *desc, char *why, size_t why_bytes)
{
    const char *fault = kernel_op_fault(desc);
    if (!fault)
        return true;
    if (tess__is_sequence(desc->kind)) {
        tess__sequence_why(desc, fault, why, why_bytes);
        return false;
    }
    snprintf(why, why_bytes,
             "%s (rows %lld by %lld, in %lld, out %lld, image %lld x %lld, window %d, stride %d, "
             "padding %d)",
             fault, (long long)desc->rows, (long long)desc->leaf_rows, (long long)desc->in,
             (long long)desc->out, (long long)desc->height, (long long)desc->width,
             (int)desc->window, (int)desc->stride, (int)desc->padding);
    return false;
}

/* ---- prepared operations: an empty batch is dealt with here, so no backend meets one ----------
 */

enum tess_status tess_linear_forward(struct tess_op *op, const void *x, const void *w,
                                     const void *bias, void *y)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_LINEAR));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->linear_forward(op, x, w, bias, y);
}

enum tess_status tess_linear_backward_data(struct tess_op *op, const void *dy, const void *w,
                                           void *dx)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_LINEAR));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->linear_backward_data(op, dy, w, dx);
}

enum tess_status tess_linear_forward_gelu(struct tess_op *op, const void *x, const void *w,
                                          const void *bias, void *before, void *y)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_LINEAR));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->linear_forward_gelu(op, x, w, bias, before, y);
}

enum tess_status tess_linear_backward_data_gelu(struct tess_op *op, const void *dy, const void *w,
                                                const void *before, void *dx)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_LINEAR));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->linear_backward_data_gelu(op, dy, w, before, dx);
}

enum tess_status tess_linear_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                             float *dw, float *dbias)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_LINEAR));
    if (op->desc.rows == 0 && op->desc.add_grad)
        return TESS_OK;
    if (op->desc.rows == 0) {
        tess__kernel_zero(op, op->desc.out * op->desc.in, dw);
        tess__kernel_zero(op, op->desc.out, dbias);
        return TESS_OK;
    }
    return op->kernel->ops->linear_backward_weight(op, x, dy, dw, dbias);
}

enum tess_status tess_conv2d_forward(struct tess_op *op, const void *x, const void *w,
                                     const void *bias, void *y)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_CONV2D));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->conv2d_forward(op, x, w, bias, y);
}

enum tess_status tess_conv2d_backward_data(struct tess_op *op, const void *dy, const void *w,
                                           void *dx)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_CONV2D));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->conv2d_backward_data(op, dy, w, dx);
}

enum tess_status tess_conv2d_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                             float *dw, float *dbias)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_CONV2D));
    if (op->desc.rows == 0) {
        tess__kernel_zero(op, op->desc.out * op->desc.window * op->desc.window * op->desc.in, dw);
        tess__kernel_zero(op, op->desc.out, dbias);
        return TESS_OK;
    }
    return op->kernel->ops->conv2d_backward_weight(op, x, dy, dw, dbias);
}

enum tess_status tess_max_pool_forward(struct tess_op *op, const void *x, void *y, uint8_t *which)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_MAX_POOL));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->max_pool_forward(op, x, y, which);
}

enum tess_status tess_max_pool_backward(struct tess_op *op, const void *dy, const uint8_t *which,
                                        void *dx)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_MAX_POOL));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->max_pool_backward(op, dy, which, dx);
}

enum tess_status tess_avg_pool_forward(struct tess_op *op, const void *x, void *y)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_AVG_POOL));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->avg_pool_forward(op, x, y);
}

enum tess_status tess_avg_pool_backward(struct tess_op *op, const void *dy, void *dx)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_AVG_POOL));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->avg_pool_backward(op, dy, dx);
}

enum tess_status tess_batch_norm_forward(struct tess_op *op, const void *x, const void *gamma,
                                         const void *beta, void *y, float *save_mean,
                                         float *save_rstd, float *mean_sum, float *var_sum)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_BATCH_NORM));
    if (op->desc.rows == 0) {
        tess__kernel_zero(op, op->desc.in, mean_sum);
        tess__kernel_zero(op, op->desc.in, var_sum);
        return TESS_OK;
    }
    return op->kernel->ops->batch_norm_forward(op, x, gamma, beta, y, save_mean, save_rstd,
                                               mean_sum, var_sum);
}

enum tess_status tess_batch_norm_infer(struct tess_op *op, const void *x, const void *gamma,
                                       const void *beta, const void *mean, const void *var, void *y)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_BATCH_NORM));
    if (op->desc.rows == 0)
        return TESS_OK;
    return op->kernel->ops->batch_norm_infer(op, x, gamma, beta, mean, var, y);
}

enum tess_status tess_batch_norm_backward(struct tess_op *op, const void *x, const void *y,
                                          const void *dy, const void *gamma, const float *save_mean,
                                          const float *save_rstd, void *dx, float *dgamma,
                                          float *dbeta)
{
    TESS_TRY(tess__kernel_expect(op, TESS_OP_BATCH_NORM));
    if (op->desc.rows == 0) {
        tess__kernel_zero(op, op->desc.in, dgamma);
        tess__kernel_zero(op, op->desc.in, dbeta);
        return TESS_OK;
    }
    return op->kernel->ops->batch_norm_backward(op, x, y, dy, gamma, save_mean, save_rstd, dx,
                                                dgamma, dbeta);
}
