/*
 * First mappings: the mesh laid along orders of the places, every order of its axes tried. Along
 * the ring that ring.h finds, neighbours in the order are near each other; groups of the axes that
 * come first are kept inside NVLink domains and hosts where these hold a whole number of them, and
 * else as many as they hold. The exchange (map_exchange.c) refines the result.
 */
#include "base/hash.h"
#include "tessera/check.h"
#include "topology/map/map_room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LAYOUT_DIGITS_MAX   (2 * TESS_MAP_AXES)
#define LAYOUT_SEEN         512 /* mappings that are kept in mind */
#define LAYOUT_NUMA_MAX     4096
#define LAYOUT_SPLIT_VISITS 4000000 /* lanes visited by layouts that split axes */

struct layout {
    struct tess__pool pool;
    struct tess__map_load *load;
    const struct tess__map_model *model;
    int32_t *domain, *host;       /* [count] of a place; numbers below count */
    int32_t *numa;                /* the same: equal for NUMA nodes of one number on all hosts */
    int32_t *ring;                /* [count] places as the ring passes them */
    int32_t *order, *base;        /* [count] places as they are laid */
    int32_t *best, *at;           /* [count] mappings */
    int32_t *seen, *start;        /* [count] scratch of layout_group */
    struct tess__map_worth worth; /* of best, that of an order of axes */
    double goal_s;                /* the lower bound */
    /* The order at hand, the fastest digit first: a whole axis, or a factor of it. */
    struct {
        int32_t count, stride, axis;
    } digit[LAYOUT_DIGITS_MAX];
    int32_t digits;
    int32_t left[TESS_MAP_AXES], parts[TESS_MAP_AXES]; /* of an axis: count and digits so far */
    struct tess__map_starts *starts;
    uint64_t hash[LAYOUT_SEEN]; /* of mappings */
    int32_t tried;
};

/* ---- orders of places ----------------------------------------------------------------------- */

/* Places of a key together, keys as the order meets them first; as many of each as make multiples
 * of `unit`, and behind all of them what is left over. */
static void layout_group(struct layout *layout, const int32_t *key, int32_t unit,
                         const int32_t *from, int32_t *to)
{
    int32_t count = layout->model->count, *left = layout->seen, *next = layout->start, at = 0;
    memset(left, 0, (size_t)count * sizeof(*left));
    memset(next, -1, (size_t)count * sizeof(*next));
    for (int32_t i = 0; i < count; i++)
        left[key[i]]++;
    for (int32_t i = 0; i < count; i++) {
        int32_t k = key[from[i]];
        if (next[k] < 0) {
            next[k] = at;
            left[k] -= left[k] % unit;
            at += left[k];
        }
    }
    for (int32_t i = 0; i < count; i++) {
        int32_t k = key[from[i]];
        if (left[k]-- > 0)
            to[next[k]++] = from[i];
        else
            to[at++] = from[i];
    }
}

/* A ring may begin anywhere: not in the middle of a host, or of an NVLink domain. */
static void layout_turn(struct layout *layout, const int32_t *key)
{
    int32_t count = layout->model->count, *ring = layout->ring, turn = 0;
    while (turn < count && key[ring[(count - turn - 1) % count]] == key[ring[0]])
        turn++;
    if (turn == 0 || turn == count)
        return;
    memcpy(layout->order, ring, (size_t)count * sizeof(*ring));
    for (int32_t i = 0; i < count; i++)
        ring[i] = layout->order[(i + count - turn) % count];
}

/* ---- laying --------------------------------------------------------------------------------- */

/* Rank 0 to the first place: the groups are rings, so that turning all of them along an axis
 * changes nothing (but where a chain's ends are). */
static void layout_shift(struct layout *layout, const int32_t *from, int32_t *to)
{
    const struct tess__map_model *model = layout->model;
    int32_t first = 0;
    while (from[first] != 0)
        first++;
    for (int32_t rank = 0; rank < model->count; rank++) {
        int32_t moved = 0;
        for (int32_t a = 0; a < model->axis_count; a++) {
            int32_t count = model->axis[a].count, stride = model->stride[a];
            int32_t at = rank / stride % count, zero = first / stride % count;
            moved += (at + count - zero) % count * stride;
        }
        to[moved] = from[rank];
    }
}

/* Of many ranks, where a look costs more than a hash: has the mapping been tried? On regular
 * clusters most orders of places come to the same. */
static bool layout_seen(struct layout *layout, const int32_t *at)
{
    const struct tess__map_model *model = layout->model;
    if (model->ways == NULL || layout->tried == LAYOUT_SEEN)
        return false;
    const uint64_t hash = tess_hash_run(at, (size_t)model->count * sizeof(*at), 0);
    for (int32_t i = 0; i < layout->tried; i++)
        if (layout->hash[i] == hash)
            return true;
    layout->hash[layout->tried++] = hash;
    return false;
}

static void layout_try(struct layout *layout, const int32_t *at)
{
    if (layout_seen(layout, at))
        return;
    tess__map_load_set(layout->load, at);
    (void)tess__map_load_keep(layout->load, &layout->worth, layout->best);
}

/*
 * The mesh along an order of places, the first digit fastest. `back_and_forth`: every other run
 * along a digit goes backwards, so that what follows in the order is next in the mesh too.
 */
static void layout_lay_one(struct layout *layout, const int32_t *order, bool back_and_forth)
{
    const struct tess__map_model *model = layout->model;
    int32_t *at = layout->at;
    for (int32_t i = 0; i < model->count; i++) {
        int32_t rank = 0, rest = i;
        for (int32_t k = 0; k < layout->digits; k++) {
            int32_t count = layout->digit[k].count, digit = rest % count;
            rest /= count;
            if (back_and_forth && rest % 2)
                digit = count - 1 - digit;
            rank += digit * layout->digit[k].stride;
        }
        at[rank] = order[i];
    }
    if (!model->keep_first && tess__map_has_chain(model))
        layout_try(layout, at);
    /* Without a chain all turns cost the same. */
    layout_shift(layout, at, layout->load->at);
    memcpy(at, layout->load->at, (size_t)model->count * sizeof(*at));
    layout_try(layout, at);
}

static void layout_lay(struct layout *layout, const int32_t *order)
{
    layout_lay_one(layout, order, false);
    layout_lay_one(layout, order, true);
}

/*
 * Along the first `bases` of: the ring, the ring through one NUMA node of each host after the other
 * (which does not cross between them inside hosts), the natural order host by host, and the natural
 * order; each as it is, and with groups of the digits so far inside domains and inside hosts.
 */
static void layout_digits(struct layout *layout, int bases)
{
    const struct tess__map_model *model = layout->model;
    const int32_t *keys[] = {layout->domain, layout->host};
    for (int base = 0; base < bases; base++) {
        for (int32_t i = 0; i < model->count; i++)
            layout->order[i] = i;
        if (base == 1)
            layout_group(layout, layout->numa, 1, layout->ring, layout->base);
        else if (base == 2)
            layout_group(layout, layout->host, 1, layout->order, layout->base);
        else
            memcpy(layout->base, base == 0 ? layout->ring : layout->order,
                   (size_t)model->count * sizeof(*layout->base));
        layout_lay(layout, layout->base);
        for (int key = 0; key < 2; key++) {
            int32_t unit = 1;
            for (int32_t k = 0; k + 1 < layout->digits; k++) {
                unit *= layout->digit[k].count;
                layout_group(layout, keys[key], unit, layout->base, layout->order);
                layout_lay(layout, layout->order);
            }
        }
    }
}

/* The best of an order of axes into its place among the starts; as good as another: the same by
 * symmetry, most likely. */
static void layout_keep(struct layout *layout)
{
    struct tess__map_starts *starts = layout->starts;
    size_t bytes = (size_t)layout->model->count * sizeof(int32_t);
    int32_t at = 0, room = TESS__MAP_STARTS - 1;
    while (at < starts->count && !tess__map_better(layout->worth, starts->worth[at]))
        at++;
    bool same = at > 0 && !tess__map_better(starts->worth[at - 1], layout->worth);
    if (at == room || same)
        return;
    starts->count += starts->count < room;
    int32_t *last = starts->at[starts->count - 1];
    for (int32_t i = starts->count - 1; i > at; i--) {
        starts->at[i] = starts->at[i - 1];
        starts->worth[i] = starts->worth[i - 1];
    }
    starts->at[at] = last;
    starts->worth[at] = layout->worth;
    memcpy(starts->at[at], layout->best, bytes);
}

/* The order of digits is whole where nothing is left of any axis. */
static void layout_take(struct layout *layout, bool split)
{
    bool parted = false;
    for (int32_t a = 0; a < layout->model->axis_count; a++)
        parted = parted || layout->parts[a] > 1;
    if (parted != split)
        return;
    layout->worth = (struct tess__map_worth){INFINITY, INFINITY};
    layout_digits(layout, split ? 1 : 4);
    if (layout->worth.cost_s < INFINITY) /* else all were tried with other orders */
        layout_keep(layout);
}

static bool layout_done(const struct layout *layout, int64_t most)
{
    const struct tess__map_starts *starts = layout->starts;
    return layout->load->visits >= most ||
           (starts->count > 0 && starts->worth[0].cost_s <= layout->goal_s);
}

/*
 * All orders of the axes, those as they come first. Split: an axis may be two digits, so that tiles
 * of several axes stay together (2 x 2 of 4 x 4 have 8 neighbours outside, a row of 4 has 8 as
 * well, but along one axis alone).
 */
static void layout_all(struct layout *layout, bool split, int64_t most)
{
    const struct tess__map_model *model = layout->model;
    int32_t k = layout->digits, open = 0;
    for (int32_t a = 0; a < model->axis_count; a++) {
        int32_t left = layout->left[a];
        open += left > 1;
        /* Twice in a row is one digit. */
        if (left == 1 || (k > 0 && layout->digit[k - 1].axis == a))
            continue;
        for (int32_t count = split && layout->parts[a] == 0 ? 2 : left; count <= left; count++) {
            if (left % count || layout_done(layout, most))
                continue;
            layout->digit[k].axis = a;
            layout->digit[k].count = count;
            layout->digit[k].stride = model->stride[a] * (model->axis[a].count / left);
            layout->left[a] = left / count;
            layout->parts[a]++;
            layout->digits++;
            layout_all(layout, split, most);
            layout->digits--;
            layout->parts[a]--;
            layout->left[a] = left;
        }
    }
    if (open == 0)
        layout_take(layout, split);
}

/* Equal keys, from -1 to most - 1, become equal numbers below count: the first place of the key.
 * `first` [most + 1]: scratch. */
static void layout_number(const struct layout *layout, int32_t *first, int32_t most, int32_t *key)
{
    memset(first, -1, ((size_t)most + 1) * sizeof(*first));
    for (int32_t i = 0; i < layout->model->count; i++) {
        int32_t *at = &first[key[i] + 1];
        if (*at < 0)
            *at = i;
        key[i] = *at;
    }
}

/* Domains, hosts, and NUMA nodes by their numbers on their hosts. */
static enum tess_status layout_keys(struct layout *layout)
{
    const struct tess__map_model *model = layout->model;
    const struct tess_topology *topology = model->topology;
    TESS_TRY(tess__map_domains(model, layout->domain));
    TESS_TRY(tess__map_numa(model, layout->numa));
    int32_t most =
        topology->node_count > topology->host_count ? topology->node_count : topology->host_count;
    for (int32_t i = 0; i < model->count; i++) {
        layout->host[i] = tess__map_host(model, i);
        if (layout->numa[i] >= 0) {
            /* Any number may be in a file. */
            const uint32_t index = (uint32_t)topology->node[layout->numa[i]].index;
            layout->numa[i] = (int32_t)(index % LAYOUT_NUMA_MAX);
        }
    }
    int32_t *first = calloc((size_t)most + 1, sizeof(*first));
    if (!first)
        return tess__no_memory("the mapping of ranks");
    layout_number(layout, first, most, layout->domain);
    layout_number(layout, first, most, layout->host);
    layout_number(layout, first, most, layout->numa);
    free(first);
    return TESS_OK;
}

/* Rooms for the starts; the natural order, which the load has, is the last of them. */
static enum tess_status layout_open(struct layout *layout)
{
    size_t count = (size_t)layout->model->count;
    struct tess__map_starts *starts = layout->starts;
    int32_t **list[] = {&layout->domain, &layout->host, &layout->numa, &layout->ring,
                        &layout->order,  &layout->base, &layout->best, &layout->at,
                        &layout->seen,   &layout->start};
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
        *list[i] = tess__pool_array(&layout->pool, count, sizeof(int32_t));
    starts->block = malloc(TESS__MAP_STARTS * count * sizeof(*starts->block));
    if (layout->pool.failed || !starts->block)
        return tess__no_memory("the mapping of ranks");
    for (size_t i = 0; i < TESS__MAP_STARTS; i++)
        starts->at[i] = starts->block + i * count;
    return layout_keys(layout);
}

enum tess_status tess__map_layout(struct tess__map_load *load, double *bound_s,
                                  struct tess__map_starts *starts)
{
    const struct tess__map_model *model = load->model;
    struct layout layout = {.load = load, .model = model, .starts = starts};
    struct tess__map_worth natural = load->worth;
    *starts = (struct tess__map_starts){0};
    enum tess_status status = layout_open(&layout);
    if (status == TESS_OK)
        status = tess__map_ring(model, layout.ring, bound_s);
    if (status == TESS_OK) {
        layout_turn(&layout, layout.domain);
        layout_turn(&layout, layout.host);
        layout.goal_s = *bound_s * (1 + TESS__MAP_NEAR);
        for (int32_t a = 0; a < model->axis_count; a++)
            layout.left[a] = model->axis[a].count;
        layout_all(&layout, false, INT64_MAX);
        layout_all(&layout, true, load->visits + LAYOUT_SPLIT_VISITS);
        int32_t last = starts->count++;
        starts->worth[last] = natural;
        for (int32_t i = 0; i < model->count; i++)
            starts->at[last][i] = i;
    }
    tess__pool_release(&layout.pool);
    return status;
}
