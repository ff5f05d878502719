/*
 * NVML as it is used here, between nvml.c and nvml_links.c. The prototypes and constants were
 * written from NVIDIA's public "NVML API Reference Guide", because nvml.h comes with another
 * package than the toolkit; only what is used is there. Functions are looked up by their documented
 * versioned names (_v2, _v3), older names second; most may be missing, as drivers differ by years.
 */
#ifndef TESSERA_DEVICE_NVML_API_H
#define TESSERA_DEVICE_NVML_API_H

#include "device/nvml.h"

#include <limits.h>

typedef int nvml_return; /* nvmlReturn_t */
enum {
    NVML_OK = 0,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NO_PERMISSION = 4,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_VERSION_MISMATCH = 18
};
typedef struct nvml_device *nvml_device; /* nvmlDevice_t */

enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEMORY = 2 }; /* nvmlClockType_t */
enum { NVML_TEMPERATURE_GPU = 0 };                 /* nvmlTemperatureSensors_t */

struct nvml_pci { /* nvmlPciInfo_t, third version */
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};

struct nvml_utilization { /* nvmlUtilization_t, percent */
    unsigned gpu, memory;
};

struct nvml_memory { /* nvmlMemory_t, bytes; used counts what the driver keeps */
    unsigned long long total, free, used;
};

struct nvml_process { /* nvmlProcessInfo_t, second and third version of the function */
    unsigned pid;
    unsigned long long memory; /* all bits: unknown */
    unsigned gpu_instance, compute_instance;
};

struct nvml_field { /* nvmlFieldValue_t */
    unsigned field, scope;
    long long timestamp_us, latency_us;
    int type; /* nvmlValueType_t */
    nvml_return status;
    union {
        double real;
        unsigned small;
        unsigned long middle;
        unsigned long long large;
        long long signed_large;
        int signed_small;
    } value;
};
enum {
    NVML_TYPE_DOUBLE,
    NVML_TYPE_UINT,
    NVML_TYPE_ULONG,
    NVML_TYPE_ULLONG,
    NVML_TYPE_LLONG,
    NVML_TYPE_INT
};

/* nvmlGpuFabricInfo_t (its last member is not there), and from `version` on _v2_t and _v3_t, which
 * differ in the last member: the guide's layouts, of 28, 36 and 40 bytes. */
struct nvml_fabric_1 {
    unsigned char uuid[16];
    nvml_return status;
    unsigned clique;
    unsigned char state;
};
struct nvml_fabric {
    unsigned version;
    unsigned char uuid[16];
    nvml_return status;
    unsigned clique;
    unsigned char state;
    unsigned health_mask;
    unsigned char health;
};
#define NVML_FABRIC_V2 (2u << 24 | 36)
#define NVML_FABRIC_V3 (3u << 24 | 40)
enum { NVML_FABRIC_COMPLETED = 3 };

enum {
    NVML_REMOTE_GPU = 0,
    NVML_REMOTE_NPU = 1,
    NVML_REMOTE_SWITCH = 2,
    NVML_REMOTE_UNKNOWN = 255
};
enum { NVML_LINK_P2P = 0 }; /* nvmlNvLinkCapability_t */

#define NVML_ALL_LINKS UINT_MAX

/* X(member, results and arguments, documented name, older name): optional functions but the first
 * three. */
#define NVML_FUNCTIONS(X)                                                                          \
    X(start, nvml_return, (void), "nvmlInit_v2", "nvmlInit")                                       \
    X(count, nvml_return, (unsigned *), "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")             \
    X(handle, nvml_return, (unsigned, nvml_device *), "nvmlDeviceGetHandleByIndex_v2",             \
      "nvmlDeviceGetHandleByIndex")                                                                \
    X(error_text, const char *, (nvml_return), "nvmlErrorString", NULL)                            \
    X(shutdown, nvml_return, (void), "nvmlShutdown", NULL)                                         \
    X(name, nvml_return, (nvml_device, char *, unsigned), "nvmlDeviceGetName", NULL)               \
    X(pci, nvml_return, (nvml_device, struct nvml_pci *), "nvmlDeviceGetPciInfo_v3", NULL)         \
    X(utilization, nvml_return, (nvml_device, struct nvml_utilization *),                          \
      "nvmlDeviceGetUtilizationRates", NULL)                                                       \
    X(memory, nvml_return, (nvml_device, struct nvml_memory *), "nvmlDeviceGetMemoryInfo", NULL)   \
    X(clock, nvml_return, (nvml_device, int, unsigned *), "nvmlDeviceGetClockInfo", NULL)          \
    X(power, nvml_return, (nvml_device, unsigned *), "nvmlDeviceGetPowerUsage", NULL)              \
    X(power_limit, nvml_return, (nvml_device, unsigned *), "nvmlDeviceGetEnforcedPowerLimit",      \
      "nvmlDeviceGetPowerManagementLimit")                                                         \
    X(temperature, nvml_return, (nvml_device, int, unsigned *), "nvmlDeviceGetTemperature", NULL)  \
    X(throttle, nvml_return, (nvml_device, unsigned long long *),                                  \
      "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")       \
    X(fields, nvml_return, (nvml_device, int, struct nvml_field *), "nvmlDeviceGetFieldValues",    \
      NULL)                                                                                        \
    X(processes, nvml_return, (nvml_device, unsigned *, struct nvml_process *),                    \
      "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")        \
    X(capability, nvml_return, (nvml_device, int *, int *), "nvmlDeviceGetCudaComputeCapability",  \
      NULL)                                                                                        \
    X(link_state, nvml_return, (nvml_device, unsigned, int *), "nvmlDeviceGetNvLinkState", NULL)   \
    X(link_can, nvml_return, (nvml_device, unsigned, int, unsigned *),                             \
      "nvmlDeviceGetNvLinkCapability", NULL)                                                       \
    X(link_remote, nvml_return, (nvml_device, unsigned, int *),                                    \
      "nvmlDeviceGetNvLinkRemoteDeviceType", NULL)                                                 \
    X(link_pci, nvml_return, (nvml_device, unsigned, struct nvml_pci *),                           \
      "nvmlDeviceGetNvLinkRemotePciInfo_v2", NULL)                                                 \
    X(fabric, nvml_return, (nvml_device, struct nvml_fabric *), "nvmlDeviceGetGpuFabricInfoV",     \
      NULL)                                                                                        \
    X(fabric_1, nvml_return, (nvml_device, struct nvml_fabric_1 *), "nvmlDeviceGetGpuFabricInfo",  \
      NULL)

struct nvml_functions {
#define NVML_MEMBER(member, result, arguments, symbol, older) result(*member) arguments;
    NVML_FUNCTIONS(NVML_MEMBER)
#undef NVML_MEMBER
};

/* Is the function there, and does it succeed? */
#define NVML_TRY(call, member, ...)                                                                \
    ((call)->member != NULL && (call)->member(__VA_ARGS__) == NVML_OK)

struct watch_device {
    nvml_device handle; /* NULL: it does not answer */
    char bus[32];
    unsigned long long tx_kib, rx_kib; /* at the sample before */
    double link_s;                     /* its time; 0: there was none */
};

struct tess_watch {
    void *library;
    bool started;
    struct nvml_functions call;
    int32_t device_count;
    struct watch_device device[TESS_WATCH_DEVICES_MAX];
};

/* The whole number of a field that was requested; false: it is unknown. */
bool tess__watch_field(const struct nvml_field *field, unsigned long long *value_out);

#endif
