/*
 * Rings as cards: the best one, the natural order, and all that are used at once, each a circle of
 * devices with an arrow for every hop. Of large clusters the circle shows hosts by their switch.
 */
#include "topology/draw/topo_svg.h"
#include "topology/machine/rates.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RING_NODES   40 /* devices with a circle of their own */
#define RING_SET_MAX 5  /* rings in one circle */
#define RING_GROUPS  8  /* groups that are named around the circle */
#define RING_SLICES  400
#define RING_CAPTION 47 /* characters of a line */
#define RING_HEAD    64.0
#define RING_LINE    16.0

struct ring_card {
    struct tess__topo_svg *svg;
    double x, width, centre_x, centre_y, radius;
    bool wide; /* the only card: text beside the circle, not below */
};

/* Colours of rings that are used at once: not those of the kinds of links. */
static const char *const ring_colour[RING_SET_MAX] = {"var(--s3)", "var(--s4)", "var(--s10)",
                                                      "var(--s6)", "var(--s8)"};

/* ---- the circle ----------------------------------------------------------------------------- */

static double ring_angle(const struct ring_card *card, double place)
{
    return 2 * M_PI * place / card->svg->topo->rings.count - M_PI / 2;
}

static double ring_radius(const struct tess__topo_svg *svg)
{
    return svg->topo->rings.count <= 8 || !svg->topo->routed ? 94 : 120;
}

static double ring_dot(const struct ring_card *card)
{
    int32_t count = card->svg->topo->rings.count;
    return count <= 8 ? 15 : count <= 16 ? 12 : count <= RING_NODES ? 7.5 : 0;
}

/* What a device is on: its host, or its NUMA node on a machine of one host. */
static int32_t ring_group(const struct tess__topo_svg *svg, int32_t device)
{
    const struct tess_topology *topology = svg->topo->topology;
    int32_t node = topology->device[device];
    if (topology->host_count > 1)
        return topology->node[node].host;
    for (int depth = 0; depth < TESS__TOPO_DEPTH_MAX && svg->tree.up[node] >= 0; depth++)
        node = topology->link[svg->tree.up[node]].from;
    return node;
}

/* Where a text begins beside the circle. */
static const char *ring_anchor(double angle)
{
    return fabs(cos(angle)) < 0.3 ? "middle" : cos(angle) > 0 ? "start" : "end";
}

/* Arcs around devices that are on one host or NUMA node, with their names. */
static void ring_groups(struct ring_card *card)
{
    struct tess__topo_svg *svg = card->svg;
    const struct tess_topology *topology = svg->topo->topology;
    int32_t count = svg->topo->rings.count, runs = 0;
    double radius = card->radius + ring_dot(card) + 9;
    char name[TESS__TOPO_TEXT];
    for (int32_t i = 0; i < count; i++)
        runs += ring_group(svg, i) != ring_group(svg, (i + 1) % count);
    if (runs == 0 || runs > 2 * RING_GROUPS)
        return;
    for (int32_t i = 0, next; i < count; i = next) {
        int32_t group = ring_group(svg, i);
        for (next = i + 1; next < count && ring_group(svg, next) == group;)
            next++;
        double from = ring_angle(card, i - 0.36), to = ring_angle(card, next - 1 + 0.36);
        double middle = (from + to) / 2, x = card->centre_x + (radius + 10) * cos(middle);
        double y = card->centre_y + (radius + 10) * sin(middle);
        tess__html_print(&svg->out,
                         "<path d=\"M%.1f %.1fA%.1f %.1f 0 %d 1 %.1f %.1f\" class=\"l\" "
                         "stroke=\"var(--line)\" stroke-width=\"4\"/>\n",
                         card->centre_x + radius * cos(from), card->centre_y + radius * sin(from),
                         radius, radius, to - from > M_PI, card->centre_x + radius * cos(to),
                         card->centre_y + radius * sin(to));
        if (topology->host_count > 1)
            tess__topo_host_name(topology, group, name);
        else
            snprintf(name, sizeof(name), "%s", topology->node[group].name);
        /* Names stay inside the card. */
        double room = card->width / 2 - (radius + 10) * fabs(cos(middle)) - 4;
        tess__svg_text(svg, x, y + 4 + 4 * sin(middle), "tiny", ring_anchor(middle), name,
                       (size_t)fmin(10, fmax(4, room / 5.6)));
    }
}

static void ring_dots(struct ring_card *card)
{
    struct tess__topo_svg *svg = card->svg;
    int32_t count = svg->topo->rings.count;
    double radius = ring_dot(card);
    char text[16];
    for (int32_t i = 0; i < count; i++) {
        double x = card->centre_x + card->radius * cos(ring_angle(card, i));
        double y = card->centre_y + card->radius * sin(ring_angle(card, i));
        tess__html_print(&svg->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" class=\"dot\"/>\n",
                         x, y, fmax(radius, 2.5));
        snprintf(text, sizeof(text), "%d", (int)svg->topo->number[i]);
        if (radius > 0)
            tess__svg_text(svg, x, y + 4, radius > 10 ? "h2" : "tiny", "middle", text, 6);
    }
}

/* An arrow from device a to device b, bent to the right of its way so that both directions show. */
static void ring_arrow(struct ring_card *card, int32_t a, int32_t b, const char *colour,
                       double width, double bend)
{
    double dot = fmax(ring_dot(card), 2.5), head = 5 + 1.3 * width;
    double ax = card->centre_x + card->radius * cos(ring_angle(card, a));
    double ay = card->centre_y + card->radius * sin(ring_angle(card, a));
    double bx = card->centre_x + card->radius * cos(ring_angle(card, b));
    double by = card->centre_y + card->radius * sin(ring_angle(card, b));
    double dx = bx - ax, dy = by - ay, length = hypot(dx, dy);
    double mx = (ax + bx) / 2 - dy / length * bend, my = (ay + by) / 2 + dx / length * bend;
    double from = hypot(mx - ax, my - ay), to = hypot(bx - mx, by - my);
    double ux = (bx - mx) / to, uy = (by - my) / to;
    ax += (mx - ax) / from * (dot + 1);
    ay += (my - ay) / from * (dot + 1);
    bx -= ux * (dot + 1.5);
    by -= uy * (dot + 1.5);
    tess__html_print(&card->svg->out,
                     "<path d=\"M%.1f %.1fQ%.1f %.1f %.1f %.1f\" class=\"l\" stroke=\"%s\" "
                     "stroke-width=\"%.1f\"/>\n",
                     ax, ay, mx, my, bx - ux * head * 0.8, by - uy * head * 0.8, colour, width);
    tess__html_print(&card->svg->out, "<path d=\"M%.1f %.1fL%.1f %.1fL%.1f %.1fZ\" fill=\"%s\"/>\n",
                     bx, by, bx - ux * head - uy * head * 0.45, by - uy * head + ux * head * 0.45,
                     bx - ux * head + uy * head * 0.45, by - uy * head - ux * head * 0.45, colour);
}

static const char *ring_hop_colour(const struct tess_route *route)
{
    static const enum tess_link_kind kind[TESS_PATH_KIND_COUNT] = {
        [TESS_PATH_LOC] = TESS_LINK_PCI,    [TESS_PATH_NVL] = TESS_LINK_NVLINK,
        [TESS_PATH_NVB] = TESS_LINK_NVLINK, [TESS_PATH_C2C] = TESS_LINK_C2C,
        [TESS_PATH_PIX] = TESS_LINK_PCI,    [TESS_PATH_PXB] = TESS_LINK_PCI,
        [TESS_PATH_PHB] = TESS_LINK_PCI,    [TESS_PATH_SYS] = TESS_LINK_SYS,
        [TESS_PATH_NET] = TESS_LINK_NET,    [TESS_PATH_NONE] = TESS_LINK_PCI};
    return tess__svg_colour(route->gbs >= TESS_GBS_LOCAL ? TESS_LINK_LOCAL : kind[route->kind]);
}

/* Hops of one ring by kind of path; those over a link that holds it back are red, where they are
 * few.
 */
static void ring_hops(struct ring_card *card, const int32_t *order, double gbs)
{
    const struct tess__topo *topo = card->svg->topo;
    const struct tess_topology *topology = topo->topology;
    int32_t count = topo->rings.count, limited = 0;
    bool limits[TESS__TOPO_ROUTED_MAX] = {false};
    int32_t *uses = calloc((size_t)topology->link_count + 1, sizeof(*uses));
    if (uses == NULL)
        return;
    tess__topo_uses(topo, order, uses);
    for (int32_t i = 0; i < count; i++) {
        const struct tess_route *route = tess__route_hop(&topo->routes, order, count, i);
        for (int32_t k = 0; k < route->link_count && !limits[i]; k++) {
            int32_t link = topo->routes.link[route->first + k];
            limits[i] = topology->link[link].gbs / uses[link] <= gbs * (1 + 1e-9);
        }
        limited += limits[i];
    }
    for (int32_t i = 0; i < count; i++) {
        int32_t a = order[i], b = order[(i + 1) % count];
        bool red = limits[i] && limited * 3 <= count;
        ring_arrow(card, a, b,
                   red ? "var(--bad)" : ring_hop_colour(&topo->routes.route[a * count + b]),
                   red ? 3.4 : 2.2, 8);
    }
    free(uses);
}

/* ---- clusters ------------------------------------------------------------------------------- */

/* A slice for each run of devices whose hosts are on one switch. */
static void ring_slices(struct ring_card *card, const int32_t *order)
{
    struct tess__topo_svg *svg = card->svg;
    const struct tess_topology *topology = svg->topo->topology;
    int32_t count = svg->topo->rings.count, runs = 0;
    double outer = card->radius, inner = card->radius - 30;
    for (int32_t i = 0, next; i < count && runs < RING_SLICES; i = next, runs++) {
        int32_t leaf = svg->net.leaf[topology->node[topology->device[order[i]]].host];
        for (next = i + 1; next < count; next++)
            if (svg->net.leaf[topology->node[topology->device[order[next]]].host] != leaf)
                break;
        double from = ring_angle(card, i), to = ring_angle(card, fmin(next, i + count - 0.02));
        double middle = (from + to) / 2;
        tess__html_print(&svg->out,
                         "<path d=\"M%.2f %.2fA%.0f %.0f 0 %d 1 %.2f %.2fL%.2f %.2fA%.0f %.0f 0 %d "
                         "0 %.2f %.2fZ\" fill=\"var(--s%d)\" stroke=\"var(--card)\" "
                         "stroke-width=\"1\"/>\n",
                         card->centre_x + outer * cos(from), card->centre_y + outer * sin(from),
                         outer, outer, to - from > M_PI, card->centre_x + outer * cos(to),
                         card->centre_y + outer * sin(to), card->centre_x + inner * cos(to),
                         card->centre_y + inner * sin(to), inner, inner, to - from > M_PI,
                         card->centre_x + inner * cos(from), card->centre_y + inner * sin(from),
                         leaf >= 0 ? (int)(leaf % 10) : 6);
        if (to - from > 0.35 && leaf >= 0)
            tess__svg_text(svg, card->centre_x + (outer + 9) * cos(middle),
                           card->centre_y + (outer + 9) * sin(middle) + 4 + 4 * sin(middle), "tiny",
                           ring_anchor(middle), topology->node[leaf].name, 11);
    }
    char text[32];
    snprintf(text, sizeof(text), "%s%d", runs >= RING_SLICES ? "over " : "", (int)runs);
    tess__svg_text(svg, card->centre_x, card->centre_y, "big", "middle", text, 12);
    tess__svg_text(svg, card->centre_x, card->centre_y + 18, "cap", "middle",
                   runs == 1 ? "run of hosts" : "runs by switch", 20);
}

/* ---- cards ---------------------------------------------------------------------------------- */

/* Up to `lines` lines from y on, broken at spaces. Returns where the next would be. */
static double ring_caption(struct ring_card *card, double y, const char *text, int lines,
                           const char *class)
{
    char line[RING_CAPTION + 8];
    size_t most = (size_t)fmin(RING_CAPTION, (card->width - 2 * TESS__SVG_PADDING) / 6.3);
    for (int i = 0; i < lines && *text != '\0'; i++) {
        size_t length = strlen(text), cut = length;
        if (length > most)
            for (cut = most; cut > 0 && text[cut] != ' ' && text[cut] != '-';)
                cut--;
        if (cut == 0)
            cut = length < most ? length : most;
        cut += text[cut] == '-';
        bool last = i == lines - 1 && cut < length;
        snprintf(line, sizeof(line), "%.*s%s", (int)cut, text, last ? " ..." : "");
        tess__svg_text(card->svg, card->x + TESS__SVG_PADDING, y, class, "start", line, 80);
        text += cut;
        text += *text == ' ';
        y += RING_LINE;
    }
    return y;
}

static void ring_head(struct ring_card *card, double top, const char *what, double gbs)
{
    char rate[TESS__RATE_TEXT];
    const char *const text = gbs < TESS_GBS_LOCAL ? tess__rate_text(gbs, rate) : "memory";
    tess__svg_text(card->svg, card->x + TESS__SVG_PADDING, top + 28, "cap", "start", what, 60);
    tess__svg_text(card->svg, card->x + TESS__SVG_PADDING, top + 56, "big", "start", text, 30);
}

/* What is known of all other orders. */
static void ring_orders(const struct tess__topo *topo, char *text, size_t room)
{
    const struct tess__topo_orders *orders = &topo->orders;
    char rate[TESS__RATE_TEXT];
    if (!topo->rings.optimal)
        snprintf(text, room, "not proved best; no ring has more than %s",
                 tess__rate_text(topo->rings.single_bound_gbs, rate));
    else if (orders->count > 0 && orders->best == orders->count)
        snprintf(text, room, "proved best; all %lld orders are as fast", (long long)orders->count);
    else if (orders->count > 0)
        snprintf(text, room, "proved best; %lld of %lld orders %s as fast, the worst has %s",
                 (long long)orders->best, (long long)orders->count,
                 orders->best == 1 ? "is" : "are", tess__rate_text(orders->worst_gbs, rate));
    else
        snprintf(text, room, "proved: no order of one ring is faster");
}

/* narrow: NULL where it is not known. */
static void ring_one(struct ring_card *card, double top, const char *what, const int32_t *order,
                     double gbs, const struct tess__topo_narrow *narrow)
{
    const struct tess__topo *topo = card->svg->topo;
    char line[2 * TESS__TOPO_TEXT + 16], text[2 * TESS__TOPO_TEXT], list[TESS__TOPO_ORDER];
    ring_head(card, top, what, gbs);
    if (topo->routed) {
        ring_groups(card);
        ring_hops(card, order, gbs);
        ring_dots(card);
    } else {
        ring_slices(card, order);
    }
    double y = card->wide ? top + 90 : card->centre_y + card->radius + 62;
    y = ring_caption(card, y, tess__topo_order_text(topo, order, list), 2, "mono");
    if (narrow && narrow->link >= 0) {
        snprintf(line, sizeof(line), "limited by %s", tess__topo_narrow_text(topo, narrow, text));
        y = ring_caption(card, y, line, 3, "cap");
    }
    if (order == topo->rings.best_single.order) {
        ring_orders(topo, line, sizeof(line));
        y = ring_caption(card, y, line, 2, "cap");
    }
    /* Too many to draw: a note, where there is no card beside. */
    if (card->wide && topo->rings.ring_count > 1) {
        char total[TESS__RATE_TEXT], bound[TESS__RATE_TEXT];
        snprintf(line, sizeof(line), "%d rings at once carry %s, of at most %s",
                 (int)topo->rings.ring_count, tess__rate_text(topo->rings.total_gbs, total),
                 tess__rate_text(topo->rings.bound_gbs, bound));
        ring_caption(card, y + 8, line, 2, "cap");
    }
}

static void ring_set(struct ring_card *card, double top)
{
    const struct tess__topo *topo = card->svg->topo;
    const struct tess_rings *rings = &topo->rings;
    struct tess__topo_svg *svg = card->svg;
    int32_t listed = rings->ring_count <= RING_SET_MAX ? rings->ring_count : RING_SET_MAX - 1;
    char what[96], line[96], bound[TESS__RATE_TEXT], rate[TESS__RATE_TEXT];
    char order[TESS__TOPO_ORDER];
    snprintf(what, sizeof(what), "%d rings at once, of at most %s", (int)rings->ring_count,
             tess__rate_text(rings->bound_gbs, bound));
    ring_head(card, top, what, rings->total_gbs);
    ring_groups(card);
    for (int32_t r = listed - 1; r >= 0; r--) {
        for (int32_t i = 0; i < rings->count; i++)
            ring_arrow(card, rings->ring[r].order[i], rings->ring[r].order[(i + 1) % rings->count],
                       ring_colour[r], fmax(1, 2.8 * sqrt(rings->ring[r].gbs / rings->ring[0].gbs)),
                       8 + 4 * r);
    }
    ring_dots(card);
    double x = card->x + TESS__SVG_PADDING, y = card->centre_y + card->radius + 62;
    for (int32_t r = 0; r < listed; r++, y += RING_LINE) {
        tess__svg_swatch(svg, x, y - 4, 14, ring_colour[r]);
        tess__svg_text(svg, x + 56, y, "mono", "end",
                       tess__rate_number(rings->ring[r].gbs, rings->total_gbs, rate), 8);
        tess__svg_text(svg, x + 66, y, "mono", "start",
                       tess__topo_order_text(topo, rings->ring[r].order, order),
                       (size_t)((card->width - 2 * TESS__SVG_PADDING - 66) / 7.3));
    }
    if (rings->ring_count > listed) {
        snprintf(line, sizeof(line), "and %d more", (int)(rings->ring_count - listed));
        tess__svg_text(svg, x, y, "cap", "start", line, 60);
    }
}

void tess__svg_rings(struct tess__topo_svg *svg)
{
    const struct tess__topo *topo = svg->topo;
    const struct tess_rings *rings = &topo->rings;
    bool same = memcmp(rings->best_single.order, rings->natural.order,
                       (size_t)rings->count * sizeof(*rings->natural.order)) == 0;
    bool set = rings->ring_count > 1 && rings->count <= RING_NODES && topo->routed;
    /* Where the natural order is the best, a worse one shows why orders matter. */
    bool worst = same && topo->orders.count > 0 && topo->orders.best < topo->orders.count;
    int cards = 1 + (!same || worst) + set;
    double room = svg->width - 2 * TESS__SVG_MARGIN, top = svg->y;
    double height = RING_HEAD + 2 * ring_radius(svg) + (cards > 1 ? 106 + 5.5 * RING_LINE : 60);
    struct ring_card card = {.svg = svg,
                             .width = (room - (cards - 1) * 16) / cards,
                             .wide = cards == 1,
                             .radius = ring_radius(svg)};
    for (int i = 0; i < cards; i++) {
        card.x = TESS__SVG_MARGIN + i * (card.width + 16);
        card.centre_x = card.x + card.width * (card.wide ? 0.64 : 0.5);
        card.centre_y = top + (card.wide ? height / 2 : RING_HEAD + card.radius + 40);
        tess__svg_box(svg, card.x, top, card.width, height, 16, "card");
        if (i == 0)
            ring_one(&card, top, same ? "the natural order is the best ring" : "best ring",
                     rings->best_single.order, rings->best_single.gbs, &topo->best_narrow);
        else if (i == 1 && !same)
            ring_one(&card, top, "natural order", rings->natural.order, rings->natural.gbs,
                     &topo->natural_narrow);
        else if (i == 1 && worst)
            ring_one(&card, top, "the worst order", topo->orders.worst, topo->orders.worst_gbs,
                     NULL);
        else
            ring_set(&card, top);
    }
    svg->y = top + height + 16;
}
