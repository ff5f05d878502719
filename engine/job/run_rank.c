/*
 * The rank's half of a run: the loop over steps, epochs and evaluations. Rank 0 reports the run,
 * every rank its own costs. Which steps are logged depends on step numbers only, because asking for
 * the loss is collective.
 */
#include "base/arena.h"
#include "base/clock.h"
#include "comm/boot/boot.h"
#include "comm/debug.h"
#include "job/open_comm.h"
#include "job/pace.h"
#include "job/place.h"
#include "job/run.h"
#include "job/saving.h"
#include "job/usual.h"
#include "tessera/check.h"
#include "topology/hwloc/live.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* A bar moves ten times a second. */
#define LIVE_PERIOD_S 0.1
#define LOOP_RECORDS  1000 /* of steps in a run, without --log-every */

struct tess_job_memory tess__run_memory(const struct tess_memory *memory)
{
    struct tess_job_memory used = {.total = tess_memory_total(memory) + tess_memory_beside(memory)};

    for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
        used.bytes[k] = tess_memory_bytes(memory, (enum tess_memory_kind)k);
    return used;
}

/* A stretch of steps, evaluations and digests left out. */
struct stretch {
    int64_t steps, rows;
    struct tess_times sum;
};

/* Bytes sent by a rank, over all its groups and along each axis; and seconds of waiting there. */
struct traffic {
    uint64_t sent_bytes, axis_sent[TESS_AXIS_COUNT];
    double axis_wait_s[TESS_AXIS_COUNT];
};

struct loop {
    const struct tess__run *run;
    const struct tess__rank *rank;
    struct tess_comm *comm;
    struct tess_engine *engine;
    struct tess_trace_lane *lane; /* NULL without a time line */
    struct tess_digest *digest;   /* [parameters]; NULL without --hash-every */
    struct tess__saving saving;
    struct tess__pace pace;
    int64_t first_step; /* steps done before this process began */
    int64_t step_count, steps_per_epoch, log_every, record_every, warm_steps;
    struct stretch since_log, epoch, warm; /* warm: all steps after the warm-up */
    struct tess__usual usual;              /* of the same */
    struct tess_times all;
    double begin_s, live_s, cumulative_s;
    double mark_s;      /* up to here time is accounted for; the next step begins here */
    struct traffic sum; /* of all steps; waiting of those after the warm-up */
    double axis_wait_s[TESS_AXIS_COUNT]; /* of all steps */
    double processor_s;                  /* of the thread, when the warm-up ended, and since */
    struct tess__run_final final;
};

/* time_s: from the end of the step before. */
static void stretch_add(struct stretch *stretch, double time_s,
                        const struct tess_step_result *result)
{
    struct tess_times times = result->times;

    times.total_s = time_s;
    stretch->steps++;
    stretch->rows += result->rows;
    tess_times_add(&stretch->sum, &times, 1);
}

static double stretch_share(const struct stretch *stretch)
{
    return stretch->sum.total_s > 0 ? stretch->sum.comm_s / stretch->sum.total_s : 0;
}

/* Images that counted, per second. */
static double stretch_rate(const struct stretch *stretch)
{
    return stretch->sum.total_s > 0 ? (double)stretch->rows / stretch->sum.total_s : 0;
}

static struct traffic traffic_so_far(const struct tess_engine *engine)
{
    struct traffic now;
    double wait_s = 0;

    tess_engine_traffic(engine, &now.sent_bytes, &wait_s);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        tess_engine_axis_traffic(engine, (enum tess_axis)axis, &now.axis_sent[axis],
                                 &now.axis_wait_s[axis]);
    return now;
}

/* Add the step since `before`; its waiting counts where the warm-up is over. */
static void traffic_add(struct loop *loop, const struct traffic *before, bool warm)
{
    const struct traffic after = traffic_so_far(loop->engine);
    struct traffic *sum = &loop->sum;

    sum->sent_bytes += after.sent_bytes - before->sent_bytes;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        sum->axis_sent[axis] += after.axis_sent[axis] - before->axis_sent[axis];
        loop->axis_wait_s[axis] += after.axis_wait_s[axis] - before->axis_wait_s[axis];
        sum->axis_wait_s[axis] += warm ? after.axis_wait_s[axis] - before->axis_wait_s[axis] : 0;
    }
}

static enum tess_status loop_open(struct loop *loop, const struct tess__run *run,
                                  const struct tess__rank *rank)
{
    loop->run = run;
    loop->rank = rank;
    loop->first_step = tess_engine_step_done(loop->engine);
    loop->step_count = tess_engine_step_count(loop->engine);
    const int64_t left = loop->step_count - loop->first_step;
    if (left < 0 || (left == 0 && run->step_done == NULL)) /* else its end was lost */
        TESS_FAIL(TESS_ERR_USAGE,
                  "nothing to do: %s has all %lld steps; a larger --steps or --epochs continues",
                  run->config->checkpoint, (long long)loop->step_count);
    loop->steps_per_epoch = tess_engine_steps_per_epoch(loop->engine);
    loop->log_every = run->log_every > 0 ? run->log_every : (loop->steps_per_epoch + 9) / 10;
    loop->record_every = run->log_every > 0 || !run->records
                             ? loop->log_every
                             : (loop->step_count + LOOP_RECORDS - 1) / LOOP_RECORDS;
    loop->warm_steps = loop->first_step + (run->warm_steps < left / 2 ? run->warm_steps : left / 2);
    loop->final.loss = loop->final.val_loss = loop->final.val_accuracy = NAN;
    if (run->config->run.hash_every > 0) {
        int32_t params = tess_engine_param_count(loop->engine);

        loop->digest = calloc((size_t)params, sizeof(*loop->digest));
        if (loop->digest == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the digests of %d parameters", params);
    }
    TESS_TRY(tess__usual_open(&loop->usual));
    TESS_TRY(tess__saving_open(&loop->saving, run, rank, loop->engine));
    TESS_TRY(
        tess__pace_open(&loop->pace, run, rank, loop->comm, tess_engine_plan_of(loop->engine)));
    loop->begin_s = loop->live_s = loop->mark_s = tess_clock_s();
    return TESS_OK;
}

/* Rank 0: report a step when it is recorded, or when the bar is due. */
static enum tess_status loop_send_step(struct loop *loop, const struct tess_step_result *result,
                                       bool recorded, bool logged)
{
    double now_s = tess_clock_s();
    struct tess__run_step step = {
        .recorded = recorded,
        .logged = logged,
        .result = *result,
        .samples_per_s = stretch_rate(&loop->since_log),
        .comm_share = stretch_share(&loop->since_log),
        .elapsed_s = now_s - loop->begin_s,
        .wait_forward_s = loop->all.comm_forward_s,
        .wait_backward_s = loop->all.comm_backward_s,
        .wait_optim_s = loop->all.comm_optim_s,
    };

    memcpy(step.wait_axis_s, loop->axis_wait_s, sizeof(step.wait_axis_s));

    if (result->step == loop->first_step + 1)
        loop->final.first_step_s = now_s - loop->run->start_s;
    if (!recorded && !(loop->run->live && now_s - loop->live_s >= LIVE_PERIOD_S))
        return TESS_OK;
    loop->live_s = now_s;
    if (logged)
        loop->since_log = (struct stretch){0};
    return tess__rank_send(loop->rank, TESS__RUN_STEP, &step, sizeof(step));
}

static enum tess_status loop_step(struct loop *loop, int64_t number)
{
    const bool last = number == loop->step_count || number % loop->steps_per_epoch == 0;
    const bool logged = last || number == loop->first_step + 1 || number % loop->log_every == 0;
    const bool recorded = logged || number % loop->record_every == 0;
    const struct traffic before = traffic_so_far(loop->engine);
    struct tess_step_result result;

    if (number == loop->warm_steps + 1) {
        loop->processor_s = tess_clock_thread_s();
        tess_engine_time_chunks(
            loop->engine, loop->run->crowded && loop->run->config->mesh.count[TESS_AXIS_STAGE] > 1);
    }
    tess_trace_begin(loop->lane, TESS_TRACE_STEP, number);
    TESS_TRY(tess_engine_step(loop->engine, recorded, &result));
    tess_trace_end(loop->lane);
    /* From the end of the step before: what is done between steps is part of the speed. */
    const double now_s = tess_clock_s(), time_s = now_s - loop->mark_s;
    if (loop->run->step_done != NULL && loop->rank->rank == 0)
        *loop->run->step_done = number;
    loop->mark_s = now_s;
    if (number == loop->step_count)
        loop->processor_s = tess_clock_thread_s() - loop->processor_s;
    traffic_add(loop, &before, number > loop->warm_steps);
    tess_times_add(&loop->all, &result.times, 1);
    stretch_add(&loop->since_log, time_s, &result);
    stretch_add(&loop->epoch, time_s, &result);
    if (number > loop->warm_steps) {
        struct tess_times times = result.times;
        times.total_s = time_s;
        stretch_add(&loop->warm, time_s, &result);
        tess__usual_add(&loop->usual, &times);
    }
    if (recorded) {
        loop->final.loss = result.loss;
        loop->final.loss_scale = result.loss_scale;
        loop->final.loss_zero_share = result.loss_zero_share;
        loop->final.skipped = result.skipped_count;
    }
    loop->cumulative_s += time_s;
    TESS_TRY(tess__pace_step(&loop->pace, number - loop->warm_steps, number, time_s, &result.times,
                             loop->axis_wait_s, loop->sum.axis_sent));
    return loop->rank->rank == 0 ? loop_send_step(loop, &result, recorded, logged) : TESS_OK;
}

static enum tess_status loop_evaluate(struct loop *loop, int64_t number, double *seconds_out)
{
    struct tess__run_final *final = &loop->final;
    const double begin_s = tess_clock_s();
    tess_trace_begin(loop->lane, TESS_TRACE_EVALUATION, number);
    TESS_TRY(tess_engine_evaluate(loop->engine, &final->val_loss, &final->val_accuracy));
    tess_trace_end(loop->lane);
    loop->mark_s = tess_clock_s();
    *seconds_out = loop->mark_s - begin_s;
    loop->cumulative_s += *seconds_out;
    return TESS_OK;
}

/* An evaluation within an epoch. */
static enum tess_status loop_validate(struct loop *loop, int64_t number)
{
    struct tess__run_validation validation = {.step = number,
                                              .epoch = (number - 1) / loop->steps_per_epoch};

    TESS_TRY(loop_evaluate(loop, number, &validation.evaluate_s));
    validation.loss = loop->final.val_loss;
    validation.accuracy = loop->final.val_accuracy;
    validation.cumulative_s = loop->cumulative_s;
    if (loop->rank->rank != 0)
        return TESS_OK;
    return tess__rank_send(loop->rank, TESS__RUN_VALIDATION, &validation, sizeof(validation));
}

static enum tess_status loop_end_epoch(struct loop *loop, int64_t number)
{
    struct tess__run_epoch epoch = {
        .step = number,
        .epoch = (number - 1) / loop->steps_per_epoch,
        .samples_per_s = stretch_rate(&loop->epoch),
        .comm_share = stretch_share(&loop->epoch),
        .time_s = loop->epoch.sum.total_s,
    };
    struct tess__run_times times = {epoch.epoch, loop->epoch.sum};

    /* Before the evaluation, whose sums all ranks wait for: so rank 0's line comes after these. */
    TESS_TRY(tess__rank_send(loop->rank, TESS__RUN_TIMES, &times, sizeof(times)));
    TESS_TRY(tess_engine_epoch_loss(loop->engine, &epoch.loss));
    if (loop->run->evaluate)
        TESS_TRY(loop_evaluate(loop, number, &epoch.evaluate_s));
    epoch.val_loss = loop->run->evaluate ? loop->final.val_loss : NAN;
    epoch.val_accuracy = loop->run->evaluate ? loop->final.val_accuracy : NAN;
    epoch.cumulative_s = loop->cumulative_s;
    loop->epoch = (struct stretch){0};
    if (loop->rank->rank != 0)
        return TESS_OK;
    return tess__rank_send(loop->rank, TESS__RUN_EPOCH, &epoch, sizeof(epoch));
}

/* Digests of all parameters, compared over replicas; sent where the launcher keeps them. */
static enum tess_status loop_digest(struct loop *loop, int64_t number)
{
    int32_t params = tess_engine_param_count(loop->engine);
    double begin_s = tess_clock_s();

    tess_trace_begin(loop->lane, TESS_TRACE_DIGEST, number);
    TESS_TRY(tess_engine_digest(loop->engine, loop->digest));
    for (int32_t p = 0; p < params && loop->run->keep_digests && loop->rank->rank == 0; p++) {
        struct tess__run_digest digest = {number, p, loop->digest[p]};
        TESS_TRY(tess__rank_send(loop->rank, TESS__RUN_DIGEST, &digest, sizeof(digest)));
    }
    tess_trace_end(loop->lane);
    loop->mark_s = tess_clock_s();
    loop->cumulative_s += loop->mark_s - begin_s;
    return TESS_OK;
}

static enum tess_status loop_run(struct loop *loop)
{
    const int64_t hash_every = loop->run->config->run.hash_every;
    const int64_t every = loop->run->config->run.evaluate_every;

    if (hash_every > 0) /* what the run began with */
        TESS_TRY(loop_digest(loop, loop->first_step));
    for (int64_t number = loop->first_step + 1; number <= loop->step_count; number++) {
        /* One rank alone never waits, so no call would return that the run is aborted. */
        if (tess_world_aborted(loop->rank->world, NULL, NULL, 0))
            return TESS_ERR_ABORTED;
        TESS_TRY(loop_step(loop, number));
        if (hash_every > 0 && number % hash_every == 0)
            TESS_TRY(loop_digest(loop, number));
        if (number == loop->step_count || number % loop->steps_per_epoch == 0)
            TESS_TRY(loop_end_epoch(loop, number));
        else if (loop->run->evaluate && every > 0 && number % every == 0)
            TESS_TRY(loop_validate(loop, number));
        if (number < loop->step_count)
            TESS_TRY(tess__saving_after_step(&loop->saving, number));
        if (loop->saving.stop)
            return tess__saving_end(&loop->saving, number);
    }
    double seconds;
    if (loop->first_step == loop->step_count && loop->run->evaluate)
        TESS_TRY(loop_evaluate(loop, loop->step_count, &seconds));
    tess_trace_stop(loop->lane);
    return TESS_OK;
}

/* After the result has been sent: a disk that is full for the weights costs only them. */
static enum tess_status loop_save(struct loop *loop)
{
    const struct tess_run_options *options = &loop->run->config->run;
    char path[PATH_MAX];

    TESS_TRY(tess__saving_end(&loop->saving, loop->step_count));

    if (options->run[0] == '\0' || !options->save_weights)
        return TESS_OK;
    if (snprintf(path, sizeof(path), "%s/weights.safetensors", options->run) >= (int)sizeof(path))
        TESS_FAIL(TESS_ERR_USAGE, "the name of the run folder is too long");
    return tess_engine_save(loop->engine, path);
}

static enum tess_status loop_send_chunks(const struct loop *loop)
{
    for (int32_t c = 0; c < tess_engine_chunk_count(loop->engine); c++) {
        const struct tess_chunk_cost cost = tess_engine_chunk_cost(loop->engine, c);
        const struct tess__run_chunk chunk = {
            .chunk = c,
            .forward_s = cost.forward_s / (double)(cost.forwards > 0 ? cost.forwards : 1),
            .backward_s = cost.backward_s / (double)(cost.backwards > 0 ? cost.backwards : 1),
        };
        if (cost.forwards > 0)
            TESS_TRY(tess__rank_send(loop->rank, TESS__RUN_CHUNK, &chunk, sizeof(chunk)));
    }
    return TESS_OK;
}

static enum tess_status loop_send_end(struct loop *loop)
{
    const double steps = fmax(1, (double)(loop->step_count - loop->first_step));
    const double warm = loop->warm.steps > 0 ? (double)loop->warm.steps : 1;
    const struct tess_module *module = loop->run->config->device.module;
    struct rusage usage = {.ru_maxrss = 0};
    (void)getrusage(RUSAGE_SELF, &usage);
    const double busy_s = loop->warm.sum.total_s - loop->warm.sum.comm_s;
    struct tess__run_rank cost = {
        .allocated = tess__run_memory(tess_engine_memory(loop->engine)),
        .peak_rss = (uint64_t)usage.ru_maxrss * 1024,
        .sent_bytes_per_step = (double)loop->sum.sent_bytes / steps,
        .sent_bytes_formula = tess_engine_sent_formula(loop->engine),
        .processor_share = busy_s > 0 ? loop->processor_s / busy_s : 1,
    };

    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        cost.axis_sent_per_step[axis] = (double)loop->sum.axis_sent[axis] / steps;
        cost.axis_wait_s[axis] = loop->sum.axis_wait_s[axis] / warm;
        cost.axis_formula[axis] = tess_engine_axis_formula(loop->engine, (enum tess_axis)axis);
    }
    tess_times_add(&cost.step, &loop->warm.sum, 1 / warm);
    if (module != NULL) {
        module->device_usage(&cost.device_usage);
        if (module->device_memory(&cost.device_memory) != TESS_OK)
            cost.device_memory = (struct tess_device_memory){0, 0};
    }
    const struct tess__run_usual usual = {tess__usual_take(&loop->usual)};
    TESS_TRY(tess__rank_send(loop->rank, TESS__RUN_USUAL, &usual, sizeof(usual)));
    TESS_TRY(loop_send_chunks(loop));
    TESS_TRY(tess__rank_send(loop->rank, TESS__RUN_RANK, &cost, sizeof(cost)));
    TESS_TRY(tess_engine_hash(loop->engine, &loop->final.hash));
    loop->final.steps = loop->step_count;
    loop->final.audited = tess_engine_audited(loop->engine);
    loop->final.samples_per_s = stretch_rate(&loop->warm);
    loop->final.comm_share = stretch_share(&loop->warm);
    loop->final.time_s = loop->cumulative_s;
    if (loop->rank->rank == 0)
        TESS_TRY(tess__rank_send(loop->rank, TESS__RUN_FINAL, &loop->final, sizeof(loop->final)));
    return loop_save(loop);
}

enum tess_status tess__run_open_comm(const struct tess__run *run, const struct tess__rank *rank,
                                     struct tess_comm **comm_out)
{
    const struct tess_run_options *options = &run->config->run;
    const struct tess_device_plan *plan = &run->config->device;
    const struct tess__open_comm how = {
        .kind = plan->comm,
        .options = tess_comm_options_of(plan->comm_options, plan->comm),
        .module = plan->module,
        .peers = run->peers,
        .order = options->reduce == 0 ? TESS_ORDER_CANONICAL : TESS_ORDER_FAST,
        .timeout_s = options->timeout,
        .rack_hosts = run->placed->rack_hosts,
    };
    struct tess_comm *comm;
    int32_t unit_count;
    const char *const *unit_name = tess_engine_unit_names(run->planned, &unit_count);
    enum tess_status status;

    TESS_TRY(tess_config_select_device(run->config, rank->rank));
    tess__place_graph_set(run->placed, true);
    status = tess__open_comm(&how, rank, &comm);
    tess__place_graph_set(run->placed, false);
    TESS_TRY(status);
    /* Opening a communicator may have moved this thread to other cores (NCCL does). */
    (void)tess_bind_check();
    *comm_out = comm;
    if (!options->debug)
        return TESS_OK;
    status = tess_comm_debug_open(comm, tess_world_board(rank->world, rank->rank), unit_name,
                                  unit_count);
    if (status != TESS_OK)
        tess_comm_close(comm);
    return status;
}

enum tess_status tess__run_body(void *context, struct tess__rank *rank)
{
    const struct tess__run *run = context;
    struct tess_comm *comm = NULL;
    struct loop loop = {.lane = tess_trace_lane(run->trace, rank->rank)};
    enum tess_status status;

    tess_trace_start(loop.lane);
    TESS_TRY(tess__run_open_comm(run, rank, &comm));
    comm->observer = tess_trace_observer(loop.lane);
    tess_flight_watch(run->flight, comm);
    TESS_TRY_GOTO(status, close_comm,
                  tess_engine_open(run->config, run->dataset, comm, rank->world, &loop.engine));
    tess_engine_trace(loop.engine, loop.lane);
    loop.comm = comm;
    TESS_TRY_GOTO(status, close_engine, loop_open(&loop, run, rank));
    TESS_TRY_GOTO(status, close_engine, loop_run(&loop));
    if (!loop.saving.stop)
        TESS_TRY_GOTO(status, close_engine, loop_send_end(&loop));

close_engine:
    tess__pace_close(&loop.pace);
    tess__usual_close(&loop.usual);
    tess__saving_close(&loop.saving);
    tess_engine_close(loop.engine);
close_comm:
    /* Ranks elsewhere cannot see it in the world: send it while the communicator is open. */
    if (run->peers != NULL && status != TESS_OK && status != TESS_ERR_ABORTED)
        tess_comm_abort(comm, tess_log_last_error());
    tess_comm_close(comm);
    free(loop.digest);
    return status;
}
