/*
 * Memory in use over a predicted step, as plan --trace writes it: of the rank whose arena is the
 * fullest, areas by kind, one on the other, below the line of what the arena reserves.
 */
#include "report/report_section.h"

#include "text/text.h"

#include <math.h>
#include <string.h>

#define LIVE_TOP    52
#define LIVE_BOTTOM 54

static const char *live_name(int series)
{
    return series == TESS__LIVE_PASS ? "activation of a pass"
                                     : tess_memory_kind_name((enum tess_memory_kind)series);
}

int tess__report_live_series(const char *name)
{
    int series = 0;
    while (series < TESS__LIVE_SERIES && strcmp(name, live_name(series)) != 0)
        series++;
    return series;
}

static double live_sum(const double bytes[TESS__LIVE_SERIES], int count)
{
    double sum = 0;
    for (int series = 0; series < count; series++)
        sum += bytes[series];
    return sum;
}

/* The rank whose arena reserves the most. */
static const struct tess__report_live *live_fullest(const struct tess__report_timeline *timeline)
{
    const struct tess__report_live *fullest = NULL;
    double most = 0;
    for (size_t i = 0; i < timeline->live_count; i++) {
        const double bytes = live_sum(timeline->live[i].reserved, TESS__LIVE_SERIES);
        if (timeline->live[i].moment_count == 0 || bytes <= most)
            continue;
        most = bytes;
        fullest = &timeline->live[i];
    }
    return fullest;
}

/* One area: its upper edge from left to right, its lower edge back. */
static void live_area(struct tess__plot *plot, const struct tess__report_live *live, double divisor,
                      int series)
{
    tess__html_print(plot->html,
                     "<g class=\"s%d\" fill=\"var(--s%d)\" stroke=\"none\">\n<path d=\"", series,
                     series);
    for (size_t i = 0; i < live->moment_count; i++)
        tess__html_print(
            plot->html, "%s%.2f,%.2fH%.2f", i == 0 ? "M" : "L",
            tess__plot_x(plot, live->moment[i].at),
            tess__plot_y(plot, live_sum(live->moment[i].bytes, series + 1) / divisor),
            tess__plot_x(plot, i + 1 < live->moment_count ? live->moment[i + 1].at : plot->x.to));
    for (size_t i = live->moment_count; i-- > 0;)
        tess__html_print(
            plot->html, "L%.2f,%.2fH%.2f",
            tess__plot_x(plot, i + 1 < live->moment_count ? live->moment[i + 1].at : plot->x.to),
            tess__plot_y(plot, live_sum(live->moment[i].bytes, series) / divisor),
            tess__plot_x(plot, live->moment[i].at));
    tess__html_add(plot->html, "Z\"/></g>\n");
}

static void live_draw(const struct tess__report_live *live, double length, const char *title,
                      double divisor, const bool *shown, const struct tess__html *alternative,
                      struct tess__html *html)
{
    const double reserved = live_sum(live->reserved, TESS__LIVE_SERIES) / divisor;
    for (int narrow = 0; narrow < 2; narrow++) {
        struct tess__plot plot = {.html = html,
                                  .narrow = narrow,
                                  .width = narrow ? 340 : 1080,
                                  .height = narrow ? 280 : 360,
                                  .font = narrow ? 12 : 13,
                                  .left = narrow ? 56 : 120, /* as the time line's */
                                  .top = LIVE_TOP,
                                  .x = {.to = length},
                                  .y = {.to = 1.04 * reserved}};
        plot.right = plot.width - 16;
        plot.bottom = plot.height - LIVE_BOTTOM;
        tess__plot_open(&plot, alternative);
        tess__plot_even_ticks(&plot.y, 6, false);
        tess__plot_y_axis(&plot, title);
        tess__plot_even_ticks(&plot.x, narrow ? 4 : 11, false);
        tess__plot_x_axis(&plot, "time since the step began [ms]", false);
        for (int series = 0; series < TESS__LIVE_SERIES; series++)
            if (shown[series])
                live_area(&plot, live, divisor, series);
        tess__html_print(html,
                         "<path stroke-width=\"1.5\" stroke-dasharray=\"6,4\" "
                         "d=\"M%.2f,%.2fH%.2f\"/>\n",
                         plot.left, tess__plot_y(&plot, reserved), plot.right);
        tess__html_add(html, "</svg>\n");
    }
}

static void live_caption(const struct tess__report_live *live, double rank_count,
                         struct tess__html *text)
{
    char most_text[TESS__TEXT_BYTES], all_text[TESS__TEXT_BYTES], rest_text[TESS__TEXT_BYTES];
    const double reserved = live_sum(live->reserved, TESS__LIVE_SERIES);
    double most = 0, at = 0;
    for (size_t i = 0; i < live->moment_count; i++) {
        const double bytes = live_sum(live->moment[i].bytes, TESS__LIVE_SERIES);
        at = bytes > most ? live->moment[i].at : at;
        most = fmax(most, bytes);
    }
    tess__html_print(text,
                     "Rank %.0f%s. Its arena of %s (the dashed line) is allocated once and stays. "
                     "The areas are what is in use of it: what has a value that will still be "
                     "read. ",
                     live->rank, rank_count > 1 ? ", the fullest" : "",
                     tess__text_bytes(reserved, all_text));
    tess__html_print(text,
                     "That is %s at most, %.1f ms after the step began. The other %s (%.0f %%) are "
                     "in use at other moments: each kind has room for its own most, and buffers "
                     "have room for the largest unit. Activations of a pass are gradients between "
                     "units, scratch, and what recompute makes again.",
                     tess__text_bytes(most, most_text), at,
                     tess__text_bytes(reserved - most, rest_text),
                     100 * (reserved - most) / reserved);
}

/* Of each kind the most in use, and what is reserved: activations of a pass are a part of these. */
static void live_table(const struct tess__report_live *live, const char *unit, double divisor,
                       struct tess__report *report, struct tess__html *html)
{
    const char *const head[] = {"kind", tess__report_text(report, "most in use [%s]", unit),
                                tess__report_text(report, "reserved [%s]", unit)};
    tess__figure_heads(html, head, 3, 1, 3);
    for (int series = 0; series < TESS__LIVE_SERIES; series++) {
        double most = 0;
        for (size_t i = 0; i < live->moment_count; i++)
            most = fmax(most, live->moment[i].bytes[series]);
        if (!(most > 0) && !(live->reserved[series] > 0))
            continue;
        tess__html_print(html, "<tr><th scope=\"row\">%s</th>", live_name(series));
        tess__figure_cell(html, most / divisor);
        if (series == TESS__LIVE_PASS)
            tess__html_add(html, "<td>a part of activation</td>");
        else
            tess__figure_cell(html, live->reserved[series] / divisor);
        tess__html_add(html, "</tr>\n");
    }
    tess__html_add(html, "</tbody></table>\n");
}

void tess__report_lives(struct tess__report *report, const struct tess__report_timeline *timeline,
                        struct tess__html *html)
{
    const struct tess__report_live *live = live_fullest(timeline);
    struct tess__html caption = {0}, alternative = {0}, drawings = {0}, numbers = {0};
    const char *kind[TESS__LIVE_SERIES];
    bool shown[TESS__LIVE_SERIES] = {false};
    double divisor;
    if (live == NULL)
        return;
    for (int series = 0; series < TESS__LIVE_SERIES; series++) {
        kind[series] = live_name(series);
        for (size_t i = 0; i < live->moment_count; i++)
            shown[series] = shown[series] || live->moment[i].bytes[series] > 0;
    }
    const char *unit = tess__text_unit(live_sum(live->reserved, TESS__LIVE_SERIES), &divisor);
    const char *title = tess__report_text(report, "Memory in use over step %.0f", timeline->step);
    live_caption(live, (double)timeline->rank_count, &caption);
    tess__html_escape(&alternative, title);
    tess__html_put(&alternative, ". ", caption.bytes, " The numbers are in the table below.");
    live_draw(live, timeline->length, tess__report_text(report, "memory in use [%s]", unit),
              divisor, shown, &alternative, &drawings);
    live_table(live, unit, divisor, report, &numbers);
    tess__figure_drawn(&(struct tess__figure){title, caption.bytes}, kind, shown, TESS__LIVE_SERIES,
                       &drawings, &numbers, html);
    html->lost |= caption.lost;
    tess__html_close(&caption);
    tess__html_close(&alternative);
    tess__html_close(&drawings);
    tess__html_close(&numbers);
}
