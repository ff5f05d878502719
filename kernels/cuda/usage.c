/*
 * Device memory that the library uses beside the arena: differences of the free memory that the
 * driver reports before and after. Before there is a context only NVML reports it, the library that
 * comes with the driver; it is opened here for this one number. And the launches of a step.
 */
#include "cuda/host.h"

#include <dlfcn.h>
#include <stdatomic.h>

static _Atomic uint64_t usage[TESS_DEVICE_MAX][CUDA_USAGE_COUNT];
static _Atomic uint32_t launches[TESS_DEVICE_MAX][CUDA_LAUNCH_KINDS];

uint64_t tess__cuda_free_bytes(void)
{
    size_t free_bytes = 0, total_bytes = 0;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
        return 0;
    return free_bytes;
}

void tess__cuda_usage_took(int device, enum cuda_usage kind, uint64_t free_before)
{
    const uint64_t now = tess__cuda_free_bytes();
    if (device >= 0 && device < TESS_DEVICE_MAX && now > 0 && free_before > now)
        atomic_fetch_add(&usage[device][kind], free_before - now);
}

void tess__cuda_usage_launches(int device, const uint32_t count[CUDA_LAUNCH_KINDS], bool replace)
{
    if (device < 0 || device >= TESS_DEVICE_MAX ||
        (!replace && atomic_load(&launches[device][CUDA_LAUNCH_KERNEL]) > 0))
        return;
    for (int kind = 0; kind < CUDA_LAUNCH_KINDS; kind++)
        atomic_store(&launches[device][kind], count[kind]);
}

void tess__cuda_usage_get(int device, struct tess_device_usage *usage_out)
{
    *usage_out = (struct tess_device_usage){0};
    if (device < 0 || device >= TESS_DEVICE_MAX)
        return;
    usage_out->context = atomic_load(&usage[device][CUDA_USAGE_CONTEXT]);
    usage_out->workspace = atomic_load(&usage[device][CUDA_USAGE_WORKSPACE]);
    usage_out->comm = atomic_load(&usage[device][CUDA_USAGE_COMM]);
    usage_out->step_kernels = atomic_load(&launches[device][CUDA_LAUNCH_KERNEL]);
    usage_out->step_copies = atomic_load(&launches[device][CUDA_LAUNCH_COPY]);
    usage_out->step_fills = atomic_load(&launches[device][CUDA_LAUNCH_FILL]);
}

/* nvmlMemory_t of NVML's API reference. */
struct usage_nvml_memory {
    unsigned long long total, free, used;
};

uint64_t tess__cuda_free_bytes_before(const char *bus)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return 0;
    /* A function pointer from dlsym: POSIX has it that this conversion works. */
    int (*init)(void) = NULL, (*stop)(void) = NULL;
    int (*find)(const char *, void **) = NULL;
    int (*memory)(void *, struct usage_nvml_memory *) = NULL;
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&stop = dlsym(library, "nvmlShutdown");
    *(void **)&find = dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
    uint64_t free_bytes = 0;
    if (init != NULL && stop != NULL && find != NULL && memory != NULL && init() == 0) {
        void *handle = NULL;
        struct usage_nvml_memory report = {0};
        if (find(bus, &handle) == 0 && memory(handle, &report) == 0)
            free_bytes = report.free;
        (void)stop();
    }
    dlclose(library);
    return free_bytes;
}
