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
#include "scatter.h"
#include "shard.h"
#include "wire.h"

#include "tessera/check.h"
#include "tessera/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct zero_options {
    struct tess_bucket_options bucket;
};

static const struct tess_option zero_option_table[] = {
    TESS_ROW_REAL("bucket-mib", offsetof(struct zero_options, bucket.mib), "25", 0, 65536,
                  "Size at which a bucket is closed, in MiB of f32; 0: one parameter each."),
    TESS_ROW_REAL("first-bucket-mib", offsetof(struct zero_options, bucket.first_mib), "1", 0,
                  65536, "Size at which the first bucket to be ready is closed, in MiB of f32."),
    TESS_ROW_END,
};

struct zero_state {
    struct tess_event *event;    /* [segment_count] of the call in flight for each bucket */
    struct tess_scatter scatter; /* zero2 */
    struct tess_wire wire;       /* zero1; places: the flat space */
};

static enum tess_status zero1_plan(struct tess_strategy *strategy)
{
    const struct zero_options *options = strategy->options;
    struct tess_plan *plan = strategy->plan;
    plan->shard_count = plan->rank_count;
    plan->shard_index = plan->rank;
    plan->optim_extent = TESS_EXTENT_SHARD;
    plan->replicated = true;
    return tess__bucket_plan(plan, &options->bucket);
}

static enum tess_status zero2_plan(struct tess_strategy *strategy)
{
    strategy->plan->grad_extent = TESS_EXTENT_SHARD;
    strategy->plan->leaf_order = TESS_LEAVES_MICRO_FIRST;
    return zero1_plan(strategy);
}

static enum tess_status zero1_reserve(struct tess_strategy *strategy)
{
    struct zero_state *state = strategy->state;
    return tess__wire_reserve(&state->wire, strategy, strategy->plan->flat_count);
}

static enum tess_status zero2_reserve(struct tess_strategy *strategy)
{
    struct zero_state *state = strategy->state;
    return tess__scatter_reserve(&state->scatter, strategy);
}

static enum tess_status zero1_open(struct tess_strategy *strategy)
{
    struct zero_state *state = strategy->state;
    state->event = calloc((size_t)strategy->plan->segment_count + 1, sizeof(*state->event));
    if (state->event == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d buckets", (int)strategy->plan->segment_count);
    tess__wire_open(&state->wire, strategy);
    return TESS_OK;
}

static enum tess_status zero2_open(struct tess_strategy *strategy)
{
    struct zero_state *state = strategy->state;
    TESS_TRY(zero1_open(strategy));
    return tess__scatter_open(&state->scatter, strategy, strategy->comm, NULL);
}

static void zero_close(struct tess_strategy *strategy)
{
    struct zero_state *state = strategy->state;
    tess__scatter_close(&state->scatter);
    free(state->event);
    state->event = NULL;
}

static enum tess_status zero_unit_leave(struct tess_strategy *strategy, int32_t unit,
                                        enum tess_phase phase)
{
    (void)unit;
    return phase == TESS_PHASE_BACKWARD ? tess_comm_poll(strategy->comm) : TESS_OK;
}

static enum tess_status zero1_grads_ready(struct tess_strategy *strategy, int32_t s)
{
    struct zero_state *state = strategy->state;
    struct tess_plan *plan = strategy->plan;
    struct tess_segment *segment = &plan->segment[s];
    tess_segment_fold(strategy, s);
    if (strategy->micro + 1 < plan->accumulate)
        return TESS_OK;
    void *grads = tess__wire_pack(&state->wire, strategy->kernel, segment->begin, segment->count,
                                  segment->grad);
    /* grad_own is this rank's part of the folded gradient: the call is in place. */
    void *own = tess__wire_place(&state->wire, tess_plan_own_begin(plan, s, TESS_EXTENT_SHARD),
                                 segment->grad_own);
    return tess_comm_reduce_scatter(strategy->comm, grads, own,
                                    (size_t)tess_plan_own_count(plan, s, TESS_EXTENT_SHARD),
                                    state->wire.dtype, TESS_REDUCE_SUM, &state->event[s]);
}

static enum tess_status zero1_grads_finish(struct tess_strategy *strategy)
{
    struct zero_state *state = strategy->state;
    const struct tess_plan *plan = strategy->plan;
    for (int32_t s = plan->segment_count - 1; s >= 0; s--) {
        TESS_TRY(tess_event_wait(&state->event[s]));
        tess__wire_unpack(
            &state->wire, strategy->kernel, tess_plan_own_begin(plan, s, TESS_EXTENT_SHARD),
            tess_plan_own_count(plan, s, TESS_EXTENT_SHARD), plan->segment[s].grad_own);
    }
    return TESS_OK;
}

static enum tess_status zero2_unit_enter(struct tess_strategy *strategy, int32_t unit,
                                         enum tess_phase phase)
{
    struct zero_state *state = strategy->state;
    if (phase == TESS_PHASE_FORWARD)
        return TESS_OK;
    return tess__scatter_enter(&state->scatter, strategy, unit);
}

static enum tess_status zero2_grads_ready(struct tess_strategy *strategy, int32_t s)
{
    struct zero_state *state = strategy->state;
    return tess__scatter_send(&state->scatter, strategy, s);
}

static enum tess_status zero2_grads_finish(struct tess_strategy *strategy)
{
    struct zero_state *state = strategy->state;
    return tess__scatter_finish(&state->scatter, strategy);
}

static enum tess_status zero_params_refresh(struct tess_strategy *strategy)
{
    struct zero_state *state = strategy->state;
    struct tess_plan *plan = strategy->plan;
    for (int32_t s = plan->segment_count - 1; s >= 0; s--) {
        struct tess_segment *segment = &plan->segment[s];
        if (segment->values_of >= 0)
            continue;
        TESS_TRY(tess_comm_all_gather(strategy->comm, segment->param_own, segment->param,
                                      (size_t)tess_plan_own_count(plan, s, TESS_EXTENT_SHARD),
                                      plan->dtype, &state->event[s]));
    }
    for (int32_t s = plan->segment_count - 1; s >= 0; s--)
        TESS_TRY(tess_event_wait(&state->event[s]));
    return TESS_OK;
}

static uint64_t zero_gather_bytes(const struct tess_plan *plan)
{
    uint64_t bytes = 0;
    for (int32_t s = 0; s < plan->segment_count; s++)
        if (plan->segment[s].values_of < 0)
            bytes += tess__shard_gather_bytes(
                (uint64_t)plan->segment[s].count * tess_dtype_bytes(plan->dtype), plan->rank_count);
    return bytes;
}

static uint64_t zero1_sent_bytes(const struct tess_strategy *strategy)
{
    return tess__scatter_sent_bytes(strategy->plan) + zero_gather_bytes(strategy->plan);
}

static uint64_t zero2_sent_bytes(const struct tess_strategy *strategy)
{
    const struct tess_plan *plan = strategy->plan;
    const uint64_t micros = plan->accumulate > 1 ? (uint64_t)plan->accumulate : 1;
    return micros * tess__scatter_sent_bytes(plan) + zero_gather_bytes(plan);
}

static void zero_describe(const struct tess_strategy *strategy,
                          void (*line)(void *context, const char *text), void *context)
{
    const struct tess_plan *plan = strategy->plan;
    const struct zero_state *state = strategy->state;
    char text[160];
    if (plan->grad_extent == TESS_EXTENT_SHARD)
        snprintf(text, sizeof(text),
                 "%d buckets through %d buffers, reduce-scattered in every micro-batch",
                 (int)plan->segment_count, (int)state->scatter.slot_count);
    else
        snprintf(text, sizeof(text), "%d buckets, reduce-scattered%s once per step",
                 (int)plan->segment_count, tess__wire_dtype(plan) == TESS_F32 ? " in place" : "");
    line(context, text);
    tess__wire_describe(plan, line, context);
    snprintf(text, sizeof(text), "sent by a rank per step: %" PRIu64 " bytes",
             strategy->ops->sent_bytes(strategy));
    line(context, text);
}

const struct tess_strategy_ops tess_strategy_zero1 = {
    .abi = TESS_ABI,
    .name = "zero1",
    .summary = "parameters and gradients replicated, optimizer sharded",
    .options = zero_option_table,
    .options_size = sizeof(struct zero_options),
    .state_size = sizeof(struct zero_state),
    .plan = zero1_plan,
    .reserve = zero1_reserve,
    .open = zero1_open,
    .close = zero_close,
    .unit_leave = zero_unit_leave,
    .grads_ready = zero1_grads_ready,
    .grads_finish = zero1_grads_finish,
    .params_refresh = zero_params_refresh,
    .describe = zero_describe,
    .sent_bytes = zero1_sent_bytes,
};

const struct tess_strategy_ops tess_strategy_zero2 = {
    .abi = TESS_ABI,
    .name = "zero2",
    .summary = "parameters replicated, gradients and optimizer sharded",
    .options = zero_option_table,
    .options_size = sizeof(struct zero_options),
    .state_size = sizeof(struct zero_state),
    .plan = zero2_plan,
    .reserve = zero2_reserve,
    .open = zero2_open,
    .close = zero_close,
    .unit_enter = zero2_unit_enter,
    .unit_leave = zero_unit_leave,
    .grads_ready = zero2_grads_ready,
    .grads_finish = zero2_grads_finish,
    .params_refresh = zero_params_refresh,
    .describe = zero_describe,
    .sent_bytes = zero2_sent_bytes,
};
