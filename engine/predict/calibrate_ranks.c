/* Measuring calls between ranks of this host: threads in memory that they share, and over sockets.
 */
#include "predict/calibrate_op.h"

#include "base/clock.h"
#include "comm/boot/boot.h"
#include "comm/net/net.h"
#include "comm/world.h"
#include "tessera/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX   64
#define RANKS_BYTES ((size_t)1 << 20) /* of a large call, of each rank */
#define RANKS_LIMIT 30                /* seconds of a wait */

enum ranks_call { RANKS_SMALL, RANKS_GATHER, RANKS_SUM, RANKS_CALLS };

struct ranks {
    struct tess_world *world;
    bool sockets;
    int repeats;
    double seconds[RANKS_CALLS]; /* of rank 0 */
};

struct ranks_one {
    struct ranks *all;
    int32_t rank;
    enum tess_status status;
};

static int ranks_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum tess_status ranks_call(struct tess_comm *comm, enum ranks_call call, char *memory)
{
    float *sum = (float *)(void *)memory;
    switch (call) {
    case RANKS_SMALL:
        return tess_comm_all_gather(comm, memory + 64 * comm->rank, memory, 64, TESS_U8, NULL);
    case RANKS_GATHER:
        return tess_comm_all_gather(comm, memory + (size_t)comm->rank * RANKS_BYTES, memory,
                                    RANKS_BYTES, TESS_U8, NULL);
    default:
        return tess_comm_all_reduce(comm, sum, sum, RANKS_BYTES / sizeof(*sum), TESS_F32,
                                    TESS_REDUCE_SUM, NULL);
    }
}

/* The median of a call, ranks having met before it. */
static enum tess_status ranks_measure(struct tess_comm *comm, enum ranks_call call, char *memory,
                                      int repeats, double *median_s)
{
    double seconds[100];
    for (int i = 0; i < repeats; i++) {
        if (call != RANKS_SMALL)
            TESS_TRY(tess_comm_barrier(comm));
        const double begin_s = tess_clock_s();
        TESS_TRY(ranks_call(comm, call, memory));
        seconds[i] = tess_clock_s() - begin_s;
    }
    qsort(seconds, (size_t)repeats, sizeof(*seconds), ranks_order);
    *median_s = seconds[repeats / 2];
    return TESS_OK;
}

static enum tess_status ranks_calls(struct ranks_one *mine, struct tess_comm *comm)
{
    struct ranks *all = mine->all;
    const int calls = comm->rank_count > 2 ? RANKS_GATHER : RANKS_CALLS;
    void *memory;
    TESS_TRY(tess_comm_alloc(comm, 2 * RANKS_BYTES, &memory));
    memset(memory, 0, 2 * RANKS_BYTES);
    for (int call = 0; call < calls; call++) {
        double median_s = 0;
        TESS_TRY(ranks_measure(comm, (enum ranks_call)call, memory, all->repeats, &median_s));
        if (mine->rank == 0)
            all->seconds[call] = median_s;
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

static void *ranks_thread(void *context)
{
    struct ranks_one *mine = context;
    struct tess_comm *comm = NULL;
    mine->status = tess_comm_local_open(mine->all->world, mine->rank, TESS_ORDER_CANONICAL,
                                        RANKS_LIMIT, &comm);
    if (mine->status == TESS_OK)
        mine->status = mine->all->sockets ? ranks_on_sockets(mine, comm) : ranks_calls(mine, comm);
    if (mine->status != TESS_OK && comm != NULL)
        tess_comm_abort(comm, "a measurement failed");
    tess_comm_close(comm);
    return NULL;
}

static enum tess_status ranks_run(struct ranks *all, int32_t count)
{
    struct ranks_one one[RANKS_MAX];
    pthread_t thread[RANKS_MAX];
    int32_t started = 0;
    TESS_TRY(tess_world_open(count, TESS_RANKS_THREADS, &all->world));
    for (; started < count; started++) {
        one[started] = (struct ranks_one){.all = all, .rank = started};
        if (pthread_create(&thread[started], NULL, ranks_thread, &one[started]) != 0)
            break;
    }
    for (int32_t i = 0; i < started; i++)
        (void)pthread_join(thread[i], NULL);
    tess_world_close(all->world);
    if (started < count)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot start %d threads", (int)count);
    for (int32_t i = 0; i < count; i++)
        TESS_TRY(one[i].status);
    return TESS_OK;
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
                 turns = {.repeats = 100};
    const int32_t many = (int32_t)(2 * profile->cores);
    TESS_TRY(ranks_run(&local, 2));
    profile->call_s = local.seconds[RANKS_SMALL];
    profile->copy_bytes_per_s = ranks_rate(&local, RANKS_GATHER, RANKS_BYTES);
    profile->sum_bytes_per_s = ranks_rate(&local, RANKS_SUM, RANKS_BYTES);
    TESS_TRY(ranks_run(&net, 2));
    profile->net_call_s = net.seconds[RANKS_SMALL];
    profile->net_bytes_per_s = ranks_rate(&net, RANKS_GATHER, RANKS_BYTES);
    if (many > RANKS_MAX)
        return TESS_OK;
    TESS_TRY(ranks_run(&turns, many));
    profile->turn_s = turns.seconds[RANKS_SMALL] / 2;
    return TESS_OK;
}
