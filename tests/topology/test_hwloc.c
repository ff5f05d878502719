/*
 * hwloc's XML: a machine with a switch, a NIC, GPUs and NVSwitches (hwloc/three-gpus.xml), one
 * without GPUs, and texts that are cut short, hostile or of unknown versions. Without libhwloc:
 * that texts are checked all the same, and refused as unsupported.
 */
#include "look.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CLOSE(a, b) assert_true((a) > (b)-1e-3 && (a) < (b) + 1e-3)

#define GPUS "OSDev:35 OSDev:38 OSDev:62 " /* nvml1, nvml0 and nvml2: gpu1, gpu0 and gpu2 */

/* The machine with another matrix over `count` objects; MB/s, 25000 for a link. */
static char *with_matrix(const char *name, int count, const char *objects, const char *values)
{
    char *gpus = look_file("hwloc/three-gpus.xml"), *text;
    char *end = strstr(gpus, "<distances2hetero");
    assert_non_null(end);
    *end = '\0';
    assert_true(asprintf(&text,
                         "%s<distances2hetero nbobjs=\"%d\" kind=\"25\" name=\"%s\">\n"
                         "<indexes length=\"%zu\">%s</indexes>\n"
                         "<u64values length=\"%zu\">%s</u64values>\n</distances2hetero>\n"
                         "</topology>\n",
                         gpus, count, name, strlen(objects), objects, strlen(values), values) > 0);
    free(gpus);
    return text;
}

/* Frees the text. */
static struct tess_topology *read_text(char *text)
{
    struct tess_topology *topology =
        look_read(tess_topology_read_hwloc, "m.xml", text, strlen(text), NULL);
    assert_non_null(topology);
    free(text);
    return topology;
}

static void case_machine(void **state)
{
    (void)state;
    struct tess_topology *topology = read_text(look_file("hwloc/three-gpus.xml"));
    struct look_counts counts = look_count(topology);
    assert_int_equal(counts.devices, 3);
    assert_int_equal(counts.nics, 1);
    assert_int_equal(counts.cpus, 2);
    assert_int_equal(counts.pci, 1);
    assert_int_equal(counts.nvswitches, 1);
    assert_string_equal(topology->node[topology->device[0]].bus, "0000:14:00.0");
    assert_string_equal(topology->node[topology->device[1]].bus, "0000:13:00.0");
    assert_int_equal(topology->node[topology->device[2]].sm, 70);
    CLOSE(look_gbs(topology, "gpu0", "switch0"), 6); /* the port above it has 8 lanes */
    CLOSE(look_gbs(topology, "gpu1", "switch0"), 12);
    CLOSE(look_gbs(topology, "mlx5_0", "switch0"), 12);
    CLOSE(look_gbs(topology, "switch0", "numa0"), 12);
    CLOSE(look_gbs(topology, "gpu2", "numa1"), 12); /* not 3, the idle speed */
    CLOSE(look_gbs(topology, "numa0", "numa1"), 6);
    CLOSE(look_gbs(topology, "gpu0", "nvswitch"), 6 * 20); /* three links to each of two */
    CLOSE(look_gbs(topology, "gpu2", "nvswitch"), 6 * 20);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 0);
    tess_topology_free(topology);
}

static void case_matrix(void **state)
{
    (void)state;
    struct tess_topology *topology = read_text(
        with_matrix("NVLinkBandwidth", 3, GPUS, "1000000 50000 0 50000 1000000 25000 0 25000 0 "));
    assert_int_equal(look_count(topology).nvswitches, 0);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 40);
    CLOSE(look_gbs(topology, "gpu0", "gpu2"), 20);
    CLOSE(look_gbs(topology, "gpu1", "gpu2"), 0);
    tess_topology_free(topology);
    topology =
        read_text(with_matrix("XGMIBandwidth", 3, GPUS, "0 100000 0 100000 0 50000 0 50000 0 "));
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 48); /* of no AMD model that is known: MI50's */
    CLOSE(look_gbs(topology, "gpu0", "gpu2"), 24);
    assert_true(topology->remarks & TESS_REMARK_GFX);
    tess_topology_free(topology);
}

/* NVLinks from a GPU to its processor, beside PCIe. */
static void case_processors(void **state)
{
    (void)state;
    struct tess_topology *topology = read_text(with_matrix(
        "NVLinkBandwidth", 4, GPUS "Package:50 ", "0 0 0 0 0 0 0 0 0 0 0 50000 0 0 50000 0 "));
    CLOSE(look_gbs(topology, "gpu2", "numa1"), 12 + 40);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 0);
    tess_topology_free(topology);
}

static void case_no_gpus(void **state)
{
    (void)state;
    struct tess_topology *topology = read_text(look_file("hwloc/no-gpus.xml"));
    assert_int_equal(topology->device_count, 2);
    CLOSE(look_gbs(topology, "rank1", "numa1"), 5000);
    tess_topology_free(topology);
}

static void case_refused(void **state)
{
    (void)state;
    tess_topology_reader *read = tess_topology_read_hwloc;
    look_refused(read, "f.xml", "", NULL, "f.xml:1: no element in it");
    look_refused(read, "f.xml", "hello", NULL, "f.xml:1: 'h' between elements");
    look_refused(read, "f.xml", "<system version=\"1\"/>", NULL, "f.xml:1: <system> at the top");
    look_refused(read, "f.xml", "<topology>\n<object>\n", NULL,
                 "f.xml:3: the file ends before <object> of line 2");
    look_refused(read, "f.xml", "<topology>\n<object type=\"Mach", NULL,
                 "f.xml:2: the file ends within a value");
    look_refused(read, "f.xml", "<topology>\n<object type=Machine>", NULL, "not in quotes");
    look_refused(read, "f.xml", "<topology>\n<object type>", NULL,
                 "attribute type: expected =\"value\"");
    look_refused(read, "f.xml", "<topology>\n<object\n", NULL, "the file ends within a tag");
    look_refused(read, "f.xml", "<topology></object>", NULL, "</object> where <topology>");
    look_refused(read, "f.xml", "<topology/></topology>", NULL, "</topology> ends nothing");
    look_refused(read, "f.xml", "<topology/><topology/>", NULL, "<topology> after the end");
    look_refused(read, "f.xml", "<!-- x\n\n", NULL,
                 "f.xml:1: the comment that begins here has no end");
    look_refused(read, "f.xml", "<topology a=\"&lol;\"/>", NULL, "entities are refused");
    look_refused(read, "f.xml", "<topology>&lol;</topology>", NULL, "'&' between elements");
    look_refused(read, "f.xml",
                 "<?xml version=\"1.0\"?>\n<!DOCTYPE t [\n<!ENTITY a \"b\">\n]>\n<topology/>", NULL,
                 "f.xml:2: a DOCTYPE with declarations");
    look_refused(read, "f.xml", "<topology version=\"3.0\">\n</topology>", NULL,
                 "version '3.0'; 1 and 2 can be read: have it written by `lstopo --of xml`");
    look_refused(read, "f.xml", "<topology version=\"\001\"/>", NULL,
                 "byte 0x01 in the value of version");
    look_refused(read, "f.xml", "<topology>\n<object os_index=\"4294967290\" type=\"PU\"/>", NULL,
                 "f.xml:2: os_index '4294967290'");
    char deep[64 * 8 + 1];
    for (int i = 0; i < 64; i++)
        memcpy(deep + 8 * i, "<object>", 8);
    char text[sizeof(deep) + 32];
    snprintf(text, sizeof(text), "<topology><o>%.*s", 63 * 8, deep + 8);
    look_refused(read, "f.xml", text, NULL, "nested more than 64 deep");
}

/* Well-formed, and no machine. */
static void case_not_loaded(void **state)
{
    (void)state;
    look_refused(tess_topology_read_hwloc, "f.xml", "<topology version=\"2.0\"></topology>", NULL,
                 "f.xml: hwloc 2");
    look_refused(tess_topology_read_hwloc, "f.xml",
                 "<topology version=\"2.0\"><object type=\"PU\"/></topology>", NULL,
                 "f.xml: hwloc 2");
}

static void case_hostile(void **state)
{
    (void)state;
    static const char *const piece[] = {
        "<",      ">",     "/>",       "\"",      "=",        "</object>", "&amp;", "0x00000007",
        "0x0",    "-1",    "99999",    "<!--",    "<object>", "type",      "\xff",  "Bridge",
        "PCIDev", "OSDev", "NUMANode", "Package", "0000:",    "[",         " ",     "\n"};
    char *text = look_file("hwloc/three-gpus.xml");
    look_hostile(tess_topology_read_hwloc, text, piece, sizeof(piece) / sizeof(piece[0]), 1000);
    free(text);
}

static void case_without_hwloc(void **state)
{
    (void)state;
    char *text = look_file("hwloc/three-gpus.xml");
    struct tess_topology *topology = tess_topology_new();
    assert_int_equal(tess_topology_read_hwloc("m.xml", text, strlen(text), NULL, topology),
                     TESS_ERR_UNSUPPORTED);
    tess_topology_free(topology);
    free(text);
}

int main(void)
{
    static const struct CMUnitTest with[] = {
        cmocka_unit_test(case_machine),    cmocka_unit_test(case_matrix),
        cmocka_unit_test(case_processors), cmocka_unit_test(case_no_gpus),
        cmocka_unit_test(case_refused),    cmocka_unit_test(case_not_loaded),
        cmocka_unit_test(case_hostile),
    };
    static const struct CMUnitTest without[] = {
        cmocka_unit_test(case_refused),
        cmocka_unit_test(case_without_hwloc),
    };
    return LOOK_HWLOC ? cmocka_run_group_tests_name("hwloc", with, NULL, NULL)
                      : cmocka_run_group_tests_name("hwloc", without, NULL, NULL);
}
