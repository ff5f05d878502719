/* The predicted half of tessera scaling: what strategies send by formula, and the step's time. */
#include "study/scaling.h"

#include "base/options.h"
#include "config/registry.h"
#include "study/product.h"
#include "study/trial.h"
#include "tessera/check.h"

#include <string.h>

/* Rows of a micro-batch of the plan that gives the bytes, which do not depend on them. */
#define PLAN_ROWS 8

const double tess__scaling_ring_bytes[TESS__SCALING_SIZES_MAX] = {1e6, 1e7, 1e8, 1e9, 1e10};

/*
 * How a strategy's communication overlaps with the step. Every segment of parameters goes around
 * the ring `passes` times: an all-reduce is two; a sharded one is gathered for forward and for
 * backward and its gradient reduce-scattered. Two of them, of segment 0, cannot be hidden: the last
 * reduction, and the first gather or the second half of that all-reduce.
 */
static const struct predict_rule {
    const char *strategy;
    const char *overlap;     /* switch that is off where nothing is hidden; NULL: there is none */
    const char *every_micro; /* switch that is on where each micro-batch communicates; or NULL */
    double passes;
    bool every_micro_always;
    bool hides_in_forward;
    bool shards_update;
} predict_rule[TESS__SCALING_STRATEGIES_MAX] = {
    {"ddp", "ddp.overlap", "ddp.sync-every-micro-batch", 2, false, false, false},
    {"fsdp", NULL, NULL, 3, true, true, true},
};

/* False where the strategy has no such switch. */
static bool predict_switch_is(const struct tess_config *config, const char *name, const char *value)
{
    return name && strcmp(tess_options_text(config->options, name), value) == 0;
}

/* From the strategy's plan on two ranks: half of `bytes` is sent, (N-1)/N of it. */
static void predict_read_plan(const struct predict_rule *rule, const struct tess__run *run,
                              struct tess_step_model *model)
{
    const struct tess_plan *plan = tess_engine_plan_of(run->planned);
    double micros =
        rule->every_micro_always || predict_switch_is(run->config, rule->every_micro, "on")
            ? plan->accumulate
            : 1;
    double gradient = (double)tess_dtype_bytes(plan->reduce_dtype);
    double second = rule->shards_update ? (double)tess_dtype_bytes(plan->dtype) : gradient;
    model->bytes = 2 * (double)tess_engine_sent_formula(run->planned);
    model->pass_count = rule->passes * micros * plan->segment_count;
    model->edge_bytes = (gradient + second) * (double)plan->segment[0].count;
    model->edge_count = 2;
    if (predict_switch_is(run->config, rule->overlap, "off"))
        model->window_s = 0;
}

static enum tess_status predict_model(struct tess__scaling *scaling,
                                      const struct predict_rule *rule,
                                      struct tess_step_model *model_out)
{
    const struct tess_times *one = &scaling->measured[0].step;
    struct tess__trial_choice choice = {
        .strategy = rule->strategy,
        .ranks = 2,
        .steps = 1,
        .batch_size = 2 * PLAN_ROWS * scaling->accumulate,
    };
    struct tess__args args;
    struct tess__trial trial = {0};
    enum tess_status status;
    int count = 0;
    const char *const *name = tess_registry_names(TESS_REGISTRY_STRATEGY, &count);
    if (choice.batch_size > scaling->dataset->train.count)
        choice.batch_size = 2 * scaling->accumulate;
    *model_out = (struct tess_step_model){
        .weak = scaling->asked.weak,
        .rows_s = one->data_s + one->forward_s + one->backward_s,
        .window_s = one->backward_s + (rule->hides_in_forward ? one->forward_s : 0),
        .shard_s = rule->shards_update ? one->optim_s : 0,
    };
    model_out->fixed_s = one->total_s - model_out->rows_s - model_out->shard_s;
    /* Options of the measured strategy do not apply to another one. */
    TESS_TRY(tess__product_words(&scaling->args, rule->strategy, name, count, &args));
    TESS_TRY(tess__args_add(&args, "--grid=0"));
    TESS_TRY_GOTO(status, close_trial, tess__trial_open(&trial, &args, &choice, &scaling->dataset));
    predict_read_plan(rule, &trial.run, model_out);

close_trial:
    tess__trial_close(&trial);
    return status;
}

static void predict_curve(const struct tess__scaling *scaling, const struct tess_step_model *model,
                          struct tess__scaling_curve *curve)
{
    int64_t ranks[TESS__SCALING_POINTS_MAX];
    int count = tess__scaling_ranks(scaling->asked.to, ranks);
    double one_s = tess_step_model_s(model, curve->link, 1, NULL);
    for (int i = 0; i < count && ranks[i] <= scaling->rank_limit; i++) {
        struct tess__scaling_predicted *point = &curve->point[curve->count++];
        point->ranks = ranks[i];
        point->step_s = tess_step_model_s(model, curve->link, ranks[i], &point->exposed_s);
        point->speedup = one_s / point->step_s * (scaling->asked.weak ? (double)ranks[i] : 1);
        point->efficiency = point->speedup / (double)ranks[i];
    }
}

enum tess_status tess__scaling_predict(struct tess__scaling *scaling)
{
    scaling->rank_limit =
        scaling->asked.weak ? scaling->asked.to : scaling->batch_size / scaling->accumulate;
    for (int s = 0; s < TESS__SCALING_STRATEGIES_MAX; s++) {
        struct tess_step_model model;
        TESS_TRY(predict_model(scaling, &predict_rule[s], &model));
        for (int l = 0; l < scaling->link_count; l++) {
            struct tess__scaling_curve *curve = &scaling->curve[scaling->curve_count++];
            *curve = (struct tess__scaling_curve){.strategy = predict_rule[s].strategy,
                                                  .link = &scaling->link[l]};
            predict_curve(scaling, &model, curve);
        }
    }
    return TESS_OK;
}
