/*
 * Memory of devices and pinned memory of the host. Each allocation has pages of its own, filled
 * with 0xff bytes, and ends, but for what fills up 256 bytes, at a page that cannot be touched.
 * What is freed cannot be touched any more, and its addresses are not given again.
 */
#include "device/madeup/runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES   ((size_t)4096)
#define ALIGN_BYTES  ((size_t)256) /* what cudaMalloc promises */
#define FILLED       0xff
#define FILLED_BYTES ((size_t)1 << 20) /* of the file that is mapped over and over */

struct memory_range {
    struct memory_range *next;
    char *start, *pages;
    size_t bytes, whole; /* whole: of the pages, without the guard */
    int device;          /* that has it, or whose thread pinned it */
    enum madeup_place place;
};

static struct {
    pthread_mutex_t lock;
    struct memory_range *first;
    size_t used[MADEUP_DEVICES_MAX];
    int filled; /* a file of 0xff bytes */
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER, .filled = -1};

/* ---- pages ---------------------------------------------------------------------------------- */

static size_t memory_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Locked. */
static int memory_filled(void)
{
    if (memory.filled >= 0)
        return memory.filled;
    static char bytes[PAGE_BYTES];
    memset(bytes, FILLED, sizeof(bytes));
    memory.filled = memfd_create("madeup", MFD_CLOEXEC);
    for (size_t at = 0; at < FILLED_BYTES; at += PAGE_BYTES)
        if (memory.filled < 0 || write(memory.filled, bytes, PAGE_BYTES) != (ssize_t)PAGE_BYTES)
            madeup_fail("no file to fill memory from");
    return memory.filled;
}

/* Locked. Pages of 0xff bytes that take no memory until they are written; NULL: there are none. */
static char *memory_pages(size_t whole)
{
    char *pages = mmap(NULL, whole + PAGE_BYTES, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        return NULL;
    for (size_t at = 0; at < whole; at += FILLED_BYTES) {
        const size_t part = whole - at < FILLED_BYTES ? whole - at : FILLED_BYTES;
        if (mmap(pages + at, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, memory_filled(),
                 0) == MAP_FAILED)
            madeup_fail("no pages for memory");
    }
    return pages;
}

/* Locked. */
static struct memory_range *memory_find(const void *at)
{
    struct memory_range *range = memory.first;
    while (range != NULL &&
           ((const char *)at < range->start || (const char *)at >= range->start + range->bytes))
        range = range->next;
    return range;
}

static cudaError_t memory_add(void **memory_out, size_t bytes, enum madeup_place place)
{
    const int device = madeup_device();
    const size_t whole = memory_up(bytes, PAGE_BYTES);
    struct memory_range *range = malloc(sizeof(*range));
    if (range == NULL)
        madeup_fail("no memory for the table of memory");
    pthread_mutex_lock(&memory.lock);
    const bool fits =
        place == MADEUP_PINNED || whole <= madeup_settings()->memory - memory.used[device];
    char *pages = fits ? memory_pages(whole) : NULL;
    if (pages != NULL) {
        *range = (struct memory_range){.next = memory.first,
                                       .start = pages + whole - memory_up(bytes, ALIGN_BYTES),
                                       .pages = pages,
                                       .bytes = bytes,
                                       .whole = whole,
                                       .device = device,
                                       .place = place};
        memory.first = range;
        if (place == MADEUP_DEVICE)
            memory.used[device] += whole;
        *memory_out = range->start;
    }
    pthread_mutex_unlock(&memory.lock);
    if (pages == NULL)
        free(range);
    return pages != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

static cudaError_t memory_remove(const void *start, enum madeup_place place)
{
    pthread_mutex_lock(&memory.lock);
    struct memory_range **link = &memory.first;
    while (*link != NULL && ((*link)->start != start || (*link)->place != place))
        link = &(*link)->next;
    struct memory_range *range = *link;
    if (range != NULL) {
        *link = range->next;
        if (place == MADEUP_DEVICE)
            memory.used[range->device] -= range->whole;
        if (mmap(range->pages, range->whole, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
            madeup_fail("freeing memory");
    }
    pthread_mutex_unlock(&memory.lock);
    free(range);
    return range != NULL ? cudaSuccess : cudaErrorInvalidValue;
}

void madeup_memory_end(void)
{
    while (memory.first != NULL) {
        struct memory_range *range = memory.first;
        memory.first = range->next;
        free(range);
    }
    if (memory.filled >= 0)
        (void)close(memory.filled);
}

/* ---- allocation ----------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **memory_out, size_t bytes)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorMemoryAllocation);
    if (error != cudaSuccess)
        return error;
    *memory_out = NULL;
    madeup_wait_idle(madeup_device());
    return madeup_leave(bytes > 0 ? memory_add(memory_out, bytes, MADEUP_DEVICE) : cudaSuccess);
}

cudaError_t cudaHostAlloc(void **memory_out, size_t bytes, unsigned int flags)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorMemoryAllocation);
    if (error != cudaSuccess)
        return error;
    if (flags != cudaHostAllocDefault && flags != cudaHostAllocPortable)
        madeup_fail("cudaHostAlloc with flags %#x is not modelled", flags);
    *memory_out = NULL;
    madeup_wait_idle(madeup_device());
    return madeup_leave(bytes > 0 ? memory_add(memory_out, bytes, MADEUP_PINNED) : cudaSuccess);
}

/* Work that uses it ends before it is gone. */
static cudaError_t memory_free(const char *function, void *start, enum madeup_place place)
{
    const cudaError_t error = madeup_enter(function, cudaErrorLaunchFailure);
    if (error != cudaSuccess || start == NULL)
        return error;
    int device;
    if (madeup_place_of(start, &device) != place)
        return madeup_leave(cudaErrorInvalidValue);
    madeup_wait_idle(device);
    return madeup_leave(memory_remove(start, place));
}

cudaError_t cudaFree(void *start)
{
    return memory_free(__func__, start, MADEUP_DEVICE);
}

cudaError_t cudaFreeHost(void *start)
{
    return memory_free(__func__, start, MADEUP_PINNED);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorInvalidValue);
    if (error != cudaSuccess)
        return error;
    pthread_mutex_lock(&memory.lock);
    *total_bytes = madeup_settings()->memory;
    *free_bytes = *total_bytes - memory.used[madeup_device()];
    pthread_mutex_unlock(&memory.lock);
    return cudaSuccess;
}

/* ---- what memory is ------------------------------------------------------------------------- */

enum madeup_place madeup_place_of(const void *at, int *device_out)
{
    pthread_mutex_lock(&memory.lock);
    const struct memory_range *range = memory_find(at);
    const enum madeup_place place = range != NULL ? range->place : MADEUP_HOST;
    if (device_out != NULL)
        *device_out = range != NULL ? range->device : -1;
    pthread_mutex_unlock(&memory.lock);
    return place;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *about, const void *at)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorInvalidValue);
    if (error != cudaSuccess)
        return error;
    int device;
    const enum madeup_place place = madeup_place_of(at, &device);
    memset(about, 0, sizeof(*about));
    about->type = place == MADEUP_DEVICE   ? cudaMemoryTypeDevice
                  : place == MADEUP_PINNED ? cudaMemoryTypeHost
                                           : cudaMemoryTypeUnregistered;
    about->device = place == MADEUP_HOST ? -2 : device; /* as of CUDA 13: no device */
    about->devicePointer = place == MADEUP_HOST ? NULL : (void *)(uintptr_t)at;
    about->hostPointer = place == MADEUP_DEVICE ? NULL : (void *)(uintptr_t)at;
    return cudaSuccess;
}

static void memory_check(const char *work, int device, const void *at, size_t bytes)
{
    if (bytes == 0)
        return;
    pthread_mutex_lock(&memory.lock);
    const struct memory_range *range = memory_find(at);
    if (range == NULL)
        madeup_fail("%s: %p is neither device nor pinned memory, or was freed", work, at);
    const size_t left = range->bytes - (size_t)((const char *)at - range->start);
    if (bytes > left)
        madeup_fail("%s: %zu bytes from %p are %zu beyond their allocation of %zu", work, bytes, at,
                    bytes - left, range->bytes);
    const int owner = range->place == MADEUP_DEVICE ? range->device : -1;
    pthread_mutex_unlock(&memory.lock);
    if (device >= 0 && owner >= 0 && !madeup_reaches(device, owner))
        madeup_fail("%s: on device %d, which has no access to memory of device %d", work, device,
                    owner);
}

void madeup_check_range(const char *work, int device, const void *at, size_t bytes)
{
    memory_check(work, device, at, bytes);
}

void madeup_check_copy(const char *work, const void *at, size_t bytes)
{
    memory_check(work, -1, at, bytes);
}

/* ---- copies --------------------------------------------------------------------------------- */

struct memory_copy {
    void *target;
    const void *source; /* NULL: fill with value */
    size_t bytes;
    int value;
    bool pageable; /* one of them is memory that is not known here */
};

static cudaError_t memory_run(const void *context)
{
    const struct memory_copy *copy = context;
    if (copy->source == NULL) {
        madeup_check_copy("cudaMemsetAsync", copy->target, copy->bytes);
        memset(copy->target, copy->value, copy->bytes);
        return cudaSuccess;
    }
    if (!copy->pageable || madeup_place_of(copy->target, NULL) != MADEUP_HOST)
        madeup_check_copy("cudaMemcpyAsync", copy->target, copy->bytes);
    if (!copy->pageable || madeup_place_of(copy->source, NULL) != MADEUP_HOST)
        madeup_check_copy("cudaMemcpyAsync", copy->source, copy->bytes);
    memmove(copy->target, copy->source, copy->bytes);
    return cudaSuccess;
}

static cudaError_t memory_submit(cudaStream_t stream, const char *name,
                                 const struct memory_copy *copy)
{
    struct memory_copy *own = malloc(sizeof(*own));
    if (own == NULL)
        madeup_fail("no memory for a copy");
    *own = *copy;
    return madeup_submit(
        stream,
        &(struct madeup_work){.name = name, .run = memory_run, .drop = free, .context = own});
}

cudaError_t cudaMemsetAsync(void *start, int value, size_t bytes, cudaStream_t stream)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorInvalidValue);
    if (error != cudaSuccess)
        return error;
    if (bytes == 0)
        return cudaSuccess;
    if (madeup_place_of(start, NULL) == MADEUP_HOST)
        return madeup_leave(cudaErrorInvalidValue);
    return madeup_leave(memory_submit(
        stream, __func__, &(struct memory_copy){.target = start, .bytes = bytes, .value = value}));
}

static void memory_check_kind(enum cudaMemcpyKind kind, enum madeup_place target,
                              enum madeup_place source)
{
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault &&
        (to_device != (target == MADEUP_DEVICE) || from_device != (source == MADEUP_DEVICE)))
        madeup_fail("cudaMemcpyAsync of kind %d, but the memory is not such", (int)kind);
}

/* With other memory of the host the call may wait, and then does. */
cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorInvalidValue);
    if (error != cudaSuccess || bytes == 0)
        return error;
    const enum madeup_place to = madeup_place_of(target, NULL),
                            from = madeup_place_of(source, NULL);
    memory_check_kind(kind, to, from);
    const bool pageable = to == MADEUP_HOST || from == MADEUP_HOST;
    if (pageable && madeup_is_recorded(stream))
        madeup_fail("recording a copy of memory that is not pinned is not modelled");
    const cudaError_t put = memory_submit(
        stream, __func__,
        &(struct memory_copy){
            .target = target, .source = source, .bytes = bytes, .pageable = pageable});
    if (put != cudaSuccess || !pageable)
        return madeup_leave(put);
    struct CUstream_st *own = madeup_stream(stream);
    madeup_queue_await(own->queue, own->last);
    return madeup_leave(madeup_broken(own->device));
}
