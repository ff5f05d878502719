/*
 * Queues are streams, fences are events. Fences stay true while a graph is recorded (graph.c): then
 * one has two sides. Work of the same graph that follows it becomes an edge of the graph, by
 * `inner`; all other work uses `event`, which the graph records again whenever it is played.
 *
 *     recorded in    followed by                       waits for
 *     no graph       no graph                          event
 *     no graph       work of a graph under recording   event, from outside, at each play
 *     a graph        work of the same recording        inner
 *     a graph        anything later                    event, of the latest play
 */
#include "cuda/host.h"

#include <stdlib.h>

struct cuda_fence {
    struct tess_fence fence;
    const struct cuda_state *owner;
    cudaEvent_t event; /* for waits outside of a graph, and for times */
    cudaEvent_t inner; /* for work in the same graph */
    uint64_t graph;    /* the number of that graph, see cuda_state; 0: none */
    bool recorded;
};

static cudaStream_t queue_stream(const struct tess_queue *queue)
{
    return queue->native;
}

static const struct cuda_fence *fence_of(const struct tess_fence *fence)
{
    return (const struct cuda_fence *)fence;
}

/* Is the fence a point of work that is being recorded, and not run? */
static bool fence_is_pending(const struct cuda_fence *fence)
{
    return fence->graph > 0 && fence->graph == fence->owner->graph;
}

/* ---- opening ------------------------------------------------------------------------------ */

/* Transfers have priority over computation: their few blocks are soon done, and other ranks wait
 * for them.
 */
enum tess_status tess__cuda_queue_start(struct tess_queue *queue, bool sends)
{
    int least = 0, greatest = 0;
    cudaStream_t stream;
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_TRY(
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, sends ? greatest : least));
    queue->native = stream;
    return TESS_OK;
}

void tess__cuda_queue_stop(struct tess_queue *queue)
{
    if (queue->native == NULL || tess__cuda_hangs())
        return;
    tess__cuda_log_error(cudaStreamSynchronize(queue_stream(queue)), "closing a queue");
    tess__cuda_log_error(cudaStreamDestroy(queue_stream(queue)), "cudaStreamDestroy");
    queue->native = NULL;
}

static void queue_close(struct tess_queue *queue)
{
    if (queue != NULL)
        tess__cuda_queue_stop(queue);
    free(queue);
}

static enum tess_status queue_open(struct tess_kernel *kernel, struct tess_queue **queue_out)
{
    TESS_TRY(tess__cuda_need(kernel, "open a queue"));
    struct tess_queue *queue = calloc(1, sizeof(*queue));
    if (queue == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "kernel cuda: no memory for a queue");
    *queue = (struct tess_queue){.ops = &tess__cuda_queue, .kernel = kernel};
    const enum tess_status status = tess__cuda_queue_start(queue, true);
    if (status == TESS_OK)
        *queue_out = queue;
    else
        queue_close(queue);
    return status;
}

static void fence_close(struct tess_fence *fence)
{
    struct cuda_fence *own = (struct cuda_fence *)fence;
    if (own == NULL)
        return;
    if (own->event != NULL)
        tess__cuda_log_error(cudaEventDestroy(own->event), "cudaEventDestroy");
    if (own->inner != NULL)
        tess__cuda_log_error(cudaEventDestroy(own->inner), "cudaEventDestroy");
    free(own);
}

static enum tess_status fence_open(struct tess_kernel *kernel, struct tess_fence **fence_out)
{
    TESS_TRY(tess__cuda_need(kernel, "open a fence"));
    struct cuda_fence *fence = calloc(1, sizeof(*fence));
    if (fence == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "kernel cuda: no memory for a fence");
    fence->fence.ops = &tess__cuda_queue;
    fence->owner = tess__cuda_state(kernel);
    cudaError_t error = cudaEventCreateWithFlags(&fence->event, cudaEventBlockingSync);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&fence->inner, cudaEventDisableTiming);
    if (error != cudaSuccess) {
        fence_close(&fence->fence);
        return tess__cuda_fail(error, "making a fence");
    }
    *fence_out = &fence->fence;
    return TESS_OK;
}

/* ---- order -------------------------------------------------------------------------------- */

/* Has the stream joined the graph that its rank is recording? */
static enum tess_status queue_is_recorded(const struct tess_queue *queue, cudaStream_t stream,
                                          bool *recorded_out)
{
    *recorded_out = false;
    if (tess__cuda_state(queue->kernel)->graph == 0)
        return TESS_OK;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CUDA_TRY(cudaStreamIsCapturing(stream, &status));
    *recorded_out = status != cudaStreamCaptureStatusNone;
    return TESS_OK;
}

static enum tess_status queue_record(struct tess_queue *queue, struct tess_fence *fence)
{
    TESS_TRY(tess__cuda_need(queue->kernel, "record a fence"));
    const cudaStream_t stream = queue_stream(queue);
    struct cuda_fence *own = (struct cuda_fence *)fence;
    bool recorded = false;
    TESS_TRY(queue_is_recorded(queue, stream, &recorded));
    if (recorded) {
        /* In this order: what follows `inner` has the other record before it, too, which would be
         * work that nothing follows (cudaErrorStreamCaptureUnjoined). */
        CUDA_TRY(cudaEventRecordWithFlags(own->event, stream, cudaEventRecordExternal));
        CUDA_TRY(cudaEventRecord(own->inner, stream));
    } else {
        CUDA_TRY(cudaEventRecord(own->event, stream));
    }
    /* A fence belongs from here on to the rank whose work it is a point of. */
    own->owner = tess__cuda_state(queue->kernel);
    own->graph = recorded ? own->owner->graph : 0;
    own->recorded = true;
    return TESS_OK;
}

static enum tess_status queue_follow(struct tess_queue *queue, const struct tess_fence *fence)
{
    TESS_TRY(tess__cuda_need(queue->kernel, "follow a fence"));
    const cudaStream_t stream = queue_stream(queue);
    const struct cuda_fence *other = fence_of(fence);
    if (!other->recorded)
        return TESS_OK;
    if (fence_is_pending(other)) {
        if (other->owner != tess__cuda_state(queue->kernel))
            TESS_FAIL(TESS_ERR_INTERNAL, "kernel cuda: a rank cannot follow a fence of another one "
                                         "whose work is being recorded as a graph");
        CUDA_TRY(cudaStreamWaitEvent(stream, other->inner, cudaEventWaitDefault));
        return TESS_OK;
    }
    bool recorded = false;
    TESS_TRY(queue_is_recorded(queue, stream, &recorded));
    CUDA_TRY(cudaStreamWaitEvent(stream, other->event,
                                 recorded ? cudaEventWaitExternal : cudaEventWaitDefault));
    return TESS_OK;
}

static enum tess_status fence_reached(const struct tess_fence *fence, bool *reached_out)
{
    const struct cuda_fence *own = fence_of(fence);
    *reached_out = !own->recorded;
    if (!own->recorded || fence_is_pending(own))
        return TESS_OK;
    const cudaError_t error = tess__cuda_polled(cudaEventQuery(own->event));
    if (error != cudaErrorNotReady)
        TESS_TRY(tess__cuda_status(error, "cudaEventQuery"));
    *reached_out = error == cudaSuccess;
    return TESS_OK;
}

static enum tess_status fence_wait(const struct tess_fence *fence)
{
    const struct cuda_fence *own = fence_of(fence);
    if (!own->recorded)
        return TESS_OK;
    if (tess__cuda_selected() < 0) /* no rank's thread: CUDA would make a context on device 0 */
        CUDA_TRY(cudaSetDevice(own->owner->device));
    if (fence_is_pending(own))
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "kernel cuda: cannot wait for work that is being recorded as a graph");
    return tess__cuda_await(own->owner, own->event, "waiting for a queue");
}

static enum tess_status fence_elapsed(const struct tess_fence *from, const struct tess_fence *to,
                                      double *seconds_out)
{
    const struct cuda_fence *first = fence_of(from), *last = fence_of(to);
    if (!first->recorded || !last->recorded)
        TESS_FAIL(TESS_ERR_INTERNAL, "kernel cuda: no time between fences that were not recorded");
    float milliseconds = 0;
    CUDA_TRY(cudaEventElapsedTime(&milliseconds, first->event, last->event));
    *seconds_out = (double)milliseconds * 1e-3;
    return TESS_OK;
}

/* ---- work --------------------------------------------------------------------------------- */

static enum tess_status queue_copy(struct tess_queue *queue, size_t bytes, const void *source,
                                   void *target)
{
    TESS_TRY(tess__cuda_need(queue->kernel, "copy"));
    if (bytes > 0)
        CUDA_TRY(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, queue_stream(queue)));
    return TESS_OK;
}

static enum tess_status queue_reduce(struct tess_queue *queue, enum tess_dtype dtype,
                                     enum tess_dtype to, enum tess_reduce reduce, int32_t n,
                                     const void *const *source, int32_t m, void *const *target,
                                     size_t count)
{
    TESS_TRY(tess__cuda_need(queue->kernel, "reduce"));
    if (count > 0)
        CUDA_TRY(
            tess__cuda_reduce(queue_stream(queue), dtype, to, reduce, n, source, m, target, count));
    return TESS_OK;
}

const struct tess_queue_ops tess__cuda_queue = {
    .open = queue_open,
    .close = queue_close,
    .fence_open = fence_open,
    .fence_close = fence_close,
    .record = queue_record,
    .follow = queue_follow,
    .reached = fence_reached,
    .wait = fence_wait,
    .elapsed = fence_elapsed,
    .copy = queue_copy,
    .reduce = queue_reduce,
    .owns = tess__cuda_owns,
};
