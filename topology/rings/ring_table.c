/* The table of hops and shared capacities, and what one ring carries by it. */
#include "topology/rings/ring_room.h"

#include "base/hash.h"
#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A link and the hops that use it: hop[first .. first + count) in rising order. */
struct table_link {
    const int32_t *hop;
    int32_t count;
    uint64_t hash;
    int32_t link;
    double gbs;
};

static int table_compare(const void *a, const void *b)
{
    const struct table_link *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? -1 : 1;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    int order = memcmp(x->hop, y->hop, (size_t)x->count * sizeof(*x->hop));
    return order ? order : (x->link > y->link) - (x->link < y->link);
}

static bool table_same_hops(const struct table_link *a, const struct table_link *b)
{
    return a->count == b->count && memcmp(a->hop, b->hop, (size_t)a->count * sizeof(*a->hop)) == 0;
}

static const int64_t table_cost[TESS_PATH_KIND_COUNT] = {[TESS_PATH_PXB] = TESS__RING_COST_PXB,
                                                         [TESS_PATH_PHB] = TESS__RING_COST_PHB,
                                                         [TESS_PATH_SYS] = TESS__RING_COST_SYS,
                                                         [TESS_PATH_NET] = TESS__RING_COST_NET,
                                                         [TESS_PATH_NONE] = -1};

/* The links in use, by their hops; hop[] is their store. Returns how many. */
static int32_t table_links(const struct tess_routes *routes, int32_t *start, int32_t *hop,
                           struct table_link *used)
{
    const struct tess_topology *topology = routes->topology;
    int32_t hops = routes->device_count * routes->device_count;
    for (int32_t h = 0; h < hops; h++) {
        for (int32_t k = 0; k < routes->route[h].link_count; k++)
            start[routes->link[routes->route[h].first + k] + 1]++;
    }
    for (int32_t i = 0; i < topology->link_count; i++)
        start[i + 1] += start[i];
    int32_t count = 0;
    for (int32_t i = 0; i < topology->link_count; i++) {
        if (start[i + 1] > start[i])
            used[count++] = (struct table_link){.hop = hop + start[i],
                                                .count = start[i + 1] - start[i],
                                                .link = i,
                                                .gbs = topology->link[i].gbs};
    }
    for (int32_t h = 0; h < hops; h++) {
        for (int32_t k = 0; k < routes->route[h].link_count; k++)
            hop[start[routes->link[routes->route[h].first + k]]++] = h;
    }
    for (int32_t i = 0; i < count; i++)
        used[i].hash = tess_hash_bytes(used[i].hop, (size_t)used[i].count * sizeof(*hop));
    return count;
}

/* Rows out of the sorted links; then the rows of every hop. */
static enum tess_status table_fill(struct tess__ring_table *table, const struct table_link *used,
                                   int32_t used_count, int32_t uses)
{
    int32_t hops = table->count * table->count;
    table->gbs = tess__pool_array(&table->pool, (size_t)used_count, sizeof(*table->gbs));
    table->first = tess__pool_array(&table->pool, (size_t)hops + 1, sizeof(*table->first));
    table->row = tess__pool_array(&table->pool, (size_t)uses, sizeof(*table->row));
    if (table->pool.failed)
        return tess__no_memory("the search of rings");
    for (int32_t i = 0; i < used_count; i++) {
        if (i > 0 && table_same_hops(&used[i - 1], &used[i])) {
            table->gbs[table->rows - 1] = fmin(table->gbs[table->rows - 1], used[i].gbs);
            continue;
        }
        table->gbs[table->rows++] = used[i].gbs;
        for (int32_t k = 0; k < used[i].count; k++)
            table->first[used[i].hop[k] + 2]++;
    }
    for (int32_t h = 0; h < hops; h++)
        table->first[h + 2] += table->first[h + 1];
    for (int32_t i = 0, row = -1; i < used_count; i++) {
        if (i > 0 && table_same_hops(&used[i - 1], &used[i]))
            continue;
        row++;
        for (int32_t k = 0; k < used[i].count; k++)
            table->row[table->first[used[i].hop[k] + 1]++] = row;
    }
    return TESS_OK;
}

enum tess_status tess__ring_table_open(struct tess__ring_table *table,
                                       const struct tess_routes *routes)
{
    int32_t hops = routes->device_count * routes->device_count, uses = 0;
    size_t links = (size_t)routes->topology->link_count;
    *table = (struct tess__ring_table){.count = routes->device_count};
    for (int32_t h = 0; h < hops; h++)
        uses += routes->route[h].link_count;
    struct tess__pool pool = {0};
    int32_t *start = tess__pool_array(&pool, links + 1, sizeof(*start));
    int32_t *hop = tess__pool_array(&pool, (size_t)uses, sizeof(*hop));
    struct table_link *used = tess__pool_array(&pool, links, sizeof(*used));
    enum tess_status status = TESS_ERR_MEMORY;
    table->cost = tess__pool_array(&table->pool, (size_t)hops, sizeof(*table->cost));
    if (pool.failed || table->pool.failed) {
        status = tess__no_memory("the search of rings");
    } else {
        for (int32_t h = 0; h < hops; h++)
            table->cost[h] = table_cost[routes->route[h].kind];
        int32_t used_count = table_links(routes, start, hop, used);
        qsort(used, (size_t)used_count, sizeof(*used), table_compare);
        status = table_fill(table, used, used_count, uses);
    }
    tess__pool_release(&pool);
    if (status != TESS_OK)
        tess__ring_table_free(table);
    return status;
}

enum tess_status tess__ring_table_part(const struct tess__ring_table *table, const int32_t *device,
                                       int32_t count, struct tess__ring_table *part)
{
    int32_t hops = count * count, entries = 0;
    *part = (struct tess__ring_table){.count = count, .rows = table->rows};
    for (int32_t h = 0; h < hops; h++) {
        int32_t whole = device[h / count] * table->count + device[h % count];
        entries += table->first[whole + 1] - table->first[whole];
    }
    part->gbs = tess__pool_array(&part->pool, (size_t)table->rows, sizeof(*part->gbs));
    part->first = tess__pool_array(&part->pool, (size_t)hops, sizeof(*part->first));
    part->row = tess__pool_array(&part->pool, (size_t)entries, sizeof(*part->row));
    part->cost = tess__pool_array(&part->pool, (size_t)hops, sizeof(*part->cost));
    if (part->pool.failed) {
        tess__ring_table_free(part);
        return tess__no_memory("the search of rings");
    }
    memcpy(part->gbs, table->gbs, (size_t)table->rows * sizeof(*part->gbs));
    int32_t used = 0;
    for (int32_t h = 0; h < hops; h++) {
        int32_t whole = device[h / count] * table->count + device[h % count];
        part->cost[h] = table->cost[whole];
        part->first[h] = used;
        for (int32_t k = table->first[whole]; k < table->first[whole + 1]; k++)
            part->row[used++] = table->row[k];
    }
    part->first[hops] = used;
    return TESS_OK;
}

void tess__ring_table_free(struct tess__ring_table *table)
{
    tess__pool_release(&table->pool);
    *table = (struct tess__ring_table){0};
}

void tess__ring_table_add(const struct tess__ring_table *table, const int32_t *order, int32_t *uses)
{
    for (int32_t i = 0; i < table->count && table->count > 1; i++) {
        int32_t h = order[i] * table->count + order[(i + 1) % table->count];
        for (int32_t k = table->first[h]; k < table->first[h + 1]; k++)
            uses[table->row[k]]++;
    }
}

double tess__ring_table_gbs(const struct tess__ring_table *table, const double *gbs,
                            const int32_t *order, int32_t *uses, int64_t *cost_out)
{
    int32_t count = table->count;
    double least = count > 1 ? INFINITY : 0;
    int64_t cost = 0;
    for (int32_t i = 0; i < count && count > 1; i++) {
        int32_t h = order[i] * count + order[(i + 1) % count];
        cost += table->cost[h];
        if (table->cost[h] < 0)
            least = 0;
        for (int32_t k = table->first[h]; k < table->first[h + 1]; k++) {
            int32_t row = table->row[k];
            least = fmin(least, gbs[row] / ++uses[row]);
        }
    }
    for (int32_t i = 0; i < count && count > 1; i++) {
        int32_t h = order[i] * count + order[(i + 1) % count];
        for (int32_t k = table->first[h]; k < table->first[h + 1]; k++)
            uses[table->row[k]] = 0;
    }
    if (cost_out)
        *cost_out = cost;
    return least;
}
