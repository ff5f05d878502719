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

enum rows_size { ROWS_WIDTH, ROWS_INNER, ROWS_CLASSES };

struct rows {
    struct tess__gpu *gpu;
    struct tess_kernel *kernel;
    enum tess_dtype dtype;
    const struct rows_kernel *what;
    int64_t rows[3]; /* by enum rows_size */
    int64_t row[3];  /* elements of a row */
    struct tess_op *norm, *rms, *embedding;
    void *array[ROWS_ARRAYS], *gamma, *table;
    void *small[4]; /* f32 [rows] each, of the narrowest rows */
    void *dgamma, *dbeta, *dtable;
    void *token, *label, *correct;
};

/* ---- kernels --------------------------------------------------------------------------------- */

static enum tess_status rows_norm(struct rows *r)
{
    void **a = r->array;
    return tess_norm_forward(r->norm, a[0], a[1], a[2], r->gamma, r->gamma, a[3], r->small[0],
                             r->small[1]);
}

static enum tess_status rows_norm_grad(struct rows *r)
{
    void **a = r->array;
    return tess_norm_backward(r->norm, a[0], a[1], r->gamma, r->small[0], r->small[1], a[2], a[3],
                              r->dgamma, r->dbeta);
}

static enum tess_status rows_rms(struct rows *r)
{
    void **a = r->array;
    return tess_norm_forward(r->rms, a[0], a[1], a[2], r->gamma, NULL, a[3], NULL, r->small[1]);
}

static enum tess_status rows_rms_grad(struct rows *r)
{
    void **a = r->array;
    return tess_norm_backward(r->rms, a[0], a[1], r->gamma, NULL, r->small[1], a[2], a[3],
                              r->dgamma, NULL);
}

static enum tess_status rows_embedding(struct rows *r)
{
    return tess_embedding_forward(r->embedding, r->token, 0, r->table, NULL, r->array[3]);
}

static enum tess_status rows_embedding_grad(struct rows *r)
{
    return tess_embedding_backward(r->embedding, r->token, 0, r->array[0], r->dtable);
}

static enum tess_status rows_rope(struct rows *r)
{
    const struct tess__gpu_model *m = r->gpu->model;
    tess_rope(r->kernel, r->dtype, r->rows[ROWS_WIDTH], m->length, 0, m->heads, m->width / m->heads,
              m->width, &(struct tess_rotary){.base = 1e4f}, false, r->array[4]);
    return TESS_OK;
}

static enum tess_status rows_dropout(struct rows *r)
{
    static const uint64_t key[2] = {1, 2};
    const int64_t width = r->row[ROWS_WIDTH];
    tess_dropout(r->kernel, r->dtype, r->rows[ROWS_WIDTH], width, width, 0.1f, key, 0, r->array[0],
                 r->array[3]);
    return TESS_OK;
}

static enum tess_status rows_swiglu(struct rows *r)
{
    const int64_t width = r->row[ROWS_INNER];
    tess_swiglu_forward(r->kernel, r->dtype, r->rows[ROWS_INNER], width, width, r->array[0],
                        r->array[1], r->array[3]);
    return TESS_OK;
}

static enum tess_status rows_swiglu_grad(struct rows *r)
{
    const int64_t width = r->row[ROWS_INNER];
    void **a = r->array;
    tess_swiglu_backward(r->kernel, r->dtype, r->rows[ROWS_INNER], width, width, a[0], a[1], a[2],
                         a[3], a[4]);
    return TESS_OK;
}

static enum tess_status rows_xent(struct rows *r)
{
    tess_softmax_xent(r->kernel, r->dtype, r->rows[ROWS_CLASSES], r->row[ROWS_CLASSES],
                      (struct tess_xent){0}, 1.0f, r->array[0], r->label, r->array[3], r->small[0],
                      r->correct);
    return TESS_OK;
}

static enum tess_status rows_xent_max(struct rows *r)
{
    const int64_t classes = r->row[ROWS_CLASSES];
    tess_xent_max(r->kernel, r->dtype, r->rows[ROWS_CLASSES], classes, classes, r->array[0],
                  r->small[0], r->small[1], r->small[2], r->small[3]);
    return TESS_OK;
}

static enum tess_status rows_xent_sum(struct rows *r)
{
    const int64_t classes = r->row[ROWS_CLASSES];
    tess_xent_sum(r->kernel, r->dtype, r->rows[ROWS_CLASSES], classes, classes, 0,
                  (struct tess_xent){0}, r->array[0], r->label, r->small[0], r->small[1],
                  r->small[2], r->small[3]);
    return TESS_OK;
}

static enum tess_status rows_xent_grad(struct rows *r)
{
    const int64_t classes = r->row[ROWS_CLASSES];
    tess_xent_grad(r->kernel, r->dtype, r->rows[ROWS_CLASSES], classes, classes, 0,
                   (struct tess_xent){0}, 1.0f, r->array[2], r->label, r->small[0], r->small[1],
                   r->array[2]);
    return TESS_OK;
}

/* Whole arrays of activations; and words of 4 bytes a row (statistics, tokens, labels, losses), and
 * f32 and other vectors of a row's width. One of the last three is set. */
static const struct rows_kernel {
    const char *name;
    enum rows_size size;
    int arrays, words, vectors_f32, vectors;
    enum tess_status (*run)(struct rows *r);
    __typeof__(tess_relu_forward) *from_one; /* element by element, of one array or of two */
    __typeof__(tess_add) *from_two;
} rows_table[] = {
    {"add + layer norm", ROWS_WIDTH, 4, 2, 0, 2, .run = rows_norm},
    {"layer norm backward + add", ROWS_WIDTH, 4, 2, 2, 1, .run = rows_norm_grad},
    {"add + RMS norm", ROWS_WIDTH, 4, 1, 0, 1, .run = rows_rms},
    {"RMS norm backward + add", ROWS_WIDTH, 4, 1, 1, 1, .run = rows_rms_grad},
    {"embedding", ROWS_WIDTH, 1, 1, 0, 0, .run = rows_embedding},
    {"embedding backward", ROWS_WIDTH, 1, 1, 0, 0, .run = rows_embedding_grad},
    {"rope", ROWS_WIDTH, 2, 0, 0, 0, .run = rows_rope},
    {"add", ROWS_WIDTH, 3, 0, 0, 0, .from_two = tess_add},
    {"dropout", ROWS_WIDTH, 2, 0, 0, 0, .run = rows_dropout},
    {"relu", ROWS_WIDTH, 2, 0, 0, 0, .from_one = tess_relu_forward},
    {"relu backward", ROWS_WIDTH, 3, 0, 0, 0, .from_two = tess_relu_backward},
    {"gelu", ROWS_INNER, 2, 0, 0, 0, .from_one = tess_gelu_forward},
    {"gelu backward", ROWS_INNER, 3, 0, 0, 0, .from_two = tess_gelu_backward},
    {"swiglu", ROWS_INNER, 3, 0, 0, 0, .run = rows_swiglu},
    {"swiglu backward", ROWS_INNER, 5, 0, 0, 0, .run = rows_swiglu_grad},
    {"xent, loss and gradient", ROWS_CLASSES, 2, 3, 0, 0, .run = rows_xent},
    {"xent max", ROWS_CLASSES, 1, 4, 0, 0, .run = rows_xent_max},
    {"xent sum", ROWS_CLASSES, 0, 8, 0, 0, .run = rows_xent_sum},
    {"xent gradient, in place", ROWS_CLASSES, 2, 3, 0, 0, .run = rows_xent_grad},
};

static enum tess_status rows_run(void *context)
{
    struct rows *r = context;
    const struct rows_kernel *what = r->what;
    const int64_t count = r->rows[what->size] * r->row[what->size];
    void **a = r->array;
    if (what->run != NULL)
        return what->run(r);
    if (what->from_one != NULL)
        what->from_one(r->kernel, r->dtype, count, a[0], a[3]);
    else
        what->from_two(r->kernel, r->dtype, count, a[0], a[1], a[3]);
    return TESS_OK;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static double rows_bytes(const struct rows *r)
{
    const struct rows_kernel *what = r->what;
    const double element = (double)tess_dtype_bytes(r->dtype);
    const double rows = (double)r->rows[what->size], row = (double)r->row[what->size];
    const double entries = (double)r->row[ROWS_CLASSES];
    double bytes = rows * row * element * what->arrays + rows * 4 * what->words +
                   row * (4 * what->vectors_f32 + element * what->vectors);
    if (what->run == rows_embedding)
        bytes += row * element * (entries < rows ? entries : rows);
    if (what->run == rows_embedding_grad)
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
        TESS_TRY(tess__gpu_take(gpu, most * 4, &r->small[i]));
    TESS_TRY(tess__gpu_take(gpu, m->width * 4, &r->dgamma));
    TESS_TRY(tess__gpu_take(gpu, m->width * 4, &r->dbeta));
    TESS_TRY(tess__gpu_take(gpu, m->classes * m->width * 4, &r->dtable));
    TESS_TRY(tess__gpu_take_tokens(gpu, most, m->classes, &r->token));
    TESS_TRY(tess__gpu_take_tokens(gpu, r->rows[ROWS_CLASSES], m->classes, &r->label));
    TESS_TRY(tess__gpu_take_tokens(gpu, r->rows[ROWS_CLASSES], 2, &r->correct));
    return rows_open_ops(r);
}

static enum tess_status rows_measure(struct rows *r)
{
    const enum rows_size size = r->what->size;
    const struct tess__gpu_task task = {.run = rows_run, .context = r};
    char shape[TESS__GPU_TEXT_BYTES];
    struct tess__gpu_row row = {.part = "kernels",
                                .name = r->what->name,
                                .shape = shape,
                                .type = tess_dtype_name(r->dtype),
                                .bytes = rows_bytes(r),
                                .ceiling = r->gpu->copy_per_s,
                                .goal = ROWS_GOAL};
    snprintf(shape, sizeof(shape), "%lld x %lld", (long long)r->rows[size],
             (long long)r->row[size]);
    return tess__gpu_measure(r->gpu, &task, &row);
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
    for (size_t i = 0; i < sizeof(rows_table) / sizeof(rows_table[0]); i++) {
        r.what = &rows_table[i];
        TESS_TRY(rows_measure(&r));
    }
    return TESS_OK;
}
