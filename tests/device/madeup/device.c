/* Devices, the calling thread's errors, settings and injected failures of the made-up device. */
#include "device/madeup/runtime.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define RULES_MAX 16

/* "name:n[:e]" */
struct device_rule {
    char name[64];
    long n, error; /* error -1: the usual one; of a stall, the device, -1: any; of a delay, ms */
    _Atomic long calls;
};

static struct {
    pthread_once_t once;
    struct madeup_settings settings;
    pid_t process;
    struct device_rule fail[RULES_MAX], stall[RULES_MAX], slow[RULES_MAX];
    int fails, stalls, slows;
    const char *seal;    /* the name of a range, or NULL */
    const char *counted; /* the name of work, or NULL */
    _Atomic long count;
    _Atomic bool sealed, nccl;
    _Atomic int broken[MADEUP_DEVICES_MAX];
    _Atomic bool peer[MADEUP_DEVICES_MAX][MADEUP_DEVICES_MAX];
} device = {.once = PTHREAD_ONCE_INIT};

static __thread int device_now;
static __thread cudaError_t device_last;

void madeup_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    flockfile(stderr);
    fputs("made-up device: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    funlockfile(stderr);
    va_end(arguments);
    abort();
}

/* ---- settings ------------------------------------------------------------------------------- */

static double device_number(const char *name, double otherwise, double least, double most)
{
    const char *text = getenv(name);
    if (text == NULL || *text == '\0')
        return otherwise;
    char *end;
    double value = strtod(text, &end);
    double scale = 1;
    for (const char *unit = "KMG"; *unit != '\0' && *end != '\0'; unit++) {
        scale *= 1024;
        if (*end == *unit && end[1] == 'i') {
            value *= scale;
            end += 2;
        }
    }
    if (*end != '\0' || value < least || value > most)
        madeup_fail("%s is '%s', not a number from %g to %g", name, text, least, most);
    return value;
}

static int device_rules(const char *name, struct device_rule *rule)
{
    const char *text = getenv(name);
    int count = 0;
    while (text != NULL && *text != '\0') {
        const size_t length = strcspn(text, ",");
        char one[96];
        snprintf(one, sizeof(one), "%.*s", (int)length, text);
        if (count == RULES_MAX)
            madeup_fail("%s has more than %d parts", name, RULES_MAX);
        struct device_rule *r = &rule[count++];
        r->error = -1;
        if (length >= sizeof(one) || sscanf(one, "%63[^:]:%ld:%ld", r->name, &r->n, &r->error) < 2)
            madeup_fail("%s: '%s' is not name:n or name:n:error", name, one);
        text += length + (text[length] == ',');
    }
    return count;
}

static void device_start(void)
{
    const char *loading = getenv("CUDA_MODULE_LOADING");
    device.settings = (struct madeup_settings){
        .devices = (int)device_number("MADEUP_DEVICES", 1, 0, MADEUP_DEVICES_MAX),
        .places = (int)device_number("MADEUP_PLACES", MADEUP_DEVICES_MAX, 1, MADEUP_DEVICES_MAX),
        .memory = (size_t)device_number("MADEUP_MEMORY", 1 << 30, 1, 1e15),
        .late_s = device_number("MADEUP_LATE", 0, 0, 1e4) * 1e-3,
        .connections = (int)device_number("CUDA_DEVICE_MAX_CONNECTIONS", 8, 1, 32),
        .lazy = loading == NULL || strcmp(loading, "EAGER") != 0,
    };
    device.seal = getenv("MADEUP_SEAL");
    device.counted = getenv("MADEUP_COUNT");
    device.fails = device_rules("MADEUP_FAIL", device.fail);
    device.stalls = device_rules("MADEUP_STALL", device.stall);
    device.slows = device_rules("MADEUP_SLOW", device.slow);
    for (int r = 0; r < device.slows; r++)
        if (device.slow[r].error < 0)
            madeup_fail("MADEUP_SLOW: %s has no ms", device.slow[r].name);
    device.process = getpid();
}

const struct madeup_settings *madeup_settings(void)
{
    (void)pthread_once(&device.once, device_start);
    return &device.settings;
}

/* What belongs before the first step: it may wait until the device has nothing to do, while another
 * rank's work there waits for this rank; or it takes long. */
static const char *const device_early[] = {
    "cudaInitDevice",
    "cudaDeviceEnablePeerAccess",
    "cudaMalloc",
    "cudaHostAlloc",
    "cudaStreamCreateWithFlags",
    "cudaStreamCreateWithPriority",
    "cudaEventCreateWithFlags",
    "cublasLtCreate",
    "cublasLtMatmulAlgoCheck",
    "cublasLtMatmulAlgoGetHeuristic",
    "ncclGetUniqueId",
    "ncclCommInitRankConfig",
    "ncclCommSplit",
    "ncclMemAlloc",
    "ncclCommRegister",
    "ncclCommWindowRegister",
    MADEUP_LOAD, /* where ranks wait in kernels for each other: in NCCL's */
    MADEUP_CONNECT,
};

static void device_check_seal(const char *function)
{
    if (strcmp(function, "ncclCommInitRankConfig") == 0)
        atomic_store(&device.nccl, true);
    if (!atomic_load(&device.sealed) ||
        (strcmp(function, MADEUP_LOAD) == 0 && !atomic_load(&device.nccl)))
        return;
    for (size_t i = 0; i < sizeof(device_early) / sizeof(device_early[0]); i++)
        if (strcmp(device_early[i], function) == 0)
            madeup_fail("%s after the first range '%s'", function, device.seal);
}

void madeup_range(const char *name)
{
    (void)madeup_settings();
    if (device.seal != NULL && strcmp(device.seal, name) == 0)
        atomic_store(&device.sealed, true);
}

/* Is this call the n-th that a rule names? Its error, 0 where it is not. */
static int device_met(struct device_rule *rule, int count, const char *name, int usual)
{
    for (int r = 0; r < count; r++)
        if (strcmp(rule[r].name, name) == 0 && atomic_fetch_add(&rule[r].calls, 1) + 1 == rule[r].n)
            return rule[r].error >= 0 ? (int)rule[r].error : usual;
    return 0;
}

int madeup_injected(const char *function, int usual)
{
    (void)madeup_settings();
    device_check_seal(function);
    return device_met(device.fail, device.fails, function, usual);
}

void madeup_count(const char *work)
{
    (void)madeup_settings();
    if (device.counted != NULL && strcmp(device.counted, work) == 0)
        atomic_fetch_add(&device.count, 1);
}

void madeup_report(void)
{
    if (device.counted != NULL)
        fprintf(stderr, "made-up device: %s ran %ld times\n", device.counted,
                atomic_load(&device.count));
}

bool madeup_stalls(const char *work)
{
    bool met = false;
    for (int r = 0; r < device.stalls; r++) {
        struct device_rule *rule = &device.stall[r];
        if (strcmp(rule->name, work) == 0 && (rule->error < 0 || rule->error == device_now))
            met = atomic_fetch_add(&rule->calls, 1) + 1 == rule->n || met;
    }
    return met;
}

void madeup_stall_call(const char *function)
{
    (void)madeup_settings();
    while (madeup_stalls(function) && !madeup_cancelled())
        while (!madeup_cancelled())
            (void)usleep(1000);
}

double madeup_delay_s(const char *work)
{
    double delay_s = 0;
    for (int r = 0; r < device.slows; r++)
        if (device.slow[r].n == device_now && strcmp(device.slow[r].name, work) == 0)
            delay_s += 1e-3 * (double)device.slow[r].error;
    return delay_s;
}

/* ---- errors --------------------------------------------------------------------------------- */

/* Errors after which CUDA's documents say that the process must be ended to go on. */
static bool device_is_sticky(cudaError_t error)
{
    switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
        return true;
    default:
        return false;
    }
}

cudaError_t madeup_broken(int at)
{
    return (cudaError_t)atomic_load(&device.broken[at]);
}

void madeup_break(int at, cudaError_t error)
{
    int none = cudaSuccess;
    if (error != cudaSuccess)
        (void)atomic_compare_exchange_strong(&device.broken[at], &none, (int)error);
}

cudaError_t madeup_leave(cudaError_t error)
{
    if (error != cudaSuccess)
        device_last = error;
    return error;
}

/* What a function that does not use the device returns at once. */
static cudaError_t device_enter(const char *function, cudaError_t usual)
{
    (void)madeup_settings();
    if (device.process != getpid())
        return madeup_leave(cudaErrorInitializationError);
    return madeup_leave((cudaError_t)madeup_injected(function, (int)usual));
}

cudaError_t madeup_enter(const char *function, cudaError_t usual)
{
    cudaError_t error = device_enter(function, usual);
    if (error == cudaSuccess && madeup_settings()->devices == 0)
        error = cudaErrorNoDevice;
    else if (error == cudaSuccess && madeup_cancelled())
        error = cudaErrorCudartUnloading;
    else if (device_is_sticky(error))
        madeup_break(device_now, error);
    if (error == cudaSuccess)
        error = madeup_broken(device_now);
    return madeup_leave(error);
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t broken = madeup_broken(device_now);
    const cudaError_t last = device_last;
    device_last = cudaSuccess;
    return broken != cudaSuccess ? broken : last;
}

/* Name, text. CUDA's reference has the text of each. */
#define DEVICE_ERRORS(E)                                                                           \
    E(cudaSuccess, "no error")                                                                     \
    E(cudaErrorInvalidValue, "invalid argument")                                                   \
    E(cudaErrorMemoryAllocation, "out of memory")                                                  \
    E(cudaErrorInitializationError, "initialization error")                                        \
    E(cudaErrorCudartUnloading, "driver shutting down")                                            \
    E(cudaErrorInvalidConfiguration, "invalid configuration argument")                             \
    E(cudaErrorInvalidDevice, "invalid device ordinal")                                            \
    E(cudaErrorNoDevice, "no CUDA-capable device is detected")                                     \
    E(cudaErrorInvalidResourceHandle, "invalid resource handle")                                   \
    E(cudaErrorNotReady, "device not ready")                                                       \
    E(cudaErrorNotSupported, "operation not supported")                                            \
    E(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device") \
    E(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")                            \
    E(cudaErrorIllegalAddress, "an illegal memory access was encountered")                         \
    E(cudaErrorLaunchTimeout, "the launch timed out and was terminated")                           \
    E(cudaErrorLaunchFailure, "unspecified launch failure")                                        \
    E(cudaErrorMisalignedAddress, "misaligned address")                                            \
    E(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")                         \
    E(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices")    \
    E(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable")            \
    E(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")       \
    E(cudaErrorStreamCaptureInvalidated,                                                           \
      "operation failed due to a previous error during capture")                                   \
    E(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture "        \
                                   "sequences")                                                    \
    E(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began")     \
    E(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                        \
    E(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")  \
    E(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing "  \
                              "stream")                                                            \
    E(cudaErrorIllegalState, "the operation cannot be performed in the present state")             \
    E(cudaErrorGraphExecUpdateFailure,                                                             \
      "the graph update was not performed because it included changes which violated constraints " \
      "specific to instantiated graph update")                                                     \
    E(cudaErrorUnknown, "unknown error")

static const struct {
    cudaError_t error;
    const char *name, *text;
} device_errors[] = {
#define DEVICE_ERROR(error, text) {error, #error, text},
    DEVICE_ERRORS(DEVICE_ERROR)
#undef DEVICE_ERROR
};

const char *cudaGetErrorName(cudaError_t error)
{
    for (size_t e = 0; e < sizeof(device_errors) / sizeof(device_errors[0]); e++)
        if (device_errors[e].error == error)
            return device_errors[e].name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    for (size_t e = 0; e < sizeof(device_errors) / sizeof(device_errors[0]); e++)
        if (device_errors[e].error == error)
            return device_errors[e].text;
    return "unrecognized error code";
}

/* ---- devices -------------------------------------------------------------------------------- */

static bool device_is_one(int at)
{
    return at >= 0 && at < madeup_settings()->devices;
}

int madeup_device(void)
{
    return device_now;
}

bool madeup_reaches(int at, int peer)
{
    return at == peer || atomic_load(&device.peer[at][peer]);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return device_enter(__func__, cudaErrorUnknown);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return device_enter(__func__, cudaErrorUnknown);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    const cudaError_t error = device_enter(__func__, cudaErrorInitializationError);
    *count = error == cudaSuccess ? madeup_settings()->devices : 0;
    if (error == cudaSuccess && *count == 0)
        return madeup_leave(cudaErrorNoDevice);
    return error;
}

cudaError_t cudaGetDevice(int *at)
{
    const cudaError_t error = device_enter(__func__, cudaErrorInitializationError);
    if (error == cudaSuccess)
        *at = device_now;
    return error;
}

cudaError_t cudaSetDevice(int at)
{
    const cudaError_t error = device_enter(__func__, cudaErrorDevicesUnavailable);
    if (error != cudaSuccess)
        return error;
    if (!device_is_one(at))
        return madeup_leave(cudaErrorInvalidDevice);
    device_now = at;
    return madeup_leave(madeup_broken(at));
}

cudaError_t cudaInitDevice(int at, unsigned int device_flags, unsigned int flags)
{
    const cudaError_t error = device_enter(__func__, cudaErrorDevicesUnavailable);
    if (device_flags != 0 || flags != 0)
        madeup_fail("cudaInitDevice with flags is not modelled");
    if (error == cudaSuccess && !device_is_one(at))
        return madeup_leave(cudaErrorInvalidDevice);
    return error;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *about, int at)
{
    const cudaError_t error = device_enter(__func__, cudaErrorDevicesUnavailable);
    if (error != cudaSuccess)
        return error;
    if (!device_is_one(at))
        return madeup_leave(cudaErrorInvalidDevice);
    memset(about, 0, sizeof(*about));
    if (getenv("MADEUP_MODELS") != NULL)
        snprintf(about->name, sizeof(about->name), "a made-up GPU, model %d", at);
    else
        snprintf(about->name, sizeof(about->name), "a made-up GPU");
    memset(about->uuid.bytes, at + 1, sizeof(about->uuid.bytes));
    about->major = 9;
    about->multiProcessorCount = 4;
    about->totalGlobalMem = madeup_settings()->memory;
    about->pciBusID = at + 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int at)
{
    const cudaError_t error = device_enter(__func__, cudaErrorInvalidValue);
    if (error != cudaSuccess)
        return error;
    if (!device_is_one(at))
        return madeup_leave(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        break;
    case cudaDevAttrClockRate: /* kHz */
    case cudaDevAttrMemoryClockRate:
        *value = 1000000;
        break;
    case cudaDevAttrGlobalMemoryBusWidth: /* bits */
        *value = 64;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = 4;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 227 << 10;
        break;
    default:
        madeup_fail("cudaDeviceGetAttribute of %d is not modelled", (int)attribute);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int at)
{
    const cudaError_t error = device_enter(__func__, cudaErrorInvalidValue);
    if (error != cudaSuccess)
        return error;
    if (!device_is_one(at))
        return madeup_leave(cudaErrorInvalidDevice);
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", at + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int at, int peer)
{
    const cudaError_t error = device_enter(__func__, cudaErrorInvalidDevice);
    if (error != cudaSuccess)
        return error;
    if (!device_is_one(at) || !device_is_one(peer))
        return madeup_leave(cudaErrorInvalidDevice);
    *can = at != peer && madeup_host(at) == madeup_host(peer);
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorPeerAccessUnsupported);
    if (error != cudaSuccess)
        return error;
    if (!device_is_one(peer) || peer == device_now)
        return madeup_leave(cudaErrorInvalidDevice);
    if (flags != 0)
        return madeup_leave(cudaErrorInvalidValue);
    if (madeup_host(peer) != madeup_host(device_now))
        return madeup_leave(cudaErrorPeerAccessUnsupported);
    const bool before = atomic_exchange(&device.peer[device_now][peer], true);
    return madeup_leave(before ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess);
}

/* ---- hosts ---------------------------------------------------------------------------------- */

int madeup_host(int at)
{
    return at / madeup_settings()->places;
}

/* In place of the C library's, for what is linked to the device: the name of this thread's host. */
int gethostname(char *name, size_t bytes)
{
    struct utsname real;
    if (uname(&real) != 0)
        return -1;
    if (madeup_settings()->places < madeup_settings()->devices)
        snprintf(name, bytes, "host-%d", madeup_host(device_now));
    else
        snprintf(name, bytes, "%s", real.nodename);
    return 0;
}
