/*
 * The made-up cuDNN's second engine: runs the operations of a graph one after the other, each by
 * its definition, from the extents, strides, types and flags of the tensors. So what it gives is
 * what the graph says, and not what its maker meant. Tensors are read into f32 without gaps;
 * results are rounded to the type of their tensor. Operations come after those that they read.
 */
#include "base/half.h"
#include "fake_descriptor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GRAPH_TENSORS_MAX 64

/* A tensor that is never stored, once it is computed. */
struct graph_kept {
    const struct fake_descriptor *tensor;
    float *values;
};

struct graph_state {
    const struct fake_run *run;
    struct graph_kept kept[GRAPH_TENSORS_MAX];
    int count;
};

/* An operand, its values in row-major order of its extents. */
struct graph_operand {
    const struct fake_descriptor *tensor;
    const int64_t *extent, *stride;
    float *values;
    bool owned;
};

/* ---- tensors --------------------------------------------------------------------------------- */

static bool graph_flag(const struct fake_descriptor *d, cudnnBackendAttributeName_t name)
{
    const struct fake_attribute *a = fake_find(d, name);
    return a != NULL && a->value[0] != 0;
}

static int64_t graph_size(const int64_t *extent)
{
    return extent[0] * extent[1] * extent[2] * extent[3];
}

/* The index of element `i` of the extents. */
static void graph_index(const int64_t *extent, int64_t i, int64_t index[4])
{
    for (int k = 3; k >= 0; i /= extent[k], k--)
        index[k] = i % extent[k];
}

static int64_t graph_offset(const int64_t *stride, const int64_t index[4])
{
    return index[0] * stride[0] + index[1] * stride[1] + index[2] * stride[2] +
           index[3] * stride[3];
}

static float graph_round(int type, float x)
{
    return type == CUDNN_DATA_BFLOAT16 ? tess__f32_of_bf16(tess__bf16_of_f32(x))
           : type == CUDNN_DATA_HALF   ? tess__f32_of_f16(tess__f16_of_f32(x))
                                       : x;
}

static float graph_load(int type, const char *memory, int64_t at)
{
    uint16_t half;
    float value;
    if (type == CUDNN_DATA_FLOAT) {
        memcpy(&value, memory + 4 * at, sizeof(value));
        return value;
    }
    memcpy(&half, memory + 2 * at, sizeof(half));
    return type == CUDNN_DATA_BFLOAT16 ? tess__f32_of_bf16(half) : tess__f32_of_f16(half);
}

static void graph_save(int type, char *memory, int64_t at, float x)
{
    const uint16_t half = type == CUDNN_DATA_BFLOAT16 ? tess__bf16_of_f32(x) : tess__f16_of_f32(x);
    if (type == CUDNN_DATA_FLOAT)
        memcpy(memory + 4 * at, &x, sizeof(x));
    else
        memcpy(memory + 2 * at, &half, sizeof(half));
}

/* Is it stored, in a type and at an address that it may have? */
static bool graph_is_stored(const struct graph_state *s, const struct fake_descriptor *t)
{
    const int type = fake_word(t, CUDNN_ATTR_TENSOR_DATA_TYPE);
    const int64_t align = fake_numbers(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)[0];
    const void *memory = fake_pointer(s->run, t);
    return memory != NULL && align > 0 && (uintptr_t)memory % (uintptr_t)align == 0 &&
           (type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_BFLOAT16 || type == CUDNN_DATA_HALF);
}

static bool graph_describe(const struct fake_descriptor *operation,
                           cudnnBackendAttributeName_t name, struct graph_operand *o)
{
    o->tensor = fake_link(operation, name, 0);
    if (o->tensor == NULL || o->tensor->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR)
        return false;
    o->extent = fake_numbers(o->tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    o->stride = fake_numbers(o->tensor, CUDNN_ATTR_TENSOR_STRIDES);
    return graph_size(o->extent) > 0;
}

static bool graph_read(struct graph_state *s, const struct fake_descriptor *operation,
                       cudnnBackendAttributeName_t name, struct graph_operand *o)
{
    if (!graph_describe(operation, name, o))
        return false;
    for (int i = 0; i < s->count; i++)
        if (s->kept[i].tensor == o->tensor)
            o->values = s->kept[i].values;
    if (graph_flag(o->tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL) || o->values != NULL)
        return o->values != NULL;
    if (!graph_is_stored(s, o->tensor))
        return false;
    const int type = fake_word(o->tensor, CUDNN_ATTR_TENSOR_DATA_TYPE);
    const int64_t size = graph_size(o->extent);
    o->owned = true;
    o->values = malloc((size_t)size * sizeof(float));
    for (int64_t i = 0, index[4]; i < size; i++) {
        graph_index(o->extent, i, index);
        o->values[i] =
            graph_load(type, fake_pointer(s->run, o->tensor), graph_offset(o->stride, index));
    }
    return true;
}

static void graph_release(struct graph_operand *o)
{
    if (o->owned)
        free(o->values);
}

/* The result is complete: round it, and keep or store it. */
static bool graph_write(struct graph_state *s, const struct graph_operand *o)
{
    const int type = fake_word(o->tensor, CUDNN_ATTR_TENSOR_DATA_TYPE);
    const int64_t size = graph_size(o->extent);
    for (int64_t i = 0; i < size; i++)
        o->values[i] = graph_round(type, o->values[i]);
    if (graph_flag(o->tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL)) {
        if (s->count == GRAPH_TENSORS_MAX)
            return false;
        s->kept[s->count++] = (struct graph_kept){o->tensor, o->values};
        return true;
    }
    const bool stored =
        graph_is_stored(s, o->tensor) && !graph_flag(o->tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    for (int64_t i = 0, index[4]; i < size && stored; i++) {
        graph_index(o->extent, i, index);
        graph_save(type, fake_pointer(s->run, o->tensor), graph_offset(o->stride, index),
                   o->values[i]);
    }
    free(o->values);
    return stored;
}

/* Zeroed. */
static bool graph_begin(const struct fake_descriptor *operation, cudnnBackendAttributeName_t name,
                        struct graph_operand *y)
{
    if (!graph_describe(operation, name, y))
        return false;
    y->values = calloc((size_t)graph_size(y->extent), sizeof(float));
    return true;
}

/* Where the operand has what belongs to this index of a larger one: extents that are smaller are
 * shared by as many neighbours. */
static int64_t graph_shared(const struct graph_operand *o, const int64_t *extent,
                            const int64_t index[4])
{
    int64_t at = 0;
    for (int k = 0; k < 4; k++)
        at = at * o->extent[k] + index[k] / (extent[k] / o->extent[k]);
    return at;
}

static bool graph_divides(const struct graph_operand *o, const int64_t *extent, int count)
{
    for (int k = 0; k < count; k++)
        if (extent[k] % o->extent[k] != 0)
            return false;
    return true;
}

/* ---- operations ------------------------------------------------------------------------------ */

static bool graph_multiply(const struct graph_operand *a, const struct graph_operand *b,
                           const struct graph_operand *c)
{
    const int64_t *e = c->extent, inner = a->extent[3];
    if (!graph_divides(a, e, 2) || !graph_divides(b, e, 2) || a->extent[2] != e[2] ||
        b->extent[2] != inner || b->extent[3] != e[3])
        return false;
    for (int64_t i = 0, at[4]; i < graph_size(e); i++) {
        graph_index(e, i, at);
        const int64_t to_a =
            (at[0] / (e[0] / a->extent[0])) * a->extent[1] + at[1] / (e[1] / a->extent[1]);
        const int64_t to_b =
            (at[0] / (e[0] / b->extent[0])) * b->extent[1] + at[1] / (e[1] / b->extent[1]);
        const float *row = a->values + (to_a * e[2] + at[2]) * inner;
        const float *column = b->values + to_b * inner * e[3] + at[3];
        for (int64_t k = 0; k < inner; k++)
            c->values[i] += row[k] * column[k * e[3]];
    }
    return true;
}

static bool graph_reduce(cudnnReduceTensorOp_t mode, const struct graph_operand *x,
                         const struct graph_operand *y)
{
    const bool max = mode == CUDNN_REDUCE_TENSOR_MAX;
    if (!graph_divides(y, x->extent, 4) || (!max && mode != CUDNN_REDUCE_TENSOR_ADD))
        return false;
    for (int64_t i = 0; max && i < graph_size(y->extent); i++)
        y->values[i] = -INFINITY;
    for (int64_t i = 0, index[4]; i < graph_size(x->extent); i++) {
        graph_index(x->extent, i, index);
        float *to = &y->values[graph_shared(y, x->extent, index)];
        *to = max ? fmaxf(*to, x->values[i]) : *to + x->values[i];
    }
    return true;
}

/* The same memory with rows and columns exchanged: the only view that is modelled. */
static bool graph_exchange(const struct graph_operand *x, const struct graph_operand *y)
{
    static const int other[4] = {0, 1, 3, 2};
    for (int k = 0; k < 4; k++)
        if (x->extent[k] != y->extent[other[k]] || x->stride[k] != y->stride[other[k]])
            return false;
    for (int64_t i = 0, index[4]; i < graph_size(y->extent); i++) {
        graph_index(y->extent, i, index);
        y->values[i] = x->values[((index[0] * x->extent[1] + index[1]) * x->extent[2] + index[3]) *
                                     x->extent[3] +
                                 index[2]];
    }
    return true;
}

static float graph_apply(cudnnPointwiseMode_t mode, float x, float b, float t)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return expf(x);
    case CUDNN_POINTWISE_LOG:
        return logf(x);
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    default: /* CUDNN_POINTWISE_BINARY_SELECT */
        return t != 0 ? x : b;
    }
}

/* Operands of a mode; 0: it is not modelled. */
static int graph_arity(cudnnPointwiseMode_t mode)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_CMP_GE:
        return 2;
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_GEN_INDEX:
        return 1;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return 3;
    default:
        return 0;
    }
}

static bool graph_pointwise(struct graph_state *s, const struct fake_descriptor *operation,
                            const struct graph_operand *y)
{
    static const cudnnBackendAttributeName_t name[3] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                                                        CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                                        CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
    const struct fake_descriptor *how =
        fake_link(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 0);
    const cudnnPointwiseMode_t mode =
        (cudnnPointwiseMode_t)fake_word(how, CUDNN_ATTR_POINTWISE_MODE);
    const int arity = graph_arity(mode);
    const int64_t axis = fake_numbers(how, CUDNN_ATTR_POINTWISE_AXIS)[0];
    struct graph_operand in[3] = {{.values = NULL}};
    bool sound = arity > 0;
    for (int i = 0; i < arity; i++)
        sound = sound && graph_read(s, operation, name[i], &in[i]) &&
                graph_divides(&in[i], y->extent, 4);
    for (int i = arity; i < 3; i++)
        sound = sound && fake_find(operation, name[i]) == NULL;
    for (int64_t e = 0, index[4]; sound && e < graph_size(y->extent); e++) {
        float value[3] = {0, 0, 0};
        graph_index(y->extent, e, index);
        for (int i = 0; i < arity; i++)
            value[i] = in[i].values[graph_shared(&in[i], y->extent, index)];
        y->values[e] = mode == CUDNN_POINTWISE_GEN_INDEX
                           ? (float)index[axis]
                           : graph_apply(mode, value[0], value[1], value[2]);
    }
    for (int i = 0; i < 3; i++)
        graph_release(&in[i]);
    return sound;
}

/* What the other operations' attributes are called. */
static const struct graph_names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t a, b, y;
} graph_names[] = {
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC,
     CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_ATTR_OPERATION_MATMUL_CDESC},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
     CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_ATTR_OPERATION_REDUCTION_YDESC},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
     CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_ATTR_OPERATION_RESHAPE_YDESC},
};

static bool graph_others(struct graph_state *s, const struct fake_descriptor *operation,
                         const struct graph_names *names, const struct graph_operand *y)
{
    const struct fake_descriptor *how =
        fake_link(operation,
                  operation->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR
                      ? CUDNN_ATTR_OPERATION_MATMUL_DESC
                      : CUDNN_ATTR_OPERATION_REDUCTION_DESC,
                  0);
    struct graph_operand a = {.values = NULL}, b = {.values = NULL};
    bool sound = graph_read(s, operation, names->a, &a) && graph_read(s, operation, names->b, &b);
    if (sound && operation->type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
        sound = graph_exchange(&a, y);
    else if (sound && operation->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
        sound = fake_word(how, CUDNN_ATTR_MATMUL_COMP_TYPE) == CUDNN_DATA_FLOAT &&
                graph_multiply(&a, &b, y);
    else if (sound)
        sound = fake_word(how, CUDNN_ATTR_REDUCTION_COMP_TYPE) == CUDNN_DATA_FLOAT &&
                graph_reduce((cudnnReduceTensorOp_t)fake_word(how, CUDNN_ATTR_REDUCTION_OPERATOR),
                             &a, y);
    graph_release(&a);
    graph_release(&b);
    return sound;
}

static bool graph_run(struct graph_state *s, const struct fake_descriptor *operation)
{
    struct graph_operand y = {.values = NULL};
    size_t kind = 0;
    while (kind < 4 && graph_names[kind].type != operation->type)
        kind++;
    if (kind == 4 || !graph_begin(operation, graph_names[kind].y, &y))
        return false;
    const bool sound = kind == 0 ? graph_pointwise(s, operation, &y)
                                 : graph_others(s, operation, &graph_names[kind], &y);
    if (sound)
        return graph_write(s, &y);
    free(y.values);
    return false;
}

cudnnStatus_t fake_interpret(const struct fake_run *run)
{
    const struct fake_attribute *all = fake_find(run->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    struct graph_state s = {.run = run};
    bool sound = true;
    for (int64_t i = 0; i < all->count && sound; i++)
        sound = graph_run(&s, fake_link(run->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, i));
    for (int i = 0; i < s.count; i++)
        free(s.kept[i].values);
    return sound ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}
