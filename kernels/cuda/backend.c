/*
 * The table of the backend `cuda`, its opening and closing, and its prepared operations by kind.
 * The work is in the files beside.
 *
 * A kernel is on the device that the thread which opens it has selected
 * (tess_module.device_select). Where that has selected none, nothing is done yet: a kernel that
 * only plans, on a machine without a device or in a launcher that will fork its ranks, never
 * touches the driver. The first operation that needs a device selects the first one; where there is
 * none, it fails with the reason.
 */
#include "cuda/cudnn/present.h"
#include "cuda/host.h"
#include "cuda/products/matmul.h"
#include "kernel_open.h"
#include "tessera/version.h"

/* ---- opening ------------------------------------------------------------------------------ */

/* Also of a kernel that only planned, or that was opened in part. */
static void cuda_close(struct tess_kernel *kernel)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (tess__cuda_hangs())
        return;
    tess__cuda_graph_close(kernel);
    tess__cudnn_close(kernel);            /* while there is the stream that its handle has */
    tess__cuda_queue_stop(kernel->queue); /* its work is done: nothing below is in use any more */
    tess__cuda_matmul_close(kernel);
    tess__cuda_memory_close(kernel);
    if (state->workspace != NULL)
        tess__cuda_log_error(cudaFree(state->workspace), "cudaFree");
    if (state->blas != NULL && cublasLtDestroy(state->blas) != CUBLAS_STATUS_SUCCESS)
        tess_log(TESS_LOG_DEBUG, "kernel cuda: cublasLtDestroy failed");
    state->workspace = NULL;
    state->blas = NULL;
    state->planned_only = true;
}

static enum tess_status cuda_make_workspace(struct cuda_state *state)
{
    const uint64_t free_before = tess__cuda_free_bytes();
    CUBLAS_TRY(cublasLtCreate(&state->blas));
    CUDA_TRY(cudaMalloc(&state->workspace, CUDA_WORKSPACE_BYTES));
    tess__cuda_usage_took(state->device, CUDA_USAGE_WORKSPACE, free_before);
    return TESS_OK;
}

static enum tess_status cuda_open_device(struct tess_kernel *kernel)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    state->device = tess__cuda_selected();
    state->planned_only = false; /* what is opened here may use what is open already */
    TESS_TRY(tess__cuda_queue_start(kernel->queue, false));
    TESS_TRY(cuda_make_workspace(state));
    TESS_TRY(tess__cuda_memory_open(kernel));
    return tess__cuda_matmul_open(kernel);
}

static enum tess_status cuda_start(struct tess_kernel *kernel, const char *what)
{
    const struct cuda_survey *survey = tess__cuda_survey(true);
    if (survey->count == 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "kernel cuda: cannot %s: %s", what, survey->why);
    if (tess__cuda_selected() < 0)
        TESS_TRY(tess__cuda_select(0, false));
    const enum tess_status status = cuda_open_device(kernel);
    if (status != TESS_OK)
        cuda_close(kernel);
    return status;
}

static enum tess_status cuda_open(struct tess_kernel *kernel)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    state->planned_only = true;
    state->start = cuda_start;
    state->queue = (struct tess_queue){.ops = &tess__cuda_queue, .kernel = kernel};
    kernel->queue = &state->queue;
    return tess__cuda_selected() < 0 ? TESS_OK : cuda_start(kernel, "open");
}

static enum tess_status cuda_choose(struct tess_kernel *kernel,
                                    const struct tess_kernel_choices *choices)
{
    tess__cuda_state(kernel)->limit_s = TESS_KERNEL_TIMEOUTS * choices->timeout_s;
    TESS_TRY(tess__cuda_conv_choose(kernel, choices->conv));
    TESS_TRY(tess__cuda_attention_choose(kernel, choices->attention, choices->store));
    TESS_TRY(tess__cuda_matmul_tf32(kernel, choices->tf32));
    TESS_TRY(tess__cuda_matmul_fp8_fast(kernel, choices->fp8_fast));
    TESS_TRY(tess__cuda_matmul_same_rows(kernel, choices->same_rows));
    TESS_TRY(tess__cuda_matmul_sm_target(kernel, choices->sm_target));
    return tess__cuda_matmul_autotune(kernel, choices->autotune, choices->store);
}

static void cuda_describe(const struct tess_kernel *kernel,
                          void (*line)(void *context, const char *text), void *context)
{
    tess__cuda_conv_describe(kernel, line, context);
    tess__cuda_attention_describe(kernel, line, context);
    tess__cuda_matmul_describe(kernel, line, context);
}

static enum tess_status cuda_failed(struct tess_kernel *kernel)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (state->planned_only)
        return TESS_OK;
    const cudaError_t error = state->error;
    const char *where = state->error_where;
    state->error = cudaSuccess;
    if (error != cudaSuccess)
        return tess__cuda_fail(error, where);
    if (state->graph > 0) /* what is recorded has not run */
        return TESS_OK;
    const cudaError_t now = tess__cuda_polled(cudaStreamQuery(tess__cuda_stream(kernel)));
    return now == cudaSuccess || now == cudaErrorNotReady ? TESS_OK
                                                          : tess__cuda_fail(now, "queued work");
}

/* ---- prepared operations ------------------------------------------------------------------ */

static enum tess_status cuda_op_open(struct tess_op *op)
{
    TESS_TRY(tess__cuda_need(op->kernel, "open an operation"));
    struct tess_op_needs needs;
    TESS_TRY(tess__cuda_op_needs(&op->desc, &needs));
    if (needs.scratch_bytes > 0 && op->scratch == NULL)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "kernel cuda: an operation needs %zu bytes of scratch, got none",
                  needs.scratch_bytes);
    switch (op->desc.kind) {
    case TESS_OP_LINEAR:
        return tess__cuda_linear_open(op);
    case TESS_OP_CONV2D:
        return tess__cuda_conv_open(op);
    case TESS_OP_ATTENTION:
        return tess__cuda_attention_open(op);
    default:
        return TESS_OK;
    }
}

static void cuda_op_close(struct tess_op *op)
{
    if (op->desc.kind == TESS_OP_LINEAR)
        tess__cuda_linear_close(op);
    else if (op->desc.kind == TESS_OP_CONV2D)
        tess__cuda_conv_close(op);
    else if (op->desc.kind == TESS_OP_ATTENTION)
        tess__cuda_attention_close(op);
}

const struct tess_kernel_ops tess_kernel_cuda = {.abi = TESS_ABI,
                                                 .name = "cuda",
                                                 .summary =
                                                     "NVIDIA GPUs: cuBLASLt and kernels of our own",
                                                 .state_size = sizeof(struct cuda_state),
                                                 .far_memory = true,
                                                 .stacks = true,
                                                 .queue = &tess__cuda_queue,
                                                 .supports = tess__cuda_supports,
                                                 .open = cuda_open,
                                                 .close = cuda_close,
                                                 .choose = cuda_choose,
                                                 .describe = cuda_describe,
                                                 .settle = tess__cuda_settle,
                                                 .adopt = tess__cuda_adopt,
                                                 .disown = tess__cuda_disown,
                                                 .alloc = tess__cuda_alloc,
                                                 .free = tess__cuda_free,
                                                 .read = tess__cuda_read,
                                                 .write = tess__cuda_write,
                                                 .pin = tess__cuda_pin,
                                                 .unpin = tess__cuda_unpin,
                                                 .failed = cuda_failed,
                                                 .graph_begin = tess__cuda_graph_begin,
                                                 .graph_end = tess__cuda_graph_end,
                                                 .graph_play = tess__cuda_graph_play,
                                                 .op_needs = tess__cuda_op_needs,
                                                 .op_open = cuda_op_open,
                                                 .op_close = cuda_op_close,
#define CUDA_SLOT(name) .name = tess__cuda_##name,
                                                 TESS_OPERATION_LIST(CUDA_SLOT)
#undef CUDA_SLOT
};
