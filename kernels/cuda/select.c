/*
 * Which device a thread uses, contexts of the process on devices, and access from one device to the
 * memory of another. Devices have the numbers of the survey.
 */
#include "cuda/host.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* The calling thread's device: its number here, -1 before it has one. */
static __thread int32_t select_device = -1;

/* Devices that this process has a context on. */
static struct {
    pthread_mutex_t lock;
    bool opened[TESS_DEVICE_MAX];
    uint64_t enabled[TESS_DEVICE_MAX]; /* bit p: peer access to p */
} selected = {.lock = PTHREAD_MUTEX_INITIALIZER};

int tess__cuda_selected(void)
{
    return select_device < 0 ? -1 : tess__cuda_survey(false)->ordinal[select_device];
}

enum tess_status tess__cuda_check_device(const struct cuda_survey *survey, int32_t device)
{
    if (survey->count == 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "no device: %s", survey->why);
    if (device < 0 || device >= survey->count)
        TESS_FAIL(TESS_ERR_USAGE, "there is no device %d: this machine has %d, numbered from 0",
                  (int)device, (int)survey->count);
    return TESS_OK;
}

/* The process's first use of a device: makes its context and counts what that takes. */
static enum tess_status select_open_device(const struct cuda_survey *survey, int32_t device)
{
    const int ordinal = survey->ordinal[device];
    const uint64_t free_before = tess__cuda_free_bytes_before(survey->info[device].bus);
    CUDA_TRY(cudaInitDevice(ordinal, 0, 0));
    CUDA_TRY(cudaSetDevice(ordinal));
    tess__cuda_usage_took(ordinal, CUDA_USAGE_CONTEXT, free_before);
    selected.opened[device] = true;
    return TESS_OK;
}

/* Let this process's kernels on `device` use the memory of `peer`. Locked. */
static bool select_enable(const struct cuda_survey *survey, int32_t device, int32_t peer)
{
    const uint64_t bit = (uint64_t)1 << peer;
    if ((survey->reach[device] & bit) == 0 || (selected.enabled[device] & bit) != 0)
        return (survey->reach[device] & bit) != 0;
    int before = -1;
    cudaError_t error = cudaGetDevice(&before);
    if (error == cudaSuccess)
        error = cudaSetDevice(survey->ordinal[device]);
    if (error == cudaSuccess)
        error = cudaDeviceEnablePeerAccess(survey->ordinal[peer], 0);
    const bool enabled = error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled;
    if (error != cudaSuccess)
        tess__cuda_log_error(cudaGetLastError(), "reaching the memory of another device");
    if (before >= 0)
        tess__cuda_log_error(cudaSetDevice(before), "cudaSetDevice");
    if (enabled)
        selected.enabled[device] |= bit;
    return enabled;
}

/* Ranks that are threads read each other's memory: all devices that the process has opened so far,
 * and this one. Where it is refused, copies go through the host, and a kernel that reads another
 * device's memory fails with a message. Locked. */
static void select_meet(const struct cuda_survey *survey, int32_t device)
{
    for (int32_t peer = 0; peer < survey->count; peer++) {
        if (peer == device || !selected.opened[peer])
            continue;
        (void)select_enable(survey, device, peer);
        (void)select_enable(survey, peer, device);
    }
}

/*
 * A kernel that is loaded at its first launch waits for all that the device does, so kernels that
 * wait for another rank's could wait for ever. Where there are some, all code is loaded at once:
 * 2 to 3 s for that of cuBLASLt (H100). CUDA reads the setting when it starts in this process; what
 * the user has set stays.
 */
static void select_loading(bool waits)
{
    setenv("CUDA_MODULE_LOADING", waits ? "EAGER" : "LAZY", 0);
}

enum tess_status tess__cuda_select(int32_t device, bool waits)
{
    select_loading(waits);
    const struct cuda_survey *survey = tess__cuda_survey(true);
    TESS_TRY(tess__cuda_check_device(survey, device));
    enum tess_status status = TESS_OK;
    pthread_mutex_lock(&selected.lock);
    if (!selected.opened[device]) {
        status = select_open_device(survey, device);
        if (status == TESS_OK)
            select_meet(survey, device);
    }
    pthread_mutex_unlock(&selected.lock);
    TESS_TRY(status);
    CUDA_TRY(cudaSetDevice(survey->ordinal[device]));
    select_device = device;
    return TESS_OK;
}

/* In a process that uses both devices this also enables the access. */
bool tess__cuda_reaches(int32_t device, int32_t peer)
{
    const struct cuda_survey *survey = tess__cuda_survey(false);
    if (device < 0 || device >= survey->count || peer < 0 || peer >= survey->count)
        return false;
    if (device == peer)
        return true;
    bool reaches = (survey->reach[device] >> peer & 1) != 0;
    pthread_mutex_lock(&selected.lock);
    if (reaches && selected.opened[device] && selected.opened[peer])
        reaches = select_enable(survey, device, peer);
    pthread_mutex_unlock(&selected.lock);
    return reaches;
}
