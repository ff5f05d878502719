/* Machines of the tests' own in NCCL's format, and reading them from memory of just their size. */
#ifndef TESTS_TOPOLOGY_NCCL_FIXTURE_H
#define TESTS_TOPOLOGY_NCCL_FIXTURE_H

#include "topology/machine/topology.h"

/* Name and text, to a NULL name. What they are is at their definition. */
struct nccl_fixture {
    const char *name, *text;
};
extern const struct nccl_fixture nccl_fixtures[];

const char *nccl_fixture(const char *name);

/* NULL where it is refused, with the status, which may be NULL. */
struct tess_topology *nccl_read(const char *text, size_t bytes,
                                const struct tess_topology_options *options,
                                enum tess_status *status_out);
/* A fixture, which must be read. */
struct tess_topology *nccl_open(const char *name, const struct tess_topology_options *options);

/* Fails where there is no node of that name. */
int32_t nccl_node(const struct tess_topology *topology, const char *name);
/* From a to b, one direction; NULL: no such link. */
const struct tess_topo_link *nccl_link(const struct tess_topology *topology,
                                       enum tess_link_kind kind, const char *a, const char *b);
/* Its capacity; 0: no such link. */
double nccl_gbs(const struct tess_topology *topology, enum tess_link_kind kind, const char *a,
                const char *b);

#endif
