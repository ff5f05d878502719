/* This machine without libhwloc: live_none.c is compiled into this program, which then looks
 * through it, on a /sys of our own. */
#include "sys_folder.h"
#include "topology/hwloc/live_room.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void drop(struct tess__live *live)
{
    tess_topology_free(live->topology);
    free(live->core_numa);
}

/* A container that shows nothing: one NUMA node, with the CPUs of the process. */
static void case_nothing(void **state)
{
    (void)state;
    struct tess__live live;
    assert_int_equal(tess__live_machine(sys, &live), TESS_OK);
    assert_int_equal(live.topology->device_count, 1);
    assert_int_equal(live.topology->node_count, 2);
    assert_true(live.core_count >= 1 && live.core_count <= sysconf(_SC_NPROCESSORS_ONLN));
    drop(&live);
}

/* Three nodes on two packages, one of memory alone and the last with CPUs that no machine has. */
static void case_nodes(void **state)
{
    (void)state;
    struct tess__live live;
    struct tess_topology *topology;
    const struct tess_live_device device = {.bus = "0000:17:00.0", .index = 0, .sm = 90};
    put("devices/system/node/online", "0-1,3\n");
    put("devices/system/node/node0/cpulist", "0-1\n");
    put("devices/system/node/node1/cpulist", "\n");
    put("devices/system/node/node3/cpulist", "1020-1021\n");
    put("devices/system/cpu/cpu0/topology/physical_package_id", "0\n");
    put("devices/system/cpu/cpu1020/topology/physical_package_id", "1\n");
    put("bus/pci/devices/0000:17:00.0/numa_node", "3\n");
    assert_int_equal(tess__live_machine(sys, &live), TESS_OK);
    for (int32_t i = 0; i < live.core_count; i++)
        assert_int_equal(live.core_numa[i], 0);
    assert_int_equal(tess__live_compose(&live, sys, &device, 1, 0, &topology), TESS_OK);
    assert_int_equal(topology->device_count, 1);
    assert_int_equal(topology->node_count, 3);
    const struct tess_node *numa0 = &topology->node[0], *numa3 = &topology->node[1];
    assert_string_equal(numa0->name, "numa0");
    assert_string_equal(numa3->name, "numa3");
    assert_int_equal(numa0->socket, 0);
    assert_int_equal(numa3->socket, 1);
    bool near = false;
    for (int32_t i = 0; i < topology->link_count; i++)
        near |= topology->link[i].from == topology->device[0] && topology->link[i].to == 1;
    assert_true(near);
    tess_topology_free(topology);
    drop(&live);
}

/* Lists that are none. */
static void case_nonsense(void **state)
{
    (void)state;
    static const char *const list[] = {"9-3\n", "99999999999999999999\n", "-4\n", "1-\n", "0,0\n"};
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        struct tess__live live;
        put("devices/system/node/online", list[i]);
        (void)tess__live_machine(sys, &live);
        drop(&live);
    }
}

int main(void)
{
#define IN_SYS(f) cmocka_unit_test_setup_teardown(f, sys_make, sys_remove)
    const struct CMUnitTest tests[] = {IN_SYS(case_nothing), IN_SYS(case_nodes),
                                       IN_SYS(case_nonsense)};
    return cmocka_run_group_tests_name("live_none", tests, NULL, NULL);
}
