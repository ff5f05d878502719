/* Messages about errors of CUDA, and waiting for events. */
#include "cuda/host.h"

#include "base/clock.h"

/* As tess_event_wait promises: awake for this long, then asleep. */
#define EVENT_AWAKE_S 50e-6

void tess__cuda_note(struct tess_kernel *kernel, cudaError_t error, const char *where)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (error == cudaSuccess || state->error != cudaSuccess)
        return;
    state->error = error;
    state->error_where = where;
}

void tess__cuda_log_error(cudaError_t error, const char *where)
{
    /* At the end of the process the runtime may be gone before its users are. */
    if (error != cudaSuccess && error != cudaErrorCudartUnloading)
        tess_log(TESS_LOG_DEBUG, "%s: %s (%s)", where, cudaGetErrorString(error),
                 cudaGetErrorName(error));
}

/* What to do about the errors that a user can do something about; "" for the others. */
static const char *error_remedy(cudaError_t error)
{
    switch (error) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
        return ": this build has no code for the device, configure with its compute capability in "
               "TESS_CUDA_ARCHS";
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchTimeout:
    case cudaErrorDevicesUnavailable:
        return ": the device is broken or taken, look at nvidia-smi and dmesg";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorInvalidAddressSpace:
        return ": a kernel went astray, run again with CUDA_LAUNCH_BLOCKING=1 or under "
               "compute-sanitizer to find it";
    case cudaErrorInitializationError:
        return ": a process that was forked from one that uses CUDA cannot use it, fork ranks "
               "before "
               "a device is selected";
    case cudaErrorStreamCaptureUnjoined:
        return ": a queue that followed the recorded one was not followed back before its end";
    case cudaErrorStreamCaptureMerge:
        return ": ranks that record at the same time cannot follow each other's fences";
    default:
        return "";
    }
}

enum tess_status tess__cuda_fail(cudaError_t error, const char *where)
{
    int device = -1;
    if (cudaGetDevice(&device) != cudaSuccess)
        device = -1;
    /* Clear the error: otherwise the next launch would report it again. */
    tess__cuda_log_error(cudaGetLastError(), where);
    if (error == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, total_bytes = 0;
        if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess)
            TESS_FAIL(TESS_ERR_MEMORY,
                      "device %d: %s: out of memory (%.2f of %.2f GiB are free): use smaller or "
                      "fewer batches, --recompute, more ranks, or end other programs on it",
                      device, where, (double)free_bytes / (1 << 30),
                      (double)total_bytes / (1 << 30));
        TESS_FAIL(TESS_ERR_MEMORY, "device %d: %s: out of memory", device, where);
    }
    TESS_FAIL(TESS_ERR_DEVICE, "device %d: %s: %s (%s)%s", device, where, cudaGetErrorString(error),
              cudaGetErrorName(error), error_remedy(error));
}

cudaError_t tess__cuda_polled(cudaError_t error)
{
    if (error != cudaErrorNotReady)
        return error;
    const cudaError_t last = cudaGetLastError();
    return last == cudaSuccess ? cudaErrorNotReady : last;
}

cudaError_t tess__cuda_await(cudaEvent_t event)
{
    const double until_s = tess_clock_s() + EVENT_AWAKE_S;
    cudaError_t error;
    do
        error = tess__cuda_polled(cudaEventQuery(event));
    while (error == cudaErrorNotReady && tess_clock_s() < until_s);
    return error == cudaErrorNotReady ? cudaEventSynchronize(event) : error;
}
