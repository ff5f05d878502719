/* Queues and fences in virtual time. Times are known as soon as work is given, so nothing here is
 * ever late, and only what the host waits for moves its clock. */
#include "predict/virtual.h"

#include "base/array.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <sys/mman.h>

struct virtual_fence {
    struct tess_fence fence;
    struct virtual_rank *rank;
    double at_s;
};

/* Communicators have thousands. */
#define FENCES_ROOM 512
struct virtual_fences {
    struct virtual_fences *next;
    int32_t count;
    struct virtual_fence fence[FENCES_ROOM];
};

void *virtual_map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

void virtual_unmap(void *memory, size_t bytes)
{
    if (memory != NULL)
        (void)munmap(memory, bytes);
}

int32_t virtual_event(struct virtual_rank *rank, const struct tess_trace_event *event)
{
    if (!rank->tracing || rank->event_count == rank->event_max)
        return -1;
    struct tess_trace_event *kept = &rank->event[rank->event_count];
    *kept = *event;
    kept->unit = rank->at_unit;
    return rank->event_count++;
}

/* Operations of one unit that follow each other are one event. */
static void work_trace(struct virtual_rank *rank, double begin_s, double end_s)
{
    if (!rank->tracing)
        return;
    struct tess_trace_event *last = rank->doing >= 0 ? &rank->event[rank->doing] : NULL;
    if (last != NULL && last->end_s == begin_s && last->what == rank->at_doing &&
        last->unit == rank->at_unit)
        last->end_s = end_s;
    else
        rank->doing =
            virtual_event(rank, &(struct tess_trace_event){.begin_s = begin_s,
                                                           .end_s = end_s,
                                                           .kind = TESS_TRACE_DOING,
                                                           .what = (uint8_t)rank->at_doing,
                                                           .training = true});
}

/* The clock that operations advance, once the host has launched what comes next. */
static double *work_launch(struct virtual_rank *rank)
{
    struct virtual_queue *kernels = &rank->kernels;
    if (!rank->queued)
        return &rank->host_s;
    rank->host_s += rank->world->profile->launch_s;
    const double late_s = rank->host_s - kernels->end_s;
    if (late_s > 0) {
        rank->late_s += late_s;
        rank->spent.doing_s[rank->at_doing] += late_s;
        kernels->end_s = rank->host_s;
    }
    return &kernels->end_s;
}

enum tess_status virtual_do_work(struct virtual_rank *rank, const struct virtual_act *act,
                                 bool *waits_out)
{
    (void)waits_out;
    if (!rank->recording) {
        double *clock_s = work_launch(rank);
        work_trace(rank, *clock_s, *clock_s + act->seconds);
        *clock_s += act->seconds;
    }
    rank->spent.sort_s[act->at] += act->seconds;
    rank->spent.doing_s[rank->at_doing] += act->seconds;
    return TESS_OK;
}

/* Of a unit's pass, to be taken again (virtual_unit.c). */
static void work_keep(struct virtual_rank *rank, enum virtual_sort sort, double seconds)
{
    struct virtual_unit *unit = rank->unit_at;
    struct virtual_spell *spell =
        tess__array_grow(unit->spell, (size_t)unit->count, sizeof(*unit->spell));
    if (spell == NULL) { /* the model runs again the next time */
        rank->unit_at = NULL;
        return;
    }
    unit->spell = spell;
    unit->spell[unit->count++] = (struct virtual_spell){seconds, sort};
}

void virtual_work(struct virtual_rank *rank, enum virtual_sort sort, double seconds)
{
    const struct virtual_act act = {.what = VIRTUAL_WORK, .at = (uint32_t)sort, .seconds = seconds};
    if (rank->aside_s != NULL) {
        *rank->aside_s += seconds;
        return;
    }
    if (rank->unit_at != NULL)
        work_keep(rank, sort, seconds);
    if (!virtual_later(rank, act))
        (void)virtual_do_work(rank, &act, NULL);
}

enum tess_status virtual_do_drain(struct virtual_rank *rank, const struct virtual_act *act,
                                  bool *waits_out)
{
    (void)act, (void)waits_out;
    if (rank->queued && rank->kernels.end_s > rank->host_s)
        rank->host_s = rank->kernels.end_s;
    return TESS_OK;
}

void virtual_drain(struct virtual_rank *rank)
{
    const struct virtual_act act = {.what = VIRTUAL_DRAIN};
    if (!virtual_later(rank, act))
        (void)virtual_do_drain(rank, &act, NULL);
}

/* Of a rank alone, so never later. */
void virtual_play(struct virtual_rank *rank, const struct virtual_spent *record)
{
    double *clock_s = work_launch(rank), seconds = 0;
    for (int sort = 0; sort < VIRTUAL_SORTS; sort++) {
        rank->spent.sort_s[sort] += record->sort_s[sort];
        seconds += record->sort_s[sort];
    }
    for (int doing = 0; doing < TESS_DOING_COUNT; doing++)
        rank->spent.doing_s[doing] += record->doing_s[doing];
    work_trace(rank, *clock_s, *clock_s + seconds);
    *clock_s += seconds;
}

static enum tess_status queue_open(struct tess_kernel *kernel, struct tess_queue **queue_out)
{
    struct virtual_queue *queue = calloc(1, sizeof(*queue));
    if (queue == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a queue");
    queue->queue = (struct tess_queue){.ops = &virtual_queue_ops, .kernel = kernel};
    queue->rank = virtual_rank_of(kernel);
    queue->follows_host = true;
    *queue_out = &queue->queue;
    return TESS_OK;
}

static void queue_close(struct tess_queue *queue)
{
    free(queue);
}

static enum tess_status queue_fence_open(struct tess_kernel *kernel, struct tess_fence **fence_out)
{
    struct virtual_rank *rank = virtual_rank_of(kernel);
    struct virtual_fences *fences = rank->fences;
    if (fences == NULL || fences->count == FENCES_ROOM) {
        fences = calloc(1, sizeof(*fences));
        if (fences == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for a fence");
        fences->next = rank->fences;
        rank->fences = fences;
    }
    struct virtual_fence *fence = &fences->fence[fences->count++];
    fence->fence.ops = &virtual_queue_ops;
    fence->rank = rank;
    *fence_out = &fence->fence;
    return TESS_OK;
}

static void queue_fence_close(struct tess_fence *fence)
{
    (void)fence; /* goes with the rank */
}

void virtual_fences_free(struct virtual_fences *fences)
{
    while (fences != NULL) {
        struct virtual_fences *next = fences->next;
        free(fences);
        fences = next;
    }
}

enum tess_status virtual_do_record(struct virtual_rank *rank, const struct virtual_act *act,
                                   bool *waits_out)
{
    const struct virtual_queue *queue = act->queue;
    const bool late = queue->follows_host && rank->host_s > queue->end_s;
    (void)waits_out;
    ((struct virtual_fence *)act->of)->at_s = late ? rank->host_s : queue->end_s;
    return TESS_OK;
}

static enum tess_status queue_record(struct tess_queue *at, struct tess_fence *fence)
{
    struct virtual_queue *queue = (struct virtual_queue *)at;
    const struct virtual_act act = {.what = VIRTUAL_RECORD, .queue = queue, .of = fence};
    if (!virtual_later(queue->rank, act))
        (void)virtual_do_record(queue->rank, &act, NULL);
    return TESS_OK;
}

enum tess_status virtual_do_follow(struct virtual_rank *rank, const struct virtual_act *act,
                                   bool *waits_out)
{
    const double at_s = ((const struct virtual_fence *)act->of)->at_s;
    (void)rank, (void)waits_out;
    act->queue->end_s = at_s > act->queue->end_s ? at_s : act->queue->end_s;
    return TESS_OK;
}

static enum tess_status queue_follow(struct tess_queue *following, const struct tess_fence *fence)
{
    struct virtual_queue *queue = (struct virtual_queue *)following;
    const struct virtual_act act = {
        .what = VIRTUAL_FOLLOW, .queue = queue, .of = (void *)(uintptr_t)fence};
    if (!virtual_later(queue->rank, act))
        (void)virtual_do_follow(queue->rank, &act, NULL);
    return TESS_OK;
}

/* Its time is known, which is all that callers ask for: those who need the work done wait. */
static enum tess_status queue_reached(const struct tess_fence *fence, bool *reached_out)
{
    (void)fence;
    *reached_out = true;
    return TESS_OK;
}

enum tess_status virtual_do_reach(struct virtual_rank *rank, const struct virtual_act *act,
                                  bool *waits_out)
{
    const double at_s = ((const struct virtual_fence *)act->of)->at_s;
    (void)waits_out;
    if (at_s > rank->host_s)
        rank->host_s = at_s;
    return TESS_OK;
}

static enum tess_status queue_wait(const struct tess_fence *waited)
{
    struct virtual_rank *rank = ((const struct virtual_fence *)waited)->rank;
    const struct virtual_act act = {.what = VIRTUAL_REACH, .of = (void *)(uintptr_t)waited};
    if (!virtual_later(rank, act))
        (void)virtual_do_reach(rank, &act, NULL);
    return TESS_OK;
}

static enum tess_status queue_elapsed(const struct tess_fence *from, const struct tess_fence *to,
                                      double *seconds_out)
{
    *seconds_out =
        ((const struct virtual_fence *)to)->at_s - ((const struct virtual_fence *)from)->at_s;
    return TESS_OK;
}

static bool queue_owns(const struct tess_kernel *kernel, const void *memory)
{
    const struct virtual_rank *rank = virtual_rank_of(kernel);
    const char *at = memory;
    return at >= rank->world->space && at < rank->memory_end;
}

static enum tess_status queue_copy(struct tess_queue *given, size_t bytes, const void *source,
                                   void *target)
{
    struct virtual_rank *rank = ((struct virtual_queue *)given)->rank;
    const struct tess_profile *profile = rank->world->profile;
    const bool within = queue_owns(given->kernel, source) && queue_owns(given->kernel, target);
    const bool link = !within && profile->link_bytes_per_s > 0;
    const double seconds = link ? profile->start_s + (double)bytes / profile->link_bytes_per_s
                                : tess_profile_pass_s(profile, 2.0 * (double)bytes);
    if (given != &rank->kernels.queue)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "predictions have no copies beside the kernels");
    virtual_work(rank, VIRTUAL_PASS, seconds);
    return TESS_OK;
}

static enum tess_status queue_reduce(struct tess_queue *given, enum tess_dtype dtype,
                                     enum tess_dtype to, enum tess_reduce reduce, int32_t n,
                                     const void *const *source, int32_t m, void *const *target,
                                     size_t count)
{
    (void)given, (void)dtype, (void)to, (void)reduce, (void)n, (void)source, (void)m, (void)target,
        (void)count;
    TESS_FAIL(TESS_ERR_UNSUPPORTED, "predictions have no reductions on queues: communicators add");
}

const struct tess_queue_ops virtual_queue_ops = {
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
