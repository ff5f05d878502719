/* Topologies built node by node: numbers of devices, links that finish adds, limits, selection. */
#include "topology/machine/rates.h"
#include "topology/machine/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static int32_t node(struct tess_topology *topology, enum tess_node_kind kind, const char *name,
                    int32_t host, int32_t index)
{
    struct tess_node made = {.kind = kind, .host = host, .index = index, .socket = -1};
    int32_t number = -1;
    snprintf(made.name, sizeof(made.name), "%s", name);
    if (kind == TESS_NODE_DEVICE)
        snprintf(made.bus, sizeof(made.bus), "0000:%02x:00.0", (unsigned)index);
    assert_int_equal(tess_topology_add_node(topology, &made, &number), TESS_OK);
    return number;
}

/* Capacity from a to b of that kind; 0: no link. */
static double gbs(const struct tess_topology *topology, enum tess_link_kind kind, int32_t a,
                  int32_t b)
{
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        if (link->kind == kind && link->from == a && link->to == b)
            return link->gbs;
    }
    return 0;
}

static void case_devices_are_numbered_by_host_and_index(void **state)
{
    (void)state;
    struct tess_topology *topology = tess_topology_new();
    int32_t net = node(topology, TESS_NODE_NET, "net", -1, 0);
    int32_t b1 = node(topology, TESS_NODE_DEVICE, "b1", 1, 1);
    int32_t b0 = node(topology, TESS_NODE_DEVICE, "b0", 1, 0);
    int32_t a0 = node(topology, TESS_NODE_DEVICE, "a0", 0, 0);
    for (int32_t i = 1; i < 4; i++)
        assert_int_equal(tess_topology_join(topology, TESS_LINK_NET, i, net, 1, 1), TESS_OK);
    assert_int_equal(tess_topology_finish(topology), TESS_OK);
    assert_int_equal(topology->device_count, 3);
    assert_int_equal(topology->host_count, 2);
    assert_int_equal(topology->device[0], a0);
    assert_int_equal(topology->device[1], b0);
    assert_int_equal(topology->device[2], b1);
    assert_int_equal(tess_topology_find_bus(topology, 1, "0000:00:00.0"), b0);
    assert_int_equal(tess_topology_find_bus(topology, 0, "0000:01:00.0"), -1);
    tess_topology_free(topology);
}

static void case_links_side_by_side_add_up(void **state)
{
    (void)state;
    struct tess_topology *topology = tess_topology_new();
    node(topology, TESS_NODE_DEVICE, "a", 0, 0);
    node(topology, TESS_NODE_DEVICE, "b", 0, 1);
    assert_int_equal(tess_topology_join(topology, TESS_LINK_NVLINK, 0, 1, 20, 1), TESS_OK);
    assert_int_equal(tess_topology_join(topology, TESS_LINK_NVLINK, 1, 0, 40, 2), TESS_OK);
    assert_int_equal(tess_topology_join(topology, TESS_LINK_PCI, 1, 0, 12, 1), TESS_OK);
    assert_int_equal(topology->link_count, 4);
    assert_true(gbs(topology, TESS_LINK_NVLINK, 0, 1) == 60);
    assert_true(gbs(topology, TESS_LINK_NVLINK, 1, 0) == 60);
    assert_true(gbs(topology, TESS_LINK_PCI, 0, 1) == 12);
    assert_int_equal(topology->link[0].count, 3);
    tess_topology_free(topology);
}

/* Two NUMA nodes with a device each. */
static struct tess_topology *two_numa(enum tess_cpu_maker maker, int32_t model, int32_t socket_a,
                                      int32_t socket_b)
{
    struct tess_topology *topology = tess_topology_new();
    for (int32_t i = 0; i < 2; i++) {
        int32_t cpu = node(topology, TESS_NODE_CPU, i ? "numa1" : "numa0", 0, i);
        int32_t gpu = node(topology, TESS_NODE_DEVICE, i ? "gpu1" : "gpu0", 0, i);
        topology->node[cpu].maker = maker;
        topology->node[cpu].model = model;
        topology->node[cpu].socket = i ? socket_b : socket_a;
        assert_int_equal(tess_topology_join(topology, TESS_LINK_PCI, cpu, gpu, 12, 1), TESS_OK);
    }
    return topology;
}

static void case_numa_nodes_are_joined_by_maker_and_model(void **state)
{
    (void)state;
    static const struct {
        enum tess_cpu_maker maker;
        int32_t model;
        double gbs;
    } table[] = {
        {TESS_CPU_INTEL, 79, 6},   {TESS_CPU_INTEL, 85, 10},  {TESS_CPU_INTEL, 143, 22},
        {TESS_CPU_INTEL, 207, 40}, {TESS_CPU_INTEL, 0, 10},   {TESS_CPU_AMD, 49, 16},
        {TESS_CPU_ARM, 1, 6},      {TESS_CPU_POWER, 1, 32},   {TESS_CPU_ZHAOXIN, 1, 6},
        {TESS_CPU_ZHAOXIN, 91, 9}, {TESS_CPU_UNKNOWN, 0, 10},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct tess_topology *topology = two_numa(table[i].maker, table[i].model, 0, 1);
        assert_int_equal(tess_topology_finish(topology), TESS_OK);
        assert_true(gbs(topology, TESS_LINK_SYS, 0, 2) == table[i].gbs);
        assert_true(gbs(topology, TESS_LINK_SYS, 2, 0) == table[i].gbs);
        tess_topology_free(topology);
    }
    struct tess_topology *shared = two_numa(TESS_CPU_AMD, 49, 0, 0);
    assert_int_equal(tess_topology_finish(shared), TESS_OK);
    assert_true(gbs(shared, TESS_LINK_SYS, 0, 2) == 0);
    assert_true(gbs(shared, TESS_LINK_LOCAL, 0, 2) == TESS_GBS_LOCAL);
    tess_topology_free(shared);
    /* What the file says stays. */
    struct tess_topology *given = two_numa(TESS_CPU_AMD, 49, 0, 1);
    assert_int_equal(tess_topology_join(given, TESS_LINK_SYS, 0, 2, 3, 1), TESS_OK);
    assert_int_equal(tess_topology_finish(given), TESS_OK);
    assert_true(gbs(given, TESS_LINK_SYS, 0, 2) == 3);
    tess_topology_free(given);
}

static void case_bad_input_is_refused(void **state)
{
    (void)state;
    struct tess_topology *topology = tess_topology_new();
    assert_int_equal(tess_topology_finish(topology), TESS_ERR_DATA);
    node(topology, TESS_NODE_DEVICE, "a", 0, 0);
    node(topology, TESS_NODE_DEVICE, "b", 0, 1);
    struct tess_node again = {.kind = TESS_NODE_DEVICE, .name = "a"};
    assert_int_equal(tess_topology_add_node(topology, &again, NULL), TESS_ERR_DATA);
    static const double bad[] = {0, -1, 1e300};
    for (int i = 0; i < 3; i++)
        assert_int_equal(tess_topology_join(topology, TESS_LINK_PCI, 0, 1, bad[i], 1),
                         TESS_ERR_DATA);
    assert_int_equal(tess_topology_join(topology, TESS_LINK_PCI, 0, 0, 1, 1), TESS_ERR_DATA);
    assert_int_equal(tess_topology_join(topology, TESS_LINK_PCI, 0, 7, 1, 1), TESS_ERR_INTERNAL);
    assert_int_equal(tess_topology_finish(topology), TESS_ERR_DATA);
    assert_int_equal(tess_topology_join(topology, TESS_LINK_NVLINK, 0, 1, 20, 1), TESS_OK);
    assert_int_equal(tess_topology_finish(topology), TESS_OK);
    /* A device alone on a processor, by two links, has no peer. */
    int32_t cpu = node(topology, TESS_NODE_CPU, "numa0", 0, 0);
    int32_t gpu = node(topology, TESS_NODE_DEVICE, "c", 0, 2);
    assert_int_equal(tess_topology_join(topology, TESS_LINK_PCI, cpu, gpu, 12, 1), TESS_OK);
    assert_int_equal(tess_topology_join(topology, TESS_LINK_NVLINK, cpu, gpu, 12, 1), TESS_OK);
    assert_int_equal(tess_topology_finish(topology), TESS_ERR_DATA);
    tess_topology_free(topology);
}

static void case_a_selection_keeps_order_and_ways(void **state)
{
    (void)state;
    struct tess_topology *topology = tess_topology_new();
    int32_t device[4];
    for (int32_t i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof(name), "gpu%d", (int)i);
        device[i] = node(topology, TESS_NODE_DEVICE, name, 0, i);
    }
    int32_t pci = node(topology, TESS_NODE_PCI, "switch", 0, 0);
    for (int32_t i = 0; i < 4; i++)
        assert_int_equal(tess_topology_join(topology, TESS_LINK_PCI, device[i], pci, 10 + i, 1),
                         TESS_OK);
    assert_int_equal(tess_topology_finish(topology), TESS_OK);
    static const int32_t twice[] = {1, 1}, far[] = {4}, keep[] = {3, 1};
    assert_int_equal(tess_topology_select(topology, twice, 2), TESS_ERR_USAGE);
    assert_int_equal(tess_topology_select(topology, far, 1), TESS_ERR_USAGE);
    assert_int_equal(tess_topology_select(topology, keep, 0), TESS_ERR_USAGE);
    assert_int_equal(topology->device_count, 4);
    assert_int_equal(tess_topology_select(topology, keep, 2), TESS_OK);
    assert_int_equal(topology->device_count, 2);
    assert_int_equal(topology->node_count, 3);
    assert_int_equal(topology->link_count, 4);
    assert_string_equal(topology->node[topology->device[0]].name, "gpu3");
    assert_string_equal(topology->node[topology->device[1]].name, "gpu1");
    int32_t found = tess_topology_find_bus(topology, 0, "0000:03:00.0");
    assert_int_equal(found, topology->device[0]);
    assert_int_equal(tess_topology_find_bus(topology, 0, "0000:02:00.0"), -1);
    assert_true(gbs(topology, TESS_LINK_PCI, found, 2) == 13);
    /* The tables know the new numbers: a name that left may come again. */
    assert_int_equal(node(topology, TESS_NODE_DEVICE, "gpu2", 0, 2), 3);
    tess_topology_free(topology);
}

/* Tables grow, and the limit holds. */
static void case_many_nodes(void **state)
{
    (void)state;
    struct tess_topology *topology = tess_topology_new();
    struct tess_node made = {.kind = TESS_NODE_PCI, .socket = -1};
    for (int32_t i = 0; i < TESS_TOPO_NODES_MAX; i++) {
        snprintf(made.name, sizeof(made.name), "n%d", (int)i);
        assert_int_equal(tess_topology_add_node(topology, &made, NULL), TESS_OK);
    }
    snprintf(made.name, sizeof(made.name), "one more");
    assert_int_equal(tess_topology_add_node(topology, &made, NULL), TESS_ERR_DATA);
    for (int32_t i = 1; i < TESS_TOPO_NODES_MAX; i++)
        assert_int_equal(tess_topology_join(topology, TESS_LINK_PCI, 0, i, 1, 1), TESS_OK);
    for (int32_t i = 1; i < TESS_TOPO_NODES_MAX; i++)
        assert_int_equal(tess_topology_join(topology, TESS_LINK_PCI, i, 0, 1, 1), TESS_OK);
    assert_int_equal(topology->link_count, 2 * (TESS_TOPO_NODES_MAX - 1));
    tess_topology_free(topology);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_devices_are_numbered_by_host_and_index),
        cmocka_unit_test(case_links_side_by_side_add_up),
        cmocka_unit_test(case_numa_nodes_are_joined_by_maker_and_model),
        cmocka_unit_test(case_bad_input_is_refused),
        cmocka_unit_test(case_a_selection_keeps_order_and_ways),
        cmocka_unit_test(case_many_nodes),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
