/* The made-up cuDNN's engine of convolutions: by their definition, from the tensors' extents and
 * strides. f32 only. */
#include "fake_descriptor.h"

#include <string.h>

struct fake_tensor {
    const int64_t *extent, *stride;
    float *at;
};

static struct fake_tensor fake_tensor(const struct fake_descriptor *operation,
                                      cudnnBackendAttributeName_t name, const struct fake_run *run)
{
    const struct fake_descriptor *d = fake_link(operation, name, 0);
    return (struct fake_tensor){.extent = fake_numbers(d, CUDNN_ATTR_TENSOR_DIMENSIONS),
                                .stride = fake_numbers(d, CUDNN_ATTR_TENSOR_STRIDES),
                                .at = fake_pointer(run, d)};
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

static void fake_convolve_all(const struct fake_work *k)
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
cudnnStatus_t fake_convolve(const struct fake_run *run)
{
    const struct fake_descriptor *operation =
        fake_link(run->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, 0);
    const struct fake_descriptor *add = fake_link(run->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, 1);
    struct fake_work k = {.type = operation->type};
    int kind = 0;
    while (kind < 2 && (int)fake_name[kind][0] != (int)k.type)
        kind++;
    k.x = fake_tensor(operation, fake_name[kind][1], run);
    k.w = fake_tensor(operation, fake_name[kind][2], run);
    k.y = fake_tensor(operation, fake_name[kind][3], run);
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
        k.y = fake_tensor(add, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, run);
        k.bias = fake_tensor(add, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, run);
    }
    if (!fake_window(window) || k.x.at == NULL || k.w.at == NULL || k.y.at == NULL ||
        (add != NULL && k.bias.at == NULL))
        return CUDNN_STATUS_EXECUTION_FAILED;
    fake_convolve_all(&k);
    return CUDNN_STATUS_SUCCESS;
}
