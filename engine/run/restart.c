/* The supervisor: starting attempts, forwarding signals, and judging how an attempt ended. */
#include "run/restart.h"

#include "base/clock.h"
#include "run/copies.h"
#include "run/status.h"
#include "state/checkpoint.h"
#include "tessera/check.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RESTART_DRAIN_S 10.0

static const int restart_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD};

static int64_t restart_newest_in(const char *folder)
{
    int64_t *step = NULL, newest = -1;
    int32_t count = 0;
    if (folder[0] != '\0' && tess_checkpoint_list(folder, &step, &count) == TESS_OK && count > 0)
        newest = step[count - 1];
    free(step);
    return newest;
}

int64_t tess__restart_saved(const struct tess__restart *restart)
{
    return restart_newest_in(restart->run);
}

/* The same of checkpoints and copies. */
static int64_t restart_newest(const struct tess__restart *restart)
{
    const int64_t saved = tess__restart_saved(restart);
    const int64_t copy = restart_newest_in(restart->copies);
    return copy > saved ? copy : saved;
}

/* The child's life: it ends when the supervisor does, after a checkpoint. */
static int restart_child(const struct tess__restart *restart, enum tess__attempt begin,
                         struct tess__history *history, const sigset_t *mask, pid_t supervisor)
{
    sigprocmask(SIG_SETMASK, mask, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != supervisor)
        return tess_status_exit_code(TESS_ERR_INTERRUPTED);
    const int code = restart->attempt(restart->context, begin, history);
    if (getppid() != supervisor) /* which would have done it */
        tess__copies_remove(restart->copies);
    return code;
}

/*
 * Wait for the attempt and forward signals. A terminal sends Ctrl-C to the whole process group, the
 * attempt included, so what comes from the kernel is not forwarded, nor what Slurm sends. Returns
 * the wait status.
 */
static int restart_wait(const struct tess__restart *restart, pid_t pid, bool *ends)
{
    sigset_t wanted;
    int wait_status = 0;
    sigemptyset(&wanted);
    for (size_t i = 0; i < sizeof(restart_signals) / sizeof(restart_signals[0]); i++)
        sigaddset(&wanted, restart_signals[i]);
    for (;;) {
        siginfo_t info;
        const int number = sigwaitinfo(&wanted, &info);
        if (number > 0 && number != SIGCHLD) {
            *ends = *ends || (number != SIGUSR1 && number != SIGUSR2);
            if (info.si_code != SI_KERNEL && !restart->signalled)
                kill(pid, number);
        }
        if (waitpid(pid, &wait_status, WNOHANG) == pid)
            return wait_status;
    }
}

void tess__restart_drain(void)
{
    const double limit_s = tess_clock_s() + RESTART_DRAIN_S;
    pid_t pid;
    while ((pid = waitpid(0, NULL, WNOHANG)) >= 0 && tess_clock_s() < limit_s)
        if (pid == 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* A launcher that was killed has not reported what its ranks did. */
static void restart_report(const char *run, pid_t pid, int number)
{
    char why[128];
    snprintf(why, sizeof(why), "the launcher (pid %d) was killed by signal %d (%s)", (int)pid,
             number, strsignal(number));
    tess_log(TESS_LOG_WARN, "%s", why);
    tess__status_report_failure(run, why);
}

bool tess__restart_may_help(int32_t status)
{
    switch ((enum tess_status)status) {
    case TESS_ERR_COMM:
    case TESS_ERR_TIMEOUT:
    case TESS_ERR_ABORTED:
    case TESS_ERR_DEVICE:
        return true;
    default:
        return false;
    }
}

/* Are there still as many ranks as the run needs? */
static bool restart_has_ranks(const struct tess__restart *restart,
                              const struct tess__history *history)
{
    const int32_t left = history->ranks - history->lost_ranks;
    if (restart->least == 0 || left >= restart->least)
        return true;
    tess_log(TESS_LOG_WARN, "no restart: %d of %d ranks %s left, and --min-ranks is %d", left,
             history->ranks, left == 1 ? "is" : "are", restart->least);
    return false;
}

bool tess__restart_renumbers(const struct tess__history *history)
{
    return history->renumber == TESS__RENUMBER_AGREED && history->status == TESS_OK;
}

bool tess__restart_is_left(const struct tess__restart *restart, const struct tess__history *history)
{
    if (history->restarts < restart->restarts)
        return true;
    if (restart->restarts > 0)
        tess_log(restart->quiet ? TESS_LOG_DEBUG : TESS_LOG_WARN,
                 "no restart: --restarts %" PRId64 " is used up%s", restart->restarts,
                 restart_newest(restart) < 0
                     ? ", and there is no checkpoint"
                     : "; the same command with --resume goes on from the newest checkpoint");
    return false;
}

enum tess__attempt tess__restart_next(const struct tess__restart *restart, bool counts,
                                      struct tess__history *history)
{
    const int64_t newest = restart_newest(restart), from = newest > 0 ? newest : 0;
    const int64_t lost = history->step > from ? history->step - from : 0;
    char what[64] = "continues";
    history->restarts += counts;
    history->renumbered += tess__restart_renumbers(history);
    history->renumber = TESS__RENUMBER_NO;
    history->lost_steps += lost;
    history->status = TESS_OK;
    history->step = from;
    if (counts)
        snprintf(what, sizeof(what), "restart %" PRId64 " of %" PRId64 ": continues",
                 history->restarts, restart->restarts);
    tess_log(restart->quiet ? TESS_LOG_DEBUG
             : counts       ? TESS_LOG_WARN
                            : TESS_LOG_INFO,
             "%s after step %" PRId64 "%s%" PRId64 " step%s to do again", what, from,
             newest < 0 ? ", as there is no checkpoint; " : "; ", lost, lost == 1 ? "" : "s");
    return newest < 0 ? TESS__ATTEMPT_OVERWRITE : TESS__ATTEMPT_RESUME;
}

static int restart_loop(const struct tess__restart *restart, struct tess__history *history,
                        const sigset_t *mask)
{
    enum tess__attempt begin = TESS__ATTEMPT_FIRST;
    const pid_t own = getpid();
    bool ends = false;
    for (;;) {
        fflush(NULL); /* or the child writes it again */
        const pid_t pid = fork();
        if (pid < 0)
            return tess_status_exit_code(
                tess_fail(TESS_ERR_MEMORY, "cannot start the training: %s", strerror(errno)));
        if (pid == 0)
            exit(restart_child(restart, begin, history, mask, own));
        const int wait_status = restart_wait(restart, pid, &ends);
        tess__restart_drain();
        if (WIFEXITED(wait_status) && tess__restart_renumbers(history)) {
            if (ends)
                return tess_status_exit_code(TESS_ERR_INTERRUPTED);
            begin = tess__restart_next(restart, false, history);
            continue;
        }
        if (WIFSIGNALED(wait_status))
            restart_report(restart->run, pid, WTERMSIG(wait_status));
        const bool may = !ends &&
                         (WIFSIGNALED(wait_status) /* the launcher itself */ ||
                          tess__restart_may_help(history->status)) &&
                         tess__restart_is_left(restart, history);
        if (!may || !restart_has_ranks(restart, history))
            return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status)
                                            : WEXITSTATUS(wait_status);
        begin = tess__restart_next(restart, true, history);
    }
}

int tess__restart_run(const struct tess__restart *restart)
{
    sigset_t blocked, mask;
    struct tess__history *history =
        mmap(NULL, sizeof(*history), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (history == MAP_FAILED)
        return tess_status_exit_code(
            tess_fail(TESS_ERR_MEMORY, "no memory to supervise the training"));
    history->ranks = restart->ranks;
    history->again = restart->restarts > 0;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigemptyset(&blocked);
    for (size_t i = 0; i < sizeof(restart_signals) / sizeof(restart_signals[0]); i++)
        sigaddset(&blocked, restart_signals[i]);
    sigprocmask(SIG_BLOCK, &blocked, &mask);
    const int code = restart_loop(restart, history, &mask);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    munmap(history, sizeof(*history));
    tess__copies_remove(restart->copies);
    return code;
}
