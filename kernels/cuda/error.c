/* Messages about errors of CUDA, and waiting for events. */
#include "cuda/host.h"

#include "base/clock.h"

#include <stdatomic.h>
#include <time.h>

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

static _Atomic bool event_hangs;

bool tess__cuda_hangs(void)
{
    return atomic_load(&event_hangs);
}

void tess__cuda_give_up(void)
{
    atomic_store(&event_hangs, true);
}

/* The sleep between two looks: a share of what has passed, so that little is lost at the end. */
static void event_sleep(double waited_s)
{
    const double most_s = waited_s < 1 ? 100e-6 : 1e-3;
    const double pause_s = waited_s / 32 < most_s ? waited_s / 32 : most_s;
    const struct timespec pause = {.tv_nsec = (long)(pause_s * 1e9)};
    (void)nanosleep(&pause, NULL);
}

/*
 * Not cudaEventSynchronize, which never returns where a kernel never ends. What this costs at the
 * end of a step: up to EVENT_AWAKE_S nothing; then at most 1/32 of the wait, 0.1 ms in the first
 * second and 1 ms later, and what the system's clock adds to a sleep (50 us by default, prctl(2),
 * PR_SET_TIMERSLACK).
 */
static enum tess_status event_poll(const struct cuda_state *state, cudaEvent_t event,
                                   cudaStream_t stream, const char *what)
{
    struct tess_awake awake = {0};
    for (;;) {
        const cudaError_t error =
            tess__cuda_polled(event != NULL ? cudaEventQuery(event) : cudaStreamQuery(stream));
        if (error != cudaErrorNotReady)
            return tess__cuda_status(error, event != NULL ? "cudaEventQuery" : "cudaStreamQuery");
        const double waited_s = tess_awake_s(&awake);
        if (state->limit_s > 0 && waited_s > state->limit_s) {
            tess__cuda_give_up();
            TESS_FAIL(TESS_ERR_TIMEOUT,
                      "device %d: %s: what was queued has not ended after %g s, %d times "
                      "--timeout: a kernel hangs, or the device does: look at nvidia-smi and dmesg",
                      state->device, what, state->limit_s, TESS_KERNEL_TIMEOUTS);
        }
        if (waited_s > EVENT_AWAKE_S)
            event_sleep(waited_s);
    }
}

enum tess_status tess__cuda_await(const struct cuda_state *state, cudaEvent_t event,
                                  const char *what)
{
    return event_poll(state, event, NULL, what);
}

enum tess_status tess__cuda_drain(const struct tess_kernel *kernel, const char *what)
{
    return event_poll(tess__cuda_state(kernel), NULL, tess__cuda_stream(kernel), what);
}
