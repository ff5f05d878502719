/*
 * Slow ranks and links: the latest window of steps of every run that recorded any, each rank and
 * link against its like; and what --topology.adapt made of slow ones, with the speed before, until
 * then and afterwards.
 */
#include "report/report_section.h"

#include <math.h>
#include <stdlib.h>

/* Of more ranks or links those are shown that are slow, and whose scores are the worst; all of
 * them are the lines of metrics. */
#define PACE_ROWS_MAX 16

static double pace_number(const json_t *object, const char *key)
{
    const double value = json_number_value(json_object_get(object, key));
    const bool known = json_is_number(json_object_get(object, key)) && value >= 0 && value < 1e100;
    return known ? value : NAN;
}

static void pace_cell(struct tess__html *html, double value)
{
    char text[TESS__REAL_BYTES];
    tess__html_print(html, "<td>%s</td>", tess__real(value, text));
}

static void pace_text(struct tess__html *html, const json_t *object, const char *key)
{
    tess__html_put_short(html, "<td class=\"text\">",
                         json_string_value(json_object_get(object, key)), 40, "</td>");
}

static void pace_rank(struct tess__html *html, const json_t *rank)
{
    static const char *const key[] = {"own_s",     "late_s",  "step_s",  "data_s",
                                      "compute_s", "optim_s", "other_s", "processor_s"};
    char text[TESS__REAL_BYTES];
    tess__html_print(html, "<tr><th scope=\"row\">%s</th>",
                     tess__real_fixed(pace_number(rank, "rank"), 0, text));
    pace_text(html, rank, "host");
    pace_text(html, rank, "late_in");
    pace_cell(html, pace_number(rank, "score"));
    for (size_t i = 0; i < sizeof(key) / sizeof(key[0]); i++)
        pace_cell(html, 1e3 * pace_number(rank, key[i]));
    tess__html_add(html, "</tr>\n");
}

static void pace_link(struct tess__html *html, const json_t *link)
{
    char from[TESS__REAL_BYTES], to[TESS__REAL_BYTES];
    tess__html_print(html, "<tr><th scope=\"row\">%s to %s</th>",
                     tess__real_fixed(pace_number(link, "from"), 0, from),
                     tess__real_fixed(pace_number(link, "to"), 0, to));
    pace_text(html, link, "axis");
    tess__html_print(html, "<td class=\"text\">%s</td>",
                     isnan(pace_number(link, "since")) ? "" : "slow");
    pace_cell(html, pace_number(link, "score"));
    pace_cell(html, 1e-6 * pace_number(link, "bytes_per_s"));
    pace_cell(html, 1e3 * pace_number(link, "late_s"));
    tess__html_add(html, "</tr>\n");
}

static bool pace_is_late(const json_t *object)
{
    return json_is_string(json_object_get(object, "late_in")) ||
           (json_is_number(json_object_get(object, "since")) && json_object_get(object, "to"));
}

/* Worst first: a rank with a high score, a link with a low one; those without a score last. */
static int pace_compare(const void *a, const void *b)
{
    const json_t *left = *(json_t *const *)a, *right = *(json_t *const *)b;
    const double sign = json_object_get(left, "to") ? -1 : 1;
    const double one = sign * pace_number(left, "score"),
                 other = sign * pace_number(right, "score");
    if (pace_is_late(left) != pace_is_late(right))
        return pace_is_late(left) ? -1 : 1;
    if (isnan(one) || isnan(other))
        return isnan(one) - isnan(other);
    return (one < other) - (one > other);
}

/* The rows to show, in order, into row [PACE_ROWS_MAX]; returns how many. */
static size_t pace_choose(const json_t *rows, const json_t *row[PACE_ROWS_MAX])
{
    const size_t count = json_array_size(rows);
    json_t **all = count > PACE_ROWS_MAX ? calloc(count, sizeof(json_t *)) : NULL;
    for (size_t i = 0; i < count && all; i++)
        all[i] = json_array_get(rows, i);
    if (all)
        qsort(all, count, sizeof(json_t *), pace_compare);
    for (size_t i = 0; i < count && i < PACE_ROWS_MAX; i++)
        row[i] = all ? all[i] : json_array_get(rows, i);
    free(all);
    return count < PACE_ROWS_MAX ? count : PACE_ROWS_MAX;
}

static void pace_table(struct tess__html *html, const json_t *rows, const char *const *head,
                       int heads, void (*row)(struct tess__html *html, const json_t *object))
{
    const json_t *chosen[PACE_ROWS_MAX];
    const size_t count = pace_choose(rows, chosen);
    if (count == 0)
        return;
    tess__html_put(html,
                   "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"pace by ",
                   head[0], "\">");
    tess__figure_heads(html, head, heads, 3, heads);
    for (size_t i = 0; i < count; i++)
        row(html, chosen[i]);
    tess__html_add(html, "</tbody></table></div>\n");
    if (count < json_array_size(rows))
        tess__html_print(html, "<p class=\"small\">The worst %d of %zu.</p>\n", PACE_ROWS_MAX,
                         json_array_size(rows));
}

/* What the slow links have in common, where that was found. */
static void pace_network(struct tess__html *html, const json_t *network)
{
    char text[3][TESS__REAL_BYTES];
    if (isnan(pace_number(network, "since")))
        return;
    tess__html_put_short(html, "<p>Slow: ", json_string_value(json_object_get(network, "name")),
                         200, "");
    tess__html_print(html,
                     " since step %s; pairs of ranks send %s MB/s each, where %s are usual.</p>\n",
                     tess__real_fixed(pace_number(network, "since"), 0, text[0]),
                     tess__real(1e-6 * pace_number(network, "bytes_per_s"), text[1]),
                     tess__real(1e-6 * pace_number(network, "usual_bytes_per_s"), text[2]));
}

static int pace_compare_speeds(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* The median speed of the steps after `from`, up to `to`; NaN where none was recorded. */
static double pace_speed(const struct tess__report_run *run, double from, double to)
{
    double *speed = calloc(run->step.count + 1, sizeof(*speed)), median = NAN;
    size_t count = 0;
    for (size_t i = 0; i < run->step.count && speed; i++) {
        const double step = tess__row(&run->step, i, TESS__STEP);
        const double value = tess__row(&run->step, i, TESS__STEP_SPEED);
        if (step > from && step <= to && !isnan(value))
            speed[count++] = value * run->rate_of_row;
    }
    if (count > 0) {
        qsort(speed, count, sizeof(*speed), pace_compare_speeds);
        median = (speed[(count - 1) / 2] + speed[count / 2]) / 2;
    }
    free(speed);
    return median;
}

/* A decision: from the one before it, or the first step, to the next or the last step. */
static void pace_adapt(struct tess__html *html, const struct tess__words *words,
                       const struct tess__report_run *run, size_t at)
{
    const struct tess__report_adapt *adapt = &run->adapt[at];
    const double begin = at > 0 ? adapt[-1].step : 0;
    const double end = at + 1 < run->adapt_count ? adapt[1].step : INFINITY;
    char text[TESS__REAL_BYTES];
    tess__html_print(
        html, "<p>%s after step %s: ", adapt->renumbers ? "Numbered anew" : "Not numbered anew",
        tess__real_fixed(adapt->step, 0, text));
    tess__html_put_short(html, "", adapt->why ? adapt->why : "no reason was recorded", 400, ".");
    const struct {
        double speed;
        const char *when;
    } part[] = {{pace_speed(run, begin, adapt->since - 1), "before"},
                {pace_speed(run, adapt->since - 1, adapt->step), "while it was slow"},
                {pace_speed(run, adapt->step, end), "afterwards"}};
    const char *between = " Median speed: ";
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
        if (isnan(part[i].speed))
            continue;
        tess__html_print(html, "%s%s %s %s", between, tess__real(part[i].speed, text), words->rate,
                         part[i].when);
        between = ", ";
    }
    tess__html_add(html, between[0] == ',' ? ".</p>\n" : "</p>\n");
}

/* The latest window of steps. */
static void pace_window(struct tess__html *html, const json_t *pace)
{
    static const char *const rank[] = {"rank",           "host",       "late in",
                                       "score",          "own [ms]",   "late [ms]",
                                       "step [ms]",      "data [ms]",  "compute [ms]",
                                       "optimizer [ms]", "other [ms]", "wait for core [ms]"};
    static const char *const link[] = {"link", "axis", "", "score", "MB/s", "late [ms]"};
    char text[TESS__REAL_BYTES];
    tess__html_print(html, "<p>Of a step, up to step %s.</p>\n",
                     tess__real_fixed(pace_number(pace, "step"), 0, text));
    pace_network(html, json_object_get(pace, "network"));
    pace_table(html, json_object_get(pace, "ranks"), rank, sizeof(rank) / sizeof(rank[0]),
               pace_rank);
    pace_table(html, json_object_get(pace, "links"), link, sizeof(link) / sizeof(link[0]),
               pace_link);
}

void tess__report_pace(struct tess__report *report, struct tess__html *html)
{
    for (size_t i = 0; i < report->run_count; i++) {
        const struct tess__report_run *run = &report->run[i];
        if (!run->pace && run->adapt_count == 0)
            continue;
        tess__html_put_short(html, "<div class=\"card\"><h3>", run->name, TESS__PLOT_NAME_MAX,
                             "</h3>\n");
        for (size_t a = 0; a < run->adapt_count; a++)
            pace_adapt(html, &report->words, run, a);
        if (run->pace)
            pace_window(html, run->pace);
        tess__html_add(html, "</div>\n");
    }
}
