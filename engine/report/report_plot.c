/*
 * Curves and stacked bars with their axes. Time lines are report_spans.c's, the content of pictures
 * is the sections'.
 */
#include "report/report_plot.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* About one marker in this many parts of a curve. */
#define PLOT_MARKERS 7

const char *tess__plot_dash(int style)
{
    static const char *const dash[] = {"none", "9,4", "2,4", "10,4,2,4", "5,3"};
    return dash[(size_t)style % (sizeof(dash) / sizeof(dash[0]))];
}

int tess__plot_marker(int style)
{
    /* Filled circle, square, triangle, diamond, and the same hollow. */
    static const int marker[TESS__PLOT_COLOURS] = {6, 4, 8, 12, 5, 3, 7, 11};
    return marker[style % TESS__PLOT_COLOURS];
}

/* ---- what all have --------------------------------------------------------------------------- */

void tess__plot_open(struct tess__plot *plot, const struct tess__html *alternative)
{
    tess__html_print(plot->html,
                     "<svg class=\"%s\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"",
                     plot->narrow ? "narrow" : "wide", plot->width, plot->height);
    tess__html_append(plot->html, alternative);
    tess__html_add(plot->html, "\">\n");
}

void tess__plot_text(struct tess__plot *plot, double x, double y, const char *attributes,
                     const char *text, size_t max)
{
    tess__html_print(plot->html, "<text x=\"%.2f\" y=\"%.2f\"%s>", x, y, attributes);
    tess__html_put_short(plot->html, "", text, max, "</text>\n");
}

void tess__plot_box(struct tess__plot *plot, double x, double y, double width, double height)
{
    tess__html_print(plot->html, "<path d=\"M%.2f,%.2fh%.2fv%.2fh-%.2fz\"/>\n", x, y, width, height,
                     width);
}

static void plot_line(struct tess__plot *plot, double x, double y, const char *to,
                      const char *colour)
{
    tess__html_print(plot->html, "<path stroke=\"var(--%s)\" d=\"M%.2f,%.2f%s\"/>\n", colour, x, y,
                     to);
}

/* From 0 to 1 along the axis. */
static double plot_share(const struct tess__scale *scale, double value)
{
    return scale->log ? log(value / scale->from) / log(scale->to / scale->from)
                      : (value - scale->from) / (scale->to - scale->from);
}

double tess__plot_x(const struct tess__plot *plot, double value)
{
    return plot->left + plot_share(&plot->x, value) * (plot->right - plot->left);
}

double tess__plot_y(const struct tess__plot *plot, double value)
{
    return plot->bottom - plot_share(&plot->y, value) * (plot->bottom - plot->top);
}

/* ---- ticks ----------------------------------------------------------------------------------- */

static void plot_add_tick(struct tess__scale *scale, double value)
{
    double near = scale->log ? 0 : 1e-9 * (scale->to - scale->from);
    if (scale->count < TESS__PLOT_TICKS_MAX && value >= scale->from - near &&
        value <= scale->to + near)
        scale->tick[scale->count++] = value;
}

/* Of the step for at most so many ticks in a range: 1, 2 or 5 times a power of ten. */
static double plot_even_step(double range, int most, bool whole)
{
    double step = range / most, power = pow(10, floor(log10(step)));
    double even = step <= power       ? power
                  : step <= 2 * power ? 2 * power
                  : step <= 5 * power ? 5 * power
                                      : 10 * power;
    return whole && even < 1 ? 1 : even;
}

void tess__plot_even_ticks(struct tess__scale *scale, int most, bool whole)
{
    double step = plot_even_step(scale->to - scale->from, most, whole);
    double first = ceil(scale->from / step - 1e-9) + 0.0; /* no -0 */
    for (int i = 0; i <= most + 1; i++)
        plot_add_tick(scale, (first + i) * step);
}

/* Ticks at powers of two, few enough to be read. */
static void plot_powers(struct tess__scale *scale, double min, double max, int most)
{
    int first = (int)ceil(log2(min) - 1e-9), last = (int)floor(log2(max) + 1e-9);
    int every = (last - first) / most + 1;
    for (int p = first; p <= last; p += every)
        plot_add_tick(scale, ldexp(1, p));
}

/* Ticks at powers of ten, and at 2 and 5 times them where there are at most `few` decades. */
static void plot_decades(struct tess__scale *scale, int few)
{
    static const double mantissa[] = {1, 2, 5};
    int first = (int)floor(log10(scale->from)), last = (int)ceil(log10(scale->to));
    int every = (last - first) / 7 + 1, marks = last - first <= few ? 3 : 1;
    /* With steps of several decades the first one has to be seen. */
    if (every > 1)
        first = (int)ceil(log10(scale->from));
    for (int p = first; p <= last; p += every)
        for (int m = 0; m < marks; m++)
            plot_add_tick(scale, mantissa[m] * pow(10, p));
}

/* ---- axes ------------------------------------------------------------------------------------ */

static bool plot_is_log(const struct tess__axis *axis)
{
    return axis->kind == TESS__AXIS_LOG10 || axis->kind == TESS__AXIS_LOG2;
}

static bool plot_can_show(const struct tess__axis *axis, double value)
{
    return !isnan(value) && !(plot_is_log(axis) && value <= 0);
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

/* The least and the greatest number that an axis can show, of those there are. */
static void plot_range(const struct tess__lines *lines, bool of_x, double *min, double *max)
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
}

/* A logarithmic axis that goes `room` beyond the numbers, as a power of their ratio. */
static void plot_log_scale(struct tess__scale *scale, enum tess__axis_kind kind, double min,
                           double max, double room, int powers, int few)
{
    double factor = max > min ? fmax(pow(max / min, room), 1.001) : 2;
    *scale = (struct tess__scale){.from = min / factor, .to = max * factor, .log = true};
    if (kind == TESS__AXIS_LOG2)
        plot_powers(scale, min, max, powers);
    else
        plot_decades(scale, few);
    if (scale->count == 0)
        plot_add_tick(scale, min);
}

static void plot_scale_x(struct tess__plot *plot, const struct tess__lines *lines)
{
    double min, max;
    plot_range(lines, true, &min, &max);
    if (plot_is_log(&lines->x)) {
        plot_log_scale(&plot->x, lines->x.kind, min, max, 0.03, plot->narrow ? 6 : 11, 1);
        return;
    }
    /* A huge number has neighbours that differ by more than a drawing's last digit. One place alone
     * is between 0 and twice as much: no epochs below 0. */
    const double room = max > min ? fmax(0.02 * (max - min), 1e-6 * fabs(max))
                        : max > 0 ? max
                                  : 0.5;
    plot->x = (struct tess__scale){.from = min - room, .to = max + room};
    /* A part of the first epoch has no whole numbers in it. */
    tess__plot_even_ticks(&plot->x, plot->narrow ? 5 : 9, lines->x.whole && max - min >= 2);
}

static void plot_scale_y(struct tess__plot *plot, const struct tess__lines *lines)
{
    const int most = 10;
    double min, max;
    plot_range(lines, false, &min, &max);
    if (plot_is_log(&lines->y)) {
        plot_log_scale(&plot->y, lines->y.kind, min, max, 0.05, 8, 3);
        return;
    }
    plot->y = (struct tess__scale){.to = max > 0 ? 1.06 * max : 1};
    /* Ticks have seven digits: nearer than this some would read the same. */
    if (lines->y.kind == TESS__AXIS_LINEAR && max - min < 1e-5 * fabs(max)) {
        plot->y.from = min - 0.1 * fabs(min) - 1e-9;
        plot->y.to = max + 0.1 * fabs(max) + 1e-9;
    } else if (lines->y.kind == TESS__AXIS_LINEAR && max > min) {
        double step = plot_even_step(max - min, most, false);
        plot->y.from = step * floor(min / step + 1e-9);
        plot->y.to = step * ceil(max / step - 1e-9);
    }
    tess__plot_even_ticks(&plot->y, most, false);
}

void tess__plot_x_axis(struct tess__plot *plot, const char *title, bool grid)
{
    char text[TESS__REAL_BYTES], to[TESS__REAL_BYTES];
    for (int i = 0; i < plot->x.count; i++) {
        double x = tess__plot_x(plot, plot->x.tick[i]);
        snprintf(to, sizeof(to), "V%.2f", plot->top);
        if (grid)
            plot_line(plot, x, plot->bottom, to, "grid");
        plot_line(plot, x, plot->bottom, "v4", "ink2");
        snprintf(text, sizeof(text), "%.7g", plot->x.tick[i]);
        tess__plot_text(plot, x, plot->bottom + 2.1 * plot->font, " text-anchor=\"middle\"", text,
                        sizeof(text));
    }
    snprintf(to, sizeof(to), "H%.2f", plot->right);
    plot_line(plot, plot->left, plot->bottom, to, "ink2");
    tess__plot_text(plot, (plot->left + plot->right) / 2, plot->height - 0.72 * plot->font,
                    " text-anchor=\"middle\"", title, SIZE_MAX);
}

/* Room for the longest label left of an axis. */
static double plot_left(const struct tess__plot *plot, size_t longest)
{
    return plot->font * (0.6 * (double)longest + 1.4);
}

void tess__plot_y_axis(struct tess__plot *plot, const char *title)
{
    char text[TESS__PLOT_TICKS_MAX][TESS__REAL_BYTES], to[TESS__REAL_BYTES];
    size_t longest = 2;
    for (int i = 0; i < plot->y.count; i++) {
        snprintf(text[i], sizeof(text[i]), "%.7g", plot->y.tick[i]);
        longest = strlen(text[i]) > longest ? strlen(text[i]) : longest;
    }
    plot->left = fmax(plot->left, plot_left(plot, longest));
    snprintf(to, sizeof(to), "H%.2f", plot->right);
    for (int i = 0; i < plot->y.count; i++) {
        double y = tess__plot_y(plot, plot->y.tick[i]);
        plot_line(plot, plot->left, y, to, "grid");
        tess__plot_text(plot, plot->left - 0.7 * plot->font, y + 0.325 * plot->font,
                        " text-anchor=\"end\"", text[i], sizeof(text[i]));
    }
    tess__plot_text(plot, 0.56 * plot->font, 2 * plot->font, "", title, SIZE_MAX);
}

/* ---- curves ---------------------------------------------------------------------------------- */

static void plot_curve(struct tess__plot *plot, const struct tess__lines *lines, int c)
{
    const struct tess__curve *curve = &lines->curve[c];
    /* A line has some of its markers; without a line each is a value. */
    const bool all = curve->look == TESS__CURVE_MARKS || curve->count <= 2 * PLOT_MARKERS;
    size_t every = all ? 1 : curve->count / PLOT_MARKERS, shown = 0;
    int colour = curve->style % TESS__PLOT_COLOURS;
    char begin = 'M';
    tess__html_print(plot->html, "<g class=\"s%d\" stroke=\"var(--s%d)\" color=\"var(--s%d)\">\n",
                     c, colour, colour);
    if (curve->look != TESS__CURVE_MARKS)
        tess__html_print(plot->html, "<path stroke-width=\"2\" stroke-dasharray=\"%s\" d=\"",
                         tess__plot_dash(curve->style));
    for (size_t i = 0; i < curve->count && curve->look != TESS__CURVE_MARKS; i++) {
        if (!plot_can_show(&lines->x, curve->x[i]))
            continue;
        if (!plot_can_show(&lines->y, curve->y[i])) {
            begin = 'M'; /* a gap */
            continue;
        }
        tess__html_print(plot->html, "%c%.2f,%.2f", begin, tess__plot_x(plot, curve->x[i]),
                         tess__plot_y(plot, curve->y[i]));
        begin = 'L';
    }
    if (curve->look != TESS__CURVE_MARKS)
        tess__html_add(plot->html, "\"/>\n");
    for (size_t i = 0; i < curve->count && curve->look != TESS__CURVE_LINE; i++)
        if (plot_can_show(&lines->x, curve->x[i]) && plot_can_show(&lines->y, curve->y[i]) &&
            shown++ % every == 0)
            tess__html_print(plot->html,
                             "<use href=\"#m%d\" transform=\"translate(%.2f,%.2f) scale(%g)\"/>\n",
                             tess__plot_marker(curve->style), tess__plot_x(plot, curve->x[i]),
                             tess__plot_y(plot, curve->y[i]), plot->narrow ? 2.5 : 3.2);
    tess__html_add(plot->html, "</g>\n");
}

static void plot_mark(struct tess__plot *plot, const struct tess__mark *mark)
{
    if (!(mark->x >= plot->x.from && mark->x <= plot->x.to))
        return;
    tess__html_print(plot->html,
                     "<path class=\"mark\" stroke=\"var(--s%d)\" stroke-width=\"1.6\" "
                     "stroke-dasharray=\"2,3\" d=\"M%.2f,%.2fV%.2f\"/>\n",
                     mark->style % TESS__PLOT_COLOURS, tess__plot_x(plot, mark->x), plot->bottom,
                     plot->top);
}

void tess__plot_lines(const struct tess__lines *lines, const struct tess__html *alternative,
                      struct tess__html *html)
{
    for (int narrow = 0; narrow < 2; narrow++) {
        struct tess__plot plot = {.html = html,
                                  .narrow = narrow,
                                  .width = narrow ? 340 : 600,
                                  .height = narrow ? 280 : 340,
                                  .font = narrow ? 12 : 13};
        plot.right = plot.width - (narrow ? 13 : 23);
        plot.top = 3.6 * plot.font;
        plot.bottom = plot.height - 4.8 * plot.font;
        tess__plot_open(&plot, alternative);
        plot_scale_x(&plot, lines);
        plot_scale_y(&plot, lines);
        tess__plot_y_axis(&plot, lines->y.title);
        tess__plot_x_axis(&plot, lines->x.title, false);
        for (int m = 0; m < lines->mark_count; m++)
            plot_mark(&plot, &lines->mark[m]);
        for (int c = 0; c < lines->curve_count; c++)
            plot_curve(&plot, lines, c);
        tess__html_add(html, "</svg>\n");
    }
}

/* ---- bars ------------------------------------------------------------------------------------ */

int tess__plot_series(const struct tess__bars *bars, int kind)
{
    if (kind == bars->kind_count)
        return bars->beside_series;
    return bars->series ? bars->series[kind] : kind;
}

double tess__plot_total(const struct tess__bars *bars, int row)
{
    double total = 0;
    for (int k = 0; k < bars->kind_count; k++)
        total += bars->value[row * bars->kind_count + k];
    return total;
}

/* From start to start + value, `above` to `below` of a row's height off its middle. */
static void plot_bar(struct tess__plot *plot, const struct tess__bars *bars, int row, double start,
                     double value, double above, double below)
{
    double unit = (plot->bottom - plot->top) / (bars->row_count + 0.2);
    double x = tess__plot_x(plot, start), middle = plot->top + (row + 0.6) * unit;
    if (value > 0)
        tess__plot_box(plot, x, middle + above * unit, tess__plot_x(plot, start + value) - x,
                       (below - above) * unit);
}

static void plot_bar_kind(struct tess__plot *plot, const struct tess__bars *bars, int k)
{
    tess__html_print(plot->html,
                     "<g class=\"s%d\" fill=\"var(--s%d)\" stroke=\"var(--card)\" "
                     "shape-rendering=\"crispEdges\">\n",
                     tess__plot_series(bars, k), tess__plot_series(bars, k));
    for (int r = 0; r < bars->row_count; r++) {
        double start = 0;
        for (int below = 0; below < k && k < bars->kind_count; below++)
            start += bars->value[r * bars->kind_count + below];
        if (k < bars->kind_count)
            plot_bar(plot, bars, r, start, bars->value[r * bars->kind_count + k], -0.32, 0.32);
        else
            plot_bar(plot, bars, r, bars->beside_start[r], bars->beside_value[r], 0.36, 0.48);
    }
    tess__html_add(plot->html, "</g>\n");
}

static void plot_bar_labels(struct tess__plot *plot, const struct tess__bars *bars, size_t max)
{
    char text[TESS__REAL_BYTES];
    double unit = (plot->bottom - plot->top) / (bars->row_count + 0.2);
    for (int r = 0; r < bars->row_count; r++) {
        double total = tess__plot_total(bars, r);
        double y = plot->top + (r + 0.6) * unit + 0.325 * plot->font;
        tess__plot_text(plot, plot->left - 0.7 * plot->font, y, " text-anchor=\"end\"",
                        bars->row[r], max);
        tess__plot_text(plot, tess__plot_x(plot, total) + 0.42 * plot->font, y, "",
                        tess__real_fixed(total, bars->decimals, text), sizeof(text));
    }
}

void tess__plot_bars(const struct tess__bars *bars, const struct tess__html *alternative,
                     struct tess__html *html)
{
    char text[TESS__REAL_BYTES];
    double most = 0;
    size_t digits = 0; /* of the longest number behind a bar */
    for (int r = 0; r < bars->row_count; r++) {
        const double total = tess__plot_total(bars, r);
        most = fmax(most, total);
        const size_t length =
            tess__html_length(tess__real_fixed(total, bars->decimals, text), sizeof(text));
        digits = length > digits ? length : digits;
    }
    most = most > 0 ? most : 1;
    for (int narrow = 0; narrow < 2; narrow++) {
        struct tess__plot plot = {.html = html,
                                  .narrow = narrow,
                                  .width = narrow ? 340 : 600,
                                  .height = narrow ? 66 + 32 * bars->row_count
                                                   : 70 + 34 * bars->row_count,
                                  .font = narrow ? 12 : 13};
        size_t label_max = narrow ? 20 : 40, longest = 4;
        for (int r = 0; r < bars->row_count; r++) {
            size_t length = tess__html_length(bars->row[r], label_max);
            longest = length > longest ? length : longest;
        }
        plot.left = plot_left(&plot, longest);
        plot.right = plot.width - (narrow ? 13 : 23);
        const double room = plot.right - plot.left, number = (0.62 * digits + 0.42) * plot.font;
        plot.x.to = most * room / fmax(room - number, room / 3);
        plot.top = 1.2 * plot.font;
        plot.bottom = plot.height - 4.8 * plot.font;
        tess__plot_open(&plot, alternative);
        tess__plot_even_ticks(&plot.x, narrow ? 4 : 7, false);
        tess__plot_x_axis(&plot, bars->title, true);
        for (int k = 0; k < bars->kind_count + (bars->beside_name != NULL); k++)
            plot_bar_kind(&plot, bars, k);
        plot_bar_labels(&plot, bars, label_max);
        tess__html_add(html, "</svg>\n");
    }
}
