/*
 * Parts of the network that became slow while ranks trained. Placing takes them from the speed of a
 * topology that was made before: of a file, or of Slurm. A measurement finds them itself.
 */
#ifndef TESSERA_JOB_PLACE_SLOW_H
#define TESSERA_JOB_PLACE_SLOW_H

#include "job/run.h"

struct tess_topology;
struct tess_topo_link;

#define TESS__SLOWED_LINKS 8
#define TESS__SLOWED_PARTS 8
#define TESS__SLOWED_NAME  160
#define TESS__SLOWED_END   48 /* a node's name: TESS_TOPO_NAME_MAX */

/* A part, by the links that it may be. */
struct tess__slowed {
    char name[TESS__SLOWED_NAME]; /* "the link rack0 - core" */
    double share;                 /* that is left of the speed: more than 0, less than 1 */
    int32_t link_count;           /* 0: it is no part of the topology */
    char link[TESS__SLOWED_LINKS][2][TESS__SLOWED_END]; /* their ends, in any order */
};

/* Plain memory: launchers that follow each other share it. */
struct tess__slowed_parts {
    int32_t count;
    struct tess__slowed part[TESS__SLOWED_PARTS];
};

/* Add a link, by nodes of the topology; beyond TESS__SLOWED_LINKS nothing happens. */
void tess__slowed_add(struct tess__slowed *part, const struct tess_topology *topology,
                      const struct tess_topo_link *link);
/* Add the links between the network and the host of a device. */
void tess__slowed_add_host(struct tess__slowed *part, const struct tess_topology *topology,
                           int32_t device);

/* Both directions of the links of the parts get their share. Links that are not there stay away. */
void tess__place_slow(struct tess_topology *topology, const struct tess__slowed_parts *parts);

/*
 * How many times as soon the most loaded link would be done in the best order of ranks as in the
 * present one, if the part of run->placed->topology has its share: 1 or more. By
 * topology/map/map.h, and so within its limits. (place_map.c)
 */
enum tess_status tess__place_gain(const struct tess__run *run, const struct tess__slowed *part,
                                  double *gain_out);

#endif
