/*
 * Part of `tessera bench gpu`: what multiplies, against the fastest product of the same type that
 * was measured on this device. FLOPs of attention: what a causal model needs, 2 products forward
 * and 5 backward of 2 T^2 D a head, halved; backward's fifth is the one that a kernel which keeps
 * no T x T does again.
 */
#include "bench/gpu/bench_gpu.h"

#include "tessera/check.h"

#include <stdio.h>

struct products_attention {
    struct tess_op *op;
    bool backward;
    void *qkv, *grad, *y, *dy, *lse;
};

static enum tess_status products_print(struct tess__gpu *gpu, const struct tess__gpu_task *task,
                                       const char *name, const char *shape, double flops)
{
    const enum tess__gpu_type type = tess__gpu_type_of(gpu->dtype);
    struct tess__gpu_row row = {.part = "products",
                                .name = name,
                                .shape = shape,
                                .type = tess__gpu_type_name(type),
                                .flops = flops,
                                .ceiling = gpu->product_per_s[type]};
    return tess__gpu_measure(gpu, task, &row);
}

/* ---- linear layers and convolutions ---------------------------------------------------------- */

static enum tess_status products_layer(struct tess__gpu *gpu,
                                       const struct tess__gpu_layer_shape *shape)
{
    struct tess__gpu_layer layer = {.op = NULL};
    const struct tess__gpu_task task = {.run = tess__gpu_layer_run, .context = &layer};
    char text[TESS__GPU_TEXT_BYTES], name[TESS__GPU_TEXT_BYTES];
    TESS_TRY(tess__gpu_layer_open(gpu, &shape->desc, &layer));
    (void)tess__gpu_layer_text(&shape->desc, text);
    for (int pass = 0; pass < TESS__GPU_PASSES; pass++) {
        layer.pass = (enum tess__gpu_pass)pass;
        if (!tess__gpu_layer_has(&shape->desc, layer.pass))
            continue;
        snprintf(name, sizeof(name), "%s %s", shape->name, tess__gpu_pass_name(layer.pass));
        TESS_TRY(products_print(gpu, &task, name, text, tess__gpu_layer_flops(&shape->desc)));
    }
    return TESS_OK;
}

static enum tess_status products_layers(struct tess__gpu *gpu)
{
    struct tess__gpu_layer_shape shape[TESS__GPU_LAYERS];
    tess__gpu_layer_shapes(gpu, shape);
    for (int i = 0; i < TESS__GPU_LAYERS; i++) {
        TESS_TRY(products_layer(gpu, &shape[i]));
        tess__gpu_drop(gpu);
    }
    return TESS_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

static char *products_part(const struct products_attention *p, void *array, int64_t heads)
{
    const struct tess_op_desc *d = &p->op->desc;
    return (char *)array + heads * d->in * (int64_t)tess_dtype_bytes(d->dtype);
}

static enum tess_status products_run_attention(void *context)
{
    const struct products_attention *p = context;
    const struct tess_op_desc *d = &p->op->desc;
    const int64_t k = d->heads, v = d->heads + d->kv_heads;
    if (!p->backward)
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
    struct products_attention p = {.op = NULL};
    const struct tess__gpu_task task = {.run = products_run_attention, .context = &p};
    const int64_t y = rows * length * heads * size;
    char shape[TESS__GPU_TEXT_BYTES];
    char kv_text[TESS__GPU_TEXT_BYTES] = "";
    if (kv_heads != heads)
        snprintf(kv_text, sizeof(kv_text), "/%lld", (long long)kv_heads);
    snprintf(shape, sizeof(shape), "%lld x %lld, %lld%s x %lld", (long long)rows, (long long)length,
             (long long)heads, kv_text, (long long)size);
    TESS_TRY(tess__gpu_take_random(gpu, gpu->dtype, rows * length * stride, &p.qkv));
    TESS_TRY(tess__gpu_take(gpu, rows * length * stride * (int64_t)tess_dtype_bytes(gpu->dtype),
                            &p.grad));
    TESS_TRY(tess__gpu_take_random(gpu, gpu->dtype, y, &p.y));
    TESS_TRY(tess__gpu_take_random(gpu, gpu->dtype, y, &p.dy));
    TESS_TRY(tess__gpu_take(gpu, rows * heads * length * 4, &p.lse));
    TESS_TRY(tess__gpu_take_op(gpu, &desc, &p.op));
    TESS_TRY(products_print(gpu, &task, "attention forward", shape, 2 * product));
    p.backward = true;
    return products_print(gpu, &task, "attention backward", shape, 5 * product);
}

enum tess_status tess__gpu_products(struct tess__gpu *gpu)
{
    const struct tess__gpu_model *m = gpu->model;
    tess__gpu_head(gpu, "layers (rows, out, in)", false, "best");
    TESS_TRY(products_layers(gpu));
    tess__gpu_head(gpu, "attention (B x T, H x D)", false, "best");
    for (int i = 0; i < (int)(sizeof(m->attention) / sizeof(m->attention[0])); i++) {
        TESS_TRY(products_attention(gpu, i));
        tess__gpu_drop(gpu);
    }
    return TESS_OK;
}
