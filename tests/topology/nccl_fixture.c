#include "nccl_fixture.h"

#include "topology/machine/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SPR  "arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\""
#define ROME "arch=\"x86_64\" vendor=\"AuthenticAMD\" familyid=\"23\" modelid=\"49\""
#define GEN4 "link_speed=\"16.0 GT/s PCIe\" link_width=\"16\""
#define GEN5 "link_speed=\"32.0 GT/s PCIe\" link_width=\"16\""

/* Two bridged devices and a NIC on a switch. */
static const char pair[] =
    "<system version=\"1\">\n"
    "  <cpu numaid=\"0\" affinity=\"ffffffff\" " SPR ">\n"
    "    <pci busid=\"ffff:ff:01.0\" class=\"0x060400\" " GEN5 ">\n"
    "      <pci busid=\"0000:17:00.0\" class=\"0x030200\" " GEN5 ">\n"
    "        <gpu dev=\"0\" sm=\"90\" rank=\"0\" gdr=\"1\">\n"
    "          <nvlink target=\"0000:2a:00.0\" count=\"12\" tclass=\"0x030200\"/>\n"
    "        </gpu>\n"
    "      </pci>\n"
    "      <pci busid=\"0000:2A:00.0\" class=\"0x030200\" " GEN4 ">\n"
    "        <gpu dev=\"1\" sm=\"90\" rank=\"1\" gdr=\"1\">\n"
    "          <nvlink target=\"0000:17:00.0\" count=\"12\" tclass=\"0x030200\"/>\n"
    "        </gpu>\n"
    "      </pci>\n"
    "      <pci busid=\"0000:18:00.0\" class=\"0x020700\" " GEN5 ">\n"
    "        <nic>\n"
    "          <net name=\"mlx5_0\" dev=\"0\" speed=\"400000\" port=\"1\" latency=\"1.500000\" "
    "guid=\"0x1\" maxconn=\"131072\" gdr=\"1\"/>\n"
    "        </nic>\n"
    "      </pci>\n"
    "    </pci>\n"
    "  </cpu>\n"
    "</system>\n";

/*
 * Two sockets with a two-level PEX switch each, which counts as one; four devices on NVSwitches,
 * some of them named, some hidden by a VM; a card with two ports and one with two functions.
 */
static const char nvswitch[] =
    "<!-- before the root -->\n"
    "<system version=\"1\">\n"
    "  <cpu numaid=\"0\" " SPR ">\n"
    "    <pci busid=\"0000:08:00.0\" class=\"0x060400\" vendor=\"0x1000\" device=\"0xc030\" "
    "subsystem_vendor=\"0x1000\" subsystem_device=\"0x0072\" link_speed=\"5.0 GT/s PCIe\" "
    "link_width=\"16\">\n"
    "      <pci busid=\"0000:0d:00.0\" class=\"0x060400\" vendor=\"0x1000\" device=\"0xc030\" "
    "subsystem_vendor=\"0x1000\" subsystem_device=\"0x1003\" " GEN5 ">\n"
    "        <pci busid=\"0000:0f:00.0\" class=\"0x030200\" " GEN5 ">\n"
    "          <gpu dev=\"0\" sm=\"90\">\n"
    "            <nvlink target=\"0000:1c:00.0\" count=\"10\" tclass=\"0x068000\"/>\n"
    "            <nvlink target=\"0000:1d:00.0\" count=\"8\" tclass=\"0x068000\"/>\n"
    "          </gpu>\n"
    "        </pci>\n"
    "        <pci busid=\"0000:10:00.0\" class=\"0x030200\" " GEN5 ">\n"
    "          <gpu dev=\"1\" sm=\"90\">\n"
    "            <nvlink target=\"fffffff:ffff:ff\" count=\"18\" tclass=\"0x068000\"/>\n"
    "          </gpu>\n"
    "        </pci>\n"
    "      </pci>\n"
    "      <pci busid=\"0000:0c:00.0\" class=\"0x020000\" " GEN5 ">\n"
    "        <nic>\n"
    "          <net name=\"mlx5_0\" dev=\"0\" speed=\"180000\" port=\"1\"/>\n"
    "          <net name=\"mlx5_1\" dev=\"1\" speed=\"180000\" port=\"2\"/>\n"
    "          <net name=\"absent\" speed=\"180000\"/>\n"
    "        </nic>\n"
    "      </pci>\n"
    "      <pci busid=\"0000:1c:00.0\" class=\"0x068000\" " GEN4 "/>\n"
    "    </pci>\n"
    "  </cpu>\n"
    "  <cpu numaid=\"1\" " SPR ">\n"
    "    <pci busid=\"0000:86:00.0\" class=\"0x060400\" vendor=\"0x1000\" device=\"0xc010\" "
    "subsystem_vendor=\"0x1000\" subsystem_device=\"0xa096\" " GEN4 ">\n"
    "      <pci busid=\"0000:87:00.0\" class=\"0x060400\" vendor=\"0x1000\" device=\"0xc010\" "
    "subsystem_vendor=\"0x1000\" subsystem_device=\"0xa096\" " GEN4 ">\n"
    "        <pci busid=\"0000:8a:00.0\" class=\"0x030200\" " GEN5 ">\n"
    "          <gpu dev=\"2\" sm=\"90\">\n"
    "            <nvlink target=\"0000:1c:00.0\" count=\"18\" tclass=\"0x068000\"/>\n"
    "          </gpu>\n"
    "        </pci>\n"
    "        <pci busid=\"0000:8b:00.0\" class=\"0x030200\" " GEN5 ">\n"
    "          <gpu dev=\"3\" sm=\"90\">\n"
    "            <nvlink target=\"0000:1c:00.0\" count=\"18\" tclass=\"0x068000\"/>\n"
    "          </gpu>\n"
    "        </pci>\n"
    "      </pci>\n"
    "    </pci>\n"
    "    <pci busid=\"0000:a0:00.0\" class=\"0x020000\" " GEN4 ">\n"
    "      <nic>\n"
    "        <net name=\"eth\" dev=\"2\" speed=\"100000\"/>\n"
    "      </nic>\n"
    "    </pci>\n"
    "    <pci busid=\"0000:a0:00.1\" class=\"0x020000\" " GEN4 ">\n"
    "      <nic>\n"
    "        <net name=\"eth\" dev=\"3\" speed=\"-1\"/>\n"
    "      </nic>\n"
    "    </pci>\n"
    "  </cpu>\n"
    "</system>\n";

/*
 * What a cloud hands out: virtual switches, functions by class alone and one of none, no
 * processor's maker; CR LF.
 */
static const char partial[] =
    "<system version=\"1\">\r\n"
    "  <cpu numaid=\"0\">\r\n"
    "    <pci busid=\"ffff:ff:01.0\" class=\"0x060400\" link_speed=\"16 GT/s\" "
    "link_width=\"16\">\r\n"
    "      <pci busid=\"0003:00:00.0\" class=\"0x030200\" link_speed=\"16 GT/s\" "
    "link_width=\"16\"/>\r\n"
    "      <pci busid=\"0103:00:00.0\" class=\"0x020700\" link_speed=\"16 GT/s\" "
    "link_width=\"16\"/>\r\n"
    "    </pci>\r\n"
    "    <pci busid=\"0009:00:00.0\"/>\r\n"
    "  </cpu>\r\n"
    "  <cpu numaid=\"1\">\r\n"
    "    <pci busid=\"ffff:ff:02.0\">\r\n"
    "      <pci busid=\"0002:00:00.0\" class=\"0x030200\"/>\r\n"
    "      <pci busid=\"0001:00:00.0\" class=\"0x030200\" link_speed=\"\" link_width=\"0\"/>\r\n"
    "    </pci>\r\n"
    "  </cpu>\r\n"
    "</system>\r\n";

/* rccl's dialect: a square of four, xGMI on its sides; sm counts compute units there. */
static const char rccl[] =
    "<system version=\"2\">\n"
    "  <cpu numaid=\"0\" " ROME ">\n"
    "    <pci busid=\"0000:03:00.0\" class=\"0x038000\" " GEN4 ">\n"
    "      <gpu dev=\"0\" sm=\"104\" gcn=\"910\" arch=\"38911\" rank=\"0\" gdr=\"1\">\n"
    "        <xgmi target=\"0000:04:00.0\" count=\"2\" tclass=\"0x038000\"/>\n"
    "        <xgmi target=\"0000:83:00.0\" count=\"1\" tclass=\"0x038000\"/>\n"
    "      </gpu>\n"
    "    </pci>\n"
    "    <pci busid=\"0000:04:00.0\" class=\"0x120000\" " GEN4 ">\n"
    "      <gpu dev=\"1\" sm=\"104\" gcn=\"gfx90a\" arch=\"38911\" rank=\"1\" gdr=\"1\">\n"
    "        <xgmi target=\"0000:03:00.0\" count=\"2\" tclass=\"0x038000\"/>\n"
    "        <xgmi target=\"0000:84:00.0\" count=\"1\" tclass=\"0x120000\"/>\n"
    "      </gpu>\n"
    "    </pci>\n"
    "  </cpu>\n"
    "  <cpu numaid=\"1\" " ROME ">\n"
    "    <pci busid=\"0000:83:00.0\" class=\"0x038000\" " GEN4 ">\n"
    "      <gpu dev=\"2\" sm=\"104\" gcn=\"910\" arch=\"38911\" rank=\"2\" gdr=\"1\">\n"
    "        <xgmi target=\"0000:03:00.0\" count=\"1\" tclass=\"0x038000\"/>\n"
    "        <xgmi target=\"0000:84:00.0\" count=\"1\" tclass=\"0x120000\"/>\n"
    "      </gpu>\n"
    "    </pci>\n"
    "    <pci busid=\"0000:84:00.0\" class=\"0x120000\" " GEN4 ">\n"
    "      <gpu dev=\"3\" sm=\"104\" gcn=\"gfx90a\" arch=\"38911\" rank=\"3\" gdr=\"1\">\n"
    "        <xgmi target=\"0000:04:00.0\" count=\"1\" tclass=\"0x038000\"/>\n"
    "        <xgmi target=\"0000:83:00.0\" count=\"1\" tclass=\"0x038000\"/>\n"
    "      </gpu>\n"
    "    </pci>\n"
    "  </cpu>\n"
    "</system>\n";

/* Links of the rarer kinds: C2C, NVLink to a POWER processor, between switches; a NIC at a CPU. */
static const char odd[] =
    "<system version='1'>\n"
    "  <cpu numaid=\"0\" arch=\"arm64\">\n"
    "    <pci busid=\"0009:01:00.0\" class=\"0x030200\" " GEN5 ">\n"
    "      <gpu dev=\"0\" sm=\"100\">\n"
    "        <c2c bw=\"44712\" count=\"10\"/>\n"
    "        <nvlink target=\"0009:01:00.0\" count=\"12\" tclass=\"0x030200\"/>\n"
    "        <nvlink target=\"0019:01:00.0\" count=\"4\" tclass=\"0x030200\"/>\n"
    "        <nvlink target=\"0029:01:00.0\" count=\"4\" tclass=\"0x030200\"/>\n"
    "      </gpu>\n"
    "    </pci>\n"
    "    <nic>\n"
    "      <net name=\"eth0\" dev=\"0\" speed=\"100000\"/>\n"
    "    </nic>\n"
    "  </cpu>\n"
    "  <cpu numaid=\"8\" arch=\"ppc64\" vendor=\"IBM\">\n"
    "    <pci busid=\"000a:01:00.0\" class=\"0x060400\" " GEN4 ">\n"
    "      <pcilink target=\"000b:01:00.0\"/>\n"
    "      <pci busid=\"0019:01:00.0\" class=\"0x030200\" " GEN4 ">\n"
    "        <gpu dev=\"1\" sm=\"86\">\n"
    "          <nvlink target=\"0004:05:00.1\" count=\"3\" tclass=\"0x068001\"/>\n"
    "        </gpu>\n"
    "      </pci>\n"
    "      <pci busid=\"0029:01:00.0\" class=\"0x030200\" " GEN4 ">\n"
    "        <gpu dev=\"-1\" sm=\"86\"/>\n"
    "      </pci>\n"
    "    </pci>\n"
    "    <pci busid=\"000b:01:00.0\" class=\"0x080100\" " GEN4 ">\n"
    "      <pcilink target=\"000a:01:00.0\"/>\n"
    "    </pci>\n"
    "    <unknown of=\"no matter\"><pci busid=\"whatever\"/></unknown>\n"
    "  </cpu>\n"
    "</system>\n";

const struct nccl_fixture nccl_fixtures[] = {
    {"pair", pair}, {"nvswitch", nvswitch}, {"partial", partial},
    {"rccl", rccl}, {"odd", odd},           {NULL, NULL},
};

const char *nccl_fixture(const char *name)
{
    for (const struct nccl_fixture *f = nccl_fixtures; f->name != NULL; f++) {
        if (strcmp(f->name, name) == 0)
            return f->text;
    }
    fail_msg("there is no fixture %s", name);
    return NULL;
}

struct tess_topology *nccl_read(const char *text, size_t bytes,
                                const struct tess_topology_options *options,
                                enum tess_status *status_out)
{
    struct tess_topology *topology = tess_topology_new();
    char *exact = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(topology);
    assert_non_null(exact);
    memcpy(exact, text, bytes);
    const enum tess_status status =
        tess_topology_read_nccl("test.xml", exact, bytes, options, topology);
    free(exact);
    if (status_out != NULL)
        *status_out = status;
    if (status == TESS_OK)
        return topology;
    tess_topology_free(topology);
    return NULL;
}

struct tess_topology *nccl_open(const char *name, const struct tess_topology_options *options)
{
    const char *text = nccl_fixture(name);
    struct tess_topology *topology = nccl_read(text, strlen(text), options, NULL);
    assert_non_null(topology);
    return topology;
}

int32_t nccl_node(const struct tess_topology *topology, const char *name)
{
    for (int32_t i = 0; i < topology->node_count; i++) {
        if (strcmp(topology->node[i].name, name) == 0)
            return i;
    }
    fail_msg("there is no node %s", name);
    return -1;
}

const struct tess_topo_link *nccl_link(const struct tess_topology *topology,
                                       enum tess_link_kind kind, const char *a, const char *b)
{
    const int32_t from = nccl_node(topology, a), to = nccl_node(topology, b);
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        if (link->kind == kind && link->from == from && link->to == to)
            return link;
    }
    return NULL;
}

double nccl_gbs(const struct tess_topology *topology, enum tess_link_kind kind, const char *a,
                const char *b)
{
    const struct tess_topo_link *link = nccl_link(topology, kind, a, b);
    return link != NULL ? link->gbs : 0;
}
