/*
 * Checkpoints on disks that fail, and of programs that are killed: a run is killed at the n-th
 * change that it makes to its folder of checkpoints, or that change fails (harness/fault.c), for
 * changes of every kind; with the word `all`, for every n. Runs the built program.
 */
#include "harness/spawn.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TRAIN                                                                                      \
    "train --data synthetic --synthetic-rows 64 --batch-size 8 --evaluate off --model mlp "        \
    "--mlp.hidden 6 --grid 2 --optimizer adamw --schedule constant --log-every 100 "
#define STEPS    8
#define EVERY    2
#define OPS_MOST 2000
#define FOLDER   "run/checkpoints"

struct op {
    char kind[16], path[400], to[400];
};

/* Where there is memory in the place of a disk, which takes long to flush. */
static char in_memory[] = "/dev/shm/crash_XXXXXX", on_disk[] = "/tmp/tessera_crash_XXXXXX", *folder;
static struct spawn spawn;

#define run(...) spawn_format(&spawn, __VA_ARGS__)
static struct op op[OPS_MOST];
static int op_count;
static bool every_op;
static const char *under = FOLDER; /* whose changes count */

/* ---- runs ------------------------------------------------------------------------------------ */

static void read_ops(void)
{
    char line[1024];
    FILE *log = fopen("log", "r");

    op_count = 0;
    while (log != NULL && fgets(line, sizeof(line), log) != NULL && op_count < OPS_MOST) {
        struct op *one = &op[op_count++];
        one->to[0] = '\0';
        assert_true(sscanf(line, "%15s %399s %399s", one->kind, one->path, one->to) >= 2);
    }
    if (log != NULL)
        fclose(log);
}

/* A training whose n-th change of what is `under` meets `what`; 0: none does. */
static int train(int ranks, int keep, int n, const char *what)
{
    char number[16];

    assert_int_equal(spawn_remove("run"), 0);
    unlink("log");
    snprintf(number, sizeof(number), "%d", n);
    setenv("TESS_FAULT_UNDER", under, 1);
    setenv("TESS_FAULT_LOG", "log", 1);
    setenv("TESS_FAULT_AT", number, 1);
    setenv("TESS_FAULT_DO", what, 1);
    setenv("LD_PRELOAD", FAULT_LIBRARY, 1);
    const int status = run(TRAIN "--steps %d --save-every %d --keep %d --run run --strategy %s",
                           STEPS, EVERY, keep, ranks == 1 ? "single --ranks 1" : "fsdp --ranks 2");
    unsetenv("LD_PRELOAD");
    read_ops();
    return status;
}

/* ---- what is there --------------------------------------------------------------------------- */

/* The newest complete checkpoint's step, 0: none. Its folders are counted, and what else there is.
 */
static int newest(int *complete, int *other)
{
    int step = 0;
    DIR *open = opendir(FOLDER);

    *complete = *other = 0;
    for (const struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;) {
        int one, end = 0;
        if (entry->d_name[0] == '.')
            continue;
        if (sscanf(entry->d_name, "step-%8d%n", &one, &end) != 1 || entry->d_name[end] != '\0') {
            (*other)++;
            continue;
        }
        (*complete)++;
        step = one > step ? one : step;
    }
    if (open != NULL)
        closedir(open);
    return step;
}

static bool needs_space(const struct op *one)
{
    return strcmp(one->kind, "unlink") != 0 && strcmp(one->kind, "rmdir") != 0 &&
           strcmp(one->kind, "close") != 0;
}

/* Step of a checkpoint that operation i has named, 0: it is another, or has failed. */
static int named_by(int i, int n, const char *what)
{
    const bool ends = strcmp(what, "full") == 0 || strcmp(what, "short") == 0;
    const char *at = strstr(op[i].to, "/step-");
    int step = 0, end = 0;

    if (strcmp(op[i].kind, "rename") != 0 || at == NULL ||
        sscanf(at, "/step-%8d%n", &step, &end) != 1 || at[end] != '\0')
        return 0;
    return (i + 1 == n && n > 0) || (ends && i + 1 >= n && needs_space(&op[i])) ? 0 : step;
}

/* The newest checkpoint is the one that was last complete, is as it was saved, and continues to the
 * bits of the run that met no fault, which leaves no more than `keep` and nothing else. */
static void expect_continues(int keep, int n, const char *what, const char *whole)
{
    int complete, other, expected = 0;
    char hash[17];
    const int step = newest(&complete, &other);

    for (int i = 0; i < op_count; i++)
        expected = named_by(i, n, what) > 0 ? named_by(i, n, what) : expected;
    assert_int_equal(step, expected);
    if (step > 0)
        assert_int_equal(run("checkpoint verify run"), 0);
    assert_int_equal(step > 0 ? run("train --run run --resume --steps %d --save-every %d --keep %d "
                                    "--ranks 1 --strategy single",
                                    STEPS + 4, EVERY, keep)
                              : run(TRAIN "--run run --overwrite --steps %d --save-every %d "
                                          "--keep %d --ranks 1 --strategy single",
                                    STEPS + 4, EVERY, keep),
                     0);
    spawn_hash(&spawn, hash);
    assert_string_equal(hash, whole);
    assert_int_equal(newest(&complete, &other), STEPS + 4);
    assert_int_equal(complete, keep);
    assert_int_equal(other, 0);
    assert_int_equal(run("checkpoint verify run"), 0);
}

/* Every step that was to be saved is, or a warning names the file and the reason. */
static void expect_warned(int n, const char *what)
{
    for (int step = EVERY; step <= STEPS; step += EVERY) {
        char warning[64];
        bool named = false;
        for (int i = 0; i < op_count; i++)
            named = named || named_by(i, n, what) == step;
        snprintf(warning, sizeof(warning), "step %d is not saved: ", step);
        const char *at = strstr(spawn.err, warning);
        if (at == NULL && !named)
            fail_msg("no warning about step %d: %s", step, spawn.err);
        if (at == NULL)
            continue;
        char line[512];
        snprintf(line, sizeof(line), "%.*s", (int)strcspn(at, "\n"), at);
        if (strstr(line, FOLDER) == NULL ||
            strstr(line, strerror(atoi(what) > 0 ? atoi(what) : ENOSPC)) == NULL)
            fail_msg("step %d, what fails and why? %s", step, line);
    }
}

/* ---- which operations ------------------------------------------------------------------------ */

static bool same_kind(const struct op *a, const struct op *b)
{
    const char *x = strrchr(a->path, '/'), *y = strrchr(b->path, '/');
    const bool steps = strncmp(x, "/step-", 6) == 0 && strncmp(y, "/step-", 6) == 0;

    return strcmp(a->kind, b->kind) == 0 &&
           (steps || strcmp(x, y) == 0 || strcmp(a->kind, "unlink") == 0) &&
           (strstr(a->to, ".part") != NULL) == (strstr(b->to, ".part") != NULL);
}

/* Of each kind of operation one, and with it one of `count` faults: the number of the fault, -1:
 * none. Of every other kind the third, when there are older checkpoints, which are pruned. */
static int sample_of(const struct op *of, int total, int i, int count)
{
    int before = 0, all = 0, kinds = 0, first = 0;

    while (!same_kind(&of[first], &of[i]))
        first++;
    for (int j = 0; j < total; j++) {
        int k = 0;
        before += j < i && same_kind(&of[j], &of[i]);
        all += same_kind(&of[j], &of[i]);
        while (!same_kind(&of[k], &of[j]))
            k++;
        kinds += k == j && j < first;
    }
    return before == (kinds % 2 == 1 && all > 2 ? 2 : 0) ? kinds / 2 % count : -1;
}

static void expect_all(int ranks, int keep, const char *const *what, int count)
{
    static struct op of[OPS_MOST];
    char whole[17], middle[17], hash[17];

    assert_int_equal(run(TRAIN "--strategy single --ranks 1 --steps %d", STEPS), 0);
    spawn_hash(&spawn, middle);
    assert_int_equal(run(TRAIN "--strategy single --ranks 1 --steps %d", STEPS + 4), 0);
    spawn_hash(&spawn, whole);
    assert_int_equal(train(ranks, keep, 0, "none"), 0);
    const int total = op_count;
    assert_in_range(total, 40, OPS_MOST - 1);
    memcpy(of, op, sizeof(of));
    for (int n = 1; n <= total; n++) {
        const int sample = sample_of(of, total, n - 1, count);
        for (int w = 0; w < count; w++) {
            if (!every_op && w != sample)
                continue;
            const bool killed = strcmp(what[w], "kill") == 0;
            const int status = train(ranks, keep, n, what[w]);
            if ((status == 0) == killed)
                fail_msg("%s at %d: exit status %d: %s", what[w], n, status, spawn.err);
            if (!killed) {
                expect_warned(n, what[w]);
                spawn_hash(&spawn, hash);
                assert_string_equal(hash, middle);
            }
            expect_continues(keep, n, what[w], whole);
        }
    }
}

static void case_killed(void **state)
{
    static const char *const what[] = {"kill"};
    (void)state;
    expect_all(1, 2, what, 1);
    expect_all(2, 1, what, 1);
}

static void case_failed(void **state)
{
    static char io[16];
    const char *const what[] = {io, "full", "short"};
    (void)state;
    snprintf(io, sizeof(io), "%d", EIO);
    expect_all(1, 1, what, 3);
    expect_all(2, 2, what, 2);
}

/* The disk is full when the weights are written: they are lost, the result and its record are not,
 * and nothing of the file is left behind. */
static void case_weights(void **state)
{
    int n = 0;
    char line[256];
    bool final = false;

    (void)state;
    under = "run/weights";
    assert_int_equal(train(2, 1, 0, "none"), 0);
    while (n < op_count && strcmp(op[n].kind, "write") != 0)
        n++;
    assert_int_equal(train(2, 1, n + 1, "short"), 1);
    under = FOLDER;
    assert_non_null(strstr(spawn.err, "cannot write run/weights.safetensors: No space left"));
    assert_non_null(strstr(spawn.out, "hash of all parameters"));
    assert_null(strstr(spawn.out, "weights in"));
    assert_int_equal(system("ls run | grep -q weights"), 1 << 8);
    FILE *metrics = fopen("run/metrics.jsonl", "r");
    assert_non_null(metrics);
    while (fgets(line, sizeof(line), metrics) != NULL)
        final = final || strncmp(line, "{\"final\":", strlen("{\"final\":")) == 0;
    fclose(metrics);
    assert_true(final);
}

static int set_up(void **state)
{
    (void)state;
    folder = mkdtemp(access("/dev/shm", W_OK) == 0 ? in_memory : on_disk);
    return folder == NULL || chdir(folder) != 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    return chdir("/") != 0 ? -1 : spawn_remove(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_killed),
        cmocka_unit_test(case_failed),
        cmocka_unit_test(case_weights),
    };
    every_op = argc > 1 && strcmp(argv[1], "all") == 0;
    return cmocka_run_group_tests_name("crash", tests, set_up, tear_down);
}
