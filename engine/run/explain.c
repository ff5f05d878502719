/*
 * --explain: everything that was resolved before a run begins. Of many ranks it is a page, without
 * what is the same for any number of them, unless --explain-rank asks for a rank.
 */
#include "run/explain.h"

#include "base/options.h"
#include "core/layout.h"
#include "job/place.h"
#include "run/fold.h"
#include "run/memory_table.h"
#include "run/mfu.h"
#include "tessera/check.h"
#include "text/screen.h"
#include "text/words.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define COLUMNS 100 /* where no terminal limits them */

static int explain_columns(void)
{
    const int columns = tess__screen_columns(stdout);
    return columns > 0 && columns < COLUMNS ? columns : COLUMNS;
}

struct widths {
    int name, value;
};

static void explain_measure(void *context, const char *name, const char *value, const char *origin,
                            const struct tess_option *option)
{
    struct widths *widths = context;
    int name_length = (int)strlen(name), value_length = (int)strlen(value);
    (void)origin, (void)option;
    widths->name = name_length > widths->name ? name_length : widths->name;
    widths->value = value_length > widths->value ? value_length : widths->value;
}

static void explain_option(void *context, const char *name, const char *value, const char *origin,
                           const struct tess_option *option)
{
    const struct widths *widths = context;
    (void)option;
    printf("  %-*s  %-*s  %s\n", widths->name, name, widths->value, value, origin);
}

/* On a page: those that are set, one after the other; `context` is the column. */
static void explain_set_option(void *context, const char *name, const char *value,
                               const char *origin, const struct tess_option *option)
{
    int *column = context;
    const int length = (int)(strlen(name) + strlen(value)) + 3;
    (void)option;
    if (strcmp(origin, "default") == 0)
        return;
    if (*column + length > explain_columns()) {
        fputs("\n ", stdout);
        *column = 1;
    }
    printf(" %s=%s", name, value);
    *column += length - 1;
}

static void explain_options(const struct tess_options *options, bool page)
{
    struct widths widths = {0, 0};
    int column = 1;
    if (page) {
        printf(
            "options that are set (--explain-rank 0 prints all, and the whole plan of rank 0)\n ");
        tess_options_visit(options, explain_set_option, &column);
        putchar('\n');
        return;
    }
    printf("options\n");
    tess_options_visit(options, explain_measure, &widths);
    tess_options_visit(options, explain_option, &widths);
}

/* A line, or several where it would have more columns than a terminal. */
static void explain_line(void *context, const char *text)
{
    const int columns = explain_columns();
    int indent = 2;
    (void)context;
    for (;;) {
        int cut = (int)strlen(text);
        if (indent + cut > columns)
            for (cut = columns - indent; cut > 0 && text[cut] != ' ';)
                cut--;
        cut = cut > 0 ? cut : (int)strlen(text);
        printf("%*s%.*s\n", indent, "", cut, text);
        text += cut + strspn(text + cut, " ");
        if (!*text)
            return;
        indent = 13;
    }
}

/* A line of a page: not what is indented, one of several that begin with the same word, and of a
 * long one, such as the order of many micro-batches, so much. */
#define PAGE_LINE_BYTES 200
struct page {
    char word[16];
    int more;
};

static void explain_page_end(const struct page *page)
{
    if (page->more > 0)
        printf("  ... and %d more like this\n", page->more);
}

static void explain_page_line(void *context, const char *text)
{
    struct page *page = context;
    const int length = (int)strcspn(text, " ");
    if (*text == ' ')
        return;
    if (length < (int)sizeof(page->word) && strncmp(page->word, text, (size_t)length) == 0 &&
        page->word[length] == '\0') {
        page->more++;
        return;
    }
    explain_page_end(page);
    snprintf(page->word, sizeof(page->word), "%.*s", length, text);
    page->more = 0;
    char shown[PAGE_LINE_BYTES + sizeof(" ...")];
    const bool cut = strlen(text) > PAGE_LINE_BYTES;
    snprintf(shown, sizeof(shown), "%.*s%s", PAGE_LINE_BYTES, text, cut ? " ..." : "");
    explain_line(NULL, shown);
}

/* Ranges of rows that are shown; a rank that reduces in every micro-batch has one for each. */
#define SHOWN_RANGES_MAX 4

/* Of more ranks than TESS__FOLD_NONE: runs of numbers that follow each other. */
#define SHOWN_RUNS 16

/* "rank 2: images 64..95 of each batch of 128" */
static void explain_rank(const struct tess__run *run, int32_t rank)
{
    const struct tess_plan *plan = tess_engine_plan_of(run->planned);
    int64_t micro_rows = plan->grid / plan->rank_count / plan->accumulate * plan->leaf_rows;
    const int32_t data = tess_mesh_at(&run->config->mesh, rank).at[TESS_AXIS_DATA];
    int64_t begin = 0, end = 0;
    int32_t ranges = 0;
    printf("  rank %d of %d (local rank %d): %s", rank, run->rank_count, rank,
           tess__words_of(run->dataset).rows);
    for (int32_t m = 0; m < plan->accumulate; m++) {
        int64_t first = tess_layout_first_leaf(plan, data, m) * plan->leaf_rows;
        if (m == 0 || first != end) {
            if (m > 0 && ranges++ < SHOWN_RANGES_MAX)
                printf(" %" PRId64 "..%" PRId64 ",", begin, end - 1);
            begin = first;
        }
        end = first + micro_rows;
    }
    if (ranges > SHOWN_RANGES_MAX)
        printf(" ...");
    printf(" %" PRId64 "..%" PRId64 " of each batch of %" PRId64 "\n", begin, end - 1,
           run->config->run.batch_size);
}

static const char *explain_cores(const struct tess__run *run)
{
    const struct tess__placement *placed = run->placed;
    if (placed->bound)
        return "as the starter has bound the processes";
    if (!run->config->run.bind)
        return "any (--bind off)";
    if (placed->core_count < placed->host_size)
        return "any, a host has fewer than ranks";
    return "the cores of a host are divided among its ranks";
}

/* " 0 2 1 3"; of many numbers those that follow each other at once: " 0-7 16-23 8-15 ...". step 0:
 * what `number` says are devices, and their ranks are named. */
static void explain_runs(int32_t count, const int32_t *number, int32_t step)
{
    int32_t runs = 0;
    for (int32_t at = 0, end; at < count; at = end) {
        for (end = at + 1;
             count > TESS__FOLD_NONE && end < count && number[end] == number[end - 1] + step;)
            end++;
        if (runs++ == SHOWN_RUNS && count > TESS__FOLD_NONE) {
            printf(" ...");
            return;
        }
        const int32_t first = step == 0 ? at : number[at],
                      last = step == 0 ? end - 1 : number[end - 1];
        if (step == 0 && at > 0 && (count > TESS__FOLD_NONE || number[at] != number[at - 1]))
            printf(" |");
        printf(first == last ? " %d" : " %d-%d", first, last);
    }
}

/* Which process or device each rank has, and why. */
static void explain_order(const struct tess__run *run)
{
    const struct tess__placement *placed = run->placed;
    if (!run->peers && !placed->line[0])
        return;
    printf("\norder of ranks%s\n", placed->imagined ? ", as if they were on these devices" : "");
    explain_line(NULL, placed->line[0] ? placed->line : "natural");
    if (placed->rank) {
        printf("  ranks of %s 0 to %d:", run->peers ? "processes" : "devices", run->rank_count - 1);
        explain_runs(run->rank_count, placed->rank, 1);
        putchar('\n');
    }
    if (run->peers)
        printf("  cores: %s\n", explain_cores(run));
    if (placed->text)
        printf("\n%s", placed->text);
}

/* "learning rate 0.4 = base-lr 0.1 x 4" */
static void explain_batch(const struct tess__run *run)
{
    const struct tess_optim_options *optim = &run->config->optim;
    const struct tess_run_options *options = &run->config->run;
    const int32_t ranks = run->config->mesh.count[TESS_AXIS_DATA];
    printf("\nbatch and learning rate\n  %" PRId64 " %s a step, %" PRId64
           " on each of %d ranks%s, in %" PRId64 " micro-batch%s\n  learning rate %g",
           options->batch_size, tess__words_of(run->dataset).rows, options->batch_size / ranks,
           ranks, tess__run_has_mesh(run) ? " of the data axis" : "", options->accumulate,
           options->accumulate > 1 ? "es" : "", optim->learning_rate);
    if (optim->base_rate > 0)
        printf(" = base-lr %g x %g for the batch", optim->base_rate,
               optim->learning_rate / optim->base_rate);
    if (optim->warmup > 0)
        printf(", reached after %g epochs of warm-up from %g", optim->warmup,
               optim->warmup_start * optim->learning_rate);
    putchar('\n');
    for (int32_t r = 0; r < run->rank_count; r++)
        if (run->rank_count <= TESS__FOLD_NONE || r == 0 || r == run->rank_count - 1)
            explain_rank(run, r);
}

static enum tess_status explain_plan(const struct tess__run *run, int32_t rank, bool page)
{
    struct tess_engine *engine = NULL;
    struct page lines = {.more = 0};
    printf("\nplan of rank %d", rank);
    if (rank == 0 && run->rank_count > 1)
        printf(" (--explain-rank R for another's)");
    putchar('\n');
    TESS_TRY(tess_engine_plan(run->config, run->dataset, rank, &engine));
    tess_engine_describe(engine, page ? explain_page_line : explain_line, &lines);
    explain_page_end(&lines);
    tess_engine_close(engine);
    return TESS_OK;
}

/* "on devices 0 and 1 (NVIDIA H200): ranks 0-3 | 4-7; communicator local" */
static void explain_device(const struct tess__run *run)
{
    const struct tess_device_plan *plan = &run->config->device;
    if (!plan->module) {
        printf("  device cpu%s%s", plan->why[0] ? ": " : "", plan->why);
    } else if (plan->missing) {
        printf("  device %s, planned as if there were one for each rank: %s", plan->module->name,
               plan->why);
    } else {
        printf("  device %s, %d of %s, %.0f GiB each; ranks by device:", plan->module->name,
               plan->count, plan->info[0].name,
               (double)plan->info[0].memory_bytes / (1024.0 * 1024 * 1024));
        explain_runs(run->rank_count, plan->of_rank, 0);
    }
    printf("\n  communicator %s\n", plan->comm->name);
}

enum tess_status tess__explain_print(const struct tess__run *run, int32_t rank)
{
    const struct tess_config *config = run->config;
    const bool page =
        run->rank_count > TESS__FOLD_NONE && !tess_options_is_set(config->options, "explain-rank");
    char mesh[TESS__MESH_TEXT_BYTES];
    if (rank >= run->rank_count)
        TESS_FAIL(TESS_ERR_USAGE, "--explain-rank %d: there are ranks 0 to %d", rank,
                  run->rank_count - 1);

    explain_options(config->options, page);
    printf("\nchosen\n  ranks %d, strategy %s (%s), kernel %s\n", run->rank_count,
           config->run.strategy,
           config->device.rank_mode == TESS_RANKS_THREADS ? "threads of one process"
                                                          : "one process per rank",
           config->kernel->name);
    if (tess__run_has_mesh(run))
        printf("  mesh %s\n", tess__mesh_text(config->mesh.count, mesh));
    explain_device(run);
    explain_order(run);
    explain_batch(run);
    if (!page)
        tess__mfu_explain(run);
    TESS_TRY(explain_plan(run, rank, page));
    tess__memory_table_print(run, false);
    return TESS_OK;
}
