/*
 * NCCL's graph file read back by its own parser's rules: every attribute that NCCL needs, only
 * its words, each device once in a channel, no link used beyond its capacity, and next to all
 * that the rings carry.
 */
#include "look.h"
#include "machines.h"
#include "tessera/log.h"
#include "topology/formats/xml.h"
#include "topology/map/map.h"
#include "topology/rings/ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CHANNELS_MAX 32
#define DEVICES_MAX  16

struct graph {
    int32_t channels, declared; /* found; by nchannels */
    int32_t dev[CHANNELS_MAX][DEVICES_MAX], devs[CHANNELS_MAX];
    double speed;
    char type[8];
    int32_t same;
};

static void value(const struct tess_xml *xml, const char *name, char *text, size_t room)
{
    const struct tess__word *found = tess__xml_find(xml, name);
    if (!found)
        fail_msg("attribute '%s' is missing", name);
    snprintf(text, room, "%.*s", (int)found->length, found->text);
}

static double number(const struct tess_xml *xml, const char *name)
{
    char text[32], *end;
    value(xml, name, text, sizeof(text));
    double is = strtod(text, &end);
    assert_true(end > text && *end == '\0');
    return is;
}

static void read_graph(const struct tess_xml *xml, struct graph *graph)
{
    static const char *const word[] = {"LOC", "NVL", "NVB", "PIX", "PXB",
                                       "P2C", "PXN", "PHB", "SYS"};
    char text[32];
    bool known = false;
    assert_true(number(xml, "id") == 0);
    assert_true(number(xml, "pattern") == 4);
    assert_true(number(xml, "crossnic") == 0);
    graph->declared = (int32_t)number(xml, "nchannels");
    graph->speed = number(xml, "speedintra");
    assert_true(number(xml, "speedinter") == graph->speed && graph->speed > 0);
    assert_true(number(xml, "latencyinter") == 0);
    graph->same = (int32_t)number(xml, "samechannels");
    value(xml, "typeinter", text, sizeof(text));
    assert_string_equal(text, "PIX");
    value(xml, "typeintra", graph->type, sizeof(graph->type));
    for (size_t i = 0; i < sizeof(word) / sizeof(word[0]); i++)
        known = known || strcmp(graph->type, word[i]) == 0;
    assert_true(known);
}

static struct graph read_back(const char *text)
{
    struct graph graph = {0};
    struct tess_xml xml;
    enum tess_xml_event event;
    char dev[32], *end;
    int graphs = 0;
    tess__xml_begin(&xml, TESS_XML_NCCL, "graph", text, strlen(text));
    for (;;) {
        assert_int_equal(tess__xml_next(&xml, &event), TESS_OK);
        if (event == TESS_XML_END)
            break;
        if (event != TESS_XML_OPEN)
            continue;
        if (xml.depth == 0) {
            assert_true(tess__word_is(xml.element, "graphs"));
            assert_true(number(&xml, "version") == 1);
        } else if (xml.depth == 1) {
            assert_true(tess__word_is(xml.element, "graph"));
            read_graph(&xml, &graph);
            graphs++;
        } else if (xml.depth == 2) {
            assert_true(tess__word_is(xml.element, "channel"));
            assert_true(graph.channels < CHANNELS_MAX);
            graph.channels++;
        } else {
            assert_true(tess__word_is(xml.element, "gpu"));
            value(&xml, "dev", dev, sizeof(dev));
            assert_true(strncmp(dev, "0x", 2) == 0);
            int32_t *count = &graph.devs[graph.channels - 1];
            assert_true(*count < DEVICES_MAX);
            graph.dev[graph.channels - 1][(*count)++] = (int32_t)strtol(dev, &end, 16);
            assert_true(*end == '\0');
        }
    }
    assert_int_equal(graphs, 1);
    assert_int_equal(graph.channels, graph.declared);
    return graph;
}

/* Every channel through every device once, and no link over what it has. */
static void check_channels(const struct graph *graph, const struct tess_routes *routes)
{
    const struct tess_topology *topology = routes->topology;
    double *gbs = calloc((size_t)topology->link_count, sizeof(*gbs));
    enum tess_path_kind worst = TESS_PATH_LOC;
    for (int32_t c = 0; c < graph->channels; c++) {
        uint32_t seen = 0;
        int32_t device[DEVICES_MAX];
        assert_int_equal(graph->devs[c], routes->device_count);
        for (int32_t i = 0; i < graph->devs[c]; i++) {
            device[i] = 0;
            while (topology->node[topology->device[device[i]]].index != graph->dev[c][i])
                device[i]++;
            seen |= 1u << device[i];
        }
        assert_int_equal(seen, (1u << routes->device_count) - 1);
        for (int32_t i = 0; i < graph->devs[c]; i++) {
            int32_t to = device[(i + 1) % graph->devs[c]];
            const struct tess_route *route = &routes->route[device[i] * routes->device_count + to];
            worst = route->kind > worst ? route->kind : worst;
            for (int32_t k = 0; k < route->link_count; k++)
                gbs[routes->link[route->first + k]] += graph->speed;
        }
        for (int32_t i = 0; i < graph->devs[c]; i++)
            assert_true(!graph->same || graph->dev[c][i] == graph->dev[0][i]);
    }
    /* Six digits are written. */
    for (int32_t i = 0; i < topology->link_count; i++)
        assert_true(gbs[i] <= topology->link[i].gbs * (1 + 1e-5));
    assert_string_equal(graph->type, tess_path_word(worst));
    free(gbs);
}

/* What channels of one rate carry at least, as many of a ring as it has room for: by the best of
 * the rates that are a whole fraction of a ring's. With rings of any rates that is less than they
 * carry, as far as their rates are apart. */
static double equal_channels(const struct tess_rings *rings)
{
    double most = 0;
    for (int32_t r = 0; r < rings->ring_count; r++) {
        for (int32_t part = 1; part <= 32; part++) {
            const double gbs = rings->ring[r].gbs / part;
            int32_t channels = 0;
            for (int32_t i = 0; i < rings->ring_count; i++)
                channels += (int32_t)(rings->ring[i].gbs / gbs * (1 + 1e-9));
            if (channels <= 32 && channels * gbs > most)
                most = channels * gbs;
        }
    }
    return most;
}

/* least: of what the rings carry; 0: of what equal channels of theirs carry, less the 2 % that a
 * usual rate is worth. */
static struct graph write_and_read(struct tess_topology *topology, double least)
{
    const struct tess_ring_search search = {.rings = TESS_RINGS_MAX};
    struct tess_routes routes;
    struct tess_rings rings;
    char *text;
    assert_int_equal(tess_routes_open(topology, &routes), TESS_OK);
    assert_int_equal(tess_rings_find(&routes, &search, &rings), TESS_OK);
    assert_int_equal(tess_rings_write_nccl_graph(topology, &routes, &rings, &text), TESS_OK);
    struct graph graph = read_back(text);
    check_channels(&graph, &routes);
    assert_true(graph.channels * graph.speed >=
                (least > 0 ? rings.total_gbs * least : 0.98 * equal_channels(&rings)));
    assert_true(graph.channels * graph.speed <= rings.bound_gbs * (1 + 1e-5));
    free(text);
    tess_rings_free(&rings);
    tess_routes_free(&routes);
    tess_topology_free(topology);
    return graph;
}

static void near(double is, double expected)
{
    if (is < expected * (1 - 1e-5) || is > expected * (1 + 1e-5))
        fail_msg("%.9g is not %.9g", is, expected);
}

static struct tess_topology *hopper(int count)
{
    struct tess_topology *topology = machine_nvswitch(count);
    for (int32_t i = 0; i < topology->device_count; i++)
        topology->node[topology->device[i]].sm = 90;
    return topology;
}

static void case_machines(void **state)
{
    (void)state;
    struct graph graph = write_and_read(machine_dgx1v(), 0.98);
    assert_int_equal(graph.channels, 6);
    near(graph.speed, 20);
    assert_string_equal(graph.type, "NVL");
    assert_int_equal(graph.same, 0);
    /* 18 links of 20.6, as many channels as are needed for 30 at most each. */
    graph = write_and_read(hopper(8), 0.98);
    near(graph.speed * graph.channels, 18 * 20.6);
    assert_true(graph.speed <= 30);
    assert_int_equal(graph.channels, 13);
    /* Two rings of 22 over the processors, one with the bridge. */
    graph = write_and_read(machine_h100_bridges(), 0.98);
    near(graph.speed * graph.channels, 44);
    assert_string_equal(graph.type, "SYS");
    graph = write_and_read(machine_epyc_hives(), 0.98);
    assert_true(graph.speed * graph.channels > 48 * (1 - 1e-5));
    graph = write_and_read(machine_all_to_all(4), 0.98);
    near(graph.speed * graph.channels, 240);
    /* Hexadecimal beyond nine. */
    graph = write_and_read(machine_mi250(), 0.9);
    assert_int_equal(graph.devs[0], 16);
    (void)write_and_read(machine_two_sockets(4, 4), 0.98);
    (void)write_and_read(machine_pairs(), 0.98);
    /* Rings of any rates at all, in 32 channels of one. */
    for (unsigned seed = 0; seed < 20; seed++)
        (void)write_and_read(machine_random(seed, 6), 0);
}

static void write_machine(const char *name, struct tess_topology *topology)
{
    (void)name;
    bool gpus = strncmp(topology->node[topology->device[0]].name, "gpu", 3) == 0;
    if (gpus && topology->device_count > 1 && topology->device_count <= DEVICES_MAX)
        (void)write_and_read(topology, 0);
    else
        tess_topology_free(topology);
}

static void case_real(void **state)
{
    (void)state;
    look_each_machine(write_machine);
}

/* ---- what NCCL could not take --------------------------------------------------------------- */

static void is_refused(const struct tess_topology *topology, const char *why)
{
    const struct tess_ring_search search = {.rings = 1};
    struct tess_routes routes;
    struct tess_rings rings;
    char *text = (char *)"";
    assert_int_equal(tess_routes_open(topology, &routes), TESS_OK);
    assert_int_equal(tess_rings_find(&routes, &search, &rings), TESS_OK);
    assert_int_equal(tess_rings_write_nccl_graph(topology, &routes, &rings, &text),
                     TESS_ERR_UNSUPPORTED);
    assert_null(text);
    if (!strstr(tess_log_last_error(), why))
        fail_msg("'%s' does not contain '%s'", tess_log_last_error(), why);
    tess_rings_free(&rings);
    tess_routes_free(&routes);
}

static void case_refused(void **state)
{
    (void)state;
    struct tess_topology *topology = machine_cluster(2, 4);
    is_refused(topology, "several hosts");
    tess_topology_free(topology);
    topology = machine_nvswitch(1);
    is_refused(topology, "2 devices or more");
    tess_topology_free(topology);
    topology = machine_nvswitch(4);
    int32_t index = topology->node[topology->device[2]].index;
    topology->node[topology->device[2]].index = -1;
    is_refused(topology, "NVML index");
    topology->node[topology->device[2]].index = 1 << 20;
    is_refused(topology, "NVML index");
    topology->node[topology->device[2]].index = 3;
    is_refused(topology, "the same NVML index, 3");
    topology->node[topology->device[2]].index = index;
    tess_topology_free(topology);
    assert_int_equal(tess_topology_synthetic("numa:2 rank:2", NULL, &topology), TESS_OK);
    is_refused(topology, "is no GPU");
    tess_topology_free(topology);
}

/* Rings that share no rate: 32 channels do not hold them all. */
static void case_too_many_channels(void **state)
{
    (void)state;
    struct tess_topology *topology = hopper(4);
    struct tess_routes routes;
    int32_t order[4] = {0, 1, 2, 3};
    struct tess_rings rings = {.count = 4, .ring_count = 2};
    char *text;
    assert_int_equal(tess_routes_open(topology, &routes), TESS_OK);
    rings.ring[0] = (struct tess_ring){order, 18 * 20.6};
    rings.ring[1] = (struct tess_ring){order, 1};
    assert_int_equal(tess_rings_write_nccl_graph(topology, &routes, &rings, &text), TESS_OK);
    /* The ring of 1 GB/s is left out: its rate for all would take 371 channels. */
    struct graph graph = read_back(text);
    assert_int_equal(graph.channels, 13);
    near(graph.speed, 18 * 20.6 / 13);
    free(text);
    rings.ring[0].gbs = rings.ring[1].gbs = 0;
    assert_int_equal(tess_rings_write_nccl_graph(topology, &routes, &rings, &text),
                     TESS_ERR_UNSUPPORTED);
    tess_routes_free(&routes);
    tess_topology_free(topology);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_machines),
        cmocka_unit_test(case_real),
        cmocka_unit_test(case_refused),
        cmocka_unit_test(case_too_many_channels),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
