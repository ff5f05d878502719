/*
 * Who waits for whom. A rank that waits in collective n of a group waits for the ranks of the group
 * that have made fewer calls there; these may wait for others. The rank at the end is the one to
 * look at:
 *
 *     rank 0 --all_reduce 35 (data)--> rank 2 --recv (stage)--> rank 6, in forward
 *
 * Groups and calls of all ranks are sorted once. Ranks that wait for the same call share the set of
 * those that are late for it, so hundreds of ranks that wait are one set.
 */
#include "run/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Shorter waits are usual in a run that is live. */
#define FIND_WAIT_S 1.0

/* ---- sets ------------------------------------------------------------------------------------ */

/* Of ascending ranks; the status has it. NULL: none, or no memory. */
static const struct tess__status_set *find_set(struct tess__status *status, const int32_t *rank,
                                               int32_t count)
{
    if (count == 0)
        return NULL;
    if (status->set_count == status->set_room) {
        const int32_t room = status->set_room > 0 ? 2 * status->set_room : 16;
        struct tess__status_set **set = realloc(status->set, (size_t)room * sizeof(*set));
        if (set == NULL)
            return NULL;
        status->set = set;
        status->set_room = room;
    }
    struct tess__status_set *set = malloc(sizeof(*set) + (size_t)count * sizeof(set->rank[0]));
    if (set == NULL)
        return NULL;
    set->number = status->set_count;
    set->count = count;
    memcpy(set->rank, rank, (size_t)count * sizeof(*rank));
    status->set[status->set_count++] = set;
    return set;
}

/* Of the ranks in status->in. */
static const struct tess__status_set *find_set_of(struct tess__status *status, int32_t *scratch)
{
    int32_t count = 0;
    for (int32_t r = 0; r < status->rank_count; r++)
        if (status->in[r])
            scratch[count++] = r;
    return find_set(status, scratch, count);
}

/* ---- groups and calls of all ranks ----------------------------------------------------------- */

static int find_compare_groups(const void *a, const void *b)
{
    const struct tess__status_group *left = a, *right = b;
    if (left->id != right->id)
        return left->id < right->id ? -1 : 1;
    return (left->rank > right->rank) - (left->rank < right->rank);
}

static void find_list_groups(struct tess__status *status)
{
    size_t count = 0;
    for (int pass = 0; pass < 2; pass++) {
        status->group_count = 0;
        for (int32_t r = 0; r < status->rank_count; r++)
            for (int32_t g = 0; status->rank[r].file != NULL && g < TESS_FLIGHT_GROUPS; g++) {
                const struct tess_flight_group *group = &status->rank[r].file->now.group[g];
                if (group->id == 0)
                    continue;
                if (pass == 1)
                    status->group[status->group_count++] =
                        (struct tess__status_group){group->id, r, group};
                count += pass == 0;
            }
        if (pass == 0)
            status->group = calloc(count + 1, sizeof(*status->group));
        if (status->group == NULL)
            return;
    }
    qsort(status->group, count, sizeof(*status->group), find_compare_groups);
}

int32_t tess__status_members(const struct tess__status *status, uint32_t id, int32_t *end_out)
{
    int32_t low = 0, high = status->group_count;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (status->group[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    for (*end_out = low; *end_out < status->group_count && status->group[*end_out].id == id;)
        ++*end_out;
    return low;
}

/* A collective that a rank's record has. */
struct find_call {
    uint32_t id; /* of its group */
    int32_t rank, axis;
    uint64_t number;
    const struct tess_flight_call *call;
};

struct find {
    struct tess__status *status;
    struct find_call *call; /* by group, number and rank */
    size_t call_count;
    int32_t *scratch; /* [ranks] */
    bool *seen;       /* [sets] */
    /* What is waited for, one for each set that is known. */
    struct find_wait {
        uint32_t id;
        int32_t peer;
        uint64_t number;
        const struct tess__status_set *late;
        bool missing;
    } * wait; /* [ranks] */
    int32_t wait_count;
};

static int find_compare_calls(const void *a, const void *b)
{
    const struct find_call *left = a, *right = b;
    if (left->id != right->id)
        return left->id < right->id ? -1 : 1;
    if (left->number != right->number)
        return left->number < right->number ? -1 : 1;
    return (left->rank > right->rank) - (left->rank < right->rank);
}

static void find_list_calls(struct find *find)
{
    const struct tess__status *status = find->status;
    find->call = calloc((size_t)status->rank_count * TESS_FLIGHT_CALLS + 1, sizeof(*find->call));
    for (int32_t r = 0; r < status->rank_count && find->call != NULL; r++)
        for (int32_t i = 0; status->rank[r].file != NULL && i < TESS_FLIGHT_CALLS; i++) {
            const struct tess_flight_call *call = &status->rank[r].file->call[i];
            if (!status->rank[r].whole[i] || call->number == 0 || call->group >= TESS_FLIGHT_GROUPS)
                continue;
            const struct tess_flight_group *group = &status->rank[r].file->now.group[call->group];
            if (group->id != 0)
                find->call[find->call_count++] =
                    (struct find_call){group->id, r, group->axis, call->number, call};
        }
    if (find->call_count > 0)
        qsort(find->call, find->call_count, sizeof(*find->call), find_compare_calls);
}

/* The first record of collective `number` of a group. */
static size_t find_first(const struct find *find, uint32_t id, uint64_t number)
{
    const struct find_call sought = {.id = id, .rank = -1, .number = number};
    size_t low = 0, high = find->call_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (find_compare_calls(&find->call[middle], &sought) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- who waits for whom ---------------------------------------------------------------------- */

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

/* Ranks of the group that have not made the call; of a message, the one that it is to come from or
 * to go to. Into find->scratch. */
static int32_t find_missing(const struct find *find, const struct find_wait *wait)
{
    int32_t end, count = 0;
    for (int32_t i = tess__status_members(find->status, wait->id, &end); i < end; i++) {
        const struct tess__status_group *member = &find->status->group[i];
        const bool missing = wait->number == 0 ? member->group->rank == wait->peer
                                               : member->group->called < wait->number;
        if (missing && (count == 0 || find->scratch[count - 1] != member->rank))
            find->scratch[count++] = member->rank;
    }
    return count;
}

/* Ranks that have made the call, do something else, and have not completed it. */
static int32_t find_unfinished(const struct find *find, const struct find_wait *wait)
{
    int32_t count = 0;
    for (size_t i = find_first(find, wait->id, wait->number);
         wait->number > 0 && i < find->call_count && find->call[i].id == wait->id &&
         find->call[i].number == wait->number;
         i++) {
        const struct find_call *theirs = &find->call[i];
        if (theirs->call->end_s <= 0 && find->status->rank[theirs->rank].waits == NULL &&
            (count == 0 || find->scratch[count - 1] != theirs->rank))
            find->scratch[count++] = theirs->rank;
    }
    return count;
}

/* What is known of the call that the rank waits for. NULL: it is of no known group. */
static const struct find_wait *find_wait_of(struct find *find, const struct tess__status_rank *rank)
{
    const struct tess_flight_call *call = rank->waits;
    struct find_wait sought = {
        .id = call->group < TESS_FLIGHT_GROUPS ? rank->file->now.group[call->group].id : 0,
        .peer = call->number == 0 ? call->peer : -1,
        .number = call->number};
    if (sought.id == 0)
        return NULL;
    for (int32_t w = find->wait_count - 1; w >= 0; w--)
        if (find->wait[w].id == sought.id && find->wait[w].number == sought.number &&
            find->wait[w].peer == sought.peer)
            return &find->wait[w];
    int32_t count = find_missing(find, &sought);
    sought.missing = count > 0;
    if (count == 0)
        count = find_unfinished(find, &sought);
    sought.late = find_set(find->status, find->scratch, count);
    find->wait[find->wait_count] = sought;
    return &find->wait[find->wait_count++];
}

/* The ranks that are late for the call that rank r waits for: those that have not made it, else
 * those that have and do something else, else the one that the communicator has noted. */
static void find_late(struct find *find, int32_t r)
{
    struct tess__status *status = find->status;
    struct tess__status_rank *rank = &status->rank[r];
    const struct find_wait *wait = find_wait_of(find, rank);
    const int32_t noted = rank->file->now.board.waits_for;
    rank->calls_missing = wait != NULL && wait->missing;
    rank->waits_for = wait != NULL ? wait->late : NULL;
    if (rank->waits_for == NULL && noted >= 0 && noted < status->rank_count && noted != r)
        rank->waits_for = find_set(status, &noted, 1);
}

/* A rank that is gone or stopped waits for nobody, whatever it waited for before. */
static const struct tess__status_set *find_waited_for(const struct tess__status *status, int32_t r)
{
    const enum tess__status_life life = status->rank[r].life;
    return life == TESS__LIFE_DEAD || life == TESS__LIFE_STOPPED ? NULL : status->rank[r].waits_for;
}

/* All ranks that those of a set are or wait for, over others too: status->in, and a list in
 * find->scratch of so many. */
static int32_t find_reach(const struct find *find, const struct tess__status_set *from)
{
    struct tess__status *status = find->status;
    int32_t count = 0;
    memset(status->in, 0, (size_t)status->rank_count * sizeof(*status->in));
    memset(find->seen, 0, (size_t)status->set_count * sizeof(*find->seen));
    for (int32_t at = -1; at < count; at++) {
        const struct tess__status_set *next =
            at < 0 ? from : find_waited_for(status, find->scratch[at]);
        if (next == NULL || find->seen[next->number])
            continue;
        find->seen[next->number] = true;
        for (int32_t i = 0; i < next->count; i++)
            if (!status->in[next->rank[i]]) {
                status->in[next->rank[i]] = true;
                find->scratch[count++] = next->rank[i];
            }
    }
    return count;
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

/* How many ranks wait for each rank that waits for nobody, over others too; and who waits for
 * itself. Ranks that share a set are counted at once. */
static void find_count(struct find *find, const int32_t *sharers, int32_t *by, bool *in_turns)
{
    struct tess__status *status = find->status;
    for (int32_t s = 0, sets = status->set_count; s < sets; s++) {
        const int32_t count = sharers[s] > 0 ? find_reach(find, status->set[s]) : 0;
        for (int32_t i = 0; i < count; i++) {
            const struct tess__status_set *next = find_waited_for(status, find->scratch[i]);
            if (next == NULL)
                by[find->scratch[i]] += sharers[s];
            else if (next == status->set[s])
                in_turns[find->scratch[i]] = true;
        }
    }
}

/* The ranks that wait for `rank`, over others too. */
static const struct tess__status_set *find_waiting(struct find *find, int32_t rank, bool *waits)
{
    struct tess__status *status = find->status;
    for (int32_t s = 0, sets = status->set_count; s < sets; s++) {
        (void)find_reach(find, status->set[s]);
        for (int32_t r = 0; r < status->rank_count && status->in[rank]; r++)
            if (find_waited_for(status, r) == status->set[s])
                waits[r] = true;
    }
    memcpy(status->in, waits, (size_t)status->rank_count * sizeof(*waits));
    return find_set_of(status, find->scratch);
}

static void find_last(struct find *find)
{
    struct tess__status *status = find->status;
    const size_t ranks = (size_t)status->rank_count;
    int32_t *sharers = calloc((size_t)status->set_count + ranks + 1, sizeof(*sharers));
    bool *in_turns = calloc(2 * ranks, sizeof(*in_turns));
    int32_t *by = sharers != NULL ? sharers + status->set_count : NULL;
    int32_t best = -1;
    if (sharers == NULL || in_turns == NULL)
        goto end;
    for (int32_t r = 0; r < status->rank_count; r++)
        if (find_waited_for(status, r) != NULL)
            sharers[find_waited_for(status, r)->number]++;
    find_count(find, sharers, by, in_turns);
    for (int32_t s = 0; s < status->rank_count; s++) {
        const int32_t weight = 4 * by[s] + find_weight(status->rank[s].life);
        if (by[s] == 0 || weight <= best)
            continue;
        best = weight;
        status->late = s;
    }
    if (status->late >= 0) {
        status->waiting = find_waiting(find, status->late, in_turns + ranks);
    } else {
        memcpy(status->in, in_turns, ranks * sizeof(*in_turns));
        status->in_turns = find_set_of(status, find->scratch);
    }

end:
    free(sharers);
    free(in_turns);
}

/* ---- calls that differ ----------------------------------------------------------------------- */

static bool find_same(const struct tess_flight_call *a, const struct tess_flight_call *b)
{
    return a->collective == b->collective && a->bytes == b->bytes && a->dtype == b->dtype &&
           a->peer == b->peer;
}

/* When the first of the records [begin, end) of one call was made; INFINITY: they do not differ. */
static double find_when(const struct find *find, size_t begin, size_t end)
{
    double first_s = INFINITY;
    bool differs = false;
    for (size_t i = begin; i < end; i++) {
        const struct find_call *one = &find->call[i];
        differs = differs || !find_same(one->call, find->call[begin].call);
        first_s = fmin(first_s, one->call->begin_s +
                                    find->status->rank[one->rank].file->head.clock_offset_s);
    }
    return differs ? first_s : INFINITY;
}

static void find_keep(struct find *find, size_t begin, size_t end)
{
    struct tess__status_differs *differs = &find->status->differs;
    differs->of = calloc(end - begin, sizeof(*differs->of));
    if (differs->of == NULL)
        return;
    differs->number = find->call[begin].number;
    differs->axis = find->call[begin].axis;
    for (size_t i = begin; i < end; i++)
        if (i == begin || find->call[i].rank != find->call[i - 1].rank) {
            differs->of[differs->rank_count].rank = find->call[i].rank;
            differs->of[differs->rank_count++].call = find->call[i].call;
        }
}

/* The earliest of all calls that differ. */
static void find_differs(struct find *find)
{
    double earliest_s = INFINITY;
    size_t found = 0, found_end = 0;
    for (size_t begin = 0, end; begin < find->call_count; begin = end) {
        for (end = begin + 1; end < find->call_count &&
                              find->call[end].id == find->call[begin].id &&
                              find->call[end].number == find->call[begin].number;)
            end++;
        const double when_s = find_when(find, begin, end);
        if (when_s >= earliest_s)
            continue;
        earliest_s = when_s;
        found = begin;
        found_end = end;
    }
    if (found_end > 0)
        find_keep(find, found, found_end);
}

void tess__status_find(struct tess__status *status)
{
    const size_t ranks = (size_t)status->rank_count;
    if (ranks == 0)
        return;
    struct find find = {.status = status,
                        .scratch = calloc(ranks + 1, sizeof(*find.scratch)),
                        .wait = calloc(ranks + 1, sizeof(*find.wait))};
    find_list_groups(status);
    find_list_calls(&find);
    if (find.scratch != NULL && find.wait != NULL) {
        for (int32_t r = 0; r < status->rank_count; r++)
            status->rank[r].waits = find_waits(status, &status->rank[r]);
        for (int32_t r = 0; r < status->rank_count; r++)
            if (status->rank[r].waits != NULL)
                find_late(&find, r);
        find.seen = calloc((size_t)status->set_count + 1, sizeof(*find.seen));
        if (find.seen != NULL)
            find_last(&find);
        find_differs(&find);
    }
    free(find.scratch);
    free(find.wait);
    free(find.seen);
    free(find.call);
}
