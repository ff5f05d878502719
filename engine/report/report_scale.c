/*
 * Scaling and tuning: measured speed-up with Amdahl's fit, predictions per link, the ring
 * all-reduce, and throughput and memory against the batch size.
 */
#include "report/report_section.h"

#include "tessera/check.h"
#include "text/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* More strategies than there are; a file that names more is not from this program. */
#define SCALE_STRATEGIES_MAX 12

/* A column of records as numbers of its own. */
static double *scale_column(struct tess__report *report, const struct tess__rows *rows, int field,
                            double factor)
{
    double *column = tess__report_alloc(report, rows->count + 1, sizeof(*column));
    for (size_t i = 0; column && i < rows->count; i++)
        column[i] = factor * tess__row(rows, i, field);
    return column;
}

/* Columns to draw against one another, and the factors from the file's units to those shown. */
struct scale_pair {
    int x, y;
    double x_factor, y_factor;
};

/* Two columns as one curve. */
static enum tess_status scale_curve(struct tess__report *report, const struct tess__rows *rows,
                                    struct scale_pair pair, struct tess__curve *curve)
{
    curve->x = scale_column(report, rows, pair.x, pair.x_factor);
    curve->y = scale_column(report, rows, pair.y, pair.y_factor);
    curve->count = rows->count;
    if (!curve->x || !curve->y)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a curve of the report");
    return TESS_OK;
}

static const char *scale_text(const char *text)
{
    return text ? text : "?";
}

/* A curve's link, with the ranks of a ring; titles name the strategy. */
static enum tess_status scale_name(struct tess__report *report,
                                   const struct tess__report_curve *curve, const char **name_out)
{
    size_t length = 64 + strlen(scale_text(curve->link));
    char *name = tess__report_alloc(report, length, 1);
    if (!name)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the names of curves");
    if (isnan(curve->ranks))
        snprintf(name, length, "%s", scale_text(curve->link));
    else
        snprintf(name, length, "%s, %.0f ranks", scale_text(curve->link), curve->ranks);
    *name_out = name;
    return TESS_OK;
}

/* ---- measured -------------------------------------------------------------------------------- */

static enum tess_status scale_speedup(struct tess__report *report,
                                      const struct tess__report_scaling *scaling,
                                      struct tess__html *html)
{
    const struct tess__rows *rows = &scaling->measured;
    double p = scaling->amdahl_p, *fit = tess__report_alloc(report, rows->count + 1, sizeof(*fit));
    struct tess__curve curve[3] = {
        {.name = "ideal: as many times faster as there are ranks",
         .style = 6,
         .look = TESS__CURVE_LINE},
        {.name = "measured", .style = 0, .look = TESS__CURVE_BOTH},
        {.name = "Amdahl's law, fitted", .style = 2, .look = TESS__CURVE_LINE}};
    struct tess__lines lines = {.x = {"ranks (log)", TESS__AXIS_LOG2, true},
                                .y = {"speed-up against one rank", TESS__AXIS_ZERO, false},
                                .curve = curve,
                                .curve_count = 2};
    char caption[512];
    if (rows->count == 0)
        return TESS_OK;
    if (!fit)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a curve of the report");
    TESS_TRY(scale_curve(report, rows,
                         (struct scale_pair){TESS__MEASURED_RANKS, TESS__MEASURED_SPEEDUP, 1, 1},
                         &curve[1]));
    curve[0].x = curve[0].y = curve[2].x = curve[1].x;
    curve[0].count = curve[2].count = rows->count;
    curve[2].y = fit;
    snprintf(caption, sizeof(caption),
             "How many times faster N ranks are than one. The distance to the ideal line is what "
             "communication, data and a shared machine cost.");
    if (p >= 0 && p <= 1) {
        for (size_t i = 0; i < rows->count; i++)
            fit[i] = curve[1].x[i] > 0 ? 1 / (1 - p + p / curve[1].x[i]) : NAN;
        lines.curve_count = 3;
        snprintf(caption + strlen(caption), sizeof(caption) - strlen(caption),
                 " Amdahl's law fits best with p = %.4f of the step in parallel: no number of "
                 "ranks gets beyond a factor of %.3g.",
                 p, p < 1 ? 1 / (1 - p) : INFINITY);
    } else if (!isnan(p)) {
        snprintf(caption + strlen(caption), sizeof(caption) - strlen(caption),
                 " Amdahl's law does not hold here: its best fit is p = %.3g, outside 0 to 1.", p);
    }
    return tess__figure_lines(&(struct tess__figure){"Measured speed-up", caption}, &lines, html);
}

static enum tess_status scale_step(struct tess__report *report,
                                   const struct tess__report_scaling *scaling,
                                   struct tess__html *html)
{
    static const int field[] = {TESS__MEASURED_DATA, TESS__MEASURED_COMPUTE,
                                TESS__MEASURED_EXPOSED};
    static const char *const kind[] = {"waiting for data", "computing", "exposed communication"};
    enum { KINDS = sizeof(field) / sizeof(field[0]) };
    const struct tess__rows *rows = &scaling->measured;
    const char *label[TESS__PLOT_BARS_MAX];
    double value[TESS__PLOT_BARS_MAX * KINDS];
    double start[TESS__PLOT_BARS_MAX], hidden[TESS__PLOT_BARS_MAX];
    const struct tess__bars bars = {
        .title = "time of a step [ms]",
        .row = label,
        .kind = kind,
        .value = value,
        .row_count = rows->count < TESS__PLOT_BARS_MAX ? (int)rows->count : TESS__PLOT_BARS_MAX,
        .kind_count = KINDS,
        .beside_start = start,
        .beside_value = hidden,
        .beside_name = "hidden communication",
        .decimals = 2};
    if (rows->count == 0)
        return TESS_OK;
    for (int r = 0; r < bars.row_count; r++) {
        double ranks = tess__row(rows, (size_t)r, TESS__MEASURED_RANKS), end = 0;
        char text[48];
        for (int k = 0; k < KINDS; k++) {
            double seconds = tess__row(rows, (size_t)r, field[k]);
            value[r * KINDS + k] = isnan(seconds) ? 0 : 1e3 * seconds;
            end += k <= 1 ? value[r * KINDS + k] : 0;
        }
        hidden[r] = 1e3 * tess__row(rows, (size_t)r, TESS__MEASURED_HIDDEN);
        hidden[r] = isnan(hidden[r]) ? 0 : hidden[r];
        start[r] = hidden[r] < end ? end - hidden[r] : 0;
        snprintf(text, sizeof(text), "%.0f %s", ranks, ranks == 1 ? "rank" : "ranks");
        label[r] = tess__report_copy(report, text);
        if (!label[r])
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the labels of a picture");
    }
    return tess__figure_bars(
        &(struct tess__figure){
            "A step on more and more ranks",
            "With the same global batch computing should shrink as ranks are added; exposed "
            "communication is what grows instead. Communication beside the backward pass is the "
            "thin bar below: it costs nothing until it no longer fits there."},
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

/* The curves of one strategy (NULL for those without one) in one picture. */
static enum tess_status scale_curves(struct tess__report *report, const struct scale_list *list,
                                     const char *strategy, struct tess__html *html)
{
    struct tess__curve curve[TESS__PLOT_CURVES_MAX] = {0};
    struct tess__lines lines = {.x = list->x, .y = list->y, .curve = curve};
    char title[160], caption[512];
    int left_out = 0;
    for (size_t i = 0; i < list->count; i++) {
        struct tess__curve *next = &curve[lines.curve_count];
        if (!tess__report_same(list->curve[i].name, strategy))
            continue;
        if (lines.curve_count == TESS__PLOT_CURVES_MAX) {
            left_out++;
            continue;
        }
        TESS_TRY(scale_curve(report, &list->curve[i].rows, list->pair, next));
        TESS_TRY(scale_name(report, &list->curve[i], &next->name));
        next->style = lines.curve_count++;
    }
    if (lines.curve_count == 0)
        return TESS_OK;
    snprintf(title, sizeof(title), strategy ? "%s: %.100s" : "%s", list->title, strategy);
    snprintf(caption, sizeof(caption), "%s", list->caption);
    if (left_out > 0)
        snprintf(caption + strlen(caption), sizeof(caption) - strlen(caption),
                 " %d more curves are not drawn.", left_out);
    return tess__figure_lines(&(struct tess__figure){title, caption}, &lines, html);
}

/* One picture for each strategy. */
static enum tess_status scale_by_strategy(struct tess__report *report,
                                          const struct scale_list *list, struct tess__html *html)
{
    int pictures = 0;
    for (size_t i = 0; i < list->count && pictures < SCALE_STRATEGIES_MAX; i++) {
        bool seen = false;
        for (size_t before = 0; before < i && !seen; before++)
            seen = tess__report_same(list->curve[before].name, list->curve[i].name);
        pictures += !seen;
        if (!seen)
            TESS_TRY(scale_curves(report, list, list->curve[i].name, html));
    }
    return TESS_OK;
}

static enum tess_status scale_predicted(struct tess__report *report,
                                        const struct tess__report_scaling *scaling,
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
    TESS_TRY(scale_by_strategy(report, &list, html));
    list.title = "Predicted efficiency";
    list.caption = "Share of every rank that is left for computing. Where a curve falls below one "
                   "half, more than half of the machine waits.";
    list.pair = (struct scale_pair){TESS__PREDICTED_RANKS, TESS__PREDICTED_EFFICIENCY, 1, 100};
    list.y = (struct tess__axis){"efficiency [%]", TESS__AXIS_ZERO, false};
    return scale_by_strategy(report, &list, html);
}

static enum tess_status scale_ring(struct tess__report *report,
                                   const struct tess__report_scaling *scaling,
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
    return scale_by_strategy(report, &list, html);
}

static void scale_about(const struct tess__report_scaling *scaling, struct tess__html *html)
{
    tess__html_put(html, "<div class=\"about\"><p>", scaling->path, ": model ");
    tess__html_escape(html, scaling->model);
    tess__html_put(html, ", measured under ", scaling->strategy, "");
    if (!isnan(scaling->batch))
        tess__html_print(html, ", batch %.0f", scaling->batch);
    if (scaling->mode) {
        tess__html_put_short(html, " (", scaling->mode, 20, " scaling)");
    }
    if (scaling->machine) {
        tess__html_put(html, ", on ", scaling->machine, "");
    }
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

enum tess_status tess__report_scalings(struct tess__report *report, struct tess__html *html)
{
    for (size_t i = 0; i < report->scaling_count; i++) {
        const struct tess__report_scaling *scaling = &report->scaling[i];
        scale_about(scaling, html);
        TESS_TRY(scale_speedup(report, scaling, html));
        TESS_TRY(scale_step(report, scaling, html));
        TESS_TRY(scale_predicted(report, scaling, html));
        TESS_TRY(scale_ring(report, scaling, html));
    }
    return TESS_OK;
}

/* ---- tune ------------------------------------------------------------------------------------ */

static enum tess_status scale_tune_memory(struct tess__report *report,
                                          const struct tess__report_tune *tune,
                                          struct tess__html *html)
{
    struct tess__curve curve[2] = {
        {.name = "predicted by the memory plan", .style = 0, .look = TESS__CURVE_BOTH},
        {.name = "limit", .style = 1, .look = TESS__CURVE_LINE}};
    struct tess__lines lines = {
        .x = {"batch size (log)", TESS__AXIS_LOG2, true}, .curve = curve, .curve_count = 1};
    double most = 0, divisor, *limit;
    char axis[64], text[TESS__TEXT_BYTES];
    char caption[256] = "What the plan needs, before anything runs.";
    limit = tess__report_alloc(report, tune->cases.count + 1, sizeof(*limit));
    if (!limit)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a curve of the report");
    for (size_t i = 0; i < tune->cases.count; i++)
        most = fmax(most, tess__row(&tune->cases, i, TESS__TUNE_MEMORY));
    /* A limit far above would press the curve to the floor. */
    if (tune->limit_bytes > 4 * most)
        snprintf(caption + strlen(caption), sizeof(caption) - strlen(caption),
                 " The limit, %s, is far above the plot.",
                 tess__text_bytes(tune->limit_bytes, text));
    else if (tune->limit_bytes > 0)
        snprintf(caption + strlen(caption), sizeof(caption) - strlen(caption),
                 " Batch sizes above the limit, %s, are not tried.",
                 tess__text_bytes(tune->limit_bytes, text));
    snprintf(axis, sizeof(axis), "memory per rank [%s]", tess__text_unit(most, &divisor));
    lines.y = (struct tess__axis){axis, TESS__AXIS_ZERO, false};
    TESS_TRY(scale_curve(report, &tune->cases,
                         (struct scale_pair){TESS__TUNE_BATCH, TESS__TUNE_MEMORY, 1, 1 / divisor},
                         &curve[0]));
    if (tune->limit_bytes > 0 && tune->limit_bytes <= 4 * most) {
        for (size_t i = 0; i < tune->cases.count; i++)
            limit[i] = tune->limit_bytes / divisor;
        curve[1].x = curve[0].x;
        curve[1].y = limit;
        curve[1].count = tune->cases.count;
        lines.curve_count = 2;
    }
    return tess__figure_lines(&(struct tess__figure){"Memory against batch size", caption}, &lines,
                              html);
}

static enum tess_status scale_tune(struct tess__report *report,
                                   const struct tess__report_tune *tune, struct tess__html *html)
{
    const struct tess__words words = tess__words_for(tune->tokens);
    struct tess__curve curve[2] = {
        {.name = "measured", .style = 0, .look = TESS__CURVE_BOTH},
        {.name = "best that fits", .style = 1, .look = TESS__CURVE_MARKS, .count = 1}};
    struct tess__lines lines = {.x = {"batch size (log)", TESS__AXIS_LOG2, true},
                                .y = {words.rate, TESS__AXIS_ZERO, false},
                                .curve = curve,
                                .curve_count = 1};
    char caption[256] = "Speed at each batch size that fits. Where the curve is flat a larger "
                        "batch gains nothing.";
    size_t measured = 0;
    TESS_TRY(scale_curve(
        report, &tune->cases,
        (struct scale_pair){TESS__TUNE_BATCH, TESS__TUNE_SPEED, 1, words.rate_of_row}, &curve[0]));
    for (size_t i = 0; i < tune->cases.count; i++) {
        measured += !isnan(curve[0].y[i]);
        if (curve[0].x[i] != tune->best_batch || isnan(curve[0].y[i]))
            continue;
        curve[1].x = &curve[0].x[i];
        curve[1].y = &curve[0].y[i];
        lines.curve_count = 2;
        snprintf(caption + strlen(caption), sizeof(caption) - strlen(caption),
                 " Best: batch %.0f with %.0f %s.", curve[0].x[i], curve[0].y[i], words.rate);
    }
    tess__html_put(html, "<div class=\"about\"><p>", tune->path, ": model ");
    tess__html_escape(html, tune->model);
    tess__html_put(html, " under ", tune->strategy, "");
    if (!isnan(tune->ranks))
        tess__html_print(html, " on %.0f rank%s", tune->ranks, tune->ranks == 1 ? "" : "s");
    tess__html_add(html, ".</p></div>\n");
    if (measured > 0)
        TESS_TRY(tess__figure_lines(
            &(struct tess__figure){"Throughput against batch size", caption}, &lines, html));
    return scale_tune_memory(report, tune, html);
}

enum tess_status tess__report_tunes(struct tess__report *report, struct tess__html *html)
{
    for (size_t i = 0; i < report->tune_count; i++)
        TESS_TRY(scale_tune(report, &report->tune[i], html));
    return TESS_OK;
}
