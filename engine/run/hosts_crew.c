/* The processes of one host: started, signalled, reaped. Each is the launcher of one rank. */
#include "run/copies.h"
#include "run/hosts_room.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

static const int crew_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD};

int32_t tess__hosts_slots(const struct tess__hosts *hosts)
{
    return hosts->slots > 0 ? hosts->slots : hosts->restart.ranks / hosts->count;
}

int32_t tess__hosts_room(const struct tess__hosts *hosts)
{
    return hosts->count + HOSTS_SPARE;
}

/* All that grows with ranks and hosts. */
static enum tess_status crew_allocate(struct hosts_crew *crew)
{
    crew->slots = tess__hosts_slots(crew->hosts);
    crew->watch_room = 1 + BOOT_LISTEN_MAX + TESS_BOOT_FAN;
    crew->pid = calloc((size_t)crew->slots, sizeof(*crew->pid));
    crew->watch = calloc((size_t)crew->watch_room, sizeof(*crew->watch));
    crew->history = mmap(NULL, (size_t)crew->slots * sizeof(*crew->history), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (crew->history == MAP_FAILED)
        crew->history = NULL;
    if (crew->pid == NULL || crew->watch == NULL || crew->history == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to supervise the training");
    return TESS_OK;
}

enum tess_status tess__crew_open(struct hosts_crew *crew, const struct tess__hosts *hosts)
{
    sigset_t blocked;
    *crew = (struct hosts_crew){.hosts = hosts};
    if (hosts->restart.copies[0] != '\0') /* before signals are blocked, which it has too */
        TESS_TRY(tess__hosts_mirror_open(&crew->mirror, hosts->restart.copies, hosts->address,
                                         hosts->timeout_s));
    TESS_TRY(crew_allocate(crew));
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigemptyset(&blocked);
    for (size_t i = 0; i < sizeof(crew_signals) / sizeof(crew_signals[0]); i++)
        sigaddset(&blocked, crew_signals[i]);
    sigprocmask(SIG_BLOCK, &blocked, &crew->mask);
    const int fd = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot watch signals: %s", strerror(errno));
    tess__crew_watch(crew, fd);
    return TESS_OK;
}

void tess__crew_close(struct hosts_crew *crew)
{
    tess__hosts_mirror_close(&crew->mirror);
    tess__copies_remove(crew->hosts->restart.copies);
    if (crew->watched > 0) {
        close(crew->watch[0].fd);
        sigprocmask(SIG_SETMASK, &crew->mask, NULL);
    }
    if (crew->history != NULL)
        munmap(crew->history, (size_t)crew->slots * sizeof(*crew->history));
    free(crew->pid);
    free(crew->watch);
}

void tess__crew_secret(const struct hosts_crew *crew, const struct hosts_order *order,
                       struct tess_secret *secret)
{
    tess_secret_derive(&crew->hosts->secret, order->key, sizeof(order->key), secret);
}

static bool crew_set(const char *name, const char *text, int32_t number)
{
    char digits[16];
    snprintf(digits, sizeof(digits), "%d", number);
    return setenv(name, text != NULL ? text : digits, 1) == 0;
}

/* The first process of a host finds the mirror that takes the host's copies. */
static bool crew_set_mirror(const struct hosts_order *order, const struct tess_secret *secret,
                            int32_t k)
{
    struct tess__mirror partner = {.port = order->partner_port, .attempt = order->attempt};
    char text[TESS__MIRROR_TEXT];
    if (k > 0 || order->partner_port == 0)
        return unsetenv(TESS_BOOT_MIRROR) == 0;
    memcpy(partner.address, order->partner, sizeof(partner.address));
    partner.secret = *secret;
    tess__mirror_text(&partner, text);
    return crew_set(TESS_BOOT_MIRROR, text, 0);
}

/* The child's life: it ends when the supervisor does, after a checkpoint. */
static _Noreturn void crew_child(const struct hosts_crew *crew, const struct hosts_order *order,
                                 int32_t k, pid_t supervisor)
{
    const struct tess__restart *restart = &crew->hosts->restart;
    char meeting[TESS_BOOT_ADDRESS_BYTES + 32], text[TESS_SECRET_TEXT_BYTES];
    struct tess_secret secret;
    tess__crew_secret(crew, order, &secret);
    tess_secret_text(&secret, text);
    snprintf(meeting, sizeof(meeting), "%s:%d/%d", crew->hosts->address, crew->hosts->port,
             order->attempt);
    for (int32_t i = 0; i < crew->watched; i++)
        close(crew->watch[i].fd);
    sigprocmask(SIG_SETMASK, &crew->mask, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != supervisor)
        _exit(tess_status_exit_code(TESS_ERR_INTERRUPTED));
    if (!crew_set("RANK", NULL, order->first + k) || !crew_set("WORLD_SIZE", NULL, order->ranks) ||
        !crew_set("LOCAL_RANK", NULL, k) || !crew_set("LOCAL_WORLD_SIZE", NULL, order->count) ||
        !crew_set("MASTER_ADDR", crew->hosts->address, 0) ||
        !crew_set("MASTER_PORT", NULL, order->port) || !crew_set(TESS_BOOT_MEETING, meeting, 0) ||
        !crew_set(TESS_SECRET, text, 0) || !crew_set_mirror(order, &secret, k))
        exit(tess_status_exit_code(tess_fail(TESS_ERR_MEMORY, "no memory for a rank's place")));
    const int code = restart->attempt(restart->context, order->begin, &crew->history[k]);
    if (getppid() != supervisor) /* which would have done it */
        tess__copies_remove(restart->copies);
    exit(code);
}

void tess__crew_kill(const struct hosts_crew *crew, int number)
{
    for (int32_t k = 0; k < crew->count; k++)
        if (crew->pid[k] > 0)
            kill(crew->pid[k], number);
}

static void crew_clear(struct hosts_crew *crew)
{
    crew->news = (struct hosts_news){.kind = HOSTS_ENDED, .done = true, .may_help = true};
    crew->count = crew->alive = 0;
    fflush(NULL); /* or the children write it again */
}

bool tess__crew_start(struct hosts_crew *crew, const struct hosts_order *order)
{
    const pid_t own = getpid();
    crew_clear(crew);
    if (crew->mirror.pid > 0) {
        struct tess_secret secret;
        tess__crew_secret(crew, order, &secret);
        tess__hosts_mirror_admit(&crew->mirror, &secret, order->attempt);
        tess__copies_keep(crew->hosts->restart.copies, order->step);
    }
    for (int32_t k = 0; k < order->count; k++) {
        struct tess__history *history = &crew->history[k];
        if (k > 0)
            *history = (struct tess__history){.restarts = 0};
        history->status = TESS_OK;
        history->met = false;
        history->renumber = TESS__RENUMBER_NO;
        history->again = true;
        history->lost_ranks = 0;
        history->ranks = order->ranks;
        memcpy(history->layout, order->layout, sizeof(history->layout));
        const pid_t pid = fork();
        if (pid == 0)
            crew_child(crew, order, k, own);
        if (pid < 0) {
            crew->news.done = crew->news.may_help = false;
            crew->news.code = tess_status_exit_code(
                tess_fail(TESS_ERR_MEMORY, "cannot start a rank: %s", strerror(errno)));
            tess__crew_kill(crew, SIGKILL);
            break;
        }
        crew->pid[k] = pid;
        crew->count = ++crew->alive;
    }
    return crew->alive > 0;
}

static void crew_end_gather(int number)
{
    (void)number;
    _exit(tess_status_exit_code(TESS_ERR_INTERRUPTED));
}

bool tess__crew_gather(struct hosts_crew *crew, const struct hosts_order *order,
                       const struct hosts_source *source)
{
    const pid_t own = getpid();
    struct tess_secret secret;
    tess__crew_secret(crew, order, &secret);
    crew_clear(crew);
    crew->pid[0] = fork();
    if (crew->pid[0] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGINT, crew_end_gather);
        signal(SIGTERM, crew_end_gather);
        sigprocmask(SIG_SETMASK, &crew->mask, NULL);
        for (int32_t i = 0; i < crew->watched; i++)
            close(crew->watch[i].fd);
        _exit(getppid() != own ? 1
                               : tess__gather_run(crew->hosts->restart.copies, order, source,
                                                  &secret, crew->hosts->timeout_s));
    }
    crew->count = crew->alive = crew->pid[0] > 0;
    crew->news.done = crew->alive > 0;
    return crew->alive > 0;
}

/* A process has ended: what does that mean for the attempt? */
static void crew_note(struct hosts_crew *crew, int32_t k, int wait_status)
{
    struct hosts_news *news = &crew->news;
    news->lost += crew->history[k].lost_ranks;
    news->unmet = news->unmet || (wait_status != 0 && !crew->history[k].met);
    if (WIFSIGNALED(wait_status)) {
        tess_log(TESS_LOG_WARN, "the launcher (pid %d) of a rank was killed by signal %d (%s)",
                 (int)crew->pid[k], WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
        news->done = false;
        news->code = news->code != 0 ? news->code : 128 + WTERMSIG(wait_status);
    } else if (WEXITSTATUS(wait_status) != 0) {
        const bool may_help = tess__restart_may_help(crew->history[k].status);
        news->done = false;
        if (news->code == 0 || (news->may_help && !may_help))
            news->code = WEXITSTATUS(wait_status);
        news->may_help = news->may_help && may_help;
    }
}

static bool crew_reap(struct hosts_crew *crew)
{
    int wait_status;
    const int32_t before = crew->alive;
    for (int32_t k = 0; k < crew->count; k++) {
        if (crew->pid[k] == 0 || waitpid(crew->pid[k], &wait_status, WNOHANG) != crew->pid[k])
            continue;
        crew_note(crew, k, wait_status);
        crew->pid[k] = 0;
        crew->alive--;
    }
    if (before == 0 || crew->alive > 0)
        return false;
    tess__restart_drain();
    if (crew->mirror.pid > 0)
        tess__gather_list(crew->hosts->restart.copies, &crew->news.copies);
    return true;
}

void tess__crew_watch(struct hosts_crew *crew, int fd)
{
    if (crew->watched == crew->watch_room) {
        const int32_t room = 2 * crew->watch_room;
        struct pollfd *grown = realloc(crew->watch, (size_t)room * sizeof(*grown));
        if (grown == NULL) {
            tess_log(TESS_LOG_ERROR, "no memory to watch a connection");
            return;
        }
        crew->watch = grown;
        crew->watch_room = room;
    }
    crew->watch[crew->watched++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

void tess__crew_unwatch(struct hosts_crew *crew, int fd)
{
    for (int32_t i = 0; i < crew->watched; i++)
        if (crew->watch[i].fd == fd)
            crew->watch[i--] = crew->watch[--crew->watched];
}

/* Hosts are asked for in the order in which they came: each is mostly the one after the last. */
bool tess__crew_is_ready(struct hosts_crew *crew, int fd)
{
    for (int32_t n = 0; n < crew->watched; n++) {
        const int32_t i = (crew->asked + n) % crew->watched;
        if (crew->watch[i].fd != fd)
            continue;
        crew->asked = i + 1;
        return crew->watch[i].revents != 0;
    }
    return false;
}

static void crew_take_signal(struct hosts_crew *crew, const struct signalfd_siginfo *info,
                             struct hosts_wish *wish)
{
    const int number = (int)info->ssi_signo;
    if (number == SIGCHLD)
        return;
    if (number != SIGUSR1 && number != SIGUSR2) {
        wish->ends = !crew->ends;
        wish->again = crew->ends;
        crew->ends = true;
    }
    /* A terminal sends Ctrl-C to the processes as well, and Slurm every signal: twice is once more
     * to kill. */
    if (info->ssi_code != SI_KERNEL && !crew->hosts->signalled)
        tess__crew_kill(crew, number);
}

struct hosts_wish tess__crew_wait(struct hosts_crew *crew, int limit_ms)
{
    struct hosts_wish wish = {false, false, false};
    struct signalfd_siginfo info;
    for (int32_t i = 0; i < crew->watched; i++)
        crew->watch[i].revents = 0;
    (void)poll(crew->watch, (nfds_t)crew->watched, limit_ms);
    while (read(crew->watch[0].fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        crew_take_signal(crew, &info, &wish);
    wish.ended = crew_reap(crew);
    return wish;
}
