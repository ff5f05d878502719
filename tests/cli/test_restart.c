/*
 * --restarts as a user sees it: ranks and launchers are killed or stopped, and the run ends by
 * itself with the hash of the run that nothing happened to. Runs the built program.
 */
#include "harness/awake.h"
#include "killed.h"

#include <dirent.h>
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
    "train --data synthetic --synthetic-rows 9600 --batch-size 32 --evaluate off --model mlp "     \
    "--mlp.hidden 20 --grid 4 --steps 600 --optimizer nap "

static char folder[] = "/tmp/tessera_restart_XXXXXX";
static char whole[17]; /* of the run that nothing happens to */
static struct spawn spawn;

static void expect_whole(void)
{
    char hash[17];
    spawn_hash(&spawn, hash);
    assert_string_equal(hash, whole);
}

/* Ranks are killed, one before the first checkpoint is there, and the launcher. */
static void case_killed(void **state)
{
    pid_t rank[2];
    (void)state;
    killed_start(&spawn, MODEL
                 "--run killed --overwrite --keep 0 --save-every 100 --strategy fsdp --ranks 2 "
                 "--restarts 5");
    pid_t launcher = killed_wait_launcher(&spawn, 0, 2, rank);
    kill(rank[1], SIGKILL);
    launcher = killed_wait_launcher(&spawn, launcher, 2, rank);
    killed_wait_saved("killed", 100);
    kill(rank[0], SIGKILL);
    launcher = killed_wait_launcher(&spawn, launcher, 2, rank);
    killed_wait_saved("killed", 300);
    kill(launcher, SIGKILL);
    killed_wait_launcher(&spawn, launcher, 2, rank);
    assert_int_equal(spawn_end(&spawn, 60), 0);
    assert_true(spawn_gone(&spawn, 5));
    expect_whole();
    assert_non_null(strstr(spawn.err, "was killed by signal 9"));
    assert_non_null(strstr(spawn.err, "restart 1 of 5: continues after step 0, as there is no "
                                      "checkpoint"));
    assert_non_null(strstr(spawn.err, "restart 3 of 5: continues after step "));
    assert_int_equal(killed_final_number("killed", "restarts"), 3);
    assert_true(killed_final_number("killed", "resumed_from") >= 300);
    assert_true(killed_final_number("killed", "lost_steps") >= 0);
}

/* A stopped process is one that is lost: of several ranks, and the only one. */
static void case_stopped(void **state)
{
    static const char *const layout[] = {"zero1 --ranks 2", "single --ranks 1"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char words[512], run[16];
        pid_t rank[2];
        snprintf(run, sizeof(run), "stopped%d", i);
        snprintf(words, sizeof(words), "%s--run %s --save-every 50 --restarts 1 --strategy %s",
                 MODEL, run, layout[i]);
        killed_start(&spawn, words);
        const pid_t launcher = killed_wait_launcher(&spawn, 0, 2 - i, rank);
        killed_wait_saved(run, 50);
        kill(rank[1 - i], SIGSTOP);
        const double begin_s = awake_s();
        killed_wait_launcher(&spawn, launcher, 2 - i, rank);
        assert_true(awake_s() - begin_s < 20);
        assert_int_equal(spawn_end(&spawn, 60), 0);
        assert_true(spawn_gone(&spawn, 5));
        expect_whole();
        assert_non_null(strstr(spawn.err, "has been stopped for 2 s while "));
    }
}

/* Without --restarts the time limit of --timeout ends a run whose only process is stopped. */
static void case_limit(void **state)
{
    pid_t rank;
    (void)state;
    killed_start(&spawn, MODEL "--steps 1000000 --strategy single --ranks 1 --timeout 1");
    assert_true(spawn_until(&spawn, "pid ", 30));
    assert_int_equal(spawn_children(&spawn, &rank, 1), 1);
    kill(rank, SIGSTOP);
    assert_int_equal(spawn_end(&spawn, 30), 1);
    assert_true(spawn_gone(&spawn, 5));
    assert_non_null(strstr(spawn.err, "has been stopped for 0.5 s while "));
}

/* The time limit passes while a job is suspended: it goes on. */
static void case_suspended(void **state)
{
    (void)state;
    killed_start(&spawn, MODEL "--strategy ddp --ranks 2 --timeout 1");
    assert_true(spawn_until(&spawn, "pid ", 30));
    spawn_suspend(&spawn);
    assert_int_equal(spawn_end(&spawn, 60), 0);
    expect_whole();
}

/* So often and no more; and not after what another attempt does not help. */
static void case_no_more(void **state)
{
    pid_t rank[2], launcher = 0;
    (void)state;
    killed_start(&spawn, MODEL "--run more --save-every 50 --strategy ddp --ranks 2 --restarts 1");
    for (int i = 0; i < 2; i++) {
        launcher = killed_wait_launcher(&spawn, launcher, 2, rank);
        kill(rank[i], SIGKILL);
    }
    assert_int_equal(spawn_end(&spawn, 60), 1);
    assert_true(spawn_gone(&spawn, 5));
    assert_int_equal(spawn_count(spawn.err, "restart "), 1);
    assert_int_equal(spawn_count(spawn.err, "no restart: --restarts 1 is used up"), 1);

    killed_start(&spawn, MODEL "--run ends --save-every 50 --strategy ddp --ranks 2 --restarts 3");
    killed_wait_launcher(&spawn, 0, 2, rank);
    killed_wait_saved("ends", 50);
    kill(spawn.pid, SIGTERM);
    assert_int_equal(spawn_end(&spawn, 60), 130);
    assert_true(spawn_gone(&spawn, 5));
    assert_null(strstr(spawn.err, "restart "));
    assert_non_null(strstr(spawn.err, "interrupted: saving"));

    assert_int_equal(spawn_words(&spawn, MODEL "--restarts 1"), 2);
    assert_non_null(strstr(spawn.err, "give --run DIR"));
    assert_int_equal(spawn_words(&spawn, MODEL "--restarts 1 --run off --save-every off"), 2);
    assert_int_equal(spawn_words(&spawn, MODEL "--restarts 1 --run none --data none"), 1);
    assert_null(strstr(spawn.err, "restart "));
}

/* The supervisor is killed: the run is saved and nothing stays. */
static void case_supervisor(void **state)
{
    pid_t rank[2];
    (void)state;
    killed_start(&spawn, MODEL "--run alone --save-every 1h --strategy ddp --ranks 2 --restarts 1");
    killed_wait_launcher(&spawn, 0, 2, rank);
    assert_true(spawn_until(&spawn, "pid ", 30));
    kill(spawn.pid, SIGKILL);
    assert_int_equal(spawn_end(&spawn, 60), 128 + SIGKILL);
    assert_true(spawn_gone(&spawn, 20));
    assert_int_equal(spawn_words(&spawn, "train --run alone --resume --strategy single"), 0);
    expect_whole();
}

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL || chdir(folder) != 0)
        return -1;
    if (spawn_words(&spawn, MODEL "--strategy ddp --ranks 2") != 0)
        return -1;
    spawn_hash(&spawn, whole);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("/") != 0 ? -1 : spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_killed),    cmocka_unit_test(case_stopped),
        cmocka_unit_test(case_limit),     cmocka_unit_test(case_no_more),
        cmocka_unit_test(case_suspended), cmocka_unit_test(case_supervisor),
    };
    setenv("TESSERA_PLUGIN", NAP, 1);
    setenv("NAP_US", "3000", 1); /* so that a run still goes on when it is to be killed */
    return cmocka_run_group_tests_name("restart", tests, set_up, tear_down);
}
