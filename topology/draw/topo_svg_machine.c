/*
 * The machine as a card: devices and NICs in a row, above them NVLinks and NVSwitches, below them
 * PCIe switches, NUMA nodes and the network's switches as bars, each as wide as what is attached to
 * it, so that all links of the tree are upright. A large cluster shows a box for the hosts of each
 * switch, and below it one host of each kind.
 */
#include "topology/draw/topo_svg_machine_room.h"

#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MACHINE_ALONE 32 /* devices of a host that is drawn by itself */

/* ---- bars and boxes ------------------------------------------------------------------------- */

static void machine_bar(struct tess__machine *machine, int32_t number, double height)
{
    const struct tess_node *node = &machine->topology->node[number];
    struct tess__topo_svg *svg = machine->svg;
    double width = machine->x1[number] - machine->x0[number];
    char text[2 * TESS__TOPO_TEXT];
    const char *name = tess__svg_short(svg, node->name),
               *maker = tess__topo_maker_word(node->maker);
    tess__svg_box(svg, machine->x0[number], machine->top[number], width, height, 7, "bar");
    if (node->kind == TESS_NODE_CPU && maker[0] != '\0')
        snprintf(text, sizeof(text), "%s, %s", name, maker);
    else if (node->kind == TESS_NODE_PCI && node->bus[0] != '\0' && width < 130)
        snprintf(text, sizeof(text), "%s",
                 node->bus + (strncmp(node->bus, "0000:", 5) == 0 ? 5 : 0));
    else if (node->kind == TESS_NODE_PCI && strncmp(name, "pci", 3) == 0)
        snprintf(text, sizeof(text), "PCIe switch %s", node->bus);
    else if (node->kind == TESS_NODE_NET && svg->net.beside[number] > 0)
        snprintf(text, sizeof(text), "%s, %d more", name, (int)svg->net.beside[number]);
    else
        snprintf(text, sizeof(text), "%s", name);
    tess__svg_text(
        svg, tess__machine_middle(machine, number), machine->top[number] + height / 2 + 4,
        node->kind == TESS_NODE_PCI ? "cap" : "h2", "middle", text, (size_t)fmax(4, width / 7));
}

static void machine_device(struct tess__machine *machine, int32_t number)
{
    const struct tess_node *node = &machine->topology->node[number];
    struct tess__topo_svg *svg = machine->svg;
    bool device = node->kind == TESS_NODE_DEVICE;
    double height = device ? TESS__MACHINE_DEVICE_H : TESS__MACHINE_NIC_H,
           x = tess__machine_middle(machine, number);
    char text[24];
    tess__html_put(&svg->out, device ? "<g><title>" : "<g><title>NIC ", node->name, " ");
    tess__html_print(&svg->out, "%s</title>", node->bus);
    tess__svg_box(svg, machine->x0[number], machine->row - height,
                  machine->x1[number] - machine->x0[number], height, 8, device ? "gpu" : "nic");
    bool wide = machine->device_w >= 50;
    if (device) {
        snprintf(text, sizeof(text), "%d", (int)svg->topo->number[svg->tree.number[number]]);
        tess__svg_text(svg, x, machine->row - (wide ? 22 : 16), wide ? "id" : "h2", "middle", text,
                       6);
    }
    if (wide || !device)
        tess__svg_text(svg, x, machine->row - (device ? 8 : 9), "tiny", "middle",
                       tess__svg_short(svg, node->name), device ? 9 : 8);
    tess__html_add(&svg->out, "</g>\n");
}

/* An NVSwitch above the devices that it joins. */
static void machine_nvswitch(struct tess__machine *machine, int32_t number, double y)
{
    const struct tess_topology *topology = machine->topology;
    double left = INFINITY, right = 0;
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
        const struct tess__nvlinks *links = &machine->svg->topo->nvlinks[link->from];
        const bool dead = tess__nvlinks_dead(links);
        const double x = tess__machine_middle(machine, link->from);
        const double low = machine->row - TESS__MACHINE_DEVICE_H;
        const bool label = first || machine->device_w >= 50;
        tess__machine_upright(machine, i, x, low, y + TESS__MACHINE_BAR_H, label && !dead);
        if (dead) {
            char text[TESS__TOPO_TEXT];
            if (label) /* above the mark */
                tess__svg_text(machine->svg, x + 4 + tess__svg_stroke(link->gbs) / 2, low - 23,
                               "tiny", "start", tess__topo_label(link->gbs, text), 12);
            snprintf(text, sizeof(text), "%d of %d", (int)links->has, (int)links->of);
            tess__svg_mark(machine->svg, x, low - 11, text);
        }
        first = false;
    }
    machine_bar(machine, number, TESS__MACHINE_BAR_H);
}

/* ---- hosts and network ---------------------------------------------------------------------- */

static void machine_host_frame(struct tess__machine *machine, int32_t host, double top)
{
    char name[TESS__TOPO_TEXT];
    double width = machine->host1[host] - machine->host0[host];
    if (machine->topology->host_count < 2 || machine->host1[host] <= 0)
        return;
    tess__svg_box(machine->svg, machine->host0[host], top, width, machine->bottom - top, 12,
                  "host");
    tess__svg_text(machine->svg, machine->host0[host] + 12, top + 18, "h2", "start",
                   tess__topo_host_name(machine->topology, host, name), (size_t)fmax(3, width / 8));
}

/* From a host's frame down to a switch: all its links to that together. */
static void machine_host_link(struct tess__machine *machine, int32_t host, int32_t net)
{
    const struct tess_topology *topology = machine->topology;
    struct tess__topo_svg *svg = machine->svg;
    double gbs = 0, x = (machine->host0[host] + machine->host1[host]) / 2;
    int32_t links = 0, number = -1, marked = -1, narrow = 0;
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
        used = used || tess__machine_used(machine, i);
        if (tess__machine_marked(machine, i)) {
            marked = i;
            narrow++;
        }
    }
    if (links == 0)
        return;
    tess__html_print(&svg->out,
                     "<path d=\"M%.1f %.1fV%.1f\" class=\"l%s\" stroke=\"%s\" "
                     "stroke-width=\"%.1f\"/>\n",
                     x, machine->bottom, machine->top[net], used ? "" : " idle",
                     marked >= 0 ? "var(--bad)" : tess__svg_colour(TESS_LINK_NET),
                     tess__svg_stroke(gbs));
    tess__topo_label(topology->link[number].gbs, each);
    if (links > 1)
        snprintf(text, sizeof(text), "%d x %s", (int)links, each);
    else
        snprintf(text, sizeof(text), "%s", each);
    double y = (machine->bottom + machine->top[net]) / 2;
    if (marked >= 0 && links == 1) {
        tess__machine_mark(machine, marked, x, y);
    } else if (marked >= 0) {
        snprintf(text, sizeof(text), "%d of %d x %s", (int)narrow, (int)links,
                 tess__rate_text(topology->link[number].gbs, each));
        tess__svg_mark(svg, x, y, text);
    } else {
        tess__svg_text(svg, x + 4 + tess__svg_stroke(gbs) / 2, y + 3.5, "tiny", "start", text, 16);
    }
}

/* A switch's hosts as one box, at its left end. */
static void machine_box(struct tess__machine *machine, int32_t net, double top)
{
    struct tess__topo_svg *svg = machine->svg;
    double x = machine->x0[net];
    char text[TESS__TOPO_TEXT];
    int32_t hosts = svg->net.hosts[net];
    tess__svg_box(svg, x, top, TESS__MACHINE_BOX_W, machine->bottom - top, 12, "host");
    tess__html_print(&svg->out,
                     "<path d=\"M%.1f %.1fV%.1f\" class=\"l\" stroke=\"%s\" "
                     "stroke-width=\"3\"/>\n",
                     x + TESS__MACHINE_BOX_W / 2, machine->bottom, machine->top[net],
                     tess__svg_colour(TESS_LINK_NET));
    double gbs = 0;
    for (int32_t i = 0; i < machine->topology->link_count; i++) {
        const struct tess_topo_link *link = &machine->topology->link[i];
        if (link->kind == TESS_LINK_NET && link->to == net &&
            machine->topology->node[link->from].host >= 0)
            gbs = fmax(gbs, link->gbs);
    }
    tess__svg_text(svg, x + TESS__MACHINE_BOX_W / 2 + 6,
                   (machine->bottom + machine->top[net]) / 2 + 3.5, "tiny", "start",
                   tess__topo_label(gbs, text), 12);
    snprintf(text, sizeof(text), "%d", (int)hosts);
    tess__svg_text(svg, x + TESS__MACHINE_BOX_W / 2, top + 32, "big", "middle", text, 8);
    tess__svg_text(svg, x + TESS__MACHINE_BOX_W / 2, top + 50, "cap", "middle",
                   hosts == 1 ? "host" : "hosts", 8);
}

/* A note where not all switches got a box. */
static void machine_net_rest(struct tess__machine *machine, double top)
{
    char text[96];
    int32_t leaves = 0;
    for (int32_t i = 0; i < machine->topology->node_count; i++)
        leaves += machine->svg->net.hosts[i] > 0;
    if (!machine->boxed || leaves <= machine->boxes)
        return;
    snprintf(text, sizeof(text), "the first %d of %d switches with hosts", (int)machine->boxes,
             (int)leaves);
    tess__svg_text(machine->svg, machine->svg->width - TESS__SVG_MARGIN - TESS__SVG_PADDING,
                   top - 8, "cap", "end", text, 80);
}

static void machine_net(struct tess__machine *machine, double top)
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
                tess__machine_link_up(machine, i, k, machine->top[i] + TESS__MACHINE_BAR_H);
            }
        for (int32_t host = 0; host < topology->host_count && !machine->boxed; host++)
            machine_host_link(machine, host, i);
        if (machine->boxed && tree->hosts[i] > 0)
            machine_box(machine, i, top);
    }
    for (int32_t i = 0; i < topology->node_count; i++)
        if (topology->node[i].kind == TESS_NODE_NET && machine->x1[i] > 0)
            machine_bar(machine, i, TESS__MACHINE_BAR_H);
    machine_net_rest(machine, top);
}

/* ---- the card ------------------------------------------------------------------------------- */

/* Of what is drawn: `devices` and `nics` of one row, or of all hosts beside each other. */
static void machine_size(struct tess__machine *machine, int32_t devices, int32_t nics)
{
    machine->device_w = devices <= TESS__TOPO_SHOWN_MAX ? 58 : devices <= 32 ? 36 : 22;
    machine->nic_w = devices <= TESS__TOPO_SHOWN_MAX && nics <= 16 ? 50 : 0;
}

/* Nodes of that kind, on a host or, -1, on all. */
static int32_t machine_count(const struct tess_topology *topology, enum tess_node_kind kind,
                             int32_t host)
{
    int32_t count = 0;
    for (int32_t i = 0; i < topology->node_count; i++)
        count += topology->node[i].kind == kind && (host < 0 || topology->node[i].host == host);
    return count;
}

static void machine_draw_hosts(struct tess__machine *machine)
{
    const struct tess_topology *topology = machine->topology;
    tess__machine_arcs(machine, true);
    for (int32_t i = 0; i < topology->link_count; i++)
        if (tess__machine_draws_sys(machine, &topology->link[i]))
            tess__machine_sys(machine, i);
    for (int32_t i = 0; i < topology->node_count; i++) {
        enum tess_node_kind kind = topology->node[i].kind;
        if (machine->x1[i] <= 0 || machine->svg->tree.up[i] < 0)
            continue;
        tess__machine_link_up(machine, i, machine->svg->tree.up[i],
                              kind == TESS_NODE_PCI ? machine->top[i] + TESS__MACHINE_BAR_H
                                                    : machine->row);
    }
    for (int32_t i = 0; i < topology->node_count; i++) {
        enum tess_node_kind kind = topology->node[i].kind;
        if (machine->x1[i] <= 0)
            continue;
        if (kind == TESS_NODE_CPU || kind == TESS_NODE_PCI)
            machine_bar(machine, i, TESS__MACHINE_BAR_H);
        else if (kind == TESS_NODE_DEVICE || kind == TESS_NODE_NIC)
            machine_device(machine, i);
        if (kind == TESS_NODE_NIC && (machine->alone || topology->host_count == 1))
            tess__machine_nic(machine, i);
    }
}

/* Heights of all that is on hosts, whose devices stand in a row below `top`, with NVLinks between;
 * returns where an NVSwitch begins. */
static double machine_rows(struct tess__machine *machine, double top)
{
    const struct tess_topology *topology = machine->topology;
    double arcs = 0, above = 0, below = 0;
    for (int32_t i = 0; i < topology->node_count && !machine->boxed; i++)
        if (topology->node[i].kind == TESS_NODE_NVSWITCH)
            above = TESS__MACHINE_BAR_H + 34;
    for (int32_t i = 0; i < topology->link_count && !machine->boxed; i++)
        if (tess__machine_draws_sys(machine, &topology->link[i]))
            below = fmax(below, tess__machine_sys_room(machine, i));
    if (!machine->boxed)
        arcs = tess__machine_arcs(machine, false);
    machine->row = top + arcs + above + TESS__MACHINE_DEVICE_H;
    /* Bars of PCIe and NUMA nodes below the row, each at its level; NUMA nodes share one. */
    for (int32_t i = 0; i < topology->node_count; i++) {
        bool cpu = topology->node[i].kind == TESS_NODE_CPU;
        machine->top[i] = machine->row + 26 +
                          ((cpu ? machine->cpu_level : machine->level[i]) - 1) * TESS__MACHINE_STEP;
    }
    machine->bottom = machine->row + 26 + fmax(0, machine->cpu_level - 1) * TESS__MACHINE_STEP +
                      TESS__MACHINE_BAR_H + below;
    return top + arcs;
}

static void machine_nvswitches(struct tess__machine *machine, int32_t host, double y)
{
    const struct tess_topology *topology = machine->topology;
    for (int32_t i = 0; i < topology->node_count; i++)
        if (topology->node[i].kind == TESS_NODE_NVSWITCH &&
            (host < 0 || topology->node[i].host < 0 || topology->node[i].host == host))
            machine_nvswitch(machine, i, y);
}

static void machine_draw(struct tess__machine *machine, double top)
{
    const struct tess_topology *topology = machine->topology;
    struct tess__topo_svg *svg = machine->svg;
    double frame = topology->host_count > 1 ? 28 : 0;
    double y = machine_rows(machine, top + frame);
    machine->bottom = machine->boxed ? top + 64 : machine->bottom + (frame > 0 ? 14 : 0);
    double end = machine->bottom;
    if (topology->host_count > 1)
        end += 40 + svg->net.level_count * 56 - 30;
    tess__svg_box(svg, TESS__SVG_MARGIN, svg->y, svg->width - 2 * TESS__SVG_MARGIN,
                  end - svg->y + TESS__SVG_PADDING, 16, "card");
    for (int32_t host = 0; host < topology->host_count && !machine->boxed; host++)
        machine_host_frame(machine, host, top);
    machine_net(machine, top);
    if (!machine->boxed) {
        machine_draw_hosts(machine);
        machine_nvswitches(machine, -1, y);
    }
    svg->y = end + TESS__SVG_PADDING + 16;
}

/* ---- one host of a kind --------------------------------------------------------------------- */

/* Draws the host, or makes the page as wide as it needs. */
static void machine_kind(struct tess__machine *machine, int32_t host, int32_t alike, bool draw)
{
    struct tess__topo_svg *svg = machine->svg;
    const double left = TESS__SVG_MARGIN + TESS__SVG_PADDING;
    char name[TESS__TOPO_TEXT], text[2 * TESS__TOPO_TEXT];
    machine->alone = true;
    machine_size(machine, machine_count(machine->topology, TESS_NODE_DEVICE, host),
                 machine_count(machine->topology, TESS_NODE_NIC, host));
    double width = tess__machine_place_host(machine, host, left) - left;
    if (!draw) {
        svg->width = fmax(svg->width, width + 2 * left);
        return;
    }
    tess__machine_place_host(machine, host, (svg->width - width) / 2);
    double y = machine_rows(machine, svg->y + TESS__SVG_PADDING + 24);
    tess__svg_box(svg, TESS__SVG_MARGIN, svg->y, svg->width - 2 * TESS__SVG_MARGIN,
                  machine->bottom - svg->y + TESS__SVG_PADDING, 16, "card");
    tess__topo_host_name(machine->topology, host, name);
    snprintf(text, sizeof(text), alike > 0 ? "%s, and %d like it" : "%s", name, (int)alike);
    tess__svg_text(svg, left, svg->y + 28, "h2", "start", text, 60);
    machine_draw_hosts(machine);
    machine_nvswitches(machine, host, y);
    svg->y = machine->bottom + TESS__SVG_PADDING + 16;
}

static enum tess_status machine_open(struct tess__machine *machine, struct tess__pool *pool)
{
    const struct tess_topology *topology = machine->topology;
    size_t nodes = (size_t)topology->node_count, hosts = (size_t)topology->host_count;
    machine->cpu_level = 1;
    machine->level = tess__pool_array(pool, nodes, sizeof(*machine->level));
    machine->x0 = tess__pool_array(pool, nodes, sizeof(double));
    machine->x1 = tess__pool_array(pool, nodes, sizeof(double));
    machine->top = tess__pool_array(pool, nodes, sizeof(double));
    machine->host0 = tess__pool_array(pool, hosts, sizeof(double));
    machine->host1 = tess__pool_array(pool, hosts, sizeof(double));
    return pool->failed ? tess__no_memory("the picture") : TESS_OK;
}

/* Below a cluster that is too large to draw: a host of each kind, as it is inside. */
static enum tess_status machine_kinds(struct tess__topo_svg *svg, bool draw)
{
    const struct tess_topology *topology = svg->topo->topology;
    for (int32_t host = 0; host < topology->host_count; host++) {
        struct tess__machine machine = {.svg = svg, .topology = topology};
        struct tess__pool pool = {0};
        int32_t alike = 0;
        if (svg->tree.class[host] != host)
            continue;
        for (int32_t other = host + 1; other < topology->host_count; other++)
            alike += svg->tree.class[other] == host;
        enum tess_status status = machine_open(&machine, &pool);
        if (status == TESS_OK && machine_count(topology, TESS_NODE_DEVICE, host) <= MACHINE_ALONE)
            machine_kind(&machine, host, alike, draw);
        tess__pool_release(&pool);
        TESS_TRY(status);
    }
    return TESS_OK;
}

enum tess_status tess__svg_machine(struct tess__topo_svg *svg)
{
    const struct tess_topology *topology = svg->topo->topology;
    struct tess__machine machine = {.svg = svg, .topology = topology};
    struct tess__pool pool = {0};
    enum tess_status status = machine_open(&machine, &pool);
    if (status == TESS_OK) {
        machine.boxed = topology->device_count > 32 && topology->host_count > 2;
        status = machine.boxed ? machine_kinds(svg, false) : TESS_OK;
    }
    if (status == TESS_OK) {
        machine_size(&machine, topology->device_count, machine_count(topology, TESS_NODE_NIC, -1));
        double left = TESS__SVG_MARGIN + TESS__SVG_PADDING;
        double width = tess__machine_place_all(&machine, left) - left;
        svg->width = fmax(svg->width, width + 2 * left);
        machine.boxes = 0;
        tess__machine_place_all(&machine, (svg->width - width) / 2); /* again, in the middle */
        machine_draw(&machine, svg->y + TESS__SVG_PADDING);
    }
    tess__pool_release(&pool);
    TESS_TRY(status);
    return machine.boxed ? machine_kinds(svg, true) : TESS_OK;
}
