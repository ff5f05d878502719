/*
 * What a mapping is judged by: the hops of all groups of the mesh, the ways between the places and
 * the lanes that they share, and the load that a mapping puts on each.
 */
#include "tessera/check.h"
#include "topology/map/map_room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_RANKS_MAX 65536
#define MODEL_TABLE     512  /* up to so many ranks ways between all pairs are kept */
#define MODEL_TABLE_MAX 2048 /* and so many where hosts are not alike enough for map_ways.c */
#define MODEL_MISSING   (-1) /* in place of a link, before lanes are numbered */
#define MODEL_NO_WAY_S  1e30 /* for a byte: outweighs any time, and its square is still a number */
#define MODEL_BYTES_MAX 1e30

/* ---- the request ---------------------------------------------------------------------------- */

static enum tess_status model_take_axes(struct tess__map_model *model,
                                        const struct tess_map_ask *ask)
{
    if (ask->axis_count < 1 || ask->axis_count > TESS_MAP_AXES)
        TESS_FAIL(TESS_ERR_USAGE, "a mesh of %d axes is to be mapped; expected 1 to %d",
                  (int)ask->axis_count, TESS_MAP_AXES);
    int64_t count = 1;
    for (int32_t a = 0; a < ask->axis_count; a++) {
        const struct tess_map_axis *axis = &ask->axis[a];
        if (axis->count < 1)
            TESS_FAIL(TESS_ERR_USAGE, "axis '%s' has %d ranks; expected 1 or more", axis->name,
                      (int)axis->count);
        if (!(axis->bytes >= 0 && axis->bytes <= MODEL_BYTES_MAX))
            TESS_FAIL(TESS_ERR_USAGE, "axis '%s' sends %g bytes; expected 0 to %g", axis->name,
                      axis->bytes, MODEL_BYTES_MAX);
        model->axis[a] = *axis;
        model->stride[a] = (int32_t)count;
        count *= axis->count;
        if (count > MODEL_RANKS_MAX)
            TESS_FAIL(TESS_ERR_UNSUPPORTED,
                      "a mesh of more than %d ranks is to be mapped; keep the natural order",
                      MODEL_RANKS_MAX);
    }
    if (count > model->topology->device_count)
        TESS_FAIL(TESS_ERR_USAGE, "a mesh of %d ranks is to be mapped on %d devices", (int)count,
                  (int)model->topology->device_count);
    model->axis_count = ask->axis_count;
    model->count = (int32_t)count;
    model->keep_first = ask->keep_first;
    return TESS_OK;
}

static enum tess_status model_take_places(struct tess__map_model *model,
                                          const struct tess_map_ask *ask)
{
    const struct tess_topology *topology = model->topology;
    int32_t *node = tess__pool_array(&model->pool, (size_t)model->count, sizeof(*node));
    bool *taken = tess__pool_array(&model->pool, (size_t)topology->device_count, sizeof(*taken));
    if (model->pool.failed)
        return tess__no_memory("the mapping of ranks");
    for (int32_t i = 0; i < model->count; i++) {
        int32_t device = ask->place[i];
        if (device < 0 || device >= topology->device_count)
            TESS_FAIL(TESS_ERR_USAGE, "rank %d is to be on device %d; there are 0 to %d", (int)i,
                      (int)device, (int)topology->device_count - 1);
        if (taken[device])
            TESS_FAIL(TESS_ERR_USAGE, "rank %d is to be on device %d, as another one is", (int)i,
                      (int)device);
        taken[device] = true;
        node[i] = topology->device[device];
    }
    model->part = *topology;
    model->part.device = node;
    model->part.device_count = model->count;
    return TESS_OK;
}

/* ---- ways ----------------------------------------------------------------------------------- */

/* Takes the links of the routes over; those are lanes later. */
static enum tess_status model_take_row(struct tess__map_row *row, struct tess_routes *routes)
{
    int32_t links = 0, count = routes->device_count;
    for (int32_t k = 0; k < count; k++)
        links += routes->route[k].link_count;
    int32_t *lane = realloc(routes->link, ((size_t)links + 1) * sizeof(*lane));
    row->way = malloc((size_t)count * sizeof(*row->way));
    if (lane)
        routes->link = lane;
    if (!lane || !row->way)
        return tess__no_memory("the mapping of ranks");
    routes->link = NULL;
    row->lane = lane;
    row->lane_count = links + 1;
    row->lane[links] = MODEL_MISSING;
    for (int32_t k = 0; k < count; k++) {
        const struct tess_route *route = &routes->route[k];
        bool none = route->kind == TESS_PATH_NONE;
        row->way[k].kind = (uint8_t)route->kind;
        row->way[k].first = none ? links : route->first;
        row->way[k].lane_count = none ? 1 : (uint8_t)route->link_count;
    }
    return TESS_OK;
}

static enum tess_status model_find_ways(struct tess__map_model *model)
{
    struct tess_route_search *search;
    struct tess_routes routes;
    if (model->count > MODEL_TABLE) {
        TESS_TRY(tess__map_ways_open(model, &model->ways));
        if (model->ways != NULL)
            return TESS_OK;
        if (model->count > MODEL_TABLE_MAX)
            TESS_FAIL(TESS_ERR_UNSUPPORTED,
                      "a mesh of %d ranks is to be mapped on hosts that have too little in common "
                      "in how they are made and joined; above %d ranks keep the natural order",
                      (int)model->count, MODEL_TABLE_MAX);
    }
    model->row = tess__pool_array(&model->pool, (size_t)model->count, sizeof(*model->row));
    if (!model->row)
        return tess__no_memory("the mapping of ranks");
    TESS_TRY(tess_route_search_open(&model->part, &search));
    enum tess_status status = TESS_OK;
    for (int32_t i = 0; i < model->count && status == TESS_OK; i++) {
        status = tess_route_from(search, i, &routes);
        if (status == TESS_OK) {
            status = model_take_row(&model->row[i], &routes);
            tess_routes_free(&routes);
        }
    }
    tess_route_search_close(search);
    return status;
}

/* Numbers the links that are used, in their order, and renames them in the ways. */
static enum tess_status model_number_lanes(struct tess__map_model *model)
{
    const struct tess_topology *topology = model->topology;
    int32_t *memory = tess__pool_array(&model->pool, (size_t)topology->link_count, sizeof(*memory));
    int32_t lanes = 0;
    if (!memory)
        return tess__no_memory("the mapping of ranks");
    int32_t *number = memory + 1; /* [-1] is that of MODEL_MISSING */
    if (model->ways != NULL)
        tess__map_ways_mark(model->ways, number);
    for (int32_t i = 0; i < model->count && model->row != NULL; i++) {
        for (int32_t k = 0; k < model->row[i].lane_count; k++)
            number[model->row[i].lane[k]] = 1;
    }
    for (int32_t i = 0; i < topology->link_count; i++)
        number[i] = number[i] ? lanes++ : -1;
    number[MODEL_MISSING] = lanes;
    model->link = tess__pool_array(&model->pool, (size_t)lanes, sizeof(*model->link));
    model->byte_s = tess__pool_array(&model->pool, (size_t)lanes, sizeof(*model->byte_s));
    if (model->pool.failed)
        return tess__no_memory("the mapping of ranks");
    for (int32_t i = 0; i < topology->link_count; i++) {
        if (number[i] >= 0) {
            model->link[number[i]] = i;
            model->byte_s[number[i]] = 1 / (topology->link[i].gbs * 1e9);
        }
    }
    model->link[lanes] = -1;
    model->byte_s[lanes] = MODEL_NO_WAY_S;
    model->lane_count = lanes + 1;
    if (model->ways != NULL)
        tess__map_ways_number(model->ways, number);
    for (int32_t i = 0; i < model->count && model->row != NULL; i++) {
        for (int32_t k = 0; k < model->row[i].lane_count; k++)
            model->row[i].lane[k] = number[model->row[i].lane[k]];
    }
    return TESS_OK;
}

/* ---- hops ----------------------------------------------------------------------------------- */

/* The hop along the axis from this rank: on in the group's ring, or back (a chain's stages send
 * both ways). False where there is none. */
static bool model_hop(const struct tess__map_model *model, int32_t rank, int32_t a, bool back,
                      struct tess__map_hop *hop)
{
    const struct tess_map_axis *axis = &model->axis[a];
    int32_t stride = model->stride[a], at = rank / stride % axis->count;
    int32_t to = back ? at - 1 : at + 1;
    if (axis->count < 2 || !(axis->bytes > 0) || (back && !axis->chain))
        return false;
    if (to < 0 || (to == axis->count && axis->chain))
        return false;
    to %= axis->count;
    *hop = (struct tess__map_hop){.from = rank, .to = rank + (to - at) * stride, .axis = a};
    return true;
}

static enum tess_status model_list_hops(struct tess__map_model *model)
{
    size_t most = (size_t)model->count * (size_t)model->axis_count * 2;
    model->hop = tess__pool_array(&model->pool, most, sizeof(*model->hop));
    model->list = tess__pool_array(&model->pool, 2 * most, sizeof(*model->list));
    model->first = tess__pool_array(&model->pool, (size_t)model->count + 1, sizeof(*model->first));
    if (model->pool.failed)
        return tess__no_memory("the mapping of ranks");
    for (int32_t rank = 0; rank < model->count; rank++) {
        for (int32_t a = 0; a < model->axis_count; a++) {
            for (int back = 0; back < 2; back++) {
                struct tess__map_hop *hop = &model->hop[model->hop_count];
                if (model_hop(model, rank, a, back, hop)) {
                    model->hop_count++;
                    model->first[hop->from + 2]++;
                    model->first[hop->to + 2]++;
                }
            }
        }
    }
    for (int32_t rank = 0; rank < model->count; rank++)
        model->first[rank + 2] += model->first[rank + 1];
    for (int32_t h = 0; h < model->hop_count; h++) {
        model->list[model->first[model->hop[h].from + 1]++] = h;
        model->list[model->first[model->hop[h].to + 1]++] = h;
    }
    return TESS_OK;
}

/* ---- the model ------------------------------------------------------------------------------ */

enum tess_status tess__map_model_open(struct tess__map_model *model,
                                      const struct tess_topology *topology,
                                      const struct tess_map_ask *ask)
{
    *model = (struct tess__map_model){.topology = topology};
    enum tess_status status;
    TESS_TRY_GOTO(status, failed, model_take_axes(model, ask));
    TESS_TRY_GOTO(status, failed, model_take_places(model, ask));
    TESS_TRY_GOTO(status, failed, model_find_ways(model));
    TESS_TRY_GOTO(status, failed, model_number_lanes(model));
    TESS_TRY_GOTO(status, failed, model_list_hops(model));
    return TESS_OK;
failed:
    tess__map_model_close(model);
    return status;
}

void tess__map_model_close(struct tess__map_model *model)
{
    for (int32_t i = 0; model->row && i < model->count; i++) {
        free(model->row[i].way);
        free(model->row[i].lane);
    }
    tess__map_ways_close(model->ways);
    tess__pool_release(&model->pool);
    *model = (struct tess__map_model){0};
}

int32_t tess__map_host(const struct tess__map_model *model, int32_t place)
{
    return model->topology->node[model->part.device[place]].host;
}

bool tess__map_has_chain(const struct tess__map_model *model)
{
    bool chain = false;
    for (int32_t a = 0; a < model->axis_count; a++)
        chain = chain || (model->axis[a].chain && model->axis[a].count > 1);
    return chain;
}

enum tess_path_kind tess__map_kind(const struct tess__map_model *model, int32_t from, int32_t to)
{
    return model->ways != NULL ? tess__map_ways_kind(model->ways, from, to)
                               : (enum tess_path_kind)model->row[from].way[to].kind;
}

/* ---- loads ---------------------------------------------------------------------------------- */

enum tess_status tess__map_load_open(struct tess__map_load *load,
                                     const struct tess__map_model *model)
{
    size_t lanes = (size_t)model->lane_count;
    *load = (struct tess__map_load){.model = model};
    load->at = tess__pool_array(&load->pool, (size_t)model->count, sizeof(*load->at));
    load->uses = tess__pool_array(&load->pool, lanes, sizeof(*load->uses));
    load->touched = tess__pool_array(&load->pool, lanes, sizeof(*load->touched));
    load->before = tess__pool_array(&load->pool, lanes, sizeof(*load->before));
    load->before_s = tess__pool_array(&load->pool, lanes, sizeof(*load->before_s));
    load->mark = tess__pool_array(&load->pool, lanes, sizeof(*load->mark));
    if (load->pool.failed) {
        tess__map_load_close(load);
        return tess__no_memory("the mapping of ranks");
    }
    for (int32_t i = 0; i < model->count; i++)
        load->at[i] = i;
    tess__map_load_count(load);
    return TESS_OK;
}

void tess__map_load_close(struct tess__map_load *load)
{
    tess__pool_release(&load->pool);
    *load = (struct tess__map_load){0};
}

double tess__map_lane_s(const struct tess__map_load *load, int32_t lane)
{
    const struct tess__map_model *model = load->model;
    double bytes = 0;
    for (int32_t a = 0; a < model->axis_count; a++)
        bytes += load->uses[lane][a] * model->axis[a].bytes;
    return bytes * model->byte_s[lane];
}

void tess__map_load_hop(struct tess__map_load *load, const struct tess__map_hop *hop, int32_t by)
{
    const struct tess__map_model *model = load->model;
    int32_t lanes;
    const int32_t *lane = tess__map_lanes(model, load->at[hop->from], load->at[hop->to], &lanes);
    for (int32_t k = 0; k < lanes; k++)
        load->uses[lane[k]][hop->axis] += by;
    load->visits += lanes;
}

/* The most loaded lane and the sum of squares, by all lanes. */
void tess__map_load_weigh(struct tess__map_load *load)
{
    struct tess__map_worth *worth = &load->worth;
    *worth = (struct tess__map_worth){0};
    load->worst_count = 0;
    for (int32_t lane = 0; lane < load->model->lane_count; lane++) {
        double s = tess__map_lane_s(load, lane);
        worth->sum += s * s;
        if (s > worth->cost_s * (1 + TESS__MAP_NEAR)) {
            worth->cost_s = s;
            load->worst_count = 1;
        } else if (s > 0 && s >= worth->cost_s * (1 - TESS__MAP_NEAR)) {
            load->worst_count++;
        }
    }
}

void tess__map_load_count(struct tess__map_load *load)
{
    const struct tess__map_model *model = load->model;
    memset(load->uses, 0, (size_t)model->lane_count * sizeof(*load->uses));
    for (int32_t h = 0; h < model->hop_count; h++)
        tess__map_load_hop(load, &model->hop[h], 1);
    load->visits += model->lane_count;
    tess__map_load_weigh(load);
}

void tess__map_load_set(struct tess__map_load *load, const int32_t *at)
{
    memcpy(load->at, at, (size_t)load->model->count * sizeof(*at));
    tess__map_load_count(load);
}

bool tess__map_better(struct tess__map_worth worth, struct tess__map_worth than)
{
    return worth.cost_s < than.cost_s * (1 - TESS__MAP_NEAR) ||
           (worth.cost_s <= than.cost_s * (1 + TESS__MAP_NEAR) &&
            worth.sum < than.sum * (1 - TESS__MAP_NEAR));
}

bool tess__map_load_keep(const struct tess__map_load *load, struct tess__map_worth *best_worth,
                         int32_t *at)
{
    if (!tess__map_better(load->worth, *best_worth))
        return false;
    *best_worth = load->worth;
    memcpy(at, load->at, (size_t)load->model->count * sizeof(*at));
    return true;
}
