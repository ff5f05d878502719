/*
 * The machine's devices, queried once. A child process queries them, because a process that has
 * started CUDA cannot fork others that use it (CUDA C++ programming guide, "Initialization"), and
 * the launcher forks its ranks later. Ranks inherit the result. No context is opened.
 */
#include "cuda/archs.h"
#include "cuda/host.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SURVEY_MAJOR_MIN 8

static struct {
    pthread_mutex_t lock;
    bool done;
    struct cuda_survey result;
} survey = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- why there is none -------------------------------------------------------------------- */

static void survey_why_none(char *why, size_t bytes)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible != NULL)
        snprintf(why, bytes,
                 "CUDA_VISIBLE_DEVICES is '%s', which leaves no device: unset it, or list devices "
                 "as in CUDA_VISIBLE_DEVICES=0,1",
                 visible);
    else
        snprintf(why, bytes,
                 "the NVIDIA driver finds no GPU: look at nvidia-smi, and in a container pass the "
                 "devices in (docker run --gpus all)");
}

static void survey_why_driver(int driver, char *why, size_t bytes)
{
    int runtime = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        runtime = CUDART_VERSION;
    if (driver == 0)
        snprintf(why, bytes,
                 "there is no NVIDIA driver (no libcuda.so.1): install it until nvidia-smi works, "
                 "or start the container with --gpus all");
    else
        snprintf(why, bytes,
                 "the NVIDIA driver is too old: it supports CUDA %d.%d and this build is of CUDA "
                 "%d.%d: install a newer driver, or build with a toolkit of CUDA %d",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
                 driver / 1000);
}

static void survey_why(cudaError_t error, int driver, char *why, size_t bytes)
{
    switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
        survey_why_none(why, bytes);
        return;
    case cudaErrorInsufficientDriver:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorCallRequiresNewerDriver:
        survey_why_driver(driver, why, bytes);
        return;
    case cudaErrorStubLibrary:
        snprintf(why, bytes,
                 "the libcuda.so.1 that was found is the toolkit's stub and no driver: take the "
                 "stubs folder out of LD_LIBRARY_PATH");
        return;
    case cudaErrorSystemDriverMismatch:
        snprintf(why, bytes,
                 "the NVIDIA driver's library and its kernel module are of different versions: "
                 "restart the machine, as after every update of the driver");
        return;
    case cudaErrorSystemNotReady:
        snprintf(why, bytes,
                 "the GPUs are not ready: on a machine with NVSwitch start nvidia-fabricmanager");
        return;
    default:
        snprintf(why, bytes, "CUDA does not start: %s (%s): look at nvidia-smi and dmesg",
                 cudaGetErrorString(error), cudaGetErrorName(error));
    }
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
    info->runtime_version = CUDART_VERSION;
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
        survey_why(error, driver, found->why, sizeof(found->why));
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
        survey_why(error != cudaSuccess ? error : cudaErrorNoDevice, driver, found->why,
                   sizeof(found->why));
        tess__cuda_log_error(cudaGetLastError(), "counting devices");
        return error;
    }
    for (int ordinal = 0; ordinal < count; ordinal++)
        survey_consider(found, ordinal, driver);
    survey_reach(found);
    return cudaSuccess;
}

/* ---- by a child --------------------------------------------------------------------------- */

struct survey_report {
    cudaError_t error;
    struct cuda_survey found;
};

/* The child: query, report, end without the exit handlers of the parent. */
static void survey_be_child(int pipe_fd)
{
    struct survey_report *report = calloc(1, sizeof(*report));
    if (report != NULL) {
        report->error = survey_query(&report->found);
        const char *at = (const char *)report;
        for (size_t left = sizeof(*report); left > 0;) {
            const ssize_t sent = write(pipe_fd, at, left);
            if (sent < 0 && errno == EINTR)
                continue;
            if (sent <= 0)
                break;
            at += sent;
            left -= (size_t)sent;
        }
    }
    _exit(0);
}

/* All of the report, or false. */
static bool survey_receive(int pipe_fd, struct survey_report *report)
{
    char *at = (char *)report;
    size_t left = sizeof(*report);
    while (left > 0) {
        const ssize_t got = read(pipe_fd, at, left);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        left -= (size_t)got;
    }
    return true;
}

/* False where no child could be had. */
static bool survey_query_by_child(struct survey_report *report)
{
    int ends[2];
    if (pipe(ends) != 0)
        return false;
    const pid_t pid = fork();
    if (pid < 0) {
        close(ends[0]);
        close(ends[1]);
        return false;
    }
    if (pid == 0) {
        close(ends[0]);
        survey_be_child(ends[1]);
    }
    close(ends[1]);
    const bool received = survey_receive(ends[0], report);
    close(ends[0]);
    int ended = 0;
    pid_t reaped;
    do
        reaped = waitpid(pid, &ended, 0);
    while (reaped < 0 && errno == EINTR);
    if (!received) {
        *report = (struct survey_report){.error = cudaErrorUnknown};
        if (reaped == pid && WIFSIGNALED(ended))
            snprintf(report->found.why, sizeof(report->found.why),
                     "the process that queried the NVIDIA driver for devices died (signal %d): "
                     "look at nvidia-smi and dmesg",
                     WTERMSIG(ended));
        else
            snprintf(report->found.why, sizeof(report->found.why),
                     "the process that queried the NVIDIA driver for devices sent no result");
    }
    return true;
}

static void survey_take(bool own)
{
    struct survey_report *report = own ? NULL : calloc(1, sizeof(*report));
    /* In a child of a process that has started CUDA the query fails; then this process may query.
     */
    if (report != NULL && survey_query_by_child(report) &&
        report->error != cudaErrorInitializationError)
        survey.result = report->found;
    else
        (void)survey_query(&survey.result);
    free(report);
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
