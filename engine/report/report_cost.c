/* What the runs cost: memory of each rank by kind, speed, and where the time of a step goes. */
#include "report/report_section.h"

#include "tessera/check.h"
#include "text/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double tess__report_bytes(const struct tess__report_memory *memory)
{
    double total = 0;
    for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
        total += memory->kind[k];
    return total;
}

_Static_assert(TESS_MEMORY_KIND_COUNT <= TESS__PLOT_KINDS_MAX, "a colour for each kind");

/* Bars in the making. */
struct cost_bars {
    const char *row[TESS__PLOT_BARS_MAX];
    double value[TESS__PLOT_BARS_MAX * TESS__PLOT_KINDS_MAX];
    double beside_start[TESS__PLOT_BARS_MAX], beside_value[TESS__PLOT_BARS_MAX];
    int count;
    size_t left_out;
};

static enum tess_status cost_label(struct tess__report *report, struct cost_bars *bars,
                                   const char *name, double first, double last)
{
    size_t length = strlen(name) + 64;
    char *label = tess__report_alloc(report, length, 1);
    if (!label)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the labels of a picture");
    if (isnan(first))
        snprintf(label, length, "%s", name);
    else if (first == last)
        snprintf(label, length, "%s \xC2\xB7 %.0f", name, first);
    else
        snprintf(label, length, "%s \xC2\xB7 %.0f\xE2\x80\x93%.0f", name, first, last);
    bars->row[bars->count] = label;
    return TESS_OK;
}

static void cost_add_left_out(char *caption, size_t bytes, const struct cost_bars *bars)
{
    size_t used = strlen(caption);
    if (bars->left_out > 0)
        snprintf(caption + used, bytes - used,
                 " %zu more bars are not drawn: give the report fewer runs to see them.",
                 bars->left_out);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The last rank after `first` with the same memory in every kind. */
static size_t cost_group_end(const struct tess__report_run *run, size_t first)
{
    size_t last = first;
    while (last + 1 < run->memory_count &&
           run->memory[last + 1].rank == run->memory[last].rank + 1 &&
           memcmp(run->memory[first].kind, run->memory[last + 1].kind,
                  sizeof(run->memory[0].kind)) == 0)
        last++;
    return last;
}

/* "name (strategy)", unless the name contains it. */
static enum tess_status cost_strategy_name(struct tess__report *report,
                                           const struct tess__report_run *run,
                                           const char **name_out)
{
    char *name;
    *name_out = run->name;
    if (!run->strategy || strstr(run->name, run->strategy))
        return TESS_OK;
    size_t length = strlen(run->name) + strlen(run->strategy) + 4;
    name = tess__report_alloc(report, length, 1);
    if (!name)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the labels of a picture");
    snprintf(name, length, "%s (%s)", run->name, run->strategy);
    *name_out = name;
    return TESS_OK;
}

double tess__report_fullest(const struct tess__report_run *run)
{
    double most = NAN;
    for (size_t r = 0; r < run->memory_count; r++)
        most = fmax(most, tess__report_bytes(&run->memory[r]));
    return most;
}

/* What to see: the run whose fullest rank is emptiest, against the fullest. */
static void cost_memory_caption(const struct tess__report *report, char caption[768])
{
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
    snprintf(caption, 768,
             "Bytes that each rank holds, by what they are for; ranks with equal memory share a "
             "bar. Shorter bars train larger models on the same machine.");
    if (!least || tess__report_fullest(least) <= 0 ||
        tess__report_fullest(least) == tess__report_fullest(most))
        return;
    snprintf(caption + strlen(caption), 768 - strlen(caption),
             " The fullest rank of %.80s holds %s, that of %.80s %s: a factor of %.2g.",
             least->name, tess__text_bytes(tess__report_fullest(least), small), most->name,
             tess__text_bytes(tess__report_fullest(most), large),
             tess__report_fullest(most) / tess__report_fullest(least));
}

enum tess_status tess__report_memories(struct tess__report *report, struct tess__html *html)
{
    struct cost_bars rows = {.count = 0};
    struct tess__bars bars = {.row = rows.row, .value = rows.value, .decimals = 1};
    const char *kind[TESS_MEMORY_KIND_COUNT];
    char caption[768], title[64];
    double most = 0, divisor;
    for (size_t i = 0; i < report->run_count; i++)
        most = fmax(most, tess__report_fullest(&report->run[i]));
    if (most <= 0)
        return TESS_OK;
    snprintf(title, sizeof(title), "memory per rank [%s]", tess__text_unit(most, &divisor));
    for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
        kind[k] = tess_memory_kind_name((enum tess_memory_kind)k);
    for (size_t i = 0; i < report->run_count; i++) {
        const struct tess__report_run *run = &report->run[i];
        const char *name;
        for (size_t first = 0, last; first < run->memory_count; first = last + 1) {
            last = cost_group_end(run, first);
            if (rows.count == TESS__PLOT_BARS_MAX) {
                rows.left_out++;
                continue;
            }
            TESS_TRY(cost_strategy_name(report, run, &name));
            TESS_TRY(
                cost_label(report, &rows, name, run->memory[first].rank, run->memory[last].rank));
            for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
                rows.value[rows.count * TESS_MEMORY_KIND_COUNT + k] =
                    run->memory[first].kind[k] / divisor;
            rows.count++;
        }
    }
    cost_memory_caption(report, caption);
    cost_add_left_out(caption, sizeof(caption), &rows);
    bars.title = title;
    bars.kind = kind;
    bars.kind_count = TESS_MEMORY_KIND_COUNT;
    bars.row_count = rows.count;
    return tess__figure_bars(&(struct tess__figure){"Memory per rank", caption}, &bars, html);
}

/* ---- throughput ------------------------------------------------------------------------------ */

/* Bars of one number per run: `of` gives it, NaN for none. */
static enum tess_status cost_simple(struct tess__report *report, const char *title,
                                    const char *caption, const char *axis, int decimals,
                                    double (*of)(const struct tess__report *report,
                                                 const struct tess__report_run *run),
                                    struct tess__html *html)
{
    struct cost_bars rows = {.count = 0};
    struct tess__bars bars = {.title = axis,
                              .row = rows.row,
                              .kind = &axis,
                              .kind_count = 1,
                              .value = rows.value,
                              .decimals = decimals};
    char text[768];
    for (size_t i = 0; i < report->run_count; i++) {
        double value = of(report, &report->run[i]);
        if (isnan(value))
            continue;
        if (rows.count == TESS__PLOT_BARS_MAX) {
            rows.left_out++;
            continue;
        }
        TESS_TRY(cost_label(report, &rows, report->run[i].name, NAN, NAN));
        rows.value[rows.count++] = value;
    }
    if (rows.count == 0)
        return TESS_OK;
    snprintf(text, sizeof(text), "%s", caption);
    cost_add_left_out(text, sizeof(text), &rows);
    bars.row_count = rows.count;
    return tess__figure_bars(&(struct tess__figure){title, text}, &bars, html);
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

static enum tess_status cost_times(struct tess__report *report, struct tess__html *html)
{
    static const int field[] = {TESS__TIME_DATA, TESS__TIME_FORWARD, TESS__TIME_BACKWARD,
                                TESS__TIME_EXPOSED, TESS__TIME_OPTIM};
    static const char *const kind[] = {"data", "forward", "backward", "exposed communication",
                                       "optimizer"};
    enum { KINDS = sizeof(field) / sizeof(field[0]) };
    struct cost_bars rows = {.count = 0};
    char caption[768] = "Seconds of the whole run on each rank. Exposed communication is waiting "
                        "that no computation hides. Hidden communication runs during the backward "
                        "pass and is not part of the sum: it is the thin bar below. A rank that "
                        "waits more than the others waits for a slower rank.";
    for (size_t i = 0; i < report->run_count; i++) {
        const struct tess__rows *times = &report->run[i].times;
        for (size_t r = 0; r < times->count; r++) {
            double rank = tess__row(times, r, TESS__TIME_RANK), end = 0;
            double hidden = tess__row(times, r, TESS__TIME_HIDDEN);
            if (rows.count == TESS__PLOT_BARS_MAX) {
                rows.left_out++;
                continue;
            }
            TESS_TRY(cost_label(report, &rows, report->run[i].name, rank, rank));
            for (int k = 0; k < KINDS; k++) {
                double value = tess__row(times, r, field[k]);
                rows.value[rows.count * KINDS + k] = isnan(value) ? 0 : value;
                end += k <= 2 && !isnan(value) ? value : 0;
            }
            hidden = isnan(hidden) ? 0 : hidden;
            rows.beside_start[rows.count] = hidden < end ? end - hidden : 0;
            rows.beside_value[rows.count++] = hidden;
        }
    }
    if (rows.count == 0)
        return TESS_OK;
    cost_add_left_out(caption, sizeof(caption), &rows);
    const struct tess__bars *bars = &(struct tess__bars){.title = "time per rank [s]",
                                                         .row = rows.row,
                                                         .kind = kind,
                                                         .value = rows.value,
                                                         .row_count = rows.count,
                                                         .kind_count = KINDS,
                                                         .beside_start = rows.beside_start,
                                                         .beside_value = rows.beside_value,
                                                         .beside_name = "hidden communication",
                                                         .decimals = 2};
    return tess__figure_bars(&(struct tess__figure){"Where the time goes", caption}, bars, html);
}

enum tess_status tess__report_speeds(struct tess__report *report, struct tess__html *html)
{
    char caption[128];
    snprintf(caption, sizeof(caption),
             "Training %s per second over all ranks, without the first steps: longer is faster.",
             report->words.counted);
    TESS_TRY(cost_simple(report, "Throughput", caption, report->words.rate, 0, cost_speed, html));
    TESS_TRY(cost_simple(report, "Efficiency",
                         "Speed of one rank, in percent of what the run on a single rank does with "
                         "the same model, precision and batch. 100 % is perfect scaling; the rest "
                         "is communication and the sharing of the machine.",
                         "efficiency [%]", 0, cost_efficiency, html));
    TESS_TRY(cost_simple(report, "Share of time in communication",
                         "Part of the time in which ranks did nothing but wait for one another: "
                         "shorter is better.",
                         "share of the time [%]", 1, cost_comm_share, html));
    return cost_times(report, html);
}
