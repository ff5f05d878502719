/*
 * An outsider's strategy: every rank holds everything and the gradients are all-reduced in one
 * piece after backward. Nothing but public headers.
 */
#include "outsider.h"

struct bulk_options {
    int64_t pieces;
};

static const struct tess_option bulk_option_table[] = {
    TESS_ROW_INT("pieces", offsetof(struct bulk_options, pieces), "1", 1, 64,
                 "Calls that the gradients are sent in."),
    TESS_ROW_END,
};

static enum tess_status bulk_plan(struct tess_strategy *strategy)
{
    strategy->plan->replicated = true;
    return tess_plan_add_segment(strategy->plan, strategy->plan->param_count);
}

static enum tess_status bulk_grads_finish(struct tess_strategy *strategy)
{
    const struct bulk_options *options = strategy->options;
    const struct tess_segment *all = &strategy->plan->segment[0];
    for (int64_t i = 0; i < options->pieces; i++) {
        int64_t begin = all->count * i / options->pieces;
        int64_t end = all->count * (i + 1) / options->pieces;
        TESS_TRY(tess_comm_all_reduce(strategy->comm, all->grad + begin, all->grad + begin,
                                      (size_t)(end - begin), TESS_F32, TESS_REDUCE_SUM, NULL));
    }
    return TESS_OK;
}

const struct tess_strategy_ops outsider_bulk = {
    .abi = TESS_ABI,
    .name = "bulk",
    .summary = "gradients all-reduced in one piece after backward",
    .options = bulk_option_table,
    .options_size = sizeof(struct bulk_options),
    .plan = bulk_plan,
    .grads_finish = bulk_grads_finish,
};
