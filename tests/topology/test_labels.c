/* Nodes of Kubernetes by their labels: switches, NVLink domains and GPUs from kubectl's JSON and
 * YAML, and what is refused. */
#include "look.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CLOSE(a, b) assert_true((a) > (b)-1e-6 && (a) < (b) + 1e-6)

/* Two racks of an NVL72, two hosts of each, and a control plane. Labels as Topograph's engine k8s
 * (docs.nvidia.com/topograph) and NVIDIA's feature discovery write them. */
#define NODE(name, domain, leaf)                                                                   \
    "- apiVersion: v1\n"                                                                           \
    "  kind: Node\n"                                                                               \
    "  metadata:\n"                                                                                \
    "    labels:\n"                                                                                \
    "      kubernetes.io/hostname: " name "\n"                                                     \
    "      network.topology.nvidia.com/accelerator: " domain "\n"                                  \
    "      network.topology.nvidia.com/leaf: " leaf "\n"                                           \
    "      network.topology.nvidia.com/spine: s3\n"                                                \
    "      nvidia.com/gpu.count: \"4\"\n"                                                          \
    "      nvidia.com/gpu.product: NVIDIA-GB200\n"                                                 \
    "    name: " name "\n"

#define UUID "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.32766"

static const char racks[] = "apiVersion: v1\nitems:\n" NODE("n10", "nvl1", "s1")
    NODE("n9", "nvl1", "s1") NODE("n11", UUID, "s2")
        NODE("n12", UUID, "s2") "- kind: Node\n  metadata:\n    name: control\n    labels: {}\n"
                                "kind: List\n";

static const char json[] =
    "{\n  \"apiVersion\": \"v1\",\n  \"items\": [\n"
    "    {\"kind\": \"Node\", \"metadata\": {\"name\": \"a\", \"labels\": {\n"
    "      \"topology.k8s.aws/network-node-layer-1\": \"nn-1\",\n"
    "      \"topology.k8s.aws/network-node-layer-3\": \"nn-3\"}},\n"
    "     \"status\": {\"capacity\": {\"nvidia.com/gpu\": \"8\"}}},\n"
    "    {\"kind\": \"Node\", \"metadata\": {\"name\": \"b\", \"labels\": {\n"
    "      \"topology.kubernetes.io/zone\": \"z\"}},\n"
    "     \"status\": {\"capacity\": {\"amd.com/gpu\": \"2\"}}}\n"
    "  ],\n  \"kind\": \"List\"\n}\n";

static void case_racks(void **state)
{
    (void)state;
    struct tess_topology *topology =
        look_read(tess_topology_read_labels, "nodes.yaml", racks, strlen(racks), NULL);
    assert_non_null(topology);
    assert_int_equal(topology->host_count, 4); /* without the control plane */
    assert_int_equal(topology->device_count, 16);
    assert_int_equal(look_count(topology).nvswitches, 2);
    assert_int_equal(topology->node[topology->device[0]].sm, 100);
    assert_int_equal(topology->node[look_node(topology, "n9.0")].host, 0); /* 9 before 10 */
    CLOSE(look_gbs(topology, "n9.0", "nvlink.nvl1"), 18 * 40.1);
    CLOSE(look_gbs(topology, "n10.3", "nvlink.nvl1"), 18 * 40.1);
    /* Of a long name the end is kept, in which domains differ. */
    const char *domain = look_beside(topology, "n12.0", TESS_NODE_NVSWITCH);
    assert_non_null(strstr(domain, "e1e51be99c31.32766"));
    assert_string_equal(look_beside(topology, "n11.3", TESS_NODE_NVSWITCH), domain);
    CLOSE(look_gbs(topology, "n9", "leaf.s1"), 12.5);
    CLOSE(look_gbs(topology, "n12", "leaf.s2"), 12.5);
    CLOSE(look_gbs(topology, "leaf.s1", "spine.s3"), 12.5);
    CLOSE(look_gbs(topology, "spine.s3", "network"), 12.5);
    assert_true(topology->remarks & TESS_REMARK_NET);
    tess_topology_free(topology);
}

static void case_json(void **state)
{
    (void)state;
    const struct tess_topology_options options = {.edge_gbs = 50, .uplink_gbs = 25};
    struct tess_topology *topology =
        look_read(tess_topology_read_labels, "nodes.json", json, strlen(json), &options);
    assert_non_null(topology);
    assert_int_equal(topology->device_count, 10);
    CLOSE(look_gbs(topology, "a", "leaf.nn-3"), 50);
    CLOSE(look_gbs(topology, "leaf.nn-3", "core.nn-1"), 25); /* a level that is left out */
    CLOSE(look_gbs(topology, "b", "zone.z"), 50);
    CLOSE(look_gbs(topology, "zone.z", "network"), 25);
    assert_false(topology->remarks & TESS_REMARK_NET);
    tess_topology_free(topology);
    assert_int_equal(tess_topology_guess(json, strlen(json)), TESS_TOPOLOGY_LABELS);
    assert_int_equal(tess_topology_guess(racks, strlen(racks)), TESS_TOPOLOGY_LABELS);
}

static void case_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"", "f:1: no nodes"},
        {"items: []\n", "no nodes"},
        {"kind: Pod\nmetadata: {name: a}\n", "no nodes"},
        {"items:\n- metadata: {}\n", "f:2: a node without metadata.name"},
        {"items:\n- metadata: {name: a b}\n", "f:2: 'a b'"},
        {"items:\n- metadata: {name: a}\n- metadata: {name: a}\n", "f:3: node a is there twice"},
        {"items: [\n", "f:2: not YAML"},
        {"{\"items\": [{\"metadata\": {\"name\": \"\\u001bx\"}}]}\n", "f:1: '"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        look_refused(tess_topology_read_labels, "f", bad[i][0], NULL, bad[i][1]);
}

static void case_hostile(void **state)
{
    (void)state;
    static const char *const piece[] = {
        "name: ", "labels:", "metadata:", "{",     "}",    "[",
        "]",      "- ",      "\"",        "n9",    "*a",   "&a ",
        ":",      "\n",      "  ",        "99999", "\xff", "network.topology.nvidia.com/leaf: "};
    look_hostile(tess_topology_read_labels, json, piece, sizeof(piece) / sizeof(piece[0]), 500);
    look_hostile(tess_topology_read_labels, NODE("n", "d", "s"), piece,
                 sizeof(piece) / sizeof(piece[0]), 500);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_racks),
        cmocka_unit_test(case_json),
        cmocka_unit_test(case_refused),
        cmocka_unit_test(case_hostile),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
