/*
 * How a rank waits: a short spin (or yields, when ranks exceed cores), then sleep on the rank's own
 * futex; and the check for an aborted world. The loop is comm/waiting.c's, waking local_bell.c's.
 * What calls do is in local_run.c and local_message.c.
 */
#include "comm/local/shared.h"
#include "tessera/check.h"

#include <linux/futex.h>
#include <sched.h>
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
    char reason[sizeof(rank->world->abort_reason)];
    tess_world_aborted(rank->world, &who, reason, sizeof(reason));
    if (rank->notified)
        return TESS_ERR_ABORTED;
    rank->notified = true;
    if (who < 0)
        TESS_FAIL(TESS_ERR_ABORTED, "stopped by the launcher: %s", reason);
    TESS_FAIL(TESS_ERR_ABORTED, "stopped because rank %d failed: %s", (int)who, reason);
}

enum tess_status tess__local_advance(void *context, bool *moved_out)
{
    struct local_rank *rank = ((struct local_group *)context)->rank;
    TESS_TRY(tess__local_check(rank));
    for (struct local_group *group = LIST_FIRST(&rank->groups); group != NULL;
         group = LIST_NEXT(group, link)) {
        if (group->next_call != group->posted)
            TESS_TRY(tess__local_run(group, moved_out));
        tess__local_report(group);
        if (!LIST_EMPTY(&group->peers))
            TESS_TRY(tess__local_message_run(group, moved_out));
    }
    return TESS_OK;
}

/* Sleep until the bell rings, unless something has happened since it was last looked at. */
static enum tess_status wait_sleep(const struct tess__waiting *waiting)
{
    struct local_rank *rank = ((struct local_group *)waiting->group)->rank;
    struct world_rank *own = &rank->world->rank[rank->rank];
    uint32_t bell = atomic_load(&own->bell);
    atomic_store(&own->sleeping, rank->wants_room ? WORLD_SLEEPS_FOR_ROOM : WORLD_SLEEPS);
    bool moved = false;
    enum tess_status status = tess__local_advance(waiting->group, &moved);
    if (status == TESS_OK && !moved && !waiting->ready(waiting->context)) {
        struct timespec limit = {.tv_nsec = (long)(WAIT_SLEEP_S * 1e9)};
        syscall(SYS_futex, &own->bell, FUTEX_WAIT, bell, &limit, NULL, 0);
    }
    atomic_store(&own->sleeping, WORLD_AWAKE);
    return status;
}

static enum tess_status wait_pause(const struct tess__waiting *waiting, double idle_s,
                                   double left_s)
{
    struct local_rank *rank = ((struct local_group *)waiting->group)->rank;

    (void)left_s;
    if (idle_s > WAIT_SPIN_S)
        return wait_sleep(waiting);
    if (rank->world->rank_count > rank->world->core_count) {
        sched_yield();
        return TESS_OK;
    }
    for (int i = 0; i < 16; i++)
        WAIT_PAUSE();
    return TESS_OK;
}

static bool wait_is_missing(void *context, uint64_t number, int32_t peer, bool *called_out)
{
    const struct local_group *group = context;
    const struct local_member *member = group->other[peer].member;

    *called_out = atomic_load(&member->ring[(number - 1) % LOCAL_RING].seq) >= number;
    return peer != group->comm.rank && atomic_load(&member->progress) >> 32 < number;
}

static void wait_describe(void *group, int32_t rank, char *text, size_t text_bytes)
{
    struct tess_world *world = ((struct local_group *)group)->rank->world;

    tess_board_describe(tess_world_board(world, rank), NULL, 0, text, text_bytes);
}

void tess__local_wait_open(struct local_group *group)
{
    const struct local_rank *rank = group->rank;

    group->waiting = (struct tess__waiting){.group = group,
                                            .world = rank->world,
                                            .rank = rank->rank,
                                            .rank_count = group->comm.rank_count,
                                            .member = group->world_rank,
                                            .timeout_s = rank->timeout_s,
                                            .report_s = WAIT_SPIN_S,
                                            .advance = tess__local_advance,
                                            .pause = wait_pause,
                                            .is_missing = wait_is_missing,
                                            .describe = wait_describe,
                                            .fail = tess__local_fail};
}
