/* Sums that are used where they are made (tess_comm_share): each element is in one rank's slice,
 * which sees all ranks' arrays; it is complete when all have run theirs; calls may be under way
 * together; and where ranks do not reach each other's memory it is an error. */
#include "comm/cases.h"

#include "base/reduce.h"

#include <stdlib.h>
#include <string.h>

enum { SHARE_COUNT_MAX = 5003, SHARE_CALLS = 3 };

/* One call's slice of the sum goes to all ranks. */
struct share_call {
    struct tess_comm_share share;
    int32_t ranks;
    float **target; /* [ranks] */
    const void **from;
    size_t offset, count; /* offset: of the call's arrays; count: of the slice */
};

static void share_run(void *context, const void *const *source, size_t begin, size_t count)
{
    struct share_call *call = context;
    call->count = count;
    for (int32_t r = 0; r < call->ranks; r++)
        call->from[r] = (const float *)source[r] + begin;
    for (int32_t r = 0; r < call->ranks; r++) {
        void *const to = call->target[r] + call->offset + begin;
        tess__reduce(TESS_F32, TESS_REDUCE_SUM, call->ranks, call->from, 1, &to, count);
    }
}

static int share_calls(struct tess_comm *comm, struct share_call *model, float *source,
                       float *target, size_t count)
{
    const size_t all = SHARE_CALLS * count, others = (size_t)comm->rank_count - 1;
    struct share_call call[SHARE_CALLS];
    struct tess_event event[SHARE_CALLS];
    size_t moved = 0;
    value_fill(TESS_F32, count, comm->rank, all, source);
    memset(target, 0, all * sizeof(*target));
    WORLD_OK(tess_comm_barrier(comm));
    const uint64_t sent = comm->stats.sent_bytes, received = comm->stats.received_bytes;
    for (size_t c = 0; c < SHARE_CALLS; c++) {
        call[c] = *model;
        call[c].offset = c * count;
        call[c].share = (struct tess_comm_share){
            .run = share_run, .context = &call[c], .given_bytes = sizeof(float)};
        WORLD_OK(tess_comm_share(comm, source + call[c].offset, count, TESS_F32, &call[c].share,
                                 &event[c]));
    }
    for (size_t c = 0; c < SHARE_CALLS; c++) {
        WORLD_OK(tess_event_wait(&event[c]));
        moved += 4 * (count - call[c].count + others * call[c].count);
    }
    for (size_t i = 0; i < all; i++)
        WORLD_CHECK(value_is_reduced(TESS_F32, TESS_REDUCE_SUM, TESS_ORDER_CANONICAL, count,
                                     comm->rank_count, i, &target[i]));
    WORLD_CHECK(comm->stats.sent_bytes - sent == moved);
    WORLD_CHECK(comm->stats.received_bytes - received == moved);
    return 0;
}

static int share_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    static const size_t counts[] = {1, 64, 1000, SHARE_COUNT_MAX};
    const struct case_setup *setup = arg;
    const size_t room = SHARE_CALLS * SHARE_COUNT_MAX * sizeof(float);
    const size_t n = (size_t)comm->rank_count;
    (void)world;
    struct place source, target;
    WORLD_OK(place_open(comm, room, true, &source));
    WORLD_OK(place_open(comm, room, true, &target));
    const bool reaches = tess_comm_reaches(comm, source.at, room);
    WORLD_CHECK(reaches == !(setup->self || setup->tcp));
    struct share_call call = {.ranks = comm->rank_count,
                              .target = calloc(n, sizeof(*call.target)),
                              .from = calloc(n, sizeof(*call.from))};
    WORLD_CHECK(call.target != NULL && call.from != NULL);
    int failed = 0;
    if (reaches) {
        call.target[comm->rank] = (float *)(void *)target.at;
        WORLD_OK(tess_comm_all_gather(comm, &call.target[comm->rank], call.target,
                                      sizeof(*call.target), TESS_U8, NULL));
        for (size_t c = 0; c < sizeof(counts) / sizeof(*counts) && failed == 0; c++)
            failed = share_calls(comm, &call, (float *)(void *)source.at,
                                 (float *)(void *)target.at, counts[c]);
    } else {
        call.share = (struct tess_comm_share){.run = share_run, .context = &call};
        WORLD_CHECK(tess_comm_share(comm, source.at, 64, TESS_F32, &call.share, NULL) ==
                    TESS_ERR_COMM);
    }
    WORLD_OK(tess_comm_barrier(comm));
    free(call.target);
    free(call.from);
    place_close(&target);
    place_close(&source);
    return failed;
}

void case_share(void **state)
{
    case_run(state, share_rank, *state);
}
