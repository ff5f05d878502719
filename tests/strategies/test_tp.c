/*
 * The tensor axis: what crosses ranks, on several numbers of them, and that it is there on return;
 * and what the registry asks of a strategy of each axis.
 */
#include "note.h"

#include "base/half.h"
#include "harness/world.h"
#include "tessera/log.h"
#include "tessera/registry.h"
#include "tessera/strategy.h"
#include "tessera/version.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Elements of one rank's part: of several cache lines and no round number. */
enum { RANKS_MAX = 4, PART = 75, WHOLE = RANKS_MAX * PART };

static const struct tess_strategy_ops *tp_ops(void)
{
    const struct tess_strategy_ops *ops = NULL;
    return tess_registry_get_strategy("tp", &ops) == TESS_OK ? ops : NULL;
}

static void tp_put(enum tess_dtype dtype, void *data, int32_t i, float value)
{
    if (dtype == TESS_F32)
        ((float *)data)[i] = value;
    else
        ((uint16_t *)data)[i] = tess__bf16_of_f32(value);
}

static float tp_get(enum tess_dtype dtype, const void *data, int32_t i)
{
    return dtype == TESS_F32 ? ((const float *)data)[i]
                             : tess__f32_of_bf16(((const uint16_t *)data)[i]);
}

/* Rank r's element i: a whole number whose sum over the ranks bf16 has too. */
static float tp_value(int32_t rank, int32_t i)
{
    return (float)((rank * 5 + i * 3) % 17 - 8);
}

static float tp_sum(int32_t ranks, int32_t i)
{
    float sum = 0;
    for (int32_t r = 0; r < ranks; r++)
        sum += tp_value(r, i);
    return sum;
}

static float tp_most(int32_t ranks, int32_t i)
{
    float most = tp_value(0, i);
    for (int32_t r = 1; r < ranks; r++)
        most = tp_value(r, i) > most ? tp_value(r, i) : most;
    return most;
}

/* One crossing, complete on return or with its event; then whether `data` (and `part`) are what
 * they should be. */
static int tp_cross_check(struct tess_strategy *strategy, enum tess_crossing_kind kind,
                          enum tess_dtype dtype, bool later)
{
    const int32_t rank = strategy->comm->rank, ranks = strategy->comm->rank_count;
    const bool parts = kind == TESS_CROSSING_SUM_SCATTER || kind == TESS_CROSSING_GATHER;
    float data[WHOLE], part[PART];
    struct tess_event event = {0};
    const struct tess_crossing crossing = {.kind = kind,
                                           .dtype = dtype,
                                           .count = parts ? PART : (size_t)(ranks * PART),
                                           .data = data,
                                           .part = parts ? part : NULL,
                                           .event = later ? &event : NULL};
    for (int32_t i = 0; i < WHOLE; i++)
        tp_put(dtype, data, i, tp_value(rank, i));
    for (int32_t i = 0; i < PART; i++)
        tp_put(dtype, part, i, tp_value(rank, i));
    WORLD_OK(strategy->ops->cross(strategy, &crossing));
    WORLD_CHECK((event.comm != NULL) == later);
    WORLD_OK(tess_event_wait(&event));
    for (int32_t i = 0; i < ranks * PART; i++) {
        const float got = tp_get(dtype, data, i);
        if (kind == TESS_CROSSING_SUM)
            WORLD_CHECK(got == tp_sum(ranks, i));
        if (kind == TESS_CROSSING_MAX)
            WORLD_CHECK(got == tp_most(ranks, i));
        if (kind == TESS_CROSSING_GATHER)
            WORLD_CHECK(got == tp_value(i / PART, i % PART));
    }
    for (int32_t i = 0; i < PART && kind == TESS_CROSSING_SUM_SCATTER; i++)
        WORLD_CHECK(tp_get(dtype, part, i) == tp_sum(ranks, rank * PART + i));
    return 0;
}

static int tp_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct tess_strategy strategy = {.ops = tp_ops(), .comm = comm};
    (void)world, (void)arg;
    WORLD_CHECK(strategy.ops != NULL);
    for (int kind = TESS_CROSSING_SUM; kind <= TESS_CROSSING_GATHER; kind++) {
        for (int i = 0; i < 4; i++) {
            int failed = tp_cross_check(&strategy, (enum tess_crossing_kind)kind,
                                        i % 2 ? TESS_BF16 : TESS_F32, i / 2);
            if (failed != 0)
                return failed;
        }
    }
    return 0;
}

static void test_crossings(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= RANKS_MAX; ranks++)
        assert_int_equal(world_run(ranks, TESS_RANKS_THREADS, TESS_ORDER_CANONICAL, tp_rank, NULL),
                         0);
}

/* One call each, of the right kind and size, complete on return. */
static void test_calls(void **state)
{
    static const struct {
        enum tess_collective collective;
        enum tess_reduce reduce;
        bool from_data, to_data;
    } expected[] = {
        [TESS_CROSSING_SUM] = {TESS_COLLECTIVE_ALL_REDUCE, TESS_REDUCE_SUM, true, true},
        [TESS_CROSSING_MAX] = {TESS_COLLECTIVE_ALL_REDUCE, TESS_REDUCE_MAX, true, true},
        [TESS_CROSSING_SUM_SCATTER] = {TESS_COLLECTIVE_REDUCE_SCATTER, TESS_REDUCE_SUM, true,
                                       false},
        [TESS_CROSSING_GATHER] = {TESS_COLLECTIVE_ALL_GATHER, TESS_REDUCE_SUM, false, true},
    };
    struct note_comm note;
    float data[8], part[2];
    (void)state;
    note_open(&note, 1, 4);
    struct tess_strategy strategy = {.ops = tp_ops(), .comm = &note.comm};
    for (int32_t kind = 0; kind < 4; kind++) {
        const struct tess_crossing crossing = {.kind = (enum tess_crossing_kind)kind,
                                               .dtype = TESS_F32,
                                               .count = 2,
                                               .data = data,
                                               .part = part};
        assert_int_equal(strategy.ops->cross(&strategy, &crossing), TESS_OK);
        assert_int_equal(note.count, kind + 1);
        const struct tess_comm_call *call = &note.call[kind];
        assert_int_equal(call->collective, expected[kind].collective);
        assert_int_equal(call->reduce, expected[kind].reduce);
        assert_int_equal(call->count, 2);
        assert_ptr_equal(call->source, expected[kind].from_data ? data : part);
        assert_ptr_equal(call->target, expected[kind].to_data ? data : part);
        assert_true(note.done[kind]);
    }
    const struct tess_crossing none = {.kind = (enum tess_crossing_kind)4};
    assert_int_equal(strategy.ops->cross(&strategy, &none), TESS_ERR_INTERNAL);
}

static void tp_line(void *context, const char *text)
{
    char *all = context;
    snprintf(all + strlen(all), 1024 - strlen(all), "%s\n", text);
}

static void test_describe(void **state)
{
    struct tess_plan plan = {.mesh = {.count = {1, 4, 1}}};
    const struct tess_strategy strategy = {.plan = &plan};
    char text[1024] = "";
    (void)state;
    tp_ops()->describe(&strategy, tp_line, text);
    assert_non_null(strstr(text, "all-reduce forward"));
    assert_non_null(strstr(text, "2(t-1)/t = 1.5\n"));
}

/* ---- the registry ---------------------------------------------------------------------------- */

static enum tess_status axis_plan(struct tess_strategy *strategy)
{
    (void)strategy;
    return TESS_OK;
}

static int32_t axis_chunks(const void *options)
{
    (void)options;
    return 1;
}

static enum tess_status axis_cut(const void *options, const struct tess_unit_cost *cost,
                                 int32_t unit_count, int32_t virtual_count, int32_t *first_out)
{
    (void)options, (void)cost, (void)unit_count, (void)virtual_count, (void)first_out;
    return TESS_OK;
}

static enum tess_status axis_order(const void *options, int32_t stage, int32_t stage_count,
                                   int32_t micro_count, struct tess_action *action_out)
{
    (void)options, (void)stage, (void)stage_count, (void)micro_count, (void)action_out;
    return TESS_OK;
}

static enum tess_status axis_cross(struct tess_strategy *strategy,
                                   const struct tess_crossing *crossing)
{
    (void)strategy, (void)crossing;
    return TESS_OK;
}

/* Each axis has slots that must be filled; what may stay empty is filled with what does nothing. */
static void test_required(void **state)
{
    static const struct {
        struct tess_strategy_ops ops;
        bool complete;
    } added[] = {
        {{.name = "no-plan", .axis = TESS_AXIS_DATA, .cross = axis_cross}, false},
        {{.name = "no-cross", .axis = TESS_AXIS_TENSOR, .plan = axis_plan}, false},
        {{.name = "no-chunks", .axis = TESS_AXIS_STAGE, .cut = axis_cut, .order = axis_order},
         false},
        {{.name = "no-cut",
          .axis = TESS_AXIS_STAGE,
          .chunk_count = axis_chunks,
          .order = axis_order},
         false},
        {{.name = "no-order", .axis = TESS_AXIS_STAGE, .chunk_count = axis_chunks, .cut = axis_cut},
         false},
        {{.name = "no-axis", .axis = TESS_AXIS_COUNT, .plan = axis_plan}, false},
        {{.name = "data", .axis = TESS_AXIS_DATA, .plan = axis_plan}, true},
        {{.name = "tensor", .axis = TESS_AXIS_TENSOR, .cross = axis_cross}, true},
        {{.name = "stage",
          .axis = TESS_AXIS_STAGE,
          .chunk_count = axis_chunks,
          .cut = axis_cut,
          .order = axis_order},
         true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(added) / sizeof(added[0]); i++) {
        struct tess_strategy_ops ops = added[i].ops;
        const struct tess_strategy_ops *found = NULL;
        ops.abi = TESS_ABI;
        ops.summary = "of a test";
        const enum tess_status status = tess_registry_add_strategy(&ops);
        assert_int_equal(status, added[i].complete ? TESS_OK : TESS_ERR_USAGE);
        if (!added[i].complete) {
            assert_non_null(strstr(tess_log_last_error(), "leaves a required slot empty"));
            continue;
        }
        assert_int_equal(tess_registry_get_strategy(ops.name, &found), TESS_OK);
        assert_int_equal(found->wanted_ranks(NULL), 0);
        assert_int_equal(found->check(NULL, 3, 1), TESS_OK);
        double share = 0;
        assert_int_equal(found->idle_share(NULL, 2, 2, NULL, NULL, &share), TESS_OK);
        assert_true(isnan(share));
        assert_int_equal(found->axis, ops.axis);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crossings),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_describe),
        cmocka_unit_test(test_required),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
