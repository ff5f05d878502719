/*
 * A lane: one NCCL communicator, its stream, and fences for the calls on it. How lanes are made,
 * given to the kernels' backend, watched, split and ended; not what runs on them.
 */
#include "comm/nccl/nccl_group.h"
#include "cuda/host.h"

#include "base/clock.h"

#include <stdio.h>
#include <time.h>

/* Ranks end at about the same time. One that does not come has failed, and is not waited for. */
#define LANE_CLOSE_S 2.0

enum tess_status tess__nccl_lane_open(struct nccl_lane *lane)
{
    CUDA_TRY(cudaStreamCreateWithFlags(&lane->own, cudaStreamNonBlocking));
    lane->stream = lane->own;
    CUDA_TRY(cudaEventCreateWithFlags(&lane->beat, cudaEventDisableTiming));
    return TESS_OK;
}

void tess__nccl_lane_quiet(struct nccl_family *family, struct nccl_lane *lane)
{
    double limit_s = tess_clock_s() + LANE_CLOSE_S;
    cudaError_t error = cudaErrorNotReady;
    if (lane->stream == NULL)
        return;
    while (error == cudaErrorNotReady && !atomic_load(&family->failed)) {
        error = cudaStreamQuery(lane->stream);
        if (error != cudaErrorNotReady)
            break;
        (void)cudaGetLastError(); /* not an error, but the next launch would take it for its own */
        if (tess_clock_s() > limit_s)
            tess__nccl_break(family, TESS_ERR_ABORTED, "closed with calls under way");
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
}

void tess__nccl_forget_graphs(struct nccl_group *group)
{
    const struct tess_queue *kernels = group->comm.queue;
    if (kernels != NULL && kernels->ops == &tess__cuda_queue)
        tess__cuda_graph_close(kernels->kernel);
}

void tess__nccl_fence_close(struct tess_fence **fence)
{
    if (*fence != NULL)
        (*fence)->ops->fence_close(*fence);
    *fence = NULL;
}

void tess__nccl_lane_detach(struct nccl_lane *lane)
{
    if (lane->queue == NULL)
        return;
    lane->queue->ops->close(lane->queue);
    tess__nccl_fence_close(&lane->ready);
    for (int i = 0; i < NCCL_FENCES; i++)
        tess__nccl_fence_close(&lane->done[i]);
    lane->queue = NULL;
    lane->stream = lane->own;
}

enum tess_status tess__nccl_lane_attach(struct nccl_lane *lane, struct tess_queue *kernels)
{
    struct tess_kernel *kernel = kernels->kernel;
    tess__nccl_lane_detach(lane);
    TESS_TRY(kernels->ops->open(kernel, &lane->queue));
    TESS_TRY(kernels->ops->fence_open(kernel, &lane->ready));
    for (int i = 0; i < NCCL_FENCES; i++)
        TESS_TRY(kernels->ops->fence_open(kernel, &lane->done[i]));
    lane->stream = lane->queue->native;
    return TESS_OK;
}

enum tess_status tess__nccl_lane_note(struct nccl_family *family, struct nccl_lane *lane,
                                      const struct tess_comm_call *call, uint64_t number)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    CUDA_TRY(cudaStreamIsCapturing(lane->stream, &capture));
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&family->lock);
    lane->doing = call->collective;
    lane->number = number;
    snprintf(lane->site, sizeof(lane->site), "%s", call->site);
    /* An event that is part of a graph cannot be queried. */
    if (capture == cudaStreamCaptureStatusNone) {
        error = cudaEventRecord(lane->beat, lane->stream);
        lane->beats++;
    }
    pthread_mutex_unlock(&family->lock);
    return error == cudaSuccess ? TESS_OK : tess__cuda_fail(error, "cudaEventRecord");
}

enum tess_status tess__nccl_lane_split(struct nccl_family *family, struct nccl_lane *lane,
                                       int color, int key, ncclComm_t *comm_out)
{
    ncclConfig_t config;
    enum tess_status status;
    *comm_out = NULL;
    tess__nccl_config(family, &config);
    pthread_mutex_lock(&family->lock);
    if (lane->comm == NULL) {
        pthread_mutex_unlock(&family->lock);
        return tess__nccl_check(family);
    }
    lane->made = NULL;
    ncclResult_t result = ncclCommSplit(lane->comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key,
                                        &lane->made, &config);
    /* The child is there when the parent is done with it. */
    status = tess__nccl_taken(family, &lane->comm, result, "ncclCommSplit", NULL);
    if (status == TESS_OK && lane->made != NULL)
        status = tess__nccl_taken(family, &lane->made, ncclInProgress, "ncclCommSplit", NULL);
    if (status == TESS_OK && lane->made == NULL && color >= 0)
        status = tess_fail(TESS_ERR_COMM, "ncclCommSplit made no communicator");
    if (status == TESS_OK)
        *comm_out = lane->made;
    pthread_mutex_unlock(&family->lock);
    return status;
}

enum tess_status tess__nccl_lane_take(struct nccl_family *family, struct nccl_lane *lane,
                                      ncclComm_t comm)
{
    pthread_mutex_lock(&family->lock);
    bool failed = atomic_load(&family->failed);
    if (!failed)
        lane->comm = comm;
    pthread_mutex_unlock(&family->lock);
    if (!failed)
        return TESS_OK;
    /* Nothing has run on it, so that this waits for no rank. */
    if (comm != NULL)
        tess__nccl_say(ncclCommAbort(comm), "ncclCommAbort");
    return tess__nccl_check(family);
}

static void lane_end(struct nccl_family *family, struct nccl_lane *lane)
{
    /* Out of the watch's sight first: that others go is no failure any more. */
    pthread_mutex_lock(&family->lock);
    ncclComm_t comm = lane->comm;
    lane->comm = NULL;
    pthread_mutex_unlock(&family->lock);
    if (comm == NULL)
        return;
    ncclResult_t result = ncclInProgress;
    if (!family->hasty)
        result = ncclCommFinalize(comm);
    double limit_s = tess_clock_s() + LANE_CLOSE_S;
    while (result == ncclInProgress && !family->hasty) {
        if (ncclCommGetAsyncError(comm, &result) != ncclSuccess || tess_clock_s() > limit_s)
            family->hasty = true;
        if (result == ncclInProgress && !family->hasty)
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    if (result == ncclSuccess && !family->hasty)
        tess__nccl_say(ncclCommDestroy(comm), "ncclCommDestroy");
    else
        tess__nccl_say(ncclCommAbort(comm), "ncclCommAbort");
}

void tess__nccl_lane_close(struct nccl_family *family, struct nccl_lane *lane)
{
    lane_end(family, lane);
    tess__nccl_lane_detach(lane);
    if (lane->beat != NULL)
        tess__cuda_log_error(cudaEventDestroy(lane->beat), "cudaEventDestroy");
    if (lane->own != NULL)
        tess__cuda_log_error(cudaStreamDestroy(lane->own), "cudaStreamDestroy");
    pthread_mutex_lock(&family->lock); /* the watch looks at it still */
    *lane = (struct nccl_lane){0};
    pthread_mutex_unlock(&family->lock);
}
