/*
 * tessera status as a user sees it, while ranks run, are stopped and killed; the report of a run
 * that fails; and SIGUSR2. Runs the built program.
 */
#include "harness/awake.h"
#include "harness/spawn.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#define MODEL                                                                                      \
    "train --data synthetic --synthetic-rows 256 --batch-size 24 --grid 3 --evaluate off "         \
    "--mlp.hidden 8 --strategy ddp --ranks 3 --log-every 1 "

static char folder[] = "/tmp/tessera_status_XXXXXX";
static struct spawn train, status;

static void start(const char *words)
{
    static char text[1024];
    char *argv[64] = {"tessera"}, *rest = text;
    size_t argc = 1;
    snprintf(text, sizeof(text), "%s", words);
    for (char *word; (word = strsep(&rest, " ")) != NULL;)
        if (word[0] != '\0')
            argv[argc++] = word;
    spawn_start(&train, argv, NULL);
    assert_true(spawn_until(&train, "step 1/", 60));
}

static void expect(const char *text, const char *phrase)
{
    if (strstr(text, phrase) == NULL)
        fail_msg("no '%s' in:\n%s", phrase, text);
}

/* tessera status RUN, until it prints the phrase. */
static void until_status(const char *run, const char *phrase)
{
    char words[128];
    const double begin_s = awake_s();
    snprintf(words, sizeof(words), "status %s", run);
    do {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        assert_int_equal(spawn_words(&status, words), 0);
    } while (strstr(status.out, phrase) == NULL && awake_s() - begin_s < 60);
    expect(status.out, phrase);
}

/* What the run writes to stderr, until it has the phrase `count` times. */
static void until_error(const char *phrase, int count)
{
    const double begin_s = awake_s();
    while (spawn_count(train.err, phrase) < count && awake_s() - begin_s < 60)
        (void)spawn_until(&train, "\1", 0.05);
    if (spawn_count(train.err, phrase) != count)
        fail_msg("not %d times '%s' in:\n%s", count, phrase, train.err);
}

/* A rank is stopped: status names it, and so does SIGUSR2 to the launcher and to a rank; then it is
 * killed: the run's report names it, and status afterwards. */
static void case_stopped_and_killed(void **state)
{
    pid_t rank[3];
    (void)state;
    start(MODEL "--steps 100000000 --run lost");
    assert_int_equal(spawn_children(&train, rank, 3), 3);
    until_status("lost", "no rank waits for another for longer than a second");
    expect(status.out, "lost: the run is live, process ");
    assert_int_equal(spawn_count(status.out, "  running  "), 3);
    kill(rank[1], SIGSTOP);
    until_status("lost", "all others: ranks 0, 2 wait for rank 1 (");
    expect(status.out, "), which is stopped, ");
    assert_int_equal(spawn_count(status.out, "  stopped  "), 1);
    expect(status.out, "rank 1: all_reduce");
    kill(train.pid, SIGUSR2);
    until_error("all others: ranks 0, 2 wait for rank 1 (", 1);
    kill(rank[2], SIGUSR2);
    until_error("all others: ranks 0, 2 wait for rank 1 (", 2);
    kill(rank[1], SIGKILL);
    assert_int_equal(spawn_end(&train, 60), 1);
    assert_true(spawn_gone(&train, 5));
    assert_int_equal(spawn_count(train.err, "all others: ranks 0, 2 wait for rank 1 ("), 3);
    assert_int_equal(spawn_count(train.err, "  aborted  "), 2);
    expect(train.err, "), which is dead, ");
    until_status("lost", "), which is dead, ");
    expect(status.out, "lost: no process runs it; the last was process ");
    assert_int_equal(spawn_count(status.out, "  aborted  "), 2);
    assert_int_equal(spawn_count(status.out, "  dead  "), 1);
    char *kept = spawn_file("lost/failures.txt", NULL);
    expect(kept, ") was killed by signal 9");
    assert_int_equal(spawn_count(kept, "all others: ranks 0, 2 wait for rank 1 ("), 1);
    free(kept);
}

/* The same as an object, of a run that has ended; where it is to be found and where not. */
static void case_finished(void **state)
{
    (void)state;
    assert_int_equal(spawn_words(&status, MODEL "--steps 60 --run done"), 0);
    assert_int_equal(access("done/failures.txt", F_OK), -1);
    assert_int_equal(spawn_words(&status, "status done"), 0);
    assert_int_equal(spawn_count(status.out, "  ended  60 "), 3);
    expect(status.out, "pace of steps ");
    expect(status.out, "no rank waited for another");
    assert_null(strstr(status.out, "is the first that is not the same"));
    assert_int_equal(spawn_words(&status, "status done --json --calls 256"), 0);
    json_t *object = json_loads(status.out, 0, NULL);
    if (object == NULL) /* longer than what is kept of the output */
        assert_int_equal(spawn_words(&status, "status done --json --calls 5"), 0);
    object = object != NULL ? object : json_loads(status.out, 0, NULL);
    assert_non_null(object);
    assert_true(json_is_false(json_object_get(object, "live")));
    assert_int_equal(json_array_size(json_object_get(json_object_get(object, "pace"), "ranks")), 3);
    const json_t *rank = json_array_get(json_object_get(object, "ranks"), 2);
    assert_string_equal(json_string_value(json_object_get(rank, "state")), "ended");
    assert_int_equal(json_integer_value(json_object_get(rank, "step")), 60);
    const json_t *calls = json_object_get(rank, "calls");
    assert_true(json_array_size(calls) >= 5);
    const json_t *call = json_array_get(calls, json_array_size(calls) - 1);
    assert_string_equal(json_string_value(json_object_get(call, "axis")), "data");
    assert_true(json_number_value(json_object_get(call, "end_s")) >=
                json_number_value(json_object_get(call, "begin_s")));
    json_decref(object);

    assert_int_equal(spawn_words(&status, "status"), 2);
    assert_int_equal(spawn_words(&status, "status nowhere"), 1);
    expect(status.err, "nowhere is not the folder of a run");
    assert_int_equal(truncate("done/flight/rank-00001", 5000), 0);
    assert_int_equal(spawn_words(&status, "status done"), 1);
    expect(status.err, "done/flight/rank-00001 is no whole flight record");
    assert_int_equal(spawn_count(status.out, "pid "), 2);
    expect(status.out, "1     no record");
}

/* What --overwrite begins anew has the records of its own ranks only; without a folder SIGUSR2
 * ends nothing. */
static void case_again(void **state)
{
    (void)state;
    assert_int_equal(spawn_words(&status, MODEL "--steps 5 --run again"), 0);
    assert_int_equal(spawn_words(&status, MODEL "--steps 6 --run again --overwrite --ranks 1"), 0);
    assert_int_equal(spawn_words(&status, "status again"), 0);
    assert_int_equal(spawn_count(status.out, "  ended  6 "), 1);
    assert_int_equal(spawn_count(status.out, "pid "), 1);
    start(MODEL "--steps 100000000");
    kill(train.pid, SIGUSR2);
    until_error("needs a run folder: --run DIR", 1);
    kill(train.pid, SIGTERM);
    assert_int_equal(spawn_end(&train, 60), 130);
}

/* Another launcher of the run, with its ranks. */
static pid_t wait_next(pid_t former)
{
    const double begin_s = awake_s();
    pid_t launcher, rank[3];
    while (awake_s() - begin_s < 60) {
        if (spawn_children(&train, &launcher, 1) == 1 && launcher != former &&
            spawn_children_of(launcher, rank, 3) == 3)
            return launcher;
        (void)spawn_until(&train, "\1", 0.05);
    }
    fail_msg("no other launcher: %s", train.err);
    return -1;
}

/* Each attempt that fails is reported, the launcher's own death too; SIGUSR2 does not end it. */
static void case_restarts(void **state)
{
    pid_t launcher, rank[3];
    (void)state;
    start(MODEL "--steps 100000000 --save-every 100 --run often --restarts 2");
    assert_int_equal(spawn_children(&train, &launcher, 1), 1);
    kill(train.pid, SIGUSR2);
    until_error("often: the run is live, process ", 1);
    assert_int_equal(spawn_children_of(launcher, rank, 3), 3);
    kill(rank[2], SIGKILL);
    until_error("restart 1 of 2", 1);
    launcher = wait_next(launcher);
    kill(launcher, SIGKILL);
    until_error("restart 2 of 2", 1);
    wait_next(launcher);
    char *kept = spawn_file("often/failures.txt", NULL);
    assert_int_equal(spawn_count(kept, "---- 2"), 2);
    expect(kept, ": rank 2 (pid ");
    expect(kept, ": the launcher (pid ");
    free(kept);
    kill(train.pid, SIGTERM);
    assert_int_equal(spawn_end(&train, 60), 130);
    assert_true(spawn_gone(&train, 5));
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL || chdir(folder) != 0;
}

static int tear_down(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_stopped_and_killed),
        cmocka_unit_test(case_finished),
        cmocka_unit_test(case_again),
        cmocka_unit_test(case_restarts),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
