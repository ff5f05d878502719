/*
 * One ring of more devices than can be searched exactly: hosts, then sockets, then switches are
 * kept together, as every crossing between them costs; each block's own ring is searched exactly,
 * opened where that is best for the whole, and the blocks follow each other.
 */
#include "tessera/check.h"
#include "topology/rings/ring_room.h"

#include <stdlib.h>
#include <string.h>

#define LARGE_PASSES      3   /* over the blocks, opening each again */
#define LARGE_DEVICES_MAX 128 /* as routes have */
#define LARGE_WORK        30  /* capacities read for a step of the effort */

struct large {
    const struct tess__ring_table *table;
    const double *gbs;
    const struct tess__ring_effort *effort; /* for each block */
    int32_t *uses;                          /* [rows] scratch, zero */
    int32_t *group;                         /* [count] scratch: groups of the level */
    int32_t *order;                         /* [count] the ring that is built */
    int32_t *trial;                         /* [count] */
    int32_t *start;                         /* [count + 1] where blocks begin in order */
    int32_t blocks;
};

static const int64_t large_weight[] = {TESS__RING_COST_NET, TESS__RING_COST_SYS,
                                       TESS__RING_COST_PHB, TESS__RING_COST_PXB};
#define LARGE_LEVELS 4

/* ---- blocks --------------------------------------------------------------------------------- */

/*
 * order[first .. first + count) into groups that hops of less than the level's weight connect, each
 * in the order it had, and these into those of the next level while they are too large.
 */
static void large_split(struct large *large, int32_t first, int32_t count, int level)
{
    if (count <= TESS__RING_EXACT_MAX || level == LARGE_LEVELS) {
        large->start[large->blocks++] = first;
        return;
    }
    int32_t *part = large->order + first, *group = large->group + first, *sorted = large->trial;
    for (int32_t i = 0; i < count; i++)
        group[i] = i;
    for (int32_t h = 0; h < count * count; h++) {
        int64_t cost = large->table->cost[part[h / count] * large->table->count + part[h % count]];
        int32_t a = tess__root(group, h / count), b = tess__root(group, h % count);
        if (cost >= 0 && cost < large_weight[level])
            group[a > b ? a : b] = a < b ? a : b;
    }
    int32_t size[LARGE_DEVICES_MAX] = {0}, kept = 0;
    for (int32_t g = 0; g < count; g++) {
        for (int32_t i = 0; i < count; i++) {
            if (tess__root(group, i) != g)
                continue;
            sorted[kept++] = part[i];
            size[g]++;
        }
    }
    memcpy(part, sorted, (size_t)count * sizeof(*part));
    for (int32_t g = 0; g < count; g++) {
        if (size[g] > 0)
            large_split(large, first, size[g], level + 1);
        first += size[g];
    }
}

/* The block's best own ring, in place. */
static enum tess_status large_solve_block(struct large *large, int32_t first, int32_t count)
{
    if (count < 3 || count > TESS__RING_EXACT_MAX)
        return TESS_OK;
    struct tess__ring_table part;
    struct tess__ring_found found;
    int32_t order[TESS__RING_EXACT_MAX], device[TESS__RING_EXACT_MAX];
    memcpy(device, large->order + first, (size_t)count * sizeof(*device));
    for (int32_t i = 0; i < count; i++)
        order[i] = i;
    TESS_TRY(tess__ring_table_part(large->table, device, count, &part));
    enum tess_status status = tess__ring_search(&part, large->gbs, large->effort, order, &found);
    tess__ring_table_free(&part);
    for (int32_t i = 0; i < count; i++)
        large->order[first + i] = device[order[i]];
    return status;
}

/* ---- opening the blocks' rings --------------------------------------------------------------- */

/* How good an order is. Many hosts of one make are each as narrow as the others: that one of them
 * became wider shows in `tight` alone. */
struct large_worth {
    double gbs;
    int32_t tight; /* capacities that allow no more than gbs */
    int64_t cost;
};

static struct large_worth large_judge(struct large *large, const int32_t *order)
{
    const struct tess__ring_table *table = large->table;
    struct large_worth worth = {0};
    worth.gbs = tess__ring_table_gbs(table, large->gbs, order, large->uses, &worth.cost);
    tess__ring_table_add(table, order, large->uses);
    for (int32_t r = 0; r < table->rows; r++) {
        worth.tight += large->uses[r] > 0 &&
                       large->gbs[r] <= large->uses[r] * worth.gbs * (1 + TESS__RING_NEAR);
        large->uses[r] = 0;
    }
    return worth;
}

static bool large_is_better(const struct large_worth *a, const struct large_worth *b)
{
    if (a->gbs > b->gbs * (1 + TESS__RING_NEAR) || a->gbs < b->gbs * (1 - TESS__RING_NEAR))
        return a->gbs > b->gbs;
    return a->tight != b->tight ? a->tight < b->tight : a->cost < b->cost;
}

/* All ways to open one block's ring, in both directions. True where one was better. */
static bool large_turn_block(struct large *large, int32_t first, int32_t count,
                             struct large_worth *worth)
{
    int32_t original[LARGE_DEVICES_MAX];
    bool better = false;
    memcpy(original, large->order + first, (size_t)count * sizeof(*original));
    memcpy(large->trial, large->order, (size_t)large->table->count * sizeof(*large->trial));
    for (int32_t turn = 0; turn < 2 * count; turn++) {
        for (int32_t i = 0; i < count; i++) {
            int32_t from = turn < count ? turn + i : 4 * count - 1 - turn - i;
            large->trial[first + i] = original[from % count];
        }
        struct large_worth turned = large_judge(large, large->trial);
        if (!large_is_better(&turned, worth))
            continue;
        memcpy(large->order, large->trial, (size_t)large->table->count * sizeof(*large->order));
        *worth = turned;
        better = true;
    }
    return better;
}

/* ---- single devices ------------------------------------------------------------------------- */

/* trial: order with the device of one place at another. */
static void large_move(struct large *large, int32_t from, int32_t to)
{
    int32_t count = large->table->count, kept = 0;
    for (int32_t i = 0; i < count; i++) {
        if (i == from)
            continue;
        if (kept == to)
            kept++;
        large->trial[kept++] = large->order[i];
    }
    large->trial[to] = large->order[from];
}

/* Puts one device elsewhere as long as that helps, a limited number of times: where every pair has
 * its own link, blocks do not help, and further rings must avoid what the first ones use. */
static void large_refine(struct large *large, double bound_gbs, struct large_worth *worth)
{
    int32_t count = large->table->count;
    int64_t work = 0, most = LARGE_WORK * large->effort->steps,
            each = 4 * count + large->table->rows;
    bool better = true;
    while (better && worth->gbs < bound_gbs * (1 - TESS__RING_NEAR)) {
        better = false;
        for (int32_t move = 0; move < count * count && work < most; move++) {
            int32_t from = move / count, to = move % count;
            if (from == to)
                continue;
            large_move(large, from, to);
            struct large_worth moved = large_judge(large, large->trial);
            work += each;
            if (!large_is_better(&moved, worth))
                continue;
            memcpy(large->order, large->trial, (size_t)count * sizeof(*large->order));
            *worth = moved;
            better = true;
        }
    }
}

/* ---- the search ----------------------------------------------------------------------------- */

static enum tess_status large_build(struct large *large, struct large_worth *worth)
{
    int32_t count = large->table->count;
    for (int32_t i = 0; i < count; i++)
        large->order[i] = i;
    large_split(large, 0, count, 0);
    large->start[large->blocks] = count;
    for (int32_t b = 0; b < large->blocks; b++)
        TESS_TRY(large_solve_block(large, large->start[b], large->start[b + 1] - large->start[b]));
    *worth = large_judge(large, large->order);
    bool better = true;
    for (int pass = 0; pass < LARGE_PASSES && better; pass++) {
        better = false;
        for (int32_t b = 0; b < large->blocks; b++)
            better |= large_turn_block(large, large->start[b],
                                       large->start[b + 1] - large->start[b], worth);
    }
    return TESS_OK;
}

/* Begins with device 0. */
static void large_hand_out(const struct large *large, int32_t *order)
{
    int32_t count = large->table->count, zero = 0;
    while (large->order[zero] != 0)
        zero++;
    for (int32_t i = 0; i < count; i++)
        order[i] = large->order[(zero + i) % count];
}

enum tess_status tess__ring_improve(const struct tess__ring_table *table, const double *gbs,
                                    const struct tess__ring_effort *effort, int32_t *order,
                                    struct tess__ring_found *found_out)
{
    size_t count = (size_t)table->count;
    struct large large = {.table = table, .gbs = gbs, .effort = effort};
    struct large_worth built = {0}, given;
    struct tess__pool pool = {0};
    enum tess_status status = TESS_OK;
    large.uses = tess__pool_array(&pool, (size_t)table->rows, sizeof(*large.uses));
    large.group = tess__pool_array(&pool, count, sizeof(*large.group));
    large.order = tess__pool_array(&pool, count, sizeof(*large.order));
    large.trial = tess__pool_array(&pool, count, sizeof(*large.trial));
    large.start = tess__pool_array(&pool, count, sizeof(*large.start));
    TESS_TRY_GOTO(status, done, pool.failed ? tess__no_memory("the search of rings") : TESS_OK);
    *found_out = (struct tess__ring_found){.bound_gbs = tess__ring_single_bound(table, gbs)};
    given = large_judge(&large, order);
    TESS_TRY_GOTO(status, done, large_build(&large, &built));
    if (!large_is_better(&built, &given)) {
        built = given;
        memcpy(large.order, order, count * sizeof(*order));
    }
    large_refine(&large, found_out->bound_gbs, &built);
    if (large_is_better(&built, &given)) {
        given = built;
        large_hand_out(&large, order);
    }
    found_out->gbs = given.gbs;
    found_out->cost = given.cost;
    found_out->proved = found_out->gbs >= found_out->bound_gbs * (1 - TESS__RING_NEAR);
done:
    tess__pool_release(&pool);
    return status;
}
