/*
 * tessera topo as a user runs it: the fixed form of its JSON, figures of machines that are known,
 * text, subsets, and files that are refused. Machines are made here or are lines of
 * words; no file of anybody else is read.
 */
#include "harness/free_port.h"
#include "topo_case.h"
#include "topology/machines.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static double number_of(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    if (!json_is_number(value))
        fail_msg("no number %s in %s", name, spawn.out);
    return json_number_value(value);
}

/* An order names each of the devices once; bit d of the result: device d. */
static uint64_t order_set(const json_t *order, size_t count)
{
    uint64_t set = 0;
    assert_true(json_is_array(order));
    assert_int_equal(json_array_size(order), count);
    for (size_t i = 0; i < count; i++) {
        json_int_t device = json_integer_value(json_array_get(order, i));
        assert_true(json_is_integer(json_array_get(order, i)));
        assert_in_range(device, 0, 63);
        assert_false(set >> device & 1);
        set |= (uint64_t)1 << device;
    }
    return set;
}

/* All that the fixed interface promises of any answer. */
static void check_form(const json_t *root, size_t count, uint64_t devices)
{
    const json_t *rings = json_object_get(root, "rings");
    const json_t *best = json_object_get(root, "best_single");
    double sum = 0;
    const json_t *physical = json_object_get(root, "physical");
    assert_int_equal(json_object_size(root), 10);
    assert_true(number_of(physical, "best_single_gbs") >= number_of(best, "gbs") * (1 - 1e-9));
    assert_true(number_of(physical, "total_gbs") >= number_of(root, "total_gbs") * (1 - 1e-9));
    assert_true(number_of(physical, "natural_gbs") >= 0);
    assert_true(json_is_array(json_object_get(root, "guessed")));
    assert_true(json_is_integer(json_object_get(root, "devices")));
    assert_int_equal(json_integer_value(json_object_get(root, "devices")), count);
    assert_int_equal(json_object_size(best), 2);
    assert_int_equal(order_set(json_object_get(best, "order"), count), devices);
    assert_true(json_array_size(rings) >= 1);
    for (size_t i = 0; i < json_array_size(rings); i++) {
        const json_t *ring = json_array_get(rings, i);
        assert_int_equal(json_object_size(ring), 2);
        assert_int_equal(order_set(json_object_get(ring, "order"), count), devices);
        sum += number_of(ring, "gbs");
    }
    double total = number_of(root, "total_gbs"), bound = number_of(root, "bound_gbs");
    /* Ten digits are written. */
    assert_true(fabs(sum - total) <= 1e-8 * total);
    assert_true(total <= bound * (1 + 1e-9));
    assert_true(number_of(best, "gbs") <= total * (1 + 1e-9));
    assert_int_equal(json_object_size(json_object_get(root, "natural")), 1);
    assert_true(number_of(json_object_get(root, "natural"), "gbs") <=
                number_of(best, "gbs") * (1 + 1e-9));
    assert_true(json_is_boolean(json_object_get(root, "optimal")));
}

/* What stdout holds: one JSON object and nothing else. */
static json_t *answer(size_t count, uint64_t devices)
{
    json_error_t error;
    json_t *root = json_loads(spawn.out, 0, &error);
    if (root == NULL)
        fail_msg("%s: %s", error.text, spawn.out);
    check_form(root, count, devices);
    return root;
}

static void assert_near(double value, double expected)
{
    /* The model's figures are products of three-digit constants. */
    if (!(fabs(value - expected) <= 1e-6 * expected))
        fail_msg("%.9g, expected %.9g", value, expected);
}

static double best_of(const json_t *root)
{
    return number_of(json_object_get(root, "best_single"), "gbs");
}

static double natural_of(const json_t *root)
{
    return number_of(json_object_get(root, "natural"), "gbs");
}

static void refused(int status, const char *part)
{
    if (strstr(spawn.err, part) == NULL)
        fail_msg("'%s' is not in: %s", part, spawn.err);
    assert_true(status == 1 || status == 2);
    assert_int_equal(spawn_count(spawn.err, "error"), 1);
    assert_string_equal(spawn.out, "");
}

/* ---- figures -------------------------------------------------------------------------------- */

static void case_dgx1(void **state)
{
    (void)state;
    assert_int_equal(TOPO("--file", "@dgx1.yaml", "--json", "-"), 0);
    json_t *root = answer(8, 0xff);
    assert_near(best_of(root), 40);
    assert_near(natural_of(root), 6);
    assert_true(number_of(root, "total_gbs") >= 120);
    assert_true(json_is_true(json_object_get(root, "optimal")));
    json_decref(root);
}

static void case_bridges(void **state)
{
    (void)state;
    assert_int_equal(TOPO("--file", "@bridges.yaml", "--format", "yaml", "--json", "-"), 0);
    json_t *root = answer(8, 0xff);
    assert_near(best_of(root), 22);
    assert_near(natural_of(root), 22);
    assert_near(number_of(root, "total_gbs"), 44);
    json_decref(root);
}

static void case_hives(void **state)
{
    (void)state;
    assert_int_equal(TOPO("@hives.yaml", "--json", "-"), 0);
    json_t *root = answer(8, 0xff);
    assert_near(natural_of(root), 16);
    assert_true(number_of(root, "total_gbs") >= 48 * (1 - 1e-9));
    json_decref(root);
}

static void case_nvswitch(void **state)
{
    (void)state;
    assert_int_equal(TOPO("--machine", "gpu:8 nvlink:switch sm:90", "--json", "-"), 0);
    json_t *root = answer(8, 0xff);
    assert_near(best_of(root), 18 * 20.6);
    assert_near(natural_of(root), 18 * 20.6);
    assert_near(number_of(root, "bound_gbs"), 18 * 20.6);
    const json_t *physical = json_object_get(root, "physical");
    assert_near(number_of(physical, "total_gbs"), 450);
    assert_int_equal(json_array_size(json_object_get(root, "guessed")), 2); /* PCIe, processors */
    json_decref(root);
    assert_int_equal(TOPO("--machine", "gpu:8 nvlink:switch sm:90"), 0);
    assert_non_null(strstr(spawn.out, "370.8 is NCCL's figure: it counts 20.6 of a link's 25 GB/s; "
                                      "the wires carry 450"));
    assert_non_null(strstr(spawn.out, "guessed: PCIe of 48 GB/s (--pci-gen sets it); processors: "
                                      "Intel"));
}

/* A dead NVLink is named by the warning, the tree and the JSON. */
static void case_dead_link(void **state)
{
    (void)state;
    write_file("h100x3.txt", "     GPU0 GPU1 GPU2\n"
                             "GPU0 X    NV17 NV17\n"
                             "GPU1 NV17 X    NV18\n"
                             "GPU2 NV17 NV18 X\n");
    assert_int_equal(TOPO("@h100x3.txt"), 0);
    assert_non_null(strstr(spawn.err, "gpu0 has 17 of 18 NVLinks: 1 is dead"));
    assert_non_null(strstr(spawn.out, "[0] gpu0  sm 90 (Hopper)  17 of 18 NVLinks"));
    assert_non_null(strstr(spawn.out, "18 NVLinks (370.8 GB/s) each but for gpu0: 17 (350.2)"));
    assert_int_equal(TOPO("@h100x3.txt", "--json", "-"), 0);
    json_t *root = answer(3, 7);
    assert_near(best_of(root), 17 * 20.6);
    assert_int_equal(json_array_size(json_object_get(root, "warnings")), 1);
    json_decref(root);
}

/* A cluster keeps its racks together however its hosts are numbered. */
static void case_cluster(void **state)
{
    char *text;
    (void)state;
    write_file("interleaved.conf", "SwitchName=leaf0 Nodes=h[0,2,4,6]\n"
                                   "SwitchName=leaf1 Nodes=h[1,3,5,7]\n"
                                   "SwitchName=top Switches=leaf[0-1]\n");
    assert_int_equal(TOPO("@interleaved.conf", "--edge-gbs=10", "--uplink-gbs=1", "--json", "-"),
                     0);
    json_t *root = answer(8, 0xff);
    assert_near(best_of(root), 1);
    assert_near(natural_of(root), 0.25);
    json_decref(root);
    /* A large one has the link that limits its ring, too. */
    assert_int_equal(TOPO("--machine", "node:8192 gpu:8 nvlink:switch sm:90"), 0);
    assert_non_null(strstr(
        spawn.out, "limited by n0.numa0 -> network (network, 12.5 GB/s, used 1x), and 16383 like"));
    /* The ninth switch is shown, not counted. */
    assert_int_equal(TOPO("--machine", "node:2 gpu:8 nvlink:switch nic:8 rail:8 sm:90"), 0);
    assert_non_null(strstr(spawn.out, "  rail7  2 links of 12.5 GB/s to hosts"));
    assert_null(strstr(spawn.out, "more switch"));
    write_file("blocks.conf", "BlockName=b0 Nodes=g[0-1]\nBlockName=b1 Nodes=g[2-3]\n");
    assert_int_equal(TOPO("@blocks.conf", "--sm=100", "--per-host=4"), 0);
    assert_non_null(strstr(spawn.out, "  nvlink.b1  NVSwitch: 8 devices, 18 NVLinks (721.8 GB/s)"));
    assert_int_equal(TOPO("--machine", "rack:8 node:16 gpu:8 nvlink:switch nic:8", "--json",
                          "@big.json", "--svg", "@big.svg"),
                     0);
    assert_true(spawn_count(spawn.out, "\n") < 60);
    assert_non_null(strstr(spawn.out, "1024 devices on 128 hosts"));
    text = read_file("big.json");
    root = json_loads(text, 0, NULL);
    assert_non_null(root);
    assert_int_equal(
        json_array_size(json_object_get(json_object_get(root, "best_single"), "order")), 1024);
    json_decref(root);
    free(text);
}

/* ---- subsets -------------------------------------------------------------------------------- */

static void case_devices(void **state)
{
    (void)state;
    /* 1-2, 1-5 and 4-5 have NVLinks, 2-4 has none. */
    assert_int_equal(TOPO("@dgx1.yaml", "--devices", "1,2,4-5", "--json", "-"), 0);
    json_t *root = answer(4, 1u << 1 | 1u << 2 | 1u << 4 | 1u << 5);
    json_decref(root);
    /* The natural order is the one given: 0-3-2-1-5-6-7-4 is the best there is. */
    assert_int_equal(TOPO("@dgx1.yaml", "--devices", "0,3,2,1,5,6,7,4", "--json", "-"), 0);
    root = answer(8, 0xff);
    assert_near(natural_of(root), 40);
    json_decref(root);
    assert_int_equal(TOPO("@dgx1.yaml", "--devices", "2,3"), 0);
    assert_non_null(strstr(spawn.out, "[2]"));
    assert_null(strstr(spawn.out, "[0]"));
    assert_non_null(strstr(spawn.out, "those that were chosen"));
}

static void case_refused_options(void **state)
{
    (void)state;
    refused(TOPO("@dgx1.yaml", "--devices", "0,8"), "there is no device 8");
    refused(TOPO("@dgx1.yaml", "--devices", "1,1"), "device 1 is named twice");
    refused(TOPO("@dgx1.yaml", "--devices", "1,"), "numbers like 0,1,4-7 were expected");
    refused(TOPO("@dgx1.yaml", "--devices", "5-3"), "numbers like 0,1,4-7 were expected");
    refused(TOPO("@dgx1.yaml", "--devices", "0-99999999999999999999"), "--devices");
    refused(TOPO("@dgx1.yaml", "--machine", "gpu:2"), "leave one out");
    refused(TOPO("@dgx1.yaml", "--json", "-", "--svg", "-"), "two outputs go to stdout");
    refused(TOPO("@dgx1.yaml", "--export", "dot", "-"), "nccl, yaml or graph was expected");
    refused(TOPO("@dgx1.yaml", "--export", "yaml"), "--export needs a format and a file");
    refused(TOPO("@dgx1.yaml", "--format", "xml"), "format");
    refused(TOPO("--file", "@none.yaml"), "none.yaml");
    refused(TOPO("--machine", "gpu:0"), "gpu:0");
    refused(TOPO("--machine", "gpu:129"), "choose some with --devices 0-127");
    refused(TOPO("@dgx1.yaml", "--json", "/nowhere/at/all.json"), "/nowhere/at/all.json");
}

/* ---- files that are refused ----------------------------------------------------------------- */

static void case_refused_files(void **state)
{
    (void)state;
    write_file("cut.xml", "<system version=\"1\">\n  <cpu numaid=\"0\">\n    <pci busid=\"0000");
    refused(TOPO("@cut.xml", "--json", "-"), "cut.xml:");
    write_file("bomb.xml", "<!DOCTYPE a [<!ENTITY b \"bbbbbbbb\">]>\n<system version=\"1\"/>\n");
    refused(TOPO("@bomb.xml"), "bomb.xml");
    write_file("other.txt", "        GPU0 GPU1\nGPU0  X   NV\nGPU1  NV  X\n");
    refused(TOPO("@other.txt"), "other.txt:2");
    write_file("explodes.conf", "SwitchName=s0 Nodes=n[0-9999][0-9999][0-9999]\n");
    refused(TOPO("@explodes.conf"), "explodes.conf:1");
    write_file("deep.yaml", "{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{");
    refused(TOPO("@deep.yaml", "--format", "yaml"), "deep.yaml");
    write_file("empty.txt", "");
    refused(TOPO("@empty.txt"), "empty.txt");
}

/* ---- text ----------------------------------------------------------------------------------- */

static void case_text(void **state)
{
    (void)state;
    assert_int_equal(TOPO("@dgx1.yaml"), 0);
    assert_non_null(strstr(spawn.out, "8 devices on 1 host"));
    assert_non_null(strstr(spawn.out, "0-3-2-1-5-6-7-4"));
    assert_non_null(strstr(spawn.out, "numa0 -> n0.numa1 (SYS, 6 GB/s, used 1x)"));
    assert_non_null(strstr(spawn.out, "proved: no order of one ring is faster"));
    assert_non_null(strstr(spawn.out, "2 of 5040 orders are as fast"));
    /* The matrix: 0 and 3 have two NVLinks, 0 and 5 none. */
    assert_non_null(strstr(spawn.out, "    0     X   NV1   NV1   NV2   NV2   SYS   SYS   SYS\n"));
    assert_int_equal(TOPO("--machine", "rack:2 node:2 rank:2 edge:1 uplink:0.1"), 0);
    assert_non_null(strstr(spawn.out, "n0, and 3 hosts like it up to n3"));
    /* Rates have the unit that fits, and the rings that of the best one. */
    assert_non_null(strstr(spawn.out, "2 links of 1 GB/s to hosts, 100 MB/s to spine"));
    assert_non_null(strstr(spawn.out, "\nrings, MB/s in each direction of the slowest link"));
    assert_non_null(strstr(spawn.out, "\n  best           100  0-1-2-3-4-5-6-7\n"));
    assert_non_null(strstr(spawn.out, "(network, 100 MB/s, used 1x)"));
    assert_non_null(strstr(spawn.out, "the worst, 0-4-1-5-2-6-3-7, has 25\n"));
    assert_int_equal(TOPO("--machine", "node:2 rank:1 edge:0.00025", "--svg", "-"), 0);
    assert_non_null(
        strstr(spawn.out, "; kB/s in each direction of the slowest link: best ring 250"));
    assert_non_null(strstr(spawn.out, ">250 kB/s</text>"));
    assert_int_equal(TOPO("--machine", "gpu:1"), 0);
    assert_non_null(strstr(spawn.out, "one device: there is no ring"));
    /* Two hosts without a network. */
    write_file("apart.yaml", "tessera-topology: 1\n"
                             "nodes:\n"
                             "- {name: a0, kind: device}\n"
                             "- {name: a1, kind: device, index: 1}\n"
                             "- {name: b0, kind: device, host: 1}\n"
                             "- {name: b1, kind: device, host: 1, index: 1}\n"
                             "links:\n"
                             "- {between: [a0, a1], kind: nvlink, gbs: 40, count: 2}\n"
                             "- {between: [b0, b1], kind: nvlink, gbs: 40, count: 2}\n");
    assert_int_equal(TOPO("@apart.yaml", "--svg", "@apart.svg"), 0);
    assert_non_null(strstr(spawn.out, "no ring goes around all devices"));
    assert_int_equal(TOPO("--help"), 0);
    assert_non_null(strstr(spawn.out, "examples"));
    assert_non_null(strstr(spawn.out, "--devices"));
}

/* What NCCL 2.28's own search finds on such machines, and nothing where the model does not hold. */
static void case_nccl(void **state)
{
    (void)state;
    assert_int_equal(TOPO("@dgx1.yaml"), 0);
    assert_non_null(strstr(spawn.out, "120  its default (modelled): 6 channels of 20\n"));
    assert_int_equal(TOPO("--machine", "gpu:8 nvlink:switch sm:90"), 0);
    assert_non_null(strstr(spawn.out, "360  its default (modelled): 12 channels of 30\n"));
    assert_non_null(strstr(spawn.out, "12 of  0-1-2-3-4-5-6-7\n"));
    assert_int_equal(TOPO("--machine", "gpu:4 nvlink:mesh:4 sm:80"), 0);
    assert_non_null(strstr(spawn.out, "240  its default (modelled): 12 channels of 20\n"));
    assert_int_equal(TOPO("--machine", "numa:2 switch:1 gpu:4 sm:80 cpu:intel pci:4"), 0);
    assert_non_null(strstr(spawn.out, "10  its default (modelled): 1 channel of 10\n"));
    assert_int_equal(TOPO("@bridges.yaml"), 0);
    assert_null(strstr(spawn.out, "modelled"));
    assert_int_equal(TOPO("--machine", "node:2 gpu:2"), 0);
    assert_null(strstr(spawn.out, "modelled"));
    assert_int_equal(TOPO("--machine", "rank:4"), 0);
    assert_null(strstr(spawn.out, "modelled"));
}

/* ---- meshes and measuring ------------------------------------------------------------------- */

static void case_mesh(void **state)
{
    (void)state;
    assert_int_equal(TOPO("--machine", "node:2 gpu:4 nvlink:switch", "--mesh", "tensor:4 data:2"),
                     0);
    assert_non_null(strstr(spawn.out, "mesh tensor:4 data:2"));
    assert_non_null(strstr(spawn.out, "n1.gpu3"));
    refused(TOPO("@dgx1.yaml", "--mesh", "tensor"), "--mesh 'tensor'");
    refused(TOPO("@dgx1.yaml", "--mesh", "tensor:0"), "--mesh 'tensor:0'");
    refused(TOPO("@dgx1.yaml", "--mesh", "tensor:4:x"), "--mesh 'tensor:4:x'");
    refused(TOPO("@dgx1.yaml", "--mesh", "a:1 b:1 c:1 d:1 e:1"), "--mesh 'e:1'");
    assert_int_not_equal(TOPO("@dgx1.yaml", "--mesh", "tensor:4 data:4"), 0);
    assert_non_null(strstr(spawn.err, "16 ranks, and there are 8 devices"));
}

/* Every pair is measured, by memory and by sockets; rates are what they are. */
static void case_measure(void **state)
{
    static const char *const comm[] = {"local", "tcp"};
    (void)state;
    setenv("TESSERA_NVML", "/nowhere/libnvidia-ml.so.1", 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(TOPO("--ranks", "4", "--measure", "--comm", comm[i]), 0);
        assert_non_null(strstr(spawn.out, i == 0 ? "with --comm local" : "with --comm tcp"));
        const char *table = strstr(spawn.out, "  path ");
        double least = 0, median = 0, most = 0;
        int pairs = 0;
        assert_non_null(table);
        table = strchr(table, '\n') + 1;
        /* "  PHB  6  5000  ..."; on several NUMA nodes the first kind has fewer pairs. */
        assert_int_equal(sscanf(table, " %*s %d %*s %lf %lf %lf", &pairs, &least, &median, &most),
                         4);
        assert_in_range(pairs, 1, 6);
        assert_true(least > 0 && least <= median && median <= most);
    }
    refused(TOPO("--ranks", "2", "--measure", "--json", "-"), "--measure prints text");
    assert_int_not_equal(TOPO("--machine", "gpu:1", "--measure"), 0);
    assert_non_null(strstr(spawn.err, "2 to 65536 ranks"));
    unsetenv("TESSERA_NVML");
}

/* Ranks started by another launcher: rank 0 alone prints, and a file is the model. */
static void case_measure_placed(void **state)
{
    static struct spawn other;
    char *words[] = {"tessera", "topo", "--measure", "--machine", "node:2 rank:1 edge:0.5", NULL};
    char port[16];
    (void)state;
    snprintf(port, sizeof(port), "%d", (int)free_port());
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    setenv("LOCAL_RANK", "1", 1);
    setenv("RANK", "1", 1);
    spawn_start(&other, words, NULL);
    setenv("LOCAL_RANK", "0", 1);
    setenv("RANK", "0", 1);
    assert_int_equal(spawn_run(&spawn, words, NULL), 0);
    assert_int_equal(spawn_end(&other, 60), 0);
    assert_string_equal(other.out, "");
    assert_non_null(strstr(spawn.out, "2 devices on 2 hosts"));
    assert_non_null(strstr(spawn.out, "with --comm tcp"));
    assert_non_null(strstr(spawn.out, "  NET        1         0.5 "));
    refused(TOPO("--measure", "--comm", "local"), "leave --comm local out");
    unsetenv("WORLD_SIZE");
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("LOCAL_RANK");
    unsetenv("RANK");
}

/* ---- export and this machine ---------------------------------------------------------------- */

static void case_export(void **state)
{
    static const char *const format[] = {"nccl", "yaml"};
    const char *machine = "numa:2 switch:2 gpu:2 nvlink:cube sm:70";
    char *first;
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(TOPO("--machine", machine, "--json", "-"), 0);
        first = strdup(spawn.out);
        assert_non_null(first);
        assert_int_equal(TOPO("--machine", machine, "--export", format[i], "@export"), 0);
        assert_int_equal(TOPO("@export", "--format", format[i], "--json", "-"), 0);
        /* What was guessed is a fact of the file that is written. */
        assert_memory_equal(spawn.out, first, (size_t)(strstr(first, "\"guessed\"") - first));
        free(first);
    }
    refused(TOPO("--machine", "node:2 gpu:2", "--export", "nccl", "-"), "describe one host");
    assert_int_equal(TOPO("@dgx1.yaml", "--export", "graph", "-"), 0);
    assert_non_null(strstr(spawn.out, "<graphs version=\"1\">"));
    assert_null(strstr(spawn.out, "natural"));
}

static void case_this_machine(void **state)
{
    (void)state;
    setenv("TESSERA_NVML", "/nowhere/libnvidia-ml.so.1", 1);
    assert_int_equal(TOPO("--ranks", "3", "--json", "-"), 0);
    json_decref(answer(3, 0x7));
    assert_int_equal(TOPO("--ranks", "2"), 0);
    assert_non_null(strstr(spawn.out, "no GPU is used"));
    unsetenv("TESSERA_NVML");
}

/* Two GPUs of a driver that is made up. */
static void case_gpus(void **state)
{
    (void)state;
    setenv("TESSERA_NVML", FAKE_NVML, 1);
    assert_int_equal(TOPO("--json", "-"), 0);
    json_decref(answer(2, 0x3));
    assert_int_equal(TOPO("--ranks", "5"), 0);
    assert_non_null(strstr(spawn.out, "NVIDIA H200"));
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    assert_int_equal(TOPO("--json", "-"), 0);
    json_decref(answer(1, 0x2));
    setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 1);
    refused(TOPO("--json", "-"), "--devices 0,1");
    assert_int_equal(TOPO("--devices", "1,0", "--json", "-"), 0);
    json_decref(answer(2, 0x3));
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    assert_int_equal(TOPO("--ranks", "4", "--json", "-"), 0);
    json_decref(answer(4, 0xf));
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("TESSERA_NVML");
}

/* ---- the run -------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    /* The caller's environment is not the tests'. */
    unsetenv("CUDA_VISIBLE_DEVICES");
    write_machine("dgx1.yaml", machine_dgx1v());
    write_machine("bridges.yaml", machine_h100_bridges());
    write_machine("hives.yaml", machine_epyc_hives());
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_dgx1),          cmocka_unit_test(case_bridges),
        cmocka_unit_test(case_hives),         cmocka_unit_test(case_nvswitch),
        cmocka_unit_test(case_dead_link),     cmocka_unit_test(case_cluster),
        cmocka_unit_test(case_devices),       cmocka_unit_test(case_refused_options),
        cmocka_unit_test(case_refused_files), cmocka_unit_test(case_text),
        cmocka_unit_test(case_mesh),          cmocka_unit_test(case_nccl),
        cmocka_unit_test(case_measure),       cmocka_unit_test(case_measure_placed),
        cmocka_unit_test(case_export),        cmocka_unit_test(case_this_machine),
        cmocka_unit_test(case_gpus),
    };
    return cmocka_run_group_tests_name("topo", tests, set_up, tear_down);
}
