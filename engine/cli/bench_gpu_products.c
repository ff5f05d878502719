/*
 * Part of `tessera bench gpu`: what multiplies, against the best product that this device was seen
 * to do in the same type. FLOPs of a linear layer: 2 rows in out for each of its three products; of
 * a convolution: as many for every place of the window. Of attention: what a causal model needs, 2
 * products forward and 5 backward of 2 T^2 D a head, halved; backward's fifth is the one that a
 * kernel which keeps no T x T does again.
 */
#include "cli/bench_gpu.h"

#include "tessera/check.h"

#include <stdio.h>

enum products_what {
    PRODUCTS_FORWARD,
    PRODUCTS_FORWARD_GELU,
    PRODUCTS_DATA,
    PRODUCTS_DATA_GELU,
    PRODUCTS_WEIGHT,
    PRODUCTS_COUNT
};

struct products {
    struct tess__gpu *gpu;
    struct tess_op *op;
    enum products_what what;
    void *x, *w, *bias, *y, *before;
    float *dw, *dbias;
    void *qkv, *grad, *dy;
    float *lse;
};

static enum tess_status products_take_f32(struct tess__gpu *gpu, int64_t count, float **array_out)
{
    void *memory = NULL;

    TESS_TRY(tess__gpu_take(gpu, count * 4, &memory));
    *array_out = memory;
    return TESS_OK;
}

static enum tess_status products_tell(struct tess__gpu *gpu, const struct tess__gpu_task *task,
                                      const char *name, const char *shape, double flops)
{
    const enum tess__gpu_type type = tess__gpu_type_of(gpu->dtype);
    struct tess__gpu_row row = {.part = "products",
                                .name = name,
                                .shape = shape,
                                .type = tess__gpu_type_name(type),
                                .flops = flops,
                                .ceiling = gpu->product_per_s[type]};

    TESS_TRY(tess__gpu_measure(gpu, task, &row.time));
    return tess__gpu_tell(gpu, &row);
}

/* ---- linear layers and convolutions ----------------------------------------------------------
 */

struct products_layer {
    const char *name;
    struct tess_op_desc desc; /* without dtype and leaf_rows */
};

static enum tess_status products_run_linear(const struct products *p)
{
    switch (p->what) {
    case PRODUCTS_FORWARD:
        return tess_linear_forward(p->op, p->x, p->w, p->bias, p->y);
    case PRODUCTS_FORWARD_GELU:
        return tess_linear_forward_gelu(p->op, p->x, p->w, p->bias, p->before, p->y);
    case PRODUCTS_DATA:
        return tess_linear_backward_data(p->op, p->y, p->w, p->x);
    case PRODUCTS_DATA_GELU:
        return tess_linear_backward_data_gelu(p->op, p->y, p->w, p->before, p->x);
    default:
        return tess_linear_backward_weight(p->op, p->x, p->y, p->dw, p->dbias);
    }
}

/* y stands for its gradient in the backward passes, x for its own. */
static enum tess_status products_run(void *context)
{
    const struct products *p = context;

    if (p->op->desc.kind == TESS_OP_LINEAR)
        return products_run_linear(p);
    if (p->what == PRODUCTS_FORWARD)
        return tess_conv2d_forward(p->op, p->x, p->w, p->bias, p->y);
    if (p->what == PRODUCTS_DATA)
        return tess_conv2d_backward_data(p->op, p->y, p->w, p->x);
    return tess_conv2d_backward_weight(p->op, p->x, p->y, p->dw, p->dbias);
}

static int64_t products_places(const struct tess_op_desc *d, bool output)
{
    if (d->kind == TESS_OP_LINEAR)
        return 1;
    if (!output)
        return d->height * d->width;
    return tess_op_output_size(d->height, d->window, d->stride, d->padding) *
           tess_op_output_size(d->width, d->window, d->stride, d->padding);
}

static int64_t products_weights(const struct tess_op_desc *d)
{
    return d->in * d->out * (d->kind == TESS_OP_CONV2D ? (int64_t)d->window * d->window : 1);
}

static enum tess_status products_open(struct products *p, const struct tess_op_desc *d)
{
    struct tess__gpu *gpu = p->gpu;
    const int64_t x = d->rows * d->in * products_places(d, false);
    const int64_t y = d->rows * d->out * products_places(d, true);

    TESS_TRY(tess__gpu_take_random(gpu, d->dtype, x, &p->x));
    TESS_TRY(tess__gpu_take_random(gpu, d->dtype, products_weights(d), &p->w));
    TESS_TRY(tess__gpu_take_random(gpu, d->dtype, d->out, &p->bias));
    TESS_TRY(tess__gpu_take_random(gpu, d->dtype, y, &p->y));
    /* Of the layer above going forward, of the one below going back. */
    TESS_TRY(tess__gpu_take_random(gpu, d->dtype, d->gelu ? (x > y ? x : y) : 1, &p->before));
    TESS_TRY(products_take_f32(gpu, products_weights(d), &p->dw));
    TESS_TRY(products_take_f32(gpu, d->out, &p->dbias));
    return tess__gpu_take_op(gpu, d, &p->op);
}

static bool products_has(const struct tess_op_desc *d, enum products_what what)
{
    const bool gelu = what == PRODUCTS_FORWARD_GELU || what == PRODUCTS_DATA_GELU;

    if (what == PRODUCTS_DATA)
        return d->input_grad;
    return !gelu || d->gelu;
}

static enum tess_status products_layer(struct tess__gpu *gpu, const struct products_layer *layer)
{
    static const char *const pass[PRODUCTS_COUNT] = {"forward", "forward, gelu", "data",
                                                     "data, gelu", "weight"};
    struct tess_op_desc desc = layer->desc;
    struct products p = {.gpu = gpu};
    const struct tess__gpu_task task = {.run = products_run, .context = &p};
    char shape[TESS__GPU_TEXT_BYTES], name[TESS__GPU_TEXT_BYTES];

    desc.dtype = gpu->dtype;
    desc.leaf_rows = desc.rows;
    TESS_TRY(products_open(&p, &desc));
    snprintf(shape, sizeof shape, "%lld x %lld x %lld", (long long)desc.rows, (long long)desc.out,
             (long long)desc.in);
    for (int what = 0; what < PRODUCTS_COUNT; what++) {
        p.what = (enum products_what)what;
        if (!products_has(&desc, p.what))
            continue;
        snprintf(name, sizeof name, "%s %s", layer->name, pass[what]);
        TESS_TRY(products_tell(gpu, &task, name, shape,
                               2 * (double)desc.rows * (double)products_weights(&desc) *
                                   (double)products_places(&desc, true)));
    }
    return TESS_OK;
}

static enum tess_status products_layers(struct tess__gpu *gpu)
{
    const struct tess__gpu_model *m = gpu->model;
    const int64_t rows = m->batch * m->length, c = m->width;
#define PRODUCTS_LINEAR(n, o, i) .kind = TESS_OP_LINEAR, .rows = (n), .out = (o), .in = (i)
#define PRODUCTS_CONV(o, i, size)                                                                  \
    .kind = TESS_OP_CONV2D, .rows = m->images, .out = (o), .in = (i), .height = (size),            \
    .width = (size), .window = 3, .stride = 1, .relu = true
    const struct products_layer layer[] = {
        {"qkv", {PRODUCTS_LINEAR(rows, 3 * c, c), .input_grad = true}},
        {"attention out", {PRODUCTS_LINEAR(rows, c, c), .input_grad = true}},
        {"up", {PRODUCTS_LINEAR(rows, m->inner, c), .input_grad = true, .gelu = true}},
        {"down", {PRODUCTS_LINEAR(rows, c, m->inner), .input_grad = true, .gelu = true}},
        {"vocabulary", {PRODUCTS_LINEAR(m->head_chunk, m->classes, c), .input_grad = true}},
        {"conv 3x3 of 28x28", {PRODUCTS_CONV(32, 1, 28)}},
        {"conv 3x3 of 26x26", {PRODUCTS_CONV(64, 32, 26), .input_grad = true}},
    };
#undef PRODUCTS_LINEAR
#undef PRODUCTS_CONV

    for (size_t i = 0; i < sizeof layer / sizeof layer[0]; i++) {
        TESS_TRY(products_layer(gpu, &layer[i]));
        tess__gpu_drop(gpu);
    }
    return TESS_OK;
}

/* ---- attention -------------------------------------------------------------------------------
 */

static char *products_part(const struct products *p, void *array, int64_t heads)
{
    const struct tess_op_desc *d = &p->op->desc;

    return (char *)array + heads * d->in * (int64_t)tess_dtype_bytes(d->dtype);
}

static enum tess_status products_run_attention(void *context)
{
    const struct products *p = context;
    const struct tess_op_desc *d = &p->op->desc;
    const int64_t k = d->heads, v = d->heads + d->kv_heads;

    if (p->what == PRODUCTS_FORWARD)
        return tess_attention_forward(p->op, p->qkv, products_part(p, p->qkv, k),
                                      products_part(p, p->qkv, v), p->y, p->lse);
    return tess_attention_backward(p->op, p->qkv, products_part(p, p->qkv, k),
                                   products_part(p, p->qkv, v), p->y, p->dy, p->lse, p->grad,
                                   products_part(p, p->grad, k), products_part(p, p->grad, v));
}

static enum tess_status products_attention(struct tess__gpu *gpu, int number)
{
    const struct tess__gpu_model *m = gpu->model;
    const int64_t rows = m->attention[number].rows, length = m->attention[number].length;
    const int64_t heads = m->attention[number].heads, kv_heads = m->attention[number].kv_heads;
    const int64_t size = m->attention[number].size, stride = (heads + 2 * kv_heads) * size;
    const struct tess_op_desc desc = {.kind = TESS_OP_ATTENTION,
                                      .dtype = gpu->dtype,
                                      .rows = rows,
                                      .leaf_rows = rows,
                                      .in = size,
                                      .out = size,
                                      .length = length,
                                      .heads = (int32_t)heads,
                                      .kv_heads = (int32_t)kv_heads,
                                      .q_stride = stride,
                                      .kv_stride = stride};
    const double product = (double)(rows * heads) * (double)(length * length) * (double)size;
    struct products p = {.gpu = gpu};
    const struct tess__gpu_task task = {.run = products_run_attention, .context = &p};
    const int64_t y = rows * length * heads * size;
    char shape[TESS__GPU_TEXT_BYTES];

    if (kv_heads == heads)
        snprintf(shape, sizeof shape, "%lld x %lld, %lld x %lld", (long long)rows,
                 (long long)length, (long long)heads, (long long)size);
    else
        snprintf(shape, sizeof shape, "%lld x %lld, %lld/%lld x %lld", (long long)rows,
                 (long long)length, (long long)heads, (long long)kv_heads, (long long)size);
    TESS_TRY(tess__gpu_take_random(gpu, gpu->dtype, rows * length * stride, &p.qkv));
    TESS_TRY(tess__gpu_take(gpu, rows * length * stride * (int64_t)tess_dtype_bytes(gpu->dtype),
                            &p.grad));
    TESS_TRY(tess__gpu_take_random(gpu, gpu->dtype, y, &p.y));
    TESS_TRY(tess__gpu_take_random(gpu, gpu->dtype, y, &p.dy));
    TESS_TRY(products_take_f32(gpu, rows * heads * length, &p.lse));
    TESS_TRY(tess__gpu_take_op(gpu, &desc, &p.op));
    p.what = PRODUCTS_FORWARD;
    TESS_TRY(products_tell(gpu, &task, "attention forward", shape, 2 * product));
    p.what = PRODUCTS_DATA;
    return products_tell(gpu, &task, "attention backward", shape, 5 * product);
}

enum tess_status tess__gpu_products(struct tess__gpu *gpu)
{
    const struct tess__gpu_model *m = gpu->model;

    tess__gpu_head(gpu, "layers (rows, out, in)", false, "best");
    TESS_TRY(products_layers(gpu));
    tess__gpu_head(gpu, "attention (B x T, H x D)", false, "best");
    for (int i = 0; i < (int)(sizeof m->attention / sizeof m->attention[0]); i++) {
        TESS_TRY(products_attention(gpu, i));
        tess__gpu_drop(gpu);
    }
    return TESS_OK;
}
