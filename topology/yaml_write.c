/*
 * Writes our own format (yaml.c), by libyaml's emitter: one node or link a line, what has the value
 * that is meant when it is left out is left out, a link and its like back are one line. Read again
 * it is the same topology, with its links in the order of this text.
 */
#include "tessera/check.h"
#include "topology/yaml_words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

const char *const tess__yaml_node[TESS_NODE_KIND_COUNT] = {
    [TESS_NODE_DEVICE] = "device", [TESS_NODE_PCI] = "pci", [TESS_NODE_NVSWITCH] = "nvswitch",
    [TESS_NODE_CPU] = "cpu",       [TESS_NODE_NIC] = "nic", [TESS_NODE_NET] = "net"};
const char *const tess__yaml_link[TESS_LINK_KIND_COUNT] = {
    [TESS_LINK_NVLINK] = "nvlink", [TESS_LINK_C2C] = "c2c",     [TESS_LINK_PCI] = "pci",
    [TESS_LINK_SYS] = "sys",       [TESS_LINK_LOCAL] = "local", [TESS_LINK_NET] = "net"};
const char *const tess__yaml_maker[TESS__YAML_MAKERS] = {
    [TESS_CPU_UNKNOWN] = "unknown", [TESS_CPU_INTEL] = "intel", [TESS_CPU_AMD] = "amd",
    [TESS_CPU_ARM] = "arm",         [TESS_CPU_POWER] = "power", [TESS_CPU_ZHAOXIN] = "zhaoxin"};

struct yaml_writer {
    yaml_emitter_t emitter;
    char *text;
    size_t used, room;
    bool failed; /* no memory, somewhere; all calls after that do nothing */
};

/* ---- text and events ------------------------------------------------------------------------ */

static int writer_take(void *context, unsigned char *bytes, size_t count)
{
    struct yaml_writer *self = context;
    if (self->room - self->used <= count) {
        size_t room = 2 * (self->room + count) + 4096;
        char *grown = realloc(self->text, room);
        if (!grown)
            return 0;
        self->text = grown;
        self->room = room;
    }
    memcpy(self->text + self->used, bytes, count);
    self->used += count;
    self->text[self->used] = '\0';
    return 1;
}

/* `made`: what libyaml's initializer of the event returned. */
static void writer_emit(struct yaml_writer *self, yaml_event_t *event, int made)
{
    if (self->failed) {
        if (made)
            yaml_event_delete(event);
        return;
    }
    self->failed = !made || !yaml_emitter_emit(&self->emitter, event); /* which takes the event */
}

/* Quoted where it might be read as something else. */
static void writer_text(struct yaml_writer *self, const char *text, bool quoted)
{
    yaml_event_t event;
    int made = yaml_scalar_event_initialize(
        &event, NULL, NULL, (const yaml_char_t *)text, (int)strlen(text), 1, 1,
        quoted ? YAML_DOUBLE_QUOTED_SCALAR_STYLE : YAML_PLAIN_SCALAR_STYLE);
    writer_emit(self, &event, made);
}

static void writer_word(struct yaml_writer *self, const char *key, const char *value)
{
    writer_text(self, key, false);
    writer_text(self, value, false);
}

static void writer_number(struct yaml_writer *self, const char *key, int32_t number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", (int)number);
    writer_word(self, key, text);
}

/* The shortest text that is read as the same number; 5000 rather than 5e+03. */
static void writer_real(struct yaml_writer *self, const char *key, double real)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, real);
        double back = strtod(text, NULL);
        bool plain = !strchr(text, 'e') || real >= 1e6 || real < 1e-4;
        if (back >= real && back <= real && plain)
            break;
    }
    writer_word(self, key, text);
}

/* A name that consists of what names are made of needs no quotes; "1" or "~" do. */
static bool writer_plain(const char *name)
{
    bool letter = (name[0] >= 'a' && name[0] <= 'z') || (name[0] >= 'A' && name[0] <= 'Z');
    return letter && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._-") == strlen(name);
}

static void writer_name(struct yaml_writer *self, const char *name)
{
    writer_text(self, name, !writer_plain(name));
}

static void writer_map(struct yaml_writer *self, bool begins, yaml_mapping_style_t style)
{
    yaml_event_t event;
    int made = begins ? yaml_mapping_start_event_initialize(&event, NULL, NULL, 1, style)
                      : yaml_mapping_end_event_initialize(&event);
    writer_emit(self, &event, made);
}

static void writer_list(struct yaml_writer *self, bool begins, yaml_sequence_style_t style)
{
    yaml_event_t event;
    int made = begins ? yaml_sequence_start_event_initialize(&event, NULL, NULL, 1, style)
                      : yaml_sequence_end_event_initialize(&event);
    writer_emit(self, &event, made);
}

/* ---- nodes and links ------------------------------------------------------------------------ */

static void writer_node(struct yaml_writer *self, const struct tess_node *node)
{
    writer_map(self, true, YAML_FLOW_MAPPING_STYLE);
    writer_text(self, "name", false);
    writer_name(self, node->name);
    writer_word(self, "kind", tess__yaml_node[node->kind]);
    if (node->host != (node->kind == TESS_NODE_NET ? -1 : 0))
        writer_number(self, "host", node->host);
    if (node->index != 0)
        writer_number(self, "index", node->index);
    if (node->bus[0]) {
        writer_text(self, "bus", false);
        writer_text(self, node->bus, true);
    }
    if (node->sm != 0)
        writer_number(self, "sm", node->sm);
    if (node->socket != -1)
        writer_number(self, "socket", node->socket);
    if (node->maker != TESS_CPU_UNKNOWN)
        writer_word(self, "maker", tess__yaml_maker[node->maker]);
    if (node->model != 0)
        writer_number(self, "model", node->model);
    writer_map(self, false, YAML_FLOW_MAPPING_STYLE);
}

static void writer_link(struct yaml_writer *self, const struct tess_topology *topology,
                        const struct tess_topo_link *link, bool both)
{
    writer_map(self, true, YAML_FLOW_MAPPING_STYLE);
    if (both) {
        writer_text(self, "between", false);
        writer_list(self, true, YAML_FLOW_SEQUENCE_STYLE);
    } else {
        writer_text(self, "from", false);
    }
    writer_name(self, topology->node[link->from].name);
    if (!both)
        writer_text(self, "to", false);
    writer_name(self, topology->node[link->to].name);
    if (both)
        writer_list(self, false, YAML_FLOW_SEQUENCE_STYLE);
    writer_word(self, "kind", tess__yaml_link[link->kind]);
    writer_real(self, "gbs", link->gbs);
    if (link->latency_us > 0)
        writer_real(self, "latency-us", link->latency_us);
    if (link->count != 1)
        writer_number(self, "count", link->count);
    writer_map(self, false, YAML_FLOW_MAPPING_STYLE);
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

static void writer_links(struct yaml_writer *self, const struct tess_topology *topology)
{
    int32_t count = topology->link_count;
    struct yaml_pair *pair = malloc(((size_t)count + 1) * sizeof *pair);
    if (!pair) {
        self->failed = true;
        return;
    }
    for (int32_t i = 0; i < count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        bool rising = link->from < link->to;
        pair[i] = (struct yaml_pair){rising ? link->from : link->to, rising ? link->to : link->from,
                                     (int32_t)link->kind, i};
    }
    qsort(pair, (size_t)count, sizeof *pair, writer_compare);
    writer_list(self, true, YAML_BLOCK_SEQUENCE_STYLE);
    for (int32_t i = 0; i < count; i++) {
        const struct tess_topo_link *link = &topology->link[pair[i].link];
        bool both = i + 1 < count && writer_alike(link, &topology->link[pair[i + 1].link]);
        writer_link(self, topology, link, both);
        i += both;
    }
    writer_list(self, false, YAML_BLOCK_SEQUENCE_STYLE);
    free(pair);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static void writer_document(struct yaml_writer *self, const struct tess_topology *topology)
{
    yaml_event_t event;
    writer_emit(self, &event, yaml_stream_start_event_initialize(&event, YAML_UTF8_ENCODING));
    writer_emit(self, &event, yaml_document_start_event_initialize(&event, NULL, NULL, NULL, 1));
    writer_map(self, true, YAML_BLOCK_MAPPING_STYLE);
    writer_number(self, "tessera-topology", 1);
    writer_text(self, "nodes", false);
    writer_list(self, true, YAML_BLOCK_SEQUENCE_STYLE);
    for (int32_t i = 0; i < topology->node_count; i++)
        writer_node(self, &topology->node[i]);
    writer_list(self, false, YAML_BLOCK_SEQUENCE_STYLE);
    if (topology->link_count > 0) {
        writer_text(self, "links", false);
        writer_links(self, topology);
    }
    writer_map(self, false, YAML_BLOCK_MAPPING_STYLE);
    writer_emit(self, &event, yaml_document_end_event_initialize(&event, 1));
    writer_emit(self, &event, yaml_stream_end_event_initialize(&event));
}

enum tess_status tess_topology_write_yaml(const struct tess_topology *topology, char **text_out)
{
    struct yaml_writer self = {.text = NULL};
    if (!yaml_emitter_initialize(&self.emitter))
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to write a topology");
    yaml_emitter_set_output(&self.emitter, writer_take, &self);
    yaml_emitter_set_width(&self.emitter, -1);
    yaml_emitter_set_unicode(&self.emitter, 1);
    writer_document(&self, topology);
    yaml_emitter_delete(&self.emitter);
    if (self.failed || !self.text) {
        free(self.text);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to write a topology");
    }
    *text_out = self.text;
    return TESS_OK;
}
