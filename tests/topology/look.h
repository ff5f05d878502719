/* Looking at a topology in tests: nodes and links by name. */
#ifndef TESTS_TOPOLOGY_LOOK_H
#define TESTS_TOPOLOGY_LOOK_H

#include "topology/topology.h"

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

/* What a reader of memory is; the text is handed over in memory of just its size. */
typedef enum tess_status look_reader(const char *name, const char *text, size_t bytes,
                                     const struct tess_topology_options *options,
                                     struct tess_topology *topology);
/* NULL: refused with TESS_ERR_DATA and a message that names the file. The caller frees it. */
struct tess_topology *look_read(look_reader *read, const char *name, const char *text, size_t bytes,
                                const struct tess_topology_options *options);
/* Must be refused with a message that holds `part`. */
void look_refused(look_reader *read, const char *name, const char *text,
                  const struct tess_topology_options *options, const char *part);

/*
 * The text cut short at every place, and `tries` mutations of it with `piece` [pieces] from a fixed
 * seed ($TESSERA_FUZZ_TRIES where it is set): each is read or refused as look_read says, quickly.
 * Nothing is printed.
 */
void look_hostile(look_reader *read, const char *text, const char *const *piece, int pieces,
                  int tries);

/*
 * A file of a real machine, malloc'd; NULL where there is none: they belong to others and are no
 * part of the project. Below $TESSERA_TOPOLOGIES, or the folder that CMake names.
 */
char *look_real(const char *path, size_t *bytes_out);
/* Calls for each file of a folder of them: its full path, and "folder/name". Returns how many; 0:
 * there is no folder. */
int look_each_real(const char *folder, void (*visit)(const char *path, const char *file));

#endif
