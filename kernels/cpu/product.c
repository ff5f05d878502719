/*
 * Linear layers and convolutions: which kernel computes each of the three products. What changes
 * bits depends on dtype, geometry and leaf_rows only, never on the number of rows.
 *
 *                    linear                                   convolution
 *   forward          own kernel (forward.c); without AVX-512   oneDNN
 *                    own loops when small, else oneDNN
 *   backward_data    own loops when small, own kernel          oneDNN
 *                    (data.c); without AVX-512 oneDNN
 *   backward_weight  own kernel (grad.c); without AVX-512      own kernel (conv_grad.c) where that
 *                    oneDNN                                    supports the geometry, else oneDNN
 *
 * On processors with AMX the own kernels in bf16 multiply by tiles (amx_linear.c, amx_grad.c,
 * amx_conv_grad.c), some ten times as fast as by dot products, and so do forward and data gradient
 * of the convolutions that amx_conv.c takes. oneDNN's products are library.c's.
 *
 * With AVX-512 convolutions that desc.conv gives to Winograd are own kernels in all directions
 * (wino.c, wino_grad.c).
 */
#include "cpu/prim.h"

#include "ref/fold.h"
#include "ref/rules.h"
#include "tessera/check.h"

/*
 * Up to this many weights of a linear layer own loops beat oneDNN's cost per call, about a
 * microsecond with the choice of its inner kernels; an 8 x 8 layer takes a tenth of that.
 */
#define PRODUCT_SMALL 1024

/* What does not go to oneDNN. */
struct product_choice {
    const struct cpu_own *own;   /* NULL: none; of a convolution for the weight gradient only */
    bool small;                  /* own loops */
    bool wino;                   /* a convolution by own kernels in all directions */
    const struct cpu_own *tiles; /* convolution: forward and the data gradient where `tiled` */
    bool tiled[2];               /* by enum cpu_what */
    bool library[3];             /* what does, by enum cpu_what */
};

static struct product_choice product_choose(const struct tess_op_desc *desc)
{
    const bool linear = desc->kind == TESS_OP_LINEAR;
    struct product_choice c = {.own = tess__cpu_own(desc->dtype)};
    c.wino = !linear && c.own != NULL && c.own->wino_takes(desc);
    c.tiles = !linear && !c.wino && c.own != NULL && c.own->conv != NULL ? c.own : NULL;
    for (int what = 0; what < 2; what++)
        c.tiled[what] = c.tiles != NULL && c.tiles->conv_takes(desc, what == CPU_BACKWARD_DATA);
    if (!linear && !c.wino && c.own != NULL && !c.own->conv_grad_takes(desc))
        c.own = NULL;
    c.small = linear && desc->in * desc->out <= PRODUCT_SMALL;
    const bool library = (!linear && !c.wino) || (c.own == NULL && !c.small);
    c.library[CPU_FORWARD] = library && !c.tiled[CPU_FORWARD];
    c.library[CPU_BACKWARD_DATA] = library && desc->input_grad && !c.tiled[CPU_BACKWARD_DATA];
    c.library[CPU_BACKWARD_WEIGHT] = c.own == NULL;
    return c;
}

/* Scratch of the own weight gradient of a convolution, for each thread. */
static size_t product_conv_scratch(const struct product_choice *c, const struct tess_op_desc *desc)
{
    return c->wino ? c->own->wino_grad_scratch(desc) : c->own->conv_grad_scratch(desc);
}

/* What forward and the data gradient of a convolution on tiles need, for each thread and in all. */
static size_t product_tiles_thread(const struct product_choice *c, const struct tess_op_desc *desc)
{
    return c->tiled[0] || c->tiled[1] ? c->tiles->conv_scratch(desc) : 0;
}

static size_t product_tiles_scratch(const struct product_choice *c, const struct tess_op_desc *desc)
{
    return c->tiled[0] || c->tiled[1] ? c->tiles->conv_scratch(desc) + c->tiles->conv_weights(desc)
                                      : 0;
}

/* Scratch of the own kernels for each thread. */
static size_t product_thread_scratch(const struct product_choice *c,
                                     const struct tess_op_desc *desc)
{
    const struct cpu_own *own = c->own;
    if (desc->kind == TESS_OP_CONV2D)
        return tess__cpu_max(product_conv_scratch(c, desc), c->wino ? own->wino_scratch(desc) : 0);
    size_t bytes = tess__cpu_max(own->grad_scratch(desc), own->forward_scratch(desc));
    return tess__cpu_max(bytes, own->data_scratch(desc));
}

/* Scratch of the own kernels. */
static size_t product_own_scratch(const struct product_choice *c, const struct tess_op_desc *desc)
{
    if (desc->kind == TESS_OP_LINEAR)
        return tess__cpu_max(product_thread_scratch(c, desc),
                             c->own->grad_shared(desc) + c->own->grad_scratch(desc));
    size_t bytes = product_conv_scratch(c, desc) +
                   tess__fold_bytes(tess__cpu_sizes(desc).w, desc->rows / desc->leaf_rows);
    return c->wino ? tess__cpu_max(bytes, c->own->wino_scratch(desc) + c->own->wino_weights(desc))
                   : bytes;
}

static enum tess_status product_needs(const struct tess_op_desc *desc,
                                      struct tess_op_needs *needs_out)
{
    struct product_choice c = product_choose(desc);
    size_t bytes = tess__fold_bytes(desc->out, desc->rows / desc->leaf_rows) +
                   tess__cpu_round_up((size_t)desc->out * sizeof(float)); /* product_bias() */
    if (c.small) /* weights, one row in, one row out, a bias */
        bytes = tess__cpu_max(bytes, (size_t)(desc->in * desc->out + desc->in + 2 * desc->out) *
                                         sizeof(float));
    if (c.own != NULL)
        bytes = tess__cpu_max(bytes, product_own_scratch(&c, desc));
    bytes = tess__cpu_max(bytes, product_tiles_scratch(&c, desc));
    *needs_out = (struct tess_op_needs){.scratch_bytes = bytes,
                                        .thread_bytes = product_tiles_thread(&c, desc)};
    if (c.own != NULL)
        needs_out->thread_bytes =
            tess__cpu_max(needs_out->thread_bytes, product_thread_scratch(&c, desc));
    return tess__cpu_library_needs(desc, c.library, needs_out);
}

static enum tess_status product_open(struct tess_op *op)
{
    return tess__cpu_library_open(op, product_choose(&op->desc).library);
}

static enum tess_status product_forward(struct tess_op *op, const void *x, const void *w,
                                        const void *bias, void *y)
{
    const struct tess_op_desc *desc = &op->desc;
    struct product_choice c = product_choose(desc);
    if (c.library[CPU_FORWARD])
        return tess__cpu_library_run(op, CPU_FORWARD, w, x, y, bias);
    if (c.tiled[CPU_FORWARD])
        c.tiles->conv(op->kernel, desc, false, x, w, bias, y, op->scratch);
    else if (c.wino)
        c.own->wino(op->kernel, desc, false, x, w, bias, y, op->scratch);
    else if (c.own != NULL)
        c.own->forward(op->kernel, desc, x, w, bias, y, op->scratch);
    else
        tess__cpu_loops(op->kernel)->small_forward(desc, x, w, bias, y, op->scratch);
    return TESS_OK;
}

static enum tess_status product_backward_data(struct tess_op *op, const void *dy, const void *w,
                                              void *dx)
{
    const struct tess_op_desc *desc = &op->desc;
    struct product_choice c = product_choose(desc);
    if (c.library[CPU_BACKWARD_DATA])
        return tess__cpu_library_run(op, CPU_BACKWARD_DATA, w, dy, dx, NULL);
    if (c.tiled[CPU_BACKWARD_DATA])
        c.tiles->conv(op->kernel, desc, true, dy, w, NULL, dx, op->scratch);
    else if (c.wino)
        c.own->wino(op->kernel, desc, true, dy, w, NULL, dx, op->scratch);
    else if (c.small)
        tess__cpu_loops(op->kernel)->small_backward_data(desc, dy, w, dx, op->scratch);
    else
        c.own->data(op->kernel, desc, dy, w, dx, op->scratch);
    return TESS_OK;
}

/* The own kernel is for one leaf; the tree over the leaves is folded here. The threads share the
 * output channels. */
struct product_conv {
    cpu_own_conv_grad *run;
    const struct tess_op_desc *desc;
    const char *x, *dy;
    struct tess_fold fold; /* of all of dw */
    int64_t channels;      /* of a part */
};

static void product_conv_part(void *context, int64_t part, void *work)
{
    const struct product_conv *call = context;
    const struct tess_op_desc *desc = call->desc;
    struct cpu_sizes n = tess__cpu_sizes(desc);
    size_t leaf_bytes = (size_t)desc->leaf_rows * tess_dtype_bytes(desc->dtype);
    int64_t first = part * call->channels, of_channel = n.w / desc->out;
    int64_t count = tess__cpu_min(desc->out - first, call->channels);
    struct tess_fold fold = tess__fold_piece(&call->fold, first * of_channel, count * of_channel);
    for (int64_t g = 0; g < desc->rows / desc->leaf_rows; g++) {
        call->run(desc, call->x + (size_t)(g * n.x) * leaf_bytes,
                  call->dy + (size_t)(g * n.y) * leaf_bytes, first, count, tess__fold_leaf(&fold),
                  work);
        tess__fold_push(&fold);
    }
    tess__fold_finish(&fold);
}

static void product_conv_weight(const struct product_choice *c, struct tess_op *op, const char *x,
                                const char *dy, float *dw)
{
    const struct tess_op_desc *desc = &op->desc;
    struct product_conv call = {
        .run = c->wino ? c->own->wino_grad : c->own->conv_grad, .desc = desc, .x = x, .dy = dy};
    const bool on_tiles = desc->dtype == TESS_BF16 && tess__cpu_tiles();
    const int64_t least = on_tiles ? CPU_CONV_TILE : CPU_CONV_CHANNELS;
    const int64_t pieces = desc->out / least, threads = op->kernel->threads;
    tess__fold_init(&call.fold, tess__cpu_sizes(desc).w, dw,
                    (char *)op->scratch + product_conv_scratch(c, desc));
    call.channels = (pieces + threads - 1) / threads * least;
    tess__cpu_share(op->kernel, (desc->out + call.channels - 1) / call.channels, product_conv_part,
                    &call, op->scratch);
}

/* The gradient of a bias: sums over the rows of each leaf, then over the leaves. The threads share
 * the columns. */
#define PRODUCT_BIAS      64    /* columns of a part at most */
#define PRODUCT_BIAS_LINE 16    /* a multiple of which it is */
#define PRODUCT_BIAS_WORK 65536 /* elements from which on they share: tens of microseconds */

struct product_bias {
    const struct cpu_loops *loops;
    const struct tess_op_desc *desc;
    const char *dy;
    float *dbias;
    struct tess_fold fold; /* of all columns, into dbias or beside it */
    int64_t columns;       /* of a part */
};

static void product_bias_part(void *context, int64_t part, void *work)
{
    (void)work;
    const struct product_bias *call = context;
    const struct tess_op_desc *desc = call->desc;
    int64_t leaf = desc->leaf_rows * tess__cpu_sizes(desc).y; /* elements */
    int64_t first = part * call->columns;
    int64_t width = tess__cpu_min(desc->out - first, call->columns);
    struct tess_fold fold = tess__fold_piece(&call->fold, first, width);
    for (int64_t g = 0; g < desc->rows / desc->leaf_rows; g++) {
        call->loops->column_sum(desc->dtype, leaf / desc->out, desc->out, first, width,
                                call->dy + (size_t)(g * leaf) * tess_dtype_bytes(desc->dtype),
                                tess__fold_leaf(&fold));
        tess__fold_push(&fold);
    }
    tess__fold_finish(&fold);
    if (desc->add_grad)
        call->loops->plain_add(width, fold.target, call->dbias + first);
}

static void product_bias(struct tess_op *op, const char *dy, float *dbias)
{
    const struct tess_op_desc *desc = &op->desc;
    int64_t cols = desc->out, leaves = desc->rows / desc->leaf_rows, threads = op->kernel->threads;
    char *behind = (char *)op->scratch + tess__fold_bytes(cols, leaves);
    struct product_bias call = {.loops = tess__cpu_loops(op->kernel),
                                .desc = desc,
                                .dy = dy,
                                .dbias = dbias,
                                .columns = cols};
    tess__fold_init(&call.fold, cols, desc->add_grad ? (float *)(void *)behind : dbias,
                    op->scratch);
    if (threads > 1 && desc->rows * tess__cpu_sizes(desc).y >= PRODUCT_BIAS_WORK) {
        call.columns = tess__cpu_min((cols + threads - 1) / threads, PRODUCT_BIAS);
        call.columns =
            (call.columns + PRODUCT_BIAS_LINE - 1) / PRODUCT_BIAS_LINE * PRODUCT_BIAS_LINE;
    }
    tess__cpu_share(op->kernel, (cols + call.columns - 1) / call.columns, product_bias_part, &call,
                    NULL);
}

/* An own kernel may update the parameter by the way; else the caller does. */
static void product_grad(struct tess_op *op, const struct cpu_own *own, const void *x,
                         const void *dy, float *dw)
{
    const struct tess_op_desc *desc = &op->desc;
    struct cpu_update update = {.run = tess__cpu_loops(op->kernel)->update};
    const bool fits = op->update != NULL && own->grad_updates(desc) &&
                      tess__rule_resolve(op->update, &update.update);
    own->grad(op->kernel, desc, x, dy, dw, fits ? &update : NULL, op->scratch);
    if (fits)
        op->update = NULL;
}

static enum tess_status product_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                                float *dw, float *dbias)
{
    const struct tess_op_desc *desc = &op->desc;
    struct product_choice c = product_choose(desc);
    if (c.library[CPU_BACKWARD_WEIGHT])
        TESS_TRY(tess__cpu_library_weight(op, x, dy, dw));
    else if (desc->kind == TESS_OP_LINEAR)
        product_grad(op, c.own, x, dy, dw);
    else
        product_conv_weight(&c, op, x, dy, dw);
    if (dbias != NULL)
        product_bias(op, dy, dbias);
    return TESS_OK;
}

const struct cpu_product tess__cpu_product = {
    .needs = product_needs,
    .open = product_open,
    .close = tess__cpu_library_close,
    .forward = product_forward,
    .backward_data = product_backward_data,
    .backward_weight = product_backward_weight,
};
