/*
 * A host as NCCL's topology XML: processors, the PCI tree below them, NVLinks, NICs; one element a
 * line, as NCCL's parser requires. What depends on the machine or the job (affinity, rank, gdr) is
 * left out: NCCL fills in what is absent and takes what is present. The format cannot express
 * sockets of several NUMA nodes.
 */
#include "topology/formats/nccl.h"
#include "topology/machine/bus.h"
#include "topology/machine/pool.h"
#include "topology/machine/rates.h"

#include "tessera/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRITE_DEPTH_MAX (TESS_XML_DEPTH_MAX - 4) /* system, gpu or nic, and below them */

#define WRITE_ELEMENTS_2_28 255 /* NCCL 2.28 stops at 256 elements of a topology */

struct writer {
    struct tess__pool pool;
    const struct tess_topology *topology;
    int32_t host;
    FILE *out;
    int32_t *first, *next; /* of a node's links: first[node], next[link]; -1 */
    int32_t *up;           /* the link to what a node is attached to; -1: not written (so far) */
    uint64_t *bus;
    bool invented; /* some bus id is */
    bool amd;      /* rccl's dialect: xGMI */
};

static const struct tess_node *writer_node(const struct writer *w, int32_t node)
{
    return &w->topology->node[node];
}

static bool writer_here(const struct writer *w, int32_t node)
{
    return writer_node(w, node)->host == w->host;
}

/* ---- the tree of attachments ----------------------------------------------------------------- */

/* The first link of this kind and direction to a node of that kind, from `link` on; -1. */
static int32_t writer_find(const struct writer *w, int32_t link, enum tess_link_kind kind,
                           enum tess_node_kind to)
{
    for (; link >= 0; link = w->next[link]) {
        const struct tess_topo_link *at = &w->topology->link[link];
        if (at->kind == kind && writer_node(w, at->to)->kind == to)
            break;
    }
    return link;
}

static bool writer_attaches(const struct writer *w, const struct tess_topo_link *link)
{
    const enum tess_node_kind from = writer_node(w, link->from)->kind;
    const enum tess_node_kind to = writer_node(w, link->to)->kind;
    if (!writer_here(w, link->to) || w->up[link->to] >= 0)
        return false;
    if (link->kind == TESS_LINK_PCI && (from == TESS_NODE_CPU || from == TESS_NODE_PCI))
        return to == TESS_NODE_PCI || to == TESS_NODE_DEVICE || to == TESS_NODE_NIC;
    return link->kind == TESS_LINK_LOCAL && to == TESS_NODE_NIC &&
           (from == TESS_NODE_CPU || from == TESS_NODE_NIC);
}

/* Breadth first from the processors, which makes a tree of any graph. */
static enum tess_status writer_tree(struct writer *w, int32_t *queue)
{
    const int32_t count = w->topology->node_count;
    int32_t head = 0, tail = 0;
    for (int32_t i = 0; i < count; i++) {
        if (writer_here(w, i) && writer_node(w, i)->kind == TESS_NODE_CPU)
            queue[tail++] = i;
    }
    while (head < tail) {
        const int32_t at = queue[head++];
        for (int32_t l = w->first[at]; l >= 0; l = w->next[l]) {
            const struct tess_topo_link *link = &w->topology->link[l];
            if (writer_attaches(w, link)) {
                w->up[link->to] = l;
                queue[tail++] = link->to;
            }
        }
    }
    int32_t devices = 0;
    for (int32_t i = 0; i < count; i++) {
        if (!writer_here(w, i) || writer_node(w, i)->kind != TESS_NODE_DEVICE)
            continue;
        if (w->up[i] < 0)
            TESS_FAIL(TESS_ERR_UNSUPPORTED,
                      "'%s' has no PCI link towards a processor, which NCCL's format needs",
                      writer_node(w, i)->name);
        devices++;
    }
    if (devices == 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "host %d has no device, and NCCL's format is about devices; choose another",
                  (int)w->host);
    return TESS_OK;
}

/* NCCL's spelling of a bus id, or one that no machine has: the format needs one. */
static void writer_bus(struct writer *w, int32_t node, int32_t *invented)
{
    const struct tess_node *at = writer_node(w, node);
    char text[20];
    if (tess__bus_parse(at->bus, strlen(at->bus), &w->bus[node]))
        return;
    do {
        const uint32_t k = (uint32_t)(*invented)++;
        w->bus[node] = (uint64_t)0xffff << 24 | (uint64_t)(0xff - (k >> 5 & 0xff)) << 16 |
                       (uint64_t)(k & 0x1f) << 8 | (k >> 13 & 0xf);
        tess__bus_text(w->bus[node], text, sizeof(text));
    } while (tess_topology_find_bus(w->topology, w->host, text) >= 0 && *invented < 1 << 17);
    w->invented = true;
}

static enum tess_status writer_prepare(struct writer *w)
{
    const struct tess_topology *t = w->topology;
    int32_t invented = 1;
    const size_t nodes = (size_t)t->node_count;
    w->first = tess__pool_array(&w->pool, nodes, sizeof(*w->first));
    w->next = tess__pool_array(&w->pool, (size_t)t->link_count, sizeof(*w->next));
    w->up = tess__pool_array(&w->pool, nodes, sizeof(*w->up));
    w->bus = tess__pool_array(&w->pool, nodes, sizeof(*w->bus));
    int32_t *queue = tess__pool_array(&w->pool, nodes, sizeof(*queue));
    if (w->pool.failed)
        return tess__no_memory("the topology as text");
    for (int32_t i = 0; i < t->node_count; i++)
        w->first[i] = w->up[i] = -1;
    for (int32_t l = t->link_count - 1; l >= 0; l--) {
        w->next[l] = w->first[t->link[l].from];
        w->first[t->link[l].from] = l;
    }
    for (int32_t l = 0; l < t->link_count; l++)
        w->amd = w->amd || tess_topology_gfx(t, &t->link[l]) > 0;
    TESS_TRY(writer_tree(w, queue));
    for (int32_t i = 0; i < t->node_count; i++) {
        if (w->up[i] >= 0 && t->link[w->up[i]].kind == TESS_LINK_PCI)
            writer_bus(w, i, &invented);
    }
    return TESS_OK;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* In quotes, without the host in front and the dev behind that made equal names differ. */
static void writer_name(const struct writer *w, const struct tess_node *node)
{
    char front[16], back[16];
    const char *name = node->name;
    snprintf(front, sizeof(front), "n%d.", (int)node->host);
    snprintf(back, sizeof(back), "#%d", (int)node->index);
    if (w->topology->host_count > 1 && strncmp(name, front, strlen(front)) == 0)
        name += strlen(front);
    size_t length = strlen(name);
    if (length > strlen(back) && strcmp(name + length - strlen(back), back) == 0)
        length -= strlen(back);
    fputc('"', w->out);
    for (size_t i = 0; i < length; i++) {
        const char c = name[i];
        fputc(c < ' ' || c > '~' || strchr("\"<&", c) != NULL ? '_' : c, w->out);
    }
    fputc('"', w->out);
}

static void writer_net(const struct writer *w, int32_t nic, int depth)
{
    const struct tess_node *node = writer_node(w, nic);
    const int32_t l = writer_find(w, w->first[nic], TESS_LINK_NET, TESS_NODE_NET);
    if (l < 0)
        return;
    const struct tess_topo_link *link = &w->topology->link[l];
    const long long nanos = llround(link->latency_us * 1000);
    fprintf(w->out, "%*s<net name=", 2 * depth, "");
    writer_name(w, node);
    fprintf(w->out, " dev=\"%d\" speed=\"%lld\"", (int)(node->index < 0 ? 0 : node->index),
            llround(link->gbs * 8000));
    if (nanos > 0)
        fprintf(w->out, " latency=\"%lld.%03lld\"", nanos / 1000, nanos % 1000);
    fprintf(w->out, "/>\n");
}

/* A card: the port at its bus id and those beside it. */
static void writer_nic(const struct writer *w, int32_t nic, int depth)
{
    fprintf(w->out, "%*s<nic>\n", 2 * depth, "");
    writer_net(w, nic, depth + 1);
    for (int32_t l = w->first[nic]; l >= 0; l = w->next[l]) {
        const int32_t port = w->topology->link[l].to;
        if (w->topology->link[l].kind == TESS_LINK_LOCAL && w->up[port] == l)
            writer_net(w, port, depth + 1);
    }
    fprintf(w->out, "%*s</nic>\n", 2 * depth, "");
}

static void writer_nvlink(const struct writer *w, const struct tess_topo_link *link, int depth)
{
    const struct tess_node *to = writer_node(w, link->to);
    const double one = tess__rate_nvlink(writer_node(w, link->from)->sm);
    char target[20] = "fffffff:ffff:ff"; /* how NCCL calls an NVSwitch it cannot see */
    const char *class = "0x068000";
    if (to->kind == TESS_NODE_CPU) {
        tess__bus_text(0, target, sizeof(target));
        class = "0x068001";
    } else if (to->kind == TESS_NODE_DEVICE && w->up[link->to] >= 0) {
        tess__bus_text(w->bus[link->to], target, sizeof(target));
        class = "0x030200";
    } else if (to->kind != TESS_NODE_NVSWITCH) {
        return; /* a device of another host */
    }
    const int count = link->count > 0 ? (int)link->count : (int)fmax(1, round(link->gbs / one));
    fprintf(w->out, "%*s<%s target=\"%s\" count=\"%d\" tclass=\"%s\"/>\n", 2 * depth, "",
            tess_topology_gfx(w->topology, link) > 0 ? "xgmi" : "nvlink", target, count, class);
}

static void writer_gpu(const struct writer *w, int32_t device, int depth)
{
    const struct tess_node *node = writer_node(w, device);
    fprintf(w->out, "%*s<gpu dev=\"%d\"", 2 * depth, "", (int)node->index);
    if (node->sm > 0)
        fprintf(w->out, " sm=\"%d\"", (int)node->sm);
    for (int32_t l = w->first[device]; l >= 0; l = w->next[l]) {
        const int32_t gfx = tess_topology_gfx(w->topology, &w->topology->link[l]);
        if (gfx > 0) {
            fprintf(w->out, " gcn=\"gfx%x\"", (unsigned)gfx);
            break;
        }
    }
    fprintf(w->out, ">\n");
    for (int32_t l = w->first[device]; l >= 0; l = w->next[l]) {
        const struct tess_topo_link *link = &w->topology->link[l];
        const int count = link->count > 0 ? (int)link->count : 1;
        if (link->kind == TESS_LINK_NVLINK) {
            writer_nvlink(w, link, depth + 1);
        } else if (link->kind == TESS_LINK_C2C && writer_node(w, link->to)->kind == TESS_NODE_CPU) {
            fprintf(w->out, "%*s<c2c bw=\"%lld\" count=\"%d\"/>\n", 2 * (depth + 1), "",
                    llround(link->gbs * 1000 / count), count);
        }
    }
    fprintf(w->out, "%*s</gpu>\n", 2 * depth, "");
}

static void writer_pcilinks(const struct writer *w, int32_t node, int depth)
{
    for (int32_t l = writer_find(w, w->first[node], TESS_LINK_LOCAL, TESS_NODE_PCI); l >= 0;
         l = writer_find(w, w->next[l], TESS_LINK_LOCAL, TESS_NODE_PCI)) {
        const int32_t to = w->topology->link[l].to;
        char target[20];
        if (w->up[to] < 0)
            continue;
        tess__bus_text(w->bus[to], target, sizeof(target));
        fprintf(w->out, "%*s<pcilink target=\"%s\"/>\n", 2 * depth, "", target);
    }
}

static enum tess_status writer_below(const struct writer *w, int32_t node, int depth);

/* A <pci> with all below it; link: from what it is attached to. */
static enum tess_status writer_pci(const struct writer *w, const struct tess_topo_link *link,
                                   int depth)
{
    static const char *const speeds[] = {"2.5", "5.0", "8.0", "16.0", "32.0", "64.0"};
    const enum tess_node_kind kind = writer_node(w, link->to)->kind;
    const bool bare = kind == TESS_NODE_NIC &&
                      writer_find(w, w->first[link->to], TESS_LINK_NET, TESS_NODE_NET) < 0;
    char bus[20];
    int32_t generation, width;
    if (depth > WRITE_DEPTH_MAX)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "more than %d switches are between '%s' and its processor",
                  WRITE_DEPTH_MAX - 2, writer_node(w, link->to)->name);
    tess__bus_text(w->bus[link->to], bus, sizeof(bus));
    tess__rate_pci_nearest(link->gbs, &generation, &width);
    fprintf(w->out,
            "%*s<pci busid=\"%s\" class=\"%s\" link_speed=\"%s GT/s PCIe\" link_width=\"%d\"%s\n",
            2 * depth, "", bus,
            kind == TESS_NODE_DEVICE ? "0x030200"
            : kind == TESS_NODE_NIC  ? "0x020000"
                                     : "0x060400",
            speeds[generation - 1], (int)width, bare ? "/>" : ">");
    if (bare)
        return TESS_OK;
    if (kind == TESS_NODE_DEVICE)
        writer_gpu(w, link->to, depth + 1);
    else if (kind == TESS_NODE_NIC)
        writer_nic(w, link->to, depth + 1);
    else
        TESS_TRY(writer_below(w, link->to, depth + 1));
    fprintf(w->out, "%*s</pci>\n", 2 * depth, "");
    return TESS_OK;
}

/* What is attached to a processor or a switch. */
static enum tess_status writer_below(const struct writer *w, int32_t node, int depth)
{
    for (int32_t l = w->first[node]; l >= 0; l = w->next[l]) {
        const struct tess_topo_link *link = &w->topology->link[l];
        if (w->up[link->to] != l)
            continue;
        if (link->kind == TESS_LINK_PCI)
            TESS_TRY(writer_pci(w, link, depth));
        else if (link->kind == TESS_LINK_LOCAL && writer_node(w, link->to)->kind == TESS_NODE_NIC)
            writer_nic(w, link->to, depth);
    }
    writer_pcilinks(w, node, depth);
    return TESS_OK;
}

static enum tess_status writer_cpu(const struct writer *w, int32_t cpu)
{
    static const char *const makers[] = {
        [TESS_CPU_UNKNOWN] = "",
        [TESS_CPU_INTEL] = " arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\"",
        [TESS_CPU_AMD] = " arch=\"x86_64\" vendor=\"AuthenticAMD\"",
        [TESS_CPU_ARM] = " arch=\"arm64\"",
        [TESS_CPU_POWER] = " arch=\"ppc64\"",
        [TESS_CPU_ZHAOXIN] = " arch=\"x86_64\" vendor=\"CentaurHauls\" familyid=\"7\"",
    };
    const struct tess_node *node = writer_node(w, cpu);
    fprintf(w->out, "  <cpu numaid=\"%d\"%s", (int)node->index, makers[node->maker]);
    if (node->maker == TESS_CPU_INTEL || node->maker == TESS_CPU_ZHAOXIN || node->model > 0)
        fprintf(w->out, " modelid=\"%d\"", (int)node->model);
    fprintf(w->out, ">\n");
    TESS_TRY(writer_below(w, cpu, 2));
    fprintf(w->out, "  </cpu>\n");
    return TESS_OK;
}

static enum tess_status writer_system(const struct writer *w)
{
    if (w->invented)
        fprintf(w->out,
                "<!-- Bus ids ffff:.. are invented: the source of this file has none. -->\n");
    fprintf(w->out, "<system version=\"%d\">\n", w->amd ? 2 : 1);
    for (int32_t i = 0; i < w->topology->node_count; i++) {
        if (writer_here(w, i) && writer_node(w, i)->kind == TESS_NODE_CPU)
            TESS_TRY(writer_cpu(w, i));
    }
    fprintf(w->out, "</system>\n");
    return TESS_OK;
}

/* Elements begin a line; </...> and the comment do not count. */
static void writer_warn(const char *text)
{
    int elements = 0;
    for (const char *at = strchr(text, '<'); at != NULL; at = strchr(at + 1, '<'))
        elements += at[1] != '/' && at[1] != '!';
    if (elements > WRITE_ELEMENTS_2_28)
        tess_log(TESS_LOG_WARN,
                 "the topology in NCCL's format has %d elements; NCCL before 2.30 reads %d",
                 elements, WRITE_ELEMENTS_2_28);
}

enum tess_status tess_topology_write_nccl(const struct tess_topology *topology, int32_t host,
                                          char **text_out)
{
    struct writer w = {.topology = topology, .host = host};
    size_t bytes;
    *text_out = NULL;
    if (host < 0 || host >= topology->host_count)
        TESS_FAIL(TESS_ERR_USAGE, "host %d is to be written; there are 0 to %d", (int)host,
                  (int)topology->host_count - 1);
    enum tess_status status = writer_prepare(&w);
    if (status == TESS_OK) {
        w.out = open_memstream(text_out, &bytes);
        if (w.out != NULL)
            status = writer_system(&w);
        TESS_KEEP(status, tess__text_close(w.out, text_out));
    }
    if (status == TESS_OK) {
        writer_warn(*text_out);
    } else {
        free(*text_out);
        *text_out = NULL;
    }
    tess__pool_release(&w.pool);
    return status;
}
