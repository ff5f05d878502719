/*
 * --redundancy memory as a user sees it: ranks are killed in a run that has no checkpoint on the
 * disk, and it goes on after the latest step. Runs the built program.
 */
#include "killed.h"

#include "harness/work_folder.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL                                                                                      \
    "train --data synthetic --synthetic-rows 3200 --batch-size 32 --evaluate off --model cnn "     \
    "--cnn.channels 4,6 --cnn.fc 20 --optimizer adamw --grid 8 --steps 60 --bind off "

static struct spawn spawn;

static void case_copies(void **state)
{
    static const struct {
        const char *layout;
        int ranks, every;
    } of[] = {{"--strategy fsdp --ranks 2", 2, 1}, {"--strategy ddp+tp --ranks 4", 4, 3}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char words[512], path[300], run[16], whole[17], hash[17];
        pid_t rank[4], launcher = 0;
        int step = 0;
        snprintf(words, sizeof(words), MODEL "%s", of[i].layout);
        assert_int_equal(spawn_words(&spawn, words), 0);
        spawn_hash(&spawn, whole);
        snprintf(run, sizeof(run), "run%d", i);
        snprintf(words, sizeof(words),
                 MODEL "%s --run %s --save-every 1h --restarts 3 --redundancy memory:%d",
                 of[i].layout, run, of[i].every);
        killed_start(&spawn, words);
        for (int kills = 0; kills < 2; kills++) {
            launcher = killed_wait_launcher(&spawn, launcher, of[i].ranks, rank);
            step = killed_wait_copy(&spawn, step + 8, path);
            kill(rank[kills], SIGKILL);
        }
        assert_int_equal(spawn_end(&spawn, 120), 0);
        assert_true(spawn_gone(&spawn, 5));
        spawn_hash(&spawn, hash);
        assert_string_equal(hash, whole);
        assert_int_equal(killed_final_number(run, "restarts"), 2);
        assert_true(killed_final_number(run, "resumed_from") >= step);
        assert_true(killed_final_number(run, "lost_steps") <= 2 * of[i].every);
        assert_int_not_equal(access(path, F_OK), 0);
    }
}

/* A folder whose processes were all killed is removed by the next run. */
static void case_leftover(void **state)
{
    char path[300];
    pid_t rank[2];
    (void)state;
    killed_start(&spawn, MODEL "--steps 100000 --strategy ddp --ranks 2 --run left --save-every 1h "
                               "--restarts 3 --redundancy memory");
    const pid_t launcher = killed_wait_launcher(&spawn, 0, 2, rank);
    killed_find_copies(&spawn, path);
    kill(spawn.pid, SIGSTOP);
    kill(launcher, SIGKILL); /* and with it the ranks */
    kill(spawn.pid, SIGKILL);
    (void)spawn_end(&spawn, 60);
    assert_true(spawn_gone(&spawn, 20));
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(spawn_words(&spawn, MODEL "--steps 5 --strategy ddp --ranks 2 --run next "
                                               "--save-every 1h --restarts 1 --redundancy memory"),
                     0);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* Column `redundancy` of rank 0 in the plan. */
static double planned(const char *words)
{
    char text[1024], name[32] = "";
    double number = -1;
    int column = 0;
    snprintf(text, sizeof(text),
             MODEL "--cnn.fc 2000 --strategy fsdp --ranks 4 --run planned --restarts 1 "
                   "--redundancy memory --explain %s",
             words);
    assert_int_equal(spawn_words(&spawn, text), 0);
    const char *at = strstr(spawn.out, "\nrank ");
    assert_non_null(at);
    for (int next; strcmp(name, "redundancy") != 0; at += next, column++)
        assert_int_equal(sscanf(at, "%31s%n", name, &next), 1);
    at = strchr(at, '\n');
    for (int next; column > 0; at += next, column--)
        assert_int_equal(sscanf(at, "%lf%n", &number, &next), 1);
    return number;
}

/* A host keeps as much for another one. */
static void case_planned(void **state)
{
    (void)state;
    const double one = planned(""), two = planned("--hosts 2 --meet localhost:2000");
    assert_true(one > 1);
    assert_true(two > 2 * one - 0.02 && two < 2 * one + 0.02);
}

static void case_refused(void **state)
{
    (void)state;
    assert_int_equal(spawn_words(&spawn, MODEL "--run none --redundancy memory"), 2);
    assert_non_null(strstr(spawn.err, "give --restarts N"));
    assert_int_equal(spawn_words(&spawn, MODEL "--run none --restarts 1 --redundancy disk"), 2);
    assert_non_null(strstr(spawn.err, "expected off, memory"));
    assert_int_equal(
        spawn_words(&spawn, MODEL "--run none --restarts 1 --redundancy memory:1:/tmp"), 2);
    assert_non_null(strstr(spawn.err, "expected off, memory"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_copies),
        cmocka_unit_test(case_leftover),
        cmocka_unit_test(case_planned),
        cmocka_unit_test(case_refused),
    };
    return cmocka_run_group_tests_name("redundancy", tests, work_folder_make, work_folder_remove);
}
