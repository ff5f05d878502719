/*
 * The search of rings that callers see: over the devices as a whole (ring.c), and of a cluster host
 * by host as well (ring_hosts.c), where that is better.
 */
#include "topology/rings/ring.h"

#include "base/clock.h"
#include "tessera/check.h"
#include "topology/rings/ring_room.h"

#include <math.h>
#include <string.h>

#define FIND_STEPS 4000000 /* for the best ring */

/* What the routes leave of rings that were found host by host: the part, at most 1, of the
 * bandwidth of each. Hosts may have several equal ways, of which the routes have one. */
static double find_share(const struct tess__ring_table *table, const struct tess_rings *hosts,
                         int32_t *uses, double *load)
{
    double share = 1;
    for (int32_t i = 0; i < hosts->ring_count; i++) {
        tess__ring_table_add(table, hosts->ring[i].order, uses);
        for (int32_t r = 0; r < table->rows; r++) {
            load[r] += uses[r] * hosts->ring[i].gbs;
            uses[r] = 0;
        }
    }
    for (int32_t r = 0; r < table->rows; r++) {
        if (load[r] > 0)
            share = fmin(share, table->gbs[r] / load[r]);
    }
    return share;
}

static void find_swap(struct tess_ring *a, struct tess_ring *b)
{
    struct tess_ring kept = *a;
    *a = *b;
    *b = kept;
}

/* The rings found host by host in the place of those that they are better than. */
static void find_take(const struct tess__ring_table *table, int32_t *uses, double *load,
                      struct tess_rings *hosts, struct tess_rings *rings)
{
    double share = find_share(table, hosts, uses, load);
    struct tess_ring *single = &rings->best_single;
    hosts->best_single.gbs =
        tess__ring_table_gbs(table, table->gbs, hosts->best_single.order, uses, NULL);
    if (hosts->best_single.gbs > single->gbs * (1 + TESS__RING_NEAR)) {
        find_swap(single, &hosts->best_single);
        rings->optimal = single->gbs >= rings->single_bound_gbs * (1 - TESS__RING_NEAR);
    }
    if (hosts->total_gbs * share > rings->total_gbs * (1 + TESS__RING_NEAR)) {
        rings->ring_count = hosts->ring_count;
        rings->total_gbs = 0;
        for (int32_t i = 0; i < rings->ring_count; i++) {
            find_swap(&rings->ring[i], &hosts->ring[i]);
            rings->ring[i].gbs *= share;
            rings->total_gbs += rings->ring[i].gbs;
        }
    }
    if (single->gbs > rings->total_gbs) {
        memcpy(rings->ring[0].order, single->order, (size_t)rings->count * sizeof(int32_t));
        rings->ring[0].gbs = rings->total_gbs = single->gbs;
        rings->ring_count = 1;
    }
    rings->bound_gbs = fmax(rings->bound_gbs, rings->total_gbs); /* rounding */
}

static enum tess_status find_by_hosts(const struct tess_routes *routes, int32_t most,
                                      double deadline_s, struct tess_rings *rings)
{
    struct tess__ring_table table;
    struct tess_rings hosts = {0};
    TESS_TRY(tess__ring_table_open(&table, routes));
    int32_t *uses = tess__pool_array(&table.pool, (size_t)table.rows, sizeof(*uses));
    double *load = tess__pool_array(&table.pool, (size_t)table.rows, sizeof(*load));
    enum tess_status status =
        table.pool.failed ? tess__no_memory("the search of rings")
                          : tess__rings_find_hosts(routes->topology, most, deadline_s, &hosts);
    if (status == TESS_OK)
        find_take(&table, uses, load, &hosts, rings);
    tess_rings_free(&hosts);
    tess__ring_table_free(&table);
    return status;
}

enum tess_status tess_rings_find(const struct tess_routes *routes,
                                 const struct tess_ring_search *search,
                                 struct tess_rings *rings_out)
{
    struct tess__ring_effort effort = {.steps = FIND_STEPS};
    *rings_out = (struct tess_rings){0};
    if (search->rings < 1 || search->rings > TESS_RINGS_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "%d rings are requested; expected 1 to %d", (int)search->rings,
                  TESS_RINGS_MAX);
    if (search->time_limit_s > 0)
        effort.deadline_s = tess_clock_s() + search->time_limit_s;
    TESS_TRY(tess__rings_find(routes, search->rings, &effort, rings_out));
    if (routes->device_count <= TESS__RING_EXACT_MAX || !tess__rings_are_hosts(routes->topology))
        return TESS_OK;
    enum tess_status status = find_by_hosts(routes, search->rings, effort.deadline_s, rings_out);
    if (status != TESS_OK)
        tess_rings_free(rings_out);
    return status;
}
