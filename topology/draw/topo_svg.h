/* What the files that draw a machine share: the page that grows, and strokes by capacity. */
#ifndef TESSERA_TOPOLOGY_DRAW_TOPO_SVG_H
#define TESSERA_TOPOLOGY_DRAW_TOPO_SVG_H

#include "text/report_html.h"
#include "topology/draw/topo.h"
#include "topology/machine/pool.h"

#define TESS__SVG_MARGIN  24.0 /* around the cards */
#define TESS__SVG_PADDING 22.0 /* inside a card */

/* The network's switches as a tree, and the switch of each host. */
struct tess__topo_net {
    struct tess__pool pool;
    int32_t *leaf;         /* [host_count] NET node; -1: none */
    int32_t *parent;       /* [node_count] NET node above; -1 */
    int32_t *level;        /* [node_count] 0: none below */
    int32_t *first, *next; /* [node_count] children and siblings; -1 */
    int32_t *hosts;        /* [node_count] hosts of this switch */
    /* [node_count] how many switches join the same hosts as this one, as rails do, and are not
     * shown; -1: it is one of those. */
    int32_t *beside;
    int32_t *roots; /* [root_count] */
    int32_t root_count, level_count;
};

/* net->pool is released by the caller, also after a failure. */
enum tess_status tess__topo_net_open(const struct tess_topology *topology,
                                     struct tess__topo_net *net);

struct tess__topo_svg {
    const struct tess__topo *topo;
    struct tess__html out;
    struct tess__topo_tree tree;
    struct tess__topo_net net;
    int32_t *uses; /* [link_count] of each link by the best ring; NULL without routes */
    double width;  /* of the page */
    double y;      /* where the next card begins */
};

/* ---- topo_svg_pen.c ---- */

/* Is it a link that holds the best ring back? */
bool tess__svg_limits(const struct tess__topo_svg *svg, int32_t link);
double tess__svg_stroke(double gbs);                    /* width of a line */
const char *tess__svg_colour(enum tess_link_kind kind); /* "var(--s2)" */
/* anchor: "start", "middle", "end"; foreign text, at most `max` characters. */
void tess__svg_text(struct tess__topo_svg *svg, double x, double y, const char *class,
                    const char *anchor, const char *text, size_t max);
/* A mark on a link that holds a ring back. */
void tess__svg_mark(struct tess__topo_svg *svg, double x, double y, const char *text);
/* A short line in a legend. */
void tess__svg_swatch(struct tess__topo_svg *svg, double x, double y, int length,
                      const char *colour);
/* A rectangle with round corners. */
void tess__svg_box(struct tess__topo_svg *svg, double x, double y, double width, double height,
                   int corner, const char *class);
/* Without the host in front. */
const char *tess__svg_short(const struct tess__topo_svg *svg, const char *name);

/* ---- topo_svg_machine.c: sets the page's width by what there is to draw ---- */

enum tess_status tess__svg_machine(struct tess__topo_svg *svg);

/* ---- topo_svg_ring.c ---- */

void tess__svg_rings(struct tess__topo_svg *svg);

#endif
