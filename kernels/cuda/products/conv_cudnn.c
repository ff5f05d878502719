/*
 * Convolutions over cuDNN on a device: a handle and one piece of workspace for a kernel, plans of
 * one leaf, and running them. A plan is one engine with its settings, found once for the leaf's
 * shape; since every leaf is a run of its own, its bits depend on nothing else. Which descriptors
 * make a plan is graph_cudnn.c's.
 */
#include "cuda/host.h"
#include "cuda/products/cudnn.h"
#include "cuda/products/matmul.h"

#include <stdlib.h>

struct cudnn_plan {
    struct cudnn_conv conv;
    struct cudnn_choice choice;
};

/* Behind cuda_state.cudnn. */
struct cuda_cudnn {
    cudnnHandle_t handle;
    void *workspace; /* used by one plan at a time: all run on the kernels' stream */
    size_t workspace_bytes;
};

/* ---- the kernel's share ------------------------------------------------------------------- */

static enum tess_status cudnn_open(struct tess_kernel *kernel)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (state->cudnn != NULL)
        return TESS_OK;
    const char *why;
    const struct cudnn_library *library = tess__cudnn_library(&why);
    if (library == NULL)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "kernel cuda: %s", why);
    const uint64_t free_before = tess__cuda_free_bytes();
    state->cudnn = calloc(1, sizeof(*state->cudnn));
    if (state->cudnn == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for what is kept for cuDNN");
    CUDNN_TRY(library->cudnnCreate(&state->cudnn->handle));
    CUDNN_TRY(library->cudnnSetStream(state->cudnn->handle, tess__cuda_stream(kernel)));
    tess__cuda_usage_took(state->device, CUDA_USAGE_WORKSPACE, free_before);
    return TESS_OK;
}

void tess__cudnn_close(struct tess_kernel *kernel)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (state->cudnn == NULL)
        return;
    const struct cudnn_library *library = tess__cudnn_library(NULL);
    if (state->cudnn->workspace != NULL)
        tess__cuda_log_error(cudaFree(state->cudnn->workspace), "cudaFree");
    if (state->cudnn->handle != NULL &&
        library->cudnnDestroy(state->cudnn->handle) != CUDNN_STATUS_SUCCESS)
        tess_log(TESS_LOG_DEBUG, "kernel cuda: cudnnDestroy failed");
    free(state->cudnn);
    state->cudnn = NULL;
}

/* Room for the plan that needs most so far. */
static enum tess_status cudnn_make_room(struct tess_kernel *kernel, size_t bytes)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    struct cuda_cudnn *cudnn = state->cudnn;
    if (bytes <= cudnn->workspace_bytes)
        return TESS_OK;
    const uint64_t free_before = tess__cuda_free_bytes();
    void *old = cudnn->workspace;
    cudnn->workspace = NULL;
    cudnn->workspace_bytes = 0;
    if (old != NULL) /* it waits for what is still using it */
        CUDA_TRY(cudaFree(old));
    CUDA_TRY(cudaMalloc(&cudnn->workspace, bytes));
    cudnn->workspace_bytes = bytes;
    tess__cuda_usage_took(state->device, CUDA_USAGE_WORKSPACE, free_before);
    return TESS_OK;
}

/* ---- plans -------------------------------------------------------------------------------- */

static enum tess_status cudnn_prepare(struct tess_kernel *kernel, struct cudnn_plan *plan)
{
    const struct cudnn_place place = {.handle = tess__cuda_state(kernel)->cudnn->handle};
    TESS_TRY(tess__cudnn_choose(&plan->conv, &place, &plan->choice));
    return cudnn_make_room(kernel, (size_t)plan->choice.workspace_bytes);
}

enum tess_status tess__cudnn_plan_open(struct tess_kernel *kernel, const struct tess_op_desc *desc,
                                       enum conv_way way, struct cudnn_plan **plan_out)
{
    static const char *const name[CONV_WAY_COUNT] = {"forward", "forward with bias",
                                                     "backward by data", "backward by weight"};
    *plan_out = NULL;
    TESS_TRY(cudnn_open(kernel));
    struct cudnn_plan *plan = calloc(1, sizeof(*plan));
    if (plan == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a plan of cuDNN");
    plan->conv = (struct cudnn_conv){
        .way = way,
        .tf32 = tess__cuda_matmul_compute(kernel, CUDA_R_32F, desc->f32_math) ==
                CUBLAS_COMPUTE_32F_FAST_TF32,
        .d = *desc,
    };
    const enum tess_status status = cudnn_prepare(kernel, plan);
    const bool found = plan->choice.plan != NULL;
    if (status == TESS_OK)
        tess_log(TESS_LOG_DEBUG,
                 "convolution of %lld channels to %lld, window %d, %s, %s: %s %lld, %lld bytes",
                 (long long)desc->in, (long long)desc->out, (int)desc->window,
                 tess_dtype_name(desc->dtype), name[way],
                 found ? "cuDNN's engine" : "no engine of cuDNN", (long long)plan->choice.engine,
                 (long long)plan->choice.workspace_bytes);
    if (status == TESS_OK && found)
        *plan_out = plan;
    else
        tess__cudnn_plan_close(plan);
    return status;
}

void tess__cudnn_plan_close(struct cudnn_plan *plan)
{
    if (plan == NULL)
        return;
    tess__cudnn_choice_drop(&plan->choice);
    free(plan);
}

/* ---- running ------------------------------------------------------------------------------ */

/* Operands of one run: what a pack is made of. */
struct cudnn_pack {
    int64_t count, id[4];
    const void *pointer[4];
};

static enum tess_status cudnn_gather(const struct cudnn_plan *plan, const struct cudnn_operands *o,
                                     struct cudnn_pack *pack)
{
    const struct cudnn_pack all = {
        .count = plan->conv.way == CONV_FORWARD_BIAS ? 4 : 3,
        .id = {CUDNN_X, CUDNN_W, CUDNN_Y, CUDNN_BIAS},
        .pointer = {o->x, o->w, o->y, o->bias},
    };
    for (int64_t i = 0; i < all.count; i++) {
        const int64_t align = tess__cudnn_alignment(&plan->conv, (enum cudnn_tensor)all.id[i]);
        if (((uintptr_t)all.pointer[i] & (uintptr_t)(align - 1)) != 0)
            TESS_FAIL(TESS_ERR_INTERNAL,
                      "operand %lld of a convolution is not aligned to %lld bytes",
                      (long long)all.id[i], (long long)align);
    }
    *pack = all;
    return TESS_OK;
}

static enum tess_status cudnn_run_pack(const struct cudnn_library *library,
                                       const struct cuda_cudnn *cudnn,
                                       const struct cudnn_plan *plan, const struct cudnn_pack *pack,
                                       cudnnBackendDescriptor_t variant)
{
    CUDNN_TRY(library->cudnnBackendSetAttribute(variant, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                                CUDNN_TYPE_INT64, pack->count, pack->id));
    CUDNN_TRY(library->cudnnBackendSetAttribute(variant, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                                CUDNN_TYPE_VOID_PTR, pack->count, pack->pointer));
    CUDNN_TRY(library->cudnnBackendSetAttribute(variant, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                                CUDNN_TYPE_VOID_PTR, 1, &cudnn->workspace));
    CUDNN_TRY(library->cudnnBackendFinalize(variant));
    CUDNN_TRY(library->cudnnBackendExecute(cudnn->handle, plan->choice.plan, variant));
    return TESS_OK;
}

/* The pointers of a run come in a descriptor that cannot be changed once it is finalized, so each
 * run makes one: some host memory, no waiting, nothing of the device's. */
enum tess_status tess__cudnn_plan_run(struct tess_kernel *kernel, const struct cudnn_plan *plan,
                                      const struct cudnn_operands *operands)
{
    const struct cuda_state *state = tess__cuda_state(kernel);
    const struct cudnn_library *library = tess__cudnn_library(NULL);
    struct cudnn_pack pack;
    cudnnBackendDescriptor_t variant;
    TESS_TRY(cudnn_gather(plan, operands, &pack));
    CUDNN_TRY(
        library->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &variant));
    enum tess_status status = cudnn_run_pack(library, state->cudnn, plan, &pack, variant);
    const cudnnStatus_t dropped = library->cudnnBackendDestroyDescriptor(variant);
    if (dropped != CUDNN_STATUS_SUCCESS)
        TESS_KEEP(status, tess__cudnn_fail(dropped, "cudnnBackendDestroyDescriptor"));
    return status;
}
