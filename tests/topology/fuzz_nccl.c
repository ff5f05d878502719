/*
 * libFuzzer's entry to NCCL's format: what is read must be written (or refused for a reason), and
 * what is written must be read again and be the same text then.
 */
#include "topology/machine/topology.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static struct tess_topology *fuzz_read(const char *text, size_t bytes)
{
    struct tess_topology *topology = tess_topology_new();
    if (topology != NULL &&
        tess_topology_read_nccl("fuzz.xml", text, bytes, NULL, topology) == TESS_OK)
        return topology;
    tess_topology_free(topology);
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct tess_topology *first = fuzz_read((const char *)bytes, count);
    char *once = NULL, *twice = NULL;
    if (first == NULL)
        return 0;
    if (tess_topology_write_nccl(first, 0, &once) == TESS_OK) {
        struct tess_topology *second = fuzz_read(once, strlen(once));
        if (second == NULL || tess_topology_write_nccl(second, 0, &twice) != TESS_OK ||
            strcmp(once, twice) != 0)
            abort();
        tess_topology_free(second);
    }
    free(once);
    free(twice);
    tess_topology_free(first);
    return 0;
}
