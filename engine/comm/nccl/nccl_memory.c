/*
 * Memory that NCCL can work on without copies of its own: from its allocator, and registered with
 * the communicators that will see it. As a symmetric window where all ranks have the same bytes,
 * else each rank for itself.
 *
 * A registered array has to lie at the same place of its block on all ranks of a call: NCCL looks
 * for the others' by its own, and would take what is there without a word (NCCL user guide, "Window
 * Registration"). The engine lays blocks out the same on ranks that do the same. A group that was
 * split into others before its memory came is one of ranks that may not (stages of a pipeline): in
 * it nothing is registered, in its parts it is.
 *
 * Either all ranks of a communicator have memory registered or none (NCCL user guide, "User Buffer
 * Registration"), so they agree on what became of it. Both lanes of a group take part, and its
 * scratch; and the channels that were made ahead (tess_comm_meet), where no rank's environment has
 * it otherwise: memory of all ranks is on both, whichever came first.
 */
#include "comm/nccl/nccl_group.h"
#include "cuda/host.h"

#include "base/clock.h"

#include <stdlib.h>
#include <time.h>

/* Not in every library that this may be run with (2.22). */
#pragma weak ncclCommWindowRegister
#pragma weak ncclCommWindowDeregister

#define MEMORY_CLOSE_S 2.0

/* Of a group's scratch, for sums of what is not registered: in a run those are small. */
#define MEMORY_PLAIN_SHARE 8

/* ---- allocation ------------------------------------------------------------------------------ */

static enum tess_status memory_take(struct nccl_block *block)
{
    ncclResult_t result = ncclMemAlloc(&block->memory, block->bytes);
    if (result == ncclSuccess)
        return TESS_OK;
    block->memory = NULL;
    tess__cuda_log_error(cudaGetLastError(), "ncclMemAlloc");
    tess__nccl_say(result, "ncclMemAlloc");
    CUDA_TRY(cudaMalloc(&block->base, block->bytes + TESS_MEMORY_ALIGN));
    const uintptr_t at = (uintptr_t)block->base;
    block->memory =
        (char *)block->base + (TESS_MEMORY_ALIGN - at % TESS_MEMORY_ALIGN) % TESS_MEMORY_ALIGN;
    return TESS_OK;
}

/* Symmetric where all members have as much, and from NCCL's allocator. */
static enum tess_status memory_compare(struct nccl_group *group, struct nccl_block *block)
{
    const uint64_t mine = block->base == NULL ? block->bytes : 0;
    uint64_t *all = calloc((size_t)group->comm.rank_count, sizeof(*all));
    enum tess_status status = all != NULL
                                  ? tess__nccl_host_gather(group, &mine, sizeof(mine), all)
                                  : tess_fail(TESS_ERR_MEMORY, "no memory to compare memory");
    block->symmetric = status == TESS_OK && mine > 0;
    for (int32_t r = 0; r < group->comm.rank_count && block->symmetric; r++)
        block->symmetric = all[r] == mine;
    free(all);
    return status;
}

static void memory_give_back(struct nccl_block *block)
{
    if (block->base != NULL) {
        tess__cuda_log_error(cudaFree(block->base), "cudaFree");
    } else if (block->memory != NULL) {
        /* cudaFree waits for what uses the memory; this unmaps it at once. */
        tess__cuda_log_error(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        tess__nccl_say(ncclMemFree(block->memory), "ncclMemFree");
    }
}

/* ---- registration ---------------------------------------------------------------------------- */

/* As a window (collective over the lane), or by this rank for itself. Neither handle is set where
 * NCCL has no use for it. */
static enum tess_status memory_register(struct nccl_family *family, bool window,
                                        const struct nccl_block *block,
                                        struct nccl_registration *made)
{
    ncclResult_t result = ncclSuccess;
    enum tess_status status;
    ncclComm_t *comm = &made->lane->comm;
    pthread_mutex_lock(&family->lock);
    if (*comm == NULL) {
        pthread_mutex_unlock(&family->lock);
        return tess__nccl_check(family);
    }
    if (window)
        result = ncclCommWindowRegister(*comm, block->memory, block->bytes, &made->window,
                                        NCCL_WIN_COLL_SYMMETRIC);
    else
        result = ncclCommRegister(*comm, block->memory, block->bytes, &made->handle);
    status = tess__nccl_taken(family, comm, result,
                              "the registration of memory (NCCL_WIN_ENABLE=0 and "
                              "NCCL_LOCAL_REGISTER=0 do without)",
                              NULL);
    pthread_mutex_unlock(&family->lock);
    return status;
}

/* Lock held; false once there is nothing more to wait for. */
static bool memory_is_leaving(const struct nccl_lane *lane, ncclResult_t *result)
{
    return *result == ncclInProgress && lane->comm != NULL &&
           ncclCommGetAsyncError(lane->comm, result) == ncclSuccess && *result == ncclInProgress;
}

static void memory_deregister(struct nccl_family *family, const struct nccl_registration *made)
{
    ncclResult_t result = ncclSuccess;
    double limit_s = tess_clock_s() + MEMORY_CLOSE_S;
    pthread_mutex_lock(&family->lock);
    const ncclComm_t comm = made->lane->comm; /* NULL: the registration went with it */
    if (comm != NULL && made->window != NULL)
        result = ncclCommWindowDeregister(comm, made->window);
    else if (comm != NULL && made->handle != NULL)
        result = ncclCommDeregister(comm, made->handle);
    while (memory_is_leaving(made->lane, &result) && tess_clock_s() < limit_s) {
        pthread_mutex_unlock(&family->lock);
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        pthread_mutex_lock(&family->lock);
    }
    pthread_mutex_unlock(&family->lock);
    tess__nccl_say(result, "forgetting registered memory");
}

static enum tess_status memory_have_all(struct nccl_group *group, uint8_t has, bool *all_out)
{
    uint8_t *all = calloc((size_t)group->comm.rank_count, sizeof(*all));
    enum tess_status status = all != NULL ? tess__nccl_host_gather(group, &has, 1, all)
                                          : tess_fail(TESS_ERR_MEMORY, "no memory to register "
                                                                       "memory with NCCL");
    *all_out = status == TESS_OK;
    for (int32_t r = 0; r < group->comm.rank_count && *all_out; r++)
        *all_out = all[r] != 0;
    free(all);
    return status;
}

/* All members of the group, or none. */
static enum tess_status memory_register_as(struct nccl_group *group, bool window,
                                           struct nccl_block *block, struct nccl_registration *made,
                                           bool *all_out)
{
    TESS_TRY(memory_register(group->family, window, block, made));
    const uint8_t has = made->window != NULL || made->handle != NULL;
    TESS_TRY(memory_have_all(group, has, all_out));
    if (*all_out)
        return TESS_OK;
    memory_deregister(group->family, made);
    made->window = NULL;
    made->handle = NULL;
    return TESS_OK;
}

static enum tess_status memory_register_lane(struct nccl_group *group, struct nccl_lane *lane,
                                             struct nccl_block *block)
{
    struct nccl_registration *made = LIST_FIRST(&block->registered);
    bool everywhere = false;
    while (made != NULL && made->lane != lane)
        made = LIST_NEXT(made, link);
    if (made != NULL)
        return TESS_OK;
    made = calloc(1, sizeof(*made));
    if (made == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to register memory with NCCL");
    made->lane = lane;
    /* Kept in any case: NCCL may write there after a failure. */
    LIST_INSERT_HEAD(&block->registered, made, link);
    if (block->symmetric && ncclCommWindowRegister != NULL)
        TESS_TRY(memory_register_as(group, true, block, made, &everywhere));
    if (!everywhere)
        TESS_TRY(memory_register_as(group, false, block, made, &everywhere));
    return TESS_OK;
}

static enum tess_status memory_register_group(struct nccl_group *group, struct nccl_block *block)
{
    /* Only memory of all ranks is known to all members. */
    if (block->scratch || group->splits > 0 ||
        block->owner->comm.rank_count != group->family->rank_count)
        return TESS_OK;
    if (group->lane[NCCL_GATHERS].comm == NULL) /* not attached: no calls on memory of a device */
        return TESS_OK;
    TESS_TRY(memory_register_lane(group, &group->lane[NCCL_GATHERS], block));
    return memory_register_lane(group, &group->lane[NCCL_SUMS], block);
}

/* With a channel that this rank has met another on, each of the two by itself. */
static enum tess_status memory_register_met(struct nccl_family *family, struct nccl_block *block,
                                            struct nccl_channel *channel)
{
    if (block->scratch || block->owner->comm.rank_count != family->rank_count || !family->registers)
        return TESS_OK;
    struct nccl_registration *made = calloc(1, sizeof(*made));
    if (made == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to register memory with NCCL");
    made->lane = &channel->lane;
    LIST_INSERT_HEAD(&block->registered, made, link);
    return memory_register(family, false, block, made);
}

static enum tess_status memory_register_channels(struct nccl_block *block)
{
    struct nccl_family *family = block->owner->family;
    for (struct nccl_group *group = LIST_FIRST(&family->groups); group != NULL;
         group = LIST_NEXT(group, link))
        for (struct nccl_channel *at = NULL; (at = tess__nccl_channel_next(group, at)) != NULL;)
            if (at->met)
                TESS_TRY(memory_register_met(family, block, at));
    return TESS_OK;
}

enum tess_status tess__nccl_register_channel(struct nccl_family *family,
                                             struct nccl_channel *channel)
{
    for (struct nccl_block *block = LIST_FIRST(&family->blocks); block != NULL;
         block = LIST_NEXT(block, link))
        TESS_TRY(memory_register_met(family, block, channel));
    return TESS_OK;
}

/* Oldest first: the same order on all ranks, whose groups were split in the same order. */
static enum tess_status memory_register_older(struct nccl_group *group, struct nccl_block *block)
{
    if (group == NULL)
        return TESS_OK;
    TESS_TRY(memory_register_older(LIST_NEXT(group, link), block));
    return memory_register_group(group, block);
}

static enum tess_status memory_register_blocks(struct nccl_group *group, struct nccl_block *block)
{
    if (block == NULL)
        return TESS_OK;
    TESS_TRY(memory_register_blocks(group, LIST_NEXT(block, link)));
    return memory_register_group(group, block);
}

enum tess_status tess__nccl_register_all(struct nccl_group *group)
{
    return memory_register_blocks(group, LIST_FIRST(&group->family->blocks));
}

enum tess_status tess__nccl_scratch_open(struct nccl_group *group)
{
    const size_t total = (size_t)group->family->choices.scratch_bytes;
    const size_t share = total / MEMORY_PLAIN_SHARE / NCCL_ALIGN * NCCL_ALIGN;
    const size_t least = tess__nccl_sum_least(group);
    const size_t plain = share > least ? share : least;
    const size_t shared = total > plain + least ? total - plain : least;
    void *memory = NULL;
    CUDA_TRY(cudaMalloc(&memory, plain));
    group->plain = (struct nccl_room){.memory = memory, .bytes = plain};
    TESS_TRY(tess__nccl_run_first(group, &group->plain));
    struct nccl_block *block = calloc(1, sizeof(*block));
    if (block == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to allocate memory of the device");
    *block = (struct nccl_block){.owner = group, .bytes = shared, .scratch = true};
    LIST_INSERT_HEAD(&group->family->blocks, block, link);
    TESS_TRY(memory_take(block));
    TESS_TRY(memory_compare(group, block));
    TESS_TRY(memory_register_lane(group, &group->lane[NCCL_SUMS], block));
    TESS_TRY(memory_register_lane(group, &group->lane[NCCL_GATHERS], block));
    group->shared = block;
    /* For memory that is registered there are other ways, of which the same is true. */
    return tess__nccl_run_first(
        group, &(struct nccl_room){.memory = block->memory, .bytes = block->bytes});
}

static void memory_forget(struct nccl_family *family, struct nccl_block *block,
                          const struct nccl_lane *lane)
{
    for (struct nccl_registration *made = LIST_FIRST(&block->registered), *next; made != NULL;
         made = next) {
        next = LIST_NEXT(made, link);
        if (lane != NULL && made->lane != lane)
            continue;
        LIST_REMOVE(made, link);
        memory_deregister(family, made);
        free(made);
    }
}

void tess__nccl_unregister(struct nccl_family *family, const struct nccl_lane *lane)
{
    for (struct nccl_block *block = LIST_FIRST(&family->blocks); block != NULL;
         block = LIST_NEXT(block, link))
        memory_forget(family, block, lane);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static enum tess_status memory_clear(struct nccl_group *group, const struct nccl_block *block)
{
    const struct nccl_lane *lane = &group->lane[NCCL_SUMS];
    CUDA_TRY(cudaMemsetAsync(block->memory, 0, block->bytes, lane->own));
    CUDA_TRY(cudaEventRecord(lane->beat, lane->own));
    return tess__nccl_await(group->family, lane->beat, lane);
}

enum tess_status tess__nccl_alloc(struct tess_comm *comm, size_t bytes, void **memory_out)
{
    struct nccl_group *group = (struct nccl_group *)comm;
    struct nccl_family *family = group->family;
    const size_t whole = tess_round_up(bytes > 0 ? bytes : 1, TESS_MEMORY_ALIGN);
    TESS_TRY(tess__nccl_check(family));
    struct nccl_block *block = calloc(1, sizeof(*block));
    if (block == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to allocate memory of the device");
    block->owner = group;
    block->bytes = whole;
    enum tess_status status = memory_take(block);
    if (status == TESS_OK)
        status = memory_clear(group, block);
    if (status == TESS_OK)
        status = memory_compare(group, block);
    LIST_INSERT_HEAD(&family->blocks, block, link);
    if (status == TESS_OK)
        status = memory_register_older(LIST_FIRST(&family->groups), block);
    if (status == TESS_OK)
        status = memory_register_channels(block);
    if (status != TESS_OK) {
        tess__nccl_release(comm, block->memory);
        return status;
    }
    *memory_out = block->memory;
    return TESS_OK;
}

void tess__nccl_release(struct tess_comm *comm, void *memory)
{
    struct nccl_family *family = ((struct nccl_group *)comm)->family;
    struct nccl_block *block = LIST_FIRST(&family->blocks);
    while (block != NULL && block->memory != memory)
        block = LIST_NEXT(block, link);
    if (atomic_load(&family->failed))
        tess__nccl_forget_graphs((struct nccl_group *)comm);
    if (block == NULL || !tess__nccl_wait_aborted(family) || tess__cuda_hangs())
        return;
    memory_forget(family, block, NULL);
    LIST_REMOVE(block, link);
    memory_give_back(block);
    free(block);
}

void tess__nccl_release_all(struct nccl_group *group)
{
    for (struct nccl_block *block = LIST_FIRST(&group->family->blocks), *next; block != NULL;
         block = next) {
        next = LIST_NEXT(block, link);
        if (block->owner == group)
            tess__nccl_release(&group->comm, block->memory);
    }
}
