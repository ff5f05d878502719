/* The text and the JSON of rocm-smi --showtopo: matrices in the shape that ROCm 5 to 7 print, and
 * what is refused. */
#include "look.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CLOSE(a, b) assert_true((a) > (b)-1e-6 && (a) < (b) + 1e-6)

/* The form is that of logs of four MI300A (ROCm 7.1) and of MI100 (4.2) in public repositories and
 * issue 1503 of ROCm's. Four GPUs, two and two joined directly; from 1 to 2 there is xGMI, but over
 * another GPU. */
static const char four[] =
    "============================ ROCm System Management Interface ============================\n"
    "================================ Weight between two GPUs =================================\n"
    "       GPU0         GPU1         GPU2         GPU3         \n"
    "GPU0   0            15           40           40           \n"
    "GPU1   15           0            30           40           \n"
    "GPU2   40           30           0            15           \n"
    "GPU3   40           40           15           0            \n"
    "\n"
    "================================= Hops between two GPUs ==================================\n"
    "       GPU0         GPU1         GPU2         GPU3         \n"
    "GPU0   0            1            2            2            \n"
    "GPU1   1            0            2            2            \n"
    "GPU2   2            2            0            1            \n"
    "GPU3   2            2            1            0            \n"
    "\n"
    "=============================== Link Type between two GPUs ===============================\n"
    "       GPU0         GPU1         GPU2         GPU3         \n"
    "GPU0   0            XGMI         PCIE         PCIE         \n"
    "GPU1   XGMI         0            XGMI         PCIE         \n"
    "GPU2   PCIE         XGMI         0            XGMI         \n"
    "GPU3   PCIE         PCIE         XGMI         0            \n"
    "\n"
    "======================================= Numa Nodes =======================================\n"
    "GPU[0]\t\t: (Topology) Numa Node: 0\n"
    "GPU[0]\t\t: (Topology) Numa Affinity: 0\n"
    "GPU[1]\t\t: (Topology) Numa Node: 0\n"
    "GPU 2          : (Topology) Numa Node: 1\n" /* as before ROCm 5.6 */
    "GPU[3]\t\t: (Topology) Numa Node: 1\n";

#define BANDWIDTH                                                                                  \
    "========================== Bandwidth between two GPUs ===========================\n"          \
    "       GPU0          GPU1          GPU2          GPU3          \n"                            \
    "GPU0   N/A           50000-200000  N/A           N/A           \n"                            \
    "GPU1   50000-200000  N/A           50000-50000   N/A           \n"                            \
    "GPU2   N/A           50000-50000   N/A           50000-100000  \n"                            \
    "GPU3   N/A           N/A           50000-100000  N/A           \n"

static struct tess_topology *read_text(const char *name, const char *text)
{
    struct tess_topology *topology =
        look_read(tess_topology_read_rocm, name, text, strlen(text), NULL);
    assert_non_null(topology);
    return topology;
}

static void case_four(void **state)
{
    (void)state;
    struct tess_topology *topology = read_text("box.txt", four);
    struct look_counts counts = look_count(topology);
    assert_int_equal(counts.devices, 4);
    assert_int_equal(counts.cpus, 2);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 24); /* as little as there is, and it is said */
    assert_true(topology->remarks & TESS_REMARK_GFX);
    CLOSE(look_gbs(topology, "gpu1", "gpu2"), 0);
    CLOSE(look_gbs(topology, "gpu2", "gpu3"), 24);
    CLOSE(look_gbs(topology, "gpu3", "numa1"), 24);
    CLOSE(look_gbs(topology, "numa0", "numa1"), 16);
    tess_topology_free(topology);
}

/* By the file's name, or the product in the text; links side by side by their bandwidth. */
static void case_generation(void **state)
{
    (void)state;
    char text[8192];
    struct tess_topology *topology = read_text("node/mi300x.txt", four);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 48);
    CLOSE(look_gbs(topology, "gpu3", "numa1"), 48);
    assert_false(topology->remarks & TESS_REMARK_GFX);
    tess_topology_free(topology);
    snprintf(text, sizeof(text), "%s%sGPU[0]\t\t: Card Series: \t\tAMD INSTINCT MI250 (MCM)\n",
             four, BANDWIDTH);
    topology = read_text("box.txt", text);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 4 * 36);
    CLOSE(look_gbs(topology, "gpu2", "gpu3"), 2 * 36);
    tess_topology_free(topology);
}

#define ACCESS(a, b)                                                                               \
    "===================== Link accessibility between two GPUs ======================\n"           \
    "       GPU0         GPU1         GPU2         GPU3         \n"                                \
    "GPU0   True         " a "         True         True         \n"                               \
    "GPU1   " a "         True         True         True         \n"                               \
    "GPU2   True         True         True         " b "         \n"                               \
    "GPU3   True         True         " b "         True         \n"

/* --showtopoaccess, whose title begins as that of the types; and 0-0 MB/s, which is no link. */
static void case_access(void **state)
{
    (void)state;
    char text[8192];
    snprintf(text, sizeof(text), "%s%s", four, ACCESS("False", "True"));
    struct tess_topology *topology = read_text("mi250.txt", text);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 0);
    CLOSE(look_gbs(topology, "gpu2", "gpu3"), 36);
    assert_false(topology->node[look_node(topology, "gpu0")].staged); /* reaches gpu2 */
    tess_topology_free(topology);
    static const char two[] = "=== Link Type between two GPUs ===\n"
                              "GPU0 GPU1\nGPU0 0 XGMI\nGPU1 XGMI 0\n";
    snprintf(text, sizeof(text), "%s=== Link accessibility\nGPU0 GPU1\nGPU0 True False\n%s", two,
             "GPU1 False True\n");
    topology = read_text("mi250.txt", text);
    assert_true(topology->node[look_node(topology, "gpu0")].staged);
    tess_topology_free(topology);
    snprintf(text, sizeof(text), "%s=== Bandwidth\nGPU0 GPU1\nGPU0 N/A 0-0\nGPU1 0-0 N/A\n", two);
    topology = read_text("mi250.txt", text);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 0);
    tess_topology_free(topology);
}

#define PAIR(word, a, b, value)                                                                    \
    "\"(Topology) " word " between DRM devices " #a " and " #b "\": \"" value "\", "
#define NODE(card, node) "\"card" #card "\": {\"(Topology) Numa Node\": \"" #node "\"}"

/* `four` with --json: in one line, pairs once. */
static const char four_json[] =
    "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n"
    "\n"
    "{\"system\": {" PAIR("Weight", 0, 1, "15") PAIR("Hops", 0, 1, "1") PAIR("Hops", 0, 2, "2")
        PAIR("Hops", 0, 3, "2") PAIR("Hops", 1, 2, "2") PAIR("Hops", 1, 3, "2")
            PAIR("Hops", 2, 3, "1") PAIR("Link type", 0, 1, "XGMI") PAIR("Link type", 0, 2, "PCIE")
                PAIR("Link type", 0, 3, "PCIE") PAIR("Link type", 1, 2, "XGMI")
                    PAIR("Link type", 1, 3, "PCIE")
                        PAIR("Link type", 2, 3, "XGMI") "\"Driver version\": \"6.7\"}, " NODE(
                            0, 0) ", " NODE(1, 0) ", " NODE(2, 1) ", " NODE(3, 1) "}\n";

static void case_json(void **state)
{
    (void)state;
    assert_int_equal(tess_topology_guess(four_json, strlen(four_json)), TESS_TOPOLOGY_ROCM);
    struct tess_topology *topology = read_text("mi300x.json", four_json);
    struct look_counts counts = look_count(topology);
    assert_int_equal(counts.devices, 4);
    assert_int_equal(counts.cpus, 2);
    CLOSE(look_gbs(topology, "gpu0", "gpu1"), 48);
    CLOSE(look_gbs(topology, "gpu1", "gpu2"), 0);
    CLOSE(look_gbs(topology, "gpu3", "numa1"), 48);
    tess_topology_free(topology);
}

static void case_json_refused(void **state)
{
    (void)state;
    tess_topology_reader *read = tess_topology_read_rocm;
    static const char *const bad[][2] = {
        {"{", "f: in the JSON of rocm-smi, line 1"},
        {"{}", "f: no key that begins with (Topology)"},
        {"{\"system\": 3, \"card0\": []}", "f: no key that begins"},
        {"{\"system\": {" PAIR("Link type", 0, 1, "NV18") "\"a\": 1}}", "XGMI, PCIE, N/A or 0"},
        {"{\"system\": {" PAIR("Hops", 0, 1, "x") "\"a\": 1}}", "a number of hops"},
        {"{\"system\": {" PAIR("Hops", 0, 1, "1") "\"a\": 1}}", "Link type between DRM devices 0"},
        {"{\"system\": {" PAIR("Link type", 0, 1, "XGMI") "\"a\": 1}, " NODE(7, 1) "}",
         "devices 0 and 7"},
        {"{\"system\": {\"a\": 1, \"a\": 2}}", "duplicate"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        look_refused(read, "f", bad[i][0], NULL, bad[i][1]);
    char *many = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&many, &bytes);
    fprintf(out, "{");
    for (int i = 0; i < 300; i++)
        fprintf(out, "\"card%d\": {\"(Topology) Numa Node\": \"0\"}, ", i);
    fprintf(out, "\"system\": {}}");
    fclose(out);
    look_refused(read, "f", many, NULL, "more than 256 columns");
    free(many);
}

static void case_json_hostile(void **state)
{
    (void)state;
    static const char *const piece[] = {"0",  "9999",  " and ",       "\"card0\"", "XGMI", "{",
                                        "}",  "\"",    "(Topology) ", "[",         ":",    "Hops",
                                        "-1", "false", "1e400",       "\\u0000",   ",",    "\xff"};
    look_hostile(tess_topology_read_rocm, four_json, piece, sizeof(piece) / sizeof(piece[0]), 500);
}

static void case_refused(void **state)
{
    (void)state;
    tess_topology_reader *read = tess_topology_read_rocm;
    static const char title[] = "=== Link Type between two GPUs ===\n";
    char text[256];
    look_refused(read, "f", "", NULL, "f: no whole matrix");
    look_refused(read, "f", title, NULL, "f:1: no whole matrix");
    static const char *const bad[][2] = {
        {"GPU0 GPU1\nGPU0 0 XGMI\n", "f:3: no whole matrix"},
        {"GPU0 GPU1\nGPU0 0 NV1\n", "f:3: 'NV1' in row GPU0, column GPU1: XGMI"},
        {"GPU0 GPU1\nGPU0 0\n", "f:3: row GPU0 ends after 1"},
        {"GPU0 GPU1\nGPU1 XGMI 0\n", "f:3: row GPU1: rows in the order"},
        {"GPU0 GPU0\n", "f:2: two columns"},
        {"GPU0 nic\n", "f:2: column 'nic'"},
        {"GPU0 GPU1\nGPU0 0 XGMI\nGPU1 PCIE 0\n", "the same both ways"},
        {"GPU0 GPU1\nGPU0 0 XGMI\nGPU1 XGMI 0\n=== Hops between\nGPU0 GPU2\n", "f:6: column GPU2"},
        {"GPU0 GPU1\nGPU0 0 XGMI\nGPU1 XGMI 0\n== Hops\nGPU0 GPU1\nGPU0 x 0\n", "a number of hops"},
        {"GPU0 GPU1\nGPU0 0 XGMI\nGPU1 XGMI 0\n== Link accessibility\nGPU0 GPU1\nGPU0 XGMI 0\n",
         "True, False"},
        {"GPU0 GPU1\nGPU0 0 XGMI\nGPU1 XGMI 0\n== Bandwidth\nGPU0 GPU1\nGPU0 a-b 0\n", "MB/s"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(text, sizeof(text), "%s%s", title, bad[i][0]);
        look_refused(read, "f", text, NULL, bad[i][1]);
    }
}

static void case_hostile(void **state)
{
    (void)state;
    static const char *const piece[] = {"GPU0", "GPU[3]", "GPU9999",        "XGMI", "PCIE",  "N/A",
                                        "=",    "Hops",   "Link",           "Numa", "Node:", "\n",
                                        " ",    "0",      "50000-99999999", "\xff"};
    look_hostile(tess_topology_read_rocm, four, piece, sizeof(piece) / sizeof(piece[0]), 500);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_four),         cmocka_unit_test(case_generation),
        cmocka_unit_test(case_refused),      cmocka_unit_test(case_hostile),
        cmocka_unit_test(case_access),       cmocka_unit_test(case_json),
        cmocka_unit_test(case_json_refused), cmocka_unit_test(case_json_hostile),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
