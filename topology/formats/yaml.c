/*
 * Our own format: nodes and links by name, or a line of synthetic.c's words. It holds all
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
 * staged: 1 is a device without peer-to-peer over PCIe, whose transfers go by way of memory.
 * `between` is both directions, `from` and `to` one. Left out are: host 0 (net: none), index and sm
 * 0, socket none, count 1. Every name must be there before the links. Anchors, tags and several
 * documents are refused. Written text has one node or link a line and leaves out what a reader
 * assumes; a link and its equal back are one line. Read again it is the same topology, with its
 * links in the order of the text.
 */
#include "tessera/check.h"
#include "topology/formats/lines.h"
#include "topology/formats/synthetic.h"
#include "topology/machine/pool.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define YAML_TEXT_MAX 1024

/* The keys of a node and a link, for reading and writing; written in this order. */
enum yaml_type {
    YAML_NUMBER, /* int32_t, min .. max */
    YAML_REAL,   /* double */
    YAML_TEXT,   /* char [max] */
    YAML_WORD,   /* an enum: word [max] */
    YAML_NODE,   /* int32_t: a node, by its name */
    YAML_OTHER   /* the reader's own */
};

struct yaml_field {
    const char *key;
    enum yaml_type type;
    size_t at; /* offset of the value in the struct that is read */
    int32_t min, max;
    const char *const *word;
};

/* ---- keys and words ------------------------------------------------------------------------- */

static const char *const yaml_node_kind[TESS_NODE_KIND_COUNT] = {
    [TESS_NODE_DEVICE] = "device", [TESS_NODE_PCI] = "pci", [TESS_NODE_NVSWITCH] = "nvswitch",
    [TESS_NODE_CPU] = "cpu",       [TESS_NODE_NIC] = "nic", [TESS_NODE_NET] = "net"};
static const char *const yaml_link_kind[TESS_LINK_KIND_COUNT] = {
    [TESS_LINK_NVLINK] = "nvlink", [TESS_LINK_C2C] = "c2c",     [TESS_LINK_PCI] = "pci",
    [TESS_LINK_SYS] = "sys",       [TESS_LINK_LOCAL] = "local", [TESS_LINK_NET] = "net"};
static const char *const yaml_maker[] = {
    [TESS_CPU_UNKNOWN] = "unknown", [TESS_CPU_INTEL] = "intel", [TESS_CPU_AMD] = "amd",
    [TESS_CPU_ARM] = "arm",         [TESS_CPU_POWER] = "power", [TESS_CPU_ZHAOXIN] = "zhaoxin"};

#define NODE_AT(member) offsetof(struct tess_node, member)
#define LINK_AT(member) offsetof(struct tess_topo_link, member)

enum { NODE_NAME, NODE_KIND, NODE_FIELDS = 10 };

static const struct yaml_field yaml_node_field[] = {
    [NODE_NAME] = {"name", YAML_TEXT, NODE_AT(name), 1, TESS_TOPO_NAME_MAX, NULL},
    [NODE_KIND] = {"kind", YAML_WORD, NODE_AT(kind), 0, TESS_NODE_KIND_COUNT, yaml_node_kind},
    {"host", YAML_NUMBER, NODE_AT(host), -1, TESS_TOPO_NODES_MAX, NULL},
    {"index", YAML_NUMBER, NODE_AT(index), 0, 1000000000, NULL},
    {"bus", YAML_TEXT, NODE_AT(bus), 1, sizeof(((struct tess_node *)NULL)->bus), NULL},
    {"sm", YAML_NUMBER, NODE_AT(sm), 0, 999, NULL},
    {"socket", YAML_NUMBER, NODE_AT(socket), -1, 1000000, NULL},
    {"maker", YAML_WORD, NODE_AT(maker), 0, TESS_CPU_ZHAOXIN + 1, yaml_maker},
    {"model", YAML_NUMBER, NODE_AT(model), 0, 1000000, NULL},
    {"staged", YAML_NUMBER, NODE_AT(staged), 0, 1, NULL},
};

enum { LINK_BETWEEN, LINK_FROM, LINK_TO, LINK_KIND, LINK_GBS, LINK_FIELDS = 7 };

static const struct yaml_field yaml_link_field[] = {
    [LINK_BETWEEN] = {.key = "between", .type = YAML_OTHER},
    [LINK_FROM] = {"from", YAML_NODE, LINK_AT(from), 0, 0, NULL},
    [LINK_TO] = {"to", YAML_NODE, LINK_AT(to), 0, 0, NULL},
    [LINK_KIND] = {"kind", YAML_WORD, LINK_AT(kind), 0, TESS_LINK_KIND_COUNT, yaml_link_kind},
    [LINK_GBS] = {"gbs", YAML_REAL, LINK_AT(gbs), 0, 0, NULL},
    {"latency-us", YAML_REAL, LINK_AT(latency_us), 0, 0, NULL},
    {"count", YAML_NUMBER, LINK_AT(count), 0, 1000000, NULL},
};

/* ---- reading -------------------------------------------------------------------------------- */

struct yaml_reader {
    const char *name;
    const struct tess_topology_options *options;
    struct tess_topology *topology;
    yaml_parser_t parser;
    yaml_event_t event;
    int32_t key_line; /* of the last key */
    uint32_t seen;    /* keys of the map at hand so far, a bit each */
    int32_t version, machine_line;
    char machine[YAML_TEXT_MAX];
};

typedef enum tess_status yaml_other(struct yaml_reader *self, int32_t key, void *item);

/* ---- events --------------------------------------------------------------------------------- */

static int32_t yaml_line(const struct yaml_reader *self)
{
    return (int32_t)self->event.start_mark.line + 1;
}

static enum tess_status yaml_next(struct yaml_reader *self)
{
    yaml_event_delete(&self->event);
    memset(&self->event, 0, sizeof(self->event));
    yaml_parser_t *parser = &self->parser;
    if (!yaml_parser_parse(parser, &self->event)) {
        memset(&self->event, 0, sizeof(self->event));
        if (parser->error == YAML_MEMORY_ERROR)
            TESS_FAIL(TESS_ERR_MEMORY, "%s: no memory for the file", self->name);
        return tess__lines_fail(self->name, (int32_t)parser->problem_mark.line + 1, "not YAML: %s",
                                parser->problem ? parser->problem : "unknown error");
    }
    const yaml_event_t *event = &self->event;
    const bool node = event->type == YAML_SCALAR_EVENT ||
                      event->type == YAML_SEQUENCE_START_EVENT ||
                      event->type == YAML_MAPPING_START_EVENT;
    /* The data of all three begin with anchor and tag. */
    if (event->type == YAML_ALIAS_EVENT ||
        (node && (event->data.scalar.anchor != NULL || event->data.scalar.tag != NULL)))
        return tess__lines_fail(self->name, yaml_line(self),
                                "anchors, aliases and tags (& * !) are not supported");
    return TESS_OK;
}

static enum tess_status yaml_expect(const struct yaml_reader *self, yaml_event_type_t type,
                                    const char *what)
{
    if (self->event.type == type)
        return TESS_OK;
    return tess__lines_fail(self->name, yaml_line(self), "%s was expected", what);
}

static enum tess_status yaml_next_is(struct yaml_reader *self, yaml_event_type_t type,
                                     const char *what)
{
    TESS_TRY(yaml_next(self));
    return yaml_expect(self, type, what);
}

/* The text of the current event, a scalar, valid until the next one. `what` is for messages. */
static enum tess_status yaml_scalar(const struct yaml_reader *self, const char *what,
                                    const char **text_out)
{
    TESS_TRY(yaml_expect(self, YAML_SCALAR_EVENT, what));
    size_t length = self->event.data.scalar.length;
    *text_out = (const char *)self->event.data.scalar.value;
    if (length < YAML_TEXT_MAX && memchr(*text_out, '\0', length) == NULL)
        return TESS_OK;
    return tess__lines_fail(self->name, yaml_line(self),
                            "%s was expected, of at most %d bytes and no NUL", what,
                            YAML_TEXT_MAX - 1);
}

/* ---- values --------------------------------------------------------------------------------- */

static enum tess_status yaml_number(const struct yaml_reader *self, const struct yaml_field *field,
                                    const char *text, int32_t *number_out)
{
    bool minus = text[0] == '-';
    int32_t number;
    bool good = tess__word_number((struct tess__word){text + minus, strlen(text) - minus},
                                  2000000000, &number);
    if (good && minus)
        number = -number;
    if (!good || number < field->min || number > field->max)
        return tess__lines_fail(self->name, yaml_line(self),
                                "%s: '%.40s'; a whole number from %d to %d was expected",
                                field->key, text, (int)field->min, (int)field->max);
    *number_out = number;
    return TESS_OK;
}

static enum tess_status yaml_real(const struct yaml_reader *self, const char *key, const char *text,
                                  double *real_out)
{
    char *end;
    double real = strtod(text, &end);
    /* No "inf", "nan" or "0x1p3", which strtod takes. */
    if (text[0] == '\0' || *end != '\0' || strspn(text, "0123456789.eE+-") != strlen(text) ||
        real < 0 || real > 1e9)
        return tess__lines_fail(self->name, yaml_line(self),
                                "%s: '%.40s'; a number from 0 to 1e9 was expected", key, text);
    *real_out = real;
    return TESS_OK;
}

static enum tess_status yaml_word(const struct yaml_reader *self, const char *key, const char *text,
                                  const char *const *known, int32_t count, int32_t *number_out)
{
    char list[128] = "";
    for (int32_t k = 0; k < count; k++) {
        if (strcmp(text, known[k]) == 0) {
            *number_out = k;
            return TESS_OK;
        }
        strcat(list, k > 0 ? " " : "");
        strcat(list, known[k]);
    }
    return tess__lines_fail(self->name, yaml_line(self), "%s: '%.40s'; one of %s was expected", key,
                            text, list);
}

static enum tess_status yaml_copy(const struct yaml_reader *self, const struct yaml_field *field,
                                  const char *text, char *into)
{
    if (text[0] == '\0' || strlen(text) >= (size_t)field->max)
        return tess__lines_fail(self->name, yaml_line(self), "%s: 1 to %d characters were expected",
                                field->key, (int)field->max - 1);
    for (const char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return tess__lines_fail(self->name, yaml_line(self), "%s: byte 0x%02x in it",
                                    field->key, (unsigned)(unsigned char)*c);
    strcpy(into, text);
    return TESS_OK;
}

static enum tess_status yaml_find(const struct yaml_reader *self, const char *text,
                                  int32_t *node_out)
{
    *node_out = tess_topology_find_name(self->topology, text);
    if (*node_out < 0)
        return tess__lines_fail(self->name, yaml_line(self), "there is no node '%.47s'", text);
    return TESS_OK;
}

/* [a, b] */
static enum tess_status yaml_between(struct yaml_reader *self, int32_t key, void *item)
{
    static const char what[] = "the names of two nodes, [a, b],";
    struct tess_topo_link *link = item;
    int32_t *const end[] = {&link->from, &link->to};
    const char *text;
    (void)key;
    TESS_TRY(
        yaml_expect(self, YAML_SEQUENCE_START_EVENT, "between: the names of two nodes, [a, b],"));
    for (int i = 0; i < 2; i++) {
        TESS_TRY(yaml_next(self));
        TESS_TRY(yaml_scalar(self, what, &text));
        TESS_TRY(yaml_find(self, text, end[i]));
    }
    return yaml_next_is(self, YAML_SEQUENCE_END_EVENT, "']' after two names");
}

/* ---- maps ----------------------------------------------------------------------------------- */

/* Which of the fields the current event is the key of; the map has not had it before. */
static enum tess_status yaml_key(struct yaml_reader *self, const struct yaml_field *field,
                                 int32_t count, int32_t *key_out)
{
    const char *known[NODE_FIELDS], *text;
    for (int32_t k = 0; k < count; k++)
        known[k] = field[k].key;
    self->key_line = yaml_line(self);
    TESS_TRY(yaml_scalar(self, "a key", &text));
    TESS_TRY(yaml_word(self, "key", text, known, count, key_out));
    if (self->seen >> *key_out & 1)
        return tess__lines_fail(self->name, self->key_line, "%s is given twice", text);
    self->seen |= (uint32_t)1 << *key_out;
    return TESS_OK;
}

/* The current event as the field's value at `at`. */
static enum tess_status yaml_value(const struct yaml_reader *self, const struct yaml_field *field,
                                   void *at)
{
    const char *text;
    TESS_TRY(yaml_scalar(self, "a value", &text));
    switch (field->type) {
    case YAML_NUMBER:
        return yaml_number(self, field, text, at);
    case YAML_REAL:
        return yaml_real(self, field->key, text, at);
    case YAML_TEXT:
        return yaml_copy(self, field, text, at);
    case YAML_WORD:
        return yaml_word(self, field->key, text, field->word, field->max, at);
    default:
        return yaml_find(self, text, at);
    }
}

/* The map whose start is the current event, into `item`; `other` reads the fields of that type. */
static enum tess_status yaml_map(struct yaml_reader *self, const struct yaml_field *field,
                                 int32_t count, void *item, yaml_other *other)
{
    int32_t key = 0;
    self->seen = 0;
    for (;;) {
        TESS_TRY(yaml_next(self));
        if (self->event.type == YAML_MAPPING_END_EVENT)
            return TESS_OK;
        TESS_TRY(yaml_key(self, field, count, &key));
        TESS_TRY(yaml_next(self));
        TESS_TRY(field[key].type == YAML_OTHER
                     ? other(self, key, item)
                     : yaml_value(self, &field[key], (char *)item + field[key].at));
    }
}

static bool yaml_saw(const struct yaml_reader *self, int32_t key)
{
    return (self->seen >> key & 1) != 0;
}

/* ---- nodes and links ------------------------------------------------------------------------ */

static enum tess_status yaml_node(struct yaml_reader *self)
{
    struct tess_node node = {.host = -2, .socket = -1};
    int32_t line = yaml_line(self);
    TESS_TRY(yaml_map(self, yaml_node_field, NODE_FIELDS, &node, NULL));
    if (!yaml_saw(self, NODE_NAME) || !yaml_saw(self, NODE_KIND))
        return tess__lines_fail(self->name, line,
                                "a node has no name or no kind; both were expected");
    if (node.host == -2)
        node.host = node.kind == TESS_NODE_NET ? -1 : 0;
    if (tess_topology_add_node(self->topology, &node, NULL) != TESS_OK)
        return tess__lines_fail(self->name, line, "%s", tess_log_last_error());
    return TESS_OK;
}

static enum tess_status yaml_link(struct yaml_reader *self)
{
    struct tess_topo_link link = {.from = -1, .to = -1, .count = 1};
    int32_t line = yaml_line(self);
    TESS_TRY(yaml_map(self, yaml_link_field, LINK_FIELDS, &link, yaml_between));
    uint32_t ends = self->seen & 7u, both = 1u << LINK_BETWEEN;
    if ((ends != both && ends != (1u << LINK_FROM | 1u << LINK_TO)) || !yaml_saw(self, LINK_KIND) ||
        !yaml_saw(self, LINK_GBS))
        return tess__lines_fail(self->name, line,
                                "a link has `between`, or `from` and `to`, and `kind` and `gbs`");
    enum tess_status status = ends == both ? tess_topology_join_link(self->topology, link)
                                           : tess_topology_add_link(self->topology, &link);
    if (status != TESS_OK)
        return tess__lines_fail(self->name, line, "%s", tess_log_last_error());
    return TESS_OK;
}

/* ---- the whole ------------------------------------------------------------------------------ */

enum { TOP_VERSION, TOP_MACHINE, TOP_NODES, TOP_LINKS };

static enum tess_status yaml_items(struct yaml_reader *self,
                                   enum tess_status (*item)(struct yaml_reader *self))
{
    TESS_TRY(yaml_expect(self, YAML_SEQUENCE_START_EVENT, "a list"));
    for (;;) {
        TESS_TRY(yaml_next(self));
        if (self->event.type == YAML_SEQUENCE_END_EVENT)
            return TESS_OK;
        TESS_TRY(yaml_expect(self, YAML_MAPPING_START_EVENT, "{key: value, ..}"));
        TESS_TRY(item(self));
    }
}

static enum tess_status yaml_top_other(struct yaml_reader *self, int32_t key, void *item)
{
    const uint32_t seen = self->seen;
    const char *text;
    (void)item;
    if (key == TOP_MACHINE) {
        TESS_TRY(yaml_scalar(self, "a line such as node:2 gpu:4", &text));
        strcpy(self->machine, text);
        self->machine_line = yaml_line(self);
        return TESS_OK;
    }
    if (key == TOP_NODES && yaml_saw(self, TOP_LINKS))
        return tess__lines_fail(self->name, self->key_line, "nodes were expected before links");
    TESS_TRY(yaml_items(self, key == TOP_NODES ? yaml_node : yaml_link));
    self->seen = seen; /* the items' maps have theirs */
    return TESS_OK;
}

static enum tess_status yaml_top(struct yaml_reader *self)
{
    static const struct yaml_field top[] = {[TOP_VERSION] = {"tessera-topology", YAML_NUMBER,
                                                             offsetof(struct yaml_reader, version),
                                                             1, 1, NULL},
                                            [TOP_MACHINE] = {.key = "machine", .type = YAML_OTHER},
                                            [TOP_NODES] = {.key = "nodes", .type = YAML_OTHER},
                                            [TOP_LINKS] = {.key = "links", .type = YAML_OTHER}};
    TESS_TRY(yaml_map(self, top, 4, self, yaml_top_other));
    if (!yaml_saw(self, TOP_VERSION))
        return tess__lines_fail(self->name, 1, "no line 'tessera-topology: 1' in it");
    bool words = yaml_saw(self, TOP_MACHINE);
    if (words == yaml_saw(self, TOP_NODES) || (words && yaml_saw(self, TOP_LINKS)))
        return tess__lines_fail(self->name, 1, "either machine, or nodes and links, was expected");
    if (words)
        return tess__synthetic_build(self->name, self->machine_line, self->machine,
                                     strlen(self->machine), self->options, self->topology);
    return tess_topology_finish(self->topology);
}

static enum tess_status yaml_document(struct yaml_reader *self)
{
    static const char *const line = "a line 'tessera-topology: 1'";
    TESS_TRY(yaml_next_is(self, YAML_STREAM_START_EVENT, "a file"));
    TESS_TRY(yaml_next_is(self, YAML_DOCUMENT_START_EVENT, line));
    TESS_TRY(yaml_next_is(self, YAML_MAPPING_START_EVENT, line));
    TESS_TRY(yaml_top(self));
    TESS_TRY(yaml_next_is(self, YAML_DOCUMENT_END_EVENT, "the file's end"));
    return yaml_next_is(self, YAML_STREAM_END_EVENT, "one document");
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
    return tess__lines_named(name, status);
}

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
    while (*text != '\0') {
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

static void writer_text(FILE *out, const char *text)
{
    if (writer_plain(text))
        fputs(text, out);
    else
        writer_quoted(out, text);
}

/* ---- nodes and links ------------------------------------------------------------------------ */

/* The fields that differ from what a reader assumes, to the end of the line. */
static void writer_fields(FILE *out, const struct yaml_field *field, int32_t count,
                          const void *item, const void *usual)
{
    static const size_t bytes[] = {[YAML_NUMBER] = sizeof(int32_t),
                                   [YAML_REAL] = sizeof(double),
                                   [YAML_TEXT] = 1,
                                   [YAML_WORD] = sizeof(int32_t)};
    const char *before = "";
    for (int32_t k = 0; k < count; k++) {
        const char *at = (const char *)item + field[k].at;
        int32_t number;
        double real;
        if (memcmp(at, (const char *)usual + field[k].at, bytes[field[k].type]) == 0)
            continue;
        fprintf(out, "%s%s: ", before, field[k].key);
        before = ", ";
        if (field[k].type == YAML_TEXT) {
            writer_text(out, at);
        } else if (field[k].type == YAML_REAL) {
            memcpy(&real, at, sizeof(real));
            writer_real(out, real);
        } else {
            memcpy(&number, at, sizeof(number));
            if (field[k].type == YAML_WORD)
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
    writer_fields(out, yaml_node_field, NODE_FIELDS, node, &usual);
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
    writer_fields(out, yaml_link_field + LINK_KIND, LINK_FIELDS - LINK_KIND, link, &usual);
}

/* Links with their ends in order, so that one and its like back are neighbours. */
struct yaml_pair {
    int64_t key[4]; /* the lower node, the higher one, the kind, the link's number */
};

static int writer_compare(const void *a, const void *b)
{
    return tess__compare(((const struct yaml_pair *)a)->key, ((const struct yaml_pair *)b)->key, 4);
}

static bool writer_alike(const struct tess_topo_link *a, const struct tess_topo_link *b)
{
    return a->kind == b->kind && a->from == b->to && a->to == b->from && a->count == b->count &&
           memcmp(&a->gbs, &b->gbs, sizeof(a->gbs)) == 0 &&
           memcmp(&a->latency_us, &b->latency_us, sizeof(a->latency_us)) == 0;
}

static enum tess_status writer_links(FILE *out, const struct tess_topology *topology)
{
    int32_t count = topology->link_count;
    struct yaml_pair *pair = malloc(((size_t)count + 1) * sizeof(*pair));
    if (!pair)
        return tess__no_memory("the links");
    for (int32_t i = 0; i < count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        bool rising = link->from < link->to;
        pair[i] = (struct yaml_pair){
            {rising ? link->from : link->to, rising ? link->to : link->from, link->kind, i}};
    }
    qsort(pair, (size_t)count, sizeof(*pair), writer_compare);
    if (count > 0)
        fputs("links:\n", out);
    for (int32_t i = 0; i < count; i++) {
        const struct tess_topo_link *link = &topology->link[pair[i].key[3]];
        bool both = i + 1 < count && writer_alike(link, &topology->link[pair[i + 1].key[3]]);
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
