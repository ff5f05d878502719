/* The launcher and the system (launch_system.h). */
#include "job/launch_system.h"

#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIPE_BYTES (1 << 20) /* the most for an unprivileged process */

void tess__launch_raise_files(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == files.rlim_max)
        return;
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files); /* what is missing fails where it is needed */
}

const char *tess__launch_files_hint(void)
{
    return errno == EMFILE ? ": raise the limit (ulimit -n)" : "";
}

enum tess_status tess__launch_open_pipe(int *read_out, int *write_out)
{
    int end[2];

    if (pipe2(end, O_CLOEXEC) != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot open a pipe to the ranks: %s%s", strerror(errno),
                  tess__launch_files_hint());
    *read_out = end[0];
    *write_out = end[1];
    if (fcntl(end[0], F_SETFL, O_NONBLOCK) != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot set up a pipe to the ranks: %s", strerror(errno));
    /* Best effort: a launcher held up by its terminal (a pager) should not hold up the ranks. */
    (void)fcntl(end[1], F_SETPIPE_SZ, PIPE_BYTES);
    return TESS_OK;
}

uint64_t tess__launch_oom_kills(void)
{
    FILE *file = fopen("/proc/vmstat", "re");
    unsigned long long count = 0, kills = 0;
    char name[64];

    while (file != NULL && fscanf(file, "%63s %llu", name, &count) == 2)
        if (strcmp(name, "oom_kill") == 0)
            kills = count;
    if (file != NULL)
        fclose(file);
    return kills;
}

void tess__launch_explain_death(int wait_status, uint64_t oom_kills, char *how, size_t bytes)
{
    const char *why = "";

    if (!WIFSIGNALED(wait_status)) {
        snprintf(how, bytes, "ended early with exit status %d", WEXITSTATUS(wait_status));
        return;
    }
    if (WTERMSIG(wait_status) == SIGKILL && tess__launch_oom_kills() > oom_kills)
        why = ": memory ran out, and the kernel ended processes";
    snprintf(how, bytes, "was killed by signal %d (%s%s)", WTERMSIG(wait_status),
             strsignal(WTERMSIG(wait_status)), why);
}
