/* Looking at a topology in tests: nodes and links by name. */
#ifndef TESTS_TOPOLOGY_LOOK_H
#define TESTS_TOPOLOGY_LOOK_H

#include "topology/machine/topology.h"

struct look_counts {
    int32_t devices, pci, nvswitches, cpus, nics, nets;
};

/* Number of the node of that name; fails where there is none. */
int32_t look_node(const struct tess_topology *topology, const char *name);
/* Capacity of the links between two names, of any kind, the same both ways; 0: none. */
double look_gbs(const struct tess_topology *topology, const char *a, const char *b);
/* The one node of a kind that has a link to `name`; "" where it is none or several. */
const char *look_beside(const struct tess_topology *topology, const char *name,
                        enum tess_node_kind kind);
struct look_counts look_count(const struct tess_topology *topology);

/* The text is handed over in memory of just its size. NULL: refused with TESS_ERR_DATA and a
 * message that names the file. The caller frees it. */
struct tess_topology *look_read(tess_topology_reader *read, const char *name, const char *text,
                                size_t bytes, const struct tess_topology_options *options);
/* Must be refused with a message that holds `part`. */
void look_refused(tess_topology_reader *read, const char *name, const char *text,
                  const struct tess_topology_options *options, const char *part);

/*
 * The text cut short at every place, and `tries` mutations of it with `piece` [pieces] from a fixed
 * seed ($TESSERA_FUZZ_TRIES where it is set): each is read or refused as look_read describes,
 * quickly. Nothing is printed.
 */
void look_hostile(tess_topology_reader *read, const char *text, const char *const *piece,
                  int pieces, int tries);

/* A file below this folder, "hwloc/three-gpus.xml", malloc'd, with a 0 at its end; the caller frees
 * it. */
char *look_file(const char *path);
/* Reads each machine of machines/ and calls `visit` with its name, "dgx-1v"; the visitor frees the
 * topology. Fails where one is not read. */
void look_each_machine(void (*visit)(const char *name, struct tess_topology *topology));
/* One of them; the caller frees it. */
struct tess_topology *look_machine(const char *name);

#endif
