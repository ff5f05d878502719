/*
 * What calls on device memory took. The host cannot see it, so every such call has four fences,
 * whose times are read after the step:
 *
 *     kernels     ...ready   ...   before][after   ...      before: the wait is about to hold the
 *     group's queue    [pull, sum]done                      queue back, after: it goes on
 *
 * [before, after] is exposed; a call is under way in [ready, done] and [before, after], the second
 * because what other ranks still do for it shows there alone. Times are unions of such intervals
 * over the calls of a group, and over those of all groups of the rank. One ring of marks for them
 * all, in the order of the calls; when it is full and cannot be emptied, a call is not marked.
 */
#include "comm/marks.h"

#include "tessera/check.h"

#include <stdlib.h>

#define MARKS_MAX 512

enum mark_fence { MARK_READY, MARK_DONE, MARK_BEFORE, MARK_AFTER, MARK_FENCES };

struct comm_mark {
    struct tess_comm *comm; /* NULL: not counted */
    uint64_t ticket;
    int32_t phase; /* in which it was waited for */
    bool called, completed, given, waited;
    struct tess_fence *fence[MARK_FENCES];
};

struct mark_interval {
    struct tess_comm *comm;
    double begin_s, end_s;
};

struct comm_marks {
    const struct tess_comm *owner;
    struct tess_queue *queue; /* of the kernels */
    struct comm_mark *calling;
    bool paused;
    uint64_t first, end; /* marks ever settled, and taken */
    int32_t open;        /* called, not yet complete */
    struct comm_mark mark[MARKS_MAX];
    struct mark_interval interval[2 * MARKS_MAX];
};

static struct comm_mark *mark_at(struct comm_marks *marks, uint64_t number)
{
    return &marks->mark[number % MARKS_MAX];
}

static void marks_close(struct comm_marks *marks)
{
    for (int i = 0; i < MARKS_MAX; i++)
        for (int k = 0; k < MARK_FENCES; k++)
            if (marks->mark[i].fence[k] != NULL)
                marks->queue->ops->fence_close(marks->mark[i].fence[k]);
    free(marks);
}

enum tess_status tess__marks_open(const struct tess_comm *comm, struct tess_queue *queue,
                                  struct comm_marks **marks_out)
{
    struct comm_marks *marks = calloc(1, sizeof(*marks));
    if (marks == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the marks of a communicator");
    marks->owner = comm;
    marks->queue = queue;
    enum tess_status status = TESS_OK;
    for (int i = 0; i < MARKS_MAX && status == TESS_OK; i++)
        for (int k = 0; k < MARK_FENCES && status == TESS_OK; k++)
            status = queue->ops->fence_open(queue->kernel, &marks->mark[i].fence[k]);
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
    if (marks->end - marks->first == MARKS_MAX)
        TESS_TRY(tess__marks_settle(marks));
    if (marks->end - marks->first == MARKS_MAX)
        return TESS_OK;
    struct comm_mark *mark = mark_at(marks, marks->end);
    TESS_TRY(mark_record(mark, MARK_READY, marks->queue));
    mark->comm = comm;
    mark->called = mark->completed = mark->given = mark->waited = false;
    marks->end++;
    marks->calling = mark;
    return TESS_OK;
}

void tess__marks_cancel(struct comm_marks *marks)
{
    if (marks == NULL || marks->calling == NULL)
        return;
    marks->calling = NULL;
    marks->end--;
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
    marks->open++;
    return true;
}

struct comm_mark *tess__marks_find(const struct tess_comm *comm, uint64_t ticket)
{
    struct comm_marks *marks = comm->marks;
    for (uint64_t i = marks != NULL ? marks->end : 0; i > 0 && i > marks->first; i--) {
        struct comm_mark *mark = mark_at(marks, i - 1);
        if (mark->comm == comm && mark->called && mark->ticket == ticket)
            return mark->waited ? NULL : mark;
    }
    return NULL;
}

bool tess__marks_completed(struct tess_comm *comm, uint64_t ticket)
{
    if (comm->marks == NULL || comm->marks->open == 0)
        return false;
    struct comm_mark *mark = tess__marks_find(comm, ticket);
    if (mark == NULL || mark->completed)
        return false;
    mark->completed = true;
    comm->marks->open--;
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
    mark->waited = true;
    return TESS_OK;
}

/* It keeps its place, and is not counted. */
static void mark_drop(struct comm_mark *mark)
{
    mark->comm = NULL;
    mark->waited = true;
}

void tess__marks_leave(struct comm_marks *marks, const struct tess_comm *comm)
{
    if (marks == NULL)
        return;
    if (marks->owner == comm) {
        marks_close(marks);
        return;
    }
    for (uint64_t i = marks->first; i < marks->end; i++) {
        struct comm_mark *mark = mark_at(marks, i);
        if (mark->comm != comm)
            continue;
        marks->open -= mark->called && !mark->completed ? 1 : 0;
        mark_drop(mark);
    }
}

/* ---- counting -------------------------------------------------------------------------------- */

/* Marks from the first on whose calls have come to an end on the device. When there is no room,
 * calls that were never waited for are dropped. */
static enum tess_status marks_ended(struct comm_marks *marks, uint64_t *end_out)
{
    const bool full = marks->end - marks->first == MARKS_MAX;
    uint64_t end = marks->first;
    for (bool reached = true; reached && end < marks->end; end += reached ? 1 : 0) {
        struct comm_mark *mark = mark_at(marks, end);
        if (full && mark->completed && !mark->waited)
            mark_drop(mark);
        reached = mark->waited;
        if (reached && mark->comm != NULL)
            TESS_TRY(marks->queue->ops->reached(mark->fence[MARK_AFTER], &reached));
    }
    *end_out = end;
    return TESS_OK;
}

/* Keep the intervals by their beginnings. They come nearly in order: calls in the order in which
 * the kernels reached them, and waits not long after. */
static void marks_insert(struct comm_marks *marks, int *count, struct tess_comm *comm,
                         double begin_s, double end_s)
{
    int at = (*count)++;
    for (; at > 0 && marks->interval[at - 1].begin_s > begin_s; at--)
        marks->interval[at] = marks->interval[at - 1];
    marks->interval[at] = (struct mark_interval){comm, begin_s, end_s};
}

static double mark_grow(double *until_s, double begin_s, double end_s)
{
    const double from_s = begin_s > *until_s ? begin_s : *until_s;
    if (end_s <= from_s)
        return 0;
    *until_s = end_s;
    return end_s - from_s;
}

/* Times are seconds after the first mark's ready fence. */
static enum tess_status marks_take(struct comm_marks *marks, const struct tess_fence *base,
                                   struct comm_mark *mark, int *count)
{
    const struct tess_queue_ops *ops = marks->queue->ops;
    double ready_s, done_s, before_s, after_s;
    TESS_TRY(ops->elapsed(base, mark->fence[MARK_READY], &ready_s));
    TESS_TRY(ops->elapsed(base, mark->fence[MARK_BEFORE], &before_s));
    TESS_TRY(ops->elapsed(base, mark->fence[MARK_AFTER], &after_s));
    done_s = after_s;
    if (mark->given)
        TESS_TRY(ops->elapsed(base, mark->fence[MARK_DONE], &done_s));
    tess__comm_waited(mark->comm, mark->phase, after_s - before_s);
    mark->comm->settled_s = 0;
    marks_insert(marks, count, mark->comm, ready_s, done_s);
    marks_insert(marks, count, mark->comm, before_s, after_s);
    return TESS_OK;
}

enum tess_status tess__marks_settle(struct comm_marks *marks)
{
    uint64_t end;
    TESS_TRY(marks_ended(marks, &end));
    struct tess_fence *base = NULL;
    int count = 0;
    enum tess_status status = TESS_OK;
    for (uint64_t i = marks->first; i < end && status == TESS_OK; i++) {
        struct comm_mark *mark = mark_at(marks, i);
        if (mark->comm == NULL)
            continue;
        base = base != NULL ? base : mark->fence[MARK_READY];
        status = marks_take(marks, base, mark, &count);
    }
    marks->first = end;
    double family_until_s = 0;
    for (int i = 0; i < count; i++) {
        const struct mark_interval *interval = &marks->interval[i];
        struct tess_comm *comm = interval->comm;
        comm->stats.flight_s += mark_grow(&comm->settled_s, interval->begin_s, interval->end_s);
        tess__comm_root(comm)->family_s +=
            mark_grow(&family_until_s, interval->begin_s, interval->end_s);
    }
    return status;
}
