/* Whole files: temporary file, fsync, rename; disks that are full, size limits, interruptions. */
#include "base/file.h"

#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_LOCK_PERIOD_NS 5000000

/* A file size limit (RLIMIT_FSIZE) sends SIGXFSZ, which would end the program without a word,
 * besides failing with EFBIG: it is blocked, and dropped if `error` is that one. */
static void file_hold_signal(sigset_t *before)
{
    sigset_t too_large;
    sigemptyset(&too_large);
    sigaddset(&too_large, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &too_large, before);
}

static void file_drop_signal(const sigset_t *before, int error)
{
    const struct timespec now = {0, 0};
    sigset_t too_large;
    sigemptyset(&too_large);
    sigaddset(&too_large, SIGXFSZ);
    if (error == EFBIG && !sigismember(before, SIGXFSZ))
        (void)sigtimedwait(&too_large, NULL, &now);
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* at -1: from where the descriptor stands. */
static int file_put(int fd, const void *bytes, size_t count, int64_t at)
{
    sigset_t before;
    int error = 0;
    file_hold_signal(&before);
    for (size_t done = 0; done < count && error == 0;) {
        const char *from = (const char *)bytes + done;
        const ssize_t n = at < 0 ? write(fd, from, count - done)
                                 : pwrite(fd, from, count - done, (off_t)at + (off_t)done);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0)
            error = ENOSPC;
        else if (errno != EINTR)
            error = errno;
    }
    file_drop_signal(&before, error);
    return error;
}

int tess_file_append(int fd, const void *bytes, size_t count)
{
    return file_put(fd, bytes, count, -1);
}

int tess_file_write_at(int fd, const void *bytes, size_t count, int64_t at)
{
    return file_put(fd, bytes, count, at);
}

/* A name of what this process has open, or of nothing at all. */
static bool file_is_open_already(const char *path)
{
    return strcmp(path, "/dev/null") == 0 || strcmp(path, "/dev/stdin") == 0 ||
           strcmp(path, "/dev/stdout") == 0 || strcmp(path, "/dev/stderr") == 0 ||
           strncmp(path, "/dev/fd/", strlen("/dev/fd/")) == 0 ||
           strncmp(path, "/proc/self/fd/", strlen("/proc/self/fd/")) == 0;
}

FILE *tess_file_open_input(const char *path, const char **why_out)
{
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    *why_out = fd < 0 ? strerror(errno) : NULL;
    if (fd < 0)
        return NULL;
    const bool known = fstat(fd, &about) == 0;
    if (known && !S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode) && file_is_open_already(path))
        (void)fcntl(fd, F_SETFL, 0);
    else if (!known || !S_ISREG(about.st_mode))
        *why_out = known && S_ISDIR(about.st_mode) ? "it is a folder; a file was expected"
                                                   : "it is a device or a pipe, not a file";
    FILE *file = *why_out == NULL ? fdopen(fd, "r") : NULL;
    if (file == NULL)
        close(fd);
    if (file == NULL && *why_out == NULL)
        *why_out = strerror(ENOMEM);
    return file;
}

size_t tess_file_read(int fd, void *target, size_t bytes, int64_t at)
{
    size_t done = 0;
    while (done < bytes) {
        char *to = (char *)target + done;
        const ssize_t n = at < 0 ? read(fd, to, bytes - done)
                                 : pread(fd, to, bytes - done, (off_t)at + (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = 0;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    return done;
}

int tess_file_resize(int fd, size_t bytes)
{
    sigset_t before;
    file_hold_signal(&before);
    const int error = ftruncate(fd, (off_t)bytes) != 0 ? errno : 0;
    file_drop_signal(&before, error);
    return error;
}

bool tess_file_cache(const char *name, bool make, char *path, size_t bytes)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const bool own = cache != NULL && cache[0] == '/';
    if (!own && (home == NULL || home[0] != '/'))
        return false;
    const int length =
        snprintf(path, bytes, "%s%s/tessera/%s", own ? cache : home, own ? "" : "/.cache", name);
    if (length < 0 || (size_t)length >= bytes)
        return false;
    char *const folder_end = path + length - strlen(name) - 1;
    char *const cache_end = folder_end - strlen("/tessera");
    if (make) {
        *cache_end = '\0';
        (void)mkdir(path, 0700);
        *cache_end = '/';
        *folder_end = '\0';
        (void)mkdir(path, 0700);
        *folder_end = '/';
    }
    return true;
}

int tess_file_close(int fd, int error)
{
    if (error == 0 && fsync(fd) != 0 && errno != EINVAL && errno != EROFS && errno != ENOTSUP)
        error = errno;
    if (close(fd) != 0 && error == 0)
        error = errno;
    return error;
}

int tess_file_lock(int fd, double wait_s)
{
    for (; flock(fd, LOCK_EX | LOCK_NB) != 0; wait_s -= 1e-9 * (double)FILE_LOCK_PERIOD_NS) {
        if (errno == ENOSYS || errno == ENOLCK || errno == EOPNOTSUPP)
            return ENOTSUP;
        if (errno != EWOULDBLOCK || wait_s <= 0)
            return errno;
        nanosleep(&(struct timespec){.tv_nsec = FILE_LOCK_PERIOD_NS}, NULL);
    }
    return 0;
}

int tess_file_sync_folder(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? errno : tess_file_close(fd, 0);
}

/* The folder that a name is in, on the disk. */
static int file_sync_above(const char *path)
{
    char above[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const int length = slash == NULL || slash == path ? 1 : (int)(slash - path);
    snprintf(above, sizeof(above), "%.*s", length, slash == NULL ? "." : path);
    return tess_file_sync_folder(above);
}

enum tess_status tess_file_make_folders(const char *path, const char *what)
{
    char part[PATH_MAX];
    const int length = snprintf(part, sizeof(part), "%s", path);
    if (length < 1 || (size_t)length >= sizeof(part))
        TESS_FAIL(TESS_ERR_USAGE, "the name of %s is %s", what, length < 1 ? "empty" : "too long");
    for (char *end = part + 1;; end++) {
        const char kept = *end;
        if (kept != '/' && kept != '\0')
            continue;
        *end = '\0';
        const bool made = mkdir(part, 0777) == 0, failed = !made && errno != EEXIST;
        int error = errno;
        struct stat about;
        if (made && (error = file_sync_above(part)) != 0 && error != EACCES) /* not to be read */
            TESS_FAIL(TESS_ERR_IO, "cannot create %s %s: %s", what, part, strerror(error));
        const bool is_folder = !failed && stat(part, &about) == 0 && S_ISDIR(about.st_mode);
        if (!is_folder)
            TESS_FAIL(TESS_ERR_IO, "cannot create %s %s: %s", what, part,
                      failed ? strerror(error) : "a file of that name is in the way");
        *end = kept;
        if (kept == '\0')
            return TESS_OK;
    }
}

/* What a name that is there stands for, where that is no file to replace; NULL: it is one, or there
 * is nothing yet. */
static const char *file_no_file(const char *path, mode_t *mode)
{
    struct stat about;
    *mode = 0;
    if (stat(path, &about) != 0)
        return lstat(path, &about) == 0 ? "it is a link to a file that is not there" : NULL;
    *mode = about.st_mode;
    return S_ISREG(about.st_mode)    ? NULL
           : S_ISDIR(about.st_mode)  ? "it is a folder"
           : S_ISCHR(about.st_mode)  ? "it is a device, not a file"
           : S_ISBLK(about.st_mode)  ? "it is a disk, not a file"
           : S_ISFIFO(about.st_mode) ? "it is a pipe, not a file"
                                     : "it is not a file";
}

/* Text goes to terminals and pipes too. */
static bool file_takes_text(mode_t mode)
{
    return S_ISCHR(mode) || S_ISFIFO(mode);
}

/* Does not wait for a reader of a pipe: -1 and ENXIO. */
static int file_open_text(const char *path)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0)
        (void)fcntl(fd, F_SETFL, 0);
    return fd;
}

enum tess_status tess_file_check(const char *path, enum tess_file_use use, const char *what)
{
    char probe[PATH_MAX];
    mode_t mode;
    const char *why = file_no_file(path, &mode);
    if (why != NULL && use == TESS_FILE_TEXT && file_takes_text(mode) &&
        (S_ISCHR(mode) || file_is_open_already(path)))
        why = access(path, W_OK) != 0 ? strerror(errno) : NULL;
    if (why != NULL)
        TESS_FAIL(TESS_ERR_IO, "%s %s: cannot write there: %s", what, path, why);
    if (mode != 0 && !S_ISREG(mode))
        return TESS_OK;
    char *real = realpath(path, NULL);
    const int length =
        snprintf(probe, sizeof(probe), "%s.%ld.probe", real ? real : path, (long)getpid());
    free(real);
    if (length < 0 || (size_t)length >= sizeof(probe))
        TESS_FAIL(TESS_ERR_IO, "%s: the file's name is too long", what);
    const int fd = open(probe, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        TESS_FAIL(TESS_ERR_IO, "%s %s: cannot create a file there: %s", what, path,
                  strerror(errno));
    close(fd);
    unlink(probe);
    return TESS_OK;
}

enum tess_status tess_file_create(const char *path, struct tess_file_writer *writer)
{
    mode_t mode;
    const char *why = file_no_file(path, &mode);
    if (why != NULL)
        TESS_FAIL(TESS_ERR_IO, "cannot write %s: %s", path, why);
    char *real = realpath(path, NULL); /* behind a symbolic link the file is replaced */
    int length = snprintf(writer->path, sizeof(writer->path), "%s", real != NULL ? real : path);
    bool fits = length > 0 && (size_t)length < sizeof(writer->path);
    free(real);
    writer->name = path;
    length = snprintf(writer->temporary, sizeof(writer->temporary), "%s.%ld.tmp", writer->path,
                      (long)getpid());
    if (!fits || (size_t)length >= sizeof(writer->temporary))
        TESS_FAIL(TESS_ERR_IO, "cannot write %s: %s", path, strerror(ENAMETOOLONG));
    /* A file of that name is a leftover of a process that had our number before. */
    (void)unlink(writer->temporary);
    writer->fd = open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (writer->fd < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    if (mode != 0) /* where the file system has modes */
        (void)fchmod(writer->fd, mode & 07777);
    return TESS_OK;
}

enum tess_status tess_file_commit(struct tess_file_writer *writer, int error)
{
    error = tess_file_close(writer->fd, error);
    writer->fd = -1;
    if (error == 0 && rename(writer->temporary, writer->path) != 0)
        error = errno;
    if (error == 0)
        return TESS_OK;
    (void)unlink(writer->temporary);
    TESS_FAIL(TESS_ERR_IO, "cannot write %s: %s", writer->name, strerror(error));
}

enum tess_status tess_file_write(const char *path, const void *bytes, size_t count)
{
    mode_t mode;
    (void)file_no_file(path, &mode);
    if (file_takes_text(mode)) {
        const int fd = file_open_text(path);
        const int error = fd < 0 ? errno : tess_file_close(fd, tess_file_append(fd, bytes, count));
        if (error != 0)
            TESS_FAIL(TESS_ERR_IO, "cannot write %s: %s", path, strerror(error));
        return TESS_OK;
    }
    struct tess_file_writer writer;
    TESS_TRY(tess_file_create(path, &writer));
    return tess_file_commit(&writer, tess_file_append(writer.fd, bytes, count));
}

/* ---- logs ------------------------------------------------------------------------------------ */

enum tess_status tess_file_log_open(struct tess_file_log *log, long long keep)
{
    log->whole_bytes = keep;
    log->status = TESS_OK;
    mode_t mode;
    const char *why = file_no_file(log->path, &mode);
    if (why != NULL && !S_ISCHR(mode))
        TESS_FAIL(TESS_ERR_IO, "cannot create %s: %s", log->path, why);
    log->fd = open(log->path,
                   O_WRONLY | O_CREAT | (keep == 0 ? O_TRUNC : 0) | O_CLOEXEC | O_NONBLOCK, 0666);
    if (log->fd < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot create %s: %s", log->path, strerror(errno));
    if (keep > 0 &&
        (ftruncate(log->fd, (off_t)keep) != 0 || lseek(log->fd, (off_t)keep, SEEK_SET) < 0)) {
        const int error = errno;
        close(log->fd);
        log->fd = -1;
        TESS_FAIL(TESS_ERR_IO, "cannot continue %s: %s", log->path, strerror(error));
    }
    return TESS_OK;
}

static enum tess_status file_log_failed(const struct tess_file_log *log, int error)
{
    /* Nothing to be done if this fails: it is a device, or the disk is broken. */
    const bool cut = ftruncate(log->fd, (off_t)log->whole_bytes) == 0;
    tess_log(TESS_LOG_WARN, "cannot write %s: %s; what follows is lost, the %s %s", log->path,
             strerror(error), cut ? log->part : "file may end within",
             cut ? "before are whole" : log->within);
    return TESS_ERR_IO;
}

enum tess_status tess_file_log_append(struct tess_file_log *log, const void *bytes, size_t count)
{
    if (log->status != TESS_OK)
        return log->status;
    const int error = tess_file_append(log->fd, bytes, count);
    if (error == 0)
        log->whole_bytes += (long long)count;
    else
        log->status = file_log_failed(log, error);
    return log->status;
}

enum tess_status tess_file_log_close(struct tess_file_log *log)
{
    /* Some file systems report that they are full only here. */
    const int error = tess_file_close(log->fd, 0);
    log->fd = -1;
    if (error != 0 && log->status == TESS_OK)
        log->status = tess_fail(TESS_ERR_IO, "cannot finish %s: %s", log->path, strerror(error));
    else if (log->status != TESS_OK)
        (void)tess_fail(log->status,
                        "%s lacks the %s from where it could not be written: make "
                        "room or choose another folder with %s",
                        log->path, log->part, log->option);
    return log->status;
}
