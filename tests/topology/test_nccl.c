/* NCCL's topology files: the graph of each, and what is written. */
#include "engine/base/log_sink.h"
#include "nccl_fixture.h"
#include "tessera/log.h"
#include "topology/machine/rates.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ASSERT_GBS(topology, kind, a, b, expected)                                                 \
    do {                                                                                           \
        assert_float_equal(nccl_gbs(topology, kind, a, b), expected, 1e-9);                        \
        assert_float_equal(nccl_gbs(topology, kind, b, a), expected, 1e-9);                        \
    } while (0)

static int count(const struct tess_topology *topology, enum tess_node_kind kind)
{
    int found = 0;
    for (int32_t i = 0; i < topology->node_count; i++)
        found += topology->node[i].kind == kind;
    return found;
}

static void case_bridged_pair(void **state)
{
    (void)state;
    struct tess_topology *t = nccl_open("pair", NULL);
    const struct tess_node *cpu = &t->node[nccl_node(t, "numa0")];
    const struct tess_node *gpu = &t->node[nccl_node(t, "gpu1")];
    assert_int_equal(t->device_count, 2);
    assert_int_equal(t->node_count, 6);
    assert_int_equal(cpu->maker, TESS_CPU_INTEL);
    assert_int_equal(cpu->model, 143);
    assert_int_equal(cpu->socket, -1);
    assert_int_equal(gpu->sm, 90);
    assert_int_equal(gpu->index, 1);
    assert_string_equal(gpu->bus, "0000:2a:00.0"); /* in lower case, as NCCL compares it */
    ASSERT_GBS(t, TESS_LINK_NVLINK, "gpu0", "gpu1", 12 * TESS_GBS_NVLINK_SM90);
    assert_int_equal(nccl_link(t, TESS_LINK_NVLINK, "gpu0", "gpu1")->count, 12);
    ASSERT_GBS(t, TESS_LINK_PCI, "gpu0", "pciffff:ff:01.0", 48);
    ASSERT_GBS(t, TESS_LINK_PCI, "gpu1", "pciffff:ff:01.0", 24);
    ASSERT_GBS(t, TESS_LINK_PCI, "numa0", "pciffff:ff:01.0", 48);
    ASSERT_GBS(t, TESS_LINK_PCI, "mlx5_0", "pciffff:ff:01.0", 48);
    ASSERT_GBS(t, TESS_LINK_NET, "mlx5_0", "net", 50);
    assert_float_equal(nccl_link(t, TESS_LINK_NET, "net", "mlx5_0")->latency_us, 1.5, 1e-9);
    tess_topology_free(t);
}

static void case_nvswitches_are_one(void **state)
{
    (void)state;
    struct tess_topology *t = nccl_open("nvswitch", NULL);
    assert_int_equal(t->device_count, 4);
    assert_int_equal(count(t, TESS_NODE_NVSWITCH), 1);
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof(name), "gpu%d", i);
        ASSERT_GBS(t, TESS_LINK_NVLINK, name, "nvswitch", 18 * TESS_GBS_NVLINK_SM90);
        assert_int_equal(nccl_link(t, TESS_LINK_NVLINK, name, "nvswitch")->count, 18);
    }
    ASSERT_GBS(t, TESS_LINK_SYS, "numa0", "numa1", TESS_GBS_UPI_SPR);
    tess_topology_free(t);
}

/* A PEX switch of two levels is one; cards with several ports or functions share their link. */
static void case_what_is_one_part(void **state)
{
    (void)state;
    struct tess_topology *t = nccl_open("nvswitch", NULL);
    assert_int_equal(count(t, TESS_NODE_PCI), 2);
    ASSERT_GBS(t, TESS_LINK_PCI, "gpu0", "pci0000:08:00.0", 48);
    ASSERT_GBS(t, TESS_LINK_PCI, "gpu3", "pci0000:86:00.0", 48);
    assert_int_equal(count(t, TESS_NODE_NIC), 4); /* "absent" has no dev */
    ASSERT_GBS(t, TESS_LINK_PCI, "mlx5_0", "pci0000:08:00.0", 48);
    ASSERT_GBS(t, TESS_LINK_LOCAL, "mlx5_0", "mlx5_1", TESS_GBS_LOCAL);
    ASSERT_GBS(t, TESS_LINK_NET, "mlx5_1", "net", 22.5);
    ASSERT_GBS(t, TESS_LINK_PCI, "eth#2", "numa1", 24); /* two of a name */
    ASSERT_GBS(t, TESS_LINK_LOCAL, "eth#2", "eth#3", TESS_GBS_LOCAL);
    ASSERT_GBS(t, TESS_LINK_NET, "eth#3", "net", 1.25); /* an unknown speed: 10 Gb/s */
    tess_topology_free(t);
}

static void case_partial_file(void **state)
{
    (void)state;
    const struct tess_topology_options options = {.sm = 90, .pci_gen = 5};
    struct tess_topology *t = nccl_open("partial", NULL);
    assert_int_equal(t->device_count, 3);
    /* In the order of bus ids. */
    assert_string_equal(t->node[t->device[0]].bus, "0001:00:00.0");
    assert_string_equal(t->node[t->device[1]].bus, "0002:00:00.0");
    assert_string_equal(t->node[t->device[2]].bus, "0003:00:00.0");
    assert_int_equal(t->node[t->device[0]].sm, 0);
    ASSERT_GBS(t, TESS_LINK_PCI, "gpu1", "pciffff:ff:02.0", 24); /* unknown: generation 4 */
    ASSERT_GBS(t, TESS_LINK_PCI, "gpu0", "pciffff:ff:02.0", 12); /* "": NCCL's 8 GT/s */
    ASSERT_GBS(t, TESS_LINK_PCI, "nic0", "pciffff:ff:01.0", 24);
    assert_int_equal(count(t, TESS_NODE_NET), 0);
    assert_int_equal(tess_topology_find_bus(t, 0, "0009:00:00.0"), -1);
    tess_topology_free(t);

    t = nccl_open("partial", &options);
    ASSERT_GBS(t, TESS_LINK_PCI, "gpu0", "pciffff:ff:02.0", 48);
    ASSERT_GBS(t, TESS_LINK_PCI, "gpu1", "pciffff:ff:02.0", 48);
    ASSERT_GBS(t, TESS_LINK_PCI, "gpu2", "pciffff:ff:01.0", 24); /* given */
    assert_int_equal(t->node[t->device[1]].sm, 90);
    tess_topology_free(t);
}

/* Two are given; one gets what is left; a display is no device. */
static void case_numbers_not_told(void **state)
{
    (void)state;
    static const char text[] = "<system version=\"1\"><cpu numaid=\"0\">\n"
                               "<pci busid=\"0000:04:00.0\"><gpu dev=\"0\"/></pci>\n"
                               "<pci busid=\"0000:03:00.0\"><gpu/></pci>\n"
                               "<pci busid=\"0000:02:00.0\"><gpu dev=\"2\"/></pci>\n"
                               "<pci busid=\"0000:01:00.0\" class=\"0x030000\"/>\n"
                               "</cpu></system>";
    struct tess_topology *t = nccl_read(text, strlen(text), NULL, NULL);
    assert_non_null(t);
    assert_int_equal(t->device_count, 3);
    assert_string_equal(t->node[t->device[0]].bus, "0000:04:00.0");
    assert_string_equal(t->node[t->device[1]].bus, "0000:03:00.0");
    assert_string_equal(t->node[t->device[2]].bus, "0000:02:00.0");
    tess_topology_free(t);
}

static void case_rccl(void **state)
{
    (void)state;
    struct tess_topology *t = nccl_open("rccl", NULL);
    assert_int_equal(t->device_count, 4);
    ASSERT_GBS(t, TESS_LINK_NVLINK, "gpu0", "gpu1", 2 * 36); /* gcn 910 and gfx90a are the same */
    ASSERT_GBS(t, TESS_LINK_NVLINK, "gpu0", "gpu2", 36);
    ASSERT_GBS(t, TESS_LINK_NVLINK, "gpu1", "gpu3", 36);
    ASSERT_GBS(t, TESS_LINK_NVLINK, "gpu2", "gpu3", 36);
    ASSERT_GBS(t, TESS_LINK_NVLINK, "gpu0", "gpu3", 0);
    ASSERT_GBS(t, TESS_LINK_SYS, "numa0", "numa1", TESS_GBS_AMD);
    assert_int_equal(t->node[t->device[0]].sm, 0);
    tess_topology_free(t);
}

static void case_rarer_links(void **state)
{
    (void)state;
    struct tess_topology *t = nccl_open("odd", NULL);
    assert_int_equal(t->device_count, 2); /* dev="-1" is left out */
    assert_int_equal(t->node[nccl_node(t, "numa0")].maker, TESS_CPU_ARM);
    assert_int_equal(t->node[nccl_node(t, "numa8")].maker, TESS_CPU_POWER);
    ASSERT_GBS(t, TESS_LINK_C2C, "gpu0", "numa0", 447.12);
    ASSERT_GBS(t, TESS_LINK_NVLINK, "gpu1", "numa8", 3 * TESS_GBS_NVLINK_SM86);
    ASSERT_GBS(t, TESS_LINK_LOCAL, "pci000a:01:00.0", "pci000b:01:00.0", TESS_GBS_LOCAL);
    ASSERT_GBS(t, TESS_LINK_LOCAL, "eth0", "numa0", TESS_GBS_LOCAL);
    /* One direction, as given; not to itself, nor to what is not there. */
    assert_float_equal(nccl_gbs(t, TESS_LINK_NVLINK, "gpu0", "gpu1"), 4 * TESS_GBS_NVLINK_SM100,
                       1e-9);
    assert_float_equal(nccl_gbs(t, TESS_LINK_NVLINK, "gpu1", "gpu0"), 0, 0);
    tess_topology_free(t);
}

static void case_hosts_of_one_nvlink_domain(void **state)
{
    (void)state;
    static const char text[] =
        "<system version=\"1\">\n"
        "<cpu numaid=\"0\" host_hash=\"0xa1\"><pci busid=\"0000:01:00.0\"><gpu dev=\"0\" "
        "sm=\"100\">"
        "<nvlink target=\"fffffff:ffff:ff\" count=\"18\" tclass=\"0x068000\"/></gpu></pci>"
        "<nic><net name=\"eth0\" dev=\"0\"/></nic></cpu>\n"
        "<cpu numaid=\"0\" host_hash=\"0xb2\"><pci busid=\"0000:01:00.0\"><gpu dev=\"0\" "
        "sm=\"100\">"
        "<nvlink target=\"fffffff:ffff:ff\" count=\"18\" tclass=\"0x068000\"/></gpu></pci>"
        "<nic><net name=\"eth0\" dev=\"0\"/></nic></cpu>\n"
        "</system>";
    struct tess_topology *t = nccl_read(text, strlen(text), NULL, NULL);
    char *written = NULL;
    assert_non_null(t);
    assert_int_equal(t->host_count, 2);
    assert_int_equal(t->device_count, 2);
    ASSERT_GBS(t, TESS_LINK_NVLINK, "n1.gpu0", "nvswitch", 18 * TESS_GBS_NVLINK_SM100);
    assert_int_equal(t->node[nccl_node(t, "nvswitch")].host, -1);
    assert_int_equal(tess_topology_write_nccl(t, 1, &written), TESS_OK);
    assert_non_null(strstr(written, "<net name=\"eth0\" dev=\"0\" speed=\"10000\"/>"));
    free(written);
    assert_int_equal(tess_topology_write_nccl(t, 2, &written), TESS_ERR_USAGE);
    assert_null(written);
    tess_topology_free(t);
}

/* One device on a CPU, its link as the attributes say. */
static double pci_gbs(const char *attributes)
{
    char text[512];
    snprintf(text, sizeof(text),
             "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" "
             "class=\"0x030000\"%s/></cpu></system>",
             attributes);
    struct tess_topology *t = nccl_read(text, strlen(text), NULL, NULL);
    assert_non_null(t);
    const double gbs = nccl_gbs(t, TESS_LINK_PCI, "gpu0", "numa0");
    tess_topology_free(t);
    return gbs;
}

static void case_speeds_and_widths(void **state)
{
    (void)state;
    static const struct {
        const char *attributes;
        double gbs;
    } row[] = {
        {" link_speed=\"2.5 GT/s\" link_width=\"16\"", 3},
        {" link_speed=\"5 GT/s\" link_width=\"16\"", 6},
        {" link_speed=\"8 GT/s\" link_width=\"16\"", 12},
        {" link_speed=\"16 GT/s\" link_width=\"16\"", 24},
        {" link_speed=\"32 GT/s\" link_width=\"16\"", 48},
        {" link_speed=\"32 GT/s PCIe/s\" link_width=\"16\"", 48},
        {" link_speed=\"2.5 GT/s PCIe\" link_width=\"8\"", 1.5},
        {" link_speed=\"5.0 GT/s PCIe\" link_width=\"4\"", 1.5},
        {" link_speed=\"8.0 GT/s PCIe\" link_width=\"2\"", 1.5},
        {" link_speed=\"16.0 GT/s PCIe\" link_width=\"1\"", 1.5},
        {" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"", 48},
        {" link_speed=\"64.0 GT/s PCIe\" link_width=\"0\"", 96},
        {" link_speed=\"64 GT/s\" link_width=\"16\"", 12},   /* not a beginning that NCCL knows */
        {" link_speed=\"32.0 GT/s\" link_width=\"16\"", 12}, /* nor this */
        {" link_speed=\"Unknown\" link_width=\"16\"", 12},
        {" link_speed=\"\" link_width=\"0x8\"", 6},
        {"", 24},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        assert_float_equal(pci_gbs(row[i].attributes), row[i].gbs, 1e-9);
}

/* ---- writing --------------------------------------------------------------------------------- */

struct warnings {
    int count;
    char last[512];
};

static void warnings_line(void *context, enum tess_log_level level, const char *text)
{
    struct warnings *warnings = (struct warnings *)context;
    assert_int_equal(level, TESS_LOG_WARN);
    warnings->count++;
    snprintf(warnings->last, sizeof(warnings->last), "%s", text);
}

/* Two cards of a speed on lines 3 and 4: what both have, and the one warning about them. */
static void assert_nic_speed(const char *speed, double gbs, const char *warning)
{
    char text[640];
    struct warnings warnings = {0};
    const struct tess__log_sink sink = {warnings_line, &warnings};
    snprintf(text, sizeof(text),
             "<system version=\"1\"><cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\">\n"
             "<pci busid=\"0000:01:00.0\"><gpu dev=\"0\"/></pci>\n"
             "<pci busid=\"0000:02:00.0\"><nic><net name=\"hsn0\" dev=\"0\" %s/></nic></pci>\n"
             "<pci busid=\"0000:03:00.0\"><nic><net name=\"hsn1\" dev=\"1\" %s/></nic></pci>\n"
             "</cpu></system>",
             speed, speed);
    const struct tess__log_sink *before = tess__log_redirect(&sink);
    struct tess_topology *t = nccl_read(text, strlen(text), NULL, NULL);
    tess__log_redirect(before);
    assert_non_null(t);
    ASSERT_GBS(t, TESS_LINK_NET, "hsn0", "net", gbs);
    ASSERT_GBS(t, TESS_LINK_NET, "hsn1", "net", gbs);
    tess_topology_free(t);
    assert_int_equal(warnings.count, warning != NULL);
    if (warning != NULL &&
        (strstr(warnings.last, warning) == NULL || strstr(warnings.last, ":3: speed=\"") == NULL))
        fail_msg("'%s' is not about line 3 and '%s'", warnings.last, warning);
}

static void case_speeds_of_cards(void **state)
{
    (void)state;
    assert_nic_speed("speed=\"400000\"", 50, NULL);
    assert_nic_speed("speed=\"180000\"", 22.5, NULL); /* of a virtual card: no standard's */
    assert_nic_speed("speed=\"3200000\"", 400, NULL); /* the most that is believed */
    assert_nic_speed("speed=\"-1\"", 1.25, NULL);     /* NCCL's unknown */
    assert_nic_speed("", 1.25, NULL);
    assert_nic_speed("speed=\"200000000\"", 25, "taken as kbit/s, 25 GB/s");
    assert_nic_speed("speed=\"10000000\"", 1.25, "taken as kbit/s, 1.25 GB/s");
    assert_nic_speed("speed=\"1600000000\"", 200, "taken as kbit/s, 200 GB/s");
    assert_nic_speed("speed=\"3200001\"", 1.25, "which no card has");
    assert_nic_speed("speed=\"200000001\"", 1.25, "which no card has");
    assert_nic_speed("speed=\"2147483647\"", 1.25, "which no card has");
}

/* Names and links of a are in b. */
static void assert_within(const struct tess_topology *a, const struct tess_topology *b)
{
    for (int32_t i = 0; i < a->node_count; i++) {
        const struct tess_node *x = &a->node[i], *y = &b->node[nccl_node(b, x->name)];
        assert_int_equal(x->kind, y->kind);
        assert_string_equal(x->bus, y->bus);
        assert_int_equal(x->host, y->host);
        assert_int_equal(x->index, y->index);
        assert_int_equal(x->socket, y->socket);
        assert_int_equal(x->sm, y->sm);
        assert_int_equal(x->maker, y->maker);
        assert_int_equal(x->model, y->model);
    }
    for (int32_t i = 0; i < a->link_count; i++) {
        const struct tess_topo_link *x = &a->link[i];
        const struct tess_topo_link *y =
            nccl_link(b, x->kind, a->node[x->from].name, a->node[x->to].name);
        assert_non_null(y);
        assert_float_equal(x->gbs, y->gbs, 1e-9);
        assert_float_equal(x->latency_us, y->latency_us, 1e-9);
        assert_int_equal(x->count, y->count);
    }
}

/* What NCCL's parser accepts: one element a line, single spaces, no tab, no declaration. */
static void assert_form(const char *text)
{
    for (const char *line = text; *line != '\0';) {
        const char *end = strchr(line, '\n');
        assert_non_null(end);
        while (*line == ' ')
            line++;
        assert_true(end - line >= 3 && line[0] == '<' && line[1] != '?' && end[-1] == '>');
        for (const char *c = line; c < end; c++) {
            assert_true(*c >= ' ' && *c <= '~');
            assert_true(c == line || *c != '<');
            assert_true(c[0] != ' ' || (c[1] != ' ' && c[1] != '/' && c[1] != '>'));
        }
        line = end + 1;
    }
}

static void assert_round_trip(const struct tess_topology *t)
{
    char *text = NULL;
    assert_int_equal(tess_topology_write_nccl(t, 0, &text), TESS_OK);
    assert_form(text);
    assert_null(strstr(text, "invented"));
    struct tess_topology *again = nccl_read(text, strlen(text), NULL, NULL);
    assert_non_null(again);
    assert_within(t, again);
    assert_within(again, t);
    free(text);
    tess_topology_free(again);
}

static void case_written_and_read_again(void **state)
{
    (void)state;
    for (const struct nccl_fixture *f = nccl_fixtures; f->name != NULL; f++) {
        struct tess_topology *t = nccl_open(f->name, NULL);
        /* NCCL's format has no NVLink of AMD's: they come back as NVLinks of as much. */
        assert_round_trip(t);
        tess_topology_free(t);
    }
}

static int32_t add(struct tess_topology *t, enum tess_node_kind kind, const char *name, int index)
{
    struct tess_node node = {.kind = kind, .index = index, .socket = -1};
    int32_t number;
    snprintf(node.name, sizeof(node.name), "%s", name);
    assert_int_equal(tess_topology_add_node(t, &node, &number), TESS_OK);
    return number;
}

/* From a source that knows no bus ids and no counts, and with a name that is no good in XML. */
static void case_what_other_formats_lack(void **state)
{
    (void)state;
    struct tess_topology *t = tess_topology_new();
    const int32_t cpu = add(t, TESS_NODE_CPU, "numa0", 0);
    const int32_t a = add(t, TESS_NODE_DEVICE, "gpu0", 0), b = add(t, TESS_NODE_DEVICE, "gpu1", 1);
    const int32_t nic = add(t, TESS_NODE_NIC, "a\"<&", 0), net = add(t, TESS_NODE_NET, "net", 0);
    char *text = NULL;
    assert_int_equal(tess_topology_join(t, TESS_LINK_PCI, cpu, a, 23, 1), TESS_OK);
    assert_int_equal(tess_topology_join(t, TESS_LINK_NVLINK, a, b, 40, 0), TESS_OK);
    assert_int_equal(tess_topology_join(t, TESS_LINK_PCI, cpu, nic, 12, 1), TESS_OK);
    assert_int_equal(tess_topology_join(t, TESS_LINK_NET, nic, net, 1, 1), TESS_OK);
    assert_int_equal(tess_topology_finish(t), TESS_OK);
    assert_int_equal(tess_topology_write_nccl(t, 0, &text), TESS_ERR_UNSUPPORTED);
    assert_non_null(strstr(tess_log_last_error(), "gpu1"));
    assert_null(text);
    assert_int_equal(tess_topology_join(t, TESS_LINK_PCI, cpu, b, 12, 1), TESS_OK);
    assert_int_equal(tess_topology_write_nccl(t, 0, &text), TESS_OK);
    assert_form(text);
    assert_non_null(strstr(text, "invented"));
    assert_non_null(strstr(text, "name=\"a___\""));
    struct tess_topology *again = nccl_read(text, strlen(text), NULL, NULL);
    assert_non_null(again);
    assert_int_equal(again->device_count, 2);
    ASSERT_GBS(again, TESS_LINK_NVLINK, "gpu0", "gpu1", 40);
    ASSERT_GBS(again, TESS_LINK_PCI, "gpu0", "numa0", 24); /* the nearest there is to 23 */
    free(text);
    tess_topology_free(again);
    tess_topology_free(t);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_bridged_pair),
        cmocka_unit_test(case_nvswitches_are_one),
        cmocka_unit_test(case_what_is_one_part),
        cmocka_unit_test(case_partial_file),
        cmocka_unit_test(case_numbers_not_told),
        cmocka_unit_test(case_rccl),
        cmocka_unit_test(case_rarer_links),
        cmocka_unit_test(case_hosts_of_one_nvlink_domain),
        cmocka_unit_test(case_speeds_and_widths),
        cmocka_unit_test(case_speeds_of_cards),
        cmocka_unit_test(case_written_and_read_again),
        cmocka_unit_test(case_what_other_formats_lack),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
