/*
 * The tree over which ranks are connected once they have met: its numbers, exchanges along it, and
 * that all ranks report the same failure, wherever in it that is. Ranks have few behind them here,
 * so that a few make a tall tree.
 */
#include "comm/boot/boot_tree.h"

#include "comm/boot/boot_socket.h"
#include "meeting.h"
#include "tessera/check.h"
#include "tessera/log.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BAD 7 /* the rank that misbehaves */

/* ---- numbers --------------------------------------------------------------------------------- */

/* Each place before those behind it, one after the other. */
static void walk(int32_t place, int32_t count, int32_t fan, int32_t *order, int32_t *n)
{
    order[(*n)++] = place;
    for (int64_t next = (int64_t)place * fan + 1; next <= (int64_t)place * fan + fan; next++)
        if (next < count)
            walk((int32_t)next, count, fan, order, n);
}

static void check_numbers(int32_t count, int32_t fan)
{
    const struct tess_boot_env env = {.rank_count = count, .fan = fan};
    int32_t *order = calloc((size_t)count, sizeof(*order)),
            *rank_of = calloc((size_t)count, sizeof(*rank_of)), n = 0;
    struct boot_tree tree;
    assert_true(order != NULL && rank_of != NULL);
    walk(0, count, fan, order, &n);
    for (int32_t place = 0; place < count; place++) {
        int32_t size = 1;
        rank_of[place] = (place * 7 + 3) % count;
        tess__tree_begin(&tree, &env, place);
        for (int32_t b = 0; b < tree.branch_count; b++)
            size += tree.branch[b].count;
        assert_int_equal(size, tess__tree_size(place, count, fan));
        assert_int_equal(size + tree.up.count, count);
        assert_true(tree.branch_count <= fan);
        assert_true((tess__tree_height(place, count, fan) > 0) == (tree.branch_count > 0));
    }
    tess__tree_begin(&tree, &env, 0);
    tree.order = calloc((size_t)count, sizeof(*tree.order));
    assert_non_null(tree.order);
    tess__tree_set_order(&tree, rank_of);
    for (int32_t i = 0; i < count; i++)
        assert_int_equal(tree.order[i], rank_of[order[i]]);
    tess__tree_close(&tree);
    free(order);
    free(rank_of);
}

static void case_numbers(void **state)
{
    (void)state;
    for (int32_t count = 1; count < 70; count++)
        for (int32_t fan = 1; fan <= TESS_BOOT_FAN; fan += fan < 4 ? 1 : 14)
            check_numbers(count, fan);
    check_numbers(20011, TESS_BOOT_FAN);
    assert_int_equal(tess__tree_size(0, TESS_RANKS_MAX, TESS_BOOT_FAN), TESS_RANKS_MAX);
    assert_int_equal(tess__tree_height(0, 33, 32), 1);
    assert_int_equal(tess__tree_height(0, 34, 32), 2);
    assert_int_equal(tess__tree_height(0, 16384, 32), 3);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static struct meeting tree_of(int32_t ranks, int32_t fan)
{
    struct meeting meeting = meeting_of(ranks, "127.0.0.1");
    meeting.env.fan = fan;
    return meeting;
}

/* Few connections, which reach all. */
static enum tess_status links_checked(struct tess_boot *boot)
{
    struct tess_boot_link link[TESS_BOOT_LINKS_MAX];
    const int32_t count = tess_boot_links(boot, link);
    int32_t reached = 1;
    for (int32_t i = 0; i < count; i++) {
        reached += link[i].count;
        if (link[i].fd < 0 || link[i].rank < 0 || link[i].rank >= boot->rank_count)
            return tess_fail(TESS_ERR_DATA, "link %d leads to rank %d", (int)i, (int)link[i].rank);
    }
    if (reached != boot->rank_count || count > TESS_BOOT_LINKS_MAX)
        return tess_fail(TESS_ERR_DATA, "%d links reach %d ranks", (int)count, (int)reached);
    TESS_TRY(gather_checked(boot, 8));
    TESS_TRY(gather_checked(boot, 0));
    return gather_checked(boot, 5000);
}

static void case_tree(void **state)
{
    static const int32_t size[][2] = {{6, 1}, {23, 2}, {14, 3}, {40, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(size) / sizeof(*size); i++) {
        struct meeting meeting = tree_of(size[i][0], size[i][1]);
        meeting.then = links_checked;
        meet_all(&meeting);
        for (int32_t r = 0; r < size[i][0]; r++)
            assert_string_equal(meeting.outcome[r].error, "");
        meeting_free(&meeting);
    }
}

/* ---- failures -------------------------------------------------------------------------------- */

static enum tess_status leave_early(struct tess_boot *boot)
{
    enum tess_status status = gather_checked(boot, 16);
    return status != TESS_OK || boot->rank == BAD ? status : gather_checked(boot, 16);
}

static enum tess_status fall_asleep(struct tess_boot *boot)
{
    if (boot->rank == BAD)
        nanosleep(&(struct timespec){.tv_sec = 5}, NULL);
    return gather_checked(boot, 16);
}

static enum tess_status bring_more(struct tess_boot *boot)
{
    return gather_checked(boot, boot->rank == BAD ? 24 : 16);
}

static enum tess_status die(struct tess_boot *boot)
{
    if (boot->rank == BAD)
        raise(SIGKILL);
    return gather_checked(boot, 16);
}

static void meet_any_end(struct meeting *meeting)
{
    pid_t pid[RANKS_MAX];
    for (int32_t r = 0; r < meeting->env.rank_count; r++)
        pid[r] = meet_fork(meeting, r);
    for (int32_t r = 0; r < meeting->env.rank_count; r++)
        assert_int_equal(waitpid(pid[r], NULL, 0), pid[r]);
}

/* Places are given as ranks come: the bad one may be anywhere in the tree. All others name it. */
static void case_gather_fails(void **state)
{
    static const struct {
        enum tess_status (*then)(struct tess_boot *boot);
        const char *phrase;
    } how[] = {
        {leave_early, "exchange 2: rank 7 has left"},
        {die, "exchange 1: rank 7 has left"},
        {fall_asleep, "rank 7"},
        {bring_more, "16 bytes"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(how) / sizeof(*how); i++) {
        struct meeting meeting = tree_of(12, 2);
        meeting.timeout_s = i == 2 ? 1 : 20;
        meeting.then = how[i].then;
        meet_any_end(&meeting);
        for (int32_t r = 0; r < 12; r++) {
            if (r == BAD)
                continue;
            assert_int_not_equal(meeting.outcome[r].status, TESS_OK);
            assert_true(meeting.outcome[r].seconds < 15);
            if (strstr(meeting.outcome[r].error, "rank 7") == NULL)
                assert_contains(meeting.outcome[r].error, how[i].phrase);
        }
        assert_contains(meeting.outcome[0].error, how[i].phrase);
        meeting_free(&meeting);
    }
}

static void case_rank_missing(void **state)
{
    (void)state;
    struct meeting meeting = tree_of(12, 2);
    meeting.timeout_s = 1;
    meeting.absent = 5;
    meet_all(&meeting);
    for (int32_t r = 0; r < 12; r++) {
        if (r == 5)
            continue;
        assert_int_equal(meeting.outcome[r].status, TESS_ERR_TIMEOUT);
        assert_contains(meeting.outcome[r].error, "rank 5 of 12 did not come");
        assert_true(meeting.outcome[r].seconds < 10);
    }
    meeting_free(&meeting);
}

/* Two of one number, and one that is missing so that they may meet. */
static void case_rank_twice(void **state)
{
    (void)state;
    struct meeting meeting = tree_of(8, 1), again = meeting;
    pid_t pid[8];
    meeting.timeout_s = again.timeout_s = 1.5;
    again.outcome = &meeting.outcome[8];
    for (int32_t r = 0; r < 7; r++)
        pid[r] = meet_fork(&meeting, r);
    pid[7] = meet_fork(&again, 6);
    for (int32_t r = 0; r < 8; r++)
        assert_int_equal(waitpid(pid[r], NULL, 0), pid[r]);
    const bool first = strstr(meeting.outcome[6].error, "rank 6 is there twice") != NULL;
    const bool second = strstr(meeting.outcome[8 + 6].error, "rank 6 is there twice") != NULL;
    assert_true(first != second);
    assert_contains(meeting.outcome[0].error, "rank 7 of 8 did not come");
    meeting_free(&meeting);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static int limit_child(rlim_t soft, rlim_t hard, int64_t count)
{
    int status = -1;
    const pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit = {soft, hard};
        tess_log_set_level(TESS_LOG_ERROR);
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
            _exit(100);
        if (tess__boot_need_files(count, "the test") != TESS_OK)
            _exit(strstr(tess_log_last_error(), "the test needs 500 connections, and this process "
                                                "may have 64 open files (RLIMIT_NOFILE, hard limit "
                                                "100)") != NULL
                      ? 1
                      : 2);
        (void)getrlimit(RLIMIT_NOFILE, &limit);
        _exit(limit.rlim_cur >= (rlim_t)count ? 0 : 3);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

static void case_files(void **state)
{
    (void)state;
    assert_int_equal(limit_child(64, 1000, 500), 0);
    assert_int_equal(limit_child(64, 100, 500), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_numbers),      cmocka_unit_test(case_tree),
        cmocka_unit_test(case_gather_fails), cmocka_unit_test(case_rank_missing),
        cmocka_unit_test(case_rank_twice),   cmocka_unit_test(case_files),
    };
    tess_log_set_level(TESS_LOG_ERROR);
    return cmocka_run_group_tests_name("boot_tree", tests, NULL, NULL);
}
