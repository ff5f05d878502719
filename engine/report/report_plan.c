/* What tessera plan --json found: the fastest layouts, what they need, and time against memory. */
#include "report/report_section.h"

#include "text/text.h"

#include <math.h>

/* Layouts that the bars show; the curve of time against memory has all. */
#define PLAN_BARS 16

static double plan_bytes(const struct tess__report_layout *layout)
{
    double total = 0;
    for (int kind = 0; kind < TESS_MEMORY_KIND_COUNT; kind++)
        total += layout->kind[kind];
    return total;
}

/* What plan --try measured, for a caption; "": nothing. */
static const char *plan_measured(struct tess__report *report, const struct tess__report_plan *plan)
{
    double least_s = INFINITY;
    const char *label = NULL;
    int count = 0;
    for (size_t i = 0; i < plan->layout_count; i++) {
        const struct tess__report_layout *layout = &plan->layout[i];
        count += layout->measured_s > 0;
        if (!(layout->measured_s > 0) || layout->measured_s >= least_s)
            continue;
        least_s = layout->measured_s;
        label = layout->label;
    }
    return count == 0 ? ""
                      : tess__report_text(report,
                                          " Numbers are in the order of %d layouts that were "
                                          "trained: the fastest was %.60s with %.3f ms.",
                                          count, label, 1e3 * least_s);
}

static void plan_steps(struct tess__report *report, const struct tess__report_plan *plan,
                       struct tess__html *html)
{
    static const int series[] = {TESS__WORK_COMPUTE, TESS__WORK_WAITING};
    struct tess__bars bars = {.title = "predicted time of a step [ms]",
                              .name = tess__work_name,
                              .series = series,
                              .kind_count = 2,
                              .decimals = plan->layout[0].step_s < 1 ? 2 : 0};
    for (size_t i = 0; i < plan->layout_count && i < PLAN_BARS; i++) {
        const double exposed_s = fmin(plan->layout[i].exposed_s, plan->layout[i].step_s);
        bars.row[bars.row_count] = plan->layout[i].label;
        bars.value[2 * bars.row_count] = 1e3 * (plan->layout[i].step_s - exposed_s);
        bars.value[2 * bars.row_count++ + 1] = 1e3 * exposed_s;
    }
    const char *limit = plan->layout[0].limited_by;
    tess__figure_bars(
        &(struct tess__figure){
            "The fastest layouts",
            tess__report_text(report,
                              "Predicted steps of the slowest stage, the shortest first. 2x1x4: "
                              "ranks along the data, tensor and stage axis; 4mb: 4 micro-batches; "
                              "8ch: 8 chunks; 100MiB: buckets of gradients; sp: sequence parallel; "
                              "sel.: recompute selective; "
                              "kept: units stay gathered until backward. "
                              "Exposed communication is waiting that no computation "
                              "hides.%s%.240s%s%s",
                              limit != NULL ? " The first is limited by " : "",
                              limit != NULL ? limit : "", limit != NULL ? "." : "",
                              plan_measured(report, plan))},
        &bars, html);
}

static void plan_memories(struct tess__report *report, const struct tess__report_plan *plan,
                          struct tess__html *html)
{
    const char *kind[TESS_MEMORY_KIND_COUNT];
    struct tess__bars bars = {.name = kind, .kind_count = TESS_MEMORY_KIND_COUNT, .decimals = 1};
    double most = 0, divisor;
    for (size_t i = 0; i < plan->layout_count && i < PLAN_BARS; i++)
        most = fmax(most, plan_bytes(&plan->layout[i]));
    bars.title = tess__report_text(report, "memory of the fullest rank [%s]",
                                   tess__text_unit(most, &divisor));
    for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
        kind[k] = tess_memory_kind_name((enum tess_memory_kind)k);
    for (size_t i = 0; i < plan->layout_count && i < PLAN_BARS; i++) {
        bars.row[bars.row_count] = plan->layout[i].label;
        for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
            bars.value[bars.row_count * TESS_MEMORY_KIND_COUNT + k] =
                plan->layout[i].kind[k] / divisor;
        bars.row_count++;
    }
    tess__figure_bars(
        &(struct tess__figure){
            "What they keep in memory",
            "Bytes of the fullest rank by what they are for: the bytes that a run would allocate. "
            "They are the same during the whole step."},
        &bars, html);
}

/* Layouts are in order of time: those that need less memory than all faster ones are the front. */
static void plan_front(struct tess__report *report, const struct tess__report_plan *plan,
                       struct tess__html *html)
{
    double divisor, least = INFINITY, most = 0, *bytes[2], *ms[2]; /* of others, of the front */
    size_t count[2] = {0};
    for (int front = 0; front < 2; front++) {
        bytes[front] = tess__report_alloc(report, plan->layout_count, sizeof(double));
        ms[front] = tess__report_alloc(report, plan->layout_count, sizeof(double));
    }
    for (size_t i = 0; i < plan->layout_count; i++)
        most = fmax(most, plan_bytes(&plan->layout[i]));
    const char *unit = tess__text_unit(most, &divisor);
    for (size_t i = 0; i < plan->layout_count; i++) {
        const double size = plan_bytes(&plan->layout[i]) / divisor;
        const bool front = size < least;
        least = fmin(least, size);
        bytes[front][count[front]] = size;
        ms[front][count[front]++] = 1e3 * plan->layout[i].step_s;
    }
    const struct tess__curve curve[] = {{.name = "other layouts",
                                         .x = bytes[0],
                                         .y = ms[0],
                                         .count = count[0],
                                         .style = 6,
                                         .look = TESS__CURVE_MARKS},
                                        {.name = "none is both faster and smaller",
                                         .x = bytes[1],
                                         .y = ms[1],
                                         .count = count[1],
                                         .look = TESS__CURVE_BOTH}};
    const struct tess__lines lines = {
        .x = {tess__report_text(report, "memory of the fullest rank [%s]", unit), TESS__AXIS_LINEAR,
              false},
        .y = {"step [ms]", TESS__AXIS_LINEAR, false},
        .curve = curve,
        .curve_count = 2};
    tess__figure_lines(
        &(struct tess__figure){"Time against memory",
                               "Every layout whose step was predicted. Where less memory is at "
                               "hand, the line has the fastest layout that still fits."},
        &lines, html);
}

void tess__report_plans(struct tess__report *report, struct tess__html *html)
{
    for (size_t i = 0; i < report->plan_count; i++) {
        const struct tess__report_plan *plan = &report->plan[i];
        tess__html_put(html, "<div class=\"about\"><p>", plan->path, ": model ");
        tess__html_escape(html, plan->model);
        if (!isnan(plan->ranks))
            tess__html_print(html, " on %.0f rank%s", plan->ranks, plan->ranks == 1 ? "" : "s");
        tess__html_put(html, ", ", plan->cluster, ".</p></div>\n");
        plan_steps(report, plan, html);
        plan_memories(report, plan, html);
        plan_front(report, plan, html);
    }
}
