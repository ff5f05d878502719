/*
 * cuDNN's backend API on the made-up device: the made-up library of
 * tests/kernels/cuda/fake_engine.h under cuDNN's own names. The module opens cuDNN at run time and
 * finds these in itself, where TESSERA_CUDNN names the module's own file. Plans are work of the
 * handle's stream.
 */
#include "device/madeup/madeup.h"
#include "kernels/cuda/fake_descriptor.h"

#include <stdlib.h>
#include <string.h>

#define CUDNN_EXPORT __attribute__((visibility("default")))

CUDNN_EXPORT size_t CUDNNWINAPI cudnnGetVersion(void)
{
    return fake_library.cudnnGetVersion();
}

CUDNN_EXPORT const char *CUDNNWINAPI cudnnGetErrorString(cudnnStatus_t error)
{
    return fake_library.cudnnGetErrorString(error);
}

CUDNN_EXPORT void CUDNNWINAPI cudnnGetLastErrorString(char *text, size_t bytes)
{
    fake_library.cudnnGetLastErrorString(text, bytes);
}

CUDNN_EXPORT cudnnStatus_t CUDNNWINAPI cudnnCreate(cudnnHandle_t *handle)
{
    const int failed = madeup_injected(__func__, CUDNN_STATUS_NOT_INITIALIZED);
    return failed != 0 ? (cudnnStatus_t)failed : fake_library.cudnnCreate(handle);
}

CUDNN_EXPORT cudnnStatus_t CUDNNWINAPI cudnnDestroy(cudnnHandle_t handle)
{
    return fake_library.cudnnDestroy(handle);
}

CUDNN_EXPORT cudnnStatus_t CUDNNWINAPI cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    return fake_library.cudnnSetStream(handle, stream);
}

CUDNN_EXPORT cudnnStatus_t CUDNNWINAPI
cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    return fake_library.cudnnBackendCreateDescriptor(type, out);
}

CUDNN_EXPORT cudnnStatus_t CUDNNWINAPI
cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    return fake_library.cudnnBackendDestroyDescriptor(descriptor);
}

CUDNN_EXPORT cudnnStatus_t CUDNNWINAPI cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    const int failed = madeup_injected(__func__, CUDNN_STATUS_BAD_PARAM);
    return failed != 0 ? (cudnnStatus_t)failed : fake_library.cudnnBackendFinalize(descriptor);
}

CUDNN_EXPORT cudnnStatus_t CUDNNWINAPI cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                                                cudnnBackendAttributeName_t name,
                                                                cudnnBackendAttributeType_t type,
                                                                int64_t count, const void *values)
{
    return fake_library.cudnnBackendSetAttribute(descriptor, name, type, count, values);
}

CUDNN_EXPORT cudnnStatus_t CUDNNWINAPI cudnnBackendGetAttribute(
    const cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type, int64_t asked, int64_t *count, void *values)
{
    return fake_library.cudnnBackendGetAttribute(descriptor, name, type, asked, count, values);
}

/* ---- running --------------------------------------------------------------------------------- */

/* What an execution keeps: numbers that are given by value are read by the call. */
struct cudnn_work {
    struct fake_run run;
    float value[FAKE_OPERANDS];
};

static cudaError_t cudnn_run(const void *context)
{
    const struct cudnn_work *work = context;
    if (fake_compute(&work->run) != CUDNN_STATUS_SUCCESS)
        madeup_fail("cudnnBackendExecute: a graph that is not modelled");
    return cudaSuccess;
}

CUDNN_EXPORT cudnnStatus_t CUDNNWINAPI cudnnBackendExecute(cudnnHandle_t handle,
                                                           cudnnBackendDescriptor_t plan,
                                                           cudnnBackendDescriptor_t pack)
{
    const int failed = madeup_injected(__func__, CUDNN_STATUS_EXECUTION_FAILED);
    struct cudnn_work *work = calloc(1, sizeof(*work));
    if (work == NULL)
        madeup_fail("no memory");
    cudnnStatus_t status =
        failed != 0 ? (cudnnStatus_t)failed : fake_prepare(handle, plan, pack, &work->run);
    for (int64_t i = 0; i < work->run.count && status == CUDNN_STATUS_SUCCESS; i++)
        if (madeup_place_of(work->run.pointer[i], NULL) == MADEUP_HOST) {
            memcpy(&work->value[i], work->run.pointer[i], sizeof(float));
            work->run.pointer[i] = &work->value[i];
        }
    if (status != CUDNN_STATUS_SUCCESS) {
        free(work);
        return status;
    }
    const struct madeup_work item = {"cudnnBackendExecute", cudnn_run, free, work};
    return madeup_submit(((const struct fake_handle *)(const void *)handle)->stream, &item) ==
                   cudaSuccess
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_EXECUTION_FAILED;
}
