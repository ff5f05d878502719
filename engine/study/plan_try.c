/* One layout: is it legal, what does it keep, how long does a step take; see plan.h. */
#include "study/plan.h"

#include "base/options.h"
#include "core/engine.h"
#include "core/flops.h"
#include "job/run.h"
#include "tessera/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory and a coarse time ---------------------------------------------------------------- */

/* Kinds that lie beside the arena, in the host's memory. */
static uint64_t try_device_bytes(const struct tess_job_memory *memory)
{
    return memory->total - memory->bytes[TESS_MEMORY_STAGING] -
           memory->bytes[TESS_MEMORY_REDUNDANCY];
}

/* How much longer the largest virtual stage takes than their mean, by whole units. */
static double try_imbalance(const struct tess_config *config,
                            const struct tess__plan_layout *layout,
                            const struct tess_engine *engine)
{
    int32_t units = 0;
    const int64_t stages =
        config->mesh.count[TESS_AXIS_STAGE] * (layout->chunks > 1 ? layout->chunks : 1);
    (void)tess_engine_unit_names(engine, &units);
    return (double)((units + stages - 1) / stages * stages) / units;
}

/*
 * Operations at the profile's best rate, memory passes over what the optimizer keeps, and what is
 * sent at the speed of its axis' links; of the data axis' half the time is taken to be hidden. It
 * ranks layouts before their steps are predicted, and nothing of it is shown where they are.
 */
static double try_coarse_s(const struct tess__plan *plan, const struct tess_config *config,
                           const struct tess__plan_layout *layout, const struct tess_engine *engine,
                           const uint64_t sent_bytes[TESS_AXIS_COUNT])
{
    const enum tess_peak_type type = tess_peak_type_of(config);
    const double peak = plan->profile.flops_per_s[type] * plan->profile.efficiency[type];
    const double again =
        config->recompute == TESS_RECOMPUTE_FULL ? 1 + 1.0 / (3 * config->recompute_every) : 1;
    double work_s = plan->row_flops * (double)plan->batch_size * again / (double)config->run.ranks /
                    (peak > 0 ? peak : 1e12);
    double share = 0, exposed_s = 0;
    work_s *= try_imbalance(config, layout, engine);
    struct tess_network network;
    tess_network_make(&plan->cluster, &config->mesh, &network);
    const struct tess_strategy_ops *stage = config->axis[TESS_AXIS_STAGE];
    if (stage != NULL && config->mesh.count[TESS_AXIS_STAGE] > 1 &&
        (stage->idle_share(config->axis_options[TESS_AXIS_STAGE],
                           config->mesh.count[TESS_AXIS_STAGE], (int32_t)config->run.accumulate,
                           NULL, NULL, &share) != TESS_OK ||
         isnan(share)))
        share = 0;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        const double bytes = (double)sent_bytes[axis];
        const int32_t k = config->mesh.count[axis];
        if (k < 2)
            continue;
        /* All-gathers of so much that a rank sends these bytes. */
        const double s = tess_network_s(&network, axis, TESS_COLLECTIVE_ALL_GATHER, TESS_ORDER_FAST,
                                        k, bytes * k / (k - 1));
        exposed_s += axis == TESS_AXIS_DATA ? fmax(s - work_s / 2, s / 20) : s;
    }
    const struct tess_job_memory *memory = &layout->memory;
    const double kept =
        (double)(memory->bytes[TESS_MEMORY_MASTER] + memory->bytes[TESS_MEMORY_OPTIMIZER] +
                 memory->bytes[TESS_MEMORY_GRADIENT]);
    work_s += 2 * kept / plan->profile.bytes_per_s;
    return work_s / (1 - (share < 0.99 ? share : 0.99)) + exposed_s;
}

/* The rank is planned, or planned again where *engine is one that differs in recompute alone. */
static enum tess_status try_rank(const struct tess__plan *plan, const struct tess_config *config,
                                 int32_t rank, struct tess_engine **planned,
                                 struct tess__plan_layout *layout)
{
    if (*planned == NULL) {
        tess__plan_work(tess__plan_here(plan))->planned++;
        TESS_TRY(tess_engine_plan_sizes(config, plan->dataset, rank, planned));
    } else {
        TESS_TRY(tess_engine_replan(*planned));
    }
    const struct tess_engine *engine = *planned;
    const struct tess_job_memory memory = tess__run_memory(tess_engine_memory(engine));
    if (try_device_bytes(&memory) > layout->device_bytes) {
        layout->memory = memory;
        layout->device_bytes = try_device_bytes(&memory);
    }
    uint64_t bytes[TESS_AXIS_COUNT];
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        bytes[axis] = tess_engine_axis_formula(engine, (enum tess_axis)axis);
        if (bytes[axis] > layout->sent_bytes[axis])
            layout->sent_bytes[axis] = bytes[axis];
    }
    if (rank == 0)
        layout->coarse_s = try_coarse_s(plan, config, layout, engine, bytes);
    return TESS_OK;
}

bool tess__plan_fits(const struct tess__plan *plan, const struct tess__plan_layout *layout)
{
    return plan->memory_limit <= 0 || (double)layout->device_bytes <= plan->memory_limit;
}

static void try_begin(struct tess__plan_layout *layout)
{
    layout->device_bytes = 0;
}

static void try_end(const struct tess__plan *plan, struct tess__plan_layout *layout)
{
    layout->step_s = layout->coarse_s;
    layout->flops = plan->row_flops * (double)plan->batch_size;
}

/* Of every stage, and of ranks that are alike in it one. */
static enum tess_status try_all_ranks(const struct tess__plan *plan,
                                      struct tess__plan_layout *layout)
{
    const struct tess_config *config;
    TESS_TRY(tess__plan_configure(plan, layout, &config));
    const int32_t *count = config->mesh.count;
    try_begin(layout);
    for (int32_t s = 0; s < count[TESS_AXIS_STAGE]; s++)
        for (int32_t d = 0; d < (count[TESS_AXIS_DATA] > 1 ? 2 : 1); d++)
            for (int32_t t = 0; t < (count[TESS_AXIS_TENSOR] > 1 ? 2 : 1); t++) {
                const int32_t at[TESS_AXIS_COUNT] = {
                    [TESS_AXIS_DATA] = d, [TESS_AXIS_TENSOR] = t, [TESS_AXIS_STAGE] = s};
                struct tess_engine *engine = NULL;
                TESS_TRY(
                    try_rank(plan, config, tess_mesh_rank(&config->mesh, at), &engine, layout));
                tess_engine_close(engine);
            }
    try_end(plan, layout);
    return TESS_OK;
}

/* The first rank and the last stage's first one; `engine`: of both, or NULL. */
static enum tess_status try_ends(const struct tess__plan *plan, const struct tess_config *config,
                                 struct tess__plan_layout *layout, bool brief,
                                 struct tess_engine *engine[2])
{
    const int32_t stages = config->mesh.count[TESS_AXIS_STAGE];
    try_begin(layout);
    for (int end = 0; end < (stages > 1 ? 2 : 1); end++) {
        const int32_t at[TESS_AXIS_COUNT] = {[TESS_AXIS_STAGE] = end == 0 ? 0 : stages - 1};
        layout->partly = brief && end > 0 && !tess__plan_fits(plan, layout);
        if (layout->partly)
            break;
        TESS_TRY(try_rank(plan, config, tess_mesh_rank(&config->mesh, at), &engine[end], layout));
    }
    try_end(plan, layout);
    return TESS_OK;
}

enum tess_status tess__plan_try(const struct tess__plan *plan, struct tess__plan_layout *layout,
                                char why[TESS__PLAN_WHY])
{
    struct tess__log_sink sink;
    const struct tess__log_sink *before = tess__plan_catch(&sink, why);
    const enum tess_status status = try_all_ranks(plan, layout);
    (void)tess__log_redirect(before);
    return status;
}

enum tess_status tess__plan_try_ends(const struct tess__plan *plan,
                                     struct tess__plan_layout *const layout[], int count,
                                     bool brief, int *done_out, char why[TESS__PLAN_WHY])
{
    struct tess__log_sink sink;
    const struct tess__log_sink *before = tess__plan_catch(&sink, why);
    struct tess_engine *engine[2] = {NULL, NULL};
    const struct tess_config *config;
    enum tess_status status = tess__plan_configure(plan, layout[0], &config);
    *done_out = 0;
    while (*done_out < count && status == TESS_OK) {
        if (*done_out > 0)
            status = tess__plan_reconfigure(plan, layout[*done_out]);
        if (status == TESS_OK)
            status = try_ends(plan, config, layout[*done_out], brief, engine);
        *done_out += status == TESS_OK;
    }
    tess_engine_close(engine[0]);
    tess_engine_close(engine[1]);
    (void)tess__log_redirect(before);
    return status;
}

/* ---- the predicted step ---------------------------------------------------------------------- */

static void try_take(const struct tess_prediction *prediction, struct tess__plan_layout *layout)
{
    const struct tess_prediction_stage *stage = &prediction->stage[prediction->slowest];
    layout->predicted = true;
    layout->step_s = prediction->step_s;
    layout->mfu = prediction->mfu;
    layout->flops = prediction->flops;
    layout->exposed_s = 0;
    for (int group = 0; group < TESS_PREDICT_GROUPS; group++) {
        layout->exposed_axis_s[group] = stage->exposed_s[group];
        layout->exposed_s += stage->exposed_s[group];
    }
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        layout->sent_bytes[axis] = prediction->sent_bytes[axis];
    layout->loss = prediction->loss;
}

/* A step of so many micro-batches of the layout's size. */
static enum tess_status try_step(const struct tess__plan *plan, int64_t micros,
                                 const struct tess_network *network,
                                 struct tess__plan_layout *layout)
{
    struct tess__plan part = *plan;
    const struct tess_config *config;
    struct tess_prediction prediction = {0};
    part.batch_size = plan->batch_size / layout->accumulate * micros;
    layout->accumulate = micros;
    TESS_TRY(tess__plan_configure(&part, layout, &config));
    tess__plan_work(tess__plan_here(plan))->predicted++;
    TESS_TRY(tess_predict_step(config, plan->dataset, &plan->profile, network, &prediction));
    try_take(&prediction, layout);
    tess_prediction_fini(&prediction);
    return TESS_OK;
}

static double try_line_at(double short_s, double long_s, double at)
{
    return short_s + (long_s - short_s) * at;
}

/*
 * Micro-batches after the first few of each chunk take turns that are all alike, so that a step's
 * time grows by the same with each of them. Steps of many are not run: two shorter ones, whose
 * pipelines are full, give the line.
 */
static void try_extend(const struct tess__plan_layout *brief, int64_t micros,
                       struct tess__plan_layout *layout)
{
    const double at =
        (double)(micros - brief->accumulate) / (double)(layout->accumulate - brief->accumulate);
    const double work = layout->mfu * layout->step_s / (double)layout->accumulate;
    layout->step_s = try_line_at(brief->step_s, layout->step_s, at);
    layout->exposed_s = try_line_at(brief->exposed_s, layout->exposed_s, at);
    for (int group = 0; group < TESS_PREDICT_GROUPS; group++)
        layout->exposed_axis_s[group] =
            try_line_at(brief->exposed_axis_s[group], layout->exposed_axis_s[group], at);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        layout->sent_bytes[axis] = (uint64_t)try_line_at((double)brief->sent_bytes[axis],
                                                         (double)layout->sent_bytes[axis], at);
    double *const loss_s[] = {&layout->loss.product_s, &layout->loss.pass_s, &layout->loss.launch_s,
                              &layout->loss.bubble_s, &layout->loss.call_s};
    const double brief_s[] = {brief->loss.product_s, brief->loss.pass_s, brief->loss.launch_s,
                              brief->loss.bubble_s, brief->loss.call_s};
    for (size_t i = 0; i < sizeof(brief_s) / sizeof(*brief_s); i++)
        *loss_s[i] = try_line_at(brief_s[i], *loss_s[i], at);
    layout->mfu = work * (double)micros / layout->step_s;
    layout->flops *= (double)micros / (double)layout->accumulate;
    layout->accumulate = micros;
}

static enum tess_status try_network(const struct tess__plan *plan,
                                    const struct tess_network *network,
                                    struct tess__plan_layout *layout)
{
    const int64_t micros = layout->accumulate;
    const int64_t fill =
        2 * (int64_t)layout->count[TESS_AXIS_STAGE] * (layout->chunks > 1 ? layout->chunks : 1);
    int64_t few = 1;
    while (few < fill)
        few *= 2;
    if (micros <= 2 * few || micros % (2 * few) != 0 || plan->grid > 0)
        return try_step(plan, micros, network, layout);
    struct tess__plan_layout brief = *layout, full = *layout;
    TESS_TRY(try_step(plan, few, network, &brief));
    TESS_TRY(try_step(plan, 2 * few, network, &full));
    try_extend(&brief, micros, &full);
    *layout = full;
    return TESS_OK;
}

void tess__plan_order_free(struct tess__plan_order *order)
{
    if (order != NULL)
        free(order->device);
    free(order);
}

/* In the natural order and in the one that was found; the faster one stays. */
static enum tess_status try_order(const struct tess__plan *plan, const struct tess_network *natural,
                                  struct tess__plan_order *order, struct tess__plan_layout *layout)
{
    struct tess__plan_layout before = *layout, after = *layout;
    TESS_TRY(try_network(plan, natural, &before));
    TESS_TRY(try_network(plan, &order->network, &after));
    *layout = after.step_s < before.step_s ? after : before;
    order->natural_s = before.step_s;
    if (after.step_s < before.step_s)
        layout->order = order;
    return TESS_OK;
}

static enum tess_status try_predict(const struct tess__plan *plan, struct tess__plan_layout *layout)
{
    struct tess_network natural;
    struct tess_mesh mesh = {.rank_count = plan->cluster.ranks};
    double bytes[TESS_AXIS_COUNT];
    memcpy(mesh.count, layout->count, sizeof(mesh.count));
    tess_network_make(&plan->cluster, &mesh, &natural);
    if (plan->topology == NULL)
        return try_network(plan, &natural, layout);
    struct tess__plan_order *order = calloc(1, sizeof(*order));
    if (order == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the order of ranks");
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        bytes[axis] = (double)layout->sent_bytes[axis];
    enum tess_status status =
        tess_network_order(&plan->cluster, plan->topology, &mesh, bytes, layout->chunks <= 1,
                           &order->network, &natural, &order->device);
    if (status == TESS_OK)
        status = order->device == NULL ? try_network(plan, &natural, layout)
                                       : try_order(plan, &natural, order, layout);
    if (layout->order == NULL)
        tess__plan_order_free(order);
    return status;
}

enum tess_status tess__plan_predict(const struct tess__plan *plan, struct tess__plan_layout *layout,
                                    char why[TESS__PLAN_WHY])
{
    struct tess__log_sink sink;
    const struct tess__log_sink *before = tess__plan_catch(&sink, why);
    const enum tess_status status = try_predict(plan, layout);
    (void)tess__log_redirect(before);
    return status;
}

/* ---- data ------------------------------------------------------------------------------------ */

/* A plan needs the sizes of a sample, and no file of the data. */
#define TRY_ROWS    ((int64_t)1 << 40)
#define TRY_SIDE    28
#define TRY_CLASSES 10
#define TRY_BYTES   256 /* the least vocabulary; the model's own is in its options */

static void try_declare_data(struct tess__plan *plan, const struct tess_config *config,
                             int64_t train, int64_t test)
{
    const bool tokens = config->model->tokens;
    plan->declared = (struct tess_dataset){
        .tokens = tokens,
        .row = tokens ? tess_shape1(config->loader.length) : tess_shape3(TRY_SIDE, TRY_SIDE, 1),
        .class_count = tokens ? TRY_BYTES : TRY_CLASSES,
        .labels = tokens ? config->loader.length : 1,
        .train = {.count = train},
        .test = {.count = test},
        .deviation = 1,
    };
    plan->dataset = &plan->declared;
}

static enum tess_status try_open_data(struct tess__plan *plan, const struct tess_config *config)
{
    char why[TESS__PLAN_WHY];
    struct tess__log_sink sink;
    int64_t train = TRY_ROWS, test = 0;
    if (tess__run_count_data(config, &train, &test)) {
        try_declare_data(plan, config, train, test);
        return TESS_OK;
    }
    const struct tess__log_sink *before = tess__plan_catch(&sink, why);
    const enum tess_status status = tess__run_open_data(config, &plan->dataset);
    (void)tess__log_redirect(before);
    if (status == TESS_ERR_USAGE)
        TESS_FAIL(TESS_ERR_USAGE, "%s", why);
    if (status != TESS_OK) {
        try_declare_data(plan, config, train, test);
        tess_log(TESS_LOG_INFO, "planned without the data, sizes alone: %s", why);
    }
    return TESS_OK;
}

/* On a command line these would be overruled in silence. A file has them that train takes. */
static enum tess_status try_check_words(struct tess__plan *plan)
{
    static const char *const chosen[] = {"strategy",  "mesh",         "accumulate",
                                         "recompute", "tensor.ranks", "tensor.sequence-parallel"};
    for (size_t i = 0; i < sizeof(chosen) / sizeof(*chosen); i++) {
        const char *value =
            tess_options_peek_arguments(chosen[i], plan->args.count, plan->args.word);
        if (value != NULL)
            TESS_FAIL(TESS_ERR_USAGE,
                      "--%s %.40s: a plan chooses it: leave it out; tessera train --explain "
                      "shows one layout",
                      chosen[i], value);
    }
    return TESS_OK;
}

enum tess_status tess__plan_open(struct tess__plan *plan)
{
    char why[TESS__PLAN_WHY];
    struct tess_flops flops;
    int64_t per_rank = 0;
    struct tess__plan_layout one = {.recompute = "none", .accumulate = 1};
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        one.count[axis] = 1;
    snprintf(one.strategy, sizeof(one.strategy), "%s", tess_config_default_strategy);
    plan->batch_size = 128;
    tess_config_peek_number(plan->args.count, plan->args.word, "batch-size", &plan->batch_size);
    tess_config_peek_number(plan->args.count, plan->args.word, "batch-per-rank", &per_rank);
    tess_config_peek_number(plan->args.count, plan->args.word, "grid", &plan->grid);
    if (per_rank > 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--batch-per-rank %lld: layouts have different numbers of data ranks, and a plan "
                  "compares them with one batch: give --batch-size",
                  (long long)per_rank);
    TESS_TRY(try_check_words(plan));
    TESS_TRY(tess__plan_configs_open(plan, 0));
    const enum tess_status status = tess__plan_config(plan, &one, &plan->first, why);
    if (status != TESS_OK)
        TESS_FAIL(status, "%s", why);
    snprintf(plan->model, sizeof(plan->model), "%s", plan->first->model->name);
    TESS_TRY(try_open_data(plan, plan->first));
    TESS_TRY(tess_flops_count(plan->first, plan->dataset, &flops));
    plan->row_flops = tess_flops_causal(&flops);
    return TESS_OK;
}
