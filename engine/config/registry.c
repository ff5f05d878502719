/*
 * Parts by name: expands the list headers of strategies, models, kernels, optimizers and
 * communicators, keeps the parts that outsiders add, and fills empty slots with defaults so that
 * callers never test for NULL. The only file of the engine that refers to parts, and it does so by
 * list, not by name.
 */
#include "config/registry.h"

#include "base/options.h"
#include "device/device.h"
#include "tessera/check.h"
#include "tessera/version.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define REGISTRY_PARTS_MAX 64

#define REGISTRY_JOIN_(a, b) a##b
#define REGISTRY_JOIN(a, b)  REGISTRY_JOIN_(a, b)

/* Declare the built parts. */
#define REGISTRY_DECLARE_1(kind, name) extern const struct tess_##kind##_ops tess_##kind##_##name;
#define REGISTRY_DECLARE_0(kind, name)
/* In a loadable module (device/device.c), which is searched for when the part is first used. */
#define REGISTRY_DECLARE_MODULE(kind, name)
#define REGISTRY_DECLARE(kind, name, built)  REGISTRY_JOIN(REGISTRY_DECLARE_, built)(kind, name)
#define TESS_STRATEGY(name, built, hint)     REGISTRY_DECLARE(strategy, name, built)
#define TESS_STRATEGY_DEFAULT                TESS_STRATEGY
#define TESS_MODEL(name, built, hint)        REGISTRY_DECLARE(model, name, built)
#define TESS_KERNEL(name, built, hint)       REGISTRY_DECLARE(kernel, name, built)
#define TESS_OPTIMIZER(name, built, hint)    REGISTRY_DECLARE(optimizer, name, built)
#define TESS_COMMUNICATOR(name, built, hint) REGISTRY_DECLARE(communicator, name, built)
#include "comm/list.h"
#include "kernels/list.h"
#include "models/list.h"
#include "optim/list.h"
#include "strategies/list.h"
#undef TESS_STRATEGY
#undef TESS_MODEL
#undef TESS_KERNEL
#undef TESS_OPTIMIZER
#undef TESS_COMMUNICATOR

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
#define REGISTRY_ENTRY(kind, part, built, why)                                                     \
    {.name = #part,                                                                                \
     .hint = why,                                                                                  \
     .ops = REGISTRY_JOIN(REGISTRY_OPS_, built)(kind, part),                                       \
     .module = REGISTRY_JOIN(REGISTRY_IS_MODULE_, built)},
#define TESS_STRATEGY(name, built, hint)     REGISTRY_ENTRY(strategy, name, built, hint)
#define TESS_MODEL(name, built, hint)        REGISTRY_ENTRY(model, name, built, hint)
#define TESS_KERNEL(name, built, hint)       REGISTRY_ENTRY(kernel, name, built, hint)
#define TESS_OPTIMIZER(name, built, hint)    REGISTRY_ENTRY(optimizer, name, built, hint)
#define TESS_COMMUNICATOR(name, built, hint) REGISTRY_ENTRY(communicator, name, built, hint)

static const struct registry_entry registry_strategy_list[] = {
#include "strategies/list.h"
    {.name = NULL}};
static const struct registry_entry registry_model_list[] = {
#include "models/list.h"
    {.name = NULL}};
static const struct registry_entry registry_kernel_list[] = {
#include "kernels/list.h"
    {.name = NULL}};
static const struct registry_entry registry_optimizer_list[] = {
#include "optim/list.h"
    {.name = NULL}};
static const struct registry_entry registry_communicator_list[] = {
#include "comm/list.h"
    {.name = NULL}};

/* The first fields of every ops struct. */
struct registry_head {
    uint32_t abi;
    const char *name;
    const char *summary;
};

#define REGISTRY_HEAD_IS(ops)                                                                      \
    (offsetof(struct ops, abi) == offsetof(struct registry_head, abi) &&                           \
     offsetof(struct ops, name) == offsetof(struct registry_head, name) &&                         \
     offsetof(struct ops, summary) == offsetof(struct registry_head, summary))
_Static_assert(REGISTRY_HEAD_IS(tess_strategy_ops) && REGISTRY_HEAD_IS(tess_model_ops) &&
                   REGISTRY_HEAD_IS(tess_kernel_ops) && REGISTRY_HEAD_IS(tess_optimizer_ops) &&
                   REGISTRY_HEAD_IS(tess_communicator_ops),
               "every ops struct begins with abi, name, summary");

/*
 * The filled copies. The only process-wide state of the engine: parts are added before threads
 * start and looked up afterwards.
 */
static struct {
    bool ready;
    struct tess_strategy_ops strategy[REGISTRY_PARTS_MAX];
    struct tess_model_ops model[REGISTRY_PARTS_MAX];
    struct tess_kernel_ops kernel[REGISTRY_PARTS_MAX];
    struct tess_optimizer_ops optimizer[REGISTRY_PARTS_MAX];
    struct tess_communicator_ops communicator[REGISTRY_PARTS_MAX];
    const struct registry_head *part[TESS_REGISTRY_KIND_COUNT][REGISTRY_PARTS_MAX];
    int count[TESS_REGISTRY_KIND_COUNT];
    /* The result of tess_registry_names: the above, and parts in modules not yet loaded. */
    const char *listed[TESS_REGISTRY_KIND_COUNT][REGISTRY_PARTS_MAX];
} registry;

static const char *const registry_kind_name[] = {"strategy", "model", "kernel", "optimizer",
                                                 "communicator"};
static const struct registry_entry *const registry_list[] = {
    registry_strategy_list, registry_model_list, registry_kernel_list, registry_optimizer_list,
    registry_communicator_list};

/* ---- defaults ------------------------------------------------------------------------------- */

static const struct tess_option registry_no_options[] = {{.name = NULL}};

static enum tess_status registry_check(const void *options, int32_t rank_count, int32_t accumulate)
{
    (void)options, (void)rank_count, (void)accumulate;
    return TESS_OK;
}

static enum tess_status registry_check_own(const void *options)
{
    (void)options;
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

static bool registry_usable(const void *options, char *why, size_t why_bytes)
{
    (void)options, (void)why, (void)why_bytes;
    return true;
}

static enum tess_status registry_check_order(const void *options,
                                             const struct tess_communicator_ops *chosen,
                                             enum tess_order order)
{
    (void)options, (void)chosen, (void)order;
    return TESS_OK;
}

static void registry_describe_options(const void *options, char *text, size_t text_bytes)
{
    (void)options;
    snprintf(text, text_bytes, "%s", "");
}

/* ---- adding ---------------------------------------------------------------------------------- */

/* A place for a part, if it may be added: its filled copy is to begin at `copy`. */
static enum tess_status registry_claim(enum tess_registry_kind kind, const void *ops, bool complete,
                                       const void *copy)
{
    const struct registry_head *head = ops;
    const char *what = registry_kind_name[kind];
    if (head->name == NULL || head->name[0] == '\0')
        TESS_FAIL(TESS_ERR_USAGE, "a %s without a name cannot be registered", what);
    if (head->abi != TESS_ABI)
        TESS_FAIL(
            TESS_ERR_USAGE,
            "%s '%s' was built for ABI %u, this library has %u: build it again with its headers",
            what, head->name, head->abi, TESS_ABI);
    if (!complete || head->summary == NULL)
        TESS_FAIL(TESS_ERR_USAGE, "%s '%s' leaves a required slot empty", what, head->name);
    for (int i = 0; i < registry.count[kind]; i++)
        if (strcmp(registry.part[kind][i]->name, head->name) == 0)
            TESS_FAIL(TESS_ERR_USAGE, "there is a %s '%s' already", what, head->name);
    if (registry.count[kind] == REGISTRY_PARTS_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "more than %d parts of kind %s", REGISTRY_PARTS_MAX, what);
    registry.part[kind][registry.count[kind]++] = copy;
    return TESS_OK;
}

/* Each axis has slots of its own that must be filled. */
static bool registry_is_complete(const struct tess_strategy_ops *ops)
{
    switch (ops->axis) {
    case TESS_AXIS_DATA:
        return ops->plan != NULL;
    case TESS_AXIS_TENSOR:
        return ops->cross != NULL;
    case TESS_AXIS_STAGE:
        return ops->chunk_count != NULL && ops->cut != NULL && ops->order != NULL;
    case TESS_AXIS_COUNT:
        break;
    }
    return false;
}

static enum tess_status registry_put_strategy(const void *part)
{
    const struct tess_strategy_ops *ops = part;
    struct tess_strategy_ops *copy = &registry.strategy[registry.count[TESS_REGISTRY_STRATEGY]];
    TESS_TRY(registry_claim(TESS_REGISTRY_STRATEGY, ops, registry_is_complete(ops), copy));
    *copy = *ops;
    registry_fill_strategy(copy);
    return TESS_OK;
}

static enum tess_status registry_put_model(const void *part)
{
    const struct tess_model_ops *ops = part;
    struct tess_model_ops *copy = &registry.model[registry.count[TESS_REGISTRY_MODEL]];
    TESS_TRY(registry_claim(TESS_REGISTRY_MODEL, ops, ops->declare && ops->forward && ops->backward,
                            copy));
    *copy = *ops;
    REGISTRY_DEFAULT(copy->options, registry_no_options);
    return TESS_OK;
}

static enum tess_status registry_put_kernel(const void *part)
{
    const struct tess_kernel_ops *ops = part;
    struct tess_kernel_ops *copy = &registry.kernel[registry.count[TESS_REGISTRY_KERNEL]];
    TESS_TRY(registry_claim(TESS_REGISTRY_KERNEL, ops,
                            !ops->far_memory || (ops->alloc && ops->free), copy));
    *copy = *ops; /* tess_kernel_open fills the optional slots */
    return TESS_OK;
}

static enum tess_status registry_put_optimizer(const void *part)
{
    const struct tess_optimizer_ops *ops = part;
    struct tess_optimizer_ops *copy = &registry.optimizer[registry.count[TESS_REGISTRY_OPTIMIZER]];
    const bool complete = (ops->kind == TESS_UPDATE_OWN) == (ops->loop != NULL) &&
                          ops->kind != TESS_UPDATE_AVERAGE && ops->state_arrays >= 0 &&
                          ops->state_arrays <= 2 && (!ops->trust_ratio || ops->state_arrays == 2);
    TESS_TRY(registry_claim(TESS_REGISTRY_OPTIMIZER, ops, complete, copy));
    *copy = *ops;
    REGISTRY_DEFAULT(copy->options, registry_no_options);
    REGISTRY_DEFAULT(copy->check, registry_check_own);
    return TESS_OK;
}

static enum tess_status registry_put_communicator(const void *part)
{
    const struct tess_communicator_ops *ops = part;
    struct tess_communicator_ops *copy =
        &registry.communicator[registry.count[TESS_REGISTRY_COMMUNICATOR]];
    TESS_TRY(registry_claim(TESS_REGISTRY_COMMUNICATOR, ops,
                            ops->open != NULL && (ops->host | ops->device) != 0, copy));
    *copy = *ops;
    REGISTRY_DEFAULT(copy->options, registry_no_options);
    REGISTRY_DEFAULT(copy->usable, registry_usable);
    REGISTRY_DEFAULT(copy->check, registry_check_order);
    REGISTRY_DEFAULT(copy->describe, registry_describe_options);
    return TESS_OK;
}

static enum tess_status (*const registry_put[])(const void *ops) = {
    registry_put_strategy, registry_put_model, registry_put_kernel, registry_put_optimizer,
    registry_put_communicator};

/* Built-in parts first. Their structs are right by construction, so a failure is only logged. */
static void registry_prepare(void)
{
    if (registry.ready)
        return;
    registry.ready = true;
    for (int kind = 0; kind < TESS_REGISTRY_KIND_COUNT; kind++)
        for (const struct registry_entry *e = registry_list[kind]; e->name != NULL; e++)
            if (e->ops != NULL)
                (void)registry_put[kind](e->ops);
}

/* A part in a module is added when it is first used. */
static enum tess_status registry_load(const struct registry_entry *entry)
{
    char why[1024];
    const struct tess_module *module = tess_module_find(entry->name, why, sizeof(why));
    if (module == NULL)
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

enum tess_status tess_registry_add_kernel(const struct tess_kernel_ops *ops)
{
    registry_prepare();
    return registry_put_kernel(ops);
}

enum tess_status tess_registry_add_optimizer(const struct tess_optimizer_ops *ops)
{
    registry_prepare();
    return registry_put_optimizer(ops);
}

enum tess_status tess_registry_add_communicator(const struct tess_communicator_ops *ops)
{
    registry_prepare();
    return registry_put_communicator(ops);
}

/* ---- finding --------------------------------------------------------------------------------- */

static int registry_index(enum tess_registry_kind kind, const char *name)
{
    for (int i = 0; i < registry.count[kind]; i++)
        if (strcmp(registry.part[kind][i]->name, name) == 0)
            return i;
    return -1;
}

static enum tess_status registry_find(enum tess_registry_kind kind, const char *name,
                                      const void **ops_out)
{
    registry_prepare();
    int found = registry_index(kind, name);
    for (const struct registry_entry *e = registry_list[kind]; found < 0 && e->name != NULL; e++) {
        if (!e->module || strcmp(e->name, name) != 0)
            continue;
        TESS_TRY(registry_load(e));
        found = registry_index(kind, name);
    }
    if (found >= 0) {
        *ops_out = registry.part[kind][found];
        return TESS_OK;
    }
    for (const struct registry_entry *e = registry_list[kind]; e->name != NULL; e++)
        if (e->ops == NULL && strcmp(e->name, name) == 0)
            TESS_FAIL(TESS_ERR_USAGE, "%s '%s' is known but not built: %s",
                      registry_kind_name[kind], name, e->hint);
    int count = 0;
    const char *const *listed = tess_registry_names(kind, &count);
    char known[512] = "";
    for (int i = 0, at = 0; i < count && at < (int)sizeof(known); i++)
        at += snprintf(known + at, sizeof(known) - (size_t)at, "%s%s", i ? ", " : "", listed[i]);
    const char *near = tess_nearest_word(name, listed, count);
    TESS_FAIL(TESS_ERR_USAGE, "unknown %s '%s'%s%s%s; known are %s", registry_kind_name[kind], name,
              near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "", known);
}

enum tess_status tess_registry_get_strategy(const char *name,
                                            const struct tess_strategy_ops **ops_out)
{
    const void *ops = NULL;
    TESS_TRY(registry_find(TESS_REGISTRY_STRATEGY, name, &ops));
    *ops_out = ops;
    return TESS_OK;
}

enum tess_status tess_registry_get_model(const char *name, const struct tess_model_ops **ops_out)
{
    const void *ops = NULL;
    TESS_TRY(registry_find(TESS_REGISTRY_MODEL, name, &ops));
    *ops_out = ops;
    return TESS_OK;
}

enum tess_status tess_registry_get_kernel(const char *name, const struct tess_kernel_ops **ops_out)
{
    const void *ops = NULL;
    TESS_TRY(registry_find(TESS_REGISTRY_KERNEL, name, &ops));
    *ops_out = ops;
    return TESS_OK;
}

enum tess_status tess_registry_get_optimizer(const char *name,
                                             const struct tess_optimizer_ops **ops_out)
{
    const void *ops = NULL;
    TESS_TRY(registry_find(TESS_REGISTRY_OPTIMIZER, name, &ops));
    *ops_out = ops;
    return TESS_OK;
}

const struct tess_strategy_ops *tess_registry_strategy_of_word(const char *word)
{
    registry_prepare();
    for (int i = 0; i < registry.count[TESS_REGISTRY_STRATEGY]; i++)
        if (registry.strategy[i].word != NULL && strcmp(registry.strategy[i].word, word) == 0)
            return &registry.strategy[i];
    return NULL;
}

enum tess_status tess_registry_get_communicator(const char *name,
                                                const struct tess_communicator_ops **ops_out)
{
    const void *ops = NULL;
    TESS_TRY(registry_find(TESS_REGISTRY_COMMUNICATOR, name, &ops));
    *ops_out = ops;
    return TESS_OK;
}

const char *const *tess_registry_names(enum tess_registry_kind kind, int *count_out)
{
    registry_prepare();
    int count = 0;
    for (int i = 0; i < registry.count[kind]; i++)
        registry.listed[kind][count++] = registry.part[kind][i]->name;
    for (const struct registry_entry *e = registry_list[kind]; e->name != NULL; e++)
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
    if (i >= 0)
        return registry.part[kind][i]->summary;
    for (const struct registry_entry *e = registry_list[kind]; e->name != NULL; e++)
        if (e->module && strcmp(e->name, name) == 0)
            return e->hint;
    return "";
}
