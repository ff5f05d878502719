/*
 * Slurm's networks: lists of hosts, topology.conf and scontrol's output, the addresses that tasks
 * are given, and what is refused (lists that explode before all).
 */
#include "look.h"
#include "tessera/log.h"
#include "topology/formats/hostlist.h"
#include "topology/formats/slurm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CLOSE(a, b) assert_true((a) > (b)-1e-6 && (a) < (b) + 1e-6)

/* ---- lists of hosts ------------------------------------------------------------------------- */

struct joined {
    char text[4096];
    size_t used;
};

static enum tess_status join_name(void *context, const char *name)
{
    struct joined *joined = context;
    if (joined->used + 100 > sizeof(joined->text))
        return TESS_OK; /* only how many there were is asked then */
    joined->used += (size_t)snprintf(joined->text + joined->used,
                                     sizeof(joined->text) - joined->used, "%s ", name);
    return TESS_OK;
}

static void case_hostlist(void **state)
{
    (void)state;
    static const struct {
        const char *list, *names;
        int32_t count;
    } good[] = {
        {"dev", "dev ", 1},
        {"dev[0-5,7]", "dev0 dev1 dev2 dev3 dev4 dev5 dev7 ", 7},
        {"dev[08-10]", "dev08 dev09 dev10 ", 3},
        {"a,b[1],c[2-3]x", "a b1 c2x c3x ", 4},
        {"r[0-1]n[0-1]", "r0n0 r0n1 r1n0 r1n1 ", 4},
        {"r[1,0]n[2]-[5-6]", "r1n2-5 r1n2-6 r0n2-5 r0n2-6 ", 4},
        {"[3-4]", "3 4 ", 2},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct joined joined = {.used = 0};
        int32_t count = 0;
        struct tess__word list = {good[i].list, strlen(good[i].list)};
        assert_int_equal(tess__hostlist_expand("f", 1, list, &count, join_name, &joined), TESS_OK);
        assert_string_equal(joined.text, good[i].names);
        assert_int_equal(count, good[i].count);
    }
    static const char *const bad[][2] = {
        {"", "the list is empty"},
        {"a,,b", "a name of 1 to 47"},
        {"a[", "'[' without ']'"},
        {"a]", "']' without '['"},
        {"a[]", "'' in brackets"},
        {"a[1-]", "'1-' in brackets"},
        {"a[5-3]", "'5-3' in brackets"},
        {"a[x]", "'x' in brackets"},
        {"a[1-2-3]", "'1-2-3' in brackets"},
        {"a[0-9999999999]", "in brackets"},
        {"a[0-65536]", "makes more than 65536 names"},
        {"a[0-999999999]", "makes more than"},
        {"a[0-999][0-999]", "makes more than"},
        {"a[0-99][0-99][0-99][0-99]", "makes more than"},
        {"a[0-40000],b[0-40000]", "'b[0-40000]' makes more than"},
        {"a[1][1][1][1][1]", "more than 4 brackets"},
        {"a\001b", "byte 0x01"},
        {"a[000000000000000001]", "in brackets"},
        {"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn", "1 to 47"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct joined joined = {.used = 0};
        int32_t count = 0;
        struct tess__word list = {bad[i][0], strlen(bad[i][0])};
        assert_int_equal(tess__hostlist_expand("f", 7, list, &count, join_name, &joined),
                         TESS_ERR_DATA);
        if (!strstr(tess_log_last_error(), bad[i][1]) || !strstr(tess_log_last_error(), "f:7: "))
            fail_msg("'%s' was expected in '%s'", bad[i][1], tess_log_last_error());
    }
}

/* ---- files ---------------------------------------------------------------------------------- */

static const char conf[] = "# racks\r\n"
                           "SwitchName=leaf0 Nodes=dev[1-2]\r\n"
                           "switchname=leaf1 LinkSpeed=1 \\\n"
                           "    nodes=dev[9-10]   # the newer ones\n"
                           "\n"
                           "SwitchName=spine Level=1 Nodes=dev[1-2,9-10] Switches=leaf[0-1]\n";

static void case_conf(void **state)
{
    (void)state;
    struct tess_topology_options options = {.per_host = 2, .edge_gbs = 10, .uplink_gbs = 40};
    struct tess_topology *topology =
        look_read(tess_topology_read_slurm, "topology.conf", conf, sizeof(conf) - 1, &options);
    assert_non_null(topology);
    struct look_counts counts = look_count(topology);
    assert_int_equal(counts.devices, 8);
    assert_int_equal(counts.nets, 3);
    assert_int_equal(topology->host_count, 4);
    CLOSE(look_gbs(topology, "dev9", "leaf1"), 10);
    CLOSE(look_gbs(topology, "dev9", "spine"), 0);
    CLOSE(look_gbs(topology, "leaf0", "spine"), 40);
    CLOSE(look_gbs(topology, "dev10.1", "dev10"), 5000);
    /* dev2 before dev10. */
    assert_string_equal(topology->node[topology->device[2]].name, "dev2.0");
    assert_string_equal(topology->node[topology->device[7]].name, "dev10.1");
    tess_topology_free(topology);
}

/* Two trees, and a host of two switches. */
static void case_forest(void **state)
{
    (void)state;
    static const char text[] = "SwitchName=a Nodes=n[0-1]\nSwitchName=b Nodes=n[1-2]\n"
                               "BlockName=c Nodes=n3\nBlockSizes=4,16\n";
    struct tess_topology *topology =
        look_read(tess_topology_read_slurm, "f", text, sizeof(text) - 1, NULL);
    assert_non_null(topology);
    CLOSE(look_gbs(topology, "a", "network"), 12.5);
    CLOSE(look_gbs(topology, "c", "network"), 12.5);
    CLOSE(look_gbs(topology, "n1", "a"), 12.5);
    CLOSE(look_gbs(topology, "n1", "b"), 12.5);
    tess_topology_free(topology);
}

static void case_refused(void **state)
{
    (void)state;
    tess_topology_reader *read = tess_topology_read_slurm;
    look_refused(read, "f", "", NULL, "f: no line with SwitchName=");
    look_refused(read, "f", "# nothing\n", NULL, "f:1: no line");
    look_refused(read, "f", "hello\n", NULL, "f:1: 'hello': SwitchName=NAME");
    look_refused(read, "f", "---\n- topology: t\n", NULL, "f:1: no topology with tree");
    look_refused(read, "f", "- topology: t\n  tree: {switches: [{nodes: a}]}\n", NULL,
                 "f:2: a switch without a name");
    look_refused(read, "f",
                 "- topology: t\n  tree:\n    switches:\n    - switch: s\n      nodes: a b\n", NULL,
                 "f:5: 'a b': a name or a list");
    look_refused(read, "f",
                 "- topology: t\n  block:\n    blocks:\n    - block: b\n      nodes: a[\n", NULL,
                 "f:4: ");
    look_refused(read, "f", "- topology: t\n  tree: [\n", NULL, "f:3: not YAML");
    look_refused(read, "f", "Nodes=a\n", NULL, "f:1: 'Nodes=a': SwitchName=NAME");
    look_refused(read, "f", "SwitchName=a Nodes=b\nNodes=a\n", NULL, "f:2: 'Nodes=a'");
    look_refused(read, "f", "SwitchName= Nodes=b\n", NULL, "f:1: '' names no switch");
    look_refused(read, "f", "SwitchName=a[0-1] Nodes=b\n", NULL, "f:1: 'a[0-1]' names no switch");
    look_refused(read, "f", "SwitchName=a\n", NULL, "there are no hosts");
    look_refused(read, "f", "SwitchName=a Nodes=b Nodes=c\n", NULL, "switch a has one already");
    look_refused(read, "f", "SwitchName=a Nodes=b\n\nSwitchName=a Nodes=c\n", NULL,
                 "f:3: switch a is defined already, in line 1");
    look_refused(read, "f", "SwitchName=a Nodes=n[0-999999]\n", NULL, "f:1: 'n[0-999999]' makes");
    look_refused(read, "f", "SwitchName=a Switches=b Nodes=x\nSwitchName=b Switches=a\n", NULL,
                 "is below itself");
    look_refused(read, "f", "SwitchName=a Switches=a Nodes=x\n", NULL, "f:1: switch a is below");
    look_refused(read, "f", "SwitchName=a Nodes=a\n", NULL, "'a' is defined twice");
    look_refused(read, "f", "SwitchName=a Nodes=n[0-65000]\n",
                 &(struct tess_topology_options){.per_host = 4}, "more than 262144 nodes");
}

/* All lines together explode where no single one does. */
static void case_many_lists(void **state)
{
    (void)state;
    char text[2048];
    size_t used = 0;
    for (int i = 0; i < 10; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used,
                                 "SwitchName=s%d Nodes=n[0-59999]\n", i);
    look_refused(tess_topology_read_slurm, "f", text, NULL, "in all lists together");
}

static void case_hostile(void **state)
{
    (void)state;
    static const char *const piece[] = {"SwitchName=",
                                        "Nodes=",
                                        "Switches=",
                                        "leaf0",
                                        "spine",
                                        "[0-9]",
                                        "[",
                                        "]",
                                        ",",
                                        "-",
                                        "=",
                                        "\\\n",
                                        "#",
                                        "\n",
                                        " ",
                                        "dev1",
                                        "[0-65535]",
                                        "[0-999999999]",
                                        "[0-255][0-9]",
                                        "(null)",
                                        "\xff",
                                        "\t"};
    look_hostile(tess_topology_read_slurm, conf, piece, sizeof(piece) / sizeof(piece[0]), 1500);
}

/* ---- topology.yaml -------------------------------------------------------------------------- */

/* As in Slurm's manual page of topology.yaml and in Slinky's documentation of slurm-bridge. */
static const char yaml[] = "---\n"
                           "- topology: topo-switch\n"
                           "  cluster_default: false\n"
                           "  tree:\n"
                           "    switches:\n"
                           "      - switch: sw_root\n"
                           "        children: s[1-2]\n"
                           "      - switch: s1\n"
                           "        nodes: n[1-2]\n"
                           "      - switch: s2\n"
                           "        nodes: n[3-4]\n"
                           "- topology: topo-block\n"
                           "  cluster_default: true\n"
                           "  block:\n"
                           "    block_sizes:\n"
                           "      - 2\n"
                           "    blocks:\n"
                           "      - block: b1\n"
                           "        nodes: n[1-2]\n"
                           "      - block: b2\n"
                           "        nodes: n[3-4]\n"
                           "- topology: none\n"
                           "  flat: true\n";

static void case_yaml(void **state)
{
    (void)state;
    /* Blocks are the default; with a kind of GPU they are NVLink domains. */
    const struct tess_topology_options options = {.sm = 100, .per_host = 4, .edge_gbs = 50};
    struct tess_topology *topology =
        look_read(tess_topology_read_slurm, "t.yaml", yaml, strlen(yaml), &options);
    assert_non_null(topology);
    assert_int_equal(topology->host_count, 4);
    assert_int_equal(topology->device_count, 16);
    assert_int_equal(look_count(topology).nvswitches, 2);
    CLOSE(look_gbs(topology, "n1.0", "nvlink.b1"), 18 * 40.1);
    CLOSE(look_gbs(topology, "n3.3", "nvlink.b2"), 18 * 40.1);
    CLOSE(look_gbs(topology, "n3.3", "nvlink.b1"), 0);
    CLOSE(look_gbs(topology, "n2", "b1"), 50);
    CLOSE(look_gbs(topology, "b1", "network"), 12.5);
    assert_true(topology->remarks & TESS_REMARK_DOMAIN);
    tess_topology_free(topology);
    /* Without, they are switches of the network. */
    topology = look_read(tess_topology_read_slurm, "t.yaml", yaml, strlen(yaml), NULL);
    assert_non_null(topology);
    assert_int_equal(look_count(topology).nvswitches, 0);
    CLOSE(look_gbs(topology, "n4", "b2"), 12.5);
    tess_topology_free(topology);
    /* The tree alone. */
    topology = look_read(tess_topology_read_slurm, "t.yaml", yaml,
                         (size_t)(strstr(yaml, "- topology: topo-block") - yaml), NULL);
    assert_non_null(topology);
    CLOSE(look_gbs(topology, "n4", "s2"), 12.5);
    CLOSE(look_gbs(topology, "s1", "sw_root"), 12.5);
    tess_topology_free(topology);
}

static void case_yaml_hostile(void **state)
{
    (void)state;
    static const char *const piece[] = {"- ",  "switch: ", "nodes: ", "children: ", "\n",      "  ",
                                        "[0-", "]",        "{",       "*a",         "&a ",     "s1",
                                        "b1",  "\xff",     "tree:",   "block:",     "blocks:", "#"};
    look_hostile(tess_topology_read_slurm, yaml, piece, sizeof(piece) / sizeof(piece[0]), 1000);
}

/* ---- addresses of tasks --------------------------------------------------------------------- */

static void case_addresses(void **state)
{
    (void)state;
    /* Dealt out over hosts, two levels of switches, a host's name with a dot. */
    static const struct tess_slurm_address place[] = {
        {"s3.s1.dev7", "switch.switch.node"},   {"s3.s0.dev2.x", "switch.switch.node"},
        {"s3.s1.dev7", "switch.switch.node"},   {"s3.s0.dev1", "switch.switch.node"},
        {"s3.s0.dev2.x", "switch.switch.node"},
    };
    struct tess_topology_options options = {.edge_gbs = 10, .uplink_gbs = 20};
    struct tess_topology *topology = NULL;
    int32_t device[5];
    assert_int_equal(tess_topology_slurm_ranks(place, 5, &options, &topology, device), TESS_OK);
    assert_int_equal(topology->device_count, 5);
    assert_int_equal(topology->host_count, 3);
    static const char *const name[] = {"dev7.0", "dev2.x.0", "dev7.1", "dev1.0", "dev2.x.1"};
    static const int32_t host[] = {0, 1, 0, 2, 1};
    for (int i = 0; i < 5; i++) {
        const struct tess_node *node = &topology->node[topology->device[device[i]]];
        assert_string_equal(node->name, name[i]);
        assert_int_equal(node->host, host[i]);
    }
    CLOSE(look_gbs(topology, "dev2.x", "s0"), 10);
    CLOSE(look_gbs(topology, "s0", "s3"), 20);
    assert_int_equal(look_count(topology).nets, 3);
    tess_topology_free(topology);
}

static void case_addresses_apart(void **state)
{
    (void)state;
    static const struct tess_slurm_address flat[] = {{"b", "node"}, {"a", "node"}};
    struct tess_topology *topology = NULL;
    int32_t device[2];
    assert_int_equal(tess_topology_slurm_ranks(flat, 2, NULL, &topology, device), TESS_OK);
    CLOSE(look_gbs(topology, "a", "network"), 12.5);
    assert_int_equal(device[0], 0);
    assert_int_equal(device[1], 1);
    tess_topology_free(topology);
    static const struct tess_slurm_address trees[] = {{"s1.b", "switch.node"},
                                                      {"s2.a", "switch.node"}};
    assert_int_equal(tess_topology_slurm_ranks(trees, 2, NULL, &topology, device), TESS_OK);
    CLOSE(look_gbs(topology, "s1", "network"), 12.5);
    CLOSE(look_gbs(topology, "b", "s1"), 12.5);
    tess_topology_free(topology);
    /* All on one host: no network at all. */
    assert_int_equal(tess_topology_slurm_ranks(flat, 1, NULL, &topology, device), TESS_OK);
    assert_int_equal(look_count(topology).nets, 0);
    tess_topology_free(topology);
}

static void case_addresses_refused(void **state)
{
    (void)state;
    static const struct {
        struct tess_slurm_address place[2];
        const char *part;
    } bad[] = {
        {{{"a", "node"}, {NULL, "node"}}, "rank 1 has no SLURM_TOPOLOGY_ADDR"},
        {{{"a", "node"}, {"b", NULL}}, "rank 1 has no"},
        {{{"a", "node"}, {"b", "switch.node"}}, "rank 1: SLURM_TOPOLOGY_ADDR 'b' does not fit"},
        {{{"s..a", "switch.switch.node"}, {"b", "node"}}, "rank 0: "},
        {{{"s.", "switch.node"}, {"b", "node"}}, "rank 0: "},
        {{{"a", "................."}, {"b", "node"}}, "more than 16 levels"},
        {{{"s1.a", "switch.node"}, {"s2.a", "switch.node"}}, "'a' is defined twice"},
        {{{"s1.s2.a", "switch.switch.node"}, {"s2.s1.b", "switch.switch.node"}}, "defined twice"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct tess_topology *topology = NULL;
        int32_t device[2];
        assert_int_equal(tess_topology_slurm_ranks(bad[i].place, 2, NULL, &topology, device),
                         TESS_ERR_DATA);
        assert_null(topology);
        if (!strstr(tess_log_last_error(), bad[i].part))
            fail_msg("'%s' was expected in '%s'", bad[i].part, tess_log_last_error());
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_hostlist),
        cmocka_unit_test(case_conf),
        cmocka_unit_test(case_forest),
        cmocka_unit_test(case_refused),
        cmocka_unit_test(case_many_lists),
        cmocka_unit_test(case_hostile),
        cmocka_unit_test(case_yaml),
        cmocka_unit_test(case_yaml_hostile),
        cmocka_unit_test(case_addresses),
        cmocka_unit_test(case_addresses_apart),
        cmocka_unit_test(case_addresses_refused),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
