/*
 * What the files of the ring search share: a table of hops and the capacities they share. Links
 * that the same hops use bind together by the narrowest alone, so they are one row of the table.
 */
#ifndef TOPOLOGY_RING_ROOM_H
#define TOPOLOGY_RING_ROOM_H

#include "topology/machine/pool.h"
#include "topology/rings/ring.h"

#define TESS__RING_EXACT_MAX 16 /* devices of an exact search */

/* A loss of bandwidth that is rounding alone; relative. */
#define TESS__RING_NEAR 1e-9

struct tess__ring_table {
    struct tess__pool pool; /* of the arrays below */
    int32_t count;          /* devices */
    int32_t rows;
    double *gbs;          /* [rows] capacity */
    int32_t *first, *row; /* hop h = from * count + to: row[first[h] .. first[h + 1]) */
    int64_t *cost;        /* [count * count] weight of crossings, -1: no way; 0: NVL to PIX */
};

/* Weights of one hop: no number of cheaper crossings outweighs a costlier one (up to 128 hops). */
#define TESS__RING_COST_PXB 1
#define TESS__RING_COST_PHB 256
#define TESS__RING_COST_SYS 65536
#define TESS__RING_COST_NET 16777216

/* ---- ring_table.c --------------------------------------------------------------------------- */

enum tess_status tess__ring_table_open(struct tess__ring_table *table,
                                       const struct tess_routes *routes);
/* The table of some devices alone, in that order; rows are the whole's. */
enum tess_status tess__ring_table_part(const struct tess__ring_table *table, const int32_t *device,
                                       int32_t count, struct tess__ring_table *part);
void tess__ring_table_free(struct tess__ring_table *table);

/* Bandwidth of a ring alone with these capacities [rows]; 0 where a hop has no way. `uses` [rows]
 * is zero before and after. Sum of the weights of its hops in *cost_out, unless NULL. */
double tess__ring_table_gbs(const struct tess__ring_table *table, const double *gbs,
                            const int32_t *order, int32_t *uses, int64_t *cost_out);
/* uses[row] += the hops of the ring that use it. */
void tess__ring_table_add(const struct tess__ring_table *table, const int32_t *order,
                          int32_t *uses);

/* ---- ring_search.c -------------------------------------------------------------------------- */

struct tess__ring_found {
    double gbs, bound_gbs; /* no ring carries more than bound */
    int64_t cost;
    bool proved; /* the best: of an exact search in all three respects, else in bandwidth */
};

/* The effort of the search for one ring. */
struct tess__ring_effort {
    int64_t steps;     /* of the walk; a million takes a quarter of a second or so */
    double deadline_s; /* by tess_clock_s; 0: none */
};

/*
 * The best ring with these capacities, up to TESS__RING_EXACT_MAX devices. order [count] holds a
 * ring to begin with.
 */
enum tess_status tess__ring_search(const struct tess__ring_table *table, const double *gbs,
                                   const struct tess__ring_effort *effort, int32_t *order,
                                   struct tess__ring_found *found_out);

/* ---- ring.c --------------------------------------------------------------------------------- */

/* tess_rings_find without a search host by host; `most` is 1 to TESS_RINGS_MAX. */
enum tess_status tess__rings_find(const struct tess_routes *routes, int32_t most,
                                  const struct tess__ring_effort *effort,
                                  struct tess_rings *rings_out);

/* ---- ring_hosts.c --------------------------------------------------------------------------- */

/* Are these devices on several hosts that all send into the network and receive from it? */
bool tess__rings_are_hosts(const struct tess_topology *topology);
enum tess_status tess__rings_find_hosts(const struct tess_topology *topology, int32_t most,
                                        double deadline_s, struct tess_rings *rings_out);

/* ---- ring_large.c --------------------------------------------------------------------------- */

/* The same for more devices; proved where the bound is met. */
enum tess_status tess__ring_improve(const struct tess__ring_table *table, const double *gbs,
                                    const struct tess__ring_effort *effort, int32_t *order,
                                    struct tess__ring_found *found_out);

/* ---- ring_bound.c --------------------------------------------------------------------------- */

/* No ring alone carries more: the widest hops that still lead from everywhere to everywhere. */
double tess__ring_single_bound(const struct tess__ring_table *table, const double *gbs);

/* No set of rings carries more than the least of these cuts: around each device, around each group
 * of devices that a kind of path keeps together, and around those of each rack. */
enum tess_status tess__ring_cut_bound(const struct tess_routes *routes, double *bound_out);

/* ---- ring_pack.c ---------------------------------------------------------------------------- */

/*
 * Rings at once, up to `most` and up to TESS__RING_EXACT_MAX devices, by linear programming over
 * all rings. ring[] holds *ring_count_out rings to begin with, and room for `most`, each with its
 * order allocated. *bound_out is lowered to what no set of rings exceeds.
 */
enum tess_status tess__ring_pack(const struct tess__ring_table *table, int32_t most,
                                 double deadline_s, struct tess_ring *ring, int32_t *ring_count_out,
                                 double *bound_out);

#endif
