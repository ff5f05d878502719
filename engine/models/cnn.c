/*
 * A small convolutional network: 3x3 convolutions without padding, each with ReLU, one 2x2 max-pool
 * after the last of them, a hidden linear layer with ReLU and dropout, and a linear layer that
 * gives the logits. One unit per convolution and per linear layer; the pool belongs to the last
 * convolution's unit, so that its input need not cross a unit border and the ReLU's backward is one
 * pass with it.
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
    double dropout;
    int32_t conv_count;
    struct cnn_conv conv[TESS_INTS_MAX];
    int32_t pool, which; /* operation and tensor of the last convolution's unit */
    int32_t pool_grad;   /* tensor: gradient of the pool's input; may be `after` */
    struct tess__layer fc[2];
};

static const struct tess_option cnn_option_table[] = {
    {.name = "channels",
     .type = TESS_OPTION_INTS,
     .offset = offsetof(struct cnn_options, channels),
     .fallback = "32,64",
     .min = 1,
     .max = 4096,
     .help = "Output channels of the 3x3 convolutions, first to last."},
    {.name = "fc",
     .type = TESS_OPTION_INT,
     .offset = offsetof(struct cnn_options, fc),
     .fallback = "128",
     .min = 1,
     .max = 65536,
     .help = "Width of the hidden linear layer."},
    {.name = "batch-norm",
     .type = TESS_OPTION_BOOL,
     .offset = offsetof(struct cnn_options, batch_norm),
     .fallback = "off",
     .help = "Batch norm between each convolution and its ReLU; the convolutions lose their bias."},
    {.name = "dropout",
     .type = TESS_OPTION_REAL,
     .offset = offsetof(struct cnn_options, dropout),
     .fallback = "0",
     .min = 0,
     .max = 0.99,
     .help = "Share of the hidden linear layer's outputs dropped in training."},
    {.name = NULL},
};

/* Refuse images that the convolutions and the pool would use up. */
static enum tess_status cnn_check(const struct cnn_options *o, const struct tess_model_input *input)
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
        TESS_FAIL(
            TESS_ERR_USAGE,
            "%d convolutions and the pool need images of %lld x %lld pixels at least, the data "
            "has %lld x %lld: use fewer cnn.channels",
            o->channels.count, (long long)least, (long long)least, (long long)input->row.dim[0],
            (long long)input->row.dim[1]);
    return TESS_OK;
}

/* Declare the operations of convolution `i` of an [h, w, in] image; its output is *out per row. */
static void cnn_declare_conv(struct cnn_state *cnn, struct tess_declare *declare, int32_t i,
                             enum tess_dtype dtype, const struct tess_shape *in, int64_t channels,
                             struct tess_shape *out)
{
    struct cnn_conv *conv = &cnn->conv[i];
    const bool last = i == cnn->conv_count - 1;
    const struct tess_op_desc desc = {.kind = TESS_OP_CONV2D,
                                      .in = in->dim[2],
                                      .out = channels,
                                      .height = in->dim[0],
                                      .width = in->dim[1],
                                      .window = CNN_WINDOW,
                                      .stride = 1,
                                      .relu = !cnn->batch_norm};
    const int64_t height = tess_op_output_size(desc.height, CNN_WINDOW, 1, 0);
    const int64_t width = tess_op_output_size(desc.width, CNN_WINDOW, 1, 0);
    const struct tess_shape image = tess_shape3(height, width, channels);
    char name[32];

    *out = image;
    if (last)
        *out = tess_shape3(height / CNN_POOL, width / CNN_POOL, channels);
    snprintf(name, sizeof name, "conv%d", i + 1);
    tess_declare_unit(declare, name, *out);
    tess__layer_declare(declare, name, &desc, tess__init_fan_in(desc.in * CNN_WINDOW * CNN_WINDOW),
                        !cnn->batch_norm, i == 0, &conv->layer);
    conv->before = conv->after = -1;
    if (cnn->batch_norm) {
        const struct tess_op_desc norm = {.kind = TESS_OP_BATCH_NORM,
                                          .in = channels,
                                          .out = channels,
                                          .height = height,
                                          .width = width,
                                          .relu = true,
                                          .epsilon = 1e-5f};
        snprintf(name, sizeof name, "bn%d", i + 1);
        tess__norm_declare(declare, name, &norm, CNN_NORM_RATE, &conv->norm);
        conv->before = tess_declare_tensor(declare, "conv", dtype, image, TESS_LIFE_SAVED);
    }
    if (last) {
        const struct tess_op_desc pool = {.kind = TESS_OP_MAX_POOL,
                                          .in = channels,
                                          .out = channels,
                                          .height = height,
                                          .width = width,
                                          .window = CNN_POOL,
                                          .stride = CNN_POOL,
                                          .relu = true};
        cnn->pool = tess_declare_op(declare, &pool, false);
        cnn->which = tess_declare_tensor(declare, "which", TESS_U8, *out, TESS_LIFE_SAVED);
        cnn->pool_grad = tess_declare_tensor(declare, "relu", dtype, image, TESS_LIFE_UNIT);
        /* What the pool's backward needs of its input is in `which`. Batch norm reads it again. */
        conv->after = cnn->pool_grad;
        if (cnn->batch_norm)
            conv->after = tess_declare_tensor(declare, "norm", dtype, image, TESS_LIFE_SAVED);
    }
}

static enum tess_status cnn_declare(void *state, const void *options,
                                    const struct tess_model_input *input,
                                    struct tess_declare *declare)
{
    const struct cnn_options *o = options;
    struct cnn_state *cnn = state;
    struct tess_shape image = input->row;

    TESS_TRY(cnn_check(o, input));
    cnn->batch_norm = o->batch_norm;
    cnn->dropout = o->dropout;
    cnn->conv_count = o->channels.count;
    for (int32_t i = 0; i < cnn->conv_count; i++) {
        struct tess_shape next;
        cnn_declare_conv(cnn, declare, i, input->dtype, &image, o->channels.value[i], &next);
        image = next;
    }
    int64_t in = tess_shape_count(&image);
    for (int32_t i = 0; i < 2; i++) {
        const char *name = i == 0 ? "fc1" : "fc2";
        const int64_t out = i == 0 ? o->fc : input->class_count;
        const struct tess_op_desc desc = {
            .kind = TESS_OP_LINEAR, .in = in, .out = out, .relu = i == 0};

        tess_declare_unit(declare, name, tess_shape1(out));
        tess__layer_declare(declare, name, &desc, tess__init_fan_in(in), true, false, &cnn->fc[i]);
        in = out;
    }
    return TESS_OK;
}

static enum tess_status cnn_forward(void *state, const struct tess_pass *pass)
{
    const struct cnn_state *cnn = state;

    if (pass->unit >= cnn->conv_count) {
        const struct tess__layer *fc = &cnn->fc[pass->unit - cnn->conv_count];

        TESS_TRY(tess__layer_forward(pass, fc, pass->input, pass->output));
        if (fc->relu)
            tess__dropout(pass, cnn->dropout, fc->out_count, pass->output);
        return TESS_OK;
    }
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

    if (pass->unit >= cnn->conv_count) {
        const struct tess__layer *fc = &cnn->fc[pass->unit - cnn->conv_count];

        if (fc->relu)
            tess__dropout(pass, cnn->dropout, fc->out_count, pass->output_grad_scratch);
        return tess__layer_backward(pass, fc, pass->input, pass->output, pass->output_grad_scratch,
                                    pass->input_grad);
    }
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
    .summary = "Convolutions, one max-pool, two linear layers",
    .options = cnn_option_table,
    .options_size = sizeof(struct cnn_options),
    .state_size = sizeof(struct cnn_state),
    .declare = cnn_declare,
    .forward = cnn_forward,
    .backward = cnn_backward,
};
