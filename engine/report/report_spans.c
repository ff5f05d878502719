/*
 * The picture of a time line: for every rank a row of what it does and below it as many rows as
 * calls overlap, on one axis of time, drawn for wide and for narrow screens.
 */
#include "report/report_section.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Heights and widths in the drawing's own units, about a pixel each. */
#define SPANS_HEAD    30
#define SPANS_CALL    21
#define SPANS_BETWEEN 12 /* before the next rank */
#define SPANS_TOP     6
#define SPANS_BOTTOM  54
#define SPANS_RIGHT   16
#define SPANS_GAP     3    /* between a row's boxes and the next row */
#define SPANS_LEAST   0.7  /* a box is never drawn narrower than this */
#define SPANS_LETTER  7.0  /* of a label, about */
#define SPANS_OVER    0.38 /* of a row's height: waiting lies over what the rank does */
#define SPANS_LABEL   40   /* characters */

/* Calls under way at once that get a row of their own; more are drawn over the last one. */
#define SPANS_ROWS_MAX 7

static void spans_place_lane(struct tess__report_lane *lane)
{
    double busy[SPANS_ROWS_MAX]; /* until when */
    lane->rows = 1;
    for (size_t i = 0; i < lane->span_count; i++) {
        struct tess__report_span *span = &lane->span[i];
        if (span->work != TESS__WORK_CALL)
            continue;
        for (span->row = 1; span->row < lane->rows && busy[span->row] > span->begin;)
            span->row++;
        span->crowded = span->row == SPANS_ROWS_MAX;
        span->row -= span->crowded;
        lane->rows = span->row == lane->rows ? lane->rows + 1 : lane->rows;
        busy[span->row] = span->end;
    }
}

/* Where the lanes end. */
static double spans_place(struct tess__report_timeline *timeline)
{
    double below = SPANS_TOP;
    for (int l = 0; l < timeline->lane_count; l++) {
        struct tess__report_lane *lane = &timeline->lane[l];
        spans_place_lane(lane);
        lane->top = below + (l > 0 ? SPANS_BETWEEN : 0);
        below = lane->top + SPANS_HEAD + (lane->rows - 1) * SPANS_CALL;
    }
    return below;
}

static double spans_top(const struct tess__report_lane *lane, int row)
{
    return lane->top + (row > 0 ? SPANS_HEAD + (row - 1) * SPANS_CALL : 0);
}

static double spans_height(int row)
{
    return (row > 0 ? SPANS_CALL : SPANS_HEAD) - SPANS_GAP;
}

static void spans_boxes(struct tess__plot *plot, const struct tess__report_lane *lane,
                        enum tess__work work)
{
    for (size_t i = 0; i < lane->span_count; i++) {
        const struct tess__report_span *span = &lane->span[i];
        double height = spans_height(span->row), drawn = height;
        double x = tess__plot_x(plot, span->begin), width = tess__plot_x(plot, span->end) - x;
        if (span->work != work)
            continue;
        if (work == TESS__WORK_WAITING)
            drawn *= SPANS_OVER;
        /* A sliver of space keeps neighbours of one kind apart. */
        width = fmax(width > 4 ? width - 0.8 : width, SPANS_LEAST);
        tess__plot_box(plot, x, spans_top(lane, span->row) + height - drawn, width, drawn);
    }
}

/* Does the rank wait during a part of what it does? */
static bool spans_covered(const struct tess__report_lane *lane,
                          const struct tess__report_span *span)
{
    for (size_t i = 0; i < lane->span_count && span->row == 0; i++) {
        const struct tess__report_span *over = &lane->span[i];
        if (over->work == TESS__WORK_WAITING && over->begin < span->end && over->end > span->begin)
            return true;
    }
    return false;
}

/* A long and a short label, or NULL. The colour shows the kind; the short label of what is no call
 * is the name of the model's part. */
static const char *spans_label(const struct tess__report_span *span, bool shorter, char text[256])
{
    char bytes[TESS__TEXT_BYTES];
    const char *part = strrchr(span->name, ' ');
    if (span->crowded || span->work == TESS__WORK_WAITING || span->work == TESS__WORK_LOSS)
        return NULL;
    if (span->work != TESS__WORK_CALL && shorter)
        return part != NULL ? part + 1 : NULL;
    if (shorter || span->work != TESS__WORK_CALL || !(span->bytes > 0))
        return span->name;
    snprintf(text, 256, "%.200s %s", span->name, tess__text_bytes(span->bytes, bytes));
    return text;
}

static void spans_labels(struct tess__plot *plot, const struct tess__report_lane *lane)
{
    char text[256];
    for (size_t i = 0; i < lane->span_count; i++) {
        const struct tess__report_span *span = &lane->span[i];
        double x = tess__plot_x(plot, span->begin), width = tess__plot_x(plot, span->end) - x;
        for (int shorter = 0; shorter < 2; shorter++) {
            const char *label = spans_label(span, shorter, text);
            double height = spans_height(span->row);
            if (!label || SPANS_LETTER * (double)tess__html_length(label, SPANS_LABEL) > width - 6)
                continue;
            if (spans_covered(lane, span))
                height *= 1 - SPANS_OVER;
            tess__plot_text(plot, x + width / 2,
                            spans_top(lane, span->row) + height / 2 + 0.325 * plot->font,
                            " class=\"inside\" text-anchor=\"middle\"", label, SPANS_LABEL);
            break;
        }
    }
}

/* A rank's name, and a dotted line where its backward pass ends. */
static void spans_lane(struct tess__plot *plot, const struct tess__report_lane *lane,
                       double backward_end)
{
    char name[32];
    snprintf(name, sizeof(name), "rank %.0f", lane->rank);
    tess__plot_text(plot, 2, lane->top + spans_height(0) / 2 + 0.325 * plot->font, "", name,
                    SPANS_LABEL);
    if (lane->rows > 1 && !plot->narrow)
        tess__plot_text(plot, 10, spans_top(lane, 1) + spans_height(1) / 2 + 0.325 * plot->font, "",
                        "communication", SPANS_LABEL);
    if (!isnan(backward_end))
        tess__html_print(plot->html,
                         "<path stroke-width=\"1.5\" stroke-dasharray=\"2,3\" "
                         "d=\"M%.2f,%.2fV%.2f\"/>\n",
                         tess__plot_x(plot, backward_end), lane->top - 3,
                         spans_top(lane, lane->rows));
}

void tess__report_draw_timeline(struct tess__report_timeline *timeline,
                                const struct tess__lane_sums *sums,
                                const struct tess__html *alternative, struct tess__html *html)
{
    double bottom = spans_place(timeline);
    for (int narrow = 0; narrow < 2; narrow++) {
        struct tess__plot plot = {.html = html,
                                  .narrow = narrow,
                                  .width = narrow ? 340 : 1080,
                                  .height = bottom + SPANS_BOTTOM,
                                  .font = narrow ? 12 : 13,
                                  .left = narrow ? 56 : 120,
                                  .top = SPANS_TOP,
                                  .bottom = bottom,
                                  .x = {.to = timeline->length}};
        plot.right = plot.width - SPANS_RIGHT;
        tess__plot_open(&plot, alternative);
        tess__plot_even_ticks(&plot.x, narrow ? 4 : 11, false);
        tess__plot_x_axis(&plot, "time since the step began [ms]", true);
        for (int i = 1; i <= TESS__WORK_COUNT; i++) {
            /* Waiting lies over what the rank does: it is the last. */
            const int work = (TESS__WORK_WAITING + i) % TESS__WORK_COUNT;
            tess__html_print(html,
                             "<g class=\"s%d\" fill=\"var(--s%d)\" stroke=\"none\" "
                             "shape-rendering=\"crispEdges\">\n",
                             work, work);
            for (int l = 0; l < timeline->lane_count; l++)
                spans_boxes(&plot, &timeline->lane[l], (enum tess__work)work);
            tess__html_add(html, "</g>\n");
        }
        for (int l = 0; l < timeline->lane_count; l++) {
            spans_labels(&plot, &timeline->lane[l]);
            spans_lane(&plot, &timeline->lane[l], sums[l].backward_end);
        }
        tess__html_add(html, "</svg>\n");
    }
}
