/* What happens when something is wrong: bad arguments, ranks that disagree, fail, are late or die.
 * No rank waits for ever, and the message names the rank. */
#include "comm/cases.h"

#include "base/clock.h"
#include "comm/local/shared.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int failure_arguments_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    float data[64 * 8] = {0};
    int32_t n = comm->rank_count;
    WORLD_CHECK(tess_comm_all_reduce(comm, NULL, data, 4, TESS_F32, TESS_REDUCE_SUM, NULL) !=
                TESS_OK);
    WORLD_CHECK(tess_comm_all_reduce(comm, data, NULL, 4, TESS_F32, TESS_REDUCE_SUM, NULL) !=
                TESS_OK);
    WORLD_CHECK(tess_comm_all_reduce(comm, data, data + 1, 4, TESS_F32, TESS_REDUCE_SUM, NULL) !=
                TESS_OK);
    WORLD_CHECK(tess_comm_all_reduce(comm, data, data, SIZE_MAX / 4, TESS_F32, TESS_REDUCE_SUM,
                                     NULL) != TESS_OK);
    WORLD_CHECK(tess_comm_all_to_all(comm, data, data, 1, TESS_F32, NULL) != TESS_OK);
    WORLD_CHECK(tess_comm_broadcast(comm, data, 4, TESS_F32, n, NULL) != TESS_OK);
    WORLD_CHECK(tess_comm_broadcast(comm, data, 4, TESS_F32, -1, NULL) != TESS_OK);
    WORLD_CHECK(tess_comm_send(comm, data, 4, TESS_F32, comm->rank, NULL) != TESS_OK);
    WORLD_CHECK(strstr(tess_log_last_error(), "itself") != NULL);
    /* The caller, unless it gave no site; not the one before. */
    WORLD_CHECK(strstr(tess_log_last_error(), "cases_failure.c:") != NULL);
    WORLD_CHECK((tess_comm_send)(comm, data, 4, TESS_F32, comm->rank, NULL) != TESS_OK);
    WORLD_CHECK(strncmp(tess_log_last_error(), "send: rank ", 11) == 0);
    struct tess_comm *child;
    WORLD_CHECK(tess_comm_split(comm, -1, 0, &child) != TESS_OK);
    struct tess_event none = {0};
    WORLD_OK(tess_event_wait(&none));
    /* Nothing of this was queued. */
    WORLD_OK(tess_comm_barrier(comm));
    return 0;
}

void case_arguments(void **state)
{
    case_run(state, failure_arguments_rank, NULL);
}

/* More groups than there are places: all ranks get the error, those that are open go on, and closed
 * ones make room. A rank by itself takes no place. */
static int failure_places_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    enum { MANY = 8 * 64 };
    struct tess_comm *group[MANY], *alone;
    int32_t sum = 1, count = 0;
    enum tess_status status;
    while ((status = tess_comm_split(comm, 0, comm->rank, &group[count])) == TESS_OK)
        WORLD_CHECK(++count < MANY);
    WORLD_CHECK(status == TESS_ERR_COMM && count >= 63);
    WORLD_CHECK(strstr(tess_log_last_error(), "no room for another group: ") != NULL);
    WORLD_OK(
        tess_comm_all_reduce(group[count - 1], &sum, &sum, 1, TESS_I32, TESS_REDUCE_SUM, NULL));
    WORLD_CHECK(sum == comm->rank_count);
    WORLD_OK(tess_comm_split(comm, comm->rank, 0, &alone));
    WORLD_CHECK(alone->rank_count == 1);
    WORLD_OK(tess_comm_all_reduce(alone, &sum, &sum, 1, TESS_I32, TESS_REDUCE_SUM, NULL));
    WORLD_CHECK(sum == comm->rank_count);
    tess_comm_close(alone);
    for (int32_t i = 0; i < count; i++)
        tess_comm_close(group[i]);
    WORLD_OK(tess_comm_barrier(comm));
    WORLD_OK(tess_comm_split(comm, 0, -comm->rank, &group[0]));
    WORLD_CHECK(group[0]->rank == comm->rank_count - 1 - comm->rank);
    WORLD_OK(tess_comm_barrier(group[0]));
    tess_comm_close(group[0]);
    return 0;
}

void case_places(void **state)
{
    case_run(state, failure_places_rank, NULL);
}

/* How one rank's call differs from the others'. */
enum failure_kind { FAILURE_COUNT, FAILURE_DTYPE, FAILURE_COLLECTIVE, FAILURE_ROOT, FAILURE_KINDS };

static enum tess_status failure_call(struct tess_comm *comm, enum failure_kind kind, float *data)
{
    bool odd = comm->rank == comm->rank_count - 1;
    switch (kind) {
    case FAILURE_COUNT:
        return tess_comm_all_reduce(comm, data, data, odd ? 5 : 4, TESS_F32, TESS_REDUCE_SUM, NULL);
    case FAILURE_DTYPE:
        return tess_comm_all_reduce(comm, data, data, 4, odd ? TESS_I32 : TESS_F32, TESS_REDUCE_SUM,
                                    NULL);
    case FAILURE_COLLECTIVE:
        if (odd)
            return tess_comm_barrier(comm);
        return tess_comm_all_reduce(comm, data, data, 4, TESS_F32, TESS_REDUCE_SUM, NULL);
    default:
        return tess_comm_reduce(comm, data, data, 4, TESS_F32, TESS_REDUCE_SUM, odd ? 1 : 0, NULL);
    }
}

static int failure_mismatch_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    float data[8] = {0};
    /* One that is slow to leave may be stopped by what the others do next. */
    enum tess_status status = tess_comm_barrier(comm);
    if (status == TESS_OK)
        status = failure_call(comm, *(enum failure_kind *)arg, data);
    WORLD_CHECK(status == TESS_ERR_COMM || status == TESS_ERR_ABORTED);
    char reason[512], last[24];
    WORLD_CHECK(tess_world_aborted(world, NULL, reason, sizeof(reason)));
    snprintf(last, sizeof(last), "rank %d called", (int)comm->rank_count - 1);
    WORLD_CHECK(strstr(reason, last) != NULL && strstr(reason, "differs") != NULL);
    return 0;
}

void case_mismatch(void **state)
{
    for (int kind = 0; kind < FAILURE_KINDS; kind++)
        case_run(state, failure_mismatch_rank, &kind);
}

/* One rank fails while the others wait, in a large call, a small one and a receive. */
static int failure_abort_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)arg;
    enum tess_status status = tess_comm_barrier(comm);
    if (comm->rank == comm->rank_count - 1) {
        WORLD_OK(status);
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        tess_comm_abort(comm, "the disk is full");
        tess_comm_abort(comm, "a later reason that is not kept");
        return 0;
    }
    double start = tess_clock_s();
    float *own = calloc(30000, sizeof(*own));
    WORLD_CHECK(own != NULL);
    if (status == TESS_OK)
        status = comm->rank % 3 == 0
                     ? tess_comm_all_reduce(comm, own, own, 30000, TESS_F32, TESS_REDUCE_SUM, NULL)
                 : comm->rank % 3 == 1
                     ? tess_comm_barrier(comm)
                     : tess_comm_recv(comm, own, 10, TESS_F32, comm->rank_count - 1, NULL);
    free(own);
    /* Ranks whose calls do not fit each other may find that out first only if all have called. */
    WORLD_CHECK(status == TESS_ERR_ABORTED);
    WORLD_CHECK(tess_clock_s() - start < 1.0);
    int32_t who;
    char reason[512];
    WORLD_CHECK(tess_world_aborted(world, &who, reason, sizeof(reason)));
    WORLD_CHECK(who == comm->rank_count - 1 && strcmp(reason, "the disk is full") == 0);
    WORLD_CHECK(strstr(tess_log_last_error(), "the disk is full") != NULL);
    WORLD_CHECK(tess_comm_barrier(comm) == TESS_ERR_ABORTED);
    return 0;
}

void case_abort(void **state)
{
    case_run(state, failure_abort_rank, NULL);
}

/* A rank loses its core while it writes why it stops: the others wait for the whole reason. */
static int failure_reason_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)arg;
    /* All have opened the group when the last rank leaves this; it may end before others do. */
    (void)tess_comm_barrier(comm);
    if (comm->rank == comm->rank_count - 1) {
        atomic_store(&world->abort_state, 1);
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        strcpy(world->abort_reason, "the disk is full");
        world->abort_rank = comm->rank;
        atomic_store(&world->abort_state, 2);
        return 0;
    }
    while (atomic_load(&world->abort_state) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    int32_t who;
    char reason[64];
    WORLD_CHECK(tess_world_aborted(world, &who, reason, sizeof(reason)));
    WORLD_CHECK(who == comm->rank_count - 1 && strcmp(reason, "the disk is full") == 0);
    return 0;
}

void case_reason(void **state)
{
    case_run(state, failure_reason_rank, NULL);
}

static int failure_time_out_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)arg;
    struct tess_board *board = tess_world_board(world, comm->rank);
    WORLD_OK(tess_comm_barrier(comm));
    if (comm->rank == 0) {
        /* Does not come; its board shows what it does instead. */
        atomic_store(&board->doing, TESS_DOING_BACKWARD);
        atomic_store(&board->unit, 2);
        atomic_store(&board->step, 17);
        while (!tess_world_aborted(world, NULL, NULL, 0))
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        return 0;
    }
    int64_t one = 1;
    enum tess_status status =
        tess_comm_all_reduce(comm, &one, &one, 1, TESS_I64, TESS_REDUCE_SUM, NULL);
    WORLD_CHECK(status == TESS_ERR_TIMEOUT || status == TESS_ERR_ABORTED);
    const char *text = tess_log_last_error();
    WORLD_CHECK(strstr(text, "rank 0 has not called it") != NULL);
    WORLD_CHECK(strstr(text, "all_reduce ") != NULL && strstr(text, "cases_failure.c:") != NULL);
    WORLD_CHECK(strstr(text, "in backward of unit 2, step 17") != NULL);
    return 0;
}

/* Rank 0 waits for rank 1 which waits for rank 2, and so on: whichever's time is up first, the last
 * rank is named with what it does. */
static int failure_chain_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)arg;
    const int32_t rank = comm->rank, last = comm->rank_count - 1;
    struct tess_board *board = tess_world_board(world, rank);
    int64_t got;
    WORLD_OK(tess_comm_barrier(comm));
    if (rank == last) {
        atomic_store(&board->doing, TESS_DOING_INPUT);
        atomic_store(&board->unit, 3);
        while (!tess_world_aborted(world, NULL, NULL, 0))
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        return 0;
    }
    nanosleep(&(struct timespec){.tv_nsec = 20000000 * rank}, NULL);
    enum tess_status status = tess_comm_recv(comm, &got, 1, TESS_I64, rank + 1, NULL);
    WORLD_CHECK(status == TESS_ERR_TIMEOUT || status == TESS_ERR_ABORTED);
    /* Whose time is up first is the machine's choice, and decides what is printed. */
    int32_t first;
    char reason[512], expected[80];
    WORLD_CHECK(tess_world_aborted(world, &first, reason, sizeof(reason)));
    WORLD_CHECK(first < last);
    if (first == last - 1)
        snprintf(expected, sizeof(expected),
                 "rank %d has not called it (receiving the input of unit 3)", (int)last);
    else
        snprintf(expected, sizeof(expected),
                 "rank %d waits for rank %d (receiving the input of unit 3)", (int)last - 1,
                 (int)last);
    if (strstr(tess_log_last_error(), expected) == NULL)
        return world_fail("expected '%s' in: %s", expected, tess_log_last_error());
    return 0;
}

static void failure_time_out(void **state, world_function fn)
{
    const struct case_setup *setup = *state;
    struct world_setup world = {.ranks = setup->ranks, .mode = setup->mode, .timeout_s = 1};
    struct world_report *report = calloc(1, sizeof(*report));
    assert_non_null(report);
    int failed = case_run_plain(setup, &world, fn, NULL, report);
    world_print(report);
    double seconds = report->seconds;
    free(report);
    assert_int_equal(failed, 0);
    assert_true(seconds < world.timeout_s + 1.6);
}

void case_time_out(void **state)
{
    failure_time_out(state, failure_time_out_rank);
}

void case_time_out_chain(void **state)
{
    failure_time_out(state, failure_chain_rank);
}

/* Rank 0 calls and then takes nothing of what the last rank sends: more than sockets hold. */
static int failure_takes_nothing_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    enum { COUNT = 8 << 20 };
    const int32_t last = comm->rank_count - 1;
    float *data = calloc(COUNT, sizeof(*data));
    struct tess_event event;
    int32_t word = 0;
    (void)arg;
    WORLD_CHECK(data != NULL);
    WORLD_OK(tess_comm_barrier(comm));
    enum tess_status status = tess_comm_broadcast(comm, data, COUNT, TESS_F32, last, &event);
    /* While rank 0 waits for a word its call goes out, and some of the data may come. */
    if (status == TESS_OK && comm->rank == 0)
        status = tess_comm_recv(comm, &word, 1, TESS_I32, last, NULL);
    if (status == TESS_OK && comm->rank == last)
        status = tess_comm_send(comm, &word, 1, TESS_I32, 0, NULL);
    if (status == TESS_OK && comm->rank > 0)
        status = tess_event_wait(&event);
    while (status == TESS_OK && comm->rank < last && !tess_world_aborted(world, NULL, NULL, 0))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (comm->rank == 0)
        status = tess_event_wait(&event);
    free(data);
    if (status == TESS_OK && comm->rank > 0 && comm->rank < last)
        return 0;
    WORLD_CHECK(status == TESS_ERR_TIMEOUT || status == TESS_ERR_ABORTED);
    /* The word may come before rank 0's call goes out. */
    WORLD_CHECK(strstr(tess_log_last_error(), "has not finished it") != NULL ||
                strstr(tess_log_last_error(), "rank 0 has not called it") != NULL);
    return 0;
}

void case_takes_nothing(void **state)
{
    failure_time_out(state, failure_takes_nothing_rank);
}

/* A rank is killed in the middle of large calls; the launcher announces it. */
static int failure_killed_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)arg;
    void *memory;
    size_t count = 100000;
    WORLD_OK(tess_comm_alloc(comm, count * sizeof(float), &memory));
    for (int turn = 0;; turn++) {
        if (turn == 20 && comm->rank == comm->rank_count - 1)
            kill(getpid(), SIGKILL);
        enum tess_status status =
            tess_comm_all_reduce(comm, memory, memory, count, TESS_F32, TESS_REDUCE_MAX, NULL);
        if (status == TESS_OK)
            continue;
        char reason[512];
        int32_t who;
        WORLD_CHECK(status == TESS_ERR_ABORTED);
        WORLD_CHECK(tess_world_aborted(world, &who, reason, sizeof(reason)));
        WORLD_CHECK(who == comm->rank_count - 1 && strcmp(reason, "killed by signal 9") == 0);
        return 0;
    }
}

void case_killed(void **state)
{
    const struct case_setup *setup = *state;
    struct world_setup world = {.ranks = setup->ranks, .mode = setup->mode};
    struct world_report *report = calloc(1, sizeof(*report));
    assert_non_null(report);
    int failed = case_run_plain(setup, &world, failure_killed_rank, NULL, report);
    world_print(report);
    const struct world_failure killed = report->failure[0];
    double seconds = report->seconds;
    free(report);
    assert_int_equal(failed, 1);
    assert_int_equal(killed.rank, setup->ranks - 1);
    assert_int_equal(killed.signal, SIGKILL);
    assert_true(seconds < 5.0);
}

/* The board's words, and the call that a rank waits in. */
static int failure_board_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)arg;
    char text[200];
    static const char *const names[] = {"fc1", "conv2"};
    int32_t last = comm->rank_count - 1;
    struct tess_board *board = tess_world_board(world, comm->rank);
    tess_board_describe(board, NULL, 0, text, sizeof(text));
    WORLD_CHECK(strcmp(text, "starting") == 0);
    atomic_store(&board->doing, TESS_DOING_FORWARD);
    atomic_store(&board->unit, 1);
    atomic_store(&board->step, 3);
    tess_board_describe(board, names, 2, text, sizeof(text));
    WORLD_CHECK(strcmp(text, "in forward of unit 1 (conv2), step 3") == 0);
    WORLD_OK(tess_comm_barrier(comm));
    if (comm->rank == 0 && last > 0) {
        const char *expected = "in forward of unit 1 (conv2), step 3, waiting in barrier 2";
        for (int i = 0; i < 3000 && strcmp(text, expected) != 0; i++) {
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
            tess_board_describe(tess_world_board(world, last), names, 2, text, sizeof(text));
        }
        WORLD_CHECK(strcmp(text, expected) == 0);
    }
    WORLD_OK(tess_comm_barrier(comm));
    return 0;
}

void case_board(void **state)
{
    case_run(state, failure_board_rank, NULL);
}
