/*
 * Pipelines: orders, what stays alive and the bubble for every number of stages up to 16, of
 * micro-batches up to 64 and of chunks up to 4, each order run in virtual time over channels that
 * keep their order; and cuts against every cut there is.
 */
#include "pipe.h"

#include "tessera/log.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Sanitizers: fewer micro-batches, whose number counts twice. */
enum { STAGES_MAX = 16, MICROS_MAX = TESTS_DIVISOR > 1 ? 24 : 64, CHUNKS_MAX = 4 };
enum { VIRTUAL_MAX = STAGES_MAX * CHUNKS_MAX, ACTIONS_MAX = 2 * CHUNKS_MAX * MICROS_MAX };

static struct tess_action pipe_action[STAGES_MAX * ACTIONS_MAX];
static double pipe_start[STAGES_MAX * ACTIONS_MAX];

static struct tess_pipe pipe_of(enum tess_pipe_schedule schedule, int32_t stages, int32_t chunks,
                                int32_t micros)
{
    return (struct tess_pipe){
        .schedule = schedule, .stage_count = stages, .chunk_count = chunks, .micro_count = micros};
}

/* The orders of all ranks, one after the other. */
static void pipe_orders(const struct tess_pipe *pipe)
{
    const int32_t count = tess__pipe_action_count(pipe);
    assert_int_equal(count, 2 * pipe->chunk_count * pipe->micro_count);
    for (int32_t s = 0; s < pipe->stage_count; s++)
        tess__pipe_order(pipe, s, &pipe_action[s * count]);
}

/* What fits the schedule, as the property tests go through it. */
static bool pipe_fits(const struct tess_pipe *pipe)
{
    if (pipe->schedule != TESS_PIPE_INTERLEAVED)
        return pipe->chunk_count == 1;
    return pipe->chunk_count > 1 && pipe->stage_count > 1 &&
           pipe->micro_count % pipe->stage_count == 0;
}

static void pipe_for_all(void (*check)(const struct tess_pipe *pipe))
{
    int32_t checked = 0;
    for (int schedule = 0; schedule < 3; schedule++)
        for (int32_t stages = 1; stages <= STAGES_MAX; stages++)
            for (int32_t micros = 1; micros <= MICROS_MAX; micros++)
                for (int32_t chunks = 1; chunks <= CHUNKS_MAX; chunks++) {
                    const struct tess_pipe pipe =
                        pipe_of((enum tess_pipe_schedule)schedule, stages, chunks, micros);
                    if (!pipe_fits(&pipe))
                        continue;
                    pipe_orders(&pipe);
                    check(&pipe);
                    checked++;
                }
    /* Two schedules on all, and interleaved on the multiples of the stages. */
    int32_t expected = 2 * STAGES_MAX * MICROS_MAX;
    for (int32_t stages = 2; stages <= STAGES_MAX; stages++)
        expected += (CHUNKS_MAX - 1) * (MICROS_MAX / stages);
    assert_int_equal(checked, expected);
}

/* ---- orders ---------------------------------------------------------------------------------- */

/* Every micro-batch once per chunk and direction, forward before backward, backward in order, and
 * as many alive as promised: never more, and at some time as many. */
static void pipe_check_order(const struct tess_pipe *pipe)
{
    const int32_t count = tess__pipe_action_count(pipe);
    for (int32_t s = 0; s < pipe->stage_count; s++) {
        bool seen[CHUNKS_MAX][MICROS_MAX] = {{false}};
        int32_t forward[CHUNKS_MAX] = {0}, backward[CHUNKS_MAX] = {0}, most[CHUNKS_MAX] = {0};
        for (int32_t i = 0; i < count; i++) {
            const struct tess_action *action = &pipe_action[s * count + i];
            const int32_t c = action->chunk;
            assert_in_range(c, 0, pipe->chunk_count - 1);
            assert_in_range(action->micro, 0, pipe->micro_count - 1);
            if (action->phase == TESS_PHASE_FORWARD) {
                assert_false(seen[c][action->micro]);
                seen[c][action->micro] = true;
                forward[c]++;
            } else {
                assert_true(seen[c][action->micro]);
                assert_int_equal(action->micro, backward[c]);
                backward[c]++;
            }
            if (forward[c] - backward[c] > most[c])
                most[c] = forward[c] - backward[c];
        }
        for (int32_t c = 0; c < pipe->chunk_count; c++) {
            assert_int_equal(forward[c], pipe->micro_count);
            assert_int_equal(backward[c], pipe->micro_count);
            assert_int_equal(most[c], tess__pipe_in_flight(pipe, s, c));
        }
        const int32_t left = pipe->stage_count - s;
        if (pipe->schedule == TESS_PIPE_GPIPE)
            assert_int_equal(most[0], pipe->micro_count);
        if (pipe->schedule == TESS_PIPE_1F1B)
            assert_int_equal(most[0], pipe->micro_count < left ? pipe->micro_count : left);
    }
}

static void test_orders(void **state)
{
    (void)state;
    pipe_for_all(pipe_check_order);
}

/* ---- virtual time ---------------------------------------------------------------------------- */

static enum tess_status pipe_time(const struct tess_pipe *pipe, double forward, double backward,
                                  double transfer, double *idle_out, double *span_out)
{
    double time[2][VIRTUAL_MAX];
    for (int32_t v = 0; v < VIRTUAL_MAX; v++) {
        time[0][v] = forward;
        time[1][v] = backward;
    }
    const struct tess_pipe_times times = {time[0], time[1], transfer};
    return tess__pipe_simulate(pipe, pipe_action, &times, pipe_start, idle_out, span_out);
}

/*
 * No rank waits for ever, and on equal stages the time is (v m + p - 1) forwards and backwards, the
 * idle share the formula. All times are small whole numbers, and both sides are a quotient of two
 * of them, so equal means equal.
 */
static void pipe_check_bubble(const struct tess_pipe *pipe)
{
    static const double took[][2] = {{1, 1}, {1, 2}, {2, 1}, {3, 8}};
    const int32_t passes = pipe->chunk_count * pipe->micro_count;
    double idle[STAGES_MAX], span;
    for (size_t i = 0; i < sizeof(took) / sizeof(took[0]); i++) {
        const double both = took[i][0] + took[i][1];
        assert_int_equal(pipe_time(pipe, took[i][0], took[i][1], 0, idle, &span), TESS_OK);
        assert_true(span == both * (double)(passes + pipe->stage_count - 1));
        for (int32_t s = 0; s < pipe->stage_count; s++)
            assert_true(idle[s] == tess__pipe_bubble(pipe));
    }
    assert_true(tess__pipe_bubble(pipe) ==
                (double)(pipe->stage_count - 1) / (double)(passes + pipe->stage_count - 1));
}

static void test_bubble(void **state)
{
    (void)state;
    pipe_for_all(pipe_check_bubble);
}

/* Sending takes time too: no deadlock, at least the time without, and what one micro-batch needs;
 * at most what doing everything one after the other takes. */
static void pipe_check_transfer(const struct tess_pipe *pipe)
{
    const double passes = pipe->chunk_count * pipe->micro_count;
    const double cuts = pipe->chunk_count * pipe->stage_count - 1;
    double idle[STAGES_MAX], span;
    assert_int_equal(pipe_time(pipe, 2, 3, 1, idle, &span), TESS_OK);
    assert_true(span >= 5 * (passes + pipe->stage_count - 1));
    assert_true(span >= (2 + 3) * (cuts + 1) + 2 * cuts);
    assert_true(span <= passes * pipe->stage_count * (2 + 3) + 2 * cuts * pipe->micro_count);
}

static void test_transfer(void **state)
{
    (void)state;
    pipe_for_all(pipe_check_transfer);
}

/* By hand: two stages of different speed and messages that take 1.
 *
 *   F (2, 3)   0  |0  2|2  4|  ...        1f1b of 2 micro-batches, backward (4, 1)
 *              1     |3  6 F0|6  7 B0|7  10 F1|10 11 B1|
 *              0             |8  12 B0|     |12 16 B1|       B1 is there at 12
 */
static void test_uneven(void **state)
{
    const double forward[] = {2, 3}, backward[] = {4, 1};
    const struct tess_pipe pipe = pipe_of(TESS_PIPE_1F1B, 2, 1, 2);
    const struct tess_pipe_times times = {forward, backward, 1};
    static const double expected[] = {0, 2, 8, 12, 3, 6, 7, 10};
    double idle[2], span;
    (void)state;
    pipe_orders(&pipe);
    assert_int_equal(tess__pipe_simulate(&pipe, pipe_action, &times, pipe_start, idle, &span),
                     TESS_OK);
    for (int32_t i = 0; i < 8; i++)
        assert_true(pipe_start[i] == expected[i]);
    assert_true(span == 16);
    assert_true(idle[0] == (16.0 - 12) / 16 && idle[1] == (16.0 - 8) / 16);
}

/* A channel moves one message at a time: three forwards of 1 in a row, messages of 4. */
static void test_channel(void **state)
{
    const double forward[] = {1, 1}, backward[] = {1, 1};
    const struct tess_pipe pipe = pipe_of(TESS_PIPE_GPIPE, 2, 1, 3);
    const struct tess_pipe_times times = {forward, backward, 4};
    double idle[2], span;
    (void)state;
    pipe_orders(&pipe);
    assert_int_equal(tess__pipe_simulate(&pipe, pipe_action, &times, pipe_start, idle, &span),
                     TESS_OK);
    for (int32_t m = 0; m < 3; m++)
        assert_true(pipe_start[6 + m] == 5 + 4 * m);
}

/* Orders that are wrong, each in its own way. */
static void pipe_refused(const struct tess_pipe *pipe, const char *why)
{
    double idle[STAGES_MAX], span;
    assert_int_equal(pipe_time(pipe, 1, 1, 0, idle, &span), TESS_ERR_INTERNAL);
    if (strstr(tess_log_last_error(), why) == NULL)
        print_error("expected '%s' in '%s'\n", why, tess_log_last_error());
    assert_non_null(strstr(tess_log_last_error(), why));
}

static void pipe_swap(int32_t a, int32_t b)
{
    const struct tess_action kept = pipe_action[a];
    pipe_action[a] = pipe_action[b];
    pipe_action[b] = kept;
}

static void test_wrong_orders(void **state)
{
    const struct tess_pipe two = pipe_of(TESS_PIPE_GPIPE, 2, 1, 2); /* F0 F1 B0 B1 */
    const struct tess_pipe looped = pipe_of(TESS_PIPE_INTERLEAVED, 2, 2, 2);
    (void)state;
    pipe_orders(&two);
    pipe_swap(4, 5);
    pipe_refused(&two, "action 0 of stage 1, forward of micro-batch 1 in chunk 0, is sent another");
    pipe_orders(&two);
    pipe_swap(5, 6); /* F0 B0 F1 B1 on the last stage alone is fine */
    double idle[2], span;
    assert_int_equal(pipe_time(&two, 1, 1, 0, idle, &span), TESS_OK);
    pipe_swap(1, 2); /* and on both as well, if slow */
    assert_int_equal(pipe_time(&two, 1, 1, 0, idle, &span), TESS_OK);
    pipe_swap(0, 1);
    pipe_refused(&two, "action 0 of stage 0, backward of micro-batch 0 in chunk 0, comes before");
    pipe_orders(&two);
    pipe_action[3].micro = 2;
    pipe_refused(&two, "is not of this pipeline");
    pipe_orders(&two);
    pipe_action[3].chunk = -1;
    pipe_refused(&two, "is not of this pipeline");

    /* Stage 0 would run chunk 1 before stage 1 has had anything of chunk 0. */
    pipe_orders(&looped);
    assert_int_equal(pipe_action[2].chunk, 1);
    pipe_swap(0, 2);
    pipe_refused(&looped, "action 0 of stage 0, forward of micro-batch 0 in chunk 1, waits");
}

/* ---- the diagrams of pipe.h ------------------------------------------------------------------ */

/* A row of slots of one, as "F0 F1  . B0". */
static void pipe_draw(const struct tess_pipe *pipe, int32_t stage, double span, char *text)
{
    const int32_t count = tess__pipe_action_count(pipe);
    for (int32_t slot = 0; slot < (int32_t)span; slot++)
        memcpy(text + 3 * slot, " . ", 4);
    for (int32_t i = 0; i < count; i++) {
        const struct tess_action *action = &pipe_action[stage * count + i];
        char *at = text + 3 * (int32_t)pipe_start[stage * count + i];
        const char *letter = action->phase == TESS_PHASE_FORWARD ? "Ff" : "Bb";
        at[0] = letter[action->chunk];
        at[1] = (char)('0' + action->micro);
    }
    text[3 * (int32_t)span - 1] = '\0';
}

static void test_diagrams(void **state)
{
    static const struct {
        enum tess_pipe_schedule schedule;
        int32_t stages, chunks;
        const char *row[3];
    } drawn[] = {
        {TESS_PIPE_GPIPE,
         3,
         1,
         {"F0 F1 F2 F3  .  .  .  . B0 B1 B2 B3", " . F0 F1 F2 F3  .  . B0 B1 B2 B3  .",
          " .  . F0 F1 F2 F3 B0 B1 B2 B3  .  ."}},
        {TESS_PIPE_1F1B,
         3,
         1,
         {"F0 F1 F2  .  . B0 F3 B1  . B2  . B3", " . F0 F1  . B0 F2 B1 F3 B2  . B3  .",
          " .  . F0 B0 F1 B1 F2 B2 F3 B3  .  ."}},
        {TESS_PIPE_INTERLEAVED,
         2,
         2,
         {"F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1  . b2  . b3 B2 B3",
          " . F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3  ."}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(drawn) / sizeof(drawn[0]); i++) {
        const struct tess_pipe pipe =
            pipe_of(drawn[i].schedule, drawn[i].stages, drawn[i].chunks, 4);
        double idle[STAGES_MAX], span;
        char text[128];
        pipe_orders(&pipe);
        assert_int_equal(pipe_time(&pipe, 1, 1, 0, idle, &span), TESS_OK);
        for (int32_t s = 0; s < pipe.stage_count; s++) {
            pipe_draw(&pipe, s, span, text);
            assert_string_equal(text, drawn[i].row[s]);
        }
    }
}

/* ---- cuts ------------------------------------------------------------------------------------ */

enum { UNITS_MAX = 9 };

/* Greatest work and bytes of a virtual stage, and the sum of squares of work. */
struct cut_value {
    double work, bytes, squares;
};

static struct cut_value cut_judge(const struct tess_unit_cost *cost, const int32_t *held,
                                  int32_t virtual_count, const int32_t *first)
{
    struct cut_value value = {0, 0, 0};
    for (int32_t v = 0; v < virtual_count; v++) {
        double work = 0, bytes = 0;
        for (int32_t u = first[v]; u < first[v + 1]; u++) {
            work += cost[u].work;
            bytes += (double)(cost[u].param_bytes + (uint64_t)held[v] * cost[u].saved_bytes);
        }
        value.work = fmax(value.work, work);
        value.bytes = fmax(value.bytes, bytes);
        value.squares += work * work;
    }
    return value;
}

static bool cut_is_better(const struct cut_value *a, const struct cut_value *b)
{
    if (a->work != b->work)
        return a->work < b->work;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes;
    return a->squares < b->squares;
}

/* Every way to put the borders, by counting; the first of the best ones. */
static void cut_by_force(const struct tess_unit_cost *cost, const int32_t *held, int32_t units,
                         int32_t stages, int32_t *best_out)
{
    struct cut_value best = {INFINITY, INFINITY, INFINITY};
    for (uint32_t borders = 0; borders < 1u << (units - 1); borders++) {
        int32_t first[UNITS_MAX + 1] = {0}, count = 1;
        /* The highest bit is the border after unit 0, so that early borders come last. */
        for (int32_t u = 1; u < units; u++)
            if (borders & 1u << (units - 1 - u))
                first[count++] = u;
        first[count] = units;
        if (count != stages)
            continue;
        const struct cut_value value = cut_judge(cost, held, stages, first);
        if (!cut_is_better(&best, &value)) {
            best = value;
            memcpy(best_out, first, sizeof(*best_out) * (size_t)(stages + 1));
        }
    }
}

static uint32_t cut_random(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

/* Costs of few values, so that there are many ties. */
static void test_cut_against_all(void **state)
{
    uint64_t random = 7;
    (void)state;
    for (int round = 0; round < 3000; round++) {
        const int32_t units = 1 + (int32_t)cut_random(&random, UNITS_MAX);
        const int32_t stages = 1 + (int32_t)cut_random(&random, (uint32_t)units);
        struct tess_unit_cost cost[UNITS_MAX];
        int32_t held[UNITS_MAX], expected[UNITS_MAX + 1], first[UNITS_MAX + 1];
        const uint32_t values = 1 + cut_random(&random, 5);
        for (int32_t u = 0; u < units; u++)
            cost[u] = (struct tess_unit_cost){.work = cut_random(&random, values) * 3,
                                              .param_bytes = cut_random(&random, values) * 50,
                                              .saved_bytes = cut_random(&random, values) * 7};
        for (int32_t v = 0; v < stages; v++)
            held[v] = 1 + (int32_t)cut_random(&random, 4);
        cut_by_force(cost, held, units, stages, expected);
        assert_int_equal(tess__pipe_cut(cost, held, units, stages, first), TESS_OK);
        assert_memory_equal(first, expected, sizeof(*first) * (size_t)(stages + 1));
    }
}

/* Twelve blocks between an embedding and a head whose work are fractions: sums that only rounding
 * distinguishes are the same, and the most even cut is taken. */
static void test_cut_rounding(void **state)
{
    static const int32_t expected[] = {0, 4, 7, 10, 14}; /* embedding + 3, 3, 3, 3 + head */
    struct tess_unit_cost cost[14];
    const int32_t held[] = {4, 3, 2, 1};
    int32_t first[5];
    (void)state;
    for (int32_t u = 0; u < 14; u++)
        cost[u] = (struct tess_unit_cost){.work = u == 0 ? 0.01 : u == 13 ? 0.02 : 0.1};
    assert_int_equal(tess__pipe_cut(cost, held, 14, 4, first), TESS_OK);
    assert_memory_equal(first, expected, sizeof(expected));
    cost[5].work = NAN;
    assert_int_equal(tess__pipe_cut(cost, held, 14, 4, first), TESS_ERR_INTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders),       cmocka_unit_test(test_bubble),
        cmocka_unit_test(test_transfer),     cmocka_unit_test(test_uneven),
        cmocka_unit_test(test_channel),      cmocka_unit_test(test_wrong_orders),
        cmocka_unit_test(test_diagrams),     cmocka_unit_test(test_cut_against_all),
        cmocka_unit_test(test_cut_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
