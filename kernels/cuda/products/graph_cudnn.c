/*
 * A convolution as a graph of cuDNN: its descriptors, and the choice of an engine among those that
 * the library proposes. Nothing runs here, and no device memory is touched.
 *
 * An engine is skipped where its notes allow different bits in two runs, sums in less than f32, or
 * a computation other than the sum of products (Winograd, FFT: their error is not that of a sum).
 * f32 needs one without tensor cores, unless TF32 was chosen.
 */
#include "cuda/products/cudnn.h"

#include <stdio.h>

/* All that is made on the way: tensors, operations, the graph, advice. */
#define GRAPH_DESCRIPTORS 160
#define GRAPH_CANDIDATES  64 /* of one sort of advice */

/* What a plan may need beside its operands: as much as the windows of the other way (conv.c). */
#define GRAPH_WORKSPACE_BYTES ((int64_t)64 << 20)

#define GRAPH_ALIGN_MAX 64

struct graph {
    const struct cudnn_library *library;
    const struct cudnn_conv *conv;
    const struct cudnn_place *place;
    cudnnBackendDescriptor_t made[GRAPH_DESCRIPTORS];
    int made_count;
    cudnnBackendDescriptor_t tensor[CUDNN_SUM + 1], whole;
};

/* The attributes of the three operations, which differ in their names alone. */
static const struct graph_operation {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t conv, x, w, y, alpha, beta;
} graph_operation[CONV_WAY_COUNT] = {
#define GRAPH_FORWARD                                                                              \
    {                                                                                              \
        CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,                                    \
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,                                    \
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,                                            \
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,                                            \
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,                                            \
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,                                        \
            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA                                          \
    }
    [CONV_FORWARD] = GRAPH_FORWARD,
    [CONV_FORWARD_BIAS] = GRAPH_FORWARD,
    [CONV_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [CONV_WEIGHT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

/* ---- descriptors -------------------------------------------------------------------------- */

static void graph_log(const struct graph *g, cudnnStatus_t error, const char *where)
{
    if (error != CUDNN_STATUS_SUCCESS)
        tess_log(TESS_LOG_DEBUG, "%s: %s", where, g->library->cudnnGetErrorString(error));
}

static enum tess_status graph_make(struct graph *g, cudnnBackendDescriptorType_t type,
                                   cudnnBackendDescriptor_t *out)
{
    if (g->made_count == GRAPH_DESCRIPTORS)
        TESS_FAIL(TESS_ERR_INTERNAL, "a graph of more than %d descriptors", GRAPH_DESCRIPTORS);
    CUDNN_TRY(g->library->cudnnBackendCreateDescriptor(type, out));
    g->made[g->made_count++] = *out;
    return TESS_OK;
}

/* Destroy all but what was made until there were `kept`. */
static void graph_drop(struct graph *g, int kept)
{
    while (g->made_count > kept) {
        cudnnBackendDescriptor_t last = g->made[--g->made_count];
        if (last != NULL)
            graph_log(g, g->library->cudnnBackendDestroyDescriptor(last),
                      "cudnnBackendDestroyDescriptor");
    }
}

/* The caller's from here on. */
static void graph_keep(struct graph *g, cudnnBackendDescriptor_t descriptor)
{
    for (int i = 0; i < g->made_count; i++)
        if (g->made[i] == descriptor)
            g->made[i] = NULL;
}

static enum tess_status graph_set(const struct graph *g, cudnnBackendDescriptor_t descriptor,
                                  cudnnBackendAttributeName_t name,
                                  cudnnBackendAttributeType_t type, int64_t count,
                                  const void *values)
{
    CUDNN_TRY(g->library->cudnnBackendSetAttribute(descriptor, name, type, count, values));
    return TESS_OK;
}

static enum tess_status graph_link(const struct graph *g, cudnnBackendDescriptor_t descriptor,
                                   cudnnBackendAttributeName_t name,
                                   cudnnBackendDescriptor_t target)
{
    return graph_set(g, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &target);
}

static enum tess_status graph_finish(const struct graph *g, cudnnBackendDescriptor_t descriptor)
{
    CUDNN_TRY(g->library->cudnnBackendFinalize(descriptor));
    return TESS_OK;
}

static bool graph_unsupported(cudnnStatus_t error)
{
    return CUDNN_STATUS_CATEGORY(error) == CUDNN_STATUS_NOT_SUPPORTED;
}

/* ---- tensors ------------------------------------------------------------------------------ */

static cudnnDataType_t graph_type(const struct cudnn_conv *c, enum cudnn_tensor tensor)
{
    if (tensor == CUDNN_SUM || (tensor == CUDNN_W && c->way == CONV_WEIGHT))
        return CUDNN_DATA_FLOAT;
    return c->d.dtype == TESS_BF16  ? CUDNN_DATA_BFLOAT16
           : c->d.dtype == TESS_F16 ? CUDNN_DATA_HALF
                                    : CUDNN_DATA_FLOAT;
}

static int64_t graph_output(const struct cudnn_conv *c, int64_t size)
{
    return tess_op_output_size(size, c->d.window, c->d.stride, c->d.padding);
}

int64_t tess__cudnn_alignment(const struct cudnn_conv *c, enum cudnn_tensor tensor)
{
    const int64_t elements = tensor == CUDNN_X ? c->d.leaf_rows * c->d.height * c->d.width * c->d.in
                             : tensor == CUDNN_W ? c->d.window * c->d.window * c->d.in
                             : tensor == CUDNN_BIAS
                                 ? c->d.out
                                 : c->d.leaf_rows * graph_output(c, c->d.height) *
                                       graph_output(c, c->d.width) * c->d.out;
    const int64_t bytes = elements * (graph_type(c, tensor) == CUDNN_DATA_FLOAT ? 4 : 2);
    const int64_t power = bytes & -bytes; /* the greatest power of two that divides it */
    return power < GRAPH_ALIGN_MAX ? power : GRAPH_ALIGN_MAX;
}

/* Extents go as images, channels, height, width, whatever the layout; by the strides, channels are
 * innermost. */
static enum tess_status graph_add_tensor(struct graph *g, enum cudnn_tensor which)
{
    const struct cudnn_conv *c = g->conv;
    const bool result = which == CUDNN_Y || which == CUDNN_SUM;
    const int64_t extent[4] = {
        which == CUDNN_W      ? c->d.out
        : which == CUDNN_BIAS ? 1
                              : c->d.leaf_rows,
        result || which == CUDNN_BIAS ? c->d.out : c->d.in,
        which == CUDNN_X   ? c->d.height
        : which == CUDNN_W ? c->d.window
        : result           ? graph_output(c, c->d.height)
                           : 1,
        which == CUDNN_X   ? c->d.width
        : which == CUDNN_W ? c->d.window
        : result           ? graph_output(c, c->d.width)
                           : 1,
    };
    const int64_t stride[4] = {extent[1] * extent[2] * extent[3], 1, extent[1] * extent[3],
                               extent[1]};
    const int64_t id = which, align = tess__cudnn_alignment(c, which);
    const cudnnDataType_t type = graph_type(c, which);
    const bool virtual = which == CUDNN_SUM;
    cudnnBackendDescriptor_t t;
    TESS_TRY(graph_make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, &t));
    TESS_TRY(graph_set(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    TESS_TRY(graph_set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, extent));
    TESS_TRY(graph_set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride));
    TESS_TRY(graph_set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id));
    TESS_TRY(graph_set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align));
    TESS_TRY(graph_set(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &virtual));
    g->tensor[which] = t;
    return graph_finish(g, t);
}

/* ---- operations --------------------------------------------------------------------------- */

static enum tess_status graph_add_window(struct graph *g, cudnnBackendDescriptor_t *out)
{
    const struct cudnn_conv *c = g->conv;
    const int64_t axes = 2, padding[2] = {c->d.padding, c->d.padding},
                  stride[2] = {c->d.stride, c->d.stride}, dilation[2] = {1, 1};
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnBackendDescriptor_t d;
    TESS_TRY(graph_make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, &d));
    TESS_TRY(graph_set(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TESS_TRY(
        graph_set(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode));
    TESS_TRY(graph_set(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &axes));
    TESS_TRY(graph_set(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, padding));
    TESS_TRY(graph_set(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, padding));
    TESS_TRY(graph_set(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride));
    TESS_TRY(graph_set(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation));
    *out = d;
    return graph_finish(g, d);
}

static enum tess_status graph_add_conv(struct graph *g, cudnnBackendDescriptor_t *out)
{
    const struct graph_operation *names = &graph_operation[g->conv->way];
    const enum cudnn_tensor y = g->conv->way == CONV_FORWARD_BIAS ? CUDNN_SUM : CUDNN_Y;
    const float alpha = 1, beta = 0;
    cudnnBackendDescriptor_t window, d;
    TESS_TRY(graph_add_window(g, &window));
    TESS_TRY(graph_make(g, names->type, &d));
    TESS_TRY(graph_link(g, d, names->conv, window));
    TESS_TRY(graph_link(g, d, names->x, g->tensor[CUDNN_X]));
    TESS_TRY(graph_link(g, d, names->w, g->tensor[CUDNN_W]));
    TESS_TRY(graph_link(g, d, names->y, g->tensor[y]));
    TESS_TRY(graph_set(g, d, names->alpha, CUDNN_TYPE_FLOAT, 1, &alpha));
    TESS_TRY(graph_set(g, d, names->beta, CUDNN_TYPE_FLOAT, 1, &beta));
    *out = d;
    return graph_finish(g, d);
}

/* y = the sum, which is f32 and never stored, + bias: rounded once. */
static enum tess_status graph_add_bias(struct graph *g, cudnnBackendDescriptor_t *out)
{
    const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_ADD;
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t add, d;
    TESS_TRY(graph_make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &add));
    TESS_TRY(graph_set(g, add, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode));
    TESS_TRY(graph_set(g, add, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TESS_TRY(graph_finish(g, add));
    TESS_TRY(graph_make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, &d));
    TESS_TRY(graph_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, add));
    TESS_TRY(graph_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, g->tensor[CUDNN_SUM]));
    TESS_TRY(graph_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, g->tensor[CUDNN_BIAS]));
    TESS_TRY(graph_link(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, g->tensor[CUDNN_Y]));
    *out = d;
    return graph_finish(g, d);
}

/* *taken_out: cuDNN supports this pattern of operations and types. */
static enum tess_status graph_build(struct graph *g, bool *taken_out)
{
    const bool bias = g->conv->way == CONV_FORWARD_BIAS;
    cudnnBackendDescriptor_t operation[2];
    TESS_TRY(graph_add_tensor(g, CUDNN_X));
    TESS_TRY(graph_add_tensor(g, CUDNN_W));
    TESS_TRY(graph_add_tensor(g, CUDNN_Y));
    if (bias) {
        TESS_TRY(graph_add_tensor(g, CUDNN_BIAS));
        TESS_TRY(graph_add_tensor(g, CUDNN_SUM));
    }
    TESS_TRY(graph_add_conv(g, &operation[0]));
    if (bias)
        TESS_TRY(graph_add_bias(g, &operation[1]));
    TESS_TRY(graph_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &g->whole));
    TESS_TRY(graph_set(g, g->whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                       bias ? 2 : 1, operation));
    if (g->place->handle != NULL)
        TESS_TRY(graph_set(g, g->whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                           &g->place->handle));
    const cudnnStatus_t error = g->library->cudnnBackendFinalize(g->whole);
    *taken_out = !graph_unsupported(error);
    return *taken_out && error != CUDNN_STATUS_SUCCESS
               ? tess__cudnn_fail(error, "cudnnBackendFinalize")
               : TESS_OK;
}

/* ---- the choice --------------------------------------------------------------------------- */

/* The device of an advice or a plan, where it is not the handle's. */
static enum tess_status graph_set_device(struct graph *g, cudnnBackendDescriptor_t descriptor,
                                         bool plan)
{
    if (g->place->properties == NULL)
        return TESS_OK;
#if CUDNN_VERSION >= 90800
    return graph_link(g, descriptor,
                      plan ? CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP
                           : CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                      g->place->properties);
#else
    (void)descriptor, (void)plan;
    TESS_FAIL(TESS_ERR_UNSUPPORTED, "plans for a device that is described are of cuDNN 9.8");
#endif
}

static uint32_t graph_forbidden(const struct cudnn_conv *c)
{
    const uint32_t always =
        1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC | 1u << CUDNN_NUMERICAL_NOTE_FFT |
        1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION |
        1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS | 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD |
        1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4 |
        1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 |
        1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;
    const bool exact = c->d.dtype == TESS_F32 && !c->tf32;
    return always | (exact ? 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE : 0);
}

/* Which engine a piece of advice is about, and what is to be known of it. */
static enum tess_status graph_look(struct graph *g, cudnnBackendDescriptor_t config,
                                   struct cudnn_choice *look)
{
    cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine;
    int64_t count = 0;
    TESS_TRY(graph_make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    CUDNN_TRY(g->library->cudnnBackendGetAttribute(
        config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine));
    CUDNN_TRY(g->library->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                                   CUDNN_TYPE_INT64, 1, &count, &look->engine));
    CUDNN_TRY(g->library->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                   CUDNN_TYPE_NUMERICAL_NOTE,
                                                   CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, note));
    look->notes = 0;
    for (int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++)
        look->notes |= 1u << note[i];
    return TESS_OK;
}

/* Make the plan; look->plan is NULL where this one does not work here or needs too much. */
static enum tess_status graph_try(struct graph *g, cudnnBackendDescriptor_t config,
                                  struct cudnn_choice *look)
{
    cudnnBackendDescriptor_t plan;
    int64_t count;
    look->plan = NULL;
    TESS_TRY(graph_make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan));
    TESS_TRY(graph_link(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
    if (g->place->handle != NULL)
        TESS_TRY(graph_set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                           &g->place->handle));
    TESS_TRY(graph_set_device(g, plan, true));
    const cudnnStatus_t error = g->library->cudnnBackendFinalize(plan);
    if (error != CUDNN_STATUS_SUCCESS) {
        graph_log(g, error, "a plan that cuDNN advises");
        return TESS_OK;
    }
    CUDNN_TRY(g->library->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                   CUDNN_TYPE_INT64, 1, &count,
                                                   &look->workspace_bytes));
    if (look->workspace_bytes <= GRAPH_WORKSPACE_BYTES)
        look->plan = plan;
    return TESS_OK;
}

/* Query the heuristics of one mode, the best first; *count_out is 0 where there is none. */
static enum tess_status graph_query(struct graph *g, cudnnBackendHeurMode_t mode,
                                    cudnnBackendDescriptor_t config[GRAPH_CANDIDATES],
                                    int64_t *count_out)
{
    cudnnBackendDescriptor_t advice;
    *count_out = 0;
    TESS_TRY(graph_make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &advice));
    TESS_TRY(graph_link(g, advice, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, g->whole));
    TESS_TRY(graph_set(g, advice, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    TESS_TRY(graph_set_device(g, advice, false));
    const cudnnStatus_t error = g->library->cudnnBackendFinalize(advice);
    if (graph_unsupported(error))
        return TESS_OK;
    if (error != CUDNN_STATUS_SUCCESS)
        return tess__cudnn_fail(error, "cudnnBackendFinalize");
    for (int i = 0; i < GRAPH_CANDIDATES; i++)
        TESS_TRY(graph_make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[i]));
    CUDNN_TRY(g->library->cudnnBackendGetAttribute(advice, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, GRAPH_CANDIDATES,
                                                   count_out, config));
    return TESS_OK;
}

static enum tess_status graph_choose(struct graph *g, struct cudnn_choice *choice)
{
    static const cudnnBackendHeurMode_t mode[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    bool taken;
    TESS_TRY(graph_build(g, &taken));
    for (int m = 0; m < 2 && taken; m++) {
        const int kept = g->made_count;
        cudnnBackendDescriptor_t config[GRAPH_CANDIDATES];
        int64_t count;
        TESS_TRY(graph_query(g, mode[m], config, &count));
        for (int64_t i = 0; i < count && i < GRAPH_CANDIDATES; i++) {
            const int before = g->made_count;
            struct cudnn_choice look = {0};
            TESS_TRY(graph_look(g, config[i], &look));
            if ((look.notes & graph_forbidden(g->conv)) == 0)
                TESS_TRY(graph_try(g, config[i], &look));
            if (look.plan != NULL) {
                look.config = config[i];
                graph_keep(g, look.plan);
                graph_keep(g, look.config);
                *choice = look;
                return TESS_OK;
            }
            graph_drop(g, before);
        }
        graph_drop(g, kept);
    }
    return TESS_OK;
}

enum tess_status tess__cudnn_choose(const struct cudnn_conv *conv, const struct cudnn_place *place,
                                    struct cudnn_choice *choice_out)
{
    struct graph g = {.library = tess__cudnn_library(NULL), .conv = conv, .place = place};
    *choice_out = (struct cudnn_choice){0};
    if (g.library == NULL)
        TESS_FAIL(TESS_ERR_INTERNAL, "a graph was requested in a build without cuDNN");
    const enum tess_status status = graph_choose(&g, choice_out);
    graph_drop(&g, 0);
    return status;
}

void tess__cudnn_choice_drop(struct cudnn_choice *choice)
{
    const struct graph g = {.library = tess__cudnn_library(NULL)};
    const cudnnBackendDescriptor_t made[2] = {choice->plan, choice->config};
    for (int i = 0; i < 2; i++)
        if (made[i] != NULL)
            graph_log(&g, g.library->cudnnBackendDestroyDescriptor(made[i]),
                      "cudnnBackendDestroyDescriptor");
    *choice = (struct cudnn_choice){0};
}
