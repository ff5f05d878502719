/* The folder: made, locked, removed. */
#include "run/copies.h"

#include "tessera/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define COPIES_MEMORY "/dev/shm"
#define COPIES_PREFIX "tessera-copies-"

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
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
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

enum tess_status tess__copies_make(struct tess__args *args, const struct tess_config *config,
                                   char folder[TESS__COPIES_PATH])
{
    static char word[TESS__COPIES_PATH + 48]; /* `args` borrows it; a process makes one folder */
    if (config->save.copies[0] != '\0')
        TESS_FAIL(TESS_ERR_USAGE,
                  "--redundancy %s: the folder is chosen by the run; write memory:%lld",
                  config->run.redundancy, (long long)config->save.copy_steps);
    copies_remove_old();
    snprintf(folder, TESS__COPIES_PATH, COPIES_MEMORY "/" COPIES_PREFIX "XXXXXX");
    if (mkdtemp(folder) == NULL) {
        folder[0] = '\0';
        TESS_FAIL(TESS_ERR_IO, "--redundancy needs a folder in %s, which cannot be made: %s",
                  COPIES_MEMORY, strerror(errno));
    }
    (void)copies_lock(folder); /* until the process ends */
    snprintf(word, sizeof(word), "--redundancy=memory:%lld:%s", (long long)config->save.copy_steps,
             folder);
    return tess__args_add(args, word);
}

enum tess_status tess__copies_check(const struct tess__run *run)
{
    const char *folder = run->config->save.copies;
    const double gib = 1024.0 * 1024 * 1024;
    struct statvfs about;
    double need = 0;
    if (folder[0] == '\0' || statvfs(folder, &about) != 0)
        return TESS_OK;
    for (int32_t r = 0; r < run->rank_count; r++)
        need += (double)run->predicted[r].bytes[TESS_MEMORY_REDUNDANCY];
    const double have = (double)about.f_bavail * (double)about.f_frsize;
    if (need <= have)
        return TESS_OK;
    TESS_FAIL(TESS_ERR_MEMORY,
              "--redundancy memory needs %.2f GiB of %s, which has room for %.2f GiB: make it "
              "larger (mount -o remount,size=...), or leave --redundancy out",
              need / gib, COPIES_MEMORY, have / gib);
}
