/*
 * The public side of every communicator: argument checks, counters, the access hook, the observer
 * and events. What moves data is the backend behind tess_comm_ops.
 */
#include "tessera/comm.h"

#include "base/clock.h"
#include "comm/call.h"
#include "comm/debug.h"
#include "comm/flight.h"
#include "comm/marks.h"
#include "tessera/check.h"

__thread const char *tess_comm_site = "";

void tess_comm_called(struct tess_comm *comm, const struct tess_comm_call *call, uint64_t ticket)
{
    if (comm->quiet) {
        comm->quiet_ticket = ticket;
        return;
    }
    comm->called_s = tess_clock_s();
    struct tess_comm *root = tess__comm_root(comm);
    if (!tess__marks_called(comm, ticket)) {
        if (comm->flight_count++ == 0)
            comm->flight_since_s = comm->called_s;
        if (root->family_count++ == 0)
            root->family_since_s = comm->called_s;
    }
    const struct tess_comm_observer *observer = comm->observer;
    if (observer != NULL && observer->called != NULL)
        observer->called(observer->context, comm, call, ticket);
}

/* A call that is counted by the host's clock is complete. */
static void comm_landed(struct tess_comm *comm)
{
    struct tess_comm *root = tess__comm_root(comm);
    bool group_ends = --comm->flight_count == 0, family_ends = --root->family_count == 0;
    double now_s = group_ends ? tess_clock_s() : 0;
    if (group_ends)
        comm->stats.flight_s += now_s - comm->flight_since_s;
    if (family_ends) /* then the group has none either */
        root->family_s += now_s - root->family_since_s;
}

void tess_comm_completed(struct tess_comm *comm, uint64_t ticket)
{
    /* The user's earlier calls may complete in quiet; own calls are waited for one by one. */
    if (comm->quiet && ticket == comm->quiet_ticket)
        return;
    if (!tess__marks_completed(comm, ticket))
        comm_landed(comm);
    const struct tess_comm_observer *observer = comm->observer;
    if (observer != NULL && observer->completed != NULL)
        observer->completed(observer->context, comm, ticket);
}

static void comm_access(struct tess_comm *comm, bool on)
{
    if (comm->access != NULL)
        comm->access(comm->access_context, on);
}

/* Overlap of [a, a + a_bytes) and [b, b + b_bytes). */
static bool comm_overlaps(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

#define COMM_NAME_MAX 120

static const char *comm_name(const struct tess_comm_call *call, char name[COMM_NAME_MAX])
{
    tess__call_name(call, name, COMM_NAME_MAX);
    return name;
}

/* Which of its two pointers does this rank's call use? */
static bool comm_needs_source(const struct tess_comm_call *call)
{
    return call->collective != TESS_COLLECTIVE_RECV && call->collective != TESS_COLLECTIVE_BARRIER;
}

static bool comm_needs_target(const struct tess_comm *comm, const struct tess_comm_call *call)
{
    bool here = call->collective != TESS_COLLECTIVE_REDUCE || call->peer == comm->rank;
    return call->collective != TESS_COLLECTIVE_SEND &&
           call->collective != TESS_COLLECTIVE_BARRIER && here;
}

/* Does the call fit its contract on memory? `in_place` is the one overlap that is allowed. */
static enum tess_status comm_check_memory(const struct tess_comm *comm,
                                          const struct tess_comm_call *call, size_t bytes)
{
    char name[COMM_NAME_MAX];
    enum tess_collective kind = call->collective;
    bool needs_source = comm_needs_source(call), needs_target = comm_needs_target(comm, call);
    if ((needs_source && call->source == NULL) || (needs_target && call->target == NULL))
        TESS_FAIL(TESS_ERR_COMM, "%s: %zu elements, but no %s", comm_name(call, name), call->count,
                  needs_source && call->source == NULL ? "source" : "target");
    if (!needs_source || !needs_target || kind == TESS_COLLECTIVE_BROADCAST)
        return TESS_OK;

    const char *source = call->source;
    const char *target = call->target;
    size_t share = (size_t)comm->rank * bytes;
    bool in_place = source == target;
    if (kind == TESS_COLLECTIVE_REDUCE_SCATTER)
        in_place = target == source + share;
    if (kind == TESS_COLLECTIVE_ALL_GATHER)
        in_place = source == target + share;
    if (kind == TESS_COLLECTIVE_ALL_TO_ALL)
        in_place = false;
    const bool gathers = kind == TESS_COLLECTIVE_ALL_GATHER || kind == TESS_COLLECTIVE_ALL_TO_ALL;
    if (!in_place && comm_overlaps(source, bytes * tess__call_source_parts(comm, kind), target,
                                   bytes * (gathers ? (size_t)comm->rank_count : 1)))
        TESS_FAIL(
            TESS_ERR_COMM,
            "%s: source and target overlap; make them distinct, or the same as tessera/comm.h "
            "allows",
            comm_name(call, name));
    return TESS_OK;
}

static enum tess_status comm_check(const struct tess_comm *comm, const struct tess_comm_call *call)
{
    char name[COMM_NAME_MAX];
    if ((unsigned)call->dtype >= TESS_DTYPE_COUNT || (unsigned)call->reduce > TESS_REDUCE_MIN)
        TESS_FAIL(TESS_ERR_COMM, "%s: unknown dtype %d or reduction %d", comm_name(call, name),
                  (int)call->dtype, (int)call->reduce);
    size_t size = tess_dtype_bytes(call->dtype);
    if (call->count > PTRDIFF_MAX / size / (size_t)comm->rank_count)
        TESS_FAIL(TESS_ERR_COMM, "%s: %zu elements are more than memory can hold",
                  comm_name(call, name), call->count);
    bool point = tess__call_is_message(call);
    bool rooted =
        call->collective == TESS_COLLECTIVE_BROADCAST || call->collective == TESS_COLLECTIVE_REDUCE;
    if ((point || rooted) && (call->peer < 0 || call->peer >= comm->rank_count))
        TESS_FAIL(TESS_ERR_COMM, "%s: there is no rank %d in a group of %d", comm_name(call, name),
                  (int)call->peer, (int)comm->rank_count);
    if (point && call->peer == comm->rank)
        TESS_FAIL(TESS_ERR_COMM, "%s: rank %d is this rank itself: copy instead",
                  comm_name(call, name), (int)call->peer);
    if (call->count == 0)
        return TESS_OK;
    return comm_check_memory(comm, call, call->count * size);
}

/* Host or device memory? Both sides must be the same. An empty call is the host's. */
static enum tess_status comm_place(const struct tess_comm *comm, struct tess_comm_call *call)
{
    const struct tess_queue *queue = comm->queue;
    if (queue == NULL || call->count == 0)
        return TESS_OK;
    bool has_source = comm_needs_source(call), has_target = comm_needs_target(comm, call);
    bool source = has_source && queue->ops->owns(queue->kernel, call->source);
    bool target = has_target && queue->ops->owns(queue->kernel, call->target);
    char name[COMM_NAME_MAX];
    if (has_source && has_target && source != target)
        TESS_FAIL(TESS_ERR_COMM,
                  "%s: the source is in %s memory, the target in %s memory; copy one of them, both "
                  "must be on the same side",
                  comm_name(call, name), source ? "device" : "host", target ? "device" : "host");
    call->device = source || target;
    return TESS_OK;
}

/* Wait for a call; `start`: since when the rank does nothing else. */
static enum tess_status comm_wait(struct tess_comm *comm, uint64_t ticket, double start)
{
    const struct tess_comm_observer *observer = comm->quiet ? NULL : comm->observer;
    bool watched = observer != NULL && observer->waiting != NULL;
    if (watched)
        observer->waiting(observer->context, comm, ticket, true);
    struct comm_mark *mark = tess__marks_find(comm, ticket);
    enum tess_status status = mark != NULL ? tess__marks_wait(comm->marks, mark) : TESS_OK;
    if (status == TESS_OK)
        status = comm->ops->wait(comm, ticket);
    comm_access(comm, false);
    if (mark != NULL && status == TESS_OK)
        status = tess__marks_waited(comm->marks, mark);
    else if (!comm->quiet)
        tess__comm_waited(comm, tess__comm_root(comm)->phase, tess_clock_s() - start);
    if (watched && status == TESS_OK)
        observer->waiting(observer->context, comm, ticket, false);
    return status;
}

/* Queue a call; without an event, wait for it too. */
static enum tess_status comm_call(struct tess_comm *comm, struct tess_comm_call call,
                                  struct tess_event *event_out)
{
    call.order = comm->order;
    call.site = tess_comm_site;
    tess_comm_site = "";
    TESS_TRY(comm_check(comm, &call));
    TESS_TRY(comm_place(comm, &call));
    if (comm->debug != NULL && !comm->quiet && !tess__call_is_message(&call))
        TESS_TRY(comm->debug->compare(comm->debug, &call));
    struct tess_event event = {.comm = comm};
    if (call.device)
        TESS_TRY(tess__marks_begin(comm));
    comm_access(comm, true);
    enum tess_status status = comm->ops->call(comm, &call, &event.ticket);
    if (status != TESS_OK) {
        tess__marks_cancel(comm->marks);
        comm_access(comm, false);
        return status;
    }
    comm->stats.calls[call.collective] += comm->quiet ? 0 : 1;
    if (event_out != NULL) {
        *event_out = event;
        return TESS_OK;
    }
    return comm_wait(comm, event.ticket, comm->called_s);
}

/* Where only some calls have a root or a reduction, the others give -1 and TESS_REDUCE_SUM. */
static enum tess_status comm_data(struct tess_comm *comm, enum tess_collective collective,
                                  const void *source, void *target, size_t count,
                                  enum tess_dtype dtype, enum tess_reduce reduce, int32_t peer,
                                  struct tess_event *event_out)
{
    const struct tess_comm_call call = {.collective = collective,
                                        .reduce = reduce,
                                        .dtype = dtype,
                                        .source = source,
                                        .target = target,
                                        .count = count,
                                        .peer = peer};
    return comm_call(comm, call, event_out);
}

enum tess_status(tess_comm_all_reduce)(struct tess_comm *comm, const void *source, void *target,
                                       size_t count, enum tess_dtype dtype, enum tess_reduce reduce,
                                       struct tess_event *event_out)
{
    return comm_data(comm, TESS_COLLECTIVE_ALL_REDUCE, source, target, count, dtype, reduce, -1,
                     event_out);
}

bool tess_comm_reaches(const struct tess_comm *comm, const void *memory, size_t bytes)
{
    return comm->ops->reaches != NULL && comm->ops->reaches(comm, memory, bytes);
}

enum tess_status(tess_comm_share)(struct tess_comm *comm, const void *data, size_t count,
                                  enum tess_dtype dtype, const struct tess_comm_share *share,
                                  struct tess_event *event_out)
{
    const struct tess_comm_call call = {.collective = TESS_COLLECTIVE_ALL_REDUCE,
                                        .reduce = TESS_REDUCE_SUM,
                                        .dtype = dtype,
                                        .source = data,
                                        .target = (void *)(uintptr_t)data,
                                        .count = count,
                                        .peer = -1,
                                        .share = share};
    if (!tess_comm_reaches(comm, data, count * tess_dtype_bytes(dtype)))
        TESS_FAIL(TESS_ERR_COMM,
                  "%s: the ranks do not reach each other's arrays; take memory of tess_comm_alloc "
                  "where tess_comm_reaches says yes",
                  tess_comm_site);
    return comm_call(comm, call, event_out);
}

enum tess_status(tess_comm_reduce_scatter)(struct tess_comm *comm, const void *source, void *target,
                                           size_t count, enum tess_dtype dtype,
                                           enum tess_reduce reduce, struct tess_event *event_out)
{
    return comm_data(comm, TESS_COLLECTIVE_REDUCE_SCATTER, source, target, count, dtype, reduce, -1,
                     event_out);
}

enum tess_status(tess_comm_all_gather)(struct tess_comm *comm, const void *source, void *target,
                                       size_t count, enum tess_dtype dtype,
                                       struct tess_event *event_out)
{
    return comm_data(comm, TESS_COLLECTIVE_ALL_GATHER, source, target, count, dtype,
                     TESS_REDUCE_SUM, -1, event_out);
}

enum tess_status(tess_comm_broadcast)(struct tess_comm *comm, void *data, size_t count,
                                      enum tess_dtype dtype, int32_t root,
                                      struct tess_event *event_out)
{
    return comm_data(comm, TESS_COLLECTIVE_BROADCAST, data, data, count, dtype, TESS_REDUCE_SUM,
                     root, event_out);
}

enum tess_status(tess_comm_reduce)(struct tess_comm *comm, const void *source, void *target,
                                   size_t count, enum tess_dtype dtype, enum tess_reduce reduce,
                                   int32_t root, struct tess_event *event_out)
{
    return comm_data(comm, TESS_COLLECTIVE_REDUCE, source, target, count, dtype, reduce, root,
                     event_out);
}

enum tess_status(tess_comm_all_to_all)(struct tess_comm *comm, const void *source, void *target,
                                       size_t count, enum tess_dtype dtype,
                                       struct tess_event *event_out)
{
    return comm_data(comm, TESS_COLLECTIVE_ALL_TO_ALL, source, target, count, dtype,
                     TESS_REDUCE_SUM, -1, event_out);
}

enum tess_status(tess_comm_send)(struct tess_comm *comm, const void *source, size_t count,
                                 enum tess_dtype dtype, int32_t peer, struct tess_event *event_out)
{
    return comm_data(comm, TESS_COLLECTIVE_SEND, source, NULL, count, dtype, TESS_REDUCE_SUM, peer,
                     event_out);
}

enum tess_status(tess_comm_recv)(struct tess_comm *comm, void *target, size_t count,
                                 enum tess_dtype dtype, int32_t peer, struct tess_event *event_out)
{
    return comm_data(comm, TESS_COLLECTIVE_RECV, NULL, target, count, dtype, TESS_REDUCE_SUM, peer,
                     event_out);
}

enum tess_status tess_comm_meet(struct tess_comm *comm, int32_t from, int32_t to)
{
    const int32_t n = comm->rank_count;
    if (from < 0 || from >= n || to < 0 || to >= n || from == to ||
        (comm->rank != from && comm->rank != to))
        TESS_FAIL(TESS_ERR_COMM, "rank %d cannot meet for messages from rank %d to rank %d of %d",
                  (int)comm->rank, (int)from, (int)to, (int)n);
    return comm->ops->meet != NULL ? comm->ops->meet(comm, from, to) : TESS_OK;
}

enum tess_status(tess_comm_barrier)(struct tess_comm *comm)
{
    return comm_data(comm, TESS_COLLECTIVE_BARRIER, NULL, NULL, 0, TESS_U8, TESS_REDUCE_SUM, -1,
                     NULL);
}

enum tess_status tess_event_wait(struct tess_event *event)
{
    struct tess_comm *comm = event->comm;
    if (comm == NULL)
        return TESS_OK;
    uint64_t ticket = event->ticket;
    *event = (struct tess_event){0};
    return comm_wait(comm, ticket, tess_clock_s());
}

enum tess_status tess_comm_poll(struct tess_comm *comm)
{
    return comm->ops->poll != NULL ? comm->ops->poll(comm) : TESS_OK;
}

enum tess_status tess_comm_settle(struct tess_comm *comm)
{
    return comm->marks != NULL ? tess__marks_settle(comm->marks) : TESS_OK;
}

void tess_comm_phase(struct tess_comm *comm, int32_t phase)
{
    tess__comm_root(comm)->phase = phase;
}

double tess_comm_phase_wait_s(const struct tess_comm *comm, int32_t phase)
{
    return comm->root != NULL ? comm->root->phase_wait_s[phase] : comm->phase_wait_s[phase];
}

void tess_comm_untimed(struct tess_comm *comm, bool on)
{
    if (comm->marks != NULL)
        tess__marks_pause(comm->marks, on);
}

/* Notify the backend of comm->queue; what the ranks exchange for it is not the user's traffic. */
static enum tess_status comm_attach(struct tess_comm *comm, struct tess_queue *queue)
{
    if (comm->ops->attach == NULL)
        return TESS_OK;
    comm->quiet = true;
    comm->quiet_ticket = UINT64_MAX;
    enum tess_status status = comm->ops->attach(comm, queue);
    comm->quiet = false;
    return status;
}

static void comm_detach(struct tess_comm *comm)
{
    if (comm->queue == NULL)
        return;
    (void)comm_attach(comm, NULL); /* gives back what it had: nothing to be done about an error */
    comm->queue = NULL;
    tess__marks_leave(comm->marks, comm);
    comm->marks = NULL;
}

enum tess_status tess_comm_attach(struct tess_comm *comm, struct tess_queue *queue)
{
    if (queue == NULL || comm->queue != NULL)
        comm_detach(comm);
    if (queue == NULL)
        return TESS_OK;
    TESS_TRY(tess__marks_open(comm, queue, &comm->marks));
    comm->queue = queue;
    enum tess_status status = comm_attach(comm, queue);
    if (status != TESS_OK)
        comm_detach(comm);
    return status;
}

enum tess_status tess_comm_alloc(struct tess_comm *comm, size_t bytes, void **memory_out)
{
    return comm->ops->alloc(comm, bytes, memory_out);
}

void tess_comm_release(struct tess_comm *comm, void *memory)
{
    if (memory != NULL)
        comm->ops->release(comm, memory);
}

double tess_comm_family_flight_s(const struct tess_comm *comm)
{
    return comm->root != NULL ? comm->root->family_s : comm->family_s;
}

enum tess_status(tess_comm_split)(struct tess_comm *comm, int32_t color, int32_t key,
                                  struct tess_comm **child_out)
{
    if (color < 0)
        TESS_FAIL(TESS_ERR_COMM, "split%s%s: color %d is negative: every rank must join a group",
                  tess_comm_site[0] != '\0' ? " at " : "", tess_comm_site, (int)color);
    if (comm->debug != NULL)
        TESS_TRY(comm->debug->compare_split(comm->debug));
    /* What the ranks exchange to agree on groups is not the user's traffic. */
    comm->quiet = true;
    comm->quiet_ticket = UINT64_MAX;
    enum tess_status status = comm->ops->split(comm, color, key, child_out);
    comm->quiet = false;
    TESS_TRY(status);
    /* The same memory is reached through the child. */
    (*child_out)->access = comm->access;
    (*child_out)->access_context = comm->access_context;
    (*child_out)->observer = comm->observer;
    (*child_out)->root = tess__comm_root(comm);
    tess__flight_split(comm, *child_out, color);
    (*child_out)->marks = comm->marks;
    (*child_out)->queue = comm->queue;
    if (comm->queue != NULL)
        status = comm_attach(*child_out, comm->queue);
    if (status == TESS_OK && comm->debug != NULL)
        status = comm->debug->follow(*child_out, comm->debug);
    if (status != TESS_OK)
        tess_comm_close(*child_out);
    return status;
}

void tess_comm_abort(struct tess_comm *comm, const char *reason)
{
    comm->ops->abort(comm, reason);
}

void tess_comm_close(struct tess_comm *comm)
{
    if (comm == NULL)
        return;
    comm_detach(comm);
    if (comm->debug != NULL)
        comm->debug->close(comm->debug);
    comm->ops->close(comm);
}
