/* Whose folder it is, and what may be lost in it. */
#include "run/run_folder.h"

#include "base/file.h"
#include "state/checkpoint.h"
#include "tessera/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER_PATH TESS_CHECKPOINT_PATH
/* tess__run_folder_owner takes the lock for a moment. */
#define FOLDER_LOCK_S 0.01

static enum tess_status folder_join(const char *folder, const char *name, char path[FOLDER_PATH])
{
    const int length = snprintf(path, FOLDER_PATH, "%s/%s", folder, name);
    if (length < 0 || length >= FOLDER_PATH)
        TESS_FAIL(TESS_ERR_USAGE, "the name of the run folder is too long");
    return TESS_OK;
}

static void folder_read_owner(int fd, char *owner, size_t bytes)
{
    owner[tess_file_read(fd, owner, bytes - 1, 0)] = '\0';
    owner[strcspn(owner, "\n")] = '\0';
}

/* The file has its owner's process and host, for the message of whoever comes second. */
static enum tess_status folder_lock(const char *folder, int *lock_out)
{
    char path[FOLDER_PATH], owner[256] = "";
    TESS_TRY(folder_join(folder, "lock", path));
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
    if (fd < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot lock the run folder: %s: %s", path, strerror(errno));
    const int error = tess_file_lock(fd, FOLDER_LOCK_S);
    if (error == ENOTSUP)
        tess_log(
            TESS_LOG_WARN,
            "the file system of %s has no locks: nothing prevents that another run writes there",
            folder);
    else if (error != 0) {
        folder_read_owner(fd, owner, sizeof(owner));
        close(fd);
        if (error != EWOULDBLOCK)
            TESS_FAIL(TESS_ERR_IO, "cannot lock the run folder: %s: %s", path, strerror(error));
        TESS_FAIL(TESS_ERR_USAGE,
                  "another run writes to %s (%s): end it, or choose another folder with --run",
                  folder, owner[0] != '\0' ? owner : "its process is not known");
    }
    *lock_out = fd;
    return TESS_OK;
}

static void folder_sign(int lock)
{
    char owner[256], host[128] = "";
    (void)gethostname(host, sizeof(host) - 1);
    const int length = snprintf(owner, sizeof(owner), "process %d on %s\n", (int)getpid(), host);
    if (tess_file_resize(lock, 0) != 0 || tess_file_write_at(lock, owner, (size_t)length, 0) != 0)
        tess_log(TESS_LOG_WARN, "the lock of the run folder does not name this process: the disk "
                                "may be full");
}

/* What was not finished: of processes that are gone, since the lock is ours. */
static void folder_clear(const char *folder)
{
    DIR *open = opendir(folder);
    (void)tess_checkpoint_clear(folder); /* what is left is the next save's to remove */
    if (open == NULL)
        return;
    for (const struct dirent *entry; (entry = readdir(open)) != NULL;)
        if (fnmatch("*.[0-9]*.tmp", entry->d_name, 0) == 0)
            (void)unlinkat(dirfd(open), entry->d_name, 0);
    closedir(open);
}

/* What a run writes beside its checkpoints. metrics.jsonl goes last: until then there is a run. */
static const char *const folder_file[] = {"weights.safetensors", "metrics.jsonl"};
#define FOLDER_FILES (sizeof(folder_file) / sizeof(folder_file[0]))

static bool folder_has(const char *folder, const char *name)
{
    char path[FOLDER_PATH];
    struct stat about;
    return folder_join(folder, name, path) == TESS_OK && stat(path, &about) == 0 &&
           S_ISREG(about.st_mode) && about.st_size > 0;
}

static enum tess_status folder_refuse(const char *folder, int32_t checkpoints)
{
    bool used = checkpoints > 0;
    for (size_t i = 0; i < FOLDER_FILES; i++)
        used = used || folder_has(folder, folder_file[i]);
    if (!used)
        return TESS_OK;
    TESS_FAIL(TESS_ERR_USAGE,
              "%s has a run%s--overwrite removes it, or choose another folder with --run", folder,
              checkpoints > 0 ? ": --resume continues it, " : " without a checkpoint: ");
}

static enum tess_status folder_empty(const char *folder, const int64_t *step, int32_t count)
{
    char path[FOLDER_PATH];
    for (int32_t i = 0; i < count; i++)
        TESS_TRY(tess_checkpoint_remove(folder, step[i]));
    for (size_t i = 0; i < FOLDER_FILES; i++) {
        TESS_TRY(folder_join(folder, folder_file[i], path));
        if (unlink(path) != 0 && errno != ENOENT)
            TESS_FAIL(TESS_ERR_IO, "cannot remove %s: %s", path, strerror(errno));
    }
    return TESS_OK;
}

/* A run that is there: refused, or removed. */
static enum tess_status folder_prepare(const char *folder, enum tess__folder_use use)
{
    int64_t *step;
    int32_t count;
    if (use == TESS__FOLDER_RESUME)
        return TESS_OK;
    TESS_TRY(tess_checkpoint_list(folder, &step, &count));
    const enum tess_status status =
        use == TESS__FOLDER_NEW ? folder_refuse(folder, count) : folder_empty(folder, step, count);
    free(step);
    return status;
}

enum tess_status tess__run_folder_open(const char *folder, enum tess__folder_use use, int *lock_out)
{
    *lock_out = -1;
    TESS_TRY(tess_file_make_folders(folder, "the run folder"));
    TESS_TRY(folder_lock(folder, lock_out));
    const enum tess_status status = folder_prepare(folder, use);
    if (status != TESS_OK) {
        tess__run_folder_close(*lock_out);
        *lock_out = -1;
        return status;
    }
    folder_clear(folder);
    folder_sign(*lock_out);
    return TESS_OK;
}

void tess__run_folder_close(int lock)
{
    if (lock >= 0)
        close(lock);
}

enum tess_status tess__run_folder_owner(const char *folder, char *owner, size_t bytes,
                                        enum tess__folder_life *life_out)
{
    char path[FOLDER_PATH];
    struct stat about;
    owner[0] = '\0';
    *life_out = TESS__FOLDER_LEFT;
    if (stat(folder, &about) != 0 || !S_ISDIR(about.st_mode))
        TESS_FAIL(TESS_ERR_NOT_FOUND, "%s is not the folder of a run: give that of train --run",
                  folder);
    TESS_TRY(folder_join(folder, "lock", path));
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return TESS_OK;
    if (flock(fd, LOCK_SH | LOCK_NB) != 0)
        *life_out = errno == EWOULDBLOCK ? TESS__FOLDER_LIVE : TESS__FOLDER_UNKNOWN;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode))
        folder_read_owner(fd, owner, bytes);
    close(fd);
    return TESS_OK;
}

enum tess_status tess__run_folder_check_init(const char *run_path, const char *init_path)
{
    char *run = realpath(run_path, NULL), *init = realpath(init_path, NULL);
    const size_t length = run ? strlen(run) : 0;
    const bool inside = run && init && strncmp(init, run, length) == 0 &&
                        (init[length] == '/' || init[length] == '\0');
    free(run);
    free(init);
    if (inside)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--init %s is in the folder whose run --overwrite removes: choose another folder "
                  "with --run",
                  init_path);
    return TESS_OK;
}
