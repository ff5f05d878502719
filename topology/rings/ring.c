/*
 * Rings over the devices of one host or unit: the best one, then others in the capacity that it
 * leaves, then, where these are not near the bound, sets of rings by linear programming.
 */
#include "topology/rings/ring.h"

#include "base/hash.h"
#include "tessera/check.h"
#include "topology/machine/rates.h"
#include "topology/rings/ring_room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RING_WORTH      0.02  /* of the first: what a further ring must carry */
#define RING_STEPS_MORE 50000 /* for each further one, which need not be the best */
#define RING_TRIES      12    /* orders of devices for rings one by one */
#define RING_TRIES_MORE 2     /* of more devices than RING_TRY_MAX, where a ring takes longer */
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
            const struct tess_route *route = tess__route_hop(routes, order, count, i);
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

/* A ring in the capacity left, by a search over the devices in a random order; from 0 on. */
static enum tess_status ring_random(struct ring_find *find, uint64_t seed, int32_t *order,
                                    double *gbs_out)
{
    int32_t device[TESS__RING_EXACT_MAX], drawn[TESS__RING_EXACT_MAX];
    int32_t count = find->table.count, zero = 0;
    struct tess__ring_table part;
    struct tess__ring_found found = {0};
    for (int32_t i = 0; i < count; i++) {
        int32_t to = (int32_t)(tess_hash_mix(seed << 8 | (uint64_t)i) % (uint64_t)(i + 1));
        device[i] = device[to];
        device[to] = i;
        drawn[i] = i;
    }
    TESS_TRY(tess__ring_table_part(&find->table, device, count, &part));
    enum tess_status status = tess__ring_search(&part, find->left, &find->effort, drawn, &found);
    tess__ring_table_free(&part);
    while (device[drawn[zero]] != 0)
        zero++;
    for (int32_t i = 0; i < count; i++)
        order[i] = device[drawn[(zero + i) % count]];
    *gbs_out = found.gbs;
    return status;
}

/* Rings one by one again, each in a random order; kept where they carry more than before. */
static enum tess_status ring_try(struct ring_find *find, uint64_t seed, int32_t most,
                                 struct tess_rings *rings)
{
    int32_t order[TESS_RINGS_MAX][TESS__RING_EXACT_MAX];
    struct tess_ring ring[TESS_RINGS_MAX];
    int32_t tried = 0;
    double sum = 0;
    memcpy(find->left, find->table.gbs, (size_t)find->table.rows * sizeof(*find->left));
    for (; tried < most; tried++) {
        ring[tried].order = order[tried];
        TESS_TRY(ring_random(find, seed << 8 | (uint64_t)tried, order[tried], &ring[tried].gbs));
        if (ring[tried].gbs <= RING_WORTH * rings->best_single.gbs)
            break;
        ring_take(find, &ring[tried]);
        sum += ring[tried].gbs;
    }
    if (sum <= ring_total(rings) * (1 + TESS__RING_NEAR))
        return TESS_OK;
    for (int32_t r = 0; r < tried; r++) {
        memcpy(rings->ring[r].order, order[r], (size_t)rings->count * sizeof(*order[r]));
        rings->ring[r].gbs = ring[r].gbs;
    }
    rings->ring_count = tried;
    return TESS_OK;
}

/*
 * Which rings come first decides what is left for the last. Where every pair has a link of its own,
 * the first ones by number leave no ring in what remains, and others do: some are drawn at random,
 * the same ones in every run, while the rings do not reach `goal`.
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
        int32_t *order = malloc((size_t)rings->count * sizeof(*order));
        if (!order)
            return tess__no_memory("the search of rings");
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
    find.left = tess__pool_array(&find.table.pool, (size_t)find.table.rows, sizeof(*find.left));
    find.uses = tess__pool_array(&find.table.pool, (size_t)find.table.rows, sizeof(*find.uses));
    TESS_TRY_GOTO(status, done,
                  find.table.pool.failed ? tess__no_memory("the search of rings") : TESS_OK);
    memcpy(find.left, find.table.gbs, (size_t)find.table.rows * sizeof(*find.left));
    status = ring_find_all(&find, most, rings_out);
done:
    for (int32_t i = rings_out->ring_count; i < TESS_RINGS_MAX; i++) {
        free(rings_out->ring[i].order);
        rings_out->ring[i] = (struct tess_ring){0};
    }
    tess__ring_table_free(&find.table);
    if (status != TESS_OK)
        tess_rings_free(rings_out);
    return status;
}

void tess_rings_free(struct tess_rings *rings)
{
    for (int32_t i = 0; i < TESS_RINGS_MAX; i++)
        free(rings->ring[i].order);
    free(rings->best_single.order);
    free(rings->natural.order);
    *rings = (struct tess_rings){0};
}
