/*
 * The overview of a report: one row for each run, and which of them ended with the same bits. Every
 * name in it comes from files and is escaped.
 */
#include "report/report_section.h"

#include "text/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the columns of a run --------------------------------------------------------------- */

/* The last number of a column. */
static double overview_last(const struct tess__rows *rows, int field)
{
    for (size_t i = rows->count; i-- > 0;)
        if (!isnan(tess__row(rows, i, field)))
            return tess__row(rows, i, field);
    return NAN;
}

static double overview_or(double value, double other)
{
    return isnan(value) ? other : value;
}

double tess__report_speed(const struct tess__report_run *run)
{
    double rows = overview_or(run->speed, overview_or(overview_last(&run->epoch, TESS__EPOCH_SPEED),
                                                      overview_last(&run->step, TESS__STEP_SPEED)));
    return run->rate_of_row * rows;
}

static double overview_time(const struct tess__report_run *run)
{
    return overview_or(run->time_s, overview_or(overview_last(&run->epoch, TESS__EPOCH_TIME),
                                                overview_last(&run->step, TESS__STEP_ELAPSED)));
}

double tess__report_val_loss(const struct tess__report_run *run)
{
    return overview_or(run->val_loss, overview_last(&run->epoch, TESS__EPOCH_LOSS));
}

double tess__report_val_accuracy(const struct tess__report_run *run)
{
    return overview_or(run->val_accuracy, overview_last(&run->epoch, TESS__EPOCH_ACCURACY));
}

/* ---- the overview ---------------------------------------------------------------------------- */

enum overview_best { OVERVIEW_NONE, OVERVIEW_MOST, OVERVIEW_LEAST };

static double overview_percent(const struct tess__report_run *run)
{
    return 100 * tess__report_val_accuracy(run);
}

static double overview_loss(const struct tess__report_run *run)
{
    return overview_or(run->loss, overview_last(&run->step, TESS__STEP_LOSS));
}

enum { OVERVIEW_DIGITS = -1, OVERVIEW_TIME = -2, OVERVIEW_SHORT = -3 };

#define OVERVIEW_FIELD(member) offsetof(struct tess__report_run, member)

/* Columns of numbers; one that no run fills is left out. */
static const struct overview_column {
    const char *title;
    double (*of)(const struct tess__report_run *run); /* NULL: the number at `offset` */
    enum overview_best best;
    int decimals; /* or one of the formats above */
    size_t offset;
} overview_columns[] = {
    {"ranks", NULL, OVERVIEW_NONE, 0, OVERVIEW_FIELD(ranks)},
    {"batch", NULL, OVERVIEW_NONE, 0, OVERVIEW_FIELD(batch)},
    {"lr", NULL, OVERVIEW_NONE, OVERVIEW_SHORT, OVERVIEW_FIELD(rate)},
    {NULL, tess__report_speed, OVERVIEW_MOST, 0, 0}, /* as the report's words have it */
    {"time", overview_time, OVERVIEW_NONE, OVERVIEW_TIME, 0},
    {"train loss", overview_loss, OVERVIEW_NONE, OVERVIEW_DIGITS, 0},
    {"val loss", tess__report_val_loss, OVERVIEW_LEAST, 4, 0},
    {"val acc. %", overview_percent, OVERVIEW_MOST, 2, 0},
};

#define OVERVIEW_COLUMNS ((int)(sizeof(overview_columns) / sizeof(overview_columns[0])))

static double overview_value(const struct overview_column *column,
                             const struct tess__report_run *run)
{
    return column->of ? column->of(run) : *(const double *)((const char *)run + column->offset);
}

/* The best of a column, and how many runs have a number there. */
static double overview_best(const struct tess__report *report, const struct overview_column *column,
                            size_t *count_out)
{
    double best = NAN;
    *count_out = 0;
    for (size_t i = 0; i < report->run_count; i++) {
        double value = overview_value(column, &report->run[i]);
        *count_out += !isnan(value);
        /* A run that has diverged may be fast, and is not the best. */
        if (tess__report_state(&report->run[i]) == TESS__REPORT_FAILED)
            continue;
        best = column->best == OVERVIEW_LEAST ? fmin(best, value) : fmax(best, value);
    }
    return best;
}

static void overview_state(const struct tess__report_run *run, struct tess__html *html)
{
    static const char *const css[] = {"ok", "bad", "cut"};
    static const char *const text[] = {"finished", "failed", "cut short"};
    enum tess__report_state state = tess__report_state(run);
    tess__html_print(html,
                     "<td class=\"text\" data-of=\"state\"><span class=\"state %s\">%s</span>",
                     css[state], text[state]);
    if (state == TESS__REPORT_FAILED && !isnan(run->failed_step))
        tess__html_print(html, "<small>from step %.0f</small>", run->failed_step);
    else if (state == TESS__REPORT_CUT_SHORT && run->step.count > 0)
        tess__html_print(html, "<small>at step %.0f</small>",
                         overview_last(&run->step, TESS__STEP));
    tess__html_add(html, "</td>");
}

static const struct overview_word {
    const char *title;
    size_t offset; /* of a text of the run */
} overview_words[] = {{"model", OVERVIEW_FIELD(model)},
                      {"strategy", OVERVIEW_FIELD(strategy)},
                      {"data x tensor x stage", OVERVIEW_FIELD(mesh)},
                      {"precision", OVERVIEW_FIELD(precision)}};

#define OVERVIEW_WORDS ((int)(sizeof(overview_words) / sizeof(overview_words[0])))

static const char *overview_word(const struct tess__report_run *run, int word)
{
    return *(const char *const *)((const char *)run + overview_words[word].offset);
}

/* The one word that all runs have in common, which is shown once instead of in every row. A run
 * that lacks one may have been cut short; but for the mesh, which only products have. */
static const char *overview_common(const struct tess__report *report, int word)
{
    const char *common = NULL;
    for (size_t i = 0; i < report->run_count && report->run_count > 1; i++) {
        const char *text = overview_word(&report->run[i], word);
        if ((text && common && strcmp(text, common) != 0) ||
            (!text && overview_words[word].offset == OVERVIEW_FIELD(mesh)))
            return NULL;
        common = text ? text : common;
    }
    return common;
}

/* Does a word have a column of its own? Not one that no run has, either. */
static bool overview_has(const struct tess__report *report, int word)
{
    if (overview_common(report, word))
        return false;
    for (size_t i = 0; i < report->run_count; i++)
        if (overview_word(&report->run[i], word))
            return true;
    return overview_words[word].offset != OVERVIEW_FIELD(mesh);
}

static void overview_print_common(const struct tess__report *report, struct tess__html *html)
{
    const char *before = "<p>All runs: ";
    for (int w = 0; w < OVERVIEW_WORDS; w++)
        if (overview_common(report, w)) {
            tess__html_print(html, "%s%s <b>", before, overview_words[w].title);
            tess__html_put_short(html, "", overview_common(report, w), 40, "</b>");
            before = ", ";
        }
    tess__html_add(html, before[0] == ',' ? ".</p>\n" : "");
}

static const char *overview_title(const struct tess__report *report, int column)
{
    const char *title = overview_columns[column].title;
    return title ? title : report->words.rate;
}

static void overview_number(const struct overview_column *column, const char *title, double value,
                            bool best, struct tess__html *html)
{
    char text[TESS__REAL_BYTES], time[TESS__TEXT_BYTES];
    const char *shown = column->decimals >= 0 ? tess__real_fixed(value, column->decimals, text)
                                              : tess__real(value, text);
    if (column->decimals == OVERVIEW_TIME && !isnan(value) && value < 1e9)
        shown = tess__text_time(value, time);
    if (column->decimals == OVERVIEW_SHORT && !isnan(value)) {
        snprintf(time, sizeof(time), "%.4g", value);
        shown = time;
    }
    tess__html_print(html, "<td data-of=\"%s\"%s>%s</td>", title, best ? " class=\"best\"" : "",
                     shown);
}

static void overview_row(const struct tess__report *report, size_t i, int style,
                         const double best[OVERVIEW_COLUMNS], const size_t filled[OVERVIEW_COLUMNS],
                         struct tess__html *html)
{
    const struct tess__report_run *run = &report->run[i];
    tess__html_put(html, "<tr><th scope=\"row\"><span class=\"name\" title=\"", run->path, "\">");
    if (!run->compared)
        tess__figure_swatch(html, style, TESS__CURVE_BOTH);
    tess__html_put_short(html, "", run->name, TESS__PLOT_NAME_MAX, "</span>");
    if (run->goal)
        tess__html_put_short(html, "<small>", run->goal, 100, "</small>");
    if (run->hash)
        tess__html_put_short(html, "<small class=\"hash\">hash <code>", run->hash, 20,
                             "</code></small>");
    tess__html_add(html, "</th>");
    overview_state(run, html);
    for (int w = 0; w < OVERVIEW_WORDS; w++)
        if (overview_has(report, w)) {
            tess__html_print(html, "<td class=\"text\" data-of=\"%s\">", overview_words[w].title);
            tess__html_put_short(html, "", overview_word(run, w), 40, "</td>");
        }
    for (int c = 0; c < OVERVIEW_COLUMNS; c++) {
        double value = overview_value(&overview_columns[c], run);
        if (filled[c] > 0)
            overview_number(&overview_columns[c], overview_title(report, c), value,
                            overview_columns[c].best != OVERVIEW_NONE && filled[c] > 1 &&
                                tess__report_state(run) != TESS__REPORT_FAILED && value == best[c],
                            html);
    }
    tess__html_add(html, "</tr>\n");
}

/* Sentences about runs that ended with the same bits. */
static void overview_hashes(const struct tess__report *report, struct tess__html *html)
{
    for (size_t i = 0; i < report->run_count; i++) {
        const char *hash = report->run[i].hash;
        size_t before = 0, after = 0;
        for (size_t j = 0; hash && j < report->run_count; j++)
            if (tess__report_same(hash, report->run[j].hash)) {
                before += j < i;
                after += j > i;
            }
        if (before > 0 || after == 0)
            continue;
        tess__html_print(html, "<p class=\"same\"><b>Same bits:</b> %zu runs end with hash <code>",
                         after + 1);
        tess__html_put_short(html, "", hash, 20, "</code>: ");
        for (size_t j = i; j < report->run_count; j++)
            if (tess__report_same(hash, report->run[j].hash)) {
                tess__html_add(html, j > i ? ", " : "");
                tess__html_escape_short(html, report->run[j].name, TESS__PLOT_NAME_MAX);
            }
        tess__html_add(html, ".</p>\n");
    }
}

void tess__report_overview(struct tess__report *report, struct tess__html *html)
{
    double best[OVERVIEW_COLUMNS];
    size_t filled[OVERVIEW_COLUMNS];
    int style = 0;
    if (report->run_count == 0)
        return;
    tess__html_add(html, "<div class=\"card\">");
    overview_print_common(report, html);
    tess__html_add(html, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" "
                         "aria-label=\"overview of the runs\"><table class=\"overview\"><thead><tr>"
                         "<th scope=\"col\" class=\"text\">run</th>"
                         "<th scope=\"col\" class=\"text\">state</th>");
    for (int w = 0; w < OVERVIEW_WORDS; w++)
        if (overview_has(report, w))
            tess__html_print(html, "<th scope=\"col\" class=\"text\">%s</th>",
                             overview_words[w].title);
    for (int c = 0; c < OVERVIEW_COLUMNS; c++) {
        best[c] = overview_best(report, &overview_columns[c], &filled[c]);
        if (filled[c] > 0)
            tess__html_print(html, "<th scope=\"col\">%s</th>", overview_title(report, c));
    }
    tess__html_add(html, "</tr></thead>\n<tbody>\n");
    for (size_t i = 0; i < report->run_count; i++) {
        overview_row(report, i, style, best, filled, html);
        style += !report->run[i].compared;
    }
    tess__html_add(html, "</tbody></table></div>\n");
    overview_hashes(report, html);
    tess__html_add(html, "</div>\n");
}
