/* Parts by name: those of the list headers and those that outsiders add, with defaults in empty
 * slots so that callers never test for NULL. The only file of the engine that refers to parts. */
#include "config/registry.h"

#include "base/options.h"
#include "device/device.h"
#include "tessera/check.h"
#include "tessera/version.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define REGISTRY_PARTS_MAX 64

#define REGISTRY_JOIN_(a, b) a##b
#define REGISTRY_JOIN(a, b)  REGISTRY_JOIN_(a, b)

/* The lists are expanded twice, by REGISTRY_PART(kind, constant of the kind, name, built, hint). */
#define TESS_STRATEGY(...)     REGISTRY_PART(strategy, TESS_REGISTRY_STRATEGY, __VA_ARGS__)
#define TESS_STRATEGY_DEFAULT  TESS_STRATEGY
#define TESS_MODEL(...)        REGISTRY_PART(model, TESS_REGISTRY_MODEL, __VA_ARGS__)
#define TESS_KERNEL(...)       REGISTRY_PART(kernel, TESS_REGISTRY_KERNEL, __VA_ARGS__)
#define TESS_OPTIMIZER(...)    REGISTRY_PART(optimizer, TESS_REGISTRY_OPTIMIZER, __VA_ARGS__)
#define TESS_COMMUNICATOR(...) REGISTRY_PART(communicator, TESS_REGISTRY_COMMUNICATOR, __VA_ARGS__)

/* Declare the built parts. A part in a loadable module (device/device.c) is searched for when it is
 * first used. */
#define REGISTRY_DECLARE_1(kind, name) extern const struct tess_##kind##_ops tess_##kind##_##name;
#define REGISTRY_DECLARE_0(kind, name)
#define REGISTRY_DECLARE_MODULE(kind, name)
#define REGISTRY_PART(kind, number, name, built, hint)                                             \
    REGISTRY_JOIN(REGISTRY_DECLARE_, built)(kind, name)
#include "comm/list.h"
#include "kernels/list.h"
#include "models/list.h"
#include "optim/list.h"
#include "strategies/list.h"
#undef REGISTRY_PART

#define REGISTRY_OPS_1(kind, name)      .ops = &tess_##kind##_##name
#define REGISTRY_OPS_0(kind, name)      .ops = NULL
#define REGISTRY_OPS_MODULE(kind, name) .module = true
#define REGISTRY_PART(group, number, part, built, why)                                             \
    {.kind = number, .name = #part, .hint = why, REGISTRY_JOIN(REGISTRY_OPS_, built)(group, part)},

/* What this library was made with, in the order of the lists. */
static const struct registry_entry {
    enum tess_registry_kind kind;
    const char *name;
    const char *hint;
    const void *ops; /* NULL: not built, or in a module of its name */
    bool module;
} registry_list[] = {
#include "comm/list.h"
#include "kernels/list.h"
#include "models/list.h"
#include "optim/list.h"
#include "strategies/list.h"
};

#define REGISTRY_LIST_COUNT (sizeof(registry_list) / sizeof(registry_list[0]))

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

/* Each axis has slots of its own that must be filled. */
static bool registry_fill_strategy(void *part)
{
    struct tess_strategy_ops *ops = part;
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
    if (ops->axis == TESS_AXIS_DATA)
        return ops->plan != NULL;
    if (ops->axis == TESS_AXIS_TENSOR)
        return ops->cross != NULL;
    return ops->axis == TESS_AXIS_STAGE && ops->chunk_count != NULL && ops->cut != NULL &&
           ops->order != NULL;
}

static bool registry_fill_model(void *part)
{
    struct tess_model_ops *ops = part;
    REGISTRY_DEFAULT(ops->options, registry_no_options);
    return ops->declare != NULL && ops->forward != NULL && ops->backward != NULL;
}

/* tess_kernel_open fills the optional slots. */
static bool registry_fill_kernel(void *part)
{
    const struct tess_kernel_ops *ops = part;
    return !ops->far_memory || (ops->alloc != NULL && ops->free != NULL);
}

static bool registry_fill_optimizer(void *part)
{
    struct tess_optimizer_ops *ops = part;
    REGISTRY_DEFAULT(ops->options, registry_no_options);
    REGISTRY_DEFAULT(ops->check, registry_check_own);
    return (ops->kind == TESS_UPDATE_OWN) == (ops->loop != NULL) &&
           ops->kind != TESS_UPDATE_AVERAGE && ops->state_arrays >= 0 && ops->state_arrays <= 2 &&
           (!ops->trust_ratio || ops->state_arrays == 2);
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

static bool registry_fill_communicator(void *part)
{
    struct tess_communicator_ops *ops = part;
    REGISTRY_DEFAULT(ops->options, registry_no_options);
    REGISTRY_DEFAULT(ops->usable, registry_usable);
    REGISTRY_DEFAULT(ops->check, registry_check_order);
    REGISTRY_DEFAULT(ops->describe, registry_describe_options);
    return ops->open != NULL && (ops->host | ops->device) != 0;
}

/* ---- adding ---------------------------------------------------------------------------------- */

/*
 * The filled copies, and below how many there are: the only process-wide state of the engine. Parts
 * are added before threads start and looked up afterwards.
 */
static struct tess_strategy_ops registry_strategy[REGISTRY_PARTS_MAX];
static struct tess_model_ops registry_model[REGISTRY_PARTS_MAX];
static struct tess_kernel_ops registry_kernel[REGISTRY_PARTS_MAX];
static struct tess_optimizer_ops registry_optimizer[REGISTRY_PARTS_MAX];
static struct tess_communicator_ops registry_communicator[REGISTRY_PARTS_MAX];

#define REGISTRY_KIND(kind)                                                                        \
    {                                                                                              \
        .name = #kind, .bytes = sizeof(registry_##kind[0]), .part = registry_##kind,               \
        .fill = registry_fill_##kind                                                               \
    }

static struct registry_kind {
    const char *const name;
    const size_t bytes;             /* of its ops struct */
    void *const part;               /* [count] */
    bool (*const fill)(void *part); /* the empty slots; false where a required one is empty */
    int count;
    /* The result of tess_registry_names: the above, and parts in modules not yet loaded. */
    const char *listed[REGISTRY_PARTS_MAX];
} registry[] = {[TESS_REGISTRY_STRATEGY] = REGISTRY_KIND(strategy),
                [TESS_REGISTRY_MODEL] = REGISTRY_KIND(model),
                [TESS_REGISTRY_KERNEL] = REGISTRY_KIND(kernel),
                [TESS_REGISTRY_OPTIMIZER] = REGISTRY_KIND(optimizer),
                [TESS_REGISTRY_COMMUNICATOR] = REGISTRY_KIND(communicator)};

static struct registry_head *registry_part(enum tess_registry_kind kind, int i)
{
    return (struct registry_head *)((char *)registry[kind].part + (size_t)i * registry[kind].bytes);
}

/* NULL: no part of that name was added. */
static const struct registry_head *registry_added(enum tess_registry_kind kind, const char *name)
{
    for (int i = 0; i < registry[kind].count; i++)
        if (strcmp(registry_part(kind, i)->name, name) == 0)
            return registry_part(kind, i);
    return NULL;
}

static enum tess_status registry_put(enum tess_registry_kind kind, const void *ops)
{
    struct registry_kind *self = &registry[kind];
    const struct registry_head *head = ops;
    if (head->name == NULL || head->name[0] == '\0')
        TESS_FAIL(TESS_ERR_USAGE, "a %s without a name cannot be registered", self->name);
    if (head->abi != TESS_ABI)
        TESS_FAIL(
            TESS_ERR_USAGE,
            "%s '%s' was built for ABI %u, this library has %u: build it again with its headers",
            self->name, head->name, head->abi, TESS_ABI);
    if (self->count == REGISTRY_PARTS_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "more than %d parts of kind %s", REGISTRY_PARTS_MAX, self->name);
    void *copy = memcpy(registry_part(kind, self->count), ops, self->bytes);
    if (!self->fill(copy) || head->summary == NULL)
        TESS_FAIL(TESS_ERR_USAGE, "%s '%s' leaves a required slot empty", self->name, head->name);
    if (registry_added(kind, head->name) != NULL)
        TESS_FAIL(TESS_ERR_USAGE, "there is a %s '%s' already", self->name, head->name);
    self->count++;
    return TESS_OK;
}

/* Their structs are right by construction, so a failure is only logged. */
static void registry_put_built(void)
{
    for (size_t i = 0; i < REGISTRY_LIST_COUNT; i++)
        if (registry_list[i].ops != NULL)
            (void)registry_put(registry_list[i].kind, registry_list[i].ops);
}

/* Built-in parts first, by the first thread that needs one. */
static void registry_prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, registry_put_built);
}

/* ---- finding --------------------------------------------------------------------------------- */

static const struct registry_entry *registry_listed(enum tess_registry_kind kind, const char *name)
{
    for (size_t i = 0; i < REGISTRY_LIST_COUNT; i++)
        if (registry_list[i].kind == kind && strcmp(registry_list[i].name, name) == 0)
            return &registry_list[i];
    return NULL;
}

/* Ranks that are threads look parts up at the same time, and the first use of a module adds one. */
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;

/* A part in a module is added when it is first used. Called with the lock, which is free while the
 * module is opened: opening waits for other threads that open it, and runs code of the module,
 * which may look parts up. */
static enum tess_status registry_load(const struct registry_entry *entry)
{
    char why[1024];
    pthread_mutex_unlock(&registry_lock);
    const struct tess_module *module = tess_module_find(entry->name, why, sizeof(why));
    pthread_mutex_lock(&registry_lock);
    if (registry_added(entry->kind, entry->name) != NULL)
        return TESS_OK;
    if (module == NULL)
        TESS_FAIL(TESS_ERR_USAGE, "kernel '%s' is known but %s: %s", entry->name,
                  tess__module_is_there(entry->name) ? "does not load" : "not built", why);
    return registry_put(TESS_REGISTRY_KERNEL, module->kernel);
}

/* NULL, logged, where there is no such part. */
static const void *registry_find(enum tess_registry_kind kind, const char *name)
{
    registry_prepare();
    const struct registry_head *found = registry_added(kind, name);
    const struct registry_entry *entry = registry_listed(kind, name);
    if (found == NULL && entry != NULL && entry->module) {
        if (registry_load(entry) != TESS_OK)
            return NULL;
        found = registry_added(kind, name);
    }
    if (found != NULL)
        return found;
    if (entry != NULL && entry->ops == NULL) {
        tess_fail(TESS_ERR_USAGE, "%s '%s' is known but not built: %s", registry[kind].name, name,
                  entry->hint);
        return NULL;
    }
    int count = 0;
    const char *const *listed = tess_registry_names(kind, &count);
    char known[512] = "";
    for (int i = 0, at = 0; i < count && at < (int)sizeof(known); i++)
        at += snprintf(known + at, sizeof(known) - (size_t)at, "%s%s", i ? ", " : "", listed[i]);
    const char *near = tess_nearest_word(name, listed, count);
    const bool several = kind == TESS_REGISTRY_STRATEGY && strchr(name, ',') != NULL;
    tess_fail(TESS_ERR_USAGE, "unknown %s '%s'%s%s%s; known are %s%s", registry[kind].name, name,
              near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "", known,
              several ? "; '+' joins several, one for each axis of the mesh" : "");
    return NULL;
}

const struct tess_strategy_ops *tess_registry_strategy_of_word(const char *word)
{
    registry_prepare();
    for (int i = 0; i < registry[TESS_REGISTRY_STRATEGY].count; i++)
        if (registry_strategy[i].word != NULL && strcmp(registry_strategy[i].word, word) == 0)
            return &registry_strategy[i];
    return NULL;
}

/* Threads may read the list while another one makes it again: what stays is not written. */
static void registry_list_part(const char **place, const char *name)
{
    if (*place != name)
        *place = name;
}

const char *const *tess_registry_names(enum tess_registry_kind kind, int *count_out)
{
    registry_prepare();
    const char **listed = registry[kind].listed;
    int count = 0;
    for (; count < registry[kind].count; count++)
        registry_list_part(&listed[count], registry_part(kind, count)->name);
    for (size_t i = 0; i < REGISTRY_LIST_COUNT; i++) {
        const struct registry_entry *entry = &registry_list[i];
        if (entry->kind == kind && entry->module && registry_added(kind, entry->name) == NULL &&
            count < REGISTRY_PARTS_MAX && tess__module_is_there(entry->name))
            registry_list_part(&listed[count++], entry->name);
    }
    *count_out = count;
    return listed;
}

const char *tess_registry_summary(enum tess_registry_kind kind, const char *name)
{
    registry_prepare();
    const struct registry_head *added = registry_added(kind, name);
    const struct registry_entry *entry = registry_listed(kind, name);
    if (added != NULL)
        return added->summary;
    return entry != NULL && entry->module ? entry->hint : "";
}

/* ---- by kind --------------------------------------------------------------------------------- */

/* The public functions, the same for every kind but for their types. */
#define REGISTRY_FUNCTIONS(kind, number)                                                           \
    enum tess_status tess_registry_add_##kind(const struct tess_##kind##_ops *ops)                 \
    {                                                                                              \
        registry_prepare();                                                                        \
        pthread_mutex_lock(&registry_lock);                                                        \
        const enum tess_status status = registry_put(number, ops);                                 \
        pthread_mutex_unlock(&registry_lock);                                                      \
        return status;                                                                             \
    }                                                                                              \
    enum tess_status tess_registry_get_##kind(const char *name,                                    \
                                              const struct tess_##kind##_ops **ops_out)            \
    {                                                                                              \
        pthread_mutex_lock(&registry_lock);                                                        \
        *ops_out = registry_find(number, name);                                                    \
        pthread_mutex_unlock(&registry_lock);                                                      \
        return *ops_out != NULL ? TESS_OK : TESS_ERR_USAGE;                                        \
    }

REGISTRY_FUNCTIONS(strategy, TESS_REGISTRY_STRATEGY)
REGISTRY_FUNCTIONS(model, TESS_REGISTRY_MODEL)
REGISTRY_FUNCTIONS(kernel, TESS_REGISTRY_KERNEL)
REGISTRY_FUNCTIONS(optimizer, TESS_REGISTRY_OPTIMIZER)
REGISTRY_FUNCTIONS(communicator, TESS_REGISTRY_COMMUNICATOR)

bool tess_registry_is_own(enum tess_registry_kind kind, const char *name)
{
    return registry_listed(kind, name) != NULL;
}
