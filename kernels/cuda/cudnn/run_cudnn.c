/* cuDNN on a device: a handle and one piece of workspace for a kernel, and running plans. */
#include "cuda/cudnn/cudnn.h"
#include "cuda/host.h"

#include <stdlib.h>

/* Behind cuda_state.cudnn. */
struct cuda_cudnn {
    cudnnHandle_t handle;
    void *workspace; /* used by one plan at a time: all run on the kernels' stream */
    size_t workspace_bytes;
};

enum tess_status tess__cudnn_open(struct tess_kernel *kernel, struct cudnn_place *place_out)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (state->cudnn != NULL && state->cudnn->handle != NULL) {
        *place_out = (struct cudnn_place){.handle = state->cudnn->handle};
        return TESS_OK;
    }
    const char *why;
    const struct cudnn_library *library = tess__cudnn_library(&why);
    if (library == NULL)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "kernel cuda: %s", why);
    const uint64_t free_before = tess__cuda_free_bytes();
    if (state->cudnn == NULL)
        state->cudnn = calloc(1, sizeof(*state->cudnn));
    if (state->cudnn == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for what is kept for cuDNN");
    CUDNN_TRY(library->cudnnCreate(&state->cudnn->handle));
    CUDNN_TRY(library->cudnnSetStream(state->cudnn->handle, tess__cuda_stream(kernel)));
    tess__cuda_usage_took(state->device, CUDA_USAGE_WORKSPACE, free_before);
    *place_out = (struct cudnn_place){.handle = state->cudnn->handle};
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

enum tess_status tess__cudnn_make_room(struct tess_kernel *kernel, int64_t bytes)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    struct cuda_cudnn *cudnn = state->cudnn;
    if ((size_t)bytes <= cudnn->workspace_bytes)
        return TESS_OK;
    const uint64_t free_before = tess__cuda_free_bytes();
    void *old = cudnn->workspace;
    cudnn->workspace = NULL;
    cudnn->workspace_bytes = 0;
    if (old != NULL) /* it waits for what is still using it */
        CUDA_TRY(cudaFree(old));
    CUDA_TRY(cudaMalloc(&cudnn->workspace, (size_t)bytes));
    cudnn->workspace_bytes = (size_t)bytes;
    tess__cuda_usage_took(state->device, CUDA_USAGE_WORKSPACE, free_before);
    return TESS_OK;
}

static enum tess_status run_pack(const struct cudnn_library *library,
                                 const struct cuda_cudnn *cudnn, const struct cudnn_choice *choice,
                                 const struct cudnn_pack *pack, cudnnBackendDescriptor_t variant)
{
    CUDNN_TRY(library->cudnnBackendSetAttribute(variant, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                                CUDNN_TYPE_INT64, pack->count, pack->id));
    CUDNN_TRY(library->cudnnBackendSetAttribute(variant, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                                CUDNN_TYPE_VOID_PTR, pack->count, pack->pointer));
    CUDNN_TRY(library->cudnnBackendSetAttribute(variant, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                                CUDNN_TYPE_VOID_PTR, 1, &cudnn->workspace));
    CUDNN_TRY(library->cudnnBackendFinalize(variant));
    CUDNN_TRY(library->cudnnBackendExecute(cudnn->handle, choice->plan, variant));
    return TESS_OK;
}

/* The pointers of a run come in a descriptor that cannot be changed once it is finalized, so each
 * run makes one: some host memory, no waiting, nothing of the device's. */
enum tess_status tess__cudnn_run(struct tess_kernel *kernel, const struct cudnn_choice *choice,
                                 const struct cudnn_pack *pack)
{
    const struct cuda_state *state = tess__cuda_state(kernel);
    const struct cudnn_library *library = tess__cudnn_library(NULL);
    cudnnBackendDescriptor_t variant;
    CUDNN_TRY(
        library->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &variant));
    enum tess_status status = run_pack(library, state->cudnn, choice, pack, variant);
    const cudnnStatus_t dropped = library->cudnnBackendDestroyDescriptor(variant);
    if (dropped != CUDNN_STATUS_SUCCESS)
        TESS_KEEP(status, tess__cudnn_fail(dropped, "cudnnBackendDestroyDescriptor"));
    return status;
}
