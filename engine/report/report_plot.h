/* Pictures as SVG, each drawn twice, for wide and for narrow screens; colours are the page's
 * variables. Labels and names are foreign text, escaped here. */
#ifndef TESSERA_REPORT_REPORT_PLOT_H
#define TESSERA_REPORT_REPORT_PLOT_H

#include "text/report_html.h"

#include <stdbool.h>
#include <stddef.h>

/* Colours and markers of curves repeat after this many; dashes have another period. */
#define TESS__PLOT_COLOURS 8
/* More curves than this in one picture are a tangle. */
#define TESS__PLOT_CURVES_MAX 16
#define TESS__PLOT_BARS_MAX   40
#define TESS__PLOT_KINDS_MAX  12 /* as many as there are colours */
#define TESS__PLOT_TICKS_MAX  32
/* Characters of a run's name wherever it is written: a longer one loses its middle. */
#define TESS__PLOT_NAME_MAX 40

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

/* A place on the x axis where something happened to a run: a dotted line. */
struct tess__mark {
    double x;
    int style; /* colour */
};

struct tess__lines {
    struct tess__axis x, y;
    const struct tess__mark *mark; /* [mark_count] */
    int mark_count;
    const struct tess__curve *curve;
    int curve_count; /* 1 .. TESS__PLOT_CURVES_MAX */
};

/* Horizontal bars, stacked by kind. */
struct tess__bars {
    const char *title;       /* of the axis, with its unit; our own text */
    const char *const *name; /* of each series, our own: a series has one colour in all pictures */
    const int *series;       /* [kind_count], of each kind; NULL: the first ones */
    /* A thin bar below the stack from start to start + value, where it has a name: what happens
     * beside it. */
    const char *beside_name;
    int beside_series;
    int kind_count, row_count;
    int decimals;                                             /* of the totals */
    size_t left_out;                                          /* rows that there was no room for */
    const char *row[TESS__PLOT_BARS_MAX];                     /* labels, foreign */
    double value[TESS__PLOT_BARS_MAX * TESS__PLOT_KINDS_MAX]; /* [row_count * kind_count], no NaN */
    double beside_start[TESS__PLOT_BARS_MAX], beside_value[TESS__PLOT_BARS_MAX];
};

/* Append two drawings, for wide and for narrow screens. `alternative` is what stands for them;
 * escaped already. */
void tess__plot_lines(const struct tess__lines *lines, const struct tess__html *alternative,
                      struct tess__html *html);
void tess__plot_bars(const struct tess__bars *bars, const struct tess__html *alternative,
                     struct tess__html *html);

/* Is there no point that these axes can show? Then there is nothing to draw. */
bool tess__plot_lines_empty(const struct tess__lines *lines);
/* The series of a kind, or, of the kind after the last, of what is beside the stack. */
int tess__plot_series(const struct tess__bars *bars, int kind);
/* The sum of a row's kinds. */
double tess__plot_total(const struct tess__bars *bars, int row);

/* The dash of a style as SVG writes it, or "none". The marker's number in the page's set. */
const char *tess__plot_dash(int style);
int tess__plot_marker(int style);

/* ---- what all pictures share ----------------------------------------------------------------- */

/* The range of an axis, and where its ticks are. */
struct tess__scale {
    double from, to;
    bool log;
    int count;
    double tick[TESS__PLOT_TICKS_MAX];
};

/* One drawing; lengths in units of the drawing, about a pixel each. */
struct tess__plot {
    struct tess__html *html;
    bool narrow;
    double width, height, font;
    double left, right, top, bottom; /* of the part that the axes enclose */
    struct tess__scale x, y;
};

/* Up to its first shape; it ends with </svg>. */
void tess__plot_open(struct tess__plot *plot, const struct tess__html *alternative);
/* Ticks 1, 2 or 5 times a power of ten apart, at most about so many. */
void tess__plot_even_ticks(struct tess__scale *scale, int most, bool whole);
/* The axis at the bottom; with `grid`, lines go up from its ticks. */
void tess__plot_x_axis(struct tess__plot *plot, const char *title, bool grid);
/* The axis at the left, which its labels may move to the right: before the other axis. */
void tess__plot_y_axis(struct tess__plot *plot, const char *title);
/* Where a number of an axis is. */
double tess__plot_x(const struct tess__plot *plot, double value);
double tess__plot_y(const struct tess__plot *plot, double value);
/* `attributes`: " class=\"inside\"", " text-anchor=\"end\"" and the like. */
void tess__plot_text(struct tess__plot *plot, double x, double y, const char *attributes,
                     const char *text, size_t max);
void tess__plot_box(struct tess__plot *plot, double x, double y, double width, double height);

#endif
