/* The drawing of a machine, between the files that place it, its links and its boxes. */
#ifndef TESSERA_TOPOLOGY_DRAW_TOPO_SVG_MACHINE_ROOM_H
#define TESSERA_TOPOLOGY_DRAW_TOPO_SVG_MACHINE_ROOM_H

#include "topology/draw/topo_svg.h"

#define TESS__MACHINE_DEVICE_H 42.0
#define TESS__MACHINE_NIC_H    26.0
#define TESS__MACHINE_BAR_H    24.0
#define TESS__MACHINE_STEP     50.0 /* from one level of bars to the next */
#define TESS__MACHINE_GAP      8.0
#define TESS__MACHINE_BOXES    12 /* of switches with their hosts */
#define TESS__MACHINE_BOX_W    96.0
#define TESS__MACHINE_BESIDE   80.0 /* neighbours are not further from each other */
#define TESS__MACHINE_SYS_MAX  8    /* NUMA nodes of a host whose links are drawn one by one */

struct tess__machine {
    struct tess__topo_svg *svg;
    const struct tess_topology *topology;
    double *x0, *x1, *top;  /* [node_count] of a node's box or bar; x1 0: not drawn */
    int32_t *level;         /* [node_count] bars below it, in the tree of a host */
    double *host0, *host1;  /* [host_count] */
    double device_w, nic_w; /* nic_w 0: NICs are left out */
    double row;             /* lower edge of devices and NICs */
    double bottom;          /* of the hosts */
    int32_t cpu_level;
    int32_t boxes; /* drawn, of a large cluster */
    bool boxed;    /* a large cluster */
    bool alone;    /* one host is drawn, and no network */
};

static inline double tess__machine_middle(const struct tess__machine *machine, int32_t node)
{
    return (machine->x0[node] + machine->x1[node]) / 2;
}

/* ---- topo_svg_place.c ---- */

/* Extents of all that is drawn, from x on; returns the right edge. */
double tess__machine_place_all(struct tess__machine *machine, double x);

/* One host, by itself; returns the right edge. */
double tess__machine_place_host(struct tess__machine *machine, int32_t host, double x);

/* ---- topo_svg_links.c ---- */

/* Is either direction used by the best ring? True where that is not known. */
bool tess__machine_used(const struct tess__machine *machine, int32_t link);
/* Is it one of few links that hold the best ring back? Where many do, none is special. */
bool tess__machine_marked(const struct tess__machine *machine, int32_t link);
/* A mark with the link's capacity, where it is marked. */
void tess__machine_mark(struct tess__machine *machine, int32_t number, double x, double y);
/* An upright link at x, with its capacity beside it where there is room. */
void tess__machine_upright(struct tess__machine *machine, int32_t number, double x, double from,
                           double to, bool label);
/* From a box or bar down to the bar that it is attached to. */
void tess__machine_link_up(struct tess__machine *machine, int32_t node, int32_t link, double from);
/* NVLinks between devices: arcs with their capacities, the pale ones first. Returns the height that
 * they need. */
double tess__machine_arcs(struct tess__machine *machine, bool draw);
/* From a NIC up: its way into the network, where that is not drawn. */
void tess__machine_nic(struct tess__machine *machine, int32_t nic);
/* Between NUMA nodes of a host: straight to the neighbour, else an arc below. */
void tess__machine_sys(struct tess__machine *machine, int32_t number);
/* What that link needs below the bars. */
double tess__machine_sys_room(const struct tess__machine *machine, int32_t number);
bool tess__machine_draws_sys(const struct tess__machine *machine,
                             const struct tess_topo_link *link);

#endif
