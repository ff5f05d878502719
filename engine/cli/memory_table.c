/* Tables of memory per rank by kind: one unit for the whole table, so that columns compare. */
#include "cli/memory_table.h"

#include "cli/text.h"

#include <stdio.h>

static const struct tess__usage *table_usage(const struct tess__run *run, int32_t rank,
                                             bool measured)
{
    return measured ? &run->rank[rank].allocated : &run->predicted[rank];
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

void tess__memory_table_print(const struct tess__run *run, bool measured)
{
    char mapped[TESS__TEXT_BYTES];
    double divisor = 1, most = 0;
    const char *unit;

    for (int32_t r = 0; r < run->rank_count; r++)
        if ((double)table_usage(run, r, measured)->total > most)
            most = (double)table_usage(run, r, measured)->total;
    unit = tess__text_unit(most, &divisor);

    printf("\nmemory per rank, %s%s\n", unit, measured ? "" : ", as planned");
    printf("%4s", "rank");
    for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
        printf(" %10s", tess_memory_kind_name((enum tess_memory_kind)k));
    printf(" %10s%s\n", "total", measured ? "   peak RSS" : "");
    for (int32_t r = 0; r < run->rank_count; r++) {
        const struct tess__usage *usage = table_usage(run, r, measured);
        printf("%4d", r);
        for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
            printf(" %10.2f", (double)usage->bytes[k] / divisor);
        printf(" %10.2f", (double)usage->total / divisor);
        if (measured)
            printf(" %10.2f", (double)run->rank[r].peak_rss / divisor);
        putchar('\n');
    }
    if (!measured)
        return;
    printf(
        "peak RSS is of the %s, with the program and what it touched of the shared data set (%s)\n",
        run->config->strategy->rank_mode == TESS_RANKS_THREADS ? "one process of all ranks"
                                                               : "rank's process",
        tess__text_bytes((double)run->dataset->mapped_bytes, mapped));
    if (tess__run_as_predicted(run))
        printf("predicted by the memory plan = allocated, for every kind on every rank\n");
    else
        table_print_differences(run);
}
