/*
 * All mappings of a small mesh, by branch and bound: rank after rank gets a place, and loads only
 * grow, so that whatever has reached the best cost so far is left.
 */
#include "tessera/check.h"
#include "topology/map/map_room.h"

#include <stdlib.h>
#include <string.h>

struct search {
    struct tess__map_load *load;
    int32_t *best; /* [count] the best mapping; the load's, unless something is better */
    bool *taken;   /* [count] places */
    double best_s, bound_s;
    int64_t most; /* visits */
    bool cut;
};

/* Hops between the rank and those before it; the most loaded lane of theirs, or more. */
static double search_add(struct search *search, int32_t rank, int32_t by, double cost_s)
{
    struct tess__map_load *load = search->load;
    const struct tess__map_model *model = load->model;
    for (int32_t k = model->first[rank]; k < model->first[rank + 1]; k++) {
        const struct tess__map_hop *hop = &model->hop[model->list[k]];
        if (hop->from > rank || hop->to > rank)
            continue;
        tess__map_load_hop(load, hop, by);
        if (by < 0)
            continue;
        int32_t lanes;
        const int32_t *lane =
            tess__map_lanes(model, load->at[hop->from], load->at[hop->to], &lanes);
        for (int32_t i = 0; i < lanes; i++) {
            double s = tess__map_lane_s(load, lane[i]);
            cost_s = s > cost_s ? s : cost_s;
        }
    }
    return cost_s;
}

static bool search_done(struct search *search)
{
    search->cut = search->cut || search->load->visits >= search->most;
    return search->cut || search->best_s <= search->bound_s * (1 + TESS__MAP_NEAR);
}

static void search_rank(struct search *search, int32_t rank, double cost_s)
{
    struct tess__map_load *load = search->load;
    int32_t count = load->model->count;
    if (rank == count) {
        search->best_s = cost_s;
        memcpy(search->best, load->at, (size_t)count * sizeof(*search->best));
        return;
    }
    /* Rings can be turned until rank 0 is at the first place; chains cannot. */
    bool fixed = rank == 0 && (load->model->keep_first || !tess__map_has_chain(load->model));
    for (int32_t place = 0; place < (fixed ? 1 : count) && !search_done(search); place++) {
        if (search->taken[place])
            continue;
        load->at[rank] = place;
        search->taken[place] = true;
        load->visits++;
        double so_far_s = search_add(search, rank, 1, cost_s);
        if (so_far_s < search->best_s * (1 - TESS__MAP_NEAR))
            search_rank(search, rank + 1, so_far_s);
        load->at[rank] = place;
        (void)search_add(search, rank, -1, 0);
        search->taken[place] = false;
    }
}

enum tess_status tess__map_search(struct tess__map_load *load, double bound_s, int64_t visits,
                                  bool *whole_out)
{
    size_t count = (size_t)load->model->count;
    struct search search = {.load = load,
                            .best_s = load->worth.cost_s,
                            .bound_s = bound_s,
                            .most = load->visits + visits};
    struct tess__pool pool = {0};
    search.best = tess__pool_array(&pool, count, sizeof(*search.best));
    search.taken = tess__pool_array(&pool, count, sizeof(*search.taken));
    if (pool.failed) {
        tess__pool_release(&pool);
        return tess__no_memory("the mapping of ranks");
    }
    memcpy(search.best, load->at, count * sizeof(*search.best));
    memset(load->uses, 0, (size_t)load->model->lane_count * sizeof(*load->uses));
    search_rank(&search, 0, 0);
    *whole_out = !search.cut;
    memcpy(load->at, search.best, count * sizeof(*search.best));
    tess__map_load_count(load);
    tess__pool_release(&pool);
    return TESS_OK;
}
