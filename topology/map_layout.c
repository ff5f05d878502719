/*
 * First mappings: the mesh laid along orders of the places, every order of its axes tried. Along
 * the ring that ring.h finds, neighbours in the order are near each other; groups of the axes that
 * come first are kept inside NVLink domains and hosts where these hold a whole number of them, and
 * else as many as they hold. The exchange (map_exchange.c) mends what that leaves.
 */
#include "tessera/check.h"
#include "topology/map_room.h"
#include "topology/ring_room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LAYOUT_RING_STEPS 400000 /* of the walk for a ring of one host */
#define LAYOUT_RING_MAX   128    /* places of one host */

struct layout {
    struct tess__map_load *load;
    const struct tess__map_model *model;
    int32_t *domain, *host;  /* [count] of a place; numbers below count */
    int32_t *ring;           /* [count] places as the ring passes them */
    int32_t *order, *base;   /* [count] places as they are laid */
    int32_t *best, *at;      /* [count] mappings */
    int32_t *seen, *start;   /* [count + 1] scratch of layout_group */
    double best_s, best_sum; /* of an order of axes */
    struct tess__map_starts *starts;
};

static enum tess_status layout_no_memory(void)
{
    TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the mapping of ranks");
}

/* ---- NVLink domains ------------------------------------------------------------------------- */

static int32_t layout_root(int32_t *parent, int32_t node)
{
    while (parent[node] != node)
        node = parent[node] = parent[parent[node]];
    return node;
}

enum tess_status tess__map_domains(const struct tess__map_model *model, int32_t *domain)
{
    const struct tess_topology *topology = model->topology;
    int32_t *parent = malloc((size_t)topology->node_count * sizeof *parent);
    if (!parent)
        return layout_no_memory();
    for (int32_t i = 0; i < topology->node_count; i++)
        parent[i] = i;
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        enum tess_node_kind from = topology->node[link->from].kind;
        enum tess_node_kind to = topology->node[link->to].kind;
        bool ends = (from == TESS_NODE_DEVICE || from == TESS_NODE_NVSWITCH) &&
                    (to == TESS_NODE_DEVICE || to == TESS_NODE_NVSWITCH);
        if (link->kind == TESS_LINK_NVLINK && ends)
            parent[layout_root(parent, link->from)] = layout_root(parent, link->to);
    }
    for (int32_t i = 0; i < model->count; i++)
        domain[i] = layout_root(parent, model->part.device[i]);
    /* From nodes to numbers below count: a domain's first place. */
    memset(parent, -1, (size_t)topology->node_count * sizeof *parent);
    for (int32_t i = 0; i < model->count; i++) {
        int32_t *first = &parent[domain[i]];
        domain[i] = *first = *first < 0 ? i : *first;
    }
    free(parent);
    return TESS_OK;
}

/* ---- the ring ------------------------------------------------------------------------------- */

/* All hosts send into the network, as the search over hosts needs it. */
static bool layout_networked(const struct tess__map_model *model)
{
    const struct tess_topology *topology = model->topology;
    bool *sends = calloc((size_t)topology->host_count + 1, sizeof *sends), all = sends != NULL;
    for (int32_t i = 0; i < topology->link_count && all; i++) {
        const struct tess_node *from = &topology->node[topology->link[i].from];
        if (topology->node[topology->link[i].to].kind == TESS_NODE_NET && from->host >= 0)
            sends[from->host] = true;
    }
    for (int32_t i = 0; i < model->count && all; i++) {
        int32_t host = tess__map_host(model, i);
        all = host >= 0 && sends[host];
    }
    free(sends);
    return all;
}

/* The topology without the devices that no rank has; place [its node_count]: of the device. */
static enum tess_status layout_part(const struct tess__map_model *model, struct tess_topology *part,
                                    int32_t *place)
{
    const struct tess_topology *topology = model->topology;
    int32_t *number = malloc((size_t)topology->node_count * sizeof *number), at;
    enum tess_status status = TESS_OK;
    if (!number)
        return layout_no_memory();
    for (int32_t i = 0; i < topology->node_count; i++)
        number[i] = -1;
    for (int32_t i = 0; i < model->count; i++)
        number[model->part.device[i]] = i;
    for (int32_t i = 0; i < topology->node_count && status == TESS_OK; i++) {
        if (topology->node[i].kind == TESS_NODE_DEVICE && number[i] < 0)
            continue;
        status = tess_topology_add_node(part, &topology->node[i], &at);
        if (status == TESS_OK) {
            place[at] = number[i];
            number[i] = at;
        }
    }
    for (int32_t i = 0; i < topology->link_count && status == TESS_OK; i++) {
        struct tess_topo_link link = topology->link[i];
        link.from = number[link.from];
        link.to = number[link.to];
        if (link.from >= 0 && link.to >= 0)
            status = tess_topology_add_link(part, &link);
    }
    free(number);
    return status == TESS_OK ? tess_topology_finish(part) : status;
}

/* Over hosts: what ring.h finds for a cluster. */
static enum tess_status layout_ring_hosts(struct layout *layout)
{
    const struct tess__map_model *model = layout->model;
    struct tess_topology *part = tess_topology_new();
    int32_t *place = malloc((size_t)model->topology->node_count * sizeof *place);
    struct tess_rings rings = {0};
    enum tess_status status = part && place ? TESS_OK : layout_no_memory();
    if (status == TESS_OK)
        status = layout_part(model, part, place);
    if (status == TESS_OK)
        status = tess_rings_find_hosts(part, 0, &rings);
    for (int32_t i = 0; i < model->count && status == TESS_OK; i++)
        layout->ring[i] = place[part->device[rings.best_single.order[i]]];
    tess_rings_free(&rings);
    tess_topology_free(part);
    free(place);
    return status;
}

/* In a host, or where there is no network: the best ring of all places. *gbs_out: no ring carries
 * more. */
static enum tess_status layout_ring_whole(struct layout *layout, double *gbs_out)
{
    const struct tess__map_model *model = layout->model;
    const struct tess__ring_effort effort = {.steps = LAYOUT_RING_STEPS};
    struct tess__ring_found found;
    struct tess__ring_table table = {0};
    struct tess_routes routes;
    TESS_TRY(tess_routes_open(&model->part, &routes));
    enum tess_status status = tess__ring_table_open(&table, &routes);
    if (status == TESS_OK)
        status = model->count <= TESS__RING_EXACT_MAX
                     ? tess__ring_search(&table, table.gbs, &effort, layout->ring, &found)
                     : tess__ring_improve(&table, table.gbs, &effort, layout->ring, &found);
    if (status == TESS_OK)
        *gbs_out = found.bound_gbs;
    tess__ring_table_free(&table);
    tess_routes_free(&routes);
    return status;
}

/* One axis alone is a ring, and the search for rings may have proved a bound. */
static void layout_ring_bound(const struct tess__map_model *model, double gbs, double *bound_s)
{
    for (int32_t a = 0; a < model->axis_count; a++) {
        const struct tess_map_axis *axis = &model->axis[a];
        if (axis->count == model->count && !axis->chain && gbs > 0)
            *bound_s = fmax(*bound_s, axis->bytes / (gbs * 1e9));
    }
}

static enum tess_status layout_ring(struct layout *layout, double *bound_s)
{
    const struct tess__map_model *model = layout->model;
    bool several = false;
    double gbs = 0;
    for (int32_t i = 0; i < model->count; i++) {
        layout->ring[i] = i;
        several = several || layout->host[i] != layout->host[0];
    }
    if (model->count < 3)
        return TESS_OK;
    if (several && layout_networked(model))
        return layout_ring_hosts(layout);
    if (model->count > LAYOUT_RING_MAX)
        return TESS_OK;
    TESS_TRY(layout_ring_whole(layout, &gbs));
    layout_ring_bound(model, gbs, bound_s);
    return TESS_OK;
}

/* ---- orders of places ----------------------------------------------------------------------- */

/* Places of a key together, keys as the order meets them first; as many of each as make multiples
 * of `unit`, and behind all of them what is left over. */
static void layout_group(struct layout *layout, const int32_t *key, int32_t unit,
                         const int32_t *from, int32_t *to)
{
    int32_t count = layout->model->count, *left = layout->seen, *next = layout->start, at = 0;
    memset(left, 0, (size_t)count * sizeof *left);
    memset(next, -1, (size_t)count * sizeof *next);
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
    memcpy(layout->order, ring, (size_t)count * sizeof *ring);
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

static void layout_try(struct layout *layout, const int32_t *at)
{
    struct tess__map_load *load = layout->load;
    size_t bytes = (size_t)layout->model->count * sizeof *at;
    memcpy(load->at, at, bytes);
    tess__map_load_count(load);
    if (tess__map_better(load->cost_s, load->sum, layout->best_s, layout->best_sum)) {
        layout->best_s = load->cost_s;
        layout->best_sum = load->sum;
        memcpy(layout->best, at, bytes);
    }
}

/*
 * The mesh along an order of places, the axis `by[0]` fastest. Back and forth: every other run
 * along an axis goes backwards, so that what follows in the order is next in the mesh too.
 */
static void layout_lay_one(struct layout *layout, const int32_t *order, const int32_t *by,
                           bool back_and_forth)
{
    const struct tess__map_model *model = layout->model;
    int32_t *at = layout->at;
    for (int32_t i = 0; i < model->count; i++) {
        int32_t rank = 0, rest = i;
        for (int32_t k = 0; k < model->axis_count; k++) {
            int32_t count = model->axis[by[k]].count, digit = rest % count;
            rest /= count;
            if (back_and_forth && rest % 2)
                digit = count - 1 - digit;
            rank += digit * model->stride[by[k]];
        }
        at[rank] = order[i];
    }
    if (!model->keep_first && tess__map_has_chain(model))
        layout_try(layout, at);
    /* Without a chain all turns cost the same. */
    layout_shift(layout, at, layout->load->at);
    memcpy(at, layout->load->at, (size_t)model->count * sizeof *at);
    layout_try(layout, at);
}

static void layout_lay(struct layout *layout, const int32_t *order, const int32_t *by)
{
    layout_lay_one(layout, order, by, false);
    layout_lay_one(layout, order, by, true);
}

/* Along the ring, along the natural order and along the natural order host by host; each as it is,
 * and with groups of the axes so far inside domains and inside hosts. */
static void layout_axes(struct layout *layout, const int32_t *by)
{
    const struct tess__map_model *model = layout->model;
    const int32_t *keys[] = {layout->domain, layout->host};
    for (int base = 0; base < 3; base++) {
        for (int32_t i = 0; i < model->count; i++)
            layout->order[i] = i;
        if (base == 1)
            layout_group(layout, layout->host, 1, layout->order, layout->base);
        else
            memcpy(layout->base, base == 0 ? layout->ring : layout->order,
                   (size_t)model->count * sizeof *layout->base);
        layout_lay(layout, layout->base, by);
        for (int key = 0; key < 2; key++) {
            int32_t unit = 1, before = 0;
            for (int32_t k = 0; k + 1 < model->axis_count; k++) {
                unit *= model->axis[by[k]].count;
                if (unit == before)
                    continue;
                before = unit;
                layout_group(layout, keys[key], unit, layout->base, layout->order);
                layout_lay(layout, layout->order, by);
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
    while (at < starts->count &&
           !tess__map_better(layout->best_s, layout->best_sum, starts->cost_s[at], starts->sum[at]))
        at++;
    bool same = at > 0 && !tess__map_better(starts->cost_s[at - 1], starts->sum[at - 1],
                                            layout->best_s, layout->best_sum);
    if (at == room || same)
        return;
    starts->count += starts->count < room;
    int32_t *last = starts->at[starts->count - 1];
    for (int32_t i = starts->count - 1; i > at; i--) {
        starts->at[i] = starts->at[i - 1];
        starts->cost_s[i] = starts->cost_s[i - 1];
        starts->sum[i] = starts->sum[i - 1];
    }
    starts->at[at] = last;
    starts->cost_s[at] = layout->best_s;
    starts->sum[at] = layout->best_sum;
    memcpy(starts->at[at], layout->best, bytes);
}

/* All orders of the axes, those as they come first; axes of one rank stay behind. */
static void layout_all(struct layout *layout)
{
    const struct tess__map_model *model = layout->model;
    int32_t axes = model->axis_count, total = 1;
    for (int32_t a = 0; a < axes; a++)
        total *= axes;
    for (int32_t number = 0; number < total; number++) {
        int32_t by[TESS_MAP_AXES], used = 0, rest = number, last = -1;
        bool valid = true;
        for (int32_t k = axes - 1; k >= 0; k--, rest /= axes)
            by[k] = rest % axes;
        for (int32_t k = 0; k < axes; k++) {
            bool one = model->axis[by[k]].count == 1;
            valid = valid && !(used & 1 << by[k]) && (one || last != 1);
            valid =
                valid && !(k > 0 && one && model->axis[by[k - 1]].count == 1 && by[k] < by[k - 1]);
            used |= 1 << by[k];
            last = one;
        }
        layout->best_s = layout->best_sum = INFINITY;
        if (valid) {
            layout_axes(layout, by);
            layout_keep(layout);
        }
    }
}

static void layout_close(struct layout *layout)
{
    int32_t *list[] = {layout->domain, layout->host, layout->ring, layout->order, layout->base,
                       layout->best,   layout->at,   layout->seen, layout->start};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        free(list[i]);
}

/* Hosts as numbers below count: the host's first place. */
static enum tess_status layout_hosts(struct layout *layout)
{
    const struct tess__map_model *model = layout->model;
    size_t hosts = (size_t)model->topology->host_count + 1; /* the first for devices of none */
    int32_t *first = malloc(hosts * sizeof *first);
    if (!first)
        return layout_no_memory();
    memset(first, -1, hosts * sizeof *first);
    for (int32_t i = 0; i < model->count; i++) {
        int32_t *of = &first[tess__map_host(model, i) + 1];
        layout->host[i] = *of = *of < 0 ? i : *of;
    }
    free(first);
    return TESS_OK;
}

/* Rooms for the starts; the natural order, which the load has, is the last of them. */
static enum tess_status layout_open(struct layout *layout)
{
    size_t count = (size_t)layout->model->count;
    struct tess__map_starts *starts = layout->starts;
    int32_t **list[] = {&layout->domain, &layout->host, &layout->ring,
                        &layout->order,  &layout->base, &layout->best,
                        &layout->at,     &layout->seen, &layout->start};
    bool whole = true;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        *list[i] = malloc(count * sizeof(int32_t));
        whole = whole && *list[i];
    }
    starts->block = malloc(TESS__MAP_STARTS * count * sizeof *starts->block);
    if (!whole || !starts->block)
        return layout_no_memory();
    for (size_t i = 0; i < TESS__MAP_STARTS; i++)
        starts->at[i] = starts->block + i * count;
    TESS_TRY(layout_hosts(layout));
    return tess__map_domains(layout->model, layout->domain);
}

enum tess_status tess__map_layout(struct tess__map_load *load, double *bound_s,
                                  struct tess__map_starts *starts)
{
    const struct tess__map_model *model = load->model;
    struct layout layout = {.load = load, .model = model, .starts = starts};
    double natural_s = load->cost_s, natural_sum = load->sum;
    *starts = (struct tess__map_starts){0};
    enum tess_status status = layout_open(&layout);
    if (status == TESS_OK)
        status = layout_ring(&layout, bound_s);
    if (status == TESS_OK) {
        layout_turn(&layout, layout.domain);
        layout_turn(&layout, layout.host);
        layout_all(&layout);
        int32_t last = starts->count++;
        starts->cost_s[last] = natural_s;
        starts->sum[last] = natural_sum;
        for (int32_t i = 0; i < model->count; i++)
            starts->at[last][i] = i;
    }
    layout_close(&layout);
    return status;
}
