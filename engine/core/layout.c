/*
 * The flat space: offsets of parameters and segments, who owns which part, the leaves a rank
 * computes, and the fold over micro-batches. Pure arithmetic on the plan; moves no data but for the
 * fold's adds.
 */
#include "core/layout.h"

#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

static int64_t layout_round_up(int64_t value, int64_t step)
{
    return (value + step - 1) / step * step;
}

static int64_t layout_shards(const struct tess_plan *plan)
{
    return plan->shard_count > 1 ? plan->shard_count : 1;
}

enum tess_status tess_layout_begin(struct tess_plan *plan, const struct tess_declare *declare)
{
    struct tess_plan_param *param = calloc((size_t)declare->param_count + 1, sizeof *param);
    const char **unit_name = calloc((size_t)declare->unit_count + 1, sizeof *unit_name);
    plan->param = param;
    plan->unit_name = unit_name;
    if (!param || !unit_name)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the plan");
    for (int32_t i = 0; i < declare->unit_count; i++)
        unit_name[i] = declare->unit[i].name;
    for (int32_t i = 0; i < declare->param_count; i++) {
        param[i].name = declare->param[i].name;
        param[i].unit = declare->param[i].unit;
        param[i].count = tess_shape_count(&declare->param[i].shape);
        param[i].flags = declare->param[i].flags;
        plan->param_total += param[i].count;
    }
    plan->unit_count = declare->unit_count;
    plan->param_count = declare->param_count;
    return TESS_OK;
}

enum tess_status tess_plan_add_segment(struct tess_plan *plan, int32_t param_count)
{
    int32_t first = 0;
    if (plan->segment_count > 0) {
        const struct tess_segment *last = &plan->segment[plan->segment_count - 1];
        first = last->param_first + last->param_count;
    }
    if (param_count <= 0 || param_count > plan->param_count - first)
        TESS_FAIL(TESS_ERR_INTERNAL, "a segment of %d parameters after %d of %d", param_count,
                  first, plan->param_count);
    size_t bytes = ((size_t)plan->segment_count + 1) * sizeof *plan->segment;
    struct tess_segment *grown = realloc(plan->segment, bytes);
    if (!grown)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the plan");
    plan->segment = grown;
    struct tess_segment *segment = &grown[plan->segment_count++];
    memset(segment, 0, sizeof *segment);
    segment->param_first = first;
    segment->param_count = param_count;
    return TESS_OK;
}

static int32_t layout_level_count(const struct tess_plan *plan)
{
    int32_t most = 0;
    for (int32_t m = 0; m < plan->accumulate; m++)
        if (tess_fold_level(plan, m) + 1 > most)
            most = tess_fold_level(plan, m) + 1;
    return most;
}

enum tess_status tess_layout_finish(struct tess_plan *plan)
{
    struct tess_plan_param *param = (struct tess_plan_param *)plan->param;
    int64_t shards = layout_shards(plan), at = 0;
    int32_t next = 0;
    if (plan->shard_index < 0 || plan->shard_index >= shards)
        TESS_FAIL(TESS_ERR_INTERNAL, "shard %d of %lld", plan->shard_index, (long long)shards);
    for (int32_t s = 0; s < plan->segment_count; s++) {
        struct tess_segment *segment = &plan->segment[s];
        segment->begin = at;
        for (int32_t i = 0; i < segment->param_count; i++, next++) {
            at = layout_round_up(at, TESS_SHARD_ALIGN);
            param[next].begin = at;
            param[next].segment = s;
            at += param[next].count;
        }
        at = segment->begin + layout_round_up(at - segment->begin, shards * TESS_SHARD_ALIGN);
        segment->count = at - segment->begin;
        segment->unit_first = param[segment->param_first].unit;
        segment->unit_last = param[next - 1].unit;
    }
    if (next != plan->param_count)
        TESS_FAIL(TESS_ERR_INTERNAL, "the plan's segments hold %d of %d parameters", next,
                  plan->param_count);
    plan->flat_count = at;
    plan->level_count = layout_level_count(plan);
    plan->own_stride = tess_layout_own_total(plan, TESS_EXTENT_SHARD);
    return TESS_OK;
}

void tess_layout_fini(struct tess_plan *plan)
{
    free((void *)plan->param);
    free((void *)plan->unit_name);
    free(plan->segment);
}

int64_t tess_plan_own_count(const struct tess_plan *plan, int32_t s, enum tess_extent extent)
{
    int64_t count = plan->segment[s].count;
    if (extent == TESS_EXTENT_NONE)
        return 0;
    return extent == TESS_EXTENT_FULL ? count : count / layout_shards(plan);
}

int64_t tess_plan_own_begin(const struct tess_plan *plan, int32_t s, enum tess_extent extent)
{
    int64_t begin = plan->segment[s].begin;
    return extent == TESS_EXTENT_SHARD
               ? begin + plan->shard_index * tess_plan_own_count(plan, s, extent)
               : begin;
}

int64_t tess_layout_own_total(const struct tess_plan *plan, enum tess_extent extent)
{
    int64_t total = 0;
    for (int32_t s = 0; s < plan->segment_count; s++)
        total += tess_plan_own_count(plan, s, extent);
    return total;
}

/* The part of parameter p that lies in [begin, end) of flat space; false when there is none. */
static bool layout_overlap(const struct tess_plan_param *param, int64_t begin, int64_t end,
                           int64_t *from_out, int64_t *to_out)
{
    int64_t from = param->begin > begin ? param->begin : begin;
    int64_t to = param->begin + param->count < end ? param->begin + param->count : end;
    *from_out = from;
    *to_out = to;
    return from < to;
}

int32_t tess_layout_piece_count(const struct tess_plan *plan)
{
    int32_t count = 0;
    int64_t from, to;
    for (int32_t p = 0; p < plan->param_count; p++) {
        int32_t s = plan->param[p].segment;
        int64_t begin = tess_plan_own_begin(plan, s, plan->optim_extent);
        int64_t end = begin + tess_plan_own_count(plan, s, plan->optim_extent);
        count += layout_overlap(&plan->param[p], begin, end, &from, &to);
    }
    return count;
}

void tess_layout_pieces(const struct tess_plan *plan, const struct tess_declare *declare,
                        struct tess_piece *piece)
{
    size_t low_bytes = tess_dtype_bytes(plan->dtype);
    int64_t state = 0; /* elements owned before the current segment */
    int64_t model = 0; /* elements of the parameters before the current one */
    int32_t p = 0;
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const struct tess_segment *segment = &plan->segment[s];
        int64_t begin = tess_plan_own_begin(plan, s, plan->optim_extent);
        int64_t end = begin + tess_plan_own_count(plan, s, plan->optim_extent);
        for (int32_t i = 0; i < segment->param_count; i++, model += plan->param[p++].count) {
            const struct tess_plan_param *param = &plan->param[p];
            int64_t from, to;
            if (!layout_overlap(param, begin, end, &from, &to))
                continue;
            int64_t at = from - begin;
            *piece++ = (struct tess_piece){
                .param = p,
                .flags = param->flags,
                .buffer_rate = declare->param[p].rate,
                .param_begin = from - param->begin,
                .model_begin = model + from - param->begin,
                .count = to - from,
                .state_begin = state + at,
                .w = segment->master_own ? segment->master_own + at : NULL,
                .low = plan->dtype == TESS_F32
                           ? NULL
                           : (char *)segment->param_own + (size_t)at * low_bytes,
                .g = segment->grad_own + at,
            };
        }
        state += end - begin;
    }
}

int64_t tess_layout_first_leaf(const struct tess_plan *plan, int32_t rank, int32_t micro)
{
    int64_t leaves = plan->grid / plan->rank_count / plan->accumulate;
    if (plan->leaf_order == TESS_LEAVES_RANK_FIRST)
        return ((int64_t)rank * plan->accumulate + micro) * leaves;
    return ((int64_t)micro * plan->rank_count + rank) * leaves;
}

/* As a tree: occupied levels before micro-batch m, the ones in m's binary digits. */
int32_t tess_fold_level(const struct tess_plan *plan, int32_t micro)
{
    if (plan->fold_in_turn)
        return micro > 0;
    return (int32_t)__builtin_popcount((unsigned)micro);
}

void tess_fold_merge(struct tess_kernel *kernel, const struct tess_plan *plan, float *level0,
                     int64_t stride, int64_t count, int32_t micro)
{
    int32_t top = tess_fold_level(plan, micro);
    bool all = plan->fold_in_turn || micro + 1 == plan->accumulate;
    int32_t merges = all ? top : (int32_t)__builtin_ctz(~(unsigned)micro);
    for (int32_t i = 0; i < merges; i++, top--)
        tess_accumulate(kernel, count, 1.0f, level0 + top * stride, level0 + (top - 1) * stride);
}

void tess_segment_fold(struct tess_strategy *strategy, int32_t s)
{
    struct tess_plan *plan = strategy->plan;
    struct tess_segment *segment = &plan->segment[s];
    float *level0 = segment->grad - tess_fold_level(plan, strategy->micro) * plan->flat_count;
    tess_fold_merge(strategy->kernel, plan, level0, plan->flat_count, segment->count,
                    strategy->micro);
    if (strategy->micro + 1 == plan->accumulate)
        segment->grad = level0;
}
