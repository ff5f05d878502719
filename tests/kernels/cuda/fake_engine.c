/* The made-up cuDNN of fake_engine.h: its descriptors and its interface. Descriptors hold on to
 * those that they were linked to, as the library's do, so their memory is given back by fake_clear
 * alone. */
#include "fake_descriptor.h"

#include <pthread.h>

#include <stdlib.h>
#include <string.h>

struct fake_engine fake_engine;
static struct fake_descriptor *fake_last;
static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER; /* of the list and of the counts */

static bool fake_fails(void)
{
    return fake_engine.failing > 0 && --fake_engine.failing == 0;
}

static void fake_count(int change)
{
    (void)pthread_mutex_lock(&fake_lock);
    fake_engine.alive += change;
    (void)pthread_mutex_unlock(&fake_lock);
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
    case CUDNN_TYPE_DOUBLE:
        return sizeof(double);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    default:
        return sizeof(int); /* enumerations */
    }
}

const struct fake_attribute *fake_find(const struct fake_descriptor *d,
                                       cudnnBackendAttributeName_t name)
{
    for (int i = 0; i < d->count; i++)
        if (d->attribute[i].name == name)
            return &d->attribute[i];
    return NULL;
}

struct fake_descriptor *fake_link(const struct fake_descriptor *d, cudnnBackendAttributeName_t name,
                                  int64_t index)
{
    const struct fake_attribute *a = fake_find(d, name);
    struct fake_descriptor *link = NULL;
    if (a != NULL && index < a->count)
        memcpy(&link, a->value + (size_t)index * sizeof(link), sizeof(link));
    return link;
}

const int64_t *fake_numbers(const struct fake_descriptor *d, cudnnBackendAttributeName_t name)
{
    static const int64_t none[8];
    const struct fake_attribute *a = fake_find(d, name);
    return a != NULL ? (const int64_t *)(const void *)a->value : none;
}

int fake_word(const struct fake_descriptor *d, cudnnBackendAttributeName_t name)
{
    int word = -1;
    const struct fake_attribute *a = fake_find(d, name);
    if (a != NULL)
        memcpy(&word, a->value, sizeof(word));
    return word;
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
    struct fake_handle *made = calloc(1, sizeof(*made));
    *handle = (cudnnHandle_t)(void *)made;
    fake_count(1);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_destroy(cudnnHandle_t handle)
{
    free(handle);
    fake_count(-1);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_stream(cudnnHandle_t handle, cudaStream_t stream)
{
    ((struct fake_handle *)(void *)handle)->stream = stream;
    return fake_fails() ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_make(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    if (fake_fails())
        return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    struct fake_descriptor *d = calloc(1, sizeof(*d));
    d->type = type;
    (void)pthread_mutex_lock(&fake_lock);
    d->next = fake_last;
    fake_last = d;
    fake_engine.alive++;
    (void)pthread_mutex_unlock(&fake_lock);
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t fake_drop(cudnnBackendDescriptor_t descriptor)
{
    struct fake_descriptor *d = descriptor;
    if (d->dropped)
        return CUDNN_STATUS_BAD_PARAM;
    d->dropped = true;
    fake_count(-1);
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

/* ---- running --------------------------------------------------------------------------------- */

void *fake_pointer(const struct fake_run *run, const struct fake_descriptor *tensor)
{
    const int64_t id = fake_numbers(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID)[0];
    for (int64_t i = 0; i < run->count; i++)
        if (run->id[i] == id)
            return run->pointer[i];
    return NULL;
}

cudnnStatus_t fake_prepare(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                           cudnnBackendDescriptor_t pack, struct fake_run *run_out)
{
    const struct fake_descriptor *about = plan, *config, *given = pack;
    const struct fake_attribute *ids = fake_find(given, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    config = fake_link(about, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 0);
    if (handle == NULL || config == NULL || ids == NULL || !about->finished || !given->finished ||
        ids->count > FAKE_OPERANDS || fake_fails())
        return CUDNN_STATUS_EXECUTION_FAILED;
    *run_out = (struct fake_run){.graph = config->graph, .count = ids->count};
    memcpy(run_out->id, ids->value, (size_t)ids->count * sizeof(int64_t));
    for (int64_t i = 0; i < ids->count; i++)
        run_out->pointer[i] = fake_link(given, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, i);
    (void)pthread_mutex_lock(&fake_lock);
    fake_engine.workspace = fake_link(given, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 0);
    (void)pthread_mutex_unlock(&fake_lock);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t fake_compute(const struct fake_run *run)
{
    switch (fake_link(run->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, 0)->type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        return fake_convolve(run);
    default:
        return fake_interpret(run);
    }
}

static cudnnStatus_t fake_execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    struct fake_run run;
    cudnnStatus_t status = fake_prepare(handle, plan, pack, &run);
    if (status == CUDNN_STATUS_SUCCESS)
        status = fake_compute(&run);
    fake_engine.runs += status == CUDNN_STATUS_SUCCESS;
    return status;
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
