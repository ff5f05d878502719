/*
 * Training over sockets: the parameters are those of ranks that share memory, bit for bit, whatever
 * has started the ranks; and a rank that dies ends the run, with its number in the message.
 */
#include "base/cgroup.h"
#include "config/registry.h"
#include "harness/awake.h"
#include "harness/free_port.h"
#include "harness/spawn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS_MAX = 4, WORDS = 512, HASH = 17 };

/* Start `tessera WORDS`, words separated by single spaces. */
static void net_start(struct spawn *spawn, const char *words)
{
    static char copy[WORDS];
    char *argv[64] = {"tessera"};
    int argc = 1;
    snprintf(copy, sizeof(copy), "%s", words);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    spawn_start(spawn, argv, NULL);
}

#define NET_TRAIN                                                                                  \
    "train --data synthetic --synthetic-rows 264 --evaluate off --device cpu --threads 1 "         \
    "--timeout 30 "

static void case_same_bits(void **state)
{
    static const char *const runs[] = {
        "--model mlp --strategy ddp --ranks 2",
        "--model cnn --strategy ddp --ranks 4",
        "--model mlp --strategy fsdp --ranks 2",
        "--model mlp --strategy fsdp --ranks 4",
        "--model mlp --strategy pp --ranks 2",
        "--model mlp --strategy ddp --ranks 4 --precision bf16",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(runs) / sizeof(*runs); i++) {
        static struct spawn spawn;
        char words[WORDS], hash[2][HASH];
        for (int tcp = 0; tcp < 2; tcp++) {
            snprintf(words, sizeof(words), NET_TRAIN "--steps 6 --batch-size 32 %s --comm %s",
                     runs[i], tcp ? "tcp" : "local");
            if (spawn_words(&spawn, words) != 0)
                fail_msg("%s: %s", words, spawn.err);
            spawn_hash(&spawn, hash[tcp]);
        }
        if (strcmp(hash[0], hash[1]) != 0)
            fail_msg("%s: %s by local, %s by tcp", runs[i], hash[0], hash[1]);
    }
}

/* ---- ranks that others have started ---------------------------------------------------------- */

static void set_number(const char *name, int32_t number)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", (int)number);
    setenv(name, text, 1);
}

/* As torchrun does it. The last rank gets words of its own. */
static void net_start_unlike(struct spawn *spawn, int32_t ranks, const char *words,
                             const char *last_words)
{
    static const char *const names[] = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK",
                                        "LOCAL_RANK"};
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", free_port());
    set_number("WORLD_SIZE", ranks);
    for (int32_t r = 0; r < ranks; r++) {
        set_number("RANK", r);
        set_number("LOCAL_RANK", r);
        net_start(&spawn[r], r == ranks - 1 ? last_words : words);
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        unsetenv(names[i]);
}

static void net_start_placed(struct spawn *spawn, int32_t ranks, const char *words)
{
    net_start_unlike(spawn, ranks, words, words);
}

/* One program for each rank, on the host, without --comm. */
static void case_placed(void **state)
{
    static const char *const strategies[] = {"ddp", "fsdp"};
    static struct spawn spawn[RANKS_MAX];
    (void)state;
    for (int s = 0; s < 2; s++) {
        char words[WORDS], local[HASH], placed[HASH];
        snprintf(words, sizeof(words),
                 NET_TRAIN "--steps 6 --strategy %s --ranks 3 --batch-size 33", strategies[s]);
        if (spawn_words(&spawn[0], words) != 0)
            fail_msg("%s: %s", words, spawn[0].err);
        spawn_hash(&spawn[0], local);
        snprintf(words, sizeof(words), NET_TRAIN "--steps 6 --strategy %s --batch-size 33",
                 strategies[s]);
        net_start_placed(spawn, 3, words);
        for (int32_t r = 0; r < 3; r++)
            if (spawn_end(&spawn[r], 60) != 0)
                fail_msg("rank %d: %s", (int)r, spawn[r].err);
        spawn_hash(&spawn[0], placed);
        assert_string_equal(local, placed);
    }
}

/* Ranks that have a host each, as far as their starter says, divide the cores that they share. */
static void case_threads(void **state)
{
    static struct spawn spawn[2];
    (void)state;
    setenv("LOCAL_WORLD_SIZE", "1", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", free_port());
    set_number("WORLD_SIZE", 2);
    set_number("LOCAL_RANK", 0);
    for (int32_t r = 0; r < 2; r++) {
        set_number("RANK", r);
        net_start(&spawn[r], "train --data synthetic --synthetic-rows 264 --evaluate off --device "
                             "cpu --timeout 30 --steps 2 --strategy ddp");
    }
    for (int32_t r = 0; r < 2; r++)
        if (spawn_end(&spawn[r], 60) != 0)
            fail_msg("rank %d: %s", (int)r, spawn[r].err);
    char wanted[64] = "under ddp on 2 ranks;";
    if (tess_cores() > 3 && tess_registry_summary(TESS_REGISTRY_KERNEL, "cpu")[0] != 0)
        snprintf(wanted, sizeof(wanted), "under ddp on 2 ranks x %d threads;", tess_cores() / 2);
    assert_non_null(strstr(spawn[0].out, wanted));
    assert_non_null(strstr(spawn[0].out, "predicted by the memory plan = allocated"));
    for (const char *const *name =
             (const char *const[]){"LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE",
                                   "LOCAL_RANK", "RANK", NULL};
         *name != NULL; name++)
        unsetenv(*name);
}

/* As torchrun starts ranks of one host, or srun one on each of three; each has words of its own. */
static void net_start_early(struct spawn *spawn, bool slurm, const char *const words[3])
{
    static const char *const names[2][4] = {
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
        {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_ID"}};
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", free_port());
    for (int32_t r = 0; r < 3; r++) {
        char text[WORDS];
        set_number(names[slurm][0], r);
        set_number(names[slurm][1], 3);
        set_number(names[slurm][2], slurm ? 0 : r);
        set_number(names[slurm][3], 3);
        snprintf(text, sizeof(text),
                 NET_TRAIN "--steps 2 --strategy ddp --batch-size 33 --timeout 60 %s", words[r]);
        net_start(&spawn[r], text);
    }
    for (int i = 0; i < 4; i++)
        unsetenv(names[slurm][i]);
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
}

static int times(const char *text, const char *phrase)
{
    int count = 0;
    for (; (text = strstr(text, phrase)) != NULL; text++)
        count++;
    return count;
}

/* A rank fails before it meets the others: they do not wait for it, and know why. Each reason is
 * printed once, by rank 0, which names the rank and its host, where that is not rank 0 itself. */
static void case_fails_early(void **state)
{
    static const struct {
        const char *words[3];
        int code[3];
        const char *said[3]; /* by rank 0, 1 and 2; NULL: nothing */
    } cases[] = {
        {{"--odd 1", "--odd 1", "--odd 1"},
         {2, 2, 2},
         {"error: command line: unknown option 'odd'"}},
        {{"", "", "--odd 1"}, {1, 1, 2}, {"error: rank 2 (host "}},
        {{"--odd 1", "", ""}, {2, 1, 1}, {"error: command line: unknown option 'odd'"}},
        {{"", "", "--data nowhere"}, {1, 1, 1}, {"error: rank 2 (host "}},
        {{"--odd 1", "--even 2", ""},
         {2, 2, 1},
         {"error: command line: unknown option 'odd'",
          "error: command line: unknown option 'even'"}},
    };
    static struct spawn spawn[RANKS_MAX];
    (void)state;
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(*cases); i++) {
        const double begin_s = awake_s();
        net_start_early(spawn, i % 2 != 0, cases[i / 2].words);
        for (int32_t r = 0; r < 3; r++)
            if (spawn_end(&spawn[r], 60) != cases[i / 2].code[r])
                fail_msg("case %zu: rank %d: %s", i, (int)r, spawn[r].err);
        assert_true(awake_s() - begin_s < 30);
        for (int32_t r = 0; r < 3; r++) {
            const char *said = cases[i / 2].said[r];
            if (times(spawn[r].err, "error: ") != (said != NULL) ||
                (said != NULL && strstr(spawn[r].err, said) == NULL))
                fail_msg("case %zu: rank %d: %s", i, (int)r, spawn[r].err);
        }
    }
}

/* Every rank ends with the option, and with the values of rank 0 and of the other one. */
static void case_unlike(void **state)
{
    static const struct {
        const char *words, *last_words, *said;
    } cases[] = {
        {"--seed 1", "--seed 7", "--seed is '1' on rank 0 and '7' on rank 2"},
        {"--optimizer sgd", "--optimizer adamw",
         "--optimizer is 'sgd' on rank 0 and 'adamw' on rank 2"},
        {"--model mlp", "--model cnn", "--model is 'mlp' on rank 0 and 'cnn' on rank 2"},
    };
    static struct spawn spawn[RANKS_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char words[WORDS], last_words[WORDS];
        snprintf(words, sizeof(words), NET_TRAIN "--steps 2 --strategy ddp --batch-size 33 %s",
                 cases[i].words);
        snprintf(last_words, sizeof(last_words),
                 NET_TRAIN "--steps 2 --strategy ddp --batch-size 33 %s", cases[i].last_words);
        net_start_unlike(spawn, 3, words, last_words);
        for (int32_t r = 0; r < 3; r++) {
            assert_int_equal(spawn_end(&spawn[r], 60), 2);
            if (strstr(spawn[r].err, cases[i].said) == NULL)
                fail_msg("rank %d: %s", (int)r, spawn[r].err);
        }
    }
}

/* ---- ranks that die -------------------------------------------------------------------------- */

/* All end soon, and their messages name the rank. */
static void case_dies(void **state)
{
    static struct spawn spawn[RANKS_MAX];
    pid_t child[RANKS_MAX];
    (void)state;
    net_start(&spawn[0], NET_TRAIN "--steps 1000000 --strategy ddp --ranks 3 --batch-size 33 "
                                   "--comm tcp --log-every 1");
    assert_true(spawn_until(&spawn[0], "step 2/", 60));
    assert_int_equal(spawn_children(&spawn[0], child, RANKS_MAX), 3);
    double start_s = awake_s();
    kill(child[1], SIGKILL);
    assert_int_not_equal(spawn_end(&spawn[0], 60), 0);
    assert_true(awake_s() - start_s < 10);
    assert_non_null(strstr(spawn[0].err, "rank 1 "));
    assert_int_equal(spawn_count(spawn[0].err, "error:"), 1);
    assert_true(spawn_gone(&spawn[0], 10));
}

/* The same where every rank has a launcher of its own. */
static void case_placed_dies(void **state)
{
    static struct spawn spawn[RANKS_MAX];
    pid_t child[RANKS_MAX];
    (void)state;
    net_start_placed(spawn, 3,
                     NET_TRAIN "--steps 1000000 --strategy ddp --batch-size 33 --log-every 1");
    assert_true(spawn_until(&spawn[0], "step 2/", 60));
    assert_int_equal(spawn_children(&spawn[1], child, RANKS_MAX), 1);
    double start_s = awake_s();
    kill(child[0], SIGKILL);
    for (int32_t r = 0; r < 3; r++)
        assert_int_not_equal(spawn_end(&spawn[r], 60), 0);
    assert_true(awake_s() - start_s < 10);
    if (strstr(spawn[0].err, "rank 1 ") == NULL)
        fail_msg("'%s' does not contain which rank", spawn[0].err);
    for (int32_t r = 0; r < 3; r++)
        assert_true(spawn_gone(&spawn[r], 10));
}

/* What torchrun starts once more goes on, also where the command begins anew. */
static void case_started_again(void **state)
{
    static struct spawn spawn[RANKS_MAX];
    char folder[] = "/tmp/tessera_again_XXXXXX", words[WORDS], hash[2][HASH];
    pid_t child;
    (void)state;
    assert_non_null(mkdtemp(folder));
    for (int dies = 0; dies < 2; dies++) {
        snprintf(words, sizeof(words),
                 NET_TRAIN
                 "--mlp.hidden 20 --steps 1500 --strategy ddp --batch-size 33 "
                 "--synthetic-rows 49500 --log-every 20 --run %s/%d --save-every 50 --overwrite",
                 folder, dies);
        net_start_placed(spawn, 3, words);
        if (dies) {
            assert_true(spawn_until(&spawn[0], "step 120/", 60));
            assert_int_equal(spawn_children(&spawn[1], &child, 1), 1);
            kill(child, SIGKILL);
            for (int32_t r = 0; r < 3; r++)
                assert_int_not_equal(spawn_end(&spawn[r], 60), 0);
            setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
            net_start_placed(spawn, 3, words);
            unsetenv("TORCHELASTIC_RESTART_COUNT");
        }
        for (int32_t r = 0; r < 3; r++)
            if (spawn_end(&spawn[r], 60) != 0)
                fail_msg("rank %d: %s", (int)r, spawn[r].err);
        assert_true((strstr(spawn[0].out, "continues after step") != NULL) == dies);
        spawn_hash(&spawn[0], hash[dies]);
    }
    assert_string_equal(hash[0], hash[1]);
    assert_int_equal(spawn_remove(folder), 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_same_bits),   cmocka_unit_test(case_placed),
        cmocka_unit_test(case_threads),     cmocka_unit_test(case_fails_early),
        cmocka_unit_test(case_unlike),      cmocka_unit_test(case_dies),
        cmocka_unit_test(case_placed_dies), cmocka_unit_test(case_started_again),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
