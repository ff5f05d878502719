/* The process: takes connections of those who have the secret, and serves each in a child of its
 * own.
 */
#include "run/hosts_mirror.h"

#include "base/clock.h"
#include "run/copies.h"
#include "state/checkpoint.h"
#include "tessera/check.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* In memory that the supervisor shares with its mirror. */
struct hosts_mirror_pass {
    struct tess_secret secret;
    _Atomic int32_t attempt; /* 0: it serves nobody yet; else the attempt's number and one */
};

/* The mirror's own. */
struct mirror {
    const char *folder; /* of this host's copies */
    char replica[TESS__COPIES_PATH];
    double silent_s;
    const struct hosts_mirror_pass *pass;
    struct boot_door door;
};

/* ---- a connection ---------------------------------------------------------------------------- */

struct mirror_guest {
    const struct mirror *mirror;
    int fd;
    int32_t attempt;
};

static bool mirror_answer(const struct mirror_guest *guest, bool done)
{
    const int32_t failed = !done;
    return tess__boot_send(guest->fd, &failed, sizeof(failed),
                           tess_clock_s() + guest->mirror->silent_s, NULL, 0) &&
           done;
}

static bool mirror_exists(const char *run, int64_t step, char path[TESS_CHECKPOINT_PATH])
{
    return step >= 0 && tess_checkpoint_path(run, step, false, path) == TESS_OK &&
           access(path, F_OK) == 0;
}

/*
 * The newest complete replica stays until this one is complete. The one before is removed now, and
 * no earlier: a host begins to push only when all hosts have both their own part of the step before
 * and the replica of another's. So whichever host is lost, and whenever, there is a step of which
 * the hosts that are left have all parts.
 */
static bool mirror_take(const struct mirror_guest *guest, const struct tess__mirror_ask *ask)
{
    const struct mirror *mirror = guest->mirror;
    char part[TESS_CHECKPOINT_PATH], path[TESS_CHECKPOINT_PATH], why[BOOT_WHY_BYTES] = "";
    bool done = ask->step >= 0 && !mirror_exists(mirror->replica, ask->step, path) &&
                tess_checkpoint_path(mirror->replica, ask->step, true, part) == TESS_OK &&
                tess_checkpoint_prune(mirror->replica, 1) == TESS_OK;
    if (!done)
        return false;
    tess_checkpoint_drop(mirror->replica, ask->step);
    done = tess_file_make_folders(part, "the other host's copy") == TESS_OK &&
           tess__mirror_receive_files(guest->fd, part, mirror->silent_s, why, sizeof(why)) &&
           guest->attempt == mirror->pass->attempt && rename(part, path) == 0;
    if (!done)
        tess_checkpoint_drop(mirror->replica, ask->step);
    return mirror_answer(guest, done);
}

static bool mirror_give(const struct mirror_guest *guest, const struct tess__mirror_ask *ask)
{
    const struct mirror *mirror = guest->mirror;
    char path[TESS_CHECKPOINT_PATH], why[BOOT_WHY_BYTES];
    return mirror_answer(guest, mirror_exists(ask->replica ? mirror->replica : mirror->folder,
                                              ask->step, path)) &&
           tess__mirror_send_files(guest->fd, path, mirror->silent_s, why, sizeof(why));
}

/* A training may take as long as it likes between two copies: its end closes the connection. */
static void mirror_serve(const struct mirror_guest *guest)
{
    struct tess__mirror_ask ask;
    bool goes_on = true;
    tess__boot_keep_alive(guest->fd, 2 * guest->mirror->silent_s);
    while (goes_on && tess__boot_receive(guest->fd, &ask, sizeof(ask), HUGE_VAL, NULL, 0))
        goes_on = ask.verb == TESS__MIRROR_PUSH    ? mirror_take(guest, &ask)
                  : ask.verb == TESS__MIRROR_FETCH ? mirror_give(guest, &ask)
                                                   : false;
}

/* A greeting has come; see boot_door.h. */
static bool mirror_greet(void *context, int fd, const unsigned char *bytes)
{
    struct mirror *mirror = context;
    const pid_t own = getpid();
    struct tess__mirror_hello hello;
    _Static_assert(sizeof(hello) == BOOT_HELLO_BYTES, "the greeting that is read");
    memcpy(&hello, bytes, sizeof(hello));
    if (mirror->pass->attempt == 0 ||
        memcmp(hello.magic, TESS__MIRROR_MAGIC, sizeof(hello.magic)) != 0)
        return false;
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const struct mirror_guest guest = {mirror, fd, hello.attempt + 1};
        for (int i = 0; i < mirror->door.pending_count; i++)
            if (mirror->door.pending[i].fd != fd)
                close(mirror->door.pending[i].fd);
        tess__boot_unlisten(&mirror->door.listener);
        if (getppid() == own)
            mirror_serve(&guest);
        _exit(0);
    }
    close(fd);
    return true;
}

/* ---- the process ----------------------------------------------------------------------------- */

static _Noreturn void mirror_main(struct mirror *mirror, pid_t supervisor)
{
    /* Of a group of its own: what a terminal sends is for the supervisor, and what the supervisor
     * waits for are the ranks. */
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGCHLD, SIG_IGN); /* its children need not be waited for */
    if (getppid() != supervisor)
        _exit(0);
    for (;;)
        tess__boot_door_look(&mirror->door);
}

enum tess_status tess__hosts_mirror_open(struct hosts_mirror *mirror, const char *folder,
                                         const char *address, double timeout_s)
{
    static struct mirror own;
    const pid_t supervisor = getpid();
    own = (struct mirror){.folder = folder, .silent_s = timeout_s / 2};
    own.door = (struct boot_door){.greet = mirror_greet, .context = &own};
    tess__copies_replica(folder, own.replica);
    mirror->pass = mmap(NULL, sizeof(*mirror->pass), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mirror->pass == MAP_FAILED)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for other hosts' copies");
    own.pass = mirror->pass;
    own.door.secret = &mirror->pass->secret;
    const int error = tess__boot_try_listen(address, 0, &own.door.listener);
    if (error != 0)
        TESS_FAIL(TESS_ERR_COMM, "no port for other hosts' copies: %s", strerror(error));
    mirror->port = tess__boot_port(&own.door.listener);
    fflush(NULL);
    mirror->pid = fork();
    if (mirror->pid == 0)
        mirror_main(&own, supervisor);
    tess__boot_unlisten(&own.door.listener);
    if (mirror->pid < 0)
        TESS_FAIL(TESS_ERR_MEMORY, "no process for other hosts' copies: %s", strerror(errno));
    setpgid(mirror->pid, mirror->pid); /* both sides: whichever is first */
    return TESS_OK;
}

void tess__hosts_mirror_close(struct hosts_mirror *mirror)
{
    if (mirror->pid > 0) {
        kill(-mirror->pid, SIGKILL);
        while (waitpid(-mirror->pid, NULL, 0) > 0) /* its children have become this process's */
            ;
    }
    mirror->pid = 0;
}

void tess__hosts_mirror_admit(const struct hosts_mirror *mirror, const struct tess_secret *secret,
                              int32_t attempt)
{
    if (mirror->pid <= 0)
        return;
    mirror->pass->secret = *secret;
    mirror->pass->attempt = attempt + 1;
}
