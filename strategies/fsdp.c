/*
 * The strategies `fsdp` and `hsdp`: a rank keeps a part of every unit and gathers the unit it is
 * about to run (Zhao et al., "PyTorch FSDP", VLDB 2023; Rajbhandari et al., "ZeRO", SC 2020, stage
 * 3).
 *
 * A unit is a segment. gather.h brings its parameters, scatter.h takes its gradients away:
 *
 *     forward    gather 0 | unit 0   | unit 1    | unit 2    |
 *                         | gather 1 | gather 2  |           |
 *     backward            | unit 2   | unit 1    | unit 0    |
 *                         | gather 1 | gather 0  |           |
 *                                    | scatter 2 | scatter 1 | scatter 0
 *
 * In fsdp all ranks are one shard group. In hsdp there are several: parts are gathered and
 * scattered inside a group and the sums are then all-reduced between the ranks that own the same
 * part. Groups are subtrees of the canonical sum (shard.h), so both give the same bits as one rank.
 */
#include "gather.h"
#include "scatter.h"
#include "shard.h"
#include "wire.h"

#include "tessera/check.h"
#include "tessera/version.h"

#include <stdio.h>

enum { FSDP_RESHARD_AUTO, FSDP_RESHARD_ON, FSDP_RESHARD_OFF };

struct fsdp_options {
    int32_t reshard;
    int64_t shard_ranks; /* hsdp only; in fsdp 0 */
    int64_t keep_last;
};

/* fsdp has all but the first. */
static const struct tess_option hsdp_option_table[] = {
    TESS_ROW_INT(
        "shard-ranks", offsetof(struct fsdp_options, shard_ranks), "0", 0, 4096,
        "ranks of one shard group; 0: the largest power of two that leaves two replicas or more"),
    TESS_ROW_CHOICE("reshard-after-forward", offsetof(struct fsdp_options, reshard), "auto",
                    "auto|on|off",
                    "drop gathered units after forward and gather them again in backward; off: "
                    "keep all until the optimizer has run; auto: on, but off in a pipeline"),
    TESS_ROW_INT("keep-last", offsetof(struct fsdp_options, keep_last), "2", 1, 2,
                 "last units that stay gathered from forward to backward; 2 takes no more memory "
                 "than 1 and saves a gather; none in a pipeline"),
    TESS_ROW_END,
};

struct fsdp_state {
    struct tess_scatter scatter;
    struct tess_gather gather;
};

/* Groups that hsdp splits off, by their place in strategy->group. */
enum { HSDP_SHARD, HSDP_REPLICA, HSDP_GROUP_COUNT };

static enum tess_status hsdp_check(const void *options, int32_t rank_count, int32_t accumulate)
{
    const int64_t width = ((const struct fsdp_options *)options)->shard_ranks;
    char fitting[256];
    (void)accumulate;
    if (width == 0 || tess__shard_width_fits(rank_count, (int32_t)width))
        return TESS_OK;
    tess__shard_width_list(rank_count, fitting, sizeof(fitting));
    TESS_FAIL(TESS_ERR_USAGE,
              "cannot split %d ranks into shard groups of %d: groups must be equal, and a power of "
              "two unless there is one; use --hsdp.shard-ranks %s, or 0 to let it choose",
              (int)rank_count, (int)width, fitting);
}

/* fsdp has no option for the width: all ranks are one group. */
static enum tess_status fsdp_plan(struct tess_strategy *strategy)
{
    const struct fsdp_options *options = strategy->options;
    struct tess_plan *plan = strategy->plan;
    plan->shard_count = plan->rank_count;
    if (strategy->ops->check == hsdp_check)
        plan->shard_count = options->shard_ranks > 0 ? (int32_t)options->shard_ranks
                                                     : tess__shard_width_default(plan->rank_count);
    plan->shard_index = plan->rank % plan->shard_count;
    plan->param_extent = TESS_EXTENT_SHARD;
    plan->grad_extent = TESS_EXTENT_SHARD;
    plan->optim_extent = TESS_EXTENT_SHARD;
    plan->leaf_order = TESS_LEAVES_MICRO_FIRST;
    for (int32_t first = 0, end; first < plan->param_count; first = end) {
        for (end = first; end < plan->param_count; end++)
            if (plan->param[end].unit != plan->param[first].unit)
                break;
        TESS_TRY(tess_plan_add_segment(plan, end - first));
    }
    return TESS_OK;
}

/* In a pipeline units come again before their backward: with S micro-batches under way, dropping
 * them costs 2 S gathers where keeping them costs one. */
static int32_t fsdp_keep_last(const struct tess_strategy *strategy)
{
    const struct fsdp_options *options = strategy->options;
    const bool pipelined = strategy->plan->pipelined;
    if (options->reshard == FSDP_RESHARD_OFF ||
        (options->reshard == FSDP_RESHARD_AUTO && pipelined))
        return TESS_GATHER_ALL;
    return pipelined ? 0 : (int32_t)options->keep_last;
}

static enum tess_status fsdp_reserve(struct tess_strategy *strategy)
{
    struct fsdp_state *state = strategy->state;
    TESS_TRY(tess__gather_reserve(&state->gather, strategy, fsdp_keep_last(strategy)));
    return tess__scatter_reserve(strategy);
}

static enum tess_status fsdp_open(struct tess_strategy *strategy)
{
    struct fsdp_state *state = strategy->state;
    const struct tess_plan *plan = strategy->plan;
    const int32_t width = plan->shard_count, rank = plan->rank;
    struct tess_comm **group = strategy->group, *shard = strategy->comm;
    if (width < plan->rank_count) {
        strategy->group_count = HSDP_GROUP_COUNT;
        TESS_TRY(tess_comm_split(strategy->comm, rank / width, rank, &group[HSDP_SHARD]));
        TESS_TRY(tess_comm_split(strategy->comm, rank % width, rank, &group[HSDP_REPLICA]));
        shard = group[HSDP_SHARD];
    }
    TESS_TRY(tess__gather_open(&state->gather, strategy, shard));
    state->scatter.gather = &state->gather;
    return tess__scatter_open(strategy, shard, group[HSDP_REPLICA]);
}

static void fsdp_close(struct tess_strategy *strategy)
{
    struct fsdp_state *state = strategy->state;
    tess__scatter_close(strategy);
    tess__gather_close(&state->gather);
    while (strategy->group_count > 0)
        tess_comm_close(strategy->group[--strategy->group_count]);
}

static enum tess_status fsdp_unit_enter(struct tess_strategy *strategy, int32_t unit,
                                        enum tess_phase phase)
{
    struct fsdp_state *state = strategy->state;
    TESS_TRY(tess__gather_enter(&state->gather, strategy, unit, phase));
    return tess__scatter_enter(strategy, unit, phase);
}

static enum tess_status fsdp_unit_leave(struct tess_strategy *strategy, int32_t unit,
                                        enum tess_phase phase)
{
    struct fsdp_state *state = strategy->state;
    tess__gather_leave(&state->gather, strategy, unit, phase);
    TESS_TRY(tess_comm_poll(state->scatter.shard));
    return state->scatter.replica != NULL ? tess_comm_poll(state->scatter.replica) : TESS_OK;
}

static enum tess_status fsdp_params_refresh(struct tess_strategy *strategy)
{
    struct fsdp_state *state = strategy->state;
    tess__gather_forget(&state->gather, strategy->plan, strategy->refresh_frozen);
    return TESS_OK;
}

static uint64_t fsdp_sent_bytes(const struct tess_strategy *strategy)
{
    const struct tess_plan *plan = strategy->plan;
    return tess__gather_sent_bytes(plan, fsdp_keep_last(strategy)) +
           (uint64_t)plan->accumulate * tess__scatter_sent_bytes(plan);
}

static void fsdp_describe(const struct tess_strategy *strategy,
                          void (*line)(void *context, const char *text), void *context)
{
    const struct fsdp_state *state = strategy->state;
    const struct tess_plan *plan = strategy->plan;
    const int32_t keep_last = fsdp_keep_last(strategy);
    char text[160];
    snprintf(text, sizeof(text),
             "shard groups: %d of %d ranks each; %d segments, of them %d trained",
             (int)(plan->rank_count / plan->shard_count), (int)plan->shard_count,
             (int)plan->segment_count, (int)plan->grad_segment_count);
    line(context, text);
    snprintf(text, sizeof(text), "gathered units: %d buffers, %s; gradients: %d buffers",
             (int)(state->gather.lane[0].slot_count + state->gather.lane[1].slot_count),
             keep_last == TESS_GATHER_ALL ? "kept until the optimizer has run"
             : keep_last == 0             ? "dropped when left"
             : keep_last == 1             ? "dropped when left; the last one kept for backward"
                                          : "dropped when left; the last two kept for backward",
             (int)state->scatter.slot_count);
    line(context, text);
    tess__wire_describe(strategy, "a rank per step:", line, context);
}

const struct tess_strategy_ops tess_strategy_fsdp = {
    .abi = TESS_ABI,
    .name = "fsdp",
    .summary = "parameters, gradients and optimizer sharded; units gathered one ahead",
    .options = &hsdp_option_table[1],
    .options_size = sizeof(struct fsdp_options),
    .state_size = sizeof(struct fsdp_state),
    .plan = fsdp_plan,
    .reserve = fsdp_reserve,
    .open = fsdp_open,
    .close = fsdp_close,
    .unit_enter = fsdp_unit_enter,
    .unit_leave = fsdp_unit_leave,
    .grads_ready = tess__scatter_send,
    .grads_finish = tess__scatter_finish,
    .params_refresh = fsdp_params_refresh,
    .describe = fsdp_describe,
    .sent_bytes = fsdp_sent_bytes,
};

const struct tess_strategy_ops tess_strategy_hsdp = {
    .abi = TESS_ABI,
    .name = "hsdp",
    .summary = "fsdp inside shard groups, replicas of the groups all-reduced",
    .options = hsdp_option_table,
    .options_size = sizeof(struct fsdp_options),
    .state_size = sizeof(struct fsdp_state),
    .check = hsdp_check,
    .plan = fsdp_plan,
    .reserve = fsdp_reserve,
    .open = fsdp_open,
    .close = fsdp_close,
    .unit_enter = fsdp_unit_enter,
    .unit_leave = fsdp_unit_leave,
    .grads_ready = tess__scatter_send,
    .grads_finish = tess__scatter_finish,
    .params_refresh = fsdp_params_refresh,
    .describe = fsdp_describe,
    .sent_bytes = fsdp_sent_bytes,
};
