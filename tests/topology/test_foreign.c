/*
 * Files as NCCL, hwloc, nvidia-smi and Slurm have them for real machines: what each reader finds in
 * them, and that the machines of machines/ that were written down from them have the same rings.
 * Built where the folder TESS_FOREIGN_TOPOLOGIES exists.
 */
#include "look.h"
#include "rings.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct foreign {
    const char *file, *machine; /* machine: NULL where machines/ has none of it */
    int32_t devices, nics, cpus, nvswitches, sm;
} const smi[] = {
    {"a100mix-x4-nv12+pix-node192", "a100-nvlink-and-pcie", 4, 0, 2, 0, 80},
    {"a100pcie-x4-nv12pairs-azure-nc96", "azure-nc96", 4, 0, 4, 0, 80},
    {"a100x4-nv4-leonardo-4nic", "leonardo", 4, 4, 1, 0, 80},
    {"a100x4-nv4-polaris-2nic", "polaris", 4, 2, 4, 0, 80},
    {"b300x8-nvswitch-8nic-pxb-deepep590", "b300-8", 8, 8, 2, 1, 103},
    {"h100pcie-x8-odd-bridges", "h100-pcie-bridges", 8, 0, 2, 0, 90},
    {"h100vm-x4-nv18-8nic-allphb", "h100-4-vm", 4, 8, 1, 1, 90},
    {"h100x8-nvswitch-8nic-pix", "h100-8-cards", 8, 8, 2, 1, 90},
    {"h100x8-nvswitch-nonic-stas", "h100-8", 8, 0, 2, 1, 90},
    {"nv4pairs-x4-1nic-vllm", "bridged-pairs", 4, 1, 2, 0, 80},
    {"p100x8-dgx1.derived", "dgx-1p", 8, 0, 2, 0, 60},
    {"pcie-x8-pix4+4-2nic-socket0", "pcie-4-4", 8, 2, 2, 0, 80},
    {"pcie-x8-pix4+4-onesocket-2nic-other", "pcie-4-4-one-socket", 8, 2, 2, 0, 80},
    {"pcie-x8-pix4+4-onesocket-after", "gooxi-4-4", 8, 2, 1, 0, 80},
    {"pcie-x8-pix5+3-asym-before", "gooxi-5-3", 8, 2, 2, 0, 80},
    {"rtx4090x8-allsys-2nic-gpuallocator17", "rtx4090-8", 8, 2, 2, 0, 89},
    {"v100x8-dgx1-4nic-msccltools", "dgx-1v", 8, 4, 2, 0, 70},
    {"v100x8-hcm-1nic-dlperf", "dgx-1v", 8, 1, 2, 0, 70},
    {"v100x8-hcm-1nic-vm", "dgx-1v-flat", 8, 1, 2, 0, 70},
    {"v100x8-hcm-9nic-nersc-cgpu", "dgx-1v", 8, 9, 2, 0, 70},
};

static const struct foreign hwloc[] = {
    {"hwloc-nvidiaDGX2", "dgx-2h", 16, 0, 2, 1, 70},
    {"mpibind-coral-lassen", "lassen", 4, 6, 2, 0, 70},
    {"mpibind-coral-lassen-hwloc1", "lassen", 4, 6, 2, 0, 70},
    {"mpibind-coral-ea-hwloc1", "sierra-early-access", 4, 4, 2, 0, 60},
    {"mpibind-coral-butte-hwloc1", "lassen", 4, 6, 2, 0, 70},
    {"flux-lassen-0", "lassen", 4, 6, 2, 0, 70},
    {"flux-butte-0", "butte", 4, 10, 2, 0, 70},
    {"hwloc293-power8gpudistances", "s822lc", 4, 0, 2, 0, 60},
    {"mpibind-g4dnmetal", "aws-g4dn-metal", 8, 2, 2, 0, 75},
    {"mpibind-epyc-corona", "corona-mi25", 4, 3, 8, 0, 0},
    {"mpibind-epyc-corona-hwloc1", "corona-mi25", 4, 3, 8, 0, 0},
    {"mpibind-epyc-corona-p2", NULL, 8, 3, 2, 0, 0}, /* 23.6 GB/s a device, machines/ has 24 */
    {"flux-rsmi_corona240", NULL, 8, 3, 2, 0, 0},
    {"mpibind-cts1-pascal", "pascal", 2, 3, 2, 0, 60},
    {"flux-chimera", "threadripper", 2, 3, 2, 0, 80},
    {"hwloc293-24em64t-2n6c2t-pci", "proliant-sl390", 3, 2, 2, 0, 80},
    {"hwloc293-32em64t-2n8c2t-pci-normalio", "k40-and-radeon", 3, 3, 2, 0, 80},
    {"hwloc293-32em64t-2n8c2t-pci-wholeio", "k40-and-radeon", 3, 3, 2, 0, 80},
    {"hwloc293-32em64t-2n8c2t-pci-noio", "xeon-2", 2, 0, 2, 0, 0},
    {"hwloc293-192em64t-12gr2n8c2t", "sgi-uv2000", 24, 7, 24, 0, 0},
    {"hwloc293-96em64t-4n4d3ca2co-pci", "ibm-x3950", 4, 8, 4, 0, 0},
};

static const struct foreign nccl[] = {
    {"aws-p4d-24xl-topo", "aws-p4d", 8, 4, 2, 0, 0},
    {"aws-p4de-24xl-topo", "aws-p4d", 8, 4, 2, 0, 0},
    {"aws-p5.48xl-topo", "aws-p5", 8, 32, 1, 0, 90},
    {"azure-ncv4-topo", "azure-ncv4", 4, 1, 4, 0, 80},
    {"azure-ndv2-topo", "azure-ndv2", 8, 1, 2, 0, 0},
    {"azure-ndv4-topo", "azure-ndv4", 8, 8, 4, 0, 0},
    {"azure-ndv5-topo", "azure-ndv5", 8, 8, 2, 0, 0},
    {"oci-H100-topology-kubernetes", "h100-8-cards", 8, 16, 2, 1, 90},
    {"oci-H100-topology", "oci-h100", 8, 16, 2, 1, 90},
    {"oci-topo-flattened", "azure-ndv4", 8, 8, 4, 0, 0},
    {"rccl-topo_16p1h", "mi200-16", 16, 8, 4, 0, 0},
    {"rccl-topo_3p_pcie", "mi200-3-pcie", 3, 1, 2, 0, 0},
    {"rccl-topo_4p1h", "mi50-4-ring", 4, 1, 1, 0, 0},
    {"rccl-topo_4p2h", "mi50-8-two-rings", 8, 1, 1, 0, 0},
    {"rccl-topo_4p2h_2nic", "mi50-8-two-rings", 8, 2, 1, 0, 0},
    {"rccl-topo_4p3l", "mi100-4", 4, 2, 1, 0, 0},
    {"rccl-topo_4p3l_2h", "mi100-8-hives", 8, 1, 4, 0, 0},
    {"rccl-topo_4p_940", "mi300-4", 4, 4, 4, 0, 0},
    {"rccl-topo_8p1h", "mi200-8", 8, 4, 2, 0, 0},
    {"rccl-topo_8p1h_5", "mi200-8-switches", 8, 8, 2, 0, 0},
    {"rccl-topo_8p6l", "mi100-8", 8, 1, 2, 0, 0},
    {"rccl-topo_8p6l_6nic", "mi100-8", 8, 6, 2, 0, 0},
    {"rccl-topo_8p_4nics", "mi100-8-hives-cards", 8, 4, 4, 0, 0},
    {"rccl-topo_8p_90a", "mi200-8-one-numa", 8, 1, 1, 0, 0},
    {"rccl-topo_8p_90a_1", "mi200-8-three-numa", 8, 1, 3, 0, 0},
    {"rccl-topo_8p_940", "mi300-8", 8, 8, 2, 0, 0},
    {"rccl-topo_8p_940vm", "mi300-8-vm", 8, 8, 2, 0, 0},
    {"rccl-topo_8p_pcie", "mi50-8-pcie", 8, 1, 1, 0, 0},
    {"rccl-topo_8p_pcie_2nic", "mi50-8-pcie", 8, 2, 1, 0, 0},
    {"rccl-topo_8p_rome", "mi50-8-rome", 8, 1, 2, 0, 0},
    {"rccl-topo_8p_rome_pcie", "mi50-8-rome-pcie", 8, 2, 2, 0, 0},
    {"rccl-topo_8p_rome_vm1", "mi100-8-hives-vm", 8, 1, 4, 0, 0},
};

/* NULL: refused. */
static struct tess_topology *read_file(const char *folder, const char *file, const char *ending)
{
    char path[4096];
    struct tess_topology *topology = NULL;
    snprintf(path, sizeof(path), FOREIGN_FOLDER "/%s/%s.%s", folder, file, ending);
    if (access(path, R_OK) != 0)
        fail_msg("%s is missing", path);
    enum tess_status status = tess_topology_read(path, TESS_TOPOLOGY_AUTO, NULL, &topology);
    return status == TESS_OK ? topology : NULL;
}

static void check(const char *folder, const char *ending, const struct foreign *row)
{
    struct tess_topology *topology = read_file(folder, row->file, ending);
    if (!topology)
        fail_msg("%s", tess_log_last_error());
    struct look_counts is = look_count(topology);
    int32_t sm = topology->node[topology->device[0]].sm;
    if (is.devices != row->devices || is.nics != row->nics || is.cpus != row->cpus ||
        is.nvswitches != row->nvswitches || sm != row->sm)
        fail_msg("%s: %d devices, %d NICs, %d processors, %d NVSwitches, sm %d", row->file,
                 (int)is.devices, (int)is.nics, (int)is.cpus, (int)is.nvswitches, (int)sm);
    struct rings rings = rings_find(topology, TESS_RINGS_MAX);
    if (row->machine) {
        struct rings known = rings_find(look_machine(row->machine), TESS_RINGS_MAX);
        assert_int_equal(known.found.count, rings.found.count);
        rings_near(rings.found.natural.gbs, known.found.natural.gbs);
        rings_near(rings.found.best_single.gbs, known.found.best_single.gbs);
        rings_near(rings.found.bound_gbs, known.found.bound_gbs);
        rings_drop(&known);
    }
    rings_drop(&rings);
}

static void case_smi(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(smi) / sizeof(smi[0]); i++)
        check("smi", "txt", &smi[i]);
}

static void case_hwloc(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(hwloc) / sizeof(hwloc[0]) && LOOK_HWLOC; i++)
        check("hwloc", "xml", &hwloc[i]);
}

/* The text that is written of a file is written again of itself. */
static void round_trip(const struct tess_topology *topology)
{
    char *once = NULL, *twice = NULL;
    assert_int_equal(tess_topology_write_nccl(topology, 0, &once), TESS_OK);
    assert_null(strstr(once, "invented"));
    struct tess_topology *again =
        look_read(tess_topology_read_nccl, "again.xml", once, strlen(once), NULL);
    assert_non_null(again);
    assert_int_equal(again->link_count, topology->link_count);
    assert_int_equal(tess_topology_write_nccl(again, 0, &twice), TESS_OK);
    assert_string_equal(once, twice);
    tess_topology_free(again);
    free(once);
    free(twice);
}

static void case_nccl(void **state)
{
    (void)state;
    /* Files that describe no complete machine. */
    static const char *const refused[][2] = {
        {"aws-g5.48xl-topo", "no device in it"},
        {"aws-p5.48xl-topo-2023", "no device in it"},
        {"azure-ncv4-graph", "graph file"},
    };
    for (size_t i = 0; i < sizeof(nccl) / sizeof(nccl[0]); i++) {
        check("nccl", "xml", &nccl[i]);
        struct tess_topology *topology = read_file("nccl", nccl[i].file, "xml");
        round_trip(topology);
        tess_topology_free(topology);
    }
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        assert_null(read_file("nccl", refused[i][0], "xml"));
        assert_non_null(strstr(tess_log_last_error(), refused[i][1]));
    }
}

static void case_slurm(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        int32_t hosts, nets;
    } row[] = {
        {"spartan-scontrol-topology", 87, 5},
        {"leonardo-excerpt-scontrol-topology", 180, 2},
        {"slinky-two-level-scontrol-topology", 2, 4}, /* cut off: two trees */
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct tess_topology *topology = read_file("slurm", row[i].file, "txt");
        assert_non_null(topology);
        assert_int_equal(topology->device_count, row[i].hosts);
        assert_int_equal(topology->host_count, row[i].hosts);
        assert_int_equal(look_count(topology).nets, row[i].nets);
        tess_topology_free(topology);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_smi),
        cmocka_unit_test(case_hwloc),
        cmocka_unit_test(case_nccl),
        cmocka_unit_test(case_slurm),
    };
    return cmocka_run_group_tests_name("foreign files", cases, NULL, NULL);
}
