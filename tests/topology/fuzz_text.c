/*
 * libFuzzer's entry to one reader of text, FUZZ_READ: whatever the bytes, a topology or
 * TESS_ERR_DATA with a message. hwloc's has none: libhwloc ends processes, and so is tried in one
 * of its own.
 */
#include "tessera/log.h"
#include "topology/synthetic.h"

#include <stdlib.h>

/* As the readers; a line of words is one too. */
static enum tess_status tess_topology_read_synthetic(const char *name, const char *text,
                                                     size_t bytes,
                                                     const struct tess_topology_options *options,
                                                     struct tess_topology *topology)
{
    return tess__synthetic_build(name, 1, text, bytes, options, topology);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    (void)tess_topology_read_synthetic; /* one of the readers that FUZZ_READ may be */
    tess_log_set_level(TESS_LOG_ERROR);
    struct tess_topology *topology = tess_topology_new();
    if (!topology)
        return 0;
    enum tess_status status = FUZZ_READ("f", (const char *)bytes, count, NULL, topology);
    if (status != TESS_OK && (status != TESS_ERR_DATA || !tess_log_last_error()[0]))
        __builtin_trap();
    tess_topology_free(topology);
    return 0;
}
