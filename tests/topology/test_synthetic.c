/* Machines in a line of words: what becomes of each word, and errors that name it. */
#include "look.h"
#include "mapping.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CLOSE(a, b) assert_true((a) > (b)-1e-6 && (a) < (b) + 1e-6)

static void case_levels(void **state)
{
    (void)state;
    struct tess_topology *topology =
        describe("node:2 numa:2 switch:2 gpu:4 nic:1 nvlink:switch sm:90 edge:50");
    struct look_counts counts = look_count(topology);
    assert_int_equal(counts.devices, 32);
    assert_int_equal(counts.cpus, 4);
    assert_int_equal(counts.pci, 8);
    assert_int_equal(counts.nics, 8);
    assert_int_equal(counts.nvswitches, 2);
    assert_int_equal(counts.nets, 1);
    assert_int_equal(topology->host_count, 2);
    assert_string_equal(topology->node[topology->device[17]].name, "n1.gpu1");
    CLOSE(look_gbs(topology, "n1.gpu15", "n1.nvswitch"), 18 * 20.6);
    CLOSE(look_gbs(topology, "n1.gpu15", "n1.switch3"), 48);
    CLOSE(look_gbs(topology, "n1.switch3", "n1.numa1"), 48);
    CLOSE(look_gbs(topology, "n1.nic3", "n1.switch3"), 48);
    CLOSE(look_gbs(topology, "n1.nic3", "network"), 50);
    CLOSE(look_gbs(topology, "n0.numa0", "n0.numa1"), 22);
    CLOSE(look_gbs(topology, "n0.numa0", "network"), 0);
    tess_topology_free(topology);
}

static void case_racks(void **state)
{
    (void)state;
    struct tess_topology *topology = describe("rack:2 node:2 rank:2 edge:0.125 uplink:0.0125");
    assert_int_equal(topology->device_count, 8);
    assert_int_equal(look_count(topology).nets, 3);
    CLOSE(look_gbs(topology, "rack1", "spine"), 0.0125);
    CLOSE(look_gbs(topology, "n2.numa0", "rack1"), 0.125);
    CLOSE(look_gbs(topology, "n2.rank1", "n2.numa0"), 5000);
    assert_int_equal(topology->node[topology->device[5]].host, 2);
    tess_topology_free(topology);
}

static void case_nvlink(void **state)
{
    (void)state;
    struct tess_topology *topology = describe("gpu:4 nvlink:mesh");
    CLOSE(look_gbs(topology, "gpu0", "gpu3"), 80);
    tess_topology_free(topology);
    topology = describe("numa:2 gpu:4 nvlink:pairs:4");
    CLOSE(look_gbs(topology, "gpu6", "gpu7"), 80);
    CLOSE(look_gbs(topology, "gpu5", "gpu6"), 0);
    CLOSE(look_gbs(topology, "gpu5", "numa1"), 24);
    tess_topology_free(topology);
    topology = describe("numa:2 switch:2 gpu:2 nvlink:cube sm:70 pci:3");
    CLOSE(look_gbs(topology, "gpu0", "gpu3"), 40);
    CLOSE(look_gbs(topology, "gpu3", "gpu7"), 20);
    CLOSE(look_gbs(topology, "gpu3", "switch1"), 12);
    CLOSE(look_gbs(topology, "numa0", "numa1"), 6);
    tess_topology_free(topology);
}

/* A host's NICs go to the rails in turn; hosts may have names. */
static void case_rails(void **state)
{
    (void)state;
    struct tess_topology *topology =
        describe("node:2 numa:2 gpu:2 nic:2 rail:2 edge:50 uplink:100 hosts:dgx[08-09]");
    assert_int_equal(look_count(topology).nets, 3);
    CLOSE(look_gbs(topology, "dgx08.nic0", "rail0"), 50);
    CLOSE(look_gbs(topology, "dgx09.nic3", "rail1"), 50);
    CLOSE(look_gbs(topology, "dgx09.nic3", "rail0"), 0);
    CLOSE(look_gbs(topology, "rail1", "spine"), 100);
    tess_topology_free(topology);
    topology = describe("rack:2 node:1 gpu:1 nic:2 rail:2");
    CLOSE(look_gbs(topology, "n1.nic1", "rack1.rail1"), 12.5);
    assert_int_equal(look_count(topology).nets, 5);
    tess_topology_free(topology);
    topology = describe("gpu:2 nic:1 edge:25 hosts:here");
    CLOSE(look_gbs(topology, "here.nic0", "network"), 25);
    tess_topology_free(topology);
}

/* NUMA nodes of a socket are joined inside it. */
static void case_sockets(void **state)
{
    (void)state;
    struct tess_topology *topology = describe("socket:2 numa:2 gpu:1 cpu:amd");
    CLOSE(look_gbs(topology, "numa0", "numa1"), 5000);
    CLOSE(look_gbs(topology, "numa0", "numa2"), 16);
    tess_topology_free(topology);
}

static void case_one(void **state)
{
    (void)state;
    struct tess_topology *topology = describe("rank:1");
    assert_int_equal(topology->device_count, 1);
    tess_topology_free(topology);
    struct tess_topology_options options = {.sm = 60, .pci_gen = 4};
    assert_int_equal(tess_topology_synthetic("gpu:2 nvlink:mesh:1", &options, &topology), TESS_OK);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 18);
    CLOSE(look_gbs(topology, "gpu0", "numa0"), 24);
    tess_topology_free(topology);
}

static void case_refused(void **state)
{
    (void)state;
    static const char *const text[][2] = {
        {"", "no device is described"},
        {"node:2", "no device is described"},
        {"gpu:0", "'gpu:0': a whole number from 1 to 1024"},
        {"gpu", "'gpu': a whole number"},
        {"gpu:x", "'gpu:x': a whole number"},
        {"gpu:-1", "'gpu:-1': a whole number"},
        {"gpu:99999999999999999999", "from 1 to 1024"},
        {"gpus:2", "'gpus:2': rack, node"},
        {":2", "':2': rack, node"},
        {"gpu:2 gpu:3", "'gpu:3': it is given twice; 'gpu:2'"},
        {"gpu:2 numa:2", "'numa:2': levels go outermost first; it belongs before 'gpu:2'"},
        {"gpu:2 rank:2", "'rank:2': either"},
        {"switch:2 rank:2", "'switch:2': ranks"},
        {"rank:2 nvlink:mesh", "'nvlink:mesh': only gpu"},
        {"gpu:2 nvlink:star", "'nvlink:star': mesh"},
        {"gpu:2 nvlink", "'nvlink': mesh"},
        {"gpu:2 nvlink:mesh:", "'nvlink:mesh:': the number of links"},
        {"gpu:2 nvlink:mesh:0", "the number of links"},
        {"gpu:2 nvlink:cube:2", "no number"},
        {"gpu:4 nvlink:cube", "8 GPUs were expected on a host, not 4"},
        {"gpu:3 nvlink:pairs", "an even number"},
        {"gpu:2 edge:1e3", "'edge:1e3': GB/s"},
        {"gpu:2 edge:0", "'edge:0': GB/s"},
        {"gpu:2 cpu:vax", "'cpu:vax': intel"},
        {"node:16384 gpu:1024", "'gpu:1024': that makes more than"},
        {"rack:4096 node:16384 gpu:1", "'node:16384': that makes more than"},
        {"node:16 gpu:1024 nvlink:mesh", "has too many links"},
        {"socket:64 numa:256 gpu:1", "more than 2097152 links"},
        {"gpu:1 nic:256 node:2", "'node:2': levels go"},
        {"gpu:2 rail:2", "'rail:2': nic was expected"},
        {"node:2 gpu:1 hosts:a", "'hosts:a': 2 names were expected, not 1"},
        {"node:2 gpu:1 hosts:a[1-3]", "'hosts:a[1-3]': 2 names"},
        {"node:2 gpu:1 hosts:a[1-999999999]", "a[1-999999999]"},
        {"node:2 gpu:1 hosts:a[1", "'[' without ']'"},
        {"node:2 gpu:1 hosts:", "the list is empty"},
        {"node:2 gpu:1 hosts:a,a", "'a.numa0' is defined twice"},
        {"gpu:1 hosts:a23456789012345678901234567890123", "at most 32 bytes"},
    };
    for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++) {
        struct tess_topology *topology = NULL;
        assert_int_equal(tess_topology_synthetic(text[i][0], NULL, &topology), TESS_ERR_DATA);
        assert_null(topology);
        if (!strstr(tess_log_last_error(), text[i][1]))
            fail_msg("'%s' was expected in '%s'", text[i][1], tess_log_last_error());
    }
}

/* As a reader of memory, for the cases of hostile input. */
static enum tess_status read_words(const char *name, const char *text, size_t bytes,
                                   const struct tess_topology_options *options,
                                   struct tess_topology *topology)
{
    char *line = strndup(text, bytes);
    assert_non_null(line);
    struct tess_topology *made = NULL;
    enum tess_status status = tess_topology_synthetic(line, options, &made);
    free(line);
    if (status == TESS_OK) { /* look_read asks for a device in the one it gave */
        struct tess_node node = made->node[made->device[0]];
        node.host = 0;
        assert_int_equal(tess_topology_add_node(topology, &node, NULL), TESS_OK);
        assert_int_equal(tess_topology_finish(topology), TESS_OK);
    }
    tess_topology_free(made);
    return status == TESS_OK ? status : tess_fail(status, "%s: %s", name, tess_log_last_error());
}

static void case_hostile(void **state)
{
    (void)state;
    static const char *const piece[] = {
        "rack:",   "node:",   "socket:2", "numa:", "switch:", "gpu:",   "rank:2",
        "nic:2",   "nvlink:", "mesh",     "pairs", "cube",    ":",      " ",
        "99",      "16384",   "\xff",     "sm:",   "edge:1",  "uplink", ".",
        "cpu:arm", "hosts:",  "a[0-1]",   ",",     "rail:2"};
    look_hostile(read_words, "node:2 numa:2 switch:2 gpu:2 nvlink:mesh:2 nic:1 sm:90", piece,
                 sizeof(piece) / sizeof(piece[0]), 2000);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_levels),  cmocka_unit_test(case_racks),
        cmocka_unit_test(case_nvlink),  cmocka_unit_test(case_sockets),
        cmocka_unit_test(case_one),     cmocka_unit_test(case_refused),
        cmocka_unit_test(case_hostile), cmocka_unit_test(case_rails),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
