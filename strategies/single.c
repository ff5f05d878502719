/* The strategy `single`: one rank holds everything and sends nothing. */
#include "tessera/check.h"
#include "tessera/strategy.h"
#include "tessera/version.h"

static enum tess_status single_check(const void *options, int32_t rank_count, int32_t accumulate)
{
    (void)options;
    (void)accumulate;
    if (rank_count != 1)
        TESS_FAIL(TESS_ERR_USAGE,
                  "strategy single runs on 1 rank, not %d: use --ranks 1, or a strategy that "
                  "spreads the work, such as --strategy ddp",
                  (int)rank_count);
    return TESS_OK;
}

static enum tess_status single_plan(struct tess_strategy *strategy)
{
    strategy->plan->replicated = true;
    if (strategy->plan->param_count == 0) /* a stage of a pipeline may have none */
        return TESS_OK;
    return tess_plan_add_segment(strategy->plan, strategy->plan->param_count);
}

static void single_describe(const struct tess_strategy *strategy,
                            void (*line)(void *context, const char *text), void *context)
{
    (void)strategy;
    line(context, "one rank holds everything; nothing is sent");
}

const struct tess_strategy_ops tess_strategy_single = {
    .abi = TESS_ABI,
    .name = "single",
    .summary = "one rank, no communication",
    .one_rank = true,
    .check = single_check,
    .plan = single_plan,
    .describe = single_describe,
};
