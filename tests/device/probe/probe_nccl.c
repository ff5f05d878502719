/*
 * Probes of NCCL (probe.h): two processes on one device, which NCCL takes for two hosts
 * (NCCL_HOSTID) or allows (NCCL_MULTI_RANK_GPU_ENABLE). One is late by LATE_S, so the time of the
 * other's first call shows whether it waits for its peer.
 */
#include "device/probe/probe.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT  1024
#define LATE_S 0.3
#define CALLS  50

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        const cudaError_t error_ = (call);                                                         \
        if (error_ != cudaSuccess)                                                                 \
            probe_end(1, "%s: %s: %s", #call, cudaGetErrorName(error_),                            \
                      cudaGetErrorString(error_));                                                 \
    } while (0)

/* A call on a communicator that does not block, until it is through. */
#define NCCL(comm, call) nccl_settle(comm, call, #call)

static struct table {
    _Atomic int ready;
    ncclUniqueId id;
} * table;

struct rank {
    int rank;
    ncclComm_t comm;
    cudaStream_t stream;
    float *memory;
};

static double clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void nap(double seconds)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

static void nccl_settle(ncclComm_t comm, ncclResult_t result, const char *call)
{
    while (result == ncclInProgress && comm != NULL) {
        nap(1e-5);
        if (ncclCommGetAsyncError(comm, &result) != ncclSuccess)
            break;
    }
    if (result == ncclSuccess)
        return;
    const char *words = ncclGetLastError(comm);
    probe_end(strstr(words, "Duplicate GPU") != NULL ? 77 : 1, "%.60s: %s: %s", call,
              ncclGetErrorString(result), words);
}

static void rank_open(struct rank *r)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CUDA(cudaSetDevice(0));
    CUDA(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&r->memory, COUNT * sizeof(float)));
    if (r->rank == 0) {
        NCCL(NULL, ncclGetUniqueId(&table->id));
        atomic_store(&table->ready, 1);
    }
    while (atomic_load(&table->ready) == 0)
        nap(1e-4);
    const ncclResult_t result = ncclCommInitRankConfig(&r->comm, 2, table->id, r->rank, &config);
    nccl_settle(r->comm, result, "ncclCommInitRankConfig");
}

static void rank_close(struct rank *r)
{
    NCCL(r->comm, ncclCommFinalize(r->comm));
    NCCL(NULL, ncclCommDestroy(r->comm));
}

static void fill(const struct rank *r, float value)
{
    float host[COUNT];
    for (int i = 0; i < COUNT; i++)
        host[i] = value;
    CUDA(cudaMemcpyAsync(r->memory, host, sizeof(host), cudaMemcpyHostToDevice, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
}

static void expect(const struct rank *r, float value)
{
    float host[COUNT];
    CUDA(cudaMemcpyAsync(host, r->memory, sizeof(host), cudaMemcpyDeviceToHost, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    for (int i = 0; i < COUNT; i++)
        if (host[i] != value)
            probe_end(1, "element %d is %g, not %g", i, (double)host[i], (double)value);
}

/* Rank 0 sends, rank 1 receives; `late` is the rank that comes later. */
static void message(const struct rank *r, int late)
{
    fill(r, r->rank == 0 ? 7.0f : 0.0f);
    if (r->rank == late)
        nap(LATE_S);
    const double begin_s = clock_s();
    const ncclResult_t result = r->rank == 0
                                    ? ncclSend(r->memory, COUNT, ncclFloat, 1, r->comm, r->stream)
                                    : ncclRecv(r->memory, COUNT, ncclFloat, 0, r->comm, r->stream);
    const double call_s = clock_s() - begin_s;
    nccl_settle(r->comm, result, r->rank == 0 ? "ncclSend" : "ncclRecv");
    if (r->rank != late)
        probe_note("the first call returned after %.3f ms and was taken after %.3f ms, the peer "
                   "came after %.0f ms",
                   call_s * 1e3, (clock_s() - begin_s) * 1e3, LATE_S * 1e3);
    expect(r, 7.0f);
}

static void do_send_first(const struct rank *r)
{
    message(r, 1);
}

static void do_recv_first(const struct rank *r)
{
    message(r, 0);
}

static void do_sums(const struct rank *r)
{
    double host_s = 0;
    for (int i = 0; i < CALLS; i++) {
        fill(r, (float)(r->rank + 1));
        const double begin_s = clock_s();
        const ncclResult_t result =
            ncclAllReduce(r->memory, r->memory, COUNT, ncclFloat, ncclSum, r->comm, r->stream);
        if (i > 0) /* the first connects */
            host_s += clock_s() - begin_s;
        nccl_settle(r->comm, result, "ncclAllReduce");
        expect(r, 3.0f);
    }
    if (r->rank == 0)
        probe_note("a call takes %.2f us of the host", host_s / (CALLS - 1) * 1e6);
}

/* The worse of both ends. A rank that fails takes its peer with it. */
static void pair(void (*run)(const struct rank *), bool hosts)
{
    pid_t pid[2];
    int status, worst = 0;
    table = mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (table == MAP_FAILED)
        probe_end(1, "no memory");
    for (int i = 0; i < 2; i++) {
        struct rank r = {.rank = i};
        pid[i] = fork();
        if (pid[i] != 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv(hosts ? "NCCL_HOSTID" : "NCCL_MULTI_RANK_GPU_ENABLE", i == 0 ? "1" : "2", 1);
        if (!hosts)
            setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
        rank_open(&r);
        run(&r);
        rank_close(&r);
        exit(0);
    }
    while (wait(&status) > 0) {
        if (status == 0)
            continue;
        if (worst == 0)
            worst = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        kill(pid[0], SIGKILL);
        kill(pid[1], SIGKILL);
    }
    if (worst != 0)
        exit(worst);
}

static void run_memory(void)
{
    void *memory;
    int version;
    CUDA(cudaSetDevice(0));
    NCCL(NULL, ncclGetVersion(&version));
    NCCL(NULL, ncclMemAlloc(&memory, 1 << 20));
    NCCL(NULL, ncclMemFree(memory));
    probe_note("NCCL %d, 1 MiB", version);
}

static void run_send_first(void)
{
    pair(do_send_first, true);
}

static void run_recv_first(void)
{
    pair(do_recv_first, true);
}

static void run_sums(void)
{
    pair(do_sums, true);
}

static void run_one_host(void)
{
    pair(do_sums, false);
}

int main(int argc, char **argv)
{
    static const struct probe probes[] = {
        {"nccl_memory", run_memory},         {"nccl_send_first", run_send_first},
        {"nccl_recv_first", run_recv_first}, {"nccl_sums", run_sums},
        {"nccl_one_host", run_one_host},
    };
    return probe_main(probes, sizeof(probes) / sizeof(probes[0]), argc, argv);
}
