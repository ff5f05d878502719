/* Tables of memory per rank by kind: one unit for the whole table, so that columns compare. */
#include "run/memory_table.h"

#include "run/fold.h"
#include "tessera/check.h"
#include "text/table.h"
#include "text/text.h"

#include <stdio.h>
#include <string.h>

#define DIFFERENCES_MAX 16

const char *tess__memory_kind_brief(enum tess_memory_kind kind)
{
    static const char *const brief[] = {"param",  "master", "grad",  "optim",   "activ", "gather",
                                        "bucket", "work",   "input", "staging", "copies"};
    _Static_assert(sizeof(brief) / sizeof(brief[0]) == TESS_MEMORY_KIND_COUNT,
                   "each kind of memory has a short name");
    return brief[kind];
}

static const struct tess_job_memory *table_usage(const struct tess__run *run, int32_t rank,
                                                 bool measured)
{
    return measured ? &run->rank[rank].allocated : tess__run_predicted(run, rank);
}

static void table_print_differences(const struct tess__run *run)
{
    char expected[TESS__TEXT_BYTES], found[TESS__TEXT_BYTES];
    int32_t lines = 0;
    for (int32_t r = 0; r < run->rank_count; r++)
        for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++) {
            uint64_t predicted = tess__run_predicted(run, r)->bytes[k];
            uint64_t allocated = run->rank[r].allocated.bytes[k];
            if (predicted != allocated && lines++ < DIFFERENCES_MAX)
                printf("rank %d: %s: the plan predicted %s, %s were allocated\n", r,
                       tess_memory_kind_name((enum tess_memory_kind)k),
                       tess__text_bytes((double)predicted, expected),
                       tess__text_bytes((double)allocated, found));
        }
    if (lines > DIFFERENCES_MAX)
        printf("and %d more of these\n", lines - DIFFERENCES_MAX);
}

static uint64_t table_most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

struct tess__device_memory tess__device_memory_of(const struct tess__run *run, int32_t device)
{
    struct tess__device_memory sum = {0};
    for (int32_t r = 0; r < run->rank_count; r++) {
        const struct tess__run_rank *rank = &run->rank[r];
        if (run->config->device.of_rank[r] != device)
            continue;
        sum.arena += rank->allocated.total - rank->allocated.bytes[TESS_MEMORY_STAGING] -
                     rank->allocated.bytes[TESS_MEMORY_REDUNDANCY];
        /* Of the whole device, reported by each of its ranks: the greatest value counts. */
        sum.context = table_most(sum.context, rank->device_usage.context);
        sum.workspace = table_most(sum.workspace, rank->device_usage.workspace);
        sum.comm = table_most(sum.comm, rank->device_usage.comm);
        sum.used =
            table_most(sum.used, rank->device_memory.total_bytes - rank->device_memory.free_bytes);
        sum.total = table_most(sum.total, rank->device_memory.total_bytes);
    }
    sum.unaccounted =
        (int64_t)sum.used - (int64_t)(sum.arena + sum.context + sum.workspace + sum.comm);
    return sum;
}

/* "0-3" */
static void table_ranks(const struct tess__run *run, int32_t device, char text[32])
{
    int32_t first = -1, last = -1;
    for (int32_t r = 0; r < run->rank_count; r++)
        if (run->config->device.of_rank[r] == device) {
            first = first < 0 ? r : first;
            last = r;
        }
    if (first == last)
        snprintf(text, 32, "%d", first);
    else
        snprintf(text, 32, "%d-%d", first, last);
}

static void table_gib(struct tess__table *table, bool known, double bytes)
{
    if (known)
        tess__table_add(table, "%.3f", bytes / (1024.0 * 1024 * 1024));
    else
        tess__table_add(table, "-");
}

static void table_print_devices(const struct tess__run *run)
{
    static const struct tess__column column[] = {
        {.title = "device", .width = 6, .key = true},
        {.title = "ranks", .width = 7},
        {.title = "arena", .width = 10},
        {.title = "context", .width = 10},
        {.title = "workspace", .brief = "work", .width = 10},
        {.title = "comm", .width = 10},
        {.title = "unaccounted", .brief = "unacc.", .width = 11},
        {.title = "used", .width = 10},
        {.title = "of", .width = 10},
    };
    struct tess__table table = {.column = column, .count = sizeof(column) / sizeof(column[0])};
    printf("\nmemory per device, GiB: what was laid out (arena), what libraries took beside it, "
           "and what the driver reports\n");
    for (int32_t d = 0; d < run->config->device.count; d++) {
        const struct tess__device_memory memory = tess__device_memory_of(run, d);
        const bool known = memory.total > 0;
        char ranks[32];
        table_ranks(run, d, ranks);
        tess__table_add(&table, "%d", d);
        tess__table_add(&table, "%s", ranks);
        table_gib(&table, true, (double)memory.arena);
        table_gib(&table, true, (double)memory.context);
        table_gib(&table, true, (double)memory.workspace);
        table_gib(&table, true, (double)memory.comm);
        table_gib(&table, known, (double)memory.unaccounted);
        table_gib(&table, known, (double)memory.used);
        table_gib(&table, known, (double)memory.total);
    }
    tess__table_print(&table, stdout);
    printf("used is of all programs on the device; unaccounted = used - the four before it\n");
}

/* What is kept for checkpoints and copies comes last, and has a column where there are some. */
static int table_kinds(const struct tess__run *run)
{
    if (!run->config->saves)
        return TESS_MEMORY_STAGING;
    return run->config->save.copy_steps > 0 ? TESS_MEMORY_KIND_COUNT : TESS_MEMORY_REDUNDANCY;
}

/* Columns: ranks, kinds of memory, total, peak RSS. */
#define TABLE_COLUMNS (TESS_MEMORY_KIND_COUNT + 3)

struct table {
    const struct tess__run *run;
    bool measured;
    struct tess__fold fold;
    int kinds;
    const char *unit;
    double divisor;
    struct tess__column column[TABLE_COLUMNS];
    struct tess__table printed;
};

static bool table_equal(const void *context, int32_t a, int32_t b)
{
    const struct table *table = context;
    const struct tess_job_memory *left = table_usage(table->run, a, table->measured);
    const struct tess_job_memory *right = table_usage(table->run, b, table->measured);
    return left == right || memcmp(left, right, sizeof(*left)) == 0;
}

static void table_row(struct table *table, int32_t group)
{
    const struct tess__run *run = table->run;
    const struct tess_job_memory *usage =
        table_usage(run, table->fold.group[group].first, table->measured);
    char name[TESS__FOLD_NAME_BYTES];
    uint64_t peak = 0;
    tess__table_add(&table->printed, "%s", tess__fold_name(&table->fold, group, name));
    for (int k = 0; k < table->kinds; k++)
        tess__table_add(&table->printed, "%.2f", (double)usage->bytes[k] / table->divisor);
    tess__table_add(&table->printed, "%.2f", (double)usage->total / table->divisor);
    for (int32_t r = 0; r < run->rank_count && table->measured; r++)
        if (table->fold.of[r] == group)
            peak = table_most(peak, run->rank[r].peak_rss);
    if (table->measured)
        tess__table_add(&table->printed, "%.2f", (double)peak / table->divisor);
}

static void table_print_rows(struct table *table)
{
    const struct tess__fold *fold = &table->fold;
    int32_t fullest = 0, shown = fold->count;
    for (int32_t g = 1; g < fold->count; g++)
        if (table_usage(table->run, fold->group[g].first, table->measured)->total >
            table_usage(table->run, fold->group[fullest].first, table->measured)->total)
            fullest = g;
    if (shown > TESS__FOLD_ROWS)
        shown = TESS__FOLD_ROWS - 1;
    for (int32_t g = 0; g < shown; g++)
        table_row(table, g);
    if (fullest >= shown)
        table_row(table, fullest);
    tess__table_print(&table->printed, stdout);
    if (shown < fold->count)
        printf("and %d more kinds of ranks; rank %d is the fullest\n",
               fold->count - shown - (fullest >= shown), fold->group[fullest].first);
}

/* A narrow terminal's table has no columns for kinds of which there is nothing. */
static void table_open_columns(struct table *table)
{
    int count = 0;
    table->column[count++] = (struct tess__column){.title = "rank", .width = 4, .key = true};
    for (int k = 0; k < table->kinds; k++)
        table->column[count++] =
            (struct tess__column){.title = tess_memory_kind_name((enum tess_memory_kind)k),
                                  .brief = tess__memory_kind_brief((enum tess_memory_kind)k),
                                  .width = 10,
                                  .zero = true};
    table->column[count++] = (struct tess__column){.title = "total", .width = 10};
    if (table->measured)
        table->column[count++] =
            (struct tess__column){.title = "peak RSS", .brief = "RSS", .width = 10};
    table->printed = (struct tess__table){.column = table->column, .count = count};
}

static enum tess_status table_open(struct table *table)
{
    const struct tess__run *run = table->run;
    uint64_t most = 0;
    TESS_TRY(tess__fold_open(&table->fold, run->rank_count, table_equal, table));
    table->kinds = table_kinds(run);
    for (int32_t g = 0; g < table->fold.count; g++)
        most =
            table_most(most, table_usage(run, table->fold.group[g].first, table->measured)->total);
    table_open_columns(table);
    table->divisor = 1;
    table->unit = tess__text_unit((double)most, &table->divisor);
    return TESS_OK;
}

void tess__memory_table_print(const struct tess__run *run, bool measured)
{
    struct table table = {.run = run, .measured = measured};
    char mapped[TESS__TEXT_BYTES];

    if (table_open(&table) == TESS_OK) {
        printf("\nmemory per rank, %s%s\n", table.unit, measured ? "" : ", as planned");
        table_print_rows(&table);
    }
    tess__fold_close(&table.fold);
    if (!measured)
        return;
    printf(
        "peak RSS is of the %s, with the program and the used pages of the shared data set (%s)\n",
        run->config->device.rank_mode == TESS_RANKS_THREADS ? "one process of all ranks"
                                                            : "rank's process",
        tess__text_bytes((double)run->dataset->mapped_bytes, mapped));
    if (tess__run_as_predicted(run))
        printf("%spredicted by the memory plan = allocated, for every kind on every rank%s\n",
               tess__screen_colour(stdout, TESS__COLOUR_GOOD),
               tess__screen_colour(stdout, TESS__COLOUR_PLAIN));
    else
        table_print_differences(run);
    if (run->config->device.module)
        table_print_devices(run);
}
