/*
 * Ranks that torchrun, mpirun or Slurm started: what the program refuses, and launchers of one rank
 * each that are connected. Launchers are forked here, each with a body of the test's; what became
 * of them is left in shared memory.
 */
#include "base/clock.h"
#include "harness/awake.h"
#include "harness/free_port.h"
#include "harness/spawn.h"
#include "job/launch_env.h"
#include "tessera/check.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS    3
#define MESSAGES 5

/* What a rank does once it has sent its messages. */
enum deed { DEED_ENDS, DEED_FAILS, DEED_DIES, DEED_KILLS_LAUNCHER, DEED_WAITS };

struct outcome {
    enum tess_status status;
    char error[400];
    double seconds;
    int32_t received[RANKS]; /* rank 0: messages of each rank, -1 out of order */
    int32_t started;         /* ranks that this launcher reported as started */
};

struct job {
    enum deed deed[RANKS];
    struct tess_boot_env env;
    pid_t launcher;
    struct outcome *outcome; /* [RANKS], shared */
};

static void pause_s(double seconds)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds,
                                 .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)},
              NULL);
}

static enum tess_status job_body(void *context, struct tess__rank *rank)
{
    const struct job *job = context;

    for (int32_t i = 0; i < MESSAGES; i++)
        TESS_TRY(tess__rank_send(rank, 7, &i, sizeof(i)));
    switch (job->deed[rank->rank]) {
    case DEED_ENDS:
        return TESS_OK;
    case DEED_FAILS:
        TESS_FAIL(TESS_ERR_DATA, "this rank fails on purpose");
    case DEED_DIES:
        pause_s(0.2);
        raise(SIGKILL);
        return TESS_OK;
    case DEED_KILLS_LAUNCHER:
        pause_s(0.2);
        kill(job->launcher, SIGKILL);
        pause_s(20);
        return TESS_OK;
    case DEED_WAITS:
        for (double start_s = awake_s(); awake_s() - start_s < 20; pause_s(0.01))
            if (tess_world_aborted(rank->world, NULL, NULL, 0))
                return TESS_ERR_ABORTED;
    }
    return TESS_ERR_INTERNAL;
}

static enum tess_status job_message(void *context, const struct tess__message *message)
{
    struct job *job = context;
    int32_t *received = &job->outcome[job->env.rank].received[message->rank], number;

    memcpy(&number, message->payload, sizeof(number));
    *received = message->kind == 7 && *received == number ? *received + 1 : -1;
    return TESS_OK;
}

static void job_started(void *context, int32_t rank, int pid, const char *cores,
                        const struct tess_board *board)
{
    struct job *job = context;

    (void)pid, (void)cores, (void)board;
    job->outcome[job->env.rank].started += rank == job->env.rank ? 1 : 100;
}

static void job_launch(struct job *job, int32_t rank)
{
    struct outcome *outcome = &job->outcome[rank];
    struct tess__launch launch = {.rank_count = RANKS,
                                  .mode = TESS_RANKS_PROCESSES,
                                  .context = job,
                                  .body = job_body,
                                  .message = job_message,
                                  .started = job_started};
    double start_s = tess_clock_s();

    job->env.rank = rank;
    job->launcher = getpid();
    outcome->status = tess__peers_open(&job->env, 10, &launch.peers);
    if (outcome->status == TESS_OK)
        outcome->status = tess__launch_run(&launch);
    if (outcome->status != TESS_OK)
        snprintf(outcome->error, sizeof(outcome->error), "%s", tess_log_last_error());
    tess__peers_close(launch.peers);
    outcome->seconds = tess_clock_s() - start_s;
}

/* The outcome of all launchers; the caller's to unmap. fan: launchers behind one at most. */
static struct outcome *job_run(const enum deed deed[RANKS], int32_t fan)
{
    struct job job = {
        .env = {.starter = "test", .rank_count = RANKS, .fan = fan, .address = "127.0.0.1"}};
    pid_t pid[RANKS];

    memcpy(job.deed, deed, sizeof(job.deed));
    job.env.port = free_port();
    job.outcome = mmap(NULL, RANKS * sizeof(*job.outcome), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(job.outcome != MAP_FAILED);
    fflush(NULL);
    for (int32_t r = 0; r < RANKS; r++) {
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (pid[r] == 0) {
            job_launch(&job, r);
            _exit(0);
        }
    }
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(waitpid(pid[r], NULL, 0), pid[r]);
    return job.outcome;
}

static void job_free(struct outcome *outcome)
{
    munmap(outcome, RANKS * sizeof(*outcome));
}

#define assert_contains(text, words)                                                               \
    do {                                                                                           \
        if (strstr((text), (words)) == NULL)                                                       \
            fail_msg("'%s' does not contain '%s'", (text), (words));                               \
    } while (0)

/* Rank 0's launcher receives the messages of all ranks, in order, before it ends; also where they
 * come through other launchers. */
static void case_all_heard(void **state)
{
    static const enum deed deed[RANKS] = {DEED_ENDS, DEED_ENDS, DEED_ENDS};

    (void)state;
    for (int32_t fan = 0; fan < 2; fan++) {
        struct outcome *outcome = job_run(deed, fan);

        for (int32_t r = 0; r < RANKS; r++) {
            assert_int_equal(outcome[r].status, TESS_OK);
            assert_int_equal(outcome[r].started, 1);
            assert_int_equal(outcome[0].received[r], MESSAGES);
        }
        job_free(outcome);
    }
}

/* A rank that fails, dies, or whose launcher dies: all launchers end soon, and rank 0's names it.
 */
static void case_one_fails(void **state)
{
    static const struct {
        enum deed deed[RANKS];
        int32_t who;
        const char *phrase;
    } wanted[] = {
        {{DEED_WAITS, DEED_FAILS, DEED_WAITS}, 1, "rank 1 failed"},
        {{DEED_WAITS, DEED_WAITS, DEED_DIES}, 2, "was killed by signal 9"},
        {{DEED_WAITS, DEED_KILLS_LAUNCHER, DEED_WAITS}, 1, "rank 1 has gone"},
    };
    char host[64];

    (void)state;
    assert_int_equal(gethostname(host, sizeof(host)), 0);
    for (size_t n = 0; n < 2 * sizeof(wanted) / sizeof(*wanted); n++) {
        const size_t i = n / 2;
        struct outcome *outcome = job_run(wanted[i].deed, n % 2);

        for (int32_t r = 0; r < RANKS; r++) {
            if (wanted[i].deed[r] == DEED_KILLS_LAUNCHER)
                continue;
            if (outcome[r].status == TESS_OK || outcome[r].seconds > 10)
                fail_msg("case %zu, rank %d: %s after %g s", i, (int)r,
                         tess_status_text(outcome[r].status), outcome[r].seconds);
        }
        assert_contains(outcome[0].error, wanted[i].phrase);
        assert_contains(outcome[0].error, host);
        job_free(outcome);
    }
}

/* Rank 0 fails: the others end too, and report why. */
static void case_root_fails(void **state)
{
    static const enum deed deed[RANKS] = {DEED_FAILS, DEED_WAITS, DEED_WAITS};

    (void)state;
    for (int32_t fan = 0; fan < 2; fan++) {
        struct outcome *outcome = job_run(deed, fan);

        assert_int_equal(outcome[0].status, TESS_ERR_DATA);
        for (int32_t r = 1; r < RANKS; r++) {
            assert_int_not_equal(outcome[r].status, TESS_OK);
            assert_true(outcome[r].seconds < 10);
            assert_contains(outcome[r].error, "stopped because rank 0 failed");
        }
        job_free(outcome);
    }
}

/* ---- the program ----------------------------------------------------------------------------- */

static void case_refused(void **state)
{
    static const struct {
        const char *variables[5][2];
        const char *words, *phrase;
    } wanted[] = {
        {{{"RANK", "0"}}, "train --data synthetic --steps 1", "RANK is set but WORLD_SIZE is not"},
        {{{"RANK", "0"}, {"WORLD_SIZE", "2"}},
         "train --data synthetic --steps 1",
         "MASTER_ADDR is not set"},
        {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "9"}},
         "train --data synthetic --steps 1 --strategy ddp --device cpu --comm local",
         "torchrun has started 2 processes, and --comm local needs ranks that share memory"},
        {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "9"}},
         "train --data synthetic --steps 1 --strategy dp --device cpu",
         "torchrun has started 2 processes, and this strategy needs ranks that share memory"},
        {{{NULL, NULL}},
         "train --data synthetic --steps 1 --strategy ddp --device cpu --ranks 2 --comm mpi",
         "--comm mpi is for ranks that mpirun has started"},
        {{{NULL, NULL}},
         "train --data synthetic --steps 1 --strategy dp --device cpu --ranks 2 --comm tcp",
         "--comm tcp connects processes"},
        {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "9"}},
         "train --data synthetic --steps 1 --strategy ddp --device cpu --ranks 4",
         "--ranks is 4, and torchrun has started 2"},
        {{{"PMI_RANK", "0"},
          {"PMI_SIZE", "65537"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", "9"}},
         "train --data synthetic --steps 1 --strategy ddp --device cpu",
         "it must be a number from 1 to 65536"},
        {{{"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "0"},
          {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"MASTER_ADDR", "127.0.0.1"}},
         "train --data synthetic --steps 1 --strategy ddp --device cpu --ranks 6",
         "--ranks is 6, and srun has started 4 tasks (SLURM_STEP_NUM_TASKS) on 2 nodes "
         "(SLURM_STEP_NUM_NODES)"},
        {{{"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "0"},
          {"SLURM_STEP_NUM_TASKS", "2"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"MASTER_ADDR", "127.0.0.1"}},
         "train --data synthetic --steps 1 --strategy ddp --device cpu --ranks 4 --hosts 2 "
         "--meet 127.0.0.1:9",
         "--meet is for hosts that start their ranks themselves, and Slurm"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        static struct spawn spawn;

        for (int v = 0; v < 5 && wanted[i].variables[v][0] != NULL; v++)
            setenv(wanted[i].variables[v][0], wanted[i].variables[v][1], 1);
        assert_int_equal(spawn_words(&spawn, wanted[i].words), 2);
        for (int v = 0; v < 5 && wanted[i].variables[v][0] != NULL; v++)
            unsetenv(wanted[i].variables[v][0]);
        assert_contains(spawn.err, wanted[i].phrase);
        assert_int_equal(spawn_count(spawn.err, "error:"), 1);
    }
}

/* One rank alone is as if it had been started by hand. */
static void case_alone(void **state)
{
    static struct spawn spawn;

    (void)state;
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    int code = spawn_words(&spawn, "train --data synthetic --steps 1 --evaluate off --device cpu");
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    if (code != 0)
        fail_msg("%s", spawn.err);
    assert_contains(spawn.out, "rank 0 of 1");
}

/* In the batch script of a job with several nodes. */
static void case_idle_nodes(void **state)
{
    static struct spawn spawn;

    (void)state;
    setenv("SLURM_JOB_ID", "7", 1);
    setenv("SLURM_JOB_NUM_NODES", "4", 1);
    int code = spawn_words(&spawn, "train --data synthetic --ranks 1 --device cpu --explain");
    unsetenv("SLURM_JOB_ID");
    unsetenv("SLURM_JOB_NUM_NODES");
    assert_int_equal(code, 0);
    assert_contains(spawn.err, "has 4 nodes (SLURM_JOB_NUM_NODES), and this run uses one");
    assert_int_equal(spawn_words(&spawn, "train --data synthetic --ranks 1 --device cpu --explain"),
                     0);
    assert_null(strstr(spawn.err, "SLURM"));
}

/* ---- torchrun's own options ------------------------------------------------------------------ */

/*
 * torchrun reads every word of its command line with Python's argparse, those behind the program
 * included, and refuses one that is the beginning of several options of its own. Its options, each
 * also with '_' for '-': PyTorch, torch/distributed/run.py, get_args_parser().
 */
static bool torchrun_refuses(const char *word)
{
    static const char *const option[] = {"nnodes",
                                         "nproc-per-node",
                                         "rdzv-backend",
                                         "rdzv-endpoint",
                                         "rdzv-id",
                                         "rdzv-conf",
                                         "standalone",
                                         "max-restarts",
                                         "monitor-interval",
                                         "start-method",
                                         "event-log-handler",
                                         "role",
                                         "module",
                                         "no-python",
                                         "run-path",
                                         "log-dir",
                                         "redirects",
                                         "tee",
                                         "local-ranks-filter",
                                         "node-rank",
                                         "master-addr",
                                         "master-port",
                                         "local-addr",
                                         "logs-specs",
                                         "numa-binding",
                                         "signals-to-handle",
                                         "help"};
    const size_t length = strlen(word);
    int matches = 0;

    for (size_t i = 0; i < sizeof(option) / sizeof(*option); i++) {
        char other[32];
        snprintf(other, sizeof(other), "%s", option[i]);
        for (char *c = other; *c != '\0'; c++)
            *c = *c == '-' ? '_' : *c;
        if (strcmp(word, option[i]) == 0 || strcmp(word, other) == 0)
            return false;
        matches += strncmp(word, option[i], length) == 0;
        matches += strchr(option[i], '-') != NULL && strncmp(word, other, length) == 0;
    }
    return matches > 1;
}

/* Of all options of train one is refused, and it has a second name that means the same. */
static void case_torchrun(void **state)
{
    static struct spawn spawn;
    char name[64], folder[] = "/tmp/tessera_torchrun_XXXXXX", words[256], path[64];
    int count = 0;

    (void)state;
    assert_true(torchrun_refuses("no") && !torchrun_refuses("role"));
    assert_int_equal(spawn_words(&spawn, "train --help all"), 0);
    for (const char *at = spawn.out; (at = strstr(at, "\n  --")) != NULL; count++) {
        at += 5;
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(at, " =\n"), at);
        if (torchrun_refuses(name) != (strcmp(name, "run") == 0))
            fail_msg("torchrun and --%s: the second names are in engine/base/options_load.c", name);
    }
    assert_true(count > 50 && !torchrun_refuses("run-dir"));
    assert_non_null(mkdtemp(folder));
    snprintf(words, sizeof(words),
             "train --data synthetic --synthetic-rows 64 --batch-size 32 --mlp.hidden 8 --steps 1 "
             "--evaluate off --device cpu --ranks 1 --run-dir %s/a",
             folder);
    if (spawn_words(&spawn, words) != 0)
        fail_msg("%s", spawn.err);
    snprintf(path, sizeof(path), "%s/a/metrics.jsonl", folder);
    assert_int_equal(access(path, R_OK), 0);
    assert_int_equal(spawn_remove(folder), 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_all_heard),  cmocka_unit_test(case_one_fails),
        cmocka_unit_test(case_root_fails), cmocka_unit_test(case_refused),
        cmocka_unit_test(case_alone),      cmocka_unit_test(case_idle_nodes),
        cmocka_unit_test(case_torchrun),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
