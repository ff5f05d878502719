/*
 * The picture of a time line: boxes in lanes on one axis of time, drawn for wide and for narrow
 * screens. What the boxes stand for is report_timeline.c's.
 */
#include "report/report_plot.h"

#include <math.h>

/* Heights and widths in the drawing's own units, about a pixel each. */
#define SPANS_HEAD    30
#define SPANS_LANE    21
#define SPANS_BETWEEN 12 /* before the head of the next group */
#define SPANS_TOP     6
#define SPANS_BOTTOM  54
#define SPANS_RIGHT   16
#define SPANS_GAP     3    /* between a lane's boxes and the next lane */
#define SPANS_LEAST   0.7  /* a box is never drawn narrower than this */
#define SPANS_LETTER  7.0  /* of a label, about */
#define SPANS_OVER    0.38 /* of a lane's height */
#define SPANS_LABEL   40   /* characters */

static double spans_height(const struct tess__spans *spans, int lane)
{
    return spans->lane[lane].head ? SPANS_HEAD : SPANS_LANE;
}

static double spans_place_lanes(const struct tess__spans *spans)
{
    double below = SPANS_TOP;
    for (int l = 0; l < spans->lane_count; l++) {
        below += l > 0 && spans->lane[l].head ? SPANS_BETWEEN : 0;
        spans->lane[l].top = below;
        below += spans_height(spans, l);
    }
    return below;
}

static void spans_boxes(struct tess__plot *plot, const struct tess__spans *spans, int kind)
{
    tess__html_print(plot->html,
                     "<g class=\"s%d\" fill=\"var(--s%d)\" stroke=\"none\" "
                     "shape-rendering=\"crispEdges\">\n",
                     kind, kind);
    for (size_t i = 0; i < spans->span_count; i++) {
        const struct tess__span *span = &spans->span[i];
        double height = spans_height(spans, span->lane) - SPANS_GAP;
        double x = tess__plot_x(plot, span->begin), width = tess__plot_x(plot, span->end) - x;
        double drawn = span->over ? SPANS_OVER * height : height;
        /* A sliver of space keeps neighbours of one kind apart. */
        width = fmax(width > 4 ? width - 0.8 : width, SPANS_LEAST);
        if (span->kind == kind)
            tess__plot_box(plot, x, spans->lane[span->lane].top + height - drawn, width, drawn);
    }
    tess__html_add(plot->html, "</g>\n");
}

/* Is a box, or a part of it, covered by one that lies over its lane? */
static bool spans_covered(const struct tess__spans *spans, const struct tess__span *span)
{
    for (size_t i = 0; i < spans->span_count; i++) {
        const struct tess__span *over = &spans->span[i];
        if (over->over && over->lane == span->lane && over->begin < span->end &&
            over->end > span->begin)
            return true;
    }
    return false;
}

static void spans_labels(struct tess__plot *plot, const struct tess__spans *spans)
{
    for (size_t i = 0; i < spans->span_count; i++) {
        const struct tess__span *span = &spans->span[i];
        double height = spans_height(spans, span->lane) - SPANS_GAP, middle = height / 2;
        double x = tess__plot_x(plot, span->begin), width = tess__plot_x(plot, span->end) - x;
        for (int which = 0; which < 2; which++) {
            const char *label = span->label[which];
            if (!label || SPANS_LETTER * (double)tess__html_length(label, SPANS_LABEL) > width - 6)
                continue;
            if (spans_covered(spans, span))
                middle = height * (1 - SPANS_OVER) / 2;
            tess__plot_text(plot, x + width / 2,
                            spans->lane[span->lane].top + middle + 0.325 * plot->font,
                            " class=\"inside\" text-anchor=\"middle\"", label, SPANS_LABEL);
            break;
        }
    }
}

static void spans_lanes(struct tess__plot *plot, const struct tess__spans *spans)
{
    for (int l = 0; l < spans->lane_count; l++) {
        const struct tess__span_lane *lane = &spans->lane[l];
        double middle = lane->top + (spans_height(spans, l) - SPANS_GAP) / 2;
        if (lane->head || (!plot->narrow && lane->name[0] != '\0'))
            tess__plot_text(plot, lane->head ? 2 : 10, middle + 0.325 * plot->font, "", lane->name,
                            SPANS_LABEL);
    }
    for (int m = 0; m < spans->mark_count; m++) {
        const struct tess__span_mark *mark = &spans->mark[m];
        double last = spans->lane[mark->last_lane].top + spans_height(spans, mark->last_lane);
        tess__html_print(plot->html,
                         "<path stroke-width=\"1.5\" stroke-dasharray=\"2,3\" "
                         "d=\"M%.2f,%.2fV%.2f\"/>\n",
                         tess__plot_x(plot, mark->at), spans->lane[mark->first_lane].top - 3, last);
    }
}

void tess__plot_spans(const struct tess__spans *spans, const struct tess__html *alternative,
                      struct tess__html *html)
{
    double bottom = spans_place_lanes(spans);
    for (int narrow = 0; narrow < 2; narrow++) {
        struct tess__plot plot = {.html = html,
                                  .narrow = narrow,
                                  .width = narrow ? 340 : 1080,
                                  .height = bottom + SPANS_BOTTOM,
                                  .font = narrow ? 12 : 13,
                                  .left = narrow ? 56 : 120,
                                  .top = SPANS_TOP,
                                  .bottom = bottom,
                                  .x = {.to = spans->length}};
        plot.right = plot.width - SPANS_RIGHT;
        tess__plot_open(&plot, alternative);
        tess__plot_even_ticks(&plot.x, narrow ? 4 : 11, false);
        tess__plot_x_axis(&plot, spans->title, true);
        for (int k = 0; k < spans->kind_count; k++)
            spans_boxes(&plot, spans, k);
        spans_labels(&plot, spans);
        spans_lanes(&plot, spans);
        tess__plot_close(&plot);
    }
}
