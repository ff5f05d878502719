/*
 * The queues of `guard_queue`, which show on a machine without a GPU whether code orders its work
 * by fences. Operations of kernels compute at once, as in guard, so the kernels' own queue is
 * always empty. Any other queue is lazy: it keeps its work as late as a device may, until
 *
 *   the kernels' queue follows a fence of it, or the host waits for one, or polls it twice
 *   another lazy queue runs up to the point where it follows a fence of it
 *
 * Code that reads a result without a fence finds the former values, and code that overwrites a
 * source too early finds the new values in the result. A full queue runs its work, as a device also
 * may.
 *
 * Queues of all ranks in the process may follow each other's fences, and run each other's work: one
 * lock for all of them. Work opens the memory that it touches, also that of other ranks.
 */
#include "guard/memory.h"

#include "base/clock.h"
#include "base/reduce.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

#define QUEUE_ROOM 256 /* pieces of work that a lazy queue keeps */

enum queue_work { QUEUE_COPY, QUEUE_REDUCE, QUEUE_RECORD, QUEUE_FOLLOW };

struct guard_fence {
    struct tess_fence fence;
    struct guard_queue *queue; /* NULL: never recorded, or by a queue that had done everything */
    uint64_t position;         /* in that queue: pieces of work up to the record, itself included */
    double reached_s;
    bool polled; /* by reached(), since the record */
    struct guard_fence *next_closed;
};

struct queue_item {
    enum queue_work work;
    enum tess_dtype dtype, to;
    enum tess_reduce reduce;
    int32_t n, m;
    size_t count; /* elements; of a copy, bytes */
    const void *source[TESS_QUEUE_PEERS_MAX];
    void *target[TESS_QUEUE_PEERS_MAX];
    struct guard_fence *fence; /* recorded */
    struct guard_queue *after; /* followed, up to `position` */
    uint64_t position;
};

struct guard_queue {
    struct tess_queue queue;
    uint64_t given, done;     /* pieces of work ever */
    struct queue_item *item;  /* [QUEUE_ROOM]; NULL: the kernels' own, done at once */
    struct guard_queue *next; /* open, or closed */
};

/* Queues that are closed, and fences, may still be named by work of open ones: they are kept until
 * no queue is open. */
static struct {
    pthread_mutex_t lock;
    struct tess_kernel *kernels;
    struct guard_queue *open, *closed;
    struct guard_fence *closed_fences;
} guard_queues = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- running what was kept; the lock is held ------------------------------------------------ */

static struct tess_kernel *queue_owner(const void *memory)
{
    struct tess_kernel *kernel = guard_queues.kernels;
    while (kernel != NULL && !tess__guard_holds(kernel, memory))
        kernel = ((struct guard_state *)kernel->state)->next;
    return kernel;
}

static void queue_touch(const struct queue_item *item, bool on)
{
    for (int32_t i = 0; i < item->n + item->m; i++) {
        struct tess_kernel *kernel =
            queue_owner(i < item->n ? item->source[i] : item->target[i - item->n]);
        if (kernel != NULL) /* else host memory */
            tess__guard_touch(kernel, on);
    }
}

static void queue_stamp(struct guard_fence *fence, const struct guard_queue *queue, uint64_t done)
{
    if (fence->queue == queue && fence->position == done)
        fence->reached_s = tess_clock_s();
}

static void queue_run(struct guard_queue *queue, uint64_t position);

/* `done`: position of the queue once this is done. */
static void queue_do(const struct guard_queue *queue, const struct queue_item *item, uint64_t done)
{
    switch (item->work) {
    case QUEUE_COPY:
        queue_touch(item, true);
        memmove(item->target[0], item->source[0], item->count);
        queue_touch(item, false);
        break;
    case QUEUE_REDUCE:
        queue_touch(item, true);
        tess__reduce_to(item->dtype, item->to, item->reduce, item->n, item->source, item->m,
                        item->target, item->count);
        queue_touch(item, false);
        break;
    case QUEUE_RECORD:
        queue_stamp(item->fence, queue, done);
        break;
    case QUEUE_FOLLOW:
        queue_run(item->after, item->position);
        break;
    }
}

/* Positions only lead back in time, so queues that follow each other cannot go round in circles. */
static void queue_run(struct guard_queue *queue, uint64_t position)
{
    while (queue->done < position) {
        queue_do(queue, &queue->item[queue->done % QUEUE_ROOM], queue->done + 1);
        queue->done++;
    }
}

/* The next piece of work of a queue: kept, or done at once. */
static void queue_give(struct guard_queue *queue, const struct queue_item *item)
{
    if (queue->item == NULL) {
        queue->given++;
        queue_do(queue, item, queue->given);
        queue->done = queue->given;
        return;
    }
    if (queue->given - queue->done == QUEUE_ROOM)
        queue_run(queue, queue->given);
    queue->item[queue->given++ % QUEUE_ROOM] = *item;
}

/* ---- the interface -------------------------------------------------------------------------- */

static enum tess_status queue_new(struct tess_kernel *kernel, bool lazy,
                                  struct tess_queue **queue_out)
{
    struct guard_queue *queue = calloc(1, sizeof(*queue));
    if (queue != NULL && lazy)
        queue->item = calloc(QUEUE_ROOM, sizeof(*queue->item));
    if (queue == NULL || (lazy && queue->item == NULL)) {
        free(queue);
        TESS_FAIL(TESS_ERR_MEMORY, "kernel %s: cannot allocate a queue", kernel->ops->name);
    }
    queue->queue = (struct tess_queue){.ops = &tess__guard_queue_ops, .kernel = kernel};
    pthread_mutex_lock(&guard_queues.lock);
    queue->next = guard_queues.open;
    guard_queues.open = queue;
    pthread_mutex_unlock(&guard_queues.lock);
    *queue_out = &queue->queue;
    return TESS_OK;
}

static enum tess_status queue_open(struct tess_kernel *kernel, struct tess_queue **queue_out)
{
    return queue_new(kernel, true, queue_out);
}

static void queue_forget_closed(void)
{
    while (guard_queues.closed != NULL) {
        struct guard_queue *queue = guard_queues.closed;
        guard_queues.closed = queue->next;
        free(queue->item);
        free(queue);
    }
    while (guard_queues.closed_fences != NULL) {
        struct guard_fence *fence = guard_queues.closed_fences;
        guard_queues.closed_fences = fence->next_closed;
        free(fence);
    }
}

static void queue_close(struct tess_queue *closing)
{
    struct guard_queue *queue = (struct guard_queue *)closing;
    pthread_mutex_lock(&guard_queues.lock);
    queue_run(queue, queue->given);
    struct guard_queue **link = &guard_queues.open;
    while (*link != queue)
        link = &(*link)->next;
    *link = queue->next;
    queue->next = guard_queues.closed;
    guard_queues.closed = queue;
    if (guard_queues.open == NULL)
        queue_forget_closed();
    pthread_mutex_unlock(&guard_queues.lock);
}

static enum tess_status queue_fence_open(struct tess_kernel *kernel, struct tess_fence **fence_out)
{
    struct guard_fence *fence = calloc(1, sizeof(*fence));
    if (fence == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "kernel %s: cannot allocate a fence", kernel->ops->name);
    fence->fence.ops = &tess__guard_queue_ops;
    *fence_out = &fence->fence;
    return TESS_OK;
}

static void queue_fence_close(struct tess_fence *closing)
{
    struct guard_fence *fence = (struct guard_fence *)closing;
    pthread_mutex_lock(&guard_queues.lock);
    fence->next_closed = guard_queues.closed_fences;
    guard_queues.closed_fences = fence;
    if (guard_queues.open == NULL)
        queue_forget_closed();
    pthread_mutex_unlock(&guard_queues.lock);
}

static enum tess_status queue_record(struct tess_queue *recorded, struct tess_fence *at)
{
    struct guard_queue *queue = (struct guard_queue *)recorded;
    struct guard_fence *fence = (struct guard_fence *)at;
    pthread_mutex_lock(&guard_queues.lock);
    fence->queue = queue;
    fence->position = queue->given + 1;
    fence->polled = false;
    queue_give(queue, &(struct queue_item){.work = QUEUE_RECORD, .fence = fence});
    pthread_mutex_unlock(&guard_queues.lock);
    return TESS_OK;
}

static enum tess_status queue_follow(struct tess_queue *following, const struct tess_fence *at)
{
    struct guard_queue *queue = (struct guard_queue *)following;
    const struct guard_fence *fence = (const struct guard_fence *)at;
    pthread_mutex_lock(&guard_queues.lock);
    if (fence->queue != NULL && fence->queue != queue)
        queue_give(queue, &(struct queue_item){.work = QUEUE_FOLLOW,
                                               .after = fence->queue,
                                               .position = fence->position});
    pthread_mutex_unlock(&guard_queues.lock);
    return TESS_OK;
}

/* The first poll returns false; the second one runs the queue up to the fence. */
static enum tess_status queue_reached(const struct tess_fence *at, bool *reached_out)
{
    struct guard_fence *fence = (struct guard_fence *)(uintptr_t)at;
    pthread_mutex_lock(&guard_queues.lock);
    if (fence->queue != NULL && fence->polled)
        queue_run(fence->queue, fence->position);
    *reached_out = fence->queue == NULL || fence->queue->done >= fence->position;
    fence->polled = true;
    pthread_mutex_unlock(&guard_queues.lock);
    return TESS_OK;
}

static enum tess_status queue_wait(const struct tess_fence *at)
{
    const struct guard_fence *fence = (const struct guard_fence *)at;
    pthread_mutex_lock(&guard_queues.lock);
    if (fence->queue != NULL)
        queue_run(fence->queue, fence->position);
    pthread_mutex_unlock(&guard_queues.lock);
    return TESS_OK;
}

static enum tess_status queue_elapsed(const struct tess_fence *from, const struct tess_fence *to,
                                      double *seconds_out)
{
    const struct guard_fence *both[] = {(const struct guard_fence *)from,
                                        (const struct guard_fence *)to};
    bool reached = true;
    pthread_mutex_lock(&guard_queues.lock);
    for (int i = 0; i < 2; i++)
        reached = reached && both[i]->queue != NULL && both[i]->queue->done >= both[i]->position;
    *seconds_out = both[1]->reached_s - both[0]->reached_s;
    pthread_mutex_unlock(&guard_queues.lock);
    if (!reached)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "the time between fences that have not both been reached: wait "
                  "for them first");
    return TESS_OK;
}

static enum tess_status queue_copy(struct tess_queue *given, size_t bytes, const void *source,
                                   void *target)
{
    const struct queue_item item = {
        .work = QUEUE_COPY, .count = bytes, .n = 1, .m = 1, .source = {source}, .target = {target}};
    pthread_mutex_lock(&guard_queues.lock);
    queue_give((struct guard_queue *)given, &item);
    pthread_mutex_unlock(&guard_queues.lock);
    return TESS_OK;
}

/* Is one of the types f32, the other one of 16 bits? */
static bool queue_is_between(enum tess_dtype dtype, enum tess_dtype to)
{
    const enum tess_dtype other = dtype == TESS_F32 ? to : dtype;
    return (dtype == TESS_F32 || to == TESS_F32) && (other == TESS_BF16 || other == TESS_F16);
}

static enum tess_status queue_reduce(struct tess_queue *given, enum tess_dtype dtype,
                                     enum tess_dtype to, enum tess_reduce reduce, int32_t n,
                                     const void *const *source, int32_t m, void *const *target,
                                     size_t count)
{
    struct queue_item item = {.work = QUEUE_REDUCE,
                              .dtype = dtype,
                              .to = to,
                              .reduce = reduce,
                              .n = n,
                              .m = m,
                              .count = count};
    if (n < 1 || n > TESS_QUEUE_PEERS_MAX || m < 1 || m > TESS_QUEUE_PEERS_MAX)
        TESS_FAIL(TESS_ERR_INTERNAL, "a reduction of %d arrays into %d; both must be 1 to %d",
                  (int)n, (int)m, TESS_QUEUE_PEERS_MAX);
    if (to != dtype && (reduce != TESS_REDUCE_SUM || !queue_is_between(dtype, to)))
        TESS_FAIL(TESS_ERR_INTERNAL, "a reduction of %s into %s", tess_dtype_name(dtype),
                  tess_dtype_name(to));
    memcpy(item.source, source, (size_t)n * sizeof(*source));
    memcpy(item.target, target, (size_t)m * sizeof(*target));
    pthread_mutex_lock(&guard_queues.lock);
    queue_give((struct guard_queue *)given, &item);
    pthread_mutex_unlock(&guard_queues.lock);
    return TESS_OK;
}

static bool queue_owns(const struct tess_kernel *kernel, const void *memory)
{
    (void)kernel; /* memory of other ranks in the process is the device's too */
    pthread_mutex_lock(&guard_queues.lock);
    bool owned = queue_owner(memory) != NULL;
    pthread_mutex_unlock(&guard_queues.lock);
    return owned;
}

const struct tess_queue_ops tess__guard_queue_ops = {
    .open = queue_open,
    .close = queue_close,
    .fence_open = queue_fence_open,
    .fence_close = queue_fence_close,
    .record = queue_record,
    .follow = queue_follow,
    .reached = queue_reached,
    .wait = queue_wait,
    .elapsed = queue_elapsed,
    .copy = queue_copy,
    .reduce = queue_reduce,
    .owns = queue_owns,
};

/* ---- slots of the kernel -------------------------------------------------------------------- */

enum tess_status tess__guard_queue_open(struct tess_kernel *kernel)
{
    struct guard_state *state = kernel->state;
    TESS_TRY(tess__guard_open(kernel));
    enum tess_status status = queue_new(kernel, false, &kernel->queue);
    if (status != TESS_OK) {
        tess__guard_close(kernel);
        return status;
    }
    pthread_mutex_lock(&guard_queues.lock);
    state->next = guard_queues.kernels;
    guard_queues.kernels = kernel;
    pthread_mutex_unlock(&guard_queues.lock);
    return TESS_OK;
}

/* Run the work of all queues, before memory is freed. */
static void queue_run_all(void)
{
    for (struct guard_queue *queue = guard_queues.open; queue != NULL; queue = queue->next)
        queue_run(queue, queue->given);
}

void tess__guard_queue_close(struct tess_kernel *kernel)
{
    struct guard_state *state = kernel->state;
    pthread_mutex_lock(&guard_queues.lock);
    queue_run_all();
    struct tess_kernel **link = &guard_queues.kernels;
    while (*link != kernel)
        link = &((struct guard_state *)(*link)->state)->next;
    *link = state->next;
    pthread_mutex_unlock(&guard_queues.lock);
    queue_close(kernel->queue);
    tess__guard_close(kernel);
}

void tess__guard_queue_disown(struct tess_kernel *kernel, void *memory, size_t bytes)
{
    pthread_mutex_lock(&guard_queues.lock);
    queue_run_all();
    pthread_mutex_unlock(&guard_queues.lock);
    tess__guard_disown(kernel, memory, bytes);
}

void tess__guard_queue_free(struct tess_kernel *kernel, void *memory)
{
    if (memory != NULL)
        tess__guard_queue_disown(kernel, memory, 0);
}

enum tess_status tess__guard_queue_copy(struct tess_kernel *kernel, size_t bytes,
                                        const void *source, void *target)
{
    return queue_copy(kernel->queue, bytes, source, target); /* done at once */
}
