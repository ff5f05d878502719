/* Tables of memory per rank by kind: one unit for the whole table, so that columns compare. */
#include "run/memory_table.h"

#include "run/fold.h"
#include "tessera/check.h"
#include "text/text.h"

#include <stdio.h>
#include <string.h>

#define DIFFERENCES_MAX 16

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

static void table_print_devices(const struct tess__run *run)
{
    const double gib = 1024.0 * 1024 * 1024;
    printf(
        "\nmemory per device, GiB: what was laid out (arena), what libraries took beside it, and "
        "the driver's word\n%6s %7s %10s %10s %10s %10s %11s %10s %10s\n",
        "device", "ranks", "arena", "context", "workspace", "comm", "unaccounted", "used", "of");
    for (int32_t d = 0; d < run->config->device.count; d++) {
        const struct tess__device_memory memory = tess__device_memory_of(run, d);
        char ranks[32];
        table_ranks(run, d, ranks);
        printf("%6d %7s %10.3f %10.3f %10.3f %10.3f", d, ranks, (double)memory.arena / gib,
               (double)memory.context / gib, (double)memory.workspace / gib,
               (double)memory.comm / gib);
        if (memory.total > 0)
            printf(" %11.3f %10.3f %10.3f\n", (double)memory.unaccounted / gib,
                   (double)memory.used / gib, (double)memory.total / gib);
        else
            printf(" %11s %10s %10s\n", "-", "-", "-");
    }
    printf("used is of all programs on the device; unaccounted = used - the four before it\n");
}

/* What is kept for checkpoints and copies comes last, and has a column where there are some. */
static int table_kinds(const struct tess__run *run)
{
    if (!run->config->saves)
        return TESS_MEMORY_STAGING;
    return run->config->save.copy_steps > 0 ? TESS_MEMORY_KIND_COUNT : TESS_MEMORY_REDUNDANCY;
}

struct table {
    const struct tess__run *run;
    bool measured;
    struct tess__fold fold;
    int kinds, width; /* width: of the ranks' column */
    const char *unit;
    double divisor;
};

static bool table_equal(const void *context, int32_t a, int32_t b)
{
    const struct table *table = context;
    const struct tess_job_memory *left = table_usage(table->run, a, table->measured);
    const struct tess_job_memory *right = table_usage(table->run, b, table->measured);
    return left == right || memcmp(left, right, sizeof(*left)) == 0;
}

static void table_print_row(const struct table *table, int32_t group)
{
    const struct tess__run *run = table->run;
    const struct tess_job_memory *usage =
        table_usage(run, table->fold.group[group].first, table->measured);
    char name[TESS__FOLD_NAME_BYTES];
    uint64_t peak = 0;
    printf("%*s", table->width, tess__fold_name(&table->fold, group, name));
    for (int k = 0; k < table->kinds; k++)
        printf(" %10.2f", (double)usage->bytes[k] / table->divisor);
    printf(" %10.2f", (double)usage->total / table->divisor);
    for (int32_t r = 0; r < run->rank_count && table->measured; r++)
        if (table->fold.of[r] == group)
            peak = table_most(peak, run->rank[r].peak_rss);
    if (table->measured)
        printf(" %10.2f", (double)peak / table->divisor);
    putchar('\n');
}

static void table_print_rows(const struct table *table)
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
        table_print_row(table, g);
    if (fullest >= shown)
        table_print_row(table, fullest);
    if (shown < fold->count)
        printf("and %d more kinds of ranks; rank %d is the fullest\n",
               fold->count - shown - (fullest >= shown), fold->group[fullest].first);
}

static enum tess_status table_open(struct table *table)
{
    const struct tess__run *run = table->run;
    char name[TESS__FOLD_NAME_BYTES];
    uint64_t most = 0;
    TESS_TRY(tess__fold_open(&table->fold, run->rank_count, table_equal, table));
    table->kinds = table_kinds(run);
    table->width = (int)strlen("rank");
    for (int32_t g = 0; g < table->fold.count; g++) {
        const int length = (int)strlen(tess__fold_name(&table->fold, g, name));
        table->width = length > table->width ? length : table->width;
        most =
            table_most(most, table_usage(run, table->fold.group[g].first, table->measured)->total);
    }
    table->divisor = 1;
    table->unit = tess__text_unit((double)most, &table->divisor);
    return TESS_OK;
}

void tess__memory_table_print(const struct tess__run *run, bool measured)
{
    struct table table = {.run = run, .measured = measured};
    char mapped[TESS__TEXT_BYTES];

    if (table_open(&table) == TESS_OK) {
        printf("\nmemory per rank, %s%s\n%*s", table.unit, measured ? "" : ", as planned",
               table.width, "rank");
        for (int k = 0; k < table.kinds; k++)
            printf(" %10s", tess_memory_kind_name((enum tess_memory_kind)k));
        printf(" %10s%s\n", "total", measured ? "   peak RSS" : "");
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
        printf("predicted by the memory plan = allocated, for every kind on every rank\n");
    else
        table_print_differences(run);
    if (run->config->device.module)
        table_print_devices(run);
}
