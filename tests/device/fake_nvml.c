/*
 * A library that answers as NVML's documentation says NVML does, with made-up numbers: for tests of
 * how ours are read and printed, on machines without a driver. It proves nothing about a driver.
 * FAKE_NVML in the environment: "unloaded" (no driver), "none" (no device), "lost" (two devices
 * that have fallen off the bus: each call fails), else two devices; how
 * they are joined is fake_nvml_links.c's. Compiled a second time with FAKE_NVML_OLD it lacks what
 * old drivers lack.
 */
#include "fake_nvml.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fake_utilization {
    unsigned gpu, memory;
};
struct fake_memory {
    unsigned long long total, free, used;
};
struct fake_process {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};
int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int code);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle);
int nvmlDeviceGetName(void *handle, char *name, unsigned bytes);
int nvmlDeviceGetPciInfo_v3(void *handle, struct fake_pci *pci);
int nvmlDeviceGetUtilizationRates(void *handle, struct fake_utilization *rates);
int nvmlDeviceGetMemoryInfo(void *handle, struct fake_memory *memory);
int nvmlDeviceGetClockInfo(void *handle, int clock, unsigned *mhz);
int nvmlDeviceGetPowerUsage(void *handle, unsigned *mw);
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *mw);
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons);
int nvmlDeviceGetFieldValues(void *handle, int count, struct fake_field *field);
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count,
                                            struct fake_process *process);

static char fake_device[2]; /* their addresses are the handles */

int fake_index(const void *handle)
{
    return handle == &fake_device[1];
}

static int fake_is(const char *what)
{
    const char *set = getenv("FAKE_NVML");

    return set != NULL && strcmp(set, what) == 0;
}

#define FAKE_LOST 15 /* NVML_ERROR_GPU_IS_LOST */
#define FAKE_ANSWER()                                                                              \
    do {                                                                                           \
        if (fake_is("lost"))                                                                       \
            return FAKE_LOST;                                                                      \
    } while (0)

int nvmlInit_v2(void)
{
    return fake_is("unloaded") ? 9 : 0;
}

int nvmlShutdown(void)
{
    return 0;
}

const char *nvmlErrorString(int code)
{
    return code == 0 ? "Success" : "Made up";
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = fake_is("none") ? 0 : 2;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    *handle = &fake_device[index];
    return index < 2 ? 0 : 2;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned bytes)
{
    FAKE_ANSWER();
    snprintf(name, bytes, fake_index(handle) == 0 ? "NVIDIA H200" : "NVIDIA H100 PCIe");
    return 0;
}

int nvmlDeviceGetPciInfo_v3(void *handle, struct fake_pci *pci)
{
    FAKE_ANSWER();
    memset(pci, 0, sizeof(*pci));
    pci->bus = fake_index(handle) == 0 ? 0x18 : 0xaf;
    snprintf(pci->id, sizeof(pci->id), "%08X:%02X:00.0", pci->domain, pci->bus);
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *handle, struct fake_utilization *rates)
{
    FAKE_ANSWER();
    rates->gpu = fake_index(handle) == 0 ? 97 : 0;
    rates->memory = fake_index(handle) == 0 ? 41 : 0;
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, struct fake_memory *memory)
{
    FAKE_ANSWER();
    memory->total = 140ull << 30;
    memory->used = (fake_index(handle) == 0 ? 71ull : 1ull) << 30;
    memory->free = memory->total - memory->used;
    return 0;
}

int nvmlDeviceGetClockInfo(void *handle, int clock, unsigned *mhz)
{
    FAKE_ANSWER();
    (void)handle;
    *mhz = clock == 1 ? 1980 : clock == 2 ? 3201 : 0;
    return clock == 1 || clock == 2 ? 0 : 2;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *mw)
{
    FAKE_ANSWER();
    *mw = 651400;
    return fake_index(handle) == 0 ? 0 : FAKE_NOT_SUPPORTED;
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius)
{
    FAKE_ANSWER();
    (void)handle;
    *celsius = 61;
    return sensor == 0 ? 0 : 2;
}

#ifndef FAKE_NVML_OLD
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *mw)
{
    FAKE_ANSWER();
    (void)handle;
    *mw = 700000;
    return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons)
{
    FAKE_ANSWER();
    *reasons = fake_index(handle) == 0 ? 0x4 | 0x8 | 0x40 : 0x1;
    return 0;
}

/* The first device has sent a GiB more each time it is asked and received half of that; the second
 * has no links. */
int nvmlDeviceGetFieldValues(void *handle, int count, struct fake_field *field)
{
    FAKE_ANSWER();
    static unsigned long long sent_kib = 1000;

    sent_kib += 1 << 20;
    for (int i = 0; i < count; i++) {
        const int known = field[i].scope == UINT_MAX &&
                          (field[i].field == 138 || field[i].field == 139) &&
                          fake_index(handle) == 0;
        if (fake_links_field(handle, &field[i]))
            continue;
        field[i].status = known ? 0 : FAKE_NOT_SUPPORTED;
        field[i].type = 3;
        field[i].value = field[i].field == 138 ? sent_kib : sent_kib / 2;
    }
    return 0;
}

/* This process, where it says that it wants to be there, and one whose memory is unknown. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count,
                                            struct fake_process *process)
{
    FAKE_ANSWER();
    const char *own = getenv("FAKE_NVML_PID");

    if (*count < 2)
        return 7;
    *count = 0;
    if (fake_index(handle) != 0)
        return 0;
    process[0] = (struct fake_process){1, ULLONG_MAX, 0, 0};
    *count = 1;
    if (own != NULL) {
        process[1] = (struct fake_process){(unsigned)atoi(own), 5ull << 30, 0, 0};
        *count = 2;
    }
    return 0;
}
#endif
