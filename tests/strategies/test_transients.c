/*
 * Gathered units and transient gradient buffers over a communicator that only writes down what it
 * is asked: which calls, in which order, into which memory, and what had been waited for by then.
 */
#include "gather.h"
#include "note.h"
#include "plan_fixture.h"
#include "scatter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Four units of one parameter each, as large as needed to distinguish them. */
static const struct fixture_params transient_params = {
    .unit_count = 4, .count = 4, .elements = {300, 700, 500, 600}, .unit = {0, 1, 2, 3}};

static void transient_open(struct fixture *fixture, const char *option, int32_t accumulate)
{
    fixture_open(fixture, &transient_params,
                 &(struct fixture_run){.strategy = "fsdp",
                                       .option = option,
                                       .rank = 1,
                                       .rank_count = 4,
                                       .accumulate = accumulate,
                                       .dtype = TESS_BF16});
}

/* Which segment an all_gather brings: the one whose part it reads. */
static int32_t transient_segment(const struct tess_plan *plan, const struct tess_comm_call *call)
{
    for (int32_t s = 0; s < plan->segment_count; s++)
        if (plan->segment[s].param_own == call->source)
            return s;
    return -1;
}

/* What a segment can be read from holds it: the last gather into that buffer, and it is there. */
static void transient_check_held(const struct note_comm *note, const struct tess_plan *plan)
{
    for (int32_t s = 0; s < plan->segment_count; s++) {
        int32_t last = -1;
        for (int32_t c = 0; plan->segment[s].param != NULL && c < note->count; c++)
            last = note->call[c].target == plan->segment[s].param ? c : last;
        if (plan->segment[s].param == NULL)
            continue;
        assert_true(last >= 0 && note->done[last]);
        assert_int_equal(transient_segment(plan, &note->call[last]), s);
    }
}

/* One pass of a training step (or of an evaluation): `kept` units must be readable after it. */
static void transient_sweep(struct tess_gather *gather, struct fixture *fixture,
                            const struct note_comm *note, enum tess_phase phase, int32_t kept)
{
    struct tess_plan *plan = &fixture->plan;
    const int32_t last = plan->unit_count - 1;
    for (int32_t i = 0; i <= last; i++) {
        const bool forward = phase == TESS_PHASE_FORWARD;
        const int32_t u = forward ? i : last - i, next = forward ? u + 1 : u - 1;
        const int32_t before = note->count;
        assert_int_equal(tess__gather_enter(gather, &fixture->strategy, u, phase), TESS_OK);
        assert_int_equal(plan->segment[u].param != NULL, forward || !plan->segment[u].forward_only);
        transient_check_held(note, plan);
        /* The next unit was asked for ahead of its turn, and only the first of a pass in its own.
         */
        for (int32_t c = before; c < note->count; c++) {
            int32_t s = transient_segment(plan, &note->call[c]);
            assert_true(s == next || (s == u && i == 0));
        }
        tess__gather_leave(gather, &fixture->strategy, u, phase);
    }
    for (int32_t s = 0; s <= last; s++)
        assert_int_equal(plan->segment[s].param != NULL, s > last - kept);
}

/* A gather by itself over the noting communicator, as rank 1 of 4. */
struct gathering {
    struct fixture fixture;
    struct note_comm note;
    struct tess_gather gather;
};

static void gathering_open(struct gathering *its, int32_t accumulate, int32_t keep_last)
{
    struct tess_strategy *strategy = &its->fixture.strategy;
    its->gather = (struct tess_gather){0};
    transient_open(&its->fixture, NULL, accumulate);
    assert_int_equal(tess__gather_reserve(&its->gather, strategy, keep_last), TESS_OK);
    fixture_commit(&its->fixture);
    note_open(&its->note, 1, 4);
    assert_int_equal(tess__gather_open(&its->gather, strategy, &its->note.comm), TESS_OK);
    strategy->training = true;
}

static void gathering_close(struct gathering *its)
{
    tess__gather_close(&its->gather);
    fixture_close(&its->fixture);
}

/* The diagram in gather.h: what each buffer holds once a unit is entered, and what was gathered. */
static void test_gather_diagram(void **state)
{
    static const struct {
        int32_t held[9][2], count[9];
    } drawn[] = {
        {{{0, 1}, {2, 1}, {2, 3}, {-1, 3}, {2, 3}, {2, 1}, {0, 1}, {0, -1}, {0, 1}},
         {2, 3, 4, 4, 5, 6, 7, 7, 9}},
        {{{0, 1}, {2, 1}, {2, 3}, {2, 3}, {2, 3}, {2, 1}, {0, 1}, {0, -1}, {0, 1}},
         {2, 3, 4, 4, 4, 5, 6, 6, 8}},
    };
    (void)state;
    for (int32_t keep_last = 1; keep_last <= 2; keep_last++) {
        struct gathering its;
        gathering_open(&its, 2, keep_last);
        for (int32_t i = 0; i < 9; i++) {
            const enum tess_phase phase = i / 4 == 1 ? TESS_PHASE_BACKWARD : TESS_PHASE_FORWARD;
            const int32_t u = phase == TESS_PHASE_BACKWARD ? 7 - i : i % 4;
            struct tess_strategy *strategy = &its.fixture.strategy;
            assert_int_equal(tess__gather_enter(&its.gather, strategy, u, phase), TESS_OK);
            assert_int_equal(its.gather.lane[0].slot[0].segment, drawn[keep_last - 1].held[i][0]);
            assert_int_equal(its.gather.lane[0].slot[1].segment, drawn[keep_last - 1].held[i][1]);
            assert_int_equal(its.note.count, drawn[keep_last - 1].count[i]);
            tess__gather_leave(&its.gather, strategy, u, phase);
        }
        gathering_close(&its);
    }
}

/* Two micro-batches: what is gathered in which order, and that it is there when its unit runs. */
static void gathering_check_step(struct gathering *its, const int32_t *expected, int32_t count)
{
    const struct tess_plan *plan = &its->fixture.plan;
    const int32_t keep_last = its->gather.keep_last, before = its->note.count;
    its->fixture.strategy.training = true;
    for (int m = 0; m < 2; m++) {
        transient_sweep(&its->gather, &its->fixture, &its->note, TESS_PHASE_FORWARD, keep_last);
        transient_sweep(&its->gather, &its->fixture, &its->note, TESS_PHASE_BACKWARD, 0);
    }
    assert_int_equal(its->note.count - before, count);
    uint64_t sent = 0;
    for (int32_t c = 0; c < count; c++) {
        const struct tess_comm_call *call = &its->note.call[before + c];
        int32_t s = transient_segment(plan, call);
        assert_int_equal(s, expected[c]);
        assert_int_equal(call->count, plan->segment[s].count / 4);
        sent += 3 * call->count * 2;
    }
    assert_int_equal(tess__gather_sent_bytes(plan, keep_last), sent);
    tess__gather_forget(&its->gather, &its->fixture.plan, true);
}

/* Two steps, and an evaluation between them that leaves no trace in the second. */
static void test_gather_two_buffers(void **state)
{
    static const int32_t one[] = {0, 1, 2, 3, 2, 1, 0, 0, 1, 2, 3, 2, 1, 0};
    static const int32_t two[] = {0, 1, 2, 3, 1, 0, 0, 1, 2, 3, 1, 0};
    (void)state;
    for (int32_t keep_last = 1; keep_last <= 2; keep_last++) {
        const int32_t *expected = keep_last == 1 ? one : two;
        const int32_t count =
            (int32_t)(keep_last == 1 ? sizeof(one) / sizeof(one[0]) : sizeof(two) / sizeof(two[0]));
        struct gathering its;
        gathering_open(&its, 2, keep_last);
        gathering_check_step(&its, expected, count);
        its.fixture.strategy.training = false;
        for (int batch = 0; batch < 2; batch++)
            transient_sweep(&its.gather, &its.fixture, &its.note, TESS_PHASE_FORWARD, 0);
        assert_int_equal(its.note.count, count + 2 * 4);
        gathering_check_step(&its, expected, count);
        gathering_close(&its);
    }
}

/* What only forward reads is not gathered for backward, and the others' order stays. */
static void test_gather_forward_only(void **state)
{
    static const int32_t one[] = {0, 1, 2, 3, 2, 1, 0, 1, 2, 3, 2, 1};
    static const int32_t two[] = {0, 1, 2, 3, 1, 0, 1, 2, 3, 1};
    struct gathering its;
    (void)state;
    for (int32_t keep_last = 1; keep_last <= 2; keep_last++) {
        gathering_open(&its, 2, keep_last);
        its.fixture.plan.segment[0].forward_only = true;
        gathering_check_step(&its, keep_last == 1 ? one : two, keep_last == 1 ? 12 : 10);
        gathering_close(&its);
    }
}

/* A buffer for each: gathered once, in whichever pass comes first, until the optimizer has run. */
static void test_gather_all(void **state)
{
    struct gathering its;
    (void)state;
    gathering_open(&its, 3, TESS_GATHER_ALL);
    for (int m = 0; m < 3; m++) {
        transient_sweep(&its.gather, &its.fixture, &its.note, TESS_PHASE_FORWARD, 4);
        transient_sweep(&its.gather, &its.fixture, &its.note, TESS_PHASE_BACKWARD, 4);
    }
    assert_int_equal(its.note.count, 4);
    for (int32_t a = 0; a < 4; a++) {
        const struct tess_comm_call *call = its.note.call;
        const char *end = (const char *)call[a].target + 4 * call[a].count * 2;
        for (int32_t b = a + 1; b < 4; b++)
            assert_true((const char *)call[b].target >= end);
    }
    tess__gather_forget(&its.gather, &its.fixture.plan, true);
    transient_sweep(&its.gather, &its.fixture, &its.note, TESS_PHASE_FORWARD, 4);
    assert_int_equal(its.note.count, 8);
    gathering_close(&its);
}

/* Units in an order that is not foreseen: what was gathered ahead for nothing, or kept too long, is
 * neither read for another unit nor written over while it is on its way. */
static void test_gather_any_order(void **state)
{
    uint32_t random = 5;
    (void)state;
    for (int32_t keep_last = TESS_GATHER_ALL; keep_last <= 2; keep_last++) {
        for (int round = 0; round < 20; round++) {
            struct gathering its;
            gathering_open(&its, 1, keep_last);
            struct tess_plan *plan = &its.fixture.plan;
            for (int i = 0; i < 100; i++) {
                random = random * 1664525u + 1013904223u;
                const int32_t u = (int32_t)(random >> 8) % 4, before = its.note.count;
                const enum tess_phase phase = (enum tess_phase)(random >> 30 & 1);
                assert_int_equal(tess__gather_enter(&its.gather, &its.fixture.strategy, u, phase),
                                 TESS_OK);
                assert_non_null(plan->segment[u].param);
                transient_check_held(&its.note, plan);
                for (int32_t c = before; c < its.note.count; c++)
                    for (int32_t earlier = 0; earlier < c; earlier++)
                        assert_true(its.note.done[earlier] ||
                                    its.note.call[earlier].target != its.note.call[c].target);
                tess__gather_leave(&its.gather, &its.fixture.strategy, u, phase);
            }
            gathering_close(&its);
        }
    }
}

/* No buffer is handed out while a reduction still reads it. */
static void transient_check_free(const struct note_comm *note, const float *buffer)
{
    for (int32_t c = 0; c < note->count; c++)
        assert_true(note->done[c] || note->call[c].source != buffer);
}

static void transient_backward(struct fixture *fixture, const struct note_comm *note)
{
    struct tess_plan *plan = &fixture->plan;
    int32_t ready = plan->segment_count - 1;
    for (int32_t u = plan->unit_count - 1; u >= 0; u--) {
        assert_int_equal(tess__scatter_enter(&fixture->strategy, u, TESS_PHASE_BACKWARD), TESS_OK);
        for (int32_t s = 0; s < plan->segment_count; s++) {
            if (plan->segment[s].unit_first > u || plan->segment[s].unit_last < u)
                continue;
            assert_non_null(plan->segment[s].grad);
            transient_check_free(note, plan->segment[s].grad);
            for (int32_t other = 0; other < s; other++)
                assert_true(plan->segment[other].grad == NULL ||
                            plan->segment[other].grad != plan->segment[s].grad);
        }
        for (; ready >= 0 && plan->segment[ready].unit_first >= u; ready--)
            assert_int_equal(tess__scatter_send(&fixture->strategy, ready), TESS_OK);
    }
}

static void transient_scatter(struct fixture *fixture, struct note_comm *shard,
                              struct note_comm *replica, int32_t *slot_count_out)
{
    struct tess_scatter scatter = {0};
    struct tess_plan *plan = &fixture->plan;
    void *state = fixture->strategy.state;
    fixture->strategy.state = &scatter;
    assert_int_equal(tess__scatter_reserve(&fixture->strategy), TESS_OK);
    fixture_commit(fixture);
    assert_int_equal(tess__scatter_open(&fixture->strategy, &shard->comm,
                                        replica != NULL ? &replica->comm : NULL),
                     TESS_OK);
    for (int32_t m = 0; m < plan->accumulate; m++) {
        fixture->strategy.micro = m;
        transient_backward(fixture, shard);
    }
    assert_int_equal(tess__scatter_finish(&fixture->strategy), TESS_OK);
    /* Every segment once per micro-batch, highest first; all waited for. What is added to a level
     * at once arrives in place, the rest at its level. */
    assert_int_equal(shard->count, plan->accumulate * plan->segment_count);
    for (int32_t c = 0; c < shard->count; c++) {
        int32_t m = c / plan->segment_count;
        int32_t s = plan->segment_count - 1 - c % plan->segment_count;
        assert_int_equal(shard->call[c].collective, TESS_COLLECTIVE_REDUCE_SCATTER);
        const int64_t own = tess_plan_own_count(plan, s, TESS_EXTENT_SHARD);
        const float *place = (const float *)shard->call[c].source + plan->shard_index * own;
        const float *level =
            plan->segment[s].grad_own + tess_fold_level(plan, m) * plan->own_stride;
        assert_ptr_equal(shard->call[c].target, tess_fold_adds(plan, m) ? place : level);
        assert_true(shard->done[c]);
    }
    if (replica != NULL) {
        assert_int_equal(replica->count, shard->count);
        for (int32_t c = 0; c < replica->count; c++) {
            assert_int_equal(replica->call[c].collective, TESS_COLLECTIVE_ALL_REDUCE);
            assert_ptr_equal(replica->call[c].target, shard->call[c].target);
            assert_ptr_equal(replica->call[c].source, shard->call[c].target);
            assert_true(replica->done[c]);
        }
    }
    *slot_count_out = scatter.slot_count;
    tess__scatter_close(&fixture->strategy);
    fixture->strategy.state = state;
}

static void test_scatter_units(void **state)
{
    (void)state;
    for (int32_t accumulate = 1; accumulate <= 4; accumulate++) {
        for (int replicas = 0; replicas < 2; replicas++) {
            struct fixture fixture;
            struct note_comm shard, replica;
            int32_t slots;
            transient_open(&fixture, NULL, accumulate);
            note_open(&shard, 1, 4);
            note_open(&replica, 0, 2);
            transient_scatter(&fixture, &shard, replicas ? &replica : NULL, &slots);
            assert_int_equal(slots, 2);
            fixture_close(&fixture);
        }
    }
}

/* A unit of several segments, a segment of several units, and a unit without parameters between. */
static void test_scatter_across(void **state)
{
    static const struct fixture_params params = {.unit_count = 5,
                                                 .count = 7,
                                                 .elements = {10, 20, 30, 900, 900, 900, 10},
                                                 .unit = {0, 1, 3, 3, 3, 3, 4}};
    static const struct {
        const char *option;
        int32_t segments, slots;
    } cuts[] = {
        {"", 1, 1},
        {"--zero2.first-bucket-mib=0", 2, 2},
        {"--zero2.first-bucket-mib=0 --zero2.bucket-mib=0.003", 5, 5}, /* unit 3 writes 4 */
        {"--zero2.first-bucket-mib=0 --zero2.bucket-mib=0", 7, 5},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        for (int32_t accumulate = 1; accumulate <= 4; accumulate++) {
            struct fixture fixture;
            struct note_comm shard;
            int32_t slots;
            fixture_open(&fixture, &params,
                         &(struct fixture_run){.strategy = "zero2",
                                               .option = cuts[i].option,
                                               .rank = 1,
                                               .rank_count = 4,
                                               .accumulate = accumulate,
                                               .dtype = TESS_F32});
            assert_int_equal(fixture.plan.segment_count, cuts[i].segments);
            note_open(&shard, 1, 4);
            transient_scatter(&fixture, &shard, NULL, &slots);
            assert_int_equal(slots, cuts[i].slots);
            fixture_close(&fixture);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gather_diagram),      cmocka_unit_test(test_gather_two_buffers),
        cmocka_unit_test(test_gather_forward_only), cmocka_unit_test(test_gather_all),
        cmocka_unit_test(test_gather_any_order),    cmocka_unit_test(test_scatter_units),
        cmocka_unit_test(test_scatter_across),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
