/*
 * Layers, see layer.h. Not here: units, options, and the order in which layers run.
 */
#include "layer.h"

#include "tessera/check.h"

#include <math.h>
#include <stdio.h>

const char *tess__layer_name(char text[TESS__LAYER_NAME], const char *layer, const char *field)
{
    const char *const part[] = {layer, ".", field}; /* snprintf is slow for this */
    size_t used = 0;
    for (int i = 0; i < 3; i++)
        for (const char *c = part[i]; *c != '\0' && used + 1 < TESS__LAYER_NAME; c++)
            text[used++] = *c;
    text[used] = '\0';
    return text;
}

struct tess_init tess__init_fan_in(int64_t fan_in)
{
    return (struct tess_init){TESS_INIT_UNIFORM, (float)(1.0 / sqrt((double)fan_in))};
}

/* ---- the tensor axis ------------------------------------------------------------------------- */

enum tess__split tess__split_after(const struct tess_tensor_axis *axis, enum tess__split before,
                                   bool last)
{
    if (axis->parts <= 1)
        return TESS_SPLIT_NONE;
    if (before == TESS_SPLIT_COLUMNS)
        return TESS_SPLIT_ROWS;
    return last ? TESS_SPLIT_NONE : TESS_SPLIT_COLUMNS;
}

int64_t tess__split_common(int64_t a, int64_t b)
{
    return a == 0 ? b : tess__split_common(b % a, a);
}

const char *tess__split_fitting(int64_t common, char text[TESS__FITTING_BYTES])
{
    size_t used = 0;
    for (int64_t parts = 1, count = 0; parts <= common && count < 12; parts++)
        if (common % parts == 0)
            used += (size_t)snprintf(text + used, TESS__FITTING_BYTES - used, "%s%lld",
                                     count++ > 0 ? ", " : "", (long long)parts);
    return text;
}

enum tess_status tess__split_check(const struct tess_tensor_axis *axis, const char *model,
                                   const char *what, int64_t common)
{
    char fitting[TESS__FITTING_BYTES];
    if (axis->sequence)
        TESS_FAIL(TESS_ERR_USAGE,
                  "model %s has no sequences to cut: leave out --tensor.sequence-parallel", model);
    if (axis->parts <= 1 || common % axis->parts == 0)
        return TESS_OK;
    TESS_FAIL(
        TESS_ERR_USAGE,
        "model %s cannot be cut into %d parts along the tensor axis: they must divide %s; %s would",
        model, axis->parts, what, tess__split_fitting(common, fitting));
}

int64_t tess__split_held(const struct tess_tensor_axis *axis, enum tess__split split,
                         int64_t channels)
{
    return split == TESS_SPLIT_COLUMNS ? channels / axis->parts * axis->count : channels;
}

/* Element `at` of an array in the run's type, writable if that is; NULL stays NULL. */
static void *layer_at(const struct tess_pass *pass, const void *array, int64_t at)
{
    char *first = (char *)(uintptr_t)array;
    return first != NULL ? first + at * (int64_t)tess_dtype_bytes(pass->dtype) : NULL;
}

/* ---- linear and convolution layers ----------------------------------------------------------- */

static void layer_declare_params(struct tess_declare *declare, const struct tess__layer_desc *desc,
                                 struct tess__layer *layer)
{
    const struct tess_op_desc *op = &desc->op;
    const bool conv = op->kind == TESS_OP_CONV2D, rows = desc->split == TESS_SPLIT_ROWS;
    const struct tess_shape shape =
        conv ? tess_shape4(op->out, op->window, op->window, op->in) : tess_shape2(op->out, op->in);
    struct tess_slice slice = {-1, desc->blocks > 0 ? desc->blocks : 1, 0};
    char text[TESS__LAYER_NAME];
    if (desc->split != TESS_SPLIT_NONE)
        slice.axis = !rows ? 0 : conv ? 3 : 1;
    layer->weight = tess_declare_sliced(declare, tess__layer_name(text, desc->name, "weight"),
                                        shape, desc->init, desc->flags, slice);
    layer->bias = -1;
    if (rows) /* the sum is whole */
        slice = (struct tess_slice){-1, 1, 0};
    if (desc->bias)
        layer->bias =
            tess_declare_sliced(declare, tess__layer_name(text, desc->name, "bias"),
                                tess_shape1(op->out), desc->bias_init, TESS_PARAM_NO_DECAY, slice);
}

bool tess__layer_has_terms(const struct tess_tensor_axis *axis)
{
    return axis->count > 1 || axis->sequence;
}

/* What crosses the axis, in forward or in backward, and the room of its terms. */
static void layer_declare_sum(struct tess_declare *declare, const struct tess_model_input *input,
                              const struct tess__layer_desc *desc, struct tess__layer *layer)
{
    const bool rows = desc->split == TESS_SPLIT_ROWS;
    const int64_t count = rows ? layer->out_count : layer->in_count;
    if (desc->split == TESS_SPLIT_NONE || (!rows && desc->first))
        return;
    tess_declare_crossing(declare, rows ? TESS_CALL_FORWARD : TESS_CALL_BACKWARD, TESS_CALL_SUM,
                          input->rows * count);
    if (tess__layer_has_terms(&input->axis))
        layer->terms = tess_declare_tensor(declare, "terms", input->dtype,
                                           tess_shape2(input->axis.count, count), TESS_LIFE_UNIT);
}

/* The weights of a rank's only part lie together; those of one of several are copied. */
static void layer_declare_stacked(struct tess_declare *declare, const struct tess_tensor_axis *axis,
                                  const struct tess__layer_desc *desc, int32_t count,
                                  struct tess__layer *layer)
{
    const struct tess_shape part = tess_shape1(layer->weight_count);
    struct tess__layer next;
    for (int32_t i = 0; i < count; i++) {
        layer->stack[i] =
            desc[i].op.in * desc[i].op.out / (desc->split == TESS_SPLIT_NONE ? 1 : axis->parts);
        if (i > 0)
            layer_declare_params(declare, &desc[i], &next);
    }
    tess_declare_stacked(declare, layer->weight, count);
    if (desc->split == TESS_SPLIT_NONE || axis->count == 1)
        return;
    layer->stack_weight =
        tess_declare_tensor(declare, "stack", desc->op.dtype, part, TESS_LIFE_CALL);
    layer->stack_grad = tess_declare_tensor(declare, "stack.grad", TESS_F32, part, TESS_LIFE_CALL);
}

/* All but the sum over parts. */
static void layer_declare_parts(struct tess_declare *declare, const struct tess_tensor_axis *axis,
                                const struct tess__layer_desc *desc, struct tess__layer *layer_out)
{
    tess__layer_declare_stack(declare, axis, desc, 1, layer_out);
}

void tess__layer_declare_stack(struct tess_declare *declare, const struct tess_tensor_axis *axis,
                               const struct tess__layer_desc *desc, int32_t count,
                               struct tess__layer *layer_out)
{
    struct tess_op_desc op = desc->op;
    int64_t positions_in = 1, positions_out = 1;
    for (int32_t i = 1; i < count; i++)
        op.out += desc[i].op.out;
    if (desc->split == TESS_SPLIT_COLUMNS)
        op.out /= axis->parts;
    if (desc->split == TESS_SPLIT_ROWS)
        op.in /= axis->parts;
    /* The ReLU comes after the sum. */
    op.relu = desc->op.relu && desc->split != TESS_SPLIT_ROWS;
    if (op.kind == TESS_OP_CONV2D) {
        positions_in = op.height * op.width;
        positions_out = tess_op_output_size(op.height, op.window, op.stride, op.padding) *
                        tess_op_output_size(op.width, op.window, op.stride, op.padding);
    }
    *layer_out = (struct tess__layer){
        .kind = op.kind,
        .split = desc->split,
        .relu = desc->op.relu,
        .dropout = desc->dropout,
        .run_op = -1,
        .terms = -1,
        .in_count = positions_in * op.in,
        .out_count = positions_out * op.out,
        .weight_count = op.in * op.out * (op.kind == TESS_OP_CONV2D ? op.window * op.window : 1),
        .bias_count = op.out,
        .stack_count = count,
        .stack_weight = -1,
        .stack_grad = -1,
    };
    layer_declare_params(declare, desc, layer_out);
    if (count > 1)
        layer_declare_stacked(declare, axis, desc, count, layer_out);
    layer_out->op = tess_declare_op(declare, &op, desc->first);
    if (desc->runs > 1) {
        op.rows /= desc->runs;
        op.gelu = false;
        layer_out->run_op = tess_declare_op(declare, &op, true); /* forward alone */
    }
}

void tess__layer_declare(struct tess_declare *declare, const struct tess_model_input *input,
                         const struct tess__layer_desc *desc, struct tess__layer *layer_out)
{
    layer_declare_parts(declare, &input->axis, desc, layer_out);
    layer_declare_sum(declare, input, desc, layer_out);
}

static int32_t layer_parts(const struct tess_pass *pass, const struct tess__layer *layer)
{
    return layer->split == TESS_SPLIT_NONE ? 1 : pass->axis->count;
}

struct tess_op *tess__layer_op(const struct tess_pass *pass, int32_t op)
{
    /* What it may have packed are another part's weights. */
    if (pass->axis->count > 1)
        pass->op[op]->packed_token = 0;
    return pass->op[op];
}

static struct tess_op *layer_op(const struct tess_pass *pass, const struct tess__layer *layer)
{
    return layer_parts(pass, layer) > 1 ? tess__layer_op(pass, layer->op) : pass->op[layer->op];
}

/* Where the parts' terms of the sum that goes to y are written. */
static void *layer_terms(const struct tess_pass *pass, const struct tess__layer *layer, void *y)
{
    return layer->terms < 0 ? y : pass->tensor[layer->terms];
}

static const void *layer_weight(const struct tess_pass *pass, const struct tess__layer *layer,
                                int32_t part)
{
    if (layer->stack_weight < 0)
        return layer_at(pass, pass->param[layer->weight], part * layer->weight_count);
    const int64_t word = (int64_t)tess_dtype_bytes(pass->dtype);
    void *stack = pass->tensor[layer->stack_weight];
    for (int64_t i = 0, to = 0; i < layer->stack_count; to += layer->stack[i++])
        tess_copy(pass->kernel, layer->stack[i] * word,
                  layer_at(pass, pass->param[layer->weight + i], part * layer->stack[i]),
                  layer_at(pass, stack, to));
    return stack;
}

/* Where a part's gradient of the weight is written, and what is done with it then. */
static float *layer_grad(const struct tess_pass *pass, const struct tess__layer *layer,
                         int32_t part)
{
    if (pass->grad[layer->weight] == NULL) /* frozen */
        return NULL;
    return layer->stack_grad < 0 ? pass->grad[layer->weight] + part * layer->weight_count
                                 : pass->tensor[layer->stack_grad];
}

static void layer_grad_done(const struct tess_pass *pass, const struct tess__layer *layer,
                            int32_t part)
{
    if (layer->stack_grad < 0 || pass->grad[layer->weight] == NULL)
        return;
    const float *stack = pass->tensor[layer->stack_grad];
    for (int32_t i = 0; i < layer->stack_count; stack += layer->stack[i++])
        tess_copy(pass->kernel, layer->stack[i] * (int64_t)sizeof(*stack), stack,
                  pass->grad[layer->weight + i] + part * layer->stack[i]);
}

/* What forward adds in this part; NULL: nothing. */
static const void *layer_bias(const struct tess_pass *pass, const struct tess__layer *layer,
                              int32_t part)
{
    if (layer->bias >= 0 && layer->split != TESS_SPLIT_ROWS)
        return layer_at(pass, pass->param[layer->bias], part * layer->bias_count);
    return layer->bias >= 0 && pass->axis->first + part == 0 ? pass->param[layer->bias] : NULL;
}

enum tess_status tess__layer_forward_part(const struct tess_pass *pass,
                                          const struct tess__layer *layer, int32_t part,
                                          const void *x, void *y)
{
    struct tess_op *op = layer_op(pass, layer);
    const void *weight = layer_weight(pass, layer, part), *bias = layer_bias(pass, layer, part);
    return layer->kind == TESS_OP_CONV2D ? tess_conv2d_forward(op, x, weight, bias, y)
                                         : tess_linear_forward(op, x, weight, bias, y);
}

enum tess_status tess__layer_forward_run(const struct tess_pass *pass,
                                         const struct tess__layer *layer, int32_t part,
                                         const void *x, void *y)
{
    struct tess__layer run = *layer;
    run.op = layer->run_op;
    return tess__layer_forward_part(pass, &run, part, x, y);
}

enum tess_status tess__layer_forward_part_add(const struct tess_pass *pass,
                                              const struct tess__layer *layer, int32_t part,
                                              const void *x, const void *add, void *y)
{
    return tess_linear_forward_add(layer_op(pass, layer), x, layer_weight(pass, layer, part),
                                   layer_bias(pass, layer, part), add, y);
}

/* Of a linear layer's output, or of its gradient. */
static void layer_dropout(const struct tess_pass *pass, const struct tess__layer *layer, void *y)
{
    const int64_t count = layer->out_count;
    if (layer->split == TESS_SPLIT_COLUMNS)
        tess__dropout_cut(pass, layer->dropout, 1, count, y);
    else
        tess__dropout_at(pass, layer->dropout, 0, pass->row_first * (uint64_t)count,
                         pass->rows * count, y, y);
}

enum tess_status tess__layer_forward(const struct tess_pass *pass, const struct tess__layer *layer,
                                     const void *x, void *y)
{
    const bool rows = layer->split == TESS_SPLIT_ROWS;
    const int64_t in = pass->rows * layer->in_count, out = pass->rows * layer->out_count;
    void *to = rows ? layer_terms(pass, layer, y) : y;
    for (int32_t p = 0; p < layer_parts(pass, layer); p++)
        TESS_TRY(tess__layer_forward_part(pass, layer, p, layer_at(pass, x, rows ? p * in : 0),
                                          layer_at(pass, to, p * out)));
    if (rows)
        TESS_TRY(tess_pass_sum(pass, out, to, y));
    if (rows && layer->relu)
        tess_relu_forward(pass->kernel, pass->dtype, out, y, y);
    layer_dropout(pass, layer, y);
    return TESS_OK;
}

/* Where a part's gradient of the bias goes; NULL: nowhere. */
static float *layer_bias_grad(const struct tess_pass *pass, const struct tess__layer *layer,
                              int32_t part)
{
    if (layer->bias < 0 || pass->grad[layer->bias] == NULL)
        return NULL;
    if (layer->split != TESS_SPLIT_ROWS)
        return pass->grad[layer->bias] + part * layer->bias_count;
    return layer->bias >= 0 && part == 0 ? pass->grad[layer->bias] : NULL;
}

enum tess_status tess__layer_backward_part(const struct tess_pass *pass,
                                           const struct tess__layer *layer, int32_t part,
                                           const void *x, const void *dy, const void *before,
                                           void *dx)
{
    struct tess_op *op = layer_op(pass, layer);
    const void *weight = layer_weight(pass, layer, part);
    float *dweight = layer_grad(pass, layer, part);
    float *dbias = layer_bias_grad(pass, layer, part);
    if (layer->kind == TESS_OP_CONV2D) {
        if (dweight != NULL)
            TESS_TRY(tess_conv2d_backward_weight(op, x, dy, dweight, dbias));
        return dx != NULL ? tess_conv2d_backward_data(op, dy, weight, dx) : TESS_OK;
    }
    if (before == NULL && dx != NULL) {
        TESS_TRY(tess_linear_backward(op, x, dy, weight, dweight, dbias, NULL, dx));
    } else {
        if (dweight != NULL)
            TESS_TRY(tess_linear_backward_weight(op, x, dy, dweight, dbias));
        if (before != NULL)
            TESS_TRY(tess_linear_backward_data_gelu(op, dy, weight, before, dx));
    }
    layer_grad_done(pass, layer, part);
    return TESS_OK;
}

enum tess_status tess__layer_backward_onto(const struct tess_pass *pass,
                                           const struct tess__layer *layer, int32_t part,
                                           const void *x, const void *dy, void *term, void *dx)
{
    TESS_TRY(tess_linear_backward(layer_op(pass, layer), x, dy, layer_weight(pass, layer, part),
                                  layer_grad(pass, layer, part), layer_bias_grad(pass, layer, part),
                                  term, dx));
    layer_grad_done(pass, layer, part);
    return TESS_OK;
}

bool tess__layer_is_apart(const struct tess_pass *pass, const struct tess__layer *layer)
{
    return pass->axis->rank_count > 1 && pass->axis->runs > 1 &&
           pass->grad[layer->weight] != NULL && pass->op[layer->op]->desc.fp8 == TESS_FP8_OFF;
}

enum tess_status tess__layer_backward_data(const struct tess_pass *pass,
                                           const struct tess__layer *layer, int32_t part,
                                           const void *x, const void *dy, void *term, void *dx)
{
    const void *weight = layer_weight(pass, layer, part);
    if (layer->kind == TESS_OP_CONV2D)
        return tess_conv2d_backward_data(layer_op(pass, layer), dy, weight, dx);
    return tess_linear_backward(layer_op(pass, layer), x, dy, weight, NULL, NULL, term, dx);
}

enum tess_status tess__layer_backward_weight(const struct tess_pass *pass,
                                             const struct tess__layer *layer, int32_t part,
                                             const void *x, const void *dy)
{
    return tess__layer_backward_part(pass, layer, part, x, dy, NULL, NULL);
}

/* The parts of a layer cut by columns. The last one's gradient of the weight hides the sum of the
 * gradients of x, unless that goes where x is. */
static enum tess_status layer_backward_columns(const struct tess_pass *pass,
                                               const struct tess__layer *layer, const void *x,
                                               const void *dy, void *dx)
{
    const int32_t last = layer_parts(pass, layer) - 1;
    const int64_t in = pass->rows * layer->in_count, out = pass->rows * layer->out_count;
    const bool apart = tess__layer_is_apart(pass, layer) && x != dx;
    void *terms = layer_terms(pass, layer, dx);
    for (int32_t p = 0; p < (apart ? last : last + 1); p++)
        TESS_TRY(tess__layer_backward_part(pass, layer, p, x, layer_at(pass, dy, p * out), NULL,
                                           layer_at(pass, terms, p * in)));
    if (!apart)
        return tess_pass_sum(pass, in, terms, dx);
    const void *dy_last = layer_at(pass, dy, last * out);
    TESS_TRY(tess__layer_backward_data(pass, layer, last, x, dy_last, NULL,
                                       layer_at(pass, terms, last * in)));
    TESS_TRY(tess_pass_sum_begin(pass, in, terms, dx));
    TESS_TRY(tess__layer_backward_weight(pass, layer, last, x, dy_last));
    return tess_pass_sum_end(pass);
}

/* May the weight be updated where its gradient is computed? 8-bit products narrow dy once for both
 * gradients, which are then computed in one call. */
static bool layer_is_updated(const struct tess_pass *pass, const struct tess__layer *layer)
{
    return layer->kind == TESS_OP_LINEAR && layer_parts(pass, layer) == 1 &&
           layer->stack_grad < 0 && pass->grad[layer->weight] != NULL &&
           layer_op(pass, layer)->desc.fp8 == TESS_FP8_OFF;
}

enum tess_status tess__layer_backward(const struct tess_pass *pass, const struct tess__layer *layer,
                                      const void *x, const void *y, void *dy, void *dx)
{
    const bool rows = layer->split == TESS_SPLIT_ROWS, columns = layer->split == TESS_SPLIT_COLUMNS;
    const int32_t parts = layer_parts(pass, layer);
    const int64_t in = pass->rows * layer->in_count, out = pass->rows * layer->out_count;
    /* Where dropout took y, it is 0, and so is the gradient: the ReLU may look at it as is. */
    layer_dropout(pass, layer, dy);
    if (layer->relu && y != NULL)
        tess_relu_backward(pass->kernel, pass->dtype, columns ? parts * out : out, y, dy, dy);
    if (columns && dx != NULL)
        return layer_backward_columns(pass, layer, x, dy, dx);
    if (layer_is_updated(pass, layer))
        layer_op(pass, layer)->update = tess_pass_update(pass, layer->weight);
    for (int32_t p = 0; p < parts; p++)
        TESS_TRY(tess__layer_backward_part(pass, layer, p, layer_at(pass, x, rows ? p * in : 0),
                                           layer_at(pass, dy, columns ? p * out : 0), NULL,
                                           layer_at(pass, dx, p * in)));
    return TESS_OK;
}

/* ---- batch norm ------------------------------------------------------------------------------
 * Running averages of n updates in a step, of rate m each, by the leaves x_0, ..., x_(n-1) in turn:
 *
 *     w' = (1 - m)^n w + sum of m (1 - m)^(n-1-l) x_l  =  (1 - r) w + r/n sum of a_l x_l
 *     r = 1 - (1 - m)^n,  a_l = n m (1 - m)^(n-1-l) / r
 *
 * which is one update by a mean over leaves, as that of the whole step is, of numbers a_l x_l.
 */

static double norm_step_rate(double rate, int64_t averages)
{
    return averages > 1 ? 1 - pow(1 - rate, (double)averages) : rate;
}

/* a_l */
static double norm_leaf_weight(const struct tess__norm *norm, int64_t leaf)
{
    const double n = (double)norm->averages, rate = norm_step_rate(norm->rate, norm->averages);
    return rate > 0 ? n * norm->rate * pow(1 - norm->rate, n - 1 - (double)leaf) / rate : 1;
}

void tess__norm_declare(struct tess_declare *declare, const struct tess_model_input *input,
                        const char *name, const struct tess_shape *image, float leaf_rate, bool cut,
                        struct tess__norm *norm)
{
    const struct tess_tensor_axis *axis = &input->axis;
    const float rate = (float)norm_step_rate((double)leaf_rate, input->averages);
    const struct tess_init zero = {TESS_INIT_ZERO, 0}, one = {TESS_INIT_ONE, 0};
    const struct tess_shape shape = tess_shape1(image->dim[2]);
    const struct tess_slice slice = {cut ? 0 : -1, 1, 0};
    char text[TESS__LAYER_NAME];
    norm->cut = cut;
    norm->averages = input->averages;
    norm->rate = (double)leaf_rate;
    norm->channels = cut ? image->dim[2] / axis->parts : image->dim[2];
    norm->positions = image->dim[0] * image->dim[1];
    norm->gamma = tess_declare_sliced(declare, tess__layer_name(text, name, "weight"), shape, one,
                                      TESS_PARAM_NO_DECAY, slice);
    norm->beta = tess_declare_sliced(declare, tess__layer_name(text, name, "bias"), shape, zero,
                                     TESS_PARAM_NO_DECAY, slice);
    norm->mean = tess_declare_sliced_buffer(declare, tess__layer_name(text, name, "running_mean"),
                                            shape, zero, rate, slice);
    norm->var = tess_declare_sliced_buffer(declare, tess__layer_name(text, name, "running_var"),
                                           shape, one, rate, slice);

    const struct tess_shape held = tess_shape1(norm->channels * (cut ? axis->count : 1));
    const struct {
        const char *name;
        enum tess_life life;
        int32_t *index;
    } tensor[] = {
        {"save_mean", TESS_LIFE_LEAVES, &norm->save_mean},
        {"save_rstd", TESS_LIFE_LEAVES, &norm->save_rstd},
        {"mean_sum", TESS_LIFE_BATCH, &norm->mean_sum},
        {"var_sum", TESS_LIFE_BATCH, &norm->var_sum},
        {"leaf_mean", TESS_LIFE_LEAVES, &norm->leaf_mean},
        {"leaf_var", TESS_LIFE_LEAVES, &norm->leaf_var},
    };
    for (size_t t = 0; t < (norm->averages > 1 ? 6 : 4); t++)
        *tensor[t].index = tess_declare_tensor(
            declare, tess__layer_name(text, name, tensor[t].name), TESS_F32, held, tensor[t].life);
    const struct tess_op_desc op = {.kind = TESS_OP_BATCH_NORM,
                                    .in = norm->channels,
                                    .out = norm->channels,
                                    .height = image->dim[0],
                                    .width = image->dim[1],
                                    .relu = true,
                                    .epsilon = 1e-5f};
    norm->op = tess_declare_op(declare, &op, false);
}

/* Where the numbers of a part are: [channels], [leaves, channels], [rows, positions, channels]. */
struct norm_place {
    int64_t channel, leaf, row;
};

static struct norm_place norm_at(const struct tess_pass *pass, const struct tess__norm *norm,
                                 int32_t part)
{
    return (struct norm_place){
        .channel = part * norm->channels,
        .leaf = part * pass->leaf_count * norm->channels,
        .row = part * pass->rows * norm->positions * norm->channels,
    };
}

static int32_t norm_parts(const struct tess_pass *pass, const struct tess__norm *norm)
{
    return norm->cut ? pass->axis->count : 1;
}

static float *norm_tensor(const struct tess_pass *pass, int32_t tensor, int64_t at)
{
    return (float *)pass->tensor[tensor] + at;
}

/* Leaf by leaf, for the statistics of each. */
static enum tess_status norm_forward_leaves(const struct tess_pass *pass,
                                            const struct tess__norm *norm,
                                            const struct norm_place *at, const void *x, void *y)
{
    struct tess_op leaf = *pass->op[norm->op];
    const int64_t row = pass->leaf_rows * norm->positions * norm->channels;
    leaf.desc.rows = pass->leaf_rows;
    for (int64_t l = 0; l < pass->leaf_count; l++) {
        const int64_t here = at->row + l * row, number = at->leaf + l * norm->channels;
        TESS_TRY(tess_batch_norm_forward(
            &leaf, layer_at(pass, x, here), layer_at(pass, pass->param[norm->gamma], at->channel),
            layer_at(pass, pass->param[norm->beta], at->channel), layer_at(pass, y, here),
            norm_tensor(pass, norm->save_mean, number), norm_tensor(pass, norm->save_rstd, number),
            norm_tensor(pass, norm->leaf_mean, number), norm_tensor(pass, norm->leaf_var, number)));
    }
    return TESS_OK;
}

/* sum [channels] = the sum of the leaves' statistics times their weights, as a tree; `each`
 * [leaves, channels] is spoilt. */
static void norm_fold_leaves(const struct tess_pass *pass, const struct tess__norm *norm,
                             float *each, float *sum)
{
    const int64_t first = (int64_t)(pass->row_first / (uint64_t)pass->leaf_rows);
    const int64_t count = norm->channels;
    for (int64_t l = 0; l < pass->leaf_count; l++)
        tess_accumulate(pass->kernel, count, (float)(norm_leaf_weight(norm, first + l) - 1),
                        each + l * count, each + l * count);
    for (int64_t step = 1; step < pass->leaf_count; step *= 2)
        for (int64_t l = 0; l + step < pass->leaf_count; l += 2 * step)
            tess_accumulate(pass->kernel, count, 1.0f, each + (l + step) * count, each + l * count);
    tess_copy(pass->kernel, count * (int64_t)sizeof(float), each, sum);
}

static enum tess_status norm_forward_part(const struct tess_pass *pass,
                                          const struct tess__norm *norm, int32_t part,
                                          const void *x, void *y)
{
    const struct norm_place at = norm_at(pass, norm, part);
    struct tess_op *op = pass->op[norm->op];
    const void *gamma = layer_at(pass, pass->param[norm->gamma], at.channel);
    const void *beta = layer_at(pass, pass->param[norm->beta], at.channel);
    if (!pass->training)
        return tess_batch_norm_infer(op, layer_at(pass, x, at.row), gamma, beta,
                                     layer_at(pass, pass->param[norm->mean], at.channel),
                                     layer_at(pass, pass->param[norm->var], at.channel),
                                     layer_at(pass, y, at.row));
    if (norm->averages > 1)
        return norm_forward_leaves(pass, norm, &at, x, y);
    return tess_batch_norm_forward(
        op, layer_at(pass, x, at.row), gamma, beta, layer_at(pass, y, at.row),
        norm_tensor(pass, norm->save_mean, at.leaf), norm_tensor(pass, norm->save_rstd, at.leaf),
        norm_tensor(pass, norm->mean_sum, at.channel),
        norm_tensor(pass, norm->var_sum, at.channel));
}

enum tess_status tess__norm_forward(const struct tess_pass *pass, const struct tess__norm *norm,
                                    const void *x, void *y)
{
    for (int32_t p = 0; p < norm_parts(pass, norm); p++)
        TESS_TRY(norm_forward_part(pass, norm, p, x, y));
    return TESS_OK;
}

enum tess_status tess__norm_backward(const struct tess_pass *pass, const struct tess__norm *norm,
                                     const void *x, const void *y, const void *dy, void *dx)
{
    const int32_t parts = norm_parts(pass, norm);
    const int64_t bytes = parts * norm->channels * (int64_t)sizeof(float);
    /* The statistics were taken in forward, but gradients have their room only now. */
    for (int32_t p = 0; norm->averages > 1 && p < parts; p++) {
        const struct norm_place at = norm_at(pass, norm, p);
        norm_fold_leaves(pass, norm, norm_tensor(pass, norm->leaf_mean, at.leaf),
                         pass->grad[norm->mean] + at.channel);
        norm_fold_leaves(pass, norm, norm_tensor(pass, norm->leaf_var, at.leaf),
                         pass->grad[norm->var] + at.channel);
    }
    if (norm->averages <= 1) {
        tess_copy(pass->kernel, bytes, pass->tensor[norm->mean_sum], pass->grad[norm->mean]);
        tess_copy(pass->kernel, bytes, pass->tensor[norm->var_sum], pass->grad[norm->var]);
    }
    for (int32_t p = 0; p < parts; p++) {
        const struct norm_place at = norm_at(pass, norm, p);
        TESS_TRY(tess_batch_norm_backward(
            pass->op[norm->op], layer_at(pass, x, at.row), layer_at(pass, y, at.row),
            layer_at(pass, dy, at.row), layer_at(pass, pass->param[norm->gamma], at.channel),
            layer_at(pass, pass->param[norm->beta], at.channel),
            norm_tensor(pass, norm->save_mean, at.leaf),
            norm_tensor(pass, norm->save_rstd, at.leaf), layer_at(pass, dx, at.row),
            pass->grad[norm->gamma] + at.channel, pass->grad[norm->beta] + at.channel));
    }
    return TESS_OK;
}

/* ---- dropout --------------------------------------------------------------------------------- */

void tess__dropout_key(const struct tess_pass *pass, uint64_t key_out[2])
{
    /* 2^16 units are more than any model has, so that no two (step, unit) share a key. */
    key_out[0] = pass->seed;
    key_out[1] = pass->step << 16 | (uint64_t)pass->unit;
}

/* Rows of `width` elements out of rows of `stride` of the whole; see tess_dropout. */
static void dropout_rows(const struct tess_pass *pass, double rate, uint64_t first, int64_t rows,
                         int64_t width, int64_t stride, const void *x, void *y)
{
    uint64_t key[2];
    tess__dropout_key(pass, key);
    if (pass->training && rate > 0)
        tess_dropout(pass->kernel, pass->dtype, rows, width, stride, (float)rate, key, first, x, y);
    else if (y != x)
        tess_copy(pass->kernel, rows * width * (int64_t)tess_dtype_bytes(pass->dtype), x, y);
}

void tess__dropout_at(const struct tess_pass *pass, double rate, int32_t site, uint64_t first,
                      int64_t count, const void *x, void *y)
{
    dropout_rows(pass, rate, first | (uint64_t)site << 48, 1, count, count, x, y);
}

void tess__dropout_cut(const struct tess_pass *pass, double rate, int64_t positions,
                       int64_t channels, void *x)
{
    const struct tess_tensor_axis *axis = pass->axis;
    const int64_t count = pass->rows * positions;
    const uint64_t first = pass->row_first * (uint64_t)positions;
    /* Only a position's channels follow each other in the whole. */
    for (int32_t p = 0; p < axis->count; p++) {
        const uint64_t run = first * (uint64_t)axis->parts + (uint64_t)(axis->first + p);
        void *here = layer_at(pass, x, p * count * channels);
        dropout_rows(pass, rate, run * (uint64_t)channels, count, channels, axis->parts * channels,
                     here, here);
    }
}
