/*
 * A regular machine or cluster in one line of words, such as
 *
 *     node:2 numa:2 switch:2 gpu:4 nvlink:switch:18 nic:1 sm:90
 *
 * Levels, each KIND:COUNT, in this order, outermost first; those that are left out count 1 and,
 * but for node and numa, are not there at all:
 *
 *     rack    network switches; with more than one, a spine joins them by links of `uplink`
 *     node    hosts of each rack, joined to its switch, or to one network, by `edge`
 *     socket  packages of each host
 *     numa    NUMA nodes of each package; of each host where no package is given
 *     switch  PCIe switches of each NUMA node, each with x16 upwards that its devices share
 *     gpu     devices of each switch, or of each NUMA node, by x16 each        } one of the two
 *     rank    places of ranks on processors, of each NUMA node                 } is needed
 *
 * Then, in any order:
 *
 *     nic:N            as many in the place of the GPUs; the host's links to the network are theirs
 *                      (without, one link from its first NUMA node)
 *     rail:N           N switches in the place of a rack's one, or of the network; the spine joins
 *                      them, and a host's NICs go to them in turn, its first to rail0
 *     nvlink:mesh:N    N links between any two GPUs of a host
 *     nvlink:pairs:N   between the first two, the next two, and so on
 *     nvlink:switch:N  from each GPU to the NVSwitch of its host
 *     nvlink:cube      the hybrid cube mesh of eight of a DGX-1: one link or, from sm 70 on, two
 *                      (:N may be left out above: as many as such a GPU has)
 *     sm:90  pci:5     compute capability * 10; generation of PCIe
 *     gfx:90a          architecture of AMD's GPUs, in the place of sm: links are xGMI
 *     cpu:intel        or amd, arm, power
 *     edge:12.5  uplink:12.5   10^9 bytes/s in each direction; with edge, one host has a network
 *                              too
 *     hosts:node[0-3]  names of hosts, as many as there are, in the form that Slurm has for lists
 *
 * Names are gpu0, nic0, switch0, numa0, nvswitch, counted over the host, and n3.gpu0 where there is
 * more than one host, or node3.gpu0 where they have names; rank's places are called rank0. Several
 * words of one kind, and a level that comes after a deeper one, are errors; messages name the word.
 */
#include "topology/formats/synthetic.h"
#include "tessera/check.h"
#include "topology/formats/hostlist.h"
#include "topology/formats/lines.h"
#include "topology/machine/assume.h"
#include "topology/machine/bus.h"
#include "topology/machine/rates.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum synthetic_word {
    SYNTHETIC_RACK,
    SYNTHETIC_NODE,
    SYNTHETIC_SOCKET,
    SYNTHETIC_NUMA,
    SYNTHETIC_SWITCH,
    SYNTHETIC_GPU,
    SYNTHETIC_RANK,
    SYNTHETIC_LEVELS, /* what follows has no order */
    SYNTHETIC_NIC = SYNTHETIC_LEVELS,
    SYNTHETIC_RAIL,
    SYNTHETIC_SM,
    SYNTHETIC_PCI,
    SYNTHETIC_COUNTS, /* what follows is no whole number */
    SYNTHETIC_EDGE = SYNTHETIC_COUNTS,
    SYNTHETIC_UPLINK,
    SYNTHETIC_CPU,
    SYNTHETIC_NVLINK,
    SYNTHETIC_GFX,
    SYNTHETIC_HOSTS,
    SYNTHETIC_WORDS
};

static const struct {
    const char *word;
    int32_t max; /* of a whole number */
} synthetic_known[SYNTHETIC_WORDS] = {
    [SYNTHETIC_RACK] = {"rack", 4096},    [SYNTHETIC_NODE] = {"node", 16384},
    [SYNTHETIC_SOCKET] = {"socket", 64},  [SYNTHETIC_NUMA] = {"numa", 256},
    [SYNTHETIC_SWITCH] = {"switch", 256}, [SYNTHETIC_GPU] = {"gpu", 1024},
    [SYNTHETIC_RANK] = {"rank", 1024},    [SYNTHETIC_NIC] = {"nic", 256},
    [SYNTHETIC_RAIL] = {"rail", 256},     [SYNTHETIC_SM] = {"sm", 999},
    [SYNTHETIC_PCI] = {"pci", 6},         [SYNTHETIC_HOSTS] = {"hosts", 0},
    [SYNTHETIC_EDGE] = {"edge", 0},       [SYNTHETIC_UPLINK] = {"uplink", 0},
    [SYNTHETIC_CPU] = {"cpu", 0},         [SYNTHETIC_NVLINK] = {"nvlink", 0},
    [SYNTHETIC_GFX] = {"gfx", 0},
};

#define SYNTHETIC_HOST_MAX 32 /* bytes of a name, which leave room for those of its nodes */

enum synthetic_nvlink {
    SYNTHETIC_NONE,
    SYNTHETIC_MESH,
    SYNTHETIC_PAIRS,
    SYNTHETIC_NVSWITCH,
    SYNTHETIC_CUBE
};

struct synthetic {
    const char *name; /* of what the line is in, for messages */
    int32_t line;
    struct tess_topology *topology;
    struct tess__word word[SYNTHETIC_WORDS]; /* as written; length 0: left out */
    int32_t count[SYNTHETIC_COUNTS];         /* 1 where left out; gpu, rank, nic: 0 */
    double edge_gbs, uplink_gbs;
    enum tess_cpu_maker maker;
    int32_t gfx; /* 0: NVIDIA's */
    enum synthetic_nvlink nvlink;
    int32_t nvlink_count; /* 0: left out */
    int32_t hosts, host_numas, host_devices;
    char (*host_name)[SYNTHETIC_HOST_MAX + 1]; /* [hosts]; NULL: they have none */
    int32_t named;
};

/* ---- words ---------------------------------------------------------------------------------- */

TESS_PRINTF(3, 4)
static enum tess_status synthetic_fail(const struct synthetic *self, struct tess__word word,
                                       const char *format, ...)
{
    char what[512];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof(what), format, list);
    va_end(list);
    return tess__lines_fail(self->name, self->line, "'%.*s': %s", TESS__SHOWN(word), what);
}

/* "12.5": no exponent, no sign, nothing else. */
static bool synthetic_gbs(struct tess__word value, double *gbs_out)
{
    char text[32];
    if (value.length == 0 || value.length >= sizeof(text))
        return false;
    memcpy(text, value.text, value.length);
    text[value.length] = '\0';
    if (strspn(text, "0123456789.") != value.length)
        return false;
    char *end;
    double gbs = strtod(text, &end);
    if (*end || !(gbs > 0 && gbs <= 1e6))
        return false;
    *gbs_out = gbs;
    return true;
}

static bool synthetic_cpu(struct tess__word value, enum tess_cpu_maker *maker_out)
{
    static const char *const known[] = {[TESS_CPU_INTEL] = "intel",
                                        [TESS_CPU_AMD] = "amd",
                                        [TESS_CPU_ARM] = "arm",
                                        [TESS_CPU_POWER] = "power"};
    *maker_out = TESS_CPU_POWER;
    while (*maker_out > TESS_CPU_UNKNOWN && !tess__word_is(value, known[*maker_out]))
        --*maker_out;
    return *maker_out != TESS_CPU_UNKNOWN;
}

/* "90a" */
static bool synthetic_gfx(struct tess__word value, int32_t *gfx_out)
{
    uint64_t gfx;
    if (value.length != 3 || !tess__digits(value.text, value.length, 16, &gfx) || gfx == 0)
        return false;
    *gfx_out = (int32_t)gfx;
    return true;
}

/* The part before the first ':', the rest in *value_out, length 0 where there is none. */
static struct tess__word synthetic_split(struct tess__word word, struct tess__word *value_out)
{
    const char *colon = memchr(word.text, ':', word.length);
    size_t length = colon ? (size_t)(colon - word.text) : word.length;
    *value_out = colon ? (struct tess__word){colon + 1, word.length - length - 1}
                       : (struct tess__word){word.text + word.length, 0};
    return (struct tess__word){word.text, length};
}

static enum tess_status synthetic_shape(struct synthetic *self, struct tess__word word,
                                        struct tess__word value)
{
    static const char *const shape[] = {"none", "mesh", "pairs", "switch", "cube"};
    struct tess__word number, first = synthetic_split(value, &number);
    while (self->nvlink <= SYNTHETIC_CUBE && !tess__word_is(first, shape[self->nvlink]))
        self->nvlink++;
    if (self->nvlink > SYNTHETIC_CUBE)
        return synthetic_fail(self, word,
                              "mesh, pairs, switch, cube or none was expected after ':'");
    if (first.length == value.length)
        return TESS_OK;
    if (self->nvlink == SYNTHETIC_NONE || self->nvlink == SYNTHETIC_CUBE)
        return synthetic_fail(self, word, "no number was expected after it");
    if (!tess__word_number(number, 255, &self->nvlink_count) || self->nvlink_count == 0)
        return synthetic_fail(self, word,
                              "the number of links, 1 to 255, was expected after the last ':'");
    return TESS_OK;
}

static enum tess_status synthetic_value(struct synthetic *self, enum synthetic_word kind,
                                        struct tess__word word, struct tess__word value)
{
    if (kind < SYNTHETIC_COUNTS) {
        int32_t max = synthetic_known[kind].max;
        if (!tess__word_number(value, max, &self->count[kind]) || self->count[kind] < 1)
            return synthetic_fail(self, word, "a whole number from 1 to %d was expected after ':'",
                                  (int)max);
        return TESS_OK;
    }
    if (kind == SYNTHETIC_NVLINK)
        return synthetic_shape(self, word, value);
    if (kind == SYNTHETIC_CPU && !synthetic_cpu(value, &self->maker))
        return synthetic_fail(self, word, "intel, amd, arm or power was expected after ':'");
    if (kind == SYNTHETIC_GFX && !synthetic_gfx(value, &self->gfx))
        return synthetic_fail(self, word, "three hexadecimal digits as in 90a were expected");
    double *gbs = kind == SYNTHETIC_EDGE     ? &self->edge_gbs
                  : kind == SYNTHETIC_UPLINK ? &self->uplink_gbs
                                             : NULL;
    if (gbs != NULL && !synthetic_gbs(value, gbs))
        return synthetic_fail(self, word, "GB/s as in 12.5, up to 1000000, was expected after ':'");
    return TESS_OK; /* hosts: how many there are is known when all words are read */
}

static enum tess_status synthetic_word(struct synthetic *self, struct tess__word word)
{
    struct tess__word value, first = synthetic_split(word, &value);
    int32_t kind = 0;
    while (kind < SYNTHETIC_WORDS && !tess__word_is(first, synthetic_known[kind].word))
        kind++;
    if (kind == SYNTHETIC_WORDS)
        return synthetic_fail(self, word,
                              "rack, node, socket, numa, switch, gpu, rank, nic, nvlink, rail, sm, "
                              "gfx, pci, cpu, edge, uplink or hosts was expected, ':' and a value");
    if (self->word[kind].length > 0)
        return synthetic_fail(self, word, "it is given twice; '%.*s' was the first",
                              TESS__SHOWN(self->word[kind]));
    for (int32_t deeper = kind + 1; kind < SYNTHETIC_LEVELS && deeper < SYNTHETIC_LEVELS; deeper++)
        if (self->word[deeper].length > 0)
            return synthetic_fail(self, word, "levels go outermost first; it belongs before '%.*s'",
                                  TESS__SHOWN(self->word[deeper]));
    self->word[kind] = word;
    return synthetic_value(self, (enum synthetic_word)kind, word, value);
}

/* Words that do not go together, and how much it becomes. */
static enum tess_status synthetic_check(struct synthetic *self)
{
    const struct tess__word *word = self->word;
    const int32_t *count = self->count;
    const bool gpus = count[SYNTHETIC_GPU] > 0, ranks = count[SYNTHETIC_RANK] > 0;
    if (!gpus && !ranks)
        return tess__lines_fail(self->name, self->line,
                                "no device is described: gpu:N or rank:N was expected");
    if (gpus && ranks)
        return synthetic_fail(self, word[SYNTHETIC_RANK], "either gpu or rank was expected");
    if (ranks && word[SYNTHETIC_SWITCH].length > 0)
        return synthetic_fail(self, word[SYNTHETIC_SWITCH],
                              "ranks on processors have no PCIe switch; gpu was expected after it");
    if (ranks && self->nvlink != SYNTHETIC_NONE)
        return synthetic_fail(self, word[SYNTHETIC_NVLINK], "only gpu has NVLinks, not rank");
    if (word[SYNTHETIC_RAIL].length > 0 && count[SYNTHETIC_NIC] == 0)
        return synthetic_fail(self, word[SYNTHETIC_RAIL], "nic was expected too: rails are theirs");

    int64_t devices = 1;
    for (int32_t kind = 0; kind < SYNTHETIC_LEVELS; kind++) {
        devices *= count[kind] > 0 ? count[kind] : 1;
        if (devices > TESS_TOPO_NODES_MAX / 2)
            return synthetic_fail(self, word[kind], "that makes more than %d devices",
                                  TESS_TOPO_NODES_MAX / 2);
    }
    self->hosts = count[SYNTHETIC_RACK] * count[SYNTHETIC_NODE];
    self->host_numas = count[SYNTHETIC_SOCKET] * count[SYNTHETIC_NUMA];
    self->host_devices = (int32_t)(devices / self->hosts);
    if (self->nvlink == SYNTHETIC_MESH &&
        (int64_t)self->hosts * self->host_devices * self->host_devices > TESS_TOPO_LINKS_MAX / 2)
        return synthetic_fail(self, word[SYNTHETIC_NVLINK],
                              "a mesh of %d devices on each of %d hosts has too many links",
                              (int)self->host_devices, (int)self->hosts);
    if (self->nvlink == SYNTHETIC_PAIRS && self->host_devices % 2 != 0)
        return synthetic_fail(self, word[SYNTHETIC_NVLINK],
                              "an even number of GPUs was expected on a host, not %d",
                              (int)self->host_devices);
    if (self->nvlink == SYNTHETIC_CUBE && self->host_devices != 8)
        return synthetic_fail(self, word[SYNTHETIC_NVLINK],
                              "8 GPUs were expected on a host, not %d", (int)self->host_devices);
    return TESS_OK;
}

static enum tess_status synthetic_take_name(void *context, const char *name)
{
    struct synthetic *self = context;
    if (self->named == self->hosts || strlen(name) > SYNTHETIC_HOST_MAX)
        return synthetic_fail(self, self->word[SYNTHETIC_HOSTS],
                              "%d names of at most %d bytes were expected", (int)self->hosts,
                              SYNTHETIC_HOST_MAX);
    snprintf(self->host_name[self->named++], sizeof(*self->host_name), "%s", name);
    return TESS_OK;
}

static enum tess_status synthetic_name_hosts(struct synthetic *self)
{
    struct tess__word word = self->word[SYNTHETIC_HOSTS], list;
    int32_t count = 0;
    if (word.length == 0)
        return TESS_OK;
    self->host_name = calloc((size_t)self->hosts, sizeof(*self->host_name));
    if (!self->host_name)
        TESS_FAIL(TESS_ERR_MEMORY, "%s: no memory for the hosts' names", self->name);
    synthetic_split(word, &list);
    TESS_TRY(
        tess__hostlist_expand(self->name, self->line, list, &count, synthetic_take_name, self));
    if (self->named < self->hosts)
        return synthetic_fail(self, word, "%d names were expected, not %d", (int)self->hosts,
                              (int)self->named);
    return TESS_OK;
}

/* ---- the graph ------------------------------------------------------------------------------ */

/* One host; numbers count within it. */
struct synthetic_host {
    int32_t number, first_cpu;
    int32_t net; /* the node of its network, or its rails' first; -1 */
    int32_t switches, devices, nics;
    int32_t *device; /* [host_devices] nodes */
};

static enum tess_status synthetic_add(const struct synthetic *self, int32_t host,
                                      struct tess_node node, const char *word, int32_t number,
                                      int32_t *node_out)
{
    char own[24]; /* of a host's node: "switch65535" at most, which its name has room for */
    snprintf(own, sizeof(own), number >= 0 ? "%.9s%d" : "%.9s", word, (int)number);
    node.host = host;
    if (number >= 0)
        node.index = number;
    if (host < 0)
        return tess_topology_add(self->topology, node, node_out, "%s", word);
    if (self->host_name != NULL)
        return tess_topology_add(self->topology, node, node_out, "%s.%s", self->host_name[host],
                                 own);
    if (self->hosts > 1)
        return tess_topology_add(self->topology, node, node_out, "n%d.%s", (int)host, own);
    return tess_topology_add(self->topology, node, node_out, "%s", own);
}

static double synthetic_pci_gbs(const struct synthetic *self)
{
    return tess__rate_pci_x16(self->count[SYNTHETIC_PCI]);
}

/* GPUs, ranks and NICs attached to `above`, a switch or a NUMA node. */
static enum tess_status synthetic_leaves(const struct synthetic *self, struct synthetic_host *host,
                                         int32_t above)
{
    struct tess_topology *topology = self->topology;
    const int32_t *count = self->count;
    const double gbs = synthetic_pci_gbs(self);
    const bool ranks = count[SYNTHETIC_RANK] > 0;
    const struct tess_node nic = tess_topology_node(TESS_NODE_NIC, 0, 0);
    struct tess_node device = tess_topology_node(TESS_NODE_DEVICE, 0, 0);
    device.sm = ranks || self->gfx > 0 ? 0 : count[SYNTHETIC_SM];
    int32_t at;
    for (int32_t i = 0; i < count[ranks ? SYNTHETIC_RANK : SYNTHETIC_GPU]; i++) {
        TESS_TRY(
            synthetic_add(self, host->number, device, ranks ? "rank" : "gpu", host->devices, &at));
        TESS_TRY(tess_topology_join(topology, ranks ? TESS_LINK_LOCAL : TESS_LINK_PCI, at, above,
                                    ranks ? TESS_GBS_LOCAL : gbs, 1));
        host->device[host->devices++] = at;
    }
    for (int32_t i = 0; i < count[SYNTHETIC_NIC]; i++) {
        int32_t number = host->nics++;
        TESS_TRY(synthetic_add(self, host->number, nic, "nic", number, &at));
        TESS_TRY(tess_topology_join(topology, TESS_LINK_PCI, at, above, gbs, 1));
        if (host->net >= 0)
            TESS_TRY(tess_topology_join(topology, TESS_LINK_NET, at,
                                        host->net + number % count[SYNTHETIC_RAIL], self->edge_gbs,
                                        1));
    }
    return TESS_OK;
}

static enum tess_status synthetic_numa(const struct synthetic *self, struct synthetic_host *host,
                                       int32_t number)
{
    struct tess_node node = {.kind = TESS_NODE_CPU, .socket = -1, .maker = self->maker};
    if (self->word[SYNTHETIC_SOCKET].length > 0)
        node.socket = number / self->count[SYNTHETIC_NUMA];
    if (self->maker == TESS_CPU_INTEL)
        node.model = tess__intel_model(self->count[SYNTHETIC_SM]);
    int32_t cpu;
    TESS_TRY(synthetic_add(self, host->number, node, "numa", number, &cpu));
    if (number == 0)
        host->first_cpu = cpu;
    if (self->word[SYNTHETIC_SWITCH].length == 0)
        return synthetic_leaves(self, host, cpu);
    for (int32_t i = 0; i < self->count[SYNTHETIC_SWITCH]; i++) {
        int32_t at;
        TESS_TRY(synthetic_add(self, host->number, tess_topology_node(TESS_NODE_PCI, 0, 0),
                               "switch", host->switches++, &at));
        TESS_TRY(
            tess_topology_join(self->topology, TESS_LINK_PCI, at, cpu, synthetic_pci_gbs(self), 1));
        TESS_TRY(synthetic_leaves(self, host, at));
    }
    return TESS_OK;
}

static enum tess_status synthetic_link(const struct synthetic *self, int32_t a, int32_t b,
                                       int32_t count)
{
    double gbs =
        self->gfx > 0 ? tess__rate_xgmi(self->gfx) : tess__rate_nvlink(self->count[SYNTHETIC_SM]);
    return tess_topology_join(self->topology, TESS_LINK_NVLINK, a, b, count * gbs, count);
}

/* Two quads in which all are joined, and a link from each GPU to its like in the other. Two links
 * side by side, where a GPU has six, as in the DGX-1V. */
static enum tess_status synthetic_cube(const struct synthetic *self, const int32_t *device)
{
    static const struct {
        uint8_t a, b, links;
    } edge[] = {
        {0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {1, 2, 2}, {1, 3, 1}, {2, 3, 2}, {4, 5, 1}, {4, 6, 1},
        {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2}, {0, 4, 2}, {1, 5, 2}, {2, 6, 1}, {3, 7, 1},
    };
    bool twice = self->count[SYNTHETIC_SM] >= 70;
    for (size_t e = 0; e < sizeof(edge) / sizeof(edge[0]); e++)
        TESS_TRY(
            synthetic_link(self, device[edge[e].a], device[edge[e].b], twice ? edge[e].links : 1));
    return TESS_OK;
}

static enum tess_status synthetic_nvlinks(const struct synthetic *self,
                                          const struct synthetic_host *host)
{
    const int32_t *device = host->device, n = host->devices;
    int32_t most = tess__nvlink_links(self->count[SYNTHETIC_SM]), nvswitch = -1;
    if (self->nvlink == SYNTHETIC_CUBE)
        return synthetic_cube(self, device);
    if (self->nvlink == SYNTHETIC_MESH)
        most = n > 1 && most >= n - 1 ? most / (n - 1) : 1;
    int32_t links = self->nvlink_count > 0 ? self->nvlink_count : most;
    if (self->nvlink == SYNTHETIC_NVSWITCH)
        TESS_TRY(synthetic_add(self, host->number, tess_topology_node(TESS_NODE_NVSWITCH, 0, 0),
                               "nvswitch", -1, &nvswitch));
    for (int32_t i = 0; i < n; i++) {
        if (nvswitch >= 0)
            TESS_TRY(synthetic_link(self, device[i], nvswitch, links));
        for (int32_t j = i + 1; j < n && self->nvlink == SYNTHETIC_MESH; j++)
            TESS_TRY(synthetic_link(self, device[i], device[j], links));
        if (self->nvlink == SYNTHETIC_PAIRS && i % 2 == 1)
            TESS_TRY(synthetic_link(self, device[i - 1], device[i], links));
    }
    return TESS_OK;
}

static enum tess_status synthetic_host(const struct synthetic *self, struct synthetic_host *host)
{
    for (int32_t numa = 0; numa < self->host_numas; numa++)
        TESS_TRY(synthetic_numa(self, host, numa));
    if (host->net >= 0 && self->count[SYNTHETIC_NIC] == 0)
        TESS_TRY(tess_topology_join(self->topology, TESS_LINK_NET, host->first_cpu, host->net,
                                    self->edge_gbs, 1));
    return synthetic_nvlinks(self, host);
}

/* A rack's switch, or its rails' one after another; -1 where a host needs none. */
static enum tess_status synthetic_leaf(const struct synthetic *self, int32_t rack, int32_t spine,
                                       int32_t *leaf_out)
{
    const struct tess__word *word = self->word;
    struct tess_node net = {.kind = TESS_NODE_NET, .socket = -1};
    bool racks = word[SYNTHETIC_RACK].length > 0, rails = word[SYNTHETIC_RAIL].length > 0;
    *leaf_out = -1;
    if (!racks && !rails && self->hosts == 1 && word[SYNTHETIC_EDGE].length == 0)
        return TESS_OK;
    for (int32_t rail = 0; rail < self->count[SYNTHETIC_RAIL]; rail++) {
        char name[40] = "network";
        int32_t leaf;
        if (racks && rails)
            snprintf(name, sizeof(name), "rack%d.rail%d", (int)rack, (int)rail);
        else if (racks || rails)
            snprintf(name, sizeof(name), racks ? "rack%d" : "rail%d", (int)(racks ? rack : rail));
        net.index = racks && !rails ? rack : rail;
        TESS_TRY(synthetic_add(self, -1, net, name, -1, &leaf));
        if (rail == 0)
            *leaf_out = leaf;
        if (spine >= 0)
            TESS_TRY(tess_topology_join(self->topology, TESS_LINK_NET, leaf, spine,
                                        self->uplink_gbs, 1));
    }
    return TESS_OK;
}

static enum tess_status synthetic_graph(const struct synthetic *self, int32_t *device)
{
    int32_t spine = -1, racks = self->count[SYNTHETIC_RACK];
    if (racks > 1 || self->count[SYNTHETIC_RAIL] > 1)
        TESS_TRY(
            synthetic_add(self, -1, tess_topology_node(TESS_NODE_NET, -1, 0), "spine", -1, &spine));
    for (int32_t rack = 0; rack < racks; rack++) {
        int32_t leaf;
        TESS_TRY(synthetic_leaf(self, rack, spine, &leaf));
        for (int32_t i = 0; i < self->count[SYNTHETIC_NODE]; i++) {
            struct synthetic_host host = {
                .number = rack * self->count[SYNTHETIC_NODE] + i, .net = leaf, .device = device};
            TESS_TRY(synthetic_host(self, &host));
        }
    }
    return tess_topology_finish(self->topology);
}

/* What the words leave out. */
static void synthetic_defaults(struct synthetic *self, const struct tess_topology_options *options)
{
    const struct tess_topology_options given =
        options != NULL ? *options : (struct tess_topology_options){0};
    int32_t *count = self->count;
    if (count[SYNTHETIC_GPU] > 0) {
        uint32_t *remarks = &self->topology->remarks;
        *remarks |= count[SYNTHETIC_SM] + given.sm + self->gfx > 0 ? 0 : TESS_REMARK_SM;
        *remarks |= count[SYNTHETIC_PCI] + given.pci_gen > 0 ? 0 : TESS_REMARK_PCI;
        *remarks |= self->maker != TESS_CPU_UNKNOWN ? 0 : TESS_REMARK_CPU;
    }
    if (count[SYNTHETIC_SM] == 0)
        count[SYNTHETIC_SM] = given.sm > 0 ? given.sm : 80;
    if (count[SYNTHETIC_PCI] == 0)
        count[SYNTHETIC_PCI] =
            given.pci_gen > 0 ? given.pci_gen : tess__pci_gen(count[SYNTHETIC_SM]);
    const bool network = count[SYNTHETIC_NODE] > 1 || self->word[SYNTHETIC_RACK].length > 0 ||
                         self->word[SYNTHETIC_RAIL].length > 0;
    if (network && self->edge_gbs + given.edge_gbs <= 0)
        self->topology->remarks |= TESS_REMARK_NET;
    if (!(self->edge_gbs > 0))
        self->edge_gbs = given.edge_gbs > 0 ? given.edge_gbs : TESS_GBS_NET_UNKNOWN;
    if (!(self->uplink_gbs > 0))
        self->uplink_gbs = given.uplink_gbs > 0 ? given.uplink_gbs : TESS_GBS_NET_UNKNOWN;
    if (self->maker == TESS_CPU_UNKNOWN && count[SYNTHETIC_GPU] > 0)
        self->maker = TESS_CPU_INTEL;
}

enum tess_status tess__synthetic_build(const char *name, int32_t line, const char *text,
                                       size_t bytes, const struct tess_topology_options *options,
                                       struct tess_topology *topology)
{
    struct synthetic self = {.name = name, .line = line, .topology = topology};
    for (int32_t kind = SYNTHETIC_RACK; kind <= SYNTHETIC_SWITCH; kind++)
        self.count[kind] = 1;
    self.count[SYNTHETIC_RAIL] = 1;
    struct tess__lines lines;
    struct tess__word word;
    tess__lines_open(&lines, name, text, bytes);
    while (tess__lines_next(&lines))
        while (tess__lines_word(&lines, &word))
            TESS_TRY(synthetic_word(&self, word));
    TESS_TRY(synthetic_check(&self));
    synthetic_defaults(&self, options);
    int32_t *device = calloc((size_t)self.host_devices, sizeof(*device));
    if (!device)
        TESS_FAIL(TESS_ERR_MEMORY, "%s: no memory for a host", name);
    enum tess_status status = synthetic_name_hosts(&self);
    if (status == TESS_OK)
        status = synthetic_graph(&self, device);
    free(device);
    free(self.host_name);
    return tess__lines_named(name, status);
}

enum tess_status tess_topology_synthetic(const char *text,
                                         const struct tess_topology_options *options,
                                         struct tess_topology **topology_out)
{
    struct tess_topology *topology = tess_topology_new();
    if (!topology)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a topology");
    return tess_topology_give(
        topology, tess__synthetic_build("topology", 0, text, strlen(text), options, topology),
        topology_out);
}
