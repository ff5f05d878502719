/* What is said about a machine: dead NVLinks in NCCL's files, files without NVLinks, what was
 * guessed, and what the wires of links carry. */
#include "look.h"
#include "topology/machine/rates.h"
#include "topology/machine/remark.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CLOSE(a, b) assert_true((a) > (b)-1e-3 && (a) < (b) + 1e-3)

/* A GPU of NCCL's file at bus 000`b`:00:00.0 with what is inside its <gpu>. */
#define GPU(b, sm, links)                                                                          \
    "<pci busid=\"000" b ":00:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" "            \
    "link_width=\"16\">\n<gpu sm=\"" sm "\">\n" links "</gpu>\n</pci>\n"
#define SWITCH(b, count)                                                                           \
    "<nvlink target=\"000" b ":00:00.0\" count=\"" count "\" tclass=\"0x068000\"/>\n"
#define PEER(b, count)                                                                             \
    "<nvlink target=\"000" b ":00:00.0\" count=\"" count "\" tclass=\"0x030200\"/>\n"
#define FILE_OF(gpus)                                                                              \
    "<system version=\"1\">\n<cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\" "           \
    "familyid=\"6\" modelid=\"143\">\n" gpus "</cpu>\n</system>\n"

static struct tess_topology *read_nccl(const char *name, const char *text)
{
    struct tess_topology *topology =
        look_read(tess_topology_read_nccl, name, text, strlen(text), NULL);
    assert_non_null(topology);
    return topology;
}

/* All warnings, a line each. Frees the topology. */
static const char *warnings(struct tess_topology *topology)
{
    static char all[4096];
    char text[TESS__REMARK_TEXT];
    struct tess__nvlinks *links = tess__nvlinks_open(topology, false);
    assert_non_null(links);
    all[0] = '\0';
    for (int32_t at = 0; tess__remark_warning(topology, links, at, text); at++)
        snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s\n", text);
    free(links);
    tess_topology_free(topology);
    return all;
}

/* Links to several switches count together. */
static void case_dead_in_xml(void **state)
{
    (void)state;
    static const char text[] = FILE_OF(GPU("1", "90", SWITCH("8", "9") SWITCH("9", "9"))
                                           GPU("2", "90", SWITCH("8", "9") SWITCH("9", "8"))
                                               GPU("3", "90", SWITCH("8", "9") SWITCH("9", "9")));
    struct tess_topology *topology = read_nccl("dump.xml", text);
    CLOSE(look_gbs(topology, "gpu1", "nvswitch"), 17 * 20.6);
    const char *said = warnings(topology);
    assert_non_null(strstr(said, "gpu1 has 17 of 18 NVLinks: 1 is dead"));
    assert_null(strstr(said, "gpu0"));
    assert_null(strstr(said, "gpu2"));
}

/* Without a switch: three A100 of 12 links, one of which is dead at both ends. */
static void case_dead_between_two(void **state)
{
    (void)state;
    static const char text[] = FILE_OF(GPU("1", "80", PEER("2", "5") PEER("3", "6")) GPU(
        "2", "80", PEER("1", "5") PEER("3", "6")) GPU("3", "80", PEER("1", "6") PEER("2", "6")));
    const char *said = warnings(read_nccl("dump.xml", text));
    assert_non_null(strstr(said, "gpu0 has 11 of 12 NVLinks"));
    assert_non_null(strstr(said, "gpu1 has 11 of 12 NVLinks"));
    assert_null(strstr(said, "gpu2"));
    /* Left out of a job, devices take their links with them, and none is dead. */
    struct tess_topology *topology = read_nccl("dump.xml", text);
    assert_int_equal(tess_topology_select(topology, (const int32_t[]){1, 2}, 2), TESS_OK);
    struct tess__nvlinks *links = tess__nvlinks_open(topology, true);
    assert_non_null(links);
    for (int32_t i = 0; i < topology->device_count; i++)
        assert_false(tess__nvlinks_dead(&links[topology->device[i]]));
    free(links);
    tess_topology_free(topology);
}

/* Real machines as they are have none. */
static void whole(const char *name, struct tess_topology *topology)
{
    const char *said = warnings(topology);
    if (strstr(said, " NVLinks: ") != NULL)
        fail_msg("%s: %s", name, said);
}

static void case_whole_machines(void **state)
{
    (void)state;
    look_each_machine(whole);
}

/* Clouds ship files of PCI and NICs, which NCCL completes. */
static void case_no_nvlink(void **state)
{
    (void)state;
    static const char bare[] = "<pci busid=\"0001:00:00.0\" class=\"0x030200\"/>\n"
                               "<pci busid=\"0002:00:00.0\" class=\"0x030200\"/>\n";
    char text[2048];
    const char *merge = "NCCL_TOPO_DUMP_FILE=whole.xml";
    snprintf(text, sizeof(text), FILE_OF("%s"), bare);
    assert_non_null(strstr(warnings(read_nccl("topo/ndv4-topo.xml", text)), merge));
    assert_non_null(strstr(warnings(read_nccl("aws-p5.48xl.xml", text)), merge));
    assert_string_equal(warnings(read_nccl("topo.xml", text)), ""); /* may be any GPUs */
    assert_string_equal(warnings(read_nccl("l40s.xml", text)), "");
    assert_non_null(strstr(
        warnings(read_nccl("t.xml", FILE_OF(GPU("1", "90", "") GPU("2", "90", "")))), merge));
    assert_string_equal(
        warnings(read_nccl("t.xml", FILE_OF(GPU("1", "89", "") GPU("2", "89", "")))), "");
    /* A link to itself is how a file says that there are none. */
    assert_string_equal(
        warnings(read_nccl("t.xml", FILE_OF(GPU("1", "80", PEER("1", "1")) GPU("2", "80", "")))),
        "");
    assert_non_null(strstr(
        warnings(read_nccl("t.xml", FILE_OF("<pci busid=\"0001:00:00.0\" class=\"0x030200\" "
                                            "vendor=\"0x10de\" device=\"0x20b2\"/>\n"
                                            "<pci busid=\"0002:00:00.0\" class=\"0x030200\"/>\n"))),
        merge));
}

static void assert_guesses(struct tess_topology *topology, const char *expected)
{
    char all[2048] = "", text[TESS__REMARK_TEXT];
    for (int32_t at = 0; tess__remark_guess(topology, at, text); at++)
        snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s\n", text);
    assert_string_equal(all, expected);
    tess_topology_free(topology);
}

static void case_guesses(void **state)
{
    (void)state;
    static const char matrix[] = "GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n";
    const struct tess_topology_options options = {.sm = 90, .pci_gen = 5};
    struct tess_topology *topology =
        look_read(tess_topology_read_smi, "f.txt", matrix, strlen(matrix), NULL);
    assert_guesses(topology, "GPUs of sm 80 (--sm sets it)\n"
                             "PCIe of 24 GB/s (--pci-gen sets it)\n"
                             "processors: Intel\n"
                             "between NUMA nodes 10 GB/s, NCCL's figure for such processors\n");
    topology = look_read(tess_topology_read_smi, "f.txt", matrix, strlen(matrix), &options);
    assert_guesses(topology, "processors: Intel\n"
                             "between NUMA nodes 22 GB/s, NCCL's figure for such processors\n");
    assert_guesses(read_nccl("t.xml", FILE_OF(GPU("1", "90", "") GPU("2", "90", ""))), "");
    assert_int_equal(
        tess_topology_synthetic("gpu:2 nvlink:mesh gfx:90a pci:4 cpu:amd", NULL, &topology),
        TESS_OK);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 12 * 36);
    assert_guesses(topology, "");
}

/* rccl's constants, and what NCCL and rccl leave of a link. */
static void case_rates(void **state)
{
    (void)state;
    CLOSE(tess__rate_xgmi(0x906), 24);
    CLOSE(tess__rate_xgmi(0x908), 24);
    CLOSE(tess__rate_xgmi(0x90a), 36);
    CLOSE(tess__rate_xgmi(0x942), 48);
    CLOSE(tess__rate_xgmi(0x950), 48);
    CLOSE(tess__rate_xgmi(0), 24);
    CLOSE(tess__rate_wire_nvlink(20.6), 25);
    CLOSE(tess__rate_wire_nvlink(40.1), 50);
    CLOSE(tess__rate_wire_nvlink(48), 64);
    CLOSE(tess__rate_wire_nvlink(33), 33); /* no known link */
    CLOSE(tess__rate_wire_pci(48), 63.0154);
    CLOSE(tess__rate_wire_pci(12), 15.7538);
    CLOSE(tess__rate_wire_pci(23.6), 23.6);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_dead_in_xml),    cmocka_unit_test(case_dead_between_two),
        cmocka_unit_test(case_whole_machines), cmocka_unit_test(case_no_nvlink),
        cmocka_unit_test(case_guesses),        cmocka_unit_test(case_rates),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
