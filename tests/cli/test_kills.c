/*
 * Processes that are killed or stopped at random, in every phase of a run, under every strategy and
 * on 2 to 8 ranks: the run ends by itself with the hash of the one that nothing happened to, in
 * time, and leaves nothing behind. The seed is fixed. Arguments: how many trials, and the seed.
 */
#include "killed.h"

#include "harness/work_folder.h"

#include "base/clock.h"
#include "harness/awake.h"

#include <dirent.h>
#include <fnmatch.h>
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL                                                                                      \
    "train --data synthetic --synthetic-rows 640 --batch-size 32 --model cnn --cnn.channels 4,6 "  \
    "--cnn.fc 20 --grid 8 --steps 60 --timeout 10 --bind off "
#define LIMIT_S 60 /* of a trial on a busy machine */

static const char *const layout[] = {
    "single --ranks 1",
    "dp --ranks 2",
    "ddp --ranks 2",
    "ddp --ranks 3 --grid 12 --batch-size 36",
    "zero1 --ranks 4",
    "zero2 --ranks 2",
    "hsdp --ranks 4",
    "fsdp --ranks 8",
    "tp --ranks 2",
    "pp --ranks 4 --accumulate 8",
    "ddp+pp --ranks 4",
    "fsdp+tp --ranks 4",
    "fsdp+tp+pp --ranks 8",
    "fsdp --ranks 2 --comm tcp",
    "ddp --ranks 4 --comm tcp",
};
#define LAYOUTS (sizeof(layout) / sizeof(layout[0]))

/* When the signal comes. */
static const char *const moment[] = {"start-up", "step", "validation", "saving", "restoring"};
enum { AT_START, AT_STEP, AT_VALIDATION, AT_SAVING, AT_RESTORING, MOMENTS };

/* What the launcher says that the rank was doing. */
static const char *const doing[] = {
    "starting",         "loading a batch", "receiving the input", "in forward",
    "in the loss",      "receiving the g", "in backward",         "finishing the gradients",
    "in the optimizer", "evaluating",      "between steps",
};
#define DOINGS (sizeof(doing) / sizeof(doing[0]))

static char whole[LAYOUTS][17];
static struct spawn spawn;
static int trials = 6, hit[MOMENTS][2], seen[DOINGS];
static uint64_t seed = 1;
static char part[256]; /* the first leftover */

/* splitmix64 */
static uint64_t draw(uint64_t below)
{
    uint64_t x = seed += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (x ^ (x >> 31)) % below;
}

static void nap_ms(double ms)
{
    const double end_s = tess_clock_s() + ms * 1e-3;
    while (tess_clock_s() < end_s)
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static int ranks_of(size_t l)
{
    return atoi(strstr(layout[l], "--ranks ") + strlen("--ranks "));
}

/* Is a checkpoint of the run being written? */
static bool is_saving(const char *run)
{
    char path[256];
    bool found = false;
    snprintf(path, sizeof(path), "%s/checkpoints", run);
    DIR *open = opendir(path);
    for (const struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;)
        found = found || fnmatch("*.part", entry->d_name, 0) == 0;
    if (open != NULL)
        closedir(open);
    return found;
}

/* A launcher, not `former`, whose ranks are there; false: the run has ended before. */
static bool find_ranks(pid_t former, int ranks, pid_t *launcher, pid_t *rank)
{
    const double end_s = awake_s() + LIMIT_S;
    while (awake_s() < end_s) {
        const int count = spawn_children(&spawn, launcher, 1);
        if (count == 1 && *launcher != former && spawn_children_of(*launcher, rank, ranks) == ranks)
            return true;
        siginfo_t end = {.si_pid = 0};
        if (waitid(P_PID, (id_t)spawn.pid, &end, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            end.si_pid != 0)
            return false;
        killed_nap();
    }
    return false;
}

/* Wait for the moment, and send the signal to a rank, now and then to the launcher. */
static void strike(const char *run, int ranks, int at, int number)
{
    pid_t rank[8], launcher = 0;
    if (!find_ranks(0, ranks, &launcher, rank))
        return;
    if (at == AT_START)
        nap_ms((double)draw(30));
    else
        nap_ms(20 + (double)draw(400));
    const double end_s = tess_clock_s() + 2;
    while (at == AT_SAVING && !is_saving(run) && tess_clock_s() < end_s)
        nap_ms(0.1);
    const bool launcher_too = number == SIGKILL && draw(8) == 0;
    const int victim = (int)draw((uint64_t)ranks);
    kill(launcher_too ? launcher : rank[victim], number);
    if (at != AT_RESTORING || !find_ranks(launcher, ranks, &launcher, rank))
        return;
    nap_ms((double)draw(30));
    kill(rank[(int)draw((uint64_t)ranks)], number);
}

static int look_at(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)about, (void)kind, (void)place;
    if (fnmatch("*.part*", path, 0) == 0 || fnmatch("*.tmp", path, 0) == 0 ||
        fnmatch("*gone*", path, 0) == 0)
        snprintf(part, sizeof(part), "%s", path);
    return 0;
}

/* Files that ought not to be there, of the run and in shared memory. */
static int count_shared(void)
{
    int count = 0;
    DIR *open = opendir("/dev/shm");
    for (const struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;)
        count += fnmatch("*tessera*", entry->d_name, 0) == 0;
    if (open != NULL)
        closedir(open);
    return count;
}

static void note_doing(void)
{
    for (size_t d = 0; d < DOINGS; d++) {
        char text[64];
        snprintf(text, sizeof(text), " while %s", doing[d]);
        seen[d] += spawn_count(spawn.err, text);
    }
}

static void trial(int number)
{
    const size_t l = draw(LAYOUTS);
    const int at = (int)draw(MOMENTS), stops = draw(4) == 0;
    const int shared = count_shared();
    char words[640], run[32], hash[17];
    snprintf(run, sizeof(run), "run%d", number);
    snprintf(words, sizeof(words),
             MODEL "%s --strategy %s --run %s --save-every %d --save-bandwidth %s --restarts 4",
             at == AT_VALIDATION ? "--evaluate-every 3" : "--evaluate off", layout[l], run,
             at == AT_SAVING ? 4 : 15, at == AT_SAVING ? "1MiB" : "0");
    if (whole[l][0] == '\0') {
        char plain[512];
        snprintf(plain, sizeof(plain), MODEL "--evaluate off --strategy %s", layout[l]);
        assert_int_equal(spawn_words(&spawn, plain), 0);
        spawn_hash(&spawn, whole[l]);
    }
    killed_start(&spawn, words);
    strike(run, ranks_of(l), at, stops ? SIGSTOP : SIGKILL);
    const int code = spawn_end(&spawn, LIMIT_S);
    if (code != 0)
        fail_msg("trial %d (%s, %s, %s) ended with %d: %s", number, layout[l], moment[at],
                 stops ? "SIGSTOP" : "SIGKILL", code, spawn.err);
    assert_true(spawn_gone(&spawn, 5));
    spawn_hash(&spawn, hash);
    if (strcmp(hash, whole[l]) != 0)
        fail_msg("trial %d (%s, %s) has another hash: %s", number, layout[l], moment[at],
                 spawn.err);
    if (strstr(spawn.err, "restart 1 of 4") != NULL)
        hit[at][stops]++;
    note_doing();
    assert_int_equal(nftw(run, look_at, 16, FTW_PHYS), 0);
    if (part[0] != '\0')
        fail_msg("trial %d left %s: %s", number, part, spawn.err);
    assert_int_equal(count_shared(), shared);
    spawn_remove(run);
}

static void case_kills(void **state)
{
    (void)state;
    for (int i = 0; i < trials; i++)
        trial(i);
    for (int m = 0; m < MOMENTS; m++)
        print_message("%-24s %4d killed, %4d stopped\n", moment[m], hit[m][0], hit[m][1]);
    for (size_t d = 0; d < DOINGS; d++)
        print_message("%-24s %4d times\n", doing[d], seen[d]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(case_kills)};
    trials = argc > 1 ? atoi(argv[1]) : trials;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : seed;
    return cmocka_run_group_tests_name("kills", tests, work_folder_make, work_folder_remove);
}
