/*
 * The exact search of one ring: up to 16 devices, branch and bound.
 *
 * A ring carries b GB/s when no shared capacity c is used more than floor(c / b) times, so the
 * best bandwidth is one of the numbers c / u. They are halved between a ring that is known and what
 * no ring exceeds; each question "is there a ring of b?" is a walk through all orders that stops at
 * the first dead end: a hop too narrow, a capacity used up, a device that can no longer be reached
 * or left, or a state (devices visited, the last of them, capacities used) that was met before.
 * With b found, the same walk looks for the fewest crossings, and meets orders by their numbers, so
 * that of equal ones the first is kept. The walk counts its steps: the answer does not depend on
 * the machine's speed.
 */
#include "base/clock.h"
#include "base/hash.h"
#include "tessera/check.h"
#include "topology/rings/ring_room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEARCH_MEMO_MAX ((uint32_t)1 << 17)
#define SEARCH_PROBES   8
#define SEARCH_WORDS    8 /* of 12 counters of 5 bits */
#define SEARCH_FIELDS   12
#define SEARCH_GUARD    0x0842108421084210u /* bit 4 of each counter */

/* Counters begin at 15 - limit, so that one use too many reaches the guard bit. */
struct search_uses {
    uint64_t word[SEARCH_WORDS];
};

struct search_memo {
    uint32_t epoch; /* of another question: empty */
    uint32_t place; /* devices visited, and the last of them in the upper half */
    int64_t cost;
    struct search_uses uses;
};

struct search {
    const struct tess__ring_table *table;
    const double *gbs;
    double deadline_s;
    int32_t count;
    /* Of the question at hand. */
    uint32_t leave[TESS__RING_EXACT_MAX], enter[TESS__RING_EXACT_MAX]; /* hops allowed, by bits */
    struct search_uses hop[TESS__RING_EXACT_MAX * TESS__RING_EXACT_MAX];
    int32_t words;
    bool relaxed; /* more shared rows than counters: what is found is checked, nothing is proved */
    /* Groups of devices that hops cheaper than a level's weight keep together, costliest level
     * first.
     */
    uint32_t group[4][TESS__RING_EXACT_MAX];
    int32_t groups[4];
    bool cheapest; /* look for the fewest crossings, not just for any ring */
    int64_t best_cost;
    bool found, stopped;
    int32_t path[TESS__RING_EXACT_MAX], best[TESS__RING_EXACT_MAX];
    int64_t steps, most_steps;
    uint32_t epoch;
    struct search_memo *memo; /* [memo_slots] */
    uint32_t memo_slots;      /* a power of two */
    struct search_row *row;   /* [rows] scratch of a question */
    double *candidate;        /* [rows * count] */
    int32_t *uses;            /* [rows] zero */
};

/* ---- preparing a question -------------------------------------------------------------------- */

static int32_t search_limit(const struct search *search, int32_t row, double gbs)
{
    double limit = floor(search->gbs[row] / gbs * (1 + TESS__RING_NEAR));
    return limit < 1000 ? (int32_t)limit : 1000;
}

static void search_allow(struct search *search, double gbs)
{
    const struct tess__ring_table *table = search->table;
    memset(search->leave, 0, sizeof(search->leave));
    memset(search->enter, 0, sizeof(search->enter));
    for (int32_t h = 0; h < search->count * search->count; h++) {
        int32_t from = h / search->count, to = h % search->count;
        bool allowed = from != to && table->cost[h] >= 0;
        for (int32_t k = table->first[h]; k < table->first[h + 1] && allowed; k++)
            allowed = search_limit(search, table->row[k], gbs) > 0;
        if (allowed) {
            search->leave[from] |= 1u << to;
            search->enter[to] |= 1u << from;
        }
    }
}

/* A shared capacity that a ring could use too often. */
struct search_row {
    uint32_t hop[TESS__RING_EXACT_MAX]; /* by the device it leaves: to which, by bits */
    int32_t row, limit;
};

/* Every ring uses it at most as often as devices send over it, and as devices receive. */
static bool search_row_binds(const struct search_row *row, int32_t count)
{
    int32_t senders = 0;
    uint32_t receivers = 0;
    for (int32_t i = 0; i < count; i++) {
        senders += row->hop[i] != 0;
        receivers |= row->hop[i];
    }
    int32_t most = __builtin_popcount(receivers);
    return row->limit < (senders < most ? senders : most);
}

/* Is every hop of `row` one of `other`, which allows no more? */
static bool search_row_within(const struct search_row *row, const struct search_row *other,
                              int32_t count)
{
    if (other->limit > row->limit)
        return false;
    for (int32_t i = 0; i < count; i++) {
        if (row->hop[i] & ~other->hop[i])
            return false;
    }
    return true;
}

/* The rows to be counted; those that another one covers are left out. Returns how many. */
static int32_t search_binding_rows(const struct search *search, double gbs, struct search_row *list)
{
    const struct tess__ring_table *table = search->table;
    int32_t rows = 0, kept = 0;
    for (int32_t r = 0; r < table->rows; r++)
        list[r] = (struct search_row){.row = r, .limit = search_limit(search, r, gbs)};
    for (int32_t h = 0; h < search->count * search->count; h++) {
        int32_t from = h / search->count, to = h % search->count;
        if (!(search->leave[from] >> to & 1))
            continue;
        for (int32_t k = table->first[h]; k < table->first[h + 1]; k++)
            list[table->row[k]].hop[from] |= 1u << to;
    }
    for (int32_t r = 0; r < table->rows; r++) {
        if (search_row_binds(&list[r], search->count))
            list[rows++] = list[r];
    }
    for (int32_t r = 0; r < rows; r++) {
        bool covered = false;
        for (int32_t q = 0; q < rows && !covered; q++) {
            /* Of two that cover each other, the first stays. */
            covered = q != r && search_row_within(&list[r], &list[q], search->count) &&
                      (q < r || !search_row_within(&list[q], &list[r], search->count));
        }
        if (!covered)
            list[kept++] = list[r];
    }
    return kept;
}

/* Counters for the rows, and what each hop adds to them. */
static void search_count_rows(struct search *search, const struct search_row *list, int32_t rows,
                              struct search_uses *start)
{
    memset(search->hop, 0, sizeof(search->hop));
    memset(start, 0, sizeof(*start));
    search->relaxed = rows > SEARCH_WORDS * SEARCH_FIELDS;
    if (search->relaxed)
        rows = SEARCH_WORDS * SEARCH_FIELDS;
    search->words = (rows + SEARCH_FIELDS - 1) / SEARCH_FIELDS;
    for (int32_t r = 0; r < rows; r++) {
        int word = r / SEARCH_FIELDS, shift = r % SEARCH_FIELDS * 5;
        start->word[word] += (uint64_t)(15 - list[r].limit) << shift;
        for (int32_t from = 0; from < search->count; from++) {
            for (int32_t to = 0; to < search->count; to++) {
                if (list[r].hop[from] >> to & 1)
                    search->hop[from * search->count + to].word[word] += (uint64_t)1 << shift;
            }
        }
    }
}

static const int64_t search_weight[4] = {TESS__RING_COST_NET, TESS__RING_COST_SYS,
                                         TESS__RING_COST_PHB, TESS__RING_COST_PXB};

/* Devices that allowed hops of less than the weight connect, in either direction. */
static void search_make_groups(struct search *search)
{
    for (int level = 0; level < 4; level++) {
        search->groups[level] = 0;
        uint32_t left = (1u << search->count) - 1;
        while (left) {
            uint32_t group = left & -left, before = 0;
            while (group != before) {
                before = group;
                for (int32_t h = 0; h < search->count * search->count; h++) {
                    int32_t from = h / search->count, to = h % search->count;
                    if (search->leave[from] >> to & 1 &&
                        search->table->cost[h] < search_weight[level] &&
                        (before >> from & 1 || before >> to & 1))
                        group |= 1u << from | 1u << to;
                }
            }
            search->group[level][search->groups[level]++] = group;
            left &= ~group;
        }
    }
}

/* ---- pruning -------------------------------------------------------------------------------- */

/*
 * The least weight of the hops from `last` through all of `left` back to device 0: with g groups to
 * be seen there are at least g - 1 hops of the level's weight or more, and g where the first and
 * the last are of one group. A hop of a costlier level is one of each cheaper level too.
 */
static int64_t search_least_cost(const struct search *search, int32_t last, uint32_t left)
{
    uint32_t ends = 1u | 1u << last, all = left | ends;
    int64_t cost = 0;
    int32_t costlier = 0;
    for (int level = 0; level < 4; level++) {
        int32_t seen = 0;
        bool same = false;
        for (int32_t g = 0; g < search->groups[level]; g++) {
            uint32_t group = search->group[level][g];
            seen += (group & all) != 0;
            same |= (group & ends) == ends;
        }
        int32_t hops = seen > 1 ? seen - 1 + same : 0;
        if (hops > costlier) {
            cost += (hops - costlier) * search_weight[level];
            costlier = hops;
        }
    }
    return cost;
}

/* Can all of `left` be reached from `last`, entered and left again on the way to device 0? */
static bool search_can_end(const struct search *search, int32_t last, uint32_t left)
{
    uint32_t from = left | 1u << last, to = left | 1u;
    if (!(search->leave[last] & (left ? left : 1u)) || !(search->enter[0] & (left ? left : from)))
        return false;
    uint32_t reached = search->leave[last] & left, grown = reached;
    for (uint32_t rest = left; rest; rest &= rest - 1) {
        int32_t node = __builtin_ctz(rest);
        uint32_t self = 1u << node;
        if (!(search->enter[node] & from & ~self) || !(search->leave[node] & to & ~self))
            return false;
    }
    while (grown) {
        uint32_t next = 0;
        for (; grown; grown &= grown - 1)
            next |= search->leave[__builtin_ctz(grown)];
        grown = next & left & ~reached;
        reached |= grown;
    }
    return reached == left;
}

/* Was the state met before, at no more cost? If not it is noted, where there is room for it. */
static bool search_met(struct search *search, uint32_t place, int64_t cost,
                       const struct search_uses *uses)
{
    size_t bytes = (size_t)search->words * sizeof(uses->word[0]);
    uint64_t hash = place;
    for (int32_t w = 0; w < search->words; w++)
        hash = tess_hash_mix(hash ^ uses->word[w]);
    hash = tess_hash_mix(hash);
    for (uint32_t probe = 0; probe < SEARCH_PROBES; probe++) {
        struct search_memo *memo = &search->memo[(hash + probe) & (search->memo_slots - 1)];
        if (memo->epoch != search->epoch) {
            memo->epoch = search->epoch;
            memo->place = place;
            memo->cost = cost;
            memcpy(memo->uses.word, uses->word, bytes);
            return false;
        }
        if (memo->place == place && memcmp(memo->uses.word, uses->word, bytes) == 0) {
            if (memo->cost <= cost)
                return true;
            memo->cost = cost;
            return false;
        }
    }
    return false;
}

/* ---- the walk ------------------------------------------------------------------------------- */

static bool search_add(const struct search *search, const struct search_uses *uses, int32_t hop,
                       struct search_uses *sum)
{
    uint64_t guard = 0;
    for (int32_t w = 0; w < search->words; w++) {
        sum->word[w] = uses->word[w] + search->hop[hop].word[w];
        guard |= sum->word[w] & SEARCH_GUARD;
    }
    return guard == 0;
}

/* path[0 .. depth) is gone, the others are in `left`. */
static void search_walk(struct search *search, int32_t depth, uint32_t left,
                        const struct search_uses *uses, int64_t cost)
{
    int32_t last = search->path[depth - 1];
    if (++search->steps > search->most_steps ||
        (search->deadline_s > 0 && search->steps % 4096 == 0 &&
         tess_clock_s() > search->deadline_s)) {
        search->stopped = true;
        return;
    }
    struct search_uses sum;
    for (uint32_t next = search->leave[last] & (left ? left : 1u); next; next &= next - 1) {
        int32_t to = __builtin_ctz(next);
        int32_t hop = last * search->count + to;
        if (!search_add(search, uses, hop, &sum))
            continue;
        int64_t with = search->cheapest ? cost + search->table->cost[hop] : 0;
        if (!left) {
            if (search->cheapest && with >= search->best_cost)
                continue;
            search->found = true;
            search->best_cost = with;
            memcpy(search->best, search->path, sizeof(search->best));
            return;
        }
        uint32_t after = left & ~(1u << to);
        if (search->cheapest && with + search_least_cost(search, to, after) >= search->best_cost)
            continue;
        if (!search_can_end(search, to, after) ||
            search_met(search, (uint32_t)to << 16 | after, with, &sum))
            continue;
        search->path[depth] = to;
        search_walk(search, depth + 1, after, &sum, with);
        if (search->stopped || (search->found && !search->cheapest))
            return;
    }
}

/*
 * Is there a ring of `gbs`? With `cheapest`: the one of fewest crossings below best_cost. The walk
 * was cut short where `stopped` is set.
 */
static void search_try(struct search *search, double gbs, bool cheapest)
{
    struct search_uses start;
    search_allow(search, gbs);
    int32_t rows = search_binding_rows(search, gbs, search->row);
    search_count_rows(search, search->row, rows, &start);
    if (cheapest)
        search_make_groups(search);
    search->cheapest = cheapest;
    search->found = false;
    search->epoch++;
    search->path[0] = 0;
    uint32_t left = ((1u << search->count) - 1) & ~1u;
    if (search_can_end(search, 0, left))
        search_walk(search, 1, left, &start, 0);
}

/* ---- the search ----------------------------------------------------------------------------- */

static int search_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* All c / u in (above, most], rising, into search->candidate. Returns how many. */
static int32_t search_candidates(const struct search *search, double above, double most)
{
    double *value = search->candidate;
    int32_t count = 0;
    for (int32_t r = 0; r < search->table->rows; r++) {
        for (int32_t u = 1; u <= search->count; u++) {
            double gbs = search->gbs[r] / u;
            if (gbs > above * (1 + TESS__RING_NEAR) && gbs <= most * (1 + TESS__RING_NEAR))
                value[count++] = gbs;
        }
    }
    qsort(value, (size_t)count, sizeof(*value), search_compare);
    int32_t kept = 0;
    for (int32_t i = 0; i < count; i++) {
        if (kept == 0 || value[i] > value[kept - 1] * (1 + TESS__RING_NEAR))
            value[kept++] = value[i];
    }
    return kept;
}

/* Takes the ring that was found where it is better. */
static void search_take(struct search *search, int32_t *order, struct tess__ring_found *found)
{
    int64_t cost = 0;
    double gbs =
        tess__ring_table_gbs(search->table, search->gbs, search->best, search->uses, &cost);
    if (gbs < found->gbs * (1 - TESS__RING_NEAR) ||
        (gbs <= found->gbs * (1 + TESS__RING_NEAR) && cost > found->cost))
        return;
    memcpy(order, search->best, (size_t)search->count * sizeof(*order));
    found->gbs = gbs;
    found->cost = cost;
}

/* For few devices as many as there are states, (count - 1)! orders and what they begin with, and
 * room between them. */
static uint32_t search_memo_slots(int32_t count)
{
    uint64_t states = 16;
    for (int32_t i = 2; i < count && states < SEARCH_MEMO_MAX; i++)
        states *= (uint64_t)i;
    uint32_t slots = 16;
    while (slots < states && slots < SEARCH_MEMO_MAX)
        slots *= 2;
    return slots;
}

/* Halves the candidates until the best bandwidth is known, or a question stays open. */
static void search_halve(struct search *search, int32_t *order, struct tess__ring_found *found)
{
    const double *value = search->candidate;
    int32_t high = search_candidates(search, found->gbs, found->bound_gbs);
    /* Rings of value[0 .. low) exist, of value[high ..] do not. The highest is tried first: where
     * the bound is met, nothing else need be tried. */
    int32_t low = 0;
    bool open = false;
    for (int32_t tried = high - 1; low < high && !open; tried = (low + high) / 2) {
        search_try(search, value[tried], false);
        if (search->found)
            search_take(search, order, found);
        if (search->found && found->gbs >= value[tried] * (1 - TESS__RING_NEAR)) {
            low = tried + 1;
            while (low < high && value[low] <= found->gbs * (1 + TESS__RING_NEAR))
                low++;
        } else if (!search->found && !search->stopped) {
            high = tried;
        } else {
            open = true;
        }
    }
    found->proved = !open;
    found->bound_gbs = open ? fmax(value[high - 1], found->gbs) : found->gbs;
}

enum tess_status tess__ring_search(const struct tess__ring_table *table, const double *gbs,
                                   const struct tess__ring_effort *effort, int32_t *order,
                                   struct tess__ring_found *found_out)
{
    const size_t rows = (size_t)table->rows;
    const uint32_t slots = search_memo_slots(table->count);
    struct tess__pool pool = {0};
    struct search *search = tess__pool_array(&pool, 1, sizeof(*search));
    *found_out = (struct tess__ring_found){0};
    if (search) {
        *search = (struct search){
            .table = table,
            .gbs = gbs,
            .deadline_s = effort->deadline_s,
            .count = table->count,
            .most_steps = effort->steps,
            .memo = tess__pool_array(&pool, slots, sizeof(*search->memo)),
            .memo_slots = slots,
            .row = tess__pool_array(&pool, rows, sizeof(*search->row)),
            .candidate = tess__pool_array(&pool, rows * (size_t)table->count, sizeof(double)),
            .uses = tess__pool_array(&pool, rows, sizeof(*search->uses))};
    }
    if (pool.failed) {
        tess__pool_release(&pool);
        return tess__no_memory("the search of rings");
    }
    found_out->gbs = tess__ring_table_gbs(table, gbs, order, search->uses, &found_out->cost);
    found_out->bound_gbs = tess__ring_single_bound(table, gbs);
    search_halve(search, order, found_out);
    if (found_out->gbs > 0) {
        search->best_cost = found_out->cost + 1;
        search_try(search, found_out->gbs, true);
        if (search->found)
            search_take(search, order, found_out);
        found_out->proved = found_out->proved && !search->stopped && !search->relaxed;
    }
    tess__pool_release(&pool);
    return TESS_OK;
}
