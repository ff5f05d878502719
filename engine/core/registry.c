/*
 * Parts by name: expands the list headers of strategies, models and kernels, keeps what outsiders
 * add, fills empty slots with defaults so that callers never test for NULL. The only place in the
 * engine that refers to parts, and it does so by list, not by name.
 */
#include "core/registry.h"

#include "base/options.h"
#include "core/device.h"
#include "tessera/check.h"
#include "tessera/version.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define REGISTRY_PARTS_MAX 64

#define REGISTRY_JOIN_(a, b) a##b
#define REGISTRY_JOIN(a, b)  REGISTRY_JOIN_(a, b)

/* Declare the built parts. */
#define REGISTRY_STRATEGY_1(name) extern const struct tess_strategy_ops tess_strategy_##name;
#define REGISTRY_MODEL_1(name)    extern const struct tess_model_ops tess_model_##name;
#define REGISTRY_KERNEL_1(name)   extern const struct tess_kernel_ops tess_kernel_##name;
/* In a loadable module (core/device.c): found there when it is asked for. */
#define REGISTRY_KERNEL_MODULE(name)
#define REGISTRY_STRATEGY_0(name)
#define REGISTRY_MODEL_0(name)
#define REGISTRY_KERNEL_0(name)
#define TESS_STRATEGY(name, built, hint) REGISTRY_JOIN(REGISTRY_STRATEGY_, built)(name)
#define TESS_MODEL(name, built, hint)    REGISTRY_JOIN(REGISTRY_MODEL_, built)(name)
#define TESS_KERNEL(name, built, hint)   REGISTRY_JOIN(REGISTRY_KERNEL_, built)(name)
#include "kernels/list.h"
#include "models/list.h"
#include "strategies/list.h"
#undef TESS_STRATEGY
#undef TESS_MODEL
#undef TESS_KERNEL

/* One entry of a list: `ops` is NULL for a part that was not built or is in a module of its name.
 */
struct registry_entry {
    const char *name;
    const char *hint;
    const void *ops;
    bool module;
};

#define REGISTRY_OPS_1(kind, name)      &tess_##kind##_##name
#define REGISTRY_OPS_0(kind, name)      NULL
#define REGISTRY_OPS_MODULE(kind, name) NULL
#define REGISTRY_IS_MODULE_0            false
#define REGISTRY_IS_MODULE_1            false
#define REGISTRY_IS_MODULE_MODULE       true
#define TESS_STRATEGY(part, built, why)                                                            \
    {.name = #part, .hint = why, .ops = REGISTRY_JOIN(REGISTRY_OPS_, built)(strategy, part)},
#define TESS_MODEL(part, built, why)                                                               \
    {.name = #part, .hint = why, .ops = REGISTRY_JOIN(REGISTRY_OPS_, built)(model, part)},
#define TESS_KERNEL(part, built, why)                                                              \
    {.name = #part,                                                                                \
     .hint = why,                                                                                  \
     .ops = REGISTRY_JOIN(REGISTRY_OPS_, built)(kernel, part),                                     \
     .module = REGISTRY_JOIN(REGISTRY_IS_MODULE_, built)},

static const struct registry_entry registry_strategy_list[] = {
#include "strategies/list.h"
    {.name = NULL}};
static const struct registry_entry registry_model_list[] = {
#include "models/list.h"
    {.name = NULL}};
static const struct registry_entry registry_kernel_list[] = {
#include "kernels/list.h"
    {.name = NULL}};

/*
 * The filled copies. The one piece of process-wide state of the engine: parts are added before
 * threads start and looked up afterwards.
 */
static struct {
    bool ready;
    struct tess_strategy_ops strategy[REGISTRY_PARTS_MAX];
    struct tess_model_ops model[REGISTRY_PARTS_MAX];
    struct tess_kernel_ops kernel[REGISTRY_PARTS_MAX];
    const char *name[TESS_REGISTRY_KIND_COUNT][REGISTRY_PARTS_MAX];
    int count[TESS_REGISTRY_KIND_COUNT];
    /* What tess_registry_names answers: the above, and parts in modules not yet loaded. */
    const char *listed[TESS_REGISTRY_KIND_COUNT][REGISTRY_PARTS_MAX];
} registry;

static const char *const registry_kind_name[] = {"strategy", "model", "kernel"};
static const struct registry_entry *const registry_list[] = {
    registry_strategy_list, registry_model_list, registry_kernel_list};

/* ---- defaults ------------------------------------------------------------------------------- */

static const struct tess_option registry_no_options[] = {{.name = NULL}};

static enum tess_status registry_check(const void *options, int32_t rank_count, int32_t accumulate)
{
    (void)options, (void)rank_count, (void)accumulate;
    return TESS_OK;
}

static enum tess_status registry_nothing(struct tess_strategy *strategy)
{
    (void)strategy;
    return TESS_OK;
}

static void registry_close(struct tess_strategy *strategy)
{
    (void)strategy;
}

static enum tess_status registry_batch(struct tess_strategy *strategy,
                                       const struct tess_boundary *input,
                                       const struct tess_boundary *label)
{
    (void)strategy, (void)input, (void)label;
    return TESS_OK;
}

static enum tess_status registry_boundary(struct tess_strategy *strategy,
                                          const struct tess_boundary *boundary)
{
    (void)strategy, (void)boundary;
    return TESS_OK;
}

static enum tess_status registry_unit(struct tess_strategy *strategy, int32_t unit,
                                      enum tess_phase phase)
{
    (void)strategy, (void)unit, (void)phase;
    return TESS_OK;
}

static enum tess_status registry_fold(struct tess_strategy *strategy, int32_t s)
{
    tess_segment_fold(strategy, s);
    return TESS_OK;
}

static void registry_describe(const struct tess_strategy *strategy,
                              void (*line)(void *context, const char *text), void *context)
{
    (void)strategy, (void)line, (void)context;
}

static int32_t registry_wanted(const void *options)
{
    (void)options;
    return 0;
}

static enum tess_status registry_idle(const void *options, int32_t stage_count, int32_t micro_count,
                                      const double *forward_s, const double *backward_s,
                                      double *share_out)
{
    (void)options, (void)stage_count, (void)micro_count, (void)forward_s, (void)backward_s;
    *share_out = NAN;
    return TESS_OK;
}

static uint64_t registry_sent(const struct tess_strategy *strategy)
{
    (void)strategy;
    return 0;
}

#define REGISTRY_DEFAULT(slot, value)                                                              \
    if (!(slot))                                                                                   \
    (slot) = (value)

static void registry_fill_strategy(struct tess_strategy_ops *ops)
{
    REGISTRY_DEFAULT(ops->options, registry_no_options);
    REGISTRY_DEFAULT(ops->check, registry_check);
    REGISTRY_DEFAULT(ops->reserve, registry_nothing);
    REGISTRY_DEFAULT(ops->open, registry_nothing);
    REGISTRY_DEFAULT(ops->close, registry_close);
    REGISTRY_DEFAULT(ops->batch_ready, registry_batch);
    REGISTRY_DEFAULT(ops->output_ready, registry_boundary);
    REGISTRY_DEFAULT(ops->output_grad_ready, registry_boundary);
    REGISTRY_DEFAULT(ops->unit_enter, registry_unit);
    REGISTRY_DEFAULT(ops->unit_leave, registry_unit);
    REGISTRY_DEFAULT(ops->grads_ready, registry_fold);
    REGISTRY_DEFAULT(ops->grads_finish, registry_nothing);
    REGISTRY_DEFAULT(ops->params_refresh, registry_nothing);
    REGISTRY_DEFAULT(ops->wanted_ranks, registry_wanted);
    REGISTRY_DEFAULT(ops->idle_share, registry_idle);
    REGISTRY_DEFAULT(ops->describe, registry_describe);
    REGISTRY_DEFAULT(ops->sent_bytes, registry_sent);
}

/* ---- adding ---------------------------------------------------------------------------------- */

static enum tess_status registry_claim(enum tess_registry_kind kind, const char *name, uint32_t abi,
                                       bool complete, int *index_out)
{
    const char *what = registry_kind_name[kind];
    if (!name || !*name)
        TESS_FAIL(TESS_ERR_USAGE, "a %s without a name cannot be registered", what);
    if (abi != TESS_ABI)
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s '%s' was built for ABI %u, this library has %u: build it again "
                  "with its headers",
                  what, name, abi, TESS_ABI);
    if (!complete)
        TESS_FAIL(TESS_ERR_USAGE, "%s '%s' leaves a required slot empty", what, name);
    for (int i = 0; i < registry.count[kind]; i++)
        if (strcmp(registry.name[kind][i], name) == 0)
            TESS_FAIL(TESS_ERR_USAGE, "there is a %s '%s' already", what, name);
    if (registry.count[kind] == REGISTRY_PARTS_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "more than %d parts of kind %s", REGISTRY_PARTS_MAX, what);
    *index_out = registry.count[kind]++;
    registry.name[kind][*index_out] = name;
    return TESS_OK;
}

/* Each axis has slots of its own that must be filled. */
static bool registry_is_complete(const struct tess_strategy_ops *ops)
{
    switch (ops->axis) {
    case TESS_AXIS_DATA:
        return ops->summary && ops->plan;
    case TESS_AXIS_TENSOR:
        return ops->summary && ops->cross;
    case TESS_AXIS_STAGE:
        return ops->summary && ops->chunk_count && ops->cut && ops->order;
    case TESS_AXIS_COUNT:
        break;
    }
    return false;
}

static enum tess_status registry_put_strategy(const struct tess_strategy_ops *ops)
{
    int i = 0;
    TESS_TRY(
        registry_claim(TESS_REGISTRY_STRATEGY, ops->name, ops->abi, registry_is_complete(ops), &i));
    registry.strategy[i] = *ops;
    registry_fill_strategy(&registry.strategy[i]);
    return TESS_OK;
}

static enum tess_status registry_put_model(const struct tess_model_ops *ops)
{
    int i = 0;
    TESS_TRY(registry_claim(TESS_REGISTRY_MODEL, ops->name, ops->abi,
                            ops->declare && ops->forward && ops->backward && ops->summary, &i));
    registry.model[i] = *ops;
    REGISTRY_DEFAULT(registry.model[i].options, registry_no_options);
    return TESS_OK;
}

static enum tess_status registry_put_kernel(const struct tess_kernel_ops *ops)
{
    int i = 0;
    bool complete = ops->summary && ops->open && ops->close && ops->op_needs && ops->op_open &&
                    ops->op_close && ops->linear_forward && ops->update;
    TESS_TRY(registry_claim(TESS_REGISTRY_KERNEL, ops->name, ops->abi, complete, &i));
    registry.kernel[i] = *ops; /* tess_kernel_open fills the optional slots */
    return TESS_OK;
}

/* Built-in parts first. Their structs are right by construction, so a failure is only logged. */
static void registry_prepare(void)
{
    if (registry.ready)
        return;
    registry.ready = true;
    for (const struct registry_entry *e = registry_strategy_list; e->name; e++)
        if (e->ops)
            (void)registry_put_strategy(e->ops);
    for (const struct registry_entry *e = registry_model_list; e->name; e++)
        if (e->ops)
            (void)registry_put_model(e->ops);
    for (const struct registry_entry *e = registry_kernel_list; e->name; e++)
        if (e->ops)
            (void)registry_put_kernel(e->ops);
}

/* A part in a module becomes one like the others when it is first asked for. */
static enum tess_status registry_load(const struct registry_entry *entry)
{
    char why[1024];
    const struct tess_module *module = tess_module_find(entry->name, why, sizeof why);
    if (!module)
        TESS_FAIL(TESS_ERR_USAGE, "kernel '%s' is known but %s: %s", entry->name,
                  tess__module_is_there(entry->name) ? "does not load" : "not built", why);
    return registry_put_kernel(module->kernel);
}

enum tess_status tess_registry_add_strategy(const struct tess_strategy_ops *ops)
{
    registry_prepare();
    return registry_put_strategy(ops);
}

enum tess_status tess_registry_add_model(const struct tess_model_ops *ops)
{
    registry_prepare();
    return registry_put_model(ops);
}

/* ---- finding --------------------------------------------------------------------------------- */

static int registry_index(enum tess_registry_kind kind, const char *name)
{
    for (int i = 0; i < registry.count[kind]; i++)
        if (strcmp(registry.name[kind][i], name) == 0)
            return i;
    return -1;
}

static enum tess_status registry_find(enum tess_registry_kind kind, const char *name,
                                      int *index_out)
{
    registry_prepare();
    int found = registry_index(kind, name);
    for (const struct registry_entry *e = registry_list[kind]; found < 0 && e->name; e++) {
        if (!e->module || strcmp(e->name, name) != 0)
            continue;
        TESS_TRY(registry_load(e));
        found = registry_index(kind, name);
    }
    if (found >= 0) {
        *index_out = found;
        return TESS_OK;
    }
    for (const struct registry_entry *e = registry_list[kind]; e->name; e++)
        if (!e->ops && strcmp(e->name, name) == 0)
            TESS_FAIL(TESS_ERR_USAGE, "%s '%s' is known but not built: %s",
                      registry_kind_name[kind], name, e->hint);
    int count = 0;
    const char *const *listed = tess_registry_names(kind, &count);
    char known[512] = "";
    for (int i = 0, at = 0; i < count && at < (int)sizeof known; i++)
        at += snprintf(known + at, sizeof known - (size_t)at, "%s%s", i ? ", " : "", listed[i]);
    const char *near = tess_nearest_word(name, listed, count);
    TESS_FAIL(TESS_ERR_USAGE, "unknown %s '%s'%s%s%s; known are %s", registry_kind_name[kind], name,
              near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "", known);
}

enum tess_status tess_registry_get_strategy(const char *name,
                                            const struct tess_strategy_ops **ops_out)
{
    int i = 0;
    TESS_TRY(registry_find(TESS_REGISTRY_STRATEGY, name, &i));
    *ops_out = &registry.strategy[i];
    return TESS_OK;
}

enum tess_status tess_registry_get_model(const char *name, const struct tess_model_ops **ops_out)
{
    int i = 0;
    TESS_TRY(registry_find(TESS_REGISTRY_MODEL, name, &i));
    *ops_out = &registry.model[i];
    return TESS_OK;
}

enum tess_status tess_registry_get_kernel(const char *name, const struct tess_kernel_ops **ops_out)
{
    int i = 0;
    TESS_TRY(registry_find(TESS_REGISTRY_KERNEL, name, &i));
    *ops_out = &registry.kernel[i];
    return TESS_OK;
}

const char *const *tess_registry_names(enum tess_registry_kind kind, int *count_out)
{
    registry_prepare();
    int count = 0;
    for (int i = 0; i < registry.count[kind]; i++)
        registry.listed[kind][count++] = registry.name[kind][i];
    for (const struct registry_entry *e = registry_list[kind]; e->name; e++)
        if (e->module && registry_index(kind, e->name) < 0 && count < REGISTRY_PARTS_MAX &&
            tess__module_is_there(e->name))
            registry.listed[kind][count++] = e->name;
    *count_out = count;
    return registry.listed[kind];
}

const char *tess_registry_summary(enum tess_registry_kind kind, const char *name)
{
    registry_prepare();
    const int i = registry_index(kind, name);
    if (i < 0) {
        for (const struct registry_entry *e = registry_list[kind]; e->name; e++)
            if (e->module && strcmp(e->name, name) == 0)
                return e->hint;
        return "";
    }
    switch (kind) {
    case TESS_REGISTRY_STRATEGY:
        return registry.strategy[i].summary;
    case TESS_REGISTRY_MODEL:
        return registry.model[i].summary;
    case TESS_REGISTRY_KERNEL:
        return registry.kernel[i].summary;
    case TESS_REGISTRY_KIND_COUNT:
        break;
    }
    return "";
}
