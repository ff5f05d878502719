/*
 * What tessera bench comm prints: a head, then one row per operation and size, or, where orders of
 * ranks are compared, one row with the bus bandwidth of each; and JSON lines.
 */
#include "bench/comm/bench_comm.h"
#include "tessera/check.h"
#include "tessera/version.h"
#include "text/text.h"

#include <jansson.h>
#include <string.h>
#include <time.h>

/* Bus bandwidth = algorithm bandwidth * times * (N - 1) / N, or * times where `whole`. */
static const struct bench_row_kind {
    const char *name;
    int times;
    bool whole;
} bench_kinds[BENCH_KINDS] = {
    [BENCH_ALL_REDUCE] = {"all_reduce", 2, false},
    [BENCH_REDUCE_SCATTER] = {"reduce_scatter", 1, false},
    [BENCH_ALL_GATHER] = {"all_gather", 1, false},
    [BENCH_BROADCAST] = {"broadcast", 1, true},
    [BENCH_REDUCE] = {"reduce", 1, true},
    [BENCH_ALL_TO_ALL] = {"all_to_all", 1, false},
    [BENCH_SEND] = {"send and recv", 1, true},
    [BENCH_COPY] = {"memcpy", 1, true},
};

static const char *bench_mode_name(const struct bench *bench)
{
    return bench->options.mode == 0 ? "processes" : "threads";
}

/* "local", "tcp", "mpi (Open MPI 4.1.4)", "mpi (Open MPI 4.1.4, its own collectives)". */
static const char *bench_comm_name(const struct bench *bench, char text[80])
{
    char more[64];
    bench->comm->describe(tess_comm_options_of(&bench->options.comms, bench->comm), more,
                          sizeof(more));
    snprintf(text, 80, more[0] ? "%s (%s)" : "%s", bench->comm->name, more);
    return text;
}

static void bench_print_head(const struct bench *bench)
{
    char comm[80];
    if (bench->on_device)
        printf("%s: ", bench->memory);
    printf("%s, %lld ranks as %s, by %s, sums in %s order, %s\n", bench->machine,
           (long long)bench->options.ranks, bench_mode_name(bench), bench_comm_name(bench, comm),
           bench->options.order == 0 ? "canonical" : "fast",
           bench->options.rewrite ? "arrays written anew before each call" : "calls back to back");
    if (bench->starter)
        printf("started by %s on %d host%s: %s\n", bench->starter, (int)bench->hosts.count,
               bench->hosts.count > 1 ? "s" : "", bench->hosts.names);
    if (bench->rank_order_count == 1) {
        if (strcmp(bench->rank_order[0], "natural") != 0)
            printf("order of ranks: %s\n", bench->rank_order[0]);
        printf("bandwidth in GB/s; memcpy: all ranks copying that size at the same time, in sum\n"
               "%-14s %10s %12s %12s %12s %12s %12s\n",
               "operation", "size", "median us", "p99 us", "algorithm", "bus", "memcpy");
        return;
    }
    printf("bus bandwidth in GB/s per order of ranks\n%-14s %10s", "operation", "size");
    for (int order = 0; order < bench->rank_order_count; order++)
        printf(" %16s", bench->rank_order[order]);
    putchar('\n');
}

static enum tess_status bench_write_json(struct bench *bench, const struct bench_row *row,
                                         double algorithm_gbs, double bus_gbs)
{
    char date[40], comm[80];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &utc);
    return tess__bench_write(
        &bench->log,
        json_pack(
            "{s:s, s:s, s:s, s:s, s:s, s:I, s:s, s:s, s:b, s:s, s:I, s:i, s:f, s:f, s:f, s:f, s:f, "
            "s:f, s:s, s:i, s:s}",
            "bench", "comm", "version", TESS_VERSION, "date", date, "machine", bench->machine,
            "memory", bench->memory, "ranks", (json_int_t)bench->options.ranks, "order",
            bench->options.order == 0 ? "canonical" : "fast", "mode", bench_mode_name(bench),
            "rewrite", (int)bench->options.rewrite, "operation", bench_kinds[row->kind].name,
            "bytes", (json_int_t)tess__bench_size(bench, row->size), "samples", (int)row->samples,
            "median_us", row->median_s * 1e6, "p99_us", row->p99_s * 1e6, "min_us",
            row->least_s * 1e6, "algorithm_gbs", algorithm_gbs, "bus_gbs", bus_gbs, "memcpy_gbs",
            bench->copy_gbs[row->size], "comm", bench_comm_name(bench, comm), "hosts",
            (int)bench->hosts.count, "rank_order", bench->rank_order[row->rank_order]));
}

/* A row of the table of orders is complete with its last one; copies have no order. */
static void bench_print_orders(struct bench *bench, const struct bench_row *row, double bus_gbs)
{
    char size[TESS__TEXT_BYTES];
    bench->bus_gbs[row->rank_order] = bus_gbs;
    if (row->kind == BENCH_COPY || row->rank_order + 1 < bench->rank_order_count)
        return;
    printf("%-14s %10s", bench_kinds[row->kind].name,
           tess__text_bytes((double)tess__bench_size(bench, row->size), size));
    for (int order = 0; order < bench->rank_order_count; order++)
        printf(" %16.3f", bench->bus_gbs[order]);
    putchar('\n');
}

static enum tess_status bench_take_row(struct bench *bench, const struct bench_row *row)
{
    const struct bench_row_kind *kind = &bench_kinds[row->kind];
    double n = (double)bench->options.ranks, bytes = (double)tess__bench_size(bench, row->size);
    double algorithm_gbs = bytes / row->median_s / 1e9;
    double bus_gbs = algorithm_gbs * kind->times * (kind->whole ? 1 : (n - 1) / n);
    if (row->kind == BENCH_COPY) {
        bus_gbs = algorithm_gbs * n; /* all ranks copy at the same time */
        bench->copy_gbs[row->size] = bus_gbs;
    }
    char size[TESS__TEXT_BYTES];
    if (bench->rank_order_count > 1)
        bench_print_orders(bench, row, bus_gbs);
    else
        printf("%-14s %10s %12.1f %12.1f %12.2f %12.2f %12.2f\n", kind->name,
               tess__text_bytes(bytes, size), row->median_s * 1e6, row->p99_s * 1e6, algorithm_gbs,
               bus_gbs, bench->copy_gbs[row->size]);
    fflush(stdout);
    return bench->log.file ? bench_write_json(bench, row, algorithm_gbs, bus_gbs) : TESS_OK;
}

enum tess_status tess__bench_comm_message(void *context, const struct tess__message *message)
{
    struct bench *bench = context;
    struct bench_row row;
    if (message->rank != 0 || !bench->prints)
        return TESS_OK;
    if (message->kind == BENCH_HOSTS) {
        memcpy(&bench->hosts, message->payload, sizeof(bench->hosts));
        bench->hosts.names[sizeof(bench->hosts.names) - 1] = '\0';
        bench_print_head(bench);
        fflush(stdout);
        return TESS_OK;
    }
    memcpy(&row, message->payload, sizeof(row));
    return bench_take_row(bench, &row);
}
