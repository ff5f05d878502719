/*
 * The machine as a card: devices and NICs in a row, above them NVLinks and NVSwitches, below them
 * PCIe switches, NUMA nodes and the network's switches as bars, each as wide as what hangs on it,
 * so that all links of the tree are upright. A large cluster shows a box for the hosts of each
 * switch.
 */
#include "cli/topo_svg.h"

#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MACHINE_DEVICE_H 42.0
#define MACHINE_NIC_H    26.0
#define MACHINE_BAR_H    24.0
#define MACHINE_STEP     50.0 /* from one level of bars to the next */
#define MACHINE_GAP      8.0
#define MACHINE_BOXES    12 /* of switches with their hosts */
#define MACHINE_BOX_W    96.0
#define MACHINE_BESIDE   80.0 /* neighbours are not further from each other */
#define MACHINE_SYS_MAX  8    /* NUMA nodes of a host whose links are drawn one by one */

struct machine {
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
};

/* ---- placing -------------------------------------------------------------------------------- */

static bool machine_shown(const struct machine *machine, int32_t node)
{
    enum tess_node_kind kind = machine->topology->node[node].kind;
    if (kind == TESS_NODE_DEVICE)
        return true;
    if (kind == TESS_NODE_NIC)
        return machine->nic_w > 0;
    for (int32_t child = machine->svg->hang.first[node]; child >= 0;
         child = machine->svg->hang.next[child])
        if (machine_shown(machine, child))
            return true;
    return false;
}

/* Sets level and extent of all that hangs on a node; returns the right edge. */
static double machine_place(struct machine *machine, int32_t node, double x)
{
    enum tess_node_kind kind = machine->topology->node[node].kind;
    machine->x0[node] = x;
    if (kind == TESS_NODE_DEVICE || kind == TESS_NODE_NIC) {
        machine->x1[node] = x + (kind == TESS_NODE_DEVICE ? machine->device_w : machine->nic_w);
        return machine->x1[node];
    }
    double at = x;
    int32_t before = -1;
    for (int32_t child = machine->svg->hang.first[node]; child >= 0;
         child = machine->svg->hang.next[child]) {
        if (!machine_shown(machine, child))
            continue;
        bool bar = machine->topology->node[child].kind == TESS_NODE_PCI;
        if (before >= 0)
            at += bar || machine->topology->node[before].kind == TESS_NODE_PCI ? 2 * MACHINE_GAP
                                                                               : MACHINE_GAP;
        at = machine_place(machine, child, at);
        before = child;
        if (machine->level[node] < machine->level[child] + 1)
            machine->level[node] = machine->level[child] + 1;
    }
    double least = kind == TESS_NODE_CPU ? 96 : 54;
    machine->x1[node] = fmax(at, x + least);
    return machine->x1[node];
}

/* What is on a host, NUMA node by NUMA node, then devices that hang on none. */
static double machine_place_host(struct machine *machine, int32_t host, double x)
{
    const struct tess_topology *topology = machine->topology;
    double inset = topology->host_count > 1 ? 14 : 0, at = x + inset;
    bool first = true;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < topology->node_count; i++) {
            const struct tess_node *node = &topology->node[i];
            bool wanted = pass == 0
                              ? node->kind == TESS_NODE_CPU && machine_shown(machine, i)
                              : node->kind == TESS_NODE_DEVICE && machine->svg->hang.up[i] < 0;
            if (node->host != host || !wanted)
                continue;
            if (!first)
                at += pass == 0 ? 58 : MACHINE_GAP;
            at = machine_place(machine, i, at);
            first = false;
            if (pass == 0 && machine->cpu_level < machine->level[i])
                machine->cpu_level = machine->level[i];
        }
    }
    machine->host0[host] = x;
    machine->host1[host] = fmax(at + inset, x + 60);
    return machine->host1[host];
}

/* The hosts of a switch, or a box for all of them; then the switches below it. */
static double machine_place_net(struct machine *machine, int32_t net, double x)
{
    const struct tess__topo_net *tree = &machine->svg->net;
    double at = x;
    bool some = false;
    for (int32_t host = 0; host < machine->topology->host_count && !machine->boxed; host++) {
        if (tree->leaf[host] != net)
            continue;
        at = machine_place_host(machine, host, at + (some ? 22 : 0));
        some = true;
    }
    if (machine->boxed && tree->hosts[net] > 0 && machine->boxes < MACHINE_BOXES) {
        machine->boxes++;
        at += MACHINE_BOX_W;
        some = true;
    }
    for (int32_t child = tree->first[net]; child >= 0; child = tree->next[child]) {
        double right = machine_place_net(machine, child, at + (some ? 22 : 0));
        if (right <= at + (some ? 22 : 0))
            continue;
        at = right;
        some = true;
    }
    machine->x0[net] = x;
    machine->x1[net] = some ? at : 0;
    return some ? at : x;
}

static double machine_place_all(struct machine *machine, double x)
{
    const struct tess__topo_net *tree = &machine->svg->net;
    double at = x;
    if (machine->topology->host_count == 1)
        return machine_place_host(machine, 0, x);
    for (int32_t k = 0; k < tree->root_count; k++) {
        double right = machine_place_net(machine, tree->roots[k], at + (at > x ? 44 : 0));
        if (right > at + (at > x ? 44 : 0))
            at = right;
    }
    for (int32_t host = 0; host < machine->topology->host_count && !machine->boxed; host++)
        if (tree->leaf[host] < 0)
            at = machine_place_host(machine, host, at + (at > x ? 22 : 0));
    return at;
}

static void machine_shift(struct machine *machine, double dx)
{
    for (int32_t i = 0; i < machine->topology->node_count; i++) {
        machine->x0[i] += dx;
        machine->x1[i] += machine->x1[i] > 0 ? dx : 0;
    }
    for (int32_t host = 0; host < machine->topology->host_count; host++) {
        machine->host0[host] += dx;
        machine->host1[host] += dx;
    }
}

/* ---- links ---------------------------------------------------------------------------------- */

static double machine_middle(const struct machine *machine, int32_t node)
{
    return (machine->x0[node] + machine->x1[node]) / 2;
}

/* The other direction; -1. */
static int32_t machine_reverse(const struct machine *machine, int32_t number)
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

/* Is either direction used by the best ring, or does it limit it? */
static bool machine_used(const struct machine *machine, int32_t link)
{
    const struct tess__topo_svg *svg = machine->svg;
    int32_t back = machine_reverse(machine, link);
    return !svg->uses || svg->uses[link] > 0 || (back >= 0 && svg->uses[back] > 0);
}

/* Few links hold the ring back: they are marked. Where many do, none is special. */
static bool machine_marked(const struct machine *machine, int32_t link)
{
    int32_t back = machine_reverse(machine, link), alike = machine->svg->topo->best_narrow.alike;
    return alike > 0 && alike <= 4 &&
           (tess__svg_limits(machine->svg, link) ||
            (back >= 0 && tess__svg_limits(machine->svg, back)));
}

/* The path's tail after d="...": class, colour, width, and a title that tells the link. */
static void machine_stroke(struct machine *machine, int32_t number)
{
    const struct tess_topo_link *link = &machine->topology->link[number];
    struct tess__html *out = &machine->svg->out;
    char gbs[TESS__TOPO_TEXT];
    tess__html_print(out, "\" class=\"l%s\" stroke=\"%s\" stroke-width=\"%.1f\"><title>",
                     machine_used(machine, number) ? "" : " idle",
                     machine_marked(machine, number) ? "var(--bad)" : tess__svg_colour(link->kind),
                     link->kind == TESS_LINK_LOCAL
                         ? 1.5
                         : fmin(tess__svg_stroke(link->gbs), machine->device_w / 5));
    tess__html_escape(out, machine->topology->node[link->from].name);
    tess__html_add(out, " - ");
    tess__html_escape(out, machine->topology->node[link->to].name);
    tess__html_print(out, ": %s, %s GB/s each way</title></path>\n",
                     tess__topo_link_word(link->kind), tess__topo_gbs(link->gbs, gbs));
}

static void machine_mark(struct machine *machine, int32_t number, double x, double y)
{
    const struct tess__topo_svg *svg = machine->svg;
    int32_t back = machine_reverse(machine, number);
    char text[TESS__TOPO_TEXT + 24], gbs[TESS__TOPO_TEXT];
    if (!machine_marked(machine, number))
        return;
    int32_t limiting = tess__svg_limits(svg, number) ? number : back;
    int32_t uses = svg->uses[limiting];
    snprintf(text, sizeof text, uses > 1 ? "%s GB/s, used %dx" : "%s GB/s",
             tess__topo_gbs(machine->topology->link[limiting].gbs, gbs), (int)uses);
    tess__svg_mark(machine->svg, x, y, text);
}

/* From a box or bar down to the bar that it hangs on. */
static void machine_link_up(struct machine *machine, int32_t node, int32_t link, double from)
{
    const struct tess_topo_link *up = &machine->topology->link[link];
    char gbs[TESS__TOPO_TEXT];
    double x = machine_middle(machine, node);
    double to = machine->top[up->from];
    tess__html_print(&machine->svg->out, "<path d=\"M%.1f %.1fV%.1f", x, from, to);
    machine_stroke(machine, link);
    if (machine->device_w >= 36 && up->kind != TESS_LINK_LOCAL && !machine_marked(machine, link))
        tess__svg_text(machine->svg, x + 4 + tess__svg_stroke(up->gbs) / 2, (from + to) / 2 + 3.5,
                       "tiny", "start", tess__topo_gbs(up->gbs, gbs), 8);
    machine_mark(machine, link, x, (from + to) / 2);
}

/* Where arcs of a device begin: side by side, in the order of where they go. */
static double machine_anchor(const struct machine *machine, int32_t node, int32_t other)
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
    return machine_middle(machine, node) + (before - (arcs - 1) / 2.0) * step;
}

static double machine_arc_height(double dx)
{
    return fmin(190, 26 + 0.26 * fabs(dx));
}

/* NVLinks between devices: arcs, the pale ones first. Returns the height that they need. */
static double machine_arcs(struct machine *machine, bool draw)
{
    const struct tess_topology *topology = machine->topology;
    double most = 0, top = machine->row - MACHINE_DEVICE_H;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < topology->link_count; i++) {
            const struct tess_topo_link *link = &topology->link[i];
            if (link->kind != TESS_LINK_NVLINK || link->from > link->to ||
                topology->node[link->from].kind != TESS_NODE_DEVICE ||
                topology->node[link->to].kind != TESS_NODE_DEVICE)
                continue;
            double a = machine_anchor(machine, link->from, link->to);
            double b = machine_anchor(machine, link->to, link->from);
            double height = machine_arc_height(b - a);
            most = fmax(most, 0.75 * height + 10);
            if (!draw || machine_used(machine, i) != (pass == 1))
                continue;
            tess__html_print(&machine->svg->out,
                             "<path d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f", a, top, a,
                             top - height, b, top - height, b, top);
            machine_stroke(machine, i);
            machine_mark(machine, i, (a + b) / 2, top - 0.75 * height);
        }
    }
    return most;
}

/* ---- bars and boxes ------------------------------------------------------------------------- */

static void machine_bar(struct machine *machine, int32_t number, double height)
{
    const struct tess_node *node = &machine->topology->node[number];
    struct tess__topo_svg *svg = machine->svg;
    double width = machine->x1[number] - machine->x0[number];
    char text[2 * TESS__TOPO_TEXT];
    const char *name = tess__svg_short(svg, node->name),
               *maker = tess__topo_maker_word(node->maker);
    tess__html_print(&svg->out,
                     "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"7\" "
                     "class=\"bar\"/>\n",
                     machine->x0[number], machine->top[number], width, height);
    if (node->kind == TESS_NODE_CPU && maker[0] != '\0')
        snprintf(text, sizeof text, "%s, %s", name, maker);
    else if (node->kind == TESS_NODE_PCI && node->bus[0] != '\0' && width < 130)
        snprintf(text, sizeof text, "%s",
                 node->bus + (strncmp(node->bus, "0000:", 5) == 0 ? 5 : 0));
    else if (node->kind == TESS_NODE_PCI && strncmp(name, "pci", 3) == 0)
        snprintf(text, sizeof text, "PCIe switch %s", node->bus);
    else
        snprintf(text, sizeof text, "%s", name);
    tess__svg_text(svg, machine_middle(machine, number), machine->top[number] + height / 2 + 4,
                   node->kind == TESS_NODE_PCI ? "cap" : "h2", "middle", text,
                   (size_t)fmax(4, width / 7));
}

static void machine_device(struct machine *machine, int32_t number)
{
    const struct tess_node *node = &machine->topology->node[number];
    struct tess__topo_svg *svg = machine->svg;
    bool device = node->kind == TESS_NODE_DEVICE;
    double height = device ? MACHINE_DEVICE_H : MACHINE_NIC_H, x = machine_middle(machine, number);
    char text[24];
    tess__html_print(&svg->out, "<g><title>%s", device ? "" : "NIC ");
    tess__html_escape(&svg->out, node->name);
    tess__html_print(&svg->out, " %s", node->bus);
    tess__html_print(&svg->out,
                     "</title><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"8\" "
                     "class=\"%s\"/>\n",
                     machine->x0[number], machine->row - height,
                     machine->x1[number] - machine->x0[number], height, device ? "gpu" : "nic");
    if (device) {
        snprintf(text, sizeof text, "%d", (int)svg->topo->number[svg->hang.number[number]]);
        bool wide = machine->device_w >= 50;
        tess__svg_text(svg, x, machine->row - (wide ? 22 : 16), wide ? "id" : "h2", "middle", text,
                       6);
        if (wide)
            tess__svg_text(svg, x, machine->row - 8, "tiny", "middle",
                           tess__svg_short(svg, node->name), 9);
    } else {
        tess__svg_text(svg, x, machine->row - 9, "tiny", "middle", tess__svg_short(svg, node->name),
                       8);
    }
    tess__html_add(&svg->out, "</g>\n");
}

static double machine_sys_depth(double gap)
{
    return fmin(44, 16 + 0.05 * gap);
}

/* Between NUMA nodes of a host: straight to the neighbour, else an arc below. */
static void machine_sys(struct machine *machine, int32_t number)
{
    const struct tess_topo_link *link = &machine->topology->link[number];
    struct tess__html *out = &machine->svg->out;
    int32_t a = link->from, b = link->to;
    char gbs[TESS__TOPO_TEXT];
    if (machine->x0[a] > machine->x0[b]) {
        a = link->to;
        b = link->from;
    }
    bool beside = machine->x0[b] - machine->x1[a] < MACHINE_BESIDE;
    double y = machine->top[a] + MACHINE_BAR_H / 2, x = (machine->x1[a] + machine->x0[b]) / 2;
    if (beside) {
        tess__html_print(out, "<path d=\"M%.1f %.1fH%.1f", machine->x1[a], y, machine->x0[b]);
        machine_stroke(machine, number);
        if (!machine_marked(machine, number))
            tess__svg_text(machine->svg, x, y - 6, "tiny", "middle", tess__topo_gbs(link->gbs, gbs),
                           8);
        machine_mark(machine, number, x, y + 18);
        return;
    }
    double from = machine_middle(machine, a) + 12, to = machine_middle(machine, b) - 12;
    double edge = machine->top[a] + MACHINE_BAR_H,
           deep = machine_sys_depth(machine->x0[b] - machine->x1[a]);
    tess__html_print(out, "<path d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f", from, edge, from,
                     edge + deep, to, edge + deep, to, edge);
    machine_stroke(machine, number);
    machine_mark(machine, number, (from + to) / 2, edge + 0.75 * deep);
}

/* What the link needs below the bars. */
static double machine_sys_room(const struct machine *machine, int32_t number)
{
    const struct tess_topo_link *link = &machine->topology->link[number];
    double gap = fmax(machine->x0[link->from], machine->x0[link->to]) -
                 fmin(machine->x1[link->from], machine->x1[link->to]);
    double mark = machine_marked(machine, number) ? 14 : 0;
    return gap < MACHINE_BESIDE ? mark : 0.75 * machine_sys_depth(gap) + 4 + mark;
}

static bool machine_draws_sys(const struct machine *machine, const struct tess_topo_link *link)
{
    const struct tess_topology *topology = machine->topology;
    int32_t cpus = 0;
    if (link->kind != TESS_LINK_SYS || link->from > link->to || machine->x1[link->from] <= 0 ||
        machine->x1[link->to] <= 0)
        return false;
    for (int32_t i = 0; i < topology->node_count; i++)
        cpus += topology->node[i].kind == TESS_NODE_CPU && machine->x1[i] > 0 &&
                topology->node[i].host == topology->node[link->from].host;
    return cpus <= MACHINE_SYS_MAX;
}

/* An NVSwitch above the devices that it joins. */
static void machine_nvswitch(struct machine *machine, int32_t number, double y)
{
    const struct tess_topology *topology = machine->topology;
    double left = INFINITY, right = 0;
    char gbs[TESS__TOPO_TEXT];
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        if (link->to != number || machine->x1[link->from] <= 0)
            continue;
        left = fmin(left, machine->x0[link->from]);
        right = fmax(right, machine->x1[link->from]);
    }
    if (right <= 0)
        return;
    machine->x0[number] = left;
    machine->x1[number] = right;
    machine->top[number] = y;
    bool first = true;
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        if (link->to != number || machine->x1[link->from] <= 0)
            continue;
        double x = machine_middle(machine, link->from), top = machine->row - MACHINE_DEVICE_H;
        tess__html_print(&machine->svg->out, "<path d=\"M%.1f %.1fV%.1f", x, top,
                         y + MACHINE_BAR_H);
        machine_stroke(machine, i);
        if (machine->device_w >= 36 && (first || machine->device_w >= 50))
            tess__svg_text(machine->svg, x + 4 + tess__svg_stroke(link->gbs) / 2,
                           (top + y + MACHINE_BAR_H) / 2 + 3.5, "tiny", "start",
                           tess__topo_gbs(link->gbs, gbs), 8);
        first = false;
    }
    machine_bar(machine, number, MACHINE_BAR_H);
}

/* ---- hosts and network ---------------------------------------------------------------------- */

static void machine_host_frame(struct machine *machine, int32_t host, double top)
{
    char name[TESS__TOPO_TEXT];
    double width = machine->host1[host] - machine->host0[host];
    if (machine->topology->host_count < 2 || machine->host1[host] <= 0)
        return;
    tess__html_print(&machine->svg->out,
                     "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"12\" "
                     "class=\"host\"/>\n",
                     machine->host0[host], top, width, machine->bottom - top);
    tess__svg_text(machine->svg, machine->host0[host] + 12, top + 18, "h2", "start",
                   tess__topo_host_name(machine->topology, host, name), (size_t)fmax(3, width / 8));
}

/* From a host's frame down to a switch: all its links to that together. */
static void machine_host_link(struct machine *machine, int32_t host, int32_t net)
{
    const struct tess_topology *topology = machine->topology;
    struct tess__topo_svg *svg = machine->svg;
    double gbs = 0, x = (machine->host0[host] + machine->host1[host]) / 2;
    int32_t links = 0, number = -1, marked = -1;
    bool used = !svg->uses;
    char text[2 * TESS__TOPO_TEXT], each[TESS__TOPO_TEXT];
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        if (link->kind != TESS_LINK_NET || link->to != net ||
            topology->node[link->from].host != host)
            continue;
        links++;
        gbs += link->gbs;
        number = i;
        used = used || machine_used(machine, i);
        marked = machine_marked(machine, i) ? i : marked;
    }
    if (links == 0)
        return;
    tess__html_print(&svg->out,
                     "<path d=\"M%.1f %.1fV%.1f\" class=\"l%s\" stroke=\"%s\" "
                     "stroke-width=\"%.1f\"/>\n",
                     x, machine->bottom, machine->top[net], used ? "" : " idle",
                     marked >= 0 ? "var(--bad)" : tess__svg_colour(TESS_LINK_NET),
                     tess__svg_stroke(gbs));
    tess__topo_gbs(topology->link[number].gbs, each);
    if (links > 1)
        snprintf(text, sizeof text, "%d x %s", (int)links, each);
    else
        snprintf(text, sizeof text, "%s", each);
    if (marked >= 0)
        machine_mark(machine, marked, x, (machine->bottom + machine->top[net]) / 2);
    else
        tess__svg_text(svg, x + 4 + tess__svg_stroke(gbs) / 2,
                       (machine->bottom + machine->top[net]) / 2 + 3.5, "tiny", "start", text, 16);
}

/* A switch's hosts as one box, at its left end. */
static void machine_box(struct machine *machine, int32_t net, double top)
{
    struct tess__topo_svg *svg = machine->svg;
    double x = machine->x0[net];
    char text[64];
    int32_t hosts = svg->net.hosts[net];
    tess__html_print(&svg->out,
                     "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"12\" "
                     "class=\"host\"/>\n"
                     "<path d=\"M%.1f %.1fV%.1f\" class=\"l\" stroke=\"%s\" "
                     "stroke-width=\"3\"/>\n",
                     x, top, MACHINE_BOX_W, machine->bottom - top, x + MACHINE_BOX_W / 2,
                     machine->bottom, machine->top[net], tess__svg_colour(TESS_LINK_NET));
    snprintf(text, sizeof text, "%d", (int)hosts);
    tess__svg_text(svg, x + MACHINE_BOX_W / 2, top + 32, "big", "middle", text, 8);
    tess__svg_text(svg, x + MACHINE_BOX_W / 2, top + 50, "cap", "middle",
                   hosts == 1 ? "host" : "hosts", 8);
}

/* Says so where not all switches got a box. */
static void machine_net_rest(struct machine *machine, double top)
{
    char text[96];
    int32_t leaves = 0;
    for (int32_t i = 0; i < machine->topology->node_count; i++)
        leaves += machine->svg->net.hosts[i] > 0;
    if (!machine->boxed || leaves <= machine->boxes)
        return;
    snprintf(text, sizeof text, "the first %d of %d switches with hosts", (int)machine->boxes,
             (int)leaves);
    tess__svg_text(machine->svg, machine->svg->width - TESS__SVG_MARGIN - TESS__SVG_PADDING,
                   top - 8, "cap", "end", text, 80);
}

static void machine_net(struct machine *machine, double top)
{
    const struct tess_topology *topology = machine->topology;
    const struct tess__topo_net *tree = &machine->svg->net;
    if (topology->host_count < 2)
        return;
    for (int32_t i = 0; i < topology->node_count; i++)
        if (topology->node[i].kind == TESS_NODE_NET)
            machine->top[i] = machine->bottom + 40 + tree->level[i] * 56;
    for (int32_t i = 0; i < topology->node_count; i++) {
        if (topology->node[i].kind != TESS_NODE_NET || machine->x1[i] <= 0)
            continue;
        for (int32_t k = 0; k < topology->link_count; k++)
            if (topology->link[k].to == i && topology->link[k].from == tree->parent[i] &&
                machine->x1[tree->parent[i]] > 0) {
                /* As the links of the tree go, from above to below. */
                machine_link_up(machine, i, k, machine->top[i] + MACHINE_BAR_H);
            }
        for (int32_t host = 0; host < topology->host_count && !machine->boxed; host++)
            machine_host_link(machine, host, i);
        if (machine->boxed && tree->hosts[i] > 0)
            machine_box(machine, i, top);
    }
    for (int32_t i = 0; i < topology->node_count; i++)
        if (topology->node[i].kind == TESS_NODE_NET && machine->x1[i] > 0)
            machine_bar(machine, i, MACHINE_BAR_H);
    machine_net_rest(machine, top);
}

/* ---- the card ------------------------------------------------------------------------------- */

static void machine_size(struct machine *machine)
{
    const struct tess_topology *topology = machine->topology;
    int32_t nics = 0;
    for (int32_t i = 0; i < topology->node_count; i++)
        nics += topology->node[i].kind == TESS_NODE_NIC;
    machine->boxed = topology->device_count > 32 && topology->host_count > 2;
    machine->device_w = topology->device_count <= TESS__TOPO_SHOWN_MAX ? 58
                        : topology->device_count <= 32                 ? 36
                                                                       : 22;
    machine->nic_w = topology->device_count <= TESS__TOPO_SHOWN_MAX && nics <= 16 ? 50 : 0;
}

/* Bars of PCIe and NUMA nodes below the row, each at its level; NUMA nodes share one. */
static void machine_tops(struct machine *machine)
{
    const struct tess_topology *topology = machine->topology;
    for (int32_t i = 0; i < topology->node_count; i++) {
        int32_t level =
            topology->node[i].kind == TESS_NODE_CPU ? machine->cpu_level : machine->level[i];
        machine->top[i] = machine->row + 26 + (level - 1) * MACHINE_STEP;
    }
}

static void machine_draw_hosts(struct machine *machine)
{
    const struct tess_topology *topology = machine->topology;
    machine_arcs(machine, true);
    for (int32_t i = 0; i < topology->link_count; i++)
        if (machine_draws_sys(machine, &topology->link[i]))
            machine_sys(machine, i);
    for (int32_t i = 0; i < topology->node_count; i++) {
        enum tess_node_kind kind = topology->node[i].kind;
        if (machine->x1[i] <= 0 || machine->svg->hang.up[i] < 0)
            continue;
        machine_link_up(machine, i, machine->svg->hang.up[i],
                        kind == TESS_NODE_PCI ? machine->top[i] + MACHINE_BAR_H : machine->row);
    }
    for (int32_t i = 0; i < topology->node_count; i++) {
        enum tess_node_kind kind = topology->node[i].kind;
        if (machine->x1[i] <= 0)
            continue;
        if (kind == TESS_NODE_CPU || kind == TESS_NODE_PCI)
            machine_bar(machine, i, MACHINE_BAR_H);
        else if (kind == TESS_NODE_DEVICE || kind == TESS_NODE_NIC)
            machine_device(machine, i);
    }
}

static void machine_draw(struct machine *machine, double top)
{
    const struct tess_topology *topology = machine->topology;
    struct tess__topo_svg *svg = machine->svg;
    double frame = topology->host_count > 1 ? 28 : 0, arcs = 0, switches = 0;
    double below = 0;
    for (int32_t i = 0; i < topology->node_count && !machine->boxed; i++)
        if (topology->node[i].kind == TESS_NODE_NVSWITCH)
            switches = MACHINE_BAR_H + 34;
    for (int32_t i = 0; i < topology->link_count && !machine->boxed; i++)
        if (machine_draws_sys(machine, &topology->link[i]))
            below = fmax(below, machine_sys_room(machine, i));
    if (!machine->boxed)
        arcs = machine_arcs(machine, false);
    machine->row = top + frame + arcs + switches + MACHINE_DEVICE_H;
    machine_tops(machine);
    double low = machine->row + 26 + fmax(0, machine->cpu_level - 1) * MACHINE_STEP + MACHINE_BAR_H;
    machine->bottom = machine->boxed ? top + 64 : low + below + (frame > 0 ? 14 : 0);
    double end = machine->bottom;
    if (topology->host_count > 1)
        end += 40 + svg->net.level_count * 56 - 30;
    tess__svg_card(svg, TESS__SVG_MARGIN, svg->y, svg->width - 2 * TESS__SVG_MARGIN,
                   end - svg->y + TESS__SVG_PADDING);
    for (int32_t host = 0; host < topology->host_count && !machine->boxed; host++)
        machine_host_frame(machine, host, top);
    machine_net(machine, top);
    if (!machine->boxed) {
        machine_draw_hosts(machine);
        for (int32_t i = 0; i < topology->node_count; i++)
            if (topology->node[i].kind == TESS_NODE_NVSWITCH)
                machine_nvswitch(machine, i, top + frame + arcs);
    }
    svg->y = end + TESS__SVG_PADDING + 16;
}

enum tess_status tess__svg_machine(struct tess__topo_svg *svg)
{
    const struct tess_topology *topology = svg->topo->topology;
    size_t nodes = (size_t)topology->node_count, hosts = (size_t)topology->host_count;
    struct machine machine = {.svg = svg, .topology = topology, .cpu_level = 1};
    double *memory = calloc(3 * nodes + 2 * hosts, sizeof *memory);
    machine.level = calloc(nodes + 1, sizeof *machine.level);
    if (!memory || !machine.level) {
        free(memory);
        free(machine.level);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the picture");
    }
    machine.x0 = memory;
    machine.x1 = memory + nodes;
    machine.top = memory + 2 * nodes;
    machine.host0 = memory + 3 * nodes;
    machine.host1 = memory + 3 * nodes + hosts;
    machine_size(&machine);
    double left = TESS__SVG_MARGIN + TESS__SVG_PADDING;
    double width = machine_place_all(&machine, left) - left;
    svg->width = fmax(svg->width, width + 2 * left);
    machine_shift(&machine, (svg->width - 2 * left - width) / 2);
    machine_draw(&machine, svg->y + TESS__SVG_PADDING);
    free(memory);
    free(machine.level);
    return TESS_OK;
}
