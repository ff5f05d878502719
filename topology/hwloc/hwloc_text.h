/* The check of hwloc's XML before hwloc loads it. */
#ifndef TOPOLOGY_HWLOC_TEXT_H
#define TOPOLOGY_HWLOC_TEXT_H

#include "tessera/status.h"

#include <stddef.h>

/* Whole, well-formed, of a size and depth that machines have, and of a version that is known here.
 * TESS_ERR_DATA, "NAME:LINE: ...". */
enum tess_status tess__hwloc_text_check(const char *name, const char *text, size_t bytes);

#endif
