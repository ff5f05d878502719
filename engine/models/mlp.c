/*
 * A multi-layer perceptron: hidden linear layers with ReLU and dropout, and a last linear layer
 * that gives the logits. One unit per layer. Rows of any shape are read as one vector.
 *
 * Layer drop: a hidden layer as wide as its input may be left out, y = x, at random in training
 * (Huang et al., "Deep networks with stochastic depth", ECCV 2016, whose layers are residual: what
 * is left out there is the branch beside the identity). Whether a layer runs is drawn for the step
 * or for each leaf, never for a rank, so that every layout leaves out the same.
 *
 * Along the tensor axis layers are cut by columns and by rows in turn; a last one without a partner
 * is whole on every rank.
 */
#include "layer.h"
#include "tessera/check.h"
#include "tessera/version.h"

#include <stdio.h>

struct mlp_options {
    struct tess_ints hidden;
    double dropout;
    double layer_drop;
    int32_t layer_drop_scope; /* step|leaf */
};

struct mlp_state {
    double layer_drop;
    bool drops_leaves;
    int32_t layer_count;
    struct tess__layer layer[TESS_INTS_MAX + 1];
    bool square[TESS_INTS_MAX + 1]; /* hidden, and as wide as its input */
};

static const struct tess_option mlp_option_table[] = {
    TESS_ROW_INTS("hidden", offsetof(struct mlp_options, hidden), "1024,1024", 1, 65536,
                  "widths of the hidden layers, first to last"),
    TESS_ROW_REAL("dropout", offsetof(struct mlp_options, dropout), "0", 0, 0.99,
                  "share of each hidden layer's outputs dropped in training"),
    TESS_ROW_REAL("layer-drop", offsetof(struct mlp_options, layer_drop), "0", 0, 0.99,
                  "probability that training leaves out a hidden layer as wide as its input, y = "
                  "x; evaluation runs all layers, unscaled; needs --find-unused"),
    TESS_ROW_CHOICE(
        "layer-drop-scope", offsetof(struct mlp_options, layer_drop_scope), "step", "step|leaf",
        "what a layer is left out of: step, a whole step on all ranks alike; leaf, single leaves "
        "of the grid, so that a rank may use layers that another does not"),
    TESS_ROW_END,
};

/* Refuse a tensor axis that the widths do not fit, or layer drop with one. */
static enum tess_status mlp_check_axis(const struct mlp_options *o,
                                       const struct tess_tensor_axis *axis)
{
    int64_t common = 0;
    for (int32_t i = 0; i < o->hidden.count; i += 2)
        common = tess__split_common(common, o->hidden.value[i]);
    if (axis->parts > 1 && o->layer_drop > 0)
        TESS_FAIL(TESS_ERR_USAGE, "mlp.layer-drop does not go with a tensor axis: y = x is not cut "
                                  "as x is; leave one out");
    return tess__split_check(axis, "mlp", "the widths of its hidden layers 1, 3, 5, ...", common);
}

static enum tess_status mlp_declare(void *state, const void *options,
                                    const struct tess_model_input *input,
                                    struct tess_declare *declare)
{
    const struct mlp_options *o = options;
    struct mlp_state *mlp = state;
    int64_t in = tess_shape_count(&input->row);
    enum tess__split split = TESS_SPLIT_NONE;
    bool any_square = false;
    mlp->layer_drop = o->layer_drop;
    mlp->drops_leaves = o->layer_drop_scope == 1;
    mlp->layer_count = o->hidden.count + 1;
    TESS_TRY(mlp_check_axis(o, &input->axis));
    for (int32_t i = 0; i < mlp->layer_count; i++) {
        const bool last = i == o->hidden.count;
        const int64_t out = last ? input->class_count : o->hidden.value[i];
        char name[16];
        snprintf(name, sizeof(name), "fc%d", i + 1);
        split = tess__split_after(&input->axis, split, last);
        const struct tess__layer_desc desc = {
            .name = name,
            .op = {.kind = TESS_OP_LINEAR, .in = in, .out = out, .relu = !last},
            .init = tess__init_fan_in(in),
            .bias_init = tess__init_fan_in(in),
            .bias = true,
            .dropout = last ? 0 : o->dropout,
            .first = i == 0,
            .split = split};
        mlp->square[i] = !last && in == out;
        any_square = any_square || mlp->square[i];
        tess_declare_unit(declare, name, tess_shape1(tess__split_held(&input->axis, split, out)));
        tess__layer_declare(declare, input, &desc, &mlp->layer[i]);
        in = out;
    }
    if (o->layer_drop > 0 && !any_square)
        TESS_FAIL(TESS_ERR_USAGE,
                  "mlp.layer-drop %g leaves out hidden layers as wide as their input, and "
                  "mlp.hidden has none: give equal widths in a row, such as --mlp.hidden 512,512",
                  o->layer_drop);
    if (o->layer_drop > 0)
        tess_declare_conditional(declare);
    return TESS_OK;
}

/* Is the pass's layer left out of leaf `leaf` of the pass? */
static bool mlp_drops(const struct mlp_state *mlp, const struct tess_pass *pass, int64_t leaf)
{
    const uint64_t first = pass->row_first / (uint64_t)pass->leaf_rows;
    return tess_pass_uniform(pass, mlp->drops_leaves ? first + (uint64_t)leaf : 0) <
           (float)mlp->layer_drop;
}

/* The leaves of the pass that the pass's layer is left out of. */
static int64_t mlp_dropped(const struct mlp_state *mlp, const struct tess_pass *pass)
{
    int64_t count = 0;
    if (!pass->training || mlp->layer_drop == 0 || !mlp->square[pass->unit])
        return 0;
    for (int64_t leaf = 0; leaf < pass->leaf_count; leaf++)
        count += mlp_drops(mlp, pass, leaf);
    return count;
}

/* Copy the rows of the dropped leaves; with `clear` the source is zero afterwards. */
static void mlp_move_dropped(const struct mlp_state *mlp, const struct tess_pass *pass,
                             const void *source, void *target, void *clear)
{
    const int64_t bytes =
        pass->leaf_rows * mlp->layer[pass->unit].out_count * (int64_t)tess_dtype_bytes(pass->dtype);
    for (int64_t leaf = 0; leaf < pass->leaf_count; leaf++) {
        if (!mlp_drops(mlp, pass, leaf))
            continue;
        tess_copy(pass->kernel, bytes, (const char *)source + leaf * bytes,
                  (char *)target + leaf * bytes);
        if (clear != NULL)
            tess_fill(pass->kernel, bytes, 0, (char *)clear + leaf * bytes);
    }
}

static enum tess_status mlp_forward(void *state, const struct tess_pass *pass)
{
    const struct mlp_state *mlp = state;
    const struct tess__layer *layer = &mlp->layer[pass->unit];
    const int64_t dropped = mlp_dropped(mlp, pass);
    if (dropped < pass->leaf_count)
        TESS_TRY(tess__layer_forward(pass, layer, pass->input, pass->output));
    if (dropped > 0)
        mlp_move_dropped(mlp, pass, pass->input, pass->output, NULL);
    return TESS_OK;
}

static enum tess_status mlp_backward(void *state, const struct tess_pass *pass)
{
    const struct mlp_state *mlp = state;
    const struct tess__layer *layer = &mlp->layer[pass->unit];
    const int64_t dropped = mlp_dropped(mlp, pass);
    if (dropped == pass->leaf_count) {
        pass->used[layer->weight] = pass->used[layer->bias] = false;
        if (pass->input_grad != NULL)
            mlp_move_dropped(mlp, pass, pass->output_grad, pass->input_grad, NULL);
        return TESS_OK;
    }
    /* Dropped leaves add zeros to the gradients of the layer, as where they are alone on a rank.
     * What flows past the layer waits in the output, whose rows are not read where the gradient is
     * zero. */
    if (dropped > 0)
        mlp_move_dropped(mlp, pass, pass->output_grad, pass->output, pass->output_grad_scratch);
    TESS_TRY(tess__layer_backward(pass, layer, pass->input, pass->output, pass->output_grad_scratch,
                                  pass->input_grad));
    if (dropped > 0 && pass->input_grad != NULL)
        mlp_move_dropped(mlp, pass, pass->output, pass->input_grad, NULL);
    return TESS_OK;
}

const struct tess_model_ops tess_model_mlp = {
    .abi = TESS_ABI,
    .name = "mlp",
    .summary = "multi-layer perceptron with ReLU",
    .options = mlp_option_table,
    .options_size = sizeof(struct mlp_options),
    .state_size = sizeof(struct mlp_state),
    .tensor = true,
    .declare = mlp_declare,
    .forward = mlp_forward,
    .backward = mlp_backward,
};
