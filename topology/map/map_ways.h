/*
 * Shared by the files of ways between hosts that are alike; see map_ways.c.
 */
#ifndef TOPOLOGY_MAP_WAYS_H
#define TOPOLOGY_MAP_WAYS_H

#include "topology/map/map_room.h"

#define WAYS_PLACES_MAX    2048 /* of a unit */
#define WAYS_RELATIONS_MAX 1024
#define WAYS_TABLE_MAX     (1 << 25) /* ways, classes by classes, gates by switches */
#define WAYS_WIDTHS_MAX    64        /* different ones of links between switches */
#define WAYS_NO_GATE       UINT16_MAX

/* A way between two places of a relation: code[first ..], out_count of the first unit's links, then
 * in_count of the second's, by their numbers in the unit. */
struct ways_way {
    int32_t first;
    uint16_t gate[2]; /* out and in, by their numbers in the unit; WAYS_NO_GATE: inside a unit */
    uint8_t kind, out_count, in_count;
};

struct ways_relation {
    uint64_t hash;
    int32_t first, second; /* units that it was found on; the same: inside a unit */
    struct ways_way *way;  /* [places of the first][places of the second] */
    int32_t *code;
};

struct tess__map_ways {
    struct tess__pool pool;
    const struct tess__map_model *model;
    const struct tess_topology *topology; /* the model's part */
    int32_t units;
    int32_t *unit;                   /* [nodes] -1: a switch of the network */
    int32_t *node_first, *node;      /* nodes of unit u: node[node_first[u] .. node_first[u + 1]) */
    int32_t *link_first, *link;      /* its links, with those to and from switches; behind all of
                                        them, as unit `units`, those between switches */
    int32_t *link_unit, *local_link; /* [links] and which of its unit's it is */
    int32_t *local_node;             /* [nodes] */
    int32_t *lane;                   /* [links] the model's lane of link[i] */
    int32_t *gate_first, *gate;      /* [units + 1]: switches that the unit has links to */
    int32_t *place_first, *place_node; /* [units + 1]: nodes of the unit's places */
    int32_t *local;                    /* [places] number among its unit's */
    int32_t *make;                     /* [units] the first unit that is made alike */
    int32_t *class_of;                 /* [units] classes: a make at the same switches */
    int32_t *class_unit;               /* [classes][2] the first two units of each; -1 */
    int32_t classes;
    /* Switches: */
    int32_t *gate_of; /* [nodes] number of a gate; -1 */
    int32_t gates, nets;
    int32_t *net;             /* [nodes] number of a switch; -1 */
    int32_t *out_first, *out; /* links from a switch to switches, by target */
    double *width;            /* [WAYS_WIDTHS_MAX] falling */
    int32_t widths;
    int32_t *came; /* [gates][nets] link that leads there; -1 */
    uint16_t *far; /* [gates][nets] links; UINT16_MAX: no way */
    uint8_t *wide; /* [gates][nets] number of the width */
    /* Relations: */
    struct ways_relation relation[WAYS_RELATIONS_MAX];
    int32_t relations;
    int16_t *between; /* [classes][classes] of units of these that are two */
    int16_t *inside;  /* [classes] */
    int32_t *scratch; /* [nodes + links] */
    double *print[2];
    int32_t *found; /* a way's lanes, as they were last requested */
};

static inline bool ways_is_net(const struct tess__map_ways *ways, int32_t node)
{
    return ways->topology->node[node].kind == TESS_NODE_NET;
}

static inline int32_t ways_places(const struct tess__map_ways *ways, int32_t unit)
{
    return ways->place_first[unit + 1] - ways->place_first[unit];
}

/* map_units.c: units, their places, gates, makes and classes. TESS_OK and false in *fits_out where
 * a unit has too many places. */
enum tess_status tess__ways_units(struct tess__map_ways *ways, bool *fits_out);
/* Number of the switch among the unit's gates, which a new one is added to. */
int32_t tess__ways_gate(struct tess__map_ways *ways, int32_t unit, int32_t net);
/* map_nets.c: the ways from all gates to all switches; false in *fits_out where they are too many.
 */
enum tess_status tess__ways_nets(struct tess__map_ways *ways, bool *fits_out);

#endif
