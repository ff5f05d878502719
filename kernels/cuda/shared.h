/*
 * Dynamic shared memory beyond what a block has without asking. A kernel is asked for once on each
 * device: asking costs four calls of the runtime, which a launch must not pay for. C and C++.
 */
#ifndef KERNELS_CUDA_SHARED_H
#define KERNELS_CUDA_SHARED_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

/* Dynamic shared memory that a block has without asking: 48 KiB (CUDA C++ programming guide,
 * "Technical specifications per compute capability") less what a kernel here may have of static. */
#define CUDA_SHARED_PLAIN ((size_t)24 << 10)

/* Kernels of one file that need it, times devices; above it they are asked for at each launch. */
#define CUDA_SHARED_KERNELS 256

/* Let the kernel have as much as the device gives (227 KiB on Hopper), always the same number:
 * threads that launch one kernel with different sizes would take the larger one's room away between
 * this and its launch. *room_out: what is left of it beside the kernel's static memory. */
static inline cudaError_t cuda_raise_shared(const void *kernel, int device, size_t *room_out)
{
    int most = 0;
    struct cudaFuncAttributes about;
    cudaError_t error =
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess)
        error = cudaFuncGetAttributes(&about, kernel);
    if (error != cudaSuccess)
        return error;
    *room_out = (size_t)most > about.sharedSizeBytes ? (size_t)most - about.sharedSizeBytes : 0;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)*room_out);
}

/* Slots are taken in order and never given back; a tag is written after its room. Any thread. */
struct cuda_shared_slot {
    uint64_t tag; /* 0: free, 1: being written, else a kernel on a device */
    size_t room;
};

static inline cudaError_t cuda_ask_shared(const void *kernel, size_t bytes)
{
    static struct cuda_shared_slot slots[CUDA_SHARED_KERNELS];
    int device = 0;
    size_t room = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess)
        return error;
    const uint64_t tag = (uint64_t)(uintptr_t)kernel << 8 | ((uint64_t)device & 0xff);
    for (int i = 0; i < CUDA_SHARED_KERNELS; i++) {
        uint64_t found = __atomic_load_n(&slots[i].tag, __ATOMIC_ACQUIRE);
        if (found == tag)
            return bytes <= slots[i].room ? cudaSuccess : cudaErrorInvalidValue;
        if (found != 0 || !__atomic_compare_exchange_n(&slots[i].tag, &found, 1, 0,
                                                       __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            continue;
        error = cuda_raise_shared(kernel, device, &room);
        slots[i].room = room;
        __atomic_store_n(&slots[i].tag, error == cudaSuccess ? tag : 0, __ATOMIC_RELEASE);
        return error != cudaSuccess ? error : bytes <= room ? cudaSuccess : cudaErrorInvalidValue;
    }
    error = cuda_raise_shared(kernel, device, &room);
    return error != cudaSuccess ? error : bytes <= room ? cudaSuccess : cudaErrorInvalidValue;
}

/* Before each launch with so many bytes of it. */
static inline cudaError_t cuda_need_shared(const void *kernel, size_t bytes)
{
    return bytes > CUDA_SHARED_PLAIN ? cuda_ask_shared(kernel, bytes) : cudaSuccess;
}

#endif
