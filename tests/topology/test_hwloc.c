/*
 * hwloc's XML: a machine of our own with a switch, a NIC, bridged GPUs and NVSwitches, the same
 * without GPUs, texts that are cut short, hostile or of unknown versions, and the files of real
 * machines where they are there. Without libhwloc only what the text itself tells is tested.
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

#define SETS(mask)                                                                                 \
    " cpuset=\"" mask "\" complete_cpuset=\"" mask "\" nodeset=\"" mask                            \
    "\" complete_nodeset=\"" mask "\""
#define PCI(gp, bus, type, speed)                                                                  \
    "<object type=\"PCIDev\" gp_index=\"" gp "\" pci_busid=\"" bus "\" pci_type=\"" type           \
    "\" pci_link_speed=\"" speed "\">"
#define OS(gp, name, type)                                                                         \
    "<object type=\"OSDev\" gp_index=\"" gp "\" name=\"" name "\" osdev_type=\"" type "\"/>"
#define BRIDGE(gp, depth, buses, bus, speed)                                                       \
    "<object type=\"Bridge\" gp_index=\"" gp "\" bridge_type=\"1-1\" depth=\"" depth               \
    "\" bridge_pci=\"0000:[" buses "]\" pci_busid=\"" bus                                          \
    "\" pci_type=\"0604 [10b5:8796] [10b5:8796] 00\" pci_link_speed=\"" speed "\">"
#define V100 "0302 [10de:1db1] [10de:1212] a1"

/* Two packages; gpu1 (nvml1) and gpu0 (nvml0) and a NIC under a switch of the first, gpu2 alone on
 * the second with a speed of 4 GB/s, an idle GPU's; a server board's graphics. */
#define HEAD                                                                                       \
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"      \
    "<topology version=\"2.0\">\n"                                                                 \
    "<object type=\"Machine\" os_index=\"0\"" SETS(                                                \
        "0x00000003") " allowed_cpuset=\"0x00000003\" "                                            \
                      "allowed_nodeset=\"0x00000003\" gp_index=\"1\">\n"                           \
                      "<info name=\"Architecture\" value=\"x86_64\"/>\n"
#define PACKAGE(n, mask, gp)                                                                       \
    "<object type=\"Package\" os_index=\"" n                                                       \
    "\"" SETS(mask) " gp_index=\"" gp "0\">\n"                                                     \
                    "<info name=\"CPUVendor\" value=\"GenuineIntel\"/>\n"                          \
                    "<info name=\"CPUModelNumber\" value=\"79\"/>\n"                               \
                    "<object type=\"NUMANode\" os_index=\"" n                                      \
                    "\"" SETS(mask) " gp_index=\"" gp "1\" local_memory=\"1000000\"/>\n"           \
                                    "<object type=\"Core\" os_index=\"0\"" SETS(                   \
                                        mask) " gp_index=\"" gp "2\">\n"                           \
                                              "<object type=\"PU\" os_index=\"" n                  \
                                              "\"" SETS(mask) " gp_index=\"" gp                    \
                                                              "3\"/>\n</object>\n"

static const char gpus[] = HEAD PACKAGE(
    "0", "0x00000001",
    "2") "<object type=\"Bridge\" gp_index=\"30\" bridge_type=\"0-1\" depth=\"0\" "
         "bridge_pci=\"0000:[10-1f]\">\n" BRIDGE(
             "31", "1", "11-18", "0000:10:00.0",
             "15.753846") "\n" BRIDGE("32", "2", "12-18", "0000:11:00.0",
                                      "15.753846") "\n" BRIDGE("33", "3", "13-13", "0000:12:00.0",
                                                               "15.753846")
             PCI("34", "0000:13:00.0", V100, "15.753846") OS(
                 "35", "nvml1", "1") "</object>\n</object>\n" BRIDGE("36", "3", "14-14",
                                                                     "0000:12:01.0", "7.876923")
                 PCI("37", "0000:14:00.0", V100, "15.753846") OS(
                     "38", "nvml0", "1") "</object>\n</object>\n" BRIDGE("39", "3", "15-15",
                                                                         "0000:12:02.0", "0.000000")
                     PCI("40", "0000:15:00.0", "0207 [15b3:1019] [15b3:0006] 00",
                         "0.000000") OS("41", "ib0", "2")
                         OS("42", "mlx5_0",
                            "3") "</object>\n</object>\n"
                                 "</object>\n</object>\n" PCI(
                                     "43", "0000:10:05.0", "0300 [1a03:2000] [1a03:2000] 41",
                                     "0.000000") "</object>\n"
                                                 "</object>\n</object>\n" PACKAGE(
                                                     "1", "0x00000002",
                                                     "5") "<object type=\"Bridge\" gp_index=\"60\" "
                                                          "bridge_type=\"0-1\" depth=\"0\" "
                                                          "bridge_pci=\"0000:[80-8f]\">\n" PCI(
                                                              "61", "0000:81:00.0", V100,
                                                              "4.000000")
                                                              OS("62", "nvml2",
                                                                 "1") "</object>\n"
                                                                      "</object>\n</object>\n</"
                                                                      "object>\n"
                                                                      /* 0 and 1 by two links; 1 and
                                                                         2 by a switch of one. */
                                                                      "</topology>\n";

static const char no_gpus[] = HEAD PACKAGE("0", "0x00000001", "2") "</object>\n" PACKAGE(
    "1", "0x00000002", "5") "</object>\n</object>\n</topology>\n";

/* The machine with a matrix over nvml1, nvml0 and nvml2, each link 25000 MB/s. */
static char *with_matrix(const char *name, const char *values)
{
    const char *end = strstr(gpus, "</topology>");
    char *text = malloc(sizeof gpus + 1000);
    assert_non_null(text);
    snprintf(text, sizeof gpus + 1000,
             "%.*s<distances2hetero nbobjs=\"3\" kind=\"25\" name=\"%s\">\n"
             "<indexes length=\"27\">OSDev:35 OSDev:38 OSDev:62 </indexes>\n"
             "<u64values length=\"%zu\">%s</u64values>\n</distances2hetero>\n</topology>\n",
             (int)(end - gpus), gpus, name, strlen(values), values);
    return text;
}

/* NULL, and the case is skipped, where there is no libhwloc. */
static struct tess_topology *read_text(const char *name, const char *text, size_t bytes)
{
    struct tess_topology *topology = tess_topology_new();
    assert_non_null(topology);
    enum tess_status status = tess_topology_read_hwloc(name, text, bytes, NULL, topology);
    if (status == TESS_ERR_UNSUPPORTED) {
        tess_topology_free(topology);
        skip();
    }
    assert_int_equal(status, TESS_OK);
    return topology;
}

static void case_machine(void **state)
{
    (void)state;
    struct tess_topology *topology = read_text("m.xml", gpus, sizeof gpus - 1);
    struct look_counts counts = look_count(topology);
    assert_int_equal(counts.devices, 3);
    assert_int_equal(counts.nics, 1);
    assert_int_equal(counts.cpus, 2);
    assert_int_equal(counts.pci, 1);
    assert_string_equal(topology->node[topology->device[0]].bus, "0000:14:00.0");
    assert_string_equal(topology->node[topology->device[1]].bus, "0000:13:00.0");
    assert_int_equal(topology->node[topology->device[2]].sm, 70);
    CLOSE(look_gbs(topology, "gpu0", "switch0"), 6); /* the port above it has 8 lanes */
    CLOSE(look_gbs(topology, "gpu1", "switch0"), 12);
    CLOSE(look_gbs(topology, "mlx5_0", "switch0"), 12);
    CLOSE(look_gbs(topology, "switch0", "numa0"), 12);
    CLOSE(look_gbs(topology, "gpu2", "numa1"), 12); /* not 3, the idle speed */
    CLOSE(look_gbs(topology, "numa0", "numa1"), 6);
    tess_topology_free(topology);
}

static void case_matrix(void **state)
{
    (void)state;
    char *text = with_matrix("NVLinkBandwidth", "1000000 50000 0 50000 1000000 25000 0 25000 0 ");
    struct tess_topology *topology = read_text("m.xml", text, strlen(text));
    free(text);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 40);
    CLOSE(look_gbs(topology, "gpu0", "gpu2"), 20);
    CLOSE(look_gbs(topology, "gpu1", "gpu2"), 0);
    tess_topology_free(topology);
    text = with_matrix("XGMIBandwidth", "0 100000 0 100000 0 50000 0 50000 0 ");
    topology = read_text("m.xml", text, strlen(text));
    free(text);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 40);
    CLOSE(look_gbs(topology, "gpu0", "gpu2"), 20);
    tess_topology_free(topology);
}

static void case_no_gpus(void **state)
{
    (void)state;
    struct tess_topology *topology = read_text("m.xml", no_gpus, sizeof no_gpus - 1);
    assert_int_equal(topology->device_count, 2);
    CLOSE(look_gbs(topology, "rank1", "numa1"), 5000);
    tess_topology_free(topology);
}

static void case_refused(void **state)
{
    (void)state;
    look_reader *read = tess_topology_read_hwloc;
    look_refused(read, "f.xml", "", NULL, "f.xml:1: no <topology>");
    look_refused(read, "f.xml", "hello", NULL, "f.xml:1: byte 0x68 between");
    look_refused(read, "f.xml", "<system version=\"1\"/>", NULL, "f.xml:1: <system> at the top");
    look_refused(read, "f.xml", "<topology>\n<object>\n", NULL,
                 "f.xml:3: the file ends inside <object> of line 2");
    look_refused(read, "f.xml", "<topology>\n<object type=\"Mach", NULL,
                 "f.xml:2: the value of type has no end");
    look_refused(read, "f.xml", "<topology>\n<object type=Machine>", NULL, "a value in quotes");
    look_refused(read, "f.xml", "<topology>\n<object type>", NULL, "'=' was expected after type");
    look_refused(read, "f.xml", "<topology>\n<object\n", NULL, "the file ends inside a tag");
    look_refused(read, "f.xml", "<topology></object>", NULL, "</object> where </topology>");
    look_refused(read, "f.xml", "<topology/></topology>", NULL, "where the end was expected");
    look_refused(read, "f.xml", "<topology/><topology/>", NULL, "<topology> at the top");
    look_refused(read, "f.xml", "<!-- x\n\n", NULL, "f.xml:3: the file ends inside a comment");
    look_refused(read, "f.xml", "<topology a=\"&lol;\"/>", NULL, "an entity");
    look_refused(read, "f.xml", "<topology>&lol;</topology>", NULL, "byte 0x26");
    look_refused(read, "f.xml",
                 "<?xml version=\"1.0\"?>\n<!DOCTYPE t [\n<!ENTITY a \"b\">\n]>\n<topology/>", NULL,
                 "f.xml:2: a DOCTYPE with declarations");
    look_refused(read, "f.xml", "<topology version=\"3.0\">\n</topology>", NULL,
                 "version '3.0'; 1 and 2 can be read: have it written by `lstopo --of xml`");
    look_refused(read, "f.xml", "<topology version=\"\001\"/>", NULL, "byte 0x01 in a value");
    look_refused(read, "f.xml", "<topology>\n<object os_index=\"4294967290\" type=\"PU\"/>", NULL,
                 "f.xml:2: os_index '4294967290'");
    char deep[64 * 8 + 1];
    for (int i = 0; i < 64; i++)
        memcpy(deep + 8 * i, "<object>", 8);
    char text[sizeof deep + 32];
    snprintf(text, sizeof text, "<topology><o>%.*s", 63 * 8, deep + 8);
    look_refused(read, "f.xml", text, NULL, "more than 64 elements in each other");
}

/* Well-formed, and no machine. */
static void case_not_loaded(void **state)
{
    (void)state;
    tess_topology_free(read_text("m.xml", no_gpus, sizeof no_gpus - 1)); /* is hwloc there? */
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
    tess_topology_free(read_text("m.xml", no_gpus, sizeof no_gpus - 1)); /* is hwloc there? */
    char *text = with_matrix("NVLinkBandwidth", "1000000 50000 0 50000 1000000 25000 0 25000 0 ");
    look_hostile(tess_topology_read_hwloc, text, piece, sizeof piece / sizeof piece[0], 1000);
    free(text);
}

/* ---- real machines -------------------------------------------------------------------------- */

static void case_real(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        int32_t devices, cpus, nvswitches;
    } file[] = {
        {"hwloc/hwloc-nvidiaDGX2.xml", 16, 2, 1},
        {"hwloc/mpibind-coral-lassen.xml", 4, 2, 0},
        {"hwloc/mpibind-coral-lassen-hwloc1.xml", 4, 2, 0},
        {"hwloc/mpibind-coral-ea-hwloc1.xml", 4, 2, 0},
        {"hwloc/mpibind-coral-butte-hwloc1.xml", 4, 2, 0},
        {"hwloc/flux-lassen-0.xml", 4, 2, 0},
        {"hwloc/flux-butte-0.xml", 4, 2, 0},
        {"hwloc/hwloc293-power8gpudistances.xml", 4, 2, 0},
        {"hwloc/mpibind-g4dnmetal.xml", 8, 2, 0},
        {"hwloc/mpibind-epyc-corona.xml", 4, 8, 0},
        {"hwloc/mpibind-epyc-corona-hwloc1.xml", 4, 8, 0},
        {"hwloc/mpibind-epyc-corona-p2.xml", 8, 2, 0},
        {"hwloc/flux-rsmi_corona240.xml", 8, 2, 0},
        {"hwloc/mpibind-cts1-pascal.xml", 2, 2, 0},
        {"hwloc/flux-chimera.xml", 2, 2, 0},
        {"hwloc/hwloc293-24em64t-2n6c2t-pci.xml", 3, 2, 0},
        {"hwloc/hwloc293-32em64t-2n8c2t-pci-normalio.xml", 3, 2, 0},
        {"hwloc/hwloc293-32em64t-2n8c2t-pci-wholeio.xml", 3, 2, 0},
        /* no GPU: a place on each NUMA node */
        {"hwloc/hwloc293-32em64t-2n8c2t-pci-noio.xml", 2, 2, 0},
        {"hwloc/hwloc293-192em64t-12gr2n8c2t.xml", 24, 24, 0},
        {"hwloc/hwloc293-96em64t-4n4d3ca2co-pci.xml", 4, 4, 0},
    };
    int found = 0, wrong = 0;
    for (size_t f = 0; f < sizeof file / sizeof file[0]; f++) {
        size_t bytes;
        char *text = look_real(file[f].path, &bytes);
        if (!text)
            continue;
        found++;
        struct tess_topology *topology = read_text(file[f].path, text, bytes);
        free(text);
        struct look_counts counts = look_count(topology);
        if (counts.devices != file[f].devices || counts.cpus != file[f].cpus ||
            counts.nvswitches != file[f].nvswitches) {
            print_error("%s: %d devices, %d processors, %d NVSwitches\n", file[f].path,
                        (int)counts.devices, (int)counts.cpus, (int)counts.nvswitches);
            wrong++;
        }
        tess_topology_free(topology);
    }
    assert_int_equal(wrong, 0);
    if (found == 0)
        skip();
}

/* Both halves of a DGX-2 on its switches; direct links and links to processors of an S822LC. */
static void case_real_links(void **state)
{
    (void)state;
    size_t bytes;
    char *text = look_real("hwloc/hwloc-nvidiaDGX2.xml", &bytes);
    if (!text)
        skip();
    struct tess_topology *topology = read_text("dgx2.xml", text, bytes);
    free(text);
    for (int32_t i = 0; i < 16; i++)
        CLOSE(look_gbs(topology, topology->node[topology->device[i]].name, "nvswitch"), 120);
    /* Pairs of GPUs are under a switch, which is under another. */
    const char *pair = look_beside(topology, "gpu0", TESS_NODE_PCI);
    assert_string_equal(pair, look_beside(topology, "gpu1", TESS_NODE_PCI));
    CLOSE(look_gbs(topology, "gpu0", pair), 12);
    tess_topology_free(topology);
    text = look_real("hwloc/hwloc293-power8gpudistances.xml", &bytes);
    assert_non_null(text);
    topology = read_text("power8.xml", text, bytes);
    free(text);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 36);
    CLOSE(look_gbs(topology, "gpu1", "gpu2"), 0);
    CLOSE(look_gbs(topology, "numa0", look_beside(topology, "numa0", TESS_NODE_CPU)), 32);
    tess_topology_free(topology);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_machine),    cmocka_unit_test(case_matrix),
        cmocka_unit_test(case_no_gpus),    cmocka_unit_test(case_refused),
        cmocka_unit_test(case_not_loaded), cmocka_unit_test(case_hostile),
        cmocka_unit_test(case_real),       cmocka_unit_test(case_real_links),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
