/*
 * Seats and pipes: which of a rank's places in the world's memory are in use. Only their rank takes
 * and frees them, so ranks need not agree on free ones: they exchange which each has taken.
 *
 * A seat and its pipes are free again when all members have left the group, since one that is
 * behind may still read what they hold. Members count themselves out at the first member, whose
 * seat is taken again only then; its round shows the others that it was.
 */
#include "comm/local/shared.h"
#include "tessera/check.h"

#define SEAT_ROUND(left) ((uint32_t)((left) >> 32))
#define SEAT_LEFT(left)  ((int32_t)((left)&UINT32_MAX))

static struct local_member *seat_member(struct local_rank *rank, int32_t seat)
{
    return tess__world_member(rank->world, rank->rank, seat);
}

static void seat_free_pipes(struct local_rank *rank, int32_t number)
{
    struct local_member *member = seat_member(rank, number);
    struct local_seat *seat = &rank->seat[number];
    while (seat->pipe >= 0) {
        struct local_pipe_use *use = &rank->pipe[seat->pipe];
        const int32_t next = use->next;
        atomic_store(&member->pipe[use->peer], 0);
        use->next = rank->pipe_free;
        rank->pipe_free = seat->pipe;
        seat->pipe = next;
    }
}

/* Free the seats whose groups all members have left. */
static void seat_reclaim(struct local_rank *rank)
{
    for (int32_t s = 0; s < LOCAL_SEATS; s++) {
        struct local_seat *seat = &rank->seat[s];
        if (!seat->taken || seat->first == NULL)
            continue;
        const uint64_t left = atomic_load(&seat->first->left);
        if (SEAT_ROUND(left) == seat->round && SEAT_LEFT(left) < seat->member_count)
            continue;
        seat_free_pipes(rank, s);
        seat->taken = false;
    }
}

/* Nothing of its last group is taken for one of the next. */
static void seat_clear(struct local_rank *rank, int32_t number)
{
    struct local_member *member = seat_member(rank, number);
    struct local_seat *seat = &rank->seat[number];
    const uint64_t used = seat->posted < LOCAL_RING ? seat->posted : LOCAL_RING;
    for (uint64_t i = 0; i < used; i++)
        atomic_store_explicit(&member->ring[i].seq, 0, memory_order_relaxed);
    atomic_store(&member->progress, 0);
    atomic_store(&member->left, (uint64_t)(SEAT_ROUND(atomic_load(&member->left)) + 1) << 32);
    *seat = (struct local_seat){.taken = true, .pipe = -1};
}

int32_t tess__local_seat_take(struct local_rank *rank)
{
    seat_reclaim(rank);
    for (int32_t s = 0; s < LOCAL_SEATS; s++) {
        if (rank->seat[s].taken)
            continue;
        seat_clear(rank, s);
        return s;
    }
    return -1;
}

void tess__local_seat_drop(struct local_rank *rank, int32_t seat)
{
    if (seat >= 0)
        rank->seat[seat].taken = false;
}

void tess__local_seat_enter(struct local_group *group)
{
    struct local_seat *seat = &group->rank->seat[group->seat];
    seat->first = group->other[0].member;
    seat->round = SEAT_ROUND(atomic_load(&seat->first->left));
    seat->member_count = group->comm.rank_count;
}

void tess__local_seat_leave(struct local_group *group)
{
    struct local_seat *seat = &group->rank->seat[group->seat];
    seat->posted = group->posted;
    atomic_fetch_add(&seat->first->left, 1);
}

enum tess_status tess__local_pipe_take(struct local_group *group, int32_t member,
                                       struct local_pipe **pipe_out)
{
    struct local_rank *rank = group->rank;
    struct local_seat *seat = &rank->seat[group->seat];
    if (rank->pipe_free < 0 && rank->pipes_used == rank->world->pipe_count)
        seat_reclaim(rank);
    int32_t pipe = rank->pipe_free;
    if (pipe >= 0)
        rank->pipe_free = rank->pipe[pipe].next;
    else if (rank->pipes_used < rank->world->pipe_count)
        pipe = rank->pipes_used++;
    else
        TESS_FAIL(TESS_ERR_COMM,
                  "rank %d cannot send to another rank: it already sends to %d of them, over all "
                  "groups; use fewer groups or send to fewer ranks in each",
                  (int)rank->rank, (int)rank->world->pipe_count);
    rank->pipe[pipe] = (struct local_pipe_use){.next = seat->pipe, .peer = member};
    seat->pipe = pipe;
    struct local_pipe *memory = tess__world_pipe(rank->world, rank->rank, (uint32_t)pipe);
    for (int i = 0; i < LOCAL_PAIR_RING; i++)
        atomic_store_explicit(&memory->ring[i].seq, 0, memory_order_relaxed);
    atomic_store_explicit(&memory->staged, 0, memory_order_relaxed);
    atomic_store_explicit(&memory->received, 0, memory_order_relaxed);
    atomic_store_explicit(&memory->consumed, 0, memory_order_relaxed);
    atomic_store(&tess__local_own(group)->pipe[member], (uint32_t)pipe + 1);
    *pipe_out = memory;
    return TESS_OK;
}

struct local_pipe *tess__local_pipe_from(const struct local_group *group, int32_t member)
{
    const uint32_t pipe = atomic_load(&group->other[member].member->pipe[group->comm.rank]);
    return pipe > 0 ? tess__world_pipe(group->rank->world, group->world_rank[member], pipe - 1)
                    : NULL;
}
