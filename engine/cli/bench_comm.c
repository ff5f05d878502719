/*
 * tessera bench comm: time and bandwidth of every collective of the `local` communicator over a
 * list of sizes, beside plain memory copies by the same ranks in the same run; in the host's
 * memory, or, with ranks that are threads and share a device, in the device's. A table on stdout,
 * and one JSON line per row with --json.
 *
 * "size" is the bytes of the whole array: what all-reduce sums, what all-gather ends with, what
 * reduce-scatter begins with. Algorithm bandwidth is size / time; bus bandwidth multiplies it by
 * the share of the array that must cross the bus per rank whatever the algorithm, 2(N-1)/N for
 * all-reduce and (N-1)/N for the ones that move each share once, so that figures of different N
 * compare.
 */
#include "base/clock.h"
#include "base/options.h"
#include "cli/args.h"
#include "cli/bench_place.h"
#include "cli/command.h"
#include "cli/launch.h"
#include "cli/text.h"
#include "tessera/check.h"
#include "tessera/version.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BENCH_SIZES_MAX 24
#define BENCH_SIZE_MAX  (1ull << 36)
#define BENCH_SAMPLES   1000
#define BENCH_WARM_UP   2
#define BENCH_TIMEOUT_S 120.0
#define BENCH_TOUCHED   ((size_t)1 << 30) /* bytes per row, which sets the number of samples */

struct bench_options {
    int64_t ranks;
    const char *sizes;
    int32_t order, mode;
    bool rewrite, bind;
    const char *device, *kernel, *json;
};

static const struct tess_option bench_option_table[] = {
    {"ranks", TESS_OPTION_INT, offsetof(struct bench_options, ranks), "2", 1, TESS_WORLD_RANKS_MAX,
     NULL, "number of ranks"},
    {"sizes", TESS_OPTION_STRING, offsetof(struct bench_options, sizes),
     "4Ki,64Ki,256Ki,1Mi,4Mi,16Mi,64Mi,256Mi", 0, 0, NULL, "sizes in bytes, with Ki, Mi or Gi"},
    {"order", TESS_OPTION_CHOICE, offsetof(struct bench_options, order), "canonical", 0, 0,
     "canonical|fast", "order of sums"},
    {"mode", TESS_OPTION_CHOICE, offsetof(struct bench_options, mode), "processes", 0, 0,
     "processes|threads", "what ranks are"},
    {"rewrite", TESS_OPTION_BOOL, offsetof(struct bench_options, rewrite), "off", 0, 0, NULL,
     "each rank writes its array anew before every call, as training does; off: calls follow each "
     "other"},
    {"bind", TESS_OPTION_BOOL, offsetof(struct bench_options, bind), "on", 0, 0, NULL,
     "bind each rank to a core where there are enough"},
    {"device", TESS_OPTION_STRING, offsetof(struct bench_options, device), "cpu", 0, 0, NULL,
     "cpu: arrays in the host's memory; cuda, cuda:N: in a device's, which all ranks share, and "
     "sums by its kernels"},
    {"kernel", TESS_OPTION_STRING, offsetof(struct bench_options, kernel), "", 0, 0, NULL,
     "guard_queue: the same order of work without a device, for tests"},
    {"json", TESS_OPTION_STRING, offsetof(struct bench_options, json), "", 0, 0, NULL,
     "file to which one JSON line per row is added"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

enum bench_kind {
    BENCH_ALL_REDUCE,
    BENCH_REDUCE_SCATTER,
    BENCH_ALL_GATHER,
    BENCH_BROADCAST,
    BENCH_REDUCE,
    BENCH_ALL_TO_ALL,
    BENCH_SEND,
    BENCH_COPY,
    BENCH_KINDS
};

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

struct bench {
    struct bench_options options;
    size_t size[BENCH_SIZES_MAX];
    int size_count;
    FILE *json;
    char machine[128];
    bool on_device;
    char memory[128];                 /* whose: "host", or of what */
    struct tess__bench_place place;   /* where on_device */
    double copy_gbs[BENCH_SIZES_MAX]; /* in the launcher, as rows come in */
};

/* What rank 0 tells the launcher. */
struct bench_row {
    int32_t kind, size, samples;
    double median_s, p99_s, least_s;
};

/* One rank's arrays, of the greatest size each. */
struct bench_rank {
    const struct bench *bench;
    struct tess_comm *comm;
    struct tess_kernel *kernel; /* NULL: arrays are the host's */
    struct tess_fence *fence;
    float *a, *b;
    double *sample;
};

static enum tess_status bench_read_sizes(struct bench *bench)
{
    const char *text = bench->options.sizes;
    while (*text != '\0') {
        char *end;
        unsigned long long value = strtoull(text, &end, 10);
        static const char unit[] = "KMG";
        const char *at = end != text && *end != '\0' ? strchr(unit, *end) : NULL;
        int shift = at != NULL ? 10 * (int)(at - unit + 1) : 0;
        if (at != NULL)
            end += end[1] == 'i' ? 2 : 1;
        bool good = end != text && (*end == ',' || *end == '\0') &&
                    value <= BENCH_SIZE_MAX >> shift && value << shift >= 64 &&
                    bench->size_count < BENCH_SIZES_MAX;
        if (!good)
            TESS_FAIL(TESS_ERR_USAGE,
                      "--sizes '%s': expected up to %d sizes from 64 to 64Gi like 4Ki,16Mi", text,
                      BENCH_SIZES_MAX);
        bench->size[bench->size_count++] = (size_t)value << shift;
        text = *end == ',' ? end + 1 : end;
    }
    if (bench->size_count == 0)
        TESS_FAIL(TESS_ERR_USAGE, "--sizes is empty: give some, like 4Ki,16Mi");
    return TESS_OK;
}

static enum tess_status bench_neighbours(struct bench_rank *rank, size_t count)
{
    struct tess_comm *comm = rank->comm;
    int32_t n = comm->rank_count;
    struct tess_event event[2] = {{0}};
    if (n > 1) {
        TESS_TRY(tess_comm_send(comm, rank->a, count, TESS_F32, (comm->rank + 1) % n, &event[0]));
        TESS_TRY(
            tess_comm_recv(comm, rank->b, count, TESS_F32, (comm->rank + n - 1) % n, &event[1]));
    }
    TESS_TRY(tess_event_wait(&event[1]));
    return tess_event_wait(&event[0]);
}

static enum tess_status bench_call(struct bench_rank *rank, enum bench_kind kind, size_t bytes)
{
    struct tess_comm *comm = rank->comm;
    size_t count = bytes / sizeof(float), share = count / (size_t)comm->rank_count;
    float *a = rank->a, *b = rank->b;
    switch (kind) {
    case BENCH_ALL_REDUCE:
        return tess_comm_all_reduce(comm, a, a, count, TESS_F32, TESS_REDUCE_SUM, NULL);
    case BENCH_REDUCE_SCATTER:
        return tess_comm_reduce_scatter(comm, a, b, share, TESS_F32, TESS_REDUCE_SUM, NULL);
    case BENCH_ALL_GATHER:
        return tess_comm_all_gather(comm, b + (size_t)comm->rank * share, b, share, TESS_F32, NULL);
    case BENCH_BROADCAST:
        return tess_comm_broadcast(comm, a, count, TESS_F32, 0, NULL);
    case BENCH_REDUCE:
        return tess_comm_reduce(comm, a, b, count, TESS_F32, TESS_REDUCE_SUM, 0, NULL);
    case BENCH_ALL_TO_ALL:
        return tess_comm_all_to_all(comm, a, b, share, TESS_F32, NULL);
    case BENCH_SEND:
        return bench_neighbours(rank, count);
    default:
        if (rank->kernel != NULL)
            tess_copy(rank->kernel, (int64_t)bytes, a, b);
        else
            memcpy(b, a, bytes);
        return TESS_OK;
    }
}

/* The host goes on before a device has done its work: wait until it has. */
static enum tess_status bench_finish(struct bench_rank *rank)
{
    if (rank->kernel == NULL)
        return TESS_OK;
    TESS_TRY(rank->kernel->queue->ops->record(rank->kernel->queue, rank->fence));
    TESS_TRY(rank->kernel->queue->ops->wait(rank->fence));
    return rank->kernel->ops->failed(rank->kernel);
}

static enum tess_status bench_zero(struct bench_rank *rank, float *array, size_t bytes)
{
    if (rank->kernel == NULL) {
        memset(array, 0, bytes);
        return TESS_OK;
    }
    tess_fill(rank->kernel, (int64_t)bytes, 0, array);
    return bench_finish(rank);
}

static int bench_compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Values stay finite however often they are summed: they are written anew, or stay zero. */
static enum tess_status bench_rewrite(struct bench_rank *rank, enum bench_kind kind, size_t bytes,
                                      int turn)
{
    float *array = kind == BENCH_ALL_GATHER ? rank->b : rank->a;
    if (rank->kernel != NULL)
        return bench_zero(rank, array, bytes);
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        array[i] = 1.0f + (float)(turn % 4);
    return TESS_OK;
}

/* Time one row; every rank takes part, rank 0 reports. */
static enum tess_status bench_measure(struct bench_rank *rank, struct tess__rank *launched,
                                      enum bench_kind kind, int size_index)
{
    size_t bytes = rank->bench->size[size_index];
    size_t wanted = BENCH_TOUCHED / bytes;
    int samples = wanted > BENCH_SAMPLES ? BENCH_SAMPLES : wanted < 5 ? 5 : (int)wanted;
    bool rewrite = rank->bench->options.rewrite;
    TESS_TRY(bench_zero(rank, rank->a, bytes));
    TESS_TRY(bench_zero(rank, rank->b, bytes));
    TESS_TRY(tess_comm_barrier(rank->comm));
    double start = tess_clock_s();
    for (int i = -BENCH_WARM_UP; i < samples; i++) {
        if (rewrite) {
            TESS_TRY(bench_rewrite(rank, kind, bytes, i + BENCH_WARM_UP));
            TESS_TRY(tess_comm_barrier(rank->comm));
            start = tess_clock_s();
        }
        TESS_TRY(bench_call(rank, kind, bytes));
        TESS_TRY(bench_finish(rank));
        double now = tess_clock_s();
        if (i >= 0)
            rank->sample[i] = now - start;
        start = now;
        if (rewrite)
            TESS_TRY(tess_comm_barrier(rank->comm));
    }
    TESS_TRY(tess_comm_barrier(rank->comm));
    if (rank->comm->rank != 0)
        return TESS_OK;
    qsort(rank->sample, (size_t)samples, sizeof *rank->sample, bench_compare_doubles);
    struct bench_row row = {.kind = (int32_t)kind,
                            .size = size_index,
                            .samples = samples,
                            .median_s = rank->sample[samples / 2],
                            .p99_s = rank->sample[(samples * 99 + 99) / 100 - 1],
                            .least_s = rank->sample[0]};
    return tess__rank_send(launched, 0, &row, sizeof row);
}

static enum tess_status bench_alloc(struct bench_rank *rank, size_t bytes, void **memory_out)
{
    return rank->kernel != NULL ? rank->kernel->ops->alloc(rank->kernel, bytes, memory_out)
                                : tess_comm_alloc(rank->comm, bytes, memory_out);
}

static enum tess_status bench_rank_measure(struct bench_rank *rank, struct tess__rank *launched)
{
    size_t most = 0;
    for (int s = 0; s < rank->bench->size_count; s++)
        most = rank->bench->size[s] > most ? rank->bench->size[s] : most;
    void *a, *b;
    TESS_TRY(bench_alloc(rank, most, &a));
    rank->a = a;
    TESS_TRY(bench_alloc(rank, most, &b));
    rank->b = b;
    /* Copies first: the other rows are shown beside them. */
    for (int s = 0; s < rank->bench->size_count; s++)
        TESS_TRY(bench_measure(rank, launched, BENCH_COPY, s));
    for (int kind = 0; kind < BENCH_COPY; kind++)
        for (int s = 0; s < rank->bench->size_count; s++)
            TESS_TRY(bench_measure(rank, launched, (enum bench_kind)kind, s));
    return TESS_OK;
}

/* The rank's own kernels, on the device that all share; the group's calls run beside them. */
static enum tess_status bench_open_kernel(struct bench_rank *rank)
{
    if (!rank->bench->on_device)
        return TESS_OK;
    TESS_TRY(tess__bench_place_open(&rank->bench->place, 1, &rank->kernel));
    TESS_TRY(rank->kernel->ops->queue->fence_open(rank->kernel, &rank->fence));
    return tess_comm_attach(rank->comm, rank->kernel->queue);
}

/* After the group is closed; NULL is allowed everywhere. */
static void bench_close_kernel(struct bench_rank *rank)
{
    if (rank->kernel == NULL)
        return;
    rank->kernel->ops->free(rank->kernel, rank->a);
    rank->kernel->ops->free(rank->kernel, rank->b);
    if (rank->fence != NULL)
        rank->fence->ops->fence_close(rank->fence);
    tess__bench_place_close(rank->kernel);
}

static enum tess_status bench_body(void *context, struct tess__rank *launched)
{
    struct bench_rank rank = {.bench = context};
    enum tess_order order = (enum tess_order)rank.bench->options.order;
    TESS_TRY(
        tess_comm_local_open(launched->world, launched->rank, order, BENCH_TIMEOUT_S, &rank.comm));
    rank.sample = calloc(BENCH_SAMPLES, sizeof *rank.sample);
    enum tess_status status = rank.sample != NULL ? bench_open_kernel(&rank) : TESS_ERR_MEMORY;
    if (status == TESS_OK)
        status = bench_rank_measure(&rank, launched);
    if (status == TESS_OK) /* peers may still read this rank's arrays */
        status = tess_comm_barrier(rank.comm);
    free(rank.sample);
    tess_comm_close(rank.comm);
    bench_close_kernel(&rank);
    return status;
}

static const char *bench_mode_name(const struct bench *bench)
{
    return bench->options.mode == 0 ? "processes" : "threads";
}

static enum tess_status bench_write_json(const struct bench *bench, const struct bench_row *row,
                                         double algorithm_gbs, double bus_gbs)
{
    char date[40];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_t *line = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:I, s:s, s:s, s:b, s:s, s:I, s:i, s:f, s:f, s:f, s:f, s:f, "
        "s:f}",
        "bench", "comm", "version", TESS_VERSION, "date", date, "machine", bench->machine, "memory",
        bench->memory, "ranks", (json_int_t)bench->options.ranks, "order",
        bench->options.order == 0 ? "canonical" : "fast", "mode", bench_mode_name(bench), "rewrite",
        (int)bench->options.rewrite, "operation", bench_kinds[row->kind].name, "bytes",
        (json_int_t)bench->size[row->size], "samples", (int)row->samples, "median_us",
        row->median_s * 1e6, "p99_us", row->p99_s * 1e6, "min_us", row->least_s * 1e6,
        "algorithm_gbs", algorithm_gbs, "bus_gbs", bus_gbs, "memcpy_gbs",
        bench->copy_gbs[row->size]);
    bool written = line != NULL && json_dumpf(line, bench->json, JSON_COMPACT) == 0 &&
                   fputc('\n', bench->json) != EOF && fflush(bench->json) == 0;
    json_decref(line);
    if (!written)
        TESS_FAIL(TESS_ERR_IO, "cannot write to '%s'", bench->options.json);
    return TESS_OK;
}

static enum tess_status bench_message(void *context, const struct tess__message *message)
{
    struct bench *bench = context;
    struct bench_row row;
    memcpy(&row, message->payload, sizeof row);
    const struct bench_row_kind *kind = &bench_kinds[row.kind];
    double n = (double)bench->options.ranks, bytes = (double)bench->size[row.size];
    double algorithm_gbs = bytes / row.median_s / 1e9;
    double bus_gbs = algorithm_gbs * kind->times * (kind->whole ? 1 : (n - 1) / n);
    if (row.kind == BENCH_COPY) {
        bus_gbs = algorithm_gbs * n; /* all ranks copy at the same time */
        bench->copy_gbs[row.size] = bus_gbs;
    }
    char size[TESS__TEXT_BYTES];
    printf("%-14s %10s %12.1f %12.1f %12.2f %12.2f %12.2f\n", kind->name,
           tess__text_bytes(bytes, size), row.median_s * 1e6, row.p99_s * 1e6, algorithm_gbs,
           bus_gbs, bench->copy_gbs[row.size]);
    fflush(stdout);
    return bench->json != NULL ? bench_write_json(bench, &row, algorithm_gbs, bus_gbs) : TESS_OK;
}

/* On a device ranks are threads: processes do not reach each other's device memory. */
static enum tess_status bench_find_place(struct bench *bench, bool mode_given)
{
    snprintf(bench->memory, sizeof bench->memory, "host");
    bench->on_device =
        strcmp(bench->options.device, "cpu") != 0 || bench->options.kernel[0] != '\0';
    if (!bench->on_device)
        return TESS_OK;
    TESS_TRY(tess__bench_place_find(bench->options.device, bench->options.kernel, &bench->place));
    if (bench->place.ops->queue == NULL)
        TESS_FAIL(TESS_ERR_USAGE,
                  "kernel %s computes in the host's memory: leave --kernel and --device out",
                  bench->place.ops->name);
    if (mode_given && bench->options.mode == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "ranks that share a device are threads of one process: leave --mode out");
    bench->options.mode = 1;
    (void)tess__bench_place_text(&bench->place, bench->memory);
    return TESS_OK;
}

static enum tess_status bench_run(struct bench *bench, bool mode_given)
{
    TESS_TRY(bench_read_sizes(bench));
    TESS_TRY(bench_find_place(bench, mode_given));
    if (bench->options.json[0] != '\0') {
        bench->json = fopen(bench->options.json, "a");
        if (bench->json == NULL)
            TESS_FAIL(TESS_ERR_IO, "cannot open '%s' for writing", bench->options.json);
    }
    tess__text_machine(bench->machine);
    if (bench->on_device)
        printf("%s: ", bench->memory);
    printf("%s, %lld ranks as %s, sums in %s order, %s\n"
           "bandwidth in GB/s; memcpy: all ranks copying that size at the same time, in sum\n"
           "%-14s %10s %12s %12s %12s %12s %12s\n",
           bench->machine, (long long)bench->options.ranks, bench_mode_name(bench),
           bench->options.order == 0 ? "canonical" : "fast",
           bench->options.rewrite ? "arrays written anew before each call" : "calls back to back",
           "operation", "size", "median us", "p99 us", "algorithm", "bus", "memcpy");
    fflush(stdout);
    struct tess__launch launch = {.rank_count = (int32_t)bench->options.ranks,
                                  .mode = bench->options.mode == 0 ? TESS_RANKS_PROCESSES
                                                                   : TESS_RANKS_THREADS,
                                  .bind = bench->options.bind,
                                  .context = bench,
                                  .body = bench_body,
                                  .message = bench_message};
    enum tess_status status = tess__launch_run(&launch);
    if (bench->json != NULL && fclose(bench->json) != 0 && status == TESS_OK)
        TESS_FAIL(TESS_ERR_IO, "cannot write to '%s'", bench->options.json);
    return status;
}

int tess__command_bench_comm(int argc, char **argv)
{
    struct bench bench = {.size_count = 0};
    struct tess_options *options = NULL;
    struct tess__args args;
    enum tess_status status;
    TESS_TRY_GOTO(status, close_options, tess__args_init(&args, argc, argv));
    TESS_TRY_GOTO(status, close_options, tess_options_open(&options));
    TESS_TRY_GOTO(status, close_options,
                  tess_options_add(options, "", bench_option_table, &bench.options));
    if (tess__args_has(&args, "help")) {
        printf("usage: tessera bench comm [--ranks N] [--sizes 4Ki,16Mi] [--device cuda] [--json "
               "FILE]\n"
               "       ...\n\n"
               "Measure the collectives of ranks on this machine, beside plain memory copies.\n\n");
        tess_options_print_help(options);
        goto close_options;
    }
    int words = 0;
    TESS_TRY_GOTO(status, close_options,
                  tess_options_load_arguments(options, argc, argv, NULL, 0, &words));
    status = bench_run(&bench, tess_options_is_set(options, "mode"));
close_options:
    tess_options_close(options);
    return tess_status_exit_code(status);
}
