/*
 * What calls on device memory took. The host cannot see it, so every such call has four fences,
 * whose times are read after the step:
 *
 *     kernels     ...ready   ...   before][after   ...      before: the wait is about to hold the
 *     group's queue    [pull, sum]done                      queue back, after: it goes on
 *
 * [before, after] is exposed; a call is under way in [ready, done] and [before, after], the second
 * because what other ranks still do for it shows there alone. Times are unions of such intervals
 * over the calls of a group, and over those of all groups of the rank.
 *
 * A mark is free, open (its call is not waited for) or waited. What a plan has under way decides
 * how many there are: more are made in its first step, when all are in use. Marks that are waited
 * for and ended on the device are free again at once; their intervals are kept until the step is
 * settled. A call that is not waited for by the second settling gives up its mark, or earlier where
 * there are MARKS_MAX.
 */
#include "comm/marks.h"

#include "tessera/check.h"

#include <stdlib.h>
#include <sys/queue.h>

#define MARKS_BLOCK 256 /* made at a time */
#define MARKS_MAX   16384

enum mark_fence { MARK_READY, MARK_DONE, MARK_BEFORE, MARK_AFTER, MARK_FENCES };

struct comm_mark {
    TAILQ_ENTRY(comm_mark) link; /* of the free, open or waited ones */
    struct tess_comm *comm;      /* NULL: not counted */
    uint64_t ticket;
    int32_t phase; /* in which it was waited for */
    bool called, completed, given;
    bool old;   /* called before the last settling */
    bool first; /* its ready fence is comm_marks.origin */
    struct tess_fence *fence[MARK_FENCES];
};
TAILQ_HEAD(mark_list, comm_mark);

struct mark_block {
    SLIST_ENTRY(mark_block) link;
    struct comm_mark mark[MARKS_BLOCK];
};

struct mark_interval {
    struct tess_comm *comm; /* NULL: of a group that is closed */
    double begin_s, end_s;  /* after the origin */
};

struct comm_marks {
    struct tess_comm *owner;
    struct tess_queue *queue; /* of the kernels */
    struct comm_mark *calling;
    bool paused;
    int32_t count, under_way;            /* marks; calls made, not yet complete */
    struct mark_list free, open, waited; /* waited: in the order of the waits */
    SLIST_HEAD(mark_blocks, mark_block) blocks;
    /* The ready fence of the oldest call since the last settling, from which times count. */
    struct tess_fence *origin;
    struct mark_interval *interval; /* [interval_room] */
    size_t interval_count, interval_room;
};

static void marks_close(struct comm_marks *marks)
{
    const struct tess_queue_ops *ops = marks->queue->ops;
    struct mark_block *block;
    while ((block = SLIST_FIRST(&marks->blocks)) != NULL) {
        SLIST_REMOVE_HEAD(&marks->blocks, link);
        for (int i = 0; i < MARKS_BLOCK; i++)
            for (int k = 0; k < MARK_FENCES; k++)
                if (block->mark[i].fence[k] != NULL)
                    ops->fence_close(block->mark[i].fence[k]);
        free(block);
    }
    if (marks->origin != NULL)
        ops->fence_close(marks->origin);
    free(marks->interval);
    free(marks);
}

/* Make more marks. */
static enum tess_status marks_grow(struct comm_marks *marks)
{
    const struct tess_queue *queue = marks->queue;
    struct mark_block *block = calloc(1, sizeof(*block));
    if (block == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the marks of a communicator");
    SLIST_INSERT_HEAD(&marks->blocks, block, link);
    for (int i = 0; i < MARKS_BLOCK; i++) {
        for (int k = 0; k < MARK_FENCES; k++)
            TESS_TRY(queue->ops->fence_open(queue->kernel, &block->mark[i].fence[k]));
        TAILQ_INSERT_TAIL(&marks->free, &block->mark[i], link);
        marks->count++;
    }
    return TESS_OK;
}

enum tess_status tess__marks_open(struct tess_comm *comm, struct tess_queue *queue,
                                  struct comm_marks **marks_out)
{
    struct comm_marks *marks = calloc(1, sizeof(*marks));
    if (marks == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the marks of a communicator");
    marks->owner = comm;
    marks->queue = queue;
    TAILQ_INIT(&marks->free);
    TAILQ_INIT(&marks->open);
    TAILQ_INIT(&marks->waited);
    enum tess_status status = queue->ops->fence_open(queue->kernel, &marks->origin);
    if (status == TESS_OK)
        status = marks_grow(marks);
    if (status != TESS_OK)
        marks_close(marks);
    else
        *marks_out = marks;
    return status;
}

void tess__marks_pause(struct comm_marks *marks, bool on)
{
    marks->paused = on;
}

/* ---- intervals ------------------------------------------------------------------------------- */

static enum tess_status marks_keep(struct comm_marks *marks, struct tess_comm *comm, double begin_s,
                                   double end_s)
{
    if (marks->interval_count == marks->interval_room) {
        const size_t room = marks->interval_room > 0 ? 2 * marks->interval_room : 4 * MARKS_BLOCK;
        struct mark_interval *interval = realloc(marks->interval, room * sizeof(*interval));
        if (interval == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the times of %zu calls", room / 2);
        marks->interval = interval;
        marks->interval_room = room;
    }
    marks->interval[marks->interval_count++] = (struct mark_interval){comm, begin_s, end_s};
    return TESS_OK;
}

/* Read the times of a call that has come to an end on the device. */
static enum tess_status marks_read(struct comm_marks *marks, struct comm_mark *mark)
{
    const struct tess_queue_ops *ops = marks->queue->ops;
    const struct tess_fence *origin = marks->origin;
    double ready_s = 0, done_s, before_s, after_s;
    if (!mark->first)
        TESS_TRY(ops->elapsed(origin, mark->fence[MARK_READY], &ready_s));
    TESS_TRY(ops->elapsed(origin, mark->fence[MARK_BEFORE], &before_s));
    TESS_TRY(ops->elapsed(origin, mark->fence[MARK_AFTER], &after_s));
    done_s = after_s;
    if (mark->given)
        TESS_TRY(ops->elapsed(origin, mark->fence[MARK_DONE], &done_s));
    tess__comm_waited(mark->comm, mark->phase, after_s - before_s);
    TESS_TRY(marks_keep(marks, mark->comm, ready_s, done_s));
    return marks_keep(marks, mark->comm, before_s, after_s);
}

static void mark_free(struct comm_marks *marks, struct mark_list *list, struct comm_mark *mark)
{
    TAILQ_REMOVE(list, mark, link);
    TAILQ_INSERT_TAIL(&marks->free, mark, link);
}

/* Take the times of what has been waited for and has ended. Waits end in their order. */
static enum tess_status marks_collect(struct comm_marks *marks)
{
    for (struct comm_mark *mark; (mark = TAILQ_FIRST(&marks->waited)) != NULL;) {
        bool reached;
        TESS_TRY(marks->queue->ops->reached(mark->fence[MARK_AFTER], &reached));
        if (!reached)
            return TESS_OK;
        mark_free(marks, &marks->waited, mark);
        TESS_TRY(marks_read(marks, mark));
    }
    return TESS_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* There is a free mark where one can be had. */
static enum tess_status marks_make_room(struct comm_marks *marks)
{
    if (!TAILQ_EMPTY(&marks->free))
        return TESS_OK;
    TESS_TRY(marks_collect(marks));
    if (!TAILQ_EMPTY(&marks->free))
        return TESS_OK;
    if (marks->count < MARKS_MAX)
        return marks_grow(marks);
    struct comm_mark *oldest = TAILQ_FIRST(&marks->open);
    if (oldest != NULL && oldest->completed)
        mark_free(marks, &marks->open, oldest);
    return TESS_OK;
}

static void marks_count_from(struct comm_marks *marks, struct comm_mark *mark)
{
    struct tess_fence *fence = mark->fence[MARK_READY];
    mark->fence[MARK_READY] = marks->origin;
    marks->origin = fence;
    mark->first = true;
}

static enum tess_status mark_record(struct comm_mark *mark, enum mark_fence which,
                                    struct tess_queue *queue)
{
    return queue->ops->record(queue, mark->fence[which]);
}

enum tess_status tess__marks_begin(struct tess_comm *comm)
{
    struct comm_marks *marks = comm->marks;
    if (marks == NULL || marks->paused)
        return TESS_OK;
    TESS_TRY(marks_make_room(marks));
    struct comm_mark *mark = TAILQ_FIRST(&marks->free);
    if (mark == NULL)
        return TESS_OK;
    const bool none =
        marks->interval_count == 0 && TAILQ_EMPTY(&marks->open) && TAILQ_EMPTY(&marks->waited);
    TESS_TRY(mark_record(mark, MARK_READY, marks->queue));
    mark->comm = comm;
    mark->called = mark->completed = mark->given = mark->old = mark->first = false;
    if (none)
        marks_count_from(marks, mark);
    TAILQ_REMOVE(&marks->free, mark, link);
    TAILQ_INSERT_TAIL(&marks->open, mark, link);
    marks->calling = mark;
    return TESS_OK;
}

void tess__marks_cancel(struct comm_marks *marks)
{
    if (marks == NULL || marks->calling == NULL)
        return;
    mark_free(marks, &marks->open, marks->calling);
    marks->calling = NULL;
}

bool tess__marks_called(struct tess_comm *comm, uint64_t ticket)
{
    struct comm_marks *marks = comm->marks;
    struct comm_mark *mark = marks != NULL ? marks->calling : NULL;
    if (mark == NULL || mark->comm != comm)
        return false;
    marks->calling = NULL;
    mark->ticket = ticket;
    mark->called = true;
    marks->under_way++;
    return true;
}

struct comm_mark *tess__marks_find(const struct tess_comm *comm, uint64_t ticket)
{
    struct comm_mark *mark = NULL;
    if (comm->marks == NULL)
        return NULL;
    TAILQ_FOREACH_REVERSE(mark, &comm->marks->open, mark_list, link)
    if (mark->comm == comm && mark->called && mark->ticket == ticket)
        return mark;
    return NULL;
}

bool tess__marks_completed(struct tess_comm *comm, uint64_t ticket)
{
    if (comm->marks == NULL || comm->marks->under_way == 0)
        return false;
    struct comm_mark *mark = tess__marks_find(comm, ticket);
    if (mark == NULL || mark->completed)
        return false;
    mark->completed = true;
    comm->marks->under_way--;
    return true;
}

void tess_comm_given(struct tess_comm *comm, uint64_t ticket, struct tess_queue *queue)
{
    struct comm_mark *mark = tess__marks_find(comm, ticket);
    if (mark != NULL)
        mark->given = mark_record(mark, MARK_DONE, queue) == TESS_OK;
}

enum tess_status tess__marks_wait(struct comm_marks *marks, struct comm_mark *mark)
{
    mark->phase = tess__comm_root(mark->comm)->phase;
    return mark_record(mark, MARK_BEFORE, marks->queue);
}

enum tess_status tess__marks_waited(struct comm_marks *marks, struct comm_mark *mark)
{
    TESS_TRY(mark_record(mark, MARK_AFTER, marks->queue));
    TAILQ_REMOVE(&marks->open, mark, link);
    TAILQ_INSERT_TAIL(&marks->waited, mark, link);
    return TESS_OK;
}

static void marks_drop(struct comm_marks *marks, struct mark_list *list,
                       const struct tess_comm *comm)
{
    for (struct comm_mark *mark = TAILQ_FIRST(list), *next; mark != NULL; mark = next) {
        next = TAILQ_NEXT(mark, link);
        if (mark->comm != comm)
            continue;
        marks->under_way -= mark->called && !mark->completed ? 1 : 0;
        mark_free(marks, list, mark);
    }
}

void tess__marks_leave(struct comm_marks *marks, const struct tess_comm *comm)
{
    if (marks == NULL)
        return;
    if (marks->owner == comm) {
        marks_close(marks);
        return;
    }
    marks_drop(marks, &marks->open, comm);
    marks_drop(marks, &marks->waited, comm);
    for (size_t i = 0; i < marks->interval_count; i++)
        if (marks->interval[i].comm == comm)
            marks->interval[i].comm = NULL;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* By their beginnings, in place: qsort may allocate. They are in the order of the waits, so that
 * each moves past those of the calls that were under way with it. */
static void marks_sort(struct comm_marks *marks)
{
    for (size_t i = 1; i < marks->interval_count; i++) {
        const struct mark_interval interval = marks->interval[i];
        size_t at = i;
        for (; at > 0 && marks->interval[at - 1].begin_s > interval.begin_s; at--)
            marks->interval[at] = marks->interval[at - 1];
        marks->interval[at] = interval;
    }
}

static double mark_grow(double *until_s, double begin_s, double end_s)
{
    const double from_s = begin_s > *until_s ? begin_s : *until_s;
    if (end_s <= from_s)
        return 0;
    *until_s = end_s;
    return end_s - from_s;
}

/* Add up the intervals that are kept. */
static void marks_add_up(struct comm_marks *marks)
{
    struct tess_comm *root = tess__comm_root(marks->owner);
    double family_until_s = 0;
    marks_sort(marks);
    for (size_t i = 0; i < marks->interval_count; i++)
        if (marks->interval[i].comm != NULL)
            marks->interval[i].comm->settled_s = 0;
    for (size_t i = 0; i < marks->interval_count; i++) {
        const struct mark_interval *interval = &marks->interval[i];
        struct tess_comm *comm = interval->comm;
        if (comm != NULL)
            comm->stats.flight_s += mark_grow(&comm->settled_s, interval->begin_s, interval->end_s);
        root->family_s += mark_grow(&family_until_s, interval->begin_s, interval->end_s);
    }
    marks->interval_count = 0;
}

/* What was called before the last settling, and nobody waits for. */
static void marks_forget(struct comm_marks *marks)
{
    for (struct comm_mark *mark = TAILQ_FIRST(&marks->open), *next; mark != NULL; mark = next) {
        next = TAILQ_NEXT(mark, link);
        if (mark->old && mark->completed)
            mark_free(marks, &marks->open, mark);
        mark->old = true;
    }
}

enum tess_status tess__marks_settle(struct comm_marks *marks)
{
    TESS_TRY(marks_collect(marks));
    if (!TAILQ_EMPTY(&marks->waited)) /* the queue's work goes on: all of it at once, later */
        return TESS_OK;
    marks_add_up(marks);
    marks_forget(marks);
    struct comm_mark *oldest = TAILQ_FIRST(&marks->open);
    if (oldest != NULL && !oldest->first)
        marks_count_from(marks, oldest);
    return TESS_OK;
}
