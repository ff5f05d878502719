/*
 * Our own format: what is written is read again as the same topology, files by hand, and what is
 * refused, with its line.
 */
#include "look.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CLOSE(a, b) assert_true((a) > (b)-1e-6 && (a) < (b) + 1e-6)

static const char hand[] = "# two GPUs, each on a processor of its own\n"
                           "tessera-topology: 1\n"
                           "nodes:\n"
                           "  - {name: gpu0, kind: device, sm: 90, bus: \"0000:17:00.0\"}\n"
                           "  - {name: gpu1, kind: device, index: 1, sm: 90}\n"
                           "  - name: numa0\n"
                           "    kind: cpu\n"
                           "    maker: intel\n"
                           "    model: 143\n"
                           "  - {name: numa1, kind: cpu, index: 1, maker: intel, model: 143}\n"
                           "  - {name: leaf, kind: net}\n"
                           "links:\n"
                           "  - {between: [gpu0, numa0], kind: pci, gbs: 48}\n"
                           "  - {between: [gpu1, numa1], kind: pci, gbs: 48}\n"
                           "  - {from: gpu0, to: gpu1, kind: nvlink, gbs: 40.1, count: 2}\n"
                           "  - {between: [numa0, leaf], kind: net, gbs: 12.5, latency-us: 1.5}\n";

static struct tess_topology *read_text(const char *text)
{
    struct tess_topology *topology =
        look_read(tess_topology_read_yaml, "f.yaml", text, strlen(text), NULL);
    assert_non_null(topology);
    return topology;
}

static void case_hand(void **state)
{
    (void)state;
    struct tess_topology *topology = read_text(hand);
    assert_int_equal(topology->device_count, 2);
    assert_int_equal(topology->host_count, 1);
    assert_int_equal(topology->node[look_node(topology, "leaf")].host, -1);
    assert_int_equal(topology->node[look_node(topology, "numa0")].socket, -1);
    assert_string_equal(topology->node[topology->device[0]].bus, "0000:17:00.0");
    CLOSE(look_gbs(topology, "gpu0", "numa0"), 48);
    CLOSE(look_gbs(topology, "numa0", "numa1"), 22); /* left out: as the processors have it */
    int32_t one_way = 0;
    for (int32_t i = 0; i < topology->link_count; i++)
        one_way += topology->link[i].kind == TESS_LINK_NVLINK;
    assert_int_equal(one_way, 1);
    tess_topology_free(topology);
}

static void case_machine(void **state)
{
    (void)state;
    struct tess_topology *topology =
        read_text("machine: node:2 numa:2 gpu:2 nvlink:pairs:4 sm:80\ntessera-topology: 1\n");
    assert_int_equal(topology->device_count, 8);
    CLOSE(look_gbs(topology, "n1.gpu2", "n1.gpu3"), 80);
    tess_topology_free(topology);
}

static bool same_link(const struct tess_topo_link *a, const struct tess_topo_link *b)
{
    return a->kind == b->kind && a->from == b->from && a->to == b->to && a->count == b->count &&
           memcmp(&a->gbs, &b->gbs, sizeof(a->gbs)) == 0 &&
           memcmp(&a->latency_us, &b->latency_us, sizeof(a->latency_us)) == 0;
}

static void check_round_trip(const struct tess_topology *topology)
{
    char *text = NULL, *again = NULL;
    assert_int_equal(tess_topology_write_yaml(topology, &text), TESS_OK);
    struct tess_topology *copy = read_text(text);
    assert_int_equal(copy->node_count, topology->node_count);
    assert_int_equal(copy->link_count, topology->link_count);
    assert_int_equal(copy->device_count, topology->device_count);
    assert_int_equal(copy->host_count, topology->host_count);
    for (int32_t i = 0; i < topology->node_count; i++) {
        const struct tess_node *a = &topology->node[i], *b = &copy->node[i];
        assert_string_equal(a->name, b->name);
        assert_string_equal(a->bus, b->bus);
        assert_true(a->kind == b->kind && a->host == b->host && a->index == b->index &&
                    a->socket == b->socket && a->sm == b->sm && a->maker == b->maker &&
                    a->model == b->model);
    }
    for (int32_t i = 0; i < topology->device_count; i++)
        assert_int_equal(copy->device[i], topology->device[i]);
    for (int32_t i = 0; i < topology->link_count; i++) {
        int32_t found = 0;
        for (int32_t j = 0; j < copy->link_count; j++)
            found += same_link(&topology->link[i], &copy->link[j]);
        assert_int_equal(found, 1);
    }
    /* Written once more it is the same text. */
    assert_int_equal(tess_topology_write_yaml(copy, &again), TESS_OK);
    assert_string_equal(again, text);
    tess_topology_free(copy);
    free(text);
    free(again);
}

static void case_round_trip(void **state)
{
    (void)state;
    static const char *const words[] = {
        "rank:1",
        "rack:2 node:2 rank:2 edge:0.125 uplink:0.0123456789",
        "numa:2 switch:2 gpu:2 nvlink:cube sm:70 nic:1",
        "node:3 socket:2 numa:2 gpu:2 nvlink:switch sm:90 cpu:amd",
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct tess_topology *topology = NULL;
        assert_int_equal(tess_topology_synthetic(words[i], NULL, &topology), TESS_OK);
        check_round_trip(topology);
        tess_topology_free(topology);
    }
    struct tess_topology *topology = read_text(hand);
    check_round_trip(topology);
    tess_topology_free(topology);
}

/* Names that YAML would read as something else, or that hold its signs. */
static void case_names(void **state)
{
    (void)state;
    static const char *const name[] = {"1",
                                       "~",
                                       "null",
                                       "- a",
                                       "a: b",
                                       "{x}",
                                       "\"q\"",
                                       "a # b",
                                       " sp",
                                       "*a",
                                       "&a",
                                       "\\n",
                                       "'",
                                       "\xc3\xa9",
                                       "x,y",
                                       "[",
                                       "?",
                                       "!t",
                                       "%dir",
                                       "---",
                                       "\xc2\x85",
                                       "\xe2\x80\xa8",
                                       "\xf0\x9f\x98\x80"};
    int count = (int)(sizeof(name) / sizeof(name[0]));
    struct tess_topology *topology = tess_topology_new();
    assert_non_null(topology);
    int32_t hub, at;
    struct tess_node node = {.kind = TESS_NODE_NET, .name = "hub", .host = -1, .socket = -1};
    assert_int_equal(tess_topology_add_node(topology, &node, &hub), TESS_OK);
    for (int i = 0; i < count; i++) {
        node = (struct tess_node){.kind = TESS_NODE_DEVICE, .host = i, .socket = -1};
        snprintf(node.name, sizeof(node.name), "%s", name[i]);
        snprintf(node.bus, sizeof(node.bus), "%s", name[i]);
        assert_int_equal(tess_topology_add_node(topology, &node, &at), TESS_OK);
        assert_int_equal(tess_topology_join(topology, TESS_LINK_NET, at, hub, 1.0 / (i + 1), 1),
                         TESS_OK);
    }
    assert_int_equal(tess_topology_finish(topology), TESS_OK);
    check_round_trip(topology);
    tess_topology_free(topology);
}

/* Bytes that are no UTF-8, among them a surrogate and a code point beyond the last. */
static void case_no_text(void **state)
{
    (void)state;
    static const char bad[] = "a\xff\xc3(\xed\xa0\x80\xf7\xbf\xbf\xbf\xe2\x80";
    struct tess_topology *topology = tess_topology_new();
    struct tess_node node = {.kind = TESS_NODE_DEVICE, .socket = -1};
    char *text = NULL;
    snprintf(node.name, sizeof(node.name), "%s", bad);
    assert_int_equal(tess_topology_add_node(topology, &node, NULL), TESS_OK);
    assert_int_equal(tess_topology_finish(topology), TESS_OK);
    assert_int_equal(tess_topology_write_yaml(topology, &text), TESS_OK);
    struct tess_topology *copy = read_text(text);
    assert_string_equal(copy->node[0].name, "a\?\?(\?\?\?\?");
    free(text);
    tess_topology_free(copy);
    tess_topology_free(topology);
}

static void case_refused(void **state)
{
    (void)state;
#define V "tessera-topology: 1\n"
#define N V "nodes:\n- {name: a, kind: device}\n- {name: b, kind: device}\n"
    static const char *const text[][2] = {
        {"", "f.yaml:1: a line 'tessera-topology: 1' was expected"},
        {"hello", "f.yaml:1: a line"},
        {"- 1", "f.yaml:1: a line"},
        {"{}", "no line 'tessera-topology: 1'"},
        {"tessera-topology: 2\n", "f.yaml:1: tessera-topology: '2'; a whole number from 1 to 1"},
        {V, "either machine, or nodes and links"},
        {V "x: 1\n", "f.yaml:2: key: 'x'; one of tessera-topology machine nodes links"},
        {V V, "f.yaml:2: tessera-topology is given twice"},
        {V "nodes: 3\n", "f.yaml:2: a list was expected"},
        {V "nodes: []\n", "no device"},
        {V "nodes:\n- 3\n", "f.yaml:3: {key: value"},
        {V "nodes:\n- {name: a}\n", "f.yaml:3: a node has no name or no kind"},
        {V "nodes:\n- {name: a, kind: gpu}\n", "f.yaml:3: kind: 'gpu'; one of device pci"},
        {V "nodes:\n- {name: a, kind: device, host: x}\n", "f.yaml:3: host: 'x'"},
        {V "nodes:\n- {name: a, kind: device, host: 99999999999}\n", "host: '99999999999'"},
        {V "nodes:\n- {name: a, kind: device, sm: [1]}\n", "f.yaml:3: a value was expected"},
        {V "nodes:\n- {name: a, name: b}\n", "f.yaml:3: name is given twice"},
        {V "nodes:\n- {name: \"\", kind: net}\n", "f.yaml:3: name: 1 to 47 characters"},
        {V "nodes:\n- {name: \"\\x01\", kind: net}\n", "byte 0x01"},
        {V "nodes:\n- {name: \"a\\0b\", kind: net}\n", "no NUL"},
        {V "nodes:\n- &x {name: a, kind: net}\n", "f.yaml:3: anchors"},
        {V "nodes: *x\n", "f.yaml:2: anchors"},
        {N "- {name: a, kind: net}\n", "f.yaml:5: node 'a' is defined twice"},
        {N "links:\n- {between: [a, c], kind: pci, gbs: 1}\n", "f.yaml:6: there is no node 'c'"},
        {N "links:\n- {between: [a], kind: pci, gbs: 1}\n", "f.yaml:6: the names of two nodes"},
        {N "links:\n- {between: [a, b, a], kind: pci, gbs: 1}\n", "f.yaml:6: ']' after two"},
        {N "links:\n- {between: [a, b], kind: pci}\n", "f.yaml:6: a link has"},
        {N "links:\n- {from: a, kind: pci, gbs: 1}\n", "f.yaml:6: a link has"},
        {N "links:\n- {between: [a, b], from: a, kind: pci, gbs: 1}\n", "f.yaml:6: a link has"},
        {N "links:\n- {between: [a, a], kind: pci, gbs: 1}\n", "f.yaml:6: node 'a' has a link"},
        {N "links:\n- {between: [a, b], kind: pci, gbs: 0}\n", "f.yaml:6: the link from"},
        {N "links:\n- {between: [a, b], kind: pci, gbs: nan}\n", "f.yaml:6: gbs: 'nan'"},
        {N "links:\n- {between: [a, b], kind: pci, gbs: 0x10}\n", "gbs: '0x10'"},
        {N "links:\n- {between: [a, b], kind: pci, gbs: -1}\n", "gbs: '-1'"},
        {N "links:\n- {between: [a, b], kind: pci, gbs: 1e99}\n", "gbs: '1e99'"},
        {N, "reaches no other device"},
        {V "links: []\nnodes: []\n", "f.yaml:3: nodes were expected before links"},
        {V "machine: gpu:2\nnodes: []\n", "either machine"},
        {V "machine: gpu:x\n", "f.yaml:2: 'gpu:x': a whole number"},
        {V "machine: gpu:2\n---\n" V, "one document was expected"},
        {V "nodes: [[[[", "f.yaml:2: {key: value"},
        {V "nodes: {\n", "f.yaml:2: a list"},
        {V "\"\xff\"", "not YAML"},
        {V "a\001b", "not YAML"},
    };
    for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++)
        look_refused(tess_topology_read_yaml, "f.yaml", text[i][0], NULL, text[i][1]);
}

static void case_hostile(void **state)
{
    (void)state;
    static const char *const piece[] = {"- ",
                                        ": ",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        "\n",
                                        "  ",
                                        "gpu0",
                                        "numa1",
                                        "kind",
                                        "pci",
                                        "net",
                                        "&a ",
                                        "*a",
                                        "!!x ",
                                        "\"",
                                        "'",
                                        "1e999",
                                        "-1",
                                        "\xff",
                                        "nodes:",
                                        "links:",
                                        "machine: ",
                                        "gpu:2 ",
                                        "---\n",
                                        "? ",
                                        "<<: ",
                                        "|\n",
                                        ",",
                                        "between: [gpu0, gpu1]"};
    look_hostile(tess_topology_read_yaml, hand, piece, sizeof(piece) / sizeof(piece[0]), 3000);
}

/* Time and memory follow the size, not the depth. */
static void case_deep(void **state)
{
    (void)state;
    size_t bytes = (size_t)1 << 20;
    char *text = malloc(bytes + 1);
    assert_non_null(text);
    memset(text, '[', bytes);
    text[bytes] = '\0';
    look_refused(tess_topology_read_yaml, "f.yaml", text, NULL, "f.yaml:");
    free(text);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_hand),    cmocka_unit_test(case_machine),
        cmocka_unit_test(case_names),   cmocka_unit_test(case_round_trip),
        cmocka_unit_test(case_refused), cmocka_unit_test(case_hostile),
        cmocka_unit_test(case_deep),    cmocka_unit_test(case_no_text),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
