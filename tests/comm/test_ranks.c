/*
 * The local communicator with many ranks: `test_ranks threads|processes RANKS [measure]`. Small
 * calls of every kind in the world's group, in groups of a mesh's axes and between neighbours,
 * against values that each rank computes. `measure` only prints what opening and
 * calls take.
 */
#include "base/clock.h"
#include "base/reduce.h"
#include "comm/call.h"
#include "comm/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 3, LARGE = 5000, PIECES = 150000 }; /* PIECES: of three chunks */

struct ranks_run {
    enum tess_rank_mode mode;
    int32_t ranks;
    double start_s;
};

/* A sum over all of [0, n) in the canonical order of values whose order shows in the bits. */
static int ranks_sums(struct tess_comm *comm, size_t count, const struct place *place)
{
    float *data = (float *)place->host;
    for (int shared = 0; shared < 2; shared++) {
        float *own = shared ? data : calloc(count, sizeof(*own));
        WORLD_CHECK(own != NULL);
        value_fill(TESS_F32, 11, comm->rank, count, own);
        WORLD_OK(tess_comm_all_reduce(comm, own, own, count, TESS_F32, TESS_REDUCE_SUM, NULL));
        for (size_t i = (size_t)comm->rank % 7; i < count; i += 997)
            WORLD_CHECK(value_is_reduced(TESS_F32, TESS_REDUCE_SUM, TESS_ORDER_CANONICAL, 11,
                                         comm->rank_count, i, &own[i]));
        if (!shared)
            free(own);
    }
    return 0;
}

/* Collectives whose source or target has a share of every rank. */
static int ranks_shares(struct tess_comm *comm, float *many, float *other)
{
    const int32_t n = comm->rank_count, rank = comm->rank;
    float own[COUNT];
    value_fill(TESS_F32, 21, rank, (size_t)n * COUNT, many);
    WORLD_OK(tess_comm_reduce_scatter(comm, many, own, COUNT, TESS_F32, TESS_REDUCE_SUM, NULL));
    for (size_t i = 0; i < COUNT; i++)
        WORLD_CHECK(value_is_reduced(TESS_F32, TESS_REDUCE_SUM, TESS_ORDER_CANONICAL, 21, n,
                                     (size_t)rank * COUNT + i, &own[i]));
    WORLD_OK(tess_comm_all_to_all(comm, many, other, COUNT, TESS_F32, NULL));
    for (int32_t r = 0; r < n; r++)
        WORLD_CHECK(
            value_is(TESS_F32, 21, r, (size_t)rank * COUNT + 1, &other[(size_t)r * COUNT + 1]));
    value_fill(TESS_F32, 31, rank, COUNT, own);
    WORLD_OK(tess_comm_all_gather(comm, own, many, COUNT, TESS_F32, NULL));
    for (int32_t r = 0; r < n; r++)
        WORLD_CHECK(value_is(TESS_F32, 31, r, 2, &many[(size_t)r * COUNT + 2]));
    return 0;
}

static int ranks_rooted(struct tess_comm *comm)
{
    const int32_t n = comm->rank_count, root = n - 1;
    int64_t word = comm->rank == root ? 77 : 0, one = comm->rank, sum = -1;
    WORLD_OK(tess_comm_broadcast(comm, &word, 1, TESS_I64, root, NULL));
    WORLD_CHECK(word == 77);
    WORLD_OK(tess_comm_reduce(comm, &one, &sum, 1, TESS_I64, TESS_REDUCE_MAX, root / 2, NULL));
    WORLD_CHECK(comm->rank != root / 2 || sum == n - 1);
    return 0;
}

/* To the neighbours on both sides and across, all at once; eager, and through chunks. */
static int ranks_messages(struct tess_comm *comm)
{
    enum { PEERS = 3 };
    const int32_t n = comm->rank_count, rank = comm->rank;
    const int32_t step[PEERS] = {1, n - 1, n / 2};
    float *sent = calloc(PEERS * LARGE, sizeof(*sent)), *got = calloc(LARGE, sizeof(*got));
    struct tess_event event[PEERS];
    WORLD_CHECK(sent != NULL && got != NULL);
    for (size_t count = 1; count <= LARGE; count += LARGE - 1) {
        for (int k = 0; k < PEERS; k++) {
            value_fill(TESS_F32, (uint64_t)k, rank, count, sent + k * LARGE);
            WORLD_OK(tess_comm_send(comm, sent + k * LARGE, count, TESS_F32, (rank + step[k]) % n,
                                    &event[k]));
        }
        for (int k = 0; k < PEERS; k++) {
            const int32_t from = (rank + n - step[k]) % n;
            WORLD_OK(tess_comm_recv(comm, got, count, TESS_F32, from, NULL));
            WORLD_CHECK(value_is(TESS_F32, (uint64_t)k, from, count - 1, &got[count - 1]));
        }
        for (int k = 0; k < PEERS; k++)
            WORLD_OK(tess_event_wait(&event[k]));
    }
    free(sent);
    free(got);
    return 0;
}

/* Rows of 8 and the columns across them, as a mesh has them; opened twice, from seats used before.
 */
static int ranks_axes(struct tess_comm *comm)
{
    const int32_t rank = comm->rank, n = comm->rank_count, width = n < 8 ? n : 8;
    for (int round = 0; round < 2; round++) {
        struct tess_comm *row, *column;
        int64_t in_row = rank, in_column = rank;
        WORLD_OK(tess_comm_split(comm, rank / width, rank, &row));
        WORLD_OK(tess_comm_split(comm, rank % width, -rank, &column));
        WORLD_CHECK(column->rank == column->rank_count - 1 - rank / width);
        WORLD_OK(tess_comm_all_reduce(row, &in_row, &in_row, 1, TESS_I64, TESS_REDUCE_MIN, NULL));
        WORLD_OK(tess_comm_all_reduce(column, &in_column, &in_column, 1, TESS_I64, TESS_REDUCE_MIN,
                                      NULL));
        WORLD_CHECK(in_row == rank / width * width && in_column == rank % width);
        tess_comm_close(column);
        tess_comm_close(row);
    }
    return 0;
}

static int ranks_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    const size_t many = (size_t)comm->rank_count * COUNT;
    struct place place;
    float *data = calloc(2 * many, sizeof(*data));
    WORLD_CHECK(data != NULL);
    const size_t large = comm->rank_count <= 128 ? PIECES : LARGE;
    WORLD_OK(place_open(comm, large * sizeof(float), true, &place));
    int failed = ranks_sums(comm, 7, &place) || ranks_sums(comm, large, &place) ||
                 ranks_shares(comm, data, data + many) || ranks_rooted(comm) ||
                 ranks_messages(comm) || ranks_axes(comm);
    place_close(&place);
    free(data);
    return failed;
}

static int ranks_run(struct ranks_run *run, world_function fn)
{
    const struct world_setup setup = {
        .ranks = run->ranks, .mode = run->mode, .timeout_s = 120, .limit_s = 250};
    struct world_report *report = calloc(1, sizeof(*report));
    assert_non_null(report);
    run->start_s = tess_clock_s();
    const int failed = world_run_setup(&setup, fn, run, report);
    world_print(report);
    free(report);
    return failed;
}

static void test_calls(void **state)
{
    assert_int_equal(ranks_run(*state, ranks_rank), 0);
}

/* More arrays than a device takes, of both sides of powers of two. */
static void test_tree(void **state)
{
    static const int32_t counts[] = {65, 512, 513, 1000};
    (void)state;
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        const int32_t n = counts[c];
        float *data = calloc((size_t)n * COUNT, sizeof(*data)), sum[COUNT];
        const void **source = calloc((size_t)n, sizeof(*source));
        void *target[1] = {sum};
        assert_true(data != NULL && source != NULL);
        for (int32_t r = 0; r < n; r++) {
            value_fill(TESS_F32, 41, r, COUNT, data + (size_t)r * COUNT);
            source[r] = data + (size_t)r * COUNT;
        }
        tess__reduce(TESS_F32, TESS_REDUCE_SUM, n, source, 1, target, COUNT);
        for (size_t i = 0; i < COUNT; i++)
            assert_true(value_is_reduced(TESS_F32, TESS_REDUCE_SUM, TESS_ORDER_CANONICAL, 41, n, i,
                                         &sum[i]));
        free(source);
        free(data);
    }
}

static void test_names(void **state)
{
    enum { RANKS = 3000 };
    bool in[RANKS] = {false};
    char text[48];
    (void)state;
    for (int32_t r = 100; r < 2000; r++)
        in[r] = true;
    in[5] = in[6] = in[2999] = true;
    tess__name_ranks(in, RANKS, text, sizeof(text));
    assert_string_equal(text, "5, 6, 100-1999, 2999");
    tess__name_ranks(in, RANKS, text, 18);
    assert_string_equal(text, "5, 6, ...");
}

/* Peers and numbers of more bits than 64 ranks need. */
static void test_tickets(void **state)
{
    (void)state;
    const uint64_t number = UINT64_C(1) << 39;
    const struct tess__ticket ticket =
        tess__ticket_read(tess__ticket(TESS__RECEIVE, 65535, number + 7));
    assert_int_equal(ticket.peer, 65535);
    assert_true(ticket.number == number + 7 && ticket.sequence == TESS__RECEIVE);
}

static void test_split(void **state)
{
    enum { RANKS = 513 };
    struct tess__split all[RANKS];
    int32_t member[RANKS], index = -1;
    (void)state;
    for (int32_t r = 0; r < RANKS; r++)
        all[r] = (struct tess__split){.color = r % 3, .key = -(r / 6)};
    assert_int_equal(tess__split_members(all, RANKS, 4, member, &index), RANKS / 3);
    assert_int_equal(member[index], 4);
    for (int32_t i = 0; i < RANKS / 3; i++) {
        assert_int_equal(member[i] % 3, 1);
        if (i > 0) /* by key, and by rank where keys are equal */
            assert_true(
                all[member[i - 1]].key < all[member[i]].key ||
                (all[member[i - 1]].key == all[member[i]].key && member[i - 1] < member[i]));
    }
}

/* Print what calls take once all ranks have come to know each other. */
static int ranks_measure(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world;
    enum { CALLS = 20 };
    const struct ranks_run *run = arg;
    void *data;
    WORLD_OK(tess_comm_barrier(comm));
    const double open_s = tess_clock_s() - run->start_s;
    WORLD_OK(tess_comm_alloc(comm, LARGE * sizeof(float), &data));
    for (size_t count = 0; count <= LARGE; count = count == 0 ? 1 : count * 5000) {
        WORLD_OK(tess_comm_barrier(comm));
        const double begin_s = tess_clock_s();
        for (int k = 0; k < CALLS; k++)
            WORLD_OK(
                tess_comm_all_reduce(comm, data, data, count, TESS_F32, TESS_REDUCE_SUM, NULL));
        if (comm->rank == 0)
            printf("%d ranks: %.1f ms until all are there, %.3f ms for a sum of %zu\n",
                   (int)comm->rank_count, open_s * 1e3, (tess_clock_s() - begin_s) * 1e3 / CALLS,
                   count);
    }
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    static struct ranks_run run;
    if (argc < 3) {
        fprintf(stderr, "usage: test_ranks threads|processes RANKS [measure]\n");
        return 2;
    }
    run.mode = strcmp(argv[1], "threads") == 0 ? TESS_RANKS_THREADS : TESS_RANKS_PROCESSES;
    run.ranks = atoi(argv[2]);
    if (argc > 3)
        return ranks_run(&run, ranks_measure);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_calls, &run), cmocka_unit_test(test_tree),
        cmocka_unit_test(test_names), cmocka_unit_test(test_tickets), cmocka_unit_test(test_split)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
