/* One product of a layer beside oneDNN's; see bench_layer.h. */
#include "bench/bench_layer.h"

#include "tessera/check.h"

#include <stdlib.h>

void tess__bench_layer_close(struct tess__bench_layer *layer)
{
    tess__bench_op_close(&layer->op);
    for (int i = 0; i < TESS__BENCH_ARRAYS; i++)
        free(layer->array[i]);
}

static size_t layer_window(const struct tess_op_desc *desc)
{
    return desc->kind == TESS_OP_CONV2D ? (size_t)(desc->window * desc->window) : 1;
}

static void layer_bytes(const struct tess_op_desc *desc, size_t bytes_out[TESS__BENCH_ARRAYS])
{
    const size_t element = tess_dtype_bytes(desc->dtype);
    const size_t w = (size_t)(desc->in * desc->out) * layer_window(desc);
    bytes_out[TESS__BENCH_X] =
        (size_t)(desc->rows * desc->in * tess__bench_positions(desc, false)) * element;
    bytes_out[TESS__BENCH_W] = w * element;
    bytes_out[TESS__BENCH_BIAS] = (size_t)desc->out * element;
    bytes_out[TESS__BENCH_Y] =
        (size_t)(desc->rows * desc->out * tess__bench_positions(desc, true)) * element;
    bytes_out[TESS__BENCH_DW] = w * sizeof(float);
}

/* Elements from q to part `part` of q, k, v and their end: all in one row of a position, where that
 * has room for them, or one after the other. */
static size_t layer_attention_at(const struct tess_op_desc *desc, int part)
{
    const int64_t positions = desc->rows * desc->length, rest = part > 0 ? part - 1 : 0;
    const int64_t row = (desc->heads + 2 * desc->kv_heads) * desc->in;
    if (desc->q_stride >= row && desc->kv_stride == desc->q_stride)
        return (size_t)(part == 3
                            ? positions * desc->q_stride
                            : (part > 0 ? desc->heads + rest * desc->kv_heads : 0) * desc->in);
    return (size_t)(positions * ((part > 0 ? desc->q_stride : 0) + rest * desc->kv_stride));
}

static void layer_attention_bytes(const struct tess_op_desc *desc,
                                  size_t bytes_out[TESS__BENCH_ARRAYS])
{
    const size_t element = tess_dtype_bytes(desc->dtype);
    const size_t heads = (size_t)(desc->rows * desc->length * desc->heads);
    bytes_out[TESS__BENCH_X] = bytes_out[TESS__BENCH_W] = layer_attention_at(desc, 3) * element;
    bytes_out[TESS__BENCH_Y] = bytes_out[TESS__BENCH_DW] = heads * (size_t)desc->in * element;
    bytes_out[TESS__BENCH_BIAS] = heads * sizeof(float);
}

enum tess_status tess__bench_layer_open(struct tess__bench *bench, const struct tess_op_desc *desc,
                                        struct tess__bench_layer *layer)
{
    *layer = (struct tess__bench_layer){.what = TESS_BEST_FORWARD};
    size_t bytes[TESS__BENCH_ARRAYS];
    enum tess_status status = TESS_OK;
    (desc->kind == TESS_OP_ATTENTION ? layer_attention_bytes : layer_bytes)(desc, bytes);
    for (int i = 0; i < TESS__BENCH_ARRAYS && status == TESS_OK; i++)
        status = tess__bench_allocate(bytes[i], &layer->array[i]);
    if (status == TESS_OK)
        status = tess__bench_op_open(bench, desc, &layer->op);
    if (status != TESS_OK)
        tess__bench_layer_close(layer);
    return status;
}

static void *layer_attention_part(const struct tess__bench_layer *layer,
                                  enum tess__bench_array array, int part)
{
    const struct tess_op_desc *desc = &layer->op.desc;
    return (char *)layer->array[array] +
           layer_attention_at(desc, part) * tess_dtype_bytes(desc->dtype);
}

static enum tess_status layer_attention_run(struct tess__bench_layer *layer)
{
    const void *q = layer_attention_part(layer, TESS__BENCH_X, 0);
    const void *k = layer_attention_part(layer, TESS__BENCH_X, 1);
    const void *v = layer_attention_part(layer, TESS__BENCH_X, 2);
    void *y = layer->array[TESS__BENCH_Y];
    float *lse = layer->array[TESS__BENCH_BIAS];
    if (layer->what == TESS_BEST_FORWARD)
        return tess_attention_forward(&layer->op, q, k, v, y, lse);
    return tess_attention_backward(&layer->op, q, k, v, y, layer->array[TESS__BENCH_DW], lse,
                                   layer_attention_part(layer, TESS__BENCH_W, 0),
                                   layer_attention_part(layer, TESS__BENCH_W, 1),
                                   layer_attention_part(layer, TESS__BENCH_W, 2));
}

/* y stands for dy in the backward passes, x for dx. */
enum tess_status tess__bench_layer_run(void *context)
{
    struct tess__bench_layer *layer = context;
    struct tess_op *op = &layer->op;
    bool linear = op->desc.kind == TESS_OP_LINEAR;
    if (op->desc.kind == TESS_OP_ATTENTION)
        return layer_attention_run(layer);
    void *x = layer->array[TESS__BENCH_X], *w = layer->array[TESS__BENCH_W];
    void *y = layer->array[TESS__BENCH_Y];
    switch (layer->what) {
    case TESS_BEST_FORWARD:
        return (linear ? tess_linear_forward
                       : tess_conv2d_forward)(op, x, w, layer->array[TESS__BENCH_BIAS], y);
    case TESS_BEST_BACKWARD_DATA:
        return (linear ? tess_linear_backward_data : tess_conv2d_backward_data)(op, y, w, x);
    default:
        return (linear ? tess_linear_backward_weight
                       : tess_conv2d_backward_weight)(op, x, y, layer->array[TESS__BENCH_DW], NULL);
    }
}

static enum tess_status layer_run_best(void *context)
{
    return tess__best_run(context);
}

double tess__bench_layer_flops(const struct tess_op_desc *desc)
{
    return 2 * (double)desc->rows * (double)desc->in * (double)desc->out *
           (double)layer_window(desc) * (double)tess__bench_positions(desc, true);
}

enum tess_status tess__bench_layer_product(struct tess__bench *bench,
                                           struct tess__bench_layer *layer,
                                           struct tess__bench_product *product_out)
{
    struct tess_best *best[TESS__BENCH_TASKS] = {NULL};
    struct tess__bench_task task[TESS__BENCH_TASKS] = {
        {.run = tess__bench_layer_run, .context = layer}};
    enum tess_status status = TESS_OK;
    int count = 1, fastest = 1;
    for (; count < TESS__BENCH_TASKS; count++) {
        TESS_TRY_GOTO(status, close_best,
                      tess__best_open(&layer->op.desc, layer->what, count - 1,
                                      bench->kernel->threads, &best[count]));
        if (!best[count])
            break;
        task[count] = (struct tess__bench_task){.run = layer_run_best, .context = best[count]};
    }
    TESS_TRY_GOTO(status, close_best, tess__bench_measure(bench, task, count));
    for (int t = 1; t < count; t++)
        if (task[t].median_s < task[fastest].median_s)
            fastest = t;
    *product_out = (struct tess__bench_product){task[0].median_s, task[fastest].median_s,
                                                tess__best_name(best[fastest])};

close_best:
    for (int t = 1; t < TESS__BENCH_TASKS; t++)
        tess__best_close(best[t]);
    return status;
}
