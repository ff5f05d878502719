/* The words of our own format, for reading and writing. */
#ifndef TOPOLOGY_YAML_WORDS_H
#define TOPOLOGY_YAML_WORDS_H

#include "topology/machine/topology.h"

#define TESS__YAML_MAKERS (TESS_CPU_ZHAOXIN + 1)

extern const char *const tess__yaml_node[TESS_NODE_KIND_COUNT];
extern const char *const tess__yaml_link[TESS_LINK_KIND_COUNT];
extern const char *const tess__yaml_maker[TESS__YAML_MAKERS];

#endif
