/*
 * Scripts for gnuplot: curves and stacked bars, each drawn twice, for wide and for narrow screens.
 * Time lines are report_spans.c's, the content of pictures is the sections', and starting
 * gnuplot is report_gnuplot.c's.
 */
#include "report/report_plot.h"

#include "tessera/check.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* About one marker in this many parts of a curve. */
#define PLOT_MARKERS 7

static const char *const plot_dashes[] = {"", "9,4", "2,4", "10,4,2,4", "5,3"};
/* Filled circle, square, triangle, diamond, and the same hollow. */
static const int plot_markers[TESS__PLOT_COLOURS] = {6, 4, 8, 12, 5, 3, 7, 11};

const char *tess__plot_dash(int style)
{
    return plot_dashes[(size_t)style % (sizeof(plot_dashes) / sizeof(plot_dashes[0]))];
}

int tess__plot_marker(int style)
{
    return plot_markers[style % TESS__PLOT_COLOURS];
}

/* gnuplot counts its point types from 1 where its SVG counts the markers from 0. */
static int plot_point_type(int style)
{
    return tess__plot_marker(style) + 1;
}

/* ---- what all have --------------------------------------------------------------------------- */

void tess__plot_begin(struct tess__html *script, const struct tess__plot_frame *frame)
{
    tess__html_print(script,
                     "set terminal svg size %d,%d noenhanced font \"sans,%d\"\n"
                     "set encoding utf8\n"
                     "unset key\nunset label\nunset logscale\n"
                     "set autoscale\n"
                     "set tmargin 2.4\nset rmargin %g\n",
                     frame->width, frame->height, frame->font, frame->narrow ? 1.5 : 2.5);
    tess__html_print(script,
                     "ink = \"#%02x0000\"; rule = \"#%02x0000\"; gap = \"#%02x0000\"\n"
                     "set border 1 lw 1 lc rgb ink\n"
                     "set xtics nomirror out scale 0.4 tc rgb ink\n"
                     "set ytics nomirror scale 0 tc rgb ink\n",
                     TESS__PLOT_INK, TESS__PLOT_GRID, TESS__PLOT_GAP);
}

static bool plot_can_show(const struct tess__axis *axis, double value)
{
    bool positive = axis->kind == TESS__AXIS_LOG10 || axis->kind == TESS__AXIS_LOG2;
    return !isnan(value) && !(positive && value <= 0);
}

bool tess__plot_lines_empty(const struct tess__lines *lines)
{
    for (int c = 0; c < lines->curve_count; c++)
        for (size_t i = 0; i < lines->curve[c].count; i++)
            if (plot_can_show(&lines->x, lines->curve[c].x[i]) &&
                plot_can_show(&lines->y, lines->curve[c].y[i]))
                return false;
    return true;
}

/* The least and the greatest number that an axis can show; false when there is none. */
static bool plot_range(const struct tess__lines *lines, bool of_x, double *min, double *max)
{
    const struct tess__axis *axis = of_x ? &lines->x : &lines->y;
    *min = INFINITY;
    *max = -INFINITY;
    for (int c = 0; c < lines->curve_count; c++)
        for (size_t i = 0; i < lines->curve[c].count; i++) {
            double value = of_x ? lines->curve[c].x[i] : lines->curve[c].y[i];
            if (!plot_can_show(axis, value))
                continue;
            *min = fmin(*min, value);
            *max = fmax(*max, value);
        }
    return *min <= *max;
}

void tess__plot_even_ticks(struct tess__html *script, double range, int most, bool whole)
{
    double step = range / most, power = pow(10, floor(log10(step)));
    step = step <= power       ? power
           : step <= 2 * power ? 2 * power
           : step <= 5 * power ? 5 * power
                               : 10 * power;
    tess__html_print(script, "set xtics %.9g\n", whole && step < 1 ? 1 : step);
}

/* Ticks at powers of two, few enough to be read. */
static void plot_powers(struct tess__html *script, char axis, double min, double max, int most)
{
    int first = (int)ceil(log2(min) - 1e-9), last = (int)floor(log2(max) + 1e-9);
    int every = (last - first) / most + 1;
    if (last < first)
        return;
    tess__html_print(script, "set %ctics (", axis);
    for (int p = first; p <= last; p += every)
        tess__html_print(script, "%s%.10g", p > first ? "," : "", ldexp(1, p));
    tess__html_add(script, ")\n");
}

/* A logarithmic y axis that ends near the numbers, with ticks at 1, 2 and 5 where there is room. */
static void plot_decades(struct tess__html *script, double min, double max)
{
    static const double mantissa[] = {1, 2, 5};
    double room = max > min ? fmax(pow(max / min, 0.05), 1.001) : 2;
    double low = min / room, high = max * room;
    int first = (int)floor(log10(low)), last = (int)ceil(log10(high));
    int every = (last - first) / 7 + 1, marks = last - first <= 3 ? 3 : 1;
    const char *comma = "";
    /* With steps of several decades the first one has to be seen. */
    if (every > 1)
        first = (int)ceil(log10(low));
    tess__html_print(script, "set logscale y 10\nset yrange [%.9g:%.9g]\nset ytics (", low, high);
    for (int p = first; p <= last; p += every)
        for (int m = 0; m < marks; m++) {
            double tick = mantissa[m] * pow(10, p);
            if (tick >= low && tick <= high) {
                tess__html_print(script, "%s%.9g", comma, tick);
                comma = ",";
            }
        }
    tess__html_add(script, ")\n");
}

static void plot_x_axis(struct tess__html *script, const struct tess__lines *lines,
                        const struct tess__plot_frame *frame)
{
    double min, max, room;
    tess__html_print(script, "set xlabel \"%s\" tc rgb ink offset 0,0.2\nset format x \"%%.7g\"\n",
                     lines->x.title);
    if (!plot_range(lines, true, &min, &max))
        return;
    if (lines->x.kind == TESS__AXIS_LOG2 || lines->x.kind == TESS__AXIS_LOG10) {
        room = max > min ? fmax(pow(max / min, 0.03), 1.001) : 2;
        tess__html_print(script,
                         "set logscale x %d\nset xrange [%.9g:%.9g]\nset format x \"%%g\"\n",
                         lines->x.kind == TESS__AXIS_LOG2 ? 2 : 10, min / room, max * room);
        if (lines->x.kind == TESS__AXIS_LOG2)
            plot_powers(script, 'x', min, max, frame->narrow ? 6 : 11);
        return;
    }
    /* Next to nothing of a huge number is lost in the script's nine digits. */
    room = fmax(max > min ? 0.02 * (max - min) : 0.5, 1e-6 * fabs(max));
    tess__html_print(script, "set xrange [%.9g:%.9g]\n", min - room, max + room);
    tess__plot_even_ticks(script, max - min + 2 * room, frame->narrow ? 5 : 9, lines->x.whole);
}

static void plot_y_axis(struct tess__html *script, const struct tess__lines *lines)
{
    double min, max;
    tess__html_add(script, "set grid ytics lt 1 lw 1 lc rgb rule\nset ytics autofreq\n"
                           "set format y \"%.7g\"\n");
    tess__html_print(script,
                     "set label 1 \"%s\" at screen 0, screen 1 offset 0.8,-1.1 left tc rgb ink\n",
                     lines->y.title);
    if (!plot_range(lines, false, &min, &max))
        return;
    if (lines->y.kind == TESS__AXIS_LOG10) {
        plot_decades(script, min, max);
    } else if (lines->y.kind == TESS__AXIS_LOG2) {
        tess__html_print(script, "set logscale y 2\nset yrange [%.9g:%.9g]\n", min / 1.3,
                         max * 1.3);
        plot_powers(script, 'y', min, max, 8);
    } else if (lines->y.kind == TESS__AXIS_ZERO) {
        tess__html_print(script, "set yrange [0:%.9g]\n", max > 0 ? 1.06 * max : 1);
    } else if (max - min < 1e-9 * fabs(max)) {
        tess__html_print(script, "set yrange [%.9g:%.9g]\n", min - 0.1 * fabs(min) - 1e-9,
                         max + 0.1 * fabs(max) + 1e-9);
    }
}

/* ---- curves ---------------------------------------------------------------------------------- */

static void plot_curve_data(struct tess__html *script, const struct tess__lines *lines, int c)
{
    const struct tess__curve *curve = &lines->curve[c];
    size_t drawn = 0;
    tess__html_print(script, "$d%d << EOD\n", c);
    for (size_t i = 0; i < curve->count; i++) {
        double x = curve->x[i], y = curve->y[i];
        if (!plot_can_show(&lines->x, x))
            continue;
        /* An empty line breaks the curve. */
        if (!plot_can_show(&lines->y, y)) {
            tess__html_add(script, "\n");
            continue;
        }
        tess__html_print(script, "%.8g %.8g\n", x, y);
        drawn++;
    }
    /* gnuplot refuses a block without any number. */
    if (drawn == 0)
        tess__html_add(script, "NaN NaN\n");
    tess__html_add(script, "EOD\n");
}

static void plot_curves(struct tess__html *script, const struct tess__lines *lines,
                        const struct tess__plot_frame *frame)
{
    static const char *const look[] = {"linespoints", "lines", "points"};
    tess__html_add(script, "plot ");
    for (int c = 0; c < lines->curve_count; c++) {
        const struct tess__curve *curve = &lines->curve[c];
        size_t every = curve->count <= 2 * PLOT_MARKERS ? 1 : curve->count / PLOT_MARKERS;
        const char *dash = tess__plot_dash(curve->style);
        tess__html_print(script, "%s$d%d using 1:2 with %s lw 2 lc rgb \"#%02x00%02x\"",
                         c > 0 ? ", " : "", c, look[curve->look], TESS__PLOT_SERIES,
                         curve->style % TESS__PLOT_COLOURS);
        if (curve->look != TESS__CURVE_MARKS && dash[0])
            tess__html_print(script, " dt (%s)", dash);
        if (curve->look != TESS__CURVE_LINE)
            tess__html_print(script, " pt %d ps %g pi %zu", plot_point_type(curve->style),
                             frame->narrow ? 0.55 : 0.65, every);
    }
    tess__html_add(script, "\n");
}

/* ---- drawing --------------------------------------------------------------------------------- */

enum tess_status tess__plot_draw(struct tess__html *script, const struct tess__plot_frame frame[2],
                                 struct tess__picture picture, struct tess__html *html)
{
    struct tess__html output = {0};
    /* The picture is finished when its terminal is closed. */
    tess__html_add(script, "unset output\n");
    enum tess_status status = tess__gnuplot(script, &output);
    const char *at = output.bytes;
    for (int i = 0; i < 2 && status == TESS_OK; i++) {
        const char *stop = at ? strstr(at, "</svg>") : NULL;
        if (!stop) {
            status = tess_fail(TESS_ERR_DATA, "gnuplot drew nothing: it needs the svg terminal, "
                                              "which Debian's package gnuplot-nox has");
            break;
        }
        stop += strlen("</svg>");
        picture.narrow = frame[i].narrow;
        picture.width = frame[i].width;
        picture.height = frame[i].height;
        picture.label_max = frame[i].label_max;
        status = tess__svg_clean(at, (size_t)(stop - at), &picture, html);
        at = stop;
    }
    tess__html_close(&output);
    return status;
}

enum tess_status tess__plot_lines(const struct tess__lines *lines, const char *alternative,
                                  struct tess__html *html)
{
    static const struct tess__plot_frame frame[2] = {{false, 600, 340, 13, 0},
                                                     {true, 340, 280, 12, 0}};
    const struct tess__picture picture = {.alternative = alternative};
    struct tess__html script = {0};
    for (int c = 0; c < lines->curve_count; c++)
        plot_curve_data(&script, lines, c);
    for (int i = 0; i < 2; i++) {
        tess__plot_begin(&script, &frame[i]);
        plot_x_axis(&script, lines, &frame[i]);
        plot_y_axis(&script, lines);
        plot_curves(&script, lines, &frame[i]);
    }
    enum tess_status status = tess__plot_draw(&script, frame, picture, html);
    tess__html_close(&script);
    return status;
}

/* ---- bars ------------------------------------------------------------------------------------ */

static double plot_total(const struct tess__bars *bars, int row)
{
    double total = 0;
    for (int k = 0; k < bars->kind_count; k++)
        total += bars->value[row * bars->kind_count + k];
    return total;
}

static void plot_bar_data(struct tess__html *script, const struct tess__bars *bars)
{
    for (int k = 0; k < bars->kind_count; k++) {
        tess__html_print(script, "$k%d << EOD\n", k);
        for (int r = 0; r < bars->row_count; r++) {
            double start = 0, value = bars->value[r * bars->kind_count + k];
            for (int below = 0; below < k; below++)
                start += bars->value[r * bars->kind_count + below];
            if (value > 0)
                tess__html_print(script, "%.8g %d %.8g %.8g %g %g\n", start, -r, start,
                                 start + value, -r - 0.32, -r + 0.32);
        }
        /* Never drawn, but a block must not be empty. */
        tess__html_add(script, "NaN NaN NaN NaN NaN NaN\nEOD\n");
    }
    if (!bars->beside_value)
        return;
    tess__html_print(script, "$k%d << EOD\n", bars->kind_count);
    for (int r = 0; r < bars->row_count; r++)
        if (bars->beside_value[r] > 0)
            tess__html_print(script, "%.8g %d %.8g %.8g %g %g\n", bars->beside_start[r], -r,
                             bars->beside_start[r], bars->beside_start[r] + bars->beside_value[r],
                             -r - 0.48, -r - 0.36);
    tess__html_add(script, "NaN NaN NaN NaN NaN NaN\nEOD\n");
}

/* Rows' labels are "@0@", "@1@", ...; the totals at the bars' ends follow after them. */
static void plot_bar_frame(struct tess__html *script, const struct tess__bars *bars,
                           const struct tess__plot_frame *frame, double max)
{
    size_t longest = 4;
    int kinds = bars->kind_count + (bars->beside_value != NULL);
    for (int r = 0; r < bars->row_count; r++) {
        size_t length = tess__html_length(bars->row[r], (size_t)frame->label_max);
        longest = length > longest ? length : longest;
    }
    tess__plot_begin(script, frame);
    tess__html_print(script,
                     "set lmargin %g\nunset ylabel\nset tmargin 0.8\n"
                     "set grid noytics xtics lt 1 lw 1 lc rgb rule\n"
                     "set xlabel \"%s\" tc rgb ink offset 0,0.2\nset format x \"%%g\"\n"
                     "set xrange [0:%.9g]\nset yrange [%g:0.6]\n"
                     "set style fill solid 1 border lc rgb gap\nset ytics (",
                     0.82 * (double)longest + 2, bars->title, max * (frame->narrow ? 1.3 : 1.16),
                     -bars->row_count + 0.4);
    for (int r = 0; r < bars->row_count; r++)
        tess__html_print(script, "%s\"@%d@\" %d", r > 0 ? "," : "", r, -r);
    tess__html_add(script, ")\n");
    tess__plot_even_ticks(script, max, frame->narrow ? 3 : 6, false);
    for (int r = 0; r < bars->row_count; r++)
        tess__html_print(script, "set label \"@%d@\" at %.9g,%d offset 0.6,0 left tc rgb ink\n",
                         bars->row_count + r, plot_total(bars, r), -r);
    tess__html_add(script, "plot ");
    for (int k = 0; k < kinds; k++)
        tess__html_print(script,
                         "%s$k%d using 1:2:3:4:5:6 with boxxyerror lw 1 fc rgb "
                         "\"#%02x00%02x\"",
                         k > 0 ? ", " : "", k, TESS__PLOT_SERIES, k);
    tess__html_add(script, "\n");
}

enum tess_status tess__plot_bars(const struct tess__bars *bars, const char *alternative,
                                 struct tess__html *html)
{
    const int rows = bars->row_count;
    const struct tess__plot_frame frame[2] = {{false, 600, 70 + 34 * rows, 13, 30},
                                              {true, 340, 66 + 32 * rows, 12, 20}};
    char(*total)[TESS__REAL_BYTES] = calloc((size_t)rows, sizeof(*total));
    const char **label = calloc((size_t)(2 * rows), sizeof(*label));
    const struct tess__picture picture = {
        .alternative = alternative, .label = label, .label_count = 2 * rows};
    struct tess__html script = {0};
    double max = 0;
    script.lost = !total || !label;
    for (int r = 0; r < rows && !script.lost; r++) {
        max = fmax(max, plot_total(bars, r));
        label[r] = bars->row[r];
        label[rows + r] = tess__real_fixed(plot_total(bars, r), bars->decimals, total[r]);
    }
    plot_bar_data(&script, bars);
    for (int i = 0; i < 2; i++)
        plot_bar_frame(&script, bars, &frame[i], max > 0 ? max : 1);
    enum tess_status status = tess__plot_draw(&script, frame, picture, html);
    tess__html_close(&script);
    free(total);
    free(label);
    return status;
}
