/*
 * The flat space: offsets of parameters and segments, who owns which part, the leaves a rank
 * computes, and the fold over micro-batches. Pure arithmetic on the plan; moves no data but for the
 * fold's adds.
 */
#include "core/layout.h"

#include "base/array.h"
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

/* Which parameters are tied, or have another one tied to them, on whatever rank. */
static void layout_mark_alone(const struct tess_declare *model, const struct tess_declare *declare,
                              struct tess_plan_param *param)
{
    for (int32_t p = 0; p < model->param_count && model->tied; p++) {
        const int32_t source = tess_declare_source(&model->param[p]);
        for (int32_t i = 0; source >= 0 && i < declare->param_count; i++)
            param[i].alone =
                param[i].alone || declare->param[i].index == p || declare->param[i].index == source;
    }
}

enum tess_status tess_layout_begin(struct tess_plan *plan, const struct tess_declare *model,
                                   const struct tess_declare *declare)
{
    struct tess_plan_param *param = calloc((size_t)declare->param_count + 1, sizeof(*param));
    const char **unit_name = calloc((size_t)declare->unit_count + 1, sizeof(*unit_name));
    plan->param = param;
    plan->unit_name = unit_name;
    if (param == NULL || unit_name == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the plan");
    for (int32_t i = 0; i < declare->unit_count; i++)
        unit_name[i] = declare->unit[i].name;
    for (int32_t i = 0; i < declare->param_count; i++) {
        param[i].name = declare->param[i].name;
        param[i].unit = declare->param[i].unit;
        param[i].count = tess_shape_count(&declare->param[i].shape);
        param[i].flags = declare->param[i].flags;
        param[i].index = declare->param[i].index;
        param[i].chunk = declare->unit[declare->param[i].unit].chunk;
        param[i].frozen = (declare->param[i].flags & TESS_PARAM_FROZEN) != 0;
        param[i].stacked = declare->param[i].stacked;
        plan->param_total += param[i].count;
    }
    layout_mark_alone(model, declare, param);
    plan->unit_count = declare->unit_count;
    plan->param_count = declare->param_count;
    return TESS_OK;
}

static enum tess_status layout_add_run(struct tess_plan *plan, int32_t first, int32_t param_count)
{
    struct tess_segment *grown =
        tess__array_grow(plan->segment, (size_t)plan->segment_count, sizeof(*grown));
    if (grown == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the plan");
    plan->segment = grown;
    struct tess_segment *segment = &grown[plan->segment_count++];
    memset(segment, 0, sizeof(*segment));
    segment->param_first = first;
    segment->param_count = param_count;
    segment->values_of = -1;
    return TESS_OK;
}

enum tess_status tess_plan_add_segment(struct tess_plan *plan, int32_t param_count)
{
    int32_t first = 0;
    if (plan->segment_count > 0) {
        const struct tess_segment *last = &plan->segment[plan->segment_count - 1];
        first = last->param_first + last->param_count;
    }
    if (param_count <= 0 || param_count > plan->param_count - plan->asked_count)
        TESS_FAIL(TESS_ERR_INTERNAL, "a segment of %d parameters after %d of %d", param_count,
                  plan->asked_count, plan->param_count);
    plan->asked_count += param_count;
    int32_t end = plan->asked_count > first ? plan->asked_count : first;
    while (end < plan->param_count && plan->param[end].stacked)
        end++;
    for (int32_t p = first + 1; p <= end; p++) {
        const struct tess_plan_param *before = &plan->param[p - 1], *here = &plan->param[p];
        if (p < end && !before->alone && !here->alone && before->chunk == here->chunk &&
            before->frozen == here->frozen)
            continue;
        TESS_TRY(layout_add_run(plan, first, p - first));
        first = p;
    }
    return TESS_OK;
}

/* Levels that the fold over micro-batches needs. What is sharded arrives in a buffer and is added
 * from there, so that a level is only for what must wait for the next micro-batch. */
static int32_t layout_level_count(const struct tess_plan *plan)
{
    int32_t most = 1;
    for (int32_t m = 0; m < plan->accumulate; m++) {
        const bool waits = plan->grad_extent != TESS_EXTENT_SHARD || !tess_fold_adds(plan, m);
        if (waits && tess_fold_level(plan, m) + 1 > most)
            most = tess_fold_level(plan, m) + 1;
    }
    return most;
}

/* Tied parameters whose source is here too share its values. They come last in flat space, so that
 * values end where they begin. */
static enum tess_status layout_share(struct tess_plan *plan, const struct tess_declare *declare)
{
    for (int32_t s = 0; s < plan->segment_count; s++) {
        const int32_t source = tess_declare_source(&declare->param[plan->segment[s].param_first]);
        int32_t p = 0;
        while (source >= 0 && p < plan->param_count && plan->param[p].index != source)
            p++;
        if (source < 0 || p == plan->param_count)
            continue;
        plan->segment[s].values_of = plan->param[p].segment;
        if (s + 1 < plan->segment_count)
            TESS_FAIL(TESS_ERR_UNSUPPORTED,
                      "parameter '%s' is tied to another one, and units with parameters follow it",
                      plan->param[plan->segment[s].param_first].name);
    }
    return TESS_OK;
}

/* Segments of frozen parameters come last; the order is otherwise that of the parameters. */
static enum tess_status layout_sort(struct tess_plan *plan)
{
    struct tess_segment *all =
        malloc(((size_t)plan->segment_count + 1) * sizeof(*all)); /* the frozen ones */
    int32_t frozen = 0;
    if (all == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the plan");
    for (int32_t s = 0; s < plan->segment_count; s++) {
        if (plan->param[plan->segment[s].param_first].frozen)
            all[frozen++] = plan->segment[s];
        else
            plan->segment[plan->grad_segment_count++] = plan->segment[s];
    }
    for (int32_t f = 0; f < frozen; f++)
        plan->segment[plan->grad_segment_count + f] = all[f];
    free(all);
    return TESS_OK;
}

enum tess_status tess_layout_finish(struct tess_plan *plan, const struct tess_declare *declare)
{
    struct tess_plan_param *param = (struct tess_plan_param *)plan->param;
    int64_t shards = layout_shards(plan), at = 0;
    int32_t held = 0;
    if (plan->shard_index < 0 || plan->shard_index >= shards)
        TESS_FAIL(TESS_ERR_INTERNAL, "shard %d of %lld", plan->shard_index, (long long)shards);
    TESS_TRY(layout_sort(plan));
    for (int32_t s = 0; s < plan->segment_count; s++) {
        struct tess_segment *segment = &plan->segment[s];
        const int32_t end = segment->param_first + segment->param_count;
        segment->begin = at;
        for (int32_t p = segment->param_first; p < end; p++) {
            at = layout_round_up(at, TESS_SHARD_ALIGN);
            param[p].begin = at;
            param[p].segment = s;
            at += param[p].count;
        }
        at = segment->begin + layout_round_up(at - segment->begin, shards * TESS_SHARD_ALIGN);
        segment->count = at - segment->begin;
        segment->unit_first = param[segment->param_first].unit;
        segment->unit_last = param[end - 1].unit;
        held += segment->param_count;
        plan->grad_count = s < plan->grad_segment_count ? at : plan->grad_count;
    }
    if (held != plan->param_count)
        TESS_FAIL(TESS_ERR_INTERNAL, "the plan's segments hold %d of %d parameters", held,
                  plan->param_count);
    plan->flat_count = at;
    plan->level_count = layout_level_count(plan);
    plan->own_stride = tess_layout_own_total(plan, TESS_EXTENT_SHARD, TESS_LAYOUT_GRADS);
    return layout_share(plan, declare);
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

int64_t tess_layout_own_total(const struct tess_plan *plan, enum tess_extent extent,
                              enum tess_layout_of of)
{
    const int32_t end = of == TESS_LAYOUT_VALUES ? plan->segment_count : plan->grad_segment_count;
    int64_t total = 0;
    for (int32_t s = 0; s < end && extent != TESS_EXTENT_NONE; s++)
        if (of == TESS_LAYOUT_GRADS || plan->segment[s].values_of < 0)
            total += plan->segment[s].count;
    /* Every segment is whole shards. */
    return extent == TESS_EXTENT_FULL ? total : total / layout_shards(plan);
}

/* Elements [*from, *to) of parameter `p` that this rank updates, in flat numbers. */
static void layout_own(const struct tess_plan *plan, int32_t p, int64_t *from, int64_t *to)
{
    const struct tess_plan_param *param = &plan->param[p];
    const int64_t begin = tess_plan_own_begin(plan, param->segment, plan->optim_extent);
    const int64_t end = begin + tess_plan_own_count(plan, param->segment, plan->optim_extent);
    *from = param->begin > begin ? param->begin : begin;
    *to = param->begin + param->count < end ? param->begin + param->count : end;
}

int64_t tess_layout_own_of(const struct tess_plan *plan, int32_t p)
{
    int64_t from, to;
    layout_own(plan, p, &from, &to);
    return to > from ? to - from : 0;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static bool layout_has_parts(const struct tess_declare *declare, int32_t p)
{
    return declare->param[p].slice.axis >= 0 && declare->axis.parts > 1;
}

/* Elements of a parameter that lie together in every layout: a part of the tensor axis. */
static int64_t layout_part_count(const struct tess_declare *declare, int32_t p)
{
    const int64_t count = tess_shape_count(&declare->param[p].shape);
    return layout_has_parts(declare, p) ? count / declare->axis.count : count;
}

/*
 * Shards are cut at multiples of TESS_SHARD_ALIGN from where a parameter begins, parts are not: the
 * largest power of two that divides the distance of each cut from where its part begins, on every
 * layout. A rank alone and one with a shard of a part then add the same blocks.
 */
static int32_t layout_sum_block(const struct tess_declare *declare, int32_t p)
{
    const int64_t part = layout_part_count(declare, p);
    int32_t block = TESS_SUM_BLOCK;
    while (layout_has_parts(declare, p) && part % block != 0)
        block /= 2;
    return block;
}

/* Where a walk over what this rank owns stands: elements [from, to) of parameter p, the i-th of
 * segment s, in flat numbers. */
struct layout_walk {
    int32_t s, i, p;
    int64_t from, to;
};

/* Parameter p is the walk's; false behind the last one. */
static bool layout_walk_param(const struct tess_plan *plan, struct layout_walk *walk)
{
    if (walk->s < plan->segment_count && walk->i == plan->segment[walk->s].param_count) {
        walk->s++;
        walk->i = 0;
    }
    if (walk->s == plan->segment_count)
        return false;
    walk->p = plan->segment[walk->s].param_first + walk->i;
    return true;
}

/* The next run of one part of one parameter that this rank owns, in flat order; false at the end.
 * Begin with zeros. */
static bool layout_next(const struct tess_plan *plan, const struct tess_declare *declare,
                        struct layout_walk *walk)
{
    for (; layout_walk_param(plan, walk); walk->i++, walk->to = 0) {
        const struct tess_plan_param *param = &plan->param[walk->p];
        const int64_t part = layout_part_count(declare, walk->p);
        int64_t from, end;
        layout_own(plan, walk->p, &from, &end);
        from = walk->to > from ? walk->to : from;
        int64_t to = param->begin + ((from - param->begin) / part + 1) * part;
        to = to < end ? to : end;
        if (plan->segment[param->segment].values_of >= 0 || from >= to)
            continue;
        walk->from = from;
        walk->to = to;
        return true;
    }
    return false;
}

int32_t tess_layout_piece_count(const struct tess_plan *plan, const struct tess_declare *declare,
                                int32_t *trained_out)
{
    struct layout_walk walk = {0};
    int32_t count = 0;
    *trained_out = 0;
    while (layout_next(plan, declare, &walk)) {
        count++;
        *trained_out += walk.s < plan->grad_segment_count;
    }
    return count;
}

/* Whole parameters are the same on every rank of the tensor axis, tied ones the same as their
 * source. */
static bool layout_is_duplicate(const struct tess_declare *declare, int32_t p)
{
    const struct tess_declare_param *param = &declare->param[p];
    return tess_declare_source(param) >= 0 || (param->slice.axis < 0 && declare->axis.rank > 0);
}

int64_t tess_layout_counted(const struct tess_plan *plan, const struct tess_declare *declare,
                            int64_t *trained_out)
{
    struct layout_walk walk = {0};
    int64_t count = 0;
    *trained_out = 0;
    while (layout_next(plan, declare, &walk)) {
        const int64_t run = layout_is_duplicate(declare, walk.p) ? 0 : walk.to - walk.from;
        count += run;
        *trained_out += walk.s < plan->grad_segment_count ? run : 0;
    }
    return count;
}

void tess_layout_pieces(const struct tess_plan *plan, const struct tess_declare *declare,
                        struct tess_piece *piece)
{
    const size_t low_bytes = tess_dtype_bytes(plan->dtype);
    struct layout_walk walk = {0};
    int64_t state = 0; /* elements owned before the current segment */
    int32_t s = 0;
    for (; layout_next(plan, declare, &walk); piece++) {
        const struct tess_plan_param *param = &plan->param[walk.p];
        const struct tess_declare_param *from = &declare->param[walk.p];
        for (; s < param->segment; s++)
            if (plan->segment[s].values_of < 0)
                state += tess_plan_own_count(plan, s, plan->optim_extent);
        const struct tess_segment *segment = &plan->segment[s];
        const int64_t at = walk.from - tess_plan_own_begin(plan, s, plan->optim_extent);
        *piece = (struct tess_piece){
            .param = tess_declare_source(from) >= 0 ? from->source : param->index,
            .of = from,
            .flags = param->flags,
            .duplicate = layout_is_duplicate(declare, walk.p),
            .buffer_rate = from->rate,
            .param_begin = walk.from - param->begin,
            .count = walk.to - walk.from,
            .sum_block = layout_sum_block(declare, walk.p),
            .state_begin = state + at,
            .w = segment->master_own != NULL ? segment->master_own + at : NULL,
            .low = plan->dtype == TESS_F32 ? NULL
                                           : (char *)segment->param_own + (size_t)at * low_bytes,
            .g = segment->grad_own != NULL ? segment->grad_own + at : NULL,
        };
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
    return plan->fold_in_turn ? micro > 0 : (int32_t)__builtin_popcount((unsigned)micro);
}

/* Pairs of levels that are added once micro-batch `micro` is there. */
static int32_t layout_merge_count(const struct tess_plan *plan, int32_t micro)
{
    bool all = plan->fold_in_turn || micro + 1 == plan->accumulate;
    return all ? tess_fold_level(plan, micro) : (int32_t)__builtin_ctz(~(unsigned)micro);
}

bool tess_fold_adds(const struct tess_plan *plan, int32_t micro)
{
    return layout_merge_count(plan, micro) > 0;
}

void tess_fold_add(struct tess_kernel *kernel, const struct tess_plan *plan, float *level0,
                   int64_t stride, int64_t count, int32_t micro, const float *grad)
{
    int32_t top = tess_fold_level(plan, micro);
    for (int32_t i = layout_merge_count(plan, micro); i > 0; i--, top--) {
        tess_accumulate(kernel, count, 1.0f, grad, level0 + (top - 1) * stride);
        grad = level0 + (top - 1) * stride;
    }
}

void tess_fold_merge(struct tess_kernel *kernel, const struct tess_plan *plan, float *level0,
                     int64_t stride, int64_t count, int32_t micro)
{
    tess_fold_add(kernel, plan, level0, stride, count, micro,
                  level0 + tess_fold_level(plan, micro) * stride);
}

void tess_segment_fold(struct tess_strategy *strategy, int32_t s)
{
    struct tess_plan *plan = strategy->plan;
    struct tess_segment *segment = &plan->segment[s];
    float *level0 = segment->grad - tess_fold_level(plan, strategy->micro) * plan->grad_count;
    tess_fold_merge(strategy->kernel, plan, level0, plan->grad_count, segment->count,
                    strategy->micro);
    if (strategy->micro + 1 == plan->accumulate)
        segment->grad = level0;
}
