/* What the runs cost: memory of each rank by kind, speed, and where the time of a step goes. */
#include "report/report_section.h"

#include "text/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(TESS_MEMORY_KIND_COUNT <= TESS__PLOT_KINDS_MAX, "a colour for each kind");

/* A bar more; false where there is no room for it. */
static bool cost_has_room(struct tess__bars *bars)
{
    bool room = bars->row_count < TESS__PLOT_BARS_MAX;
    bars->left_out += !room;
    return room;
}

void tess__report_add_times(struct tess__bars *bars, const char *label,
                            const struct tess__rows *rows, size_t row, const int *field, int hidden,
                            int before, double factor)
{
    double end = 0, beside = fmax(0, factor * tess__row(rows, row, hidden));
    if (!cost_has_room(bars))
        return;
    for (int k = 0; k < bars->kind_count; k++) {
        double value = fmax(0, factor * tess__row(rows, row, field[k])); /* NaN is 0 */
        bars->value[bars->row_count * bars->kind_count + k] = value;
        end += k < before ? value : 0;
    }
    bars->row[bars->row_count] = label;
    bars->beside_start[bars->row_count] = fmax(0, end - beside);
    bars->beside_value[bars->row_count++] = beside;
}

/* Nothing without bars; the caption reports what is left out of the picture. */
static void cost_figure(struct tess__report *report, const char *title, const char *caption,
                        const struct tess__bars *bars, struct tess__html *html)
{
    if (bars->left_out > 0)
        caption = tess__report_text(
            report, "%s %zu more bars are not drawn: give the report fewer runs to see them.",
            caption, bars->left_out);
    if (bars->row_count > 0)
        tess__figure_bars(&(struct tess__figure){title, caption}, bars, html);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A run of more ranks is drawn by those that differ. */
#define COST_RANKS_MAX 16

static bool cost_equal(const struct tess__report_run *run, size_t a, size_t b)
{
    return memcmp(run->memory[a].kind, run->memory[b].kind, sizeof(run->memory[0].kind)) == 0;
}

/* The last rank after `first` with the same memory in every kind. */
static size_t cost_group_end(const struct tess__report_run *run, size_t first)
{
    size_t last = first;
    while (last + 1 < run->memory_count &&
           run->memory[last + 1].rank == run->memory[last].rank + 1 &&
           cost_equal(run, first, last + 1))
        last++;
    return last;
}

/* Of many ranks: is there one before with the same memory, which has the bar; and how many have it
 * after the group's? */
static bool cost_is_drawn(const struct tess__report_run *run, size_t first)
{
    for (size_t r = 0; r < first && run->memory_count > COST_RANKS_MAX; r++)
        if (cost_equal(run, r, first))
            return true;
    return false;
}

static size_t cost_count_more(const struct tess__report_run *run, size_t last)
{
    size_t more = 0;
    for (size_t r = last + 1; r < run->memory_count && run->memory_count > COST_RANKS_MAX; r++)
        more += cost_equal(run, last, r);
    return more;
}

/* The run and its ranks. */
static const char *cost_memory_label(struct tess__report *report,
                                     const struct tess__report_run *run, size_t begin, size_t end)
{
    const double first = run->memory[begin].rank, last = run->memory[end].rank;
    const size_t more = cost_count_more(run, end);
    const char *name = run->name;
    if (more > 0)
        return tess__report_text(report, "%s \xC2\xB7 %.0f +%zu", name, first, end - begin + more);
    if (first == last)
        return tess__report_text(report, "%s \xC2\xB7 %.0f", name, first);
    return tess__report_text(report, "%s \xC2\xB7 %.0f\xE2\x80\x93%.0f", name, first, last);
}

static double cost_bytes(const struct tess__report_memory *memory)
{
    double total = 0;
    for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
        total += memory->kind[k];
    return total;
}

double tess__report_fullest(const struct tess__report_run *run)
{
    double most = NAN;
    for (size_t r = 0; r < run->memory_count; r++)
        most = fmax(most, cost_bytes(&run->memory[r]));
    return most;
}

/* What to see: the run whose fullest rank is emptiest, against the fullest. */
static const char *cost_memory_caption(struct tess__report *report)
{
    static const char caption[] =
        "Bytes that each rank holds, by what they are for; ranks with equal memory share a bar. "
        "Shorter bars train larger models on the same machine.";
    const struct tess__report_run *least = NULL, *most = NULL;
    char small[TESS__TEXT_BYTES], large[TESS__TEXT_BYTES];
    for (size_t i = 0; i < report->run_count; i++) {
        const struct tess__report_run *run = &report->run[i];
        double bytes = tess__report_fullest(run);
        if (isnan(bytes))
            continue;
        least = !least || bytes < tess__report_fullest(least) ? run : least;
        most = !most || bytes > tess__report_fullest(most) ? run : most;
    }
    if (!least || tess__report_fullest(least) <= 0 ||
        tess__report_fullest(least) == tess__report_fullest(most))
        return caption;
    return tess__report_text(
        report, "%s The fullest rank of %.80s holds %s, that of %.80s %s: a factor of %.2g.",
        caption, least->name, tess__text_bytes(tess__report_fullest(least), small), most->name,
        tess__text_bytes(tess__report_fullest(most), large),
        tess__report_fullest(most) / tess__report_fullest(least));
}

void tess__report_memories(struct tess__report *report, struct tess__html *html)
{
    enum { KINDS = TESS_MEMORY_KIND_COUNT };
    const char *kind[KINDS];
    struct tess__bars bars = {.name = kind, .kind_count = KINDS, .decimals = 1};
    double most = 0, divisor;
    for (size_t i = 0; i < report->run_count; i++)
        most = fmax(most, tess__report_fullest(&report->run[i]));
    if (most <= 0)
        return;
    bars.title = tess__report_text(report, "memory per rank [%s]", tess__text_unit(most, &divisor));
    for (int k = 0; k < KINDS; k++)
        kind[k] = tess_memory_kind_name((enum tess_memory_kind)k);
    for (size_t i = 0; i < report->run_count; i++) {
        const struct tess__report_run *run = &report->run[i];
        for (size_t first = 0, last; first < run->memory_count; first = last + 1) {
            last = cost_group_end(run, first);
            if (cost_is_drawn(run, first) || !cost_has_room(&bars))
                continue;
            bars.row[bars.row_count] = cost_memory_label(report, run, first, last);
            for (int k = 0; k < KINDS; k++)
                bars.value[bars.row_count * KINDS + k] = run->memory[first].kind[k] / divisor;
            bars.row_count++;
        }
    }
    cost_figure(report, "Memory per rank", cost_memory_caption(report), &bars, html);
}

/* ---- waiting ----------------------------------------------------------------------------------
 */

/* The caption, and what waiting means in runs whose ranks take turns on the cores. */
static const char *cost_waiting(struct tess__report *report, const char *caption)
{
    const struct tess__report_run *first = NULL;
    size_t count = 0;
    for (size_t i = 0; i < report->run_count; i++)
        if (report->run[i].shares_cores && count++ == 0)
            first = &report->run[i];
    if (count == 0)
        return caption;
    const char *who = "These runs have";
    if (count == 1)
        who = tess__report_text(report, "%.80s has", first->name);
    else if (count < report->run_count)
        who = tess__report_text(report, "%zu of these runs (the first is %.80s) have", count,
                                first->name);
    return tess__report_text(
        report,
        "%s %s more ranks than the machine has cores: ranks take turns, so what counts as waiting "
        "for one another is mostly waiting for a core. With a core each they would wait less.",
        caption, who);
}

/* ---- throughput ------------------------------------------------------------------------------ */

/* Bars of one number per run: `of` gives it, NaN for none. Series 0 has the axis's name. */
static void cost_simple(struct tess__report *report, const char *title, const char *caption,
                        const char *axis, int decimals, int series,
                        double (*of)(const struct tess__report *report,
                                     const struct tess__report_run *run),
                        struct tess__html *html)
{
    struct tess__bars bars = {.title = axis,
                              .name = series == 0 ? &axis : tess__work_name,
                              .series = &series,
                              .kind_count = 1,
                              .decimals = decimals};
    for (size_t i = 0; i < report->run_count; i++) {
        double value = of(report, &report->run[i]);
        if (isnan(value) || !cost_has_room(&bars))
            continue;
        bars.row[bars.row_count] = report->run[i].name;
        bars.value[bars.row_count++] = value;
    }
    cost_figure(report, title, caption, &bars, html);
}

static double cost_speed(const struct tess__report *report, const struct tess__report_run *run)
{
    (void)report;
    return tess__report_speed(run);
}

/* Speed per rank against the run on one rank with the same model, precision and batch, in percent.
 */
static double cost_efficiency(const struct tess__report *report, const struct tess__report_run *run)
{
    const struct tess__report_run *one = NULL;
    for (size_t i = 0; i < report->run_count && !one; i++) {
        const struct tess__report_run *other = &report->run[i];
        if (other->ranks == 1 && other->compared == run->compared &&
            tess__report_same(other->model, run->model) &&
            tess__report_same(other->precision, run->precision) &&
            (other->batch == run->batch || (isnan(other->batch) && isnan(run->batch))) &&
            tess__report_speed(other) > 0)
            one = other;
    }
    if (!one || one == run || !(run->ranks > 1))
        return NAN;
    return 100 * tess__report_speed(run) / run->ranks / tess__report_speed(one);
}

static double cost_comm_share(const struct tess__report *report, const struct tess__report_run *run)
{
    (void)report;
    return 100 * run->comm_share;
}

/* ---- time ------------------------------------------------------------------------------------ */

static int cost_compare_exposed(const void *a, const void *b, void *context)
{
    const double left = tess__row(context, *(const size_t *)a, TESS__TIME_EXPOSED);
    const double right = tess__row(context, *(const size_t *)b, TESS__TIME_EXPOSED);
    return (left > right) - (left < right);
}

/* The rows to draw, into row [COST_RANKS_MAX]: all, or of many ranks those that wait least, at the
 * median and longest. Returns how many. */
static size_t cost_choose_times(const struct tess__rows *times, size_t row[COST_RANKS_MAX])
{
    if (times->count <= COST_RANKS_MAX) {
        for (size_t r = 0; r < times->count; r++)
            row[r] = r;
        return times->count;
    }
    size_t *order = calloc(times->count, sizeof(*order));
    if (!order)
        return 0;
    for (size_t r = 0; r < times->count; r++)
        order[r] = r;
    qsort_r(order, times->count, sizeof(*order), cost_compare_exposed, (void *)times);
    row[0] = order[0];
    row[1] = order[times->count / 2];
    row[2] = order[times->count - 1];
    free(order);
    return 3;
}

static void cost_times(struct tess__report *report, struct tess__html *html)
{
    static const int field[] = {TESS__TIME_DATA, TESS__TIME_FORWARD, TESS__TIME_BACKWARD,
                                TESS__TIME_EXPOSED, TESS__TIME_OPTIM};
    static const int series[] = {TESS__WORK_LOADING, TESS__WORK_FORWARD, TESS__WORK_BACKWARD,
                                 TESS__WORK_WAITING, TESS__WORK_OPTIMIZER};
    struct tess__bars bars = {.title = "time per rank [s]",
                              .name = tess__work_name,
                              .series = series,
                              .kind_count = sizeof(field) / sizeof(field[0]),
                              .beside_name = "hidden communication",
                              .beside_series = TESS__WORK_CALL,
                              .decimals = 2};
    bool chosen = false;
    for (size_t i = 0; i < report->run_count; i++) {
        const struct tess__rows *times = &report->run[i].times;
        size_t row[COST_RANKS_MAX];
        const size_t count = cost_choose_times(times, row);
        chosen = chosen || count < times->count;
        for (size_t r = 0; r < count; r++)
            tess__report_add_times(&bars,
                                   tess__report_text(report, "%s \xC2\xB7 %.0f",
                                                     report->run[i].name,
                                                     tess__row(times, row[r], TESS__TIME_RANK)),
                                   times, row[r], field, TESS__TIME_HIDDEN, 3, 1);
    }
    const char *caption = cost_waiting(
        report, "Seconds of the whole run on each rank. Exposed communication is waiting that no "
                "computation hides. Hidden communication runs during the backward pass and is not "
                "part of the sum: it is the thin bar below. A rank that waits more than the others "
                "waits for a slower rank.");
    if (chosen)
        caption = tess__report_text(report,
                                    "%s Of more than %d ranks those are drawn that wait least, at "
                                    "the median and longest.",
                                    caption, COST_RANKS_MAX);
    cost_figure(report, "Where the time goes", caption, &bars, html);
}

void tess__report_speeds(struct tess__report *report, struct tess__html *html)
{
    cost_simple(report, "Throughput",
                tess__report_text(report,
                                  "Training %s per second over all ranks, without the first steps: "
                                  "longer is faster.",
                                  report->words.counted),
                report->words.rate, 0, 0, cost_speed, html);
    cost_simple(report, "Efficiency",
                cost_waiting(report, "Speed of one rank, in percent of what the run on a single "
                                     "rank does with the same model, precision and batch. 100 % is "
                                     "perfect scaling; the rest is communication and the sharing "
                                     "of the machine."),
                "efficiency [%]", 0, 0, cost_efficiency, html);
    cost_simple(report, "Share of time spent waiting",
                cost_waiting(report,
                             "Exposed communication: the part of the time in which ranks did "
                             "nothing but wait for one another: shorter is better."),
                "exposed communication [%]", 1, TESS__WORK_WAITING, cost_comm_share, html);
    cost_times(report, html);
}
