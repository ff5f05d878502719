/*
 * The text of nvidia-smi topo -m: fixtures in the shapes that drivers print, the links that the
 * words stand for, and what is refused.
 */
#include "look.h"
#include "topology/machine/remark.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CLOSE(a, b) assert_true((a) > (b)-1e-6 && (a) < (b) + 1e-6)

static struct tess_topology *read_text(const char *name, const char *text)
{
    struct tess_topology *topology =
        look_read(tess_topology_read_smi, name, text, strlen(text), NULL);
    assert_non_null(topology);
    return topology;
}

/* Two pairs of bridged GPUs, each pair with a switch of its own and one NIC. */
static const char bridged[] =
    "$ nvidia-smi topo -m\n"
    "\t\033[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m\r\n"
    "GPU0\t X \tNV12\tSYS\tSYS\tSYS\t0-15\t0\t\tN/A\r\n"
    "GPU1\tNV12\t X \tSYS\tSYS\tSYS\t0-15\t0\t\tN/A\r\n"
    "GPU2\tSYS\tSYS\t X \tNV12\tPIX\t16-31\t1\t\tN/A\r\n"
    "GPU3\tSYS\tSYS\tNV12\t X \tPIX\t16-31\t1\t\tN/A\r\n"
    "NIC0\tSYS\tSYS\tPIX\tPIX\t X \t\t\t\r\n"
    "\n"
    "Legend:\n\n"
    "  X    = Self\n"
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect\n"
    "  NV#  = Connection traversing a bonded set of # NVLinks\n\n"
    "NIC Legend:\n\n"
    "  NIC0: mlx5_2\n";

static void case_bridged(void **state)
{
    (void)state;
    struct tess_topology *topology = read_text("a100.txt", bridged);
    struct look_counts counts = look_count(topology);
    assert_int_equal(counts.devices, 4);
    assert_int_equal(counts.cpus, 2);
    assert_int_equal(counts.nics, 1);
    assert_int_equal(counts.pci, 1);
    assert_int_equal(counts.nvswitches, 0);
    assert_int_equal(topology->host_count, 1);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 12 * 20.0);
    CLOSE(look_gbs(topology, "gpu2", "gpu3"), 12 * 20.0);
    CLOSE(look_gbs(topology, "gpu0", "gpu2"), 0);
    /* The NIC's row shows that GPU2 and GPU3 share a switch; of GPU0 and GPU1 nothing is known. */
    CLOSE(look_gbs(topology, "gpu0", "numa0"), 24);
    CLOSE(look_gbs(topology, "gpu2", "switch0"), 24);
    CLOSE(look_gbs(topology, "gpu3", "switch0"), 24);
    CLOSE(look_gbs(topology, "mlx5_2", "switch0"), 24);
    CLOSE(look_gbs(topology, "switch0", "numa1"), 24);
    CLOSE(look_gbs(topology, "numa0", "numa1"), 10);
    assert_int_equal(topology->node[look_node(topology, "gpu3")].sm, 80);
    tess_topology_free(topology);
}

static void case_options(void **state)
{
    (void)state;
    struct tess_topology_options options = {.sm = 90, .pci_gen = 5};
    struct tess_topology *topology =
        look_read(tess_topology_read_smi, "a100.txt", bridged, sizeof(bridged) - 1, &options);
    assert_non_null(topology);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 12 * 20.6);
    CLOSE(look_gbs(topology, "gpu0", "numa0"), 48);
    CLOSE(look_gbs(topology, "numa0", "numa1"), 22);
    tess_topology_free(topology);
}

/* The file's name, or the list of GPUs that stands before the matrix. */
static void case_model(void **state)
{
    (void)state;
    static const char matrix[] = "GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-0)\n"
                                 "     GPU0 GPU1 CPU Affinity\n"
                                 "GPU0  X   NV2 0-19\n"
                                 "GPU1 NV2   X  0-19\n";
    struct tess_topology *topology = read_text("box.txt", matrix);
    assert_int_equal(topology->node[topology->device[0]].sm, 70);
    CLOSE(look_gbs(topology, "gpu0", "numa0"), 12);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 40);
    tess_topology_free(topology);
    topology = read_text("some/h100x2.txt", strchr(matrix, '\n') + 1);
    assert_int_equal(topology->node[topology->device[0]].sm, 90);
    tess_topology_free(topology);
    topology = read_text("h100x2/box.txt", strchr(matrix, '\n') + 1);
    assert_int_equal(topology->node[topology->device[0]].sm, 80);
    tess_topology_free(topology);
}

/* All to all: by a switch where no GPU has so many links, direct where it has. */
static void case_all_to_all(void **state)
{
    (void)state;
    struct tess_topology *topology = read_text("h100.txt", "GPU0 GPU1 GPU2\n"
                                                           "GPU0 X NV18 NV18\n"
                                                           "GPU1 NV18 X NV18\n"
                                                           "GPU2 NV18 NV18 X\n");
    assert_int_equal(look_count(topology).nvswitches, 1);
    CLOSE(look_gbs(topology, "gpu1", "nvswitch0"), 18 * 20.6);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 0);
    tess_topology_free(topology);
    topology = read_text("a100.txt", "GPU0 GPU1 GPU2 GPU3\n"
                                     "GPU0 X NV4 NV4 NV4\n"
                                     "GPU1 NV4 X NV4 NV4\n"
                                     "GPU2 NV4 NV4 X NV4\n"
                                     "GPU3 NV4 NV4 NV4 X\n");
    assert_int_equal(look_count(topology).nvswitches, 0);
    assert_int_equal(look_count(topology).cpus, 1);
    CLOSE(look_gbs(topology, "gpu0", "gpu3"), 80);
    tess_topology_free(topology);
}

/* Nothing but words: NUMA nodes from SYS, an upper switch from PXB. */
static void case_words_alone(void **state)
{
    (void)state;
    struct tess_topology *topology = read_text("words.txt", "     GPU0 GPU1 GPU2 GPU3 GPU4 GPU5\n"
                                                            "GPU0  X   PIX  PXB  NODE SYS  SOC\n"
                                                            "GPU1 PIX   X   PXB  NODE SYS  SYS\n"
                                                            "GPU2 PXB  PXB   X   PHB  SYS  SYS\n"
                                                            "GPU3 NODE NODE PHB   X   SYS  SYS\n"
                                                            "GPU4 SYS  SYS  SYS  SYS   X   NV1\n"
                                                            "GPU5 SYS  SYS  SYS  SYS  NV1   X\n");
    struct look_counts counts = look_count(topology);
    assert_int_equal(counts.cpus, 2);
    assert_int_equal(counts.pci, 3); /* of 0 and 1, of 2, and the one above */
    CLOSE(look_gbs(topology, "gpu0", "switch0"), 24);
    CLOSE(look_gbs(topology, "gpu2", "switch1"), 24);
    CLOSE(look_gbs(topology, "switch0", "upper0"), 24);
    CLOSE(look_gbs(topology, "switch1", "upper0"), 24);
    CLOSE(look_gbs(topology, "upper0", "numa0"), 24);
    CLOSE(look_gbs(topology, "gpu3", "numa0"), 24);
    CLOSE(look_gbs(topology, "gpu4", "numa1"), 24);
    CLOSE(look_gbs(topology, "gpu5", "numa1"), 24);
    tess_topology_free(topology);
}

static void case_refused(void **state)
{
    (void)state;
    tess_topology_reader *read = tess_topology_read_smi;
    look_refused(read, "f.txt", "", NULL, "f.txt: no matrix");
    look_refused(read, "f.txt", "hello\nworld\n", NULL, "f.txt:2: no matrix");
    look_refused(read, "f.txt", "GPU0 GPU1\nGPU0 X SYS\n", NULL, "f.txt:2: the text ends");
    look_refused(read, "f.txt", "GPU0 GPU1\nGPU0 X\n", NULL, "f.txt:2: row GPU0 ends after 1");
    look_refused(read, "f.txt", "GPU0 GPU1\nGPU0 X FOO\n", NULL,
                 "f.txt:2: 'FOO' in row GPU0, column GPU1");
    look_refused(read, "f.txt", "GPU0 GPU1\nGPU0 X OK\n", NULL, "topo -p2p");
    look_refused(read, "f.txt", "GPU0 GPU1\nGPU0 X X\n", NULL, "X belongs");
    look_refused(read, "f.txt", "GPU0 GPU1\nGPU0 NV1 SYS\n", NULL, "X belongs");
    look_refused(read, "f.txt", "GPU0 GPU1\nGPU0 X NV0\n", NULL, "'NV0'");
    look_refused(read, "f.txt", "GPU0 GPU1\nGPU0 X NV1\nGPU1 NV2 X\n", NULL,
                 "f.txt:3: 'NV2' from GPU1 to GPU0, but another word from GPU0 to GPU1 in line 2");
    look_refused(read, "f.txt", "GPU0 GPU1\nGPU0 X SYS\nGPU1 PIX X\n", NULL,
                 "f.txt:3: 'PIX' from GPU1 to GPU0, but another word");
    look_refused(read, "f.txt", "GPU0 GPU1 GPU2\nGPU0 X NV2 NV1\nGPU1 NV1 X NV1\nGPU2 NV1 NV1 X\n",
                 NULL, "f.txt:3: 'NV1' from GPU1 to GPU0, but another");
    look_refused(read, "f.txt", "GPU0 GPU1\nGPU0 X SYS\nGPU0 X SYS\n", NULL, "f.txt:3: a second");
    look_refused(read, "f.txt", "GPU0 GPU0\n", NULL, "f.txt:1: two columns");
    look_refused(read, "f.txt", "GPU0 GPU1\nGPU0 X SYS\nGPU2 X SYS\n", NULL,
                 "f.txt:3: row GPU2 has no column");
    look_refused(read, "f.txt", "GPU0 nic\nGPU0 X NV2\n", NULL, "only GPUs have NVLinks");
    look_refused(read, "f.txt", "GPU0 n\033{ic\n", NULL, "is no name");
    look_refused(read, "f.txt", "GPU0 CPU Affinity GPU1\nGPU0 X 0\n", NULL, "'GPU1'");
    look_refused(read, "f.txt", "GPU0\nGPU0 X\nGPU0\nGPU0 X\n", NULL, "f.txt:3: a second matrix");
}

/* A name that a 0 ends early. */
static void case_zero(void **state)
{
    (void)state;
    static const char text[] = "GPU0 n\0c\nGPU0 X SYS\n";
    assert_null(look_read(tess_topology_read_smi, "f.txt", text, sizeof(text) - 1, NULL));
}

static void case_many_columns(void **state)
{
    (void)state;
    char text[8192];
    size_t used = 0;
    for (int i = 0; i < 300; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "GPU%d ", i);
    look_refused(tess_topology_read_smi, "f.txt", text, NULL, "more than 256 columns");
}

static void case_hostile(void **state)
{
    (void)state;
    static const char *const piece[] = {"GPU0", "GPU7", "NV99", "NV255", "SYS",  "PIX",
                                        "PXB",  " ",    "\n",   "\033[", "\033", "\t",
                                        "X",    "NIC0", ": ",   "9999",  "N/A",  "CPU Affinity",
                                        "\xff", "-1"};
    look_hostile(tess_topology_read_smi, bridged, piece, sizeof(piece) / sizeof(piece[0]), 3000);
}

/* The matrix of a DGX-1V with four network cards, written from its description. */
static void case_cube_mesh(void **state)
{
    (void)state;
    static const char text[] =
        "     GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7 mlx5_0 mlx5_1 mlx5_2 mlx5_3\n"
        "GPU0 X    NV1  NV1  NV2  NV2  SYS  SYS  SYS  PIX    PHB    SYS    SYS\n"
        "GPU1 NV1  X    NV2  NV1  SYS  NV2  SYS  SYS  PIX    PHB    SYS    SYS\n"
        "GPU2 NV1  NV2  X    NV2  SYS  SYS  NV1  SYS  PHB    PIX    SYS    SYS\n"
        "GPU3 NV2  NV1  NV2  X    SYS  SYS  SYS  NV1  PHB    PIX    SYS    SYS\n"
        "GPU4 NV2  SYS  SYS  SYS  X    NV1  NV1  NV2  SYS    SYS    PIX    PHB\n"
        "GPU5 SYS  NV2  SYS  SYS  NV1  X    NV2  NV1  SYS    SYS    PIX    PHB\n"
        "GPU6 SYS  SYS  NV1  SYS  NV1  NV2  X    NV2  SYS    SYS    PHB    PIX\n"
        "GPU7 SYS  SYS  SYS  NV1  NV2  NV1  NV2  X    SYS    SYS    PHB    PIX\n"
        "mlx5_0 PIX PIX PHB  PHB  SYS  SYS  SYS  SYS  X      PHB    SYS    SYS\n"
        "mlx5_1 PHB PHB PIX  PIX  SYS  SYS  SYS  SYS  PHB    X      SYS    SYS\n"
        "mlx5_2 SYS SYS SYS  SYS  PIX  PIX  PHB  PHB  SYS    SYS    X      PHB\n"
        "mlx5_3 SYS SYS SYS  SYS  PHB  PHB  PIX  PIX  SYS    SYS    PHB    X\n";
    struct tess_topology *topology =
        look_read(tess_topology_read_smi, "v100.txt", text, sizeof(text) - 1, NULL);
    assert_non_null(topology);
    assert_int_equal(look_count(topology).pci, 4);
    assert_int_equal(look_count(topology).nics, 4);
    assert_string_equal(look_beside(topology, "gpu0", TESS_NODE_PCI),
                        look_beside(topology, "gpu1", TESS_NODE_PCI));
    assert_string_equal(look_beside(topology, "mlx5_0", TESS_NODE_PCI),
                        look_beside(topology, "gpu1", TESS_NODE_PCI));
    CLOSE(look_gbs(topology, "gpu0", "gpu3"), 40);
    CLOSE(look_gbs(topology, "gpu3", "gpu7"), 20);
    CLOSE(look_gbs(topology, "numa0", "numa1"), 6);
    CLOSE(look_gbs(topology, "gpu6", look_beside(topology, "gpu6", TESS_NODE_PCI)), 12);
    tess_topology_free(topology);
}

/* ---- dead links ----------------------------------------------------------------------------- */

/* Eight GPUs of 18 links, but for what `links` says of a pair. */
static struct tess_topology *read_eight(int (*links)(int a, int b))
{
    char text[2048] = "    ";
    for (int i = 0; i < 8; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "GPU%d ", i);
    for (int i = 0; i < 8; i++) {
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "\nGPU%d ", i);
        for (int j = 0; j < 8; j++) {
            char cell[8] = "X";
            if (i != j && links(i, j) > 0)
                snprintf(cell, sizeof(cell), "NV%d", links(i, j));
            else if (i != j)
                snprintf(cell, sizeof(cell), "NODE");
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s ", cell);
        }
    }
    return read_text("h100x8.txt", strcat(text, "\n"));
}

static int one_gpu_lacks(int a, int b)
{
    return a == 3 || b == 3 ? 17 : 18;
}

static int one_row_lacks(int a, int b)
{
    (void)b;
    return a == 3 ? 17 : 18;
}

static int one_pair_lacks(int a, int b)
{
    return a + b == 1 ? 17 : 18;
}

static int one_gpu_without(int a, int b)
{
    return a == 5 || b == 5 ? 0 : 18;
}

static int all_lack(int a, int b)
{
    (void)a;
    (void)b;
    return 17;
}

static int all_have_fewer(int a, int b)
{
    (void)a;
    (void)b;
    return 8; /* an H800 */
}

/* The devices that are named, "3:17/18 ", after a fast ring's rate. */
static void assert_dead(int (*links)(int a, int b), const char *expected)
{
    struct tess_topology *topology = read_eight(links);
    struct tess__nvlinks *has = tess__nvlinks_open(topology, false);
    char named[256] = "", text[TESS__REMARK_TEXT];
    int warnings = 0;
    assert_non_null(has);
    assert_int_equal(look_count(topology).nvswitches, 1);
    for (int32_t i = 0; i < topology->device_count; i++) {
        const struct tess__nvlinks *at = &has[topology->device[i]];
        if (tess__nvlinks_dead(at))
            snprintf(named + strlen(named), sizeof(named) - strlen(named), "%d:%d/%d ", (int)i,
                     (int)at->has, (int)at->of);
    }
    assert_string_equal(named, expected);
    for (; tess__remark_warning(topology, has, warnings, text); warnings++)
        assert_non_null(strstr(text, " of 18 NVLinks: "));
    assert_int_equal(warnings == 0, expected[0] == '\0');
    free(has);
    tess_topology_free(topology);
}

/* NV17 beside NV18 is an NVSwitch and a dead link, no mesh of 126 links a GPU. */
static void case_dead_links(void **state)
{
    (void)state;
    struct tess_topology *topology = read_eight(one_gpu_lacks);
    CLOSE(look_gbs(topology, "gpu3", "nvswitch0"), 17 * 20.6);
    CLOSE(look_gbs(topology, "gpu2", "nvswitch0"), 18 * 20.6);
    CLOSE(look_gbs(topology, "gpu2", "gpu3"), 0);
    tess_topology_free(topology);
    assert_dead(one_gpu_lacks, "3:17/18 ");
    assert_dead(one_row_lacks, "3:17/18 ");
    assert_dead(one_pair_lacks, "0:17/18 1:17/18 ");
    assert_dead(one_gpu_without, "5:0/18 ");
    assert_dead(all_lack, "0:17/18 1:17/18 2:17/18 3:17/18 4:17/18 5:17/18 6:17/18 7:17/18 ");
    assert_dead(all_have_fewer, "");
}

/* Without switches the fewer links count, with a warning. */
static void case_uneven(void **state)
{
    static const char *const text[] = {
        "     GPU0 GPU1 GPU2\nGPU0 X NV4 NV4\nGPU1 NV4 X NV4\nGPU2 NV2 NV2 X\n",
        "     GPU0 GPU1 GPU2\nGPU0 X NV4 NV2\nGPU1 NV4 X NV2\nGPU2 NV2 NV2 X\n"};
    char warning[TESS__REMARK_TEXT];
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct tess_topology *topology = read_text("f.txt", text[i]);
        struct tess__nvlinks *has = tess__nvlinks_open(topology, false);
        assert_non_null(has);
        CLOSE(look_gbs(topology, "gpu1", "gpu2"), look_gbs(topology, "gpu0", "gpu1") / 2);
        assert_int_equal(tess__remark_warning(topology, has, 0, warning), i == 0);
        if (i == 0)
            assert_non_null(strstr(warning, "different numbers of NVLinks: the smaller"));
        free(has);
        tess_topology_free(topology);
    }
}

/* ---- peer-to-peer --------------------------------------------------------------------------- */

#define TWO_PAIRS  "     GPU0 GPU1 GPU2\nGPU0 X PIX NV4\nGPU1 PIX X SYS\nGPU2 NV4 SYS X\n"
#define P2P(words) "\tGPU0\tGPU1\tGPU2\n" words "\nLegend:\n\n  X    = Self\n"

/* [device] has no peer-to-peer, as a string of digits. */
static void assert_staged(const char *name, const char *text, const char *expected)
{
    struct tess_topology *topology = read_text(name, text);
    char staged[8] = "";
    for (int32_t i = 0; i < topology->device_count; i++)
        staged[i] = (char)('0' + topology->node[topology->device[i]].staged);
    assert_string_equal(staged, expected);
    tess_topology_free(topology);
}

static void case_p2p(void **state)
{
    (void)state;
    static const char none[] = P2P(" GPU0\tX\tCNS\tOK\n GPU1\tCNS\tX\tCNS\n GPU2\tOK\tCNS\tX\n");
    static const char all[] = P2P("GPU0 X OK OK\nGPU1 OK X TNS\nGPU2 OK TNS X\n");
    char text[1024];
    snprintf(text, sizeof(text), "%s\n%s", TWO_PAIRS, none);
    assert_staged("box.txt", text, "111");
    snprintf(text, sizeof(text), "%s\n%s", none, TWO_PAIRS);
    assert_staged("box.txt", text, "111");
    snprintf(text, sizeof(text), "%s\n%s\n%s", TWO_PAIRS, none, all); /* OK somewhere */
    assert_staged("box.txt", text, "001");
    snprintf(text, sizeof(text), "%s\n%s", TWO_PAIRS, all);
    assert_staged("rtx4090x3.txt", text, "001"); /* the matrix counts, not the name */
    assert_staged("box.txt", TWO_PAIRS, "000");
    assert_staged("rtx4090x3.txt", TWO_PAIRS, "111");
    assert_staged("box.txt", "GPU 0: NVIDIA GeForce RTX 3080 (UUID: GPU-1)\n" TWO_PAIRS, "111");
    tess_topology_reader *read = tess_topology_read_smi;
    look_refused(read, "f", none, NULL, "names no links");
    look_refused(read, "f", TWO_PAIRS "GPU0 GPU1\nGPU0 X OK\nGPU1 OK\n", NULL,
                 "f:7: the row ends after 1 words");
    look_refused(read, "f", TWO_PAIRS "GPU0 GPU1\nGPU0 X OK\nGPU1 SYS X\n", NULL,
                 "f:7: 'SYS' from GPU1 to GPU0");
    look_refused(read, "f", TWO_PAIRS "GPU0 nic\nGPU0 X OK\n", NULL, "f:5: 'nic' in the heading");
}

static void case_p2p_hostile(void **state)
{
    (void)state;
    static const char text[] =
        TWO_PAIRS P2P("GPU0 X CNS OK\nGPU1 CNS X CNS\nGPU2 OK CNS X\n") TWO_PAIRS;
    static const char *const piece[] = {"GPU0", "GPU255", "GPU256", "OK", "CNS",
                                        "U",    "X",      "\n",     " ",  "NV4"};
    look_hostile(tess_topology_read_smi, text, piece, sizeof(piece) / sizeof(piece[0]), 1000);
}

/* nvidia-smi -q beside the matrix: bus ids, and the link that each GPU has in its slot. */
#define QUERY_HEAD "==============NVSMI LOG==============\n\nAttached GPUs    : 2\n"
#define QUERY_GPU(bus, generation, width)                                                          \
    "GPU 00000000:" bus "\n"                                                                       \
    "    Product Name                          : NVIDIA A100-PCIE-40GB\n"                          \
    "    GPU UUID                              : GPU-0\n"                                          \
    "    PCI\n"                                                                                    \
    "        Bus Id                            : 00000000:" bus "\n"                               \
    "        GPU Link Info\n"                                                                      \
    "            PCIe Generation\n"                                                                \
    "                Max                       : " generation "\n"                                 \
    "                Current                   : 1\n"                                              \
    "            Link Width\n"                                                                     \
    "                Max                       : " width "\n"                                      \
    "                Current                   : 4x\n"                                             \
    "        Bridge Chip\n"                                                                        \
    "            Type                          : N/A\n"                                            \
    "    Max Clocks\n"                                                                             \
    "        Graphics                          : 1410 MHz\n"
#define QUERY_MATRIX                                                                               \
    "     GPU0 GPU1 NIC0\nGPU0  X   PHB  PHB\nGPU1 PHB   X   PHB\nNIC0 PHB  PHB   X\n"

static void case_query(void **state)
{
    (void)state;
    static const char gpus[] =
        QUERY_HEAD QUERY_GPU("17:00.0", "3", "8x") QUERY_GPU("CA:00.0", "N/A", "16x");
    static const char *const texts[] = {
        QUERY_MATRIX QUERY_HEAD QUERY_GPU("17:00.0", "3", "8x") QUERY_GPU("CA:00.0", "4", "16x"),
        QUERY_HEAD QUERY_GPU("17:00.0", "3", "8x") QUERY_GPU("CA:00.0", "4", "16x") QUERY_MATRIX,
    };
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tess_topology_guess(texts[i], strlen(texts[i])), TESS_TOPOLOGY_SMI);
        struct tess_topology *topology = read_text("box.txt", texts[i]);
        CLOSE(look_gbs(topology, "gpu0", "numa0"), 60 * 8 / 80.0);
        CLOSE(look_gbs(topology, "gpu1", "numa0"), 24);
        CLOSE(look_gbs(topology, "NIC0", "numa0"), 24);
        assert_string_equal(topology->node[look_node(topology, "gpu0")].bus, "0000:17:00.0");
        assert_int_equal(tess_topology_find_bus(topology, 0, "0000:ca:00.0"),
                         look_node(topology, "gpu1"));
        assert_int_equal(topology->node[look_node(topology, "gpu0")].sm, 80);
        assert_int_equal(topology->remarks & (TESS_REMARK_PCI | TESS_REMARK_SM), 0);
        tess_topology_free(topology);
    }
    look_refused(tess_topology_read_smi, "box.txt", gpus, NULL,
                 "which alone says how GPUs are joined");
    look_refused(tess_topology_read_smi, "box.txt",
                 QUERY_MATRIX QUERY_HEAD QUERY_GPU("17:00.0", "3", "8x"), NULL,
                 "box.txt: 1 GPUs in the text of nvidia-smi -q, and 2 in the matrix");
    look_refused(tess_topology_read_smi, "box.txt", QUERY_MATRIX QUERY_GPU("17:00.0", "3", "0x"),
                 NULL, "box.txt:15: '0': a number of lanes, as in 16x was expected");
    look_refused(tess_topology_read_smi, "box.txt",
                 QUERY_MATRIX QUERY_GPU("17:00.0", "fast", "16x"), NULL,
                 "'fast': a generation of PCIe, as in 4 was expected");
    /* What is not known stays as it is assumed. */
    struct tess_topology *topology =
        read_text("box.txt", QUERY_MATRIX QUERY_GPU("17:00.0", "N/A", "N/A")
                                 QUERY_GPU("CA:00.0", "N/A", "N/A"));
    CLOSE(look_gbs(topology, "gpu0", "numa0"), 24);
    assert_true((topology->remarks & TESS_REMARK_PCI) != 0);
    tess_topology_free(topology);
}

static void case_query_hostile(void **state)
{
    (void)state;
    static const char *const piece[] = {
        "GPU 00000000:17:00.0\n", "GPU0",   "Max : ", "16x\n", "\n",
        "PCIe Generation\n",      "N/A",    " : ",    "5",     "GPU ",
        "Link Width\n",           "Bus Id", "PHB "};
    look_hostile(tess_topology_read_smi,
                 QUERY_MATRIX QUERY_HEAD QUERY_GPU("17:00.0", "3", "8x")
                     QUERY_GPU("CA:00.0", "4", "16x"),
                 piece, sizeof(piece) / sizeof(piece[0]), 1000);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_bridged),     cmocka_unit_test(case_options),
        cmocka_unit_test(case_model),       cmocka_unit_test(case_all_to_all),
        cmocka_unit_test(case_words_alone), cmocka_unit_test(case_refused),
        cmocka_unit_test(case_zero),        cmocka_unit_test(case_many_columns),
        cmocka_unit_test(case_hostile),     cmocka_unit_test(case_cube_mesh),
        cmocka_unit_test(case_dead_links),  cmocka_unit_test(case_uneven),
        cmocka_unit_test(case_p2p),         cmocka_unit_test(case_p2p_hostile),
        cmocka_unit_test(case_query),       cmocka_unit_test(case_query_hostile),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
