/*
 * A multi-layer perceptron: hidden linear layers with ReLU and dropout, and a last linear layer
 * that gives the logits. One unit per layer. Rows of any shape are read as one vector.
 */
#include "layer.h"
#include "tessera/check.h"
#include "tessera/version.h"

#include <stdio.h>

struct mlp_options {
    struct tess_ints hidden;
    double dropout;
};

struct mlp_state {
    double dropout;
    int32_t layer_count;
    struct tess__layer layer[TESS_INTS_MAX + 1];
};

static const struct tess_option mlp_option_table[] = {
    {.name = "hidden",
     .type = TESS_OPTION_INTS,
     .offset = offsetof(struct mlp_options, hidden),
     .fallback = "1024,1024",
     .min = 1,
     .max = 65536,
     .help = "Widths of the hidden layers, first to last."},
    {.name = "dropout",
     .type = TESS_OPTION_REAL,
     .offset = offsetof(struct mlp_options, dropout),
     .fallback = "0",
     .min = 0,
     .max = 0.99,
     .help = "Share of each hidden layer's outputs dropped in training."},
    {.name = NULL},
};

static enum tess_status mlp_declare(void *state, const void *options,
                                    const struct tess_model_input *input,
                                    struct tess_declare *declare)
{
    const struct mlp_options *o = options;
    struct mlp_state *mlp = state;
    int64_t in = tess_shape_count(&input->row);

    mlp->dropout = o->dropout;
    mlp->layer_count = o->hidden.count + 1;
    for (int32_t i = 0; i < mlp->layer_count; i++) {
        const bool last = i == o->hidden.count;
        const int64_t out = last ? input->class_count : o->hidden.value[i];
        const struct tess_op_desc desc = {
            .kind = TESS_OP_LINEAR, .in = in, .out = out, .relu = !last};
        char name[16];

        snprintf(name, sizeof name, "fc%d", i + 1);
        tess_declare_unit(declare, name, tess_shape1(out));
        tess__layer_declare(declare, name, &desc, tess__init_fan_in(in), true, i == 0,
                            &mlp->layer[i]);
        in = out;
    }
    return TESS_OK;
}

static enum tess_status mlp_forward(void *state, const struct tess_pass *pass)
{
    const struct mlp_state *mlp = state;
    const struct tess__layer *layer = &mlp->layer[pass->unit];

    TESS_TRY(tess__layer_forward(pass, layer, pass->input, pass->output));
    if (layer->relu)
        tess__dropout(pass, mlp->dropout, layer->out_count, pass->output);
    return TESS_OK;
}

static enum tess_status mlp_backward(void *state, const struct tess_pass *pass)
{
    const struct mlp_state *mlp = state;
    const struct tess__layer *layer = &mlp->layer[pass->unit];

    /* The output is 0 where it was dropped, and so is the gradient: the ReLU may look at it as is.
     */
    if (layer->relu)
        tess__dropout(pass, mlp->dropout, layer->out_count, pass->output_grad_scratch);
    return tess__layer_backward(pass, layer, pass->input, pass->output, pass->output_grad_scratch,
                                pass->input_grad);
}

const struct tess_model_ops tess_model_mlp = {
    .abi = TESS_ABI,
    .name = "mlp",
    .summary = "Multi-layer perceptron with ReLU",
    .options = mlp_option_table,
    .options_size = sizeof(struct mlp_options),
    .state_size = sizeof(struct mlp_state),
    .declare = mlp_declare,
    .forward = mlp_forward,
    .backward = mlp_backward,
};
