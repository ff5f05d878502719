/*
 * The launcher's side: forks the ranks, then one loop over three descriptors (messages, the ranks'
 * stderr, signals) until every child is reaped. What the ranks do is the body's.
 *
 *     fork ranks -> loop: message / line / signal / child ended -> all reaped -> status
 *                          first failure: abort the world, END_LIMIT_S later SIGKILL
 *
 * All ranks share the three descriptors, and what the loop does for an event does not depend on
 * how many ranks there are: hundreds of them write in the same moment.
 */
#include "job/launch.h"

#include "base/clock.h"
#include "job/launch_env.h"
#include "job/launch_system.h"
#include "tessera/check.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Ranks that have received a failure end within this time or are killed; 5 s is promised. */
#define END_LIMIT_S 4.0
/* A signal to the whole process group reaches ranks and launcher in any order, but soon; so do a
 * rank's death and the end of its connections. */
#define TOGETHER_MS 200
#define LINE_BYTES  4096

/* What the launcher reads, and the ranks' ends of the two pipes. */
enum {
    FD_LINE,
    FD_MESSAGE,
    FD_SIGNAL,
    FD_READ_COUNT,
    FD_LINE_WRITE = FD_READ_COUNT,
    FD_MESSAGE_WRITE,
    FD_COUNT
};

struct launch_rank {
    double stopped_s; /* since when its process is stopped; 0: it is not */
    pid_t pid;        /* 0: reaped, or not started here */
    bool ended;       /* its body has returned */
    bool lost;        /* its death is reported */
};

struct launcher {
    const struct tess__launch *launch;
    struct tess_world *world;
    struct launch_rank *rank;   /* [rank_count] */
    struct pollfd *watch;       /* [FD_READ_COUNT, and the other launchers] */
    int32_t first, alive_count; /* of the processes: the lowest; not reaped */
    int32_t stopped_count;
    bool child_changed; /* a child has ended, was stopped or goes on */
    int fd[FD_COUNT];   /* -1: closed */
    sigset_t old_mask;
    char line[LINE_BYTES];
    size_t line_used;
    enum tess_status status;
    struct tess__ended failed; /* of the first rank that reported a failure */
    struct tess__ended
        stop;          /* why rank 0's launcher has ended the run; status TESS_OK: it has not */
    bool error_logged; /* the first error is on the screen; what follows from it is not shown */
    int32_t interrupt_count;
    double interrupt_s; /* when the latest one came */
    uint64_t oom_kills; /* of this machine's kernel, when the launcher began */
    double tick_s;      /* when the next tick is due; the first one at once */
    double kill_s;      /* when to kill what is left; 0: not ending */
    bool killed;
};

static void launch_close_fd(struct launcher *launcher, int which)
{
    if (launcher->fd[which] >= 0)
        close(launcher->fd[which]);
    launcher->fd[which] = -1;
}

/* ---- failing --------------------------------------------------------------------------------- */

static void launch_clear_line(struct launcher *launcher)
{
    if (launcher->launch->before_line != NULL)
        launcher->launch->before_line(launcher->launch->context);
}

/* The run is over: abort the ranks, with a time limit. The first status stays. */
static void launch_end(struct launcher *launcher, enum tess_status status, const char *reason)
{
    if (launcher->status == TESS_OK || launcher->status == TESS_ERR_ABORTED ||
        status == TESS_ERR_INTERRUPTED)
        launcher->status = status;
    if (launcher->kill_s > 0)
        return;
    launcher->kill_s = tess_clock_s() + END_LIMIT_S;
    tess_world_abort(launcher->world, -1, reason);
    if (launcher->launch->failed != NULL)
        launcher->launch->failed(launcher->launch->context, status, reason);
    if (launcher->launch->peers == NULL)
        return;
    struct tess__ended why = {.status = (int32_t)status};
    snprintf(why.why, sizeof(why.why), "%.*s", (int)sizeof(why.why) - 1, reason);
    tess__peers_leave(launcher->launch->peers, &why);
}

/* The same for a failure that has been logged. */
static void launch_fail(struct launcher *launcher, enum tess_status status, const char *reason)
{
    launcher->error_logged = true;
    launch_end(launcher, status, reason);
}

static void launch_kill(struct launcher *launcher)
{
    for (int32_t p = 0; p < launcher->launch->rank_count; p++)
        if (launcher->rank[p].pid > 0)
            kill(launcher->rank[p].pid, SIGKILL);
    launcher->killed = true;
}

/* Who ends a process group, such as mpirun and timeout, and a supervisor that passes it on, send
 * one request as several signals. */
#define INTERRUPT_ONE_S 0.5

static void launch_interrupt(struct launcher *launcher)
{
    const double now_s = tess_clock_s();
    if (launcher->interrupt_count > 0 && now_s < launcher->interrupt_s + INTERRUPT_ONE_S)
        return;
    launcher->interrupt_s = now_s;
    launcher->interrupt_count++;
    if (launcher->launch->saves && launcher->interrupt_count == 1 && launcher->kill_s <= 0) {
        launch_clear_line(launcher);
        tess_log(TESS_LOG_INFO, "interrupted: saving, then ending (once more to kill)");
        tess_world_request(launcher->world, TESS_WORLD_SAVE_AND_END);
        launcher->status = TESS_ERR_INTERRUPTED;
        launcher->error_logged = true;
        return;
    }
    if (launcher->interrupt_count > 1) {
        launch_kill(launcher);
        return;
    }
    launch_clear_line(launcher);
    tess_log(TESS_LOG_INFO, "interrupted: ending %d rank%s (once more to kill)",
             launcher->launch->rank_count, launcher->launch->rank_count > 1 ? "s" : "");
    launch_fail(launcher, TESS_ERR_INTERRUPTED, "interrupted");
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Is it a line of tess_fail(): "tessera: [rank N: ]error: ..."? */
static bool launch_is_error(const char *line)
{
    int end = 0;

    (void)sscanf(line, "tessera: error: %n", &end);
    if (end == 0)
        (void)sscanf(line, "tessera: rank %*d: error: %n", &end);
    return end > 0;
}

static void launch_forward_line(struct launcher *launcher)
{
    const size_t length = launcher->line_used;

    launcher->line[length] = '\0';
    launcher->line_used = 0;
    if (launch_is_error(launcher->line)) {
        if (launcher->error_logged)
            return;
        launcher->error_logged = true;
    }
    launch_clear_line(launcher);
    if (write(STDERR_FILENO, launcher->line, length) < 0) {
        /* stderr is gone: nothing can be reported. */
    }
}

/* Read what is there. Closes the descriptor at its end. */
static void launch_read_lines(struct launcher *launcher)
{
    char chunk[LINE_BYTES];

    while (launcher->fd[FD_LINE] >= 0) {
        const ssize_t count = read(launcher->fd[FD_LINE], chunk, sizeof(chunk));

        if (count < 0)
            return;
        if (count == 0) {
            launch_close_fd(launcher, FD_LINE);
            if (launcher->line_used > 0)
                launch_forward_line(launcher);
            return;
        }
        for (ssize_t i = 0; i < count; i++) {
            launcher->line[launcher->line_used++] = chunk[i];
            if (chunk[i] == '\n' || launcher->line_used == LINE_BYTES - 1)
                launch_forward_line(launcher);
        }
    }
}

/* A rank's failure in one sentence; a death that its launcher reported is one already. */
static void launch_explain(const struct launcher *launcher, int32_t rank,
                           const struct tess__ended *ended, char *text, size_t bytes)
{
    const struct tess__peers *peers = launcher->launch->peers;
    char begin[32];
    snprintf(begin, sizeof(begin), "rank %d (pid ", rank);
    if (strncmp(ended->why, begin, strlen(begin)) == 0)
        snprintf(text, bytes, "%s", ended->why);
    else
        snprintf(text, bytes, "rank %d failed, %s%s%s%s: %s", rank,
                 tess_status_text((enum tess_status)ended->status), peers != NULL ? " (host " : "",
                 peers != NULL ? tess__peers_host(peers, rank) : "", peers != NULL ? ")" : "",
                 ended->why[0] != '\0' ? ended->why : "see its log there");
}

/* How a rank ended that was started elsewhere. */
static void launch_log_failed(struct launcher *launcher, int32_t rank,
                              const struct tess__ended *ended, const char *text)
{
    if (launcher->error_logged || ended->status == TESS_ERR_ABORTED || rank == launcher->first)
        return;
    launch_clear_line(launcher);
    tess_fail((enum tess_status)ended->status, "%s", text);
    launcher->error_logged = true;
}

static void launch_take_end(struct launcher *launcher, const struct tess__message *message)
{
    struct tess__ended ended;
    char text[sizeof(ended.why) + 128];
    memcpy(&ended, message->payload, sizeof(ended));
    ended.why[sizeof(ended.why) - 1] = '\0'; /* it may have come from elsewhere */
    launcher->rank[message->rank].ended = true;
    if (ended.status == TESS_OK)
        return;
    launch_explain(launcher, message->rank, &ended, text, sizeof(text));
    if (launcher->launch->peers != NULL)
        launch_log_failed(launcher, message->rank, &ended, text);
    if (launcher->failed.status == TESS_OK)
        launcher->failed = ended;
    launch_end(launcher, (enum tess_status)ended.status, text);
}

static void launch_take_message(void *context, const struct tess__message *message)
{
    struct launcher *launcher = context;
    const struct tess__launch *launch = launcher->launch;
    enum tess_status status = TESS_OK;

    if (message->rank < 0 || message->rank >= launch->rank_count)
        return;
    if (message->kind == TESS__MESSAGE_STOP) { /* from elsewhere */
        memcpy(&launcher->stop, message->payload, sizeof(launcher->stop));
        launcher->stop.why[sizeof(launcher->stop.why) - 1] = '\0';
        return;
    }
    if (launch->peers != NULL && launcher->kill_s <= 0)
        status = tess__peers_send(launch->peers, message);
    if (message->kind == TESS__MESSAGE_ENDED) {
        launch_take_end(launcher, message);
    } else if (status == TESS_OK && launcher->kill_s <= 0 && launch->message != NULL) {
        status = launch->message(launch->context, message);
    }
    if (status != TESS_OK)
        launch_fail(launcher, status, "the launcher failed");
}

/* A pipe does not split messages of this size. */
static void launch_read_messages(struct launcher *launcher)
{
    struct tess__message message;
    ssize_t count = -1;

    while (launcher->fd[FD_MESSAGE] >= 0 &&
           (count = read(launcher->fd[FD_MESSAGE], &message, sizeof(message))) > 0)
        launch_take_message(launcher, &message);
    if (count == 0)
        launch_close_fd(launcher, FD_MESSAGE);
}

/* ---- signals and children -------------------------------------------------------------------- */

/* Take pending signals. Children are reaped by launch_reap, whatever SIGCHLD merged. */
static void launch_read_signals(struct launcher *launcher)
{
    struct signalfd_siginfo info;

    while (read(launcher->fd[FD_SIGNAL], &info, sizeof(info)) == (ssize_t)sizeof(info))
        if (info.ssi_signo == SIGUSR1)
            tess_world_request(launcher->world, TESS_WORLD_SAVE);
        else if (info.ssi_signo == SIGUSR2)
            launcher->launch->report(launcher->launch->context);
        else if (info.ssi_signo == SIGCHLD)
            launcher->child_changed = true;
        else
            launch_interrupt(launcher);
}

static bool launch_body_ended(const struct launcher *launcher, int32_t p)
{
    if (launcher->launch->mode != TESS_RANKS_THREADS)
        return launcher->rank[p].ended;
    for (int32_t r = 0; r < launcher->launch->rank_count; r++)
        if (!launcher->rank[r].ended)
            return false;
    return true;
}

/* A child is lost without a message: report which rank, how, and what it was doing. */
static void launch_report_death(struct launcher *launcher, int32_t p, pid_t pid, const char *how)
{
    const struct tess__launch *launch = launcher->launch;
    char who[192], host[128] = "", doing[256], text[640];

    if (launch->lost != NULL && !launcher->rank[p].lost)
        (*launch->lost)++;
    launcher->rank[p].lost = true;
    if (launch->mode == TESS_RANKS_THREADS && launch->rank_count > 1)
        snprintf(who, sizeof(who), "the process of ranks 0 to %d (pid %d)", launch->rank_count - 1,
                 (int)pid);
    else if (launch->peers != NULL && gethostname(host, sizeof(host) - 1) == 0)
        snprintf(who, sizeof(who), "rank %d (pid %d on %s)", p, (int)pid, host);
    else
        snprintf(who, sizeof(who), "rank %d (pid %d)", p, (int)pid);
    tess_board_describe(tess_world_board(launcher->world, p), launch->unit_name, launch->unit_count,
                        doing, sizeof(doing));
    snprintf(text, sizeof(text), "%s %s while %s", who, how, doing);
    if (!launcher->error_logged) {
        launch_clear_line(launcher);
        tess_fail(TESS_ERR_COMM, "%s%s", text,
                  launcher->alive_count > 0 ? "; ending the other ranks" : "");
        launcher->error_logged = true;
    }
    launch_end(launcher, TESS_ERR_COMM, text);
}

static void launch_note_stopped(struct launcher *launcher, int32_t p, double stopped_s)
{
    launcher->stopped_count += (stopped_s > 0) - (launcher->rank[p].stopped_s > 0);
    launcher->rank[p].stopped_s = stopped_s;
}

/* Has child p ended? Notes whether it is stopped. */
static bool launch_child_ended(struct launcher *launcher, int32_t p, int *wait_status)
{
    const pid_t pid = launcher->rank[p].pid;

    while (waitpid(pid, wait_status, WNOHANG | WUNTRACED | WCONTINUED) == pid) {
        const bool ended = !WIFSTOPPED(*wait_status) && !WIFCONTINUED(*wait_status);
        launch_note_stopped(launcher, p, WIFSTOPPED(*wait_status) ? tess_clock_s() : 0);
        if (ended)
            return true;
    }
    return false;
}

/* A process that has been stopped for too long is lost. It cannot end by itself. */
static void launch_check_stopped(struct launcher *launcher)
{
    const double limit_s = launcher->launch->stopped_s;

    for (int32_t p = 0; limit_s > 0 && launcher->stopped_count > 0; p++) {
        struct launch_rank *rank = &launcher->rank[p];
        char how[64];

        if (p == launcher->launch->rank_count)
            return;
        if (rank->stopped_s <= 0 || tess_clock_s() < rank->stopped_s + limit_s)
            continue;
        launch_note_stopped(launcher, p, 0);
        snprintf(how, sizeof(how), "has been stopped for %g s", limit_s);
        if (launcher->kill_s <= 0)
            launch_report_death(launcher, p, rank->pid, how);
        kill(rank->pid, SIGKILL);
    }
}

static void launch_reap_rank(struct launcher *launcher, int32_t p)
{
    const pid_t pid = launcher->rank[p].pid;
    int wait_status = 0;
    char how[160];

    if (pid <= 0 || !launch_child_ended(launcher, p, &wait_status))
        return;
    launcher->rank[p].pid = 0;
    launcher->alive_count--;
    /* Its last words come before the verdict. */
    launch_read_lines(launcher);
    launch_read_messages(launcher);
    if (launch_body_ended(launcher, p) && !WIFSIGNALED(wait_status))
        return;
    if (launcher->killed || launcher->interrupt_count > 0)
        return;
    tess__launch_explain_death(wait_status, launcher->oom_kills, how, sizeof(how));
    launch_report_death(launcher, p, pid, how);
}

/* The rank of a process; -1: this process has a child of its own that is none. */
static int32_t launch_find(const struct launcher *launcher, pid_t pid)
{
    for (int32_t p = 0; p < launcher->launch->rank_count; p++)
        if (launcher->rank[p].pid == pid)
            return p;
    return -1;
}

/*
 * All children that have changed. The kernel names them one by one, without reaping, so that no
 * rank is asked for that has nothing to say. A child that is no rank would hide those behind it:
 * then each rank is asked.
 */
static void launch_reap(struct launcher *launcher)
{
    const int what = WEXITED | WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT;
    siginfo_t child = {.si_pid = 0};

    launcher->child_changed = false;
    while (launcher->alive_count > 0 && waitid(P_ALL, 0, &child, what) == 0 && child.si_pid > 0) {
        const int32_t p = launch_find(launcher, child.si_pid);
        for (int32_t r = 0; r < launcher->launch->rank_count && p < 0; r++)
            launch_reap_rank(launcher, r);
        if (p < 0)
            return;
        launch_reap_rank(launcher, p);
        child.si_pid = 0;
    }
}

/*
 * Messages of other launchers. One that is lost may have ended because of a rank that died here: a
 * process that is killed closes its connections before its parent is notified. That rank is the
 * better news.
 */
static void launch_read_peers(struct launcher *launcher)
{
    struct tess__peers *peers = launcher->launch->peers;

    if (peers == NULL || launcher->kill_s > 0)
        return;
    enum tess_status status = tess__peers_read(peers, launcher, launch_take_message);
    if (launcher->kill_s > 0 || (status == TESS_OK && launcher->stop.status == TESS_OK))
        return;
    nanosleep(&(struct timespec){.tv_nsec = TOGETHER_MS * 1000000L}, NULL);
    launch_reap(launcher);
    if (launcher->stop.status != TESS_OK) {
        launch_clear_line(launcher);
        status = launcher->error_logged
                     ? TESS_ERR_ABORTED
                     : tess_fail(TESS_ERR_ABORTED, "stopped because %s", launcher->stop.why);
    }
    launch_fail(launcher, status, tess_log_last_error());
}

static void launch_check_limit(struct launcher *launcher)
{
    if (launcher->kill_s <= 0 || launcher->killed || launcher->alive_count == 0 ||
        tess_clock_s() < launcher->kill_s)
        return;
    launch_clear_line(launcher);
    tess_log(TESS_LOG_WARN, "%d process%s did not end within %g s and %s killed",
             launcher->alive_count, launcher->alive_count > 1 ? "es" : "", END_LIMIT_S,
             launcher->alive_count > 1 ? "were" : "was");
    launch_kill(launcher);
}

/* Late ticks are not made up for. */
static void launch_tick(struct launcher *launcher)
{
    const struct tess__launch *launch = launcher->launch;

    if (launch->tick == NULL || launcher->kill_s > 0 || tess_clock_s() < launcher->tick_s)
        return;
    launcher->tick_s = tess_clock_s() + launch->tick_s;
    launch->tick(launch->context);
}

/* Until whatever is due first; -1: nothing is. */
static int launch_timeout_ms(const struct launcher *launcher)
{
    const double limit_s = launcher->launch->stopped_s;
    double due_s = INFINITY;

    if (launcher->kill_s > 0 && !launcher->killed)
        due_s = launcher->kill_s;
    else if (launcher->kill_s <= 0 && launcher->launch->tick != NULL)
        due_s = launcher->tick_s;
    if (limit_s > 0 && launcher->stopped_count > 0)
        for (int32_t p = 0; p < launcher->launch->rank_count; p++)
            if (launcher->rank[p].stopped_s > 0)
                due_s = fmin(due_s, launcher->rank[p].stopped_s + limit_s);
    const double left_s = due_s - tess_clock_s();
    return isinf(due_s) ? -1 : left_s > 0 ? (int)(left_s * 1e3) + 1 : 0;
}

/* Ranks of this launcher, and those elsewhere whose end is not received. */
static bool launch_goes_on(const struct launcher *launcher)
{
    const struct tess__peers *peers = launcher->launch->peers;

    return launcher->alive_count > 0 ||
           (peers != NULL && launcher->kill_s <= 0 && !tess__peers_ended(peers));
}

static void launch_loop(struct launcher *launcher)
{
    while (launch_goes_on(launcher)) {
        struct pollfd *watch = launcher->watch;
        nfds_t count = FD_READ_COUNT;

        for (int i = 0; i < FD_READ_COUNT; i++)
            watch[i] = (struct pollfd){.fd = launcher->fd[i], .events = POLLIN};
        if (launcher->launch->peers != NULL && launcher->kill_s <= 0)
            count += (nfds_t)tess__peers_watch(launcher->launch->peers, watch + count);
        if (poll(watch, count, launch_timeout_ms(launcher)) < 0 && errno != EINTR)
            launch_kill(launcher); /* cannot watch them: do not leave them behind */
        launch_read_signals(launcher);
        launch_read_lines(launcher);
        launch_read_messages(launcher);
        launch_read_peers(launcher);
        launch_tick(launcher);
        if (launcher->child_changed)
            launch_reap(launcher);
        launch_check_stopped(launcher);
        launch_check_limit(launcher);
    }
    launch_read_lines(launcher);
    launch_read_messages(launcher);
    launch_read_peers(launcher);
}

/* ---- starting -------------------------------------------------------------------------------- */

static enum tess_status launch_open(struct launcher *launcher)
{
    const struct tess__launch *launch = launcher->launch;
    const size_t ranks = (size_t)launch->rank_count;
    sigset_t mask;

    launcher->rank = calloc(ranks, sizeof(*launcher->rank));
    launcher->watch =
        calloc(FD_READ_COUNT + (launch->peers != NULL ? ranks : 0), sizeof(*launcher->watch));
    launcher->oom_kills = tess__launch_oom_kills();
    tess__launch_raise_files();
    sigemptyset(&mask);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGCHLD);
    if (launch->saves)
        sigaddset(&mask, SIGUSR1);
    if (launch->report != NULL)
        sigaddset(&mask, SIGUSR2);
    sigprocmask(SIG_BLOCK, &mask, &launcher->old_mask);
    if (launcher->rank == NULL || launcher->watch == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to start %d ranks", launch->rank_count);
    launcher->fd[FD_SIGNAL] = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (launcher->fd[FD_SIGNAL] < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot watch signals: %s%s", strerror(errno),
                  tess__launch_files_hint());
    TESS_TRY(tess__launch_open_pipe(&launcher->fd[FD_MESSAGE], &launcher->fd[FD_MESSAGE_WRITE]));
    TESS_TRY(tess__launch_open_pipe(&launcher->fd[FD_LINE], &launcher->fd[FD_LINE_WRITE]));
    TESS_TRY(tess_world_open(launch->rank_count, launch->mode, &launcher->world));
    tess_flight_boards(launch->flight, launcher->world);
    return TESS_OK;
}

/* In a rank: its launcher reports of all of them. */
static void launch_pass_on(int number)
{
    kill(getppid(), number);
}

/* In the child. Requests to end are the launcher's to handle, also where the whole process group
 * gets them (Ctrl-C, mpirun, timeout); a launcher that is killed takes its ranks along. */
static _Noreturn void launch_child(struct launcher *launcher, int32_t p, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    if (launcher->launch->report != NULL)
        signal(SIGUSR2, launch_pass_on);
    sigprocmask(SIG_SETMASK, &launcher->old_mask, NULL);
    dup2(launcher->fd[FD_LINE_WRITE], STDERR_FILENO);
    for (int i = 0; i < FD_MESSAGE_WRITE; i++)
        launch_close_fd(launcher, i);
    const int exit_code =
        tess__rank_process(launcher->launch, launcher->world, p, launcher->fd[FD_MESSAGE_WRITE]);
    fflush(stdout);
    _exit(exit_code);
}

static enum tess_status launch_fork(struct launcher *launcher, int32_t first, int32_t end)
{
    const pid_t parent = getpid();

    fflush(stdout);
    fflush(stderr);
    for (int32_t p = first; p < end; p++) {
        const pid_t pid = fork();
        if (pid < 0)
            TESS_FAIL(TESS_ERR_MEMORY, "cannot start rank %d of %d: fork: %s%s", p,
                      launcher->launch->rank_count, strerror(errno),
                      errno == EAGAIN ? ": raise the limit of processes (ulimit -u, or pids.max of "
                                        "the control group), or give fewer --ranks"
                                      : "");
        if (pid == 0)
            launch_child(launcher, p, parent);
        launcher->rank[p].pid = pid;
        launcher->alive_count++;
    }
    return TESS_OK;
}

static enum tess_status launch_start(struct launcher *launcher)
{
    const struct tess__launch *launch = launcher->launch;
    const bool alone = launch->peers != NULL;
    const bool threads = launch->mode == TESS_RANKS_THREADS;
    const int32_t first = alone ? launch->peers->env.rank : 0;
    const int32_t count = alone ? 1 : launch->rank_count;
    char(*cores)[TESS__CORES_BYTES] = calloc((size_t)count, sizeof(*cores));

    launcher->first = first;
    if (cores == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to start %d ranks", count);
    /* Before they are forked: what is learned of this machine on the way, they need not learn. */
    for (int32_t i = 0; i < count; i++)
        tess__rank_cores(launch, first + i, cores[i]);
    const enum tess_status status = launch_fork(launcher, first, first + (threads ? 1 : count));
    for (int32_t i = 0; i < count && status == TESS_OK && launch->started != NULL; i++)
        launch->started(launch->context, first + i,
                        (int)launcher->rank[first + (threads ? 0 : i)].pid, cores[i],
                        tess_world_board(launcher->world, first + i));
    free(cores);
    return status;
}

/* No rank's message has come: where one failed elsewhere mpirun ends all; and one that waits for a
 * device for ever is killed, when another thread of it has sent the reason. */
static void launch_conclude(const struct launcher *launcher, enum tess_status status)
{
    char reason[600];
    int32_t who;

    if (launcher->failed.why[0] != '\0')
        tess_fail(status, "%s", launcher->failed.why);
    else if (tess_world_aborted(launcher->world, &who, reason, sizeof(reason)))
        tess_fail(status, "%s", reason);
    else
        tess_fail(status, "a rank failed without a message");
}

enum tess_status tess__launch_run(const struct tess__launch *launch)
{
    struct launcher launcher = {.launch = launch, .fd = {-1, -1, -1, -1, -1}};
    enum tess_status status;

    TESS_TRY_GOTO(status, close_launcher, launch_open(&launcher));
    status = launch_start(&launcher);
    launch_close_fd(&launcher, FD_MESSAGE_WRITE);
    launch_close_fd(&launcher, FD_LINE_WRITE);
    if (status != TESS_OK)
        launch_end(&launcher, status, tess_log_last_error());
    launch_loop(&launcher);
    status = launcher.status;
    if (status == TESS_OK && launcher.killed)
        status = TESS_ERR_COMM;
    if (status != TESS_OK && !launcher.error_logged)
        launch_conclude(&launcher, status);

close_launcher:
    for (int i = 0; i < FD_COUNT; i++)
        launch_close_fd(&launcher, i);
    if (launcher.world != NULL)
        tess_world_close(launcher.world);
    free(launcher.rank);
    free(launcher.watch);
    sigprocmask(SIG_SETMASK, &launcher.old_mask, NULL);
    return status;
}
