/* Measuring calls between ranks of this host: processes, in memory that they share, and over
 * sockets. */
#include "predict/calibrate_op.h"

#include "base/clock.h"
#include "comm/boot/boot.h"
#include "comm/net/net.h"
#include "comm/world.h"
#include "tessera/check.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MAX         64
#define RANKS_BYTES       ((size_t)1 << 20) /* of a large call, of each rank; of many ranks less */
#define RANKS_ALL         ((size_t)4 << 20) /* of all ranks together at most */
#define RANKS_ROW         ((size_t)4 << 20) /* calls one after the other are over so much */
#define RANKS_REPEATS_MAX 100
#define RANKS_LIMIT       30 /* seconds of a wait */

/* Ranks compute for so long before they meet; how often they do. */
static const double ranks_lag_s[] = {TESS_PROFILE_LAG_SHORT, TESS_PROFILE_LAG_LONG};
#define RANKS_LAGS        2
#define RANKS_LAG_REPEATS 60

enum ranks_call { RANKS_SMALL, RANKS_GATHER, RANKS_SUM, RANKS_SCATTER, RANKS_CALLS };

struct ranks {
    struct tess_world *world;
    bool sockets;
    bool turns; /* more ranks than cores: what is waited for a turn counts, so means count */
    int repeats;
    double seconds[RANKS_CALLS]; /* of rank 0 */
    double lag_s[RANKS_LAGS];    /* likewise */
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

static enum tess_status ranks_call(struct tess_comm *comm, enum ranks_call call, char *memory)
{
    const size_t bytes = ranks_bytes(comm->rank_count);
    float *sum = (float *)(void *)memory;
    switch (call) {
    case RANKS_SMALL:
        return tess_comm_all_gather(comm, memory + 64 * comm->rank, memory, 64, TESS_U8, NULL);
    case RANKS_GATHER:
        return tess_comm_all_gather(comm, memory + (size_t)comm->rank * bytes, memory, bytes,
                                    TESS_U8, NULL);
    case RANKS_SCATTER: /* as gradients are, from a place of their own */
        return tess_comm_reduce_scatter(comm, sum, sum + bytes / sizeof(*sum),
                                        bytes / sizeof(*sum) / (size_t)comm->rank_count, TESS_F32,
                                        TESS_REDUCE_SUM, NULL);
    default:
        return tess_comm_all_reduce(comm, sum, sum, bytes / sizeof(*sum), TESS_F32, TESS_REDUCE_SUM,
                                    NULL);
    }
}

/* The median of a small call. */
static enum tess_status ranks_small(struct tess_comm *comm, char *memory, int repeats,
                                    double *median_s)
{
    double seconds[RANKS_REPEATS_MAX];
    for (int i = 0; i < repeats; i++) {
        const double begin_s = tess_clock_s();
        TESS_TRY(ranks_call(comm, RANKS_SMALL, memory));
        seconds[i] = tess_clock_s() - begin_s;
    }
    qsort(seconds, (size_t)repeats, sizeof(*seconds), calibrate_order);
    *median_s = seconds[repeats / 2];
    return TESS_OK;
}

/* The median of a large call: of several one after the other, over what each rank has written, as
 * backward does before a sum. */
static enum tess_status ranks_large(struct tess_comm *comm, enum ranks_call call, char *memory,
                                    int repeats, bool mean, double *median_s)
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
    qsort(seconds, (size_t)repeats, sizeof(*seconds), calibrate_order);
    *median_s = mean ? sum_s / repeats : seconds[repeats / 2];
    return TESS_OK;
}

/* Use up so much of a processor's time, in its nearest cache. */
static void ranks_compute(double seconds)
{
    const double begin_s = tess_clock_thread_s();
    for (volatile int i = 0; tess_clock_thread_s() - begin_s < seconds;)
        for (i = 0; i < 1000; i++)
            ;
}

/* How much longer it takes until all ranks have computed for compute_s and met, than it would take
 * cores that are always busy: the mean of the middle half. */
static enum tess_status ranks_lag(struct tess_comm *comm, bool turns, double compute_s,
                                  double *lag_s)
{
    double seconds[RANKS_LAG_REPEATS], sum_s = 0;
    const int quarter = RANKS_LAG_REPEATS / 4;
    TESS_TRY(tess_comm_barrier(comm));
    for (int i = 0; i < RANKS_LAG_REPEATS; i++) {
        const double begin_s = tess_clock_s();
        ranks_compute(turns ? compute_s / 2 : compute_s);
        TESS_TRY(tess_comm_barrier(comm));
        seconds[i] = tess_clock_s() - begin_s;
    }
    qsort(seconds, RANKS_LAG_REPEATS, sizeof(*seconds), calibrate_order);
    for (int i = quarter; i < RANKS_LAG_REPEATS - quarter; i++)
        sum_s += seconds[i] - compute_s;
    *lag_s = sum_s / (RANKS_LAG_REPEATS - 2 * quarter);
    return TESS_OK;
}

static enum tess_status ranks_calls(struct ranks_one *mine, struct tess_comm *comm)
{
    struct ranks *all = mine->all;
    void *memory;
    TESS_TRY(tess_comm_alloc(comm, RANKS_ROW, &memory));
    for (int call = 0; call < RANKS_CALLS; call++) {
        double median_s = 0;
        if (call == RANKS_SMALL)
            TESS_TRY(ranks_small(comm, memory, all->repeats, &median_s));
        else
            TESS_TRY(ranks_large(comm, (enum ranks_call)call, memory, all->repeats / 2, all->turns,
                                 &median_s));
        if (mine->rank == 0)
            all->seconds[call] = median_s;
    }
    for (int i = 0; i < RANKS_LAGS && !all->sockets; i++) {
        double lag_s = 0;
        TESS_TRY(ranks_lag(comm, all->turns, ranks_lag_s[i], &lag_s));
        if (mine->rank == 0)
            all->lag_s[i] =
                lag_s > all->seconds[RANKS_SMALL] ? lag_s - all->seconds[RANKS_SMALL] : 0;
    }
    return TESS_OK;
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
    const enum tess_status status =
        mine->all->sockets ? ranks_on_sockets(mine, comm) : ranks_calls(mine, comm);
    if (status != TESS_OK)
        tess_comm_abort(comm, "a measurement failed");
    tess_comm_close(comm);
    return status;
}

/* Ranks that are as many as cores have one each. */
static void ranks_bind(int32_t rank)
{
    cpu_set_t all, one;
    int32_t left = rank;
    if (sched_getaffinity(0, sizeof(all), &all) != 0)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && left-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            (void)sched_setaffinity(0, sizeof(one), &one);
        }
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
        if (!all->turns)
            ranks_bind(started);
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

/* What `bytes` take beyond a small call; 0: too little to say. */
static double ranks_rate(const struct ranks *all, enum ranks_call call, double bytes)
{
    const double seconds = all->seconds[call] - all->seconds[RANKS_SMALL];
    return seconds > 0 ? bytes / seconds : 0;
}

enum tess_status calibrate_ranks(struct tess_profile *profile)
{
    struct ranks local = {.repeats = 100}, net = {.sockets = true, .repeats = 50},
                 turns = {.turns = true, .repeats = 100};
    const int32_t many = (int32_t)(2 * profile->cores);
    const double bytes = (double)ranks_bytes(many);
    TESS_TRY(ranks_run(&local, 2));
    profile->call_s = local.seconds[RANKS_SMALL];
    profile->copy_bytes_per_s = ranks_rate(&local, RANKS_GATHER, RANKS_BYTES);
    profile->sum_bytes_per_s = ranks_rate(&local, RANKS_SUM, RANKS_BYTES);
    profile->scatter_bytes_per_s = ranks_rate(&local, RANKS_SCATTER, 0.75 * RANKS_BYTES);
    profile->lag_short_s = local.lag_s[0];
    profile->lag_long_s = local.lag_s[1];
    TESS_TRY(ranks_run(&net, 2));
    profile->net_call_s = net.seconds[RANKS_SMALL];
    profile->net_bytes_per_s = ranks_rate(&net, RANKS_GATHER, RANKS_BYTES);
    profile->net_sum_bytes_per_s = ranks_rate(&net, RANKS_SUM, RANKS_BYTES);
    if (many > RANKS_MAX)
        return TESS_OK;
    TESS_TRY(ranks_run(&turns, many));
    profile->turn_s = turns.seconds[RANKS_SMALL] / 2;
    profile->turn_lag_short_s = turns.lag_s[0];
    profile->turn_lag_long_s = turns.lag_s[1];
    profile->turn_copy_bytes_per_s = 2 * ranks_rate(&turns, RANKS_GATHER, (many - 1) * bytes);
    profile->turn_sum_bytes_per_s = 2 * ranks_rate(&turns, RANKS_SUM, bytes);
    return TESS_OK;
}
