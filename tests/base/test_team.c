/* Teams of threads: every part once, what parts write is there on return, also after sleep, with
 * more threads than parts and than cores, and with several teams at once. */
#include "base/team.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define PARTS 200

/* Plain memory: the thread sanitizer sees whether a team orders what its threads do. */
struct work {
    int threads;
    int64_t input;
    int64_t output[PARTS];
    int hand[PARTS];
    atomic_int runs[PARTS];
};

static void work_part(void *context, int64_t part)
{
    struct work *work = context;
    work->output[part] = work->input + part;
    work->hand[part] = tess_team_hand();
    atomic_fetch_add_explicit(&work->runs[part], 1, memory_order_relaxed);
}

static bool work_is_done(struct work *work, int64_t parts, int hands)
{
    for (int64_t p = 0; p < PARTS; p++) {
        if (work->runs[p] != (p < parts))
            return false;
        if (p < parts && (work->output[p] != work->input + p || work->hand[p] < 0 ||
                          work->hand[p] >= work->threads || (hands == 1 && work->hand[p] != 0)))
            return false;
    }
    return true;
}

static bool team_works(struct tess_team *team, int threads, int turns)
{
    static _Thread_local struct work work;
    for (int turn = 0; turn < turns; turn++) {
        const int64_t parts = turn * 7 % (PARTS + 1);
        const int hands = 1 + turn % threads;
        memset(&work, 0, sizeof(work));
        work.threads = threads;
        work.input = turn;
        tess_team_run(team, hands, parts, work_part, &work);
        if (!work_is_done(&work, parts, hands))
            return false;
    }
    return true;
}

static void test_parts(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 9; threads += threads < 4 ? 1 : 5) {
        struct tess_team *team;
        assert_int_equal(tess_team_open(threads, NULL, NULL, &team), TESS_OK);
        assert_true(team_works(team, threads, 300));
        tess_team_close(team);
    }
    assert_int_equal(tess_team_hand(), 0);
}

static void nap(long ns)
{
    const struct timespec time = {.tv_nsec = ns};
    nanosleep(&time, NULL);
}

struct first {
    atomic_int begun;
    bool seen[2];
    int64_t part[2]; /* the first part of each thread */
};

/* The first parts wait for one another, a few seconds at most. */
static void first_part(void *context, int64_t part)
{
    struct first *first = context;
    const int hand = tess_team_hand();
    if (first->seen[hand])
        return;
    first->seen[hand] = true;
    first->part[hand] = part;
    atomic_fetch_add(&first->begun, 1);
    for (int i = 0; i < 5000 && atomic_load(&first->begun) < 2; i++)
        nap(1000000);
}

/* Threads begin with ranges of their own. */
static void test_ranges(void **state)
{
    struct tess_team *team;
    struct first first = {0};
    (void)state;
    assert_int_equal(tess_team_open(2, NULL, NULL, &team), TESS_OK);
    tess_team_run(team, 2, 10, first_part, &first);
    tess_team_close(team);
    assert_int_equal(first.begun, 2);
    assert_int_equal(first.part[0], 0);
    assert_int_equal(first.part[1], 5);
}

static void count_begin(void *begun)
{
    atomic_fetch_add((atomic_int *)begun, 1);
}

/* The threads have gone to sleep between turns, or are about to. */
static void test_sleep(void **state)
{
    struct tess_team *team;
    atomic_int begun = 0;
    (void)state;
    assert_int_equal(tess_team_open(3, count_begin, &begun, &team), TESS_OK);
    assert_int_equal(begun, 2);
    for (int i = 0; i < 40; i++) {
        nap(i * 10000L);
        assert_true(team_works(team, 3, 3));
    }
    tess_team_close(team);
}

/* A part that takes long, so that the caller sleeps until it is done. */
static void slow_part(void *context, int64_t part)
{
    nap(3000000);
    ((int64_t *)context)[part] = part + 1;
}

static void test_caller_sleeps(void **state)
{
    struct tess_team *team;
    (void)state;
    assert_int_equal(tess_team_open(4, NULL, NULL, &team), TESS_OK);
    for (int i = 0; i < 5; i++) {
        int64_t done[5] = {0};
        tess_team_run(team, 4, 5, slow_part, done);
        for (int64_t p = 0; p < 5; p++)
            assert_int_equal(done[p], p + 1);
    }
    tess_team_close(team);
}

static void *team_of_rank(void *context)
{
    struct tess_team *team;
    bool *works = context;
    if (tess_team_open(3, NULL, NULL, &team) != TESS_OK)
        return NULL;
    *works = team_works(team, 3, 200);
    tess_team_close(team);
    return NULL;
}

/* As ranks that are threads have. */
static void test_several(void **state)
{
    pthread_t thread[4];
    bool works[4] = {false};
    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, team_of_rank, &works[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_true(works[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts), cmocka_unit_test(test_ranges), cmocka_unit_test(test_sleep),
        cmocka_unit_test(test_caller_sleeps), cmocka_unit_test(test_several)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
