/*
 * Writes our own format (yaml.c): one node or link a line; values that a reader assumes are left
 * out; a link and its equal back are one line. Read again it is the same topology, with its links
 * in the order of this text.
 */
#include "base/options_set.h"
#include "tessera/check.h"
#include "topology/formats/yaml_fields.h"
#include "topology/machine/pool.h"

#include <stdlib.h>
#include <string.h>

/* ---- values --------------------------------------------------------------------------------- */

/* The shortest text that is read as the same number; 5000 rather than 5e+03. */
static void writer_real(FILE *out, double real)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, real);
        double back = strtod(text, NULL);
        bool plain = strchr(text, 'e') == NULL || real >= 1e6 || real < 1e-4;
        if (back >= real && back <= real && plain)
            break;
    }
    fputs(text, out);
}

/* A name that consists of what names are made of needs no quotes; "1" or "~" do. */
static bool writer_plain(const char *name)
{
    bool letter = (name[0] >= 'a' && name[0] <= 'z') || (name[0] >= 'A' && name[0] <= 'Z');
    return letter && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._-") == strlen(name);
}

/* In double quotes, as ASCII. */
static void writer_quoted(FILE *out, const char *text)
{
    fputc('"', out);
    while (*text != '\0') {
        uint32_t point = '?';
        int length = tess__utf8_length(text, strlen(text), &point);
        text += length > 0 ? length : 1;
        if (point == '"' || point == '\\')
            fprintf(out, "\\%c", (int)point);
        else if (point >= ' ' && point < 0x7f)
            fputc((int)point, out);
        else
            fprintf(out, "\\U%08x", (unsigned)point);
    }
    fputc('"', out);
}

static void writer_text(FILE *out, const char *text)
{
    if (writer_plain(text))
        fputs(text, out);
    else
        writer_quoted(out, text);
}

/* ---- nodes and links ------------------------------------------------------------------------ */

/* The fields that differ from what a reader assumes, to the end of the line. */
static void writer_fields(FILE *out, const struct tess__yaml_field *field, int32_t count,
                          const void *item, const void *usual)
{
    static const size_t bytes[] = {[TESS__YAML_NUMBER] = sizeof(int32_t),
                                   [TESS__YAML_REAL] = sizeof(double),
                                   [TESS__YAML_TEXT] = 1,
                                   [TESS__YAML_WORD] = sizeof(int32_t)};
    const char *before = "";
    for (int32_t k = 0; k < count; k++) {
        const char *at = (const char *)item + field[k].at;
        int32_t number;
        double real;
        if (memcmp(at, (const char *)usual + field[k].at, bytes[field[k].type]) == 0)
            continue;
        fprintf(out, "%s%s: ", before, field[k].key);
        before = ", ";
        if (field[k].type == TESS__YAML_TEXT) {
            writer_text(out, at);
        } else if (field[k].type == TESS__YAML_REAL) {
            memcpy(&real, at, sizeof(real));
            writer_real(out, real);
        } else {
            memcpy(&number, at, sizeof(number));
            if (field[k].type == TESS__YAML_WORD)
                fputs(field[k].word[number], out);
            else
                fprintf(out, "%d", (int)number);
        }
    }
    fputs("}\n", out);
}

static void writer_node(FILE *out, const struct tess_node *node)
{
    const struct tess_node usual = {
        .kind = TESS_NODE_KIND_COUNT, .host = node->kind == TESS_NODE_NET ? -1 : 0, .socket = -1};
    fputs("- {", out);
    writer_fields(out, tess__yaml_node, TESS__YAML_NODE_FIELDS, node, &usual);
}

static void writer_link(FILE *out, const struct tess_topology *topology,
                        const struct tess_topo_link *link, bool both)
{
    const struct tess_topo_link usual = {.kind = TESS_LINK_KIND_COUNT, .gbs = -1, .count = 1};
    fputs(both ? "- {between: [" : "- {from: ", out);
    writer_text(out, topology->node[link->from].name);
    fputs(both ? ", " : ", to: ", out);
    writer_text(out, topology->node[link->to].name);
    fputs(both ? "], " : ", ", out);
    writer_fields(out, tess__yaml_link + TESS__YAML_LINK_ENDS,
                  TESS__YAML_LINK_FIELDS - TESS__YAML_LINK_ENDS, link, &usual);
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
