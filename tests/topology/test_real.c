/*
 * The ring search on files of real machines, where they are there: figures that are known, and what
 * holds for any machine. The files belong to others and are no part of the project.
 *
 * The figures were worked out apart from this code, over all orders and by a general LP solver,
 * from NCCL 2.28's constants; "NCCL" is what its own search of rings gets on the file, counted by
 * the physical links (on h100pcie-x8-odd-bridges it claims 40 and gets 22: it takes the bridge
 * between sockets for a way around them). Where they were worked out on other assumptions than the
 * reader's, the row says which:
 *
 *  a  Text of nvidia-smi without columns of affinity. The reader puts GPUs that no word SYS parts
 *     on one NUMA node (two on the DGX-1 and the a100mix box, as those machines have); one for each
 *     GPU gives more links between nodes: 84 instead of 73.5, and 20 instead of 10.
 *  b  The name of the GPU is not in the matrix. The reader takes a B300's links for those of sm
 * 100, 40.1 GB/s; 370.8 is 18 of sm 90. c  No PCIe generation in the file: 24 GB/s is 16 lanes of
 * generation 4, 12 those of 3. d  A cloud's file that leaves NVLink to detection: what PCIe alone
 * carries. 370.8 with NVSwitch.
 */
#include "look.h"
#include "rings.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* 100 ms is the aim of an optimised build on a machine that is not busy; a debug build and a busy
 * machine take ten times as long, the address sanitizer four times that. Processor time of the
 * thread. */
#ifdef __SANITIZE_ADDRESS__
#define MOST_S 4.0
#else
#define MOST_S 1.0
#endif

struct known {
    const char *file;
    double natural, best; /* GB/s; 0: not known */
    double bound;         /* of sets of rings */
    double nccl;          /* sum of its channels */
    const char *order;    /* of the best ring, where few are as good */
};

static const struct known known[] = {
    {"smi/v100x8-dgx1-4nic-msccltools.txt", 6, 40, 121.5, 120, "0-3-2-1-5-6-7-4"},
    {"smi/v100x8-hcm-1nic-dlperf.txt", 6, 40, 121.5, 120, "0-3-2-1-5-6-7-4"},
    {"smi/v100x8-hcm-1nic-vm.txt", 6, 40, 121.5, 120, "0-3-2-1-5-6-7-4"},
    {"smi/v100x8-hcm-9nic-nersc-cgpu.txt", 6, 40, 121.5, 120, "0-3-2-1-5-6-7-4"},
    {"smi/p100x8-dgx1.derived.txt", 6, 18, 73.5, 72, "0-1-2-3-7-5-6-4"}, /* a */
    {"smi/h100pcie-x8-odd-bridges.txt", 22, 22, 44, 22, NULL},
    {"smi/nv4pairs-x4-1nic-vllm.txt", 10, 10, 10, 10, NULL},
    {"smi/a100pcie-x4-nv12pairs-azure-nc96.txt", 10, 10, 40, 40, NULL},
    {"smi/a100x4-nv4-polaris-2nic.txt", 80, 80, 240, 240, NULL},
    {"smi/a100x4-nv4-leonardo-4nic.txt", 80, 80, 240, 240, NULL},
    {"smi/pcie-x8-pix4+4-2nic-socket0.txt", 10, 10, 10, 10, NULL},
    {"smi/rtx4090x8-allsys-2nic-gpuallocator17.txt", 10, 10, 10, 10, NULL},
    {"smi/pcie-x8-pix4+4-onesocket-2nic-other.txt", 24, 24, 24, 20, NULL}, /* c */
    {"smi/pcie-x8-pix4+4-onesocket-after.txt", 24, 24, 24, 20, NULL},      /* c */
    {"smi/pcie-x8-pix5+3-asym-before.txt", 10, 10, 10, 10, NULL},
    {"smi/a100mix-x4-nv12+pix-node192.txt", 10, 10, 10, 10, NULL}, /* a */
    {"smi/h100x8-nvswitch-8nic-pix.txt", 370.8, 370.8, 370.8, 360, NULL},
    {"smi/h100x8-nvswitch-nonic-stas.txt", 370.8, 370.8, 370.8, 360, NULL},
    {"smi/h100vm-x4-nv18-8nic-allphb.txt", 370.8, 370.8, 370.8, 360, NULL},
    {"smi/b300x8-nvswitch-8nic-pxb-deepep590.txt", 721.8, 721.8, 721.8, 360, NULL}, /* b */
    {"nccl/oci-H100-topology.xml", 370.8, 370.8, 370.8, 360, NULL},
    {"nccl/oci-H100-topology-kubernetes.xml", 370.8, 370.8, 370.8, 360, NULL},
    {"nccl/aws-p4d-24xl-topo.xml", 10, 10, 10, 0, NULL},  /* d */
    {"nccl/aws-p4de-24xl-topo.xml", 10, 10, 10, 0, NULL}, /* d */
    {"nccl/aws-p5.48xl-topo.xml", 24, 24, 24, 0, NULL},   /* d */
    {"nccl/azure-ndv4-topo.xml", 16, 16, 24, 0, NULL},    /* d */
    {"nccl/azure-ndv5-topo.xml", 22, 22, 22, 0, NULL},    /* d */
    {"nccl/rccl-topo_4p1h.xml", 12, 20, 52, 40, "0-1-3-2"},
    {"nccl/rccl-topo_8p1h.xml", 12, 20, 104, 80, "0-1-3-2-4-5-7-6"},
    {"nccl/rccl-topo_8p1h_5.xml", 16, 20, 112, 80, "0-1-3-2-4-5-7-6"},
    {"nccl/rccl-topo_8p_rome.xml", 16, 20, 64, 40, NULL},
    {"nccl/rccl-topo_4p3l_2h.xml", 16, 16, 56, 16, NULL},
    {"nccl/rccl-topo_8p_4nics.xml", 16, 16, 48, 16, NULL},
    {"nccl/rccl-topo_8p_rome_vm1.xml", 16, 16, 64, 16, NULL},
    {"nccl/rccl-topo_8p6l.xml", 20, 20, 124, 120, NULL},
    {"nccl/rccl-topo_8p6l_6nic.xml", 20, 20, 124, 120, NULL},
    {"nccl/rccl-topo_8p_940.xml", 20, 20, 140, 120, NULL},
    {"nccl/rccl-topo_8p_940vm.xml", 20, 20, 140, 120, NULL},
    {"nccl/rccl-topo_4p_940.xml", 20, 20, 60, 60, NULL},
    {"nccl/rccl-topo_4p3l.xml", 20, 20, 60, 60, NULL},
    {"nccl/rccl-topo_16p1h.xml", 0, 20, 144, 120, NULL},
    {"nccl/rccl-topo_8p_pcie.xml", 12, 12, 12, 10, NULL},
    {"nccl/rccl-topo_8p_pcie_2nic.xml", 12, 12, 12, 10, NULL},
    {"nccl/rccl-topo_8p_rome_pcie.xml", 16, 16, 16, 15, NULL},
    {"nccl/rccl-topo_3p_pcie.xml", 16, 16, 16, 15, NULL},
};
#define KNOWN ((int)(sizeof known / sizeof known[0]))

/* Files that describe no complete machine. */
static const char *const refused[][2] = {
    {"nccl/aws-g5.48xl-topo.xml", "no device in it"},
    {"nccl/aws-p5.48xl-topo-2023.xml", "no device in it"},
    {"nccl/azure-ncv4-graph.xml", "graph file"},
};

static bool is_refused(const char *file)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (strcmp(file, refused[i][0]) == 0)
            return true;
    }
    return false;
}

/* The greatest bandwidth of all orders that begin with device 0. */
static double brute(const struct rings *rings, int32_t *order, int32_t depth)
{
    int32_t count = rings->found.count;
    double most = 0;
    if (depth == count)
        return rings_order_gbs(rings, order);
    for (int32_t i = depth; i < count; i++) {
        int32_t swap = order[depth];
        order[depth] = order[i];
        order[i] = swap;
        double gbs = brute(rings, order, depth + 1);
        most = gbs > most ? gbs : most;
        order[i] = order[depth];
        order[depth] = swap;
    }
    return most;
}

static void check_known(const char *file, const struct rings *rings)
{
    const struct tess_rings *found = &rings->found;
    for (int k = 0; k < KNOWN; k++) {
        const struct known *row = &known[k];
        if (strcmp(row->file, file) != 0)
            continue;
        if (row->natural > 0)
            rings_near(found->natural.gbs, row->natural);
        rings_near(found->best_single.gbs, row->best);
        rings_near(found->bound_gbs, row->bound);
        assert_true(found->total_gbs >= row->nccl);
        if (row->order)
            rings_is_order(&found->best_single, row->order);
    }
}

/* rings_find holds: capacities, and natural <= best <= total <= bound. */
static void check_file(const char *path, const char *file)
{
    struct tess_topology *topology = NULL;
    if (tess_topology_read(path, TESS_TOPOLOGY_AUTO, NULL, &topology) != TESS_OK) {
        if (!is_refused(file))
            fail_msg("%s was not read", file);
        return;
    }
    assert_false(is_refused(file));
    double from_s = tess_clock_thread_s();
    struct rings rings = rings_find(topology, TESS_RINGS_MAX);
    double took_s = tess_clock_thread_s() - from_s;
    const struct tess_rings *found = &rings.found;
    print_message("%-45s %3d devices, natural %5.4g, best %5.4g, %2d rings %5.4g of %5.4g GB/s, "
                  "%.1f ms\n",
                  file, (int)found->count, found->natural.gbs, found->best_single.gbs,
                  (int)found->ring_count, found->total_gbs, found->bound_gbs, took_s * 1e3);
    if (found->count <= 16) {
        assert_true(took_s < MOST_S);
        assert_true(found->optimal);
        assert_true(found->total_gbs >= 0.95 * found->bound_gbs);
    }
    if (found->count > 1 && found->count <= 9) {
        int32_t order[9];
        for (int32_t i = 0; i < found->count; i++)
            order[i] = i;
        rings_near(found->best_single.gbs, brute(&rings, order, 1));
    }
    check_known(file, &rings);
    rings_drop(&rings);
}

static void check_folder(const char *folder)
{
    if (look_each_real(folder, check_file) == 0)
        skip();
}

static void case_smi(void **state)
{
    (void)state;
    check_folder("smi");
}

static void case_nccl(void **state)
{
    (void)state;
    check_folder("nccl");
}

static void case_hwloc(void **state)
{
    (void)state;
    static const char empty[] = "<topology version=\"2.0\"/>";
    struct tess_topology *topology = tess_topology_new();
    enum tess_status status =
        tess_topology_read_hwloc("f.xml", empty, sizeof empty - 1, NULL, topology);
    tess_topology_free(topology);
    if (status == TESS_ERR_UNSUPPORTED)
        skip(); /* built without hwloc */
    check_folder("hwloc");
}

static double gbs_of(const struct rings *rings, const char *order)
{
    int32_t device[16];
    for (int i = 0; order[2 * i]; i++) {
        device[i] = order[2 * i] - '0';
        if (!order[2 * i + 1])
            break;
    }
    return rings_order_gbs(rings, device);
}

static struct rings find_real(const char *file)
{
    size_t bytes;
    char *text = look_real(file, &bytes);
    if (!text)
        skip();
    struct tess_topology *topology = tess_topology_new();
    assert_int_equal(tess_topology_guess(text, bytes) == TESS_TOPOLOGY_SMI
                         ? tess_topology_read_smi(file, text, bytes, NULL, topology)
                         : tess_topology_read_nccl(file, text, bytes, NULL, topology),
                     TESS_OK);
    free(text);
    return rings_find(topology, TESS_RINGS_MAX);
}

/* Orders that are known to be bad, and others that are as good as the best. */
static void case_orders(void **state)
{
    (void)state;
    struct rings rings = find_real("smi/pcie-x8-pix4+4-2nic-socket0.txt");
    rings_near(gbs_of(&rings, "0-4-1-5-2-6-3-7"), 2.5);
    rings_drop(&rings);
    rings = find_real("smi/pcie-x8-pix5+3-asym-before.txt");
    rings_near(gbs_of(&rings, "0-5-1-6-2-7-3-4"), 10 / 3.0);
    rings_drop(&rings);
    rings = find_real("nccl/rccl-topo_8p_rome.xml");
    rings_near(gbs_of(&rings, "0-1-2-4-6-7-5-3"), 20);
    rings_drop(&rings);
    /* The cycle of the pairs with two links, and its other direction: 2 of 5040. */
    rings = find_real("smi/v100x8-dgx1-4nic-msccltools.txt");
    rings_near(gbs_of(&rings, "0-4-7-6-5-1-2-3"), 40);
    rings_near(gbs_of(&rings, "0-1-3-7-5-4-6-2"), 20);
    rings_drop(&rings);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_smi),
        cmocka_unit_test(case_nccl),
        cmocka_unit_test(case_hwloc),
        cmocka_unit_test(case_orders),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
