/*
 * The picture of a time line: boxes in lanes on one axis of time, drawn for wide and for narrow
 * screens. What the boxes stand for is report_timeline.c's.
 */
#include "report/report_plot.h"

#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>

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

/* One drawing of the spans. */
struct spans_view {
    const struct tess__spans *spans;
    const struct tess__plot_frame *frame;
    double left, per_time; /* where the axis begins, and its scale */
    const double *top;     /* [lane_count] downwards from 0 */
};

static double spans_height(const struct tess__spans *spans, int lane)
{
    return spans->lane[lane].head ? SPANS_HEAD : SPANS_LANE;
}

static double spans_top(const struct tess__spans *spans, double *top)
{
    double below = 0;
    for (int l = 0; l < spans->lane_count; l++) {
        below += l > 0 && spans->lane[l].head ? SPANS_BETWEEN : 0;
        top[l] = below;
        below += spans_height(spans, l);
    }
    return below;
}

/* ---- parts of the script --------------------------------------------------------------------- */

static void spans_boxes(struct tess__html *script, const struct spans_view *view, int kind)
{
    const struct tess__spans *spans = view->spans;
    tess__html_print(script, "$%c%d << EOD\n", view->frame->narrow ? 'n' : 'w', kind);
    for (size_t i = 0; i < spans->span_count; i++) {
        const struct tess__span *span = &spans->span[i];
        double height = spans_height(spans, span->lane) - SPANS_GAP, low, width;
        if (span->kind != kind)
            continue;
        low = -view->top[span->lane] - height;
        height *= span->over ? SPANS_OVER : 1;
        width = (span->end - span->begin) * view->per_time;
        /* A sliver of space keeps neighbours of one kind apart. */
        width = fmax(width > 4 ? width - 0.8 : width, SPANS_LEAST);
        tess__html_print(script, "%.9g %.9g %.9g %.9g %.9g %.9g\n", span->begin, low, span->begin,
                         span->begin + width / view->per_time, low, low + height);
    }
    /* Never drawn, but a block must not be empty. */
    tess__html_add(script, "NaN NaN NaN NaN NaN NaN\nEOD\n");
}

/* Is a box, or a part of it, covered by one that lies over its lane? */
static bool spans_covered(const struct tess__span *span, const struct tess__span *const *over,
                          size_t over_count)
{
    for (size_t i = 0; i < over_count; i++)
        if (over[i]->lane == span->lane && over[i]->begin < span->end && over[i]->end > span->begin)
            return true;
    return false;
}

/* Labels of boxes are numbered after those of the lanes, two for each. */
static void spans_labels(struct tess__html *script, const struct spans_view *view,
                         const struct tess__span *const *over, size_t over_count)
{
    const struct tess__spans *spans = view->spans;
    for (size_t i = 0; i < spans->span_count; i++) {
        const struct tess__span *span = &spans->span[i];
        double height = spans_height(spans, span->lane) - SPANS_GAP, middle = height / 2;
        double room = (span->end - span->begin) * view->per_time - 6;
        int which = 0;
        while (which < 2 &&
               (!span->label[which] ||
                SPANS_LETTER * (double)tess__html_length(span->label[which],
                                                         (size_t)view->frame->label_max) >
                    room))
            which++;
        if (which == 2)
            continue;
        if (spans_covered(span, over, over_count))
            middle = height * (1 - SPANS_OVER) / 2;
        tess__html_print(script, "set label \"@%zu@\" at %.9g,%.9g center front tc rgb gap\n",
                         (size_t)spans->lane_count + 2 * i + (size_t)which,
                         (span->begin + span->end) / 2, -view->top[span->lane] - middle);
    }
}

static void spans_lanes(struct tess__html *script, const struct spans_view *view)
{
    const struct tess__spans *spans = view->spans;
    for (int l = 0; l < spans->lane_count; l++)
        if (spans->lane[l].head || (!view->frame->narrow && spans->lane[l].name[0]))
            tess__html_print(script,
                             "set label \"@%d@\" at screen %.6g, first %.9g left tc rgb ink\n", l,
                             (spans->lane[l].head ? 2.0 : 10.0) / view->frame->width,
                             -view->top[l] - (spans_height(spans, l) - SPANS_GAP) / 2);
    for (int m = 0; m < spans->mark_count; m++) {
        const struct tess__span_mark *mark = &spans->mark[m];
        tess__html_print(
            script,
            "set arrow from %.9g,%.9g to %.9g,%.9g nohead front lw 1.5 dt (2,3) lc rgb "
            "ink\n",
            mark->at, -view->top[mark->first_lane] + 3, mark->at,
            -view->top[mark->last_lane] - spans_height(spans, mark->last_lane));
    }
}

static void spans_frame(struct tess__html *script, const struct spans_view *view, double below)
{
    const struct tess__plot_frame *frame = view->frame;
    const struct tess__spans *spans = view->spans;
    tess__plot_begin(script, frame);
    tess__html_print(script,
                     "unset arrow\nunset ylabel\nunset ytics\n"
                     "set lmargin at screen %.6g\nset rmargin at screen %.6g\n"
                     "set tmargin at screen %.6g\nset bmargin at screen %.6g\n"
                     "set grid noytics xtics lt 1 lw 1 lc rgb rule\n"
                     "set xlabel \"%s\" tc rgb ink offset 0,0.4\nset format x \"%%g\"\n"
                     "set xrange [0:%.9g]\nset yrange [%.9g:0]\n"
                     "set style fill solid 1 noborder\n",
                     view->left / frame->width, 1 - (double)SPANS_RIGHT / frame->width,
                     1 - (double)SPANS_TOP / frame->height, (double)SPANS_BOTTOM / frame->height,
                     spans->title, spans->length, -below);
    tess__plot_even_ticks(script, spans->length, frame->narrow ? 4 : 11, false);
    spans_lanes(script, view);
}

static void spans_plot(struct tess__html *script, const struct spans_view *view)
{
    tess__html_add(script, "plot ");
    for (int k = 0; k < view->spans->kind_count; k++)
        tess__html_print(
            script, "%s$%c%d using 1:2:3:4:5:6 with boxxyerror lw 0 fc rgb \"#%02x00%02x\"",
            k > 0 ? ", " : "", view->frame->narrow ? 'n' : 'w', k, TESS__PLOT_SERIES, k);
    tess__html_add(script, "\n");
}

/* ---- the picture ----------------------------------------------------------------------------- */

/* Room for what the two drawings share. */
struct spans_store {
    double *top;
    const char **label;
    const struct tess__span **over;
    size_t over_count;
};

static void spans_write(struct tess__html *script, const struct tess__spans *spans,
                        const struct tess__plot_frame frame[2], const struct spans_store *store,
                        double below)
{
    static const double left[] = {120, 56};
    for (int i = 0; i < 2; i++) {
        struct spans_view view = {spans, &frame[i], left[i],
                                  (frame[i].width - left[i] - SPANS_RIGHT) / spans->length,
                                  store->top};
        for (int k = 0; k < spans->kind_count; k++)
            spans_boxes(script, &view, k);
        spans_frame(script, &view, below);
        spans_labels(script, &view, store->over, store->over_count);
        spans_plot(script, &view);
    }
}

enum tess_status tess__plot_spans(const struct tess__spans *spans, const char *alternative,
                                  struct tess__html *html)
{
    size_t labels = (size_t)spans->lane_count + 2 * spans->span_count;
    struct spans_store store = {calloc((size_t)spans->lane_count, sizeof(*store.top)),
                                calloc(labels, sizeof(*store.label)),
                                calloc(spans->span_count + 1, sizeof(*store.over)), 0};
    struct tess__html script = {0};
    enum tess_status status;
    if (!store.top || !store.label || !store.over) {
        status = tess_fail(TESS_ERR_MEMORY, "no memory for a picture");
    } else {
        double below = spans_top(spans, store.top);
        int height = (int)below + SPANS_TOP + SPANS_BOTTOM;
        const struct tess__plot_frame frame[2] = {{false, 1080, height, 13, 40},
                                                  {true, 340, height, 12, 40}};
        for (int l = 0; l < spans->lane_count; l++)
            store.label[l] = spans->lane[l].name;
        for (size_t i = 0; i < spans->span_count; i++) {
            for (int which = 0; which < 2; which++)
                store.label[(size_t)spans->lane_count + 2 * i + (size_t)which] =
                    spans->span[i].label[which];
            if (spans->span[i].over)
                store.over[store.over_count++] = &spans->span[i];
        }
        spans_write(&script, spans, frame, &store, below);
        status = tess__plot_draw(&script, frame,
                                 (struct tess__picture){.alternative = alternative,
                                                        .label = store.label,
                                                        .label_count = (int)labels},
                                 html);
    }
    tess__html_close(&script);
    free(store.top);
    free(store.label);
    free(store.over);
    return status;
}
