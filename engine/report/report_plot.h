/*
 * Pictures: what is to be drawn, as numbers, and the SVG that gnuplot makes of it. No foreign text
 * ever reaches gnuplot: labels are numbered there, and put in when the SVG is cleaned.
 */
#ifndef TESSERA_REPORT_REPORT_PLOT_H
#define TESSERA_REPORT_REPORT_PLOT_H

#include "tessera/status.h"
#include "text/report_html.h"

#include <stdbool.h>
#include <stddef.h>

/* Colours and markers of curves repeat after this many; dashes have another period. */
#define TESS__PLOT_COLOURS 8
/* More curves than this in one picture are a tangle. */
#define TESS__PLOT_CURVES_MAX 16
#define TESS__PLOT_BARS_MAX   40
#define TESS__PLOT_KINDS_MAX  10

enum tess__axis_kind { TESS__AXIS_LINEAR, TESS__AXIS_ZERO, TESS__AXIS_LOG10, TESS__AXIS_LOG2 };

struct tess__axis {
    const char *title; /* with its unit; our own text */
    enum tess__axis_kind kind;
    bool whole; /* nothing between whole numbers, such as epochs */
};

enum tess__curve_look { TESS__CURVE_BOTH, TESS__CURVE_LINE, TESS__CURVE_MARKS };

struct tess__curve {
    const char *name;    /* foreign */
    const double *x, *y; /* [count]; a NaN in y is a gap */
    size_t count;
    int style; /* colour, dash and marker */
    enum tess__curve_look look;
};

struct tess__lines {
    struct tess__axis x, y;
    const struct tess__curve *curve;
    int curve_count; /* 1 .. TESS__PLOT_CURVES_MAX */
};

/* Horizontal bars, stacked by kind. */
struct tess__bars {
    const char *title;       /* of the axis, with its unit; our own text */
    const char *const *row;  /* [row_count] labels, foreign */
    const char *const *kind; /* [kind_count] names, our own */
    const double *value;     /* [row_count * kind_count], none NaN */
    int row_count, kind_count;
    /* A thin bar below the stack from start to start + value, or NULL: what happens beside it. */
    const double *beside_start, *beside_value; /* [row_count] */
    const char *beside_name;
    int decimals; /* of the totals */
};

/* What was done in lanes below one another, as boxes on one axis of time from 0. */
struct tess__span {
    int lane, kind;
    double begin, end;    /* 0 <= begin <= end <= length */
    const char *label[2]; /* in the box where there is room: long, else short; NULL for none */
    bool over;            /* lies over the lower part of its lane's other boxes */
};

struct tess__span_lane {
    const char *name;
    bool head; /* begins a group: higher, and its name is written on small screens too */
};

/* A dotted line down all lanes of a group. */
struct tess__span_mark {
    int first_lane, last_lane;
    double at;
};

struct tess__spans {
    const char *title;       /* of the axis, with its unit; our own text */
    const char *const *kind; /* [kind_count] names, our own; the number of a kind is its colour */
    const struct tess__span_lane *lane;
    const struct tess__span *span;
    const struct tess__span_mark *mark;
    int kind_count, lane_count, mark_count;
    size_t span_count;
    double length; /* > 0 */
};

/* One drawing of a picture, as the SVG's cleaner needs it. */
struct tess__picture {
    bool narrow; /* for small screens */
    int width, height;
    const char *alternative; /* what stands for it; escaped already */
    const char *const
        *label; /* [label_count] foreign text for "@N@", cut to label_max characters */
    int label_count, label_max;
};

/* The red part of the marker colours in gnuplot's script; for a series, blue is its number. */
enum { TESS__PLOT_INK = 1, TESS__PLOT_SERIES, TESS__PLOT_GRID, TESS__PLOT_GAP };

/* One of a picture's two sizes. */
struct tess__plot_frame {
    bool narrow;
    int width, height, font, label_max;
};

/* The part of a script that all pictures share. */
void tess__plot_begin(struct tess__html *script, const struct tess__plot_frame *frame);
/* Ticks 1, 2 or 5 times a power of ten apart, at most about so many. */
void tess__plot_even_ticks(struct tess__html *script, double range, int most, bool whole);
/* Run a script that draws the wide and then the narrow frame, and take both over. */
enum tess_status tess__plot_draw(struct tess__html *script, const struct tess__plot_frame frame[2],
                                 struct tess__picture picture, struct tess__html *html);

/*
 * Append two drawings, for wide and for narrow screens. TESS_ERR_NOT_FOUND when there is no
 * gnuplot, TESS_ERR_DATA when it refuses.
 */
enum tess_status tess__plot_lines(const struct tess__lines *lines, const char *alternative,
                                  struct tess__html *html);
enum tess_status tess__plot_bars(const struct tess__bars *bars, const char *alternative,
                                 struct tess__html *html);

enum tess_status tess__plot_spans(const struct tess__spans *spans, const char *alternative,
                                  struct tess__html *html);

/* Is there no point that these axes can show? Then there is nothing to draw. */
bool tess__plot_lines_empty(const struct tess__lines *lines);

/* The dash of a style as SVG writes it; "" for none. The marker's number in the page's set. */
const char *tess__plot_dash(int style);
int tess__plot_marker(int style);

/* Rebuild the first SVG in `source` [bytes, a zero behind] for the page. */
enum tess_status tess__svg_clean(const char *source, size_t bytes,
                                 const struct tess__picture *picture, struct tess__html *html);

/* Run gnuplot on a script; what it draws is appended to `output`. */
enum tess_status tess__gnuplot(const struct tess__html *script, struct tess__html *output);

#endif
