/* One step of a recording: what to see in its picture, in words and tables. Drawing is
 * report_spans.c's, reading the file report_timeline_read.c's. */
#include "report/report_section.h"

#include "text/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TIMELINE_ROWS_MAX    240
#define TIMELINE_NAMED_RANKS 2
#define TIMELINE_NAMED_NAMES 3

const char *const tess__work_name[TESS__WORK_COUNT] = {
    [TESS__WORK_FORWARD] = "forward",
    [TESS__WORK_BACKWARD] = "backward",
    [TESS__WORK_GRADIENTS] = "finishing the gradients",
    [TESS__WORK_OPTIMIZER] = "optimizer",
    [TESS__WORK_LOADING] = "data loading",
    [TESS__WORK_COMPUTE] = "compute",
    [TESS__WORK_WAITING] = "exposed communication",
    [TESS__WORK_CALL] = "communication",
    [TESS__WORK_OTHER] = "other",
    [TESS__WORK_LOSS] = "loss",
};
_Static_assert(TESS__WORK_COUNT <= TESS__PLOT_KINDS_MAX, "a colour for each kind of work");

/* ---- sums ------------------------------------------------------------------------------------ */

enum timeline_sum { SUM_CALL, SUM_WAIT, SUM_COMPUTE, SUM_COUNT };

/* A moment at which one more, or one less, is under way. */
struct timeline_edge {
    double at;
    enum timeline_sum of;
    int change;
};

static int timeline_by_time(const void *a, const void *b)
{
    const struct timeline_edge *left = a, *right = b;
    return (left->at > right->at) - (left->at < right->at);
}

struct tess__lane_sums tess__report_lane_sums(struct tess__report *report,
                                              const struct tess__report_lane *lane)
{
    struct timeline_edge *edge =
        tess__report_alloc(report, 2 * lane->span_count + 1, sizeof(*edge));
    struct tess__lane_sums sums = {.backward_end = NAN};
    int under_way[SUM_COUNT] = {0};
    size_t count = 0;
    for (size_t i = 0; i < lane->span_count; i++) {
        const struct tess__report_span *span = &lane->span[i];
        enum timeline_sum of = span->work == TESS__WORK_CALL      ? SUM_CALL
                               : span->work == TESS__WORK_WAITING ? SUM_WAIT
                                                                  : SUM_COMPUTE;
        edge[count++] = (struct timeline_edge){span->begin, of, 1};
        edge[count++] = (struct timeline_edge){span->end, of, -1};
        if (span->work == TESS__WORK_BACKWARD)
            sums.backward_end = fmax(sums.backward_end, span->end);
    }
    qsort(edge, count, sizeof(*edge), timeline_by_time);
    for (size_t i = 0; i + 1 < count; i++) {
        double time = edge[i + 1].at - edge[i].at;
        under_way[edge[i].of] += edge[i].change;
        if (under_way[SUM_CALL] > 0)
            sums.calls += time;
        if (under_way[SUM_WAIT] > 0)
            sums.waiting += time;
        else if (under_way[SUM_CALL] > 0 && under_way[SUM_COMPUTE] > 0)
            sums.hidden += time;
    }
    return sums;
}

/* ---- the caption ----------------------------------------------------------------------------- */

/* How many calls of one name there are; begun, and complete, before backward ends. */
struct timeline_calls {
    const char *name;
    size_t count, early, complete;
};

static size_t timeline_count_calls(const struct tess__report_lane *lane, double backward_end,
                                   struct timeline_calls calls[TIMELINE_NAMED_NAMES + 1])
{
    size_t names = 0;
    for (size_t i = 0; i < lane->span_count; i++) {
        const struct tess__report_span *span = &lane->span[i];
        size_t n = 0;
        if (span->work != TESS__WORK_CALL)
            continue;
        while (n < names && (n == TIMELINE_NAMED_NAMES || strcmp(calls[n].name, span->name) != 0))
            n++;
        /* The last place is for all other names together. */
        n = n > TIMELINE_NAMED_NAMES ? TIMELINE_NAMED_NAMES : n;
        if (n == names)
            calls[names++] =
                (struct timeline_calls){n == TIMELINE_NAMED_NAMES ? "other" : span->name, 0, 0, 0};
        calls[n].count++;
        calls[n].early += span->begin < backward_end;
        calls[n].complete += span->end <= backward_end && !span->unfinished;
    }
    return names;
}

/* Three digits of the step's length, so that numbers of one caption compare. */
static const char *timeline_ms(const struct tess__report_timeline *timeline, double value,
                               char text[TESS__REAL_BYTES])
{
    double length = timeline->length;
    return length < 0.1 ? tess__real(value, text)
                        : tess__real_fixed(value,
                                           length < 1     ? 3
                                           : length < 10  ? 2
                                           : length < 100 ? 1
                                                          : 0,
                                           text);
}

static void timeline_describe_lane(struct tess__html *text,
                                   const struct tess__report_timeline *timeline,
                                   const struct tess__report_lane *lane,
                                   const struct tess__lane_sums *sums)
{
    struct timeline_calls calls[TIMELINE_NAMED_NAMES + 1];
    size_t names = timeline_count_calls(lane, sums->backward_end, calls), complete = 0;
    char hidden[TESS__REAL_BYTES], total[TESS__REAL_BYTES], waiting[TESS__REAL_BYTES];
    tess__html_print(text, " Rank %.0f: ", lane->rank);
    if (names == 0) {
        tess__html_add(text, "no communication.");
        return;
    }
    if (!isnan(sums->backward_end)) {
        tess__html_add(text, "before its backward pass ends, ");
        for (size_t n = 0; n < names; n++) {
            tess__html_print(text, "%s%zu of %zu %.40s",
                             n == 0          ? ""
                             : n + 1 < names ? ", "
                                             : " and ",
                             calls[n].early, calls[n].count, calls[n].name);
            complete += calls[n].complete;
        }
        tess__html_print(text, " calls have begun and %zu %s complete; ", complete,
                         complete == 1 ? "is" : "are");
    }
    tess__html_print(text,
                     "%s of %s ms of communication go on behind computation, and it waits "
                     "%s ms.",
                     timeline_ms(timeline, sums->hidden, hidden),
                     timeline_ms(timeline, sums->calls, total),
                     timeline_ms(timeline, sums->waiting, waiting));
}

static void timeline_caption(const struct tess__report_timeline *timeline,
                             const struct tess__lane_sums *sums, struct tess__html *text)
{
    char length[TESS__REAL_BYTES];
    int described =
        timeline->lane_count < TIMELINE_NAMED_RANKS ? timeline->lane_count : TIMELINE_NAMED_RANKS;
    int longest = 0;
    tess__html_print(text, "%.80s", timeline->model ? timeline->model : "A model");
    if (timeline->strategy)
        tess__html_print(text, " with %.80s", timeline->strategy);
    /* A plan's file has one rank of each stage, of however many. */
    tess__html_print(
        text, timeline->predicted ? "; %zu rank%s shown, one of each stage. " : " on %zu rank%s. ",
        timeline->rank_count, timeline->rank_count == 1 ? "" : "s");
    tess__html_print(text, "Step %.0f", timeline->step);
    if (timeline->predicted)
        tess__html_add(text, " as the plan predicts it");
    else if (timeline->unfinished)
        tess__html_add(text, "; the recording holds no step that ended");
    else if (timeline->step_count == 1)
        tess__html_add(text, ", the only one recorded");
    else
        tess__html_print(text, ", the one of median length among %zu recorded",
                         timeline->step_count);
    tess__html_print(text, ": %s ms.", timeline_ms(timeline, timeline->length, length));
    if (timeline->rank_count > (size_t)timeline->lane_count)
        tess__html_print(text, " Drawn are the first %d ranks.", timeline->lane_count);
    tess__html_add(
        text, " High bars are what a rank does, grey where it waits for others; low "
              "bars are its calls, from being queued to being complete. The dotted line is the end "
              "of its backward pass.");
    for (int l = 0; l < described; l++)
        timeline_describe_lane(text, timeline, &timeline->lane[l], &sums[l]);
    for (int l = 1; l < timeline->lane_count; l++)
        longest = sums[l].waiting > sums[longest].waiting ? l : longest;
    if (longest >= described)
        tess__html_print(text, " Rank %.0f waits longest: %s ms.", timeline->lane[longest].rank,
                         timeline_ms(timeline, sums[longest].waiting, length));
}

/* ---- the tables ------------------------------------------------------------------------------ */

static void timeline_table_ranks(const struct tess__report_timeline *timeline,
                                 const struct tess__lane_sums *sums, struct tess__html *html)
{
    static const char *const head[] = {"rank",        "step [ms]",    "communication [ms]",
                                       "hidden [ms]", "exposed [ms]", "end of backward [ms]"};
    tess__figure_heads(html, head, sizeof(head) / sizeof(head[0]), 1, 6);
    for (int l = 0; l < timeline->lane_count; l++) {
        const struct tess__report_lane *lane = &timeline->lane[l];
        const double cell[] = {lane->end - lane->begin, sums[l].calls, sums[l].hidden,
                               sums[l].waiting, sums[l].backward_end};
        tess__html_print(html, "<tr><th scope=\"row\">%.0f</th>", lane->rank);
        for (size_t i = 0; i < sizeof(cell) / sizeof(cell[0]); i++)
            tess__figure_cell(html, cell[i]);
        tess__html_add(html, "</tr>\n");
    }
    tess__html_add(html, "</tbody></table>\n");
}

static int timeline_longer(const void *a, const void *b)
{
    const double *left = a, *right = b;
    return (*left < *right) - (*left > *right);
}

/* The length from which on a lane's spans are in the table, so that at most `rows` are. */
static double timeline_least(struct tess__report *report, const struct tess__report_lane *lane,
                             size_t rows)
{
    double *length;
    if (lane->span_count <= rows)
        return 0;
    length = tess__report_alloc(report, lane->span_count, sizeof(*length));
    for (size_t i = 0; i < lane->span_count; i++)
        length[i] = lane->span[i].end - lane->span[i].begin;
    qsort(length, lane->span_count, sizeof(*length), timeline_longer);
    return length[rows - 1];
}

static void timeline_row(const struct tess__report_lane *lane, const struct tess__report_span *span,
                         struct tess__html *html)
{
    char bytes[TESS__TEXT_BYTES];
    tess__html_print(html, "<tr><th scope=\"row\">%.0f</th><td class=\"text\">%s</td>", lane->rank,
                     tess__work_name[span->work]);
    tess__html_add(html, "<td class=\"text\">");
    tess__html_escape_short(html, span->name, 60);
    if (span->unfinished)
        tess__html_add(html, " (not finished)");
    tess__html_add(html, "</td>");
    tess__figure_cell(html, span->begin);
    tess__figure_cell(html, span->end);
    tess__figure_cell(html, span->end - span->begin);
    tess__html_print(html, "<td>%s</td><td class=\"text\">",
                     isnan(span->bytes) ? "\xE2\x80\x93" : tess__text_bytes(span->bytes, bytes));
    tess__html_put_short(html, "", span->site, 40, "</td></tr>\n");
}

static void timeline_table_spans(struct tess__report *report,
                                 const struct tess__report_timeline *timeline,
                                 struct tess__html *html)
{
    static const char *const head[] = {"rank",     "kind",        "what", "begin [ms]",
                                       "end [ms]", "length [ms]", "size", "called at"};
    size_t most = TIMELINE_ROWS_MAX / (size_t)timeline->lane_count;
    bool thinned = false;
    tess__figure_heads(html, head, sizeof(head) / sizeof(head[0]), 3, 7);
    for (int l = 0; l < timeline->lane_count; l++) {
        const struct tess__report_lane *lane = &timeline->lane[l];
        double least = timeline_least(report, lane, most);
        size_t rows = 0;
        thinned = thinned || lane->span_count > most;
        for (size_t i = 0; i < lane->span_count && rows < most; i++)
            if (lane->span[i].end - lane->span[i].begin >= least) {
                timeline_row(lane, &lane->span[i], html);
                rows++;
            }
    }
    tess__html_add(html, "</tbody></table>\n");
    if (thinned)
        tess__html_print(html, "<p class=\"small\">The %zu longest of each rank.</p>\n", most);
}

/* ---- the figure ------------------------------------------------------------------------------ */

static void timeline_figure(struct tess__report *report, struct tess__report_timeline *timeline,
                            struct tess__html *html)
{
    struct tess__lane_sums sums[TESS__TIMELINE_RANKS];
    struct tess__html caption = {0}, alternative = {0}, drawings = {0}, numbers = {0};
    bool shown[TESS__WORK_COUNT] = {false};
    const char *file = strrchr(timeline->path, '/');
    for (int l = 0; l < timeline->lane_count; l++) {
        const struct tess__report_lane *lane = &timeline->lane[l];
        sums[l] = tess__report_lane_sums(report, lane);
        for (size_t i = 0; i < lane->span_count; i++)
            shown[lane->span[i].work] = true;
    }
    const char *title = tess__report_text(report, "Step %.0f of %.255s", timeline->step,
                                          file && file[1] ? file + 1 : timeline->path);
    timeline_caption(timeline, sums, &caption);
    tess__html_escape(&alternative, title);
    tess__html_put(&alternative, ": time line. ", caption.bytes,
                   " The numbers are in the tables below.");
    tess__report_draw_timeline(timeline, sums, &alternative, &drawings);
    timeline_table_ranks(timeline, sums, &numbers);
    timeline_table_spans(report, timeline, &numbers);
    tess__figure_drawn(&(struct tess__figure){title, caption.bytes}, tess__work_name, shown,
                       TESS__WORK_COUNT, &drawings, &numbers, html);
    html->lost |= caption.lost;
    tess__html_close(&caption);
    tess__html_close(&alternative);
    tess__html_close(&drawings);
    tess__html_close(&numbers);
}

void tess__report_timelines(struct tess__report *report, struct tess__html *html)
{
    for (size_t t = 0; t < report->timeline_count; t++) {
        timeline_figure(report, &report->timeline[t], html);
        tess__report_lives(report, &report->timeline[t], html);
    }
}
