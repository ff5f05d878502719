/*
 * The page: head, key figures, notes about damaged files, and the sections in order. One file
 * without any reference to another; the policy in its head forbids the browser to load or run
 * anything else.
 */
#include "report/report_section.h"

#include "tessera/check.h"
#include "tessera/version.h"
#include "text/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct page_section {
    const char *id, *title, *lead;
    void (*write)(struct tess__report *report, struct tess__html *html);
    bool grid;    /* figures side by side */
    bool by_task; /* the runs of each task by themselves */
} page_sections[] = {
    {"curves", "Learning",
     "What the runs have learned, by steps, by passes over the data and by time.",
     tess__report_curves, true, true},
    {"controls", "Step statistics",
     "Settings that change during a run, and values that each step records.", tess__report_controls,
     true, true},
    {"memory", "Memory", "What every rank has to hold.", tess__report_memories, true, true},
    {"devices", "Devices",
     "What the driver reported about the GPUs once a second: the table of nvidia-smi, as curves.",
     tess__report_devices, true, true},
    {"speed", "Speed", "How fast the runs were, and what they spent the time on.",
     tess__report_speeds, true, true},
    {"pace", "Slow ranks and links",
     "Each rank and link against the median of its like, in the latest 20 steps that were "
     "recorded. "
     "A score of 1 is as the others: above it a rank is slower, below it a link. "
     "own: without waiting for others; late: beyond the median; wait for core: other threads had "
     "the cores.",
     tess__report_pace, false, true},
    {"timeline", "Time line", "What every rank does during one step.", tess__report_timelines, true,
     false},
    {"scaling", "Scaling", "The gain of more ranks, measured and predicted.", tess__report_scalings,
     true, false},
    {"tune", "Batch size", "Throughput and memory against the batch size.", tess__report_tunes,
     true, false},
    {"plan", "Plan", "Layouts on machines that need not be here, by predicted time.",
     tess__report_plans, true, false},
    {"options", "Configuration", "The options of every run.", tess__report_options, false, false},
};

#define PAGE_SECTIONS (sizeof(page_sections) / sizeof(page_sections[0]))

/* ---- key figures ----------------------------------------------------------------------------- */

/* The run with the greatest (or least) number; NULL when there is none. */
static const struct tess__report_run *page_best(const struct tess__report *report, bool least,
                                                double (*of)(const struct tess__report_run *run))
{
    const struct tess__report_run *best = NULL;
    for (size_t i = 0; i < report->run_count; i++) {
        double value = of(&report->run[i]);
        /* A run that has diverged may be fast, and is not the best. */
        if (isnan(value) || tess__report_state(&report->run[i]) == TESS__REPORT_FAILED)
            continue;
        if (!best || (least ? value < of(best) : value > of(best)))
            best = &report->run[i];
    }
    return best;
}

static void page_tile(struct tess__html *html, const char *title, const char *value,
                      const char *unit, const struct tess__report_run *run)
{
    tess__html_print(html, "<div class=\"tile\"><dt>%s</dt><dd><b>%s</b> %s<span>", title, value,
                     unit);
    tess__html_put_short(html, "", run->name, TESS__PLOT_NAME_MAX, "</span></dd></div>\n");
}

static void page_tiles(struct tess__report *report, struct tess__html *html)
{
    const struct tess__report_run *run;
    char text[TESS__REAL_BYTES], bytes[TESS__TEXT_BYTES];
    if (report->run_count == 0)
        return;
    tess__html_add(html, "<dl class=\"tiles\">\n");
    if ((run = page_best(report, false, tess__report_val_accuracy)))
        page_tile(html, "Best validation accuracy",
                  tess__real_fixed(100 * tess__report_val_accuracy(run), 2, text), "%", run);
    if ((run = page_best(report, false, tess__report_speed)))
        page_tile(html, "Fastest", tess__real_fixed(tess__report_speed(run), 0, text),
                  report->words.rate, run);
    if ((run = page_best(report, true, tess__report_fullest)))
        page_tile(html, "Least memory per rank", tess__text_bytes(tess__report_fullest(run), bytes),
                  "", run);
    if ((run = page_best(report, true, tess__report_val_loss)))
        page_tile(html, "Lowest validation loss",
                  tess__real_fixed(tess__report_val_loss(run), 4, text), "", run);
    tess__html_add(html, "</dl>\n");
}

static void page_notes(const struct tess__report *report, struct tess__html *html)
{
    if (report->note_count == 0)
        return;
    tess__html_print(html,
                     "<aside class=\"notes\" aria-label=\"notes\"><details open><summary>%zu "
                     "note%s on the files: what is damaged is left out</summary><ul>\n",
                     report->note_count, report->note_count > 1 ? "s" : "");
    for (size_t i = 0; i < report->note_count; i++) {
        const struct tess__report_note *note = &report->note[i];
        tess__html_put(html, "<li><code>", note->file, "");
        if (note->line > 0)
            tess__html_print(html, ":%zu", note->line);
        tess__html_put(html, "</code> ", note->text, "</li>\n");
    }
    tess__html_add(html, "</ul></details></aside>\n");
}

/* ---- the frame ------------------------------------------------------------------------------- */

static void page_head(const char *title, struct tess__html *html)
{
    tess__html_add(html, "<!DOCTYPE html>\n<html lang=\"en\" data-theme=\"auto\">\n<head>\n"
                         "<meta charset=\"utf-8\">\n"
                         "<meta name=\"viewport\" content=\"width=device-width, "
                         "initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n"
                         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src "
                         "'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-");
    tess__html_add(html, tess__report_script_hash);
    tess__html_put(html,
                   "'; base-uri 'none'; form-action 'none'\">\n"
                   "<link rel=\"icon\" href=\"data:,\">\n<title>",
                   title, "</title>\n<style>\n");
    tess__html_add(html, tess__report_css);
    /* A reader who points at a curve's name sees that curve alone. */
    for (int i = 0; i < TESS__PLOT_CURVES_MAX; i++)
        tess__html_print(html, "figure:has(.k%d:hover) .plot g[class^=s]:not(.s%d){opacity:.12}\n",
                         i, i);
    tess__html_add(html, "</style>\n</head>\n");
}

static void page_summary(const struct tess__report *report, struct tess__html *html)
{
    size_t finished = 0, compared = 0;
    for (size_t i = 0; i < report->run_count; i++) {
        finished += tess__report_state(&report->run[i]) == TESS__REPORT_FINISHED;
        compared += report->run[i].compared;
    }
    const struct {
        size_t count;
        const char *one, *more;
    } part[] = {{report->scaling_count, "scaling measurement", "scaling measurements"},
                {report->tune_count, "sweep of the batch size", "sweeps of the batch size"},
                {report->timeline_count, "time line", "time lines"},
                {report->plan_count, "plan", "plans"}};
    const char *join = report->run_count > 0 ? "; " : "";
    tess__html_add(html, "<p class=\"summary\">");
    if (report->run_count > 0)
        tess__html_print(html, "%zu run%s, %zu finished", report->run_count,
                         report->run_count > 1 ? "s" : "", finished);
    if (compared > 0)
        tess__html_print(html, ", %zu of them from a comparison", compared);
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
        if (part[i].count > 0) {
            tess__html_print(html, "%s%zu %s", join, part[i].count,
                             part[i].count > 1 ? part[i].more : part[i].one);
            join = "; ";
        }
    tess__html_add(html, "</p>\n");
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* What is written of the runs of each task by themselves: no picture has an axis that images and
 * tokens share. With a heading where there are several. */
static void page_by_task(struct tess__report *report, bool grid,
                         void (*write)(struct tess__report *report, struct tess__html *html),
                         struct tess__html *html)
{
    const struct tess__report all = *report;
    for (size_t t = 0; t < all.task_count; t++) {
        const struct tess__report_task *task = &all.task[t];
        struct tess__html inner = {0};
        report->run = all.run + task->first;
        report->run_count = task->count;
        report->words = task->words;
        write(report, &inner);
        if (inner.count > 0 && all.task_count > 1)
            tess__html_put(html, "<h3 class=\"task\">", task->label, "</h3>\n");
        if (inner.count > 0)
            tess__html_add(html, grid ? "<div class=\"grid\">\n" : "");
        tess__html_append(html, &inner);
        if (inner.count > 0)
            tess__html_add(html, grid ? "</div>\n" : "");
        tess__html_close(&inner);
        report->run = all.run;
    }
    report->run_count = all.run_count;
    report->words = all.words;
}

/* The sections that have something to show, one after the other; their links in `links`. */
static void page_body(struct tess__report *report, struct tess__html *links,
                      struct tess__html *html)
{
    for (size_t i = 0; i < PAGE_SECTIONS; i++) {
        const struct page_section *section = &page_sections[i];
        const bool grid = section->grid && !section->by_task;
        struct tess__html inner = {0};
        if (section->by_task)
            page_by_task(report, section->grid, section->write, &inner);
        else
            section->write(report, &inner);
        if (inner.count > 0) {
            tess__html_print(links, "<a href=\"#%s\">%s</a>\n", section->id, section->title);
            tess__html_print(html, "<section id=\"%s\">\n<h2>%s</h2>\n<p class=\"lead\">%s</p>\n%s",
                             section->id, section->title, section->lead,
                             grid ? "<div class=\"grid\">\n" : "");
            tess__html_append(html, &inner);
            tess__html_add(html, grid ? "</div>\n</section>\n" : "</section>\n");
        }
        html->lost |= inner.lost;
        tess__html_close(&inner);
    }
}

static void page_write(struct tess__report *report, const char *title,
                       const struct tess__html *links, const struct tess__html *body,
                       struct tess__html *html)
{
    page_head(title, html);
    tess__html_add(html, "<body>\n<a class=\"skip\" href=\"#main\">Skip to the content</a>\n"
                         "<header><div class=\"bar\"><nav aria-label=\"sections\">\n");
    if (report->run_count > 0)
        tess__html_add(html, "<a href=\"#overview\">Overview</a>\n");
    tess__html_append(html, links);
    tess__html_add(html, "</nav><button id=\"theme\" type=\"button\" hidden>Theme</button>"
                         "</div></header>\n<script>");
    tess__html_add(html, tess__report_script);
    tess__html_put(html, "</script>\n<main id=\"main\">\n<h1>", title, "</h1>\n");
    page_summary(report, html);
    page_by_task(report, false, page_tiles, html);
    page_notes(report, html);
    tess__figure_markers(html);
    if (report->run_count > 0) {
        tess__html_add(html, "<section id=\"overview\">\n<h2>Overview</h2>\n");
        page_by_task(report, false, tess__report_overview, html);
        tess__html_add(html, "</section>\n");
    }
    tess__html_append(html, body);
    tess__html_add(html, "</main>\n<footer><p>Written by tessera " TESS_VERSION
                         "; one file, nothing is loaded from anywhere. Point at a name in a legend "
                         "to see its curve alone.</p></footer>\n</body>\n</html>\n");
}

enum tess_status tess__report_page(struct tess__report *report, const char *title,
                                   struct tess__html *html)
{
    struct tess__html links = {0}, body = {0};
    page_body(report, &links, &body);
    page_write(report, title, &links, &body, html);
    tess__html_close(&links);
    tess__html_close(&body);
    if (html->lost)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the report");
    return TESS_OK;
}
