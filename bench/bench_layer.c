/* One product of a layer beside oneDNN's; see bench_layer.h. */
#include "bench/bench_layer.h"

#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

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

static void layer_product_bytes(const struct tess_op_desc *desc,
                                size_t bytes_out[TESS__BENCH_ARRAYS])
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

/* Means, or reciprocals of deviations: of each row, or of each channel of a batch norm, of which
 * all rows are one leaf. */
static size_t layer_statistics(const struct tess_op_desc *desc)
{
    return (size_t)(desc->kind == TESS_OP_NORM ? desc->rows : desc->in);
}

static void layer_norm_bytes(const struct tess_op_desc *desc, size_t bytes_out[TESS__BENCH_ARRAYS])
{
    const size_t element = tess_dtype_bytes(desc->dtype), channels = (size_t)desc->in;
    const int64_t pixels = desc->kind == TESS_OP_NORM ? 1 : desc->height * desc->width;
    bytes_out[TESS__BENCH_X] = bytes_out[TESS__BENCH_Y] =
        (size_t)(desc->rows * pixels) * channels * element;
    bytes_out[TESS__BENCH_W] = bytes_out[TESS__BENCH_BIAS] = channels * element;
    bytes_out[TESS__BENCH_DW] = (2 * layer_statistics(desc) + 4 * channels) * sizeof(float);
}

void tess__bench_layer_bytes(const struct tess_op_desc *desc, size_t bytes_out[TESS__BENCH_ARRAYS])
{
    if (desc->kind == TESS_OP_ATTENTION)
        layer_attention_bytes(desc, bytes_out);
    else if (desc->kind == TESS_OP_NORM || desc->kind == TESS_OP_BATCH_NORM)
        layer_norm_bytes(desc, bytes_out);
    else
        layer_product_bytes(desc, bytes_out);
}

enum tess_status tess__bench_layer_open(struct tess__bench *bench, const struct tess_op_desc *desc,
                                        struct tess__bench_layer *layer)
{
    *layer = (struct tess__bench_layer){.what = TESS_BEST_FORWARD};
    size_t bytes[TESS__BENCH_ARRAYS];
    enum tess_status status = TESS_OK;
    tess__bench_layer_bytes(desc, bytes);
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

static enum tess_status layer_norm_run(struct tess__bench_layer *layer)
{
    struct tess_op *op = &layer->op;
    const size_t each = layer_statistics(&op->desc), channels = (size_t)op->desc.in;
    const bool batch = op->desc.kind == TESS_OP_BATCH_NORM,
               forward = layer->what == TESS_BEST_FORWARD;
    void *x = layer->array[TESS__BENCH_X], *y = layer->array[TESS__BENCH_Y];
    const void *gamma = layer->array[TESS__BENCH_W];
    const void *beta = op->desc.rms ? NULL : layer->array[TESS__BENCH_BIAS];
    float *rstd = layer->array[TESS__BENCH_DW], *mean = rstd + each, *sum = mean + each;
    float *dgamma = sum + 2 * channels, *dbeta = op->desc.rms ? NULL : dgamma + channels;
    if (op->desc.rms)
        mean = NULL;
    if (batch && forward)
        return tess_batch_norm_forward(op, x, gamma, beta, y, mean, rstd, sum, sum + channels);
    if (batch)
        return tess_batch_norm_backward(op, x, y, y, gamma, beta, mean, rstd, y, dgamma, dbeta);
    if (forward)
        return tess_norm_forward(op, x, NULL, NULL, gamma, beta, y, mean, rstd);
    return tess_norm_backward(op, x, y, gamma, mean, rstd, NULL, y, dgamma, dbeta);
}

enum tess_status tess__bench_layer_run(void *context)
{
    struct tess__bench_layer *layer = context;
    struct tess_op *op = &layer->op;
    bool linear = op->desc.kind == TESS_OP_LINEAR;
    if (op->desc.kind == TESS_OP_ATTENTION)
        return layer_attention_run(layer);
    if (op->desc.kind == TESS_OP_NORM || op->desc.kind == TESS_OP_BATCH_NORM)
        return layer_norm_run(layer);
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

/* What a product is measured beside. */
struct layer_rivals {
    struct tess_op_desc desc;
    struct tess_best *best[TESS_BEST_CANDIDATES]; /* NULL: there is none */
    struct tess__bench_layer wide;                /* Tessera's, where desc is not the layer's own */
    int count;
    struct tess__bench_task task[TESS__BENCH_TASKS - 1];
    const char *name[TESS__BENCH_TASKS - 1];
    int number[TESS__BENCH_TASKS - 1]; /* of tess__best_open; -1: Tessera's */
};

static void layer_rivals_close(struct layer_rivals *rivals)
{
    for (int i = 0; i < TESS_BEST_CANDIDATES; i++)
        tess__best_close(rivals->best[i]);
    tess__bench_layer_close(&rivals->wide);
}

static void layer_rivals_add(struct layer_rivals *rivals, const char *name, int number,
                             enum tess_status (*run)(void *context), void *context)
{
    rivals->name[rivals->count] = name;
    rivals->number[rivals->count] = number;
    rivals->task[rivals->count++] = (struct tess__bench_task){.run = run, .context = context};
}

/* oneDNN's primitives for rivals->desc. */
static enum tess_status layer_rivals_best(const struct tess__bench *bench, enum tess_best_what what,
                                          struct layer_rivals *rivals)
{
    for (int i = 0; i < TESS_BEST_CANDIDATES; i++) {
        TESS_TRY(tess__best_open(&rivals->desc, what, i, bench->kernel->threads, &rivals->best[i]));
        if (rivals->best[i])
            layer_rivals_add(rivals, tess__best_name(rivals->best[i]), i, layer_run_best,
                             rivals->best[i]);
    }
    return TESS_OK;
}

/* Closed by the caller, also after a failure. */
static enum tess_status layer_rivals_open(struct tess__bench *bench,
                                          const struct tess__bench_layer *layer,
                                          struct layer_rivals *rivals)
{
    *rivals = (struct layer_rivals){.desc = layer->op.desc};
    if (!rivals->desc.f32_math)
        TESS_TRY(layer_rivals_best(bench, layer->what, rivals));
    if (rivals->count > 0)
        return TESS_OK;
    rivals->desc.dtype = TESS_F32;
    rivals->desc.f32_math = false;
    TESS_TRY(layer_rivals_best(bench, layer->what, rivals));
    TESS_TRY(tess__bench_layer_open(bench, &rivals->desc, &rivals->wide));
    rivals->wide.what = layer->what;
    layer_rivals_add(rivals, "Tessera", -1, tess__bench_layer_run, &rivals->wide);
    return TESS_OK;
}

enum tess_status tess__bench_layer_product(struct tess__bench *bench,
                                           struct tess__bench_layer *layer,
                                           struct tess__bench_product *product_out)
{
    struct tess__bench_task task[TESS__BENCH_TASKS] = {
        {.run = tess__bench_layer_run, .context = layer}};
    struct layer_rivals rivals;
    enum tess_status status;
    int fastest = 1;
    TESS_TRY_GOTO(status, close_rivals, layer_rivals_open(bench, layer, &rivals));
    memcpy(task + 1, rivals.task, sizeof(rivals.task));
    TESS_TRY_GOTO(status, close_rivals, tess__bench_measure(bench, task, rivals.count + 1));
    for (int t = 1; t <= rivals.count; t++)
        if (task[t].median_s < task[fastest].median_s)
            fastest = t;
    *product_out = (struct tess__bench_product){
        task[0].median_s, task[fastest].median_s, rivals.name[fastest - 1], rivals.desc.dtype,
        rivals.desc.dtype == layer->op.desc.dtype && task[fastest].median_s < task[0].median_s
            ? rivals.number[fastest - 1]
            : -1};

close_rivals:
    layer_rivals_close(&rivals);
    return status;
}
