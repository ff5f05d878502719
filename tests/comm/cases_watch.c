/* What is reported of calls: the observer gets each one once and in order, the flight time is that
 * of the calls together, and messages name the site of a call. */
#include "comm/cases.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WATCH_MAX = 2048 };

/* All that an observer received of one rank, of all groups. */
struct watch {
    int count, wrong;
    int waiting; /* depth */
    struct {
        const struct tess_comm *comm;
        uint64_t ticket;
        enum tess_collective collective;
        bool completed;
    } call[WATCH_MAX];
};

static int watch_find(const struct watch *watch, const struct tess_comm *comm, uint64_t ticket)
{
    for (int i = watch->count - 1; i >= 0; i--)
        if (watch->call[i].comm == comm && watch->call[i].ticket == ticket)
            return i;
    return -1;
}

static void watch_called(void *context, const struct tess_comm *comm,
                         const struct tess_comm_call *call, uint64_t ticket)
{
    struct watch *watch = context;
    bool known = watch_find(watch, comm, ticket) >= 0;
    if (known || watch->count == WATCH_MAX || strstr(call->site, "cases_watch.c:") == NULL) {
        watch->wrong++;
        return;
    }
    watch->call[watch->count].comm = comm;
    watch->call[watch->count].ticket = ticket;
    watch->call[watch->count].collective = call->collective;
    watch->call[watch->count++].completed = false;
}

static void watch_completed(void *context, const struct tess_comm *comm, uint64_t ticket)
{
    struct watch *watch = context;
    int i = watch_find(watch, comm, ticket);
    if (i < 0 || watch->call[i].completed)
        watch->wrong++;
    else
        watch->call[i].completed = true;
}

static void watch_waiting(void *context, const struct tess_comm *comm, uint64_t ticket, bool on)
{
    struct watch *watch = context;
    int i = watch_find(watch, comm, ticket);
    watch->waiting += on ? 1 : -1;
    /* After a wait the call is complete. */
    if (i < 0 || watch->waiting != (on ? 1 : 0) || (!on && !watch->call[i].completed))
        watch->wrong++;
}

static int watch_left(const struct watch *watch)
{
    int left = 0;
    for (int i = 0; i < watch->count; i++)
        left += watch->call[i].completed ? 0 : 1;
    return left;
}

/* Calls of all kinds in flight, in shared and private memory, waited for in a drawn order. `data`:
 * room for WATCH_SLOTS times WATCH_ROOM on each side. */
enum { WATCH_SLOTS = 24, WATCH_ROOM = 16384 };

static enum tess_status watch_make(struct tess_comm *comm, uint64_t draw, char *data,
                                   struct tess_event *event)
{
    int32_t n = comm->rank_count, next = (comm->rank + 1) % n, last = (comm->rank + n - 1) % n;
    static const size_t counts[] = {0, 1, 100, 1024, 1025, 2000};
    size_t count = counts[draw % 6];
    switch ((draw >> 8) % 6) {
    case 0:
        return tess_comm_all_reduce(comm, data, data, count, TESS_F32, TESS_REDUCE_SUM, event);
    case 1:
        return tess_comm_reduce_scatter(comm, data, data + WATCH_ROOM, count / (size_t)n, TESS_F32,
                                        TESS_REDUCE_SUM, event);
    case 2:
        return tess_comm_broadcast(comm, data, count, TESS_F32, (int32_t)((draw >> 16) % 97) % n,
                                   event);
    case 3:
        return tess_comm_all_gather(comm, data, data + WATCH_ROOM, count / (size_t)n, TESS_F32,
                                    event);
    default:
        if (n == 1)
            return TESS_OK;
        TESS_TRY(tess_comm_send(comm, data, count, TESS_F32, next, &event[0]));
        return tess_comm_recv(comm, data + WATCH_ROOM, count, TESS_F32, last, &event[1]);
    }
}

static int watch_random(struct tess_comm *comm, uint64_t seed, char *shared, char *private)
{
    struct tess_event event[WATCH_SLOTS][2] = {{{0}}};
    for (uint64_t step = 0; step < 200; step++) {
        uint64_t draw = value_hash(seed, step, 5);
        size_t s = draw % WATCH_SLOTS;
        WORLD_OK(tess_event_wait(&event[s][0]));
        WORLD_OK(tess_event_wait(&event[s][1]));
        if (value_hash(seed, step, (uint64_t)comm->rank) % 4 == 0)
            WORLD_OK(tess_comm_poll(comm));
        char *data = (draw >> 40) % 2 == 0 ? shared : private;
        WORLD_OK(watch_make(comm, draw >> 10, data + s * 2 * WATCH_ROOM, event[s]));
        if ((draw >> 50) % 16 == 0)
            WORLD_OK(tess_comm_barrier(comm));
    }
    for (size_t s = 0; s < WATCH_SLOTS; s++)
        for (int i = 0; i < 2; i++)
            WORLD_OK(tess_event_wait(&event[s][i]));
    return 0;
}

static double watch_sleep(double seconds)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
    return tess_clock_s();
}

/*
 * More than the queues hold, none waited for until the end: what no rank waits for is reported too,
 * at the latest when its place is used again. For that the places change between calls that wait
 * for others and calls that do not, and others go on while this rank sleeps.
 */
static int watch_many(struct tess_comm *comm, const struct watch *watch)
{
    enum { BATCHES = 5, CALLS = 200, PAIRS = 20, BIG = 5000, SMALL = 10 };
    int32_t n = comm->rank_count, next = (comm->rank + 1) % n, last = (comm->rank + n - 1) % n;
    struct tess_event all = {0}, event;
    void *memory;
    WORLD_OK(tess_comm_alloc(comm, (size_t)BATCHES * (CALLS + 2 * PAIRS) * BIG, &memory));
    char *at = memory;
    for (int batch = 0; batch < BATCHES; batch++) {
        for (int k = 0; k < CALLS; k++, at += BIG)
            WORLD_OK(tess_comm_all_reduce(comm, at, at, k % 3 == 0 ? BIG : SMALL, TESS_U8,
                                          TESS_REDUCE_MAX, &all));
        for (int i = 0; i < PAIRS && n > 1; i++, at += BIG)
            WORLD_OK(tess_comm_send(comm, at, i % 5 == 0 ? BIG : SMALL, TESS_U8, next, &event));
        for (int i = 0; i < PAIRS && n > 1; i++, at += BIG)
            WORLD_OK(tess_comm_recv(comm, at, i % 5 == 0 ? BIG : SMALL, TESS_U8, last, &event));
        WORLD_OK(tess_comm_poll(comm));
        watch_sleep(5e-3);
    }
    WORLD_OK(tess_event_wait(&all));
    if (n > 1)
        WORLD_OK(tess_event_wait(&event)); /* the last receive */
    /* What peers have received of this rank is known when they have come to a barrier. */
    WORLD_OK(tess_comm_barrier(comm));
    WORLD_OK(tess_comm_poll(comm));
    WORLD_CHECK(watch_left(watch) == 0 && comm->flight_count == 0);
    tess_comm_release(comm, memory);
    return 0;
}

static int watch_observed_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    struct watch *watch = calloc(1, sizeof(*watch));
    struct place private; /* or a device's */
    void *shared;
    WORLD_CHECK(watch != NULL);
    WORLD_OK(place_open(comm, (size_t)WATCH_SLOTS * 2 * WATCH_ROOM, false, &private));
    WORLD_OK(tess_comm_alloc(comm, (size_t)WATCH_SLOTS * 2 * WATCH_ROOM, &shared));
    const struct tess_comm_observer observer = {watch, watch_called, watch_completed,
                                                watch_waiting};
    comm->observer = &observer;
    /* A split is no call of the user's; the group that it gives is observed as well. */
    struct tess_comm *child;
    WORLD_OK(tess_comm_split(comm, comm->rank % 2, 0, &child));
    WORLD_CHECK(watch->count == 0 && comm->stats.flight_s == 0 && comm->stats.wait_s == 0);
    WORLD_CHECK(comm->stats.sent_bytes == 0 && comm->stats.received_bytes == 0);
    WORLD_CHECK(child->observer == &observer);
    int failed = watch_random(comm, 1, shared, private.at) ||
                 watch_random(child, 2, shared, private.at) || watch_many(comm, watch);
    WORLD_CHECK(failed || (watch->wrong == 0 && watch_left(watch) == 0 && watch->waiting == 0));
    for (int kind = 0; kind < TESS_COLLECTIVE_COUNT && !failed; kind++) {
        uint64_t seen = 0;
        for (int i = 0; i < watch->count; i++)
            seen += (int)watch->call[i].collective == kind;
        WORLD_CHECK(seen == comm->stats.calls[kind] + child->stats.calls[kind]);
    }
    WORLD_CHECK(failed || (comm->flight_count == 0 && child->flight_count == 0));
    tess_comm_close(child);
    comm->observer = NULL;
    free(watch);
    place_close(&private);
    return failed;
}

void case_observed(void **state)
{
    case_run(state, watch_observed_rank, NULL);
}

/*
 * Three calls at once, then 20 ms of something else. Nothing advances but in calls, so the last one
 * is under way from before t1 to after t2; and the time with a call under way lies between t0 and
 * t3, whereas the three flights one after the other would be longer.
 */
static int watch_flight_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world;
    const struct case_setup *setup = arg;
    enum { COUNT = 30000 };
    struct tess_event event[3];
    float *data = calloc(3 * COUNT, sizeof(*data));
    WORLD_CHECK(data != NULL);
    double flight = 0, t0 = tess_clock_s();
    for (int k = 0; k < 3; k++)
        WORLD_OK(tess_comm_all_reduce(comm, data + k * COUNT, data + k * COUNT, COUNT, TESS_F32,
                                      TESS_REDUCE_SUM, &event[k]));
    double t1 = tess_clock_s(), t2 = watch_sleep(20e-3);
    WORLD_CHECK(comm->stats.wait_s == 0);
    for (int k = 0; k < 3; k++)
        WORLD_OK(tess_event_wait(&event[k]));
    double t3 = tess_clock_s();
    flight = comm->stats.flight_s;
    /* A difference of sums of clock readings: each of the numbers above is below 2^30 s, so a
     * handful of roundings of 2^-24 s at most. */
    double rounding = 8 * 0x1p-24;
    if (setup->self)
        WORLD_CHECK(flight <= t1 - t0 + rounding);
    else
        WORLD_CHECK(flight >= t2 - t1 - rounding && flight <= t3 - t0 + rounding);
    WORLD_CHECK(comm->stats.wait_s <= t3 - t2 + rounding);
    free(data);

    /* Nothing under way: nothing is added. Then one call that is waited for at once. */
    double waited = comm->stats.wait_s;
    watch_sleep(20e-3);
    WORLD_CHECK(comm->stats.flight_s == flight);
    double before = tess_clock_s();
    WORLD_OK(tess_comm_barrier(comm));
    double after = tess_clock_s();
    WORLD_CHECK(comm->stats.flight_s > flight);
    WORLD_CHECK(comm->stats.flight_s - flight <= comm->stats.wait_s - waited + rounding);
    WORLD_CHECK(comm->stats.wait_s - waited <= after - before + rounding);
    return 0;
}

/* A call in a group and one in a part of it, both under way for 20 ms: each counts them, the family
 * counts them once, on each of its ranks. */
static int watch_family_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world;
    const struct case_setup *setup = arg;
    enum { COUNT = 30000 };
    struct tess_comm *child = NULL;
    struct tess_event event[2];
    float *data = calloc(2 * COUNT, sizeof(*data));
    WORLD_CHECK(data != NULL);
    WORLD_OK(tess_comm_split(comm, 0, comm->rank, &child));
    WORLD_CHECK(tess_comm_family_flight_s(comm) == 0);
    double t0 = tess_clock_s();
    WORLD_OK(tess_comm_all_reduce(comm, data, data, COUNT, TESS_F32, TESS_REDUCE_SUM, &event[0]));
    WORLD_OK(tess_comm_all_reduce(child, data + COUNT, data + COUNT, COUNT, TESS_F32,
                                  TESS_REDUCE_SUM, &event[1]));
    double t1 = tess_clock_s(), t2 = watch_sleep(20e-3);
    for (int k = 0; k < 2; k++)
        WORLD_OK(tess_event_wait(&event[k]));
    double t3 = tess_clock_s(), rounding = 8 * 0x1p-24; /* see watch_flight_rank */
    double family = tess_comm_family_flight_s(comm);
    WORLD_CHECK(family == tess_comm_family_flight_s(child));
    WORLD_CHECK(family <= t3 - t0 + rounding);
    if (!setup->self) {
        WORLD_CHECK(family >= t2 - t1 - rounding);
        /* The comparison before the second call takes the first one along; alone, a call is a
         * copy. */
        if (!setup->debug && setup->ranks > 1)
            WORLD_CHECK(comm->stats.flight_s + child->stats.flight_s >= 2 * (t2 - t1) - rounding);
    }
    tess_comm_close(child);
    free(data);
    return 0;
}

void case_family(void **state)
{
    case_run(state, watch_family_rank, *state);
}

void case_flight(void **state)
{
    case_run(state, watch_flight_rank, *state);
}
