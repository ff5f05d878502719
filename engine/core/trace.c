/*
 * The recorder of time lines. An event is appended when it begins and its end is filled in later,
 * so that a rank that dies leaves its open events behind: they show where it was.
 */
#include "core/trace.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

/* Calls under way at once; a backend's own limit is lower. More are left out. */
#define TRACE_OPEN_MAX 1024
/* Events whose memory is touched before the first step, so that the first steps do not pay. */
#define TRACE_TOUCHED 16384u
#define TRACE_NONE    UINT32_MAX

/* A call under way. */
struct trace_call {
    const struct tess_comm *comm;
    uint64_t ticket;
    uint32_t event; /* index */
};

struct tess_trace_lane {
    _Alignas(64) _Atomic uint32_t count; /* events that are there; stored last, with release */
    struct tess_trace *trace;
    struct tess_trace_event *event; /* [trace->event_max] */
    struct tess_comm_observer observer;
    bool on;
    double full_s;               /* 0: not full */
    int64_t step, full_step;     /* current step; that in which it was found full */
    uint32_t phase, doing, wait; /* index of the open event, or TRACE_NONE */
    uint32_t call_count;         /* calls recorded, for their numbers */
    int32_t open_count;          /* calls under way */
    struct trace_call open[TRACE_OPEN_MAX];
};

struct tess_trace {
    int32_t rank_count;
    uint32_t event_max;
    int64_t first, last; /* steps recorded */
    double origin_s;
    size_t bytes; /* of the mapping */
    struct tess_trace_lane lane[];
};

/* ---- recording ------------------------------------------------------------------------------- */

static void trace_close(struct tess_trace_lane *lane, uint32_t *at, double now_s)
{
    if (*at != TRACE_NONE)
        lane->event[*at].end_s = now_s;
    *at = TRACE_NONE;
}

static void trace_close_spans(struct tess_trace_lane *lane, double now_s)
{
    trace_close(lane, &lane->wait, now_s);
    trace_close(lane, &lane->doing, now_s);
    trace_close(lane, &lane->phase, now_s);
}

/* Append an event; TRACE_NONE when the lane is full, which ends the recording for good. Calls under
 * way still get their ends. */
static uint32_t trace_add(struct tess_trace_lane *lane, const struct tess_trace_event *event)
{
    uint32_t at = atomic_load_explicit(&lane->count, memory_order_relaxed);
    if (at == lane->trace->event_max) {
        lane->on = false;
        lane->full_s = event->begin_s;
        lane->full_step = lane->step;
        trace_close_spans(lane, event->begin_s);
        return TRACE_NONE;
    }
    lane->event[at] = *event;
    atomic_store_explicit(&lane->count, at + 1, memory_order_release);
    return at;
}

void tess_trace_doing(struct tess_trace_lane *lane, enum tess_doing doing, int32_t unit,
                      bool training)
{
    if (lane == NULL || !lane->on)
        return;
    double now_s = tess_clock_s();
    trace_close(lane, &lane->doing, now_s);
    if (doing == TESS_DOING_BETWEEN || doing == TESS_DOING_ENDED)
        return;
    struct tess_trace_event event = {.begin_s = now_s,
                                     .step = lane->step,
                                     .kind = TESS_TRACE_DOING,
                                     .what = (uint8_t)doing,
                                     .unit = unit,
                                     .training = training};
    lane->doing = trace_add(lane, &event);
}

void tess_trace_begin(struct tess_trace_lane *lane, enum tess_trace_phase phase, int64_t step)
{
    if (lane == NULL)
        return;
    double now_s = tess_clock_s();
    trace_close_spans(lane, now_s);
    lane->step = step;
    lane->on = lane->full_s == 0 && step >= lane->trace->first && step <= lane->trace->last;
    if (!lane->on)
        return;
    struct tess_trace_event event = {
        .begin_s = now_s, .step = step, .kind = TESS_TRACE_PHASE, .what = (uint8_t)phase};
    lane->phase = trace_add(lane, &event);
}

void tess_trace_end(struct tess_trace_lane *lane)
{
    if (lane != NULL && lane->on)
        trace_close_spans(lane, tess_clock_s());
}

void tess_trace_stop(struct tess_trace_lane *lane)
{
    if (lane == NULL)
        return;
    tess_trace_end(lane);
    lane->on = false;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct trace_call *trace_find(struct tess_trace_lane *lane, const struct tess_comm *comm,
                                     uint64_t ticket)
{
    for (int32_t i = 0; i < lane->open_count; i++)
        if (lane->open[i].ticket == ticket && lane->open[i].comm == comm)
            return &lane->open[i];
    return NULL;
}

/* The end of a path: "step.c:99". A copy, because the reader of the lane may not have the text. */
static void trace_copy_site(char site[TESS_TRACE_SITE_BYTES], const char *path)
{
    size_t length = path != NULL ? strlen(path) : 0;
    size_t cut = length < TESS_TRACE_SITE_BYTES ? 0 : length - (TESS_TRACE_SITE_BYTES - 1);
    if (length > 0)
        memcpy(site, path + cut, length - cut);
}

static void trace_called(void *context, const struct tess_comm *comm,
                         const struct tess_comm_call *call, uint64_t ticket)
{
    struct tess_trace_lane *lane = context;
    if (!lane->on || lane->open_count == TRACE_OPEN_MAX)
        return;
    struct tess_trace_event event = {.begin_s = tess_clock_s(),
                                     .step = lane->step,
                                     .bytes = call->count * tess_dtype_bytes(call->dtype),
                                     .call = lane->call_count + 1,
                                     .rank_count = comm->rank_count,
                                     .kind = TESS_TRACE_CALL,
                                     .what = (uint8_t)call->collective,
                                     .dtype = (uint8_t)call->dtype};
    trace_copy_site(event.site, call->site);
    uint32_t at = trace_add(lane, &event);
    if (at == TRACE_NONE)
        return;
    lane->call_count++;
    lane->open[lane->open_count++] = (struct trace_call){comm, ticket, at};
}

static void trace_completed(void *context, const struct tess_comm *comm, uint64_t ticket)
{
    struct tess_trace_lane *lane = context;
    struct trace_call *call = trace_find(lane, comm, ticket);
    if (call == NULL)
        return;
    lane->event[call->event].end_s = tess_clock_s();
    *call = lane->open[--lane->open_count];
}

static void trace_waiting(void *context, const struct tess_comm *comm, uint64_t ticket, bool on)
{
    struct tess_trace_lane *lane = context;
    if (!lane->on)
        return;
    double now_s = tess_clock_s();
    trace_close(lane, &lane->wait, now_s);
    const struct trace_call *call = on ? trace_find(lane, comm, ticket) : NULL;
    if (call == NULL) /* begun before the window, or complete already: nothing to wait for */
        return;
    struct tess_trace_event event = lane->event[call->event];
    event.kind = TESS_TRACE_WAIT;
    event.begin_s = now_s;
    event.end_s = 0;
    event.step = lane->step;
    lane->wait = trace_add(lane, &event);
}

const struct tess_comm_observer *tess_trace_observer(const struct tess_trace_lane *lane)
{
    return lane != NULL ? &lane->observer : NULL;
}

/* ---- opening and reading --------------------------------------------------------------------- */

void tess_trace_start(struct tess_trace_lane *lane)
{
    if (lane == NULL)
        return;
    uint32_t count = lane->trace->event_max;
    if (lane->trace->last >= lane->trace->first)
        memset(lane->event, 0,
               (count < TRACE_TOUCHED ? count : TRACE_TOUCHED) * sizeof(*lane->event));
    lane->on = lane->trace->first <= 1;
    tess_trace_doing(lane, TESS_DOING_STARTING, -1, true);
}

enum tess_status tess_trace_open(int32_t rank_count, uint32_t event_max, int64_t first,
                                 int64_t steps, struct tess_trace **trace_out)
{
    size_t ranks = (size_t)rank_count;
    size_t head = (sizeof(struct tess_trace) + ranks * sizeof(struct tess_trace_lane) + 63) / 64;
    size_t bytes = head * 64 + ranks * event_max * sizeof(struct tess_trace_event);
    struct tess_trace *trace = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (trace == MAP_FAILED)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the time lines of %d ranks, %zu MB: %s",
                  (int)rank_count, bytes >> 20, strerror(errno));
    trace->rank_count = rank_count;
    trace->event_max = event_max;
    trace->first = first;
    trace->last = steps < INT64_MAX - first ? first + steps - 1 : INT64_MAX;
    trace->origin_s = tess_clock_s();
    trace->bytes = bytes;
    struct tess_trace_event *event = (void *)((char *)trace + head * 64);
    for (int32_t r = 0; r < rank_count; r++) {
        struct tess_trace_lane *lane = &trace->lane[r];
        lane->trace = trace;
        lane->event = event + (size_t)r * event_max;
        lane->observer =
            (struct tess_comm_observer){lane, trace_called, trace_completed, trace_waiting};
        lane->phase = lane->doing = lane->wait = TRACE_NONE;
    }
    *trace_out = trace;
    return TESS_OK;
}

void tess_trace_close(struct tess_trace *trace)
{
    if (trace != NULL)
        munmap(trace, trace->bytes);
}

double tess_trace_origin_s(const struct tess_trace *trace)
{
    return trace->origin_s;
}

struct tess_trace_lane *tess_trace_lane(struct tess_trace *trace, int32_t rank)
{
    return trace != NULL ? &trace->lane[rank] : NULL;
}

const struct tess_trace_event *tess_trace_events(const struct tess_trace_lane *lane,
                                                 uint32_t *count_out)
{
    *count_out = atomic_load_explicit(&lane->count, memory_order_acquire);
    return lane->event;
}

double tess_trace_full_s(const struct tess_trace_lane *lane, int64_t *step_out)
{
    *step_out = lane->full_step;
    return lane->full_s;
}
