/* Locks of files: of two descriptors, and of file systems that have none, as flock() answers there.
 */
#include "base/file.h"
#include "base/log_sink.h"
#include "comm/flight.h"
#include "harness/work_folder.h"
#include "run/run_folder.h"
#include "run/status.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static int answer; /* of the file system; 0: what it really is */
static char warned[256];

/* In the place of the C library's, also for the engine. */
int flock(int fd, int operation)
{
    errno = answer;
    return answer != 0 ? -1 : (int)syscall(SYS_flock, fd, operation);
}

static void log_take(void *context, enum tess_log_level level, const char *message)
{
    (void)context;
    if (level == TESS_LOG_WARN)
        snprintf(warned, sizeof(warned), "%s", message);
}

static int open_lock(void)
{
    const int fd = open("lock", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    return fd;
}

static void case_answers(void **state)
{
    static const struct {
        int answer, expected;
    } answers[] = {{ENOSYS, ENOTSUP},
                   {ENOLCK, ENOTSUP},
                   {EOPNOTSUPP, ENOTSUP},
                   {EWOULDBLOCK, EWOULDBLOCK},
                   {EBADF, EBADF}};
    const int one = open_lock(), other = open_lock();
    (void)state;
    assert_int_equal(tess_file_lock(one, 0), 0);
    assert_int_equal(tess_file_lock(one, 0), 0);
    assert_int_equal(tess_file_lock(other, 0), EWOULDBLOCK);
    close(one);
    assert_int_equal(tess_file_lock(other, 0), 0);
    for (size_t i = 0; i < sizeof(answers) / sizeof(*answers); i++) {
        answer = answers[i].answer;
        assert_int_equal(tess_file_lock(other, 0), answers[i].expected);
    }
    answer = 0;
    close(other);
}

static void *close_soon(void *fd)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    close(*(int *)fd);
    return NULL;
}

/* A lock that is given back in time is had. */
static void case_waits(void **state)
{
    int one = open_lock();
    const int other = open_lock();
    pthread_t thread;
    (void)state;
    assert_int_equal(tess_file_lock(one, 0), 0);
    assert_int_equal(tess_file_lock(other, 0.01), EWOULDBLOCK);
    assert_int_equal(pthread_create(&thread, NULL, close_soon, &one), 0);
    assert_int_equal(tess_file_lock(other, 60), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    close(other);
}

/* A run writes where there are no locks, with a warning; not where the disk fails. */
static void case_run_folder(void **state)
{
    const struct tess__log_sink sink = {.line = log_take};
    int lock = -1;
    (void)state;
    (void)tess__log_redirect(&sink);
    answer = ENOSYS;
    assert_int_equal(tess__run_folder_open("run", TESS__FOLDER_NEW, &lock), TESS_OK);
    assert_non_null(strstr(warned, "run has no locks"));
    tess__run_folder_close(lock);
    answer = EIO;
    assert_int_equal(tess__run_folder_open("run", TESS__FOLDER_NEW, &lock), TESS_ERR_IO);
    answer = 0;
    (void)tess__log_redirect(NULL);
}

static void expect_status(const char *wanted, int live)
{
    struct tess__status status;
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    assert_int_equal(tess__status_read("asked", &status), TESS_OK);
    tess__status_print(&status, 0, stream);
    fclose(stream);
    text[strcspn(text, "\n")] = '\0';
    if (strncmp(text, wanted, strlen(wanted)) != 0)
        fail_msg("'%s' is not '%s'", text, wanted);
    free(text);
    json_t *object = tess__status_json(&status, 0);
    assert_int_equal(json_typeof(json_object_get(object, "live")), live);
    json_decref(object);
    tess__status_close(&status);
}

/* tessera status says whether a process runs it, or that it is not known. */
static void case_status(void **state)
{
    const struct tess_flight_about about = {.rank_count = 1, .end = 1};
    int lock = -1;
    (void)state;
    assert_int_equal(tess__run_folder_open("asked", TESS__FOLDER_NEW, &lock), TESS_OK);
    tess_flight_close(tess_flight_open("asked", &about));
    expect_status("asked: the run is live, process ", JSON_TRUE);
    answer = ENOLCK;
    expect_status("asked: it may be live: its file system has no locks; the "
                  "last was process ",
                  JSON_NULL);
    answer = 0;
    tess__run_folder_close(lock);
    expect_status("asked: no process runs it; the last was process ", JSON_FALSE);
    assert_int_equal(truncate("asked/lock", 0), 0);
    expect_status("asked: no process runs it", JSON_FALSE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_answers),
        cmocka_unit_test(case_waits),
        cmocka_unit_test(case_run_folder),
        cmocka_unit_test(case_status),
    };
    return cmocka_run_group_tests_name("file_lock", tests, work_folder_make, work_folder_remove);
}
