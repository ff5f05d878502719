/*
 * --min-ranks as a user sees it: ranks are killed one after the other, the run goes on with those
 * that are left, and ends with the hash of the run that nothing happened to. Runs the built
 * program.
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
    "train --data synthetic --synthetic-rows 3200 --batch-size 32 --evaluate off --model mlp "     \
    "--mlp.hidden 20,20,20 --base-lr 0.01 --lr-scale linear --optimizer nap "

static struct spawn spawn;

/* Layouts, and the ranks of each attempt. The tensor axis has to be fixed as --min-ranks does. */
static const struct {
    const char *layout;
    int ranks[4];
    const char *last; /* layout */
} of[] = {
    {"--strategy ddp --ranks 4 --grid 8", {4, 2, 2, 1}, "data=1,tensor=1,stage=1 --accumulate 4"},
    {"--strategy zero2 --ranks 4 --accumulate 2", {4, 2}, "data=2,tensor=1,stage=1 --accumulate 4"},
    {"--strategy tp --ranks 4", {4, 2, 2}, "data=1,tensor=2,stage=1 --accumulate 1"},
    {"--strategy pp --ranks 4", {4, 3, 2}, "data=1,tensor=1,stage=2 --accumulate 4"},
    {"--strategy fsdp+tp+pp --ranks 8", {8, 4}, "data=1,tensor=2,stage=2 --accumulate 4"},
};

static void case_shrinks(void **state)
{
    const size_t turn = TESTS_DIVISOR > 1 ? 2 : 1; /* sanitizers: data, tensor, and all axes */
    (void)state;
    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i += turn) {
        char words[512], whole[17], hash[17];
        pid_t rank[8], launcher = 0;
        int kills = 0;
        snprintf(words, sizeof(words), MODEL "--steps 100 %s", of[i].layout);
        unsetenv("NAP_US");
        assert_int_equal(spawn_words(&spawn, words), 0);
        setenv("NAP_US", "10000", 1); /* so that it still goes on when ranks are to be killed */
        spawn_hash(&spawn, whole);
        snprintf(words, sizeof(words),
                 MODEL "--steps 100 %s --run run%d --keep 0 --save-every 20 --restarts 5 "
                       "--min-ranks 1",
                 of[i].layout, (int)i);
        killed_start(&spawn, words);
        /* The first one before there is a checkpoint. */
        for (; kills < 3 && of[i].ranks[kills + 1] > 0; kills++) {
            char run[8];
            launcher = killed_wait_launcher(&spawn, launcher, of[i].ranks[kills], rank);
            snprintf(run, sizeof(run), "run%d", (int)i);
            if (kills > 0)
                killed_wait_saved(run, 20 * kills);
            kill(rank[of[i].ranks[kills] - 1], SIGKILL);
        }
        assert_int_equal(spawn_end(&spawn, 120), 0);
        assert_true(spawn_gone(&spawn, 5));
        spawn_hash(&spawn, hash);
        assert_string_equal(hash, whole);
        assert_int_equal(spawn_count(spawn.err, "ranks are left: continues on "), kills);
        assert_non_null(strstr(spawn.err, of[i].last));
        char run[8];
        snprintf(run, sizeof(run), "run%d", (int)i);
        assert_int_equal(killed_final_number(run, "ranks"), of[i].ranks[kills]);
        assert_int_equal(killed_final_number(run, "restarts"), kills);
    }
}

/* Never below; and only where it has a meaning. */
static void case_least(void **state)
{
    pid_t rank[4];
    (void)state;
    killed_start(&spawn, MODEL "--steps 10000 --strategy ddp --ranks 4 --run least --save-every 20 "
                               "--restarts 5 --min-ranks 3");
    killed_wait_launcher(&spawn, 0, 4, rank);
    kill(rank[0], SIGKILL);
    assert_int_equal(spawn_end(&spawn, 60), 2);
    assert_true(spawn_gone(&spawn, 5));
    assert_non_null(strstr(spawn.err, "has no layout for 3 to 3 of them"));

    killed_start(&spawn, MODEL "--steps 10000 --strategy ddp --ranks 2 --run none --save-every 20 "
                               "--restarts 5 --min-ranks 2");
    killed_wait_launcher(&spawn, 0, 2, rank);
    kill(rank[0], SIGKILL);
    assert_int_equal(spawn_end(&spawn, 60), 1);
    assert_true(spawn_gone(&spawn, 5));
    assert_non_null(strstr(spawn.err, "no restart: 1 of 2 ranks is left, and --min-ranks is 2"));

    assert_int_equal(spawn_words(&spawn, MODEL "--run none --min-ranks 1"), 2);
    assert_non_null(strstr(spawn.err, "give --restarts N"));
    assert_int_equal(spawn_words(&spawn, MODEL "--strategy ddp --ranks 2 --run more --restarts 1 "
                                               "--min-ranks 3"),
                     2);
    assert_non_null(strstr(spawn.err, "--min-ranks 3 is more than the 2 ranks"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_shrinks),
        cmocka_unit_test(case_least),
    };
    setenv("TESSERA_PLUGIN", NAP, 1);
    return cmocka_run_group_tests_name("min_ranks", tests, work_folder_make, work_folder_remove);
}
