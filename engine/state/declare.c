/*
 * Collects what a model declares. Responsible for indices, names and sanity; memory and order of
 * parameters are the layout's business. The declare functions have no status to return:
 * declare->status keeps the first failure.
 */
#include "state/declare.h"

#include "base/hash.h"

#include "tessera/check.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Room for one more element of a growing array; NULL (and the failure kept) when there is none. */
static void *declare_grow(struct tess_declare *declare, void **array, int32_t *count, int32_t *room,
                          size_t size)
{
    if (declare->status != TESS_OK)
        return NULL;
    if (*count == *room) {
        const int32_t more = *room > 0 ? 2 * *room : 16;
        void *grown = realloc(*array, (size_t)more * size);
        if (grown == NULL) {
            TESS_KEEP(declare->status,
                      tess_fail(TESS_ERR_MEMORY, "no memory for the model's parts"));
            return NULL;
        }
        *array = grown;
        *room = more;
    }
    char *element = (char *)*array + (size_t)*count * size;
    memset(element, 0, size);
    (*count)++;
    return element;
}

enum tess_status tess_declare_reserve(struct tess_declare *declare, const struct tess_declare *like)
{
    declare->unit = malloc(((size_t)like->unit_count + 1) * sizeof(*declare->unit));
    declare->param = malloc(((size_t)like->param_count + 1) * sizeof(*declare->param));
    declare->tensor = malloc(((size_t)like->tensor_count + 1) * sizeof(*declare->tensor));
    declare->op = malloc(((size_t)like->op_count + 1) * sizeof(*declare->op));
    if (declare->unit == NULL || declare->param == NULL || declare->tensor == NULL ||
        declare->op == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the model's parts");
    declare->unit_room = like->unit_count;
    declare->param_room = like->param_count;
    declare->tensor_room = like->tensor_count;
    declare->op_room = like->op_count;
    return TESS_OK;
}

static void declare_name(struct tess_declare *declare, char target[TESS_NAME_MAX], const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length >= TESS_NAME_MAX)
        TESS_KEEP(declare->status,
                  tess_fail(TESS_ERR_USAGE,
                            "model: the name '%.80s' has %zu characters, 1 to %d are allowed", name,
                            length, TESS_NAME_MAX - 1));
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
        TESS_KEEP(declare->status,
                  tess_fail(TESS_ERR_USAGE, "model: '%s' is declared before the first unit", what));
    return declare->unit_count - 1;
}

static int64_t declare_count(struct tess_declare *declare, const char *name,
                             const struct tess_shape *shape)
{
    int64_t count = 1;
    if (shape->rank < 0 || shape->rank > TESS_DIM_MAX) {
        TESS_KEEP(declare->status,
                  tess_fail(TESS_ERR_USAGE, "model: '%s' has %d dimensions, 0 to %d are allowed",
                            name, shape->rank, TESS_DIM_MAX));
        return 0;
    }
    for (int32_t i = 0; i < shape->rank; i++) {
        if (shape->dim[i] <= 0 || __builtin_mul_overflow(count, shape->dim[i], &count) ||
            count > INT64_C(1) << 40) {
            TESS_KEEP(
                declare->status,
                tess_fail(TESS_ERR_USAGE,
                          "model: dimension %d of '%s' is %lld, which is not positive or too large",
                          i, name, (long long)shape->dim[i]));
            return 0;
        }
    }
    return count;
}

int32_t tess_declare_unit(struct tess_declare *declare, const char *name, struct tess_shape output)
{
    struct tess_declare_unit *unit = declare_grow(
        declare, (void **)&declare->unit, &declare->unit_count, &declare->unit_room, sizeof(*unit));
    if (unit == NULL)
        return -1;
    declare_name(declare, unit->name, name);
    unit->index = declare->unit_count - 1;
    unit->output_count = declare_count(declare, name, &output);
    return declare->unit_count - 1;
}

/* What this rank holds of a tensor that is cut: its parts, as one longer or shorter dimension. */
static struct tess_shape declare_slice(struct tess_declare *declare, const char *name,
                                       const struct tess_shape *whole, struct tess_slice slice)
{
    const struct tess_tensor_axis *tensor = &declare->axis;
    struct tess_shape shape = *whole;
    if (slice.used != 0 && (slice.axis != 0 || slice.blocks != 1 || slice.used < 0 ||
                            whole->rank < 1 || slice.used > whole->dim[0]))
        TESS_KEEP(
            declare->status,
            tess_fail(
                TESS_ERR_USAGE,
                "model: only the first dimension of a parameter may be padded, '%s' is otherwise",
                name));
    if (slice.axis < 0 || tensor->parts <= 1)
        return shape;
    if (slice.axis >= whole->rank || slice.blocks < 1 ||
        whole->dim[slice.axis] % ((int64_t)slice.blocks * tensor->parts) != 0) {
        TESS_KEEP(
            declare->status,
            tess_fail(TESS_ERR_USAGE,
                      "model: dimension %d of '%s', %lld long, cannot be cut into %d equal parts",
                      slice.axis, name,
                      slice.axis < whole->rank ? (long long)whole->dim[slice.axis] : 0LL,
                      tensor->parts));
        return shape;
    }
    shape.dim[slice.axis] = shape.dim[slice.axis] / tensor->parts * tensor->count;
    return shape;
}

static int32_t declare_any_param(struct tess_declare *declare, const char *name,
                                 struct tess_shape shape, struct tess_init init, uint32_t flags,
                                 struct tess_slice slice)
{
    int32_t unit = declare_current_unit(declare, name);
    int64_t count = declare_count(declare, name, &shape);
    struct tess_declare_param *param =
        declare_grow(declare, (void **)&declare->param, &declare->param_count, &declare->param_room,
                     sizeof(*param));
    if (param == NULL)
        return -1;
    declare_name(declare, param->name, name);
    param->unit = unit;
    param->index = declare->param_count - 1;
    param->whole = shape;
    param->slice = slice;
    param->shape = declare_slice(declare, name, &shape, slice);
    param->init = init;
    param->flags = flags;
    if (declare->frozen && (flags & TESS_PARAM_ADAPTER) == 0)
        param->flags |= TESS_PARAM_FROZEN;
    param->model_begin = declare->element_count;
    declare->element_count += count;
    return declare->param_count - 1;
}

int32_t tess_declare_sliced(struct tess_declare *declare, const char *name, struct tess_shape shape,
                            struct tess_init init, uint32_t flags, struct tess_slice slice)
{
    const uint32_t own = TESS_PARAM_BUFFER | TESS_PARAM_TIED | TESS_PARAM_FROZEN;
    return declare_any_param(declare, name, shape, init, flags & ~own, slice);
}

int32_t tess_declare_param(struct tess_declare *declare, const char *name, struct tess_shape shape,
                           struct tess_init init, uint32_t flags)
{
    return tess_declare_sliced(declare, name, shape, init, flags, (struct tess_slice){-1, 1, 0});
}

int32_t tess_declare_sliced_buffer(struct tess_declare *declare, const char *name,
                                   struct tess_shape shape, struct tess_init init, float rate,
                                   struct tess_slice slice)
{
    int32_t index = declare_any_param(declare, name, shape, init,
                                      TESS_PARAM_BUFFER | TESS_PARAM_NO_DECAY, slice);
    if (index >= 0)
        declare->param[index].rate = rate;
    return index;
}

int32_t tess_declare_buffer(struct tess_declare *declare, const char *name, struct tess_shape shape,
                            struct tess_init init, float rate)
{
    return tess_declare_sliced_buffer(declare, name, shape, init, rate,
                                      (struct tess_slice){-1, 1, 0});
}

int32_t tess_declare_tied(struct tess_declare *declare, const char *name, int32_t source)
{
    if (declare->status != TESS_OK)
        return -1;
    if (source < 0 || source >= declare->param_count) {
        TESS_KEEP(declare->status,
                  tess_fail(TESS_ERR_USAGE, "model: '%s' is tied to no parameter", name));
        return -1;
    }
    const struct tess_declare_param from = declare->param[source];
    const int64_t elements = declare->element_count;
    int32_t index = declare_any_param(declare, name, from.whole, from.init,
                                      from.flags | TESS_PARAM_TIED, from.slice);
    if (index < 0)
        return -1;
    declare->element_count = elements;
    declare->tied = true;
    declare->param[index].source = source;
    declare->param[index].model_begin = from.model_begin;
    return index;
}

/* Elements of a row and of a part, by which parameters are stacked. */
static int64_t declare_row(const struct tess_declare_param *param)
{
    return param->shape.rank > 0 ? tess_shape_count(&param->shape) / param->shape.dim[0] : 1;
}

static int64_t declare_part(const struct tess_declare *declare,
                            const struct tess_declare_param *param)
{
    const int64_t count = tess_shape_count(&param->shape);
    return param->slice.axis >= 0 && declare->axis.parts > 1 ? count / declare->axis.count : count;
}

void tess_declare_stacked(struct tess_declare *declare, int32_t first, int32_t count)
{
    if (declare->status != TESS_OK)
        return;
    for (int32_t p = first; p < first + count; p++) {
        struct tess_declare_param *param = &declare->param[p];
        if (first < 0 || p >= declare->param_count || param->unit != declare->unit_count - 1 ||
            declare_row(param) != declare_row(&declare->param[first]) || param->slice.axis > 0 ||
            tess_declare_source(param) >= 0 ||
            declare_part(declare, param) % TESS_SHARD_ALIGN != 0) {
            TESS_KEEP(declare->status,
                      tess_fail(TESS_ERR_USAGE, "model: parameters %d to %d cannot be stacked",
                                first, first + count - 1));
            return;
        }
        param->stacked = p > first;
    }
}

void tess_declare_crossing(struct tess_declare *declare, enum tess_crossing_when when,
                           enum tess_crossing_call call, int64_t count)
{
    const int32_t unit = declare_current_unit(declare, "crossing");
    if (unit < 0)
        return;
    declare->unit[unit].crossing[when][call] += count;
    if (call == TESS_CALL_SUM && count > declare->sum_most)
        declare->sum_most = count;
}

void tess_declare_loss(struct tess_declare *declare, int64_t labels)
{
    declare->labels = labels;
}

int32_t tess_declare_tensor(struct tess_declare *declare, const char *name, enum tess_dtype dtype,
                            struct tess_shape shape, enum tess_life life)
{
    int32_t unit = declare_current_unit(declare, name);
    struct tess_declare_tensor *tensor =
        declare_grow(declare, (void **)&declare->tensor, &declare->tensor_count,
                     &declare->tensor_room, sizeof(*tensor));
    if (tensor == NULL)
        return -1;
    declare_name(declare, tensor->name, name);
    tensor->unit = unit;
    tensor->index = declare->tensor_count - 1;
    tensor->dtype = dtype;
    tensor->count = declare_count(declare, name, &shape);
    tensor->life = life;
    return declare->tensor_count - 1;
}

int32_t tess_declare_op(struct tess_declare *declare, const struct tess_op_desc *desc, bool first)
{
    int32_t unit = declare_current_unit(declare, "operation");
    struct tess_declare_op *op = declare_grow(declare, (void **)&declare->op, &declare->op_count,
                                              &declare->op_room, sizeof(*op));
    if (op == NULL)
        return -1;
    op->unit = unit;
    op->index = declare->op_count - 1;
    op->desc = *desc;
    if (desc->rows == 0) {
        op->desc.rows = declare->rows;
        op->desc.leaf_rows = declare->leaf_rows;
    } else if (desc->leaf_rows == 0) {
        op->desc.leaf_rows = desc->rows;
    }
    op->desc.dtype = declare->dtype;
    op->desc.input_grad = !(first && unit == 0);
    return declare->op_count - 1;
}

/* Tied parameters and their sources are segments of their own: see tess_declare_tied. */
static enum tess_status declare_check_alone(const struct tess_declare *declare, int32_t p)
{
    const int32_t tied[2] = {p, tess_declare_source(&declare->param[p])};
    for (int32_t i = 0; i < 2 && tied[1] >= 0; i++)
        for (int32_t q = 0; q < declare->param_count; q++)
            if (q != tied[i] && declare->param[q].unit == declare->param[tied[i]].unit)
                TESS_FAIL(TESS_ERR_USAGE,
                          "model: '%s' is tied, or tied to, and shares its unit with '%s'",
                          declare->param[tied[i]].name, declare->param[q].name);
    return TESS_OK;
}

/* Large models have a thousand names with long common beginnings: they are looked up by hash. */
static enum tess_status declare_check_names(const struct tess_declare *declare)
{
    size_t room = 16;
    while (room < 2 * (size_t)declare->param_count)
        room *= 2;
    int32_t *table = calloc(room, sizeof(*table)); /* [room] 1 + a parameter, where its hash says */
    enum tess_status status = TESS_OK;
    if (table == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the model's parts");
    for (int32_t p = 0; p < declare->param_count && status == TESS_OK; p++) {
        const char *name = declare->param[p].name;
        size_t at = tess_hash_bytes(name, strlen(name)) & (room - 1);
        for (; table[at] != 0 && status == TESS_OK; at = (at + 1) & (room - 1))
            if (strcmp(declare->param[table[at] - 1].name, name) == 0)
                status = tess_fail(TESS_ERR_USAGE, "model: two parameters are named '%s'", name);
        table[at] = p + 1;
    }
    free(table);
    return status;
}

/* Which units need as much as the one before, as most blocks of a deep model do. */
static void declare_mark_repeats(struct tess_declare *declare)
{
    const struct tess_declare_tensor *tensor = declare->tensor; /* NULL where there are none */
    const struct tess_declare_op *op = declare->op;             /* likewise */
    int32_t at = 0, o = 0;
    for (int32_t t = 0; t < declare->tensor_count; t++)
        declare->unit[tensor[t].unit].tensor_count++;
    for (int32_t i = 0; i < declare->op_count; i++)
        declare->unit[op[i].unit].op_count++;
    for (int32_t u = 0; u < declare->unit_count; u++) {
        struct tess_declare_unit *unit = &declare->unit[u];
        const int32_t count = unit->tensor_count, end = at + count;
        const int32_t ops = unit->op_count, ops_end = o + ops;
        unit->repeats = u > 0 && count == unit[-1].tensor_count && ops == unit[-1].op_count;
        for (; at < end && unit->repeats; at++)
            unit->repeats = tensor[at].count == tensor[at - count].count &&
                            tensor[at].life == tensor[at - count].life &&
                            tensor[at].dtype == tensor[at - count].dtype;
        for (; o < ops_end && unit->repeats; o++)
            unit->repeats = memcmp(&op[o].desc, &op[o - ops].desc, sizeof(op->desc)) == 0;
        at = end;
        o = ops_end;
    }
}

enum tess_status tess_declare_model(struct tess_declare *declare,
                                    const struct tess_model_ops *model, void *state,
                                    const void *options, const struct tess_model_input *input)
{
    declare->axis = input->axis;
    if (input->axis.parts > 1 && !model->tensor)
        TESS_FAIL(TESS_ERR_USAGE,
                  "model '%s' cannot be cut along the tensor axis: leave that axis' strategy out "
                  "of --strategy, and --tensor.* with it",
                  model->name);
    declare->frozen = input->lora.rank > 0;
    if (declare->frozen && !model->lora)
        TESS_FAIL(TESS_ERR_USAGE, "model '%s' has no adapters: leave --lora.* out", model->name);
    TESS_TRY(model->declare(state, options, input, declare));
    TESS_TRY(declare->status);
    if (declare->unit_count == 0)
        TESS_FAIL(TESS_ERR_USAGE, "model '%s' declares no unit", model->name);
    TESS_TRY(declare_check_names(declare));
    declare_mark_repeats(declare);
    for (int32_t p = 0; p < declare->param_count; p++)
        TESS_TRY(declare_check_alone(declare, p));
    int64_t classes = declare->unit[declare->unit_count - 1].output_count;
    if (declare->labels == 0 && classes != input->class_count)
        TESS_FAIL(TESS_ERR_USAGE, "model '%s' ends with %lld outputs, the data have %d classes",
                  model->name, (long long)classes, input->class_count);
    return TESS_OK;
}

/* ---- parts of a model ------------------------------------------------------------------------ */

/* An array of parts, which lie in the order of their units. */
struct select_array {
    const void *from; /* [count] */
    int32_t count;
    size_t size, unit_at; /* of a part; where its unit is in it */
};

static int32_t select_unit(const struct select_array *array, int32_t i)
{
    int32_t unit;
    memcpy(&unit, (const char *)array->from + (size_t)i * array->size + array->unit_at,
           sizeof(unit));
    return unit;
}

/* The first part of this unit or a later one. */
static int32_t select_first(const struct select_array *array, int32_t unit)
{
    int32_t low = 0, high = array->count;
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (select_unit(array, middle) < unit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The first unit behind `unit` that has a place where that has none, or the other way round. */
static int32_t select_run(int32_t unit, int32_t units, const int32_t *place)
{
    int32_t end = unit + 1;
    while (end < units && (place[end] >= 0) == (place[unit] >= 0))
        end++;
    return end;
}

/* Copy the parts of the units that have a place, which becomes their unit; NULL without memory.
 * Units that are kept are few runs of neighbours, each of which is searched for once. */
static void *select_copy(const struct select_array *array, int32_t units, const int32_t *place,
                         int32_t *kept_out)
{
    int32_t room = 1, kept = 0;
    for (int32_t u = 0, end; u < units; u = end) {
        end = select_run(u, units, place);
        if (place[u] >= 0)
            room += select_first(array, end) - select_first(array, u);
    }
    char *copy = malloc((size_t)room * array->size);
    for (int32_t u = 0, end; u < units && copy != NULL; u = end) {
        end = select_run(u, units, place);
        if (place[u] < 0)
            continue;
        const int32_t first = select_first(array, u), count = select_first(array, end) - first;
        char *to = copy + (size_t)kept * array->size;
        if (count > 0) /* an array without elements may be NULL */
            memcpy(to, (const char *)array->from + (size_t)first * array->size,
                   (size_t)count * array->size);
        for (int32_t i = first; i < first + count; i++, kept++, to += array->size)
            memcpy(to + array->unit_at, &place[select_unit(array, i)], sizeof(place[u]));
    }
    *kept_out = kept;
    return copy;
}

#define SELECT(type, array, array_count)                                                           \
    select_copy(&(const struct select_array){model->array, model->array_count, sizeof(type),       \
                                             offsetof(type, unit)},                                \
                model->unit_count, place, &part.array_count)

enum tess_status tess_declare_select(const struct tess_declare *model, const bool *keep,
                                     struct tess_declare *part_out)
{
    struct tess_declare part = *model;
    int32_t *place = calloc((size_t)model->unit_count + 1, sizeof(*place));
    part.borrowed = false;
    part.unit = malloc(((size_t)model->unit_count + 1) * sizeof(*part.unit));
    part.param = NULL;
    part.tensor = NULL;
    part.op = NULL;
    part.unit_count = 0;
    for (int32_t u = 0; u < model->unit_count && place != NULL && part.unit != NULL; u++) {
        place[u] = keep[u] ? part.unit_count : -1;
        if (keep[u])
            part.unit[part.unit_count++] = model->unit[u];
    }
    if (place != NULL) {
        part.param = SELECT(struct tess_declare_param, param, param_count);
        part.tensor = SELECT(struct tess_declare_tensor, tensor, tensor_count);
        part.op = SELECT(struct tess_declare_op, op, op_count);
    }
    free(place);
    if (part.unit == NULL || part.param == NULL || part.tensor == NULL || part.op == NULL) {
        tess_declare_fini(&part);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the model's parts");
    }
    *part_out = part;
    return TESS_OK;
}

struct tess_declare tess_declare_borrow(const struct tess_declare *model)
{
    struct tess_declare same = *model;
    same.borrowed = true;
    return same;
}

int64_t tess_declare_run(const struct tess_declare_param *param,
                         const struct tess_tensor_axis *tensor, int64_t at, int64_t *whole_out)
{
    const struct tess_shape *whole = &param->whole;
    int64_t inner = 1;
    if (param->slice.axis < 0 || tensor->parts <= 1) {
        *whole_out = at;
        return tess_shape_count(&param->shape) - at;
    }
    for (int32_t d = param->slice.axis + 1; d < whole->rank; d++)
        inner *= whole->dim[d];
    const int64_t length = whole->dim[param->slice.axis];
    const int64_t block = length / param->slice.blocks, run = block / tensor->parts;
    const int64_t part_length = length / tensor->parts;
    const int64_t part_count = tess_shape_count(whole) / tensor->parts;
    const int64_t part = tensor->first + at / part_count;
    const int64_t outer = at % part_count / (part_length * inner);
    const int64_t index = at % (part_length * inner) / inner, rest = at % inner;
    const int64_t from = index / run * block + part * run + index % run;
    *whole_out = (outer * length + from) * inner + rest;
    return (run - index % run) * inner - rest;
}

int64_t tess_declare_used(const struct tess_declare_param *param)
{
    const int64_t count = tess_shape_count(&param->whole);
    return param->slice.used > 0 ? count / param->whole.dim[0] * param->slice.used : count;
}

struct tess_shape tess_declare_file_shape(const struct tess_declare_param *param)
{
    struct tess_shape shape = param->whole;
    if (param->slice.used > 0)
        shape.dim[param->slice.axis] = param->slice.used;
    if (tess_declare_turned(param))
        shape = tess_shape2(shape.dim[1], shape.dim[0]);
    return shape;
}

int64_t tess_declare_size(const struct tess_declare *declare)
{
    int64_t size = 0;
    for (int32_t p = 0; p < declare->param_count; p++) {
        const struct tess_shape shape = tess_declare_file_shape(&declare->param[p]);
        if (!(declare->param[p].flags & (TESS_PARAM_TIED | TESS_PARAM_BUFFER)))
            size += tess_shape_count(&shape);
    }
    return size;
}

void tess_declare_fini(struct tess_declare *declare)
{
    if (declare->borrowed)
        return;
    free(declare->unit);
    free(declare->param);
    free(declare->tensor);
    free(declare->op);
}
