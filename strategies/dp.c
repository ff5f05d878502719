/*
 * The strategy `dp`, as torch.nn.DataParallel: rank 0 holds parameters, optimizer, input and loss;
 * the other ranks borrow a replica of the parameters for a step. One process, one thread per
 * device. It is here to be compared with: rank 0 holds and sends more than all the others.
 *
 *     rank 0   broadcast P, scatter rows -> forward -> gather outputs, loss, scatter their
 * gradients
 *              -> backward -> reduce gradients to rank 0 -> optimizer
 *     others   receive                  -> forward -> send, receive                       ->
 * backward
 */
#include "shard.h"
#include "wire.h"

#include "tessera/check.h"
#include "tessera/strategy.h"
#include "tessera/version.h"

#include <stdlib.h>

struct dp_state {
    struct tess_wire wire;    /* places: the flat space */
    struct tess_block block;  /* ranks other than 0: the replica */
    struct tess_event *event; /* [rank_count] of rows in flight */
    bool stale;               /* rank 0's parameters have changed since the last broadcast */
    /* Bytes of one rank's rows in a micro-batch; known once they have been seen. */
    uint64_t input_bytes, output_bytes;
};

static enum tess_status dp_plan(struct tess_strategy *strategy)
{
    struct tess_plan *plan = strategy->plan;
    const bool holder = plan->rank == 0;
    plan->param_extent = holder ? TESS_EXTENT_FULL : TESS_EXTENT_NONE;
    plan->optim_extent = holder ? TESS_EXTENT_FULL : TESS_EXTENT_NONE;
    plan->holds_input = holder;
    plan->skips_input = !holder;
    /* A model that computes its loss itself does so for each rank's rows. */
    plan->holds_loss = holder && !plan->own_loss;
    plan->skips_loss = !holder && !plan->own_loss;
    if (plan->param_count == 0) /* a stage of a pipeline may have none */
        return TESS_OK;
    return tess_plan_add_segment(plan, plan->param_count);
}

static enum tess_status dp_reserve(struct tess_strategy *strategy)
{
    struct dp_state *state = strategy->state;
    const struct tess_plan *plan = strategy->plan;
    TESS_TRY(tess__wire_reserve_flat(strategy));
    if (plan->rank == 0)
        return TESS_OK;
    return tess_memory_reserve(strategy->memory, TESS_MEMORY_GATHERED,
                               (uint64_t)tess__shard_value_count(plan) *
                                   tess_dtype_bytes(plan->dtype),
                               "replica of rank 0", &state->block);
}

/* Rank 0 and each other rank send to each other: see dp_move. */
static enum tess_status dp_meet(struct tess_strategy *strategy)
{
    const struct tess_plan *plan = strategy->plan;
    for (int32_t r = 1; r < plan->rank_count; r++) {
        if (plan->rank != 0 && plan->rank != r)
            continue;
        TESS_TRY(tess_comm_meet(strategy->comm, 0, r));
        TESS_TRY(tess_comm_meet(strategy->comm, r, 0));
    }
    return TESS_OK;
}

static enum tess_status dp_open(struct tess_strategy *strategy)
{
    struct dp_state *state = strategy->state;
    struct tess_plan *plan = strategy->plan;
    state->event = calloc((size_t)plan->rank_count, sizeof(*state->event));
    if (state->event == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d ranks", (int)plan->rank_count);
    state->stale = true;
    TESS_TRY(dp_meet(strategy));
    TESS_TRY(tess__wire_open(strategy));
    char *replica = plan->rank != 0 ? tess_memory_get(strategy->memory, state->block) : NULL;
    for (int32_t s = 0; s < plan->segment_count && replica != NULL; s++) {
        const int32_t source = plan->segment[s].values_of >= 0 ? plan->segment[s].values_of : s;
        plan->segment[s].param =
            replica + (size_t)plan->segment[source].begin * tess_dtype_bytes(plan->dtype);
    }
    return TESS_OK;
}

static void dp_close(struct tess_strategy *strategy)
{
    free(((struct dp_state *)strategy->state)->event);
    tess__wire_close(strategy);
}

/* Rank 0 hands every rank its rows of `all` (`out`), or collects them there. */
static enum tess_status dp_move(struct tess_strategy *strategy,
                                const struct tess_boundary *boundary, bool out)
{
    struct tess_event *event = ((struct dp_state *)strategy->state)->event;
    const bool holder = strategy->plan->rank == 0, sends = holder == out;
    const int32_t first = holder ? 1 : 0, end = holder ? strategy->plan->rank_count : 1;
    const size_t bytes = (size_t)boundary->rows * boundary->row_bytes;
    char *all = boundary->all, *mine = boundary->mine;
    for (int32_t r = first; r < end; r++) {
        char *rows = holder ? all + (size_t)r * bytes : mine;
        TESS_TRY(sends ? tess_comm_send(strategy->comm, rows, bytes, TESS_U8, r, &event[r])
                       : tess_comm_recv(strategy->comm, rows, bytes, TESS_U8, r, &event[r]));
    }
    if (holder && mine != all)
        tess_copy(strategy->kernel, (int64_t)bytes, out ? all : mine, out ? mine : all);
    for (int32_t r = first; r < end; r++)
        TESS_TRY(tess_event_wait(&event[r]));
    return TESS_OK;
}

static enum tess_status dp_batch_ready(struct tess_strategy *strategy,
                                       const struct tess_boundary *input,
                                       const struct tess_boundary *label)
{
    struct dp_state *state = strategy->state;
    const bool own_loss = strategy->plan->own_loss; /* else labels stay where the loss is */
    TESS_TRY(dp_move(strategy, input, true));
    if (own_loss)
        TESS_TRY(dp_move(strategy, label, true));
    if (strategy->training)
        state->input_bytes =
            (uint64_t)input->rows * (input->row_bytes + (own_loss ? label->row_bytes : 0));
    return TESS_OK;
}

static enum tess_status dp_output_ready(struct tess_strategy *strategy,
                                        const struct tess_boundary *output)
{
    struct dp_state *state = strategy->state;
    TESS_TRY(dp_move(strategy, output, false));
    if (strategy->training)
        state->output_bytes = (uint64_t)output->rows * output->row_bytes;
    return TESS_OK;
}

static enum tess_status dp_output_grad_ready(struct tess_strategy *strategy,
                                             const struct tess_boundary *output_grad)
{
    return dp_move(strategy, output_grad, true);
}

static enum tess_status dp_unit_enter(struct tess_strategy *strategy, int32_t unit,
                                      enum tess_phase phase)
{
    struct dp_state *state = strategy->state;
    const struct tess_plan *plan = strategy->plan;
    /* In training always once per step, as DataParallel does; in evaluation when it is needed. */
    const bool due = strategy->training ? strategy->micro == 0 : state->stale;
    if (unit != 0 || phase != TESS_PHASE_FORWARD || !due || plan->segment_count == 0)
        return TESS_OK;
    state->stale = false;
    /* All segments: what is FULL lies in flat order, one after the other. */
    return tess_comm_broadcast(strategy->comm, plan->segment[0].param,
                               (size_t)tess__shard_value_count(plan), plan->dtype, 0, NULL);
}

static enum tess_status dp_grads_finish(struct tess_strategy *strategy)
{
    const struct dp_state *state = strategy->state;
    const struct tess_plan *plan = strategy->plan;
    const bool holder = plan->rank == 0;
    if (plan->grad_segment_count == 0)
        return TESS_OK;
    float *grad = plan->segment[0].grad;
    void *grads = tess__wire_pack(strategy, 0, plan->grad_count, grad);
    TESS_TRY(tess_comm_reduce(strategy->comm, grads, holder ? grads : NULL,
                              (size_t)plan->grad_count, state->wire.dtype, TESS_REDUCE_SUM, 0,
                              NULL));
    if (holder)
        tess__wire_unpack(strategy, 0, plan->grad_count, grad);
    return TESS_OK;
}

static enum tess_status dp_params_refresh(struct tess_strategy *strategy)
{
    struct dp_state *state = strategy->state;
    state->stale = true;
    return TESS_OK;
}

/*
 * Rank 0 sends parameters, rows and gradients of outputs to N-1 ranks; the others send it outputs
 * and parameter gradients. The sum of these is shared out: each rank adds a slice, for which rank 0
 * sends out (N-1)/N of its own.
 */
static uint64_t dp_sent_bytes(const struct tess_strategy *strategy)
{
    const struct dp_state *state = strategy->state;
    const struct tess_plan *plan = strategy->plan;
    const uint64_t micros = (uint64_t)plan->accumulate;
    const uint64_t grads = (uint64_t)plan->grad_count * tess_dtype_bytes(tess__wire_dtype(plan));
    if (plan->rank != 0)
        return micros * state->output_bytes + grads;
    uint64_t rows = state->input_bytes + state->output_bytes;
    uint64_t params = (uint64_t)tess__shard_value_count(plan) * tess_dtype_bytes(plan->dtype);
    return (uint64_t)(plan->rank_count - 1) * (micros * rows + params) +
           tess__shard_scatter_bytes(grads, plan->rank_count);
}

static void dp_describe(const struct tess_strategy *strategy,
                        void (*line)(void *context, const char *text), void *context)
{
    line(context, "rank 0 holds parameters, optimizer, input and loss; the others a replica");
    tess__wire_describe(strategy, "this rank per step, without rows:", line, context);
}

const struct tess_strategy_ops tess_strategy_dp = {
    .abi = TESS_ABI,
    .name = "dp",
    .summary = "one process, a thread per device; rank 0 holds all (torch.nn.DataParallel)",
    .state_size = sizeof(struct dp_state),
    .rank_mode = TESS_RANKS_THREADS,
    .plan = dp_plan,
    .reserve = dp_reserve,
    .open = dp_open,
    .close = dp_close,
    .batch_ready = dp_batch_ready,
    .output_ready = dp_output_ready,
    .output_grad_ready = dp_output_grad_ready,
    .unit_enter = dp_unit_enter,
    .grads_finish = dp_grads_finish,
    .params_refresh = dp_params_refresh,
    .describe = dp_describe,
    .sent_bytes = dp_sent_bytes,
};
