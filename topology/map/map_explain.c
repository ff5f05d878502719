/*
 * A mapping as text for people: what it costs and against what, how each axis talks, the most
 * loaded link of each kind, and where every rank is and why. Many ranks are listed host by host.
 */
#include "tessera/check.h"
#include "topology/machine/rates.h"
#include "topology/map/map_room.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPLAIN_RANKS_MAX 64  /* with a line each */
#define EXPLAIN_RUNS_MAX  256 /* lines of hosts */
#define EXPLAIN_WAYS      3   /* different ones of an axis on a line of a host */
#define EXPLAIN_WAY_TEXT  (TESS_TOPO_NAME_MAX + 32)

struct explain {
    const struct tess__map_model *model;
    const struct tess__map_load *load;
    const struct tess_map *map;
    int32_t *numa; /* [count] NUMA nodes of the places; -1 */
    bool *seen;    /* [hosts + 1] */
    FILE *out;
};

static const struct tess_node *explain_device(const struct explain *explain, int32_t rank)
{
    const struct tess__map_model *model = explain->model;
    return &model->topology->node[model->part.device[explain->load->at[rank]]];
}

/* ---- quantities ----------------------------------------------------------------------------- */

/* Three digits and the unit that fits. */
static const char *explain_quantity(char text[32], double value, const char *const *unit)
{
    int at = 0;
    for (; value >= 999.5 && unit[at + 1] != NULL; at++)
        value /= 1e3;
    snprintf(text, 32, "%.3g %s", value, unit[at]);
    return text;
}

static const char *explain_time(char text[32], double seconds)
{
    static const char *const unit[] = {"ns", "us", "ms", NULL};
    if (seconds < 0.9995)
        return explain_quantity(text, seconds * 1e9, unit);
    snprintf(text, 32, "%.4g s", seconds);
    return text;
}

static const char *explain_bytes(char text[32], double bytes)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", NULL};
    return explain_quantity(text, bytes, unit);
}

/* ---- ways ----------------------------------------------------------------------------------- */

/* The nodes of the kind that a way passes between its ends. */
struct explain_via {
    int32_t count;
    bool xgmi; /* its last link */
    const struct tess_node *node[UINT8_MAX];
};

static struct explain_via explain_via(const struct explain *explain, int32_t from, int32_t to,
                                      enum tess_node_kind kind)
{
    const struct tess__map_model *model = explain->model;
    const struct tess_topology *topology = model->topology;
    struct explain_via via = {0};
    int32_t lanes;
    const int32_t *lane =
        tess__map_lanes(model, explain->load->at[from], explain->load->at[to], &lanes);
    for (int32_t k = 0; k < lanes; k++) {
        const struct tess_topo_link *link = &topology->link[model->link[lane[k]]];
        const struct tess_node *node = &topology->node[link->to];
        via.xgmi = tess_topology_gfx(topology, link) > 0;
        if (k + 1 < lanes && node->kind == kind)
            via.node[via.count++] = node;
    }
    return via;
}

static void explain_way(const struct explain *explain, int32_t from, int32_t to, char *text)
{
    const size_t room = EXPLAIN_WAY_TEXT;
    struct explain_via via;
    switch (tess__map_kind(explain->model, explain->load->at[from], explain->load->at[to])) {
    case TESS_PATH_NVL:
        via = explain_via(explain, from, to, TESS_NODE_NVSWITCH);
        snprintf(text, room, "over %s", via.count ? "NVSwitch" : via.xgmi ? "xGMI" : "NVLink");
        return;
    case TESS_PATH_C2C:
        snprintf(text, room, "over C2C");
        return;
    case TESS_PATH_PIX:
        via = explain_via(explain, from, to, TESS_NODE_PCI);
        snprintf(text, room, "at PCIe switch %s", via.count ? via.node[0]->name : "");
        return;
    case TESS_PATH_PXB:
        snprintf(text, room, "over PCIe switches");
        return;
    case TESS_PATH_PHB:
        via = explain_via(explain, from, to, TESS_NODE_CPU);
        snprintf(text, room, "through %s", via.count ? via.node[0]->name : "the processor");
        return;
    case TESS_PATH_SYS:
        via = explain_via(explain, from, to, TESS_NODE_CPU);
        if (via.count)
            snprintf(text, room, "from NUMA %d to %d", (int)via.node[0]->index,
                     (int)via.node[via.count - 1]->index);
        else
            snprintf(text, room, "between NUMA nodes");
        return;
    case TESS_PATH_NET:
        via = explain_via(explain, from, to, TESS_NODE_NET);
        if (via.count)
            snprintf(text, room, "%s %s", via.count > 1 ? "across" : "through",
                     via.node[via.count / 2]->name);
        else
            snprintf(text, room, "over the network");
        return;
    default:
        snprintf(text, room, "no way");
    }
}

/* ---- axes and links ------------------------------------------------------------------------- */

static void explain_head(const struct explain *explain)
{
    const struct tess__map_model *model = explain->model;
    const struct tess_map *map = explain->map;
    char time[32], other[32];
    int32_t hosts = 0, moved = 0;
    memset(explain->seen, 0, ((size_t)model->topology->host_count + 1) * sizeof(*explain->seen));
    for (int32_t i = 0; i < model->count; i++) {
        bool *seen = &explain->seen[1 + tess__map_host(model, i)];
        hosts += !*seen;
        *seen = true;
        moved += map->place[i] != i;
    }
    fprintf(explain->out, "%d ranks on %d host%s:", (int)model->count, (int)hosts,
            hosts == 1 ? "" : "s");
    for (int32_t a = 0; a < model->axis_count; a++)
        fprintf(explain->out, "%s %s %d", a ? "," : "", model->axis[a].name,
                (int)model->axis[a].count);
    fprintf(explain->out, "\n");
    fprintf(explain->out, "  the most loaded link needs %s a step",
            explain_time(time, map->cost_s));
    if (moved)
        fprintf(explain->out, ", %s in the natural order (%.2f times as long); %d ranks moved\n",
                explain_time(other, map->natural_s), map->natural_s / map->cost_s, (int)moved);
    else
        fprintf(explain->out, "; the natural order is kept\n");
    if (map->optimal)
        fprintf(explain->out, "  no order is better\n");
    else if (map->bound_s > 0)
        fprintf(explain->out, "  no order needs less than %s (%.1f %% below this one)\n",
                explain_time(time, map->bound_s), 100 * (1 - map->bound_s / map->cost_s));
}

static void explain_axes(const struct explain *explain)
{
    const struct tess__map_model *model = explain->model;
    char text[32];
    fprintf(explain->out, "\n  %-10s %5s  %-17s hops\n", "axis", "ranks", "each sends a hop");
    for (int32_t a = 0; a < model->axis_count; a++) {
        const struct tess_map_axis *axis = &model->axis[a];
        int32_t hops[TESS_PATH_KIND_COUNT] = {0};
        for (int32_t h = 0; h < model->hop_count; h++) {
            const struct tess__map_hop *hop = &model->hop[h];
            if (hop->axis == a)
                hops[tess__map_kind(model, explain->load->at[hop->from],
                                    explain->load->at[hop->to])]++;
        }
        fprintf(explain->out, "  %-10s %5d  %-17s", axis->name, (int)axis->count,
                axis->count > 1 ? explain_bytes(text, axis->bytes) : "-");
        for (int kind = 0; kind < TESS_PATH_KIND_COUNT; kind++) {
            if (hops[kind])
                fprintf(explain->out, " %s %d", tess_path_word((enum tess_path_kind)kind),
                        (int)hops[kind]);
        }
        fprintf(explain->out, "%s\n",
                axis->chain && axis->count > 1 ? " (a chain, both ways)" : "");
    }
}

/* The most loaded link of each kind, the slowest first. */
static void explain_links(const struct explain *explain)
{
    static const char *const word[TESS_LINK_KIND_COUNT] = {"NVLink", "C2C",   "PCIe",
                                                           "NUMA",   "local", "network"};
    const struct tess__map_model *model = explain->model;
    const struct tess_topology *topology = model->topology;
    double most[TESS_LINK_KIND_COUNT] = {0};
    int32_t worst[TESS_LINK_KIND_COUNT], same[TESS_LINK_KIND_COUNT] = {0};
    for (int32_t lane = 0; lane + 1 < model->lane_count; lane++) {
        enum tess_link_kind kind = topology->link[model->link[lane]].kind;
        double s = tess__map_lane_s(explain->load, lane);
        if (s > most[kind] * (1 + TESS__MAP_NEAR)) {
            most[kind] = s;
            worst[kind] = lane;
            same[kind] = 0;
        } else if (s > 0 && s >= most[kind] * (1 - TESS__MAP_NEAR)) {
            same[kind]++;
        }
    }
    fprintf(explain->out, "\n  the most loaded link of each kind\n");
    for (;;) {
        int next = 0;
        for (int kind = 1; kind < TESS_LINK_KIND_COUNT; kind++)
            next = most[kind] > most[next] ? kind : next;
        if (!(most[next] > 0))
            return;
        const struct tess_topo_link *link = &topology->link[model->link[worst[next]]];
        char bytes[32], time[32], rate[TESS__RATE_TEXT];
        fprintf(explain->out, "  %-8s %s -> %s: %s at %s, %s",
                tess_topology_gfx(topology, link) > 0 ? "xGMI" : word[next],
                topology->node[link->from].name, topology->node[link->to].name,
                explain_bytes(bytes, most[next] * link->gbs * 1e9),
                tess__rate_text(link->gbs, rate), explain_time(time, most[next]));
        if (same[next])
            fprintf(explain->out, "; %d more like it", (int)same[next]);
        fprintf(explain->out, "\n");
        most[next] = 0;
    }
}

/* ---- ranks ---------------------------------------------------------------------------------- */

/* The ranks of the group, "0-3", "0,4" or "0,4..28". */
static void explain_group(const struct explain *explain, int32_t rank, int32_t a)
{
    const struct tess__map_model *model = explain->model;
    int32_t count = model->axis[a].count, stride = model->stride[a];
    int32_t first = rank - rank / stride % count * stride, last = first + (count - 1) * stride;
    if (stride == 1)
        fprintf(explain->out, "%d-%d", (int)first, (int)last);
    else if (count == 2)
        fprintf(explain->out, "%d,%d", (int)first, (int)last);
    else
        fprintf(explain->out, "%d,%d..%d", (int)first, (int)(first + stride), (int)last);
}

/* The rank that this one sends to along the axis: the next, or the one before at a chain's end. */
static int32_t explain_next(const struct explain *explain, int32_t rank, int32_t a)
{
    const struct tess__map_model *model = explain->model;
    int32_t count = model->axis[a].count, stride = model->stride[a], at = rank / stride % count;
    int32_t to = at + 1 < count ? at + 1 : model->axis[a].chain ? at - 1 : 0;
    return rank + (to - at) * stride;
}

static void explain_why(const struct explain *explain, int32_t rank)
{
    const struct tess__map_model *model = explain->model;
    char way[EXPLAIN_WAY_TEXT];
    const char *comma = "";
    for (int32_t a = 0; a < model->axis_count; a++) {
        if (model->axis[a].count == 1)
            continue;
        int32_t next = explain_next(explain, rank, a);
        explain_way(explain, rank, next, way);
        fprintf(explain->out, "%sto %d %s (%s ", comma, (int)next, way, model->axis[a].name);
        explain_group(explain, rank, a);
        fprintf(explain->out, ")");
        comma = "; ";
    }
    fprintf(explain->out, "\n");
}

static void explain_numa(const struct explain *explain, int32_t rank, char text[16])
{
    const struct tess__map_model *model = explain->model;
    int32_t numa = explain->numa[explain->load->at[rank]];
    snprintf(text, 16, "%s", "-");
    if (numa >= 0)
        snprintf(text, 16, "%d", (int)model->topology->node[numa].index);
}

static void explain_each(const struct explain *explain)
{
    const struct tess__map_model *model = explain->model;
    int name = 6, bus = 3;
    for (int32_t rank = 0; rank < model->count; rank++) {
        const struct tess_node *device = explain_device(explain, rank);
        int length = (int)strlen(device->name), bus_length = (int)strlen(device->bus);
        name = length > name ? length : name;
        bus = bus_length > bus ? bus_length : bus;
    }
    fprintf(explain->out, "\n  %4s  %4s  %-*s  %-*s  %4s  why\n", "rank", "host", name, "device",
            bus, "bus", "NUMA");
    for (int32_t rank = 0; rank < model->count; rank++) {
        const struct tess_node *device = explain_device(explain, rank);
        char numa[16];
        explain_numa(explain, rank, numa);
        fprintf(explain->out, "  %4d  %4d  %-*s  %-*s  %4s  ", (int)rank, (int)device->host, name,
                device->name, bus, device->bus[0] ? device->bus : "-", numa);
        explain_why(explain, rank);
    }
}

/* The ways along the axis of ranks first .. end - 1, each once. */
static void explain_ways(const struct explain *explain, int32_t first, int32_t end, int32_t a)
{
    char way[EXPLAIN_WAYS + 1][EXPLAIN_WAY_TEXT];
    int known = 0;
    for (int32_t rank = first; rank < end && known <= EXPLAIN_WAYS; rank++) {
        explain_way(explain, rank, explain_next(explain, rank, a), way[known]);
        int k = 0;
        while (strcmp(way[k], way[known]) != 0)
            k++;
        known += k == known;
    }
    for (int k = 0; k < known && k < EXPLAIN_WAYS; k++)
        fprintf(explain->out, "%s %s", k ? "," : "", way[k]);
    if (known > EXPLAIN_WAYS)
        fprintf(explain->out, " and others");
}

/* Consecutive ranks on a host in a line, their devices by index: "0-3,6". */
static void explain_run(const struct explain *explain, int32_t first, int32_t end)
{
    const struct tess__map_model *model = explain->model;
    const char *comma = "";
    fprintf(explain->out, "  %5d-%-5d  host %-5d  devices ", (int)first, (int)end - 1,
            (int)explain_device(explain, first)->host);
    for (int32_t rank = first; rank < end;) {
        int32_t from = explain_device(explain, rank)->index, to = from;
        while (++rank < end && explain_device(explain, rank)->index == to + 1)
            to++;
        fprintf(explain->out, to > from ? "%s%d-%d" : "%s%d", comma, (int)from, (int)to);
        comma = ",";
    }
    comma = "  ";
    for (int32_t a = 0; a < model->axis_count; a++) {
        if (model->axis[a].count == 1)
            continue;
        fprintf(explain->out, "%s%s", comma, model->axis[a].name);
        explain_ways(explain, first, end, a);
        comma = "; ";
    }
    fprintf(explain->out, "\n");
}

static void explain_runs(const struct explain *explain)
{
    const struct tess__map_model *model = explain->model;
    int32_t runs = 0;
    fprintf(explain->out, "\n  ranks, host by host, and their ways to the next along each axis\n");
    for (int32_t rank = 0, end; rank < model->count; rank = end) {
        int32_t host = explain_device(explain, rank)->host;
        for (end = rank + 1; end < model->count;) {
            if (explain_device(explain, end)->host != host)
                break;
            end++;
        }
        if (runs++ < EXPLAIN_RUNS_MAX)
            explain_run(explain, rank, end);
    }
    if (runs > EXPLAIN_RUNS_MAX)
        fprintf(explain->out, "  and %d more such runs\n", (int)(runs - EXPLAIN_RUNS_MAX));
}

/* ---- the whole ------------------------------------------------------------------------------ */

static enum tess_status explain_write(struct explain *explain, char **text_out)
{
    size_t bytes = 0;
    TESS_TRY(tess__map_numa(explain->model, explain->numa));
    explain->out = open_memstream(text_out, &bytes);
    if (!explain->out)
        return tess__text_close(NULL, text_out);
    explain_head(explain);
    explain_axes(explain);
    explain_links(explain);
    if (explain->model->count <= EXPLAIN_RANKS_MAX)
        explain_each(explain);
    else
        explain_runs(explain);
    return tess__text_close(explain->out, text_out);
}

enum tess_status tess_map_explain(const struct tess_topology *topology,
                                  const struct tess_map_ask *ask, const struct tess_map *map,
                                  char **text_out)
{
    struct tess__map_model model;
    struct tess__map_load load = {0};
    *text_out = NULL;
    TESS_TRY(tess__map_model_open(&model, topology, ask));
    enum tess_status status = tess__map_load_open(&load, &model);
    if (status == TESS_OK && map->rank_count != model.count)
        status = tess_fail(TESS_ERR_USAGE, "a mapping of %d ranks is to be explained, as one of %d",
                           (int)map->rank_count, (int)model.count);
    for (int32_t i = 0; i < model.count && status == TESS_OK; i++) {
        load.at[i] = map->place[i];
        if (map->place[i] < 0 || map->place[i] >= model.count)
            status = tess_fail(TESS_ERR_USAGE, "rank %d has place %d; there are 0 to %d", (int)i,
                               (int)map->place[i], (int)model.count - 1);
    }
    if (status == TESS_OK) {
        struct explain explain = {.model = &model, .load = &load, .map = map};
        explain.numa = malloc((size_t)model.count * sizeof(*explain.numa));
        explain.seen = malloc(((size_t)topology->host_count + 1) * sizeof(*explain.seen));
        tess__map_load_count(&load);
        status = explain.numa && explain.seen
                     ? explain_write(&explain, text_out)
                     : tess_fail(TESS_ERR_MEMORY, "no memory left to explain a mapping");
        free(explain.numa);
        free(explain.seen);
    }
    tess__map_load_close(&load);
    tess__map_model_close(&model);
    return status;
}
