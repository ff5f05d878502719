/*
 * Linear layers and convolutions: which kernel computes each of the three products. What changes
 * bits depends on dtype, geometry and leaf_rows only, never on the number of rows.
 *
 *                    linear                                   convolution
 *   forward          own kernel (forward.c); without AVX2      own kernel (conv.c); without AVX2
 *                    own loops when small, else oneDNN         oneDNN
 *   backward_data    own loops when small, own kernel          the same up to a stride of 2, else
 *                    (data.c); without AVX2 oneDNN             oneDNN
 *   backward_weight  own kernel (grad.c); without AVX2         own kernel (conv_grad.c) for whole
 *                    oneDNN                                    groups of outputs, else oneDNN
 *
 * On processors with AMX the own kernels in bf16 multiply by tiles (amx_linear.c, amx_grad.c,
 * amx_conv_grad.c), some ten times as fast as by dot products, and so do forward and data gradient
 * of the convolutions that amx_conv.c takes. oneDNN's products are library.c's.
 *
 * With AVX2 convolutions that desc.conv gives to Winograd are own kernels in all directions
 * (wino.c, wino_grad.c).
 */
#include "cpu/wave.h"

#include "ref/rules.h"
#include "tessera/check.h"

/*
 * Up to this many weights of a linear layer own loops beat oneDNN's cost per call, about a
 * microsecond with the choice of its inner kernels; an 8 x 8 layer takes a tenth of that.
 */
#define PRODUCT_SMALL 1024

/* What does not go to oneDNN. */
struct product_choice {
    const struct cpu_own *own;  /* NULL: none; of a convolution for the weight gradient only */
    bool small;                 /* own loops */
    bool wino;                  /* a convolution by own kernels in all directions */
    const struct cpu_own *conv; /* convolution: forward and the data gradient where `direct` */
    bool direct[2];             /* by enum cpu_what */
    bool library[3];            /* what does, by enum cpu_what */
};

static struct product_choice product_choose(const struct tess_op_desc *desc)
{
    const bool linear = desc->kind == TESS_OP_LINEAR;
    struct product_choice c = {.own = tess__cpu_own(desc->dtype)};
    c.wino = !linear && c.own != NULL && c.own->wino_takes(desc);
    c.conv = !linear && !c.wino ? c.own : NULL;
    for (int what = 0; what < 2; what++)
        c.direct[what] = c.conv != NULL && c.conv->conv_takes(desc, what == CPU_BACKWARD_DATA);
    if (!linear && !c.wino && c.own != NULL && !c.own->conv_grad_takes(desc))
        c.own = NULL;
    c.small = linear && desc->in * desc->out <= PRODUCT_SMALL;
    const bool library = (!linear && !c.wino) || (c.own == NULL && !c.small);
    c.library[CPU_FORWARD] = library && !c.direct[CPU_FORWARD];
    c.library[CPU_BACKWARD_DATA] = library && desc->input_grad && !c.direct[CPU_BACKWARD_DATA];
    c.library[CPU_BACKWARD_WEIGHT] = c.own == NULL;
    return c;
}

bool tess__cpu_product_own(const struct tess_op_desc *desc)
{
    const struct product_choice c = product_choose(desc);
    return tess__cpu_own(desc->dtype) != NULL && !c.library[CPU_FORWARD] &&
           !c.library[CPU_BACKWARD_DATA] && !c.library[CPU_BACKWARD_WEIGHT];
}

#define PRODUCT_BIAS_PARTS 16 /* units of the gradient of a convolution's bias at a time */

static size_t product_sum_bytes(int64_t count)
{
    return tess__cpu_round_up((size_t)count * sizeof(float));
}

/* Of a sum over images by own kernels, see wave.h; by Winograd it is transformed once more. */
#define PRODUCT_SUM_PIXELS 3072
#define PRODUCT_SUM_PARTS  4

static int64_t product_conv_images(const struct tess_op_desc *desc)
{
    const struct cpu_sizes n = tess__cpu_sizes(desc);
    return tess__cpu_wave_images(desc->leaf_rows, (double)(n.y / desc->out) * (double)n.w,
                                 tess__cpu_wave_work(desc, PRODUCT_SUM_PIXELS), PRODUCT_SUM_PARTS);
}

/* Units that are summed at a time: as many as leave none over. */
static int64_t product_conv_together(const struct tess_op_desc *desc)
{
    const int64_t units = desc->rows / product_conv_images(desc);
    int64_t together = tess__cpu_min(units, PRODUCT_SUM_PARTS);
    while (units % together != 0)
        together--;
    return together;
}

/* Scratch of the own weight gradient of a convolution, for each thread: the kernel's. */
static size_t product_conv_work(const struct product_choice *c, const struct tess_op_desc *desc)
{
    return c->wino ? c->own->wino_grad_scratch(desc) : c->own->conv_grad_scratch(desc);
}

/* What forward and the data gradient of a convolution by `conv` need, for each thread and in all.
 */
static size_t product_direct_thread(const struct product_choice *c, const struct tess_op_desc *desc)
{
    return c->direct[0] || c->direct[1] ? c->conv->conv_scratch(desc) : 0;
}

static size_t product_direct_scratch(const struct product_choice *c,
                                     const struct tess_op_desc *desc)
{
    return c->direct[0] || c->direct[1] ? c->conv->conv_scratch(desc) + c->conv->conv_weights(desc)
                                        : 0;
}

/* Scratch of the own kernels for each thread. */
static size_t product_thread_scratch(const struct product_choice *c,
                                     const struct tess_op_desc *desc)
{
    const struct cpu_own *own = c->own;
    if (desc->kind == TESS_OP_CONV2D)
        return tess__cpu_max(product_conv_work(c, desc), c->wino ? own->wino_scratch(desc) : 0);
    size_t bytes = tess__cpu_max(own->grad_scratch(desc), own->forward_scratch(desc));
    return tess__cpu_max(bytes, own->data_scratch(desc));
}

/* Scratch of the own kernels. */
static size_t product_own_scratch(const struct product_choice *c, const struct tess_op_desc *desc)
{
    if (desc->kind == TESS_OP_LINEAR)
        return tess__cpu_max(product_thread_scratch(c, desc),
                             c->own->grad_shared(desc) + c->own->grad_scratch(desc));
    size_t bytes =
        product_conv_work(c, desc) +
        (size_t)product_conv_together(desc) * product_sum_bytes(tess__cpu_sizes(desc).w) +
        tess__fold_bytes(tess__cpu_sizes(desc).w, desc->rows / desc->leaf_rows);
    return c->wino ? tess__cpu_max(bytes, c->own->wino_scratch(desc) + c->own->wino_weights(desc))
                   : bytes;
}

static enum tess_status product_needs(const struct tess_op_desc *desc,
                                      struct tess_op_needs *needs_out)
{
    struct product_choice c = product_choose(desc);
    size_t bytes = tess__fold_bytes(desc->out, desc->rows / desc->leaf_rows) +
                   PRODUCT_BIAS_PARTS * product_sum_bytes(desc->out); /* of a bias */
    if (c.small) /* weights, one row in, one row out, a bias */
        bytes = tess__cpu_max(bytes, (size_t)(desc->in * desc->out + desc->in + 2 * desc->out) *
                                         sizeof(float));
    if (c.own != NULL)
        bytes = tess__cpu_max(bytes, product_own_scratch(&c, desc));
    bytes = tess__cpu_max(bytes, product_direct_scratch(&c, desc));
    *needs_out = (struct tess_op_needs){.scratch_bytes = bytes,
                                        .thread_bytes = product_direct_thread(&c, desc)};
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
    if (c.direct[CPU_FORWARD])
        c.conv->conv(op->kernel, desc, false, x, w, bias, y, op->scratch);
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
    if (c.direct[CPU_BACKWARD_DATA])
        c.conv->conv(op->kernel, desc, true, dy, w, NULL, dx, op->scratch);
    else if (c.wino)
        c.own->wino(op->kernel, desc, true, dy, w, NULL, dx, op->scratch);
    else if (c.small)
        tess__cpu_loops(op->kernel)->small_backward_data(desc, dy, w, dx, op->scratch);
    else
        c.own->data(op->kernel, desc, dy, w, dx, op->scratch);
    return TESS_OK;
}

/* The sum over a unit's images, in blocks of output channels. */
struct product_conv {
    cpu_own_conv_grad *run;
    struct tess_op_desc desc; /* leaf_rows: the unit's images */
    const char *x, *dy;
    int64_t channels; /* of a block */
};

static void product_conv_unit(void *context, int64_t unit, int64_t block, float *sum, void *work)
{
    const struct product_conv *call = context;
    const struct tess_op_desc *desc = &call->desc;
    const struct cpu_sizes n = tess__cpu_sizes(desc);
    const size_t bytes = (size_t)(unit * desc->leaf_rows) * tess_dtype_bytes(desc->dtype);
    const int64_t first = block * call->channels;
    call->run(desc, call->x + (size_t)n.x * bytes, call->dy + (size_t)n.y * bytes, first,
              tess__cpu_min(desc->out - first, call->channels), sum + first * (n.w / desc->out),
              work);
}

/* As many blocks as give each thread as much. */
static void product_conv_cut(const struct tess_op *op, struct product_conv *call,
                             struct cpu_wave *wave)
{
    const bool on_tiles = op->desc.dtype == TESS_BF16 && tess__cpu_tiles();
    const int64_t least = on_tiles ? CPU_CONV_TILE : CPU_CONV_CHANNELS;
    const int64_t threads = tess__cpu_share_helps(op->kernel) ? op->kernel->threads : 1;
    const int64_t pieces = op->desc.out / least;
    int64_t blocks = 1;
    while (wave->together * blocks % threads != 0 && blocks < pieces)
        blocks++;
    call->channels = (pieces + blocks - 1) / blocks * least;
    wave->blocks = (op->desc.out + call->channels - 1) / call->channels;
}

static void product_conv_weight(const struct product_choice *c, struct tess_op *op, const char *x,
                                const char *dy, float *dw)
{
    struct product_conv call = {
        .run = c->wino ? c->own->wino_grad : c->own->conv_grad, .desc = op->desc, .x = x, .dy = dy};
    const struct cpu_sizes n = tess__cpu_sizes(&op->desc);
    call.desc.leaf_rows = product_conv_images(&op->desc);
    struct cpu_wave wave = {.op = op,
                            .run = product_conv_unit,
                            .context = &call,
                            .in_leaf = op->desc.leaf_rows / call.desc.leaf_rows,
                            .together = product_conv_together(&op->desc),
                            .work = op->scratch,
                            .sums = (char *)op->scratch + product_conv_work(c, &op->desc),
                            .sum_bytes = product_sum_bytes(n.w)};
    tess__fold_init(&wave.fold, n.w, dw, wave.sums + (size_t)wave.together * wave.sum_bytes);
    product_conv_cut(op, &call, &wave);
    tess__cpu_wave_run(&wave, op->desc.rows / call.desc.leaf_rows);
}

/* The gradient of a linear layer's bias: sums over the rows of each leaf, then over the leaves. The
 * threads share the columns. */
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
    const int64_t first = part * call->columns;
    const int64_t width = tess__cpu_min(desc->out - first, call->columns);
    const size_t leaf = (size_t)(desc->leaf_rows * desc->out) * tess_dtype_bytes(desc->dtype);
    struct tess_fold fold = tess__fold_piece(&call->fold, first, width);
    for (int64_t g = 0; g < desc->rows / desc->leaf_rows; g++) {
        call->loops->column_sum(desc->dtype, desc->leaf_rows, desc->out, first, width,
                                call->dy + (size_t)g * leaf, tess__fold_leaf(&fold));
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
    if (threads > 1 && desc->rows * desc->out >= PRODUCT_BIAS_WORK) {
        call.columns = tess__cpu_min((cols + threads - 1) / threads, PRODUCT_BIAS);
        call.columns =
            (call.columns + PRODUCT_BIAS_LINE - 1) / PRODUCT_BIAS_LINE * PRODUCT_BIAS_LINE;
    }
    tess__cpu_share(op->kernel, (cols + call.columns - 1) / call.columns, product_bias_part, &call,
                    NULL);
}

/* The gradient of a convolution's bias. Its few columns are not shared, since threads would read
 * the same lines of memory: the units of wave.h are. */
#define PRODUCT_BIAS_UNIT 2e5 /* elements of a unit at least: tens of microseconds */

struct product_pixels {
    const struct cpu_loops *loops;
    const struct tess_op_desc *desc;
    const char *dy;
    int64_t images; /* of a unit */
};

static void product_bias_unit(void *context, int64_t unit, int64_t block, float *sum, void *work)
{
    (void)block;
    (void)work;
    const struct product_pixels *call = context;
    const struct tess_op_desc *desc = call->desc;
    const int64_t count = call->images * tess__cpu_sizes(desc).y;
    call->loops->column_sum(desc->dtype, count / desc->out, desc->out, 0, desc->out,
                            call->dy + (size_t)(unit * count) * tess_dtype_bytes(desc->dtype), sum);
}

static void product_conv_bias(struct tess_op *op, const char *dy, float *dbias)
{
    const struct tess_op_desc *desc = &op->desc;
    struct product_pixels call = {.loops = tess__cpu_loops(op->kernel), .desc = desc, .dy = dy};
    call.images = tess__cpu_wave_images(desc->leaf_rows, (double)tess__cpu_sizes(desc).y,
                                        PRODUCT_BIAS_UNIT, PRODUCT_BIAS_PARTS);
    const int64_t units = desc->rows / call.images;
    struct cpu_wave wave = {.op = op,
                            .run = product_bias_unit,
                            .context = &call,
                            .in_leaf = desc->leaf_rows / call.images,
                            .together = tess__cpu_min(units, PRODUCT_BIAS_PARTS),
                            .blocks = 1,
                            .sums = op->scratch,
                            .sum_bytes = product_sum_bytes(desc->out)};
    tess__fold_init(&wave.fold, desc->out, dbias, wave.sums + PRODUCT_BIAS_PARTS * wave.sum_bytes);
    tess__cpu_wave_run(&wave, units);
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
    if (dbias != NULL && desc->kind == TESS_OP_LINEAR)
        product_bias(op, dy, dbias);
    else if (dbias != NULL)
        product_conv_bias(op, dy, dbias);
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
