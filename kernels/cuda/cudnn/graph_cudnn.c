/* A graph of cuDNN as it is built: descriptors, tensors, operations. Nothing runs here, and no
 * device memory is touched. */
#include "cuda/cudnn/cudnn.h"

/* ---- descriptors -------------------------------------------------------------------------- */

enum tess_status tess__cudnn_make(struct cudnn_graph *g, cudnnBackendDescriptorType_t type,
                                  cudnnBackendDescriptor_t *out)
{
    if (g->made_count == CUDNN_GRAPH_DESCRIPTORS)
        TESS_FAIL(TESS_ERR_INTERNAL, "a graph of more than %d descriptors",
                  CUDNN_GRAPH_DESCRIPTORS);
    CUDNN_TRY(g->library->cudnnBackendCreateDescriptor(type, out));
    g->made[g->made_count++] = *out;
    return TESS_OK;
}

void tess__cudnn_drop(struct cudnn_graph *g, int kept)
{
    while (g->made_count > kept) {
        cudnnBackendDescriptor_t last = g->made[--g->made_count];
        if (last != NULL && g->library->cudnnBackendDestroyDescriptor(last) != CUDNN_STATUS_SUCCESS)
            tess_log(TESS_LOG_DEBUG, "cudnnBackendDestroyDescriptor failed");
    }
}

void tess__cudnn_keep(struct cudnn_graph *g, cudnnBackendDescriptor_t descriptor)
{
    for (int i = 0; i < g->made_count; i++)
        if (g->made[i] == descriptor)
            g->made[i] = NULL;
}

enum tess_status tess__cudnn_set(const struct cudnn_graph *g, cudnnBackendDescriptor_t descriptor,
                                 cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                 int64_t count, const void *values)
{
    CUDNN_TRY(g->library->cudnnBackendSetAttribute(descriptor, name, type, count, values));
    return TESS_OK;
}

enum tess_status tess__cudnn_link(const struct cudnn_graph *g, cudnnBackendDescriptor_t descriptor,
                                  cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t target)
{
    return tess__cudnn_set(g, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &target);
}

enum tess_status tess__cudnn_finish(const struct cudnn_graph *g,
                                    cudnnBackendDescriptor_t descriptor)
{
    CUDNN_TRY(g->library->cudnnBackendFinalize(descriptor));
    return TESS_OK;
}

/* ---- tensors and operations --------------------------------------------------------------- */

enum tess_status tess__cudnn_add_tensor(struct cudnn_graph *g, const struct cudnn_tensor *tensor,
                                        cudnnBackendDescriptor_t *out)
{
    cudnnBackendDescriptor_t t;
    TESS_TRY(tess__cudnn_make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, &t));
    TESS_TRY(
        tess__cudnn_set(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &tensor->type));
    TESS_TRY(
        tess__cudnn_set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, tensor->extent));
    TESS_TRY(tess__cudnn_set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, tensor->stride));
    TESS_TRY(tess__cudnn_set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &tensor->id));
    TESS_TRY(tess__cudnn_set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1,
                             &tensor->align));
    TESS_TRY(tess__cudnn_set(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1,
                             &tensor->virtual));
    if (tensor->by_value)
        TESS_TRY(tess__cudnn_set(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1,
                                 &tensor->by_value));
    *out = t;
    return tess__cudnn_finish(g, t);
}

enum tess_status tess__cudnn_add_operation(struct cudnn_graph *g,
                                           cudnnBackendDescriptor_t operation)
{
    if (g->operation_count == CUDNN_GRAPH_OPERATIONS)
        TESS_FAIL(TESS_ERR_INTERNAL, "a graph of more than %d operations", CUDNN_GRAPH_OPERATIONS);
    TESS_TRY(tess__cudnn_finish(g, operation));
    g->operation[g->operation_count++] = operation;
    return TESS_OK;
}

enum tess_status tess__cudnn_add_pointwise(struct cudnn_graph *g, const struct cudnn_pointwise *p)
{
    cudnnBackendDescriptor_t how, d;
    TESS_TRY(tess__cudnn_make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &how));
    TESS_TRY(
        tess__cudnn_set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p->mode));
    TESS_TRY(tess__cudnn_set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1,
                             &p->compute));
    if (p->mode == CUDNN_POINTWISE_GEN_INDEX)
        TESS_TRY(tess__cudnn_set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &p->axis));
    TESS_TRY(tess__cudnn_finish(g, how));
    TESS_TRY(tess__cudnn_make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, &d));
    TESS_TRY(tess__cudnn_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how));
    TESS_TRY(tess__cudnn_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p->x));
    if (p->b != NULL)
        TESS_TRY(tess__cudnn_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p->b));
    if (p->t != NULL)
        TESS_TRY(tess__cudnn_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p->t));
    TESS_TRY(tess__cudnn_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, p->y));
    return tess__cudnn_add_operation(g, d);
}
