/*
 * Checkpoints as a user sees them: a run that is killed, or stopped by a signal, continues on other
 * ranks under another strategy and ends with the hash of the run that was never stopped. Runs the
 * built program.
 */
#include "harness/awake.h"
#include "harness/spawn.h"
#include "harness/work_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define CNN                                                                                        \
    "train --data synthetic --synthetic-rows 250 --batch-size 32 --evaluate off --model cnn "      \
    "--cnn.channels 4,6 --cnn.fc 20 --cnn.batch-norm on --grid 4 "
#define GPT                                                                                        \
    "train --model gpt --data synthetic --synthetic-rows 250 --data.length 16 --batch-size 16 "    \
    "--evaluate off --gpt.layers 2 --gpt.width 16 --gpt.heads 4 --grid 4 --gpt.dropout 0.1 "       \
    "--tensor.canonical 4 "

/* Sanitizers see the same accesses in a third of the pairs of layouts, and of the options. */
#define EACH (TESTS_DIVISOR > 1 ? 3 : 1)

/* Long enough to be killed and signalled on the way: its steps sleep (harness/nap.c). */
#define LONG_STEPS 100
#define LONG       CNN "--synthetic-rows 3200 --steps 100 --optimizer nap "

static struct spawn spawn;

#define run(...) spawn_format(&spawn, __VA_ARGS__)

/* Runs `options` for 21 steps whole; and to step 13 under each of [count] layouts, then to 21 under
 * the next one, where the last epoch's last batch is short. */
static void expect_same(const char *model, const char *options, const char *const *layout,
                        size_t count)
{
    char whole[17], hash[17];

    assert_int_equal(run("%s %s --steps 21 --strategy single --ranks 1", model, options), 0);
    spawn_hash(&spawn, whole);
    for (size_t i = 0; i < count; i += EACH) {
        const char *next = layout[i + 1];
        assert_int_equal(spawn_remove("run"), 0);
        assert_int_equal(run("%s %s --steps 13 --run run --strategy %s", model, options, layout[i]),
                         0);
        assert_int_equal(run("train --run run --resume --steps 21 --strategy %s", next), 0);
        assert_non_null(strstr(spawn.out, "continues after step 13"));
        spawn_hash(&spawn, hash);
        if (strcmp(hash, whole) != 0)
            fail_msg("%s %s: %s, then %s: %s, not %s", model, options, layout[i], next, hash,
                     whole);
        assert_int_equal(run("checkpoint verify run"), 0);
    }
}

static void case_data_layouts(void **state)
{
    static const char *const layout[] = {"single --ranks 1", "dp --ranks 2",    "ddp --ranks 4",
                                         "zero1 --ranks 2",  "zero2 --ranks 4", "fsdp --ranks 4",
                                         "hsdp --ranks 4",   "pp --ranks 2",    "ddp --ranks 2",
                                         "single --ranks 1"};
    (void)state;
    expect_same(CNN, "", layout, sizeof(layout) / sizeof(layout[0]) - 1);
}

static void case_products(void **state)
{
    static const char *const layout[] = {
        "fsdp+tp+pp --ranks 8", "ddp --ranks 2", "tp --ranks 4",      "zero1+pp --ranks 4",
        "single --ranks 1",     "tp --ranks 2",  "hsdp+tp --ranks 8", "fsdp+tp+pp --ranks 8"};
    (void)state;
    expect_same(GPT, "--optimizer adamw --schedule constant --warmup 0.5", layout,
                sizeof(layout) / sizeof(layout[0]) - 1);
}

/* Every optimizer, precision, scaling. */
static void case_state(void **state)
{
    static const char *const options[] = {
        "--optimizer sgd",
        "--optimizer momentum --nesterov --clip 1",
        "--optimizer lamb --learning-rate 0.01",
        "--optimizer novograd --learning-rate 0.01",
        "--optimizer adamw --precision bf16",
        "--optimizer adamw --precision f16 --loss-scale dynamic:65536 --loss-scale-interval 3",
        "--optimizer adamw --precision bf16 --master-weights off --rounding stochastic",
        "--optimizer adamw --accumulate 2 --data.flip on --data.shift 2",
    };
    static const char *const layout[] = {"fsdp --ranks 2", "ddp --ranks 2", "fsdp --ranks 2"};

    (void)state;
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i += EACH)
        expect_same(CNN, options[i], layout + i % 2, 1);
}

/* A device, on which the state is copied beside the next step, after every one. */
static void case_device(void **state)
{
    static const char *const options[] = {
        "--optimizer adamw --precision bf16",
        "--optimizer novograd --learning-rate 0.01 --precision bf16 --master-weights off "
        "--rounding stochastic",
    };
    char whole[17], hash[17];

    (void)state;
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        assert_int_equal(
            run(CNN "%s --kernel ref --steps 9 --strategy single --ranks 1", options[i]), 0);
        spawn_hash(&spawn, whole);
        assert_int_equal(spawn_remove("device"), 0);
        assert_int_equal(run(CNN "%s --kernel guard_queue --steps 5 --save-every 1 --run device "
                                 "--strategy ddp --ranks 2",
                             options[i]),
                         0);
        assert_int_equal(run("train --run device --resume --kernel guard_queue --steps 9 "
                             "--save-every 1 --strategy fsdp --ranks 2"),
                         0);
        assert_non_null(strstr(spawn.out, "continues after step 5"));
        spawn_hash(&spawn, hash);
        assert_string_equal(hash, whole);
        assert_int_equal(run("checkpoint verify device"), 0);
    }
}

/* The newest complete checkpoint's step, -1: none. */
static long newest(const char *name)
{
    char path[256];
    long step = -1, one;
    snprintf(path, sizeof(path), "%s/checkpoints", name);
    DIR *open = opendir(path);

    for (const struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;)
        if (sscanf(entry->d_name, "step-%ld", &one) == 1 && strstr(entry->d_name, ".part") == NULL)
            step = one > step ? one : step;
    if (open != NULL)
        closedir(open);
    return step;
}

static void start(const char *words)
{
    static char text[1024], *argv[64];
    int argc = 0;

    snprintf(text, sizeof(text), "tessera %s", words);
    for (char *at = text, *word; (word = strsep(&at, " ")) != NULL;)
        if (word[0] != '\0')
            argv[argc++] = word;
    argv[argc] = NULL;
    setenv("NAP_US", "10000", 1);
    spawn_start(&spawn, argv, NULL);
    unsetenv("NAP_US");
}

/* Wait until there is a checkpoint after a step beyond `step`. */
static void wait_saved(const char *name, long step)
{
    const double begin_s = awake_s();
    while (newest(name) <= step && awake_s() - begin_s < 60)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    assert_true(newest(name) > step);
}

/* The hash of LONG without an interruption. */
static const char *long_hash(void)
{
    static char hash[17];
    if (hash[0] == '\0') {
        assert_int_equal(run(LONG "--strategy ddp --ranks 2"), 0);
        spawn_hash(&spawn, hash);
    }
    return hash;
}

/* kill -9 of the launcher, again and again. */
static void case_killed(void **state)
{
    static const char *const layout[] = {"fsdp --ranks 4", "ddp --ranks 2", "zero1 --ranks 4",
                                         "single --ranks 1"};
    char hash[17], words[512];
    int status = -1;

    (void)state;
    for (int i = 0; i < 5 && status != 0; i++) {
        const long before = newest("killed");
        snprintf(words, sizeof(words), "%s --run killed --save-every 10 --strategy %s",
                 before < 0 ? LONG : "train --resume", layout[i % 4]);
        start(words);
        wait_saved("killed", before);
        kill(spawn.pid, SIGKILL);
        assert_int_equal(spawn_end(&spawn, 60), 128 + SIGKILL);
        assert_true(spawn_gone(&spawn, 10));
    }
    assert_int_equal(run("train --run killed --resume --strategy fsdp --ranks 2"), 0);
    spawn_hash(&spawn, hash);
    assert_string_equal(hash, long_hash());
}

/* SIGTERM saves and ends, SIGUSR1 saves. */
static void case_signals(void **state)
{
    char hash[17];
    pid_t child[2];

    (void)state;
    start(LONG "--run signals --save-every 1h --strategy fsdp --ranks 2");
    assert_true(spawn_until(&spawn, "pid ", 30));
    kill(spawn.pid, SIGUSR1);
    wait_saved("signals", 0);
    /* To the group, ranks and all, and once more at once: one request, and a rank that is held back
     * still saves. */
    assert_int_equal(spawn_children(&spawn, child, 2), 2);
    kill(child[1], SIGSTOP);
    const long before = newest("signals");
    kill(-spawn.pid, SIGTERM);
    assert_false(spawn_until(&spawn, "never", 0.02));
    kill(spawn.pid, SIGTERM);
    assert_false(spawn_until(&spawn, "never", 0.2));
    kill(child[1], SIGCONT);
    assert_int_equal(spawn_end(&spawn, 60), 130);
    assert_non_null(strstr(spawn.err, "interrupted: saving, then ending"));
    assert_true(newest("signals") > before && newest("signals") < LONG_STEPS);
    assert_int_equal(run("train --run signals --resume --strategy ddp --ranks 4"), 0);
    spawn_hash(&spawn, hash);
    assert_string_equal(hash, long_hash());
}

/* Options that decide on the numbers are the checkpoint's. */
static void case_contradictions(void **state)
{
    (void)state;
    assert_int_equal(run(CNN "--steps 4 --run said --strategy ddp --ranks 2 --seed 5"), 0);
    assert_int_equal(run("train --run said --resume --steps 6 --seed 6"), 2);
    assert_non_null(strstr(spawn.err, "--seed is '6', and '5' in said/checkpoints/step-00000004"));
    assert_int_equal(run("train --run said --resume --steps 6 --synthetic-rows 100"), 2);
    assert_int_equal(run("train --run said --resume --ranks 2"), 2);
    assert_non_null(strstr(spawn.err, "has all 4 steps"));
    assert_int_equal(run("train --run empty --resume"), 1);
    assert_non_null(strstr(spawn.err, "no complete checkpoint"));
    assert_int_equal(run("train --resume"), 2);
    assert_int_equal(run("train --run said --resume --steps 6 --ranks 4"), 0);
}

/* Scales that are made of the operand at hand are no state. Those of earlier calls are, and lie
 * where no checkpoint has them. */
static void case_fp8(void **state)
{
    char whole[17], hash[17];

    (void)state;
    assert_int_equal(
        run(GPT "--precision bf16 --kernel ref --fp8 now --steps 4 --strategy ddp --ranks 2"), 0);
    spawn_hash(&spawn, whole);
    assert_int_equal(
        run(GPT "--precision bf16 --kernel ref --fp8 now --steps 4 --strategy ddp --ranks 2 "
                "--run fp8 --save-every 2"),
        0);
    assert_int_equal(spawn_remove("fp8/checkpoints/step-00000004"), 0);
    assert_int_equal(run("train --run fp8 --resume --kernel ref --ranks 1 --strategy single"), 0);
    spawn_hash(&spawn, hash);
    assert_string_equal(hash, whole);

    assert_int_equal(run(GPT "--precision bf16 --kernel ref --fp8 history --steps 2 --save-every 1 "
                             "--run history"),
                     2);
    assert_non_null(strstr(spawn.err, "--fp8 history keeps scales of earlier steps"));
    assert_non_null(strstr(spawn.err, "--save-every needs --fp8 now"));
    assert_int_equal(run(GPT "--precision bf16 --kernel ref --fp8 history --steps 2 --restarts 1 "
                             "--run history"),
                     2);
    assert_int_equal(run(GPT "--precision bf16 --kernel ref --fp8 history --steps 2 --run history"),
                     0);
    assert_non_null(strstr(spawn.err, "no checkpoints of this run"));
    assert_int_equal(access("history/checkpoints", F_OK), -1);
}

/* Flip a bit at byte `at` of a file of the checkpoint `hurt`; at -1: of its last. */
static void flip(const char *name, off_t at)
{
    char path[600];
    unsigned char byte;
    snprintf(path, sizeof(path), "hurt/checkpoints/step-00000002/%s", name);
    const int fd = open(path, O_RDWR);

    assert_true(fd >= 0);
    at = at < 0 ? lseek(fd, 0, SEEK_END) - 1 : at;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* A run that would continue from it does not: no layout computes from other values. */
static void expect_not_continued(void)
{
    static const char *const name[] = {"model-00001-of-00001.safetensors",
                                       "optimizer-00001-of-00001.safetensors", "options.yaml"};
    static const char *const layout[] = {"fsdp --ranks 2", "ddp --ranks 2", "single --ranks 1"};

    for (int i = 0; i < 3; i++) {
        flip(name[i], i < 2 ? -1 : 10);
        assert_int_equal(run("train --run hurt --resume --steps 4 --strategy %s", layout[i]), 1);
        if (strstr(spawn.err, name[i]) == NULL ||
            (i < 2 && strstr(spawn.err, "is damaged: its check differs") == NULL))
            fail_msg("%s: %s", name[i], spawn.err);
        flip(name[i], i < 2 ? -1 : 10);
    }
}

/* A byte that was flipped is found, in whichever file. */
static void case_damage(void **state)
{
    char path[600];
    (void)state;
    assert_int_equal(run(CNN "--steps 2 --run hurt --strategy ddp --ranks 2"), 0);
    assert_int_equal(run("checkpoint list hurt"), 0);
    assert_non_null(strstr(spawn.out, "ddp on 2 ranks"));
    DIR *open_folder = opendir("hurt/checkpoints/step-00000002");
    assert_non_null(open_folder);
    for (const struct dirent *entry; (entry = readdir(open_folder)) != NULL;) {
        struct stat about;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "hurt/checkpoints/step-00000002/%s", entry->d_name);
        const int fd = open(path, O_RDWR);
        assert_true(fd >= 0 && fstat(fd, &about) == 0);
        for (off_t at = 0; at < about.st_size; at += 1 + about.st_size / 7) {
            unsigned char byte;
            assert_int_equal(pread(fd, &byte, 1, at), 1);
            byte ^= 0x10;
            assert_int_equal(pwrite(fd, &byte, 1, at), 1);
            assert_int_equal(run("checkpoint verify hurt"), 1);
            if (strstr(spawn.err, entry->d_name) == NULL)
                fail_msg("byte %ld of %s: %s", (long)at, entry->d_name, spawn.err);
            byte ^= 0x10;
            assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        }
        close(fd);
    }
    closedir(open_folder);
    expect_not_continued();
    assert_int_equal(run("checkpoint verify hurt"), 0);
    assert_int_equal(run("checkpoint export hurt --out weights"), 0);
    assert_int_equal(access("weights/model-00001-of-00001.safetensors", F_OK), 0);
}

/* All cases, or the one that is named. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_data_layouts), cmocka_unit_test(case_products),
        cmocka_unit_test(case_state),        cmocka_unit_test(case_killed),
        cmocka_unit_test(case_signals),      cmocka_unit_test(case_contradictions),
        cmocka_unit_test(case_damage),       cmocka_unit_test(case_fp8),
        cmocka_unit_test(case_device),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    setenv("TESSERA_PLUGIN", NAP, 1);
    return cmocka_run_group_tests_name("resume", tests, work_folder_make, work_folder_remove);
}
