/*
 * gnuplot as a child: the script in, pictures out, and messages that name what is missing. Files in
 * memory serve as its three streams, so neither side can wait for the other.
 */
#include "report/report_plot.h"

#include "base/file.h"
#include "tessera/check.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { GNUPLOT_IN, GNUPLOT_OUT, GNUPLOT_ERR, GNUPLOT_STREAMS };

static enum tess_status gnuplot_start(const int fd[GNUPLOT_STREAMS], pid_t *pid_out)
{
    /* -d: without the user's settings. */
    char name[] = "gnuplot", plain[] = "-d", input[] = "-";
    char *const argv[] = {name, plain, input, NULL};
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);

    for (int i = 0; i < GNUPLOT_STREAMS && error == 0; i++)
        error = posix_spawn_file_actions_adddup2(&actions, fd[i], i);
    if (error == 0)
        error = posix_spawnp(pid_out, name, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error == ENOENT)
        TESS_FAIL(TESS_ERR_NOT_FOUND,
                  "there is no gnuplot, which draws the report's pictures: install it, on Debian "
                  "with apt-get install gnuplot-nox");
    if (error != 0)
        TESS_FAIL(TESS_ERR_NOT_FOUND,
                  "cannot start gnuplot, which draws the report's pictures: %s (Debian's package "
                  "is gnuplot-nox)",
                  strerror(error));
    return TESS_OK;
}

/* All that a stream holds, from its start. */
static enum tess_status gnuplot_read(int fd, struct tess__html *text)
{
    char piece[1 << 14];
    off_t at = 0;
    ssize_t count;

    while ((count = pread(fd, piece, sizeof(piece), at)) > 0) {
        tess__html_add_bytes(text, piece, (size_t)count);
        at += count;
    }
    if (count < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot read what gnuplot drew: %s", strerror(errno));
    if (text->lost)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for gnuplot's picture");
    return TESS_OK;
}

/* Why it failed: its last line with text. */
static enum tess_status gnuplot_failed(int fd, int status)
{
    struct tess__html text = {0};
    const char *line = "no message";
    enum tess_status read = gnuplot_read(fd, &text);
    if (read == TESS_OK && text.count > 0)
        for (char *rest = NULL, *next = strtok_r(text.bytes, "\n", &rest); next;
             next = strtok_r(NULL, "\n", &rest))
            if (next[strspn(next, " \t^")])
                line = next;
    tess_fail(TESS_ERR_DATA,
              "gnuplot could not draw (%s %d: %.200s); the report needs version 5 or later, "
              "Debian's package is gnuplot-nox",
              WIFSIGNALED(status) ? "signal" : "exit status",
              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), line);
    tess__html_close(&text);
    return TESS_ERR_DATA;
}

static enum tess_status gnuplot_run(const int fd[GNUPLOT_STREAMS], const struct tess__html *script,
                                    struct tess__html *output)
{
    int status = 0, error = tess_file_append(fd[GNUPLOT_IN], script->bytes, script->count);
    pid_t pid;
    if (error != 0 || lseek(fd[GNUPLOT_IN], 0, SEEK_SET) != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot write gnuplot's script: %s", strerror(error));
    TESS_TRY(gnuplot_start(fd, &pid));
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            TESS_FAIL(TESS_ERR_IO, "cannot wait for gnuplot: %s", strerror(errno));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return gnuplot_failed(fd[GNUPLOT_ERR], status);
    return gnuplot_read(fd[GNUPLOT_OUT], output);
}

enum tess_status tess__gnuplot(const struct tess__html *script, struct tess__html *output)
{
    int fd[GNUPLOT_STREAMS] = {-1, -1, -1};
    enum tess_status status = TESS_OK;
    if (script->lost)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for gnuplot's script");
    for (int i = 0; i < GNUPLOT_STREAMS && status == TESS_OK; i++) {
        fd[i] = memfd_create("tessera-report", MFD_CLOEXEC);
        if (fd[i] < 0)
            status = tess_fail(TESS_ERR_IO, "no file in memory for gnuplot: %s", strerror(errno));
    }
    if (status == TESS_OK)
        status = gnuplot_run(fd, script, output);
    for (int i = 0; i < GNUPLOT_STREAMS; i++)
        if (fd[i] >= 0)
            close(fd[i]);
    return status;
}
