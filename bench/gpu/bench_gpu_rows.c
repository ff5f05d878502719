/*
 * Part of `tessera bench gpu`: what streams through activations between the products. A kernel's
 * bytes are those of every array that it is given, once: what it must read and what it must write.
 * An embedding reads as many rows of its table as there are, or as there are tokens.
 */
#include "bench/gpu/bench_gpu.h"

#include "tessera/check.h"

#include <stdio.h>

#define ROWS_ARRAYS 5
#define ROWS_GOAL   0.85

enum rows_what {
    ROWS_NORM,
    ROWS_NORM_GRAD,
    ROWS_RMS,
    ROWS_RMS_GRAD,
    ROWS_EMBEDDING,
    ROWS_EMBEDDING_GRAD,
    ROWS_ROPE,
    ROWS_ADD,
    ROWS_DROPOUT,
    ROWS_RELU,
    ROWS_RELU_GRAD,
    ROWS_GELU,
    ROWS_GELU_GRAD,
    ROWS_SWIGLU,
    ROWS_SWIGLU_GRAD,
    ROWS_XENT,
    ROWS_XENT_MAX,
    ROWS_XENT_SUM,
    ROWS_XENT_GRAD,
    ROWS_COUNT
};

enum rows_size { ROWS_WIDTH, ROWS_INNER, ROWS_CLASSES };

/* Whole arrays of activations; and words of 4 bytes a row (statistics, tokens, labels, losses), and
 * f32 and other vectors of a row's width. */
static const struct {
    const char *name;
    enum rows_size size;
    int arrays, words, vectors_f32, vectors;
} rows_table[ROWS_COUNT] = {
    [ROWS_NORM] = {"add + layer norm", ROWS_WIDTH, 4, 2, 0, 2},
    [ROWS_NORM_GRAD] = {"layer norm backward + add", ROWS_WIDTH, 4, 2, 2, 1},
    [ROWS_RMS] = {"add + RMS norm", ROWS_WIDTH, 4, 1, 0, 1},
    [ROWS_RMS_GRAD] = {"RMS norm backward + add", ROWS_WIDTH, 4, 1, 1, 1},
    [ROWS_EMBEDDING] = {"embedding", ROWS_WIDTH, 1, 1, 0, 0},
    [ROWS_EMBEDDING_GRAD] = {"embedding backward", ROWS_WIDTH, 1, 1, 0, 0},
    [ROWS_ROPE] = {"rope", ROWS_WIDTH, 2, 0, 0, 0},
    [ROWS_ADD] = {"add", ROWS_WIDTH, 3, 0, 0, 0},
    [ROWS_DROPOUT] = {"dropout", ROWS_WIDTH, 2, 0, 0, 0},
    [ROWS_RELU] = {"relu", ROWS_WIDTH, 2, 0, 0, 0},
    [ROWS_RELU_GRAD] = {"relu backward", ROWS_WIDTH, 3, 0, 0, 0},
    [ROWS_GELU] = {"gelu", ROWS_INNER, 2, 0, 0, 0},
    [ROWS_GELU_GRAD] = {"gelu backward", ROWS_INNER, 3, 0, 0, 0},
    [ROWS_SWIGLU] = {"swiglu", ROWS_INNER, 3, 0, 0, 0},
    [ROWS_SWIGLU_GRAD] = {"swiglu backward", ROWS_INNER, 5, 0, 0, 0},
    [ROWS_XENT] = {"xent, loss and gradient", ROWS_CLASSES, 2, 3, 0, 0},
    [ROWS_XENT_MAX] = {"xent max", ROWS_CLASSES, 1, 1, 0, 0},
    [ROWS_XENT_SUM] = {"xent sum", ROWS_CLASSES, 1, 5, 0, 0},
    [ROWS_XENT_GRAD] = {"xent gradient, in place", ROWS_CLASSES, 2, 3, 0, 0},
};

struct rows {
    struct tess__gpu *gpu;
    struct tess_kernel *kernel;
    enum tess_dtype dtype;
    enum rows_what what;
    int64_t rows[3]; /* by enum rows_size */
    int64_t row[3];  /* elements of a row */
    struct tess_op *norm, *rms, *embedding;
    void *array[ROWS_ARRAYS], *gamma, *table;
    float *small[4]; /* [rows] each, of the narrowest rows */
    float *dgamma, *dbeta, *dtable;
    int32_t *token, *label, *correct;
};

/* ---- running --------------------------------------------------------------------------------- */

static enum tess_status rows_run_op(struct rows *r)
{
    void **a = r->array;
    switch (r->what) {
    case ROWS_NORM:
        return tess_norm_forward(r->norm, a[0], a[1], a[2], r->gamma, r->gamma, a[3], r->small[0],
                                 r->small[1]);
    case ROWS_NORM_GRAD:
        return tess_norm_backward(r->norm, a[0], a[1], r->gamma, r->small[0], r->small[1], a[2],
                                  a[3], r->dgamma, r->dbeta);
    case ROWS_RMS:
        return tess_norm_forward(r->rms, a[0], a[1], a[2], r->gamma, NULL, a[3], NULL, r->small[1]);
    case ROWS_RMS_GRAD:
        return tess_norm_backward(r->rms, a[0], a[1], r->gamma, NULL, r->small[1], a[2], a[3],
                                  r->dgamma, NULL);
    case ROWS_EMBEDDING:
        return tess_embedding_forward(r->embedding, r->token, 0, r->table, NULL, a[3]);
    default:
        return tess_embedding_backward(r->embedding, r->token, 0, a[0], r->dtable);
    }
}

static void rows_run_xent(const struct rows *r)
{
    const int64_t rows = r->rows[ROWS_CLASSES], classes = r->row[ROWS_CLASSES];
    void *const *a = r->array;
    switch (r->what) {
    case ROWS_XENT:
        tess_softmax_xent(r->kernel, r->dtype, rows, classes, 1.0f, a[0], r->label, a[3],
                          r->small[0], r->correct);
        break;
    case ROWS_XENT_MAX:
        tess_xent_max(r->kernel, r->dtype, rows, classes, classes, a[0], r->small[0]);
        break;
    case ROWS_XENT_SUM:
        tess_xent_sum(r->kernel, r->dtype, rows, classes, classes, 0, a[0], r->label, r->small[0],
                      r->small[1], r->small[2], r->small[3]);
        break;
    default:
        tess_xent_grad(r->kernel, r->dtype, rows, classes, classes, 0, 1.0f, a[2], r->label,
                       r->small[0], r->small[1], a[2]);
    }
}

static void rows_run_pointwise(const struct rows *r, int64_t count)
{
    static const uint64_t key[2] = {1, 2};
    struct tess_kernel *kernel = r->kernel;
    void *const *a = r->array;
    switch (r->what) {
    case ROWS_ADD:
        tess_add(kernel, r->dtype, count, a[0], a[1], a[3]);
        break;
    case ROWS_DROPOUT:
        tess_dropout(kernel, r->dtype, count, 0.1f, key, 0, a[0], a[3]);
        break;
    case ROWS_RELU:
        tess_relu_forward(kernel, r->dtype, count, a[0], a[3]);
        break;
    case ROWS_RELU_GRAD:
        tess_relu_backward(kernel, r->dtype, count, a[0], a[1], a[3]);
        break;
    case ROWS_GELU:
        tess_gelu_forward(kernel, r->dtype, count, a[0], a[3]);
        break;
    case ROWS_GELU_GRAD:
        tess_gelu_backward(kernel, r->dtype, count, a[0], a[1], a[3]);
        break;
    case ROWS_SWIGLU:
        tess_swiglu_forward(kernel, r->dtype, count, a[0], a[1], a[3]);
        break;
    default:
        tess_swiglu_backward(kernel, r->dtype, count, a[0], a[1], a[2], a[3], a[4]);
    }
}

static enum tess_status rows_run(void *context)
{
    struct rows *r = context;
    const struct tess__gpu_model *m = r->gpu->model;
    const enum rows_size size = rows_table[r->what].size;
    if (r->what <= ROWS_EMBEDDING_GRAD)
        return rows_run_op(r);
    if (size == ROWS_CLASSES)
        rows_run_xent(r);
    else if (r->what == ROWS_ROPE)
        tess_rope(r->kernel, r->dtype, r->rows[size], m->length, 0, m->heads, m->width / m->heads,
                  m->width, 1e4f, false, r->array[4]);
    else
        rows_run_pointwise(r, r->rows[size] * r->row[size]);
    return TESS_OK;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static double rows_bytes(const struct rows *r)
{
    const enum rows_size size = rows_table[r->what].size;
    const double element = (double)tess_dtype_bytes(r->dtype);
    const double rows = (double)r->rows[size], row = (double)r->row[size];
    const double entries = (double)r->row[ROWS_CLASSES];
    double bytes =
        rows * row * element * rows_table[r->what].arrays + rows * 4 * rows_table[r->what].words +
        row * (4 * rows_table[r->what].vectors_f32 + element * rows_table[r->what].vectors);
    if (r->what == ROWS_EMBEDDING)
        bytes += row * element * (entries < rows ? entries : rows);
    if (r->what == ROWS_EMBEDDING_GRAD)
        bytes += row * 4 * entries;
    return bytes;
}

static enum tess_status rows_open_ops(struct rows *r)
{
    const struct tess__gpu_model *m = r->gpu->model;
    const int64_t rows = r->rows[ROWS_WIDTH];
    struct tess_op_desc norm = {.kind = TESS_OP_NORM,
                                .dtype = r->dtype,
                                .rows = rows,
                                .leaf_rows = rows,
                                .in = m->width,
                                .out = m->width,
                                .epsilon = 1e-5f};
    const struct tess_op_desc embedding = {.kind = TESS_OP_EMBEDDING,
                                           .dtype = r->dtype,
                                           .rows = rows,
                                           .leaf_rows = rows,
                                           .in = m->classes,
                                           .out = m->width,
                                           .length = m->length};
    TESS_TRY(tess__gpu_take_op(r->gpu, &norm, &r->norm));
    norm.rms = true;
    TESS_TRY(tess__gpu_take_op(r->gpu, &norm, &r->rms));
    return tess__gpu_take_op(r->gpu, &embedding, &r->embedding);
}

static enum tess_status rows_take_f32(struct rows *r, int64_t count, float **array_out)
{
    void *memory = NULL;
    TESS_TRY(tess__gpu_take(r->gpu, count * 4, &memory));
    *array_out = memory;
    return TESS_OK;
}

static enum tess_status rows_open(struct rows *r)
{
    struct tess__gpu *gpu = r->gpu;
    const struct tess__gpu_model *m = gpu->model;
    const int64_t element = (int64_t)tess_dtype_bytes(r->dtype), most = r->rows[ROWS_WIDTH];
    for (int i = 0; i < ROWS_ARRAYS; i++)
        TESS_TRY(tess__gpu_take_random(gpu, r->dtype, gpu->bytes / element, &r->array[i]));
    TESS_TRY(tess__gpu_take_random(gpu, r->dtype, m->width, &r->gamma));
    TESS_TRY(tess__gpu_take_random(gpu, r->dtype, m->classes * m->width, &r->table));
    for (int i = 0; i < 4; i++)
        TESS_TRY(rows_take_f32(r, most, &r->small[i]));
    TESS_TRY(rows_take_f32(r, m->width, &r->dgamma));
    TESS_TRY(rows_take_f32(r, m->width, &r->dbeta));
    TESS_TRY(rows_take_f32(r, m->classes * m->width, &r->dtable));
    TESS_TRY(tess__gpu_take_tokens(gpu, most, m->classes, &r->token));
    TESS_TRY(tess__gpu_take_tokens(gpu, r->rows[ROWS_CLASSES], m->classes, &r->label));
    TESS_TRY(tess__gpu_take_tokens(gpu, r->rows[ROWS_CLASSES], 2, &r->correct));
    return rows_open_ops(r);
}

static enum tess_status rows_measure(struct rows *r)
{
    const enum rows_size size = rows_table[r->what].size;
    const struct tess__gpu_task task = {.run = rows_run, .context = r};
    char shape[TESS__GPU_TEXT_BYTES];
    struct tess__gpu_row row = {.part = "kernels",
                                .name = rows_table[r->what].name,
                                .shape = shape,
                                .type = tess_dtype_name(r->dtype),
                                .bytes = rows_bytes(r),
                                .ceiling = r->gpu->copy_per_s,
                                .goal = ROWS_GOAL};
    snprintf(shape, sizeof(shape), "%lld x %lld", (long long)r->rows[size],
             (long long)r->row[size]);
    TESS_TRY(tess__gpu_measure(r->gpu, &task, &row.time));
    return tess__gpu_print(r->gpu, &row);
}

enum tess_status tess__gpu_rows(struct tess__gpu *gpu)
{
    const struct tess__gpu_model *m = gpu->model;
    struct rows r = {.gpu = gpu,
                     .kernel = gpu->bench.kernel,
                     .dtype = gpu->dtype,
                     .row = {m->width, m->inner, m->classes}};
    for (int size = 0; size < 3; size++) {
        const int64_t row = r.row[size] * (int64_t)tess_dtype_bytes(gpu->dtype);
        r.rows[size] = gpu->bytes / row > 0 ? gpu->bytes / row : 1;
    }
    /* Whole sequences. */
    r.rows[ROWS_WIDTH] -= r.rows[ROWS_WIDTH] % m->length;
    TESS_TRY(rows_open(&r));
    tess__gpu_head(gpu, "kernels on activations", true, "copy");
    for (int what = 0; what < ROWS_COUNT; what++) {
        r.what = (enum rows_what)what;
        TESS_TRY(rows_measure(&r));
    }
    return TESS_OK;
}
