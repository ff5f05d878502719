#include "machines.h"

#include "base/hash.h"
#include "topology/machine/rates.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define LINK_GBS 20.0 /* of one link between devices */
#define X16_GEN3 TESS_GBS_PCI(60, 16)
#define X16_GEN4 TESS_GBS_PCI(120, 16)
#define X16_GEN5 TESS_GBS_PCI(240, 16)

static int32_t add(struct tess_topology *topology, enum tess_node_kind kind, int host, int index)
{
    static const char *const word[TESS_NODE_KIND_COUNT] = {"gpu",  "pci", "nvs",
                                                           "numa", "nic", "net"};
    struct tess_node node = {.kind = kind, .host = host, .index = index, .socket = -1};
    int32_t number = -1;
    snprintf(node.name, sizeof(node.name), "n%d.%s%d", host, word[kind], index);
    assert_int_equal(tess_topology_add_node(topology, &node, &number), TESS_OK);
    return number;
}

static int32_t add_cpu(struct tess_topology *topology, int host, int index,
                       enum tess_cpu_maker maker, int model)
{
    int32_t number = add(topology, TESS_NODE_CPU, host, index);
    topology->node[number].maker = maker;
    topology->node[number].model = model;
    topology->node[number].socket = index;
    return number;
}

static void join(struct tess_topology *topology, enum tess_link_kind kind, int32_t a, int32_t b,
                 double gbs, int count)
{
    assert_int_equal(tess_topology_join(topology, kind, a, b, gbs, count), TESS_OK);
}

static struct tess_topology *finish(struct tess_topology *topology)
{
    assert_int_equal(tess_topology_finish(topology), TESS_OK);
    return topology;
}

/* Two sockets, two switches each, two devices a switch; pairs of NVLinks by number of links. */
static void add_dgx1v(struct tess_topology *topology, int host, int count, int32_t *gpu)
{
    static const int link[][3] = {{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1},
                                  {1, 5, 2}, {2, 3, 2}, {2, 6, 1}, {3, 7, 1}, {4, 5, 1}, {4, 6, 1},
                                  {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2}};
    int32_t cpu[2], pci[4];
    for (int i = 0; i < 2; i++)
        cpu[i] = add_cpu(topology, host, i, TESS_CPU_INTEL, 79);
    for (int i = 0; i < 4; i++) {
        pci[i] = add(topology, TESS_NODE_PCI, host, i);
        join(topology, TESS_LINK_PCI, pci[i], cpu[i / 2], X16_GEN3, 1);
    }
    for (int i = 0; i < count; i++) {
        gpu[i] = add(topology, TESS_NODE_DEVICE, host, i);
        topology->node[gpu[i]].sm = 70;
        join(topology, TESS_LINK_PCI, gpu[i], pci[i / 2], X16_GEN3, 1);
    }
    for (size_t i = 0; i < sizeof(link) / sizeof(link[0]); i++) {
        if (link[i][0] < count && link[i][1] < count)
            join(topology, TESS_LINK_NVLINK, gpu[link[i][0]], gpu[link[i][1]],
                 TESS_GBS_NVLINK_SM70 * link[i][2], link[i][2]);
    }
}

struct tess_topology *machine_dgx1v(void)
{
    struct tess_topology *topology = tess_topology_new();
    int32_t gpu[8];
    add_dgx1v(topology, 0, 8, gpu);
    return finish(topology);
}

struct tess_topology *machine_h100_bridges(void)
{
    static const int bridge[4][2] = {{0, 5}, {1, 2}, {3, 4}, {6, 7}};
    struct tess_topology *topology = tess_topology_new();
    int32_t cpu[2], gpu[8];
    for (int i = 0; i < 2; i++)
        cpu[i] = add_cpu(topology, 0, i, TESS_CPU_INTEL, 143);
    for (int i = 0; i < 8; i++) {
        gpu[i] = add(topology, TESS_NODE_DEVICE, 0, i);
        join(topology, TESS_LINK_PCI, gpu[i], cpu[i > 2], X16_GEN5, 1);
    }
    for (int i = 0; i < 4; i++)
        join(topology, TESS_LINK_NVLINK, gpu[bridge[i][0]], gpu[bridge[i][1]],
             TESS_GBS_NVLINK_SM90 * 12, 12);
    return finish(topology);
}

struct tess_topology *machine_epyc_hives(void)
{
    static const int numa[8] = {0, 1, 1, 1, 2, 2, 3, 3};
    struct tess_topology *topology = tess_topology_new();
    int32_t cpu[4], gpu[8];
    for (int i = 0; i < 4; i++) {
        cpu[i] = add(topology, TESS_NODE_CPU, 0, i);
        topology->node[cpu[i]].maker = TESS_CPU_AMD;
    }
    for (int i = 0; i < 8; i++) {
        gpu[i] = add(topology, TESS_NODE_DEVICE, 0, i);
        int32_t pci = add(topology, TESS_NODE_PCI, 0, i);
        join(topology, TESS_LINK_PCI, gpu[i], pci, X16_GEN4, 1);
        join(topology, TESS_LINK_PCI, pci, cpu[numa[i]], X16_GEN4, 1);
        for (int j = i / 4 * 4; j < i; j++)
            join(topology, TESS_LINK_NVLINK, gpu[i], gpu[j], LINK_GBS, 1);
    }
    return finish(topology);
}

struct tess_topology *machine_nvswitch(int count)
{
    struct tess_topology *topology = tess_topology_new();
    int32_t nvs = add(topology, TESS_NODE_NVSWITCH, 0, 0), cpu[2], pci = -1;
    for (int i = 0; i < 2; i++)
        cpu[i] = add_cpu(topology, 0, i, TESS_CPU_INTEL, 143);
    for (int i = 0; i < count; i++) {
        int32_t gpu = add(topology, TESS_NODE_DEVICE, 0, i);
        if (i % 2 == 0) {
            pci = add(topology, TESS_NODE_PCI, 0, i / 2);
            join(topology, TESS_LINK_PCI, pci, cpu[2 * i >= count], X16_GEN5, 1);
        }
        join(topology, TESS_LINK_PCI, gpu, pci, X16_GEN5, 1);
        join(topology, TESS_LINK_NVLINK, gpu, nvs, TESS_GBS_NVLINK_SM90 * 18, 18);
    }
    return finish(topology);
}

struct tess_topology *machine_two_sockets(int left, int right)
{
    struct tess_topology *topology = tess_topology_new();
    int32_t cpu[2], pci[2];
    for (int i = 0; i < 2; i++) {
        cpu[i] = add_cpu(topology, 0, i, TESS_CPU_INTEL, 85);
        pci[i] = add(topology, TESS_NODE_PCI, 0, i);
        join(topology, TESS_LINK_PCI, pci[i], cpu[i], X16_GEN3, 1);
    }
    for (int i = 0; i < left + right; i++) {
        int32_t gpu = add(topology, TESS_NODE_DEVICE, 0, i);
        join(topology, TESS_LINK_PCI, gpu, pci[i >= left], X16_GEN3, 1);
    }
    return finish(topology);
}

struct tess_topology *machine_all_to_all(int count)
{
    struct tess_topology *topology = tess_topology_new();
    int32_t gpu[16];
    for (int i = 0; i < count; i++) {
        gpu[i] = add(topology, TESS_NODE_DEVICE, 0, i);
        int32_t cpu = add(topology, TESS_NODE_CPU, 0, i);
        topology->node[cpu].maker = TESS_CPU_AMD;
        join(topology, TESS_LINK_PCI, gpu[i], cpu, X16_GEN4, 1);
        for (int j = 0; j < i; j++)
            join(topology, TESS_LINK_NVLINK, gpu[i], gpu[j], TESS_GBS_NVLINK_SM70 * 4, 4);
    }
    return finish(topology);
}

struct tess_topology *machine_square(void)
{
    static const int side[4][2] = {{0, 1}, {1, 3}, {3, 2}, {2, 0}};
    struct tess_topology *topology = tess_topology_new();
    int32_t cpu[2], gpu[4];
    for (int i = 0; i < 2; i++)
        cpu[i] = add_cpu(topology, 0, i, TESS_CPU_INTEL, 85);
    for (int i = 0; i < 4; i++) {
        gpu[i] = add(topology, TESS_NODE_DEVICE, 0, i);
        join(topology, TESS_LINK_PCI, gpu[i], cpu[i / 2], X16_GEN3, 1);
    }
    for (int i = 0; i < 4; i++)
        join(topology, TESS_LINK_NVLINK, gpu[side[i][0]], gpu[side[i][1]], LINK_GBS, 1);
    return finish(topology);
}

struct tess_topology *machine_pairs(void)
{
    struct tess_topology *topology = tess_topology_new();
    int32_t cpu[2], gpu[8];
    for (int i = 0; i < 2; i++)
        cpu[i] = add_cpu(topology, 0, i, TESS_CPU_INTEL, 85);
    for (int i = 0; i < 8; i++) {
        gpu[i] = add(topology, TESS_NODE_DEVICE, 0, i);
        join(topology, TESS_LINK_PCI, gpu[i], cpu[i / 4], X16_GEN4, 1);
        if (i % 2)
            join(topology, TESS_LINK_NVLINK, gpu[i], gpu[i - 1], TESS_GBS_NVLINK_SM70 * 4, 4);
    }
    return finish(topology);
}

struct tess_topology *machine_mi250(void)
{
    struct tess_topology *topology = tess_topology_new();
    int32_t cpu[2], gpu[16];
    for (int i = 0; i < 2; i++)
        cpu[i] = add_cpu(topology, 0, i, TESS_CPU_AMD, 49);
    for (int i = 0; i < 16; i++) {
        gpu[i] = add(topology, TESS_NODE_DEVICE, 0, i);
        join(topology, TESS_LINK_PCI, gpu[i], cpu[i / 8], X16_GEN4, 1);
    }
    /* Two dies of a package by four links, packages in a cube, one link an edge, by even dies along
     * one axis and odd ones along the others. */
    for (int i = 0; i < 16; i += 2) {
        join(topology, TESS_LINK_NVLINK, gpu[i], gpu[i + 1], LINK_GBS * 4, 4);
        for (int axis = 0; axis < 3; axis++) {
            int other = (i / 2 ^ 1 << axis) * 2;
            if (other > i)
                join(topology, TESS_LINK_NVLINK, gpu[i + (axis > 0)], gpu[other + (axis > 0)],
                     LINK_GBS, 1);
        }
    }
    return finish(topology);
}

struct tess_topology *machine_three_numa(void)
{
    static const int numa[8] = {0, 1, 0, 1, 0, 2, 0, 2};
    struct tess_topology *topology = tess_topology_new();
    int32_t cpu[3], pci = add(topology, TESS_NODE_PCI, 0, 0);
    for (int i = 0; i < 3; i++)
        cpu[i] = add(topology, TESS_NODE_CPU, 0, i);
    join(topology, TESS_LINK_SYS, cpu[0], cpu[1], 10, 1);
    join(topology, TESS_LINK_SYS, cpu[0], cpu[2], 10, 1);
    join(topology, TESS_LINK_SYS, cpu[1], cpu[2], 50, 1);
    join(topology, TESS_LINK_PCI, pci, cpu[0], 32, 1);
    for (int i = 0; i < 8; i++) {
        int32_t gpu = add(topology, TESS_NODE_DEVICE, 0, i);
        join(topology, TESS_LINK_PCI, gpu, numa[i] ? cpu[numa[i]] : pci, 48, 1);
    }
    return finish(topology);
}

struct tess_topology *machine_racks(int racks, int hosts, int each)
{
    struct tess_topology *topology = tess_topology_new();
    int32_t core = add(topology, TESS_NODE_NET, -1, 0), gpu[8];
    int32_t leaf[64] = {core};
    for (int i = 0; i < racks && racks > 1; i++) {
        leaf[i] = add(topology, TESS_NODE_NET, -1, 1 + i);
        join(topology, TESS_LINK_NET, leaf[i], core, 12.5, 1);
    }
    for (int host = 0; host < hosts; host++) {
        int32_t before = topology->node_count;
        add_dgx1v(topology, host, each, gpu);
        int32_t nic = add(topology, TESS_NODE_NIC, host, 0);
        /* The first switch comes after the two processors. */
        join(topology, TESS_LINK_PCI, nic, before + 2, X16_GEN3, 1);
        join(topology, TESS_LINK_NET, nic, leaf[host % racks], 12.5, 1);
    }
    return finish(topology);
}

struct tess_topology *machine_cluster(int hosts, int each)
{
    return machine_racks(1, hosts, each);
}

struct tess_topology *machine_nvl(int racks, int hosts, int each)
{
    struct tess_topology *topology = tess_topology_new();
    int32_t core = add(topology, TESS_NODE_NET, -1, 0);
    for (int rack = 0; rack < racks; rack++) {
        int32_t nvs = add(topology, TESS_NODE_NVSWITCH, -1, rack);
        for (int host = rack * hosts; host < (rack + 1) * hosts; host++) {
            int32_t cpu = add_cpu(topology, host, 0, TESS_CPU_ARM, 0);
            for (int i = 0; i < each; i++) {
                int32_t gpu = add(topology, TESS_NODE_DEVICE, host, i);
                int32_t pci = add(topology, TESS_NODE_PCI, host, i);
                int32_t nic = add(topology, TESS_NODE_NIC, host, i);
                join(topology, TESS_LINK_NVLINK, gpu, nvs, TESS_GBS_NVLINK_SM100 * 18, 18);
                join(topology, TESS_LINK_PCI, gpu, pci, TESS_GBS_PCI(480, 16), 1);
                join(topology, TESS_LINK_PCI, nic, pci, TESS_GBS_PCI(480, 16), 1);
                join(topology, TESS_LINK_PCI, pci, cpu, TESS_GBS_PCI(480, 16), 1);
                join(topology, TESS_LINK_NET, nic, core, 50, 1);
            }
        }
    }
    return finish(topology);
}

struct tess_topology *machine_spines(int leaves, int each, int spines)
{
    struct tess_topology *topology = tess_topology_new();
    int32_t spine[8];
    for (int i = 0; i < spines; i++)
        spine[i] = add(topology, TESS_NODE_NET, -1, i);
    for (int l = 0; l < leaves; l++) {
        int32_t leaf = add(topology, TESS_NODE_NET, -1, spines + l);
        for (int i = 0; i < spines; i++)
            join(topology, TESS_LINK_NET, leaf, spine[i], 50, 1);
        for (int host = l * each; host < (l + 1) * each; host++) {
            int32_t nvs = add(topology, TESS_NODE_NVSWITCH, host, 0);
            int32_t cpu = add_cpu(topology, host, 0, TESS_CPU_INTEL, 143);
            for (int i = 0; i < 4; i++) {
                int32_t gpu = add(topology, TESS_NODE_DEVICE, host, i);
                int32_t pci = add(topology, TESS_NODE_PCI, host, i);
                int32_t nic = add(topology, TESS_NODE_NIC, host, i);
                join(topology, TESS_LINK_NVLINK, gpu, nvs, TESS_GBS_NVLINK_SM90 * 18, 18);
                join(topology, TESS_LINK_PCI, gpu, pci, X16_GEN5, 1);
                join(topology, TESS_LINK_PCI, nic, pci, X16_GEN5, 1);
                join(topology, TESS_LINK_PCI, pci, cpu, X16_GEN5, 1);
                join(topology, TESS_LINK_NET, nic, leaf, 25, 1);
            }
        }
    }
    return finish(topology);
}

struct tess_topology *machine_p100(void)
{
    struct tess_topology *topology = tess_topology_new();
    int32_t cpu[2], pci[4], gpu[8];
    for (int i = 0; i < 2; i++)
        cpu[i] = add_cpu(topology, 0, i, TESS_CPU_INTEL, 79);
    for (int i = 0; i < 4; i++) {
        pci[i] = add(topology, TESS_NODE_PCI, 0, i);
        join(topology, TESS_LINK_PCI, pci[i], cpu[i / 2], X16_GEN3, 1);
    }
    for (int i = 0; i < 8; i++) {
        gpu[i] = add(topology, TESS_NODE_DEVICE, 0, i);
        join(topology, TESS_LINK_PCI, gpu[i], pci[i / 2], X16_GEN3, 1);
        for (int j = i / 4 * 4; j < i; j++)
            join(topology, TESS_LINK_NVLINK, gpu[i], gpu[j], TESS_GBS_NVLINK_SM60, 1);
        if (i >= 4)
            join(topology, TESS_LINK_NVLINK, gpu[i], gpu[i - 4], TESS_GBS_NVLINK_SM60, 1);
    }
    return finish(topology);
}

static int draw(uint64_t *state, int below)
{
    *state = tess_hash_mix(*state + 0x9e3779b97f4a7c15u);
    return (int)(*state % (unsigned)below);
}

struct tess_topology *machine_random(unsigned seed, int count)
{
    struct tess_topology *topology = tess_topology_new();
    uint64_t state = seed;
    int32_t cpu[3], pci[4], gpu[16];
    int cpus = 1 + draw(&state, 3), switches = 1 + draw(&state, 4);
    for (int i = 0; i < cpus; i++) {
        cpu[i] = add(topology, TESS_NODE_CPU, 0, i);
        for (int j = 0; j < i; j++)
            join(topology, TESS_LINK_SYS, cpu[i], cpu[j], 2 + draw(&state, 12), 1);
    }
    for (int i = 0; i < switches; i++) {
        pci[i] = add(topology, TESS_NODE_PCI, 0, i);
        bool below = i > 0 && draw(&state, 3) == 0;
        int32_t up = below ? pci[draw(&state, i)] : cpu[draw(&state, cpus)];
        join(topology, TESS_LINK_PCI, pci[i], up, 4 + draw(&state, 20), 1);
    }
    int density = draw(&state, 5);
    for (int i = 0; i < count; i++) {
        gpu[i] = add(topology, TESS_NODE_DEVICE, 0, i);
        int32_t up = pci[draw(&state, switches)];
        join(topology, TESS_LINK_PCI, gpu[i], up, 6 + draw(&state, 20), 1);
        for (int j = 0; j < i; j++) {
            int gbs = 10 * (1 + draw(&state, 3));
            if (draw(&state, 5) < density)
                join(topology, TESS_LINK_NVLINK, gpu[i], gpu[j], gbs, 1);
        }
    }
    return finish(topology);
}

struct tess_topology *machine_anything(unsigned seed, int nodes, int links)
{
    struct tess_topology *topology = tess_topology_new();
    uint64_t state = seed;
    for (int i = 0; i < nodes; i++) {
        int host = draw(&state, 3) - 1;
        int wanted = draw(&state, 2 * TESS_NODE_KIND_COUNT);
        enum tess_node_kind kind =
            wanted < TESS_NODE_KIND_COUNT ? (enum tess_node_kind)wanted : TESS_NODE_DEVICE;
        (void)add(topology, kind, host, i);
    }
    for (int i = 0; i < links; i++) {
        struct tess_topo_link link = {.gbs = 1 + draw(&state, 30), .count = 1};
        link.kind = (enum tess_link_kind)draw(&state, TESS_LINK_KIND_COUNT);
        link.from = draw(&state, nodes);
        link.to = draw(&state, nodes);
        if (link.from != link.to)
            assert_int_equal(tess_topology_add_link(topology, &link), TESS_OK);
    }
    return topology;
}
