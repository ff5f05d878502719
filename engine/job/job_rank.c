/*
 * A job's rank: in a thread or a child process it opens its engine and follows the caller's orders;
 * in mode CALLER the caller's own thread does. Uses no public function.
 */
#include "job/job.h"

#include "base/clock.h"
#include "job/launch_system.h"
#include "tessera/check.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- what a rank does ------------------------------------------------------------------------ */

/* The reply of a call that ended with `status`. A failure is every rank's: the others would wait
 * for this one. A file that cannot be written is known to rank 0 alone, after all have taken part.
 */
static void rank_conclude(struct tess__job_rank *rank, enum tess_status status, bool file,
                          struct tess__job_reply *reply)
{
    reply->status = status;
    reply->why[0] = '\0';
    if (status == TESS_OK)
        return;
    const char *why = tess_log_last_error();
    snprintf(reply->why, sizeof(reply->why), "%.*s", (int)sizeof(reply->why) - 1,
             why[0] != '\0' ? why : tess_status_text(status));
    if (status == TESS_ERR_ABORTED || (file && status == TESS_ERR_IO))
        return;
    tess_world_abort(rank->rank.world, rank->rank.rank, reply->why);
    if (rank->job->run.peers != NULL && rank->comm != NULL) /* no world reaches ranks elsewhere */
        tess_comm_abort(rank->comm, reply->why);
}

void tess__job_rank_open(struct tess__job_rank *rank, struct tess__job_reply *reply)
{
    const struct tess__run *run = &rank->job->run;
    enum tess_status status = tess__run_open_comm(run, &rank->rank, &rank->comm);

    if (status == TESS_OK)
        status = tess_engine_open(run->config, run->dataset, rank->comm, rank->rank.world,
                                  &rank->engine);
    rank_conclude(rank, status, false, reply);
}

void tess__job_rank_close(struct tess__job_rank *rank)
{
    tess_engine_close(rank->engine);
    tess_comm_close(rank->comm);
}

static enum tess_status rank_step(struct tess__job_rank *rank, int64_t count,
                                  struct tess_job_metrics *metrics)
{
    struct tess_step_result result;
    const double begin_s = tess_clock_s();
    int64_t rows = 0;
    double wait_s = 0;

    for (int64_t i = 1; i <= count; i++) {
        if (tess_world_aborted(rank->rank.world, NULL, NULL, 0))
            return TESS_ERR_ABORTED;
        TESS_TRY(tess_engine_step(rank->engine, i == count, &result));
        rows += result.rows;
        wait_s += result.times.comm_s;
    }
    const double time_s = tess_clock_s() - begin_s;
    *metrics = (struct tess_job_metrics){
        .step = result.step,
        .epoch = result.epoch,
        .loss = result.loss,
        .accuracy = result.accuracy,
        .rate = result.rate,
        .grad_norm = result.grad_norm,
        .loss_scale = result.loss_scale,
        .skipped = result.skipped_count,
        .step_s = time_s / (double)count,
        .wait_s = wait_s / (double)count,
        .samples_per_s = time_s > 0 ? (double)rows / time_s : 0,
    };
    return TESS_OK;
}

void tess__job_rank_obey(struct tess__job_rank *rank, const struct tess__job_order *order,
                         struct tess__job_reply *reply)
{
    enum tess_status status = TESS_ERR_INTERNAL;

    switch (order->verb) {
    case TESS__JOB_STEP:
        status = rank_step(rank, order->count, &reply->metrics);
        break;
    case TESS__JOB_EVALUATE:
        status = tess_engine_evaluate(rank->engine, &reply->loss, &reply->accuracy);
        break;
    case TESS__JOB_HASH:
        status = tess_engine_hash(rank->engine, &reply->hash);
        break;
    case TESS__JOB_READ:
        status = tess_engine_read(
            rank->engine, order->index,
            rank->rank.rank == 0 || rank->job->run.peers != NULL ? rank->job->exchange : NULL);
        break;
    case TESS__JOB_SAVE:
        status = tess_engine_save(rank->engine, order->path);
        break;
    }
    rank_conclude(rank, status, order->verb == TESS__JOB_SAVE, reply);
}

/* ---- what it runs in ------------------------------------------------------------------------- */

locale_t tess__job_locale(void)
{
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0)); /* one for all, never freed */
}

static void rank_follow(struct tess__job_rank *rank)
{
    const struct tess__launch launch = tess__run_launch(&rank->job->run);
    struct tess__job_order order;
    struct tess__job_reply reply = {.status = TESS_OK};

    tess__log_redirect(&rank->job->sink);
    (void)tess__job_locale();
    tess__rank_enter(&launch, rank->rank.rank);
    tess__job_rank_open(rank, &reply);
    while (send(rank->rank_socket, &reply, sizeof(reply), MSG_NOSIGNAL) == (ssize_t)sizeof(reply)) {
        ssize_t count;
        do
            count = recv(rank->rank_socket, &order, sizeof(order), 0);
        while (count < 0 && errno == EINTR);
        if (count != (ssize_t)sizeof(order)) /* the caller has closed its end, or is gone */
            break;
        tess__job_rank_obey(rank, &order, &reply);
    }
    tess__job_rank_close(rank);
    close(rank->rank_socket);
}

static void *rank_thread(void *context)
{
    rank_follow(context);
    return NULL;
}

/* What is sent to ranks started before goes to them alone: their sockets are closed here, so that
 * the end of the caller is seen. */
static _Noreturn void rank_child(struct tess__job_rank *rank)
{
    struct tess_job *job = rank->job;

    for (int32_t r = 0; r <= rank->rank.rank; r++)
        close(job->rank[r].caller_socket);
    job->message = NULL;
    rank_follow(rank);
    _exit(0);
}

enum tess_status tess__job_rank_start(struct tess_job *job, int32_t r)
{
    struct tess__job_rank *rank = &job->rank[r];
    int end[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, end) != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot connect with rank %d: %s%s", r, strerror(errno),
                  tess__launch_files_hint());
    rank->caller_socket = end[0];
    rank->rank_socket = end[1];
    rank->rank = (struct tess__rank){r, job->run.rank_count, job->world, -1};
    if (job->mode == TESS_JOB_THREADS) {
        const int error = pthread_create(&rank->thread, NULL, rank_thread, rank);
        if (error != 0) {
            close(rank->rank_socket);
            TESS_FAIL(TESS_ERR_MEMORY, "cannot start a thread for rank %d: %s", r, strerror(error));
        }
    } else {
        rank->pid = fork();
        if (rank->pid == 0)
            rank_child(rank);
        close(rank->rank_socket);
        if (rank->pid < 0)
            TESS_FAIL(TESS_ERR_MEMORY, "cannot start rank %d: fork: %s", r, strerror(errno));
    }
    rank->started = true;
    return TESS_OK;
}

/* Wait at most limit_s for the rank's process; its exit status, NULL is allowed, where it ended. */
static bool rank_reap(struct tess__job_rank *rank, double limit_s, int *status_out)
{
    const double end_s = tess_clock_s() + limit_s;
    pid_t pid;

    while ((pid = waitpid(rank->pid, status_out, WNOHANG)) == 0 || (pid < 0 && errno == EINTR)) {
        if (tess_clock_s() > end_s)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    rank->pid = 0;
    return true;
}

void tess__job_rank_end(struct tess__job_rank *rank, double limit_s)
{
    if (rank->job->mode == TESS_JOB_THREADS) {
        pthread_join(rank->thread, NULL);
    } else if (rank->pid > 0 && !rank_reap(rank, limit_s, NULL)) {
        kill(rank->pid, SIGKILL);
        (void)rank_reap(rank, limit_s, NULL);
    }
    rank->started = false;
}

void tess__job_rank_death(struct tess__job_rank *rank, char *text, size_t bytes)
{
    char doing[256], how[128] = "has ended";
    int status = 0;
    int32_t unit_count;
    const char *const *unit = tess_engine_unit_names(rank->job->run.planned, &unit_count);

    if (rank->pid > 0 && rank_reap(rank, 1, &status) && WIFSIGNALED(status))
        snprintf(how, sizeof(how), "was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    tess_board_describe(tess_world_board(rank->job->world, rank->rank.rank), unit, unit_count,
                        doing, sizeof(doing));
    snprintf(text, bytes, "rank %d %s while %s", rank->rank.rank, how, doing);
}
