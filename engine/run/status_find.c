/*
 * Who waits for whom. A rank that waits in collective n of a group waits for the ranks of the group
 * that have made fewer calls there; these may wait for others. The rank at the end is the one to
 * look at:
 *
 *     rank 0 --all_reduce 35 (data)--> rank 2 --recv (stage)--> rank 6, in forward
 */
#include "run/status.h"

#include <math.h>
#include <string.h>

/* Shorter waits are usual in a run that is live. */
#define FIND_WAIT_S 1.0

static uint64_t find_bit(int32_t rank)
{
    return UINT64_C(1) << rank;
}

/* The rank's place in a group of that id; NULL: it is not in it. */
static const struct tess_flight_group *find_group(const struct tess__status_rank *rank, uint32_t id)
{
    for (int32_t g = 0; rank->file != NULL && g < TESS_FLIGHT_GROUPS; g++)
        if (rank->file->now.group[g].id == id)
            return &rank->file->now.group[g];
    return NULL;
}

/* The rank's record of a collective of a group; NULL: it has none. */
static const struct tess_flight_call *find_call(const struct tess__status_rank *rank, uint32_t id,
                                                uint64_t number)
{
    for (int32_t i = 0; rank->file != NULL && i < TESS_FLIGHT_CALLS; i++) {
        const struct tess_flight_call *call = &rank->file->call[i];
        if (rank->whole[i] && call->number == number && call->group < TESS_FLIGHT_GROUPS &&
            rank->file->now.group[call->group].id == id)
            return call;
    }
    return NULL;
}

/* The call that the rank waits for; NULL: none, or its record is lost. */
static const struct tess_flight_call *find_waits(const struct tess__status *status,
                                                 const struct tess__status_rank *rank)
{
    const uint64_t number = rank->file != NULL ? rank->file->now.waiting : 0;
    const uint64_t i = (number - 1) % TESS_FLIGHT_CALLS;
    if (number == 0 || !rank->whole[i] || rank->file->call[i].sequence != 2 * number ||
        rank->file->call[i].end_s > 0)
        return NULL;
    const double since_s = rank->file->now.since_s + rank->file->head.clock_offset_s;
    if (status->live && status->now_s - since_s < FIND_WAIT_S)
        return NULL;
    return &rank->file->call[i];
}

/* The ranks that are late for the call that rank r waits for: those that have not made it, else
 * those that have and do something else, else the one that the communicator has noted. */
static uint64_t find_late(struct tess__status *status, int32_t r)
{
    struct tess__status_rank *rank = &status->rank[r];
    const struct tess_flight_call *call = rank->waits;
    const uint32_t id =
        call->group < TESS_FLIGHT_GROUPS ? rank->file->now.group[call->group].id : 0;
    uint64_t missing = 0, unfinished = 0;
    for (int32_t s = 0; s < status->rank_count; s++) {
        const struct tess_flight_group *group = find_group(&status->rank[s], id);
        if (s == r || id == 0 || group == NULL)
            continue;
        if (call->number == 0) { /* a message */
            missing |= group->rank == call->peer ? find_bit(s) : 0;
            continue;
        }
        const struct tess_flight_call *theirs = find_call(&status->rank[s], id, call->number);
        missing |= group->called < call->number ? find_bit(s) : 0;
        if (theirs != NULL && theirs->end_s <= 0 && status->rank[s].waits == NULL)
            unfinished |= find_bit(s);
    }
    rank->calls_missing = missing != 0;
    if (missing != 0 || unfinished != 0)
        return missing != 0 ? missing : unfinished;
    const int32_t noted = rank->file->now.board.waits_for;
    return noted >= 0 && noted < status->rank_count && noted != r ? find_bit(noted) : 0;
}

/* A rank that is gone or stopped waits for nobody, whatever it waited for before. */
static uint64_t find_waited_for(const struct tess__status *status, int32_t r)
{
    const enum tess__status_life life = status->rank[r].life;
    return life == TESS__LIFE_DEAD || life == TESS__LIFE_STOPPED ? 0 : status->rank[r].waits_for;
}

/* All ranks that r waits for, over others too. */
static uint64_t find_reach(const struct tess__status *status, int32_t r)
{
    uint64_t reach = find_waited_for(status, r), before = 0;
    while (reach != before) {
        before = reach;
        for (int32_t s = 0; s < status->rank_count; s++)
            reach |= before & find_bit(s) ? find_waited_for(status, s) : 0;
    }
    return reach;
}

/* Of two ranks that others wait for equally, one that has gone is the one to look at. */
static int find_weight(enum tess__status_life life)
{
    switch (life) {
    case TESS__LIFE_DEAD:
        return 3;
    case TESS__LIFE_STOPPED:
    case TESS__LIFE_FAILED:
        return 2;
    case TESS__LIFE_ENDED:
    case TESS__LIFE_NONE:
        return 1;
    default:
        return 0;
    }
}

static void find_last(struct tess__status *status)
{
    uint64_t by[TESS_WORLD_RANKS_MAX] = {0};
    for (int32_t r = 0; r < status->rank_count; r++) {
        const uint64_t reach = find_reach(status, r);
        if (reach & find_bit(r))
            status->in_turns |= find_bit(r);
        for (int32_t s = 0; s < status->rank_count; s++)
            if (reach & find_bit(s) && find_waited_for(status, s) == 0)
                by[s] |= find_bit(r);
    }
    int best = -1;
    for (int32_t s = 0; s < status->rank_count; s++) {
        const int weight = 4 * __builtin_popcountll(by[s]) + find_weight(status->rank[s].life);
        if (by[s] == 0 || weight <= best)
            continue;
        best = weight;
        status->late = s;
        status->waiting = by[s];
    }
    if (status->late >= 0)
        status->in_turns = 0;
}

/* ---- calls that differ ----------------------------------------------------------------------- */

static bool find_same(const struct tess_flight_call *a, const struct tess_flight_call *b)
{
    return a->collective == b->collective && a->bytes == b->bytes && a->dtype == b->dtype &&
           a->peer == b->peer;
}

/* Call `number` of a group on all ranks whose records have it. Does it differ? */
static bool find_gather(const struct tess__status *status, const struct tess_flight_group *group,
                        uint64_t number, struct tess__status_differs *found)
{
    bool differs = false;
    *found = (struct tess__status_differs){.number = number, .axis = group->axis};
    for (int32_t s = 0; s < status->rank_count; s++) {
        const struct tess_flight_call *call = find_call(&status->rank[s], group->id, number);
        if (call == NULL)
            continue;
        found->of[found->rank_count].rank = s;
        found->of[found->rank_count++].call = call;
        differs = differs || !find_same(call, found->of[0].call);
    }
    return differs;
}

/* The earliest of all calls that differ. Each record is compared with those of later ranks. */
static void find_differs(struct tess__status *status)
{
    double earliest_s = INFINITY;
    for (int32_t r = 0; r < status->rank_count; r++) {
        const struct tess__status_rank *rank = &status->rank[r];
        for (int32_t i = 0; rank->file != NULL && i < TESS_FLIGHT_CALLS; i++) {
            const struct tess_flight_call *call = &rank->file->call[i];
            const double begin_s = call->begin_s + rank->file->head.clock_offset_s;
            struct tess__status_differs found;
            if (!rank->whole[i] || call->number == 0 || call->group == TESS_FLIGHT_GROUPS ||
                begin_s >= earliest_s ||
                !find_gather(status, &rank->file->now.group[call->group], call->number, &found))
                continue;
            earliest_s = begin_s;
            status->differs = found;
        }
    }
}

void tess__status_find(struct tess__status *status)
{
    for (int32_t r = 0; r < status->rank_count; r++)
        status->rank[r].waits = find_waits(status, &status->rank[r]);
    for (int32_t r = 0; r < status->rank_count; r++)
        if (status->rank[r].waits != NULL)
            status->rank[r].waits_for = find_late(status, r);
    find_last(status);
    find_differs(status);
}
