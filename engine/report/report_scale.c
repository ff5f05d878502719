/*
 * Scaling and tuning: measured speed-up with Amdahl's fit, predictions per link, the ring
 * all-reduce, and throughput and memory against the batch size.
 */
#include "report/report_section.h"

#include "text/text.h"

#include <math.h>

/* More strategies than there are; a file that names more is not from this program. */
#define SCALE_STRATEGIES_MAX 12

/* Columns to draw against one another, and the factors from the file's units to those shown. */
struct scale_pair {
    int x, y;
    double x_factor, y_factor;
};

/* Two columns as one curve. */
static void scale_curve(struct tess__report *report, const struct tess__rows *rows,
                        struct scale_pair pair, struct tess__curve *curve)
{
    double *x = tess__report_alloc(report, 2 * rows->count + 1, sizeof(*x)), *y = x + rows->count;
    for (size_t i = 0; i < rows->count; i++) {
        x[i] = pair.x_factor * tess__row(rows, i, pair.x);
        y[i] = pair.y_factor * tess__row(rows, i, pair.y);
    }
    curve->x = x;
    curve->y = y;
    curve->count = rows->count;
}

/* ---- measured -------------------------------------------------------------------------------- */

static void scale_speedup(struct tess__report *report, const struct tess__report_scaling *scaling,
                          struct tess__html *html)
{
    const struct tess__rows *rows = &scaling->measured;
    double p = scaling->amdahl_p, *fit = tess__report_alloc(report, rows->count + 1, sizeof(*fit));
    struct tess__curve curve[3] = {
        {.name = "ideal: N times as fast on N ranks", .style = 6, .look = TESS__CURVE_LINE},
        {.name = "measured", .style = 0, .look = TESS__CURVE_BOTH},
        {.name = "Amdahl's law, fitted", .style = 2, .look = TESS__CURVE_LINE}};
    struct tess__lines lines = {.x = {"ranks (log)", TESS__AXIS_LOG2, true},
                                .y = {"speed-up against one rank", TESS__AXIS_ZERO, false},
                                .curve = curve,
                                .curve_count = 2};
    const char *caption = "How many times faster N ranks are than one. The distance to the ideal "
                          "line is what communication, data and a shared machine cost.";
    if (rows->count == 0)
        return;
    scale_curve(report, rows,
                (struct scale_pair){TESS__MEASURED_RANKS, TESS__MEASURED_SPEEDUP, 1, 1}, &curve[1]);
    curve[0].x = curve[0].y = curve[2].x = curve[1].x;
    curve[0].count = curve[2].count = rows->count;
    curve[2].y = fit;
    if (p >= 0 && p <= 1) {
        for (size_t i = 0; i < rows->count; i++)
            fit[i] = curve[1].x[i] > 0 ? 1 / (1 - p + p / curve[1].x[i]) : NAN;
        lines.curve_count = 3;
        caption = tess__report_text(
            report,
            "%s Amdahl's law fits best with p = %.4f of the step in parallel: no number of ranks "
            "gets beyond a factor of %.3g.",
            caption, p, p < 1 ? 1 / (1 - p) : INFINITY);
    } else if (!isnan(p)) {
        caption = tess__report_text(
            report, "%s Amdahl's law does not hold here: its best fit is p = %.3g, outside 0 to 1.",
            caption, p);
    }
    tess__figure_lines(&(struct tess__figure){"Measured speed-up", caption}, &lines, html);
}

static void scale_step(struct tess__report *report, const struct tess__report_scaling *scaling,
                       struct tess__html *html)
{
    static const int field[] = {TESS__MEASURED_DATA, TESS__MEASURED_COMPUTE,
                                TESS__MEASURED_EXPOSED};
    static const int series[] = {TESS__WORK_LOADING, TESS__WORK_COMPUTE, TESS__WORK_WAITING};
    const struct tess__rows *rows = &scaling->measured;
    struct tess__bars bars = {.title = "time of a step [ms]",
                              .name = tess__work_name,
                              .series = series,
                              .kind_count = sizeof(field) / sizeof(field[0]),
                              .beside_name = "hidden communication",
                              .beside_series = TESS__WORK_CALL,
                              .decimals = 2};
    for (size_t r = 0; r < rows->count; r++) {
        double ranks = tess__row(rows, r, TESS__MEASURED_RANKS);
        tess__report_add_times(
            &bars, tess__report_text(report, "%.0f %s", ranks, ranks == 1 ? "rank" : "ranks"), rows,
            r, field, TESS__MEASURED_HIDDEN, 2, 1e3);
    }
    if (bars.row_count > 0)
        tess__figure_bars(
            &(struct tess__figure){
                "A step on more and more ranks",
                "With the same global batch computing should shrink as ranks are added; exposed "
                "communication is what grows instead. Communication beside the backward pass is "
                "the thin bar below: it costs nothing until it no longer fits there."},
            &bars, html);
}

/* ---- predicted ------------------------------------------------------------------------------- */

/* What the pictures of one list of curves have in common. */
struct scale_list {
    const struct tess__report_curve *curve;
    size_t count;
    const char *title, *caption;
    struct scale_pair pair;
    struct tess__axis x, y;
};

/* A curve's link, with the ranks of a ring; titles name the strategy. */
static const char *scale_name(struct tess__report *report, const struct tess__report_curve *curve)
{
    const char *link = curve->link ? curve->link : "?";
    return isnan(curve->ranks) ? link
                               : tess__report_text(report, "%s, %.0f ranks", link, curve->ranks);
}

/* The curves of one strategy (NULL for those without one) in one picture. */
static void scale_curves(struct tess__report *report, const struct scale_list *list,
                         const char *strategy, struct tess__html *html)
{
    struct tess__curve curve[TESS__PLOT_CURVES_MAX] = {0};
    struct tess__lines lines = {.x = list->x, .y = list->y, .curve = curve};
    struct tess__figure figure = {list->title, list->caption};
    int left_out = 0;
    for (size_t i = 0; i < list->count; i++) {
        struct tess__curve *next = &curve[lines.curve_count];
        if (!tess__report_same(list->curve[i].name, strategy))
            continue;
        if (lines.curve_count == TESS__PLOT_CURVES_MAX) {
            left_out++;
            continue;
        }
        scale_curve(report, &list->curve[i].rows, list->pair, next);
        next->name = scale_name(report, &list->curve[i]);
        next->style = lines.curve_count++;
    }
    if (strategy)
        figure.title = tess__report_text(report, "%s: %.100s", list->title, strategy);
    if (left_out > 0)
        figure.caption =
            tess__report_text(report, "%s %d more curves are not drawn.", list->caption, left_out);
    tess__figure_lines(&figure, &lines, html);
}

/* One picture for each strategy. */
static void scale_by_strategy(struct tess__report *report, const struct scale_list *list,
                              struct tess__html *html)
{
    int pictures = 0;
    for (size_t i = 0; i < list->count && pictures < SCALE_STRATEGIES_MAX; i++) {
        bool seen = false;
        for (size_t before = 0; before < i && !seen; before++)
            seen = tess__report_same(list->curve[before].name, list->curve[i].name);
        pictures += !seen;
        if (!seen)
            scale_curves(report, list, list->curve[i].name, html);
    }
}

static void scale_predicted(struct tess__report *report, const struct tess__report_scaling *scaling,
                            struct tess__html *html)
{
    struct scale_list list = {
        .curve = scaling->predicted,
        .count = scaling->predicted_count,
        .title = "Predicted speed-up",
        .caption =
            "From the measured computing time and a model of each link (latency and bandwidth): a "
            "curve that bends shows a saturated link. These are predictions, not measurements.",
        .pair = {TESS__PREDICTED_RANKS, TESS__PREDICTED_SPEEDUP, 1, 1},
        .x = {"ranks (log)", TESS__AXIS_LOG2, true},
        .y = {"speed-up against one rank (log)", TESS__AXIS_LOG10, false}};
    scale_by_strategy(report, &list, html);
    list.title = "Predicted efficiency";
    list.caption = "Share of every rank that is left for computing. Where a curve falls below one "
                   "half, more than half of the machine waits.";
    list.pair = (struct scale_pair){TESS__PREDICTED_RANKS, TESS__PREDICTED_EFFICIENCY, 1, 100};
    list.y = (struct tess__axis){"efficiency [%]", TESS__AXIS_ZERO, false};
    scale_by_strategy(report, &list, html);
}

static void scale_ring(struct tess__report *report, const struct tess__report_scaling *scaling,
                       struct tess__html *html)
{
    const struct scale_list list = {
        .curve = scaling->ring,
        .count = scaling->ring_count,
        .title = "Ring all-reduce against the size of the model",
        .caption =
            "The flat part on the left is latency, the rising part bandwidth. Beyond the size "
            "at the bend a faster link helps; below it, larger buckets help.",
        .pair = {TESS__RING_BYTES, TESS__RING_TIME, 1e-6, 1e3},
        .x = {"bytes reduced [MB] (log)", TESS__AXIS_LOG10, false},
        .y = {"time [ms] (log)", TESS__AXIS_LOG10, false}};
    scale_by_strategy(report, &list, html);
}

static void scale_about(const struct tess__report_scaling *scaling, struct tess__html *html)
{
    tess__html_put(html, "<div class=\"about\"><p>", scaling->path, ": model ");
    tess__html_escape(html, scaling->model);
    tess__html_put(html, ", measured under ", scaling->strategy, "");
    if (!isnan(scaling->batch))
        tess__html_print(html, ", batch %.0f", scaling->batch);
    if (scaling->mode)
        tess__html_put_short(html, " (", scaling->mode, 20, " scaling)");
    if (scaling->machine)
        tess__html_put(html, ", on ", scaling->machine, "");
    tess__html_add(html, ".</p>");
    if (scaling->link_count > 0)
        tess__html_add(html, "<p>Links of the prediction:");
    for (size_t i = 0; i < scaling->link_count; i++) {
        tess__html_add(html, i > 0 ? "; <b>" : " <b>");
        tess__html_put(html, "", scaling->link[i].name, "</b>");
        if (!isnan(scaling->link[i].bandwidth))
            tess__html_print(html, " %.4g GB/s", scaling->link[i].bandwidth / 1e9);
        if (!isnan(scaling->link[i].latency_s))
            tess__html_print(html, ", %.3g \xC2\xB5s", scaling->link[i].latency_s * 1e6);
    }
    tess__html_add(html, scaling->link_count > 0 ? ".</p></div>\n" : "</div>\n");
}

void tess__report_scalings(struct tess__report *report, struct tess__html *html)
{
    for (size_t i = 0; i < report->scaling_count; i++) {
        const struct tess__report_scaling *scaling = &report->scaling[i];
        scale_about(scaling, html);
        scale_speedup(report, scaling, html);
        scale_step(report, scaling, html);
        scale_predicted(report, scaling, html);
        scale_ring(report, scaling, html);
    }
}

/* ---- tune ------------------------------------------------------------------------------------ */

static void scale_tune_memory(struct tess__report *report, const struct tess__report_tune *tune,
                              struct tess__html *html)
{
    struct tess__curve curve[2] = {
        {.name = "predicted by the memory plan", .style = 0, .look = TESS__CURVE_BOTH},
        {.name = "limit", .style = 1, .look = TESS__CURVE_LINE}};
    struct tess__lines lines = {
        .x = {"batch size (log)", TESS__AXIS_LOG2, true}, .curve = curve, .curve_count = 1};
    struct tess__figure figure = {"Memory against batch size",
                                  "What the plan needs, before anything runs."};
    double most = 0, divisor;
    char limit[TESS__TEXT_BYTES];
    for (size_t i = 0; i < tune->cases.count; i++)
        most = fmax(most, tess__row(&tune->cases, i, TESS__TUNE_MEMORY));
    /* A limit far above would press the curve to the floor. */
    bool far = tune->limit_bytes > 4 * most;
    if (tune->limit_bytes > 0)
        figure.caption =
            tess__report_text(report,
                              far ? "%s The limit, %s, is far above the plot."
                                  : "%s Batch sizes above the limit, %s, are not tried.",
                              figure.caption, tess__text_bytes(tune->limit_bytes, limit));
    lines.y = (struct tess__axis){
        tess__report_text(report, "memory per rank [%s]", tess__text_unit(most, &divisor)),
        TESS__AXIS_ZERO, false};
    scale_curve(report, &tune->cases,
                (struct scale_pair){TESS__TUNE_BATCH, TESS__TUNE_MEMORY, 1, 1 / divisor},
                &curve[0]);
    if (tune->limit_bytes > 0 && !far) {
        double *level = tess__report_alloc(report, tune->cases.count, sizeof(*level));
        for (size_t i = 0; i < tune->cases.count; i++)
            level[i] = tune->limit_bytes / divisor;
        curve[1].x = curve[0].x;
        curve[1].y = level;
        curve[1].count = tune->cases.count;
        lines.curve_count = 2;
    }
    tess__figure_lines(&figure, &lines, html);
}

static void scale_tune(struct tess__report *report, const struct tess__report_tune *tune,
                       struct tess__html *html)
{
    const struct tess__words words = tess__words_for(tune->tokens);
    struct tess__curve curve[2] = {
        {.name = "measured", .style = 0, .look = TESS__CURVE_BOTH},
        {.name = "best that fits", .style = 1, .look = TESS__CURVE_MARKS, .count = 1}};
    struct tess__lines lines = {.x = {"batch size (log)", TESS__AXIS_LOG2, true},
                                .y = {words.rate, TESS__AXIS_ZERO, false},
                                .curve = curve,
                                .curve_count = 1};
    const char *caption = "Speed at each batch size that fits. Where the curve is flat a larger "
                          "batch gains nothing.";
    scale_curve(report, &tune->cases,
                (struct scale_pair){TESS__TUNE_BATCH, TESS__TUNE_SPEED, 1, words.rate_of_row},
                &curve[0]);
    for (size_t i = 0; i < tune->cases.count; i++) {
        if (curve[0].x[i] != tune->best_batch || isnan(curve[0].y[i]))
            continue;
        curve[1].x = &curve[0].x[i];
        curve[1].y = &curve[0].y[i];
        lines.curve_count = 2;
        caption = tess__report_text(report, "%s Best: batch %.0f with %.0f %s.", caption,
                                    curve[0].x[i], curve[0].y[i], words.rate);
    }
    tess__html_put(html, "<div class=\"about\"><p>", tune->path, ": model ");
    tess__html_escape(html, tune->model);
    tess__html_put(html, " under ", tune->strategy, "");
    if (!isnan(tune->ranks))
        tess__html_print(html, " on %.0f rank%s", tune->ranks, tune->ranks == 1 ? "" : "s");
    tess__html_add(html, ".</p></div>\n");
    tess__figure_lines(&(struct tess__figure){"Throughput against batch size", caption}, &lines,
                       html);
    scale_tune_memory(report, tune, html);
}

void tess__report_tunes(struct tess__report *report, struct tess__html *html)
{
    for (size_t i = 0; i < report->tune_count; i++)
        scale_tune(report, &report->tune[i], html);
}
