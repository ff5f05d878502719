/* Files in memory: shared by processes, and in a mount of their own where the system permits it. */
#include "base/pages.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define BYTES ((size_t)4 << 20)

static void test_shared(void **state)
{
    (void)state;
    const int fd = tess_pages_file();
    assert_true(fd >= 0);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    assert_int_equal(ftruncate(fd, (off_t)BYTES), 0);
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    assert_int_equal(close(fd), 0);
    (void)madvise(memory, BYTES, MADV_HUGEPAGE);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        memory[BYTES - 1] = 7;
        _exit(memory[0]);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(memory[BYTES - 1], 7);
    assert_int_equal(munmap(memory, BYTES), 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no other child is left */
}

/* Where this process may make mounts, the file is not in the system's own. */
static void test_mount(void **state)
{
    (void)state;
#ifdef FSOPEN_CLOEXEC
    const int fs = fsopen("tmpfs", FSOPEN_CLOEXEC);
    if (fs < 0)
        skip();
    close(fs);
    struct stat system, own;
    const int memfd = memfd_create("test", MFD_CLOEXEC), fd = tess_pages_file();
    assert_int_equal(fstat(memfd, &system), 0);
    assert_int_equal(fstat(fd, &own), 0);
    assert_true(own.st_dev != system.st_dev);
    close(memfd);
    close(fd);
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shared), cmocka_unit_test(test_mount)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
