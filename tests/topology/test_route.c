/* Ways between devices: kinds, links they use, and the ways that are none. */
#include "topology/machine/rates.h"
#include "topology/machine/route.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct built {
    struct tess_topology *topology;
    struct tess_routes routes;
};

static int32_t node(struct built *built, enum tess_node_kind kind, int host)
{
    struct tess_node made = {.kind = kind, .host = host, .socket = -1};
    int32_t number = -1;
    made.index = built->topology->node_count;
    snprintf(made.name, sizeof(made.name), "node%d", (int)made.index);
    assert_int_equal(tess_topology_add_node(built->topology, &made, &number), TESS_OK);
    return number;
}

static void join(struct built *built, enum tess_link_kind kind, int32_t a, int32_t b, double gbs)
{
    assert_int_equal(tess_topology_join(built->topology, kind, a, b, gbs, 1), TESS_OK);
}

static void open_routes(struct built *built)
{
    assert_int_equal(tess_topology_finish(built->topology), TESS_OK);
    assert_int_equal(tess_routes_open(built->topology, &built->routes), TESS_OK);
}

static void drop(struct built *built)
{
    tess_routes_free(&built->routes);
    tess_topology_free(built->topology);
}

/* Its links are a way from one to the other, no wider than it says; the nodes passed, with the
 * ends, are text such as "0 4 1". */
static void is_route(const struct built *built, int from, int to, enum tess_path_kind kind,
                     double gbs, const char *nodes)
{
    const struct tess_topology *topology = built->topology;
    const struct tess_route *route = &built->routes.route[from * built->routes.device_count + to];
    int32_t at = topology->device[from];
    char text[256];
    int length = snprintf(text, sizeof(text), "%d", (int)at);
    double least = 1e9;
    for (int32_t k = 0; k < route->link_count; k++) {
        const struct tess_topo_link *link = &topology->link[built->routes.link[route->first + k]];
        assert_int_equal(link->from, at);
        at = link->to;
        length += snprintf(text + length, sizeof(text) - (size_t)length, " %d", (int)at);
        if (link->gbs < least)
            least = link->gbs;
    }
    assert_string_equal(tess_path_word(route->kind), tess_path_word(kind));
    assert_string_equal(text, nodes);
    assert_true(route->gbs == gbs);
    if (route->link_count) {
        assert_true(least == gbs);
        assert_int_equal(at, topology->device[to]);
    }
}

static void case_kinds_inside_a_host(void **state)
{
    (void)state;
    struct built built = {.topology = tess_topology_new()};
    /* Devices 0 .. 6; switches 7 .. 9; NUMA nodes 10 .. 12, the first two of one socket. */
    for (int i = 0; i < 7; i++)
        node(&built, TESS_NODE_DEVICE, 0);
    for (int i = 0; i < 3; i++)
        node(&built, TESS_NODE_PCI, 0);
    for (int i = 0; i < 3; i++)
        built.topology->node[node(&built, TESS_NODE_CPU, 0)].socket = i / 2;
    join(&built, TESS_LINK_PCI, 0, 7, 12);
    join(&built, TESS_LINK_PCI, 1, 7, 24);
    join(&built, TESS_LINK_PCI, 2, 8, 12);
    join(&built, TESS_LINK_PCI, 7, 9, 12);
    join(&built, TESS_LINK_PCI, 8, 9, 10);
    join(&built, TESS_LINK_PCI, 9, 10, 12);
    join(&built, TESS_LINK_PCI, 3, 10, 48);
    join(&built, TESS_LINK_PCI, 4, 11, 48);
    join(&built, TESS_LINK_PCI, 5, 12, 48);
    join(&built, TESS_LINK_C2C, 5, 12, 100);
    join(&built, TESS_LINK_C2C, 6, 12, 90);
    join(&built, TESS_LINK_NVLINK, 0, 5, 40);
    open_routes(&built);
    is_route(&built, 0, 0, TESS_PATH_LOC, TESS_GBS_LOCAL, "0");
    is_route(&built, 0, 1, TESS_PATH_PIX, 12, "0 7 1");
    is_route(&built, 0, 2, TESS_PATH_PXB, 10, "0 7 9 8 2");
    is_route(&built, 0, 3, TESS_PATH_PHB, 12, "0 7 9 10 3");
    is_route(&built, 3, 4, TESS_PATH_PHB, 48, "3 10 11 4");
    is_route(&built, 4, 5, TESS_PATH_SYS, 10, "4 11 12 5");
    is_route(&built, 5, 6, TESS_PATH_C2C, 90, "5 12 6");
    is_route(&built, 0, 5, TESS_PATH_NVL, 40, "0 5");
    /* Device 5 has a link to 0, and 0 is no way from 1 to 5, nor 5 one from 0 to its processor. */
    is_route(&built, 1, 5, TESS_PATH_SYS, 10, "1 7 9 10 12 5");
    is_route(&built, 0, 6, TESS_PATH_SYS, 10, "0 7 9 10 12 6");
    drop(&built);
}

/* NVLink to a processor, as on POWER, is a way to it; two NVSwitches in a row are one way. */
static void case_nvlink(void **state)
{
    (void)state;
    struct built built = {.topology = tess_topology_new()};
    for (int i = 0; i < 4; i++)
        node(&built, TESS_NODE_DEVICE, 0);
    for (int i = 0; i < 2; i++)
        node(&built, TESS_NODE_CPU, 0);
    for (int i = 0; i < 2; i++)
        node(&built, TESS_NODE_NVSWITCH, 0);
    join(&built, TESS_LINK_NVLINK, 0, 4, 60);
    join(&built, TESS_LINK_NVLINK, 1, 5, 50);
    join(&built, TESS_LINK_SYS, 4, 5, 32);
    join(&built, TESS_LINK_NVLINK, 2, 6, 300);
    join(&built, TESS_LINK_NVLINK, 3, 7, 250);
    join(&built, TESS_LINK_NVLINK, 6, 7, 900);
    open_routes(&built);
    is_route(&built, 0, 1, TESS_PATH_SYS, 32, "0 4 5 1");
    is_route(&built, 2, 3, TESS_PATH_NVL, 250, "2 6 7 3");
    is_route(&built, 0, 2, TESS_PATH_NONE, 0, "0");
    drop(&built);
}

/* Widest first, then shortest, then the lowest numbers. */
static void case_choice(void **state)
{
    (void)state;
    struct built built = {.topology = tess_topology_new()};
    for (int i = 0; i < 2; i++)
        node(&built, TESS_NODE_DEVICE, 0);
    for (int i = 0; i < 5; i++)
        node(&built, TESS_NODE_NVSWITCH, 0);
    join(&built, TESS_LINK_NVLINK, 0, 1, 10);
    for (int32_t i = 5; i > 2; i--) {
        join(&built, TESS_LINK_NVLINK, 0, i, 20);
        join(&built, TESS_LINK_NVLINK, i, 1, i == 3 ? 19 : 20);
    }
    open_routes(&built);
    is_route(&built, 0, 1, TESS_PATH_NVL, 20, "0 4 1");
    is_route(&built, 1, 0, TESS_PATH_NVL, 20, "1 4 0");
    drop(&built);
}

/* Three hosts on two networks; the middle one has a place in both and forwards nothing. */
static void case_network(void **state)
{
    (void)state;
    struct built built = {.topology = tess_topology_new()};
    int32_t net[2], cpu[3], nic[4];
    for (int i = 0; i < 3; i++)
        node(&built, TESS_NODE_DEVICE, i);
    for (int i = 0; i < 3; i++)
        join(&built, TESS_LINK_PCI, cpu[i] = node(&built, TESS_NODE_CPU, i), i, 12);
    for (int i = 0; i < 2; i++)
        net[i] = node(&built, TESS_NODE_NET, -1);
    for (int i = 0; i < 4; i++) {
        nic[i] = node(&built, TESS_NODE_NIC, (i + 1) / 2);
        join(&built, TESS_LINK_PCI, nic[i], cpu[(i + 1) / 2], 12);
        join(&built, TESS_LINK_NET, nic[i], net[i / 2], 5);
    }
    open_routes(&built);
    is_route(&built, 0, 1, TESS_PATH_NET, 5, "0 3 8 6 9 4 1");
    is_route(&built, 1, 2, TESS_PATH_NET, 5, "1 4 10 7 11 5 2");
    is_route(&built, 0, 2, TESS_PATH_NONE, 0, "0");
    drop(&built);
    assert_string_equal(tess_path_word((enum tess_path_kind)99), "NONE");
}

static void case_a_path_too_long(void **state)
{
    (void)state;
    struct built built = {.topology = tess_topology_new()};
    int32_t last = node(&built, TESS_NODE_DEVICE, 0);
    for (int i = 0; i < 70; i++) {
        int32_t next = node(&built, TESS_NODE_PCI, 0);
        join(&built, TESS_LINK_PCI, last, next, 12);
        last = next;
    }
    join(&built, TESS_LINK_PCI, last, node(&built, TESS_NODE_DEVICE, 0), 12);
    assert_int_equal(tess_topology_finish(built.topology), TESS_OK);
    assert_int_equal(tess_routes_open(built.topology, &built.routes), TESS_ERR_DATA);
    drop(&built);
}

/* Two on one switch, one of them without peer-to-peer: up to the processor and down again, which
 * the switch's own link carries twice. A third has peer-to-peer with the second. */
static void case_staged(void **state)
{
    (void)state;
    struct built built = {.topology = tess_topology_new()};
    int32_t cpu = node(&built, TESS_NODE_CPU, 0), far = node(&built, TESS_NODE_CPU, 0);
    int32_t below = node(&built, TESS_NODE_PCI, 0), device[4];
    join(&built, TESS_LINK_PCI, cpu, below, 24);
    join(&built, TESS_LINK_SYS, cpu, far, 10);
    for (int i = 0; i < 4; i++) {
        device[i] = node(&built, TESS_NODE_DEVICE, 0);
        join(&built, TESS_LINK_PCI, device[i], i < 3 ? below : far, 24);
    }
    built.topology->node[device[0]].staged = 1;
    open_routes(&built);
    const struct tess_route *route = built.routes.route;
    assert_int_equal(route[0 * 4 + 1].kind, TESS_PATH_PHB);
    assert_int_equal(route[0 * 4 + 1].link_count, 4);
    assert_int_equal(route[1 * 4 + 0].kind, TESS_PATH_PHB);
    assert_int_equal(route[1 * 4 + 2].kind, TESS_PATH_PIX);
    assert_int_equal(route[0 * 4 + 3].kind, TESS_PATH_SYS);
    assert_int_equal(route[0 * 4 + 3].link_count, 4);
    assert_true(route[0 * 4 + 3].gbs == 10 && route[3 * 4 + 0].gbs == 10);
    for (int pair = 0; pair < 4; pair++) {
        /* Each link begins where the one before ended. */
        const struct tess_route *to = &route[pair == 0 ? 1 : pair == 1 ? 4 : pair == 2 ? 3 : 12];
        for (int32_t k = 1; k < to->link_count; k++)
            assert_int_equal(built.topology->link[built.routes.link[to->first + k]].from,
                             built.topology->link[built.routes.link[to->first + k - 1]].to);
    }
    drop(&built);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_kinds_inside_a_host),
        cmocka_unit_test(case_nvlink),
        cmocka_unit_test(case_choice),
        cmocka_unit_test(case_network),
        cmocka_unit_test(case_a_path_too_long),
        cmocka_unit_test(case_staged),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
