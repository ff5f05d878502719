#include "base/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

void *tess_pages_take(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return NULL;
    (void)madvise(pages, bytes, MADV_HUGEPAGE); /* a hint */
    return pages;
}

void tess_pages_give(void *pages, size_t bytes)
{
    munmap(pages, bytes);
}

/* Put a file of a mount that nothing else sees in the place of `fd`. */
static bool pages_mount(int fd)
{
    int file = -1;
#ifdef FSOPEN_CLOEXEC
    const int fs = fsopen("tmpfs", FSOPEN_CLOEXEC);
    if (fs < 0)
        return false;
    if (fsconfig(fs, FSCONFIG_SET_STRING, "huge", "advise", 0) == 0 &&
        fsconfig(fs, FSCONFIG_SET_STRING, "nr_blocks", "0", 0) == 0 && /* no limit */
        fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0) {
        const int mount = fsmount(fs, FSMOUNT_CLOEXEC, 0);
        if (mount >= 0) {
            file = openat(mount, ".", O_TMPFILE | O_RDWR, 0600);
            close(mount);
        }
    }
    close(fs);
#endif
    if (file < 0)
        return false;
    const bool done = dup3(file, fd, O_CLOEXEC) == fd;
    close(file);
    return done;
}

/* A user namespace's map: this user or group alone, under its own number. */
struct pages_map {
    const char *path;
    char text[48];
};

static void pages_write(const struct pages_map *map)
{
    const int fd = open(map->path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)!write(fd, map->text, strlen(map->text));
    close(fd);
}

/* The same by a process in namespaces of its own that has this one's file descriptors. */
static void pages_mount_apart(int fd)
{
    struct pages_map map[3] = {
        {"/proc/self/setgroups", "deny"}, {"/proc/self/uid_map", ""}, {"/proc/self/gid_map", ""}};
    snprintf(map[1].text, sizeof(map[1].text), "%u %u 1", geteuid(), geteuid());
    snprintf(map[2].text, sizeof(map[2].text), "%u %u 1", getegid(), getegid());
    const unsigned long flags = CLONE_FILES | CLONE_NEWUSER | CLONE_NEWNS | SIGCHLD;
    const long child = syscall(SYS_clone, flags, NULL, NULL, NULL, NULL);
    if (child == 0) { /* little but system calls: other threads of the parent may have held locks */
        for (int i = 0; i < 3; i++)
            pages_write(&map[i]);
        (void)pages_mount(fd);
        _exit(0);
    }
    while (child > 0 && waitpid((pid_t)child, NULL, 0) < 0 && errno == EINTR)
        ;
}

int tess_pages_file(void)
{
    const int fd = memfd_create("tessera", MFD_CLOEXEC);
    if (fd >= 0 && !pages_mount(fd))
        pages_mount_apart(fd);
    return fd;
}

void tess_pages_make(void *start, size_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)start;
    const uintptr_t begin = at / page * page;
    (void)madvise((void *)begin, at + bytes - begin, MADV_POPULATE_WRITE);
#else
    (void)start, (void)bytes;
#endif
}
