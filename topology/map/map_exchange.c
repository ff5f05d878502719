/*
 * Refining a mapping: two ranks exchange places where the most loaded lane gets less to carry, or
 * where nothing changes there and the others get less. Ranks that send over a most loaded lane are
 * tried first. Bounded by a number of lanes visited, not by time.
 */
#include "topology/map/map_room.h"

#include <string.h>

/* ---- one exchange --------------------------------------------------------------------------- */

static void exchange_hop(struct tess__map_load *load, const struct tess__map_hop *hop, int32_t by)
{
    const struct tess__map_model *model = load->model;
    int32_t lanes;
    const int32_t *lane = tess__map_lanes(model, load->at[hop->from], load->at[hop->to], &lanes);
    for (int32_t k = 0; k < lanes; k++) {
        int32_t at = lane[k];
        if (!load->mark[at]) {
            load->mark[at] = true;
            memcpy(load->before[load->touched_count], load->uses[at], sizeof(load->uses[at]));
            load->before_s[load->touched_count] = tess__map_lane_s(load, at);
            load->touched[load->touched_count++] = at;
        }
        load->uses[at][hop->axis] += by;
    }
    load->visits += lanes;
}

/* All hops of both ranks, those between them once. */
static void exchange_hops(struct tess__map_load *load, int32_t r, int32_t s, int32_t by)
{
    const struct tess__map_model *model = load->model;
    for (int32_t k = model->first[r]; k < model->first[r + 1]; k++)
        exchange_hop(load, &model->hop[model->list[k]], by);
    for (int32_t k = model->first[s]; k < model->first[s + 1]; k++) {
        const struct tess__map_hop *hop = &model->hop[model->list[k]];
        if (hop->from != r && hop->to != r)
            exchange_hop(load, hop, by);
    }
}

static void exchange_places(struct tess__map_load *load, int32_t r, int32_t s)
{
    int32_t place = load->at[r];
    load->at[r] = load->at[s];
    load->at[s] = place;
}

/* Does it help, by the lanes that were touched? */
static bool exchange_helps(const struct tess__map_load *load, double *sum_out)
{
    double least_worst = load->worth.cost_s * (1 - TESS__MAP_NEAR), change = 0;
    double most_worst = load->worth.cost_s * (1 + TESS__MAP_NEAR);
    int32_t worst = load->worst_count;
    for (int32_t i = 0; i < load->touched_count; i++) {
        double s = tess__map_lane_s(load, load->touched[i]), before_s = load->before_s[i];
        if (s > most_worst)
            return false;
        worst += (s >= least_worst) - (before_s >= least_worst);
        change += s * s - before_s * before_s;
    }
    *sum_out = load->worth.sum + change;
    return worst <= 0 || change < -load->worth.sum * TESS__MAP_NEAR;
}

/* Tries it; taken back where it does not help. */
static bool exchange_try(struct tess__map_load *load, int32_t r, int32_t s)
{
    double sum;
    load->touched_count = 0;
    exchange_hops(load, r, s, -1);
    exchange_places(load, r, s);
    exchange_hops(load, r, s, 1);
    bool helps = exchange_helps(load, &sum);
    for (int32_t i = 0; i < load->touched_count; i++) {
        int32_t lane = load->touched[i];
        load->mark[lane] = false;
        if (!helps)
            memcpy(load->uses[lane], load->before[i], sizeof(load->before[i]));
    }
    if (helps)
        tess__map_load_weigh(load);
    else
        exchange_places(load, r, s);
    return helps;
}

/* ---- which ---------------------------------------------------------------------------------- */

/* Does the rank send or receive over a most loaded lane? */
static bool exchange_is_hot(struct tess__map_load *load, int32_t rank)
{
    const struct tess__map_model *model = load->model;
    double least_worst = load->worth.cost_s * (1 - TESS__MAP_NEAR);
    for (int32_t k = model->first[rank]; k < model->first[rank + 1]; k++) {
        const struct tess__map_hop *hop = &model->hop[model->list[k]];
        int32_t lanes;
        const int32_t *lane =
            tess__map_lanes(model, load->at[hop->from], load->at[hop->to], &lanes);
        load->visits += lanes;
        for (int32_t i = 0; i < lanes; i++) {
            if (tess__map_lane_s(load, lane[i]) >= least_worst)
                return true;
        }
    }
    return false;
}

/* Each rank with all others, hot ones alone or all pairs; does any exchange help? */
static bool exchange_pass(struct tess__map_load *load, bool hot, double goal_s, int64_t most)
{
    const struct tess__map_model *model = load->model;
    int32_t first = model->keep_first ? 1 : 0;
    bool helped = false;
    for (int32_t r = first; r < model->count; r++) {
        if (hot && !exchange_is_hot(load, r))
            continue;
        for (int32_t s = hot ? first : r + 1; s < model->count; s++) {
            if (load->visits >= most || load->worth.cost_s <= goal_s)
                return false;
            if (s != r && exchange_try(load, r, s))
                helped = true;
        }
    }
    return helped;
}

void tess__map_exchange(struct tess__map_load *load, double bound_s, int64_t visits)
{
    double goal_s = bound_s * (1 + TESS__MAP_NEAR);
    int64_t most = load->visits + visits;
    bool hot = true;
    for (;;) {
        if (exchange_pass(load, hot, goal_s, most))
            hot = true;
        else if (hot)
            hot = false;
        else
            break;
    }
}
