/*
 * A rank that is killed, in every phase of a step: the launcher names the rank, the signal and what
 * the rank was doing, the others end in time, nothing is left. The moment is chosen exactly by a
 * strategy of our own, "fragile", which is ddp (on a mesh fsdp) with a SIGKILL in one of its hooks;
 * the test registers it and runs the program's main function. And a rank that stops and does not
 * die: the time limit of the others passes, and their message names it.
 */
#include "harness/spawn.h"

#include "tessera/check.h"
#include "tessera/registry.h"
#include "text/command.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define STEP 3

enum moment {
    AT_FORWARD,
    AT_BACKWARD,
    AT_COLLECTIVE,
    AT_BATCH,
    AT_END_OF_STEP,
    AT_EXIT,
    AT_MISTAKE,
    AT_PEER,
    AT_STOP
};

/* Of the child that runs tess__main, and of the ranks it forks. */
static enum moment moment;
static struct tess_strategy_ops fragile;
static const char *base_name = "ddp";
static int victim = 1; /* rank of the mesh */
static const struct tess_strategy_ops *base;
static int64_t step_now;    /* from 1 */
static _Atomic int *pid_of; /* [ranks], shared by all processes of the test */
static bool awaited;        /* the victim dies when the others wait for it */

static bool fragile_now(const struct tess_strategy *strategy, enum moment at)
{
    if (moment != at || !strategy->training || step_now != STEP ||
        strategy->plan->mesh.rank != victim)
        return false;
    if (awaited)
        usleep(500000);
    return true;
}

static enum tess_status fragile_open(struct tess_strategy *strategy)
{
    pid_of[strategy->plan->mesh.rank] = (int)getpid();
    return base->open(strategy);
}

/* The victim waits for rank 0 by now, which kills it instead of coming. */
static void fragile_kill_waiting(const struct tess_strategy *strategy, enum moment at)
{
    if (moment != at || step_now != STEP || strategy->plan->mesh.rank != 0 || pid_of[victim] == 0)
        return;
    usleep(300000);
    kill(pid_of[victim], SIGKILL);
    pid_of[victim] = 0;
    usleep(300000);
}

static enum tess_status fragile_batch_ready(struct tess_strategy *strategy,
                                            const struct tess_boundary *input,
                                            const struct tess_boundary *label)
{
    if (fragile_now(strategy, AT_BATCH))
        raise(SIGKILL);
    return base->batch_ready(strategy, input, label);
}

static enum tess_status fragile_unit_enter(struct tess_strategy *strategy, int32_t unit,
                                           enum tess_phase phase)
{
    if (unit == 0 && phase == TESS_PHASE_FORWARD)
        fragile_kill_waiting(strategy, AT_PEER);
    if (unit == 1 && phase == TESS_PHASE_FORWARD && fragile_now(strategy, AT_FORWARD))
        raise(SIGKILL);
    if (unit == 1 && phase == TESS_PHASE_FORWARD && fragile_now(strategy, AT_STOP))
        raise(SIGSTOP);
    if (unit == 1 && phase == TESS_PHASE_BACKWARD && fragile_now(strategy, AT_BACKWARD))
        raise(SIGKILL);
    return base->unit_enter(strategy, unit, phase);
}

static enum tess_status fragile_grads_finish(struct tess_strategy *strategy)
{
    static float value[4];

    if (moment == AT_MISTAKE && step_now == STEP)
        TESS_TRY(tess_comm_all_reduce(strategy->comm, value, value,
                                      strategy->plan->mesh.rank == victim ? 3 : 4, TESS_F32,
                                      TESS_REDUCE_SUM, NULL));
    fragile_kill_waiting(strategy, AT_COLLECTIVE);
    return base->grads_finish(strategy);
}

static enum tess_status fragile_params_refresh(struct tess_strategy *strategy)
{
    TESS_TRY(base->params_refresh(strategy));
    if (fragile_now(strategy, AT_END_OF_STEP))
        raise(SIGKILL);
    if (fragile_now(strategy, AT_EXIT))
        _exit(0); /* a library that ends the process without a word */
    step_now++;   /* after the first values, and after each step */
    return TESS_OK;
}

static int fragile_main(int argc, char **argv)
{
    if (tess_registry_get_strategy(base_name, &base) != TESS_OK)
        return 99;
    fragile = *base;
    fragile.name = "fragile";
    fragile.open = fragile_open;
    fragile.batch_ready = fragile_batch_ready;
    fragile.unit_enter = fragile_unit_enter;
    fragile.grads_finish = fragile_grads_finish;
    fragile.params_refresh = fragile_params_refresh;
    if (tess_registry_add_strategy(&fragile) != TESS_OK)
        return 99;
    return tess__main(argc, argv);
}

/* ---- time ------------------------------------------------------------------------------------ */

#define SOON_S  5.0   /* of death_clock: from a death to the end of all */
#define LIMIT_S 300.0 /* of the wall clock, on a machine that may be busy */

/* A clock that goes as a process goes that always has work: by the processor's time of a thread
 * that spins. It stands still with all others where a machine is busy. */
static struct {
    pthread_t thread;
    _Atomic bool stops;
} death_clock;

static void *death_clock_spin(void *context)
{
    double *had_s = context;
    struct timespec had;
    while (!atomic_load_explicit(&death_clock.stops, memory_order_relaxed))
        ;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &had);
    *had_s = (double)had.tv_sec + 1e-9 * (double)had.tv_nsec;
    return NULL;
}

static void death_clock_start(double *had_s)
{
    atomic_store(&death_clock.stops, false);
    assert_int_equal(pthread_create(&death_clock.thread, NULL, death_clock_spin, had_s), 0);
}

static void death_clock_stop(void)
{
    atomic_store(&death_clock.stops, true);
    pthread_join(death_clock.thread, NULL);
}

/* Run until the rank is gone: it is named, how it went and what it was doing, once, in time. */
static void death_run(char *const argv[], const char *who, const char *how, const char *doing)
{
    static struct spawn spawn;
    double took_s;
    int code;

    spawn_start(&spawn, argv, fragile_main);
    if (!spawn_until(&spawn, "step 1/", LIMIT_S))
        fail_msg("no first step:\n%s%s", spawn.out, spawn.err);
    death_clock_start(&took_s);
    code = spawn_end(&spawn, LIMIT_S);
    death_clock_stop();
    if (code != 1 || strstr(spawn.err, who) == NULL || strstr(spawn.err, how) == NULL ||
        strstr(spawn.err, doing) == NULL || strstr(spawn.err, "step 3") == NULL ||
        spawn_count(spawn.err, "error: ") != 1)
        fail_msg("exit %d, expected 1, '%s', '%s', '%s' and step 3 in:\n%s", code, who, how, doing,
                 spawn.err);
    assert_true(took_s < SOON_S);
    assert_true(spawn_gone(&spawn, LIMIT_S));
}

static void death(enum moment at, const char *ranks, const char *how, const char *doing)
{
    char *argv[] = {
        "tessera",      "train",       "--data",        "synthetic", "--synthetic-rows", "256",
        "--mlp.hidden", "8",           "--kernel",      "ref",       "--strategy",       "fragile",
        "--ranks",      (char *)ranks, "--steps",       "100000000", "--batch-size",     "48",
        "--log-every",  "1",           "--no-evaluate", NULL};

    moment = at;
    base_name = "ddp";
    victim = 1;
    death_run(argv, "rank 1 (pid ", how, doing);
}

/* Two ranks along each axis: rank r is data r / 2 % 2, tensor r % 2, stage r / 4. A language model
 * of eight units, five on the first stage. */
static void death_on_mesh(enum moment at, int rank, const char *how, const char *doing)
{
    char *argv[] = {"tessera",          "train",
                    "--data",           "synthetic",
                    "--synthetic-rows", "256",
                    "--model",          "gpt",
                    "--gpt.layers",     "4",
                    "--gpt.width",      "16",
                    "--data.length",    "8",
                    "--kernel",         "ref",
                    "--strategy",       "fragile+tp+pp",
                    "--mesh",           "data=2,tensor=2,stage=2",
                    "--steps",          "100000000",
                    "--batch-size",     "16",
                    "--log-every",      "1",
                    "--timeout",        at == AT_STOP ? "1" : "60",
                    "--no-evaluate",    NULL};
    char who[32];

    moment = at;
    base_name = "fsdp";
    victim = rank;
    snprintf(who, sizeof(who), at == AT_STOP ? "rank %d " : "rank %d (pid ", rank);
    death_run(argv, who, how, doing);
}

static void case_in_forward(void **state)
{
    (void)state;
    death(AT_FORWARD, "2", "signal 9", "in forward of unit 1");
    death(AT_FORWARD, "4", "signal 9", "in forward of unit 1");
}

static void case_in_backward(void **state)
{
    (void)state;
    death(AT_BACKWARD, "2", "signal 9", "in backward of unit 1");
    death(AT_BACKWARD, "3", "signal 9", "in backward of unit 1");
}

static void case_in_a_collective(void **state)
{
    (void)state;
    death(AT_COLLECTIVE, "2", "signal 9", "waiting in all_reduce");
    death(AT_COLLECTIVE, "4", "signal 9", "waiting in all_reduce");
}

static void case_between_steps(void **state)
{
    (void)state;
    death(AT_BATCH, "2", "signal 9", "loading a batch");
    death(AT_END_OF_STEP, "2", "signal 9", "in the optimizer");
}

static void case_ends_without_a_word(void **state)
{
    (void)state;
    death(AT_EXIT, "2", "ended early with exit status 0", "in the optimizer");
}

/* In each phase, on either stage, and waiting along each axis; units have the model's names. */
static void case_on_a_mesh(void **state)
{
    (void)state;
    death_on_mesh(AT_FORWARD, 3, "signal 9", "in forward of unit 1 (wpe), step 3");
    death_on_mesh(AT_FORWARD, 5, "signal 9", "in forward of unit 6 (norm), step 3");
    death_on_mesh(AT_BACKWARD, 2, "signal 9", "in backward of unit 1 (wpe), step 3");
    death_on_mesh(AT_BACKWARD, 7, "signal 9", "in backward of unit 6 (norm), step 3");
    death_on_mesh(AT_BATCH, 6, "signal 9", "loading a batch, step 3");
    death_on_mesh(AT_END_OF_STEP, 4, "signal 9", "in the optimizer, step 3");
    death_on_mesh(AT_EXIT, 1, "ended early with exit status 0", "in the optimizer, step 3");
    death_on_mesh(AT_COLLECTIVE, 2, "signal 9", ", step 3, waiting in ");
    death_on_mesh(AT_PEER, 1, "signal 9", "unit 0 (wte), step 3, waiting in all_reduce");
    death_on_mesh(AT_PEER, 4, "signal 9",
                  "receiving the input of unit 5 (h3), step 3, waiting in recv");
}

/* Its launcher names it, and ends it at once. */
static void case_stopped(void **state)
{
    (void)state;
    death_on_mesh(AT_STOP, 1, "has been stopped for 0.5 s while",
                  "in forward of unit 1 (wpe), step 3");
    death_on_mesh(AT_STOP, 6, "has been stopped for 0.5 s while", "in forward of unit 6 ");
}

/* A rank that does something else than the others is not a death: --debug prints what each does. */
static void case_mistake_under_debug(void **state)
{
    static struct spawn spawn;
    char *argv[] = {"tessera",    "train",        "--data",  "synthetic", "--synthetic-rows",
                    "256",        "--mlp.hidden", "8",       "--kernel",  "ref",
                    "--strategy", "fragile",      "--ranks", "3",         "--steps",
                    "10",         "--batch-size", "48",      "--debug",   NULL};

    (void)state;
    moment = AT_MISTAKE;
    base_name = "ddp";
    victim = 1;
    spawn_start(&spawn, argv, fragile_main);
    assert_int_equal(spawn_end(&spawn, LIMIT_S), 1);
    assert_true(spawn_gone(&spawn, LIMIT_S));
    assert_int_equal(spawn_count(spawn.err, "error: "), 1);
    if (strstr(spawn.err, "ranks 0, 2: all_reduce of 4 f32") == NULL ||
        strstr(spawn.err, "rank 1: all_reduce of 3 f32") == NULL ||
        strstr(spawn.err, "test_death.c:") == NULL || strstr(spawn.err, "step 3") == NULL)
        fail_msg("not what each rank does in:\n%s", spawn.err);
}

/* The report of a run that fails: which rank the others wait for and where that is, and the call
 * that is not the same on all ranks, although nothing compares them. */
static void report_of(enum moment at, const char *one, const char *two)
{
    static struct spawn spawn;
    char folder[] = "/tmp/tessera_death_XXXXXX";
    char *argv[] = {"tessera",      "train", "--data",   "synthetic", "--synthetic-rows", "256",
                    "--mlp.hidden", "8",     "--kernel", "ref",       "--strategy",       "fragile",
                    "--ranks",      "3",     "--steps",  "10",        "--batch-size",     "48",
                    "--run",        folder,  NULL};

    assert_non_null(mkdtemp(folder));
    moment = at;
    base_name = "ddp";
    victim = 1;
    awaited = true;
    spawn_start(&spawn, argv, fragile_main);
    awaited = false;
    assert_int_equal(spawn_end(&spawn, LIMIT_S), 1);
    if (spawn_count(spawn.err, "---- ") != 1 || strstr(spawn.err, one) == NULL ||
        strstr(spawn.err, two) == NULL)
        fail_msg("not '%s' and '%s' in:\n%s", one, two, spawn.err);
    assert_int_equal(spawn_remove(folder), 0);
}

static void case_report(void **state)
{
    (void)state;
    report_of(AT_FORWARD, " for rank 1 (",
              "which is dead, in forward of unit 1 (fc2), step 3; its latest call is ");
    report_of(AT_BATCH, " for rank 1 (",
              "which is dead, loading a batch, step 3; its latest call is ");
    report_of(AT_MISTAKE, "(data) is the first that is not the same on all ranks:\n  rank",
              "of 12 B (data) at test_death.c:");
}

/* At an arbitrary moment: whatever it was doing, rank and signal are named. */
static void case_at_any_time(void **state)
{
    static struct spawn spawn;
    static const int signals[] = {SIGKILL, SIGUSR1, SIGQUIT};
    static const char *const named[] = {"signal 9", "signal 10", "signal 3"};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char *argv[] = {"tessera",
                        "train",
                        "--data",
                        "synthetic",
                        "--synthetic-rows",
                        "256",
                        "--mlp.hidden",
                        "8",
                        "--kernel",
                        "ref",
                        "--strategy",
                        "fsdp",
                        "--ranks",
                        "4",
                        "--steps",
                        "100000000",
                        NULL};
        pid_t child[4];
        double took_s;

        spawn_start(&spawn, argv, NULL);
        assert_true(spawn_until(&spawn, "step 1/", LIMIT_S));
        assert_int_equal(spawn_children(&spawn, child, 4), 4);
        usleep(20000 + 7000 * (unsigned)i);
        death_clock_start(&took_s);
        kill(child[2], signals[i]);
        const int code = spawn_end(&spawn, LIMIT_S);
        death_clock_stop();
        assert_int_equal(code, 1);
        assert_true(took_s < SOON_S);
        assert_true(spawn_gone(&spawn, LIMIT_S));
        assert_non_null(strstr(spawn.err, "rank 2 (pid "));
        assert_non_null(strstr(spawn.err, named[i]));
        assert_int_equal(spawn_count(spawn.err, "error: "), 1);
    }
}

/* All ranks of dp are one process: it is named with all of them. */
static void case_process_of_threads(void **state)
{
    static struct spawn spawn;
    char *argv[] = {"tessera",
                    "train",
                    "--data",
                    "synthetic",
                    "--synthetic-rows",
                    "256",
                    "--mlp.hidden",
                    "8",
                    "--kernel",
                    "ref",
                    "--strategy",
                    "dp",
                    "--ranks",
                    "4",
                    "--steps",
                    "100000000",
                    NULL};
    pid_t child[2];

    (void)state;
    spawn_start(&spawn, argv, NULL);
    assert_true(spawn_until(&spawn, "step 1/", LIMIT_S));
    assert_int_equal(spawn_children(&spawn, child, 2), 1);
    kill(child[0], SIGKILL);
    assert_int_equal(spawn_end(&spawn, LIMIT_S), 1);
    assert_true(spawn_gone(&spawn, LIMIT_S));
    assert_non_null(strstr(spawn.err, "the process of ranks 0 to 3"));
    assert_non_null(strstr(spawn.err, "signal 9"));
}

/* Each rank has a launcher of its own, as under torchrun: all of them name the rank that is killed,
 * whoever notices first. */
static void case_launchers(void **state)
{
    enum { RANKS = 4, TRIALS = TESTS_DIVISOR > 1 ? 2 : 5 };
    static struct spawn launcher[RANKS];
    char *argv[] = {"tessera", "train",        "--data", "synthetic",  "--synthetic-rows",
                    "256",     "--mlp.hidden", "8",      "--strategy", "ddp",
                    "--steps", "100000000",    NULL};
    char text[64];
    pid_t child;

    (void)state;
    for (int trial = 0; trial < TRIALS; trial++) {
        snprintf(text, sizeof(text), "%d", 20000 + (int)(getpid() * 7 + trial) % 20000);
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        setenv("MASTER_PORT", text, 1);
        setenv("WORLD_SIZE", "4", 1);
        for (int r = 0; r < RANKS; r++) {
            snprintf(text, sizeof(text), "%d", r);
            setenv("RANK", text, 1);
            setenv("LOCAL_RANK", text, 1);
            spawn_start(&launcher[r], argv, NULL);
        }
        assert_true(spawn_until(&launcher[0], "step 1/", LIMIT_S));
        assert_int_equal(spawn_children(&launcher[2], &child, 1), 1);
        kill(child, SIGKILL);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(spawn_end(&launcher[r], LIMIT_S), 1);
            assert_true(spawn_gone(&launcher[r], LIMIT_S));
            if (strstr(launcher[r].err, "rank 2 (") == NULL ||
                strstr(launcher[r].err, "rank 0 has gone") != NULL)
                fail_msg("trial %d, launcher %d: %s", trial, r, launcher[r].err);
        }
        assert_non_null(strstr(launcher[2].err, "was killed by signal 9"));
    }
    for (const char *const *name = (const char *const[]){"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE",
                                                         "RANK", "LOCAL_RANK", NULL};
         *name != NULL; name++)
        unsetenv(*name);
}

static int limited_main(int argc, char **argv)
{
    const struct rlimit limit = {1024, 1024};

    return setrlimit(RLIMIT_FSIZE, &limit) != 0 ? 1 : tess__main(argc, argv);
}

/* Memory that ranks share counts as a file: the limit is an error with the way out, no signal. */
static void case_no_room_for_shared_memory(void **state)
{
    static struct spawn spawn;
    char *argv[] = {"tessera", "train", "--data", "synthetic", "--strategy", "ddp", NULL};

    (void)state;
    assert_int_equal(spawn_run(&spawn, argv, limited_main), 1);
    assert_int_equal(spawn_count(spawn.err, "error: "), 1);
    assert_non_null(strstr(spawn.err, "ulimit -v, -f"));
    /* A plan of 6 TiB. */
    assert_int_equal(spawn_words(&spawn, "train --data synthetic --model gpt --gpt.layers 96 "
                                         "--gpt.width 12288 --gpt.heads 96 --strategy ddp"),
                     1);
    assert_non_null(strstr(spawn.err, "GiB of this machine, which has "));
    assert_null(strstr(spawn.out, "pid "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_in_forward),
        cmocka_unit_test(case_in_backward),
        cmocka_unit_test(case_in_a_collective),
        cmocka_unit_test(case_between_steps),
        cmocka_unit_test(case_ends_without_a_word),
        cmocka_unit_test(case_on_a_mesh),
        cmocka_unit_test(case_stopped),
        cmocka_unit_test(case_at_any_time),
        cmocka_unit_test(case_process_of_threads),
        cmocka_unit_test(case_mistake_under_debug),
        cmocka_unit_test(case_report),
        cmocka_unit_test(case_no_room_for_shared_memory),
        cmocka_unit_test(case_launchers),
    };

    pid_of = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pid_of == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests_name("death", tests, NULL, NULL);
}
