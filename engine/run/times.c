/*
 * Where the time of an epoch went. Ranks wait for one another in every step, so their totals are
 * alike; they differ in how long each was busy. The rank that was busy longest is the one that the
 * others waited for.
 */
#include "run/times.h"

#include "tessera/check.h"
#include "text/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More ranks than this do not fit a line. */
#define SHOWN_RANKS_MAX 8

enum tess_status tess__times_open(struct tess__times *times, int32_t rank_count)
{
    *times = (struct tess__times){.rank_count = rank_count};
    times->rank = calloc((size_t)rank_count, sizeof(*times->rank));
    if (times->rank == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the times of %d ranks", rank_count);
    return TESS_OK;
}

void tess__times_close(struct tess__times *times)
{
    free(times->rank);
    times->rank = NULL;
}

void tess__times_take(struct tess__times *times, const struct tess__message *message)
{
    struct tess__run_times rank;
    memcpy(&rank, message->payload, sizeof(rank));
    /* All ranks report an epoch before any of them ends the next one. */
    if (rank.epoch != times->epoch)
        times->here = 0;
    times->epoch = rank.epoch;
    times->rank[message->rank] = rank;
    times->here++;
}

bool tess__times_complete(const struct tess__times *times, int64_t epoch)
{
    return times->epoch == epoch && times->here == times->rank_count;
}

static double times_busy_s(const struct tess__times *times, int32_t rank)
{
    return times->rank[rank].sum.total_s - times->rank[rank].sum.comm_s;
}

static int32_t times_slowest(const struct tess__times *times)
{
    int32_t slowest = 0;
    for (int32_t r = 1; r < times->rank_count; r++)
        if (times_busy_s(times, r) > times_busy_s(times, slowest))
            slowest = r;
    return slowest;
}

/* "; slowest rank 1 by 0.12 s of busy time; busy 93 97 92 91 %" */
static void times_print_ranks(const struct tess__times *times)
{
    const int32_t rank_count = times->rank_count;
    int32_t slowest = times_slowest(times);
    double others_s = 0;
    for (int32_t r = 0; r < rank_count; r++)
        others_s += r != slowest ? times_busy_s(times, r) / (rank_count - 1) : 0;
    printf("; slowest rank %d by %.3f s", slowest, times_busy_s(times, slowest) - others_s);
    if (rank_count > SHOWN_RANKS_MAX)
        return;
    fputs("; busy", stdout);
    for (int32_t r = 0; r < rank_count; r++) {
        double total_s = times->rank[r].sum.total_s;
        printf(" %.0f", total_s > 0 ? 100 * times_busy_s(times, r) / total_s : 0);
    }
    fputs(" %", stdout);
}

void tess__times_print(const struct tess__times *times)
{
    const int32_t rank_count = times->rank_count;
    struct tess_times sum = {0};
    for (int32_t r = 0; r < rank_count; r++)
        tess_times_add(&sum, &times->rank[r].sum, 1);
    double percent = sum.total_s > 0 ? 100 / sum.total_s : 0;
    printf("  time: data %.1f %%, forward %.1f %%, backward %.1f %%, optimizer %.1f %%, other %.1f "
           "%%\n",
           percent * sum.data_s, percent * sum.forward_s, percent * sum.backward_s,
           percent * sum.optim_s,
           percent * (sum.total_s - sum.data_s - sum.forward_s - sum.backward_s - sum.optim_s -
                      sum.comm_s));
    if (rank_count > 1) {
        printf("  comm %.1f %% exposed (forward %.1f, backward %.1f, optimizer %.1f) + %.1f %% "
               "hidden",
               percent * sum.comm_s, percent * sum.comm_forward_s, percent * sum.comm_backward_s,
               percent * sum.comm_optim_s, percent * sum.hidden_s);
        times_print_ranks(times);
        putchar('\n');
    }
    fflush(stdout);
}

json_t *tess__times_record(const struct tess__times *times)
{
    json_t *ranks = json_array();
    for (int32_t r = 0; ranks && r < times->rank_count; r++) {
        const struct tess_times *sum = &times->rank[r].sum;
        json_array_append_new(
            ranks,
            json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "rank", r,
                      "data_s", tess__json_number(sum->data_s), "forward_s",
                      tess__json_number(sum->forward_s), "backward_s",
                      tess__json_number(sum->backward_s), "hidden_s",
                      tess__json_number(sum->hidden_s), "exposed_s", tess__json_number(sum->comm_s),
                      "exposed_forward_s", tess__json_number(sum->comm_forward_s),
                      "exposed_backward_s", tess__json_number(sum->comm_backward_s),
                      "exposed_optim_s", tess__json_number(sum->comm_optim_s), "optim_s",
                      tess__json_number(sum->optim_s), "total_s", tess__json_number(sum->total_s)));
    }
    return json_pack("{s:{s:I, s:i, s:o}}", "times", "epoch", (json_int_t)times->epoch, "slowest",
                     times_slowest(times), "ranks", ranks);
}
