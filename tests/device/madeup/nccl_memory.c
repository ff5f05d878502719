/*
 * Memory of NCCL, and its registration with communicators: a window by all ranks at once, with the
 * same size, or each for itself. A window is known by its number in the communicator, which is the
 * same on all ranks.
 */
#include "device/madeup/nccl_madeup.h"

#include <stdlib.h>
#include <string.h>

#define MEMORY_GRAIN 4096

/* What ncclMemAlloc has given. */
struct memory_block {
    struct memory_block *next;
    char *memory;
    size_t bytes;
};

static struct {
    pthread_mutex_t lock;
    struct memory_block *blocks;
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool memory_is_ours(const void *at, size_t bytes)
{
    bool ours = false;
    pthread_mutex_lock(&memory.lock);
    for (const struct memory_block *block = memory.blocks; block != NULL; block = block->next)
        ours = ours || ((const char *)at >= block->memory &&
                        (const char *)at + bytes <= block->memory + block->bytes);
    pthread_mutex_unlock(&memory.lock);
    return ours;
}

ncclResult_t ncclMemAlloc(void **memory_out, size_t bytes)
{
    const int injected = madeup_injected("ncclMemAlloc", ncclUnhandledCudaError);
    if (injected != 0)
        return (ncclResult_t)injected;
    struct memory_block *block = calloc(1, sizeof(*block));
    void *made = NULL;
    if (block == NULL)
        madeup_fail("NCCL: no memory");
    block->bytes = (bytes + MEMORY_GRAIN - 1) / MEMORY_GRAIN * MEMORY_GRAIN;
    if (cudaMalloc(&made, block->bytes) != cudaSuccess) {
        free(block);
        return madeup_nccl_say(ncclUnhandledCudaError, "ncclMemAlloc: out of memory");
    }
    if ((uintptr_t)made % MEMORY_GRAIN != 0)
        madeup_fail("ncclMemAlloc: memory of whole pages does not begin at one");
    block->memory = made;
    pthread_mutex_lock(&memory.lock);
    block->next = memory.blocks;
    memory.blocks = block;
    pthread_mutex_unlock(&memory.lock);
    *memory_out = made;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *at)
{
    const int injected = madeup_injected("ncclMemFree", ncclUnhandledCudaError);
    if (injected != 0)
        return (ncclResult_t)injected;
    pthread_mutex_lock(&memory.lock);
    struct memory_block **link = &memory.blocks;
    while (*link != NULL && (*link)->memory != at)
        link = &(*link)->next;
    struct memory_block *block = *link;
    if (block != NULL)
        *link = block->next;
    pthread_mutex_unlock(&memory.lock);
    if (block == NULL)
        madeup_fail("ncclMemFree: this memory is not from ncclMemAlloc");
    free(block);
    return cudaFree(at) == cudaSuccess
               ? ncclSuccess
               : madeup_nccl_say(ncclUnhandledCudaError, "ncclMemFree: cudaFree failed");
}

/* ---- registration ---------------------------------------------------------------------------- */

static struct madeup_window *window_add(struct ncclComm *comm, void *at, size_t bytes)
{
    for (int i = 0; i < MADEUP_WINDOWS; i++)
        if (!comm->window[i].used) {
            comm->window[i] = (struct madeup_window){true, at, bytes};
            return &comm->window[i];
        }
    madeup_fail("more than %d windows of a communicator", MADEUP_WINDOWS);
}

/* Memory that a rank has registered for itself. */
struct memory_handle {
    struct memory_handle *next;
    struct ncclComm *comm;
    char *memory;
    size_t bytes;
};

static struct memory_handle *memory_handles;

int madeup_window_find(struct ncclComm *comm, const void *at, size_t bytes, uint64_t *offset_out)
{
    for (int i = 0; i < MADEUP_WINDOWS; i++) {
        const struct madeup_window *window = &comm->window[i];
        if (!window->used || (const char *)at < window->memory ||
            (const char *)at + bytes > window->memory + window->bytes)
            continue;
        *offset_out = (uint64_t)((const char *)at - window->memory);
        return i + 1;
    }
    return 0;
}

bool madeup_is_registered(struct ncclComm *comm, const void *memory_at, size_t bytes)
{
    const char *at = memory_at;
    uint64_t offset;
    bool known = madeup_window_find(comm, at, bytes, &offset) > 0;
    pthread_mutex_lock(&memory.lock);
    for (const struct memory_handle *handle = memory_handles; handle != NULL; handle = handle->next)
        known = known || (handle->comm == comm && at >= handle->memory &&
                          at + bytes <= handle->memory + handle->bytes);
    pthread_mutex_unlock(&memory.lock);
    return known;
}

void madeup_registered_check(struct ncclComm *comm, const char *name, bool message, const void *at,
                             size_t bytes)
{
    const char *wanted = getenv("MADEUP_NCCL_REGISTERED");
    if (wanted != NULL && (message || strcmp(wanted, "all") == 0) && memory_is_ours(at, bytes) &&
        !madeup_is_registered(comm, at, bytes))
        madeup_fail("%s: memory of ncclMemAlloc that is not registered with the communicator",
                    name);
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *at, size_t bytes, void **handle_out)
{
    const ncclResult_t result = madeup_comm_check(comm, "ncclCommRegister");
    const char *wanted = getenv("NCCL_LOCAL_REGISTER");
    if (result != ncclSuccess)
        return result;
    *handle_out = NULL;
    if (wanted != NULL && strcmp(wanted, "0") == 0)
        return ncclSuccess;
    int device = -1;
    if (madeup_place_of(at, &device) != MADEUP_DEVICE || device != comm->device)
        return madeup_nccl_say(ncclInvalidArgument, "ncclCommRegister: not memory of device %d",
                               comm->device);
    struct memory_handle *handle = calloc(1, sizeof(*handle));
    if (handle == NULL)
        madeup_fail("NCCL: no memory");
    *handle = (struct memory_handle){.comm = comm, .memory = at, .bytes = bytes};
    pthread_mutex_lock(&memory.lock);
    handle->next = memory_handles;
    memory_handles = handle;
    pthread_mutex_unlock(&memory.lock);
    *handle_out = handle;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *named)
{
    const ncclResult_t result = madeup_comm_check(comm, "ncclCommDeregister");
    if (result != ncclSuccess || named == NULL)
        return result;
    pthread_mutex_lock(&memory.lock);
    struct memory_handle **link = &memory_handles;
    while (*link != NULL && (*link != named || (*link)->comm != comm))
        link = &(*link)->next;
    struct memory_handle *handle = *link;
    if (handle != NULL)
        *link = handle->next;
    pthread_mutex_unlock(&memory.lock);
    if (handle == NULL)
        return madeup_nccl_say(ncclInvalidUsage, "ncclCommDeregister: no such handle");
    free(handle);
    return ncclSuccess;
}

static ncclResult_t window_job(struct ncclComm *comm, struct madeup_job *job)
{
    uint64_t mine = job->bytes, all[MADEUP_RANKS];
    ncclResult_t result = madeup_comm_exchange(comm, &mine, sizeof(mine), all);
    for (int r = 0; r < comm->count && result == ncclSuccess; r++)
        if (all[r] != mine)
            madeup_fail("ncclCommWindowRegister: rank %d registers %llu bytes, rank %d %llu",
                        comm->rank, (unsigned long long)mine, r, (unsigned long long)all[r]);
    if (result != ncclSuccess)
        return result;
    madeup_wait_idle(comm->device);
    *job->window = (ncclWindow_t)window_add(comm, job->memory, job->bytes);
    comm->windows++;
    return madeup_comm_exchange(comm, NULL, 0, NULL);
}

/* Returns ncclSuccess of a call that is in progress, as ncclCommSplit does. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *at, size_t bytes, ncclWindow_t *out,
                                    int flags)
{
    ncclResult_t result = madeup_comm_check(comm, "ncclCommWindowRegister");
    const char *wanted = getenv("NCCL_WIN_ENABLE");
    if (result != ncclSuccess)
        return result;
    *out = NULL;
    if (wanted != NULL && strcmp(wanted, "0") == 0)
        return ncclSuccess;
    if (flags != NCCL_WIN_DEFAULT && flags != NCCL_WIN_COLL_SYMMETRIC)
        return madeup_nccl_say(ncclInvalidArgument, "ncclCommWindowRegister: flags %d", flags);
    if (madeup_group_is_open())
        madeup_fail("ncclCommWindowRegister in a group is not modelled");
    if (!memory_is_ours(at, bytes) || (uintptr_t)at % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
        return madeup_nccl_say(ncclInvalidArgument,
                               "ncclCommWindowRegister: not memory of ncclMemAlloc, or not at a "
                               "multiple of %d",
                               NCCL_WIN_REQUIRED_ALIGNMENT);
    result = madeup_job_start(
        comm, &(struct madeup_job){.run = window_job, .window = out, .memory = at, .bytes = bytes});
    return result == ncclInProgress ? ncclSuccess : result;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    const ncclResult_t result = madeup_comm_check(comm, "ncclCommWindowDeregister");
    struct madeup_window *own = (struct madeup_window *)window;
    if (result != ncclSuccess || window == NULL)
        return result;
    if (own < comm->window || own >= comm->window + MADEUP_WINDOWS || !own->used)
        return madeup_nccl_say(ncclInvalidArgument, "ncclCommWindowDeregister: no such window");
    own->used = false;
    comm->windows--;
    return ncclSuccess;
}
