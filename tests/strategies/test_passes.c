/*
 * Every data strategy under the passes of a pipeline's rank: several micro-batches under way,
 * chunks in turns. Whatever the order, parameters must be right in every pass, and the gradient of
 * a step must be the canonical tree over its leaves, to the bit.
 */
#include "pipe.h"
#include "plan_fixture.h"

#include "core/layout.h"
#include "harness/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS_MAX = 4, MICROS = 4, UNITS = 7, LEAVES_MAX = RANKS_MAX * MICROS };

/* Unit 3 has no parameters and ends chunk 0. */
static const struct fixture_params passes_params = {
    .unit_count = UNITS,
    .count = 9,
    .elements = {300, 700, 40, 500, 600, 10, 900, 64, 1200},
    .unit = {0, 0, 1, 2, 4, 4, 5, 5, 6}};
/* The last unit has the values of the first. */
static const struct fixture_params passes_tied = {.unit_count = UNITS,
                                                  .count = 7,
                                                  .elements = {700, 300, 40, 500, 60, 900, 700},
                                                  .unit = {0, 1, 1, 2, 4, 5, 6},
                                                  .tied = true};
static const int32_t passes_chunk[UNITS] = {0, 0, 0, 0, 1, 1, 1};
static const int32_t passes_all[UNITS] = {0};

/* A rank of the stage axis. */
struct passes_stage {
    struct tess_pipe pipe;
    int32_t stage;
};

static const struct passes_stage passes_stages[] = {
    {{TESS_PIPE_GPIPE, 2, 1, MICROS}, 0},       {{TESS_PIPE_1F1B, 3, 1, MICROS}, 0},
    {{TESS_PIPE_1F1B, 3, 1, MICROS}, 1},        {{TESS_PIPE_1F1B, 3, 1, MICROS}, 2},
    {{TESS_PIPE_INTERLEAVED, 2, 2, MICROS}, 0}, {{TESS_PIPE_INTERLEAVED, 2, 2, MICROS}, 1},
    {{TESS_PIPE_INTERLEAVED, 4, 2, MICROS}, 1},
};

struct passes {
    const struct passes_stage *at;
    struct fixture rank[RANKS_MAX];
    struct tess_action action[2 * 2 * MICROS];
    int32_t step[RANKS_MAX];
};

static const int32_t *passes_chunks(const struct passes *its)
{
    return its->at->pipe.chunk_count > 1 ? passes_chunk : passes_all;
}

/* ---- made-up values -------------------------------------------------------------------------- */

/* Of (-1, 1), with all bits of a float (the mixing of Steele et al., "SplitMix", 2014). */
static float passes_number(uint64_t step, uint64_t leaf, int64_t flat)
{
    uint64_t x = (step << 56 | leaf << 48 | (uint64_t)flat) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (float)(int64_t)x / 0x1p63f;
}

/* Parameters are leaf LEAVES_MAX of a step. */
static float passes_param(int32_t step, int64_t flat)
{
    return passes_number((uint64_t)step, LEAVES_MAX, flat);
}

/* The canonical tree over the leaves (tessera/comm.h). */
static float passes_tree(int32_t step, int32_t first, int32_t count, int64_t flat)
{
    int32_t left = 1;
    if (count == 1)
        return passes_number((uint64_t)step, (uint64_t)first, flat);
    while (2 * left < count)
        left *= 2;
    return passes_tree(step, first, left, flat) +
           passes_tree(step, first + left, count - left, flat);
}

/* The parameter that holds a flat element; false for padding. */
static bool passes_is_param(const struct tess_plan *plan, int32_t s, int64_t flat)
{
    const struct tess_segment *segment = &plan->segment[s];
    for (int32_t i = 0; i < segment->param_count; i++) {
        const struct tess_plan_param *param = &plan->param[segment->param_first + i];
        if (param->begin <= flat && flat < param->begin + param->count)
            return true;
    }
    return false;
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* The optimizer: values of this rank's own parts. */
static int passes_update(struct fixture *fixture, int32_t step)
{
    const struct tess_plan *plan = &fixture->plan;
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const int64_t begin = tess_plan_own_begin(plan, s, plan->optim_extent);
        const int64_t count = tess_plan_own_count(plan, s, plan->optim_extent);
        float *own = plan->segment[s].param_own;
        for (int64_t i = 0; i < count && plan->segment[s].values_of < 0; i++)
            own[i] = passes_param(step, begin + i);
    }
    WORLD_OK(fixture->strategy.ops->params_refresh(&fixture->strategy));
    return 0;
}

static int passes_check_params(const struct tess_plan *plan, int32_t unit, int32_t step)
{
    for (int32_t p = 0; p < plan->param_count; p++) {
        const struct tess_plan_param *param = &plan->param[p];
        const struct tess_segment *segment = &plan->segment[param->segment];
        if (param->unit != unit)
            continue;
        const float *value = segment->param;
        /* Tied ones are the first parameter, which begins the flat space. */
        const int64_t first = segment->values_of >= 0 ? 0 : param->begin;
        WORLD_CHECK(value != NULL);
        for (int64_t i = 0; i < param->count; i++)
            if (value[param->begin - segment->begin + i] != passes_param(step, first + i))
                return world_fail("step %d, unit %d: parameter %d is wrong from element %d on",
                                  (int)step, (int)unit, (int)p, (int)i);
    }
    return 0;
}

static int passes_forward(struct passes *its, struct fixture *fixture, int32_t chunk)
{
    struct tess_strategy *strategy = &fixture->strategy;
    for (int32_t u = 0; u < UNITS; u++) {
        if (passes_chunks(its)[u] != chunk)
            continue;
        WORLD_OK(strategy->ops->unit_enter(strategy, u, TESS_PHASE_FORWARD));
        int failed = passes_check_params(&fixture->plan, u, its->step[fixture->plan.rank]);
        if (failed)
            return failed;
        WORLD_OK(strategy->ops->unit_leave(strategy, u, TESS_PHASE_FORWARD));
    }
    return 0;
}

static void passes_write_grads(struct fixture *fixture, int32_t unit, int32_t step)
{
    const struct tess_plan *plan = &fixture->plan;
    const int64_t leaf = tess_layout_first_leaf(plan, plan->rank, fixture->strategy.micro);
    for (int32_t p = 0; p < plan->param_count; p++) {
        const struct tess_plan_param *param = &plan->param[p];
        const struct tess_segment *segment = &plan->segment[param->segment];
        for (int64_t i = 0; i < param->count && param->unit == unit; i++)
            segment->grad[param->begin - segment->begin + i] =
                passes_number((uint64_t)step, (uint64_t)leaf, param->begin + i);
    }
}

static int passes_backward(struct passes *its, struct fixture *fixture, int32_t chunk)
{
    struct tess_strategy *strategy = &fixture->strategy;
    struct tess_plan *plan = &fixture->plan;
    const int32_t *unit_chunk = passes_chunks(its);
    int32_t next = plan->segment_count - 1;
    while (next >= 0 && unit_chunk[plan->segment[next].unit_first] != chunk)
        next--;
    for (int32_t s = 0; s < plan->segment_count && plan->grad_extent == TESS_EXTENT_FULL; s++)
        if (unit_chunk[plan->segment[s].unit_first] == chunk)
            plan->segment[s].grad = fixture->grad +
                                    tess_fold_level(plan, strategy->micro) * plan->flat_count +
                                    plan->segment[s].begin;
    for (int32_t u = UNITS - 1; u >= 0; u--) {
        if (unit_chunk[u] != chunk)
            continue;
        WORLD_OK(strategy->ops->unit_enter(strategy, u, TESS_PHASE_BACKWARD));
        int failed = passes_check_params(plan, u, its->step[plan->rank]);
        if (failed)
            return failed;
        passes_write_grads(fixture, u, its->step[plan->rank]);
        WORLD_OK(strategy->ops->unit_leave(strategy, u, TESS_PHASE_BACKWARD));
        for (; next >= 0 && plan->segment[next].unit_first >= u; next--)
            WORLD_OK(strategy->ops->grads_ready(strategy, next));
    }
    return 0;
}

static int passes_check_grads(const struct tess_plan *plan, int32_t step)
{
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const int64_t begin = tess_plan_own_begin(plan, s, plan->optim_extent);
        const int64_t count = tess_plan_own_count(plan, s, plan->optim_extent);
        for (int64_t i = 0; i < count; i++)
            if (passes_is_param(plan, s, begin + i) &&
                plan->segment[s].grad_own[i] != passes_tree(step, 0, plan->grid, begin + i))
                return world_fail("step %d: the gradient of segment %d is wrong from element %d on",
                                  (int)step, (int)s, (int)i);
    }
    return 0;
}

static int passes_step(struct passes *its, struct fixture *fixture)
{
    struct tess_strategy *strategy = &fixture->strategy;
    int failed = 0;
    strategy->training = true;
    for (int32_t i = 0; i < tess__pipe_action_count(&its->at->pipe) && !failed; i++) {
        const struct tess_action *action = &its->action[i];
        strategy->micro = action->micro;
        failed = action->phase == TESS_PHASE_FORWARD ? passes_forward(its, fixture, action->chunk)
                                                     : passes_backward(its, fixture, action->chunk);
    }
    if (failed)
        return failed;
    WORLD_OK(strategy->ops->grads_finish(strategy));
    return passes_check_grads(&fixture->plan, its->step[fixture->plan.rank]);
}

/* An evaluation: every chunk forward, two batches. */
static int passes_evaluate(struct passes *its, struct fixture *fixture)
{
    int failed = 0;
    fixture->strategy.training = false;
    for (int32_t i = 0; i < 2 * its->at->pipe.chunk_count && !failed; i++)
        failed = passes_forward(its, fixture, i / 2);
    return failed;
}

static uint64_t passes_sent(const struct tess_strategy *strategy)
{
    uint64_t bytes = strategy->comm->stats.sent_bytes;
    for (int32_t g = 0; g < strategy->group_count; g++)
        bytes += strategy->group[g]->stats.sent_bytes;
    return bytes;
}

/* Two steps with an evaluation between them; the first sends what the formula says, where two ranks
 * share nothing out unevenly. */
static int passes_steps(struct passes *its, struct fixture *fixture)
{
    struct tess_strategy *strategy = &fixture->strategy;
    int32_t *step = &its->step[fixture->plan.rank];
    *step = 0;
    int failed = passes_update(fixture, 0);
    const uint64_t before = passes_sent(strategy);
    failed = failed ? failed : passes_step(its, fixture);
    failed = failed ? failed : passes_update(fixture, *step = 1);
    const uint64_t sent = passes_sent(strategy) - before;
    failed = failed ? failed : passes_evaluate(its, fixture);
    failed = failed ? failed : passes_step(its, fixture);
    if (failed)
        return failed;
    if (fixture->plan.rank_count == 2 && strcmp(strategy->ops->name, "dp") != 0 &&
        sent != strategy->ops->sent_bytes(strategy))
        return world_fail("%s sent %llu bytes, its formula says %llu", strategy->ops->name,
                          (unsigned long long)sent,
                          (unsigned long long)strategy->ops->sent_bytes(strategy));
    return 0;
}

static int passes_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct passes *its = arg;
    struct fixture *fixture = &its->rank[comm->rank];
    (void)world;
    fixture->strategy.comm = comm;
    WORLD_OK(fixture->strategy.ops->open(&fixture->strategy));
    int failed = passes_steps(its, fixture);
    fixture->strategy.ops->close(&fixture->strategy);
    return failed;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void passes_open(struct passes *its, const struct fixture_params *params,
                        const char *strategy, const char *option, int32_t ranks)
{
    for (int32_t r = 0; r < ranks; r++) {
        fixture_open(&its->rank[r], params,
                     &(struct fixture_run){
                         .strategy = strategy,
                         .option = option,
                         .rank = r,
                         .rank_count = ranks,
                         .accumulate = MICROS,
                         .pipelined = true,
                         .unit_chunk = its->at->pipe.chunk_count > 1 ? passes_chunk : NULL});
        fixture_commit(&its->rank[r]);
    }
}

static void passes_run_with(const struct fixture_params *params, const char *strategy,
                            const char *option)
{
    static struct passes its;
    for (size_t i = 0; i < sizeof(passes_stages) / sizeof(passes_stages[0]); i++) {
        its.at = &passes_stages[i];
        assert_int_equal(tess__pipe_check(&its.at->pipe), TESS_OK);
        tess__pipe_order(&its.at->pipe, its.at->stage, its.action);
        for (int32_t ranks = 1; ranks <= RANKS_MAX; ranks *= 2) {
            if (ranks > 1 && strcmp(strategy, "single") == 0)
                continue;
            passes_open(&its, params, strategy, option, ranks);
            int failed =
                world_run(ranks, TESS_RANKS_THREADS, TESS_ORDER_CANONICAL, passes_rank, &its);
            if (failed)
                print_error("%s %s on %d ranks, %s stage %d\n", strategy, option, (int)ranks,
                            tess__pipe_schedule_name(its.at->pipe.schedule), (int)its.at->stage);
            assert_int_equal(failed, 0);
            for (int32_t r = 0; r < ranks; r++)
                fixture_close(&its.rank[r]);
        }
    }
}

static void passes_run(const char *strategy, const char *option)
{
    passes_run_with(&passes_params, strategy, option);
}

/* Buckets of several parameters that would cross the border of the chunks. */
#define BUCKETS(name) "--" name ".first-bucket-mib=0.003 --" name ".bucket-mib=0.008"

static void test_replicated(void **state)
{
    (void)state;
    passes_run("single", "");
    passes_run("dp", "");
    passes_run("ddp", BUCKETS("ddp"));
    passes_run("ddp", "--ddp.overlap=off " BUCKETS("ddp"));
}

static void test_every_micro_batch(void **state)
{
    (void)state;
    passes_run("ddp", "--ddp.sync-every-micro-batch=on " BUCKETS("ddp"));
    passes_run("ddp", "--ddp.sync-every-micro-batch=on --ddp.overlap=off " BUCKETS("ddp"));
}

static void test_zero(void **state)
{
    (void)state;
    passes_run("zero1", BUCKETS("zero1"));
    passes_run("zero2", BUCKETS("zero2"));
    passes_run("zero2", "--zero2.first-bucket-mib=0 --zero2.bucket-mib=0");
}

static void test_sharded(void **state)
{
    (void)state;
    passes_run("fsdp", "");
    passes_run("fsdp", "--fsdp.reshard-after-forward=on");
    passes_run("fsdp", "--fsdp.reshard-after-forward=on --fsdp.keep-last=1");
    passes_run("hsdp", "");
    passes_run("hsdp", "--hsdp.reshard-after-forward=on");
}

/* A tied parameter whose source is on the same rank: as where the first and the last unit are on
 * one stage. */
static void test_tied(void **state)
{
    static const struct {
        const char *strategy, *option;
    } layout[] = {
        {"single", ""},
        {"dp", ""},
        {"ddp", ""},
        {"ddp", BUCKETS("ddp")},
        {"zero1", BUCKETS("zero1")},
        {"zero2", BUCKETS("zero2")},
        {"fsdp", ""},
        {"fsdp", "--fsdp.reshard-after-forward=on"},
        {"hsdp", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(layout) / sizeof(layout[0]); i++)
        passes_run_with(&passes_tied, layout[i].strategy, layout[i].option);
}

/* A stage of units that have no parameters. */
static void test_no_parameters(void **state)
{
    static const char *const strategy[] = {"single", "dp", "ddp", "zero1", "zero2", "fsdp", "hsdp"};
    const struct fixture_params none = {.unit_count = UNITS};
    (void)state;
    for (size_t i = 0; i < sizeof(strategy) / sizeof(strategy[0]); i++)
        passes_run_with(&none, strategy[i], "");
}

/* Without a word all units stay gathered; asked to, each is gathered for every pass, through two
 * buffers. */
static void test_reshard(void **state)
{
    static const struct {
        const char *option;
        bool pipelined, kept;
        uint64_t gathers; /* of all units but the last two, and of these, in a step */
        uint64_t last;
    } expected[] = {
        {"", false, false, 2 * MICROS, MICROS},
        {"", true, true, 1, 1},
        {"--fsdp.reshard-after-forward=off", false, true, 1, 1},
        {"--fsdp.reshard-after-forward=on", false, false, 2 * MICROS, MICROS},
        {"--fsdp.reshard-after-forward=on", true, false, 2 * MICROS, 2 * MICROS},
        {"--fsdp.reshard-after-forward=on --fsdp.keep-last=1", true, false, 2 * MICROS, 2 * MICROS},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        struct fixture fixture;
        fixture_open(&fixture, &passes_params,
                     &(struct fixture_run){.strategy = "fsdp",
                                           .option = expected[i].option,
                                           .rank_count = 2,
                                           .accumulate = MICROS,
                                           .pipelined = expected[i].pipelined});
        const struct tess_plan *plan = &fixture.plan;
        const int64_t flat = plan->flat_count;
        const int64_t last = plan->segment[plan->segment_count - 1].count +
                             plan->segment[plan->segment_count - 2].count;
        const uint64_t gathered = tess_memory_bytes(fixture.memory, TESS_MEMORY_GATHERED);
        assert_int_equal(gathered >= (uint64_t)flat * sizeof(float), expected[i].kept);
        const uint64_t elements = expected[i].gathers * (uint64_t)(flat - last) +
                                  expected[i].last * (uint64_t)last +
                                  MICROS * (uint64_t)flat; /* gradients */
        assert_int_equal(fixture.strategy.ops->sent_bytes(&fixture.strategy), elements / 2 * 4);
        fixture_close(&fixture);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replicated), cmocka_unit_test(test_every_micro_batch),
        cmocka_unit_test(test_zero),       cmocka_unit_test(test_sharded),
        cmocka_unit_test(test_tied),       cmocka_unit_test(test_no_parameters),
        cmocka_unit_test(test_reshard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
