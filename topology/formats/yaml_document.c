/* See yaml_document.h. libyaml bounds the depth; nothing here goes deeper than its caller does. */
#include "topology/formats/yaml_document.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct tess__document {
    const char *name; /* for messages */
    yaml_parser_t parser;
    yaml_document_t document;
    bool open; /* `document` is there */
};

enum tess_status tess__document_open(const char *name, const char *text, size_t bytes,
                                     struct tess__document **document_out)
{
    struct tess__document *self = calloc(1, sizeof(*self));
    *document_out = NULL;
    if (self == NULL || !yaml_parser_initialize(&self->parser)) {
        free(self);
        TESS_FAIL(TESS_ERR_MEMORY, "%s: no memory for the file", name);
    }
    self->name = name;
    yaml_parser_set_input_string(&self->parser, (const unsigned char *)text, bytes);
    *document_out = self;
    return TESS_OK;
}

enum tess_status tess__document_next(struct tess__document *self, tess__yaml_node **root_out)
{
    *root_out = NULL;
    if (self->open)
        yaml_document_delete(&self->document);
    self->open = yaml_parser_load(&self->parser, &self->document) != 0;
    if (self->open) {
        *root_out = yaml_document_get_root_node(&self->document);
        return TESS_OK;
    }
    if (self->parser.error == YAML_MEMORY_ERROR)
        TESS_FAIL(TESS_ERR_MEMORY, "%s: no memory for the file", self->name);
    return tess__lines_fail(self->name, (int32_t)self->parser.problem_mark.line + 1, "not YAML: %s",
                            self->parser.problem ? self->parser.problem : "unknown error");
}

void tess__document_close(struct tess__document *self)
{
    if (self == NULL)
        return;
    if (self->open)
        yaml_document_delete(&self->document);
    yaml_parser_delete(&self->parser);
    free(self);
}

int32_t tess__document_line(const tess__yaml_node *node)
{
    return (int32_t)node->start_mark.line + 1;
}

tess__yaml_node *tess__document_get(struct tess__document *self, tess__yaml_node *map,
                                    const char *key)
{
    if (map == NULL || map->type != YAML_MAPPING_NODE)
        return NULL;
    for (yaml_node_pair_t *pair = map->data.mapping.pairs.start; pair < map->data.mapping.pairs.top;
         pair++) {
        struct tess__word word =
            tess__document_text(yaml_document_get_node(&self->document, pair->key));
        if (tess__word_is(word, key))
            return yaml_document_get_node(&self->document, pair->value);
    }
    return NULL;
}

tess__yaml_node *tess__document_item(struct tess__document *self, tess__yaml_node *list, size_t at)
{
    if (list == NULL || list->type != YAML_SEQUENCE_NODE ||
        at >= (size_t)(list->data.sequence.items.top - list->data.sequence.items.start))
        return NULL;
    return yaml_document_get_node(&self->document, list->data.sequence.items.start[at]);
}

struct tess__word tess__document_text(const tess__yaml_node *node)
{
    if (node == NULL || node->type != YAML_SCALAR_NODE)
        return (struct tess__word){"", 0};
    return (struct tess__word){(const char *)node->data.scalar.value, node->data.scalar.length};
}
