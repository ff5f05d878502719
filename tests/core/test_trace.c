/*
 * The recorder of time lines, driven by hand: spans follow one another, calls overlap, the window
 * and a full lane end the recording in order, and a rank that is killed leaves its open spans.
 */
#include "core/trace.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct tess_trace *trace;
static struct tess_trace_lane *lane;
static const struct tess_trace_event *event;
static uint32_t count;
static const struct tess_comm_observer *observer;
static struct tess_comm comm = {.rank_count = 4};

static void open_lane(uint32_t event_max, int64_t first, int64_t steps)
{
    assert_int_equal(tess_trace_open(2, event_max, first, steps, &trace), TESS_OK);
    lane = tess_trace_lane(trace, 1);
    observer = tess_trace_observer(lane);
    tess_trace_start(lane);
}

static void read_lane(void)
{
    event = tess_trace_events(lane, &count);
}

static void close_lane(void)
{
    tess_trace_events(tess_trace_lane(trace, 0), &count);
    assert_int_equal(count, 0); /* no other lane was touched */
    tess_trace_close(trace);
}

static void call(uint64_t ticket, const char *site)
{
    const struct tess_comm_call made = {
        .collective = TESS_COLLECTIVE_ALL_REDUCE, .dtype = TESS_BF16, .count = 100, .site = site};

    observer->called(observer->context, &comm, &made, ticket);
}

static void complete(uint64_t ticket)
{
    observer->completed(observer->context, &comm, ticket);
}

static void wait_for(uint64_t ticket, bool on)
{
    observer->waiting(observer->context, &comm, ticket, on);
}

static void is_event(uint32_t at, enum tess_trace_kind kind, int what, int64_t step)
{
    assert_true(at < count);
    assert_int_equal(event[at].kind, kind);
    assert_int_equal(event[at].what, what);
    assert_int_equal(event[at].step, step);
}

static void case_spans_follow_one_another(void **state)
{
    (void)state;
    open_lane(100, 1, 10);
    tess_trace_begin(lane, TESS_TRACE_STEP, 1);
    tess_trace_doing(lane, TESS_DOING_LOADING, -1, true);
    tess_trace_doing(lane, TESS_DOING_FORWARD, 3, true);
    tess_trace_doing(lane, TESS_DOING_BETWEEN, -1, true);
    tess_trace_end(lane);
    tess_trace_begin(lane, TESS_TRACE_EVALUATION, 1);
    tess_trace_doing(lane, TESS_DOING_FORWARD, 0, false);
    read_lane();
    assert_int_equal(count, 6);
    is_event(0, TESS_TRACE_DOING, TESS_DOING_STARTING, 0);
    is_event(1, TESS_TRACE_PHASE, TESS_TRACE_STEP, 1);
    is_event(2, TESS_TRACE_DOING, TESS_DOING_LOADING, 1);
    is_event(3, TESS_TRACE_DOING, TESS_DOING_FORWARD, 1);
    is_event(4, TESS_TRACE_PHASE, TESS_TRACE_EVALUATION, 1);
    is_event(5, TESS_TRACE_DOING, TESS_DOING_FORWARD, 1);
    assert_int_equal(event[3].unit, 3);
    assert_true(event[3].training && !event[5].training);
    /* A span ends at the very moment at which the next begins. */
    assert_true(event[0].begin_s >= tess_trace_origin_s(trace));
    assert_true(event[0].end_s == event[1].begin_s);
    assert_true(event[2].end_s == event[3].begin_s);
    assert_true(event[3].end_s <= event[1].end_s && event[1].end_s <= event[4].begin_s);
    assert_true(event[4].end_s == 0 && event[5].end_s == 0); /* where it is now */
    tess_trace_stop(lane);
    assert_true(event[4].end_s > 0 && event[5].end_s > 0);
    tess_trace_doing(lane, TESS_DOING_OPTIMIZER, -1, true);
    read_lane();
    assert_int_equal(count, 6);
    close_lane();
}

static void case_calls_overlap(void **state)
{
    (void)state;
    open_lane(100, 1, 10);
    tess_trace_begin(lane, TESS_TRACE_STEP, 1);
    call(70, "somewhere/in/a/folder/with/a/long/name/file.c:7");
    call(71, "file.c:8");
    wait_for(71, true);
    complete(71);
    wait_for(71, false);
    complete(99);       /* of another set */
    wait_for(71, true); /* complete already */
    wait_for(71, false);
    complete(70);
    read_lane();
    assert_int_equal(count, 5);
    is_event(2, TESS_TRACE_CALL, TESS_COLLECTIVE_ALL_REDUCE, 1);
    is_event(3, TESS_TRACE_CALL, TESS_COLLECTIVE_ALL_REDUCE, 1);
    is_event(4, TESS_TRACE_WAIT, TESS_COLLECTIVE_ALL_REDUCE, 1);
    assert_int_equal(event[2].bytes, 200);
    assert_int_equal(event[2].dtype, TESS_BF16);
    assert_int_equal(event[2].rank_count, 4);
    assert_int_equal(strlen(event[2].site), TESS_TRACE_SITE_BYTES - 1);
    assert_non_null(strstr(event[2].site, "name/file.c:7"));
    assert_string_equal(event[3].site, "file.c:8");
    assert_int_equal(event[4].call, event[3].call);
    assert_int_not_equal(event[2].call, event[3].call);
    assert_true(event[2].begin_s <= event[3].begin_s && event[3].end_s <= event[2].end_s);
    assert_true(event[4].begin_s <= event[3].end_s && event[3].end_s <= event[4].end_s);
    close_lane();
}

/* Only steps 3 and 4 are recorded; a call begun in step 4 still gets its end. */
static void case_window(void **state)
{
    (void)state;
    open_lane(100, 3, 2);
    for (int64_t step = 1; step <= 6; step++) {
        tess_trace_begin(lane, TESS_TRACE_STEP, step);
        tess_trace_doing(lane, TESS_DOING_LOADING, -1, true);
        call((uint64_t)step, "a.c:1");
        tess_trace_end(lane);
        if (step > 1)
            complete((uint64_t)step - 1);
    }
    read_lane();
    assert_int_equal(count, 6);
    for (uint32_t e = 0; e < count; e++) {
        assert_int_equal(event[e].step, 3 + e / 3);
        assert_true(event[e].end_s > 0);
    }
    close_lane();
}

static void case_full(void **state)
{
    int64_t step;

    (void)state;
    open_lane(5, 1, 10);
    tess_trace_begin(lane, TESS_TRACE_STEP, 1);
    call(1, "a.c:1");
    tess_trace_begin(lane, TESS_TRACE_STEP, 2);
    tess_trace_doing(lane, TESS_DOING_LOADING, -1, true);
    assert_true(tess_trace_full_s(lane, &step) == 0);
    tess_trace_doing(lane, TESS_DOING_FORWARD, 0, true); /* the sixth */
    assert_true(tess_trace_full_s(lane, &step) > 0);
    assert_int_equal(step, 2);
    complete(1);
    wait_for(1, true);
    call(2, "a.c:2");
    complete(2);
    tess_trace_begin(lane, TESS_TRACE_STEP, 3);
    tess_trace_doing(lane, TESS_DOING_LOADING, -1, true);
    tess_trace_stop(lane);
    read_lane();
    assert_int_equal(count, 5);
    for (uint32_t e = 0; e < count; e++)
        assert_true(event[e].end_s > 0 && event[e].end_s >= event[e].begin_s);
    /* Not when they really ended, which was not recorded. */
    assert_true(event[3].end_s == tess_trace_full_s(lane, &step));
    assert_true(event[4].end_s == event[3].end_s);
    assert_int_equal(step, 2);
    close_lane();
}

/* More calls under way than the recorder follows are left out, not mixed up. */
static void case_many_calls(void **state)
{
    uint32_t ended = 0;

    (void)state;
    open_lane(5000, 1, 1);
    for (uint64_t ticket = 0; ticket < 2000; ticket++)
        call(ticket, "a.c:1");
    for (uint64_t ticket = 0; ticket < 2000; ticket++)
        complete(ticket);
    read_lane();
    for (uint32_t e = 1; e < count; e++)
        ended += event[e].end_s > 0;
    assert_int_equal(ended, count - 1);
    assert_true(count > 1000);
    close_lane();
}

static void case_no_lane(void **state)
{
    (void)state;
    assert_null(tess_trace_lane(NULL, 3));
    assert_null(tess_trace_observer(NULL));
    tess_trace_start(NULL);
    tess_trace_begin(NULL, TESS_TRACE_STEP, 1);
    tess_trace_doing(NULL, TESS_DOING_LOADING, -1, true);
    tess_trace_end(NULL);
    tess_trace_stop(NULL);
    tess_trace_close(NULL);
}

static void case_killed_rank(void **state)
{
    pid_t pid;

    (void)state;
    assert_int_equal(tess_trace_open(2, 100, 1, 10, &trace), TESS_OK);
    lane = tess_trace_lane(trace, 1);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        tess_trace_start(lane);
        tess_trace_begin(lane, TESS_TRACE_STEP, 1);
        tess_trace_doing(lane, TESS_DOING_BACKWARD, 2, true);
        raise(SIGKILL);
    }
    assert_true(pid > 0 && waitpid(pid, NULL, 0) == pid);
    read_lane();
    assert_int_equal(count, 3);
    is_event(2, TESS_TRACE_DOING, TESS_DOING_BACKWARD, 1);
    assert_int_equal(event[2].unit, 2);
    assert_true(event[0].end_s > 0 && event[1].end_s == 0 && event[2].end_s == 0);
    close_lane();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_spans_follow_one_another),
        cmocka_unit_test(case_calls_overlap),
        cmocka_unit_test(case_window),
        cmocka_unit_test(case_full),
        cmocka_unit_test(case_many_calls),
        cmocka_unit_test(case_no_lane),
        cmocka_unit_test(case_killed_rank),
    };

    return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
