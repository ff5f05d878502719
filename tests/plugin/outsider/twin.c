/* An outsider's model: a hidden layer and a layer of logits, a unit each. Nothing but public
 * headers. */
#include "outsider.h"

struct twin_options {
    int64_t hidden;
};

struct twin_layer {
    int64_t out;
    int32_t weight, bias, op;
};

struct twin_state {
    struct twin_layer layer[2];
};

static const struct tess_option twin_option_table[] = {
    TESS_ROW_INT("hidden", offsetof(struct twin_options, hidden), "24", 1, 4096,
                 "Width of the hidden layer."),
    TESS_ROW_END,
};

static enum tess_status twin_declare(void *state, const void *options,
                                     const struct tess_model_input *input,
                                     struct tess_declare *declare)
{
    static const char *const name[2][3] = {{"twin1", "twin1.weight", "twin1.bias"},
                                           {"twin2", "twin2.weight", "twin2.bias"}};
    struct twin_state *twin = state;
    int64_t in = tess_shape_count(&input->row);
    for (int i = 0; i < 2; i++) {
        struct twin_layer *layer = &twin->layer[i];
        layer->out = i == 0 ? ((const struct twin_options *)options)->hidden : input->class_count;
        tess_declare_unit(declare, name[i][0], tess_shape1(layer->out));
        layer->weight = tess_declare_param(declare, name[i][1], tess_shape2(layer->out, in),
                                           (struct tess_init){TESS_INIT_NORMAL, 0.05f}, 0);
        layer->bias =
            tess_declare_param(declare, name[i][2], tess_shape1(layer->out),
                               (struct tess_init){TESS_INIT_ZERO, 0}, TESS_PARAM_NO_DECAY);
        layer->op = tess_declare_op(
            declare,
            &(struct tess_op_desc){
                .kind = TESS_OP_LINEAR, .in = in, .out = layer->out, .relu = i == 0},
            i == 0);
        in = layer->out;
    }
    return TESS_OK;
}

static enum tess_status twin_forward(void *state, const struct tess_pass *pass)
{
    const struct twin_layer *layer = &((struct twin_state *)state)->layer[pass->unit];
    return tess_linear_forward(pass->op[layer->op], pass->input, pass->param[layer->weight],
                               pass->param[layer->bias], pass->output);
}

static enum tess_status twin_backward(void *state, const struct tess_pass *pass)
{
    const struct twin_layer *layer = &((struct twin_state *)state)->layer[pass->unit];
    if (pass->unit == 0)
        tess_relu_backward(pass->kernel, pass->dtype, pass->rows * layer->out, pass->output,
                           pass->output_grad, pass->output_grad_scratch);
    TESS_TRY(tess_linear_backward_weight(pass->op[layer->op], pass->input, pass->output_grad,
                                         pass->grad[layer->weight], pass->grad[layer->bias]));
    if (pass->input_grad == NULL)
        return TESS_OK;
    return tess_linear_backward_data(pass->op[layer->op], pass->output_grad,
                                     pass->param[layer->weight], pass->input_grad);
}

const struct tess_model_ops outsider_twin = {
    .abi = TESS_ABI,
    .name = "twin",
    .summary = "a hidden layer and a layer of logits",
    .options = twin_option_table,
    .options_size = sizeof(struct twin_options),
    .state_size = sizeof(struct twin_state),
    .declare = twin_declare,
    .forward = twin_forward,
    .backward = twin_backward,
};
