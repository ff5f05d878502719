/*
 * Figures: title, caption, legend, drawings, text alternative and the table of numbers behind a
 * picture. The drawings are report_plot.c's; what is shown, and why, is the sections'.
 */
#include "report/report_figure.h"

#include <math.h>
#include <string.h>

/* A longer table is not readable. */
#define FIGURE_ROWS_MAX 40
/* The text alternative describes at most so many curves or bars. */
#define FIGURE_DESCRIBED_MAX 6
/* More bars than this get the page's width: beside them another picture would leave a hole. */
#define FIGURE_BARS_BESIDE 16

/* ---- legend ---------------------------------------------------------------------------------- */

void tess__figure_markers(struct tess__html *html)
{
    tess__html_add(
        html,
        "<svg class=\"markers\" aria-hidden=\"true\" width=\"0\" height=\"0\"><defs>\n"
        "<g id=\"m6\"><circle r=\"1\" fill=\"currentColor\" stroke=\"none\"/></g>\n"
        "<g id=\"m4\"><path d=\"M-.9-.9H.9V.9H-.9z\" fill=\"currentColor\" stroke=\"none\"/></g>\n"
        "<g id=\"m8\"><path d=\"M0-1.3-1.2.8H1.2z\" fill=\"currentColor\" stroke=\"none\"/></g>\n"
        "<g id=\"m12\"><path d=\"M0-1.3 1.3 0 0 1.3-1.3 0z\" fill=\"currentColor\" "
        "stroke=\"none\"/></g>\n"
        "<g id=\"m5\" stroke=\"currentColor\" stroke-width=\".4\"><circle r=\"1\" "
        "fill=\"var(--card)\"/></g>\n"
        "<g id=\"m3\" stroke=\"currentColor\" stroke-width=\".4\"><path d=\"M-.9-.9H.9V.9H-.9z\" "
        "fill=\"var(--card)\"/></g>\n"
        "<g id=\"m7\" stroke=\"currentColor\" stroke-width=\".4\"><path "
        "d=\"M0-1.3-1.2.8H1.2z\" fill=\"var(--card)\"/></g>\n"
        "<g id=\"m11\" stroke=\"currentColor\" stroke-width=\".4\"><path "
        "d=\"M0-1.3 1.3 0 0 1.3-1.3 0z\" fill=\"var(--card)\"/></g>\n"
        "</defs></svg>\n");
}

void tess__figure_swatch(struct tess__html *html, int style, enum tess__curve_look look)
{
    int colour = style % TESS__PLOT_COLOURS;
    tess__html_print(html,
                     "<svg class=\"swatch\" viewBox=\"0 0 34 12\" width=\"34\" height=\"12\" "
                     "aria-hidden=\"true\" color=\"var(--s%d)\">",
                     colour);
    if (look != TESS__CURVE_MARKS)
        tess__html_print(html,
                         "<path d=\"M1 6H33\" stroke=\"var(--s%d)\" stroke-width=\"2.4\" "
                         "stroke-dasharray=\"%s\"/>",
                         colour, tess__plot_dash(style));
    if (look != TESS__CURVE_LINE)
        tess__html_print(html, "<use href=\"#m%d\" transform=\"translate(17,6) scale(4)\"/>",
                         tess__plot_marker(style));
    tess__html_add(html, "</svg>");
}

static void figure_legend_lines(const struct tess__lines *lines, struct tess__html *html)
{
    tess__html_add(html, "<ul class=\"legend\">");
    for (int c = 0; c < lines->curve_count; c++) {
        tess__html_print(html, "<li class=\"k%d\">", c);
        tess__figure_swatch(html, lines->curve[c].style, lines->curve[c].look);
        tess__html_put_short(html, "<span>", lines->curve[c].name, TESS__PLOT_NAME_MAX,
                             "</span></li>");
    }
    tess__html_add(html, "</ul>\n");
}

static void figure_legend_item(struct tess__html *html, int series, const char *name)
{
    tess__html_print(html,
                     "<li class=\"k%d\"><svg class=\"swatch\" viewBox=\"0 0 14 12\" width=\"14\" "
                     "height=\"12\" aria-hidden=\"true\"><rect width=\"14\" height=\"12\" rx=\"3\" "
                     "fill=\"var(--s%d)\" stroke=\"none\"/></svg><span>",
                     series, series);
    tess__html_put(html, "", name, "</span></li>");
}

static const char *figure_kind_name(const struct tess__bars *bars, int kind)
{
    return bars->name[tess__plot_series(bars, kind)];
}

static bool figure_kind_used(const struct tess__bars *bars, int kind)
{
    for (int r = 0; r < bars->row_count; r++)
        if (bars->value[r * bars->kind_count + kind] > 0)
            return true;
    return false;
}

static void figure_legend_bars(const struct tess__bars *bars, struct tess__html *html)
{
    if (bars->kind_count == 1 && !bars->beside_name)
        return;
    tess__html_add(html, "<ul class=\"legend\">");
    for (int k = 0; k < bars->kind_count; k++)
        if (figure_kind_used(bars, k))
            figure_legend_item(html, tess__plot_series(bars, k), figure_kind_name(bars, k));
    if (bars->beside_name)
        figure_legend_item(html, bars->beside_series, bars->beside_name);
    tess__html_add(html, "</ul>\n");
}

/* ---- text alternatives ----------------------------------------------------------------------- */

/* The first or the last number of a curve that is one. */
static double figure_end(const struct tess__curve *curve, bool last)
{
    for (size_t i = 0; i < curve->count; i++) {
        double value = curve->y[last ? curve->count - 1 - i : i];
        if (!isnan(value))
            return value;
    }
    return NAN;
}

static void figure_describe_lines(const struct tess__figure *figure,
                                  const struct tess__lines *lines, struct tess__html *text)
{
    char first[TESS__REAL_BYTES], last[TESS__REAL_BYTES];
    tess__html_escape(text, figure->title);
    tess__html_put(text, ": line chart of ", lines->y.title, " against ");
    tess__html_put(text, "", lines->x.title, ". ");
    for (int c = 0; c < lines->curve_count && c < FIGURE_DESCRIBED_MAX; c++) {
        tess__html_escape_short(text, lines->curve[c].name, TESS__PLOT_NAME_MAX);
        tess__html_print(text, ": from %s to %s. ",
                         tess__real(figure_end(&lines->curve[c], false), first),
                         tess__real(figure_end(&lines->curve[c], true), last));
    }
    if (lines->curve_count > FIGURE_DESCRIBED_MAX)
        tess__html_print(text, "And %d more. ", lines->curve_count - FIGURE_DESCRIBED_MAX);
    tess__html_add(text, "The numbers are in the table below.");
}

static void figure_describe_bars(const struct tess__figure *figure, const struct tess__bars *bars,
                                 struct tess__html *text)
{
    char total[TESS__REAL_BYTES];
    tess__html_escape(text, figure->title);
    tess__html_put(text, ": bar chart of ", bars->title, ". ");
    for (int r = 0; r < bars->row_count && r < FIGURE_DESCRIBED_MAX; r++) {
        tess__html_escape_short(text, bars->row[r], 60);
        tess__html_print(text, ": %s. ", tess__real(tess__plot_total(bars, r), total));
    }
    if (bars->row_count > FIGURE_DESCRIBED_MAX)
        tess__html_print(text, "And %d more. ", bars->row_count - FIGURE_DESCRIBED_MAX);
    tess__html_add(text, "The numbers are in the table below.");
}

/* ---- tables ---------------------------------------------------------------------------------- */

void tess__figure_cell(struct tess__html *html, double value)
{
    char text[TESS__REAL_BYTES];
    tess__html_print(html, "<td>%s</td>", tess__real(value, text));
}

static void figure_numbers_begin(struct tess__html *html)
{
    tess__html_add(html, "<details class=\"numbers\"><summary>Numbers</summary>\n"
                         "<div class=\"scroll\" tabindex=\"0\" role=\"region\" "
                         "aria-label=\"numbers of this picture\">");
}

static void figure_head(struct tess__html *html, const char *text, bool number)
{
    tess__html_print(html, "<th scope=\"col\"%s>", number ? "" : " class=\"text\"");
    tess__html_put_short(html, "", text, 40, "</th>");
}

void tess__figure_heads(struct tess__html *html, const char *const *head, int count,
                        int first_number, int end_number)
{
    tess__html_add(html, "<table>\n<thead><tr>");
    for (int i = 0; i < count; i++)
        figure_head(html, head[i], i >= first_number && i < end_number);
    tess__html_add(html, "</tr></thead>\n<tbody>\n");
}

/* Row `i` of at most FIGURE_ROWS_MAX out of `count`, the first and the last among them. */
static size_t figure_pick(size_t i, size_t shown, size_t count)
{
    return shown > 1 ? i * (count - 1) / (shown - 1) : 0;
}

static bool figure_share_x(const struct tess__lines *lines)
{
    const struct tess__curve *first = &lines->curve[0];
    for (int c = 1; c < lines->curve_count; c++)
        if (lines->curve[c].count != first->count ||
            memcmp(lines->curve[c].x, first->x, first->count * sizeof(*first->x)) != 0)
            return false;
    return true;
}

/* One column of x, one column for each curve. */
static void figure_table_shared(const struct tess__lines *lines, struct tess__html *html)
{
    size_t count = lines->curve[0].count;
    size_t shown = count < FIGURE_ROWS_MAX ? count : FIGURE_ROWS_MAX;
    const char *head[1 + TESS__PLOT_CURVES_MAX] = {lines->x.title};
    for (int c = 0; c < lines->curve_count; c++)
        head[1 + c] = lines->curve[c].name;
    tess__figure_heads(html, head, 1 + lines->curve_count, 0, 1 + lines->curve_count);
    for (size_t i = 0; i < shown; i++) {
        size_t row = figure_pick(i, shown, count);
        tess__html_add(html, "<tr>");
        tess__figure_cell(html, lines->curve[0].x[row]);
        for (int c = 0; c < lines->curve_count; c++)
            tess__figure_cell(html, lines->curve[c].y[row]);
        tess__html_add(html, "</tr>\n");
    }
}

/* Curves with steps of their own follow one another. */
static void figure_table_apart(const struct tess__lines *lines, struct tess__html *html)
{
    size_t most = FIGURE_ROWS_MAX * 3 / 2 / (size_t)lines->curve_count + 3;
    const char *const head[] = {"curve", lines->x.title, lines->y.title};
    tess__figure_heads(html, head, 3, 1, 3);
    for (int c = 0; c < lines->curve_count; c++) {
        const struct tess__curve *curve = &lines->curve[c];
        size_t shown = curve->count < most ? curve->count : most;
        for (size_t i = 0; i < shown; i++) {
            size_t row = figure_pick(i, shown, curve->count);
            tess__html_put_short(html, "<tr><th scope=\"row\">", curve->name, TESS__PLOT_NAME_MAX,
                                 "</th>");
            tess__figure_cell(html, curve->x[row]);
            tess__figure_cell(html, curve->y[row]);
            tess__html_add(html, "</tr>\n");
        }
    }
}

static void figure_table_lines(const struct tess__lines *lines, struct tess__html *html)
{
    bool thinned = false;
    for (int c = 0; c < lines->curve_count; c++)
        thinned = thinned || lines->curve[c].count > 13;
    figure_numbers_begin(html);
    if (figure_share_x(lines))
        figure_table_shared(lines, html);
    else
        figure_table_apart(lines, html);
    tess__html_add(html, "</tbody></table></div>");
    if (thinned)
        tess__html_add(html, "<p class=\"small\">Long curves are shown in even steps, with their "
                             "first and last point.</p>");
    tess__html_add(html, "</details>\n");
}

static void figure_table_bars(const struct tess__bars *bars, struct tess__html *html)
{
    const char *head[TESS__PLOT_KINDS_MAX + 3] = {bars->title};
    int heads = 1;
    for (int k = 0; k < bars->kind_count; k++)
        head[heads++] = figure_kind_name(bars, k);
    if (bars->kind_count > 1)
        head[heads++] = "total";
    if (bars->beside_name)
        head[heads++] = bars->beside_name;
    figure_numbers_begin(html);
    tess__figure_heads(html, head, heads, 1, heads);
    for (int r = 0; r < bars->row_count; r++) {
        tess__html_put(html, "<tr><th scope=\"row\">", bars->row[r], "</th>");
        for (int k = 0; k < bars->kind_count; k++)
            tess__figure_cell(html, bars->value[r * bars->kind_count + k]);
        if (bars->kind_count > 1)
            tess__figure_cell(html, tess__plot_total(bars, r));
        if (bars->beside_name)
            tess__figure_cell(html, bars->beside_value[r]);
        tess__html_add(html, "</tr>\n");
    }
    tess__html_add(html, "</tbody></table></div></details>\n");
}

/* ---- figures --------------------------------------------------------------------------------- */

static void figure_begin(const struct tess__figure *figure, bool tall, struct tess__html *html)
{
    tess__html_print(html, "<figure%s>\n", tall ? " class=\"tall\"" : "");
    tess__html_put(html, "<figcaption><h3>", figure->title, "</h3><p>");
    tess__html_put(html, "", figure->caption, "</p></figcaption>\n");
}

void tess__figure_lines(const struct tess__figure *figure, const struct tess__lines *lines,
                        struct tess__html *html)
{
    struct tess__html alternative = {0};
    if (tess__plot_lines_empty(lines))
        return;
    figure_begin(figure, false, html);
    figure_legend_lines(lines, html);
    figure_describe_lines(figure, lines, &alternative);
    tess__html_add(html, "<div class=\"plot\">\n");
    tess__plot_lines(lines, &alternative, html);
    tess__html_add(html, "</div>\n");
    figure_table_lines(lines, html);
    tess__html_add(html, "</figure>\n");
    tess__html_close(&alternative);
}

void tess__figure_bars(const struct tess__figure *figure, const struct tess__bars *bars,
                       struct tess__html *html)
{
    struct tess__html alternative = {0};
    figure_begin(figure, bars->row_count > FIGURE_BARS_BESIDE, html);
    figure_legend_bars(bars, html);
    figure_describe_bars(figure, bars, &alternative);
    tess__html_add(html, "<div class=\"plot bars\">\n");
    tess__plot_bars(bars, &alternative, html);
    tess__html_add(html, "</div>\n");
    figure_table_bars(bars, html);
    tess__html_add(html, "</figure>\n");
    tess__html_close(&alternative);
}

void tess__figure_drawn(const struct tess__figure *figure, const char *const *kind,
                        const bool *shown, int kind_count, const struct tess__html *drawings,
                        const struct tess__html *numbers, struct tess__html *html)
{
    figure_begin(figure, true, html);
    tess__html_add(html, "<ul class=\"legend\">");
    for (int k = 0; k < kind_count; k++)
        if (shown[k])
            figure_legend_item(html, k, kind[k]);
    tess__html_add(html, "</ul>\n<div class=\"plot bars line\" tabindex=\"0\" role=\"region\" "
                         "aria-label=\"time line\">\n");
    tess__html_append(html, drawings);
    tess__html_add(html, "</div>\n");
    figure_numbers_begin(html);
    tess__html_append(html, numbers);
    tess__html_add(html, "</div></details>\n</figure>\n");
}
