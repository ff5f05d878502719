/* The planning half of an engine around one strategy, with storage of its own. */
#include "plan_fixture.h"

#include "base/arena.h"
#include "base/options.h"
#include "core/layout.h"
#include "kernel_open.h"
#include "tessera/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void fixture_declare(struct tess_declare *declare, const struct fixture_params *params)
{
    declare->unit_count = params->unit_count;
    declare->param_count = params->count;
    declare->unit = calloc((size_t)params->unit_count, sizeof(*declare->unit));
    declare->param = calloc((size_t)params->count, sizeof(*declare->param));
    assert_true(declare->unit != NULL && declare->param != NULL);
    for (int32_t u = 0; u < params->unit_count; u++)
        snprintf(declare->unit[u].name, TESS_NAME_MAX, "unit%d", (int)u);
    for (int32_t p = 0; p < params->count; p++) {
        snprintf(declare->param[p].name, TESS_NAME_MAX, "param%d", (int)p);
        declare->param[p].unit = params->unit[p];
        declare->param[p].stacked = params->stacked[p];
        declare->param[p].index = p;
        declare->param[p].source = -1;
        declare->param[p].shape = tess_shape1(params->elements[p]);
    }
    if (params->tied) {
        declare->param[params->count - 1].flags |= TESS_PARAM_TIED;
        declare->param[params->count - 1].source = 0;
    }
}

static void fixture_load_options(struct fixture *fixture, const struct fixture_run *run)
{
    const struct tess_strategy_ops *ops = fixture->strategy.ops;
    char words[256];
    char *argv[8];
    const char *positional[1];
    int argc = 0, positional_count;
    fixture->option_values = calloc(1, ops->options_size + 1);
    assert_non_null(fixture->option_values);
    assert_int_equal(tess_options_open(&fixture->options), TESS_OK);
    assert_int_equal(
        tess_options_add(fixture->options, ops->name, ops->options, fixture->option_values),
        TESS_OK);
    snprintf(words, sizeof(words), "%s", run->option != NULL ? run->option : "");
    for (char *rest = words, *word; (word = strsep(&rest, " ")) != NULL && argc < 8;)
        if (*word != '\0')
            argv[argc++] = word;
    assert_int_equal(
        tess_options_load_arguments(fixture->options, argc, argv, positional, 0, &positional_count),
        TESS_OK);
}

void fixture_open(struct fixture *fixture, const struct fixture_params *params,
                  const struct fixture_run *run)
{
    struct tess_strategy *strategy = &fixture->strategy;
    struct tess_plan *plan = &fixture->plan;
    memset(fixture, 0, sizeof(*fixture));
    assert_int_equal(tess_registry_get_strategy(run->strategy, &strategy->ops), TESS_OK);
    fixture_declare(&fixture->declare, params);
    for (int32_t u = 0; u < params->unit_count && run->unit_chunk != NULL; u++)
        fixture->declare.unit[u].chunk = run->unit_chunk[u];
    fixture_load_options(fixture, run);
    plan->rank = run->rank;
    plan->rank_count = run->rank_count;
    plan->accumulate = run->accumulate;
    plan->grid = run->rank_count * run->accumulate;
    plan->leaf_rows = 1;
    plan->dtype = run->dtype;
    plan->reduce_dtype = run->reduce_dtype;
    plan->pipelined = run->pipelined;
    strategy->plan = plan;
    strategy->options = fixture->option_values;
    strategy->state = calloc(1, strategy->ops->state_size + 1);
    assert_non_null(strategy->state);
    assert_int_equal(tess_memory_open(&fixture->memory), TESS_OK);
    strategy->memory = fixture->memory;
    assert_int_equal(strategy->ops->check(strategy->options, run->rank_count, run->accumulate),
                     TESS_OK);
    assert_int_equal(tess_layout_begin(plan, &fixture->declare, &fixture->declare), TESS_OK);
    assert_int_equal(strategy->ops->plan(strategy), TESS_OK);
    assert_int_equal(tess_layout_finish(plan, &fixture->declare), TESS_OK);
    assert_int_equal(strategy->ops->reserve(strategy), TESS_OK);
}

/* Where the segments lie, as the engine lays them out. */
static void fixture_bind(struct tess_plan *plan, char *param, float *grad)
{
    const size_t dtype_bytes = tess_dtype_bytes(plan->dtype);
    int64_t param_packed = 0, grad_packed = 0;
    for (int32_t s = 0; s < plan->segment_count; s++) {
        struct tess_segment *segment = &plan->segment[s];
        int64_t own = tess_plan_own_begin(plan, s, plan->optim_extent);
        const bool param_full = plan->param_extent == TESS_EXTENT_FULL;
        const bool grad_full = plan->grad_extent == TESS_EXTENT_FULL;
        segment->grad_own = grad + (grad_full ? own : grad_packed);
        grad_packed += tess_plan_own_count(plan, s, plan->grad_extent);
        if (segment->values_of >= 0) {
            segment->param = plan->segment[segment->values_of].param;
            segment->param_own = plan->segment[segment->values_of].param_own;
            continue;
        }
        if (param_full)
            segment->param = param + (size_t)segment->begin * dtype_bytes;
        if (plan->param_extent != TESS_EXTENT_NONE)
            segment->param_own = param + (size_t)(param_full ? own : param_packed) * dtype_bytes;
        param_packed += tess_plan_own_count(plan, s, plan->param_extent);
    }
}

void fixture_commit(struct fixture *fixture)
{
    struct tess_plan *plan = &fixture->plan;
    const uint64_t params =
        (uint64_t)tess_layout_own_total(plan, plan->param_extent, TESS_LAYOUT_VALUES);
    const uint64_t grads =
        (uint64_t)tess_layout_own_total(plan, plan->grad_extent, TESS_LAYOUT_GRADS);
    struct tess_block param, grad;
    assert_int_equal(tess_memory_reserve(fixture->memory, TESS_MEMORY_PARAMETER,
                                         params * tess_dtype_bytes(plan->dtype), "parameters",
                                         &param),
                     TESS_OK);
    assert_int_equal(tess_memory_reserve(fixture->memory, TESS_MEMORY_GRADIENT,
                                         grads * (uint64_t)plan->level_count * sizeof(float),
                                         "gradients", &grad),
                     TESS_OK);
    const struct tess_kernel_ops *kernel;
    assert_int_equal(tess_registry_get_kernel("ref", &kernel), TESS_OK);
    assert_int_equal(tess_kernel_open(kernel, 1, &fixture->kernel), TESS_OK);
    fixture->strategy.kernel = fixture->kernel;
    fixture->arena = aligned_alloc(TESS_MEMORY_ALIGN, tess_memory_total(fixture->memory));
    assert_non_null(fixture->arena);
    memset(fixture->arena, 0, tess_memory_total(fixture->memory));
    assert_int_equal(tess_memory_commit(fixture->memory, fixture->arena), TESS_OK);
    fixture->grad = tess_memory_get(fixture->memory, grad);
    fixture_bind(plan, tess_memory_get(fixture->memory, param), fixture->grad);
}

void fixture_enter_micro(struct fixture *fixture, int32_t micro)
{
    struct tess_plan *plan = &fixture->plan;
    fixture->strategy.micro = micro;
    if (plan->grad_extent != TESS_EXTENT_FULL)
        return;
    for (int32_t s = 0; s < plan->segment_count; s++)
        plan->segment[s].grad = fixture->grad + tess_fold_level(plan, micro) * plan->flat_count +
                                plan->segment[s].begin;
}

void fixture_close(struct fixture *fixture)
{
    if (fixture->kernel != NULL)
        tess_kernel_close(fixture->kernel);
    tess_layout_fini(&fixture->plan);
    tess_memory_close(fixture->memory);
    tess_options_close(fixture->options);
    free(fixture->option_values);
    free(fixture->strategy.state);
    free(fixture->declare.unit);
    free(fixture->declare.param);
    free(fixture->arena);
}
