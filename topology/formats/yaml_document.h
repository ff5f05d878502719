/* YAML and JSON of other programs as a tree: only what readers look up in it. */
#ifndef TOPOLOGY_YAML_DOCUMENT_H
#define TOPOLOGY_YAML_DOCUMENT_H

#include "topology/formats/lines.h"

struct tess__document;
struct yaml_node_s; /* libyaml's */
typedef struct yaml_node_s tess__yaml_node;

/* The caller closes it; text is borrowed until then. */
enum tess_status tess__document_open(const char *name, const char *text, size_t bytes,
                                     struct tess__document **document_out);
void tess__document_close(struct tess__document *self); /* NULL is allowed */
/* The next document of the stream; *root_out NULL: there are no more. */
enum tess_status tess__document_next(struct tess__document *self, tess__yaml_node **root_out);

int32_t tess__document_line(const tess__yaml_node *node);
/* The value of a key of a map; NULL: it is none, or has none of that name. */
tess__yaml_node *tess__document_get(struct tess__document *self, tess__yaml_node *map,
                                    const char *key);
/* Item `at` of a list, from 0 on; NULL: it is none, or has no more. */
tess__yaml_node *tess__document_item(struct tess__document *self, tess__yaml_node *list, size_t at);
/* The text of a scalar; length 0: NULL, or none. */
struct tess__word tess__document_text(const tess__yaml_node *node);

#endif
