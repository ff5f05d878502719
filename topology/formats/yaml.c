/*
 * Reads our own format: nodes and links by name, or a line of synthetic.c's words. It holds all
 * that a topology holds, and is meant to be written by hand as well.
 *
 *     tessera-topology: 1
 *     nodes:
 *       - {name: gpu0, kind: device, host: 0, index: 0, sm: 90, bus: "0000:17:00.0"}
 *       - {name: numa0, kind: cpu, host: 0, index: 0, socket: 0, maker: intel, model: 143}
 *       - {name: leaf0, kind: net}
 *     links:
 *       - {between: [gpu0, numa0], kind: pci, gbs: 48}
 *       - {from: numa0, to: leaf0, kind: net, gbs: 12.5, latency-us: 3}
 *
 *     tessera-topology: 1
 *     machine: node:2 numa:2 gpu:4 nvlink:switch sm:90
 *
 * kind of a node: device pci nvswitch cpu nic net; of a link: nvlink c2c pci sys local net.
 * `between` is both directions, `from` and `to` one. Left out are: host 0 (net: none), index and sm
 * 0, socket none, count 1. Every name must be there before the links. Anchors, tags and several
 * documents are refused. Writing is yaml_write.c's.
 */
#include "base/options.h"
#include "tessera/check.h"
#include "topology/formats/lines.h"
#include "topology/formats/synthetic.h"
#include "topology/formats/yaml_words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define YAML_TEXT_MAX 1024

struct yaml_name {
    char text[TESS_TOPO_NAME_MAX];
    int32_t node;
};

struct yaml_reader {
    const char *name;
    const struct tess_topology_options *options;
    struct tess_topology *topology;
    yaml_parser_t parser;
    yaml_event_t event;
    struct yaml_name *known; /* [node_count], sorted; from where links begin */
};

/* A scalar with its place. */
struct yaml_value {
    char text[YAML_TEXT_MAX];
    int32_t line;
};

/* ---- events --------------------------------------------------------------------------------- */

static int32_t yaml_line(const struct yaml_reader *self)
{
    return (int32_t)self->event.start_mark.line + 1;
}

static enum tess_status yaml_next(struct yaml_reader *self)
{
    yaml_event_delete(&self->event);
    memset(&self->event, 0, sizeof self->event);
    yaml_parser_t *parser = &self->parser;
    if (!yaml_parser_parse(parser, &self->event)) {
        memset(&self->event, 0, sizeof self->event);
        if (parser->error == YAML_MEMORY_ERROR)
            TESS_FAIL(TESS_ERR_MEMORY, "%s: no memory for the file", self->name);
        return tess__lines_fail(self->name, (int32_t)parser->problem_mark.line + 1, "not YAML: %s",
                                parser->problem ? parser->problem : "unknown error");
    }
    const yaml_event_t *event = &self->event;
    const void *anchor = NULL, *tag = NULL;
    if (event->type == YAML_SCALAR_EVENT)
        anchor = event->data.scalar.anchor, tag = event->data.scalar.tag;
    else if (event->type == YAML_SEQUENCE_START_EVENT)
        anchor = event->data.sequence_start.anchor, tag = event->data.sequence_start.tag;
    else if (event->type == YAML_MAPPING_START_EVENT)
        anchor = event->data.mapping_start.anchor, tag = event->data.mapping_start.tag;
    if (event->type == YAML_ALIAS_EVENT || anchor || tag)
        return tess__lines_fail(self->name, yaml_line(self),
                                "anchors, aliases and tags (& * !) are not supported");
    return TESS_OK;
}

/* The current event as a scalar. `what` is for messages. */
static enum tess_status yaml_scalar(struct yaml_reader *self, const char *what,
                                    struct yaml_value *value_out)
{
    if (self->event.type != YAML_SCALAR_EVENT)
        return tess__lines_fail(self->name, yaml_line(self), "%s was expected", what);
    size_t length = self->event.data.scalar.length;
    const char *text = (const char *)self->event.data.scalar.value;
    if (length >= YAML_TEXT_MAX || memchr(text, '\0', length))
        return tess__lines_fail(self->name, yaml_line(self),
                                "%s was expected, of at most %d bytes and no NUL", what,
                                YAML_TEXT_MAX - 1);
    memcpy(value_out->text, text, length);
    value_out->text[length] = '\0';
    value_out->line = yaml_line(self);
    return TESS_OK;
}

static enum tess_status yaml_expect(struct yaml_reader *self, yaml_event_type_t type,
                                    const char *what)
{
    TESS_TRY(yaml_next(self));
    if (self->event.type != type)
        return tess__lines_fail(self->name, yaml_line(self), "%s was expected", what);
    return TESS_OK;
}

/* ---- values --------------------------------------------------------------------------------- */

static enum tess_status yaml_number(const struct yaml_reader *self, const char *key,
                                    const struct yaml_value *value, int32_t min, int32_t max,
                                    int32_t *number_out)
{
    bool minus = value->text[0] == '-';
    struct tess__word word = {value->text + minus, strlen(value->text) - minus};
    int32_t number;
    if (!tess__word_number(word, 2000000000, &number) || (minus ? -number : number) < min ||
        (minus ? -number : number) > max)
        return tess__lines_fail(self->name, value->line,
                                "%s: '%.40s'; a whole number from %d to %d was expected", key,
                                value->text, (int)min, (int)max);
    *number_out = minus ? -number : number;
    return TESS_OK;
}

static enum tess_status yaml_real(const struct yaml_reader *self, const char *key,
                                  const struct yaml_value *value, double *real_out)
{
    char *end;
    double real = strtod(value->text, &end);
    /* No "inf", "nan" or "0x1p3", which strtod takes. */
    if (!value->text[0] || *end || strspn(value->text, "0123456789.eE+-") != strlen(value->text) ||
        !isfinite(real) || real < 0 || real > 1e9)
        return tess__lines_fail(self->name, value->line,
                                "%s: '%.40s'; a number from 0 to 1e9 was expected", key,
                                value->text);
    *real_out = real;
    return TESS_OK;
}

static enum tess_status yaml_word(const struct yaml_reader *self, const char *key,
                                  const struct yaml_value *value, const char *const *known,
                                  int32_t count, int32_t *number_out)
{
    char list[128] = "";
    for (int32_t k = 0; k < count; k++) {
        if (strcmp(value->text, known[k]) == 0) {
            *number_out = k;
            return TESS_OK;
        }
        strcat(list, k ? " " : "");
        strcat(list, known[k]);
    }
    return tess__lines_fail(self->name, value->line, "%s: '%.40s'; one of %s was expected", key,
                            value->text, list);
}

static enum tess_status yaml_copy(const struct yaml_reader *self, const char *key,
                                  const struct yaml_value *value, char *into, size_t room)
{
    if (!value->text[0] || strlen(value->text) >= room)
        return tess__lines_fail(self->name, value->line, "%s: 1 to %zu characters were expected",
                                key, room - 1);
    for (const char *c = value->text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return tess__lines_fail(self->name, value->line, "%s: byte 0x%02x in it", key,
                                    (unsigned)(unsigned char)*c);
    memcpy(into, value->text, strlen(value->text) + 1);
    return TESS_OK;
}

/* ---- maps ----------------------------------------------------------------------------------- */

/* Which of a map's keys the current event is; it must not have been there (`seen`, a bit each). */
static enum tess_status yaml_key(struct yaml_reader *self, const char *const *known, int32_t count,
                                 uint32_t *seen, int32_t *key_out)
{
    struct yaml_value key;
    TESS_TRY(yaml_scalar(self, "a key", &key));
    TESS_TRY(yaml_word(self, "key", &key, known, count, key_out));
    if (*seen >> *key_out & 1)
        return tess__lines_fail(self->name, key.line, "%s is given twice", key.text);
    *seen |= (uint32_t)1 << *key_out;
    return TESS_OK;
}

enum {
    NODE_NAME,
    NODE_KIND,
    NODE_HOST,
    NODE_INDEX,
    NODE_BUS,
    NODE_SM,
    NODE_SOCKET,
    NODE_MAKER,
    NODE_MODEL,
    NODE_KEYS
};
static const char *const yaml_node_key[NODE_KEYS] = {"name", "kind",   "host",  "index", "bus",
                                                     "sm",   "socket", "maker", "model"};

static enum tess_status yaml_node_value(const struct yaml_reader *self, int32_t key,
                                        const struct yaml_value *value, struct tess_node *node)
{
    int32_t number = 0;
    const char *word = yaml_node_key[key];
    switch (key) {
    case NODE_NAME:
        return yaml_copy(self, word, value, node->name, sizeof node->name);
    case NODE_KIND:
        TESS_TRY(yaml_word(self, word, value, tess__yaml_node, TESS_NODE_KIND_COUNT, &number));
        node->kind = (enum tess_node_kind)number;
        return TESS_OK;
    case NODE_HOST:
        return yaml_number(self, word, value, -1, TESS_TOPO_NODES_MAX, &node->host);
    case NODE_INDEX:
        return yaml_number(self, word, value, 0, 1000000000, &node->index);
    case NODE_BUS:
        return yaml_copy(self, word, value, node->bus, sizeof node->bus);
    case NODE_SM:
        return yaml_number(self, word, value, 0, 999, &node->sm);
    case NODE_SOCKET:
        return yaml_number(self, word, value, -1, 1000000, &node->socket);
    case NODE_MAKER:
        TESS_TRY(yaml_word(self, word, value, tess__yaml_maker, TESS__YAML_MAKERS, &number));
        node->maker = (enum tess_cpu_maker)number;
        return TESS_OK;
    default:
        return yaml_number(self, word, value, 0, 1000000, &node->model);
    }
}

/* The map whose start is the current event. */
static enum tess_status yaml_node(struct yaml_reader *self)
{
    struct tess_node node = {.host = -2, .socket = -1};
    int32_t line = yaml_line(self), key = -1, number;
    uint32_t seen = 0;
    for (;;) {
        TESS_TRY(yaml_next(self));
        if (self->event.type == YAML_MAPPING_END_EVENT)
            break;
        struct yaml_value value;
        TESS_TRY(yaml_key(self, yaml_node_key, NODE_KEYS, &seen, &key));
        TESS_TRY(yaml_next(self));
        TESS_TRY(yaml_scalar(self, "a value", &value));
        TESS_TRY(yaml_node_value(self, key, &value, &node));
    }
    if (!(seen >> NODE_NAME & 1) || !(seen >> NODE_KIND & 1))
        return tess__lines_fail(self->name, line,
                                "a node has no name or no kind; both were "
                                "expected");
    if (node.host == -2)
        node.host = node.kind == TESS_NODE_NET ? -1 : 0;
    if (tess_topology_add_node(self->topology, &node, &number) != TESS_OK)
        return tess__lines_fail(self->name, line, "%s", tess_log_last_error());
    return TESS_OK;
}

/* ---- links ---------------------------------------------------------------------------------- */

static int yaml_by_name(const void *a, const void *b)
{
    return strcmp(((const struct yaml_name *)a)->text, ((const struct yaml_name *)b)->text);
}

/* Names, for searching; from here on no node may follow. */
static enum tess_status yaml_sort(struct yaml_reader *self)
{
    int32_t count = self->topology->node_count;
    self->known = malloc(((size_t)count + 1) * sizeof *self->known);
    if (!self->known)
        TESS_FAIL(TESS_ERR_MEMORY, "%s: no memory for the names", self->name);
    for (int32_t i = 0; i < count; i++) {
        memcpy(self->known[i].text, self->topology->node[i].name, TESS_TOPO_NAME_MAX);
        self->known[i].node = i;
    }
    qsort(self->known, (size_t)count, sizeof *self->known, yaml_by_name);
    return TESS_OK;
}

static enum tess_status yaml_find(const struct yaml_reader *self, const struct yaml_value *value,
                                  int32_t *node_out)
{
    struct yaml_name key;
    const struct yaml_name *found = NULL;
    if (strlen(value->text) < sizeof key.text) {
        memcpy(key.text, value->text, strlen(value->text) + 1);
        found = bsearch(&key, self->known, (size_t)self->topology->node_count, sizeof key,
                        yaml_by_name);
    }
    if (!found)
        return tess__lines_fail(self->name, value->line, "there is no node '%.47s'", value->text);
    *node_out = found->node;
    return TESS_OK;
}

enum { LINK_BETWEEN, LINK_FROM, LINK_TO, LINK_KIND, LINK_GBS, LINK_LATENCY, LINK_COUNT, LINK_KEYS };
static const char *const yaml_link_key[LINK_KEYS] = {"between", "from",       "to",   "kind",
                                                     "gbs",     "latency-us", "count"};

static enum tess_status yaml_link_value(const struct yaml_reader *self, int32_t key,
                                        const struct yaml_value *value, struct tess_topo_link *link)
{
    int32_t number = 0;
    const char *word = yaml_link_key[key];
    switch (key) {
    case LINK_FROM:
        return yaml_find(self, value, &link->from);
    case LINK_TO:
        return yaml_find(self, value, &link->to);
    case LINK_KIND:
        TESS_TRY(yaml_word(self, word, value, tess__yaml_link, TESS_LINK_KIND_COUNT, &number));
        link->kind = (enum tess_link_kind)number;
        return TESS_OK;
    case LINK_GBS:
        return yaml_real(self, word, value, &link->gbs);
    case LINK_LATENCY:
        return yaml_real(self, word, value, &link->latency_us);
    default:
        return yaml_number(self, word, value, 0, 1000000, &link->count);
    }
}

/* [a, b] */
static enum tess_status yaml_between(struct yaml_reader *self, struct tess_topo_link *link)
{
    static const char what[] = "the names of two nodes, [a, b],";
    struct yaml_value value;
    if (self->event.type != YAML_SEQUENCE_START_EVENT)
        return tess__lines_fail(self->name, yaml_line(self), "between: %s was expected", what);
    TESS_TRY(yaml_next(self));
    TESS_TRY(yaml_scalar(self, what, &value));
    TESS_TRY(yaml_find(self, &value, &link->from));
    TESS_TRY(yaml_next(self));
    TESS_TRY(yaml_scalar(self, what, &value));
    TESS_TRY(yaml_find(self, &value, &link->to));
    return yaml_expect(self, YAML_SEQUENCE_END_EVENT, "']' after two names");
}

static enum tess_status yaml_link(struct yaml_reader *self)
{
    struct tess_topo_link link = {.from = -1, .to = -1, .count = 1};
    int32_t line = yaml_line(self), key = -1;
    uint32_t seen = 0;
    for (;;) {
        TESS_TRY(yaml_next(self));
        if (self->event.type == YAML_MAPPING_END_EVENT)
            break;
        TESS_TRY(yaml_key(self, yaml_link_key, LINK_KEYS, &seen, &key));
        TESS_TRY(yaml_next(self));
        if (key == LINK_BETWEEN) {
            TESS_TRY(yaml_between(self, &link));
        } else {
            struct yaml_value value;
            TESS_TRY(yaml_scalar(self, "a value", &value));
            TESS_TRY(yaml_link_value(self, key, &value, &link));
        }
    }
    uint32_t ends = seen & 7u, both = 1u << LINK_BETWEEN, one = 1u << LINK_FROM | 1u << LINK_TO;
    if ((ends != both && ends != one) || !(seen >> LINK_KIND & 1) || !(seen >> LINK_GBS & 1))
        return tess__lines_fail(self->name, line,
                                "a link has `between`, or `from` and `to`, and `kind` and `gbs`");
    enum tess_status status = ends == both ? tess_topology_join_link(self->topology, link)
                                           : tess_topology_add_link(self->topology, &link);
    if (status != TESS_OK)
        return tess__lines_fail(self->name, line, "%s", tess_log_last_error());
    return TESS_OK;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static enum tess_status yaml_items(struct yaml_reader *self,
                                   enum tess_status (*item)(struct yaml_reader *self))
{
    TESS_TRY(yaml_expect(self, YAML_SEQUENCE_START_EVENT, "a list"));
    for (;;) {
        TESS_TRY(yaml_next(self));
        if (self->event.type == YAML_SEQUENCE_END_EVENT)
            break;
        if (self->event.type != YAML_MAPPING_START_EVENT)
            return tess__lines_fail(self->name, yaml_line(self), "{key: value, ..} was expected");
        TESS_TRY(item(self));
    }
    return TESS_OK;
}

enum { TOP_VERSION, TOP_MACHINE, TOP_NODES, TOP_LINKS, TOP_KEYS };

static enum tess_status yaml_top(struct yaml_reader *self)
{
    static const char *const known[TOP_KEYS] = {"tessera-topology", "machine", "nodes", "links"};
    struct yaml_value machine = {.line = 0};
    uint32_t seen = 0;
    int32_t key = -1, version;
    for (;;) {
        TESS_TRY(yaml_next(self));
        if (self->event.type == YAML_MAPPING_END_EVENT)
            break;
        struct yaml_value value;
        int32_t line = yaml_line(self);
        TESS_TRY(yaml_key(self, known, TOP_KEYS, &seen, &key));
        if (key == TOP_VERSION) {
            TESS_TRY(yaml_next(self));
            TESS_TRY(yaml_scalar(self, "the format's number", &value));
            TESS_TRY(yaml_number(self, known[key], &value, 1, 1, &version));
        } else if (key == TOP_MACHINE) {
            TESS_TRY(yaml_next(self));
            TESS_TRY(yaml_scalar(self, "a line such as node:2 gpu:4", &machine));
        } else if (key == TOP_NODES) {
            if (seen >> TOP_LINKS & 1)
                return tess__lines_fail(self->name, line, "nodes were expected before links");
            TESS_TRY(yaml_items(self, yaml_node));
        } else {
            TESS_TRY(yaml_sort(self));
            TESS_TRY(yaml_items(self, yaml_link));
        }
    }
    if (!(seen >> TOP_VERSION & 1))
        return tess__lines_fail(self->name, 1, "no line 'tessera-topology: 1' in it");
    bool words = seen >> TOP_MACHINE & 1, nodes = seen >> TOP_NODES & 1;
    if (words == nodes || (words && seen >> TOP_LINKS & 1))
        return tess__lines_fail(self->name, 1, "either machine, or nodes and links, was expected");
    if (words)
        return tess__synthetic_build(self->name, machine.line, machine.text, strlen(machine.text),
                                     self->options, self->topology);
    return tess_topology_finish(self->topology);
}

static enum tess_status yaml_document(struct yaml_reader *self)
{
    TESS_TRY(yaml_expect(self, YAML_STREAM_START_EVENT, "a file"));
    TESS_TRY(yaml_expect(self, YAML_DOCUMENT_START_EVENT, "a line 'tessera-topology: 1'"));
    TESS_TRY(yaml_expect(self, YAML_MAPPING_START_EVENT, "a line 'tessera-topology: 1'"));
    TESS_TRY(yaml_top(self));
    TESS_TRY(yaml_expect(self, YAML_DOCUMENT_END_EVENT, "the file's end"));
    return yaml_expect(self, YAML_STREAM_END_EVENT, "one document");
}

enum tess_status tess_topology_read_yaml(const char *name, const char *text, size_t bytes,
                                         const struct tess_topology_options *options,
                                         struct tess_topology *topology)
{
    struct yaml_reader self = {.name = name, .options = options, .topology = topology};
    if (!yaml_parser_initialize(&self.parser))
        TESS_FAIL(TESS_ERR_MEMORY, "%s: no memory for the file", name);
    yaml_parser_set_encoding(&self.parser, YAML_UTF8_ENCODING); /* it would guess UTF-16 */
    yaml_parser_set_input_string(&self.parser, (const unsigned char *)text, bytes);
    enum tess_status status = yaml_document(&self);
    yaml_event_delete(&self.event);
    yaml_parser_delete(&self.parser);
    free(self.known);
    return tess__lines_named(name, status);
}
