/*
 * The backend `guard`: computes with ref, but memory that was adopted is filled with NaN (0xff
 * bytes) and cannot be read or written except inside an operation or between access(true) and
 * access(false). So a machine without a GPU finds host code that touches device memory (it dies
 * with SIGSEGV at the very instruction) and results that depend on memory nobody wrote. It is for
 * tests: every operation costs two system calls per adopted area.
 *
 * `guard_queue` is the same with far memory, which access() does not open, and with queues; see
 * queue.c.
 */
#include "guard/guard.h"

#include "guard/memory.h"
#include "guard/queue.h"
#include "guard/slots.h"
#include "ref/ref.h"
#include "tessera/version.h"

static void guard_access(struct tess_kernel *kernel, bool on)
{
    tess__guard_touch(kernel, on);
}

static enum tess_status guard_op_needs(const struct tess_op_desc *desc,
                                       struct tess_op_needs *needs_out)
{
    return tess_kernel_ref.op_needs(desc, needs_out);
}

static enum tess_status guard_op_open(struct tess_op *op)
{
    return tess_kernel_ref.op_open(op);
}

static void guard_op_close(struct tess_op *op)
{
    tess_kernel_ref.op_close(op);
}

/* ---- operations: open the memory, compute with ref, close it ------------------------------------
 */

static enum tess_status guard_linear_forward(struct tess_op *op, const void *x, const void *w,
                                             const void *bias, void *y)
{
    guard_access(op->kernel, true);
    enum tess_status status = tess_kernel_ref.linear_forward(op, x, w, bias, y);
    guard_access(op->kernel, false);
    return status;
}

static enum tess_status guard_linear_backward_data(struct tess_op *op, const void *dy,
                                                   const void *w, void *dx)
{
    guard_access(op->kernel, true);
    enum tess_status status = tess_kernel_ref.linear_backward_data(op, dy, w, dx);
    guard_access(op->kernel, false);
    return status;
}

static enum tess_status guard_linear_backward_weight(struct tess_op *op, const void *x,
                                                     const void *dy, float *dw, float *dbias)
{
    guard_access(op->kernel, true);
    enum tess_status status = tess_kernel_ref.linear_backward_weight(op, x, dy, dw, dbias);
    guard_access(op->kernel, false);
    return status;
}

static enum tess_status guard_conv2d_forward(struct tess_op *op, const void *x, const void *w,
                                             const void *bias, void *y)
{
    guard_access(op->kernel, true);
    enum tess_status status = tess_kernel_ref.conv2d_forward(op, x, w, bias, y);
    guard_access(op->kernel, false);
    return status;
}

static enum tess_status guard_conv2d_backward_data(struct tess_op *op, const void *dy,
                                                   const void *w, void *dx)
{
    guard_access(op->kernel, true);
    enum tess_status status = tess_kernel_ref.conv2d_backward_data(op, dy, w, dx);
    guard_access(op->kernel, false);
    return status;
}

static enum tess_status guard_conv2d_backward_weight(struct tess_op *op, const void *x,
                                                     const void *dy, float *dw, float *dbias)
{
    guard_access(op->kernel, true);
    enum tess_status status = tess_kernel_ref.conv2d_backward_weight(op, x, dy, dw, dbias);
    guard_access(op->kernel, false);
    return status;
}

static enum tess_status guard_max_pool_forward(struct tess_op *op, const void *x, void *y,
                                               uint8_t *which)
{
    guard_access(op->kernel, true);
    enum tess_status status = tess_kernel_ref.max_pool_forward(op, x, y, which);
    guard_access(op->kernel, false);
    return status;
}

static enum tess_status guard_max_pool_backward(struct tess_op *op, const void *dy,
                                                const uint8_t *which, void *dx)
{
    guard_access(op->kernel, true);
    enum tess_status status = tess_kernel_ref.max_pool_backward(op, dy, which, dx);
    guard_access(op->kernel, false);
    return status;
}

static enum tess_status guard_avg_pool_forward(struct tess_op *op, const void *x, void *y)
{
    guard_access(op->kernel, true);
    enum tess_status status = tess_kernel_ref.avg_pool_forward(op, x, y);
    guard_access(op->kernel, false);
    return status;
}

static enum tess_status guard_avg_pool_backward(struct tess_op *op, const void *dy, void *dx)
{
    guard_access(op->kernel, true);
    enum tess_status status = tess_kernel_ref.avg_pool_backward(op, dy, dx);
    guard_access(op->kernel, false);
    return status;
}

static enum tess_status guard_batch_norm_forward(struct tess_op *op, const void *x,
                                                 const void *gamma, const void *beta, void *y,
                                                 float *save_mean, float *save_rstd,
                                                 float *mean_sum, float *var_sum)
{
    guard_access(op->kernel, true);
    enum tess_status status = tess_kernel_ref.batch_norm_forward(op, x, gamma, beta, y, save_mean,
                                                                 save_rstd, mean_sum, var_sum);
    guard_access(op->kernel, false);
    return status;
}

static enum tess_status guard_batch_norm_infer(struct tess_op *op, const void *x, const void *gamma,
                                               const void *beta, const void *mean, const void *var,
                                               void *y)
{
    guard_access(op->kernel, true);
    enum tess_status status = tess_kernel_ref.batch_norm_infer(op, x, gamma, beta, mean, var, y);
    guard_access(op->kernel, false);
    return status;
}

static enum tess_status guard_batch_norm_backward(struct tess_op *op, const void *x, const void *y,
                                                  const void *dy, const void *gamma,
                                                  const float *save_mean, const float *save_rstd,
                                                  void *dx, float *dgamma, float *dbeta)
{
    guard_access(op->kernel, true);
    enum tess_status status = tess_kernel_ref.batch_norm_backward(op, x, y, dy, gamma, save_mean,
                                                                  save_rstd, dx, dgamma, dbeta);
    guard_access(op->kernel, false);
    return status;
}

static void guard_relu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                               const void *x, void *y)
{
    guard_access(kernel, true);
    tess_kernel_ref.relu_forward(kernel, dtype, count, x, y);
    guard_access(kernel, false);
}

static void guard_relu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                const void *y, const void *dy, void *dx)
{
    guard_access(kernel, true);
    tess_kernel_ref.relu_backward(kernel, dtype, count, y, dy, dx);
    guard_access(kernel, false);
}

static void guard_add(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                      const void *a, const void *b, void *y)
{
    guard_access(kernel, true);
    tess_kernel_ref.add(kernel, dtype, count, a, b, y);
    guard_access(kernel, false);
}

static void guard_dropout(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                          float rate, const uint64_t key[2], uint64_t first, const void *x, void *y)
{
    guard_access(kernel, true);
    tess_kernel_ref.dropout(kernel, dtype, count, rate, key, first, x, y);
    guard_access(kernel, false);
}

static void guard_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                               int64_t classes, float scale, const void *logits,
                               const int32_t *label, void *dlogits, float *loss, int32_t *correct)
{
    guard_access(kernel, true);
    tess_kernel_ref.softmax_xent(kernel, dtype, rows, classes, scale, logits, label, dlogits, loss,
                                 correct);
    guard_access(kernel, false);
}

static void guard_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from,
                       const void *x, enum tess_dtype to, void *y)
{
    guard_access(kernel, true);
    tess_kernel_ref.cast(kernel, count, from, x, to, y);
    guard_access(kernel, false);
}

static void guard_accumulate(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                             float *y)
{
    guard_access(kernel, true);
    tess_kernel_ref.accumulate(kernel, count, scale, x, y);
    guard_access(kernel, false);
}

static void guard_fill(struct tess_kernel *kernel, int64_t bytes, int value, void *memory)
{
    guard_access(kernel, true);
    tess_kernel_ref.fill(kernel, bytes, value, memory);
    guard_access(kernel, false);
}

static void guard_copy(struct tess_kernel *kernel, int64_t bytes, const void *source, void *target)
{
    guard_access(kernel, true);
    tess_kernel_ref.copy(kernel, bytes, source, target);
    guard_access(kernel, false);
}

static void guard_square_sum(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                             struct tess_sum *sum)
{
    guard_access(kernel, true);
    tess_kernel_ref.square_sum(kernel, count, scale, x, sum);
    guard_access(kernel, false);
}

static int64_t guard_find_nonfinite(struct tess_kernel *kernel, enum tess_dtype dtype,
                                    int64_t count, const void *x)
{
    guard_access(kernel, true);
    int64_t index = tess_kernel_ref.find_nonfinite(kernel, dtype, count, x);
    guard_access(kernel, false);
    return index;
}

static void guard_count_zeros(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *x, double *sum)
{
    guard_access(kernel, true);
    tess_kernel_ref.count_zeros(kernel, dtype, count, x, sum);
    guard_access(kernel, false);
}

static void guard_find_flag(struct tess_kernel *kernel, int64_t count, const float *x, int32_t flag,
                            struct tess_verdict *verdict)
{
    guard_access(kernel, true);
    tess_kernel_ref.find_flag(kernel, count, x, flag, verdict);
    guard_access(kernel, false);
}

static void guard_leaf_sum(struct tess_kernel *kernel, int64_t leaves, int64_t leaf_rows,
                           const float *loss, const int32_t *correct, double *sum,
                           struct tess_verdict *verdict)
{
    guard_access(kernel, true);
    tess_kernel_ref.leaf_sum(kernel, leaves, leaf_rows, loss, correct, sum, verdict);
    guard_access(kernel, false);
}

static void guard_maximum(struct tess_kernel *kernel, int64_t count, const float *x, float *y)
{
    guard_access(kernel, true);
    tess_kernel_ref.maximum(kernel, count, x, y);
    guard_access(kernel, false);
}

static void guard_normal(struct tess_kernel *kernel, const uint32_t key[2], uint64_t first,
                         int64_t count, float mean, float deviation, float *y)
{
    guard_access(kernel, true);
    tess_kernel_ref.normal(kernel, key, first, count, mean, deviation, y);
    guard_access(kernel, false);
}

static void guard_update_judge(struct tess_kernel *kernel, const struct tess_judge *judge)
{
    guard_access(kernel, true);
    tess_kernel_ref.update_judge(kernel, judge);
    guard_access(kernel, false);
}

static void guard_cast_stochastic(struct tess_kernel *kernel, int64_t count, const float *x,
                                  enum tess_dtype to, const uint64_t key[2], uint64_t first,
                                  void *y)
{
    guard_access(kernel, true);
    tess_kernel_ref.cast_stochastic(kernel, count, x, to, key, first, y);
    guard_access(kernel, false);
}

static void guard_update(struct tess_kernel *kernel, const struct tess_update *update)
{
    guard_access(kernel, true);
    tess_kernel_ref.update(kernel, update);
    guard_access(kernel, false);
}

static void guard_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update)
{
    guard_access(kernel, true);
    tess_kernel_ref.lamb_direction(kernel, update);
    guard_access(kernel, false);
}

static bool guard_supports(const struct tess_op_desc *desc, char *why, size_t why_bytes)
{
    return tess_kernel_ref.supports(desc, why, why_bytes);
}

const struct tess_kernel_ops tess_kernel_guard = {
    .abi = TESS_ABI,
    .name = "guard",
    .summary = "ref on protected memory filled with NaN, for tests",
    .state_size = sizeof(struct guard_state),
    .open = tess__guard_open,
    .close = tess__guard_close,
    .adopt = tess__guard_adopt,
    .disown = tess__guard_disown,
    .access = guard_access,
#include "guard/operations.h"
};

const struct tess_kernel_ops tess_kernel_guard_queue = {
    .abi = TESS_ABI,
    .name = "guard_queue",
    .summary = "guard with far memory and queues that run as late as fences allow, for tests",
    .state_size = sizeof(struct guard_state),
    .far_memory = true,
    .queue = &tess__guard_queue_ops,
    .open = tess__guard_queue_open,
    .close = tess__guard_queue_close,
    .adopt = tess__guard_adopt,
    .disown = tess__guard_queue_disown,
    .access = tess__guard_queue_access,
    .alloc = tess__guard_alloc,
    .free = tess__guard_queue_free,
    .read = tess__guard_queue_copy,
    .write = tess__guard_queue_copy,
#include "guard/operations.h"
};
