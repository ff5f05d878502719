/*
 * The strategy `ddp`: every rank holds everything, computes its rows and all-reduces the gradients,
 * bucket by bucket, while backward goes on (Li et al., "PyTorch Distributed", VLDB 2020).
 *
 * A bucket is a segment of the flat gradients, reduced in place: it takes no memory, but for the
 * copies of gradients that travel in another type (wire.h). Buckets are launched in the order in
 * which backward fills them, highest first, the same on every rank:
 *
 *     backward   | unit 3 | unit 2 | unit 1 | unit 0 |
 *     all_reduce          | bucket 2 | bucket 1      | bucket 0 |
 *                                                    ^ grads_finish waits for what is left
 *
 * Where the ranks reach each other's memory and nothing has to be known of all gradients first, a
 * bucket is not reduced but updated (tess_segment_update): each rank adds and updates a slice of it
 * in one pass, and gives the others its new values.
 *
 * With several micro-batches the gradients are folded first and reduced once, after the last
 * (`no_sync` of torch's DistributedDataParallel). With sync-every-micro-batch each is reduced while
 * its own backward goes on, and then folded: S times the bytes, and by the other order of the
 * leaves the same tree, so the same bits, unless gradients travel in another type: then there are S
 * roundings in place of one.
 */
#include "bucket.h"
#include "shard.h"
#include "wire.h"

#include "tessera/check.h"
#include "tessera/version.h"

#include <stdio.h>

struct ddp_options {
    struct tess_bucket_options bucket;
    bool overlap;
    bool every_micro;
};

static const struct tess_option ddp_option_table[] = {
    TESS_ROW_REAL("bucket-mib", offsetof(struct ddp_options, bucket.mib), "25", 0, 65536,
                  "size at which a gradient bucket is closed, in MiB; 0: one parameter each"),
    TESS_ROW_REAL("first-bucket-mib", offsetof(struct ddp_options, bucket.first_mib), "1", 0, 65536,
                  "size at which the first bucket to be ready is closed, in MiB"),
    TESS_ROW_BOOL("overlap", offsetof(struct ddp_options, overlap), "on",
                  "reduce buckets while backward goes on; off: all of them after it"),
    TESS_ROW_BOOL("sync-every-micro-batch", offsetof(struct ddp_options, every_micro), "off",
                  "reduce the gradients of every micro-batch, as without no_sync: --accumulate "
                  "times the bytes, the same bits while --reduce-dtype is f32"),
    TESS_ROW_END,
};

static enum tess_status ddp_plan(struct tess_strategy *strategy)
{
    const struct ddp_options *options = strategy->options;
    strategy->plan->replicated = true;
    if (options->every_micro)
        strategy->plan->leaf_order = TESS_LEAVES_MICRO_FIRST;
    return tess__bucket_plan(strategy->plan, &options->bucket);
}

/* Sum and update are one pass where the step has one reduction and the ranks share memory. */
static bool ddp_updates(const struct tess_strategy *strategy, int32_t s)
{
    const struct ddp_options *options = strategy->options;
    return tess_segment_updates(strategy, s) && !options->every_micro;
}

static enum tess_status ddp_launch(struct tess_strategy *strategy, int32_t s)
{
    struct tess_wire *wire = strategy->state;
    struct tess_segment *segment = &strategy->plan->segment[s];
    if (ddp_updates(strategy, s)) {
        TESS_TRY(tess__wire_wait_tied(strategy, s));
        return tess_segment_update(strategy, s, segment->grad, NULL, &wire->event[s]);
    }
    void *grads = tess__wire_pack(strategy, segment->begin, segment->count, segment->grad);
    return tess_comm_all_reduce(strategy->comm, grads, grads, (size_t)segment->count, wire->dtype,
                                TESS_REDUCE_SUM, &wire->event[s]);
}

/* Launch what was not launched during backward, then wait for these buckets. */
static enum tess_status ddp_reduce_rest(struct tess_strategy *strategy, int32_t first, int32_t last)
{
    const struct ddp_options *options = strategy->options;
    struct tess_wire *wire = strategy->state;
    for (int32_t s = last; s >= first && !options->overlap; s--)
        TESS_TRY(ddp_launch(strategy, s));
    for (int32_t s = last; s >= first; s--) {
        const struct tess_segment *segment = &strategy->plan->segment[s];
        TESS_TRY(tess_event_wait(&wire->event[s]));
        tess__wire_unpack(strategy, segment->begin, segment->count, segment->grad);
    }
    return TESS_OK;
}

/* The first segment of a chunk is the last of its backward, whose gradients must be folded before
 * the next micro-batch's backward writes. Without a pipeline all segments are one chunk's. */
static enum tess_status ddp_micro_ready(struct tess_strategy *strategy, int32_t s)
{
    const struct ddp_options *options = strategy->options;
    const struct tess_plan *plan = strategy->plan;
    const int32_t chunk = tess__shard_chunk(plan, s);
    int32_t last = s;
    if (options->overlap)
        TESS_TRY(ddp_launch(strategy, s));
    if (s > 0 && tess__shard_chunk(plan, s - 1) == chunk)
        return TESS_OK;
    while (last + 1 < plan->grad_segment_count && tess__shard_chunk(plan, last + 1) == chunk)
        last++;
    TESS_TRY(ddp_reduce_rest(strategy, s, last));
    for (int32_t done = last; done >= s; done--)
        tess_segment_fold(strategy, done);
    return TESS_OK;
}

static enum tess_status ddp_grads_ready(struct tess_strategy *strategy, int32_t s)
{
    const struct ddp_options *options = strategy->options;
    if (options->every_micro)
        return ddp_micro_ready(strategy, s);
    tess_segment_fold(strategy, s);
    if (!options->overlap || strategy->micro + 1 < strategy->plan->accumulate)
        return TESS_OK;
    return ddp_launch(strategy, s);
}

static enum tess_status ddp_grads_finish(struct tess_strategy *strategy)
{
    const struct ddp_options *options = strategy->options;
    return options->every_micro
               ? TESS_OK
               : ddp_reduce_rest(strategy, 0, strategy->plan->grad_segment_count - 1);
}

static uint64_t ddp_sent_bytes(const struct tess_strategy *strategy)
{
    const struct ddp_options *options = strategy->options;
    const struct tess_plan *plan = strategy->plan;
    uint64_t bytes = 0;
    for (int32_t s = 0; s < plan->grad_segment_count; s++) {
        const uint64_t grads = tess__wire_segment_bytes(plan, s);
        const uint64_t values = (uint64_t)plan->segment[s].count * tess_dtype_bytes(plan->dtype);
        bytes += ddp_updates(strategy, s) /* values are given in place of sums */
                     ? tess__shard_scatter_bytes(grads + values, plan->rank_count)
                     : tess__shard_all_reduce_bytes(grads, plan->rank_count);
    }
    return options->every_micro ? bytes * (uint64_t)plan->accumulate : bytes;
}

static void ddp_describe(const struct tess_strategy *strategy,
                         void (*line)(void *context, const char *text), void *context)
{
    const struct ddp_options *options = strategy->options;
    const bool updates = strategy->shared != NULL && !options->every_micro;
    char text[160];
    snprintf(text, sizeof(text), "%d buckets, %s%s %s%s", (int)strategy->plan->grad_segment_count,
             updates ? "summed and updated in one pass" : "all-reduced",
             !updates && tess__wire_dtype(strategy->plan) == TESS_F32 ? " in place" : "",
             options->overlap ? "while backward goes on" : "after backward",
             options->every_micro ? ", in every micro-batch (as without no_sync)" : "");
    line(context, text);
    const bool low =
        updates && strategy->plan->dtype != TESS_F32; /* values are shorter than sums */
    tess__wire_describe(strategy,
                        options->every_micro ? "a rank per step: S 2(N-1)/N P ="
                        : low                ? "a rank per step:"
                                             : "a rank per step: 2(N-1)/N P =",
                        line, context);
}

const struct tess_strategy_ops tess_strategy_ddp = {
    .abi = TESS_ABI,
    .name = "ddp",
    .summary = "everything replicated, gradients all-reduced in overlapped buckets",
    .options = ddp_option_table,
    .options_size = sizeof(struct ddp_options),
    .state_size = sizeof(struct tess_wire),
    .plan = ddp_plan,
    .reserve = tess__wire_reserve_flat,
    .open = tess__wire_open,
    .close = tess__wire_close,
    .unit_leave = tess__wire_unit_leave,
    .grads_ready = ddp_grads_ready,
    .grads_finish = ddp_grads_finish,
    .describe = ddp_describe,
    .sent_bytes = ddp_sent_bytes,
};
