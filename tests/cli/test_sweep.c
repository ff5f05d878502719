/*
 * tessera sweep and tessera diff as a user meets them: several configurations in one table, one of
 * which diverges, and where two runs part. Runs the built program on made-up images.
 */
#include "harness/spawn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/tessera_sweep_XXXXXX";
static struct spawn spawn;

static int run(const char *words)
{
    return spawn_words(&spawn, words);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

#define SMALL                                                                                      \
    "data: synthetic\nsynthetic-rows: 512\nbatch-size: 64\nmlp: {hidden: [32]}\nlearning-rate: "
#define TRAIN                                                                                      \
    "train --data synthetic --synthetic-rows 512 --batch-size 64 --mlp.hidden 32 --steps 6 "       \
    "--log-every 1 --hash-every 2 "
#define LEARN                                                                                      \
    "train --model gpt --gpt.layers 1 --gpt.width 16 --gpt.heads 2 --data text.txt --data.length " \
    "16 --batch-size 8 --steps 2 --log-every 1 "

static int set_up(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL || chdir(folder) != 0 || mkdir("set", 0777) != 0 ||
        mkdir("empty", 0777) != 0)
        return -1;
    write_file("set/b_slow.yaml", SMALL "0.01\n");
    write_file("set/a_wild.yaml", SMALL "1000\nprecision: f16\nloss-scale: off\n");
    write_file("set/c_idle.yaml", SMALL "0\n");
    write_file("set/readme.txt", "not a configuration");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("/") != 0 ? -1 : spawn_remove(folder);
}

/* All of a folder in order of name; one that diverges does not end it; a run folder for each. */
static void case_sweep(void **state)
{
    const char *table, *wild, *slow, *idle;

    (void)state;
    assert_int_equal(run("sweep set --steps 30 --run out"), 0);
    table = strstr(spawn.out, "\nconfiguration");
    assert_non_null(table);
    wild = strstr(table, "\na_wild ");
    slow = strstr(table, "\nb_slow ");
    idle = strstr(table, "\nc_idle ");
    assert_true(wild != NULL && slow > wild && idle > slow);
    assert_in_range((uintptr_t)strstr(wild, "failed: diverged"), (uintptr_t)wild, (uintptr_t)slow);
    assert_in_range((uintptr_t)strstr(slow, "learnt"), (uintptr_t)slow, (uintptr_t)idle);
    assert_non_null(strstr(idle, "failed: no better than guessing"));
    assert_int_equal(access("out/a_wild/metrics.jsonl", R_OK), 0);
    assert_int_equal(access("out/c_idle/metrics.jsonl", R_OK), 0);
}

/* What is done when another kind of failure ends it is not lost. */
static void case_sweep_ended(void **state)
{
    const char *table;

    (void)state;
    assert_int_equal(mkdir("ended", 0777), 0);
    assert_int_equal(mkdir("ended/c_idle", 0777), 0);
    assert_int_equal(mkdir("ended/c_idle/metrics.jsonl", 0777), 0); /* in the way */
    assert_int_equal(run("sweep set/b_slow.yaml set/c_idle.yaml --steps 30 --run ended"), 1);
    assert_non_null(strstr(spawn.err, "cannot create ended/c_idle/metrics.jsonl"));
    table = strstr(spawn.out, "\nconfiguration");
    assert_non_null(table);
    assert_non_null(strstr(table, "\nb_slow "));
    assert_null(strstr(table, "\nc_idle "));
}

static void case_sweep_refusals(void **state)
{
    (void)state;
    assert_int_equal(run("sweep"), 2);
    assert_non_null(strstr(spawn.err, "needs configurations"));
    assert_int_equal(run("sweep empty"), 2);
    assert_non_null(strstr(spawn.err, "no .yaml file in the folder empty"));
    assert_int_equal(run("sweep set/b_slow.yaml set"), 2);
    assert_non_null(strstr(spawn.err, "same name"));
    assert_int_equal(run("sweep set/b_slow.yaml --run set/readme.txt/out"), 1);
    assert_non_null(strstr(spawn.err, "run folder"));
    assert_null(strstr(spawn.out, "epoch"));
    /* Every configuration is resolved before the first one runs. */
    write_file("bad.yaml", "batch-size: 64\nrate: 3\n");
    assert_int_equal(run("sweep set/b_slow.yaml bad.yaml"), 2);
    assert_non_null(strstr(spawn.err, "bad.yaml:2"));
    assert_null(strstr(spawn.out, "epoch"));
}

static void case_diff(void **state)
{
    (void)state;
    assert_int_equal(run(TRAIN "--run a"), 0);
    assert_int_equal(run(TRAIN "--run again"), 0);
    assert_int_equal(run(TRAIN "--run order --grid 4"), 0);
    assert_int_equal(run(TRAIN "--run rate --learning-rate 0.0501"), 0);
    assert_int_equal(run(TRAIN "--run seed --seed 2"), 0);

    assert_int_equal(run("diff a again"), 0);
    assert_non_null(strstr(spawn.out, "options: the same"));
    assert_non_null(strstr(spawn.out, "data: validation set "));
    assert_null(strstr(spawn.out, "differ"));
    assert_non_null(strstr(spawn.out, "the same bits at all 4 digests")); /* 0, 2, 4, 6 */
    assert_int_equal(run("diff a order"), 1);
    assert_non_null(strstr(spawn.out, "first differ at step 2"));
    assert_non_null(strstr(spawn.out, "verdict: within rounding"));
    assert_int_equal(run("diff a rate"), 1);
    assert_non_null(strstr(spawn.out, "learning-rate"));
    assert_non_null(strstr(spawn.out, "loss: first differs at step 2"));
    assert_non_null(strstr(spawn.out, "verdict: NOT rounding"));
    assert_int_equal(run("diff a seed"), 1);
    assert_non_null(strstr(spawn.out, "first differ at step 0"));

    /* A file of the same name and size with another byte near its end, where validation is. */
    char text[8193];
    for (size_t i = 0; i + 1 < sizeof(text); i++)
        text[i] = (char)('a' + i * i % 23);
    text[sizeof(text) - 1] = '\0';
    write_file("text.txt", text);
    assert_int_equal(run(LEARN "--run text"), 0);
    assert_non_null(strstr(spawn.out, "data hashes: training "));
    text[8100] = 'Z';
    write_file("text.txt", text);
    assert_int_equal(run(LEARN "--run other --strategy ddp --ranks 2"), 0);
    assert_int_equal(run("diff text other"), 1);
    assert_non_null(strstr(spawn.out, "data: train set "));
    assert_non_null(strstr(spawn.out, ": the same\ndata: validation set "));
    assert_non_null(strstr(spawn.out, ": they differ\nloss"));
}

/* Files that are no run, and one that was cut short. */
static void case_diff_refusals(void **state)
{
    (void)state;
    assert_int_equal(run("diff a"), 2);
    assert_int_equal(run("diff a nowhere"), 2);
    assert_non_null(strstr(spawn.err, "nowhere"));
    write_file("not.jsonl", "{}\n[1]\nrubbish\n");
    assert_int_equal(run("diff a not.jsonl"), 2);
    assert_non_null(strstr(spawn.err, "not.jsonl holds no run"));
    assert_int_equal(run("diff a /dev/zero"), 2);
    assert_non_null(strstr(spawn.err, "it is a device"));
    assert_int_equal(truncate("again/metrics.jsonl", 6000), 0);
    assert_int_equal(run("diff a again"), 0);
    assert_non_null(strstr(spawn.err, "were skipped"));
    assert_non_null(strstr(spawn.out, "final: again did not end"));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_sweep),          cmocka_unit_test(case_sweep_ended),
        cmocka_unit_test(case_sweep_refusals), cmocka_unit_test(case_diff),
        cmocka_unit_test(case_diff_refusals),
    };
    return cmocka_run_group_tests(cases, set_up, tear_down);
}
