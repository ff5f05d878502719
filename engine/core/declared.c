/* Declarations of a model, made or kept; see declared.h. */
#include "core/declared.h"

#include "base/hash.h"
#include "config/precision.h"
#include "core/layout.h"
#include "kernel_open.h"
#include "tessera/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* What one of a model's operations needs of a kernel that has this function; NULL: not known yet.
 * Stays as it is once it is known. */
typedef enum tess_status declared_of(const struct tess_op_desc *desc,
                                     struct tess_op_needs *needs_out);
struct tess_declared_need {
    declared_of *_Atomic of;
    struct tess_op_needs needs;
};

/* What operations follow from beside the model's input. */
struct declared_how {
    uint32_t wide; /* kinds with --f32-ops */
    int32_t fp8, f32_conv;
};

struct declared_cut;

struct tess_declared_one {
    struct tess_declared_one *next;
    bool making; /* by a thread */
    struct tess_model_input input;
    struct declared_how how;
    struct tess_declare model;
    struct tess_declared_need *need; /* [ops of the model] */
    struct declared_cut *cut;
    void *state; /* [state_bytes], mapped */
    size_t state_bytes;
};

struct declared_cut {
    struct declared_cut *next;
    const struct tess_strategy_ops *ops;
    int32_t virtual_count;
    void *options;
    int32_t first[];
};

struct declared_needs {
    declared_of *of;
    struct tess_op_desc desc;
    struct tess_op_needs needs;
};

struct tess_declared {
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t made;
    struct tess_declared_one *first;
    struct declared_needs *needs; /* [needs_room], a power of two, where their hashes say */
    size_t needs_count, needs_room;
    int64_t count;
};

enum tess_status tess_declared_open(struct tess_declared **declared_out)
{
    *declared_out = calloc(1, sizeof(**declared_out));
    if (*declared_out == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for what a model declares");
    pthread_mutex_init(&(*declared_out)->lock, NULL);
    pthread_cond_init(&(*declared_out)->made, NULL);
    return TESS_OK;
}

static void declared_free(struct tess_declared_one *one)
{
    while (one->cut != NULL) {
        struct declared_cut *cut = one->cut;
        one->cut = cut->next;
        free(cut->options);
        free(cut);
    }
    tess_declare_fini(&one->model);
    free(one->need);
    if (one->state != NULL)
        munmap(one->state, one->state_bytes);
    free(one);
}

void tess_declared_close(struct tess_declared *declared)
{
    while (declared != NULL && declared->first != NULL) {
        struct tess_declared_one *one = declared->first;
        declared->first = one->next;
        declared_free(one);
    }
    if (declared == NULL)
        return;
    pthread_mutex_destroy(&declared->lock);
    pthread_cond_destroy(&declared->made);
    free(declared->needs);
    free(declared);
}

int64_t tess_declared_count(const struct tess_declared *declared)
{
    return declared->count;
}

/* ---- one ------------------------------------------------------------------------------------- */

static enum tess_status declared_make(const struct tess_config *config,
                                      const struct tess_model_input *input,
                                      const struct declared_how *how, struct tess_declare *model,
                                      void *state)
{
    model->rows = input->rows;
    model->leaf_rows = input->leaf_rows;
    model->dtype = input->dtype;
    if (state == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the model's state");
    TESS_TRY(tess_declare_model(model, config->model, state, config->model_options, input));
    for (int32_t o = 0; o < model->op_count; o++) {
        struct tess_op_desc *desc = &model->op[o].desc;
        desc->f32_math = desc->dtype != TESS_F32 && (how->wide >> desc->kind & 1) != 0;
        if (desc->kind == TESS_OP_LINEAR && desc->dtype != TESS_F32)
            desc->fp8 = (enum tess_fp8)how->fp8;
        if (desc->kind == TESS_OP_CONV2D)
            desc->conv = (enum tess_conv_f32)how->f32_conv;
    }
    return TESS_OK;
}

static bool declared_same_axis(const struct tess_tensor_axis *a, const struct tess_tensor_axis *b)
{
    return a->parts == b->parts && a->first == b->first && a->count == b->count &&
           a->rank == b->rank && a->rank_count == b->rank_count && a->runs == b->runs &&
           a->sequence == b->sequence;
}

static bool declared_same_shape(const struct tess_shape *a, const struct tess_shape *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, (size_t)a->rank * sizeof(*a->dim)) == 0;
}

static bool declared_same(const struct tess_model_input *a, const struct tess_model_input *b)
{
    return a->rows == b->rows && a->leaf_rows == b->leaf_rows && a->dtype == b->dtype &&
           a->class_count == b->class_count && a->tokens == b->tokens && a->device == b->device &&
           a->stacks == b->stacks && a->averages == b->averages && a->decode == b->decode &&
           a->context == b->context && a->lora.rank == b->lora.rank &&
           a->lora.scale == b->lora.scale && strcmp(a->lora.targets, b->lora.targets) == 0 &&
           declared_same_shape(&a->row, &b->row) && declared_same_axis(&a->axis, &b->axis);
}

/* The lock is held. */
static struct tess_declared_one *declared_find(const struct tess_declared *declared,
                                               const struct declared_how *how,
                                               const struct tess_model_input *input)
{
    struct tess_declared_one *one = declared->first;
    while (one != NULL &&
           (one->how.wide != how->wide || one->how.fp8 != how->fp8 ||
            one->how.f32_conv != how->f32_conv || !declared_same(&one->input, input)))
        one = one->next;
    return one;
}

/* Zero, and of a state that has room for the largest model only the pages that this one touches. */
static void *declared_map(size_t bytes)
{
    void *state = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return state != MAP_FAILED ? state : NULL;
}

/* Fill it in, with as much room as an earlier one needed. */
static enum tess_status declared_fill(const struct tess_config *config,
                                      const struct tess_declared_one *before,
                                      struct tess_declared_one *one)
{
    if (before != NULL)
        TESS_TRY(tess_declare_reserve(&one->model, &before->model));
    one->state_bytes = config->model->state_size + 1;
    one->state = declared_map(one->state_bytes);
    TESS_TRY(declared_make(config, &one->input, &one->how, &one->model, one->state));
    one->need = calloc((size_t)one->model.op_count + 1, sizeof(*one->need));
    if (one->need == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for what a model declares");
    one->model.kept = one;
    return TESS_OK;
}

static void declared_drop(struct tess_declared *declared, struct tess_declared_one *one)
{
    struct tess_declared_one **place = &declared->first;
    while (*place != one)
        place = &(*place)->next;
    *place = one->next;
    declared_free(one);
}

/* Make one; the lock is held, and left while the model declares. One that fails is not kept. */
static enum tess_status declared_add(const struct tess_config *config,
                                     const struct tess_model_input *input,
                                     const struct declared_how *how,
                                     struct tess_declared_one **one_out)
{
    struct tess_declared *declared = config->declared;
    struct tess_declared_one *one = calloc(1, sizeof(*one));
    const struct tess_declared_one *before = declared->first;
    while (before != NULL && before->making)
        before = before->next;
    if (one == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for what a model declares");
    one->input = *input;
    one->how = *how;
    one->making = true;
    one->next = declared->first;
    declared->first = one;
    pthread_mutex_unlock(&declared->lock);
    const enum tess_status status = declared_fill(config, before, one);
    pthread_mutex_lock(&declared->lock);
    one->making = false;
    declared->count += status == TESS_OK;
    if (status != TESS_OK)
        declared_drop(declared, one);
    pthread_cond_broadcast(&declared->made);
    *one_out = one;
    return status;
}

/* One that is kept, or is then. */
static enum tess_status declared_get(const struct tess_config *config,
                                     const struct tess_model_input *input,
                                     const struct declared_how *how,
                                     struct tess_declared_one **one_out)
{
    struct tess_declared *declared = config->declared;
    enum tess_status status = TESS_OK;
    pthread_mutex_lock(&declared->lock);
    struct tess_declared_one *one = declared_find(declared, how, input);
    while (one != NULL && one->making) {
        pthread_cond_wait(&declared->made, &declared->lock);
        one = declared_find(declared, how, input);
    }
    if (one == NULL)
        status = declared_add(config, input, how, &one);
    pthread_mutex_unlock(&declared->lock);
    *one_out = one;
    return status;
}

enum tess_status tess__declare(const struct tess_config *config,
                               const struct tess_model_input *input, struct tess_declare *model_out,
                               void **state_out)
{
    struct declared_how how = {.fp8 = config->run.fp8, .f32_conv = config->run.f32_conv};
    struct tess_declared_one *one;
    TESS_TRY(tess_precision_f32_ops(config->run.f32_ops, &how.wide));
    if (config->declared == NULL) {
        *state_out = calloc(1, config->model->state_size + 1);
        return declared_make(config, input, &how, model_out, *state_out);
    }
    TESS_TRY(declared_get(config, input, &how, &one));
    *model_out = tess_declare_borrow(&one->model);
    *state_out = one->state;
    return TESS_OK;
}

void tess__declare_free(struct tess_declare *model, void *state)
{
    if (!model->borrowed)
        free(state);
    tess_declare_fini(model);
}

/* ---- cuts ------------------------------------------------------------------------------------ */

/* Modelled work of an operation's products, by row of the model. */
static double cut_op_work(const struct tess_op_desc *desc, int64_t model_rows)
{
    const double rows =
        (double)desc->rows * (desc->calls > 0 ? desc->calls : 1) / (double)model_rows;
    /* What adds to another operation's gradient is a part of that one's work. */
    if (desc->add_grad)
        return 0;
    if (desc->kind == TESS_OP_LINEAR)
        return 6 * rows * (double)desc->in * (double)desc->out;
    if (desc->kind == TESS_OP_ATTENTION)
        return 7 * rows * tess_op_square(desc) * (double)(desc->in * desc->heads);
    if (desc->kind == TESS_OP_CONV2D)
        return 6 * rows * (double)desc->in * (double)desc->out * desc->window * desc->window *
               (double)(desc->height * desc->width) / (double)(desc->stride * desc->stride);
    return 0;
}

/* cost [units], all zero: products, and a little for the rest. */
static void cut_costs(const struct tess_declare *model, struct tess_unit_cost *cost)
{
    for (int32_t u = 0; u < model->unit_count; u++)
        cost[u].work = (double)model->unit[u].output_count;
    for (int32_t o = 0; o < model->op_count; o++)
        cost[model->op[o].unit].work += cut_op_work(&model->op[o].desc, model->rows);
    for (int32_t p = 0; p < model->param_count; p++)
        cost[model->param[p].unit].param_bytes +=
            16 * (uint64_t)tess_shape_count(&model->param[p].shape);
    for (int32_t t = 0; t < model->tensor_count; t++)
        if (model->tensor[t].life != TESS_LIFE_UNIT)
            cost[model->tensor[t].unit].saved_bytes += (uint64_t)model->tensor[t].count *
                                                       (uint64_t)model->rows *
                                                       tess_dtype_bytes(model->tensor[t].dtype);
}

static enum tess_status cut_make(const struct tess_config *config, const struct tess_declare *model,
                                 int32_t virtual_count, int32_t *first_out)
{
    const int32_t units = model->unit_count;
    struct tess_unit_cost *cost = calloc((size_t)units, sizeof(*cost));
    if (cost == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to cut %d units into stages", units);
    cut_costs(model, cost);
    enum tess_status status = config->axis[TESS_AXIS_STAGE]->cut(
        config->axis_options[TESS_AXIS_STAGE], cost, units, virtual_count, first_out);
    free(cost);
    return status;
}

static enum tess_status cut_keep(const struct tess_config *config, const struct tess_declare *model,
                                 int32_t virtual_count, const int32_t *first)
{
    const struct tess_strategy_ops *ops = config->axis[TESS_AXIS_STAGE];
    const size_t bytes = ((size_t)virtual_count + 1) * sizeof(*first);
    struct declared_cut *cut = malloc(sizeof(*cut) + bytes);
    void *options = malloc(ops->options_size + 1);
    if (cut == NULL || options == NULL) {
        free(cut);
        free(options);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to cut %d units into stages", model->unit_count);
    }
    memcpy(options, config->axis_options[TESS_AXIS_STAGE], ops->options_size);
    *cut = (struct declared_cut){.ops = ops, .virtual_count = virtual_count, .options = options};
    memcpy(cut->first, first, bytes);
    pthread_mutex_lock(&config->declared->lock);
    cut->next = model->kept->cut;
    model->kept->cut = cut;
    pthread_mutex_unlock(&config->declared->lock);
    return TESS_OK;
}

static bool cut_find(const struct tess_config *config, const struct tess_declare *model,
                     int32_t virtual_count, int32_t *first_out)
{
    const struct tess_strategy_ops *ops = config->axis[TESS_AXIS_STAGE];
    const void *options = config->axis_options[TESS_AXIS_STAGE];
    pthread_mutex_lock(&config->declared->lock);
    const struct declared_cut *cut = model->kept->cut;
    pthread_mutex_unlock(&config->declared->lock); /* those that are kept stay as they are */
    while (cut != NULL && (cut->virtual_count != virtual_count || cut->ops != ops ||
                           memcmp(cut->options, options, ops->options_size) != 0))
        cut = cut->next;
    if (cut != NULL)
        memcpy(first_out, cut->first, ((size_t)virtual_count + 1) * sizeof(*first_out));
    return cut != NULL;
}

enum tess_status tess__declared_cut(const struct tess_config *config,
                                    const struct tess_declare *model, int32_t virtual_count,
                                    int32_t *first_out)
{
    if (model->kept != NULL && cut_find(config, model, virtual_count, first_out))
        return TESS_OK;
    TESS_TRY(cut_make(config, model, virtual_count, first_out));
    return model->kept != NULL ? cut_keep(config, model, virtual_count, first_out) : TESS_OK;
}

/* ---- needs ----------------------------------------------------------------------------------- */

enum tess_status tess__op_needs(const struct tess_kernel *kernel,
                                const struct tess_declare *declare, int32_t op,
                                struct tess_op_needs *needs_out)
{
    const struct tess_op_desc *desc = &declare->op[op].desc;
    char why[256] = "";
    if (!kernel->ops->supports(desc, why, sizeof(why)))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "kernel '%s' cannot run an operation of unit '%s': %s",
                  kernel->ops->name, declare->unit[declare->op[op].unit].name, why);
    return kernel->ops->op_needs(desc, needs_out);
}

/* Where they are, or would be; there is a free place. */
static struct declared_needs *needs_at(const struct tess_declared *declared,
                                       const struct declared_needs *like)
{
    const size_t mask = declared->needs_room - 1;
    size_t at = tess_hash_run(&like->desc, sizeof(like->desc), 0) & mask;
    while (declared->needs[at].of != NULL &&
           (declared->needs[at].of != like->of ||
            memcmp(&declared->needs[at].desc, &like->desc, sizeof(like->desc)) != 0))
        at = (at + 1) & mask;
    return &declared->needs[at];
}

static enum tess_status needs_grow(struct tess_declared *declared)
{
    const struct tess_declared before = *declared;
    declared->needs_room = before.needs_room > 0 ? 2 * before.needs_room : 64;
    declared->needs = calloc(declared->needs_room, sizeof(*declared->needs));
    if (declared->needs == NULL) {
        *declared = before;
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for what operations need");
    }
    for (size_t i = 0; i < before.needs_room; i++)
        if (before.needs[i].of != NULL)
            *needs_at(declared, &before.needs[i]) = before.needs[i];
    free(before.needs);
    return TESS_OK;
}

struct tess_declared_need *tess__declared_needs(const struct tess_declare *model)
{
    return model->kept != NULL ? model->kept->need : NULL;
}

/* Of an equal operation of any model; kept for this one too, but where that is known of another
 * kernel. The lock is held. */
static enum tess_status needs_find(struct tess_declared *declared, struct declared_needs *like,
                                   const struct tess_kernel *kernel,
                                   const struct tess_declare *declare, int32_t op,
                                   struct tess_declared_need *need)
{
    if (2 * declared->needs_count >= declared->needs_room)
        TESS_TRY(needs_grow(declared));
    struct declared_needs *known = needs_at(declared, like);
    if (known->of == NULL) {
        TESS_TRY(tess__op_needs(kernel, declare, op, &like->needs));
        *known = *like;
        declared->needs_count++;
    }
    like->needs = known->needs;
    if (atomic_load_explicit(&need->of, memory_order_relaxed) == NULL) {
        need->needs = like->needs;
        atomic_store_explicit(&need->of, like->of, memory_order_release);
    }
    return TESS_OK;
}

enum tess_status tess__declared_find_needs(const struct tess_config *config,
                                           const struct tess_kernel *kernel,
                                           const struct tess_declare *declare, int32_t op,
                                           struct tess_declared_need *need,
                                           struct tess_op_needs *needs_out)
{
    struct tess_declared_need *known = &need[declare->op[op].index];
    if (atomic_load_explicit(&known->of, memory_order_acquire) == kernel->ops->op_needs) {
        *needs_out = known->needs;
        return TESS_OK;
    }
    struct declared_needs like = {.of = kernel->ops->op_needs, .desc = declare->op[op].desc};
    pthread_mutex_lock(&config->declared->lock);
    const enum tess_status status = needs_find(config->declared, &like, kernel, declare, op, known);
    pthread_mutex_unlock(&config->declared->lock);
    *needs_out = like.needs;
    return status;
}
