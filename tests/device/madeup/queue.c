/*
 * Hardware queues: one thread each, started when it is first used. A queue runs its items in the
 * order in which they were put there, whatever streams they are of; one that waits for a mark holds
 * up all behind it. So streams that share a queue may wait for each other without need, as on a
 * device, and work that waits for work behind it in its own queue waits for ever.
 */
#include "device/madeup/runtime.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define QUEUES_MAX 32

struct madeup_mark {
    _Atomic int users;
    struct madeup_queue *queue;
    uint64_t number; /* of its item; 0 before it has one */
    bool reached;
    double at_s;
};

struct queue_node {
    struct queue_node *next;
    struct madeup_item item;
    uint64_t number;
    double due_s; /* not run before, unless somebody waits */
};

/* Who waits for an item is woken by that one alone: with a rank for each device, waking all at
 * every item was most of what a run did. */
struct queue_waiter {
    struct queue_waiter *next;
    uint64_t number;
    pthread_cond_t done;
};

struct madeup_queue {
    int device;
    pthread_t thread;
    bool started, blocked;
    pthread_cond_t wake;
    struct queue_node *first, **end;
    uint64_t put, done;
    uint64_t wanted; /* somebody waits for items up to this number */
    struct queue_waiter *waiters;
};

static struct {
    pthread_mutex_t lock;
    pthread_once_t once;
    _Atomic bool ending;
    pid_t process;
    double slow_s[MADEUP_DEVICES_MAX]; /* by what MADEUP_SLOW has put a device's clock forward */
    struct madeup_queue queue[MADEUP_DEVICES_MAX][QUEUES_MAX];
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static __thread const struct madeup_queue *queue_own; /* whose thread this is */

bool madeup_cancelled(void)
{
    return atomic_load(&all.ending);
}

/* ---- marks ---------------------------------------------------------------------------------- */

struct madeup_mark *madeup_mark_new(struct madeup_queue *queue)
{
    struct madeup_mark *mark = calloc(1, sizeof(*mark));
    if (mark == NULL)
        madeup_fail("no memory for a mark");
    mark->users = 1;
    mark->queue = queue;
    return mark;
}

struct madeup_mark *madeup_mark_keep(struct madeup_mark *mark)
{
    if (mark != NULL)
        atomic_fetch_add(&mark->users, 1);
    return mark;
}

void madeup_mark_drop(struct madeup_mark *mark)
{
    if (mark != NULL && atomic_fetch_sub(&mark->users, 1) == 1)
        free(mark);
}

bool madeup_mark_reached(struct madeup_mark *mark, double *at_s)
{
    pthread_mutex_lock(&all.lock);
    const bool reached = mark->reached;
    if (reached && at_s != NULL)
        *at_s = mark->at_s;
    pthread_mutex_unlock(&all.lock);
    return reached;
}

/* ---- the thread of a queue ------------------------------------------------------------------ */

/* Locked: somebody waits for items up to this number. */
static void queue_want(struct madeup_queue *queue, uint64_t number)
{
    if (queue->wanted >= number)
        return;
    queue->wanted = number;
    pthread_cond_signal(&queue->wake);
}

/* Locked: wait until the first item may run; false: the program ends. */
static bool queue_await_first(struct madeup_queue *queue)
{
    for (;;) {
        if (atomic_load(&all.ending))
            return false;
        const struct queue_node *first = queue->first;
        if (first == NULL) {
            pthread_cond_wait(&queue->wake, &all.lock);
            continue;
        }
        if (first->number > queue->wanted && tess_clock_s() < first->due_s) {
            struct timespec until = {.tv_sec = (time_t)first->due_s};
            until.tv_nsec = (long)((first->due_s - (double)until.tv_sec) * 1e9);
            (void)pthread_cond_timedwait(&queue->wake, &all.lock, &until);
            continue;
        }
        struct madeup_mark *wait = first->item.wait;
        if (wait == NULL || wait->reached)
            return true;
        queue_want(wait->queue, wait->number);
        queue->blocked = true;
        pthread_cond_wait(&queue->wake, &all.lock);
        queue->blocked = false;
    }
}

static void queue_run(const struct madeup_queue *queue, const struct madeup_work *work)
{
    if (work->run == NULL || madeup_broken(queue->device) != cudaSuccess)
        return;
    madeup_count(work->name);
    while (madeup_stalls(work->name) && !madeup_cancelled())
        while (!madeup_cancelled())
            (void)usleep(1000);
    if (madeup_cancelled())
        return;
    if (madeup_delay_s(work->name) > 0) {
        pthread_mutex_lock(&all.lock);
        all.slow_s[queue->device] += madeup_delay_s(work->name);
        pthread_mutex_unlock(&all.lock);
    }
    cudaError_t error = (cudaError_t)madeup_injected("work", cudaErrorIllegalAddress);
    if (error == cudaSuccess)
        error = work->run(work->context);
    madeup_break(queue->device, error);
}

static void queue_release(struct queue_node *node)
{
    struct madeup_item *item = &node->item;
    if (item->release != NULL)
        item->release(item->owner);
    else if (item->work.drop != NULL)
        item->work.drop(item->work.context);
    madeup_mark_drop(item->wait);
    madeup_mark_drop(item->reach);
    free(node);
}

/* Locked: the first item has ended. */
static struct queue_node *queue_take(struct madeup_queue *queue)
{
    struct queue_node *node = queue->first;
    queue->first = node->next;
    if (queue->first == NULL)
        queue->end = &queue->first;
    queue->done = node->number;
    if (node->item.reach != NULL) {
        node->item.reach->reached = true;
        node->item.reach->at_s = tess_clock_s() + all.slow_s[queue->device];
        for (int d = 0; d < MADEUP_DEVICES_MAX; d++)
            for (int q = 0; q < QUEUES_MAX; q++)
                if (all.queue[d][q].blocked && all.queue[d][q].first->item.wait == node->item.reach)
                    pthread_cond_signal(&all.queue[d][q].wake);
    }
    for (struct queue_waiter *waiter = queue->waiters; waiter != NULL; waiter = waiter->next)
        if (waiter->number <= queue->done)
            pthread_cond_signal(&waiter->done);
    return node;
}

static void *queue_main(void *argument)
{
    struct madeup_queue *queue = argument;
    queue_own = queue;
    (void)cudaSetDevice(queue->device);
    pthread_mutex_lock(&all.lock);
    while (queue_await_first(queue)) {
        const struct queue_node *first = queue->first;
        pthread_mutex_unlock(&all.lock);
        queue_run(queue, &first->item.work);
        pthread_mutex_lock(&all.lock);
        struct queue_node *node = queue_take(queue);
        pthread_mutex_unlock(&all.lock);
        queue_release(node);
        pthread_mutex_lock(&all.lock);
    }
    pthread_mutex_unlock(&all.lock);
    return NULL;
}

static void queues_start(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    for (int d = 0; d < MADEUP_DEVICES_MAX; d++) {
        for (int q = 0; q < QUEUES_MAX; q++) {
            struct madeup_queue *queue = &all.queue[d][q];
            queue->device = d;
            queue->end = &queue->first;
            pthread_cond_init(&queue->wake, &attributes);
        }
    }
    pthread_condattr_destroy(&attributes);
    all.process = getpid();
}

/* The program ends, or the module is closed: work that has not begun is given up. */
__attribute__((destructor)) static void queues_end(void)
{
    if (all.process != getpid())
        return;
    pthread_mutex_lock(&all.lock);
    atomic_store(&all.ending, true);
    for (int d = 0; d < MADEUP_DEVICES_MAX; d++) {
        for (int q = 0; q < QUEUES_MAX; q++) {
            pthread_cond_signal(&all.queue[d][q].wake);
            for (struct queue_waiter *waiter = all.queue[d][q].waiters; waiter != NULL;
                 waiter = waiter->next)
                pthread_cond_signal(&waiter->done);
        }
    }
    pthread_mutex_unlock(&all.lock);
    for (int d = 0; d < MADEUP_DEVICES_MAX; d++) {
        for (int q = 0; q < QUEUES_MAX; q++) {
            struct madeup_queue *queue = &all.queue[d][q];
            if (queue->started && queue != queue_own)
                (void)pthread_join(queue->thread, NULL);
            while (queue->first != NULL)
                queue_release(queue_take(queue));
        }
    }
    madeup_memory_end();
}

/* ---- what others do with queues ------------------------------------------------------------- */

struct madeup_queue *madeup_queue_of(int device, int index)
{
    (void)pthread_once(&all.once, queues_start);
    return &all.queue[device][index % madeup_settings()->connections];
}

int madeup_queue_device(const struct madeup_queue *queue)
{
    return queue->device;
}

uint64_t madeup_put(struct madeup_queue *queue, const struct madeup_item *item)
{
    struct queue_node *node = calloc(1, sizeof(*node));
    if (node == NULL)
        madeup_fail("no memory for work");
    node->item = *item;
    pthread_mutex_lock(&all.lock);
    const uint64_t number = node->number = ++queue->put;
    if (item->reach != NULL)
        item->reach->number = number;
    if (madeup_settings()->late_s > 0)
        node->due_s = tess_clock_s() + madeup_settings()->late_s;
    *queue->end = node;
    queue->end = &node->next;
    if (!queue->started) {
        queue->started = true;
        if (pthread_create(&queue->thread, NULL, queue_main, queue) != 0)
            madeup_fail("no thread for a queue");
    }
    if (queue->first == node) /* else it has what to do, or to wait for */
        pthread_cond_signal(&queue->wake);
    pthread_mutex_unlock(&all.lock);
    return number;
}

uint64_t madeup_put_wait(struct madeup_queue *queue, struct madeup_mark *mark)
{
    return madeup_put(queue, &(struct madeup_item){.wait = madeup_mark_keep(mark)});
}

/* Locked: until the item has ended, or until then. */
static void queue_sleep(struct madeup_queue *queue, uint64_t number, const struct timespec *until)
{
    struct queue_waiter me = {queue->waiters, number, PTHREAD_COND_INITIALIZER};
    struct queue_waiter **at = &queue->waiters;
    int late = 0;
    queue->waiters = &me;
    while (queue->done < number && !atomic_load(&all.ending) && late == 0)
        late = until == NULL ? pthread_cond_wait(&me.done, &all.lock)
                             : pthread_cond_timedwait(&me.done, &all.lock, until);
    while (*at != &me)
        at = &(*at)->next;
    *at = me.next;
    pthread_cond_destroy(&me.done);
}

static void queue_await(struct madeup_queue *queue, uint64_t number)
{
    if (queue_own != NULL)
        madeup_fail("a queue's thread waits as only the host's may");
    queue_want(queue, number);
    if (queue->done < number)
        queue_sleep(queue, number, NULL);
}

void madeup_queue_rest(struct madeup_queue *queue, uint64_t number, int most_us)
{
    const struct timespec until = tess_clock_soon(1e-6 * most_us);
    pthread_mutex_lock(&all.lock);
    queue_sleep(queue, number, &until);
    pthread_mutex_unlock(&all.lock);
}

void madeup_queue_await(struct madeup_queue *queue, uint64_t number)
{
    pthread_mutex_lock(&all.lock);
    queue_await(queue, number);
    pthread_mutex_unlock(&all.lock);
}

bool madeup_queue_done(struct madeup_queue *queue, uint64_t number)
{
    pthread_mutex_lock(&all.lock);
    const bool done = queue->done >= number;
    pthread_mutex_unlock(&all.lock);
    return done;
}

void madeup_mark_await(struct madeup_mark *mark)
{
    madeup_queue_await(mark->queue, mark->number);
}

void madeup_mark_rest(struct madeup_mark *mark, int most_us)
{
    madeup_queue_rest(mark->queue, mark->number, most_us);
}

void madeup_wait_idle(int device)
{
    for (int q = 0; q < madeup_settings()->connections; q++) {
        struct madeup_queue *queue = madeup_queue_of(device, q);
        pthread_mutex_lock(&all.lock);
        queue_await(queue, queue->put);
        pthread_mutex_unlock(&all.lock);
    }
}
