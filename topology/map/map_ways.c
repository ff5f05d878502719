/*
 * Ways between the places of a large cluster, by what hosts have in common, in place of a table of
 * all pairs. A unit is what is left together where the switches of the network are taken out: a
 * host, or hosts that share NVSwitches. A way between units is
 *
 *     links of the first unit | links between switches | links of the second unit
 *     \---- out, to a gate ---/                        \-- in, from a gate ----/
 *
 * and which links of the units these are depends on how the two are made and on how far their
 * gates (the switches that they have links to) are from each other, by number of links and by
 * width: pairs of units that are alike in these are one relation, and routes are searched once for
 * each. Between two gates the way is the widest, as far as a unit can use that, then the shortest.
 */
#include "topology/map/map_ways.h"

#include "base/hash.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

/* ---- relations ------------------------------------------------------------------------------ */

/* From gate i of a unit to gate k of another. */
static size_t ways_pair(const struct tess__map_ways *ways, int32_t first, int32_t i, int32_t second,
                        int32_t k)
{
    const int32_t from = ways->gate[ways->gate_first[first] + i];
    const int32_t to = ways->gate[ways->gate_first[second] + k];
    return (size_t)ways->gate_of[from] * (size_t)ways->nets + (size_t)ways->net[to];
}

static uint64_t ways_relation_hash(const struct tess__map_ways *ways, int32_t first, int32_t second)
{
    uint64_t hash = tess_hash_mix((uint64_t)ways->make[first] << 32 | (uint32_t)ways->make[second]);
    hash += first == second;
    for (int32_t i = 0; i < ways->gate_first[first + 1] - ways->gate_first[first]; i++)
        for (int32_t k = 0; k < ways->gate_first[second + 1] - ways->gate_first[second]; k++) {
            const size_t pair = ways_pair(ways, first, i, second, k);
            hash =
                (hash ^ ((uint64_t)ways->far[pair] << 8 | ways->wide[pair])) * 0x9e3779b97f4a7c15;
            hash ^= hash >> 29;
        }
    return hash;
}

static bool ways_related(const struct tess__map_ways *ways, const struct ways_relation *relation,
                         int32_t first, int32_t second)
{
    if (ways->make[first] != ways->make[relation->first] ||
        ways->make[second] != ways->make[relation->second] ||
        (first == second) != (relation->first == relation->second))
        return false;
    for (int32_t i = 0; i < ways->gate_first[first + 1] - ways->gate_first[first]; i++)
        for (int32_t k = 0; k < ways->gate_first[second + 1] - ways->gate_first[second]; k++) {
            const size_t a = ways_pair(ways, first, i, second, k);
            const size_t b = ways_pair(ways, relation->first, i, relation->second, k);
            if (ways->far[a] != ways->far[b] || ways->wide[a] != ways->wide[b])
                return false;
        }
    return true;
}

static int ways_rising(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Two units, or one, and the network, as a topology whose nodes and links are in their order. */
struct ways_part {
    struct tess__pool pool;
    struct tess_topology topology;
    int32_t *link; /* of the whole */
};

static enum tess_status ways_open_part(struct tess__map_ways *ways, int32_t first, int32_t second,
                                       struct ways_part *part)
{
    const struct tess_topology *whole = ways->topology;
    const int32_t units[] = {first, second}, count = first == second ? 1 : 2;
    struct tess_topology *topology = &part->topology;
    int32_t nodes = ways->nets, links = whole->link_count - ways->link_first[ways->units];
    *part = (struct ways_part){.topology = {.host_count = whole->host_count}};
    for (int32_t i = 0; i < count; i++) {
        nodes += ways->node_first[units[i] + 1] - ways->node_first[units[i]];
        links += ways->link_first[units[i] + 1] - ways->link_first[units[i]];
        topology->device_count += ways_places(ways, units[i]);
    }
    int32_t *node = tess__pool_array(&part->pool, (size_t)nodes, sizeof(*node));
    part->link = tess__pool_array(&part->pool, (size_t)links, sizeof(*part->link));
    topology->node = tess__pool_array(&part->pool, (size_t)nodes, sizeof(*topology->node));
    topology->link = tess__pool_array(&part->pool, (size_t)links, sizeof(*topology->link));
    topology->device =
        tess__pool_array(&part->pool, (size_t)topology->device_count, sizeof(*topology->device));
    if (part->pool.failed)
        return tess__no_memory("the mapping of ranks");
    nodes = links = 0;
    for (int32_t n = 0; n < whole->node_count; n++)
        if (ways->net[n] >= 0 || ways->unit[n] == first || ways->unit[n] == second)
            node[nodes++] = n;
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = ways->link_first[units[i]]; k < ways->link_first[units[i] + 1]; k++)
            part->link[links++] = ways->link[k];
    for (int32_t k = ways->link_first[ways->units]; k < whole->link_count; k++)
        part->link[links++] = ways->link[k];
    qsort(part->link, (size_t)links, sizeof(*part->link), ways_rising);
    topology->node_count = nodes;
    topology->link_count = links;
    int32_t *number = ways->scratch;
    for (int32_t n = 0; n < nodes; n++) {
        number[node[n]] = n;
        topology->node[n] = whole->node[node[n]];
    }
    for (int32_t l = 0; l < links; l++) {
        topology->link[l] = whole->link[part->link[l]];
        topology->link[l].from = number[topology->link[l].from];
        topology->link[l].to = number[topology->link[l].to];
    }
    for (int32_t i = 0, d = 0; i < count; i++)
        for (int32_t k = ways->place_first[units[i]]; k < ways->place_first[units[i] + 1]; k++)
            topology->device[d++] = number[ways->place_node[k]];
    return TESS_OK;
}

/* A route of the part as a way of the relation; its links' numbers behind code[*codes]. */
static void ways_take(struct tess__map_ways *ways, const struct ways_part *part,
                      const struct ways_relation *relation, const struct tess_routes *routes,
                      const struct tess_route *route, struct ways_way *way, int32_t *codes)
{
    *way = (struct ways_way){
        .first = *codes, .gate = {WAYS_NO_GATE, WAYS_NO_GATE}, .kind = (uint8_t)route->kind};
    for (int32_t i = 0; i < route->link_count && route->kind != TESS_PATH_NONE; i++) {
        const int32_t link = part->link[routes->link[route->first + i]];
        const struct tess_topo_link *of = &ways->topology->link[link];
        const bool from_net = ways_is_net(ways, of->from), to_net = ways_is_net(ways, of->to);
        if (from_net && to_net)
            continue;
        relation->code[(*codes)++] = ways->local_link[link];
        if (from_net)
            way->gate[1] = (uint16_t)tess__ways_gate(ways, relation->second, of->from);
        if (to_net)
            way->gate[0] = (uint16_t)tess__ways_gate(ways, relation->first, of->to);
        if (way->gate[1] != WAYS_NO_GATE)
            way->in_count++;
        else
            way->out_count++;
    }
}

/* Searches the routes of a relation. */
static enum tess_status ways_search(struct tess__map_ways *ways, struct ways_relation *relation)
{
    const int32_t rows = ways_places(ways, relation->first);
    const int32_t columns = ways_places(ways, relation->second);
    const int32_t skipped = relation->first == relation->second ? 0 : rows;
    struct ways_part part;
    struct tess_route_search *search = NULL;
    int32_t codes = 0, room = 0;
    enum tess_status status = ways_open_part(ways, relation->first, relation->second, &part);
    relation->way = malloc((size_t)rows * (size_t)columns * sizeof(*relation->way));
    if (status == TESS_OK && relation->way == NULL)
        status = tess__no_memory("the mapping of ranks");
    if (status == TESS_OK)
        status = tess_route_search_open(&part.topology, &search);
    for (int32_t i = 0; i < rows && status == TESS_OK; i++) {
        struct tess_routes row = {0};
        status = tess_route_from(search, i, &row);
        int32_t links = 0;
        for (int32_t k = 0; k < columns && status == TESS_OK; k++)
            links += row.route[skipped + k].link_count;
        if (status == TESS_OK && codes + links >= room) {
            room = 2 * (codes + links) + 1;
            int32_t *grown = realloc(relation->code, (size_t)room * sizeof(*grown));
            status = grown ? TESS_OK : tess__no_memory("the mapping of ranks");
            relation->code = grown ? grown : relation->code;
        }
        for (int32_t k = 0; k < columns && status == TESS_OK; k++)
            ways_take(ways, &part, relation, &row, &row.route[skipped + k],
                      &relation->way[(size_t)i * (size_t)columns + (size_t)k], &codes);
        tess_routes_free(&row);
    }
    tess_route_search_close(search);
    tess__pool_release(&part.pool);
    return status;
}

/* The relation of two units, searched where it is new; -1: there are too many. */
static enum tess_status ways_relate(struct tess__map_ways *ways, int32_t first, int32_t second,
                                    int16_t *number_out)
{
    const uint64_t hash = ways_relation_hash(ways, first, second);
    for (int32_t r = ways->relations - 1; r >= 0; r--) {
        *number_out = (int16_t)r;
        if (ways->relation[r].hash == hash && ways_related(ways, &ways->relation[r], first, second))
            return TESS_OK;
    }
    *number_out = -1;
    if (ways->relations == WAYS_RELATIONS_MAX)
        return TESS_OK;
    struct ways_relation *relation = &ways->relation[ways->relations];
    *relation = (struct ways_relation){.hash = hash, .first = first, .second = second};
    *number_out = (int16_t)ways->relations++;
    return ways_search(ways, relation);
}

static enum tess_status ways_relate_all(struct tess__map_ways *ways, bool *fits_out)
{
    const size_t classes = (size_t)ways->classes;
    *fits_out = classes * classes <= WAYS_TABLE_MAX;
    if (!*fits_out)
        return TESS_OK;
    ways->between = tess__pool_array(&ways->pool, classes * classes, sizeof(*ways->between));
    ways->inside = tess__pool_array(&ways->pool, classes, sizeof(*ways->inside));
    if (ways->pool.failed)
        return tess__no_memory("the mapping of ranks");
    for (size_t a = 0; a < classes && *fits_out; a++) {
        const int32_t first = ways->class_unit[2 * a];
        TESS_TRY(ways_relate(ways, first, first, &ways->inside[a]));
        *fits_out = ways->inside[a] >= 0;
        for (size_t b = 0; b < classes && *fits_out; b++) {
            const int32_t second = ways->class_unit[2 * b + (a == b)];
            if (second < 0)
                continue;
            TESS_TRY(ways_relate(ways, first, second, &ways->between[a * classes + b]));
            *fits_out = ways->between[a * classes + b] >= 0;
        }
    }
    return TESS_OK;
}

/* ---- lanes ---------------------------------------------------------------------------------- */

/* Links from gate i of a unit to gate k of another, from the last one; returns how many. */
static int32_t ways_middle(const struct tess__map_ways *ways, int32_t first, int32_t i,
                           int32_t second, int32_t k, int32_t *link)
{
    const struct tess_topology *topology = ways->topology;
    const size_t pair = ways_pair(ways, first, i, second, k);
    const size_t row = pair - pair % (size_t)ways->nets;
    int32_t at = (int32_t)(pair - row), count = 0;
    while (ways->came[row + (size_t)at] >= 0) {
        link[count] = ways->came[row + (size_t)at];
        at = ways->net[topology->link[link[count++]].from];
    }
    return count;
}

/* The links that ways of a relation use on units of two classes. */
static void ways_mark_relation(const struct tess__map_ways *ways, int32_t first, int32_t second,
                               const struct ways_relation *relation, int32_t *used)
{
    const int32_t ways_count = ways_places(ways, first) * ways_places(ways, second);
    uint16_t last[2] = {WAYS_NO_GATE, WAYS_NO_GATE};
    for (int32_t w = 0; w < ways_count; w++) {
        const struct ways_way *way = &relation->way[w];
        const int32_t *code = relation->code + way->first;
        int32_t link[TESS__MAP_WAY_MAX];
        for (int32_t k = 0; k < way->out_count; k++)
            used[ways->link[ways->link_first[first] + code[k]]] = 1;
        for (int32_t k = 0; k < way->in_count; k++)
            used[ways->link[ways->link_first[second] + code[way->out_count + k]]] = 1;
        if (way->gate[1] == WAYS_NO_GATE || memcmp(way->gate, last, sizeof(last)) == 0)
            continue;
        memcpy(last, way->gate, sizeof(last));
        int32_t count = ways_middle(ways, first, way->gate[0], second, way->gate[1], link);
        while (count > 0)
            used[link[--count]] = 1;
    }
}

void tess__map_ways_mark(const struct tess__map_ways *ways, int32_t *used)
{
    const size_t classes = (size_t)ways->classes;
    for (size_t a = 0; a < classes; a++) {
        const int32_t first = ways->class_unit[2 * a];
        ways_mark_relation(ways, first, first, &ways->relation[ways->inside[a]], used);
        for (size_t b = 0; b < classes; b++) {
            const int32_t second = ways->class_unit[2 * b + (a == b)];
            if (second >= 0)
                ways_mark_relation(ways, first, second,
                                   &ways->relation[ways->between[a * classes + b]], used);
        }
    }
    /* What one unit of a class uses, all do. */
    for (int32_t pass = 0; pass < 2; pass++)
        for (int32_t u = 0; u < ways->units; u++) {
            const int32_t c = ways->class_of[u], one = c >= 0 ? ways->class_unit[2 * c] : u;
            const int32_t to = pass == 0 ? one : u, from = pass == 0 ? u : one;
            for (int32_t k = 0; k < ways->link_first[u + 1] - ways->link_first[u]; k++)
                used[ways->link[ways->link_first[to] + k]] |=
                    used[ways->link[ways->link_first[from] + k]];
        }
}

void tess__map_ways_number(struct tess__map_ways *ways, const int32_t *number)
{
    for (int32_t k = 0; k < ways->topology->link_count; k++)
        ways->lane[k] = number[ways->link[k]];
}

static const struct ways_way *ways_of(const struct tess__map_ways *ways, int32_t from, int32_t to,
                                      const struct ways_relation **relation_out)
{
    const int32_t first = ways->unit[ways->topology->device[from]];
    const int32_t second = ways->unit[ways->topology->device[to]];
    const int32_t a = ways->class_of[first], b = ways->class_of[second];
    const int16_t number = first == second
                               ? ways->inside[a]
                               : ways->between[(size_t)a * (size_t)ways->classes + (size_t)b];
    *relation_out = &ways->relation[number];
    return &(*relation_out)->way[ways->local[from] * ways_places(ways, second) + ways->local[to]];
}

enum tess_path_kind tess__map_ways_kind(const struct tess__map_ways *ways, int32_t from, int32_t to)
{
    const struct ways_relation *relation;
    return (enum tess_path_kind)ways_of(ways, from, to, &relation)->kind;
}

const int32_t *tess__map_ways_lanes(const struct tess__map_ways *ways, int32_t from, int32_t to,
                                    int32_t *count_out)
{
    const struct ways_relation *relation;
    const struct ways_way *way = ways_of(ways, from, to, &relation);
    const int32_t first = ways->unit[ways->topology->device[from]];
    const int32_t second = ways->unit[ways->topology->device[to]];
    const int32_t *code = relation->code + way->first;
    int32_t *lane = ways->found, link[TESS__MAP_WAY_MAX];
    if (way->kind == TESS_PATH_NONE) {
        lane[0] = ways->model->lane_count - 1;
        *count_out = 1;
        return lane;
    }
    for (int32_t k = 0; k < way->out_count; k++)
        *lane++ = ways->lane[ways->link_first[first] + *code++];
    if (way->gate[1] != WAYS_NO_GATE) {
        int32_t count = ways_middle(ways, first, way->gate[0], second, way->gate[1], link);
        while (count-- > 0)
            *lane++ = ways->lane[ways->link_first[ways->units] + ways->local_link[link[count]]];
    }
    for (int32_t k = 0; k < way->in_count; k++)
        *lane++ = ways->lane[ways->link_first[second] + *code++];
    *count_out = (int32_t)(lane - ways->found);
    return ways->found;
}

/* ---- opening -------------------------------------------------------------------------------- */

static enum tess_status ways_open(struct tess__map_ways *ways)
{
    const struct tess_topology *topology = ways->topology;
    const size_t nodes = (size_t)topology->node_count, links = (size_t)topology->link_count;
    const size_t room = 2 * nodes + (size_t)topology->host_count + links + 3;
    int32_t **list[] = {&ways->unit,       &ways->node_first, &ways->node,       &ways->link_first,
                        &ways->link,       &ways->link_unit,  &ways->local_link, &ways->local_node,
                        &ways->lane,       &ways->gate_first, &ways->gate,       &ways->place_first,
                        &ways->place_node, &ways->local,      &ways->make,       &ways->class_of,
                        &ways->class_unit, &ways->gate_of,    &ways->net,        &ways->found};
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
        *list[i] = tess__pool_array(&ways->pool, room, sizeof(int32_t));
    ways->scratch = tess__pool_array(&ways->pool, 2 * room, sizeof(int32_t));
    ways->found = tess__pool_array(&ways->pool, 3 * TESS__MAP_WAY_MAX, sizeof(int32_t));
    for (int i = 0; i < 2; i++)
        ways->print[i] = tess__pool_array(&ways->pool, 4 * (nodes + links), sizeof(double));
    return ways->pool.failed ? tess__no_memory("the mapping of ranks") : TESS_OK;
}

static enum tess_status ways_find(struct tess__map_ways *ways, bool *fits_out)
{
    TESS_TRY(ways_open(ways));
    TESS_TRY(tess__ways_units(ways, fits_out));
    if (*fits_out)
        TESS_TRY(tess__ways_nets(ways, fits_out));
    return *fits_out ? ways_relate_all(ways, fits_out) : TESS_OK;
}

enum tess_status tess__map_ways_open(const struct tess__map_model *model,
                                     struct tess__map_ways **ways_out)
{
    struct tess__map_ways *ways = calloc(1, sizeof(*ways));
    bool fits = true;
    *ways_out = NULL;
    if (!ways)
        return tess__no_memory("the mapping of ranks");
    ways->model = model;
    ways->topology = &model->part;
    const enum tess_status status = ways_find(ways, &fits);
    if (status == TESS_OK && fits)
        *ways_out = ways;
    else
        tess__map_ways_close(ways);
    return status;
}

void tess__map_ways_close(struct tess__map_ways *ways)
{
    for (int32_t r = 0; ways && r < ways->relations; r++) {
        free(ways->relation[r].way);
        free(ways->relation[r].code);
    }
    if (ways)
        tess__pool_release(&ways->pool);
    free(ways);
}
