/* Status codes and messages: texts, exit statuses, one write a line, rank and latest error by
 * thread. */
#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PACKET_MAX 4096

/* stderr replaced by a pipe in packet mode: one read gives exactly what one write(2) put in. */
struct capture {
    int saved, end[2];
};

static void capture_begin(struct capture *capture)
{
    assert_int_equal(pipe2(capture->end, O_DIRECT | O_NONBLOCK), 0);
    capture->saved = dup(STDERR_FILENO);
    assert_true(capture->saved >= 0);
    assert_true(dup2(capture->end[1], STDERR_FILENO) >= 0);
}

static void capture_end(struct capture *capture)
{
    dup2(capture->saved, STDERR_FILENO);
    close(capture->saved);
    close(capture->end[0]);
    close(capture->end[1]);
}

/* The next write as a string; "" when there is none. */
static const char *capture_next(struct capture *capture, char text[PACKET_MAX + 1])
{
    ssize_t count = read(capture->end[0], text, PACKET_MAX);
    text[count > 0 ? count : 0] = '\0';
    return text;
}

static void case_texts_are_known(void **state)
{
    (void)state;
    assert_string_equal(tess_status_text(TESS_OK), "ok");
    assert_string_equal(tess_status_text(TESS_ERR_TIMEOUT), "time limit passed");
#define TEST_CODE(name, value, text)                                                               \
    assert_int_equal((int)name, value);                                                            \
    assert_string_equal(tess_status_text(name), text);
    TESS_STATUS_LIST(TEST_CODE)
#undef TEST_CODE
    assert_string_equal(tess_status_text((enum tess_status)1), "unknown status");
    assert_string_equal(tess_status_text((enum tess_status) - 1000), "unknown status");
}

static void case_exit_codes(void **state)
{
    (void)state;
    assert_int_equal(tess_status_exit_code(TESS_OK), 0);
    assert_int_equal(tess_status_exit_code(TESS_ERR_USAGE), 2);
    assert_int_equal(tess_status_exit_code(TESS_ERR_INTERRUPTED), 130);
    assert_int_equal(tess_status_exit_code(TESS_ERR_IO), 1);
    assert_int_equal(tess_status_exit_code(TESS_ERR_ABORTED), 1);
}

static void case_one_write_a_line(void **state)
{
    (void)state;
    struct capture capture;
    char text[PACKET_MAX + 1];
    capture_begin(&capture);
    tess_log(TESS_LOG_INFO, "step %d", 7);
    tess_log(TESS_LOG_WARN, "slow");
    tess_log_set_rank(2);
    enum tess_status status = tess_fail(TESS_ERR_DATA, "%s is short", "file");
    tess_log_set_rank(-1);
    assert_string_equal(capture_next(&capture, text), "tessera: step 7\n");
    assert_string_equal(capture_next(&capture, text), "tessera: warning: slow\n");
    assert_string_equal(capture_next(&capture, text), "tessera: rank 2: error: file is short\n");
    assert_string_equal(capture_next(&capture, text), "");
    capture_end(&capture);
    assert_int_equal(status, TESS_ERR_DATA);
    assert_string_equal(tess_log_last_error(), "file is short");
}

static void case_level_filters(void **state)
{
    (void)state;
    struct capture capture;
    char text[PACKET_MAX + 1];
    capture_begin(&capture);
    tess_log(TESS_LOG_DEBUG, "dropped by default");
    tess_log_set_level(TESS_LOG_ERROR);
    tess_log(TESS_LOG_INFO, "dropped");
    tess_log(TESS_LOG_WARN, "dropped");
    tess_log(TESS_LOG_ERROR, "kept");
    tess_log_set_level(TESS_LOG_DEBUG);
    tess_log(TESS_LOG_DEBUG, "detail");
    tess_log_set_level(TESS_LOG_INFO);
    assert_string_equal(capture_next(&capture, text), "tessera: error: kept\n");
    assert_string_equal(capture_next(&capture, text), "tessera: debug: detail\n");
    assert_string_equal(capture_next(&capture, text), "");
    capture_end(&capture);
}

static void case_control_characters_do_not_forge_lines(void **state)
{
    (void)state;
    struct capture capture;
    char text[PACKET_MAX + 1];
    capture_begin(&capture);
    tess_fail(TESS_ERR_USAGE, "name 'a\nb\tc\033[2J\177'");
    assert_string_equal(capture_next(&capture, text), "tessera: error: name 'a b c?[2J?'\n");
    capture_end(&capture);
}

static void case_long_messages_are_cut_between_characters(void **state)
{
    (void)state;
    struct capture capture;
    char text[PACKET_MAX + 1], message[3001];
    for (size_t i = 0; i < 3000; i += 2)
        memcpy(message + i, "\xc3\xa9", 2); /* e with an acute accent */
    message[3000] = '\0';
    for (int shift = 0; shift < 2; shift++) {
        capture_begin(&capture);
        tess_fail(TESS_ERR_USAGE, "%s%s", shift ? "x" : "", message);
        size_t length = strlen(capture_next(&capture, text));
        assert_int_equal(read(capture.end[0], &(char){0}, 1), -1);
        capture_end(&capture);
        assert_true(length > 2000 && length < 2100);
        assert_string_equal(text + length - 4, "...\n");
        assert_memory_equal(text + length - 6, "\xc3\xa9", 2);
    }
}

static void case_errno_and_own_argument(void **state)
{
    (void)state;
    struct capture capture;
    capture_begin(&capture);
    errno = ENOSPC;
    tess_fail(TESS_ERR_IO, "%m");
    assert_int_equal(errno, ENOSPC);
    assert_string_equal(tess_log_last_error(), strerror(ENOSPC));
    tess_fail(TESS_ERR_IO, "first: %s", tess_log_last_error());
    capture_end(&capture);
    assert_string_equal(tess_log_last_error(), "first: No space left on device");
}

#define THREADS 4
#define LINES   50

static void *thread_logs(void *context)
{
    int rank = (int)(intptr_t)context;
    tess_log_set_rank(rank);
    bool own = tess_log_last_error()[0] == '\0';
    for (int i = 0; i < LINES; i++) {
        char expected[32];
        tess_fail(TESS_ERR_DATA, "line %d of %d", i, rank);
        snprintf(expected, sizeof(expected), "line %d of %d", i, rank);
        own = own && strcmp(tess_log_last_error(), expected) == 0;
    }
    return own ? context : NULL;
}

static void case_rank_and_error_are_the_threads_own(void **state)
{
    (void)state;
    struct capture capture;
    char text[PACKET_MAX + 1];
    int seen[THREADS + 1] = {0}, total = 0;
    pthread_t thread[THREADS];
    capture_begin(&capture);
    /* Blocking for the writers: the pipe may be full before it is read. */
    fcntl(capture.end[1], F_SETFL, O_DIRECT);
    tess_fail(TESS_ERR_DATA, "main");
    capture_next(&capture, text);
    for (intptr_t t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&thread[t], NULL, thread_logs, (void *)(t + 1)), 0);
    while (total < THREADS * LINES) {
        int rank = 0, line = 0, again = 0, end = 0;
        if (!*capture_next(&capture, text)) {
            usleep(1000);
            continue;
        }
        int fields =
            sscanf(text, "tessera: rank %d: error: line %d of %d\n%n", &rank, &line, &again, &end);
        assert_int_equal(fields, 3);
        assert_int_equal(text[end], '\0');
        assert_int_equal(rank, again);
        assert_in_range(rank, 1, THREADS);
        assert_int_equal(line, seen[rank]++); /* in order, none lost */
        total++;
    }
    for (int t = 0; t < THREADS; t++) {
        void *own = NULL;
        assert_int_equal(pthread_join(thread[t], &own), 0);
        assert_non_null(own);
    }
    capture_end(&capture);
    assert_string_equal(tess_log_last_error(), "main");
}

static enum tess_status give(enum tess_status status, int *calls)
{
    ++*calls;
    return status;
}

static enum tess_status try_two(enum tess_status first, enum tess_status second, int *calls)
{
    TESS_TRY(give(first, calls));
    TESS_TRY(give(second, calls));
    return TESS_OK;
}

static enum tess_status keep_two(enum tess_status first, enum tess_status second, int *calls)
{
    enum tess_status status = TESS_OK;
    TESS_KEEP(status, give(first, calls));
    TESS_KEEP(status, give(second, calls));
    return status;
}

static enum tess_status goto_two(enum tess_status first, enum tess_status second, int *calls)
{
    enum tess_status status;
    TESS_TRY_GOTO(status, out, give(first, calls));
    TESS_TRY_GOTO(status, out, give(second, calls));
out:
    return status;
}

static void case_control_flow_macros(void **state)
{
    (void)state;
    int calls = 0;
    assert_int_equal(try_two(TESS_OK, TESS_OK, &calls), TESS_OK);
    assert_int_equal(calls, 2);
    assert_int_equal(try_two(TESS_ERR_IO, TESS_ERR_COMM, &calls), TESS_ERR_IO);
    assert_int_equal(calls, 3);
    assert_int_equal(keep_two(TESS_ERR_IO, TESS_ERR_COMM, &calls), TESS_ERR_IO);
    assert_int_equal(calls, 5);
    assert_int_equal(keep_two(TESS_OK, TESS_ERR_COMM, &calls), TESS_ERR_COMM);
    assert_int_equal(calls, 7);
    assert_int_equal(goto_two(TESS_ERR_IO, TESS_OK, &calls), TESS_ERR_IO);
    assert_int_equal(calls, 8);
    assert_int_equal(goto_two(TESS_OK, TESS_ERR_COMM, &calls), TESS_ERR_COMM);
    assert_int_equal(calls, 10);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_texts_are_known),
        cmocka_unit_test(case_exit_codes),
        cmocka_unit_test(case_one_write_a_line),
        cmocka_unit_test(case_level_filters),
        cmocka_unit_test(case_control_characters_do_not_forge_lines),
        cmocka_unit_test(case_long_messages_are_cut_between_characters),
        cmocka_unit_test(case_errno_and_own_argument),
        cmocka_unit_test(case_rank_and_error_are_the_threads_own),
        cmocka_unit_test(case_control_flow_macros),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
