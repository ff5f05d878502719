/*
 * Finding rings: the best one, then others out of what it leaves, then, where that is not near the
 * bound, sets of rings by linear programming. The searches are in files of their own.
 */
#include "topology/ring.h"

#include "base/clock.h"
#include "base/hash.h"
#include "tessera/check.h"
#include "topology/constants.h"
#include "topology/ring_room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RING_WORTH      0.02    /* of the first: what a further ring must carry */
#define RING_STEPS      4000000 /* for the best ring */
#define RING_STEPS_MORE 50000   /* for each further one, which need not be the best */
#define RING_TRIES      12      /* orders of devices for rings one by one */
#define RING_TRIES_MORE 2       /* of more devices than RING_TRY_MAX, where a ring takes longer */
#define RING_TRY_MAX    10
#define RING_ROWS_MAX   1024 /* of a linear programme; real machines have a hundred or two */

struct ring_find {
    const struct tess_routes *routes;
    struct tess__ring_table table;
    double *left;  /* [rows] capacity that rings so far do not use */
    int32_t *uses; /* [rows] scratch, zero */
    struct tess__ring_effort effort;
};

double tess_ring_gbs(const struct tess_routes *routes, const int32_t *order, int32_t count,
                     int32_t *uses)
{
    double least = count > 1 ? INFINITY : TESS_GBS_LOCAL;
    for (int pass = 0; pass < 2 && count > 1; pass++) {
        for (int32_t i = 0; i < count; i++) {
            const struct tess_route *route =
                &routes->route[order[i] * routes->device_count + order[(i + 1) % count]];
            if (route->kind == TESS_PATH_NONE)
                least = 0;
            for (int32_t k = 0; k < route->link_count; k++) {
                int32_t link = routes->link[route->first + k];
                if (pass == 0)
                    least = fmin(least, routes->topology->link[link].gbs / ++uses[link]);
                else
                    uses[link] = 0;
            }
        }
    }
    return least;
}

static enum tess_status ring_no_memory(void)
{
    TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the search of rings");
}

static enum tess_status ring_search(const struct ring_find *find, int32_t *order,
                                    struct tess__ring_found *found)
{
    return find->table.count <= TESS__RING_EXACT_MAX
               ? tess__ring_search(&find->table, find->left, &find->effort, order, found)
               : tess__ring_improve(&find->table, find->left, &find->effort, order, found);
}

/* Takes what the ring uses out of `left`. */
static void ring_take(struct ring_find *find, const struct tess_ring *ring)
{
    tess__ring_table_add(&find->table, ring->order, find->uses);
    for (int32_t r = 0; r < find->table.rows; r++) {
        find->left[r] -= find->uses[r] * ring->gbs;
        if (find->left[r] < find->table.gbs[r] * TESS__RING_NEAR)
            find->left[r] = 0;
        find->uses[r] = 0;
    }
}

/* The best ring of all, and others one by one in what is left. */
static enum tess_status ring_one_by_one(struct ring_find *find, int32_t most,
                                        struct tess_rings *rings)
{
    size_t bytes = (size_t)rings->count * sizeof(int32_t);
    struct tess__ring_found found;
    TESS_TRY(ring_search(find, rings->best_single.order, &found));
    if (find->effort.steps > RING_STEPS_MORE)
        find->effort.steps = RING_STEPS_MORE;
    rings->best_single.gbs = found.gbs;
    rings->single_bound_gbs = found.bound_gbs;
    rings->optimal = found.proved;
    memcpy(rings->ring[0].order, rings->best_single.order, bytes);
    for (double least = 0; rings->ring_count < most; least = RING_WORTH * rings->ring[0].gbs) {
        struct tess_ring *ring = &rings->ring[rings->ring_count];
        if (rings->ring_count > 0) {
            memcpy(ring->order, rings->best_single.order, bytes);
            TESS_TRY(ring_search(find, ring->order, &found));
        }
        if (rings->ring_count > 0 && found.gbs <= least)
            break;
        ring->gbs = found.gbs;
        ring_take(find, ring);
        rings->ring_count++;
        if (found.gbs <= 0)
            break;
    }
    return TESS_OK;
}

static double ring_total(const struct tess_rings *rings)
{
    double total = 0;
    for (int32_t i = 0; i < rings->ring_count; i++)
        total += rings->ring[i].gbs;
    return total;
}

/* A ring in what is left, by a search that meets the devices in the order of a lot; from 0 on. */
static enum tess_status ring_by_lot(struct ring_find *find, uint64_t lot, int32_t *order,
                                    double *gbs_out)
{
    int32_t device[TESS__RING_EXACT_MAX], by_lot[TESS__RING_EXACT_MAX];
    int32_t count = find->table.count, zero = 0;
    struct tess__ring_table part;
    struct tess__ring_found found = {0};
    for (int32_t i = 0; i < count; i++) {
        int32_t to = (int32_t)(tess_hash_mix(lot << 8 | (uint64_t)i) % (uint64_t)(i + 1));
        device[i] = device[to];
        device[to] = i;
        by_lot[i] = i;
    }
    TESS_TRY(tess__ring_table_part(&find->table, device, count, &part));
    enum tess_status status = tess__ring_search(&part, find->left, &find->effort, by_lot, &found);
    tess__ring_table_free(&part);
    while (device[by_lot[zero]] != 0)
        zero++;
    for (int32_t i = 0; i < count; i++)
        order[i] = device[by_lot[(zero + i) % count]];
    *gbs_out = found.gbs;
    return status;
}

/* Rings one by one anew, each by a lot of its own; kept where they carry more than those before. */
static enum tess_status ring_try(struct ring_find *find, uint64_t lot, int32_t most,
                                 struct tess_rings *rings)
{
    int32_t order[TESS_RINGS_MAX][TESS__RING_EXACT_MAX];
    struct tess_ring ring[TESS_RINGS_MAX];
    int32_t tried = 0;
    double sum = 0;
    memcpy(find->left, find->table.gbs, (size_t)find->table.rows * sizeof *find->left);
    for (; tried < most; tried++) {
        ring[tried].order = order[tried];
        TESS_TRY(ring_by_lot(find, lot << 8 | (uint64_t)tried, order[tried], &ring[tried].gbs));
        if (ring[tried].gbs <= RING_WORTH * rings->best_single.gbs)
            break;
        ring_take(find, &ring[tried]);
        sum += ring[tried].gbs;
    }
    if (sum <= ring_total(rings) * (1 + TESS__RING_NEAR))
        return TESS_OK;
    for (int32_t r = 0; r < tried; r++) {
        memcpy(rings->ring[r].order, order[r], (size_t)rings->count * sizeof *order[r]);
        rings->ring[r].gbs = ring[r].gbs;
    }
    rings->ring_count = tried;
    return TESS_OK;
}

/*
 * Which rings come first decides what is left for the last. Where every pair has a link of its own,
 * the first ones by number leave no ring in what remains, and others do: some are tried by lot,
 * always the same ones, while the rings do not reach `goal`.
 */
static enum tess_status ring_try_again(struct ring_find *find, int32_t most, double goal,
                                       struct tess_rings *rings)
{
    uint64_t tries = find->table.count <= RING_TRY_MAX ? RING_TRIES : RING_TRIES_MORE;
    for (uint64_t t = 0; t < tries && ring_total(rings) < goal * (1 - RING_WORTH); t++)
        TESS_TRY(ring_try(find, t, most, rings));
    return TESS_OK;
}

/* Orders for `most` rings and the two others; natural to begin with. */
static enum tess_status ring_open(struct tess_rings *rings, int32_t most)
{
    for (int32_t i = 0; i < most + 2; i++) {
        int32_t *order = malloc((size_t)rings->count * sizeof *order);
        if (!order)
            return ring_no_memory();
        for (int32_t k = 0; k < rings->count; k++)
            order[k] = k;
        struct tess_ring *ring = i < most    ? &rings->ring[i]
                                 : i == most ? &rings->natural
                                             : &rings->best_single;
        ring->order = order;
    }
    return TESS_OK;
}

/* Of one device: a ring of no hops. */
static void ring_alone(struct tess_rings *rings)
{
    rings->ring[0].gbs = rings->natural.gbs = rings->best_single.gbs = TESS_GBS_LOCAL;
    rings->ring_count = 1;
    rings->total_gbs = rings->single_bound_gbs = rings->bound_gbs = TESS_GBS_LOCAL;
    rings->optimal = true;
}

/* What the routes leave of rings that were found host by host: of the bandwidth of each, at most 1.
 * Hosts may have several ways that are as good, and routes have chosen one. */
static double ring_share(struct ring_find *find, const struct tess_rings *hosts)
{
    const struct tess__ring_table *table = &find->table;
    double share = 1;
    memset(find->left, 0, (size_t)table->rows * sizeof *find->left);
    for (int32_t i = 0; i < hosts->ring_count; i++) {
        tess__ring_table_add(table, hosts->ring[i].order, find->uses);
        for (int32_t r = 0; r < table->rows; r++) {
            find->left[r] += find->uses[r] * hosts->ring[i].gbs;
            find->uses[r] = 0;
        }
    }
    for (int32_t r = 0; r < table->rows; r++) {
        if (find->left[r] > 0)
            share = fmin(share, table->gbs[r] / find->left[r]);
    }
    return share;
}

/* Of a cluster: rings found host by host, where they are better. */
static enum tess_status ring_by_hosts(struct ring_find *find, int32_t most,
                                      struct tess_rings *rings)
{
    const struct tess__ring_table *table = &find->table;
    size_t bytes = (size_t)rings->count * sizeof(int32_t);
    struct tess_rings hosts;
    TESS_TRY(tess__rings_find_hosts(find->routes->topology, most, find->effort.deadline_s, &hosts));
    double single =
        tess__ring_table_gbs(table, table->gbs, hosts.best_single.order, find->uses, NULL);
    if (single > rings->best_single.gbs * (1 + TESS__RING_NEAR)) {
        memcpy(rings->best_single.order, hosts.best_single.order, bytes);
        rings->best_single.gbs = single;
        rings->optimal = single >= rings->single_bound_gbs * (1 - TESS__RING_NEAR);
    }
    double share = ring_share(find, &hosts);
    if (hosts.total_gbs * share > ring_total(rings) * (1 + TESS__RING_NEAR)) {
        rings->ring_count = hosts.ring_count;
        for (int32_t i = 0; i < hosts.ring_count; i++) {
            memcpy(rings->ring[i].order, hosts.ring[i].order, bytes);
            rings->ring[i].gbs = hosts.ring[i].gbs * share;
        }
    }
    if (rings->best_single.gbs > ring_total(rings)) {
        rings->ring_count = 1;
        memcpy(rings->ring[0].order, rings->best_single.order, bytes);
        rings->ring[0].gbs = rings->best_single.gbs;
    }
    tess_rings_free(&hosts);
    return TESS_OK;
}

static enum tess_status ring_find_all(struct ring_find *find, int32_t most,
                                      struct tess_rings *rings)
{
    const struct tess__ring_table *table = &find->table;
    rings->natural.gbs =
        tess__ring_table_gbs(table, table->gbs, rings->natural.order, find->uses, NULL);
    TESS_TRY(ring_one_by_one(find, most, rings));
    TESS_TRY(tess__ring_cut_bound(find->routes, &rings->bound_gbs));
    /* No more than `most` of the best, however much the machine could carry. */
    double goal = fmin(rings->bound_gbs, most * rings->single_bound_gbs);
    if (table->count <= TESS__RING_EXACT_MAX)
        TESS_TRY(ring_try_again(find, most, goal, rings));
    double total = ring_total(rings);
    if (table->count <= TESS__RING_EXACT_MAX && table->rows <= RING_ROWS_MAX && total > 0 &&
        total < rings->bound_gbs * (1 - TESS__RING_NEAR))
        TESS_TRY(tess__ring_pack(table, most, find->effort.deadline_s, rings->ring,
                                 &rings->ring_count, &rings->bound_gbs));
    if (table->count > TESS__RING_EXACT_MAX && find->effort.by_hosts &&
        tess__rings_are_hosts(find->routes->topology))
        TESS_TRY(ring_by_hosts(find, most, rings));
    rings->total_gbs = ring_total(rings);
    rings->bound_gbs = fmax(rings->bound_gbs, rings->total_gbs); /* rounding */
    return TESS_OK;
}

enum tess_status tess__rings_find(const struct tess_routes *routes, int32_t most,
                                  const struct tess__ring_effort *effort,
                                  struct tess_rings *rings_out)
{
    *rings_out = (struct tess_rings){.count = routes->device_count};
    struct ring_find find = {.routes = routes, .effort = *effort};
    enum tess_status status = TESS_OK;
    TESS_TRY_GOTO(status, done, ring_open(rings_out, most));
    if (routes->device_count == 1) {
        ring_alone(rings_out);
        goto done;
    }
    TESS_TRY_GOTO(status, done, tess__ring_table_open(&find.table, routes));
    find.left = malloc(((size_t)find.table.rows + 1) * sizeof *find.left);
    find.uses = calloc((size_t)find.table.rows + 1, sizeof *find.uses);
    if (!find.left || !find.uses) {
        status = ring_no_memory();
        goto done;
    }
    memcpy(find.left, find.table.gbs, (size_t)find.table.rows * sizeof *find.left);
    status = ring_find_all(&find, most, rings_out);
done:
    for (int32_t i = rings_out->ring_count; i < TESS_RINGS_MAX; i++) {
        free(rings_out->ring[i].order);
        rings_out->ring[i] = (struct tess_ring){0};
    }
    tess__ring_table_free(&find.table);
    free(find.left);
    free(find.uses);
    if (status != TESS_OK)
        tess_rings_free(rings_out);
    return status;
}

enum tess_status tess_rings_find(const struct tess_routes *routes,
                                 const struct tess_ring_search *search,
                                 struct tess_rings *rings_out)
{
    struct tess__ring_effort effort = {.steps = RING_STEPS, .by_hosts = true};
    *rings_out = (struct tess_rings){0};
    if (search->rings < 1 || search->rings > TESS_RINGS_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "%d rings are asked for; expected 1 to %d", (int)search->rings,
                  TESS_RINGS_MAX);
    if (search->time_limit_s > 0)
        effort.deadline_s = tess_clock_s() + search->time_limit_s;
    return tess__rings_find(routes, search->rings, &effort, rings_out);
}

void tess_rings_free(struct tess_rings *rings)
{
    for (int32_t i = 0; i < TESS_RINGS_MAX; i++)
        free(rings->ring[i].order);
    free(rings->best_single.order);
    free(rings->natural.order);
    *rings = (struct tess_rings){0};
}
