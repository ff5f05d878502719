/*
 * A small convolutional network: 3x3 convolutions without padding, each with ReLU, one 2x2 max-pool
 * after the last of them, a hidden linear layer with ReLU and dropout, and a linear layer that
 * gives the logits. One unit per convolution and per linear layer; the pool belongs to the last
 * convolution's unit, so that its input need not cross a unit border and the ReLU's backward is one
 * pass with it.
 *
 * Along the tensor axis the layers, convolutions and linear ones alike, are cut by output and by
 * input channels in turn (by columns and by rows); a last one without a partner is whole on every
 * rank.
 */
#include "layer.h"
#include "tessera/check.h"
#include "tessera/version.h"

#include <stdio.h>

#define CNN_NORM_RATE 0.1f /* of batch norm's running averages, as in PyTorch */
#define CNN_WINDOW    3
#define CNN_POOL      2

struct cnn_options {
    struct tess_ints channels;
    int64_t fc;
    bool batch_norm;
    double dropout;
};

struct cnn_conv {
    struct tess__layer layer;
    struct tess__norm norm;
    int32_t before; /* tensor: the convolution's output where batch norm follows, else -1 */
    int32_t after;  /* tensor: the pool's input, then its gradient; -1: it is the unit's output */
};

struct cnn_state {
    bool batch_norm;
    int32_t conv_count;
    struct cnn_conv conv[TESS_INTS_MAX];
    int32_t pool, which; /* operation and tensor of the last convolution's unit */
    int32_t pool_grad;   /* tensor: gradient of the pool's input; may be `after` */
    struct tess__layer fc[2];
};

static const struct tess_option cnn_option_table[] = {
    TESS_ROW_INTS("channels", offsetof(struct cnn_options, channels), "32,64", 1, 4096,
                  "output channels of the 3x3 convolutions, first to last"),
    TESS_ROW_INT("fc", offsetof(struct cnn_options, fc), "128", 1, 65536,
                 "width of the hidden linear layer"),
    TESS_ROW_BOOL(
        "batch-norm", offsetof(struct cnn_options, batch_norm), "off",
        "batch norm between each convolution and its ReLU; the convolutions lose their bias"),
    TESS_ROW_REAL("dropout", offsetof(struct cnn_options, dropout), "0", 0, 0.99,
                  "share of the hidden linear layer's outputs dropped in training"),
    TESS_ROW_END,
};

/* Refuse images that the convolutions and the pool would use up. */
static enum tess_status cnn_check_image(const struct cnn_options *o,
                                        const struct tess_model_input *input)
{
    const int64_t side =
        input->row.dim[0] < input->row.dim[1] ? input->row.dim[0] : input->row.dim[1];
    const int64_t least = (CNN_WINDOW - 1) * o->channels.count + CNN_POOL;
    if (o->channels.count < 1)
        TESS_FAIL(TESS_ERR_USAGE, "cnn.channels is empty: give at least one convolution");
    if (input->row.rank != 3)
        TESS_FAIL(TESS_ERR_USAGE, "model cnn needs images [H, W, C], the data has rows of rank %d",
                  input->row.rank);
    if (side < least)
        TESS_FAIL(TESS_ERR_USAGE,
                  "%d convolutions and the pool need images of %lld x %lld pixels at least, the "
                  "data has %lld x %lld: use fewer cnn.channels",
                  o->channels.count, (long long)least, (long long)least,
                  (long long)input->row.dim[0], (long long)input->row.dim[1]);
    return TESS_OK;
}

static enum tess_status cnn_check_axis(const struct cnn_options *o,
                                       const struct tess_tensor_axis *axis)
{
    int64_t common = 0;
    for (int32_t i = 0; i < o->channels.count; i += 2)
        common = tess__split_common(common, o->channels.value[i]);
    if (o->channels.count % 2 == 1)
        return tess__split_check(axis, "cnn", "the channels of its convolutions 1, 3, ...", common);
    return tess__split_check(axis, "cnn",
                             "the channels of its convolutions 1, 3, ... and the width cnn.fc",
                             tess__split_common(common, o->fc));
}

/* A model on its way: what is declared so far ends in images, or in vectors [1, 1, width]. */
struct cnn_builder {
    struct cnn_state *cnn;
    const struct tess_model_input *input;
    struct tess_declare *declare;
    struct tess_shape image; /* of the whole model */
    enum tess__split split;  /* of the layer that makes it */
};

/* The pool of images `held`; parts of the channels are images of their own to it. */
static void cnn_declare_pool(const struct cnn_builder *to, const struct tess_shape *held,
                             const struct tess_shape *pooled)
{
    struct cnn_state *cnn = to->cnn;
    struct cnn_conv *conv = &cnn->conv[cnn->conv_count - 1];
    const enum tess_dtype dtype = to->input->dtype;
    const int32_t parts = to->split == TESS_SPLIT_COLUMNS ? to->input->axis.count : 1;
    const struct tess_op_desc pool = {.kind = TESS_OP_MAX_POOL,
                                      .rows = to->input->rows * parts,
                                      .leaf_rows = to->input->leaf_rows,
                                      .in = held->dim[2] / parts,
                                      .out = held->dim[2] / parts,
                                      .height = held->dim[0],
                                      .width = held->dim[1],
                                      .window = CNN_POOL,
                                      .stride = CNN_POOL,
                                      .relu = true};
    cnn->pool = tess_declare_op(to->declare, &pool, false);
    cnn->which = tess_declare_tensor(to->declare, "which", TESS_U8, *pooled, TESS_LIFE_SAVED);
    cnn->pool_grad = tess_declare_tensor(to->declare, "relu", dtype, *held, TESS_LIFE_UNIT);
    /* What the pool's backward needs of its input is in `which`. Batch norm reads it again. */
    conv->after = cnn->pool_grad;
    if (cnn->batch_norm)
        conv->after = tess_declare_tensor(to->declare, "norm", dtype, *held, TESS_LIFE_SAVED);
}

static void cnn_declare_conv(struct cnn_builder *to, int32_t i, int64_t channels)
{
    struct cnn_state *cnn = to->cnn;
    struct cnn_conv *conv = &cnn->conv[i];
    const bool last = i == cnn->conv_count - 1;
    const struct tess_shape in = to->image;
    const int64_t height = tess_op_output_size(in.dim[0], CNN_WINDOW, 1, 0);
    const int64_t width = tess_op_output_size(in.dim[1], CNN_WINDOW, 1, 0);
    const struct tess_init init = tess__init_fan_in(in.dim[2] * CNN_WINDOW * CNN_WINDOW);
    char name[32];
    snprintf(name, sizeof(name), "conv%d", i + 1);
    to->split = tess__split_after(&to->input->axis, to->split, false);
    const int64_t held = tess__split_held(&to->input->axis, to->split, channels);
    const struct tess_shape image = tess_shape3(height, width, held);
    const struct tess_shape pooled = tess_shape3(height / CNN_POOL, width / CNN_POOL, held);
    const struct tess__layer_desc desc = {.name = name,
                                          .op = {.kind = TESS_OP_CONV2D,
                                                 .in = in.dim[2],
                                                 .out = channels,
                                                 .height = in.dim[0],
                                                 .width = in.dim[1],
                                                 .window = CNN_WINDOW,
                                                 .stride = 1,
                                                 .relu = !cnn->batch_norm},
                                          .init = init,
                                          .bias_init = init,
                                          .bias = !cnn->batch_norm,
                                          .first = i == 0,
                                          .split = to->split};

    tess_declare_unit(to->declare, name, last ? pooled : image);
    tess__layer_declare(to->declare, to->input, &desc, &conv->layer);
    to->image = tess_shape3(height, width, channels);
    conv->before = conv->after = -1;
    if (cnn->batch_norm) {
        snprintf(name, sizeof(name), "bn%d", i + 1);
        tess__norm_declare(to->declare, to->input, name, &to->image, CNN_NORM_RATE,
                           to->split == TESS_SPLIT_COLUMNS, &conv->norm);
        conv->before =
            tess_declare_tensor(to->declare, "conv", to->input->dtype, image, TESS_LIFE_SAVED);
    }
    if (!last)
        return;
    cnn_declare_pool(to, &image, &pooled);
    to->image = tess_shape3(pooled.dim[0], pooled.dim[1], channels);
}

static void cnn_declare_linear(struct cnn_builder *to, int32_t i, int64_t out, double dropout)
{
    const int64_t in = tess_shape_count(&to->image);
    const enum tess__split split = tess__split_after(&to->input->axis, to->split, i == 1);
    const char *name = i == 0 ? "fc1" : "fc2";
    const struct tess__layer_desc desc = {
        .name = name,
        .op = {.kind = TESS_OP_LINEAR, .in = in, .out = out, .relu = i == 0},
        .init = tess__init_fan_in(in),
        .bias_init = tess__init_fan_in(in),
        .bias = true,
        .dropout = dropout,
        .split = split,
        .blocks = split == TESS_SPLIT_ROWS ? (int32_t)(to->image.dim[0] * to->image.dim[1]) : 1};
    tess_declare_unit(to->declare, name,
                      tess_shape1(tess__split_held(&to->input->axis, split, out)));
    tess__layer_declare(to->declare, to->input, &desc, &to->cnn->fc[i]);
    to->split = split;
    to->image = tess_shape3(1, 1, out);
}

static enum tess_status cnn_declare(void *state, const void *options,
                                    const struct tess_model_input *input,
                                    struct tess_declare *declare)
{
    const struct cnn_options *o = options;
    struct cnn_state *cnn = state;
    TESS_TRY(cnn_check_image(o, input));
    TESS_TRY(cnn_check_axis(o, &input->axis));
    cnn->batch_norm = o->batch_norm;
    cnn->conv_count = o->channels.count;

    struct cnn_builder to = {.cnn = cnn,
                             .input = input,
                             .declare = declare,
                             .image = input->row,
                             .split = TESS_SPLIT_NONE};
    for (int32_t i = 0; i < cnn->conv_count; i++)
        cnn_declare_conv(&to, i, o->channels.value[i]);
    cnn_declare_linear(&to, 0, o->fc, o->dropout);
    cnn_declare_linear(&to, 1, input->class_count, 0);
    return TESS_OK;
}

static enum tess_status cnn_forward(void *state, const struct tess_pass *pass)
{
    const struct cnn_state *cnn = state;
    if (pass->unit >= cnn->conv_count)
        return tess__layer_forward(pass, &cnn->fc[pass->unit - cnn->conv_count], pass->input,
                                   pass->output);
    const struct cnn_conv *conv = &cnn->conv[pass->unit];
    void *after = conv->after < 0 ? pass->output : pass->tensor[conv->after];
    void *before = conv->before < 0 ? after : pass->tensor[conv->before];

    TESS_TRY(tess__layer_forward(pass, &conv->layer, pass->input, before));
    if (cnn->batch_norm)
        TESS_TRY(tess__norm_forward(pass, &conv->norm, before, after));
    if (conv->after >= 0)
        TESS_TRY(tess_max_pool_forward(pass->op[cnn->pool], after, pass->output,
                                       pass->tensor[cnn->which]));
    return TESS_OK;
}

static enum tess_status cnn_backward(void *state, const struct tess_pass *pass)
{
    const struct cnn_state *cnn = state;
    if (pass->unit >= cnn->conv_count)
        return tess__layer_backward(pass, &cnn->fc[pass->unit - cnn->conv_count], pass->input,
                                    pass->output, pass->output_grad_scratch, pass->input_grad);
    const struct cnn_conv *conv = &cnn->conv[pass->unit];
    const bool pooled = conv->after >= 0;
    const void *after = pooled ? pass->tensor[conv->after] : pass->output;
    void *grad = pooled ? pass->tensor[cnn->pool_grad] : pass->output_grad_scratch;

    if (pooled)
        TESS_TRY(tess_max_pool_backward(pass->op[cnn->pool], pass->output_grad,
                                        pass->tensor[cnn->which], grad));
    if (cnn->batch_norm)
        TESS_TRY(
            tess__norm_backward(pass, &conv->norm, pass->tensor[conv->before], after, grad, grad));
    return tess__layer_backward(pass, &conv->layer, pass->input, pooled ? NULL : after, grad,
                                pass->input_grad);
}

const struct tess_model_ops tess_model_cnn = {
    .abi = TESS_ABI,
    .name = "cnn",
    .summary = "convolutions, one max-pool, two linear layers",
    .options = cnn_option_table,
    .options_size = sizeof(struct cnn_options),
    .state_size = sizeof(struct cnn_state),
    .tensor = true,
    .declare = cnn_declare,
    .forward = cnn_forward,
    .backward = cnn_backward,
};
