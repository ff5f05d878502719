/*
 * The communicator over a transport with many ranks: how few messages small calls need, and all
 * collectives over sockets between more processes than the machine has cores.
 */
#include "comm/cases.h"
#include "comm/net/net_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 260 };

/* The rounds of an all-to-all of many ranks: each has something for and from every other once. */
static void case_rounds(void **state)
{
    const struct net_shape shape = {7, MANY, 1, MANY, 0, NULL};
    const struct tess_comm_call call = {.collective = TESS_COLLECTIVE_ALL_TO_ALL,
                                        .dtype = TESS_F32,
                                        .count = 5,
                                        .peer = -1,
                                        .site = ""};
    int32_t given[MANY] = {0}, taken[MANY] = {0}, copied = 0;
    struct net_plan plan;
    (void)state;
    assert_int_equal(tess__net_plan_open(MANY, &plan), TESS_OK);
    plan.round_count = 1;
    for (int32_t round = 0; round < plan.round_count; round++) {
        tess__net_plan(&shape, &call, round, &plan);
        assert_true(plan.lane_count <= 2 * NET_ROUND);
        for (int32_t l = 0; l < plan.lane_count; l++) {
            const struct net_lane *lane = &plan.lane[l];
            copied += lane->copied ? 1 : 0;
            for (int32_t k = 0; k < lane->move_count; k++)
                (lane->move[k].sends ? given : taken)[lane->move[k].peer]++;
        }
    }
    assert_int_equal(copied, 1);
    for (int32_t r = 0; r < MANY; r++)
        assert_true(given[r] == (r != 7) && taken[r] == (r != 7));
    tess__net_plan_close(&plan);
}

/* Messages that all ranks send in a call, and the most that one sends and takes. */
struct many_messages {
    int32_t all, most;
};

static struct many_messages many_count(int32_t n, enum tess_collective collective,
                                       enum tess_order order, size_t bytes)
{
    const struct tess_comm_call call = {.collective = collective,
                                        .order = order,
                                        .dtype = TESS_U8,
                                        .count = bytes,
                                        .peer = 0,
                                        .site = ""};
    struct many_messages count = {0, 0};
    struct net_plan plan;
    assert_int_equal(tess__net_plan_open(n, &plan), TESS_OK);
    for (int32_t r = 0; r < n; r++) {
        const struct net_shape shape = {r, n, 1, n, 0, NULL};
        tess__net_plan(&shape, &call, 0, &plan);
        assert_true(plan.lane_count <= plan.lane_room && plan.move_count <= plan.move_room);
        for (int32_t k = 0; k < plan.move_count; k++)
            count.all += plan.move[k].sends ? 1 : 0;
        count.most = plan.move_count > count.most ? plan.move_count : count.most;
    }
    tess__net_plan_close(&plan);
    return count;
}

/* A small array goes to each rank and from each rank once, over the levels of the tree; a larger
 * one by as many lanes as are worth a message; and no rank has more than some hundred messages. */
static void case_few(void **state)
{
    static const int32_t counts[] = {2, 3, 8, 64, 100, 129, 513, 1000};
    (void)state;
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        for (int order = 0; order < 2; order++) {
            const int32_t n = counts[i];
            int32_t levels = 0;
            while (1 << levels < n)
                levels++;
            static const enum tess_collective kinds[] = {TESS_COLLECTIVE_ALL_REDUCE,
                                                         TESS_COLLECTIVE_ALL_GATHER,
                                                         TESS_COLLECTIVE_REDUCE_SCATTER};
            for (size_t k = 0; k < 3; k++) {
                const size_t bytes = k == 0 ? 4096 : 4096 / (size_t)n;
                const struct many_messages few =
                    many_count(n, kinds[k], (enum tess_order)order, bytes);
                assert_int_equal(few.all, 2 * (n - 1));
                assert_true(few.most <= 2 * levels);
                const struct many_messages more = many_count(n, kinds[k], (enum tess_order)order,
                                                             k == 0 ? NET_LANE_BYTES * 16 : 2048);
                assert_true(more.all <= 2 * (n - 1) * (n < 16 && k == 0 ? n : (n + 7) / 8 + 8));
                const struct many_messages most =
                    many_count(n, kinds[k], (enum tess_order)order, (size_t)64 << 20);
                assert_true(most.most <= 8 * NET_LANES_MAX);
            }
            assert_int_equal(many_count(n, TESS_COLLECTIVE_REDUCE, (enum tess_order)order, 64).all,
                             n - 1);
        }
}

/* ---- processes ------------------------------------------------------------------------------- */

static float many_float(int32_t rank, size_t i)
{
    return (float)value_hash(3, (uint64_t)rank, i) * 1e-12f;
}

/* The sum of element i over ranks [first, first + count) in the order of tessera/comm.h. */
static float many_sum(int32_t first, int32_t count, size_t i)
{
    int32_t left = 1;
    if (count == 1)
        return many_float(first, i);
    while (left * 2 < count)
        left *= 2;
    return many_sum(first, left, i) + many_sum(first + left, count - left, i);
}

static int many_sums(struct tess_comm *comm, size_t count)
{
    const int32_t n = comm->rank_count, rank = comm->rank;
    const size_t many = (size_t)n * count, stride = many / 500 + 1;
    float *source = calloc(many, sizeof(float)), *target = calloc(many, sizeof(float));
    WORLD_CHECK(source != NULL && target != NULL);
    for (size_t i = 0; i < many; i++)
        source[i] = many_float(rank, i);
    WORLD_OK(tess_comm_all_reduce(comm, source, target, many, TESS_F32, TESS_REDUCE_SUM, NULL));
    for (size_t i = 0; i < many; i += stride)
        WORLD_CHECK(target[i] == many_sum(0, n, i));
    WORLD_OK(
        tess_comm_reduce_scatter(comm, source, target, count, TESS_F32, TESS_REDUCE_SUM, NULL));
    for (size_t i = 0; i < count; i += count / 10 + 1)
        WORLD_CHECK(target[i] == many_sum(0, n, (size_t)rank * count + i));
    /* In place: its own share of the source. */
    WORLD_OK(tess_comm_reduce_scatter(comm, source, source + (size_t)rank * count, count, TESS_F32,
                                      TESS_REDUCE_SUM, NULL));
    WORLD_CHECK(memcmp(target, source + (size_t)rank * count, count * sizeof(float)) == 0);
    WORLD_OK(
        tess_comm_all_gather(comm, source + (size_t)rank * count, source, count, TESS_F32, NULL));
    for (size_t i = 0; i < many; i += stride)
        WORLD_CHECK(source[i] == many_sum(0, n, i));
    for (int32_t root = 0; root < n; root += n / 3 + 1) {
        for (size_t i = 0; i < many; i++)
            source[i] = many_float(rank, i);
        WORLD_OK(
            tess_comm_reduce(comm, source, target, count, TESS_F32, TESS_REDUCE_SUM, root, NULL));
        for (size_t i = 0; i < count && rank == root; i += count / 10 + 1)
            WORLD_CHECK(target[i] == many_sum(0, n, i));
    }
    free(source);
    free(target);
    return 0;
}

static int many_moves(struct tess_comm *comm, size_t count)
{
    const int32_t n = comm->rank_count, rank = comm->rank;
    const size_t many = (size_t)n * count;
    int32_t *source = calloc(many, sizeof(*source)), *target = calloc(many, sizeof(*target));
    WORLD_CHECK(source != NULL && target != NULL);
    for (size_t i = 0; i < many; i++)
        source[i] = rank * 1000003 + (int32_t)i;
    WORLD_OK(tess_comm_all_gather(comm, source, target, count, TESS_I32, NULL));
    for (size_t i = 0; i < many; i++)
        WORLD_CHECK(target[i] == (int32_t)(i / count) * 1000003 + (int32_t)(i % count));
    WORLD_OK(tess_comm_all_to_all(comm, source, target, count, TESS_I32, NULL));
    for (size_t i = 0; i < many; i++)
        WORLD_CHECK(target[i] ==
                    (int32_t)(i / count) * 1000003 + rank * (int32_t)count + (int32_t)(i % count));
    for (int32_t root = 0; root < n; root += n / 3 + 1) {
        memcpy(target, source, many * sizeof(*target));
        WORLD_OK(tess_comm_broadcast(comm, target, many, TESS_I32, root, NULL));
        for (size_t i = 0; i < many; i++)
            WORLD_CHECK(target[i] == root * 1000003 + (int32_t)i);
    }
    free(source);
    free(target);
    return 0;
}

static int many_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    static const size_t counts[] = {1, 37, 700};
    struct tess_comm *half;
    (void)world, (void)arg;
    for (size_t k = 0; k < sizeof(counts) / sizeof(*counts); k++) {
        if (many_sums(comm, counts[k]) != 0 || many_moves(comm, counts[k]) != 0)
            return 1;
        WORLD_OK(tess_comm_barrier(comm));
    }
    WORLD_OK(tess_comm_split(comm, comm->rank % 2, comm->rank, &half));
    if (many_sums(half, 5) != 0)
        return 1;
    tess_comm_close(half);
    return 0;
}

static void many_run(int32_t ranks)
{
    struct world_setup setup = {.ranks = ranks,
                                .mode = TESS_RANKS_PROCESSES,
                                .order = TESS_ORDER_CANONICAL,
                                .tcp = true,
                                .timeout_s = 120,
                                .limit_s = 500};
    struct world_report *report = calloc(1, sizeof(*report));
    assert_non_null(report);
    const int failed = world_run_setup(&setup, many_rank, NULL, report);
    world_print(report);
    free(report);
    assert_int_equal(failed, 0);
}

/* The sums have the bits of the tree, whoever shares a lane. */
static void case_processes(void **state)
{
    (void)state;
    many_run(7);
    many_run(19);
}

/* `test_net_many 256`: so many processes, and nothing else. */
static void case_asked(void **state)
{
    many_run(*(int32_t *)*state);
}

int main(int argc, char **argv)
{
    static int32_t ranks;
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_rounds),
        cmocka_unit_test(case_few),
        cmocka_unit_test(case_processes),
    };
    const struct CMUnitTest asked[] = {cmocka_unit_test_prestate(case_asked, &ranks)};
    ranks = argc > 1 ? atoi(argv[1]) : 0;
    return ranks > 0 ? cmocka_run_group_tests(asked, NULL, NULL)
                     : cmocka_run_group_tests(cases, NULL, NULL);
}
