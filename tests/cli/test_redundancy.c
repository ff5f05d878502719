/*
 * --redundancy memory as a user sees it: ranks are killed in a run that has no checkpoint on the
 * disk, and it goes on after the latest step. Runs the built program.
 */
#include "killed.h"

#include <dirent.h>
#include <fnmatch.h>
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

static char folder[] = "/tmp/tessera_redundancy_XXXXXX";
static struct spawn spawn;

/* The folder of copies, which one run at a time has; false: there is none. */
static bool find_copies(char path[300])
{
    bool found = false;
    DIR *open = opendir("/dev/shm");
    assert_non_null(open);
    for (const struct dirent *entry; (entry = readdir(open)) != NULL;)
        if (fnmatch("tessera-copies-*", entry->d_name, 0) == 0) {
            snprintf(path, 300, "/dev/shm/%s", entry->d_name);
            found = true;
        }
    closedir(open);
    return found;
}

/* Wait for a copy of a step after `former`; returns its step. */
static int wait_copy(const char *path, int former)
{
    for (int i = 0; i < 30000; i++) {
        char checkpoints[320];
        int step = -1, length = 0;
        snprintf(checkpoints, sizeof(checkpoints), "%s/checkpoints", path);
        DIR *open = opendir(checkpoints);
        for (const struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;) {
            int found = -1;
            if (sscanf(entry->d_name, "step-%d%n", &found, &length) == 1 &&
                entry->d_name[length] == '\0' && found > step)
                step = found;
        }
        if (open != NULL)
            closedir(open);
        if (step > former)
            return step;
        killed_nap();
    }
    fail_msg("no copy after step %d in %s", former, path);
    return -1;
}

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
        killed_final_hash(&spawn, whole);
        snprintf(run, sizeof(run), "run%d", i);
        snprintf(words, sizeof(words),
                 MODEL "%s --run %s --save-every 1h --restarts 3 --redundancy memory:%d",
                 of[i].layout, run, of[i].every);
        killed_start(&spawn, words);
        for (int kills = 0; kills < 2; kills++) {
            launcher = killed_wait_launcher(&spawn, launcher, of[i].ranks, rank);
            assert_true(find_copies(path));
            step = wait_copy(path, step + 8);
            kill(rank[kills], SIGKILL);
        }
        assert_int_equal(spawn_end(&spawn, 120), 0);
        assert_true(spawn_gone(&spawn, 5));
        killed_final_hash(&spawn, hash);
        assert_string_equal(hash, whole);
        assert_int_equal(killed_final_number(run, "restarts"), 2);
        assert_true(killed_final_number(run, "resumed_from") >= step);
        assert_true(killed_final_number(run, "lost_steps") <= 2 * of[i].every);
        assert_false(find_copies(path));
    }
}

/* A folder whose processes were all killed is removed by the next run. */
static void case_leftover(void **state)
{
    char path[300], other[300];
    pid_t rank[2];
    (void)state;
    killed_start(&spawn, MODEL "--steps 100000 --strategy ddp --ranks 2 --run left --save-every 1h "
                               "--restarts 3 --redundancy memory");
    const pid_t launcher = killed_wait_launcher(&spawn, 0, 2, rank);
    assert_true(find_copies(path));
    kill(spawn.pid, SIGSTOP);
    kill(launcher, SIGKILL); /* and with it the ranks */
    kill(spawn.pid, SIGKILL);
    (void)spawn_end(&spawn, 60);
    assert_true(spawn_gone(&spawn, 20));
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(spawn_words(&spawn, MODEL "--steps 5 --strategy ddp --ranks 2 --run next "
                                               "--save-every 1h --restarts 1 --redundancy memory"),
                     0);
    assert_false(find_copies(other));
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
    assert_non_null(strstr(spawn.err, "the folder is chosen by the run"));
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL || chdir(folder) != 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("/") != 0 ? -1 : spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_copies),
        cmocka_unit_test(case_leftover),
        cmocka_unit_test(case_refused),
    };
    return cmocka_run_group_tests_name("redundancy", tests, set_up, tear_down);
}
