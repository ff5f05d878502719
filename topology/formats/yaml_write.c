/*
 * Writes our own format (yaml.c): one node or link a line; values that a reader assumes are left
 * out; a link and its equal back are one line. Read again it is the same topology, with its links
 * in the order of this text.
 */
#include "tessera/check.h"
#include "topology/formats/yaml_words.h"
#include "topology/machine/pool.h"

#include <stdlib.h>
#include <string.h>

const char *const tess__yaml_node[TESS_NODE_KIND_COUNT] = {
    [TESS_NODE_DEVICE] = "device", [TESS_NODE_PCI] = "pci", [TESS_NODE_NVSWITCH] = "nvswitch",
    [TESS_NODE_CPU] = "cpu",       [TESS_NODE_NIC] = "nic", [TESS_NODE_NET] = "net"};
const char *const tess__yaml_link[TESS_LINK_KIND_COUNT] = {
    [TESS_LINK_NVLINK] = "nvlink", [TESS_LINK_C2C] = "c2c",     [TESS_LINK_PCI] = "pci",
    [TESS_LINK_SYS] = "sys",       [TESS_LINK_LOCAL] = "local", [TESS_LINK_NET] = "net"};
const char *const tess__yaml_maker[TESS__YAML_MAKERS] = {
    [TESS_CPU_UNKNOWN] = "unknown", [TESS_CPU_INTEL] = "intel", [TESS_CPU_AMD] = "amd",
    [TESS_CPU_ARM] = "arm",         [TESS_CPU_POWER] = "power", [TESS_CPU_ZHAOXIN] = "zhaoxin"};

/* ---- values --------------------------------------------------------------------------------- */

/* The shortest text that is read as the same number; 5000 rather than 5e+03. */
static void writer_real(FILE *out, const char *key, double real)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, real);
        double back = strtod(text, NULL);
        bool plain = !strchr(text, 'e') || real >= 1e6 || real < 1e-4;
        if (back >= real && back <= real && plain)
            break;
    }
    fprintf(out, ", %s: %s", key, text);
}

/* `usual`: the value that a reader assumes. */
static void writer_number(FILE *out, const char *key, int32_t number, int32_t usual)
{
    if (number != usual)
        fprintf(out, ", %s: %d", key, (int)number);
}

/* A name that consists of what names are made of needs no quotes; "1" or "~" do. */
static bool writer_plain(const char *name)
{
    bool letter = (name[0] >= 'a' && name[0] <= 'z') || (name[0] >= 'A' && name[0] <= 'Z');
    return letter && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._-") == strlen(name);
}

/* The next code point of UTF-8, of which *at_inout moves past; '?' for a byte that is none. */
static uint32_t writer_point(const char **at_inout)
{
    const unsigned char *at = (const unsigned char *)*at_inout;
    int more = at[0] < 0x80 ? 0 : at[0] < 0xc0 ? -1 : at[0] < 0xe0 ? 1 : at[0] < 0xf0 ? 2 : 3;
    uint32_t point = more <= 0 ? at[0] : at[0] & (0x3fu >> more);
    for (int i = 1; i <= more; i++) {
        if ((at[i] & 0xc0) != 0x80)
            more = -1;
        else
            point = point << 6 | (at[i] & 0x3f);
    }
    *at_inout += more < 0 ? 1 : more + 1;
    bool character = more >= 0 && point <= 0x10ffff && (point < 0xd800 || point > 0xdfff);
    return character ? point : '?';
}

/* In double quotes, as ASCII. */
static void writer_quoted(FILE *out, const char *text)
{
    fputc('"', out);
    while (*text) {
        uint32_t point = writer_point(&text);
        if (point == '"' || point == '\\')
            fprintf(out, "\\%c", (int)point);
        else if (point >= ' ' && point < 0x7f)
            fputc((int)point, out);
        else
            fprintf(out, "\\U%08x", (unsigned)point);
    }
    fputc('"', out);
}

static void writer_name(FILE *out, const char *name)
{
    if (writer_plain(name))
        fputs(name, out);
    else
        writer_quoted(out, name);
}

/* ---- nodes and links ------------------------------------------------------------------------ */

static void writer_node(FILE *out, const struct tess_node *node)
{
    fputs("- {name: ", out);
    writer_name(out, node->name);
    fprintf(out, ", kind: %s", tess__yaml_node[node->kind]);
    writer_number(out, "host", node->host, node->kind == TESS_NODE_NET ? -1 : 0);
    writer_number(out, "index", node->index, 0);
    if (node->bus[0]) {
        fputs(", bus: ", out);
        writer_quoted(out, node->bus);
    }
    writer_number(out, "sm", node->sm, 0);
    writer_number(out, "socket", node->socket, -1);
    if (node->maker != TESS_CPU_UNKNOWN)
        fprintf(out, ", maker: %s", tess__yaml_maker[node->maker]);
    writer_number(out, "model", node->model, 0);
    fputs("}\n", out);
}

static void writer_link(FILE *out, const struct tess_topology *topology,
                        const struct tess_topo_link *link, bool both)
{
    fputs(both ? "- {between: [" : "- {from: ", out);
    writer_name(out, topology->node[link->from].name);
    fputs(both ? ", " : ", to: ", out);
    writer_name(out, topology->node[link->to].name);
    fprintf(out, "%s, kind: %s", both ? "]" : "", tess__yaml_link[link->kind]);
    writer_real(out, "gbs", link->gbs);
    if (link->latency_us > 0)
        writer_real(out, "latency-us", link->latency_us);
    writer_number(out, "count", link->count, 1);
    fputs("}\n", out);
}

/* Links with their ends in order, so that one and its like back are neighbours. */
struct yaml_pair {
    int32_t low, high, kind, link;
};

static int writer_compare(const void *a, const void *b)
{
    const struct yaml_pair *x = a, *y = b;
    if (x->low != y->low)
        return x->low < y->low ? -1 : 1;
    if (x->high != y->high)
        return x->high < y->high ? -1 : 1;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return (x->link > y->link) - (x->link < y->link);
}

static bool writer_alike(const struct tess_topo_link *a, const struct tess_topo_link *b)
{
    return a->kind == b->kind && a->from == b->to && a->to == b->from && a->count == b->count &&
           memcmp(&a->gbs, &b->gbs, sizeof a->gbs) == 0 &&
           memcmp(&a->latency_us, &b->latency_us, sizeof a->latency_us) == 0;
}

static enum tess_status writer_links(FILE *out, const struct tess_topology *topology)
{
    int32_t count = topology->link_count;
    struct yaml_pair *pair = malloc(((size_t)count + 1) * sizeof *pair);
    if (!pair)
        return tess__no_memory("the links");
    for (int32_t i = 0; i < count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        bool rising = link->from < link->to;
        pair[i] = (struct yaml_pair){rising ? link->from : link->to, rising ? link->to : link->from,
                                     (int32_t)link->kind, i};
    }
    qsort(pair, (size_t)count, sizeof *pair, writer_compare);
    if (count > 0)
        fputs("links:\n", out);
    for (int32_t i = 0; i < count; i++) {
        const struct tess_topo_link *link = &topology->link[pair[i].link];
        bool both = i + 1 < count && writer_alike(link, &topology->link[pair[i + 1].link]);
        writer_link(out, topology, link, both);
        i += both;
    }
    free(pair);
    return TESS_OK;
}

enum tess_status tess_topology_write_yaml(const struct tess_topology *topology, char **text_out)
{
    size_t bytes;
    enum tess_status status = TESS_OK;
    *text_out = NULL;
    FILE *out = open_memstream(text_out, &bytes);
    if (out) {
        fputs("tessera-topology: 1\nnodes:\n", out);
        for (int32_t i = 0; i < topology->node_count; i++)
            writer_node(out, &topology->node[i]);
        status = writer_links(out, topology);
    }
    TESS_KEEP(status, tess__text_close(out, text_out));
    if (status != TESS_OK) {
        free(*text_out);
        *text_out = NULL;
    }
    return status;
}
