/*
 * Finding a mapping: first ones along the axes (map_layout.c), refined by exchanges
 * (map_exchange.c), all of them where the mesh is small (map_search.c), against the natural order
 * and against a lower bound (map_bound.c). Effort is counted, not timed, so that all ranks
 * come to the same answer.
 */
#include "topology/map/map.h"

#include "base/hash.h"
#include "tessera/check.h"
#include "topology/map/map_room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAP_WORTH           0.001   /* of the natural order's cost: less is not worth a change */
#define MAP_EXCHANGE_VISITS 6000000 /* lanes visited by exchanges */
#define MAP_SEARCH_VISITS   6000000 /* and by the search of all */
#define MAP_SEARCH_RANKS    16
#define MAP_PERTURB_VISITS  4000000 /* lanes visited by exchanges after a perturbation */
#define MAP_PERTURB_RANKS   256     /* above, exchanges do not come to their end */

/* Each start refined by exchanges; the load has the best result, and so has `best`. */
static void map_refine(struct tess__map_load *load, const struct tess__map_starts *starts,
                       double goal_s, int32_t *best)
{
    struct tess__map_worth worth = {INFINITY, INFINITY};
    for (int32_t i = 0; i < starts->count && worth.cost_s > goal_s; i++) {
        tess__map_load_set(load, starts->at[i]);
        tess__map_exchange(load, goal_s, MAP_EXCHANGE_VISITS / starts->count);
        (void)tess__map_load_keep(load, &worth, best);
    }
    tess__map_load_set(load, best);
}

/*
 * Out of a local minimum: some ranks of the best mapping change places at random, the same ones in
 * every run, and exchanges refine the result.
 */
static void map_perturb(struct tess__map_load *load, double goal_s, int32_t *best)
{
    const struct tess__map_model *model = load->model;
    struct tess__map_worth worth = load->worth;
    int64_t most = load->visits + MAP_PERTURB_VISITS;
    int32_t first = model->keep_first ? 1 : 0, movable = model->count - first;
    for (uint64_t seed = 1; worth.cost_s > goal_s && load->visits < most; seed++) {
        memcpy(load->at, best, (size_t)model->count * sizeof(*best));
        for (uint64_t k = 0; k < 2 + seed % 4; k++) {
            uint64_t drawn = tess_hash_mix(seed << 8 | k);
            int32_t r = first + (int32_t)(drawn % (uint64_t)movable);
            int32_t s = first + (int32_t)((drawn >> 32) % (uint64_t)movable);
            int32_t place = load->at[r];
            load->at[r] = load->at[s];
            load->at[s] = place;
        }
        tess__map_load_count(load);
        tess__map_exchange(load, goal_s, most - load->visits);
        (void)tess__map_load_keep(load, &worth, best);
    }
    tess__map_load_set(load, best);
}

/* Something better than the natural order, which the load has at first; the best ends there. */
static enum tess_status map_improve(struct tess__map_load *load, struct tess_map *map)
{
    const struct tess__map_model *model = load->model;
    struct tess__map_starts starts;
    bool whole = false;
    enum tess_status status = tess__map_layout(load, &map->bound_s, &starts);
    double goal_s = map->bound_s * (1 + TESS__MAP_NEAR);
    if (status == TESS_OK)
        map_refine(load, &starts, goal_s, map->place);
    if (status == TESS_OK && load->worth.cost_s > goal_s && model->count <= MAP_SEARCH_RANKS)
        status = tess__map_search(load, map->bound_s, MAP_SEARCH_VISITS, &whole);
    if (status == TESS_OK && load->worth.cost_s > goal_s && !whole &&
        model->count <= MAP_PERTURB_RANKS) {
        memcpy(map->place, load->at, (size_t)model->count * sizeof(*load->at));
        map_perturb(load, goal_s, map->place);
    }
    if (status == TESS_OK && whole)
        map->bound_s = fmax(map->bound_s, load->worth.cost_s);
    free(starts.block);
    return status;
}

/* A way that is missing outweighs all others, so that it is there only where no mapping does
 * without. */
static enum tess_status map_check_ways(const struct tess__map_load *load)
{
    const struct tess__map_model *model = load->model;
    for (int32_t h = 0; h < model->hop_count; h++) {
        int32_t from = load->at[model->hop[h].from], to = load->at[model->hop[h].to];
        if (tess__map_kind(model, from, to) == TESS_PATH_NONE)
            TESS_FAIL(
                TESS_ERR_DATA,
                "no mapping was found in which all ranks that talk reach each other: '%s' and "
                "'%s' do not; expected a network that joins them",
                model->topology->node[model->part.device[from]].name,
                model->topology->node[model->part.device[to]].name);
    }
    return TESS_OK;
}

static enum tess_status map_find(struct tess__map_load *load, struct tess_map *map)
{
    const struct tess__map_model *model = load->model;
    map->natural_s = load->worth.cost_s;
    TESS_TRY(tess__map_bound(model, &map->bound_s));
    if (load->worth.cost_s > map->bound_s * (1 + TESS__MAP_NEAR))
        TESS_TRY(map_improve(load, map));
    if (!(load->worth.cost_s < map->natural_s * (1 - MAP_WORTH))) {
        for (int32_t i = 0; i < model->count; i++)
            load->at[i] = i;
        tess__map_load_count(load);
    }
    TESS_TRY(map_check_ways(load));
    memcpy(map->place, load->at, (size_t)model->count * sizeof(*map->place));
    map->cost_s = load->worth.cost_s;
    map->bound_s = fmin(map->bound_s, map->cost_s); /* rounding */
    map->optimal = map->cost_s <= map->bound_s * (1 + TESS__MAP_NEAR);
    return TESS_OK;
}

enum tess_status tess_map_find(const struct tess_topology *topology, const struct tess_map_ask *ask,
                               struct tess_map *map_out)
{
    struct tess__map_model model;
    struct tess__map_load load = {0};
    *map_out = (struct tess_map){0};
    TESS_TRY(tess__map_model_open(&model, topology, ask));
    enum tess_status status = tess__map_load_open(&load, &model);
    map_out->rank_count = model.count;
    map_out->place = malloc((size_t)model.count * sizeof(*map_out->place));
    if (status == TESS_OK && !map_out->place)
        status = tess__no_memory("the mapping of ranks");
    if (status == TESS_OK)
        status = map_find(&load, map_out);
    tess__map_load_close(&load);
    tess__map_model_close(&model);
    if (status != TESS_OK)
        tess_map_free(map_out);
    return status;
}

void tess_map_free(struct tess_map *map)
{
    free(map->place);
    *map = (struct tess_map){0};
}
