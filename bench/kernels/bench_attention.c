/*
 * Part of `tessera bench kernels`: attention against the form that keeps T x T scores, which is two
 * oneDNN matmuls and a softmax forward and four matmuls backward, head by head.
 */
#include "bench/bench_layer.h"

#include "cpu/best.h"
#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>

struct attention_shape {
    const char *name;
    int64_t rows, length;
    int32_t heads;
    int64_t size;
};

static const struct attention_shape attention_shapes[] = {
    {"4 x 256, 6 x 64", 4, 256, 6, 64},     {"2 x 512, 12 x 64", 2, 512, 12, 64},
    {"1 x 1024, 12 x 64", 1, 1024, 12, 64}, {"1 x 2048, 12 x 64", 1, 2048, 12, 64},
    {"4 x 256, 12 x 32", 4, 256, 12, 32},   {"4 x 256, 3 x 128", 4, 256, 3, 128},
};

/* Tessera's kernel and the reference, with all their arrays. */
struct attention {
    struct tess__bench_layer layer;
    enum tess_dtype square;    /* of the reference: f32 where oneDNN has no product of the type */
    struct tess_best *best[3]; /* of one head: q k^T, p v, and p^T dy */
    void *p, *dp;              /* [T, T] */
};

static enum tess_status attention_forward(void *context)
{
    struct attention *a = context;
    a->layer.what = TESS_BEST_FORWARD;
    return tess__bench_layer_run(&a->layer);
}

static enum tess_status attention_backward(void *context)
{
    struct attention *a = context;
    a->layer.what = TESS_BEST_BACKWARD_DATA;
    return tess__bench_layer_run(&a->layer);
}

static float attention_scale(const struct attention *a)
{
    return 1.0f / sqrtf((float)a->layer.op.desc.in);
}

static enum tess_status attention_square_forward(void *context)
{
    struct attention *a = context;
    const struct tess_op_desc *d = &a->layer.op.desc;
    for (int64_t head = 0; head < d->rows * d->heads; head++) {
        TESS_TRY(tess__best_run(a->best[TESS_BEST_FORWARD]));
        tess__best_softmax(a->square, d->length, attention_scale(a), a->p);
        TESS_TRY(tess__best_run(a->best[TESS_BEST_BACKWARD_DATA]));
    }
    return TESS_OK;
}

/* dp = dy v^T, ds, dq = ds k, dv = p^T dy, dk = ds^T q; p was kept. */
static enum tess_status attention_square_backward(void *context)
{
    struct attention *a = context;
    const struct tess_op_desc *d = &a->layer.op.desc;
    for (int64_t head = 0; head < d->rows * d->heads; head++) {
        TESS_TRY(tess__best_run(a->best[TESS_BEST_FORWARD]));
        tess__best_softmax_grad(a->square, d->length, attention_scale(a), a->p, a->dp);
        TESS_TRY(tess__best_run(a->best[TESS_BEST_BACKWARD_DATA]));
        TESS_TRY(tess__best_run(a->best[TESS_BEST_BACKWARD_WEIGHT]));
        TESS_TRY(tess__best_run(a->best[TESS_BEST_BACKWARD_WEIGHT]));
    }
    return TESS_OK;
}

static void attention_close(struct attention *a)
{
    for (int i = 0; i < 3; i++)
        tess__best_close(a->best[i]);
    tess__bench_layer_close(&a->layer);
    free(a->p);
    free(a->dp);
}

/* The products of the reference, [length, size] by [size, length] and its two gradients. */
static enum tess_status attention_square_open(const struct tess__bench *bench,
                                              const struct attention_shape *shape,
                                              enum tess_dtype dtype, struct attention *a)
{
    const struct tess_op_desc product = {.kind = TESS_OP_LINEAR,
                                         .dtype = dtype,
                                         .rows = shape->length,
                                         .leaf_rows = shape->length,
                                         .in = shape->size,
                                         .out = shape->length};
    a->square = dtype;
    for (int i = 0; i < 3; i++) {
        tess__best_close(a->best[i]); /* of another type */
        TESS_TRY(tess__best_open(&product, (enum tess_best_what)i, 0, bench->kernel->threads,
                                 &a->best[i]));
        if (!a->best[i])
            return attention_square_open(bench, shape, TESS_F32, a);
    }
    return TESS_OK;
}

static enum tess_status attention_open(struct tess__bench *bench,
                                       const struct attention_shape *shape, enum tess_dtype dtype,
                                       struct attention *a)
{
    int64_t stride = 3 * shape->heads * shape->size;
    struct tess_op_desc desc = {.kind = TESS_OP_ATTENTION,
                                .dtype = dtype,
                                .rows = shape->rows,
                                .leaf_rows = shape->rows,
                                .in = shape->size,
                                .out = shape->size,
                                .length = shape->length,
                                .heads = shape->heads,
                                .kv_heads = shape->heads,
                                .q_stride = stride,
                                .kv_stride = stride};
    enum tess_status status;
    TESS_TRY(tess__bench_layer_open(bench, &desc, &a->layer));
    TESS_TRY_GOTO(status, failed, attention_square_open(bench, shape, dtype, a));
    const size_t square = (size_t)(shape->length * shape->length) * tess_dtype_bytes(a->square);
    TESS_TRY_GOTO(status, failed, tess__bench_allocate(square, &a->p));
    TESS_TRY_GOTO(status, failed, tess__bench_allocate(square, &a->dp));
    return TESS_OK;

failed:
    attention_close(a);
    return status;
}

/* Products up to the diagonal: 2 forward, 5 backward, each T^2 D multiply-adds / 2. */
static enum tess_status attention_report(struct tess__bench *bench,
                                         const struct attention_shape *shape,
                                         const struct attention *a, const char *what,
                                         double products, const struct tess__bench_task *task)
{
    const struct tess_op_desc *d = &a->layer.op.desc;
    struct tess_op_needs needs;
    TESS_TRY(bench->kernel->ops->op_needs(d, &needs));
    double flops = products * (double)(d->length * d->length * d->in * d->heads * d->rows);
    double gflops = flops / task[0].median_s * 1e-9;
    double ratio = task[1].median_s / task[0].median_s;
    double ours_mib =
        (double)(needs.scratch_bytes + needs.thread_bytes * (size_t)(bench->kernel->threads - 1)) /
        1048576;
    double square_mib = (double)(d->rows * d->heads * d->length * d->length) / 1048576 *
                        (double)tess_dtype_bytes(a->square);
    printf("%-18s %-5s %-9s %9.1f %8.0f %10.1f %6.2f %8.2f %8.1f\n", shape->name,
           tess_dtype_name(d->dtype), what, task[0].median_s * 1e6, gflops, task[1].median_s * 1e6,
           ratio, ours_mib, square_mib);
    return tess__bench_write(
        &bench->log,
        json_pack("{s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f}", "bench", "attention",
                  "shape", shape->name, "precision", tess_dtype_name(d->dtype), "what", what, "us",
                  task[0].median_s * 1e6, "gflops", gflops, "square_us", task[1].median_s * 1e6,
                  "ratio", ratio, "mib", ours_mib, "square_mib", square_mib));
}

static enum tess_status attention_measure(struct tess__bench *bench,
                                          const struct attention_shape *shape,
                                          enum tess_dtype dtype)
{
    struct attention a = {.p = NULL};
    TESS_TRY(attention_open(bench, shape, dtype, &a));
    struct tess__bench_task task[4] = {{.run = attention_forward, .context = &a},
                                       {.run = attention_square_forward, .context = &a},
                                       {.run = attention_backward, .context = &a},
                                       {.run = attention_square_backward, .context = &a}};
    enum tess_status status = tess__bench_measure(bench, task, 4);
    if (status == TESS_OK)
        status = attention_report(bench, shape, &a, "forward", 2, task);
    if (status == TESS_OK)
        status = attention_report(bench, shape, &a, "backward", 5, task + 2);
    attention_close(&a);
    return status;
}

enum tess_status tess__bench_attention(struct tess__bench *bench, enum tess_dtype dtype)
{
    for (size_t i = 0; i < sizeof(attention_shapes) / sizeof(attention_shapes[0]); i++)
        TESS_TRY(attention_measure(bench, &attention_shapes[i], dtype));
    return TESS_OK;
}
