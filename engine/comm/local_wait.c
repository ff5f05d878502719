/*
 * How a rank waits and is woken: a short spin (or yields, when ranks exceed cores), then sleep on
 * the rank's own futex. While it waits it advances all its groups, so that no order of waits in
 * different groups can block. Knows nothing of what calls do.
 */
#include "base/clock.h"
#include "comm/shared.h"
#include "tessera/check.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A sleep and its waking cost about 70 us on a virtual machine; spinning for about as long is never
 * worse than twice the best choice. */
#define WAIT_SPIN_S  50e-6
#define WAIT_SLEEP_S 0.1

#if defined(__x86_64__)
#define WAIT_PAUSE() __builtin_ia32_pause()
#else
#define WAIT_PAUSE() ((void)0)
#endif

enum tess_status tess__local_check(struct local_rank *rank)
{
    if (atomic_load_explicit(&rank->world->abort_state, memory_order_relaxed) == 0)
        return TESS_OK;
    int32_t who;
    char reason[sizeof rank->world->abort_reason];
    tess_world_aborted(rank->world, &who, reason, sizeof reason);
    if (rank->told)
        return TESS_ERR_ABORTED;
    rank->told = true;
    if (who < 0)
        TESS_FAIL(TESS_ERR_ABORTED, "stopped by the launcher: %s", reason);
    TESS_FAIL(TESS_ERR_ABORTED, "stopped because rank %d failed: %s", (int)who, reason);
}

/*
 * The change that the sleeper waits for was stored before this, and the sleeper looks for it after
 * it has set `sleeping`; all four accesses are sequentially consistent, so one of the two sees the
 * other.
 */
static void wait_ring(struct world_rank *rank, enum world_sleep least)
{
    if (atomic_load(&rank->sleeping) >= least && atomic_exchange(&rank->sleeping, WORLD_AWAKE)) {
        atomic_fetch_add(&rank->bell, 1);
        syscall(SYS_futex, &rank->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

void tess__local_ring(struct local_group *group, enum world_sleep least)
{
    for (int32_t r = 0; r < group->comm.rank_count; r++)
        if (r != group->comm.rank)
            wait_ring(&group->rank->world->rank[group->world_rank[r]], least);
}

void tess__local_ring_one(struct local_group *group, int32_t peer)
{
    wait_ring(&group->rank->world->rank[group->world_rank[peer]], WORLD_SLEEPS);
}

enum tess_status tess__local_advance(struct local_rank *rank, bool *moved_out)
{
    TESS_TRY(tess__local_check(rank));
    for (struct local_group *group = rank->groups; group != NULL; group = group->next) {
        if (group->next_call != group->posted)
            TESS_TRY(tess__local_run(group, moved_out));
        tess__local_report(group);
        if (group->message_count > 0)
            TESS_TRY(tess__local_message_run(group, moved_out));
    }
    return TESS_OK;
}

/* Sleep until the bell rings, unless something has happened since it was last looked at. */
static enum tess_status wait_sleep(struct local_rank *rank, bool (*ready)(void *), void *context)
{
    struct world_rank *own = &rank->world->rank[rank->rank];
    uint32_t bell = atomic_load(&own->bell);
    atomic_store(&own->sleeping, rank->wants_room ? WORLD_SLEEPS_FOR_ROOM : WORLD_SLEEPS);
    bool moved = false;
    enum tess_status status = tess__local_advance(rank, &moved);
    if (status == TESS_OK && !moved && !ready(context)) {
        struct timespec limit = {.tv_nsec = (long)(WAIT_SLEEP_S * 1e9)};
        syscall(SYS_futex, &own->bell, FUTEX_WAIT, bell, &limit, NULL, 0);
    }
    atomic_store(&own->sleeping, WORLD_AWAKE);
    return status;
}

/* Has `peer` not done what we wait for in this call? */
static bool wait_is_missing(const struct local_group *group, const struct tess_comm_call *call,
                            uint64_t number, int32_t peer, bool *posted_out)
{
    if (call->collective == TESS_COLLECTIVE_SEND || call->collective == TESS_COLLECTIVE_RECV) {
        *posted_out = false;
        return peer == call->peer;
    }
    const struct local_member *member = group->member[peer];
    const struct local_desc *desc = &member->ring[(number - 1) % LOCAL_RING];
    *posted_out = atomic_load(&desc->seq) >= number;
    return peer != group->comm.rank && atomic_load(&member->progress) >> 32 < number;
}

/* The rank of the world that a call waits for, of several one that has not called it; -1: none. */
static int32_t wait_find_missing(const struct local_group *group, const struct tess_comm_call *call,
                                 uint64_t number)
{
    int32_t found = -1;
    for (int32_t r = group->comm.rank_count - 1; r >= 0; r--) {
        bool posted;
        if (wait_is_missing(group, call, number, r, &posted) && (!posted || found < 0))
            found = group->world_rank[r];
    }
    return found;
}

static void wait_describe(struct tess_world *world, int32_t rank, char *text, size_t text_bytes)
{
    tess_board_describe(tess_world_board(world, rank), NULL, 0, text, text_bytes);
}

/* Who is missing and what it does instead, those that did not even call first; those that do not
 * fit are counted. */
static void wait_name_missing(struct local_group *group, const struct tess_comm_call *call,
                              uint64_t number, char *text, size_t text_bytes)
{
    size_t used = 0;
    int32_t more = 0;
    int32_t n = group->comm.rank_count;
    for (int32_t i = 0; i < 2 * n; i++) {
        int32_t r = i % n;
        bool posted;
        if (!wait_is_missing(group, call, number, r, &posted) || posted != (i >= n))
            continue;
        char doing[160], one[220];
        wait_describe(group->rank->world, group->world_rank[r], doing, sizeof doing);
        size_t length = (size_t)snprintf(one, sizeof one, "%srank %d %s it (%s)",
                                         used > 0 ? "; " : "", (int)group->world_rank[r],
                                         posted ? "has not finished" : "has not called", doing);
        if (more > 0 || used + length + sizeof "; 64 more ranks" > text_bytes) {
            more++;
            continue;
        }
        memcpy(text + used, one, length + 1);
        used += length;
    }
    if (more > 0)
        snprintf(text + used, text_bytes - used, "; %d more rank%s", (int)more,
                 more > 1 ? "s" : "");
    else if (used == 0)
        snprintf(text, text_bytes, "no rank is late");
}

/* Fail with the names of those who did not come, and stop the others too: the group is of no use.
 */
static enum tess_status wait_time_out(struct local_group *group, const struct tess_comm_call *call,
                                      uint64_t number)
{
    struct local_rank *rank = group->rank;
    char who[480], causes[360] = "", reason[1000];
    wait_name_missing(group, call, number, who, sizeof who);
    tess__world_causes(rank->world, wait_find_missing(group, call, number), causes, sizeof causes);
    snprintf(reason, sizeof reason, "%s %llu%s%s did not end within %g s: %s%s",
             tess_collective_name(call->collective), (unsigned long long)number,
             call->site[0] != '\0' ? " at " : "", call->site, rank->timeout_s, who, causes);
    rank->told = true;
    tess_world_abort(rank->world, rank->rank, reason);
    TESS_FAIL(TESS_ERR_TIMEOUT, "%s", reason);
}

static enum tess_status wait_loop(struct local_group *group, bool (*ready)(void *), void *context,
                                  const struct tess_comm_call *call, uint64_t number)
{
    struct local_rank *rank = group->rank;
    bool spins = rank->world->rank_count <= rank->world->core_count;
    double start = tess_clock_s(), seen = start;
    for (;;) {
        bool moved = false;
        TESS_TRY(tess__local_advance(rank, &moved));
        if (ready(context))
            return TESS_OK;
        double now = tess_clock_s();
        if (moved)
            seen = now;
        if (now - start > rank->timeout_s)
            return wait_time_out(group, call, number);
        if (now - seen > WAIT_SPIN_S) {
            atomic_store_explicit(&rank->world->rank[rank->rank].board.waits_for,
                                  wait_find_missing(group, call, number), memory_order_relaxed);
            TESS_TRY(wait_sleep(rank, ready, context));
        } else if (spins) {
            for (int i = 0; i < 16; i++)
                WAIT_PAUSE();
        } else {
            sched_yield();
        }
    }
}

enum tess_status tess__local_wait(struct local_group *group, bool (*ready)(void *context),
                                  void *context, const struct tess_comm_call *call, uint64_t number)
{
    struct local_rank *rank = group->rank;
    bool moved = false;
    TESS_TRY(tess__local_advance(rank, &moved));
    if (ready(context))
        return TESS_OK;
    struct tess_board *board = tess_world_board(rank->world, rank->rank);
    atomic_store_explicit(&board->call_number, number, memory_order_relaxed);
    atomic_store_explicit(&board->collective, (int32_t)call->collective, memory_order_relaxed);
    enum tess_status status = wait_loop(group, ready, context, call, number);
    atomic_store_explicit(&board->collective, -1, memory_order_relaxed);
    atomic_store_explicit(&board->waits_for, -1, memory_order_relaxed);
    return status;
}
