/* In the place of read_hwloc.c where libhwloc was not there when Tessera was built. */
#include "tessera/check.h"
#include "topology/hwloc/hwloc_text.h"
#include "topology/machine/topology.h"

enum tess_status tess_topology_read_hwloc(const char *name, const char *text, size_t bytes,
                                          const struct tess_topology_options *options,
                                          struct tess_topology *topology)
{
    (void)options, (void)topology;
    TESS_TRY(tess__hwloc_text_check(name, text, bytes));
    TESS_FAIL(TESS_ERR_UNSUPPORTED,
              "%s: this Tessera was built without hwloc and does not read its files: install "
              "libhwloc-dev and configure again, or give another format",
              name);
}
