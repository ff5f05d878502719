/* The world harness: starts ranks, watches them within a time limit, collects their reports. */
#include "harness/world.h"

#include "comm/boot/boot.h"
#include "comm/net/net.h"
#include "harness/awake.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct world_task {
    const struct world_setup *setup;
    struct tess_world *world;
    struct world_failure *end; /* of all ranks, shared */
    world_function fn;
    void *arg;
    int32_t rank;
};

static _Thread_local char world_text[512];

int world_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(world_text, sizeof(world_text), format, arguments);
    va_end(arguments);
    return 1;
}

/* The function on sockets, beside the harness's communicator, over which the ranks meet. Of a rank
 * that failed nothing is closed: peers may still read what that would free. */
static int world_on_tcp(struct world_task *task, struct tess_comm *comm, double timeout_s)
{
    struct tess_transport *transport;
    struct tess_comm *tcp;
    struct tess_boot *boot;
    WORLD_OK(tess_boot_over(comm, timeout_s, &boot));
    enum tess_status status = tess_transport_tcp_open(boot, timeout_s, &transport);
    tess_boot_close(boot);
    WORLD_OK(status);
    WORLD_OK(tess_comm_net_open(transport, task->world, comm->order, timeout_s, &tcp));
    int result = task->fn(tcp, task->world, task->arg);
    if (result == 0)
        tess_comm_close(tcp);
    return result;
}

/* One rank from opening its communicator to closing it. */
static void world_rank_run(struct world_task *task)
{
    const struct world_setup *setup = task->setup;
    struct world_failure *end = &task->end[task->rank];
    double timeout_s = setup->timeout_s > 0 ? setup->timeout_s : 30;
    struct tess_comm *comm = NULL;
    world_text[0] = '\0';
    tess_log_set_rank(task->rank);
    enum tess_status status =
        setup->self ? tess_comm_self_open(setup->order, &comm)
                    : tess_comm_local_open(task->world, task->rank, setup->order, timeout_s, &comm);
    int result = 1;
    if (status == TESS_OK)
        result = setup->tcp ? world_on_tcp(task, comm, timeout_s)
                            : task->fn(comm, task->world, task->arg);
    if (result != 0 && !setup->self && comm != NULL)
        tess_comm_abort(comm, world_text[0] != '\0' ? world_text : "the test failed");
    tess_comm_close(comm);
    end->status = result;
    if (result != 0)
        snprintf(end->text, sizeof(end->text), "%s",
                 world_text[0] != '\0' ? world_text : tess_log_last_error());
}

static void *world_thread(void *context)
{
    world_rank_run(context);
    return NULL;
}

/* Memory of a run, before its first rank starts. */
static void *world_alloc(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    if (memory == NULL) {
        fprintf(stderr, "no memory for a world of %zu ranks\n", count);
        exit(1);
    }
    return memory;
}

/* Has it ended, until awake_s() is `end_s`? */
static bool world_join(pthread_t thread, double end_s)
{
    do {
        const struct timespec soon = tess_clock_soon(AWAKE_STEP_S);
        if (pthread_timedjoin_np(thread, NULL, &soon) == 0)
            return true;
    } while (awake_s() < end_s);
    return false;
}

static void world_run_threads(struct world_task *task, double limit_s)
{
    int32_t ranks = task[0].setup->ranks;
    pthread_t *thread = world_alloc((size_t)ranks, sizeof(*thread));
    double end_s = awake_s() + limit_s;
    for (int32_t r = 0; r < ranks; r++) {
        if (pthread_create(&thread[r], NULL, world_thread, &task[r]) != 0) {
            fprintf(stderr, "cannot start a thread for rank %d; see ulimit -u\n", (int)r);
            exit(1);
        }
    }
    for (int32_t r = 0; r < ranks; r++) {
        if (world_join(thread[r], end_s))
            continue;
        tess_world_abort(task[0].world, -1, "the test's time limit passed");
        end_s = awake_s() + 10;
        if (!world_join(thread[r], end_s)) {
            fprintf(stderr, "rank %d does not end\n", (int)r);
            exit(1); /* a thread cannot be killed */
        }
        task[r].end[r].status = 1;
        snprintf(task[r].end[r].text, sizeof(task[r].end[r].text), "time limit passed");
    }
    free(thread);
}

/* Note how a child ended; notify the others when it did not end by itself. */
static void world_reap(struct world_task *task, int how)
{
    struct world_failure *end = &task->end[task->rank];
    if (WIFSIGNALED(how)) {
        end->signal = WTERMSIG(how);
        snprintf(end->text, sizeof(end->text), "killed by signal %d", WTERMSIG(how));
    } else if (WEXITSTATUS(how) != 0 && end->status == 0) {
        end->status = WEXITSTATUS(how);
        snprintf(end->text, sizeof(end->text), "ended with exit status %d", WEXITSTATUS(how));
    }
    if (end->signal != 0)
        tess_world_abort(task->world, task->rank, end->text);
}

/* In the child. */
static _Noreturn void world_child(struct world_task *task)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* A framework's handlers would jump back into the parent's tests. */
    for (size_t i = 0; i < sizeof(fatal) / sizeof(*fatal); i++)
        signal(fatal[i], SIG_DFL);
    world_rank_run(task);
    _exit(0);
}

/* The children are a process group, so that one call finds out whether any of them has ended. */
static void world_run_processes(struct world_task *task, double limit_s)
{
    int32_t ranks = task[0].setup->ranks, left = ranks;
    pid_t *child = world_alloc((size_t)ranks, sizeof(*child));
    for (int32_t r = 0; r < ranks; r++) {
        child[r] = fork();
        if (child[r] == 0)
            world_child(&task[r]);
        if (child[r] < 0 || setpgid(child[r], child[0]) != 0) {
            fprintf(stderr, "cannot start a process for rank %d: %s; see ulimit -u\n", (int)r,
                    strerror(errno));
            exit(1);
        }
    }
    double end = awake_s() + limit_s;
    while (left > 0) {
        int how, r = 0;
        const pid_t pid = waitpid(-child[0], &how, WNOHANG);
        while (pid > 0 && child[r] != pid)
            r++;
        if (pid > 0) {
            world_reap(&task[r], how);
            left--;
            continue;
        }
        if (awake_s() > end)
            kill(-child[0], SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    free(child);
}

static void world_report_failures(const struct world_failure *end, int32_t ranks,
                                  struct world_report *report)
{
    for (int32_t r = 0; r < ranks; r++) {
        if (end[r].status == 0 && end[r].signal == 0)
            continue;
        report->failed++;
        if (report->kept == WORLD_FAILURES)
            continue;
        report->failure[report->kept] = end[r];
        report->failure[report->kept++].rank = r;
    }
}

int world_run_setup(const struct world_setup *setup, world_function fn, void *arg,
                    struct world_report *report)
{
    const size_t n = (size_t)setup->ranks;
    struct world_failure *end =
        mmap(NULL, n * sizeof(*end), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct tess_world *world = NULL;
    if (end == MAP_FAILED ||
        (!setup->self && tess_world_open(setup->ranks, setup->mode, &world) != TESS_OK)) {
        fprintf(stderr, "cannot open a world of %d ranks\n", (int)setup->ranks);
        exit(1);
    }
    struct world_task *task = world_alloc(n, sizeof(*task));
    for (int32_t r = 0; r < setup->ranks; r++)
        task[r] = (struct world_task){setup, world, end, fn, arg, r};
    double limit_s = setup->limit_s > 0 ? setup->limit_s : 100, start = awake_s();
    if (setup->self)
        world_rank_run(&task[0]);
    else if (setup->mode == TESS_RANKS_THREADS)
        world_run_threads(task, limit_s);
    else
        world_run_processes(task, limit_s);
    *report = (struct world_report){.seconds = awake_s() - start};
    world_report_failures(end, setup->ranks, report);
    munmap(end, n * sizeof(*end));
    free(task);
    tess_world_close(world);
    return report->failed;
}

void world_print(const struct world_report *report)
{
    for (int i = 0; i < report->kept; i++)
        fprintf(stderr, "rank %d: %s\n", (int)report->failure[i].rank, report->failure[i].text);
    if (report->failed > report->kept)
        fprintf(stderr, "and %d ranks more\n", report->failed - report->kept);
}

int world_run(int32_t ranks, enum tess_rank_mode mode, enum tess_order order, world_function fn,
              void *arg)
{
    struct world_setup setup = {.ranks = ranks, .mode = mode, .order = order};
    struct world_report *report = calloc(1, sizeof(*report));
    if (report == NULL)
        return -1;
    int failed = world_run_setup(&setup, fn, arg, report);
    world_print(report);
    free(report);
    return failed;
}
