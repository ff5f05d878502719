/*
 * The machine's devices, queried once. A child process queries them, because a process that has
 * started CUDA cannot fork others that use it (CUDA C++ programming guide, "Initialization"), and
 * the launcher forks its ranks later. Ranks inherit the result. No context is opened.
 */
#include "cuda/archs.h"
#include "cuda/host.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SURVEY_MAJOR_MIN 8

static struct {
    pthread_mutex_t lock;
    bool done;
    struct cuda_survey result;
} survey = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- why there is none -------------------------------------------------------------------- */

static void survey_why_none(struct cuda_survey *found)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible != NULL)
        snprintf(found->why, sizeof(found->why),
                 "CUDA_VISIBLE_DEVICES is '%s', which leaves no device: unset it, or list devices "
                 "as in CUDA_VISIBLE_DEVICES=0,1",
                 visible);
    else
        snprintf(found->why, sizeof(found->why),
                 "the NVIDIA driver finds no GPU: look at nvidia-smi, and in a container pass the "
                 "devices in (docker run --gpus all)");
}

static void survey_why_driver(struct cuda_survey *found, int driver)
{
    int runtime = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        runtime = CUDART_VERSION;
    if (driver == 0)
        snprintf(found->why, sizeof(found->why),
                 "there is no NVIDIA driver (no libcuda.so.1): install it until nvidia-smi works, "
                 "or start the container with --gpus all");
    else
        snprintf(found->why, sizeof(found->why),
                 "the NVIDIA driver is too old: it supports CUDA %d.%d and this build is of CUDA "
                 "%d.%d: install a newer driver, or build with a toolkit of CUDA %d",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
                 driver / 1000);
}

static void survey_why(struct cuda_survey *found, cudaError_t error, int driver)
{
    const char *why = NULL;
    switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
        survey_why_none(found);
        return;
    case cudaErrorInsufficientDriver:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorCallRequiresNewerDriver:
        survey_why_driver(found, driver);
        return;
    case cudaErrorStubLibrary:
        why = "the libcuda.so.1 that was found is the toolkit's stub and no driver: take the stubs "
              "folder out of LD_LIBRARY_PATH";
        break;
    case cudaErrorSystemDriverMismatch:
        why = "the NVIDIA driver's library and its kernel module are of different versions: "
              "restart the machine, as after every update of the driver";
        break;
    case cudaErrorSystemNotReady:
        why = "the GPUs are not ready: on a machine with NVSwitch start nvidia-fabricmanager";
        break;
    default:
        snprintf(found->why, sizeof(found->why),
                 "CUDA does not start: %s (%s): look at nvidia-smi and dmesg",
                 cudaGetErrorString(error), cudaGetErrorName(error));
        return;
    }
    snprintf(found->why, sizeof(found->why), "%s", why);
}

/* ---- the query ------------------------------------------------------------------------------- */

/* An attribute, 0 where it is unknown. */
static double survey_attribute(enum cudaDeviceAttr attribute, int ordinal)
{
    int value = 0;
    if (cudaDeviceGetAttribute(&value, attribute, ordinal) != cudaSuccess)
        return 0;
    return value;
}

static cudaError_t survey_describe(int ordinal, int driver, struct tess_device_info *info)
{
    struct cudaDeviceProp prop;
    cudaError_t error = cudaGetDeviceProperties(&prop, ordinal);
    if (error != cudaSuccess)
        return error;
    snprintf(info->name, sizeof(info->name), "%.*s", (int)sizeof(info->name) - 1, prop.name);
    error = cudaDeviceGetPCIBusId(info->bus, sizeof(info->bus), ordinal);
    if (error != cudaSuccess)
        return error;
    info->major = prop.major;
    info->minor = prop.minor;
    info->multiprocessors = prop.multiProcessorCount;
    info->memory_bytes = prop.totalGlobalMem;
    info->driver_version = driver;
    info->clock_hz = survey_attribute(cudaDevAttrClockRate, ordinal) * 1e3;
    /* kHz of the memory's clock, twice a clock for the two edges, bits to bytes. */
    info->memory_bytes_per_s = survey_attribute(cudaDevAttrMemoryClockRate, ordinal) * 1e3 * 2 *
                               survey_attribute(cudaDevAttrGlobalMemoryBusWidth, ordinal) / 8;
    return cudaSuccess;
}

/* Add a device, or keep the reason why it cannot be used. */
static void survey_consider(struct cuda_survey *found, int ordinal, int driver)
{
    struct tess_device_info info = {.index = found->count};
    const cudaError_t error = survey_describe(ordinal, driver, &info);
    if (error != cudaSuccess) {
        survey_why(found, error, driver);
    } else if (info.major < SURVEY_MAJOR_MIN) {
        snprintf(found->why, sizeof(found->why),
                 "GPU %d (%s) has compute capability %d.%d, and %d.0 or newer is needed (A100 and "
                 "later)",
                 ordinal, info.name, info.major, info.minor, SURVEY_MAJOR_MIN);
    } else if (!tess__cuda_runs_on(CUDA_ARCHS, info.major, info.minor)) {
        snprintf(found->why, sizeof(found->why),
                 "GPU %d (%s) has compute capability %d.%d, and this build has code for '%s' only: "
                 "configure with -DTESS_CUDA_ARCHS=%d%d",
                 ordinal, info.name, info.major, info.minor, CUDA_ARCHS, info.major, info.minor);
    } else if (found->count < TESS_DEVICE_MAX) {
        found->info[found->count] = info;
        found->ordinal[found->count++] = ordinal;
    }
}

static void survey_reach(struct cuda_survey *found)
{
    for (int32_t d = 0; d < found->count; d++) {
        for (int32_t p = 0; p < found->count; p++) {
            int can = p == d;
            if (p != d &&
                cudaDeviceCanAccessPeer(&can, found->ordinal[d], found->ordinal[p]) != cudaSuccess)
                can = 0;
            if (can)
                found->reach[d] |= (uint64_t)1 << p;
        }
    }
}

/* What it met; why is filled where that, or what was found, leaves no device. */
static cudaError_t survey_query(struct cuda_survey *found)
{
    *found = (struct cuda_survey){0};
    int driver = 0, count = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess)
        driver = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        survey_why(found, error != cudaSuccess ? error : cudaErrorNoDevice, driver);
        tess__cuda_log_error(cudaGetLastError(), "counting devices");
        return error;
    }
    for (int ordinal = 0; ordinal < count; ordinal++)
        survey_consider(found, ordinal, driver);
    survey_reach(found);
    return cudaSuccess;
}

/* ---- by a child --------------------------------------------------------------------------- */

/* In memory that the child shares. */
struct survey_report {
    bool whole; /* the child has filled in all of it */
    cudaError_t error;
    struct cuda_survey found;
};

/* The child ends without the exit handlers of the parent. */
static void survey_be_child(struct survey_report *report)
{
    report->error = survey_query(&report->found);
    report->whole = true;
    _exit(0);
}

/* False where there could be no child, or where its query fails because this process has started
 * CUDA; then this process may query. */
static bool survey_query_by_child(struct survey_report *report, struct cuda_survey *found_out)
{
    const pid_t pid = fork();
    if (pid < 0)
        return false;
    if (pid == 0)
        survey_be_child(report);
    int ended = 0;
    pid_t reaped;
    do
        reaped = waitpid(pid, &ended, 0);
    while (reaped < 0 && errno == EINTR);
    *found_out = (struct cuda_survey){0};
    if (report->whole)
        *found_out = report->found;
    else if (reaped == pid && WIFSIGNALED(ended))
        snprintf(found_out->why, sizeof(found_out->why),
                 "the process that queried the NVIDIA driver for devices died (signal %d): look at "
                 "nvidia-smi and dmesg",
                 WTERMSIG(ended));
    else
        snprintf(found_out->why, sizeof(found_out->why),
                 "the process that queried the NVIDIA driver for devices sent no result");
    return !report->whole || report->error != cudaErrorInitializationError;
}

/*
 * What CUDA and NCCL read when they start; what the user has set stays. Kernels of NCCL hold their
 * queue until other ranks' come: streams that share one, and communicators whose kernels begin in
 * another order than on another rank, can each make two ranks wait for each other for ever.
 */
static void survey_prepare(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}

static void survey_take(bool own)
{
    survey_prepare();
    struct survey_report *report = MAP_FAILED;
    if (!own)
        report =
            mmap(NULL, sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED || !survey_query_by_child(report, &survey.result))
        (void)survey_query(&survey.result);
    if (report != MAP_FAILED)
        munmap(report, sizeof(*report));
}

const struct cuda_survey *tess__cuda_survey(bool own)
{
    pthread_mutex_lock(&survey.lock);
    if (!survey.done)
        survey_take(own);
    survey.done = true;
    pthread_mutex_unlock(&survey.lock);
    return &survey.result;
}
