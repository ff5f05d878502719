/*
 * From devices to numbers: the run's mesh laid over a topology by topology/map/map.h, and what that
 * means in a line. Bytes along each axis are those of the run's plan.
 */
#include "job/place.h"

#include "job/place_slow.h"
#include "tessera/check.h"
#include "topology/machine/pool.h"
#include "topology/map/map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As ranks are numbered (tess_mesh_at), the fastest first. */
static const struct {
    enum tess_axis axis;
    const char *name;
} map_axis[] = {{TESS_AXIS_TENSOR, "tensor"}, {TESS_AXIS_DATA, "data"}, {TESS_AXIS_STAGE, "stage"}};

/* Axes of the run's mesh, those with one rank left out. */
static int32_t map_axes(const struct tess__run *run, struct tess_map_axis *axis)
{
    const int32_t *ranks = run->config->mesh.count;
    int32_t count = 0;

    for (size_t i = 0; i < sizeof(map_axis) / sizeof(*map_axis); i++) {
        const enum tess_axis which = map_axis[i].axis;
        const double bytes = (double)tess_engine_axis_formula(run->planned, which);

        if (ranks[which] == 1)
            continue;
        /* Stages that are cut into several chunks send around a ring, the last to the first. */
        axis[count++] = (struct tess_map_axis){.name = map_axis[i].name,
                                               .count = ranks[which],
                                               .bytes = bytes > 0 ? bytes : 1,
                                               .chain = which == TESS_AXIS_STAGE &&
                                                        tess_engine_chunk_count(run->planned) == 1};
    }
    return count;
}

/* ---- the line -------------------------------------------------------------------------------- */

/* What the line is made of. */
struct map_line {
    struct tess__pool pool;
    const struct tess__processes *job;
    const struct tess_topology *topology;
    int32_t *leaf;    /* [job->count] of a process: the switch nearest to its host, a node; -1 */
    int32_t *natural; /* [job->count] itself */
    bool *seen;       /* [max(nodes, hosts) + 1] */
};

/* The leaf of each process: the first NET node that a node of its host, such as its NIC, has a
 * link to. */
static enum tess_status map_open_line(struct map_line *line, const int32_t *device)
{
    const struct tess_topology *topology = line->topology;
    const size_t hosts = (size_t)topology->host_count, count = (size_t)line->job->count;
    int32_t *of_host = tess__pool_array(&line->pool, hosts, sizeof(*of_host));

    line->leaf = tess__pool_array(&line->pool, count, sizeof(*line->leaf));
    line->natural = tess__pool_array(&line->pool, count, sizeof(*line->natural));
    line->seen =
        tess__pool_array(&line->pool, (size_t)(topology->node_count + line->job->host_count) + 1,
                         sizeof(*line->seen));
    if (line->pool.failed)
        return tess__no_memory("the order of ranks");
    for (size_t h = 0; h < hosts; h++)
        of_host[h] = -1;
    for (int32_t l = 0; l < topology->link_count; l++) {
        const struct tess_topo_link *link = &topology->link[l];
        const int32_t host = topology->node[link->from].host;

        if (host >= 0 && of_host[host] < 0 && topology->node[link->to].kind == TESS_NODE_NET)
            of_host[host] = link->to;
    }
    for (int32_t p = 0; p < line->job->count; p++) {
        const int32_t host = topology->node[topology->device[device[p]]].host;

        line->leaf[p] = host >= 0 ? of_host[host] : -1;
        line->natural[p] = p;
    }
    return TESS_OK;
}

/* Hosts of a rack, in the order of ranks, below one switch each; 0: such racks are not equal. */
static int32_t map_rack_hosts(const struct map_line *line, const int32_t *process)
{
    const struct tess__processes *job = line->job;
    bool *host_seen = line->seen + line->topology->node_count;
    int32_t racks = 0, size = 0, hosts = 0, leaf = -1; /* hosts: of the rack so far */

    memset(line->seen, 0, (size_t)(line->topology->node_count + job->host_count) + 1);
    for (int32_t r = 0; r < job->count; r++) {
        const int32_t here = line->leaf[process[r]], host = job->host[process[r]];

        if (host_seen[host])
            continue;
        host_seen[host] = true;
        if (here != leaf) {
            if (here < 0 || line->seen[here] || hosts != size)
                return 0;
            line->seen[here] = true;
            leaf = here;
            hosts = 0;
            racks++;
        }
        hosts++;
        size = racks == 1 ? hosts : size;
    }
    return hosts == size ? size : 0;
}

/* Hops around the rings of an axis between ranks that are not at the same place; rank r is process
 * process[r], which is at where[process[r]]. */
static int32_t map_count_hops(const struct tess_map_ask *ask, int32_t which, const int32_t *where,
                              const int32_t *process, int32_t ranks)
{
    const struct tess_map_axis *axis = &ask->axis[which];
    int32_t stride = 1, hops = 0;

    for (int32_t a = 0; a < which; a++)
        stride *= ask->axis[a].count;
    for (int32_t r = 0; r < ranks; r++) {
        const int32_t at = r / stride % axis->count, next = (at + 1) % axis->count;

        if (next != 0 || !axis->chain)
            hops += where[process[r]] != where[process[r + (next - at) * stride]];
    }
    return hops;
}

/* "s0 s1 s2 ..": switches, or with `hosts` hosts, in the order in which ranks come to them. */
static int32_t map_list(const struct map_line *line, bool hosts, const int32_t *process, char *text,
                        size_t text_bytes)
{
    const struct tess__processes *job = line->job;
    int32_t count = 0;
    size_t used = 0;

    text[0] = '\0';
    memset(line->seen, 0, (size_t)(line->topology->node_count + job->host_count) + 1);
    for (int32_t r = 0; r < job->count; r++) {
        const int32_t p = process[r], here = hosts ? job->host[p] : line->leaf[p];
        const char *name = hosts       ? tess__host_name(job, p)
                           : here >= 0 ? line->topology->node[here].name
                                       : "?";

        if (line->seen[here + 1])
            continue;
        line->seen[here + 1] = true;
        count++;
        if (count == 9)
            used += (size_t)snprintf(text + used, text_bytes - used, " ..");
        else if (count < 9 && used + strlen(name) + 5 < text_bytes)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", count > 1 ? " " : "",
                                     name);
    }
    return count;
}

static int32_t map_heaviest(const struct tess_map_axis *axis, int32_t axis_count)
{
    int32_t heaviest = 0;

    for (int32_t a = 1; a < axis_count; a++)
        if (axis[a].bytes > axis[heaviest].bytes)
            heaviest = a;
    return heaviest;
}

/* "topo.conf: ranks follow switches s0 s1; 2 hops between them around the data rings, 8 in the
 * natural order; the most loaded link is done 4.0 times as soon" */
static void map_write_line(const struct map_line *line, const struct tess_map_ask *ask,
                           const struct tess_map *map, const char *source,
                           struct tess__placement *placed)
{
    const struct tess__processes *job = line->job;
    const int32_t axis = map_heaviest(ask->axis, ask->axis_count);
    char names[160];
    int32_t groups = map_list(line, false, map->place, names, sizeof(names));
    const bool hosts = groups < 2;

    if (hosts)
        groups = map_list(line, true, map->place, names, sizeof(names));
    const int32_t *where = hosts ? job->host : line->leaf;
    const int32_t hops = map_count_hops(ask, axis, where, map->place, job->count);
    const int32_t natural_hops = map_count_hops(ask, axis, where, line->natural, job->count);
    if (memcmp(map->place, line->natural, (size_t)job->count * sizeof(*line->natural)) == 0) {
        snprintf(placed->line, sizeof(placed->line), "%s: the natural order stays, none is better",
                 source);
        return;
    }
    const double gain = map->cost_s > 0 ? map->natural_s / map->cost_s : 1;
    if (groups < 2) {
        snprintf(placed->line, sizeof(placed->line),
                 "%s: ranks follow its links; the most loaded one is done %.1f times as soon as in "
                 "the natural order",
                 source, gain);
        return;
    }
    snprintf(placed->line, sizeof(placed->line),
             "%s: ranks follow %s %s; %d hop%s between them around the %s rings, %d in the natural "
             "order; the most loaded link is done %.1f times as soon",
             source, hosts ? "hosts" : "switches", names, (int)hops, hops == 1 ? "" : "s",
             ask->axis[axis].name, (int)natural_hops, gain);
}

/* The topology of the ranks alone, for those who look for what is slow in it. */
static enum tess_status map_keep(const struct tess__processes *job, struct tess_topology *topology,
                                 const int32_t *device, const int32_t *process,
                                 struct tess__placement *placed)
{
    int32_t *keep = malloc((size_t)job->count * sizeof(*keep));

    if (keep == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the network of %d ranks", (int)job->count);
    for (int32_t r = 0; r < job->count; r++)
        keep[r] = device[process[r]];
    const enum tess_status status = tess_topology_select(topology, keep, job->count);
    if (status == TESS_OK)
        placed->topology = topology;
    free(keep);
    return status;
}

/* ---- another order ----------------------------------------------------------------------------
 */

enum tess_status tess__place_gain(const struct tess__run *run, const struct tess__slowed *part,
                                  double *gain_out)
{
    struct tess_topology *topology = run->placed->topology;
    const struct tess__slowed_parts parts = {.count = 1, .part[0] = *part};
    struct tess__pool pool = {0};
    int32_t *present = tess__pool_array(&pool, (size_t)run->rank_count, sizeof(*present));
    double *gbs = tess__pool_array(&pool, (size_t)topology->link_count, sizeof(*gbs));
    struct tess_map_axis axis[TESS_MAP_AXES];
    const struct tess_map_ask ask = {
        .axis = axis, .axis_count = map_axes(run, axis), .place = present, .keep_first = true};
    struct tess_map map = {0};

    *gain_out = 1;
    if (pool.failed) {
        tess__pool_release(&pool);
        return tess__no_memory("another order of ranks");
    }
    for (int32_t r = 0; r < run->rank_count; r++)
        present[r] = r; /* as tess__place_map has left the topology */
    for (int32_t l = 0; l < topology->link_count; l++)
        gbs[l] = topology->link[l].gbs;
    tess__place_slow(topology, &parts);
    const enum tess_status status = tess_map_find(topology, &ask, &map);
    for (int32_t l = 0; l < topology->link_count; l++)
        topology->link[l].gbs = gbs[l];
    if (status == TESS_OK && map.cost_s > 0)
        *gain_out = map.natural_s / map.cost_s;
    tess_map_free(&map);
    tess__pool_release(&pool);
    return status;
}

/* ---- the map --------------------------------------------------------------------------------- */

static enum tess_status map_racks(const struct tess__run *run, const struct tess__processes *job,
                                  struct tess_topology *topology, const int32_t *device,
                                  const int32_t *process)
{
    struct map_line line = {.job = job, .topology = topology};
    const enum tess_status status = map_open_line(&line, device);

    if (status == TESS_OK)
        run->placed->rack_hosts = map_rack_hosts(&line, process);
    tess__pool_release(&line.pool);
    tess_topology_free(topology);
    return status;
}

enum tess_status tess__place_map(const struct tess__run *run, const struct tess__processes *job,
                                 struct tess_topology *topology, const int32_t *device,
                                 const char *source, int32_t *process_out)
{
    if (run->placed->given)
        return map_racks(run, job, topology, device, process_out);
    struct tess_map_axis axis[TESS_MAP_AXES];
    const struct tess_map_ask ask = {
        .axis = axis, .axis_count = map_axes(run, axis), .place = device, .keep_first = true};
    struct map_line line = {.job = job, .topology = topology};
    struct tess_map map = {0};
    enum tess_status status = tess_map_find(topology, &ask, &map);
    if (status == TESS_OK)
        status = map_open_line(&line, device);
    if (status == TESS_OK)
        status = tess_map_explain(topology, &ask, &map, &run->placed->text);
    if (status == TESS_OK) {
        memcpy(process_out, map.place, (size_t)job->count * sizeof(*process_out));
        run->placed->rack_hosts = map_rack_hosts(&line, process_out);
        map_write_line(&line, &ask, &map, source, run->placed);
    }
    if (status == TESS_OK && job->host_count > 1)
        status = map_keep(job, topology, device, process_out, run->placed);
    tess__pool_release(&line.pool);
    tess_map_free(&map);
    if (run->placed->topology == NULL)
        tess_topology_free(topology);
    return status;
}
