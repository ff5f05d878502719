/*
 * Rings as NCCL's graph file, read by its ncclTopoGetXmlGraphFromFile (NCCL_GRAPH_FILE): graph 0,
 * pattern 4, the ring; NCCL searches the others by itself. All channels of a graph have one rate,
 * so that a ring gets a channel for each multiple of it that it carries. NCCL checks little of what
 * it reads (a type that is missing crashes it), so nothing is left out here.
 */
#include "tessera/check.h"
#include "topology/machine/pool.h"
#include "topology/rings/ring.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRAPH_CHANNELS_MAX 32                    /* of a ring graph: MAXCHANNELS / 2 */
#define GRAPH_ELEMENTS_MAX 4096                  /* of a graph file, NCCL 2.28 */
#define GRAPH_DEV_MAX      0xffff                /* more is no NVML index */
#define GRAPH_SOURCES_MAX  (TESS_RINGS_MAX + 16) /* rates that others are fractions of */
#define GRAPH_LOSS         0.02 /* of the total that channels of a usual rate may leave */

struct graph {
    const struct tess_topology *topology;
    const struct tess_routes *routes;
    const struct tess_rings *rings;
    int32_t channels[TESS_RINGS_MAX]; /* of ring r */
    int32_t channel_count;
    double gbs;   /* of a channel */
    double *load; /* [link_count] scratch: 10^9 bytes/s that channels so far need */
};

static const struct tess_node *graph_device(const struct graph *graph, int32_t device)
{
    return &graph->topology->node[graph->topology->device[device]];
}

/* ---- what NCCL can take --------------------------------------------------------------------- */

/* A GPU has PCIe, NVLink or C2C; a rank's place is attached to its processor. */
static bool graph_is_gpu(const struct graph *graph, int32_t device)
{
    bool linked = false;
    for (int32_t i = 0; i < graph->topology->link_count && !linked; i++) {
        const struct tess_topo_link *link = &graph->topology->link[i];
        linked = link->from == graph->topology->device[device] &&
                 (link->kind == TESS_LINK_PCI || link->kind == TESS_LINK_NVLINK ||
                  link->kind == TESS_LINK_C2C);
    }
    return linked;
}

static enum tess_status graph_check_devices(const struct graph *graph)
{
    const struct tess_rings *rings = graph->rings;
    if (rings->count < 2 || rings->ring_count < 1)
        TESS_FAIL(
            TESS_ERR_UNSUPPORTED,
            "a graph for NCCL of %d devices in %d rings; expected 2 devices or more in a ring",
            (int)rings->count, (int)rings->ring_count);
    const int32_t *order = rings->ring[0].order;
    for (int32_t i = 0; i < rings->count; i++) {
        const struct tess_node *device = graph_device(graph, order[i]);
        if (device->host != graph_device(graph, order[0])->host)
            TESS_FAIL(TESS_ERR_UNSUPPORTED,
                      "'%s' and '%s' are on several hosts; NCCL's graph is that of one",
                      graph_device(graph, order[0])->name, device->name);
        if (device->index < 0 || device->index > GRAPH_DEV_MAX || !graph_is_gpu(graph, order[i]))
            TESS_FAIL(TESS_ERR_UNSUPPORTED,
                      "'%s' is no GPU with an NVML index, by which NCCL's graph names devices",
                      device->name);
        for (int32_t k = 0; k < i; k++) {
            if (graph_device(graph, order[k])->index == device->index)
                TESS_FAIL(TESS_ERR_UNSUPPORTED, "'%s' and '%s' have the same NVML index, %d",
                          graph_device(graph, order[k])->name, device->name, (int)device->index);
        }
    }
    return TESS_OK;
}

static enum tess_status graph_check_ways(const struct graph *graph)
{
    const struct tess_rings *rings = graph->rings;
    for (int32_t r = 0; r < rings->ring_count; r++) {
        const int32_t *order = rings->ring[r].order;
        for (int32_t i = 0; i < rings->count; i++) {
            enum tess_path_kind kind = tess__route_hop(graph->routes, order, rings->count, i)->kind;
            if (kind == TESS_PATH_NET || kind == TESS_PATH_NONE)
                TESS_FAIL(TESS_ERR_UNSUPPORTED,
                          "'%s' reaches '%s' by no way inside the host, as NCCL's graph needs",
                          graph_device(graph, order[i])->name,
                          graph_device(graph, order[(i + 1) % rings->count])->name);
        }
    }
    return TESS_OK;
}

/* The worst kind of hop of the rings that have channels. */
static enum tess_path_kind graph_kind(const struct graph *graph)
{
    const struct tess_rings *rings = graph->rings;
    enum tess_path_kind worst = TESS_PATH_LOC;
    for (int32_t r = 0; r < rings->ring_count; r++) {
        const int32_t *order = rings->ring[r].order;
        for (int32_t i = 0; i < rings->count && graph->channels[r] > 0; i++) {
            enum tess_path_kind kind = tess__route_hop(graph->routes, order, rings->count, i)->kind;
            worst = kind > worst ? kind : worst;
        }
    }
    return worst;
}

/* NCCL takes an unknown word for LOC, and C2C is one: through the processor, it is. */
static const char *graph_word(enum tess_path_kind kind)
{
    return tess_path_word(kind == TESS_PATH_C2C ? TESS_PATH_PHB : kind);
}

/* ---- channels ------------------------------------------------------------------------------- */

/* What NCCL's own search gives to a channel of wide links (its tables of speeds, and what it
 * chooses on machines with NVSwitches): one channel is one block of threads, which does no more. */
static double graph_usual_gbs(const struct graph *graph)
{
    int32_t sm = graph_device(graph, graph->rings->ring[0].order[0])->sm;
    return sm >= 100 ? 40 : sm >= 90 ? 30 : 20;
}

/* Adds a channel of the ring to the load (gbs < 0: removes it); false where a link has too little.
 */
static bool graph_load(const struct graph *graph, int32_t r, double gbs)
{
    const struct tess_rings *rings = graph->rings;
    const struct tess_routes *routes = graph->routes;
    bool fits = true;
    for (int32_t i = 0; i < rings->count; i++) {
        const struct tess_route *route =
            tess__route_hop(routes, rings->ring[r].order, rings->count, i);
        for (int32_t k = 0; k < route->link_count; k++) {
            int32_t link = routes->link[route->first + k];
            graph->load[link] += gbs;
            fits = fits && graph->load[link] <= graph->topology->link[link].gbs * (1 + 1e-9);
        }
    }
    return fits;
}

/*
 * Channels of this rate; their number. What is left of several rings may make room for a channel
 * more in one of them, though none has enough left for itself.
 */
static int32_t graph_channels(const struct graph *graph, double gbs, int32_t *channels)
{
    const struct tess_rings *rings = graph->rings;
    int32_t total = 0;
    memset(graph->load, 0, (size_t)graph->topology->link_count * sizeof(*graph->load));
    for (int32_t r = 0; r < rings->ring_count; r++) {
        double fits = floor(rings->ring[r].gbs / gbs * (1 + 1e-9));
        channels[r] = fits > GRAPH_CHANNELS_MAX ? GRAPH_CHANNELS_MAX + 1 : (int32_t)fits;
        total += channels[r];
        (void)graph_load(graph, r, channels[r] * gbs);
    }
    for (int32_t r = 0; r < rings->ring_count && total < GRAPH_CHANNELS_MAX;) {
        if (graph_load(graph, r, gbs) && rings->ring[r].gbs > 0) {
            channels[r]++;
            total++;
        } else {
            (void)graph_load(graph, r++, -gbs);
        }
    }
    return total;
}

/* What rates are fractions of: what the rings carry, so that one at least is used up, and what
 * links do. Their number. */
static int32_t graph_sources(const struct graph *graph, double source[GRAPH_SOURCES_MAX])
{
    int32_t count = 0;
    for (int32_t r = 0; r < graph->rings->ring_count; r++)
        source[count++] = graph->rings->ring[r].gbs;
    for (int32_t i = 0; i < graph->topology->link_count && count < GRAPH_SOURCES_MAX; i++) {
        int32_t same = 0;
        while (same < count && source[same] != graph->topology->link[i].gbs)
            same++;
        if (same == count)
            source[count++] = graph->topology->link[i].gbs;
    }
    return count;
}

/*
 * Of all rates those count that leave next to nothing of the greatest total; of these the ones that
 * are usual, or else the lowest; of these the one with the fewest channels.
 */
static enum tess_status graph_choose_rate(struct graph *graph)
{
    const struct tess_rings *rings = graph->rings;
    int32_t channels[TESS_RINGS_MAX];
    double source[GRAPH_SOURCES_MAX], most = 0, usual = graph_usual_gbs(graph);
    int32_t rates = graph_sources(graph, source) * GRAPH_CHANNELS_MAX;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < rates; i++) {
            double gbs = source[i / GRAPH_CHANNELS_MAX] / (i % GRAPH_CHANNELS_MAX + 1);
            if (!(gbs > 0))
                continue;
            int32_t count = graph_channels(graph, gbs, channels);
            if (count == 0 || count > GRAPH_CHANNELS_MAX)
                continue;
            if (pass == 0) {
                most = fmax(most, count * gbs);
                continue;
            }
            if (count * gbs < most * (1 - GRAPH_LOSS))
                continue;
            double before = fmax(graph->gbs, usual), now = fmax(gbs, usual);
            if (graph->channel_count == 0 || now < before ||
                (now == before && count < graph->channel_count)) {
                graph->gbs = gbs;
                graph->channel_count = count;
            }
        }
    }
    if (graph->channel_count == 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "%d rings do not go into the %d channels that NCCL's graph has",
                  (int)rings->ring_count, GRAPH_CHANNELS_MAX);
    (void)graph_channels(graph, graph->gbs, graph->channels);
    if (graph->channel_count * (rings->count + 1) + 2 > GRAPH_ELEMENTS_MAX)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "%d channels of %d devices are more than the %d elements of NCCL's graph file",
                  (int)graph->channel_count, (int)rings->count, GRAPH_ELEMENTS_MAX);
    return TESS_OK;
}

/* ---- text ----------------------------------------------------------------------------------- */

static void graph_write_channel(const struct graph *graph, const int32_t *order, FILE *out)
{
    fprintf(out, "    <channel>\n");
    for (int32_t i = 0; i < graph->rings->count; i++)
        fprintf(out, "      <gpu dev=\"0x%x\"/>\n", (unsigned)graph_device(graph, order[i])->index);
    fprintf(out, "    </channel>\n");
}

/* NCCL reads speeds by strtof; between hosts nothing is given, so that the words there are the
 * best. Channels are dealt out in turn: NCCL splits small messages over the first ones. */
static void graph_write(const struct graph *graph, FILE *out)
{
    const struct tess_rings *rings = graph->rings;
    int32_t used = 0;
    for (int32_t r = 0; r < rings->ring_count; r++)
        used += graph->channels[r] > 0;
    fprintf(out, "<graphs version=\"1\">\n");
    fprintf(out,
            "  <graph id=\"0\" pattern=\"4\" crossnic=\"0\" nchannels=\"%d\" speedintra=\"%.6g\" "
            "speedinter=\"%.6g\" latencyinter=\"0\" typeintra=\"%s\" typeinter=\"PIX\" "
            "samechannels=\"%d\">\n",
            (int)graph->channel_count, graph->gbs, graph->gbs, graph_word(graph_kind(graph)),
            used == 1);
    for (int32_t turn = 0; turn < GRAPH_CHANNELS_MAX; turn++) {
        for (int32_t r = 0; r < rings->ring_count; r++) {
            if (turn < graph->channels[r])
                graph_write_channel(graph, rings->ring[r].order, out);
        }
    }
    fprintf(out, "  </graph>\n</graphs>\n");
}

static enum tess_status graph_plan(struct graph *graph)
{
    TESS_TRY(graph_check_devices(graph));
    TESS_TRY(graph_check_ways(graph));
    graph->load = malloc(((size_t)graph->topology->link_count + 1) * sizeof(*graph->load));
    if (!graph->load)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory left for NCCL's graph");
    enum tess_status status = graph_choose_rate(graph);
    free(graph->load);
    return status;
}

enum tess_status tess_rings_write_nccl_graph(const struct tess_topology *topology,
                                             const struct tess_routes *routes,
                                             const struct tess_rings *rings, char **text_out)
{
    struct graph graph = {.topology = topology, .routes = routes, .rings = rings};
    size_t bytes = 0;
    *text_out = NULL;
    TESS_TRY(graph_plan(&graph));
    FILE *out = open_memstream(text_out, &bytes);
    if (out)
        graph_write(&graph, out);
    return tess__text_close(out, text_out);
}
