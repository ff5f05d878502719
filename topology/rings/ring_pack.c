/*
 * Several rings at once: the most bandwidth that rings carry together over shared capacities.
 *
 * With x the bandwidths of rings, of which there are (n - 1)!: greatest sum of x so that no
 * capacity is passed. Solved by the revised simplex method with generated columns (Gilmore and
 * Gomory 1961): the prices y of the capacities make each ring cost the sum of y over its hops, and
 * the cheapest ring, found exactly by dynamic programming over sets of devices (Held and Karp
 * 1962), either costs less than 1 and joins, or proves that no set of rings is better. At any time
 * sum of c y / cost of the cheapest ring is a bound, so that stopping early only widens the gap.
 *
 * Of rings that would gain less than PACK_WORTH of the total none is kept: each ring costs
 * its user buffers and threads.
 */
#include "base/clock.h"
#include "tessera/check.h"
#include "topology/rings/ring_room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PACK_COLUMNS_MAX 512
#define PACK_PIVOTS_MAX  20000
#define PACK_WORK_MAX    220000000 /* additions until the search for rings ends */
#define PACK_WORK_END    235000000 /* and until the thinning ends: a tenth of a second */
#define PACK_WORTH       0.02      /* of the total: what may be lost for fewer rings */
#define PACK_EPSILON     1e-9
#define PACK_LESS        1e-6 /* of a capacity: by how much less it is taken while pivoting */
#define PACK_DENSE       8    /* of a line's entries one in so many: whole lines are faster */
#define PACK_NEAR_FROM   9    /* devices: up to here the exact search of a ring takes no time */

struct pack {
    struct tess__pool pool;
    const struct tess__ring_table *table;
    double deadline_s;
    int32_t count, rows;
    double *gbs; /* [rows] capacities, each a little smaller than it is: no two are tied */
    /* Rings met so far. */
    int32_t columns;
    int32_t (*order)[TESS__RING_EXACT_MAX]; /* [PACK_COLUMNS_MAX] */
    int32_t *uses;                          /* [PACK_COLUMNS_MAX * rows] */
    bool *active;                           /* [PACK_COLUMNS_MAX] may have bandwidth */
    double *x;                              /* [PACK_COLUMNS_MAX] the answer */
    /* Simplex. A basic variable is a column, or row r left over: -1 - r. */
    int32_t *basic;   /* [rows] */
    double *inverse;  /* [rows * rows] of the basis */
    double *value;    /* [rows] of the basic variables */
    double *price;    /* [rows] y */
    double *positive; /* [rows] y where it is above 0, else 0 */
    double *step;     /* [rows] change of the basic variables as the new one enters */
    int32_t *list;    /* [rows] scratch */
    double bound;     /* least bound met */
    int64_t work;     /* additions so far */
    /* Dynamic programming: [2^(count-1)], devices 1 .. count-1 in the sets. */
    double (*best)[TESS__RING_EXACT_MAX];
    int8_t (*before)[TESS__RING_EXACT_MAX];
    double *hop; /* [count * count] costs */
};

static enum tess_status pack_open(struct pack *pack, const struct tess__ring_table *table,
                                  double deadline_s)
{
    size_t rows = (size_t)table->rows, count = (size_t)table->count;
    size_t states = (size_t)1 << (count - 1);
    *pack = (struct pack){.table = table,
                          .deadline_s = deadline_s,
                          .count = table->count,
                          .rows = table->rows,
                          .bound = INFINITY};
    pack->gbs = tess__pool_array(&pack->pool, rows, sizeof(*pack->gbs));
    pack->order = tess__pool_array(&pack->pool, PACK_COLUMNS_MAX, sizeof(*pack->order));
    pack->uses = tess__pool_array(&pack->pool, PACK_COLUMNS_MAX * rows, sizeof(*pack->uses));
    pack->active = tess__pool_array(&pack->pool, PACK_COLUMNS_MAX, sizeof(*pack->active));
    pack->x = tess__pool_array(&pack->pool, PACK_COLUMNS_MAX, sizeof(*pack->x));
    pack->basic = tess__pool_array(&pack->pool, rows, sizeof(*pack->basic));
    pack->inverse = tess__pool_array(&pack->pool, rows * rows, sizeof(*pack->inverse));
    pack->value = tess__pool_array(&pack->pool, rows, sizeof(*pack->value));
    pack->price = tess__pool_array(&pack->pool, rows, sizeof(*pack->price));
    pack->positive = tess__pool_array(&pack->pool, rows, sizeof(*pack->positive));
    pack->step = tess__pool_array(&pack->pool, rows, sizeof(*pack->step));
    pack->list = tess__pool_array(&pack->pool, rows, sizeof(*pack->list));
    pack->best = tess__pool_array(&pack->pool, states, sizeof(*pack->best));
    pack->before = tess__pool_array(&pack->pool, states, sizeof(*pack->before));
    pack->hop = tess__pool_array(&pack->pool, count * count, sizeof(*pack->hop));
    if (pack->pool.failed) {
        tess__pool_release(&pack->pool);
        return tess__no_memory("the search of rings");
    }
    /* Equal capacities make the simplex method stand still; these are all different. */
    for (int32_t r = 0; r < pack->rows; r++)
        pack->gbs[r] = table->gbs[r] * (1 - PACK_LESS * (1 + (r * 7919) % 997) / 997);
    return TESS_OK;
}

/* ---- columns -------------------------------------------------------------------------------- */

/* Its number; an existing one is not added again. -1: no room. */
static int32_t pack_add_column(struct pack *pack, const int32_t *order)
{
    size_t bytes = (size_t)pack->count * sizeof(*order);
    for (int32_t c = 0; c < pack->columns; c++) {
        if (memcmp(pack->order[c], order, bytes) == 0)
            return c;
    }
    if (pack->columns == PACK_COLUMNS_MAX)
        return -1;
    int32_t column = pack->columns++;
    int32_t *uses = pack->uses + (size_t)column * (size_t)pack->rows;
    memcpy(pack->order[column], order, bytes);
    tess__ring_table_add(pack->table, order, uses);
    pack->active[column] = true;
    return column;
}

/* ---- the cheapest ring ----------------------------------------------------------------------- */

static void pack_hop_prices(struct pack *pack)
{
    const struct tess__ring_table *table = pack->table;
    for (int32_t r = 0; r < pack->rows; r++)
        pack->positive[r] = pack->price[r] > 0 ? pack->price[r] : 0;
    for (int32_t h = 0; h < pack->count * pack->count; h++) {
        double price = table->cost[h] < 0 ? INFINITY : 0;
        for (int32_t k = table->first[h]; k < table->first[h + 1]; k++)
            price += pack->positive[table->row[k]];
        pack->hop[h] = price;
    }
}

static double pack_ring_cost(const struct pack *pack, const int32_t *order)
{
    double cost = 0;
    for (int32_t i = 0; i + 1 < pack->count; i++)
        cost += pack->hop[order[i] * pack->count + order[i + 1]];
    return cost + pack->hop[order[pack->count - 1] * pack->count + order[0]];
}

/* best[set][i]: from device 0 through the set (bit i: device i + 1), ending in device i + 1. */
static void pack_cheapest_paths(struct pack *pack)
{
    int32_t others = pack->count - 1;
    for (uint32_t set = 1; set < 1u << others; set++) {
        double *best = pack->best[set];
        int8_t *before = pack->before[set];
        for (uint32_t ends = set; ends; ends &= ends - 1) {
            int32_t end = __builtin_ctz(ends);
            uint32_t rest = set & ~(1u << end);
            const double *prior = pack->best[rest];
            best[end] = rest ? INFINITY : pack->hop[end + 1];
            before[end] = -1;
            for (uint32_t from = rest; from; from &= from - 1) {
                int32_t i = __builtin_ctz(from);
                double cost = prior[i] + pack->hop[(i + 1) * pack->count + end + 1];
                if (cost < best[end]) {
                    best[end] = cost;
                    before[end] = (int8_t)i;
                }
            }
        }
    }
}

/* Its cost at the present prices, INFINITY where there is no ring; order [count]. */
static double pack_cheapest_ring(struct pack *pack, int32_t *order)
{
    int32_t others = pack->count - 1, end = -1;
    uint32_t set = (1u << others) - 1;
    double least = INFINITY;
    pack_cheapest_paths(pack);
    pack->work += ((int64_t)others * others << others) / 4;
    for (int32_t i = 0; i < others; i++) {
        double cost = pack->best[set][i] + pack->hop[(i + 1) * pack->count];
        if (cost < least) {
            least = cost;
            end = i;
        }
    }
    order[0] = 0;
    for (int32_t place = others; place > 0 && end >= 0; place--) {
        order[place] = end + 1;
        int32_t next = pack->before[set][end];
        set &= ~(1u << end);
        end = next;
    }
    return least;
}

/* ---- a cheaper ring near by ------------------------------------------------------------------ */

/* order without its place `from`, and the device from there behind the others' place `to` - 1. */
static void pack_move(int32_t *order, int32_t from, int32_t to)
{
    int32_t moved = order[from];
    for (int32_t i = from; i < to; i++)
        order[i] = order[i + 1];
    for (int32_t i = from; i > to; i--)
        order[i] = order[i - 1];
    order[to] = moved;
}

/* What the ring costs less by that move. */
static double pack_move_gain(const struct pack *pack, const int32_t *order, int32_t from,
                             int32_t to)
{
    int32_t count = pack->count, device = order[from];
    const double *hop = pack->hop;
    int32_t left = order[from - 1], right = order[from + 1 < count ? from + 1 : 0];
    int32_t gap = to > from ? to : to - 1; /* it comes behind this place */
    int32_t before = order[gap], after = order[gap + 1 < count ? gap + 1 : 0];
    return hop[left * count + device] + hop[device * count + right] - hop[left * count + right] +
           hop[before * count + after] - hop[before * count + device] - hop[device * count + after];
}

/* Moves one device at a time to where it is cheapest, device 0 excepted, while that helps. */
static double pack_descend(struct pack *pack, int32_t *order)
{
    double cost = pack_ring_cost(pack, order);
    for (bool better = isfinite(cost); better;) {
        double most = cost * PACK_EPSILON;
        int32_t best_from = 0, best_to = 0;
        pack->work += 2 * (int64_t)pack->count * pack->count;
        for (int32_t from = 1; from < pack->count; from++) {
            for (int32_t to = 1; to < pack->count; to++) {
                double gain = from != to ? pack_move_gain(pack, order, from, to) : 0;
                if (gain > most) {
                    most = gain;
                    best_from = from;
                    best_to = to;
                }
            }
        }
        better = best_from > 0;
        if (better)
            pack_move(order, best_from, best_to);
        cost = better ? pack_ring_cost(pack, order) : cost;
    }
    return cost;
}

/* The cheapest that descents from the basic rings meet; true where it costs less than 1. It spares
 * the exact search most of its calls. */
static bool pack_near_ring(struct pack *pack, int32_t *order)
{
    double least = 1 - 1e-6;
    int32_t trial[TESS__RING_EXACT_MAX];
    for (int32_t i = 0; i < pack->rows; i++) {
        if (pack->basic[i] < 0)
            continue;
        memcpy(trial, pack->order[pack->basic[i]], sizeof(trial));
        double cost = pack_descend(pack, trial);
        if (cost < least) {
            least = cost;
            memcpy(order, trial, (size_t)pack->count * sizeof(*order));
        }
    }
    return least < 1 - 1e-6;
}

/* ---- simplex -------------------------------------------------------------------------------- */

/* All capacities are left over. */
static void pack_start(struct pack *pack)
{
    size_t rows = (size_t)pack->rows;
    memset(pack->inverse, 0, rows * rows * sizeof(*pack->inverse));
    for (int32_t r = 0; r < pack->rows; r++) {
        pack->basic[r] = -1 - r;
        pack->inverse[(size_t)r * rows + (size_t)r] = 1;
        pack->value[r] = pack->gbs[r];
        pack->price[r] = 0;
    }
}

/* y: the basis' gains, 1 for a ring and 0 for what is left over, times the inverse. */
static void pack_prices(struct pack *pack)
{
    memset(pack->price, 0, (size_t)pack->rows * sizeof(*pack->price));
    for (int32_t i = 0; i < pack->rows; i++) {
        if (pack->basic[i] < 0)
            continue;
        const double *line = pack->inverse + (size_t)i * (size_t)pack->rows;
        for (int32_t r = 0; r < pack->rows; r++)
            pack->price[r] += line[r];
    }
}

/* The variable enters the basis; false where nothing bounds it, which rounding alone can do. */
static bool pack_pivot(struct pack *pack, int32_t variable)
{
    size_t rows = (size_t)pack->rows;
    int32_t leaves = -1, used = 0;
    const int32_t *uses = pack->uses + (size_t)(variable < 0 ? 0 : variable) * rows;
    for (int32_t r = 0; r < pack->rows && variable >= 0; r++) {
        if (uses[r] > 0)
            pack->list[used++] = r;
    }
    for (int32_t i = 0; i < pack->rows; i++) {
        const double *line = pack->inverse + (size_t)i * rows;
        pack->step[i] = variable < 0 ? line[-1 - variable] : 0;
        for (int32_t k = 0; k < used; k++)
            pack->step[i] += line[pack->list[k]] * uses[pack->list[k]];
        if (pack->step[i] > PACK_EPSILON &&
            (leaves < 0 ||
             pack->value[i] / pack->step[i] < pack->value[leaves] / pack->step[leaves]))
            leaves = i;
    }
    if (leaves < 0)
        return false;
    double *restrict line = pack->inverse + (size_t)leaves * rows;
    double scale = 1 / pack->step[leaves];
    int32_t full = 0; /* entries of the line that are not 0 */
    for (int32_t r = 0; r < pack->rows; r++) {
        line[r] *= scale;
        if (line[r] != 0)
            pack->list[full++] = r;
    }
    bool dense = full > pack->rows / PACK_DENSE;
    pack->value[leaves] = fmax(pack->value[leaves] * scale, 0);
    for (int32_t i = 0; i < pack->rows; i++) {
        double factor = pack->step[i];
        if (i == leaves || factor == 0)
            continue;
        double *restrict other = pack->inverse + (size_t)i * rows;
        if (dense) {
            for (size_t r = 0; r < rows; r++)
                other[r] -= factor * line[r];
        } else {
            for (int32_t k = 0; k < full; k++)
                other[pack->list[k]] -= factor * line[pack->list[k]];
        }
        pack->value[i] = fmax(pack->value[i] - factor * pack->value[leaves], 0);
    }
    pack->basic[leaves] = variable;
    return true;
}

/* What should enter the basis: *variable_out, or false where nothing gains. With `generate` rings
 * that are not columns yet are searched. */
static bool pack_enters(struct pack *pack, bool generate, int32_t *variable_out)
{
    int32_t best = 0;
    for (int32_t r = 1; r < pack->rows; r++) {
        if (pack->price[r] < pack->price[best])
            best = r;
    }
    /* Whichever gains most as it grows, of what is left over and of the rings. */
    bool slack = pack->price[best] < -PACK_EPSILON;
    double least = fmin(1 + pack->price[best], 1 - 1e-8);
    *variable_out = -1 - best;
    pack_hop_prices(pack);
    for (int32_t c = 0; c < pack->columns; c++) {
        double price = pack->active[c] ? pack_ring_cost(pack, pack->order[c]) : INFINITY;
        if (price < least) {
            least = price;
            *variable_out = c;
        }
    }
    if (slack || *variable_out >= 0)
        return true;
    if (!generate || pack->work > PACK_WORK_MAX ||
        (pack->deadline_s > 0 && tess_clock_s() > pack->deadline_s))
        return false;
    int32_t order[TESS__RING_EXACT_MAX] = {0};
    if (pack->count > PACK_NEAR_FROM && pack_near_ring(pack, order)) {
        *variable_out = pack_add_column(pack, order);
        return *variable_out >= 0;
    }
    double cost = pack_cheapest_ring(pack, order), capacity = 0;
    for (int32_t r = 0; r < pack->rows; r++)
        capacity += pack->table->gbs[r] * fmax(pack->price[r], 0);
    if (cost > 0)
        pack->bound = fmin(pack->bound, capacity / cost);
    if (!(cost < 1 - 1e-8))
        return false;
    *variable_out = pack_add_column(pack, order);
    return *variable_out >= 0;
}

/* x of the active columns, and of those it generates. Returns the sum of x. */
static double pack_solve(struct pack *pack, bool generate)
{
    int32_t variable = -1;
    pack_start(pack);
    for (int32_t pivot = 0; pivot < PACK_PIVOTS_MAX; pivot++) {
        if (!pack_enters(pack, generate, &variable) || !pack_pivot(pack, variable))
            break;
        pack_prices(pack);
        pack->work += (int64_t)pack->columns * pack->count + 2 * (int64_t)pack->rows * pack->rows;
    }
    memset(pack->x, 0, PACK_COLUMNS_MAX * sizeof(*pack->x));
    /* The same basis with the real capacities. */
    for (int32_t i = 0; i < pack->rows; i++) {
        const double *line = pack->inverse + (size_t)i * (size_t)pack->rows;
        double value = 0;
        for (int32_t r = 0; r < pack->rows; r++)
            value += line[r] * pack->table->gbs[r];
        if (pack->basic[i] >= 0)
            pack->x[pack->basic[i]] = fmax(value, 0);
    }
    /* Where that is not allowed, or for rounding: as much of it as is. */
    double scale = INFINITY, sum = 0;
    for (int32_t r = 0; r < pack->rows; r++) {
        double load = 0;
        for (int32_t c = 0; c < pack->columns; c++)
            load += pack->x[c] * pack->uses[(size_t)c * (size_t)pack->rows + (size_t)r];
        if (load > 0)
            scale = fmin(scale, pack->table->gbs[r] / load);
    }
    for (int32_t c = 0; c < pack->columns; c++) {
        pack->x[c] = scale < INFINITY ? pack->x[c] * scale : 0;
        sum += pack->x[c];
    }
    return sum;
}

/* ---- few rings ------------------------------------------------------------------------------ */

/* Only rings with bandwidth stay; how many. */
static int32_t pack_drop_idle(struct pack *pack, double total)
{
    int32_t active = 0;
    for (int32_t c = 0; c < pack->columns; c++) {
        pack->active[c] = pack->active[c] && pack->x[c] > 1e-6 * total;
        active += pack->active[c];
    }
    return active;
}

/* The active ring of least bandwidth that is not yet known to be needed; -1. */
static int32_t pack_least(const struct pack *pack, const bool *needed)
{
    int32_t least = -1;
    for (int32_t c = 0; c < pack->columns; c++) {
        if (pack->active[c] && !needed[c] && (least < 0 || pack->x[c] < pack->x[least]))
            least = c;
    }
    return least;
}

/* Takes rings out while they are too many, or the total stays near `best`. Returns the total. */
static double pack_thin(struct pack *pack, int32_t most, double total)
{
    bool needed[PACK_COLUMNS_MAX] = {false};
    double worth = total * (1 - PACK_WORTH);
    int32_t active = pack_drop_idle(pack, total);
    for (int32_t least; (least = pack_least(pack, needed)) >= 0;) {
        bool late = pack->work > PACK_WORK_END;
        if (late && active <= most)
            break;
        pack->active[least] = false;
        active--;
        /* Too many and too late: the widest are kept, whatever the others would have given. */
        if (late && active > most)
            continue;
        double without = pack_solve(pack, false);
        if (without >= worth || active >= most) {
            total = without;
            active = pack_drop_idle(pack, total);
        } else {
            pack->active[least] = needed[least] = true;
            active++;
            total = pack_solve(pack, false);
        }
    }
    return total;
}

static int pack_compare(const void *a, const void *b)
{
    const struct tess_ring *x = a, *y = b;
    if (fabs(x->gbs - y->gbs) > 1e-6 * fmax(x->gbs, y->gbs))
        return x->gbs > y->gbs ? -1 : 1;
    /* Two rings of a set differ before they end. */
    int32_t i = 0;
    while (x->order[i] == y->order[i] && x->order != y->order)
        i++;
    return (x->order[i] > y->order[i]) - (x->order[i] < y->order[i]);
}

/* The answer into ring[], widest first. */
static void pack_hand_out(const struct pack *pack, struct tess_ring *ring, int32_t *ring_count_out)
{
    int32_t rings = 0;
    for (int32_t c = 0; c < pack->columns; c++) {
        if (!pack->active[c] || pack->x[c] <= 0)
            continue;
        ring[rings].gbs = pack->x[c];
        memcpy(ring[rings++].order, pack->order[c], (size_t)pack->count * sizeof(*ring->order));
    }
    qsort(ring, (size_t)rings, sizeof(*ring), pack_compare);
    *ring_count_out = rings;
}

enum tess_status tess__ring_pack(const struct tess__ring_table *table, int32_t most,
                                 double deadline_s, struct tess_ring *ring, int32_t *ring_count_out,
                                 double *bound_out)
{
    struct pack pack;
    double had = 0;
    TESS_TRY(pack_open(&pack, table, deadline_s));
    for (int32_t i = 0; i < *ring_count_out; i++) {
        had += ring[i].gbs;
        (void)pack_add_column(&pack, ring[i].order);
    }
    double total = pack_solve(&pack, true);
    *bound_out = fmin(*bound_out, pack.bound);
    /* The rings found one after the other are mostly as good, and simpler. */
    if (had < total * (1 - PACK_WORTH)) {
        total = pack_thin(&pack, most, total);
        if (total > had * (1 + TESS__RING_NEAR))
            pack_hand_out(&pack, ring, ring_count_out);
    }
    tess__pool_release(&pack.pool);
    return TESS_OK;
}
