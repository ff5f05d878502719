/*
 * Layers that `tessera bench gpu` measures: those of a GPT, linear, and of the labs' CNN. FLOPs of
 * a linear layer: 2 rows in out for each of its three products; of a convolution: as many for every
 * place of the window.
 */
#include "bench/gpu/bench_gpu.h"

#include "tessera/check.h"

#include <stdio.h>

void tess__gpu_layer_shapes(const struct tess__gpu *gpu,
                            struct tess__gpu_layer_shape shape[TESS__GPU_LAYERS])
{
    const struct tess__gpu_model *m = gpu->model;
    const int64_t rows = m->batch * m->length, c = m->width;
#define LAYER_LINEAR(n, o, i) .kind = TESS_OP_LINEAR, .rows = (n), .out = (o), .in = (i)
#define LAYER_CONV(o, i, size)                                                                     \
    .kind = TESS_OP_CONV2D, .rows = m->images, .out = (o), .in = (i), .height = (size),            \
    .width = (size), .window = 3, .stride = 1, .relu = true
    const struct tess__gpu_layer_shape all[TESS__GPU_LAYERS] = {
        {"qkv", {LAYER_LINEAR(rows, 3 * c, c), .input_grad = true}},
        {"attention out", {LAYER_LINEAR(rows, c, c), .input_grad = true}},
        {"up", {LAYER_LINEAR(rows, m->inner, c), .input_grad = true, .gelu = true}},
        {"down", {LAYER_LINEAR(rows, c, m->inner), .input_grad = true, .gelu = true}},
        {"vocabulary", {LAYER_LINEAR(m->head_chunk, m->classes, c), .input_grad = true}},
        {"conv 3x3 of 28x28", {LAYER_CONV(32, 1, 28)}},
        {"conv 3x3 of 26x26", {LAYER_CONV(64, 32, 26), .input_grad = true}},
    };
#undef LAYER_LINEAR
#undef LAYER_CONV

    for (int i = 0; i < TESS__GPU_LAYERS; i++) {
        shape[i] = all[i];
        shape[i].desc.dtype = gpu->dtype;
        shape[i].desc.leaf_rows = shape[i].desc.rows;
    }
}

static int64_t layer_weights(const struct tess_op_desc *d)
{
    return d->in * d->out * (d->kind == TESS_OP_CONV2D ? (int64_t)d->window * d->window : 1);
}

enum tess_status tess__gpu_layer_open(struct tess__gpu *gpu, const struct tess_op_desc *d,
                                      struct tess__gpu_layer *layer)
{
    const int64_t x = d->rows * d->in * tess__bench_positions(d, false);
    const int64_t y = d->rows * d->out * tess__bench_positions(d, true);
    TESS_TRY(tess__gpu_take_random(gpu, d->dtype, x, &layer->x));
    TESS_TRY(tess__gpu_take_random(gpu, d->dtype, layer_weights(d), &layer->w));
    TESS_TRY(tess__gpu_take_random(gpu, d->dtype, d->out, &layer->bias));
    TESS_TRY(tess__gpu_take_random(gpu, d->dtype, y, &layer->y));
    /* Of the layer above going forward, of the one below going back. */
    TESS_TRY(tess__gpu_take_random(gpu, d->dtype, d->gelu ? (x > y ? x : y) : 1, &layer->before));
    TESS_TRY(tess__gpu_take(gpu, layer_weights(d) * 4, &layer->dw));
    TESS_TRY(tess__gpu_take(gpu, d->out * 4, &layer->dbias));
    return tess__gpu_take_op(gpu, d, &layer->op);
}

bool tess__gpu_layer_has(const struct tess_op_desc *d, enum tess__gpu_pass pass)
{
    const bool gelu = pass == TESS__GPU_FORWARD_GELU || pass == TESS__GPU_DATA_GELU;
    if (pass == TESS__GPU_DATA)
        return d->input_grad;
    return !gelu || d->gelu;
}

double tess__gpu_layer_flops(const struct tess_op_desc *d)
{
    return 2 * (double)d->rows * (double)layer_weights(d) * (double)tess__bench_positions(d, true);
}

const char *tess__gpu_layer_text(const struct tess_op_desc *d, char text[TESS__GPU_TEXT_BYTES])
{
    snprintf(text, TESS__GPU_TEXT_BYTES, "%lld x %lld x %lld", (long long)d->rows,
             (long long)d->out, (long long)d->in);
    return text;
}

const char *tess__gpu_pass_name(enum tess__gpu_pass pass)
{
    static const char *const name[TESS__GPU_PASSES] = {"forward", "forward, gelu", "data",
                                                       "data, gelu", "weight"};
    return name[pass];
}

static enum tess_status layer_run_linear(const struct tess__gpu_layer *l)
{
    switch (l->pass) {
    case TESS__GPU_FORWARD:
        return tess_linear_forward(l->op, l->x, l->w, l->bias, l->y);
    case TESS__GPU_FORWARD_GELU:
        return tess_linear_forward_gelu(l->op, l->x, l->w, l->bias, l->before, l->y);
    case TESS__GPU_DATA:
        return tess_linear_backward_data(l->op, l->y, l->w, l->x);
    case TESS__GPU_DATA_GELU:
        return tess_linear_backward_data_gelu(l->op, l->y, l->w, l->before, l->x);
    default:
        return tess_linear_backward_weight(l->op, l->x, l->y, l->dw, l->dbias);
    }
}

/* y stands for its gradient in the backward passes, x for its own. */
enum tess_status tess__gpu_layer_run(void *layer)
{
    const struct tess__gpu_layer *l = layer;
    if (l->op->desc.kind == TESS_OP_LINEAR)
        return layer_run_linear(l);
    if (l->pass == TESS__GPU_FORWARD)
        return tess_conv2d_forward(l->op, l->x, l->w, l->bias, l->y);
    if (l->pass == TESS__GPU_DATA)
        return tess_conv2d_backward_data(l->op, l->y, l->w, l->x);
    return tess_conv2d_backward_weight(l->op, l->x, l->y, l->dw, l->dbias);
}
