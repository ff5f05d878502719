/* Streams and events: stream i of a device uses its queue i % CUDA_DEVICE_MAX_CONNECTIONS. */
#include "device/madeup/runtime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define STREAM_MAGIC 0x73747265u
#define EVENT_MAGIC  0x6576656eu

#define STREAM_PRIORITY (-5) /* the greatest; the least is 0 */

static _Atomic int stream_count[MADEUP_DEVICES_MAX];
static pthread_mutex_t event_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- streams -------------------------------------------------------------------------------- */

struct CUstream_st *madeup_stream(cudaStream_t stream)
{
    if (stream == NULL || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
        madeup_fail("the default streams are not modelled");
    if (stream->magic != STREAM_MAGIC)
        madeup_fail("%p is no stream", (void *)stream);
    return stream;
}

int madeup_stream_device(cudaStream_t stream)
{
    return madeup_stream(stream)->device;
}

bool madeup_is_recorded(cudaStream_t stream)
{
    return madeup_stream(stream)->record != NULL;
}

/*
 * Who asks whether work is done leaves the processor to the threads that do it: at first for a
 * moment, since who only looks for errors has more to queue, and longer each time it asks again.
 * The end of the work ends the wait.
 */
static __thread int asked; /* times in a row for work that was not done */

static int stream_moment_us(void)
{
    asked += asked < 4;
    return 100 << asked;
}

/* As madeup_enter, with the stream's device too. */
static cudaError_t stream_enter(const char *function, cudaStream_t stream)
{
    const cudaError_t error = madeup_enter(function, cudaErrorLaunchFailure);
    return error != cudaSuccess ? error : madeup_leave(madeup_broken(madeup_stream_device(stream)));
}

/* For a call that asks how far a stream is, which no record may contain. */
static cudaError_t stream_ask(const char *function, cudaStream_t stream)
{
    return madeup_is_recorded(stream) ? madeup_leave(madeup_record_spoil(stream))
                                      : stream_enter(function, stream);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = STREAM_PRIORITY;
    return madeup_enter(__func__, cudaErrorInvalidValue);
}

static cudaError_t stream_create(cudaStream_t *stream_out, unsigned int flags, int priority)
{
    if (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)
        return madeup_leave(cudaErrorInvalidValue);
    struct CUstream_st *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return madeup_leave(cudaErrorMemoryAllocation);
    const int device = madeup_device();
    stream->magic = STREAM_MAGIC;
    stream->device = device;
    stream->priority = priority;
    stream->queue = madeup_queue_of(device, atomic_fetch_add(&stream_count[device], 1));
    *stream_out = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorMemoryAllocation);
    return error != cudaSuccess ? error : stream_create(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorMemoryAllocation);
    return error != cudaSuccess ? error : stream_create(stream, flags, priority);
}

/* Its work goes on. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    struct CUstream_st *own = madeup_stream(stream);
    if (own->record != NULL)
        madeup_fail("a stream is destroyed while it is recorded");
    own->magic = 0;
    free(own);
    madeup_report();
    return madeup_enter("cudaStreamDestroy", cudaErrorLaunchFailure);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    const struct CUstream_st *own = madeup_stream(stream);
    const cudaError_t error = stream_ask(__func__, stream);
    if (error != cudaSuccess)
        return error;
    if (!madeup_queue_done(own->queue, own->last)) {
        madeup_queue_rest(own->queue, own->last, stream_moment_us());
        return madeup_leave(cudaErrorNotReady);
    }
    asked = 0;
    return madeup_leave(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    const struct CUstream_st *own = madeup_stream(stream);
    const cudaError_t error = stream_ask(__func__, stream);
    if (error != cudaSuccess)
        return error;
    madeup_queue_await(own->queue, own->last);
    return madeup_leave(madeup_broken(own->device));
}

cudaError_t cudaDeviceSynchronize(void)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorLaunchFailure);
    if (error != cudaSuccess)
        return error;
    const cudaError_t spoilt = madeup_record_spoil_device(madeup_device());
    if (spoilt != cudaSuccess)
        return madeup_leave(spoilt);
    madeup_wait_idle(madeup_device());
    return madeup_leave(madeup_broken(madeup_device()));
}

cudaError_t madeup_submit(cudaStream_t stream, const struct madeup_work *work)
{
    struct CUstream_st *own = madeup_stream(stream);
    if (own->record != NULL)
        return madeup_record_work(stream, work);
    asked = 0;
    own->last = madeup_put(own->queue, &(struct madeup_item){.work = *work});
    return cudaSuccess;
}

/* ---- events --------------------------------------------------------------------------------- */

static struct CUevent_st *event_of(cudaEvent_t event)
{
    if (event == NULL || event->magic != EVENT_MAGIC)
        madeup_fail("%p is no event", (void *)event);
    return event;
}

static cudaError_t event_enter(const char *function, cudaEvent_t event)
{
    const cudaError_t error = madeup_enter(function, cudaErrorLaunchFailure);
    return error != cudaSuccess ? error : madeup_leave(madeup_broken(event_of(event)->device));
}

void madeup_event_set(cudaEvent_t event, struct madeup_mark *mark)
{
    pthread_mutex_lock(&event_lock);
    struct madeup_mark *before = event->mark;
    event->mark = mark;
    pthread_mutex_unlock(&event_lock);
    madeup_mark_drop(before);
}

void madeup_event_set_points(cudaEvent_t event, struct madeup_points *points)
{
    pthread_mutex_lock(&event_lock);
    struct madeup_points *before = event->points;
    event->points = points;
    pthread_mutex_unlock(&event_lock);
    free(before);
}

bool madeup_event_in_record(cudaEvent_t event)
{
    pthread_mutex_lock(&event_lock);
    const bool in_record = event_of(event)->points != NULL;
    pthread_mutex_unlock(&event_lock);
    return in_record;
}

struct madeup_mark *madeup_event_mark(cudaEvent_t event)
{
    pthread_mutex_lock(&event_lock);
    struct madeup_mark *mark = madeup_mark_keep(event_of(event)->mark);
    pthread_mutex_unlock(&event_lock);
    return mark;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event_out, unsigned int flags)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorMemoryAllocation);
    if (error != cudaSuccess)
        return error;
    if ((flags & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming)) != 0)
        madeup_fail("events of flags %#x are not modelled", flags);
    struct CUevent_st *event = calloc(1, sizeof(*event));
    if (event == NULL)
        return madeup_leave(cudaErrorMemoryAllocation);
    event->magic = EVENT_MAGIC;
    event->device = madeup_device();
    event->timed = (flags & cudaEventDisableTiming) == 0;
    *event_out = event;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

/* Whoever waits for it goes on waiting for its mark. */
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    struct CUevent_st *own = event_of(event);
    madeup_event_set_points(own, NULL);
    madeup_event_set(own, NULL);
    own->magic = 0;
    free(own);
    return madeup_enter("cudaEventDestroy", cudaErrorLaunchFailure);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
    struct CUstream_st *own = madeup_stream(stream);
    cudaError_t error = stream_enter(__func__, stream);
    if (error != cudaSuccess)
        return error;
    if (event_of(event)->device != own->device)
        return madeup_leave(cudaErrorInvalidResourceHandle);
    const bool external = flags == cudaEventRecordExternal;
    if (flags > cudaEventRecordExternal || (external && own->record == NULL))
        return madeup_leave(cudaErrorInvalidValue);
    if (own->record != NULL)
        return madeup_leave(madeup_record_event(stream, event, external));
    madeup_event_set_points(event, NULL);
    struct madeup_mark *mark = madeup_mark_new(own->queue);
    own->last = madeup_put(own->queue, &(struct madeup_item){.reach = madeup_mark_keep(mark)});
    madeup_event_set(event, mark);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    struct CUstream_st *own = madeup_stream(stream);
    const cudaError_t error = stream_enter(__func__, stream);
    if (error != cudaSuccess)
        return error;
    const bool external = flags == cudaEventWaitExternal;
    if (flags > cudaEventWaitExternal || (external && own->record == NULL))
        return madeup_leave(cudaErrorInvalidValue);
    if (own->record != NULL || madeup_event_in_record(event))
        return madeup_leave(madeup_record_wait(stream, event, external));
    struct madeup_mark *mark = madeup_event_mark(event);
    if (mark != NULL)
        own->last = madeup_put_wait(own->queue, mark);
    madeup_mark_drop(mark);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    const cudaError_t error = event_enter(__func__, event);
    if (error != cudaSuccess)
        return error;
    if (madeup_event_in_record(event))
        return madeup_leave(madeup_record_spoil_event(event));
    struct madeup_mark *mark = madeup_event_mark(event);
    const bool reached = mark == NULL || madeup_mark_reached(mark, NULL);
    if (reached)
        asked = 0;
    else
        madeup_mark_rest(mark, stream_moment_us());
    madeup_mark_drop(mark);
    return madeup_leave(reached ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    const cudaError_t error = event_enter(__func__, event);
    if (error != cudaSuccess)
        return error;
    if (madeup_event_in_record(event))
        return madeup_leave(madeup_record_spoil_event(event));
    struct madeup_mark *mark = madeup_event_mark(event);
    if (mark != NULL)
        madeup_mark_await(mark);
    madeup_mark_drop(mark);
    return madeup_leave(madeup_broken(event->device));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    cudaError_t error = event_enter(__func__, from);
    if (error != cudaSuccess)
        return error;
    if (!from->timed || !event_of(to)->timed || from->device != to->device)
        return madeup_leave(cudaErrorInvalidResourceHandle);
    struct madeup_mark *first = madeup_event_mark(from), *last = madeup_event_mark(to);
    double first_s = 0, last_s = 0;
    if (first == NULL || last == NULL)
        error = cudaErrorInvalidResourceHandle;
    else if (!madeup_mark_reached(first, &first_s) || !madeup_mark_reached(last, &last_s))
        error = cudaErrorNotReady;
    else
        *ms = (float)((last_s - first_s) * 1e3);
    madeup_mark_drop(first);
    madeup_mark_drop(last);
    return madeup_leave(error);
}
