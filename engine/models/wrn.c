/*
 * Wide residual networks (Zagoruyko and Komodakis 2016, table 1, blocks B(3,3)): a 3x3 convolution
 * to 16 channels, three groups of n = (depth - 4)/6 pre-activation blocks with 16k, 32k, 64k
 * channels, the second and third group starting with stride 2, then batch norm, global average pool
 * and a linear layer. One unit per block, one for the first convolution and one for the head.
 *
 *     x --- bn1, relu = a --- conv1 = h --- bn2, relu, dropout = b --- conv2 --- + --- y
 *       \          \--- projection (1x1, where the shape changes) -------------- |
 *        \----------------- or x itself --------------------------------------- /
 *
 * Along the tensor axis a block is cut as a transformer's is: conv1 by output channels, h and b
 * with it, conv2 by input channels. Blocks' inputs, projections, the first convolution and the head
 * are whole on every rank.
 */
#include "layer.h"
#include "tessera/check.h"
#include "tessera/version.h"

#include <math.h>
#include <stdio.h>

#define WRN_DEPTH_MAX  100
#define WRN_GROUPS     3
#define WRN_BLOCKS_MAX (WRN_GROUPS * ((WRN_DEPTH_MAX - 4) / 6))
#define WRN_FIRST      16 /* channels of the first convolution */

struct wrn_options {
    int64_t depth, width;
    double dropout, momentum;
};

struct wrn_block {
    struct tess__norm norm[2];
    struct tess__layer conv[2], projection;
    bool projects;
    int32_t a, h, b, shortcut;             /* tensors, see above */
    int32_t b_grad, a_grad, shortcut_grad; /* tensors */
};

struct wrn_state {
    double dropout;
    float momentum;
    int32_t block_count;
    struct tess__layer first;
    struct wrn_block block[WRN_BLOCKS_MAX];
    struct tess__norm norm; /* of the head, with its tensors */
    int32_t pool, normed, pooled, normed_grad, pooled_grad;
    struct tess__layer fc;
};

static const struct tess_option wrn_option_table[] = {
    TESS_ROW_INT("depth", offsetof(struct wrn_options, depth), "10", 10, WRN_DEPTH_MAX,
                 "number of convolutions, 6 n + 4: 10, 16, 22, 28, ..."),
    TESS_ROW_INT("width", offsetof(struct wrn_options, width), "2", 1, 32,
                 "widening factor k: the groups have 16k, 32k and 64k channels"),
    TESS_ROW_REAL("dropout", offsetof(struct wrn_options, dropout), "0", 0, 0.99,
                  "share dropped in training between the two convolutions of a block"),
    TESS_ROW_REAL("bn-momentum", offsetof(struct wrn_options, momentum), "0.1", 0, 1,
                  "weight of the newest batch in batch norm's running averages"),
    TESS_ROW_END,
};

/* He's initialisation by fan-out, as the paper's own code has it. */
static struct tess_init wrn_init(int64_t out, int32_t window)
{
    return (struct tess_init){TESS_INIT_NORMAL, (float)sqrt(2.0 / (double)(out * window * window))};
}

/* What the parts of a model are declared with. */
struct wrn_builder {
    struct wrn_state *wrn;
    const struct tess_model_input *input;
    struct tess_declare *declare;
};

/* `conv`: outputs, window, stride and what is not of convolutions alone. */
static void wrn_declare_conv(const struct wrn_builder *to, const char *unit, const char *name,
                             const struct tess_shape *in, struct tess__layer_desc conv,
                             struct tess__layer *layer_out)
{
    char full[48];
    snprintf(full, sizeof(full), "%s%s", unit, name);
    conv.name = full;
    conv.op.kind = TESS_OP_CONV2D;
    conv.op.in = in->dim[2];
    conv.op.height = in->dim[0];
    conv.op.width = in->dim[1];
    conv.op.padding = conv.op.window / 2;
    conv.init = wrn_init(conv.op.out, conv.op.window);
    tess__layer_declare(to->declare, to->input, &conv, layer_out);
}

static void wrn_declare_norm(const struct wrn_builder *to, const char *unit, const char *name,
                             const struct tess_shape *image, bool cut, struct tess__norm *norm_out)
{
    char full[48];
    snprintf(full, sizeof(full), "%s%s", unit, name);
    tess__norm_declare(to->declare, to->input, full, image, to->wrn->momentum, cut, norm_out);
}

static void wrn_declare_projection(const struct wrn_builder *to, struct wrn_block *block,
                                   const char *unit, const struct tess_shape *in,
                                   const struct tess_shape *out, int32_t stride)
{
    const struct tess__layer_desc conv = {
        .op = {.out = out->dim[2], .window = 1, .stride = stride}};
    const enum tess_dtype dtype = to->input->dtype;
    wrn_declare_conv(to, unit, ".projection", in, conv, &block->projection);
    block->shortcut = tess_declare_tensor(to->declare, "shortcut", dtype, *out, TESS_LIFE_UNIT);
    block->shortcut_grad =
        tess_declare_tensor(to->declare, "shortcut.grad", dtype, *in, TESS_LIFE_UNIT);
}

static struct tess_shape wrn_declare_block(const struct wrn_builder *to, const char *unit,
                                           struct tess_shape in, int64_t channels, int32_t stride)
{
    struct wrn_block *block = &to->wrn->block[to->wrn->block_count++];
    const struct tess_tensor_axis *axis = &to->input->axis;
    const enum tess_dtype dtype = to->input->dtype;
    const enum tess__split columns = tess__split_after(axis, TESS_SPLIT_NONE, false);
    const struct tess__layer_desc conv1 = {.op = {.out = channels, .window = 3, .stride = stride},
                                           .split = columns};
    const struct tess__layer_desc conv2 = {.op = {.out = channels, .window = 3, .stride = 1},
                                           .split = tess__split_after(axis, columns, true)};
    const struct tess_shape out =
        tess_shape3(tess_op_output_size(in.dim[0], 3, stride, 1),
                    tess_op_output_size(in.dim[1], 3, stride, 1), channels);
    const struct tess_shape held =
        tess_shape3(out.dim[0], out.dim[1], tess__split_held(axis, columns, channels));
    tess_declare_unit(to->declare, unit, out);
    block->projects = stride != 1 || in.dim[2] != channels;
    wrn_declare_norm(to, unit, ".bn1", &in, false, &block->norm[0]);
    wrn_declare_conv(to, unit, ".conv1", &in, conv1, &block->conv[0]);
    wrn_declare_norm(to, unit, ".bn2", &out, columns == TESS_SPLIT_COLUMNS, &block->norm[1]);
    wrn_declare_conv(to, unit, ".conv2", &out, conv2, &block->conv[1]);
    block->a = tess_declare_tensor(to->declare, "a", dtype, in, TESS_LIFE_SAVED);
    block->h = tess_declare_tensor(to->declare, "h", dtype, held, TESS_LIFE_SAVED);
    block->b = tess_declare_tensor(to->declare, "b", dtype, held, TESS_LIFE_SAVED);
    block->b_grad = tess_declare_tensor(to->declare, "b.grad", dtype, held, TESS_LIFE_UNIT);
    block->a_grad = tess_declare_tensor(to->declare, "a.grad", dtype, in, TESS_LIFE_UNIT);
    if (block->projects)
        wrn_declare_projection(to, block, unit, &in, &out, stride);
    return out;
}

static void wrn_declare_head(const struct wrn_builder *to, struct tess_shape image)
{
    struct wrn_state *wrn = to->wrn;
    struct tess_declare *declare = to->declare;
    const int64_t channels = image.dim[2];
    const int32_t classes = to->input->class_count;
    const struct tess_op_desc pool = {.kind = TESS_OP_AVG_POOL,
                                      .in = channels,
                                      .out = channels,
                                      .height = image.dim[0],
                                      .width = image.dim[1],
                                      .window = (int32_t)image.dim[0],
                                      .stride = 1};
    const struct tess__layer_desc fc = {
        .name = "head.fc",
        .op = {.kind = TESS_OP_LINEAR, .in = channels, .out = classes},
        .init = tess__init_fan_in(channels),
        .bias_init = tess__init_fan_in(channels),
        .bias = true};
    const enum tess_dtype dtype = to->input->dtype;
    tess_declare_unit(declare, "head", tess_shape1(classes));
    wrn_declare_norm(to, "head", ".bn", &image, false, &wrn->norm);
    wrn->pool = tess_declare_op(declare, &pool, false);
    tess__layer_declare(declare, to->input, &fc, &wrn->fc);
    wrn->normed = tess_declare_tensor(declare, "normed", dtype, image, TESS_LIFE_SAVED);
    wrn->pooled =
        tess_declare_tensor(declare, "pooled", dtype, tess_shape1(channels), TESS_LIFE_SAVED);
    wrn->normed_grad = tess_declare_tensor(declare, "normed.grad", dtype, image, TESS_LIFE_UNIT);
    wrn->pooled_grad =
        tess_declare_tensor(declare, "pooled.grad", dtype, tess_shape1(channels), TESS_LIFE_UNIT);
}

static enum tess_status wrn_check(const struct wrn_options *o, const struct tess_model_input *input)
{
    const struct tess_shape *row = &input->row;
    if ((o->depth - 4) % 6 != 0)
        TESS_FAIL(TESS_ERR_USAGE, "wrn.depth is %lld: it must be 6 n + 4, such as 10, 16, 22 or 28",
                  (long long)o->depth);
    if (row->rank != 3 || row->dim[0] != row->dim[1])
        TESS_FAIL(TESS_ERR_USAGE, "model wrn needs square images [H, H, C], for its global pool");
    return tess__split_check(&input->axis, "wrn", "16 wrn.width, the channels of its first blocks",
                             WRN_FIRST * o->width);
}

static enum tess_status wrn_declare(void *state, const void *options,
                                    const struct tess_model_input *input,
                                    struct tess_declare *declare)
{
    const struct wrn_options *o = options;
    struct wrn_state *wrn = state;
    const struct tess_shape *row = &input->row;
    const struct wrn_builder to = {wrn, input, declare};
    const struct tess__layer_desc first = {.op = {.out = WRN_FIRST, .window = 3, .stride = 1},
                                           .first = true};
    TESS_TRY(wrn_check(o, input));
    wrn->dropout = o->dropout;
    wrn->momentum = (float)o->momentum;
    wrn->block_count = 0;

    struct tess_shape image = tess_shape3(row->dim[0], row->dim[1], WRN_FIRST);
    tess_declare_unit(declare, "conv1", image);
    wrn_declare_conv(&to, "conv1", "", row, first, &wrn->first);
    for (int32_t group = 0; group < WRN_GROUPS; group++) {
        for (int32_t i = 0; i < (o->depth - 4) / 6; i++) {
            const int32_t stride = group > 0 && i == 0 ? 2 : 1;
            char unit[24];
            snprintf(unit, sizeof(unit), "block%d.%d", group + 1, i + 1);
            image = wrn_declare_block(&to, unit, image, (WRN_FIRST << group) * o->width, stride);
        }
    }
    wrn_declare_head(&to, image);
    return TESS_OK;
}

static enum tess_status wrn_block_forward(const struct wrn_state *wrn,
                                          const struct wrn_block *block,
                                          const struct tess_pass *pass)
{
    void *a = pass->tensor[block->a], *h = pass->tensor[block->h], *b = pass->tensor[block->b];
    const int64_t count = block->conv[1].out_count;
    const void *shortcut = pass->input;
    TESS_TRY(tess__norm_forward(pass, &block->norm[0], pass->input, a));
    TESS_TRY(tess__layer_forward(pass, &block->conv[0], a, h));
    TESS_TRY(tess__norm_forward(pass, &block->norm[1], h, b));
    tess__dropout_cut(pass, wrn->dropout, block->norm[1].positions, block->norm[1].channels, b);
    TESS_TRY(tess__layer_forward(pass, &block->conv[1], b, pass->output));
    if (block->projects) {
        TESS_TRY(tess__layer_forward(pass, &block->projection, a, pass->tensor[block->shortcut]));
        shortcut = pass->tensor[block->shortcut];
    }
    tess_add(pass->kernel, pass->dtype, pass->rows * count, pass->output, shortcut, pass->output);
    return TESS_OK;
}

static enum tess_status wrn_block_backward(const struct wrn_state *wrn,
                                           const struct wrn_block *block,
                                           const struct tess_pass *pass)
{
    const void *a = pass->tensor[block->a], *h = pass->tensor[block->h];
    const void *b = pass->tensor[block->b];
    void *dy = pass->output_grad_scratch, *dx = pass->input_grad;
    void *db = pass->tensor[block->b_grad], *da = pass->tensor[block->a_grad];
    const int64_t count = pass->rows * block->conv[1].out_count;
    TESS_TRY(tess__layer_backward(pass, &block->conv[1], b, NULL, dy, db));
    tess__dropout_cut(pass, wrn->dropout, block->norm[1].positions, block->norm[1].channels, db);
    /* Where b was dropped, db is 0 too: norm's ReLU may look at the dropped b. */
    TESS_TRY(tess__norm_backward(pass, &block->norm[1], h, b, db, db));
    TESS_TRY(tess__layer_backward(pass, &block->conv[0], a, NULL, db, da));
    if (!block->projects) {
        TESS_TRY(tess__norm_backward(pass, &block->norm[0], pass->input, a, da, dx));
        tess_add(pass->kernel, pass->dtype, count, dx, dy, dx);
        return TESS_OK;
    }
    void *ds = pass->tensor[block->shortcut_grad];
    const int64_t in_count = pass->rows * block->norm[0].positions * block->norm[0].channels;

    TESS_TRY(tess__layer_backward(pass, &block->projection, a, NULL, dy, ds));
    tess_add(pass->kernel, pass->dtype, in_count, da, ds, da);
    return tess__norm_backward(pass, &block->norm[0], pass->input, a, da, dx);
}

static enum tess_status wrn_forward(void *state, const struct tess_pass *pass)
{
    const struct wrn_state *wrn = state;
    if (pass->unit == 0)
        return tess__layer_forward(pass, &wrn->first, pass->input, pass->output);
    if (pass->unit <= wrn->block_count)
        return wrn_block_forward(wrn, &wrn->block[pass->unit - 1], pass);

    void *normed = pass->tensor[wrn->normed], *pooled = pass->tensor[wrn->pooled];
    TESS_TRY(tess__norm_forward(pass, &wrn->norm, pass->input, normed));
    TESS_TRY(tess_avg_pool_forward(pass->op[wrn->pool], normed, pooled));
    return tess__layer_forward(pass, &wrn->fc, pooled, pass->output);
}

static enum tess_status wrn_backward(void *state, const struct tess_pass *pass)
{
    const struct wrn_state *wrn = state;
    if (pass->unit == 0)
        return tess__layer_backward(pass, &wrn->first, pass->input, NULL, pass->output_grad_scratch,
                                    pass->input_grad);
    if (pass->unit <= wrn->block_count)
        return wrn_block_backward(wrn, &wrn->block[pass->unit - 1], pass);

    void *grad = pass->tensor[wrn->normed_grad], *pooled_grad = pass->tensor[wrn->pooled_grad];
    TESS_TRY(tess__layer_backward(pass, &wrn->fc, pass->tensor[wrn->pooled], NULL,
                                  pass->output_grad_scratch, pooled_grad));
    TESS_TRY(tess_avg_pool_backward(pass->op[wrn->pool], pooled_grad, grad));
    return tess__norm_backward(pass, &wrn->norm, pass->input, pass->tensor[wrn->normed], grad,
                               pass->input_grad);
}

const struct tess_model_ops tess_model_wrn = {
    .abi = TESS_ABI,
    .name = "wrn",
    .summary = "wide residual network with batch norm",
    .options = wrn_option_table,
    .options_size = sizeof(struct wrn_options),
    .state_size = sizeof(struct wrn_state),
    .tensor = true,
    .declare = wrn_declare,
    .forward = wrn_forward,
    .backward = wrn_backward,
};
