/* The links inside the hosts of a drawn machine: upright ones of the tree, arcs of NVLinks, ways
 * between NUMA nodes, and marks on those that hold the best ring back. */
#include "topology/draw/topo_svg_machine_room.h"

#include <math.h>

/* The other direction; -1. */
static int32_t machine_reverse(const struct tess__machine *machine, int32_t number)
{
    const struct tess_topo_link *link = &machine->topology->link[number];
    /* Readers add both directions one after the other. */
    for (int32_t i = number > 0 ? number - 1 : 0;
         i <= number + 1 && i < machine->topology->link_count; i++) {
        const struct tess_topo_link *other = &machine->topology->link[i];
        if (other->from == link->to && other->to == link->from && other->kind == link->kind)
            return i;
    }
    return -1;
}

bool tess__machine_used(const struct tess__machine *machine, int32_t link)
{
    const struct tess__topo_svg *svg = machine->svg;
    int32_t back = machine_reverse(machine, link);
    return !svg->uses || svg->uses[link] > 0 || (back >= 0 && svg->uses[back] > 0);
}

bool tess__machine_marked(const struct tess__machine *machine, int32_t link)
{
    int32_t back = machine_reverse(machine, link), alike = machine->svg->topo->best_narrow.alike;
    return alike > 0 && alike <= 4 &&
           (tess__svg_limits(machine->svg, link) ||
            (back >= 0 && tess__svg_limits(machine->svg, back)));
}

/* A path's tail after d="...": class, colour, width, and a title with the link's ends and speed. */
static void machine_stroke(struct tess__machine *machine, int32_t number)
{
    const struct tess_topo_link *link = &machine->topology->link[number];
    struct tess__html *out = &machine->svg->out;
    char gbs[TESS__TOPO_TEXT];
    tess__html_print(
        out, "\" class=\"l%s\" stroke=\"%s\" stroke-width=\"%.1f\"><title>",
        tess__machine_used(machine, number) ? "" : " idle",
        tess__machine_marked(machine, number) ? "var(--bad)" : tess__svg_colour(link->kind),
        link->kind == TESS_LINK_LOCAL ? 1.5
                                      : fmin(tess__svg_stroke(link->gbs), machine->device_w / 5));
    tess__html_escape(out, machine->topology->node[link->from].name);
    tess__html_add(out, " - ");
    tess__html_escape(out, machine->topology->node[link->to].name);
    tess__html_print(out, ": %s, %s each way</title></path>\n",
                     tess__topo_link_word(machine->topology, link),
                     tess__rate_text(link->gbs, gbs));
}

void tess__machine_mark(struct tess__machine *machine, int32_t number, double x, double y)
{
    const struct tess__topo_svg *svg = machine->svg;
    int32_t back = machine_reverse(machine, number);
    char text[TESS__TOPO_TEXT + 24], gbs[TESS__TOPO_TEXT];
    if (!tess__machine_marked(machine, number))
        return;
    int32_t limiting = tess__svg_limits(svg, number) ? number : back;
    int32_t uses = svg->uses[limiting];
    snprintf(text, sizeof(text), uses > 1 ? "%s, used %dx" : "%s",
             tess__rate_text(machine->topology->link[limiting].gbs, gbs), (int)uses);
    tess__svg_mark(machine->svg, x, y, text);
}

void tess__machine_upright(struct tess__machine *machine, int32_t number, double x, double from,
                           double to, bool label)
{
    const double gbs = machine->topology->link[number].gbs;
    char text[TESS__TOPO_TEXT];
    tess__html_print(&machine->svg->out, "<path d=\"M%.1f %.1fV%.1f", x, from, to);
    machine_stroke(machine, number);
    if ((machine->device_w >= 36 || machine->boxed) && label)
        tess__svg_text(machine->svg, x + 4 + tess__svg_stroke(gbs) / 2, (from + to) / 2 + 3.5,
                       "tiny", "start", tess__topo_label(gbs, text), 12);
}

void tess__machine_link_up(struct tess__machine *machine, int32_t node, int32_t link, double from)
{
    const struct tess_topo_link *up = &machine->topology->link[link];
    const double x = tess__machine_middle(machine, node), to = machine->top[up->from];
    tess__machine_upright(machine, link, x, from, to,
                          up->kind != TESS_LINK_LOCAL && !tess__machine_marked(machine, link));
    tess__machine_mark(machine, link, x, (from + to) / 2);
}

/* Where arcs of a device begin: next to each other, in the order of their targets. */
static double machine_anchor(const struct tess__machine *machine, int32_t node, int32_t other)
{
    const struct tess_topology *topology = machine->topology;
    int32_t arcs = 0, before = 0;
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        if (link->from != node || link->kind != TESS_LINK_NVLINK ||
            topology->node[link->to].kind != TESS_NODE_DEVICE)
            continue;
        arcs++;
        /* The nearest ends next to the side it goes to, the furthest beside the middle. */
        bool left = machine->x0[link->to] < machine->x0[node];
        bool other_left = machine->x0[other] < machine->x0[node];
        if (link->to == other)
            continue;
        if (left != other_left)
            before += left;
        else
            before += machine->x0[link->to] > machine->x0[other];
    }
    double room = machine->device_w - 14, step = arcs > 1 ? fmin(10, room / (arcs - 1)) : 0;
    return tess__machine_middle(machine, node) + (before - (arcs - 1) / 2.0) * step;
}

double tess__machine_arcs(struct tess__machine *machine, bool draw)
{
    const struct tess_topology *topology = machine->topology;
    double most = 0, top = machine->row - TESS__MACHINE_DEVICE_H;
    char gbs[TESS__TOPO_TEXT];
    /* Pale ones, those that are used, and their figures and marks, which no line is to cross. */
    for (int pass = 0; pass < 3; pass++) {
        for (int32_t i = 0; i < topology->link_count; i++) {
            const struct tess_topo_link *link = &topology->link[i];
            if (link->kind != TESS_LINK_NVLINK || link->from > link->to ||
                machine->x1[link->from] <= 0 || machine->x1[link->to] <= 0 ||
                topology->node[link->from].kind != TESS_NODE_DEVICE ||
                topology->node[link->to].kind != TESS_NODE_DEVICE)
                continue;
            double a = machine_anchor(machine, link->from, link->to);
            double b = machine_anchor(machine, link->to, link->from);
            double height = fmin(190, 26 + 0.26 * fabs(b - a));
            most = fmax(most, 0.75 * height + 10);
            if (!draw || (pass < 2 && tess__machine_used(machine, i) != (pass == 1)))
                continue;
            if (pass == 2) {
                tess__machine_mark(machine, i, (a + b) / 2, top - 0.75 * height);
                if (machine->device_w >= 50 && !tess__machine_marked(machine, i))
                    tess__svg_text(machine->svg, (a + b) / 2, top - 0.75 * height + 3.5, "tag",
                                   "middle", tess__topo_label(link->gbs, gbs), 12);
                continue;
            }
            tess__html_print(&machine->svg->out,
                             "<path d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f", a, top, a,
                             top - height, b, top - height, b, top);
            machine_stroke(machine, i);
        }
    }
    return most;
}

/* What a NIC has of the network, GB/s. */
static double machine_nic_gbs(const struct tess__machine *machine, int32_t nic)
{
    const struct tess_topology *topology = machine->topology;
    double gbs = 0;
    for (int32_t i = 0; i < topology->link_count; i++)
        if (topology->link[i].from == nic && topology->link[i].kind == TESS_LINK_NET)
            gbs = fmax(gbs, topology->link[i].gbs);
    return gbs;
}

void tess__machine_nic(struct tess__machine *machine, int32_t nic)
{
    const double gbs = machine_nic_gbs(machine, nic), x = tess__machine_middle(machine, nic);
    const double top = machine->row - TESS__MACHINE_NIC_H;
    char text[TESS__TOPO_TEXT];
    if (gbs <= 0)
        return;
    tess__html_print(&machine->svg->out,
                     "<path d=\"M%.1f %.1fv-16\" class=\"l\" stroke=\"%s\" "
                     "stroke-width=\"%.1f\"/>\n",
                     x, top, tess__svg_colour(TESS_LINK_NET), tess__svg_stroke(gbs));
    tess__svg_text(machine->svg, x + 4 + tess__svg_stroke(gbs) / 2, top - 6, "tag", "start",
                   tess__topo_label(gbs, text), 12);
}

static double machine_sys_depth(double gap)
{
    return fmin(44, 16 + 0.05 * gap);
}

void tess__machine_sys(struct tess__machine *machine, int32_t number)
{
    const struct tess_topo_link *link = &machine->topology->link[number];
    struct tess__html *out = &machine->svg->out;
    bool back = machine->x0[link->from] > machine->x0[link->to];
    int32_t a = back ? link->to : link->from, b = back ? link->from : link->to;
    char gbs[TESS__TOPO_TEXT];
    bool beside = machine->x0[b] - machine->x1[a] < TESS__MACHINE_BESIDE;
    double y = machine->top[a] + TESS__MACHINE_BAR_H / 2, x = (machine->x1[a] + machine->x0[b]) / 2;
    if (beside) {
        tess__html_print(out, "<path d=\"M%.1f %.1fH%.1f", machine->x1[a], y, machine->x0[b]);
        machine_stroke(machine, number);
        if (!tess__machine_marked(machine, number))
            tess__svg_text(machine->svg, x, y - 6, "tiny", "middle",
                           tess__topo_label(link->gbs, gbs), 12);
        tess__machine_mark(machine, number, x, y + 18);
        return;
    }
    double from = tess__machine_middle(machine, a) + 12, to = tess__machine_middle(machine, b) - 12;
    double edge = machine->top[a] + TESS__MACHINE_BAR_H,
           deep = machine_sys_depth(machine->x0[b] - machine->x1[a]);
    tess__html_print(out, "<path d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f", from, edge, from,
                     edge + deep, to, edge + deep, to, edge);
    machine_stroke(machine, number);
    tess__machine_mark(machine, number, (from + to) / 2, edge + 0.75 * deep);
}

double tess__machine_sys_room(const struct tess__machine *machine, int32_t number)
{
    const struct tess_topo_link *link = &machine->topology->link[number];
    double gap = fmax(machine->x0[link->from], machine->x0[link->to]) -
                 fmin(machine->x1[link->from], machine->x1[link->to]);
    double mark = tess__machine_marked(machine, number) ? 14 : 0;
    return gap < TESS__MACHINE_BESIDE ? mark : 0.75 * machine_sys_depth(gap) + 4 + mark;
}

bool tess__machine_draws_sys(const struct tess__machine *machine, const struct tess_topo_link *link)
{
    const struct tess_topology *topology = machine->topology;
    int32_t cpus = 0;
    if (link->kind != TESS_LINK_SYS || link->from > link->to || machine->x1[link->from] <= 0 ||
        machine->x1[link->to] <= 0)
        return false;
    for (int32_t i = 0; i < topology->node_count; i++)
        cpus += topology->node[i].kind == TESS_NODE_CPU && machine->x1[i] > 0 &&
                topology->node[i].host == topology->node[link->from].host;
    return cpus <= TESS__MACHINE_SYS_MAX;
}
