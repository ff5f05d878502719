/*
 * The strategy `ddp`: every rank holds everything, computes its rows and all-reduces the gradients,
 * bucket by bucket, while backward goes on (Li et al., "PyTorch Distributed", VLDB 2020).
 *
 * A bucket is a segment of the flat gradients, reduced in place: it takes no memory. Buckets are
 * launched in the order in which backward fills them, highest first, the same on every rank:
 *
 *     backward   | unit 3 | unit 2 | unit 1 | unit 0 |
 *     all_reduce          | bucket 2 | bucket 1      | bucket 0 |
 *                                                    ^ grads_finish waits for what is left
 *
 * With several micro-batches the gradients are folded first and reduced once, after the last.
 */
#include "bucket.h"
#include "shard.h"

#include "tessera/check.h"
#include "tessera/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct ddp_options {
    struct tess_bucket_options bucket;
    bool overlap;
};

static const struct tess_option ddp_option_table[] = {
    {"bucket-mib", TESS_OPTION_REAL, offsetof(struct ddp_options, bucket.mib), "25", 0, 65536, NULL,
     "Size at which a gradient bucket is closed, in MiB; 0: one parameter each."},
    {"first-bucket-mib", TESS_OPTION_REAL, offsetof(struct ddp_options, bucket.first_mib), "1", 0,
     65536, NULL, "Size at which the first bucket to be ready is closed, in MiB."},
    {"overlap", TESS_OPTION_BOOL, offsetof(struct ddp_options, overlap), "on", 0, 0, NULL,
     "Reduce buckets while backward goes on; off: all of them after it."},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

struct ddp_state {
    struct tess_event *event; /* [segment_count] of the all_reduce in flight */
};

static enum tess_status ddp_plan(struct tess_strategy *strategy)
{
    const struct ddp_options *options = strategy->options;
    strategy->plan->replicated = true;
    return tess__bucket_plan(strategy->plan, &options->bucket);
}

static enum tess_status ddp_open(struct tess_strategy *strategy)
{
    struct ddp_state *state = strategy->state;
    state->event = calloc((size_t)strategy->plan->segment_count + 1, sizeof(*state->event));
    if (state->event == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d buckets", (int)strategy->plan->segment_count);
    return TESS_OK;
}

static void ddp_close(struct tess_strategy *strategy)
{
    struct ddp_state *state = strategy->state;
    free(state->event);
    state->event = NULL;
}

static enum tess_status ddp_launch(struct tess_strategy *strategy, int32_t s)
{
    struct ddp_state *state = strategy->state;
    struct tess_segment *segment = &strategy->plan->segment[s];
    return tess_comm_all_reduce(strategy->comm, segment->grad, segment->grad,
                                (size_t)segment->count, TESS_F32, TESS_REDUCE_SUM,
                                &state->event[s]);
}

static enum tess_status ddp_grads_ready(struct tess_strategy *strategy, int32_t s)
{
    const struct ddp_options *options = strategy->options;
    tess_segment_fold(strategy, s);
    if (!options->overlap || strategy->micro + 1 < strategy->plan->accumulate)
        return TESS_OK;
    return ddp_launch(strategy, s);
}

static enum tess_status ddp_unit_leave(struct tess_strategy *strategy, int32_t unit,
                                       enum tess_phase phase)
{
    (void)unit;
    return phase == TESS_PHASE_BACKWARD ? tess_comm_poll(strategy->comm) : TESS_OK;
}

static enum tess_status ddp_grads_finish(struct tess_strategy *strategy)
{
    const struct ddp_options *options = strategy->options;
    struct ddp_state *state = strategy->state;
    const int32_t last = strategy->plan->segment_count - 1;
    for (int32_t s = last; s >= 0 && !options->overlap; s--)
        TESS_TRY(ddp_launch(strategy, s));
    for (int32_t s = last; s >= 0; s--)
        TESS_TRY(tess_event_wait(&state->event[s]));
    return TESS_OK;
}

static uint64_t ddp_sent_bytes(const struct tess_strategy *strategy)
{
    const struct tess_plan *plan = strategy->plan;
    uint64_t bytes = 0;
    for (int32_t s = 0; s < plan->segment_count; s++)
        bytes += tess__shard_all_reduce_bytes((uint64_t)plan->segment[s].count * sizeof(float),
                                              plan->rank_count);
    return bytes;
}

static void ddp_describe(const struct tess_strategy *strategy,
                         void (*line)(void *context, const char *text), void *context)
{
    const struct ddp_options *options = strategy->options;
    char text[160];
    snprintf(text, sizeof(text), "%d buckets, all-reduced in place %s",
             (int)strategy->plan->segment_count,
             options->overlap ? "while backward goes on" : "after backward");
    line(context, text);
    snprintf(text, sizeof(text), "sent by a rank per step: 2(N-1)/N P = %" PRIu64 " bytes",
             ddp_sent_bytes(strategy));
    line(context, text);
}

const struct tess_strategy_ops tess_strategy_ddp = {
    .abi = TESS_ABI,
    .name = "ddp",
    .summary = "everything replicated, gradients all-reduced in overlapped buckets",
    .options = ddp_option_table,
    .options_size = sizeof(struct ddp_options),
    .state_size = sizeof(struct ddp_state),
    .plan = ddp_plan,
    .open = ddp_open,
    .close = ddp_close,
    .unit_leave = ddp_unit_leave,
    .grads_ready = ddp_grads_ready,
    .grads_finish = ddp_grads_finish,
    .describe = ddp_describe,
    .sent_bytes = ddp_sent_bytes,
};
