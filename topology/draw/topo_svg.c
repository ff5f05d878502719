/*
 * A machine and its rings as one SVG: the page and its style. The cards are topo_svg_machine.c's
 * and topo_svg_ring.c's.
 */
#include "topology/draw/topo_svg.h"

#include "tessera/check.h"
#include "text/report_colours.h"

#include <stdlib.h>
#include <string.h>

static const char svg_style[] =
    ":root{" TESS__COLOURS_LIGHT "}\n"
    "@media (prefers-color-scheme:dark){:root{" TESS__COLOURS_DARK "}}\n"
    "text{font:12px system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\",Arial,"
    "sans-serif;fill:var(--ink);font-variant-numeric:tabular-nums}\n"
    ".h1{font-size:22px;font-weight:650;letter-spacing:-.02em}\n"
    ".sub{font-size:13px;fill:var(--ink2)}\n"
    ".cap{font-size:11.5px;fill:var(--ink2)}\n"
    ".h2{font-size:13px;font-weight:600}\n"
    ".big{font-size:26px;font-weight:650;letter-spacing:-.02em}\n"
    ".tiny{font-size:10px;fill:var(--ink2)}\n"
    ".tag{font-size:10px;fill:var(--ink2);stroke:var(--card);stroke-width:5px;stroke-linejoin:"
    "round;"
    "paint-order:stroke}\n"
    ".id{font-size:15px;font-weight:650}\n"
    ".mono{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,\"DejaVu Sans Mono\",monospace}\n"
    ".bad{font-size:11px;font-weight:650;fill:var(--bad)}\n"
    ".card{fill:var(--card);stroke:var(--line)}\n"
    ".host{fill:var(--bg);stroke:var(--line)}\n"
    ".bar{fill:var(--soft);stroke:var(--line)}\n"
    ".gpu{fill:var(--card);stroke:var(--ink2);stroke-width:1.4}\n"
    ".nic{fill:var(--card);stroke:var(--s7)}\n"
    ".dot{fill:var(--card);stroke:var(--ink2);stroke-width:1.3}\n"
    ".pill{fill:var(--badb);stroke:var(--bad)}\n"
    ".l{fill:none;stroke-linecap:round}\n"
    ".idle{opacity:.28}\n";

/* Figures of the rings, after the number of devices. */
static enum tess_status svg_add_figures(const struct tess__topo *topo, struct tess__html *line)
{
    const struct tess_rings *rings = &topo->rings;
    struct tess__nccl_choice nccl;
    char rate[TESS__RATE_TEXT];
    if (rings->count < 2)
        return TESS_OK;
    if (rings->best_single.gbs <= 0) {
        tess__html_add(line, "; no ring goes around all: some have no way to each other");
        return TESS_OK;
    }
    tess__html_print(line, "; %s in each direction of the slowest link: best ring %s",
                     tess__rate_unit(rings->best_single.gbs),
                     tess__topo_rate(topo, rings->best_single.gbs, rate));
    if (rings->natural.gbs > 0)
        tess__html_print(line, ", natural order %s",
                         tess__topo_rate(topo, rings->natural.gbs, rate));
    if (rings->ring_count > 1)
        tess__html_print(line, ", %d rings at once %s", (int)rings->ring_count,
                         tess__topo_rate(topo, rings->total_gbs, rate));
    TESS_TRY(tess__nccl_choose(&topo->routes, &nccl));
    if (nccl.channels > 0)
        tess__html_print(line, ", NCCL's default %s (modelled)",
                         tess__topo_rate(topo, nccl.channels * nccl.speed, rate));
    return TESS_OK;
}

static enum tess_status svg_head(struct tess__topo_svg *svg)
{
    const struct tess__topo *topo = svg->topo;
    struct tess__html line = {0};
    tess__html_print(&line, "%d device%s on %d host%s", (int)topo->rings.count,
                     topo->rings.count == 1 ? "" : "s", (int)topo->topology->host_count,
                     topo->topology->host_count == 1 ? "" : "s");
    enum tess_status status = svg_add_figures(topo, &line);
    tess__svg_text(svg, TESS__SVG_MARGIN, 44, "h1", "start", topo->source, 70);
    tess__svg_text(svg, TESS__SVG_MARGIN, 68, "sub", "start", line.lost ? "" : line.bytes, 200);
    tess__html_close(&line);
    svg->y = 86;
    return status;
}

/* One row below the cards: colours of links, and what widths and shades mean. */
static void svg_legend(struct tess__topo_svg *svg)
{
    static const char *const words[TESS_LINK_KIND_COUNT] = {
        [TESS_LINK_NVLINK] = "NVLink",
        [TESS_LINK_C2C] = "C2C",
        [TESS_LINK_PCI] = "PCIe",
        [TESS_LINK_SYS] = "between NUMA nodes",
        [TESS_LINK_LOCAL] = "inside a processor",
        [TESS_LINK_NET] = "network",
    };
    const struct tess_topology *topology = svg->topo->topology;
    bool there[TESS_LINK_KIND_COUNT] = {false}, xgmi = false;
    double x = TESS__SVG_MARGIN + 4, y = svg->y + 14;
    for (int32_t i = 0; i < topology->link_count; i++) {
        there[topology->link[i].kind] = true;
        xgmi = xgmi || tess_topology_gfx(topology, &topology->link[i]) > 0;
    }
    for (int kind = 0; kind < TESS_LINK_KIND_COUNT; kind++) {
        const char *const word = kind == TESS_LINK_NVLINK && xgmi ? "xGMI" : words[kind];
        if (!there[kind] || word == NULL)
            continue;
        tess__svg_swatch(svg, x, y - 4, 22, tess__svg_colour((enum tess_link_kind)kind));
        tess__svg_text(svg, x + 30, y, "cap", "start", word, 30);
        x += 54 + 6.8 * (double)strlen(word);
    }
    tess__svg_text(svg, x + 4, y, "cap", "start",
                   svg->uses ? "numbers: GB/s in each direction; pale: not used by the best ring; "
                               "red: what limits it"
                             : "numbers: GB/s in each direction",
                   100);
    svg->y += 34;
}

static enum tess_status svg_draw(struct tess__topo_svg *svg)
{
    const struct tess__topo *topo = svg->topo;
    TESS_TRY(tess__topo_tree_open(topo->topology, &svg->tree));
    TESS_TRY(tess__topo_net_open(topo->topology, &svg->net));
    if (topo->routed) {
        svg->uses = calloc((size_t)topo->topology->link_count + 1, sizeof(*svg->uses));
        if (!svg->uses)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the picture");
        tess__topo_uses(topo, topo->rings.best_single.order, svg->uses);
    }
    TESS_TRY(svg_head(svg));
    TESS_TRY(tess__svg_machine(svg));
    if (topo->rings.count > 1 && topo->rings.best_single.gbs > 0)
        tess__svg_rings(svg);
    svg_legend(svg);
    if (svg->out.lost)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the picture");
    return TESS_OK;
}

/* The size is known at the end: the head is put in front then. */
static enum tess_status svg_finish(struct tess__topo_svg *svg, const char *path)
{
    struct tess__html page = {0};
    double height = svg->y;
    tess__html_print(&page,
                     "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
                     "width=\"%.0f\" height=\"%.0f\" role=\"img\">\n<title>",
                     svg->width, height, svg->width, height);
    tess__html_escape(&page, svg->topo->source);
    tess__html_add(&page, ": devices, links and rings</title>\n<style>");
    tess__html_add(&page, svg_style);
    tess__html_print(&page, "</style>\n<rect width=\"%.0f\" height=\"%.0f\" fill=\"var(--bg)\"/>\n",
                     svg->width, height);
    tess__html_add_bytes(&page, svg->out.bytes, svg->out.count);
    tess__html_add(&page, "</svg>\n");
    enum tess_status status = page.lost
                                  ? tess_fail(TESS_ERR_MEMORY, "no memory left for the picture")
                                  : tess__topo_write(path, page.bytes, page.count);
    tess__html_close(&page);
    return status;
}

enum tess_status tess__topo_write_svg(const struct tess__topo *topo, const char *path)
{
    struct tess__topo_svg svg = {.topo = topo, .width = 1040};
    enum tess_status status = svg_draw(&svg);
    if (status == TESS_OK)
        status = svg_finish(&svg, path);
    tess__html_close(&svg.out);
    tess__topo_tree_close(&svg.tree);
    tess__pool_release(&svg.net.pool);
    free(svg.uses);
    return status;
}
