/* Measuring calls between ranks of this host: processes, in memory that they share, and over
 * sockets. */
#include "predict/calibrate_op.h"

#include "base/clock.h"
#include "base/reduce.h"
#include "comm/boot/boot.h"
#include "comm/net/net.h"
#include "comm/world.h"
#include "tessera/check.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MAX         1024
#define RANKS_TURNS       64                /* take turns at most, on half as many cores */
#define RANKS_BYTES       ((size_t)1 << 20) /* of a large call, of each rank; of many ranks less */
#define RANKS_ALL         ((size_t)4 << 20) /* of all ranks together at most */
#define RANKS_ROW         ((size_t)4 << 20) /* calls one after the other are over so much */
#define RANKS_REPEATS_MAX 100
#define RANKS_REPEATS     60 /* of a small call in a round; of a large one half as often */
#define RANKS_LIMIT       30 /* seconds of a wait */

/* Ranks compute for so long before they meet; how often they do. */
static const double ranks_lag_s[] = {TESS_PROFILE_LAG_SHORT, TESS_PROFILE_LAG_LONG};
#define RANKS_LAG_REPEATS 24

/* They compute by products: a rank that gets a core after another one finds none of its operands
 * near it. So many products are timed one by one. */
#define RANKS_TIMED 256
#define RANKS_PACE  40 /* products that say how long one takes, about */

struct ranks {
    struct tess_world *world;
    bool sockets;
    bool turns; /* more ranks than cores: what is waited for a turn counts, so means count */
    double seconds[CALIBRATE_CALLS]; /* of rank 0, in this round */
    double lag_s[CALIBRATE_LAGS];    /* likewise */
    double chain;                    /* likewise, of ranks that take turns */
    struct calibrate *calibrate;     /* with the product */
    double product_s;                /* of one, about; the same for all ranks */
    double processor_s[RANKS_MAX];   /* of each rank's products */
    double usual_s[RANKS_MAX];       /* that, if all took what the middle ones do */
    double slow;                     /* the first by the second, where none take turns */
    bool passes;                     /* over memory alone */
    double byte_s[CALIBRATE_SIZES];  /* of rank 0, in this round */
};

struct ranks_one {
    struct ranks *all;
    int32_t rank;
};

static size_t ranks_bytes(int32_t count)
{
    const size_t share = RANKS_ALL / (size_t)count;
    return share < RANKS_BYTES ? share : RANKS_BYTES;
}

#define RANKS_BLOCK 2048 /* floats, as of an update that is one pass with the sum */

/* A slice of the sum, into every other rank's memory: as such an update without its arithmetic. */
static void ranks_share(void *context, const void *const *source, size_t begin, size_t count)
{
    const struct tess_comm *comm = context;
    const size_t to = ranks_bytes(comm->rank_count) / sizeof(float);
    _Alignas(64) float sum[RANKS_BLOCK];
    void *const target = sum;
    for (size_t at = begin, n; at < begin + count; at += n) {
        const void *part[RANKS_MAX];
        n = begin + count - at < RANKS_BLOCK ? begin + count - at : RANKS_BLOCK;
        for (int32_t r = 0; r < comm->rank_count; r++)
            part[r] = (const float *)source[r] + at;
        tess__reduce(TESS_F32, TESS_REDUCE_SUM, comm->rank_count, part, 1, &target, n);
        for (int32_t i = 1; i < comm->rank_count; i++)
            memcpy((float *)(uintptr_t)part[(comm->rank + i) % comm->rank_count] + to, sum,
                   n * sizeof(*sum));
    }
}

static enum tess_status ranks_call(struct tess_comm *comm, enum calibrate_call call, char *memory)
{
    const size_t bytes = ranks_bytes(comm->rank_count);
    const struct tess_comm_share share = {.run = ranks_share, .context = comm};
    float *sum = (float *)(void *)memory;
    switch (call) {
    case CALIBRATE_SMALL:
        return tess_comm_all_gather(comm, memory + 64 * comm->rank, memory, 64, TESS_U8, NULL);
    case CALIBRATE_GATHER:
        return tess_comm_all_gather(comm, memory + (size_t)comm->rank * bytes, memory, bytes,
                                    TESS_U8, NULL);
    case CALIBRATE_SCATTER: /* as gradients are, from a place of their own */
        return tess_comm_reduce_scatter(comm, sum, sum + bytes / sizeof(*sum),
                                        bytes / sizeof(*sum) / (size_t)comm->rank_count, TESS_F32,
                                        TESS_REDUCE_SUM, NULL);
    case CALIBRATE_SHARE:
        return tess_comm_share(comm, sum, bytes / sizeof(*sum), TESS_F32, &share, NULL);
    default:
        return tess_comm_all_reduce(comm, sum, sum, bytes / sizeof(*sum), TESS_F32, TESS_REDUCE_SUM,
                                    NULL);
    }
}

static enum tess_status ranks_small(struct tess_comm *comm, char *memory, int repeats,
                                    double *seconds_out)
{
    double seconds[RANKS_REPEATS_MAX];
    for (int i = 0; i < repeats; i++) {
        const double begin_s = tess_clock_s();
        TESS_TRY(ranks_call(comm, CALIBRATE_SMALL, memory));
        seconds[i] = tess_clock_s() - begin_s;
    }
    *seconds_out = calibrate_middle(seconds, repeats);
    return TESS_OK;
}

/* Several large calls one after the other, over what each rank has written, as backward does before
 * a sum. */
static enum tess_status ranks_large(struct tess_comm *comm, enum calibrate_call call, char *memory,
                                    int repeats, bool mean, double *seconds_out)
{
    double sum_s = 0;
    const size_t each = (size_t)comm->rank_count * ranks_bytes(comm->rank_count);
    const size_t calls = RANKS_ROW / each;
    double seconds[RANKS_REPEATS_MAX];
    for (int i = 0; i < repeats; i++) {
        memset(memory, 0, RANKS_ROW);
        TESS_TRY(tess_comm_barrier(comm));
        const double begin_s = tess_clock_s();
        for (size_t c = 0; c < calls; c++)
            TESS_TRY(ranks_call(comm, call, memory + c * each));
        TESS_TRY(tess_comm_barrier(comm));
        seconds[i] = (tess_clock_s() - begin_s) / (double)calls;
        sum_s += seconds[i];
    }
    *seconds_out = mean ? sum_s / repeats : calibrate_middle(seconds, repeats);
    return TESS_OK;
}

/* What one of so many products takes where the caches near the core have all. */
static double ranks_product_s(const struct ranks *all, float *memory, int64_t products)
{
    double seconds[RANKS_TIMED];
    const int timed = (int)(products < RANKS_TIMED ? products : RANKS_TIMED);
    for (int64_t i = 0; i < products; i++) {
        const double begin_s = tess_clock_s();
        calibrate_heavy_run(all->calibrate, memory);
        seconds[i % timed] = tess_clock_s() - begin_s;
    }
    return calibrate_middle(seconds, timed);
}

/*
 * So much work, and not so much time: a core may be slower than another one. A core that is slow
 * for moments is so for all products, as it was when operations were measured, and makes no rank
 * late: its processor's time counts. Ranks that take turns find other caches after each, and the
 * time of their processors has that too: theirs is that of usual products, by how slow cores were.
 */
static void ranks_compute(struct ranks *all, int32_t rank, float *memory, double seconds)
{
    const int64_t products = (int64_t)fmax(1, seconds / all->product_s);
    const double begin_s = tess_clock_thread_s();
    all->usual_s[rank] += (double)products * ranks_product_s(all, memory, products);
    all->processor_s[rank] += tess_clock_thread_s() - begin_s;
}

static double ranks_mean(const double *seconds, int32_t count)
{
    double sum_s = 0;
    for (int32_t rank = 0; rank < count; rank++)
        sum_s += seconds[rank];
    return sum_s / count;
}

/* What ranks have computed since they were last asked takes each on a core of its own. */
static double ranks_own_s(struct ranks *all, int32_t count)
{
    const double usual_s = ranks_mean(all->usual_s, count);
    if (!all->turns)
        all->slow = ranks_mean(all->processor_s, count) / usual_s;
    memset(all->processor_s, 0, sizeof(all->processor_s));
    memset(all->usual_s, 0, sizeof(all->usual_s));
    return usual_s * all->slow;
}

/* How much longer it takes until all ranks have computed for compute_s and met, than it would take
 * cores that are always busy, equally fast and have all in their caches. */
static enum tess_status ranks_lag(struct ranks *all, struct tess_comm *comm, float *memory,
                                  double compute_s, double *lag_s)
{
    double seconds[RANKS_LAG_REPEATS];
    const double each = all->turns ? 2 : 1; /* ranks of a core */
    TESS_TRY(tess_comm_barrier(comm));
    double begin_s = tess_clock_s();
    for (int i = 0; i < RANKS_LAG_REPEATS; i++) {
        ranks_compute(all, comm->rank, memory, compute_s / each);
        TESS_TRY(tess_comm_barrier(comm));
        const double end_s = tess_clock_s();
        seconds[i] = end_s - begin_s;
        begin_s = end_s;
    }
    TESS_TRY(tess_comm_barrier(comm));
    if (comm->rank == 0)
        *lag_s = calibrate_middle(seconds, RANKS_LAG_REPEATS) -
                 each * ranks_own_s(all, comm->rank_count) / RANKS_LAG_REPEATS;
    return tess_comm_barrier(comm);
}

/* Micro-batches of a pipeline with as many stages as ranks, each of which computes for so long
 * forward and twice as long backward. */
#define RANKS_CHAIN_S       1.5e-3
#define RANKS_CHAIN_REPEATS 6

static enum tess_status ranks_chain_once(struct ranks *all, struct tess_comm *comm, float *memory)
{
    const int32_t rank = comm->rank, last = comm->rank_count - 1;
    for (int way = 0; way < 2; way++) {
        const int32_t before = way == 0 ? rank - 1 : rank + 1;
        const int32_t after = way == 0 ? rank + 1 : rank - 1;
        for (int32_t micro = 0; micro <= last; micro++) {
            if (before >= 0 && before <= last)
                TESS_TRY(tess_comm_recv(comm, memory, 64, TESS_U8, before, NULL));
            ranks_compute(all, rank, memory, (way + 1) * RANKS_CHAIN_S);
            if (after >= 0 && after <= last)
                TESS_TRY(tess_comm_send(comm, memory, 64, TESS_U8, after, NULL));
        }
    }
    return TESS_OK;
}

/* What such a step takes by what it would where stages that compute at once shared the cores
 * evenly and none was ever idle. */
static enum tess_status ranks_chain(struct ranks *all, struct tess_comm *comm, float *memory,
                                    double cores, double *chain_out)
{
    double seconds[RANKS_CHAIN_REPEATS], slots = 0;
    const int32_t stages = comm->rank_count;
    for (int32_t k = 1; k < 2 * stages; k++) {
        const double active = k < stages ? k : 2 * stages - k;
        slots += active > cores ? active / cores : 1;
    }
    for (int i = 0; i < RANKS_CHAIN_REPEATS; i++) {
        TESS_TRY(tess_comm_barrier(comm));
        const double begin_s = tess_clock_s();
        TESS_TRY(ranks_chain_once(all, comm, memory));
        TESS_TRY(tess_comm_barrier(comm));
        seconds[i] = tess_clock_s() - begin_s;
    }
    if (comm->rank == 0)
        *chain_out = calibrate_middle(seconds, RANKS_CHAIN_REPEATS) /
                     (slots * ranks_own_s(all, stages) / RANKS_CHAIN_REPEATS / stages);
    return tess_comm_barrier(comm);
}

static enum tess_status ranks_calls(struct ranks_one *mine, struct tess_comm *comm)
{
    struct ranks *all = mine->all;
    void *memory;
    TESS_TRY(tess_comm_alloc(comm, RANKS_ROW, &memory));
    memset(memory, 0, RANKS_ROW);
    if (mine->rank == 0)
        all->product_s = ranks_product_s(all, memory, RANKS_PACE);
    for (int call = 0; call < (all->sockets ? CALIBRATE_SHARE : CALIBRATE_CALLS); call++) {
        double seconds = 0;
        if (call == CALIBRATE_SMALL)
            TESS_TRY(ranks_small(comm, memory, RANKS_REPEATS, &seconds));
        else
            TESS_TRY(ranks_large(comm, (enum calibrate_call)call, memory, RANKS_REPEATS / 2,
                                 all->turns, &seconds));
        if (mine->rank == 0)
            all->seconds[call] = seconds;
    }
    for (int i = 0; i < CALIBRATE_LAGS && !all->sockets; i++) {
        double lag_s = 0;
        TESS_TRY(ranks_lag(all, comm, memory, ranks_lag_s[i], &lag_s));
        if (mine->rank == 0)
            all->lag_s[i] =
                lag_s > all->seconds[CALIBRATE_SMALL] ? lag_s - all->seconds[CALIBRATE_SMALL] : 0;
    }
    double chain = 0;
    if (all->turns)
        TESS_TRY(ranks_chain(all, comm, memory, comm->rank_count / 2.0, &chain));
    if (mine->rank == 0)
        all->chain = chain;
    return TESS_OK;
}

/* Passes over memory on all cores at once. */
static enum tess_status ranks_passes(struct ranks_one *mine, struct tess_comm *comm)
{
    struct ranks *all = mine->all;
    const double share = calibrate_scale(comm->rank_count) * (1 << 20) / comm->rank_count;
    const size_t most = (size_t)(calibrate_mib[CALIBRATE_SIZES - 1] * share);
    float *memory = calibrate_pages(most);
    if (memory == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory of %zu MiB to measure its passes", most >> 20);
    memset(memory, 0, most);
    enum tess_status status = TESS_OK;
    for (int i = 0; i < CALIBRATE_SIZES && status == TESS_OK; i++) {
        status = tess_comm_barrier(comm);
        const double byte_s =
            calibrate_byte_s(all->calibrate->kernel, memory, calibrate_mib[i] * share);
        if (mine->rank == 0)
            all->byte_s[i] = byte_s;
    }
    calibrate_pages_free(memory, most);
    return status;
}

static enum tess_status ranks_on_sockets(struct ranks_one *mine, struct tess_comm *local)
{
    struct tess_boot *boot = NULL;
    struct tess_transport *transport = NULL;
    struct tess_comm *comm = NULL;
    TESS_TRY(tess_boot_over(local, RANKS_LIMIT, &boot));
    enum tess_status status = tess_transport_tcp_open(boot, RANKS_LIMIT, &transport);
    tess_boot_close(boot);
    TESS_TRY(status);
    TESS_TRY(
        tess_comm_net_open(transport, mine->all->world, TESS_ORDER_CANONICAL, RANKS_LIMIT, &comm));
    status = ranks_calls(mine, comm);
    tess_comm_close(comm);
    return status;
}

static enum tess_status ranks_body(struct ranks_one *mine)
{
    struct tess_comm *comm = NULL;
    TESS_TRY(tess_comm_local_open(mine->all->world, mine->rank, TESS_ORDER_CANONICAL, RANKS_LIMIT,
                                  &comm));
    const enum tess_status status = mine->all->passes    ? ranks_passes(mine, comm)
                                    : mine->all->sockets ? ranks_on_sockets(mine, comm)
                                                         : ranks_calls(mine, comm);
    if (status != TESS_OK)
        tess_comm_abort(comm, "a measurement failed");
    tess_comm_close(comm);
    return status;
}

/* Cores first .. first + count - 1 of those that this process may use. Ranks that are as many as
 * cores have one each; those that take turns share all of theirs. */
static void ranks_bind(int32_t first, int32_t count)
{
    cpu_set_t all, mine;
    int32_t place = 0;
    if (sched_getaffinity(0, sizeof(all), &all) != 0)
        return;
    CPU_ZERO(&mine);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all)) {
            if (place >= first && place < first + count)
                CPU_SET(cpu, &mine);
            place++;
        }
    (void)sched_setaffinity(0, sizeof(mine), &mine);
}

/* As runs start them. */
static enum tess_status ranks_start(struct ranks *all, int32_t count)
{
    pid_t pid[RANKS_MAX];
    int32_t started = 0, wrong = 0;
    (void)fflush(NULL);
    for (; started < count; started++) {
        pid[started] = fork();
        if (pid[started] < 0)
            break;
        struct ranks_one mine = {.all = all, .rank = started};
        if (pid[started] > 0)
            continue;
        ranks_bind(all->turns ? 0 : started, all->turns ? count / 2 : 1);
        _exit(ranks_body(&mine) == TESS_OK ? 0 : 1);
    }
    if (started < count)
        tess_world_abort(all->world, -1, "a rank cannot be started");
    for (int32_t i = 0; i < started; i++) {
        int ended = 0;
        while (waitpid(pid[i], &ended, 0) < 0 && errno == EINTR)
            ;
        wrong += ended != 0;
    }
    if (started < count || wrong > 0)
        TESS_FAIL(TESS_ERR_COMM, "calls of %d ranks cannot be measured", (int)count);
    return TESS_OK;
}

static enum tess_status ranks_run(struct ranks *result, int32_t count)
{
    struct ranks *all =
        mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to measure calls");
    *all = *result;
    enum tess_status status = tess_world_open(count, TESS_RANKS_PROCESSES, &all->world);
    if (status == TESS_OK)
        status = ranks_start(all, count);
    if (all->world != NULL)
        tess_world_close(all->world);
    *result = *all;
    (void)munmap(all, sizeof(*all));
    return status;
}

/* One round of a setting. */
static enum tess_status ranks_round(struct calibrate *calibrate, enum calibrate_setting setting,
                                    int32_t count, struct calibrate_ranks *ranks)
{
    struct ranks all = {.sockets = setting == CALIBRATE_NET,
                        .turns = setting == CALIBRATE_TURNS,
                        .calibrate = calibrate,
                        .slow = ranks->slow};
    TESS_TRY(ranks_run(&all, count));
    if (setting == CALIBRATE_LOCAL)
        ranks->slow = all.slow;
    for (int call = 0; call < CALIBRATE_CALLS; call++)
        calibrate_add(&ranks->call[setting][call], all.seconds[call]);
    for (int lag = 0; lag < CALIBRATE_LAGS; lag++)
        calibrate_add(&ranks->lag[setting][lag], all.lag_s[lag]);
    if (all.turns)
        calibrate_add(&ranks->chain, all.chain);
    return TESS_OK;
}

static int32_t ranks_many(double cores)
{
    return (int32_t)fmin(2 * cores, RANKS_TURNS);
}

static enum tess_status ranks_memory(struct calibrate *calibrate, int32_t cores,
                                     struct calibrate_ranks *ranks)
{
    struct ranks all = {.passes = true, .calibrate = calibrate};
    TESS_TRY(ranks_run(&all, cores));
    for (int i = 0; i < CALIBRATE_SIZES; i++)
        calibrate_add(&ranks->byte[i], all.byte_s[i]);
    return TESS_OK;
}

enum tess_status calibrate_ranks_measure(struct calibrate *calibrate, double cores,
                                         struct calibrate_ranks *ranks)
{
    TESS_TRY(ranks_round(calibrate, CALIBRATE_LOCAL, 2, ranks));
    TESS_TRY(ranks_round(calibrate, CALIBRATE_NET, 2, ranks));
    TESS_TRY(ranks_round(calibrate, CALIBRATE_TURNS, ranks_many(cores), ranks));
    return ranks_memory(calibrate, (int32_t)fmin(cores, RANKS_MAX), ranks);
}

/* What `bytes` take beyond a small call; 0: too little to say. */
static double ranks_rate(const struct calibrate_rounds *rounds, enum calibrate_call call,
                         double bytes)
{
    const double seconds =
        calibrate_usual(&rounds[call]) - calibrate_usual(&rounds[CALIBRATE_SMALL]);
    return seconds > 0 ? bytes / seconds : 0;
}

static void ranks_take_turns(const struct calibrate_ranks *ranks, struct tess_profile *profile)
{
    const struct calibrate_rounds *call = ranks->call[CALIBRATE_TURNS];
    const int32_t many = ranks_many(profile->cores);
    const double bytes = (double)ranks_bytes(many);
    profile->turn_s = calibrate_usual(&call[CALIBRATE_SMALL]) / 2;
    profile->turn_lag_short_s = calibrate_usual(&ranks->lag[CALIBRATE_TURNS][0]);
    profile->turn_lag_long_s = calibrate_usual(&ranks->lag[CALIBRATE_TURNS][1]);
    profile->turn_chain = fmax(1, calibrate_usual(&ranks->chain));
    profile->turn_copy_bytes_per_s = 2 * ranks_rate(call, CALIBRATE_GATHER, (many - 1) * bytes);
    profile->turn_sum_bytes_per_s = 2 * ranks_rate(call, CALIBRATE_SUM, bytes);
    profile->turn_share_bytes_per_s =
        2 * ranks_rate(call, CALIBRATE_SHARE, (2 - 1.0 / many) * bytes);
}

void calibrate_ranks_take(const struct calibrate_ranks *ranks, struct tess_profile *profile,
                          double apart_out[CALIBRATE_SETTINGS])
{
    const struct calibrate_rounds *local = ranks->call[CALIBRATE_LOCAL];
    const struct calibrate_rounds *net = ranks->call[CALIBRATE_NET];
    profile->call_s = calibrate_usual(&local[CALIBRATE_SMALL]);
    profile->copy_bytes_per_s = ranks_rate(local, CALIBRATE_GATHER, RANKS_BYTES);
    profile->sum_bytes_per_s = ranks_rate(local, CALIBRATE_SUM, RANKS_BYTES);
    profile->scatter_bytes_per_s = ranks_rate(local, CALIBRATE_SCATTER, 0.75 * RANKS_BYTES);
    profile->share_bytes_per_s = ranks_rate(local, CALIBRATE_SHARE, 1.5 * RANKS_BYTES);
    profile->lag_short_s = calibrate_usual(&ranks->lag[CALIBRATE_LOCAL][0]);
    profile->lag_long_s = calibrate_usual(&ranks->lag[CALIBRATE_LOCAL][1]);
    profile->net_call_s = calibrate_usual(&net[CALIBRATE_SMALL]);
    profile->net_bytes_per_s = ranks_rate(net, CALIBRATE_GATHER, RANKS_BYTES);
    profile->net_sum_bytes_per_s = ranks_rate(net, CALIBRATE_SUM, RANKS_BYTES);
    for (int setting = 0; setting < CALIBRATE_SETTINGS; setting++)
        apart_out[setting] = calibrate_apart(&ranks->call[setting][CALIBRATE_GATHER]);
    ranks_take_turns(ranks, profile);
}
