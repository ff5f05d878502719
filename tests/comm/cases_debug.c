/* The comparing communicator: whatever differs between ranks is found at the first call, and the
 * message names each rank's call; what agrees passes. That it changes nothing else is shown by all
 * the other cases, which run on it too. */
#include "comm/cases.h"

#include "comm/debug.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const debug_units[] = {"fc1", "fc2", "fc3"};

/* A comparing communicator over a copy of the world's, which the harness closes. */
static enum tess_status debug_open(struct tess_comm *comm, struct tess_world *world,
                                   struct tess_comm **debug_out)
{
    struct tess_board *board = tess_world_board(world, comm->rank);
    atomic_store(&board->doing, TESS_DOING_BACKWARD);
    atomic_store(&board->unit, 1);
    atomic_store(&board->step, 17);
    struct tess_comm *debug;
    TESS_TRY(tess_comm_split(comm, 0, comm->rank, &debug));
    enum tess_status status = tess_comm_debug_open(debug, board, debug_units, 3);
    if (status == TESS_OK)
        *debug_out = debug;
    else
        tess_comm_close(debug);
    return status;
}

/* What the last rank does otherwise than the rest. */
enum debug_kind {
    DEBUG_OPERATION,
    DEBUG_COUNT,
    DEBUG_DTYPE,
    DEBUG_REDUCTION,
    DEBUG_ROOT,
    DEBUG_PLACE, /* another site in another unit */
    DEBUG_STEP,
    DEBUG_SPLITS,
    DEBUG_SKIPS, /* one call, and comes with the next */
    DEBUG_KINDS
};

/* What the message must contain about the many and the one. */
static const char *const debug_said[DEBUG_KINDS][2] = {
    [DEBUG_OPERATION] = {"all_reduce of 4 f32 (sum) at ", "barrier at "},
    [DEBUG_COUNT] = {"all_reduce of 4 f32 (sum) at ", "all_reduce of 5 f32 (sum) at "},
    [DEBUG_DTYPE] = {"all_reduce of 4 f32 (sum) at ", "all_reduce of 4 i32 (sum) at "},
    [DEBUG_REDUCTION] = {"all_reduce of 4 f32 (sum) at ", "all_reduce of 4 f32 (max) at "},
    [DEBUG_ROOT] = {"broadcast of 4 f32 with root 0 at ", "broadcast of 4 f32 with root 1 at "},
    [DEBUG_PLACE] = {"in backward of unit 1 (fc2), step 17",
                     "in backward of unit 2 (fc3), step 17"},
    [DEBUG_STEP] = {"in backward of unit 1 (fc2), step 17", "in backward of unit 1 (fc2), step 18"},
    [DEBUG_SPLITS] = {"all_reduce of 4 f32 (sum) at ", "split at "},
    [DEBUG_SKIPS] = {"all_reduce of 4 f32 (sum) at ", "all_reduce of 1 f32 (sum) at "},
};

static enum tess_status debug_differ(struct tess_comm *comm, enum debug_kind kind, bool odd,
                                     struct tess_board *board, float *data)
{
    struct tess_comm *child;
    enum tess_dtype dtype = kind == DEBUG_DTYPE && odd ? TESS_I32 : TESS_F32;
    enum tess_reduce reduce = kind == DEBUG_REDUCTION && odd ? TESS_REDUCE_MAX : TESS_REDUCE_SUM;
    size_t count = kind == DEBUG_COUNT && odd ? 5 : kind == DEBUG_SKIPS && odd ? 1 : 4;
    if (kind == DEBUG_OPERATION && odd)
        return tess_comm_barrier(comm);
    if (kind == DEBUG_ROOT)
        return tess_comm_broadcast(comm, data, 4, TESS_F32, odd ? 1 : 0, NULL);
    if (kind == DEBUG_SPLITS && odd)
        return tess_comm_split(comm, 0, 0, &child);
    if (kind == DEBUG_STEP && odd)
        atomic_store(&board->step, 18);
    if (kind == DEBUG_PLACE && odd) {
        atomic_store(&board->unit, 2);
        return tess_comm_all_reduce(comm, data, data, 4, TESS_F32, TESS_REDUCE_SUM, NULL);
    }
    return tess_comm_all_reduce(comm, data, data, count, dtype, reduce, NULL);
}

static int debug_mismatch_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    enum debug_kind kind = *(enum debug_kind *)arg;
    struct tess_comm *debug;
    struct tess_board *board = tess_world_board(world, comm->rank);
    int32_t n = comm->rank_count;
    bool odd = comm->rank == n - 1;
    float data[8] = {0};
    WORLD_OK(debug_open(comm, world, &debug));
    for (int k = 0; k < 2; k++)
        WORLD_OK(tess_comm_all_reduce(debug, data, data, 3, TESS_F32, TESS_REDUCE_SUM, NULL));

    struct tess_event event; /* the one that is found needs no wait */
    enum tess_status status = kind == DEBUG_COUNT
                                  ? tess_comm_all_reduce(debug, data, data, odd ? 5 : 4, TESS_F32,
                                                         TESS_REDUCE_SUM, &event)
                                  : debug_differ(debug, kind, odd, board, data);
    WORLD_CHECK(status == TESS_ERR_COMM);
    char many[64], reason[1024];
    int32_t who;
    if (n == 2)
        snprintf(many, sizeof(many), "collective 3 of the group differs: rank 0: ");
    else if (n == 3)
        snprintf(many, sizeof(many), "collective 3 of the group differs: ranks 0, 1: ");
    else
        snprintf(many, sizeof(many), "collective 3 of the group differs: ranks 0-%d: ", (int)n - 2);
    WORLD_CHECK(tess_world_aborted(world, &who, reason, sizeof(reason)));
    WORLD_CHECK(strstr(tess_log_last_error(), reason) != NULL);
    WORLD_CHECK(strncmp(reason, many, strlen(many)) == 0);
    char one[64];
    snprintf(one, sizeof(one), "; rank %d: ", (int)n - 1);
    const char *second = strstr(reason, one);
    WORLD_CHECK(second != NULL && strstr(second, debug_said[kind][1]) != NULL);
    const char *first = strstr(reason, debug_said[kind][0]);
    WORLD_CHECK(first != NULL && first < second);
    const char *site = strstr(reason, "cases_debug.c:");
    WORLD_CHECK(site != NULL && site < second && strstr(second, "cases_debug.c:") != NULL);
    WORLD_CHECK(tess_comm_barrier(debug) == TESS_ERR_ABORTED);
    tess_comm_close(debug);
    return 0;
}

void case_debug_mismatch(void **state)
{
    for (int kind = 0; kind < DEBUG_KINDS; kind++)
        case_run(state, debug_mismatch_rank, &kind);
}

/* What may differ: the place where one role stands, the unit at one place, the targets. */
static int debug_agreement_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)arg;
    struct tess_comm *debug;
    float data = (float)comm->rank, sum = 0, here = 0;
    WORLD_OK(debug_open(comm, world, &debug));
    bool root = comm->rank == 0;
    if (root)
        WORLD_OK(tess_comm_reduce(debug, &data, &sum, 1, TESS_F32, TESS_REDUCE_SUM, 0, NULL));
    else
        WORLD_OK(tess_comm_reduce(debug, &data, NULL, 1, TESS_F32, TESS_REDUCE_SUM, 0, NULL));
    int32_t n = comm->rank_count;
    WORLD_CHECK(!root || sum == (float)(n * (n - 1) / 2));
    atomic_store(&tess_world_board(world, comm->rank)->unit, comm->rank);
    WORLD_OK(tess_comm_all_reduce(debug, &data, &here, 1, TESS_F32, TESS_REDUCE_SUM, NULL));
    WORLD_CHECK(here == (float)(n * (n - 1) / 2));
    tess_comm_close(debug);
    return 0;
}

void case_debug_agreement(void **state)
{
    case_run(state, debug_agreement_rank, NULL);
}

/* Groups of even and of odd ranks; in that of the odd ones the last rank differs. */
static int debug_group_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)arg;
    struct tess_comm *debug, *group;
    int32_t last = (comm->rank_count - 2) / 2 * 2 + 1;
    float data[8] = {0};
    WORLD_OK(debug_open(comm, world, &debug));
    WORLD_OK(tess_comm_split(debug, comm->rank % 2, comm->rank, &group));
    WORLD_OK(tess_comm_barrier(group));
    /* No rank fails before all even ranks have come so far; one that is slow to leave its send may
     * be stopped there. */
    enum tess_status status = TESS_OK;
    for (int32_t even = 0; even < comm->rank_count; even += 2) {
        int32_t odd = even + 1 < comm->rank_count ? even + 1 : 1;
        if (comm->rank == even)
            status = tess_comm_send(debug, data, 1, TESS_F32, odd, NULL);
        if (comm->rank == odd)
            WORLD_OK(tess_comm_recv(debug, data, 1, TESS_F32, even, NULL));
    }
    size_t count = comm->rank == last ? 7 : 6;
    if (status == TESS_OK)
        status = tess_comm_all_reduce(group, data, data, count, TESS_F32, TESS_REDUCE_SUM, NULL);
    if (comm->rank % 2 != 0) {
        WORLD_CHECK(status == TESS_ERR_COMM);
        char reason[1024], one[64];
        WORLD_CHECK(tess_world_aborted(world, NULL, reason, sizeof(reason)));
        snprintf(one, sizeof(one), "; rank %d: all_reduce of 7 f32 (sum)", (int)last);
        WORLD_CHECK(strncmp(reason, "collective 2 of the group differs: rank", 39) == 0);
        WORLD_CHECK(strstr(reason, " 1: all_reduce of 6 f32 (sum)") != NULL ||
                    strstr(reason, " 1, 3, 5: all_reduce of 6 f32 (sum)") != NULL);
        WORLD_CHECK(strstr(reason, one) != NULL);
    } else {
        WORLD_CHECK(status == TESS_OK || status == TESS_ERR_ABORTED);
        WORLD_CHECK(tess_comm_barrier(debug) == TESS_ERR_ABORTED);
    }
    tess_comm_close(group);
    tess_comm_close(debug);
    return 0;
}

void case_debug_group(void **state)
{
    case_run(state, debug_group_rank, NULL);
}

/* Rank 0 makes no further call; who waits for it names it and what it is missing from. */
static int debug_absent_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)arg;
    struct tess_comm *debug;
    WORLD_OK(debug_open(comm, world, &debug));
    WORLD_OK(tess_comm_barrier(debug));
    if (comm->rank == 0) {
        while (!tess_world_aborted(world, NULL, NULL, 0))
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    } else {
        int64_t one = 1;
        struct tess_event event;
        enum tess_status status =
            tess_comm_all_reduce(debug, &one, &one, 1, TESS_I64, TESS_REDUCE_SUM, &event);
        WORLD_CHECK(status == TESS_ERR_TIMEOUT || status == TESS_ERR_ABORTED);
        const char *text = tess_log_last_error();
        WORLD_CHECK(strstr(text, "rank 0 has not called it (in backward of unit 1") != NULL);
        WORLD_CHECK(strstr(text, "before collective 2, all_reduce of 1 i64 (sum)") != NULL);
        WORLD_CHECK(strstr(text, "cases_debug.c:") != NULL);
    }
    tess_comm_close(debug);
    return 0;
}

void case_debug_absent(void **state)
{
    const struct case_setup *setup = *state;
    struct world_setup world = {.ranks = setup->ranks, .mode = setup->mode, .timeout_s = 1};
    struct world_report *report = calloc(1, sizeof(*report));
    assert_non_null(report);
    int failed = case_run_plain(setup, &world, debug_absent_rank, NULL, report);
    world_print(report);
    free(report);
    assert_int_equal(failed, 0);
}

/* The same calls on the communicator below, step by step: equal counters, equal results. */
static int debug_stats_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)arg;
    enum { COUNT = 5000 };
    struct tess_comm *debug, *plain;
    float *data = calloc(COUNT, sizeof(*data));
    WORLD_CHECK(data != NULL);
    WORLD_OK(debug_open(comm, world, &debug));
    WORLD_OK(tess_comm_split(comm, 0, comm->rank, &plain));
    struct tess_comm *const both[] = {plain, debug};
    for (int i = 0; i < 2; i++) {
        struct tess_comm *it = both[i], *child;
        struct tess_event event[2];
        WORLD_CHECK(it->rank == comm->rank && it->rank_count == comm->rank_count);
        WORLD_OK(tess_comm_all_reduce(it, data, data, COUNT, TESS_F32, TESS_REDUCE_SUM, &event[0]));
        WORLD_OK(tess_comm_split(it, 0, 0, &child)); /* with a call under way */
        WORLD_OK(tess_comm_broadcast(it, data, 10, TESS_F32, 0, &event[1]));
        WORLD_OK(tess_event_wait(&event[1]));
        WORLD_OK(tess_event_wait(&event[0]));
        WORLD_OK(tess_comm_barrier(it));
        tess_comm_close(child);
    }
    WORLD_CHECK(memcmp(plain->stats.calls, debug->stats.calls, sizeof(plain->stats.calls)) == 0);
    WORLD_CHECK(plain->stats.sent_bytes == debug->stats.sent_bytes);
    WORLD_CHECK(plain->stats.received_bytes == debug->stats.received_bytes);
    WORLD_CHECK(debug->stats.flight_s > 0 && debug->flight_count == 0);
    tess_comm_close(plain);
    tess_comm_close(debug);
    free(data);
    return 0;
}

void case_debug_stats(void **state)
{
    case_run(state, debug_stats_rank, NULL);
}
