/*
 * The strategies `zero1` and `zero2` (Rajbhandari et al., "ZeRO", SC 2020, stages 1 and 2): every
 * rank holds all parameters, but optimizer state and f32 masters of its own part of every bucket
 * only.
 *
 *                 parameters   gradients                     optimizer, master
 *     zero1       full         full, reduced in place        part
 *     zero2       full         part; buckets are transient   part
 *
 * Gradients are reduce-scattered bucket by bucket while backward goes on, each rank updates its
 * part, and the new parameters are all-gathered in place. zero2 cannot keep what it has not
 * reduced, so it reduces after every micro-batch; zero1 once per step.
 */
#include "bucket.h"
#include "gather.h"
#include "scatter.h"
#include "wire.h"

#include "tessera/check.h"
#include "tessera/version.h"

#include <stdio.h>

static const struct tess_option zero_option_table[] = {
    TESS_ROW_REAL("bucket-mib", offsetof(struct tess_bucket_options, mib), "25", 0, 65536,
                  "size at which a bucket is closed, in MiB of f32; 0: one parameter each"),
    TESS_ROW_REAL("first-bucket-mib", offsetof(struct tess_bucket_options, first_mib), "1", 0,
                  65536, "size at which the first bucket to be ready is closed, in MiB of f32"),
    TESS_ROW_END,
};

static enum tess_status zero1_plan(struct tess_strategy *strategy)
{
    struct tess_plan *plan = strategy->plan;
    plan->shard_count = plan->rank_count;
    plan->shard_index = plan->rank;
    plan->optim_extent = TESS_EXTENT_SHARD;
    plan->replicated = true;
    return tess__bucket_plan(plan, strategy->options);
}

static enum tess_status zero2_plan(struct tess_strategy *strategy)
{
    strategy->plan->grad_extent = TESS_EXTENT_SHARD;
    strategy->plan->leaf_order = TESS_LEAVES_MICRO_FIRST;
    return zero1_plan(strategy);
}

static enum tess_status zero2_open(struct tess_strategy *strategy)
{
    return tess__scatter_open(strategy, strategy->comm, NULL);
}

static enum tess_status zero1_grads_ready(struct tess_strategy *strategy, int32_t s)
{
    struct tess_wire *wire = strategy->state;
    struct tess_plan *plan = strategy->plan;
    struct tess_segment *segment = &plan->segment[s];
    tess_segment_fold(strategy, s);
    if (strategy->micro + 1 < plan->accumulate)
        return TESS_OK;
    if (tess_segment_updates(strategy, s)) {
        TESS_TRY(tess__wire_wait_tied(strategy, s));
        return tess_segment_update(strategy, s, segment->grad, NULL, &wire->event[s]);
    }
    void *grads = tess__wire_pack(strategy, segment->begin, segment->count, segment->grad);
    /* grad_own is this rank's part of the folded gradient: the call is in place. */
    void *own = tess__wire_place(strategy, tess_plan_own_begin(plan, s, TESS_EXTENT_SHARD),
                                 segment->grad_own);
    return tess_comm_reduce_scatter(strategy->comm, grads, own,
                                    (size_t)tess_plan_own_count(plan, s, TESS_EXTENT_SHARD),
                                    wire->dtype, TESS_REDUCE_SUM, &wire->event[s]);
}

static enum tess_status zero1_grads_finish(struct tess_strategy *strategy)
{
    struct tess_wire *wire = strategy->state;
    const struct tess_plan *plan = strategy->plan;
    for (int32_t s = plan->grad_segment_count - 1; s >= 0; s--) {
        TESS_TRY(tess_event_wait(&wire->event[s]));
        tess__wire_unpack(strategy, tess_plan_own_begin(plan, s, TESS_EXTENT_SHARD),
                          tess_plan_own_count(plan, s, TESS_EXTENT_SHARD),
                          plan->segment[s].grad_own);
    }
    return TESS_OK;
}

static enum tess_status zero_params_refresh(struct tess_strategy *strategy)
{
    struct tess_wire *wire = strategy->state;
    struct tess_plan *plan = strategy->plan;
    const int32_t count = strategy->refresh_frozen ? plan->segment_count : plan->grad_segment_count;
    for (int32_t s = count - 1; s >= 0; s--) {
        struct tess_segment *segment = &plan->segment[s];
        if (segment->values_of >= 0)
            continue;
        TESS_TRY(tess_comm_all_gather(strategy->comm, segment->param_own, segment->param,
                                      (size_t)tess_plan_own_count(plan, s, TESS_EXTENT_SHARD),
                                      plan->dtype, &wire->event[s]));
    }
    for (int32_t s = count - 1; s >= 0; s--)
        TESS_TRY(tess_event_wait(&wire->event[s]));
    return TESS_OK;
}

static uint64_t zero_sent_bytes(const struct tess_strategy *strategy)
{
    const struct tess_plan *plan = strategy->plan;
    const bool every_micro = plan->grad_extent == TESS_EXTENT_SHARD;
    return (every_micro ? (uint64_t)plan->accumulate : 1) * tess__scatter_sent_bytes(plan) +
           tess__gather_sent_bytes(plan, TESS_GATHER_ALL);
}

static void zero_describe(const struct tess_strategy *strategy,
                          void (*line)(void *context, const char *text), void *context)
{
    const struct tess_plan *plan = strategy->plan;
    const struct tess_scatter *scatter = strategy->state;
    char text[160];
    if (plan->grad_extent == TESS_EXTENT_SHARD)
        snprintf(text, sizeof(text),
                 "%d buckets through %d buffers, reduce-scattered in every micro-batch",
                 (int)plan->grad_segment_count, (int)scatter->slot_count);
    else
        snprintf(text, sizeof(text), "%d buckets, reduce-scattered%s once per step",
                 (int)plan->grad_segment_count,
                 tess__wire_dtype(plan) == TESS_F32 ? " in place" : "");
    line(context, text);
    tess__wire_describe(strategy, "a rank per step:", line, context);
}

const struct tess_strategy_ops tess_strategy_zero1 = {
    .abi = TESS_ABI,
    .name = "zero1",
    .summary = "parameters and gradients replicated, optimizer sharded",
    .options = zero_option_table,
    .options_size = sizeof(struct tess_bucket_options),
    .state_size = sizeof(struct tess_wire),
    .plan = zero1_plan,
    .reserve = tess__wire_reserve_flat,
    .open = tess__wire_open,
    .close = tess__wire_close,
    .unit_leave = tess__wire_unit_leave,
    .grads_ready = zero1_grads_ready,
    .grads_finish = zero1_grads_finish,
    .params_refresh = zero_params_refresh,
    .describe = zero_describe,
    .sent_bytes = zero_sent_bytes,
};

const struct tess_strategy_ops tess_strategy_zero2 = {
    .abi = TESS_ABI,
    .name = "zero2",
    .summary = "parameters replicated, gradients and optimizer sharded",
    .options = zero_option_table,
    .options_size = sizeof(struct tess_bucket_options),
    .state_size = sizeof(struct tess_scatter),
    .plan = zero2_plan,
    .reserve = tess__scatter_reserve,
    .open = zero2_open,
    .close = tess__scatter_close,
    .unit_enter = tess__scatter_enter,
    .unit_leave = tess__wire_unit_leave,
    .grads_ready = tess__scatter_send,
    .grads_finish = tess__scatter_finish,
    .params_refresh = zero_params_refresh,
    .describe = zero_describe,
    .sent_bytes = zero_sent_bytes,
};
