/*
 * What libtessera_cuda.so exports: `tess_module` (tessera/device.h). Devices by the numbers of the
 * survey, which leaves out those that this build has no code for.
 */
#include "cuda/host.h"
#include "cuda/nccl.h"
#include "tessera/version.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

/* The calling thread's device: its number here, -1 before it has one. */
static __thread int32_t module_device = -1;

/* Devices that this process has a context on. */
static struct {
    pthread_mutex_t lock;
    bool opened[TESS_DEVICE_MAX];
    uint64_t enabled[TESS_DEVICE_MAX]; /* bit p: peer access to p */
} module = {.lock = PTHREAD_MUTEX_INITIALIZER};

int tess__cuda_selected(void)
{
    return module_device < 0 ? -1 : tess__cuda_survey(false)->ordinal[module_device];
}

static int32_t module_device_count(char *why, size_t why_bytes)
{
    const struct cuda_survey *survey = tess__cuda_survey(false);
    if (survey->count == 0 && why_bytes > 0)
        snprintf(why, why_bytes, "%s", survey->why);
    return survey->count;
}

static enum tess_status module_check(const struct cuda_survey *survey, int32_t device)
{
    if (survey->count == 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "no device: %s", survey->why);
    if (device < 0 || device >= survey->count)
        TESS_FAIL(TESS_ERR_USAGE, "there is no device %d: this machine has %d, numbered from 0",
                  (int)device, (int)survey->count);
    return TESS_OK;
}

static enum tess_status module_device_info(int32_t device, struct tess_device_info *info_out)
{
    const struct cuda_survey *survey = tess__cuda_survey(false);
    TESS_TRY(module_check(survey, device));
    *info_out = survey->info[device];
    return TESS_OK;
}

/* The process's first use of a device: makes its context and counts what that takes. */
static enum tess_status module_open_device(const struct cuda_survey *survey, int32_t device)
{
    const int ordinal = survey->ordinal[device];
    const uint64_t free_before = tess__cuda_free_bytes_before(survey->info[device].bus);
    CUDA_TRY(cudaInitDevice(ordinal, 0, 0));
    CUDA_TRY(cudaSetDevice(ordinal));
    tess__cuda_usage_took(ordinal, CUDA_USAGE_CONTEXT, free_before);
    module.opened[device] = true;
    return TESS_OK;
}

/* Let this process's kernels on `device` use the memory of `peer`. Locked. */
static bool module_enable(const struct cuda_survey *survey, int32_t device, int32_t peer)
{
    const uint64_t bit = (uint64_t)1 << peer;
    if ((survey->reach[device] & bit) == 0 || (module.enabled[device] & bit) != 0)
        return (survey->reach[device] & bit) != 0;
    int before = -1;
    cudaError_t error = cudaGetDevice(&before);
    if (error == cudaSuccess)
        error = cudaSetDevice(survey->ordinal[device]);
    if (error == cudaSuccess)
        error = cudaDeviceEnablePeerAccess(survey->ordinal[peer], 0);
    const bool enabled = error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled;
    if (error != cudaSuccess)
        tess__cuda_tell(cudaGetLastError(), "reaching the memory of another device");
    if (before >= 0)
        tess__cuda_tell(cudaSetDevice(before), "cudaSetDevice");
    if (enabled)
        module.enabled[device] |= bit;
    return enabled;
}

/* Ranks that are threads read each other's memory: all devices that the process has opened so far,
 * and this one. Where it is refused, their copies go through the host, and what runs on one and
 * reads another's memory fails and says so. Locked. */
static void module_meet(const struct cuda_survey *survey, int32_t device)
{
    for (int32_t peer = 0; peer < survey->count; peer++) {
        if (peer == device || !module.opened[peer])
            continue;
        (void)module_enable(survey, device, peer);
        (void)module_enable(survey, peer, device);
    }
}

enum tess_status tess__cuda_select(int32_t device)
{
    const struct cuda_survey *survey = tess__cuda_survey(true);
    TESS_TRY(module_check(survey, device));
    enum tess_status status = TESS_OK;
    pthread_mutex_lock(&module.lock);
    if (!module.opened[device]) {
        status = module_open_device(survey, device);
        if (status == TESS_OK)
            module_meet(survey, device);
    }
    pthread_mutex_unlock(&module.lock);
    TESS_TRY(status);
    CUDA_TRY(cudaSetDevice(survey->ordinal[device]));
    module_device = device;
    return TESS_OK;
}

static enum tess_status module_device_memory(struct tess_device_memory *memory_out)
{
    if (module_device < 0)
        TESS_FAIL(TESS_ERR_USAGE, "no device was selected in this thread, so none has memory");
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
    *memory_out = (struct tess_device_memory){.free_bytes = free_bytes, .total_bytes = total_bytes};
    return TESS_OK;
}

static void module_device_usage(struct tess_device_usage *usage_out)
{
    tess__cuda_usage_get(tess__cuda_selected(), usage_out);
}

/* A process that uses the device gets the access with the answer; others get the answer alone. */
static bool module_device_reaches(int32_t device, int32_t peer)
{
    const struct cuda_survey *survey = tess__cuda_survey(false);
    if (device < 0 || device >= survey->count || peer < 0 || peer >= survey->count)
        return false;
    if (device == peer)
        return true;
    bool reaches = (survey->reach[device] >> peer & 1) != 0;
    pthread_mutex_lock(&module.lock);
    if (reaches && module.opened[device] && module.opened[peer])
        reaches = module_enable(survey, device, peer);
    pthread_mutex_unlock(&module.lock);
    return reaches;
}

#define MODULE_TEXT_(x) #x
#define MODULE_TEXT(x)  MODULE_TEXT_(x)

extern const struct tess_module tess_module;
__attribute__((visibility("default"))) const struct tess_module tess_module = {
    .abi = TESS_ABI,
    .name = "cuda",
    .summary = "NVIDIA GPUs: CUDA " MODULE_TEXT(CUDART_VERSION) ", cuBLASLt " MODULE_TEXT(
        CUBLAS_VERSION) ", code for " CUDA_ARCHS,
    .kernel = &tess_kernel_cuda,
    .device_count = module_device_count,
    .device_info = module_device_info,
    .device_select = tess__cuda_select,
    .device_memory = module_device_memory,
    .device_usage = module_device_usage,
    .device_reaches = module_device_reaches,
    .comm_open = tess__nccl_open,
    .range_begin = tess__cuda_range_begin,
    .range_end = tess__cuda_range_end,
};
