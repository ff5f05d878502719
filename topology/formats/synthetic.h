/* A topology described in a line, inside the room: into a topology that is there, with a place for
 * messages. */
#ifndef TOPOLOGY_SYNTHETIC_H
#define TOPOLOGY_SYNTHETIC_H

#include "topology/machine/topology.h"

/* `name` and `line` as of tess__lines_fail. The topology is finished. */
enum tess_status tess__synthetic_build(const char *name, int32_t line, const char *text,
                                       size_t bytes, const struct tess_topology_options *options,
                                       struct tess_topology *topology);

#endif
