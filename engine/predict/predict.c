/* Running steps in virtual time, and what their times say; see predict.h. */
#include "predict/predict.h"

#include "base/arena.h"
#include "base/clock.h"
#include "predict/virtual.h"
#include "tessera/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps before the one that is taken. The first one is not like others: stages begin together, and
 * a step that is recorded is recorded in the second. */
static int predict_warm_steps(const struct tess_config *config)
{
    return config->cuda.graph ? 2 : 1;
}

struct predict_stage {
    struct virtual_rank *rank;
    struct tess_engine *engine;
    struct tess_comm *comm;
    enum tess_order order;
    int warm_steps;
    double begin_s;   /* of the step that is taken */
    double all_bytes; /* that ranks of its host touch in a step */
    struct tess_prediction_stage *out;
};

struct predict {
    struct tess_config config; /* shallow, with the virtual kernel */
    struct tess_kernel_ops kernel;
    struct tess_model_ops model;
    struct tess_profile profile; /* of one of the ranks that share cores */
    struct tess_network network; /* of the same */
    double turns;                /* of a stage's ranks: for each core, at least 1 */
    int32_t here;                /* ranks of a host */
    struct virtual_world world;
    int32_t event_max;           /* of a stage's time line; 0: none */
    struct predict_stage *stage; /* [world.stage_count] */
};

/* ---- one stage ------------------------------------------------------------------------------- */

/* Bytes so far, along each axis, and of calls over all ranks. */
static void stage_sent(const struct tess_engine *engine, uint64_t sent[TESS_PREDICT_GROUPS])
{
    uint64_t all;
    double wait_s;
    tess_engine_traffic(engine, &all, &wait_s);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        tess_engine_axis_traffic(engine, (enum tess_axis)axis, &sent[axis], &wait_s);
        all -= sent[axis];
    }
    sent[TESS_PREDICT_ALL] = all;
}

static size_t stage_lost_count(const struct virtual_rank *rank)
{
    return (size_t)TESS_PREDICT_GROUPS * TESS_COLLECTIVE_COUNT * (size_t)(rank->unit_count + 1);
}

static void stage_forget(struct virtual_rank *rank)
{
    rank->spent = (struct virtual_spent){{0}, {0}};
    rank->late_s = rank->bubble_s = 0;
    memset(rank->exposed_s, 0, sizeof(rank->exposed_s));
    memset(rank->lost_s, 0, stage_lost_count(rank) * sizeof(*rank->lost_s));
    rank->calls.count = rank->waits.count = 0;
}

static int span_order(const void *a, const void *b)
{
    const struct virtual_span *x = a, *y = b;
    return (x->begin_s > y->begin_s) - (x->begin_s < y->begin_s);
}

/* Make them follow each other without overlap. */
static void spans_join(struct virtual_spans *spans)
{
    size_t kept = 0, sorted = 1; /* mostly all */
    while (sorted < spans->count && spans->span[sorted - 1].begin_s <= spans->span[sorted].begin_s)
        sorted++;
    if (sorted < spans->count)
        qsort(spans->span, spans->count, sizeof(*spans->span), span_order);
    for (size_t i = 0; i < spans->count; i++) {
        const struct virtual_span span = spans->span[i];
        if (kept > 0 && span.begin_s <= spans->span[kept - 1].end_s)
            spans->span[kept - 1].end_s = fmax(spans->span[kept - 1].end_s, span.end_s);
        else
            spans->span[kept++] = span;
    }
    spans->count = kept;
}

/* Time in which links work for calls and the rank does not wait. */
static double stage_hidden_s(struct virtual_rank *rank)
{
    struct virtual_spans *calls = &rank->calls, *waits = &rank->waits;
    double hidden_s = 0;
    spans_join(calls);
    spans_join(waits);
    for (size_t c = 0, w = 0; c < calls->count; c++) {
        hidden_s += calls->span[c].end_s - calls->span[c].begin_s;
        while (w < waits->count && waits->span[w].end_s <= calls->span[c].begin_s)
            w++;
        for (size_t i = w; i < waits->count && waits->span[i].begin_s < calls->span[c].end_s; i++)
            hidden_s -= fmin(calls->span[c].end_s, waits->span[i].end_s) -
                        fmax(calls->span[c].begin_s, waits->span[i].begin_s);
    }
    return fmax(0, hidden_s);
}

static void stage_take(struct predict_stage *stage)
{
    struct virtual_rank *rank = stage->rank;
    struct tess_prediction_stage *out = stage->out;
    const double *doing_s = rank->spent.doing_s;
    out->step_s = rank->host_s - stage->begin_s;
    out->data_s = doing_s[TESS_DOING_LOADING];
    out->forward_s =
        doing_s[TESS_DOING_INPUT] + doing_s[TESS_DOING_FORWARD] + doing_s[TESS_DOING_LOSS];
    out->backward_s = doing_s[TESS_DOING_GRADIENT] + doing_s[TESS_DOING_BACKWARD];
    out->optim_s = doing_s[TESS_DOING_REDUCING] + doing_s[TESS_DOING_OPTIMIZER];
    memcpy(out->exposed_s, rank->exposed_s, sizeof(out->exposed_s));
    out->hidden_s = stage_hidden_s(rank);
    out->product_s = rank->spent.sort_s[VIRTUAL_PRODUCT];
    out->pass_s = rank->spent.sort_s[VIRTUAL_PASS];
    out->launch_s = rank->late_s;
    out->bubble_s = rank->bubble_s;
    out->processor_s = out->product_s + out->pass_s;
}

/* The step that is taken begins, or has ended. */
static enum tess_status predict_mark(struct virtual_rank *rank, const struct virtual_act *act,
                                     bool *waits_out)
{
    struct predict_stage *stage = act->of;
    (void)waits_out;
    if (act->at == 0) {
        stage_forget(rank);
        stage->begin_s = rank->host_s;
        rank->tracing = rank->event != NULL;
    } else {
        rank->tracing = false;
        stage_take(stage);
    }
    return virtual_stop(rank, &(struct virtual_stop){.what = VIRTUAL_MARKS,
                                                     .number = act->at,
                                                     .begin_s = rank->host_s,
                                                     .end_s = rank->host_s});
}

static enum tess_status stage_mark(struct predict_stage *stage, uint32_t at)
{
    const struct virtual_act act = {.what = VIRTUAL_MARK, .of = stage, .at = at};
    return virtual_later(stage->rank, act) ? TESS_OK : predict_mark(stage->rank, &act, NULL);
}

static enum tess_status stage_warm(struct predict_stage *stage)
{
    struct virtual_rank *rank = stage->rank;
    struct tess_step_result result;
    TESS_TRY(
        virtual_comm_open(rank, tess_engine_plan_of(stage->engine), stage->order, &stage->comm));
    virtual_watch_comm(rank, stage->comm);
    TESS_TRY(tess_engine_open_hollow(stage->engine, stage->comm));
    rank->board = tess_engine_board(stage->engine);
    virtual_watch_engine(rank, stage->engine);
    stage->begin_s = rank->host_s;
    for (int i = 0; i < stage->warm_steps; i++)
        TESS_TRY(tess_engine_step(stage->engine, false, &result));
    return TESS_OK;
}

/* A step is as long as the one before. */
static void stage_age(struct predict_stage *stage)
{
    struct virtual_rank *rank = stage->rank;
    const struct tess_profile *profile = rank->world->profile;
    const double age_s = (rank->host_s - stage->begin_s) / stage->warm_steps;
    rank->far_s = tess_profile_far_s(profile, stage->all_bytes, age_s);
}

static enum tess_status stage_step(struct predict_stage *stage)
{
    struct tess_step_result result;
    uint64_t sent[TESS_PREDICT_GROUPS];
    stage_sent(stage->engine, sent);
    stage_age(stage);
    TESS_TRY(stage_mark(stage, 0));
    TESS_TRY(tess_engine_step(stage->engine, false, &result));
    TESS_TRY(stage_mark(stage, 1));
    stage_sent(stage->engine, stage->out->sent_bytes);
    for (int group = 0; group < TESS_PREDICT_GROUPS; group++)
        stage->out->sent_bytes[group] -= sent[group];
    return TESS_OK;
}

/* ---- all stages ------------------------------------------------------------------------------ */

static enum tess_status predict_refuse(const struct tess_config *config)
{
    if (config->run.audit > 0)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "predictions do not have --audit: leave it out");
    if (config->run.debug)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "predictions do not have --debug: leave it out");
    return TESS_OK;
}

static virtual_do *const predict_does[VIRTUAL_WHATS] = {
    [VIRTUAL_WORK] = virtual_do_work,     [VIRTUAL_DRAIN] = virtual_do_drain,
    [VIRTUAL_RECORD] = virtual_do_record, [VIRTUAL_FOLLOW] = virtual_do_follow,
    [VIRTUAL_REACH] = virtual_do_reach,   [VIRTUAL_CALL] = virtual_do_call,
    [VIRTUAL_WAIT] = virtual_do_wait,     [VIRTUAL_MARK] = predict_mark,
    [VIRTUAL_TOUCH] = virtual_do_touch,
};

/* As many as tess_config.threads, but that the cores are those of the profile's machine. */
static int32_t predict_threads(const struct tess_config *config, const struct tess_profile *profile,
                               int32_t here)
{
    if (config->run.threads > 0 || !config->kernel->threaded || profile->cores < 1)
        return config->threads;
    const int32_t each = (int32_t)lround(profile->cores / here);
    return each > 1 ? each : 1;
}

/* What ranks that share a host's cores leave for each: those of one stage, which compute at the
 * same time. Stages take turns by virtual_crowd. */
static void predict_share(const struct tess_config *config, const struct tess_profile *profile,
                          const struct tess_network *network, struct predict *predict)
{
    const int32_t ranks = (int32_t)config->run.ranks, host_ranks = network->cluster.host_ranks;
    const int32_t here = ranks < host_ranks ? ranks : host_ranks;
    const int32_t each = ranks / config->mesh.count[TESS_AXIS_STAGE];
    const int32_t alike = here < each ? here : each;
    const double threads = predict->config.threads = predict_threads(config, profile, here);
    struct tess_profile busy = *profile;
    busy.cache_one = tess_profile_cache_of(profile, here * threads);
    predict->profile = tess_profile_share(&busy, alike, predict->config.threads);
    predict->network = *network;
    predict->here = here;
    predict->world.crowd = profile->cores >= 1 ? fmax(1, here / profile->cores) : 1;
    predict->turns = profile->cores >= 1 ? fmax(1, alike * threads / profile->cores) : 1;
    predict->world.alike = alike * threads;
    predict->world.together =
        here > alike && profile->cores >= 1 && here * threads > profile->cores;
    predict->world.near = here / alike;
    tess_network_crowd(&predict->network, profile, predict->turns, predict->world.crowd);
}

static enum tess_status predict_new(const struct tess_config *config,
                                    const struct tess_profile *profile,
                                    const struct tess_network *network, struct predict *predict)
{
    const int32_t stages = config->mesh.count[TESS_AXIS_STAGE];
    predict->kernel = virtual_kernel(config->kernel);
    if (predict->event_max > 0)
        virtual_watch_kernel(&predict->kernel, &predict->world.own);
    predict->config = *config;
    predict->config.kernel = &predict->kernel;
    predict->model = virtual_model(config->model);
    predict->config.model = &predict->model;
    predict->world.model = config->model;
    predict->config.device.module = NULL;
    predict->config.checkpoint[0] = '\0';
    predict->config.run.init = "";
    predict_share(config, profile, network, predict);
    predict->world.profile = &predict->profile;
    predict->world.network = &predict->network;
    predict->world.mesh = config->mesh;
    predict->world.stage_count = stages;
    predict->world.does = predict_does;
    predict->world.rank = calloc((size_t)stages, sizeof(*predict->world.rank));
    predict->stage = calloc((size_t)stages, sizeof(*predict->stage));
    if (predict->world.rank == NULL || predict->stage == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d stages", stages);
    for (int32_t s = 0; s < stages; s++)
        predict->world.rank[s] =
            (struct virtual_rank){.world = &predict->world, .stage = s, .doing = -1};
    return TESS_OK;
}

/* Plan the stage's first rank: its memory, and all that can be refused. */
static enum tess_status predict_plan(struct predict *predict, const struct tess_dataset *dataset,
                                     int32_t number)
{
    struct predict_stage *stage = &predict->stage[number];
    struct virtual_rank *rank = stage->rank = &predict->world.rank[number];
    struct tess_mesh mesh = predict->config.mesh;
    memset(mesh.at, 0, sizeof(mesh.at));
    mesh.at[TESS_AXIS_STAGE] = number;
    virtual_kernel_for(rank);
    const enum tess_status status =
        tess_engine_plan(&predict->config, dataset, tess_mesh_rank(&mesh, mesh.at), &stage->engine);
    virtual_kernel_for(NULL);
    TESS_TRY(status);
    stage->order = predict->config.run.reduce == 0 ? TESS_ORDER_CANONICAL : TESS_ORDER_FAST;
    stage->warm_steps = predict_warm_steps(&predict->config);
    (void)tess_engine_unit_names(stage->engine, &rank->unit_count);
    rank->lost_s = calloc(stage_lost_count(rank), sizeof(*rank->lost_s));
    if (predict->event_max > 0)
        rank->event = calloc((size_t)predict->event_max, sizeof(*rank->event));
    if (rank->lost_s == NULL || (predict->event_max > 0 && rank->event == NULL))
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the times of %d units", rank->unit_count);
    rank->event_max = predict->event_max;
    if (predict->event_max == 0 && !tess_engine_is_conditional(stage->engine))
        rank->unit = calloc(2 * (size_t)rank->unit_count, sizeof(*rank->unit)); /* NULL: slower */
    if (predict->event_max > 0)
        TESS_TRY(virtual_watch_open(rank));
    const struct tess_memory *memory = tess_engine_memory(stage->engine);
    for (int kind = 0; kind < TESS_MEMORY_KIND_COUNT; kind++)
        stage->out->memory[kind] = tess_memory_bytes(memory, (enum tess_memory_kind)kind);
    stage->out->memory_total = tess_memory_total(memory);
    return TESS_OK;
}

/* Ranks of one host have those stages that follow each other. */
static void predict_touched(struct predict *predict)
{
    const int32_t stages = predict->world.stage_count;
    const int32_t alike = (int32_t)predict->config.run.ranks / stages;
    const int32_t near = predict->here > alike ? predict->here / alike : 1;
    const double each = (double)predict->here / near;
    for (int32_t s = 0; s < stages; s++) {
        const int32_t first = s / near * near, end = first + near < stages ? first + near : stages;
        for (int32_t other = first; other < end; other++)
            predict->stage[s].all_bytes += each * (double)predict->stage[other].out->memory_total;
    }
}

static enum tess_status predict_map(struct predict *predict)
{
    struct virtual_world *world = &predict->world;
    for (int32_t s = 0; s < world->stage_count; s++)
        if (predict->stage[s].out->memory_total > world->space_bytes)
            world->space_bytes = predict->stage[s].out->memory_total;
    world->space = virtual_map(world->space_bytes);
    if (world->space == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no addresses for %zu MiB of a device's memory",
                  world->space_bytes >> 20);
    return TESS_OK;
}

/* All stages, one after the other, and then what they do to each other's clocks. */
static enum tess_status predict_part(struct predict *predict,
                                     enum tess_status (*part)(struct predict_stage *))
{
    enum tess_status status = TESS_OK;
    for (int32_t s = 0; s < predict->world.stage_count && status == TESS_OK; s++) {
        tess_clock_own(&predict->world.rank[s].host_s);
        status = part(&predict->stage[s]);
        tess_clock_own(NULL);
    }
    return status == TESS_OK ? virtual_do_all(&predict->world) : status;
}

static enum tess_status predict_run(struct predict *predict)
{
    TESS_TRY(predict_part(predict, stage_warm));
    return predict_part(predict, stage_step);
}

static void predict_close(struct predict *predict)
{
    const int32_t stages = predict->world.stage_count;
    for (int32_t s = 0; predict->stage != NULL && s < stages; s++) {
        tess_engine_close(predict->stage[s].engine);
        tess_comm_close(predict->stage[s].comm);
    }
    virtual_unmap(predict->world.space, predict->world.space_bytes);
    virtual_world_fini(&predict->world);
    for (int32_t s = 0; predict->world.rank != NULL && s < stages; s++) {
        free(predict->world.rank[s].lost_s);
        free(predict->world.rank[s].event);
        free(predict->world.rank[s].calls.span);
        free(predict->world.rank[s].waits.span);
        free(predict->world.rank[s].stops.stop);
        virtual_fences_free(predict->world.rank[s].fences);
        free(predict->world.rank[s].act);
        virtual_units_free(&predict->world.rank[s]);
        virtual_watch_close(&predict->world.rank[s]);
    }
    free(predict->world.rank);
    free(predict->stage);
}

/* ---- the result ------------------------------------------------------------------------------ */

static void stage_stretch(struct tess_prediction_stage *stage, double stretch, double step_s)
{
    double exposed_s = 0, work_s = 0;
    double *const work[] = {&stage->data_s,  &stage->forward_s, &stage->backward_s,
                            &stage->optim_s, &stage->product_s, &stage->pass_s};
    for (size_t i = 0; i < sizeof(work) / sizeof(*work); i++)
        *work[i] *= stretch;
    work_s = stage->product_s + stage->pass_s;
    for (int group = 0; group < TESS_PREDICT_GROUPS; group++)
        exposed_s += stage->exposed_s[group];
    const double left = exposed_s > 0 ? fmax(0, step_s - work_s) / exposed_s : 0;
    for (int group = 0; group < TESS_PREDICT_GROUPS; group++)
        stage->exposed_s[group] *= left;
    stage->bubble_s *= left;
    stage->step_s = step_s;
}

static double stage_busy_s(const struct tess_prediction_stage *stage)
{
    return stage->product_s + stage->pass_s;
}

/* Stages that take turns on cores: their work takes longer, and the rest of the step is waiting. */
static enum tess_status predict_turns(struct predict *predict, struct tess_prediction *out)
{
    const int32_t stages = out->stage_count;
    for (int32_t s = 0; s < stages; s++)
        out->stage[s].processor_s /= predict->turns;
    if (!predict->world.together)
        return TESS_OK;
    const double step_s = virtual_crowd(&predict->world);
    if (step_s <= 0)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the times of %d stages", stages);
    for (int32_t s = 0; s < stages; s++)
        stage_stretch(&out->stage[s], predict->world.rank[s].stretch, step_s);
    return TESS_OK;
}

static void predict_sum_up(const struct predict *predict, struct tess_prediction *out)
{
    for (int32_t s = 0; s < out->stage_count; s++) {
        const struct tess_prediction_stage *stage = &out->stage[s];
        out->step_s = fmax(out->step_s, stage->step_s);
        if (stage_busy_s(stage) > stage_busy_s(&out->stage[out->slowest]))
            out->slowest = s;
        if (stage->memory_total > out->stage[out->fullest].memory_total)
            out->fullest = s;
        for (int group = 0; group < TESS_PREDICT_GROUPS; group++)
            if (stage->sent_bytes[group] > out->sent_bytes[group])
                out->sent_bytes[group] = stage->sent_bytes[group];
    }
    const struct predict_stage *slowest = &predict->stage[out->slowest];
    int32_t units;
    out->loss =
        virtual_loss(slowest->rank, slowest->out, tess_engine_unit_names(slowest->engine, &units));
}

static int timeline_order(const void *a, const void *b)
{
    const struct tess_trace_event *x = a, *y = b;
    if (x->begin_s != y->begin_s)
        return x->begin_s < y->begin_s ? -1 : 1;
    return (x->kind > y->kind) - (x->kind < y->kind);
}

/* The stages' events, on one clock, become the prediction's. */
static enum tess_status predict_timelines(const struct predict *predict,
                                          struct tess_prediction *out)
{
    double begin_s = predict->stage[0].begin_s;
    for (int32_t s = 1; s < out->stage_count; s++)
        begin_s = fmin(begin_s, predict->stage[s].begin_s);
    for (int32_t s = 0; s < out->stage_count; s++) {
        struct virtual_rank *rank = predict->stage[s].rank;
        for (int32_t i = 0; i < rank->event_count; i++) {
            rank->event[i].begin_s -= begin_s;
            rank->event[i].end_s -= begin_s;
        }
        if (rank->event != NULL)
            qsort(rank->event, (size_t)rank->event_count, sizeof(*rank->event), timeline_order);
        out->stage[s].event = rank->event;
        out->stage[s].event_count = rank->event_count;
        rank->event = NULL;
        TESS_TRY(virtual_watch_lines(rank, predict->stage[s].engine, begin_s, &out->stage[s]));
    }
    return TESS_OK;
}

/* Devices whose peak the ranks could reach: cores that their threads use, else one of each rank. */
static double predict_devices(const struct predict *predict, const struct tess_profile *profile)
{
    const double threads = (double)predict->here * predict->config.threads;
    const double hosts = (double)predict->config.run.ranks / predict->here;
    return hosts * (profile->cores < 1 ? predict->here : fmin(threads, profile->cores));
}

static enum tess_status predict_flops(const struct predict *predict,
                                      const struct tess_dataset *dataset,
                                      const struct tess_profile *profile,
                                      struct tess_prediction *out)
{
    struct tess_flops row;
    const double peak = profile->flops_per_s[tess_peak_type_of(&predict->config)];
    TESS_TRY(tess_flops_count(&predict->config, dataset, &row));
    out->flops = tess_flops_causal(&row) * (double)predict->config.run.batch_size;
    out->mfu = tess_flops_utilisation(out->flops / out->step_s, 1,
                                      predict_devices(predict, profile) * peak);
    return TESS_OK;
}

static enum tess_status predict_all(struct predict *predict, const struct tess_dataset *dataset,
                                    const struct tess_profile *profile, struct tess_prediction *out)
{
    for (int32_t s = 0; s < out->stage_count; s++) {
        predict->stage[s].out = &out->stage[s];
        TESS_TRY(predict_plan(predict, dataset, s));
    }
    predict_touched(predict);
    if (predict->kernel.far_memory)
        TESS_TRY(predict_map(predict));
    TESS_TRY(predict_run(predict));
    TESS_TRY(predict_turns(predict, out));
    predict_sum_up(predict, out);
    TESS_TRY(predict_timelines(predict, out));
    return predict_flops(predict, dataset, profile, out);
}

enum tess_status tess_predict_timeline(const struct tess_config *config,
                                       const struct tess_dataset *dataset,
                                       const struct tess_profile *profile,
                                       const struct tess_network *network, int32_t event_max,
                                       struct tess_prediction *prediction_out)
{
    TESS_TRY(tess_profile_check(profile));
    TESS_TRY(predict_refuse(config));
    struct tess_prediction out = {.stage_count = config->mesh.count[TESS_AXIS_STAGE]};
    struct predict *predict = calloc(1, sizeof(*predict)); /* a configuration has long texts */
    out.stage = calloc((size_t)out.stage_count, sizeof(*out.stage));
    enum tess_status status = predict != NULL && out.stage != NULL
                                  ? TESS_OK
                                  : tess_fail(TESS_ERR_MEMORY, "no memory for a prediction");
    if (status == TESS_OK) {
        predict->event_max = event_max;
        status = predict_new(config, profile, network, predict);
    }
    if (status == TESS_OK)
        status = predict_all(predict, dataset, profile, &out);
    if (predict != NULL)
        predict_close(predict);
    free(predict);
    if (status != TESS_OK)
        tess_prediction_fini(&out);
    else
        *prediction_out = out;
    return status;
}

enum tess_status tess_predict_step(const struct tess_config *config,
                                   const struct tess_dataset *dataset,
                                   const struct tess_profile *profile,
                                   const struct tess_network *network,
                                   struct tess_prediction *prediction_out)
{
    return tess_predict_timeline(config, dataset, profile, network, 0, prediction_out);
}

void tess_prediction_fini(struct tess_prediction *prediction)
{
    for (int32_t s = 0; prediction->stage != NULL && s < prediction->stage_count; s++) {
        free(prediction->stage[s].event);
        free(prediction->stage[s].live);
    }
    free(prediction->stage);
    prediction->stage = NULL;
}
