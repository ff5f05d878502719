/* Tables of memory per rank by kind: one unit for the whole table, so that columns compare. */
#include "run/memory_table.h"

#include "text/text.h"

#include <stdio.h>

static const struct tess_job_memory *table_usage(const struct tess__run *run, int32_t rank,
                                                 bool measured)
{
    return measured ? &run->rank[rank].allocated : tess__run_predicted(run, rank);
}

static void table_print_differences(const struct tess__run *run)
{
    char expected[TESS__TEXT_BYTES], found[TESS__TEXT_BYTES];
    for (int32_t r = 0; r < run->rank_count; r++)
        for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++) {
            uint64_t predicted = run->predicted[r].bytes[k];
            uint64_t allocated = run->rank[r].allocated.bytes[k];
            if (predicted != allocated)
                printf("rank %d: %s: the plan predicted %s, %s were allocated\n", r,
                       tess_memory_kind_name((enum tess_memory_kind)k),
                       tess__text_bytes((double)predicted, expected),
                       tess__text_bytes((double)allocated, found));
        }
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

/* Of a plan of many ranks, those alone that differ from one that was printed. */
static bool table_shows(const struct tess__run *run, int32_t rank)
{
    return run->folded == NULL || tess__run_alike(&run->config->mesh, rank) == rank;
}

void tess__memory_table_print(const struct tess__run *run, bool measured)
{
    char mapped[TESS__TEXT_BYTES];
    const int kinds = table_kinds(run);
    double divisor = 1;
    uint64_t most = 0;
    for (int32_t r = 0; r < run->rank_count; r++)
        most = table_most(most, table_usage(run, r, measured)->total);
    const char *unit = tess__text_unit((double)most, &divisor);

    printf("\nmemory per rank, %s%s\n", unit, measured ? "" : ", as planned");
    printf("%4s", "rank");
    for (int k = 0; k < kinds; k++)
        printf(" %10s", tess_memory_kind_name((enum tess_memory_kind)k));
    printf(" %10s%s\n", "total", measured ? "   peak RSS" : "");
    for (int32_t r = 0; r < run->rank_count; r++) {
        const struct tess_job_memory *usage = table_usage(run, r, measured);
        if (!table_shows(run, r))
            continue;
        printf("%4d", r);
        for (int k = 0; k < kinds; k++)
            printf(" %10.2f", (double)usage->bytes[k] / divisor);
        printf(" %10.2f", (double)usage->total / divisor);
        if (measured)
            printf(" %10.2f", (double)run->rank[r].peak_rss / divisor);
        putchar('\n');
    }
    if (run->folded != NULL)
        printf("the other ranks of a stage hold what its second along the data and the tensor axis "
               "holds\n");
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
