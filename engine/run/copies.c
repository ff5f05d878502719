/* The folder: made, locked, removed. */
#include "run/copies.h"

#include "base/file.h"
#include "config/config_save.h"
#include "state/checkpoint.h"
#include "tessera/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define COPIES_MEMORY  "/dev/shm"
#define COPIES_PREFIX  "tessera-copies-"
#define COPIES_REPLICA "/replica"
#define COPIES_TRIES   1000

static int copies_remove_one(const char *path, const struct stat *about, int kind,
                             struct FTW *place)
{
    (void)about, (void)kind, (void)place;
    (void)remove(path); /* what cannot be removed is the next run's to remove */
    return 0;
}

void tess__copies_remove(const char *folder)
{
    if (folder[0] != '\0')
        (void)nftw(folder, copies_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* A lock that is there as long as this process or a child of it; -1: another one has it. */
static int copies_lock(const char *folder)
{
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && tess_file_lock(fd, 0) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Folders of runs that were killed with their supervisors. */
static void copies_remove_old(void)
{
    struct dirent **entry;
    const int count = scandir(COPIES_MEMORY, &entry, NULL, NULL);
    for (int i = 0; i < count; i++) {
        char path[sizeof(COPIES_MEMORY) + sizeof(entry[i]->d_name)];
        snprintf(path, sizeof(path), COPIES_MEMORY "/%s", entry[i]->d_name);
        const int lock =
            fnmatch(COPIES_PREFIX "*", entry[i]->d_name, 0) == 0 ? copies_lock(path) : -1;
        if (lock >= 0) {
            tess__copies_remove(path);
            close(lock);
        }
        free(entry[i]);
    }
    if (count >= 0)
        free(entry);
}

/* Another run that begins at this moment can find the new folder before it is locked, and removes
 * it: is it there still, and locked by this process until its end? */
static bool copies_is_held(const char *folder)
{
    struct stat locked, there;
    const int fd = copies_lock(folder);
    const bool held = fd >= 0 && fstat(fd, &locked) == 0 && stat(folder, &there) == 0 &&
                      locked.st_ino == there.st_ino;
    if (fd >= 0 && !held)
        close(fd);
    return held;
}

enum tess_status tess__copies_make(char folder[TESS__COPIES_PATH])
{
    copies_remove_old();
    for (int tries = 0; tries < COPIES_TRIES; tries++) {
        snprintf(folder, TESS__COPIES_PATH, COPIES_MEMORY "/" COPIES_PREFIX "XXXXXX");
        if (mkdtemp(folder) == NULL)
            break;
        if (copies_is_held(folder)) {
            if (setenv(TESS_CONFIG_COPIES, folder, 1) != 0)
                TESS_FAIL(TESS_ERR_MEMORY, "no memory for the place of copies");
            return TESS_OK;
        }
        (void)rmdir(folder);
    }
    folder[0] = '\0';
    TESS_FAIL(TESS_ERR_IO, "--redundancy needs a folder in %s, which cannot be made: %s",
              COPIES_MEMORY, strerror(errno));
}

void tess__copies_replica(const char *folder, char replica[TESS__COPIES_PATH])
{
    snprintf(replica, TESS__COPIES_PATH, "%.*s" COPIES_REPLICA,
             TESS__COPIES_PATH - (int)sizeof(COPIES_REPLICA), folder);
}

void tess__copies_keep(const char *folder, int64_t step)
{
    char replica[TESS__COPIES_PATH];
    int64_t *there = NULL;
    int32_t count = 0;
    tess__copies_replica(folder, replica);
    tess__copies_remove(replica);
    if (tess_checkpoint_list(folder, &there, &count) != TESS_OK)
        return;
    for (int32_t i = 0; i < count; i++)
        if (there[i] != step)
            (void)tess_checkpoint_remove(folder, there[i]);
    free(there);
}

/* Bytes of this host's folder at most. */
static double copies_need(const struct tess__run *run, int32_t local_count)
{
    double all = 0, most = 0;
    for (int32_t r = 0; r < run->rank_count; r++) {
        const double bytes = (double)tess__run_predicted(run, r)->bytes[TESS_MEMORY_REDUNDANCY];
        all += bytes;
        most = bytes > most ? bytes : most;
    }
    if (local_count == 0)
        return all;
    /* A rank has a quarter of its bytes in one copy. After a restart the whole state is there too,
     * until the first copies are complete. */
    const double host = most * local_count, restart = all / 4 + host / 2;
    return host > restart ? host : restart;
}

enum tess_status tess__copies_check(const struct tess__run *run, int32_t local_count)
{
    const char *folder = run->config->save.copies;
    const double gib = 1024.0 * 1024 * 1024;
    struct statvfs about;
    if (folder[0] == '\0' || statvfs(folder, &about) != 0)
        return TESS_OK;
    const double need = copies_need(run, local_count);
    const double have = (double)about.f_bavail * (double)about.f_frsize;
    if (need <= have)
        return TESS_OK;
    TESS_FAIL(TESS_ERR_MEMORY,
              "--redundancy memory needs %.2f GiB of %s, which has room for %.2f GiB: make it "
              "larger (mount -o remount,size=...), or leave --redundancy out",
              need / gib, COPIES_MEMORY, have / gib);
}
