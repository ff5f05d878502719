/*
 * Shared by the files of the mapping: which rank sends to which over which links, and the cost.
 *
 * Places are the entries of the request, 0 .. ranks - 1; only links that a way between two of them
 * uses are counted, as lanes 0 .. lane_count - 1. Loads are whole numbers of hops, axis by axis, so
 * that taking a hop back leaves no rounding behind and every machine comes to the same answer.
 */
#ifndef TOPOLOGY_MAP_ROOM_H
#define TOPOLOGY_MAP_ROOM_H

#include "topology/machine/pool.h"
#include "topology/map/map.h"

#define TESS__MAP_NEAR 1e-9 /* costs that differ by less are the same */

struct tess__map_hop {
    int32_t from, to; /* ranks */
    int32_t axis;
};

/* Ways from a place: way k is lane[way[k].first] and those behind it. A way that is missing has the
 * model's last lane. Small, as there are millions in a large cluster. */
struct tess__map_row {
    struct tess__map_way {
        int32_t first;
        uint8_t kind, lane_count;
    } * way;       /* [count] */
    int32_t *lane; /* [lane_count] */
    int32_t lane_count;
};

struct tess__map_model {
    struct tess__pool pool;
    const struct tess_topology *topology;
    struct tess_topology part; /* its nodes and links, borrowed; device: nodes of the places */
    int32_t axis_count, count; /* count: of ranks, and of places */
    struct tess_map_axis axis[TESS_MAP_AXES];
    int32_t stride[TESS_MAP_AXES];
    bool keep_first;
    /* Ways between the places: by place they leave, [count], or of many places by what their hosts
     * have in common; the other is NULL. */
    struct tess__map_row *row;
    struct tess__map_ways *ways;
    int32_t lane_count; /* the last one is that of missing ways */
    int32_t *link;      /* [lane_count] of the topology; -1: that last one */
    double *byte_s;     /* [lane_count] seconds for a byte */
    struct tess__map_hop *hop;
    int32_t hop_count;
    int32_t *first, *list; /* hops that touch rank r: list[first[r] .. first[r + 1]) */
};

/* TESS_ERR_USAGE where the request makes no sense. */
enum tess_status tess__map_model_open(struct tess__map_model *model,
                                      const struct tess_topology *topology,
                                      const struct tess_map_ask *ask);
void tess__map_model_close(struct tess__map_model *model); /* a zeroed one is allowed */
/* The places' host, by their devices. */
int32_t tess__map_host(const struct tess__map_model *model, int32_t place);
bool tess__map_has_chain(const struct tess__map_model *model);
enum tess_path_kind tess__map_kind(const struct tess__map_model *model, int32_t from, int32_t to);

#define TESS__MAP_WAY_MAX 192 /* lanes of a way */

/*
 * map_ways.c: the ways of the model's places, where hosts are alike enough for that; NULL in
 * *ways_out where they are not. Numbers of lanes come from the model: mark sets used [links] to 1
 * for those that a way uses, number takes their numbers.
 */
enum tess_status tess__map_ways_open(const struct tess__map_model *model,
                                     struct tess__map_ways **ways_out);
void tess__map_ways_close(struct tess__map_ways *ways); /* NULL is allowed */
void tess__map_ways_mark(const struct tess__map_ways *ways, int32_t *used);
void tess__map_ways_number(struct tess__map_ways *ways, const int32_t *number);
enum tess_path_kind tess__map_ways_kind(const struct tess__map_ways *ways, int32_t from,
                                        int32_t to);
/* Valid until the next call. */
const int32_t *tess__map_ways_lanes(const struct tess__map_ways *ways, int32_t from, int32_t to,
                                    int32_t *count_out);

/* Lanes of the way from a place to another, *count_out of them; valid until the next call. */
static inline const int32_t *tess__map_lanes(const struct tess__map_model *model, int32_t from,
                                             int32_t to, int32_t *count_out)
{
    if (model->ways != NULL)
        return tess__map_ways_lanes(model->ways, from, to, count_out);
    const struct tess__map_row *row = &model->row[from];
    *count_out = row->way[to].lane_count;
    return row->lane + row->way[to].first;
}

/* How good a mapping is. */
struct tess__map_worth {
    double cost_s; /* of the most loaded lane */
    double sum;    /* of squares of all lanes' seconds: which of equals is better */
};

/* Is this better by more than rounding? */
bool tess__map_better(struct tess__map_worth worth, struct tess__map_worth than);

/* A mapping while it is worked on. */
struct tess__map_load {
    struct tess__pool pool;
    const struct tess__map_model *model;
    int32_t *at;                    /* [count] the rank's place */
    int32_t (*uses)[TESS_MAP_AXES]; /* [lane_count] hops */
    struct tess__map_worth worth;
    int32_t worst_count;             /* lanes that are loaded most */
    int64_t visits;                  /* lanes visited: the measure of effort */
    int32_t *touched, touched_count; /* scratch of an exchange */
    int32_t (*before)[TESS_MAP_AXES];
    double *before_s;
    bool *mark; /* [lane_count] false */
};

enum tess_status tess__map_load_open(struct tess__map_load *load,
                                     const struct tess__map_model *model); /* natural order */
void tess__map_load_close(struct tess__map_load *load);
double tess__map_lane_s(const struct tess__map_load *load, int32_t lane);
/* Counts all hops of load->at again. */
void tess__map_load_count(struct tess__map_load *load);
/* The same after load->at became these places [count]. */
void tess__map_load_set(struct tess__map_load *load, const int32_t *at);
/* Where the load is better than *best_worth, it is the best: at [count] and the worth. */
bool tess__map_load_keep(const struct tess__map_load *load, struct tess__map_worth *best_worth,
                         int32_t *at);
/* worth and worst_count, by the uses as they are. */
void tess__map_load_weigh(struct tess__map_load *load);
/* Adds (1) or takes back (-1) the hop, on the lanes alone. */
void tess__map_load_hop(struct tess__map_load *load, const struct tess__map_hop *hop, int32_t by);
/* No mapping costs less: by what must cross the boundaries of devices, switches, sockets, hosts and
 * racks. 0: not known. */
enum tess_status tess__map_bound(const struct tess__map_model *model, double *bound_s_out);

/* NVLink domain of each place: one of its nodes; places without NVLink have one of their own. */
enum tess_status tess__map_domains(const struct tess__map_model *model, int32_t *domain);
/* The NUMA node, a node of the topology, of each place; -1: unknown. */
enum tess_status tess__map_numa(const struct tess__map_model *model, int32_t *numa);
/* The best ring through all places; *bound_s is raised where that proves more. */
enum tess_status tess__map_ring(const struct tess__map_model *model, int32_t *ring,
                                double *bound_s);

#define TESS__MAP_STARTS 5

/* Mappings to begin with, the cheapest first and the natural order last. */
struct tess__map_starts {
    int32_t count;
    int32_t *block;                /* that all of at are in */
    int32_t *at[TESS__MAP_STARTS]; /* [ranks] places */
    struct tess__map_worth worth[TESS__MAP_STARTS];
};

/*
 * Tries axis orders along several orders of places; the best of each axis order, as many as there
 * is room for, go to starts, whose block the caller frees. The load, which has the natural order,
 * is left with any.
 * *bound_s is raised where the ring search has proved more.
 */
enum tess_status tess__map_layout(struct tess__map_load *load, double *bound_s,
                                  struct tess__map_starts *starts);
/* Exchanges of two ranks' places while they help, up to so many visits. */
void tess__map_exchange(struct tess__map_load *load, double bound_s, int64_t visits);
/* All mappings, without those that are no better; *whole_out: it came to the end in `visits`. */
enum tess_status tess__map_search(struct tess__map_load *load, double bound_s, int64_t visits,
                                  bool *whole_out);

#endif
