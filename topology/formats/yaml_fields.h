/* The keys of our own format's nodes and links, for reading and writing. */
#ifndef TOPOLOGY_YAML_FIELDS_H
#define TOPOLOGY_YAML_FIELDS_H

#include "topology/machine/topology.h"

enum tess__yaml_type {
    TESS__YAML_NUMBER, /* int32_t, min .. max */
    TESS__YAML_REAL,   /* double */
    TESS__YAML_TEXT,   /* char [max] */
    TESS__YAML_WORD,   /* an enum: word [max] */
    TESS__YAML_NODE,   /* int32_t: a node, by its name */
    TESS__YAML_OTHER   /* the reader's own */
};

struct tess__yaml_field {
    const char *key;
    enum tess__yaml_type type;
    size_t at; /* offset of the value in the struct that is read */
    int32_t min, max;
    const char *const *word;
};

enum { TESS__YAML_NODE_FIELDS = 9, TESS__YAML_LINK_FIELDS = 7 };
enum { TESS__YAML_LINK_ENDS = 3 }; /* the first fields of a link */

extern const struct tess__yaml_field tess__yaml_node[TESS__YAML_NODE_FIELDS];
extern const struct tess__yaml_field tess__yaml_link[TESS__YAML_LINK_FIELDS];

#endif
