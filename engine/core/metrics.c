/*
 * Files that a run leaves behind. Responsible for their being whole: a line or a file is there
 * completely or not at all, and a disk that is full is an error with a name. What the numbers mean
 * is the caller's business.
 */
#include "core/metrics.h"

#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct tess_metrics {
    int fd;
    off_t whole_bytes; /* up to the end of the last whole line */
    enum tess_status status;
    char path[PATH_MAX];
};

/*
 * Write all bytes; returns errno, 0 when done. A file size limit (RLIMIT_FSIZE) sends SIGXFSZ,
 * which would end the program without a word, besides failing with EFBIG: it is held back and
 * dropped.
 */
static int metrics_write_all(int fd, const char *bytes, size_t count)
{
    const struct timespec now = {0, 0};
    sigset_t too_large, before;
    int error = 0;
    sigemptyset(&too_large);
    sigaddset(&too_large, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &too_large, &before);
    for (size_t done = 0; done < count && error == 0;) {
        const ssize_t n = write(fd, bytes + done, count - done);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0)
            error = ENOSPC;
        else if (errno != EINTR)
            error = errno;
    }
    if (error == EFBIG && !sigismember(&before, SIGXFSZ))
        (void)sigtimedwait(&too_large, NULL, &now);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* fsync where the file is of a kind that has it. Returns errno or 0. */
static int metrics_sync(int fd)
{
    if (fsync(fd) != 0 && errno != EINVAL && errno != EROFS && errno != ENOTSUP)
        return errno;
    return 0;
}

/* mkdir -p. `path` is changed while this runs. */
static enum tess_status metrics_make_folders(char *path)
{
    for (char *end = path + 1;; end++) {
        const char kept = *end;
        if (kept != '/' && kept != '\0')
            continue;
        *end = '\0';
        const bool failed = mkdir(path, 0777) != 0 && errno != EEXIST;
        const int error = errno;
        struct stat about;
        const bool is_folder = !failed && stat(path, &about) == 0 && S_ISDIR(about.st_mode);
        if (!is_folder)
            TESS_FAIL(TESS_ERR_IO, "cannot create the run folder %s: %s", path,
                      failed ? strerror(error) : "a file of that name is in the way");
        *end = kept;
        if (kept == '\0')
            return TESS_OK;
    }
}

enum tess_status tess_metrics_open(const char *folder, struct tess_metrics **metrics_out)
{
    struct tess_metrics *metrics = calloc(1, sizeof(*metrics));
    if (metrics == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the metrics writer");
    const int length = snprintf(metrics->path, sizeof(metrics->path), "%s", folder);
    const size_t room = sizeof(metrics->path) - sizeof("/metrics.jsonl");
    if (length < 1 || (size_t)length > room) {
        free(metrics);
        TESS_FAIL(TESS_ERR_USAGE, "the name of the run folder is %s",
                  length < 1 ? "empty" : "too long");
    }
    const enum tess_status status = metrics_make_folders(metrics->path);
    if (status != TESS_OK) {
        free(metrics);
        return status;
    }
    strcat(metrics->path, "/metrics.jsonl");
    metrics->fd = open(metrics->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (metrics->fd < 0) {
        const enum tess_status failed =
            tess_fail(TESS_ERR_IO, "cannot create %s: %s", metrics->path, strerror(errno));
        free(metrics);
        return failed;
    }
    *metrics_out = metrics;
    return TESS_OK;
}

/* Text of a value with a newline behind it, to be freed; NULL without memory. */
static char *metrics_text(const json_t *value, size_t flags, size_t *count_out)
{
    const size_t bytes = json_dumpb(value, NULL, 0, flags);
    char *text = bytes > 0 ? malloc(bytes + 1) : NULL;
    if (text == NULL || json_dumpb(value, text, bytes, flags) != bytes) {
        free(text);
        return NULL;
    }
    text[bytes] = '\n';
    *count_out = bytes + 1;
    return text;
}

static enum tess_status metrics_write_line(struct tess_metrics *metrics, const json_t *object)
{
    size_t count;
    char *line = json_is_object(object) ? metrics_text(object, JSON_COMPACT, &count) : NULL;
    if (line == NULL)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "%s: cannot make a line of metrics: no memory, or a value "
                  "that JSON does not have",
                  metrics->path);
    const int error = metrics_write_all(metrics->fd, line, count);
    free(line);
    if (error != 0) {
        /* Nothing to be done if this fails: it is a device, or the disk is broken. */
        const bool cut = ftruncate(metrics->fd, metrics->whole_bytes) == 0;
        TESS_FAIL(TESS_ERR_IO,
                  "cannot write %s: %s; %s: make room or choose another folder with "
                  "--run",
                  metrics->path, strerror(error),
                  cut ? "the lines before are whole" : "the file may end within a line");
    }
    metrics->whole_bytes += (off_t)count;
    return TESS_OK;
}

enum tess_status tess_metrics_write(struct tess_metrics *metrics, json_t *object)
{
    if (metrics->status == TESS_OK)
        metrics->status = metrics_write_line(metrics, object);
    json_decref(object);
    return metrics->status;
}

enum tess_status tess_metrics_close(struct tess_metrics *metrics)
{
    if (metrics == NULL)
        return TESS_OK;
    /* Some file systems say that they are full only here. */
    int error = metrics_sync(metrics->fd);
    if (close(metrics->fd) != 0 && error == 0)
        error = errno;
    if (error != 0 && metrics->status == TESS_OK)
        metrics->status =
            tess_fail(TESS_ERR_IO, "cannot finish %s: %s", metrics->path, strerror(error));
    const enum tess_status status = metrics->status;
    free(metrics);
    return status;
}

/* Write and close; returns errno or 0. */
static int metrics_finish_file(int fd, const char *text, size_t count)
{
    int error = metrics_write_all(fd, text, count);
    if (error == 0)
        error = metrics_sync(fd);
    if (close(fd) != 0 && error == 0)
        error = errno;
    return error;
}

/* Replace the regular or absent file `path`. Returns errno or 0; on failure nothing is left behind.
 */
static int metrics_replace_file(const char *path, const char *text, size_t count)
{
    char temporary[PATH_MAX];
    const int length = snprintf(temporary, sizeof(temporary), "%s.%ld.tmp", path, (long)getpid());
    if (length < 0 || (size_t)length >= sizeof(temporary))
        return ENAMETOOLONG;
    /* A file of that name is a leftover of a process that had our number before. */
    (void)unlink(temporary);
    const int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return errno;
    int error = metrics_finish_file(fd, text, count);
    if (error == 0 && rename(temporary, path) != 0)
        error = errno;
    if (error != 0)
        (void)unlink(temporary);
    return error;
}

enum tess_status tess_json_write_file(const char *path, const json_t *value)
{
    struct stat about;
    size_t count;
    int error;
    char *text =
        value != NULL ? metrics_text(value, JSON_INDENT(2) | JSON_ENCODE_ANY, &count) : NULL;
    if (text == NULL)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "%s: cannot make its text: no memory, or a value that JSON "
                  "does not have",
                  path);
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode)) {
        const int fd = open(path, O_WRONLY | O_CLOEXEC);
        error = fd < 0 ? errno : metrics_finish_file(fd, text, count);
    } else {
        /* Behind a symbolic link the file is replaced, not the link. */
        char *real = realpath(path, NULL);
        error = metrics_replace_file(real != NULL ? real : path, text, count);
        free(real);
    }
    free(text);
    if (error != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot write %s: %s", path, strerror(error));
    return TESS_OK;
}
