/*
 * Layers, see layer.h. Not here: units, options, and the order in which layers run.
 */
#include "layer.h"

#include "tessera/check.h"

#include <math.h>
#include <stdio.h>

/* Room for "block3.16.shortcut.running_mean" and the like. */
#define LAYER_NAME_BYTES 64

static const char *layer_name(char *text, const char *layer, const char *field)
{
    snprintf(text, LAYER_NAME_BYTES, "%s.%s", layer, field);
    return text;
}

struct tess_init tess__init_fan_in(int64_t fan_in)
{
    return (struct tess_init){TESS_INIT_UNIFORM, (float)(1.0 / sqrt((double)fan_in))};
}

void tess__layer_declare(struct tess_declare *declare, const char *name,
                         const struct tess_op_desc *desc, struct tess_init init, bool bias,
                         bool first, struct tess__layer *layer_out)
{
    char text[LAYER_NAME_BYTES];
    struct tess_shape shape = tess_shape2(desc->out, desc->in);
    int64_t fan_in = desc->in;
    int64_t positions = 1;
    if (desc->kind == TESS_OP_CONV2D) {
        shape = tess_shape4(desc->out, desc->window, desc->window, desc->in);
        fan_in = desc->in * desc->window * desc->window;
        positions = tess_op_output_size(desc->height, desc->window, desc->stride, desc->padding) *
                    tess_op_output_size(desc->width, desc->window, desc->stride, desc->padding);
    }
    layer_out->kind = desc->kind;
    layer_out->relu = desc->relu;
    layer_out->out_count = positions * desc->out;
    layer_out->weight =
        tess_declare_param(declare, layer_name(text, name, "weight"), shape, init, 0);
    layer_out->bias = -1;
    if (bias)
        layer_out->bias =
            tess_declare_param(declare, layer_name(text, name, "bias"), tess_shape1(desc->out),
                               tess__init_fan_in(fan_in), TESS_PARAM_NO_DECAY);
    layer_out->op = tess_declare_op(declare, desc, first);
}

enum tess_status tess__layer_forward(const struct tess_pass *pass, const struct tess__layer *layer,
                                     const void *x, void *y)
{
    struct tess_op *op = pass->op[layer->op];
    const void *weight = pass->param[layer->weight];
    const void *bias = layer->bias < 0 ? NULL : pass->param[layer->bias];

    if (layer->kind == TESS_OP_CONV2D)
        return tess_conv2d_forward(op, x, weight, bias, y);
    return tess_linear_forward(op, x, weight, bias, y);
}

enum tess_status tess__layer_backward(const struct tess_pass *pass, const struct tess__layer *layer,
                                      const void *x, const void *y, void *dy, void *dx)
{
    struct tess_op *op = pass->op[layer->op];
    const void *weight = pass->param[layer->weight];
    float *dweight = pass->grad[layer->weight];
    float *dbias = layer->bias < 0 ? NULL : pass->grad[layer->bias];

    if (layer->relu && y)
        tess_relu_backward(pass->kernel, pass->dtype, pass->rows * layer->out_count, y, dy, dy);
    if (layer->kind == TESS_OP_CONV2D) {
        TESS_TRY(tess_conv2d_backward_weight(op, x, dy, dweight, dbias));
        return dx ? tess_conv2d_backward_data(op, dy, weight, dx) : TESS_OK;
    }
    TESS_TRY(tess_linear_backward_weight(op, x, dy, dweight, dbias));
    return dx ? tess_linear_backward_data(op, dy, weight, dx) : TESS_OK;
}

void tess__norm_declare(struct tess_declare *declare, const char *name,
                        const struct tess_op_desc *desc, float rate, struct tess__norm *norm_out)
{
    const struct tess_init zero = {TESS_INIT_ZERO, 0}, one = {TESS_INIT_ONE, 0};
    const struct tess_shape shape = tess_shape1(desc->in);
    char text[LAYER_NAME_BYTES];

    norm_out->channels = desc->in;
    norm_out->positions = desc->height * desc->width;
    norm_out->gamma = tess_declare_param(declare, layer_name(text, name, "weight"), shape, one,
                                         TESS_PARAM_NO_DECAY);
    norm_out->beta = tess_declare_param(declare, layer_name(text, name, "bias"), shape, zero,
                                        TESS_PARAM_NO_DECAY);
    norm_out->mean =
        tess_declare_buffer(declare, layer_name(text, name, "running_mean"), shape, zero, rate);
    norm_out->var =
        tess_declare_buffer(declare, layer_name(text, name, "running_var"), shape, one, rate);
    norm_out->save_mean = tess_declare_tensor(declare, layer_name(text, name, "save_mean"),
                                              TESS_F32, shape, TESS_LIFE_LEAVES);
    norm_out->save_rstd = tess_declare_tensor(declare, layer_name(text, name, "save_rstd"),
                                              TESS_F32, shape, TESS_LIFE_LEAVES);
    norm_out->mean_sum = tess_declare_tensor(declare, layer_name(text, name, "mean_sum"), TESS_F32,
                                             shape, TESS_LIFE_BATCH);
    norm_out->var_sum = tess_declare_tensor(declare, layer_name(text, name, "var_sum"), TESS_F32,
                                            shape, TESS_LIFE_BATCH);
    norm_out->op = tess_declare_op(declare, desc, false);
}

enum tess_status tess__norm_forward(const struct tess_pass *pass, const struct tess__norm *norm,
                                    const void *x, void *y)
{
    struct tess_op *op = pass->op[norm->op];
    const void *gamma = pass->param[norm->gamma], *beta = pass->param[norm->beta];

    if (!pass->training)
        return tess_batch_norm_infer(op, x, gamma, beta, pass->param[norm->mean],
                                     pass->param[norm->var], y);
    return tess_batch_norm_forward(op, x, gamma, beta, y, pass->tensor[norm->save_mean],
                                   pass->tensor[norm->save_rstd], pass->tensor[norm->mean_sum],
                                   pass->tensor[norm->var_sum]);
}

enum tess_status tess__norm_backward(const struct tess_pass *pass, const struct tess__norm *norm,
                                     const void *x, const void *y, const void *dy, void *dx)
{
    const int64_t bytes = norm->channels * (int64_t)sizeof(float);

    /* The statistics were taken in forward, but gradients have their room only now. */
    tess_copy(pass->kernel, bytes, pass->tensor[norm->mean_sum], pass->grad[norm->mean]);
    tess_copy(pass->kernel, bytes, pass->tensor[norm->var_sum], pass->grad[norm->var]);
    return tess_batch_norm_backward(pass->op[norm->op], x, y, dy, pass->param[norm->gamma],
                                    pass->tensor[norm->save_mean], pass->tensor[norm->save_rstd],
                                    dx, pass->grad[norm->gamma], pass->grad[norm->beta]);
}

void tess__dropout_at(const struct tess_pass *pass, double rate, int32_t site, uint64_t first,
                      int64_t count, const void *x, void *y)
{
    /* 2^16 units are more than any model has, so that no two (step, unit) share a key. */
    const uint64_t key[2] = {pass->seed, pass->step << 16 | (uint64_t)pass->unit};

    if (pass->training && rate > 0)
        tess_dropout(pass->kernel, pass->dtype, count, (float)rate, key,
                     first | (uint64_t)site << 48, x, y);
    else if (y != x)
        tess_copy(pass->kernel, count * (int64_t)tess_dtype_bytes(pass->dtype), x, y);
}

void tess__dropout(const struct tess_pass *pass, double rate, int64_t row_count, void *x)
{
    tess__dropout_at(pass, rate, 0, pass->row_first * (uint64_t)row_count, pass->rows * row_count,
                     x, x);
}
