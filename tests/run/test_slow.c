/*
 * The judge of slow ranks and links, given made-up windows: what is late is named with its cause,
 * what is not late by 10 % of a step is not, and pure chance stays below the bound that slow.h
 * derives.
 */
#include "base/clock.h"
#include "run/slow.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Sanitizers slow it down. */
#define TESTS_SLOWER TESTS_DIVISOR

#define STEP_S 0.125 /* a window of 20 takes longer than what has to last */

static const char *const host[] = {"h0", "h0", "h1", "h1"};

struct case_ {
    struct tess__slow *slow;
    int32_t ranks;
    int64_t window;
    char text[1024]; /* of the latest window: its sentences, each with a newline */
};

static struct case_ case_open_on(const char *const *hosts, int32_t data, int32_t stages)
{
    const struct tess_mesh mesh = {.rank_count = data * stages, .count = {data, 1, stages}};
    struct case_ c = {.slow = tess__slow_open(&mesh, hosts), .ranks = data * stages};
    assert_non_null(c.slow);
    return c;
}

static struct case_ case_open(int32_t data, int32_t stages)
{
    return case_open_on(host, data, stages);
}

/* A rank's window: every step the same, all of it forward and backward. */
static struct tess__run_pace pace_of(const struct case_ *c, double step_s, double own_s)
{
    struct tess__run_pace pace = {.window = c->window,
                                  .step = (c->window + 1) * TESS__PACE_STEPS,
                                  .step_s = (float)step_s,
                                  .mean_s = (float)step_s,
                                  .median_s = (float)own_s};
    for (int i = 0; i < TESS__PACE_STEPS; i++)
        pace.own_s[i] = (float)own_s;
    pace.part_s[TESS__PACE_COMPUTE] = pace.part_mean_s[TESS__PACE_COMPUTE] = (float)own_s;
    return pace;
}

static bool give(struct case_ *c, int32_t rank, const struct tess__run_pace *pace)
{
    struct tess__message message = {.rank = rank, .kind = TESS__RUN_PACE};
    memcpy(message.payload, pace, sizeof(*pace));
    const bool whole = tess__slow_take(c->slow, &message);
    const char *text;
    c->text[0] = '\0';
    while (whole && (text = tess__slow_next(c->slow))) {
        assert_true(strlen(c->text) + strlen(text) + 2 < sizeof(c->text));
        strcat(strcat(c->text, text), "\n");
    }
    return whole;
}

static void give_link(const struct case_ *c, int32_t from, int32_t to, double bytes, double busy_s)
{
    struct tess__message message = {.rank = from, .kind = TESS__RUN_LINKS};
    struct tess__run_links links = {.window = c->window, .count = 1};
    links.link[0].peer = to;
    links.link[0].bytes = (float)bytes;
    links.link[0].busy_s = (float)busy_s;
    memcpy(message.payload, &links, sizeof(links));
    assert_false(tess__slow_take(c->slow, &message));
}

/* A window in which every rank's own time is half of a step, but for rank `odd`. */
static void window(struct case_ *c, double step_s, int32_t odd, const struct tess__run_pace *other)
{
    const struct tess__run_pace usual = pace_of(c, step_s, step_s / 2);
    for (int32_t r = 0; r < c->ranks; r++)
        assert_true(give(c, r, r == odd ? other : &usual) == (r == c->ranks - 1));
    c->window++;
}

static void assert_text(const struct case_ *c, const char *part)
{
    if (strstr(c->text, part) == NULL)
        fail_msg("no '%s' in '%s'", part, c->text);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static void test_names_rank_and_part(void **state)
{
    static const char *const in[TESS__PACE_PARTS] = {"late in waiting for its samples",
                                                     "late in computing", "late in the optimizer",
                                                     "late in what is done between"};
    (void)state;
    for (int p = 0; p < TESS__PACE_PARTS; p++) {
        struct case_ c = case_open(4, 1);
        window(&c, STEP_S, -1, NULL);
        assert_string_equal(c.text, "");
        struct tess__run_pace late = pace_of(&c, STEP_S, STEP_S * 0.62);
        late.part_s[TESS__PACE_COMPUTE] = (float)STEP_S / 2;
        late.part_s[p] += (float)(STEP_S * 0.12);
        window(&c, STEP_S, 2, &late);
        assert_text(&c, "rank 2 (host h1) holds the others up since step 21: it takes 77.5 ms of a "
                        "step for itself, ranks like it 62.5 ms; it is ");
        assert_text(&c, in[p]);
        assert_int_equal(tess__slow_count(c.slow), 1);
        assert_true(fabs(tess__slow_rank_of(c.slow, 2)->score - 1.24) < 1e-6);
        assert_true(fabs(tess__slow_rank_of(c.slow, 1)->score - 1) < 1e-6);
        late = pace_of(&c, STEP_S, STEP_S * 0.62);
        window(&c, STEP_S, 2, &late); /* once */
        assert_string_equal(c.text, "");
        window(&c, STEP_S, -1, NULL);
        assert_text(&c, "rank 2 (host h1) is no longer late: from step 61 on");
        assert_int_equal(tess__slow_count(c.slow), 0);
        tess__slow_close(c.slow);
    }
}

static void test_names_processor(void **state)
{
    struct case_ c = case_open(2, 1);
    struct tess__run_pace late = pace_of(&c, STEP_S, STEP_S * 0.7);
    (void)state;
    late.delay_s = (float)(STEP_S * 0.15);
    window(&c, STEP_S, 1, &late);
    assert_text(&c, "rank 1 (host h0) holds the others up since step 1");
    assert_text(&c, "waiting for its processor");
    tess__slow_close(c.slow);
}

/* Random waits for a processor are longer than what it computes more than the others. */
static void test_finds_work_below_noise(void **state)
{
    struct case_ c = case_open(2, 1);
    (void)state;
    srand(1);
    for (int w = 0; w < 2; w++, c.window++) {
        for (int32_t r = 0; r < 2; r++) {
            struct tess__run_pace pace = pace_of(&c, STEP_S, STEP_S / 2);
            for (int i = 0; i < TESS__PACE_STEPS; i++) {
                pace.work_s[i] = (float)(STEP_S * (r == 1 && w == 1 ? 0.36 : 0.2));
                pace.own_s[i] = pace.work_s[i] + (float)(STEP_S * (rand() % 2));
            }
            pace.part_s[TESS__PACE_COMPUTE] = pace.work_s[0];
            pace.delay_s = (float)(STEP_S * r);
            give(&c, r, &pace);
        }
        if (w == 0)
            assert_string_equal(c.text, "");
    }
    assert_text(&c, "rank 1 (host h0) holds the others up since step 21: it takes 45 ms of a "
                    "step for itself, ranks like it 25 ms; it is late in computing");
    tess__slow_close(c.slow);
}

/* The step is judged without the lateness: 9.9 of 100 is late, 8.9 is not. */
static void test_ten_percent(void **state)
{
    struct case_ c = case_open(4, 1);
    (void)state;
    struct tess__run_pace late = pace_of(&c, STEP_S, STEP_S * (0.5 + 0.089));
    window(&c, STEP_S, 1, &late);
    assert_string_equal(c.text, "");
    late = pace_of(&c, STEP_S, STEP_S * (0.5 + 0.092));
    window(&c, STEP_S, 1, &late);
    assert_text(&c, "rank 1 (host h0) holds");
    tess__slow_close(c.slow);
}

/* 17 of 20 steps are late and the others make up for it; one step in five windows saves. */
static void test_single_steps_do_not_count(void **state)
{
    struct case_ c = case_open(2, 1);
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct tess__run_pace late = pace_of(&c, STEP_S, STEP_S * 0.6);
        for (int s = 0; s < 3; s++)
            late.own_s[(i + 7 * s) % TESS__PACE_STEPS] = 0;
        if (i % 5 == 0)
            late.own_s[(i + 1) % TESS__PACE_STEPS] = (float)(STEP_S * 10);
        window(&c, STEP_S, 1, &late);
        assert_string_equal(c.text, "");
    }
    tess__slow_close(c.slow);
}

/* Windows of short steps count once they have lasted 2 s. */
static void test_short_steps_have_to_last(void **state)
{
    struct case_ c = case_open(2, 1);
    (void)state;
    for (int i = 1; i <= 7; i++) { /* 0.3125 s each */
        const struct tess__run_pace late = pace_of(&c, STEP_S / 8, STEP_S / 10);
        window(&c, STEP_S / 8, 1, &late);
        if (i < 7)
            assert_string_equal(c.text, "");
    }
    assert_text(&c, "rank 1 (host h0) holds the others up since step 1:");
    tess__slow_close(c.slow);
}

/* Every fourth step takes twice as long: no step is late for long, the rank is. */
static void test_means_of_windows(void **state)
{
    struct case_ c = case_open(2, 1);
    (void)state;
    for (int w = 1; w <= 18; w++) {
        struct tess__run_pace late = pace_of(&c, STEP_S, STEP_S / 2);
        for (int i = 0; i < TESS__PACE_STEPS; i += 4)
            late.own_s[i] *= 2;
        late.part_mean_s[TESS__PACE_DATA] = (float)(STEP_S / 8);
        window(&c, STEP_S, 0, &late);
        if (w < 18)
            assert_string_equal(c.text, "");
    }
    assert_text(&c, "rank 0 (host h0) holds the others up since step 1: it takes 78.1 ms of a step "
                    "for itself, ranks like it 62.5 ms; it is late in waiting for its samples");
    tess__slow_close(c.slow);
}

/* Stages have different work: what counts is that one changes and the others do not. */
static void test_stages_by_their_change(void **state)
{
    struct case_ c = case_open(1, 3);
    (void)state;
    for (int i = 0; i < 40; i++, c.window++) {
        const double load =
            i >= 10 ? 1.5 : 1;                /* all become slower, and that is nobody's lateness */
        const double odd = i >= 20 ? 1.3 : 1; /* stage 1 alone */
        for (int32_t r = 0; r < 3; r++) {
            struct tess__run_pace pace =
                pace_of(&c, STEP_S, STEP_S * 0.2 * (r + 1) * load * (r == 1 ? odd : 1));
            pace.kind = r;
            give(&c, r, &pace);
        }
        if (i != 20)
            assert_string_equal(c.text, "");
        else
            assert_text(&c, "rank 1 (host h0) holds the others up since step 401");
    }
    tess__slow_close(c.slow);
}

/* One is heard of too late: the window is left out, not mixed with another one. */
static void test_windows_are_not_mixed(void **state)
{
    struct case_ c = case_open(2, 1);
    (void)state;
    const struct tess__run_pace first = pace_of(&c, STEP_S, STEP_S / 2);
    c.window++;
    const struct tess__run_pace second = pace_of(&c, STEP_S, STEP_S / 2);
    assert_false(give(&c, 0, &first));
    assert_false(give(&c, 0, &second));
    assert_false(give(&c, 1, &first));
    assert_true(give(&c, 1, &second));
    assert_int_equal(tess__slow_step(c.slow), 2 * TESS__PACE_STEPS);
    tess__slow_close(c.slow);
}

/*
 * Two ranks whose own times are drawn from one distribution, so wide that the later one is late in
 * nearly every step: p < 1/2. Of 2 x 20,000 windows at most 2.0e-4 are late, 8 by expectation; 6
 * standard deviations more are 25.
 */
static void test_chance_stays_below_the_bound(void **state)
{
    struct case_ c = case_open(2, 1);
    int began = 0;
    (void)state;
    srand(13);
    for (int w = 0; w < 20000; w++, c.window++) {
        for (int32_t r = 0; r < 2; r++) {
            struct tess__run_pace pace = pace_of(&c, STEP_S, STEP_S / 2);
            for (int i = 0; i < TESS__PACE_STEPS; i++)
                pace.own_s[i] =
                    (float)(STEP_S * (0.1 - 2 * log((rand() + 1.0) / (RAND_MAX + 2.0))));
            give(&c, r, &pace);
        }
        began += strstr(c.text, "holds the others up") != NULL;
    }
    assert_in_range(began, 0, 25);
    tess__slow_close(c.slow);
}

/* ---- links ----------------------------------------------------------------------------------- */

/* 0 and 1 exchange within h0, 2 and 3 within h1, 0 and 2, 1 and 3 between the hosts. */
static void give_links(const struct case_ *c, double of_odd)
{
    const int32_t pair[][2] = {{0, 1}, {2, 3}, {0, 2}, {1, 3}};
    for (int i = 0; i < 4; i++)
        for (int way = 0; way < 2; way++) {
            const int32_t from = pair[i][way], to = pair[i][1 - way];
            const double rate = i < 2 ? 1e9 : 1e8;
            give_link(c, from, to, 1e6, 1e6 / rate / (from == 3 && to == 1 ? of_odd : 1));
        }
}

static void test_names_link(void **state)
{
    struct case_ c = case_open(4, 1);
    (void)state;
    give_links(&c, 1); /* within a host they are ten times as fast: another kind */
    window(&c, STEP_S, -1, NULL);
    assert_string_equal(c.text, "");
    give_links(&c, 0.6); /* slower, but not by half */
    window(&c, STEP_S, -1, NULL);
    give_links(&c, 0.48); /* half as fast, but that is no tenth of a step: 10.8 ms of 125 */
    window(&c, STEP_S, -1, NULL);
    assert_string_equal(c.text, "");
    give_links(&c, 0.25);
    window(&c, STEP_S, -1, NULL);
    assert_text(&c, "the link from rank 3 (host h1) to rank 1 (host h0) on axis data is slow since "
                    "step 61: 25 MB/s, where 100 MB/s are usual; that is 30 ms of each step");
    give_links(&c, 1);
    window(&c, STEP_S, -1, NULL);
    assert_text(&c, "on axis data is no longer slow: from step 81 on");
    tess__slow_close(c.slow);
}

/* A link that is 30 ms late, to a rank that waits 20 or 15 ms of a step for its processor: 10 are
 * no tenth of a step, 15 are. */
static void test_link_and_processor(void **state)
{
    (void)state;
    for (int end = 0; end < 2; end++) {
        struct case_ c = case_open(4, 1);
        struct tess__run_pace waits = pace_of(&c, STEP_S, STEP_S / 2);
        give_links(&c, 1);
        window(&c, STEP_S, -1, NULL);
        for (int i = 0; i < 3; i++) {
            waits.delay_s = i < 2 ? 0.02F : 0.015F;
            waits.window = c.window;
            waits.step = (c.window + 1) * TESS__PACE_STEPS;
            give_links(&c, 0.25);
            window(&c, STEP_S, end == 0 ? 1 : 3, &waits);
            if (i < 2)
                assert_string_equal(c.text, "");
            else
                assert_text(&c, "the link from rank 3 (host h1) to rank 1 (host h0) on axis data "
                                "is slow since step 61");
        }
        tess__slow_close(c.slow);
    }
}

/* Small messages wait behind those of others: their time is no speed of the link. */
static void test_small_messages(void **state)
{
    struct case_ c = case_open(4, 1);
    (void)state;
    for (int i = 0; i < 10; i++) {
        give_links(&c, 1);
        give_link(&c, 1, 3, 800, 0.02);
        give_link(&c, 3, 1, 800, 0.02);
        window(&c, STEP_S, -1, NULL);
        assert_string_equal(c.text, "");
    }
    tess__slow_close(c.slow);
}

/* 0 and 2 are what is between the hosts, and slow down at once: by short windows that is named
 * together, and not again pair by pair. */
static void test_names_network_once(void **state)
{
    struct case_ c = case_open(4, 1);
    struct tess__message message = {.kind = TESS__RUN_LINKS};
    (void)state;
    for (int i = 0; i < 5; i++) {
        give_links(&c, 1);
        window(&c, STEP_S, -1, NULL);
    }
    for (int w = 21; w < 23; w++)
        for (int32_t r = 0; r < 4; r++) {
            struct tess__run_links links = {.window = w, .since = 103, .last = 1, .count = 1};
            links.step_s = (float)STEP_S;
            links.link[0].peer = (r + 2) % 4;
            links.link[0].bytes = 1e6F;
            links.link[0].busy_s = 0.1F;
            message.rank = r;
            memcpy(message.payload, &links, sizeof(links));
            assert_true(tess__slow_take(c.slow, &message) == (w == 22 && r == 3));
        }
    assert_string_equal(
        tess__slow_next(c.slow),
        "the network between hosts h0 and h1 is slow since step 103: 4 pairs of ranks "
        "send 10 MB/s each, where 100 MB/s are usual; that is 90 ms of each step");
    assert_null(tess__slow_next(c.slow));
    assert_int_equal(tess__slow_count(c.slow), 4);
    for (int i = 0; i < 9; i++) {
        for (int32_t r = 0; r < 4; r++)
            give_link(&c, r, (r + 2) % 4, 1e6, i < 8 ? 0.1 : 0.01);
        window(&c, STEP_S, -1, NULL);
        if (i < 8)
            assert_string_equal(c.text, "");
    }
    assert_string_equal(c.text, "the network between hosts is as fast as usual again: from step "
                                "261 on\n");
    assert_int_equal(tess__slow_count(c.slow), 0);
    tess__slow_close(c.slow);
}

/* Two links are all there are, and both become slow: their own first windows show it, but not
 * within a host. */
static void test_links_by_their_change(void **state)
{
    (void)state;
    for (int apart = 0; apart < 2; apart++) {
        struct case_ c = case_open_on(host + apart, 2, 1);
        for (int i = 0; i < 7; i++) {
            const double busy_s = i < 5 ? 0.01 : 0.05;
            give_link(&c, 0, 1, 1e6, busy_s);
            give_link(&c, 1, 0, 1e6, busy_s);
            window(&c, STEP_S, -1, NULL);
            if (i != 5 || !apart)
                assert_string_equal(c.text, "");
            else
                assert_text(&c, "the link from rank 1 (host h1) to rank 0 (host h0) on axis data "
                                "is slow since step 101: 20 MB/s, where 100 MB/s are usual");
        }
        assert_int_equal(tess__slow_count(c.slow), 2 * apart);
        tess__slow_close(c.slow);
    }
}

/* What a damaged message may hold. */
static void test_refuses_odd_links(void **state)
{
    struct case_ c = case_open(2, 1);
    struct tess__message message = {.rank = 0, .kind = TESS__RUN_LINKS};
    struct tess__run_links links = {.count = 1000};
    struct tess__slow_link link;
    (void)state;
    for (int i = 0; i < TESS__PACE_LINKS; i++)
        links.link[i].peer = i % 2 ? -1 : 64;
    memcpy(message.payload, &links, sizeof(links));
    assert_false(tess__slow_take(c.slow, &message));
    window(&c, STEP_S, -1, NULL);
    assert_false(tess__slow_link_of(c.slow, 0, &link));
    tess__slow_close(c.slow);
}

/* ---- many ranks ------------------------------------------------------------------------------ */

/* Ranks are compared with each other in a time that does not grow with the square of their number:
 * none has a median of its own. */
static void test_many_ranks(void **state)
{
    enum { RANKS = 512, WINDOWS = 6, BETWEEN = RANKS / 2 - 1 };
    static const char *hosts[RANKS];
    (void)state;
    for (int32_t r = 0; r < RANKS; r++)
        hosts[r] = r < RANKS / 2 ? "h0" : "h1";
    struct case_ c = case_open_on(hosts, RANKS, 1);
    const double begin_s = tess_clock_thread_s();
    for (int w = 0; w < WINDOWS; w++) {
        const struct tess__run_pace late = pace_of(&c, STEP_S, STEP_S * 0.62);
        for (int32_t r = 0; r < RANKS; r++) /* a ring over the hosts */
            give_link(&c, r, (r + 1) % RANKS, 1e6, r == BETWEEN && w == WINDOWS - 1 ? 1 : 0.01);
        window(&c, STEP_S, 300, &late);
        if (w == 0)
            assert_text(&c, "rank 300 (host h1) holds the others up since step 1:");
    }
    const double took_s = tess_clock_thread_s() - begin_s;
    assert_text(&c, "the link from rank 255 (host h0) to rank 256 (host h1) on axis data is slow");
    assert_int_equal(tess__slow_count(c.slow), 2);
    struct tess__slow_link link;
    for (int32_t r = 0; r < RANKS; r++) {
        assert_true(tess__slow_link_of(c.slow, r, &link));
        assert_int_equal(link.from, r);
        assert_int_equal(link.slow, r == BETWEEN);
    }
    assert_false(tess__slow_link_of(c.slow, RANKS, &link));
    if (took_s > 0.5 * TESTS_SLOWER)
        fail_msg("%d windows of %d ranks took %.2f s", WINDOWS, RANKS, took_s);
    tess__slow_close(c.slow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_rank_and_part),
        cmocka_unit_test(test_names_processor),
        cmocka_unit_test(test_finds_work_below_noise),
        cmocka_unit_test(test_ten_percent),
        cmocka_unit_test(test_single_steps_do_not_count),
        cmocka_unit_test(test_short_steps_have_to_last),
        cmocka_unit_test(test_means_of_windows),
        cmocka_unit_test(test_stages_by_their_change),
        cmocka_unit_test(test_windows_are_not_mixed),
        cmocka_unit_test(test_chance_stays_below_the_bound),
        cmocka_unit_test(test_names_link),
        cmocka_unit_test(test_link_and_processor),
        cmocka_unit_test(test_small_messages),
        cmocka_unit_test(test_names_network_once),
        cmocka_unit_test(test_links_by_their_change),
        cmocka_unit_test(test_refuses_odd_links),
        cmocka_unit_test(test_many_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
