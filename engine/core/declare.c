/*
 * Collects what a model declares. Responsible for indices, names and sanity; memory and order of
 * parameters are the layout's business.
 */
#include "core/declare.h"

#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

/* Keep the first failure; the declare functions have no status to return. */
static void declare_fail(struct tess_declare *declare, enum tess_status status)
{
    if (declare->status == TESS_OK)
        declare->status = status;
}

/* Room for one more element of a growing array; NULL (and the failure kept) when there is none. */
static void *declare_grow(struct tess_declare *declare, void **array, int32_t *count, size_t size)
{
    if (declare->status != TESS_OK)
        return NULL;
    if ((*count & (*count - 1)) == 0) { /* full at every power of two */
        size_t room = *count ? (size_t)*count * 2 : 1;
        void *grown = realloc(*array, room * size);
        if (!grown) {
            declare_fail(declare, tess_fail(TESS_ERR_MEMORY, "no memory for the model's parts"));
            return NULL;
        }
        *array = grown;
    }
    char *element = (char *)*array + (size_t)*count * size;
    memset(element, 0, size);
    (*count)++;
    return element;
}

static void declare_name(struct tess_declare *declare, char target[TESS_NAME_MAX], const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length >= TESS_NAME_MAX)
        declare_fail(declare, tess_fail(TESS_ERR_USAGE,
                                        "model: the name '%.80s' has %zu characters, "
                                        "1 to %d are allowed",
                                        name, length, TESS_NAME_MAX - 1));
    else
        memcpy(target, name, length + 1);
}

void tess_declare_conditional(struct tess_declare *declare)
{
    declare->conditional = true;
}

static int32_t declare_current_unit(struct tess_declare *declare, const char *what)
{
    if (declare->unit_count == 0)
        declare_fail(declare, tess_fail(TESS_ERR_USAGE,
                                        "model: '%s' is declared before the first "
                                        "unit",
                                        what));
    return declare->unit_count - 1;
}

static int64_t declare_count(struct tess_declare *declare, const char *name,
                             const struct tess_shape *shape)
{
    int64_t count = 1;
    if (shape->rank < 0 || shape->rank > TESS_DIM_MAX) {
        declare_fail(declare, tess_fail(TESS_ERR_USAGE,
                                        "model: '%s' has %d dimensions, 0 to %d are "
                                        "allowed",
                                        name, shape->rank, TESS_DIM_MAX));
        return 0;
    }
    for (int32_t i = 0; i < shape->rank; i++) {
        if (shape->dim[i] <= 0 || __builtin_mul_overflow(count, shape->dim[i], &count) ||
            count > INT64_C(1) << 40) {
            declare_fail(declare, tess_fail(TESS_ERR_USAGE,
                                            "model: dimension %d of '%s' is %lld, "
                                            "which is not positive or too large",
                                            i, name, (long long)shape->dim[i]));
            return 0;
        }
    }
    return count;
}

int32_t tess_declare_unit(struct tess_declare *declare, const char *name, struct tess_shape output)
{
    struct tess_declare_unit *unit =
        declare_grow(declare, (void **)&declare->unit, &declare->unit_count, sizeof *unit);
    if (!unit)
        return -1;
    declare_name(declare, unit->name, name);
    unit->output_count = declare_count(declare, name, &output);
    return declare->unit_count - 1;
}

static int32_t declare_any_param(struct tess_declare *declare, const char *name,
                                 struct tess_shape shape, struct tess_init init, uint32_t flags,
                                 float rate)
{
    int32_t unit = declare_current_unit(declare, name);
    for (int32_t i = 0; i < declare->param_count; i++)
        if (strcmp(declare->param[i].name, name) == 0)
            declare_fail(declare,
                         tess_fail(TESS_ERR_USAGE, "model: two parameters are named '%s'", name));
    struct tess_declare_param *param =
        declare_grow(declare, (void **)&declare->param, &declare->param_count, sizeof *param);
    if (!param)
        return -1;
    declare_name(declare, param->name, name);
    declare_count(declare, name, &shape);
    param->unit = unit;
    param->shape = shape;
    param->init = init;
    param->flags = flags;
    param->rate = rate;
    return declare->param_count - 1;
}

int32_t tess_declare_param(struct tess_declare *declare, const char *name, struct tess_shape shape,
                           struct tess_init init, uint32_t flags)
{
    return declare_any_param(declare, name, shape, init, flags & ~(uint32_t)TESS_PARAM_BUFFER, 0);
}

int32_t tess_declare_buffer(struct tess_declare *declare, const char *name, struct tess_shape shape,
                            struct tess_init init, float rate)
{
    return declare_any_param(declare, name, shape, init, TESS_PARAM_BUFFER | TESS_PARAM_NO_DECAY,
                             rate);
}

int32_t tess_declare_tensor(struct tess_declare *declare, const char *name, enum tess_dtype dtype,
                            struct tess_shape shape, enum tess_life life)
{
    int32_t unit = declare_current_unit(declare, name);
    struct tess_declare_tensor *tensor =
        declare_grow(declare, (void **)&declare->tensor, &declare->tensor_count, sizeof *tensor);
    if (!tensor)
        return -1;
    declare_name(declare, tensor->name, name);
    tensor->unit = unit;
    tensor->dtype = dtype;
    tensor->count = declare_count(declare, name, &shape);
    tensor->life = life;
    return declare->tensor_count - 1;
}

int32_t tess_declare_op(struct tess_declare *declare, const struct tess_op_desc *desc, bool first)
{
    int32_t unit = declare_current_unit(declare, "operation");
    struct tess_declare_op *op =
        declare_grow(declare, (void **)&declare->op, &declare->op_count, sizeof *op);
    if (!op)
        return -1;
    op->unit = unit;
    op->desc = *desc;
    op->desc.rows = declare->rows;
    op->desc.leaf_rows = declare->leaf_rows;
    op->desc.dtype = declare->dtype;
    op->desc.input_grad = !(first && unit == 0);
    return declare->op_count - 1;
}

enum tess_status tess_declare_model(struct tess_declare *declare,
                                    const struct tess_model_ops *model, void *state,
                                    const void *options, const struct tess_model_input *input)
{
    TESS_TRY(model->declare(state, options, input, declare));
    TESS_TRY(declare->status);
    if (declare->unit_count == 0)
        TESS_FAIL(TESS_ERR_USAGE, "model '%s' declares no unit", model->name);
    int64_t classes = declare->unit[declare->unit_count - 1].output_count;
    if (classes != input->class_count)
        TESS_FAIL(TESS_ERR_USAGE, "model '%s' ends with %lld outputs, the data have %d classes",
                  model->name, (long long)classes, input->class_count);
    return TESS_OK;
}

void tess_declare_fini(struct tess_declare *declare)
{
    free(declare->unit);
    free(declare->param);
    free(declare->tensor);
    free(declare->op);
}
