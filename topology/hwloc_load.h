/* hwloc's XML in libhwloc's hands. For files that are built with libhwloc only. */
#ifndef TOPOLOGY_HWLOC_LOAD_H
#define TOPOLOGY_HWLOC_LOAD_H

#include "tessera/status.h"

#include <hwloc.h>
#include <stddef.h>

/* The text is one that tess__hwloc_text_check has passed. hwloc_topology_destroy is the caller's.
 * TESS_ERR_DATA, "NAME: ...", where hwloc cannot load it. */
enum tess_status tess__hwloc_load(const char *name, const char *text, size_t bytes,
                                  hwloc_topology_t *hwloc_out);

#endif
