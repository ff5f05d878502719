/*
 * tessera bench comm: time and bandwidth of every collective over a list of sizes, beside plain
 * memory copies by the same ranks in the same run; between ranks of this host, by its memory or by
 * sockets, or between those that mpirun, srun or torchrun has started; in the host's memory, or,
 * with ranks that are threads and share a device, in the device's. A table on stdout, and one JSON
 * line per row with --json.
 *
 * "size" is the bytes of the whole array: what all-reduce sums, what all-gather ends with, what
 * reduce-scatter begins with. Algorithm bandwidth is size / time; bus bandwidth multiplies it by
 * the share of the array that must cross the bus per rank whatever the algorithm, 2(N-1)/N for
 * all-reduce and (N-1)/N for the ones that move each share once, so that figures of different N
 * compare.
 */
#include "bench/comm/bench_comm.h"
#include "base/clock.h"
#include "base/options.h"
#include "job/launch_env.h"
#include "job/open_comm.h"
#include "tessera/check.h"
#include "tessera/registry.h"
#include "text/command.h"
#include "text/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BENCH_SAMPLES   1000
#define BENCH_WARM_UP   2
#define BENCH_TIMEOUT_S 120.0
#define BENCH_TOUCHED   ((size_t)1 << 30) /* bytes per row, which sets the number of samples */
#define BENCH_ROW_S     2.0               /* a row: networks may be slow, and machines busy */
#define BENCH_LEAST     5                 /* samples */

#define BENCH_FIELD(member) offsetof(struct bench_options, member)

static const struct tess_option bench_option_table[] = {
    TESS_ROW_INT("ranks", BENCH_FIELD(ranks), "2", 1, TESS_RANKS_MAX, "number of ranks"),
    TESS_ROW_INTS("sizes", BENCH_FIELD(sizes), "4Ki,64Ki,256Ki,1Mi,4Mi,16Mi,64Mi,256Mi", 64, 0x1p36,
                  "bytes of the arrays"),
    TESS_ROW_CHOICE("operation", BENCH_FIELD(operation), "all",
                    "all_reduce|reduce_scatter|all_gather|broadcast|reduce|all_to_all|send|all",
                    "what is measured; one operation alone: without copies beside it"),
    TESS_ROW_CHOICE("order", BENCH_FIELD(order), "canonical", "canonical|fast", "order of sums"),
    TESS_ROW_CHOICE("mode", BENCH_FIELD(mode), "processes", "processes|threads", "what ranks are"),
    TESS_ROW_BOOL(
        "rewrite", BENCH_FIELD(rewrite), "off",
        "each rank rewrites its array before every call, as training does; off: calls follow each "
        "other"),
    TESS_ROW_BOOL("bind", BENCH_FIELD(bind), "on",
                  "bind each rank to a core where there are enough"),
    TESS_ROW_STRING(
        "device", BENCH_FIELD(device), "cpu",
        "cpu: arrays in the host's memory; cuda, cuda:N: in a device's, which all ranks share, and "
        "sums by its kernels"),
    TESS_ROW_STRING("kernel", BENCH_FIELD(kernel), "",
                    "guard_queue: the same order of work without a device, for tests"),
    TESS_ROW_STRING(
        "comm", BENCH_FIELD(comm), "auto",
        "communicator, how ranks exchange data: one of the list of tessera help; auto: local where "
        "this program starts the ranks, else mpi under mpirun where it is installed, else tcp"),
    TESS_ROW_STRING(
        "rank-orders", BENCH_FIELD(rank_orders), "natural",
        "orders of the ranks within the group, to be compared in one table where there are "
        "several, separated by ';': natural, interleaved (one rank of every host in turn), or all "
        "ranks as 0,4,1,5"),
    TESS_ROW_INT(
        "rack-hosts", BENCH_FIELD(rack_hosts), "0", 0, TESS_RANKS_MAX,
        "hosts of a rack, one rack after the other, by which canonical sums choose their ways; "
        "0: not known"),
    TESS_ROW_STRING("json", BENCH_FIELD(json), "", "file to which one JSON line per row is added"),
    TESS_ROW_END,
};

/* One rank's arrays, of the greatest size each. */
struct bench_rank {
    const struct bench *bench;
    const struct tess__rank *launched;
    struct tess_comm *comm, *order_comm[BENCH_ORDERS_MAX]; /* [0] may be comm itself */
    int32_t *host;                                         /* [ranks] */
    struct tess_kernel *kernel;                            /* NULL: arrays are the host's */
    struct tess_fence *fence;
    float *a, *b;
    double *sample;
};

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
        if (rank->kernel)
            tess_copy(rank->kernel, (int64_t)bytes, a, b);
        else
            memcpy(b, a, bytes);
        return TESS_OK;
    }
}

/* The host runs ahead of a device: wait until the device has finished. */
static enum tess_status bench_finish(struct bench_rank *rank)
{
    if (!rank->kernel)
        return TESS_OK;
    TESS_TRY(rank->kernel->queue->ops->record(rank->kernel->queue, rank->fence));
    TESS_TRY(rank->kernel->queue->ops->wait(rank->fence));
    return rank->kernel->ops->failed(rank->kernel);
}

static enum tess_status bench_zero(struct bench_rank *rank, float *array, size_t bytes)
{
    if (!rank->kernel) {
        memset(array, 0, bytes);
        return TESS_OK;
    }
    tess_fill(rank->kernel, (int64_t)bytes, 0, array);
    return bench_finish(rank);
}

/* Repeated sums stay finite: the values are rewritten, or stay zero. */
static enum tess_status bench_rewrite(struct bench_rank *rank, enum bench_kind kind, size_t bytes,
                                      int turn)
{
    float *array = kind == BENCH_ALL_GATHER ? rank->b : rank->a;
    if (rank->kernel)
        return bench_zero(rank, array, bytes);
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        array[i] = 1.0f + (float)(turn % 4);
    return TESS_OK;
}

/* Doubles the samples of a row while bytes and time allow; the slowest rank's time decides. */
static enum tess_status bench_more(struct bench_rank *rank, size_t bytes, double begin_s,
                                   int *samples)
{
    const double most = fmin(fmax((double)(BENCH_TOUCHED / bytes), BENCH_LEAST), BENCH_SAMPLES);
    double passed_s = tess_clock_s() - begin_s, slowest_s;
    TESS_TRY(tess_comm_all_reduce(rank->comm, &passed_s, &slowest_s, 1, TESS_F64, TESS_REDUCE_MAX,
                                  NULL));
    if (2 * slowest_s <= BENCH_ROW_S)
        *samples = (int)fmin(2 * *samples, most);
    return TESS_OK;
}

/* One call, timed from a common start into *seconds_out; *start is the time after it. */
static enum tess_status bench_sample(struct bench_rank *rank, enum bench_kind kind, size_t bytes,
                                     int turn, double *start_s, double *seconds_out)
{
    const bool rewrite = rank->bench->options.rewrite;
    if (rewrite) {
        TESS_TRY(bench_rewrite(rank, kind, bytes, turn));
        TESS_TRY(tess_comm_barrier(rank->comm));
        *start_s = tess_clock_s();
    }
    TESS_TRY(bench_call(rank, kind, bytes));
    TESS_TRY(bench_finish(rank));
    const double now_s = tess_clock_s();
    *seconds_out = now_s - *start_s;
    *start_s = now_s;
    return rewrite ? tess_comm_barrier(rank->comm) : TESS_OK;
}

/* Time one row; every rank takes part, rank 0 of the job reports. */
static enum tess_status bench_measure(struct bench_rank *rank, enum bench_kind kind, int size_index,
                                      int order)
{
    const size_t bytes = tess__bench_size(rank->bench, size_index);
    int samples = BENCH_LEAST, taken = 0;
    rank->comm = rank->order_comm[order];
    TESS_TRY(bench_zero(rank, rank->a, bytes));
    TESS_TRY(bench_zero(rank, rank->b, bytes));
    TESS_TRY(tess_comm_barrier(rank->comm));
    double start_s = tess_clock_s();
    for (int i = 0; i < BENCH_WARM_UP; i++)
        TESS_TRY(bench_sample(rank, kind, bytes, i, &start_s, &rank->sample[0]));
    const double begin_s = tess_clock_s();
    while (taken < samples) {
        for (start_s = tess_clock_s(); taken < samples; taken++)
            TESS_TRY(bench_sample(rank, kind, bytes, taken, &start_s, &rank->sample[taken]));
        TESS_TRY(bench_more(rank, bytes, begin_s, &samples));
    }
    TESS_TRY(tess_comm_barrier(rank->comm));
    if (rank->launched->rank != 0)
        return TESS_OK;
    tess__bench_sort(rank->sample, (size_t)samples);
    struct bench_row row = {.kind = (int32_t)kind,
                            .size = size_index,
                            .samples = samples,
                            .rank_order = order,
                            .median_s = rank->sample[samples / 2],
                            .p99_s = rank->sample[(samples * 99 + 99) / 100 - 1],
                            .least_s = rank->sample[0]};
    return tess__rank_send(rank->launched, BENCH_ROW, &row, sizeof(row));
}

static enum tess_status bench_alloc(struct bench_rank *rank, size_t bytes, void **memory_out)
{
    return rank->kernel ? rank->kernel->ops->alloc(rank->kernel, bytes, memory_out)
                        : tess_comm_alloc(rank->comm, bytes, memory_out);
}

static enum tess_status bench_rank_measure(struct bench_rank *rank)
{
    const struct bench *bench = rank->bench;
    size_t most = 0;
    for (int s = 0; s < bench->options.sizes.count; s++)
        most = tess__bench_size(bench, s) > most ? tess__bench_size(bench, s) : most;
    void *a, *b;
    TESS_TRY(bench_alloc(rank, most, &a));
    rank->a = a;
    TESS_TRY(bench_alloc(rank, most, &b));
    rank->b = b;
    const int one = bench->options.operation;
    /* Copies first: the other rows are shown beside them. */
    for (int s = 0; s < bench->options.sizes.count && one == BENCH_COPY; s++)
        TESS_TRY(bench_measure(rank, BENCH_COPY, s, 0));
    for (int kind = 0; kind < BENCH_COPY; kind++) {
        if (one != BENCH_COPY && one != kind)
            continue;
        for (int s = 0; s < bench->options.sizes.count; s++)
            for (int order = 0; order < bench->rank_order_count; order++)
                TESS_TRY(bench_measure(rank, (enum bench_kind)kind, s, order));
    }
    return TESS_OK;
}

/* Which host has which rank; rank 0 reports it. */
static enum tess_status bench_find_hosts(struct bench_rank *rank)
{
    const int32_t ranks = rank->comm->rank_count;
    char own[BENCH_HOST_BYTES] = "", (*all)[BENCH_HOST_BYTES] = calloc((size_t)ranks, sizeof(*all));
    struct bench_hosts hosts = {0};
    size_t used = 0;
    rank->host = calloc((size_t)ranks, sizeof(*rank->host));
    if (!all || !rank->host) {
        free(all);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the hosts of %d ranks", (int)ranks);
    }
    (void)gethostname(own, sizeof(own) - 1);
    enum tess_status status =
        tess_comm_all_gather(rank->comm, own, all, sizeof(own), TESS_U8, NULL);
    for (int32_t r = 0; r < ranks && status == TESS_OK; r++) {
        int32_t first = 0, count = 0;
        while (strncmp(all[first], all[r], sizeof(own)) != 0)
            first++;
        rank->host[r] = first < r ? rank->host[first] : hosts.count++;
        for (int32_t other = 0; other < ranks && first == r; other++)
            count += strncmp(all[other], all[r], sizeof(own)) == 0;
        if (first == r && used < sizeof(hosts.names))
            used += (size_t)snprintf(hosts.names + used, sizeof(hosts.names) - used, "%s%.*s (%d)",
                                     used > 0 ? ", " : "", BENCH_HOST_BYTES, all[r], (int)count);
    }
    free(all);
    if (status != TESS_OK || rank->launched->rank != 0)
        return status;
    return tess__rank_send(rank->launched, BENCH_HOSTS, &hosts, sizeof(hosts));
}

/* A group for each order of ranks. */
static enum tess_status bench_split(struct bench_rank *rank)
{
    struct tess_comm *all = rank->comm;
    const size_t ranks = (size_t)all->rank_count;
    rank->order_comm[0] = all;
    if (rank->bench->rank_order_count == 1 && strcmp(rank->bench->rank_order[0], "natural") == 0)
        return TESS_OK;
    int32_t *place = calloc(2 * ranks, sizeof(*place));
    enum tess_status status = place ? TESS_OK : TESS_ERR_MEMORY;
    for (int order = 0; order < rank->bench->rank_order_count && status == TESS_OK; order++) {
        tess__bench_order_places(rank->bench, order, rank->host, place + ranks, place);
        status = tess_comm_split(all, 0, place[rank->launched->rank], &rank->order_comm[order]);
    }
    free(place);
    return status;
}

/* The rank's own kernels, on the device that all share, next to the group's calls. */
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
    if (!rank->kernel)
        return;
    rank->kernel->ops->free(rank->kernel, rank->a);
    rank->kernel->ops->free(rank->kernel, rank->b);
    if (rank->fence)
        rank->fence->ops->fence_close(rank->fence);
    tess__bench_place_close(rank->kernel);
}

static enum tess_status bench_rank_all(struct bench_rank *rank)
{
    TESS_TRY(bench_open_kernel(rank));
    TESS_TRY(bench_find_hosts(rank));
    TESS_TRY(bench_split(rank));
    return bench_rank_measure(rank);
}

static enum tess_status bench_body(void *context, struct tess__rank *launched)
{
    struct bench_rank rank = {.bench = context, .launched = launched};
    const struct tess__open_comm how = {
        .kind = rank.bench->comm,
        .options = tess_comm_options_of(&rank.bench->options.comms, rank.bench->comm),
        .peers = rank.bench->peers,
        .rack_hosts = (int32_t)rank.bench->options.rack_hosts,
        .order = (enum tess_order)rank.bench->options.order,
        .timeout_s = BENCH_TIMEOUT_S};
    struct tess_comm *comm;
    TESS_TRY(tess__open_comm(&how, launched, &comm));
    rank.comm = comm;
    rank.sample = calloc(BENCH_SAMPLES, sizeof(*rank.sample));
    enum tess_status status = rank.sample ? bench_rank_all(&rank) : TESS_ERR_MEMORY;
    if (status == TESS_OK) /* peers may still read this rank's arrays */
        status = tess_comm_barrier(comm);
    /* Ranks of other processes cannot see it in the world: send it while the transport works. */
    if (rank.bench->peers && status != TESS_OK && status != TESS_ERR_ABORTED)
        tess_comm_abort(comm, tess_log_last_error());
    free(rank.sample);
    free(rank.host);
    for (int order = 0; order < BENCH_ORDERS_MAX; order++)
        if (rank.order_comm[order] != comm)
            tess_comm_close(rank.order_comm[order]);
    tess_comm_close(comm);
    bench_close_kernel(&rank);
    return status;
}

/* On a device ranks are threads: processes do not reach each other's device memory. */
static enum tess_status bench_find_place(struct bench *bench, bool mode_given)
{
    snprintf(bench->memory, sizeof(bench->memory), "host");
    bench->on_device = strcmp(bench->options.device, "cpu") != 0 || bench->options.kernel[0];
    if (!bench->on_device)
        return TESS_OK;
    TESS_TRY(tess__bench_place_find(bench->options.device, bench->options.kernel, &bench->place));
    if (!bench->place.ops->queue)
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

/* The communicator; a starter has fixed the number of ranks. */
static enum tess_status bench_find_comm(struct bench *bench, const struct tess_started *place,
                                        bool ranks_given)
{
    const enum tess_rank_mode mode =
        bench->options.mode == 0 ? TESS_RANKS_PROCESSES : TESS_RANKS_THREADS;
    struct tess_device_plan plan = {.comm_options = &bench->options.comms};
    bench->starter = place->starter;
    if (place->starter && ranks_given && bench->options.ranks != place->rank_count)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--ranks is %lld, and %s has started %d: give the same number, or leave one out",
                  (long long)bench->options.ranks, place->starter, (int)place->rank_count);
    if (place->starter)
        bench->options.ranks = place->rank_count;
    const enum tess_status status = tess_device_plan_host(place, (int32_t)bench->options.ranks,
                                                          mode, bench->options.comm, &plan);
    tess_device_plan_free(&plan);
    TESS_TRY(status);
    bench->comm = plan.comm;
    if ((bench->comm->host & TESS_COMM_ALONE) != 0) /* one rank is measured like several */
        TESS_TRY(tess_registry_get_communicator("local", &bench->comm));
    if (bench->on_device && bench->comm->device == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm %s carries the host's memory: leave --device and --kernel out",
                  bench->comm->name);
    return tess_comm_options_check(&bench->options.comms, bench->comm,
                                   (enum tess_order)bench->options.order);
}

static enum tess_status bench_launch(struct bench *bench, const struct tess_boot_env *env)
{
    struct tess__launch launch = {
        .rank_count = (int32_t)bench->options.ranks,
        .mode = bench->options.mode == 0 ? TESS_RANKS_PROCESSES : TESS_RANKS_THREADS,
        .bind = bench->options.bind && !bench->starter, /* else the starter binds them */
        .context = bench,
        .body = bench_body,
        .message = tess__bench_comm_message};
    if (bench->starter)
        TESS_TRY(tess__peers_open(env, BENCH_TIMEOUT_S, &bench->peers));
    launch.peers = bench->peers;
    enum tess_status status = tess__launch_run(&launch);
    tess__peers_close(bench->peers);
    return status;
}

static enum tess_status bench_run(struct bench *bench, const struct tess_options *options)
{
    struct tess_boot_env env = {.rank = 0};
    struct tess_started place;
    if (bench->options.sizes.count == 0)
        TESS_FAIL(TESS_ERR_USAGE, "--sizes is empty: give some, like 4Ki,16Mi");
    TESS_TRY(tess__peers_find(&env, &place));
    TESS_TRY(bench_find_place(bench, tess_options_is_set(options, "mode")));
    TESS_TRY(bench_find_comm(bench, &place, tess_options_is_set(options, "ranks")));
    TESS_TRY(tess__bench_order_read(bench));
    bench->prints = !place.starter || env.rank == 0;
    TESS_TRY(tess__bench_log_open(&bench->log, bench->prints ? bench->options.json : "", "a"));
    tess__text_machine(bench->machine);
    return tess__bench_log_close(&bench->log, bench_launch(bench, &env));
}

static const char bench_usage[] =
    "usage: tessera bench comm [--ranks N] [--sizes 4Ki,16Mi] [--device cuda] [--json FILE]\n"
    "       mpirun -n N tessera bench comm [--rank-orders 'natural;interleaved'] ...\n"
    "\n"
    "Measure the collectives of ranks on this machine, or of those that mpirun, srun or\n"
    "torchrun has started, beside plain memory copies.\n";

static int bench_command(struct tess__call *call)
{
    struct bench bench = {.options = *(const struct bench_options *)call->values};
    return tess_status_exit_code(bench_run(&bench, call->options));
}

static enum tess_status bench_declare(struct tess_options *options, void *values)
{
    return tess_comm_options_add(options, &((struct bench_options *)values)->comms);
}

static void bench_release(void *values)
{
    tess_comm_options_free(&((struct bench_options *)values)->comms);
}

const struct tess__command tess__command_bench_comm = {
    .name = "bench comm",
    .summary = "speed of collectives against plain memory copies",
    .usage = bench_usage,
    .table = bench_option_table,
    .options_size = sizeof(struct bench_options),
    .declare = bench_declare,
    .release = bench_release,
    .run = bench_command,
};
