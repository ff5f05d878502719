/* Folders of copies in memory: runs that begin at the same moment leave each other's alone. */
#include "run/copies.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define RUNS   6
#define ROUNDS 100

/* The folder is there, and no other process can lock it. */
static bool is_held(const char *folder)
{
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool held = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
    if (fd >= 0)
        close(fd);
    return held;
}

static int begin_runs(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        char folder[TESS__COPIES_PATH];
        if (tess__copies_make(folder) != TESS_OK)
            return 1;
        const bool held = is_held(folder);
        tess__copies_remove(folder);
        if (!held)
            return 2;
    }
    return 0;
}

static void case_same_moment(void **state)
{
    pid_t run[RUNS];
    (void)state;
    for (int r = 0; r < RUNS; r++) {
        run[r] = fork();
        assert_true(run[r] >= 0);
        if (run[r] == 0)
            _exit(begin_runs());
    }
    for (int r = 0; r < RUNS; r++) {
        int status = -1;
        assert_int_equal(waitpid(run[r], &status, 0), run[r]);
        assert_int_equal(status, 0);
    }
}

/* What a run leaves that was killed, the next one removes. */
static void case_left(void **state)
{
    char left[TESS__COPIES_PATH], folder[TESS__COPIES_PATH];
    int way[2];
    (void)state;
    assert_int_equal(pipe(way), 0);
    const pid_t run = fork();
    assert_true(run >= 0);
    if (run == 0)
        _exit(tess__copies_make(left) == TESS_OK &&
                      write(way[1], left, sizeof(left)) == (ssize_t)sizeof(left)
                  ? 0
                  : 1);
    assert_int_equal(read(way[0], left, sizeof(left)), sizeof(left));
    assert_int_equal(waitpid(run, NULL, 0), run);
    assert_int_equal(tess__copies_make(folder), TESS_OK);
    assert_int_not_equal(access(left, F_OK), 0);
    tess__copies_remove(folder);
    assert_int_not_equal(access(folder, F_OK), 0);
    close(way[0]);
    close(way[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_same_moment),
        cmocka_unit_test(case_left),
    };
    return cmocka_run_group_tests_name("copies", tests, NULL, NULL);
}
