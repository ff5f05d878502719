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

static enum tess_status folder_join(const char *folder, const char *name, char path[FOLDER_PATH])
{
    const int length = snprintf(path, FOLDER_PATH, "%s/%s", folder, name);
    if (length < 0 || length >= FOLDER_PATH)
        TESS_FAIL(TESS_ERR_USAGE, "the name of the run folder is too long");
    return TESS_OK;
}

/* The file has its owner's process and host, for the message of whoever comes second. */
static enum tess_status folder_lock(const char *folder, int *lock_out)
{
    char path[FOLDER_PATH], owner[256] = "", host[128] = "";
    TESS_TRY(folder_join(folder, "lock", path));
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
    if (fd < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot lock the run folder: %s: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const int error = errno;
        (void)tess_file_read(fd, owner, sizeof(owner) - 1, 0);
        close(fd);
        owner[strcspn(owner, "\n")] = '\0';
        if (error != EWOULDBLOCK)
            TESS_FAIL(TESS_ERR_IO, "cannot lock the run folder: %s: %s", path, strerror(error));
        TESS_FAIL(TESS_ERR_USAGE,
                  "another run writes to %s (%s): end it, or choose another folder with --run",
                  folder, owner[0] != '\0' ? owner : "its process is not known");
    }
    (void)gethostname(host, sizeof(host) - 1);
    const int length = snprintf(owner, sizeof(owner), "process %d on %s\n", (int)getpid(), host);
    const int error = tess_file_resize(fd, 0);
    if (error != 0 || tess_file_write_at(fd, owner, (size_t)length, 0) != 0)
        tess_log(TESS_LOG_WARN, "%s does not name this process: the disk may be full", path);
    *lock_out = fd;
    return TESS_OK;
}

/* Files that were not finished: of processes that are gone, since the lock is ours. */
static void folder_clear(const char *folder)
{
    DIR *open = opendir(folder);
    if (open == NULL)
        return;
    for (const struct dirent *entry; (entry = readdir(open)) != NULL;)
        if (fnmatch("*.[0-9]*.tmp", entry->d_name, 0) == 0)
            (void)unlinkat(dirfd(open), entry->d_name, 0);
    closedir(open);
}

static bool folder_has(const char *folder, const char *name)
{
    char path[FOLDER_PATH];
    struct stat about;
    return folder_join(folder, name, path) == TESS_OK && stat(path, &about) == 0 &&
           about.st_size > 0;
}

/* A run that is there: refused, or removed. */
static enum tess_status folder_check(const char *folder, enum tess__folder_use use)
{
    static const char *const file[] = {"weights.safetensors", "metrics.jsonl"};
    char path[FOLDER_PATH];
    int64_t *step;
    int32_t count;
    if (use == TESS__FOLDER_RESUME)
        return TESS_OK;
    TESS_TRY(tess_checkpoint_list(folder, &step, &count));
    enum tess_status status = TESS_OK;
    if (use == TESS__FOLDER_NEW && (count > 0 || folder_has(folder, "metrics.jsonl")))
        status = tess_fail(TESS_ERR_USAGE,
                           "%s has a run: --resume continues it%s, --overwrite removes it, or "
                           "choose another folder with --run",
                           folder, count > 0 ? "" : " (it has no checkpoint yet)");
    for (int32_t i = 0; i < count && use == TESS__FOLDER_OVERWRITE && status == TESS_OK; i++)
        status = tess_checkpoint_remove(folder, step[i]);
    free(step);
    for (size_t i = 0; i < 2 && use == TESS__FOLDER_OVERWRITE && status == TESS_OK; i++) {
        status = folder_join(folder, file[i], path);
        if (status == TESS_OK && unlink(path) != 0 && errno != ENOENT)
            status = tess_fail(TESS_ERR_IO, "cannot remove %s: %s", path, strerror(errno));
    }
    return status;
}

enum tess_status tess__run_folder_open(const char *folder, enum tess__folder_use use, int *lock_out)
{
    *lock_out = -1;
    TESS_TRY(tess_file_make_folders(folder, "the run folder"));
    TESS_TRY(folder_lock(folder, lock_out));
    const enum tess_status status = folder_check(folder, use);
    if (status == TESS_OK)
        folder_clear(folder);
    else
        tess__run_folder_close(*lock_out);
    if (status != TESS_OK)
        *lock_out = -1;
    return status;
}

void tess__run_folder_close(int lock)
{
    if (lock >= 0)
        close(lock);
}
