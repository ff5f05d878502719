/*
 * The strategy `pp` of the stage axis: every rank runs its part of the units, micro-batches go
 * through one after the other, and gradients come back the same way. It decides where to cut and in
 * which order to work; the arithmetic is in pipe.h, and what runs the order is the core.
 *
 * Every gradient is the same sum as on one rank, so bits are the same too.
 */
#include "pipe.h"

#include "tessera/check.h"
#include "tessera/version.h"

#include <stdio.h>
#include <stdlib.h>

struct pp_options {
    int32_t schedule; /* enum tess_pipe_schedule */
    int64_t stages;   /* 0: no wish */
    int64_t chunks;   /* 0: as the schedule has them */
};

static const struct tess_option pp_option_table[] = {
    TESS_ROW_CHOICE("schedule", offsetof(struct pp_options, schedule), "1f1b",
                    "gpipe|1f1b|interleaved",
                    "order of work: all forwards first (gpipe), in turns with backwards (1f1b: "
                    "fewer activations), or in turns over several chunks of each stage "
                    "(interleaved: less idle time, more messages)"),
    TESS_ROW_INT("stages", offsetof(struct pp_options, stages), "0", 0, 4096,
                 "ranks along the stage axis; 0: by --mesh, or as many as the other axes leave"),
    TESS_ROW_INT("chunks", offsetof(struct pp_options, chunks), "0", 0, 64,
                 "runs of units on each stage; 0: 2 when interleaved, else 1"),
    TESS_ROW_END,
};

static struct tess_pipe pp_pipe(const struct pp_options *options, int32_t stages, int32_t micros)
{
    const enum tess_pipe_schedule schedule = (enum tess_pipe_schedule)options->schedule;
    const int32_t chunks = schedule == TESS_PIPE_INTERLEAVED ? 2 : 1;
    return (struct tess_pipe){
        .schedule = schedule,
        .stage_count = stages,
        .chunk_count = options->chunks > 0 ? (int32_t)options->chunks : chunks,
        .micro_count = micros,
    };
}

static enum tess_status pp_check(const void *options, int32_t rank_count, int32_t accumulate)
{
    const struct pp_options *mine = options;
    const struct tess_pipe pipe = pp_pipe(mine, rank_count, accumulate);
    if (mine->stages > 0 && mine->stages != rank_count)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--pp.stages %d, and there are %d ranks along the stage axis: give one of them",
                  (int)mine->stages, (int)rank_count);
    return tess__pipe_check(&pipe);
}

static int32_t pp_chunk_count(const void *options)
{
    return pp_pipe(options, 1, 1).chunk_count;
}

static int32_t pp_wanted_ranks(const void *options)
{
    return (int32_t)((const struct pp_options *)options)->stages;
}

static enum tess_status pp_cut(const void *options, const struct tess_unit_cost *cost,
                               int32_t unit_count, int32_t virtual_count, int32_t *first_out)
{
    const int32_t chunks = pp_chunk_count(options), stages = virtual_count / chunks;
    /* How many micro-batches there will be is not known here: with this many the pipeline is well
     * filled ("negligible" idle time, Huang et al. 2019, section 2.3). */
    const struct tess_pipe pipe = pp_pipe(options, stages, 4 * stages);
    if (virtual_count > unit_count)
        TESS_FAIL(TESS_ERR_USAGE,
                  "cannot cut %d units into %d virtual stages (stages x chunks: %d x %d), as each "
                  "runs a unit at least: use %d stages or fewer%s",
                  (int)unit_count, (int)virtual_count, (int)stages, (int)chunks,
                  (int)(unit_count / chunks > 0 ? unit_count / chunks : 1),
                  chunks > 1 ? ", or fewer chunks (--pp.chunks, --pp.schedule 1f1b: one)" : "");
    int32_t *held = calloc((size_t)virtual_count, sizeof(*held));
    if (held == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to cut %d units", (int)unit_count);
    for (int32_t v = 0; v < virtual_count; v++)
        held[v] = tess__pipe_in_flight(&pipe, v % stages, v / stages);
    enum tess_status status = tess__pipe_cut(cost, held, unit_count, virtual_count, first_out);
    free(held);
    return status;
}

static enum tess_status pp_order(const void *options, int32_t stage, int32_t stage_count,
                                 int32_t micro_count, struct tess_action *action_out)
{
    const struct tess_pipe pipe = pp_pipe(options, stage_count, micro_count);
    TESS_TRY(tess__pipe_check(&pipe));
    tess__pipe_order(&pipe, stage, action_out);
    return TESS_OK;
}

static enum tess_status pp_idle_share(const void *options, int32_t stage_count, int32_t micro_count,
                                      const double *forward_s, const double *backward_s,
                                      double *share_out)
{
    const struct tess_pipe pipe = pp_pipe(options, stage_count, micro_count);
    const struct tess_pipe_times times = {.forward = forward_s, .backward = backward_s};
    const size_t actions = (size_t)tess__pipe_action_count(&pipe), ranks = (size_t)stage_count;
    double span, sum = 0;
    if (forward_s == NULL || backward_s == NULL) {
        *share_out = tess__pipe_bubble(&pipe);
        return TESS_OK;
    }
    enum tess_status status = TESS_OK;
    struct tess_action *order = calloc(ranks * actions, sizeof(*order));
    double *idle = calloc(ranks + ranks * actions, sizeof(*idle)); /* and when actions begin */
    if (order == NULL || idle == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory to run a pipeline in virtual time");
    for (int32_t r = 0; status == TESS_OK && r < stage_count; r++)
        tess__pipe_order(&pipe, r, order + (size_t)r * actions);
    if (status == TESS_OK)
        status = tess__pipe_simulate(&pipe, order, &times, idle + ranks, idle, &span);
    for (int32_t r = 0; status == TESS_OK && r < stage_count; r++)
        sum += idle[r];
    free(idle);
    free(order);
    TESS_TRY(status);
    *share_out = sum / stage_count;
    return TESS_OK;
}

static void pp_describe(const struct tess_strategy *strategy,
                        void (*line)(void *context, const char *text), void *context)
{
    const struct tess_plan *plan = strategy->plan;
    const struct tess_pipe pipe =
        pp_pipe(strategy->options, plan->mesh.count[TESS_AXIS_STAGE], plan->accumulate);
    const double bubble = 100 * tess__pipe_bubble(&pipe);
    char text[200];
    snprintf(text, sizeof(text), "%s: %d stages of %d chunk%s, %d micro-batches",
             tess__pipe_schedule_name(pipe.schedule), (int)pipe.stage_count, (int)pipe.chunk_count,
             pipe.chunk_count > 1 ? "s" : "", (int)pipe.micro_count);
    line(context, text);
    snprintf(text, sizeof(text),
             "predicted bubble (p-1)/(v m+p-1), with stages of equal time: %.1f %%%s", bubble,
             pipe.micro_count < pipe.stage_count
                 ? "; there are fewer micro-batches than stages: raise --accumulate"
                 : "");
    line(context, text);
}

const struct tess_strategy_ops tess_strategy_pp = {
    .abi = TESS_ABI,
    .name = "pp",
    .summary = "pipeline: the units cut into stages that work on different micro-batches",
    .options = pp_option_table,
    .options_size = sizeof(struct pp_options),
    .axis = TESS_AXIS_STAGE,
    .check = pp_check,
    .chunk_count = pp_chunk_count,
    .wanted_ranks = pp_wanted_ranks,
    .cut = pp_cut,
    .order = pp_order,
    .idle_share = pp_idle_share,
    .describe = pp_describe,
};
