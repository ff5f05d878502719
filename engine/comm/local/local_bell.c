/* How a rank wakes others, who sleep on their own futex, and ends them all when it fails. */
#include "comm/local/shared.h"
#include "tessera/check.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * The change that the sleeper waits for was stored before this, and the sleeper looks for it after
 * it has set `sleeping`; all four accesses are sequentially consistent, so one of the two sees the
 * other.
 */
static void ring_rank(struct world_rank *rank, enum world_sleep least)
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
            ring_rank(&group->rank->world->rank[group->world_rank[r]], least);
}

void tess__local_ring_one(struct local_group *group, int32_t peer)
{
    ring_rank(&group->rank->world->rank[group->world_rank[peer]], WORLD_SLEEPS);
}

enum tess_status tess__local_fail(void *context, enum tess_status status, const char *reason)
{
    struct local_group *group = context;
    group->rank->notified = true;
    tess_world_abort(group->rank->world, group->rank->rank, reason);
    TESS_FAIL(status, "%s", reason);
}
