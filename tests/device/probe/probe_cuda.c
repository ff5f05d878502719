/* Probes of CUDA's runtime (probe.h). */
#include "device/probe/probe.h"

#include <cuda_runtime_api.h>

#define BYTES ((size_t)16 << 20)

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        const cudaError_t error_ = (call);                                                         \
        if (error_ != cudaSuccess)                                                                 \
            probe_end(1, "%s: %s: %s", #call, cudaGetErrorName(error_),                            \
                      cudaGetErrorString(error_));                                                 \
    } while (0)

static cudaStream_t stream_new(void)
{
    cudaStream_t stream;
    CUDA(cudaSetDevice(0));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static void run_driver(void)
{
    int driver, runtime, count;
    CUDA(cudaDriverGetVersion(&driver));
    CUDA(cudaRuntimeGetVersion(&runtime));
    CUDA(cudaGetDeviceCount(&count));
    probe_note("driver %d, runtime %d, %d devices", driver, runtime, count);
    if (count < 1)
        probe_end(1, ": none can be used");
}

static void run_context(void)
{
    struct cudaDeviceProp about;
    size_t free_bytes, bytes;
    CUDA(cudaInitDevice(0, 0, 0));
    CUDA(cudaSetDevice(0));
    CUDA(cudaGetDeviceProperties(&about, 0));
    CUDA(cudaMemGetInfo(&free_bytes, &bytes));
    probe_note("%s, %d.%d, %.1f of %.1f GiB free", about.name, about.major, about.minor,
               (double)free_bytes / 0x1p30, (double)bytes / 0x1p30);
}

static void run_stream(void)
{
    cudaStream_t stream = stream_new();
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaStreamQuery(stream));
    CUDA(cudaStreamDestroy(stream));
}

static void run_event(void)
{
    cudaStream_t stream = stream_new(), other = stream_new();
    cudaEvent_t begin, end;
    void *memory;
    float ms = -1;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaMalloc(&memory, BYTES));
    CUDA(cudaEventRecord(begin, stream));
    CUDA(cudaMemsetAsync(memory, 1, BYTES, stream));
    CUDA(cudaEventRecord(end, stream));
    CUDA(cudaStreamWaitEvent(other, end, 0));
    CUDA(cudaStreamSynchronize(other));
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    probe_note("16 MiB set in %.3f ms", (double)ms);
    if (!(ms >= 0))
        probe_end(1, ": no time at all");
}

/* Up and down again; are the bytes the same, and how fast was it? */
static void copies(unsigned char *host)
{
    cudaStream_t stream = stream_new();
    cudaEvent_t event[3];
    float up_ms, down_ms;
    void *memory;
    CUDA(cudaMalloc(&memory, BYTES));
    for (int i = 0; i < 3; i++)
        CUDA(cudaEventCreate(&event[i]));
    for (size_t i = 0; i < BYTES; i++)
        host[i] = (unsigned char)(i * 31 >> 3);
    CUDA(cudaEventRecord(event[0], stream));
    CUDA(cudaMemcpyAsync(memory, host, BYTES, cudaMemcpyHostToDevice, stream));
    CUDA(cudaEventRecord(event[1], stream));
    CUDA(cudaStreamSynchronize(stream));
    memset(host, 0, BYTES);
    CUDA(cudaMemcpyAsync(host, memory, BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaEventRecord(event[2], stream));
    CUDA(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < BYTES; i++)
        if (host[i] != (unsigned char)(i * 31 >> 3))
            probe_end(1, "byte %zu of a copy is another", i);
    CUDA(cudaEventElapsedTime(&up_ms, event[0], event[1]));
    CUDA(cudaEventElapsedTime(&down_ms, event[1], event[2]));
    probe_note("16 MiB up in %.3f ms, down in less than %.3f ms", (double)up_ms, (double)down_ms);
}

static void run_pageable(void)
{
    unsigned char *host = malloc(BYTES);
    if (host == NULL)
        probe_end(1, "no memory");
    copies(host);
    free(host);
}

static void run_pinned(void)
{
    void *host;
    CUDA(cudaSetDevice(0));
    CUDA(cudaHostAlloc(&host, BYTES, cudaHostAllocDefault));
    copies(host);
    CUDA(cudaFreeHost(host));
}

static void run_peer(void)
{
    int count, can;
    CUDA(cudaGetDeviceCount(&count));
    if (count < 2)
        probe_end(77, "there is one device");
    CUDA(cudaSetDevice(0));
    CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
    if (!can)
        probe_end(1, "device 0 does not reach device 1");
    CUDA(cudaDeviceEnablePeerAccess(1, 0));
}

int main(int argc, char **argv)
{
    static const struct probe probes[] = {
        {"cuda_driver", run_driver}, {"cuda_context", run_context}, {"cuda_stream", run_stream},
        {"cuda_event", run_event},   {"cuda_pinned", run_pinned},   {"cuda_pageable", run_pageable},
        {"cuda_peer", run_peer},
    };
    return probe_main(probes, sizeof(probes) / sizeof(probes[0]), argc, argv);
}
