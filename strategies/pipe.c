/* Orders of pipelines, their price in virtual time and the cut of the units; see pipe.h. */
#include "pipe.h"

#include "tessera/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const pipe_schedule_name[] = {"gpipe", "1f1b", "interleaved"};

const char *tess__pipe_schedule_name(enum tess_pipe_schedule schedule)
{
    return pipe_schedule_name[schedule];
}

enum tess_status tess__pipe_check(const struct tess_pipe *pipe)
{
    const int32_t stages = pipe->stage_count, chunks = pipe->chunk_count;
    const int32_t micros = pipe->micro_count, rest = micros % stages;
    if (pipe->schedule != TESS_PIPE_INTERLEAVED) {
        if (chunks != 1)
            TESS_FAIL(TESS_ERR_USAGE,
                      "--pp.schedule %s runs one chunk on each stage, not %d: use --pp.schedule "
                      "interleaved, or --pp.chunks 1",
                      tess__pipe_schedule_name(pipe->schedule), (int)chunks);
        return TESS_OK;
    }
    if (chunks < 2)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--pp.schedule interleaved runs two chunks or more on each stage, not %d: use "
                  "--pp.chunks 2, or --pp.schedule 1f1b",
                  (int)chunks);
    if (stages < 2)
        TESS_FAIL(TESS_ERR_USAGE, "--pp.schedule interleaved on one stage has nothing to "
                                  "interleave: use two stages or more, or --pp.schedule 1f1b");
    if (rest == 0)
        return TESS_OK;
    char less[16] = "";
    if (micros > stages)
        snprintf(less, sizeof(less), "%d or ", (int)(micros - rest));
    TESS_FAIL(TESS_ERR_USAGE,
              "--pp.schedule interleaved goes by rounds of as many micro-batches as stages, and %d "
              "are no multiple of %d: use --accumulate %s%d, or --pp.schedule 1f1b",
              (int)micros, (int)stages, less, (int)(micros - rest + stages));
}

/* ---- orders ---------------------------------------------------------------------------------- */

static int32_t pipe_forward_count(const struct tess_pipe *pipe)
{
    return pipe->chunk_count * pipe->micro_count;
}

int32_t tess__pipe_action_count(const struct tess_pipe *pipe)
{
    return 2 * pipe_forward_count(pipe);
}

/* Forwards that a rank runs before it begins to take turns. */
static int32_t pipe_warm_up(const struct tess_pipe *pipe, int32_t stage)
{
    const int32_t all = pipe_forward_count(pipe), behind = pipe->stage_count - 1 - stage;
    int32_t count = all;
    if (pipe->schedule == TESS_PIPE_1F1B)
        count = behind;
    if (pipe->schedule == TESS_PIPE_INTERLEAVED)
        count = 2 * behind + (pipe->chunk_count - 1) * pipe->stage_count;
    return count < all ? count : all;
}

/* Forward or backward number `at` of a rank: rounds of `stages` micro-batches, through all chunks,
 * which backward takes from the last. */
static struct tess_action pipe_action(const struct tess_pipe *pipe, enum tess_phase phase,
                                      int32_t at)
{
    const int32_t stages = pipe->stage_count, chunks = pipe->chunk_count;
    const int32_t round = stages * chunks, chunk = at % round / stages;
    return (struct tess_action){
        .phase = phase,
        .chunk = phase == TESS_PHASE_FORWARD ? chunk : chunks - 1 - chunk,
        .micro = at / round * stages + at % stages,
    };
}

void tess__pipe_order(const struct tess_pipe *pipe, int32_t stage, struct tess_action *action_out)
{
    const int32_t all = pipe_forward_count(pipe), warm_up = pipe_warm_up(pipe, stage);
    for (int32_t at = 0; at < all + warm_up; at++) {
        if (at < all)
            *action_out++ = pipe_action(pipe, TESS_PHASE_FORWARD, at);
        if (at >= warm_up)
            *action_out++ = pipe_action(pipe, TESS_PHASE_BACKWARD, at - warm_up);
    }
}

/* Of the first `count` forwards of a rank, those of one chunk. */
static int32_t pipe_forwards_of(const struct tess_pipe *pipe, int32_t chunk, int32_t count)
{
    const int32_t stages = pipe->stage_count, round = stages * pipe->chunk_count;
    int32_t last = count % round - chunk * stages;
    if (last < 0)
        last = 0;
    return count / round * stages + (last < stages ? last : stages);
}

int32_t tess__pipe_in_flight(const struct tess_pipe *pipe, int32_t stage, int32_t chunk)
{
    /* Most are alive when the chunk's first backward is about to run, as from then on forwards and
     * backwards take turns: that is after the backwards of the chunks above. */
    const int32_t above = (pipe->chunk_count - 1 - chunk) * pipe->stage_count;
    const int32_t all = pipe_forward_count(pipe);
    const int32_t ran = pipe_warm_up(pipe, stage) + 1 + above;
    return pipe_forwards_of(pipe, chunk, ran < all ? ran : all);
}

double tess__pipe_bubble(const struct tess_pipe *pipe)
{
    const int32_t filling = pipe->stage_count - 1;
    return (double)filling / (double)(pipe_forward_count(pipe) + filling);
}

/* ---- virtual time ---------------------------------------------------------------------------- */

struct pipe_message {
    int32_t virtual_stage, micro; /* of the action that takes it */
    double arrival;
};

/* From a rank to the next one (forward) or the one before (backward). */
struct pipe_channel {
    struct pipe_message *message; /* [actions of a rank] */
    int32_t sent, taken;
    double free_at;
};

struct pipe_rank {
    int32_t at; /* actions that have run */
    double now, busy;
    struct pipe_channel channel[2]; /* what it sends, by phase */
};

struct pipe_run {
    const struct tess_pipe *pipe;
    const struct tess_action *order;
    const struct tess_pipe_times *times;
    struct pipe_rank *rank;       /* [stages] */
    struct pipe_message *message; /* of all channels */
    bool *done;                   /* [virtual stages, micro-batches] forwards that have run */
    double *start;                /* the caller's */
};

static enum tess_status pipe_run_open(struct pipe_run *run)
{
    const size_t stages = (size_t)run->pipe->stage_count;
    const size_t actions = (size_t)tess__pipe_action_count(run->pipe);
    run->rank = calloc(stages, sizeof(*run->rank));
    run->message = calloc(2 * stages * actions, sizeof(*run->message));
    run->done = calloc(stages * actions, sizeof(*run->done));
    if (run->rank == NULL || run->message == NULL || run->done == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to time a pipeline of %d stages", (int)stages);
    for (size_t i = 0; i < 2 * stages; i++)
        run->rank[i / 2].channel[i % 2].message = run->message + i * actions;
    return TESS_OK;
}

static void pipe_run_close(struct pipe_run *run)
{
    free(run->done);
    free(run->message);
    free(run->rank);
}

static const struct tess_action *pipe_run_next(const struct pipe_run *run, int32_t rank)
{
    return &run->order[rank * tess__pipe_action_count(run->pipe) + run->rank[rank].at];
}

static enum tess_status pipe_run_wrong(const struct pipe_run *run, int32_t rank, const char *why)
{
    const struct tess_action *action = pipe_run_next(run, rank);
    TESS_FAIL(TESS_ERR_INTERNAL,
              "the pipeline's order is wrong: action %d of stage %d, %s of micro-batch %d in chunk "
              "%d, %s",
              (int)run->rank[rank].at, (int)rank,
              action->phase == TESS_PHASE_FORWARD ? "forward" : "backward", (int)action->micro,
              (int)action->chunk, why);
}

/* What the action at hand needs from another rank, and when it is there; not *ready_out while it
 * was not sent. */
static enum tess_status pipe_run_take(struct pipe_run *run, int32_t rank, int32_t from, double *now,
                                      bool *ready_out)
{
    const struct tess_pipe *pipe = run->pipe;
    const struct tess_action *action = pipe_run_next(run, rank);
    *ready_out = true;
    if (from < 0 || from >= pipe->stage_count * pipe->chunk_count)
        return TESS_OK;
    struct pipe_channel *channel = &run->rank[from % pipe->stage_count].channel[action->phase];
    *ready_out = channel->taken < channel->sent;
    if (!*ready_out)
        return TESS_OK;
    const struct pipe_message *message = &channel->message[channel->taken++];
    if (message->micro != action->micro ||
        message->virtual_stage != action->chunk * pipe->stage_count + rank)
        return pipe_run_wrong(run, rank, "is sent another message first");
    if (message->arrival > *now)
        *now = message->arrival;
    return TESS_OK;
}

static void pipe_run_give(struct pipe_run *run, int32_t rank, int32_t to, double now)
{
    const struct tess_pipe *pipe = run->pipe;
    const struct tess_action *action = pipe_run_next(run, rank);
    if (to < 0 || to >= pipe->stage_count * pipe->chunk_count)
        return;
    struct pipe_channel *channel = &run->rank[rank].channel[action->phase];
    channel->free_at = (now > channel->free_at ? now : channel->free_at) + run->times->transfer;
    channel->message[channel->sent++] = (struct pipe_message){to, action->micro, channel->free_at};
}

/* Run the rank's next action if it can. */
static enum tess_status pipe_run_step(struct pipe_run *run, int32_t rank, bool *ran_out)
{
    const struct tess_pipe *pipe = run->pipe;
    const struct tess_action *action = pipe_run_next(run, rank);
    const bool forward = action->phase == TESS_PHASE_FORWARD;
    const int32_t step = forward ? 1 : -1;
    if (action->chunk < 0 || action->chunk >= pipe->chunk_count || action->micro < 0 ||
        action->micro >= pipe->micro_count)
        return pipe_run_wrong(run, rank, "is not of this pipeline");
    const int32_t virtual_stage = action->chunk * pipe->stage_count + rank;
    bool *done = &run->done[virtual_stage * pipe->micro_count + action->micro];
    if (!forward && !*done)
        return pipe_run_wrong(run, rank, "comes before the forward");
    double begin = run->rank[rank].now;
    TESS_TRY(pipe_run_take(run, rank, virtual_stage - step, &begin, ran_out));
    if (!*ran_out)
        return TESS_OK;
    const double took = (forward ? run->times->forward : run->times->backward)[virtual_stage];
    run->start[rank * tess__pipe_action_count(pipe) + run->rank[rank].at] = begin;
    run->rank[rank].now = begin + took;
    run->rank[rank].busy += took;
    *done = true;
    pipe_run_give(run, rank, virtual_stage + step, run->rank[rank].now);
    run->rank[rank].at++;
    return TESS_OK;
}

static enum tess_status pipe_run_all(struct pipe_run *run)
{
    const int32_t stages = run->pipe->stage_count, all = tess__pipe_action_count(run->pipe);
    int32_t waiting;
    bool ran, moved;
    do {
        moved = false;
        waiting = -1;
        for (int32_t r = 0; r < stages; r++) {
            for (ran = true; ran && run->rank[r].at < all; moved = moved || ran)
                TESS_TRY(pipe_run_step(run, r, &ran));
            if (run->rank[r].at < all && waiting < 0)
                waiting = r;
        }
    } while (moved);
    return waiting < 0 ? TESS_OK
                       : pipe_run_wrong(run, waiting, "waits for a rank that waits for it");
}

enum tess_status tess__pipe_simulate(const struct tess_pipe *pipe, const struct tess_action *order,
                                     const struct tess_pipe_times *times, double *start_out,
                                     double *idle_out, double *span_out)
{
    struct pipe_run run = {.pipe = pipe, .order = order, .times = times, .start = start_out};
    enum tess_status status;
    double span = 0;
    TESS_TRY_GOTO(status, release, pipe_run_open(&run));
    TESS_TRY_GOTO(status, release, pipe_run_all(&run));
    for (int32_t r = 0; r < pipe->stage_count; r++)
        span = run.rank[r].now > span ? run.rank[r].now : span;
    for (int32_t r = 0; r < pipe->stage_count; r++)
        idle_out[r] = span > 0 ? (span - run.rank[r].busy) / span : 0;
    *span_out = span;
release:
    pipe_run_close(&run);
    return status;
}

/* ---- cut ------------------------------------------------------------------------------------- */

/* What a cut is judged by, in this order. The first two are of its greatest virtual stage. */
enum pipe_goal { PIPE_LEAST_WORK, PIPE_LEAST_BYTES, PIPE_MOST_EVEN };

struct pipe_cut {
    const struct tess_unit_cost *cost;
    const int32_t *held;
    int32_t unit_count, virtual_count;
    double work_most, bytes_most; /* of a virtual stage, by the goals before */
    double *least;                /* [virtual_count + 1, unit_count + 1]: see pipe_cut_fill */
};

struct pipe_sum {
    double work, bytes;
};

static void pipe_sum_add(const struct pipe_cut *cut, int32_t v, int32_t unit, struct pipe_sum *sum)
{
    const struct tess_unit_cost *cost = &cut->cost[unit];
    sum->work += cost->work;
    sum->bytes += (double)cost->param_bytes + (double)cut->held[v] * (double)cost->saved_bytes;
}

static double *pipe_least(const struct pipe_cut *cut, int32_t v, int32_t unit)
{
    return &cut->least[(size_t)v * (size_t)(cut->unit_count + 1) + (size_t)unit];
}

/* The goal's value for one virtual stage with this sum: the whole value is no less. */
static double pipe_cut_alone(const struct pipe_cut *cut, enum pipe_goal goal,
                             const struct pipe_sum *sum)
{
    if (sum->work > cut->work_most || sum->bytes > cut->bytes_most)
        return INFINITY;
    if (goal == PIPE_MOST_EVEN)
        return sum->work * sum->work;
    return goal == PIPE_LEAST_WORK ? sum->work : sum->bytes;
}

/* The goal's value for virtual stage v, which has `here` alone, and those after it from unit `next`
 * on. */
static double pipe_cut_join(const struct pipe_cut *cut, enum pipe_goal goal, double here, int32_t v,
                            int32_t next)
{
    const double rest = *pipe_least(cut, v + 1, next);
    if (goal == PIPE_MOST_EVEN)
        return here + rest;
    return here > rest ? here : rest;
}

/* least(v, u): the best value of the goal when virtual stages v and after run units u and after. */
static double pipe_cut_fill(struct pipe_cut *cut, enum pipe_goal goal)
{
    const int32_t units = cut->unit_count, stages = cut->virtual_count;
    for (int32_t u = 0; u <= units; u++)
        *pipe_least(cut, stages, u) = u == units ? 0 : INFINITY;
    for (int32_t v = stages - 1; v >= 0; v--) {
        for (int32_t u = 0; u <= units; u++)
            *pipe_least(cut, v, u) = INFINITY;
        /* Virtual stages before v and after it run a unit at least; the first begins with unit 0.
         */
        for (int32_t u = v; u <= (v > 0 ? units - (stages - v) : 0); u++) {
            struct pipe_sum sum = {0, 0};
            double least = INFINITY;
            for (int32_t next = u + 1; next <= units - (stages - 1 - v); next++) {
                pipe_sum_add(cut, v, next - 1, &sum);
                const double here = pipe_cut_alone(cut, goal, &sum);
                const double value = pipe_cut_join(cut, goal, here, v, next);
                least = value < least ? value : least;
                if (here >= least)
                    break; /* a longer virtual stage is no better */
            }
            *pipe_least(cut, v, u) = least;
        }
    }
    return *pipe_least(cut, 0, 0);
}

/* The borders that the last fill stands for. */
static void pipe_cut_read(const struct pipe_cut *cut, int32_t *first_out)
{
    int32_t unit = 0;
    for (int32_t v = 0; v < cut->virtual_count; v++) {
        const double least = *pipe_least(cut, v, unit);
        struct pipe_sum sum = {0, 0};
        double here;
        first_out[v] = unit;
        do {
            pipe_sum_add(cut, v, unit++, &sum);
            here = pipe_cut_alone(cut, PIPE_MOST_EVEN, &sum);
        } while (unit < cut->unit_count &&
                 pipe_cut_join(cut, PIPE_MOST_EVEN, here, v, unit) > least);
    }
    first_out[cut->virtual_count] = cut->unit_count;
}

enum tess_status tess__pipe_cut(const struct tess_unit_cost *cost, const int32_t *held,
                                int32_t unit_count, int32_t virtual_count, int32_t *first_out)
{
    struct pipe_cut cut = {.cost = cost,
                           .held = held,
                           .unit_count = unit_count,
                           .virtual_count = virtual_count,
                           .work_most = INFINITY,
                           .bytes_most = INFINITY};
    for (int32_t u = 0; u < unit_count; u++)
        if (!(cost[u].work >= 0 && cost[u].work < INFINITY))
            TESS_FAIL(TESS_ERR_INTERNAL, "unit %d has %g of work", (int)u, cost[u].work);
    cut.least = calloc((size_t)(virtual_count + 1) * (size_t)(unit_count + 1), sizeof(*cut.least));
    if (cut.least == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to cut %d units", (int)unit_count);
    cut.work_most = pipe_cut_fill(&cut, PIPE_LEAST_WORK) * (1 + 1e-9);
    cut.bytes_most = pipe_cut_fill(&cut, PIPE_LEAST_BYTES);
    pipe_cut_fill(&cut, PIPE_MOST_EVEN);
    pipe_cut_read(&cut, first_out);
    free(cut.least);
    return TESS_OK;
}
