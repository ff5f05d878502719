/*
 * A convolution as a graph of cuDNN. Nothing runs here, and no device memory is touched. f32 needs
 * an engine without tensor cores, unless TF32 was chosen.
 */
#include "cuda/products/conv_graph.h"

#include <string.h>

/* What a plan may need beside its operands: as much as the windows of the other way (conv.c). */
#define GRAPH_WORKSPACE_BYTES ((int64_t)64 << 20)

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

/* ---- tensors ------------------------------------------------------------------------------ */

static cudnnDataType_t graph_type(const struct cudnn_conv *c, enum cudnn_conv_tensor tensor)
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

int64_t tess__cudnn_conv_alignment(const struct cudnn_conv *c, enum cudnn_conv_tensor tensor)
{
    const int64_t elements = tensor == CUDNN_X ? c->d.leaf_rows * c->d.height * c->d.width * c->d.in
                             : tensor == CUDNN_W ? c->d.window * c->d.window * c->d.in
                             : tensor == CUDNN_BIAS
                                 ? c->d.out
                                 : c->d.leaf_rows * graph_output(c, c->d.height) *
                                       graph_output(c, c->d.width) * c->d.out;
    const int64_t bytes = elements * (graph_type(c, tensor) == CUDNN_DATA_FLOAT ? 4 : 2);
    const int64_t power = bytes & -bytes; /* the greatest power of two that divides it */
    return power < CUDNN_ALIGN_MAX ? power : CUDNN_ALIGN_MAX;
}

/* Extents go as images, channels, height, width, whatever the layout; by the strides, channels are
 * innermost. */
static enum tess_status graph_add_tensor(struct cudnn_graph *g, const struct cudnn_conv *c,
                                         enum cudnn_conv_tensor which,
                                         cudnnBackendDescriptor_t *out)
{
    const bool result = which == CUDNN_Y || which == CUDNN_SUM;
    struct cudnn_tensor t = {
        .id = which,
        .type = graph_type(c, which),
        .align = tess__cudnn_conv_alignment(c, which),
        .virtual = which == CUDNN_SUM,
    };
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
    memcpy(t.extent, extent, sizeof(extent));
    memcpy(t.stride, stride, sizeof(stride));
    return tess__cudnn_add_tensor(g, &t, out);
}

/* ---- operations --------------------------------------------------------------------------- */

static enum tess_status graph_add_window(struct cudnn_graph *g, const struct cudnn_conv *c,
                                         cudnnBackendDescriptor_t *out)
{
    const int64_t axes = 2, padding[2] = {c->d.padding, c->d.padding},
                  stride[2] = {c->d.stride, c->d.stride}, dilation[2] = {1, 1};
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnBackendDescriptor_t d;
    TESS_TRY(tess__cudnn_make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, &d));
    TESS_TRY(
        tess__cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TESS_TRY(tess__cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1,
                             &mode));
    TESS_TRY(
        tess__cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &axes));
    TESS_TRY(
        tess__cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, padding));
    TESS_TRY(
        tess__cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, padding));
    TESS_TRY(
        tess__cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride));
    TESS_TRY(
        tess__cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation));
    *out = d;
    return tess__cudnn_finish(g, d);
}

static enum tess_status graph_add_conv(struct cudnn_graph *g, const struct cudnn_conv *c,
                                       const cudnnBackendDescriptor_t *tensor)
{
    const struct graph_operation *names = &graph_operation[c->way];
    const enum cudnn_conv_tensor y = c->way == CONV_FORWARD_BIAS ? CUDNN_SUM : CUDNN_Y;
    const float alpha = 1, beta = 0;
    cudnnBackendDescriptor_t window, d;
    TESS_TRY(graph_add_window(g, c, &window));
    TESS_TRY(tess__cudnn_make(g, names->type, &d));
    TESS_TRY(tess__cudnn_link(g, d, names->conv, window));
    TESS_TRY(tess__cudnn_link(g, d, names->x, tensor[CUDNN_X]));
    TESS_TRY(tess__cudnn_link(g, d, names->w, tensor[CUDNN_W]));
    TESS_TRY(tess__cudnn_link(g, d, names->y, tensor[y]));
    TESS_TRY(tess__cudnn_set(g, d, names->alpha, CUDNN_TYPE_FLOAT, 1, &alpha));
    TESS_TRY(tess__cudnn_set(g, d, names->beta, CUDNN_TYPE_FLOAT, 1, &beta));
    return tess__cudnn_add_operation(g, d);
}

static enum tess_status graph_build(struct cudnn_graph *g, const struct cudnn_conv *c)
{
    cudnnBackendDescriptor_t tensor[CUDNN_SUM + 1] = {NULL};
    const bool bias = c->way == CONV_FORWARD_BIAS;
    for (int t = CUDNN_X; t <= CUDNN_SUM; t++)
        if (bias || (t != CUDNN_BIAS && t != CUDNN_SUM))
            TESS_TRY(graph_add_tensor(g, c, (enum cudnn_conv_tensor)t, &tensor[t]));
    TESS_TRY(graph_add_conv(g, c, tensor));
    /* y = the sum, which is f32 and never stored, + bias: rounded once. */
    const struct cudnn_pointwise add = {.mode = CUDNN_POINTWISE_ADD,
                                        .compute = CUDNN_DATA_FLOAT,
                                        .x = tensor[CUDNN_SUM],
                                        .b = tensor[CUDNN_BIAS],
                                        .y = tensor[CUDNN_Y]};
    return bias ? tess__cudnn_add_pointwise(g, &add) : TESS_OK;
}

enum tess_status tess__cudnn_conv_choose(const struct cudnn_conv *conv,
                                         const struct cudnn_place *place,
                                         struct cudnn_choice *choice_out)
{
    struct cudnn_graph g = {.library = tess__cudnn_library(NULL),
                            .place = place,
                            .workspace_bytes = GRAPH_WORKSPACE_BYTES,
                            .exact = conv->d.dtype == TESS_F32 && !conv->tf32};
    *choice_out = (struct cudnn_choice){0};
    if (g.library == NULL)
        TESS_FAIL(TESS_ERR_INTERNAL, "a graph was requested without cuDNN");
    enum tess_status status = graph_build(&g, conv);
    if (status == TESS_OK)
        status = tess__cudnn_choose(&g, choice_out);
    tess__cudnn_drop(&g, 0);
    return status;
}
