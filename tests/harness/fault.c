/*
 * Faults of a disk, for programs that are started with this library in LD_PRELOAD. It stands before
 * libc's calls that change files, numbers those under a folder in the order in which all processes
 * of the program make them, and lets one of them fail. In the environment:
 *
 *     TESS_FAULT_UNDER   part of the paths that count
 *     TESS_FAULT_LOG     file that gets a line of each: its kind, its path, the path it is renamed
 * to TESS_FAULT_AT      number of the call that fails, from 1 on TESS_FAULT_DO      kill: the
 * process, in place of the call short: a write of half of the bytes; the next write finds the disk
 * full full: from here on there is no space a number: this errno, once
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PATH_BYTES 1024
#define EXPORTED   __attribute__((visibility("default")))

struct shared { /* by all processes that the program forks */
    atomic_int count;
    atomic_bool full;
};

static struct {
    struct shared *shared; /* NULL: off */
    const char *under, *what;
    int at, log;
} fault;

__attribute__((constructor)) static void fault_open(void)
{
    const char *at = getenv("TESS_FAULT_AT"), *log = getenv("TESS_FAULT_LOG");
    fault.under = getenv("TESS_FAULT_UNDER");
    fault.what = getenv("TESS_FAULT_DO");
    fault.at = at != NULL && fault.what != NULL ? atoi(at) : 0;
    if (fault.under == NULL || log == NULL)
        return;
    fault.log =
        (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    fault.shared = mmap(NULL, sizeof(*fault.shared), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (fault.log < 0 || fault.shared == MAP_FAILED)
        abort();
}

/* ---- which call it is ------------------------------------------------------------------------ */

static void path_of(int folder, const char *name, char path[PATH_BYTES])
{
    char link[64];
    path[0] = '\0';
    if (folder != AT_FDCWD) {
        snprintf(link, sizeof(link), "/proc/self/fd/%d", folder);
        const ssize_t length = readlink(link, path, PATH_BYTES - 1);
        path[length > 0 ? length : 0] = '\0';
    }
    if (name != NULL) {
        const size_t used = strlen(path);
        snprintf(path + used, PATH_BYTES - used, "%s%s", used > 0 ? "/" : "", name);
    }
}

static bool needs_space(const char *kind)
{
    return strcmp(kind, "unlink") != 0 && strcmp(kind, "rmdir") != 0 && strcmp(kind, "close") != 0;
}

/* errno that the call fails with, 0: it is made; -1: half of it. */
static int fault_of(const char *kind, const char *path, const char *to)
{
    char line[2 * PATH_BYTES + 32];
    if (fault.shared == NULL || strstr(path, fault.under) == NULL)
        return 0;
    const int number = atomic_fetch_add(&fault.shared->count, 1) + 1;
    const int length =
        snprintf(line, sizeof(line), "%s %s%s%s\n", kind, path, to ? " " : "", to ? to : "");
    (void)!syscall(SYS_write, fault.log, line, (size_t)length);
    if (fault.shared->full && needs_space(kind))
        return ENOSPC;
    if (number != fault.at)
        return 0;
    if (strcmp(fault.what, "kill") == 0)
        kill(getpid(), SIGKILL);
    const bool is_short = strcmp(fault.what, "short") == 0;
    if (is_short || strcmp(fault.what, "full") == 0)
        fault.shared->full = true;
    if (is_short)
        return strcmp(kind, "write") == 0 ? -1 : needs_space(kind) ? ENOSPC : 0;
    return strcmp(fault.what, "full") != 0 ? atoi(fault.what) : needs_space(kind) ? ENOSPC : 0;
}

/* The same, of an open file; files open for reading do not count, folders do where they are
 * flushed. */
static int fault_of_fd(const char *kind, int fd, bool folders)
{
    char path[PATH_BYTES];
    struct stat about;
    const int saved = errno;
    if (fault.shared == NULL || fstat(fd, &about) != 0 ||
        !(S_ISREG(about.st_mode) || (folders && S_ISDIR(about.st_mode))) ||
        (S_ISREG(about.st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY)) {
        errno = saved;
        return 0;
    }
    path_of(fd, NULL, path);
    errno = saved;
    return fault_of(kind, path, NULL);
}

static int failed(int error)
{
    errno = error;
    return -1;
}

/* ---- the calls ------------------------------------------------------------------------------- */

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int fault_open_at(int folder, const char *name, int flags, unsigned mode)
{
    char path[PATH_BYTES];
    path_of(folder, name, path);
    const int error =
        (flags & O_ACCMODE) != O_RDONLY || flags & O_CREAT ? fault_of("open", path, NULL) : 0;
    return error > 0 ? failed(error) : NEXT(openat)(folder, name, flags, mode);
}

#define MODE(flags, mode)                                                                          \
    unsigned mode = 0;                                                                             \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                       \
        va_list list;                                                                              \
        va_start(list, flags);                                                                     \
        mode = va_arg(list, unsigned);                                                             \
        va_end(list);                                                                              \
    }

EXPORTED int open(const char *name, int flags, ...)
{
    MODE(flags, mode)
    return fault_open_at(AT_FDCWD, name, flags, mode);
}

EXPORTED int open64(const char *name, int flags, ...)
{
    MODE(flags, mode)
    return fault_open_at(AT_FDCWD, name, flags, mode);
}

EXPORTED ssize_t write(int fd, const void *bytes, size_t count)
{
    const int error = fault_of_fd("write", fd, false);
    return error > 0 ? failed(error) : NEXT(write)(fd, bytes, error < 0 ? (count + 1) / 2 : count);
}

EXPORTED ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at)
{
    const int error = fault_of_fd("write", fd, false);
    return error > 0 ? failed(error)
                     : NEXT(pwrite)(fd, bytes, error < 0 ? (count + 1) / 2 : count, at);
}

EXPORTED ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at)
{
    return pwrite(fd, bytes, count, at);
}

EXPORTED int fsync(int fd)
{
    const int error = fault_of_fd("fsync", fd, true);
    return error > 0 ? failed(error) : NEXT(fsync)(fd);
}

EXPORTED int ftruncate(int fd, off_t bytes)
{
    const int error = fault_of_fd("ftruncate", fd, false);
    return error > 0 ? failed(error) : NEXT(ftruncate)(fd, bytes);
}

EXPORTED int ftruncate64(int fd, off64_t bytes)
{
    return ftruncate(fd, bytes);
}

/* The descriptor is closed even so, as Linux does it. */
EXPORTED int close(int fd)
{
    const int error = fault_of_fd("close", fd, false), closed = NEXT(close)(fd);
    return error > 0 ? failed(error) : closed;
}

EXPORTED int rename(const char *from, const char *to)
{
    const int error = fault_of("rename", from, to);
    return error > 0 ? failed(error) : NEXT(rename)(from, to);
}

EXPORTED int mkdir(const char *path, mode_t mode)
{
    const int error = fault_of("mkdir", path, NULL);
    return error > 0 ? failed(error) : NEXT(mkdir)(path, mode);
}

EXPORTED int rmdir(const char *path)
{
    const int error = fault_of("rmdir", path, NULL);
    return error > 0 ? failed(error) : NEXT(rmdir)(path);
}

EXPORTED int unlink(const char *path)
{
    const int error = fault_of("unlink", path, NULL);
    return error > 0 ? failed(error) : NEXT(unlink)(path);
}

EXPORTED int unlinkat(int folder, const char *name, int flags)
{
    char path[PATH_BYTES];
    path_of(folder, name, path);
    const int error = fault_of(flags & AT_REMOVEDIR ? "rmdir" : "unlink", path, NULL);
    return error > 0 ? failed(error) : NEXT(unlinkat)(folder, name, flags);
}
