/*
 * The live machine: what /sys holds, from files of the test; devices, links and networks joined to
 * what was found, on a machine built by hand; the machine that the tests run on; another one
 * through hwloc's variables. How cores are divided.
 */
#include "look.h"
#include "sys_folder.h"
#include "tessera/log.h"
#include "topology/hwloc/live_room.h"
#include "topology/machine/rates.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define CLOSE(a, b) assert_true((a) > (b)-1e-3 && (a) < (b) + 1e-3)

static void put_pci(const char *bus, const char *speed, const char *width, const char *numa)
{
    char path[128];
    snprintf(path, sizeof(path), "bus/pci/devices/%s/max_link_speed", bus);
    put(path, speed);
    snprintf(path, sizeof(path), "bus/pci/devices/%s/max_link_width", bus);
    put(path, width);
    snprintf(path, sizeof(path), "bus/pci/devices/%s/numa_node", bus);
    put(path, numa);
}

static void put_port(const char *name, const char *state, const char *rate)
{
    char path[128];
    snprintf(path, sizeof(path), "class/infiniband/%s/state", name);
    put(path, state);
    snprintf(path, sizeof(path), "class/infiniband/%s/rate", name);
    put(path, rate);
}

static void case_sysfs_pci(void **state)
{
    (void)state;
    put_pci("0000:01:00.0", "32.0 GT/s PCIe\n", "16\n", "1\n");
    put_pci("0000:02:00.0", "8.0 GT/s PCIe\n", "4\n", "-1\n");
    put_pci("0000:03:00.0", "Unknown\n", "255\n", "\n");
    CLOSE(tess__sysfs_pci_gbs(sys, "0000:01:00.0"), 48);
    CLOSE(tess__sysfs_pci_gbs(sys, "0000:02:00.0"), 3);
    CLOSE(tess__sysfs_pci_gbs(sys, "0000:03:00.0"), 0);
    CLOSE(tess__sysfs_pci_gbs(sys, "0000:04:00.0"), 0);
    CLOSE(tess__sysfs_pci_gbs(sys, "../devices/0000:01:00.0"), 0);
    assert_int_equal(tess__sysfs_numa(sys, "0000:01:00.0"), 1);
    assert_int_equal(tess__sysfs_numa(sys, "0000:02:00.0"), -1);
    assert_int_equal(tess__sysfs_numa(sys, "0000:04:00.0"), -1);
}

static void case_sysfs_nic(void **state)
{
    (void)state;
    put("class/net/eth0/operstate", "up\n");
    put("class/net/eth0/speed", "25000\n");
    put("class/net/eth1/operstate", "down\n");
    put("class/net/eth1/speed", "25000\n");
    put("class/net/eth2/operstate", "up\n");
    put("class/net/eth2/speed", "-1\n");
    put_port("mlx5_0/ports/1", "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n");
    put_port("mlx5_1/ports/1", "1: DOWN\n", "10 Gb/sec (4X SDR)\n");
    put_port("mlx4_0/ports/1", "4: ACTIVE\n", "56 Gb/sec (4X FDR)\n");
    put_port("mlx4_0/ports/2", "1: DOWN\n", "10 Gb/sec (4X)\n");
    put_port("mlx4_0/ports/3", "4: ACTIVE\n", "56 Gb/sec (4X FDR)\n");
    CLOSE(tess__sysfs_nic_gbs(sys, "eth0"), 3.125);
    CLOSE(tess__sysfs_nic_gbs(sys, "eth1"), 0);
    CLOSE(tess__sysfs_nic_gbs(sys, "eth2"), 1.25);
    CLOSE(tess__sysfs_nic_gbs(sys, "eth9"), 1.25);
    CLOSE(tess__sysfs_nic_gbs(sys, "mlx5_0"), 50);
    CLOSE(tess__sysfs_nic_gbs(sys, "mlx5_1"), 0);
    CLOSE(tess__sysfs_nic_gbs(sys, "mlx4_0"), 14);
}

/* ---- what is joined to what was found ------------------------------------------------------- */

static int32_t add(struct tess_topology *topology, enum tess_node_kind kind, const char *name,
                   const char *bus, int32_t index, int32_t above)
{
    struct tess_node node = {.kind = kind, .index = index, .socket = -1};
    int32_t at;
    snprintf(node.name, sizeof(node.name), "%s", name);
    snprintf(node.bus, sizeof(node.bus), "%s", bus);
    assert_int_equal(tess_topology_add_node(topology, &node, &at), TESS_OK);
    if (above >= 0)
        assert_int_equal(tess_topology_join(topology, TESS_LINK_PCI, at, above, 24, 1), TESS_OK);
    return at;
}

static int32_t found_cores[] = {0, 0, 0, 0, 1, 1, 1, 1};

/* Two NUMA nodes; on the first a switch, and below it two of two GPUs each, numbered as hwloc
 * would, not as the driver does; GPU 4 and the NICs on the second. Its plugin knew an NVLink. */
static struct tess__live found(void)
{
    struct tess_topology *topology = tess_topology_new();
    assert_non_null(topology);
    int32_t numa0 = add(topology, TESS_NODE_CPU, "numa0", "", 0, -1);
    int32_t numa1 = add(topology, TESS_NODE_CPU, "numa1", "", 1, -1);
    int32_t top = add(topology, TESS_NODE_PCI, "switch0", "", 0, numa0);
    int32_t left = add(topology, TESS_NODE_PCI, "switch1", "", 1, top);
    int32_t right = add(topology, TESS_NODE_PCI, "switch2", "", 2, top);
    int32_t gpu0 = add(topology, TESS_NODE_DEVICE, "gpu0", "0000:10:00.0", 0, left);
    int32_t gpu1 = add(topology, TESS_NODE_DEVICE, "gpu1", "0000:11:00.0", 1, left);
    add(topology, TESS_NODE_DEVICE, "gpu2", "0000:12:00.0", 2, right);
    add(topology, TESS_NODE_DEVICE, "gpu3", "0000:13:00.0", 3, right);
    add(topology, TESS_NODE_DEVICE, "gpu4", "0001:10:00.0", 4, numa1);
    add(topology, TESS_NODE_NIC, "eth0", "0000:80:00.0", 0, numa1);
    add(topology, TESS_NODE_NIC, "eth1", "0000:81:00.0", 1, numa1);
    add(topology, TESS_NODE_NIC, "eth3", "0000:80:00.1", 2, numa1);
    assert_int_equal(tess_topology_join(topology, TESS_LINK_NVLINK, gpu0, gpu1, 40, 2), TESS_OK);
    assert_int_equal(tess_topology_finish(topology), TESS_OK);
    return (struct tess__live){
        .topology = topology, .here = true, .core_numa = found_cores, .core_count = 8};
}

static struct tess_topology *compose(bool here, const struct tess_live_device *device,
                                     int32_t count, int32_t ranks)
{
    struct tess__live live = found();
    struct tess_topology *topology = NULL;
    live.here = here;
    assert_int_equal(tess__live_compose(&live, sys, device, count, ranks, &topology), TESS_OK);
    tess_topology_free(live.topology);
    return topology;
}

static void case_devices(void **state)
{
    (void)state;
    /* Numbered in CUDA's way backwards, in other spellings; one that /sys shows no link of. */
    const struct tess_live_device device[] = {
        {.bus = "00000000:13:00.0", .index = 0, .sm = 90, .switch_links = 18},
        {.bus = "0001:10:00.0",
         .index = 1,
         .sm = 90,
         .switch_links = 18,
         .peer_count = 2,
         .peer = {{"00000000:13:00.0", 2}, {"0000:11:00.0", 2}}},
        {.bus = "0000:AF:00.0", .index = 2, .sm = 90, .c2c_links = 2, .c2c_gbs = 180},
        {.bus = "0000:12:00.0", .index = 3, .sm = 80, .c2c_links = 1, .c2c_gbs = 90},
    };
    put_pci("0000:af:00.0", "16.0 GT/s PCIe\n", "8\n", "1\n");
    struct tess_topology *topology = compose(true, device, 4, 7);
    assert_int_equal(topology->device_count, 4);
    assert_string_equal(topology->node[topology->device[0]].bus, "0000:13:00.0");
    assert_string_equal(topology->node[topology->device[1]].bus, "0001:10:00.0");
    assert_string_equal(topology->node[topology->device[2]].bus, "0000:af:00.0");
    assert_int_equal(topology->node[topology->device[3]].sm, 80);
    CLOSE(look_gbs(topology, "gpu0", "switch2"), 24);
    CLOSE(look_gbs(topology, "gpu2", "numa1"), 12 + 180); /* PCI of 8 lanes, and C2C */
    CLOSE(look_gbs(topology, "gpu0", "nvswitch"), 18 * 20.6);
    CLOSE(look_gbs(topology, "gpu1", "nvswitch"), 18 * 20.6);
    CLOSE(look_gbs(topology, "gpu2", "nvswitch"), 0);
    CLOSE(look_gbs(topology, "gpu3", "numa0"), 90); /* two switches are between */
    int32_t gpu0 = look_node(topology, "gpu0"), gpu1 = look_node(topology, "gpu1"), peers = 0;
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        if (link->kind != TESS_LINK_NVLINK || topology->node[link->to].kind != TESS_NODE_DEVICE ||
            topology->node[link->from].kind != TESS_NODE_DEVICE)
            continue;
        assert_true(link->from == gpu1 && link->to == gpu0); /* as far as it is known */
        CLOSE(link->gbs, 2 * 20.6);
        peers++;
    }
    assert_int_equal(peers, 1);
    tess_topology_free(topology);
}

static void case_fabric(void **state)
{
    (void)state;
    struct tess_live_device device[] = {
        {.bus = "0000:10:00.0", .index = 0, .sm = 100, .switch_links = 18},
        {.bus = "0000:11:00.0", .index = 1, .sm = 100, .switch_links = 18},
    };
    memset(device[0].fabric_uuid, 0xab, 16);
    memset(device[1].fabric_uuid, 0xab, 16);
    device[0].fabric_clique = device[1].fabric_clique = 7;
    struct tess_topology *topology = compose(true, device, 2, 0);
    const char *name = "nvlink-abababababababababababababababab.7";
    CLOSE(look_gbs(topology, "gpu0", name), 18 * 40.1);
    CLOSE(look_gbs(topology, "gpu1", name), 18 * 40.1);
    assert_int_equal(topology->node[look_node(topology, name)].host, -1);
    tess_topology_free(topology);
    device[1].fabric_clique = 8;
    topology = compose(true, device, 2, 0);
    assert_int_equal(look_count(topology).nvswitches, 2);
    tess_topology_free(topology);
}

static void case_networks(void **state)
{
    (void)state;
    char target[128], link[128];
    put("class/net/eth0/operstate", "up\n");
    put("class/net/eth0/speed", "100000\n");
    put("class/net/eth1/operstate", "lowerlayerdown\n");
    put("class/net/eth3/operstate", "up\n");
    put("bus/pci/devices/0000:80:00.1/numa_node", "1\n");
    snprintf(target, sizeof(target), "../0000:80:00.0");
    snprintf(link, sizeof(link), "%s/bus/pci/devices/0000:80:00.1/physfn", sys);
    assert_int_equal(symlink(target, link), 0);
    struct tess_topology *topology = compose(true, NULL, 0, 3);
    assert_int_equal(look_count(topology).nics, 1);
    CLOSE(look_gbs(topology, "eth0", "net"), 12.5);
    CLOSE(look_gbs(topology, "eth0", "numa1"), 24);
    tess_topology_free(topology);
    topology = compose(false, NULL, 0, 3);
    assert_int_equal(look_count(topology).nics, 3); /* /sys describes another machine */
    assert_int_equal(look_count(topology).nets, 0);
    tess_topology_free(topology);
}

static void case_ranks(void **state)
{
    (void)state;
    struct tess_topology *topology = compose(true, NULL, 0, 3);
    assert_int_equal(topology->device_count, 3);
    CLOSE(look_gbs(topology, "rank0", "numa0"), TESS_GBS_LOCAL);
    CLOSE(look_gbs(topology, "rank1", "numa1"), TESS_GBS_LOCAL);
    CLOSE(look_gbs(topology, "rank2", "numa1"), TESS_GBS_LOCAL);
    tess_topology_free(topology);
    topology = compose(true, NULL, 0, 0); /* what was found */
    assert_int_equal(topology->device_count, 5);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 40);
    tess_topology_free(topology);
}

/* ---- cores shared out ----------------------------------------------------------------------- */

static void expect_share(const int32_t *numa, int32_t count, int32_t places, const char *expected)
{
    char text[256] = "";
    for (int32_t at = 0; at < places; at++) {
        int32_t first, cores;
        tess__share(numa, count, at, places, &first, &cores);
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%d+%d", at ? " " : "",
                 (int)first, (int)cores);
    }
    assert_string_equal(text, expected);
}

static void case_share(void **state)
{
    (void)state;
    const int32_t one[] = {0, 0, 0}, two[] = {0, 0, 0, 0, 1, 1, 1, 1};
    const int32_t uneven[] = {3, 5, 5, 5, 5, 5, 5, 5}, four[] = {0, 0, 1, 1, 2, 2, 3, 3};
    expect_share(one, 3, 1, "0+3");
    expect_share(one, 3, 2, "0+1 1+2");
    expect_share(one, 3, 4, "0+1 0+1 1+1 2+1"); /* more places than cores */
    expect_share(two, 8, 1, "0+8");
    expect_share(two, 8, 2, "0+4 4+4");
    expect_share(two, 8, 3, "0+4 4+2 6+2");
    expect_share(two, 8, 8, "0+1 1+1 2+1 3+1 4+1 5+1 6+1 7+1");
    expect_share(uneven, 8, 3, "1+2 3+2 5+3"); /* a node of one core is no third of the machine */
    expect_share(four, 8, 2, "0+4 4+4");
    expect_share(four, 8, 3, "0+2 2+2 4+4");
    int32_t first = 9, cores = 9;
    tess__share(NULL, 0, 0, 2, &first, &cores);
    assert_int_equal(cores, 0);
}

/* As many places as cores or fewer: each core is at most one's, and no place is on two nodes. */
static void case_share_apart(void **state)
{
    (void)state;
    int32_t numa[24];
    for (int32_t nodes = 1; nodes <= 4; nodes++) {
        for (int32_t i = 0; i < 24; i++)
            numa[i] = i * nodes / 24;
        for (int32_t places = 1; places <= 24; places++) {
            int32_t taken = 0;
            for (int32_t at = 0; at < places; at++) {
                int32_t first, cores;
                tess__share(numa, 24, at, places, &first, &cores);
                assert_int_equal(first, taken);
                assert_true(cores >= 1);
                taken = first + cores;
                assert_true(places < nodes || numa[first] == numa[taken - 1]);
            }
            assert_int_equal(taken, 24);
        }
    }
}

/* ---- whole machines ------------------------------------------------------------------------- */

static void case_this_machine(void **state)
{
    (void)state;
    struct tess_topology *topology;
    unsetenv("HWLOC_XMLFILE");
    assert_int_equal(tess_topology_live(NULL, 0, 3, &topology), TESS_OK);
    assert_int_equal(topology->device_count, 3);
    assert_int_equal(topology->host_count, 1);
    assert_true(look_count(topology).cpus > 0);
    CLOSE(look_gbs(topology, "rank2", look_beside(topology, "rank2", TESS_NODE_CPU)),
          TESS_GBS_LOCAL);
    tess_topology_free(topology);
    assert_int_equal(tess_topology_live(NULL, 0, -1, &topology), TESS_ERR_USAGE);
}

/* The machine of hwloc/three-gpus.xml in the place of this one. */
static struct tess_topology *other(const struct tess_live_device *device, int32_t count,
                                   int32_t ranks)
{
    struct tess_topology *topology;
    setenv("HWLOC_XMLFILE", LOOK_FOLDER "/hwloc/three-gpus.xml", 1);
    setenv("HWLOC_THISSYSTEM", "0", 1);
    enum tess_status status = tess_topology_live(device, count, ranks, &topology);
    unsetenv("HWLOC_XMLFILE");
    unsetenv("HWLOC_THISSYSTEM");
    assert_int_equal(status, TESS_OK);
    return topology;
}

/* Two of the three GPUs in a container, in another order: the third is left out. */
static void case_part_of_a_box(void **state)
{
    (void)state;
    const struct tess_live_device device[] = {
        {.bus = "00000000:81:00.0", .index = 0, .sm = 70, .switch_links = 6},
        {.bus = "00000000:13:00.0", .index = 1, .sm = 70, .switch_links = 6},
    };
    struct tess_topology *topology = other(device, 2, 0);
    assert_int_equal(topology->device_count, 2);
    assert_string_equal(topology->node[topology->device[0]].bus, "0000:81:00.0");
    CLOSE(look_gbs(topology, "gpu0", "nvswitch"), 120);
    CLOSE(look_gbs(topology, "gpu1", "nvswitch"), 120);
    assert_int_equal(look_count(topology).nvswitches, 1);
    tess_topology_free(topology);
}

static void case_ranks_of_a_box(void **state)
{
    (void)state;
    struct tess_topology *topology = other(NULL, 0, 4);
    assert_int_equal(topology->device_count, 4);
    CLOSE(look_gbs(topology, "rank1", "numa0"), TESS_GBS_LOCAL);
    CLOSE(look_gbs(topology, "rank2", "numa1"), TESS_GBS_LOCAL);
    tess_topology_free(topology);
}

int main(void)
{
#define IN_SYS(f) cmocka_unit_test_setup_teardown(f, sys_make, sys_remove)
    const struct CMUnitTest tests[] = {
        IN_SYS(case_sysfs_pci),
        IN_SYS(case_sysfs_nic),
        IN_SYS(case_devices),
        IN_SYS(case_fabric),
        IN_SYS(case_networks),
        IN_SYS(case_ranks),
        cmocka_unit_test(case_share),
        cmocka_unit_test(case_share_apart),
        cmocka_unit_test(case_this_machine),
    };
    const struct CMUnitTest with_hwloc[] = {
        cmocka_unit_test(case_part_of_a_box),
        cmocka_unit_test(case_ranks_of_a_box),
    };
    int failed = cmocka_run_group_tests_name("live", tests, NULL, NULL);
    if (LOOK_HWLOC)
        failed += cmocka_run_group_tests_name("live with hwloc", with_hwloc, NULL, NULL);
    return failed;
}
