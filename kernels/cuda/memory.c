/*
 * Memory of the device and pinned memory of the host: allocation, ownership, and copies between the
 * two. One table of the process lists all device memory, because ranks that are threads look up
 * each other's.
 */
#include "cuda/host.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Half of what other host memory passes through: one half travels while the other is filled. */
#define MEMORY_HALF ((size_t)4 << 20)

enum memory_kind { MEMORY_OWN, MEMORY_ADOPTED, MEMORY_PINNED };

struct memory_range {
    uintptr_t start, end;
    void *base; /* what to free; OWN */
    enum memory_kind kind;
};

static struct {
    pthread_rwlock_t lock;
    struct memory_range *range;
    size_t count, room;
} memory = {.lock = PTHREAD_RWLOCK_INITIALIZER};

/* ---- the table ---------------------------------------------------------------------------- */

static enum tess_status memory_add(void *start, size_t bytes, void *base, enum memory_kind kind)
{
    enum tess_status status = TESS_OK;
    pthread_rwlock_wrlock(&memory.lock);
    if (memory.count == memory.room) {
        const size_t room = memory.room > 0 ? 2 * memory.room : 64;
        struct memory_range *larger = realloc(memory.range, room * sizeof(*larger));
        if (larger == NULL) {
            status = TESS_ERR_MEMORY;
        } else {
            memory.range = larger;
            memory.room = room;
        }
    }
    if (status == TESS_OK)
        memory.range[memory.count++] = (struct memory_range){
            .start = (uintptr_t)start, .end = (uintptr_t)start + bytes, .base = base, .kind = kind};
    pthread_rwlock_unlock(&memory.lock);
    if (status != TESS_OK)
        TESS_FAIL(status, "kernel cuda: no memory for the table of device memory");
    return TESS_OK;
}

/* Take the range out that begins there; its base, NULL where there is none. */
static void *memory_remove(const void *start, enum memory_kind kind)
{
    void *base = NULL;
    pthread_rwlock_wrlock(&memory.lock);
    for (size_t i = 0; i < memory.count; i++) {
        if (memory.range[i].start != (uintptr_t)start || memory.range[i].kind != kind)
            continue;
        base = memory.range[i].base;
        memory.range[i] = memory.range[--memory.count];
        break;
    }
    if (memory.count == 0) {
        free(memory.range);
        memory.range = NULL;
        memory.room = 0;
    }
    pthread_rwlock_unlock(&memory.lock);
    return base;
}

static bool memory_is(const void *start, size_t bytes, bool pinned)
{
    const uintptr_t at = (uintptr_t)start;
    bool found = false;
    pthread_rwlock_rdlock(&memory.lock);
    for (size_t i = 0; i < memory.count && !found; i++) {
        const struct memory_range *range = &memory.range[i];
        found = (range->kind == MEMORY_PINNED) == pinned && at >= range->start && at < range->end &&
                bytes <= range->end - at;
    }
    pthread_rwlock_unlock(&memory.lock);
    return found;
}

bool tess__cuda_owns(const struct tess_kernel *kernel, const void *start)
{
    (void)kernel;
    return start != NULL && memory_is(start, 1, false);
}

/* ---- device memory ------------------------------------------------------------------------ */

enum tess_status tess__cuda_alloc(struct tess_kernel *kernel, size_t bytes, void **memory_out)
{
    TESS_TRY(tess__cuda_need(kernel, "allocate device memory"));
    const cudaStream_t stream = tess__cuda_stream(kernel);
    const size_t whole = tess_round_up(bytes, TESS_MEMORY_ALIGN);
    void *base = NULL;
    TESS_TRY(tess__cuda_drain(kernel, "allocating memory")); /* cudaMalloc may wait, too */
    /* cudaMalloc promises 256 bytes only: one page more, so that pages can be whole. */
    CUDA_TRY(cudaMalloc(&base, whole + TESS_MEMORY_ALIGN));
    const uintptr_t at = (uintptr_t)base;
    char *start = (char *)base + (TESS_MEMORY_ALIGN - at % TESS_MEMORY_ALIGN) % TESS_MEMORY_ALIGN;
    static const char what[] = "filling new device memory with zeros";
    enum tess_status status = tess__cuda_status(cudaMemsetAsync(start, 0, whole, stream), what);
    if (status == TESS_OK)
        status = tess__cuda_drain(kernel, what); /* other queues may be the first to use it */
    if (status == TESS_OK)
        status = memory_add(start, whole, base, MEMORY_OWN);
    if (status != TESS_OK) {
        if (!tess__cuda_hangs())
            tess__cuda_log_error(cudaFree(base), "cudaFree");
        return status;
    }
    *memory_out = start;
    return TESS_OK;
}

void tess__cuda_free(struct tess_kernel *kernel, void *start)
{
    if (start == NULL)
        return;
    (void)kernel;
    void *base = memory_remove(start, MEMORY_OWN);
    if (base != NULL && !tess__cuda_hangs())
        tess__cuda_log_error(cudaFree(base), "cudaFree");
}

/* Memory that a communicator allocated. */
enum tess_status tess__cuda_adopt(struct tess_kernel *kernel, void *start, size_t bytes)
{
    if (bytes == 0)
        return TESS_OK;
    TESS_TRY(tess__cuda_need(kernel, "adopt memory"));
    struct cudaPointerAttributes attributes;
    CUDA_TRY(cudaPointerGetAttributes(&attributes, start));
    if (attributes.type != cudaMemoryTypeDevice)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "kernel cuda: %p is no memory of a device and cannot become it: take it from the "
                  "kernel's alloc or from the communicator's",
                  start);
    return memory_add(start, bytes, NULL, MEMORY_ADOPTED);
}

void tess__cuda_disown(struct tess_kernel *kernel, void *start, size_t bytes)
{
    (void)kernel;
    if (bytes > 0)
        (void)memory_remove(start, MEMORY_ADOPTED);
}

/* ---- pinned memory ------------------------------------------------------------------------ */

enum tess_status tess__cuda_pin(struct tess_kernel *kernel, size_t bytes, void **memory_out)
{
    TESS_TRY(tess__cuda_need(kernel, "pin host memory"));
    void *start = NULL;
    const size_t room = bytes > 0 ? bytes : 1;
    TESS_TRY(tess__cuda_drain(kernel, "pinning host memory")); /* cudaHostAlloc may wait, too */
    /* Portable: ranks on other devices of this process copy from it too. */
    const cudaError_t error = cudaHostAlloc(&start, room, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot pin %zu bytes of host memory for device %d", bytes,
                  tess__cuda_state(kernel)->device);
    TESS_TRY(tess__cuda_status(error, "cudaHostAlloc"));
    memset(start, 0, room);
    const enum tess_status status = memory_add(start, room, NULL, MEMORY_PINNED);
    if (status != TESS_OK) {
        tess__cuda_log_error(cudaFreeHost(start), "cudaFreeHost");
        return status;
    }
    *memory_out = start;
    return TESS_OK;
}

void tess__cuda_unpin(struct tess_kernel *kernel, void *start)
{
    (void)kernel;
    if (start == NULL)
        return;
    (void)memory_remove(start, MEMORY_PINNED);
    if (!tess__cuda_hangs())
        tess__cuda_log_error(cudaFreeHost(start), "cudaFreeHost");
}

/* ---- between host and device -------------------------------------------------------------- */

enum tess_status tess__cuda_memory_open(struct tess_kernel *kernel)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    void *bounce;
    CUDA_TRY(cudaHostAlloc(&bounce, 2 * MEMORY_HALF, cudaHostAllocDefault));
    state->bounce = bounce;
    for (int half = 0; half < 2; half++)
        CUDA_TRY(cudaEventCreateWithFlags(&state->bounced[half],
                                          cudaEventBlockingSync | cudaEventDisableTiming));
    return TESS_OK;
}

void tess__cuda_memory_close(struct tess_kernel *kernel)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    for (int half = 0; half < 2; half++) {
        if (state->bounced[half] != NULL)
            tess__cuda_log_error(cudaEventDestroy(state->bounced[half]), "cudaEventDestroy");
        state->bounced[half] = NULL;
    }
    if (state->bounce != NULL)
        tess__cuda_log_error(cudaFreeHost(state->bounce), "cudaFreeHost");
    state->bounce = NULL;
}

/* What is being recorded is not run, so nothing can be read or waited for. */
static enum tess_status memory_check(struct tess_kernel *kernel, const char *what)
{
    TESS_TRY(tess__cuda_need(kernel, what));
    if (tess__cuda_state(kernel)->graph > 0)
        TESS_FAIL(TESS_ERR_INTERNAL, "kernel cuda: cannot %s while a graph is recorded", what);
    return TESS_OK;
}

/* The kernels' queue, then wait for it. */
static enum tess_status memory_copy_pinned(struct tess_kernel *kernel, size_t bytes,
                                           const void *source, void *target)
{
    const struct cuda_state *state = tess__cuda_state(kernel);
    const cudaEvent_t event = state->bounced[0];
    const cudaStream_t stream = tess__cuda_stream(kernel);
    CUDA_TRY(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream));
    CUDA_TRY(cudaEventRecord(event, stream));
    return tess__cuda_await(state, event, "copying pinned memory");
}

/* Bytes of the piece that begins at `at`. Piece p goes by way of half p % 2. */
static size_t memory_part(size_t bytes, size_t at)
{
    return bytes - at < MEMORY_HALF ? bytes - at : MEMORY_HALF;
}

enum tess_status tess__cuda_read(struct tess_kernel *kernel, size_t bytes, const void *device,
                                 void *host)
{
    const struct cuda_state *state = tess__cuda_state(kernel);
    TESS_TRY(memory_check(kernel, "read device memory"));
    if (memory_is(host, bytes, true))
        return memory_copy_pinned(kernel, bytes, device, host);
    const cudaStream_t stream = tess__cuda_stream(kernel);
    const size_t pieces = (bytes + MEMORY_HALF - 1) / MEMORY_HALF;
    /* Piece p is on its way while the one before is copied out of the other half. */
    for (size_t p = 0; p <= pieces; p++) {
        const size_t at = p * MEMORY_HALF, before = at - MEMORY_HALF;
        if (p < pieces) {
            CUDA_TRY(cudaMemcpyAsync(state->bounce + p % 2 * MEMORY_HALF, (const char *)device + at,
                                     memory_part(bytes, at), cudaMemcpyDeviceToHost, stream));
            CUDA_TRY(cudaEventRecord(state->bounced[p % 2], stream));
        }
        if (p > 0) {
            TESS_TRY(tess__cuda_await(state, state->bounced[(p - 1) % 2], "reading memory"));
            memcpy((char *)host + before, state->bounce + (p - 1) % 2 * MEMORY_HALF,
                   memory_part(bytes, before));
        }
    }
    return TESS_OK;
}

enum tess_status tess__cuda_write(struct tess_kernel *kernel, size_t bytes, const void *host,
                                  void *device)
{
    const struct cuda_state *state = tess__cuda_state(kernel);
    TESS_TRY(memory_check(kernel, "write device memory"));
    if (memory_is(host, bytes, true))
        return memory_copy_pinned(kernel, bytes, host, device);
    const cudaStream_t stream = tess__cuda_stream(kernel);
    const size_t pieces = (bytes + MEMORY_HALF - 1) / MEMORY_HALF;
    for (size_t p = 0; p < pieces; p++) {
        const size_t at = p * MEMORY_HALF, part = memory_part(bytes, at);
        char *half = state->bounce + p % 2 * MEMORY_HALF;
        if (p >= 2) /* until what this half held before has left it */
            TESS_TRY(tess__cuda_await(state, state->bounced[p % 2], "writing memory"));
        memcpy(half, (const char *)host + at, part);
        CUDA_TRY(cudaMemcpyAsync((char *)device + at, half, part, cudaMemcpyHostToDevice, stream));
        CUDA_TRY(cudaEventRecord(state->bounced[p % 2], stream));
    }
    if (pieces > 0)
        TESS_TRY(tess__cuda_await(state, state->bounced[(pieces - 1) % 2], "writing memory"));
    return TESS_OK;
}

void *tess__cuda_scratch(const struct tess_kernel *kernel)
{
    return tess__cuda_state(kernel)->workspace; /* the matrix library's, which is free then */
}
