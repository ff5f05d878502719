/*
 * Part of `tessera bench kernels`: what a transformer does between its products, at the sizes of a
 * small model and of GPT-2 124M, against a plain loop over as many bytes.
 */
#include "bench/bench.h"

#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

#define SEQUENCE_ROWS   1024 /* positions */
#define SEQUENCE_LENGTH 256
#define SEQUENCE_HEAD   64
#define SEQUENCE_ARRAYS 5

struct sequence_model {
    const char *name;
    int64_t width, inner, classes;
};

static const struct sequence_model sequence_models[] = {
    {"d=384", 384, 1536, 256},
    {"124M", 768, 3072, 50304},
};

enum sequence_what {
    SEQUENCE_NORM,
    SEQUENCE_NORM_GRAD,
    SEQUENCE_GELU,
    SEQUENCE_GELU_GRAD,
    SEQUENCE_SWIGLU,
    SEQUENCE_SWIGLU_GRAD,
    SEQUENCE_ROPE,
    SEQUENCE_DECODE,
    SEQUENCE_EMBEDDING,
    SEQUENCE_EMBEDDING_GRAD,
    SEQUENCE_XENT,
    SEQUENCE_XENT_GRAD,
    SEQUENCE_ADD,
    SEQUENCE_DROPOUT,
    SEQUENCE_CAST,
    SEQUENCE_COUNT
};

/* How many elements an array has, and how many arrays are read and written. */
enum sequence_size { SEQUENCE_WIDTH, SEQUENCE_INNER, SEQUENCE_CLASSES };

static const struct {
    const char *name;
    enum sequence_size size;
    int passes;
} sequence_table[SEQUENCE_COUNT] = {
    [SEQUENCE_NORM] = {"add + norm", SEQUENCE_WIDTH, 4},
    [SEQUENCE_NORM_GRAD] = {"norm backward + add", SEQUENCE_WIDTH, 4},
    [SEQUENCE_GELU] = {"gelu", SEQUENCE_INNER, 2},
    [SEQUENCE_GELU_GRAD] = {"gelu backward", SEQUENCE_INNER, 3},
    [SEQUENCE_SWIGLU] = {"swiglu", SEQUENCE_INNER, 3},
    [SEQUENCE_SWIGLU_GRAD] = {"swiglu backward", SEQUENCE_INNER, 5},
    [SEQUENCE_ROPE] = {"rope", SEQUENCE_WIDTH, 2},
    [SEQUENCE_DECODE] = {"attention decode", SEQUENCE_WIDTH, 2},
    [SEQUENCE_EMBEDDING] = {"embedding + add", SEQUENCE_WIDTH, 3},
    [SEQUENCE_EMBEDDING_GRAD] = {"embedding backward", SEQUENCE_WIDTH, 1},
    [SEQUENCE_XENT] = {"xent max + sum", SEQUENCE_CLASSES, 2},
    [SEQUENCE_XENT_GRAD] = {"xent gradient", SEQUENCE_CLASSES, 2},
    [SEQUENCE_ADD] = {"add", SEQUENCE_WIDTH, 3},
    [SEQUENCE_DROPOUT] = {"dropout", SEQUENCE_WIDTH, 2},
    [SEQUENCE_CAST] = {"cast to f32", SEQUENCE_WIDTH, 1},
};

/* One model's arrays and operations in one type. */
struct sequence {
    struct tess__bench *bench;
    const struct sequence_model *model;
    enum tess_dtype dtype;
    enum sequence_what what;
    struct tess_op norm, embedding, decode;
    void *array[SEQUENCE_ARRAYS]; /* each has room for the largest */
    void *small;                  /* five arrays of SEQUENCE_ROWS words */
    void *table, *dtable;         /* [classes, width], the gradient in f32 */
};

static int64_t sequence_elements(const struct sequence *s)
{
    const enum sequence_size size = sequence_table[s->what].size;
    return SEQUENCE_ROWS * (size == SEQUENCE_WIDTH   ? s->model->width
                            : size == SEQUENCE_INNER ? s->model->inner
                                                     : s->model->classes);
}

static double sequence_bytes(const struct sequence *s)
{
    double bytes = (double)sequence_elements(s) * (double)tess_dtype_bytes(s->dtype) *
                   sequence_table[s->what].passes;
    if (s->what == SEQUENCE_EMBEDDING_GRAD)
        bytes += 4.0 * (double)(s->model->width * s->model->classes);
    if (s->what == SEQUENCE_CAST)
        bytes += 4.0 * (double)sequence_elements(s);
    return bytes;
}

static float *sequence_small(const struct sequence *s, int number)
{
    return (float *)s->small + number * SEQUENCE_ROWS;
}

/* The operations that are opened. */
static enum tess_status sequence_run_open(struct sequence *s)
{
    void **a = s->array;
    float *mean = sequence_small(s, 0), *rstd = sequence_small(s, 1);
    float *dgamma = s->dtable, *dbeta = dgamma + s->model->width;
    const int32_t *token = (const int32_t *)(void *)sequence_small(s, 4);
    switch (s->what) {
    case SEQUENCE_NORM:
        return tess_norm_forward(&s->norm, a[0], a[1], a[2], s->table, s->table, a[3], mean, rstd);
    case SEQUENCE_NORM_GRAD:
        return tess_norm_backward(&s->norm, a[0], a[1], s->table, mean, rstd, a[2], a[3], dgamma,
                                  dbeta);
    case SEQUENCE_DECODE:
        return tess_attention_decode(&s->decode, SEQUENCE_ROWS - 1, 1, a[2], a[0], a[1], a[3]);
    case SEQUENCE_EMBEDDING:
        return tess_embedding_forward(&s->embedding, token, 0, s->table, a[0], a[1]);
    default:
        return tess_embedding_backward(&s->embedding, token, 0, a[0], s->dtable);
    }
}

static void sequence_run_xent(const struct sequence *s)
{
    struct tess_kernel *kernel = s->bench->kernel;
    int64_t classes = s->model->classes;
    const int32_t *label = (const int32_t *)(void *)sequence_small(s, 4);
    float *max = sequence_small(s, 0), *sum = sequence_small(s, 1);
    float *target = sequence_small(s, 2), *best = sequence_small(s, 3);
    if (s->what == SEQUENCE_XENT_GRAD) {
        tess_xent_grad(kernel, s->dtype, SEQUENCE_ROWS, classes, classes, 0, (struct tess_xent){0},
                       1.0f, s->array[0], label, max, sum, s->array[1]);
        return;
    }
    tess_xent_max(kernel, s->dtype, SEQUENCE_ROWS, classes, classes, s->array[0], max, sum, target,
                  best);
    tess_xent_sum(kernel, s->dtype, SEQUENCE_ROWS, classes, classes, 0, (struct tess_xent){0},
                  s->array[0], label, max, sum, target, best);
}

static enum tess_status sequence_run(void *context)
{
    struct sequence *s = context;
    struct tess_kernel *kernel = s->bench->kernel;
    int64_t count = sequence_elements(s), width = s->model->width;
    void **a = s->array;
    static const uint64_t key[2] = {1, 2};
    switch (s->what) {
    case SEQUENCE_GELU:
        tess_gelu_forward(kernel, s->dtype, count, a[0], a[1]);
        break;
    case SEQUENCE_GELU_GRAD:
        tess_gelu_backward(kernel, s->dtype, count, a[0], a[1], a[2]);
        break;
    case SEQUENCE_SWIGLU:
        tess_swiglu_forward(kernel, s->dtype, 1, count, count, a[0], a[1], a[2]);
        break;
    case SEQUENCE_SWIGLU_GRAD:
        tess_swiglu_backward(kernel, s->dtype, 1, count, count, a[0], a[1], a[2], a[3], a[4]);
        break;
    case SEQUENCE_ROPE:
        tess_rope(kernel, s->dtype, SEQUENCE_ROWS, SEQUENCE_LENGTH, 0,
                  (int32_t)(width / SEQUENCE_HEAD), SEQUENCE_HEAD, width,
                  &(struct tess_rotary){.base = 1e4f}, false, a[0]);
        break;
    case SEQUENCE_XENT:
    case SEQUENCE_XENT_GRAD:
        sequence_run_xent(s);
        break;
    case SEQUENCE_ADD:
        tess_add(kernel, s->dtype, count, a[0], a[1], a[2]);
        break;
    case SEQUENCE_DROPOUT:
        tess_dropout(kernel, s->dtype, 1, count, count, 0.1f, key, 0, a[0], a[1]);
        break;
    case SEQUENCE_CAST:
        tess_cast(kernel, count, s->dtype, a[0], TESS_F32, s->dtable);
        break;
    default:
        return sequence_run_open(s);
    }
    return TESS_OK;
}

static void sequence_close(struct sequence *s)
{
    tess__bench_op_close(&s->norm);
    tess__bench_op_close(&s->embedding);
    tess__bench_op_close(&s->decode);
    for (int i = 0; i < SEQUENCE_ARRAYS; i++)
        free(s->array[i]);
    free(s->small);
    free(s->table);
    free(s->dtable);
}

static enum tess_status sequence_open(struct sequence *s)
{
    const struct sequence_model *m = s->model;
    size_t element = tess_dtype_bytes(s->dtype);
    int64_t most = m->classes > m->inner ? m->classes : m->inner;
    struct tess_op_desc norm = {.kind = TESS_OP_NORM,
                                .dtype = s->dtype,
                                .rows = SEQUENCE_ROWS,
                                .leaf_rows = SEQUENCE_ROWS,
                                .in = m->width,
                                .out = m->width,
                                .epsilon = 1e-5f};
    struct tess_op_desc embedding = {.kind = TESS_OP_EMBEDDING,
                                     .dtype = s->dtype,
                                     .rows = SEQUENCE_ROWS,
                                     .leaf_rows = SEQUENCE_ROWS,
                                     .in = m->classes,
                                     .out = m->width,
                                     .length = SEQUENCE_LENGTH};
    TESS_TRY(tess__bench_op_open(s->bench, &norm, &s->norm));
    struct tess_op_desc decode = {.kind = TESS_OP_ATTENTION,
                                  .dtype = s->dtype,
                                  .rows = 1,
                                  .leaf_rows = 1,
                                  .in = SEQUENCE_HEAD,
                                  .out = SEQUENCE_HEAD,
                                  .length = SEQUENCE_ROWS,
                                  .heads = (int32_t)(m->width / SEQUENCE_HEAD),
                                  .kv_heads = (int32_t)(m->width / SEQUENCE_HEAD),
                                  .q_stride = m->width,
                                  .kv_stride = m->width,
                                  .decode = true};
    TESS_TRY(tess__bench_op_open(s->bench, &embedding, &s->embedding));
    TESS_TRY(tess__bench_op_open(s->bench, &decode, &s->decode));
    for (int i = 0; i < SEQUENCE_ARRAYS; i++) {
        int64_t width = i < 2 ? most : m->inner;
        TESS_TRY(tess__bench_allocate((size_t)(SEQUENCE_ROWS * width) * element, &s->array[i]));
    }
    TESS_TRY(tess__bench_allocate(5 * SEQUENCE_ROWS * sizeof(float), &s->small));
    TESS_TRY(tess__bench_allocate((size_t)(m->classes * m->width) * element, &s->table));
    size_t table = (size_t)(m->classes > SEQUENCE_ROWS ? m->classes : SEQUENCE_ROWS);
    TESS_TRY(tess__bench_allocate(table * (size_t)m->width * sizeof(float), &s->dtable));
    int32_t *token = (int32_t *)(void *)sequence_small(s, 4);
    for (int i = 0; i < SEQUENCE_ROWS; i++)
        token[i] = (int32_t)(i * INT64_C(7919) % m->classes);
    return TESS_OK;
}

static enum tess_status sequence_measure(struct sequence *s)
{
    /* As many bytes: x is read, y is read and written. */
    const double bytes = sequence_bytes(s);
    const char *name = sequence_table[s->what].name, *precision = tess_dtype_name(s->dtype);
    struct tess__bench_plain plain = {.count = (int64_t)(bytes / 12)};
    const size_t plain_bytes = (size_t)plain.count * 2 * sizeof(float);
    void *memory;
    TESS_TRY(tess__bench_allocate(plain_bytes, &memory));
    plain.memory = memset(memory, 0, plain_bytes);
    printf("%-20s %-6s %-5s", name, s->model->name, precision);
    enum tess_status status =
        tess__bench_bandwidth(s->bench, sequence_run, s, bytes, &plain,
                              json_pack("{s:s, s:s, s:s, s:s}", "bench", "sequence", "what", name,
                                        "model", s->model->name, "precision", precision));
    free(memory);
    return status;
}

enum tess_status tess__bench_sequence(struct tess__bench *bench, enum tess_dtype dtype)
{
    for (size_t i = 0; i < sizeof(sequence_models) / sizeof(sequence_models[0]); i++) {
        struct sequence s = {.bench = bench, .model = &sequence_models[i], .dtype = dtype};
        enum tess_status status = sequence_open(&s);
        for (int what = 0; what < SEQUENCE_COUNT && status == TESS_OK; what++) {
            s.what = (enum sequence_what)what;
            status = sequence_measure(&s);
        }
        sequence_close(&s);
        TESS_TRY(status);
    }
    return TESS_OK;
}
