/* The made-up cuDNN of fake_engine.h. Descriptors hold on to those that they were linked to, as the
 * library's do, so their memory is given back by fake_clear alone. */
#include "fake_engine.h"

#include <stdlib.h>
#include <string.h>

#define FAKE_ATTRIBUTES 16
#define FAKE_BYTES      64

struct fake_attribute {
    cudnnBackendAttributeName_t name;
    int64_t count;
    char value[FAKE_BYTES];
};

struct fake_descriptor {
    cudnnBackendDescriptorType_t type;
    struct fake_descriptor *next; /* made before this one */
    bool finished, dropped;
    int count;
    struct fake_attribute attribute[FAKE_ATTRIBUTES];
    /* Of configurations and engines: */
    struct fake_descriptor *graph;
    bool unsteady;
};

struct fake_engine fake_engine;
static struct fake_descriptor *fake_last;

static bool fake_fails(void)
{
    return fake_engine.failing > 0 && --fake_engine.failing == 0;
}

static size_t fake_size(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_INT64:
        return sizeof(int64_t);
    case CUDNN_TYPE_FLOAT:
        return sizeof(float);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    default:
        return sizeof(int); /* enumerations */
    }
}

static const struct fake_attribute *fake_find(const struct fake_descriptor *d,
                                              cudnnBackendAttributeName_t name)
{
    for (int i = 0; i < d->count; i++)
        if (d->attribute[i].name == name)
            return &d->attribute[i];
    return NULL;
}

static struct fake_descriptor *fake_link(const struct fake_descriptor *d,
                                         cudnnBackendAttributeName_t name, int64_t index)
{
    const struct fake_attribute *a = fake_find(d, name);
    struct fake_descriptor *link = NULL;
    if (a != NULL && index < a->count)
        memcpy(&link, a->value + (size_t)index * sizeof(link), sizeof(link));
    return link;
}

static const int64_t *fake_numbers(const struct fake_descriptor *d,
                                   cudnnBackendAttributeName_t name)
{
    static const int64_t none[8];
    const struct fake_attribute *a = fake_find(d, name);
    return a != NULL ? (const int64_t *)(const void *)a->value : none;
}

/* ---- the interface --------------------------------------------------------------------------- */

static size_t fake_version(void)
{
    return CUDNN_VERSION;
}

static const char *fake_error(cudnnStatus_t error)
{
    return error == CUDNN_STATUS_SUCCESS ? "fine" : "not fine";
}

static void fake_last_error(char *text, size_t bytes)
{
    if (bytes > 0)
        text[0] = '\0';
}

static cudnnStatus_t fake_create(cudnnHandle_t *handle)
{
    if (fake_fails())
        return CUDNN_STATUS_NOT_INITIALIZED;
    *handle = malloc(1);
    fake_engine.alive++;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_destroy(cudnnHandle_t handle)
{
    free(handle);
    fake_engine.alive--;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_stream(cudnnHandle_t handle, cudaStream_t stream)
{
    (void)handle, (void)stream;
    return fake_fails() ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_make(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    if (fake_fails())
        return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    struct fake_descriptor *d = calloc(1, sizeof(*d));
    d->type = type;
    d->next = fake_last;
    fake_last = d;
    fake_engine.alive++;
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_drop(cudnnBackendDescriptor_t descriptor)
{
    struct fake_descriptor *d = descriptor;
    if (d->dropped)
        return CUDNN_STATUS_BAD_PARAM;
    d->dropped = true;
    fake_engine.alive--;
    return CUDNN_STATUS_SUCCESS;
}

void fake_clear(void)
{
    while (fake_last != NULL) {
        struct fake_descriptor *next = fake_last->next;
        free(fake_last);
        fake_last = next;
    }
    fake_engine = (struct fake_engine){0};
}

static cudnnStatus_t fake_finish(cudnnBackendDescriptor_t descriptor)
{
    struct fake_descriptor *d = descriptor;
    if (d->finished || fake_fails())
        return CUDNN_STATUS_BAD_PARAM;
    d->finished = true;
    return CUDNN_STATUS_SUCCESS;
}

/* Only before the descriptor is finished, each attribute once, links to what is finished. */
static cudnnStatus_t fake_set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                              cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    struct fake_descriptor *d = descriptor;
    const size_t bytes = (size_t)count * fake_size(type);
    if (d->finished || d->count == FAKE_ATTRIBUTES || fake_find(d, name) != NULL || count < 1 ||
        bytes > FAKE_BYTES || fake_fails())
        return CUDNN_STATUS_BAD_PARAM;
    struct fake_attribute *a = &d->attribute[d->count++];
    *a = (struct fake_attribute){.name = name, .count = count};
    memcpy(a->value, values, bytes);
    for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++)
        if (!fake_link(d, name, i)->finished)
            return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    return CUDNN_STATUS_SUCCESS;
}

/* Two pieces of advice: an engine whose bits change, then one whose do not. */
static void fake_advise(const struct fake_descriptor *advice, struct fake_descriptor **config)
{
    for (int i = 0; i < 2; i++) {
        config[i]->graph = fake_link(advice, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 0);
        config[i]->unsteady = i == 0 || fake_engine.shy;
        config[i]->finished = true;
    }
}

static cudnnStatus_t fake_get(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                              cudnnBackendAttributeType_t type, int64_t asked, int64_t *count,
                              void *values)
{
    struct fake_descriptor *d = descriptor;
    (void)type;
    if (!d->finished || asked < 1 || fake_fails())
        return CUDNN_STATUS_BAD_PARAM;
    *count = 1;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        *count = 2;
        fake_advise(d, values);
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        (*(struct fake_descriptor **)values)->unsteady = d->unsteady;
        (*(struct fake_descriptor **)values)->finished = true;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
        *(int64_t *)values = d->unsteady ? 1 : 2;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *count = d->unsteady;
        *(cudnnBackendNumericalNote_t *)values = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *(int64_t *)values = fake_engine.room;
        return CUDNN_STATUS_SUCCESS;
    default:
        return CUDNN_STATUS_BAD_PARAM;
    }
}

/* ---- the engine ------------------------------------------------------------------------------ */

struct fake_tensor {
    const int64_t *extent, *stride;
    float *at;
};

/* The tensor behind an operation's attribute; `at` is NULL where the pack has no pointer. */
static struct fake_tensor fake_tensor(const struct fake_descriptor *operation,
                                      cudnnBackendAttributeName_t name,
                                      const struct fake_descriptor *pack)
{
    const struct fake_descriptor *d = fake_link(operation, name, 0);
    struct fake_tensor t = {.extent = fake_numbers(d, CUDNN_ATTR_TENSOR_DIMENSIONS),
                            .stride = fake_numbers(d, CUDNN_ATTR_TENSOR_STRIDES)};
    const struct fake_attribute *ids = fake_find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const int64_t id = fake_numbers(d, CUDNN_ATTR_TENSOR_UNIQUE_ID)[0];
    for (int64_t i = 0; i < ids->count; i++)
        if (fake_numbers(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)[i] == id)
            t.at = (float *)(void *)fake_link(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i);
    return t;
}

static float *fake_at(const struct fake_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return t->at + a * t->stride[0] + b * t->stride[1] + c * t->stride[2] + d * t->stride[3];
}

struct fake_work {
    struct fake_tensor x, w, y, bias;
    cudnnBackendDescriptorType_t type;
    int64_t padding[2], stride[2];
};

/* All products of one element of y: its sum, or what it gives to the others'. */
static void fake_place(const struct fake_work *k, int64_t n, int64_t o, int64_t oh, int64_t ow)
{
    float *y = fake_at(&k->y, n, o, oh, ow);
    for (int64_t i = 0; i < k->w.extent[1]; i++)
        for (int64_t h = 0; h < k->w.extent[2]; h++)
            for (int64_t v = 0; v < k->w.extent[3]; v++) {
                const int64_t row = oh * k->stride[0] + h - k->padding[0];
                const int64_t column = ow * k->stride[1] + v - k->padding[1];
                if (row < 0 || row >= k->x.extent[2] || column < 0 || column >= k->x.extent[3])
                    continue;
                float *x = fake_at(&k->x, n, i, row, column), *w = fake_at(&k->w, o, i, h, v);
                if (k->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
                    *y += *x * *w;
                else if (k->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
                    *x += *y * *w;
                else
                    *w += *y * *x;
            }
}

static void fake_begin(const struct fake_tensor *t, const struct fake_tensor *bias)
{
    for (int64_t a = 0; a < t->extent[0]; a++)
        for (int64_t b = 0; b < t->extent[1]; b++)
            for (int64_t c = 0; c < t->extent[2]; c++)
                for (int64_t d = 0; d < t->extent[3]; d++)
                    *fake_at(t, a, b, c, d) = bias->at != NULL ? *fake_at(bias, 0, b, 0, 0) : 0;
}

static void fake_compute(const struct fake_work *k)
{
    const bool forward = k->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
    const bool data = k->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
    fake_begin(forward ? &k->y : data ? &k->x : &k->w, &k->bias);
    for (int64_t n = 0; n < k->y.extent[0]; n++)
        for (int64_t o = 0; o < k->y.extent[1]; o++)
            for (int64_t h = 0; h < k->y.extent[2]; h++)
                for (int64_t v = 0; v < k->y.extent[3]; v++)
                    fake_place(k, n, o, h, v);
}

static int fake_word(const struct fake_descriptor *d, cudnnBackendAttributeName_t name)
{
    int word = -1;
    const struct fake_attribute *a = fake_find(d, name);
    if (a != NULL)
        memcpy(&word, a->value, sizeof(word));
    return word;
}

/* Is it the window of kernel.h: not turned round, no gaps, as much around on every side, in f32? */
static bool fake_window(const struct fake_descriptor *d)
{
    const int64_t *before = fake_numbers(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    const int64_t *after = fake_numbers(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
    const int64_t *gaps = fake_numbers(d, CUDNN_ATTR_CONVOLUTION_DILATIONS);
    return fake_word(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE) == CUDNN_CROSS_CORRELATION &&
           fake_word(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE) == CUDNN_DATA_FLOAT && gaps[0] == 1 &&
           gaps[1] == 1 && before[0] == after[0] && before[1] == after[1] &&
           fake_numbers(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS)[0] == 2;
}

/* By kind of operation: the attributes of x, w, y and the window. */
static const cudnnBackendAttributeName_t fake_name[3][5] = {
    {(cudnnBackendAttributeName_t)CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC},
    {(cudnnBackendAttributeName_t)CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC},
    {(cudnnBackendAttributeName_t)CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC},
};

/* The sum that is never stored, and what the bias is added to, are here one array: y. */
static cudnnStatus_t fake_execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    const struct fake_descriptor *config =
        fake_link(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 0);
    const struct fake_descriptor *operation =
        fake_link(config->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, 0);
    const struct fake_descriptor *add = fake_link(config->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, 1);
    struct fake_work k = {.type = operation->type};
    int kind = 0;
    while (kind < 2 && (int)fake_name[kind][0] != (int)k.type)
        kind++;
    k.x = fake_tensor(operation, fake_name[kind][1], pack);
    k.w = fake_tensor(operation, fake_name[kind][2], pack);
    k.y = fake_tensor(operation, fake_name[kind][3], pack);
    const struct fake_descriptor *window = fake_link(operation, fake_name[kind][4], 0);
    memcpy(k.padding, fake_numbers(window, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS), sizeof(k.padding));
    memcpy(k.stride, fake_numbers(window, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES), sizeof(k.stride));
    if (add != NULL) {
        const struct fake_descriptor *sum = fake_link(operation, fake_name[kind][3], 0);
        const struct fake_descriptor *pointwise =
            fake_link(add, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 0);
        if (sum != fake_link(add, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 0) ||
            fake_word(pointwise, CUDNN_ATTR_POINTWISE_MODE) != CUDNN_POINTWISE_ADD)
            return CUDNN_STATUS_EXECUTION_FAILED;
        k.y = fake_tensor(add, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, pack);
        k.bias = fake_tensor(add, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, pack);
    }
    if (handle == NULL || !fake_window(window) || k.x.at == NULL || k.w.at == NULL ||
        k.y.at == NULL || (add != NULL && k.bias.at == NULL) || fake_fails())
        return CUDNN_STATUS_EXECUTION_FAILED;
    fake_engine.workspace = fake_link(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 0);
    fake_compute(&k);
    fake_engine.runs++;
    return CUDNN_STATUS_SUCCESS;
}

const struct cudnn_library fake_library = {
    .cudnnGetVersion = fake_version,
    .cudnnGetErrorString = fake_error,
    .cudnnGetLastErrorString = fake_last_error,
    .cudnnCreate = fake_create,
    .cudnnDestroy = fake_destroy,
    .cudnnSetStream = fake_stream,
    .cudnnBackendCreateDescriptor = fake_make,
    .cudnnBackendDestroyDescriptor = fake_drop,
    .cudnnBackendFinalize = fake_finish,
    .cudnnBackendSetAttribute = fake_set,
    .cudnnBackendGetAttribute = fake_get,
    .cudnnBackendExecute = fake_execute,
};
