/* Strokes, texts and frames that all cards draw with. */
#include "topology/draw/topo_svg.h"

#include <math.h>
#include <string.h>

bool tess__svg_limits(const struct tess__topo_svg *svg, int32_t link)
{
    const struct tess__topo *topo = svg->topo;
    if (!svg->uses || topo->best_narrow.link < 0 || svg->uses[link] == 0)
        return false;
    double gbs = topo->topology->link[link].gbs / svg->uses[link];
    return gbs <= topo->rings.best_single.gbs * (1 + 1e-9);
}

double tess__svg_stroke(double gbs)
{
    return fmin(11, fmax(1.2, 0.56 * sqrt(gbs)));
}

const char *tess__svg_colour(enum tess_link_kind kind)
{
    static const char *const colour[TESS_LINK_KIND_COUNT] = {
        [TESS_LINK_NVLINK] = "var(--s2)", [TESS_LINK_C2C] = "var(--s5)",
        [TESS_LINK_PCI] = "var(--s0)",    [TESS_LINK_SYS] = "var(--s1)",
        [TESS_LINK_LOCAL] = "var(--s9)",  [TESS_LINK_NET] = "var(--s7)"};
    return colour[kind];
}

void tess__svg_text(struct tess__topo_svg *svg, double x, double y, const char *class,
                    const char *anchor, const char *text, size_t max)
{
    tess__html_print(&svg->out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">", x,
                     y, class, anchor);
    tess__html_escape_short(&svg->out, text, max);
    tess__html_add(&svg->out, "</text>\n");
}

void tess__svg_box(struct tess__topo_svg *svg, double x, double y, double width, double height,
                   int corner, const char *class)
{
    tess__html_print(&svg->out,
                     "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"%d\" "
                     "class=\"%s\"/>\n",
                     x, y, width, height, corner, class);
}

void tess__svg_swatch(struct tess__topo_svg *svg, double x, double y, int length,
                      const char *colour)
{
    tess__html_print(&svg->out,
                     "<path d=\"M%.1f %.1fh%d\" class=\"l\" stroke=\"%s\" stroke-width=\"4\"/>\n",
                     x, y, length, colour);
}

void tess__svg_mark(struct tess__topo_svg *svg, double x, double y, const char *text)
{
    double width = 14 + 6.3 * (double)strlen(text);
    tess__svg_box(svg, x - width / 2, y - 9, width, 18, 9, "pill");
    tess__svg_text(svg, x, y + 4, "bad", "middle", text, 40);
}

const char *tess__svg_short(const struct tess__topo_svg *svg, const char *name)
{
    const char *point = strrchr(name, '.');
    return svg->topo->topology->host_count > 1 && point && point[1] != '\0' ? point + 1 : name;
}
